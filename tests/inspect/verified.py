"""Small log directories made to be verified: sound ones, written batch by batch, for tests to damage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kcli.format.checkpoint import EpochStart, PartitionOffset, encode_leader_epochs, encode_offset_checkpoint
from kcli.format.compression import deflate
from kcli.format.end_transaction_marker import encode_marker
from kcli.format.index_entries import OffsetIndex, OffsetIndexEntry, TimeIndex, TimeIndexEntry
from kcli.format.metadata_files import MetaProperties, encode_meta_properties
from kcli.format.producer_snapshot import ProducerEntry, encode_producer_snapshot
from kcli.format.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.inspect.verification.verifier import Verifier, VerifyReport
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import resolve_paths

TIME = 1_700_000_000_000
CLUSTER = "kcliKcliKcliKcliKcliKg"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def batch(
    offset: int, count: int = 1, *, codec: int = 0, producer: int = -1, sequence: int = -1, transactional: bool = False
) -> NewRecordBatch:
    """A sound batch: record i has offset + i, TIME + offset + i ms, a key and a value."""
    records = encode_records(Record(i, i, b"key", b"value %d" % (offset + i)) for i in range(count))
    return NewRecordBatch(
        base_offset=offset,
        last_offset_delta=count - 1,
        base_timestamp=TIME + offset,
        max_timestamp=TIME + offset + count - 1,
        record_count=count,
        records=deflate(codec, records) if codec else records,
        attributes=codec | (TRANSACTIONAL_FLAG if transactional else 0),
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=sequence,
    )


def marker(offset: int, producer: int, *, abort: bool = False, coordinator_epoch: int = 0) -> NewRecordBatch:
    """The marker that ends a producer's transaction."""
    key, value = encode_marker(is_abort=abort, coordinator_epoch=coordinator_epoch)
    return batch(offset)._replace(
        records=encode_records([Record(0, 0, key, value)]),
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
        producer_id=producer,
        producer_epoch=0,
    )


def entry(producer: int, sequence: int, offset: int, *, delta: int = 0, open_from: int = -1, epoch: int = 0) -> ProducerEntry:
    """What a snapshot tells of a producer whose last batch is a sound one of `batch`."""
    return ProducerEntry(producer, epoch, sequence, offset, delta, TIME + offset, -1, open_from)


def partition(
    root: Path,
    name: str,
    *segments: Sequence[NewRecordBatch | bytes],
    epochs: Iterable[tuple[int, int]] = ((0, 0),),
    snapshots: Mapping[int, Iterable[ProducerEntry]] | None = None,
    base: int = 0,
) -> Path:
    """Write a partition: each segment begins with its first batch's offset (`base` for an empty first one)."""
    path = root / name
    path.mkdir(parents=True)
    for batches in segments:
        first = next((one.base_offset for one in batches if isinstance(one, NewRecordBatch)), base)
        stem = path / f"{first:020d}"
        index, position, largest = [], 0, (-1, first)
        data = bytearray()
        for one in batches:
            encoded = one if isinstance(one, bytes) else one.encode()
            if isinstance(one, NewRecordBatch):
                last = one.base_offset + one.last_offset_delta
                if position:
                    index.append(OffsetIndexEntry(last, position))
                largest = max(largest, (one.max_timestamp, last), key=lambda pair: pair[0])
            data += encoded
            position += len(encoded)
        stem.with_suffix(".log").write_bytes(data)
        stem.with_suffix(".index").write_bytes(OffsetIndex.of(first, index).encode())
        times = [TimeIndexEntry(*largest)] if largest[0] >= 0 else []
        stem.with_suffix(".timeindex").write_bytes(TimeIndex.of(first, times).encode())
    for offset, entries in (snapshots or {}).items():
        (path / f"{offset:020d}.snapshot").write_bytes(encode_producer_snapshot(entries))
    (path / "leader-epoch-checkpoint").write_bytes(encode_leader_epochs(EpochStart(*one) for one in epochs))
    (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    return path


def root_files(root: Path, *, clean: bool = True, directory_id: str | None = None, **offsets: Mapping[str, int]) -> None:
    """Write a log directory's own files; `offsets` are those of the checkpoints by partition: recovery_point={"t-0": 5}."""
    meta = encode_meta_properties(MetaProperties(1, CLUSTER, 1), date="Sat Nov 21 03:50:00 UTC 2026")
    if directory_id:
        meta += f"directory.id={directory_id}\n".encode()
    (root / "meta.properties").write_bytes(meta)
    if clean:
        (root / ".kafka_cleanshutdown").write_bytes(b'{"version":0,"brokerEpoch":7}')
    for name in ("recovery_point", "log_start", "replication", "cleaner"):
        entries = [PartitionOffset(*_split(partition_name), offset) for partition_name, offset in offsets.get(name, {}).items()]
        (root / f"{name.replace('_', '-')}-offset-checkpoint").write_bytes(encode_offset_checkpoint(entries))


def _split(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("-")
    return topic, int(number)


def verify(*paths: Path, disk: Disk | None = None, processes: int = 1) -> VerifyReport:
    """Verify paths, all of which must be something."""
    targets, problems = resolve_paths(disk or OsDisk(), map(str, paths))
    assert not problems
    return Verifier(disk or OsDisk(), targets).run(processes)


def codes(report: VerifyReport) -> set[str]:
    """The codes of what was found."""
    return {finding.code for finding in report.findings}
