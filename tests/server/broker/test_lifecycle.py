"""Protects how a broker keeps its place in the cluster, and how it leaves: patiently, without a storm, and not in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.protocol.apis import BROKER_HEARTBEAT
from kcli.server.controller.controller_core import ControllerCore
from tests.server.whole_node import WholeNode


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    return WholeNode(tmp_path / "data")


def ignore(monkeypatch: pytest.MonkeyPatch, api_key: int) -> Callable[[], int]:
    """Have the controller take requests of one API and never answer -> how many came."""
    receive, ignored = ControllerCore.receive, []

    def without(core: ControllerCore, connection: object, frame: memoryview, *rest: object) -> None:
        if int.from_bytes(frame[:2], "big") == api_key:
            ignored.append(api_key)
        else:
            receive(core, connection, frame, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ControllerCore, "receive", without)
    return lambda: len(ignored)


def test_a_controlled_shutdown_waits_five_minutes_for_the_controller(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kafka: a slow controller must be able to move thousands of leaderships; in the end a line says that it did not."""
    ignore(monkeypatch, BROKER_HEARTBEAT)
    node._do(node.node.stop(node.now_ms))
    node.advance(299_000)
    assert not node.node.is_stopped
    node.advance(2_000)
    assert node.node.is_stopped
    assert [line for line in node.lines if "has not approved the controlled shutdown for 300 s" in line]
