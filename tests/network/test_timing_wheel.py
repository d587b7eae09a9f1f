"""Protects the timer: each task runs once, at its millisecond, in order, whatever else is scheduled, cancelled or raised."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.network.timing_wheel import WHEEL_SIZE, Timer, TimerTask

START_MS = 1_750_000_000_123
# Both sides of where a level of the wheel ends, and far away.
EDGES_MS = [WHEEL_SIZE**level + by for level in range(1, 6) for by in (-1, 0, 1)]
DELAYS = st.one_of(st.integers(-50, 50), st.sampled_from(EDGES_MS), st.integers(0, 10**8))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("schedule"), DELAYS),
        st.tuples(st.just("cancel"), st.integers(0, 60)),
        st.tuples(st.just("advance"), st.one_of(st.integers(-100, 500), DELAYS)),
        st.tuples(st.just("observe"), st.one_of(st.integers(0, 500), DELAYS)),
    ),
    max_size=60,
)


@given(STEPS)
def test_it_does_what_a_sorted_list_does(steps: list[tuple[str, int]]) -> None:
    timer, now_ms = Timer(START_MS), START_MS
    tasks: list[TimerTask] = []
    waiting: dict[int, tuple[int, int]] = {}  # by number: (time, order)
    ran: list[int] = []
    expected: list[int] = []
    has_observed = False
    for what, value in steps:
        if what == "schedule":
            number = len(tasks)
            tasks.append(timer.schedule(now_ms + value, lambda at, number=number: ran.append(number)))  # type: ignore[misc]
            waiting[number] = (now_ms + value, number)
        elif what == "cancel" and value < len(tasks):
            tasks[value].cancel()
            waiting.pop(value, None)
        elif what == "observe":
            now_ms = max(now_ms, now_ms + value)
            timer.observe(now_ms)
            has_observed = True
        elif what == "advance" and (value >= 0 or not has_observed):
            # A clock that went back runs nothing but what was due before; the wheel's own clock stays.
            asked_ms = now_ms + value
            now_ms = max(now_ms, asked_ms)
            due = sorted((at, number) for at, number in waiting.values() if at <= asked_ms and asked_ms >= timer.clock_ms)
            expected += [number for _, number in due]
            for _, number in due:
                del waiting[number]
            timer.advance(asked_ms)
        assert ran == expected
        deadline_ms = timer.next_deadline_ms()
        assert (deadline_ms is None) == (not waiting)
        if deadline_ms is not None:
            assert deadline_ms <= max(now_ms, min(at for at, _ in waiting.values()))


@given(st.lists(DELAYS, min_size=1, max_size=30))
def test_who_follows_the_deadlines_is_never_late(delays: list[int]) -> None:
    """A shell that calls `advance` at each `next_deadline_ms` runs every task at its own time."""
    timer = Timer(START_MS)
    ran: list[tuple[int, int]] = []
    for delay in delays:
        at_ms = START_MS + delay
        timer.schedule(at_ms, lambda now_ms, at_ms=at_ms: ran.append((max(at_ms, START_MS), now_ms)))  # type: ignore[misc]
    calls = 0
    while (deadline_ms := timer.next_deadline_ms()) is not None:
        timer.advance(deadline_ms)
        calls += 1
    assert len(ran) == len(delays)
    assert all(now_ms == at_ms for at_ms, now_ms in ran)
    assert calls <= 8 * len(delays), "each task costs a wake-up a level at most"


def test_the_time_of_an_event_runs_nothing() -> None:
    """A delay that begins with an event counts from its time; what is due waits for `advance`."""
    timer, ran = Timer(START_MS), []
    timer.schedule(START_MS + 10, ran.append)
    timer.observe(START_MS + 500)
    timer.observe(START_MS + 400)
    assert (timer.clock_ms, ran) == (START_MS + 500, [])
    timer.schedule(timer.clock_ms + 1000, ran.append)
    timer.advance(START_MS + 1499)
    assert ran == [START_MS + 1499]
    timer.advance(START_MS + 1500)
    assert ran == [START_MS + 1499, START_MS + 1500]


def test_a_task_that_arms_itself_for_now_runs_at_the_next_call() -> None:
    timer, runs = Timer(START_MS), []

    def again(now_ms: int) -> None:
        runs.append(now_ms)
        timer.schedule(now_ms - 5, again)

    timer.schedule(START_MS, again)
    for count in range(1, 4):
        timer.advance(START_MS)
        assert len(runs) == count
    assert timer.next_deadline_ms() == START_MS


def test_a_task_may_cancel_one_that_is_due_with_it() -> None:
    timer, ran = Timer(START_MS), []
    later: list[TimerTask] = []
    timer.schedule(START_MS + 3, lambda now_ms: later[0].cancel())
    later.append(timer.schedule(START_MS + 5, ran.append))
    timer.advance(START_MS + 10)
    assert ran == []
    later[0].cancel()
    assert timer.next_deadline_ms() is None


def test_what_one_task_raises_does_not_lose_the_others() -> None:
    timer, ran = Timer(START_MS), []

    def broken(now_ms: int) -> None:
        raise RuntimeError("a fault")

    cancelled = timer.schedule(START_MS + 4, ran.append)
    timer.schedule(START_MS + 1, ran.append)
    timer.schedule(START_MS + 2, broken)
    timer.schedule(START_MS + 3, ran.append)
    with pytest.raises(RuntimeError, match="a fault"):
        timer.advance(START_MS + 5)
    cancelled.cancel()
    assert ran == [START_MS + 5]
    assert timer.next_deadline_ms() is not None
    timer.advance(START_MS + 6)
    assert ran == [START_MS + 5, START_MS + 6]
    assert timer.next_deadline_ms() is None


def test_what_is_cancelled_leaves_nothing_behind() -> None:
    """Fetches that wait half a second and are answered at once: the wheel must not grow with them."""
    timer = Timer(START_MS)
    for step in range(20_000):
        timer.advance(START_MS + step)
        timer.schedule(START_MS + step + 500, _never).cancel()
        timer.next_deadline_ms()
    assert len(timer._coming) <= WHEEL_SIZE
    assert sum(map(len, timer._levels)) <= WHEEL_SIZE


_never: Callable[[int], None] = lambda now_ms: pytest.fail("it was cancelled")  # noqa: E731
