"""Protects what clients see and may change of configurations: entry by entry it is what Apache Kafka answered.

The fixture holds its answers to 705 questions about topics, brokers, groups and client metrics, each in the state that the
ones before left. tests/oracle/test_configs.py asks Kafka anew.
"""

from __future__ import annotations

import json

from tests.oracle.config_answers import Answers, load_fixture
from tests.oracle.config_questions import all_steps, differences


def test_every_answer_is_kafkas() -> None:
    fixture = load_fixture()
    answers = Answers(fixture["server.properties"])
    asked = [step for step, _ in fixture["answers"]]
    assert asked == json.loads(json.dumps(all_steps())), "run: python -m tests.oracle.config_answers"
    pairs = [(step, kafkas, answers.answer(step)) for step, kafkas in fixture["answers"]]
    assert differences(pairs) == []
