"""What a repair does to the files of a partition other than its .log.

    file                        what a repair does
    --------------------------  ----------------------------------------------------------------------------------------------
    indexes, snapshots          rebuilt by Kafka's recovery; if the old file is sound, it stays
    leader-epoch-checkpoint     the same, and rebuilt from the batches where the two contradict each other
    partition.metadata          restored if the metadata log has the topic id, else a remark

Kafka's recovery rebuilds every index and snapshot from the present contents of the log. The files of a running broker may know
more: index entries at other batches, aborted transactions whose records the cleaner has removed since, producers whose batches
it has removed. So the old files are put back, the result is verified, and only files with findings are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcli.format import limits
from kcli.format.checkpoint import decode_leader_epochs, encode_leader_epochs
from kcli.format.file_names import FileKind, FileState, parse_file_name
from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import PartitionMetadata, decode_partition_metadata, encode_partition_metadata
from kcli.format.primitives import FormatError
from kcli.inspect.repairing.holes import Remark
from kcli.inspect.repairing.salvage import KeptEpoch
from kcli.inspect.verification.evidence import is_being_deleted, read_epochs
from kcli.inspect.verification.facts import PartitionOptions
from kcli.inspect.verification.findings import Finding, serious
from kcli.inspect.verification.partition_verifier import verify_partition
from kcli.inspect.verification.small_file_checks import start_is_moved
from kcli.log.disk.planned_disk import REMOVE, TRUNCATE, WRITE, Change, Content, PlannedDisk
from kcli.log.disk.port import base_name, join_path
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache
from kcli.log.files.log_directory import read_partition

_REBUILT_KINDS = (
    FileKind.INDEX,
    FileKind.TIME_INDEX,
    FileKind.TXN_INDEX,
    FileKind.PRODUCER_SNAPSHOT,
    FileKind.LEADER_EPOCH_CHECKPOINT,
)
_LOG_SUFFIX = ".log"
_INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")


def keep_sound_files(planned: PlannedDisk, directory: str, log_start_offset: int) -> None:
    """Remove the changes of sound files from the plan for a partition's directory. Raises OSError."""
    rebuilt: dict[str, Content | None] = {}
    for change in planned.changes():
        if _replaces_rebuilt_kind(change):
            rebuilt[change.path] = planned.content(change.path) if planned.exists(change.path) else None
    if not rebuilt:
        return
    for path in rebuilt:
        planned.restore(path)
    # After a clean stop a broker would read preallocated zeros as entries: such an index is not sound.
    options = PartitionOptions(is_clean=True, log_start_offset=log_start_offset)
    result = verify_partition(planned, read_partition(planned, directory), options)
    unsound = {_file_at_fault(finding) for finding in serious(result.findings)}
    for path in unsound.intersection(rebuilt):
        content = rebuilt[path]
        if content is None:
            planned.remove(path)
        else:
            planned.put(path, content)


def _file_at_fault(finding: Finding) -> str:
    """Return the file of a finding; an entry that an index lacks is reported at its place in the segment."""
    suffix = "." + finding.code.partition("-")[0]
    if suffix in _INDEX_SUFFIXES and finding.file.endswith(_LOG_SUFFIX):
        return finding.file.removesuffix(_LOG_SUFFIX) + suffix
    return finding.file


def _replaces_rebuilt_kind(change: Change) -> bool:
    name = parse_file_name(base_name(change.path))
    replaces = change.kind in (REMOVE, TRUNCATE) or (change.kind == WRITE and change.replaces)
    return replaces and name.kind in _REBUILT_KINDS and name.state is FileState.CURRENT and name.is_regular


def rebuild_epochs(planned: PlannedDisk, directory: str, runs: Sequence[KeptEpoch]) -> None:
    """Write leader-epoch-checkpoint again if it and the batches contradict each other."""
    path = join_path(directory, FileKind.LEADER_EPOCH_CHECKPOINT.value)
    if not planned.exists(path):
        why = "it is missing"
    else:
        try:
            entries = decode_leader_epochs(planned.read_file(path, limits.MAX_TEXT_FILE_BYTES)).entries
            cache = LeaderEpochFileCache(entries)
        except FormatError as error:
            why = error.message
        else:
            # If deleted records have moved the first entry, offsets before it are not compared.
            ranges = [(run.epoch, run.first_offset, run.last_offset) for run in runs]
            moved = entries[0].start_offset if start_is_moved(entries, ranges) else 0
            compared = [(epoch, max(first, moved), last) for epoch, first, last in ranges if last >= moved]
            if cache.entries == entries and all(
                cache.epoch_for_offset(first) == epoch == cache.epoch_for_offset(last) for epoch, first, last in compared
            ):
                return
            why = "the batches have other leader epochs"
    rebuilt = LeaderEpochFileCache()
    for run in runs:
        if rebuilt.latest_epoch is None or run.epoch > rebuilt.latest_epoch:
            rebuilt.assign(run.epoch, run.first_offset)
    planned.explain(path, why)
    planned.write_file(path, encode_leader_epochs(rebuilt.entries) if runs else b"")


def begin_epochs_at(planned: PlannedDisk, directory: str, start_offset: int) -> None:
    """Let leader-epoch-checkpoint begin at `start_offset` if a broker was deleting the segments before it.

    A repair removes their *.deleted files; with the old entries, segments would seem to be missing.
    """
    entries = read_epochs(planned, read_partition(planned, directory))
    is_later = bool(entries) and entries[0].start_offset < start_offset
    if is_later and is_being_deleted(read_partition(planned.disk, directory), start_offset):
        moved = LeaderEpochFileCache(entries)
        moved.truncate_from_start(start_offset)
        path = join_path(directory, FileKind.LEADER_EPOCH_CHECKPOINT.value)
        planned.explain(path, f"a broker was deleting the segments before offset {start_offset}")
        planned.write_file(path, encode_leader_epochs(moved.entries))


def restore_topic_id(planned: PlannedDisk, directory: str, topic_id: Uuid | None, *, is_needed: bool) -> list[Remark]:
    """Restore partition.metadata of a partition's directory, in the plan. Raises OSError.

    `topic_id` is that of the metadata log, None if there is none; `is_needed` is True for a KRaft cluster's partition.
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
        message = (
            "partition.metadata is missing, and no metadata log has the topic's id: a broker renames the partition to *-stray"
        )
        return [Remark(path, message)]
    elif present is not None and topic_id is not None and present != topic_id:
        message = f"it has topic id {present}, the metadata log {topic_id}: it is left as it is, the topic may be a deleted one"
        return [Remark(path, message)]
    return []
