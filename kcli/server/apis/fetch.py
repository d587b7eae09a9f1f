"""Fetch: bytes of the logs that this broker leads, as they lie on the disk, up to the offset that the reader may see.

    isolation          sees records up to        and is told of
    -----------------  ------------------------  ---------------------------------------------------------------------
    read uncommitted   the high watermark
    read committed     the last stable offset    the aborted transactions among them, to leave their records out

A request is answered when it has min_bytes, when a partition has an error, or when max_wait_ms have passed. The first
partition that has anything gives at least one batch, however small the limits are, so that a reader always gets on.
Records are regions of files (`FileRegion`): they never pass through Python. Sessions: kcli.server.fetch_session.

Versions 4 to 12 name topics, 13 and later have their ids. From 12 on a reader that tells the epoch of what it read last is
told where its log parts from this one. From 16 on the answer to a wrong leader names the right one.
"""

from __future__ import annotations

from typing import Any

from kcli.log.append_errors import OffsetOutOfRangeError
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.events import FileRegion
from kcli.server.fetch_session import FetchPlan, FetchTarget, SessionError, rotate
from kcli.server.purgatory import DelayedOperation
from kcli.server.replication.partition import PartitionError

TOPIC_IDS_VERSION = 13
READ_COMMITTED = 1
_NO_RECORDS = b""


class DelayedFetch(DelayedOperation):
    """A fetch that waits for bytes; what was read last is what it is answered with."""

    __slots__ = ("answers", "fetch")

    def __init__(self, fetch: _Fetch) -> None:
        super().__init__()
        self.fetch = fetch
        self.answers: list[Message] = []

    def can_complete(self, now_ms: int) -> bool:
        """Read -> True when there is enough, or an error."""
        self.answers, is_enough = self.fetch.read()
        return is_enough

    def on_complete(self, now_ms: int) -> None:
        """Answer with what there is."""
        self.fetch.respond(self.answers, now_ms)


