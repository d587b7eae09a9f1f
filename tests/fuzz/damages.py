"""What happens to the directories of a scene: kinds of damage by a disk, a crash, a person or an attacker.

`KINDS` maps a name to a Kind: a function (scene, rng) that changes files in place and says in a sentence what it did, and the
reach of what it does:

    reach      of what is changed
    ---------  ------------------------------------------------------------------------------------------------------
    BATCH      the bytes of one batch: every other batch must stay, and every reader must show all others
    BLIND      a batch's length and bytes under its CRC: no length makes it right, so the batches inside of the extent that
               it states cannot be distinguished from its content; they may go, with their offsets named
    LOG        .log files: torn, moved, copied, exchanged, deleted
    SIDE       files next to the .log files, and those of the log directory: no record may be lost

Kinds of reach SIDE are in side_damages. A kind for which the scene offers nothing raises NotApplicableError before it changes
anything. Batches are found by their bytes, so several kinds can be done one after the other.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.damage.layout import NotApplicableError, append, cut, flip, patch
from tests.fuzz.batches import LogBatch
from tests.fuzz.directories import CHECKPOINTS, PartitionModel, Scene

BATCH, BLIND, LOG, SIDE = "batch", "blind", "log", "side"
SEGMENT_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")
LENGTH_AT, CRC_AT, RECORDS_AT = 8, 17, 61


class Kind(NamedTuple):
    """One kind of damage; `weight` is how often it is drawn."""

    name: str
    reach: str
    weight: int
    damage: Callable[[Scene, random.Random], str]


KINDS: dict[str, Kind] = {}


def kind(
    reach: str, weight: int = 2
) -> Callable[[Callable[[Scene, random.Random], str]], Callable[[Scene, random.Random], str]]:
    """Enter a function into KINDS under its own name."""

    def enter(function: Callable[[Scene, random.Random], str]) -> Callable[[Scene, random.Random], str]:
        KINDS[function.__name__] = Kind(function.__name__, reach, weight, function)
        return function

    return enter


# ------------------------------------------------------------------------------------------------ finding and changing bytes


class Place(NamedTuple):
    """Where a batch of a partition is: byte `position` of `log`; `index` among the partition's batches."""

    partition: PartitionModel
    batch: LogBatch
    log: Path
    position: int

    @property
    def end(self) -> int:
        """The byte of the file after the batch."""
        return self.position + len(self.batch.data)


def places(partition: PartitionModel) -> list[Place]:
    """The batches of a partition that are whole in the segment that they were appended to, by offset."""
    found = []
    for base, batches in partition.segments.items():
        log = partition.path / f"{base:020d}.log"
        data = log.read_bytes() if log.is_file() else b""
        for batch in batches:
            at = data.find(batch.data)
            if at >= 0:
                found.append(Place(partition, batch, log, at))
    return found


def _draw_place(scene: Scene, rng: random.Random, *, embedded: bool = False) -> Place:
    """Draw a batch; one with visible embedded batches where there is any, always with `embedded`."""
    found = [place for partition in scene.partitions for place in places(partition)]
    hostile = [place for place in found if place.batch.embedded]
    if embedded or (hostile and rng.random() < 0.7):
        found = hostile
    if not found:
        raise NotApplicableError("there is no such batch")
    return rng.choice(found)


def _where(place: Place) -> str:
    name = f"{place.log.parent.name}/{place.log.name}"
    return f"{name}: batch {place.batch.base_offset}..{place.batch.next_offset - 1} at byte {place.position}"


def _flip_in(place: Place, start: int, end: int, rng: random.Random) -> str:
    at, bit = rng.randrange(start, end), rng.randrange(8)
    flip(place.log, place.position + at, 1 << bit)
    return f"{_where(place)}: bit {bit} of its byte {at}"


def logs_of(scene: Scene, rng: random.Random, *, at_least: int = 1) -> tuple[PartitionModel, list[Path]]:
    """Draw a partition with so many .log files that have a batch."""
    found = []
    for partition in scene.partitions:
        logs = sorted(log for log in partition.path.glob("*.log") if len(log.name) == 24)
        if len(logs) >= at_least and any(log.stat().st_size for log in logs):
            found.append((partition, logs))
    if not found:
        raise NotApplicableError(f"no partition has {at_least} segments")
    return rng.choice(found)


# ---------------------------------------------------------------------------------------------------------- BATCH: one batch


@kind(BATCH, 4)
def flip_crc_or_records(scene: Scene, rng: random.Random) -> str:
    """One bit of the CRC, or of what it covers, is flipped."""
    place = _draw_place(scene, rng)
    return _flip_in(place, CRC_AT, len(place.batch.data), rng)


