"""Protects requests to other nodes: each state and event of the table in kcli.network.peer_connection, driven by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcli.network.events import (
    ClosePeer,
    NodeRole,
    Peer,
    PeerAddress,
    PeerClosed,
    PeerNode,
    ResponseReceived,
    SendRequest,
)
from kcli.network.peer_request import Answer, InvalidRequest, PeerFailure
from kcli.network.peers import Peers, PeerSettings
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, API_VERSIONS, DESCRIBE_CLUSTER, FETCH, METADATA, VOTE
from kcli.protocol.framing import encode_response, read_request_header
from kcli.protocol.message import Message
from kcli.server.events import Effect

START_MS = 1_000_000
OTHER = PeerNode(2, NodeRole.BROKER)
ADDRESS = PeerAddress("host2", 9092)
PEER = Peer(OTHER, "PLAINTEXT", ADDRESS)
DEADLINE_MS = START_MS + 30_000


class PeersUnderTest:
    """A Peers of node 1 whose effects a test reads and whose answers it gives."""

    def __init__(self, settings: PeerSettings | None = None) -> None:
        self.now_ms = START_MS
        self.timer = Timer(START_MS)
        self.effects: list[Effect] = []
        self.lines: list[str] = []
        self.addresses: dict[PeerNode, PeerAddress] = {OTHER: ADDRESS}
        self.answers: list[Answer] = []
        self.peers = Peers(
            1, "node-1", self.effects, self.timer, random.Random(1), self, settings or PeerSettings(), self.lines.append
        )

    def address_of(self, node: PeerNode, listener: str) -> PeerAddress | None:
        return self.addresses.get(node._replace(channel=""))

    def ask(self, key: int = METADATA, deadline_ms: int = DEADLINE_MS, message: Any = None, **options: Any) -> None:
        """Send a request to the other node."""
        destination = options.get("destination", OTHER)
        request = message or API_KEYS[key].request.new()
        self.peers.send(destination, "PLAINTEXT", key, request, lambda answer, now_ms: self.answers.append(answer), deadline_ms)

    def sent(self) -> list[tuple[int, int, int]]:
        """Take the requests that were sent: (key, version, id)."""
        found = []
        for effect in self.effects:
            if isinstance(effect, SendRequest):
                assert effect.peer == PEER
                key, version, correlation_id, client_id, _ = read_request_header(effect.frame[4:])
                assert client_id == "node-1" and correlation_id == effect.request_id
                found.append((key, version, effect.request_id))
        self.effects[:] = [effect for effect in self.effects if not isinstance(effect, SendRequest)]
        return found

    def closed(self) -> list[Peer]:
        """Take the peers whose connections the core closes."""
        found = [effect.peer for effect in self.effects if isinstance(effect, ClosePeer)]
        self.effects.clear()
        return found

    def answer(self, key: int, version: int, request_id: int, message: Message) -> None:
        frame = bytes(encode_response(request_id, API_KEYS[key], version, message))[4:]
        self.peers.response_received(ResponseReceived(request_id, frame), self.now_ms)

    def answer_versions(self, **ranges: tuple[int, int]) -> None:
        """Answer the ApiVersions that was sent; ranges by the API's number after an underscore."""
        ((key, version, request_id),) = self.sent()
        assert key == API_VERSIONS
        self.answer(API_VERSIONS, version, request_id, api_versions(ranges))

    def end(self, reason: str = "Connection reset by peer") -> None:
        self.peers.peer_closed(PeerClosed(PEER, reason), self.now_ms)

    def advance(self, ms: int) -> None:
        until_ms = self.now_ms + ms
        while (deadline_ms := self.timer.next_deadline_ms()) is not None and deadline_ms <= until_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.timer.advance(self.now_ms)
        self.now_ms = until_ms
        self.timer.advance(self.now_ms)


def api_versions(ranges: dict[str, tuple[int, int]], error_code: int = 0) -> Message:
    response = API_KEYS[API_VERSIONS].response
    keys = [
        response.classes["ApiVersion"](api_key=int(name.strip("_")), min_version=low, max_version=high)
        for name, (low, high) in ranges.items()
    ]
    return response.new(error_code=error_code, api_keys=keys)


def connected(**ranges: tuple[int, int]) -> PeersUnderTest:
    """A connection that is READY."""
    test = PeersUnderTest()
    test.ask()
    test.answer_versions(**(ranges or {"_3": (0, 13), "_1": (4, 18), "_60": (0, 2)}))
    ((_, version, request_id),) = test.sent()
    test.answer(METADATA, version, request_id, API_KEYS[METADATA].response.new(cluster_id="c"))
    assert [getattr(answer, "cluster_id", None) for answer in test.answers] == ["c"]
    test.answers.clear()
    deadline_ms = test.timer.next_deadline_ms()
    assert deadline_ms is None or deadline_ms > DEADLINE_MS, "an answered request has no deadline any more"
    return test


