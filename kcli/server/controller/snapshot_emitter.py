"""Writes snapshots of the metadata while it goes on changing, and lets go of what they stand for (KIP-630).

    a snapshot is due                                             by
    ------------------------------------------------------------  ----------------------------------------------------
    so many bytes of records were committed since the last one    metadata.log.max.record.bytes.between.snapshots
    so much time has passed and anything was committed            metadata.log.max.snapshot.interval.ms (0: never)

    step     does
    -------  ----------------------------------------------------------------------------------------------------------
    begin    at a commit with nothing behind it in the log: the image is then what the log says up to there; it is frozen
    slices   SLICE_RECORDS records go into a `.part` file, and again when all else that was to be done is done
    end      footer, flush, rename, flush of the directory; then snapshots and segments beyond the retention are renamed
             and removed DELETE_DELAY_MS later

A disk that fails costs the snapshot, not the node: it is tried again when the next one is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from kcli.protocol.message import Message
from kcli.server.log_lines import WarningLine
from kcli.server.raft.kafka_raft_client import FlushCallback, KafkaRaftClient
from kcli.server.raft.metadata_batches import MetadataBatch, SnapshotBatches
from kcli.server.raft.metadata_log import SnapshotId
from kcli.server.timing_wheel import Timer
from kcli.state.image_records import image_records
from kcli.state.metadata_image import MetadataImage

SLICE_RECORDS = 200
DELETE_DELAY_MS = 60_000
CLEAN_INTERVAL_MS = 60_000


class SnapshotTimes(NamedTuple):
    """When a snapshot is due."""

    max_bytes: int = 20 * 1024 * 1024
    max_interval_ms: int = 60 * 60 * 1000


class _Writing(NamedTuple):
    """A snapshot that is being written."""

    snapshot: SnapshotId
    path: str
    records: Iterator[Message]
    batches: SnapshotBatches


class SnapshotEmitter:
    """A listener of the raft client, behind the one that keeps the image which `image()` gives."""

    def __init__(
        self,
        raft: KafkaRaftClient,
        image: Callable[[], MetadataImage],
        times: SnapshotTimes,
        timer: Timer,
        flush: Callable[[tuple[str, ...], FlushCallback], object],
        tell: Callable[[str], None],
    ) -> None:
        self._raft = raft
        self._image = image
        self._times = times
        self._timer = timer
        self._flush = flush
        self._tell = tell
        self._bytes = 0
        self._has_records = False
        self._last_ms: int | None = None
        self._writing: _Writing | None = None

    def on_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        """What a snapshot holds counts as written already."""

    def on_commit(self, batch: MetadataBatch, now_ms: int) -> None:
        """Count, and begin a snapshot where one is due."""
        if self._last_ms is None:
            self._last_ms = now_ms
            self._schedule_cleaning(now_ms)
        latest = self._raft.log.latest_snapshot
        if latest is not None and batch.last_offset < latest.end_offset:
            return
        self._bytes += batch.size_bytes
        self._has_records = True
        self._begin_if_due(batch, now_ms)

    def on_leader_change(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Every node writes its own snapshots, whoever leads."""

    def _begin_if_due(self, batch: MetadataBatch, now_ms: int) -> None:
        interval_ms = self._times.max_interval_ms
        is_late = interval_ms > 0 and now_ms - (self._last_ms or 0) >= interval_ms and self._has_records
        if self._writing is not None or not (is_late or self._bytes >= self._times.max_bytes):
            return
        image = self._image()
        if self._raft.is_quiet and image.pending_records is None:
            self.begin(SnapshotId(batch.last_offset + 1, batch.leader_epoch), batch.timestamp_ms, now_ms)

    def begin(self, snapshot: SnapshotId, last_timestamp_ms: int, now_ms: int) -> None:
        """Begin to write a snapshot of the image as it is now."""
        self._bytes, self._has_records, self._last_ms = 0, False, now_ms
        history = self._raft.history
        batches = SnapshotBatches(snapshot.epoch, self._timer.wall.at(now_ms))
        header = batches.header(
            last_timestamp_ms,
            history.kraft_version_before(snapshot.end_offset),
            history.voters_before(snapshot.end_offset).values(),
        )
        path = self._raft.log.part_path(snapshot)
        self._writing = _Writing(snapshot, path, image_records(self._image().frozen()), batches)
        disk = self._raft.log.disk

        def write_header() -> None:
            if disk.exists(path):
                disk.remove(path)
            disk.append(path, header)

        if self._guarded(write_header):
            self._timer.schedule(now_ms, self._step)

    def _guarded(self, work: Callable[[], None]) -> bool:
        """Do something on the disk -> whether it could be done; where not, the snapshot is given up."""
        try:
            work()
        except OSError as error:
            self._give_up(error)
            return False
        return True

    def _give_up(self, error: OSError) -> None:
        if self._writing is not None:
            reason = error.strerror or error
            text = f"{self._writing.path}: the snapshot cannot be written: {reason}; it is tried again later"
            self._tell(WarningLine(text, path=self._writing.path, error=reason))
        self._writing = None

    def _step(self, now_ms: int) -> None:
        writing = self._writing
        if writing is None:
            return
        records = list(islice(writing.records, SLICE_RECORDS))
        is_last = len(records) < SLICE_RECORDS
        data = b"".join(writing.batches.batches(records)) + (writing.batches.footer() if is_last else b"")
        disk = self._raft.log.disk
        if not self._guarded(lambda: disk.append(writing.path, data)):
            return
        if is_last:
            self._flush((writing.path,), self._written)
        else:
            self._timer.schedule(now_ms, self._step)

    def _written(self, error: OSError | None, now_ms: int) -> None:
        writing = self._writing
        if writing is None or error is not None:
            if error is not None:
                self._give_up(error)
            return
        if self._guarded(lambda: self._raft.log.publish_snapshot(writing.snapshot)):
            self._flush((self._raft.log.directory,), self._published)

    def _published(self, error: OSError | None, now_ms: int) -> None:
        self._writing = None
        if error is None:
            self._clean(now_ms)
        else:
            # The snapshot stands under its name, but the device may not have it: nothing may be let go of for it any more.
            self._raft.storage_failed(error, now_ms)

    # ---------------------------------------------------------------------------------------------------------- cleaning

    def _schedule_cleaning(self, now_ms: int) -> None:
        self._timer.schedule(now_ms + CLEAN_INTERVAL_MS, self._clean_again)

    def _clean_again(self, now_ms: int) -> None:
        self._clean(now_ms)
        self._schedule_cleaning(now_ms)

    def _clean(self, now_ms: int) -> None:
        if self._writing is not None:
            return
        try:
            removable = self._raft.log.clean(self._timer.wall.at(now_ms))
        except OSError as error:
            path, reason = self._raft.log.directory, error.strerror or error
            self._tell(WarningLine(f"{path}: old snapshots cannot be let go of: {reason}", path=path, error=reason))
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
                self._tell(WarningLine(f"{path} cannot be removed: {reason}", path=path, error=reason))
