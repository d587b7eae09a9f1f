"""Protects worker processes: an interrupt ends what they are at, and one that dies is told."""

from __future__ import annotations

import os
import signal

import pytest

from kcli.inspect.process_pool import ProcessPool, WorkerLostError, count_bytes


def count_for_ever() -> None:
    while True:
        count_bytes(1)


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_interrupt_ends_the_tasks() -> None:
    """They would never end by themselves, and a pool waits for its tasks."""
    seen: list[int] = []

    def on_bytes(count: int) -> None:
        seen.append(count)
        if sum(seen):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ProcessPool(2, on_bytes) as pool:
        futures = [pool.submit(count_for_ever) for _ in range(5)]
        pool.result(futures[0])


def test_a_worker_that_dies_is_told_in_a_sentence() -> None:
    with (
        pytest.raises(WorkerLostError, match="a worker process died; give the machine more memory"),
        ProcessPool(1, None) as pool,
    ):
        pool.result(pool.submit(kill_oneself))
