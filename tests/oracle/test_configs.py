"""Apache Kafka judges kcli's view of configurations live: the same 705 questions to both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.oracle import server_properties_cases
from tests.oracle.config_answers import Answers, ask_kafka
from tests.oracle.config_questions import differences
from tests.oracle.peer import Peer

pytestmark = pytest.mark.oracle


@pytest.mark.ci
def test_kafka_still_takes_and_refuses_the_same_files(kafka_peer: Peer) -> None:
    assert server_properties_cases.ask_kafka(kafka_peer) == json.loads(server_properties_cases.FIXTURE.read_text())


@pytest.mark.slow
def test_every_answer_is_kafkas(kafka_peer: Peer, tmp_path: Path) -> None:
    asked = ask_kafka(kafka_peer, tmp_path / "broker")
    answers = Answers(asked["server.properties"])
    pairs = [(step, kafkas, answers.answer(step)) for step, kafkas in asked["answers"]]
    assert differences(pairs) == []
