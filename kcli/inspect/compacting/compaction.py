"""One run of `kcli compact` over log directories: selection, locks, work, and the files of the log directories themselves.

    in place                                                  into another directory
    --------------------------------------------------------  ----------------------------------------------------------
    `.lock` is taken and held                                 taken only if it exists: no file is created in the source
    a broker's directory must have been stopped cleanly       the same
    what a crash left in a partition is finished first        the source is only read
    the files of each partition are replaced                  its files are copied, with the new ones instead of the old
    cleaner-offset-checkpoint gets the cleaned offsets        the log directory's own files, the metadata log and the
                                                              checkpoint entries of the copied partitions are copied, and
                                                              of a whole log directory all other partitions; the mark of a
                                                              clean stop is copied last

New files are stored next to the old ones until the plan is printed. If they do not all fit on the disk at once, each
partition is put in place before the next one is cleaned (`holds_all` is False).

In place, each step is flushed to the device before the next one begins:

    step                                                      after a crash in this step
    --------------------------------------------------------  ----------------------------------------------------------
    files other than new segments (snapshots, leader epochs,  the log is as before
      indexes of segments that stay) get their names
    new segments are renamed to `*.swap`, the last one first  the log is as before: a start removes `*.cleaned`, and each
                                                                `*.swap` from the lowest `*.cleaned` on
    files of old segments without a replacement are removed   the log is completely compacted: a start removes all files in
                                                                the range of the `*.swap`, and then renames those
    `*.swap` lose their suffix, the first one first           the same
    snapshots of removed segments are removed                 the same

So all rounds over a partition take effect at once. This relies on the rules of leftovers, which are Kafka's: the
new segments must cover all offsets between the first and the last of them.

Into another directory: new files get their names, all others are copied with their times, then all are flushed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from kcli.format import limits
from kcli.format.checkpoint import PartitionOffset, decode_offset_checkpoint, encode_offset_checkpoint
from kcli.format.file_names import FileKind, FileState, parse_file_name
from kcli.format.primitives import FormatError
from kcli.inspect.compacting.jobs import CompactOptions, PartitionJob, PartitionOutcome
from kcli.inspect.compacting.partition_selection import (
    Asked,
    LeftOut,
    LeftOutReason,
    MetadataLogs,
    Selected,
    UnfitError,
    select,
)
from kcli.inspect.compacting.partition_work import work_on
from kcli.inspect.compacting.staged_disk import SEGMENT_SUFFIXES, StagedChanges
from kcli.inspect.node_defaults import DefaultsOf, NodeDefaults, NodeLayers, kafkas_defaults
from kcli.inspect.process_pool import SMALL_BYTES, ProcessPool, count_bytes
from kcli.log.disk.load_disk import LiveDisk
from kcli.log.disk.port import LogDisk, base_name, join_path
from kcli.log.files.indexes import IndexSettings
from kcli.log.files.log_directory import LOCK_HOLDERS, log_bytes, read_checkpoints, read_log_directory
from kcli.log.files.quarantine import default_folder
from kcli.log.loading.leftovers import finish_leftovers

_CHECKPOINTS = (
    FileKind.RECOVERY_POINT_CHECKPOINT,
    FileKind.LOG_START_OFFSET_CHECKPOINT,
    FileKind.REPLICATION_CHECKPOINT,
    FileKind.CLEANER_CHECKPOINT,
)
_ROOT_FILES = (FileKind.META_PROPERTIES, *_CHECKPOINTS)
_COPIED_KINDS = (FileKind.META_PROPERTIES, FileKind.BOOTSTRAP_CHECKPOINT, FileKind.CLEAN_SHUTDOWN)
_LOG = SEGMENT_SUFFIXES[0]


def finish_before(disk: LogDisk, directory: str, indexes: IndexSettings) -> None:
    """Finish or undo what an earlier crash interrupted, as a broker does at start. Raises FormatError, OSError."""
    names = disk.list_directory(directory)
    if any(name.endswith((FileState.CLEANED.value, FileState.SWAP.value, FileState.DELETED.value)) for name in names):
        finish_leftovers(LiveDisk(disk), directory, indexes)
        disk.flush_directory(directory)


def put_in_place(disk: LogDisk, directory: str, files: StagedChanges) -> None:
    """Carry out staged changes in the directory of the partition. Raises OSError."""
    assert not files.moved, "leftovers are finished before anything is staged"
    bases = {_base(name) for name in files.made if name.endswith(_LOG)}
    for name, data in files.written.items():
        disk.write_file(join_path(directory, name), data)
    swapped = [name for name in files.made if _base(name) in bases]
    for name in files.made:
        if name not in swapped:
            disk.rename(files.made[name], join_path(directory, name))
    disk.flush_directory(directory)
    swapped.sort(key=lambda name: (-_base(name), _rank(name)))
    for name in swapped:
        disk.rename(files.made[name], join_path(directory, name) + FileState.SWAP.value)
    disk.flush_directory(directory)
    old = [name for name in files.gone if name.endswith(SEGMENT_SUFFIXES)]
    _check_range(disk, directory, bases, old)
    for name in old:
        disk.remove(join_path(directory, name))
    disk.flush_directory(directory)
    for name in sorted(swapped, key=lambda name: (_base(name), _rank(name))):
        path = join_path(directory, name)
        disk.rename(path + FileState.SWAP.value, path)
    disk.flush_directory(directory)
    for name in files.gone:
        if name not in old:
            disk.remove(join_path(directory, name))
    disk.flush_directory(directory)


def _base(name: str) -> int:
    base = parse_file_name(name).base_offset
    return -1 if base is None else base


def _rank(name: str) -> int:
    """Return the order of a segment's files: the `.log` comes first."""
    return next(rank for rank, suffix in enumerate(SEGMENT_SUFFIXES) if name.endswith(suffix))


