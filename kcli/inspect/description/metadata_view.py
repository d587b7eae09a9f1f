"""The metadata image of a directory: the newest sound snapshot of `__cluster_metadata-0`, then the log after it.

    in the directory                         the image is made from
    ---------------------------------------  --------------------------------------------------------------------------
    a snapshot that can be read to its end   the snapshot, and the log from its end offset
    no snapshot, a log from offset 0         the log
    only damaged snapshots                   what can be read of the newest one (a problem), and the log after it
    no such partition                        bootstrap.checkpoint: what `kafka-storage format` wrote, features only

All records to the end of the log are applied. Which of the last ones a majority of voters has is stored nowhere: KRaft keeps
the high watermark in memory. With one voter all are committed; with more, the last ones may be truncated.

ClusterTopics are topic ids and settings from the metadata log in the log directory of a partition. A repair uses them: the id
for a partition.metadata that was lost, index.interval.bytes for indexes that are rebuilt, and whether another replica has the
records that are lost here. Records that cannot be read are skipped; the verification of the metadata log reports them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kcli.format.file_names import METADATA_TOPIC, FileKind
from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import QuorumStateData, decode_quorum_state
from kcli.format.primitives import FormatError
from kcli.inspect.description.internal_logs import decoded, is_control, open_file, open_log
from kcli.inspect.description.partition_log import Logs
from kcli.inspect.description.remarks import Remarks
from kcli.inspect.description.sources import Sources, read_small
from kcli.inspect.quantities import format_count
from kcli.log.disk.port import Disk, join_path
from kcli.log.files.indexes import IndexSettings
from kcli.log.files.log_directory import FoundFile, PartitionDirectory, read_partition
from kcli.log.reading.batch_records import RecordWindow
from kcli.protocol.control_records import SNAPSHOT_FOOTER, ControlRecord, decode_control_record
from kcli.protocol.internal_records import CLUSTER_METADATA
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import PartitionRegistration
from kcli.state.state_error import StateError

if TYPE_CHECKING:
    from kcli.inspect.description.internal_logs import Header


class MetadataView(NamedTuple):
    """An image and its source: the path of the directory or of bootstrap.checkpoint, and the snapshot, if there is one.

    `end_offset` is the offset after the last applied record; `quorum_state` is the file of that name in the directory.
    """

    image: MetadataImage
    path: str
    snapshot_end_offset: int | None
    snapshot_epoch: int | None
    end_offset: int
    quorum_state: QuorumStateData | None
    is_bootstrap: bool = False


def read_metadata(disk: Disk, sources: Sources, logs: Logs, remarks: Remarks) -> MetadataView | None:
    """Return the cluster's metadata, or None if no directory has any. Of several replicas the one that ends last is read."""
    log = logs.best(METADATA_TOPIC, 0)
    if log is not None and (log.directory.segments or log.directory.metadata_snapshots):
        quorum_state = read_small(disk, log.directory.file(FileKind.QUORUM_STATE), decode_quorum_state, remarks)
        return read_metadata_log(disk, log.directory, quorum_state, remarks)
    for source in sources.directories if not sources.replicas else ():
        path = source.listing.file(FileKind.BOOTSTRAP_CHECKPOINT) if source.listing is not None else None
        if path is not None:
            loaded = _load_snapshot(disk, path)
            _take_over(loaded.remarks, remarks)
            return MetadataView(loaded.image, path, None, None, 0, None, is_bootstrap=True)
    return None


def read_metadata_log(
    disk: Disk, directory: PartitionDirectory, quorum_state: QuorumStateData | None, remarks: Remarks
) -> MetadataView:
    """Return the image of a directory of `__cluster_metadata-0`; records that cannot be read become problems in `remarks`."""
    log_start = directory.segments[0].base_offset if directory.segments else None
    snapshot, image = _choose_snapshot(disk, directory.metadata_snapshots, log_start, remarks)
    from_offset = 0 if snapshot is None else snapshot.base_offset
    if log_start is not None and log_start > from_offset:
        remarks.problem(
            directory.path,
            f"the metadata log begins at offset {log_start}, but what is known ends at {from_offset}: the records between "
            "are missing, and the image is incomplete",
        )
    end_offset = from_offset
    for header, window in open_log(disk, directory, remarks, from_offset):
        _apply(image, directory.path, header, window, from_offset, remarks)
        end_offset = max(end_offset, header.last_offset + 1)
    if image.pending_records is not None:
        remarks.unknown(
            f"A metadata transaction was open at the end of the log: its {len(image.pending_records)} records do not count."
        )
    epoch = None if snapshot is None else snapshot.parsed.epoch
    base = None if snapshot is None else snapshot.base_offset
    return MetadataView(image, directory.path, base, epoch, end_offset, quorum_state)


class _Loaded(NamedTuple):
    """A snapshot as far as it could be read; `is_whole` if it could be read up to its footer."""

    image: MetadataImage
    remarks: Remarks
    is_whole: bool


