"""Damage to what lies beside the .log files: lost, cut, overwritten and stale files of a partition directory."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

from tests.damage.layout import (
    NotApplicableError,
    append,
    base_offset_of,
    cut,
    damage,
    file_name,
    flip_bit,
    log_end_offset,
    log_with_batches,
    patch,
    register,
    segment_logs,
    sibling,
)

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"


def _filled(partition_dir: Path, suffix: str, *, old: bool) -> Path:
    """Return a file of `suffix` with something in it: of the last segment, or of the first of several if `old`."""
    logs = segment_logs(partition_dir)
    for log in logs[:-1] if old else logs[-1:]:
        path = sibling(log, suffix)
        if path.exists() and path.stat().st_size:
            return path
    raise NotApplicableError(f"the {'older segments have' if old else 'last segment has'} no filled {suffix}")


def _remove_all(partition_dir: Path, pattern: str) -> None:
    found = sorted(partition_dir.glob(pattern))
    if not found:
        raise NotApplicableError(f"there is no {pattern}")
    for path in found:
        path.unlink()


def _remove_one(path: Path) -> None:
    if not path.exists():
        raise NotApplicableError(f"there is no {path.name}")
    path.unlink()


def _change_entries(path: Path, entry: struct.Struct, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
    data = bytearray(path.read_bytes())
    for position in range(0, len(data) - entry.size + 1, entry.size):
        entry.pack_into(data, position, *change(entry.unpack_from(data, position)))
    path.write_bytes(data)


def _zero(path: Path, rng: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _garble(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(path.stat().st_size))


def _cut_inside_entry(path: Path, rng: random.Random) -> None:
    cut(path, path.stat().st_size - rng.randint(1, 7))


def _lengthen(path: Path, rng: random.Random) -> None:
    append(path, rng.randbytes(5))


def _lose(path: Path, rng: random.Random) -> None:
    path.unlink()


def _empty(path: Path, rng: random.Random) -> None:
    cut(path, 0)


def _register_index_damage() -> None:
    ways: dict[str, tuple[Callable[[Path, random.Random], None], str]] = {
        "lost": (_lose, "is gone"),
        "empty": (_empty, "has no bytes"),
        "torn": (_cut_inside_entry, "ends inside an entry"),
        "zeroed": (_zero, "is all zeros"),
        "garbage": (_garble, "is random bytes of the same size"),
        "long": (_lengthen, "is followed by five random bytes"),
    }
    for suffix in ("index", "timeindex", "txnindex"):
        for age in ("last", "old"):
            for name, (way, words) in ways.items():

                def change(
                    partition_dir: Path,
                    rng: random.Random,
                    way: Callable[[Path, random.Random], None] = way,
                    suffix: str = suffix,
                    old: bool = age == "old",
                ) -> None:
                    way(_filled(partition_dir, f".{suffix}", old=old), rng)

                which = "the last segment" if age == "last" else "a segment that others follow"
                register(f"{suffix}_{name}_{age}", change, f"The .{suffix} of {which} {words}.")


_register_index_damage()


@damage
def index_points_beyond(partition_dir: Path, rng: random.Random) -> None:
    """The last entry of the last segment's .index points behind the end of the log."""
    path = _filled(partition_dir, ".index", old=False)
    patch(path, path.stat().st_size - 4, struct.pack(">i", 2**30))


@damage
def index_shifted(partition_dir: Path, rng: random.Random) -> None:
    """Every position in the last segment's .index is one byte too high."""
    path = _filled(partition_dir, ".index", old=False)
    _change_entries(path, struct.Struct(">ii"), lambda entry: (entry[0], entry[1] + 1))


@damage
def timeindex_ahead(partition_dir: Path, rng: random.Random) -> None:
    """Every timestamp in the last segment's .timeindex is a year too high."""
    path = _filled(partition_dir, ".timeindex", old=False)
    _change_entries(path, struct.Struct(">qi"), lambda entry: (entry[0] + 365 * 86_400_000, entry[1]))


def _set_txnindex_version(partition_dir: Path, rng: random.Random, version: int) -> None:
    paths = [path for path in sorted(partition_dir.glob("*.txnindex")) if path.stat().st_size]
    if not paths:
        raise NotApplicableError("no filled .txnindex")
    patch(rng.choice(paths), 0, struct.pack(">h", version))


@damage
def txnindex_of_unknown_version(partition_dir: Path, rng: random.Random) -> None:
    """The first entry of a .txnindex says version 256."""
    _set_txnindex_version(partition_dir, rng, 256)


@damage
def txnindex_of_version_nine(partition_dir: Path, rng: random.Random) -> None:
    """The first entry of a .txnindex says version 9, which Kafka, looking at the high byte alone, takes for 0."""
    _set_txnindex_version(partition_dir, rng, 9)


