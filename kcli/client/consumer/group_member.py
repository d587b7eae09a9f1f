"""What the members of both group protocols share: coordinator, commits, automatic commits, listener calls, errors.

    automatic commit (enable.auto.commit)     when
    ----------------------------------------  ----------------------------------------------------------------------------
    each auto.commit.interval.ms              in `polled`, if no other one is under way; again after retry.backoff.ms if
                                              its error may pass
    before `assign` takes other partitions    at once, without waiting
    before partitions are revoked             waits until it succeeds, or fails for good, or the rebalance times out
    when the member is closed                 waits as long as the caller does

    an automatic commit that fails for good   is reported in a line of the log: the application did not ask for it

    max.poll.interval.ms without `polled`     the member leaves its group and joins again when `polled` is called next

    a member that has lost its partitions     `last_group_metadata` has its last generation until the next `polled`, so that a
                                              transactional producer cannot commit offsets of the lost partitions

`kcli.client.consumer.classic_membership` and `consumer_membership` are the two protocols.

The calls of a rebalance listener that a membership waits for: one at a time, in the application's own calls.

asked for               the listener                    then
----------------------  ------------------------------  -------------------------------------------------------------
`call`, no listener     is not called                   at once
`call`, with a listener is called by a shell            after `done`; an error that it raised is kept for the
                                                        application, and the membership goes on
`forget`                is not called any more          never, not even after the `done` of a call that is running
`drop_assigned`         never hears of it               never
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

from kcli.client.consumer.consumer_config import ConsumerConfig
from kcli.client.consumer.membership import (
    NO_GENERATION,
    CallbackKind,
    CloseDone,
    CloseOption,
    CommitDone,
    CommittedDone,
    GroupMetadata,
    RebalanceCallback,
)
from kcli.client.consumer.offset_commits import OffsetCommits
from kcli.client.consumer.poll_watch import PollWatch
from kcli.client.consumer.subscription_state import SubscriptionState
from kcli.client.coordinator_lookup import GROUP_KEY, CoordinatorLookup
from kcli.client.errors import ClientError, ConfigError, RebalanceListenerError
from kcli.client.network_client import NetworkClient
from kcli.client.value_checks import OffsetAndMetadata
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes

NO_MEMBER_ID = ""
# A topic that was deleted must not hold up the revocation of its partitions.
DELETED = frozenset((error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.UNKNOWN_TOPIC_ID))


Then = Callable[[int], None]


class ListenerCalls:
    """The queue of calls; `errors` are those that the listener raised."""

    def __init__(self, subscription: SubscriptionState) -> None:
        self.errors: deque[RebalanceListenerError] = deque()
        self._subscription = subscription
        self._due: deque[tuple[RebalanceCallback, Then]] = deque()
        self._running: list[tuple[RebalanceCallback, Then]] = []  # a listener that unsubscribes is called inside a call

    def __bool__(self) -> bool:
        """Return whether a call is due or running."""
        return bool(self._due or self._running)

    def call(self, kind: CallbackKind, partitions: Collection[TopicPartition], then: Then, now_ms: int) -> None:
        """Have a method of the listener called, and go on with `then(now_ms)`."""
        if self._subscription.listener is None and not self:
            then(now_ms)
            return
        self._due.append((RebalanceCallback(kind, tuple(sorted(partitions))), then))

    def next(self) -> RebalanceCallback | None:
        """Return the call that is due, None if there is none."""
        return self._due[0][0] if self._due else None

    def start(self) -> RebalanceCallback | None:
        """Return the call that is due, which begins now, None if there is none."""
        if not self._due:
            return None
        self._running.append(self._due.popleft())
        return self._running[-1][0]

    def done(self, error: BaseException | None, now_ms: int) -> None:
        """Take the end of the call that `start` returned last."""
        (kind, _), then = self._running.pop()
        if error is not None:
            wrapped = RebalanceListenerError(f"{kind.value} of the rebalance listener raised {error!r}")
            wrapped.__cause__ = error
            self.errors.append(wrapped)
        then(now_ms)

    def taken_now(self) -> frozenset[TopicPartition]:
        """Return the partitions that calls which are running or due take from the listener."""
        calls = [callback for callback, _ in (*self._running, *self._due) if callback.kind is not CallbackKind.ASSIGNED]
        return frozenset(partition for callback in calls for partition in callback.partitions)

    def forget(self) -> None:
        """Drop the calls that are due: the listener was removed. After one that is running, nothing happens."""
        self._due.clear()
        self._running = [(callback, _do_nothing) for callback, _ in self._running]

    def drop_assigned(self) -> frozenset[TopicPartition]:
        """Drop the calls for new partitions that have not begun; return these partitions."""
        dropped = [callback for callback, _ in self._due if callback.kind is CallbackKind.ASSIGNED]
        self._due = deque(one for one in self._due if one[0].kind is not CallbackKind.ASSIGNED)
        return frozenset(partition for callback in dropped for partition in callback.partitions)


def _do_nothing(now_ms: int) -> None:
    """Go on with nothing."""


class GroupMember(ABC):
    """The base of the two memberships; kcli.client.consumer.membership describes the public methods."""

    uses_epochs: bool

    def __init__(
        self, network: NetworkClient, config: ConsumerConfig, subscription: SubscriptionState, log: Callable[[str], None]
    ) -> None:
        """Raises ConfigError without a group id."""
        if not config.group_id:
            raise ConfigError("group.id is empty: a consumer needs one for its group and for commits")
        self.network = network
        self._log = log
        self.config = config
        self.subscription = subscription
        self.group_id = config.group_id
        self.instance_id = config.group_instance_id or None
        self.coordinator = CoordinatorLookup(network, GROUP_KEY, config.group_id)
        self.calls = ListenerCalls(subscription)
        self.commits = OffsetCommits(network, self.coordinator, self, config.group_id)
        self.errors: deque[ClientError] = deque()
        self.auto_commits: deque[Mapping[TopicPartition, OffsetAndMetadata]] = deque()
        self.is_closed = False
        self.watch = PollWatch(network, config.max_poll_interval_ms, self._expire_poll)
        self._next_commit_ms = network.timer.clock_ms + config.auto_commit_interval_ms
        self._is_committing = False
        self._commits_automatically = config.enable_auto_commit
        self._after_release: list[Then] | None = None  # what goes on after the listener's call for all partitions
        self._last_metadata = GroupMetadata(self.group_id, group_instance_id=self.instance_id)
        self._has_lost = False  # partitions, since the last `polled`

    # ------------------------------------------------------------------------------------------------- of the protocols

    @abstractmethod
    def commit_identity(self) -> GroupMetadata | ClientError:
        """See CommittingMember."""

    @abstractmethod
    def group_metadata(self) -> GroupMetadata:
        """See Membership."""

    @abstractmethod
    def fenced(self, error_code: int, used: GroupMetadata, now_ms: int) -> None:
        """See CommittingMember."""

    @abstractmethod
    def may_commit_again(self, used: GroupMetadata, partitions: Iterable[TopicPartition]) -> bool:
        """See CommittingMember."""

    def owns(self, partitions: Iterable[TopicPartition]) -> bool:
        """See CommittingMember."""
        return all(self.subscription.is_assigned(one) for one in partitions)

    @abstractmethod
    def _expire_poll(self, now_ms: int) -> None:
        """Leave the group because the application does not poll."""

    @abstractmethod
    def leave(self, done: CloseDone, now_ms: int, option: CloseOption = CloseOption.DEFAULT) -> None:
        """Have the listener called for all partitions and leave the group; a later subscription joins again."""

    # ---------------------------------------------------------------------------------------------------------- polling

    def note_polled(self) -> None:
        """Take note of the member as it is now: the application gets records as this member."""
        self._has_lost = False
        self._note_metadata()

    def _note_metadata(self) -> None:
        found = self.group_metadata()
        if found.generation_id != NO_GENERATION:
            self._last_metadata = found

    def last_group_metadata(self) -> GroupMetadata:
        """See Membership."""
        if not self.subscription.has_auto_assigned_partitions:
            return GroupMetadata(self.group_id, group_instance_id=self.instance_id)
        if not self._has_lost:
            self._note_metadata()
        return self._last_metadata

    def next_poll_ms(self, now_ms: int) -> int | None:
        """See Membership: a caller that blocks in poll is there, so that its time begins again often enough."""
        if self.errors or self.calls.next() is not None or self.calls.errors:
            return now_ms
        times = [self.watch.next_ms()]
        if self._commits_automatically and not self._is_committing and self.subscription.assigned_partitions:
            times.append(self._next_commit_ms)
        return max(min(times), now_ms)

    # ---------------------------------------------------------------------------------------------------------- commits

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], done: CommitDone, now_ms: int, timeout_ms: int | None = None
    ) -> None:
        """See Membership."""
        self.commits.commit(offsets, done, now_ms, timeout_ms)

    def committed(self, partitions: Collection[TopicPartition], done: CommittedDone, now_ms: int, timeout_ms: int) -> None:
        """See Membership."""
        self.commits.committed(partitions, done, now_ms, timeout_ms)

    def auto_commit(self, now_ms: int) -> None:
        """Commit the consumed offsets if it is time."""
        if self._commits_automatically and not self._is_committing and now_ms >= self._next_commit_ms:
            self._commit_consumed(now_ms)

    def assignment_changes(self, now_ms: int) -> None:
        """See Membership."""
        if self._commits_automatically:
            self._commit_consumed(now_ms)

    def disable_auto_commit(self) -> None:
        """See Membership."""
        self._commits_automatically = False

    def _commit_consumed(self, now_ms: int) -> None:
        """Commit the consumed offsets without waiting."""
        self._next_commit_ms = now_ms + self.config.auto_commit_interval_ms
        offsets = self.subscription.all_consumed()
        if not offsets:
            return
        self._is_committing = True

        def committed(error: ClientError | None, now_ms: int) -> None:
            self._is_committing = False
            if error is None:
                self.auto_commits.append(offsets)
            elif error.is_retriable:
                self._next_commit_ms = min(self._next_commit_ms, now_ms + self.network.config.retry_backoff_ms)
            else:
                self._warn(error)

        self.commits.commit(offsets, committed, now_ms)

    def _warn(self, error: ClientError) -> None:
        self._log(f"the consumed offsets of the group {self.group_id} are not committed automatically: {error}")

    def delay_auto_commit(self, now_ms: int) -> None:
        """Begin auto.commit.interval.ms again: the assignment is new."""
        self._next_commit_ms = now_ms + self.config.auto_commit_interval_ms

    def commit_before_revocation(self, partitions: Iterable[TopicPartition] | None, then: Then, now_ms: int) -> None:
        """Commit the consumed offsets of partitions, of all with None, if enable.auto.commit is set; then go on in any case."""
        offsets = self.subscription.all_consumed() if self._commits_automatically else {}
        if partitions is not None:
            wanted = frozenset(partitions)
            offsets = {one: offset for one, offset in offsets.items() if one in wanted}

        def committed(error: ClientError | None, now_ms: int) -> None:
            if error is not None:
                self._warn(error)
            elif offsets:
                self.auto_commits.append(offsets)
            then(now_ms)

        self.commits.commit(offsets, committed, now_ms, self.config.max_poll_interval_ms, DELETED)

    # --------------------------------------------------------------------------------------------------------- listener

    def next_callback(self) -> RebalanceCallback | None:
        """See Membership."""
        return self.calls.next()

    def start_callback(self) -> RebalanceCallback | None:
        """See Membership."""
        return self.calls.start()

    def callback_done(self, error: BaseException | None, now_ms: int) -> None:
        """See Membership."""
        self.calls.done(error, now_ms)

    def take_error(self) -> ClientError | None:
        """See Membership."""
        if self.errors:
            return self.errors.popleft()
        return self.take_listener_error()

    def take_listener_error(self) -> ClientError | None:
        """See Membership."""
        return self.calls.errors.popleft() if self.calls.errors else None

    def forget_calls(self) -> None:
        """Drop the calls of the listener, which was removed with the subscription."""
        self.calls.forget()
        self._after_release = None

    def lose_partitions(self) -> None:
        """Return no more records of the assigned partitions: they are other members' now. They stay until `release`.

        Those that the listener has not heard of are taken away at once.
        """
        self._has_lost = True
        if self.subscription.has_auto_assigned_partitions:
            unheard = self.calls.drop_assigned()
            self.subscription.assign_from_subscribed(self.subscription.assigned_partitions - unheard)
            self.subscription.mark_pending_revocation(self.subscription.assigned_partitions)

    def revoke(self, partitions: Collection[TopicPartition], then: Then, now_ms: int) -> None:
        """Have the listener called for some of the assigned partitions, take them away, and go on."""
        if not partitions:
            then(now_ms)
            return

        def called(now_ms: int) -> None:
            if self.subscription.has_auto_assigned_partitions:
                self.subscription.assign_from_subscribed(self.subscription.assigned_partitions.difference(partitions))
            then(now_ms)

        self.subscription.mark_pending_revocation(partitions)
        self.calls.call(CallbackKind.REVOKED, partitions, called, now_ms)

    def release(self, is_lost: bool, then: Then, now_ms: int) -> None:
        """Have the listener called for all assigned partitions, take them away, and go on."""
        if is_lost:
            self.lose_partitions()
        if self._after_release is not None and self.calls.next() is not None:
            self._after_release.append(then)  # the listener is going to be called for them
            return
        taken_now = self.calls.taken_now()
        if taken_now and self.subscription.has_auto_assigned_partitions:
            # The listener asks for this in its call for them, or a reconciliation has begun to give them back.
            self.subscription.assign_from_subscribed(self.subscription.assigned_partitions - taken_now)
        partitions = self.subscription.assigned_partitions
        if not self.subscription.has_auto_assigned_partitions or not partitions:
            then(now_ms)
            return
        goes_on = self._after_release = [then]

        def called(now_ms: int) -> None:
            self._after_release = None
            if self.subscription.has_auto_assigned_partitions:
                self.subscription.assign_from_subscribed(())
            for one in goes_on:
                one(now_ms)

        self.subscription.mark_pending_revocation(partitions)
        self.calls.call(CallbackKind.LOST if is_lost else CallbackKind.REVOKED, partitions, called, now_ms)

    # ------------------------------------------------------------------------------------------------------------- close

    def close(self, done: CloseDone, now_ms: int, option: CloseOption = CloseOption.DEFAULT) -> None:
        """See Membership."""

        def committed(now_ms: int) -> None:
            self.leave(left, now_ms, option)

        def left(error: ClientError | None, now_ms: int) -> None:
            self.is_closed = True
            self.watch.stop()
            done(error, now_ms)

        self.commit_before_revocation(None, committed, now_ms)
