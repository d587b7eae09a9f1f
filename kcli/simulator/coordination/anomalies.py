"""The anomalies that a coordination workload may show, one function for each. The names are those of Jepsen's Kafka workload
(https://github.com/jepsen-io/kafka) where it has them; aborted_reads is its G1a.

anomaly               what is wrong
--------------------  --------------------------------------------------------------------------------------------------------
inconsistent_offsets  two records were seen at one offset
lost_writes           an acknowledged record, of a committed transaction or of none, is not in the log at the end
duplicates            a record is in the log twice for consumers with read_committed
aborted_reads         a consumer with read_committed got a record of a transaction that was aborted or never committed, or a
                      record that no client has sent; also a member that transforms records, before it writes an output
precommitted_reads    a consumer with read_committed got a record of another transaction before its producer asked to commit it
fractured_commits     a part of a transaction is visible, and another part is not
nonmonotonic_polls    a consumer got an offset below its position, in one poll or after another one in the same view (it did
                      not set its position between them)
skipped_polls         a consumer's position passed a record that it did not get, in a poll or between two in the same view
nonmonotonic_sends    the records of a producer are not in the log in the order in which it sent them
unseen_writes         a committed record was not given to any member of a group that has read all partitions
two_owners            two members of a generation have one partition
zombie_commits        an offset was accepted from a member after its partition had another owner, or after its static
                      member had joined again with another member id
offset_regressions    a committed offset is one that was replaced before, or one that was never committed
generation_regressions  a member got a partition in an earlier generation than that of an owner before
repeated_epochs       a producer id and epoch were given twice, to a transactional or to an idempotent producer; an earlier
                      epoch was given after a later one; or two producers have one producer id
unprocessed_inputs    a record below the committed offset of a transforming group has no output, or several, or one above it
                      has an output
leftover_offsets      a committed offset was there after its topic was deleted
deleted_read_offsets  OffsetDelete has deleted an offset of a topic that a member was reading
stuck_transactions    at the end a transaction is open, or the last stable offset of a partition is below its end

The anomalies of share groups:

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
from collections.abc import Callable, Iterable, Iterator

from kcli.format.primitives import TopicPartition
from kcli.simulator.coordination.history import (
    NO_GENERATION,
    NO_OFFSET,
    Fate,
    FinalState,
    GivenEpoch,
    History,
    OffsetCommit,
    OffsetRead,
    Ownership,
    Transaction,
    topic_name,
)
from kcli.simulator.coordination.node_settings import SESSIONS_MS
from kcli.simulator.coordination.share_history import FINAL, RELEASE, RENEW, Acknowledgement, Delivery, ShareHistory, group_of

GRACE_MS = 6000  # until another member fetches the record; a heartbeat before that may get no answer
_Place = tuple[str, TopicPartition, int]  # a group and an offset


def _share_named(place: _Place) -> str:
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
                    f"{one.member} got {_share_named(place)} at {one.answered_ms} ms, which was acknowledged for good at "
                    f"{min(ends)} ms"
                )


def two_holders(history: History, final: FinalState) -> Iterator[str]:
    """Yield deliveries of offsets that another delivery certainly holds, and acknowledgements after another delivery."""
    for death, held, following in history.shares.expired_locks(is_draining=True):
        is_certain = held.partition[0] not in history.deleted_ms and history.shares.era(held.group).is_strict
        if is_certain and following.answered_ms < held.lock_end_ms:
            place = held.group, held.partition, held.offset
            yield (
                f"{following.member} got {_share_named(place)} at {following.answered_ms} ms, but {held.member}, which has "
                f"sent nothing since {death.at_ms} ms, has a lock until {held.lock_end_ms} ms"
            )
    acknowledgements = _acknowledgements(history.shares)
    for place, deliveries in _deliveries(history.shares).items():
        for held in deliveries:
            for one in deliveries:
                if one.sent_ms > held.answered_ms and one.answered_ms < held.held_until_ms:
                    yield (
                        f"{one.member} got {_share_named(place)} at {one.answered_ms} ms, but {held.member} has held it since "
                        f"{held.answered_ms} ms until {held.held_until_ms} ms"
                    )
            for late in acknowledgements[place]:
                is_ended = _may_be_ended(late, deliveries, acknowledgements[place], history.shares)
                if not is_ended and _is_late(late, held, history.shares):
                    yield (
                        f"{late.delivery.member} acknowledged {_share_named(place)} at {late.answered_ms} ms, but "
                        f"{held.member} got it at {held.answered_ms} ms"
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
                f"{following.member} got {_share_named(place)} at {following.answered_ms} ms, but {held.member} had got it at "
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
                yield f"{one.member} got {_share_named(place)} with delivery count {one.count}, not {least} to {most}"


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
                        f"{_share_named(place)} ({record.value!r}) was delivered {count} times and neither accepted nor "
                        f"rejected; {unknown} fetches after {since_ms} ms were not answered"
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
            yield f"{one.member} got {_share_named(place)} at {one.answered_ms} ms, but the group began at offset {start}"


def wrong_start_offsets(history: History, final: FinalState) -> Iterator[str]:
    """Yield start offsets that are not those that were set."""
    yield from history.shares.wrong_starts


INPUT_MARK = b"<"  # in the value of an output: what follows is the value of the input


def _named(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _visible(final: FinalState) -> dict[bytes, list[tuple[TopicPartition, int]]]:
    """Return where each visible value is."""
    found: dict[bytes, list[tuple[TopicPartition, int]]] = {}
    for partition, records in final.logs.items():
        for record in records:
            if record.is_visible:
                found.setdefault(record.value, []).append((partition, record.offset))
    return found


# ------------------------------------------------------------------------------------------------------------------ records


def inconsistent_offsets(history: History, final: FinalState) -> Iterator[str]:
    """Yield offsets at which two records were seen."""
    known: dict[tuple[TopicPartition, int], bytes] = {}

    def seen() -> Iterator[tuple[TopicPartition, int, bytes]]:
        for partition, records in final.logs.items():
            for record in records:
                yield partition, record.offset, record.value
        for write in history.writes.values():
            if write.offset is not None:
                yield write.partition, write.offset, write.value
        for poll in history.polls:
            for offset, value in poll.records:
                yield poll.partition, offset, value

    for partition, offset, value in seen():
        other = known.setdefault((partition, offset), value)
        if other != value:
            yield f"offset {offset} of {_named(partition)} has {other!r} and {value!r}"


def lost_writes(history: History, final: FinalState) -> Iterator[str]:
    """Yield acknowledged records that are not visible at the end."""
    visible = _visible(final)
    for write in history.writes.values():
        is_final = write.transaction is None or write.transaction.fate is Fate.COMMITTED
        is_final = is_final and write.partition[0] not in history.deleted_ms
        if is_final and write.is_acknowledged and write.value not in visible:
            yield f"{write.value!r} of {_named(write.partition)}, acknowledged at offset {write.offset}"


def duplicates(history: History, final: FinalState) -> Iterator[str]:
    """Yield records that are visible twice at the end."""
    for value, places in _visible(final).items():
        if len(places) > 1:
            yield f"{value!r} is at {', '.join(f'{_named(partition)} {offset}' for partition, offset in places)}"


def _committed_reads(history: History, final: FinalState) -> Iterator[tuple[str, bytes, int | None]]:
    """Yield the values that consumers with read_committed got: who, value, when (None: at the end)."""
    for poll in history.polls:
        if poll.is_committed_only:
            for _, value in poll.records:
                yield poll.reader, value, poll.at_ms
    for value in _visible(final):
        yield "a reader at the end", value, None


def aborted_reads(history: History, final: FinalState) -> Iterator[str]:
    """Yield records of aborted transactions that a consumer with read_committed got."""
    for reader, value, _ in _committed_reads(history, final):
        write = history.writes.get(value)
        if write is None:
            yield f"{reader} got {value!r}, which was never sent"
        elif write.transaction is not None and write.transaction.is_aborted:
            yield f"{reader} got {value!r} of the aborted transaction {write.transaction.name}"


def precommitted_reads(history: History, final: FinalState) -> Iterator[str]:
    """Yield records that a consumer with read_committed got before their producer asked to commit them.

    The records of aborted transactions belong to aborted_reads, whenever they were read.
    """
    for reader, value, at_ms in _committed_reads(history, final):
        transaction = history.writes[value].transaction if value in history.writes else None
        if transaction is None or transaction.is_aborted or transaction.commit_sent_ms is None or at_ms is None:
            continue
        if at_ms < transaction.commit_sent_ms:
            yield f"{reader} got {value!r} before {transaction.name} was committed"


def fractured_commits(history: History, final: FinalState) -> Iterator[str]:
    """Yield transactions of which acknowledged records are visible and others are not."""
    visible = _visible(final)
    shown: dict[Transaction, set[bool]] = defaultdict(set)
    for write in history.writes.values():
        is_deleted = write.partition[0] in history.deleted_ms
        if write.transaction is not None and write.is_acknowledged and not is_deleted:
            shown[write.transaction].add(write.value in visible)
    for transaction, found in shown.items():
        if len(found) > 1:
            yield f"only a part of {transaction.name} ({transaction.fate.value}) is visible"


def nonmonotonic_polls(history: History, final: FinalState) -> Iterator[str]:
    """Yield records that a reader got below its position, which follows the records of the polls before in its view."""
    positions: dict[tuple[int, TopicPartition], int] = {}
    for poll in history.polls:
        position = max(positions.get((poll.view, poll.partition), 0), poll.start)
        for offset, value in poll.records:
            if offset < position:
                yield f"{poll.reader} got offset {offset} of {_named(poll.partition)} ({value!r}) at position {position}"
            position = max(position, offset + 1)
        positions[poll.view, poll.partition] = max(position, poll.end)


def skipped_polls(history: History, final: FinalState) -> Iterator[str]:
    """Yield polls without a record that the log has, up to their end from the end of the poll before in their view."""
    ends: dict[tuple[int, TopicPartition], int] = {}
    for poll in history.polls:
        begin = min(poll.start, ends.get((poll.view, poll.partition), poll.start))
        ends[poll.view, poll.partition] = poll.end
        got = {offset for offset, _ in poll.records}
        for record in final.logs.get(poll.partition, ()):
            is_passed = begin <= record.offset < poll.end and (record.is_visible or not poll.is_committed_only)
            if is_passed and record.offset not in got:
                yield (
                    f"{poll.reader} read {_named(poll.partition)} from {begin} to {poll.end} at {poll.at_ms} ms without "
                    f"offset {record.offset} ({record.value!r})"
                )


def nonmonotonic_sends(history: History, final: FinalState) -> Iterator[str]:
    """Yield records that are in the log before one that their producer sent earlier."""
    places = {value: found[0][1] for value, found in _visible(final).items() if len(found) == 1}
    last: dict[tuple[str, TopicPartition], tuple[int, bytes]] = {}
    for write in history.writes.values():
        offset = places.get(write.value)
        if offset is None:
            continue
        key = write.session, write.partition
        before = last.get(key)
        if before is not None and before[0] > offset:
            yield f"{write.value!r} is at offset {offset} of {_named(write.partition)}, but {before[1]!r} at {before[0]}"
        last[key] = offset, write.value


def unseen_writes(history: History, final: FinalState) -> Iterator[str]:
    """Yield visible records that a group has passed and none of its members got."""
    seen: dict[str, set[bytes]] = defaultdict(set)
    for poll in history.polls:
        if poll.group is not None:
            seen[poll.group].update(value for _, value in poll.records)
    for group, topics in history.readers_of.items():
        for partition, records in final.logs.items():
            if topic_name(partition[0]) not in topics:
                continue
            unseen = [one for one in records if one.is_visible and one.value not in seen[group]]
            if unseen:
                yield f"no member of {group} got {unseen[0].value!r} of {_named(partition)} (and {len(unseen) - 1} others)"


# ------------------------------------------------------------------------------------------------------------------- groups


def two_owners(history: History, final: FinalState) -> Iterator[str]:
    """Yield partitions that two members of a generation have."""
    owners: dict[tuple[str, int, TopicPartition], str] = {}
    for one in history.ownerships:
        other = owners.setdefault((one.group, one.generation, one.partition), one.member)
        if other != one.member and other not in history.fenced_ms:
            yield f"{_named(one.partition)} belongs to {other} and {one.member} in generation {one.generation} of {one.group}"


def zombie_commits(history: History, final: FinalState) -> Iterator[str]:
    """Yield commits of a member whose partition had a later owner, or that was fenced, when the commit was sent."""
    by_partition = defaultdict(list)
    for one in history.ownerships:
        by_partition[one.group, one.partition].append(one)
    for commit in history.commits:
        if commit.answered_ms is None or commit.generation == NO_GENERATION:
            continue
        fenced_ms = history.fenced_ms.get(commit.member)
        if fenced_ms is not None and fenced_ms < commit.sent_ms:
            yield f"{commit.member} committed offset {commit.offset} of {_named(commit.partition)}, but was fenced before"
        for one in by_partition[commit.group, commit.partition]:
            if one.generation > commit.generation and one.member != commit.member and one.at_ms < commit.sent_ms:
                yield (
                    f"{commit.member} committed offset {commit.offset} of {_named(commit.partition)} in generation "
                    f"{commit.generation} of {commit.group}, but {one.member} had it in generation {one.generation}"
                )
                break


def offset_regressions(history: History, final: FinalState) -> Iterator[str]:
    """Yield answers of OffsetFetch with an offset that had certainly been replaced, or that no client has committed."""
    commits = defaultdict(list)
    for commit in history.commits:
        commits[commit.group, commit.partition].append(commit)
    for read in history.offset_reads:
        if read.answered_ms >= history.deleted_ms.get(read.partition[0], read.answered_ms + 1):
            continue  # the offsets are deleted with the topic
        candidates = commits[read.group, read.partition]
        certain = [one for one in candidates if one.certain_ms is not None and one.certain_ms < read.sent_ms]
        is_moving = read.group in history.consumer_groups
        if read.offset == NO_OFFSET and not certain:
            continue
        if not any(_may_be_read(one, read, certain, is_moving=is_moving) for one in candidates):
            yield (
                f"{read.group} has offset {read.offset} of {_named(read.partition)} at {read.answered_ms} ms, but "
                f"{[one.offset for one in certain[-3:]]} were committed last"
            )


def _may_be_read(commit: OffsetCommit, read: OffsetRead, certain: Iterable[OffsetCommit], *, is_moving: bool) -> bool:
    """Return whether a read may return a commit: no other one has certainly replaced it."""
    first_ms, last_ms = commit.first_possible_ms, commit.last_possible_ms
    if commit.offset != read.offset or first_ms is None or first_ms > read.answered_ms:
        return False
    for other in certain:
        other_first = other.first_possible_ms
        if other is commit or other_first is None:
            continue
        is_after = last_ms is not None and last_ms < other_first
        # A late request is refused if a later generation has committed; in a consumer group, if another member has.
        # A deletion and a commit without a member have no generation.
        is_fenced = NO_GENERATION < commit.generation < other.generation and (not is_moving or other.member != commit.member)
        if is_after or is_fenced:
            return False
    return True


def generation_regressions(history: History, final: FinalState) -> Iterator[str]:
    """Yield partitions that a member got in an earlier generation than a later one that was known before."""
    newest: dict[tuple[str, TopicPartition], Ownership] = {}
    for one in history.ownerships:
        last = newest.setdefault((one.group, one.partition), one)
        if one.generation > last.generation:
            newest[one.group, one.partition] = one
        elif one.generation < last.generation and one.member != last.member and one.sent_ms > last.at_ms:
            yield (
                f"{one.member} got {_named(one.partition)} in generation {one.generation} of {one.group}, after {last.member} "
                f"in generation {last.generation}"
            )


# ------------------------------------------------------------------------------------------------------------- transactions


def repeated_epochs(history: History, final: FinalState) -> Iterator[str]:
    """Yield producer ids and epochs that were given twice or too late, and producer ids of two producers.

    The producers of a transactional id are one: each gets the next epoch. Two answers may arrive in another order than they
    were sent, so an epoch is too late only if it was requested after the answer with a later one.
    """
    holders: dict[tuple[int, int], GivenEpoch] = {}
    owners: dict[int, str] = {}
    newest: dict[int, GivenEpoch] = {}
    for one in history.epochs:
        holder = holders.setdefault((one.producer_id, one.epoch), one)
        if holder is not one:
            yield f"{one.session} got epoch {one.epoch} of producer id {one.producer_id}, which {holder.session} has"
        owner = one.transactional_id or one.session
        if owners.setdefault(one.producer_id, owner) != owner:
            yield f"{owner} got producer id {one.producer_id} of {owners[one.producer_id]}"
        last = newest.setdefault(one.producer_id, one)
        if one.epoch >= last.epoch:
            newest[one.producer_id] = one
        elif one.sent_ms > last.at_ms:
            yield (
                f"{one.session} got epoch {one.epoch} of producer id {one.producer_id} at {one.at_ms} ms, but {last.session} "
                f"had epoch {last.epoch} before"
            )


def unprocessed_inputs(history: History, final: FinalState) -> Iterator[str]:
    """Yield inputs of transforming groups that have not exactly one output below the committed offset, or one above it."""
    visible = _visible(final)
    for group, targets in history.transforms.items():
        outputs: dict[bytes, int] = defaultdict(int)
        for value, places in visible.items():
            mark, of_input = value.partition(INPUT_MARK)[1:]
            if mark and value.startswith(group.encode()):
                outputs[of_input] += len(places)
        for partition, records in final.logs.items():
            if partition[0] not in targets:
                continue
            committed = final.committed.get(group, {}).get(partition, NO_OFFSET)
            for record in records:
                expected = int(record.is_visible and record.offset < committed)
                found = outputs[record.value]
                if found != expected:
                    yield (
                        f"{record.value!r} at offset {record.offset} of {_named(partition)} has {found} outputs of {group}, "
                        f"which has committed {committed}"
                    )


def stuck_transactions(history: History, final: FinalState) -> Iterator[str]:
    """Yield transactions that did not end, and partitions whose last stable offset is below their end."""
    for transactional_id in final.open_transactions:
        yield f"{transactional_id} has an open transaction at the end"
    for partition, (stable, end) in final.stable.items():
        if stable != end:
            yield f"{_named(partition)} has last stable offset {stable} and ends at {end}"


# ---------------------------------------------------------------------------------------------------------- deletions


def leftover_offsets(history: History, final: FinalState) -> Iterator[str]:
    """Yield committed offsets of deleted topics that were there after the deletion."""
    yield from history.leftovers


def deleted_read_offsets(history: History, final: FinalState) -> Iterator[str]:
    """Yield deletions of offsets of a topic that a member read: it committed before and after them in one generation."""
    spans: dict[tuple[str, str, int], list[OffsetCommit]] = defaultdict(list)
    for commit in history.commits:
        if commit.generation != NO_GENERATION and commit.answered_ms is not None:
            spans[commit.group, commit.member, commit.generation].append(commit)
    for commit in history.commits:
        if commit.offset != NO_OFFSET or commit.answered_ms is None:
            continue
        for (group, member, generation), found in spans.items():
            is_before = any(one.answered_ms is not None and one.answered_ms < commit.sent_ms for one in found)
            if group == commit.group and is_before and any(one.sent_ms > commit.answered_ms for one in found):
                yield (
                    f"the offset of {_named(commit.partition)} was deleted at {commit.answered_ms} ms, but {member} was in "
                    f"{group} in generation {generation}"
                )


Check = Callable[[History, FinalState], Iterator[str]]
# The first anomaly that is found is the failure of the run, so the more specific ones come first. tests/simulator has for each
# check a coordinator with a fault that it is the first to find.
ANOMALIES: tuple[Check, ...] = (
    stuck_transactions,
    nonmonotonic_sends,
    inconsistent_offsets,
    fractured_commits,
    lost_writes,
    duplicates,
    precommitted_reads,
    aborted_reads,
    nonmonotonic_polls,
    skipped_polls,
    two_owners,
    generation_regressions,
    zombie_commits,
    unprocessed_inputs,
    offset_regressions,
    repeated_epochs,
    unseen_writes,
    wrong_start_offsets,
    early_deliveries,
    redelivered_records,
    two_holders,
    late_expiries,
    refused_holders,
    wrong_delivery_counts,
    lost_deliveries,
    stuck_share_partitions,
    leftover_offsets,
    deleted_read_offsets,
)


def find_anomaly(history: History, final: FinalState) -> str:
    """Return the first anomaly, "" if there is none."""
    for check in ANOMALIES:
        for sentence in check(history, final):
            return f"{check.__name__}: {sentence}"
    return ""
