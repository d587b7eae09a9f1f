"""Protects: the coordinator of a key is found, kept, and looked up again when it moves; callers wait as long as they want."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kcli.client.client_config import ClientConfig
from kcli.client.coordinator_lookup import GROUP_KEY, SHARE_KEY, TRANSACTION_KEY, CoordinatorLookup
from kcli.client.errors import ClientError, DisconnectedError, KafkaError, KafkaTimeoutError
from kcli.client.network_client import NetworkClient
from kcli.network.peer_request import Answer, PeerFailure, Request
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, FIND_COORDINATOR, HEARTBEAT
from kcli.protocol.message import Message

LATEST = API_KEYS[FIND_COORDINATOR].highest_version


class FakeNetwork(NetworkClient):
    """A network whose brokers are the test: `sent` has the callbacks of requests without an answer."""

    def __init__(self) -> None:
        super().__init__(ClientConfig(bootstrap_servers=("here:1",)), random.Random(1), lambda line: None)
        self.lookups: list[tuple[Request, Callable[[Answer, int], None]]] = []
        self.sent: list[tuple[int, Callable[[Answer, int], None]]] = []

    def send_to_any(
        self, api_key: int, request: Request, callback: Callable[[Answer, int], None], timeout_ms: int | None = None
    ) -> None:
        self.lookups.append((request, callback))

    def send(
        self,
        node_id: int,
        api_key: int,
        request: Request,
        callback: Callable[[Answer, int], None],
        *args: object,
        **options: object,
    ) -> None:
        self.sent.append((node_id, callback))

    def answer(self, code: int = 0, node_id: int = 3, version: int = LATEST) -> None:
        _, callback = self.lookups.pop(0)
        callback(found(code, node_id, version), self.timer.clock_ms)

    def wait(self, ms: int) -> None:
        self.advance(self.timer.clock_ms + ms)


def found(code: int, node_id: int, version: int) -> Message:
    kind = API_KEYS[FIND_COORDINATOR].response
    where = {"node_id": node_id, "host": "there", "port": 9, "error_code": code}
    message = kind.new(coordinators=[kind.classes["Coordinator"](key="g", **where)]) if version >= 4 else kind.new(**where)
    decoded, _ = kind.decode(kind.encode(message, version), version)
    return decoded


@pytest.mark.parametrize("version", range(LATEST + 1))
def test_each_version_asks_and_answers(version: int) -> None:
    network = FakeNetwork()
    lookup = CoordinatorLookup(network, GROUP_KEY, "g")
    results: list[int | ClientError] = []
    lookup.find(lambda node_id, now_ms: results.append(node_id), 0)
    request = network.lookups[0][0]
    assert not isinstance(request, Message)
    kind = API_KEYS[FIND_COORDINATOR].request
    decoded, _ = kind.decode(kind.encode(request(version), version), version)
    assert decoded.key == "g" or decoded.coordinator_keys == ["g"]
    network.answer(version=version)
    assert results == [3] and lookup.node_id == 3
    assert network.metadata.nodes[3].host == "there"


@pytest.mark.parametrize("key_type", [TRANSACTION_KEY, SHARE_KEY])
def test_other_types_of_keys(key_type: int) -> None:
    network = FakeNetwork()
    CoordinatorLookup(network, key_type, "k").find(lambda node_id, now_ms: None, 0)
    request = network.lookups[0][0]
    assert not isinstance(request, Message) and request(LATEST).key_type == key_type


def test_errors_that_may_pass_are_tried_again_with_a_growing_delay() -> None:
    network = FakeNetwork()
    lookup = CoordinatorLookup(network, GROUP_KEY, "g")
    results: list[int | ClientError] = []
    lookup.find(lambda node_id, now_ms: results.append(node_id), 0)
    network.answer(error_codes.COORDINATOR_NOT_AVAILABLE)
    network.wait(50)
    assert not network.lookups
    network.wait(100)
    _, callback = network.lookups.pop()
    callback(PeerFailure.DISCONNECTED, network.timer.clock_ms)
    network.wait(300)
    network.answer()
    assert results == [3]


def test_an_answer_about_another_key_is_not_the_coordinator() -> None:
    network = FakeNetwork()
    lookup = CoordinatorLookup(network, GROUP_KEY, "another")
    results: list[int | ClientError] = []
    lookup.find(lambda node_id, now_ms: results.append(node_id), 0)
    network.answer()  # it is about the group "g"
    assert not results and lookup.node_id is None and "does not contain another" in str(lookup.last_error)
    network.wait(150)
    assert len(network.lookups) == 1


def test_an_error_that_stays_is_the_result() -> None:
    network = FakeNetwork()
    lookup = CoordinatorLookup(network, GROUP_KEY, "g")
    results: list[object] = []
    for _ in range(2):
        lookup.find(lambda node_id, now_ms: results.append(node_id), 0)
    assert len(network.lookups) == 1
    network.answer(error_codes.GROUP_AUTHORIZATION_FAILED)
    assert len(results) == 2 and all(isinstance(one, KafkaError) for one in results)
    lookup.find(lambda node_id, now_ms: results.append(node_id), 0)
    assert len(network.lookups) == 1


def test_a_request_waits_for_the_lookup_as_long_as_it_may() -> None:
    network = FakeNetwork()
    lookup = CoordinatorLookup(network, GROUP_KEY, "g")
    results: list[object] = []
    request = API_KEYS[HEARTBEAT].request.new(group_id="g")
    lookup.send(HEARTBEAT, request, lambda answer, now_ms: results.append(answer), 0, 1000)
    network.wait(1000)
    (error,) = results
    assert isinstance(error, KafkaTimeoutError) and "coordinator of g" in str(error)
    network.answer()
    assert not network.sent


def test_a_coordinator_that_is_lost_or_moved_is_looked_up_again() -> None:
    network = FakeNetwork()
    lookup = CoordinatorLookup(network, GROUP_KEY, "g")
    results: list[object] = []
    request = API_KEYS[HEARTBEAT].request.new(group_id="g")

    def send() -> None:
        lookup.send(HEARTBEAT, request, lambda answer, now_ms: results.append(answer), 0)

    send()
    network.answer()
    node_id, callback = network.sent.pop()
    callback(PeerFailure.DISCONNECTED, 0)
    assert node_id == 3 and isinstance(results.pop(), DisconnectedError) and lookup.node_id is None
    send()
    network.answer(node_id=4)
    node_id, callback = network.sent.pop()
    assert node_id == 4
    lookup.check(error_codes.COORDINATOR_LOAD_IN_PROGRESS)
    assert lookup.node_id == 4
    lookup.check(error_codes.NOT_COORDINATOR)
    assert lookup.node_id is None