class FetchHandler:
    """Serves Fetch for one broker; `broker` is kcli.server.broker's Broker."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker

    def handle(self, context: RequestContext, request: Message) -> Message | None:
        """Read what a FetchRequest asks for."""
        broker = self._broker
        try:
            plan = broker.fetch_sessions.plan(request, context.version, context.now_ms)
        except SessionError as error:
            return context.new("FetchResponse", error_code=error.code, session_id=0, responses=[])
        fetch = _Fetch(broker, context, request, plan)
        answers, is_enough = fetch.read()
        if is_enough or request.max_wait_ms <= 0:
            fetch.respond(answers, context.now_ms)
            return None
        delayed = DelayedFetch(fetch)
        delayed.answers = answers
        broker.watch_fetch(context.connection, delayed, fetch.keys(), context.now_ms + request.max_wait_ms)
        return None


class _Fetch:
    """One fetch under way."""

    __slots__ = (
        "_broker",
        "_context",
        "_is_committed",
        "_make",
        "_max_bytes",
        "_names",
        "_plan",
        "_refused",
        "_request",
        "_uses_ids",
    )

    def __init__(self, broker: Any, context: RequestContext, request: Message, plan: FetchPlan) -> None:
        self._broker = broker
        self._context = context
        self._request = request
        self._plan = plan
        self._uses_ids = context.version >= TOPIC_IDS_VERSION
        self._is_committed = request.isolation_level == READ_COMMITTED
        self._max_bytes = min(request.max_bytes, broker.fetch_max_bytes)
        self._make = context.api.response.classes["PartitionData"]
        self._refused: set[object] = set()
        self._names = self._find_names()

    def keys(self) -> list[tuple[str, int]]:
        """The partitions whose growth may complete the fetch."""
        found = ((self._names.get(target.topic), target.partition.partition) for target in self._plan.targets)
        return [(name, index) for name, index in found if name is not None]

    def _find_names(self) -> dict[object, str | None]:
        """The names of the topics, None for an unknown id; and which of them the client may not read."""
        names: dict[object, str | None] = {}
        for target in self._plan.targets:
            topic = target.topic
            if topic not in names:
                name: str | None = self._broker.topic_name(topic) if self._uses_ids else topic  # type: ignore[assignment]
                names[topic] = name
                if name is not None and not self._context.is_allowed("READ", "TOPIC", name):
                    self._refused.add(topic)
        return names

    def read(self) -> tuple[list[Message], bool]:
        """Read all targets -> (a PartitionData each, True where that is enough to answer with)."""
        left_bytes = self._max_bytes
        read_bytes = 0
        is_enough = not self._plan.targets
        answers = []
        for target in self._plan.targets:
            max_bytes = target.partition.partition_max_bytes
            if max_bytes > left_bytes:
                max_bytes = left_bytes
            answer = self._read_one(target, max_bytes, read_bytes == 0)
            answers.append(answer)
            size = len(answer.records)
            if size:
                read_bytes += size
                left_bytes = left_bytes - size if size < left_bytes else 0
            elif answer.error_code or answer.diverging_epoch.epoch >= 0:
                is_enough = True
        return answers, is_enough or read_bytes >= self._request.min_bytes

    def _read_one(self, target: FetchTarget, max_bytes: int, is_first: bool) -> Message:
        wanted = target.partition
        name = self._names[target.topic]
        if name is None:
            return self._failed(wanted, error_codes.UNKNOWN_TOPIC_ID)
        if target.topic in self._refused:
            return self._failed(wanted, error_codes.TOPIC_AUTHORIZATION_FAILED)
        partition = self._broker.partitions.get((name, wanted.partition))
        if partition is None:
            return self._failed(wanted, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        try:
            log = partition.leader_log(wanted.current_leader_epoch)
            if wanted.last_fetched_epoch >= 0:
                diverging = self._diverging(log, wanted)
                if diverging is not None:
                    return diverging
            high_watermark = log.high_watermark
            last_stable_offset = log.last_stable_offset
            limit_offset = last_stable_offset if self._is_committed else high_watermark
            slice_ = log.read(wanted.fetch_offset, max_bytes, limit_offset=limit_offset, min_one_message=is_first)
            aborted = None
            if self._is_committed:
                aborted = self._aborted(log, wanted.fetch_offset, limit_offset) if slice_.size else []
        except OffsetOutOfRangeError:
            return self._failed(wanted, error_codes.OFFSET_OUT_OF_RANGE)
        except PartitionError as error:
            answer = self._failed(wanted, error.code)
            answer.current_leader = self._context.new(
                "LeaderIdAndEpoch", leader_id=partition.leader_id, leader_epoch=partition.leader_epoch
            )
            return answer
        except OSError as error:
            self._broker.storage_failed(partition, error)
            return self._failed(wanted, error_codes.KAFKA_STORAGE_ERROR)
        return self._make(
            partition_index=wanted.partition,
            high_watermark=high_watermark,
            last_stable_offset=last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=aborted,
            records=FileRegion(slice_.file, slice_.position, slice_.size) if slice_.file is not None else _NO_RECORDS,
        )

    def _failed(self, wanted: Message, code: int) -> Message:
        return self._make(
            partition_index=wanted.partition, error_code=code, high_watermark=-1, aborted_transactions=None, records=_NO_RECORDS
        )

    def _diverging(self, log: UnifiedLog, wanted: Message) -> Message | None:
        """Where the reader's log parts from this one before its fetch offset; None where it does not."""
        epoch, end_offset = log.leader_epochs.end_offset_for(wanted.last_fetched_epoch, log.log_end_offset)
        if epoch < 0 or end_offset < 0:
            raise OffsetOutOfRangeError(f"no leader epoch {wanted.last_fetched_epoch} is known")
        if epoch >= wanted.last_fetched_epoch and end_offset >= wanted.fetch_offset:
            return None
        return self._make(
            partition_index=wanted.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            diverging_epoch=self._context.new("EpochEndOffset", epoch=epoch, end_offset=end_offset),
            aborted_transactions=None,
            records=_NO_RECORDS,
        )

    def _aborted(self, log: UnifiedLog, start_offset: int, end_offset: int) -> list[Message]:
        make = self._context.api.response.classes["AbortedTransaction"]
        return [
            make(producer_id=txn.producer_id, first_offset=txn.first_offset)
            for txn in log.aborted_transactions(start_offset, end_offset)
        ]

    def respond(self, answers: list[Message], now_ms: int) -> None:
        """Answer with what was read; an incremental fetch leaves out what the client knows."""
        plan, context = self._plan, self._context
        self._count(answers)
        session_id = 0
        told = list(zip(plan.targets, answers))
        if plan.is_incremental and plan.session is not None:
            session_id = plan.session.session_id
            told = [(target, answer) for target, answer in told if target.has_news(answer)]
            for target, answer in told:
                if len(answer.records):
                    rotate(plan.session, target)
        elif plan.begins_session:
            for target, answer in told:
                target.has_news(answer)
            session_id = self._broker.fetch_sessions.begin(plan.targets, self._uses_ids, now_ms)
        context.respond(context.new("FetchResponse", session_id=session_id, responses=self._topics(told)))

    def _topics(self, told: list[tuple[FetchTarget, Message]]) -> list[Message]:
        """The answers by topic; a topic stands once for each stretch of its partitions, as they come."""
        make = self._context.api.response.classes["FetchableTopicResponse"]
        topics: list[Message] = []
        last: object = None
        for target, answer in told:
            if not topics or target.topic != last:
                last = target.topic
                topics.append(make(topic_id=last, partitions=[]) if self._uses_ids else make(topic=last, partitions=[]))
            topics[-1].partitions.append(answer)
        return topics

    def _count(self, answers: list[Message]) -> None:
        metrics = self._broker.metrics
        for target, answer in zip(self._plan.targets, answers):
            name = self._names[target.topic]
            if name is not None:
                topic = metrics.topic(name)
                topic.total_fetch_requests += 1
                topic.bytes_out += len(answer.records)
                if answer.error_code:
                    topic.failed_fetch_requests += 1
