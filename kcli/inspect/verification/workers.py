"""Verifies partitions on all cores: each in a worker process, the segments of a very large one in several.

    input                                          how it is verified
    ---------------------------------------------  -----------------------------------------------------------------
    less than SMALL_BYTES, or one core             in this process, one partition after the other
    a partition of less than a core's share        whole, in a worker
    a larger one with several segments             its segments in workers, put together in this process (partitions)

Largest first, so that no core idles at the end; the results come in the order of the input whatever was done when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kcli.inspect.process_pool import SMALL_BYTES, ProcessPool, count_bytes
from kcli.inspect.verification.facts import PartitionOptions, PartitionResult, segment_options
from kcli.inspect.verification.partitions import verify_partition
from kcli.inspect.verification.segments import ReadAhead, SegmentReading, read_segment
from kcli.log.disk import Disk
from kcli.log.log_directory import PartitionDirectory, Segment

if TYPE_CHECKING:
    from concurrent.futures import Future


class Job(NamedTuple):
    """A partition to verify, what is known about it, and the bytes of its logs."""

    partition: PartitionDirectory
    options: PartitionOptions
    size_bytes: int


def verify_all(
    disk: Disk, jobs: list[Job], processes: int, on_bytes: Callable[[int], None] | None
) -> Iterator[PartitionResult]:
    """Verify partitions on up to `processes` cores -> their results in the order of `jobs`. Raises WorkerLostError.

    `on_bytes`, if any, is told of the progress from this process.
    """
    total = sum(job.size_bytes for job in jobs)
    parts = sum(max(1, len(job.partition.segments)) for job in jobs)
    if processes < 2 or total < SMALL_BYTES or parts < 2:
        tell = on_bytes or _nothing
        for job in jobs:
            yield verify_partition(disk, job.partition, job.options, tell)
        return
    processes = min(processes, parts)
    with ProcessPool(processes, on_bytes) as pool:
        yield from _Shared(disk, jobs, processes, pool).results()


def _nothing(count: int) -> None:
    """What is told of the progress where nobody asks."""


# ----------------------------------------------------------------------------------------------------- in the workers


def _partition_task(disk: Disk, job: Job) -> PartitionResult:
    return verify_partition(disk, job.partition, job.options, count_bytes)


def _segment_task(disk: Disk, job: Job, segment: Segment) -> SegmentReading | None:
    try:
        return read_segment(disk, segment, segment_options(job.partition, segment, job.options), count_bytes)
    except OSError:
        return None  # read again in its turn, where the fault is told


# ------------------------------------------------------------------------------------------------------ in the parent


class _Shared:
    """What the workers have been given to do."""

    def __init__(self, disk: Disk, jobs: list[Job], processes: int, pool: ProcessPool) -> None:
        self.disk = disk
        self.jobs = jobs
        self.pool = pool
        self._whole: dict[int, Future[PartitionResult]] = {}
        self._segments: dict[int, dict[str, Future[SegmentReading | None]]] = {}
        share = sum(job.size_bytes for job in jobs) / processes
        for number in sorted(range(len(jobs)), key=lambda number: -jobs[number].size_bytes):
            job = jobs[number]
            if job.size_bytes >= share and len(job.partition.segments) > 1:
                self._segments[number] = {
                    segment.log: pool.submit(_segment_task, disk, job, segment) for segment in job.partition.segments
                }
            else:
                self._whole[number] = pool.submit(_partition_task, disk, job)

    def results(self) -> Iterator[PartitionResult]:
        """The results as they come into their order."""
        for number, job in enumerate(self.jobs):
            if number in self._whole:
                yield self.pool.result(self._whole.pop(number))
            else:
                yield verify_partition(self.disk, job.partition, job.options, read_ahead=self._ahead(number))

    def _ahead(self, number: int) -> ReadAhead:
        """What gives the readings of a partition's segments, each once."""
        futures = self._segments.pop(number)
        return lambda segment: self.pool.result(futures.pop(segment.log))