def _check_range(disk: LogDisk, directory: str, bases: set[int], old: list[str]) -> None:
    """Check that there are only old segments between the new ones: after a crash a start would remove all of them."""
    for name in disk.list_directory(directory):
        if name.endswith(_LOG) and bases and min(bases) <= _base(name) <= max(bases):
            assert _base(name) in bases or name in old, f"{directory}: {name} is between the new segments"


def copy_into(disk: LogDisk, source: str, target: str, files: StagedChanges | None) -> None:
    """Complete `target`, which has the new files of a partition already, with copies of all other files. Raises OSError."""
    disk.make_directory(target)
    files = files or StagedChanges({}, {}, (), {})
    for name, path in files.made.items():
        disk.rename(path, join_path(target, name))
    for name, data in files.written.items():
        disk.append(join_path(target, name), data)
        disk.flush(join_path(target, name))
    for name, path in files.moved.items():
        copy_file(disk, path, join_path(target, name))
    done = {*files.made, *files.written, *files.moved, *files.gone}
    for name in disk.list_directory(source):
        path = join_path(source, name)
        if name not in done and disk.is_regular(path):
            copy_file(disk, path, join_path(target, name))
    disk.flush_directory(target)


def copy_file(disk: LogDisk, source: str, target: str) -> None:
    """Copy a file and its modification time, and flush the copy. Raises OSError."""
    file = disk.open_file(source)
    try:
        position = 0
        disk.append(target, b"")
        while data := file.read_at(position, limits.READ_CHUNK_BYTES):
            disk.append(target, data)
            position += len(data)
    finally:
        file.close()
    disk.set_mtime_ms(target, disk.mtime_ms(source))
    disk.flush(target)


class RefusedError(Exception):
    """The run is refused; no file was changed. The message is one sentence."""


