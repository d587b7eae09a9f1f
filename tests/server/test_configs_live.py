"""Protects configurations as clients meet them: a running kcli answers the questions that Apache Kafka answered, the same.

Its server.properties is Kafka's without what refuses the start (keys of TLS), so what is expected is what kcli's functions say
of such a file; those are compared with Kafka's answers, entry by entry, in tests/server/config.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.oracle.config_answers import Answers, load_fixture
from tests.oracle.config_questions import BROKER, GROUP, METRICS, SET, TOPIC, Step, all_steps, ask_all, change, create, describe
from tests.server.serving import FREE_PORT, address_of, serving


def properties(folder: Path) -> str:
    """A server.properties without keys of TLS, addresses and peers."""
    dropped = ("ssl.", "listeners=", "advertised.listeners=", "controller.quorum.voters=")
    kept = [line for line in load_fixture()["server.properties"].splitlines() if not line.startswith(dropped)]
    return re.sub("log.dirs=.*", f"log.dirs={folder}/data", "\n".join(kept)) + "\n"


@pytest.mark.ci
def test_every_answer_is_as_expected(tmp_path: Path) -> None:
    text = properties(tmp_path)
    (tmp_path / "server.properties").write_text(text)
    steps = [step for step in all_steps() if not _tells_addresses(step)]
    with serving(tmp_path, "server.properties") as lines:
        answers = ask_all(address_of(lines), steps, 0)
    expected = Answers(text + FREE_PORT + "\n")
    for step, answer in zip(steps, answers):
        assert answer == json.loads(json.dumps(expected.answer(step))), step


def test_what_is_set_outlives_a_restart(tmp_path: Path) -> None:
    changes = [
        create("set", {"retention.ms": "5000"}),
        change(BROKER, "", ("log.segment.bytes", SET, "3000000")),
        change(BROKER, "1", ("log.retention.ms", SET, "600000"), ("message.max.bytes", SET, "5000")),
        change(GROUP, "g", ("consumer.session.timeout.ms", SET, "50000")),
    ]
    questions = [describe(TOPIC, "set"), describe(BROKER, "1"), describe(BROKER, ""), describe(GROUP, "g")]
    with serving(tmp_path) as lines:
        answers = ask_all(address_of(lines), [*changes, *questions], 0)
        assert [answer.get("error", 0) or max(answer.get("errors", [0])) for answer in answers] == [0] * len(answers)
        before = answers[len(changes) :]
    with serving(tmp_path) as lines:
        assert ask_all(address_of(lines), questions, 0) == before


def _tells_addresses(step: Step) -> bool:
    """Whether a step's answer has the port in it, or a resource of the asker's own."""
    return step["ask"] == "list" and step["types"] in ([], [METRICS])