def test_versions_are_asked_first_and_the_highest_common_one_is_used() -> None:
    test = PeersUnderTest()
    test.ask()
    test.ask(FETCH)
    test.ask(VOTE)
    test.answer_versions(_3=(0, 9), _1=(4, 99))
    unstable = API_KEYS[FETCH].is_latest_unstable
    sent = test.sent()
    assert [(key, version) for key, version, _ in sent] == [(METADATA, 9), (FETCH, API_KEYS[FETCH].highest_version - unstable)]
    test.advance(1)
    assert test.answers == [PeerFailure.UNSUPPORTED_VERSION]  # Vote is not in its answer
    test.answer(*sent[0], API_KEYS[METADATA].response.new(cluster_id="c"))
    assert test.answers[1].cluster_id == "c"  # type: ignore[union-attr]


def test_versions_that_only_one_side_has_are_not_used() -> None:
    """Nor a latest version that is not stable yet."""
    unstable = next(api for api in API_KEYS.values() if api.is_latest_unstable)
    test = PeersUnderTest()
    test.ask()
    test.ask(unstable.key)
    test.answer_versions(_3=(50, 60), **{f"_{unstable.key}": (0, 99)})
    assert [(key, version) for key, version, _ in test.sent()] == [(unstable.key, unstable.highest_version - 1)]
    test.advance(1)
    assert test.answers == [PeerFailure.UNSUPPORTED_VERSION]


def test_a_request_can_be_made_for_the_version_in_which_it_is_sent() -> None:
    test, versions = PeersUnderTest(), []

    def make(version: int) -> Message:
        versions.append(version)
        return API_KEYS[METADATA].request.new()

    test.ask(message=make)
    test.answer_versions(_3=(1, 5))
    assert versions == [5] and len(test.sent()) == 1


def test_values_that_the_common_version_does_not_have_are_an_unsupported_version() -> None:
    test = PeersUnderTest()
    test.ask(DESCRIBE_CLUSTER, message=API_KEYS[DESCRIBE_CLUSTER].request.new(endpoint_type=2))
    test.answer_versions(_60=(0, 0))
    assert test.sent() == []
    test.advance(1)
    assert test.answers == [PeerFailure.UNSUPPORTED_VERSION]
    assert len(test.peers.outstanding) == 0


def test_values_that_no_version_has_are_an_invalid_request_that_names_the_field() -> None:
    kind = API_KEYS[METADATA].request
    topics = [kind.classes["MetadataRequestTopic"](name=name) for name in ("sound", 7)]
    test = connected()
    test.ask(message=kind.new(topics=topics))
    assert test.sent() == []
    test.advance(1)
    (answer,) = test.answers
    assert isinstance(answer, InvalidRequest) and answer.is_lasting
    assert answer.reason == "MetadataRequest version 13: field topics[1].name must be of type string, not 7"
    assert len(test.peers.outstanding) == 0


def test_a_null_that_only_newer_versions_have_is_an_unsupported_version() -> None:
    kind = API_KEYS[METADATA].request
    test = connected(_3=(0, 9))
    test.ask(message=kind.new(topics=[kind.classes["MetadataRequestTopic"](topic_id=b"i" * 16, name=None)]))
    test.advance(1)
    assert test.answers == [PeerFailure.UNSUPPORTED_VERSION]


def test_a_node_that_does_not_know_our_api_versions_is_asked_in_its_version() -> None:
    """KIP-511: it answers version 0 with UNSUPPORTED_VERSION and its own range."""
    test = PeersUnderTest()
    test.ask()
    ((key, version, request_id),) = test.sent()
    assert (key, version) == (API_VERSIONS, API_KEYS[API_VERSIONS].highest_version)
    refusal = api_versions({"_18": (0, 2)}, error_codes.UNSUPPORTED_VERSION)
    frame = bytes(encode_response(request_id, API_KEYS[API_VERSIONS], 0, refusal))[4:]
    test.peers.response_received(ResponseReceived(request_id, frame), test.now_ms)
    ((key, version, request_id),) = test.sent()
    assert (key, version) == (API_VERSIONS, 2)
    test.answer(API_VERSIONS, 2, request_id, api_versions({"_3": (0, 4)}))
    assert [(key, version) for key, version, _ in test.sent()] == [(METADATA, 4)]


