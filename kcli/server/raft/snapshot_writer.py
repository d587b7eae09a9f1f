"""Writes a snapshot of the metadata log in time slices, and removes what it makes superfluous (KIP-630).

    step     does
    -------  ----------------------------------------------------------------------------------------------------------
    begin    the header goes into a `.part` file
    slices   SLICE_RECORDS records are appended in each time slice
    end      footer, flush, rename, flush of the directory
    clean    snapshots and segments beyond the retention are renamed, and removed DELETE_DELAY_MS later; this is also checked
             each CLEAN_INTERVAL_MS

A disk error costs the snapshot, not the node: the next one that is due is written. Only if the rename may not be durable, the
raft client stops: nothing may be removed for a snapshot that a loss of power could take away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from kcli.protocol.message import Message
from kcli.server.log_lines import WarningLine
from kcli.server.raft.kafka_raft_client import FlushCallback, KafkaRaftClient
from kcli.server.raft.metadata_batches import SnapshotBatches
from kcli.server.raft.metadata_log import SnapshotId
from kcli.server.timing_wheel import Timer

SLICE_RECORDS = 200
DELETE_DELAY_MS = 60_000
CLEAN_INTERVAL_MS = 60_000


class _Snapshot(NamedTuple):
    """The snapshot that is being written."""

    snapshot_id: SnapshotId
    path: str
    records: Iterator[Message]
    batches: SnapshotBatches


class SnapshotWriter:
    """Writes one snapshot at a time into the metadata log of `raft`."""

    def __init__(
        self,
        raft: KafkaRaftClient,
        timer: Timer,
        flush: Callable[[tuple[str, ...], FlushCallback], object],
        report: Callable[[str], None],
    ) -> None:
        self._raft = raft
        self._timer = timer
        self._flush = flush
        self._report = report
        self._writing: _Snapshot | None = None

    @property
    def is_writing(self) -> bool:
        """True between `begin` and the end of the snapshot, or its failure."""
        return self._writing is not None

    def begin(self, snapshot_id: SnapshotId, last_timestamp_ms: int, records: Iterator[Message], now_ms: int) -> None:
        """Begin a snapshot; `last_timestamp_ms` is the timestamp of the last record that it replaces."""
        history = self._raft.history
        batches = SnapshotBatches(snapshot_id.epoch, self._timer.wall.at(now_ms))
        header = batches.header(
            last_timestamp_ms,
            history.kraft_version_before(snapshot_id.end_offset),
            history.voters_before(snapshot_id.end_offset).values(),
        )
        path, disk = self._raft.log.part_path(snapshot_id), self._raft.log.disk
        self._writing = _Snapshot(snapshot_id, path, records, batches)

        def write_header() -> None:
            if disk.exists(path):
                disk.remove(path)
            disk.append(path, header)

        if self._try(write_header):
            self._timer.schedule(now_ms, self._write_slice)

    def _try(self, work: Callable[[], None]) -> bool:
        """Do something on the disk; return False, and abort the snapshot, if the disk fails."""
        try:
            work()
        except OSError as error:
            self._abort(error)
            return False
        return True

    def _abort(self, error: OSError) -> None:
        if self._writing is not None:
            path, reason = self._writing.path, error.strerror or error
            text = f"{path}: the snapshot cannot be written: {reason}; it will be tried again later"
            self._report(WarningLine(text, path=path, error=reason))
        self._writing = None

    def _write_slice(self, now_ms: int) -> None:
        writing = self._writing
        if writing is None:
            return
        records = list(islice(writing.records, SLICE_RECORDS))
        is_last = len(records) < SLICE_RECORDS
        data = b"".join(writing.batches.batches(records)) + (writing.batches.footer() if is_last else b"")
        disk = self._raft.log.disk
        if not self._try(lambda: disk.append(writing.path, data)):
            return
        if is_last:
            self._flush((writing.path,), self._written)
        else:
            self._timer.schedule(now_ms, self._write_slice)

    def _written(self, error: OSError | None, now_ms: int) -> None:
        writing = self._writing
        if error is not None:
            self._abort(error)
        elif writing is not None and self._try(lambda: self._raft.log.publish_snapshot(writing.snapshot_id)):
            self._flush((self._raft.log.directory,), self._published)

    def _published(self, error: OSError | None, now_ms: int) -> None:
        self._writing = None
        if error is None:
            self._clean(now_ms)
        else:
            # The snapshot has its name, but perhaps not on the device: from now on nothing may be removed because of it.
            self._raft.storage_failed(error, now_ms)

    # ---------------------------------------------------------------------------------------------------------- cleaning

    def schedule_cleaning(self, now_ms: int) -> None:
        """Check for snapshots and segments beyond the retention each CLEAN_INTERVAL_MS."""
        self._timer.schedule(now_ms + CLEAN_INTERVAL_MS, self._clean_and_reschedule)

    def _clean_and_reschedule(self, now_ms: int) -> None:
        self._clean(now_ms)
        self.schedule_cleaning(now_ms)

    def _clean(self, now_ms: int) -> None:
        if self._writing is not None:
            return
        try:
            removable = self._raft.log.clean(self._timer.wall.at(now_ms))
        except OSError as error:
            path, reason = self._raft.log.directory, error.strerror or error
            self._report(WarningLine(f"{path}: cannot delete old snapshots: {reason}", path=path, error=reason))
            return
        if removable:
            self._timer.schedule(now_ms + DELETE_DELAY_MS, lambda at_ms: self._remove(removable))

    def _remove(self, paths: list[str]) -> None:
        disk = self._raft.log.disk
        for path in paths:
            try:
                if disk.exists(path):
                    disk.remove(path)
            except OSError as error:
                reason = error.strerror or error
                self._report(WarningLine(f"{path} cannot be removed: {reason}", path=path, error=reason))
