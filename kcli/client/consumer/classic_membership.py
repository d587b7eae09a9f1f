"""A member of a classic group (Kafka: AbstractCoordinator, ConsumerCoordinator; KIP-62, KIP-345, KIP-394, KIP-429).

    state       the member                        left by                                                  then
    ----------  --------------------------------  -------------------------------------------------------  ---------------
    UNJOINED    is in no generation               `polled` with a subscription                             PREPARING
    PREPARING   commits; its listener is called   both are done                                            JOINING
    JOINING     waits for JoinGroup               an answer with a generation                              SYNCING
                                                  MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID, an error that      JOINING
                                                  may pass
                                                  any other error, which the application gets              UNJOINED
    SYNCING     waits for SyncGroup; the leader   an assignment                                            COMPLETING
                has assigned before               an error that may pass, REBALANCE_IN_PROGRESS             JOINING
    COMPLETING  has an assignment; from the next  the listener has been called                             STABLE
                `polled` on commits, revokes and
                gets partitions; its listener is
                called
    STABLE      has its assignment                `polled`, and a rebalance is due                         PREPARING

    a rebalance is due                                        partitions
    --------------------------------------------------------  --------------------------------------------------------
    Heartbeat: REBALANCE_IN_PROGRESS                          eager: all are revoked in PREPARING
    the subscription changed, by a call or by a pattern       cooperative: those of topics without subscription are
    the leader's metadata are not those of its assignment     revoked in PREPARING; in COMPLETING those that are not
    cooperative: partitions were revoked in COMPLETING        assigned any more
    `enforce_rebalance`

    the generation is lost                                    partitions
    --------------------------------------------------------  --------------------------------------------------------
    UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION                     lost, at the next `polled`; then it joins again
    max.poll.interval.ms without `polled`                     the member leaves (a static one only sends no heartbeats); its
                                                              partitions are lost, and it joins again, at the next `polled`
    FENCED_INSTANCE_ID                                        lost; the error stays

No records of lost partitions are returned, from the moment on at which the generation is lost.

Heartbeats are sent in SYNCING, COMPLETING and STABLE, and in PREPARING while the generation is valid. If none succeeds within
session.timeout.ms, the coordinator is looked up again. Records of partitions that the member keeps are returned in all states.
A static member (group.instance.id) does not leave the group when it is closed, unless it is asked to.

The heartbeats of a member of a classic group (Kafka: AbstractCoordinator.HeartbeatThread).

answer                                    then
----------------------------------------  --------------------------------------------------------------------------
NONE                                      the next one after heartbeat.interval.ms; session.timeout.ms begins again
REBALANCE_IN_PROGRESS                     the same, and the member joins again if it is STABLE
UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION,    the generation is lost
FENCED_INSTANCE_ID
NOT_COORDINATOR, no answer, any other     the next one after retry.backoff.ms; the coordinator may be looked up again
none succeeds in session.timeout.ms       the coordinator is looked up again

What a member of a classic group sends in JoinGroup, and what its leader makes of it (Kafka: ConsumerCoordinator).

    partition.assignment.strategy   names, or Kafka's class names; JoinGroup has them in this order
    rebalance protocol              the highest that all of them support: cooperative or eager
    the leader assigns by           the assignor that the coordinator chose, the subscriptions of all members, and for each
                                    topic the partitions and the racks of their replicas

The leader remembers the partitions and racks by which it assigned: other metadata make another rebalance due.

The requests of a member of a classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

version              has
-------------------  --------------------------------------------------------------------------------------------------
5 / 3 / 3 / 3        group.instance.id (KIP-345); in older versions it cannot be sent: a static member cannot join
8 of JoinGroup       why the member joins (KIP-800), as 5 of LeaveGroup why it leaves
3 of LeaveGroup      several members; here always one
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial

from kcli.client.cluster import NO_LEADER, Cluster
from kcli.client.consumer.assignors.assignor import Assignor, ClusterMetadata, Racks, RebalanceProtocol
from kcli.client.consumer.assignors.built_in import ASSIGNORS
from kcli.client.consumer.consumer_config import ConsumerConfig
from kcli.client.consumer.consumer_protocol import (
    Assignment,
    Subscription,
    TopicPartition,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kcli.client.consumer.group_member import NO_MEMBER_ID, GroupMember
from kcli.client.consumer.membership import NO_GENERATION, CallbackKind, CloseDone, CloseOption, GroupMetadata
from kcli.client.consumer.subscription_state import SubscriptionState, SubscriptionType
from kcli.client.errors import AuthenticationError, ClientError, CommitFailedError, ConfigError, KafkaError
from kcli.client.metadata import Metadata
from kcli.client.network_client import COORDINATOR, DATA, NetworkClient
from kcli.format.primitives import TopicPartition as Pair
from kcli.network.exponential_backoff import ExponentialBackoff
from kcli.network.timing_wheel import TimerTask
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from kcli.protocol.message import Message
from kcli.protocol.message_errors import DecodeError

PROTOCOL_TYPE = "consumer"
MAX_REASON = 255
FIRST_LEAVE_WITH_MEMBERS = 3
JOIN_EXTRA_MS = 5_000  # the coordinator answers JoinGroup when the rebalance times out: a request waits a little longer
LOSES_GENERATION = frozenset((error_codes.UNKNOWN_MEMBER_ID, error_codes.ILLEGAL_GENERATION))


FATAL = frozenset((error_codes.UNKNOWN_MEMBER_ID, error_codes.ILLEGAL_GENERATION, error_codes.FENCED_INSTANCE_ID))


_JAVA_PACKAGE = "org.apache.kafka.clients.consumer."
_JAVA_NAMES = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}

# By topic: for each partition, the racks of its replicas.
Snapshot = Mapping[str, Sequence[Racks]]


class ClassicAssignors:
    """The assignors of one member."""

    def __init__(self, names: Iterable[str]) -> None:
        """Raises ConfigError."""
        self._by_name: dict[str, Assignor] = {}
        for text in names:
            name = _JAVA_NAMES.get(text.removeprefix(_JAVA_PACKAGE), text)
            if name not in ASSIGNORS:
                raise ConfigError(
                    f"there is no assignor {text!r} for partition.assignment.strategy: it may have {', '.join(ASSIGNORS)}"
                )
            if name in self._by_name:
                raise ConfigError(f"partition.assignment.strategy has the assignor {name} twice")
            self._by_name[name] = ASSIGNORS[name]()
        if not self._by_name:
            raise ConfigError(f"partition.assignment.strategy is empty: it may have {', '.join(ASSIGNORS)}")
        supported = frozenset(RebalanceProtocol).intersection(*(one.protocols for one in self._by_name.values()))
        if not supported:
            raise ConfigError("the assignors of partition.assignment.strategy have no rebalance protocol in common")
        self.protocol = max(supported)

    def join_protocols(
        self, topics: frozenset[str], owned: Iterable[tuple[str, int]], generation: int, rack: str | None
    ) -> list[Message]:
        """Return the subscription of this member, encoded for each assignor, as JoinGroup lists them."""
        struct = API_KEYS[JOIN_GROUP].request.classes["JoinGroupRequestProtocol"]
        partitions = [TopicPartition(*one) for one in sorted(owned)]
        listed = []
        for name, assignor in self._by_name.items():
            user_data = assignor.subscription_user_data(topics)
            subscription = Subscription(sorted(topics), user_data, partitions, generation, rack)
            listed.append(struct(name=name, metadata=encode_subscription(subscription)))
        return listed

    def find(self, name: str | None) -> Assignor | None:
        """Return the assignor that the coordinator chose, None if this member does not have it."""
        return None if name is None else self._by_name.get(name)


def subscribe_to_matching(subscription: SubscriptionState, topics: Iterable[str], left_out: Collection[str]) -> None:
    """Subscribe to those of the topics that match the pattern."""
    pattern = re.compile(subscription.pattern or "")
    subscription.subscribe_from_pattern(topic for topic in topics if topic not in left_out and pattern.fullmatch(topic))


def fits_subscription(subscription: SubscriptionState, assigned: Iterable[tuple[str, int]]) -> bool:
    """Return whether the topics of assigned partitions are subscribed; those of a pattern may be newer than the metadata."""
    topics = {topic for topic, _ in assigned}
    if subscription.type is SubscriptionType.AUTO_PATTERN:
        pattern = re.compile(subscription.pattern or "")
        return all(pattern.fullmatch(topic) for topic in topics)
    return topics <= subscription.subscription


def subscriptions_of(members: Iterable[Message]) -> dict[str, Subscription]:
    """Return the subscriptions of the members that JoinGroup's answer lists for the leader. Raises DecodeError."""
    return {one.member_id: decode_subscription(one.metadata, one.group_instance_id) for one in members}


