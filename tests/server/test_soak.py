"""Protects the soak itself (tests.server.soak, which runs for hours by hand): clients come and go, each record comes once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.soak import GROUPS, Ledger, run, slope_of


@pytest.mark.slow
def test_each_record_comes_once_while_clients_come_and_go(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []
    assert run(tmp_path, 20.0, 5.0, lines.append) == []
    assert {*GROUPS, "producer", "transaction", "streams", "topic", "connection"} <= lines[-2]["done"].keys()


def test_a_ledger_notices_what_is_lost_and_what_comes_twice() -> None:
    ledger = Ledger()
    values = ledger.next_values()
    for group in GROUPS:
        ledger.got(group, iter(values[1:]))
    assert (ledger.missing(), ledger.faults) == (len(GROUPS), [])
    ledger.got(GROUPS[0], iter(values[1:2]))
    assert len(ledger.faults) == 1


def test_the_slope_is_in_bytes_per_second() -> None:
    assert slope_of([(0.0, 100), (10.0, 300), (20.0, 500)]) == 20.0
    assert slope_of([(0.0, 100)]) is None
