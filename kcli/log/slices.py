"""Work in time slices: a generator that a broker resumes between requests, so that clients do not wait for all of the work.

A step takes about a millisecond, at most ten. A caller without clients runs all steps with `finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# A generator that yields None after each step and returns the result.
Slices = Generator[None, None, _Result]


def finish(work: Slices[_Result]) -> _Result:
    """Run the remaining steps and return the result. Raises the errors of the work."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _Result = end.value
            return result


def at_once(work: Callable[_Parameters, Slices[_Result]]) -> Callable[_Parameters, _Result]:
    """Return a function with the parameters of `work` that runs all its steps."""

    def whole(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        return finish(work(*args, **kwargs))

    return whole
