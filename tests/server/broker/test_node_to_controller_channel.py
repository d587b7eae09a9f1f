"""Protects what a broker does when the controller is another node, is not known, or moves while a client waits."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kcli.network.events import ClosePeer, NodeRole, Peer, PeerAddress, PeerClosed, PeerNode, ResponseReceived, SendRequest
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ADD_RAFT_VOTER,
    API_KEYS,
    API_VERSIONS,
    BROKER_HEARTBEAT,
    CREATE_TOPICS,
    ENVELOPE,
    REMOVE_RAFT_VOTER,
)
from kcli.protocol.framing import encode_request, encode_response
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.broker.node_to_controller_channel import HEARTBEAT, ChannelTimes, NodeToControllerChannelManager
from kcli.server.events import CloseConnection, Connection, SendResponse
from tests.network.test_peers import START_MS, PeersUnderTest, api_versions

CLOSED_2 = ClosePeer(Peer(PeerNode(2, NodeRole.CONTROLLER), "CONTROLLER", PeerAddress("host2", 9093)))


class Channel(PeersUnderTest):
    """The channel of broker 1; controllers 1 to 3 have addresses."""

    def __init__(self, controller_id: int) -> None:
        super().__init__()
        self.controller_id = controller_id
        self.addresses = {PeerNode(node_id, NodeRole.CONTROLLER): PeerAddress(f"host{node_id}", 9093) for node_id in (2, 3)}
        self.channel = NodeToControllerChannelManager(
            self.peers, self.effects, lambda: self.controller_id, "CONTROLLER", ChannelTimes()
        )
        self.client = Connection(1, "PLAINTEXT", "10.0.0.1")

    def forward(self, key: int = CREATE_TOPICS, frame: bytes = b"the request") -> None:
        context = RequestContext(cast(Any, None), cast(Any, None), self.client, API_KEYS[key], 7, 5, "c", self.now_ms)
        self.channel.forward(context, memoryview(frame))

    def take(self) -> list[SendRequest]:
        found = [effect for effect in self.effects if isinstance(effect, SendRequest)]
        self.effects[:] = [effect for effect in self.effects if not isinstance(effect, SendRequest)]
        return found

    def serve(self, key: int, version: int, response: Message, node_id: int, channel: str = "") -> None:
        """Answer the one request that was sent, which must be for that node, on the connection of that channel."""
        (request,) = self.take()
        assert request.peer.destination == PeerNode(node_id, NodeRole.CONTROLLER, channel)
        assert int.from_bytes(request.frame[4:6], "big") == key
        frame = bytes(encode_response(request.request_id, API_KEYS[key], version, response))[4:]
        self.peers.response_received(ResponseReceived(request.request_id, frame), self.now_ms)

    def connect(self, node_id: int, channel: str = "") -> None:
        self.serve(API_VERSIONS, 4, api_versions({"_58": (0, 0), "_63": (0, 1)}), node_id, channel)

    def envelope(self, node_id: int, error_code: int = 0, data: bytes | None = b"the answer") -> None:
        self.serve(ENVELOPE, 0, API_KEYS[ENVELOPE].response.new(response_data=data, error_code=error_code), node_id)


def test_a_request_of_a_client_goes_to_another_node_and_its_answer_to_the_client() -> None:
    channel = Channel(2)
    channel.forward()
    channel.connect(2)
    channel.envelope(2)
    assert channel.effects == [SendResponse(channel.client, b"\0\0\0\x0athe answer")]


def test_a_controller_that_is_elected_while_a_client_waits_gets_its_request() -> None:
    """Neither a time without a controller nor a node that is not it any more is the client's to see."""
    channel = Channel(-1)
    channel.forward()
    channel.advance(400)
    assert channel.effects == []
    channel.controller_id = 2
    channel.advance(1000)
    channel.connect(2)
    channel.envelope(2, error_codes.NOT_CONTROLLER, None)
    assert channel.effects == []
    channel.controller_id = 3
    channel.advance(2000)
    channel.connect(3)
    channel.envelope(3)
    assert channel.effects == [CLOSED_2, SendResponse(channel.client, b"\0\0\0\x0athe answer")]


@pytest.mark.parametrize("key", [ADD_RAFT_VOTER, REMOVE_RAFT_VOTER])
def test_a_change_of_the_voters_is_sent_again_until_the_leader_answers(key: int) -> None:
    """Kafka's controllers put NOT_LEADER_OR_FOLLOWER of these requests into the client's response, not into the envelope's."""
    api, channel = API_KEYS[key], Channel(2)
    channel.forward(key, bytes(encode_request(5, api, 0, "c", api.request.new())[4:]))
    channel.connect(2)
    moved, done = (
        bytes(encode_response(5, api, 0, api.response.new(error_code=code))[4:])
        for code in (error_codes.NOT_LEADER_OR_FOLLOWER, error_codes.NONE)
    )
    channel.envelope(2, data=moved)
    assert channel.effects == []
    channel.controller_id = 3
    channel.advance(1000)
    channel.connect(3)
    channel.envelope(3, data=done)
    assert channel.effects == [CLOSED_2, SendResponse(channel.client, len(done).to_bytes(4, "big") + done)]


