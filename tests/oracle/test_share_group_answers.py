"""Protects the answers to share groups' requests against Apache Kafka's own: the same exchange with both, and its records.

The recorded answers, which tests/server/coordinator/test_share_group_answers.py compares with, are those of this Kafka.
KCLI_WRITE_FIXTURES=1 writes them.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from kcli.log.disk.os_disk import OsDisk
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from kcli.protocol.internal_records import SHARE_GROUP_STATE
from tests.oracle.brokers import new_broker
from tests.oracle.kafka_4_4 import raise_features
from tests.oracle.peer import Peer
from tests.oracle.raw_requests import RawClient, running_kcli
from tests.share_group_exchange import FIXTURE, SETTINGS, exchanged, recorded

pytestmark = [pytest.mark.oracle, pytest.mark.ci]


def answers_of(address: str) -> list[Any]:
    """All answers of a broker."""
    client = RawClient(address)
    try:
        return exchanged(client, lambda: time.sleep(0.05))
    finally:
        client.close()


def states_of(home: Path) -> list[Any]:
    """The records of group s in __share_group_state, without topic ids and times."""
    found: list[Any] = []
    for path in sorted(home.glob("data/__share_group_state-*/*.log")):
        with SegmentReader(OsDisk(), str(path)) as reader:
            for batch in reader.batches():
                assert isinstance(batch, LogBatch)
                for window in batch.windows(RecordScanner()):
                    for index in range(window.count):
                        key, value = SHARE_GROUP_STATE.decode(window.key(index), window.value(index))
                        if key is not None and key.group_id == "s":
                            found.append((key.STRUCT.name, None if value is None else _fields(value)))
    return found


def _fields(value: Any) -> list[Any]:
    names = ("snapshot_epoch", "state_epoch", "leader_epoch", "start_offset", "delivery_complete_count")
    batches = [
        (batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count) for batch in value.state_batches
    ]
    return [*(getattr(value, name, None) for name in names), batches]


def test_the_answers_and_the_states_are_kafkas(each_kafka: Peer, tmp_path: Path) -> None:
    """Kafka 4.4.0 is compared with kcli with the features of 4.4."""
    is_4_4 = each_kafka.version == "4.4.0"
    for name in ("kafka", "kcli"):
        (tmp_path / name).mkdir()
    with new_broker(each_kafka, tmp_path / "kafka", *SETTINGS) as address:
        expected = answers_of(address)
    if os.environ.get("KCLI_WRITE_FIXTURES") and not is_4_4:
        FIXTURE.parent.mkdir(exist_ok=True)
        FIXTURE.write_text("[\n" + ",\n".join(json.dumps(answer) for answer in expected) + "\n]\n")
    with running_kcli(tmp_path / "kcli", *SETTINGS) as address:
        if is_4_4:
            raise_features(address)
        answers = answers_of(address)
    for ours, kafkas in zip(answers, expected, strict=True):
        assert ours == kafkas
    assert recorded(is_4_4=is_4_4) == expected
    assert states_of(tmp_path / "kcli") == states_of(tmp_path / "kafka") != []
