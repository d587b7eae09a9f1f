"""The header of a batch of format 2, as strides of a cleaning round read it; which batches are usual begins here.

    bytes   field                 told as
    ------  --------------------  -----------------------------------------------------------------------------------------
    0-7     base offset           base_offset, from 0 to 2**62
    8-11    batch length          end
    12-15   leader epoch          -
    16      magic                 2
    17-20   CRC-32C               is_sound
    21-22   attributes            codec (bits 0-2), has_append_time (3), is_transactional (4), is_control (5), has_horizon (6);
                                  others have no meaning
    23-26   last offset delta     last_offset, not below base_offset
    27-34   base timestamp        base_timestamp
    35-42   largest timestamp     max_timestamp
    43-50   producer id           producer_id
    57-60   number of records     records, above 0

One that is not so is OTHER, and looked at with objects. This one source runs two ways, as kcli.format.record_scan does; its C
types stand in batch_head.pxd.
"""

from collections.abc import Callable

from kcli.format.batch_scan import read_int32, read_int64
from kcli.format.record_scan import Buffer

# What reading a header comes to; a stride may end for it.
NEED_MORE = 0  # the buffer ends before the header does
OTHER = 1  # the batch is to be looked at
USUAL = 2


class BatchHead:
    """The header that was read last, at byte `position` of a buffer; the records are buffer[start:end]."""

    def __init__(self) -> None:
        self.position = 0
        self.start = 0
        self.end = 0
        self.codec = 0
        self.has_append_time = False
        self.is_transactional = False
        self.is_control = False
        self.has_horizon = False
        self.base_offset = 0
        self.last_offset = 0
        self.records = 0

    def read(self, buffer: Buffer, position: int, limit: int) -> int:
        """Read the header at buffer[position] -> NEED_MORE where it does not end before `limit`, OTHER or USUAL."""
        if limit - position < 61:
            return NEED_MORE
        size = read_int32(buffer, position + 8)
        attributes = buffer[position + 21] << 8 | buffer[position + 22]
        self.position = position
        self.start = position + 61
        self.end = position + 12 + size
        self.base_offset = read_int64(buffer, position)
        self.last_offset = self.base_offset + read_int32(buffer, position + 23)
        self.records = read_int32(buffer, position + 57)
        self.codec = attributes & 7
        self.has_append_time = attributes & 8 != 0
        self.is_transactional = attributes & 16 != 0
        self.is_control = attributes & 32 != 0
        self.has_horizon = attributes & 64 != 0
        if (
            buffer[position + 16] != 2
            or size < 49
            or attributes & 0xFF80
            or self.base_offset < 0
            or self.base_offset > 4611686018427387904
            or self.last_offset < self.base_offset
            or self.records <= 0
        ):
            return OTHER
        return USUAL

    def base_timestamp(self, buffer: Buffer) -> int:
        """From which the records' timestamps count."""
        return read_int64(buffer, self.position + 27)

    def max_timestamp(self, buffer: Buffer) -> int:
        """The largest of the records', or the time of their append."""
        return read_int64(buffer, self.position + 35)

    def producer_id(self, buffer: Buffer) -> int:
        """Whose batch it is, -1 for nobody's."""
        return read_int64(buffer, self.position + 43)

    def is_sound(self, buffer: Buffer, view: memoryview, crc32c: Callable[..., int]) -> bool:
        """Whether the batch, which must be whole, has the CRC that it states; `view` is a memoryview of `buffer`."""
        stored = read_int32(buffer, self.position + 17)
        if stored < 0:
            stored += 4294967296
        computed = crc32c(view[self.position + 21 : self.end])
        return bool(computed == stored)
