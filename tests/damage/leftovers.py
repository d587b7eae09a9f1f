"""What a broker that was killed leaves behind: the states between the steps of a roll, a clean, a split and a delete.

    ========  ===================================================================================================
    roll      trim the indexes of the active segment; create the new .log; snapshot the producers (not flushed);
              preallocate the new indexes when they are first used
    clean     write *.cleaned; rename them to *.swap, by descending offset, of a segment first the .log, then .index,
              .timeindex, .txnindex; rename the old files to *.deleted; rename *.swap to their final names
    split     the same with one old segment and several new ones
    delete    rename .log, .index, .timeindex, .txnindex, then the snapshot, to *.deleted; remove them a minute later
    ========  ===================================================================================================

The cleaned segment is one that Kafka's cleaner could have made: it takes the place of all segments but the last, lacks
every other batch of records (no markers, and never the last batch), and has indexes that fit it.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

from tests.damage.layout import (
    NotApplicableError,
    base_offset_of,
    cut,
    damage,
    file_name,
    log_end_offset,
    log_with_batches,
    read_batches,
    segment_logs,
    sibling,
)

PREALLOCATED_BYTES = 10 * 1024 * 1024
INDEX_INTERVAL_BYTES = 4096
SEGMENT_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


def _preallocate(log: Path) -> None:
    """Give a segment's indexes the sizes that they have while it is active (the files stay sparse)."""
    for suffix, entry_bytes in ((".index", 8), (".timeindex", 12)):
        path = sibling(log, suffix)
        path.touch()
        cut(path, PREALLOCATED_BYTES // entry_bytes * entry_bytes)


@damage
def active_indexes_preallocated(partition_dir: Path, rng: random.Random) -> None:
    """The active segment's indexes still have their full size, zeros behind the entries: a kill, nothing else wrong."""
    log, _ = log_with_batches(partition_dir)
    _preallocate(log)


def _roll(partition_dir: Path) -> Path:
    """Create the empty .log that a roll starts with."""
    log = partition_dir / file_name(log_end_offset(partition_dir), ".log")
    if log.exists():
        raise NotApplicableError("the last segment is empty already")
    log.touch()
    return log


@damage
def roll_before_snapshot(partition_dir: Path, rng: random.Random) -> None:
    """A new empty .log is there, without indexes and without its snapshot."""
    log = _roll(partition_dir)
    sibling(log, ".snapshot").unlink(missing_ok=True)


@damage
def roll_torn_snapshot(partition_dir: Path, rng: random.Random) -> None:
    """A new empty .log is there, without indexes; the bytes of its snapshot never reached the disk."""
    log = _roll(partition_dir)
    sibling(log, ".snapshot").write_bytes(b"")


@damage
def roll_with_snapshot(partition_dir: Path, rng: random.Random) -> None:
    """A new empty .log is there with its snapshot, without indexes."""
    _roll(partition_dir)


@damage
def roll_with_indexes(partition_dir: Path, rng: random.Random) -> None:
    """A new empty .log is there with its snapshot and preallocated indexes."""
    _preallocate(_roll(partition_dir))


@damage
def roll_lost_log(partition_dir: Path, rng: random.Random) -> None:
    """The new segment's preallocated indexes and snapshot are there, its .log never reached the disk."""
    log = _roll(partition_dir)
    _preallocate(log)
    log.unlink()


def _write_segment(log: Path, data: bytes, suffix: str) -> None:
    """Write a segment of `data` (whole batches) with indexes that fit, each file's name followed by `suffix`."""
    log = log.with_name(log.name + suffix)
    log.write_bytes(data)
    base_offset = base_offset_of(log)
    offsets, times = bytearray(), bytearray()
    largest, largest_offset, indexed_at, entered = -1, base_offset, 0, -1
    for batch in read_batches(log):
        if batch.max_timestamp > largest:
            largest, largest_offset = batch.max_timestamp, batch.last_offset
        if batch.position - indexed_at > INDEX_INTERVAL_BYTES:
            offsets += struct.pack(">ii", batch.last_offset - base_offset, batch.position)
            indexed_at = batch.position
            if largest > entered:
                times += struct.pack(">qi", largest, largest_offset - base_offset)
                entered = largest
    if largest > entered:
        times += struct.pack(">qi", largest, largest_offset - base_offset)
    stem = log.name.removesuffix(f".log{suffix}")
    log.with_name(f"{stem}.index{suffix}").write_bytes(offsets)
    log.with_name(f"{stem}.timeindex{suffix}").write_bytes(times)


def _write_cleaned(partition_dir: Path) -> list[Path]:
    """Write the cleaned segment as *.cleaned; the .log files that it takes the place of."""
    group = segment_logs(partition_dir)[:-1]
    if not group:
        raise NotApplicableError("there is one segment only, which is never cleaned")
    kept = bytearray()
    aborted = b"".join(sibling(log, ".txnindex").read_bytes() for log in group if sibling(log, ".txnindex").exists())
    last = [(log, batch) for log in group for batch in read_batches(log)][-1:]
    for log in group:
        data = log.read_bytes()
        for i, batch in enumerate(read_batches(log)):
            if batch.is_control or i % 2 == 0 or (log, batch) in last:
                kept += data[batch.position : batch.end]
    _write_segment(group[0], bytes(kept), ".cleaned")
    if aborted:
        group[0].with_name(group[0].name.replace(".log", ".txnindex.cleaned")).write_bytes(aborted)
    return group


def _rename(partition_dir: Path, old: str, new: str, suffixes: tuple[str, ...] = SEGMENT_SUFFIXES) -> None:
    """Rename every file of the given kinds that ends in `old` so that it ends in `new` instead."""
    for suffix in suffixes:
        for path in sorted(partition_dir.glob(f"*{suffix}{old}")):
            target = path.with_name(path.name.removesuffix(old) + new)
            path.rename(target)


def _mark_deleted(log: Path, suffixes: tuple[str, ...] = SEGMENT_SUFFIXES) -> None:
    """Rename a segment's files of the given kinds to *.deleted."""
    for suffix in suffixes:
        path = sibling(log, suffix)
        if path.exists():
            path.rename(path.with_name(f"{path.name}.deleted"))


@damage
def clean_written(partition_dir: Path, rng: random.Random) -> None:
    """The cleaner has written its *.cleaned files, nothing is renamed."""
    _write_cleaned(partition_dir)


@damage
def clean_half_swap(partition_dir: Path, rng: random.Random) -> None:
    """The cleaned .log is a .swap already, its indexes are still *.cleaned."""
    _write_cleaned(partition_dir)
    _rename(partition_dir, ".cleaned", ".swap", (".log",))


@damage
def clean_swap(partition_dir: Path, rng: random.Random) -> None:
    """All files of the cleaned segment are *.swap, all old ones are still there."""
    _write_cleaned(partition_dir)
    _rename(partition_dir, ".cleaned", ".swap")


@damage
def clean_torn_swap(partition_dir: Path, rng: random.Random) -> None:
    """As clean_swap, but the .log.swap ends inside a batch."""
    clean_swap(partition_dir, rng)
    path = sorted(partition_dir.glob("*.log.swap"))[0]
    cut(path, path.stat().st_size - rng.randint(1, 60))


@damage
def clean_some_deleted(partition_dir: Path, rng: random.Random) -> None:
    """All files of the cleaned segment are *.swap, the first old segment is *.deleted, the other old ones are not."""
    group = _write_cleaned(partition_dir)
    _rename(partition_dir, ".cleaned", ".swap")
    _mark_deleted(group[0])


@damage
def clean_all_deleted(partition_dir: Path, rng: random.Random) -> None:
    """All files of the cleaned segment are *.swap, all old ones are *.deleted."""
    group = _write_cleaned(partition_dir)
    _rename(partition_dir, ".cleaned", ".swap")
    for log in group:
        _mark_deleted(log)


@damage
def clean_some_final(partition_dir: Path, rng: random.Random) -> None:
    """The cleaned .log has its final name, its indexes are still *.swap, all old files are *.deleted."""
    clean_all_deleted(partition_dir, rng)
    _rename(partition_dir, ".swap", "", (".log",))


@damage
def clean_done(partition_dir: Path, rng: random.Random) -> None:
    """The cleaned segment has its final names, the old files lie there as *.deleted."""
    clean_all_deleted(partition_dir, rng)
    _rename(partition_dir, ".swap", "")


def _write_split(partition_dir: Path) -> tuple[Path, Path]:
    """Write the last segment in two halves, as *.cleaned; the old .log and the second half's future name."""
    log, batches = log_with_batches(partition_dir, at_least=2)
    data = log.read_bytes()
    middle = batches[len(batches) // 2]
    second = log.with_name(file_name(middle.base_offset, ".log"))
    _write_segment(log, data[: middle.position], ".cleaned")
    _write_segment(second, data[middle.position :], ".cleaned")
    return log, second


@damage
def split_half_swap(partition_dir: Path, rng: random.Random) -> None:
    """Of a segment that was split in two, the second half is *.swap, the first still *.cleaned."""
    _, second = _write_split(partition_dir)
    stem = second.name.removesuffix(".log")
    for path in sorted(partition_dir.glob(f"{stem}.*.cleaned")):
        path.rename(path.with_name(path.name.removesuffix(".cleaned") + ".swap"))


@damage
def split_swap(partition_dir: Path, rng: random.Random) -> None:
    """Of a segment that was split in two, both halves are *.swap, the old one is still there."""
    _write_split(partition_dir)
    _rename(partition_dir, ".cleaned", ".swap")


def _first_of_several(partition_dir: Path) -> Path:
    logs = segment_logs(partition_dir)
    if len(logs) < 2:
        raise NotApplicableError("there is one segment only, which is never deleted")
    return logs[0]


@damage
def delete_half_renamed(partition_dir: Path, rng: random.Random) -> None:
    """Of the first segment, which retention deletes, the .log is *.deleted, the indexes are not."""
    _mark_deleted(_first_of_several(partition_dir), (".log",))


@damage
def delete_renamed(partition_dir: Path, rng: random.Random) -> None:
    """All files of the first segment are *.deleted."""
    _mark_deleted(_first_of_several(partition_dir), (*SEGMENT_SUFFIXES, ".snapshot"))


@damage
def delete_half_removed(partition_dir: Path, rng: random.Random) -> None:
    """All files of the first segment are *.deleted, and its .log is removed already."""
    log = _first_of_several(partition_dir)
    _mark_deleted(log, (*SEGMENT_SUFFIXES, ".snapshot"))
    log.with_name(f"{log.name}.deleted").unlink()


@damage
def delete_snapshot_left(partition_dir: Path, rng: random.Random) -> None:
    """The second segment's snapshot is *.deleted, its other files are not (the first segment's are gone)."""
    log = _first_of_several(partition_dir)
    _mark_deleted(segment_logs(partition_dir)[1], (".snapshot",))
    for suffix in SEGMENT_SUFFIXES:
        sibling(log, suffix).unlink(missing_ok=True)