def snapshot_of(metadata: Metadata, topics: Iterable[str]) -> Snapshot:
    """Return the partitions of topics with the racks of their replicas; topics that are not known are left out."""
    racks = {node.node_id: node.rack for node in metadata.nodes.values()}
    snapshot: dict[str, Sequence[Racks]] = {}
    for topic in sorted(topics):
        partitions = metadata.cluster.partitions_for_topic(topic)
        if partitions:
            snapshot[topic] = [_racks(one.replicas, racks) for one in partitions]
    return snapshot


def _racks(replicas: Iterable[int], racks: Mapping[int, str | None]) -> Racks:
    found = (racks.get(replica) for replica in replicas if replica != NO_LEADER)
    return frozenset(rack for rack in found if rack)


def assign(assignor: Assignor, snapshot: Snapshot, subscriptions: Mapping[str, Subscription]) -> list[Message]:
    """Return the assignments of all members, encoded, as SyncGroup lists them."""
    struct = API_KEYS[SYNC_GROUP].request.classes["SyncGroupRequestAssignment"]
    assignments = assignor.assign(ClusterMetadata(snapshot), subscriptions)
    return [struct(member_id=member, assignment=encode_assignment(one)) for member, one in assignments.items()]


class ClassicHeartbeat:
    """The heartbeats of one member, from `start` to `stop`."""

    def __init__(self, member: ClassicMembership) -> None:
        self._member = member
        self._next: TimerTask | None = None
        self._answered_ms = 0
        self._run = 0  # answers to heartbeats before the last `stop` are ignored

    def start(self, now_ms: int) -> None:
        """Send the first one after heartbeat.interval.ms."""
        self.stop()
        self._answered_ms = now_ms
        self._schedule(now_ms + self._member.config.heartbeat_interval_ms)

    def stop(self) -> None:
        """Send no more."""
        self._run += 1
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _schedule(self, at_ms: int) -> None:
        self._next = self._member.network.timer.schedule(at_ms, self._send)

    def _send(self, now_ms: int) -> None:
        member, run = self._member, self._run
        if now_ms - self._answered_ms >= member.config.session_timeout_ms:
            member.coordinator.node_id = None
            self._answered_ms = now_ms
        request = heartbeat_request(member.group_metadata())

        def answered(answer: Message | ClientError, now_ms: int) -> None:
            if run == self._run:
                self._answered(answer, now_ms)

        timeout_ms = min(member.config.session_timeout_ms, member.network.config.request_timeout_ms)
        member.coordinator.send(HEARTBEAT, request, answered, now_ms, timeout_ms)

    def _answered(self, answer: Message | ClientError, now_ms: int) -> None:
        member = self._member
        code = error_codes.NETWORK_EXCEPTION if isinstance(answer, ClientError) else answer.error_code
        if code in FATAL:
            member.lose_generation(code, now_ms)
            return
        if code not in (error_codes.NONE, error_codes.REBALANCE_IN_PROGRESS):
            member.coordinator.check(code)
            self._schedule(now_ms + member.network.config.retry_backoff_ms)
            return
        self._answered_ms = now_ms
        if code == error_codes.REBALANCE_IN_PROGRESS:
            member.rebalance_in_progress()
        self._schedule(now_ms + member.config.heartbeat_interval_ms)


