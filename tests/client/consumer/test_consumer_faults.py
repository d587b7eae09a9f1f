"""Protects: whichever request or answer of a consumer is lost, late or cut off, it reads all records in order, loses no commit,
and each call ends in its time.

The broker is a whole node of kcli in virtual time; in each run another request meets the fault (tests.client.faulty_node).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kcli.client.consumer.consumer_record import ConsumerRecord
from kcli.client.consumer.subscription_state import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from kcli.client.errors import KafkaError, KafkaTimeoutError
from kcli.format.primitives import TopicPartition
from tests.client.consumer.consumer_app import ConsumerApp
from tests.client.faulty_node import FAULTS, LATE_MS, SHORT_TIMEOUTS, Fault, FaultyNode
from tests.server.whole_node import batch

pytestmark = pytest.mark.ci  # minutes of CPU time together

EACH = 6  # records of a partition
MEMBER = {**SHORT_TIMEOUTS, "default_api_timeout_ms": 20_000, "max_poll_interval_ms": 6000, "session_timeout_ms": 6000}
CLASSIC = {"heartbeat_interval_ms": 500, "partition_assignment_strategy": ("range",)}
PROTOCOLS = {
    "range": CLASSIC,
    "cooperative": {**CLASSIC, "partition_assignment_strategy": ("cooperative-sticky",)},
    "static": {**CLASSIC, "group_instance_id": "i"},
    "consumer": {"group_protocol": "consumer"},
    "consumer, static": {"group_protocol": "consumer", "group_instance_id": "i"},
}
# Of a node whose members of groups are noticed soon.
GROUP_SETTINGS = (
    "offsets.topic.num.partitions=1",
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=1000",
    "group.consumer.heartbeat.interval.ms=500",
    "group.consumer.min.heartbeat.interval.ms=500",
    "group.consumer.session.timeout.ms=6000",
    "group.consumer.min.session.timeout.ms=6000",
)
ALWAYS = {"ApiVersions", "Metadata"}
OF_GROUPS = ALWAYS | {"FindCoordinator", "OffsetFetch", "OffsetCommit", "ListOffsets", "OffsetForLeaderEpoch", "Fetch"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FaultyNode]:
    node = FaultyNode(tmp_path, *GROUP_SETTINGS)
    yield node
    node.clients.clear()
    node.stop()


def filled(node: FaultyNode, topic: str) -> dict[TopicPartition, list[bytes]]:
    """Create a topic of two partitions; return their values."""
    node.create_topic(topic, 2)
    values = {(topic, index): [b"%d-%d" % (index, number) for number in range(EACH)] for index in range(2)}
    for (_, index), found in values.items():
        pending = node.produce(topic, index, batch(*found))
        node.until(lambda pending=pending: pending.answer is not None)
    return values


def by_partition(records: Iterable[ConsumerRecord]) -> dict[TopicPartition, list[bytes]]:
    found: dict[TopicPartition, list[bytes]] = {}
    for record in sorted(records, key=lambda one: one.partition):  # which is stable
        found.setdefault((record.topic, record.partition), []).append(record.value or b"")
    return found


def offsets_of(found: dict[TopicPartition, Any]) -> list[int]:
    return [found[partition].offset for partition in sorted(found)]


@FAULTS
def test_a_consumer_without_a_group(node: FaultyNode, fault: Fault) -> None:
    for run in node.runs(fault):
        topic = f"t{run}"
        values = filled(node, topic)
        app = ConsumerApp(node, "c", **SHORT_TIMEOUTS, default_api_timeout_ms=20_000)
        assert offsets_of(app.ask(app.core.list_offsets, dict.fromkeys(values, LATEST_TIMESTAMP))) == [EACH, EACH]
        app.do(app.core.assign, list(values))
        assert by_partition(app.read(2 * EACH)) == values, node.faulty_request
        assert app.ask(app.core.position, (topic, 0)) == EACH
        app.do(app.core.seek, (topic, 0), 2, 0)  # with a leader epoch, which is validated
        assert by_partition(app.read(EACH - 2)) == {(topic, 0): values[topic, 0][2:]}, node.faulty_request
        assert offsets_of(app.ask(app.core.list_offsets, dict.fromkeys(values, EARLIEST_TIMESTAMP))) == [0, 0]
        assert len(app.ask(app.core.partitions_for, topic)) == 2
        assert topic in app.ask(app.core.list_topics)
        app.close()
    assert set(node.requests) == ALWAYS | {"ListOffsets", "Fetch", "OffsetForLeaderEpoch"}


@FAULTS
@pytest.mark.parametrize("kind", PROTOCOLS)
def test_a_second_member_goes_on_where_the_first_has_committed(node: FaultyNode, fault: Fault, kind: str) -> None:
    for run in node.runs(fault):
        topic, group = f"t{run}", f"g{run}"
        values = filled(node, topic)
        first = member(node, "first", group, kind, max_poll_records=EACH - 1)
        first.subscribe(topic)
        found = first.read(EACH - 1)
        commit(first, fault)
        node.advance(1500)  # with heartbeats
        assert committed(first, values) == next_offsets(values, found), node.faulty_request
        first.close()
        second, rest = joined(node, "second", group, kind, topic)
        found += rest + second.read(EACH + 1 - len(rest))
        assert by_partition(found) == values, node.faulty_request
        commit(second, fault)
        assert committed(second, values) == dict.fromkeys(values, EACH), node.faulty_request
        second.close()
    leaves = set() if kind == "static" else {"LeaveGroup"}
    classic = {"JoinGroup", "SyncGroup", "Heartbeat"} | leaves
    assert set(node.requests) == OF_GROUPS | ({"ConsumerGroupHeartbeat"} if "consumer" in kind else classic)


@FAULTS
@pytest.mark.parametrize("kind", ["range", "cooperative", "consumer"])
def test_automatic_commits(node: FaultyNode, fault: Fault, kind: str) -> None:
    """What was read before close is committed, and nothing that was not returned."""
    for run in node.runs(fault):
        topic, group = f"t{run}", f"g{run}"
        values = filled(node, topic)
        app = member(node, "first", group, kind, max_poll_records=4, enable_auto_commit=True, auto_commit_interval_ms=700)
        app.subscribe(topic)
        found = app.read(4)
        app.core.pause(list(values), node.now_ms)
        for _ in range(3):
            assert app.poll(400) == []  # and an automatic commit
        app.core.resume(list(values), node.now_ms)
        found += app.read(4)
        app.close()
        node.advance(LATE_MS)
        reader = ConsumerApp(node, "reader", group_id=group)
        offsets = committed(reader, values)
        if fault is Fault.LATE_REQUEST and node.faulty_request == "OffsetCommit":
            assert max(offsets.values()) <= EACH  # the older commit may have come last
        else:
            assert offsets == next_offsets(values, found), node.faulty_request
        node.remove(reader.client)
    assert "OffsetCommit" in node.requests


@FAULTS
@pytest.mark.parametrize("kind", ["range", "cooperative", "consumer"])
def test_two_members_at_the_same_time(node: FaultyNode, fault: Fault, kind: str) -> None:
    """They read all records, none of them in one generation of a classic group twice, and end with one partition each."""
    for run in node.runs(fault):
        topic, group = f"t{run}", f"g{run}"
        values = filled(node, topic)
        apps = [member(node, name, group, kind) for name in ("a", "b")]
        for app in apps:
            app.subscribe(topic)
        found: list[ConsumerRecord] = []
        owners: dict[tuple[int, TopicPartition], ConsumerApp] = {}
        end_ms = node.now_ms + 60_000
        while not is_shared(apps) or {one.value for one in found} != {one for part in values.values() for one in part}:
            assert node.now_ms < end_ms, (node.faulty_request, [app.core.subscriptions.assigned_partitions for app in apps])
            for app in apps:
                for record in app.poll(100):
                    found.append(record)
                    generation = app.core.group_metadata().generation_id
                    if kind != "consumer":
                        assert owners.setdefault((generation, (record.topic, record.partition)), app) is app
        for app in apps:
            app.close()
    assert len(node.requests) > 10


def is_shared(apps: list[ConsumerApp]) -> bool:
    """Return whether each of two members has one of two partitions."""
    owned = [app.core.subscriptions.assigned_partitions for app in apps]
    return all(len(one) == 1 for one in owned) and len(frozenset().union(*owned)) == len(apps)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_calls_end_in_their_time_without_a_broker(node: FaultyNode, protocol: str) -> None:
    """With Kafka's error: TimeoutException."""
    values = filled(node, "t")
    app = ConsumerApp(node, "c", group_id="g", group_protocol=protocol, **SHORT_TIMEOUTS, default_api_timeout_ms=5000)
    app.client.is_cut = True
    calls = [
        (app.core.list_offsets, dict.fromkeys(values, LATEST_TIMESTAMP)),
        (app.core.committed, list(values)),
        (app.core.partitions_for, "t"),
        (app.core.list_topics,),
    ]
    for call in calls:
        with pytest.raises(KafkaTimeoutError):
            app.ask(*call)
    app.do(app.core.assign, list(values))
    app.do(app.core.seek, ("t", 0), 1, -1)
    with pytest.raises(KafkaTimeoutError):
        app.ask(app.core.position, ("t", 1))
    with pytest.raises(KafkaTimeoutError):
        app.commit()
    began_ms = node.now_ms
    assert app.poll(3000) == [] and node.now_ms - began_ms == 3000
    app.close(within_ms=4000)
    assert node.now_ms - began_ms <= 7000


