"""Protects the changes of the voters: who may change them when, in Kafka's order, and what a change does to the quorum."""

from __future__ import annotations

import pytest

from kcli.format.kafka_uuid import ZERO_UUID
from kcli.protocol import error_codes
from kcli.server.raft.messages import (
    AddRaftVoter,
    AnyAnswer,
    ApiVersionsProbe,
    ApiVersionsProbeAnswer,
    BeginQuorumEpoch,
    ChangeVotersAnswer,
    Destination,
    Fetch,
    FetchAnswer,
    KRaftVersionEntry,
    LeaderChangeEntry,
    ListenerEndpoint,
    RemoveRaftVoter,
    ReplicaKey,
    RequestFailed,
    UpdateRaftVoter,
    UpdateRaftVoterAnswer,
    VoterNode,
    VotersEntry,
)
from tests.server.raft.quorum_context import (
    CLUSTER,
    Batches,
    Context,
    Entry,
    Network,
    commit_epoch,
    endpoints,
    fetch,
    key,
    ready,
    voter,
)

OTHER_DISK = key(9).directory_id
SUPPORTED = ApiVersionsProbeAnswer(0, 0, 1)
Change = AddRaftVoter | RemoveRaftVoter | UpdateRaftVoter


def request(kind: str, **changes: object) -> Change:
    """Add voter 4, remove voter 3, or update voter 2 with another port."""
    moved = (ListenerEndpoint("CONTROLLER", "localhost", 7777),)
    made: dict[str, Change] = {
        "add": AddRaftVoter(CLUSTER, key(4), endpoints(4)),
        "remove": RemoveRaftVoter(CLUSTER, key(3)),
        "update": UpdateRaftVoter(CLUSTER, 1, key(2), moved, 0, 1),
    }
    return made[kind]._replace(**changes)  # type: ignore[arg-type, return-value]


def leader(**settings: object) -> Context:
    """The leader of three dynamic voters whose epoch is committed; node 4 observes and has caught up."""
    node = ready("leader", **settings)
    commit_epoch(node, 2, 3)
    node.ask(fetch(node, 4))
    node.forget()
    return node


def error_of(answer: AnyAnswer | None) -> int | None:
    return None if answer is None else answer.error


def probe(node: Context, answer: ApiVersionsProbeAnswer = SUPPORTED) -> None:
    """Answer the ApiVersions that was sent to the new voter."""
    node.reply(node.sent(ApiVersionsProbe)[-1][0], answer)


def voters_of(node: Context) -> list[int]:
    return [one.key.node_id for one in node.core.voters]


@pytest.mark.parametrize("kind", ["add", "remove", "update"])
def test_who_may_change_the_voters(kind: str) -> None:
    """Another cluster, not the leader, no key: refused, and nothing is appended."""
    bad = [
        ({"cluster_id": "other"}, error_codes.INCONSISTENT_CLUSTER_ID),
        ({"voter": ReplicaKey(-1, OTHER_DISK)}, error_codes.INVALID_REQUEST),
        ({"voter": ReplicaKey(4, ZERO_UUID)}, error_codes.INVALID_REQUEST),
    ]
    if kind != "remove":
        bad.append(({"endpoints": (ListenerEndpoint("SSL", "localhost", 1),)}, error_codes.INVALID_REQUEST))
    if kind == "update":
        bad += [
            ({"epoch": 0}, error_codes.FENCED_LEADER_EPOCH),
            ({"epoch": 2}, error_codes.UNKNOWN_LEADER_EPOCH),
            ({"lowest_kraft_version": 1, "highest_kraft_version": 0}, error_codes.INVALID_REQUEST),
            ({"lowest_kraft_version": 0, "highest_kraft_version": 0}, error_codes.INVALID_REQUEST),
            ({"voter": ReplicaKey(2, OTHER_DISK)}, error_codes.VOTER_NOT_FOUND),
            ({"voter": key(4)}, error_codes.VOTER_NOT_FOUND),
        ]
    node = leader()
    end = node.log.end_offset
    for changes, error in bad:
        answer = node.ask(request(kind, **changes))
        assert error_of(answer) == error, changes
        assert not isinstance(answer, ChangeVotersAnswer) or answer.message
    assert node.log.end_offset == end
    follower = ready("follower")
    assert (
        error_of(follower.ask(request(kind, **({"epoch": 5} if kind == "update" else {}))))
        == error_codes.NOT_LEADER_OR_FOLLOWER
    )


