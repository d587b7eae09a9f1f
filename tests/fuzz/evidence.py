"""What a damaged directory still holds: undamaged batches, and evidence of which offsets were given out.

It is read without kcli, whose judgement is what is tested, and held against what the model knows to be true:

    evidence of the end                       true where
    ----------------------------------------  --------------------------------------------------------------------------
    the last undamaged batch                  its bytes are in a .log file of its partition, and not inside of the extent that a
                                              batch with a wrong length and a wrong CRC states
    names of segments' files and snapshots    a segment was rolled there, or a snapshot was taken there
    a snapshot's content                      the file is as it was written: its producers' last offsets
    last entries of .index and .timeindex     both files are as they were written, under their names, without zeros behind the
                                                entries: the lower one of the two offsets
    leader-epoch-checkpoint                   an entry is one that was written
    high watermark, recovery point, log       the line states an offset that was given out
      start offset

`lower` is the largest true evidence: the end after a repair must not be below it, and every record below it is proven to
have existed, but for three kinds of absence that a sound log has, too:

    absent                                    may be               unless
    ----------------------------------------  -------------------  ---------------------------------------------------------
    everything before the first file          retention deleted    the log start offset is in its checkpoint; or, after a
                                                it                   clean stop, leader-epoch-checkpoint begins before it
    a batch, its neighbours touch each other  the cleaner removed  (no metadata log says which topics are compacted)
      in one file, or it comes before the       it
      first batch of a renamed file and not
      before the offset in that name
    a segment below the cleaner's offset      the cleaner joined   it is the last one, unless the active segment behind it is
                                                it with another      there, empty, and none of its own files is: a cleaner may
                                                                     remove a last record that is a tombstone

`upper` is the largest evidence, true or not: the end must not be above it. The name of a stray copy of a segment
is evidence of nothing.
"""

from __future__ import annotations

import re
import struct
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.batches import LogBatch
from tests.fuzz.directories import CHECKPOINTS, DirectoryModel, PartitionModel

# The files beside a .log whose content is evidence.
WITH_EVIDENCE = (".snapshot", ".index", ".timeindex")
_NAME = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)")


class Evidence(NamedTuple):
    """What is left of a partition. `undamaged` are its batches that are whole in a .log file."""

    undamaged: tuple[LogBatch, ...]
    certain: tuple[LogBatch, ...]  # those of them that are not inside of the extent of a batch whose length is unknown
    proven: frozenset[int]  # offsets of records that must be there or be named as lost
    lower: int
    upper: int
    log_start: int  # what the checkpoint states where that is true, else 0
    is_log_start_known: bool


def read_evidence(directory: DirectoryModel, partition: PartitionModel, written: dict[str, bytes]) -> Evidence:
    """Look at a damaged partition; `written` are the contents that its snapshots and indexes had before the damage."""
    end = partition.end_offset
    logs = [path.read_bytes() for path in sorted(partition.path.glob("*.log")) if _NAME.fullmatch(path.name)]
    undamaged = tuple(batch for batch in partition.batches if any(batch.data in data for data in logs))
    hidden = _hidden(partition, undamaged)
    certain = tuple(batch for batch in undamaged if batch.base_offset not in hidden)
    true = [batch.next_offset for batch in certain] + [0]
    stated = list(true)
    bases = set(partition.segments)
    for path in partition.path.iterdir() if partition.path.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        offset = int(match[1])
        if match[2] == "snapshot":
            stated.append(offset)
            if path.name in written:
                true.append(offset)
                if path.read_bytes() == written[path.name]:
                    true += _snapshot_ends(written[path.name])
        elif offset in bases:
            true.append(offset)
        else:
            stated += [offset] if match[2] != "log" or not _is_stray(path, partition) else []
    true += [reached for base in bases if (reached := _index_end(partition.path / f"{base:020d}", written)) is not None]
    for epoch, offset in _epochs(partition.path / "leader-epoch-checkpoint"):
        stated.append(offset)
        true += [offset] if (epoch, offset) in partition.epochs else []
    for field in ("high_watermark", "recovery_point", "log_start"):
        value = _checkpointed(directory.path / CHECKPOINTS[field], partition)
        if value is not None:
            stated.append(value)
            true += [value] if value <= end else []
    log_start = _checkpointed(directory.path / CHECKPOINTS["log_start"], partition) or 0
    is_known = log_start == partition.log_start or (not log_start and partition.log_start == min(bases))
    lower = max(offset for offset in true if offset <= end)
    first = _first_offset(directory, partition, undamaged)
    absent = _silently_absent(partition, undamaged)
    proven = frozenset(offset for offset in partition.records if first <= offset < lower and offset not in absent)
    return Evidence(
        undamaged, certain, proven, lower, max([*stated, lower, end]), log_start if log_start <= end else 0, is_known
    )


def _hidden(partition: PartitionModel, undamaged: tuple[LogBatch, ...]) -> set[int]:
    """The base offsets of batches inside of the extent that a batch before them states, where that one's length is wrong and
    so is something under its CRC: no length makes it right, and they cannot be distinguished from its content."""
    sound = {batch.base_offset for batch in undamaged}
    found: set[int] = set()
    for base, batches in partition.segments.items():
        log = partition.path / f"{base:020d}.log"
        data = log.read_bytes() if log.is_file() else b""
        position = behind = 0
        for batch in batches:
            if position < behind:
                found.add(batch.base_offset)
            present = data[position : position + len(batch.data)]
            is_in_place = batch.base_offset not in sound and len(present) == len(batch.data)
            if is_in_place and present[8:12] != batch.data[8:12] and present[17:] != batch.data[17:]:
                behind = max(behind, position + 12 + int.from_bytes(present[8:12], "big", signed=True))
            position += len(batch.data)
    return found


