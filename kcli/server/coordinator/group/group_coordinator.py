"""The group coordinator: the groups of the partitions of __consumer_offsets that this broker leads.

    part                 does
    -------------------  -----------------------------------------------------------------------------------------------
    GroupCoordinator     finds the partition of a group, and passes operations to its shard (Kafka: GroupCoordinatorService)
    GroupShard           the groups of one partition: GroupState, what its records make; ClassicGroupManager, the live classic
                         groups; ConsumerGroupManager, StreamsGroupManager and ShareGroupManager, the groups of these protocols;
                         ClassicMembers, the members of consumer groups that use the classic protocol; OffsetManager, the
                         offsets; the periodic expiry of offsets and empty groups
    ShareGroupStates     has the persister make and delete the states of share groups

The partition of a group is the absolute value of Java's hash of its id, modulo the number of partitions of __consumer_offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import TypeVar

from kcli.format.java_text import java_hash
from kcli.format.record_batch import NO_PRODUCER_ID
from kcli.log.rng import Random
from kcli.network.peers import Peers
from kcli.network.timing_wheel import Timer, TimerTask
from kcli.protocol import error_codes
from kcli.protocol.internal_records import OFFSETS
from kcli.server.config.server_config import ConfigReader
from kcli.server.coordinator.coordinator_limit import CoordinatorLimit
from kcli.server.coordinator.coordinator_record import CoordinatorRecord, EndTransaction, ShardRecord
from kcli.server.coordinator.group.classic_group import ClassicGroupState, tombstone
from kcli.server.coordinator.group.classic_group_manager import ClassicGroupManager, Completion
from kcli.server.coordinator.group.classic_members import ClassicMembers
from kcli.server.coordinator.group.classic_messages import (
    JoinRequest,
    LeaveResult,
    LeavingMember,
    ListedGroup,
    RespondJoin,
    RespondSync,
    SyncRequest,
)
from kcli.server.coordinator.group.consumer_group_manager import ConsumerGroupManager
from kcli.server.coordinator.group.group_manager import ShardParts
from kcli.server.coordinator.group.group_migration import GroupMigration
from kcli.server.coordinator.group.metadata_hash import TopicHashes
from kcli.server.coordinator.group.offset_manager import ExpiryRule, OffsetManager, OffsetToCommit
from kcli.server.coordinator.group.share_group_manager import ShareGroupManager
from kcli.server.coordinator.group.share_states import ShareGroupStates
from kcli.server.coordinator.group.streams_group_manager import StreamsGroupManager
from kcli.server.coordinator.operation import CoordinatorError, Decision, Respond
from kcli.server.coordinator.runtime import ITEMS_OF_PART, CoordinatorRuntime
from kcli.server.log_lines import Line, WarningLine
from kcli.server.metadata_cache import MetadataCache
from kcli.server.metrics.group_metrics import GroupMetrics
from kcli.server.replication.replica_manager import ReplicaManager
from kcli.server.replication.share_persister import SharePersister
from kcli.server.scheduler import Scheduler, SliceBudget
from kcli.state.group_state import GroupState, OffsetKey
from kcli.state.groups import CommittedOffset, ConsumerGroup, ShareGroup, StoredClassicGroup, StreamsGroup
from kcli.state.metadata_values import Topic

GROUP_TOPIC = "__consumer_offsets"
MINUTE_MS = 60_000
_EXPIRY_US, _TOMBSTONE_US = 20, 40  # of one group, and of one of its offsets
_Response = TypeVar("_Response")


class GroupShard:
    """The groups of partition `index` of __consumer_offsets."""

    def __init__(
        self,
        index: int,
        runtime: CoordinatorRuntime[GroupShard],
        config: ConfigReader,
        metadata: MetadataCache,
        hashes: TopicHashes,
        timer: Timer,
        scheduler: Scheduler,
        rng: Random,
        metrics: GroupMetrics,
        report: Callable[[str], None],
        limit: CoordinatorLimit,
    ) -> None:
        self.state = GroupState()
        self.metrics = metrics
        self.index = index
        self._runtime = runtime
        self._config = config
        self._timer = timer
        self._scheduler = scheduler
        self._report = report
        self._expiry: TimerTask | None = None
        self.offsets = OffsetManager(
            self.state,
            lambda: config.get_int("offset.metadata.max.bytes"),
            lambda: config.get_int("offsets.retention.minutes") * MINUTE_MS,
        )
        parts = ShardParts(self.state, config, metadata, hashes, timer, rng, self._write, metrics, report, limit, scheduler)
        self._check_new = parts.check_new
        self.classic = ClassicGroupManager(parts)
        self.shares = ShareGroupManager(parts)
        migration = GroupMigration(parts, self.classic)
        self.consumer = ConsumerGroupManager(parts, migration)
        self.streams = StreamsGroupManager(
            parts, self._remove_classic, lambda group_id: self.classic.end(group_id, error_codes.NONE)
        )
        self._classic_members = ClassicMembers(self.consumer, migration, metadata, rng)

    def _write(self, operation: Callable[[], Decision[_Response]], respond: Respond[_Response]) -> None:
        self._runtime.write(self.index, lambda shard: operation(), respond)

    def apply(self, record: ShardRecord, offset: int) -> None:
        """Apply a record of the partition. Raises StateError."""
        if isinstance(record, EndTransaction):
            self.state.apply_marker(record.producer.producer_id, record.is_commit)
        else:
            self.state.apply(record.key, record.value, offset, record.producer_id)

    def loaded(self, now_ms: int) -> None:
        """Begin to coordinate the groups."""
        self.classic.loaded(now_ms)
        self.consumer.loaded()
        self.shares.loaded()
        self.streams.loaded()
        self._schedule_expiry(now_ms)

    def unloaded(self) -> None:
        """Cancel timers and answer the members that wait."""
        if self._expiry is not None:
            self._expiry.cancel()
        self.classic.unloaded()
        self.consumer.unloaded()
        self.shares.unloaded()
        self.streams.unloaded()

    # ---------------------------------------------------------------------------------------------------------- groups

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """Return the group if it is one of the consumer protocol."""
        group = self.state.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def streams_group(self, group_id: str) -> StreamsGroup | None:
        """Return the group if it is a streams group."""
        group = self.state.groups.get(group_id)
        return group if isinstance(group, StreamsGroup) else None

    def validate_member_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        version: int | None,
        partitions: Iterable[tuple[str, int]],
    ) -> bool:
        """Return False for a group without member epochs, otherwise check that a member may commit offsets of partitions.

        `version` is that of OffsetCommit, None in a transaction. Raises CoordinatorError.
        """
        group = self.state.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            self.consumer.validate_offset_commit(group, member_id, instance_id, epoch, version, partitions)
        elif isinstance(group, StreamsGroup):
            self.streams.validate_offset_commit(group, member_id, instance_id, epoch, version, partitions)
        else:
            return False
        return True

    def offset_delete_check(self, group_id: str) -> Callable[[str], bool]:
        """Return a function: whether a topic's offsets must be kept, because the group reads it. Raises CoordinatorError."""
        group = self.state.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return self.consumer.subscribed_topics(group).__contains__
        if isinstance(group, StreamsGroup):
            return self.streams.subscribed_topics(group).__contains__
        return self.classic.validate_offset_delete(group_id)

    def _remove_classic(self, group_id: str) -> Sequence[CoordinatorRecord]:
        """Return the records that remove an empty classic group, so that a streams group can have its id and offsets.

        The caller ends the classic group when it has decided the operation. Raises CoordinatorError.
        """
        try:
            self.classic.delete_check(group_id)
        except CoordinatorError as error:
            text = f"Group {group_id} is not a streams group."
            raise CoordinatorError(error_codes.GROUP_ID_NOT_FOUND, text) from error
        return (tombstone(group_id),)

    def join(self, request: JoinRequest, respond: RespondJoin) -> Decision[Completion | None]:
        """Let a client of the classic protocol join a group; an empty consumer or streams group is removed."""
        group = self.consumer_group(request.group_id) or self.streams_group(request.group_id)
        if group is None or self.classic.check_join(request) or (not group.members and request.member_id):
            return self.classic.join(request, respond)
        if group.members:
            if isinstance(group, ConsumerGroup):
                return self._classic_members.join(group, request, respond)
            return self.classic.join(request, respond)
        tombstones = self._remove_records(request.group_id)
        decision = self.classic.join(request, respond)
        return decision._replace(records=(*tombstones, *decision.records))

    def sync(self, request: SyncRequest, respond: RespondSync) -> Decision[Completion | None]:
        """Give a member of the classic protocol its assignment when the group has it."""
        group = self.consumer_group(request.group_id)
        if group is None or not group.members:
            return self.classic.sync(request, respond)
        return self._classic_members.sync(group, request, respond)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation_id: int) -> int:
        """Return 0, or REBALANCE_IN_PROGRESS if a member of the classic protocol has to join. Raises CoordinatorError."""
        group = self.consumer_group(group_id)
        if group is None:
            return self.classic.heartbeat(group_id, member_id, instance_id, generation_id)
        return self._classic_members.heartbeat(group, member_id, instance_id, generation_id)

    def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> Decision[list[LeaveResult]]:
        """Remove members of a group of either protocol. Raises CoordinatorError."""
        group = self.consumer_group(group_id)
        return self.classic.leave(group_id, leaving) if group is None else self.consumer.remove_members(group, leaving)

    def _remove_records(self, group_id: str) -> list[CoordinatorRecord]:
        """Return the records that remove a group, which must be empty. Raises CoordinatorError."""
        records = self._removal(group_id)
        self.classic.discard_unwritten(group_id)
        return records

    def _removal(self, group_id: str) -> list[CoordinatorRecord]:
        group = self.consumer_group(group_id)
        if group is not None:
            return list(self.consumer.delete(group))
        if isinstance(self.state.groups.get(group_id), ShareGroup):
            return list(self.shares.delete(group_id))
        streams_group = self.streams_group(group_id)
        if streams_group is not None:
            return list(self.streams.delete(streams_group))
        self.classic.delete_check(group_id)
        return [self.classic.delete(group_id)]

    # --------------------------------------------------------------------------------------------------------- offsets

    def commit_offsets(
        self, group_id: str, commits: Sequence[OffsetToCommit], retention_ms: int, producer_id: int = NO_PRODUCER_ID
    ) -> Decision[list[int]]:
        """Decide a commit whose member is valid; the response has an error code for each partition. Raises CoordinatorError."""
        self._check_new(group_id)
        now_ms = self._timer.wall.at(self._timer.clock_ms)
        codes, records = self.offsets.commit(group_id, commits, retention_ms, now_ms, producer_id)
        self.metrics.offset_commits += len(records)
        if not records and group_id not in self.state.groups:
            self.classic.add_unwritten(group_id)
        return Decision(codes, records)

    def delete_group(self, group_id: str) -> Decision[int]:
        """Decide the deletion of a group and its offsets; the response is an error code."""
        try:
            removed = self._remove_records(group_id)
        except CoordinatorError as error:
            return Decision(error.code)
        return Decision(error_codes.NONE, [*self.offsets.delete_all(group_id), *removed])

    def list_groups(self) -> list[ListedGroup]:
        """Return all groups of the partition, also those whose records are not committed yet."""
        return [
            *self.classic.list(),
            *(
                ListedGroup(group.group_id, group.kind, group.state, group.kind)
                for group in self.state.groups.values()
                if not isinstance(group, StoredClassicGroup)
            ),
        ]

    def _schedule_expiry(self, now_ms: int) -> None:
        interval_ms = self._config.get_int("offsets.retention.check.interval.ms")
        self._expiry = self._timer.schedule(now_ms + interval_ms, self._expire)

    def _expire(self, now_ms: int) -> None:
        """Delete expired offsets, and groups that have neither members nor offsets."""
        self.classic.discard_unwritten()
        self._scheduler.run(self._expire_all(), now_ms)
        self._schedule_expiry(now_ms)

    def _expire_all(self) -> Iterator[None]:
        """Write for one group at a time; yield after each time slice."""
        budget = SliceBudget()
        for group_id in dict.fromkeys((*self.state.offsets_by_group, *self.state.groups)):
            counts = [ITEMS_OF_PART]
            while counts[-1] == ITEMS_OF_PART:
                counts.append(0)
                self._write(partial(self._expire_group, group_id, counts), _ignore)
                if budget.is_spent(_EXPIRY_US + _TOMBSTONE_US * counts[-1]):
                    yield

    def _expire_group(self, group_id: str, counts: list[int]) -> Decision[None]:
        """Delete expired offsets, and the group if it has no others; the last of `counts` becomes the number of offsets."""
        now_ms = self._timer.wall.at(self._timer.clock_ms)
        rule = self._expiry_rule(group_id)
        records, is_without_offsets = self.offsets.expire(group_id, rule, now_ms, ITEMS_OF_PART)
        counts[-1] = len(records)
        self.metrics.offset_expirations += len(records)
        try:
            if is_without_offsets and not isinstance(self.state.groups.get(group_id), ShareGroup):
                records += self._remove_records(group_id)
        except CoordinatorError:
            pass  # the group has members, or is one without a record
        return Decision(None, records, is_atomic=False)

    def _expiry_rule(self, group_id: str) -> ExpiryRule | None:
        consumer_group = self.consumer_group(group_id)
        if consumer_group is not None:
            return ExpiryRule(self.consumer.subscribed_topics(consumer_group))
        streams_group = self.streams_group(group_id)
        if streams_group is not None:
            return ExpiryRule(self.streams.subscribed_topics(streams_group))
        try:
            group = self.classic.find(group_id)
        except CoordinatorError:
            return None
        is_empty = group.state is ClassicGroupState.EMPTY
        return ExpiryRule(frozenset() if is_empty else group.subscribed_topics or frozenset(), group.offset_expiry_base_ms)


