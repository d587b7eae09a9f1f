"""The records that a new leader begins with: the first ones of a cluster, or the end of an open metadata transaction.

    the log has      records
    ---------------  ----------------------------------------------------------------------------------------------
    no               those that the format of the storage left (without any: the features of a new cluster); with eligible
    metadata.version leader replicas also a min.insync.replicas of all brokers; from 3.6-IV1 on in a metadata transaction
    an open metadata AbortTransaction
    transaction

The format of Kafka 4.4 leaves them in the snapshot at offset 0 of the metadata log (KAFKA-19648), earlier ones in
bootstrap.checkpoint. These files are read only in the first case. Without its footer a file is incomplete and refused.
"""

from __future__ import annotations

from kcli.format.file_names import METADATA_TOPIC, FileKind, metadata_snapshot_name, partition_directory_name
from kcli.log.disk.port import LogDisk
from kcli.protocol.control_records import SNAPSHOT_FOOTER
from kcli.protocol.message import Message
from kcli.server.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    METADATA_VERSION,
    initial_features,
)
from kcli.server.raft.metadata_batches import bootstrap_records, new_record
from kcli.server.raft.metadata_log import MetadataLogError, read_snapshot_file
from kcli.server.raft.raft_manager import check_features
from kcli.state.metadata_image import MetadataImage

_TRANSACTIONS_SINCE = 13
_BROKER_RESOURCE = 4


def read_bootstrap(disk: LogDisk, directory: str) -> list[Message]:
    """Return the first records of a cluster. Raises MetadataLogError for a damaged file, and OSError."""
    first_snapshot = f"{directory}/{partition_directory_name(METADATA_TOPIC, 0)}/{metadata_snapshot_name(0, 0)}"
    if disk.exists(first_snapshot) and any(batch.records for batch in read_snapshot_file(disk, first_snapshot)):
        return _read_file(disk, first_snapshot)
    path = f"{directory}/{FileKind.BOOTSTRAP_CHECKPOINT}"
    if not disk.exists(path):
        return bootstrap_records(initial_features({}, None, is_dynamic_quorum=False))
    return _read_file(disk, path)


def _read_file(disk: LogDisk, path: str) -> list[Message]:
    """Return the records of a file that the format left. Raises MetadataLogError and OSError."""
    records: list[Message] = []
    has_footer = False
    for batch in read_snapshot_file(disk, path):
        records += batch.records
        has_footer = any(record.type_id == SNAPSHOT_FOOTER for record in batch.control_records)
    if not has_footer or not any(_level_of(record, METADATA_VERSION) for record in records):
        raise MetadataLogError(
            f"{path} is incomplete; format the directory again (kcli format), or remove the file: then the cluster begins "
            "with the features of a new one"
        )
    check_features(path, records)
    return records


def _level_of(record: Message, feature: str) -> int:
    return record.feature_level if record.STRUCT.name == "FeatureLevelRecord" and record.name == feature else 0


def activation_records(image: MetadataImage, disk: LogDisk, directory: str, min_isr: str) -> list[Message]:
    """Return the records that a new leader begins with. Raises MetadataLogError and OSError for those of the format."""
    first = [] if METADATA_VERSION in image.features else read_bootstrap(disk, directory)
    level = image.metadata_version or max(_level_of(record, METADATA_VERSION) for record in first)
    records: list[Message] = []
    if image.pending_records is not None:
        if level < _TRANSACTIONS_SINCE:
            raise MetadataLogError(
                f"the metadata log in {directory} has an open transaction, which its metadata.version {level} does not have; "
                "restore the metadata log from another controller or a backup"
            )
        records.append(new_record("AbortTransactionRecord", reason="another controller leads"))
    if not first:
        return records
    if any(_level_of(record, ELIGIBLE_LEADER_REPLICAS_VERSION) for record in first):
        first.append(
            new_record(
                "ConfigRecord", resource_type=_BROKER_RESOURCE, resource_name="", name="min.insync.replicas", value=min_isr
            )
        )
    if level < _TRANSACTIONS_SINCE:
        return first
    begin = new_record("BeginTransactionRecord", name="Bootstrap records")
    return [*records, begin, *first, new_record("EndTransactionRecord")]
