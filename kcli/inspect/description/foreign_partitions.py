"""Partitions of another topic with the same name, which are not joined with the topic. The topic ids show which they are.

    id of the topic               a partition with another id in partition.metadata
    ----------------------------  --------------------------------------------------------------------------------------
    in the metadata               is of a topic that was deleted since, or of another cluster
    not in the metadata, or       is of another topic than the partition of that name which was given first
      there is no metadata

Such a partition is a problem, and is shown with its own topic id. It has no leader, replicas or settings, and does not count
for the topic or for the lag of a group. If neither partition.metadata nor the metadata has an id, this is not checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcli.format.file_names import FileKind
from kcli.inspect.description.partition_log import Logs
from kcli.log.files.log_dir_owner import topic_id_conflict

if TYPE_CHECKING:
    from kcli.format.kafka_uuid import Uuid
    from kcli.inspect.description.describe_options import DescribeOptions
    from kcli.inspect.description.metadata_view import MetadataView


def set_foreign_aside(logs: Logs, metadata: MetadataView | None, options: DescribeOptions) -> None:
    """Exclude the partitions of other topics from joins, each with a problem that has both ids and both files."""
    ids: dict[str, tuple[str, Uuid]] = {}
    for replica in logs.sources.current_replicas():
        topic = replica.directory.topic
        topic_id = logs.of(replica).topic_id if options.wants_topic(topic) else None
        path = replica.directory.file(FileKind.PARTITION_METADATA)
        if topic_id is None or path is None:
            continue
        known = None if metadata is None or metadata.is_bootstrap else metadata.image.topic(topic)
        if known is not None and metadata is not None:
            ids.setdefault(topic, (metadata.path, known.topic_id))
        other_path, other_id = ids.setdefault(topic, (path, topic_id))
        if topic_id != other_id:
            logs.sources.set_aside(replica)
            logs.remarks.problem(
                replica.directory.path,
                f"{topic_id_conflict(topic, path, topic_id, other_path, other_id)}: the partition is of another topic of that "
                "name, deleted since or of another cluster, and is joined with nothing; describe it by itself",
            )
