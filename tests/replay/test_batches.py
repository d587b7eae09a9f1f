"""Protects what is sent of a log: batches without gaps, with the records, timestamps and order of the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.compression import inflate
from kcli.format.record_batch import HEADER_BYTES, check_batch
from kcli.format.records import Header, read_records
from kcli.log.disk.os_disk import OsDisk
from kcli.replay.directory_source import DirectorySource, Problems
from kcli.replay.source import OutgoingBatch, SourceError
from kcli.selecting.selection import Selection, parse_selection
from tests.conftest import SHARED
from tests.damage.layout import flip
from tests.log_builder import PartitionBuilder
from tests.replay.delivered import delivered

HEADERS = (Header(b"h", b"1"), Header(b"n", None))


def outgoing(root: Path, selection: Selection, from_offset: int = 0, join_bytes: int = 0) -> list[OutgoingBatch]:
    problems = Problems(lambda sentence: None)
    wants = lambda topic: not topic.startswith("__")  # noqa: E731
    source = DirectorySource(OsDisk(), [str(root)], selection, wants, problems, str, join_bytes)
    found = []
    for where in source.partitions():
        stream = source.open(where, from_offset, [])
        while (batch := stream.peek()) is not None:
            stream.take()
            batch.stamp(5, 1, 77)
            found.append(batch)
        stream.close()
    return found


def records_of(batches: list[OutgoingBatch]) -> list[tuple[int, bytes | None, bytes | None, int]]:
    """Timestamp, key, value and number of headers; each batch is one that a broker accepts."""
    found = []
    for batch in batches:
        header = check_batch(batch.data)
        assert (header.base_offset, header.producer_id, header.producer_epoch, header.base_sequence) == (0, 5, 1, 77)
        assert header.record_count == header.last_offset_delta + 1 == batch.record_count > 0
        assert not header.is_log_append_time and not header.is_transactional and not header.is_control
        records = list(read_records(inflate(header.codec, batch.data[HEADER_BYTES:], limit=1 << 24), header.record_count))
        assert [record.offset_delta for record in records] == list(range(len(records)))
        stamps = [header.base_timestamp + record.timestamp_delta for record in records]
        assert max(stamps) == header.max_timestamp
        found += [(stamp, record.key, record.value, len(record.headers)) for stamp, record in zip(stamps, records, strict=True)]
    return found


@pytest.fixture
def log(tmp_path: Path) -> PartitionBuilder:
    builder = PartitionBuilder(tmp_path / "t-0")
    for codec in range(5):
        builder.append([(b"k%d" % at, None if at == 3 else b"v%d" % at) for at in range(6)], codec=codec, headers=HEADERS)
        builder.append([(None, b"w")], append_time=True, timestamp=5_000)
    builder.append([(b"open", b"x")], producer=9, transactional=True)
    builder.end_transaction(9, commit=False)
    builder.flush()
    return builder


SELECTIONS = [
    {"isolation": "read_committed"},
    {"isolation": "read_uncommitted"},
    {"offset": "3..17"},
    {"offset": "10"},
    {"keys": ["k2", "k5"]},
    {"headers": ["h=1"], "offset": "..9"},
    {"time": "1700000000050..1700000000200"},
    {"limit": 9},
    {"tail": 4, "isolation": "read_committed"},
    {"producer_ids": ["9"]},
]


@pytest.mark.parametrize("join_bytes", [0, 150, 1 << 20])
@pytest.mark.parametrize("options", SELECTIONS, ids=str)
def test_what_is_selected_is_sent(log: PartitionBuilder, options: dict[str, str], join_bytes: int) -> None:
    """As dump-log selects: the same rows, without control records; joined or not."""
    selection = parse_selection(**options)  # type: ignore[arg-type]
    rows = [(row.timestamp, row.key, row.value, len(row.headers)) for row in log.rows if is_selected(log, row.offset, options)]
    assert records_of(outgoing(log.directory, selection, 0, join_bytes)) == rows


def is_selected(log: PartitionBuilder, offset: int, options: dict[str, str]) -> bool:
    row = log.rows[offset]
    data = [one.offset for one in log.rows if one.offset != 36]
    if offset == 36 or (options.get("isolation") == "read_committed" and offset == 35):
        return False
    if "limit" in options:
        return offset in data[:9]
    if "tail" in options:
        return offset in data[-5:-1]
    if "offset" in options and not (
        {"3..17": 3, "10": 10, "..9": 0}[options["offset"]] <= offset < {"3..17": 17, "10": 11, "..9": 9}[options["offset"]]
    ):
        return False
    if "time" in options and not 1700000000050 <= row.timestamp < 1700000000200:
        return False
    if "keys" in options and row.key not in (b"k2", b"k5"):
        return False
    if "headers" in options and not row.headers:
        return False
    return not ("producer_ids" in options and offset != 35)


@pytest.mark.parametrize("join_bytes", [0, 300])
@pytest.mark.parametrize("codec", range(5))
def test_a_run_that_goes_on_makes_the_same_batches(tmp_path: Path, codec: int, join_bytes: int) -> None:
    builder = PartitionBuilder(tmp_path / "t-0")
    for at in range(10):
        builder.append([(b"k", b"v%d" % at)] * 3, codec=codec)
    builder.flush()
    for selection in (Selection(), parse_selection(offset="2..28"), parse_selection(limit=20)):
        batches = outgoing(tmp_path, selection, 0, join_bytes)
        assert len(batches) < 8 or not join_bytes or codec
        for at, batch in enumerate(batches):
            rest = outgoing(tmp_path, selection, batch.next_offset, join_bytes)
            assert [one.data for one in rest] == [one.data for one in batches[at + 1 :]]


def test_timestamps_that_no_batch_can_have_together_are_not_joined(tmp_path: Path) -> None:
    """The second batch was left out as damaged, and the place of a group in it was the end of the partition."""
    builder = PartitionBuilder(tmp_path / "t-0")
    stamps = (-(2**63), 1000, 2**63 - 1, 2**63 - 1, 1000)
    for stamp in stamps:
        builder.append([(b"k", b"v"), (b"k", b"w")], timestamp=stamp)
    builder.flush()
    sentences: list[str] = []
    source = DirectorySource(
        OsDisk(), [str(tmp_path)], Selection(), lambda topic: True, Problems(sentences.append), str, 1 << 20
    )
    stream = source.open(("t", 0), 0, [3, 5])
    found = []
    while (batch := stream.peek()) is not None:
        stream.take()
        batch.stamp(5, 1, 77)
        found.append(batch)
    assert [stamp for stamp, *_ in records_of(found)] == [stamp for stamp in stamps for _ in range(2)] and not sentences
    assert len(found) < len(stamps)
    places = {one.offset: batch.first_offset + one.slot for batch in found for one in batch.watched}
    assert places == {3: 3, 5: 5}


@pytest.mark.parametrize("join_bytes", [0, 10_000])
@pytest.mark.parametrize("codec", [0, 4])
def test_a_batch_with_a_delete_horizon_is_due_at_its_first_record(tmp_path: Path, codec: int, join_bytes: int) -> None:
    """Its base timestamp is the time when its tombstones may go: a replay with --speed waited until then."""
    builder = PartitionBuilder(tmp_path / "t-0")
    builder.append([(b"k", None), (b"l", None)], timestamp=1000, horizon=400 * 86_400_000, codec=codec)
    builder.append([(b"k", b"v")], timestamp=2000)
    builder.flush()
    batches = outgoing(tmp_path, Selection(), 0, join_bytes)
    assert [batch.timestamp for batch in batches] == ([1000] if join_bytes and not codec else [1000, 2000])
    assert [stamp for stamp, *_ in records_of(batches)] == [1000, 1000, 2000]


def test_damage_is_left_out_and_reported(log: PartitionBuilder) -> None:
    path = log.path(".log")
    flip(path, 70)
    sentences: list[str] = []
    problems = Problems(sentences.append)
    source = DirectorySource(OsDisk(), [str(log.directory)], Selection(), lambda topic: True, problems)
    stream = source.open(("t", 0), 0, [])
    first = stream.peek()
    assert first is not None and first.first_offset == 6 and problems.damages == 1
    assert "byte 0: the stored CRC is" in sentences[0] and sentences[0].endswith("offsets 0 to 5; left out")


def test_paths_that_hold_nothing(tmp_path: Path) -> None:
    problems = Problems(lambda sentence: None)
    with pytest.raises(SourceError):
        DirectorySource(OsDisk(), [str(tmp_path / "none")], Selection(), lambda topic: True, problems)
    assert problems.unopened == 1


@pytest.mark.parametrize("name", ["kafka-logs", "kafka-logs-legacy"])
def test_logs_of_kafka_as_dump_log_shows_them(name: str) -> None:
    data = SHARED / name / "data"
    if not data.is_dir():
        pytest.skip(f"../shared/{name} is not beside this checkout")
    batches = outgoing(data, parse_selection(isolation="read_committed"))
    assert len(records_of(batches)) == sum(map(len, delivered(data).values())) > 0
