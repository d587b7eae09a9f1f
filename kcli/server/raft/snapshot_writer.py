"""Writes a snapshot of the metadata log in time slices, and removes what it makes superfluous (KIP-630).

    step     does
    -------  ----------------------------------------------------------------------------------------------------------
    begin    the header goes into a `.part` file
    slices   SLICE_RECORDS records are appended in each time slice
    end      footer, flush, rename, flush of the directory
    clean    snapshots and segments beyond the retention are renamed, and removed DELETE_DELAY_MS later; this is also checked
             each CLEAN_INTERVAL_MS

A disk error costs the snapshot, not the node: its part file is removed, and the next one that is due is written. Only if the
rename may not be durable, the raft client stops: nothing may be removed for a snapshot that a loss of power could take away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from kcli.network.timing_wheel import Timer
from kcli.protocol.message import Message
from kcli.server.log_lines import WarningLine
from kcli.server.raft.kafka_raft_client import KafkaRaftClient
from kcli.server.raft.messages import SnapshotId
from kcli.server.raft.metadata_batches import SnapshotBatches
from kcli.server.scheduler import Scheduler, Work

SLICE_RECORDS = 200
DELETE_DELAY_MS = 60_000
CLEAN_INTERVAL_MS = 60_000


class SnapshotWriter:
    """Writes one snapshot at a time into the metadata log of `raft`."""

    def __init__(self, raft: KafkaRaftClient, timer: Timer, scheduler: Scheduler, report: Callable[[str], None]) -> None:
        self._raft = raft
        self._timer = timer
        self._scheduler = scheduler
        self._report = report
        self.is_writing = False

    def begin(self, snapshot_id: SnapshotId, last_timestamp_ms: int, records: Iterator[Message], now_ms: int) -> None:
        """Begin a snapshot; `last_timestamp_ms` is the timestamp of the last record that it replaces."""
        self.is_writing = True
        self._scheduler.run(self._write(snapshot_id, last_timestamp_ms, records), now_ms)

    def _write(self, snapshot_id: SnapshotId, last_timestamp_ms: int, records: Iterator[Message]) -> Work:
        """Write the snapshot and delete what it replaces; a task of the scheduler."""
        log = self._raft.log
        path = log.part_path(snapshot_id)
        try:
            yield from self._write_part(path, snapshot_id, last_timestamp_ms, records)
            yield (path,)
            if snapshot_id.end_offset < log.start_offset:
                # The leader's log began behind it, and a later snapshot of the leader was loaded while this one was written.
                log.disk.remove(path)
                self.is_writing = False
                return
            size_bytes = log.disk.size(path)
            log.publish_snapshot(snapshot_id)
        except OSError as error:
            self.is_writing = False
            reason = error.strerror or error
            text = f"{path}: the snapshot cannot be written: {reason}; it will be tried again later"
            self._report(WarningLine(text, path=path, error=reason))
            # Later snapshots have other names: what was written would fill the disk until the next start.
            self._remove([path])
            return
        try:
            yield (log.directory,)
        except OSError as error:
            # The snapshot has its name, but perhaps not on the device: from now on nothing may be removed because of it.
            self.is_writing = False
            self._raft.storage_failed(error, self._scheduler.now_ms)
            return
        self.is_writing = False
        self._raft.metrics.snapshot_made(size_bytes, self._scheduler.now_ms)
        self._clean(self._scheduler.now_ms)

    def _write_part(
        self, path: str, snapshot_id: SnapshotId, last_timestamp_ms: int, records: Iterator[Message]
    ) -> Iterator[None]:
        """Write the snapshot under the name that it has until it is complete."""
        history, disk = self._raft.core.history, self._raft.log.disk
        batches = SnapshotBatches(snapshot_id.epoch, self._timer.wall.at(self._scheduler.now_ms))
        header = batches.header(
            last_timestamp_ms,
            history.kraft_version_before(snapshot_id.end_offset),
            history.voters_before(snapshot_id.end_offset),
        )
        if disk.exists(path):
            disk.remove(path)
        disk.append(path, header)
        is_last = False
        while not is_last:
            yield
            made = list(islice(records, SLICE_RECORDS))
            is_last = len(made) < SLICE_RECORDS
            disk.append(path, b"".join(batches.batches(made)) + (batches.footer() if is_last else b""))

    # ---------------------------------------------------------------------------------------------------------- cleaning

    def schedule_cleaning(self, now_ms: int) -> None:
        """Check for snapshots and segments beyond the retention each CLEAN_INTERVAL_MS."""
        self._timer.schedule(now_ms + CLEAN_INTERVAL_MS, self._clean_and_reschedule)

    def _clean_and_reschedule(self, now_ms: int) -> None:
        self._clean(now_ms)
        self.schedule_cleaning(now_ms)

    def _clean(self, now_ms: int) -> None:
        if self.is_writing:
            return
        try:
            removable = self._raft.log.clean(self._timer.wall.at(now_ms))
        except OSError as error:
            path, reason = self._raft.log.directory, error.strerror or error
            self._report(WarningLine(f"{path}: cannot delete old snapshots: {reason}", path=path, error=reason))
            return
        if removable:
            self._raft.core.log_was_cleaned()
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