class RunOptions(NamedTuple):
    """The options of a run. `overrides` are topic settings by Kafka's keys; `target` is the other directory, None in place.

    `defaults_of` returns a node's configuration for all topics; `is_one_node`: it comes from the configuration file of one
    node. A dry run keeps temporary files in the directory `scratch`.
    """

    compact: CompactOptions
    overrides: Mapping[str, str]
    any_policy: bool = False
    is_unclean: bool = False
    is_dry_run: bool = False
    target: str | None = None
    scratch: str = ""
    defaults_of: DefaultsOf = kafkas_defaults
    is_one_node: bool = False


class Placed(NamedTuple):
    """A partition that was put in place at `path`, and the bytes of its segments there."""

    outcome: PartitionOutcome
    path: str
    log_bytes: int


class Compaction:
    """One run over the partitions in `asked`; a `with` statement holds the locks. Raises RefusedError and OSError."""

    def __init__(self, disk: LogDisk, asked: list[Asked], options: RunOptions) -> None:
        self.disk = disk
        self.options = options
        self.left_out: list[LeftOut] = []
        self.unreadable = [bad for one in asked for bad in one.unreadable]
        # Log directories whose metadata log was not named although others were, each with one sentence.
        self.mismatches: list[tuple[str, str]] = []
        self.jobs: list[PartitionJob] = []
        self._asked = asked
        self._releases: list[Callable[[], None]] = []
        self._cleaned: dict[str, dict[tuple[str, int], int]] = {}
        self.placed = 0
        self.under_way: str | None = None  # the partition whose files are being replaced
        if options.target is not None:
            self._check_target(options.target)
        for one in asked:
            self._check_usable(one)
        self._metadata = self._read_metadata()
        for one in asked:
            self._add(one)

    @property
    def total_bytes(self) -> int:
        """The size of all logs of the run in bytes."""
        return sum(job.size_bytes for job in self.jobs)

    @property
    def holds_all(self) -> bool:
        """True if all new files fit on the disk next to the old ones, so that the whole plan is known before any change."""
        if self.options.is_dry_run:
            return True
        places = {self.options.target or one.log_directory for one in self._asked}
        return all(self.total_bytes <= self._free_bytes(place) for place in places)

    def _free_bytes(self, place: str) -> int:
        while place and not self.disk.is_directory(place):
            place = place.rpartition("/")[0] or "."
        return self.disk.free_bytes(place)

    # -------------------------------------------------------------------------------------------------------- selection

    def _check_target(self, target: str) -> None:
        if len(self._asked) > 1:
            raise RefusedError("--to takes the partitions of one log directory at a time")
        if self.disk.exists(target) and (not self.disk.is_directory(target) or self.disk.list_directory(target)):
            raise RefusedError(f"--to {target}: the directory exists and is not empty; name a new directory")

    def _root(self, directory: str, kind: FileKind) -> str:
        return join_path(directory, kind.value)

    def _has(self, directory: str, kind: FileKind) -> bool:
        return self.disk.exists(self._root(directory, kind))

    def _check_usable(self, asked: Asked) -> None:
        """Raise RefusedError for a directory that a broker uses, or that was not stopped cleanly."""
        directory = asked.log_directory
        if self.disk.is_locked(self._root(directory, FileKind.LOCK)):
            raise RefusedError(self._locked(directory))
        if self._is_unclean(directory) and not self.options.is_unclean:
            raise RefusedError(self._unclean(directory))

    def _unclean(self, directory: str) -> str:
        """Return what to do about a directory without the mark of a clean stop, with all options that are needed."""
        options = "--unclean"
        cleans = self.options.compact.recompression is None and not self.options.compact.assume_committed
        if cleans and not self._has(directory, FileKind.REPLICATION_CHECKPOINT):
            options += " and, because no high watermark is known, --assume-committed if every record is committed"
        if self.disk.is_directory(default_folder(directory)):
            return (
                f"{directory} has no .kafka_cleanshutdown, but was repaired (the quarantine {default_folder(directory)} "
                f"exists): give {options}; or start the broker and stop it"
            )
        return (
            f"{directory} was not stopped cleanly (it has no .kafka_cleanshutdown): start the broker and stop it; or repair it "
            f"with `kcli verify --repair --apply {directory}`, and then give {options}"
        )

    def _locked(self, directory: str) -> str:
        return f"{self._root(directory, FileKind.LOCK)} is locked: {LOCK_HOLDERS}, then compact"

    def _is_unclean(self, directory: str) -> bool:
        """Return True for a broker's log directory without the mark of a clean stop; any other directory holds copies."""
        return self._has(directory, FileKind.META_PROPERTIES) and not self._has(directory, FileKind.CLEAN_SHUTDOWN)

    def _read_metadata(self) -> MetadataLogs:
        directories = [one.log_directory for one in self._asked]
        try:
            metadata = MetadataLogs(self.disk, directories)
            for directory in directories:
                metadata.of_directory(directory)
        except UnfitError as error:
            raise RefusedError(str(error)) from None
        others = metadata.other_owners()
        if self.options.is_one_node and others is not None:
            raise RefusedError(
                f"--config is the configuration of one node, but {others[0].sentence}, and {others[1].sentence}: compact "
                "the log directories of one node at a time"
            )
        return metadata

    def _add(self, asked: Asked) -> None:
        options, directory = self.options, asked.log_directory
        defaults = self._defaults(directory)
        recompresses = options.compact.recompression is not None
        try:
            selected, left_out = select(
                asked,
                self._metadata,
                defaults.topic_config,
                options.overrides,
                any_policy=options.any_policy,
                recompresses=recompresses,
            )
        except ValueError as error:
            raise RefusedError(f"{directory}: the configuration of a topic is invalid: {error}") from None
        self.left_out += left_out
        if any(one.reason is LeftOutReason.POLICY_UNKNOWN for one in left_out):
            sentence = self._metadata.mismatch(directory)
            self.mismatches += [] if sentence is None else [(directory, sentence)]
        checkpoints = read_checkpoints(self.disk, directory)
        watermark_path = self._root(directory, FileKind.REPLICATION_CHECKPOINT)
        for path, message in checkpoints.problems:
            if path != watermark_path:
                raise RefusedError(f"{path}: {message}; `kcli verify --repair {directory}` shows what a repair can do")
        compact = options.compact._replace(
            is_unclean=self._is_unclean(directory),
            memory_bytes=options.compact.memory_bytes or defaults.memory_bytes,
            load_factor=defaults.load_factor,
        )
        unreadable = dict(checkpoints.problems).get(watermark_path)
        watermark_fault = f"{watermark_path} has no entry of the partition"
        if unreadable is not None:
            watermark_fault = f"{watermark_path} cannot be read: {unreadable}"
        elif not self.disk.exists(watermark_path):
            watermark_fault = f"{watermark_path} is missing"
        for one in selected:
            key = (one.partition.topic, one.partition.partition)
            high_watermark = checkpoints.high_watermarks.get(key)
            self.jobs.append(
                PartitionJob(
                    one.partition,
                    log_bytes(self.disk, one.partition),
                    one.config,
                    compact,
                    self._store(one),
                    options.is_dry_run,
                    checkpoints.cleaner_offsets.get(key),
                    checkpoints.recovery_points.get(key, 0),
                    checkpoints.log_start_offsets.get(key, 0),
                    high_watermark,
                    watermark_fault if high_watermark is None else "",
                )
            )

    def _defaults(self, directory: str) -> NodeDefaults:
        topics, node_id = self._metadata.of_directory(directory), self._metadata.owner(directory).node_id
        try:
            return self.options.defaults_of(NodeLayers(directory, node_id, {} if topics is None else topics.brokers))
        except ValueError as error:
            raise RefusedError(str(error)) from None

    def _store(self, one: Selected) -> str:
        """Return the directory for the new files of a partition."""
        if self.options.is_dry_run:
            return join_path(self.options.scratch, f"{len(self.jobs)}")
        if self.options.target is not None:
            return join_path(self.options.target, one.partition.name)
        return one.partition.path

    # ---------------------------------------------------------------------------------------------------------- the run

    def __enter__(self) -> Compaction:
        try:
            for one in self._asked if not self.options.is_dry_run else ():
                self._lock(one.log_directory)
                if self.options.target is None:
                    self._finish_leftovers(one.log_directory)
            if self.options.target is not None and not self.options.is_dry_run:
                self._lock_target(self.options.target)
        except BaseException:
            self._unlock()
            raise
        return self

    def _lock(self, directory: str) -> None:
        path = self._root(directory, FileKind.LOCK)
        if self.options.target is not None and not self.disk.exists(path):
            return
        release = self.disk.lock(path)
        if release is None:
            raise RefusedError(self._locked(directory))
        self._releases.append(release)

    def _lock_target(self, target: str) -> None:
        """Create the other directory, which only one run may fill. Raises RefusedError and OSError."""
        path = self._root(target, FileKind.LOCK)
        self.disk.make_directory(target)
        release = self.disk.lock(path)
        # A run that has ended in the meantime has left its files.
        if release is not None and self.disk.list_directory(target) != [base_name(path)]:
            release()
            release = None
        if release is None:
            raise RefusedError(f"--to {target}: another kcli compact writes to the directory; name a new one")

        def remove_and_release() -> None:
            # A broker makes its own lock file. Removed while it is locked, so that nothing else can have locked it.
            with suppress(OSError):
                self.disk.remove(path)
            release()

        self._releases.append(remove_and_release)

    def _finish_leftovers(self, directory: str) -> None:
        for slot, job in enumerate(self.jobs):
            if job.partition.log_directory == directory:
                try:
                    finish_before(self.disk, job.path, _index_settings(job))
                except FormatError as error:
                    raise RefusedError(f"{job.path}: {error.message}") from None
                self.jobs[slot] = job._replace(size_bytes=log_bytes(self.disk, job.partition))

    def __exit__(self, *_: object) -> None:
        try:
            if self.options.target is None and not self.options.is_dry_run:
                self._write_cleaner_checkpoints()
                self._discard()
        finally:
            self._unlock()

    def _unlock(self) -> None:
        for release in self._releases:
            release()
        self._releases.clear()

    def _discard(self) -> None:
        """Remove new files that were not put in place; those that cannot be removed are left for the start of a broker.

        A partition that was interrupted while its files were replaced is finished or undone by the rules of a start.
        """
        for job in self.jobs:
            with suppress(OSError, FormatError):
                if job.path == self.under_way:
                    finish_before(self.disk, job.path, _index_settings(job))
                    continue
                for name in self.disk.list_directory(job.path):
                    if name.endswith(FileState.CLEANED.value):
                        self.disk.remove(join_path(job.path, name))

    def outcomes(self, processes: int, on_bytes: Callable[[int], None] | None) -> Iterator[PartitionOutcome]:
        """Yield the outcome of each partition, in order; no file is put in place yet. Raises WorkerLostError.

        Up to `processes` worker processes take one partition at a time, the largest first, so that no core is idle at the end.
        A small amount of work is done in this process. `on_bytes` is called in this process with the bytes that are done.
        """
        disk, jobs = self.disk, self.jobs
        if processes < 2 or len(jobs) < 2 or self.total_bytes < SMALL_BYTES:
            for job in jobs:
                yield work_on(disk, job, on_bytes or (lambda count: None))
            return
        with ProcessPool(min(processes, len(jobs)), on_bytes) as pool:
            order = sorted(range(len(jobs)), key=lambda number: -jobs[number].size_bytes)
            futures = {number: pool.submit(work_on, disk, jobs[number], count_bytes) for number in order}
            for number in range(len(jobs)):
                yield pool.result(futures.pop(number))

    def place(self, outcome: PartitionOutcome) -> Placed:
        """Put the new files of a partition in place. Raises OSError."""
        job, target = outcome.job, self.options.target
        path = self.under_way = job.path
        if target is not None:
            path = job.store_directory
            copy_into(self.disk, job.path, path, outcome.files)
        elif outcome.files is not None:
            put_in_place(self.disk, job.path, outcome.files)
        if outcome.cleaned_offset is not None and outcome.problem is None:
            cleaned = self._cleaned.setdefault(job.partition.log_directory, {})
            cleaned[job.partition.topic, job.partition.partition] = outcome.cleaned_offset
        self.under_way = None
        self.placed += outcome.problem is None
        return Placed(outcome, path, _log_bytes_in(self.disk, path))

    def _write_cleaner_checkpoints(self) -> None:
        """Write the cleaned offsets to the checkpoints of the brokers' log directories."""
        for directory, cleaned in self._cleaned.items():
            if any(self._has(directory, kind) for kind in _ROOT_FILES):
                self._write_checkpoint(directory, directory, FileKind.CLEANER_CHECKPOINT, cleaned)

    def _write_checkpoint(
        self,
        source: str,
        target: str,
        kind: FileKind,
        changed: Mapping[tuple[str, int], int],
        only: frozenset[tuple[str, int]] | None = None,
    ) -> None:
        """Write the checkpoint of `source` to `target` with the `changed` offsets; `only`: the partitions to keep, or all."""
        path = self._root(source, kind)
        offsets: dict[tuple[str, int], int] = {}
        if self.disk.exists(path):
            offsets = decode_offset_checkpoint(self.disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)).offsets()
        elif not changed:
            return
        offsets.update(changed)
        kept = {key: offset for key, offset in offsets.items() if only is None or key in only}
        data = encode_offset_checkpoint(PartitionOffset(*key, offset) for key, offset in kept.items())
        self.disk.write_file(self._root(target, kind), data)

    def finish_target(self) -> None:
        """Complete the other directory after the last partition. Raises OSError."""
        target = self.options.target
        if target is None or self.options.is_dry_run:
            return
        (asked,) = self._asked
        source = asked.log_directory
        worked_on = {job.path for job in self.jobs}
        everything = read_log_directory(self.disk, source)
        here = set(worked_on)
        for partition in everything.partitions:
            if partition.path not in worked_on and (asked.is_whole or partition.is_metadata_log):
                copy_into(self.disk, partition.path, join_path(target, base_name(partition.path)), None)
                here.add(partition.path)
        keys = frozenset((one.topic, one.partition) for one in everything.partitions if one.path in here)
        unreadable = dict(read_checkpoints(self.disk, source).problems)
        for kind in _CHECKPOINTS:
            # A broker does not start with a checkpoint that it cannot read, so such a file is not copied.
            if self._root(source, kind) not in unreadable:
                self._write_checkpoint(source, target, kind, self._changed(source, kind), keys)
        # The mark of a clean stop is copied last: an interrupted copy lacks it. `.lock` is not copied: opening and closing it
        # would release our POSIX lock.
        for file in sorted(everything.files, key=lambda file: file.kind is FileKind.CLEAN_SHUTDOWN):
            if file.kind in _COPIED_KINDS:
                copy_file(self.disk, file.path, join_path(target, file.name))
        self.disk.flush_directory(target)

    def _changed(self, source: str, kind: FileKind) -> Mapping[tuple[str, int], int]:
        return self._cleaned.get(source, {}) if kind is FileKind.CLEANER_CHECKPOINT else {}


def _index_settings(job: PartitionJob) -> IndexSettings:
    return IndexSettings(job.config.index_interval_bytes, job.config.segment_index_bytes)


def _log_bytes_in(disk: LogDisk, path: str) -> int:
    """Return the size of all segments in a partition directory."""
    names = [name for name in disk.list_directory(path) if name.endswith("." + FileKind.LOG.value)]
    return sum(disk.size(join_path(path, name)) for name in names)
