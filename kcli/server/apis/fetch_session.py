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

The cache holds max.incremental.fetch.session.cache.slots sessions. A full cache evicts the session that was used least
recently, if that was more than EVICTION_MS ago. Otherwise a consumer gets no session, and a follower that of the consumer with
the fewest partitions: replication does not depend on the number of consumers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import INT32_MAX
from kcli.log.rng import Random
from kcli.protocol import error_codes
from kcli.protocol.message import Message

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


class FetchTarget:
    """One partition of a fetch: the client's request for it, and the offsets that the client received last.

    `name` is the topic's, None while the id is unknown. A session keeps it after the topic is deleted, as in Kafka: its reader
    learns that the topic is gone or is another one, and not that the id was never there.
    """

    __slots__ = ("high_watermark", "log_start_offset", "name", "partition", "topic", "waits_at")

    def __init__(self, topic: TopicKey, partition: Message) -> None:
        self.topic = topic
        self.name = topic if isinstance(topic, str) else None
        self.partition = partition
        self.high_watermark = -1
        self.log_start_offset = -1
        self.waits_at: tuple[int, int] | None = None  # active segment and its size, if the log end was read

    def has_news(self, answer: Message) -> bool:
        """Return whether `answer` (a PartitionData) has news for the client; it is remembered as sent."""
        news = (
            (answer.records is not None and len(answer.records) > 0)
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
            or answer.error_code != 0
            or answer.preferred_read_replica >= 0
            or answer.diverging_epoch.epoch >= 0
        )
        # After an error the next answer always has news.
        self.high_watermark = -1 if answer.error_code else answer.high_watermark
        self.log_start_offset = answer.log_start_offset
        return news


class FetchSession:
    """The partitions of a client, in the order in which they are read."""

    __slots__ = ("epoch", "is_follower", "last_used_ms", "session_id", "targets", "uses_topic_ids")

    def __init__(
        self,
        session_id: int,
        uses_topic_ids: bool,
        targets: dict[PartitionKey, FetchTarget],
        now_ms: int,
        *,
        is_follower: bool = False,
    ) -> None:
        self.session_id = session_id
        self.is_follower = is_follower
        self.uses_topic_ids = uses_topic_ids
        self.targets = targets
        self.epoch = 1
        self.last_used_ms = now_ms


class FetchPlan(NamedTuple):
    """The targets of one request in order, and the session that it belongs to or is to begin.

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

    def plan(self, request: Message, version: int, now_ms: int) -> FetchPlan:
        """Return the partitions that a FetchRequest reads, and update its session. Raises SessionError."""
        uses_topic_ids = version >= 13
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION_ID:
                self._sessions.pop(request.session_id, None)
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
        self._touch(session, now_ms)
        return FetchPlan(list(session.targets.values()), session, True, False, session.epoch)

    @staticmethod
    def _update(session: FetchSession, request: Message) -> None:
        for topic in request.topics:
            name = topic.topic_id if session.uses_topic_ids else topic.topic
            for partition in topic.partitions:
                known = session.targets.get((name, partition.partition))
                if known is None:
                    session.targets[name, partition.partition] = FetchTarget(name, partition)
                else:
                    known.partition = partition
        for topic in request.forgotten_topics_data:
            name = topic.topic_id if session.uses_topic_ids else topic.topic
            for index in topic.partitions:
                session.targets.pop((name, index), None)

    def begin(self, targets: Iterable[FetchTarget], uses_topic_ids: bool, now_ms: int, *, is_follower: bool = False) -> int:
        """Begin a session and return its id, or 0 if the cache is full."""
        by_key = {(target.topic, target.partition.partition): target for target in targets}
        if not self._make_room(now_ms, is_follower=is_follower):
            return NO_SESSION_ID
        session_id = self._rng.randint(1, INT32_MAX)
        while session_id in self._sessions:
            session_id = self._rng.randint(1, INT32_MAX)
        self._sessions[session_id] = FetchSession(session_id, uses_topic_ids, by_key, now_ms, is_follower=is_follower)
        return session_id

    def _make_room(self, now_ms: int, *, is_follower: bool) -> bool:
        if len(self._sessions) < self.max_sessions:
            return True
        evicted = next(iter(self._sessions.values()))
        if now_ms - evicted.last_used_ms <= EVICTION_MS:
            consumers = [one for one in self._sessions.values() if is_follower and not one.is_follower]
            if not consumers:
                return False
            evicted = min(consumers, key=lambda one: len(one.targets))
        del self._sessions[evicted.session_id]
        self.evicted_count += 1
        return True

    def _touch(self, session: FetchSession, now_ms: int) -> None:
        session.last_used_ms = now_ms
        del self._sessions[session.session_id]
        self._sessions[session.session_id] = session


def rotate(session: FetchSession, target: FetchTarget) -> None:
    """Move a target that had records to the end of its session's order."""
    key = (target.topic, target.partition.partition)
    if key in session.targets:
        session.targets[key] = session.targets.pop(key)
