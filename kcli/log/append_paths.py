"""Appends outside of the fast path: with every check one after the other, and of followers (Kafka: UnifiedLog.append).

    path                         batches                                     checked
    ---------------------------  ------------------------------------------  ---------------------------------------------------
    UnifiedLog.append_as_leader  one of a client that is not compressed,     in one compiled pass; other batches, and those that
                                 nearly all                                  fail it, take the next path
    `check_carefully`, then      one of a client or coordinator              by kcli.log.log_validator, record_validator and
    `append_checked`                                                         producer_appends, which raise the exact error
    `append_replicated`          several, with offsets and epochs, which     size, magic, CRC; offsets must not go back; markers
                                 a leader has checked                        are sound, and in an open transaction all batches
                                                                             of its producer are transactional

If a batch has several faults, the error is the one that Kafka would return.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, Protocol

from kcli.format.structs import BATCH_PARTITION_LEADER_EPOCH_AT
from kcli.log.errors import InvalidRecordsError, RecordListTooLargeError, UnexpectedAppendOffsetError
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache
from kcli.log.local_log import LocalLog
from kcli.log.log_config import LOG_APPEND_TIME, LogConfig
from kcli.log.log_validator import AppendOrigin, ValidBatch, check_batch, whole_batch
from kcli.log.producer_appends import begin_append, check_replicated, find_repeated, finish_append
from kcli.log.producer_state_manager import BatchMetadata, ProducerStateManager
from kcli.log.record_validator import validate_records

_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")


class LogAppendInfo(NamedTuple):
    """The result of an append (Kafka: LogAppendInfo); a duplicate has the offsets of the batch that it repeats.

    `log_append_time_ms` is -1 unless message.timestamp.type is LogAppendTime; `last_epoch` is the leader epoch.
    """

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time_ms: int
    log_start_offset: int
    last_epoch: int
    duplicate: bool
    size_bytes: int
    record_count: int


class AppendableLog(Protocol):
    """The part of UnifiedLog that an append uses."""

    topic: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    leader_epochs: LeaderEpochFileCache
    producers: ProducerStateManager

    @property
    def config(self) -> LogConfig:
        """The topic's settings."""
        ...

    def local_log(self) -> LocalLog:
        """Return the segments."""
        ...

    def roll(self, now_ms: int, base_offset: int | None = None) -> None:
        """Begin a new segment."""
        ...


def check_carefully(
    records: memoryview,
    config: LogConfig,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    *,
    is_hurried: bool = False,
) -> ValidBatch:
    """Check the one batch in `records`, and convert it as the topic's settings require; this uses no log.

    Raises AppendError, and with `is_hurried` LongCheckError if the check would take long.
    """
    size = whole_batch(records)
    if not size:
        raise InvalidRecordsError("the records contain no complete batch")
    if len(records) > size and whole_batch(records, size):
        raise InvalidRecordsError("the records contain more than one batch")
    batch = check_batch(records, size, config, origin)
    validate_records(batch, config, now_ms, is_hurried=is_hurried)
    return batch


def append_checked(
    log: AppendableLog,
    batch: ValidBatch,
    leader_epoch: int,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    transaction_version: int = 0,
) -> LogAppendInfo:
    """Assign the offsets of a checked batch and append it. Raises AppendError and OSError."""
    if origin is AppendOrigin.RAFT_LEADER and batch.leader_epoch != leader_epoch:
        raise InvalidRecordsError(f"the batch has leader epoch {batch.leader_epoch}, but the leader's epoch is {leader_epoch}")
    local, config = log.local_log(), log.config
    size, data = batch.size_bytes, batch.data
    _check_segment_bytes(log, size)
    first_offset = log.log_end_offset
    batch.base_offset = first_offset
    _BASE_OFFSET.pack_into(data, 0, first_offset)
    _LEADER_EPOCH.pack_into(data, BATCH_PARTITION_LEADER_EPOCH_AT, leader_epoch)
    pending = None
    if batch.producer_id >= 0:
        known = find_repeated(log.producers, batch, local) if origin is AppendOrigin.CLIENT else None
        if known is not None:
            return _duplicate(log, known, batch, leader_epoch)
        pending = begin_append(log.producers, batch, origin, transaction_version)
    if leader_epoch >= 0 and leader_epoch != log.leader_epochs.written_epoch:
        log.leader_epochs.assign(leader_epoch, first_offset)
    last_offset = first_offset + batch.last_offset_delta
    if local.active.must_roll(local.rules, size, last_offset, batch.max_timestamp, now_ms):
        log.roll(now_ms)
    local.append((data,))
    local.active.add(local.rules, size, last_offset, batch.max_timestamp)
    log.log_end_offset = local.end_offset = last_offset + 1
    if pending is not None:
        finish_append(log.producers, batch, pending, local)
    log.producers.map_end_offset = last_offset + 1
    return LogAppendInfo(
        first_offset,
        last_offset,
        batch.max_timestamp,
        now_ms if config.message_timestamp_type == LOG_APPEND_TIME else -1,
        log.log_start_offset,
        leader_epoch,
        False,
        size,
        batch.record_count,
    )


