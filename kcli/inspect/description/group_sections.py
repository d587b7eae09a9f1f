"""The sections on groups, their members and transactions, as rows of docs/describe.md.

    group's kind                progress                         lag
    --------------------------  -------------------------------  ---------------------------------------------------------
    classic, consumer, streams  committed offsets                log end offset - committed offset
    share                       start offsets of __share_group_  log end offset - start offset - delivered above it;
                                  state                            unknown if the coordinator had not stored the latter

Kafka's own tools compute the lag in this way, from the high watermark of the broker; here it is computed from the end of the
log. It is None if the partition is not in the given directories.

The sections on transactions show transactional ids, and open transactions of partitions.

A transaction that is open in a partition is hanging if no coordinator will end it: no transactional id has its producer id, or
the one that has it is not in a transaction with that partition. `kafka-transactions find-hanging` finds the same ones, but only
after a time. This is known only if all partitions of __transaction_state are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import FormatError
from kcli.inspect.description.describe_options import DescribeOptions
from kcli.inspect.description.partition_log import Logs, PartitionLog, TransactionAtLogEnd
from kcli.inspect.description.topic_sections import Surveyed, known_time
from kcli.inspect.json_text import JsonObject as Row
from kcli.protocol.internal_records import CONSUMER_PROTOCOL_TYPE, decode_consumer_protocol
from kcli.state.groups import (
    CommittedOffset,
    ConsumerGroupMember,
    CurrentTasks,
    Group,
    ShareGroup,
    ShareGroupMember,
    StoredClassicGroup,
    StoredClassicMember,
    StreamsGroupMember,
)
from kcli.state.share_group_state import ShareGroupOffset, ShareGroupState
from kcli.state.transaction_state import TransactionMetadata, TransactionState

if TYPE_CHECKING:
    from kcli.state.group_state import GroupState, OffsetKey
    from kcli.state.metadata_image import MetadataImage


class GroupSections:
    """Makes the rows of groups; `states` are those of the given partitions of __consumer_offsets."""

    def __init__(
        self,
        states: list[GroupState],
        share_state: ShareGroupState,
        image: MetadataImage | None,
        logs: Logs,
        options: DescribeOptions,
    ) -> None:
        self._states = states
        self._logs = logs
        self._options = options
        self._names = {} if image is None else {topic_id: topic.name for topic_id, topic in image.topics.items()}
        self._share: dict[str, list[tuple[Uuid, int, ShareGroupOffset]]] = {}
        for key, partition in share_state.partitions.items():
            self._share.setdefault(key.group_id, []).append((key.topic_id, key.partition, partition))

    def ids(self) -> set[str]:
        """Return the ids of all groups, also of those that were not asked for."""
        return {group_id for state in self._states for group_id in state.groups}

    def rows(self) -> list[Row]:
        """Return a row for each group, by id; with globs for topics only groups that have an offset in one of them."""
        rows = []
        for state in self._states:
            committed: dict[str, list[tuple[OffsetKey, CommittedOffset]]] = {}
            for key, offset in state.committed_offsets.items():
                committed.setdefault(key.group_id, []).append((key, offset))
            pending = {
                key: (offset.offset, producer_id)
                for producer_id, offsets in state.pending_offsets.items()
                for key, offset in offsets.items()
            }
            for group_id, group in state.groups.items():
                if not self._options.wants_group(group_id):
                    continue
                row = self._row(group, committed.get(group_id, []), pending)
                if row["offsets"] or not self._options.topics:
                    rows.append(row)
        return sorted(rows, key=lambda row: str(row["groupId"]))

    def _row(
        self, group: Group, committed: list[tuple[OffsetKey, CommittedOffset]], pending: dict[OffsetKey, tuple[int, int]]
    ) -> Row:
        offsets = self._share_offsets(group) if isinstance(group, ShareGroup) else self._offsets(group, committed, pending)
        lags = [row["lag"] for row in offsets if row.get("committedOffset", row.get("startOffset")) is not None]
        return {
            "groupId": group.group_id,
            "kind": group.kind,
            "state": group.state,
            "protocolType": group.protocol_type or None if isinstance(group, StoredClassicGroup) else None,
            "protocol": group.protocol if isinstance(group, StoredClassicGroup) else None,
            "leader": group.leader if isinstance(group, StoredClassicGroup) else None,
            "epoch": group.generation if isinstance(group, StoredClassicGroup) else group.group_epoch,
            "assignmentEpoch": None if isinstance(group, StoredClassicGroup) else group.assignment_epoch,
            "stateTimestamp": known_time(group.state_timestamp_ms) if isinstance(group, StoredClassicGroup) else None,
            "members": len(group.members),
            "totalLag": None if not lags or None in lags else sum(lags),
            "offsets": offsets,
        }

    def _offsets(
        self, group: Group, committed: list[tuple[OffsetKey, CommittedOffset]], pending: dict[OffsetKey, tuple[int, int]]
    ) -> list[Row]:
        found: dict[tuple[str, int], CommittedOffset | None] = {(key.topic, key.partition): at for key, at in committed}
        waiting = {(key.topic, key.partition): at for key, at in pending.items() if key.group_id == group.group_id}
        for place in waiting:
            found.setdefault(place, None)
        rows = []
        for (topic, partition), offset in sorted(found.items(), key=lambda item: item[0]):
            if not self._options.wants_topic(topic):
                continue
            ends = self._ends(topic, partition)
            pending_offset, producer_id = waiting.get((topic, partition), (None, None))
            rows.append(
                {
                    "topic": topic,
                    "partition": partition,
                    "committedOffset": None if offset is None else offset.offset,
                    "leaderEpoch": None if offset is None or offset.leader_epoch < 0 else offset.leader_epoch,
                    "metadata": None if offset is None else offset.metadata,
                    "commitTimestamp": None if offset is None else known_time(offset.commit_timestamp_ms),
                    "expireTimestamp": None if offset is None else known_time(offset.expire_timestamp_ms),
                    "pendingOffset": pending_offset,
                    "pendingProducerId": producer_id,
                    **ends,
                    "lag": _lag(ends["logEndOffset"], None if offset is None else offset.offset),
                }
            )
        return rows

    def _ends(self, topic: str, partition: int) -> Row:
        log = self._logs.best(topic, partition)
        return {
            "logStartOffset": None if log is None else log.start_offset,
            "lastStableOffset": None if log is None else log.last_stable_offset,
            "highWatermark": None if log is None else log.high_watermark,
            "logEndOffset": None if log is None else log.end_offset,
        }

    def _share_offsets(self, group: ShareGroup) -> list[Row]:
        names = self._names | {topic.topic_id: topic.name for topic in group.topics}
        rows = []
        for topic_id, partition, state in self._share.get(group.group_id, []):
            topic = names.get(topic_id, str(topic_id))
            if not self._options.wants_topic(topic):
                continue
            ends = self._ends(topic, partition)
            is_known = state.start_offset >= 0 and state.delivery_complete_count >= 0
            done = state.start_offset + state.delivery_complete_count if is_known else None
            rows.append(
                {
                    "topic": topic,
                    "partition": partition,
                    "startOffset": state.start_offset if state.start_offset >= 0 else None,
                    "deliveryCompleteCount": state.delivery_complete_count if state.delivery_complete_count >= 0 else None,
                    "leaderEpoch": state.leader_epoch,
                    "stateEpoch": state.state_epoch,
                    "stateBatches": len(state.state_batches),
                    "writeTimestamp": known_time(state.write_timestamp_ms),
                    **ends,
                    "lag": _lag(ends["logEndOffset"], done),
                }
            )
        return sorted(rows, key=lambda row: (row["topic"], row["partition"]))

    # ------------------------------------------------------------------------------------------------------ members

    def member_rows(self) -> list[Row]:
        """Return a row for each member, by group and member id."""
        rows = [
            {"groupId": group_id, **self._member(group, member)}
            for state in self._states
            for group_id, group in state.groups.items()
            if self._options.wants_group(group_id)
            for member in group.members.values()
        ]
        return sorted(rows, key=lambda row: (row["groupId"], row["memberId"]))

    def _member(
        self, group: Group, member: StoredClassicMember | ConsumerGroupMember | ShareGroupMember | StreamsGroupMember
    ) -> Row:
        row: Row = {
            "memberId": member.member_id,
            "instanceId": member.instance_id,
            "clientId": member.client_id,
            "clientHost": member.client_host,
        }
        if isinstance(member, StoredClassicMember):
            is_consumer = isinstance(group, StoredClassicGroup) and group.protocol_type == CONSUMER_PROTOCOL_TYPE
            return {
                **row,
                "epoch": None,
                "state": None,
                "subscribedTopics": _subscribed(member) if is_consumer else None,
                "assignment": _assigned(member) if is_consumer else None,
            }
        return {
            **row,
            "epoch": member.member_epoch,
            "state": member.state,
            "subscribedTopics": None if isinstance(member, StreamsGroupMember) else member.subscribed_topic_names,
            "assignment": _tasks(member.assigned_tasks)
            if isinstance(member, StreamsGroupMember)
            else self._by_topic(member.assigned_partitions),
        }

    def _by_topic(self, partitions: Mapping[Uuid, Iterable[int]]) -> list[Row]:
        rows = [
            {"topic": self._names.get(topic_id, str(topic_id)), "partitions": sorted(numbers)}
            for topic_id, numbers in partitions.items()
        ]
        return sorted(rows, key=lambda row: str(row["topic"]))


def _tasks(tasks: CurrentTasks) -> list[Row]:
    return [
        {"subtopology": subtopology, "role": role, "partitions": sorted(numbers)}
        for role, found in (("active", tasks.active), ("standby", tasks.standby), ("warmup", tasks.warmup))
        for subtopology, numbers in sorted(found.items())
    ]


def _lag(end_offset: int | None, done: int | None) -> int | None:
    return None if end_offset is None or done is None else end_offset - done


def _subscribed(member: StoredClassicMember) -> list[str] | None:
    """Return the topics of a consumer's subscription, or None if it cannot be decoded."""
    try:
        return sorted(decode_consumer_protocol("ConsumerProtocolSubscription", member.subscription).topics)
    except FormatError:
        return None