class GroupCoordinator:
    """The group coordinator of one broker. `listener` is the listener that brokers use for each other.

    `report` writes a line of the node's log.
    """

    def __init__(
        self,
        config: ConfigReader,
        metadata: MetadataCache,
        replica_manager: ReplicaManager,
        timer: Timer,
        scheduler: Scheduler,
        rng: Random,
        persister: SharePersister,
        peers: Peers,
        listener: str,
        report: Callable[[str], None],
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._report = report
        self.metrics = metrics = GroupMetrics()
        hashes = TopicHashes(metadata)
        limit = CoordinatorLimit("kcli.max.groups", error_codes.POLICY_VIOLATION, self.group_count, config, timer, report)
        self.runtime = CoordinatorRuntime[GroupShard](
            OFFSETS,
            lambda index: GroupShard(
                index, self.runtime, config, metadata, hashes, timer, scheduler, rng, metrics, report, limit
            ),
            replica_manager,
            timer,
            scheduler,
            report,
            linger_ms=config.get_int("group.coordinator.append.linger.ms"),
            write_timeout_ms=config.get_int("offsets.commit.timeout.ms"),
            codec=config.get_int("offsets.topic.compression.codec"),
        )
        self.share_states = ShareGroupStates(persister, metadata, config, peers, listener, timer, self._write_shares, report)

    def group_count(self) -> int:
        """Return the number of groups in the partitions that are loaded."""
        return sum(len(shard.state.groups) for shard in self.runtime.shards())

    def partition_for(self, group_id: str) -> int:
        """Return the partition of __consumer_offsets that has a group."""
        topic = self._metadata.image.topic(GROUP_TOPIC)
        count = self._config.get_int("offsets.topic.num.partitions") if topic is None else len(topic.partitions)
        return coordinator_partition(group_id, count)

    def write(self, group_id: str, operation: Callable[[GroupShard], Decision[_Response]], respond: Respond[_Response]) -> None:
        """Execute an operation on the shard of a group; see CoordinatorRuntime.write."""
        self.runtime.write(self.partition_for(group_id), operation, respond)

    def _write_shares(
        self, group_id: str, operation: Callable[[ShareGroupManager], Decision[_Response]], respond: Respond[_Response]
    ) -> None:
        self.write(group_id, lambda shard: operation(shard.shares), respond)

    def delete_group(self, group_id: str, respond: Callable[[int], None]) -> None:
        """Delete a group and its offsets, or the states of a share group; respond with an error code when it is done."""

        def deleted(code: int | CoordinatorError, now_ms: int) -> None:
            respond(code.code if isinstance(code, CoordinatorError) else code)

        def states_deleted(code: int) -> None:
            if code:
                respond(code)
            else:
                self.write(group_id, lambda shard: shard.delete_group(group_id), deleted)

        self.share_states.delete_group(group_id, states_deleted)

    def topic_removed(self, topic: Topic) -> None:
        """Delete the committed offsets of a topic that is deleted; unload the groups if it is __consumer_offsets."""
        if topic.name == GROUP_TOPIC:
            self.runtime.close()
            return
        for shard in self.runtime.shards():
            removed = shard.shares.topics_removed((topic.topic_id,))
            if removed:
                self.runtime.write(shard.index, partial(_decide_records, removed), self._log_failure)
            found = shard.offsets.of_topic(topic.name, self._metadata.image.topic_ids.get(topic.name))
            deleted = self._log_deletion(topic.name, -(-len(found) // ITEMS_OF_PART))
            self.runtime.write_in_parts(shard.index, list(found.items()), _decide_deletion, deleted)

    def _log_failure(self, response: int | CoordinatorError, now_ms: int) -> None:
        if isinstance(response, CoordinatorError):
            self._report(WarningLine(f"cannot write that a topic is deleted: {response.message}", error=response.message))

    def _log_deletion(self, topic: str, part_count: int) -> Respond[int]:
        """Return what takes the responses of the parts, and logs how many offsets are deleted after the last one."""
        counts: list[int] = []

        def deleted(response: int | CoordinatorError, now_ms: int) -> None:
            self._log_failure(response, now_ms)
            counts.append(0 if isinstance(response, CoordinatorError) else response)
            count = sum(counts) if len(counts) == part_count else 0
            if count:
                text = f"{count} committed offsets of deleted topic {topic} are deleted"
                self._report(Line(text, count=count, topic=topic))

        return deleted


def _decide_deletion(shard: GroupShard, found: Sequence[tuple[OffsetKey, CommittedOffset | None]]) -> Decision[int]:
    records = shard.offsets.delete_unchanged(found)
    return Decision(len(records), records, is_atomic=False)


def _decide_records(records: Sequence[CoordinatorRecord], shard: GroupShard) -> Decision[int]:
    return Decision(len(records), records)


def _ignore(response: CoordinatorError | None, now_ms: int) -> None:
    """Do nothing: the next expiry finds what this one could not write."""


@lru_cache(maxsize=4096)  # each request of a member needs it; Java's hash of a short id takes 2 us
def coordinator_partition(key: str, partition_count: int) -> int:
    """Return the partition of a coordinator's topic that has a key: Java's hash of the key, its sign removed."""
    found = java_hash(key)
    return 0 if found == -(1 << 31) else abs(found) % partition_count
