"""What appends and reads of a log answer with."""

from __future__ import annotations

from typing import NamedTuple

from kcli.log.disk.port import LogFile


class AppendInfo(NamedTuple):
    """What became of an append; offsets of a duplicate are those that its first copy got.

    `log_append_time_ms` is -1 unless the topic's timestamps are LogAppendTime; `last_epoch` is the leader epoch.
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


class LogSlice(NamedTuple):
    """Bytes [position, position + size) of an open segment: whole batches, or the start of one; none where `size` is 0.

    The first batch holds or follows the offset that was asked for, and may begin before it. No record of the slice is at or
    above `end_offset`, which is -1 where there is none.
    """

    file: LogFile | None
    position: int
    size: int
    end_offset: int


EMPTY_SLICE = LogSlice(None, 0, 0, -1)
