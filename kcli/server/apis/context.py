"""What the handler of a request is given: the request's context, and the parts of the broker.

A handler is a function `(context, request) -> response`; both messages are of the API in the request's version. It returns None
if the answer comes later: then `context.respond(response)` or `context.failed(error)` is called once. Long requests are tasks
of the broker's scheduler (`run`, `respond_after`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kcli.protocol.apis import Api
from kcli.protocol.message import Message
from kcli.server.authorizer import CLUSTER_NAME, Authorizer
from kcli.server.events import Connection

if TYPE_CHECKING:
    from kcli.format.primitives import Buffer
    from kcli.log.disk.port import LogDisk
    from kcli.network.timing_wheel import Timer
    from kcli.server.broker.producer_ids import ProducerIdManager
    from kcli.server.broker.topic_creation import AutoTopicCreationManager
    from kcli.server.config.dynamic_config import DynamicConfig
    from kcli.server.coordinator.group.group_coordinator import GroupCoordinator
    from kcli.server.coordinator.share.share_coordinator import ShareCoordinator
    from kcli.server.coordinator.transaction.transaction_coordinator import TransactionCoordinator
    from kcli.server.log_lines import Loggers
    from kcli.server.metadata_cache import EncodedAnswer, MetadataCache
    from kcli.server.metrics.broker_metrics import BrokerMetrics
    from kcli.server.metrics.client_metrics import ClientMetricsManager
    from kcli.server.outstanding import Computations
    from kcli.server.replication.replica_manager import ReplicaManager
    from kcli.server.replication.share.share_partition_manager import SharePartitionManager
    from kcli.server.replication.share_persister import DefaultStatePersister
    from kcli.server.replication.transaction_verification import AddPartitionsToTxnManager
    from kcli.server.scheduler import Scheduler

# What the part of an answer for a topic or a partition costs, for kcli.server.scheduler.SliceBudget.
TOPIC_US = 10
PARTITION_US = 5


class BrokerParts(NamedTuple):
    """The parts of a broker that its handlers use."""

    node_id: int
    cluster_id: str
    config: DynamicConfig
    metadata: MetadataCache
    replica_manager: ReplicaManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    share_partitions: SharePartitionManager
    txn_verification: AddPartitionsToTxnManager
    share_coordinator: ShareCoordinator
    share_persister: DefaultStatePersister
    authorizer: Authorizer
    metrics: BrokerMetrics
    client_metrics: ClientMetricsManager
    producer_ids: ProducerIdManager
    topic_creation: AutoTopicCreationManager
    computations: Computations
    scheduler: Scheduler
    timer: Timer
    disk: LogDisk
    loggers: Loggers
    controller: Forwarder


class Forwarder(Protocol):
    """What passes requests on to the active controller: kcli.server.broker.node_to_controller_channel."""

    def forward(self, context: RequestContext, frame: Buffer, answered: Callable[[bytes], None] | None = None) -> None:
        """Send a request to the controller, and its answer to the client, or to `answered` in its place."""
        ...


class Responder(Protocol):
    """What ends a request: kcli.server.broker.request_router."""

    def respond(self, context: RequestContext, response: Message) -> None:
        """Answer a request, once."""
        ...

    def respond_encoded(self, context: RequestContext, answer: EncodedAnswer) -> None:
        """Answer a request, once, with an answer that was encoded for this or another request."""
        ...

    def failed(self, context: RequestContext, error: Exception) -> None:
        """Log a fault of this program, and answer the request with UNKNOWN_SERVER_ERROR or close its connection."""
        ...


class RequestContext:
    """One request; `now_ms` is when it came. `wants_answer` is False for a produce with acks=0."""

    __slots__ = (
        "_responder",
        "api",
        "broker",
        "client_id",
        "connection",
        "correlation_id",
        "now_ms",
        "version",
        "wants_answer",
    )

    def __init__(
        self,
        broker: BrokerParts,
        responder: Responder,
        connection: Connection,
        api: Api,
        version: int,
        correlation_id: int,
        client_id: str | None,
        now_ms: int,
    ) -> None:
        self.broker = broker
        self._responder = responder
        self.connection = connection
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.now_ms = now_ms
        self.wants_answer = True

    def new(self, struct: str, /, **fields: object) -> Message:
        """Make a struct of the API's response by Kafka's name, or the response itself (its name ends in Response)."""
        return self.api.response.classes[struct](**fields)

    def is_allowed(self, operation: str, resource_type: str, resource_name: str = CLUSTER_NAME) -> bool:
        """Return whether the client may do `operation` on that resource."""
        return self.broker.authorizer.is_allowed(self.connection, operation, resource_type, resource_name)

    def is_allowed_by_type(self, operation: str, resource_type: str) -> bool:
        """Return whether the client may do `operation` on at least one resource of the type."""
        return self.broker.authorizer.is_allowed_by_type(self.connection, operation, resource_type)

    def respond(self, response: Message) -> None:
        """Answer the request, once."""
        self._responder.respond(self, response)

    def respond_encoded(self, answer: EncodedAnswer) -> None:
        """Answer the request, once, with an answer that was encoded for this or another request of the same version."""
        self._responder.respond_encoded(self, answer)

    def failed(self, error: Exception) -> None:
        """End the request after an exception that is a fault of this program."""
        self._responder.failed(self, error)

    def run(self, work: Iterator[None], done: Callable[[int], None], now_ms: int) -> None:
        """Run work in time slices, then `done(now_ms)`, which answers; see kcli.server.scheduler."""
        self.broker.scheduler.run(work, now_ms, done, self.failed)

    def respond_after(self, work: Iterator[None], response: Message) -> None:
        """Run `work`, which fills in `response`, in time slices, then send the response."""
        self.run(work, lambda now_ms: self.respond(response), self.now_ms)
