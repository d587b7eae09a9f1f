"""Spans of batches read as one window: the same rows as batch by batch, compiled and interpreted, sound and damaged."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import arrow_columns
from kcli.format.batch_scan import SOUND, BatchColumns
from kcli.format.record_scan import RecordColumns
from kcli.spark import arrow_spans, column_builders
from tests.conftest import every_log_set
from tests.interpreted import interpreted
from tests.log_builder import PartitionBuilder
from tests.spark.source import rows_of

INTERPRETED = interpreted(arrow_columns)
MODULES = [arrow_columns, INTERPRETED]


def read_three_ways(monkeypatch: pytest.MonkeyPatch, path: Path, **options: str) -> list[dict[str, Any]]:
    """The rows by spans, which must be those of the interpreted loops, and those without any span."""
    spanned: list[int] = []

    def counted(*args: Any) -> int:
        spanned.append(arrow_columns.scan_span(*args))
        return spanned[-1]

    with monkeypatch.context() as patch:
        patch.setattr(arrow_spans, "scan_span", counted)
        rows = rows_of(path, **options)
    assert any(spanned), "no span was read, so nothing is compared"
    with monkeypatch.context() as patch:
        patch.setattr(arrow_spans, "scan_span", INTERPRETED.scan_span)
        patch.setattr(arrow_spans, "span_length", INTERPRETED.span_length)
        patch.setattr(column_builders, "put_repeated", INTERPRETED.put_repeated)
        assert rows_of(path, **options) == rows
    with monkeypatch.context() as patch:
        patch.setattr(arrow_spans, "span_length", lambda *args: 0)
        assert rows_of(path, **options) == rows
    return rows


def build(directory: Path) -> PartitionBuilder:
    """Batches of each codec, several in a row with the same attributes, with LogAppendTime, producers and gaps among them."""
    log = PartitionBuilder(directory)
    for batch in range(60):
        rows = [(b"key-%d" % i, None if i == 3 else b"v" * (batch * 7)) for i in range(batch % 4 + 1)]
        log.append(rows, codec=batch // 4 % 5, append_time=batch // 6 % 2 == 1, producer=batch // 5 % 3 - 1)
        if batch % 17 == 16:
            log.offset += 5
    log.flush()
    return log


@pytest.mark.parametrize(
    "options",
    [{}, {"arrowBatchRows": "5"}, {"startingOffsets": '{"t":{"0":17}}', "endingOffsets": '{"t":{"0":77}}'}],
)
def test_spans_hold_what_their_batches_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]) -> None:
    """All columns of all rows, over changes of codec, timestamp type and producer, gaps, and offsets that cut batches."""
    log = build(tmp_path / "t-0")
    rows = read_three_ways(monkeypatch, tmp_path / "t-0", **options)
    wanted = [row for row in log.rows if not options.get("startingOffsets") or 17 <= row.offset < 77]
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [(row.offset, row.key, row.value) for row in wanted]


def test_given_logs_give_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Kafka wrote, all topics, formats and codecs: the same rows by spans and batch by batch."""
    for log_set in every_log_set():
        assert read_three_ways(monkeypatch, log_set.data, includeControl="true")
        assert read_three_ways(monkeypatch, log_set.data, isolationLevel="read_committed", includeAborted="true")


