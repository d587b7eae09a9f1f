"""Live logs for tests: opened on a directory, fed with batches as clients send them, looked at by a verifier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from kcli.format.compression import deflate
from kcli.format.end_transaction_marker import encode_marker
from kcli.format.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, NewRecordBatch, RecordBatch, read_header
from kcli.format.records import Header, Record, encode_records
from kcli.inspect.verification.facts import PartitionOptions
from kcli.inspect.verification.finding_kinds import INFO
from kcli.inspect.verification.partition_verifier import verify_partition
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import LogDisk
from kcli.log.errors import AppendError
from kcli.log.file_cache import FileCache
from kcli.log.files.log_directory import read_partition
from kcli.log.log_config import LogConfig
from kcli.log.log_opener import open_log
from kcli.log.log_validator import AppendOrigin
from kcli.log.time_lookup import TimestampAndOffset
from kcli.log.unified_log import UnifiedLog

NOW_MS = 1_700_000_000_000


def new_batch(
    values: Sequence[bytes | None] = (b"v",),
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    codec: int = 0,
    attributes: int = 0,
    producer: tuple[int, int, int] | None = None,
    headers: tuple[Header, ...] = (),
    base_offset: int = 0,
    leader_epoch: int = -1,
    max_timestamp: int | None = None,
) -> memoryview:
    """A batch as a producer sends it, writable; `producer` is its id, epoch and base sequence."""
    stamps = list(timestamps or [NOW_MS] * len(values))
    records = encode_records(
        Record(at, stamps[at] - stamps[0], (b"k%d" % at) if keys is None else keys[at], value, headers)
        for at, value in enumerate(values)
    )
    producer_id, producer_epoch, base_sequence = producer or (-1, -1, -1)
    batch = NewRecordBatch(
        base_offset=base_offset,
        last_offset_delta=len(values) - 1,
        base_timestamp=stamps[0],
        max_timestamp=max(stamps) if max_timestamp is None else max_timestamp,
        record_count=len(values),
        records=deflate(codec, records) if codec else records,
        attributes=attributes | codec,
        partition_leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    return memoryview(bytearray(batch.encode()))


def of_producer(producer_id: int, sequence: int, count: int = 1, *, epoch: int = 0, transactional: bool = False) -> memoryview:
    """A batch of a producer with `count` records from `sequence` on."""
    attributes = TRANSACTIONAL_FLAG if transactional else 0
    return new_batch([b"v"] * count, producer=(producer_id, epoch, sequence), attributes=attributes)


def marker(producer_id: int, *, abort: bool, epoch: int = 0, coordinator_epoch: int = 0, timestamp: int = NOW_MS) -> memoryview:
    """The marker that ends a transaction."""
    key, value = encode_marker(is_abort=abort, coordinator_epoch=coordinator_epoch)
    attributes = TRANSACTIONAL_FLAG | CONTROL_FLAG
    return new_batch([value], keys=[key], timestamps=[timestamp], producer=(producer_id, epoch, -1), attributes=attributes)


class LiveLog:
    """A log in a directory, with what is needed to open it again as after a clean stop or a crash."""

    def __init__(
        self, directory: Path, config: LogConfig | None = None, *, disk: LogDisk | None = None, max_open: int = 8
    ) -> None:
        self.directory = directory
        self.config = config or LogConfig()
        self.disk = disk or OsDisk()
        self.files = FileCache(self.disk, max_open)
        self.log = self.open()

    def open(self, *, clean: bool = False, recovery_point: int = 0, log_start_offset: int = 0) -> UnifiedLog:
        """Open the directory; what was open before counts as gone."""
        self.files.close_all()
        self.files = FileCache(self.disk, self.files.max_open)
        self.log = open_log(
            self.disk,
            self.files,
            str(self.directory),
            "t",
            0,
            self.config,
            NOW_MS,
            clean_shutdown=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
        )
        return self.log

    def stop(self) -> UnifiedLog:
        """Close the log and open it again."""
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.log.close()
        log = self.open(clean=True, recovery_point=end, log_start_offset=start)
        assert (log.log_start_offset, log.log_end_offset) == (start, end)
        log.update_high_watermark(end)
        return log

    def crash(self, *, recovery_point: int = 0) -> UnifiedLog:
        """Open the log again though it was not closed."""
        return self.open(recovery_point=recovery_point, log_start_offset=self.log.log_start_offset)

    def append(self, *batches: memoryview, epoch: int = 0, now_ms: int = NOW_MS) -> int:
        """Append, and let all be committed -> the first offset."""
        first = self.log.log_end_offset
        for batch in batches:
            origin = AppendOrigin.COORDINATOR if read_header(batch).is_control else AppendOrigin.CLIENT
            self.log.append_as_leader(batch, epoch, now_ms, origin=origin)
        self.log.update_high_watermark(self.log.log_end_offset)
        return first

    def refused(self, batch: memoryview, *, now_ms: int = NOW_MS, origin: AppendOrigin = AppendOrigin.CLIENT) -> AppendError:
        """The error of a batch that is not taken; the log must be as it was."""
        before = self.log.log_end_offset, self.log.size_bytes, self.sizes()
        try:
            self.log.append_as_leader(batch, 0, now_ms, origin=origin)
        except AppendError as error:
            assert (self.log.log_end_offset, self.log.size_bytes, self.sizes()) == before
            return error
        raise AssertionError("the batch was taken")

    def sizes(self) -> dict[str, int]:
        """The sizes of the `.log` files by name."""
        return {path.name: path.stat().st_size for path in self.directory.glob("*.log")}

    def headers(self, start_offset: int | None = None, max_bytes: int = 1 << 20) -> list[RecordBatch]:
        """The headers of all batches from an offset on, read as a consumer does."""
        found: list[RecordBatch] = []
        offset = self.log.log_start_offset if start_offset is None else start_offset
        while True:
            data = self.read(offset, max_bytes)
            if not data:
                return found
            position = 0
            while position + 61 <= len(data):
                header = read_header(data, position)
                position += header.size_bytes
                if position <= len(data):
                    found.append(header)
                    offset = header.next_offset

    def read(self, offset: int, max_bytes: int = 1 << 20, *, limit_offset: int | None = None) -> bytes:
        """The bytes that a read gives."""
        limit = self.log.log_end_offset if limit_offset is None else limit_offset
        found = self.log.read(offset, max_bytes, limit_offset=limit)
        return found.file.read_at(found.position, found.size) if found.file is not None else b""

    def by_time(self, timestamp: int) -> TimestampAndOffset | None:
        """The first record with a timestamp of at least that."""
        scan = self.log.scan_by_time(timestamp)
        return None if scan is None else scan.run(self.disk)

    def largest(self) -> TimestampAndOffset | None:
        """The first record with the largest timestamp."""
        scan = self.log.scan_for_largest()
        return None if scan is None else scan.run(self.disk)

    def faults(self, *, is_compacted: bool = False) -> list[str]:
        """What a verifier finds wrong in the directory."""
        options = PartitionOptions(is_compacted=is_compacted)
        findings = verify_partition(self.disk, read_partition(self.disk, str(self.directory)), options)
        return [str(found) for found in findings.findings if found.severity != INFO]


def values_of(batches: Iterable[memoryview]) -> list[bytes]:
    """The batches as bytes, as they are now."""
    return [bytes(batch) for batch in batches]
