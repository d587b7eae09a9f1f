"""Protects the deletion of many topics: the checkpoints, which have all logs, are written once for all that wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.log.log_manager import LogManager
from kcli.log.slices import Slices
from kcli.protocol.apis import API_KEYS, DELETE_TOPICS
from tests.server.whole_node import WholeNode, batch


def test_checkpoints_follow_all_deletions_that_wait_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were written after each topic: the time of 1,000 deletions grew with the square of the partitions."""
    calls: list[int] = []
    remove_deleted = LogManager.remove_deleted

    def counted(self: LogManager) -> Slices[None]:
        calls.append(1)
        return remove_deleted(self)

    monkeypatch.setattr(LogManager, "remove_deleted", counted)
    node = WholeNode(tmp_path / "data")
    names = [f"t{number}" for number in range(8)]
    for name in [*names, "kept"]:
        node.create_topic(name, 2)
        node.produce(name, 0, batch(b"x"))
    make = API_KEYS[DELETE_TOPICS].request.classes["DeleteTopicState"]
    request = API_KEYS[DELETE_TOPICS].request.new(topics=[make(name=name) for name in names], timeout_ms=5000)
    pending = node.send(DELETE_TOPICS, 6, request)
    node.until(lambda: pending.answer is not None and len(node.broker.log_manager.logs) == 2 and bool(calls))
    node.advance(10)
    assert calls == [1]
    checkpoint = (tmp_path / "data" / "recovery-point-offset-checkpoint").read_text()
    assert "kept 0" in checkpoint and "t0 0" not in checkpoint
