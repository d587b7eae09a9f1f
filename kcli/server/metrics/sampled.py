"""Times and sizes between two scrapes of the metrics: their quantiles, or their average and maximum.

class    Kafka's metric                                   keeps
-------  -----------------------------------------------  ------------------------------------------------------------------
Sampled  a histogram: quantiles, and a count since the    every value, and once MAX_SAMPLES are kept every second, every
         start                                            fourth, and so on
Latency  a sensor with ...-avg and ...-max                the number, the sum and the maximum
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.server.metrics.catalog import QUANTILES

# A sample of this many values is kept between two scrapes.
MAX_SAMPLES = 2048
NOT_A_NUMBER = float("nan")


class Summary(NamedTuple):
    """The quantiles (QUANTILES) of times or sizes, and the number of values since the start."""

    quantiles: tuple[float, ...]
    total: int


def quantiles(values: list[float]) -> tuple[float, ...]:
    """Return the quantiles of QUANTILES; NaN without values."""
    if not values:
        return (NOT_A_NUMBER,) * len(QUANTILES)
    values.sort()
    return tuple(values[min(int(len(values) * float(quantile)), len(values) - 1)] for quantile in QUANTILES)


class Sampled:
    """A count, and a sample of the counted values."""

    __slots__ = ("count", "mask", "samples")

    def __init__(self) -> None:
        self.count = 0
        self.mask = 0
        self.samples: list[tuple[int, ...]] = []

    def add(self, *values: int) -> None:
        """Count values, and keep them if they belong to the sample."""
        self.count += 1
        if not self.count & self.mask:
            self.keep(values)

    def keep(self, sample: tuple[int, ...]) -> None:
        """Keep a sample; if there are too many, drop every second one."""
        self.samples.append(sample)
        if len(self.samples) >= MAX_SAMPLES:
            del self.samples[::2]
            self.mask = self.mask * 2 + 1

    def take(self, column: int, units: int) -> Summary:
        """Return the summary of a column of the samples."""
        return Summary(quantiles([sample[column] / units for sample in self.samples]), self.count)

    def clear(self) -> None:
        """Drop the samples; the count continues."""
        self.samples, self.mask = [], 0


class Latency:
    """Average and maximum of times in ms since they were last taken."""

    __slots__ = ("_count", "_max_ms", "_sum_ms")

    def __init__(self) -> None:
        self._count = self._sum_ms = self._max_ms = 0

    def add(self, ms: int) -> None:
        """Add a time."""
        self._count += 1
        self._sum_ms += ms
        self._max_ms = max(self._max_ms, ms)

    def take(self) -> tuple[float, float]:
        """Return the average and the maximum and reset them; NaN if there was no time."""
        if not self._count:
            return NOT_A_NUMBER, NOT_A_NUMBER
        found = self._sum_ms / self._count, float(self._max_ms)
        self._count = self._sum_ms = self._max_ms = 0
        return found
