"""Protects the offsets at which a log ends: one wrong bit in the last batch's header moved its records, and nothing was said.

No CRC covers a base offset, and no batch follows the last one. Its entries in the indexes contradict it, for each reader alike.
"""

from __future__ import annotations

import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.commands.app import main
from kcli.format.index_entries import OffsetIndex, OffsetIndexEntry, TimeIndex, TimeIndexEntry
from kcli.format.primitives import INT64_MAX
from kcli.inspect.repairing.salvage import LogSalvager, SegmentSalvage
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import Segment, read_log_directory, read_partition
from kcli.log.reading.columnar_reader import BatchRows, ColumnarReader
from kcli.log.reading.index_positions import IndexPositions
from kcli.log.reading.offset_lookup import OffsetLookup
from kcli.log.reading.offset_witnesses import OffsetWitnesses
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from tests.conftest import every_log_set
from tests.log_builder import BASE_TIMESTAMP, PartitionBuilder

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
    with SegmentReader(OsDisk(), segment.log, doubts_offsets=True) as reader:
        found = [one.position for one in reader.batches() if isinstance(one, LogBatch) and one.contradiction is not None]
    columns = ColumnarReader(OsDisk(), segment.log, doubts_offsets=True)
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
                with SegmentReader(disk, segment.log, doubts_offsets=True) as reader:
                    assert reader.last_contradiction() is None, segment.log
                    assert [one for one in reader.batches() if isinstance(one, LogBatch) and one.contradiction] == []
                    assert list(OffsetWitnesses(reader.file, IndexPositions(disk, segment.log)).all()) == []
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


def build_cleaned(directory: Path, gap: int = 40, every: int = 2) -> tuple[PartitionBuilder, list[tuple[int, int]]]:
    """Twelve batches of three records, each second one with an entry in .index -> their offsets and bytes.

    A gap is behind each second batch, or behind each one.
    """
    log, places = PartitionBuilder(directory), []
    for number in range(BATCHES):
        places.append((log.offset, len(log.log)))
        log.append([(b"k%d" % number, b"v")] * 3)
        log.offset += gap * (number % every == every - 1)
    log.flush()
    return log, places


def all_contradicted(segment: Segment) -> list[int]:
    """The bytes of the batches that are contradicted, by each reader and for `compact`."""
    found = contradicted(segment)
    file = OsDisk().open_file(segment.log)
    assert [one.position for one in OffsetWitnesses(file, IndexPositions(OsDisk(), segment.log)).all()] == found
    file.close()
    return found


@pytest.mark.parametrize("shift", [8, 16, 32, -1, -4, -16])
def test_an_index_contradicts_a_batch_between_gaps(tmp_path: Path, shift: int) -> None:
    """Readers gave its records out at wrong offsets, and repair and compaction wrote a new index from the wrong header."""
    log, places = build_cleaned(tmp_path / "t-0", every=1 if shift < 0 else 2)
    segment = read_partition(OsDisk(), str(tmp_path / "t-0")).segments[0]
    assert all_contradicted(segment) == []
    offset, position = places[5]
    move(log.path(".log"), position, offset + shift)
    assert all_contradicted(segment) == [position]
    assert repaired(segment)[1] == {position: offset}


def repaired(segment: Segment) -> tuple[SegmentSalvage, dict[int, int]]:
    """What a repair does with a segment alone, and the base offsets that it corrects, by byte."""
    salvage = LogSalvager(OsDisk()).salvage(segment.log, segment.base_offset, segment.base_offset, INT64_MAX)
    return salvage, {fix.position: int.from_bytes(fix.data, "big") for fix in salvage.fixes}


@settings(max_examples=150, deadline=None)
@given(
    row=st.sampled_from([3, 5, 7, 9]),
    bit=st.integers(0, 9),
    gap=st.sampled_from([5, 40, 600]),
    every=st.sampled_from([1, 2]),
    place=st.sampled_from(["header", "index"]),
)
def test_readers_and_repair_explain_alike(row: int, bit: int, gap: int, every: int, place: str) -> None:
    """A batch between gaps is damage for the readers if, and only if, a repair moves it: they judge by the same costs.

    A wrong bit in the header is corrected, or another explanation costs the same and is named; none of the shifts fills a gap.
    """
    with TemporaryDirectory() as directory:
        log, places = build_cleaned(Path(directory) / "t-0", gap, every)
        segment = read_partition(OsDisk(), str(Path(directory) / "t-0")).segments[0]
        offset, position = places[row]
        if place == "header":
            move(log.path(".log"), position, offset ^ 1 << bit)
        else:
            data = log.path(".index").read_bytes()
            wrong = struct.pack(">ii", (offset + 2) ^ 1 << bit, position)
            log.path(".index").write_bytes(data.replace(struct.pack(">ii", offset + 2, position), wrong))
        stated = offset ^ 1 << bit if place == "header" else offset
        salvage, fixes = repaired(segment)
        assert set(fixes) <= {position}
        assert all_contradicted(segment) == [*fixes]
        if place == "header":
            assert fixes == {position: offset} or salvage.alternatives or stated < places[row - 1][0] + 3, salvage
        else:
            assert not fixes or salvage.alternatives, salvage


