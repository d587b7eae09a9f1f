"""How a broker begins and ends, step by step; no step waits.

step                  goes on when
--------------------  --------------------------------------------------------------------------------------------
follow the metadata   the raft client has told all that was committed when it started
load the logs         the last slice is done (kcli.log.log_manager)
publish               at once: partitions that the metadata names and no directory has are made
register              the controller has taken the registration, and unfenced the broker
ready
release               the controller lets the broker go, or does not answer in time, and what the metadata asked for is done
close the logs        the last slice is done: checkpoints, snapshots, the mark of a clean stop; requests of clients are not
                      taken any more. Logs that were not all loaded are left as they are, for the next start
stop the node

A broker that is not ready NOT_READY_MS after its start logs what it waits for, and again each NOT_READY_MS.
"""

from __future__ import annotations

from typing import Any

from kcli.format.kafka_uuid import Uuid
from kcli.server.broker.lifecycle import BrokerLifecycle
from kcli.server.broker.metadata_publisher import MetadataPublisher
from kcli.server.log_lines import WarningLine
from kcli.server.raft.metadata_batches import MetadataBatch
from kcli.server.raft.metadata_log import SnapshotId

# How often the metadata is looked at until it is caught up with.
CATCH_UP_CHECK_MS = 5
NOT_READY_MS = 10_000


class BrokerStartup:
    """The steps of one broker; a RaftListener."""

    def __init__(self, broker: Any, node: Any) -> None:
        self._broker = broker
        self._node = node
        self._has_caught_up = False
        self._is_loaded = False
        self._is_published = False
        self._is_leaving = False
        self._begin_ms = 0
        self.publisher = MetadataPublisher(broker)
        broker.publisher = self.publisher
        broker.lifecycle = BrokerLifecycle(
            broker, Uuid(broker.rng.randbytes(16)), broker.describe_registration, node.ready, self._release
        )

    def begin(self, now_ms: int) -> None:
        """Follow the metadata."""
        self._node.controller.register(self)
        self._broker.timer.schedule(now_ms + CATCH_UP_CHECK_MS, self._catch_up)
        self._begin_ms = now_ms
        self._broker.timer.schedule(now_ms + NOT_READY_MS, self._report_not_ready)

    def _report_not_ready(self, now_ms: int) -> None:
        """Log what the start waits for."""
        if self._node.is_ready or self._is_leaving:
            return
        reason, seconds = self._awaited(), (now_ms - self._begin_ms) // 1000
        self._broker.tell(WarningLine(f"not ready after {seconds} s: {reason}", seconds=seconds, reason=reason))
        self._broker.timer.schedule(now_ms + NOT_READY_MS, self._report_not_ready)

    def _awaited(self) -> str:
        if not self._has_caught_up:
            if self._node.controller.leader_id < 0:
                return "the metadata quorum has no leader"
            return f"the metadata log is being read; it is applied up to offset {self._broker.metadata_offset}"
        if not self._is_loaded:
            return "the logs are being loaded"
        if not self._is_published:
            return "the partitions that the metadata names are being made"
        return str(self._broker.lifecycle.awaited())

    def on_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        """Do nothing: a node without peers loads a snapshot only at its start, when the image is empty."""

    def on_commit(self, batch: MetadataBatch, now_ms: int) -> None:
        """Apply a committed batch."""
        for record in batch.control_records:
            self._broker.image.apply_control(record)
        self.publisher.apply(batch.records, batch.last_offset, now_ms)
        if not self._has_caught_up:
            self._broker.timer.schedule(now_ms, self._catch_up)
        if self._is_published:
            self._broker.lifecycle.metadata_changed(now_ms)
            self._broker.take_log_flushes(now_ms)

    def on_leader_change(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Do nothing: the leader is asked for when a request is sent to it."""

    def _catch_up(self, now_ms: int) -> None:
        """Go on when the metadata is caught up with; looked at after each commit, and now and then."""
        if self._has_caught_up or self._is_leaving:
            return
        if not self._node.controller.is_caught_up():
            self._broker.timer.schedule(now_ms + CATCH_UP_CHECK_MS, self._catch_up)
            return
        self._has_caught_up = True
        broker, directory_of = self._broker, self.publisher.directory_of
        timer = broker.timer
        work = broker.log_manager.start(broker.topic_config, self._is_hosted, now_ms, directory_of, lambda: timer.clock_ms)
        self._node.run_slices(work, self._loaded, now_ms)

    def _is_hosted(self, topic_id: Uuid, partition: int) -> bool:
        topic = self._broker.image.topics.get(topic_id)
        found = None if topic is None else topic.partitions.get(partition)
        return found is not None and self._broker.node_id in found.replicas

    def _loaded(self, now_ms: int) -> None:
        if self._is_leaving:
            return
        self._is_loaded = True
        self._broker.moves.recover(now_ms)
        self.publisher.start(now_ms, self._publish_done)

    def _publish_done(self, now_ms: int) -> None:
        if self._is_leaving:
            return
        self._is_published = True
        self._broker.log_tasks_begin(now_ms)
        self._broker.take_log_flushes(now_ms)
        self._broker.lifecycle.start(now_ms)

    def _release(self, now_ms: int) -> None:
        self._is_leaving = True
        self._broker.router.is_open = False
        self._broker.computations.forget()
        self._broker.turns.end()
        if not self._is_loaded:
            self._node.released(now_ms)
            return
        self.publisher.end(now_ms, self._close_logs)

    def _close_logs(self, now_ms: int) -> None:
        work = self._broker.log_manager.shutdown(self._broker.lifecycle.broker_epoch)
        self._node.run_slices(work, self._node.released, now_ms)
