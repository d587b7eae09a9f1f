"""The records of the workload: each value is unique, so that a record is recognised at any offset.

    part       contents
    ---------  ----------------------------------------------------------------------------------------
    value      the producer's name, the number of the record, and some bytes that compress well or not; null in a tombstone
    key        null, or one of a few keys; in compacted topics never null
    headers    none to two; a tombstone's has its identity
    timestamp  the producer's virtual time, sometimes a little older

`encode_batch` encodes a batch as clients do; `whole_batches` and `placed_records` read batches of a broker or a disk strictly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from kcli.format.compression import deflate, inflate
from kcli.format.limits import MAX_INFLATED_BATCH_BYTES
from kcli.format.primitives import Buffer, CorruptRecordError
from kcli.format.record_batch import HEADER_BYTES, TRANSACTIONAL_FLAG, NewRecordBatch, RecordBatch, check_batch, read_header
from kcli.format.records import Header, Record, encode_records, read_records

CODECS = (0, 0, 0, 1, 2, 3, 4)
IDENTITY_HEADER = b"id"
TOMBSTONE_SHARE = 0.25
KEYS = 6
# A batch must fit into the smallest segments.
KEYED_VALUE_BYTES = 40


class SentRecord(NamedTuple):
    """A record as its producer sent it."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()

    @property
    def identity(self) -> bytes:
        """The unique value of the record; a tombstone has it in a header."""
        if self.value is not None:
            return self.value
        return next((header.value or b"" for header in self.headers if header.key == IDENTITY_HEADER), b"")


class RecordMaker:
    """Generates the records of one producer."""

    def __init__(self, name: str, rng: Random) -> None:
        self._name = name
        self._rng = rng
        self._count = 0

    def make(self, count: int, now_ms: int) -> list[SentRecord]:
        """Generate `count` records that are sent at `now_ms`."""
        rng = self._rng
        return [self._make(now_ms - (rng.randrange(5000) if rng.random() < 0.05 else 0)) for _ in range(count)]

    def _make(self, timestamp: int) -> SentRecord:
        rng = self._rng
        self._count += 1
        body = rng.randbytes(rng.randrange(40)) if rng.random() < 0.5 else b"." * rng.randrange(200)
        key = None if rng.random() < 0.5 else b"key-%d" % rng.randrange(5)
        headers = tuple(Header(b"h%d" % n, rng.choice((None, b"", b"header"))) for n in range(rng.choice((0, 0, 0, 1, 2))))
        return SentRecord(timestamp, key, f"{self._name}#{self._count}:".encode() + body, headers)

    def make_keyed(self, count: int, now_ms: int) -> list[SentRecord]:
        """Generate records with keys for compacted topics; some of them are tombstones."""
        return [
            record._replace(value=None, headers=(Header(IDENTITY_HEADER, record.value),))
            if self._rng.random() < TOMBSTONE_SHARE
            else record
            for record in self.make_values(count, now_ms)
        ]

    def make_values(self, count: int, now_ms: int) -> list[SentRecord]:
        """Generate records with keys, none of them a tombstone."""
        return [
            record._replace(key=b"key-%d" % self._rng.randrange(KEYS), value=record.identity[:KEYED_VALUE_BYTES])
            for record in self.make(count, now_ms)
        ]


def encode_batch(
    records: Sequence[SentRecord],
    codec: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    *,
    is_transactional: bool = False,
) -> bytes:
    """Encode a batch as a client sends it."""
    base = records[0].timestamp
    encoded = encode_records(
        Record(at, record.timestamp - base, record.key, record.value, record.headers) for at, record in enumerate(records)
    )
    return NewRecordBatch(
        base_offset=0,
        last_offset_delta=len(records) - 1,
        base_timestamp=base,
        max_timestamp=max(record.timestamp for record in records),
        record_count=len(records),
        records=deflate(codec, encoded) if codec else encoded,
        attributes=codec | (TRANSACTIONAL_FLAG if is_transactional else 0),
        partition_leader_epoch=-1,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    ).encode()


def whole_batches(data: Buffer) -> Iterator[RecordBatch]:
    """Yield the headers of the batches at the head of `data`, up to the first torn or damaged one."""
    view = memoryview(data)
    position = 0
    while len(view) - position >= HEADER_BYTES:
        header = read_header(view, position, position)
        if header.size_bytes < HEADER_BYTES or header.end_position > len(view):
            return
        try:
            check_batch(view[position : header.end_position])
        except CorruptRecordError:
            return
        yield header
        position = header.end_position


def placed_records(data: Buffer, batch: RecordBatch, *, is_compacted: bool = False) -> list[tuple[int, SentRecord]]:
    """Return the records of the batch at `batch.position` in `data`: (offset, record with the timestamp that a consumer sees).

    Raises FormatError for records that do not parse, and for missing offsets unless the topic is compacted.
    """
    body = memoryview(data)[batch.position + HEADER_BYTES : batch.end_position]
    plain = inflate(batch.codec, body, limit=MAX_INFLATED_BATCH_BYTES) if batch.codec else bytes(body)
    found: list[tuple[int, SentRecord]] = []
    expected = batch.base_offset
    for record in read_records(plain, batch.record_count):
        offset = batch.base_offset + record.offset_delta
        if offset < expected or (offset > expected and not is_compacted):
            raise CorruptRecordError(f"a batch has offset {offset} where {expected} is expected", batch.position)
        append_time = batch.log_append_time_ms
        timestamp = batch.base_timestamp + record.timestamp_delta if append_time is None else append_time
        found.append((offset, SentRecord(timestamp, record.key, record.value, record.headers)))
        expected = offset + 1
    if expected > batch.next_offset or (expected < batch.next_offset and not is_compacted):
        raise CorruptRecordError(f"a batch up to offset {batch.last_offset} has records up to {expected - 1}", batch.position)
    return found