def test_a_tie_goes_to_the_index_and_is_named(tmp_path: Path) -> None:
    """A wrong byte of a header can cost as much as a wrong bit of the entry: no index is rebuilt from what it contradicts."""
    log, places = build_cleaned(tmp_path / "t-0")
    offset, position = places[5]
    move(log.path(".log"), position, offset + 8)
    segment = read_partition(OsDisk(), str(tmp_path / "t-0")).segments[0]
    salvage, fixes = repaired(segment)
    assert fixes == {position: offset}
    assert [one.message for one in salvage.alternatives] == [
        f"another explanation costs the same: the batch at byte {position} has base offset {offset + 8}"
    ]


def test_a_timestamp_decides_between_header_and_index(tmp_path: Path) -> None:
    """Both are wrong by one bit for the other; the entry of .timeindex is the third witness, for readers and repair."""
    log, places = build_cleaned(tmp_path / "t-0")
    offset, position = places[5]
    times = TimeIndex.decode(log.path(".timeindex").read_bytes(), 0)
    stamp = BASE_TIMESTAMP + 10 * (offset + 2)
    segment = read_partition(OsDisk(), str(tmp_path / "t-0")).segments[0]
    data = log.path(".index").read_bytes()
    wrong = struct.pack(">ii", offset + 2 + 8, position)
    log.path(".index").write_bytes(data.replace(struct.pack(">ii", offset + 2, position), wrong))
    assert all_contradicted(segment) == [*repaired(segment)[1]]
    entries = [*times.entries()]
    entries.insert(3, TimeIndexEntry(stamp, offset + 2))
    log.path(".timeindex").write_bytes(TimeIndex.of(0, entries).encode())
    assert all_contradicted(segment) == [*repaired(segment)[1]] == []


def test_each_command_names_a_contradicted_batch_between_gaps(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They showed its records at the offsets of nothing, and exit code 0."""
    log, places = build_cleaned(tmp_path / "t-0")
    offset, position = places[5]
    move(log.path(".log"), position, offset + 32)
    sentence = f"byte {position}: the batch states offsets {offset + 32} to {offset + 34}, but the entry of {0:020d}.index"
    for words in (["dump-log", "--output", "csv"], ["replay", "--dry-run"], ["compact", "--any-policy"]):
        assert main([*words, str(tmp_path / "t-0")]) == 1, words
        printed = capfd.readouterr()
        assert sentence in printed.err + printed.out, (words, printed)
        assert f"{offset + 32}," not in printed.out, words
    assert main(["verify", "--repair", "--apply", str(tmp_path / "t-0")]) == 0
    capfd.readouterr()
    assert main(["dump-log", "--output", "csv", str(tmp_path / "t-0")]) == 0
    assert f",{offset + 2}," in capfd.readouterr().out


def test_a_part_of_an_index_is_found_in_the_file(tmp_path: Path) -> None:
    """Without reading it all: the entries of any part of a segment are those of the whole index, zeros after them or not."""
    path = tmp_path / f"{7:020d}.log"
    path.write_bytes(b"")
    entries = [OffsetIndexEntry(8 + 3 * number, 100 + 10 * number) for number in range(3000)]
    asked = [(0, 0, 1), (100, 105, 1), (101, 300, 2), (12_000, 12_001, 1), (29_000, 60_000, 1), (90_000, 90_000, 2)]
    for zeros in (0, 8 * 40, 8 * 9000):
        path.with_suffix(".index").write_bytes(OffsetIndex.of(7, entries).encode() + bytes(zeros))
        parts = IndexPositions(OsDisk(), str(path))
        for position, end, before in asked:
            index = parts.near(position, end, before)
            found = list(map(index.entry, range(len(index))))
            below = [entry for entry in entries if entry.position < position][-before:]
            assert {*below, *(entry for entry in entries if position <= entry.position <= end)} <= {*found}
            start = entries.index(found[0])
            assert found == entries[start : start + len(found)]