class State(Enum):
    """The states of a member; the module has the transitions."""

    UNJOINED = 0
    PREPARING = 1
    JOINING = 2
    SYNCING = 3
    COMPLETING = 4
    STABLE = 5


class ClassicMembership(GroupMember):
    """One member; kcli.client.consumer.membership describes the public methods."""

    uses_epochs = False

    def __init__(
        self, network: NetworkClient, config: ConsumerConfig, subscription: SubscriptionState, log: Callable[[str], None]
    ) -> None:
        """Raises ConfigError."""
        super().__init__(network, config, subscription, log)
        self.state = State.UNJOINED
        self.generation_id = NO_GENERATION
        self.member_id = NO_MEMBER_ID
        self.is_leader = False
        self._assignors = ClassicAssignors(config.partition_assignment_strategy)
        self._heartbeat = ClassicHeartbeat(self)
        self._backoff = ExponentialBackoff(network.config.retry_backoff_ms, network.config.retry_backoff_max_ms)
        self._failures = 0
        self._attempt = 0  # answers to earlier attempts are ignored
        self._is_rejoin_wanted = False
        self._reason = ""
        self._joined_topics: frozenset[str] | None = None
        self._snapshot: Snapshot | None = None  # of the leader
        self._waiting_join: Message | None = None  # the leader waits for metadata
        self._received: tuple[str | None, Assignment] | None = None  # what `polled` has to take: protocol, assignment
        self._is_pattern_resolved = True
        self._fatal: ClientError | None = None
        network.metadata.add_listener(self._metadata_updated)

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
        if self._received is not None and not self.calls:
            self._complete(*self._received, now_ms)
        if self._may_begin():
            self._prepare(now_ms)
        self.auto_commit(now_ms)

    def next_poll_ms(self, now_ms: int) -> int | None:
        """See Membership."""
        is_due = (self._received is not None and not self.calls) or self._may_begin()
        return now_ms if is_due else super().next_poll_ms(now_ms)

    def _may_begin(self) -> bool:
        """Return whether a rebalance is due and may begin now."""
        return (
            self.state in (State.UNJOINED, State.STABLE)
            and self.subscription.has_auto_assigned_partitions
            and self._is_pattern_resolved
            and self._fatal is None
            and not self.errors
            and not self.calls
            and self._is_rejoin_due()
        )

    def _is_rejoin_due(self) -> bool:
        return self._is_rejoin_wanted or self.state is State.UNJOINED or self._joined_topics != self.subscription.subscription

    def subscription_changed(self, now_ms: int) -> None:
        """See Membership."""
        has_pattern = self.subscription.type is SubscriptionType.AUTO_PATTERN
        self.network.metadata.want_all_topics(has_pattern)
        self._is_pattern_resolved = not has_pattern
        if has_pattern:
            self.network.request_update()
        if not self.subscription.has_auto_assigned_partitions and self.state is not State.UNJOINED:
            self.forget_calls()
            self.leave(lambda error, now_ms: None, now_ms)

    def enforce_rebalance(self, reason: str, now_ms: int) -> None:
        """See Membership."""
        self.request_rejoin(reason)

    def request_rejoin(self, reason: str) -> None:
        """Have a rebalance begin at the next `polled`."""
        self._is_rejoin_wanted = True
        self._reason = reason

    def rebalance_in_progress(self) -> None:
        """Take the coordinator's word that the group rebalances."""
        if self.state in (State.COMPLETING, State.STABLE) and not self._is_rejoin_wanted:
            self.request_rejoin("the group rebalances")

    def group_metadata(self) -> GroupMetadata:
        """See Membership."""
        return GroupMetadata(self.group_id, self.generation_id, self.member_id, self.instance_id)

    def take_error(self) -> ClientError | None:
        """See Membership; that the member is fenced is reported by each call."""
        return super().take_error() or self._fatal

    # ---------------------------------------------------------------------------------------------------------- commits

    def commit_identity(self) -> GroupMetadata | ClientError:
        """See CommittingMember: a member that is between two generations cannot commit."""
        if not self.subscription.has_auto_assigned_partitions:
            return GroupMetadata(self.group_id, group_instance_id=self.instance_id)
        if self.state in (State.JOINING, State.SYNCING):
            return KafkaError(error_codes.REBALANCE_IN_PROGRESS, "poll until the rebalance is done, then commit again")
        if self.generation_id == NO_GENERATION:
            return CommitFailedError("offsets are not committed: the member is in no generation of its group; poll first")
        return self.group_metadata()

    def fenced(self, error_code: int, used: GroupMetadata, now_ms: int) -> None:
        """See CommittingMember."""
        if used.generation_id != NO_GENERATION and used == self.group_metadata():
            self.lose_generation(error_code, now_ms)

    def may_commit_again(self, used: GroupMetadata, partitions: Iterable[Pair]) -> bool:
        """See CommittingMember: a classic member has no epoch."""
        return False

    # -------------------------------------------------------------------------------------------------------- preparing

    def _prepare(self, now_ms: int) -> None:
        """Commit and revoke before JoinGroup."""
        self.state = State.PREPARING
        is_eager = self._assignors.protocol is RebalanceProtocol.EAGER
        if self.generation_id == NO_GENERATION:
            self.release(True, self._prepared, now_ms)
            return
        if is_eager:
            self.subscription.mark_pending_revocation(self.subscription.assigned_partitions)
        self.commit_before_revocation(None, partial(self._committed, self._attempt), now_ms)

    def _committed(self, attempt: int, now_ms: int) -> None:
        if attempt != self._attempt:
            return  # the member left, or lost its generation
        if self._assignors.protocol is RebalanceProtocol.EAGER:
            self.release(False, self._prepared, now_ms)
        else:
            topics = self.subscription.subscription
            revoked = {one for one in self.subscription.assigned_partitions if one[0] not in topics}
            self.revoke(revoked, self._prepared, now_ms)

    def _prepared(self, now_ms: int) -> None:
        if self.state is not State.PREPARING:
            return
        self.is_leader, self._snapshot = False, None
        self.subscription.reset_group_subscription()
        self._join(now_ms)

    # ---------------------------------------------------------------------------------------------------------- joining

    def _join(self, now_ms: int) -> None:
        self._heartbeat.stop()
        self.state = State.JOINING
        self._attempt += 1
        self._waiting_join = None
        self._is_rejoin_wanted = False
        self._joined_topics = self.subscription.subscription
        timeout_ms = max(self.network.config.request_timeout_ms, self.config.max_poll_interval_ms + JOIN_EXTRA_MS)
        attempt = self._attempt
        protocols = self._assignors.join_protocols(
            self._joined_topics,
            self.subscription.assigned_partitions,
            self.generation_id,
            self.network.config.client_rack or None,
        )
        request = join_request(self.group_metadata(), self.config, protocols, self._reason)

        def answered(answer: Message | ClientError, now_ms: int) -> None:
            if attempt == self._attempt and self.state is State.JOINING:
                self._joined(answer, now_ms)

        self.coordinator.send(JOIN_GROUP, request, answered, now_ms, timeout_ms)

    def _joined(self, answer: Message | ClientError, now_ms: int) -> None:
        if isinstance(answer, ClientError):
            self._join_failed(answer, now_ms)
            return
        code = answer.error_code
        if code == error_codes.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self._join(now_ms)
            return
        if code:
            self._join_refused(code, now_ms)
            return
        self._failures = 0
        self.generation_id, self.member_id = answer.generation_id, answer.member_id
        self.state = State.SYNCING
        self._heartbeat.start(now_ms)
        self.is_leader = answer.leader == answer.member_id
        self._reason = ""
        if self.is_leader:
            self._lead(answer, now_ms)
        else:
            self._sync(answer.protocol_name, [], now_ms)

    def _join_refused(self, code: int, now_ms: int) -> None:
        """Take an error code of JoinGroup or SyncGroup."""
        self.coordinator.check(code)
        if code == error_codes.FENCED_INSTANCE_ID or code in LOSES_GENERATION:
            self.lose_generation(code, now_ms)
            if code in LOSES_GENERATION:
                self._prepare(now_ms)  # partitions that a cooperative member kept are lost
        elif code == error_codes.REBALANCE_IN_PROGRESS:
            self._join(now_ms)
        else:
            self._join_failed(KafkaError(code, f"the member cannot join the group {self.group_id}"), now_ms)

    def _join_failed(self, error: ClientError, now_ms: int) -> None:
        """Join again after the backoff, or report an error that stays."""
        # A refusal by TLS or SASL is an error of the consumer, which goes on to connect.
        if not error.is_retriable and not isinstance(error, AuthenticationError):
            self._attempt += 1
            self._heartbeat.stop()
            self.generation_id = NO_GENERATION
            self.state = State.UNJOINED
            self.errors.append(error)
            return
        self.state = State.JOINING
        delay_ms = self._backoff.delay_ms(self._failures, self.network.rng)
        self._failures += 1
        self._attempt += 1
        attempt = self._attempt

        def again(now_ms: int) -> None:
            if attempt == self._attempt and self.state is State.JOINING:
                self._join(now_ms)

        self.network.timer.schedule(now_ms + delay_ms, again)

    # ---------------------------------------------------------------------------------------------------------- leading

    def _lead(self, answer: Message, now_ms: int) -> None:
        """Assign partitions to all members, after the metadata of their topics came."""
        try:
            subscriptions = subscriptions_of(answer.members)
        except DecodeError as error:
            self._join_failed(ClientError(f"the subscription of a member of {self.group_id} cannot be read: {error}"), now_ms)
            return
        topics = {topic for one in subscriptions.values() for topic in one.topics}
        self.subscription.group_subscribe(topics)
        metadata = self.network.metadata
        for topic in topics:
            metadata.want_topic(topic)
        if self._waiting_join is None and any(
            topic not in metadata.topic_errors and not metadata.cluster.partitions_for_topic(topic) for topic in topics
        ):
            self._waiting_join = answer
            self.network.request_update()
            return
        self._waiting_join = None
        self._assign(answer, subscriptions, topics, now_ms)

    def _assign(self, answer: Message, subscriptions: dict[str, Subscription], topics: set[str], now_ms: int) -> None:
        self._snapshot = snapshot_of(self.network.metadata, topics)
        if answer.skip_assignment:
            self._sync(answer.protocol_name, [], now_ms)
            return
        assignor = self._assignors.find(answer.protocol_name)
        if assignor is None:
            error = ClientError(f"the group {self.group_id} uses the assignor {answer.protocol_name}, which is not configured")
            self._join_failed(error, now_ms)
            return
        self._sync(answer.protocol_name, assign(assignor, self._snapshot, subscriptions), now_ms)

    def _metadata_updated(self, cluster: Cluster, now_ms: int) -> None:
        """Resolve the pattern, lead, or find that the leader's assignment is outdated."""
        if self.is_closed:
            return
        if self.subscription.type is SubscriptionType.AUTO_PATTERN:
            internal = self.network.metadata.internal_topics if self.config.exclude_internal_topics else frozenset()
            subscribe_to_matching(self.subscription, cluster.topics, internal)
            self._is_pattern_resolved = self._is_pattern_resolved or not self.network.is_update_wanted
        if self._waiting_join is not None and self.state is State.SYNCING:
            if not self.network.is_update_wanted:
                self._lead(self._waiting_join, now_ms)
        elif self._snapshot is not None and self._snapshot != snapshot_of(
            self.network.metadata, self.subscription.metadata_topics
        ):
            self.request_rejoin("the metadata of the group's topics changed")

    # ---------------------------------------------------------------------------------------------------------- syncing

    def _sync(self, protocol_name: str | None, assignments: list[Message], now_ms: int) -> None:
        attempt = self._attempt
        request = sync_request(self.group_metadata(), protocol_name, assignments)

        def answered(answer: Message | ClientError, now_ms: int) -> None:
            if attempt != self._attempt or self.state is not State.SYNCING:
                return
            if isinstance(answer, ClientError):
                self._join_failed(answer, now_ms)
            elif answer.error_code:
                self._join_refused(answer.error_code, now_ms)
            else:
                self._synced(protocol_name, answer.assignment, now_ms)

        timeout_ms = max(self.network.config.request_timeout_ms, self.config.max_poll_interval_ms + JOIN_EXTRA_MS)
        self.coordinator.send(SYNC_GROUP, request, answered, now_ms, timeout_ms)

    def _synced(self, protocol_name: str | None, data: bytes, now_ms: int) -> None:
        try:
            assignment = decode_assignment(data) if data else Assignment(())
        except DecodeError as error:
            self._join_failed(ClientError(f"the assignment of the group {self.group_id} cannot be read: {error}"), now_ms)
            return
        self.state = State.COMPLETING
        self._received = (protocol_name, assignment)

    # ------------------------------------------------------------------------------------------------------- completing

    def _complete(self, protocol_name: str | None, assignment: Assignment, now_ms: int) -> None:
        """Give partitions back and take those of an assignment."""
        self._received = None
        assigned = frozenset((topic, partition) for topic, partition in assignment.partitions)
        if not fits_subscription(self.subscription, assigned):
            self.request_rejoin("the assignment does not match the subscription, which changed")
            self.state = State.STABLE
            return
        owned = self.subscription.assigned_partitions
        revoked = owned - assigned
        attempt = self._attempt

        def committed(now_ms: int) -> None:
            if attempt == self._attempt:
                self.revoke(revoked, released, now_ms)

        def released(now_ms: int) -> None:
            if attempt != self._attempt or not self.subscription.has_auto_assigned_partitions:
                return
            assignor = self._assignors.find(protocol_name)
            if assignor is not None:
                assignor.on_assignment(assignment, self.generation_id)
            self.subscription.assign_from_subscribed(assigned)
            self.delay_auto_commit(now_ms)
            self.calls.call(CallbackKind.ASSIGNED, assigned - owned, completed, now_ms)

        def completed(now_ms: int) -> None:
            if attempt == self._attempt and self.state is State.COMPLETING:
                self.state = State.STABLE

        if not revoked:
            released(now_ms)
            return
        self.request_rejoin("partitions were revoked, which other members can get now")
        self.subscription.mark_pending_revocation(revoked)
        self.commit_before_revocation(revoked, committed, now_ms)

    # ---------------------------------------------------------------------------------------------------------- leaving

    def lose_generation(self, error_code: int, now_ms: int) -> None:
        """Take an error that says that the group does not know the member in its generation."""
        if error_code == error_codes.FENCED_INSTANCE_ID:
            self._fatal = KafkaError(error_code, f"another member of {self.group_id} has the instance id {self.instance_id}")
        self._reset(keeps_member_id=error_code == error_codes.ILLEGAL_GENERATION)
        self.request_rejoin(f"the member lost its generation: {error_codes.NAMES[error_code]}")
        if self._fatal is not None:
            self.release(True, lambda now_ms: None, now_ms)

    def _reset(self, keeps_member_id: bool = False) -> None:
        self._heartbeat.stop()
        self.generation_id = NO_GENERATION
        if not keeps_member_id:
            self.member_id = NO_MEMBER_ID
        self.is_leader, self._snapshot, self._waiting_join, self._received = False, None, None, None
        self._attempt += 1
        self.state = State.UNJOINED
        self.lose_partitions()

    def _expire_poll(self, now_ms: int) -> None:
        """See GroupMember."""
        if self.state is State.UNJOINED:
            return
        if not self.instance_id:  # a static member has session.timeout.ms to come back
            self._send_leave("max.poll.interval.ms passed without a poll", lambda error, now_ms: None, now_ms)
        self._reset()
        self.request_rejoin("the application polls again")

    def leave(self, done: CloseDone, now_ms: int, option: CloseOption = CloseOption.DEFAULT) -> None:
        """See GroupMember."""
        is_lost = self.generation_id == NO_GENERATION or self.state in (State.JOINING, State.SYNCING)
        self._attempt += 1
        self._received = None
        if self.state is State.PREPARING:
            self.state = State.UNJOINED  # it does not join after the listener was called

        def released(now_ms: int) -> None:
            if option is CloseOption.REMAIN_IN_GROUP or (self.instance_id and option is CloseOption.DEFAULT):
                done(None, now_ms)
            else:
                self._send_leave("the consumer is closed or unsubscribed", done, now_ms)
            self._reset()
            self._joined_topics = None

        self.release(is_lost, released, now_ms)

    def _send_leave(self, reason: str, done: CloseDone, now_ms: int) -> None:
        if self.coordinator.node_id is None or self.member_id == NO_MEMBER_ID:
            done(None, now_ms)
            return
        request = partial(leave_request, self.group_metadata(), reason)
        connection = DATA if self.state in (State.JOINING, State.SYNCING) else COORDINATOR

        def left(answer: Message | ClientError, now_ms: int) -> None:
            done(None, now_ms)

        self.coordinator.send(LEAVE_GROUP, request, left, now_ms, connection=connection)


