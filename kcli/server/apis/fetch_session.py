"""Fetch sessions (KIP-227): a client names its partitions once and then only changes; so do the broker's answers.

    request (session id, epoch)   means                                                          answered with
    ----------------------------  -------------------------------------------------------------  -------------------------
    any, -1                       no session; the session with that id ends                      all partitions
    any, 0                        a new session of the named partitions, which may be none;      all partitions, its id
                                  that with the id ends
    id, n > 0                     the partitions of the session. The request adds or changes     those with news
                                  partitions, and forgotten_topics_data removes some; n must be
                                  the next epoch. A session without partitions ends

A partition has news if it has records, an error, a diverging epoch, or another high watermark or log start offset than the
client received last. Partitions that had records move to the end of the session's order, so that all are served equally. A
partition that a request names twice counts once, as it is named last.

A session's fetch costs by what has changed, not by what it watches (Kafka reads all partitions, twice for each wake-up). A
partition is **marked** while its next answer may differ from what was sent:

    marked                                                               until
    -------------------------------------------------------------------  -------------------------------------------------
    when the session begins, and when a request names it                 it was read, and nothing has changed since: no
    by an append (followers) or a move of the high watermark,            error, no record that the reader does not have,
      of the log start offset, of the leader, epoch or ISR               no offset to be sent; the follower is in the ISR,
                                                                         and no consumer is sent to a closer replica
    all, when the next request has another isolation level, reader or
      version, which may see other records

Only marked partitions are read, in the session's order. What did not fit into an answer, and each error, stays marked. Those
that are not marked have neither records nor news: an answer is the same as if all were read. A follower whose partition is not
marked was at the log end when it fetched last, which the leader notes when the mark is set.

The cache holds max.incremental.fetch.session.cache.slots sessions. A full cache evicts the session that was used least
recently, if that was more than EVICTION_MS ago. Otherwise a consumer gets no session, and a follower that of the consumer with
the fewest partitions: replication does not depend on the number of consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import INT32_MAX
from kcli.log.rng import Random
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.replication.purgatory import Purgatory, Watcher

NO_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EVICTION_MS = 120_000

# A topic's id if the request's version has ids, else its name.
TopicKey = Uuid | str
PartitionKey = tuple[TopicKey, int]


class SessionError(Exception):
    """A request that does not fit its session; `code` is Kafka's error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class FetchTarget(Watcher):
    """One partition of a fetch: the client's request for it, and the offsets that the client received last.

    `name` is the topic's, None while the id is unknown. A session keeps it after the topic is deleted, as in Kafka: its reader
    learns that the topic is gone or is another one, and not that the id was never there.
    """

    __slots__ = (
        "has_changed",
        "high_watermark",
        "log_start_offset",
        "name",
        "order",
        "partition",
        "session",
        "topic",
        "waits_at",
    )

    def __init__(self, topic: TopicKey, partition: Message) -> None:
        self.topic = topic
        self.name = topic if isinstance(topic, str) else None
        self.partition = partition
        self.high_watermark = -1
        self.log_start_offset = -1
        self.waits_at: tuple[int, int] | None = None  # active segment and its size, if the log end was read
        self.session: FetchSession | None = None  # that marks it when it changes
        self.order = 0  # in the session
        self.has_changed = True  # since it was read, or it was not read

    @property
    def key(self) -> tuple[str | None, int]:
        """The key of the partition in purgatories, once the topic's name is known."""
        return self.name, self.partition.partition

    def mark(self) -> None:
        """Note that the partition has changed."""
        self.has_changed = True
        if self.session is not None:
            self.session.mark(self)

    def key_changed(self, key: Hashable, now_ms: int) -> bool:
        """Note that the partition has changed, and check the session's fetch that waits."""
        self.mark()
        if self.session is not None:
            self.session.purgatory.check(self.session, now_ms)
        return False

    def is_news(self, answer: Message) -> bool:
        """Return whether `answer` (a PartitionData) has news for the client."""
        return bool(
            (answer.records is not None and len(answer.records) > 0)
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
            or answer.error_code != 0
            or answer.preferred_read_replica >= 0
            or answer.diverging_epoch.epoch >= 0
        )

    def has_news(self, answer: Message) -> bool:
        """Return whether `answer` has news for the client; it is remembered as sent."""
        news = self.is_news(answer)
        # After an error the next answer always has news.
        self.high_watermark = -1 if answer.error_code else answer.high_watermark
        self.log_start_offset = answer.log_start_offset
        return news


