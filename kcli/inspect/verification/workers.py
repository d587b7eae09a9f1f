"""Verifies partitions on several cores.

    input                                          how it is verified
    ---------------------------------------------  -----------------------------------------------------------------
    less than SMALL_BYTES, or one core             in this process, one partition after the other
    a partition of less than a core's share        whole, in a worker process
    a larger one with several segments             each segment in a worker process, the partition in this process

The largest partitions are first, so that no core idles at the end. The results are in the order of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kcli.inspect.process_pool import SMALL_BYTES, ProcessPool, count_bytes
from kcli.inspect.verification.facts import PartitionOptions, PartitionResult, segment_options
from kcli.inspect.verification.partition_verifier import verify_partition
from kcli.inspect.verification.segments import SegmentReading, read_segment
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import PartitionDirectory, Segment

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
