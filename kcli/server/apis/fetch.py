"""Fetch: bytes of the logs that this broker leads, as they lie on the disk, up to the offset that the reader may see.

    isolation          sees records up to        and is told of
    -----------------  ------------------------  ---------------------------------------------------------------------
    read uncommitted   the high watermark
    read committed     the last stable offset    the aborted transactions that touch the offsets of its records, to leave
                                                 theirs out (Kafka: LocalLog.addAbortedTransactions)

answered              when
--------------------  ---------------------------------------------------------------------------------------------------
at once               min_bytes are there (or fetch.max.bytes, where that is less); a log refuses; a log parts from the
                      reader's; there is no partition that could grow; max_wait_ms is 0
later                 one of the partitions has grown and now it is enough, or is gone or led by another; or time is up
not                   the connection ends first

A partition that nobody knows, or that the reader may not see, does not end the wait for the others, as in Kafka: else a reader
that still asks for a deleted topic would ask without a pause. The first partition that has anything gives at least one batch,
however small the limits are, so that a reader always gets on. While a fetch waits, an append costs it a look at the one
partition that has grown; what it is answered with is read when it is answered, for files may be closed meanwhile. A fetch of
many partitions is read in slices, and what has records is read once more when it is answered.
Records are regions of files (`FileRegion`): they never pass through Python. Sessions: kcli.server.apis.fetch_session.

Versions 4 to 12 name topics, 13 and later have their ids. From 12 on a reader that tells the epoch of what it read last is
told where its log parts from this one. From 16 on the answer to a wrong leader names the right one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from kcli.log.append_errors import OffsetOutOfRangeError
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.fetch_session import FetchPlan, FetchTarget, SessionError, rotate
from kcli.server.apis.slices import Pace, in_slices
from kcli.server.events import FileRegion
from kcli.server.replication.partition import Partition, PartitionError
from kcli.server.replication.purgatory import DelayedOperation

TOPIC_IDS_VERSION = 13
# From this version on the answer to who asks a wrong leader, or by an old epoch, names the right one (KIP-951).
NAMES_LEADER_VERSION = 16
READ_COMMITTED = 1
_WRONG_LEADER = (error_codes.NOT_LEADER_OR_FOLLOWER, error_codes.FENCED_LEADER_EPOCH)
# What is told of a partition that no log of this broker answers for.
_NO_LOG = (
    error_codes.UNKNOWN_TOPIC_ID,
    error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    error_codes.TOPIC_AUTHORIZATION_FAILED,
)
_NO_RECORDS = b""
# Of so many partitions a fetch is read in slices. Each costs so much, where its files are not open.
MANY_PARTITIONS = 150
_READ_US = 100


class DelayedFetch(DelayedOperation):
    """A fetch that waits for bytes; `sizes` is what each of its partitions had when it was looked at last."""

    __slots__ = ("_fetch", "_size_bytes", "_sizes", "_targets", "context")

    def __init__(self, fetch: _Fetch, context: RequestContext, targets: dict[Hashable, FetchTarget], sizes: list[int]) -> None:
        super().__init__()
        self.context = context
        self._fetch = fetch
        self._targets = targets
        self._sizes = dict(zip(targets, sizes))
        self._size_bytes = sum(sizes)

    def key_changed(self, key: Hashable, now_ms: int) -> bool:
        """Look at one partition -> True when there is now enough, or an error."""
        size = self._fetch.available_bytes(self._targets[key])
        if size is None:
            return True
        self._size_bytes += size - self._sizes[key]
        self._sizes[key] = size
        return bool(self._size_bytes >= self._fetch.min_bytes)

    def on_complete(self, now_ms: int) -> None:
        """Answer with what there is."""
        in_slices(self.context, self._fetch.read(), self._fetch.respond, now_ms)


class FetchHandler:
    """Serves Fetch for one broker; `broker` is kcli.server.broker.broker's Broker."""

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

        def decide(now_ms: int) -> None:
            if fetch.is_enough or request.max_wait_ms <= 0:
                fetch.respond(now_ms)
                return
            targets, sizes = fetch.watched()
            delayed = DelayedFetch(fetch, context, targets, sizes)
            broker.watch_fetch(context.connection, delayed, targets, context.now_ms + request.max_wait_ms)
            if fetch.is_sliced:
                # What grew between the slices has not been looked at since.
                for key in fetch.grown(targets):
                    broker.fetch_purgatory.check(key, now_ms)

        in_slices(context, fetch.read(), decide, context.now_ms)
        return None