@kind(BATCH, 4)
def flip_outside_embedded(scene: Scene, rng: random.Random) -> str:
    """One bit of a batch with embedded batches is flipped, in none of them."""
    place = _draw_place(scene, rng, embedded=True)
    inside = {at for start, end in place.batch.embedded for at in range(start, end)}
    at = rng.choice([at for at in range(CRC_AT, len(place.batch.data)) if at not in inside])
    return _flip_in(place, at, at + 1, rng)


@kind(BATCH, 3)
def flip_length(scene: Scene, rng: random.Random) -> str:
    """One bit of a batch's length is flipped."""
    return _flip_in(_draw_place(scene, rng), LENGTH_AT, LENGTH_AT + 4, rng)


@kind(BATCH, 2)
def flip_base_offset(scene: Scene, rng: random.Random) -> str:
    """One bit of a batch's base offset is flipped, which no CRC covers.

    Not of a partition's last batch: an offset further on may be true there, as far as the log itself can say
    (`flip_last_base_offset`).
    """
    place = _draw_place(scene, rng)
    if place.batch.base_offset == max(one.batch.base_offset for one in places(place.partition)):
        raise NotApplicableError("nothing follows the batch that would show its offset to be wrong")
    return _flip_in(place, 0, 8, rng)


def flip_last_base_offset(scene: Scene, rng: random.Random) -> tuple[str, bool]:
    """One bit of the base offset of a partition's last batch is flipped -> what, and whether the segment may have the offset.

    It is not in KINDS: nothing follows the batch, so that an offset further on may be believed.
    """
    last = [max(found, key=lambda place: place.batch.base_offset) for one in scene.partitions if (found := places(one))]
    if not last:
        raise NotApplicableError("there is no batch")
    place = rng.choice(last)
    sentence = _flip_in(place, 0, 8, rng)
    stated = int.from_bytes(place.log.read_bytes()[place.position : place.position + 8], "big", signed=True)
    return sentence, 0 <= stated - int(place.log.name[:20]) < 1 << 31


@kind(BATCH, 1)
def flip_epoch_or_magic(scene: Scene, rng: random.Random) -> str:
    """One bit of a batch's leader epoch or magic is flipped, which no CRC covers."""
    return _flip_in(_draw_place(scene, rng), 12, CRC_AT, rng)


@kind(BLIND, 3)
def flip_two(scene: Scene, rng: random.Random) -> str:
    """Two bits of a batch are flipped: one of the length, one of the CRC or the records."""
    place = _draw_place(scene, rng)
    first = _flip_in(place, LENGTH_AT, LENGTH_AT + 4, rng)
    return f"{first}; {_flip_in(place, CRC_AT, len(place.batch.data), rng)}"


@kind(BATCH, 3)
def length_over_following(scene: Scene, rng: random.Random) -> str:
    """A batch's length covers some of the batches after it and ends where a batch begins, or the file."""
    place = _draw_place(scene, rng)
    ends = [other.end for other in places(place.partition) if other.log == place.log and other.position > place.position]
    if not ends:
        raise NotApplicableError("no batch follows it")
    return _set_length(place, rng.choice(ends))


@kind(BATCH, 4)
def length_to_embedded(scene: Scene, rng: random.Random) -> str:
    """A batch's length ends where an embedded batch begins: its own, or one of a batch after it."""
    place = _draw_place(scene, rng, embedded=True)
    before = [other for other in places(place.partition) if other.log == place.log and other.position <= place.position]
    start, _ = rng.choice(place.batch.embedded)
    target = place.position + start
    if start < RECORDS_AT:
        raise NotApplicableError("it is in the header")
    return _set_length(rng.choice(before[-3:]), target)


@kind(BATCH, 2)
def length_nowhere(scene: Scene, rng: random.Random) -> str:
    """A batch's length is a random one: into a batch, behind the end of the file, negative, or too small."""
    place = _draw_place(scene, rng)
    size_bytes = place.log.stat().st_size
    ends = [rng.randint(place.position, size_bytes), size_bytes + rng.randint(1, 5000), place.position + rng.randint(-50, 70)]
    return _set_length(place, rng.choice(ends))


@kind(BLIND, 2)
def length_and_crc(scene: Scene, rng: random.Random) -> str:
    """A batch's length ends where some batch begins, and a bit of its records is flipped too."""
    place = _draw_place(scene, rng)
    here = [other for other in places(place.partition) if other.log == place.log]
    ends = [other.position for other in here if other.position > place.position]
    ends += [other.position + start for other in here for start, _ in other.batch.embedded if other.position >= place.position]
    if not ends:
        raise NotApplicableError("nothing follows it")
    flipped = _flip_in(place, RECORDS_AT, len(place.batch.data), rng) if len(place.batch.data) > RECORDS_AT else ""
    return f"{flipped}; {_set_length(place, rng.choice(ends))}"


