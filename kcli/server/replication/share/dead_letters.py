"""The dead letter queues of share groups (KIP-1191; Kafka: ShareGroupDLQManager, ShareGroupDLQStateManager).

A record that a member rejects, or that was delivered too often, is ARCHIVING until it is in the topic that the group names by
errors.deadletterqueue.topic.name; then it is ARCHIVED. If it cannot be written there, the node's log says why, and it is
ARCHIVED, too. share.version 2 is needed.

    the topic                                                            the records
    -------------------------------------------------------------------  -------------------------------------------------
    exists, with errors.deadletterqueue.group.enable=true                are written to it
    does not exist, and errors.deadletterqueue.auto.create.topics.enable  create it, with the defaults for partitions and
                                                                         replicas
    anything else, or not below errors.deadletterqueue.topic.name.prefix  are not written

    part of a record  value
    ----------------  --------------------------------------------------------------------------------------------------
    partition         the one of the record, modulo the number of partitions
    key, value        those of the record with errors.deadletterqueue.copy.record.enable, otherwise null; null if they do
                      not fit into max.message.bytes
    headers           __dlq.errors.topic, .partition, .offset, .group, .delivery.count and .message, as text
    timestamp         the time of the write

Each share partition has a queue: one request is under way, with as many records as max.message.bytes of the topic allows. After
a retriable error it is sent again; after MOST_ATTEMPTS attempts in all, the records that wait in the queue are left out.
DeadLetterCounts has the metrics.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from kcli.format.record_batch import HEADER_BYTES, NewRecordBatch
from kcli.format.records import Header, Record, encode_record
from kcli.log.disk.port import Disk
from kcli.log.rng import Random
from kcli.network.events import NodeRole, PeerNode
from kcli.network.exponential_backoff import ExponentialBackoff
from kcli.network.peer_request import Answer, PeerFailure
from kcli.network.peers import Peers
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, PRODUCE
from kcli.protocol.message import Message
from kcli.server.config.group_config import ShareGroupConfig
from kcli.server.config.server_config import ConfigReader
from kcli.server.config.topic_config import TopicConfigs
from kcli.server.features import SHARE_VERSION
from kcli.server.log_lines import WarningLine
from kcli.server.metadata_cache import MetadataCache
from kcli.server.outstanding import Computations
from kcli.server.replication.partition import PartitionError
from kcli.server.replication.replica_manager import ReplicaManager
from kcli.server.replication.share.record_copies import Copies, CopyRange
from kcli.server.replication.share_persister import ShareKey
from kcli.state.groups import InternalTopic
from kcli.state.metadata_values import ConfigResource, Topic

REJECTED = "Offset rejected by client."
DELIVERED_TOO_OFTEN = "Offset delivery count exceeded the threshold."
MOST_ATTEMPTS = 5
BACKOFF = ExponentialBackoff(1_000, 30_000)
_DLQ_SHARE_VERSION = 2
_ENABLE_KEY = "errors.deadletterqueue.group.enable"
_PREFIX_KEY = "errors.deadletterqueue.topic.name.prefix"
_CREATE_KEY = "errors.deadletterqueue.auto.create.topics.enable"
_ALL_REPLICAS = -1
_TIMEOUT_MS = 30_000
_RETRIABLE = (error_codes.NOT_LEADER_OR_FOLLOWER,)


class DeadLetters(NamedTuple):
    """The records first_offset..last_offset of a share partition, and why they are dead letters."""

    key: ShareKey
    topic: str
    first_offset: int
    last_offset: int
    delivery_count: int
    cause: str


class DeadLetterQueue(Protocol):
    """Takes the dead letters of share partitions."""

    def is_enabled(self, group_id: str) -> bool:
        """Return whether a group has a dead letter queue."""
        ...

    def enqueue(self, letters: DeadLetters, done: Callable[[], None]) -> None:
        """Write dead letters; `done()` is called when they are written or cannot be."""
        ...


class TopicCreator(Protocol):
    """Requests topics from the controller."""

    def create_internal(self, topics: Iterable[InternalTopic], pause_ms: int) -> None:
        """Request topics; a name that is refused is not requested again for `pause_ms`."""
        ...


class _Pending:
    """Dead letters of which the records from `next_offset` on are not written yet."""

    __slots__ = ("done", "letters", "next_offset")

    def __init__(self, letters: DeadLetters, done: Callable[[], None]) -> None:
        self.letters = letters
        self.next_offset = letters.first_offset
        self.done = done


class _Queue:
    """The dead letters of one share partition; `is_busy` while a request or a retry is under way."""

    __slots__ = ("attempts", "is_busy", "pending")

    def __init__(self) -> None:
        self.pending: deque[_Pending] = deque()
        self.is_busy = False
        self.attempts = 0


class DeadLetterCounts:
    """The dead letters of a group: written records, produce requests, and those that failed and are not sent again."""

    __slots__ = ("failed_requests", "records", "requests")

    def __init__(self) -> None:
        self.records = 0
        self.requests = 0
        self.failed_requests = 0


class ShareGroupDLQManager:
    """The dead letter queues of the share partitions that this broker leads. `report` writes a line of the node's log.

    `counts` are for the metrics, by the id of the group.
    """

    def __init__(
        self,
        config: ConfigReader,
        metadata: MetadataCache,
        topic_configs: TopicConfigs,
        replica_manager: ReplicaManager,
        topics: TopicCreator,
        peers: Peers,
        listener: str,
        timer: Timer,
        rng: Random,
        computations: Computations,
        disk: Disk,
        report: Callable[[str], None],
    ) -> None:
        self._config = config
        self._groups = ShareGroupConfig(config, metadata)
        self._metadata = metadata
        self._topic_configs = topic_configs
        self._replica_manager = replica_manager
        self._topics = topics
        self._peers = peers
        self._listener = listener
        self._timer = timer
        self._rng = rng
        self._computations = computations
        self._disk = disk
        self._report = report
        self._queues: dict[ShareKey, _Queue] = {}
        self.counts: defaultdict[str, DeadLetterCounts] = defaultdict(DeadLetterCounts)

    def is_enabled(self, group_id: str) -> bool:
        """Return whether a group has a dead letter queue."""
        level = self._metadata.image.features.get(SHARE_VERSION, 0)
        return level >= _DLQ_SHARE_VERSION and bool(self._groups.dead_letter_topic(group_id))

    def enqueue(self, letters: DeadLetters, done: Callable[[], None]) -> None:
        """Write dead letters; `done()` is called when they are written or cannot be."""
        queue = self._queues.setdefault(letters.key, _Queue())
        queue.pending.append(_Pending(letters, done))
        self._continue(letters.key, queue)

    # ----------------------------------------------------------------------------------------------------------- topic

    def _fault(self, name: str) -> str | None:
        """Return why a topic cannot be the dead letter queue of a group, None if it can."""
        prefix = self._config.get_str(_PREFIX_KEY)
        if not name:
            return "the group does not name a topic any more (errors.deadletterqueue.topic.name)"
        if name.startswith("__"):
            return f"the name of topic {name} begins with __"
        if self._metadata.image.topic(name) is not None:
            configs = self._metadata.image.configs.get(ConfigResource("TOPIC", name), {})
            if configs.get(_ENABLE_KEY, "").strip().lower() != "true":
                return f"topic {name} does not have {_ENABLE_KEY}=true"
        elif not self._config[_CREATE_KEY]:
            return f"topic {name} does not exist, and {_CREATE_KEY}=false"
        if not name.startswith(prefix):
            return f"the name of topic {name} does not begin with {_PREFIX_KEY}={prefix}"
        return None

    # ----------------------------------------------------------------------------------------------------------- queue

    def _continue(self, key: ShareKey, queue: _Queue) -> None:
        """Begin the next request of a queue, if none is under way."""
        while queue.pending and not queue.is_busy:
            name = self._groups.dead_letter_topic(key.group_id)
            fault = self._fault(name)
            if fault is not None:
                self._give_up(queue, 1, fault)
                continue
            queue.is_busy = True
            topic = self._metadata.image.topic(name)
            if topic is None:
                configs = ((_ENABLE_KEY, "true"), ("message.timestamp.type", "CreateTime"))
                self._topics.create_internal([InternalTopic(name, -1, 0, configs)], BACKOFF.initial_ms)
                self._retry(key, queue, f"topic {name} is not created")
            elif self._groups.copies_dead_letters(key.group_id):
                self._copy(key, queue, topic)
            else:
                self._send(key, queue, topic, None)
        if not queue.pending:
            self._queues.pop(key, None)

    def _give_up(self, queue: _Queue, count: int, reason: str) -> None:
        """Leave the first `count` letters out."""
        for _ in range(min(count, len(queue.pending))):
            pending = queue.pending.popleft()
            letters = pending.letters
            text = (
                f"records {pending.next_offset} to {letters.last_offset} of {letters.topic}-{letters.key.partition} cannot be "
                f"written to the dead letter queue of share group {letters.key.group_id}: {reason}"
            )
            self._report(WarningLine(text, group=letters.key.group_id, topic=letters.topic, partition=letters.key.partition))
            pending.done()

    def _retry(self, key: ShareKey, queue: _Queue, reason: str, *, has_failed: bool = False) -> None:
        """Continue a busy queue after a time, or leave all of it out after MOST_ATTEMPTS; `has_failed`: a request was sent."""
        queue.attempts += 1
        if queue.attempts < MOST_ATTEMPTS:
            at_ms = self._timer.clock_ms + BACKOFF.delay_ms(queue.attempts - 1, self._rng)
            self._timer.schedule(at_ms, lambda now_ms: self._idle(key, queue))
            return
        queue.attempts = 0
        self.counts[key.group_id].failed_requests += has_failed
        self._give_up(queue, len(queue.pending), f"{reason} after {MOST_ATTEMPTS} attempts")
        self._idle(key, queue)

    def _idle(self, key: ShareKey, queue: _Queue) -> None:
        queue.is_busy = False
        self._continue(key, queue)

    # ------------------------------------------------------------------------------------------------------------ copy

    def _copy(self, key: ShareKey, queue: _Queue, topic: Topic) -> None:
        """Read the keys and values of the first letters, and send them."""
        pending = queue.pending[0]
        letters, most_bytes = pending.letters, self._max_bytes(topic)

        def copied(copies: Copies, now_ms: int) -> None:
            self._send(key, queue, topic, copies)

        hosted = self._replica_manager.partition(letters.topic, key.partition)
        try:
            if hosted is None or hosted.topic_id != key.topic_id:
                raise PartitionError(error_codes.NOT_LEADER_OR_FOLLOWER, "this broker does not host the partition")
            found = CopyRange.of(hosted.leader_log().local_log(), pending.next_offset, letters.last_offset, most_bytes)
        except (PartitionError, OSError):
            copied(Copies({}, letters.last_offset + 1), self._timer.clock_ms)  # the headers say where the record was
            return
        self._computations.compute(partial(found.run, self._disk), copied)

    def _max_bytes(self, topic: Topic) -> int:
        return self._topic_configs.log_config(topic.name).max_message_bytes

    # ------------------------------------------------------------------------------------------------------------ send

    def _send(self, key: ShareKey, queue: _Queue, topic: Topic, copies: Copies | None) -> None:
        """Send as many records as fit into a batch; with copies those of the first letters only."""
        index = key.partition % len(topic.partitions)
        leader = topic.partitions[index].leader if index in topic.partitions else -1
        if leader < 0:
            self._retry(key, queue, f"{topic.name}-{index} has no leader")
            return
        batch, counts = self._batch(queue, self._max_bytes(topic), copies)
        classes = API_KEYS[PRODUCE].request.classes
        part = classes["PartitionProduceData"](index=index, records=batch)
        named = classes["TopicProduceData"](name=topic.name, topic_id=topic.topic_id, partition_data=[part])
        message = API_KEYS[PRODUCE].request.new(acks=_ALL_REPLICAS, timeout_ms=_TIMEOUT_MS, topic_data=[named])
        self.counts[key.group_id].requests += 1
        deadline_ms = self._timer.clock_ms + self._config.get_int("request.timeout.ms")
        answered = partial(self._answered, key, queue, counts)
        self._peers.send(PeerNode(leader, NodeRole.BROKER), self._listener, PRODUCE, message, answered, deadline_ms)

    def _batch(self, queue: _Queue, most_bytes: int, copies: Copies | None) -> tuple[bytes, list[int]]:
        """Return a batch, and how many records it has of each of the first letters."""
        now_ms = self._timer.wall.at(self._timer.clock_ms)
        parts: list[bytes] = []
        counts: list[int] = []
        size = HEADER_BYTES
        for pending in queue.pending if copies is None else [queue.pending[0]]:
            letters, offset = pending.letters, pending.next_offset
            end = letters.last_offset + 1 if copies is None else max(min(letters.last_offset + 1, copies.end), offset + 1)
            while offset < end:
                key, value = (None, None) if copies is None else copies.records.get(offset, (None, None))
                part = encode_record(Record(len(parts), 0, key, value, _headers(letters, offset)))
                if size + len(part) > most_bytes:
                    if parts:
                        break
                    # Kafka sends it, and the topic refuses it.
                    part = encode_record(Record(0, 0, None, None, _headers(letters, offset)))
                parts.append(part)
                size += len(part)
                offset += 1
            if offset > pending.next_offset:
                counts.append(offset - pending.next_offset)
            if offset < end:
                break
        batch = NewRecordBatch(0, len(parts) - 1, now_ms, now_ms, len(parts), b"".join(parts))
        return batch.encode(), counts

    def _answered(self, key: ShareKey, queue: _Queue, counts: list[int], answer: Answer, now_ms: int) -> None:
        if isinstance(answer, PeerFailure):
            self._retry(key, queue, f"the request failed ({answer.name})", has_failed=True)
            return
        result = answer.responses[0].partition_responses[0]
        if result.error_code in _RETRIABLE:
            self._retry(key, queue, _reason(result), has_failed=True)
            return
        queue.attempts = 0
        if result.error_code:
            self.counts[key.group_id].failed_requests += 1
            self._give_up(queue, len(counts), _reason(result))
        else:
            self.counts[key.group_id].records += sum(counts)
            for count in counts:
                pending = queue.pending[0]
                pending.next_offset += count
                if pending.next_offset > pending.letters.last_offset:
                    queue.pending.popleft()
                    pending.done()
        self._idle(key, queue)


def _reason(result: Message) -> str:
    return result.error_message or error_codes.NAMES.get(result.error_code, str(result.error_code))


def _headers(letters: DeadLetters, offset: int) -> tuple[Header, ...]:
    values = {
        "topic": letters.topic,
        "partition": letters.key.partition,
        "offset": offset,
        "group": letters.key.group_id,
        "delivery.count": letters.delivery_count,
        "message": letters.cause,
    }
    return tuple(Header(f"__dlq.errors.{name}".encode(), str(value).encode()) for name, value in values.items())
