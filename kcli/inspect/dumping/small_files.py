"""The files of a log directory that are not logs, read as a whole, with their entries.

    file                          type of its entries   fields
    ----------------------------  --------------------  -------------------------------------------------------------
    .index                        offsetIndexEntry      offset, position
    .timeindex                    timeIndexEntry        timestamp, offset
    .txnindex                     abortedTransaction    producerId, firstOffset, lastOffset, lastStableOffset
    .snapshot                     producer              producerId, producerEpoch, coordinatorEpoch,
                                                        currentTxnFirstOffset, firstSequence, lastSequence, lastOffset,
                                                        offsetDelta, lastTimestamp
    leader-epoch-checkpoint       leaderEpoch           epoch, startOffset
    *-offset-checkpoint           partitionOffset       topic, partition, offset
    partition.metadata            partitionMetadata     version, topicId
    meta.properties               metaProperties        version, clusterId, nodeId, directoryId
    .kafka_cleanshutdown          cleanShutdown         version, brokerEpoch
    quorum-state                  quorumState           version, leaderId, leaderEpoch, votedId and, by version, more

A field that a file does not have is null. The name decides, with any suffix (.deleted, .swap, .tmp ...).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kcli.format import limits
from kcli.format.file_names import FileKind, FileName
from kcli.inspect.dumping.renderer import Entry

if TYPE_CHECKING:
    from kcli.format.index_entries import OffsetIndex, TimeIndex
    from kcli.format.producer_snapshot import ProducerEntry
    from kcli.log.disk.port import Disk


class SmallFile(NamedTuple):
    """The contents of a file: entries, faults as (byte, sentence), and remarks that are not damage.

    `preallocated_bytes` are the zeros after the entries of an index: an index of an active segment has 10 MiB by default. An
    index of nothing but zeros has no entry.
    """

    entries: Iterable[Entry]
    faults: tuple[tuple[int, str], ...] = ()
    preallocated_bytes: int = 0
    notes: tuple[str, ...] = ()


def read_small_file(disk: Disk, path: str, name: FileName) -> SmallFile:
    """Read and decode the file at `path`, whose parsed name is `name`.

    Raises FormatError if its bytes are not in the format that the name states, OSError as the disk does.
    """
    reader = _READERS.get(name.kind)
    if reader is None:
        return SmallFile(())
    limit = limits.MAX_INDEX_FILE_BYTES if name.kind in _BINARY_KINDS else limits.MAX_TEXT_FILE_BYTES
    return reader(disk.read_file(path, limit), name.base_offset or 0)


def _offset_index(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.index_entries import OffsetIndex
    from kcli.format.structs import OFFSET_INDEX_ENTRY

    return _index("offsetIndexEntry", data, OffsetIndex.decode(data, base_offset), OFFSET_INDEX_ENTRY.size)


def _time_index(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.index_entries import TimeIndex
    from kcli.format.structs import TIME_INDEX_ENTRY

    return _index("timeIndexEntry", data, TimeIndex.decode(data, base_offset), TIME_INDEX_ENTRY.size)


def _index(entry_type: str, data: bytes, index: OffsetIndex | TimeIndex, entry_bytes: int) -> SmallFile:
    end = len(index) * entry_bytes
    left = len(data) - end
    faults = ((end, f"{left} bytes after the last whole entry"),) if left else ()
    if len(index) > 1 and index.used_entries == 1 and not any(data[:entry_bytes]):
        return SmallFile((), faults, end)  # preallocated and never written to; Kafka's tool prints the first of the zeros
    entries = (Entry(entry_type, entry._asdict()) for entry in index.entries())
    return SmallFile(entries, faults, end - index.used_entries * entry_bytes)


def _transaction_index(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.index_entries import ABORTED_TXN_VERSION, TransactionIndex
    from kcli.format.structs import ABORTED_TXN

    index = TransactionIndex.decode(data, base_offset)
    faults = []
    for slot, txn in enumerate(index.aborted):
        if txn.kafka_version > ABORTED_TXN_VERSION:
            faults.append((slot * ABORTED_TXN.size, f"entry {slot} has version {txn.kafka_version}; version 0 is known"))
    if index.trailing:
        faults.append((len(data) - len(index.trailing), f"{len(index.trailing)} bytes after the last whole entry"))
    entries = (
        Entry(
            "abortedTransaction",
            {
                "producerId": txn.producer_id,
                "firstOffset": txn.first_offset,
                "lastOffset": txn.last_offset,
                "lastStableOffset": txn.last_stable_offset,
            },
        )
        for txn in index.aborted
    )
    return SmallFile(entries, tuple(faults))


def _producer_snapshot(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.producer_snapshot import decode_producer_snapshot

    snapshot = decode_producer_snapshot(data)
    faults = ((len(data) - len(snapshot.trailing), f"{len(snapshot.trailing)} bytes after the last entry"),)
    return SmallFile(_producers(snapshot.entries), faults if snapshot.trailing else ())


def _producers(entries: Iterable[ProducerEntry]) -> Iterator[Entry]:
    for entry in entries:
        has_batch = entry.has_batch
        yield Entry(
            "producer",
            {
                "producerId": entry.producer_id,
                "producerEpoch": entry.producer_epoch,
                "coordinatorEpoch": entry.coordinator_epoch,
                "currentTxnFirstOffset": entry.open_txn_first_offset,
                "firstSequence": entry.first_sequence if has_batch else None,
                "lastSequence": entry.last_sequence if has_batch else None,
                "lastOffset": entry.last_offset if has_batch else None,
                "offsetDelta": entry.offset_delta if has_batch else None,
                "lastTimestamp": entry.timestamp,
            },
        )


def _offset_checkpoint(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.checkpoint import decode_offset_checkpoint

    return SmallFile([Entry("partitionOffset", entry._asdict()) for entry in decode_offset_checkpoint(data).entries])


def _leader_epochs(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.checkpoint import decode_leader_epochs

    entries = decode_leader_epochs(data).entries
    return SmallFile([Entry("leaderEpoch", {"epoch": entry.epoch, "startOffset": entry.start_offset}) for entry in entries])


def _partition_metadata(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.metadata_files import decode_partition_metadata

    metadata = decode_partition_metadata(data)
    return SmallFile([Entry("partitionMetadata", {"version": metadata.version, "topicId": str(metadata.topic_id)})])


def _meta_properties(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.metadata_files import decode_meta_properties

    meta = decode_meta_properties(data)
    directory_id = None if meta.directory_id is None else str(meta.directory_id)
    fields = {"version": meta.version, "clusterId": meta.cluster_id, "nodeId": meta.node_id, "directoryId": directory_id}
    return SmallFile([Entry("metaProperties", fields)])


def _clean_shutdown(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.metadata_files import decode_clean_shutdown

    clean = decode_clean_shutdown(data)
    if clean.version is None:
        return SmallFile((), notes=("the file is empty, as brokers before KRaft leave it",))
    return SmallFile([Entry("cleanShutdown", {"version": clean.version, "brokerEpoch": clean.broker_epoch})])


def _quorum_state(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.metadata_files import decode_quorum_state

    state = decode_quorum_state(data)
    fields: dict[str, object] = {
        "version": state.version,
        "leaderId": state.leader_id,
        "leaderEpoch": state.leader_epoch,
        "votedId": state.voted_id,
    }
    if state.version:
        fields["votedDirectoryId"] = str(state.voted_directory_id)
    else:
        voters = None if state.current_voters is None else list(state.current_voters)
        fields |= {"clusterId": state.cluster_id, "appliedOffset": state.applied_offset, "currentVoters": voters}
    return SmallFile([Entry("quorumState", fields)])


_BINARY_KINDS = frozenset((FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX, FileKind.PRODUCER_SNAPSHOT))
_READERS: dict[FileKind, Callable[[bytes, int], SmallFile]] = {
    FileKind.INDEX: _offset_index,
    FileKind.TIME_INDEX: _time_index,
    FileKind.TXN_INDEX: _transaction_index,
    FileKind.PRODUCER_SNAPSHOT: _producer_snapshot,
    FileKind.LEADER_EPOCH_CHECKPOINT: _leader_epochs,
    FileKind.RECOVERY_POINT_CHECKPOINT: _offset_checkpoint,
    FileKind.LOG_START_OFFSET_CHECKPOINT: _offset_checkpoint,
    FileKind.REPLICATION_CHECKPOINT: _offset_checkpoint,
    FileKind.CLEANER_CHECKPOINT: _offset_checkpoint,
    FileKind.PARTITION_METADATA: _partition_metadata,
    FileKind.META_PROPERTIES: _meta_properties,
    FileKind.CLEAN_SHUTDOWN: _clean_shutdown,
    FileKind.QUORUM_STATE: _quorum_state,
}
