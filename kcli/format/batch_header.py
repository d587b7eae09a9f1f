"""The header of a record batch (format 2) as the compiled loops decode it: produce, scan, dump and cleaner share this class.

kcli.format.layouts.RECORD_BATCH_HEADER declares the layout. A loop makes one `BatchHeader` and reads one header after the other
into it, so that no object is made for a batch. In addition to the fields of the layout it has:

    field               meaning
    ------------------  --------------------------------------------------------------------------
    position            the first byte of the batch in the buffer
    records_position    the first byte after the header
    end_position        the first byte after the batch
    last_offset         the base offset plus the last offset delta
    codec               bits 0 to 2 of the attributes; the attributes themselves are unsigned here
    is_..., has_...     the other bits; a batch with a bit above 6 has unknown attributes

This one source runs two ways, as kcli.format.record_scan does; its C types are in batch_header.pxd.
"""

from collections.abc import Callable

from kcli.format import loop_results, structs
from kcli.format.primitives import Buffer

MOST_OFFSET = 4611686018427387904  # 2**62: an int64 even with any delta added


def read_int32(buffer: Buffer, position: int) -> int:
    """Return the big-endian int32 at buffer[position]. Raises IndexError if the buffer ends before it does."""
    value = buffer[position]
    value = value << 24 | buffer[position + 1] << 16 | buffer[position + 2] << 8 | buffer[position + 3]
    return value - 4294967296 if value > 2147483647 else value


def read_int64(buffer: Buffer, position: int) -> int:
    """Return the big-endian int64 at buffer[position]. Raises IndexError if the buffer ends before it does."""
    low = read_int32(buffer, position + 4)
    if low < 0:
        low += 4294967296
    return read_int32(buffer, position) * 4294967296 + low


class BatchHeader:
    """The header that was read last."""

    def __init__(self) -> None:
        self.position = 0
        self.records_position = 0
        self.end_position = 0
        self.base_offset = 0
        self.last_offset = 0
        self.leader_epoch = 0
        self.crc = 0
        self.attributes = 0
        self.codec = 0
        self.is_log_append_time = False
        self.is_transactional = False
        self.is_control = False
        self.has_delete_horizon = False
        self.has_unknown_attributes = False
        self.base_timestamp = 0
        self.max_timestamp = 0
        self.producer_id = 0
        self.producer_epoch = 0
        self.base_sequence = 0
        self.record_count = 0

    def read(self, buffer: Buffer, position: int, limit: int) -> int:
        """Read the header at buffer[position]; return NEED_MORE if it does not end at or before `limit`, else OTHER or USUAL.

        The batch itself may end after `limit`. After NEED_MORE and OTHER the fields have no meaning.
        """
        if limit - position < structs.RECORD_BATCH_HEADER_BYTES:
            return loop_results.NEED_MORE
        batch_length = read_int32(buffer, position + structs.BATCH_LENGTH_AT)
        if (
            buffer[position + structs.BATCH_MAGIC_AT] != 2
            or batch_length < structs.RECORD_BATCH_HEADER_BYTES - structs.LOG_OVERHEAD_BYTES
        ):
            return loop_results.OTHER
        self.position = position
        self.records_position = position + structs.RECORD_BATCH_HEADER_BYTES
        self.end_position = position + structs.LOG_OVERHEAD_BYTES + batch_length
        self.base_offset = read_int64(buffer, position + structs.BATCH_BASE_OFFSET_AT)
        self.last_offset = self.base_offset + read_int32(buffer, position + structs.BATCH_LAST_OFFSET_DELTA_AT)
        self.leader_epoch = read_int32(buffer, position + structs.BATCH_PARTITION_LEADER_EPOCH_AT)
        crc = read_int32(buffer, position + structs.BATCH_CRC_AT)
        self.crc = crc if crc >= 0 else crc + 4294967296
        attributes = buffer[position + structs.BATCH_ATTRIBUTES_AT] << 8 | buffer[position + structs.BATCH_ATTRIBUTES_AT + 1]
        self.attributes = attributes
        self.codec = attributes & 7
        self.is_log_append_time = attributes & 8 != 0
        self.is_transactional = attributes & 16 != 0
        self.is_control = attributes & 32 != 0
        self.has_delete_horizon = attributes & 64 != 0
        self.has_unknown_attributes = attributes > 127
        self.base_timestamp = read_int64(buffer, position + structs.BATCH_BASE_TIMESTAMP_AT)
        self.max_timestamp = read_int64(buffer, position + structs.BATCH_MAX_TIMESTAMP_AT)
        self.producer_id = read_int64(buffer, position + structs.BATCH_PRODUCER_ID_AT)
        epoch = buffer[position + structs.BATCH_PRODUCER_EPOCH_AT] << 8 | buffer[position + structs.BATCH_PRODUCER_EPOCH_AT + 1]
        self.producer_epoch = epoch if epoch < 32768 else epoch - 65536
        self.base_sequence = read_int32(buffer, position + structs.BATCH_BASE_SEQUENCE_AT)
        self.record_count = read_int32(buffer, position + structs.BATCH_RECORD_COUNT_AT)
        if (
            self.base_offset < 0
            or self.base_offset > MOST_OFFSET
            or self.last_offset < self.base_offset
            or self.record_count < 0
        ):
            return loop_results.OTHER
        return loop_results.USUAL

    def has_right_crc(self, view: memoryview, crc32c: Callable[..., int]) -> bool:
        """Return whether the CRC of the batch, all of which is in `view`, is the one in its header."""
        return bool(crc32c(view[self.position + structs.BATCH_ATTRIBUTES_AT : self.end_position]) == self.crc)
