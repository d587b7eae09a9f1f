"""Sends the batches of a producer and decides what each answer means (Kafka: Sender).

    `poll`, after each call and event      what happens
    -------------------------------------  ------------------------------------------------------------------------------------
    a batch is older than                  it fails with KafkaTimeoutError, in the queue or in flight; of one in flight the
    delivery.timeout.ms                    memory is returned when its request has ended
    a node has a ready batch, can be       `drain`, one Produce; again until nothing more can be sent. A node takes
    reached and is not throttled           max.in.flight.requests.per.connection requests, whose answers come in order
    a topic has no leader                  new metadata are asked for

    answer for a batch                     the batch
    -------------------------------------  ------------------------------------------------------------------------------------
    no error; acks=0; DUPLICATE_SEQUENCE   succeeds
    MESSAGE_TOO_LARGE, several records     is split, and the parts are sent
    retriable, or the transaction manager  is sent again after its backoff, unless it has been sent again `retries` times or
    can repair it (`can_retry`)            has reached delivery.timeout.ms; no answer (NETWORK_EXCEPTION) is retriable
    any other                              fails, and each record that the broker names with its own message (KIP-467)

    also in an answer                      then
    -------------------------------------  ------------------------------------------------------------------------------------
    an error of stale metadata             new metadata are asked for; a leader that the answer names is used at once (KIP-951)
    throttle_time_ms                       the node gets no request for so long (KIP-219)

    version of Produce                     when
    -------------------------------------  ------------------------------------------------------------------------------------
    13: topic ids                          the metadata have the ids of all topics of the request
    12                                     otherwise
    11                                     a transaction whose partitions are added by AddPartitionsToTxn

The order of a partition's records is kept without idempotence only if one request may be in flight; then a partition is muted
while a batch of it is in flight. The batches come from a BatchQueue, which RecordAccumulator is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from kcli.client.cluster import NO_EPOCH, NO_LEADER, Cluster
from kcli.client.errors import ClientError, InvalidRecordError, KafkaError, KafkaTimeoutError
from kcli.client.metadata import LeaderIdAndEpoch, Node
from kcli.client.network_client import NetworkClient
from kcli.client.producer.producer_batch import NO_OFFSET, NO_TIMESTAMP, ProducerBatch
from kcli.client.producer.producer_metrics import ProducerMetrics
from kcli.client.producer.record_accumulator import ReadyCheckResult
from kcli.format.primitives import TopicPartition
from kcli.network.peer_request import Answer, AuthenticationFailure, InvalidRequest, PeerFailure
from kcli.network.timing_wheel import TimerTask
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, PRODUCE
from kcli.protocol.message import Message

ACKS_ALL = -1
_LAST_VERSION_WITH_NAMES = 12
_LAST_VERSION_OF_ADDED_PARTITIONS = 11
# Kafka: InvalidMetadataException.
STALE_METADATA = frozenset(
    (
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        error_codes.LEADER_NOT_AVAILABLE,
        error_codes.NOT_LEADER_OR_FOLLOWER,
        error_codes.REPLICA_NOT_AVAILABLE,
        error_codes.NETWORK_EXCEPTION,
        error_codes.KAFKA_STORAGE_ERROR,
        error_codes.LISTENER_NOT_FOUND,
        error_codes.FENCED_LEADER_EPOCH,
        error_codes.UNKNOWN_TOPIC_ID,
        error_codes.INCONSISTENT_TOPIC_ID,
    )
)
_LEADER_MOVED = frozenset((error_codes.NOT_LEADER_OR_FOLLOWER, error_codes.FENCED_LEADER_EPOCH))


class SenderConfig(NamedTuple):
    """What the sender needs of the producer's settings; `acks` is 0, 1 or ACKS_ALL."""

    acks: int = ACKS_ALL
    max_in_flight: int = 5
    retries: int = 2147483647
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000


class PartitionResult(NamedTuple):
    """The result of one batch (Kafka: ProduceResponse.PartitionResponse)."""

    error_code: int
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = NO_OFFSET
    message: str | None = None
    record_errors: tuple[tuple[int, str | None], ...] = ()