def test_a_node_that_refuses_the_version_that_it_names_is_not_asked_for_ever() -> None:
    test = PeersUnderTest()
    test.ask()
    ((_, version, request_id),) = test.sent()
    refusal = api_versions({"_18": (0, version)}, error_codes.UNSUPPORTED_VERSION)
    frame = bytes(encode_response(request_id, API_KEYS[API_VERSIONS], 0, refusal))[4:]
    test.peers.response_received(ResponseReceived(request_id, frame), test.now_ms)
    assert test.sent() == [] and test.answers == [PeerFailure.DISCONNECTED]
    assert "ApiVersions was answered with UNSUPPORTED_VERSION" in test.lines[0]


def test_the_end_of_a_connection_answers_all_that_was_sent_and_versions_are_asked_again() -> None:
    test = connected()
    test.ask()
    test.ask()
    assert len(test.sent()) == 2
    test.end()
    assert test.answers == [PeerFailure.DISCONNECTED] * 2
    test.ask()
    assert test.sent() == []
    test.advance(100)
    test.answer_versions(_3=(0, 7))
    assert [(key, version) for key, version, _ in test.sent()] == [(METADATA, 7)]
    assert [line.partition(": ")[0] for line in test.lines] == [
        "the connection to the broker of node 2 at host2:9092 ended",
        "connected to the broker of node 2 at host2:9092 again",
    ]


def test_failed_connects_answer_what_waits_and_back_off() -> None:
    """From 50 ms, twice as long each time up to 1 s, with a jitter of 20 %; one line in the log for all of them."""
    test, delays = PeersUnderTest(), []
    for _ in range(8):
        test.ask()
        began_ms = test.now_ms
        while not (sent := test.sent()):
            test.advance(1)
        delays.append(test.now_ms - began_ms)
        assert [key for key, _, _ in sent] == [API_VERSIONS]
        test.end("Connection refused")
        assert test.answers.pop() is PeerFailure.DISCONNECTED and not test.answers
    assert delays[0] == 0
    for delay_ms, expected_ms in zip(delays[1:], (50, 100, 200, 400, 800, 1000, 1000)):
        assert 0.8 * expected_ms - 1 <= delay_ms <= 1.2 * expected_ms + 1
    assert len(test.lines) == 1 and "Connection refused" in test.lines[0]
    assert len(test.peers.outstanding) == 0


def test_after_a_success_the_backoff_is_short_again() -> None:
    test = PeersUnderTest()
    for _ in range(5):
        test.ask()
        test.advance(2000)
        assert [key for key, _, _ in test.sent()] == [API_VERSIONS]
        test.end("Connection refused")
    test.ask()
    test.advance(2000)
    test.answer_versions(_3=(0, 13))
    assert len(test.sent()) == 1
    test.end()
    test.ask()
    test.advance(61)
    assert [key for key, _, _ in test.sent()] == [API_VERSIONS]


def test_an_end_that_is_reported_twice_connects_once() -> None:
    test = connected()
    test.ask()
    test.sent()
    test.end()
    test.advance(10)
    test.end()
    test.ask()
    sent = []
    for _ in range(200):
        test.advance(1)
        sent += test.sent()
        test.ask()
    assert [key for key, _, _ in sent] == [API_VERSIONS]


def test_a_deadline_of_a_waiting_request_ends_it_alone() -> None:
    test = PeersUnderTest()
    test.ask(deadline_ms=START_MS + 100)
    test.ask()
    test.advance(100)
    assert test.answers == [PeerFailure.TIMED_OUT]
    test.answer_versions(_3=(0, 13))
    assert len(test.sent()) == 1 and test.closed() == []


def test_a_deadline_of_a_sent_request_closes_the_connection() -> None:
    """The answers behind it come in order, so that they would wait for the same one."""
    test = connected()
    test.ask(deadline_ms=START_MS + 100)
    test.ask()
    late = [request_id for _, _, request_id in test.sent()]
    test.advance(100)
    assert test.answers == [PeerFailure.TIMED_OUT, PeerFailure.DISCONNECTED]
    assert test.closed() == [PEER]
    test.answer(METADATA, 13, late[0], API_KEYS[METADATA].response.new())
    assert len(test.answers) == 2 and len(test.peers.outstanding) == 0


def test_a_connection_that_is_never_made_is_closed_after_its_setup_timeout() -> None:
    test = PeersUnderTest(PeerSettings(connection_setup_timeout_ms=500))
    test.ask()
    test.advance(499)
    assert not test.answers
    test.advance(1)
    assert test.answers == [PeerFailure.DISCONNECTED] and test.closed() == [PEER]


