"""Records as text, for `kcli consume` (out) and `kcli produce` (in).

    out        what is written for a record
    ---------  ------------------------------------------------------------------------------------------------------------
    value      its value and a line feed (as kafka-console-consumer)
    json       an object in one line: the members that a record has in dump-log's --output json (docs/json-output.md)
    a format   the text of --format, as kcat's: tokens are replaced, nothing is added

    token      is replaced by                          token  is replaced by
    ---------  --------------------------------------  -----  ----------------------------------------------------------
    %t %p %o   topic, partition, offset                %h     headers: key=value, separated by commas
    %k %K      key; its size, -1 for null              %T     timestamp in ms since 1970, -1 if there is none
    %s %S      value; its size, -1 for null            %R     size of the value as 4 bytes (big-endian int32)
    %%         a percent sign                          \\n \\r \\t \\\\ \\xHH  the character

    in         what a line is
    ---------  ------------------------------------------------------------------------------------------------------------
    value      the value; with a key separator, the key in front of its first occurrence
    json       an object with the members of `json` above: value, key, headers, partition, timestamp, and valueBase64 and
               keyBase64 for bytes that are not text. A value that is not text is sent as the JSON text of the line, without
               blanks and needless escapes: its numbers keep their digits. Lines of dump-log's output of another type than
               record are passed by, and so are control records, so that the output of `kcli dump-log --output json` can be
               produced as it is. An unknown or repeated member is refused, and so is an object with neither key nor value: a
               misspelt value would be a tombstone

Null is printed as the null text, and a key or value that equals the null marker becomes null.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.primitives import INT32_MAX, INT64_MAX
from kcli.format.record_batch import NO_TIMESTAMP
from kcli.inspect.json_text import JsonObject, bytes_member, headers_array, json_string

if TYPE_CHECKING:
    from kcli.client import ConsumerRecord

Headers = Sequence[tuple[bytes, bytes | None]]

TOO_DEEP = "its arrays or objects contain each other too deeply"
TIMESTAMP_TYPES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}


class FormatTextError(ValueError):
    """A --format that cannot be used, or a line that cannot be read as a record; the message is one sentence."""


class ProducedRecord(NamedTuple):
    """A record to send; a partition or timestamp of None is chosen by the producer."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    partition: int | None = None
    timestamp: int | None = None


# ------------------------------------------------------------------------------------------------------------------- out

# Key and value are bytes or None: the consumer has no deserializers.
Printer = Callable[["ConsumerRecord"], bytes]
_Part = Printer


def value_printer(null_text: bytes = b"", separator: bytes = b"\n") -> Printer:
    """Return the printer of values."""

    def printed(record: ConsumerRecord) -> bytes:
        value = _bytes_of(record.value)
        return (null_text if value is None else value) + separator

    return printed


def json_printer() -> Printer:
    """Return the printer of JSON lines."""

    def printed(record: ConsumerRecord) -> bytes:
        key, value = _bytes_of(record.key), _bytes_of(record.value)
        headers = [(name.encode("utf-8", "surrogateescape"), data) for name, data in record.headers]
        kind = TIMESTAMP_TYPES.get(record.timestamp_type, "NoTimestampType")
        text = (
            f'{{"type":"record","topic":{json_string(record.topic)},"partition":{record.partition},"offset":{record.offset},'
            f'"timestamp":{record.timestamp},"timestampType":"{kind}",'
            f'"keySize":{_size(key)},"valueSize":{_size(value)},'
            f'{bytes_member("key", key)},{bytes_member("value", value)},"headers":{headers_array(headers)}}}\n'
        )
        return text.encode()

    return printed


def _bytes_of(data: object) -> bytes | None:
    assert data is None or isinstance(data, bytes)
    return data


def _size(data: object) -> int:
    return -1 if data is None else len(_bytes_of(data) or b"")


def format_printer(template: str, null_text: bytes = b"") -> Printer:
    """Return the printer of a --format text. Raises FormatTextError for a token that does not exist."""

    def or_null(data: object) -> bytes:
        found = _bytes_of(data)
        return null_text if found is None else found

    tokens: dict[str, _Part] = {
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp,
        "k": lambda record: or_null(record.key),
        "K": lambda record: b"%d" % _size(record.key),
        "s": lambda record: or_null(record.value),
        "S": lambda record: b"%d" % _size(record.value),
        "R": lambda record: _size(record.value).to_bytes(4, "big", signed=True),
        "h": lambda record: b",".join(_bytes(key) + b"=" + or_null(value) for key, value in record.headers),
    }
    parts: list[_Part] = []
    for literal, token in _split_template(template):
        if literal:
            parts.append(lambda record, literal=literal: literal)  # type: ignore[misc]
        if token:
            if token not in tokens:
                raise FormatTextError(f"--format: there is no token %{token}; the tokens are %{' %'.join(tokens)} and %%")
            parts.append(tokens[token])
    return lambda record: b"".join([part(record) for part in parts])


