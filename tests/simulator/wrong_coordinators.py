"""Wrong coordinators: each replaces one function of kcli's with one that has a fault. The simulator must find all of them.

`FAULTS` names, for each, the check that reports it, unless a client fails first, by an error that it did not expect, and the
small world in which most seeds find it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from built_in_faults import WHOLE, Fault, FaultList, SmallWorld, patched

from kcli.format.kafka_uuid import ZERO_UUID
from kcli.format.record_batch import HEADER_BYTES, NewRecordBatch, Producer, read_header
from kcli.format.records import encode_records, read_records
from kcli.log import append_paths
from kcli.log.errors import OutOfOrderSequenceError
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.server.apis import txn_markers
from kcli.server.apis.fetch import _Fetch
from kcli.server.config.group_config import ShareGroupConfig
from kcli.server.controller.producer_id_control_manager import ProducerIdControlManager
from kcli.server.coordinator.coordinator_record import EndTransaction
from kcli.server.coordinator.group import (
    assignors,
    consumer_group_change,
    current_tasks,
    streams_group_change,
)
from kcli.server.coordinator.group.classic_group import ClassicGroup
from kcli.server.coordinator.group.classic_group_manager import ClassicGroupManager
from kcli.server.coordinator.group.classic_rebalances import ClassicRebalances
from kcli.server.coordinator.group.consumer_group_manager import ConsumerGroupManager
from kcli.server.coordinator.group.group_coordinator import GroupShard
from kcli.server.coordinator.group.offset_manager import OffsetManager
from kcli.server.coordinator.group.streams_group_manager import StreamsGroupManager
from kcli.server.coordinator.group.streams_topology import _Counts
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.coordinator.runtime import CoordinatorLoader, CoordinatorRuntime
from kcli.server.coordinator.share import share_shard
from kcli.server.coordinator.share.share_shard import ShareShard
from kcli.server.coordinator.transaction import transitions
from kcli.server.coordinator.transaction.marker_channel import TransactionMarkerChannelManager
from kcli.server.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kcli.server.replication.share import acknowledgement, share_partition
from kcli.server.replication.share.in_flight import InFlightState, RecordState
from kcli.server.replication.share.in_flight_records import InFlightRecords
from kcli.server.replication.share.share_partition import NO_START_OFFSET, SharePartition
from kcli.server.replication.share.share_partition_manager import SharePartitionManager
from kcli.simulator.coordination import (
    group_member,
    node_settings,
    share_acknowledging,
    share_member,
    share_resetting,
    topic_replacing,
    transactional_producer,
    workload,
)
from kcli.state import share_group_state
from kcli.state.group_state import GroupState
from kcli.state.share_group_state import combine_batches


def answers_at_once(real: Any) -> Any:
    return lambda self, led, response, respond, **options: respond(response, self._timer.clock_ms)


def accepts_every_generation(real: Any) -> Any:
    def validate(self: Any, group_id: str, *args: Any, **kwargs: Any) -> None:
        if group_id not in self.groups:
            real(self, group_id, *args, **kwargs)

    return validate


def accepts_every_epoch_of_a_commit(real: Any) -> Any:
    return lambda self, *args: None


def never_expires(real: Any) -> Any:
    return lambda self, *args: ()


def never_removes(real: Any) -> Any:
    return lambda self, *args: Decision(None)


def forgets_a_partition(real: Any) -> Any:
    def enqueue(self: Any, ending: Any, partitions: Any) -> None:
        found = list(partitions)
        for where in found[1:]:
            ending.left.pop(where, None)
        real(self, ending, found[:1])

    return enqueue


def ignores_the_epoch(real: Any) -> Any:
    """Takes the epoch of each request for the present one."""

    def decide(entry: Any, producer: Producer, *args: Any) -> Any:
        return real(entry, producer if entry is None else Producer(producer.producer_id, entry.producer_epoch), *args)

    return decide


def commits_every_marker(real: Any) -> Any:
    return lambda self, producer_id, commit: real(self, producer_id, True)


def gives_the_first_partition_twice(real: Any) -> Any:
    def assign(members: Any, counts: Any) -> Any:
        targets = real(members, counts)
        for member in members:
            for topic_id in member.topics:
                partitions = targets[member.member_id].setdefault(topic_id, [])
                if 0 not in partitions:
                    partitions.insert(0, 0)
        return targets

    return assign


def assigns_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """To all members, while the owner does not stop that."""
    for name, assign in list(assignors.ASSIGNORS.items()):
        monkeypatch.setitem(assignors.ASSIGNORS, name, gives_the_first_partition_twice(assign))
    gives_owned_partitions(monkeypatch)


def gives_owned_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    real = consumer_group_change.next_assignment
    monkeypatch.setattr(
        consumer_group_change,
        "next_assignment",
        lambda member, target, is_owned, *args: real(member, target, lambda topic_id, index: False, *args),
    )


def counts_generations_down(real: Any) -> Any:
    def next_generation(self: Any, *args: Any) -> None:
        before = self.generation_id or 1000
        real(self, *args)
        self.generation_id = before - 1

    return next_generation


def loads_all_but_the_last(real: Any) -> Any:
    def records(self: Any, partition: Any, batch: Any, header: Any, scanner: Any) -> Iterator[Any]:
        if header.next_offset < partition.log.log_end_offset:
            yield from real(self, partition, batch, header, scanner)

    return records


def gives_the_present_epoch(real: Any) -> Any:
    def init(entry: Any, *args: Any) -> Any:
        changed = real(entry, *args)
        return changed._replace(producer_epoch=max(0, entry.producer_epoch)) if changed.state == "Empty" else changed

    return init


def allocates_the_first_block(real: Any) -> Any:
    """Of producer ids, also to a broker that has been started again."""

    def allocate(self: Any, request: Any, info: Any) -> Any:
        found = real(self, request, info)
        found.response.producer_id_start = 0
        return found

    return allocate


def aborts_nothing_late(real: Any) -> Any:
    return lambda self: iter(())


def shows_unstable_offsets(real: Any) -> Any:
    """As if OffsetFetch had not asked for stable ones."""
    return lambda self, *args: real(self, *args[:-1], False)


def reads_to_the_end(real: Any) -> Any:
    return property(lambda self: self.high_watermark)


def reads_from_elsewhere(distance: int, every: int) -> Callable[[Any], Any]:
    """Reads at this distance from the fetch offset now and then: the reader at the end must get all records."""

    def make(real: Any) -> Any:
        count = iter(range(1 << 60))

        def read_one(self: Any, target: Any, *args: Any) -> Any:
            wanted = target.partition
            asked = wanted.fetch_offset
            if next(count) % every or asked + distance < 0:
                return real(self, target, *args)
            wanted.fetch_offset = asked + distance
            answer = real(self, target, *args)
            wanted.fetch_offset = asked
            return real(self, target, *args) if answer.error_code else answer

        return read_one

    return make


def turns_aborts_into_commits(real: Any) -> Any:
    """In every third marker."""
    count = iter(range(1 << 60))

    def encode(end: EndTransaction, now_ms: int) -> bytearray:
        return real(end._replace(is_commit=True) if next(count) % 3 == 2 else end, now_ms)  # type: ignore[no-any-return]

    return encode


def aborts_committed_transactions(real: Any) -> Any:
    """Some of them, in all partitions."""

    def encode(end: EndTransaction, now_ms: int) -> bytearray:
        is_wrong = end.producer.producer_epoch % 5 == 4
        return real(end._replace(is_commit=False) if is_wrong else end, now_ms)  # type: ignore[no-any-return]

    return encode


def drops_pending_offsets(real: Any) -> Any:
    return lambda self, producer_id, commit: real(self, producer_id, False)


def appends_repeated_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    real = append_paths.check_data_batch

    def check(*args: Any, **kwargs: Any) -> None:
        with suppress(OutOfOrderSequenceError):
            real(*args, **kwargs)

    monkeypatch.setattr(append_paths, "find_duplicate", lambda entry, batch: None)
    monkeypatch.setattr(append_paths, "check_data_batch", check)


def answers_with_the_next_offset(real: Any) -> Any:
    """To producers; the coordinators check the offsets of their own appends."""

    def append(self: Any, *args: Any, **kwargs: Any) -> Any:
        info = real(self, *args, **kwargs)
        return info if self.topic.startswith("__") else info._replace(first_offset=info.first_offset + 1)

    return append


def reverses_batches(real: Any) -> Any:
    """Gives the last record of a batch the first offset."""

    def append(self: Any, records: memoryview, *args: Any, **kwargs: Any) -> Any:
        header = read_header(records)
        if not header.codec and not header.is_control and not self.topic.startswith("__"):
            rows = [*read_records(bytes(records[HEADER_BYTES : header.end_position]), header.record_count)]
            rows = [row._replace(offset_delta=at) for at, row in enumerate(reversed(rows))]
            fields = {name: getattr(header, name) for name in NewRecordBatch._fields if name != "records"}
            records[: header.end_position] = NewRecordBatch(**fields, records=encode_records(rows)).encode()
        return real(self, records, *args, **kwargs)

    return append


# ------------------------------------------------------------------------------------------------------------- share groups


def writes_nothing(real: Any) -> Any:
    return lambda self, batches, done: done(None)


def acquires_what_is_acquired(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no member had it."""
    real = InFlightState.update

    def update(self: InFlightState, state: RecordState, most_deliveries: int, member_id: str, *more: RecordState) -> bool:
        if state is RecordState.ACQUIRED and self.state is RecordState.ACQUIRED:
            self.member_id, self.delivery_count = member_id, self.delivery_count + 1
            return True
        return real(self, state, most_deliveries, member_id, *more)

    free = (RecordState.AVAILABLE, RecordState.ACQUIRED)
    monkeypatch.setattr(InFlightState, "update", update)
    monkeypatch.setattr(InFlightState, "is_acquirable", property(lambda self: not self.is_in_transition and self.state in free))
    monkeypatch.setattr(InFlightRecords, "next_fetch_offset", lambda self: self.start_offset)


