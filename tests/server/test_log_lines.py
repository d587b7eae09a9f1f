"""Protects who watches a node's log by its levels: what fails is an ERROR, what goes wrong outside a WARN, the rest INFO."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from kcli.server.log_lines import FailureLine, WarningLine, level_of
from kcli.server.shell.log_writer import LogWriter
from tests.server.whole_node import WholeNode


@pytest.mark.parametrize(("line", "level"), [("a", "INFO"), (WarningLine("a"), "WARN"), (FailureLine("a"), "ERROR")])
def test_a_line_is_written_at_its_level(line: str, level: str) -> None:
    written: list[str] = []
    LogWriter("text", written.append, lambda: 0.0)(line)
    LogWriter("json", written.append, lambda: 0.0)(line)
    assert written[0] == f"1970-01-01T00:00:00.000Z {level} a\n"
    assert json.loads(written[1])["level"] == level


def test_what_happens_to_a_node_has_its_level(tmp_path: Path) -> None:
    """A start is told as INFO, a log directory that fails as WARN, a fault of the program as ERROR."""
    node = WholeNode(tmp_path / "data", f"log.dirs={tmp_path / 'data'},{tmp_path / 'other'}")
    assert {level_of(line) for line in node.lines} == {"INFO"}
    node.broker.log_manager.take_offline(str(tmp_path / "other"), OSError(errno.EIO, "Input/output error"))
    assert "offline" in node.lines[-1] and level_of(node.lines[-1]) == "WARN"
    node.broker.fault("a test", ValueError("x"))
    assert level_of(node.lines[-1]) == "ERROR"
