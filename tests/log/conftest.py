"""Fixtures of the tests of logs: a log to append to, and log managers over two directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.log.live_logs import LiveLog
from tests.log.log_nodes import Node


@pytest.fixture
def live(tmp_path: Path) -> LiveLog:
    return LiveLog(tmp_path / "t-0")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "a", tmp_path / "b")