def _check_segment_bytes(log: AppendableLog, size_bytes: int) -> None:
    if size_bytes > log.config.segment_bytes:
        raise RecordListTooLargeError(
            f"the append has {size_bytes} bytes, more than segment.bytes of this topic, {log.config.segment_bytes}"
        )


def _duplicate(log: AppendableLog, known: BatchMetadata, batch: ValidBatch, leader_epoch: int) -> LogAppendInfo:
    """Return the result for a batch that was appended before; like Kafka's, with its timestamp as the log append time."""
    return LogAppendInfo(
        known.last_offset - known.offset_delta,
        known.last_offset,
        known.timestamp,
        known.timestamp,
        log.log_start_offset,
        leader_epoch,
        True,
        batch.size_bytes,
        batch.record_count,
    )


def append_replicated(log: AppendableLog, records: memoryview, now_ms: int) -> LogAppendInfo:
    """See UnifiedLog.append_as_follower. Raises AppendError and OSError."""
    batches = _batches_of(log, records)
    check_replicated(log.producers, batches)
    size = sum(batch.size_bytes for batch in batches)
    local = log.local_log()
    _check_segment_bytes(log, size)
    last_offset = batches[-1].base_offset + batches[-1].last_offset_delta
    max_timestamp = max(batch.max_timestamp for batch in batches)
    for batch in batches:
        if batch.leader_epoch >= 0 and batch.leader_epoch != log.leader_epochs.written_epoch:
            log.leader_epochs.assign(batch.leader_epoch, batch.base_offset)
    if local.active.must_roll(local.rules, size, last_offset, max_timestamp, now_ms):
        log.roll(now_ms, batches[0].base_offset)
    local.append((records[:size],))
    for batch in batches:
        last = batch.base_offset + batch.last_offset_delta
        local.active.add(local.rules, batch.size_bytes, last, batch.max_timestamp)
    log.log_end_offset = local.end_offset = last_offset + 1
    for batch in batches:
        if batch.producer_id >= 0:
            # One after the other, because each batch may continue the sequence of the one before.
            finish_append(log.producers, batch, begin_append(log.producers, batch, AppendOrigin.REPLICATION, 0), local)
    log.producers.map_end_offset = last_offset + 1
    return LogAppendInfo(
        batches[0].base_offset,
        last_offset,
        max_timestamp,
        -1,
        log.log_start_offset,
        batches[-1].leader_epoch,
        False,
        size,
        sum(batch.record_count for batch in batches),
    )


def _batches_of(log: AppendableLog, records: memoryview) -> list[ValidBatch]:
    batches: list[ValidBatch] = []
    at, next_offset = 0, log.log_end_offset
    while at < len(records) and (size := whole_batch(records, at)):
        batch = check_batch(records[at : at + size], size, log.config, AppendOrigin.REPLICATION)
        if batch.base_offset < next_offset:
            raise UnexpectedAppendOffsetError(
                f"cannot append offset {batch.base_offset} to {log.topic}-{log.partition}: the next offset is {next_offset}"
            )
        next_offset = batch.base_offset + batch.last_offset_delta + 1
        batches.append(batch)
        at += size
    if not batches:
        raise InvalidRecordsError("the records contain no complete batch")
    return batches
