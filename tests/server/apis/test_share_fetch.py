"""Protects ShareFetch and ShareAcknowledge on a whole node: sessions, waits, error codes, and what members get.

The error codes and the order of the checks are Kafka 4.3.1's (KafkaApis, SharePartitionManager).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.server.metrics.broker_metrics import TOPIC_COUNTS
from kcli.server.replication.share_persister import ShareKey
from kcli.state.metadata_values import ConfigResource
from tests.server.apis.share_requests import ACCEPT, REJECT, RELEASE, RENEW, ShareMember, acquired_of, codes_of
from tests.server.whole_node import WholeNode, batch, partitions_of

SHARE_TOPIC = (
    "share.coordinator.state.topic.replication.factor=1",
    "share.coordinator.state.topic.min.isr=1",
    "share.coordinator.state.topic.num.partitions=1",
)
UNKNOWN_ID = Uuid(b"\x09" * 16)


class ShareNode:
    """A node with a topic of two partitions, and a group that begins at the start of them."""

    def __init__(self, directory: Path, *overrides: str, max_open_files: int = 256) -> None:
        self.node = WholeNode(directory, *SHARE_TOPIC, *overrides, max_open_files=max_open_files)
        self.topic_id = self.node.create_topic("topic", 2)
        self.first, self.second = (self.topic_id, 0), (self.topic_id, 1)
        self.initialize("group", self.first, self.second)

    def initialize(self, group_id: str, *targets: tuple[Uuid, int], start_offset: int = 0) -> None:
        """Do what the group coordinator does when a member subscribes: begin the states of its partitions."""
        codes: list[int] = []
        for target in targets:
            self.node.broker.share_persister.initialize(ShareKey(group_id, *target), 1, start_offset, codes.append)
        self.node.until(lambda: len(codes) == len(targets), 60_000)
        assert set(codes) == {0}

    def configure(self, group_id: str = "group", **values: str) -> None:
        """Set the group's configuration."""
        found = {f"share.{name.replace('_', '.')}": value for name, value in values.items()}
        self.node.broker.image.configs[ConfigResource("GROUP", group_id)] = found

    def produce(self, count: int, index: int = 0, **fields: Any) -> None:
        """Produce one batch of records."""
        pending = self.node.produce("topic", index, batch(*[b"value %d" % number for number in range(count)], **fields))
        self.node.until(lambda: pending.answer is not None)
        assert pending.result().responses[0].partition_responses[0].error_code == 0

    def member(self, member_id: str = "member", **options: Any) -> ShareMember:
        """A member whose session has both partitions and whose share partitions are loaded."""
        member = ShareMember(self.node, member_id, **options)
        member.fetch([self.first, self.second], max_records=0)
        member.fetch(max_wait_ms=50)
        return member


def test_the_first_fetch_of_a_group_has_records_without_a_wait(tmp_path: Path) -> None:
    """With max_wait_ms=0, too: the states of the share partitions are read first, which takes some ms after a start."""
    shared = ShareNode(tmp_path)
    shared.produce(3)
    member = ShareMember(shared.node, "member")
    assert acquired_of(member.fetch([shared.first, shared.second], max_wait_ms=0)) == {0: [(0, 2, 1)], 1: []}


@pytest.fixture
def shared(tmp_path: Path) -> ShareNode:
    """The node of a test."""
    return ShareNode(tmp_path)


# ------------------------------------------------------------------------------------------------------------- records


def test_a_fetch_reads_no_more_partitions_than_files_may_be_open(tmp_path: Path) -> None:
    """With two files that stay open, the records of one partition are in an answer; those of the other are in the next one."""
    shared = ShareNode(tmp_path, max_open_files=2)
    member = shared.member()
    shared.produce(2, 0)
    shared.produce(3, 1)
    found = [acquired_of(member.fetch(min_bytes=100_000, max_wait_ms=10_000)) for _ in range(2)]
    assert sorted(found, key=lambda one: min(one)) == [{0: [(0, 1, 1)]}, {1: [(0, 2, 1)]}]


