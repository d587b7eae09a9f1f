"""The partitions that a consumer reads, and where it is in each (Kafka: SubscriptionState).

    type            set by                  the partitions come from
    --------------  ----------------------  ----------------------------------------------------------------------
    NONE            the start, unsubscribe  -
    AUTO_TOPICS     subscribe(names)        the group: `assign_from_subscribed`
    AUTO_PATTERN    subscribe_pattern       the group; the names of the topics that match: `subscribe_from_pattern`
    USER_ASSIGNED   assign(partitions)      the caller

    state of a partition  it has a position  it is fetched  left by
    --------------------  -----------------  -------------  --------------------------------------------------------
    INITIALIZING          no                 no             `seek`, the committed offset, `request_reset`
    FETCHING              yes                if not paused  `request_reset`, `maybe_validate`, `seek`
    AWAIT_RESET           no                 no             `maybe_seek` with the offset that ListOffsets found, `seek`
    AWAIT_VALIDATION      yes                no             `complete_validation` (KIP-320), `seek`

auto.offset.reset: `earliest`, `latest`, `none`, or `by_duration:` and an ISO 8601 duration (KIP-1106).

`offset_epoch` is the leader epoch of the last record before the position: with it a leader finds out whether its log was
truncated. `leader` and `leader_epoch` are the leader as the client last knew it; when they change, the position is validated.

HeldRecords are those that the iterator of a consumer has polled and not yielded yet. Their partitions have positions after
them. What an application sees and commits, and what is committed for it, is the offset of the next record that it gets:
`next_positions` has these.

    event                                        the held records
    -------------------------------------------  --------------------------------------------
    the next iteration, or poll                  are returned first
    seek, reset, or the loss of a partition      are dropped, those of this partition
    the revocation of a partition begins         are dropped, and its position is that of the first one again
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from kcli.client.cluster import NO_EPOCH, NO_LEADER, Cluster
from kcli.client.consumer.consumer_record import ConsumerRecord
from kcli.client.errors import ClientError, ConfigError, IllegalStateError
from kcli.client.value_checks import OffsetAndMetadata
from kcli.format.primitives import TopicPartition

NO_NODE = -1
EARLIEST_TIMESTAMP, LATEST_TIMESTAMP = -2, -1
# Days, hours, minutes and seconds, as java.time.Duration parses them.
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?", re.I
)


class HeldRecords:
    """The records of one poll; those before `_next` were yielded."""

    def __init__(self) -> None:
        self._records: Sequence[ConsumerRecord] = ()
        self._next = 0

    def __len__(self) -> int:
        return len(self._records) - self._next

    def put(self, records: Sequence[ConsumerRecord]) -> None:
        """Hold the records of a poll, after all earlier ones were taken."""
        self._records, self._next = records, 0

    def take(self) -> ConsumerRecord | None:
        """Return the next record, which is consumed now, or None."""
        if self._next == len(self._records):
            return None
        record = self._records[self._next]
        self._next += 1
        return record

    def take_all(self) -> list[ConsumerRecord]:
        """Return all records, which are consumed now."""
        left = list(self._records[self._next :])
        self.put(())
        return left

    def next_positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the offset of the first record of each partition, and the leader epoch of the record before it, if known."""
        if not self:
            return {}
        found: dict[TopicPartition, tuple[int, int]] = {}
        epochs = {(one.topic, one.partition): one.leader_epoch for one in self._records[: self._next]}
        for record in self._records[self._next :]:
            partition = (record.topic, record.partition)
            if partition not in found:
                found[partition] = (record.offset, epochs.get(partition, NO_EPOCH))
        return found

    def keep(self, is_kept: Callable[[TopicPartition], bool]) -> None:
        """Drop the records of other partitions."""
        if self:
            left = self._records[self._next :]
            self.put([one for one in left if is_kept((one.topic, one.partition))])

    def drop(self, partition: TopicPartition) -> None:
        """Drop the records of a partition."""
        self.keep(lambda one: one != partition)


class SubscriptionType(Enum):
    """How the partitions are chosen."""

    NONE = 0
    AUTO_TOPICS = 1
    AUTO_PATTERN = 2
    USER_ASSIGNED = 3


