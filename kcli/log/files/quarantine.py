"""The quarantine, where a repair or a recovery puts what it removes, and the evidence of a clean stop in its manifests.

Whole files are moved, byte ranges are copied, and a manifest states where each came from:

    FOLDER/                         the quarantine; by default <log directory>.quarantine, next to the log directory
      <n>/                          one repair; n counts up from 1
        manifest.json               see below; written before anything is changed, completed at the end
        <partition>/<file>          a file that was removed or replaced
        <partition>/<file>.bytes-<start>-<end>    bytes [start, end) of a file that stays

    manifest.json  {"version": 1, "log_directory": ..., "complete": false | true, "kept": [ENTRY, ...], "clean_stop": STOP,
                    "checkpoints": STOP, "lost": [LOST, ...]}
    ENTRY          {"file": name in the log directory, "kept_as": name in the folder, "bytes": [start, end] | null, "why": ...}
    LOST           {"partition": directory's name, "topic_id": ..., "offsets": [[first, end), ...], "log_end": offset}; topic_id
                   "": unknown; log_end: where the repair lets the log end
    STOP           {name of an offset checkpoint: [digest, ...], ...}; "clean_stop" is empty if the directory was not stopped
                   cleanly

The quarantine must not be inside a log directory: a broker does not start if a directory there is not named as a partition.
kcli reads only STOP and LOST again; `kcli verify` reports LOST.

Why log_end: a repair that was interrupted may have cut the torn batch whose header showed where the log ended, and not yet
have begun the empty segment there. While the manifest is not complete and no broker has run, its log_end is evidence of that.

Why STOP: after a clean stop a checkpoint that is ahead of its log is wrong; after a crash it is a sign of lost records
(kcli.inspect.verification.evidence). A repair moves .kafka_cleanshutdown here, and does not restore it if it lost records, was
interrupted, or repaired only some of the partitions. STOP therefore has the digests of the offset checkpoints at the stop and
after the repair. While each checkpoint has one of these digests, no broker has run since: a running broker writes recovery
points every minute and high watermarks every five seconds.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from kcli.format import limits
from kcli.format.file_names import FileKind
from kcli.log.disk.planned_disk import REMOVE, RENAME, REWRITE, TRUNCATE, WRITE, Change
from kcli.log.disk.port import Disk, base_name, join_path, parent_path
from kcli.log.slices import Slices, finish

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
DEFAULT_SUFFIX = ".quarantine"

_CHECKPOINTS = (
    FileKind.RECOVERY_POINT_CHECKPOINT,
    FileKind.REPLICATION_CHECKPOINT,
    FileKind.LOG_START_OFFSET_CHECKPOINT,
    FileKind.CLEANER_CHECKPOINT,
)
_MISSING = ""

# The digests that each offset checkpoint may have, by its name, in hexadecimal; "" for a missing file.
CheckpointDigests = dict[str, list[str]]


def default_folder(log_directory: str) -> str:
    """Return the default path of the quarantine of a log directory, which is given by its absolute path."""
    return (log_directory.rstrip("/") or "/") + DEFAULT_SUFFIX


class LostOffsets(NamedTuple):
    """Offsets [first, end) of a partition that a repair reported as lost; `partition` is the name of its directory.

    `planned_end` is where an interrupted repair lets the log end; None if the repair is complete, or a broker has run since.
    """

    partition: str
    topic_id: str
    offsets: tuple[tuple[int, int], ...]
    planned_end: int | None = None


def _manifests(disk: Disk, folder: str, log_directory: str) -> Iterator[dict[str, object]]:
    """Yield the manifests of the repairs of a log directory; unreadable ones are skipped."""
    if not disk.is_directory(folder):
        return
    with suppress(OSError):
        for number in disk.list_directory(folder):
            path = join_path(join_path(folder, number), MANIFEST)
            with suppress(OSError, ValueError):
                manifest = json.loads(disk.read_file(path, limits.MAX_INDEX_FILE_BYTES)) if disk.exists(path) else None
                if isinstance(manifest, dict) and base_name(str(manifest.get("log_directory"))) == base_name(log_directory):
                    yield manifest


def is_as_stopped(disk: Disk, folder: str, log_directory: str) -> bool:
    """Return True if the offset checkpoints are as a clean stop and the repairs in the quarantine `folder` left them."""
    return any(
        _has_digests(disk, log_directory, manifest.get("clean_stop")) for manifest in _manifests(disk, folder, log_directory)
    )


def _has_digests(disk: Disk, log_directory: str, stop: object) -> bool:
    """Return True if the offset checkpoints of a log directory are those of a STOP."""
    if not isinstance(stop, dict) or not stop:
        return False
    known = {str(name): list(map(str, digests)) for name, digests in stop.items() if isinstance(digests, list)}
    try:
        now = checkpoint_digests([disk], log_directory)
    except OSError:
        return False
    return all(digests[0] in known.get(name, ()) for name, digests in now.items())


def checkpoint_digests(disks: Sequence[Disk], log_directory: str) -> CheckpointDigests:
    """Return the digests of the offset checkpoints on each of the disks. Raises OSError."""
    return {kind.value: [_digest(disk, join_path(log_directory, kind.value)) for disk in disks] for kind in _CHECKPOINTS}


def _digest(disk: Disk, path: str) -> str:
    if not disk.exists(path):
        return _MISSING
    return hashlib.sha256(disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)).hexdigest()


def read_lost(disk: Disk, folder: str, log_directory: str) -> list[LostOffsets]:
    """Return the offsets of a log directory that the manifests in a quarantine report as lost."""
    found: list[LostOffsets] = []
    for manifest in _manifests(disk, folder, log_directory):
        lost = manifest.get("lost")
        is_interrupted = manifest.get("complete") is False and _has_digests(disk, log_directory, manifest.get("checkpoints"))
        for one in lost if isinstance(lost, list) else ():
            with suppress(KeyError, TypeError, ValueError):
                offsets = tuple((int(first), int(end)) for first, end in one["offsets"])
                end = int(one["log_end"]) if is_interrupted and one.get("log_end") is not None else None
                found.append(LostOffsets(str(one["partition"]), str(one["topic_id"]), offsets, end))
    return found


class Quarantine:
    """The quarantine of one repair, a kcli.log.disk.file_changes.Keeper. Its folder is created when something is kept first."""

    def __init__(self, disk: Disk, folder: str, log_directory: str) -> None:
        self.folder = folder
        self._disk = disk
        self._log_directory = log_directory
        self._numbered = ""
        self._entries: list[dict[str, object]] = []
        self._clean_stop: CheckpointDigests = {}
        self._checkpoints: CheckpointDigests = {}
        self._lost: list[LostOffsets] = []

    @property
    def path(self) -> str:
        """The folder of this repair, "" before anything is kept."""
        return self._numbered

    def note_clean_stop(self, digests: CheckpointDigests) -> None:
        """Set STOP of the next manifest; {} if the directory was not stopped cleanly or has changed since."""
        self._clean_stop = digests

    def note_lost(self, lost: LostOffsets) -> None:
        """Add offsets of a partition whose files do not change to LOST of the next manifest."""
        self._lost.append(lost)

    def note_checkpoints(self, digests: CheckpointDigests) -> None:
        """Set the digests of the offset checkpoints of the next manifest."""
        self._checkpoints = digests

    def free_bytes(self, other: str) -> int | None:
        """Return the free bytes of this file system, None if the path `other` is on the same one. Raises OSError."""
        path = self.folder
        while not self._disk.is_directory(path):
            path = parent_path(path)
        return None if self._disk.device(path) == self._disk.device(other) else self._disk.free_bytes(path)

    def announce(self, changes: Iterable[Change], lost: LostOffsets | None = None) -> None:
        """Write what a plan is about to remove to the manifest, and the offsets it loses. Raises OSError: nothing is noted."""
        changes = list(changes)
        renamed = {change.target: change.path for change in changes if change.kind == RENAME}
        entries, all_lost = len(self._entries), len(self._lost)
        for change in changes:
            if change.kind == REMOVE or (change.kind == WRITE and change.replaces):
                self._add(change.path, None, change.why)
            elif change.kind in (REWRITE, TRUNCATE):
                for part in change.dropped:
                    self._add(renamed.get(change.path, change.path), part, change.why)
        if len(self._entries) == entries and not (lost is not None and lost.offsets):
            return
        if lost is not None:
            self._lost.append(lost)
        try:
            self._write_manifest(complete=False)
        except OSError:
            del self._entries[entries:], self._lost[all_lost:]
            if not self._entries and self._numbered:
                # No folder is reported that has no manifest.
                with suppress(OSError):
                    self._disk.remove_directory(self._numbered)
                self._numbered = ""
            raise

    def _add(self, path: str, part: tuple[int, int] | None, why: str) -> None:
        file = self._name_in_log_directory(path)
        kept_as = file if part is None else f"{file}.bytes-{part[0]}-{part[1]}"
        self._entries.append({"file": file, "kept_as": kept_as, "bytes": part, "why": why})

    def _name_in_log_directory(self, path: str) -> str:
        directory = parent_path(path)
        inside = directory.rstrip("/") != self._log_directory.rstrip("/")
        return join_path(base_name(directory), base_name(path)) if inside else base_name(path)

    def _target(self, path: str, suffix: str = "") -> str:
        target = join_path(self._make_folder(), self._name_in_log_directory(path) + suffix)
        directory = parent_path(target)
        if not self._disk.is_directory(directory):
            self._disk.make_directory(directory)
            self._disk.flush_directory(self._numbered)
        return target

    def _make_folder(self) -> str:
        if not self._numbered:
            number = 1
            while self._disk.exists(join_path(self.folder, str(number))):
                number += 1
            numbered = join_path(self.folder, str(number))
            self._disk.make_directory(numbered)
            self._disk.flush_directory(self.folder)
            self._disk.flush_directory(parent_path(self.folder))
            self._numbered = numbered
        return self._numbered

    def _write_manifest(self, *, complete: bool) -> None:
        manifest = {
            "version": MANIFEST_VERSION,
            "log_directory": self._log_directory,
            "complete": complete,
            "kept": self._entries,
            "clean_stop": self._clean_stop,
            "checkpoints": self._checkpoints,
            "lost": [
                {"partition": one.partition, "topic_id": one.topic_id, "offsets": one.offsets, "log_end": one.planned_end}
                for one in self._lost
            ],
        }
        text = json.dumps(manifest, indent=1, ensure_ascii=False)
        self._disk.write_file(join_path(self._make_folder(), MANIFEST), text.encode("utf-8", "surrogateescape") + b"\n")

    def finish(self) -> None:
        """Mark the manifest as complete. Raises OSError."""
        if self._entries:
            self._write_manifest(complete=True)

    def keep_file(self, path: str) -> None:
        """Move a whole file here; to another file system it is copied and then removed."""
        finish(self.move_in_slices(self._disk, path))

    def keep_copy(self, path: str) -> None:
        """Copy a whole file here."""
        self._copy(path, 0, self._disk.size(path), self._target(path))

    def keep_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Copy byte ranges here."""
        for start, end in ranges:
            self._copy(path, start, end, self._target(path, f".bytes-{start}-{end}"))

    def copy_in_slices(self, source: Disk, path: str, part: tuple[int, int] | None = None) -> Slices[str]:
        """Copy a byte range of a file on `source`, or the whole file, and flush it; return its new path."""
        start, end = part or (0, source.size(path))
        target = self._target(path, "" if part is None else f".bytes-{start}-{end}")
        yield from self._copy_in_slices(source, path, start, end, target)
        self._disk.flush_directory(parent_path(target))
        return target

    def move_in_slices(self, source: Disk, path: str) -> Slices[str]:
        """Move a whole file on `source` here and return its new path; in slices if it is copied to another file system."""
        target = self._target(path)
        try:
            source.rename(path, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            yield from self._copy_in_slices(source, path, 0, source.size(path), target)
            source.remove(path)
        self._disk.flush_directory(parent_path(target))
        return target

    def _copy(self, path: str, start: int, end: int, target: str) -> None:
        finish(self._copy_in_slices(self._disk, path, start, end, target))

    def _copy_in_slices(self, source: Disk, path: str, start: int, end: int, target: str) -> Slices[None]:
        file = source.open_file(path)
        try:
            self._disk.append(target, b"")
            first = start
            while start < end:
                data = min(file.next_data(start), end)
                if data > start:  # keep holes: a sparse file may be larger than the free space
                    self._disk.truncate(target, data - first)
                    start = data
                    continue
                chunk = file.read_at(start, min(limits.READ_CHUNK_BYTES, end - start))
                if not chunk:
                    break
                self._disk.append(target, chunk)
                start += len(chunk)
                yield
        finally:
            file.close()
        self._disk.flush(target)
