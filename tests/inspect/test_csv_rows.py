"""--output csv: RFC 4180 rows that a CSV reader gives back byte for byte."""

from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format.records import Header
from kcli.inspect.dumping.dump import DumpOptions, dump
from kcli.inspect.dumping.selection import Selection
from kcli.inspect.renderers.csv_rows import COLUMNS, CsvRows
from kcli.inspect.renderers.plain_rows import put_plain_rows
from kcli.log.disk import OsDisk
from tests.conftest import every_log_set
from tests.log_builder import PartitionBuilder

BYTES = st.binary(max_size=40) | st.text().map(str.encode) | st.sampled_from([b'"', b",", b"\r\n", b"\n", b"", b"\x00"])


def csv_of(path: Path, told: list[str] | None = None) -> list[dict[str, str]]:
    """Dump a path as CSV -> its rows, read by Python's csv; what is told besides goes into `told`."""
    out, sentences = bytearray(), [] if told is None else told
    dump([str(path)], Selection(), CsvRows(out.extend), DumpOptions(), OsDisk(), tell=sentences.append)
    text = out.decode("utf-8")
    assert text.endswith("\r\n")
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
        patch.setitem(put_plain_rows.__kwdefaults__, "is_compiled", is_compiled)
        rows = csv_of(log.path(".log"))
    assert len(rows) == len(log.rows)
    for row, expected in zip(rows, log.rows, strict=True):
        assert (row["topic"], row["partition"], row["offset"]) == ("topic", "1", str(expected.offset))
        assert (restored(row, "key"), restored(row, "value")) == (expected.key, expected.value)
        assert (row["producerId"], row["sequence"], row["isTransactional"]) == ("4", str(expected.offset), "true")
        names = [
            header.get("key") or base64.b64decode(header.get("keyBase64", "")).decode("latin-1")
            for header in json.loads(row["headers"])
        ]
        assert len(names) == len(headers)


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
    assert [row["key"] for row in csv_of(log.path(".log"), told)] == ["a", "b"]
    assert len(told) == 1
    assert f"byte {size}: the stored CRC is" in told[0] and str(log.path(".log")) in told[0]