def _assigned(member: StoredClassicMember) -> list[Row] | None:
    """Return the partitions of a consumer's assignment, or None if it cannot be decoded."""
    try:
        parts = decode_consumer_protocol("ConsumerProtocolAssignment", member.assignment).assigned_partitions
    except FormatError:
        return None
    return [{"topic": part.topic, "partitions": sorted(part.partitions)} for part in parts]


def transaction_rows(state: TransactionState, options: DescribeOptions) -> list[Row]:
    """Return a row for each transactional id; with globs for topics only those in a transaction with one of them."""
    rows = []
    for transactional_id, transaction in sorted(state.transactions.items()):
        partitions = [
            {"topic": topic, "partitions": numbers}
            for topic, numbers in transaction.partitions_by_topic.items()
            if options.wants_topic(topic)
        ]
        if options.topics and not partitions:
            continue
        rows.append(
            {
                "transactionalId": transactional_id,
                "state": transaction.state,
                "producerId": transaction.producer_id,
                "producerEpoch": transaction.producer_epoch,
                "previousProducerId": _known_id(transaction.previous_producer_id),
                "nextProducerId": _known_id(transaction.next_producer_id),
                "timeoutMs": transaction.timeout_ms,
                "startTimestamp": known_time(transaction.start_timestamp_ms),
                "lastUpdateTimestamp": known_time(transaction.last_update_timestamp_ms),
                "clientTransactionVersion": transaction.client_transaction_version,
                "partitions": partitions,
            }
        )
    return rows


