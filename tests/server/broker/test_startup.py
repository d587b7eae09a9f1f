"""Protects the start of a broker that reads a long metadata log: its own work does not grow with the batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kcli.network.timing_wheel import Timer
from kcli.server.broker.startup import CATCH_UP_CHECK_MS, BrokerStartup


class Nothing:
    """A part of the broker that is not asked here."""

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **named: None


class Metadata:
    """A metadata log that is never caught up with."""

    leader_id = 1
    checks = 0

    def register(self, listener: object) -> None:
        pass

    def is_caught_up(self) -> bool:
        self.checks += 1
        return False


def test_one_check_waits_whatever_the_number_of_batches() -> None:
    """Each batch asks at once; between batches there is one check at a time, not one for each batch that has come."""
    timer, metadata = Timer(0), Metadata()
    broker: Any = SimpleNamespace(timer=timer, publisher=Nothing(), lifecycle=Nothing(), report=print)
    startup = BrokerStartup(broker, metadata)
    startup.begin(0)
    for now_ms in range(1, 101):
        for _ in range(20):
            startup.on_commit(None, now_ms)  # type: ignore[arg-type]
        timer.advance(now_ms)
    assert metadata.checks == 100
    for now_ms in range(101, 101 + 10 * CATCH_UP_CHECK_MS):
        timer.advance(now_ms)
    assert metadata.checks <= 111
