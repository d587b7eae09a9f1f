"""Protects what users have: real clients of five languages read back the very records they sent, and get their own errors.

Each client's driver runs once a broker and does the whole plan of clients/matrix.py; a test looks at one answer of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.oracle.clients.installed import CLIENTS, Client, command_of
from tests.oracle.clients.matrix import CASES, GOOD_STEPS, REFUSALS, TOPICS, matrix_topic, plan_of, reading_plan
from tests.oracle.clients.plan import Answer, Record, records_of, run_plan
from tests.oracle.conftest import Served

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

BROKER_SETTINGS = ("auto.create.topics.enable=false",)
ERRORS: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "clients" / "refusals.json").read_text())


class Ran(NamedTuple):
    """What a client answered, what it was to send, and when it began and ended."""

    client: Client
    answers: dict[str, Answer]
    sent: dict[str, list[Record]]
    began_ms: int
    ended_ms: int


@pytest.fixture(scope="module")
def ran(served: Served, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[str], Ran]:
    """What a client made of the plan with this broker; its driver runs when it is asked for the first time."""
    work_dir = tmp_path_factory.mktemp("clients")
    done: dict[str, Ran] = {}
    topics = {name: (1, configs) for name, configs in TOPICS.items()}
    topics |= {matrix_topic(client): (len(CASES), {}) for client in CLIENTS.values()}
    wanted = [NewTopic(name, partitions, 1, config=configs) for name, (partitions, configs) in topics.items()]
    admin = AdminClient({"bootstrap.servers": served.bootstrap})  # kept: it takes its futures along
    for made in admin.create_topics(wanted).values():
        made.result(60)

    def run(name: str) -> Ran:
        if name not in done:
            client = CLIENTS[name]
            command = command_of(name, lambda: request.getfixturevalue("kafka_peer"), work_dir)
            began_ms = int(time.time() * 1000)
            setup = plan_of(client, began_ms)
            answers = run_plan(command, served.bootstrap, setup.steps)
            if not client.reads:
                answers |= run_plan(command_of("confluent", lambda: None, work_dir), served.bootstrap, reading_plan(client))
            done[name] = Ran(client, answers, setup.sent, began_ms, int(time.time() * 1000))
        return done[name]

    return run


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", CLIENTS)
def test_what_a_client_sends_comes_back(ran: Callable[[str], Ran], name: str, case: str) -> None:
    """Every record of a case: offset, timestamp, key, value, headers; and the producer was told where each went."""
    if case.partition("-")[0] not in CLIENTS[name].codecs:
        pytest.skip(f"{name} has no {case.partition('-')[0]}")
    run = ran(name)
    answer = run.answers[case]
    expected = [record._replace(offset=offset) for offset, record in enumerate(run.sent[case])]
    unknown = "acks-0" in case or not run.client.tells_offsets
    assert answer.get("offsets") == [-1 if unknown else record.offset for record in expected], answer
    assert_equal(run, records_of(run.answers[f"read {case}"]), expected)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_reads_from_the_middle(ran: Callable[[str], Ran], name: str) -> None:
    """From an offset on that is inside a batch: nothing from before it."""
    run = ran(name)
    expected = [record._replace(offset=offset) for offset, record in enumerate(run.sent["none-acks-all"])]
    assert_equal(run, records_of(run.answers["read from the middle"]), expected[len(expected) // 2 :])


def assert_equal(run: Ran, read: list[Record], expected: list[Record]) -> None:
    if not run.client.sets_timestamps:
        assert all(run.began_ms <= record.timestamp_ms <= run.ended_ms for record in read)
        read, expected = ([record._replace(timestamp_ms=0) for record in records] for records in (read, expected))
    assert [record.offset for record in read] == [record.offset for record in expected]
    for one, other in zip(read, expected, strict=True):
        assert one == other


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_gets_its_own_error(ran: Callable[[str], Ran], name: str, refusal: str) -> None:
    """What Kafka refuses is refused, and the client says what it says of Kafka."""
    answer = ran(name).answers.get(refusal, {"unable": "it cannot ask for this"})
    if "unable" in answer:
        assert name not in ERRORS[refusal]
        pytest.skip(f"{name}: {answer['unable']}")
    assert answer.get("error", "NONE") == ERRORS[refusal][name], answer


@pytest.mark.parametrize("step", GOOD_STEPS)
@pytest.mark.parametrize("name", CLIENTS)
def test_what_is_good_is_taken_after_what_was_refused(ran: Callable[[str], Ran], name: str, step: str) -> None:
    """A refusal leaves topic, producer ids and connection as they were."""
    answer = ran(name).answers.get(step, {"unable": "it cannot ask for this"})
    if "unable" in answer:
        pytest.skip(f"{name}: {answer['unable']}")
    assert "error" not in answer, answer
