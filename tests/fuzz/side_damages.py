"""Damage to what is next to the .log files: checkpoints, snapshots, indexes, identities, directories; see damages.py."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

from tests.damage import DAMAGES
from tests.damage.layout import NotApplicableError
from tests.fuzz.damages import KINDS, LOG, SIDE, Kind, kind
from tests.fuzz.directories import CHECKPOINTS, MARK, DirectoryModel, PartitionModel, Scene


def replace(path: Path, content: bytes | None) -> None:
    """Give a file other content, or remove it (None)."""
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)


@kind(SIDE, 14)
def checkpoint_lost_or_unreadable(scene: Scene, rng: random.Random) -> str:
    """A checkpoint of a log directory is gone, empty, or cannot be read."""
    directory = rng.choice(scene.directories)
    path = directory.path / rng.choice(list(CHECKPOINTS.values()))
    if not path.exists():
        raise NotApplicableError("there is no such file")
    content = rng.choice((None, b"", rng.randbytes(40), b"0\n7\norders 0 5\n", b"0\n1\norders zero 5\n", b"9\n0\n"))
    replace(path, content)
    return f"{directory.path.name}/{path.name}: {'gone' if content is None else content[:30]!r}"


@kind(SIDE, 20)
def checkpoint_states_other(scene: Scene, rng: random.Random) -> str:
    """A checkpoint states another offset: above the log's end, below it, negative; or has no line for the partition."""
    directory = rng.choice(scene.directories)
    partition = rng.choice(directory.partitions)
    field = rng.choice(("recovery_point", "high_watermark", "cleaner_offset", "log_start"))
    path = directory.path / CHECKPOINTS[field]
    end = partition.end_offset
    offset = rng.choice((end + rng.randint(1, 10_000), end + 1, rng.randint(0, end), 0, -5, None))
    if field == "log_start" and offset is not None and partition.log_start < offset <= end:
        offset = None  # the records below it would rightly be deleted
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    prefix = f"{partition.topic} {partition.number} "
    lines = [line for line in lines if not line.startswith(prefix)]
    if offset is not None:
        lines.append(f"{prefix}{offset}")
    path.write_text("".join(f"{line}\n" for line in ("0", str(len(lines)), *lines)))
    return f"{directory.path.name}/{path.name}: {partition.name} is at {offset}, the log ends at {end}"


@kind(SIDE, 4)
def checkpoint_of_others(scene: Scene, rng: random.Random) -> str:
    """A checkpoint is another directory's: it names partitions that are not here, and none that are."""
    directory = rng.choice(scene.directories)
    path = directory.path / rng.choice(list(CHECKPOINTS.values()))
    path.write_text("0\n2\nelsewhere 0 77\nelsewhere 1 12\n")
    return f"{directory.path.name}/{path.name}: of other partitions"


@kind(SIDE, 4)
def leader_epochs_beyond_end(scene: Scene, rng: random.Random) -> str:
    """leader-epoch-checkpoint has an epoch that starts above the log's end."""
    partition = rng.choice(scene.partitions)
    path = partition.path / "leader-epoch-checkpoint"
    if not path.exists():
        raise NotApplicableError("there is none")
    path.write_text(f"0\n2\n0 {partition.log_start}\n99 {partition.end_offset + rng.randint(1, 500)}\n")
    return f"{partition.name}: leader epoch 99 from beyond the end"


@kind(SIDE, 6)
def topic_id_of_another(scene: Scene, rng: random.Random) -> str:
    """partition.metadata is another topic's, lost, or empty."""
    partition = rng.choice(scene.partitions)
    content = rng.choice((b"version: 0\ntopic_id: kcliKcliKcliKcliKcliKg", None, b""))
    path = partition.path / "partition.metadata"
    replace(path, content)
    return f"{partition.name}: partition.metadata is {content!r}"


@kind(SIDE, 4)
def meta_properties(scene: Scene, rng: random.Random) -> str:
    """meta.properties is gone, unreadable, or of another node."""
    directory = rng.choice(scene.directories)
    path = directory.path / "meta.properties"
    way = rng.choice(("gone", "garbage", "other node"))
    if way == "gone":
        path.unlink(missing_ok=True)
    elif way == "garbage":
        path.write_bytes(b"version=7\n")
    else:
        path.write_bytes(b"#\n#Sat Nov 21 03:50:00 UTC 2026\nnode.id=9\nversion=1\ncluster.id=kcliKcliKcliKcliKcliKg\n")
    return f"{directory.path.name}/meta.properties: {way}"


@kind(SIDE, 3)
def clean_mark(scene: Scene, rng: random.Random) -> str:
    """.kafka_cleanshutdown is unreadable, or there after a crash."""
    directory = rng.choice(scene.directories)
    content = rng.choice((b"", b"{}", b"\xff\xfe", MARK))
    (directory.path / ".kafka_cleanshutdown").write_bytes(content)
    directory.is_clean = True
    return f"{directory.path.name}/.kafka_cleanshutdown: {content!r}"


@kind(SIDE, 5)
def extra_directory(scene: Scene, rng: random.Random) -> str:
    """A directory that is not a partition's, or a partition that is about to be deleted, is in the log directory."""
    directory = rng.choice(scene.directories)
    name = rng.choice(("lost+found", "backup", "orders-0.0123456789abcdef0123456789abcdef-delete", "orders-x"))
    (directory.path / name).mkdir(exist_ok=True)
    (directory.path / name / "notes.txt").write_bytes(b"notes\n")
    return f"{directory.path.name}: directory {name}"


@kind(LOG, 1)
def partition_lost(scene: Scene, rng: random.Random) -> str:
    """A partition's directory is gone, or has nothing in it."""
    partition = rng.choice(scene.partitions)
    shutil.rmtree(partition.path, ignore_errors=True)
    if rng.random() < 0.6:
        partition.path.mkdir()
        return f"{partition.name}: the directory is empty"
    directory = _directory_of(scene, partition)
    if len([path for path in directory.path.iterdir() if path.is_dir()]) == 0:
        partition.path.mkdir()
        return f"{partition.name}: the directory is empty"
    return f"{partition.name}: the directory is gone"


def _directory_of(scene: Scene, partition: PartitionModel) -> DirectoryModel:
    return next(directory for directory in scene.directories if partition in directory.partitions)


# Kinds of tests/damage that change nothing but the files next to the logs.
_BORROWED = (
    *(
        name
        for name in DAMAGES
        if name.startswith(("index_", "timeindex_", "txnindex_", "snapshot_", "leader_epochs_", "lost_"))
    ),
    "active_indexes_preallocated",
    "stray_orphan_indexes",
    "stray_temporary_files",
    "stray_unknown_files",
    "stray_snapshot_without_offset",
    "partition_metadata_of_zero_id",
)
_OF_LOGS = ("lost_batch", "lost_marker")


def _borrow(name: str) -> Callable[[Scene, random.Random], str]:
    def damage(scene: Scene, rng: random.Random) -> str:
        partition = rng.choice(scene.partitions)
        try:
            DAMAGES[name](partition.path, rng)
        except (OSError, IndexError, ValueError, struct.error):
            raise NotApplicableError(f"{partition.name} has been damaged otherwise") from None
        return f"{partition.name}: {DAMAGES[name].__doc__}"

    return damage


for _name in _BORROWED:
    if not (_name.startswith("lost_") and ("log" in _name or _name in _OF_LOGS)):
        KINDS[_name] = Kind(_name, SIDE, 1, _borrow(_name))