class SessionReader(NamedTuple):
    """Who reads through a session, and what it may see: a request of another one reads all partitions."""

    replica_id: int
    isolation_level: int
    version: int
    principal: str
    rack: str

    @property
    def is_follower(self) -> bool:
        """Whether it is a broker."""
        return self.replica_id >= 0


class FetchSession:
    """The partitions of a client, in the order in which they are read, and those of them that are marked."""

    __slots__ = (
        "_fresh",
        "_marked",
        "_next_order",
        "_on_first_mark",
        "epoch",
        "last_used_ms",
        "purgatory",
        "reader",
        "session_id",
        "targets",
        "uses_topic_ids",
    )

    def __init__(
        self,
        session_id: int,
        uses_topic_ids: bool,
        reader: SessionReader,
        purgatory: Purgatory,
        on_first_mark: Callable[[FetchTarget, int], None] | None,
        now_ms: int,
    ) -> None:
        """`purgatory` passes the changes of partitions on; `on_first_mark(target, last_used_ms)` is called with a mark."""
        self.session_id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.reader = reader
        self.purgatory = purgatory
        self.targets: dict[PartitionKey, FetchTarget] = {}
        self.epoch = 1
        self.last_used_ms = now_ms
        self._on_first_mark = on_first_mark
        self._next_order = 0
        self._marked: dict[FetchTarget, None] = {}
        self._fresh: dict[FetchTarget, None] = {}  # marked since the fetch that waits was checked

    def add(self, target: FetchTarget) -> None:
        """Add a partition at the end of the order, marked."""
        self.targets[target.topic, target.partition.partition] = target
        self.move_to_end(target)
        self._marked[target] = None
        if target.name is not None:
            self.watch(target)

    def watch(self, target: FetchTarget) -> None:
        """Have a partition marked when it changes: the name of its topic is known."""
        target.session = self
        self.purgatory.subscribe(target, target.key)

    def remove(self, key: PartitionKey) -> None:
        """Remove a partition, if it is there."""
        target = self.targets.pop(key, None)
        if target is not None:
            self._marked.pop(target, None)
            self._fresh.pop(target, None)
            if target.session is not None:
                target.session = None
                self.purgatory.unsubscribe(target, target.key)

    def close(self) -> None:
        """Remove all partitions: the session is over."""
        for key in list(self.targets):
            self.remove(key)

    def move_to_end(self, target: FetchTarget) -> None:
        """Move a partition to the end of the order: it had records."""
        target.order = self._next_order
        self._next_order += 1

    def mark(self, target: FetchTarget) -> None:
        """Mark a partition that has changed."""
        if target not in self._marked:
            self._marked[target] = None
            if self._on_first_mark is not None:
                self._on_first_mark(target, self.last_used_ms)
        self._fresh[target] = None

    def mark_all(self) -> None:
        """Mark all partitions."""
        for target in self.targets.values():
            self.mark(target)

    def unmark(self, target: FetchTarget) -> None:
        """Mark a partition no more, unless it has changed since it was read."""
        if not target.has_changed and target.session is self:
            self._marked.pop(target, None)

    def marked(self) -> list[FetchTarget]:
        """Return the marked partitions in the order in which they are read; from now on the fresh ones are others."""
        self._fresh = {}
        return sorted(self._marked, key=_order)

    def take_fresh(self) -> list[FetchTarget]:
        """Return the partitions that were marked since the last call of this or `marked`."""
        fresh, self._fresh = self._fresh, {}
        return list(fresh)

    @property
    def has_fresh(self) -> bool:
        """Whether a partition was marked since the last call of `take_fresh` or `marked`."""
        return bool(self._fresh)

    @property
    def has_unmarked(self) -> bool:
        """Whether there are partitions without news."""
        return len(self._marked) < len(self.targets)


def _order(target: FetchTarget) -> int:
    return target.order


class FetchPlan(NamedTuple):
    """The targets of one request in order, and the session that it belongs to or is to begin.

    Of a session these are the marked ones.

    `epoch` is the session's after this request: another request may increase it before the answer.
    """

    targets: list[FetchTarget]
    session: FetchSession | None
    is_incremental: bool
    begins_session: bool
    epoch: int = 0


