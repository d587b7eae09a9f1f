"""A partition that one broker hosts: its log, its leader and its in-sync replicas (Kafka: kafka.cluster.Partition).

    leader         this broker
    -------------  ------------------------------------------------------------------------------------------------
    this broker    appends records, knows the state of each follower (`replica`), and changes the ISR
    another one    follows: kcli.server.replication.replica_fetcher appends what the leader has

The high watermark of a leader is the lowest log end offset of
  * itself: with flush.messages the end of what is flushed, so that no consumer sees records which a power loss can remove.
    (Kafka flushes inside the append, before its high watermark moves.) At most one such flush runs for each partition; what is
    appended while it runs waits for the next one;
  * the members of the ISR, and those of an ISR that the controller has not answered yet (the maximal ISR);
  * other followers that may join the ISR and are in sync: they will be members at their next fetch.
It never rises while the ISR has fewer members than min.insync.replicas, or than the partition has replicas (KIP-966).

    change of the ISR  when                                                        the members are
    -----------------  ----------------------------------------------------------  -------------------------------------------
    expansion          a follower fetches that has the high watermark and the      the ISR and this follower
                       start of the leader epoch, and may join: it is neither
                       fenced nor shutting down, nor was it restarted since
    shrink             checked each half of replica.lag.time.max.ms                the ISR without followers that lag

One change is under way at a time. The controller answers with (KIP-497)       and the leader then
  -----------------------------------------------------------------------       --------------------------------------------
  the state of the partition                                                    takes it, unless it is of another epoch
  INELIGIBLE_REPLICA, OPERATION_NOT_ATTEMPTED                                   has the ISR of before
  UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, FENCED_LEADER_EPOCH,            waits for metadata with another partition
  INVALID_UPDATE_VERSION, INVALID_REQUEST, NEW_LEADER_ELECTED                   epoch: the change may have been made
  any other error                                                               proposes it again
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Protocol

from kcli.format.kafka_uuid import Uuid
from kcli.log.append_paths import LogAppendInfo, append_checked
from kcli.log.log_validator import AppendOrigin, ValidBatch
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.server.outstanding import FlushCallback
from kcli.server.replication.replica import NO_EPOCH, IsrAnswer, IsrChange, Replica
from kcli.state.metadata_values import PartitionRegistration


class PartitionError(Exception):
    """A request that a partition refuses; `code` is Kafka's error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


# The errors of AlterPartition after which the ISR is what it was, and those after which it may have changed.
_NOT_CHANGED = (error_codes.INELIGIBLE_REPLICA, error_codes.OPERATION_NOT_ATTEMPTED)
_MAYBE_CHANGED = (
    error_codes.UNKNOWN_TOPIC_ID,
    error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    error_codes.FENCED_LEADER_EPOCH,
    error_codes.INVALID_UPDATE_VERSION,
    error_codes.INVALID_REQUEST,
    error_codes.NEW_LEADER_ELECTED,
)


class PartitionHost(Protocol):
    """The broker of a partition: kcli.server.replication.replica_manager. `max_lag_ms` is replica.lag.time.max.ms."""

    node_id: int
    max_lag_ms: int

    @property
    def clock_ms(self) -> int:
        """The node's time."""
        ...

    def begin_flush(self, partition: Partition, log: UnifiedLog) -> None:
        """Start to make a log durable, and call `flush_ended` afterwards."""
        ...

    def high_watermark_moved(self, partition: Partition) -> None:
        """Check what waits for records to be committed."""
        ...

    def low_watermark_moved(self, partition: Partition) -> None:
        """Check what waits for records to be deleted by all replicas."""
        ...

    def log_has_grown(self, partition: Partition) -> None:
        """Check the fetches of followers after the events at hand."""
        ...

    def partition_changed(self, partition: Partition) -> None:
        """Mark a partition in the fetch sessions that have it."""
        ...

    def may_join_isr(self, broker_id: int, broker_epoch: int | None) -> bool:
        """Return whether a broker that has fetched with an epoch may be in an ISR."""
        ...

    def is_live(self, broker_id: int) -> bool:
        """Return whether a broker is registered and not fenced."""
        ...

    def check_broker_epoch(self, broker_id: int, broker_epoch: int) -> None:
        """Raise PartitionError for a fetch of a broker that has been restarted since."""
        ...

    def alter_isr(self, partition: Partition, change: IsrChange) -> None:
        """Propose an ISR to the controller, and call `isr_answered` afterwards."""
        ...

    def has_followers(self, partition: Partition) -> None:
        """Begin to look for followers that lag."""
        ...

    def isr_changed(self, *, is_expansion: bool) -> None:
        """Count a change of an ISR."""
        ...

    def isr_change_failed(self) -> None:
        """Count a change that the controller has refused."""
        ...


