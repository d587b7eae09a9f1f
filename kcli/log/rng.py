"""The random number generator that is passed to logs, brokers and controllers.

`random.Random` and `random.SystemRandom` have this interface. A broker's process passes a SystemRandom; the simulator and the
tests pass a seeded Random, so that a run can be repeated.
"""

from __future__ import annotations

from typing import Protocol


class Random(Protocol):
    """A source of random numbers and bytes."""

    def randint(self, a: int, b: int) -> int:
        """Return an integer N with a <= N <= b."""
        ...

    def random(self) -> float:
        """Return a number N with 0 <= N < 1."""
        ...

    def randbytes(self, n: int) -> bytes:
        """Return `n` random bytes."""
        ...