def test_what_a_paused_controller_has_not_answered_is_sent_to_the_next_one() -> None:
    """At once, also requests that wait for the connection; the broker's own fail, and their callers repeat them."""
    channel, answers = Channel(2), []
    request = API_KEYS[BROKER_HEARTBEAT].request.new()
    channel.forward()
    channel.connect(2)
    channel.take()
    channel.channel.send(BROKER_HEARTBEAT, request, lambda answer, now_ms: answers.append(answer))
    channel.take()
    channel.controller_id = -1
    channel.channel.follow_leader()
    assert channel.effects == [] and answers == []
    channel.controller_id = 3
    channel.channel.follow_leader()
    assert channel.effects == [CLOSED_2] and answers == [None]
    channel.effects.clear()
    channel.advance(0)
    channel.connect(3)
    channel.envelope(3)
    assert channel.effects == [SendResponse(channel.client, b"\0\0\0\x0athe answer")]
    channel.channel.follow_leader()
    channel.advance(60_000)
    assert len(channel.effects) == 1


def test_a_connection_that_ends_has_the_request_sent_again() -> None:
    channel = Channel(2)
    channel.forward()
    (asked,) = channel.take()
    channel.peers.peer_closed(PeerClosed(asked.peer, "Connection refused"), channel.now_ms)
    channel.advance(1000)
    channel.connect(2)
    channel.envelope(2)
    assert [type(effect) for effect in channel.effects] == [SendResponse]


def test_a_client_is_cut_off_after_the_request_timeout() -> None:
    channel = Channel(-1)
    channel.forward()
    channel.advance(28_000)
    assert channel.effects == []
    channel.advance(2_000)
    assert channel.effects == [CloseConnection(channel.client, "no controller answered its CreateTopics")]
    channel.advance(60_000)
    assert len(channel.effects) == 1


def test_a_client_that_is_gone_is_not_asked_for_again() -> None:
    channel = Channel(-1)
    channel.forward()
    channel.client.is_closed = True
    channel.advance(100)
    channel.effects.clear()
    channel.controller_id = 2
    channel.advance(60_000)
    assert channel.effects == []


def test_a_request_that_the_own_controller_closes_is_not_sent_again() -> None:
    """It would close it again."""
    channel = Channel(1)
    channel.forward()
    (request,) = channel.take()
    assert request.peer.address is None
    channel.peers.response_received(ResponseReceived(request.request_id, None), START_MS)
    assert channel.effects == [CloseConnection(channel.client, "no controller answered its CreateTopics")]


def test_an_error_of_the_envelope_itself_ends_the_connection() -> None:
    channel = Channel(1)
    channel.forward()
    channel.envelope(1, error_codes.CLUSTER_AUTHORIZATION_FAILED, None)
    assert [type(effect) for effect in channel.effects] == [CloseConnection]


def test_the_brokers_own_requests_are_not_sent_again_here() -> None:
    """Their callers have backoffs of their own, and newer values by then."""
    channel, answers = Channel(-1), []
    for _ in range(2):
        request = API_KEYS[BROKER_HEARTBEAT].request.new()
        channel.channel.send(BROKER_HEARTBEAT, request, lambda answer, now_ms: answers.append(answer))
        channel.advance(10)
        channel.controller_id = 2
    assert answers == [None]
    channel.connect(2)
    channel.serve(BROKER_HEARTBEAT, 1, API_KEYS[BROKER_HEARTBEAT].response.new(is_fenced=False), 2)
    assert not answers[1].is_fenced


def test_a_heartbeat_that_is_lost_fails_after_its_own_timeout() -> None:
    """Not after controller.socket.timeout.ms (30 s): the session of the broker would be over, and it would stay fenced."""
    channel, answers = Channel(2), []
    heartbeats = channel.channel.separate(HEARTBEAT, 2000)
    request = API_KEYS[BROKER_HEARTBEAT].request.new()
    heartbeats.send(BROKER_HEARTBEAT, request, lambda answer, now_ms: answers.append(answer))
    channel.connect(2, HEARTBEAT)
    channel.advance(1999)
    assert answers == []
    channel.advance(1)
    assert answers == [None]


def test_a_heartbeat_does_not_wait_for_the_answer_to_a_client() -> None:
    """It has a connection of its own, and goes on when the other one ends; in a log line the two have different names."""
    channel, answers = Channel(2), []
    channel.forward()
    channel.connect(2)
    (forwarded,) = channel.take()
    api, heartbeats = API_KEYS[BROKER_HEARTBEAT], channel.channel.separate(HEARTBEAT, 2000)

    def beat() -> None:
        heartbeats.send(BROKER_HEARTBEAT, api.request.new(), lambda answer, now_ms: answers.append(answer))

    beat()
    channel.connect(2, HEARTBEAT)
    channel.serve(BROKER_HEARTBEAT, 1, api.response.new(is_fenced=False), 2, HEARTBEAT)
    channel.peers.peer_closed(PeerClosed(forwarded.peer, "Connection reset"), channel.now_ms)
    beat()
    channel.serve(BROKER_HEARTBEAT, 1, api.response.new(is_fenced=False), 2, HEARTBEAT)
    assert [one.is_fenced for one in answers] == [False, False]
    beat()
    (beaten,) = channel.take()
    channel.peers.peer_closed(PeerClosed(beaten.peer, "Connection reset"), channel.now_ms)
    assert answers[-1] is None
    assert [line.partition(" ended")[0] for line in channel.lines] == [
        "the connection to the controller of node 2 at host2:9093",
        "the connection to the controller of node 2 at host2:9093 (heartbeat)",
    ]
