"""Partitions: offsets by time, deleted records, elections, reassignments, producers (Kafka: OffsetSpec, RecordsToDelete).

operation                      API                          node
-----------------------------  ---------------------------  ----------------------------
list_offsets                   ListOffsets                  the leader of each partition
delete_records                 DeleteRecords                the leader of each partition
describe_producers             DescribeProducers            the leader, or a given broker
elect_leaders                  ElectLeaders                 the controller
alter_partition_reassignments  AlterPartitionReassignments  the controller
list_partition_reassignments   ListPartitionReassignments   the controller

OffsetSpec              offset
----------------------  ------------------------------------------------------------------------------------------
LATEST                  the end: the high watermark, or with READ_COMMITTED the last stable offset
EARLIEST                the first offset
MAX_TIMESTAMP           of the record with the highest timestamp (KIP-734)
EARLIEST_LOCAL          the first offset on the leader's disk (KIP-405)
LATEST_TIERED           the last offset in remote storage (KIP-1005)
EARLIEST_PENDING_UPLOAD the first offset that is not in remote storage yet (KIP-1023)
a timestamp, 0 or more  of the first record at or after it, in ms; NO_OFFSET if there is none
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from kcli.client.admin.driver import answer_or_error, refused
from kcli.client.admin.error_sentences import kafka_error, outcome_error
from kcli.client.admin.operation import Call, Operation, Outcomes, RequestContext, Route, run, run_one
from kcli.client.errors import ClientError
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ALTER_PARTITION_REASSIGNMENTS,
    API_KEYS,
    DELETE_RECORDS,
    DESCRIBE_PRODUCERS,
    ELECT_LEADERS,
    LIST_OFFSETS,
    LIST_PARTITION_REASSIGNMENTS,
)
from kcli.protocol.message import Message
from kcli.protocol.message_errors import NotInVersionError

NO_OFFSET = -1
HIGH_WATERMARK = -1  # of delete_records: all records
CLIENT_REPLICA = -1


class OffsetSpec(IntEnum):
    """The offsets that are not found by a time."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


# An older broker would take the number for a time.
_SPEC_SINCE: dict[int, int] = {
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
    OffsetSpec.EARLIEST_PENDING_UPLOAD: 11,
}


class IsolationLevel(IntEnum):
    """What counts as the end of a partition."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class ElectionType(IntEnum):
    """PREFERRED elects the first replica, UNCLEAN any one if none is in sync."""

    PREFERRED = 0
    UNCLEAN = 1


class ListedOffset(NamedTuple):
    """An offset, its timestamp (-1 if it was not asked by a time) and leader epoch (-1 if it is not known)."""

    offset: int
    timestamp: int
    leader_epoch: int


class ActiveProducer(NamedTuple):
    """A producer of a partition; `transaction_start_offset` is -1 if it has no transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int