@pytest.mark.parametrize("kind", ["add", "remove", "update"])
def test_a_change_waits_for_the_one_before(kind: str) -> None:
    """Before the epoch is committed, and while another change is not: try again."""
    new = ready("leader")
    assert error_of(new.ask(request(kind))) == error_codes.REQUEST_TIMED_OUT
    for pending in ("add", "remove"):
        node = leader()
        assert node.ask(request(pending)) is None
        assert error_of(node.ask(request(kind))) == error_codes.REQUEST_TIMED_OUT
    node = leader()
    assert error_of(node.ask(request("update"))) == error_codes.NONE
    assert error_of(node.ask(request(kind))) == error_codes.REQUEST_TIMED_OUT, "the voters of the update are not committed"
    node.ask(fetch(node, 2))
    assert error_of(node.ask(request(kind))) in (None, error_codes.NONE)


def test_static_voters_are_not_changed() -> None:
    """At kraft.version 0 add and remove are not supported; an update is kept in memory."""
    node = ready("leader", kraft_version=0)
    commit_epoch(node, 2)
    end = node.log.end_offset
    assert error_of(node.ask(request("add"))) == error_codes.UNSUPPORTED_VERSION
    assert error_of(node.ask(request("remove"))) == error_codes.UNSUPPORTED_VERSION
    assert error_of(node.ask(request("update"))) == error_codes.NONE
    assert node.log.end_offset == end


# ------------------------------------------------------------------------------------------------------------------ add


def test_add_a_voter() -> None:
    """Its levels are asked for; it counts when the record is appended; the answer comes at the commit."""
    node = leader()
    assert node.ask(request("add")) is None
    adding = node._request_id
    (send, _), *_ = node.sent(ApiVersionsProbe)
    assert (send.destination.node_id, send.destination.port) == (4, 9994)
    probe(node)
    assert voters_of(node) == [1, 2, 3, 4]
    assert node.log.entries[-1].value == VotersEntry((voter(1), voter(2), voter(3), voter(4)))
    assert node.answered(adding) is None
    node.ask(fetch(node, 2))
    assert node.answered(adding) is None, "two of four are no majority"
    node.ask(fetch(node, 4))
    assert node.answered(adding) == ChangeVotersAnswer(error_codes.NONE)
    assert error_of(node.ask(request("add"))) == error_codes.DUPLICATE_VOTER
    assert error_of(node.ask(request("add", voter=ReplicaKey(4, OTHER_DISK)))) == error_codes.DUPLICATE_VOTER


def test_the_probe_goes_to_the_listener_of_the_quorum() -> None:
    """A new voter names all its listeners, in any order; only that of the quorum is the way to the others."""
    node = leader()
    node.ask(request("add", endpoints=(ListenerEndpoint("OTHER", "elsewhere", 1), *endpoints(4))))
    assert node.sent(ApiVersionsProbe)[-1][0].destination == Destination(4, "localhost", 9994)


def test_add_a_voter_answers_early() -> None:
    """AckWhenCommitted false: at the append (KIP-1186); the change still has to be committed before the next."""
    node = leader()
    assert node.ask(request("add", is_acknowledged_when_committed=False)) is None
    probe(node)
    assert node.answered() == ChangeVotersAnswer(error_codes.NONE)
    assert error_of(node.ask(request("remove"))) == error_codes.REQUEST_TIMED_OUT