class FetchState(Enum):
    """What is known of the position of a partition; the module has the transitions."""

    INITIALIZING = 0
    FETCHING = 1
    AWAIT_RESET = 2
    AWAIT_VALIDATION = 3


class FetchPosition(NamedTuple):
    """Where a partition is read; the module explains the epochs."""

    offset: int
    offset_epoch: int = NO_EPOCH
    leader: int = NO_LEADER
    leader_epoch: int = NO_EPOCH


class OffsetResetStrategy(NamedTuple):
    """Where to begin without a valid position; `duration_ms` is set for `by_duration` only."""

    name: str
    duration_ms: int = 0

    def timestamp(self, wall_ms: int) -> int | None:
        """Return the timestamp for ListOffsets, None for the strategy `none`."""
        if self.name == "by_duration":
            return max(wall_ms - self.duration_ms, 0)
        return {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}.get(self.name)


EARLIEST, LATEST, NONE = OffsetResetStrategy("earliest"), OffsetResetStrategy("latest"), OffsetResetStrategy("none")


def parse_reset_strategy(text: str) -> OffsetResetStrategy:
    """Return the strategy that auto.offset.reset names. Raises ConfigError."""
    name, _, duration = text.strip().partition(":")
    if not duration and name.lower() in ("earliest", "latest", "none"):
        return OffsetResetStrategy(name.lower())
    found = _DURATION.fullmatch(duration)
    if name != "by_duration" or found is None or not any(found.groups()):
        raise ConfigError(
            f"auto.offset.reset must be earliest, latest, none or by_duration:DURATION such as by_duration:PT1H, not {text!r}"
        )
    days, hours, minutes = (int(found[part] or 0) for part in ("days", "hours", "minutes"))
    seconds = float(found["seconds"] or 0)
    return OffsetResetStrategy("by_duration", round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000))


class ConsumerRebalanceListener(Protocol):
    """What an application wants to know of changes of its assignment; it is called inside its own calls of poll and close.

    A listener of an AsyncConsumer may have coroutine methods. A listener may commit, seek, pause and read positions.
    """

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> object:
        """Take the partitions that were added, before records of them are returned."""
        ...

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> object:
        """Take the partitions that another member gets afterwards: offsets can still be committed."""
        ...

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> object:
        """Take the partitions that other members may have already: offsets cannot be committed any more."""
        ...


class LogTruncation(NamedTuple):
    """A position behind the end of the leader's log: records were lost, from `diverging_offset` on (-1: not known)."""

    partition: TopicPartition
    position: FetchPosition
    diverging_offset: int
    diverging_epoch: int


class TopicPartitionState:
    """What a consumer knows of one assigned partition."""

    __slots__ = (
        "high_watermark",
        "is_paused",
        "is_pending_revocation",
        "last_stable_offset",
        "log_start_offset",
        "next_retry_ms",
        "position",
        "preferred_replica",
        "preferred_until_ms",
        "reset_strategy",
        "state",
    )

    def __init__(self) -> None:
        self.state = FetchState.INITIALIZING
        self.position: FetchPosition | None = None
        self.high_watermark: int | None = None
        self.log_start_offset: int | None = None
        self.last_stable_offset: int | None = None
        self.is_paused = False
        self.is_pending_revocation = False  # its records are returned no longer, and it is not fetched
        self.reset_strategy: OffsetResetStrategy | None = None
        self.next_retry_ms: int | None = None
        self.preferred_replica = NO_NODE  # KIP-392
        self.preferred_until_ms = 0

    @property
    def is_fetchable(self) -> bool:
        """Whether records of the partition may be fetched and returned."""
        return not self.is_paused and not self.is_pending_revocation and self.state is FetchState.FETCHING

    def put(self, state: FetchState, position: FetchPosition | None) -> None:
        """Enter a state with the position that it has."""
        self.state = state
        self.position = position
        self.next_retry_ms = None
        if state is not FetchState.AWAIT_RESET:
            self.reset_strategy = None


# Called after the assigned partitions changed, with the new set.
AssignmentListener = Callable[[frozenset[TopicPartition]], None]