@pytest.mark.parametrize("change", ["none", "close", "delete"])
def test_files_may_be_closed_while_the_acknowledgements_of_a_fetch_are_written(tmp_path: Path, change: str) -> None:
    """The records of a fetch wait for its acknowledgements; requests for other partitions may close their file."""
    shared = ShareNode(tmp_path, max_open_files=2)
    shared.node.create_topic("other", 3)
    member = shared.member()
    for _ in range(3):
        shared.produce(2)
    assert acquired_of(member.fetch(max_records=1)) == {0: [(0, 1, 1)]}
    pending = member.begin_fetch({shared.first: [(0, 1, [ACCEPT])]}, max_records=4)
    assert pending.answer is None, "the acknowledgements are not written yet"
    if change == "close":
        for index in range(3):
            assert shared.node.produce("other", index, batch(b"x")).answer is not None
    elif change == "delete":
        partition = shared.node.broker.replica_manager.partition("topic", 0)
        assert partition is not None and partition.log is not None
        shared.node.broker.replica_manager.log_manager.files.close_all()
        partition.log.maybe_increment_log_start_offset(4)
    shared.node.until(lambda: pending.answer is not None)
    (part,) = pending.result().responses[0].partitions
    assert part.acknowledge_error_code == part.error_code == 0
    assert acquired_of(pending.result()) == {0: [(2, 5, 1)]}
    fetched = partitions_of(shared.node.fetch({("topic", 0): 4 if change == "delete" else 2}).result())["topic", 0]
    assert bytes(part.records) == bytes(fetched.records)


def test_records_are_acquired_acknowledged_and_not_seen_again(shared: ShareNode) -> None:
    member = shared.member()
    shared.produce(3)
    answer = member.fetch()
    assert acquired_of(answer) == {0: [(0, 2, 1)]}
    assert answer.acquisition_lock_timeout_ms == 30_000
    (part,) = answer.responses[0].partitions
    fetched = partitions_of(shared.node.fetch({("topic", 0): 0}).result())["topic", 0]
    assert bytes(part.records) == bytes(fetched.records), "whole batches of the log"
    answer = member.acknowledge({shared.first: [(0, 1, [ACCEPT]), (2, 2, [RELEASE])]})
    assert codes_of(answer) == {0: 0}
    assert answer.acquisition_lock_timeout_ms == 30_000
    assert acquired_of(member.fetch()) == {0: [(2, 2, 2)]}
    answer = member.fetch({shared.first: [(2, 2, [REJECT])]})
    assert [part.acknowledge_error_code for part in answer.responses[0].partitions] == [0]
    assert answer.responses[0].partitions[0].acquired_records == []


def test_fetches_and_acknowledgements_are_counted(shared: ShareNode) -> None:
    metrics, coordinator = shared.node.broker.metrics, shared.node.broker.share_coordinator
    member = shared.member()
    shared.produce(4)
    member.fetch()
    topic = metrics.topic("topic")
    before, written = topic.counts(), coordinator.written_count
    member.acknowledge({shared.first: [(0, 0, [ACCEPT]), (1, 3, [RELEASE, REJECT, ACCEPT])], shared.second: [(9, 9, [ACCEPT])]})
    member.fetch({shared.first: [(7, 7, [ACCEPT])]})
    counted = {name: now - then for name, now, then in zip(TOPIC_COUNTS, topic.counts(), before, strict=True) if now - then}
    assert counted.pop("bytes_out") > 0
    assert counted == {
        "total_share_acknowledgement_requests": 2,
        "failed_share_acknowledgement_requests": 2,
        "total_share_fetch_requests": 1,
    }
    assert metrics.share_acknowledgements == {ACCEPT: 2, RELEASE: 1, REJECT: 1}
    assert coordinator.written_count == written + 1
    shared.node.advance(31_000)
    (partition,) = [found for key, found in shared.node.broker.share_partitions.partitions.items() if key.partition == 0]
    assert partition.lock_timeout_count == 1


def test_two_members_get_different_records(shared: ShareNode) -> None:
    one, other = shared.member("one"), shared.member("other")
    for _ in range(2):
        shared.produce(5)
    assert acquired_of(one.fetch(max_records=5)) == {0: [(0, 4, 1)]}
    answer = other.fetch(max_records=5)
    assert acquired_of(answer) == {0: [(5, 9, 1)]}
    assert len(answer.responses[0].partitions[0].records) < 250, "the batches of the other member are not sent"
    assert acquired_of(other.fetch()) == {}


