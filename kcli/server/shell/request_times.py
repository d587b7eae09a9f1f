"""How long requests take: from the moment that a request is whole to the moment that its answer is handed to the system.

Times are kept in buckets, four to each doubling, so that one costs a few operations and a quantile is right within a fifth.
Nobody measures unless metrics are asked for. Quantiles are of the requests since they were last taken.
"""

from __future__ import annotations

from itertools import accumulate
from time import perf_counter_ns

from kcli.protocol.apis import API_KEYS
from kcli.server.metrics.catalog import QUANTILES
from kcli.server.metrics.collector import TimesOfRequests

NS_PER_MS = 1_000_000
_BUCKETS = 64 * 4


class _Times:
    __slots__ = ("buckets", "count", "sum_ns")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ns = 0
        self.buckets = [0] * _BUCKETS


class RequestTimes:
    """The times of all requests by API key. A connection has at most one request under way."""

    def __init__(self) -> None:
        self._times: dict[int, _Times] = {}
        self._begun: dict[int, tuple[int, int]] = {}  # connection id -> API key, ns

    def begin(self, connection_id: int, frame: memoryview) -> None:
        """A request of a connection is whole."""
        self._begun[connection_id] = (frame[0] << 8 | frame[1] if len(frame) > 1 else -1, perf_counter_ns())

    def end(self, connection_id: int) -> None:
        """Its answer is sent, or it gets none."""
        begun = self._begun.pop(connection_id, None)
        if begun is None:
            return
        key, ns = begun
        times = self._times.get(key)
        if times is None:
            if key not in API_KEYS:
                return
            times = self._times[key] = _Times()
        self.record(times, perf_counter_ns() - ns)

    def forget(self, connection_id: int) -> None:
        """The connection is gone, and what it asked for with it."""
        self._begun.pop(connection_id, None)

    @staticmethod
    def record(times: _Times, ns: int) -> None:
        """Count one."""
        times.count += 1
        times.sum_ns += ns
        bits = ns.bit_length()
        times.buckets[4 * bits + (ns >> bits - 3 & 3 if bits > 2 else 0)] += 1

    def take(self) -> dict[str, TimesOfRequests]:
        """What there is by the name of the API; quantiles begin anew."""
        taken = {}
        for key, times in self._times.items():
            taken[API_KEYS[key].name] = TimesOfRequests(quantiles_ms(times.buckets), times.count, times.sum_ns / NS_PER_MS)
            times.buckets = [0] * _BUCKETS
        return taken


def quantiles_ms(buckets: list[int]) -> tuple[float, ...]:
    """The quantiles of QUANTILES in ms; NaN where nothing was counted."""
    total = sum(buckets)
    found = []
    for quantile in QUANTILES:
        rank = total * float(quantile)
        reached = accumulate(buckets)
        index = next((index for index, so_far in enumerate(reached) if so_far and so_far >= rank), 0)
        found.append(_upper_ns(index) / NS_PER_MS if total else float("nan"))
    return tuple(found)


def _upper_ns(index: int) -> int:
    """The end of a bucket."""
    bits, part = divmod(index, 4)
    return (1 << bits) - 1 if bits < 3 else (5 + part << bits - 3) - 1
