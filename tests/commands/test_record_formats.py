"""Protects records as text: what consume prints is what produce reads, and kcat's tokens keep their meaning."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from kcli.commands.record_formats import (
    FormatTextError,
    ProducedRecord,
    format_printer,
    json_parser,
    json_printer,
    unescape,
    value_parser,
    value_printer,
)


class Record(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = 3
    timestamp: int = 1_700_000_000_000
    topic: str = "orders"
    offset: int = 7
    timestamp_type: int = 0


RECORDS = [
    Record(b"v", b"k"),
    Record(None, None),
    Record(b"", b""),
    Record(b"\xff\x00", "Gr\u00fc\u00dfe \U0001f600\x7f\n".encode(), (("a", b"1"), ("a", None), ("\u00e9", b"\xff"))),
    Record(b'{"a":[1,2]}', b'"', timestamp=-1),
]


@pytest.mark.parametrize("record", RECORDS)
def test_what_is_printed_as_json_is_read_back_as_it_was(record: Record) -> None:
    line = json_printer()(record)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    timestamp = None if record.timestamp == -1 else record.timestamp
    headers = tuple((name.encode(), value) for name, value in record.headers)
    assert json_parser()(line) == ProducedRecord(record.value, record.key, headers, record.partition, timestamp)


def test_json_members_are_those_of_dump_log() -> None:
    members = json.loads(json_printer()(RECORDS[3]))
    assert (members["type"], members["topic"], members["offset"], members["timestampType"]) == (
        "record",
        "orders",
        7,
        "CreateTime",
    )
    assert (members["keySize"], members["valueSize"], members["valueBase64"]) == (len(RECORDS[3].key or b""), 2, "/wA=")


@pytest.mark.parametrize(
    "line", [b'{"type":"schema","version":1}', b'{"type":"batch"}', b'{"type":"record","isControl":true}', b"", b"  \n"]
)
def test_lines_that_are_no_data_are_passed_by(line: bytes) -> None:
    assert json_parser()(line) is None


def test_json_that_a_person_writes() -> None:
    assert json_parser([(b"source", b"cli")])(b'{"value":{"id":1},"key":5}') == ProducedRecord(
        b'{"id":1}', b"5", ((b"source", b"cli"),)
    )


@pytest.mark.parametrize(
    "text",
    [
        "0.10",
        "1e400",
        "-1.50E+07",
        "3.141592653589793238462643",
        "123456789012345678901234567890",
        "9" * 5000,
        '{"a":[1.0,{"b":1e-400}],"a":2.50,"":"x  y"}',
        "true",
    ],
)
def test_a_value_that_is_not_text_is_sent_as_it_is_written(text: str) -> None:
    """No digit of a number is lost, and a member of the value may occur twice: it is the user's text."""
    blanks = text.replace(",", " , ").replace(":", "\t: ") if "{" in text else text
    for line in (f'{{"value":{text},"key":"k"}}', f'  {{ "key" : "k" , "headers" : [ ] ,"value" :  {blanks}  }} '):
        assert json_parser()(line.encode()) == ProducedRecord(text.encode(), b"k")


def test_half_a_surrogate_pair_is_sent_as_it_is() -> None:
    """dump-log prints such text for bytes that encode it, alone and inside an object."""
    for line in (b'{"value":"\\ud800"}', b'{"value":{"a":"\\ud800"}}'):
        found = json_parser()(line)
        assert found is not None and found.value is not None and b"\xed\xa0\x80" in found.value


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "it is not JSON"),
        (b"[1]", "it is not a JSON object"),
        (b'{"valueBase64":"?"}', "its valueBase64 is not base64"),
        (b'{"valueBase64":5}', "its valueBase64 is not base64"),
        (b'{"partition":"1"}', "its partition is not a whole number"),
        (b'{"partition":-3}', "its partition is not a whole number from 0 to 2147483647"),
        (b'{"partition":2147483648}', "its partition is not a whole number from 0 to 2147483647"),
        (b'{"timestamp":true}', "its timestamp is not a whole number"),
        (b'{"timestamp":-2}', "its timestamp is not a whole number from 0 to 9223372036854775807"),
        (b'{"timestamp":9223372036854775808}', "its timestamp is not a whole number"),
        (b'{"headers":[1]}', "its headers is not an array of objects"),
        (b'{"headers":[{"value":"1"}]}', "a header has no key"),
        (b'{"headers":[{"key":"a","value":1}]}', "the value of a header is not text or null"),
        (b'{"headers":[{"key":"a","valu":"1"}]}', "a header has an unknown member 'valu'; did you mean 'value'"),
        (b'{"kye":"x"}', "the record has an unknown member 'kye'; did you mean 'key'"),
        (b'{"value":"x","Timestamp":1}', "the record has an unknown member 'Timestamp'; did you mean 'timestamp'"),
        (b'{"value":"x","key":"a","value":"y"}', "the record has the member 'value' twice"),
        (b'{"value":"x","valueBase64":"eA=="}', "the record has both value and valueBase64"),
        (b"{}", "it has neither key nor value"),
        (b'{"partition":1}', "it has neither key nor value"),
        (b'{"value":NaN}', "NaN is not a number of JSON"),
        (b'{"contentsLeftOut":true}', "were left out of the dump"),
        (b"\xff", "it is not JSON"),
        pytest.param(b"[" * 100_000, "contain each other too deeply", id="deep"),
    ],
)
def test_a_line_that_is_no_record_is_named(line: bytes, message: str) -> None:
    with pytest.raises(FormatTextError, match=message):
        json_parser()(line)


def test_values_with_keys_and_null() -> None:
    parse = value_parser(b":", b"NULL", [(b"h", b"1")])
    assert parse(b"k:v:w") == ProducedRecord(b"v:w", b"k", ((b"h", b"1"),))
    assert parse(b"NULL:NULL") == ProducedRecord(None, None, ((b"h", b"1"),))
    assert value_parser(None, None)(b"a:b") == ProducedRecord(b"a:b")
    with pytest.raises(FormatTextError, match="the key separator ':' is not in it"):
        parse(b"v")


def test_tokens_have_kcats_meaning() -> None:
    printed = format_printer("%t[%p]@%o %T %k(%K)=%s(%S) %h%%\\n\\t\\x41\\\\", b"NULL")
    record = Record(None, b"k", (("a", b"1"), ("b", None)))
    assert printed(record) == b"orders[3]@7 1700000000000 k(1)=NULL(-1) a=1,b=NULL%\n\tA\\"
    assert format_printer("%R")(Record(b"abc")) == b"\x00\x00\x00\x03"
    assert format_printer("%R")(Record(None)) == b"\xff\xff\xff\xff"
    assert value_printer(b"NULL", b"|")(Record(None)) == b"NULL|"


@pytest.mark.parametrize("template", ["%q", "a\\q", "x%", "\\", "\\x4"])
def test_a_format_that_stands_for_nothing_is_refused(template: str) -> None:
    with pytest.raises(FormatTextError, match="--format"):
        format_printer(template)


def test_separators_have_escapes_and_keep_percent_signs() -> None:
    assert unescape("\\t%|\\x00") == b"\t%|\x00"