def counts_one_delivery(real: Any) -> Any:
    return lambda *args: real(*args)._replace(delivery_count=1)


def restores_all_but_the_last(real: Any) -> Any:
    return lambda self, start_offset, batches: real(self, start_offset, batches[:-1])


def restores_a_later_start(real: Any) -> Any:
    """Behind the record that it should begin with."""

    def restore(self: Any, start_offset: int, batches: Any) -> None:
        after = [batch._replace(first_offset=max(batch.first_offset, start_offset + 1)) for batch in batches]
        real(self, start_offset + 1, [batch for batch in after if batch.first_offset <= batch.last_offset])

    return restore


def restores_an_earlier_start(real: Any) -> Any:
    return lambda self, start_offset, batches: real(self, max(0, start_offset - 1), batches)


def has_no_limit(real: Any) -> Any:
    return lambda self, state, most_deliveries, member_id, *more: real(self, state, 1 << 30, member_id, *more)


def archives_nothing(real: Any) -> Any:
    return lambda records, batches, transactions, acquired: list(acquired)


def is_always(value: Any) -> Callable[[Any], Any]:
    """Makes a function that returns the value for all arguments."""
    return lambda real: lambda *args: value


def writes_no_start_offset(real: Any) -> Any:
    return lambda state_epoch, leader_epoch, start_offset, *rest: real(state_epoch, leader_epoch, NO_START_OFFSET, *rest)


