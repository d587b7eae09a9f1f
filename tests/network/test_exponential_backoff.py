"""Protects the delays of KIP-580: doubled, never above the maximum, spread by a fifth."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcli.network.exponential_backoff import ExponentialBackoff


class Fixed:
    """One random number for all calls."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


@pytest.mark.parametrize(("number", "delays"), [(0.5, [100, 200, 400, 800, 1000, 1000]), (0.0, [80, 160, 320, 640, 800, 800])])
def test_delays_double_up_to_the_maximum(number: float, delays: list[int]) -> None:
    rng: Any = Fixed(number)
    backoff = ExponentialBackoff(100, 1000)
    assert [backoff.delay_ms(failures, rng) for failures in (0, 1, 2, 3, 4, 1000)] == delays


def test_no_delay_exceeds_the_maximum() -> None:
    rng = random.Random(1)
    backoff = ExponentialBackoff(100, 1000)
    delays = [backoff.delay_ms(failures, rng) for failures in range(500)]
    assert max(delays) == 1000 and min(delays[10:]) >= 800


@pytest.mark.parametrize(("initial", "most", "delay"), [(100, 50, 50), (100, 100, 100), (0, 0, 0)])
def test_a_maximum_that_is_not_above_the_initial_delay(initial: int, most: int, delay: int) -> None:
    rng = random.Random(1)
    backoff = ExponentialBackoff(initial, most)
    assert [backoff.delay_ms(failures, rng) for failures in range(5)] == [delay] * 5