class BatchQueue(Protocol):
    """The batches that wait to be sent; RecordAccumulator says what each method does."""

    next_expiry_ms: int | None
    broken: list[tuple[ProducerBatch, Exception]]  # batches that `drain` could not encode

    def ready(self, cluster: Cluster, now_ms: int) -> ReadyCheckResult:
        """Return the nodes that have a ready batch, and when to ask again."""
        ...

    def drain(self, cluster: Cluster, nodes: Iterable[int], now_ms: int) -> dict[int, list[ProducerBatch]]:
        """Take out batches for one request to each of the nodes."""
        ...

    def update_node_times(self, node: int, now_ms: int, *, can_drain: bool) -> None:
        """Note that a node has a ready batch and whether it can take it."""
        ...

    def mute_partition(self, topic: str, partition: int) -> None:
        """Keep the batches of a partition until `unmute_partition`."""
        ...

    def unmute_partition(self, topic: str, partition: int) -> None:
        """Return the batches of a partition again."""
        ...

    def reenqueue(self, batch: ProducerBatch, now_ms: int) -> None:
        """Put a batch back that is to be sent again after its backoff."""
        ...

    def split_and_reenqueue(self, batch: ProducerBatch) -> int:
        """Put the parts of a batch back that is too large; return their number."""
        ...

    def expired_batches(self, now_ms: int) -> list[ProducerBatch]:
        """Take out the batches that have reached delivery.timeout.ms; set `next_expiry_ms`."""
        ...

    def note_expiry(self, batch: ProducerBatch) -> None:
        """Set `next_expiry_ms` not later than the expiry of a batch in flight."""
        ...

    def deallocate(self, batch: ProducerBatch) -> None:
        """Return the memory of a batch that has ended."""
        ...

    def has_undrained(self) -> bool:
        """Return whether a batch is in a queue."""
        ...


class SenderTransactions(Protocol):
    """What the sender asks of an idempotent or transactional producer (Kafka: TransactionManager)."""

    @property
    def transactional_id(self) -> str | None:
        """The transactional id, None of a producer that is idempotent only."""
        ...

    @property
    def adds_partitions(self) -> bool:
        """Whether AddPartitionsToTxn adds partitions to a transaction, and not Produce (transaction.version 0 and 1)."""
        ...

    def can_retry(self, batch: ProducerBatch, result: PartitionResult) -> bool:
        """Return whether a batch that failed may be sent again, maybe with another sequence."""
        ...

    def completed(self, batch: ProducerBatch, result: PartitionResult) -> None:
        """Take a batch that was written (Kafka: handleCompletedBatch)."""
        ...

    def failed(self, batch: ProducerBatch, error: ClientError, *, adjust_sequences: bool) -> None:
        """Take a batch that failed; `adjust_sequences` if no log has it (Kafka: handleFailedBatch)."""
        ...

    def remove_in_flight_batch(self, batch: ProducerBatch) -> None:
        """Take a batch that its parts replace."""
        ...

    def mark_sequence_unresolved(self, batch: ProducerBatch) -> None:
        """Take a batch that expired after it was sent: whether a log has it is not known."""
        ...


