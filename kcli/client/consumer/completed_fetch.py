"""The records of one partition in an answer to Fetch, until the application has taken them (Kafka: CompletedFetch).

    batch                                what is returned of it
    -----------------------------------  ------------------------------------------------------------------------------------
    before the wanted offset             nothing: an answer begins with the whole batch that has the offset
    control batch                        nothing
    of an aborted transaction            nothing with isolation.level=read_committed: the answer lists the transactions
                                         (producer, first offset); one ends with the producer's ABORT marker
    empty                                nothing: a cleaner keeps it for the producer's sequence
    cut by the end of the answer         nothing: the next fetch returns it whole
    damaged: its CRC, its records,       the records before the damage, then FetchedRecordError by each call; the caller
    a key or value that the              discards the fetch when it seeks
    deserializer refuses

In all cases `next_offset` goes on, so that a fetch of batches without records is not repeated for ever. `last_epoch` is the
leader epoch of the last batch that was read, for the check of truncation (KIP-320).

Records are inflated and scanned when they are taken: what waits takes the memory of the answer only. `take` makes an object
of each record, `take_columns` appends to Arrow's buffers (kcli.client.consumer.arrow_records). This one source runs two ways,
as kcli.format.record_scan does; its C types are in completed_fetch.pxd.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kcli.client.consumer import arrow_records, consumer_record, general_batches
from kcli.client.errors import FetchedRecordError, RecordDeserializationError
from kcli.client.serializers import Deserializer
from kcli.format import batch_header, byte_address, compression, loop_results, record_scan
from kcli.format.java_text import decode_utf8
from kcli.format.primitives import Buffer, CorruptRecordError, FormatError, InvalidRecordError, crc32c

NO_EPOCH = -1
MIN_ENTRY_BYTES = general_batches.MIN_ENTRY_BYTES
# The position of the size of a batch, and what it does not count.
SIZE_AT = 8
OVERHEAD_BYTES = 12
MIN_ENTRY_SIZE = 14


class FetchedTransactions:
    """The aborted transactions that an answer to Fetch lists, for a reader that passes the batches of the answer in order.

    `aborted` are their (producer id, first offset). The list has every aborted transaction that reaches into the answer; one
    begins with the first batch that reaches its first offset, and ends with the ABORT marker of its producer. The readers of
    kcli.replay and kcli.spark use it, too.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._pending = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._begun: dict[int, int] = {}  # the first offsets, by producer id

    def begin(self, last_offset: int) -> None:
        """Begin the transactions up to a batch that ends at `last_offset`."""
        pending = self._pending
        while pending and pending[len(pending) - 1][1] <= last_offset:
            producer_id, first_offset = pending.pop()
            self._begun.setdefault(producer_id, first_offset)

    def is_aborted(self, producer_id: int) -> bool:
        """Return whether a transactional batch of a producer belongs to an aborted transaction."""
        return producer_id in self._begun

    def end(self, producer_id: int) -> int:
        """End the transaction of a producer at its ABORT marker; return its first offset, -1 if the answer does not list it."""
        return self._begun.pop(producer_id, -1)

    def left(self) -> list[tuple[int, int]]:
        """Return the (producer id, first offset) of those that have not ended: their markers are after the answer."""
        return [*self._begun.items(), *reversed(self._pending)]


