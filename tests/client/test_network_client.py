"""Protects the metadata of a client: when they are asked for, from whom, which answer wins, and what a failure does.

Brokers are answers that the test gives; the time is virtual.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcli.client.client_config import ClientConfig, parse_address, read_config, refuse_unknown
from kcli.client.cluster import NO_LEADER
from kcli.client.errors import ConfigError
from kcli.client.metadata import LeaderIdAndEpoch, Node
from kcli.client.network_client import NetworkClient
from kcli.network.events import Peer, PeerAddress, PeerClosed, ResponseReceived, SendRequest
from kcli.network.peer_request import PeerFailure
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, API_VERSIONS, METADATA
from kcli.protocol.framing import encode_response, read_request_header
from kcli.protocol.message import Message

ADDRESSES = {1: PeerAddress("b1", 9092), 2: PeerAddress("b2", 9092)}
CONFIG = ClientConfig(bootstrap_servers=("b1:9092",), metadata_max_age_ms=5_000)


def metadata(partitions: dict[tuple[str, int], tuple[int, int]], topic_id: bytes = b"1" * 16, **fields: Any) -> Message:
    """An answer with both brokers; `partitions` has the leader and its epoch."""
    kind = API_KEYS[METADATA].response
    brokers = [
        kind.classes["MetadataResponseBroker"](node_id=node_id, host=address.host, port=address.port)
        for node_id, address in ADDRESSES.items()
    ]
    topics: dict[str, Any] = {}
    for (topic, index), (leader, epoch) in partitions.items():
        of_topic = topics.setdefault(topic, kind.classes["MetadataResponseTopic"](name=topic, topic_id=topic_id, partitions=[]))
        of_topic.partitions.append(
            kind.classes["MetadataResponsePartition"](partition_index=index, leader_id=leader, leader_epoch=epoch)
        )
    return kind.new(brokers=brokers, cluster_id="c", controller_id=1, topics=list(topics.values()), **fields)


class Brokers:
    """A NetworkClient whose requests the test answers; ApiVersions is answered for it."""

    def __init__(self, config: ClientConfig = CONFIG) -> None:
        self.now_ms = 1_000
        self.lines: list[str] = []
        self.client = NetworkClient(config, random.Random(1), self.lines.append, self.now_ms)
        self.requests: list[tuple[SendRequest, int, int]] = []
        self.silent: set[str] = set()  # hosts that accept connections and never answer
        self.silent_requests = 0

    def asked(self) -> list[str]:
        """Take the requests -> the hosts that they went to."""
        while effects := self.client.take_effects():
            for effect in effects:
                if not isinstance(effect, SendRequest):
                    continue
                if effect.peer.address is not None and effect.peer.address.host in self.silent:
                    self.silent_requests += 1
                    continue
                key, version, *_ = read_request_header(effect.frame[4:])
                if key == API_VERSIONS:
                    kind = API_KEYS[API_VERSIONS].response
                    keys = [kind.classes["ApiVersion"](api_key=METADATA, min_version=0, max_version=13)]
                    self.answer((effect, key, version), kind.new(api_keys=keys))
                else:
                    self.requests.append((effect, key, version))
        return [effect.peer.address.host for effect, _, _ in self.requests if effect.peer.address is not None]

    def answer(self, request: tuple[SendRequest, int, int], message: Message) -> None:
        effect, key, version = request
        frame = bytes(encode_response(effect.request_id, API_KEYS[key], version, message))[4:]
        self.client.handle(ResponseReceived(effect.request_id, frame), self.now_ms)

    def answer_metadata(self, message: Message) -> None:
        self.asked()
        (request,) = self.requests
        self.requests.clear()
        self.answer(request, message)

    def fail(self) -> None:
        """End the connection of each request, also of those that ask for versions."""
        effects = [effect for effect in self.client.take_effects() if isinstance(effect, SendRequest)]
        effects += [effect for effect, _, _ in self.requests]
        self.requests.clear()
        for peer in {effect.peer for effect in effects}:
            self.client.handle(PeerClosed(peer, "Connection refused"), self.now_ms)

    def wait(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while (at_ms := self.client.next_deadline_ms()) is not None and at_ms <= end_ms:
            self.now_ms = max(at_ms, self.now_ms)
            self.client.advance(self.now_ms)
            self.asked()
        self.now_ms = end_ms
        self.client.advance(end_ms)


def started(partitions: dict[tuple[str, int], tuple[int, int]] | None = None, config: ClientConfig = CONFIG) -> Brokers:
    """A client that has its first metadata."""
    brokers = Brokers(config)
    brokers.client.metadata.want_topic("t")
    brokers.client.request_update()
    assert brokers.asked() == [config.bootstrap_servers[0].partition(":")[0]]
    brokers.answer_metadata(metadata({("t", 0): (1, 3), ("t", 1): (2, 5)} if partitions is None else partitions))
    return brokers


def test_the_first_metadata_come_from_a_bootstrap_server_and_the_next_after_their_age() -> None:
    brokers = started()
    cluster = brokers.client.metadata.cluster
    assert [cluster.leader_for("t", 0), cluster.leader_for("t", 1), cluster.leader_for("t", 2)] == [1, 2, NO_LEADER]
    brokers.wait(4_000)
    assert brokers.asked() == []
    brokers.wait(1_500)
    assert len(brokers.asked()) == 1


def test_requests_for_updates_share_one_request_and_wait_for_the_backoff() -> None:
    brokers = started()
    for _ in range(5):
        brokers.client.request_update()
    assert brokers.asked() == []  # the last one was asked for just before
    brokers.wait(150)
    assert len(brokers.asked()) == 1
    brokers.answer_metadata(metadata({("t", 0): (2, 4)}))
    assert not brokers.client.is_update_wanted


def test_a_topic_without_a_leader_is_asked_for_again() -> None:
    brokers = started({("t", 0): (-1, 3)})
    brokers.wait(150)
    assert len(brokers.asked()) == 1


def test_a_topic_that_does_not_exist_is_asked_for_again_and_its_error_is_known() -> None:
    brokers = Brokers()
    brokers.client.metadata.want_topic("t")
    brokers.client.request_update()
    kind = API_KEYS[METADATA].response
    missing = kind.classes["MetadataResponseTopic"](name="t", error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    answer = metadata({})
    answer.topics = [missing]
    brokers.answer_metadata(answer)
    assert brokers.client.metadata.topic_errors == {"t": error_codes.UNKNOWN_TOPIC_OR_PARTITION}
    brokers.wait(150)
    assert len(brokers.asked()) == 1


def test_an_older_leader_epoch_does_not_replace_a_newer_one_but_another_topic_does() -> None:
    brokers = started()
    brokers.client.request_update()
    brokers.wait(150)
    brokers.answer_metadata(metadata({("t", 0): (2, 2), ("t", 1): (1, 6)}))
    cluster = brokers.client.metadata.cluster
    assert [(one.leader, one.leader_epoch) for one in cluster.partitions_for_topic("t")] == [(1, 3), (1, 6)]
    brokers.client.request_update()
    brokers.wait(150)
    brokers.answer_metadata(metadata({("t", 0): (2, 0)}, topic_id=b"2" * 16))
    cluster = brokers.client.metadata.cluster
    assert [(one.leader, one.leader_epoch) for one in cluster.partitions_for_topic("t")] == [(2, 0)]


def test_a_leader_that_an_answer_names_counts_if_its_epoch_is_newer() -> None:
    """KIP-951."""
    brokers = started()
    known = brokers.client.metadata
    named = {("t", 0): LeaderIdAndEpoch(7, 4), ("t", 1): LeaderIdAndEpoch(7, 5), ("u", 0): LeaderIdAndEpoch(7, 1)}
    assert known.update_leaders(named, [Node(7, "b7", 9092)], brokers.now_ms) == {("t", 0)}
    assert [one.leader for one in known.cluster.partitions_for_topic("t")] == [7, 2]
    assert known.nodes[7].host == "b7"


def test_a_connection_that_ends_has_the_metadata_asked_for() -> None:
    brokers = started()
    brokers.client.send(2, METADATA, API_KEYS[METADATA].request.new(topics=[]), lambda answer, now_ms: None)
    brokers.wait(150)
    brokers.fail()
    brokers.wait(150)
    assert brokers.asked() == ["b1"]  # b2 backs off


def test_a_broker_that_accepts_connections_and_never_answers_has_the_metadata_asked_for() -> None:
    """Each second while it is connected to, and when that ends; the request itself waits socket.connection.setup.timeout.ms."""
    brokers = started(config=CONFIG._replace(metadata_max_age_ms=300_000))
    brokers.silent.add("b2")
    answers: list[object] = []
    request = API_KEYS[METADATA].request.new(topics=[])
    brokers.client.send(2, METADATA, request, lambda answer, now_ms: answers.append(answer))
    for _ in range(10):
        assert answers == []
        brokers.wait(1_100)
        assert brokers.asked() == ["b1"]
        brokers.answer_metadata(metadata({("t", 0): (1, 3), ("t", 1): (1, 6)}))
    assert answers == [PeerFailure.DISCONNECTED]
    assert brokers.client.metadata.cluster.leader_for("t", 1) == 1


def test_a_request_that_any_broker_can_answer_does_not_wait_for_one_that_never_answers() -> None:
    brokers = started(config=CONFIG._replace(metadata_max_age_ms=300_000))
    brokers.silent.add("b2")
    answers: list[object] = []
    while not brokers.silent_requests:  # the broker is drawn
        brokers.client.send_to_any(
            METADATA, API_KEYS[METADATA].request.new(topics=[]), lambda answer, _: answers.append(answer)
        )
        brokers.asked()
    brokers.wait(900)
    assert answers == []
    brokers.wait(200)
    assert answers == [PeerFailure.TIMED_OUT]
    for _ in range(20):
        brokers.client.send_to_any(METADATA, API_KEYS[METADATA].request.new(topics=[]), lambda answer, _: None)
    assert set(brokers.asked()) == {"b1"} and brokers.silent_requests == 1


@pytest.mark.parametrize(("strategy", "hosts"), [("rebootstrap", {"b0"}), ("none", {"b1", "b2"})])
def test_a_client_that_reaches_no_broker_asks_the_bootstrap_servers_again(strategy: str, hosts: set[str]) -> None:
    """KIP-899."""
    slow = CONFIG._replace(reconnect_backoff_ms=10_000, reconnect_backoff_max_ms=10_000, metadata_recovery_strategy=strategy)
    brokers = started(config=slow)
    brokers.client._bootstrap = [PeerAddress("b0", 9092)]
    for node_id in ADDRESSES:
        brokers.client.send(node_id, METADATA, API_KEYS[METADATA].request.new(topics=[]), lambda answer, now_ms: None)
    brokers.fail()
    brokers.wait(15_000)
    assert set(brokers.asked()) <= hosts and brokers.requests


def test_a_broker_can_ask_for_a_rebootstrap() -> None:
    """KIP-1102."""
    brokers = started()
    brokers.client.request_update()
    brokers.wait(150)
    brokers.answer_metadata(metadata({}, error_code=error_codes.REBOOTSTRAP_REQUIRED))
    assert brokers.client.metadata.nodes == {}
    brokers.wait(500)
    assert brokers.asked() == ["b1"]
    brokers.answer_metadata(metadata({("t", 0): (1, 3)}))
    assert set(brokers.client.metadata.nodes) == {1, 2}


def test_the_reason_why_no_broker_answers_is_known() -> None:
    brokers = Brokers()
    brokers.client.request_update()
    brokers.fail()
    assert brokers.client.failure_reason() == "b1:9092: Connection refused"
    assert brokers.client.in_flight_count(1) == 0


def test_an_address_that_failed_is_no_reason_when_the_nodes_are_known() -> None:
    """The client was connected to another address of bootstrap.servers, and the message named the one that refused."""
    brokers = started(config=CONFIG._replace(bootstrap_servers=("b0:9092",)))
    peer = Peer(ADDRESSES[1]._replace(host="b0"), "bootstrap", ADDRESSES[1]._replace(host="b0"))
    brokers.client.handle(PeerClosed(peer, "Connection refused"), brokers.now_ms)
    assert brokers.client.peers.failure_reason(peer.destination, "bootstrap") == "Connection refused"
    assert brokers.client.failure_reason() == "the connections are open, and no answer came"


def test_settings_have_kafkas_names() -> None:
    properties = {"bootstrap.servers": "a:1, [::1]:2", "allow.auto.create.topics": "False", "retry.backoff.ms": " 7 "}
    config = read_config(ClientConfig, properties)
    assert config.bootstrap_servers == ("a:1", "[::1]:2")
    assert (config.allow_auto_create_topics, config.retry_backoff_ms, config.client_id) == (False, 7, "kcli")
    assert parse_address("[::1]:2") == PeerAddress("::1", 2)
    # As Kafka's clients, and as brokers print their listeners.
    assert parse_address("PLAINTEXT://b:9092") == parse_address("b:9092") == PeerAddress("b", 9092)
    assert parse_address("SASL_SSL://[::1]:2") == PeerAddress("::1", 2)
    refuse_unknown(properties, ClientConfig)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("retry.backoff.ms", "a", "retry.backoff.ms must be a whole number, not 'a'"),
        ("allow.auto.create.topics", "yes", "allow.auto.create.topics must be true or false, not 'yes'"),
        ("retry.backof.ms", "1", "there is no setting retry.backof.ms; did you mean retry.backoff.ms?"),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_config(ClientConfig, {name: value})
        refuse_unknown({name: value}, ClientConfig)
    assert str(raised.value) == message


@pytest.mark.parametrize("text", ["localhost", ":9092", "h:", "h:0", "h:65536", "h:9x", "", "A B://h:1", "X://h"])
def test_a_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        parse_address(text)
