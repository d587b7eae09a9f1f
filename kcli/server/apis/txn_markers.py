"""WriteTxnMarkers: the end of transactions, written to the partitions that this broker leads (KIP-98).

A marker ends the transaction of a producer in a partition. It is answered when all in-sync replicas have it. It needs ALTER or
CLUSTER_ACTION on the cluster.

partition                           what is done
----------------------------------  ----------------------------------------------------------------------------------------
of __consumer_offsets               the group coordinator writes it: it makes the pending offsets effective, or drops them
any other that this broker leads    appended with origin COORDINATOR
not hosted                          UNKNOWN_TOPIC_OR_PARTITION, also if another broker has it
hosted, but led by another one      NOT_LEADER_OR_FOLLOWER

A marker without a producer id or epoch (-1) cannot be written. As in Kafka, the first one for a partition that is appended to
ends the request: UNKNOWN_SERVER_ERROR for all its partitions, while the markers before it are written. In a partition of
__consumer_offsets only that partition gets the error.

The answers for all markers of a producer are one result, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Producer
from kcli.log.errors import AppendError
from kcli.log.log_validator import AppendOrigin
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.coordinator.coordinator_record import EndTransaction, encode_marker_batch
from kcli.server.coordinator.group.group_coordinator import GROUP_TOPIC
from kcli.server.coordinator.operation import CoordinatorError
from kcli.server.replication.partition import Partition, PartitionError
from kcli.server.replication.purgatory import DelayedOperation
from kcli.server.scheduler import SliceBudget

_ALL_REPLICAS = -1
_WRITE_US = 150
# The coordinator of transactions retries after NOT_LEADER_OR_FOLLOWER; it does not know these errors of a group coordinator.
_NOT_READY = frozenset(
    (error_codes.COORDINATOR_NOT_AVAILABLE, error_codes.COORDINATOR_LOAD_IN_PROGRESS, error_codes.NOT_COORDINATOR)
)


def handle_write_txn_markers(context: RequestContext, request: Message) -> Message | None:
    """Answer a WriteTxnMarkersRequest when all markers are written."""
    if not (context.is_allowed("ALTER", "CLUSTER") or context.is_allowed("CLUSTER_ACTION", "CLUSTER")):
        return _refused(context, request, error_codes.CLUSTER_AUTHORIZATION_FAILED)
    markers = _WriteMarkers(context)
    context.run(markers.write(request), markers.written, context.now_ms)
    return None


def _refused(context: RequestContext, request: Message, code: int) -> Message:
    new, markers = context.new, []
    for marker in request.markers:
        topics = []
        for topic in marker.topics:
            results = [
                new("WritableTxnMarkerPartitionResult", partition_index=index, error_code=code)
                for index in topic.partition_indexes
            ]
            topics.append(new("WritableTxnMarkerTopicResult", name=topic.name, partitions=results))
        markers.append(new("WritableTxnMarkerResult", producer_id=marker.producer_id, topics=topics))
    return new("WriteTxnMarkersResponse", markers=markers)


def _is_complete(producer: Producer) -> bool:
    return producer.producer_id != NO_PRODUCER_ID and producer.producer_epoch != NO_PRODUCER_EPOCH


class _WriteMarkers:
    """One WriteTxnMarkers that is being handled."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._replica_manager = context.broker.replica_manager
        self._answers: dict[int, dict[TopicPartition, Message]] = {}  # by producer id
        self._left = 1  # partitions that are not answered; one more while the request is read
        self._is_refused = False  # the request has been answered with an error

    def write(self, request: Message) -> Iterator[None]:
        """Write each marker to each partition; yield after each time slice."""
        budget = SliceBudget()
        for marker in request.markers:
            producer = Producer(marker.producer_id, marker.producer_epoch)
            end = EndTransaction(producer, marker.coordinator_epoch, marker.transaction_result, marker.transaction_version)
            is_complete = _is_complete(producer)
            for topic in marker.topics:
                for index in topic.partition_indexes:
                    if not is_complete and topic.name != GROUP_TOPIC and self._replica_manager.partition(topic.name, index):
                        self._is_refused = True
                        self._context.respond(_refused(self._context, request, error_codes.UNKNOWN_SERVER_ERROR))
                        return
                    answer = self._context.new("WritableTxnMarkerPartitionResult", partition_index=index)
                    self._answers.setdefault(marker.producer_id, {})[topic.name, index] = answer
                    self._left += 1
                    self._write(topic.name, index, end, answer)
                    if budget.is_spent(_WRITE_US):
                        yield

    def written(self, now_ms: int) -> None:
        """Answer when all markers that were written are replicated."""
        self._done(now_ms)

    def _write(self, topic: str, index: int, end: EndTransaction, answer: Message) -> None:
        now_ms = self._context.broker.timer.clock_ms
        partition = self._replica_manager.partition(topic, index)
        if partition is None:
            answer.error_code = error_codes.UNKNOWN_TOPIC_OR_PARTITION
            self._done(now_ms)
        elif not _is_complete(end.producer):
            answer.error_code = error_codes.UNKNOWN_SERVER_ERROR
            self._done(now_ms)
        elif topic == GROUP_TOPIC:
            self._context.broker.groups.runtime.end_transaction(index, end, partial(self._ended, answer))
        else:
            self._append(partition, end, answer, now_ms)

    def _ended(self, answer: Message, result: CoordinatorError | None, now_ms: int) -> None:
        if result is not None:
            answer.error_code = error_codes.NOT_LEADER_OR_FOLLOWER if result.code in _NOT_READY else result.code
        self._done(now_ms)

    def _append(self, partition: Partition, end: EndTransaction, answer: Message, now_ms: int) -> None:
        wall_ms, origin = self._context.broker.timer.wall.at(now_ms), AppendOrigin.COORDINATOR
        data = memoryview(encode_marker_batch(end, wall_ms))
        try:
            info = partition.append(data, _ALL_REPLICAS, wall_ms, origin, end.transaction_version)
        except (AppendError, PartitionError) as error:
            answer.error_code = error.code
            self._done(now_ms)
            return
        except OSError as error:
            answer.error_code = error_codes.KAFKA_STORAGE_ERROR
            self._replica_manager.handle_log_dir_failure(partition, error)
            self._done(now_ms)
            return
        delayed = _DelayedMarker(partition, info.last_offset + 1, partial(self._replicated, answer))
        deadline_ms = now_ms + self._context.broker.config.get_int("request.timeout.ms")
        self._replica_manager.produce_purgatory.try_complete_else_watch(delayed, [partition.key], deadline_ms, now_ms)

    def _replicated(self, answer: Message, code: int, now_ms: int) -> None:
        answer.error_code = code
        self._done(now_ms)

    def _done(self, now_ms: int) -> None:
        self._left -= 1
        if self._left or self._is_refused:
            return
        new, markers = self._context.new, []
        for producer_id, answers in self._answers.items():
            by_topic: dict[str, list[Message]] = {}
            for (topic, _), answer in answers.items():
                by_topic.setdefault(topic, []).append(answer)
            topics = [new("WritableTxnMarkerTopicResult", name=name, partitions=found) for name, found in by_topic.items()]
            markers.append(new("WritableTxnMarkerResult", producer_id=producer_id, topics=topics))
        self._context.respond(new("WriteTxnMarkersResponse", markers=markers))