@pytest.mark.parametrize("seed", range(30))
def test_damaged_logs_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Bits flipped anywhere: the same sound rows, and the same report of corrupt bytes."""
    log = build(tmp_path / "t-0")
    chosen = random.Random(seed)
    data = bytearray(log.path(".log").read_bytes())
    for _ in range(chosen.randint(1, 4)):
        data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    log.path(".log").write_bytes(data)
    rows = read_three_ways(monkeypatch, tmp_path / "t-0", onCorrupt="skip", reportColumn="report")
    assert rows[-1]["report"]


def columns_of(rows: list[tuple[int, int, int, int, int]]) -> BatchColumns:
    batches = BatchColumns(8)
    for index, (base, last, attributes, count, fault) in enumerate(rows):
        batches.base_offset[index], batches.last_offset[index] = base, last
        batches.attributes[index], batches.record_count[index], batches.fault[index] = attributes, count, fault
    return batches


# (base offset, last offset, attributes, records, fault)
SOUND_BATCHES = [(10, 14, 0, 5, SOUND), (15, 15, 0, 1, SOUND), (16, 19, 0, 4, SOUND)]


@pytest.mark.parametrize("module", MODULES)
def test_what_ends_a_span(module: ModuleType) -> None:
    """Each condition of the module's table ends a span before the batch that does not meet it."""

    def length(second: tuple[int, int, int, int, int] = SOUND_BATCHES[1], **other: int) -> int:
        wanted = {"last_offset": 9, "first_offset": 0, "end_offset": 99, "bound_offset": 99, "excluded": 0x20, "most": 99}
        limits = (wanted | other).values()
        return int(module.span_length(columns_of([SOUND_BATCHES[0], second, SOUND_BATCHES[2]]), 0, 3, *limits))

    assert length() == 3
    assert length((15, 15, 0, 1, 1)) == 1  # a fault
    assert length((15, 15, 1, 1, 2)) == 1  # another codec
    assert length((15, 15, 8, 1, SOUND)) == 1  # another timestamp type
    assert length((15, 15, 0, 0, SOUND)) == 1  # no records
    assert length((14, 15, 0, 1, SOUND)) == 1  # offsets that go back
    assert length((15, 16, 0, 1, SOUND)) == 2  # offsets that the next batch has, too: that one is behind
    assert length((16, 16, 0, 1, SOUND)) == 1  # a gap, and the next batch lies within
    assert length(last_offset=5) == 3  # a gap, and the next batch lies behind
    assert length(last_offset=10) == 0
    assert length(first_offset=11) == 0
    assert length(end_offset=19) == 2
    assert length(bound_offset=15) == 1
    assert length(most=6) == 2
    assert module.span_length(columns_of(SOUND_BATCHES), 2, 3, 9, 0, 99, 99, 0, 99) == 0  # a gap, nothing behind it at hand
    assert module.span_length(columns_of([(10, 14, 0x20, 5, SOUND)]), 0, 1, 9, 0, 99, 99, 0x20, 99) == 0
    assert module.span_length(columns_of([]), 0, 0, 9, 0, 99, 99, 0, 99) == 0


@pytest.mark.parametrize("module", MODULES)
@given(garbage=st.binary(max_size=200), starts=st.lists(st.integers(-5, 250), max_size=4), count=st.integers(1, 9))
def test_spans_of_garbage(module: ModuleType, garbage: bytes, starts: list[int], count: int) -> None:
    """Bytes that are not records, and wrong bounds: nothing is read or written outside of them."""
    batches = columns_of([(index, index, 0, count, SOUND) for index in range(len(starts))])
    records = RecordColumns(40)
    scratch = array("q", (0, 0))
    ends = array("q", [start + 60 for start in starts])
    done = module.scan_span(garbage, array("q", [max(s, 0) for s in starts]), ends, batches, 0, len(starts), records, scratch)
    assert 0 <= done <= len(starts)
    assert scratch[0] == done * count


@pytest.mark.parametrize("module", MODULES)
def test_what_does_not_fit_is_refused(module: ModuleType) -> None:
    """Rows that do not exist, and too little space for the records, raise before anything is written."""
    batches, numbers = columns_of(SOUND_BATCHES), array("q", bytes(24))
    out = memoryview(bytearray(8 * 4)).cast("q")
    for call in (
        lambda: module.span_length(batches, 0, 9, 0, 0, 9, 9, 0, 9),
        lambda: module.span_length(batches, -1, 3, 0, 0, 9, 9, 0, 9),
        lambda: module.scan_span(b"", numbers, numbers, batches, 0, 4, RecordColumns(9), array("q", (0, 0))),
        lambda: module.scan_span(b"", numbers, numbers, batches, 6, 3, RecordColumns(9), array("q", (0, 0))),
        lambda: module.scan_span(b"", numbers, numbers, batches, 0, 1, RecordColumns(4), array("q", (0, 0))),
        lambda: module.put_repeated(numbers, batches.record_count, 0, 1, out, 0),
        lambda: module.put_repeated(numbers, batches.record_count, 2, 2, out, 0),
        lambda: module.put_repeated(numbers, batches.record_count, 1, 1, out, 4),
    ):
        with pytest.raises(IndexError):
            call()
    module.put_repeated(array("q", (7, 8, 9)), batches.record_count, 1, 1, out, 3)
    assert list(out) == [0, 0, 0, 8]
