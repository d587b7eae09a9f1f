"""Log directories for the fuzzer, with a model of every record that was appended at log level.

`write_scene(parent, rng)` draws one or two log directories, writes them as a broker leaves them after a clean stop or a crash,
and returns the Scene: what was appended, which offsets were given out, what the checkpoints state. Nothing is damaged;
kcli.log.loading.log_loader, which is compared with Kafka's own file by file, makes the indexes, snapshots and leader epochs.

    drawn for        choices
    ---------------  --------------------------------------------------------------------------------------------------
    a scene          one directory; two of one node; two of which one holds a partition of the other again; two clusters
    a directory      stopped cleanly or crashed; one to three partitions
    a partition      first offset, log start offset, segments, leader epochs, compacted or not
    a batch          records, codec (also with the bytes of records left visible), producer, transaction, hostile values
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

from kcli.format.checkpoint import EpochStart, PartitionOffset, encode_leader_epochs, encode_offset_checkpoint
from kcli.format.end_transaction_marker import encode_marker
from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import MetaProperties, PartitionMetadata, encode_meta_properties, encode_partition_metadata
from kcli.log.disk.file_changes import Discard, apply_changes
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.planned_disk import PlannedDisk
from kcli.log.loading.log_loader import LoadSettings, load_log
from tests.fuzz.batches import (
    BASE_TIMESTAMP_MS,
    CODECS,
    HOSTILE_KINDS,
    BatchSettings,
    LogBatch,
    LogRecord,
    find_embedded,
    hostile_value,
    make_batch,
)

CLUSTERS = ("kcliKcliKcliKcliKcliKg", "otherOtherOtherOtherOQ")
TOPICS = ("orders", "payments", "mirror")
MARK = b'{"version":0,"brokerEpoch":7}'
CHECKPOINTS = {
    "recovery_point": "recovery-point-offset-checkpoint",
    "log_start": "log-start-offset-checkpoint",
    "high_watermark": "replication-offset-checkpoint",
    "cleaner_offset": "cleaner-offset-checkpoint",
}
ONE, JBOD, DUPLICATE, TWO_CLUSTERS = "one directory", "two of one node", "a partition twice", "two clusters"


class PartitionModel:
    """One partition as it was appended to. Offsets below `end_offset` were given out to producers."""

    def __init__(self, path: Path, topic: str, number: int, topic_id: Uuid) -> None:
        self.path = path
        self.topic = topic
        self.number = number
        self.topic_id = topic_id
        self.segments: dict[int, list[LogBatch]] = {}
        self.epochs: list[tuple[int, int]] = []
        self.log_start = 0
        self.end_offset = 0
        self.high_watermark = 0
        self.recovery_point = 0
        self.cleaner_offset: int | None = None

    @property
    def name(self) -> str:
        """The name of its directory."""
        return f"{self.topic}-{self.number}"

    @property
    def batches(self) -> list[LogBatch]:
        """All batches by offset."""
        return [batch for batches in self.segments.values() for batch in batches]

    @property
    def records(self) -> dict[int, LogRecord]:
        """Every record by its offset."""
        return {record.offset: record for batch in self.batches for record in batch.records}

    def checkpointed(self, field: str) -> int | None:
        """The offset that the checkpoint `field` of CHECKPOINTS states, None for no line."""
        value: int | None = getattr(self, field)
        return None if field == "log_start" and not value else value


class DirectoryModel:
    """One log directory."""

    def __init__(self, path: Path, cluster_id: str, node_id: int, directory_id: Uuid, *, is_clean: bool) -> None:
        self.path = path
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.directory_id = directory_id
        self.is_clean = is_clean
        self.partitions: list[PartitionModel] = []


class Scene(NamedTuple):
    """What was drawn: `kind` is one of ONE, JBOD, DUPLICATE, TWO_CLUSTERS."""

    kind: str
    directories: list[DirectoryModel]

    @property
    def partitions(self) -> list[PartitionModel]:
        """All partitions of all directories."""
        return [partition for directory in self.directories for partition in directory.partitions]


def write_scene(parent: Path, rng: random.Random, *, keeps_codecs: bool = False) -> Scene:
    """Draw a scene and write its directories below `parent`; `keeps_codecs`: compacted logs keep their codecs."""
    kind = rng.choice((ONE, ONE, ONE, ONE, ONE, ONE, JBOD, DUPLICATE, TWO_CLUSTERS))
    scene = Scene(kind, [])
    first = _new_directory(parent / "a", CLUSTERS[0], 1, rng)
    scene.directories.append(first)
    names = [(topic, number) for topic in TOPICS for number in (0, 1)]
    for topic, number in rng.sample(names, rng.choice((1, 1, 2)) if kind == ONE else 2):
        first.partitions.append(_draw_partition(first.path, topic, number, rng, keeps_codecs=keeps_codecs))
    if kind != ONE:
        second = _new_directory(parent / "b", CLUSTERS[1 if kind == TWO_CLUSTERS else 0], 1, rng)
        scene.directories.append(second)
        taken = {(one.topic, one.number) for one in first.partitions}
        if kind == JBOD:
            topic, number = rng.choice([name for name in names if name not in taken])
        else:
            topic, number = first.partitions[0].topic, first.partitions[0].number
        second.partitions.append(_draw_partition(second.path, topic, number, rng, other=kind == TWO_CLUSTERS))
    for directory in scene.directories:
        for partition in directory.partitions:
            _write_partition(partition, directory.is_clean, rng)
        write_root(directory)
    return scene


def _new_directory(path: Path, cluster_id: str, node_id: int, rng: random.Random) -> DirectoryModel:
    path.mkdir(parents=True)
    directory_id = Uuid((1000 + rng.randrange(1 << 40)).to_bytes(16, "big"))
    return DirectoryModel(path, cluster_id, node_id, directory_id, is_clean=rng.random() < 0.6)


def write_root(directory: DirectoryModel) -> None:
    """Write the log directory's own files."""
    meta = MetaProperties(1, directory.cluster_id, directory.node_id, directory.directory_id)
    content = encode_meta_properties(meta, date="Sat Nov 21 03:50:00 UTC 2026")
    (directory.path / "meta.properties").write_bytes(content)
    if directory.is_clean:
        (directory.path / ".kafka_cleanshutdown").write_bytes(MARK)
    for field, name in CHECKPOINTS.items():
        entries = [
            PartitionOffset(partition.topic, partition.number, offset)
            for partition in directory.partitions
            if (offset := partition.checkpointed(field)) is not None
        ]
        if entries or field != "cleaner_offset":
            (directory.path / name).write_bytes(encode_offset_checkpoint(entries))