def join_request(member: GroupMetadata, config: ConsumerConfig, protocols: list[Message], reason: str) -> Message:
    """Return a JoinGroup; max.poll.interval.ms is the time for the rebalance."""
    return API_KEYS[JOIN_GROUP].request.new(
        group_id=member.group_id,
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=config.max_poll_interval_ms,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=protocols,
        reason=reason[:MAX_REASON] or None,
    )


def sync_request(member: GroupMetadata, protocol_name: str | None, assignments: Sequence[Message]) -> Message:
    """Return a SyncGroup; only the leader has assignments."""
    return API_KEYS[SYNC_GROUP].request.new(
        group_id=member.group_id,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol_name,
        assignments=list(assignments),
    )


def heartbeat_request(member: GroupMetadata) -> Message:
    """Return a Heartbeat."""
    return API_KEYS[HEARTBEAT].request.new(
        group_id=member.group_id,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
    )


def leave_request(member: GroupMetadata, reason: str, version: int) -> Message:
    """Return a LeaveGroup in a version."""
    kind = API_KEYS[LEAVE_GROUP].request
    if version < FIRST_LEAVE_WITH_MEMBERS:
        return kind.new(group_id=member.group_id, member_id=member.member_id)
    identity = kind.classes["MemberIdentity"](
        member_id=member.member_id, group_instance_id=member.group_instance_id, reason=reason
    )
    return kind.new(group_id=member.group_id, members=[identity])