def test_the_state_survives_a_restart(tmp_path: Path) -> None:
    shared = ShareNode(tmp_path)
    member = shared.member()
    shared.produce(4)
    member.fetch()
    assert codes_of(member.acknowledge({shared.first: [(0, 1, [ACCEPT]), (2, 2, [RELEASE])]})) == {0: 0}
    shared.node.stop()
    again = WholeNode(tmp_path, *SHARE_TOPIC)
    member = ShareMember(again)
    member.fetch([shared.first], max_records=0)
    assert acquired_of(member.fetch(max_wait_ms=60_000)) == {0: [(2, 2, 2), (3, 3, 1)]}


@pytest.mark.parametrize(
    ("reset", "first"), [("earliest", 0), ("latest", None), ("by_duration:PT1H", 0)], ids=["earliest", "latest", "by_duration"]
)
def test_a_group_without_a_start_offset_begins_where_its_configuration_says(
    shared: ShareNode, reset: str, first: int | None
) -> None:
    shared.produce(2)
    shared.configure("new", auto_offset_reset=reset)
    shared.initialize("new", shared.first, start_offset=-1)
    member = ShareMember(shared.node, group_id="new")
    answer = member.fetch([shared.first], max_wait_ms=1000)
    assert acquired_of(answer) == ({0: [(0, 1, 1)]} if first == 0 else {0: []})
    shared.produce(1)
    assert acquired_of(member.fetch()) == {0: [(2, 2, 1)]}


def test_read_committed_leaves_out_aborted_transactions(shared: ShareNode) -> None:
    shared.configure(isolation_level="read_committed")
    member = shared.member()
    shared.produce(2)
    assert acquired_of(member.fetch()) == {0: [(0, 1, 1)]}


def test_a_deleted_prefix_is_skipped(shared: ShareNode) -> None:
    member = shared.member()
    shared.produce(4)
    shared.produce(4)
    partition = shared.node.broker.replica_manager.partition("topic", 0)
    assert partition is not None and partition.log is not None
    partition.log.maybe_increment_log_start_offset(4)
    assert acquired_of(member.fetch()) == {}
    assert acquired_of(member.fetch()) == {0: [(4, 7, 1)]}


# --------------------------------------------------------------------------------------------------------------- waits


def test_a_fetch_waits_for_records(shared: ShareNode) -> None:
    member = shared.member()
    pending = member.begin_fetch(max_wait_ms=5_000)
    shared.node.advance(1_000)
    assert pending.answer is None
    shared.produce(1)
    assert acquired_of(pending.result()) == {0: [(0, 0, 1)]}
    pending = member.begin_fetch(max_wait_ms=5_000)
    shared.node.advance(5_000)
    assert pending.result().responses == []


def test_a_fetch_waits_for_min_bytes(shared: ShareNode) -> None:
    member = shared.member()
    pending = member.begin_fetch(max_wait_ms=5_000, min_bytes=250)
    shared.produce(10)
    assert pending.answer is None
    shared.produce(10)
    assert acquired_of(pending.result()) == {0: [(0, 19, 1)]}


@pytest.mark.parametrize("how", ["release", "expiry", "close"])
def test_a_waiting_fetch_gets_what_another_member_gives_back(shared: ShareNode, how: str) -> None:
    one, other = shared.member("one"), shared.member("other")
    shared.produce(3)
    one.fetch()
    pending = other.begin_fetch(max_wait_ms=60_000)
    assert pending.answer is None
    if how == "release":
        one.acknowledge({shared.first: [(0, 2, [RELEASE])]})
    elif how == "close":
        shared.node.close(one.connection)
    else:
        shared.node.advance(30_000)
    shared.node.until(lambda: pending.answer is not None)
    assert acquired_of(pending.result()) == {0: [(0, 2, 2)]}


def test_a_connection_that_closes_takes_its_fetch_with_it(shared: ShareNode) -> None:
    member = shared.member()
    member.begin_fetch(max_wait_ms=60_000)
    purgatory = shared.node.broker.replica_manager.share_fetch_purgatory
    assert purgatory.size == 1
    shared.node.close(member.connection)
    assert purgatory.size == 0
    assert len(shared.node.broker.share_partitions.sessions) == 0
    assert not shared.node.broker.share_partitions.partitions, "the group is empty"


