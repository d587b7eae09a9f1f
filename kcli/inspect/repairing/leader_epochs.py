"""The leader epochs that a repaired log has: leader-epoch-checkpoint is the batches' where the two contradict each other."""

from __future__ import annotations

from collections.abc import Sequence

from kcli.format import limits
from kcli.format.checkpoint import decode_leader_epochs, encode_leader_epochs
from kcli.format.file_names import FileKind
from kcli.format.primitives import FormatError
from kcli.inspect.repairing.salvage import EpochRun
from kcli.inspect.verification.epochs import start_is_moved
from kcli.inspect.verification.evidence import is_being_deleted, read_epochs
from kcli.log.disk.planned_disk import PlannedDisk
from kcli.log.disk.port import join_path
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache
from kcli.log.files.log_directory import read_partition


def rebuild_epochs(planned: PlannedDisk, directory: str, runs: Sequence[EpochRun]) -> None:
    """Write leader-epoch-checkpoint anew where it and the batches contradict each other."""
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
            # Offsets below the first entry are not asked where deleted records have moved it.
            ranges = [(run.epoch, run.first_offset, run.last_offset) for run in runs]
            moved = entries[0].start_offset if start_is_moved(entries, ranges) else 0
            asked = [(epoch, max(first, moved), last) for epoch, first, last in ranges if last >= moved]
            if cache.entries == entries and all(
                cache.epoch_for_offset(first) == epoch == cache.epoch_for_offset(last) for epoch, first, last in asked
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
    """Let leader-epoch-checkpoint begin at `start_offset` where a broker was deleting the segments before it.

    Without their *.deleted files, which go, segments would seem to be missing.
    """
    entries = read_epochs(planned, read_partition(planned, directory))
    is_later = bool(entries) and entries[0].start_offset < start_offset
    if is_later and is_being_deleted(read_partition(planned.disk, directory), start_offset):
        moved = LeaderEpochFileCache(entries)
        moved.truncate_from_start(start_offset)
        path = join_path(directory, FileKind.LEADER_EPOCH_CHECKPOINT.value)
        planned.explain(path, f"a broker was deleting the segments before offset {start_offset}")
        planned.write_file(path, encode_leader_epochs(moved.entries))
