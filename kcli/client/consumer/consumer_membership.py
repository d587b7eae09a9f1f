"""A member of a consumer group whose coordinator assigns (KIP-848; group.protocol=consumer; Kafka: ConsumerMembershipManager).

    step of a reconciliation            when
    ----------------------------------  --------------------------------------------------------------------------------
    the names of the topic ids          as far as the metadata have them; the others are asked for, and the step repeated
    commit what is given back           in `polled`, with enable.auto.commit
    on_partitions_revoked               then, if there is something to give back
    the new assignment,                 then
    on_partitions_assigned
    the acknowledgement                 then, in a heartbeat with the partitions that the member has now

A target that comes in between is reconciled after the acknowledgement. kcli.client.consumer.epoch_member has the states. A
member that is fenced, or leaves since the application does not poll, loses its partitions (on_partitions_lost).

    subscription              the heartbeat has
    ------------------------  ------------------------------------------------------------------------------------------------
    topics                    their names
    a pattern                 the regular expression (RE2), which the coordinator resolves (SubscriptionPattern), from version 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kcli.client.consumer.assigned_topics import AssignedTopics, TopicIdPartitions
from kcli.client.consumer.consumer_config import ConsumerConfig
from kcli.client.consumer.epoch_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    EpochMember,
    MemberState,
)
from kcli.client.consumer.group_member import GroupMember
from kcli.client.consumer.membership import NO_GENERATION, CallbackKind, CloseDone, CloseOption, GroupMetadata
from kcli.client.consumer.subscription_state import SubscriptionState
from kcli.client.errors import ClientError, CommitFailedError
from kcli.client.network_client import NetworkClient
from kcli.format.primitives import TopicPartition
from kcli.protocol.apis import API_KEYS, CONSUMER_GROUP_HEARTBEAT
from kcli.protocol.message import Message

NOTHING_SENT = object()


class ConsumerMembership(GroupMember):
    """One member; kcli.client.consumer.membership describes the public methods."""

    uses_epochs = True
    heartbeat_api = CONSUMER_GROUP_HEARTBEAT

    def __init__(
        self, network: NetworkClient, config: ConsumerConfig, subscription: SubscriptionState, log: Callable[[str], None]
    ) -> None:
        """Raises ConfigError."""
        super().__init__(network, config, subscription, log)
        self.member = EpochMember(network, self.coordinator, self)
        self._topics = AssignedTopics(network, self._topics_known)
        self._target: TopicIdPartitions | None = None
        self._owned: TopicIdPartitions = {}  # what was acknowledged last
        self._is_reconciling = False
        self._reconciliations = 0
        self._is_reconcile_due = False
        self._sent_subscription: object = NOTHING_SENT
        self._sent_owned: TopicIdPartitions | None = None
        self._fatal: ClientError | None = None

    # ---------------------------------------------------------------------------------------------------- the interface

    @property
    def is_ready_to_fetch(self) -> bool:
        """See Membership."""
        return not self.calls

    def poll(self, now_ms: int) -> None:
        """See Membership: everything happens by timers and answers."""

    def polled(self, now_ms: int) -> None:
        """See Membership."""
        self.watch.polled(now_ms)
        self.note_polled()
        if self.member.state is MemberState.STALE and not self.calls:
            self.release(True, self._rejoin, now_ms)
        if self._is_reconcile_due:
            self._reconcile(now_ms)
        self.auto_commit(now_ms)

    def next_poll_ms(self, now_ms: int) -> int | None:
        """See Membership."""
        is_due = self._is_reconcile_due or self.member.state is MemberState.STALE
        return now_ms if is_due and not self.calls else super().next_poll_ms(now_ms)

    def subscription_changed(self, now_ms: int) -> None:
        """See Membership."""
        if self.subscription.has_auto_assigned_partitions:
            if self.member.state is MemberState.UNSUBSCRIBED:
                self.watch.polled(now_ms)
                self._join(now_ms)
            else:
                self.member.send_soon(now_ms)
        elif self.member.is_active:
            self.forget_calls()
            self.leave(lambda error, now_ms: None, now_ms)

    def enforce_rebalance(self, reason: str, now_ms: int) -> None:
        """See Membership: only the coordinator decides."""

    def group_metadata(self) -> GroupMetadata:
        """See Membership."""
        epoch = self.member.epoch if self.member.epoch > 0 else NO_GENERATION
        return GroupMetadata(self.group_id, epoch, self.member.member_id, self.instance_id)

    def take_error(self) -> ClientError | None:
        """See Membership; an error that stays is reported by each call."""
        return super().take_error() or self._fatal

    # ---------------------------------------------------------------------------------------------------------- commits

    def commit_identity(self) -> GroupMetadata | ClientError:
        """See CommittingMember."""
        if not self.subscription.has_auto_assigned_partitions:
            return GroupMetadata(self.group_id, group_instance_id=self.instance_id)
        if self.member.epoch <= 0:
            return CommitFailedError("offsets are not committed: the member is not in its group; poll first")
        return self.group_metadata()

    def fenced(self, error_code: int, used: GroupMetadata, now_ms: int) -> None:
        """See CommittingMember: the next heartbeat gets the same error."""
        self.member.send_soon(now_ms)

    def may_commit_again(self, used: GroupMetadata, partitions: Iterable[TopicPartition]) -> bool:
        """See CommittingMember."""
        is_newer = self.member.epoch > used.generation_id
        return is_newer and self.owns(partitions)

    # -------------------------------------------------------------------------------------------------------- heartbeats

    def _join(self, now_ms: int) -> None:
        self._target, self._owned = None, {}
        self._is_reconciling = self._is_reconcile_due = False
        self.member.join(now_ms)

    def _rejoin(self, now_ms: int) -> None:
        """Join again after the partitions are lost, if there is still a subscription."""
        if self.subscription.has_auto_assigned_partitions and not self.is_closed:
            self._join(now_ms)

    def _subscription_sent(self) -> object:
        return self.subscription.pattern or tuple(sorted(self.subscription.subscription))

    def heartbeat_request(self, is_full: bool) -> Message:
        """See EpochGroup."""
        kind = API_KEYS[CONSUMER_GROUP_HEARTBEAT].request
        message = self.last_heartbeat()
        if is_full:
            message.rebalance_timeout_ms = self.config.max_poll_interval_ms
            message.rack_id = self.network.config.client_rack or None
            message.server_assignor = self.config.group_remote_assignor or None
        if is_full or self._sent_subscription != self._subscription_sent():
            pattern = self.subscription.pattern
            if pattern is not None:
                message.subscribed_topic_regex = pattern
            elif isinstance(self._sent_subscription, str):
                message.subscribed_topic_regex = ""  # in place of the pattern that was sent
            message.subscribed_topic_names = [] if pattern is not None else sorted(self.subscription.subscription)
        if is_full or self._sent_owned != self._owned:
            struct = kind.classes["TopicPartitions"]
            message.topic_partitions = [struct(topic_id=one, partitions=sorted(found)) for one, found in self._owned.items()]
        return message

    def last_heartbeat(self) -> Message:
        """See EpochGroup."""
        return API_KEYS[CONSUMER_GROUP_HEARTBEAT].request.new(group_id=self.group_id, instance_id=self.instance_id)

    def heartbeat_sent(self) -> None:
        """See EpochGroup."""
        self._sent_subscription = self._subscription_sent()
        self._sent_owned = self._owned
        if self._target is not None and self.member.state is MemberState.STABLE:
            self.member.state = MemberState.RECONCILING  # an older target was acknowledged

    def assigned(self, assignment: Message, now_ms: int) -> None:
        """See EpochGroup."""
        self._target = {one.topic_id: frozenset(one.partitions) for one in assignment.topic_partitions}
        self._topics.want(self._target, now_ms)
        self._is_reconcile_due = not self._is_reconciling

    def _topics_known(self, now_ms: int) -> None:
        """Take the names of topics that were missing."""
        self._is_reconcile_due = self._target is not None and not self._is_reconciling

    def fenced_by_group(self, now_ms: int) -> None:
        """See EpochGroup."""
        self._target = None
        self._is_reconcile_due = False
        self.release(True, self._rejoin, now_ms)

    def failed(self, error: ClientError, now_ms: int) -> None:
        """See EpochGroup."""
        if self.member.state is MemberState.FATAL:
            self._fatal = error
            self._is_reconcile_due = False
            self.release(True, lambda now_ms: None, now_ms)
        else:
            self.errors.append(error)

    # ----------------------------------------------------------------------------------------------------- reconciliation

    def _reconcile(self, now_ms: int) -> None:
        """Give partitions back and take new ones, as far as the topics are known."""
        if self._target is None or self._is_reconciling or self.calls:
            return
        self._is_reconcile_due = False
        known, is_whole = self._topics.resolve(self._target)
        if not is_whole and known == self._owned:
            return  # nothing to do before the names of the other topics come
        self._is_reconciling = True
        self._reconciliations += 1
        number = self._reconciliations
        if is_whole:
            self._target = None
        assigned = frozenset((self._topics.names[one], index) for one, numbers in known.items() for index in numbers)
        before = self.subscription.assigned_partitions
        revoked = before - assigned

        def is_over() -> bool:
            """Return whether the member was fenced or left in between: its partitions are not its own any more."""
            is_other = not self._is_reconciling or number != self._reconciliations
            return is_other or self.member.epoch == JOIN_EPOCH or not self.member.is_active

        def committed(now_ms: int) -> None:
            if not is_over():
                self.revoke(revoked, released, now_ms)

        def released(now_ms: int) -> None:
            if is_over():
                return
            self.subscription.assign_from_subscribed(assigned)
            self.delay_auto_commit(now_ms)
            self.calls.call(CallbackKind.ASSIGNED, assigned - before, taken, now_ms)

        def taken(now_ms: int) -> None:
            if is_over():
                return
            self._is_reconciling = False
            self._owned = known
            self._is_reconcile_due = self._target is not None
            self.member.acknowledge(now_ms)

        if not revoked:
            released(now_ms)
            return
        self.subscription.mark_pending_revocation(revoked)
        self.commit_before_revocation(revoked, committed, now_ms)

    # ----------------------------------------------------------------------------------------------------------- leaving

    def _expire_poll(self, now_ms: int) -> None:
        """See GroupMember."""
        if self.member.is_active:
            self._is_reconciling = self._is_reconcile_due = False
            self._target = None
            self.lose_partitions()
            epoch = LEAVE_EPOCH if self.instance_id is None else LEAVE_STATIC_EPOCH
            self.member.leave(epoch, MemberState.STALE, lambda now_ms: None, now_ms)

    def leave(self, done: CloseDone, now_ms: int, option: CloseOption = CloseOption.DEFAULT) -> None:
        """See GroupMember."""
        is_lost = self.member.state in (MemberState.FENCED, MemberState.STALE, MemberState.FATAL)
        self._is_reconciling = self._is_reconcile_due = False
        self._target = None

        def released(now_ms: int) -> None:
            stays = option is CloseOption.REMAIN_IN_GROUP
            if stays and self.instance_id is None:
                self.member.stop()
                done(None, now_ms)
                return
            is_back_soon = self.instance_id is not None and option is not CloseOption.LEAVE_GROUP
            epoch = LEAVE_STATIC_EPOCH if is_back_soon else LEAVE_EPOCH
            self.member.leave(epoch, MemberState.UNSUBSCRIBED, lambda now_ms: done(None, now_ms), now_ms)

        self.release(is_lost, released, now_ms)
