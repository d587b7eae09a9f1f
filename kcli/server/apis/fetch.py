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

    __slots__ = ("_broker", "_context", "_is_committed", "_make", "_max_bytes", "_plan", "_request", "_uses_ids")

    def __init__(self, broker: Any, context: RequestContext, request: Message, plan: FetchPlan) -> None:
        self._broker = broker
        self._context = context
        self._request = request
        self._plan = plan
        self._uses_ids = context.version >= TOPIC_IDS_VERSION
        self._is_committed = request.isolation_level == READ_COMMITTED
        self._max_bytes = min(request.max_bytes, broker.fetch_max_bytes)
        self._make = context.api.response.classes["PartitionData"]

    def keys(self) -> list[tuple[str, int]]:
        """The partitions whose growth may complete the fetch."""
        keys = []
        for target in self._plan.targets:
            name = self._name(target)
            if name is not None:
                keys.append((name, target.partition.partition))
        return keys

    def _name(self, target: FetchTarget) -> str | None:
        return self._broker.topic_name(target.topic) if self._uses_ids else target.topic  # type: ignore[return-value]

    def read(self) -> tuple[list[Message], bool]:
        """Read all targets -> (a PartitionData each, True where that is enough to answer with)."""
        left_bytes = self._max_bytes
        read_bytes = 0
        is_enough = not self._plan.targets
        answers = []
        for target in self._plan.targets:
            wanted = target.partition
            answer = self._make(partition_index=wanted.partition, error_code=0, high_watermark=-1, records=_NO_RECORDS)
            answers.append(answer)
            max_bytes = min(wanted.partition_max_bytes, left_bytes)
            self._read_one(target, wanted, answer, max_bytes, read_bytes == 0)
            size = len(answer.records)
            read_bytes += size
            left_bytes = max(0, left_bytes - size)
            if answer.error_code or answer.diverging_epoch.epoch >= 0:
                is_enough = True
        return answers, is_enough or read_bytes >= self._request.min_bytes

    def _read_one(self, target: FetchTarget, wanted: Message, answer: Message, max_bytes: int, is_first: bool) -> None:
        name = self._name(target)
        partition = None
        if name is None:
            answer.error_code = error_codes.UNKNOWN_TOPIC_ID
            return
        if not self._context.is_allowed("READ", "TOPIC", name):
            answer.error_code = error_codes.TOPIC_AUTHORIZATION_FAILED
            return
        partition = self._broker.partition(name, wanted.partition)
        if partition is None:
            answer.error_code = error_codes.UNKNOWN_TOPIC_OR_PARTITION
            return
        try:
            log = partition.leader_log(wanted.current_leader_epoch)
            if wanted.last_fetched_epoch >= 0 and self._diverges(log, wanted, answer):
                return
            limit_offset = log.last_stable_offset if self._is_committed else log.high_watermark
            slice_ = log.read(wanted.fetch_offset, max_bytes, limit_offset=limit_offset, min_one_message=is_first)
        except OffsetOutOfRangeError:
            answer.error_code = error_codes.OFFSET_OUT_OF_RANGE
            return
        except PartitionError as error:
            answer.error_code = error.code
            if partition is not None:
                leader = {"leader_id": partition.leader_id, "leader_epoch": partition.leader_epoch}
                answer.current_leader = self._context.new("LeaderIdAndEpoch", **leader)
            return
        except OSError as error:
            answer.error_code = error_codes.KAFKA_STORAGE_ERROR
            self._broker.storage_failed(partition, error)
            return
        answer.high_watermark = log.high_watermark
        answer.last_stable_offset = log.last_stable_offset
        answer.log_start_offset = log.log_start_offset
        if slice_.size:
            answer.records = FileRegion(slice_.file, slice_.position, slice_.size)
        if self._is_committed:
            answer.aborted_transactions = self._aborted(log, wanted.fetch_offset, limit_offset) if slice_.size else []
        else:
            answer.aborted_transactions = None

    def _diverges(self, log: UnifiedLog, wanted: Message, answer: Message) -> bool:
        """True where the reader's log parts from this one before its fetch offset; the answer then tells where."""
        epoch, end_offset = log.leader_epochs.end_offset_for(wanted.last_fetched_epoch, log.log_end_offset)
        if epoch < 0 or end_offset < 0:
            raise OffsetOutOfRangeError(f"no leader epoch {wanted.last_fetched_epoch} is known")
        if epoch >= wanted.last_fetched_epoch and end_offset >= wanted.fetch_offset:
            return False
        answer.diverging_epoch = self._context.new("EpochEndOffset", epoch=epoch, end_offset=end_offset)
        answer.high_watermark = log.high_watermark
        answer.last_stable_offset = log.last_stable_offset
        answer.log_start_offset = log.log_start_offset
        return True

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
            name = self._name(target)
            if name is not None:
                topic = metrics.topic(name)
                topic.total_fetch_requests += 1
                topic.bytes_out += len(answer.records)
                if answer.error_code:
                    topic.failed_fetch_requests += 1
