"""A member of a share group (KIP-932): heartbeats, a share session, and acknowledgements of what it has acquired.

    step         requests
    -----------  -----------------------------------------------------------------------------------------------------------
    join, beat   ShareGroupHeartbeat
    fetch        ShareFetch: the first one begins a session; later ones change its partitions and may acknowledge
    acknowledge  ShareAcknowledge; with acknowledgements of the type renew, also a ShareFetch that fetches nothing
    leave        the session ends with its last acknowledgements, then the member leaves the group

    a member ...                             the records that it holds
    ---------------------------------------  -----------------------------------------------------------------------------------
    has no answer, or an error of a session  are forgotten; a new session begins
    pauses for longer than the lock          are acknowledged after that, as by a zombie
    dies                                     are forgotten
    dies silently                            are free when their locks end: the broker does not hear of the death; half of the
                                             members die so when draining begins
    has kept records                         are acknowledged later or never

Only fetches and acknowledgements in a session are repeated: the first and the last request of a session are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import SHARE_ACKNOWLEDGE, SHARE_FETCH, SHARE_GROUP_HEARTBEAT
from kcli.protocol.message import Message
from kcli.simulator.client import Task
from kcli.simulator.coordination.group_member import DIED_SHARE, ENDED_SHARE, HEARTBEAT_MS, LEFT_SHARE, MAX_PAUSE_MS
from kcli.simulator.coordination.share_acknowledging import Choice, choose, encode_batches
from kcli.simulator.coordination.share_history import RENEW, Acknowledgement, ShareTerms
from kcli.simulator.coordination.share_holding import ShareHolding
from kcli.simulator.coordination.share_resetting import ShareGroupGate
from kcli.simulator.coordination.stage import GROUP_KEY, RETRIABLE, Caller, Stage
from kcli.simulator.world import PAUSE_MS

LEAVE_EPOCH, FINAL_EPOCH = -1, -1
RENEW_VERSION = 2
ZOMBIE_SHARE = 0.08
HANGING_SHARE = 0.3
SILENT_SHARE = 0.06
UNNOTICED_SHARE = 0.5  # of the other deaths, perhaps without records
LAST_SHARE = 0.5  # of the members that die silently when draining begins
MAX_WAITS_MS = (0, 100, 300, 300)
_GONE = frozenset((error_codes.UNKNOWN_MEMBER_ID, error_codes.FENCED_MEMBER_EPOCH, error_codes.GROUP_ID_NOT_FOUND))
SESSION_ERRORS = frozenset((error_codes.SHARE_SESSION_NOT_FOUND, error_codes.INVALID_SHARE_SESSION_EPOCH))


class ShareMember:
    """See the head of this module."""

    def __init__(
        self,
        stage: Stage,
        group: str,
        name: str,
        rng: Random,
        terms: ShareTerms,
        *,
        may_end: bool,
        gate: ShareGroupGate | None = None,
    ) -> None:
        self.name = name
        self._earlier_count = 0  # of records in earlier lives
        self._holding: ShareHolding
        self._stage = stage
        self._group = group
        self._rng = rng
        self._terms = terms
        self._gate = gate
        self._may_end = may_end  # it may die for good, since the group has another member
        self._acknowledged_share = rng.choice((0.1, 0.6))
        self._dies_at_draining = rng.random() < LAST_SHARE
        self._has_ended = False
        self._lives = 0
        self._begin_life()

    @property
    def _diligence(self) -> float:
        """How often the member acknowledges after a fetch or with one."""
        return 0.6 if self._stage.is_draining else self._acknowledged_share

    @property
    def record_count(self) -> int:
        """How many records the member has got."""
        return self._earlier_count + self._holding.record_count

    def _begin_life(self) -> None:
        """Begin as a new member, with a connection of its own."""
        self._lives += 1
        self._caller = Caller(self._stage, f"{self.name}.{self._lives}", self._rng)
        self._member_id = str(Uuid(self._rng.randbytes(16)))
        self._member_epoch = 0
        self._next_beat_ms = 0
        self._assigned: set[TopicPartition] = set()
        if self._lives > 1:
            self._earlier_count += self._holding.record_count
        stage, caller = self._stage, self._caller
        self._holding = ShareHolding(stage, self._group, self.name, self._member_id, self._terms, caller.check, self._gate)
        self._end_session()

    def _end_session(self) -> None:
        """Forget the session and all records."""
        self._epoch = 0
        self._in_session: set[TopicPartition] = set()
        self._holding.held = {}

    def run(self) -> Task[None]:
        """Read until the workload is over. Raises SimulationFailure."""
        yield from self._caller.find_coordinator(GROUP_KEY, self._group)
        while not self._stage.is_over:
            if self._gate is not None:
                yield from self._pass(self._gate)
            if self._stage.now_ms >= self._next_beat_ms:
                yield from self._beat()
            is_draining = self._stage.is_draining and (self._gate is None or self._gate.is_idle)
            if self._assigned or self._in_session:
                yield from self._fetch()
            if is_draining and self._dies_at_draining and self._epoch and self._holding.holds_records:
                self._dies_at_draining = False
                self._die_silently()
            if self._holding.held and self._rng.random() < self._diligence:
                yield from self._acknowledge()
            yield from self._misbehave()
            if self._has_ended:
                self._stage.world.trace.add(self.name, "has ended without a word")
                if self._gate is not None:
                    self._gate.inside.discard(self.name)
                return
            yield self._rng.randrange(1, MAX_PAUSE_MS // 2)
        yield from self._leave()

    def _pass(self, gate: ShareGroupGate) -> Task[None]:
        """Leave the group while the gate is closed."""
        if not gate.is_open:
            is_hanging = self._epoch > 0 and self._rng.random() < HANGING_SHARE and not self._stage.is_draining
            yield from self._leave(is_hanging=is_hanging)
            gate.inside.discard(self.name)
        while not gate.is_open and not self._stage.is_over:
            yield PAUSE_MS
        gate.inside.add(self.name)

    # -------------------------------------------------------------------------------------------------------------- heartbeat

    def _beat(self) -> Task[None]:
        stage, caller, is_joining = self._stage, self._caller, self._member_epoch == 0
        if self._gate is not None:
            self._gate.joined.add(self._member_id)
        request = stage.world.request(
            SHARE_GROUP_HEARTBEAT,
            group_id=self._group,
            member_id=self._member_id,
            member_epoch=self._member_epoch,
            subscribed_topic_names=[self._terms.topic] if is_joining or self._rng.random() < 0.1 else None,
        )
        # A join that is executed late would let the member in while an administrator sets the offsets of the empty group.
        may_repeat = not is_joining or self._gate is None
        version = caller.version(SHARE_GROUP_HEARTBEAT)
        response = yield from caller.call(SHARE_GROUP_HEARTBEAT, version, request, may_repeat=may_repeat)
        self._next_beat_ms = stage.now_ms + HEARTBEAT_MS
        if response is None:
            self._end_session()  # the connection is closed
            # The response may have had an assignment; a joining heartbeat returns it again.
            self._member_epoch = 0
            return
        if response.error_code in _GONE:
            self._member_epoch, self._assigned = 0, set()
            return
        caller.check(response.error_code, "ShareGroupHeartbeat")
        if response.error_code:
            return
        if response.member_epoch < self._member_epoch:
            caller.check(error_codes.UNKNOWN_SERVER_ERROR, f"a heartbeat got epoch {response.member_epoch}; it")
        self._member_epoch = response.member_epoch
        if response.assignment is not None:
            self._assigned = {
                (stage.topic_name(topic.topic_id), index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            }

    # ------------------------------------------------------------------------------------------------------------------ fetch

    def _fetch(self) -> Task[None]:
        """Fetch, in a new session if there is none; a later fetch may acknowledge, too."""
        stage, rng, caller = self._stage, self._rng, self._caller
        version, sent_ms, life = caller.version(SHARE_FETCH), stage.now_ms, self._holding.life
        choices = self._choose() if self._epoch and rng.random() < self._diligence else {}
        is_renewal = any(one.kind == RENEW for found in choices.values() for one in found)
        if is_renewal:
            version = RENEW_VERSION
        said = self._holding.say(choices)
        added = self._assigned - self._in_session
        forgotten = self._in_session - self._assigned if self._epoch else set()
        request = stage.world.request(
            SHARE_FETCH,
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            max_wait_ms=0 if is_renewal else rng.choice(MAX_WAITS_MS),
            min_bytes=0 if is_renewal else 1,
            max_bytes=0 if is_renewal else rng.choice((1, 300, 1 << 20)),
            max_records=0 if is_renewal else rng.choice((1, 5, 500)),
            batch_size=rng.choice((1, 5, 500)),
            share_acquire_mode=rng.choice((0, 1)) if version >= RENEW_VERSION else 0,
            is_renew_ack=is_renewal,
            topics=self._topics(SHARE_FETCH, added, choices),
            forgotten_topics_data=self._forgotten(forgotten),
        )
        wait_ms = 0 if is_renewal else request.max_wait_ms
        response = yield from caller.call(SHARE_FETCH, version, request, wait_ms=wait_ms, may_repeat=self._epoch > 0)
        is_lost = caller.was_sent if response is None else response.error_code != 0
        self._holding.note_lost(sent_ms, count=is_lost + caller.was_repeated)
        if not self._is_answered(response, said, sent_ms, "ShareFetch"):
            return
        assert response is not None
        self._in_session = (self._in_session | added) - forgotten
        codes: dict[TopicPartition, int] = {}
        for topic in response.responses:
            name = stage.topic_name(topic.topic_id)
            for part in topic.partitions:
                codes[name, part.partition_index] = part.acknowledge_error_code
                if part.error_code:
                    allowed = self._holding.allowed_errors((name, part.partition_index))
                    caller.check(part.error_code, f"ShareFetch of {name}-{part.partition_index}", allowed)
                    self._holding.note_lost(sent_ms, count=1)
        self._holding.settle(said, codes, life)
        for topic in response.responses:
            for part in topic.partitions:
                if not part.error_code:
                    self._holding.take((stage.topic_name(topic.topic_id), part.partition_index), part, sent_ms, life)

    def _forgotten(self, partitions: Iterable[TopicPartition]) -> list[Message]:
        make, topics = self._stage.world.struct, self._stage.topics
        return [
            make(SHARE_FETCH, "ForgottenTopic", topic_id=topics[name].topic_id, partitions=[index])
            for name, index in sorted(partitions)
        ]

    # ------------------------------------------------------------------------------------------------------------ acknowledge

    def _choose(self) -> dict[TopicPartition, list[Choice]]:
        return choose(self._rng, self._holding.held, is_draining=self._stage.is_draining)

    def _topics(
        self, api: int, added: Iterable[TopicPartition], choices: Mapping[TopicPartition, list[Choice]]
    ) -> list[Message]:
        """Return the topics of a request: partitions for the session, and acknowledgements."""
        world = self._stage.world
        topic_struct, struct = (
            ("FetchTopic", "FetchPartition") if api == SHARE_FETCH else ("AcknowledgeTopic", "AcknowledgePartition")
        )
        topics: dict[str, Message] = {}
        for partition in sorted({*added, *choices}):
            name, index = partition
            if name not in topics:
                topics[name] = world.struct(api, topic_struct, topic_id=self._stage.topics[name].topic_id, partitions=[])
            batches = [
                world.struct(api, "AcknowledgementBatch", first_offset=first, last_offset=last, acknowledge_types=types)
                for first, last, types in encode_batches(self._rng, choices.get(partition, []))
            ]
            topics[name].partitions.append(world.struct(api, struct, partition_index=index, acknowledgement_batches=batches))
        return list(topics.values())

    def _acknowledge(self, *, is_last: bool = False) -> Task[None]:
        """Acknowledge some of the records; `is_last` ends the session."""
        stage, caller = self._stage, self._caller
        choices = self._choose()
        if not choices and not is_last:
            return
        is_renewal = any(one.kind == RENEW for found in choices.values() for one in found)
        version = RENEW_VERSION if is_renewal else caller.version(SHARE_ACKNOWLEDGE)
        sent_ms, said, life = stage.now_ms, self._holding.say(choices), self._holding.life
        request = stage.world.request(
            SHARE_ACKNOWLEDGE,
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=FINAL_EPOCH if is_last else self._epoch,
            is_renew_ack=is_renewal,
            topics=self._topics(SHARE_ACKNOWLEDGE, (), choices),
        )
        response = yield from caller.call(SHARE_ACKNOWLEDGE, version, request, may_repeat=not is_last)
        if not self._is_answered(response, said, sent_ms, "ShareAcknowledge"):
            return
        assert response is not None
        codes = {
            (stage.topic_name(topic.topic_id), part.partition_index): part.error_code
            for topic in response.responses
            for part in topic.partitions
        }
        self._holding.settle(said, codes, life)
        if is_last:
            self._end_session()

    def _is_answered(self, response: Message | None, said: list[Acknowledgement], sent_ms: int, what: str) -> bool:
        """Return whether a request was executed in its session, which ends if it was not."""
        is_executed = response is not None and not response.error_code
        self._holding.answered(said, sent_ms, is_executed=is_executed, is_stray=self._caller.was_stray)
        if is_executed:
            self._epoch += 1
            return True
        if response is not None:
            self._caller.check(response.error_code, what, RETRIABLE | SESSION_ERRORS)
            self._stage.world.trace.add(self.name, f"{what} got {error_codes.NAMES[response.error_code]}")
        self._end_session()
        return False

    # ----------------------------------------------------------------------------------------------------------------- faults

    def _misbehave(self) -> Task[None]:
        """Pause with records, perhaps for longer than the lock, and acknowledge then; die; or leave."""
        rng = self._rng
        if self._stage.is_draining:
            return
        choice = rng.random()
        if choice < ZOMBIE_SHARE:
            if not self._holding.held:
                return
            self._stage.world.trace.add(self.name, "pauses")
            yield rng.randrange(2 * self._terms.lock_ms)
            yield from self._acknowledge()
        elif choice < ZOMBIE_SHARE + DIED_SHARE:
            self._stage.world.trace.add(self.name, f"{self._member_id} dies")
            if rng.random() < UNNOTICED_SHARE:
                self._die_silently()
            else:
                self._caller.disconnect()
                self._begin_life()
            self._has_ended = self._may_end and rng.random() < ENDED_SHARE
            yield rng.randrange(2 * self._terms.lock_ms)
        elif choice < ZOMBIE_SHARE + DIED_SHARE + LEFT_SHARE:
            yield from self._leave()
            yield rng.randrange(PAUSE_MS)
        elif choice < ZOMBIE_SHARE + DIED_SHARE + LEFT_SHARE + SILENT_SHARE and self._holding.holds_records:
            self._die_silently()

    def _die_silently(self) -> None:
        """Begin as another member; the broker gets nothing more from this one, nor the end of its connection."""
        count = self._holding.note_silent_death()
        self._stage.world.trace.add(self.name, f"{self._member_id} dies silently with {count} records")
        if self._gate is not None:
            self._gate.abandoned.append(self._caller)
        self._begin_life()

    def _leave(self, *, is_hanging: bool = False) -> Task[None]:
        """End the session, leave the group, and begin again as another member.

        A process that hangs leaves the group, but its connection and its share session stay.
        """
        caller = self._caller
        if self._epoch and not is_hanging:
            yield from self._acknowledge(is_last=True)
        if self._member_epoch > 0:
            request = self._stage.world.request(
                SHARE_GROUP_HEARTBEAT, group_id=self._group, member_id=self._member_id, member_epoch=LEAVE_EPOCH
            )
            version = caller.version(SHARE_GROUP_HEARTBEAT)
            response = yield from caller.call(SHARE_GROUP_HEARTBEAT, version, request)
            if response is not None:
                caller.check(response.error_code, "ShareGroupHeartbeat", RETRIABLE | _GONE)
        if is_hanging and self._gate is not None:
            self._stage.world.trace.add(self.name, "hangs after it has left")
            self._gate.abandoned.append(caller)
        else:
            caller.disconnect()
        self._begin_life()
