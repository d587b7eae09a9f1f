"""Protects static members, failing appends, load and unload of classic groups, as in Kafka."""

from __future__ import annotations

import pytest

from kcli.protocol import error_codes as codes
from kcli.server.coordinator.group.classic_group_manager import write_classic
from kcli.server.coordinator.group.classic_messages import LeavingMember
from kcli.server.coordinator.group.classic_rebalances import NEW_MEMBER_JOIN_TIMEOUT_MS
from kcli.server.coordinator.operation import CoordinatorError
from kcli.state.groups import StoredClassicGroup
from tests.server.coordinator.classic_shard import (
    BOTH,
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Shard,
    code_of,
    error_of,
    leave,
)

# ------------------------------------------------------------------------------------------------------ static members


def test_a_static_member_takes_its_place_without_a_rebalance() -> None:
    shard = Shard()
    members = shard.stable(2, ("s1", "s2"))
    leader, follower = members
    again = shard.join(instance_id=follower.member_id[:2], version=9).result
    assert (again.error_code, again.generation_id, again.leader) == (0, 1, leader.member_id)
    assert again.member_id != follower.member_id and not again.skip_assignment and not again.members
    assert shard.group_state == "Stable"
    assert shard.sync(again, instance_id=again.member_id[:2]).result.assignment == follower.member_id.encode()
    assert shard.heartbeat(follower, follower.member_id[:2]) == codes.FENCED_INSTANCE_ID
    group = shard.state.groups["g"]
    assert isinstance(group, StoredClassicGroup) and set(group.members) == {leader.member_id, again.member_id}
    shard.advance(SESSION_MS - 1)
    shard.heartbeat(leader, leader.member_id[:2])
    shard.advance(1)
    assert shard.heartbeat(again, again.member_id[:2]) == codes.UNKNOWN_MEMBER_ID


def test_a_static_leader_that_starts_again_skips_the_assignment() -> None:
    shard = Shard()
    leader = shard.stable(2, ("s1", "s2"))[0]
    again = shard.join(instance_id=leader.member_id[:2], version=9).result
    assert again.skip_assignment and again.leader == again.member_id and len(again.members) == 2
    older = shard.join(instance_id=leader.member_id[:2], version=8).result
    assert not older.skip_assignment and older.leader == again.member_id and older.members == ()


def test_a_static_member_rebalances_a_group_that_has_to() -> None:
    shard = Shard()
    leader, follower = shard.stable(2, ("s1", "s2"))
    shard.manager.groups["g"].protocol_name = "other"
    assert shard.join(instance_id=follower.member_id[:2]).waits and shard.group_state == "PreparingRebalance"
    shard = Shard()
    leader, follower = shard.joined(2, ("s1", "s2"))
    waiting = shard.sync(follower, instance_id=follower.member_id[:2])
    assert shard.join(instance_id=follower.member_id[:2]).waits
    assert code_of(waiting) == codes.FENCED_INSTANCE_ID and shard.group_state == "PreparingRebalance"
    replaced = shard.join(leader.member_id, leader.member_id[:2]).result
    assert replaced.generation_id == 2 and follower.member_id not in {one.member_id for one in replaced.members}


def test_a_static_member_that_waits_is_fenced_by_its_successor() -> None:
    shard = Shard()
    first = shard.join(instance_id="s1")
    second = shard.join(instance_id="s1")
    assert code_of(first) == codes.FENCED_INSTANCE_ID
    shard.advance(DELAY_MS)
    assert second.result.error_code == 0 and len(second.result.members) == 1


def test_a_static_member_whose_record_is_lost_keeps_its_old_id() -> None:
    shard = Shard()
    leader, follower = shard.stable(2, ("s1", "s2"))
    before = shard.manager.describe("g")
    shard.fail_with = codes.COORDINATOR_NOT_AVAILABLE
    result = shard.join(instance_id=follower.member_id[:2], rebalance_ms=1).result
    assert (result.error_code, result.member_id, result.leader) == (shard.fail_with, "", leader.member_id)
    after = shard.manager.describe("g")
    assert sorted(after.members) == sorted(before.members) and after.state == "Stable"
    assert shard.manager.groups["g"].members[follower.member_id].rebalance_timeout_ms == REBALANCE_MS
    assert shard.heartbeat(follower, follower.member_id[:2]) == 0
    shard.advance(SESSION_MS)
    assert shard.group_state == "Empty"  # the sessions are watched


def test_a_static_member_whose_record_is_awaited_may_be_replaced_or_rebalanced() -> None:
    shard = Shard()
    leader, follower = shard.stable(2, ("s1", "s2"))
    shard.hold = True
    first = shard.join(instance_id=follower.member_id[:2])
    second = shard.join(instance_id=follower.member_id[:2])
    assert code_of(first) == codes.FENCED_INSTANCE_ID and second.waits
    assert shard.join(leader.member_id, leader.member_id[:2]).result.generation_id == 2 == second.result.generation_id
    shard.release(codes.NOT_COORDINATOR)
    assert second.result.error_code == 0


