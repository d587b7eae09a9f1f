"""Protects the sessions of members: each member of a group has one, also after a removal that could not be written."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.coordinator import test_consumer_groups, test_streams_groups
from tests.server.coordinator.test_share_group_manager import GROUP, ShareGroups

RETRY_MS = 500


class Kind:
    """Groups of one kind: `groups`, the id of the group that heartbeats are sent to, and the session timeout."""

    def __init__(self, groups: Any, group_id: str, session_ms: int = 45_000) -> None:
        self.groups = groups
        self.group_id = group_id
        self.session_ms = session_ms
        groups.set_topic("orders", 1)
        groups.set_topic("in", 1)

    def members(self) -> list[str]:
        return list(self.groups.state.groups[self.group_id].members)

    def let_pass(self, ms: int) -> None:
        """Let time pass; each timer ends at its time."""
        for _ in range(ms // 100):
            self.groups.advance(100)


@pytest.fixture(params=["consumer", "share", "streams"])
def kind(request: pytest.FixtureRequest) -> Kind:
    made = {
        "consumer": lambda: Kind(test_consumer_groups.Groups(), test_consumer_groups.GROUP),
        "share": lambda: Kind(ShareGroups(), GROUP),
        "streams": lambda: Kind(test_streams_groups.Groups(), test_streams_groups.GROUP),
    }
    return made[request.param]()


def test_a_removal_that_cannot_be_written_is_tried_again(kind: Kind) -> None:
    kind.groups.heartbeat("m1")
    kind.groups.fails = True
    kind.let_pass(kind.session_ms + 5 * RETRY_MS)
    assert kind.members() == ["m1"]
    kind.groups.fails = False
    kind.let_pass(RETRY_MS)
    assert kind.members() == []
    kind.let_pass(RETRY_MS)
    assert not kind.groups.manager.sessions._sessions
    assert len([line for line in kind.groups.lines if "cannot write" in line]) == 1, "at most one line in a minute"


def test_a_heartbeat_ends_the_attempts_to_remove_a_member(kind: Kind) -> None:
    epoch = kind.groups.heartbeat("m1").member_epoch
    kind.groups.fails = True
    kind.let_pass(kind.session_ms + RETRY_MS)
    kind.groups.fails = False
    kind.groups.heartbeat("m1", epoch)
    kind.let_pass(kind.session_ms - RETRY_MS)
    assert kind.members() == ["m1"]


def test_a_member_whose_leave_cannot_be_written_has_a_session(kind: Kind) -> None:
    """It is removed when that ends, not at once: the client may stay in the group."""
    kind.groups.heartbeat("m1")
    kind.groups.fails = True
    kind.groups.heartbeat("m1", -1)
    kind.groups.fails = False
    assert kind.members() == ["m1"]
    kind.let_pass(kind.session_ms - RETRY_MS)
    assert kind.members() == ["m1"]
    kind.let_pass(2 * RETRY_MS)
    assert kind.members() == []


def test_a_shard_that_is_unloaded_begins_no_timers(kind: Kind) -> None:
    kind.groups.heartbeat("m1")
    kind.groups.fails = True
    write = kind.groups._write
    kind.groups.manager.sessions._write = lambda operation, respond: (kind.groups.manager.unloaded(), write(operation, respond))
    kind.let_pass(kind.session_ms + RETRY_MS)
    assert not kind.groups.manager.sessions._sessions


def test_a_member_that_does_not_revoke_is_removed_by_a_later_attempt() -> None:
    """Its heartbeats keep the session, so the timer of the rebalance itself must go on."""
    groups = test_consumer_groups.Groups("group.consumer.assignment.interval.ms=0")
    groups.set_topic("orders", 2)
    epoch = groups.heartbeat("m1").member_epoch
    groups.heartbeat("m2")
    groups.heartbeat("m1", epoch)
    assert groups.group().members["m1"].state == "UNREVOKED_PARTITIONS"
    for second in range(70):
        groups.fails = 55 < second < 65
        groups.advance(1_000)
        if not groups.fails and "m1" in groups.group().members:
            groups.heartbeat("m1", epoch)
        groups.heartbeat("m2", groups.group().members["m2"].member_epoch)
    assert list(groups.group().members) == ["m2"]
