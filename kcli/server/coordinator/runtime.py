"""The runtime of a coordinator: one shard for each partition of its topic that this broker leads (Kafka: CoordinatorRuntime).

    step     when                            what happens
    -------  ------------------------------  ---------------------------------------------------------------------------
    load     this broker becomes the leader  the partition's records are applied, in time slices; requests get
                                             COORDINATOR_LOAD_IN_PROGRESS until then. After an error of the disk they get
                                             NOT_COORDINATOR, and it is loaded again after RELOAD_MS
    write    a request or a timer            an operation of the shard decides -> records and a response; the records are
                                             applied at once, and appended with those of other operations in one batch
    answer   the high watermark passes       the response of every operation whose records are committed
    revert   an append fails                 the records of the batch are taken back; its operations fail
    unload   another broker leads, or none   the shard is dropped; what waits fails with NOT_COORDINATOR

An operation without records is answered when everything that it may have seen is committed; a refusal at once. The records of
one operation are in one batch. A batch is appended after the events that are handled now, with
group.coordinator.append.linger.ms=-1 (under load many operations share one append, alone none waits), or after that time, or
before it would become larger than max.message.bytes.

    error of an append                                         error of the operation
    ---------------------------------------------------------  ----------------------------
    the partition is unknown                                   COORDINATOR_NOT_AVAILABLE
    it has too few replicas in sync (transactions: acks=-1)    COORDINATOR_NOT_AVAILABLE
    records are not committed within the write timeout         COORDINATOR_NOT_AVAILABLE
    another broker leads, the log directory has failed         NOT_COORDINATOR
    the records are too large                                  UNKNOWN_SERVER_ERROR

    in the log of a load                         what is done
    -------------------------------------------  -----------------------------------------------------------------------
    a record below the high watermark            applied
    a record from the high watermark on          applied as speculative: it may still be truncated
    a transaction's marker                       applied as the end of the transaction
    a record of an unknown type (a newer Kafka)  skipped, with a line in the node's log
    a record that does not decode or fit         skipped, with a line in the node's log
    a damaged batch                              skipped, with a line in the node's log
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from kcli.format.primitives import FormatError
from kcli.format.record_batch import NO_PRODUCER, Producer, RecordBatch
from kcli.log.errors import AppendError
from kcli.log.log_validator import AppendOrigin
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from kcli.network.timing_wheel import Timer, TimerTask
from kcli.protocol import error_codes
from kcli.protocol.control_records import COMMIT, decode_control_record
from kcli.protocol.internal_records import CoordinatorDecoder
from kcli.protocol.message_errors import UnknownRecordTypeError
from kcli.server.coordinator.coordinator_record import (
    CoordinatorRecord,
    EncodedRecord,
    EndTransaction,
    ShardRecord,
    encode_data_batch,
    encode_marker_batch,
)
from kcli.server.coordinator.operation import OPERATION_ERRORS, CoordinatorError, CoordinatorShard, Decision, Respond, settle
from kcli.server.log_lines import Line, WarningLine, fault_line
from kcli.server.metrics.sampled import Latency
from kcli.server.replication.partition import Partition, PartitionError
from kcli.server.replication.replica_manager import ReplicaManager
from kcli.server.scheduler import Scheduler, SliceBudget
from kcli.state.speculative_state import RevertibleState, SpeculativeState
from kcli.state.state_error import StateError

APPEND_AFTER_EVENTS = -1  # the linger that waits for nothing but the events at hand
RELOAD_MS = 10_000
ITEMS_OF_PART = 50  # of many share partitions or offsets; a part takes some ms
# What the records of one operation and the header of a batch add to the sizes of keys and values, at most.
BATCH_OVERHEAD_BYTES = 128
RECORD_OVERHEAD_BYTES = 24
_APPLY_US = 15  # of a record of a load

_Shard = TypeVar("_Shard", bound=CoordinatorShard)
_Response = TypeVar("_Response")
_Item = TypeVar("_Item")


class DeferredResponse(NamedTuple):
    """A response that waits until the high watermark is `end_offset`; an operation without records only reads."""

    end_offset: int
    response: Any
    respond: Respond[Any]
    has_records: bool


class OpenBatch:
    """Records that are applied and not appended yet; the first one will have `base_offset`."""

    __slots__ = ("base_offset", "producer", "records", "size_bytes")

    def __init__(self, base_offset: int, producer: Producer) -> None:
        self.base_offset = base_offset
        self.producer = producer
        self.records: list[EncodedRecord] = []
        self.size_bytes = BATCH_OVERHEAD_BYTES


class LedPartition(Generic[_Shard]):
    """One partition that this broker leads; `next_offset` is that of the next record, `committed` the high watermark."""

    def __init__(self, partition: Partition, shard: _Shard) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.shard = shard
        self.speculative = SpeculativeState[RevertibleState, ShardRecord](shard.state, shard.apply)
        self.is_loaded = False
        self.has_failed = False  # to be loaded
        self.is_closed = False
        self.is_appending = False
        self.next_offset = 0
        self.committed = 0
        self.batch: OpenBatch | None = None
        self.deferred: deque[DeferredResponse] = deque()
        self.linger: TimerTask | None = None


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


class CoordinatorRuntime(Generic[_Shard]):
    """The shards of one coordinator on this broker. `report` writes a line of the node's log.

    `linger_ms` is how long a batch waits for more records, APPEND_AFTER_EVENTS for no longer than the events at hand; `codec`
    compresses the batches, `base_sequence` is that of data batches, `required_acks` is -1 if appends need min.insync.replicas.
    """

    def __init__(
        self,
        decoder: CoordinatorDecoder,
        make_shard: Callable[[int], _Shard],
        replica_manager: ReplicaManager,
        timer: Timer,
        scheduler: Scheduler,
        report: Callable[[str], None],
        *,
        linger_ms: int,
        write_timeout_ms: int,
        codec: int = 0,
        base_sequence: int = 0,
        required_acks: int = 1,
    ) -> None:
        self.topic = decoder.topic
        self._decoder = decoder
        self._loader = CoordinatorLoader(decoder, report)
        self._make_shard = make_shard
        self._replica_manager = replica_manager
        self._timer = timer
        self._scheduler = scheduler
        self._report = report
        self._linger_ms = linger_ms
        self._write_timeout_ms = write_timeout_ms
        self._codec = codec
        self._base_sequence = base_sequence
        self._required_acks = required_acks
        self._led: dict[int, LedPartition[_Shard]] = {}
        self.load_times = Latency()  # of partitions, for metrics
        replica_manager.watch_high_watermark(self.topic, self._partition_committed)

    # ------------------------------------------------------------------------------------------------------ leadership

    def leadership_changed(self, partition: Partition, now_ms: int) -> None:
        """Load the partition if this broker has become its leader; unload it if it leads no longer.

        A new epoch of the same leader changes nothing, unless something else has appended to the log.
        """
        led = self._led.get(partition.index)
        log = partition.log if partition.is_leader else None
        if led is not None and led.leader_epoch != partition.leader_epoch and log is not None and led.is_loaded:
            appended = led.next_offset if led.batch is None else led.batch.base_offset
            if log.log_end_offset == appended:
                led.leader_epoch = partition.leader_epoch
        if led is not None and (log is None or led.leader_epoch != partition.leader_epoch):
            self._unload(led)
            led = None
        if log is not None and led is None:
            self._load(partition, now_ms)

    def resign(self, index: int) -> None:
        """Unload a partition whose topic is deleted, or whose log has failed."""
        led = self._led.get(index)
        if led is not None:
            self._unload(led)

    def close(self) -> None:
        """Unload all partitions: the broker stops."""
        for led in list(self._led.values()):
            self._unload(led)

    def _unload(self, led: LedPartition[_Shard]) -> None:
        del self._led[led.partition.index]
        led.is_closed = True
        led.partition.on_offline = None
        led.batch = None
        if led.linger is not None:
            led.linger.cancel()
        led.shard.unloaded()
        self._fail(led, 0, self._not_coordinator(led.partition.index))

    # ------------------------------------------------------------------------------------------------------------ load

    def _load(self, partition: Partition, now_ms: int) -> None:
        led = LedPartition(partition, self._make_shard(partition.index))
        self._led[partition.index] = led
        partition.on_offline = partial(self.resign, partition.index)
        began_ms = now_ms
        counts: list[int] = []

        def work() -> Iterator[None]:
            for count in self._loader.load(partition, led.speculative, led.shard.apply):
                if led.is_closed:
                    return
                if count is None:
                    yield
                else:
                    counts.append(count)

        def loaded(now_ms: int) -> None:
            if not led.is_closed:
                self._loaded(led, counts[0], now_ms - began_ms, now_ms)

        self._scheduler.run(work(), now_ms, loaded, partial(self._load_failed, led))

    def _load_failed(self, led: LedPartition[_Shard], error: Exception) -> None:
        """Load again: at once if the cleaner has replaced a segment, else later; until then there is no coordinator."""
        if led.is_closed:
            return
        partition, name = led.partition, f"{self.topic}-{led.partition.index}"
        if not isinstance(error, OSError):
            self._report(fault_line(f"loading {name}, which has no coordinator now,", error))
            led.has_failed = True
            return
        if not isinstance(error, FileNotFoundError):
            self._report(WarningLine(f"cannot load {name}, which has no coordinator now: {error}", error=str(error)))
            led.has_failed = True
            self._replica_manager.handle_log_dir_failure(partition, error)
        delay_ms = RELOAD_MS if led.has_failed else 0
        self._timer.schedule(self._timer.clock_ms + delay_ms, partial(self._load_again, led))

    def _load_again(self, led: LedPartition[_Shard], now_ms: int) -> None:
        if not led.is_closed and led.partition.log is not None:
            self._unload(led)
            self._load(led.partition, now_ms)

    def _loaded(self, led: LedPartition[_Shard], count: int, took_ms: int, now_ms: int) -> None:
        log, index = led.partition.log, led.partition.index
        if log is None:
            return
        led.next_offset, led.is_loaded = log.log_end_offset, True
        self._high_watermark_moved(led, log.high_watermark)
        led.shard.loaded(now_ms)
        self.load_times.add(took_ms)
        if count:
            text = f"{self.topic}-{index} is loaded: {count} records in {took_ms} ms"
            self._report(Line(text, topic=self.topic, partition=index, records=count))

    # ------------------------------------------------------------------------------------------------------ operations

    def shard(self, index: int) -> _Shard:
        """Return the shard of a partition. Raises CoordinatorError: NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        return self._find(index).shard

    def loaded_shard(self, index: int) -> _Shard | None:
        """Return the shard of a partition, None if it is not loaded here."""
        led = self._led.get(index)
        return led.shard if led is not None and led.is_loaded else None

    def shards(self) -> list[_Shard]:
        """Return the shards that are loaded."""
        return [led.shard for led in self._led.values() if led.is_loaded]

    def loading_count(self) -> int:
        """Return the number of partitions that are being loaded."""
        return sum(not led.is_loaded and not led.has_failed for led in self._led.values())

    def write(
        self,
        index: int,
        operation: Callable[[_Shard], Decision[_Response]],
        respond: Respond[_Response],
        producer: Producer = NO_PRODUCER,
    ) -> None:
        """Execute an operation of a shard; `respond(response or error, now_ms)` is called once, now or when it is committed."""
        try:
            led = self._find(index)
            decision = operation(led.shard)
            if decision.settled is not None:
                respond = partial(settle, decision.settled, respond)
            if decision.records:
                self._apply(led, decision, producer)
        except CoordinatorError as error:
            respond(error, self._timer.clock_ms)
            return
        except Exception as fault:
            # An operation of a timer must not end the node, as it would if nothing caught it; a request is answered.
            self._report(fault_line(f"an operation of {self.topic}-{index}", fault))
            respond(CoordinatorError(error_codes.UNKNOWN_SERVER_ERROR, str(fault)), self._timer.clock_ms)
            return
        self._defer(led, decision.response, respond, has_records=bool(decision.records))

    def write_in_parts(
        self,
        index: int,
        items: Sequence[_Item],
        operation: Callable[[_Shard, Sequence[_Item]], Decision[_Response]],
        respond: Respond[_Response],
    ) -> None:
        """Execute an operation on some items at a time; `respond` is called for each part. An unload leaves the others out."""
        shard = self.loaded_shard(index)

        def work() -> Iterator[None]:
            for start in range(0, len(items), ITEMS_OF_PART):
                if self.loaded_shard(index) is not shard:
                    return
                part = items[start : start + ITEMS_OF_PART]
                self.write(index, lambda found, part=part: operation(found, part), respond)  # type: ignore[misc]
                yield

        self._scheduler.run(work(), self._timer.clock_ms)

    def end_transaction(self, index: int, end: EndTransaction, respond: Respond[None]) -> None:
        """Append the marker of a transaction; `respond` gets None when it is committed."""
        try:
            led = self._find(index)
            self._append_before(led)
            base_offset = led.next_offset
            led.speculative.append(end, base_offset)
            led.next_offset = base_offset + 1
            self._defer(led, None, respond, has_records=True)
            data = encode_marker_batch(end, self._timer.wall.at(self._timer.clock_ms))
            self._append(led, base_offset, data, self._timer.clock_ms, end.transaction_version)
        except CoordinatorError as error:
            respond(error, self._timer.clock_ms)

    def _find(self, index: int) -> LedPartition[_Shard]:
        led = self._led.get(index)
        if led is None or led.has_failed or led.partition.log is None:
            raise self._not_coordinator(index)
        if not led.is_loaded:
            text = f"{self.topic}-{index} is being loaded"
            raise CoordinatorError(error_codes.COORDINATOR_LOAD_IN_PROGRESS, text)
        return led

    def _not_coordinator(self, index: int) -> CoordinatorError:
        text = f"broker {self._replica_manager.node_id} does not lead {self.topic}-{index}"
        return CoordinatorError(error_codes.NOT_COORDINATOR, text)

    def _apply(self, led: LedPartition[_Shard], decision: Decision[Any], producer: Producer) -> None:
        """Apply the records of one operation. Raises CoordinatorError; if they are atomic, with nothing changed."""
        now_ms, log = self._timer.wall.at(self._timer.clock_ms), led.partition.log
        assert log is not None  # or `_find` would have raised
        limit_bytes = min(log.config.max_message_bytes, log.config.segment_bytes)
        part, encoded, size_bytes = list[ShardRecord](), list[EncodedRecord](), 0
        for record in decision.records:
            assert isinstance(record, CoordinatorRecord)
            one = EncodedRecord(*self._decoder.encode(record.key, record.value), now_ms)
            one_bytes = len(one.key) + len(one.value or b"") + RECORD_OVERHEAD_BYTES
            if part and not decision.is_atomic and size_bytes + one_bytes + BATCH_OVERHEAD_BYTES > limit_bytes:
                self._add(led, part, encoded, size_bytes, limit_bytes, producer)
                part, encoded, size_bytes = [], [], 0
            part.append(record)
            encoded.append(one)
            size_bytes += one_bytes
        self._add(led, part, encoded, size_bytes, limit_bytes, producer)

    def _add(
        self,
        led: LedPartition[_Shard],
        records: Sequence[ShardRecord],
        encoded: Sequence[EncodedRecord],
        size_bytes: int,
        limit_bytes: int,
        producer: Producer,
    ) -> None:
        """Apply records and add them to the open batch. Raises CoordinatorError, with nothing changed."""
        if size_bytes + BATCH_OVERHEAD_BYTES > limit_bytes:
            text = f"the records of the operation have {size_bytes} bytes, more than max.message.bytes of {self.topic}"
            raise CoordinatorError(error_codes.UNKNOWN_SERVER_ERROR, text)
        batch = led.batch
        if batch is not None and (batch.producer != producer or batch.size_bytes + size_bytes > limit_bytes):
            self._append_before(led)
            batch = None
        first = led.next_offset
        try:
            for at, record in enumerate(records):
                led.speculative.append(record, first + at)
        except StateError as error:
            led.speculative.roll_back(first)
            self._report(fault_line(f"applying a record of {self.topic}-{led.partition.index}", error))
            raise CoordinatorError(error_codes.UNKNOWN_SERVER_ERROR, str(error)) from error
        if batch is None:
            batch = led.batch = OpenBatch(first, producer)
            self._schedule_append(led)
        batch.records += encoded
        batch.size_bytes += size_bytes
        led.next_offset = first + len(records)

    def _append_before(self, led: LedPartition[_Shard]) -> None:
        """Append the open batch before an operation that was decided on it. Raises CoordinatorError if that fails."""
        if led.batch is None:
            return
        end_offset = led.next_offset
        self._append_open_batch(led, self._timer.clock_ms)
        if led.is_closed:
            raise self._not_coordinator(led.partition.index)
        if led.next_offset != end_offset:
            raise CoordinatorError(error_codes.COORDINATOR_NOT_AVAILABLE, "the records before those could not be appended")

    def _schedule_append(self, led: LedPartition[_Shard]) -> None:
        def append(now_ms: int) -> None:
            led.linger = None
            self._append_open_batch(led, now_ms)

        led.linger = self._timer.schedule(self._timer.clock_ms + max(0, self._linger_ms), append)

    def _defer(self, led: LedPartition[_Shard], response: _Response, respond: Respond[_Response], *, has_records: bool) -> None:
        """Respond when all records so far are committed."""
        if led.next_offset <= led.committed:
            respond(response, self._timer.clock_ms)
        else:
            led.deferred.append(DeferredResponse(led.next_offset, response, respond, has_records))
            if not has_records and led.batch is None:
                self._schedule_expiry(led, led.next_offset, self._timer.clock_ms)

    # ---------------------------------------------------------------------------------------------------------- append

    def _append_open_batch(self, led: LedPartition[_Shard], now_ms: int) -> None:
        batch, led.batch = led.batch, None
        if batch is None or led.is_closed:
            return
        if led.linger is not None:
            led.linger.cancel()
            led.linger = None
        data = encode_data_batch(batch.records, batch.producer, self._codec, self._base_sequence)
        self._append(led, batch.base_offset, data, now_ms)

    def _append(
        self, led: LedPartition[_Shard], base_offset: int, data: bytearray, now_ms: int, transaction_version: int = 0
    ) -> None:
        """Append a batch whose records are applied; on an error they are reverted, and their operations fail."""
        partition = led.partition
        led.is_appending = True
        try:
            wall_ms, origin = self._timer.wall.at(now_ms), AppendOrigin.COORDINATOR
            info = partition.append(memoryview(data), self._required_acks, wall_ms, origin, transaction_version)
        except (AppendError, PartitionError) as error:
            self._revert(led, base_offset, error.code, str(error))
            return
        except OSError as error:
            self._replica_manager.handle_log_dir_failure(partition, error)
            self._revert(led, base_offset, error_codes.KAFKA_STORAGE_ERROR, str(error))
            return
        finally:
            led.is_appending = False
        log = partition.log
        if log is None:
            # The append has woken a fetch, whose read has taken the log directory offline.
            self._revert(led, base_offset, error_codes.KAFKA_STORAGE_ERROR, "the log directory has gone offline")
            return
        if info.first_offset != base_offset:
            self._reload(led, base_offset, now_ms)
            return
        self._high_watermark_moved(led, log.high_watermark)
        if led.committed <= info.last_offset:
            self._schedule_expiry(led, info.last_offset + 1, now_ms)

    def _partition_committed(self, partition: Partition) -> None:
        led = self._led.get(partition.index)
        if led is not None and led.partition is partition and led.is_loaded and partition.log is not None:
            self._high_watermark_moved(led, partition.log.high_watermark)

    def _high_watermark_moved(self, led: LedPartition[_Shard], high_watermark: int) -> None:
        """Take the records below the high watermark as committed, and respond to their operations."""
        if led.is_appending or led.is_closed:
            return
        appended = led.next_offset if led.batch is None else led.batch.base_offset
        if high_watermark > appended:
            self._reload(led, appended, self._timer.clock_ms)
            return
        led.committed = high_watermark
        led.speculative.commit(high_watermark - 1)
        deferred = led.deferred
        while deferred and deferred[0].end_offset <= high_watermark:
            self._respond(deferred.popleft())

    def _respond(self, deferred: DeferredResponse, error: CoordinatorError | None = None) -> None:
        try:
            deferred.respond(deferred.response if error is None else error, self._timer.clock_ms)
        except Exception as fault:
            self._report(fault_line(f"answering an operation of {self.topic}", fault))

    def _revert(self, led: LedPartition[_Shard], base_offset: int, code: int, message: str) -> None:
        led.speculative.roll_back(base_offset)
        led.next_offset = base_offset
        code = OPERATION_ERRORS.get(code, code)
        # The error of a producer's batch is not that of another client, whose operation has only read.
        readers_code = code if code == error_codes.NOT_COORDINATOR else error_codes.COORDINATOR_NOT_AVAILABLE
        self._fail(led, base_offset, CoordinatorError(code, message), CoordinatorError(readers_code, message))

    def _fail(
        self,
        led: LedPartition[_Shard],
        base_offset: int,
        error: CoordinatorError,
        readers_error: CoordinatorError | None = None,
    ) -> None:
        """Fail the operations that wait for records from an offset on, or that may have seen them (`readers_error`)."""
        failed: list[DeferredResponse] = []
        while led.deferred and led.deferred[-1].end_offset > base_offset:
            failed.append(led.deferred.pop())
        for deferred in reversed(failed):
            self._respond(deferred, error if deferred.has_records or readers_error is None else readers_error)

    def _schedule_expiry(self, led: LedPartition[_Shard], end_offset: int, now_ms: int) -> None:
        self._timer.schedule(now_ms + self._write_timeout_ms, partial(self._expire, led, end_offset))

    def _expire(self, led: LedPartition[_Shard], end_offset: int, now_ms: int) -> None:
        """Fail the operations whose records are still not committed; the records stay, and may be committed later."""
        if led.is_closed:
            return
        text = f"the records were not committed within {self._write_timeout_ms} ms"
        error = CoordinatorError(error_codes.COORDINATOR_NOT_AVAILABLE, text)
        while led.deferred and led.deferred[0].end_offset <= end_offset:
            self._respond(led.deferred.popleft(), error)

    def _reload(self, led: LedPartition[_Shard], offset: int, now_ms: int) -> None:
        """Load the partition again: something else has appended to it, so the state is not what the log says."""
        index = led.partition.index
        text = (
            f"{self.topic}-{index} has records from offset {offset} on that its coordinator did not write: it is loaded again"
        )
        self._report(WarningLine(text, topic=self.topic, partition=index))
        self._unload(led)
        self._load(led.partition, now_ms)
