"""Appends that are not the plain case: every check one after the other, and batches of followers (Kafka: UnifiedLog.append).

    path                         batches                                     checked
    ---------------------------  ------------------------------------------  ---------------------------------------------------
    UnifiedLog.append_as_leader  plain ones, which are nearly all            in one compiled pass; where anything is odd ...
    `check_carefully`, then      one of a client or coordinator              ... by kcli.log.log_validator, record_validator and
    `append_checked`                                                         producer_checks, which say what it is
    `append_replicated`          several, with offsets and epochs, that a    size, magic, CRC; offsets must go on
                                 leader checked

The order in which errors win is Kafka's.
"""

from __future__ import annotations

from struct import Struct
from typing import Protocol

from kcli.format.structs import BATCH_PARTITION_LEADER_EPOCH_AT
from kcli.log.append_errors import InvalidRecordsError, RecordListTooLargeError, UnexpectedAppendOffsetError
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache
from kcli.log.local_log import LocalLog
from kcli.log.log_config import LOG_APPEND_TIME, LogConfig
from kcli.log.log_slices import AppendInfo
from kcli.log.log_validator import AppendOrigin, ValidBatch, check_batch, whole_batch
from kcli.log.producer_appends import begin_append, find_repeated, finish_append
from kcli.log.producer_state_manager import BatchMetadata, ProducerStateManager
from kcli.log.record_validator import validate_records

_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")


class AppendableLog(Protocol):
    """What an append needs of a log, which is a UnifiedLog."""

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
        """The segments."""
        ...

    def roll(self, now_ms: int, base_offset: int | None = None) -> None:
        """Begin a segment."""
        ...


def check_carefully(
    records: memoryview,
    config: LogConfig,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    *,
    is_hurried: bool = False,
) -> ValidBatch:
    """The one batch that `records` are, checked and changed as a log of these settings wants it; no log is touched.

    Raises AppendError; LongCheckError where it `is_hurried` and this would take long.
    """
    size = whole_batch(records)
    if not size:
        raise InvalidRecordsError("the records hold no whole batch")
    if len(records) > size and whole_batch(records, size):
        raise InvalidRecordsError("the records hold more than one batch")
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
) -> AppendInfo:
    """Give a batch that was checked its offsets and append it. Raises AppendError and OSError."""
    if origin is AppendOrigin.RAFT_LEADER and batch.leader_epoch != leader_epoch:
        raise InvalidRecordsError(f"the batch has leader epoch {batch.leader_epoch}; the leader's is {leader_epoch}")
    local, config = log.local_log(), log.config
    size, data = batch.size_bytes, batch.data
    _check_segment_bytes(log, size)
    first_offset = log.log_end_offset
    batch.base_offset = first_offset
    _BASE_OFFSET.pack_into(data, 0, first_offset)
    _LEADER_EPOCH.pack_into(data, BATCH_PARTITION_LEADER_EPOCH_AT, leader_epoch)
    pending = None
    if batch.producer_id >= 0:
        known = find_repeated(log.producers, batch) if origin is AppendOrigin.CLIENT else None
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
    return AppendInfo(
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
            f"{size_bytes} bytes are more than a segment of this topic holds ({log.config.segment_bytes}, segment.bytes)"
        )


def _duplicate(log: AppendableLog, known: BatchMetadata, batch: ValidBatch, leader_epoch: int) -> AppendInfo:
    """The answer to a batch that is there; like Kafka's, with its timestamp as the one of the append."""
    return AppendInfo(
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


def append_replicated(log: AppendableLog, records: memoryview, now_ms: int, leader_epoch: int | None) -> AppendInfo:
    """See UnifiedLog.append_as_follower. Raises AppendError and OSError."""
    batches = _batches_of(log, records, leader_epoch)
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
            # One after the other, since a batch may go on from the one before.
            finish_append(log.producers, batch, begin_append(log.producers, batch, AppendOrigin.REPLICATION, 0), local)
    log.producers.map_end_offset = last_offset + 1
    return AppendInfo(
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


def _batches_of(log: AppendableLog, records: memoryview, leader_epoch: int | None) -> list[ValidBatch]:
    batches: list[ValidBatch] = []
    at, next_offset = 0, log.log_end_offset
    while at < len(records) and (size := whole_batch(records, at)):
        batch = check_batch(records[at : at + size], size, log.config, AppendOrigin.REPLICATION)
        if leader_epoch is not None and batch.leader_epoch > leader_epoch:
            break
        if batch.base_offset < next_offset:
            raise UnexpectedAppendOffsetError(
                f"offset {batch.base_offset} is below {next_offset}, which is next in {log.topic}-{log.partition}"
            )
        next_offset = batch.base_offset + batch.last_offset_delta + 1
        batches.append(batch)
        at += size
    if not batches:
        raise InvalidRecordsError("the records hold no whole batch")
    return batches
