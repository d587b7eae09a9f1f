"""Protects the manager of share groups: what it keeps without a record is right, and is not kept for ever."""

from __future__ import annotations

from typing import Any

import pytest

from kcli.server.coordinator.group import share_group_manager
from kcli.server.coordinator.group.group_manager import ShardParts
from kcli.server.coordinator.group.share_group_manager import ShareGroupManager, ShareHeartbeat, ShareHeartbeatResult
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.state.groups import ShareGroup
from tests.server.coordinator.modern_groups import ModernGroups

GROUP = "g"


class ShareGroups(ModernGroups[ShareGroupManager]):
    """The share groups of one shard."""

    def _manager(self, parts: ShardParts) -> ShareGroupManager:
        return ShareGroupManager(parts)

    def check(self) -> None:
        """Check nothing: members share partitions."""

    def heartbeat(
        self, member_id: str = "m1", epoch: int = 0, *, group_id: str = GROUP, topics: Any = None
    ) -> ShareHeartbeatResult:
        """Send a heartbeat; one that joins subscribes to `orders` unless `topics` say otherwise."""
        topics = ["orders"] if epoch == 0 and topics is None else topics
        decision = self.manager.heartbeat(ShareHeartbeat(group_id, member_id, epoch, None, "client", "/127.0.0.1", topics))
        self.apply(decision)
        return decision.response

    def initialize(self, result: ShareHeartbeatResult) -> None:
        """Take the partitions of the answer to a heartbeat as initialized."""
        assert result.initialization is not None
        self.apply(self.manager.complete_initialization(result.initialization))

    def group(self) -> ShareGroup:
        return self.manager.find(GROUP)


@pytest.fixture
def groups() -> ShareGroups:
    made = ShareGroups("group.share.assignment.interval.ms=0")
    made.set_topic("orders", 4)
    return made


def test_deleted_groups_and_topics_use_no_memory(groups: ShareGroups) -> None:
    """The initialization of their partitions was never completed."""
    pay = groups.set_topic("pay", 1)
    for at in range(5):
        groups.heartbeat(group_id=f"g{at}")
        groups.heartbeat("m1", -1, group_id=f"g{at}")
        groups.apply(Decision(None, list(groups.manager.delete(f"g{at}"))))
    assert not groups.manager._initializing_since
    groups.heartbeat(topics=["pay"])
    groups.apply(Decision(None, groups.manager.topics_removed((pay,))))
    assert not groups.manager._initializing_since


def test_a_heartbeat_in_which_nothing_has_changed_does_not_merge_the_targets(
    groups: ShareGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would cost time by the number of the group's members and partitions."""
    groups.initialize(groups.heartbeat())
    epoch = groups.heartbeat("m1", 2).member_epoch
    groups.heartbeat("m1", epoch)
    merged: list[Any] = []
    monkeypatch.setattr(share_group_manager, "merge", lambda first, second: merged.append(second))
    assert groups.heartbeat("m1", epoch).member_epoch == epoch
    assert not groups.written and len(merged) == 1, "only the topics that are being initialized"


def test_partitions_that_are_initialized_later_are_assigned(groups: ShareGroups) -> None:
    """The result that a heartbeat remembers is that of the present topics, members and targets."""
    first = groups.heartbeat()
    epoch = groups.heartbeat("m1", first.member_epoch).member_epoch
    groups.heartbeat("m1", epoch)
    groups.initialize(first)
    epoch = groups.heartbeat("m1", epoch).member_epoch
    assert sum(len(found) for found in groups.group().members["m1"].assigned_partitions.values()) == 4
    groups.heartbeat("m1", epoch)
    groups.set_topic("orders", 5)
    more = groups.heartbeat("m1", epoch)
    epoch = groups.heartbeat("m1", more.member_epoch).member_epoch
    groups.initialize(more)
    groups.heartbeat("m1", epoch)
    assert sum(len(found) for found in groups.group().members["m1"].assigned_partitions.values()) == 5


def test_members_that_come_and_go_are_logged(groups: ShareGroups) -> None:
    groups.heartbeat("m1")
    with pytest.raises(CoordinatorError):
        groups.heartbeat("m1", 7)
    groups.heartbeat("m1", -1)
    assert groups.lines[0] == f"share group {GROUP} gets member m1 in epoch 2: client client at /127.0.0.1"
    assert groups.lines[1].startswith(
        f"share group {GROUP} fences member m1: The share group member has a greater member epoch"
    )
    assert groups.lines[2:] == [f"share group {GROUP} loses member m1: it has left"]