class _Fetch:
    """One fetch under way."""

    __slots__ = (
        "_broker",
        "_context",
        "_is_committed",
        "_make",
        "_max_bytes",
        "_max_files",
        "_names",
        "_plan",
        "_refused",
        "_uses_ids",
        "answers",
        "is_enough",
        "min_bytes",
    )

    def __init__(self, broker: Any, context: RequestContext, request: Message, plan: FetchPlan) -> None:
        self._broker = broker
        self._context = context
        self._plan = plan
        self._uses_ids = context.version >= TOPIC_IDS_VERSION
        self._is_committed = request.isolation_level == READ_COMMITTED
        self._max_bytes = min(request.max_bytes, broker.fetch_max_bytes)
        self._max_files = broker.max_files_per_fetch
        self.min_bytes = min(request.min_bytes, self._max_bytes)
        self._make = context.api.response.classes["PartitionData"]
        self._refused: set[object] = set()
        self._names = self._find_names()
        self.answers: list[Message] = []
        self.is_enough = False

    @property
    def is_sliced(self) -> bool:
        """True where there are so many partitions that others get their turns in between."""
        return len(self._plan.targets) > MANY_PARTITIONS

    def watched(self) -> tuple[dict[Hashable, FetchTarget], list[int]]:
        """The partitions whose growth may complete the fetch, by key, and the bytes that each has now."""
        targets: dict[Hashable, FetchTarget] = {}
        sizes = []
        for target, answer in zip(self._plan.targets, self.answers):
            if not answer.error_code:
                targets[self._names[target.topic], target.partition.partition] = target
                sizes.append(len(answer.records))
        return targets, sizes

    def grown(self, targets: dict[Hashable, FetchTarget]) -> list[Hashable]:
        """The watched partitions that are not any more as they were read."""
        known = {id(target): answer for target, answer in zip(self._plan.targets, self.answers)}
        grown = []
        for key, target in targets.items():
            partition, answer = self._broker.partitions.get(key), known[id(target)]
            log = partition.log if partition is not None and partition.is_leader else None
            seen = (answer.high_watermark, answer.last_stable_offset)
            if log is None or self._is_another(partition, target) or (log.high_watermark, log.last_stable_offset) != seen:
                grown.append(key)
        return grown

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

    def read(self) -> Iterator[None]:
        """Read all targets: a PartitionData each into `answers`, and whether that `is_enough` to answer with."""
        left_bytes, left_files = self._max_bytes, self._max_files
        read_bytes = 0
        is_decided, may_grow = False, False
        answers: list[Message] = []
        pace = None
        if self.is_sliced:
            pace = Pace()
            yield  # to make the plan was a slice of its own
        for target in self._plan.targets:
            if pace is not None and pace.is_due(_READ_US):
                yield
            max_bytes = target.partition.partition_max_bytes
            if max_bytes > left_bytes:
                max_bytes = left_bytes
            answer = self._read_one(target, max_bytes, read_bytes == 0)
            answers.append(answer)
            size = len(answer.records)
            if size:
                read_bytes += size
                left_files -= 1
                left_bytes = left_bytes - size if size < left_bytes and left_files else 0
            elif answer.error_code in _NO_LOG:
                continue
            elif answer.error_code or answer.diverging_epoch.epoch >= 0:
                is_decided = True
            may_grow = True
        self.answers = answers
        self.is_enough = is_decided or not may_grow or read_bytes >= self.min_bytes

    def available_bytes(self, target: FetchTarget) -> int | None:
        """What a target has to read now; None where the reader must be told something else of it."""
        answer = self._read_one(target, min(target.partition.partition_max_bytes, self._max_bytes), True)
        return None if answer.error_code or answer.diverging_epoch.epoch >= 0 else len(answer.records)

    def _read_one(self, target: FetchTarget, max_bytes: int, is_first: bool) -> Message:
        wanted = target.partition
        name = self._names[target.topic]
        if name is None:
            return self._failed(wanted, error_codes.UNKNOWN_TOPIC_ID)
        if target.topic in self._refused:
            return self._failed(wanted, error_codes.TOPIC_AUTHORIZATION_FAILED)
        partition = self._broker.partitions.get((name, wanted.partition))
        if partition is None:
            return self._failed(wanted, self._broker.missing_partition_code(name, wanted.partition))
        if self._is_another(partition, target):
            return self._failed(wanted, error_codes.INCONSISTENT_TOPIC_ID)
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
                aborted = self._aborted(log, wanted.fetch_offset, slice_.end_offset) if slice_.size else []
        except OffsetOutOfRangeError:
            return self._failed(wanted, error_codes.OFFSET_OUT_OF_RANGE)
        except PartitionError as error:
            answer = self._failed(wanted, error.code)
            if self._context.version < NAMES_LEADER_VERSION or error.code not in _WRONG_LEADER:
                return answer
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

    def _is_another(self, partition: Partition, target: FetchTarget) -> bool:
        """True where the topic was deleted, and one of its name made, since the id was looked up."""
        return self._uses_ids and partition.topic_id != target.topic

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
        aborted = log.aborted_transactions(start_offset, end_offset)
        if not aborted:
            return []
        make = self._context.api.response.classes["AbortedTransaction"]
        return [make(producer_id=txn.producer_id, first_offset=txn.first_offset) for txn in aborted]

    def _read_again(self) -> None:
        """Read what has records once more: between slices its files may have been closed, or deleted."""
        is_first = True
        for at, target in enumerate(self._plan.targets):
            size = len(self.answers[at].records)
            if size:
                self.answers[at] = self._read_one(target, size, is_first)
                is_first = False

    def respond(self, now_ms: int) -> None:
        """Answer with what was read; an incremental fetch leaves out what the client knows."""
        if self.is_sliced:
            self._read_again()
        plan, context, answers = self._plan, self._context, self.answers
        session_id = 0
        told = list(zip(plan.targets, answers))
        if plan.is_incremental and plan.session is not None:
            session_id = plan.session.session_id
            if plan.session.epoch != plan.epoch:
                code = error_codes.INVALID_FETCH_SESSION_EPOCH
                context.respond(context.new("FetchResponse", error_code=code, session_id=session_id, responses=[]))
                return
            told = [(target, answer) for target, answer in told if target.has_news(answer)]
            for target, answer in told:
                if len(answer.records):
                    rotate(plan.session, target)
        elif plan.begins_session:
            for target, answer in told:
                target.has_news(answer)
            session_id = self._broker.fetch_sessions.begin(plan.targets, self._uses_ids, now_ms)
        self._count(answers)
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
        metrics, known = self._broker.metrics, self._broker.image.topic_ids
        for target, answer in zip(self._plan.targets, answers):
            name = self._names[target.topic]
            # Names that no topic has are the client's invention; they must not fill the memory.
            if name is not None and name in known:
                topic = metrics.topic(name)
                topic.total_fetch_requests += 1
                topic.bytes_out += len(answer.records)
                if answer.error_code:
                    topic.failed_fetch_requests += 1
