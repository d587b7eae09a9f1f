"""Produce: a client's batches into the logs that this broker leads, and the answer when they count.

    acks   answered
    -----  ------------------------------------------------------------------------------------------------------------
    0      never; an error closes the connection, which is all that the client can see
    1      when the leader has them
    -1     when all in-sync replicas have them (the high watermark has passed them)

Where flush.messages or flush.ms makes a log flush, the answer waits for the disk as well, whatever the acks say: in Kafka
the append itself does the fsync; so the request's timeout begins behind it, and never answers for a disk that is not done.
Other partitions of the request are not held up by one that fails: each has its own error.

A batch whose records take long to check (they inflate to much, or must be built anew) is checked by a Compute effect, and the
answer waits for it; the other clients do not. A request of many partitions is appended in slices, but for large batches, which
are appended sooner than copied: no other of its connection is served meanwhile, so a producer's batches stay in their order.
What both copy counts in queued.max.request.bytes while it waits (HoldMemory), so that reading pauses where too much does.

Kafka's own topics take nothing from clients but from its admin tools, which say who they are by their client id.

A batch of a transaction is refused with UNSUPPORTED_VERSION while transactions are not served: nothing could end the
transaction, and the last stable offset would stay at it forever. Kafka's own client takes that code for fatal
(TransactionManager of 4.3), where INVALID_TXN_STATE would have it abort the transaction and try again. Clients that look for a
coordinator first fail there with the same: kafka-python with error 35, librdkafka with a fatal _UNSUPPORTED_FEATURE. Logs that
Kafka wrote may have such batches: recovery, reads and replication do not come here.

Versions 3 to 12 name topics, 13 has their ids (KIP-516). Below version 7 zstd is not known, so such batches are refused.
Errors of single records are told from version 8 on (KIP-467).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from kcli.format.codec_streams import ZSTD
from kcli.format.kafka_uuid import Uuid
from kcli.format.record_batch import CODEC_MASK, CONTROL_FLAG, HEADER_BYTES, MAGIC, MAGIC_POSITION, TRANSACTIONAL_FLAG
from kcli.format.structs import BATCH_ATTRIBUTES_AT
from kcli.log.append_errors import AppendError
from kcli.log.append_paths import check_carefully
from kcli.log.log_config import LogConfig
from kcli.log.log_validator import ValidBatch
from kcli.log.record_validator import LongCheckError
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.slices import Pace, in_slices
from kcli.server.events import HoldMemory
from kcli.server.log_lines import WarningLine
from kcli.server.replication.partition import Partition, PartitionError
from kcli.server.replication.purgatory import DelayedOperation
from kcli.state.topic_names import INTERNAL_TOPICS

# From this version on topics are named by their ids.
TOPIC_IDS_VERSION = 13
ZSTD_VERSION = 7
# The one client id that may write to Kafka's own topics.
ADMIN_CLIENT_ID = "__admin_client"
_NO_TRANSACTIONS = "kcli serve does not serve transactions yet; produce without a transactional.id"
_OWN_TOPIC = "{} is one of Kafka's own topics, which clients do not write to"
# Requests that are appended in slices are held in memory, all together at most so much.
MAX_HELD_BYTES = 128 * 1024 * 1024
# What a batch costs: some look-ups and calls of the system, and its bytes; and what it costs to copy it into new memory.
_APPEND_US = 60
_BYTES_A_US = 2_000
_COPIED_BYTES_A_US = 1_000
_ATTRIBUTES_LOW_BYTE = BATCH_ATTRIBUTES_AT + 1
# A partition that was appended to, the offset that its high watermark must reach, its part of the response.
Waiting = tuple[Partition, int, Message]
ToFlush = tuple[UnifiedLog, Message]
# A batch whose check takes long, by topic (its id where the version has it) and index, and its part of the response.
ToCheck = tuple[str, Uuid | None, int, memoryview, Message]


class DelayedProduce(DelayedOperation):
    """A produce that waits for high watermarks to pass what it appended."""

    __slots__ = ("_response", "_waiting", "context")

    def __init__(self, context: RequestContext, response: Message, waiting: list[Waiting]) -> None:
        super().__init__()
        self.context = context
        self._response = response
        self._waiting = waiting

    def can_complete(self, now_ms: int) -> bool:
        """True when all high watermarks have passed, or cannot any more."""
        left = []
        for partition, offset, answer in self._waiting:
            if not partition.is_leader:
                answer.error_code = error_codes.NOT_LEADER_OR_FOLLOWER
            elif partition.log is None:
                answer.error_code = error_codes.KAFKA_STORAGE_ERROR
            elif partition.log.high_watermark < offset:
                left.append((partition, offset, answer))
        self._waiting = left
        return not left

    def on_complete(self, now_ms: int) -> None:
        """Answer; what is still waited for gets its error."""
        for _, _, answer in self._waiting:
            answer.error_code = error_codes.REQUEST_TIMED_OUT
        self.context.respond(self._response)


class ProduceHandler:
    """Serves Produce for one broker; `broker` is kcli.server.broker.broker's Broker."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker

    def handle(self, context: RequestContext, request: Message) -> Message | None:
        """Append what a ProduceRequest carries."""
        context.wants_answer = request.acks != 0
        produce = _Produce(self._broker, context, request)
        in_slices(context, produce.append_all(request), produce.finish, context.now_ms)
        return None


