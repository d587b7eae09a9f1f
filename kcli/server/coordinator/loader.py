"""Applies the log of a coordinator's partition to its state, in time slices (Kafka: CoordinatorLoader).

in the log                                   what is done
-------------------------------------------  -----------------------------------------------------------------------
a record below the high watermark            applied
a record from the high watermark on          applied as speculative: it may still be truncated
a transaction's marker                       applied as the end of the transaction
a record of an unknown type (a newer Kafka)  skipped, with a line in the node's log
a record that does not decode or fit         skipped, with a line in the node's log
a damaged batch                              skipped, with a line in the node's log
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kcli.format.primitives import FormatError
from kcli.format.record_batch import NO_PRODUCER, Producer, RecordBatch
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from kcli.protocol.control_records import COMMIT, decode_control_record
from kcli.protocol.internal_records import CoordinatorDecoder
from kcli.protocol.message_errors import UnknownRecordTypeError
from kcli.server.coordinator.coordinator_record import CoordinatorRecord, EndTransaction, ShardRecord
from kcli.server.log_lines import WarningLine
from kcli.server.replication.partition import Partition
from kcli.server.scheduler import SliceBudget
from kcli.state.speculative_state import RevertibleState, SpeculativeState
from kcli.state.state_error import StateError

_APPLY_US = 15


class CoordinatorLoader:
    """Loads partitions of one topic. `report` writes a line of the node's log."""

    def __init__(self, decoder: CoordinatorDecoder, report: Callable[[str], None]) -> None:
        self._decoder = decoder
        self._report = report

    def load(
        self,
        partition: Partition,
        speculative: SpeculativeState[RevertibleState, ShardRecord],
        apply: Callable[[ShardRecord, int], None],
    ) -> Iterator[int | None]:
        """Apply the records of the log; yield None after each time slice, at last the number of records. Raises OSError."""
        log, budget, scanner, count = partition.log, SliceBudget(), RecordScanner(), 0
        assert log is not None
        local, high_watermark = log.local_log(), log.high_watermark
        for segment in list(local.segments):
            with SegmentReader(local.disk, segment.log_path) as reader:
                for found in reader.batches():
                    header = found.header if isinstance(found, LogBatch) and found.is_valid else None
                    if not isinstance(found, LogBatch) or not isinstance(header, RecordBatch):
                        self._skipped(partition, f"the batch at byte {found.position} of {segment.log_path} is damaged")
                        continue
                    for record, offset in self._records(partition, found, header, scanner):
                        count += 1
                        try:
                            if offset >= high_watermark:
                                speculative.append(record, offset)
                            else:
                                apply(record, offset)
                        except StateError as error:
                            self._skipped(partition, f"the record at offset {offset} does not fit those before it: {error}")
                        if budget.is_spent(_APPLY_US):
                            yield None
        yield count

    def _records(
        self, partition: Partition, batch: LogBatch, header: RecordBatch, scanner: RecordScanner
    ) -> Iterator[tuple[ShardRecord, int]]:
        """Yield the records of a batch that can be read, and their offsets."""
        decode, producer = self._decoder.decode, Producer(header.producer_id, header.producer_epoch)
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER.producer_id
        for window in batch.windows(scanner):
            for index in range(window.count):
                offset = window.columns.offset[index]
                try:
                    if header.is_control:
                        control = decode_control_record(window.key(index), window.value(index))
                        if control.is_marker:
                            epoch = control.message.coordinator_epoch if control.message is not None else 0
                            yield EndTransaction(producer, epoch, control.type_id == COMMIT), offset
                        continue
                    key, value = decode(window.key(index), window.value(index))
                except UnknownRecordTypeError as error:
                    self._skipped(partition, f"the record at offset {offset} has the unknown type {error.record_type}")
                    continue
                except FormatError as error:
                    self._skipped(partition, f"the record at offset {offset} cannot be read: {error.message}")
                    continue
                if key is not None:
                    yield CoordinatorRecord(key, value, producer_id), offset
            if window.error is not None:
                self._skipped(partition, f"a record after offset {header.base_offset} cannot be read: {window.error.message}")

    def _skipped(self, partition: Partition, what: str) -> None:
        text = f"{partition.topic}-{partition.index}: {what}; it is skipped"
        self._report(WarningLine(text, topic=partition.topic, partition=partition.index))
