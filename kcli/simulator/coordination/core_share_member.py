"""A member of a share group: an application on the core of kcli's own share consumer.

    the application           what it does
    ------------------------  --------------------------------------------------------------------------------------------
    polls                     as the shells do; each record must be one that the broker has given to the member, with its
                              delivery count
    implicit acknowledgement  accepts by the next poll, or by a commit
    explicit                  accepts, releases, rejects or renews each record, then commits, waiting or not, or polls
    misbehaves                pauses with records, perhaps for longer than the lock; dies, so that the broker hears of it or
                              not; closes, and comes back

What a member holds is known from the frames (ShareHolding). An acknowledgement on the wire must be what the application has
said, and a result that the client reports must be the broker's.
"""

from __future__ import annotations

from functools import partial
from random import Random

from kcli.client.consumer.share_config import EXPLICIT, IMPLICIT, ShareConsumerConfig
from kcli.client.consumer.share_consumer import ShareConsumerCore
from kcli.client.consumer.share_records import AcknowledgeType, ShareRecord
from kcli.client.errors import ClientError
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import SHARE_ACKNOWLEDGE, SHARE_FETCH
from kcli.protocol.message import Message
from kcli.simulator.client import Task
from kcli.simulator.coordination.group_member import DIED_SHARE, ENDED_SHARE, LEFT_SHARE
from kcli.simulator.coordination.share_acknowledging import Choice
from kcli.simulator.coordination.share_history import ACCEPT, GAP, REJECT, RELEASE, RENEW, Acknowledgement, ShareTerms
from kcli.simulator.coordination.share_holding import ShareHolding
from kcli.simulator.coordination.share_member import LAST_SHARE, SESSION_ERRORS, SILENT_SHARE, UNNOTICED_SHARE, ZOMBIE_SHARE
from kcli.simulator.coordination.stage import RETRIABLE, Stage
from kcli.simulator.core_client import CoreClient, WireRequest
from kcli.simulator.partition_ledger import SimulationFailure
from kcli.simulator.world import PAUSE_MS

POLL_MS = 200
CLOSE_MS = 4000
_KINDS, _WEIGHTS = (ACCEPT, RELEASE, REJECT, RENEW), (50, 25, 10, 15)
_FIRST_EPOCH, _LAST_EPOCH = 0, -1
_Place = tuple[TopicPartition, int]


def _may_repeat(request: WireRequest) -> bool:
    """Return whether a request may come a second time: neither the first one of a session nor the last one."""
    if request.api_key not in (SHARE_FETCH, SHARE_ACKNOWLEDGE):
        return False
    return request.decode().share_session_epoch not in (_FIRST_EPOCH, _LAST_EPOCH)


