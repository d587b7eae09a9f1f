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
(share groups)        kcli.simulator.coordination.share_anomalies
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from kcli.simulator.coordination import share_anomalies
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
    TopicPartition,
    Transaction,
    topic_name,
)

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
    share_anomalies.wrong_start_offsets,
    share_anomalies.early_deliveries,
    share_anomalies.redelivered_records,
    share_anomalies.two_holders,
    share_anomalies.late_expiries,
    share_anomalies.refused_holders,
    share_anomalies.wrong_delivery_counts,
    share_anomalies.lost_deliveries,
    share_anomalies.stuck_share_partitions,
    leftover_offsets,
    deleted_read_offsets,
)


def find_anomaly(history: History, final: FinalState) -> str:
    """Return the first anomaly, "" if there is none."""
    for check in ANOMALIES:
        for sentence in check(history, final):
            return f"{check.__name__}: {sentence}"
    return ""