class PartitionReassignment(NamedTuple):
    """A reassignment under way."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


# ------------------------------------------------------------------------------------------------------- offsets and records


def list_offsets(
    wanted: Mapping[TopicPartition, int], *, isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
) -> Operation[Outcomes[TopicPartition, ListedOffset]]:
    """Return the offset for an OffsetSpec or a timestamp of each partition."""

    def request(keys: Sequence[TopicPartition], context: RequestContext) -> Message:
        kind = API_KEYS[LIST_OFFSETS].request
        topic, partition = kind.classes["ListOffsetsTopic"], kind.classes["ListOffsetsPartition"]
        for key in keys:
            _check_spec(wanted[key], context.version)
        topics = [
            topic(
                name=name,
                partitions=[partition(partition_index=index, timestamp=int(wanted[name, index])) for index in indexes],
            )
            for name, indexes in by_topic(keys).items()
        ]
        return kind.new(
            replica_id=CLIENT_REPLICA, isolation_level=isolation_level, topics=topics, timeout_ms=context.timeout_ms
        )

    return (yield from run(Call(LIST_OFFSETS, Route.LEADER, request, _read_offsets), wanted))


def _check_spec(spec: int, version: int) -> None:
    """Raise NotInVersionError for an OffsetSpec that a version of ListOffsets does not have."""
    if version < _SPEC_SINCE.get(spec, 0):
        raise NotInVersionError(f"ListOffsets version {version} does not have {OffsetSpec(spec).name}")


def _read_offsets(
    _keys: Sequence[TopicPartition], answer: Message
) -> Iterator[tuple[TopicPartition, ListedOffset | ClientError]]:
    for topic in answer.topics:
        for one in topic.partitions:
            error = outcome_error(one.error_code)
            yield (topic.name, one.partition_index), error or ListedOffset(one.offset, one.timestamp, one.leader_epoch)


def delete_records(before: Mapping[TopicPartition, int]) -> Operation[Outcomes[TopicPartition, int]]:
    """Delete the records before an offset of each partition, all for HIGH_WATERMARK; return the new first offsets."""

    def request(keys: Sequence[TopicPartition], context: RequestContext) -> Message:
        kind = API_KEYS[DELETE_RECORDS].request
        topic, partition = kind.classes["DeleteRecordsTopic"], kind.classes["DeleteRecordsPartition"]
        topics = [
            topic(name=name, partitions=[partition(partition_index=index, offset=before[name, index]) for index in indexes])
            for name, indexes in by_topic(keys).items()
        ]
        return kind.new(topics=topics, timeout_ms=context.timeout_ms)

    def read(_keys: Sequence[TopicPartition], answer: Message) -> Iterator[tuple[TopicPartition, int | ClientError]]:
        for topic in answer.topics:
            for one in topic.partitions:
                yield (topic.name, one.partition_index), outcome_error(one.error_code) or one.low_watermark

    return (yield from run(Call(DELETE_RECORDS, Route.LEADER, request, read), before))


def describe_producers(
    partitions: Iterable[TopicPartition], *, broker_id: int | None = None
) -> Operation[Outcomes[TopicPartition, tuple[ActiveProducer, ...]]]:
    """Return the producers of partitions, as their leaders know them, or a replica on the broker `broker_id`."""
    return (yield from run(producers_call(broker_id), partitions))


def producers_call(broker_id: int | None) -> Call[TopicPartition, tuple[ActiveProducer, ...]]:
    """Return the call of `describe_producers`."""

    def request(keys: Sequence[TopicPartition], _context: RequestContext) -> Message:
        kind = API_KEYS[DESCRIBE_PRODUCERS].request
        topic = kind.classes["TopicRequest"]
        return kind.new(topics=[topic(name=name, partition_indexes=found) for name, found in by_topic(keys).items()])

    call = Call(DESCRIBE_PRODUCERS, Route.LEADER, request, _read_producers)
    if broker_id is not None:
        call = call._replace(route=Route.BROKER, place=lambda _key: broker_id)
    return call


def _read_producers(
    _keys: Sequence[TopicPartition], answer: Message
) -> Iterator[tuple[TopicPartition, tuple[ActiveProducer, ...] | ClientError]]:
    for topic in answer.topics:
        for one in topic.partitions:
            key = (topic.name, one.partition_index)
            if one.error_code:
                yield key, kafka_error(one.error_code, one.error_message)
                continue
            yield (
                key,
                tuple(
                    ActiveProducer(
                        each.producer_id,
                        each.producer_epoch,
                        each.last_sequence,
                        each.last_timestamp,
                        each.coordinator_epoch,
                        each.current_txn_start_offset,
                    )
                    for each in one.active_producers
                ),
            )


# ------------------------------------------------------------------------------------------------------- leaders and replicas


def elect_leaders(
    election_type: ElectionType, partitions: Iterable[TopicPartition] | None = None
) -> Operation[Outcomes[TopicPartition, None]]:
    """Elect leaders of partitions, or of all (None).

    For all, the result has only the partitions whose leader changed, or for which the election failed. Raises
    KafkaError if the request is refused.
    """
    wanted = None if partitions is None else list(partitions)

    def request(_keys: Sequence[str], context: RequestContext) -> Message:
        kind = API_KEYS[ELECT_LEADERS].request
        one = kind.classes["TopicPartitions"]
        asked = None
        if wanted is not None:
            asked = [one(topic=name, partitions=found) for name, found in by_topic(wanted).items()]
        # Version 0 knows preferred leaders only, and has no field for it.
        return kind.new(election_type=election_type, topic_partitions=asked, timeout_ms=context.timeout_ms)

    answer = yield from run_one(Call(ELECT_LEADERS, Route.CONTROLLER, request, _read_election), "election")
    found: Outcomes[TopicPartition, None] = {}
    for topic in answer.replica_election_results:
        for one in topic.partition_result:
            if wanted is None and one.error_code == error_codes.ELECTION_NOT_NEEDED:
                continue
            found[topic.topic, one.partition_id] = outcome_error(one.error_code, one.error_message)
    return found


def _read_election(keys: Sequence[str], answer: Message) -> Iterable[tuple[str, Message | ClientError]]:
    """Yield the answer; a broker that is not the controller says so for each partition (Kafka before 4.0)."""
    for topic in answer.replica_election_results:
        for one in topic.partition_result:
            if one.error_code == error_codes.NOT_CONTROLLER:
                return refused(keys, one.error_code, one.error_message)
    return answer_or_error(keys, answer)


def alter_partition_reassignments(
    targets: Mapping[TopicPartition, Sequence[int] | None], *, allow_replication_factor_change: bool = True
) -> Operation[Outcomes[TopicPartition, None]]:
    """Begin to move partitions to brokers; None cancels a reassignment that is under way."""

    def request(keys: Sequence[TopicPartition], context: RequestContext) -> Message:
        kind = API_KEYS[ALTER_PARTITION_REASSIGNMENTS].request
        topic, partition = kind.classes["ReassignableTopic"], kind.classes["ReassignablePartition"]
        topics = []
        for name, indexes in by_topic(keys).items():
            replicas = [(index, targets[name, index]) for index in indexes]
            parts = [partition(partition_index=at, replicas=None if to is None else list(to)) for at, to in replicas]
            topics.append(topic(name=name, partitions=parts))
        return kind.new(
            topics=topics,
            timeout_ms=context.timeout_ms,
            allow_replication_factor_change=allow_replication_factor_change,
        )

    return (yield from run(Call(ALTER_PARTITION_REASSIGNMENTS, Route.CONTROLLER, request, _read_reassigned), targets))


def _read_reassigned(keys: Sequence[TopicPartition], answer: Message) -> Iterator[tuple[TopicPartition, ClientError | None]]:
    if answer.error_code:
        yield from refused(keys, answer.error_code, answer.error_message)
        return
    for topic in answer.responses:
        for one in topic.partitions:
            yield (topic.name, one.partition_index), outcome_error(one.error_code, one.error_message)


def list_partition_reassignments(
    partitions: Iterable[TopicPartition] | None = None,
) -> Operation[dict[TopicPartition, PartitionReassignment]]:
    """Return the reassignments under way, of some partitions or of all (None). Raises KafkaError."""
    wanted = None if partitions is None else list(partitions)

    def request(_keys: Sequence[str], context: RequestContext) -> Message:
        kind = API_KEYS[LIST_PARTITION_REASSIGNMENTS].request
        one = kind.classes["ListPartitionReassignmentsTopics"]
        topics = None
        if wanted is not None:
            topics = [one(name=name, partition_indexes=found) for name, found in by_topic(wanted).items()]
        return kind.new(topics=topics, timeout_ms=context.timeout_ms)

    call = Call(LIST_PARTITION_REASSIGNMENTS, Route.CONTROLLER, request, answer_or_error)
    answer = yield from run_one(call, "reassignments")
    return {
        (topic.name, one.partition_index): PartitionReassignment(
            tuple(one.replicas), tuple(one.adding_replicas), tuple(one.removing_replicas)
        )
        for topic in answer.topics
        for one in topic.partitions
    }
