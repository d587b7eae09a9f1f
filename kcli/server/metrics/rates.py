"""Rates a second since the scrape before, of what only grows; the first ones are since the start."""

from __future__ import annotations

from kcli.server.metrics.collector import RawSamples

_SOCKETS = "kafka_server_socket_server_metrics_"
# Each rate by the value that it is the rate of.
RATES = {
    f"{_SOCKETS}connection_creation": f"{_SOCKETS}connection_creation_rate",
    f"{_SOCKETS}connection_close": f"{_SOCKETS}connection_close_rate",
    f"{_SOCKETS}incoming_byte": f"{_SOCKETS}incoming_byte_rate",
    f"{_SOCKETS}outgoing_byte": f"{_SOCKETS}outgoing_byte_rate",
    "kafka_server_raft_metrics_log_end_offset": "kafka_server_raft_metrics_append_records_rate",
}


class Rates:
    """What was told at the scrape before; `now_s` is of any clock that goes on."""

    def __init__(self, now_s: float) -> None:
        self._then_s = now_s
        self._values: dict[tuple[str, tuple[str, ...]], float] = {}

    def add(self, raw: RawSamples, now_s: float) -> None:
        """Tell the rates of what was told."""
        elapsed_s = max(now_s - self._then_s, 1e-3)
        for name, labels, value in list(raw.values):
            rate = RATES.get(name)
            if rate is not None:
                # A metadata log did not begin with this process.
                before = self._values.get((name, labels), value if "raft" in name else 0)
                raw.tell(rate, (value - before) / elapsed_s, *labels)
                self._values[name, labels] = value
        self._then_s = now_s
