"""Protects the node's time: it never goes back and never stands still, whatever the system's clock does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kcli.server.shell.clock import Clock


class Times:
    """A wall clock that may jump and a steady one that does not."""

    def __init__(self) -> None:
        self.wall_s = 1_750_000_000.0
        self.steady_s = 77.0

    def clock(self) -> Clock:
        return Clock(lambda: self.wall_s, lambda: self.steady_s)

    def pass_by(self, seconds: float, jump_s: float = 0.0) -> None:
        self.wall_s += seconds + jump_s
        self.steady_s += seconds


def test_it_follows_the_system() -> None:
    times = Times()
    clock = times.clock()
    times.pass_by(1.5)
    assert clock.now_ms() == 1_750_000_001_500
    times.pass_by(1, jump_s=3600)
    assert clock.now_ms() == 1_750_003_602_500


def test_a_clock_that_went_back_is_met_halfway() -> None:
    times = Times()
    clock = times.clock()
    times.pass_by(0, jump_s=-10)
    before_ms = clock.now_ms()
    assert before_ms == 1_750_000_000_000
    times.pass_by(4)
    assert clock.now_ms() == before_ms + 2000
    times.pass_by(16)
    assert clock.now_ms() == before_ms + 10_000 == int(times.wall_s * 1000)
    times.pass_by(1)
    assert clock.now_ms() == before_ms + 11_000


@given(st.lists(st.tuples(st.floats(0.01, 100), st.sampled_from([0.0, 0.0, -3600.0, -0.5, 0.5, 3600.0])), max_size=50))
def test_what_waits_two_seconds_waits_at_most_four(steps: list[tuple[float, float]]) -> None:
    """The time that passes is between half of a steady clock's and, where the system's clock jumps ahead, any."""
    times = Times()
    clock = times.clock()
    last_ms = clock.now_ms()
    for seconds, jump_s in steps:
        times.pass_by(seconds, jump_s)
        now_ms = clock.now_ms()
        assert now_ms >= last_ms + int(seconds * 500) - 1
        assert now_ms >= int(times.wall_s * 1000) - 1
        last_ms = now_ms
