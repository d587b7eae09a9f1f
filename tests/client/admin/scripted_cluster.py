"""Brokers that a test writes, below the core of an admin client: requests in, answers out, time as the test lets it go by."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from kcli.client.admin.driver import AdminCore
from kcli.client.admin.operation import Operation
from kcli.client.client_config import ClientConfig
from kcli.client.errors import ClientError
from kcli.client.network_client import NetworkClient
from kcli.network.events import ClosePeer, PeerClosed, PeerNode, ResponseReceived, SendRequest
from kcli.protocol.apis import API_KEYS, API_VERSIONS, DESCRIBE_CLUSTER, METADATA
from kcli.protocol.framing import encode_response, read_request_header
from kcli.protocol.message import Message

_Result = TypeVar("_Result")
BROKERS = (1, 2, 3)
CLOSED = object()  # of an answer: the connection ends
SILENT = object()  # of an answer: none comes

# Gets the broker (None: a bootstrap server), the version and the request.
Answerer = Callable[[int | None, int, Message], Any]


class ScriptedCluster:
    """Three brokers; `answers` has what they answer by API key, `asked` each request as (broker, API key, message).

    With `controllers` they are controllers, and the client has bootstrap.controllers.
    """

    def __init__(
        self,
        answers: dict[int, Answerer],
        versions: dict[int, int] | None = None,
        timeout_ms: int = 1000,
        controllers: bool = False,
    ) -> None:
        self.now_ms = 0
        address = ("boot:9092",)
        config = ClientConfig(bootstrap_servers=() if controllers else address, default_api_timeout_ms=timeout_ms)
        self.network = NetworkClient(config, random.Random(1), lambda line: None, controllers=address if controllers else ())
        self.core = AdminCore(self.network)
        self.answers: dict[int, Answerer] = {METADATA: lambda *_: metadata(), **answers}
        self.versions = versions or {}
        self.asked: list[tuple[int | None, int, Message]] = []

    def requests(self, api_key: int) -> list[tuple[int | None, Message]]:
        """The requests of an API, with the brokers that got them."""
        return [(node, message) for node, key, message in self.asked if key == api_key]

    def execute(self, operation: Operation[_Result]) -> _Result:
        """Execute an operation to its end. Raises its ClientError."""
        found: list[Any] = []
        self.core.start(operation, lambda result, now_ms: found.append(result), self.now_ms)
        while not found:
            self._exchange()
            if found:
                break
            at_ms = self.network.next_deadline_ms()
            assert at_ms is not None, "the operation waits for nothing"
            self.now_ms = max(self.now_ms, at_ms)
            self.network.advance(self.now_ms)
        if isinstance(found[0], ClientError):
            raise found[0]
        result: _Result = found[0]
        return result

    def _exchange(self) -> None:
        while effects := self.network.take_effects():
            for effect in effects:
                if isinstance(effect, ClosePeer):
                    continue
                answer = self._answer(effect)
                if answer is CLOSED:
                    self.network.handle(PeerClosed(effect.peer, "closed"), self.now_ms)
                elif answer is not SILENT:
                    self.network.handle(ResponseReceived(effect.request_id, answer), self.now_ms)

    def _answer(self, effect: SendRequest) -> Any:
        frame = effect.frame[4:]
        key, version, correlation_id, _, at = read_request_header(frame)
        message, _ = API_KEYS[key].request.decode(frame, version, at)
        destination = effect.peer.destination
        node = destination.node_id if isinstance(destination, PeerNode) else None
        if key == API_VERSIONS:
            answer = self._api_versions()
        else:
            self.asked.append((node, key, message))
            answer = self.answers[key](node, version, message)
        if not isinstance(answer, Message):
            return answer
        return bytes(encode_response(correlation_id, API_KEYS[key], version, answer))[4:]

    def _api_versions(self) -> Message:
        kind = API_KEYS[API_VERSIONS].response
        one = kind.classes["ApiVersion"]
        keys = [
            one(api_key=key, min_version=api.lowest_version, max_version=min(api.highest_version, self.versions.get(key, 99)))
            for key, api in API_KEYS.items()
            if self.versions.get(key, 0) >= 0
        ]
        return kind.new(api_keys=keys)


def described_controllers(controller: int = 1, error: int = 0) -> Message:
    """An answer of a controller to DescribeCluster."""
    kind = API_KEYS[DESCRIBE_CLUSTER].response
    one = kind.classes["DescribeClusterBroker"]
    nodes = [one(broker_id=node, host=f"host{node}", port=9093) for node in BROKERS]
    return kind.new(endpoint_type=2, cluster_id="id", controller_id=controller, brokers=nodes, error_code=error)


def metadata(controller: int = 1, leaders: dict[tuple[str, int], int] | None = None, error: int = 0) -> Message:
    """An answer to Metadata."""
    kind = API_KEYS[METADATA].response
    broker, topic, partition = (kind.classes[f"MetadataResponse{name}"] for name in ("Broker", "Topic", "Partition"))
    topics = [
        topic(
            name=name,
            error_code=error,
            partitions=[partition(partition_index=index, leader_id=leader)] if not error else [],
        )
        for (name, index), leader in (leaders or {}).items()
    ]
    brokers = [broker(node_id=node, host=f"host{node}", port=9092) for node in BROKERS]
    return kind.new(brokers=brokers, controller_id=controller, topics=topics)
