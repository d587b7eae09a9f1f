"""What a member of a share group holds, as its requests and their answers show it, and the entries of the history.

    of a request                  what is recorded
    ----------------------------  ------------------------------------------------------------------------------------------
    acknowledgements              `say`: they are under way, and the offsets are not held any more, unless they are renewed
    an answer                     `answered`: the session was there, so the member held what it holds
    acknowledgements are settled  `settle`: accepted, refused, or it is not known. One that is refused although the member
                                  held the records is an anomaly
    acquired records              `take`: deliveries, and a poll
    no answer                     `note_lost`: the broker may have acquired records for the member

Raw members (share_member) and those on kcli's own client (core_share_member) use it in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kcli.format.primitives import TopicPartition
from kcli.network.events import PeerAddress
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.simulator.coordination.fetching import batch_rows
from kcli.simulator.coordination.history import Poll
from kcli.simulator.coordination.share_acknowledging import Choice
from kcli.simulator.coordination.share_history import RENEW, Acknowledgement, Delivery, LostFetch, ShareTerms, SilentDeath
from kcli.simulator.coordination.share_resetting import ShareGroupGate
from kcli.simulator.coordination.stage import REPEATED_AFTER_MS, RETRIABLE, Stage
from kcli.simulator.sent_records import whole_batches

# The member does not hold the records any more, and the broker has changed nothing.
_REFUSED = frozenset((error_codes.INVALID_RECORD_STATE, error_codes.INVALID_REQUEST))

Held = dict[TopicPartition, dict[int, Delivery]]
# Raises SimulationFailure for an error code that is not allowed: code, what has it, what is allowed.
Check = Callable[[int, str, frozenset[int]], None]


class ShareHolding:
    """The deliveries of one life of a member; `held` are those that it has not acknowledged.

    A member has a share session with each broker; `broker` is its address, None for a raw member, which knows only one.
    """

    def __init__(
        self,
        stage: Stage,
        group: str,
        name: str,
        member_id: str,
        terms: ShareTerms,
        check: Check,
        gate: ShareGroupGate | None = None,
    ) -> None:
        self.held: Held = {}
        self.record_count = 0
        self._brokers: dict[TopicPartition, PeerAddress | None] = {}  # that gave the records of a partition
        self._stage = stage
        self._group = group
        self._name = name
        self._member_id = member_id
        self._terms = terms
        self._check = check
        self._gate = gate
        self._stray: set[tuple[TopicPartition, int]] = set()  # offsets that a stray request may acknowledge

    @property
    def holds_records(self) -> bool:
        """Whether the member holds a record."""
        return any(self.held.values())

    @property
    def life(self) -> int:
        """A number that changes when a leader may begin a share partition anew."""
        return self._stage.life()

    def note_lost(self, sent_ms: int, *, count: int) -> None:
        """Note that a fetch may have acquired records of which no member knows; `count`: if it was executed so often."""
        lost = LostFetch(self._group, self._member_id, sent_ms, self._stage.now_ms + REPEATED_AFTER_MS)
        self._stage.history.shares.lost_fetches += [lost] * count

    def note_silent_death(self) -> int:
        """Note that the member sends nothing any more, on a connection that stays open; return how many records it holds."""
        held = [one for found in self.held.values() for one in found.values()]
        held = [one for one in held if (one.partition, one.offset) not in self._stray]
        stage = self._stage
        stage.history.shares.silent_deaths.append(SilentDeath(self._group, stage.now_ms, held, stage.is_draining))
        return len(held)

    # ------------------------------------------------------------------------------------------------------- acquired

    def end_session(self, broker: PeerAddress | None) -> None:
        """Forget what the member holds in the session with a broker."""
        self.held = {one: held for one, held in self.held.items() if self._brokers[one] != broker}

    def take(
        self, partition: TopicPartition, part: Message, sent_ms: int, life: int, broker: PeerAddress | None = None
    ) -> None:
        """Take the acquired records of a partition."""
        self._brokers[partition] = broker
        stage, history = self._stage, self._stage.history
        values: dict[int, bytes] = {}
        data = bytes(part.records or b"")
        for batch in whole_batches(data):
            if not batch.is_control:
                values.update((offset, value or b"") for offset, _, value in batch_rows(data, batch))
        held, records, now_ms = self.held.setdefault(partition, {}), [], stage.now_ms
        life = life if life == self.life else -1
        for acquired in part.acquired_records:
            for offset in range(acquired.first_offset, acquired.last_offset + 1):
                delivery = Delivery(
                    history.shares.era_of(self._group, partition),
                    self._member_id,
                    partition,
                    offset,
                    values.get(offset),
                    acquired.delivery_count,
                    sent_ms,
                    now_ms,
                    sent_ms + self._terms.lock_ms,
                    life,
                )
                held[offset] = delivery
                history.shares.deliveries.append(delivery)
                if offset in values:
                    records.append((offset, values[offset]))
        if records:
            self.record_count += len(records)
            view, is_committed_only = history.new_view(), self._terms.is_committed_only
            # The poll has no range: the offsets between the records may be with other members.
            history.polls.append(Poll(self._name, None, view, partition, 0, 0, records, is_committed_only, now_ms))
            shown = ", ".join(f"{one.first_offset}-{one.last_offset} ({one.delivery_count})" for one in part.acquired_records)
            stage.world.trace.add(self._name, f"acquires {shown} of {partition[0]}-{partition[1]}")

    # --------------------------------------------------------------------------------------------------- acknowledged

    def say(self, choices: Mapping[TopicPartition, list[Choice]]) -> list[Acknowledgement]:
        """Record acknowledgements that are about to be sent. The offsets of all but renewals are not held any more."""
        said = [Acknowledgement(one.delivery, one.kind, self._stage.now_ms) for found in choices.values() for one in found]
        self._stage.history.shares.acknowledgements += said
        for one in said:
            if one.kind != RENEW:
                del self.held[one.delivery.partition][one.delivery.offset]
        return said

    def answered(
        self,
        said: list[Acknowledgement],
        sent_ms: int,
        *,
        is_executed: bool,
        is_stray: bool,
        broker: PeerAddress | None = None,
    ) -> None:
        """Take the end of a request: `is_executed` in its session, `is_stray` if it may be executed later or once more."""
        for one in said:
            one.is_stray = is_stray
            if is_stray:
                self._stray.add((one.delivery.partition, one.delivery.offset))
        if is_executed:
            for partition, held in self.held.items():
                for delivery in held.values() if self._brokers[partition] == broker else ():
                    self._confirm(delivery, sent_ms)
            for one in said:
                self._confirm(one.delivery, sent_ms)
            return
        for one in said:
            # A ShareFetch may find its session changed after it has acknowledged.
            one.is_stray = True

    def _confirm(self, delivery: Delivery, sent_ms: int) -> None:
        """Note that the session of a delivery was there when a request was executed that was sent at a time."""
        if (delivery.partition, delivery.offset) not in self._stray and delivery.life == self.life:
            delivery.held_until_ms = max(delivery.held_until_ms, min(sent_ms, delivery.lock_end_ms))

    def settle(self, said: list[Acknowledgement], codes: Mapping[TopicPartition, int], life: int) -> None:
        """Note what the broker has answered to acknowledgements, by partition."""
        by_partition: dict[TopicPartition, list[Acknowledgement]] = {}
        for one in said:
            by_partition.setdefault(one.delivery.partition, []).append(one)
        for partition, found in by_partition.items():
            code = codes.get(partition, error_codes.NONE)
            if code == error_codes.NONE:
                for one in found:
                    one.accept(self._stage.now_ms, self._terms.lock_ms)
                continue
            self._stage.world.trace.add(self._name, f"acknowledgement of {partition} got {error_codes.NAMES[code]}")
            if code in _REFUSED:
                self._refused(partition, found, life)
            else:
                self._check(code, "an acknowledgement", self.allowed_errors(partition))
                for one in found:
                    one.is_stray = True
            held = self.held.get(partition, {})
            for one in found:
                # The same answer, or one before, may have given the record to the member once more.
                if held.get(one.delivery.offset) is one.delivery:
                    del held[one.delivery.offset]

    def allowed_errors(self, partition: TopicPartition) -> frozenset[int]:
        """Return the errors that a partition may have.

        A leader that does not know yet that the topic or the state is deleted is refused by the share coordinator with
        INVALID_REQUEST, and answers, as Kafka's does, with UNKNOWN_SERVER_ERROR.
        """
        history, gate = self._stage.history, self._gate
        is_deleted = partition[0] in history.deleted_ms
        is_strict = history.shares.era(history.shares.era_of(self._group, partition)).is_strict
        is_reset = gate is not None and not (gate.is_open and is_strict)
        return RETRIABLE | {error_codes.UNKNOWN_SERVER_ERROR} if is_deleted or is_reset else RETRIABLE

    def _refused(self, partition: TopicPartition, found: list[Acknowledgement], life: int) -> None:
        now_ms, history = self._stage.now_ms, self._stage.history
        for one in found:
            one.is_refused = not one.is_stray
        era = history.shares.era_of(self._group, partition)
        is_certain = history.shares.era(era).is_strict and partition[0] not in history.deleted_ms
        is_held = is_certain and all(
            one.delivery.lock_end_ms > now_ms
            and one.delivery.group == era
            and one.delivery.life == life == self.life
            and (partition, one.delivery.offset) not in self._stray
            for one in found
        )
        if is_held:
            offsets = sorted(one.delivery.offset for one in found)
            history.shares.wrong_refusals.append(
                f"{self._name} held offsets {offsets} of {partition[0]}-{partition[1]} at {now_ms} ms, but its acknowledgement "
                f"was refused"
            )
