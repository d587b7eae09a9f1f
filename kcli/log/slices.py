"""Work in slices: a generator whose steps a broker takes one at a time, so that it stays with its clients.

A step is about a millisecond, ten at most. Whoever need not share its time takes all steps at once with `finish`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

_Result = TypeVar("_Result")

# Work whose steps give nothing; the generator returns the result.
Slices = Generator[None, None, _Result]


def finish(work: Slices[_Result]) -> _Result:
    """Take all steps that are left -> the result. Raises what the work raises."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _Result = end.value
            return result