# ------------------------------------------------------------------------------------------------------------- appends


def test_a_new_group_whose_record_is_lost_does_not_exist() -> None:
    shard = Shard()
    shard.fail_with = codes.COORDINATOR_NOT_AVAILABLE
    assert code_of(shard.join(version=3)) == codes.COORDINATOR_NOT_AVAILABLE
    assert not shard.manager.groups and not shard.state.groups
    assert error_of(shard.manager.describe, "g") == codes.GROUP_ID_NOT_FOUND
    shard.advance(REBALANCE_MS)
    shard.fail_with = 0
    assert shard.join(version=3).waits


@pytest.mark.parametrize("code", [codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR, codes.UNKNOWN_SERVER_ERROR])
def test_an_assignment_that_is_lost_rebalances(code: int) -> None:
    shard = Shard()
    leader, follower = shard.joined(2)
    waiting = shard.sync(follower)
    shard.fail_with = code
    assert code_of(shard.sync(leader, {follower.member_id: b"f"})) == code_of(waiting) == code
    assert shard.group_state == "PreparingRebalance"
    assert [member.assignment for member in shard.manager.describe("g").members] == [b"", b""]
    shard.fail_with = 0
    calls = [shard.join(one.member_id) for one in (leader, follower)]
    assert [call.result.generation_id for call in calls] == [2, 2]


def test_an_assignment_that_comes_too_late_is_ignored() -> None:
    shard = Shard()
    (leader,) = shard.joined()
    shard.hold = True
    call = shard.sync(leader, {leader.member_id: b"late"})
    shard.join(leader.member_id, protocols=BOTH)
    assert code_of(call) == codes.REBALANCE_IN_PROGRESS
    shard.release()
    assert shard.group_state == "CompletingRebalance"
    assert shard.manager.describe("g").members[0].assignment == b""


def test_an_empty_group_whose_record_is_lost_is_empty_here() -> None:
    shard = Shard()
    shard.stable()
    shard.fail_with = codes.NOT_COORDINATOR
    shard.advance(SESSION_MS)
    assert shard.group_state == "Empty" and "cannot write" in shard.lines[-1]
    assert isinstance(group := shard.state.groups["g"], StoredClassicGroup) and group.members
    assert shard.join(version=3).waits


def test_an_operation_that_is_not_executed_is_refused() -> None:
    refused: list[CoordinatorError] = []
    error = CoordinatorError(codes.NOT_COORDINATOR, "moved")
    write_classic(lambda decide, respond: respond(error, 0), lambda shard: pytest.fail(), refused.append)
    assert refused == [error]


# -------------------------------------------------------------------------------------------------------- load, unload


def test_a_loaded_group_goes_on() -> None:
    shard = Shard()
    leader, follower = shard.stable(2)
    before = shard.manager.describe("g")
    shard.manager.unloaded()
    other = shard.reloaded()
    assert other.manager.describe("g") == before
    assert other.heartbeat(leader) == other.heartbeat(follower) == 0
    assert other.sync(follower).result.assignment == follower.member_id.encode()
    other.advance(SESSION_MS - 1)
    other.heartbeat(leader)
    other.advance(1)
    assert other.heartbeat(leader) == codes.REBALANCE_IN_PROGRESS
    assert other.heartbeat(follower) == codes.UNKNOWN_MEMBER_ID


def test_a_loaded_group_that_is_too_large_rebalances() -> None:
    shard = Shard()
    members = shard.stable(3)
    other = shard.reloaded(group_max_size=2)
    assert other.group_state == "PreparingRebalance"
    calls = [other.join(one.member_id) for one in members]
    assert calls[0].waits and calls[1].waits and code_of(calls[2]) == codes.GROUP_MAX_SIZE_REACHED
    other.advance(REBALANCE_MS)
    assert [call.result.generation_id for call in calls[:2]] == [2, 2]


def test_an_empty_group_is_joined_after_a_load_in_its_next_generation() -> None:
    shard = Shard()
    (member,) = shard.stable()
    leave(shard, LeavingMember(member.member_id, None))
    other = shard.reloaded()
    assert not other.manager.groups and other.group_state == "Empty"
    call = other.join(version=3)
    other.advance(DELAY_MS)
    assert call.result.generation_id == 3 and not other.records


def test_unloading_answers_what_waits_and_cancels_all_timers() -> None:
    shard = Shard()
    shard.join(group_id="c")
    leader, follower = shard.joined(2)
    shard.hold = True
    syncing = [shard.sync(follower), shard.sync(leader, {})]
    joining = [shard.join(version=3, group_id="d"), shard.join(version=3, group_id="e")]
    shard.manager.unloaded()
    shard.release(codes.NOT_COORDINATOR)
    assert [code_of(call) for call in (*joining, *syncing)] == [codes.NOT_COORDINATOR] * 4
    lines = len(shard.lines)
    shard.advance(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert shard.timer.next_deadline_ms() is None and len(shard.lines) == lines
