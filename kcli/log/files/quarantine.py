"""The quarantine: what a repair removes is kept there, whole files and byte ranges, with a manifest.

    FOLDER/                         a repair's default is <log directory>.quarantine, next to the log directory
      <n>/                          one repair; numbers count up from 1
        manifest.json               see below; written before the first change, completed at the end
        <partition>/<file>          a file that was removed or replaced
        <partition>/<file>.bytes-<start>-<end>    bytes [start, end) of a file that stays

    manifest.json  {"version": 1, "log_directory": ..., "complete": false | true, "kept": [ENTRY, ...], "clean_stop": STOP,
                    "lost": [LOST, ...]}
    ENTRY          {"file": name in the log directory, "kept_as": name in the folder, "bytes": [start, end] | null, "why": ...}
    LOST           {"partition": directory's name, "topic_id": ..., "offsets": [[first, end), ...]}; topic_id "": not known
    STOP           {name of an offset checkpoint: [digest, ...], ...}, empty where the directory was not stopped cleanly

kcli reads only STOP (clean_stops) and LOST again; `kcli verify` reports LOST. The folder must not be inside a log
directory: a broker does not start with a directory there that is not a partition.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from kcli.format import limits
from kcli.log.disk.planned_disk import REMOVE, RENAME, REWRITE, TRUNCATE, WRITE, Change
from kcli.log.disk.port import Disk, base_name, join_path, parent_path
from kcli.log.slices import Slices, finish

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
DEFAULT_SUFFIX = ".quarantine"

# Names of offset checkpoints, and the digests that each may have, in hexadecimal; "" for a missing file.
CheckpointDigests = dict[str, list[str]]


def default_folder(log_directory: str) -> str:
    """Return the default folder of the quarantine of a log directory, given by its absolute path."""
    return (log_directory.rstrip("/") or "/") + DEFAULT_SUFFIX


class LostOffsets(NamedTuple):
    """The offsets [first, end) of a partition that a repair has lost; `partition` is the name of its directory."""

    partition: str
    topic_id: str
    offsets: tuple[tuple[int, int], ...]


def _manifests(disk: Disk, folder: str, log_directory: str) -> Iterator[dict[str, object]]:
    """Yield the manifests of the repairs of a log directory; what cannot be read is skipped."""
    if not disk.is_directory(folder):
        return
    with suppress(OSError):
        for number in disk.list_directory(folder):
            path = join_path(join_path(folder, number), MANIFEST)
            with suppress(OSError, ValueError):
                manifest = json.loads(disk.read_file(path, limits.MAX_INDEX_FILE_BYTES)) if disk.exists(path) else None
                if isinstance(manifest, dict) and base_name(str(manifest.get("log_directory"))) == base_name(log_directory):
                    yield manifest


def read_clean_stops(disk: Disk, folder: str, log_directory: str) -> list[CheckpointDigests]:
    """Return the clean stops of a log directory in the manifests of a quarantine; what cannot be read is skipped."""
    stops = (manifest.get("clean_stop") for manifest in _manifests(disk, folder, log_directory))
    return [
        {str(name): list(map(str, digests)) for name, digests in stop.items()}
        for stop in stops
        if isinstance(stop, dict) and stop
    ]


def read_lost(disk: Disk, folder: str, log_directory: str) -> list[LostOffsets]:
    """Return the lost offsets of a log directory in the manifests of a quarantine; what cannot be read is skipped."""
    found: list[LostOffsets] = []
    for manifest in _manifests(disk, folder, log_directory):
        lost = manifest.get("lost")
        for one in lost if isinstance(lost, list) else ():
            with suppress(KeyError, TypeError, ValueError):
                offsets = tuple((int(first), int(end)) for first, end in one["offsets"])
                found.append(LostOffsets(str(one["partition"]), str(one["topic_id"]), offsets))
    return found


class Quarantine:
    """The quarantine of one repair, a kcli.log.disk.file_changes.Keeper. The first thing that is kept creates its folder."""

    def __init__(self, disk: Disk, folder: str, log_directory: str) -> None:
        self.folder = folder
        self._disk = disk
        self._log_directory = log_directory
        self._numbered = ""
        self._entries: list[dict[str, object]] = []
        self._clean_stop: CheckpointDigests = {}
        self._lost: list[LostOffsets] = []

    @property
    def path(self) -> str:
        """The folder of this repair, "" until something is kept."""
        return self._numbered

    def note_clean_stop(self, digests: CheckpointDigests) -> None:
        """Set the clean stop of the next manifest: the directory was stopped cleanly and is unchanged; {} for no clean stop."""
        self._clean_stop = digests

    def note_lost(self, lost: LostOffsets) -> None:
        """Add lost offsets of a partition to the next manifest."""
        self._lost.append(lost)

    def free_bytes(self, other: str) -> int | None:
        """Return the free bytes of the quarantine's file system, None if it is that of `other`. Raises OSError."""
        path = self.folder
        while not self._disk.is_directory(path):
            path = parent_path(path)
        return None if self._disk.device(path) == self._disk.device(other) else self._disk.free_bytes(path)

    def announce(self, changes: Iterable[Change]) -> None:
        """Write to the manifest what a plan is about to remove. Raises OSError."""
        changes = list(changes)
        renamed = {change.target: change.path for change in changes if change.kind == RENAME}
        before = len(self._entries)
        for change in changes:
            if change.kind == REMOVE or (change.kind == WRITE and change.replaces):
                self._add(change.path, None, change.why)
            elif change.kind in (REWRITE, TRUNCATE):
                for part in change.dropped:
                    self._add(renamed.get(change.path, change.path), part, change.why)
        if len(self._entries) > before:
            self._write_manifest(complete=False)

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
            self._numbered = join_path(self.folder, str(number))
            self._disk.make_directory(self._numbered)
            self._disk.flush_directory(self.folder)
            self._disk.flush_directory(parent_path(self.folder))
        return self._numbered

    def _write_manifest(self, *, complete: bool) -> None:
        manifest = {
            "version": MANIFEST_VERSION,
            "log_directory": self._log_directory,
            "complete": complete,
            "kept": self._entries,
            "clean_stop": self._clean_stop,
            "lost": [one._asdict() for one in self._lost],
        }
        text = json.dumps(manifest, indent=1, ensure_ascii=False)
        self._disk.write_file(join_path(self._make_folder(), MANIFEST), text.encode("utf-8", "surrogateescape") + b"\n")

    def finish(self) -> None:
        """Write to the manifest that the repair is complete. Raises OSError."""
        if self._entries:
            self._write_manifest(complete=True)

    def keep_file(self, path: str) -> None:
        """Move a whole file here; across file systems it is copied and then removed."""
        finish(self.move_in_slices(path))

    def keep_copy(self, path: str) -> None:
        """Copy a whole file here."""
        self._copy(path, 0, self._disk.size(path), self._target(path))

    def keep_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Copy byte ranges here."""
        for start, end in ranges:
            self._copy(path, start, end, self._target(path, f".bytes-{start}-{end}"))

    def copy_in_slices(self, source: Disk, path: str, part: tuple[int, int] | None = None) -> Slices[str]:
        """Copy a byte range or a whole file of `source` here, in slices, and flush it -> its path here."""
        start, end = part or (0, source.size(path))
        target = self._target(path, "" if part is None else f".bytes-{start}-{end}")
        yield from self._copy_in_slices(source, path, start, end, target)
        self._disk.flush_directory(parent_path(target))
        return target

    def move_in_slices(self, path: str) -> Slices[str]:
        """Move a whole file here -> its path here; it is copied in slices if the file system is another one."""
        target = self._target(path)
        try:
            self._disk.rename(path, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            yield from self._copy_in_slices(self._disk, path, 0, self._disk.size(path), target)
            self._disk.remove(path)
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
                if data > start:  # keep the file sparse: its size may exceed the free space
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
