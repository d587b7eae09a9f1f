"""Protects classic groups under random members, crashes, failing appends and reloads: one view of each generation."""

from __future__ import annotations

import random

import pytest

from kcli.protocol import error_codes as codes
from kcli.server.coordinator.group.classic_group import ClassicGroup, ClassicGroupState
from kcli.server.coordinator.group.classic_messages import JoinResult, LeavingMember, SyncResult
from tests.server.coordinator.classic_shard import BOTH, RANGE, STICKY, Call, Shard, leave

STEPS = 600
APPEND_ERRORS = (0, 0, 0, 0, codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR)


class Client:
    """A consumer that may forget everything, or send a request again before it has the answer to the first one."""

    def __init__(self, instance_id: str | None) -> None:
        self.instance_id = instance_id
        self.forget()

    def forget(self) -> None:
        self.member_id = ""
        self.joining: Call[JoinResult] | None = None
        self.joined: JoinResult | None = None
        self.syncing: Call[SyncResult] | None = None
        self.is_synced = False


class Trial:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shard = Shard(group_max_size=6)
        self.clients = [Client(f"s{number}" if number < 3 else None) for number in range(8)]
        # A group that was never written begins again with generation 1: then the life is another one.
        self.life = 0
        self.generation = 0
        self.protocols: dict[tuple[int, int], str | None] = {}
        self.owners: dict[tuple[int, bytes], Client] = {}

    def step(self) -> None:
        client = self.rng.choice(self.clients)
        self.shard.fail_with = self.rng.choice(APPEND_ERRORS)
        match self.rng.randrange(24):
            case 0 if self.rng.random() < 0.3:
                client.forget()
            case 1 if client.member_id and self.rng.random() < 0.3:
                leave(self.shard, LeavingMember(client.member_id, client.instance_id))
                client.forget()
            case 2 | 3 | 4 | 5:
                self.shard.advance(self.rng.choice((1, 500, 3_000, 7_000)))
            case 6 if self.rng.random() < 0.1:
                self.reload()
            case 7 if not self.shard.hold:
                self.shard.hold = True
            case 8 if self.shard.held:
                self.shard.release(self.shard.fail_with)
            case 9 | 10:
                self.act(client)
            case _:
                for one in self.rng.sample(self.clients, len(self.clients)):
                    self.act(one)
        self.check()

    def act(self, client: Client) -> None:
        if client.joining is None and client.joined is None:
            protocols = self.rng.choice((RANGE, BOTH, BOTH[::-1], STICKY, BOTH))
            version = self.rng.choice((3, 8, 9))
            client.joining = self.shard.join(client.member_id, client.instance_id, protocols=protocols, version=version)
        elif client.joining is not None:
            if not client.joining.waits:
                self.take_join(client, client.joining.result)
            elif self.rng.random() < 0.05:
                client.joining = None
        elif client.joined is not None and client.is_synced:
            self.heartbeat(client, client.joined)
        elif client.joined is not None and client.syncing is None:
            self.sync(client, client.joined)
        elif client.joined is not None and client.syncing is not None and not client.syncing.waits:
            self.take_sync(client, client.joined, client.syncing.result)

    def take_join(self, client: Client, result: JoinResult) -> None:
        client.joining = None
        if result.error_code == codes.MEMBER_ID_REQUIRED:
            client.member_id = result.member_id
        elif result.error_code:
            client.forget()
        else:
            client.member_id, client.joined, client.is_synced = result.member_id, result, False

    def sync(self, client: Client, joined: JoinResult) -> None:
        members = [member.member_id for member in joined.members]
        given = {} if joined.skip_assignment else {one: f"{joined.generation_id} {one}".encode() for one in members}
        client.syncing = self.shard.sync(joined, given, instance_id=client.instance_id, protocol_name=None)

    def take_sync(self, client: Client, joined: JoinResult, result: SyncResult) -> None:
        client.syncing = None
        if result.error_code == codes.REBALANCE_IN_PROGRESS:
            client.joined = None
            return
        if result.error_code:
            client.forget()
            return
        # The leader has given each member something of its own in this generation.
        assert result.assignment.startswith(b"%d " % joined.generation_id)
        assert self.owners.setdefault((self.life, result.assignment), client) is client
        client.is_synced = True

    def heartbeat(self, client: Client, joined: JoinResult) -> None:
        code = self.shard.heartbeat(joined, client.instance_id)
        if code == codes.REBALANCE_IN_PROGRESS:
            client.joined = None
        elif code:
            client.forget()

    def reload(self) -> None:
        """Move to another broker, which knows what is committed."""
        if self.shard.held:
            self.shard.release(codes.NOT_COORDINATOR)
        self.shard.manager.unloaded()
        for client in self.clients:
            assert client.joining is None or not client.joining.waits
            assert client.syncing is None or not client.syncing.waits
        now_ms = self.shard.timer.clock_ms
        self.shard = self.shard.reloaded(group_max_size=6)
        self.shard.timer.advance(now_ms)
        self.new_life()

    def new_life(self) -> None:
        self.life += 1
        self.generation = 0
        for client in self.clients:
            client.forget()

    def check(self) -> None:
        group = self.shard.manager.groups.get("g")
        if group is None:
            if self.generation:
                self.new_life()
            return
        assert group.generation_id >= self.generation, "the generation has gone back"
        self.generation = group.generation_id
        check_group(group)
        for client in self.clients:
            if client.joining is not None and not client.joining.waits and client.joining.result.error_code == 0:
                self.check_view(client.joining.result)

    def check_view(self, result: JoinResult) -> None:
        """Members of one generation have one protocol, and only the leader gets the members."""
        key = (self.life, result.generation_id)
        assert self.protocols.setdefault(key, result.protocol_name) == result.protocol_name
        if result.members:
            assert result.leader == result.member_id
            assert result.member_id in {member.member_id for member in result.members}


def check_group(group: ClassicGroup) -> None:
    members = set(group.members)
    assert group.leader in members if members else group.leader is None
    assert members >= {*group.awaiting_join, *group.awaiting_sync, *group.pending_sync}
    assert not members & set(group.pending_join)
    assert {one.instance_id: one.member_id for one in group.members.values() if one.instance_id} == group.static_members
    assert all(member_id == member.member_id for member_id, member in group.members.items())
    match group.state:
        case ClassicGroupState.EMPTY:
            assert not members
        case ClassicGroupState.COMPLETING_REBALANCE | ClassicGroupState.STABLE:
            assert members and all(group.protocol_name in dict(one.protocols) for one in group.members.values())
            assert group.state is ClassicGroupState.COMPLETING_REBALANCE or not group.awaiting_sync
        case ClassicGroupState.PREPARING_REBALANCE:
            assert not group.awaiting_sync and group.join_task is not None
    for member in group.members.values():
        is_waiting = member.member_id in group.awaiting_join or member.member_id in group.awaiting_sync
        assert member.session_task is not None or is_waiting, "a session is not watched"


@pytest.mark.parametrize("seed", range(30))
def test_one_view_of_each_generation(seed: int) -> None:
    trial = Trial(seed)
    for _ in range(STEPS):
        trial.step()
    assert trial.life or trial.generation > 2
    trial.reload()
