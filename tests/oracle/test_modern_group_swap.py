"""Protects consumer, share and streams groups that move between Apache Kafka and kcli with their directory.

Members join under one broker; under the other they go on in their epochs with what they were assigned, both brokers describe
them alike, committed offsets and the start offsets of share groups are still there, and the members commit again. The
directories are those of Kafka 4.3.1, and of Kafka 4.4.0 with share.version 2. `kcli verify` finds nothing wrong at each stop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcli.protocol import apis
from kcli.protocol.message import Message
from tests.oracle.brokers import KcliBroker, broker_at, release_options
from tests.oracle.peer import Peer
from tests.oracle.raw_requests import RawClient, plain, until
from tests.oracle.test_streams_group_answers import SIMPLE
from tests.oracle.test_swap import DYNAMIC, assert_sound, kcli_command

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

PROPERTIES = (
    DYNAMIC
    + """
offsets.topic.num.partitions=2
share.coordinator.state.topic.num.partitions=2
group.consumer.session.timeout.ms=1000000
group.consumer.max.session.timeout.ms=1000000
group.share.session.timeout.ms=1000000
group.share.max.session.timeout.ms=1000000
group.streams.session.timeout.ms=1000000
group.streams.max.session.timeout.ms=1000000
group.streams.initial.rebalance.delay.ms=0
group.streams.assignment.interval.ms=0
group.consumer.assignment.interval.ms=0
group.share.assignment.interval.ms=0
"""
)
GROUPS = ("consumer", "share", "streams")
BEATS = dict(zip(GROUPS, (apis.CONSUMER_GROUP_HEARTBEAT, apis.SHARE_GROUP_HEARTBEAT, apis.STREAMS_GROUP_HEARTBEAT)))
DESCRIBES = dict(zip(GROUPS, (apis.CONSUMER_GROUP_DESCRIBE, apis.SHARE_GROUP_DESCRIBE, apis.STREAMS_GROUP_DESCRIBE)))
JOINING: dict[str, dict[str, Any]] = {
    "consumer": {"subscribed_topic_names": ["in"], "topic_partitions": [], "rebalance_timeout_ms": 60_000},
    "share": {"subscribed_topic_names": ["in"]},
    "streams": {
        "topology": SIMPLE,
        "rebalance_timeout_ms": 60_000,
        "process_id": "p",
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
    },
}
# The members of share groups have an id that is a UUID.
MEMBER = "AAAAAAAAAAAAAAAAAAAAAQ"


class Client:
    """A client of one broker; `version` is that of the requests of streams groups."""

    def __init__(self, address: str, version: int) -> None:
        self.client = RawClient(address)
        self._version = version
        for kind, key in ((0, "consumer"), (0, "share"), (0, "streams")):
            found = {"key_type": kind, "coordinator_keys": [key]}
            until(lambda found=found: not self.client.ask(apis.FIND_COORDINATOR, 6, **found).coordinators[0].error_code)
        for group_id in GROUPS:
            until(lambda group_id=group_id: self.describe(group_id)["error_code"] in (0, 69))

    def _version_of(self, group_id: str) -> int:
        return self._version if group_id == "streams" else 1

    def beat(self, group_id: str, epoch: int) -> Message:
        """Send a heartbeat of the group's member, and return its answer."""
        fields = {"group_id": group_id, "member_id": MEMBER, "member_epoch": epoch}
        fields |= JOINING[group_id] if epoch == 0 else {}
        answer = self.client.ask(BEATS[group_id], self._version_of(group_id), **fields)
        assert answer.error_code == 0, (group_id, answer.error_code, answer.error_message)
        return answer

    def describe(self, group_id: str) -> Any:
        """What the broker says of a group."""
        return plain(self.client.ask(DESCRIBES[group_id], self._version_of(group_id), group_ids=[group_id]).groups[0])

    def join(self) -> dict[str, int]:
        """Make the topic, and let a member join each group; return their epochs when all of them have partitions."""
        struct = self.client.struct
        topics = [struct(apis.CREATE_TOPICS, "CreatableTopic", name="in", num_partitions=3, replication_factor=1)]
        self.client.ask(apis.CREATE_TOPICS, 7, topics=topics, timeout_ms=30_000)
        wanted = [struct(apis.METADATA, "MetadataRequestTopic", name="in")]
        fields = {"topics": wanted, "allow_auto_topic_creation": False}
        until(lambda: len(self.client.ask(apis.METADATA, 12, **fields).topics[0].partitions) == 3)
        epochs = {}
        for group_id in GROUPS:
            epochs[group_id] = self.beat(group_id, 0).member_epoch
            until(lambda group_id=group_id: self._settled(group_id, epochs))
        self.move_start(1)
        return epochs

    def _settled(self, group_id: str, epochs: dict[str, int]) -> bool:
        epochs[group_id] = self.beat(group_id, epochs[group_id]).member_epoch
        found = self.describe(group_id)
        (member,) = found["members"]
        return found["group_state"] == "Stable" and any(member["assignment"].values())

    def move_start(self, offset: int) -> None:
        """Set the start offset of a share group without members."""
        struct, key = self.client.struct, apis.ALTER_SHARE_GROUP_OFFSETS
        part = struct(key, "AlterShareGroupOffsetsRequestPartition", partition_index=0, start_offset=offset)
        topic = struct(key, "AlterShareGroupOffsetsRequestTopic", topic_name="in", partitions=[part])
        fields = {"group_id": "moved", "topics": [topic]}

        def is_moved() -> bool:
            answer = self.client.ask(key, 0, **fields)
            return not answer.error_code and not answer.responses[0].partitions[0].error_code

        until(is_moved)

    def commit(self, epochs: dict[str, int], offset: int) -> None:
        """Commit as the members, and move the start offset of the share group."""
        struct, key = self.client.struct, apis.OFFSET_COMMIT
        for group_id in ("consumer", "streams"):
            parts = [
                struct(key, "OffsetCommitRequestPartition", partition_index=at, committed_offset=offset) for at in range(3)
            ]
            topic = struct(key, "OffsetCommitRequestTopic", name="in", partitions=parts)
            fields = {"member_id": MEMBER, "generation_id_or_member_epoch": epochs[group_id], "topics": [topic]}
            answer = self.client.ask(key, 9, group_id=group_id, **fields)
            assert [part.error_code for part in answer.topics[0].partitions] == [0, 0, 0]
        self.move_start(offset)

    def seen(self, epochs: dict[str, int]) -> Any:
        """What the broker says of the groups and their offsets; the members are alive, and their epochs are as before."""
        beaten = {group_id: self.beat(group_id, epochs[group_id]).member_epoch for group_id in GROUPS}
        assert beaten == epochs
        struct = self.client.struct
        asked = [struct(apis.OFFSET_FETCH, "OffsetFetchRequestGroup", group_id=name, topics=None) for name in GROUPS]
        fetched = plain(self.client.ask(apis.OFFSET_FETCH, 9, groups=asked))
        key = apis.DESCRIBE_SHARE_GROUP_OFFSETS

        def started() -> Message | None:
            groups = [struct(key, "DescribeShareGroupOffsetsRequestGroup", group_id="moved", topics=None)]
            (found,) = self.client.ask(key, 0, groups=groups).groups
            return None if any(part.error_code for topic in found.topics for part in topic.partitions) else found

        described = {group_id: self.describe(group_id) for group_id in GROUPS}
        return described, fetched, plain(until(started))


