"""How long requests take, and in which phase: nobody measures unless metrics are asked for.

    phase     from                                 to
    --------  -----------------------------------  ------------------------------------------------------------------
    local     the request is whole                 the core has looked at it
    remote    then                                 its answer is there: a disk, a deadline, new records, the controller
    send      then                                 the answer is handed to the system whole
    total     the request is whole                 the same

A small answer to a request that came with others is handed over when theirs are, which its phase of sending does not see.
Counting is a few additions a request. Quantiles are of a sample of those since they were last taken: of every one, and once
MAX_SAMPLES are kept of every second one, of every fourth, and so on.
"""

from __future__ import annotations

from time import perf_counter_ns

from kcli.protocol.apis import API_KEYS
from kcli.server.metrics.catalog import QUANTILES
from kcli.server.metrics.collector import Summary

NS_PER_MS = 1_000_000
MAX_SAMPLES = 2048
NAME = "kafka_network_requestmetrics_"
# The metrics of a sample of a request, in its order, and how many of its units theirs is.
_METRICS = (
    (f"{NAME}requestbytes", 1),
    (f"{NAME}localtimems", NS_PER_MS),
    (f"{NAME}remotetimems", NS_PER_MS),
    (f"{NAME}responsesendtimems", NS_PER_MS),
    (f"{NAME}totaltimems", NS_PER_MS),
)
_FLUSHES = "kafka_log_logflushstats_logflushrateandtimems"


class Sampled:
    """How many there were, and a sample of them."""

    __slots__ = ("count", "mask", "samples")

    def __init__(self) -> None:
        self.count = 0
        self.mask = 0
        self.samples: list[tuple[int, ...]] = []

    def keep(self, sample: tuple[int, ...]) -> None:
        """Keep one; where there are too many, let every second one go."""
        self.samples.append(sample)
        if len(self.samples) >= MAX_SAMPLES:
            del self.samples[::2]
            self.mask = self.mask * 2 + 1

    def take(self, column: int, units: int) -> Summary:
        """The summary of a column of the samples."""
        return Summary(quantiles([sample[column] / units for sample in self.samples]), self.count)

    def begin_anew(self) -> None:
        """Forget the samples; the count goes on."""
        self.samples, self.mask = [], 0


class RequestTimes:
    """The times of all requests by API key, and of flushes. A connection has at most one request under way."""

    def __init__(self) -> None:
        self._times: dict[int, Sampled] = {}
        # By connection id: API key, bytes, and in ns when it was whole, looked at and answered (0: not yet).
        self._begun: dict[int, list[int]] = {}
        self._flushes = Sampled()

    def begin(self, connection_id: int, frame: memoryview) -> None:
        """A request of a connection is whole."""
        size = len(frame)
        self._begun[connection_id] = [frame[0] << 8 | frame[1] if size > 1 else -1, size, perf_counter_ns(), 0, 0]

    def handled(self, connection_id: int) -> None:
        """The core has looked at it."""
        begun = self._begun.get(connection_id)
        if begun is not None:
            begun[3] = perf_counter_ns()

    def ready(self, connection_id: int) -> None:
        """Its answer is there."""
        begun = self._begun.get(connection_id)
        if begun is not None:
            begun[4] = perf_counter_ns()

    def end(self, connection_id: int) -> None:
        """Its answer is sent, or it gets none."""
        begun = self._begun.pop(connection_id, None)
        if begun is None:
            return
        key, size, whole, handled, ready = begun
        times = self._times.get(key)
        if times is None:
            if key not in API_KEYS:
                return
            times = self._times[key] = Sampled()
        times.count += 1
        if not times.count & times.mask:
            now = perf_counter_ns()
            handled = handled or now
            ready = max(ready or now, handled)
            times.keep((size, handled - whole, ready - handled, now - ready, now - whole))

    def forget(self, connection_id: int) -> None:
        """The connection is gone, and what it asked for with it."""
        self._begun.pop(connection_id, None)

    def flushed(self, ns: int) -> None:
        """A flush was done, and took so long."""
        self._flushes.count += 1
        if not self._flushes.count & self._flushes.mask:
            self._flushes.keep((ns,))

    def take(self) -> dict[str, dict[tuple[str, ...], Summary]]:
        """What there is by metric and labels; quantiles begin anew."""
        taken: dict[str, dict[tuple[str, ...], Summary]] = {_FLUSHES: {(): self._flushes.take(0, NS_PER_MS)}}
        for column, (metric, units) in enumerate(_METRICS):
            taken[metric] = {(API_KEYS[key].name,): times.take(column, units) for key, times in self._times.items()}
        for times in (self._flushes, *self._times.values()):
            times.begin_anew()
        return taken


def quantiles(values: list[float]) -> tuple[float, ...]:
    """The quantiles of QUANTILES; NaN where there is nothing."""
    if not values:
        return (float("nan"),) * len(QUANTILES)
    values.sort()
    return tuple(values[min(int(len(values) * float(quantile)), len(values) - 1)] for quantile in QUANTILES)
