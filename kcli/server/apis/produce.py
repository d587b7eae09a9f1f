"""Produce: a client's batches into the logs that this broker leads, and the answer when they count.

    acks   answered
    -----  ------------------------------------------------------------------------------------------------------------
    0      never; an error closes the connection, which is all that the client can see
    1      when the leader has them
    -1     when all in-sync replicas have them (the high watermark has passed them)

Where flush.messages or flush.ms makes a log flush, the answer waits for the disk as well, whatever the acks say: in Kafka
the append itself does the fsync; so the request's timeout begins behind it, and never answers for a disk that is not done.
Other partitions of the request are not held up by one that fails: each has its own error.

Versions 3 to 12 name topics, 13 has their ids (KIP-516). Below version 7 zstd is not known, so such batches are refused.
Errors of single records are told from version 8 on (KIP-467).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kcli.format.codec_streams import ZSTD
from kcli.format.record_batch import CODEC_MASK, HEADER, HEADER_BYTES
from kcli.log.append_errors import AppendError
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.purgatory import DelayedOperation
from kcli.server.replication.partition import Partition, PartitionError

# From this version on topics are named by their ids.
TOPIC_IDS_VERSION = 13
ZSTD_VERSION = 7
_ATTRIBUTES_LOW_BYTE = HEADER.offset_of("attributes") + 1
# A partition that was appended to, the offset that its high watermark must reach, its part of the response.
Waiting = tuple[Partition, int, Message]
ToFlush = tuple[UnifiedLog, Message]


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
    """Serves Produce for one broker; `broker` is kcli.server.broker's Broker."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker

    def handle(self, context: RequestContext, request: Message) -> Message | None:
        """Append what a ProduceRequest carries."""
        acks = request.acks
        context.wants_answer = acks != 0
        classes = context.api.response.classes
        make_topic, make_partition = classes["TopicProduceResponse"], classes["PartitionProduceResponse"]
        uses_ids = context.version >= TOPIC_IDS_VERSION
        responses: list[Message] = []
        waiting: list[Waiting] = []
        to_flush: list[ToFlush] = []
        refusal = self._refusal(context, request)
        for topic in request.topic_data:
            name = self._broker.topic_name(topic.topic_id) if uses_ids else topic.name
            answers = []
            for data in topic.partition_data:
                answer = make_partition(index=data.index, error_code=0, base_offset=-1)
                answers.append(answer)
                if refusal is not None:
                    answer.error_code, answer.error_message = refusal
                else:
                    self._append(context, name, data, acks, answer, waiting, to_flush)
            responses.append(
                make_topic(topic_id=topic.topic_id, partition_responses=answers)
                if uses_ids
                else make_topic(name=topic.name, partition_responses=answers)
            )
        response = classes["ProduceResponse"](responses=responses)
        if to_flush:
            self._wait_for_flushes(context, request, response, waiting, to_flush)
        else:
            self._wait_for_replicas(context, request, response, waiting, context.now_ms)
        return None

    def _refusal(self, context: RequestContext, request: Message) -> tuple[int, str | None] | None:
        """Why the whole request is refused, or None."""
        if request.acks not in (-1, 0, 1):
            return error_codes.INVALID_REQUIRED_ACKS, f"acks is {request.acks}; -1, 0 and 1 are known"
        if request.transactional_id is not None and not context.is_allowed(
            "WRITE", "TRANSACTIONAL_ID", request.transactional_id
        ):
            return error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None
        return None

    def _append(
        self,
        context: RequestContext,
        name: str | None,
        data: Message,
        acks: int,
        answer: Message,
        waiting: list[Waiting],
        to_flush: list[ToFlush],
    ) -> None:
        """Append one partition's batches; `answer` is filled in."""
        broker = self._broker
        if name is None:
            answer.error_code = error_codes.UNKNOWN_TOPIC_ID
            return
        if not context.is_allowed("WRITE", "TOPIC", name):
            answer.error_code = error_codes.TOPIC_AUTHORIZATION_FAILED
            return
        partition = broker.partition(name, data.index)
        if partition is None:
            answer.error_code = broker.missing_partition_code(name, data.index)
            return
        topic_metrics = broker.metrics.topic(name)
        topic_metrics.total_produce_requests += 1
        records = data.records
        size_bytes = 0 if records is None else len(records)
        try:
            if context.version < ZSTD_VERSION and size_bytes >= HEADER_BYTES and _is_zstd(records):
                raise PartitionError(error_codes.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7 of Produce")
            info = partition.append(records if size_bytes else memoryview(b""), acks, context.now_ms)
        except (AppendError, PartitionError) as error:
            topic_metrics.append_refused(error.code, size_bytes)
            answer.error_code, answer.error_message = error.code, str(error)
            answer.record_errors = _record_errors(context, error)
            return
        except OSError as error:
            topic_metrics.failed_produce_requests += 1
            answer.error_code, answer.error_message = error_codes.KAFKA_STORAGE_ERROR, error.strerror
            broker.storage_failed(partition, error)
            return
        log = partition.log
        answer.base_offset = info.first_offset
        answer.log_append_time_ms = info.log_append_time_ms
        answer.log_start_offset = info.log_start_offset
        if not info.duplicate:
            topic_metrics.bytes_in += size_bytes
            topic_metrics.messages_in += info.record_count
        if log.high_watermark <= info.last_offset:
            waiting.append((partition, info.last_offset + 1, answer))
        elif not info.duplicate:
            broker.fetch_purgatory.check(partition.key, context.now_ms)
        if log.needs_flush(context.now_ms, by_time=False):
            to_flush.append((log, answer))

    def _wait_for_flushes(
        self, context: RequestContext, request: Message, response: Message, waiting: list[Waiting], to_flush: list[ToFlush]
    ) -> None:
        """Go on when the disk has all of it; a partition that it refuses has its error."""
        left = len(to_flush)

        def flushed(error: OSError | None, now_ms: int, answer: Message) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                answer.error_code, answer.error_message = error_codes.KAFKA_STORAGE_ERROR, error.strerror
            if not left:
                self._wait_for_replicas(context, request, response, waiting, now_ms)

        for log, answer in to_flush:
            self._broker.flush_log(log, partial(flushed, answer=answer), context.now_ms)

    def _wait_for_replicas(
        self, context: RequestContext, request: Message, response: Message, waiting: list[Waiting], now_ms: int
    ) -> None:
        """Answer when all in-sync replicas have it, where that is asked for; else at once."""
        waiting = [entry for entry in waiting if not entry[2].error_code]
        if request.acks != -1 or not waiting:
            context.respond(response)
            return
        delayed = DelayedProduce(context, response, waiting)
        keys = [partition.key for partition, _, _ in waiting]
        deadline_ms = now_ms + max(0, request.timeout_ms)
        self._broker.produce_purgatory.try_complete_else_watch(delayed, keys, deadline_ms, now_ms)


def _is_zstd(records: memoryview) -> bool:
    return records[_ATTRIBUTES_LOW_BYTE] & CODEC_MASK == ZSTD


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