def move_both_ways(peer: Peer, home: Path, order: tuple[str, ...]) -> None:
    """Serve a directory by these brokers one after the other, and compare what they say."""
    data, version = home / "data", int(peer.version == "4.4.0")
    kcli = KcliBroker(home / "kcli", properties=PROPERTIES, data=data)
    assert kcli_command(["format", "--standalone", "-c", str(home / "kcli" / "server.properties"), *release_options(peer)]) == 0
    epochs: dict[str, int] = {}
    before: Any = None
    for stop, name in enumerate(order, 1):
        with kcli if name == "kcli" else broker_at(peer, home / f"kafka-{stop}", PROPERTIES, data) as running:
            client = Client(running.bootstrap if isinstance(running, KcliBroker) else running, version)
            if not epochs:
                epochs = client.join()
            else:
                assert client.seen(epochs) == before
            client.commit(epochs, 10 * stop)
            before = client.seen(epochs)
            client.client.close()
        assert_sound(peer, data)


def test_groups_that_begin_under_kcli(each_kafka: Peer, tmp_path: Path) -> None:
    move_both_ways(each_kafka, tmp_path, ("kcli", "kafka", "kcli"))


def test_groups_that_begin_under_kafka(each_kafka: Peer, tmp_path: Path) -> None:
    move_both_ways(each_kafka, tmp_path, ("kafka", "kcli", "kafka"))
