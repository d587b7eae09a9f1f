"""--output csv: RFC 4180 rows that a CSV reader gives back byte for byte."""

from __future__ import annotations

import base64
import csv
import io
import json
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.commands.app import main
from kcli.format.record_scan import RecordColumns
from kcli.format.records import Header
from kcli.inspect.dumping.dump import DumpOptions, dump
from kcli.inspect.dumping.record_rows import RecordRows
from kcli.inspect.dumping.text_buffer import TextBuffer
from kcli.inspect.instants import format_instant
from kcli.inspect.renderers import csv_rows
from kcli.inspect.renderers.csv_rows import COLUMNS, CsvRows
from kcli.inspect.renderers.plain_rows import put_plain_rows
from kcli.log.disk.os_disk import OsDisk
from kcli.selecting.selection import Selection
from tests.conftest import every_log_set
from tests.damage.layout import flip
from tests.log_builder import PartitionBuilder

BYTES = st.binary(max_size=40) | st.text().map(str.encode) | st.sampled_from([b'"', b",", b"\r\n", b"\n", b"", b"\x00"])

# What is in no cell: control characters but for TAB, LF and CR.
UNPRINTABLE = {chr(code) for code in (*range(32), *range(127, 160))} - set("\t\n\r")


def csv_of(path: Path, told: list[str] | None = None, *, iso: bool = True) -> list[dict[str, str]]:
    """Dump a path as CSV -> its rows, read by Python's csv; what is told besides goes into `told`."""
    out, sentences = bytearray(), [] if told is None else told
    renderer = CsvRows(out.extend, iso_timestamps=iso)
    dump([str(path)], Selection(), renderer, DumpOptions(), OsDisk(), report=sentences.append)
    text = out.decode("utf-8")
    assert text.endswith("\r\n") and not set(text) & UNPRINTABLE
    rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert tuple(rows[0]) == COLUMNS
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows[1:]]


def restored(row: dict[str, str], name: str) -> bytes | None:
    """The bytes that a cell stands for."""
    encoding = row[f"{name}Encoding"]
    if encoding == "base64":
        return base64.b64decode(row[name], validate=True)
    assert encoding in ("utf8", "")
    return row[name].encode() if encoding else None


@settings(max_examples=60)
@given(
    records=st.lists(st.tuples(BYTES | st.none(), BYTES | st.none()), min_size=1, max_size=8),
    headers=st.lists(st.tuples(BYTES, BYTES | st.none()), max_size=3),
    is_compiled=st.booleans(),
)
def test_records_round_trip(tmp_path_factory: pytest.TempPathFactory, records: list, headers: list, is_compiled: bool) -> None:
    """Keys and values of any bytes, null and empty apart; headers as JSON; whichever way wrote them."""
    log = PartitionBuilder(tmp_path_factory.mktemp("csv") / "topic-1")
    log.append(records, headers=tuple(Header(*pair) for pair in headers), producer=4, transactional=True)
    log.flush()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(put_plain_rows.__kwdefaults__, "runs_compiled", is_compiled)
        rows = csv_of(log.path(".log"))
    assert len(rows) == len(log.rows)
    for row, expected in zip(rows, log.rows, strict=True):
        assert (row["topic"], row["partition"], row["offset"]) == ("topic", "1", str(expected.offset))
        assert (restored(row, "key"), restored(row, "value")) == (expected.key, expected.value)
        assert (row["producerId"], row["sequence"], row["isTransactional"]) == ("4", str(expected.offset), "true")
        found = [tuple(header_bytes(header, name) for name in ("key", "value")) for header in json.loads(row["headers"])]
        assert found == headers
        has_base64 = any(name.endswith("Base64") for header in json.loads(row["headers"]) for name in header)
        assert row["headersEncoding"] == ("jsonBase64" if has_base64 else "json" if headers else "")