@pytest.mark.parametrize("case", ["failed", "error", "levels", "lagging", "silent", "too late", "leadership"])
def test_a_voter_that_is_not_added(case: str) -> None:
    """No answer or another level, a log that is behind, no commit in time, another leader: the error says what to do."""
    node = leader()
    if case == "lagging":
        node.append("a")
        node.ask(fetch(node, 2))
        node.core.quorum.leader.observers.clear()  # type: ignore[union-attr]
        node.ask(fetch(node, 4, node.log.end_offset - 1))
    node.ask(request("add"))
    adding = node._request_id
    send = node.sent(ApiVersionsProbe)[-1][0]
    expected = error_codes.REQUEST_TIMED_OUT
    if case == "failed":
        node.handle(RequestFailed(send.correlation_id))
    elif case == "error":
        probe(node, ApiVersionsProbeAnswer(error_codes.UNSUPPORTED_VERSION, 0, 0))
    elif case == "levels":
        probe(node, ApiVersionsProbeAnswer(0, 0, 0))
        expected = error_codes.INVALID_REQUEST
    elif case == "lagging":
        probe(node)
    elif case == "silent":
        node.advance(2000)
        probe(node)
    elif case == "too late":
        probe(node)
        node.advance(2000)
    else:
        node.ask(BeginQuorumEpoch(CLUSTER, 3, 9, None, endpoints(3)))
        expected = error_codes.NOT_LEADER_OR_FOLLOWER
    answer = node.answered(adding)
    assert isinstance(answer, ChangeVotersAnswer)
    assert answer.error == expected
    assert answer.message
    assert voters_of(node) == ([1, 2, 3, 4] if case == "too late" else [1, 2, 3])


# ---------------------------------------------------------------------------------------------------- remove, and update


def test_remove_a_voter() -> None:
    """It does not count any more when the record is appended; the answer comes at the commit; it observes then."""
    node = leader()
    assert node.ask(request("remove")) is None
    removing = node._request_id
    assert voters_of(node) == [1, 2]
    node.ask(fetch(node, 3))
    assert node.answered(removing) is None, "a removed voter is an observer"
    node.ask(fetch(node, 2))
    assert node.answered(removing) == ChangeVotersAnswer(error_codes.NONE)
    for unknown in (key(3), ReplicaKey(2, OTHER_DISK)):
        assert error_of(node.ask(request("remove", voter=unknown))) == error_codes.VOTER_NOT_FOUND
    assert error_of(node.ask(request("remove", voter=key(2)))) == error_codes.NONE
    assert voters_of(node) == [1]
    assert error_of(node.ask(request("remove", voter=key(1)))) == error_codes.VOTER_NOT_FOUND, "the last voter"


def test_a_removal_that_takes_too_long() -> None:
    """The answer is an error, the record stays; a new leader decides about it."""
    for how in ("time", "leadership"):
        node = leader()
        node.ask(request("remove"))
        if how == "time":
            node.advance(2000)
            assert error_of(node.answered()) == error_codes.REQUEST_TIMED_OUT
        else:
            removing = node._request_id
            node.ask(BeginQuorumEpoch(CLUSTER, 2, 9, None, endpoints(2)))
            assert error_of(node.answered(removing)) == error_codes.NOT_LEADER_OR_FOLLOWER
        assert voters_of(node) == [1, 2]


def test_a_leader_that_removes_itself() -> None:
    """It leads, and does not count itself, until the others have committed that; then it resigns."""
    node = leader()
    assert node.ask(request("remove", voter=key(1))) is None
    assert node.ask(fetch(node, 2)) is not None
    removing = node._request_id - 1
    assert node.answered(removing) is None
    assert node.state[0] == "leader"
    node.ask(fetch(node, 3))
    assert node.answered(removing) == ChangeVotersAnswer(error_codes.NONE)
    assert node.state[0] == "resigned"
    assert not node.core.is_voter


def test_update_a_voter() -> None:
    """Endpoints and levels are in the log; the answer comes at the append; the same again writes nothing."""
    node = leader()
    moved = (ListenerEndpoint("CONTROLLER", "localhost", 7777),)
    assert node.ask(request("update")) == UpdateRaftVoterAnswer(error_codes.NONE, 1, 1, endpoints(1))
    assert node.core.voters[1] == VoterNode(key(2), moved, 0, 1)
    node.ask(fetch(node, 2))
    end = node.log.end_offset
    assert error_of(node.ask(request("update"))) == error_codes.NONE
    assert node.log.end_offset == end


def test_updates_count_for_check_quorum() -> None:
    """A voter that updates follows this leader."""
    node = leader()
    node.advance(2900)
    node.ask(request("update"))
    node.advance(2900)
    assert node.state[0] == "leader"


# ------------------------------------------------------------------------------------------------------- what others do