_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}
_PIECE = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)


def _split_template(template: str) -> list[tuple[bytes, str]]:
    """Return the literals of a template, each with the token that follows it, "" for none. Raises FormatTextError."""
    pieces: list[tuple[bytes, str]] = []
    literal = b""
    for token, code, escape, text, stray in _PIECE.findall(template):
        if token and token != "%":
            pieces.append((literal, token))
            literal = b""
        elif stray or (escape and escape not in _ESCAPES):
            raise FormatTextError(f"--format: {stray or chr(92) + escape!r} has no meaning; write %% or {chr(92) * 2}")
        else:
            literal += b"%" if token else bytes((int(code, 16),)) if code else _ESCAPES[escape] if escape else _bytes(text)
    pieces.append((literal, ""))
    return pieces


def unescape(text: str) -> bytes:
    """Return a separator of the command line as bytes: \\n, \\r, \\t, \\\\ and \\xHH are replaced. Raises FormatTextError."""
    pieces = _split_template(text.replace("%", "%%"))
    return pieces[0][0]


def _bytes(text: str) -> bytes:
    """Return text of the command line as bytes; bytes that are not UTF-8 are surrogates in it."""
    return text.encode("utf-8", "surrogateescape")


# -------------------------------------------------------------------------------------------------------------------- in

# Returns a record, or None for a line to pass by. Raises FormatTextError.
LineParser = Callable[[bytes], ProducedRecord | None]


def value_parser(key_separator: bytes | None, null_marker: bytes | None, headers: Headers = ()) -> LineParser:
    """Return the parser of lines that are values, with keys if there is a separator; all records get the headers.

    The parser raises FormatTextError for a line without the separator.
    """
    fixed = tuple(headers)

    def or_none(data: bytes) -> bytes | None:
        return None if null_marker is not None and data == null_marker else data

    def parsed(line: bytes) -> ProducedRecord:
        if not key_separator:
            return ProducedRecord(or_none(line), None, fixed)
        key, found, value = line.partition(key_separator)
        if not found:
            raise FormatTextError(f"the key separator {os.fsdecode(key_separator)!r} is not in it")
        return ProducedRecord(or_none(value), or_none(key), fixed)

    return parsed


# The members of a record in the output of consume and dump-log (docs/json-output.md); those that are not sent are passed by.
_CONTENTS = ("key", "keyBase64", "value", "valueBase64")
_PLACE = ("type", "topic", "partition", "offset", "sequence", "timestamp", "timestampType", "leaderEpoch")
_OF_PRODUCER = ("producerId", "producerEpoch", "isTransactional", "isControl")
_DECODED = ("keySize", "valueSize", "keyDecoded", "valueDecoded", "headers", "contentsLeftOut", "control", "decodingError")
_MEMBERS = frozenset((*_CONTENTS, *_PLACE, *_OF_PRODUCER, *_DECODED))
_HEADER_MEMBERS = frozenset(_CONTENTS)
# The longest whole number that is converted: the time for a longer one grows with the square of its digits.
_MOST_DIGITS = 1000


class _Repeated(dict[str, object]):
    """An object of which a member occurs twice; `name` is the member."""

    name = ""


def _object(members: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(members)
    if len(found) == len(members):
        return found
    repeated = _Repeated(found)
    names = [name for name, _ in members]
    repeated.name = next(name for at, name in enumerate(names) if name in names[:at])
    return repeated


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is not a number of JSON")


def _whole_number(text: str) -> float:
    return int(text) if len(text) <= _MOST_DIGITS else float("inf")  # sent as the text that it is


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number, parse_int=_whole_number)


