"""Protects administrators of share and streams groups: Kafka's tools print and end on kcli as they do on Apache Kafka.

The same tools run on both brokers in the same order: first while LiveGroups.java's groups have members, then when these have
left. What differs by nature is taken out before the two are compared.
"""

from __future__ import annotations

import json
import re
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kcli.protocol import apis
from tests.oracle.brokers import KcliBroker, new_broker
from tests.oracle.peer import Outcome, Peer, ToolCase
from tests.oracle.raw_requests import RawClient
from tests.oracle.test_tools import (
    CONFIGS,
    CONSUMER,
    SETTINGS,
    TOOLS,
    Place,
    Words,
    assert_prints_the_same,
    neutral,
    on,
    run_sorted,
)

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

SHARE = f"{TOOLS}consumer.group.ShareGroupCommand"
STREAMS = f"{TOOLS}streams.StreamsGroupCommand"
CONSOLE, VERIFIABLE = f"{TOOLS}consumer.ConsoleShareConsumer", f"{TOOLS}VerifiableShareConsumer"
GROUPS = f"{TOOLS}GroupsCommand"
LIMIT_SECONDS = 60
# The members of LiveGroups stay until they leave by a request.
LONG_SESSIONS = "".join(
    f"group.{kind}.session.timeout.ms=1000000\ngroup.{kind}.max.session.timeout.ms=1000000\n" for kind in ("share", "streams")
)


def config(*words: str) -> Words:
    return on("--entity-type", "groups", *words)


def share(*words: str) -> tuple[str, Words]:
    return SHARE, on(*words)


def streams(*words: str) -> tuple[str, Words]:
    return STREAMS, on(*words)


def console(group: str, *words: str) -> tuple[str, Words]:
    timeout = () if "--timeout-ms" in words else ("--timeout-ms", "20000")
    return CONSOLE, on("--topic", "one", "--group", group, *timeout, *words)


def verifiable(group: str, mode: str) -> tuple[str, Words]:
    words = ("--topic", "one", "--group-id", group, "--max-messages", "3", "--acknowledgement-mode", mode)
    return VERIFIABLE, on(*words, "--offset-reset-strategy", "earliest")


def set_earliest(group: str) -> tuple[str, Words]:
    return CONFIGS, config("--alter", "--entity-name", group, "--add-config", "share.auto.offset.reset=earliest")


SHARED = ("--group", "shared")
PRINTED = ("print.offset", "print.partition", "print.delivery", "print.key")
# With members: name -> class and words.
LIVE_CASES: dict[str, tuple[str, Words]] = {
    "configs-set": (
        CONFIGS,
        config(
            *("--alter", "--entity-name", "shared", "--add-config"),
            "share.auto.offset.reset=earliest,share.record.lock.duration.ms=15000,share.delivery.count.limit=3",
        ),
    ),
    "configs-describe": (CONFIGS, config("--describe", "--entity-name", "shared")),
    "configs-describe-all": (CONFIGS, config("--describe", "--entity-name", "shared", "--all")),
    "configs-invalid": (
        CONFIGS,
        config("--alter", "--entity-name", "shared", "--add-config", "share.record.lock.duration.ms=10"),
    ),
    "configs-reset": (CONFIGS, config("--alter", "--entity-name", "shared", "--add-config", "share.auto.offset.reset=never")),
    "configs-delete": (CONFIGS, config("--alter", "--entity-name", "shared", "--delete-config", "share.delivery.count.limit")),
    "configs-streams": (
        CONFIGS,
        config("--alter", "--entity-name", "live-streams", "--add-config", "streams.num.standby.replicas=1"),
    ),
    "configs-describe-groups": (CONFIGS, config("--describe")),
    "read": (
        CONSOLE,
        on(
            *("--topic", "one", "--group", "shared", "--max-messages", "2", "--timeout-ms", "20000"),
            *(word for name in PRINTED for word in ("--formatter-property", f"{name}=true")),
        ),
    ),
    "release": console("shared", "--max-messages", "1", "--release"),
    "reject": console("shared", "--max-messages", "1", "--reject"),
    "both": console("shared", "--max-messages", "1", "--reject", "--release"),
    "read-the-rest": console("shared", "--timeout-ms", "4000"),
    "describe-shared": share("--describe", *SHARED),
    "earliest-auto": set_earliest("v-auto"),
    "verifiable-auto": verifiable("v-auto", "auto"),
    "verifiable-sync": verifiable("v-sync", "sync"),
    "verifiable-async": verifiable("v-async", "async"),
    "list": share("--list"),
    "list-states": share("--list", "--state"),
    "list-stable": share("--list", "--state", "Stable"),
    "list-bad-state": share("--list", "--state", "Reconciling"),
    "describe": share("--describe", "--group", "live-share"),
    "describe-offsets-verbose": share("--describe", "--group", "live-share", "--offsets", "--verbose"),
    "describe-members": share("--describe", "--group", "live-share", "--members"),
    "describe-members-verbose": share("--describe", "--group", "live-share", "--members", "--verbose"),
    "describe-state": share("--describe", "--group", "live-share", "--state"),
    "describe-state-verbose": share("--describe", "--group", "live-share", "--state", "--verbose"),
    "describe-all": share("--describe", "--all-groups"),
    "describe-all-members": share("--describe", "--all-groups", "--members"),
    "describe-all-states": share("--describe", "--all-groups", "--state"),
    "describe-absent": share("--describe", "--group", "absent"),
    "describe-another-kind": share("--describe", "--group", "live-consumer"),
    "reset-live": share("--group", "live-share", "--reset-offsets", "--topic", "orders", "--to-earliest", "--execute"),
    "delete-live": share("--delete", "--group", "live-share"),
    "delete-offsets-live": share("--group", "live-share", "--delete-offsets", "--topic", "orders"),
    "read-as-a-consumer": (CONSUMER, on("--topic", "one", "--group", "live-share", "--timeout-ms", "3000")),
    "read-a-consumer-group": console("live-consumer", "--timeout-ms", "3000"),
    "groups": (GROUPS, on("--list")),
    "groups-share": (GROUPS, on("--list", "--share")),
    "groups-streams": (GROUPS, on("--list", "--streams")),
    "groups-protocol": (GROUPS, on("--list", "--protocol", "share")),
    "streams-list": streams("--list"),
    "streams-list-states": streams("--list", "--state"),
    "streams-describe": streams("--describe", "--group", "live-streams"),
    "streams-describe-verbose": streams("--describe", "--group", "live-streams", "--verbose"),
    "streams-describe-members": streams("--describe", "--group", "live-streams", "--members"),
    "streams-describe-members-verbose": streams("--describe", "--group", "live-streams", "--members", "--verbose"),
    "streams-describe-state": streams("--describe", "--group", "live-streams", "--state"),
    "streams-describe-state-verbose": streams("--describe", "--group", "live-streams", "--state", "--verbose"),
    "streams-describe-all": streams("--describe", "--all-groups"),
    "streams-describe-absent": streams("--describe", "--group", "absent"),
    "streams-reset-live": streams(
        *("--group", "live-streams", "--reset-offsets", "--input-topic", "orders", "--to-earliest", "--execute")
    ),
    "streams-delete-live": streams("--delete", "--group", "live-streams"),
}