def test_records_of_a_forgotten_partition_are_released_with_the_session(shared: ShareNode) -> None:
    """Their delivery counts outlive the group's last member; a record that ends each of its members is given up some time."""
    member = shared.member()
    shared.produce(2)
    assert acquired_of(member.fetch()) == {0: [(0, 1, 1)]}
    member.fetch(forgotten=[shared.first])
    shared.node.close(member.connection)
    shared.node.advance(100)
    after = ShareMember(shared.node, "after")
    after.fetch([shared.first], max_records=0)
    assert acquired_of(after.fetch(max_wait_ms=1_000)) == {0: [(0, 1, 2)]}


def test_an_old_connection_of_a_member_does_not_end_its_session_on_another(shared: ShareNode) -> None:
    """A client that connects again may begin its session before the broker sees the end of the old connection."""
    before, other = shared.member(), shared.member("other")
    after = shared.member()
    shared.produce(3)
    assert acquired_of(after.fetch()) == {0: [(0, 2, 1)]}
    shared.node.close(before.connection)
    assert acquired_of(other.fetch()) == {}
    assert codes_of(after.acknowledge({shared.first: [(0, 1, [ACCEPT])]})) == {0: 0}
    shared.node.close(after.connection)
    assert acquired_of(other.fetch(max_wait_ms=60_000)) == {0: [(2, 2, 2)]}


# ------------------------------------------------------------------------------------------------------------ sessions


def test_the_epochs_of_a_session(shared: ShareNode) -> None:
    member = ShareMember(shared.node)
    assert member.fetch(epoch=1).error_code == error_codes.SHARE_SESSION_NOT_FOUND
    assert member.fetch(epoch=-1).error_code == error_codes.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge({}, epoch=1).error_code == error_codes.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge({}, epoch=0).error_code == error_codes.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch({shared.first: [(0, 0, [ACCEPT])]}, epoch=0).error_code == error_codes.INVALID_REQUEST
    assert member.fetch([shared.first], epoch=0).error_code == 0
    assert member.fetch(epoch=2).error_code == error_codes.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch(epoch=1).error_code == 0
    assert member.acknowledge({}, epoch=1).error_code == error_codes.INVALID_SHARE_SESSION_EPOCH
    assert member.acknowledge({}, epoch=2).error_code == 0
    assert member.fetch(epoch=3).error_code == 0
    assert member.fetch(epoch=-1).error_code == 0
    assert member.fetch(epoch=4).error_code == error_codes.SHARE_SESSION_NOT_FOUND


def test_a_final_epoch_acknowledges_and_releases(shared: ShareNode) -> None:
    member, other = shared.member(), shared.member("other")
    shared.produce(4)
    assert acquired_of(member.fetch()) == {0: [(0, 3, 1)]}
    answer = member.acknowledge({shared.first: [(0, 1, [ACCEPT])]}, epoch=-1)
    assert codes_of(answer) == {0: 0}
    assert acquired_of(other.fetch(max_wait_ms=1_000)) == {0: [(2, 3, 2)]}


def test_forgotten_partitions_are_not_fetched(shared: ShareNode) -> None:
    member = shared.member()
    shared.produce(1, 1)
    assert acquired_of(member.fetch(forgotten=[shared.second])) == {}
    assert acquired_of(member.fetch([shared.second])) == {1: [(0, 0, 1)]}


def test_the_cache_of_sessions_is_limited(tmp_path: Path) -> None:
    shared = ShareNode(tmp_path, "group.share.max.share.sessions=1", "group.share.max.size=1")
    first, second = ShareMember(shared.node, "one"), ShareMember(shared.node, "two")
    assert first.fetch([shared.first]).error_code == 0
    pending = second.begin_fetch([shared.first], max_wait_ms=500)
    shared.node.advance(499)
    assert pending.answer is None
    shared.node.advance(1)
    assert pending.result().error_code == error_codes.SHARE_SESSION_LIMIT_REACHED
    first.fetch(epoch=-1)
    second.epoch = 0
    assert second.fetch([shared.first]).error_code == 0


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": None}, error_codes.INVALID_REQUEST),
        ({"member_id": ""}, error_codes.INVALID_REQUEST),
        ({"member_id": None}, error_codes.INVALID_REQUEST),
        ({"member_id": "m" * 37}, error_codes.INVALID_REQUEST),
        ({"member_id": "m" * 36}, 0),
        ({"is_renew_ack": True}, error_codes.INVALID_REQUEST),
        ({"share_acquire_mode": 2}, error_codes.UNKNOWN_SERVER_ERROR),
    ],
)
def test_requests_that_are_refused_as_a_whole(shared: ShareNode, fields: dict[str, Any], code: int) -> None:
    answer = ShareMember(shared.node).fetch([shared.first], **fields)
    assert (answer.error_code, answer.error_message) == (code, None)