def open_transaction_rows(surveyed: Surveyed, state: TransactionState, *, is_whole: bool) -> list[Row]:
    """Return a row for each transaction that is open in a replica; `is_whole` if all of __transaction_state is given."""
    by_producer = {transaction.producer_id: transaction for transaction in state.transactions.values()}
    return [
        _open_row(log, txn, by_producer.get(txn.producer.producer_id), is_whole)
        for log in surveyed.logs
        for txn in log.open_transactions
    ]


def _open_row(log: PartitionLog, txn: TransactionAtLogEnd, transaction: TransactionMetadata | None, is_whole: bool) -> Row:
    topic, partition = log.directory.topic, log.directory.partition
    is_awaited = transaction is not None and (topic, partition) in transaction.partitions
    return {
        "topic": topic,
        "partition": partition,
        "producerId": txn.producer.producer_id,
        "producerEpoch": txn.producer.producer_epoch,
        "firstOffset": txn.first_offset,
        "lastTimestamp": known_time(txn.producer.last_timestamp),
        "transactionalId": None if transaction is None else transaction.transactional_id,
        "coordinatorState": None if transaction is None else transaction.state,
        "isHanging": False if is_awaited else True if is_whole else None,
    }


def _known_id(producer_id: int) -> int | None:
    return producer_id if producer_id >= 0 else None