def _choose_snapshot(
    disk: Disk, snapshots: list[FoundFile], log_start: int | None, remarks: Remarks
) -> tuple[FoundFile | None, MetadataImage]:
    """Return the snapshot to begin with, and its image."""
    best: tuple[FoundFile, _Loaded] | None = None
    for file in sorted(snapshots, key=lambda found: (found.base_offset, found.parsed.epoch or 0), reverse=True):
        loaded = _load_snapshot(disk, file.path)
        _take_over(loaded.remarks, remarks)
        if loaded.is_whole:
            return file, loaded.image
        best = best or (file, loaded)
    if best is None or log_start == 0:
        return None, MetadataImage()
    return best[0], best[1].image


def _load_snapshot(disk: Disk, path: str) -> _Loaded:
    image, remarks = MetadataImage(), Remarks()
    last: ControlRecord | None = None
    for header, window in open_file(disk, path, remarks):
        last = _apply(image, path, header, window, 0, remarks)
    is_complete = last is not None and last.type_id == SNAPSHOT_FOOTER
    if not is_complete and not remarks.problems:
        remarks.problem(path, "the snapshot ends before its footer")
    return _Loaded(image, remarks, is_complete and not remarks.problems)


def _take_over(source: Remarks, target: Remarks) -> None:
    for problem in source.problems:
        target.problem(problem.path, problem.message)
    for sentence in source.unknowns:
        target.unknown(sentence)


def _apply(
    image: MetadataImage, path: str, header: Header, window: RecordWindow, from_offset: int, remarks: Remarks
) -> ControlRecord | None:
    """Apply the records of a window from `from_offset`; return the last one if it is a control record."""
    control: ControlRecord | None = None
    for index in range(window.count):
        offset = window.columns.offset[index]
        if offset < from_offset:
            continue
        key, value = window.key(index), window.value(index)
        control = None
        try:
            if is_control(header):
                control = decode_control_record(key, value)
                image.apply_control(control)
            else:
                record = decoded(CLUSTER_METADATA, path, offset, key, value, remarks)
                if record is not None and record[1] is not None:
                    image.apply(record[1])
        except StateError as error:
            remarks.problem(path, f"the record at offset {offset} does not fit those before it: {error.message}")
        except FormatError as error:
            remarks.problem(path, f"the control record at offset {offset} cannot be read: {error.message}")
    return control


METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"
_INTERVAL = "index.interval.bytes"
_INDEX_BYTES = "segment.index.bytes"


class OtherReplicas(NamedTuple):
    """The number of replicas of a partition, and of those on other nodes that have all records: the ISR and the ELR."""

    replicas: int
    others_in_sync: int

    @property
    def are_in_sync(self) -> bool:
        """Whether another replica has the records."""
        return self.replicas > 1 and self.others_in_sync > 0

    @property
    def sentence(self) -> str:
        """A clause on the number of replicas, without a full stop."""
        if self.replicas > 1 and not self.others_in_sync:
            return f"the partition has {self.replicas} replicas, and no other one is in sync"
        return f"the partition has {format_count(self.replicas, 'replica')}"


class ClusterTopics(NamedTuple):
    """Topic ids by name, and the settings of topics, by topic and setting.

    `partitions` are the registrations by topic and partition. `brokers` are the dynamic settings of brokers, by id; those of
    the cluster have the id "". `path` is the directory of the metadata log. `damage` is a sentence if the metadata log is
    damaged and its contents may therefore be out of date, else "".
    """

    path: str
    ids: dict[str, Uuid]
    configs: dict[str, dict[str, str]]
    brokers: dict[str, dict[str, str]]
    damage: str
    partitions: dict[tuple[str, int], PartitionRegistration]

    def other_replicas(self, topic: str, partition: int, node_id: int | None) -> OtherReplicas | None:
        """Return which other replicas have the records of the one on a node, None for a partition that is not in the log."""
        found = self.partitions.get((topic, partition))
        if found is None or not found.replicas:
            return None
        have_records = {*found.isr, *found.eligible_leader_replicas}
        in_sync = len(have_records - {node_id}) if node_id is not None else len(have_records) - 1
        return OtherReplicas(len(found.replicas), in_sync)

    def index_settings(self, topic: str) -> IndexSettings:
        """Return the topic's settings for indexes: its own, else Kafka's defaults."""
        own = self.configs.get(topic, {})
        default = IndexSettings()
        interval, most = own.get(_INTERVAL, ""), own.get(_INDEX_BYTES, "")
        return IndexSettings(
            int(interval) if interval.isdecimal() else default.interval_bytes,
            int(most) if most.isdecimal() else default.max_bytes,
        )


def read_cluster_topics(disk: Disk, log_directory: str) -> ClusterTopics | None:
    """Read the metadata log of a log directory; return None if there is none. Raises OSError."""
    directory = join_path(log_directory, METADATA_DIRECTORY)
    if not disk.is_directory(directory):
        return None
    remarks = Remarks()
    image = read_metadata_log(disk, read_partition(disk, directory), None, remarks).image
    damage = next((f"{problem.path}: {problem.message}" for problem in remarks.problems), "")
    partitions = {
        (topic.name, number): partition for topic in image.topics.values() for number, partition in topic.partitions.items()
    }
    topics, brokers = image.configs_of("TOPIC"), image.configs_of("BROKER")
    return ClusterTopics(directory, dict(image.topic_ids), topics, brokers, damage, partitions)
