"""Protects the timers of classic groups: the initial delay, sessions, pending members, joins and syncs, as in Kafka."""

from __future__ import annotations

from kcli.protocol import error_codes as codes
from kcli.server.coordinator.group.classic_messages import LeavingMember
from kcli.server.coordinator.group.classic_rebalances import NEW_MEMBER_JOIN_TIMEOUT_MS
from kcli.state.groups import StoredClassicGroup
from tests.server.coordinator.classic_shard import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    START_MS,
    Shard,
    code_of,
    leave,
)


def test_the_initial_delay_is_extended_while_members_join() -> None:
    shard = Shard()
    first = shard.join(version=3, rebalance_ms=8_000)
    shard.advance(2_000)
    second = shard.join(version=3, rebalance_ms=8_000)
    shard.advance(1_500)
    assert first.waits and second.waits
    shard.advance(1_000)
    third = shard.join(version=3, rebalance_ms=8_000)
    shard.advance(1_500)
    assert third.waits
    fourth = shard.join(version=3, rebalance_ms=8_000)
    shard.advance(1_999)
    assert fourth.waits  # the rebalance timeout of 8 s ends it
    shard.advance(1)
    assert [call.result.generation_id for call in (first, second, third, fourth)] == [1, 1, 1, 1]


def test_the_initial_delay_is_not_extended_without_new_members() -> None:
    shard = Shard()
    call = shard.join(version=3)
    shard.advance(DELAY_MS - 1)
    assert call.waits
    shard.advance(1)
    assert call.result.error_code == 0


def test_heartbeats_keep_a_member_and_cost_no_timer_task() -> None:
    shard = Shard()
    (member,) = shard.stable()
    tasks = shard.timer._sequence
    for _ in range(100):
        shard.advance(SESSION_MS - 1)
        assert shard.heartbeat(member) == 0
    assert shard.timer._sequence - tasks <= 100
    tasks = shard.timer._sequence
    for _ in range(1_000):
        shard.heartbeat(member)
    assert shard.timer._sequence == tasks
    shard.advance(SESSION_MS - 1)
    assert shard.group_state == "Stable"
    shard.advance(1)
    assert shard.group_state == "Empty"
    assert shard.heartbeat(member) == codes.UNKNOWN_MEMBER_ID


def test_a_session_that_expires_rebalances_the_others() -> None:
    shard = Shard()
    leader, follower = shard.stable(2)
    shard.advance(SESSION_MS - 1)
    shard.heartbeat(follower)
    shard.advance(1)
    assert shard.group_state == "PreparingRebalance"
    assert shard.heartbeat(leader) == codes.UNKNOWN_MEMBER_ID
    assert shard.join(follower.member_id).result.leader == follower.member_id


def test_members_that_wait_for_an_answer_do_not_expire() -> None:
    shard = Shard()
    leader, follower = shard.stable(2)
    call = shard.join(leader.member_id)
    while shard.group_state == "PreparingRebalance" and shard.timer.clock_ms < START_MS + 40_000:
        shard.heartbeat(follower)
        shard.advance(1_000)
    assert call.waits
    shard.join(follower.member_id)
    leader = call.result
    waiting = shard.sync(leader._replace(member_id=follower.member_id))
    for _ in range(30):
        shard.heartbeat(leader)
        shard.advance(1_000)
    shard.sync(leader, {})
    assert waiting.result.error_code == 0
    shard.advance(SESSION_MS - 1)
    assert shard.heartbeat(leader) == codes.NONE


def test_a_new_member_that_waits_too_long_is_removed() -> None:
    shard = Shard(group_initial_rebalance_delay_ms=NEW_MEMBER_JOIN_TIMEOUT_MS + 1_000)
    call = shard.join(version=3, rebalance_ms=NEW_MEMBER_JOIN_TIMEOUT_MS * 2)
    shard.advance(NEW_MEMBER_JOIN_TIMEOUT_MS - 1)
    assert call.waits
    shard.advance(1)
    assert (call.result.error_code, call.result.member_id) == (codes.UNKNOWN_MEMBER_ID, "")
    assert shard.group_state == "Empty"


def test_a_pending_member_holds_a_rebalance_up_until_it_expires() -> None:
    shard = Shard()
    (leader,) = shard.stable()
    shard.join(session_ms=6_000)
    call = shard.join(leader.member_id)
    shard.advance(5_999)
    assert call.waits
    shard.advance(1)
    assert call.result.generation_id == 2


def test_a_pending_member_id_is_forgotten() -> None:
    shard = Shard()
    pending = shard.join(session_ms=6_000).result.member_id
    assert code_of(shard.join(pending, "instance")) == codes.UNKNOWN_SERVER_ERROR
    shard.advance(6_000)
    assert code_of(shard.join(pending)) == codes.UNKNOWN_MEMBER_ID
    assert shard.group_state == "Empty"


def test_a_rebalance_goes_on_without_dynamic_members_that_do_not_join() -> None:
    shard = Shard()
    leader, follower = shard.stable(2)
    call = shard.join(follower.member_id, protocols=(("range", b"new"),))
    for _ in range(REBALANCE_MS // 5_000):
        assert call.waits and shard.heartbeat(leader) == codes.REBALANCE_IN_PROGRESS
        shard.advance(5_000)
    assert call.result.leader == follower.member_id
    assert [member.metadata for member in call.result.members] == [b"new"]


def test_static_members_stay_in_a_rebalance_and_only_their_session_removes_them() -> None:
    shard = Shard()
    members = {one.member_id[:2]: one for one in shard.stable(3, ("s1", "s2"))}
    call = shard.join(members["cl"].member_id, protocols=(("range", b"new"),))
    static = members["s1"], members["s2"]
    for _ in range(REBALANCE_MS // 5_000):
        assert [shard.heartbeat(one, one.member_id[:2]) for one in static] == [codes.REBALANCE_IN_PROGRESS] * 2
        shard.advance(5_000)
    assert call.result.leader == call.result.member_id and len(call.result.members) == 3


def test_a_rebalance_that_only_static_members_miss_waits_for_their_sessions() -> None:
    shard = Shard()
    members = {one.member_id[:2]: one for one in shard.stable(2, ("s1",))}
    leave(shard, LeavingMember(members["cl"].member_id, None))
    assert shard.group_state == "PreparingRebalance"
    for _ in range(2 * REBALANCE_MS // 5_000):
        shard.advance(5_000)
        assert shard.heartbeat(members["s1"], "s1") == codes.REBALANCE_IN_PROGRESS
    call = shard.join(members["s1"].member_id, "s1")
    assert call.result.generation_id == 2


def test_members_that_do_not_sync_in_time_are_removed() -> None:
    shard = Shard()
    leader, follower = shard.joined(2)
    shard.sync(leader, {})
    for _ in range(REBALANCE_MS // 5_000):
        assert shard.heartbeat(follower) == 0 and shard.heartbeat(leader) == 0
        shard.advance(5_000)
    assert shard.group_state == "PreparingRebalance"
    assert shard.heartbeat(follower) == codes.UNKNOWN_MEMBER_ID
    assert shard.join(leader.member_id).result.generation_id == 2


def test_a_group_whose_members_do_not_sync_becomes_empty() -> None:
    shard = Shard()
    joined = shard.joined(2)
    for _ in range(REBALANCE_MS // 5_000):
        assert [shard.heartbeat(one) for one in joined] == [0, 0]
        shard.advance(5_000)
    assert shard.group_state == "Empty"
    assert isinstance(group := shard.state.groups["g"], StoredClassicGroup) and group.generation == 2
