"""Batches for the directory fuzzer: what was appended at log level, and hostile record values that look like batches.

A hostile value holds whole batches of format 2 whose CRCs are right. No record in them was ever appended to the log, so none
may appear in an output. As the value of the last header it ends where the outer batch does. The kinds differ in the
offsets of the embedded batch, for an outer batch of offsets [base, next):

    kind      base offset of the embedded batch
    --------  ------------------------------------------------------------------------------------------------
    equal     base
    inside    between base and next
    continue  next
    chain     next; several batches follow each other without a gap
    past      a little above next
    far       a million above next
    zero      0
    nested    next, and a record of the embedded batch holds another embedded batch
    legacy    next; messages of format 0 or 1, which have the CRC of their own
"""

from __future__ import annotations

import random
import struct
from typing import NamedTuple

import lz4.frame

from kcli.format.compression import deflate
from kcli.format.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, NewRecordBatch
from kcli.format.records import Header, Record, encode_records
from tests.message_sets import NewLegacyRecord, encode_message_set

BASE_TIMESTAMP_MS = 1_700_000_000_000
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
CODECS = (GZIP, SNAPPY, LZ4, ZSTD)
FORGED = b"FORGED"
HOSTILE_KINDS = ("equal", "inside", "continue", "chain", "past", "far", "zero", "nested", "legacy")


class LogRecord(NamedTuple):
    """A record as it was appended. A control record has `is_control` True."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    is_control: bool = False
    headers: tuple[tuple[bytes, bytes], ...] = ()


class LogBatch(NamedTuple):
    """A batch as it was appended: its bytes, its records, offsets [base_offset, next_offset)."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    data: bytes
    records: tuple[LogRecord, ...]
    embedded: tuple[tuple[int, int], ...] = ()  # the positions [start, end) of visible embedded batches in `data`


class BatchSettings(NamedTuple):
    """What a batch is made with; `sequence` is -1 where no idempotent producer writes it."""

    leader_epoch: int = 0
    codec: int = 0
    stored: bool = False  # compressed, but with the bytes of the records as they are
    producer_id: int = -1
    sequence: int = -1
    is_transactional: bool = False


def stored(codec: int, data: bytes) -> bytes:
    """Compress `data` in a way that leaves its bytes visible: blocks that the format calls stored, raw or literal."""
    if codec == GZIP:
        return deflate(GZIP, data, level=0) if len(data) < 60_000 else deflate(GZIP, data)
    if codec == ZSTD:
        block = (len(data) << 3 | 1).to_bytes(3, "little")
        return b"\x28\xb5\x2f\xfd" + b"\xa0" + len(data).to_bytes(4, "little") + block + data
    if codec == LZ4:
        context = lz4.frame.create_compression_context()
        head = lz4.frame.compress_begin(context, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False)
        return bytes(head) + struct.pack("<I", len(data) | 0x80000000) + data + bytes(4)
    if codec == SNAPPY:
        size = bytearray()
        left = len(data)
        while left >= 0x80:
            size.append(left & 0x7F | 0x80)
            left >>= 7
        size.append(left)
        block = bytes(size) + b"\xf4" + (len(data) - 1).to_bytes(2, "little") + data
        return b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, len(block)) + block
    raise ValueError(f"there is no codec {codec}")


def make_batch(base_offset: int, records: list[LogRecord], settings: BatchSettings, next_offset: int | None = None) -> LogBatch:
    """Encode a batch of `records`; `next_offset` above the last record's: a cleaner removed the last ones."""
    first_ms = records[0].timestamp_ms if records else BASE_TIMESTAMP_MS
    encoded = encode_records(
        Record(
            one.offset - base_offset,
            one.timestamp_ms - first_ms,
            one.key,
            one.value,
            tuple(Header(key, value) for key, value in one.headers),
        )
        for one in records
    )
    is_control = bool(records) and records[0].is_control
    codec = settings.codec
    packed = stored(codec, encoded) if codec and settings.stored else deflate(codec, encoded) if codec else encoded
    next_offset = base_offset + len(records) if next_offset is None else next_offset
    data = NewRecordBatch(
        base_offset=base_offset,
        last_offset_delta=next_offset - base_offset - 1,
        base_timestamp=first_ms,
        max_timestamp=max((one.timestamp_ms for one in records), default=-1),
        record_count=len(records),
        records=packed,
        attributes=codec | (TRANSACTIONAL_FLAG if settings.is_transactional else 0) | (CONTROL_FLAG if is_control else 0),
        partition_leader_epoch=settings.leader_epoch,
        producer_id=settings.producer_id,
        producer_epoch=0 if settings.producer_id >= 0 else -1,
        base_sequence=settings.sequence,
    ).encode()
    return LogBatch(base_offset, next_offset, settings.leader_epoch, bytes(data), tuple(records))


def forged_batch(base_offset: int, count: int, settings: BatchSettings, inner: bytes = b"") -> bytes:
    """A sound batch that was never appended; `inner` is appended to the value of its first record."""
    records = [
        LogRecord(base_offset + i, BASE_TIMESTAMP_MS + base_offset + i, b"forged", FORGED + b" %d" % (base_offset + i))
        for i in range(count)
    ]
    if inner:
        first = records[0]
        records[0] = first._replace(value=(first.value or b"") + inner)
    return make_batch(base_offset, records, settings).data


def hostile_value(rng: random.Random, kind: str, base_offset: int, next_offset: int, leader_epoch: int) -> list[bytes]:
    """The pieces of a hostile value: whole embedded batches, one behind the other."""
    settings = BatchSettings(leader_epoch, codec=rng.choice((0, 0, 0, GZIP)))
    count = rng.randint(1, 5)
    if kind == "equal":
        return [forged_batch(base_offset, next_offset - base_offset, settings)]
    if kind == "inside":
        first = rng.randrange(base_offset, next_offset)
        return [forged_batch(first, rng.randint(1, next_offset - first), settings)]
    if kind == "chain":
        pieces = []
        for _ in range(rng.randint(2, 4)):
            pieces.append(forged_batch(next_offset, count, settings))
            next_offset += count
        return pieces
    if kind == "legacy":
        messages = [
            NewLegacyRecord(
                next_offset + i, BASE_TIMESTAMP_MS + next_offset + i, b"forged", FORGED + b" %d" % (next_offset + i)
            )
            for i in range(count)
        ]
        return [encode_message_set(messages, magic=rng.choice((0, 1)))]
    if kind == "nested":
        inner = forged_batch(next_offset, count, settings._replace(codec=0))
        return [forged_batch(next_offset, count, settings._replace(codec=0), inner)]
    first = {"continue": next_offset, "past": next_offset + rng.randint(1, 20), "far": next_offset + 10**6, "zero": 0}[kind]
    return [forged_batch(first, count, settings)]


def find_embedded(batch: LogBatch, pieces: list[bytes]) -> LogBatch:
    """Note where `pieces` are visible in the bytes of a batch."""
    found = []
    for piece in pieces:
        at = batch.data.find(piece)
        if at >= 0:
            found.append((at, at + len(piece)))
    return batch._replace(embedded=tuple(found))
