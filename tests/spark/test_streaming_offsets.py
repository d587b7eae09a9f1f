"""The stream reader's own arithmetic, no JVM: what a micro-batch covers, what a checkpoint holds, what is called data loss."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from kcli.spark.data_source import KafkaLogDataSource
from kcli.spark.log_partitions import PlanError
from kcli.spark.read_options import OptionError
from kcli.spark.streaming import from_json, share_out, to_json
from tests.log_builder import PartitionBuilder

ROWS = [(b"k", b"v")]


def reader(path: Path, **options: str) -> Any:
    source = KafkaLogDataSource({"path": str(path), "columns": "topic,partition,offset", **options})
    return source.streamReader(source.schema())


def read(stream: Any, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int]]:
    """The rows of a micro-batch, offsets having been through JSON as in a checkpoint."""
    splits = stream.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
    rows = [row for split in splits for batch in stream.read(split) for row in batch.to_pylist()]
    return sorted((row["topic"], row["partition"], row["offset"]) for row in rows)


def log_of(directory: Path, records: int, *, first_offset: int = 0) -> PartitionBuilder:
    log = PartitionBuilder(directory, first_offset=first_offset)
    for _ in range(records):
        log.append(ROWS)
    log.flush()
    return log


OFFSETS = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.integers(0, 3)), st.tuples(st.integers(0, 50), st.integers(0, 50))
)


@given(parts=OFFSETS, most=st.none() | st.integers(1, 60))
def test_shares(parts: dict[tuple[str, int], tuple[int, int]], most: int | None) -> None:
    """Nobody goes back or beyond its end, whoever waits advances, and the limit holds but for one record a partition."""
    starts = {key: start for key, (start, _) in parts.items()}
    ends = {key: start + more for key, (start, more) in parts.items()}
    reached = share_out(starts, ends, most)
    waiting = [key for key in parts if ends[key] > starts[key]]
    assert all(starts[key] <= reached[key] <= ends[key] for key in parts)
    assert all(reached[key] > starts[key] for key in waiting)
    read_now = sum(reached[key] - starts[key] for key in parts)
    assert most is None or read_now <= max(most, 0) + len(waiting)
    if most is None or sum(ends[key] - starts[key] for key in parts) <= most:
        assert reached == ends
    assert from_json(json.loads(json.dumps(to_json(reached)))) == reached


def test_batches_cover_each_record_once(tmp_path: Path) -> None:
    """As the log grows and rolls, and topics appear, consecutive micro-batches give every record once."""
    log = log_of(tmp_path / "t-0", 5)
    seen = []
    stream = reader(tmp_path)
    at = stream.initialOffset()
    for step in range(5):
        end = reader(tmp_path).latestOffset(at, ReadAllAvailable())
        seen += read(stream, at, end)
        assert read(reader(tmp_path), at, end) == read(stream, at, end)
        at = end
        log.append(ROWS * 3)
        log.roll()
        log.append(ROWS)
        log.flush()
        if step == 2:
            log_of(tmp_path / "u-7", 4)
    expected = [("t", 0, offset) for offset in range(21)] + [("u", 7, offset) for offset in range(4)]
    assert sorted(seen) == expected
    assert stream.latestOffset(at, ReadMaxRows(1)) != at


def test_the_limit(tmp_path: Path) -> None:
    """maxOffsetsPerTrigger bounds a micro-batch; the stream still reaches the end."""
    log_of(tmp_path / "t-0", 10)
    log_of(tmp_path / "t-1", 90)
    stream = reader(tmp_path, maxOffsetsPerTrigger="20")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    at, seen, steps = stream.initialOffset(), [], 0
    while (end := stream.latestOffset(at, limit)) != at:
        rows = read(stream, at, end)
        assert 0 < len(rows) <= 22
        seen += rows
        at, steps = end, steps + 1
    assert sorted(seen) == [("t", 0, offset) for offset in range(10)] + [("t", 1, offset) for offset in range(90)]
    assert 5 <= steps <= 6


def test_available_now_stops(tmp_path: Path) -> None:
    """What comes after the start of the run is left to the next one, also topics that appear."""
    log = log_of(tmp_path / "t-0", 5)
    stream = reader(tmp_path)
    stream.prepareForTriggerAvailableNow()
    at = stream.initialOffset()
    log.append(ROWS * 5)
    log.flush()
    log_of(tmp_path / "u-0", 3)
    end = stream.latestOffset(at, ReadAllAvailable())
    assert end == {"t": {"0": 5}}
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    later = reader(tmp_path)
    later.prepareForTriggerAvailableNow()
    assert later.latestOffset(end, ReadAllAvailable()) == {"t": {"0": 10}, "u": {"0": 3}}


def test_a_torn_tail_waits(tmp_path: Path) -> None:
    """A batch that is still being written is read when it is whole."""
    log = log_of(tmp_path / "t-0", 5)
    whole = bytes(log.log)
    log.path(".log").write_bytes(whole[:-10])
    stream = reader(tmp_path)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert end == {"t": {"0": 4}}
    assert len(read(stream, {}, end)) == 4
    log.path(".log").write_bytes(whole)
    assert read(stream, end, stream.latestOffset(end, ReadAllAvailable())) == [("t", 0, 4)]


def test_open_transactions_hold_a_stream_back(tmp_path: Path) -> None:
    """Under read_committed a stream waits at the last stable offset; once the transaction ends, its records come or not."""
    log = PartitionBuilder(tmp_path / "t-0")
    log.append(ROWS)
    log.append(ROWS * 2, producer=1, transactional=True)
    log.append(ROWS)
    log.flush()
    stream = reader(tmp_path, **{"kafka.isolation.level": "read_committed"})
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert end == {"t": {"0": 1}}
    log.end_transaction(1, commit=False)
    log.flush()
    after = stream.latestOffset(end, ReadAllAvailable())
    assert read(stream, {}, after) == [("t", 0, 0), ("t", 0, 3)]


@pytest.mark.parametrize("loss", ["retention", "partition", "truncation"])
def test_data_loss(tmp_path: Path, loss: str) -> None:
    """Records that went away under a stream fail it with what is missing, or are passed over when that is asked for."""
    log = log_of(tmp_path / "t-0", 6)
    log_of(tmp_path / "u-0", 2)
    log.roll()
    log.append(ROWS * 4)
    log.flush()
    at = {"t": {"0": 8}, "u": {"0": 2}} if loss == "truncation" else {"t": {"0": 2}, "u": {"0": 2}}
    if loss == "retention":
        log.path(".log", 0).unlink()
    elif loss == "partition":
        shutil.rmtree(tmp_path / "t-0")
    else:
        log.path(".log").write_bytes(b"")
    strict = reader(tmp_path)
    with pytest.raises(PlanError, match="failOnDataLoss=false"):
        strict.latestOffset(at, ReadAllAvailable())
    lenient = reader(tmp_path, failOnDataLoss="false")
    end = lenient.latestOffset(at, ReadAllAvailable())
    if loss == "retention":
        with pytest.raises(PlanError, match=r"offsets 2 to 5 are gone"):
            strict.partitions(at, {"t": {"0": 10}, "u": {"0": 2}})
        assert [row[2] for row in read(lenient, at, end)] == [6, 7, 8, 9]
    else:
        assert read(lenient, at, end) == []
        assert from_json(end)["t", 0] == from_json(at)["t", 0]


def test_what_cannot_be_streamed(tmp_path: Path) -> None:
    """A stream has no end and gives records only."""
    log_of(tmp_path / "t-0", 1)
    with pytest.raises(OptionError, match="no end"):
        reader(tmp_path, endingOffsets='{"t":{"0":1}}')
    source = KafkaLogDataSource({"path": str(tmp_path), "table": "batches"})
    with pytest.raises(OptionError, match="only the table records"):
        source.streamReader(source.schema())


def test_starting_offsets(tmp_path: Path) -> None:
    """A stream begins where its options say, the earliest offset unless they do."""
    log_of(tmp_path / "t-0", 6, first_offset=10)
    assert reader(tmp_path).initialOffset() == {"t": {"0": 10}}
    assert reader(tmp_path, startingOffsets="latest").initialOffset() == {"t": {"0": 16}}
    assert reader(tmp_path, startingOffsets='{"t":{"0":13}}').initialOffset() == {"t": {"0": 13}}
