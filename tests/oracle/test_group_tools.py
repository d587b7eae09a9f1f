"""Protects what administrators of groups have: Kafka's tools for groups print and end on kcli as they do on Apache Kafka.

The same tools run on both brokers in the same order, one JVM a broker: consumers of both protocols, then everything that
kafka-consumer-groups can do. What differs by nature is taken out before the two are compared.
"""

from __future__ import annotations

import re

import pytest

from tests.oracle.brokers import KcliBroker, new_broker
from tests.oracle.peer import Outcome, Peer, ToolCase
from tests.oracle.test_tools import (
    CONSUMER,
    PRODUCER,
    SENT,
    SETTINGS,
    TOOLS,
    TOPICS,
    Place,
    Words,
    assert_prints_the_same,
    neutral,
    on,
    run_sorted,
)

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

GROUPS = f"{TOOLS}consumer.group.ConsumerGroupCommand"
LIMIT_SECONDS = 60


def reading(group: str, *words: str) -> Words:
    """The words of a console consumer that reads the three records as a member of a group."""
    return on("--topic", "one", "--group", group, "--from-beginning", "--max-messages", "3", "--timeout-ms", "30000", *words)


def resetting(*words: str) -> Words:
    return on("--group", "classic", "--reset-offsets", "--topic", "one", *words)


CASES: dict[str, tuple[str, Words, str]] = {
    "create": (TOPICS, on("--create", "--topic", "one", "--partitions", "1"), ""),
    "create-other": (TOPICS, on("--create", "--topic", "other", "--partitions", "2"), ""),
    "produce": (
        PRODUCER,
        on(
            *("--topic", "one", "--reader-property", "parse.key=true", "--reader-property", "key.separator=:"),
            *("--reader-property", "parse.headers=true"),
        ),
        SENT,
    ),
    "no-groups": (GROUPS, on("--list"), ""),
    "read-classic": (CONSUMER, reading("classic"), ""),
    "read-consumer": (CONSUMER, reading("consumer", "--command-property", "group.protocol=consumer"), ""),
    "read-pattern": (
        CONSUMER,
        on("--include", "on.", "--group", "pattern", "--from-beginning", "--max-messages", "3", "--timeout-ms", "30000"),
        "",
    ),
    "nothing-left": (CONSUMER, on("--topic", "one", "--group", "classic", "--timeout-ms", "3000"), ""),
    "verifiable": (
        f"{TOOLS}VerifiableConsumer",
        on("--topic", "one", "--group-id", "verifiable", "--max-messages", "3", "--reset-policy", "earliest"),
        "",
    ),
    "list-states": (GROUPS, on("--list", "--state"), ""),
    "list-types": (GROUPS, on("--list", "--type"), ""),
    "list-consumer": (GROUPS, on("--list", "--type", "consumer"), ""),
    "list-empty": (GROUPS, on("--list", "--state", "Empty"), ""),
    "describe-classic": (GROUPS, on("--describe", "--group", "classic"), ""),
    "describe-consumer": (GROUPS, on("--describe", "--group", "consumer"), ""),
    "describe-verbose": (GROUPS, on("--describe", "--group", "consumer", "--verbose"), ""),
    "describe-state": (GROUPS, on("--describe", "--group", "classic", "--state"), ""),
    "describe-consumer-state": (GROUPS, on("--describe", "--group", "consumer", "--state", "--verbose"), ""),
    "describe-members": (GROUPS, on("--describe", "--group", "classic", "--members", "--verbose"), ""),
    "describe-all": (GROUPS, on("--describe", "--all-groups"), ""),
    "describe-absent": (GROUPS, on("--describe", "--group", "absent"), ""),
    "reset-earliest": (GROUPS, resetting("--to-earliest", "--dry-run"), ""),
    "reset-offset": (GROUPS, resetting("--to-offset", "1", "--execute"), ""),
    "reset-shift": (GROUPS, resetting("--shift-by", "1", "--execute"), ""),
    "reset-too-far": (GROUPS, resetting("--shift-by", "100", "--execute"), ""),
    "reset-duration": (GROUPS, resetting("--by-duration", "PT24H", "--execute"), ""),
    "reset-datetime": (GROUPS, resetting("--to-datetime", "2020-01-01T00:00:00.000", "--dry-run"), ""),
    "reset-export": (GROUPS, resetting("--to-current", "--dry-run", "--export"), ""),
    "reset-partition": (
        GROUPS,
        on("--group", "classic", "--reset-offsets", "--topic", "other:1", "--to-latest", "--execute"),
        "",
    ),
    "reset-consumer": (
        GROUPS,
        on("--group", "consumer", "--reset-offsets", "--all-topics", "--to-earliest", "--execute"),
        "",
    ),
    "reset-new": (GROUPS, on("--group", "new", "--reset-offsets", "--topic", "one", "--to-latest", "--execute"), ""),
    "describe-after": (GROUPS, on("--describe", "--all-groups"), ""),
    "read-again": (CONSUMER, on("--topic", "one", "--group", "classic", "--max-messages", "3", "--timeout-ms", "30000"), ""),
    "delete-offsets": (GROUPS, on("--group", "classic", "--delete-offsets", "--topic", "one"), ""),
    "delete-offsets-absent": (GROUPS, on("--group", "classic", "--delete-offsets", "--topic", "absent"), ""),
    "delete-offsets-no-group": (GROUPS, on("--group", "absent", "--delete-offsets", "--topic", "one"), ""),
    "delete": (GROUPS, on("--delete", "--group", "classic"), ""),
    "delete-consumer": (GROUPS, on("--delete", "--group", "consumer"), ""),
    "delete-absent": (GROUPS, on("--delete", "--group", "absent"), ""),
    "validate-regex": (GROUPS, on("--validate-regex", "a.*"), ""),
    "validate-bad-regex": (GROUPS, on("--validate-regex", "(a"), ""),
    "list-at-the-end": (GROUPS, on("--list"), ""),
}


def run_all(peer: Peer, place: Place) -> dict[str, Outcome]:
    """Every case, in order, on one broker."""
    cases = {name: ToolCase(tool, words(place), stdin) for name, (tool, words, stdin) in CASES.items()}
    return run_sorted(peer, place, cases, _neutral, LIMIT_SECONDS)


def _neutral(printed: str, place: Place) -> str:
    text = re.sub(r'"timestamp":\d+', '"timestamp":N', neutral(printed, place))
    return re.sub(r" +", " ", re.sub(r"\d{4}-\d\d-\d\dT[\d:.+]+", "DATETIME", text))


@pytest.fixture(scope="module")
def by_kafka(kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    home, files = tmp_path_factory.mktemp("kafka"), tmp_path_factory.mktemp("kafka-files")
    with new_broker(kafka_peer, home, properties=SETTINGS) as bootstrap:
        return run_all(kafka_peer, Place(bootstrap, home / "data", files))


@pytest.fixture(scope="module")
def by_kcli(kcli_serves: None, kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    home, files = tmp_path_factory.mktemp("subject"), tmp_path_factory.mktemp("subject-files")
    with KcliBroker(home, properties=SETTINGS) as broker:
        return run_all(kafka_peer, Place(broker.bootstrap, broker.data, files))


@pytest.mark.parametrize("name", CASES)
def test_a_tool_prints_what_it_prints_of_kafka(by_kcli: dict[str, Outcome], by_kafka: dict[str, Outcome], name: str) -> None:
    assert_prints_the_same(by_kcli[name], by_kafka[name])
