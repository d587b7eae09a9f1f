"""How long requests take, and in which phase; measured only if metrics are served.

    phase     from                                 to
    --------  -----------------------------------  ------------------------------------------------------------------
    local     the request is received              the core has handled it
    remote    then                                 its answer is ready: after a disk, a timeout, records, the controller
    send      then                                 the whole answer is handed to the system
    total     the request is received              the same

Small answers to requests that came together are sent together, after the measured send phase. Quantiles are of a sample of the
requests since the last scrape (kcli.server.metrics.sampled).
"""

from __future__ import annotations

from time import perf_counter_ns

from kcli.protocol.apis import API_KEYS
from kcli.server.metrics.sampled import Sampled, Summary

NS_PER_MS = 1_000_000
NAME = "kafka_network_requestmetrics_"
# The metrics of the columns of a sample, and the divisor for the unit of each.
_METRICS = (
    (f"{NAME}requestbytes", 1),
    (f"{NAME}localtimems", NS_PER_MS),
    (f"{NAME}remotetimems", NS_PER_MS),
    (f"{NAME}responsesendtimems", NS_PER_MS),
    (f"{NAME}totaltimems", NS_PER_MS),
)
_FLUSHES = "kafka_log_logflushstats_logflushrateandtimems"


class RequestTimes:
    """The times of all requests by API key, and of flushes. A connection has at most one request in progress."""

    def __init__(self) -> None:
        self._times: dict[int, Sampled] = {}
        # By connection id: API key, bytes, and the ns at which it was received, handled and answered (0: not yet).
        self._begun: dict[int, list[int]] = {}
        self._flushes = Sampled()

    def begin(self, connection_id: int, frame: memoryview) -> None:
        """Note that a connection's request is received."""
        size = len(frame)
        self._begun[connection_id] = [frame[0] << 8 | frame[1] if size > 1 else -1, size, perf_counter_ns(), 0, 0]

    def handled(self, connection_id: int) -> None:
        """Note that the core has handled the request."""
        begun = self._begun.get(connection_id)
        if begun is not None:
            begun[3] = perf_counter_ns()

    def ready(self, connection_id: int) -> None:
        """Note that the answer is ready."""
        begun = self._begun.get(connection_id)
        if begun is not None:
            begun[4] = perf_counter_ns()

    def end(self, connection_id: int) -> None:
        """Count the request: its answer is sent, or it gets none."""
        begun = self._begun.pop(connection_id, None)
        if begun is None:
            return
        key, size, received, handled, ready = begun
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
            times.keep((size, handled - received, ready - handled, now - ready, now - received))

    def forget(self, connection_id: int) -> None:
        """Drop the request of a connection that has ended."""
        self._begun.pop(connection_id, None)

    def flushed(self, ns: int) -> None:
        """Count a flush that took `ns`."""
        self._flushes.add(ns)

    def take(self) -> dict[str, dict[tuple[str, ...], Summary]]:
        """Return the summaries by metric and labels; the samples are cleared."""
        taken: dict[str, dict[tuple[str, ...], Summary]] = {_FLUSHES: {(): self._flushes.take(0, NS_PER_MS)}}
        for column, (metric, units) in enumerate(_METRICS):
            taken[metric] = {(API_KEYS[key].name,): times.take(column, units) for key, times in self._times.items()}
        for times in (self._flushes, *self._times.values()):
            times.clear()
        return taken