@damage
def txnindex_below_its_name(partition_dir: Path, rng: random.Random) -> None:
    """The last offset in an entry of a .txnindex lies below the offset that the file is named by."""
    paths = [path for path in sorted(partition_dir.glob("*.txnindex")) if path.stat().st_size and base_offset_of(path)]
    if not paths:
        raise NotApplicableError("no filled .txnindex above offset 0")
    path = rng.choice(paths)
    patch(path, 18, struct.pack(">q", base_offset_of(path) - 1))


@damage
def lost_all_indexes(partition_dir: Path, rng: random.Random) -> None:
    """All .index and .timeindex files are gone."""
    _remove_all(partition_dir, "*index")


@damage
def lost_first_log(partition_dir: Path, rng: random.Random) -> None:
    """The .log of the first of several segments is gone, its indexes stay."""
    if len(segment_logs(partition_dir)) < 2:
        raise NotApplicableError("there is one segment only")
    segment_logs(partition_dir)[0].unlink()


@damage
def lost_middle_log(partition_dir: Path, rng: random.Random) -> None:
    """The .log of a segment in the middle is gone, its indexes stay."""
    if len(segment_logs(partition_dir)) < 3:
        raise NotApplicableError("there are fewer than three segments")
    rng.choice(segment_logs(partition_dir)[1:-1]).unlink()


@damage
def lost_last_log(partition_dir: Path, rng: random.Random) -> None:
    """The .log of the last segment is gone, its indexes and the snapshots stay."""
    log_with_batches(partition_dir)
    segment_logs(partition_dir)[-1].unlink()


@damage
def lost_all_logs(partition_dir: Path, rng: random.Random) -> None:
    """Every .log is gone."""
    _remove_all(partition_dir, "*.log")


def _last_snapshot(partition_dir: Path) -> Path:
    found = sorted(partition_dir.glob("*.snapshot"))
    if not found:
        raise NotApplicableError("there is no .snapshot")
    return found[-1]


@damage
def lost_all_snapshots(partition_dir: Path, rng: random.Random) -> None:
    """All .snapshot files are gone."""
    _remove_all(partition_dir, "*.snapshot")


@damage
def lost_last_snapshot(partition_dir: Path, rng: random.Random) -> None:
    """The last .snapshot, the one of the log end offset, is gone."""
    _last_snapshot(partition_dir).unlink()


@damage
def snapshot_torn(partition_dir: Path, rng: random.Random) -> None:
    """The last .snapshot ends early."""
    path = _last_snapshot(partition_dir)
    cut(path, rng.randint(1, path.stat().st_size - 1))


@damage
def snapshot_empty(partition_dir: Path, rng: random.Random) -> None:
    """The last .snapshot has no bytes: it is written without a flush when a segment is rolled."""
    cut(_last_snapshot(partition_dir), 0)


@damage
def snapshot_flipped(partition_dir: Path, rng: random.Random) -> None:
    """One bit behind the CRC of the last .snapshot is flipped."""
    path = _last_snapshot(partition_dir)
    flip_bit(path, 6, path.stat().st_size - 6, rng)


@damage
def snapshot_garbage(partition_dir: Path, rng: random.Random) -> None:
    """Every .snapshot is random bytes."""
    _last_snapshot(partition_dir)
    for path in sorted(partition_dir.glob("*.snapshot")):
        path.write_bytes(rng.randbytes(path.stat().st_size))


@damage
def snapshot_of_unknown_version(partition_dir: Path, rng: random.Random) -> None:
    """The last .snapshot says version 2."""
    patch(_last_snapshot(partition_dir), 0, struct.pack(">h", 2))


@damage
def snapshot_beyond_end(partition_dir: Path, rng: random.Random) -> None:
    """A sound .snapshot is named by an offset above the log end offset."""
    path = _last_snapshot(partition_dir)
    path.rename(path.with_name(file_name(log_end_offset(partition_dir) + rng.randint(1, 500), ".snapshot")))


@damage
def snapshot_between_segments(partition_dir: Path, rng: random.Random) -> None:
    """Another sound .snapshot lies beside the others, named by an offset at which no segment starts."""
    path = _last_snapshot(partition_dir)
    offset = log_end_offset(partition_dir) - 1
    path.with_name(file_name(offset, ".snapshot")).write_bytes(path.read_bytes())


