"""Protects the load of a coordinator's log with records that cannot be read: the others count, and each gap is reported.

The log is one of __consumer_offsets with commits of groups, between which a newer Kafka or a damaged disk has left something.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.format.kafka_uuid import ZERO_UUID
from kcli.format.record_batch import NO_PRODUCER
from kcli.log.log_config import LogConfig
from kcli.log.log_validator import AppendOrigin
from kcli.protocol.internal_records import OFFSETS
from kcli.server.coordinator.coordinator_record import EncodedRecord, encode_data_batch
from kcli.server.coordinator.group.offset_manager import OffsetToCommit, offset_commit_record
from tests.log.live_logs import LiveLog
from tests.server.coordinator.test_runtime import START_MS, Bench

UNKNOWN_TYPE, NEWER_VERSION = 99, 77


def commit(group: str, offset: int) -> EncodedRecord:
    """The record of a commit."""
    record = offset_commit_record(group, OffsetToCommit("t", ZERO_UUID, 0, offset, -1, None), START_MS, -1, -1)
    return EncodedRecord(*OFFSETS.encode(record.key, record.value), START_MS)


def change(
    record: EncodedRecord, key: Callable[[bytes], bytes] = bytes, value: Callable[[bytes], bytes] = bytes
) -> EncodedRecord:
    """A record with another key or value."""
    assert record.value is not None
    return EncodedRecord(key(record.key), value(record.value), record.timestamp_ms)


def typed(number: int) -> Callable[[bytes], bytes]:
    """Replace the type of a key, or the version of a value."""
    return lambda data: struct.pack(">h", number) + data[2:]


NOT_READABLE = {
    "a type of a newer Kafka": (change(commit("b", 2), key=typed(UNKNOWN_TYPE)), "has the unknown type 99"),
    "a version of a newer Kafka": (change(commit("b", 2), value=typed(NEWER_VERSION)), "unknown record version 77"),
    "a torn value": (change(commit("b", 2), value=lambda data: data[:-3]), "cannot be read"),
    "a torn key": (change(commit("b", 2), key=lambda data: data[:3]), "cannot be read"),
    "an empty key": (change(commit("b", 2), key=lambda data: b""), "cannot be read"),
    "an empty value": (change(commit("b", 2), value=lambda data: b""), "cannot be read"),
}


def append(live: LiveLog, *records: EncodedRecord) -> None:
    """Append one batch."""
    data = encode_data_batch(records, NO_PRODUCER)
    live.log.append_as_leader(memoryview(data), 0, START_MS, origin=AppendOrigin.COORDINATOR)


def load(live: LiveLog) -> tuple[dict[str, int | None], list[str]]:
    """Load the log -> the committed offset of each group, and what the log of the node says of skipped records."""
    bench = Bench(live.log)
    bench.lead(0)
    bench.settle()
    state = bench.runtime.shard(0).state
    found = {group: state.committed_offset(group, "t", 0) for group in "abc"}
    offsets = {group: None if one is None else one.offset for group, one in found.items()}
    return offsets, [line for line in bench.lines if "is skipped" in line]


@pytest.fixture
def live(tmp_path: Path) -> LiveLog:
    return LiveLog(tmp_path, LogConfig(max_message_bytes=20_000))


@pytest.mark.parametrize("name", NOT_READABLE)
def test_a_record_that_cannot_be_read_is_reported_and_the_others_count(live: LiveLog, name: str) -> None:
    record, reason = NOT_READABLE[name]
    append(live, commit("a", 1), record, commit("c", 3))
    offsets, skipped = load(live)
    assert offsets == {"a": 1, "b": None, "c": 3}
    (line,) = skipped
    assert "__consumer_offsets-0: the record at offset 1 " in line and reason in line


def test_a_damaged_batch_is_reported_and_the_others_count(live: LiveLog) -> None:
    """A flipped bit on the disk, behind the back of the broker."""
    for group, offset in ("a", 1), ("b", 2), ("c", 3):
        append(live, commit(group, offset))
    (segment,) = live.log.local_log().segments
    path = Path(segment.log_path)
    data = bytearray(path.read_bytes())
    size = len(data) // 3
    data[size + size // 2] ^= 1
    path.write_bytes(data)
    offsets, skipped = load(live)
    assert offsets == {"a": 1, "b": None, "c": 3}
    (line,) = skipped
    assert f"the batch at byte {size} of {path} is damaged" in line


def test_a_later_record_of_the_same_key_replaces_one_that_cannot_be_read(live: LiveLog) -> None:
    append(live, commit("a", 1), change(commit("a", 2), value=typed(NEWER_VERSION)), commit("b", 4))
    append(live, commit("a", 5))
    offsets, skipped = load(live)
    assert offsets == {"a": 5, "b": 4, "c": None} and len(skipped) == 1