def _refusal(context: RequestContext, request: Message) -> tuple[int, str | None] | None:
    """Why the whole request is refused, or None."""
    if request.acks not in (-1, 0, 1):
        return error_codes.INVALID_REQUIRED_ACKS, f"acks is {request.acks}; -1, 0 and 1 are known"
    if request.transactional_id is not None and not context.is_allowed("WRITE", "TRANSACTIONAL_ID", request.transactional_id):
        return error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None
    return None


class _Produce:
    """One produce under way."""

    __slots__ = (
        "_acks",
        "_broker",
        "_checking",
        "_context",
        "_held_bytes",
        "_responses",
        "_timeout_ms",
        "_to_flush",
        "_waiting",
    )

    def __init__(self, broker: Any, context: RequestContext, request: Message) -> None:
        self._broker = broker
        self._context = context
        self._acks = request.acks
        self._timeout_ms = request.timeout_ms
        self._responses: list[Message] = []
        self._held_bytes = 0
        self._waiting: list[Waiting] = []
        self._to_flush: list[ToFlush] = []
        self._checking: list[ToCheck] = []

    def append_all(self, request: Message) -> Iterator[None]:
        """Append each partition's batch; a step is a slice."""
        try:
            yield from self._append_topics(request)
        finally:
            if self._held_bytes:
                self._broker.held_produce_bytes -= self._held_bytes
                self._broker.effects.append(HoldMemory(-self._held_bytes))

    def _append_topics(self, request: Message) -> Iterator[None]:
        broker, context, pace = self._broker, self._context, Pace()
        classes = context.api.response.classes
        make_topic, make_partition = classes["TopicProduceResponse"], classes["PartitionProduceResponse"]
        uses_ids = context.version >= TOPIC_IDS_VERSION
        refusal = _refusal(context, request)
        now_ms = context.now_ms
        for topic in request.topic_data:
            topic_id = topic.topic_id if uses_ids else None
            name = topic.name if topic_id is None else broker.topic_name(topic_id)
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
                if pace.is_due(_APPEND_US if records is None else _APPEND_US + len(records) // _BYTES_A_US):
                    self._hold(request)
                    if self._held_bytes:
                        yield
                        now_ms = broker.timer.clock_ms

    def _hold(self, request: Message) -> None:
        """Copy what is still to be appended, once: the frame is the shell's again after this slice.

        Where so much is held already that there is no room, this request has to be done in one go; and where that is done
        before a copy would be, which holds the loop as well.
        """
        if self._held_bytes:
            return
        left = [data for topic in request.topic_data for data in topic.partition_data if data.records]
        size_bytes = sum(len(data.records) for data in left)
        if self._broker.held_produce_bytes + size_bytes > MAX_HELD_BYTES:
            return
        if size_bytes // _COPIED_BYTES_A_US > len(left) * _APPEND_US + size_bytes // _BYTES_A_US:
            return
        for data in left:
            data.records = memoryview(bytearray(data.records))
        self._broker.held_produce_bytes += size_bytes
        self._broker.effects.append(HoldMemory(size_bytes))
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
        """Append one partition's batch, as it came or checked; `answer` is filled in."""
        broker, context = self._broker, self._context
        if name is None:
            answer.error_code = error_codes.UNKNOWN_TOPIC_ID
            return
        if not context.is_allowed("WRITE", "TOPIC", name):
            answer.error_code = error_codes.TOPIC_AUTHORIZATION_FAILED
            return
        partition = broker.partition(name, index)
        if partition is None:
            answer.error_code = broker.missing_partition_code(name, index)
            return
        if topic_id is not None and partition.topic_id != topic_id:
            # Meanwhile the topic was deleted, and one of its name made.
            answer.error_code = error_codes.UNKNOWN_TOPIC_ID
            return
        topic_metrics = broker.metrics.topic(name)
        if not isinstance(records, ValidBatch):
            topic_metrics.total_produce_requests += 1
        size_bytes = 0 if records is None else len(records)
        if name in INTERNAL_TOPICS and size_bytes and context.client_id != ADMIN_CLIENT_ID:
            answer.error_code, answer.error_message = error_codes.INVALID_TOPIC_EXCEPTION, _OWN_TOPIC.format(name)
            return
        try:
            if isinstance(records, memoryview):
                self._check_kind(name, records, now_ms)
            info = partition.append(records if size_bytes else memoryview(b""), self._acks, broker.timer.wall.at(now_ms))
        except LongCheckError:
            assert isinstance(records, memoryview)
            self._check_later(name, topic_id, index, records, answer)
            return
        except (AppendError, PartitionError) as error:
            self._refused(name, size_bytes, answer, error)
            return
        except OSError as error:
            topic_metrics.failed_produce_requests += 1
            answer.error_code, answer.error_message = error_codes.KAFKA_STORAGE_ERROR, error.strerror
            broker.storage_failed(partition, error)
            return
        log = partition.log
        answer.base_offset, answer.log_start_offset = info.first_offset, info.log_start_offset
        answer.log_append_time_ms = info.log_append_time_ms
        if not info.duplicate:
            topic_metrics.bytes_in += size_bytes
            topic_metrics.messages_in += info.record_count
        if log.high_watermark <= info.last_offset:
            self._waiting.append((partition, info.last_offset + 1, answer))
        elif not info.duplicate:
            broker.fetch_purgatory.check(partition.key, now_ms)
        if log.needs_flush(now_ms, by_time=False):
            self._to_flush.append((log, answer))

    def _check_later(self, name: str, topic_id: Uuid | None, index: int, records: memoryview, answer: Message) -> None:
        """Copy a batch whose check takes long: the frame is the shell's again when this event is done with."""
        self._broker.effects.append(HoldMemory(len(records)))
        self._checking.append((name, topic_id, index, memoryview(bytearray(records)), answer))

    def _check_kind(self, topic: str, records: memoryview, now_ms: int) -> None:
        """Refuse a batch that a client may not send in this version, or not at all. Raises PartitionError."""
        if self._context.version < ZSTD_VERSION and _is_zstd(records):
            raise PartitionError(error_codes.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7 of Produce")
        if _is_transactional(records):
            self._tell_transactional(topic, now_ms)
            raise PartitionError(error_codes.UNSUPPORTED_VERSION, _NO_TRANSACTIONS)

    def _tell_transactional(self, topic: str, now_ms: int) -> None:
        host, client_id = self._context.connection.client_host, self._context.client_id

        def line(count: int) -> WarningLine:
            text = f"transactional batches were refused ({count}), the last of {client_id!r} at {host} for {topic}"
            return WarningLine(f"{text}: {_NO_TRANSACTIONS}", topic=topic, host=host)

        self._broker.transactional_lines.tell(line, now_ms)

    def _refused(self, name: str, size_bytes: int, answer: Message, error: AppendError | PartitionError) -> None:
        self._broker.metrics.topic(name).append_refused(error.code, size_bytes)
        answer.error_code, answer.error_message = error.code, str(error)
        answer.record_errors = _record_errors(self._context, error)

    def finish(self, now_ms: int) -> None:
        """All partitions were looked at: check what takes long, wait for flushes, for replicas; then answer."""
        if self._checking:
            self._check_next(now_ms)
        elif self._to_flush:
            self._wait_for_flushes(now_ms)
        else:
            self._wait_for_replicas(now_ms)

    def _check_next(self, now_ms: int) -> None:
        """Have one batch checked beside the loop, and append it then; one after the other, so memory stays bounded."""
        name, topic_id, index, records, answer = self._checking.pop(0)
        config = self._broker.topic_config(name)

        def checked(result: ValidBatch | Exception, now_ms: int) -> None:
            self._broker.effects.append(HoldMemory(-len(records)))
            if isinstance(result, Exception) and not isinstance(result, AppendError):
                self._broker.effects.append(HoldMemory(-sum(len(left) for _, _, _, left, _ in self._checking)))
                self._broker.router.failed(self._context, result)
                return
            if isinstance(result, AppendError):
                self._refused(name, len(records), answer, result)
            else:
                self.append(name, topic_id, index, result, answer, now_ms)
            self.finish(now_ms)

        self._broker.computations.compute(partial(_check, records, config, self._broker.timer.wall.at(now_ms)), checked)

    def _wait_for_flushes(self, now_ms: int) -> None:
        """Go on when the disk has all of it; a partition that it refuses has its error."""
        left = len(self._to_flush)

        def flushed(error: OSError | None, now_ms: int, answer: Message) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                answer.error_code, answer.error_message = error_codes.KAFKA_STORAGE_ERROR, error.strerror
            if not left:
                self._wait_for_replicas(now_ms)

        for log, answer in self._to_flush:
            self._broker.flush_log(log, partial(flushed, answer=answer), now_ms)

    def _wait_for_replicas(self, now_ms: int) -> None:
        """Answer when all in-sync replicas have it, where that is asked for; else at once."""
        context = self._context
        response = context.api.response.classes["ProduceResponse"](responses=self._responses)
        if self._acks == -1 and self._waiting:
            waiting = [entry for entry in self._waiting if not entry[2].error_code]
            if waiting:
                delayed = DelayedProduce(context, response, waiting)
                keys = [partition.key for partition, _, _ in waiting]
                deadline_ms = now_ms + max(0, self._timeout_ms)
                self._broker.produce_purgatory.try_complete_else_watch(delayed, keys, deadline_ms, now_ms)
                return
        context.respond(response)


def _check(records: memoryview, config: LogConfig, now_ms: int) -> ValidBatch | Exception:
    """What is done beside the loop, where nobody would see it fail."""
    try:
        return check_carefully(records, config, now_ms)
    except Exception as error:
        return error


def _is_zstd(records: memoryview) -> bool:
    return len(records) >= HEADER_BYTES and records[_ATTRIBUTES_LOW_BYTE] & CODEC_MASK == ZSTD


def _is_transactional(records: memoryview) -> bool:
    """Whether it is data of a transaction; control batches of clients have an error of their own."""
    if len(records) < HEADER_BYTES or records[MAGIC_POSITION] != MAGIC:
        return False
    return records[_ATTRIBUTES_LOW_BYTE] & (TRANSACTIONAL_FLAG | CONTROL_FLAG) == TRANSACTIONAL_FLAG


def _record_errors(context: RequestContext, error: Exception) -> list[Message]:
    make = context.api.response.classes["BatchIndexAndErrorMessage"]
    return [
        make(batch_index=index, batch_index_error_message=text) for index, text in getattr(error, "record_errors", None) or ()
    ]


def first_error(response: Message) -> int:
    """The first error in a ProduceResponse, 0 where there is none: it decides what becomes of a connection with acks=0."""
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                return int(answer.error_code)
    return 0
