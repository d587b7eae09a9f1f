"""What a handler of a request gets: the request's surroundings, and the broker as handlers may see it.

A handler is a function `(context, request) -> response`, both messages of the API in the request's version. It returns None
where the answer comes later: then whoever has the context calls `context.respond(response)` once.
"""

from __future__ import annotations

from typing import Any, Protocol

from kcli.protocol.apis import Api
from kcli.protocol.message import Message
from kcli.server.authorizer import CLUSTER_NAME, Authorizer
from kcli.server.events import Connection
from kcli.state.metadata_image import MetadataImage


class BrokerPort(Protocol):
    """The broker as handlers see it; kcli.server.broker.broker has it whole."""

    node_id: int
    cluster_id: str
    image: MetadataImage
    config: Any  # kcli.server.config.dynamic_config's DynamicConfig
    disk: Any  # kcli.log.disk.port's LogDisk
    computations: Any  # kcli.server.outstanding's Computations
    log_manager: Any  # kcli.log.log_manager's LogManager
    authorizer: Authorizer
    metrics: Any
    metadata_offset: int
    router: Any  # kcli.server.broker.request_router's RequestRouter
    producer_ids: Any  # kcli.server.broker.producer_ids' ProducerIds
    rng: Any  # kcli.server.rng's Random
    timer: Any  # kcli.server.timing_wheel's Timer
    turns: Any  # kcli.server.apis.slices' Turns
    client_metrics: Any  # kcli.server.metrics.client_metrics' ClientMetrics, or None before a client asks

    def auto_create_topics(self, names: list[str]) -> None:
        """Ask the controller for topics that clients name."""
        ...

    def storage_failed(self, partition: Any, error: OSError) -> None:
        """The disk refused a partition's bytes: its log directory goes offline."""
        ...

    def partition(self, topic: str, index: int) -> Any:
        """The partition that this broker hosts (kcli.server.replication.partition), or None."""
        ...

    def missing_partition_code(self, topic: str, index: int) -> int:
        """What a client is told of a partition that this broker does not host."""
        ...

    def respond(self, context: RequestContext, response: Message) -> None:
        """Answer a request, once."""
        ...

    def fault(self, what: str, error: Exception) -> None:
        """Say in the log that this program has a fault."""
        ...


class RequestContext:
    """One request under way; `now_ms` is when it came. `wants_answer` is False for a produce with acks=0."""

    __slots__ = ("api", "broker", "client_id", "connection", "correlation_id", "now_ms", "version", "wants_answer")

    def __init__(
        self,
        broker: BrokerPort,
        connection: Connection,
        api: Api,
        version: int,
        correlation_id: int,
        client_id: str | None,
        now_ms: int,
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.now_ms = now_ms
        self.wants_answer = True

    def new(self, struct: str, /, **fields: Any) -> Message:
        """A struct of the API's response, by Kafka's name, or the response itself (its name ends in Response)."""
        return self.api.response.classes[struct](**fields)

    def is_allowed(self, operation: str, resource_type: str, resource_name: str = CLUSTER_NAME) -> bool:
        """True where the client may do that."""
        return self.broker.authorizer.is_allowed(self.connection, operation, resource_type, resource_name)

    def is_allowed_somewhere(self, operation: str, resource_type: str) -> bool:
        """True where the client may do that on some resource of the type."""
        return self.broker.authorizer.is_allowed_somewhere(self.connection, operation, resource_type)

    def respond(self, response: Message) -> None:
        """Answer the request, now that it can be."""
        self.broker.respond(self, response)
