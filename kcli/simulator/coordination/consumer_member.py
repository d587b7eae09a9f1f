"""A member of a group of the consumer protocol (KIP-848): heartbeats that state what it has, and reconciliation.

answer                                 what the member does
-------------------------------------  --------------------------------------------------------------------------------
an assignment                          commits and drops the partitions that are not in it, states in the next heartbeat
                                       what is left, and begins with the new ones at their committed offsets
UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH  drops all partitions and joins again with epoch 0
none                                   states everything in the next heartbeat
"""

from __future__ import annotations

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.protocol.apis import CONSUMER_GROUP_HEARTBEAT
from kcli.protocol.message import Message
from kcli.simulator.client import Task
from kcli.simulator.coordination.group_member import HEARTBEAT_MS, CommitWork, GroupMember
from kcli.simulator.coordination.history import TopicPartition
from kcli.simulator.coordination.stage import RETRIABLE

REBALANCE_MS = 3000
LEAVE_EPOCH = -1
_MEMBER_IDS_VERSION = 1  # from here on the member makes its id
_FENCED = frozenset((error_codes.UNKNOWN_MEMBER_ID, error_codes.FENCED_MEMBER_EPOCH))
_ASSIGNORS = (None, "uniform", "range")


class ConsumerMember(GroupMember):
    """See the head of this module."""

    is_consumer = True
    _next_beat_ms = 0
    _is_full = True  # the next heartbeat states everything
    _has_changed = False  # the partitions have changed since the last heartbeat with a response

    def _join_or_beat(self) -> Task[None]:
        if self.is_stale:
            self.generation, self.owned, self._is_full = 0, [], True
            self.positions.clear()
            yield from self._beat()
        elif self._has_changed or self._stage.now_ms >= self._next_beat_ms:
            yield from self._beat()

    def _beat(self) -> Task[None]:
        stage, caller = self._stage, self._caller
        version = caller.version(CONSUMER_GROUP_HEARTBEAT)
        if not self.member_id and version >= _MEMBER_IDS_VERSION:
            self.member_id = str(Uuid(self._rng.randbytes(16)))
        elif self.member_id and self.generation == 0:
            version = max(version, _MEMBER_IDS_VERSION) if self._rng.random() < 0.5 else version
        sent_ms, request = stage.now_ms, self._request()
        # A late heartbeat that states partitions could give them away for the member.
        may_repeat = request.topic_partitions is None
        response = yield from caller.call(CONSUMER_GROUP_HEARTBEAT, version, request, may_repeat=may_repeat)
        self._next_beat_ms = stage.now_ms + HEARTBEAT_MS
        if response is None:
            self._is_full = True
            return
        if response.error_code in _FENCED:
            self._refused(response.error_code)
            return
        caller.check(response.error_code, "ConsumerGroupHeartbeat")
        if response.error_code:
            self._is_full = True
            return
        self._is_full = self._rng.random() < 0.1
        self._has_changed = False
        yield from self._take(response, sent_ms)

    def _request(self) -> Message:
        world, is_full = self._stage.world, self._is_full or self.generation == 0
        by_topic: dict[str, list[int]] = {}
        for name, index in self.owned:
            by_topic.setdefault(name, []).append(index)
        owned = [
            world.struct(
                CONSUMER_GROUP_HEARTBEAT,
                "TopicPartitions",
                topic_id=self._stage.topics[name].topic_id,
                partitions=sorted(indexes),
            )
            for name, indexes in sorted(by_topic.items())
        ]
        return world.request(
            CONSUMER_GROUP_HEARTBEAT,
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.generation,
            rebalance_timeout_ms=REBALANCE_MS if is_full else -1,
            subscribed_topic_names=[self._topic] if is_full else None,
            server_assignor=self._rng.choice(_ASSIGNORS) if is_full else None,
            topic_partitions=owned if is_full or self._has_changed else None,
        )

    def _take(self, response: Message, sent_ms: int) -> Task[None]:
        """Take over the epoch and the assignment of a response."""
        is_new_epoch = response.member_epoch != self.generation
        self.member_id, self.is_stale = response.member_id or self.member_id, False
        before, after = self.generation, response.member_epoch
        if response.assignment is not None:
            target = {
                (self._stage.topic_name(topic.topic_id), index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            }
            revoked = [partition for partition in self.owned if partition not in target]
            self.generation = after
            yield from self._revoke(revoked)
            if self.is_stale:
                return
            added = sorted(target.difference(self.owned))
            self._has_changed = bool(revoked or added)
            self.owned = [partition for partition in self.owned if partition in target] + added
        self.generation = after
        if is_new_epoch or response.assignment is not None:
            self.note_ownership(sent_ms)
        if after < before:
            self._caller.check(error_codes.UNKNOWN_SERVER_ERROR, f"a heartbeat with epoch {before} got epoch {after}; it")

    def _revoke(self, revoked: list[TopicPartition]) -> Task[None]:
        """Commit the positions of partitions and drop them."""
        offsets = {where: at for where, at in self.uncommitted().items() if where in revoked}
        if offsets and isinstance(self._work, CommitWork) and self._rng.random() < 0.7:
            yield from self.commit(offsets)
        for partition in revoked:
            self.positions.pop(partition, None)
            self.committed.pop(partition, None)

    def _refused(self, code: int | None) -> None:
        if code == error_codes.STALE_MEMBER_EPOCH:
            self._next_beat_ms = 0  # the next heartbeat returns the present epoch
        elif code in RETRIABLE:
            return
        else:
            self.is_stale = True

    def _leave(self) -> Task[None]:
        caller = self._caller
        if self.member_id and self.generation > 0:
            request = self._stage.world.request(
                CONSUMER_GROUP_HEARTBEAT, group_id=self.group, member_id=self.member_id, member_epoch=LEAVE_EPOCH
            )
            version = caller.version(CONSUMER_GROUP_HEARTBEAT)
            response = yield from caller.call(CONSUMER_GROUP_HEARTBEAT, version, request, may_repeat=False)
            if response is not None:
                caller.check(response.error_code, "ConsumerGroupHeartbeat", RETRIABLE | _FENCED)
        self._die()
