"""Protects groups with members of both protocols over time: who is late is removed, and nothing is lost by a failed migration.

A whole node in virtual time, with requests as in the exchanges that Kafka's answers are compared with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcli.protocol import error_codes
from kcli.server.replication.partition import Partition, PartitionError
from tests.oracle.migration_exchanges import SETTINGS, Exchange, Joined, assignment, prepare
from tests.server.coordinator.test_migration_answers import NodeAsker
from tests.server.whole_node import WholeNode

ALL = {"orders": [0, 1, 2, 3, 4, 5]}
IN_PROGRESS = error_codes.REBALANCE_IN_PROGRESS


class Group(Exchange):
    """A group on a node of its own."""

    def __init__(self, directory: Path, *overrides: str) -> None:
        self.node = WholeNode(directory / "data", *SETTINGS, *overrides)
        asker = NodeAsker(self.node)
        super().__init__(asker, prepare(asker), "g")

    def last(self) -> Any:
        return self.answers[-1]

    def kind(self) -> str:
        """The kind and the state of the group."""
        self.describe("now")
        (listed,) = self.last()[1]
        return f"{listed[2]} {listed[1]}"

    def member_ids(self) -> list[str]:
        """The members of the consumer group."""
        self.describe("now")
        return [member[0] for member in self.answers[-3][-1]]

    def let_pass(self, seconds: int, *beating: Joined) -> None:
        """Let time pass, while some members send heartbeats."""
        for _ in range(seconds // 5):
            self.node.advance(5_000)
            for joined in beating:
                self.beat("alive", joined)

    def classic(self) -> Joined:
        """A stable classic group with one member."""
        (joined,) = self.stable((ALL,))
        return joined


@pytest.fixture
def group(tmp_path: Path) -> Any:
    made = Group(tmp_path)
    yield made
    made.node.stop()


def test_a_member_must_join_and_sync_in_time(group: Group) -> None:
    """Heartbeats alone do not keep a member of the classic protocol in a group that waits for its join, or its sync."""
    first = group.classic()
    group.heartbeat("consumer", "c1")
    assert group.beat("must join", first) == IN_PROGRESS
    group.let_pass(40, first)
    group.heartbeat("consumer", "c1", 2)
    group.let_pass(15, first)
    assert len(group.member_ids()) == 2
    group.let_pass(10, first)
    assert group.member_ids() == ["c1"]
    second = group.join("joins, and does not sync", group.join("id").member_id, owned={})
    for _ in range(11):
        group.let_pass(5, second)
        group.heartbeat("consumer", "c1")
    assert len(group.member_ids()) == 2
    group.let_pass(10, second)
    assert group.member_ids() == ["c1"]


def test_sessions_have_the_timeouts_of_their_protocols(group: Group) -> None:
    """30 s for the member of the classic protocol, 45 s for the other one, whose end makes the group classic again."""
    group.classic()
    group.heartbeat("consumer", "c1")
    group.let_pass(25)
    group.heartbeat("consumer", "c1", 2)
    assert len(group.member_ids()) == 2
    group.let_pass(10)
    assert group.member_ids() == ["c1"]
    joined = group.join("another", group.join("id").member_id)
    group.sync("another", joined)
    group.let_pass(45, joined)
    assert group.kind() == "classic PreparingRebalance"
    assert group.beat("must join", joined) == IN_PROGRESS
    joined = group.join("joins", joined.member_id)
    group.sync("leads", joined, {joined.member_id: assignment(ALL)})
    group.let_pass(60, joined)
    assert group.kind() == "classic Stable"


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [
        ("disabled", False, False),
        ("UPGRADE", True, False),
        ("downgrade", False, True),
        ("bidirectional", True, True),
    ],
)
def test_policies(tmp_path: Path, policy: str, upgrades: bool, downgrades: bool) -> None:
    """group.consumer.migration.policy says which conversions there are; members of both protocols may meet in any case."""
    group = Group(tmp_path, f"group.consumer.migration.policy={policy}")
    joined = group.classic()
    group.heartbeat("consumer", "c1")
    text = "Cannot upgrade classic group g to consumer group because online upgrade is disabled."
    assert group.last()[1:3] == ([0, None] if upgrades else [error_codes.GROUP_ID_NOT_FOUND, text])
    if not upgrades:
        group.leave("leaves", (joined.member_id, None))
        group.heartbeat("consumer", "c1")
        group.join("classic", group.join("id").member_id)
    group.heartbeat("leaves", "c1", -1)
    assert group.kind() == ("classic PreparingRebalance" if downgrades else "consumer Assigning")
    group.node.stop()


def test_groups_that_are_too_large(tmp_path: Path) -> None:
    """A group is converted only if it fits into a group of the other kind."""
    group = Group(tmp_path, "group.max.size=1", "group.consumer.max.size=2")
    group.heartbeat("consumer", "c1")
    first = group.join("first", group.join("id").member_id)
    assert first.generation == 3
    group.join("full", group.join("id").member_id)
    assert group.last()[1] == error_codes.GROUP_MAX_SIZE_REACHED
    group.heartbeat("leaves", "c1", -1)
    assert group.kind() == "classic PreparingRebalance"
    group.node.stop()


def failing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let every append fail."""

    def fail(*arguments: Any, **fields: Any) -> None:
        raise PartitionError(error_codes.NOT_ENOUGH_REPLICAS, "too few replicas")

    monkeypatch.setattr(Partition, "append", fail)
    return monkeypatch


