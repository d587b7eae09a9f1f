"""Protects the quorum as a whole: several cores elect a leader, replicate, commit, and recover from a lost one."""

from __future__ import annotations

import pytest

from kcli.protocol import error_codes
from kcli.server.config.loading import load_config
from kcli.server.raft.messages import NO_OFFSET, Election, Fetch, FetchAnswer, HighWatermarkMoved, SnapshotId
from kcli.server.raft.raft_manager import raft_config
from tests.server.raft.quorum_context import CLUSTER, Context, MemoryLog, Network, endpoints


def quorum(*ids: int, observers: tuple[int, ...] = (), **settings: object) -> Network:
    nodes = [Context(one, ids, random=100 * one, **settings) for one in (*ids, *observers)]  # type: ignore[arg-type]
    return Network(nodes)


@pytest.mark.parametrize("kraft_version", [0, 1])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_voters_elect_a_leader_replicate_and_commit(size: int, kraft_version: int) -> None:
    """One leader, and the same records and high watermark on all voters, with static and with dynamic voters."""
    world = quorum(*range(1, size + 1), kraft_version=kraft_version)
    world.advance(3000)
    assert world.leaders == [1]
    leader = world.nodes[1]
    last = leader.append("a", "b")
    leader.append("c")
    world.advance(1000)
    logs = [node.log.entries for node in world.nodes.values()]
    assert all(log == logs[0] for log in logs)
    assert {node.core.high_watermark for node in world.nodes.values()} == {last + 2}
    assert all(node.core.quorum.epoch == leader.core.quorum.epoch for node in world.nodes.values())


def test_the_only_voter_leads_at_once() -> None:
    """Its start stores, appends and flushes in one go, and commits without another node."""
    node = Context(1, (1,))
    assert node.state == ("leader", 1, 1)
    assert node.effects_of(HighWatermarkMoved)[-1].offset == node.log.end_offset == 3
    node.append("a")
    assert node.core.high_watermark == 4
    node.advance(60_000)
    assert node.state == ("leader", 1, 1)
    again = Context(1, (1,), stored=Election(1, 1, None), log=node.log)
    assert again.state == ("leader", 2, 1)


def test_a_leader_that_is_cut_off_is_replaced_and_its_records_are_taken_back() -> None:
    """It resigns, the others elect; what it appended alone is truncated when it returns."""
    world = quorum(1, 2, 3)
    world.advance(3000)
    old = world.nodes[1]
    old.append("committed")
    world.advance(1000)
    world.cut = lambda source, target: 1 in (source, target)
    old.append("lost", "lost")
    world.advance(15_000)
    (new,) = world.leaders
    assert new != 1
    world.nodes[new].append("kept")
    world.cut = lambda source, target: False
    world.advance(5000)
    assert [entry.value for entry in old.log.entries if isinstance(entry.value, str)] == ["committed", "kept"]
    assert old.log.entries == world.nodes[new].log.entries
    assert len({node.core.high_watermark for node in world.nodes.values()}) == 1


def test_observers_replicate_and_do_not_vote() -> None:
    """A broker finds the leader by the voters, follows it, and never asks for votes."""
    world = quorum(1, 2, 3)
    broker = Context(9, (1, 2, 3), is_controller=False, endpoints=())
    world.nodes[9] = broker
    world.advance(4000)
    assert world.leaders == [1]
    assert broker.state == ("follower", world.nodes[1].core.quorum.epoch, 1)
    assert broker.core.high_watermark == world.nodes[1].core.high_watermark
    world.cut = lambda source, target: 9 not in (source, target)
    world.advance(10_000)
    assert broker.state[0] in ("follower", "unattached")


def test_an_observer_knows_from_the_first_answer_what_it_has_to_catch_up_with() -> None:
    """Its own high watermark is not above its end, which the first of several fetches moves: it looked caught up then."""
    world = quorum(1, 2, 3)
    world.advance(4000)
    leader = world.nodes[1]
    leader.append(*"abcdefgh")
    world.advance(1000)
    committed = leader.core.high_watermark
    broker = Context(9, (1, 2, 3), is_controller=False, endpoints=())
    world.nodes[9] = broker
    (send, request), *_ = broker.sent(Fetch)
    fields = (leader.core.quorum.epoch, 1, endpoints(1))
    broker.reply(send, FetchAnswer(error_codes.FENCED_LEADER_EPOCH, *fields))
    assert broker.core.catch_up_offset == NO_OFFSET
    send, request = broker.sent(Fetch)[-1]
    first = leader.log.read(request.fetch_offset, 1)
    broker.reply(send, FetchAnswer(error_codes.NONE, *fields, committed, 0, records=first))
    assert broker.core.high_watermark == broker.log.end_offset < committed
    assert broker.core.catch_up_offset == committed
    leader.append("later")
    world.advance(4000)
    assert broker.core.high_watermark == leader.core.high_watermark > committed
    assert broker.core.catch_up_offset == committed


def test_a_follower_without_the_log_loads_the_snapshot() -> None:
    """An empty voter gets the leader's snapshot in parts, then the records behind it."""
    world = quorum(1, 2)
    world.advance(3000)
    leader = world.nodes[1]
    leader.append(*"abcdefgh")
    world.advance(1000)
    end = leader.log.end_offset
    control = tuple(record.entry for record in leader.log.control_entries())

    leader.log.snapshots[SnapshotId(end, leader.core.quorum.epoch)] = (*control, *"abcdefgh")
    leader.append("behind")
    world.nodes[2] = Context(2, (1, 2), log=MemoryLog(), fetch_snapshot_max_bytes=2)
    world.advance(6000)
    empty = world.nodes[2]
    assert empty.log.start_offset == end
    assert empty.log.entries == leader.log.entries[end:]
    assert empty.core.high_watermark == leader.core.high_watermark
    assert [one.key.node_id for one in empty.core.voters] == [1, 2]


