"""The fetch session of a consumer or follower with one broker: only what changed is sent (KIP-227; Kafka: FetchSessionHandler).

    request                    session id, epoch         partitions in it
    -------------------------  ------------------------  ------------------------------------------------------------------
    full, a new session        0, 0                      all that are to be fetched
    full, instead of the old   the old id, 0             all; the broker closes the old session
    incremental                id, 1 to 2**31 - 1        new ones, those with another offset or epoch, or with another topic
                                                         id; `forgotten`: those that are not fetched any more
    closing                    id, -1                    none

    answer                     then
    -------------------------  -------------------------------------------------------------------------------------------
    full without an id         the broker has no room for a session: the next request is full again
    full with an id            the next one is incremental, with epoch 1
    incremental                the next epoch; partitions that had nothing new are not in the answer
    FETCH_SESSION_ID_NOT_FOUND the broker dropped the session, as with each restart: a new one. As all errors about sessions, it
                               is logged at INFO
    any other error            the next full request closes the session and makes a new one
    partitions that were not   the same
    asked for or are missing
    no answer                  the same: it is not known whether the broker took the request

A consumer states all that it wants with each request, and a follower only the changes (`put`, `remove`): its quiet partitions
cost nothing. From version 13 on topics are named by their ids, and a topic whose id is not known cannot be asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, FETCH
from kcli.protocol.message import Message

_SESSION_ERRORS = (
    error_codes.FETCH_SESSION_ID_NOT_FOUND,
    error_codes.INVALID_FETCH_SESSION_EPOCH,
    error_codes.FETCH_SESSION_TOPIC_ID_ERROR,
)
_ZERO_UUID = bytes(16)
NO_SESSION = 0
FIRST_EPOCH, FINAL_EPOCH = 0, -1
MAX_EPOCH = 2**31 - 1
FIRST_VERSION_WITH_SESSIONS = 7
FIRST_VERSION_WITH_IDS = 13
# From this version on the id of a follower is in replica_state, with its broker epoch (KIP-903), before in replica_id.
FIRST_VERSION_WITH_STATE = 15
_NO_REPLICA = -1


class FetchPartition(NamedTuple):
    """What a request says of a partition; `topic_id` is all zeros if it is not known. The last two are those of followers."""

    topic_id: bytes
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


Wanted = dict[TopicPartition, FetchPartition]


class FetchLimits(NamedTuple):
    """What a request says of the whole answer; `isolation_level` is 1 for read_committed. The last two are a follower's."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int = 0
    rack: str = ""
    replica_id: int = _NO_REPLICA
    replica_epoch: int = -1


class FetchAnswerError(Exception):
    """An answer that does not fit its session."""


class FetchSessionError(FetchAnswerError):
    """An answer that only says that the broker does not go on with the session."""


