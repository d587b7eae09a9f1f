"""What the core of a consumer calls of its group: the interface to the two group protocols, classic and consumer (KIP-848).

    the consumer                          calls
    ------------------------------------  ---------------------------------------------------------------------------
    after each event and call             `poll`
    at the start of the caller's poll     `polled`: the time of max.poll.interval.ms begins again. Only here a
                                          revocation may begin and consumed offsets may be committed automatically:
                                          the caller is done with the records that poll returned before
    after subscribe, unsubscribe          `subscription_changed`; the SubscriptionState has the new subscription
    before unsubscribe                    `leave`
    before `assign` of other partitions   `assignment_changes`
    before it fetches                     `is_ready_to_fetch`
    inside the caller's poll and close    `start_callback`, the listener's method, `callback_done`, as long as there is one
    for partitions without a position     `committed`

The listener of an application (SubscriptionState.listener) is called by the shells only, in the caller's thread or task; the
membership asks for a call by `start_callback` and goes on after `callback_done`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import NamedTuple, Protocol

from kcli.client.errors import ClientError
from kcli.client.value_checks import OffsetAndMetadata
from kcli.format.primitives import TopicPartition

# Get the result of an operation, or its error, once, and the time.
CommitDone = Callable[[ClientError | None, int], None]
CommittedDone = Callable[[dict[TopicPartition, OffsetAndMetadata | None] | ClientError, int], None]
CloseDone = Callable[[ClientError | None, int], None]

NO_GENERATION = -1


class GroupMetadata(NamedTuple):
    """What a transactional producer sends of a consumer (Kafka: ConsumerGroupMetadata).

    `generation_id` is the member epoch in the consumer protocol.
    """

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str | None = None


class CallbackKind(Enum):
    """A method of the listener."""

    ASSIGNED = "on_partitions_assigned"
    REVOKED = "on_partitions_revoked"
    LOST = "on_partitions_lost"


class RebalanceCallback(NamedTuple):
    """A call of the listener that is due."""

    kind: CallbackKind
    partitions: Collection[TopicPartition]


class CloseOption(Enum):
    """What a member does with its group when it is closed (KIP-1092)."""

    DEFAULT = "default"  # a static member remains, a dynamic one leaves
    LEAVE_GROUP = "leave"
    REMAIN_IN_GROUP = "remain"


class Membership(Protocol):
    """One member of a group, or a consumer that only commits offsets with a group id.

    `auto_commits` has the offsets that were committed automatically, until the shell takes them for the interceptors.
    """

    auto_commits: deque[Mapping[TopicPartition, OffsetAndMetadata]]

    @property
    def is_ready_to_fetch(self) -> bool:
        """Whether the assignment is settled: positions may be looked up, records be fetched and returned."""
        ...

    def poll(self, now_ms: int) -> None:
        """Do what is due: find the coordinator, heartbeats, joins, commits."""
        ...

    def polled(self, now_ms: int) -> None:
        """Take a call of the application's poll, before records are returned."""
        ...

    def next_poll_ms(self, now_ms: int) -> int | None:
        """Return when `polled` has something to do, such as a commit; None if nothing is planned."""
        ...

    def subscription_changed(self, now_ms: int) -> None:
        """Take a new subscription; after `unsubscribe` the member leaves the group."""
        ...

    def assignment_changes(self, now_ms: int) -> None:
        """Commit the consumed offsets, if enable.auto.commit is set, before the application assigns other partitions."""
        ...

    def disable_auto_commit(self) -> None:
        """Commit nothing automatically any more: the application has failed in the middle of its work."""
        ...

    def enforce_rebalance(self, reason: str, now_ms: int) -> None:
        """Have the group assigned anew (a classic group; otherwise without effect)."""
        ...

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], done: CommitDone, now_ms: int, timeout_ms: int | None = None
    ) -> None:
        """Commit offsets, retrying errors that may pass; without `timeout_ms` once (Kafka: commitAsync)."""
        ...

    def committed(self, partitions: Collection[TopicPartition], done: CommittedDone, now_ms: int, timeout_ms: int) -> None:
        """Return the committed offset of each partition, None where there is none."""
        ...

    def group_metadata(self) -> GroupMetadata:
        """Return the member as it is known to the group, without a generation if it is not."""
        ...

    def last_group_metadata(self) -> GroupMetadata:
        """Return what a transactional producer needs: the member that got the records of the last poll.

        If it has lost its generation since, the coordinator refuses the offsets. Without a generation it would accept them,
        although another member may have the partitions.
        """
        ...

    def next_callback(self) -> RebalanceCallback | None:
        """Return the call of the listener that is due, None if there is none; it stays due until it starts."""
        ...

    def start_callback(self) -> RebalanceCallback | None:
        """Return the call of the listener that is due and begins now, None if there is none."""
        ...

    def callback_done(self, error: BaseException | None, now_ms: int) -> None:
        """Take the end of the call that began last and has not ended, with what it raised."""
        ...

    def take_error(self) -> ClientError | None:
        """Return an error that the application must see at its next poll, such as a refused authorization, once."""
        ...

    def take_listener_error(self) -> ClientError | None:
        """Return what the listener raised, once; `take_error` returns it, too."""
        ...

    def leave(self, done: CloseDone, now_ms: int, option: CloseOption = CloseOption.DEFAULT) -> None:
        """Have the listener called for all partitions and leave the group; a later subscription joins again."""
        ...

    def close(self, done: CloseDone, now_ms: int, option: CloseOption = CloseOption.DEFAULT) -> None:
        """Commit consumed offsets if enable.auto.commit is set, have the listener called, and leave the group."""
        ...
