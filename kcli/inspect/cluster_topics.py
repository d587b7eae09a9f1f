"""What the cluster's metadata log, beside the partitions in one log directory, says about topics: their ids and settings.

A repair needs no more of it: the id for a partition.metadata that was lost, and index.interval.bytes for indexes that are
built anew. Records of other kinds are not looked at, and what cannot be read is passed over: half an answer is better here
than none, and the damage itself is told where the metadata log is verified.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.file_names import METADATA_TOPIC
from kcli.format.kafka_uuid import Uuid
from kcli.format.record_batch import RecordBatch
from kcli.log.disk import Disk
from kcli.log.indexes import IndexSettings
from kcli.log.log_directory import join_path, read_partition
from kcli.log.log_reader import LogBatch, SegmentReader
from kcli.log.record_windows import RecordScanner
from kcli.protocol.errors import MessageError
from kcli.protocol.internal_records import decoder_for_topic
from kcli.state.errors import StateError
from kcli.state.metadata_image import MetadataImage

METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"
_RECORDS = frozenset(
    (
        "TopicRecord",
        "RemoveTopicRecord",
        "ConfigRecord",
        "BeginTransactionRecord",
        "EndTransactionRecord",
        "AbortTransactionRecord",
    )
)
_INTERVAL = "index.interval.bytes"
_INDEX_BYTES = "segment.index.bytes"
_TOPIC = "TOPIC"


class ClusterTopics(NamedTuple):
    """Topic ids by name, and the settings that a topic has of its own, by topic and setting."""

    ids: dict[str, Uuid]
    configs: dict[str, dict[str, str]]

    def index_settings(self, topic: str) -> IndexSettings:
        """The settings that the topic's indexes depend on: its own, else Kafka's defaults."""
        own = self.configs.get(topic, {})
        default = IndexSettings()
        interval, most = own.get(_INTERVAL, ""), own.get(_INDEX_BYTES, "")
        return IndexSettings(
            int(interval) if interval.isdecimal() else default.interval_bytes,
            int(most) if most.isdecimal() else default.max_bytes,
        )


def read_cluster_topics(disk: Disk, log_directory: str) -> ClusterTopics | None:
    """Read the metadata log of a log directory -> ClusterTopics, None where there is none. Raises OSError."""
    directory = join_path(log_directory, METADATA_DIRECTORY)
    if not disk.is_directory(directory):
        return None
    image = MetadataImage()
    found = read_partition(disk, directory)
    start_offset = 0
    if found.metadata_snapshots:
        newest = max(found.metadata_snapshots, key=lambda snapshot: snapshot.base_offset)
        _apply(disk, newest.path, image, 0)
        start_offset = newest.base_offset
    for segment in found.segments:
        _apply(disk, segment.log, image, start_offset)
    configs = {resource.name: own for resource, own in image.configs.items() if resource.type == _TOPIC}
    return ClusterTopics(dict(image.topic_ids), configs)


def _apply(disk: Disk, path: str, image: MetadataImage, start_offset: int) -> None:
    decoder = decoder_for_topic(METADATA_TOPIC)
    assert decoder is not None
    scanner = RecordScanner()
    with SegmentReader(disk, path) as reader:
        for batch in reader.batches():
            if not isinstance(batch, LogBatch) or not isinstance(batch.header, RecordBatch):
                continue
            if not batch.is_valid or batch.header.is_control or batch.header.last_offset < start_offset:
                continue
            for window in batch.windows(scanner):
                for index in range(window.count):
                    if window.columns.offset[index] < start_offset and start_offset:
                        continue
                    try:
                        _, message = decoder.decode(window.key(index), window.value(index))
                        if message is not None and message.STRUCT.name in _RECORDS:
                            image.apply(message)
                    except (MessageError, StateError):
                        continue