class _DelayedMarker(DelayedOperation):
    """A marker that waits until the high watermark of its partition is `end_offset`; then `done(error code, now_ms)`."""

    __slots__ = ("_done", "_end_offset", "partition")

    def __init__(self, partition: Partition, end_offset: int, done: partial[None]) -> None:
        super().__init__()
        self.partition = partition
        self._end_offset = end_offset
        self._done = done

    def _code(self) -> int:
        if not self.partition.is_leader:
            return error_codes.NOT_LEADER_OR_FOLLOWER
        if self.partition.log is None:
            return error_codes.KAFKA_STORAGE_ERROR
        return error_codes.NONE if self.partition.log.high_watermark >= self._end_offset else error_codes.REQUEST_TIMED_OUT

    def can_complete(self, now_ms: int) -> bool:
        """Return whether all in-sync replicas have the marker, or it cannot be known any more."""
        return self._code() != error_codes.REQUEST_TIMED_OUT

    def on_complete(self, now_ms: int) -> None:
        """Take the result, REQUEST_TIMED_OUT after the timeout."""
        self._done(self._code(), now_ms)

    def failed(self, error: Exception) -> None:
        """Take an exception as a failure of the partition."""
        self._done(error_codes.UNKNOWN_SERVER_ERROR, 0)