# -------------------------------------------------------------------------------------------------------------- a partition


def _draw_partition(
    parent: Path, topic: str, number: int, rng: random.Random, *, other: bool = False, keeps_codecs: bool = False
) -> PartitionModel:
    identity = (TOPICS.index(topic) + 1) * 65537 + (1 << 32 if other else 0)
    path = parent / f"{topic}-{number}"
    partition = PartitionModel(path, topic, number, Uuid(identity.to_bytes(16, "big")))
    first_offset = rng.choice((0, 0, 0, rng.randrange(1, 3000)))
    label = f"{path.parent.name}/{path.name}".encode()
    _Appender(partition, first_offset, label, rng).append_all()
    if rng.random() < (0.9 if keeps_codecs else 0.25):
        _compact(partition, rng, keeps_codecs=keeps_codecs)
    partition.log_start = first_offset
    if partition.end_offset > first_offset and rng.random() < 0.25:
        second = [*partition.segments, partition.end_offset][1]
        partition.log_start = rng.randrange(first_offset, second)  # within the first segment
    return partition


class _Appender:
    """Draws the batches of a partition, one after the other."""

    def __init__(self, partition: PartitionModel, first_offset: int, label: bytes, rng: random.Random) -> None:
        self.partition = partition
        self.offset = first_offset
        self.label = label
        self.rng = rng
        self.epoch = rng.choice((0, 0, 0, 3))
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()
        self.style = rng.choice(("plain", "plain", "idempotent", "transactions"))
        self.hostility = rng.choice((0.0, 0.3, 0.8))
        # With large values a segment's indexes have entries: one in 4 KiB.
        self.padding_bytes = rng.choice(((0, 3, 40, 300), (0, 3, 40, 300), (40, 300, 1500)))

    def append_all(self) -> None:
        """Draw one to four segments; the last one may be empty, as right after a roll."""
        rng = self.rng
        count = rng.choice((1, 1, 2, 3, 4))
        self._begin_epoch(self.epoch)
        for index in range(count):
            batches = self.partition.segments[self.offset] = []
            if index == count - 1 and index and rng.random() < 0.15:
                break
            for _ in range(rng.randint(1, 6)):
                if rng.random() < 0.08:
                    self._begin_epoch(self.epoch + rng.randint(1, 2))
                batches.append(self._batch())
                self.offset = batches[-1].next_offset
        self.partition.end_offset = self.offset

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        epochs = self.partition.epochs
        if epochs and epochs[-1][1] == self.offset:
            epochs.pop()  # the leader before wrote nothing
        epochs.append((epoch, self.offset))

    def _batch(self) -> LogBatch:
        rng = self.rng
        if self.open and rng.random() < 0.4:
            return self._marker(rng.choice(sorted(self.open)))
        settings = BatchSettings(self.epoch)
        if rng.random() < 0.35:
            settings = settings._replace(codec=rng.choice(CODECS), stored=rng.random() < 0.6)
        count = rng.choice((1, 2, 3, 5, 8))
        if self.style != "plain" and rng.random() < 0.8:
            producer = rng.choice((7, 8))
            settings = settings._replace(producer_id=producer, sequence=self.sequences.get(producer, 0))
            if self.style == "transactions":
                settings = settings._replace(is_transactional=True)
                self.open.add(producer)
            self.sequences[producer] = settings.sequence + count
        records = [self._record(self.offset + i) for i in range(count)]
        pieces: list[bytes] = []
        if rng.random() < self.hostility:
            kind = rng.choice(HOSTILE_KINDS)
            pieces = hostile_value(rng, kind, self.offset, self.offset + count, self.epoch)
            lead, tail = rng.choice((b"", b"value ")), rng.choice((b"", b" end"))
            if rng.random() < 0.3:
                records[-1] = records[-1]._replace(headers=((b"header", lead + b"".join(pieces)),))
            else:
                at = rng.randrange(count)
                records[at] = records[at]._replace(value=lead + b"".join(pieces) + tail)
        return find_embedded(make_batch(self.offset, records, settings), pieces)

    def _record(self, offset: int) -> LogRecord:
        rng = self.rng
        padding = rng.randbytes(rng.choice(self.padding_bytes))
        key = rng.choice((None, b"key %d" % (offset % 5)))
        return LogRecord(offset, BASE_TIMESTAMP_MS + offset, key, b"%s:%d " % (self.label, offset) + padding)

    def _marker(self, producer: int) -> LogBatch:
        self.open.discard(producer)
        key, value = encode_marker(is_abort=self.rng.random() < 0.5, coordinator_epoch=0)
        record = LogRecord(self.offset, BASE_TIMESTAMP_MS + self.offset, key, value, True)
        return make_batch(self.offset, [record], BatchSettings(self.epoch, producer_id=producer, is_transactional=True))