@pytest.mark.parametrize("kraft_version", [0, 1])
def test_a_follower_sends_its_endpoints(kraft_version: int) -> None:
    """At kraft.version 0 once to each leader, at 1 if the log has others; after the fetch timeout, in place of a Fetch."""
    moved = (ListenerEndpoint("CONTROLLER", "elsewhere", 1),)
    node = ready("follower", kraft_version=kraft_version, endpoints=moved)

    def fetched() -> None:
        node.reply(node.sent(Fetch)[-1][0], FetchAnswer(error_codes.NONE, node.state[1], 2, high_watermark=0))

    node.advance(1900)
    fetched()
    node.advance(150)
    assert not node.sent(UpdateRaftVoter), "one request at a time"
    fetched()
    ((send, update),) = node.sent(UpdateRaftVoter)
    assert (send.destination.node_id, update) == (2, UpdateRaftVoter(CLUSTER, 5, key(1), moved, 0, 1))
    fetches = len(node.sent(Fetch))
    node.reply(send, UpdateRaftVoterAnswer(error_codes.NONE, 5, 2, endpoints(2)))
    assert len(node.sent(Fetch)) == fetches + 1
    node.advance(1900)
    fetched()
    node.advance(150)
    fetched()
    assert len(node.sent(UpdateRaftVoter)) == (1 if kraft_version == 0 else 2)
    node.ask(BeginQuorumEpoch(CLUSTER, 3, 6, key(1), endpoints(3)))
    node.forget()
    node.advance(1900)
    assert node.state == ("follower", 6, 3)


def test_an_update_that_changes_the_epoch() -> None:
    """An answer with a higher epoch is followed; a peer without the request ends it at kraft.version 0."""
    for answer in (UpdateRaftVoterAnswer(error_codes.FENCED_LEADER_EPOCH, 8, 3, endpoints(3)), None):
        node = ready("follower", kraft_version=0)
        node.advance(1900)
        node.reply(node.sent(Fetch)[-1][0], FetchAnswer(error_codes.NONE, 5, 2, high_watermark=0))
        node.advance(150)
        node.reply(node.sent(Fetch)[-1][0], FetchAnswer(error_codes.NONE, 5, 2, high_watermark=0))
        send, _ = node.sent(UpdateRaftVoter)[-1]
        if answer is None:
            node.handle(RequestFailed(send.correlation_id, error_codes.UNSUPPORTED_VERSION))
            assert node.core.has_updated_leader
        else:
            node.reply(send, answer)
            assert node.state == ("follower", 8, 3)


@pytest.mark.parametrize(
    ("own", "settings", "expected"),
    [
        (None, {}, AddRaftVoter(CLUSTER, key(9), endpoints(9), 2000, False)),
        (VoterNode(ReplicaKey(9, key(8).directory_id), endpoints(9), 0, 1), {}, "remove"),
        (None, {"joins_automatically": False}, None),
        (None, {"is_controller": False}, None),
        (None, {"kraft_version": 0}, None),
    ],
)
def test_an_observer_that_joins(own: VoterNode | None, settings: dict[str, object], expected: object) -> None:
    """A controller with auto.join adds itself, after it has removed itself with the disk that it lost (KIP-1186)."""
    node = Context(9, (1, 2, 3), **{"joins_automatically": True, **settings})  # type: ignore[arg-type]
    if own is not None:
        node.core.history.reload(node.log.control_entries())
        voters = VotersEntry((*node.core.voters, own))
        node.log.entries.append(Entry(1, voters, 0))
        node.core.history.reload(node.log.control_entries())
    node.ask(BeginQuorumEpoch(CLUSTER, 2, 5, None, endpoints(2)))
    for _ in range(2):
        node.advance(1100)
        if node.sent(Fetch):
            node.reply(node.sent(Fetch)[-1][0], FetchAnswer(error_codes.NONE, 5, 2, high_watermark=0))
    sent = [*node.sent(AddRaftVoter), *node.sent(RemoveRaftVoter)]
    if expected is None:
        assert sent == []
        return
    ((send, made),) = sent
    assert send.destination.node_id == 2
    assert made == (RemoveRaftVoter(CLUSTER, own.key) if own is not None else expected)
    if own is not None:
        node.reply(send, ChangeVotersAnswer(error_codes.NONE))
        without = Batches((Entry(1, VotersEntry(tuple(map(voter, (1, 2, 3)))), 1),))
        node.reply(node.sent(Fetch)[-1][0], FetchAnswer(error_codes.NONE, 5, 2, records=without))
        for ms in (1500, 600):
            node.advance(ms)
            node.reply(node.sent(Fetch)[-1][0], FetchAnswer(error_codes.NONE, 5, 2))
        assert [one for _, one in node.sent(AddRaftVoter)] == [AddRaftVoter(CLUSTER, key(9), endpoints(9), 2000, False)]