def test_without_the_feature_nothing_is_served(shared: ShareNode) -> None:
    shared.node.broker.image.features["share.version"] = 0
    member = ShareMember(shared.node)
    assert member.fetch([shared.first]).error_code == error_codes.UNSUPPORTED_VERSION
    assert member.acknowledge({}, epoch=1).error_code == error_codes.UNSUPPORTED_VERSION


def test_partitions_that_do_not_exist(shared: ShareNode) -> None:
    member = shared.member()
    answer = member.fetch([(UNKNOWN_ID, 0), (shared.topic_id, 7)])
    assert [part.error_code for topic in answer.responses for part in topic.partitions] == [
        error_codes.UNKNOWN_TOPIC_ID,
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    answer = member.acknowledge({(UNKNOWN_ID, 0): [(0, 0, [ACCEPT])], (shared.topic_id, 7): [(0, 0, [ACCEPT])]})
    assert [part.error_code for topic in answer.responses for part in topic.partitions] == [
        error_codes.UNKNOWN_TOPIC_ID,
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_a_partition_that_the_group_does_not_read_cannot_be_acknowledged(shared: ShareNode) -> None:
    member = ShareMember(shared.node)
    member.fetch([], epoch=0)
    answer = member.acknowledge({shared.first: [(0, 0, [ACCEPT])]})
    assert codes_of(answer) == {0: error_codes.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize(
    ("acks", "version", "code"),
    [
        ([(2, 1, [ACCEPT])], 2, error_codes.INVALID_REQUEST),
        ([(0, 1, [])], 2, error_codes.INVALID_REQUEST),
        ([(0, 2, [ACCEPT, ACCEPT])], 2, error_codes.INVALID_REQUEST),
        ([(0, 1, [5])], 2, error_codes.INVALID_REQUEST),
        ([(0, 1, [-1])], 2, error_codes.INVALID_REQUEST),
        ([(0, 1, [RENEW])], 2, error_codes.INVALID_REQUEST),
        ([(0, 1, [RENEW])], 1, error_codes.INVALID_REQUEST),
        ([(1, 2, [ACCEPT]), (0, 0, [ACCEPT])], 2, error_codes.INVALID_REQUEST),
        ([(0, 3, [ACCEPT])], 2, error_codes.INVALID_REQUEST),
        ([(0, 2, [ACCEPT])], 1, 0),
        ([(0, 2, [ACCEPT, RELEASE, REJECT])], 1, 0),
    ],
)
def test_acknowledgements_are_checked(
    shared: ShareNode, acks: list[tuple[int, int, list[int]]], version: int, code: int
) -> None:
    member = shared.member(version=version)
    shared.produce(3)
    assert acquired_of(member.fetch()) == {0: [(0, 2, 1)]}
    assert codes_of(member.acknowledge({shared.first: acks})) == {0: code}


def test_a_renewal_fetches_nothing_and_keeps_the_records(shared: ShareNode) -> None:
    member = shared.member()
    shared.produce(2)
    assert acquired_of(member.fetch()) == {0: [(0, 1, 1)]}
    shared.produce(2)
    shared.node.advance(20_000)
    zero = dict.fromkeys(("max_bytes", "min_bytes", "max_records", "max_wait_ms"), 0)
    answer = member.fetch({shared.first: [(0, 1, [RENEW])]}, is_renew_ack=True, **zero)
    (part,) = answer.responses[0].partitions
    assert (part.acknowledge_error_code, part.acquired_records) == (0, [])
    shared.node.advance(20_000)
    assert codes_of(member.acknowledge({shared.first: [(0, 1, [ACCEPT])]})) == {0: 0}


def test_a_topic_that_is_deleted_ends_its_share_partitions(shared: ShareNode) -> None:
    member = shared.member()
    shared.produce(1)
    member.fetch()
    shared.node.delete_topic("topic")
    shared.node.until(lambda: not shared.node.broker.share_partitions.partitions)
    answer = member.fetch()
    assert codes_of(answer) == {0: error_codes.UNKNOWN_TOPIC_ID, 1: error_codes.UNKNOWN_TOPIC_ID}
    shared.node.advance(30_000)