def test_an_answer_that_cannot_be_read_closes_the_connection() -> None:
    for change in (lambda frame: frame[:5], lambda frame: b"\0\0\0\0" + frame[4:]):
        test = connected()
        test.ask()
        test.ask()
        ((_, version, request_id), _) = test.sent()
        frame = bytes(encode_response(request_id, API_KEYS[METADATA], version, API_KEYS[METADATA].response.new()))[4:]
        test.peers.response_received(ResponseReceived(request_id, change(frame)), test.now_ms)
        assert test.answers == [PeerFailure.DISCONNECTED] * 2 and test.closed() == [PEER]


def test_an_idle_connection_is_closed_without_a_backoff() -> None:
    test = connected()
    test.advance(599_000)
    assert test.closed() == []
    test.ask()
    ((_, version, request_id),) = test.sent()
    test.answer(METADATA, version, request_id, API_KEYS[METADATA].response.new())
    test.advance(599_000)
    assert test.closed() == []
    test.advance(2_000)
    assert test.closed() == [PEER]
    test.ask(deadline_ms=test.now_ms + 1000)
    assert [key for key, _, _ in test.sent()] == [API_VERSIONS]


def test_the_idle_time_of_a_connection_that_ended_does_not_shorten_its_backoff() -> None:
    test = PeersUnderTest(PeerSettings(max_idle_ms=1000))
    test.ask()
    test.answer_versions(_3=(0, 13))
    ((_, version, request_id),) = test.sent()
    test.answer(METADATA, version, request_id, API_KEYS[METADATA].response.new())
    test.advance(990)
    test.end()
    test.ask()
    test.advance(20)
    assert test.sent() == [] and test.closed() == []
    test.advance(50)
    assert len(test.sent()) == 1


def test_a_request_under_way_keeps_a_connection_from_being_idle() -> None:
    test = connected()
    test.ask(deadline_ms=START_MS + 10_000_000)
    test.sent()
    test.advance(2_000_000)
    assert test.closed() == []


def test_a_node_without_an_address_is_answered_later() -> None:
    """Not inside of send: its caller is not done yet."""
    test = PeersUnderTest()
    test.ask(destination=PeerNode(3, NodeRole.CONTROLLER))
    assert not test.answers
    test.advance(0)
    assert test.answers == [PeerFailure.UNKNOWN_ADDRESS] and not test.effects


def test_a_node_that_moved_gets_a_new_connection_at_once() -> None:
    test = connected()
    test.ask()
    test.sent()
    test.addresses[OTHER] = PeerAddress("host2", 9999)
    test.ask()
    assert test.answers == [PeerFailure.DISCONNECTED]
    closing, connecting = test.effects
    assert closing == ClosePeer(PEER)
    assert isinstance(connecting, SendRequest) and connecting.peer.address == PeerAddress("host2", 9999)
    test.end()  # of the old one: it changes nothing
    assert len(test.answers) == 1
    test.addresses[OTHER] = ADDRESS
    test.ask()
    assert test.answers == [PeerFailure.DISCONNECTED] * 2  # what waited for the second one, too


def test_a_node_that_moved_gets_one_new_connection() -> None:
    """Also if a request that fails with the old one is followed by another: a peer would be asked to authenticate twice."""
    test = connected()
    deadline_ms = test.now_ms + 1000
    request = API_KEYS[METADATA].request.new()
    test.peers.send(OTHER, "PLAINTEXT", METADATA, request, lambda answer, now_ms: test.ask(), deadline_ms)
    test.sent()
    test.addresses[OTHER] = PeerAddress("host2", 9999)
    test.ask()
    assert [type(effect) for effect in test.effects] == [ClosePeer, SendRequest]
    assert test.peers.in_flight_count(OTHER, "PLAINTEXT") == 3  # ApiVersions, and the two that wait


def test_the_node_itself_is_asked_in_the_highest_version_and_without_a_deadline() -> None:
    """Whatever its role: a broker asks itself as well as its controller."""
    for role in NodeRole:
        test = PeersUnderTest()
        test.ask(destination=PeerNode(1, role), deadline_ms=START_MS)
        (effect,) = test.effects
        assert isinstance(effect, SendRequest)
        assert effect.peer == Peer(PeerNode(1, role), "PLAINTEXT", None)
        assert read_request_header(effect.frame[4:])[1] == API_KEYS[METADATA].highest_version
        assert test.timer.next_deadline_ms() is None
        test.peers.response_received(ResponseReceived(effect.request_id, None), test.now_ms)
        assert test.answers == [PeerFailure.DISCONNECTED]


@pytest.mark.parametrize(("host", "text"), [("::1", "[::1]:9092"), ("127.0.0.1", "127.0.0.1:9092"), ("kafka", "kafka:9092")])
def test_an_ipv6_address_is_printed_in_brackets(host: str, text: str) -> None:
    """`::1:9092` is another address, and no option takes it."""
    assert str(PeerAddress(host, 9092)) == text
