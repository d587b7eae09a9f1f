"""The clocks of the system for compiled code, which reads them without an object: two calls of Python take a fifth of a `send`.

Compiled modules include system_clock.pxd instead; so a change there needs a build.
"""

from __future__ import annotations

from time import monotonic, time


def monotonic_s() -> float:
    """Return the seconds of a clock that is never set."""
    return monotonic()


def wall_s() -> float:
    """Return the seconds since 1970."""
    return time()
