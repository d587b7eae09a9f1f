"""What a consumer counts, by the names of Kafka's metrics (group consumer-fetch-manager-metrics).

    metric                                             of
    -------------------------------------------------  --------------------------------------------------------------------
    records-consumed-total, bytes-consumed-total       what poll returned; the bytes are those of the answers
    fetch-total                                        answers to Fetch
    fetch-latency-avg, fetch-latency-max               ms from the request to the answer
    fetch-size-avg, fetch-size-max                     bytes of records in an answer
    records-per-request-avg                            records in an answer
    records-lag-max                                    the offsets between the position and the end, of the last minute

Averages and maxima are of the last two windows of 30 s (metrics.sample.window.ms, metrics.num.samples).
"""

from __future__ import annotations

WINDOW_MS = 30_000


class Samples:
    """The sum, count and maximum of values in the present window and the one before."""

    def __init__(self) -> None:
        self._window = 0
        self._now = [0.0, 0, float("-inf")]
        self._before = [0.0, 0, float("-inf")]

    def _advance(self, now_ms: int) -> None:
        window = now_ms // WINDOW_MS
        if window == self._window:
            return
        self._before = self._now if window == self._window + 1 else [0.0, 0, float("-inf")]
        self._now = [0.0, 0, float("-inf")]
        self._window = window

    def record(self, value: float, now_ms: int) -> None:
        """Add a value."""
        self._advance(now_ms)
        self._now[0] += value
        self._now[1] += 1
        self._now[2] = max(self._now[2], value)

    def average(self, now_ms: int) -> float:
        """Return the average, NaN without values."""
        self._advance(now_ms)
        count = self._now[1] + self._before[1]
        return (self._now[0] + self._before[0]) / count if count else float("nan")

    def maximum(self, now_ms: int) -> float:
        """Return the maximum, NaN without values."""
        self._advance(now_ms)
        found = max(self._now[2], self._before[2])
        return found if found != float("-inf") else float("nan")


class FetchMetrics:
    """The counters of one consumer."""

    def __init__(self) -> None:
        self.records_consumed = 0
        self.bytes_consumed = 0
        self.fetches = 0
        self.latency = Samples()
        self.size = Samples()
        self.records = Samples()
        self.lag = Samples()

    def fetched(self, size_bytes: int, latency_ms: int, now_ms: int) -> None:
        """Count an answer to Fetch."""
        self.fetches += 1
        self.latency.record(latency_ms, now_ms)
        self.size.record(size_bytes, now_ms)

    def values(self, now_ms: int) -> dict[str, float]:
        """Return all metrics by Kafka's names."""
        return {
            "records-consumed-total": self.records_consumed,
            "bytes-consumed-total": self.bytes_consumed,
            "fetch-total": self.fetches,
            "fetch-latency-avg": self.latency.average(now_ms),
            "fetch-latency-max": self.latency.maximum(now_ms),
            "fetch-size-avg": self.size.average(now_ms),
            "fetch-size-max": self.size.maximum(now_ms),
            "records-per-request-avg": self.records.average(now_ms),
            "records-lag-max": self.lag.maximum(now_ms),
        }
