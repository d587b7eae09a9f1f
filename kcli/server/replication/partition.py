"""A partition that one broker hosts: its log, its leader and its in-sync replicas (Kafka: kafka.cluster.Partition).

    leader         this broker
    -------------  ------------------------------------------------------------------------------------------------
    this broker    appends records
    another one    follows (not served yet)

The high watermark moves only while this replica is the only one in sync: each append moves it to the log end offset. If
flush.messages asks for a flush, it moves when that flush has ended, so that no consumer sees records which a power loss can
remove. (Kafka flushes inside the append, before its high watermark moves.) At most one such flush runs for each partition;
what is appended while it runs waits for the next one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from kcli.format.kafka_uuid import Uuid
from kcli.log.append_paths import LogAppendInfo, append_checked
from kcli.log.log_validator import AppendOrigin, ValidBatch
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.server.outstanding import FlushCallback
from kcli.state.metadata_values import PartitionRegistration


class PartitionError(Exception):
    """A request that a partition refuses; `code` is Kafka's error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Partition:
    """One partition that this broker hosts. `log` is None while its log directory is offline."""

    __slots__ = (
        "_begin_flush",
        "_epoch_start_offset",
        "_is_flushing",
        "_waiting_for_flush",
        "index",
        "is_leader",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "node_id",
        "on_high_watermark",
        "on_offline",
        "partition_epoch",
        "replicas",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        node_id: int,
        topic: str,
        index: int,
        topic_id: Uuid,
        log: UnifiedLog | None,
        begin_flush: Callable[[Partition, UnifiedLog], None],
    ) -> None:
        """`begin_flush` starts to make a log durable, and calls `flush_ended` afterwards."""
        self.node_id = node_id
        self._begin_flush = begin_flush
        self._is_flushing = False
        self._waiting_for_flush: list[tuple[int, FlushCallback]] = []  # end offset of a batch, and what to call
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
        self._epoch_start_offset = 0  # the log end when this broker became the leader
        self.on_high_watermark: Callable[[int], None] | None = None  # called after each move of the high watermark
        self.on_offline: Callable[[], None] | None = None  # called when the log is gone with its log directory

    @property
    def key(self) -> tuple[str, int]:
        """The topic and index, under which waiting requests are watched."""
        return self.topic, self.index

    def apply(self, registration: PartitionRegistration) -> None:
        """Apply the partition's registration in the metadata."""
        is_new_epoch = registration.leader_epoch > self.leader_epoch
        self.leader_id = registration.leader
        self.leader_epoch = registration.leader_epoch
        self.partition_epoch = registration.partition_epoch
        self.isr = list(registration.isr)
        self.replicas = list(registration.replicas)
        self.is_leader = registration.leader == self.node_id
        if self.is_leader and self.log is not None:
            if is_new_epoch:
                self._epoch_start_offset = self.log.log_end_offset
                self.log.leader_epochs.assign(self.leader_epoch, self.log.log_end_offset, is_written=False)
            self._advance_high_watermark(self.log)

    def replace_log(self, log: UnifiedLog) -> None:
        """Use another log of the same records: the replica has moved to another directory."""
        self.log = log
        if self.is_leader:
            log.leader_epochs.assign(self.leader_epoch, log.log_end_offset, is_written=False)
            self._advance_high_watermark(log)

    def leader_log(self, current_leader_epoch: int = -1) -> UnifiedLog:
        """Return the log if this broker leads and the client's leader epoch is current or -1. Raises PartitionError."""
        if current_leader_epoch not in (-1, self.leader_epoch):
            self._refuse_epoch(current_leader_epoch)
        if not self.is_leader:
            message = f"broker {self.node_id} is not the leader of {self.topic}-{self.index}; the leader is {self.leader_id}"
            raise PartitionError(error_codes.NOT_LEADER_OR_FOLLOWER, message)
        if self.log is None:
            message = f"the log directory of {self.topic}-{self.index} is offline"
            raise PartitionError(error_codes.KAFKA_STORAGE_ERROR, message)
        return self.log

    def check_follower(self, replica_id: int) -> None:
        """Raise PartitionError if the broker that fetches is not a replica that follows this one."""
        if replica_id == self.node_id or replica_id not in self.replicas:
            text = f"broker {replica_id} does not follow {self.topic}-{self.index}, whose replicas are {self.replicas}"
            raise PartitionError(error_codes.NOT_LEADER_OR_FOLLOWER, text)

    def check_end_is_known(self, log: UnifiedLog) -> None:
        """Raise PartitionError while the high watermark is below the log end of the time when this broker became the leader.

        What clients have read before may be above it, so that for a client it would not be the end of the partition (KIP-207).
        """
        if log.high_watermark < self._epoch_start_offset:
            raise PartitionError(
                error_codes.OFFSET_NOT_AVAILABLE,
                f"the high watermark of {self.topic}-{self.index}, {log.high_watermark}, has not reached "
                f"{self._epoch_start_offset}, where leader epoch {self.leader_epoch} begins",
            )

    def _refuse_epoch(self, current_leader_epoch: int) -> None:
        is_old = current_leader_epoch < self.leader_epoch
        raise PartitionError(
            error_codes.FENCED_LEADER_EPOCH if is_old else error_codes.UNKNOWN_LEADER_EPOCH,
            f"the leader epoch of {self.topic}-{self.index} is {self.leader_epoch}, not {current_leader_epoch}",
        )

    def min_isr(self, log: UnifiedLog) -> int:
        """Return the number of in-sync replicas that acks=all needs: min.insync.replicas, at most the number of replicas."""
        return min(log.config.min_insync_replicas, len(self.replicas))

    def append(
        self,
        records: memoryview | ValidBatch,
        required_acks: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_version: int = 0,
    ) -> LogAppendInfo:
        """Append a batch of a producer or coordinator, as received or checked. Raises PartitionError, AppendError and OSError.

        `transaction_version` is that of a marker.

        Raises LongCheckError, and appends nothing, if the check of a received batch would occupy the event loop too long.
        """
        log = self.leader_log()
        if required_acks == -1 and len(self.isr) < (needed := self.min_isr(log)):
            text = f"{self.topic}-{self.index} has {len(self.isr)} replicas in sync and needs {needed} (min.insync.replicas)"
            raise PartitionError(error_codes.NOT_ENOUGH_REPLICAS, text)
        if isinstance(records, ValidBatch):
            info = append_checked(log, records, self.leader_epoch, now_ms)
        else:
            info = log.append_as_leader(
                records,
                self.leader_epoch,
                now_ms,
                origin=origin,
                transaction_version=transaction_version,
                is_hurried=origin is AppendOrigin.CLIENT,
            )
        self._advance_high_watermark(log)
        return info

    def _advance_high_watermark(self, log: UnifiedLog) -> bool:
        """Move the high watermark as far as possible, and flush what keeps it back; return whether it has moved."""
        committable = log.committable_offset()
        if committable < log.log_end_offset and not self._is_flushing:
            self._is_flushing = True
            self._begin_flush(self, log)
        if len(self.isr) > 1 or log.high_watermark >= committable:
            return False
        log.update_high_watermark(committable)
        if self.on_high_watermark is not None:
            self.on_high_watermark(log.high_watermark)
        return True

    # ---------------------------------------------------------------------------------------------------------- flushes

    def when_flushed(self, end_offset: int, callback: FlushCallback, now_ms: int) -> None:
        """Call `callback(error, now_ms)` when the records below `end_offset` are as durable as flush.messages asks for."""
        if self.log is not None and self.log.committable_offset() < end_offset:
            self._waiting_for_flush.append((end_offset, callback))
        else:
            callback(None if self.log is not None else _log_is_gone(), now_ms)

    def flush_ended(self, flushed: UnifiedLog, error: OSError | None, now_ms: int) -> bool:
        """Take the end of a flush that `begin_flush` has started; return whether the high watermark has moved."""
        self._is_flushing = False
        log = self.log
        has_moved = log is not None and self.is_leader and self._advance_high_watermark(log)
        limit = flushed.recovery_point if log is None else log.committable_offset()
        waiting, self._waiting_for_flush = self._waiting_for_flush, []
        for end_offset, callback in waiting:
            if end_offset <= limit:
                callback(None, now_ms)
            elif log is None or not self._is_flushing:
                callback(error or _log_is_gone(), now_ms)
            else:
                self._waiting_for_flush.append((end_offset, callback))
        return has_moved


def _log_is_gone() -> OSError:
    return FileNotFoundError(errno.ENOENT, "the log was closed or deleted before its records were durable")