def resetting(*words: str) -> tuple[str, Words]:
    return share(*SHARED, "--reset-offsets", *words)


def resetting_streams(*words: str) -> tuple[str, Words]:
    return streams("--group", "live-streams", "--reset-offsets", *words)


# When the members have left.
EMPTY_CASES: dict[str, tuple[str, Words]] = {
    "empty-list": share("--list", "--state", "Empty"),
    "empty-describe": share("--describe", "--group", "live-share"),
    "empty-members": share("--describe", "--group", "live-share", "--members"),
    "empty-state": share("--describe", "--group", "live-share", "--state", "--verbose"),
    "reset-dry": resetting("--topic", "one", "--to-earliest", "--dry-run"),
    "reset-earliest": resetting("--topic", "one", "--to-earliest", "--execute"),
    "reset-described": share("--describe", *SHARED),
    "reset-read": console("shared", "--max-messages", "4"),
    "reset-latest": resetting("--all-topics", "--to-latest", "--execute"),
    "reset-datetime": resetting("--topic", "one", "--to-datetime", "2020-01-01T00:00:00.000", "--execute"),
    "reset-partition": resetting("--topic", "other:1", "--to-latest", "--execute"),
    "reset-absent-topic": resetting("--topic", "absent", "--to-latest", "--execute"),
    "reset-no-plan": resetting("--topic", "one", "--to-latest"),
    "reset-new-group": share("--group", "new", "--reset-offsets", "--topic", "one", "--to-latest", "--execute"),
    "reset-after": share("--describe", "--all-groups"),
    "delete-offsets": share(*SHARED, "--delete-offsets", "--topic", "one"),
    "delete-offsets-absent": share(*SHARED, "--delete-offsets", "--topic", "absent"),
    "delete-offsets-no-group": share("--group", "absent", "--delete-offsets", "--topic", "one"),
    "delete-offsets-after": share("--describe", *SHARED),
    "delete": share("--delete", *SHARED, "--group", "live-share"),
    "delete-absent": share("--delete", "--group", "absent"),
    "delete-another-kind": share("--delete", "--group", "live-streams"),
    "delete-all": share("--delete", "--all-groups"),
    "list-at-the-end": share("--list"),
    "read-as-a-consumer-at-the-end": (
        CONSUMER,
        on("--topic", "one", "--group", "shared", "--from-beginning", "--max-messages", "1", "--timeout-ms", "20000"),
    ),
    "streams-empty-list": streams("--list", "--state", "Empty"),
    "streams-empty-describe": streams("--describe", "--group", "live-streams"),
    "streams-empty-members": streams("--describe", "--group", "live-streams", "--members"),
    "streams-reset-dry": resetting_streams("--input-topic", "orders", "--to-earliest", "--dry-run"),
    "streams-reset-latest": resetting_streams("--all-input-topics", "--to-latest", "--execute"),
    "streams-reset-offset": resetting_streams("--input-topic", "orders:1", "--to-offset", "2", "--execute"),
    "streams-reset-shift": resetting_streams("--input-topic", "orders:1", "--shift-by", "1", "--execute"),
    "streams-reset-described": streams("--describe", "--group", "live-streams", "--verbose"),
    "streams-reset-absent": resetting_streams("--input-topic", "absent", "--to-latest", "--execute"),
    "streams-delete-offsets": streams("--group", "live-streams", "--delete-offsets", "--input-topic", "orders:1"),
    "streams-delete-offsets-absent": streams("--group", "live-streams", "--delete-offsets", "--input-topic", "absent"),
    "streams-delete-offsets-after": streams("--describe", "--group", "live-streams"),
    "streams-delete-another-kind": streams("--delete", "--group", "live-consumer"),
    "streams-delete": streams("--delete", "--group", "live-streams"),
    "streams-delete-absent": streams("--delete", "--group", "absent"),
    "streams-list-at-the-end": streams("--list"),
}
CASES = LIVE_CASES | EMPTY_CASES


