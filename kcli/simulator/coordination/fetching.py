"""Reads partitions as a consumer does: Fetch without a session, and the filter of read_committed.

batch                                            a consumer with read_committed
-----------------------------------------------  ----------------------------------------------------------------
data of a transaction in the aborted list, from  skips it
  its first offset to its abort marker
a marker                                         skips it, as every consumer does
any other                                        gets its records; in the batch that contains its position those from there on

A batch that ends below the position must not be in a response. A consumer skips its records without a word; here the reader
gets them, so that nonmonotonic_polls finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import NamedTuple

from kcli.format.compression import inflate
from kcli.format.limits import MAX_INFLATED_BATCH_BYTES
from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import HEADER_BYTES, RecordBatch
from kcli.format.records import read_records
from kcli.protocol import error_codes
from kcli.protocol.apis import FETCH, LIST_OFFSETS
from kcli.protocol.control_records import ABORT, control_type_id
from kcli.protocol.message import Message
from kcli.simulator.client import Task
from kcli.simulator.coordination.history import is_by_id, topic_name
from kcli.simulator.coordination.stage import RETRIABLE, Caller, Stage
from kcli.simulator.partition_ledger import SimulationFailure
from kcli.simulator.sent_records import whole_batches

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
_LATEST = -1
_TOPIC_IDS_VERSION = 13
_ZSTD_VERSION = 10
_ISOLATION_VERSION = 4
_RAW_RETRIABLE = RETRIABLE | {error_codes.OFFSET_NOT_AVAILABLE}


class Fetched(NamedTuple):
    """The records of a partition that a consumer gets, and its next position."""

    records: list[tuple[int, bytes]]
    position: int


class Fetcher:
    """Fetches for one reader."""

    def __init__(self, stage: Stage, caller: Caller, rng: Random) -> None:
        self._stage = stage
        self._caller = caller
        self._rng = rng

    def fetch(self, positions: Mapping[TopicPartition, int], isolation: int) -> Task[dict[TopicPartition, Fetched]]:
        """Return what the partitions have from these positions on; nothing of a partition with a temporary error.

        Raises SimulationFailure.
        """
        world, caller = self._stage.world, self._caller
        is_any_by_id = any(is_by_id(name) for name, _ in positions)
        version = caller.version(FETCH, _TOPIC_IDS_VERSION if is_any_by_id else _ZSTD_VERSION)
        by_topic: dict[str, list[Message]] = {}
        for (name, index), position in positions.items():
            part = world.struct(
                FETCH, "FetchPartition", partition=index, fetch_offset=position, partition_max_bytes=self._max_bytes()
            )
            by_topic.setdefault(name, []).append(part)
        topics = [
            world.struct(
                FETCH,
                "FetchTopic",
                topic="" if version >= _TOPIC_IDS_VERSION else name,
                topic_id=self._stage.topics[name].topic_id,
                partitions=parts,
            )
            for name, parts in by_topic.items()
        ]
        request = world.request(FETCH, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=isolation, topics=topics)
        response = yield from caller.call(FETCH, version, request, may_repeat=False)
        found: dict[TopicPartition, Fetched] = {}
        if response is None or response.error_code:
            caller.check(0 if response is None else response.error_code, "Fetch")
            return found
        for topic in response.responses:
            by_id = version >= _TOPIC_IDS_VERSION
            name = self._stage.topic_name(topic.topic_id) if by_id else topic.topic
            for answer in topic.partitions:
                where = name, answer.partition_index
                if answer.error_code:
                    caller.check(answer.error_code, f"Fetch of {name}-{answer.partition_index} at {positions[where]}")
                    continue
                if isolation == READ_COMMITTED and answer.last_stable_offset > answer.high_watermark:
                    raise SimulationFailure(f"{name}-{answer.partition_index}: its last stable offset is above its end")
                found[where] = consumed(answer, positions[where], isolation)
        return found

    def _max_bytes(self) -> int:
        return self._rng.choice((1, 300, 1 << 20))

    def end_offsets(self, partitions: Iterable[TopicPartition], isolation: int) -> Task[dict[TopicPartition, int]]:
        """Return the end offsets of partitions for an isolation level; nothing of a partition with a temporary error."""
        world, caller = self._stage.world, self._caller
        version = caller.version(LIST_OFFSETS, 2)
        by_topic: dict[str, list[Message]] = {}
        for name, index in partitions:
            part = world.struct(LIST_OFFSETS, "ListOffsetsPartition", partition_index=index, timestamp=_LATEST)
            by_topic.setdefault(name, []).append(part)
        topics = [
            world.struct(LIST_OFFSETS, "ListOffsetsTopic", name=topic_name(name), partitions=parts)
            for name, parts in by_topic.items()
        ]
        names = {topic_name(name): name for name in by_topic}
        request = world.request(LIST_OFFSETS, replica_id=-1, isolation_level=isolation, topics=topics)
        response = yield from caller.call(LIST_OFFSETS, version, request, may_repeat=False)
        found: dict[TopicPartition, int] = {}
        for topic in () if response is None else response.topics:
            for answer in topic.partitions:
                caller.check(answer.error_code, "ListOffsets", _RAW_RETRIABLE)
                if not answer.error_code:
                    found[names[topic.name], answer.partition_index] = answer.offset
        return found


def consumed(answer: Message, position: int, isolation: int) -> Fetched:
    """Return what a consumer gets of a partition's answer to a fetch from `position` on."""
    data = bytes(answer.records or b"")
    aborted = sorted((one.first_offset, one.producer_id) for one in answer.aborted_transactions or ())
    active: set[int] = set()  # producer ids whose aborted transaction the reader is in
    records: list[tuple[int, bytes]] = []
    start = position
    for batch in whole_batches(data):
        while aborted and aborted[0][0] <= batch.last_offset:
            active.add(aborted.pop(0)[1])
        rows = batch_rows(data, batch)
        if batch.is_control:
            if any(control_type_id(key) == ABORT for _, key, _ in rows):
                active.discard(batch.producer_id)
        elif not (isolation == READ_COMMITTED and batch.is_transactional and batch.producer_id in active):
            least = start if batch.base_offset <= start <= batch.last_offset else 0
            records += [(offset, value or b"") for offset, _, value in rows if offset >= least]
        position = max(position, batch.next_offset)
    return Fetched(records, position)


def batch_rows(data: bytes, batch: RecordBatch) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return the offset, key and value of each record of a batch."""
    body = memoryview(data)[batch.position + HEADER_BYTES : batch.end_position]
    plain = inflate(batch.codec, body, limit=MAX_INFLATED_BATCH_BYTES) if batch.codec else bytes(body)
    return [
        (batch.base_offset + record.offset_delta, record.key, record.value)
        for record in read_records(plain, batch.record_count)
    ]