def member(node: FaultyNode, name: str, group: str, kind: str, **settings: Any) -> ConsumerApp:
    of_kind = dict(PROTOCOLS[kind])
    if of_kind.get("group_protocol") == "consumer":
        settings = {**settings, "session_timeout_ms": 45_000}  # the broker has it
    return ConsumerApp(node, name, group_id=group, **{**MEMBER, **of_kind, **settings})


def joined(node: FaultyNode, name: str, group: str, kind: str, topic: str) -> tuple[ConsumerApp, list[ConsumerRecord]]:
    """Start a member after the one before was closed; return it and its first records.

    If the broker did not hear that a static member has left, the next one is refused until its session is over, as with Kafka.
    """
    end_ms = node.now_ms + 10_000
    while True:
        app = member(node, name, group, kind)
        app.subscribe(topic)
        try:
            return app, app.read(1)
        except KafkaError as error:
            assert kind == "consumer, static" and error.name == "UNRELEASED_INSTANCE_ID" and node.now_ms < end_ms
        app.close()
        node.advance(1000)


def commit(app: ConsumerApp, fault: Fault) -> None:
    """Commit; a late commit would be one that comes after a newer one, as with Kafka: let it come first."""
    app.commit()
    if fault is Fault.LATE_REQUEST:
        app.poll(LATE_MS)


def committed(app: ConsumerApp, values: dict[TopicPartition, list[bytes]]) -> dict[TopicPartition, int]:
    """Return the committed offsets of all partitions, 0 where there is none: the position of one without records may be."""
    return {partition: offset or 0 for partition, offset in app.committed(*values).items()}


def next_offsets(values: dict[TopicPartition, list[bytes]], found: Iterable[ConsumerRecord]) -> dict[TopicPartition, int]:
    """Return the offsets after records that were read."""
    read = by_partition(found)
    return {partition: len(read.get(partition, ())) for partition in values}
