"""Decides when a snapshot of the committed metadata is written, and of what (KIP-630).

    a snapshot is due                                             by
    ------------------------------------------------------------  ----------------------------------------------------
    this many bytes of records were committed since the last one  metadata.log.max.record.bytes.between.snapshots
    this much time has passed and records were committed          metadata.log.max.snapshot.interval.ms (0: never)

A snapshot starts at the next commit and contains the records up to it. Records that the controller has applied but not
committed are left out. While a metadata transaction is open, no snapshot starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kcli.server.raft.kafka_raft_client import KafkaRaftClient
from kcli.server.raft.messages import SnapshotId
from kcli.server.raft.metadata_batches import MetadataBatch
from kcli.server.raft.snapshot_writer import SnapshotWriter
from kcli.state.image_records import image_records
from kcli.state.metadata_image import MetadataImage


class SnapshotTimes(NamedTuple):
    """When a snapshot is due."""

    max_bytes: int = 20 * 1024 * 1024
    max_interval_ms: int = 60 * 60 * 1000


class SnapshotGenerator:
    """A RaftListener behind the one that keeps the image. `committed_image()` returns a frozen copy of what is committed."""

    def __init__(
        self,
        raft: KafkaRaftClient,
        writer: SnapshotWriter,
        committed_image: Callable[[], MetadataImage],
        times: SnapshotTimes,
    ) -> None:
        self._raft = raft
        self._writer = writer
        self._committed_image = committed_image
        self._times = times
        self._bytes = 0
        self._last_ms: int | None = None

    def on_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        """Count from here: what the snapshot contains is written already."""
        self._bytes = 0

    def on_commit(self, batch: MetadataBatch, now_ms: int) -> None:
        """Count the batch, and begin a snapshot if one is due."""
        if self._last_ms is None:
            self._last_ms = now_ms
            self._writer.schedule_cleaning(now_ms)
        latest = self._raft.log.latest_snapshot
        if latest is not None and batch.last_offset < latest.end_offset:
            return
        self._bytes += batch.size_bytes
        interval_ms = self._times.max_interval_ms
        is_late = interval_ms > 0 and now_ms - self._last_ms >= interval_ms
        if self._writer.is_writing or not (is_late or self._bytes >= self._times.max_bytes):
            return
        image = self._committed_image()
        if image.pending_records is None:
            self._bytes, self._last_ms = 0, now_ms
            snapshot_id = SnapshotId(batch.last_offset + 1, batch.leader_epoch)
            self._writer.begin(snapshot_id, batch.timestamp_ms, image_records(image), now_ms)

    def on_leader_change(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Do nothing: every node writes its own snapshots."""