def _set_length(place: Place, end: int) -> str:
    length = end - place.position - 12
    patch(place.log, place.position + LENGTH_AT, struct.pack(">i", length))
    return f"{_where(place)}: length {len(place.batch.data) - 12} -> {length}, to byte {end}"


@kind(BATCH, 2)
def zeroed_stretch(scene: Scene, rng: random.Random) -> str:
    """A part of a batch is zeros: the header, or all of it, or some bytes of the records."""
    place = _draw_place(scene, rng)
    size_bytes = len(place.batch.data)
    start = rng.choice((0, 0, rng.randrange(size_bytes)))
    end = rng.choice((size_bytes, min(start + 61, size_bytes), min(start + 17, size_bytes)))
    patch(place.log, place.position + start, bytes(end - start))
    return f"{_where(place)}: its bytes {start} to {end - 1} are zeros"


# -------------------------------------------------------------------------------------------------------------- LOG: segments


@kind(LOG, 3)
def torn_tail(scene: Scene, rng: random.Random) -> str:
    """The last segment ends within its last batch; often right after an embedded batch."""
    partition = rng.choice(scene.partitions)
    found = places(partition)
    if not found:
        raise NotApplicableError("there is no batch")
    return _tear(found[-1], rng)


@kind(LOG, 2)
def torn_old_segment(scene: Scene, rng: random.Random) -> str:
    """A segment ends within one of its batches."""
    return _tear(_draw_place(scene, rng), rng)


@kind(LOG, 2)
def cut_between_batches(scene: Scene, rng: random.Random) -> str:
    """A segment ends where one of its batches does; often nothing else says how far the log reached."""
    place = _draw_place(scene, rng)
    before = [one for one in place.partition.batches if one.base_offset < place.batch.base_offset]
    if before and before[-1].base_offset not in {one.batch.base_offset for one in places(place.partition)}:
        raise NotApplicableError("the batch before it is damaged, and nothing would follow it")
    cut(place.log, place.position)
    gone = list(CHECKPOINTS.values()) if rng.random() < 0.5 else []
    for directory in scene.directories if gone else []:
        for name in gone:
            (directory.path / name).unlink(missing_ok=True)
    return f"{_where(place)}: the file is cut before it{', all checkpoints are gone' if gone else ''}"


def _tear(place: Place, rng: random.Random) -> str:
    cuts = [rng.randrange(1, len(place.batch.data)), *(end for _, end in place.batch.embedded)]
    at = rng.choice(cuts)
    cut(place.log, place.position + at)
    return f"{_where(place)}: torn after its byte {at}"


@kind(LOG, 2)
def tail_of_zeros_or_noise(scene: Scene, rng: random.Random) -> str:
    """Zeros, noise, or a sound batch that was never appended at its place follow the last batch of a segment."""
    _, logs = logs_of(scene, rng)
    log = rng.choice(logs)
    tail = rng.choice((bytes(rng.choice((5, 17, 4096))), rng.randbytes(rng.choice((10, 200)))))
    append(log, tail)
    return f"{log.parent.name}/{log.name}: {len(tail)} bytes more, {'zeros' if not any(tail) else 'noise'}"


@kind(LOG, 4)
def stray_copy(scene: Scene, rng: random.Random) -> str:
    """A segment is there a second time, under another base offset, alone or with its indexes."""
    partition, logs = logs_of(scene, rng)
    log = rng.choice([log for log in logs if log.stat().st_size])
    bases = [int(log.name[:20]) for log in logs]
    end = partition.end_offset
    choices = [
        end + rng.randint(1, 1000),
        end,
        bases[-1] + 1,
        max(bases[0] - rng.randint(1, 10), 0),
        rng.randint(min(bases[0], end), max(bases[0], end)),
    ]
    base = rng.choice([choice for choice in choices if choice not in bases] or [end + 500])
    suffixes = SEGMENT_SUFFIXES if rng.random() < 0.5 else (".log",)
    for suffix in suffixes:
        source = log.with_suffix(suffix)
        if source.exists():
            shutil.copyfile(source, log.with_name(f"{base:020d}{suffix}"))
    return f"{log.parent.name}: {log.name} copied to {base} ({'all files' if len(suffixes) > 1 else 'the .log'})"


@kind(LOG, 3)
def renamed_segment(scene: Scene, rng: random.Random) -> str:
    """A segment has another base offset in its name, in all of its files or in the .log only."""
    partition, logs = logs_of(scene, rng)
    log = rng.choice(logs)
    base = int(log.name[:20])
    new = rng.choice((base + rng.randint(1, 3), partition.end_offset + rng.randint(0, 300), max(base - 1, 0)))
    if log.with_name(f"{new:020d}.log").exists():
        raise NotApplicableError("the name is taken")
    for suffix in SEGMENT_SUFFIXES if rng.random() < 0.5 else (".log",):
        source = log.with_suffix(suffix)
        if source.exists():
            source.rename(log.with_name(f"{new:020d}{suffix}"))
    return f"{log.parent.name}: {log.name} renamed to {new}"


