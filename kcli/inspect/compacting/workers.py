"""Works on partitions on all cores, a partition a worker process: a round goes front to back and cannot be divided.

Little work, and one core's, is done in this process. Largest first, so that no core idles at the end; what came out is handed
on in the order of the input.
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
    """Work on partitions on up to `processes` cores -> what came of each, in order. Raises WorkerLostError.

    `on_bytes`, if any, is told of the progress from this process.
    """
    if processes < 2 or len(jobs) < 2 or sum(job.size_bytes for job in jobs) < SMALL_BYTES:
        tell = on_bytes or _nothing
        for job in jobs:
            yield work_on(disk, job, tell)
        return
    with ProcessPool(min(processes, len(jobs)), on_bytes) as pool:
        order = sorted(range(len(jobs)), key=lambda number: -jobs[number].size_bytes)
        futures = {number: pool.submit(_task, disk, jobs[number]) for number in order}
        for number in range(len(jobs)):
            yield pool.result(futures.pop(number))


def _task(disk: LogDisk, job: PartitionJob) -> PartitionOutcome:
    return work_on(disk, job, count_bytes)


def _nothing(count: int) -> None:
    """What is told of the progress where nobody asks."""
