# cython: boundscheck=False
# (the length of every line and the end of every batch are checked before the bytes are used)
"""Batches as kafka-dump-log prints them: the line of each batch and the lines of its records, many batches in one call.

A batch that a producer wrote takes no Python object but the slice that its CRC is computed from and, if it is compressed, its
inflated bytes. The call stops at any other batch before it has printed anything of it; the caller prints that batch in Python
(kcli.inspect.dumping.kafka_text) and calls again for the batches after it. Batches are printed here if they

    - are in format 2, whole in the buffer, with the right CRC
    - have no negative offset, delta or count, no delete horizon, no unknown attribute, a codec that Kafka knows
    - are not control batches
    - if records are printed, have exactly the records that they state, at most as many as the columns have, each without
      headers and in ASCII, and are inflated at once

This one source runs two ways, as kcli.format.record_scan does; its C types are in batch_lines.pxd. Interpreted it is slower
than printing in Python; only tests run it so. They compare both ways.
"""

from collections.abc import Callable

from kcli.format import batch_header, loop_results, record_scan
from kcli.format.primitives import Buffer
from kcli.inspect.dumping import record_lines, text_buffer

# The length of the line of a batch: its labels and fourteen integers of at most 20 digits.
BATCH_LINE_BYTES = 640
CODEC_NAMES = (b"none", b"gzip", b"snappy", b"lz4", b"zstd")
SEQUENCE_MASK = 0x7FFFFFFF


class BatchLines:
    """Prints batches into `out`. `inflate` returns None for a batch that is left to the caller.

    After `put`, `result` says why it stopped: NEED_MORE at a batch that continues after the buffer, else OTHER.
    """

    def __init__(
        self,
        out: "text_buffer.TextBuffer",
        columns: "record_scan.RecordColumns",
        lines: "record_lines.RecordLines",
        gaps: "record_lines.OffsetGaps",
        crc32c: Callable[..., int],
        inflate: Callable[[int, memoryview], bytes | None],
        with_records: bool,
    ) -> None:
        self.out = out
        self.columns = columns
        self.lines = lines
        self.gaps = gaps
        self.crc32c = crc32c
        self.inflate = inflate
        self.with_records = with_records
        self.header = batch_header.BatchHeader()
        self.result = loop_results.OTHER

    def put(self, buffer: Buffer, view: memoryview, position: int, limit: int, file_position: int) -> int:
        """Print the batches of buffer[position:limit] and return the position after the last one that was printed.

        `view` is a memoryview of `buffer`, whose first byte is byte `file_position` of the file. Raises nothing for damaged
        bytes.
        """
        header = self.header
        while True:
            self.result = header.read(buffer, position, limit)
            if self.result != loop_results.USUAL:
                break
            if header.end_position > limit:
                self.result = loop_results.NEED_MORE
                break
            self.result = loop_results.OTHER
            start = self.out.position
            if self.out.size - start < BATCH_LINE_BYTES or not self.is_printed_here(view):
                break
            self.out.position = self.put_batch(self.out.memory, start, file_position)
            if self.with_records and header.record_count > 0 and not self.put_records(buffer, view):
                self.out.position = start
                break
            position = header.end_position
        return position

    def is_printed_here(self, view: memoryview) -> bool:
        """Return False for a batch whose header leaves it to the caller."""
        header = self.header
        return not (
            header.base_sequence < -1
            or header.is_control
            or header.has_delete_horizon
            or header.has_unknown_attributes
            or header.codec > 4
            or not header.has_right_crc(view, self.crc32c)
        )

    def put_batch(self, out: memoryview, to: int, file_position: int) -> int:
        """Write the line of the batch to out[to] and return the position after it."""
        header = self.header
        last_sequence = header.base_sequence
        if last_sequence >= 0:
            last_sequence = (last_sequence + header.last_offset - header.base_offset) & SEQUENCE_MASK
        to = record_lines.put_number(out, to, b"baseOffset: ", header.base_offset)
        to = record_lines.put_number(out, to, b" lastOffset: ", header.last_offset)
        to = record_lines.put_number(out, to, b" count: ", header.record_count)
        to = record_lines.put_number(out, to, b" baseSequence: ", header.base_sequence)
        to = record_lines.put_number(out, to, b" lastSequence: ", last_sequence)
        to = record_lines.put_number(out, to, b" producerId: ", header.producer_id)
        to = record_lines.put_number(out, to, b" producerEpoch: ", header.producer_epoch)
        to = record_lines.put_number(out, to, b" partitionLeaderEpoch: ", header.leader_epoch)
        to = record_lines.put_text(
            out, to, b" isTransactional: true" if header.is_transactional else b" isTransactional: false"
        )
        to = record_lines.put_text(out, to, b" isControl: false deleteHorizonMs: OptionalLong.empty")
        to = record_lines.put_number(out, to, b" position: ", file_position + header.position)
        to = record_lines.put_text(out, to, b" LogAppendTime: " if header.is_log_append_time else b" CreateTime: ")
        to = record_lines.put_int(out, to, header.max_timestamp)
        to = record_lines.put_number(out, to, b" size: ", header.end_position - header.position)
        to = record_lines.put_text(out, to, b" magic: 2 compresscodec: ")
        to = record_lines.put_text(out, to, CODEC_NAMES[header.codec])
        to = record_lines.put_number(out, to, b" crc: ", header.crc)
        return record_lines.put_text(out, to, b" isvalid: true\n")

    def put_records(self, buffer: Buffer, view: memoryview) -> bool:
        """Print the records of the batch; return False if they are left to the caller."""
        header = self.header
        if header.codec == 0:
            return self.put_plain(buffer, header.records_position, header.end_position)
        inflated = self.inflate(header.codec, view[header.records_position : header.end_position])
        return inflated is not None and self.put_plain(inflated, 0, len(inflated))

    def put_plain(self, data: Buffer, start: int, end: int) -> bool:
        """Print the records data[start:end] of the batch; return False if they are left to the caller."""
        header = self.header
        if not self.columns.scan_batch(data, start, end, header):
            return False
        self.lines.begin_batch(header.base_offset, header.base_sequence, header.max_timestamp, header.is_log_append_time)
        if self.lines.put(self.out, data, 0, header.record_count) != header.record_count:
            return False
        self.gaps.add(self.columns.offset_view, header.record_count)
        return True