def remove_files(logs: Sequence[Path], suffixes: Sequence[str]) -> None:
    """Remove the files of segments that have one of the suffixes."""
    for log in logs:
        for suffix in suffixes:
            log.with_suffix(suffix).unlink(missing_ok=True)


@kind(LOG, 4)
def deleted_segment(scene: Scene, rng: random.Random) -> str:
    """A segment is gone: the .log alone, with its indexes, or with its indexes and its snapshot."""
    _, logs = logs_of(scene, rng)
    log = rng.choice(logs)
    gone = rng.choice(((".log",), SEGMENT_SUFFIXES, (*SEGMENT_SUFFIXES, ".snapshot")))
    remove_files([log], gone)
    return f"{log.parent.name}: {log.name} deleted ({' '.join(gone)})"


@kind(LOG, 2)
def all_segments_deleted(scene: Scene, rng: random.Random) -> str:
    """Every segment of a partition is gone; snapshots, leader epochs and checkpoints are there."""
    partition, logs = logs_of(scene, rng)
    suffixes = (".log",) if rng.random() < 0.5 else SEGMENT_SUFFIXES
    remove_files(logs, suffixes)
    return f"{partition.name}: all {' '.join(suffixes)} deleted"


@kind(LOG, 1)
def emptied_segment(scene: Scene, rng: random.Random) -> str:
    """A segment has no bytes."""
    _, logs = logs_of(scene, rng)
    log = rng.choice([log for log in logs if log.stat().st_size])
    log.write_bytes(b"")
    return f"{log.parent.name}: {log.name} emptied"


@kind(LOG, 3)
def swapped_segments(scene: Scene, rng: random.Random) -> str:
    """Two segments of a partition have exchanged their contents, in all files or in the .log only."""
    _, logs = logs_of(scene, rng, at_least=2)
    one, other = rng.sample(logs, 2)
    suffixes = SEGMENT_SUFFIXES if rng.random() < 0.5 else (".log",)
    for suffix in suffixes:
        contents = []
        for log in (one, other):
            path = log.with_suffix(suffix)
            contents.append(path.read_bytes() if path.exists() else b"")
        one.with_suffix(suffix).write_bytes(contents[1])
        other.with_suffix(suffix).write_bytes(contents[0])
    return f"{one.parent.name}: {one.name} and {other.name} exchanged ({' '.join(suffixes)})"


@kind(LOG, 2)
def overlapping_segments(scene: Scene, rng: random.Random) -> str:
    """A segment ends with the first batches of the next, or the next begins with the last batches of the one before."""
    _, logs = logs_of(scene, rng, at_least=2)
    index = rng.randrange(len(logs) - 1)
    before, after = logs[index], logs[index + 1]
    first, second = before.read_bytes(), after.read_bytes()
    if not first or not second:
        raise NotApplicableError("a segment is empty")
    if rng.random() < 0.5:
        before.write_bytes(first + second)
        return f"{before.parent.name}: {before.name} ends with all of {after.name}"
    after.write_bytes(first + second)
    return f"{before.parent.name}: {after.name} begins with all of {before.name}"


@kind(LOG, 2)
def batches_moved(scene: Scene, rng: random.Random) -> str:
    """A batch of a segment is there twice, is gone, or has changed places with its neighbour."""
    place = _draw_place(scene, rng)
    data = place.log.read_bytes()
    here = [other for other in places(place.partition) if other.log == place.log]
    way = rng.choice(("twice", "gone", "swapped"))
    if way == "twice":
        place.log.write_bytes(data[: place.end] + place.batch.data + data[place.end :])
    elif way == "gone":
        place.log.write_bytes(data[: place.position] + data[place.end :])
    else:
        behind = [other for other in here if other.position == place.end]
        if not behind:
            raise NotApplicableError("no batch follows it")
        place.log.write_bytes(data[: place.position] + behind[0].batch.data + place.batch.data + data[behind[0].end :])
    return f"{_where(place)}: {way}"


@kind(LOG, 1)
def odd_log_name(scene: Scene, rng: random.Random) -> str:
    """A copy of a segment has a name that no broker writes."""
    partition, logs = logs_of(scene, rng)
    name = rng.choice(("500.log", "backup.log", f"{partition.end_offset}.log", "00000000000000000000.log.bak", "-1.log"))
    shutil.copyfile(logs[0], partition.path / name)
    return f"{partition.name}: {logs[0].name} copied to {name}"