def _register_epoch_damage() -> None:
    contents: dict[str, tuple[Callable[[int, random.Random], bytes], str]] = {
        "empty": (lambda end, rng: b"", "has no bytes"),
        "garbage": (lambda end, rng: rng.randbytes(40), "is random bytes"),
        "of_unknown_version": (lambda end, rng: b"1\n1\n0 0\n", "says version 1"),
        "of_wrong_count": (lambda end, rng: b"0\n3\n0 0\n", "promises three entries and has one"),
        "with_words": (lambda end, rng: b"0\n1\nzero 0\n", "has a word where a number belongs"),
        "beyond_end": (lambda end, rng: b"0\n2\n0 0\n9 %d\n" % (end + 50), "has an epoch that starts above the log end"),
        "too_high": (lambda end, rng: b"0\n1\n40 0\n", "has one epoch, above all of the batches"),
        "negative": (lambda end, rng: b"0\n2\n0 0\n1 -5\n", "has an epoch that starts at a negative offset"),
        "out_of_order": (lambda end, rng: b"0\n2\n5 100\n3 10\n", "lists a lower epoch and offset behind a higher one"),
    }
    for name, (content, words) in contents.items():

        def change(partition_dir: Path, rng: random.Random, content: Callable[[int, random.Random], bytes] = content) -> None:
            end_offset = log_end_offset(partition_dir)
            (partition_dir / LEADER_EPOCHS).write_bytes(content(end_offset, rng))

        register(f"leader_epochs_{name}", change, f"The leader-epoch-checkpoint {words}.")


_register_epoch_damage()


@damage
def lost_leader_epochs(partition_dir: Path, rng: random.Random) -> None:
    """The leader-epoch-checkpoint is gone."""
    _remove_one(partition_dir / LEADER_EPOCHS)


@damage
def lost_partition_metadata(partition_dir: Path, rng: random.Random) -> None:
    """partition.metadata is gone."""
    _remove_one(partition_dir / PARTITION_METADATA)


@damage
def partition_metadata_empty(partition_dir: Path, rng: random.Random) -> None:
    """partition.metadata has no bytes."""
    (partition_dir / PARTITION_METADATA).write_bytes(b"")


@damage
def partition_metadata_garbage(partition_dir: Path, rng: random.Random) -> None:
    """partition.metadata is random bytes."""
    (partition_dir / PARTITION_METADATA).write_bytes(rng.randbytes(43))


@damage
def partition_metadata_of_zero_id(partition_dir: Path, rng: random.Random) -> None:
    """partition.metadata names the topic id that is all zeros."""
    (partition_dir / PARTITION_METADATA).write_bytes(b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA")


@damage
def partition_metadata_of_other_topic(partition_dir: Path, rng: random.Random) -> None:
    """partition.metadata names another topic's id."""
    (partition_dir / PARTITION_METADATA).write_bytes(b"version: 0\ntopic_id: kcliKcliKcliKcliKcliKg")


@damage
def stray_orphan_indexes(partition_dir: Path, rng: random.Random) -> None:
    """An .index, a .timeindex and a .txnindex lie there without their .log."""
    offset = log_end_offset(partition_dir) + rng.randint(1, 500)
    for suffix, entry_bytes in ((".index", 8), (".timeindex", 12), (".txnindex", 34)):
        (partition_dir / file_name(offset, suffix)).write_bytes(bytes(3 * entry_bytes))


@damage
def stray_temporary_files(partition_dir: Path, rng: random.Random) -> None:
    """Half-written .tmp files of the leader epochs and of partition.metadata lie there."""
    (partition_dir / f"{LEADER_EPOCHS}.tmp").write_bytes(b"0\n2\n0 ")
    (partition_dir / f"{PARTITION_METADATA}.tmp").write_bytes(b"version: 0\nto")


@damage
def stray_unknown_files(partition_dir: Path, rng: random.Random) -> None:
    """Files that are not Kafka's lie there."""
    (partition_dir / "notes.txt").write_bytes(b"do not delete\n")
    (partition_dir / "00000000000000000000.log.bak").write_bytes(rng.randbytes(100))


@damage
def stray_directory(partition_dir: Path, rng: random.Random) -> None:
    """A directory with a file lies among the segments."""
    (partition_dir / "lost+found").mkdir()
    (partition_dir / "lost+found" / "00000000000000000000.log").write_bytes(rng.randbytes(100))


@damage
def stray_log_without_offset(partition_dir: Path, rng: random.Random) -> None:
    """A .log lies there whose name is no offset."""
    (partition_dir / "backup.log").write_bytes(segment_logs(partition_dir)[0].read_bytes())


@damage
def stray_log_of_short_name(partition_dir: Path, rng: random.Random) -> None:
    """A .log lies there whose name is an offset of too few digits."""
    (partition_dir / f"{log_end_offset(partition_dir) + 7}.log").write_bytes(b"")


@damage
def stray_snapshot_without_offset(partition_dir: Path, rng: random.Random) -> None:
    """A .snapshot lies there whose name is no offset."""
    (partition_dir / "backup.snapshot").write_bytes(_last_snapshot(partition_dir).read_bytes())
