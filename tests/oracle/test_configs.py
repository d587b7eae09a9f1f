"""Apache Kafka judges kcli's view of configurations live: the same 705 questions to both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.config_answers import Answers, ask_kafka
from tests.oracle.config_questions import differences
from tests.oracle.peer import Peer

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


def test_every_answer_is_kafkas(kafka_peer: Peer, tmp_path: Path) -> None:
    asked = ask_kafka(kafka_peer, tmp_path / "broker")
    answers = Answers(asked["server.properties"])
    pairs = [(step, kafkas, answers.answer(step)) for step, kafkas in asked["answers"]]
    assert differences(pairs) == []
