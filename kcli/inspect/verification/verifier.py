"""Verifies log directories, partitions and single files: everything that a broker relies on. Nothing is written.

target                    what is verified
------------------------  ------------------------------------------------------------------------------------------
log directories           their own files, all of their partitions, and the directories against each other
a partition's directory   the partition, with the checkpoints of its log directory
a segment's .log, .index  the segment: its batches, its indexes, its producers and transactions
  .timeindex, .txnindex
any other file of Kafka   that it can be read

Partitions are verified on several cores.

    input                                          how it is verified
    ---------------------------------------------  -----------------------------------------------------------------
    less than SMALL_BYTES, or one core             in this process, one partition after the other
    a partition of less than a core's share        whole, in a worker process
    a larger one with several segments             each segment in a worker process, the partition in this process

The largest partitions are first, so that no core idles at the end. The results are in the order of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.file_names import DirectoryState, FileKind
from kcli.inspect.process_pool import SMALL_BYTES, ProcessPool, count_bytes
from kcli.inspect.quantities import format_count
from kcli.inspect.verification.directories import (
    Root,
    check_across,
    check_log_directory,
    check_topic_id,
    missing_partitions,
    read_root,
    with_sibling_topics,
)
from kcli.inspect.verification.facts import PartitionOptions, PartitionResult, segment_options
from kcli.inspect.verification.finding_kinds import ERROR, HOLES, INFO, WARNING
from kcli.inspect.verification.findings import Finding, FindingList
from kcli.inspect.verification.partition_verifier import verify_partition
from kcli.inspect.verification.producer_tracker import read_snapshot
from kcli.inspect.verification.segments import SegmentReading, read_segment
from kcli.inspect.verification.small_file_checks import SEGMENT_KINDS, can_check, check_metadata_snapshot, check_small_file
from kcli.log.disk.port import Disk, base_name, join_path, parent_path
from kcli.log.files.log_dir_owner import metadata_owners
from kcli.log.files.log_directory import (
    FoundFile,
    LogDirectory,
    PartitionDirectory,
    ResolvedPath,
    Segment,
    log_bytes,
    read_partition,
)
from kcli.log.files.quarantine import default_folder

if TYPE_CHECKING:
    from concurrent.futures import Future

    from kcli.inspect.description.metadata_view import ClusterTopics

_MOST_NAMES = 3


class Job(NamedTuple):
    """A partition to verify, what is known about it, and the bytes of its logs."""

    partition: PartitionDirectory
    options: PartitionOptions
    size_bytes: int


def verify_all(
    disk: Disk, jobs: list[Job], processes: int, on_bytes: Callable[[int], None] | None
) -> Iterator[PartitionResult]:
    """Verify partitions on up to `processes` cores; return the results in the order of `jobs`. Raises WorkerLostError.

    `on_bytes` is called in this process with the bytes read.
    """
    total = sum(job.size_bytes for job in jobs)
    parts = sum(max(1, len(job.partition.segments)) for job in jobs)
    if processes < 2 or total < SMALL_BYTES or parts < 2:
        for job in jobs:
            yield verify_partition(disk, job.partition, job.options, on_bytes or (lambda count: None))
        return
    processes = min(processes, parts)
    with ProcessPool(processes, on_bytes) as pool:
        yield from _verify_in_workers(disk, jobs, processes, pool)


def _segment_task(disk: Disk, job: Job, segment: Segment) -> SegmentReading | None:
    try:
        return read_segment(disk, segment, segment_options(job.partition, segment, job.options), count_bytes)
    except OSError:
        return None  # verify_partition reads it again and reports the error


def _verify_in_workers(disk: Disk, jobs: list[Job], processes: int, pool: ProcessPool) -> Iterator[PartitionResult]:
    """Submit all jobs, then yield the results in the order of the jobs."""
    whole: dict[int, Future[PartitionResult]] = {}
    segments: dict[int, dict[str, Future[SegmentReading | None]]] = {}
    share = sum(job.size_bytes for job in jobs) / processes
    for number in sorted(range(len(jobs)), key=lambda number: -jobs[number].size_bytes):
        job = jobs[number]
        if job.size_bytes >= share and len(job.partition.segments) > 1:
            segments[number] = {one.log: pool.submit(_segment_task, disk, job, one) for one in job.partition.segments}
        else:
            whole[number] = pool.submit(verify_partition, disk, job.partition, job.options, count_bytes)
    for number, job in enumerate(jobs):
        if number in whole:
            yield pool.result(whole.pop(number))
        else:
            read_ahead = partial(_result_of_segment, pool, segments.pop(number))
            yield verify_partition(disk, job.partition, job.options, read_ahead=read_ahead)


def _result_of_segment(
    pool: ProcessPool, futures: dict[str, Future[SegmentReading | None]], segment: Segment
) -> SegmentReading | None:
    return pool.result(futures.pop(segment.log))


class VerifyReport(NamedTuple):
    """The result, in the order of the input; `findings` by file, byte and offset."""

    directories: list[Root]
    partitions: list[PartitionResult]
    files: list[str]
    findings: list[Finding]

    def count_of(self, severity: str) -> int:
        """Return the number of findings of a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def is_sound(self) -> bool:
        """True if there are no errors and no warnings."""
        return not self.count_of(ERROR) and not self.count_of(WARNING)

    @property
    def is_undamaged(self) -> bool:
        """True if there are no errors and warnings other than missing offsets, which a repair cannot restore."""
        return all(finding.severity == INFO or finding.code in HOLES for finding in self.findings)