class Partition:
    """One partition that this broker hosts. `log` is None while its log directory is offline."""

    __slots__ = (
        "_change",
        "_epoch_start_offset",
        "_host",
        "_is_flushing",
        "_waiting_for_flush",
        "followers",
        "index",
        "is_leader",
        "isr",
        "key",
        "leader_epoch",
        "leader_id",
        "log",
        "node_id",
        "on_offline",
        "partition_epoch",
        "replicas",
        "topic",
        "topic_id",
    )

    def __init__(self, host: PartitionHost, topic: str, index: int, topic_id: Uuid, log: UnifiedLog | None) -> None:
        self.node_id = host.node_id
        self._host = host
        self._is_flushing = False
        self._waiting_for_flush: list[tuple[int, FlushCallback]] = []  # end offset of a batch, and what to call
        self.topic = topic
        self.index = index
        self.key = topic, index  # under which waiting requests are watched
        self.topic_id = topic_id
        self.log = log
        if log is not None:
            log.on_bounds = self._changed
        self.leader_id = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.isr: list[int] = []
        self.replicas: list[int] = []
        self.is_leader = False
        self.followers: dict[int, Replica] = {}  # the other replicas, of a leader
        self._change: IsrChange | None = None  # that the controller has not answered, or not with what has become of it
        self._epoch_start_offset = 0  # the log end when this broker became the leader
        self.on_offline: Callable[[], None] | None = None  # called when the log is gone with its log directory

    def apply(self, registration: PartitionRegistration) -> None:
        """Apply the partition's registration in the metadata, unless it is older than the controller's last answer."""
        if registration.partition_epoch < self.partition_epoch:
            return
        epochs = registration.leader_epoch - self.leader_epoch
        has_led = self.is_leader and epochs <= 1  # another broker may have led between
        if registration.partition_epoch > self.partition_epoch:
            self._change = None  # else the controller may still make it, and its members count
        self.leader_id = registration.leader
        self.leader_epoch = registration.leader_epoch
        self.partition_epoch = registration.partition_epoch
        self.isr = list(registration.isr)
        self.replicas = list(registration.replicas)
        self.is_leader = registration.leader == self.node_id
        others = [replica for replica in self.replicas if replica != self.node_id] if self.is_leader else ()
        self.followers = {replica: self.followers.get(replica) or Replica(replica) for replica in others}
        if self.followers:
            self._host.has_followers(self)
        if self.is_leader and self.log is not None:
            if epochs > 0:
                self._begin_epoch(self.log, is_new_leader=not has_led)
            self._advance_high_watermark(self.log)
        self._changed()

    def _changed(self) -> None:
        """Have the partition read again by the sessions that know it: its state or its bounds have changed."""
        self._host.partition_changed(self)

    def _begin_epoch(self, log: UnifiedLog, *, is_new_leader: bool) -> None:
        self._epoch_start_offset = log.log_end_offset
        log.leader_epochs.assign(self.leader_epoch, log.log_end_offset, is_written=False)
        for broker_id, replica in self.followers.items():
            is_in_sync = broker_id in self.isr
            replica.reset(log.log_end_offset, self._host.clock_ms, is_in_sync=is_in_sync, is_new_leader=is_new_leader)

    def replace_log(self, log: UnifiedLog) -> None:
        """Use another log of the same records: the replica has moved to another directory."""
        self.log = log
        log.on_bounds = self._changed
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
        return self._online_log()

    def readable_log(self, current_leader_epoch: int = -1) -> UnifiedLog:
        """Return the log, from which a follower serves consumers, too (KIP-392). Raises PartitionError as `leader_log` does."""
        if current_leader_epoch not in (-1, self.leader_epoch):
            self._refuse_epoch(current_leader_epoch)
        return self._online_log()

    def _online_log(self) -> UnifiedLog:
        if self.log is None:
            message = f"the log directory of {self.topic}-{self.index} is offline"
            raise PartitionError(error_codes.KAFKA_STORAGE_ERROR, message)
        return self.log

    def follower(self, broker_id: int, current_leader_epoch: int) -> Replica:
        """Return the state of a follower. Raises PartitionError if the broker is not a replica.

        The code is UNKNOWN_LEADER_EPOCH if the follower has stated this leader epoch: the metadata of this broker may be older
        than those that made it a replica.
        """
        replica = self.followers.get(broker_id)
        if replica is None:
            code = error_codes.NOT_LEADER_OR_FOLLOWER if current_leader_epoch < 0 else error_codes.UNKNOWN_LEADER_EPOCH
            text = f"broker {broker_id} does not follow {self.topic}-{self.index}, whose replicas are {self.replicas}"
            raise PartitionError(code, text)
        return replica

    def follower_fetched(self, replica: Replica, offset: int, log_start_offset: int, broker_epoch: int) -> None:
        """Update the state of a follower at the first read of its fetch, and with it the ISR and the high watermark.

        Raises PartitionError for the fetch of a broker that has been restarted since (KIP-903).
        """
        self._host.check_broker_epoch(replica.broker_id, broker_epoch)
        log = self._online_log()
        before, start_before = replica.log_end_offset, replica.log_start_offset
        replica.fetched(offset, log_start_offset, broker_epoch, log.log_end_offset, self._host.clock_ms)
        self._maybe_expand_isr(replica, log)
        if before != offset:
            self._advance_high_watermark(log)
        if start_before != log_start_offset:
            self._host.low_watermark_moved(self)

    def follower_was_at_end(self, broker_id: int, at_ms: int) -> None:
        """Note that a follower's fetch at `at_ms`, which did not read this partition, found nothing that it lacks."""
        replica = self.followers.get(broker_id)
        if replica is not None:
            replica.was_at_end(at_ms)

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
        if self.followers:
            self._host.log_has_grown(self)
        return info

    def maybe_advance_high_watermark(self) -> None:
        """Move the high watermark of a leader, if what kept it back is gone: a follower or a setting."""
        if self.is_leader and self.log is not None:
            self._advance_high_watermark(self.log)

    def _advance_high_watermark(self, log: UnifiedLog) -> None:
        """Move the high watermark as far as possible, and flush what keeps it back."""
        committable = log.committable_offset()
        if committable < log.log_end_offset and not self._is_flushing:
            self._is_flushing = True
            self._host.begin_flush(self, log)
        if self.followers:
            committable = self._replicated_offset(log, committable)
        if log.high_watermark >= committable:
            return
        log.update_high_watermark(committable)
        self._host.high_watermark_moved(self)

    def _replicated_offset(self, log: UnifiedLog, offset: int) -> int:
        """Return the end of the records below `offset` that all followers have which the high watermark waits for."""
        if len(self.isr) < self.min_isr(log):
            return log.high_watermark
        end_offset, host = log.log_end_offset, self._host
        members = self.isr if self._change is None else self._change.maximal_isr
        for broker_id, replica in self.followers.items():
            if replica.log_end_offset < offset and (
                broker_id in members
                or (
                    replica.is_caught_up(end_offset, host.clock_ms, host.max_lag_ms)
                    and host.may_join_isr(broker_id, replica.broker_epoch)
                )
            ):
                offset = replica.log_end_offset
        return offset

    def has_enough_replicas(self, log: UnifiedLog) -> bool:
        """Return whether acks=all still has its replicas after the append: the maximal ISR has min.insync.replicas."""
        members = self.isr if self._change is None else self._change.maximal_isr
        return len(members) >= self.min_isr(log)

    def low_watermark(self, log: UnifiedLog) -> int:
        """Return the lowest log start offset of the replicas that live: what is below it is deleted (KIP-107)."""
        starts = (one.log_start_offset for one in self.followers.values() if self._host.is_live(one.broker_id))
        return min((log.log_start_offset, *starts))

    # ------------------------------------------------------------------------------------------------------------ ISR

    def _maybe_expand_isr(self, replica: Replica, log: UnifiedLog) -> None:
        broker_id, end_offset = replica.broker_id, replica.log_end_offset
        if (
            self._change is None
            and broker_id not in self.isr
            and end_offset >= log.high_watermark
            and end_offset >= self._epoch_start_offset
            and self._host.may_join_isr(broker_id, replica.broker_epoch)
        ):
            self._propose((*self.isr, broker_id), is_expansion=True)

    def maybe_shrink_isr(self) -> None:
        """Propose an ISR without the followers that lag, if there are any."""
        log, host = self.log, self._host
        if self._change is not None or log is None or not self.is_leader:
            return
        lagging = [
            replica.broker_id
            for replica in self.followers.values()
            if replica.broker_id in self.isr and not replica.is_caught_up(log.log_end_offset, host.clock_ms, host.max_lag_ms)
        ]
        if lagging:
            self._propose((broker_id for broker_id in self.isr if broker_id not in lagging), is_expansion=False)

    def _propose(self, members: Iterable[int], *, is_expansion: bool) -> None:
        isr = [(broker_id, self._epoch_of(broker_id)) for broker_id in members]
        maximal = frozenset((*self.isr, *(broker_id for broker_id, _ in isr)))
        self._change = IsrChange(self.leader_epoch, self.partition_epoch, isr, maximal, is_expansion)
        self._host.alter_isr(self, self._change)

    def _epoch_of(self, broker_id: int) -> int:
        replica = self.followers.get(broker_id)
        return NO_EPOCH if replica is None or replica.broker_epoch is None else replica.broker_epoch

    def isr_answered(self, change: IsrChange, answer: IsrAnswer | int) -> None:
        """Take the controller's answer to a change, which is an error code if the controller has not made it."""
        if change is not self._change:
            return  # metadata came first
        if isinstance(answer, int):
            self._host.isr_change_failed()
            if answer in _NOT_CHANGED:
                self._change = None
                self.maybe_advance_high_watermark()
            elif answer not in _MAYBE_CHANGED:
                self._host.alter_isr(self, change)
        elif answer.leader_epoch == self.leader_epoch and answer.partition_epoch >= self.partition_epoch:
            self._change = None
            self.isr, self.partition_epoch = list(answer.isr), answer.partition_epoch
            self._host.isr_changed(is_expansion=change.is_expansion)
            self._changed()
            if self.log is not None:
                self._advance_high_watermark(self.log)

    # ---------------------------------------------------------------------------------------------------------- flushes

    def when_flushed(self, end_offset: int, callback: FlushCallback, now_ms: int) -> None:
        """Call `callback(error, now_ms)` when the records below `end_offset` are as durable as flush.messages asks for."""
        if self.log is not None and self.log.committable_offset() < end_offset:
            self._waiting_for_flush.append((end_offset, callback))
        else:
            callback(None if self.log is not None else _log_is_gone(), now_ms)

    def flush_ended(self, flushed: UnifiedLog, error: OSError | None, now_ms: int) -> None:
        """Take the end of a flush that `begin_flush` has started."""
        self._is_flushing = False
        log = self.log
        if log is not None and self.is_leader:
            self._advance_high_watermark(log)
        limit = flushed.recovery_point if log is None else log.committable_offset()
        waiting, self._waiting_for_flush = self._waiting_for_flush, []
        for end_offset, callback in waiting:
            if end_offset <= limit:
                callback(None, now_ms)
            elif log is None or not self._is_flushing:
                callback(error or _log_is_gone(), now_ms)
            else:
                self._waiting_for_flush.append((end_offset, callback))


def _log_is_gone() -> OSError:
    return FileNotFoundError(errno.ENOENT, "the log was closed or deleted before its records were durable")