class CoreShareMember:
    """See the head of this module."""

    def __init__(self, stage: Stage, group: str, name: str, rng: Random, terms: ShareTerms, *, may_end: bool) -> None:
        self.name = name
        self._earlier_count = 0  # of records in earlier lives
        self._stage = stage
        self._group = group
        self._rng = rng
        self._terms = terms
        self._may_end = may_end  # it may die for good, since the group has another member
        self._is_explicit = rng.random() < 0.7
        self._dies_at_draining = rng.random() < LAST_SHARE
        self._has_ended = False
        self._config = ShareConsumerConfig(
            group_id=group,
            share_acknowledgement_mode=EXPLICIT if self._is_explicit else IMPLICIT,
            share_acquire_mode=rng.choice(("batch_optimized", "record_limit")),
            max_poll_records=rng.choice((1, 5, 500)),
            max_poll_interval_ms=rng.choice((2500, 10_000)),
            fetch_max_bytes=rng.choice((1, 300, 1 << 20)),
            fetch_max_wait_ms=rng.choice((0, 50, 100)),  # below all request timeouts
        )
        self._lives = 0
        self._client: CoreClient
        self._core: ShareConsumerCore
        self._holding: ShareHolding
        self._records: list[ShareRecord] = []  # of the last poll
        self._words: dict[_Place, int] = {}  # what the application has said last
        self._accepted: dict[_Place, bool] = {}  # whether the broker has accepted the last acknowledgement

    @property
    def record_count(self) -> int:
        """How many records the member has got."""
        return self._earlier_count + (self._holding.record_count if self._lives else 0)

    # -------------------------------------------------------------------------------------------------------------- lives

    def _begin_life(self) -> None:
        """Begin as a new process."""
        stage, rng = self._stage, self._rng
        if self._lives:
            self._earlier_count += self._holding.record_count
        self._lives += 1
        self._client = stage.core_client(f"{self.name}.{self._lives}", rng, stage.client_config(rng), _may_repeat)
        self._core = self._make_core(self._client)
        self._core.keeps_results = True
        member_id = self._core.membership.member_id
        self._holding = ShareHolding(stage, self._group, self.name, member_id, self._terms, self._check)
        for api_key in (SHARE_FETCH, SHARE_ACKNOWLEDGE):
            self._client.observers[api_key] = partial(self._sent, self._holding)
        self._records, self._words, self._accepted = [], {}, {}
        self._client.run(self._core.poll)
        self._client.call(partial(self._core.subscribe, [self._terms.topic]))

    def _make_core(self, client: CoreClient) -> ShareConsumerCore:
        return ShareConsumerCore(client.network, self._config)

    def _check(self, code: int, what: str, allowed: frozenset[int] = RETRIABLE) -> None:
        if code and code not in allowed:
            raise SimulationFailure(f"{self.name}: {what} returned error {error_codes.NAMES.get(code, code)}")

    def run(self) -> Task[None]:
        """Read until the workload is over. Raises SimulationFailure."""
        self._begin_life()
        stage = self._stage
        while not stage.is_over:
            yield from self._poll(self._rng.randrange(POLL_MS))
            if stage.is_draining and self._dies_at_draining and self._holding.holds_records:
                self._dies_at_draining = False
                self._die_silently()
                continue
            yield from self._acknowledge()
            yield from self._misbehave()
            if self._has_ended:
                stage.world.trace.add(self.name, "has ended without a word")
                self._client.kill()
                return
            yield self._rng.randrange(1, PAUSE_MS)
        yield from self._close()

    # --------------------------------------------------------------------------------------------------------------- poll

    def _poll(self, timeout_ms: int) -> Task[None]:
        """Poll as a shell does; all records of the poll before are acknowledged. Raises SimulationFailure."""
        client, core = self._client, self._core
        if not self._is_explicit:
            self._say_all(ACCEPT)
        end_ms = client.now_ms + timeout_ms
        try:
            client.call(core.polled)
            while True:
                self._take_results()
                records = client.call(core.collect)
                left_ms = end_ms - client.now_ms
                if records or left_ms <= 0:
                    break
                yield client.start(partial(core.await_work, timeout_ms=left_ms))
                client.call(core.waiting)
        except ClientError as error:
            raise SimulationFailure(f"{self.name}: a poll has failed: {type(error).__name__}: {error}") from error
        core.poll_ended()
        self._records = records
        for record in records:
            self._check_record(record)

    def _check_record(self, record: ShareRecord) -> None:
        """Check that a record is one that the broker has given to the member. Raises SimulationFailure."""
        held = self._holding.held.get((record.topic, record.partition), {}).get(record.offset)
        if held is None or (held.value, held.count) != (record.value, record.delivery_count):
            what = "is not one that it holds" if held is None else f"has delivery count {held.count} and value {held.value!r}"
            raise SimulationFailure(
                f"{self.name} got {record.value!r} of {record.topic}-{record.partition} at offset {record.offset} with "
                f"delivery count {record.delivery_count}, which {what}"
            )

    def _take_results(self) -> None:
        """Compare the results that the client reports with the answers. Raises SimulationFailure."""
        while self._core.results:
            result = self._core.results.popleft()
            for offset in sorted(result.offsets) if result.error is None else ():
                if not self._accepted.get((result.partition, offset)):
                    raise SimulationFailure(
                        f"{self.name}: the acknowledgement of {result.partition} at {offset} is reported as done, but the "
                        "broker has not accepted it"
                    )

    # --------------------------------------------------------------------------------------------------------- acknowledge

    def _say_all(self, kind: int | None) -> None:
        """Say of all records of the last poll what becomes of them, a random kind with None."""
        for record in self._records:
            said = self._rng.choices(_KINDS, _WEIGHTS)[0] if kind is None else kind
            self._words[(record.topic, record.partition), record.offset] = said
            if self._is_explicit:
                place = record.topic, record.partition, record.offset
                self._core.acknowledge(*place, AcknowledgeType(said))
        self._records = []

    def _acknowledge(self) -> Task[None]:
        """Acknowledge the records; commit, wait for the result, or leave it to the next poll."""
        rng, client, core = self._rng, self._client, self._core
        if self._is_explicit:
            self._say_all(ACCEPT if self._stage.is_draining or rng.random() < 0.3 else None)
        choice = rng.random()
        if choice < 0.5 and not self._is_explicit:
            self._say_all(ACCEPT)
        if choice < 0.25:
            done: list[bool] = []
            client.call(lambda now_ms: core.commit(lambda results, now_ms: done.append(True), now_ms, 2000))
            while not done:
                yield rng.randrange(1, 20)
        elif choice < 0.5:
            client.call(lambda now_ms: core.commit(lambda results, now_ms: None, now_ms))
        self._take_results()

    # --------------------------------------------------------------------------------------------------------- the frames

    def _sent(self, holding: ShareHolding, request: WireRequest) -> None:
        """Record a request of a session. Raises SimulationFailure for an acknowledgement that the application has not made."""
        message, is_fetch = request.decode(), request.api_key == SHARE_FETCH
        if message.share_session_epoch == _FIRST_EPOCH:
            holding.end_session(request.address)
        choices: dict[TopicPartition, list[Choice]] = {}
        for topic in message.topics:
            name = self._stage.topic_name(topic.topic_id)
            for part in topic.partitions:
                where = name, part.partition_index
                for batch in part.acknowledgement_batches:
                    for offset in range(batch.first_offset, batch.last_offset + 1):
                        types = batch.acknowledge_types
                        kind = types[offset - batch.first_offset] if len(types) > 1 else types[0]
                        choices.setdefault(where, []).append(self._choice(holding, where, offset, kind))
        said, life = holding.say(choices), holding.life
        request.on_end = partial(self._ended, holding, request, said, life, is_fetch)

    def _choice(self, holding: ShareHolding, where: TopicPartition, offset: int, kind: int) -> Choice:
        delivery = holding.held.get(where, {}).get(offset)
        if delivery is None:
            raise SimulationFailure(
                f"{self.name} acknowledges offset {offset} of {where[0]}-{where[1]}, which it does not hold"
            )
        word = GAP if delivery.value is None else self._words.get((where, offset))
        if kind != word:
            raise SimulationFailure(
                f"{self.name} sends acknowledgement {kind} for offset {offset} of {where[0]}-{where[1]}, but the application "
                f"has said {word}"
            )
        return Choice(delivery, kind)

    def _ended(
        self,
        holding: ShareHolding,
        request: WireRequest,
        said: list[Acknowledgement],
        life: int,
        is_fetch: bool,
        answer: Message | None,
    ) -> None:
        """Take the answer to a request, None if it was lost. Raises SimulationFailure for an error that is not allowed."""
        stage, sent_ms = self._stage, request.sent_ms
        is_executed = answer is not None and not answer.error_code
        for one in said:
            self._accepted[one.delivery.partition, one.delivery.offset] = False
        if is_fetch:
            holding.note_lost(sent_ms, count=(not is_executed) + request.is_repeated)
        is_stray = answer is None or request.is_repeated
        holding.answered(said, sent_ms, is_executed=is_executed, is_stray=is_stray, broker=request.address)
        if answer is None or answer.error_code:
            self._check(0 if answer is None else answer.error_code, "a request of a share session", RETRIABLE | SESSION_ERRORS)
            if answer is None or answer.error_code in SESSION_ERRORS:
                holding.end_session(request.address)
            return
        codes: dict[TopicPartition, int] = {}
        parts = [
            ((stage.topic_name(topic.topic_id), part.partition_index), part)
            for topic in answer.responses
            for part in topic.partitions
        ]
        for where, part in parts:
            codes[where] = part.acknowledge_error_code if is_fetch else part.error_code
            if is_fetch and part.error_code:
                self._check(part.error_code, f"ShareFetch of {where[0]}-{where[1]}", holding.allowed_errors(where))
                holding.note_lost(sent_ms, count=1)
        holding.settle(said, codes, life)
        for one in said:
            place = one.delivery.partition, one.delivery.offset
            self._accepted[place] = one.answered_ms is not None
        for where, part in parts:
            if is_fetch and not part.error_code:
                holding.take(where, part, sent_ms, life, request.address)

    # ------------------------------------------------------------------------------------------------------------- faults

    def _misbehave(self) -> Task[None]:
        rng, trace = self._rng, self._stage.world.trace
        if self._stage.is_draining:
            return
        choice = rng.random()
        if choice < ZOMBIE_SHARE:
            if self._holding.holds_records:
                trace.add(self.name, "pauses")
                yield rng.randrange(2 * self._terms.lock_ms)
        elif choice < ZOMBIE_SHARE + DIED_SHARE:
            if rng.random() < UNNOTICED_SHARE:
                self._die_silently()
            else:
                trace.add(self.name, f"{self._core.membership.member_id} dies")
                self._client.kill()
                self._begin_life()
            self._has_ended = self._may_end and rng.random() < ENDED_SHARE
            if not self._has_ended:
                yield rng.randrange(2 * self._terms.lock_ms)
        elif choice < ZOMBIE_SHARE + DIED_SHARE + LEFT_SHARE:
            yield from self._close()
            yield rng.randrange(PAUSE_MS)
            self._begin_life()
        elif choice < ZOMBIE_SHARE + DIED_SHARE + LEFT_SHARE + SILENT_SHARE and self._holding.holds_records:
            self._die_silently()

    def _die_silently(self) -> None:
        """Begin as another process; the broker gets nothing more from this one, nor the end of its connections."""
        member_id = self._core.membership.member_id
        self._client.kill(is_silent=True)
        count = self._holding.note_silent_death()
        self._stage.world.trace.add(self.name, f"{member_id} dies silently with {count} records")
        self._begin_life()

    def _close(self) -> Task[None]:
        """End the session and leave the group, for a limited time."""
        self._stage.world.trace.add(self.name, "closes")
        client = self._client
        left = client.start(self._core.close)
        end_ms = client.now_ms + CLOSE_MS
        while not left.is_done and client.now_ms < end_ms:
            yield self._rng.randrange(1, 20)
        self._take_results()
        client.close()
