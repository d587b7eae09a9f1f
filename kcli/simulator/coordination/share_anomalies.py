"""The anomalies of share groups, one function for each; kcli.simulator.coordination.anomalies lists them.

anomaly                   what is wrong
------------------------  ----------------------------------------------------------------------------------------------------
redelivered_records       a record was delivered after the broker had answered that it is accepted or rejected
two_holders               a record was delivered again while a member certainly held it (also one that had died silently,
                          before its lock ended), or a member's acknowledgement was accepted after another member had got it
late_expiries             a record of a member that had died silently was delivered again long after its lock had ended
refused_holders           an acknowledgement was refused although the member held the records
wrong_delivery_counts     a delivery count is not above that of an earlier delivery, or above the number of deliveries
lost_deliveries           a visible record was neither accepted nor rejected, nor delivered up to the limit
stuck_share_partitions    at the end a group has a lag in a partition
early_deliveries          a record below the start offset was delivered, which an administrator had set
wrong_start_offsets       the broker has another start offset than an administrator had set

The first five, and early_deliveries, are checked in strict eras only: see ShareEra.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from kcli.simulator.coordination.history import FinalState, History, TopicPartition, topic_name
from kcli.simulator.coordination.node_settings import SESSIONS_MS
from kcli.simulator.coordination.share_history import FINAL, RELEASE, RENEW, Acknowledgement, Delivery, ShareHistory, group_of

GRACE_MS = 6000  # until another member fetches the record; a heartbeat before that may get no answer
_Place = tuple[str, TopicPartition, int]  # a group and an offset


def _named(place: _Place) -> str:
    group, (topic, index), offset = place
    return f"offset {offset} of {topic}-{index} in {group}"


def _deliveries(shares: ShareHistory, *, is_strict_only: bool = True) -> dict[_Place, list[Delivery]]:
    """Return the deliveries of each offset, in the order of their answers."""
    found: dict[_Place, list[Delivery]] = defaultdict(list)
    for one in shares.deliveries:
        if is_strict_only and not shares.era(one.group).is_strict:
            continue
        found[one.group, one.partition, one.offset].append(one)
    return found


def _acknowledgements(shares: ShareHistory) -> dict[_Place, list[Acknowledgement]]:
    found: dict[_Place, list[Acknowledgement]] = defaultdict(list)
    for one in shares.acknowledgements:
        delivery = one.delivery
        found[delivery.group, delivery.partition, delivery.offset].append(one)
    return found


def redelivered_records(history: History, final: FinalState) -> Iterator[str]:
    """Yield deliveries of offsets that were accepted, rejected or acknowledged as a gap before."""
    deliveries = _deliveries(history.shares)
    for place, acknowledgements in _acknowledgements(history.shares).items():
        ends = [one.answered_ms for one in acknowledgements if one.kind in FINAL and one.answered_ms is not None]
        for one in deliveries[place] if ends else ():
            if one.sent_ms > min(ends):
                yield (
                    f"{one.member} got {_named(place)} at {one.answered_ms} ms, which was acknowledged for good at "
                    f"{min(ends)} ms"
                )


def two_holders(history: History, final: FinalState) -> Iterator[str]:
    """Yield deliveries of offsets that another delivery certainly holds, and acknowledgements after another delivery."""
    for death, held, following in history.shares.expired_locks(is_draining=True):
        is_certain = held.partition[0] not in history.deleted_ms and history.shares.era(held.group).is_strict
        if is_certain and following.answered_ms < held.lock_end_ms:
            place = held.group, held.partition, held.offset
            yield (
                f"{following.member} got {_named(place)} at {following.answered_ms} ms, but {held.member}, which has sent "
                f"nothing since {death.at_ms} ms, has a lock until {held.lock_end_ms} ms"
            )
    acknowledgements = _acknowledgements(history.shares)
    for place, deliveries in _deliveries(history.shares).items():
        for held in deliveries:
            for one in deliveries:
                if one.sent_ms > held.answered_ms and one.answered_ms < held.held_until_ms:
                    yield (
                        f"{one.member} got {_named(place)} at {one.answered_ms} ms, but {held.member} has held it since "
                        f"{held.answered_ms} ms until {held.held_until_ms} ms"
                    )
            for late in acknowledgements[place]:
                is_ended = _may_be_ended(late, deliveries, acknowledgements[place], history.shares)
                if not is_ended and _is_late(late, held, history.shares):
                    yield (
                        f"{late.delivery.member} acknowledged {_named(place)} at {late.answered_ms} ms, but {held.member} "
                        f"got it at {held.answered_ms} ms"
                    )


def _is_late(late: Acknowledgement, other: Delivery, shares: ShareHistory) -> bool:
    """Return whether an acknowledgement was accepted after another member had got the record.

    The member may have got it again by a fetch that it does not know of.
    """
    mine = late.delivery
    if late.answered_ms is None or mine.member == other.member:
        return False
    if not (mine.answered_ms < other.sent_ms and other.answered_ms < late.sent_ms):
        return False
    return not any(lost.member == mine.member and lost.last_ms >= other.sent_ms for lost in shares.lost_fetches)


def _may_be_ended(
    late: Acknowledgement,
    deliveries: Iterable[Delivery],
    acknowledgements: Iterable[Acknowledgement],
    shares: ShareHistory,
) -> bool:
    """Return whether the start offset may be above the record: then the broker skips an acknowledgement without an error.

    Another acknowledgement or the last delivery may have ended the record before.
    """
    if late.answered_ms is None:
        return False
    limit = shares.terms_of(late.delivery.group).delivery_limit
    return any(
        one is not late and one.kind in FINAL and not one.is_refused and one.sent_ms <= late.answered_ms
        for one in acknowledgements
    ) or any(one.count >= limit and one.sent_ms <= late.answered_ms for one in deliveries)


def late_expiries(history: History, final: FinalState) -> Iterator[str]:
    """Yield deliveries that came too late for the lock of a member that died silently while the workload drained.

    Its partitions may have no other reader until the group has removed it, and one that died later, too.
    """
    shares = history.shares
    last_deaths_ms = {one.group: one.at_ms for one in shares.silent_deaths if one.is_draining}
    renewed = {one.delivery for one in shares.acknowledgements if one.kind == RENEW}
    for death, held, following in shares.expired_locks(is_draining=True):
        if held in renewed or held.partition[0] in history.deleted_ms or not shares.era(held.group).is_strict:
            continue
        group = group_of(held.group)
        # A fetch whose answer was lost may have got the record first.
        lost_ms = max((lost.last_ms for lost in shares.lost_fetches if lost.group == group), default=0)
        due_ms = max(held.answered_ms, lost_ms) + shares.terms[group].lock_ms
        due_ms = max(due_ms, last_deaths_ms[group] + max(SESSIONS_MS)) + GRACE_MS
        if following.answered_ms > due_ms:
            place = held.group, held.partition, held.offset
            yield (
                f"{following.member} got {_named(place)} at {following.answered_ms} ms, but {held.member} had got it at "
                f"{held.answered_ms} ms and has sent nothing since {death.at_ms} ms"
            )


def refused_holders(history: History, final: FinalState) -> Iterator[str]:
    """Yield acknowledgements that were refused although their member held all of the records."""
    yield from history.shares.wrong_refusals


def wrong_delivery_counts(history: History, final: FinalState) -> Iterator[str]:
    """Yield delivery counts that are too low or too high.

    A count is kept while the broker runs; after a crash only the counts of releases that were answered are certain.
    """
    shares = history.shares
    acknowledgements = _acknowledgements(shares)
    for place, deliveries in _deliveries(shares).items():
        limit, era = shares.terms_of(place[0]).delivery_limit, shares.era(place[0])
        for one in deliveries:
            before = [other for other in deliveries if other.answered_ms < one.sent_ms]
            same_life = [other.count for other in before if other.life == one.life != -1]
            released = [
                released.delivery.count
                for released in acknowledgements[place]
                if released.kind == RELEASE and released.answered_ms is not None and released.answered_ms < one.sent_ms
            ]
            least = max((*same_life, *released), default=0) + 1
            possible = sum(other.sent_ms <= one.answered_ms for other in deliveries)
            possible += sum(
                lost.group == group_of(one.group) and lost.sent_ms <= one.answered_ms and lost.last_ms >= era.begin_ms
                for lost in shares.lost_fetches
            )
            most = min(limit, possible)
            if not least <= one.count <= most:
                yield f"{one.member} got {_named(place)} with delivery count {one.count}, not {least} to {most}"


def lost_deliveries(history: History, final: FinalState) -> Iterator[str]:
    """Yield visible records that a group never got to the end of their life."""
    shares = history.shares
    known, acknowledged = _deliveries(shares, is_strict_only=False), _acknowledgements(shares)
    for group, terms in shares.terms.items():
        for partition, records in final.logs.items():
            if topic_name(partition[0]) != terms.topic:
                continue
            name = shares.era_of(group, partition)
            era = shares.era(name)
            start = era.starts.get(partition, 0)
            for record in records:
                place = name, partition, record.offset
                if record.offset < start or (terms.is_committed_only and not record.is_visible):
                    continue
                if any(one.kind in FINAL and not one.is_refused for one in acknowledged[place]):
                    continue
                last = max(known[place], key=lambda one: one.count, default=None)
                write = history.writes.get(record.value)
                since_ms = last.sent_ms if last is not None else write.sent_ms if write is not None else 0
                since_ms = max(since_ms, era.begin_ms)
                count = last.count if last is not None else 0
                unknown = sum(lost.group == group and lost.last_ms >= since_ms for lost in shares.lost_fetches)
                if count + unknown < terms.delivery_limit:
                    yield (
                        f"{_named(place)} ({record.value!r}) was delivered {count} times and neither accepted nor rejected; "
                        f"{unknown} fetches after {since_ms} ms were not answered"
                    )


def stuck_share_partitions(history: History, final: FinalState) -> Iterator[str]:
    """Yield partitions that a group has not finished.

    Invisible records may be left to a group with read_committed, and markers behind the last record to any group: a transaction
    may end when the members have left.
    """
    for group, lags in final.share_lags.items():
        for (topic, index), lag in lags.items():
            records, end_offset = final.logs[topic, index], final.stable[topic, index][1]
            markers = end_offset - max((record.offset + 1 for record in records), default=0)
            invisible = sum(not record.is_visible for record in records)
            allowed = markers + (invisible if history.shares.terms[group].is_committed_only else 0)
            if not 0 <= lag <= allowed and end_offset > 0:
                yield f"{group} has lag {lag} in {topic}-{index} at the end"


def early_deliveries(history: History, final: FinalState) -> Iterator[str]:
    """Yield deliveries of records below the start offset of their era."""
    for one in history.shares.deliveries:
        era = history.shares.era(one.group)
        start = era.starts.get(one.partition, 0)
        if era.is_strict and one.offset < start:
            place = one.group, one.partition, one.offset
            yield f"{one.member} got {_named(place)} at {one.answered_ms} ms, but the group began at offset {start}"


def wrong_start_offsets(history: History, final: FinalState) -> Iterator[str]:
    """Yield start offsets that are not those that were set."""
    yield from history.shares.wrong_starts