def is_later(delay_ms: int) -> Callable[[Any], Any]:
    return lambda real: lambda *args: real(*args) + delay_ms


def forgets_updates(real: Any) -> Any:
    """Keeps their start offsets only."""

    def updated(before: Any, value: Any) -> Any:
        found = real(before, value)
        if before is not None:
            found.state_batches = combine_batches(before.state_batches, found.start_offset)
        return found

    return updated


# ----------------------------------------------------------------------------------------------------------- streams groups


def gives_the_first_task_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """To all members, while the owner does not stop that."""
    real = streams_group_change.assign_tasks

    def assign(*args: Any) -> Any:
        targets = real(*args)
        for target in targets.values():
            tasks = target.active.setdefault("0", [])
            if 0 not in tasks:
                tasks.insert(0, 0)
        return targets

    monkeypatch.setattr(streams_group_change, "assign_tasks", assign)
    gives_unreleased_tasks(monkeypatch)


def gives_unreleased_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_tasks._Step, "_is_unreleased", lambda self, *args: False)


def forgets_the_last_task_of_repartition_topics(real: Any) -> Any:
    def configured(self: Any, part: Any) -> Any:
        found = real(self, part)
        return found._replace(task_count=found.task_count - 1) if part.repartition_source_topics else found

    return configured


