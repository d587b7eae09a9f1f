"""Produce: a client's batches are appended to the logs that this broker leads, and acknowledged.

    acks   answered
    -----  ------------------------------------------------------------------------------------------------------------
    0      never; an error closes the connection, which is all that the client can notice
    1      when the leader has the records
    -1     when all in-sync replicas have them (the high watermark has passed them); NOT_ENOUGH_REPLICAS_AFTER_APPEND if they
           are fewer than min.insync.replicas by then

If flush.messages makes a log flush, the answer waits for the disk as well, whatever acks is: in Kafka the append itself does
the fsync. The request's timeout therefore begins after the flush.
Each partition of the request has its own error; one that fails does not delay the others.

A batch whose records take long to check (they inflate to much, or must be rebuilt) is checked by a Compute effect; the answer
waits for it and other clients do not. A request of many partitions is appended in slices, except for large batches, which take
longer to copy than to append: no other request of its connection is handled in between, so a producer's batches stay in order.
The copies of both count in queued.max.request.bytes while they wait (HoldMemory), so reading pauses if they are too many.

Clients may not write to Kafka's own topics, except for its admin tools, which are recognised by their client id.

The first batch of a transaction in a partition waits until the transaction is verified: see transactional_produce.

Versions 3 to 12 name topics, 13 has their ids (KIP-516). zstd needs version 7, so such batches are refused in older ones.
Errors of single records are returned from version 8 on (KIP-467), and the leader if it is another broker from version 10 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from kcli.format.codec_streams import ZSTD
from kcli.format.kafka_uuid import Uuid
from kcli.format.record_batch import CODEC_MASK, HEADER_BYTES
from kcli.format.structs import BATCH_ATTRIBUTES_AT
from kcli.log.append_paths import check_carefully
from kcli.log.errors import AppendError, NotOneBatchError
from kcli.log.log_config import LogConfig
from kcli.log.log_validator import ValidBatch
from kcli.log.record_validator import LongCheckError
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import BrokerParts, RequestContext
from kcli.server.apis.leader_hints import name_leaders
from kcli.server.apis.transactional_produce import TransactionalProduce, is_transactional
from kcli.server.config.topic_config import TopicConfigs
from kcli.server.events import Effect, HoldMemory
from kcli.server.replication.partition import Partition, PartitionError
from kcli.server.replication.purgatory import DelayedOperation
from kcli.server.scheduler import SliceBudget
from kcli.state.topic_names import INTERNAL_TOPICS

# From this version on topics are named by their ids.
TOPIC_IDS_VERSION = 13
ZSTD_VERSION = 7
# From this version on the answer to a wrong leader names the right one (KIP-951).
NAMES_LEADER_VERSION = 10
# The client id that may write to Kafka's own topics.
ADMIN_CLIENT_ID = "__admin_client"
# Errors of an append whose answer does not have the log start offset (Kafka: ReplicaManager.appendRecordsToLeader).
_NO_LOG_START = frozenset(
    (
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        error_codes.NOT_LEADER_OR_FOLLOWER,
        error_codes.MESSAGE_TOO_LARGE,
        error_codes.RECORD_LIST_TOO_LARGE,
        error_codes.CORRUPT_MESSAGE,
        error_codes.KAFKA_STORAGE_ERROR,
    )
)
_OWN_TOPIC = "{} is one of Kafka's own topics, which clients do not write to"
# The limit of memory for all requests that are appended in slices.
MAX_HELD_BYTES = 128 * 1024 * 1024
# What a batch costs: look-ups and system calls, and its bytes; and what copying its bytes into new memory costs.
_APPEND_US = 60
_BYTES_A_US = 2_000
_COPIED_BYTES_A_US = 1_000
_NO_BATCH = memoryview(b"")
_ATTRIBUTES_LOW_BYTE = BATCH_ATTRIBUTES_AT + 1
# A batch whose check takes long, by topic name, topic id (None in old versions) and index, and its part of the response.
ToCheck = tuple[str, Uuid | None, int, memoryview, Message]


class Waiting(NamedTuple):
    """A batch that was appended, or a duplicate of it, and its part of the response.

    The high watermark must reach `end_offset`; `epoch` is the leader epoch of the batch.
    """

    partition: Partition
    end_offset: int
    epoch: int | None
    answer: Message

    def is_lost(self) -> bool:
        """Return whether another leader has had the batch truncated: what is at its offset now may be another one.

        A new leader epoch alone loses nothing: if the log has not been truncated, the batch keeps its offset and its epoch.
        """
        log = self.partition.log
        if self.partition.leader_epoch == self.epoch or log is None:
            return False
        return log.leader_epochs.epoch_for_offset(self.end_offset - 1) != self.epoch


class DelayedProduce(DelayedOperation):
    """A produce that waits until high watermarks have passed its records."""

    __slots__ = ("_context", "_respond", "_response", "_waiting")

    def __init__(
        self, context: RequestContext, respond: Callable[[Message], None], response: Message, waiting: list[Waiting]
    ) -> None:
        super().__init__()
        self._context = context
        self._respond = respond
        self._response = response
        self._waiting = waiting

    def can_complete(self, now_ms: int) -> bool:
        """Return whether all high watermarks have passed the records, or no longer can."""
        left = []
        for waiting in self._waiting:
            partition, answer = waiting.partition, waiting.answer
            if not partition.is_leader or waiting.is_lost():
                answer.error_code = error_codes.NOT_LEADER_OR_FOLLOWER
            elif partition.log is None:
                answer.error_code = error_codes.KAFKA_STORAGE_ERROR
            elif partition.log.high_watermark < waiting.end_offset:
                left.append(waiting)
            elif not partition.has_enough_replicas(partition.log):
                answer.error_code = error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        self._waiting = left
        return not left

    def on_complete(self, now_ms: int) -> None:
        """Answer; the partitions that still wait have timed out."""
        for waiting in self._waiting:
            waiting.answer.error_code = error_codes.REQUEST_TIMED_OUT
        self._respond(self._response)

    def failed(self, error: Exception) -> None:
        """End the request after an exception."""
        self._context.failed(error)


class ProduceHandler:
    """Serves Produce for one broker; `held_bytes` is the memory of requests that are appended in slices."""

    def __init__(
        self,
        broker: BrokerParts,
        topic_configs: TopicConfigs,
        timer: Timer,
        effects: list[Effect],
    ) -> None:
        self.broker = broker
        self.topic_configs = topic_configs
        self.timer = timer
        self.effects = effects
        self.held_bytes = 0

    def handle(self, context: RequestContext, request: Message) -> Message | None:
        """Append the batches of a ProduceRequest; it is answered now or later."""
        context.wants_answer = request.acks != 0
        transaction = None if request.transactional_id is None else TransactionalProduce(context, request, self.effects)
        produce = _Produce(self, context, request, transaction)

        def append(now_ms: int) -> None:
            context.run(produce.append_all(request), produce.finish, now_ms)

        if transaction is None or _refusal(context, request) is not None:
            append(context.now_ms)
        else:
            transaction.verify(append)
        return None


def _refusal(context: RequestContext, request: Message) -> tuple[int, str | None] | None:
    """Return why the whole request is refused, or None."""
    if request.acks not in (-1, 0, 1):
        return error_codes.INVALID_REQUIRED_ACKS, f"acks is {request.acks}; it must be -1, 0 or 1"
    if request.transactional_id is not None and not context.is_allowed("WRITE", "TRANSACTIONAL_ID", request.transactional_id):
        return error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None
    return None


class _Produce:
    """One produce that is being handled."""

    __slots__ = (
        "_acks",
        "_checking",
        "_context",
        "_handler",
        "_held_bytes",
        "_replica_manager",
        "_responses",
        "_timeout_ms",
        "_to_flush",
        "_transaction",
        "_waiting",
    )

    def __init__(
        self, handler: ProduceHandler, context: RequestContext, request: Message, transaction: TransactionalProduce | None
    ) -> None:
        self._handler = handler
        self._replica_manager = handler.broker.replica_manager
        self._context = context
        self._acks = request.acks
        self._timeout_ms = request.timeout_ms
        self._transaction = transaction
        self._responses: list[Message] = []
        self._held_bytes = 0
        self._waiting: list[Waiting] = []
        self._to_flush: list[Waiting] = []
        self._checking: list[ToCheck] = []

    def append_all(self, request: Message) -> Iterator[None]:
        """Append the batch of each partition; a step is a slice."""
        try:
            yield from self._append_topics(request)
        except Exception:
            self._release_unchecked()
            raise
        finally:
            if self._held_bytes:
                self._handler.held_bytes -= self._held_bytes
                self._handler.effects.append(HoldMemory(-self._held_bytes))

    def _append_topics(self, request: Message) -> Iterator[None]:
        handler, context, budget = self._handler, self._context, SliceBudget()
        classes = context.api.response.classes
        make_topic, make_partition = classes["TopicProduceResponse"], classes["PartitionProduceResponse"]
        uses_ids = context.version >= TOPIC_IDS_VERSION
        refusal = _refusal(context, request)
        now_ms = max(context.now_ms, handler.timer.clock_ms)
        for topic in request.topic_data:
            topic_id = topic.topic_id if uses_ids else None
            name = topic.name if topic_id is None else handler.broker.metadata.topic_name(topic_id)
            answers: list[Message] = []
            self._responses.append(
                make_topic(topic_id=topic.topic_id, partition_responses=answers)
                if uses_ids
                else make_topic(name=topic.name, partition_responses=answers)
            )
            for data in topic.partition_data:
                answer = make_partition(index=data.index, error_code=0, base_offset=-1)
                answers.append(answer)
                records, data.records = data.records, None
                if refusal is not None:
                    answer.error_code, answer.error_message = refusal
                    continue
                self.append(name, topic_id, data.index, records, answer, now_ms)
                if budget.is_spent(_APPEND_US if records is None else _APPEND_US + len(records) // _BYTES_A_US):
                    self._hold(request)
                    if self._held_bytes:
                        yield
                        now_ms = handler.timer.clock_ms

    def _hold(self, request: Message) -> None:
        """Copy the batches that are left, once: the shell reuses the frame after this slice.

        The request is done in one slice instead if too much is held already, or if appending takes less time than the copy.
        """
        if self._held_bytes:
            return
        left = [data for topic in request.topic_data for data in topic.partition_data if data.records]
        size_bytes = sum(len(data.records) for data in left)
        if self._handler.held_bytes + size_bytes > MAX_HELD_BYTES:
            return
        if size_bytes // _COPIED_BYTES_A_US > len(left) * _APPEND_US + size_bytes // _BYTES_A_US:
            return
        for data in left:
            data.records = memoryview(bytearray(data.records))
        self._handler.held_bytes += size_bytes
        self._handler.effects.append(HoldMemory(size_bytes))
        self._held_bytes = size_bytes

    def append(
        self,
        name: str | None,
        topic_id: Uuid | None,
        index: int,
        records: memoryview | ValidBatch | None,
        answer: Message,
        now_ms: int,
    ) -> None:
        """Append the batch of one partition, as received or checked, and fill in `answer`."""
        context, replica_manager = self._context, self._replica_manager
        partition = self._find_partition(name, topic_id, index, answer)
        if name is None or partition is None:
            return
        topic_metrics = context.broker.metrics.topic(name)
        if not isinstance(records, ValidBatch):
            topic_metrics.total_produce_requests += 1
        size_bytes = 0 if records is None else len(records)
        is_checked = False
        try:
            if records is not None:
                self._check_kind(partition, records)
            is_checked = True
            if name in INTERNAL_TOPICS and size_bytes and context.client_id != ADMIN_CLIENT_ID:
                answer.error_code, answer.error_message = error_codes.INVALID_TOPIC_EXCEPTION, _OWN_TOPIC.format(name)
                return
            wall_ms = self._handler.timer.wall.at(now_ms)
            info = partition.append(records if records is not None and size_bytes else _NO_BATCH, self._acks, wall_ms)
        except LongCheckError:
            assert isinstance(records, memoryview)
            self._check_later(name, topic_id, index, records, answer)
            return
        except (AppendError, PartitionError) as error:
            self._refused(name, size_bytes, answer, error)
            if is_checked and _has_log_start(error) and partition.log is not None:
                answer.log_start_offset = partition.log.log_start_offset
            return
        except OSError as error:
            topic_metrics.failed_produce_requests += 1
            answer.error_code, answer.error_message = error_codes.KAFKA_STORAGE_ERROR, error.strerror
            replica_manager.handle_log_dir_failure(partition, error)
            return
        log = partition.log
        if log is None:
            # The append has woken a fetch, whose read has taken the log directory offline.
            topic_metrics.failed_produce_requests += 1
            answer.error_code = error_codes.KAFKA_STORAGE_ERROR
            return
        answer.base_offset, answer.log_start_offset = info.first_offset, info.log_start_offset
        answer.log_append_time_ms = info.log_append_time_ms
        if not info.duplicate:
            topic_metrics.bytes_in += size_bytes
            topic_metrics.messages_in += info.record_count
        end_offset = info.last_offset + 1
        if log.high_watermark < end_offset:
            epoch = log.leader_epochs.epoch_for_offset(info.last_offset) if info.duplicate else partition.leader_epoch
            waiting = Waiting(partition, end_offset, epoch, answer)
            self._waiting.append(waiting)
            if log.committable_offset() < end_offset:
                self._to_flush.append(waiting)

    def _find_partition(self, name: str | None, topic_id: Uuid | None, index: int, answer: Message) -> Partition | None:
        """Return the partition if the client may write to it and it is hosted here; otherwise fill in the error."""
        if name is None:
            answer.error_code = error_codes.UNKNOWN_TOPIC_ID
            return None
        if not self._context.is_allowed("WRITE", "TOPIC", name):
            answer.error_code = error_codes.TOPIC_AUTHORIZATION_FAILED
            return None
        partition = self._replica_manager.partition(name, index)
        if partition is None:
            answer.error_code = self._replica_manager.missing_partition_code(name, index)
        elif topic_id is not None and partition.topic_id != topic_id:
            # The topic was deleted, and another one of its name created.
            answer.error_code = error_codes.UNKNOWN_TOPIC_ID
            return None
        return partition

    def _check_later(self, name: str, topic_id: Uuid | None, index: int, records: memoryview, answer: Message) -> None:
        """Copy a batch whose check takes long: the shell reuses the frame after this event."""
        self._handler.effects.append(HoldMemory(len(records)))
        self._checking.append((name, topic_id, index, memoryview(bytearray(records)), answer))

    def _check_kind(self, partition: Partition, records: memoryview | ValidBatch) -> None:
        """Refuse a batch that a client may not send in this version, or that has no open transaction. Raises PartitionError."""
        if isinstance(records, memoryview) and self._context.version < ZSTD_VERSION and _is_zstd(records):
            raise PartitionError(error_codes.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7 of Produce")
        if not is_transactional(records):
            return
        if self._transaction is None:
            text = "a batch of a transaction needs a transactional id"
            raise PartitionError(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, text)
        self._transaction.check(partition, records)

    def _refused(self, name: str, size_bytes: int, answer: Message, error: AppendError | PartitionError) -> None:
        self._context.broker.metrics.topic(name).append_refused(error.code, size_bytes)
        answer.error_code, answer.error_message = error.code, str(error)
        answer.record_errors = _record_errors(self._context, error)

    def finish(self, now_ms: int) -> None:
        """Check the batches that take long, wait for flushes and for replicas, then answer. All other batches are appended."""
        if self._checking:
            self._check_next(now_ms)
        elif self._to_flush:
            self._wait_for_flushes(now_ms)
        else:
            self._wait_for_replicas(now_ms)

    def _check_next(self, now_ms: int) -> None:
        """Check one batch outside the event loop, then append it. One at a time, so that memory stays bounded."""
        name, topic_id, index, records, answer = self._checking.pop(0)
        config = self._handler.topic_configs.log_config(name)

        def checked(result: ValidBatch | Exception, now_ms: int) -> None:
            self._handler.effects.append(HoldMemory(-len(records)))
            try:
                if isinstance(result, AppendError):
                    self._refused(name, len(records), answer, result)
                    partition = self._replica_manager.partition(name, index)
                    if _has_log_start(result) and partition is not None and partition.log is not None:
                        answer.log_start_offset = partition.log.log_start_offset
                elif isinstance(result, Exception):
                    raise result
                else:
                    self.append(name, topic_id, index, result, answer, now_ms)
                self.finish(now_ms)
            except Exception as error:
                self._release_unchecked()
                self._context.failed(error)

        wall_ms = self._handler.timer.wall.at(now_ms)
        self._context.broker.computations.compute(partial(_check, records, config, wall_ms), checked)

    def _release_unchecked(self) -> None:
        """Drop the batches that wait for their check: the request has failed."""
        self._handler.effects.append(HoldMemory(-sum(len(left) for _, _, _, left, _ in self._checking)))
        self._checking.clear()

    def _wait_for_flushes(self, now_ms: int) -> None:
        """Wait until the appended batches are durable; a partition whose flush fails gets KAFKA_STORAGE_ERROR.

        One that has moved to another broker concurrently gets NOT_LEADER_OR_FOLLOWER: its log may be gone before the flush, or
        what is flushed may be what another leader has written there.
        """
        left = len(self._to_flush)

        def flushed(error: OSError | None, now_ms: int, waiting: Waiting) -> None:
            nonlocal left
            left -= 1
            answer = waiting.answer
            if waiting.is_lost() or (error is not None and not waiting.partition.is_leader):
                answer.error_code = error_codes.NOT_LEADER_OR_FOLLOWER
            elif error is not None:
                answer.error_code, answer.error_message = error_codes.KAFKA_STORAGE_ERROR, error.strerror
            if left:
                return
            try:
                self._wait_for_replicas(now_ms)
            except Exception as fault:
                self._context.failed(fault)

        for waiting in self._to_flush:
            waiting.partition.when_flushed(waiting.end_offset, partial(flushed, waiting=waiting), now_ms)

    def _wait_for_replicas(self, now_ms: int) -> None:
        """With acks=-1, answer when all in-sync replicas have the records; else at once."""
        context = self._context
        response = context.api.response.classes["ProduceResponse"](responses=self._responses)
        if self._acks == -1 and self._waiting:
            waiting = [entry for entry in self._waiting if not entry.answer.error_code]
            if waiting:
                delayed = DelayedProduce(context, self._respond, response, waiting)
                keys = [entry.partition.key for entry in waiting]
                deadline_ms = now_ms + max(0, self._timeout_ms)
                self._replica_manager.produce_purgatory.try_complete_else_watch(delayed, keys, deadline_ms, now_ms)
                return
        self._respond(response)

    def _respond(self, response: Message) -> None:
        """Answer, and name other leaders."""
        context = self._context
        failed = [(topic, part) for topic in response.responses for part in topic.partition_responses if part.error_code]
        if failed and context.version >= NAMES_LEADER_VERSION:
            topic_name, uses_ids = context.broker.metadata.topic_name, context.version >= TOPIC_IDS_VERSION
            parts = ((topic_name(topic.topic_id) if uses_ids else topic.name, part.index, part) for topic, part in failed)
            response.node_endpoints = name_leaders(context, parts)
        context.respond(response)


def _has_log_start(error: AppendError | PartitionError) -> bool:
    """Return whether the answer to a refused batch has the log start offset."""
    return error.code not in _NO_LOG_START and not isinstance(error, NotOneBatchError)


def _check(records: memoryview, config: LogConfig, now_ms: int) -> ValidBatch | Exception:
    """Check a batch outside the event loop; an exception is returned, because none may be raised there."""
    try:
        return check_carefully(records, config, now_ms)
    except Exception as error:
        return error


def _is_zstd(records: memoryview) -> bool:
    return len(records) >= HEADER_BYTES and records[_ATTRIBUTES_LOW_BYTE] & CODEC_MASK == ZSTD


def _record_errors(context: RequestContext, error: Exception) -> list[Message]:
    make = context.api.response.classes["BatchIndexAndErrorMessage"]
    return [
        make(batch_index=index, batch_index_error_message=text) for index, text in getattr(error, "record_errors", None) or ()
    ]


def first_error(response: Message) -> int:
    """Return the first error in a ProduceResponse, 0 for none: it closes a connection with acks=0."""
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                return int(answer.error_code)
    return 0
