"""Payload that nothing in a segment distinguishes from batches of the log: the limit that docs/repair.md describes.

    the damaged batch                                    why no reader can know
    ---------------------------------------------------  ---------------------------------------------------------------
    all 61 bytes of its header are zeros, and its        nothing says where it ends, so it may end where the payload
      records are compressed or damaged as well            begins; the payload is followed by the log's next batch, or by the
                                                         end of the file, exactly as a batch of the log is
    its length is wrong and so is something under its    the length leads to a header with the next offset, from which the
      CRC, and the length ends where payload begins      log leads on: a batch with a wrong CRC and a right length looks
      that continues the offsets                         the same, byte by byte

In both the payload is whole batches up to the last byte of the damaged one, or up to zeros with which the batch and the file
end, as a torn write or a preallocated file does. Only their records, at the offsets that they state, are allowed to appear, and
the log may end behind them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tests.fuzz.batches import FORGED, LogBatch, LogRecord
from tests.fuzz.directories import PartitionModel

_HEADER_BYTES, _MAGIC_AT, _LAST_OFFSET_DELTA_AT = 61, 16, 23
_LENGTH_AT, _EPOCH_AT, _CRC_AT, _ATTRIBUTES_AT = 8, 12, 17, 21
_CODEC_BITS = 7


class PayloadLikeLog(NamedTuple):
    """The offsets [first, last] of the batches in such payload of a partition."""

    offsets: tuple[tuple[int, int], ...]

    @property
    def end_offset(self) -> int:
        """The offset behind the payload, 0 without any: a log that ends with it ends there."""
        return max((last + 1 for _, last in self.offsets), default=0)

    def has(self, record: LogRecord) -> bool:
        """Whether a record is one of the payload's."""
        is_forged = (record.value or b"").startswith(FORGED)
        return is_forged and any(first <= record.offset <= last for first, last in self.offsets)


def find_payload_like_log(partition: PartitionModel) -> PayloadLikeLog:
    """Look for such payload in the .log files of a damaged partition."""
    found: list[tuple[int, int]] = []
    logs = [log.read_bytes() for log in partition.path.glob("*.log")]
    for batch in partition.batches:
        pieces = _last_pieces(batch)
        for index, (start, _) in enumerate(pieces):
            if any(_is_payload_like_log(data, batch, start, partition) for data in logs):
                found += [_offsets(batch, piece) for piece, _ in pieces[index:]]
                break
    return PayloadLikeLog(tuple(found))


def _last_pieces(batch: LogBatch) -> list[tuple[int, int]]:
    """The embedded batches of format 2 that follow each other up to the end of a batch, or to zeros at its end."""
    pieces: list[tuple[int, int]] = []
    end = len(batch.data.rstrip(b"\0"))
    end = next((piece_end for _, piece_end in batch.embedded if end <= piece_end <= len(batch.data)), end)
    for piece_start, piece_end in reversed(batch.embedded):
        if piece_end != end or batch.data[piece_start + _MAGIC_AT] != 2:
            break
        pieces.insert(0, (piece_start, piece_end))
        end = piece_start
    return pieces


def _offsets(batch: LogBatch, start: int) -> tuple[int, int]:
    (first,) = struct.unpack_from(">q", batch.data, start)
    (delta,) = struct.unpack_from(">i", batch.data, start + _LAST_OFFSET_DELTA_AT)
    return first, first + delta


def _is_payload_like_log(data: bytes, batch: LogBatch, start: int, partition: PartitionModel) -> bool:
    """Whether the payload from byte `start` of a batch on is whole in a file, and the batch damaged in one of the two ways."""
    payload = batch.data[start : _last_pieces(batch)[-1][1]]
    at = data.find(payload)
    position, end = at - start, at + len(payload)
    if at < 0 or position < 0:
        return False
    if any(data[end:]) and not any(data.startswith(other.data, end) for other in partition.batches):
        return False
    present, whole = data[position:at], batch.data[:start]
    if not any(present[:_HEADER_BYTES]):
        # The lengths of records that are not compressed show that the payload is inside of one.
        return bool(whole[_ATTRIBUTES_AT + 1] & _CODEC_BITS) or present[_HEADER_BYTES:] != whole[_HEADER_BYTES:]
    is_header = (present[:_LENGTH_AT], present[_EPOCH_AT:_CRC_AT]) == (whole[:_LENGTH_AT], whole[_EPOCH_AT:_CRC_AT])
    (length,) = struct.unpack_from(">i", present, _LENGTH_AT)
    leads_to_payload = position + _EPOCH_AT + length == at and _offsets(batch, start)[0] == batch.next_offset
    return is_header and leads_to_payload and present[_CRC_AT:] != whole[_CRC_AT:]
