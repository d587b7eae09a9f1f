"""Reads messages of format 0 and 1 that are too large for memory, piece by piece.

The layout is that of kcli.format.legacy_message_set. A set of a few hundred KiB may inflate to 512 MiB, also as one message. Of
each message only its offset is returned, and whether its CRC and sizes are right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from kcli.format import limits
from kcli.format.primitives import Buffer, CorruptRecordError, InvalidRecordError
from kcli.log.reading.large_records import PieceReader
from kcli.log.reading.segment_reader import LogBatch

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

_OVERHEAD_BYTES = 12  # offset and size
_LEAST_SIZE = 14
_CODEC_MASK = 0x07
# The bytes that one byte may inflate to: at most 1032 with deflate, far fewer with lz4 and snappy. There is no zstd here.
_LARGEST_RATIO = 1100
_MOST_HELD_BYTES = 64 * 1024 * 1024


class LargeMessage(NamedTuple):
    """The stored offset of a message, and whether its CRC is right."""

    offset: int
    is_valid: bool


def is_large(batch: LogBatch, header: LegacyBatch) -> bool:
    """Return True if a message or set is too large for memory, or may inflate to be."""
    if header.size_bytes > limits.INFLATE_WINDOW_BYTES:
        return True
    return header.codec != 0 and header.size_bytes * _LARGEST_RATIO > _MOST_HELD_BYTES


class LargeMessages:
    """The messages of one entry; `count` is how many were read."""

    def __init__(self, batch: LogBatch, header: LegacyBatch) -> None:
        self.count = 0
        self._batch = batch
        self._header = header

    def walk(self) -> Iterator[LargeMessage]:
        """Yield the messages. Raises FormatError if they cannot be read; they end where the file does."""
        source = PieceReader(b"", 0, self._batch.payload_chunks(0))
        if not self._header.codec:
            offset, size = self._head(source)
            self.count += 1
            yield LargeMessage(offset, self._is_valid(source, size))
            return
        source.skip(_OVERHEAD_BYTES + 6 + (8 if self._header.magic else 0))
        key_size = _int32(source.take(4))
        source.skip(max(key_size, 0))
        value_size = _int32(source.take(4))
        if value_size < 0:
            raise InvalidRecordError("a compressed set has a null value")
        yield from self._inner(source.walk(value_size))

    def _head(self, source: PieceReader) -> tuple[int, int]:
        head = source.take(_OVERHEAD_BYTES)
        size = _int32(head[8:])
        if size < _LEAST_SIZE:
            raise CorruptRecordError(f"a message states {size} bytes, fewer than the least possible {_LEAST_SIZE}")
        return int.from_bytes(head[:8], "big", signed=True), size

    def _inner(self, pieces: Iterator[Buffer]) -> Iterator[LargeMessage]:
        from kcli.format.compression import inflate_stream

        inflated = inflate_stream(
            self._header.codec,
            pieces,
            window=limits.READ_CHUNK_BYTES,
            limit=limits.MAX_INFLATED_MESSAGE_SET_BYTES,
            magic=self._header.magic,
        )
        source = PieceReader(b"", 0, inflated)
        while not source.is_at_end():
            offset, size = self._head(source)
            is_valid = self._is_valid(source, size)
            self.count += 1
            yield LargeMessage(offset, is_valid)

    def _is_valid(self, source: PieceReader, size: int) -> bool:
        """Read a message from its CRC on; return True if that is right. Raises InvalidRecordError for sizes that do not fit."""
        end = source.taken + size
        stored = int.from_bytes(source.take(4), "big")
        head = source.take(2)
        if head[0]:
            head += source.take(8)
        if self._header.codec and head[1] & _CODEC_MASK:
            raise InvalidRecordError("a message inside a set is compressed")
        crc = crc32(head)
        for field in ("key", "value"):
            if end - source.taken < 4:
                raise InvalidRecordError(f"a message ends before the size of its {field}")
            stated = source.take(4)
            crc = crc32(stated, crc)
            length = max(_int32(stated), 0)
            if length > end - source.taken:
                raise InvalidRecordError(f"the {field} of a message goes beyond its end")
            for piece in source.walk(length):
                crc = crc32(piece, crc)
        for piece in source.walk(end - source.taken):
            crc = crc32(piece, crc)
        return crc == stored


def _int32(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)