class FetchSessionCache:
    """The sessions of a broker."""

    def __init__(self, max_sessions: int, rng: Random) -> None:
        self.max_sessions = max_sessions
        self._rng = rng
        self._sessions: dict[int, FetchSession] = {}  # the least recently used one first
        self.evicted_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """The number of partitions of all sessions."""
        return sum(len(session.targets) for session in self._sessions.values())

    def plan(self, request: Message, version: int, now_ms: int, reader: SessionReader) -> FetchPlan:
        """Return the partitions that a FetchRequest reads, and update its session. Raises SessionError."""
        uses_topic_ids = version >= 13
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            ended = self._sessions.pop(request.session_id, None) if request.session_id != NO_SESSION_ID else None
            if ended is not None:
                ended.close()
            targets: dict[PartitionKey, FetchTarget] = {}
            for topic in request.topics:
                name = topic.topic_id if uses_topic_ids else topic.topic
                for partition in topic.partitions:
                    targets[name, partition.partition] = FetchTarget(name, partition)
            return FetchPlan(
                list(targets.values()), None, False, request.session_epoch == INITIAL_EPOCH and self.max_sessions > 0
            )
        session = self._sessions.get(request.session_id)
        if session is None:
            raise SessionError(error_codes.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {request.session_id} does not exist")
        if session.epoch != request.session_epoch:
            message = f"fetch session {session.session_id} is at epoch {session.epoch}, not {request.session_epoch}"
            raise SessionError(error_codes.INVALID_FETCH_SESSION_EPOCH, message)
        if session.uses_topic_ids != uses_topic_ids:
            raise SessionError(error_codes.FETCH_SESSION_TOPIC_ID_ERROR, "a session uses topic ids or names, not both")
        self._update(session, request)
        if not session.targets:
            del self._sessions[session.session_id]
            return FetchPlan([], None, False, False)
        session.epoch = 1 if session.epoch == INT32_MAX else session.epoch + 1
        if session.reader != reader:
            session.reader = reader
            session.mark_all()
        self._touch(session, now_ms)
        return FetchPlan(session.marked(), session, True, False, session.epoch)

    @staticmethod
    def _update(session: FetchSession, request: Message) -> None:
        for topic in request.topics:
            name = topic.topic_id if session.uses_topic_ids else topic.topic
            for partition in topic.partitions:
                known = session.targets.get((name, partition.partition))
                if known is None:
                    session.add(FetchTarget(name, partition))
                else:
                    is_new_epoch = partition.current_leader_epoch != known.partition.current_leader_epoch
                    if is_new_epoch and session.reader.is_follower:
                        known.high_watermark = known.log_start_offset = -1  # it drops the answers of its last epoch
                    known.partition = partition
                    session.mark(known)
        for topic in request.forgotten_topics_data:
            name = topic.topic_id if session.uses_topic_ids else topic.topic
            for index in topic.partitions:
                session.remove((name, index))

    def begin(
        self,
        targets: Iterable[FetchTarget],
        uses_topic_ids: bool,
        now_ms: int,
        reader: SessionReader,
        purgatory: Purgatory,
        on_first_mark: Callable[[FetchTarget, int], None] | None = None,
    ) -> int:
        """Begin a session and return its id, or 0 if the cache is full."""
        if not self._make_room(now_ms, is_follower=reader.is_follower):
            return NO_SESSION_ID
        session_id = self._rng.randint(1, INT32_MAX)
        while session_id in self._sessions:
            session_id = self._rng.randint(1, INT32_MAX)
        session = FetchSession(session_id, uses_topic_ids, reader, purgatory, on_first_mark, now_ms)
        for target in targets:
            session.add(target)
        self._sessions[session_id] = session
        return session_id

    def _make_room(self, now_ms: int, *, is_follower: bool) -> bool:
        if len(self._sessions) < self.max_sessions:
            return True
        evicted = next(iter(self._sessions.values()))
        if now_ms - evicted.last_used_ms <= EVICTION_MS:
            consumers = [one for one in self._sessions.values() if is_follower and not one.reader.is_follower]
            if not consumers:
                return False
            evicted = min(consumers, key=lambda one: len(one.targets))
        del self._sessions[evicted.session_id]
        evicted.close()
        self.evicted_count += 1
        return True

    def _touch(self, session: FetchSession, now_ms: int) -> None:
        session.last_used_ms = now_ms
        del self._sessions[session.session_id]
        self._sessions[session.session_id] = session
