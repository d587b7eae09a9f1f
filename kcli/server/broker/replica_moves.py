"""Replicas that move between this broker's log directories: what the metadata must know before one takes the other's place.

    step                                                     done by
    -------------------------------------------------------  -----------------------------------------------------------
    the future log is made and follows the log               replica_mover, when AlterReplicaLogDirs asks for it
    it has caught up and is on the device: the controller    `caught_up`
    is told its directory
    the metadata puts the replica there                      `follow` lets it take the log's place, or waits for the
                                                             records that came meanwhile

Without directory ids (directories of older versions) nobody has to know, and the change is made at once. As the metadata is
what decides, a broker that died on the way goes on from whichever step it was at.
"""

from __future__ import annotations

from typing import Any

from kcli.format.kafka_uuid import Uuid
from kcli.log.storage_errors import KafkaStorageError
from kcli.log.unified_log import UnifiedLog
from kcli.server.log_lines import Line, WarningLine
from kcli.server.replication.partition import Partition


class ReplicaMoves:
    """The moves of one broker."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        broker.log_manager.mover.on_caught_up = self.caught_up

    def recover(self, now_ms: int) -> None:
        """When the logs are loaded: let those take their place that the metadata had put there before the broker died."""
        broker = self._broker

        def directory_of(log: UnifiedLog) -> Uuid | None:
            found: Uuid | None = broker.publisher.directory_of(log.topic_id, log.partition)
            return found

        for log in broker.log_manager.mover.recover_abandoned(directory_of, now_ms):
            broker.tell(_moved(log))

    def caught_up(self, topic: str, index: int, now_ms: int) -> None:
        """A future log has all that the log has."""
        broker = self._broker
        partition = broker.partition(topic, index)
        registered = None if partition is None else broker.publisher.directory_of(partition.topic_id, index)
        if partition is None or self.follow(partition, registered, now_ms):
            return
        future = broker.log_manager.get_log(topic, index, future=True)
        directory_id = broker.log_manager.directory_id_of(future)
        if directory_id is None:
            self._replace(partition, now_ms)
        elif partition.log is None or broker.log_manager.directory_id_of(partition.log) != registered:
            # The metadata must first know where it lies now, or that would undo what is told here.
            broker.log_manager.mover.look_again(topic, index)
        else:
            self._flush_and_assign(partition, future, directory_id, now_ms)

    def _flush_and_assign(self, partition: Partition, future: UnifiedLog, directory_id: Uuid, now_ms: int) -> None:
        """Have the device hold what was copied, then tell the controller."""
        broker = self._broker

        def flushed(error: OSError | None, now_ms: int) -> None:
            if error is not None or broker.log_manager.get_log(*partition.key, future=True) is not future:
                broker.log_manager.mover.look_again(*partition.key)
            else:
                broker.assignments.assign(partition.topic_id, partition.index, directory_id, now_ms)

        broker.flush_log(future, flushed, now_ms)

    def follow(self, partition: Partition, registered: Uuid | None, now_ms: int) -> bool:
        """Let the future log take its place where the metadata has the replica in that directory -> whether it has."""
        log_manager = self._broker.log_manager
        future = log_manager.get_log(partition.topic, partition.index, future=True)
        if future is None or registered is None or log_manager.directory_id_of(future) != registered:
            return False
        self._replace(partition, now_ms)
        return True

    def _replace(self, partition: Partition, now_ms: int) -> None:
        broker = self._broker
        try:
            log = broker.log_manager.mover.replace(partition.topic, partition.index, now_ms)
        except KafkaStorageError as error:
            text = f"{partition.topic}-{partition.index} did not move: {error}"
            broker.tell(WarningLine(text, topic=partition.topic, partition=partition.index, error=error))
            return
        if log is not None:
            partition.replace_log(log)
            broker.tell(_moved(log))


def _moved(log: UnifiedLog) -> Line:
    text = f"{log.topic}-{log.partition} has moved to {log.directory}"
    return Line(text, topic=log.topic, partition=log.partition, path=log.directory)