class Verifier:
    """One verification of the given targets; `quarantine_of` returns the folder of the quarantine of a log directory."""

    def __init__(
        self, disk: Disk, targets: Iterable[ResolvedPath], quarantine_of: Callable[[str], str] = default_folder
    ) -> None:
        self._disk = disk
        self._quarantine_of = quarantine_of
        self._targets = list(targets)
        self._findings = FindingList()
        self._roots: dict[str, Root] = {}
        self._jobs: list[Job] = []
        self._files: list[str] = []
        self._directories: list[LogDirectory] = []
        paths = [target.log_directory.path for target in self._targets if target.log_directory is not None]
        roots = with_sibling_topics([self._read_root(path, self._findings) for path in paths])
        self._roots.update(zip(paths, roots, strict=True))
        for target in self._targets:
            if target.log_directory is not None:
                self._add_directory(target.log_directory)
            elif target.partition is not None:
                self._add_partition(target.partition, self._root_of(target.partition))
            elif target.file is not None:
                self._add_file(target.file)

    @property
    def total_bytes(self) -> int:
        """The size of all logs that are to be read."""
        return sum(job.size_bytes for job in self._jobs)

    def run(self, processes: int = 1, on_bytes: Callable[[int], None] | None = None) -> VerifyReport:
        """Verify everything on up to `processes` cores; `on_bytes` is called with the bytes read. Raises WorkerLostError.

        What is wrong with the input is a finding.
        """
        self._check_directories()
        results = list(verify_all(self._disk, self._jobs, processes, on_bytes))
        for result in results:
            self._findings.extend(result.findings)
        for directory in self._directories:
            self._check_clean_shutdown(self._roots[directory.path], directory, results)
        directories = [self._roots[directory.path] for directory in self._directories]
        return VerifyReport(directories, results, self._files, self._findings.finish())

    def _check_clean_shutdown(self, root: Root, directory: LogDirectory, results: list[PartitionResult]) -> None:
        """Compare .kafka_cleanshutdown with the missing records.

        A broker checkpoints the ends of its logs when it stops, so a log that ends before them lost records afterwards. A hole
        may be older than the stop: a broker starts and stops on a log with a hole, and does not notice it.
        """
        if not root.is_clean or root.is_live:
            return
        path = join_path(root.path, FileKind.CLEAN_SHUTDOWN.value)
        paths = {partition.path for partition in directory.partitions}
        incomplete = [result for result in results if result.path in paths and result.missing]
        cut = [base_name(result.path) for result in incomplete if any(one.code == "records-missing" for one in result.findings)]
        missing = missing_partitions(directory, root)
        cut += [f"{topic}-{number}" for topic, number in missing]
        if cut:
            names = ", ".join(cut[:_MOST_NAMES]) + (f" and {len(cut) - _MOST_NAMES} more" if len(cut) > _MOST_NAMES else "")
            message = f"with this file a broker reports that no record is missing; records are missing in {names}"
            self._findings.add("clean-shutdown-untrue", path, message)
        elif incomplete:
            message = f"offsets are missing inside of {format_count(len(incomplete), 'log')}, lost before the stop or after it"
            self._findings.add("clean-shutdown-with-holes", path, message)

    # -------------------------------------------------------------------------------------------------------- targets

    def _add_directory(self, directory: LogDirectory) -> None:
        self._directories.append(directory)
        for partition in directory.partitions:
            self._add_partition(partition, self._roots[directory.path])

    def _root_of(self, partition: PartitionDirectory) -> Root:
        """Return the log directory of a partition; it is not a target, so its own faults are not reported."""
        path = parent_path(partition.path)
        if path not in self._roots:
            self._roots[path] = self._read_root(path, FindingList())
        return self._roots[path]

    def _read_root(self, path: str, findings: FindingList) -> Root:
        return read_root(self._disk, path, findings, quarantine=self._quarantine_of(path))

    def _add_partition(self, partition: PartitionDirectory, root: Root) -> None:
        options = root.options(partition)
        if root.path not in {directory.path for directory in self._directories}:
            # The directory may have been copied without .kafka_cleanshutdown.
            options = options._replace(is_clean=False if root.is_live else options.is_clean or None)
            self._check_topic_id(partition, root, None)
        elif partition.state is DirectoryState.DELETE:
            options = options._replace(is_being_deleted=True)
        self._jobs.append(Job(partition, options, log_bytes(self._disk, partition)))

    def _add_file(self, file: FoundFile) -> None:
        self._files.append(file.path)
        kind = file.kind
        if kind in SEGMENT_KINDS and file.base_offset >= 0:
            self._add_segment(file)
        elif kind in (FileKind.METADATA_SNAPSHOT, FileKind.BOOTSTRAP_CHECKPOINT):
            check_metadata_snapshot(self._disk, file.path, self._findings)
        elif kind is FileKind.PRODUCER_SNAPSHOT:
            read_snapshot(self._disk, file.path, self._findings)
        elif can_check(kind):
            check_small_file(self._disk, file.path, kind, self._findings)
        elif kind in SEGMENT_KINDS:
            self._findings.add("name-irregular", file.path, "there is no offset before the first dot of the name")
        else:
            self._findings.add("file-unknown", file.path, file.parsed.sentence())

    def _add_segment(self, file: FoundFile) -> None:
        """Add a segment as a partition that has only it, and the snapshots up to the start of the next segment."""
        partition = read_partition(self._disk, parent_path(file.path))
        found = [segment for segment in partition.segments if segment.base_offset == file.base_offset]
        if file.kind is FileKind.LOG and not file.is_current:
            found = [Segment(file.base_offset, file.path)]
        if not found:
            self._findings.add("index-orphan", file.path, "the segment has no .log", offset=file.base_offset)
            return
        later = [segment.base_offset for segment in partition.segments if segment.base_offset > file.base_offset]
        snapshots = [one for one in partition.snapshots if file.base_offset <= one.base_offset]
        if later:
            snapshots = [one for one in snapshots if one.base_offset <= later[0]]
        alone = partition._replace(segments=found, snapshots=snapshots, metadata_snapshots=[], others=[], directories=[])
        job = Job(alone, PartitionOptions(is_whole=False), log_bytes(self._disk, alone))
        if job not in self._jobs:
            self._jobs.append(job)

    def _elsewhere(self, directory: LogDirectory, root: Root) -> set[tuple[str, int]]:
        """Return the partitions in the other log directories of the same node."""
        return {
            (partition.topic, partition.partition)
            for other in self._directories
            if other is not directory and not root.owner.is_other_node(self._roots[other.path].owner)
            for partition in other.partitions
            if partition.state is DirectoryState.CURRENT
        }

    def _check_directories(self) -> None:
        roots = [self._roots[directory.path] for directory in self._directories]
        with_metadata_log = [root.owner for root in roots if root.topics is not None]
        for directory, root in zip(self._directories, roots, strict=True):
            elsewhere = self._elsewhere(directory, root)
            found = FindingList(is_live=root.is_live)
            check_log_directory(self._disk, directory, root, found, elsewhere=elsewhere)
            self._findings.extend(found.finish())
            # Each node has its own copy of the metadata log, and another cluster may have other topics of the same names.
            serving = metadata_owners(root.owner, with_metadata_log)
            topics = self._roots[serving[0].directory].topics if serving else None
            for partition in directory.partitions:
                self._check_topic_id(partition, root, topics)
        check_across(self._directories, roots, self._findings)

    def _check_topic_id(self, partition: PartitionDirectory, root: Root, topics: ClusterTopics | None) -> None:
        found = FindingList(is_live=root.is_live)
        check_topic_id(self._disk, partition, root, topics, found)
        self._findings.extend(found.finish())
