"""Protects the node's two times: what waits goes by a clock that nobody sets, timestamps by the one on the wall."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kcli.network.shell.clock import Clock


class Times:
    """A wall clock that may be set and a steady one that is not."""

    def __init__(self) -> None:
        self.wall_s = 1_750_000_000.0
        self.steady_s = 77.0

    def clock(self) -> Clock:
        return Clock(lambda: self.wall_s, lambda: self.steady_s)

    def pass_by(self, seconds: float, jump_s: float = 0.0) -> None:
        self.wall_s += seconds + jump_s
        self.steady_s += seconds


def test_both_begin_with_the_wall_clock() -> None:
    times = Times()
    clock = times.clock()
    times.pass_by(1.5)
    assert clock.now_ms() == clock.wall_time.at(clock.now_ms()) == 1_750_000_001_500


@given(st.lists(st.tuples(st.floats(0.01, 100), st.sampled_from([0.0, 0.0, -3600.0, -0.5, 0.5, 3600.0])), max_size=50))
def test_a_step_moves_the_wall_time_and_not_the_nodes(steps: list[tuple[float, float]]) -> None:
    """The node's time passes as the steady clock does, to the millisecond; the wall time is the system's, which may go back."""
    times = Times()
    clock = times.clock()
    first_ms, first_s = clock.now_ms(), times.steady_s
    last_ms = first_ms
    for seconds, jump_s in steps:
        times.pass_by(seconds, jump_s)
        now_ms = clock.now_ms()
        assert now_ms >= last_ms
        assert abs(now_ms - first_ms - (times.steady_s - first_s) * 1000) <= 1
        assert clock.wall_time.at(now_ms) == int(times.wall_s * 1000)
        last_ms = now_ms
