"""Compares leader-epoch-checkpoint with the leader epochs of the batches.

    in the file                  is sound if
    ---------------------------  ---------------------------------------------------------------------------------------
    entry (epoch, start offset)  both ascend from entry to entry; the start is not after the log's end
    the epoch at the offset of   the batch has it; batches below the log start offset and those without an epoch
      a batch                      (formats 0 and 1) are not compared
    no file                      no batch has an epoch

The first entry of a sound file may start inside of its epoch's batches: a broker moves it when records are deleted. If the
checkpointed log start offset is below it, the checkpoint has lost the offset: the file is right, and earlier batches are not
compared.

An epoch in which nothing was written has no batch; the last entry of a sound log may start exactly at the log's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from kcli.format.checkpoint import EpochStart, decode_leader_epochs
from kcli.inspect.verification.facts import EpochRun
from kcli.inspect.verification.findings import FindingList
from kcli.inspect.verification.small_file_checks import read_decoded
from kcli.log.disk.port import Disk
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache


def check_leader_epochs(
    disk: Disk,
    path: str | None,
    directory: str,
    runs: Sequence[tuple[str, EpochRun]],
    log_start_offset: int,
    log_end_offset: int,
    findings: FindingList,
    *,
    is_live: bool,
    is_start_known: bool,
) -> None:
    """Check the file at `path` (None: there is none) of a partition's `directory`.

    `runs` are the batches' epochs in the order of the log, each with the path of its segment. With `is_live` the log may have
    grown since the file was read; without `is_start_known` the log may start after `log_start_offset`.
    """
    known = [(log, run) for log, run in runs if run.epoch >= 0]
    if path is None:
        if known and not is_live:
            message = f"the file is missing; the batches have leader epochs up to {known[-1][1].epoch}"
            findings.add("leader-epoch-missing", directory, message)
        return
    entries = read_decoded(disk, path, _decode, "checkpoint-corrupt", findings)
    if entries is None:
        return
    for slot, (before, after) in enumerate(pairwise(entries), 1):
        if after.epoch <= before.epoch or after.start_offset <= before.start_offset:
            findings.add(
                "leader-epoch-order",
                path,
                f"entry {slot} is epoch {after.epoch} from offset {after.start_offset} on, after epoch {before.epoch} from "
                f"offset {before.start_offset} on",
            )
    for entry in entries:
        if entry.start_offset > log_end_offset and not is_live:
            message = f"epoch {entry.epoch} starts at offset {entry.start_offset}; the log ends at {log_end_offset}"
            findings.add("leader-epoch-beyond-end", path, message, offset=entry.start_offset)
    # The last batch of a run ends where the next run begins, or with the log.
    ends = [*(run.first_offset for _, run in known[1:]), log_end_offset]
    ranges = [(run.epoch, run.first_offset, end - 1) for (_, run), end in zip(known, ends, strict=False)]
    is_moved = start_is_moved(entries, ranges)
    if is_moved and is_start_known and log_start_offset < entries[0].start_offset and not is_live:
        start = entries[0].start_offset
        message = f"the first leader epoch starts at offset {start}, where the log probably started; a broker starts it at "
        message += f"offset {log_start_offset}, and the records below {start} can be read again"
        findings.add("log-start-behind", path, message, offset=log_start_offset)
    if entries and (is_moved or not is_start_known):
        log_start_offset = max(log_start_offset, entries[0].start_offset)
    _compare(entries, known, path, log_start_offset, findings, is_live=is_live)


def start_is_moved(entries: Sequence[EpochStart], runs: Iterable[tuple[int, int, int]]) -> bool:
    """Return True if the first of `entries` starts inside of the batches of its epoch: the records before it were deleted.

    `runs` are the batches' epochs as (epoch, first offset, last offset).
    """
    if not entries:
        return False
    start = entries[0].start_offset
    return any(epoch == entries[0].epoch and first < start <= last for epoch, first, last in runs)


def _decode(data: bytes) -> tuple[EpochStart, ...]:
    """Decode a leader-epoch-checkpoint. Raises FormatError, also for entries that a broker does not load."""
    entries = decode_leader_epochs(data).entries
    LeaderEpochFileCache(entries)
    return entries


def _compare(
    entries: tuple[EpochStart, ...],
    known: Sequence[tuple[str, EpochRun]],
    path: str,
    log_start_offset: int,
    findings: FindingList,
    *,
    is_live: bool,
) -> None:
    """Check that the file has the epoch of each run for its first and its last batch."""
    cache = LeaderEpochFileCache(entries)
    for log, run in known:
        for offset in (run.first_offset, run.last_base_offset):
            if offset < log_start_offset:
                continue
            stored = cache.epoch_for_offset(offset)
            if stored == run.epoch or (is_live and run.epoch > (-1 if cache.latest_epoch is None else cache.latest_epoch)):
                continue
            what = "no epoch" if stored is None else f"epoch {stored}"
            message = f"the file has {what} for offset {offset}; the batch there, in {log}, has {run.epoch}"
            findings.add("leader-epoch-mismatch", path, message, offset=offset)
            break
