"""Work in slices: a generator whose steps a broker takes one at a time, so that it stays with its clients.

A step is about a millisecond, ten at most. Whoever need not share its time takes all steps at once with `finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
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


def at_once(work: Callable[_Parameters, Slices[_Result]]) -> Callable[_Parameters, _Result]:
    """A function that takes what `work` takes, and does all of it in one go."""

    def whole(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        return finish(work(*args, **kwargs))

    return whole