# ------------------------------------------------------------------------------------- deleted topics, deleted and set offsets


def keeps_offsets(real: Any) -> Any:
    return lambda self, topic, later_id: {}


def reads_offsets_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the offsets of a deleted topic for those of the next one, and does not delete them."""
    real = OffsetManager.fetch
    monkeypatch.setattr(OffsetManager, "of_topic", keeps_offsets(None))
    monkeypatch.setattr(
        OffsetManager, "fetch", lambda self, group_id, topic, topic_id, *args: real(self, group_id, topic, ZERO_UUID, *args)
    )


def keeps_no_topic(real: Any) -> Any:
    return lambda self, group_id: lambda topic: False


def keeps_the_state_epoch(real: Any) -> Any:
    """Does not begin a new state epoch when offsets are set: a leader that does not know of that is not fenced."""

    def record(key: Any, state: Any) -> Any:
        if state is not None:
            state.state_epoch = 1
        return real(key, state)

    return record


def keeps_share_partitions(real: Any) -> Any:
    """Serves the members of a group that was empty from the share partitions of the earlier ones."""
    return lambda self, group_id: None


def keeps_the_start_offset(real: Any) -> Any:
    def initialize(self: Any, key: Any, state_epoch: int, start_offset: int) -> Any:
        before = self.state.partitions.get(key)
        return real(self, key, state_epoch, start_offset if before is None else before.start_offset)

    return initialize


def keeps_state_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ShareShard.initialize

    def initialize(self: Any, key: Any, state_epoch: int, start_offset: int) -> Any:
        before, kept = self.state.partitions.get(key), share_shard.ShareGroupOffset
        with pytest.MonkeyPatch.context() as patch:
            if before is not None:
                patch.setattr(
                    share_shard,
                    "ShareGroupOffset",
                    lambda **fields: kept(**fields | {"state_batches": combine_batches(before.state_batches, start_offset)}),
                )
            return real(self, key, state_epoch, start_offset)

    monkeypatch.setattr(ShareShard, "initialize", initialize)


# ------------------------------------------------------------------------------------------------------------------- members


def accepts_the_epoch_before(real: Any) -> Any:
    """For all partitions, not only for those that the member has had since then."""

    def check(self: Any, member: Any, epoch: int, topic: str, index: int) -> None:
        if epoch != member.member_epoch - 1:
            real(self, member, epoch, topic, index)

    return check


def accepts_fenced_members(real: Any) -> Any:
    def validate(self: Any, group_id: str, member_id: str, instance_id: str | None, *args: Any, **kwargs: Any) -> None:
        try:
            real(self, group_id, member_id, instance_id, *args, **kwargs)
        except CoordinatorError as error:
            if error.code != error_codes.FENCED_INSTANCE_ID:
                raise

    return validate


# ------------------------------------------------------------------------------------------------------------ small worlds

_RAW = (workload, "CORE_SHARES", (0.0,))  # members that send requests of their own, not those of kcli's client
_POWER = (node_settings, "POWER_LOSS_SHARE", 1.0)
_MORTAL = (group_member, "DIED_SHARE", 0.05)
_ONE_ID = (workload, "SECOND_IDS", ("tp0", "tp0"))
_RELEASING = (share_acknowledging, "_WEIGHTS", (5, 75, 5, 10, 5))  # members that release most records
# No connection of an earlier member is left when offsets are set.
_LEAVING = (
    *((share_member, name, 0.0) for name in ("HANGING_SHARE", "SILENT_SHARE", "UNNOTICED_SHARE")),
    (share_resetting, "MAX_CLOSING_MS", 6000),
)
_UNSTEADY = (
    (workload, "TRANSFORMER_COUNTS", (2, 2)),
    (transactional_producer, "PAUSED_OUTPUTS_SHARE", 0.5),
    (transactional_producer, "ABORTED_OUTPUTS_SHARE", 0.4),
    (group_member, "LEFT_SHARE", 0.05),
)

WRITERS = SmallWorld(("simple",), 2000, True)
RIVALS = SmallWorld(("simple",), 3000, True, (_ONE_ID, (transactional_producer, "PAUSED_SHARE", 0.3)))
CRASHED_WRITERS = SmallWorld(("simple",), 3000)
POWERLESS_WRITERS = SmallWorld(("simple",), 3000, False, (_POWER,))
CLASSIC = SmallWorld(("reads-1",), 3000, True, (_RAW,))
STATIC_CLASSIC = SmallWorld(("reads-1",), 3000, True, (_RAW, _MORTAL, (workload, "STATIC_SHARE", 1.0)))
MORTAL_CLASSIC = SmallWorld(("reads-1",), 3000, True, (_RAW, _MORTAL, (workload, "STATIC_SHARE", 0.0)))
CONSUMERS = SmallWorld(("reads-2",), 4000, True, (_RAW,))
MORTAL_CONSUMERS = SmallWorld(("reads-2",), 3000, True, (_RAW, _MORTAL))
STREAMS = SmallWorld(("reads-3",), 3000, True, (_MORTAL,))
PAUSING_STREAMS = SmallWorld(("reads-3",), 3000, True, ((group_member, "PAUSED_SHARE", 0.05),))
DELETED = SmallWorld(("reads-1", "reads-2", "reads-3", "deleter"), 3000, True)
REPLACED = SmallWorld(("reads-4",), 4000, True, ((topic_replacing, "MAX_LIFE_MS", 1500),))
TRANSFORMERS = SmallWorld(("maps",), 3000, True)
CRASHED_TRANSFORMERS = SmallWorld(("maps",), 3000)
UNSTEADY_TRANSFORMERS = SmallWorld(("maps",), 3000, True, _UNSTEADY)
STREAMS_TRANSFORMERS = SmallWorld(("maps",), 3000, True, ((workload, "KINDS", (workload.STREAMS_KIND,)),))
SHARERS = SmallWorld(("shares-1",), 3000, True)
CRASHED_SHARERS = SmallWorld(("shares-1",), 3000)
RELEASING_SHARERS = SmallWorld(("shares-1",), 3000, False, (_RELEASING,))
RESET_SHARERS = SmallWorld(("shares-3",), 4000, True, _LEAVING)
CALM_RESETS = SmallWorld(("shares-3",), 4000, True)
CRASHED_RESETS = SmallWorld(("shares-3",), 3000)
# The members that leave keep their connections, so the leader keeps its share partitions while offsets are set.
HANGING_SHARERS = SmallWorld(("shares-3",), 4000, True, ((share_member, "HANGING_SHARE", 1.0),))

FAULTS = {
    "answers before its records are durable": Fault(
        patched(CoordinatorRuntime, "_defer", answers_at_once), "offset_regressions", POWERLESS_WRITERS
    ),
    "accepts commits of every generation": Fault(
        patched(ClassicGroupManager, "validate_offset_commit", accepts_every_generation), "zombie_commits", CLASSIC
    ),
    "accepts commits of every member epoch": Fault(
        patched(ConsumerGroupManager, "validate_offset_commit", accepts_every_epoch_of_a_commit), "zombie_commits", CONSUMERS
    ),
    "never removes a member of a classic group": Fault(
        patched(ClassicRebalances, "_expire_member", never_expires), "unseen_writes", MORTAL_CLASSIC
    ),
    "never removes a member of a consumer group": Fault(
        patched(ConsumerGroupManager, "_expire", never_removes), "unseen_writes", MORTAL_CONSUMERS
    ),
    "writes no marker to the second partition": Fault(
        patched(TransactionMarkerChannelManager, "_enqueue", forgets_a_partition), "stuck_transactions", WRITERS
    ),
    "lets fenced producers go on": Fault(patched(transitions, "check_producer", ignores_the_epoch), "aborted_reads", RIVALS),
    "ends transactions for every epoch": Fault(patched(transitions, "end_transaction", ignores_the_epoch), world=RIVALS),
    "shows offsets of aborted transactions": Fault(
        patched(GroupState, "apply_marker", commits_every_marker), "unprocessed_inputs", TRANSFORMERS
    ),
    "shows offsets while a transaction is open": Fault(
        patched(OffsetManager, "_fetch_one", shows_unstable_offsets), "offset_regressions", UNSTEADY_TRANSFORMERS
    ),
    "drops offsets of committed transactions": Fault(
        patched(GroupState, "apply_marker", drops_pending_offsets), "unprocessed_inputs", TRANSFORMERS
    ),
    "assigns a partition to two members": Fault(assigns_twice, "two_owners", CONSUMERS),
    "assigns partitions before they are revoked": Fault(gives_owned_partitions, "zombie_commits", CONSUMERS),
    "counts the generations of a classic group down": Fault(
        patched(ClassicGroup, "next_generation", counts_generations_down), "generation_regressions", CLASSIC
    ),
    "loads all but the last batch": Fault(
        patched(CoordinatorLoader, "_records", loads_all_but_the_last), world=CRASHED_WRITERS
    ),
    "gives an epoch to two producers": Fault(patched(transitions, "init_producer_id", gives_the_present_epoch), world=WRITERS),
    "gives producer ids again after a start": Fault(
        patched(ProducerIdControlManager, "allocate_producer_ids", allocates_the_first_block),
        "repeated_epochs",
        CRASHED_WRITERS,
    ),
    "never aborts an old transaction": Fault(
        patched(TransactionCoordinator, "_abort_timed_out", aborts_nothing_late), "stuck_transactions", WRITERS
    ),
    "shows records of open transactions": Fault(
        patched(UnifiedLog, "last_stable_offset", reads_to_the_end), "precommitted_reads", CONSUMERS
    ),
    "returns batches before the fetch offset": Fault(
        patched(_Fetch, "_read_one", reads_from_elsewhere(-4, 3)), "nonmonotonic_polls", CONSUMERS
    ),
    "skips a batch after the fetch offset": Fault(
        patched(_Fetch, "_read_one", reads_from_elsewhere(4, 29)), "skipped_polls", CONSUMERS
    ),
    "writes a wrong marker": Fault(
        patched(txn_markers, "encode_marker_batch", turns_aborts_into_commits), "fractured_commits", WRITERS
    ),
    "writes abort markers of committed transactions": Fault(
        patched(txn_markers, "encode_marker_batch", aborts_committed_transactions), "lost_writes", WRITERS
    ),
    "appends a repeated batch again": Fault(appends_repeated_batches, "duplicates", WRITERS),
    "answers with a wrong offset": Fault(
        patched(UnifiedLog, "append_as_leader", answers_with_the_next_offset), "inconsistent_offsets", WRITERS
    ),
    "appends the records of a batch in another order": Fault(
        patched(UnifiedLog, "append_as_leader", reverses_batches), "nonmonotonic_sends", WRITERS
    ),
    "acknowledges without a write": Fault(
        patched(SharePartition, "_write", writes_nothing), "redelivered_records", CRASHED_SHARERS
    ),
    "never ends an acquisition lock": Fault(patched(SharePartition, "_expire", never_expires), "lost_deliveries", SHARERS),
    "acquires records that another member has": Fault(acquires_what_is_acquired, "two_holders", SHARERS),
    "does not write delivery counts": Fault(
        patched(acknowledgement, "state_batch", counts_one_delivery), "wrong_delivery_counts", RELEASING_SHARERS
    ),
    "loads all but the last state batch": Fault(
        patched(InFlightRecords, "restore", restores_all_but_the_last), "redelivered_records", CRASHED_SHARERS
    ),
    "loads a start offset that is too high": Fault(
        patched(InFlightRecords, "restore", restores_a_later_start), "lost_deliveries", CRASHED_SHARERS
    ),
    "loads a start offset that is too low": Fault(
        patched(InFlightRecords, "restore", restores_an_earlier_start), "early_deliveries", CRASHED_RESETS
    ),
    "delivers records without a limit": Fault(patched(InFlightState, "update", has_no_limit), "wrong_delivery_counts", SHARERS),
    "delivers aborted records": Fault(patched(share_partition, "archive_aborted", archives_nothing), "aborted_reads", SHARERS),
    "ends acquisition locks too early": Fault(
        patched(ShareGroupConfig, "record_lock_duration_ms", is_always(100)), "two_holders", SHARERS
    ),
    "ends acquisition locks too late": Fault(
        patched(ShareGroupConfig, "record_lock_duration_ms", is_later(14_000)), "late_expiries", SHARERS
    ),
    "does not write the start offset": Fault(
        patched(share_partition, "ShareUpdateBatches", writes_no_start_offset), "stuck_share_partitions", SHARERS
    ),
    "refuses to renew locks": Fault(
        patched(ShareGroupConfig, "is_renew_enabled", is_always(False)), "refused_holders", SHARERS
    ),
    "forgets state batches of updates": Fault(
        patched(share_group_state, "_updated", forgets_updates), "redelivered_records", CRASHED_SHARERS
    ),
    "gives a task to two members": Fault(gives_the_first_task_twice, "two_owners", STREAMS),
    "never removes a member of a streams group": Fault(
        patched(StreamsGroupManager, "_expire", never_removes), "unseen_writes", STREAMS
    ),
    "accepts commits of every streams member epoch": Fault(
        patched(StreamsGroupManager, "validate_offset_commit", accepts_every_epoch_of_a_commit),
        "zombie_commits",
        PAUSING_STREAMS,
    ),
    "forgets the last task of a repartition topic": Fault(
        patched(_Counts, "configured", forgets_the_last_task_of_repartition_topics), "unseen_writes", STREAMS_TRANSFORMERS
    ),
    "keeps offsets of deleted topics": Fault(patched(OffsetManager, "of_topic", keeps_offsets), "leftover_offsets", REPLACED),
    "takes offsets of a deleted topic for those of a new one": Fault(reads_offsets_by_name, world=REPLACED),
    "deletes offsets of topics that members read": Fault(
        patched(GroupShard, "offset_delete_check", keeps_no_topic), "deleted_read_offsets", DELETED
    ),
    "keeps the state epoch when offsets are set": Fault(
        patched(share_shard, "snapshot_record", keeps_the_state_epoch), "lost_deliveries", HANGING_SHARERS
    ),
    "keeps the share partitions of an empty group": Fault(
        patched(SharePartitionManager, "_group_empty", keeps_share_partitions), "wrong_delivery_counts", RESET_SHARERS
    ),
    "keeps the start offset when offsets are set": Fault(
        patched(ShareShard, "initialize", keeps_the_start_offset), "wrong_start_offsets", RESET_SHARERS
    ),
    "keeps state batches when offsets are set": Fault(keeps_state_batches, "lost_deliveries", CALM_RESETS),
    "accepts commits of the epoch before": Fault(
        patched(ConsumerGroupManager, "_check_assigned", accepts_the_epoch_before), "zombie_commits", CONSUMERS
    ),
    "accepts commits of fenced static members": Fault(
        patched(ClassicGroupManager, "validate_offset_commit", accepts_fenced_members), "zombie_commits", STATIC_CLASSIC
    ),
}


def simulate(seed: int, world: SmallWorld) -> str:
    """Return the failure of a seed of the workload of coordination."""
    return world.simulation(seed).run().failure


COORDINATORS = FaultList("coordination", FAULTS, simulate)
SMALL_WORLDS = list(dict.fromkeys(fault.world for fault in FAULTS.values() if fault.world != WHOLE))