class Sender:
    """The sender of one producer; `ended(batch)` is called once for each batch that has ended, also a split one."""

    def __init__(
        self,
        network: NetworkClient,
        queue: BatchQueue,
        config: SenderConfig,
        metrics: ProducerMetrics,
        ended: Callable[[ProducerBatch, int], None],
        transactions: SenderTransactions | None = None,
    ) -> None:
        self.in_flight_requests = 0
        self._network = network
        self._queue = queue
        self._config = config
        self._metrics = metrics
        self._ended = ended
        self._transactions = transactions
        self._keeps_order = config.max_in_flight == 1
        self._requests: dict[int, int] = {}  # by node
        self._throttled_until: dict[int, int] = {}
        # Batches that were sent. Those of them that expired are in the set, until their requests end.
        self._in_flight: dict[ProducerBatch, None] = {}
        self._expired: set[ProducerBatch] = set()
        self._next_expiry_ms = 0
        self._wake: TimerTask | None = None
        self._wake_ms: int | None = None
        self._classes = API_KEYS[PRODUCE].request.classes

    @property
    def has_work(self) -> bool:
        """Whether a batch waits or is in flight."""
        return self.in_flight_requests > 0 or self._queue.has_undrained()

    def poll(self, now_ms: int) -> None:
        """Fail what has expired, send what can be sent, and arm the timer for the next time."""
        if now_ms >= self._next_expiry_ms:
            self._expire(now_ms)
        wake_ms = self._send_ready(now_ms)
        while wake_ms == now_ms:
            wake_ms = self._send_ready(now_ms)
        self._arm(self._next_expiry_ms if wake_ms is None else min(wake_ms, self._next_expiry_ms))

    def _arm(self, at_ms: int) -> None:
        if self._wake is not None and self._wake.callback is not None and self._wake_ms == at_ms:
            return
        if self._wake is not None:
            self._wake.cancel()
        # `poll` follows whatever the timer runs.
        self._wake, self._wake_ms = self._network.timer.schedule(at_ms, lambda now_ms: None), at_ms

    # ---------------------------------------------------------------------------------------------------------- sending

    def _send_ready(self, now_ms: int) -> int | None:
        """Send one request to each node that has a ready batch and can take it.

        Return when to try again: `now_ms` if a node may take more, None if only an event or a call changes anything.
        """
        cluster = self._network.metadata.cluster
        found = self._queue.ready(cluster, now_ms)
        if found.unknown_leader_topics:
            for topic in found.unknown_leader_topics:
                self._network.metadata.want_topic(topic)
            if not self._network.is_update_wanted:
                self._network.request_update()
        wake_ms = None if found.next_check_delay_ms is None else now_ms + found.next_check_delay_ms
        nodes = []
        for node in found.ready_nodes:
            until_ms = self._throttled_until.get(node, 0)
            if now_ms < until_ms:
                wake_ms = until_ms if wake_ms is None else min(wake_ms, until_ms)
            can_drain = (
                now_ms >= until_ms
                and self._requests.get(node, 0) < self._config.max_in_flight
                and self._network.make_ready(node)
            )
            self._queue.update_node_times(node, now_ms, can_drain=can_drain)
            if can_drain:
                nodes.append(node)
        if nodes:
            for node, batches in self._queue.drain(cluster, sorted(nodes), now_ms).items():
                if batches:
                    self._send(node, batches, now_ms)
                    if self._requests[node] < self._config.max_in_flight:
                        wake_ms = now_ms  # it may take more
            if self._queue.broken:
                self._fail_broken(now_ms)
                wake_ms = now_ms
        return wake_ms

    def _fail_broken(self, now_ms: int) -> None:
        broken, self._queue.broken = self._queue.broken, []
        for batch, problem in broken:
            error = InvalidRecordError(f"the records of {batch.topic}-{batch.partition} cannot be encoded: {problem}")
            self._fail(batch, error, {}, now_ms, adjust=True)

    def _send(self, node: int, batches: list[ProducerBatch], now_ms: int) -> None:
        for batch in batches:
            self._in_flight[batch] = None
            if self._keeps_order:
                self._queue.mute_partition(batch.topic, batch.partition)
        self._requests[node] = self._requests.get(node, 0) + 1
        self.in_flight_requests += 1
        self._metrics.sent(batches, now_ms)
        known_ids = self._network.metadata.topic_ids
        ids = {batch.topic: known_ids[batch.topic] for batch in batches if batch.topic in known_ids}
        max_version = None
        if self._transactions is not None and self._transactions.transactional_id and self._transactions.adds_partitions:
            max_version = _LAST_VERSION_OF_ADDED_PARTITIONS
        elif any(batch.topic not in ids for batch in batches):
            max_version = _LAST_VERSION_WITH_NAMES
        self._network.send(
            node,
            PRODUCE,
            partial(self._request, batches, ids),
            partial(self._answered, node, batches, ids, now_ms),
            self._config.request_timeout_ms,
            has_answer=self._config.acks != 0,
            max_version=max_version,
        )

    def _request(self, batches: list[ProducerBatch], ids: dict[str, bytes], version: int) -> Message:
        of_topic, of_partition = self._classes["TopicProduceData"], self._classes["PartitionProduceData"]
        topics: dict[str, Message] = {}
        for batch in batches:
            topic = topics.get(batch.topic)
            if topic is None:
                topic_id = {"topic_id": ids[batch.topic]} if version > _LAST_VERSION_WITH_NAMES else {}
                topic = topics[batch.topic] = of_topic(name=batch.topic, partition_data=[], **topic_id)
            topic.partition_data.append(of_partition(index=batch.partition, records=batch.encoded()))
        return self._classes["ProduceRequest"](
            transactional_id=None if self._transactions is None else self._transactions.transactional_id,
            acks=self._config.acks,
            timeout_ms=self._config.request_timeout_ms,
            topic_data=list(topics.values()),
        )

    # ---------------------------------------------------------------------------------------------------------- answers

    def _answered(
        self, node: int, batches: list[ProducerBatch], ids: dict[str, bytes], sent_ms: int, answer: Answer, now_ms: int
    ) -> None:
        self._requests[node] -= 1
        self.in_flight_requests -= 1
        if isinstance(answer, PeerFailure):
            code, detail = _failure_result(answer)
            for batch in batches:
                self._finish(batch, PartitionResult(code, message=detail), now_ms)
            return
        if self._config.acks == 0:
            for batch in batches:
                self._finish(batch, PartitionResult(error_codes.NONE), now_ms)
            return
        self._metrics.answered(now_ms - sent_ms, answer.throttle_time_ms)
        if answer.throttle_time_ms > 0:
            self._throttled_until[node] = now_ms + answer.throttle_time_ms
        names = {topic_id: name for name, topic_id in ids.items()}
        results = {}
        leaders = {}
        for topic in answer.responses:
            name = topic.name or names.get(topic.topic_id, "")
            for entry in topic.partition_responses:
                results[name, entry.index] = entry
                leader = entry.current_leader
                if entry.error_code in _LEADER_MOVED and leader.leader_id > NO_LEADER and leader.leader_epoch > NO_EPOCH:
                    leaders[name, entry.index] = LeaderIdAndEpoch(leader.leader_id, leader.leader_epoch)
        if leaders:
            self._take_leaders(leaders, answer, now_ms)
        for batch in batches:
            found = results.get((batch.topic, batch.partition))
            self._finish(batch, _MISSING if found is None else _result(found), now_ms)

    def _take_leaders(self, leaders: dict[TopicPartition, LeaderIdAndEpoch], answer: Message, now_ms: int) -> None:
        nodes = [Node(one.node_id, one.host, one.port, one.rack) for one in answer.node_endpoints]
        self._network.metadata.update_leaders(leaders, nodes, now_ms)

    def _finish(self, batch: ProducerBatch, result: PartitionResult, now_ms: int) -> None:
        """Decide what becomes of a batch whose request has ended."""
        self._in_flight.pop(batch, None)
        code = result.error_code
        if batch in self._expired:
            self._expired.discard(batch)
            if code in (error_codes.NONE, error_codes.DUPLICATE_SEQUENCE_NUMBER) and self._transactions is not None:
                self._transactions.completed(batch, result)
            self._queue.deallocate(batch)
        elif code in (error_codes.NONE, error_codes.DUPLICATE_SEQUENCE_NUMBER):
            self._succeed(batch, result, now_ms)
        elif batch.is_done:  # the producer was closed
            if self._transactions is not None:
                self._transactions.remove_in_flight_batch(batch)
            self._queue.deallocate(batch)
        elif code == error_codes.MESSAGE_TOO_LARGE and batch.record_count > 1:
            self._split(batch, now_ms)
        elif self._can_retry(batch, result, now_ms):
            self._queue.reenqueue(batch, now_ms)
            self._metrics.retried(batch)
        else:
            error = KafkaError(code, result.message)
            self._fail(batch, error, _record_errors(batch, result), now_ms, adjust=batch.attempts < self._config.retries)
        if code in STALE_METADATA:
            self._network.request_update()
        if self._keeps_order:
            self._queue.unmute_partition(batch.topic, batch.partition)

    def _can_retry(self, batch: ProducerBatch, result: PartitionResult, now_ms: int) -> bool:
        if batch.has_reached_delivery_timeout(self._config.delivery_timeout_ms, now_ms):
            return False
        if batch.attempts >= self._config.retries:
            return False
        if self._transactions is not None:
            return self._transactions.can_retry(batch, result)
        return result.error_code in error_codes.RETRIABLE

    def _succeed(self, batch: ProducerBatch, result: PartitionResult, now_ms: int) -> None:
        if self._transactions is not None:
            self._transactions.completed(batch, result)
        if batch.complete(result.base_offset, result.log_append_time_ms):
            self._ended(batch, now_ms)
        self._queue.deallocate(batch)

    def _split(self, batch: ProducerBatch, now_ms: int) -> None:
        if self._transactions is not None:
            self._transactions.remove_in_flight_batch(batch)
        self._queue.split_and_reenqueue(batch)
        self._queue.deallocate(batch)
        self._metrics.batch_split_total += 1
        self._ended(batch, now_ms)

    def _fail(
        self, batch: ProducerBatch, error: ClientError, record_errors: dict[int, Exception], now_ms: int, *, adjust: bool
    ) -> None:
        if self._transactions is not None:
            self._transactions.failed(batch, error, adjust_sequences=adjust)
        if batch.fail(error, record_errors):
            self._metrics.failed(batch)
            self._ended(batch, now_ms)
        if batch not in self._in_flight:
            self._queue.deallocate(batch)

    # ------------------------------------------------------------------------------------------------------------ expiry

    def _expire(self, now_ms: int) -> None:
        """Fail what has reached delivery.timeout.ms, and note when the next batch does."""
        limit_ms = self._config.delivery_timeout_ms
        expired = self._queue.expired_batches(now_ms)
        for batch in self._in_flight:
            if batch.is_done:
                continue
            if batch.has_reached_delivery_timeout(limit_ms, now_ms):
                expired.append(batch)
            else:
                self._queue.note_expiry(batch)
        # A batch that begins later expires later.
        latest_ms = now_ms + limit_ms
        next_ms = self._queue.next_expiry_ms
        self._next_expiry_ms = latest_ms if next_ms is None else min(next_ms, latest_ms)
        for batch in expired:
            is_in_flight = batch in self._in_flight
            if is_in_flight:
                self._expired.add(batch)
            age_ms = now_ms - batch.created_ms
            what = f"{batch.record_count} records of {batch.topic}-{batch.partition} were not written in {age_ms} ms"
            error = KafkaTimeoutError(f"{what} (delivery.timeout.ms is {limit_ms}){self._reason(batch)}")
            self._fail(batch, error, {}, now_ms, adjust=False)
            if self._transactions is not None and (is_in_flight or batch.attempts):
                self._transactions.mark_sequence_unresolved(batch)

    def _reason(self, batch: ProducerBatch) -> str:
        """Say why a batch could not be sent, as far as it is known."""
        leader = self._network.metadata.cluster.leader_for(batch.topic, batch.partition)
        if leader == NO_LEADER:
            return ": the partition has no leader"
        return f": {self._network.failure_reason()}" if self._network.is_backing_off(leader) else ""


