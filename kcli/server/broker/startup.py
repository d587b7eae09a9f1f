"""How a broker starts and stops, step by step; no step waits.

step                  continues when
--------------------  --------------------------------------------------------------------------------------------
follow the metadata   the raft client has delivered all that was committed when it started
load the logs         the last slice is done (kcli.log.log_manager)
publish               at once: partitions that the metadata names and that no directory has are made
register              the controller has accepted the registration and unfenced the broker
ready
release               the controller approves the shutdown, or does not answer in time, and the work that the metadata asked
                      for is done
close the logs        the last slice is done: checkpoints, snapshots, the mark of a clean stop; requests of clients are
                      refused. Logs that were not all loaded stay as they are, for the next start
stop the node

A broker that is not ready NOT_READY_MS after its start logs what it waits for, and again every NOT_READY_MS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.control_records import ControlRecord
from kcli.protocol.message import Message
from kcli.server.log_lines import WarningLine

if TYPE_CHECKING:
    from kcli.server.broker.broker import Broker
    from kcli.server.node import Node

# How often the start checks whether all committed metadata has been delivered.
CATCH_UP_CHECK_MS = 5
NOT_READY_MS = 10_000


class BrokerStartup:
    """The steps of one broker; a MetadataListener."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._node: Node
        self._has_caught_up = False
        self._is_loaded = False
        self._is_published = False
        self._is_leaving = False
        self._begin_ms = 0

    def begin(self, node: Node, now_ms: int) -> None:
        """Follow the metadata of the broker's node."""
        self._node = node
        node.controller.add_listener(self)
        self._broker.timer.schedule(now_ms + CATCH_UP_CHECK_MS, self._catch_up)
        self._begin_ms = now_ms
        self._broker.timer.schedule(now_ms + NOT_READY_MS, self._report_not_ready)

    def _report_not_ready(self, now_ms: int) -> None:
        """Log what the start waits for."""
        if self._node.is_ready or self._is_leaving:
            return
        reason, seconds = self._awaited(), (now_ms - self._begin_ms) // 1000
        self._broker.report(WarningLine(f"not ready after {seconds} s: {reason}", seconds=seconds, reason=reason))
        self._broker.timer.schedule(now_ms + NOT_READY_MS, self._report_not_ready)

    def _awaited(self) -> str:
        if not self._has_caught_up:
            if self._node.controller.leader_id < 0:
                return "the metadata quorum has no leader"
            return f"the metadata log is being read; it is applied up to offset {self._broker.metadata.offset}"
        if not self._is_loaded:
            return "the logs are being loaded"
        if not self._is_published:
            return "the partitions that the metadata names are being made"
        return self._broker.lifecycle.awaited()

    def handle_commit(self, records: Sequence[Message], last_offset: int, now_ms: int) -> None:
        """Apply committed records."""
        self._broker.publisher.apply(records, last_offset, now_ms)
        if not self._has_caught_up:
            self._broker.timer.schedule(now_ms, self._catch_up)
        if self._is_published:
            self._broker.lifecycle.metadata_changed(now_ms)
            self._broker.replica_manager.take_log_flushes(now_ms)

    def handle_control(self, records: Sequence[ControlRecord]) -> None:
        """Apply the quorum's leader and voters to the image."""
        for record in records:
            self._broker.image.apply_control(record)

    def _catch_up(self, now_ms: int) -> None:
        """Load the logs once the committed metadata is applied; called after each commit, and every CATCH_UP_CHECK_MS."""
        if self._has_caught_up or self._is_leaving:
            return
        if not self._node.controller.is_caught_up():
            self._broker.timer.schedule(now_ms + CATCH_UP_CHECK_MS, self._catch_up)
            return
        self._has_caught_up = True
        timer, configs = self._broker.timer, self._broker.topic_configs
        work = self._broker.log_manager.start(
            configs.log_config, self._is_hosted, now_ms, self._directory_of, lambda: timer.clock_ms
        )
        self._node.run_slices(work, self._loaded, now_ms)

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

    def running(self, now_ms: int) -> None:
        """Report to the node that the broker is unfenced."""
        self._node.ready(now_ms)

    def release(self, now_ms: int) -> None:
        """Stop serving and close the logs: the broker has left the cluster."""
        self._is_leaving = True
        self._broker.router.is_open = False
        self._broker.computations.forget()
        self._broker.slices.close()
        if not self._is_loaded:
            self._node.released(now_ms)
            return
        self._broker.publisher.end(now_ms, self._close_logs)

    def _close_logs(self, now_ms: int) -> None:
        work = self._broker.log_manager.shutdown(self._broker.lifecycle.broker_epoch)
        self._node.run_slices(work, self._node.released, now_ms)
