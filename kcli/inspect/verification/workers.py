"""Verifies partitions on all cores: each in a worker process, the segments of a very large one in several.

    input                                          how it is verified
    ---------------------------------------------  -----------------------------------------------------------------
    less than SMALL_BYTES, or one core             in this process, one partition after the other
    a partition of less than a core's share        whole, in a worker
    a larger one with several segments             its segments in workers, put together in this process (partitions)

Largest first, so that no core idles at the end; the results come in the order of the input whatever was done when. Workers get
paths and give back what they found, both small. `multiprocessing` is imported only where workers are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from kcli.inspect.verification.facts import PartitionOptions, PartitionResult
from kcli.inspect.verification.partitions import verify_partition
from kcli.inspect.verification.readings import ReadAhead, SegmentReading, read_segment, segment_options
from kcli.log.disk import Disk
from kcli.log.log_directory import PartitionDirectory, Segment

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

SMALL_BYTES = 64 * 1024 * 1024


class WorkerLostError(Exception):
    """A worker process died, as one does that the system kills for want of memory; the message is one sentence."""


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
    yield from _Pool(disk, jobs, min(processes, parts), on_bytes).run()


def _nothing(count: int) -> None:
    """What is told of the progress where nobody asks."""


# ----------------------------------------------------------------------------------------------------- in the workers

_done_bytes: Any = None  # a counter that workers and their parent share


def _begin_worker(counter: Any) -> None:
    import signal

    global _done_bytes
    _done_bytes = counter
    # The terminal interrupts the whole group; the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _count_bytes(count: int) -> None:
    with _done_bytes.get_lock():
        _done_bytes.value += count


def _partition_task(disk: Disk, job: Job) -> PartitionResult:
    return verify_partition(disk, job.partition, job.options, _count_bytes)


def _segment_task(disk: Disk, job: Job, segment: Segment) -> SegmentReading | None:
    try:
        return read_segment(disk, segment, segment_options(job.partition, segment, job.options), _count_bytes)
    except OSError:
        return None  # read again in its turn, where the fault is told


# ------------------------------------------------------------------------------------------------------ in the parent


class _Pool:
    """The workers of one verification and what they have been given to do."""

    def __init__(self, disk: Disk, jobs: list[Job], processes: int, on_bytes: Callable[[int], None] | None) -> None:
        self.disk = disk
        self.jobs = jobs
        self.processes = processes
        self.on_bytes = on_bytes
        self._told = 0
        self._whole: dict[int, Future[PartitionResult]] = {}
        self._segments: dict[int, dict[str, Future[SegmentReading | None]]] = {}

    def run(self) -> Iterator[PartitionResult]:
        """Give out all work, then hand the results on as they come into their order."""
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import get_all_start_methods, get_context

        context = get_context("fork" if "fork" in get_all_start_methods() else None)
        self._counter = context.Value("q", 0)
        pool = ProcessPoolExecutor(self.processes, context, initializer=_begin_worker, initargs=(self._counter,))
        try:
            self._submit(pool)
            for number, job in enumerate(self.jobs):
                yield self._result(number, job)
        except BrokenProcessPool:
            raise WorkerLostError("a worker process died; give the machine more memory, or use --processes 1") from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, pool: ProcessPoolExecutor) -> None:
        share = sum(job.size_bytes for job in self.jobs) / self.processes
        for number in sorted(range(len(self.jobs)), key=lambda number: -self.jobs[number].size_bytes):
            job = self.jobs[number]
            if job.size_bytes >= share and len(job.partition.segments) > 1:
                self._segments[number] = {
                    segment.log: pool.submit(_segment_task, self.disk, job, segment) for segment in job.partition.segments
                }
            else:
                self._whole[number] = pool.submit(_partition_task, self.disk, job)

    def _result(self, number: int, job: Job) -> PartitionResult:
        if number in self._whole:
            result: PartitionResult = self._await(self._whole.pop(number))
            return result
        futures = self._segments.pop(number)
        read_ahead: ReadAhead = lambda segment: self._await(futures.pop(segment.log))  # noqa: E731
        return verify_partition(self.disk, job.partition, job.options, read_ahead=read_ahead)

    def _await(self, future: Future[Any]) -> Any:
        """A future's result; while it is awaited, the progress is told ten times a second."""
        if self.on_bytes is None:
            return future.result()
        from concurrent.futures import TimeoutError as NotYet

        while True:
            try:
                return future.result(timeout=0.1)
            except NotYet:
                if future.done():
                    raise
            finally:
                done = self._counter.value
                self.on_bytes(done - self._told)
                self._told = done