_MISSING = PartitionResult(error_codes.NETWORK_EXCEPTION, message="the answer to Produce does not have the partition")


def _failure_result(failure: PeerFailure) -> tuple[int, str]:
    if failure is PeerFailure.TIMED_OUT:
        return error_codes.REQUEST_TIMED_OUT, "the broker did not answer Produce in request.timeout.ms"
    if isinstance(failure, AuthenticationFailure):
        return error_codes.NETWORK_EXCEPTION, failure.reason
    if isinstance(failure, InvalidRequest):
        return error_codes.INVALID_REQUEST, f"Produce cannot be encoded: {failure.reason}"
    if failure is PeerFailure.UNSUPPORTED_VERSION:
        return error_codes.UNSUPPORTED_VERSION, "the broker does not support Produce in a version that these records need"
    return error_codes.NETWORK_EXCEPTION, "the connection ended before the answer to Produce"


def _result(found: Message) -> PartitionResult:
    errors = tuple((one.batch_index, one.batch_index_error_message) for one in found.record_errors)
    return PartitionResult(
        found.error_code, found.base_offset, found.log_append_time_ms, found.log_start_offset, found.error_message, errors
    )


def _record_errors(batch: ProducerBatch, result: PartitionResult) -> dict[int, Exception]:
    """Return an error for each record of a batch of which the broker refused some; none if it named no record.

    The answer has one code for the partition. It is that of the record if only one was refused; of several records each could
    be the one with that error, so that they have INVALID_RECORD, and the sound ones have no code, as in Kafka
    (Sender.failBatch).
    """
    if not result.record_errors:
        return {}
    others = ClientError("the record is sound, and was not appended: the broker refused other records of its batch")
    errors: dict[int, Exception] = dict.fromkeys(range(batch.record_count), others)
    code = result.error_code if len(result.record_errors) == 1 else error_codes.INVALID_RECORD
    for index, message in result.record_errors:
        errors[index] = KafkaError(code, message or result.message)
    return errors