class CompletedFetch:
    """What is left of one answer for one partition; `columns` are shared by all fetches of a consumer.

    `aborted` are the (producer id, first offset) of the aborted transactions, None with read_uncommitted.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        records: memoryview,
        next_offset: int,
        columns: record_scan.RecordColumns,
        aborted: Iterable[tuple[int, int]] | None = None,
        checks_crcs: bool = True,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.records = records
        self.size_bytes = len(records)
        self.next_offset = next_offset
        self.last_epoch = NO_EPOCH
        self.is_drained = not len(records)
        self.error: Exception | None = None
        self._records_view: Buffer = records if len(records) else b"\0"
        self._columns = columns
        self._checks_crcs = checks_crcs
        self._header = batch_header.BatchHeader()
        self._at = 0  # the first byte that is not read yet
        self._transactions = None if aborted is None else FetchedTransactions(aborted)
        # The batch that is being read.
        self._buffer: Buffer = self._records_view
        self._position = 0
        self._limit = 0
        self._left = 0
        self._batch_next_offset = 0
        self._status = loop_results.COMPLETE
        self._timestamp_type = consumer_record.CREATE_TIME
        self._general: Iterator[general_batches.GeneralRecord] | None = None

    def end_offset(self) -> int:
        """Return the offset after the last whole batch of the answer, by the headers alone.

        It is `next_offset` if a batch is of message format 0 or 1, or damaged.
        """
        header = batch_header.BatchHeader()
        end = self.next_offset
        position = self._at
        result = header.read(self._records_view, position, self.size_bytes)
        while result == loop_results.USUAL and header.end_position <= self.size_bytes:
            end = max(end, header.last_offset + 1)
            position = header.end_position
            result = header.read(self._records_view, position, self.size_bytes)
        return self.next_offset if result == loop_results.OTHER else end

    # --------------------------------------------------------------------------------------------------------- records

    def take(
        self,
        out: list[consumer_record.ConsumerRecord],
        most: int,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> int:
        """Append up to `most` records to `out`; return their number.

        Raises FetchedRecordError if the next record cannot be read and `out` is empty.
        """
        before = len(out)
        end = before + most
        try:
            while len(out) < end and not self.is_drained and self.error is None:
                if self._general is not None:
                    self._take_general(out, end, key_deserializer, value_deserializer)
                elif self._left > 0:
                    self._take_scanned(out, end - len(out), key_deserializer, value_deserializer)
                else:
                    self._begin_batch()
        except FetchedRecordError as error:
            self.error = error
        except FormatError as error:
            self.error = self._failure(error)
        if self.error is not None and not out:
            raise self.error
        return len(out) - before

    def _take_scanned(
        self,
        out: list[consumer_record.ConsumerRecord],
        most: int,
        key_deserializer: Deserializer | None,
        value_deserializer: Deserializer | None,
    ) -> None:
        """Append up to `most` records of the batch that is scanned."""
        columns = self._columns
        header = self._header
        count = self._scan(most)
        row = 0
        while row < count:
            offset = columns.offset_view[row]
            if offset >= self.next_offset:
                if offset >= self._batch_next_offset:
                    raise InvalidRecordError(f"the record's offset {offset} is above the last one of its batch")
                record = consumer_record.ConsumerRecord.__new__(consumer_record.ConsumerRecord)
                record.topic = self.topic
                record.partition = self.partition
                record.offset = offset
                record.timestamp = header.max_timestamp if header.is_log_append_time else columns.timestamp_view[row]
                record.timestamp_type = self._timestamp_type
                record.leader_epoch = header.leader_epoch
                size = columns.key_size_view[row]
                record.key = None if size < 0 else byte_address.part(self._buffer, columns.key_position_view[row], size)
                size = columns.value_size_view[row]
                record.value = None if size < 0 else byte_address.part(self._buffer, columns.value_position_view[row], size)
                record.headers = ()
                if columns.header_count_view[row]:
                    record.headers = self._headers(columns.header_position_view[row], columns.header_count_view[row])
                if key_deserializer is not None and record.key is not None:
                    record.key = self._deserialized(key_deserializer, record.key, offset, "key")
                if value_deserializer is not None and record.value is not None:
                    record.value = self._deserialized(value_deserializer, record.value, offset, "value")
                out.append(record)
                self.next_offset = offset + 1
            row += 1
        self._end_scan()

    def _headers(self, position: int, count: int) -> consumer_record.Headers:
        """Return `count` headers, which the scan has checked."""
        scratch = self._columns.scratch
        headers: list[tuple[str, bytes | None]] = []
        while count > 0:
            position = record_scan.read_zigzag(self._buffer, position, 5, scratch)
            size = scratch[0]
            key = byte_address.part(self._buffer, position, size)
            position = record_scan.read_zigzag(self._buffer, position + size, 5, scratch)
            size = scratch[0]
            name = key.decode() if key.isascii() else decode_utf8(key)
            if size < 0:
                headers.append((name, None))
            else:
                headers.append((name, byte_address.part(self._buffer, position, size)))
                position += size
            count -= 1
        return tuple(headers)

    def _deserialized(self, deserializer: Deserializer, data: bytes, offset: int, what: str) -> object:
        """Deserialize a key or value. Raises RecordDeserializationError, which remains the error of the fetch."""
        try:
            return deserializer(data)
        except Exception as error:
            self.next_offset = offset
            reason = f"the {what} cannot be deserialized: {type(error).__name__}: {error}"
            raise RecordDeserializationError(self.topic, self.partition, offset, offset + 1, reason) from error

    def _take_general(
        self,
        out: list[consumer_record.ConsumerRecord],
        end: int,
        key_deserializer: Deserializer | None,
        value_deserializer: Deserializer | None,
    ) -> None:
        """Append records of a batch that is not scanned here, up to `end` records in `out`."""
        while len(out) < end:
            found = self._next_general()
            if found is None:
                return
            offset, timestamp, timestamp_type = found[:3]
            key: object = found.key
            value: object = found.value
            if key_deserializer is not None and found.key is not None:
                key = self._deserialized(key_deserializer, found.key, offset, "key")
            if value_deserializer is not None and found.value is not None:
                value = self._deserialized(value_deserializer, found.value, offset, "value")
            out.append(
                consumer_record.ConsumerRecord(
                    self.topic, self.partition, offset, key, value, found.headers, timestamp, timestamp_type, self.last_epoch
                )
            )
            self.next_offset = offset + 1

    def take_columns(self, out: arrow_records.ArrowBuilder, most: int, enough_bytes: int) -> int:
        """Append up to `most` records to Arrow's buffers, until these have `enough_bytes`; return their number.

        Raises FetchedRecordError if the next record cannot be read and `out` is empty.
        """
        before = out.rows
        end = before + most
        try:
            while out.rows < end and out.size_bytes() < enough_bytes and not self.is_drained and self.error is None:
                if self._general is not None:
                    found = self._next_general()
                    if found is not None:
                        out.add_record(*found, self.last_epoch)
                        self.next_offset = found.offset + 1
                elif self._left > 0:
                    self._take_scanned_columns(out, end - out.rows)
                else:
                    self._begin_batch()
        except FormatError as error:
            self.error = self._failure(error)
        if self.error is not None and not out.rows:
            raise self.error
        return out.rows - before

    def _take_scanned_columns(self, out: arrow_records.ArrowBuilder, most: int) -> None:
        """Append up to `most` records of the batch that is scanned to Arrow's buffers."""
        columns = self._columns
        header = self._header
        count = self._scan(most)
        first = 0
        while first < count and columns.offset_view[first] < self.next_offset:
            first += 1
        if first < count:
            if columns.offset_view[count - 1] >= self._batch_next_offset or not columns.is_rising:
                raise InvalidRecordError("the offsets of the records do not rise up to the last one of their batch")
            out.add(self._buffer, columns, first, count - first, header, self._timestamp_type)
            self.next_offset = columns.offset_view[count - 1] + 1
        self._end_scan()

    # --------------------------------------------------------------------------------------------------------- batches

    def _scan(self, most: int) -> int:
        """Scan up to `most` of the records that are left of the batch into the columns; return how many there are."""
        columns = self._columns
        header = self._header
        columns.begin_batch(header.base_offset, header.base_timestamp)
        wanted = most if most < self._left else self._left
        self._status = columns.scan(self._buffer, self._position, self._limit, wanted, 0)
        self._position = columns.end
        self._left -= columns.counted
        return columns.counted

    def _end_scan(self) -> None:
        """Go on after the records of the last scan. Raises InvalidRecordError if the next one cannot be read."""
        if self._status != loop_results.COMPLETE:
            raise InvalidRecordError(record_scan.STATUS_TEXT[self._status])
        if self._left == 0:
            if self._position != self._limit:
                raise InvalidRecordError(f"{self._limit - self._position} bytes are left behind the last record of the batch")
            self._end_batch()

    def _end_batch(self) -> None:
        self._left = 0
        self._general = None
        self._buffer = self._records_view
        if self._batch_next_offset > self.next_offset:
            self.next_offset = self._batch_next_offset

    def _next_general(self) -> general_batches.GeneralRecord | None:
        """Return the next record of a batch that is not scanned here, None at its end. Raises FormatError."""
        assert self._general is not None
        for found in self._general:
            if found.offset >= self.next_offset:
                return found
        self._end_batch()
        return None

    def _begin_batch(self) -> None:
        """Open the next batch, or skip it. Raises FormatError if it is damaged."""
        header = self._header
        end = self._entry_end()
        if end < 0:
            self.discard()
            return
        if header.read(self._records_view, self._at, self.size_bytes) != loop_results.USUAL:
            self._begin_general(end)
            return
        self._batch_next_offset = header.last_offset + 1
        if self._checks_crcs and not header.has_right_crc(self.records, crc32c):
            raise CorruptRecordError("the CRC of the batch is wrong")
        self._at = end
        self.last_epoch = header.leader_epoch
        if self._is_left_out() or header.record_count == 0 or header.last_offset < self.next_offset:
            self._end_batch()
            return
        self._timestamp_type = consumer_record.LOG_APPEND_TIME if header.is_log_append_time else consumer_record.CREATE_TIME
        if header.codec == 0:
            self._position = header.records_position
            self._limit = end
        else:
            inflated = compression.inflate_at_once(header.codec, self.records[header.records_position : end])
            if not inflated:
                self._general = general_batches.general_records(
                    general_batches.FetchedBatch(self.records[header.position : end]), False
                )
                return
            self._buffer = inflated
            self._position = 0
            self._limit = len(inflated)
        self._left = header.record_count

    def _entry_end(self) -> int:
        """Return the position after the next entry, -1 if it is not whole. Raises CorruptRecordError for an impossible size."""
        if self.size_bytes - self._at < MIN_ENTRY_BYTES:
            return -1
        size = batch_header.read_int32(self._records_view, self._at + SIZE_AT)
        if size < MIN_ENTRY_SIZE:
            raise CorruptRecordError(f"the batch states a size of {size} bytes")
        end = self._at + OVERHEAD_BYTES + size
        return end if end <= self.size_bytes else -1

    def _begin_general(self, end: int) -> None:
        """Open a batch of message format 0 or 1. Raises FormatError."""
        batch = general_batches.FetchedBatch(self.records[self._at : end])
        self._batch_next_offset = max(self.next_offset, batch.header.next_offset)
        if self._checks_crcs and not batch.is_valid:
            raise CorruptRecordError("the CRC of the batch is wrong")
        self._at = end
        self.last_epoch = NO_EPOCH
        self._general = general_batches.general_records(batch, self._checks_crcs)

    def _is_left_out(self) -> bool:
        """Return whether no record of the batch is returned, because of its kind or the end of its transaction."""
        header = self._header
        transactions = self._transactions
        if transactions is None or header.producer_id < 0:
            return header.is_control
        transactions.begin(header.last_offset)
        if header.is_control:
            if general_batches.is_abort_marker(self.records[header.records_position : header.end_position]):
                transactions.end(header.producer_id)
            return True
        return header.is_transactional and transactions.is_aborted(header.producer_id)

    def _failure(self, error: FormatError) -> FetchedRecordError:
        next_offset = max(self._batch_next_offset, self.next_offset + 1)
        return FetchedRecordError(self.topic, self.partition, self.next_offset, next_offset, error.message)

    def discard(self) -> None:
        """Release the memory of the answer: nothing more is taken."""
        self.is_drained = True
        self._left = 0
        self._general = None
        self.records = memoryview(b"")
        self._buffer = self._records_view = b"\0"
