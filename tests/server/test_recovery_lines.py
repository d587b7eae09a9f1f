"""Protects whoever reads a broker's log after a crash: what was recovered and what was cut stands in it, with its level."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcli.server.config.loading import load_config
from kcli.server.config.values import ConfigError
from kcli.server.log_lines import fields_of, level_of
from kcli.server.shell.log_writer import LogWriter
from tests.server.whole_node import WholeNode, batch


def crashed(directory: Path) -> None:
    """A node with three batches of two records, that died; the last five bytes of its log never reached the device."""
    node = WholeNode(directory)
    node.create_topic("orders")
    for value in (b"a", b"b", b"c"):
        node.produce("orders", 0, batch(value, value))
    node.advance(10_000)  # the high watermark is in its checkpoint
    kill(node)
    log = directory / "orders-0" / "00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-5])


def kill(node: WholeNode) -> None:
    """Nothing is written any more, and the locks are given back."""
    for log_dir in node.broker.log_manager.dirs.values():
        log_dir.unlock()


def test_a_node_reports_its_recovery(tmp_path: Path) -> None:
    """Lines of the directory are INFO, the cut is a WARN with its fields, as text and as JSON."""
    data, kept = tmp_path / "data", tmp_path / "kept"
    crashed(data)
    torn = (data / "orders-0" / "00000000000000000000.log").read_bytes()
    node = WholeNode(data, f"kcli.recovery.quarantine.dir={kept}")
    lines = [(level_of(line), line) for line in node.lines]
    assert ("INFO", f"{data} was not stopped cleanly: recovering 1 partition") in lines
    (cut,) = [line for level, line in lines if level == "WARN"]
    assert cut.startswith(f"orders-0: recovery cuts {data}/orders-0/00000000000000000000.log at byte ")
    assert "; offsets 4 to 5 at least are lost; the log ends at offset 4, below the high watermark 6" in cut
    written: list[str] = []
    LogWriter("json", written.append, lambda: 0.0)(cut)
    found = json.loads(written[0])
    assert (found["level"], found["topic"], found["partition"]) == ("WARN", "orders", 0)
    assert (found["first_lost_offset"], found["last_lost_offset"]) == (4, 5)
    assert Path(found["kept_in"]).read_bytes() == torn[found["position"] :]
    assert [level for level, line in lines if "1 partition is recovered in " in line] == ["INFO"]
    node.stop()
    again = WholeNode(data)
    assert not [line for line in again.lines if "recover" in line]
    kill(again)


def test_a_cut_of_the_metadata_log_is_reported_too(tmp_path: Path) -> None:
    """Its end may be torn as any log's."""
    data = tmp_path / "data"
    node = WholeNode(data)
    kill(node)
    log = sorted((data / "__cluster_metadata-0").glob("*.log"))[-1]
    log.write_bytes(log.read_bytes() + b"\0\0\0\0\0\0\7\0\0")
    again = WholeNode(data)
    (cut,) = [line for line in again.lines if level_of(line) == "WARN"]
    assert cut.startswith(f"__cluster_metadata-0: recovery cuts {log} at byte ")
    assert fields_of(cut)["bytes"] == 9
    kill(again)


@pytest.mark.parametrize("inside", ["", "/kept", "/a/../kept"])
def test_removed_bytes_are_not_kept_in_a_log_directory(tmp_path: Path, inside: str) -> None:
    """A broker does not start with a directory there that is not a partition's."""
    data = tmp_path / "data"
    with pytest.raises(ConfigError, match=r"kcli.recovery.quarantine.dir=.* is in the log directory .*; it must be outside"):
        load_config(None, [f"log.dirs={data}", f"kcli.recovery.quarantine.dir={data}{inside}"])
    load_config(None, [f"log.dirs={data}", f"kcli.recovery.quarantine.dir={data}-kept"])
