"""The internal topics of the given log directories: their records decoded by us, and, apart from that, what Kafka's own
dump says of them, read from its text by nothing but json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kcli.format.record_batch import RecordBatch
from kcli.protocol.control_records import ControlRecord, decode_control_record
from kcli.protocol.internal_records import decoder_for_topic
from kcli.protocol.message import Message
from tests.protocol.given_logs import GIVEN, dump_lines, given_records, internal_files

HAS_GIVEN = bool(internal_files())


class Applied(NamedTuple):
    """A record as the states take it: its batch, offset, and key and value, or control record."""

    batch: RecordBatch
    offset: int
    key: Message | None
    value: Message | None
    control: ControlRecord | None


class Shown(NamedTuple):
    """A record as Kafka's dump shows it; `payload` is None where it shows a deletion."""

    offset: int
    producer_id: int
    is_transactional: bool
    control: str | None
    key: Any
    payload: Any


def directories() -> list[Path]:
    """The given directories that hold internal topics."""
    return [given for given in GIVEN if (given / "dumps" / "__cluster_metadata-0").is_dir()]


def files(given: Path, topic: str, suffix: str = ".log") -> list[tuple[Path, Path]]:
    """(file, dump) of each file of a topic in one given directory."""
    return [
        (file, dump)
        for found, file, dump in internal_files()
        if found == topic and file.suffix == suffix and given in file.parents and file.name != "bootstrap.checkpoint"
    ]


def applied(file: Path, dump: Path, topic: str) -> Iterator[Applied]:
    """The records of a file, decoded."""
    decoder = decoder_for_topic(topic)
    assert decoder is not None
    for found in given_records(file, dump):
        if found.batch.is_control:
            control = decode_control_record(found.record.key, found.record.value)
            yield Applied(found.batch, found.offset, None, None, control)
        else:
            yield Applied(found.batch, found.offset, *decoder.decode(found.record.key, found.record.value), None)


def shown(dump: Path) -> Iterator[Shown]:
    """The records of a dump, from its text."""
    producer_id, is_transactional = -1, False
    for line in dump_lines(dump):
        batch = re.match(r"baseOffset: .* producerId: (-?\d+) .* isTransactional: (true|false)", line)
        if batch:
            producer_id, is_transactional = int(batch[1]), batch[2] == "true"
        record = re.match(r"\| offset: (\d+) .*? headerKeys: \[\](.*)$", line)
        if record:
            control = re.match(r" endTxnMarker: (\w+)", record[2])
            key = re.match(r" key: (.*) payload: ", record[2])
            payload = re.search(r" payload: (\{.*\})$", record[2])
            yield Shown(
                int(record[1]),
                producer_id,
                is_transactional,
                control[1] if control else None,
                json.loads(key[1]) if key else None,
                json.loads(payload[1]) if payload else None,
            )
