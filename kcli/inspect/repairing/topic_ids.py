"""The topic's id in partition.metadata: restored where the metadata log has it, told where nothing has."""

from __future__ import annotations

from kcli.format import limits
from kcli.format.file_names import FileKind
from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import PartitionMetadata, decode_partition_metadata, encode_partition_metadata
from kcli.format.primitives import FormatError
from kcli.log.disk.planned_disk import PlannedDisk
from kcli.log.disk.port import join_path


def restore_topic_id(planned: PlannedDisk, directory: str, topic_id: Uuid | None, *, is_needed: bool) -> list[tuple[str, str]]:
    """Restore partition.metadata of a partition's directory, in the plan -> remarks as (path, sentence). Raises OSError.

    `topic_id` is what the metadata log says, None where there is none; `is_needed` is True for a KRaft cluster's partition.
    """
    path = join_path(directory, FileKind.PARTITION_METADATA.value)
    present = None
    if planned.exists(path):
        try:
            present = decode_partition_metadata(planned.read_file(path, limits.MAX_TEXT_FILE_BYTES)).topic_id
        except FormatError as error:
            planned.explain(path, error.message)
            planned.remove(path)
    if present is None and topic_id is not None:
        planned.explain(path, "the metadata log has the topic's id")
        planned.write_file(path, encode_partition_metadata(PartitionMetadata(0, topic_id)))
    elif present is None and is_needed:
        return [(path, "partition.metadata is missing, and no metadata log has the topic's id: a broker makes it *-stray")]
    elif present is not None and topic_id is not None and present != topic_id:
        message = f"it has topic id {present}, the metadata log {topic_id}: it is left as it is, the topic may be a deleted one"
        return [(path, message)]
    return []