def run_all(peer: Peer, place: Place) -> dict[str, Outcome]:
    """Every case, in order, on one broker; the lines of stdout are sorted, as the order of groups is that of a hash map."""
    admin = AdminClient({"bootstrap.servers": place.bootstrap})
    topics = [NewTopic("one", 1, 1), NewTopic("other", 2, 1), NewTopic("orders", 3, 1)]
    for made in admin.create_topics(topics).values():
        made.result(60)
    # One batch for each partition, so that the members of LiveGroups get the same records at a time.
    producer = Producer({"bootstrap.servers": place.bootstrap, "linger.ms": 1000})
    for number in range(60):
        producer.produce("orders", b"order", partition=number % 3)
    for number in range(6):
        producer.produce("one", f"value {number}".encode(), key=f"key {number}".encode())
    assert producer.flush(60) == 0
    client, end = RawClient(place.bootstrap), time.monotonic() + LIMIT_SECONDS
    while any(one.error_code for one in client.ask(apis.FIND_COORDINATOR, 6, coordinator_keys=["live-streams"]).coordinators):
        assert time.monotonic() < end
    living = peer.run_java("LiveGroups", [place.bootstrap], timeout_seconds=120)
    assert living.exit_code == 0, living.stderr[-3000:]
    members = {found["groupId"]: found["members"] for found in map(json.loads, living.stdout.decode().splitlines())}
    found = _run(peer, place, LIVE_CASES)
    for key, version, group in (
        (apis.SHARE_GROUP_HEARTBEAT, 1, "live-share"),
        (apis.STREAMS_GROUP_HEARTBEAT, 0, "live-streams"),
    ):
        (member,) = members[group]
        left = client.ask(key, version, group_id=group, member_id=member["memberId"], member_epoch=-1)
        assert left.error_code == 0
    client.close()
    return found | _run(peer, place, EMPTY_CASES)


def _run(peer: Peer, place: Place, cases: dict[str, tuple[str, Words]]) -> dict[str, Outcome]:
    tools = {name: ToolCase(tool, words(place)) for name, (tool, words) in cases.items()}
    return run_sorted(peer, place, tools, _neutral, LIMIT_SECONDS)


def _neutral(printed: str, place: Place) -> str:
    text = re.sub(r'"timestamp":\d+', '"timestamp":N', neutral(printed, place))
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.+]+", "DATETIME", text)
    text = re.sub(r"(?<![\w-])(?=[\w-]*[A-Z0-9])[\w-]{22}(?![\w-])", "ID", text)
    # Whether the member of LiveGroups gets all partitions at a time decides how often its states are written.
    text = re.sub(r"(?m)^(live-share +orders +\d +(?:0 +)?)\d+( +3 *)$", r"\1N\2", text)
    # Sets of Java have an order of their own in each process.
    text = re.sub(r'(?<="offsets":\[)[\d,]+', lambda found: ",".join(sorted(found[0].split(","))), text)
    text = re.sub(r"(?<=Valid states are: )[\w, ]+", lambda found: ", ".join(sorted(found[0].split(", "))), text)
    return re.sub(r" +", " ", re.sub(r"-{4,}", "----", text))


@pytest.fixture(scope="module")
def by_kafka(kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    home, files = tmp_path_factory.mktemp("kafka"), tmp_path_factory.mktemp("kafka-files")
    with new_broker(kafka_peer, home, properties=SETTINGS + LONG_SESSIONS) as bootstrap:
        return run_all(kafka_peer, Place(bootstrap, home / "data", files))


@pytest.fixture(scope="module")
def by_kcli(kcli_serves: None, kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    home, files = tmp_path_factory.mktemp("subject"), tmp_path_factory.mktemp("subject-files")
    with KcliBroker(home, properties=SETTINGS + LONG_SESSIONS) as broker:
        return run_all(kafka_peer, Place(broker.bootstrap, broker.data, files))


@pytest.mark.parametrize("name", CASES)
def test_a_tool_prints_what_it_prints_of_kafka(by_kcli: dict[str, Outcome], by_kafka: dict[str, Outcome], name: str) -> None:
    assert_prints_the_same(by_kcli[name], by_kafka[name])
