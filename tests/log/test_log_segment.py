"""Protects one segment's recovery and its searches, on segments that are built here; Kafka's own verdict on damaged ones is
in tests/oracle/test_repair.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.indexes import IndexSettings
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache
from kcli.log.loading.recovering_segment import (
    LogRefusedError,
    MissingIndexError,
    OffsetOverflowError,
    OffsetsGoBackError,
    RecoveringSegment,
)
from kcli.log.producer_state_manager import ProducerStateManager
from kcli.log.slices import finish
from tests.log_builder import PartitionBuilder


def build(directory: Path, batches: int = 20, records: int = 3) -> PartitionBuilder:
    builder = PartitionBuilder(directory)
    for i in range(batches):
        builder.append([(b"key", bytes(100))] * records, producer=7)
        builder.epoch = i // 8
    builder.flush()
    return builder


def open_segment(directory: Path, interval_bytes: int = 500) -> RecoveringSegment:
    return RecoveringSegment(OsDisk(), str(directory), 0, IndexSettings(interval_bytes))


def recover(segment: RecoveringSegment, directory: Path) -> tuple[int, ProducerStateManager, LeaderEpochFileCache]:
    producers, epochs = ProducerStateManager(OsDisk(), str(directory)), LeaderEpochFileCache()
    truncated_bytes = finish(segment.recover(producers, epochs)).truncated_bytes
    segment.close()
    return truncated_bytes, producers, epochs


def test_recovery_rebuilds_what_follows_from_the_batches(tmp_path: Path) -> None:
    """Indexes, the producer's last batch, the leader epochs; a sound log keeps its bytes."""
    builder = build(tmp_path / "t-0")
    builder.path(".index").unlink()
    segment = open_segment(tmp_path / "t-0")
    truncated_bytes, producers, epochs = recover(segment, tmp_path / "t-0")
    assert truncated_bytes == 0
    assert builder.path(".log").read_bytes() == builder.log
    assert [tuple(entry) for entry in epochs.entries] == [(0, 0), (1, 27), (2, 51)]
    assert producers.map_end_offset == 60
    assert producers.producers[7].batches[-1].last_offset == 59
    entries = list(segment.offset_index.entries())
    assert len(entries) == 9
    for offset, position in entries:
        assert int.from_bytes(builder.log[position : position + 8], "big") + 2 == offset
    assert segment.time_index.last_entry.offset == 59


