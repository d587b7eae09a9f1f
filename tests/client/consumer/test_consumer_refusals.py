"""Protects: whichever error code a broker answers to whichever request of a consumer, it returns all records in order, none of
them twice but after a loss of its partitions, commits nothing that it has not returned, and raises the right error.

The broker is a whole node of kcli in virtual time; in each run another request meets the code (tests.client.refusing_node).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcli.client.consumer.subscription_state import EARLIEST_TIMESTAMP
from kcli.client.errors import ClientError, CommitFailedError, KafkaError
from kcli.format.primitives import TopicPartition
from kcli.protocol import apis
from kcli.protocol import error_codes as codes
from tests.client.consumer.consumer_app import ConsumerApp
from tests.client.consumer.test_consumer_faults import EACH, GROUP_SETTINGS, by_partition, filled, member, offsets_of
from tests.client.faulty_node import SHORT_TIMEOUTS
from tests.client.refusing_node import OF_METADATA, Refusal, RefusingNode, each_of, refusals_of

pytestmark = pytest.mark.ci  # minutes of CPU time together

WITHIN_MS = 60_000
MOVED = (codes.COORDINATOR_LOAD_IN_PROGRESS, codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR)
OF_LEADERS = (
    codes.NOT_LEADER_OR_FOLLOWER,
    codes.LEADER_NOT_AVAILABLE,
    codes.REPLICA_NOT_AVAILABLE,
    codes.KAFKA_STORAGE_ERROR,
    codes.OFFSET_NOT_AVAILABLE,
    codes.FENCED_LEADER_EPOCH,
    codes.UNKNOWN_LEADER_EPOCH,
    codes.UNKNOWN_TOPIC_OR_PARTITION,
)
COMMITTED, FETCHED_OFFSET = "OffsetCommitResponsePartition", "OffsetFetchResponsePartitions"

# The application sees nothing of these.
PASSING = [
    *OF_METADATA,
    *refusals_of(
        apis.FETCH,
        "PartitionData",
        *OF_LEADERS,
        codes.UNKNOWN_TOPIC_ID,
        codes.INCONSISTENT_TOPIC_ID,
        codes.UNKNOWN_SERVER_ERROR,
    ),
    *refusals_of(
        apis.FETCH,
        "",
        codes.FETCH_SESSION_ID_NOT_FOUND,
        codes.INVALID_FETCH_SESSION_EPOCH,
        codes.FETCH_SESSION_TOPIC_ID_ERROR,
        codes.UNKNOWN_TOPIC_ID,
        codes.UNKNOWN_SERVER_ERROR,
    ),
    *refusals_of(apis.LIST_OFFSETS, "ListOffsetsPartitionResponse", *OF_LEADERS, codes.REQUEST_TIMED_OUT),
]
PASSING_IN_GROUPS = [
    *refusals_of(apis.FIND_COORDINATOR, "Coordinator", *MOVED, codes.REQUEST_TIMED_OUT),
    *refusals_of(apis.OFFSET_FETCH, "OffsetFetchResponseGroup", *MOVED),
    *refusals_of(apis.OFFSET_FETCH, FETCHED_OFFSET, codes.UNSTABLE_OFFSET_COMMIT, codes.UNKNOWN_TOPIC_ID),
    *refusals_of(
        apis.OFFSET_COMMIT,
        COMMITTED,
        *MOVED,
        codes.REQUEST_TIMED_OUT,
        codes.UNKNOWN_TOPIC_OR_PARTITION,
        codes.UNKNOWN_TOPIC_ID,
    ),
    *refusals_of(apis.OFFSET_COMMIT, COMMITTED, *MOVED, codes.REQUEST_TIMED_OUT, is_executed=True),
]
PASSING_IN_CLASSIC_GROUPS = [
    *refusals_of(apis.JOIN_GROUP, "", *MOVED),
    *refusals_of(apis.JOIN_GROUP, "", *MOVED, is_executed=True),
    *refusals_of(apis.SYNC_GROUP, "", *MOVED, codes.REQUEST_TIMED_OUT),
    *refusals_of(apis.SYNC_GROUP, "", *MOVED, codes.REQUEST_TIMED_OUT, is_executed=True),
    *refusals_of(apis.HEARTBEAT, "", *MOVED, codes.UNKNOWN_SERVER_ERROR, codes.GROUP_AUTHORIZATION_FAILED),
    *refusals_of(apis.LEAVE_GROUP, "", *MOVED, codes.UNKNOWN_MEMBER_ID, codes.UNKNOWN_SERVER_ERROR),
]
PASSING_IN_GROUPS_OF_848 = [
    *refusals_of(apis.CONSUMER_GROUP_HEARTBEAT, "", *MOVED),
    *refusals_of(apis.CONSUMER_GROUP_HEARTBEAT, "", *MOVED, is_executed=True),
]
# The member loses its partitions, or has them assigned again; a commit in between fails.
FENCING_IN_CLASSIC_GROUPS = [
    *refusals_of(apis.JOIN_GROUP, "", codes.UNKNOWN_MEMBER_ID, codes.ILLEGAL_GENERATION, codes.REBALANCE_IN_PROGRESS),
    *refusals_of(apis.SYNC_GROUP, "", codes.UNKNOWN_MEMBER_ID, codes.ILLEGAL_GENERATION, codes.REBALANCE_IN_PROGRESS),
    *refusals_of(apis.HEARTBEAT, "", codes.UNKNOWN_MEMBER_ID, codes.ILLEGAL_GENERATION, codes.REBALANCE_IN_PROGRESS),
    *refusals_of(apis.OFFSET_COMMIT, COMMITTED, codes.UNKNOWN_MEMBER_ID, codes.ILLEGAL_GENERATION),
]
FENCING_IN_GROUPS_OF_848 = [
    *refusals_of(apis.CONSUMER_GROUP_HEARTBEAT, "", codes.FENCED_MEMBER_EPOCH, codes.UNKNOWN_MEMBER_ID),
    *refusals_of(apis.CONSUMER_GROUP_HEARTBEAT, "", codes.FENCED_MEMBER_EPOCH, codes.UNKNOWN_MEMBER_ID, is_executed=True),
    *refusals_of(apis.OFFSET_COMMIT, COMMITTED, codes.UNKNOWN_MEMBER_ID, codes.STALE_MEMBER_EPOCH),
    *refusals_of(apis.OFFSET_FETCH, "OffsetFetchResponseGroup", codes.UNKNOWN_MEMBER_ID, codes.STALE_MEMBER_EPOCH),
]
# The application gets the error, from a poll or a commit.
RAISED = refusals_of(
    apis.FETCH, "PartitionData", codes.TOPIC_AUTHORIZATION_FAILED, codes.CORRUPT_MESSAGE, codes.UNSUPPORTED_COMPRESSION_TYPE
) + refusals_of(apis.METADATA, "MetadataResponseTopic", codes.TOPIC_AUTHORIZATION_FAILED)
RAISED_IN_GROUPS = [
    *refusals_of(apis.FIND_COORDINATOR, "Coordinator", codes.GROUP_AUTHORIZATION_FAILED, codes.INVALID_GROUP_ID),
    *refusals_of(apis.OFFSET_FETCH, "OffsetFetchResponseGroup", codes.GROUP_AUTHORIZATION_FAILED, codes.UNKNOWN_SERVER_ERROR),
    *refusals_of(apis.OFFSET_FETCH, FETCHED_OFFSET, codes.TOPIC_AUTHORIZATION_FAILED),
    *refusals_of(
        apis.OFFSET_COMMIT,
        COMMITTED,
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.OFFSET_METADATA_TOO_LARGE,
        codes.INVALID_COMMIT_OFFSET_SIZE,
        codes.REBALANCE_IN_PROGRESS,
        codes.UNKNOWN_SERVER_ERROR,
    ),
]
RAISED_IN_CLASSIC_GROUPS = [
    *refusals_of(
        apis.JOIN_GROUP,
        "",
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.INCONSISTENT_GROUP_PROTOCOL,
        codes.INVALID_SESSION_TIMEOUT,
        codes.INVALID_GROUP_ID,
        codes.GROUP_MAX_SIZE_REACHED,
        codes.FENCED_INSTANCE_ID,
        codes.UNSUPPORTED_VERSION,
        codes.UNKNOWN_SERVER_ERROR,
    ),
    *refusals_of(
        apis.SYNC_GROUP,
        "",
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.INCONSISTENT_GROUP_PROTOCOL,
        codes.FENCED_INSTANCE_ID,
        codes.UNKNOWN_SERVER_ERROR,
    ),
    *refusals_of(apis.HEARTBEAT, "", codes.FENCED_INSTANCE_ID),
    *refusals_of(apis.OFFSET_COMMIT, COMMITTED, codes.FENCED_INSTANCE_ID),
]
RAISED_IN_GROUPS_OF_848 = refusals_of(
    apis.CONSUMER_GROUP_HEARTBEAT,
    "",
    codes.GROUP_AUTHORIZATION_FAILED,
    codes.TOPIC_AUTHORIZATION_FAILED,
    codes.INVALID_REQUEST,
    codes.INVALID_REGULAR_EXPRESSION,
    codes.UNSUPPORTED_ASSIGNOR,
    codes.GROUP_MAX_SIZE_REACHED,
    codes.UNRELEASED_INSTANCE_ID,
    codes.UNKNOWN_SERVER_ERROR,
)


CLASSIC = pytest.mark.parametrize("kind", ["range", "cooperative", "static"])
OF_848 = pytest.mark.parametrize("kind", ["consumer", "consumer, static"])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RefusingNode]:
    node = RefusingNode(tmp_path, *GROUP_SETTINGS)
    yield node
    node.clients.clear()
    node.stop()


# ------------------------------------------------------------------------------------------------------- without a group


@each_of(PASSING + refusals_of(apis.OFFSET_FOR_LEADER_EPOCH, "EpochEndOffset", *OF_LEADERS, codes.REQUEST_TIMED_OUT))
def test_a_consumer_without_a_group(node: RefusingNode, refusal: Refusal) -> None:
    for run in node.refusals(refusal):
        topic = f"t{run}"
        values = filled(node, topic)
        app = ConsumerApp(node, "c", **SHORT_TIMEOUTS, default_api_timeout_ms=20_000)
        app.do(app.core.assign, list(values))
        assert by_partition(app.read(2 * EACH)) == values, run
        assert app.ask(app.core.position, (topic, 0)) == EACH
        app.do(app.core.seek, (topic, 0), 2, 0)  # with a leader epoch, which is validated
        assert by_partition(app.read(EACH - 2)) == {(topic, 0): values[topic, 0][2:]}, run
        assert offsets_of(app.ask(app.core.list_offsets, dict.fromkeys(values, EARLIEST_TIMESTAMP))) == [0, 0]
        if refusal.api_key != apis.METADATA or refusal.struct != "MetadataResponseTopic":
            assert len(app.ask(app.core.partitions_for, topic)) == 2
        app.close()
    assert run > 1


@each_of([*RAISED, *refusals_of(apis.LIST_OFFSETS, "ListOffsetsPartitionResponse", codes.TOPIC_AUTHORIZATION_FAILED)])
def test_a_poll_raises_an_error_that_stays(node: RefusingNode, refusal: Refusal) -> None:
    for run in node.refusals(refusal):
        values = filled(node, f"t{run}")
        app = ConsumerApp(node, "c", **SHORT_TIMEOUTS, default_api_timeout_ms=20_000)
        app.do(app.core.assign, list(values))
        reading = Reading(node, refusal, values)
        reading.read(app, reading.is_over)
        assert (reading.raised != 0) == node.is_refused
        app.close()
    assert run > 1


# ------------------------------------------------------------------------------------------------------------- in groups


class Reading:
    """What an application has read of its two partitions; `raised` counts the errors that it got."""

    def __init__(self, node: RefusingNode, refusal: Refusal, values: dict[TopicPartition, list[bytes]]) -> None:
        self.node, self.refusal, self.values = node, refusal, values
        self.next: dict[TopicPartition, int] = dict.fromkeys(values, 0)  # after what the application has got
        self.seen: dict[TopicPartition, int] = dict.fromkeys(values, 0)
        self.committed: dict[TopicPartition, set[int]] = {one: {0} for one in values}  # what may be committed
        self.raised = self.failed_commits = 0
        self.calls = 0  # of the listener that were taken note of

    def is_over(self) -> bool:
        """Return whether all records were read."""
        return all(count == EACH for count in self.seen.values())

    def is_committed(self) -> bool:
        """Return whether all records were read and committed."""
        return all(found == {EACH} for found in self.committed.values())

    def check_committed(self, app: ConsumerApp) -> None:
        """Find out which of the offsets that may be committed are."""
        try:
            found = app.committed(*self.values)
        except ClientError as error:
            self.take_error(error)
            return
        for partition, offset in found.items():
            assert (offset or 0) in self.committed[partition]
            self.committed[partition] = {offset or 0}

    def read(self, app: ConsumerApp, is_over: Callable[[], bool], commits: bool = False) -> None:
        """Poll, and commit, until it is over."""
        end_ms = self.node.now_ms + WITHIN_MS
        while not is_over():
            assert self.node.now_ms < end_ms, (self.seen, self.committed)
            try:
                records = app.poll(400)
            except ClientError as error:
                self.take_error(error)
                if self.is_fatal(app):
                    return
                continue
            for kind, partitions in app.listener.calls[self.calls :]:
                self.calls += 1
                if kind == "assigned":
                    self.next.update(dict.fromkeys(partitions, -1))
            for record in records:
                partition = (record.topic, record.partition)
                if self.next[partition] == -1:
                    assert record.offset in self.committed[partition]
                else:
                    assert record.offset == self.next[partition]
                assert record.value == self.values[partition][record.offset]
                self.next[partition] = record.offset + 1
                self.seen[partition] = max(self.seen[partition], record.offset + 1)
            if commits:
                self.commit(app)

    def is_fatal(self, app: ConsumerApp) -> bool:
        """Return whether the member can only be closed."""
        return getattr(app.core.membership, "_fatal", None) is not None

    def take_error(self, error: ClientError) -> None:
        if name_of(error) == "UNRELEASED_INSTANCE_ID" != codes.NAMES[self.refusal.code]:
            return  # a static member that could not leave is there until its session is over
        name = codes.NAMES[self.refusal.code]
        assert (isinstance(error, KafkaError) and error.code == self.refusal.code) or name in str(error), error
        self.raised += 1

    def commit(self, app: ConsumerApp) -> None:
        wanted = {one: at for one, at in self.next.items() if at >= 0 and app.core.subscriptions.is_assigned(one)}
        try:
            app.commit()
        except ClientError as error:
            is_fenced = isinstance(error, CommitFailedError) or "REBALANCE_IN_PROGRESS" in str(error)
            if not is_fenced:
                self.take_error(error)
            self.failed_commits += 1
            if self.refusal.is_executed:
                for partition, offset in wanted.items():
                    self.committed[partition].add(offset)
            return
        for partition, offset in wanted.items():
            self.committed[partition] = {offset}


def name_of(error: ClientError) -> str:
    return error.name if isinstance(error, KafkaError) else ""


def read_by_two(node: RefusingNode, run: int, kind: str, refusal: Refusal) -> Reading:
    """Let a member read and commit a part, and others the rest, until all is committed."""
    values = filled(node, f"t{run}")
    reading = Reading(node, refusal, values)
    part = 0
    end_ms = node.now_ms + 4 * WITHIN_MS
    while not reading.is_committed():
        assert node.now_ms < end_ms, reading.committed
        app = member(node, f"m{part}", f"g{run}", kind, max_poll_records=2)
        app.subscribe(f"t{run}")
        reading.calls = 0
        reading.next = dict.fromkeys(values, -1)
        if part > 0:
            reading.check_committed(app)
            reading.read(app, reading.is_committed, commits=True)
        else:
            reading.read(app, lambda: sum(reading.seen.values()) >= EACH, commits=True)
        if part == 0 and not reading.is_fatal(app):
            app.core.pause(app.core.subscriptions.assigned_partitions, node.now_ms)
            until_ms = node.now_ms + 1500  # with heartbeats
            reading.read(app, lambda until_ms=until_ms: node.now_ms >= until_ms, commits=True)
        app.close()
        if reading.is_fatal(app):
            node.advance(1000)
        part += 1
    return reading


@CLASSIC
@each_of([*PASSING, *PASSING_IN_GROUPS, *PASSING_IN_CLASSIC_GROUPS])
def test_the_application_sees_no_error_that_passes(node: RefusingNode, refusal: Refusal, kind: str) -> None:
    for run in node.refusals(refusal):
        reading = read_by_two(node, run, kind, refusal)
        assert (reading.raised, reading.failed_commits) == (0, 0), run
    assert run > 1 or (refusal.api_key == apis.LEAVE_GROUP and kind == "static")


@OF_848
@each_of([*PASSING, *PASSING_IN_GROUPS, *PASSING_IN_GROUPS_OF_848])
def test_the_application_sees_no_error_that_passes_848(node: RefusingNode, refusal: Refusal, kind: str) -> None:
    for run in node.refusals(refusal):
        reading = read_by_two(node, run, kind, refusal)
        assert (reading.raised, reading.failed_commits) == (0, 0), run
    assert run > 1


@CLASSIC
@each_of(FENCING_IN_CLASSIC_GROUPS)
def test_a_member_that_is_fenced_joins_again(node: RefusingNode, refusal: Refusal, kind: str) -> None:
    for run in node.refusals(refusal):
        assert read_by_two(node, run, kind, refusal).raised == 0, run
    assert run > 1


@OF_848
@each_of(FENCING_IN_GROUPS_OF_848)
def test_a_member_that_is_fenced_joins_again_848(node: RefusingNode, refusal: Refusal, kind: str) -> None:
    for run in node.refusals(refusal):
        reading = read_by_two(node, run, kind, refusal)
        assert reading.raised == 0 or refusal.api_key == apis.OFFSET_FETCH, run  # by the call of `committed`
    assert run > 1


@CLASSIC
@each_of([*RAISED, *RAISED_IN_GROUPS, *RAISED_IN_CLASSIC_GROUPS])
def test_an_error_that_stays_is_raised(node: RefusingNode, refusal: Refusal, kind: str) -> None:
    for run in node.refusals(refusal):
        reading = read_by_two(node, run, kind, refusal)
        assert bool(reading.raised or reading.failed_commits) == node.is_refused, run
    assert run > 1


@OF_848
@each_of([*RAISED, *RAISED_IN_GROUPS, *RAISED_IN_GROUPS_OF_848])
def test_an_error_that_stays_is_raised_848(node: RefusingNode, refusal: Refusal, kind: str) -> None:
    for run in node.refusals(refusal):
        reading = read_by_two(node, run, kind, refusal)
        is_leaving = refusal.api_key == apis.CONSUMER_GROUP_HEARTBEAT and run > 1  # maybe: its answer is not awaited then
        assert bool(reading.raised or reading.failed_commits) == node.is_refused or is_leaving, run
    assert run > 1
