"""A member of a share group: what the coordinator assigns is taken at once (KIP-932; Kafka: ShareMembershipManager).

Partitions may be assigned to several members at the same time, so that nothing has to be given back before another member
reads: there is no reconciliation, and no listener. kcli.client.consumer.epoch_member has the states and the heartbeats.
"""

from __future__ import annotations

from collections import deque

from kcli.client.consumer.assigned_topics import AssignedTopics, TopicIdPartitions
from kcli.client.consumer.epoch_member import LEAVE_EPOCH, EpochMember, MemberState
from kcli.client.consumer.membership import CloseDone
from kcli.client.consumer.poll_watch import PollWatch
from kcli.client.consumer.share_config import ShareConsumerConfig
from kcli.client.coordinator_lookup import GROUP_KEY, CoordinatorLookup
from kcli.client.errors import ClientError
from kcli.client.network_client import NetworkClient
from kcli.protocol.apis import API_KEYS, SHARE_GROUP_HEARTBEAT
from kcli.protocol.message import Message


class ShareMembership:
    """One member; `assigned_partitions` has what it may fetch, by topic id."""

    heartbeat_api = SHARE_GROUP_HEARTBEAT

    def __init__(self, network: NetworkClient, config: ShareConsumerConfig) -> None:
        self.group_id = config.group_id or ""
        self.subscription: frozenset[str] = frozenset()
        self.errors: deque[ClientError] = deque()
        self.coordinator = CoordinatorLookup(network, GROUP_KEY, self.group_id)
        self.member = EpochMember(network, self.coordinator, self)
        self.topics = AssignedTopics(network, lambda now_ms: None)
        self.watch = PollWatch(network, config.max_poll_interval_ms, self._expire_poll)
        self._network = network
        self._assigned: TopicIdPartitions = {}
        self._sent: frozenset[str] | None = None
        self._fatal: ClientError | None = None

    @property
    def member_id(self) -> str:
        """The id of the member, which is also that of its share sessions."""
        return self.member.member_id

    @property
    def assigned_partitions(self) -> TopicIdPartitions:
        """The assigned partitions of topics whose names are known."""
        return self.topics.resolve(self._assigned)[0]

    def name_of(self, topic_id: bytes) -> str:
        """Return the name of an assigned topic."""
        return self.topics.names[topic_id]

    def polled(self, now_ms: int) -> None:
        """Take a poll of the application; a member that had left because there was none joins again."""
        self.watch.polled(now_ms)
        if self.member.state is MemberState.STALE:
            self.member.join(now_ms)

    def subscribe(self, topics: frozenset[str], now_ms: int) -> None:
        """Take the topics; without any the member leaves."""
        self.subscription = topics
        if not topics:
            self.leave(lambda error, now_ms: None, now_ms)
        elif self.member.state is MemberState.UNSUBSCRIBED:
            self.watch.polled(now_ms)
            self.member.join(now_ms)
        else:
            self.member.send_soon(now_ms)

    def leave(self, done: CloseDone, now_ms: int) -> None:
        """Leave the group."""
        self._assigned = {}
        self.watch.stop()
        self.member.leave(LEAVE_EPOCH, MemberState.UNSUBSCRIBED, lambda now_ms: done(None, now_ms), now_ms)

    def take_error(self) -> ClientError | None:
        """Return an error that the application must see, once; one that stays is returned by each call."""
        return self.errors.popleft() if self.errors else self._fatal

    def _expire_poll(self, now_ms: int) -> None:
        if self.member.is_active:
            self._assigned = {}
            self.member.leave(LEAVE_EPOCH, MemberState.STALE, lambda now_ms: None, now_ms)

    # ------------------------------------------------------------------------------------------------------- EpochGroup

    def heartbeat_request(self, is_full: bool) -> Message:
        """See EpochGroup."""
        message = self.last_heartbeat()
        if is_full:
            message.rack_id = self._network.config.client_rack or None
        if is_full or self._sent != self.subscription:
            message.subscribed_topic_names = sorted(self.subscription)
        return message

    def last_heartbeat(self) -> Message:
        """See EpochGroup."""
        return API_KEYS[SHARE_GROUP_HEARTBEAT].request.new(group_id=self.group_id)

    def heartbeat_sent(self) -> None:
        """See EpochGroup."""
        self._sent = self.subscription

    def assigned(self, assignment: Message, now_ms: int) -> None:
        """See EpochGroup."""
        self._assigned = {one.topic_id: frozenset(one.partitions) for one in assignment.topic_partitions}
        self.topics.want(self._assigned, now_ms)
        self.member.state = MemberState.STABLE

    def fenced_by_group(self, now_ms: int) -> None:
        """See EpochGroup."""
        self._assigned = {}
        self.member.join(now_ms)

    def failed(self, error: ClientError, now_ms: int) -> None:
        """See EpochGroup."""
        if self.member.state is MemberState.FATAL:
            self._assigned = {}
            self._fatal = error
        else:
            self.errors.append(error)
