"""Apache Kafka 4.4.0 judges what kcli answers beyond 4.3.1, level by level of metadata.version; its Java clients use it.

tests/server/test_kafka_4_4_answers.py holds kcli to the recorded answers; here Kafka is asked anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.oracle.brokers import new_broker
from tests.oracle.kafka_4_4 import ANSWERS, PROPERTIES, ask_all
from tests.oracle.peer import Peer

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


def test_the_recorded_answers_are_kafkas(kafka_4_4: Peer, tmp_path: Path) -> None:
    with new_broker(kafka_4_4, tmp_path, "-r", "4.3", properties=PROPERTIES) as address:
        assert ask_all(address) == json.loads(ANSWERS.read_text())
