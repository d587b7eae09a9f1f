"""Whole batches of a cluster's partitions, as the broker stores them: no record is decoded.

One Fetch of one partition is one call of `fetch`. The last batch of an answer may be cut off and is then left out, as are the
batches below the offset that was asked for.

`FetchClient` does the same for callers that block: tasks of to-parquet, and `kcli consume` at an end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import NamedTuple, Self, TypeGuard, TypeVar

from kcli.client.admin.partitions import OffsetSpec
from kcli.client.cluster import NO_LEADER
from kcli.client.errors import KafkaError, KafkaTimeoutError
from kcli.client.network_client import NetworkClient
from kcli.client.shell.client_builder import build_network
from kcli.client.shell.client_thread import ClientThread
from kcli.format.primitives import INT64_MAX, TopicPartition, crc32c
from kcli.format.record_batch import CRC_START, ENTRY_HEAD_BYTES, RecordBatch, entry_size, read_entry_header
from kcli.log.reading.segment_reader import LogBatch
from kcli.network.peer_request import PeerFailure
from kcli.network.shell.clock import Clock
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, FETCH
from kcli.protocol.message import Message
from kcli.replay.steps import Call, Pause, StepRunner, Steps, connect, list_offsets, refresh, topic_id

FETCH_BYTES = 8 * 1024 * 1024
# Answers without a batch, 500 ms each, after which a log is taken to end: a new leader may need some time to know the newest
# high watermark.
MOST_EMPTY_ANSWERS = 20
_IDS_FROM_VERSION = 13


class OffsetOutOfRangeError(KafkaError):
    """An offset that the log of the partition does not have (any more)."""

    def __init__(self, detail: str) -> None:
        super().__init__(error_codes.OFFSET_OUT_OF_RANGE, detail)


class Aborted(NamedTuple):
    """An aborted transaction in an answer: its producer, and the offset of its first record."""

    producer_id: int
    first_offset: int


class Fetched(NamedTuple):
    """The answer for one partition; it has records up to `end_offset`, the last stable offset or the high watermark."""

    records: memoryview
    high_watermark: int
    end_offset: int
    aborted: list[Aborted]

    def skip_missing(self, offset: int) -> int:
        """Return the offset to read next after an answer to a fetch from `offset` that has no batch.

        A log may end with offsets that no batch has: the log cleaner or a repair has left an empty active segment.
        """
        return offset if self.records else max(offset, self.end_offset)


class FetchPosition:
    """The next offset of a partition that is read up to `end_offset`, answer by answer."""

    def __init__(self, offset: int, end_offset: int) -> None:
        self.offset = offset
        self._end_offset = end_offset
        self._empty = 0

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is left to read."""
        return self.offset >= self._end_offset

    def go_on(self, fetched: Fetched, next_offset: int) -> bool:
        """Continue after an answer, whose batches end at `next_offset`.

        Return False if the log ends before `end_offset`: MOST_EMPTY_ANSWERS in a row have brought nothing.
        """
        moved = max(next_offset, min(fetched.skip_missing(self.offset), self._end_offset))
        self._empty = 0 if moved > self.offset else self._empty + 1
        self.offset = moved
        return self._empty < MOST_EMPTY_ANSWERS