def _compact(partition: PartitionModel, rng: random.Random, *, keeps_codecs: bool) -> None:
    """Take records away as the log cleaner does from all segments but the last; only of logs without producers."""
    bases = list(partition.segments)
    if len(bases) < 2 or any(batch.data[43:51] != b"\xff" * 8 for batch in partition.batches):
        return
    for base in bases[:-1]:
        kept: list[LogBatch] = []
        for batch in partition.segments[base]:
            if rng.random() < 0.3:
                continue
            codec = batch.data[22] & 7 if keeps_codecs else 0
            kept.append(_thinned(batch, rng, codec) if rng.random() < 0.4 else batch)
        partition.segments[base] = kept
    partition.cleaner_offset = bases[-1]


def _thinned(batch: LogBatch, rng: random.Random, codec: int) -> LogBatch:
    records = [record for record in batch.records if rng.random() < 0.6]
    if not records or batch.embedded:
        return batch
    return make_batch(batch.base_offset, records, BatchSettings(batch.leader_epoch, codec), batch.next_offset)


def _write_partition(partition: PartitionModel, is_clean: bool, rng: random.Random) -> None:
    path = partition.path
    path.mkdir()
    for base, batches in partition.segments.items():
        (path / f"{base:020d}.log").write_bytes(b"".join(batch.data for batch in batches))
    epochs = [EpochStart(*entry) for entry in partition.epochs if entry[1] < partition.end_offset]
    (path / "leader-epoch-checkpoint").write_bytes(encode_leader_epochs(epochs))
    (path / "partition.metadata").write_bytes(encode_partition_metadata(PartitionMetadata(0, partition.topic_id)))
    disk = OsDisk()
    planned = PlannedDisk(disk)
    load_log(planned, str(path), LoadSettings(False, partition.log_start, 0))
    apply_changes(disk, planned.changes(), Discard(disk))
    partition.high_watermark = partition.recovery_point = partition.end_offset
    if not is_clean:
        partition.high_watermark = rng.choice((partition.end_offset, rng.randint(partition.log_start, partition.end_offset)))
        partition.recovery_point = rng.choice(list(partition.segments))
        _leave_as_crashed(partition, rng)


def _leave_as_crashed(partition: PartitionModel, rng: random.Random) -> None:
    """What differs from a clean stop: no snapshot at the end, and the active indexes at their preallocated size."""
    last_base = list(partition.segments)[-1]
    if partition.end_offset > last_base:
        (partition.path / f"{partition.end_offset:020d}.snapshot").unlink(missing_ok=True)
    if rng.random() < 0.5:
        for suffix, size_bytes in ((".index", 4096), (".timeindex", 4092)):
            index = partition.path / f"{last_base:020d}{suffix}"
            index.write_bytes(index.read_bytes().ljust(size_bytes, b"\0"))
