"""The fetch session of a consumer with one broker (KIP-227; Kafka: FetchSessionHandler): only what changed is sent.

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
    FETCH_SESSION_ID_NOT_FOUND the broker dropped the session: a new one
    any other error            the next full request closes the session and makes a new one
    partitions that were not   the same
    asked for or are missing
    no answer                  the same: it is not known whether the broker took the request

From version 13 on topics are named by their ids, and a topic whose id is not known cannot be asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kcli.client.cluster import TopicPartition
from kcli.client.metadata import ZERO_UUID
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, FETCH
from kcli.protocol.message import Message

NO_SESSION = 0
FIRST_EPOCH, FINAL_EPOCH = 0, -1
MAX_EPOCH = 2**31 - 1
FIRST_VERSION_WITH_IDS = 13
FIRST_VERSION_WITH_SESSIONS = 7
MAX_BYTES = 2**31 - 1


class FetchPartition(NamedTuple):
    """What a request says of a partition; `topic_id` is ZERO_UUID if it is not known."""

    topic_id: bytes
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int


class FetchLimits(NamedTuple):
    """What a request says of the whole answer; `isolation_level` is 1 for read_committed."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    rack: str


class FetchAnswerError(Exception):
    """An answer that does not fit its session."""


class FetchSession:
    """The session with one broker."""

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self._partitions: dict[TopicPartition, FetchPartition] = {}
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

    def request(self, wanted: Mapping[TopicPartition, FetchPartition], limits: FetchLimits, version: int) -> Message:
        """Return the request for all `wanted` partitions, in a version of Fetch."""
        self._uses_ids = version >= FIRST_VERSION_WITH_IDS
        if self._uses_ids:
            wanted = {partition: one for partition, one in wanted.items() if one.topic_id != ZERO_UUID}
        before = self._partitions
        self._partitions = dict(wanted)
        self._names = {one.topic_id: topic for (topic, _), one in wanted.items()}
        self._asked_full = self.epoch == FIRST_EPOCH or version < FIRST_VERSION_WITH_SESSIONS
        changed: Mapping[TopicPartition, FetchPartition] = wanted
        forgotten: list[tuple[TopicPartition, bytes]] = []
        if not self._asked_full:
            changed = {partition: one for partition, one in wanted.items() if before.get(partition) != one}
            for partition, old in before.items():
                new = wanted.get(partition)
                if new is None or new.topic_id != old.topic_id:
                    forgotten.append((partition, old.topic_id))
        return _message(changed, forgotten, limits, self.session_id, self.epoch)

    def closing_request(self, limits: FetchLimits) -> Message | None:
        """Return the request that closes the session, None if there is none."""
        if self.session_id == NO_SESSION:
            return None
        return _message({}, [], limits, self.session_id, FINAL_EPOCH)

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
            raise FetchAnswerError(f"the broker answered {error}")
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
                partition_max_bytes=one.max_bytes,
            )
        )
    left: dict[tuple[str, bytes], list[int]] = {}
    for (topic, partition), topic_id in forgotten:
        left.setdefault((topic, topic_id), []).append(partition)
    of_forgotten = kind.classes["ForgottenTopic"]
    return kind.new(
        replica_id=-1,
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