class SubscriptionState:
    """The subscription and the assigned partitions of one consumer; `default_strategy` is auto.offset.reset.

    `held` are records before the positions that the application has not got yet.
    """

    def __init__(self, default_strategy: OffsetResetStrategy) -> None:
        self.default_strategy = default_strategy
        self.type = SubscriptionType.NONE
        self.listener: ConsumerRebalanceListener | None = None
        self.pattern: str | None = None
        self.held = HeldRecords()
        self.assignment_count = 0  # counts the changes of the assignment
        self._subscription: frozenset[str] = frozenset()
        self._group_subscription: frozenset[str] = frozenset()
        self._states: dict[TopicPartition, TopicPartitionState] = {}
        self._assignment_listeners: list[AssignmentListener] = []

    # ---------------------------------------------------------------------------------------------------- subscriptions

    def _set_type(self, wanted: SubscriptionType) -> None:
        if self.type not in (SubscriptionType.NONE, wanted):
            raise IllegalStateError(
                "subscriptions to topics, to a pattern and assigned partitions exclude each other: call unsubscribe first"
            )
        self.type = wanted

    def subscribe(self, topics: Iterable[str], listener: ConsumerRebalanceListener | None = None) -> bool:
        """Subscribe to topics by name; return whether the subscription changed. Raises IllegalStateError."""
        self._set_type(SubscriptionType.AUTO_TOPICS)
        self.listener = listener
        return self._change_subscription(frozenset(topics))

    def subscribe_pattern(self, pattern: str, listener: ConsumerRebalanceListener | None = None) -> None:
        """Subscribe to the topics whose whole names match a regular expression. Raises IllegalStateError."""
        self._set_type(SubscriptionType.AUTO_PATTERN)
        self.listener = listener
        self.pattern = pattern

    def subscribe_from_pattern(self, topics: Iterable[str]) -> bool:
        """Take the topics that match the pattern now; return whether they changed."""
        return self._change_subscription(frozenset(topics))

    def _change_subscription(self, topics: frozenset[str]) -> bool:
        if topics == self._subscription:
            return False
        self._subscription = topics
        self._group_subscription = self._group_subscription | topics if self._is_auto else topics
        return True

    def group_subscribe(self, topics: Iterable[str]) -> bool:
        """Add the topics of other members, whose metadata the leader of a classic group needs; return whether any is new."""
        before = self._group_subscription
        self._group_subscription = before | frozenset(topics)
        return self._group_subscription != before

    def reset_group_subscription(self) -> None:
        """Forget the topics of other members."""
        self._group_subscription = self._subscription

    def unsubscribe(self) -> None:
        """Forget the subscription and all partitions."""
        self.type = SubscriptionType.NONE
        self.listener = self.pattern = None
        self._subscription = self._group_subscription = frozenset()
        self._assign({})

    @property
    def _is_auto(self) -> bool:
        return self.type in (SubscriptionType.AUTO_TOPICS, SubscriptionType.AUTO_PATTERN)

    @property
    def has_auto_assigned_partitions(self) -> bool:
        """Whether a group assigns the partitions."""
        return self._is_auto

    @property
    def subscription(self) -> frozenset[str]:
        """The subscribed topics; those of a pattern are known after the metadata came."""
        return self._subscription

    @property
    def metadata_topics(self) -> frozenset[str]:
        """The topics whose metadata are needed."""
        if self.type is SubscriptionType.USER_ASSIGNED:
            return frozenset(topic for topic, _ in self._states)
        return self._group_subscription | self._subscription

    # ------------------------------------------------------------------------------------------------------- assignment

    def add_assignment_listener(self, listener: AssignmentListener) -> None:
        """Have a function called after each change of the assigned partitions."""
        self._assignment_listeners.append(listener)

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> bool:
        """Take the partitions that the caller assigns; return whether they changed. Raises IllegalStateError."""
        self._set_type(SubscriptionType.USER_ASSIGNED)
        return self._assign(dict.fromkeys(partitions))

    def assign_from_subscribed(self, partitions: Iterable[TopicPartition]) -> bool:
        """Take the partitions that the group assigns; return whether they changed. Raises IllegalStateError.

        Partitions that were assigned before keep their state.
        """
        if not self._is_auto:
            raise IllegalStateError("a group assigned partitions to a consumer that is not subscribed")
        return self._assign(dict.fromkeys(sorted(partitions)))  # a set has no order that a seed repeats

    def _assign(self, partitions: Mapping[TopicPartition, object]) -> bool:
        if partitions.keys() == self._states.keys():
            return False
        self._states = {one: self._states.get(one) or TopicPartitionState() for one in partitions}
        self.held.keep(self._states.__contains__)
        self.assignment_count += 1
        assigned = self.assigned_partitions
        for listener in self._assignment_listeners:
            listener(assigned)
        return True

    @property
    def assigned_partitions(self) -> frozenset[TopicPartition]:
        """The assigned partitions."""
        return frozenset(self._states)

    def is_assigned(self, partition: TopicPartition) -> bool:
        """Return whether a partition is assigned."""
        return partition in self._states

    def state_of(self, partition: TopicPartition) -> TopicPartitionState:
        """Return the state of an assigned partition. Raises IllegalStateError for another one."""
        found = self._states.get(partition)
        if found is None:
            raise IllegalStateError(f"{partition[0]}-{partition[1]} is not assigned to this consumer")
        return found

    def is_kept(self, partition: TopicPartition) -> bool:
        """Return whether a partition is assigned and will not be revoked."""
        state = self._states.get(partition)
        return state is not None and not state.is_pending_revocation

    def find(self, partition: TopicPartition) -> TopicPartitionState | None:
        """Return the state of a partition, None if it is not assigned."""
        return self._states.get(partition)

    def mark_pending_revocation(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching and returning records of partitions that will be revoked; their next owner gets the held ones."""
        wanted = list(partitions)
        for partition in wanted:
            self.state_of(partition).is_pending_revocation = True
        self.give_back(wanted)

    # -------------------------------------------------------------------------------------------------------- positions

    def position(self, partition: TopicPartition) -> FetchPosition | None:
        """Return the position of an assigned partition, None if it has none. Raises IllegalStateError."""
        state = self.state_of(partition)
        has_position = state.state in (FetchState.FETCHING, FetchState.AWAIT_VALIDATION)
        return state.position if has_position else None

    def seek(self, partition: TopicPartition, position: FetchPosition) -> None:
        """Set a position; the next fetch uses it, or `maybe_validate` first. Raises IllegalStateError."""
        self.state_of(partition).put(FetchState.FETCHING, position)

    def advance(self, partition: TopicPartition, offset: int, offset_epoch: int) -> None:
        """Take the position after records that were returned. Raises IllegalStateError."""
        state = self.state_of(partition)
        if state.position is not None:
            state.position = state.position._replace(offset=offset, offset_epoch=offset_epoch)

    @property
    def has_pending_revocations(self) -> bool:
        """Whether partitions will be revoked."""
        return any(state.is_pending_revocation for state in self._states.values())

    def give_back(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Go back to the first held record of partitions, and drop these records; return the partitions that had some."""
        places = self.held.next_positions()
        found = []
        for partition in partitions:
            state = self._states.get(partition)
            if partition in places and state is not None and state.position is not None:
                offset, epoch = places[partition]
                state.position = state.position._replace(offset=offset, offset_epoch=epoch)
                found.append(partition)
            self.held.drop(partition)
        return found

    def all_consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit of all partitions with a position: those of the next records for the application."""
        found = {
            partition: OffsetAndMetadata(state.position.offset, state.position.offset_epoch)
            for partition, state in self._states.items()
            if state.position is not None and state.state in (FetchState.FETCHING, FetchState.AWAIT_VALIDATION)
        }
        held = self.held.next_positions()
        return found | {partition: OffsetAndMetadata(*held[partition]) for partition in held if partition in found}

    def consumed_offset(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next record for the application, None without a position. Raises IllegalStateError."""
        position = self.position(partition)
        if position is None:
            return None
        held = self.held.next_positions().get(partition)
        return position.offset if held is None else held[0]

    def partitions_in(self, wanted: FetchState) -> list[TopicPartition]:
        """Return the assigned partitions in a state, in the order of the assignment."""
        return [partition for partition, state in self._states.items() if state.state is wanted]

    def request_reset(self, partition: TopicPartition, strategy: OffsetResetStrategy | None = None) -> None:
        """Have the position found by a strategy, auto.offset.reset by default. Raises IllegalStateError."""
        state = self.state_of(partition)
        state.put(FetchState.AWAIT_RESET, None)
        state.reset_strategy = strategy or self.default_strategy

    def is_reset_by(self, partition: TopicPartition, strategy: OffsetResetStrategy) -> bool:
        """Return whether a partition waits for the position that a strategy finds."""
        state = self._states.get(partition)
        return state is not None and state.state is FetchState.AWAIT_RESET and state.reset_strategy == strategy

    def maybe_seek(self, partition: TopicPartition, position: FetchPosition, strategy: OffsetResetStrategy) -> bool:
        """Take the position that a reset found, unless another one was asked for since; return whether it was taken."""
        if not self.is_reset_by(partition, strategy):
            return False
        self._states[partition].put(FetchState.FETCHING, position)
        return True

    # ------------------------------------------------------------------------------------------------ validation, KIP-320

    def maybe_validate(self, partition: TopicPartition, cluster: Cluster, may_validate: bool = True) -> None:
        """Compare the leader with the one of the position: another epoch makes a validation due, also a lower one.

        Metadata that are older are not in the cluster: a lower epoch is that of a topic that was made again. A position without
        an epoch of its record, or a broker without the API (`may_validate`), cannot be validated.
        """
        state = self._states.get(partition)
        known = cluster.partition(*partition)
        if state is None or known is None or state.position is None or known.leader == NO_LEADER:
            return
        position = state.position
        if (position.leader, position.leader_epoch) == (known.leader, known.leader_epoch):
            return
        moved = position._replace(leader=known.leader, leader_epoch=known.leader_epoch)
        can_validate = may_validate and position.offset_epoch != NO_EPOCH and known.leader_epoch != NO_EPOCH
        state.preferred_replica = NO_NODE
        state.put(FetchState.AWAIT_VALIDATION if can_validate else FetchState.FETCHING, moved)

    def complete_validation(
        self, partition: TopicPartition, asked: FetchPosition, end_offset: int, leader_epoch: int
    ) -> LogTruncation | None:
        """Take the end offset of the leader's log for the epoch of a position; return the truncation if there is one.

        With a reset strategy other than `none`, the position goes back to the end of the common log; with `none` it stays, and
        the caller reports the truncation. An answer to an earlier position is ignored.
        """
        state = self._states.get(partition)
        if state is None or state.state is not FetchState.AWAIT_VALIDATION or state.position != asked:
            return None
        if end_offset == -1 or leader_epoch == NO_EPOCH:
            if self.default_strategy != NONE:
                self.request_reset(partition)
                return None
            return LogTruncation(partition, asked, -1, NO_EPOCH)
        if end_offset < asked.offset:
            if self.default_strategy != NONE:
                state.put(FetchState.FETCHING, asked._replace(offset=end_offset, offset_epoch=leader_epoch))
                return None
            return LogTruncation(partition, asked, end_offset, leader_epoch)
        state.put(FetchState.FETCHING, asked)
        return None

    # ---------------------------------------------------------------------------------------------------------- pausing

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch and return no more records of partitions. Raises IllegalStateError."""
        for partition in partitions:
            self.state_of(partition).is_paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`. Raises IllegalStateError."""
        for partition in partitions:
            self.state_of(partition).is_paused = False

    @property
    def paused_partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(partition for partition, state in self._states.items() if state.is_paused)

    def lag(self, partition: TopicPartition, is_read_committed: bool) -> int | None:
        """Return how many offsets are after the position of a partition, None if that is not known."""
        state = self.state_of(partition)
        end = state.last_stable_offset if is_read_committed else state.high_watermark
        return None if end is None or state.position is None else max(end - state.position.offset, 0)


class NoOffsetForPartitionError(ClientError):
    """Partitions without a position, of a consumer whose auto.offset.reset is `none`."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        self.partitions = partitions
        named = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))
        super().__init__(f"there is no committed offset for {named} and auto.offset.reset is none: seek, or set it")