class FetchSession:
    """The session with one broker."""

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self._partitions: Wanted = {}
        self._changes: dict[TopicPartition, FetchPartition | None] = {}
        self._names: dict[bytes, str] = {}
        self._asked_full = True
        self._uses_ids = False

    @property
    def partitions(self) -> Mapping[TopicPartition, FetchPartition]:
        """The partitions of the session, as they were asked for."""
        return self._partitions

    def forget(self) -> None:
        """Let the next request close the session and make a new one."""
        self.epoch = FIRST_EPOCH

    # --------------------------------------------------------------------------------------------------------- requests

    def put(self, partition: TopicPartition, wanted: FetchPartition) -> None:
        """Fetch a partition from the next request on, or from another offset."""
        self._changes[partition] = wanted

    def remove(self, partition: TopicPartition) -> None:
        """Fetch a partition no more from the next request on."""
        self._changes[partition] = None

    def request(self, wanted: Mapping[TopicPartition, FetchPartition], limits: FetchLimits, version: int) -> Message:
        """Return the request for all `wanted` partitions, in their order, in a version of Fetch."""
        if version >= FIRST_VERSION_WITH_IDS:
            wanted = {partition: one for partition, one in wanted.items() if one.topic_id != _ZERO_UUID}
        self._changes = {**dict.fromkeys(self._partitions), **wanted}
        message = self.next_request(limits, version, wanted)
        self._partitions = dict(wanted)
        return message

    def next_request(
        self, limits: FetchLimits, version: int, wanted: Mapping[TopicPartition, FetchPartition] | None = None
    ) -> Message:
        """Return the request with the changes since the last one; `wanted` has all partitions, if their order matters."""
        self._uses_ids = version >= FIRST_VERSION_WITH_IDS
        self._asked_full = self.epoch == FIRST_EPOCH or version < FIRST_VERSION_WITH_SESSIONS
        changed, forgotten = self._apply_changes()
        if self._asked_full:
            changed, forgotten = self._partitions if wanted is None else wanted, []
        return _message(changed, forgotten, limits, self.session_id, self.epoch, version)

    def _apply_changes(self) -> tuple[Mapping[TopicPartition, FetchPartition], list[tuple[TopicPartition, bytes]]]:
        changed: Wanted = {}
        forgotten: list[tuple[TopicPartition, bytes]] = []
        changes, self._changes = self._changes, {}
        for partition, new in changes.items():
            old = self._partitions.get(partition)
            if new == old:
                continue
            if old is not None:
                del self._partitions[partition]  # what was asked last is the last one of a full request
                if new is None or new.topic_id != old.topic_id:
                    forgotten.append((partition, old.topic_id))
            if new is not None:
                changed[partition] = self._partitions[partition] = new
                self._names[new.topic_id] = partition[0]
        if forgotten:
            self._names = {one.topic_id: topic for (topic, _), one in self._partitions.items()}
        return changed, forgotten

    def closing_request(self, limits: FetchLimits, version: int = FIRST_VERSION_WITH_SESSIONS) -> Message | None:
        """Return the request that closes the session, None if there is none."""
        if self.session_id == NO_SESSION:
            return None
        return _message({}, [], limits, self.session_id, FINAL_EPOCH, version)

    # ---------------------------------------------------------------------------------------------------------- answers

    def failed(self) -> None:
        """Take the end of a request without an answer."""
        self.forget()

    def answered(self, answer: Message) -> list[tuple[TopicPartition, Message]]:
        """Take an answer; return its partitions. Raises FetchAnswerError if it must not be used."""
        if answer.error_code:
            if answer.error_code == error_codes.FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = NO_SESSION
            self.forget()
            error = error_codes.NAMES.get(answer.error_code, str(answer.error_code))
            kind = FetchSessionError if answer.error_code in _SESSION_ERRORS else FetchAnswerError
            raise kind(f"the broker answered {error}")
        found: list[tuple[TopicPartition, Message]] = []
        for topic in answer.responses:
            name = self._names.get(topic.topic_id) if self._uses_ids else topic.topic
            for one in topic.partitions:
                if name is None or (name, one.partition_index) not in self._partitions:
                    self.forget()
                    named = name or topic.topic_id.hex()
                    raise FetchAnswerError(f"partition {one.partition_index} of topic {named} was not asked for")
                found.append(((name, one.partition_index), one))
        self._check_complete(found)
        self._next_epoch(answer.session_id)
        return found

    def _check_complete(self, found: Iterable[tuple[TopicPartition, Message]]) -> None:
        """Raise FetchAnswerError for partitions twice, and for a full answer that lacks some."""
        names = [partition for partition, _ in found]
        if len(set(names)) != len(names):
            self.forget()
            raise FetchAnswerError("a partition is in the answer twice")
        if self._asked_full and len(names) != len(self._partitions):
            self.forget()
            raise FetchAnswerError(f"{len(self._partitions)} partitions were asked for and {len(names)} answered")

    def _next_epoch(self, session_id: int) -> None:
        if session_id == NO_SESSION:
            # No room for a session, or the broker closed it.
            self.session_id = NO_SESSION
            self.epoch = FIRST_EPOCH
        elif self._asked_full:
            self.session_id = session_id
            self.epoch = 1
        elif session_id != self.session_id:
            self.forget()
            raise FetchAnswerError(f"the answer is of session {session_id}, not {self.session_id}")
        else:
            self.epoch = 1 if self.epoch >= MAX_EPOCH else self.epoch + 1


def _message(
    wanted: Mapping[TopicPartition, FetchPartition],
    forgotten: Iterable[tuple[TopicPartition, bytes]],
    limits: FetchLimits,
    session_id: int,
    epoch: int,
    version: int,
) -> Message:
    kind = API_KEYS[FETCH].request
    of_topic, of_partition = kind.classes["FetchTopic"], kind.classes["FetchPartition"]
    topics: dict[tuple[str, bytes], list[Message]] = {}
    for (topic, partition), one in wanted.items():
        topics.setdefault((topic, one.topic_id), []).append(
            of_partition(
                partition=partition,
                current_leader_epoch=one.current_leader_epoch,
                fetch_offset=one.fetch_offset,
                last_fetched_epoch=one.last_fetched_epoch,
                log_start_offset=one.log_start_offset,
                partition_max_bytes=one.max_bytes,
            )
        )
    left: dict[tuple[str, bytes], list[int]] = {}
    for (topic, partition), topic_id in forgotten:
        left.setdefault((topic, topic_id), []).append(partition)
    of_forgotten = kind.classes["ForgottenTopic"]
    message = kind.new(
        replica_id=_NO_REPLICA,
        max_wait_ms=limits.max_wait_ms,
        min_bytes=limits.min_bytes,
        max_bytes=limits.max_bytes,
        isolation_level=limits.isolation_level,
        session_id=session_id,
        session_epoch=epoch,
        topics=[of_topic(topic=topic, topic_id=topic_id, partitions=found) for (topic, topic_id), found in topics.items()],
        forgotten_topics_data=[
            of_forgotten(topic=topic, topic_id=topic_id, partitions=found) for (topic, topic_id), found in left.items()
        ],
        rack_id=limits.rack,
    )
    if version < FIRST_VERSION_WITH_STATE:
        message.replica_id = limits.replica_id
    elif limits.replica_id != _NO_REPLICA:
        state = kind.classes["ReplicaState"]
        message.replica_state = state(replica_id=limits.replica_id, replica_epoch=limits.replica_epoch)
    return message
