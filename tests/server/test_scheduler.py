"""Protects the scheduler: tasks alternate, wait for flushes, end in a slice of their own, and their faults reach the owner."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from kcli.network.timing_wheel import Timer
from kcli.server.outstanding import FlushCallback
from kcli.server.scheduler import Scheduler


class Setting:
    """A scheduler, with the flushes that its tasks wait for and a list of what happened."""

    def __init__(self) -> None:
        self.timer = Timer()
        self.flushes: list[tuple[tuple[str, ...], FlushCallback]] = []
        self.scheduler = Scheduler(self.timer, lambda paths, callback: self.flushes.append((paths, callback)))
        self.seen: list[str] = []

    def slices(self, name: str, count: int) -> Iterator[None]:
        for number in range(count):
            self.seen.append(f"{name}{number}")
            yield

    def run(self, name: str, count: int) -> None:
        self.scheduler.run(self.slices(name, count), 0, lambda now_ms: self.seen.append(f"{name} done"))


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_tasks_alternate_one_slice_at_a_time(setting: Setting) -> None:
    setting.run("a", 2)
    setting.run("b", 1)
    setting.run("c", 0)
    assert setting.seen == ["a0", "b0", "c done"], "the first slice is at once"
    for expected in ("a1", None, None, "b done", "a done"):
        before = len(setting.seen)
        setting.timer.advance(0)
        assert setting.seen[before:] == ([] if expected is None else [expected])
    assert setting.timer.next_deadline_ms() is None


def test_a_closed_scheduler_drops_its_tasks(setting: Setting) -> None:
    setting.run("a", 2)
    setting.scheduler.close()
    setting.run("b", 2)
    setting.timer.advance(10)
    assert setting.seen == ["a0", "b0"]


@pytest.mark.parametrize("error", [None, OSError(5, "broken")])
def test_a_task_waits_for_a_flush(setting: Setting, error: OSError | None) -> None:
    """The error of a flush is raised at its yield; the task knows the time of the end of the flush."""

    def work() -> Generator[tuple[str, ...] | None, None, None]:
        try:
            yield ("/file",)
            setting.seen.append("flushed")
        except OSError as failed:
            setting.seen.append(str(failed.strerror))
        setting.seen.append(str(setting.scheduler.now_ms))

    setting.scheduler.run(work(), 0)
    setting.timer.advance(5)
    ((paths, callback),) = setting.flushes
    assert paths == ("/file",) and setting.seen == []
    callback(error, 7)
    setting.timer.advance(8)
    assert setting.seen == ["flushed" if error is None else "broken", "7"]


@pytest.mark.parametrize("slices", [0, 1])
def test_faults_go_to_the_owner(setting: Setting, slices: int) -> None:
    """In the first slice as in a later one; without an owner that takes them they end the node."""

    def work() -> Iterator[None]:
        for _ in range(slices):
            yield
        raise ValueError("odd")

    failed: list[str] = []
    setting.scheduler.run(work(), 0, failed=lambda error: failed.append(str(error)))
    setting.timer.advance(0)
    assert failed == ["odd"]
    with pytest.raises(ValueError, match="odd"):
        setting.scheduler.run(work(), 0)
        setting.timer.advance(0)
