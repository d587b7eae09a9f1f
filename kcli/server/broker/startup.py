"""The start and the end of a broker, step by step; no step waits.

step                  the next one follows when
--------------------  --------------------------------------------------------------------------------------------
follow the metadata   the raft client has delivered what the leader had committed when it was first asked
load the logs         the last slice is done (kcli.log.log_manager)
publish               partitions that the metadata names and that have no directory yet are created
register              the controller has registered the broker and unfenced it
ready
release               the controller approves the shutdown, or does not answer in time, and pending changes of the metadata are
                      applied
close the logs        the last slice is done: checkpoints, snapshots, the mark of a clean stop; requests of clients are not
                      taken any more. Logs that were not all loaded stay unchanged, for the next start
stopped

A broker that is not ready NOT_READY_MS after its start logs what it waits for, and again every NOT_READY_MS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kcli.format.kafka_uuid import Uuid
from kcli.log.errors import TieredStorageError
from kcli.network.timing_wheel import TimerTask
from kcli.server.log_lines import WarningLine
from kcli.server.raft.kafka_raft_client import RaftListener
from kcli.server.raft.messages import SnapshotId
from kcli.server.raft.metadata_batches import MetadataBatch

if TYPE_CHECKING:
    from kcli.server.broker.broker import Broker

# How often the broker checks whether it has caught up with the metadata.
CATCH_UP_CHECK_MS = 5
NOT_READY_MS = 10_000


class MetadataSource(Protocol):
    """The metadata log as a broker follows it: the node's raft client."""

    @property
    def leader_id(self) -> int:
        """The node that leads the quorum as far as this one knows, -1 for none."""
        ...

    def register(self, listener: RaftListener) -> None:
        """Deliver the committed records to a listener, from the first one on."""
        ...

    def is_caught_up(self) -> bool:
        """Return whether what the leader had committed at the start was delivered to the listeners."""
        ...