@pytest.mark.parametrize("interval_bytes", [0, 500, 100_000])
def test_every_offset_is_found_through_any_index(tmp_path: Path, interval_bytes: int) -> None:
    """The batch that holds the offset, or the first behind it; nothing behind the end."""
    builder = build(tmp_path / "t-0")
    segment = open_segment(tmp_path / "t-0", interval_bytes)
    recover(segment, tmp_path / "t-0")
    size = len(builder.log) // 20
    for offset in range(60):
        assert segment.translate_offset(offset) == (offset // 3 * 3, offset // 3 * size, size)
    assert segment.translate_offset(60) is None
    assert segment.read_next_offset() == 60


def test_a_torn_tail_and_a_flipped_bit_are_cut(tmp_path: Path) -> None:
    """At the first bad batch, with all behind it; the explanation names the byte."""
    builder = build(tmp_path / "t-0")
    said: dict[str, str] = {}
    log = builder.path(".log")
    size = len(builder.log) // 20
    log.write_bytes(builder.log[:-1])
    segment = RecoveringSegment(OsDisk(), str(tmp_path / "t-0"), 0, IndexSettings(), said.__setitem__)
    assert recover(segment, tmp_path / "t-0")[0] == size - 1
    log.write_bytes(builder.log[: 5 * size + 30] + b"\xff" + builder.log[5 * size + 31 :])
    truncated_bytes, producers, _ = recover(segment, tmp_path / "t-0")
    assert (truncated_bytes, log.stat().st_size, producers.map_end_offset) == (15 * size, 5 * size, 15)
    assert f"byte {5 * size}" in said[str(log)]


def test_a_magic_that_does_not_exist_passes_as_in_kafka(tmp_path: Path) -> None:
    """It lies outside of the CRC; Kafka takes what is above 2 for 2. A negative one it takes for an old message: cut."""
    builder = build(tmp_path / "t-0")
    log, size = builder.path(".log"), len(builder.log) // 20
    for magic, kept in ((3, 20), (0x82, 4), (0, 4)):
        data = bytearray(builder.log)
        data[4 * size + 16] = magic
        log.write_bytes(data)
        recover(open_segment(tmp_path / "t-0"), tmp_path / "t-0")
        assert log.stat().st_size == kept * size


def batch(
    offset: int, *, flags: int = 0, records: list[Record] | None = None, producer: int = -1, timestamp_ms: int = 1000
) -> bytes:
    rows = [Record(0, 0, b"k", bytes(200))] if records is None else records
    return NewRecordBatch(
        offset,
        0,
        timestamp_ms,
        timestamp_ms,
        len(rows),
        encode_records(rows),
        flags,
        0,
        producer,
        0 if producer >= 0 else -1,
    ).encode()


def segment_of(directory: Path, *batches: bytes, interval_bytes: int = 0) -> RecoveringSegment:
    directory.mkdir(exist_ok=True)
    (directory / f"{0:020d}.log").write_bytes(b"".join(batches))
    return open_segment(directory, interval_bytes)


def test_offsets_that_cannot_be(tmp_path: Path) -> None:
    """Too far above the base: another segment's business. Not rising at an index entry: the segment is given up."""
    far = segment_of(tmp_path / "far", batch(0), batch(2**31))
    with pytest.raises(OffsetOverflowError):
        recover(far, tmp_path / "far")
    back = segment_of(tmp_path / "back", batch(5), batch(6), batch(6))
    with pytest.raises(OffsetsGoBackError):
        recover(back, tmp_path / "back")
    assert back.truncate_to(0) == len(batch(0)) * 3
    assert back.size_bytes == 0


def test_a_last_time_index_entry_that_goes_back(tmp_path: Path) -> None:
    """A recovery ends with the entry of the largest timestamp. If its offset goes back, Kafka gives the segment up as well.

    No batch behind the one with the high offset has an index entry of its own: it is less than the interval behind it.
    """
    batches = [batch(offset, timestamp_ms=1000 + index) for index, offset in enumerate((0, 1, 50, 2))]
    segment = segment_of(tmp_path / "back", *batches, interval_bytes=len(batches[0]) + 1)
    with pytest.raises(OffsetsGoBackError) as caught:
        recover(segment, tmp_path / "back")
    assert caught.value.position == sum(map(len, batches[:3]))


def test_markers_that_cannot_be_read(tmp_path: Path) -> None:
    """One kind cuts behind itself, the batch stays; the other kind keeps a broker from starting, and says where."""
    control = CONTROL_FLAG | TRANSACTIONAL_FLAG
    invalid = batch(1, flags=control, producer=3, records=[Record(0, 0, b"\xff\xff\x00\x00", bytes(6))])
    segment = segment_of(tmp_path / "cut", batch(0), invalid, batch(2))
    truncated_bytes, producers, _ = recover(segment, tmp_path / "cut")
    assert (truncated_bytes, producers.map_end_offset) == (len(batch(2)), 1)
    unknown = batch(1, flags=control, producer=3, records=[Record(0, 0, b"\x00\x00\x00\x04", bytes(6))])
    refused = segment_of(tmp_path / "refused", batch(0), unknown)
    with pytest.raises(LogRefusedError) as caught:
        recover(refused, tmp_path / "refused")
    assert (caught.value.position, caught.value.end_position) == (len(batch(0)), len(batch(0)) + len(unknown))


def test_aborted_transactions_are_indexed(tmp_path: Path) -> None:
    """With the last stable offset that holds from their markers on; committed ones are not."""
    builder = PartitionBuilder(tmp_path / "t-0")
    for producer in (1, 2, 3):
        builder.append([(b"k", b"v")], producer=producer, transactional=True)
    builder.end_transaction(2, commit=False)
    builder.end_transaction(1, commit=True)
    builder.end_transaction(3, commit=False)
    builder.flush()
    wanted = builder.path(".txnindex").read_bytes()
    builder.path(".txnindex").write_bytes(b"garbage")
    recover(open_segment(tmp_path / "t-0"), tmp_path / "t-0")
    assert builder.path(".txnindex").read_bytes() == wanted
    assert len(wanted) == 2 * 34


def test_what_is_looked_at_before_a_segment_is_trusted(tmp_path: Path) -> None:
    """A missing .index is an error, a missing .timeindex an empty one, a .txnindex of an unknown version a refusal."""
    builder = build(tmp_path / "t-0")
    segment = open_segment(tmp_path / "t-0")
    segment.sanity_check(has_time_index=False)
    assert builder.path(".timeindex").read_bytes() == b""
    builder.path(".txnindex").write_bytes(b"\x01" + bytes(33))
    with pytest.raises(LogRefusedError, match="version 1"):
        segment.sanity_check(has_time_index=True)
    builder.path(".index").unlink()
    with pytest.raises(MissingIndexError):
        segment.sanity_check(has_time_index=True)
