"""The source of random numbers that a core is given: random.Random, seeded by the shell or by the simulator."""

from __future__ import annotations

from typing import Protocol


class Random(Protocol):
    """The methods of random.Random that a core may call."""

    def randint(self, a: int, b: int) -> int:
        """Return an integer from a to b, both included."""
        ...

    def random(self) -> float:
        """Return a number from 0 up to, but not including, 1."""
        ...

    def randbytes(self, n: int) -> bytes:
        """Return n bytes."""
        ...