def header_bytes(header: dict[str, str | None], name: str) -> bytes | None:
    """The bytes that a member of a header stands for."""
    if f"{name}Base64" in header:
        return base64.b64decode(header[f"{name}Base64"] or "", validate=True)
    text = header[name]
    return None if text is None else text.encode()


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (b"a\x00b", "base64"),
        (b"\x00", "base64"),
        (b"\x1b[31m", "base64"),
        (b"\x7f", "base64"),
        ("\x85".encode(), "base64"),
        (b"\xff", "base64"),
        ("\u043a\u043b\u044e\u0447".encode(), "utf8"),
        ("\U0001f468\u200d\U0001f469".encode(), "utf8"),
        (b"a\tb", "utf8"),
        (b"line\r\nline", "utf8"),
        (b'"quoted", and more', "utf8"),
        (b"", "utf8"),
        (None, ""),
    ],
)
@pytest.mark.parametrize("is_compiled", [True, False])
def test_what_is_no_text_is_base64(tmp_path: Path, data: bytes | None, encoding: str, is_compiled: bool) -> None:
    """A NUL byte in a cell ends it for many programs: control characters go as base64, in key, value and headers."""
    log = PartitionBuilder(tmp_path / "topic-1")
    log.append([(data, data), (b"plain", data), (data, b"plain")])
    log.append([(None, None)], headers=(Header(b"name", data),))
    log.flush()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(put_plain_rows.__kwdefaults__, "runs_compiled", is_compiled)
        rows = csv_of(log.path(".log"))
    assert [(row["keyEncoding"], row["valueEncoding"]) for row in rows[:3]] == [
        (encoding, encoding),
        ("utf8", encoding),
        (encoding, "utf8"),
    ]
    assert [restored(row, "value") for row in rows[:3]] == [data, data, b"plain"]
    (header,) = json.loads(rows[3]["headers"])
    assert header_bytes(header, "value") == data
    assert rows[3]["headersEncoding"] == ("jsonBase64" if encoding == "base64" else "json")


@settings(max_examples=60)
@given(
    stamps=st.lists(
        st.integers(0, 253_402_300_799_999)
        | st.integers(1_700_000_000_000, 1_700_000_003_000)
        | st.sampled_from([-1, 0, 999, 1000, 253_402_300_799_999, 253_402_300_800_000, -2, 2**62]),
        min_size=1,
        max_size=20,
    ),
    is_compiled=st.booleans(),
)
def test_timestamps(tmp_path_factory: pytest.TempPathFactory, stamps: list[int], is_compiled: bool) -> None:
    """As ISO 8601, empty for none, whichever way wrote them; as numbers where these were asked for."""
    log = PartitionBuilder(tmp_path_factory.mktemp("csv") / "topic-1")
    for stamp in stamps:
        log.append([(None, b"x"), (None, b"y")], timestamp=stamp)
    log.flush()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(put_plain_rows.__kwdefaults__, "runs_compiled", is_compiled)
        rows, numbers = csv_of(log.path(".log")), csv_of(log.path(".log"), iso=False)
    expected = [stamp for stamp in stamps for _ in range(2)]
    assert [int(row["timestamp"]) for row in numbers] == expected
    assert [row["timestamp"] for row in rows] == ["" if stamp == -1 else format_instant(stamp) for stamp in expected]


def test_times_within_a_batch(tmp_path: Path) -> None:
    """Records of one batch that share a second, a day, or neither: each has its own time."""
    steps = [0, 1, 998, 999, 1000, 86_399_999, 86_400_000, 86_400_001, 5, 0]
    log = PartitionBuilder(tmp_path / "topic-1")
    log.append([(None, b"x")] * 4000)  # 10 ms apart
    log.flush()
    rows = csv_of(log.path(".log"))
    assert [row["timestamp"] for row in rows] == [format_instant(row.timestamp) for row in log.rows]
    columns = RecordColumns(len(steps))
    for index, step in enumerate(steps):
        columns.offset[index], columns.timestamp[index] = index, step
        columns.key_size[index] = columns.value_size[index] = -1
    out = bytearray()
    buffer = TextBuffer(out.extend)
    form = csv_rows._row_form(("t", 1), ("CreateTime",), is_iso=True)
    chosen = array("q", range(len(steps)))
    assert RecordRows(form, columns, chosen).put(buffer, b"", 0, len(steps)) == len(steps)
    buffer.flush()
    written = out.decode().split("\r\n")[:-1]
    assert [line.split(",")[3] for line in written] == [format_instant(step) for step in steps]


