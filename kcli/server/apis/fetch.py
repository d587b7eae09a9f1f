"""Fetch: bytes of the logs of this broker, as they are on the disk, up to the offset that the reader may see.

    reader             returns records up to     and
    -----------------  ------------------------  ---------------------------------------------------------------------
    read uncommitted   the high watermark
    read committed     the last stable offset    the aborted transactions that overlap the offsets of its records, so that
                                                 the reader can skip theirs (Kafka: LocalLog.addAbortedTransactions)
    a follower         the log end               the state of the follower at the leader is updated by the first read of a
                                                 fetch, unless the logs diverge: see kcli.server.replication.partition

A fetch with the id of a broker is a follower's. It needs CLUSTER_ACTION, and a leader. Consumers that know that there are other
replicas (version 11 and later) may read from any; a follower has its own high watermark (KIP-392). With a rack aware
replica.selector.class, a leader names a follower in the consumer's rack, and returns no records.

answered              when
--------------------  ---------------------------------------------------------------------------------------------------
at once               min_bytes are there (or fetch.max.bytes, if that is less); what there is ends with an older segment; a
                      partition has an error; the client's log diverges; no requested partition exists here; max_wait_ms is 0
later                 one of the partitions has grown and now it is enough, or is deleted or led by another; or max_wait_ms is
                      over. A follower's fetch is checked once for all appends of the events at hand, and not when the high
                      watermark moves, which it learns by its next answer, as in Kafka
never                 the connection ends first

A partition that is unknown, or that the reader may not see, does not end the wait for the others, as in Kafka: otherwise a
reader that still asks for a deleted topic would ask without a pause. The first partition with records returns at least one
batch, however small the limits are, so that a reader always makes progress. While a fetch waits, an append checks only the
partition that has grown, by the size of its active segment if the reader waits at the log end; the records are read when the
fetch is answered, because files may be closed in between. A session reads only the partitions that have changed, and they wake
its fetch, which is not watched under each (kcli.server.apis.fetch_session). A fetch of many partitions is read in slices, and
what has records is read a second time when it is answered.
Records are regions of files (`FileRegion`): they never pass through Python. Sessions: kcli.server.apis.fetch_session.

Versions 4 to 12 name topics, 13 and later have their ids. From 12 on a reader that states the epoch of its last record is
answered with the offset at which its log diverges. From 16 on the answer to a wrong leader names the right one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import partial

from kcli.log.errors import OffsetOutOfRangeError
from kcli.log.rng import Random
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import BrokerParts, RequestContext
from kcli.server.apis.fetch_session import (
    FetchPlan,
    FetchSession,
    FetchSessionCache,
    FetchTarget,
    SessionError,
    SessionReader,
    TopicKey,
)
from kcli.server.apis.leader_hints import FENCED_OR_NOT_LEADER, name_leaders
from kcli.server.config.checks import RACK_AWARE_SELECTOR
from kcli.server.config.server_config import ServerConfig
from kcli.server.events import Connection, FileRegion
from kcli.server.replication.partition import Partition, PartitionError
from kcli.server.replication.purgatory import DelayedOperation, Purgatory
from kcli.server.replication.replica import NO_EPOCH
from kcli.server.replication.replica_manager import NO_REPLICA, ReplicaManager
from kcli.server.scheduler import SliceBudget

TOPIC_IDS_VERSION = 13
# From this version on the answer to a wrong leader or an old epoch names the right leader (KIP-951).
NAMES_LEADER_VERSION = 16
READ_COMMITTED = 1
# From this version on consumers may read from followers.
ANY_REPLICA_VERSION = 11
_CONSUMER = -1  # the replica id of a consumer; those below it are programs that read up to the log end
# From this version on the id of a follower is in replica_state, before in replica_id; a consumer's is -1.
REPLICA_STATE_VERSION = 15
# The errors of a partition that has no log on this broker.
_NO_LOG = (
    error_codes.UNKNOWN_TOPIC_ID,
    error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    error_codes.TOPIC_AUTHORIZATION_FAILED,
)
_NO_RECORDS = b""
# A fetch of more partitions is read in slices; each partition costs _READ_US if its files are not open.
MANY_PARTITIONS = 150
_READ_US = 100
# A fetch is answered from at most this many partitions, each by system calls of its own. The others come next: a session
# rotates its partitions, and other clients change the order in which they ask.
MAX_FILES_PER_FETCH = 200
MAX_BYTES_KEY = "fetch.max.bytes"
MAX_SESSIONS_KEY = "max.incremental.fetch.session.cache.slots"


class DelayedFetch(DelayedOperation):
    """A fetch that waits for bytes; `sizes` are the bytes that each of its partitions had at the last check.

    One of a session is watched under the session, which knows what has changed; another one under its partitions.
    """

    __slots__ = ("_by_key", "_context", "_fetch", "_handler", "_purgatory", "_size_bytes", "_sizes")

    def __init__(self, handler: FetchHandler, fetch: _Fetch, context: RequestContext, sizes: dict[FetchTarget, int]) -> None:
        super().__init__()
        self._handler = handler
        self._context = context
        self._fetch = fetch
        self._purgatory = fetch.purgatory
        self._sizes = sizes
        self._size_bytes = sum(sizes.values())
        self._by_key: dict[Hashable, FetchTarget] = (
            {} if fetch.session is not None else {target.key: target for target in sizes}
        )

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """What the fetch is watched under."""
        return tuple(self._by_key) if self._fetch.session is None else (self._fetch.session,)

    def can_complete(self, now_ms: int) -> bool:
        """Return whether there were enough bytes at the last check."""
        return bool(self._size_bytes >= self._fetch.min_bytes)

    def key_changed(self, key: Hashable, now_ms: int) -> bool:
        """Check what has changed; return whether there are enough bytes now, or an error."""
        session = self._fetch.session
        if session is not None and self._fetch.is_outdated:
            return True  # another request of the session has come, for which its changes are
        for target in (self._by_key[key],) if session is None else session.take_fresh():
            size = self._fetch.available_bytes(target)
            if size is None:
                return True
            self._size_bytes += size - self._sizes.get(target, 0)
            self._sizes[target] = size
        return self.can_complete(now_ms)

    def on_complete(self, now_ms: int) -> None:
        """Answer with what there is."""
        self._handler.waiting.pop(self._context.connection, None)
        self._context.run(self._fetch.read(), self._fetch.respond, now_ms)

    def drop(self) -> None:
        """End the wait without an answer."""
        self._purgatory.drop(self)

    def failed(self, error: Exception) -> None:
        """End the request after an exception."""
        self._handler.waiting.pop(self._context.connection, None)
        self._context.failed(error)


class FetchHandler:
    """Serves Fetch for one broker. `waiting` has the fetches in the purgatory by connection."""

    def __init__(self, broker: BrokerParts, rng: Random) -> None:
        self.broker = broker
        self.sessions = FetchSessionCache(broker.config.get_int(MAX_SESSIONS_KEY), rng)
        self.max_bytes = broker.config.get_int(MAX_BYTES_KEY)
        self.max_files = min(MAX_FILES_PER_FETCH, broker.replica_manager.log_manager.files.max_held)
        self.is_rack_aware = broker.config.get_str("replica.selector.class") == RACK_AWARE_SELECTOR
        self.waiting: dict[Connection, DelayedFetch] = {}
        broker.config.watch((MAX_BYTES_KEY, MAX_SESSIONS_KEY), self._reconfigure)

    def _reconfigure(self, config: ServerConfig) -> None:
        self.max_bytes = config.get_int(MAX_BYTES_KEY)
        self.sessions.max_sessions = config.get_int(MAX_SESSIONS_KEY)

    def handle(self, context: RequestContext, request: Message) -> Message | None:
        """Answer a FetchRequest, now or later."""
        replica_id = request.replica_state.replica_id if context.version >= REPLICA_STATE_VERSION else request.replica_id
        reader = SessionReader(
            replica_id, request.isolation_level, context.version, context.connection.principal, request.rack_id
        )
        try:
            plan = self.sessions.plan(request, context.version, context.now_ms, reader)
        except SessionError as error:
            return context.new("FetchResponse", error_code=error.code, session_id=0, responses=[])
        fetch = _Fetch(self, context, request, plan, reader)

        def decide(now_ms: int) -> None:
            if fetch.is_enough or request.max_wait_ms <= 0:
                fetch.respond(now_ms)
                return
            if context.connection.is_closed:  # while the fetch was read in slices
                return
            sizes = fetch.watched()
            purgatory = fetch.purgatory
            delayed = self.waiting[context.connection] = DelayedFetch(self, fetch, context, sizes)
            purgatory.watch(delayed, delayed.keys, context.now_ms + request.max_wait_ms)
            if fetch.is_sliced:
                # What was appended between the slices has not been checked yet.
                for key in fetch.grown(sizes):
                    purgatory.check(key, now_ms)

        context.run(fetch.read(), decide, context.now_ms)
        return None

    def connection_closed(self, connection: Connection) -> None:
        """Drop the fetch that waits for a connection that has ended."""
        fetch = self.waiting.pop(connection, None)
        if fetch is not None:
            fetch.drop()


class _Fetch:
    """One fetch that is being handled."""

    __slots__ = (
        "_context",
        "_handler",
        "_has_read",
        "_is_committed",
        "_make",
        "_max_bytes",
        "_max_files",
        "_may_read_any",
        "_plan",
        "_rack",
        "_reader",
        "_refused",
        "_replica_epoch",
        "_replica_id",
        "_replica_manager",
        "_uses_ids",
        "answers",
        "is_enough",
        "is_follower",
        "min_bytes",
    )

    def __init__(
        self, handler: FetchHandler, context: RequestContext, request: Message, plan: FetchPlan, reader: SessionReader
    ) -> None:
        self._handler = handler
        self._replica_manager = handler.broker.replica_manager
        self._context = context
        self._plan = plan
        self._uses_ids = context.version >= TOPIC_IDS_VERSION
        self._is_committed = request.isolation_level == READ_COMMITTED
        self._max_bytes = min(request.max_bytes, handler.max_bytes)
        self._max_files = handler.max_files
        self.min_bytes = min(request.min_bytes, self._max_bytes)
        self._make = context.api.response.classes["PartitionData"]
        self._has_read = False
        self._refused: set[TopicKey] = set()
        self._reader, self._replica_id = reader, reader.replica_id
        by_state = context.version >= REPLICA_STATE_VERSION
        self._replica_epoch = request.replica_state.replica_epoch if by_state else NO_EPOCH
        self.is_follower = self._replica_id > _CONSUMER
        self._may_read_any = not self.is_follower and context.version >= ANY_REPLICA_VERSION
        self._rack = reader.rack if handler.is_rack_aware and self._may_read_any else ""
        self.answers: list[Message] = []
        self.is_enough = False

    @property
    def session(self) -> FetchSession | None:
        """The session, unless this fetch begins it."""
        return self._plan.session

    @property
    def is_outdated(self) -> bool:
        """Whether another request of the session has come."""
        return self._plan.session is not None and self._plan.session.epoch != self._plan.epoch

    @property
    def is_sliced(self) -> bool:
        """Whether there are more than MANY_PARTITIONS, which are read in slices."""
        return len(self._plan.targets) > MANY_PARTITIONS

    @property
    def purgatory(self) -> Purgatory:
        """Where the fetch waits."""
        replicas = self._replica_manager
        return replicas.follower_fetch_purgatory if self.is_follower else replicas.fetch_purgatory

    def watched(self) -> dict[FetchTarget, int]:
        """Return the partitions whose growth may complete the fetch, with the bytes that each has now."""
        found = {}
        for target, answer in zip(self._plan.targets, self.answers):
            if not answer.error_code:
                found[target] = len(answer.records)
                if self.session is not None and not target.is_news(answer) and self._is_quiet(target, answer):
                    self.session.unmark(target)
        return found

    def grown(self, targets: Iterable[FetchTarget]) -> list[Hashable]:
        """Return what the fetch is watched under, if it has changed since it was read."""
        if self.session is not None:
            return [self.session] if self.session.has_fresh else []
        known = dict(zip(self._plan.targets, self.answers))
        grown: list[Hashable] = []
        for target in targets:
            answer = known[target]
            partition = self._partition(target)
            if partition is None or partition.log is None or self._is_another(partition, target):
                grown.append(target.key)
                continue
            log = partition.log
            if self.is_follower or not (self._may_read_any or partition.is_leader):
                if self._bytes_since_end(target) != 0:
                    grown.append(target.key)
                continue
            seen = (answer.high_watermark, answer.last_stable_offset)
            if (log.high_watermark, log.last_stable_offset) != seen:
                grown.append(target.key)
        return grown

    def _is_quiet(self, target: FetchTarget, answer: Message) -> bool:
        """Return whether a partition has neither records for its reader nor news, until it changes."""
        partition = self._partition(target)
        if answer.error_code or answer.diverging_epoch.epoch >= 0 or partition is None or partition.log is None:
            return False
        if self._rack or (self.is_follower and self._replica_id not in partition.isr):
            return False  # each fetch may name a closer replica, or make the follower a member
        return bool(
            target.partition.fetch_offset >= self._limit(partition.log, answer.high_watermark, answer.last_stable_offset)
        )

    def _find_names(self) -> None:
        """Find the names of topics whose ids were unknown until now; note the topics that the client may not read."""
        topic_name = self._handler.broker.metadata.topic_name
        seen: set[TopicKey] = set()
        may_replicate = self.is_follower and self._context.is_allowed("CLUSTER_ACTION", "CLUSTER")
        for target in self._plan.targets:
            if target.name is None and not isinstance(target.topic, str):
                target.name = topic_name(target.topic)
                if target.name is not None and self.session is not None:
                    self.session.watch(target)
            if target.name is not None and target.topic not in seen:
                seen.add(target.topic)
                if not (may_replicate if self.is_follower else self._context.is_allowed("READ", "TOPIC", target.name)):
                    self._refused.add(target.topic)

    def _partition(self, target: FetchTarget) -> Partition | None:
        """Return the hosted partition of a target."""
        return None if target.name is None else self._replica_manager.partition(target.name, target.partition.partition)

    def read(self) -> Iterator[None]:
        """Read all targets: make a PartitionData of each in `answers`, and decide whether that `is_enough` for an answer.

        The first read of a follower's fetch updates its state.
        """
        if self.session is not None and self._has_read:
            self._plan = self._plan._replace(targets=self.session.marked())
        self._find_names()
        left_bytes, left_files = self._max_bytes, self._max_files
        read_bytes = 0
        is_decided, may_grow = False, self.session is not None and self.session.has_unmarked
        answers: list[Message] = []
        budget = None
        if self.is_sliced:
            budget = SliceBudget()
            yield  # making the plan was a slice of its own
        for target in self._plan.targets:
            if budget is not None and budget.is_spent(_READ_US):
                yield
            max_bytes = target.partition.partition_max_bytes
            if max_bytes > left_bytes:
                max_bytes = left_bytes
            target.has_changed = False
            answer = self._read_one(target, max_bytes, read_bytes == 0)
            answers.append(answer)
            size = len(answer.records)
            if size:
                read_bytes += size
                left_files -= 1
                left_bytes = left_bytes - size if size < left_bytes and left_files else 0
            elif answer.error_code in _NO_LOG:
                continue
            elif answer.error_code or answer.diverging_epoch.epoch >= 0 or answer.preferred_read_replica >= 0:
                is_decided = True
            may_grow = True
        self.answers, self._has_read = answers, True
        is_enough = is_decided or not may_grow or read_bytes >= self.min_bytes
        self.is_enough = is_enough or any(map(self._is_in_older_segment, self._plan.targets, answers))

    def available_bytes(self, target: FetchTarget) -> int | None:
        """Return how many bytes of a target can be read now; None if the fetch is to be answered whatever they are."""
        size_bytes = self._bytes_since_end(target)
        if size_bytes is not None:
            return size_bytes
        answer = self._read_one(target, min(target.partition.partition_max_bytes, self._max_bytes), True)
        if answer.error_code or answer.diverging_epoch.epoch >= 0 or self._is_in_older_segment(target, answer):
            return None
        return len(answer.records)

    def _bytes_since_end(self, target: FetchTarget) -> int | None:
        """Return what was appended since a reader has read to the log end; None if a read is needed to know that."""
        partition = self._partition(target)
        if partition is None or target.waits_at is None or not (partition.is_leader or self._may_read_any):
            return None
        log, wanted = partition.log, target.partition
        is_current = wanted.current_leader_epoch in (-1, partition.leader_epoch)
        if log is None or not is_current or self._is_another(partition, target):
            return None
        base_offset, position = target.waits_at
        if log.active_base_offset != base_offset or not log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset:
            return None
        if self._limit(log, log.high_watermark, log.last_stable_offset) != log.log_end_offset:
            return None
        return int(min(log.active_size_bytes - position, wanted.partition_max_bytes))

    def _is_in_older_segment(self, target: FetchTarget, answer: Message) -> bool:
        """Return whether what was read ends with its segment, and more follows: that is not waited for."""
        partition = self._partition(target)
        log = None if partition is None else partition.log
        if answer.error_code or log is None:
            return False
        limit_offset = self._limit(log, answer.high_watermark, answer.last_stable_offset)
        fetch_offset = target.partition.fetch_offset
        return fetch_offset < limit_offset and log.are_in_other_segments(fetch_offset, limit_offset)

    def _limit(self, log: UnifiedLog, high_watermark: int, last_stable_offset: int) -> int:
        """Return the end of what the reader may see."""
        if self._replica_id != _CONSUMER:
            return log.log_end_offset
        return last_stable_offset if self._is_committed else high_watermark

    def _read_one(self, target: FetchTarget, max_bytes: int, is_first: bool) -> Message:
        wanted, name = target.partition, target.name
        if name is None:
            return self._failed(wanted, error_codes.UNKNOWN_TOPIC_ID)
        if target.topic in self._refused:
            return self._failed(wanted, error_codes.TOPIC_AUTHORIZATION_FAILED)
        partition = self._replica_manager.partition(name, wanted.partition)
        if partition is None:
            return self._failed(wanted, self._replica_manager.missing_partition_code(name, wanted.partition))
        if self._is_another(partition, target):
            return self._failed(wanted, error_codes.INCONSISTENT_TOPIC_ID)
        try:
            log = (partition.readable_log if self._may_read_any else partition.leader_log)(wanted.current_leader_epoch)
            if self._rack and partition.is_leader:
                preferred = self._preferred(partition, log, wanted)
                if preferred is not None:
                    return preferred
            follower = partition.follower(self._replica_id, wanted.current_leader_epoch) if self.is_follower else None
            if wanted.last_fetched_epoch >= 0:
                diverging = self._diverging(log, wanted)
                if diverging is not None:
                    return diverging
            if follower is not None and not self._has_read:
                log.check_readable(wanted.fetch_offset)
                partition.follower_fetched(follower, wanted.fetch_offset, wanted.log_start_offset, self._replica_epoch)
            high_watermark = log.high_watermark
            last_stable_offset = log.last_stable_offset
            limit_offset = self._limit(log, high_watermark, last_stable_offset)
            slice_ = log.read(wanted.fetch_offset, max_bytes, limit_offset=limit_offset, min_one_message=is_first)
            is_at_end = slice_.file is None and wanted.fetch_offset == log.log_end_offset
            target.waits_at = (log.active_base_offset, log.active_size_bytes) if is_at_end else None
            aborted = None
            if self._is_committed and not self.is_follower:
                aborted = self._aborted(log, wanted.fetch_offset, slice_.end_offset) if slice_.size else []
        except OffsetOutOfRangeError:
            return self._failed(wanted, error_codes.OFFSET_OUT_OF_RANGE)
        except PartitionError as error:
            return self._failed(wanted, error.code)
        except OSError as error:
            self._replica_manager.handle_log_dir_failure(partition, error)
            return self._failed(wanted, error_codes.KAFKA_STORAGE_ERROR)
        return self._make(
            partition_index=wanted.partition,
            high_watermark=high_watermark,
            last_stable_offset=last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=aborted,
            records=FileRegion(slice_.file, slice_.position, slice_.size) if slice_.file is not None else _NO_RECORDS,
        )

    def _preferred(self, partition: Partition, log: UnifiedLog, wanted: Message) -> Message | None:
        """Return the answer to a consumer that another replica should serve; None if this one should."""
        listener = self._context.connection.listener
        replica_id = self._replica_manager.preferred_replica(partition, wanted.fetch_offset, self._rack, listener)
        if replica_id == NO_REPLICA:
            return None
        return self._without_records(wanted, log, preferred_read_replica=replica_id)

    def _is_another(self, partition: Partition, target: FetchTarget) -> bool:
        """Return whether the topic was deleted, and one of its name created, since the id was looked up."""
        return self._uses_ids and partition.topic_id != target.topic

    def _failed(self, wanted: Message, code: int) -> Message:
        return self._make(
            partition_index=wanted.partition, error_code=code, high_watermark=-1, aborted_transactions=None, records=_NO_RECORDS
        )

    def _diverging(self, log: UnifiedLog, wanted: Message) -> Message | None:
        """Return the answer to a reader whose log diverges before its fetch offset; None if it does not diverge."""
        epoch, end_offset = log.leader_epochs.end_offset_for(wanted.last_fetched_epoch, log.log_end_offset)
        if epoch < 0 or end_offset < 0:
            raise OffsetOutOfRangeError(f"leader epoch {wanted.last_fetched_epoch} is unknown")
        if wanted.fetch_offset < log.log_start_offset:
            raise OffsetOutOfRangeError(f"offset {wanted.fetch_offset} is below the log start offset {log.log_start_offset}")
        if epoch >= wanted.last_fetched_epoch and end_offset >= wanted.fetch_offset:
            return None
        diverging = self._context.new("EpochEndOffset", epoch=epoch, end_offset=end_offset)
        return self._without_records(wanted, log, diverging_epoch=diverging)

    def _without_records(self, wanted: Message, log: UnifiedLog, **fields: object) -> Message:
        """Return the answer that sends a reader elsewhere: to another replica, or to an earlier offset."""
        return self._make(
            partition_index=wanted.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=None,
            records=_NO_RECORDS,
            **fields,
        )

    def _aborted(self, log: UnifiedLog, start_offset: int, end_offset: int) -> list[Message]:
        aborted = log.aborted_transactions(start_offset, end_offset)
        if not aborted:
            return []
        make = self._context.api.response.classes["AbortedTransaction"]
        return [make(producer_id=txn.producer_id, first_offset=txn.first_offset) for txn in aborted]

    def _read_again(self) -> None:
        """Read what has records a second time: between slices its files may have been closed or deleted."""
        is_first = True
        for at, target in enumerate(self._plan.targets):
            size = len(self.answers[at].records)
            if size:
                self.answers[at] = self._read_one(target, size, is_first)
                is_first = False

    def respond(self, now_ms: int) -> None:
        """Answer with what was read; an incremental fetch omits the partitions without news."""
        if self.is_sliced:
            self._read_again()
        plan, context, answers = self._plan, self._context, self.answers
        session_id = 0
        answered = list(zip(plan.targets, answers))
        if plan.is_incremental and plan.session is not None:
            session_id = plan.session.session_id
            if self.is_outdated:
                code = error_codes.INVALID_FETCH_SESSION_EPOCH
                context.respond(context.new("FetchResponse", error_code=code, session_id=session_id, responses=[]))
                return
            read, answered = answered, []
            for target, answer in read:
                if target.has_news(answer):
                    answered.append((target, answer))
                    if len(answer.records):
                        plan.session.move_to_end(target)
                        continue
                if self._is_quiet(target, answer):
                    plan.session.unmark(target)
        elif plan.begins_session:
            for target, answer in answered:
                target.has_news(answer)
            on_mark = partial(_was_at_end, self._replica_manager, self._replica_id) if self.is_follower else None
            sessions, purgatory = self._handler.sessions, self.purgatory
            session_id = sessions.begin(plan.targets, self._uses_ids, now_ms, self._reader, purgatory, on_mark)
        has_failed = self._count(answers)
        response = context.new("FetchResponse", session_id=session_id, responses=self._topics(answered))
        if has_failed and context.version >= NAMES_LEADER_VERSION:
            parts = ((target.name, target.partition.partition, answer) for target, answer in answered if answer.error_code)
            endpoints = name_leaders(context, parts, FENCED_OR_NOT_LEADER)
            response.node_endpoints = [] if self.is_follower else endpoints  # followers know all brokers
        context.respond(response)

    def _topics(self, answered: list[tuple[FetchTarget, Message]]) -> list[Message]:
        """Return the answers by topic; a topic is repeated if other topics come between its partitions."""
        make = self._context.api.response.classes["FetchableTopicResponse"]
        topics: list[Message] = []
        last: object = None
        for target, answer in answered:
            if not topics or target.topic != last:
                last = target.topic
                topics.append(make(topic_id=last, partitions=[]) if self._uses_ids else make(topic=last, partitions=[]))
            topics[-1].partitions.append(answer)
        return topics

    def _count(self, answers: list[Message]) -> bool:
        """Count the answers by topic; return whether there is an error among them."""
        has_failed = False
        broker = self._handler.broker
        metrics, known = broker.metrics, broker.metadata.image.topic_ids
        for target, answer in zip(self._plan.targets, answers):
            if answer.error_code:
                has_failed = True
            # Counters are kept for existing topics only: clients could fill the memory with invented names.
            if target.name is not None and target.name in known:
                topic = metrics.topic(target.name)
                topic.total_fetch_requests += 1
                if self.is_follower:
                    metrics.replication_bytes_out += len(answer.records)
                else:
                    topic.bytes_out += len(answer.records)
                if answer.error_code:
                    topic.failed_fetch_requests += 1
        return has_failed


def _was_at_end(replica_manager: ReplicaManager, broker_id: int, target: FetchTarget, last_fetch_ms: int) -> None:
    """Note that a follower had all of a partition at its last fetch, which did not read it."""
    partition = None if target.name is None else replica_manager.partition(target.name, target.partition.partition)
    if partition is not None:
        partition.follower_was_at_end(broker_id, last_fetch_ms)
