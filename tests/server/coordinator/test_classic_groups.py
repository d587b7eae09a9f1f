"""Protects classic groups: the table of states, joins, syncs, heartbeats, leaving and each error code, as in Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from kcli.protocol import error_codes as codes
from kcli.server.coordinator.group.classic_group import PREVIOUS_STATES, ClassicGroup, ClassicGroupState
from kcli.server.coordinator.group.classic_messages import JoinResult, LeavingMember
from kcli.server.coordinator.operation import CoordinatorError
from kcli.state.group_state import GroupState
from kcli.state.groups import ShareGroup, StoredClassicGroup, StoredClassicMember
from tests.server.coordinator.classic_shard import (
    BOTH,
    DELAY_MS,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    START_MS,
    STICKY,
    Shard,
    code_of,
    error_of,
    leave,
)

# ------------------------------------------------------------------------------------------------------------- states


@pytest.mark.parametrize("target", ClassicGroupState)
@pytest.mark.parametrize("state", ClassicGroupState)
def test_only_transitions_of_the_table_are_possible(state: ClassicGroupState, target: ClassicGroupState) -> None:
    group = ClassicGroup("g", START_MS)
    group.state = state
    if state in PREVIOUS_STATES[target]:
        group.transition_to(target, START_MS + 5)
        assert (group.state, group.previous_state, group.state_timestamp_ms) == (target, state, START_MS + 5)
    else:
        with pytest.raises(AssertionError):
            group.transition_to(target, START_MS + 5)


def test_a_member_joins_syncs_and_leaves() -> None:
    shard = Shard()
    required = shard.join().result
    assert (required.error_code, required.generation_id) == (codes.MEMBER_ID_REQUIRED, -1)
    assert required.member_id.startswith("client-") and len(required.member_id) == len("client-") + 36
    assert shard.group_state == "Empty"
    call = shard.join(required.member_id)
    assert call.waits and shard.group_state == "PreparingRebalance"
    shard.advance(DELAY_MS)
    joined = call.result
    assert joined[:6] == (0, required.member_id, 1, "consumer", "range", required.member_id)
    assert joined.members == ((required.member_id, None, RANGE[0][1]),)
    assert shard.group_state == "CompletingRebalance" and shard.heartbeat(joined) == 0
    synced = shard.sync(joined, {joined.member_id: b"mine", "unknown": b"x"}).result
    assert synced == (0, "consumer", "range", b"mine")
    assert shard.group_state == "Stable" and shard.heartbeat(joined) == 0
    group = shard.state.groups["g"]
    assert isinstance(group, StoredClassicGroup)
    assert (group.generation, group.protocol, group.leader) == (1, "range", joined.member_id)
    assert group.state_timestamp_ms == START_MS + DELAY_MS
    assert list(group.members.values()) == [
        StoredClassicMember(joined.member_id, None, "client", "/127.0.0.1", REBALANCE_MS, SESSION_MS, RANGE[0][1], b"mine")
    ]
    assert shard.manager.describe("g").members[0] == (
        joined.member_id, None, "client", "/127.0.0.1", RANGE[0][1], b"mine",
    )  # fmt: skip
    assert leave(shard, LeavingMember(joined.member_id, None)) == [(0, joined.member_id, None)]
    assert shard.group_state == "Empty"
    group = shard.state.groups["g"]
    assert isinstance(group, StoredClassicGroup)
    assert (group.generation, group.protocol, group.leader, group.protocol_type) == (2, None, None, "consumer")
    assert not group.members and len(shard.records) == 3
    assert shard.timer.next_deadline_ms() is None
    assert list(shard.manager.list()) == [("g", "consumer", "Empty", "classic")]


def test_only_the_leader_gets_the_members_and_followers_wait_for_its_sync() -> None:
    shard = Shard()
    leader, follower = shard.joined(2)
    assert {member.member_id for member in leader.members} == {leader.member_id, follower.member_id}
    assert follower.members == () and follower.leader == leader.member_id
    waiting = shard.sync(follower)
    assert waiting.waits
    assert shard.sync(leader, {follower.member_id: b"f"}).result.assignment == b""
    assert waiting.result.assignment == b"f"
    assert shard.sync(follower).result.assignment == b"f"


def test_the_answers_of_a_sync_wait_for_the_record() -> None:
    shard = Shard()
    (leader,) = shard.joined()
    shard.hold = True
    call = shard.sync(leader, {leader.member_id: b"a"})
    assert call.waits and shard.group_state == "CompletingRebalance"
    shard.release()
    assert call.result.assignment == b"a" and shard.group_state == "Stable"


def test_members_that_join_a_stable_group_rebalance_it() -> None:
    shard = Shard()
    leader, follower = shard.stable(2)
    new = shard.join(shard.join().result.member_id)
    assert shard.group_state == "PreparingRebalance"
    assert shard.heartbeat(leader) == codes.REBALANCE_IN_PROGRESS
    assert code_of(shard.sync(leader)) == codes.REBALANCE_IN_PROGRESS
    calls = [shard.join(leader.member_id), shard.join(follower.member_id)]
    assert [call.result.generation_id for call in [new, *calls]] == [2, 2, 2]
    assert shard.heartbeat(leader) == codes.ILLEGAL_GENERATION


def test_a_member_that_joins_again_rebalances_only_with_news() -> None:
    shard = Shard()
    leader, follower = shard.stable(2)
    assert shard.join(follower.member_id).result == follower
    assert shard.group_state == "Stable"
    assert shard.join(leader.member_id).waits and shard.group_state == "PreparingRebalance"
    again = shard.join(follower.member_id, protocols=(("range", b"new"),)).result
    assert again.generation_id == 2 and shard.group_state == "CompletingRebalance"
    assert shard.join(leader.member_id).result.generation_id == 2
    waiting = shard.sync(again)
    assert shard.join(leader.member_id, protocols=BOTH).waits
    assert code_of(waiting) == codes.REBALANCE_IN_PROGRESS and shard.group_state == "PreparingRebalance"
    assert [member.assignment for member in shard.manager.describe("g").members] == [b"", b""]


def test_the_protocol_with_the_most_votes_wins_among_those_of_all() -> None:
    shard = Shard()
    every = [BOTH, tuple(reversed(BOTH)), (*STICKY, ("x", b"")), STICKY]
    calls = [shard.join(shard.join().result.member_id, protocols=protocols) for protocols in every[:3]]
    assert code_of(shard.join(protocols=(("x", b""),))) == codes.INCONSISTENT_GROUP_PROTOCOL
    shard.advance(DELAY_MS * 2)
    assert {call.result.protocol_name for call in calls} == {"sticky"}
    shard = Shard()
    calls = [shard.join(version=3, protocols=protocols) for protocols in (BOTH, BOTH, BOTH[::-1])]
    shard.advance(DELAY_MS * 2)
    assert {call.result.protocol_name for call in calls} == {"range"}


def test_a_client_may_repeat_a_protocol() -> None:
    shard = Shard()
    call = shard.join(version=3, protocols=RANGE * 2)
    shard.advance(DELAY_MS)
    assert call.result.protocol_name == "range"


# -------------------------------------------------------------------------------------------------------- error codes


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, codes.INVALID_GROUP_ID),
        ({"session_ms": 5_999}, codes.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, codes.INVALID_SESSION_TIMEOUT),
        ({"member_id": "m", "group_id": "new"}, codes.UNKNOWN_MEMBER_ID),
        ({"member_id": "m"}, codes.UNKNOWN_MEMBER_ID),
        ({"member_id": "m", "instance_id": "i"}, codes.UNKNOWN_MEMBER_ID),
        ({"member_id": "m", "instance_id": "static"}, codes.FENCED_INSTANCE_ID),
        ({"protocol_type": "connect"}, codes.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, codes.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (), "group_id": "new"}, codes.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "", "group_id": "new"}, codes.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": "modern"}, codes.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_refused_joins(changes: dict[str, Any], code: int) -> None:
    shard = Shard()
    shard.state.groups["modern"] = ShareGroup("modern")
    shard.stable(2, ("static",))
    before = shard.manager.describe("g")
    result = shard.join(**changes).result
    assert (result.error_code, result.generation_id) == (code, -1)
    assert result.member_id == changes.get("member_id", "")
    assert shard.manager.describe("g") == before


@pytest.mark.parametrize(
    ("changes", "arguments", "code"),
    [
        ({}, {"group_id": ""}, codes.INVALID_GROUP_ID),
        ({}, {"group_id": "new"}, codes.UNKNOWN_MEMBER_ID),
        ({"member_id": "m"}, {}, codes.UNKNOWN_MEMBER_ID),
        ({"member_id": "m"}, {"instance_id": "static"}, codes.FENCED_INSTANCE_ID),
        ({}, {"instance_id": "i"}, codes.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, {}, codes.ILLEGAL_GENERATION),
        ({"generation_id": 2}, {}, codes.ILLEGAL_GENERATION),
        ({}, {"protocol_type": "connect"}, codes.INCONSISTENT_GROUP_PROTOCOL),
        ({}, {"protocol_name": "sticky"}, codes.INCONSISTENT_GROUP_PROTOCOL),
        ({}, {"protocol_type": None, "protocol_name": None}, codes.NONE),
    ],
)
def test_refused_syncs_and_heartbeats(changes: dict[str, Any], arguments: dict[str, Any], code: int) -> None:
    shard = Shard()
    joined = next(one for one in shard.stable(2, ("static",)) if one.member_id.startswith("client"))
    joined = joined._replace(**changes)
    assert code_of(shard.sync(joined, **arguments)) == code
    if not any("protocol" in name for name in arguments):
        assert shard.heartbeat(joined, **arguments) == code


def test_leaving_has_an_error_for_each_member() -> None:
    shard = Shard()
    members = shard.stable(3, ("static",))
    dynamic = [one.member_id for one in members if one.member_id.startswith("client")]
    pending = shard.join().result.member_id
    wrong = [("m", None), ("", None), ("", "i"), ("m", "static"), (dynamic[0], "i")]
    results = leave(shard, *(LeavingMember(*one) for one in wrong))
    unknown, fenced = codes.UNKNOWN_MEMBER_ID, codes.FENCED_INSTANCE_ID
    assert [one.error_code for one in results] == [unknown, unknown, unknown, fenced, unknown]
    assert shard.group_state == "Stable"
    assert leave(shard, LeavingMember(dynamic[0], None, "bye"))[0].error_code == 0
    assert shard.group_state == "PreparingRebalance"
    call = shard.join(dynamic[1])
    results = leave(shard, LeavingMember("", "static"), LeavingMember(pending, None))
    assert results == [(0, "", "static"), (0, pending, None)]
    assert [member.member_id for member in call.result.members] == [dynamic[1]]
    assert [one.error_code for one in leave(shard, LeavingMember("m", None), group_id="new")] == [unknown]
    assert error_of(shard.manager.leave, "", []) == codes.INVALID_GROUP_ID


def test_a_member_that_leaves_gets_an_answer_to_what_it_waits_for() -> None:
    shard = Shard()
    leader, follower = shard.joined(2)
    call = shard.sync(follower)
    leave(shard, LeavingMember(follower.member_id, None))
    assert code_of(call) == codes.UNKNOWN_MEMBER_ID
    joining = shard.join(shard.join().result.member_id)
    leave(shard, LeavingMember(next(iter(shard.manager.groups["g"].awaiting_join)), None))
    assert code_of(joining) == codes.UNKNOWN_MEMBER_ID
    assert shard.join(leader.member_id).result.generation_id == 2


def test_a_group_takes_group_max_size_members() -> None:
    shard = Shard(group_max_size=2)
    first, second = shard.stable(2)
    refused = shard.join().result
    assert (refused.error_code, refused.member_id) == (codes.GROUP_MAX_SIZE_REACHED, "")
    assert shard.join(first.member_id).waits  # PreparingRebalance: those that have joined count
    pending = shard.join().result.member_id
    third = shard.join(pending)
    assert code_of(shard.join(second.member_id)) == codes.GROUP_MAX_SIZE_REACHED
    assert code_of(shard.join(second.member_id)) == codes.GROUP_MAX_SIZE_REACHED
    shard.advance(REBALANCE_MS)
    assert third.result.generation_id == 2
    assert len(shard.manager.describe("g").members) == 2


# ----------------------------------------------------------------------------------------------------- offsets, admin


def commit_code(shard: Shard, *arguments: Any, group_id: str = "g", in_transaction: bool = False) -> int:
    try:
        shard.manager.validate_offset_commit(group_id, *arguments, is_transactional=in_transaction)
    except CoordinatorError as error:
        return error.code
    return 0


def test_offsets_are_committed_by_members_of_the_generation() -> None:
    shard = Shard()
    assert commit_code(shard, "", None, -1) == 0
    assert commit_code(shard, "m", None, 1) == codes.GROUP_ID_NOT_FOUND
    leader, _ = shard.joined(2)
    me, generation = leader.member_id, leader.generation_id
    assert commit_code(shard, me, None, generation) == codes.REBALANCE_IN_PROGRESS
    assert commit_code(shard, me, None, generation, in_transaction=True) == 0
    shard.sync(leader, {})
    assert commit_code(shard, me, None, generation) == 0
    assert commit_code(shard, me, None, generation - 1) == codes.ILLEGAL_GENERATION
    assert commit_code(shard, me, None, -1) == codes.ILLEGAL_GENERATION
    assert commit_code(shard, "m", None, generation) == codes.UNKNOWN_MEMBER_ID
    assert commit_code(shard, me, "i", generation) == codes.UNKNOWN_MEMBER_ID
    assert commit_code(shard, "", None, -1) == codes.UNKNOWN_MEMBER_ID
    assert commit_code(shard, "", None, -1, in_transaction=True) == 0
    shard.join(leader.member_id)
    assert shard.group_state == "PreparingRebalance" and commit_code(shard, me, None, generation) == 0


def test_a_commit_keeps_the_session() -> None:
    shard = Shard()
    (member,) = shard.stable()
    for _ in range(5):
        shard.advance(SESSION_MS - 1)
        assert commit_code(shard, member.member_id, None, 1) == 0
    shard.advance(SESSION_MS)
    assert commit_code(shard, member.member_id, None, 1) == codes.UNKNOWN_MEMBER_ID
    assert commit_code(shard, "", None, -1) == 0


def test_offsets_of_topics_that_are_read_are_kept() -> None:
    subscription = b"\0\3\0\0\0\1\0\1t\xff\xff\xff\xff" + b"newer fields"
    shard = Shard()
    assert error_of(shard.manager.validate_offset_delete, "g") == codes.GROUP_ID_NOT_FOUND
    assert error_of(shard.manager.validate_offset_fetch, "g") == codes.GROUP_ID_NOT_FOUND
    shard.join(version=3, protocols=(("range", subscription),))
    shard.advance(DELAY_MS)
    shard.manager.validate_offset_fetch("g")
    assert [shard.manager.validate_offset_delete("g")(topic) for topic in "tu"] == [True, False]
    shard.join(version=3, protocols=(("range", b"?"),), group_id="odd")
    shard.advance(DELAY_MS)
    assert shard.manager.validate_offset_delete("odd")("t")  # not known: nothing is deleted
    shard.join(version=3, protocol_type="connect", group_id="c")
    assert error_of(shard.manager.validate_offset_delete, "c") == codes.NON_EMPTY_GROUP
    shard.advance(REBALANCE_MS * 2)
    assert not shard.manager.validate_offset_delete("c")("t") and not shard.manager.validate_offset_delete("g")("t")


def test_only_empty_groups_are_deleted() -> None:
    shard = Shard()
    shard.state.groups["modern"] = ShareGroup("modern")
    assert error_of(shard.manager.delete_check, "g") == codes.GROUP_ID_NOT_FOUND
    assert error_of(shard.manager.delete_check, "modern") == codes.GROUP_ID_NOT_FOUND
    (member,) = shard.stable()
    assert error_of(shard.manager.delete_check, "g") == codes.NON_EMPTY_GROUP
    leave(shard, LeavingMember(member.member_id, None))
    pending = shard.join().result.member_id
    shard.manager.delete_check("g")
    shard._speculative.append(shard.manager.delete("g"), 99)
    assert list(shard.manager.list()) == [] and not shard.manager.groups
    assert code_of(shard.join(pending)) == codes.UNKNOWN_MEMBER_ID


def test_a_group_with_offsets_only_is_joined_without_a_record() -> None:
    state = GroupState()
    state.groups["g"] = StoredClassicGroup("g")
    shard = Shard(state)
    assert list(shard.manager.list()) == [("g", "", "Empty", "classic")] and not shard.manager.groups
    assert commit_code(shard, "", None, -1) == 0 and commit_code(shard, "m", None, 0) == codes.UNKNOWN_MEMBER_ID
    call = shard.join(version=3)
    assert not shard.records
    shard.advance(DELAY_MS)
    assert isinstance(call.result, JoinResult) and call.result.generation_id == 1


def test_when_the_retention_of_offsets_begins() -> None:
    shard = Shard()
    shard.state.groups["simple"] = StoredClassicGroup("simple")
    shard.state.groups["old"] = StoredClassicGroup("old", "consumer")
    assert [shard.manager.find(group_id).offset_expiry_base_ms(5) for group_id in ("simple", "old")] == [5, 5]
    (member,) = shard.joined()
    group = shard.manager.find("g")
    assert group.offset_expiry_base_ms(5) is None
    shard.sync(member, {})
    assert group.offset_expiry_base_ms(5) == 5
    shard.advance(SESSION_MS)
    assert group.offset_expiry_base_ms(5) == START_MS + DELAY_MS + SESSION_MS
    shard.join(version=3, protocol_type="connect", group_id="c")
    shard.advance(DELAY_MS)
    assert shard.manager.find("c").offset_expiry_base_ms(5) is None
