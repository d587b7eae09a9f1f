"""When each batch of a replay is due: a pure function of its timestamp and of what was sent before it.

    option        a batch is due, in ms after the start of the run
    ------------  ----------------------------------------------------------------------------------------------------------
    (none)        at once: acknowledgements are the limit
    --speed 10x   (its first timestamp - the first timestamp of the run) / 10; a batch without a timestamp, and one that is
                  older than the first, is due at once
    --rate N      when N records a second were sent; N may be bytes: 500KB, 10MB, 1GiB; K, M, G without B count records

A batch is sent as a whole, so a rate is kept over batches, not within one. A stream is in the order of its offsets: a batch
waits for those before it, also if its timestamp is older.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from kcli.format.record_batch import NO_TIMESTAMP

_SPEED = re.compile(r"(\d+(?:\.\d+)?)x?", re.IGNORECASE)
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(I?B|B)?(?:/S)?", re.IGNORECASE)
_THOUSANDS = {"": 0, "K": 1, "M": 2, "G": 3}


class ScheduleError(ValueError):
    """A --speed or --rate that cannot be used; the message is one sentence."""


class Sent(NamedTuple):
    """What a run has sent so far, over all partitions."""

    records: int = 0
    bytes: int = 0


class Schedule(Protocol):
    """When batches are due."""

    @property
    def needs_origin(self) -> bool:
        """Whether the first timestamp of the run decides."""
        ...

    def due_ms(self, timestamp: int, origin: int, sent: Sent) -> float:
        """Return when a batch whose first record has `timestamp` is due, in ms after the start."""
        ...


class AtOnce:
    """As fast as acknowledgements allow."""

    @property
    def needs_origin(self) -> bool:
        """Return False."""
        return False

    def due_ms(self, timestamp: int, origin: int, sent: Sent) -> float:
        """Return 0."""
        return 0


class AtSpeed(NamedTuple):
    """A multiple of the original speed."""

    factor: float
    needs_origin: bool = True

    def due_ms(self, timestamp: int, origin: int, sent: Sent) -> float:
        """Return the time since the first timestamp, divided by the factor."""
        if timestamp == NO_TIMESTAMP or origin == NO_TIMESTAMP:
            return 0
        return max(timestamp - origin, 0) / self.factor


class AtRate(NamedTuple):
    """A number of records, or of bytes, a second."""

    amount: float
    is_bytes: bool
    needs_origin: bool = False

    def due_ms(self, timestamp: int, origin: int, sent: Sent) -> float:
        """Return how long what was sent takes at this rate."""
        return (sent.bytes if self.is_bytes else sent.records) * 1000 / self.amount


def parse_bytes(option: str, text: str) -> int:
    """Return a number of bytes, such as 512KiB or 1MB. Raises ScheduleError, which names the option."""
    match = _RATE.fullmatch(text.strip())
    if match is None or ((match[3] or "").lower() == "ib" and not match[2]):
        raise ScheduleError(f"{option} {text}: write a number of bytes, such as 100000, 512KiB or 1MB")
    base = 1024 if (match[3] or "").lower() == "ib" else 1000
    return int(float(match[1]) * base ** _THOUSANDS[match[2].upper()])


def parse_schedule(speed: str | None, rate: str | None) -> Schedule:
    """Return the schedule that the options ask for. Raises ScheduleError."""
    if speed is not None and rate is not None:
        raise ScheduleError("--speed and --rate exclude each other")
    if speed is not None:
        match = _SPEED.fullmatch(speed.strip())
        if match is None or not float(match[1]):
            raise ScheduleError(f"--speed {speed}: write a multiple of the original speed, such as 1x, 10x or 0.5x")
        return AtSpeed(float(match[1]))
    if rate is None:
        return AtOnce()
    match = _RATE.fullmatch(rate.strip())
    if match is None or not float(match[1]) or ((match[3] or "").lower() == "ib" and not match[2]):
        raise ScheduleError(f"--rate {rate}: write records a second (5000, 20K) or bytes a second (500KB, 10MB, 1GiB)")
    unit = (match[3] or "").lower()
    base = 1024 if unit == "ib" else 1000
    return AtRate(float(match[1]) * base ** _THOUSANDS[match[2].upper()], is_bytes=bool(unit))
