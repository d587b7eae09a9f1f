"""Protects the one-pass printer of batches: it prints what the printer in Python prints, and leaves to it what is odd."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcli.format import limits
from kcli.format.compression import deflate
from kcli.format.record_batch import CONTROL_FLAG, DELETE_HORIZON_FLAG, LOG_APPEND_TIME_FLAG, TRANSACTIONAL_FLAG, NewRecordBatch
from kcli.format.records import Header, Record, encode_records
from kcli.inspect.dumping import batch_lines, kafka_text, record_lines, text_buffer
from kcli.inspect.dumping.kafka_text import KafkaDumpOptions, dump_as_kafka
from kcli.log.disk.os_disk import OsDisk
from kcli.log.reading.batch_records import RecordScanner
from tests.conftest import every_log_set
from tests.interpreted import interpreted

OPTIONS = [
    KafkaDumpOptions(),
    KafkaDumpOptions(deep_iteration=True),
    KafkaDumpOptions(print_data_log=True),
    KafkaDumpOptions(print_data_log=True, skip_record_metadata=True),
    KafkaDumpOptions(deep_iteration=True, skip_record_metadata=True),
    KafkaDumpOptions(print_data_log=True, max_bytes=900),
]
LOGS = [path for logs in every_log_set() for path in sorted(logs.data.rglob("*.log")) if path.stat().st_size < 3_000_000]
WAYS = ("python", "interpreted", "compiled")


PLAIN_LINES = interpreted(record_lines)
INTERPRETED = interpreted(batch_lines, record_lines=PLAIN_LINES)
PLAIN_BUFFER = interpreted(text_buffer)


def dumped(way: str, path: str, options: KafkaDumpOptions) -> tuple[bytes, list[str], bool]:
    """What is printed of a file by batch after batch in Python, or by the one pass, interpreted or compiled."""
    out, told = bytearray(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_text, "is_compiled", lambda: way != "python")
        if way == "interpreted":
            patch.setattr(kafka_text, "batch_lines", INTERPRETED)
            patch.setattr(kafka_text, "record_lines", PLAIN_LINES)
            patch.setattr(kafka_text, "TextBuffer", PLAIN_BUFFER.TextBuffer)
        sound = dump_as_kafka(OsDisk(), [path], options, out.extend, told.append, lambda path: path)
    return bytes(out), told, sound


def all_ways_agree(path: str, options: KafkaDumpOptions) -> None:
    first, *others = [dumped(way, path, options) for way in WAYS]
    for other in others:
        assert other == first


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_all_ways_print_the_same_of_what_kafka_wrote(path: Path) -> None:
    """Every given log that is not too large for interpreted loops."""
    for options in OPTIONS if path.stat().st_size < 100_000 else OPTIONS[1:3]:
        all_ways_agree(str(path), options)


def encoded(offset: int, spec: tuple[str, int, int, int, int]) -> bytes:
    """A batch of one of the kinds below, beginning at `offset`."""
    kind, codec, count, sequence, step = spec
    value = {"plain": b"some value", "high bytes": "é".encode(), "null": None, "large": b"x" * 9000}.get(kind, b"v")
    headers = (Header(b"k", b"v"),) if kind == "headers" else ()
    records = [Record(n * step, 7 * n, None if n % 3 else b"key", value, headers) for n in range(count)]
    payload = encode_records(records)
    flags = {
        "control": CONTROL_FLAG | TRANSACTIONAL_FLAG,
        "transactional": TRANSACTIONAL_FLAG,
        "append time": LOG_APPEND_TIME_FLAG,
        "horizon": DELETE_HORIZON_FLAG,
        "odd attributes": 0x100,
    }.get(kind, 0)
    batch = NewRecordBatch(
        base_offset=offset,
        partition_leader_epoch=3,
        attributes=flags | codec,
        last_offset_delta=max(0, (count - 1) * step) + (5 if kind == "gap behind" else 0),
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_000 + 7 * count,
        producer_id=9 if sequence >= 0 else -1,
        producer_epoch=2 if sequence >= 0 else -1,
        base_sequence=sequence,
        record_count=count + (1 if kind == "wrong count" else 0),
        records=deflate(codec, payload) if codec else payload,
    )
    data = bytearray(batch.encode())
    if kind == "wrong crc":
        data[17] ^= 1
    if kind == "bad magic":
        data[16] = 9
    if kind == "cut":
        del data[len(data) // 2 :]
    if kind == "garbage behind":
        data += b"\x01\x02 no batch \xff"
    return bytes(data)


KINDS = (
    *("plain", "high bytes", "null", "large", "headers", "control", "transactional", "append time", "horizon"),
    *("odd attributes", "gap behind", "wrong count", "wrong crc", "bad magic", "cut", "garbage behind"),
)
SPECS = st.tuples(
    st.sampled_from(KINDS) | st.sampled_from(("plain", "transactional")),
    st.integers(0, 4),
    st.integers(0, 12),
    st.sampled_from((-1, 0, 17, 2**31 - 4)),
    st.integers(1, 2),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(SPECS, max_size=9), st.sampled_from(OPTIONS), st.integers(0, 3))
def test_all_ways_print_the_same_of_odd_batches(
    tmp_path: Path, specs: list[tuple[str, int, int, int, int]], options: KafkaDumpOptions, gap: int
) -> None:
    """Batches of every kind between each other, sound and damaged, in small buffers."""
    log, offset = bytearray(), 0
    for spec in specs:
        log += encoded(offset, spec)
        offset += spec[2] * spec[4] + gap
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(log)
    for chunk in (limits.READ_CHUNK_BYTES, 700):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "READ_CHUNK_BYTES", chunk)
            all_ways_agree(str(path), options)


def test_small_output_buffers_and_few_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch whose lines do not fit, or with more records than the columns hold, is left to the other way."""
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(b"".join(encoded(12 * n, ("large" if n == 3 else "plain", n % 5, 12, -1, 1)) for n in range(12)))
    expected = dumped("python", str(path), KafkaDumpOptions(print_data_log=True))
    for module in (text_buffer, PLAIN_BUFFER):
        monkeypatch.setattr(module, "OUTPUT_BUFFER_BYTES", 4000)
    for capacity in (5, 4096):
        monkeypatch.setattr(kafka_text, "RecordScanner", lambda capacity=capacity: RecordScanner(capacity))
        for way in WAYS:
            assert dumped(way, str(path), KafkaDumpOptions(print_data_log=True)) == expected


def test_usual_batches_never_reach_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a producer sends is printed in the one pass alone; else it would be as slow as before."""
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(b"".join(encoded(12 * n, ("plain", n % 5, 12, 12 * n, 1)) for n in range(50)))
    expected = dumped("python", str(path), KafkaDumpOptions(print_data_log=True))
    monkeypatch.setattr(kafka_text.LogDumper, "_batch_line", None)
    monkeypatch.setattr(kafka_text.LogDumper, "_records", None)
    assert dumped("interpreted", str(path), KafkaDumpOptions(print_data_log=True)) == expected
