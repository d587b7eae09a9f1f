"""Protects who watches a node's log by its levels: what fails is an ERROR, what goes wrong outside a WARN, the rest INFO."""

from __future__ import annotations

import ast
import errno
import json
from pathlib import Path

import pytest

from kcli.server.controller.controller_server import ControllerServer
from kcli.server.log_lines import DebugLine, FailureLine, Line, WarningLine, fault_line, fields_of, level_of
from kcli.server.shell.log_writer import LogWriter
from tests.conftest import ROOT
from tests.server.whole_node import WholeNode


@pytest.mark.parametrize(
    ("line", "level"), [("a", "INFO"), (WarningLine("a"), "WARN"), (FailureLine("a"), "ERROR"), (DebugLine("a"), "DEBUG")]
)
def test_a_line_is_written_at_its_level(line: str, level: str) -> None:
    written: list[str] = []
    LogWriter("text", written.append, lambda: 0.0)(line)
    LogWriter("json", written.append, lambda: 0.0)(line)
    assert written[0] == f"1970-01-01T00:00:00.000Z {level} a\n"
    assert json.loads(written[1])["level"] == level


def test_what_happens_to_a_node_has_its_level(tmp_path: Path) -> None:
    """A start is logged as INFO, a log directory that fails as WARN, a fault of the program as ERROR."""
    node = WholeNode(tmp_path / "data", f"log.dirs={tmp_path / 'data'},{tmp_path / 'other'}")
    assert {level_of(line) for line in node.lines} == {"INFO"}
    node.broker.log_manager.take_offline(str(tmp_path / "other"), OSError(errno.EIO, "Input/output error"))
    assert "offline" in node.lines[-1] and level_of(node.lines[-1]) == "WARN"
    assert fields_of(node.lines[-1]) == {"path": str(tmp_path / "other"), "error": "Input/output error"}
    node.broker.report(fault_line("a test", ValueError("x")))
    assert level_of(node.lines[-1]) == "ERROR"
    assert fields_of(node.lines[-1]) == {"error": "ValueError('x')", "what": "a test"}


def test_a_controllers_failures_have_their_level_and_fields(tmp_path: Path) -> None:
    """A metadata log that cannot be written is an ERROR, though a core of its own tells it."""
    node = WholeNode(tmp_path / "data")
    controller = node.node.controller
    assert isinstance(controller, ControllerServer)
    controller.raft.storage_failed(OSError(errno.ENOSPC, "No space left on device"), 0)
    failure = next(line for line in node.lines if "leaves the metadata quorum" in line)
    assert level_of(failure) == "ERROR"
    assert fields_of(failure)["error"] == "No space left on device"
    assert str(fields_of(failure)["path"]).endswith("__cluster_metadata-0")


@pytest.mark.parametrize("kind", [Line, WarningLine, FailureLine])
def test_fields_of_a_line_are_for_programs_alone(kind: type[Line]) -> None:
    """Text says the sentence, which has them in it; JSON has each besides, and one of the caller's goes before the line's."""
    line, written = kind("topic a-3 is gone", topic="a", partition=3), list[str]()
    LogWriter("text", written.append, lambda: 0.0)(line)
    LogWriter("json", written.append, lambda: 0.0)(line, topic="b")
    assert written[0].endswith(" topic a-3 is gone\n")
    found = json.loads(written[1])
    assert (found["message"], found["topic"], found["partition"]) == ("topic a-3 is gone", "b", 3)
    assert fields_of("a mere text") == {}


def test_no_field_hides_what_each_line_has() -> None:
    """No caller names a field as JSON's own three are named: time, level, message."""
    sources = [path for path in (ROOT / "kcli").rglob("*.py") if "Line(" in path.read_text()]
    named, kinds = set[str | None](), ("Line", "WarningLine", "FailureLine", "DebugLine")
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in kinds:
                named |= {keyword.arg for keyword in node.keywords}
    assert {"peer", "listener", "topic", "partition", "path", "error"} <= named
    assert not named & {"time", "level", "message"}
