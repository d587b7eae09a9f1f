"""--output json: every line is one JSON object, bytes survive it, and the quick ways write what json.dumps writes."""

from __future__ import annotations

import base64
import csv
import io
import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format.record_scan import RecordColumns
from kcli.format.records import Header
from kcli.inspect.dumping.dump import DumpOptions, dump
from kcli.inspect.dumping.record_rows import RecordRows, RowForm
from kcli.inspect.dumping.text_buffer import TextBuffer
from kcli.inspect.json_text import bytes_member, json_string
from kcli.inspect.json_text import dump as dump_json
from kcli.inspect.renderers.json_lines import JsonLines
from kcli.inspect.renderers.plain_rows import put_plain_rows
from kcli.log.disk.os_disk import OsDisk
from kcli.selecting.selection import Selection
from tests.conftest import every_log_set
from tests.inspect.kafka_records import records_of
from tests.log_builder import PartitionBuilder

TEXTS = st.text() | st.sampled_from(["\x7f", "\x9b31m", "\u2028", '"\\/', "\x00\x1f\n", "é🎁", "\u202e"])
BYTES = st.binary(max_size=60) | TEXTS.map(lambda text: text.encode("utf-8", "ignore"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def json_of(*paths: Path | str, options: DumpOptions | None = None) -> list[dict[str, Any]]:
    """Dump paths as JSON -> the objects, after a look at the form of the lines."""
    out = bytearray()
    renderer = JsonLines(out.extend)
    dump([str(path) for path in paths], Selection(), renderer, options or DumpOptions(), OsDisk(), report=lambda line: None)
    text = out.decode("utf-8")
    assert text.endswith("}\n")
    assert not [char for char in text if char != "\n" and (char < " " or "\x7f" <= char <= "\x9f")]
    return [json.loads(line) for line in text.split("\n")[:-1]]


def restored(found: dict[str, Any], name: str) -> bytes | None:
    """The bytes that a member stands for."""
    if f"{name}Base64" in found:
        data = base64.b64decode(found[f"{name}Base64"], validate=True)
        with pytest.raises(UnicodeDecodeError):
            data.decode()
        return data
    return None if found[name] is None else found[name].encode()


@given(VALUES)
def test_json_text_is_jsons_own(value: Any) -> None:
    """The same text as json.dumps, but for DEL and C1 controls, which are escaped; it reads back the same."""
    text = dump_json(value)
    assert json.loads(text) == value
    plain = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for code in range(0x7F, 0xA0):
        plain = plain.replace(chr(code), f"\\u{code:04x}")
    assert text == plain


@given(BYTES | st.none())
def test_bytes_round_trip(data: bytes | None) -> None:
    """Any bytes, and null, come back from the member that they became."""
    assert restored(json.loads("{" + bytes_member("key", data) + "}"), "key") == data


def compiled_value(data: bytes, *, is_json: bool) -> str | None:
    """The value of a record as record_rows writes it, or None if it leaves the record to Python."""
    out = bytearray()
    buffer = TextBuffer(out.extend, 2000)
    columns = RecordColumns(1)
    columns.key_size[0], columns.value_position[0], columns.value_size[0] = -1, 3, len(data)
    form = RowForm(is_json, False, *[b""] * 9, b"|", *[b""] * 3)
    rows = RecordRows(form, columns, array("q", (0,)))
    if rows.put(buffer, b"..." + data, 0, 1) == 0:
        return None
    buffer.flush()
    return out.decode().split("|", 1)[1]


@given(st.binary(max_size=80))
def test_the_compiled_string_is_the_plain_one(data: bytes) -> None:
    """The compiled rows write what `json_string` writes, or leave it: only bytes that are not plain ASCII."""
    expected = json_string(data.decode()) if all(byte < 0x7F for byte in data) else None
    assert compiled_value(data, is_json=True) == expected


RECORDS = st.lists(st.tuples(BYTES | st.none(), BYTES | st.none()), min_size=1, max_size=6)


@settings(max_examples=60)
@given(
    batches=st.lists(st.tuples(RECORDS, st.sampled_from([-1, 7]), st.booleans()), min_size=1, max_size=4),
    headers=st.lists(st.tuples(BYTES, BYTES | st.none()), max_size=3),
    is_compiled=st.booleans(),
)
def test_records_round_trip(
    tmp_path_factory: pytest.TempPathFactory, batches: list[Any], headers: list[Any], is_compiled: bool
) -> None:
    """Keys, values and headers of any bytes come back, with offset, timestamp and sequence, whichever way wrote them."""
    log = PartitionBuilder(tmp_path_factory.mktemp("json") / "topic-3")
    for slot, (records, producer, append_time) in enumerate(batches):
        written = tuple(Header(*pair) for pair in headers) if slot % 2 else ()
        log.append(records, producer=producer, append_time=append_time, headers=written, codec=slot % 5)
    log.flush()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(put_plain_rows.__kwdefaults__, "runs_compiled", is_compiled)
        found = [row for row in json_of(log.path(".log")) if row["type"] == "record"]
    assert len(found) == len(log.rows)
    for row, expected in zip(found, log.rows, strict=True):
        assert (row["topic"], row["partition"], row["offset"]) == ("topic", 3, expected.offset)
        assert row["timestamp"] == expected.timestamp
        assert restored(row, "key") == expected.key
        assert restored(row, "value") == expected.value
        assert row["keySize"] == (-1 if expected.key is None else len(expected.key))
        assert row["valueSize"] == (-1 if expected.value is None else len(expected.value))
        assert [(restored(header, "key"), restored(header, "value")) for header in row["headers"]] == list(expected.headers)
        assert row.get("sequence", -1) == (expected.offset if row.get("producerId", -1) == 7 else -1)


def test_lines_larger_than_the_buffer(tmp_path: Path) -> None:
    """Values that do not fit into the output buffer at once, plain and escaped, are whole."""
    log = PartitionBuilder(tmp_path / "topic-0")
    values = [b"x" * 300_000, b"\x01" * 300_000, b"y" * 1_500_000, b"\xff" * 1_200_000, b"z"]
    for value in values:
        log.append([(None, value)])
    log.flush()
    found = [row for row in json_of(log.path(".log")) if row["type"] == "record"]
    assert [restored(row, "value") for row in found] == values


@pytest.mark.parametrize("given_set", every_log_set(), ids=lambda given_set: given_set.data.parent.name)
def test_every_file_that_kafka_wrote(given_set: Any) -> None:
    """Every line of both directories is JSON of a known type; all files are there; nothing is damaged; counts agree."""
    rows = json_of(given_set.data)
    assert rows[0] == {"type": "schema", "name": "kcli.dump-log", "version": 1}
    summary = rows[-1]
    assert summary["type"] == "summary" and summary["sound"]
    files = {Path(row["path"]) for row in rows if row["type"] == "file"}
    assert files == {path for path in given_set.data.rglob("*") if path.is_file()}
    assert summary["records"] == sum(row["type"] == "record" for row in rows)
    assert summary["batches"] == sum(row["type"] == "batch" for row in rows)
    assert not [row for row in rows if row["type"] in ("damage", "problem")]
    assert not [row for row in rows if "decodingError" in row]


def test_batches_say_what_kafka_says() -> None:
    """The members of a batch are those of Kafka's own batch line."""
    compared = 0
    for given_set in every_log_set():
        for path in given_set.dumped_paths():
            if not path.endswith(".log"):
                continue
            lines = [
                line
                for line in given_set.golden(path).decode("utf-8", "replace").split("\n")
                if line.startswith("baseOffset: ")
            ]
            rows = [row for row in json_of(given_set.data / path) if row["type"] == "batch" and row["magic"] == 2]
            for row, line in zip(rows, lines, strict=True):
                horizon = "OptionalLong.empty" if row["deleteHorizonMs"] is None else f"OptionalLong[{row['deleteHorizonMs']}]"
                told = {name: str(value).lower() if isinstance(value, bool) else value for name, value in row.items()}
                assert line == (
                    "baseOffset: {baseOffset} lastOffset: {lastOffset} count: {count} baseSequence: {baseSequence} "
                    "lastSequence: {lastSequence} producerId: {producerId} producerEpoch: {producerEpoch} "
                    "partitionLeaderEpoch: {partitionLeaderEpoch} isTransactional: {isTransactional} isControl: {isControl} "
                    "deleteHorizonMs: " + horizon + " position: {position} {timestampType}: {maxTimestamp} size: {size} "
                    "magic: {magic} compresscodec: {compression} crc: {crc} isvalid: {isValid}"
                ).format(**told)
                compared += 1
    assert compared > 500


def test_records_say_what_kafka_says() -> None:
    """Sequences and markers are Kafka's; internal topics are decoded by the name of their directory."""
    markers = decoded = 0
    for given_set in every_log_set():
        for path in given_set.dumped_paths():
            if not path.endswith(".log"):
                continue
            rows = [row for row in json_of(given_set.data / path) if row["type"] == "record"]
            for row, told in zip(rows, records_of(given_set, path), strict=True):
                assert (row["offset"], row.get("sequence", -1)) == (told.offset, told.sequence)
                assert (row.get("isControl", False), row.get("isTransactional", False)) == (
                    told.is_control,
                    told.is_transactional,
                )
                if told.marker:
                    assert row["control"]["name"] == told.marker
                    markers += 1
                if path.startswith("__") and not told.is_control:
                    assert isinstance(row["valueDecoded"] or row["keyDecoded"], dict)
                    decoded += 1
    assert markers > 100 and decoded > 300


@given(st.binary(max_size=80) | st.text(st.sampled_from('ab,"\r\n\t~ '), max_size=80).map(str.encode))
def test_the_compiled_field_is_csvs_own(data: bytes) -> None:
    """The compiled rows write what Python's csv writes, or leave it: only bytes that are not plain ASCII text."""
    found = compiled_value(data, is_json=False)
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in data):
        text = io.StringIO(newline="")
        csv.writer(text).writerow([data.decode(), "x"])
        assert found is not None and found + ",x\r\n" == text.getvalue()
    else:
        assert found is None