def test_the_start_of_an_epoch() -> None:
    """Voters that are only in 0-0.checkpoint, or a leader that has moved, follow LeaderChange; not at kraft.version 0."""
    node = ready("leader")
    everyone = (voter(1), voter(2), voter(3))
    change = LeaderChangeEntry(1, (1, 2, 3), (1, 2))
    assert [entry.value for entry in node.log.entries] == [change, KRaftVersionEntry(1), VotersEntry(everyone)]
    assert len({entry.batch for entry in node.log.entries}) == 1
    again = ready("leader", log=node.log, endpoints=(ListenerEndpoint("CONTROLLER", "moved", 5),))
    values = [entry.value for entry in again.log.entries]
    assert [type(value) for value in values[3:]] == [LeaderChangeEntry, KRaftVersionEntry, VotersEntry]
    assert again.core.voters[0].endpoints[0].host == "moved"
    third = ready("leader", log=again.log, endpoints=(ListenerEndpoint("CONTROLLER", "moved", 5),))
    assert len(third.log.entries) == 7
    static = ready("leader", kraft_version=0)
    assert [type(entry.value) for entry in static.log.entries] == [LeaderChangeEntry]


def test_upgrade_to_dynamic_voters() -> None:
    """Once each voter has sent levels that have 1: one batch with the version and the voters and their directories."""
    node = ready("leader", kraft_version=0)
    core = node.core
    assert core.upgrade_kraft_version(1, node.now_ms).error == error_codes.INVALID_UPDATE_VERSION
    commit_epoch(node, 2)
    for one, highest in ((2, 1), (3, 0)):
        node.ask(UpdateRaftVoter(CLUSTER, 1, key(one), endpoints(one), 0, highest))
    assert "3 does not support level 1" in core.upgrade_kraft_version(1, node.now_ms).message
    node.ask(UpdateRaftVoter(CLUSTER, 1, key(3), endpoints(3), 0, 1))
    end = node.log.end_offset
    assert core.upgrade_kraft_version(1, node.now_ms, validates_only=True).error == error_codes.NONE
    assert node.log.end_offset == end
    assert core.upgrade_kraft_version(1, node.now_ms).error == error_codes.NONE
    assert [entry.value for entry in node.log.entries[end:]] == [
        KRaftVersionEntry(1),
        VotersEntry((voter(1), voter(2), voter(3))),
    ]
    assert core.upgrade_kraft_version(1, node.now_ms).error == error_codes.NONE
    assert core.upgrade_kraft_version(0, node.now_ms).error == error_codes.INVALID_UPDATE_VERSION
    assert ready("follower").core.upgrade_kraft_version(1, 0).error == error_codes.NOT_LEADER_OR_FOLLOWER


def test_a_quorum_grows_and_shrinks() -> None:
    """From one voter to three by observers that join, then the leader is removed and another leads."""
    nodes = [Context(1, (1,))]
    bootstrap = nodes[0].log.snapshots
    world = Network(nodes)
    for one in (2, 3):
        joining = Context(one, (1,), joins_automatically=True)
        assert joining.log.snapshots == bootstrap
        world.nodes[one] = joining
        world.advance(12_000)
    assert all(voters_of(node) == [1, 2, 3] for node in world.nodes.values())
    (chief,) = world.leaders
    assert chief == 1
    world.nodes[1].ask(RemoveRaftVoter(CLUSTER, key(1)))
    world.advance(10_000)
    (chief,) = world.leaders
    assert chief in (2, 3)
    assert voters_of(world.nodes[chief]) == [2, 3]
    assert world.nodes[1].state[0] == "follower"
    assert world.nodes[1].log.entries == world.nodes[chief].log.entries
