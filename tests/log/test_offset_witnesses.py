"""Protects the offsets at which a log ends: one wrong bit in the last batch's header moved its records, and nothing was said.

No CRC covers a base offset, and no batch follows the last one. Its entries in the indexes contradict it, for each reader alike.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kcli.commands.app import main
from kcli.format.index_entries import OffsetIndex
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import Segment, read_log_directory, read_partition
from kcli.log.reading.columnar_reader import BatchRows, ColumnarReader
from kcli.log.reading.offset_lookup import OffsetLookup
from kcli.log.reading.offset_witnesses import contradictions
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from tests.conftest import every_log_set
from tests.log_builder import PartitionBuilder

BATCHES = 12  # of five records each


def build(directory: Path) -> tuple[Segment, PartitionBuilder, int]:
    """Twelve batches; the last one, at the byte returned, has an entry in .index, and none in .timeindex yet."""
    log = PartitionBuilder(directory)
    for _ in range(BATCHES):
        last = len(log.log)
        log.append([(b"k", b"v")] * 5)
    log.flush()
    return read_partition(OsDisk(), str(directory)).segments[0], log, last


def move(path: Path, position: int, base_offset: int) -> None:
    """Give a batch another base offset."""
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, position, base_offset)
    path.write_bytes(data)


def contradicted(segment: Segment) -> list[int]:
    """The bytes of the batches that are contradicted, by each reader."""
    with SegmentReader(OsDisk(), segment.log, doubts_last=True) as reader:
        found = [one.position for one in reader.batches() if isinstance(one, LogBatch) and one.contradiction is not None]
    columns = ColumnarReader(OsDisk(), segment.log, doubts_last=True)
    rows = [step.batch for step in columns.steps() if isinstance(step, BatchRows)]
    columns.close()
    assert [one.position for one in rows if isinstance(one, LogBatch) and one.contradiction is not None] == found
    return found


@pytest.mark.parametrize("bit", [6, 7, 16, 24, 32])
def test_an_index_contradicts_the_last_batch(tmp_path: Path, bit: int) -> None:
    """The log ends before it; a reader that reports damage reads it."""
    segment, log, last = build(tmp_path / "t-0")
    move(log.path(".log"), last, 55 + (1 << bit))
    assert contradicted(segment) == [last]
    with OffsetLookup(OsDisk(), segment) as lookup:
        assert lookup.end()[:2] == (55, last)
        assert lookup.end(counts_damaged=True)[:2] == (56, len(log.log))


@pytest.mark.parametrize("wrong", ["entry", "no entry", "a gap"])
def test_a_sound_last_batch_is_kept(tmp_path: Path, wrong: str) -> None:
    """A wrong entry contradicts nothing that the batch before supports, and a gap alone is the cleaner's."""
    segment, log, last = build(tmp_path / "t-0")
    entries = log.path(".index").read_bytes()
    if wrong == "entry":
        log.path(".index").write_bytes(entries[:-8] + struct.pack(">ii", 123, last))
    else:
        log.path(".index").write_bytes(entries[:-8])
        move(log.path(".log"), last, 55 if wrong == "no entry" else 70)
    assert contradicted(segment) == []
    with OffsetLookup(OsDisk(), segment) as lookup:
        assert lookup.end_offset() == (75 if wrong == "a gap" else 60)


def test_a_timestamp_supports_or_contradicts(tmp_path: Path) -> None:
    """The time index outvotes nothing: one witness for the header is enough, and alone it may speak against it."""
    segment, log, last = build(tmp_path / "t-0")
    log._times.maybe_append(*log._largest)
    log.flush()
    entries = log.path(".index").read_bytes()
    move(log.path(".log"), last, 65)
    log.path(".index").write_bytes(entries[:-8])
    assert contradicted(segment) == [last]
    log.path(".index").write_bytes(entries[:-8] + struct.pack(">ii", 69, last))
    assert contradicted(segment) == []


def test_sound_logs_are_not_contradicted() -> None:
    """No batch that Kafka wrote is: old entries of several batches, cleaned segments, transactions."""
    disk, seen = OsDisk(), 0
    for log_set in every_log_set():
        for partition in read_log_directory(disk, str(log_set.data)).partitions:
            for segment in partition.segments:
                with SegmentReader(disk, segment.log, doubts_last=True) as reader:
                    assert reader.last_contradiction() is None, segment.log
                    assert list(contradictions(disk, segment.log, reader.file)) == []
                seen += 1
    assert seen


def test_each_command_names_the_contradiction(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They took the batch at its word, without a line."""
    _, log, last = build(tmp_path / "t-0")
    move(log.path(".log"), last, 55 + 64)
    sentence = f"byte {last}: the batch states offsets 119 to 123, but the entry of {0:020d}.index at its byte has offset 59"
    for words in (["dump-log", "--output", "csv"], ["describe"], ["replay", "--dry-run"]):
        assert main([*words, str(tmp_path / "t-0")]) == 1, words
        printed = capfd.readouterr()
        assert sentence in printed.err, words
        assert "123" not in printed.out, words
    assert main(["dump-log", "--output", "text", str(log.path(".log"))]) == 1
    assert f"DAMAGED at bytes [{last}, {len(log.log)}) (bad-offsets): the batch states" in capfd.readouterr().out


def test_an_index_contradicts_a_batch_of_a_cleaned_log(tmp_path: Path) -> None:
    """Compaction writes the indexes anew: it must not destroy what contradicts a header."""
    log = PartitionBuilder(tmp_path / "t-0")
    places = []
    for number in range(BATCHES):
        places.append((log.offset, len(log.log)))
        log.append([(b"k%d" % number, b"v")])
        log.offset += 40 * (number % 2)
    log.flush()
    path, (offset, position) = log.path(".log"), places[5]
    assert offset in [entry.offset for entry in OffsetIndex.decode(log.path(".index").read_bytes(), 0).entries()]
    file = OsDisk().open_file(str(path))
    assert list(contradictions(OsDisk(), str(path), file)) == []
    move(path, position, offset + 8)
    assert [one.position for one in contradictions(OsDisk(), str(path), file)] == [position]
    file.close()
