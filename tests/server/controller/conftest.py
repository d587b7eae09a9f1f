"""Fixtures of the tests of the controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.controller.controllers import ControllerNode
from tests.server.raft.nodes import formatted


@pytest.fixture
def node(tmp_path: Path) -> ControllerNode:
    """A controller that leads, and a broker that is registered with it."""
    return ControllerNode(formatted(tmp_path / "data")).start_with_broker()