def _first_offset(directory: DirectoryModel, partition: PartitionModel, undamaged: tuple[LogBatch, ...]) -> int:
    """The first offset that the log is proven to have had, at least its log start offset."""
    log_start = partition.log_start
    offsets = [batch.base_offset for batch in undamaged]
    paths = partition.path.iterdir() if partition.path.is_dir() else ()
    named = [int(match[1]) for path in paths if (match := _NAME.fullmatch(path.name)) and match[2] != "snapshot"]
    offsets += [offset for offset in named if offset in partition.segments]
    stated = _checkpointed(directory.path / CHECKPOINTS["log_start"], partition)
    if stated is not None and stated == log_start:
        offsets.append(log_start)
    epochs = _epochs(partition.path / "leader-epoch-checkpoint")
    if directory.is_clean and epochs and epochs[0] in partition.epochs:
        offsets.append(epochs[0][1])
    if not named:
        offsets.append(log_start)  # no retention deletes every segment
    return max(log_start, min(offsets, default=log_start))


def _silently_absent(partition: PartitionModel, undamaged: tuple[LogBatch, ...]) -> set[int]:
    """The offsets of batches between undamaged ones that touch each other in a segment, or its start."""
    sound = {batch.base_offset for batch in undamaged}
    absent: set[int] = set()
    for base, batches in partition.segments.items():
        log = partition.path / f"{base:020d}.log"
        data = log.read_bytes() if log.is_file() else b""
        if not log.is_file() and base < (partition.cleaner_offset or 0):
            is_joined = any(offset > base for offset in sound)
            if is_joined or (_is_before_empty_active(partition, base) and not any(partition.path.glob(f"{base:020d}.*"))):
                absent |= {record.offset for batch in batches for record in batch.records}
        end, missing = 0, set[int]()
        for batch in batches:
            # A length does not hide a batch whose CRC is right for another one.
            if batch.base_offset not in sound and not data.startswith(batch.data[12:], end + 12):
                missing |= {record.offset for record in batch.records}
                continue
            if data.startswith(batch.data[12:], end + 12):
                absent |= missing
            end, missing = data.find(batch.data[12:]) - 12 + len(batch.data), set()
    return absent | _absent_in_files(partition, undamaged)


def _is_before_empty_active(partition: PartitionModel, base: int) -> bool:
    """Whether the segment of a base offset is the last with batches, and an empty one that is still there follows it."""
    behind = [one for one in partition.segments if one > base]
    return len(behind) == 1 and not partition.segments[behind[0]] and (partition.path / f"{behind[0]:020d}.log").is_file()


def _absent_in_files(partition: PartitionModel, undamaged: tuple[LogBatch, ...]) -> set[int]:
    """The same of segments whose content is in a file of another name, and what is before the first batch of a renamed one."""
    absent: set[int] = set()
    logs = [log for log in partition.path.glob("*.log") if _NAME.fullmatch(log.name)]
    contents = {int(log.stem): log.read_bytes() for log in logs}
    for base, batches in partition.segments.items():
        here = [batch for batch in batches if batch in undamaged]
        for name, data in contents.items():
            for one, other in pairwise(here):
                if one.data + other.data in data:
                    absent |= set(range(one.next_offset, other.base_offset))
            if here and base not in contents and data.startswith(here[0].data):
                absent |= set(range(name, here[0].base_offset))
    return absent


def _is_stray(log: Path, partition: PartitionModel) -> bool:
    """Whether a .log under a wrong name holds batches of the partition, all below or above its name, or none."""
    data = log.read_bytes()
    return any(batch.data in data for batch in partition.batches)


def _snapshot_ends(data: bytes) -> list[int]:
    """The offsets behind the producers' last batches, and their open transactions' first offsets, in a sound snapshot."""
    (count,) = struct.unpack_from(">i", data, 6)
    ends = []
    for index in range(count):
        fields = struct.unpack_from(">qhiqiqiq", data, 10 + 46 * index)
        ends += [fields[3] + 1, fields[7] + 1]
    return ends


def _index_end(stem: Path, written: dict[str, bytes]) -> int | None:
    """The offset that a segment reached by both its .index and its .timeindex, where they are as a broker closed them."""
    ends = []
    for suffix, entry_bytes in ((".index", 8), (".timeindex", 12)):
        path = stem.with_suffix(suffix)
        data = path.read_bytes() if path.is_file() else b""
        if not data or data != written.get(path.name) or not any(data[-entry_bytes:]):
            return None
        (relative_offset,) = struct.unpack_from(">i", data, len(data) - (8 if suffix == ".index" else 4))
        ends.append(int(stem.name) + int(relative_offset) + 1)
    return min(ends)


def _epochs(path: Path) -> list[tuple[int, int]]:
    try:
        lines = path.read_text("utf-8").splitlines()
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines[2:]]
    except (OSError, ValueError, IndexError):
        return []


def _checkpointed(path: Path, partition: PartitionModel) -> int | None:
    """The offset of a checkpoint that Kafka could read."""
    try:
        lines = path.read_text("utf-8").splitlines()
        if lines[0] != "0" or int(lines[1]) != len(lines) - 2:
            return None
        entries = {(words[0], int(words[1])): int(words[2]) for words in (line.split() for line in lines[2:])}
    except (OSError, ValueError, IndexError):
        return None
    return entries.get((partition.topic, partition.number))