def test_the_first_election_may_begin_at_once() -> None:
    """With kcli's option the lowest voter elects once all others know no leader; it waits if one is silent, or knows one."""
    world = quorum(1, 2, 3, elects_at_once=True)
    world.advance(100)
    assert world.leaders == [1]
    # One of them starts later.
    nodes = [Context(one, (1, 2, 3), random=100 * one, elects_at_once=True) for one in (1, 2)]
    world = Network(nodes)
    world.advance(500)
    assert world.leaders == []
    late = Context(3, (1, 2, 3), elects_at_once=True)
    late.now_ms = nodes[0].now_ms
    world.nodes[3] = late
    world.advance(100)
    assert world.leaders == [1]
    # A leader that is known is followed.
    epoch = nodes[0].core.quorum.epoch
    again = Context(2, (1, 2, 3), log=nodes[1].log, stored=nodes[1].stored, elects_at_once=True)
    again.now_ms = nodes[0].now_ms
    world.nodes[2] = again
    world.advance(1000)
    assert (world.leaders, again.state) == ([1], ("follower", epoch, 1))


def restarted(node: Context) -> Context:
    """The node after a crash that lost nothing durable."""
    twin = Context(node.config.local.node_id, log=node.log, stored=node.stored, random=node.rng.value)
    twin.now_ms = node.now_ms
    return twin


def committed(world: Network) -> list[object]:
    """What each node has committed is a prefix of the longest; return that."""
    logs = [node.log.entries[: max(0, node.core.high_watermark)] for node in world.nodes.values()]
    longest = max(logs, key=len)
    assert all(log == longest[: len(log)] for log in logs)
    return [entry.value for entry in longest if isinstance(entry.value, str)]


def test_all_voters_restart() -> None:
    """The committed records stay; a new epoch begins."""
    world = quorum(1, 2, 3)
    world.advance(3000)
    world.nodes[1].append("a")
    world.advance(1000)
    epoch = world.nodes[1].core.quorum.epoch
    world.nodes = {one: restarted(node) for one, node in world.nodes.items()}
    world.advance(8000)
    (leader,) = world.leaders
    assert world.nodes[leader].core.quorum.epoch > epoch
    world.nodes[leader].append("b")
    world.advance(1000)
    assert committed(world) == ["a", "b"]


@pytest.mark.parametrize("lost", [(3,), (3, 4)])
def test_a_majority_goes_on(lost: tuple[int, ...]) -> None:
    """Followers that are cut off do not end the epoch, also when they return (PreVote), and no second leader appears."""
    world = quorum(1, 2, 3, 4, 5)
    world.advance(3000)
    epoch = world.nodes[1].core.quorum.epoch
    world.cut = lambda source, target: (source in lost) is not (target in lost)
    world.nodes[1].append("a")
    world.advance(20_000)
    assert (world.leaders, world.nodes[1].core.quorum.epoch) == ([1], epoch)
    assert committed(world) == ["a"]
    world.cut = lambda source, target: False
    world.advance(5000)
    assert (world.leaders, world.nodes[1].core.quorum.epoch) == ([1], epoch)
    assert all(node.log.entries == world.nodes[1].log.entries for node in world.nodes.values())


def test_leaders_are_lost_one_after_the_other() -> None:
    """Each time the rest elects and commits, as long as it is a majority; then nothing is committed any more."""
    world = quorum(1, 2, 3, 4, 5)
    written = []
    for number in range(3):
        world.advance(8000)
        (leader,) = world.leaders
        written.append(f"record {number}")
        world.nodes[leader].append(written[-1])
        world.advance(1000)
        assert committed(world) == written
        del world.nodes[leader]
    world.advance(20_000)
    assert world.leaders == []


def test_the_settings_of_the_core() -> None:
    """Each key controller.quorum.* reaches the core, and kcli's own."""
    keys = {
        "election.timeout.ms": "election_timeout_ms",
        "election.backoff.max.ms": "election_backoff_max_ms",
        "fetch.timeout.ms": "fetch_timeout_ms",
        "request.timeout.ms": "request_timeout_ms",
        "retry.backoff.ms": "retry_backoff_ms",
        "fetch.max.bytes": "fetch_max_bytes",
        "fetch.snapshot.max.bytes": "fetch_snapshot_max_bytes",
    }
    node = [
        *("log.dirs=/nowhere", "node.id=1", "process.roles=controller", "controller.listener.names=CONTROLLER"),
        *("listeners=CONTROLLER://127.0.0.1:19093", "controller.quorum.bootstrap.servers=127.0.0.1:19094"),
        *("listener.security.protocol.map=CONTROLLER:PLAINTEXT", "kcli.quorum.elect.at.once=true"),
        *(f"controller.quorum.{key}={1111 + number}" for number, key in enumerate(keys)),
    ]
    core = raft_config(load_config(None, node), CLUSTER, {}).core
    assert [getattr(core, name) for name in keys.values()] == list(range(1111, 1111 + len(keys)))
    assert core.elects_at_once
