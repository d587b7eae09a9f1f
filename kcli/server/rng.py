"""The dice that a core is handed: random.Random has this form, seeded by the shell or by the simulator."""

from __future__ import annotations

from typing import Protocol


class Random(Protocol):
    """Chance, as the core may ask for it."""

    def randint(self, a: int, b: int) -> int:
        """An integer from a to b, both included."""
        ...

    def random(self) -> float:
        """A number from 0 up to, but not including, 1."""
        ...

    def randbytes(self, n: int) -> bytes:
        """So many bytes."""
        ...