class BrokerStartup:
    """The steps of one broker; a RaftListener. With `accepts_stray` all logs may be of unknown topics (see LogStartup)."""

    def __init__(self, broker: Broker, metadata: MetadataSource, *, accepts_stray: bool = False) -> None:
        self._broker = broker
        self._accepts_stray = accepts_stray
        self._metadata = metadata
        self._has_caught_up = False
        self._is_loaded = False
        self._is_published = False
        self._is_leaving = False
        self._begin_ms = 0
        self._check: TimerTask | None = None  # the next call of `_catch_up`

    def begin(self, now_ms: int) -> None:
        """Begin to follow the metadata."""
        self._metadata.register(self)
        self._check = self._broker.timer.schedule(now_ms + CATCH_UP_CHECK_MS, self._catch_up)
        self._begin_ms = now_ms
        self._broker.timer.schedule(now_ms + NOT_READY_MS, self._report_not_ready)

    def _report_not_ready(self, now_ms: int) -> None:
        if self._broker.lifecycle.has_been_unfenced or self._is_leaving:
            return
        reason, seconds = self._awaited(), (now_ms - self._begin_ms) // 1000
        self._broker.report(WarningLine(f"not ready after {seconds} s: {reason}", seconds=seconds, reason=reason))
        self._broker.timer.schedule(now_ms + NOT_READY_MS, self._report_not_ready)

    def _awaited(self) -> str:
        if not self._has_caught_up:
            if self._metadata.leader_id < 0:
                return "the metadata quorum has no leader"
            return f"the metadata log is being read; it is applied up to offset {self._broker.metadata.offset}"
        if not self._is_loaded:
            return "the logs are being loaded"
        if not self._is_published:
            return "the partitions that the metadata names are being made"
        return self._broker.lifecycle.awaited()

    def on_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        """Prepare for a new image, at the start or because this broker has fallen behind the leader's log."""
        self._broker.publisher.begin_snapshot()

    def on_commit(self, batch: MetadataBatch, now_ms: int) -> None:
        """Apply a committed batch, or add that of a snapshot to the new image."""
        self._broker.publisher.apply(batch, now_ms)
        if self._check is not None and self._check.at_ms > now_ms:
            self._check.cancel()
            self._check = self._broker.timer.schedule(now_ms, self._catch_up)
        if self._is_published:
            self._broker.lifecycle.metadata_changed(now_ms)
            self._broker.replica_manager.take_log_flushes(now_ms)

    def on_leader_change(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Send the new leader at once what the earlier one has not answered, and the next heartbeat."""
        self._broker.controller.follow_leader()
        self._broker.alter_partition.leader_changed()
        if leader_id >= 0 and self._is_published and not self._is_leaving:
            self._broker.lifecycle.leader_changed(now_ms)

    def _catch_up(self, now_ms: int) -> None:
        """Load the logs if the metadata is caught up with; called after each commit, and every CATCH_UP_CHECK_MS."""
        self._check = None
        if self._is_leaving:
            return
        if not self._metadata.is_caught_up():
            self._check = self._broker.timer.schedule(now_ms + CATCH_UP_CHECK_MS, self._catch_up)
            return
        self._has_caught_up = True
        self._refuse_tiered_topics()
        timer, configs = self._broker.timer, self._broker.topic_configs
        is_known = None if self._accepts_stray else self._broker.publisher.knows_topic
        topic_id_of = (lambda topic: None) if self._accepts_stray else lambda topic: self._broker.image.topic_ids.get(topic)
        work = self._broker.log_manager.start(
            configs.log_config, self._is_hosted, now_ms, self._directory_of, lambda: timer.clock_ms, is_known, topic_id_of
        )
        self._broker.scheduler.run(work, now_ms, self._loaded)

    def _refuse_tiered_topics(self) -> None:
        """Raise TieredStorageError if a topic has records in remote storage: its local part is not all of it."""
        configs = self._broker.image.configs
        tiered = [
            resource.name
            for resource, values in configs.items()
            if resource.type == "TOPIC" and values.get("remote.storage.enable", "").lower() == "true"
        ]
        if tiered:
            raise TieredStorageError(
                f"remote.storage.enable=true of topic {', '.join(sorted(tiered))}: tiered storage is not served yet, and the "
                "records in this node's log directories are only a part of these topics; nothing was changed: start the "
                "directory with Apache Kafka and its remote storage"
            )

    def _is_hosted(self, topic_id: Uuid, partition: int) -> bool:
        found = self._broker.metadata.partition(topic_id, partition)
        return found is not None and self._broker.node_id in found.replicas

    def _directory_of(self, topic_id: Uuid, partition: int) -> Uuid | None:
        return self._broker.metadata.directory_of(topic_id, partition, self._broker.node_id)

    def _loaded(self, now_ms: int) -> None:
        if self._is_leaving:
            return
        self._is_loaded = True
        self._broker.moves.recover(now_ms)
        self._broker.publisher.start(now_ms, self._published)

    def _published(self, now_ms: int) -> None:
        if self._is_leaving:
            return
        self._is_published = True
        self._broker.replica_manager.begin_log_tasks(now_ms)
        self._broker.replica_manager.take_log_flushes(now_ms)
        self._broker.lifecycle.start(now_ms)

    def stop(self, now_ms: int, on_stopped: Callable[[int], None]) -> None:
        """Begin to stop; `on_stopped(now_ms)` is called when the logs are closed. A second call is ignored."""
        self._broker.lifecycle.stop(now_ms, lambda now_ms: self._release(now_ms, on_stopped))

    def _release(self, now_ms: int, on_stopped: Callable[[int], None]) -> None:
        self._is_leaving = True
        self._broker.router.is_open = False
        self._broker.computations.forget()
        self._broker.parts.scheduler.close()
        self._broker.groups.runtime.close()
        self._broker.transactions.runtime.close()
        self._broker.share_coordinator.runtime.close()
        self._broker.share_persister.close()
        self._broker.parts.txn_verification.close()
        self._broker.fetchers.close()
        if not self._is_loaded:
            on_stopped(now_ms)
            return

        def close_logs(now_ms: int) -> None:
            work = self._broker.log_manager.shutdown(self._broker.lifecycle.broker_epoch)
            self._broker.scheduler.run(work, now_ms, on_stopped)

        self._broker.publisher.end(now_ms, close_logs)