def test_an_upgrade_that_cannot_be_written(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The classic group goes on: its members keep their generation, and are removed when their sessions end."""
    joined = group.classic()
    with monkeypatch.context() as patched:
        failing(patched)
        group.heartbeat("consumer", "c1")
    assert group.last()[1] == error_codes.COORDINATOR_NOT_AVAILABLE
    assert group.kind() == "classic Stable"
    group.let_pass(60, joined)
    assert group.last() == ["alive", 0]
    group.heartbeat("consumer", "c1")
    assert group.last()[1] == 0
    assert group.kind() == "consumer Reconciling"


def test_a_refused_upgrade_does_not_end_an_empty_classic_group(group: Group) -> None:
    """A client that got a member id from the classic group joins with it."""
    member_id = group.join("id").member_id
    group.heartbeat("refused", "c1", subscribed_topic_names=None, subscribed_topic_regex="((")
    assert group.last()[1] == error_codes.INVALID_REGULAR_EXPRESSION
    assert group.join("joins", member_id).member_id == member_id
    assert group.last()[1] == 0


def test_a_downgrade_that_cannot_be_written(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer group goes on with all of its members, and their sessions."""
    joined = group.classic()
    group.heartbeat("consumer", "c1")
    with monkeypatch.context() as patched:
        failing(patched)
        group.heartbeat("leaves", "c1", -1)
    assert group.last()[1] == error_codes.COORDINATOR_NOT_AVAILABLE
    assert len(group.member_ids()) == 2
    assert group.beat("must join", joined) == IN_PROGRESS
    group.let_pass(45, joined)
    assert group.kind() == "classic PreparingRebalance"


def test_a_classic_group_that_replaces_an_empty_one_and_cannot_be_written(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The empty consumer group stays, and the next join makes the classic group."""
    group.heartbeat("consumer", "c1")
    group.heartbeat("leaves", "c1", -1)
    with monkeypatch.context() as patched:
        failing(patched)
        group.join("not written")
        group.node.advance(10)
    assert group.kind() == "consumer Empty"
    assert group.classic().generation == 1


def test_a_restart_in_a_group_of_both_protocols(tmp_path: Path) -> None:
    """The next coordinator knows which members use the classic protocol, and what they have."""
    group = Group(tmp_path)
    first = group.classic()
    group.heartbeat("consumer", "c1")
    first = group.join("revokes", first.member_id, owned=ALL)
    owned = group.sync("revokes", first)
    group.node.stop()
    node = WholeNode(tmp_path / "data", *SETTINGS)
    group.asker = NodeAsker(node)
    prepare(group.asker)
    assert group.beat("revokes", first) == IN_PROGRESS
    first = group.join("has revoked", first.member_id, owned=owned)
    assert group.sync("has revoked", first) == {"orders": [0, 1, 2]}
    group.heartbeat("gets", "c1", 2)
    assert group.last()[-1] == [["orders", [3, 4, 5]]]
    node.stop()