class FetchedFile:
    """The bytes of an answer, as a file for LogBatch."""

    name = "an answer to Fetch"

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def size(self) -> int:
        """Return the number of bytes."""
        return len(self._data)

    def read_at(self, position: int, size: int) -> bytes:
        """Return bytes."""
        return bytes(self._data[position : position + size])

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Copy bytes, and return their number."""
        data = self._data[position : position + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def next_data(self, position: int) -> int:
        """Return the position: there are no holes."""
        return position

    def close(self) -> None:
        """Do nothing."""


def fetch_request(network: NetworkClient, topic: str, partition: int, offset: int, isolation: int, wait_ms: int) -> Call:
    """Return the Fetch of one partition, for its leader."""
    kind = API_KEYS[FETCH].request

    def request(version: int) -> Message:
        part = kind.classes["FetchPartition"](partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        name = {"topic_id": topic_id(network, topic)} if version >= _IDS_FROM_VERSION else {"topic": topic}
        asked = kind.classes["FetchTopic"](**name, partitions=[part])
        return kind.new(max_wait_ms=wait_ms, min_bytes=1, max_bytes=FETCH_BYTES, isolation_level=isolation, topics=[asked])

    return Call(FETCH, request, network.metadata.cluster.leader_for(topic, partition))


def fetch(
    network: NetworkClient, topic: str, partition: int, offset: int, isolation: int = 0, wait_ms: int = 500
) -> Steps[Fetched]:
    """Fetch from a partition. Raises OffsetOutOfRangeError, KafkaError, KafkaTimeoutError."""
    deadline_ms = network.timer.clock_ms + network.config.default_api_timeout_ms
    while True:
        reason = "it has no leader"
        if network.metadata.cluster.leader_for(topic, partition) != NO_LEADER:
            answer: Message | PeerFailure = yield fetch_request(network, topic, partition, offset, isolation, wait_ms)
            if _is_throttled(answer):
                yield Pause(max(answer.throttle_time_ms, network.config.retry_backoff_ms))
                deadline_ms = network.timer.clock_ms + network.config.default_api_timeout_ms
                continue
            code, found = _part(answer)
            if found is not None and not code:
                return _fetched(found, isolation)
            if code == error_codes.OFFSET_OUT_OF_RANGE:
                raise OffsetOutOfRangeError(f"{topic}-{partition} has no offset {offset}")
            if code not in error_codes.RETRIABLE and not isinstance(answer, PeerFailure):
                raise KafkaError(code, f"{topic}-{partition}")
            reason = network.failure_reason() if isinstance(answer, PeerFailure) else error_codes.NAMES[code]
        if network.timer.clock_ms >= deadline_ms:
            raise KafkaTimeoutError(f"{topic}-{partition} cannot be read: {reason}")
        yield Pause(network.config.retry_backoff_ms)
        yield from refresh(network)


def fetch_some(network: NetworkClient, topic: str, partition: int, offset: int) -> Steps[Fetched]:
    """Fetch from a partition whose log has more, until an answer has a batch or shows that there is none.

    After MOST_EMPTY_ANSWERS the last one is returned, from which `skip_missing` does not go on: the log ends here. Raises as
    `fetch` does.
    """
    position = FetchPosition(offset, INT64_MAX)
    while True:
        fetched = yield from fetch(network, topic, partition, offset)
        if fetched.records or not position.go_on(fetched, offset) or position.offset > offset:
            return fetched


def _is_throttled(answer: Message | PeerFailure) -> TypeGuard[Message]:
    """Return whether the quota of the client (consumer_byte_rate) is exceeded: the answer has no partition then (KIP-219)."""
    return not isinstance(answer, PeerFailure) and not answer.error_code and not answer.responses


def _part(answer: Message | PeerFailure) -> tuple[int, Message | None]:
    if isinstance(answer, PeerFailure):
        return 0, None
    if answer.error_code:
        return answer.error_code, None
    part: Message = answer.responses[0].partitions[0]
    return part.error_code, part


def _fetched(part: Message, isolation: int) -> Fetched:
    records = memoryview(part.records) if part.records is not None else memoryview(b"")
    aborted = [Aborted(one.producer_id, one.first_offset) for one in part.aborted_transactions or ()]
    end_offset = part.last_stable_offset if isolation else part.high_watermark
    return Fetched(records, part.high_watermark, end_offset, aborted)


def batches_in(records: memoryview, from_offset: int, position: int = 0) -> Iterator[LogBatch]:
    """Yield the whole batches of an answer from a byte on that end at or above `from_offset`."""
    file = FetchedFile(records)
    end = len(records)
    while end - position >= ENTRY_HEAD_BYTES:
        size = entry_size(records, position)
        if size < ENTRY_HEAD_BYTES or size > end - position:
            return
        header = read_entry_header(records, position, position)
        data = records[position : position + size]
        if header.last_offset >= from_offset:
            if isinstance(header, RecordBatch):
                yield LogBatch(header, data, crc32c(data[CRC_START:]), file)
            else:
                from kcli.format.legacy_message_set import legacy_crc

                yield LogBatch(header, data, legacy_crc(data), file)
        position += size


_Result = TypeVar("_Result")


class _FetchCore:
    """The core of the client: all that it does are fetches."""

    def __init__(self, network: NetworkClient) -> None:
        self.network = network

    def poll(self, now_ms: int) -> None:
        """Do nothing: no work is due by itself."""


class FetchClient:
    """A client on a thread of its own, with the settings `properties`. Raises ConfigError for servers that are no addresses."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        clock = Clock()
        self.network = build_network(properties, clock)
        self._runner = StepRunner(self.network)
        self._thread = ClientThread(_FetchCore(self.network), clock, "kcli-fetch")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._thread.close()

    def _start(self, steps: Steps[_Result]) -> Future[_Result]:
        return self._thread.start(lambda done, now_ms: self._runner.start(steps, done))

    def connect(self, topic: str) -> None:
        """Find the leaders of a topic. Raises ClientError."""
        self.network.metadata.want_topic(topic)
        self._start(connect(self.network, "cluster")).result()

    def fetch(self, key: TopicPartition, offset: int, isolation: int) -> Future[Fetched]:
        """Begin to fetch from a partition; the result raises what kcli.replay.fetching.fetch does."""
        return self._start(fetch(self.network, *key, offset, isolation))

    def first_offset(self, key: TopicPartition) -> int:
        """Return the first offset of a partition. Raises ClientError."""
        return self._start(list_offsets([key], OffsetSpec.EARLIEST)).result()[key]
