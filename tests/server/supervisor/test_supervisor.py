"""Protects the lines of a cluster: each has the name of its node, in a colour of its own where there are colours."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kcli.server.supervisor.layout import configure_node, plan_cluster
from kcli.server.supervisor.supervisor import RunOptions, Supervisor


def supervisor(directory: Path, options: RunOptions) -> Supervisor:
    layout = plan_cluster(str(directory), 10, None, None)
    return Supervisor(layout, [configure_node(layout, node, None, [], strict=False) for node in layout.nodes], options, 0.0)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (RunOptions(), r"node-1  \| \S+Z INFO a sentence"),
        (RunOptions(has_colours=True), "\x1b\\[36mnode-1  \\|\x1b\\[0m \\S+Z INFO a sentence"),
    ],
)
def test_names_are_padded_and_coloured(
    options: RunOptions, line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    supervisor(tmp_path, options).log_writer("node-1", 36)("a sentence")
    assert re.fullmatch(line + "\n", capfd.readouterr().err)


def test_a_field_of_json_has_the_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Colours are not for programs."""
    supervisor(tmp_path, RunOptions("json", has_colours=True)).log_writer("node-1", 36)("a sentence", node=1)
    found = json.loads(capfd.readouterr().err)
    assert (found["node_name"], found["message"], found["node"]) == ("node-1", "a sentence", 1)