def json_parser(headers: Headers = ()) -> LineParser:
    """Return the parser of JSON lines; all records get the headers in front of their own.

    The parser raises FormatTextError for a line that cannot be read as a record.
    """
    fixed = tuple(headers)

    def parsed(line: bytes) -> ProducedRecord | None:
        if not line.strip():
            return None
        try:
            text = line.decode("utf-8", "surrogatepass")
            found = _DECODER.decode(text)
        except ValueError as error:
            raise FormatTextError(f"it is not JSON: {error}") from None
        except RecursionError:
            raise FormatTextError(TOO_DEEP) from None
        if not isinstance(found, dict):
            raise FormatTextError("it is not a JSON object")
        if found.get("type", "record") != "record" or found.get("isControl"):
            return None
        _check_members(found, _MEMBERS, "the record")
        if found.get("contentsLeftOut"):
            raise FormatTextError("the record's contents were left out of the dump, since it is too large")
        own = tuple(_header(member, text) for member in _list(found, "headers"))
        timestamp = None if found.get("timestamp") == NO_TIMESTAMP else _whole(found, "timestamp", INT64_MAX)
        partition = _whole(found, "partition", INT32_MAX)
        if not any(name in found for name in _CONTENTS):
            raise FormatTextError('it has neither key nor value; write "value":null for a tombstone')
        return ProducedRecord(_data(found, "value", text), _data(found, "key", text), fixed + own, partition, timestamp)

    return parsed


def _check_members(found: JsonObject, known: frozenset[str], what: str) -> None:
    """Raise FormatTextError for a member that is unknown, occurs twice, or contradicts another one."""
    if isinstance(found, _Repeated):
        raise FormatTextError(f"{what} has the member {found.name!r} twice")
    for name in found:
        if name not in known:
            from kcli.inspect.suggestions import did_you_mean

            raise FormatTextError(f"{what} has an unknown member {name!r}{did_you_mean(name, sorted(known))}")
    for name in ("key", "value"):
        if found.get(name) is not None and found.get(f"{name}Base64") is not None:
            raise FormatTextError(f"{what} has both {name} and {name}Base64")


def _list(found: JsonObject, name: str) -> list[JsonObject]:
    members = found.get(name) or []
    if not isinstance(members, list) or not all(isinstance(member, dict) for member in members):
        raise FormatTextError(f"its {name} is not an array of objects")
    return members


def _header(member: JsonObject, line: str) -> tuple[bytes, bytes | None]:
    _check_members(member, _HEADER_MEMBERS, "a header")
    for name in _HEADER_MEMBERS:
        if not isinstance(member.get(name), str | None):
            raise FormatTextError(f"the {name} of a header is not text or null")
    key = _data(member, "key", line)
    if key is None:
        raise FormatTextError("a header has no key")
    return key, _data(member, "value", line)


def _data(found: JsonObject, name: str, line: str) -> bytes | None:
    """Return the bytes of a member: text, base64 in nameBase64, or null; anything else is the JSON text of the line."""
    encoded = found.get(f"{name}Base64")
    if encoded is not None:
        try:
            return b64decode(encoded, validate=True)
        except (Base64Error, TypeError, ValueError):
            raise FormatTextError(f"its {name}Base64 is not base64") from None
    value = found.get(name)
    if value is None or isinstance(value, str):
        return None if value is None else value.encode("utf-8", "surrogatepass")
    return _without_blanks(_text_of(line, name)).encode("utf-8", "surrogatepass")


_BLANKS = re.compile(r"[ \t\n\r]*")
_STRING_OR_BLANKS = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\n\r]+')


def _text_of(line: str, name: str) -> str:
    """Return the text of the value of a member of the object that a line is; the line is valid and has the member."""
    at = line.index("{") + 1
    while True:
        member, at = _DECODER.raw_decode(line, _after_blanks(line, at))
        begin = _after_blanks(line, _after_blanks(line, at) + 1)  # behind the colon
        _, end = _DECODER.raw_decode(line, begin)
        if member == name:
            return line[begin:end]
        at = _after_blanks(line, end) + 1  # behind the comma


def _after_blanks(line: str, at: int) -> int:
    found = _BLANKS.match(line, at)
    return at if found is None else found.end()


def _without_blanks(text: str) -> str:
    """Return JSON text without the blanks between its tokens."""
    return _STRING_OR_BLANKS.sub(lambda found: _plain(found[1]) if found[1] else "", text)


def _plain(string: str) -> str:
    """Return a JSON string with the characters themselves where it has escapes that are not needed."""
    return json.dumps(json.loads(string), ensure_ascii=False) if "\\" in string else string


def _whole(found: JsonObject, name: str, most: int) -> int | None:
    value = found.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most):
        return value
    raise FormatTextError(f"its {name} is not a whole number from 0 to {most}")
