"""Compacts partitions on all cores, one partition in a worker process at a time: a round cannot be divided.

A small amount of work is done in this process, as is all work if one core is used. The largest partitions come first, so
that no core is idle at the end. The outcomes are yielded in the order of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kcli.inspect.compacting.jobs import PartitionJob, PartitionOutcome
from kcli.inspect.compacting.partition_work import work_on
from kcli.inspect.process_pool import SMALL_BYTES, ProcessPool, count_bytes
from kcli.log.disk.port import LogDisk


def work_on_all(
    disk: LogDisk, jobs: list[PartitionJob], processes: int, on_bytes: Callable[[int], None] | None
) -> Iterator[PartitionOutcome]:
    """Work on partitions on up to `processes` cores -> the outcome of each, in order. Raises WorkerLostError.

    `on_bytes` is called in this process with the number of bytes that are done since the last call.
    """
    if processes < 2 or len(jobs) < 2 or sum(job.size_bytes for job in jobs) < SMALL_BYTES:
        for job in jobs:
            yield work_on(disk, job, on_bytes or _ignore)
        return
    with ProcessPool(min(processes, len(jobs)), on_bytes) as pool:
        order = sorted(range(len(jobs)), key=lambda number: -jobs[number].size_bytes)
        futures = {number: pool.submit(_task, disk, jobs[number]) for number in order}
        for number in range(len(jobs)):
            yield pool.result(futures.pop(number))


def _task(disk: LogDisk, job: PartitionJob) -> PartitionOutcome:
    return work_on(disk, job, count_bytes)


def _ignore(count: int) -> None:
    """Ignore the progress."""
