"""Worker processes for work on many partitions: they receive paths and return results, both small.

A task counts the bytes that it has processed (`count_bytes`); the parent reports the progress while it waits for a result. If
the parent stops, each task ends when it counts the next time. `multiprocessing` is imported only if a pool is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import TracebackType

# Less than this is faster in one process, because starting others takes time.
SMALL_BYTES = 64 * 1024 * 1024

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class WorkerLostError(Exception):
    """A worker process died, for example because the system ran out of memory; the message is one sentence."""


class StoppedError(Exception):
    """The parent has stopped and needs no result."""


# The value of the counter then: far below any sum of counts.
_STOPPED = -(1 << 62)

# ----------------------------------------------------------------------------------------------------- in the workers

_done_bytes: Any = None  # a counter that workers and their parent share


def _begin_worker(counter: Any) -> None:
    import signal

    global _done_bytes
    _done_bytes = counter
    # The terminal interrupts the whole group; the parent ends the workers.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def count_bytes(count: int) -> None:
    """Count `count` more bytes as processed; called in a worker. Raises StoppedError if the parent has stopped."""
    with _done_bytes.get_lock():
        _done_bytes.value += count
        if _done_bytes.value < 0:
            raise StoppedError


# ------------------------------------------------------------------------------------------------------ in the parent


class ProcessPool:
    """Up to `processes` worker processes, as a context manager; `on_bytes` is called in the parent with each progress."""

    def __init__(self, processes: int, on_bytes: Callable[[int], None] | None) -> None:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_all_start_methods, get_context

        context = get_context("fork" if "fork" in get_all_start_methods() else None)
        self._counter = context.Value("q", 0)
        self._reported = 0
        self._on_bytes = on_bytes
        self._pool = ProcessPoolExecutor(processes, context, initializer=_begin_worker, initargs=(self._counter,))

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        from concurrent.futures.process import BrokenProcessPool

        # A worker that died may have held the counter's lock.
        if error is not None and not isinstance(error, BrokenProcessPool):
            self._counter.value = _STOPPED
        self._pool.shutdown(wait=True, cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise WorkerLostError("a worker process died; give the machine more memory, or use --processes 1") from None

    def submit(
        self, task: Callable[_Parameters, _Result], *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> Future[_Result]:
        """Run a task in a worker; it and its arguments are pickled."""
        return self._pool.submit(task, *args, **kwargs)

    def result(self, future: Future[_Result]) -> _Result:
        """Wait for a task and return its result; report the progress ten times a second. Raises what the task raised."""
        if self._on_bytes is None:
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
                self._on_bytes(done - self._reported)
                self._reported = done