def test_statistics_are_names_and_values(capfd: pytest.CaptureFixture[str]) -> None:
    """--stats gives a row a number, the same numbers as JSON has; times as the records' are."""
    path = str(every_log_set()[0].data / "orders-0")
    assert main(["dump-log", "--output", "csv", "--stats", path]) == 0
    rows = dict(csv.reader(io.StringIO(capfd.readouterr().out, newline=""), strict=True))
    assert main(["dump-log", "--output", "json", "--stats", path]) == 0
    report = json.loads(capfd.readouterr().out.splitlines()[1])
    assert rows.pop("name") == "value" and len(rows) > 50
    assert rows["records"] == str(report["records"]) and rows["keySize.p99"] == str(report["keySize"]["p99"])
    assert rows["firstTimestamp"] == format_instant(report["firstTimestamp"])
    assert rows["partitions.orders-0.lastOffset"] == str(report["partitions"][0]["lastOffset"])
    assert rows[f"codecs.{report['codecs'][0]['name']}.batches"] == str(report["codecs"][0]["batches"])
    assert rows["topKeys.keys.1.key"] == report["topKeys"]["keys"][0]["key"]
    assert rows["rates.buckets.1.start"] == format_instant(report["rates"]["buckets"][0]["start"])
    assert main(["dump-log", "--output", "csv", "--stats", "--timestamps", "ms", path]) == 0
    assert f"\r\nfirstTimestamp,{report['firstTimestamp']}\r\n" in capfd.readouterr().out


def test_statistics_of_keys_that_are_no_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Such a key is base64 under the name keyBase64, as in JSON, and so are control characters."""
    log = PartitionBuilder(tmp_path / "topic-1")
    log.append([(b"\x00\x01", b"x"), (b"\x00\x01", b"x"), (b"\xff", b"x")])
    log.flush()
    assert main(["dump-log", "--output", "csv", "--stats", str(tmp_path / "topic-1")]) == 0
    rows = dict(csv.reader(io.StringIO(capfd.readouterr().out, newline=""), strict=True))
    assert base64.b64decode(rows["topKeys.keys.1.keyBase64"]) == b"\x00\x01"
    assert base64.b64decode(rows["topKeys.keys.2.keyBase64"]) == b"\xff"


@pytest.mark.parametrize("output", ["auto", "text", "kafka", "json"])
def test_the_form_of_timestamps_is_for_csv(output: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The other outputs have one form: the option is refused, and not passed over."""
    assert main(["dump-log", "--output", output, "--timestamps", "ms", "x.log"]) == 2
    assert "--timestamps is only for --output csv" in capfd.readouterr().err


def test_internal_topics_and_markers_are_json() -> None:
    """What is decoded stands as JSON, marked so."""
    given_set = every_log_set()[0]
    rows = csv_of(given_set.data / "__consumer_offsets-0")
    decoded = [json.loads(row["key"]) for row in rows if row["keyEncoding"] == "json"]
    assert {item["name"] for item in decoded} >= {"OffsetCommitKey"}
    markers = [json.loads(row["value"]) for row in rows if row["isControl"] == "true"]
    assert {marker["name"] for marker in markers} == {"COMMIT", "ABORT"}


def test_damage_is_told_elsewhere(tmp_path: Path) -> None:
    """Rows hold records only; what is wrong goes to stderr, in a sentence with file and byte."""
    log = PartitionBuilder(tmp_path / "topic-0")
    log.append([(b"a", b"1")])
    size = len(log.log)
    log.append([(b"b", b"2")])
    log.log[size + 63] ^= 1
    log.flush()
    told: list[str] = []
    assert [row["key"] for row in csv_of(log.path(".log"), told)] == ["a"]
    assert len(told) == 2
    assert f"byte {size}: the stored CRC is" in told[0] and str(log.path(".log")) in told[0]


def test_records_of_a_batch_with_a_wrong_crc_are_left_out(tmp_path: Path) -> None:
    """A row cannot say that its record may be wrong, and nobody who loads the rows would know."""
    builder = PartitionBuilder(tmp_path / "t-0")
    builder.append([(b"k", b"sound")])
    first = len(builder.log)
    builder.append([(b"k", b"rotten value")] * 3)
    rotten = len(builder.log) - 3
    builder.append([(b"k", b"sound")])
    builder.flush()
    path = builder.path(".log")
    flip(path, rotten)
    told: list[str] = []
    assert [row["offset"] for row in csv_of(tmp_path / "t-0", told)] == ["0", "4"]
    assert told[0].endswith("; its header states offsets 1 to 3")
    assert told[1:] == [f"{path}: 1 damaged batch left out, at byte {first}; kcli verify has the details"]
