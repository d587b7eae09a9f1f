"""A partition as one broker hosts it: its log, who leads it, and who is in sync (Kafka: kafka.cluster.Partition).

    the controller says           this broker
    ----------------------------  ------------------------------------------------------------------------------------
    it leads                      takes records; the high watermark is where all of the in-sync replicas have come to
    another leads                 follows (served with clusters)

With one replica in sync, which is this one, the high watermark is the log's end as soon as something is appended.
"""

from __future__ import annotations

from kcli.format.kafka_uuid import Uuid
from kcli.log.append_paths import append_checked
from kcli.log.log_slices import AppendInfo
from kcli.log.log_validator import ValidBatch
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.state.metadata_values import Partition as PartitionRegistration


class PartitionError(Exception):
    """What cannot be done with a partition here and now; `code` is Kafka's error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Partition:
    """One partition that this broker hosts. `log` is None while its log directory is offline."""

    __slots__ = (
        "index",
        "is_leader",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "node_id",
        "partition_epoch",
        "replicas",
        "topic",
        "topic_id",
    )

    def __init__(self, node_id: int, topic: str, index: int, topic_id: Uuid, log: UnifiedLog | None) -> None:
        self.node_id = node_id
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.leader_id = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.isr: list[int] = []
        self.replicas: list[int] = []
        self.is_leader = False

    @property
    def key(self) -> tuple[str, int]:
        """What its waiting requests are watched under."""
        return self.topic, self.index

    def apply(self, registration: PartitionRegistration) -> None:
        """Take over what the metadata says of it."""
        is_new_epoch = registration.leader_epoch > self.leader_epoch
        self.leader_id = registration.leader
        self.leader_epoch = registration.leader_epoch
        self.partition_epoch = registration.partition_epoch
        self.isr = list(registration.isr)
        self.replicas = list(registration.replicas)
        self.is_leader = registration.leader == self.node_id
        if self.is_leader and self.log is not None:
            if is_new_epoch:
                self.log.leader_epochs.assign(self.leader_epoch, self.log.log_end_offset, is_written=False)
            self._advance_high_watermark(self.log)

    def replace_log(self, log: UnifiedLog) -> None:
        """Go on with another log of the same records: the replica has moved."""
        self.log = log
        if self.is_leader:
            log.leader_epochs.assign(self.leader_epoch, log.log_end_offset, is_written=False)
            self._advance_high_watermark(log)

    def leader_log(self, current_leader_epoch: int = -1) -> UnifiedLog:
        """The log, where this broker leads and the client's idea of the epoch (-1: it has none) is right.

        Raises PartitionError.
        """
        if current_leader_epoch not in (-1, self.leader_epoch):
            self._refuse_epoch(current_leader_epoch)
        if not self.is_leader:
            message = f"broker {self.node_id} does not lead {self.topic}-{self.index}; the leader is {self.leader_id}"
            raise PartitionError(error_codes.NOT_LEADER_OR_FOLLOWER, message)
        if self.log is None:
            message = f"the log directory of {self.topic}-{self.index} is offline"
            raise PartitionError(error_codes.KAFKA_STORAGE_ERROR, message)
        return self.log

    def _refuse_epoch(self, current_leader_epoch: int) -> None:
        is_old = current_leader_epoch < self.leader_epoch
        raise PartitionError(
            error_codes.FENCED_LEADER_EPOCH if is_old else error_codes.UNKNOWN_LEADER_EPOCH,
            f"the leader epoch of {self.topic}-{self.index} is {self.leader_epoch}, not {current_leader_epoch}",
        )

    def min_isr(self, log: UnifiedLog) -> int:
        """How many replicas must be in sync for acks=all: min.insync.replicas, but never more than there are."""
        return min(log.config.min_insync_replicas, len(self.replicas))

    def append(self, records: memoryview | ValidBatch, required_acks: int, now_ms: int) -> AppendInfo:
        """Append a producer's batch, as it came or checked. Raises PartitionError, AppendError and OSError.

        And LongCheckError where it came unchecked and its check would hold the loop: nothing has happened then.
        """
        log = self.leader_log()
        if required_acks == -1 and len(self.isr) < (needed := self.min_isr(log)):
            text = f"{self.topic}-{self.index} has {len(self.isr)} replicas in sync and needs {needed} (min.insync.replicas)"
            raise PartitionError(error_codes.NOT_ENOUGH_REPLICAS, text)
        if isinstance(records, ValidBatch):
            info = append_checked(log, records, self.leader_epoch, now_ms)
        else:
            info = log.append_as_leader(records, self.leader_epoch, now_ms, is_hurried=True)
        self._advance_high_watermark(log)
        return info

    def _advance_high_watermark(self, log: UnifiedLog) -> None:
        if len(self.isr) <= 1 and log.high_watermark != log.log_end_offset:
            log.update_high_watermark(log.log_end_offset)
