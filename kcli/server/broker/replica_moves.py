"""Replicas that move between this broker's log directories: what the metadata must record before the log is replaced.

    step                                                          done by
    ------------------------------------------------------------  ------------------------------------------------------
    the future log is made and copies the log                     kcli.log.managing.replica_mover, after AlterReplicaLogDirs
    it has caught up and is durable: its directory is reported    `caught_up`
    to the controller
    the metadata puts the replica there                           `follow` replaces the log by the future log, or waits
                                                                  for records that were appended since

Directories of older versions have no ids: then nothing is reported and the log is replaced at once. The metadata decides,
so a broker that stops at any step continues there after its restart.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.format.kafka_uuid import Uuid
from kcli.log.errors import KafkaStorageError
from kcli.log.unified_log import UnifiedLog
from kcli.server.broker.assignments_manager import AssignmentsManager
from kcli.server.log_lines import Line, WarningLine
from kcli.server.metadata_cache import MetadataCache
from kcli.server.replication.partition import Partition
from kcli.server.replication.replica_manager import ReplicaManager


class ReplicaMoves:
    """The moves of one broker. `report` writes a line of the node's log."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        metadata: MetadataCache,
        assignments: AssignmentsManager,
        report: Callable[[str], None],
    ) -> None:
        self._replica_manager = replica_manager
        self._log_manager = replica_manager.log_manager
        self._metadata = metadata
        self._assignments = assignments
        self._report = report

    def _directory_of(self, topic_id: Uuid | None, index: int) -> Uuid | None:
        """Return the directory that the metadata puts this broker's replica in."""
        return None if topic_id is None else self._metadata.directory_of(topic_id, index, self._replica_manager.node_id)

    def recover(self, now_ms: int) -> None:
        """Replace the logs whose future logs the metadata already names; called when the logs are loaded."""
        mover = self._log_manager.mover
        for log in mover.recover_abandoned(lambda log: self._directory_of(log.topic_id, log.partition), now_ms):
            self._report(_moved(log))

    def caught_up(self, topic: str, index: int, now_ms: int) -> None:
        """Report or replace a future log that has all records of its log."""
        partition = self._replica_manager.partition(topic, index)
        registered = None if partition is None else self._directory_of(partition.topic_id, index)
        if partition is None or self.follow(partition, registered, now_ms):
            return
        future = self._log_manager.get_log(topic, index, future=True)
        assert future is not None
        directory_id = self._log_manager.directory_id_of(future)
        if directory_id is None:
            self._replace(partition, now_ms)
        elif partition.log is None or self._log_manager.directory_id_of(partition.log) != registered:
            # The metadata must first record where the replica is now: that record would undo the one sent here.
            self._log_manager.mover.report_again(topic, index)
        else:
            self._flush_and_assign(partition, future, directory_id, now_ms)

    def _flush_and_assign(self, partition: Partition, future: UnifiedLog, directory_id: Uuid, now_ms: int) -> None:
        """Make the copied records durable, then report the directory."""

        def flushed(error: OSError | None, now_ms: int) -> None:
            if error is not None or self._log_manager.get_log(*partition.key, future=True) is not future:
                self._log_manager.mover.report_again(*partition.key)
            else:
                self._assignments.assign(partition.topic_id, partition.index, directory_id, now_ms)

        self._replica_manager.flush_log(future, flushed, now_ms)

    def follow(self, partition: Partition, registered: Uuid | None, now_ms: int) -> bool:
        """Replace the log if the metadata has the replica in the future log's directory; return whether it has."""
        future = self._log_manager.get_log(partition.topic, partition.index, future=True)
        if future is None or registered is None or self._log_manager.directory_id_of(future) != registered:
            return False
        self._replace(partition, now_ms)
        return True

    def _replace(self, partition: Partition, now_ms: int) -> None:
        try:
            log = self._log_manager.mover.replace(partition.topic, partition.index, now_ms)
        except KafkaStorageError as error:
            text = f"cannot move {partition.topic}-{partition.index}: {error}"
            self._report(WarningLine(text, topic=partition.topic, partition=partition.index, error=error))
            return
        if log is not None:
            partition.replace_log(log)
            self._report(_moved(log))


def _moved(log: UnifiedLog) -> Line:
    text = f"{log.topic}-{log.partition} has moved to {log.directory}"
    return Line(text, topic=log.topic, partition=log.partition, path=log.directory)
