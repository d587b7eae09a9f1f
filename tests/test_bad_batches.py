"""Protects: a batch that lies about what it holds, or inflates to far more than it is, costs nothing but itself. Each command
ends as promised (tests.bad_cases), in 100 MB and a minute, and shows the sound batches before and behind it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcli.format.compression import CODECS, codec_id, deflate
from kcli.format.primitives import write_varint
from kcli.format.record_batch import HEADER_BYTES, NewRecordBatch, read_header
from kcli.format.records import Header, Record, encode_record
from tests.bad_cases import COMMANDS, DESCRIBE, DUMPS, JSON, KAFKA, REPAIR, VERIFY, checker, names, names_byte
from tests.forked_commands import CommandServer
from tests.inspect.verified import TIME, batch, partition, root_files
from tests.message_sets import NewLegacyRecord, encode_message, encode_message_set

MEGABYTE = 1 << 20
BOMB_MEGABYTES = 192
INT32_MAX = 2**31 - 1
FIRST, BAD, LAST = batch(0), batch(1), batch(2)
RECORD = Record(0, 0, b"key", b"value", (Header(b"name", b"content"),))
TEN_BYTES = b"\xff" * 9 + b"\x01"
ELEVEN_BYTES = b"\xff" * 10 + b"\x01"


def sealed(**fields: object) -> bytes:
    """The bad batch with some fields of another value, its CRC right."""
    return BAD._replace(**fields).encode()  # type: ignore[arg-type]


def claiming(size: int) -> bytes:
    """The bad batch, whose length says that it has `size` bytes."""
    data = bytearray(BAD.encode())
    data[8:12] = (size - 12).to_bytes(4, "big", signed=True)
    return bytes(data)


def of_records(records: bytes) -> bytes:
    """The bad batch with these bytes for records, its CRC right."""
    return sealed(records=records)


def record_of(*parts: bytes, length: int | None = None) -> bytes:
    """The bad batch with a record of these fields behind its length, which may lie."""
    body = b"".join(parts)
    return of_records(write_varint(len(body) if length is None else length) + body)


def field(value: int) -> bytes:
    return write_varint(value)


KEY, VALUE, HEADERS = b"\x06key", b"\x0avalue", b"\x00"
START = b"\0\0\0"  # attributes and both deltas
SIZE = len(BAD.encode())
LIES: dict[str, bytes] = {
    **{f"batch length {size}": claiming(size) for size in (-1, 0, 12, 13, 25, 60, SIZE + 1, 2 * SIZE - 5, INT32_MAX)},
    **{f"{count} records": sealed(record_count=count) for count in (-(2**31), -1, 0, 2, INT32_MAX)},
    "last offset before the first": sealed(last_offset_delta=-1),
    "codec 7": sealed(attributes=7),
    **{f"compressed by {name}, and is not": sealed(attributes=codec) for codec, name in CODECS.items() if codec},
    **{
        f"record length {size}": record_of(START, KEY, VALUE, HEADERS, length=size) for size in (-1, 0, 1, 5, 13, 15, INT32_MAX)
    },
    **{f"key of {size}": record_of(START, field(size), b"key", VALUE, HEADERS) for size in (4, 100, INT32_MAX)},
    **{f"value of {size}": record_of(START, KEY, field(size), b"value", HEADERS) for size in (3, 100, INT32_MAX)},
    **{f"{count} headers": record_of(START, KEY, VALUE, field(count)) for count in (-1, 1, INT32_MAX)},
    "header key of -1": record_of(START, KEY, VALUE, field(1), field(-1), field(-1)),
    "header key of the largest size": record_of(START, KEY, VALUE, field(1), field(INT32_MAX), field(-1)),
    "header value of the largest size": record_of(START, KEY, VALUE, field(1), field(1), b"h", field(INT32_MAX)),
    "varint of ten bytes: length": of_records(TEN_BYTES + START + KEY + VALUE + HEADERS),
    "varint of eleven bytes: timestamp": record_of(b"\0", ELEVEN_BYTES, b"\0", KEY, VALUE, HEADERS),
    "varint of ten bytes: offset": record_of(b"\0\0", TEN_BYTES, KEY, VALUE, HEADERS),
    "varint of ten bytes: key": record_of(START, TEN_BYTES, VALUE, HEADERS),
    "varint of ten bytes: value": record_of(START, KEY, TEN_BYTES, HEADERS),
    "varint of ten bytes: headers": record_of(START, KEY, VALUE, TEN_BYTES),
    "varint of ten bytes: header key": record_of(START, KEY, VALUE, field(1), TEN_BYTES, field(-1)),
    "varint of ten bytes: header value": record_of(START, KEY, VALUE, field(1), field(1), b"h", TEN_BYTES),
    "varint that never ends": of_records(b"\xff" * 40),
    "bytes behind the last record": of_records(encode_record(RECORD) + b"\0"),
    "less than a record": of_records(encode_record(RECORD)[:-1]),
}
# What format 2 may say: no record at all is what a cleaner leaves, and it then has no bytes; ends are a matter of offsets.
NO_DAMAGE_TO_A_DUMP = {"0 records", "last offset before the first"}


def log_directory(tmp_path: Path, bad: bytes) -> tuple[Path, Path]:
    """A log directory with one log: a sound batch, the bad one, a sound one -> it, the log."""
    data = tmp_path / "data"
    log = partition(data, "t-0", [FIRST, bad, LAST]) / f"{0:020d}.log"
    root_files(data)
    return data, log


def shown_offsets(out: bytes) -> list[int]:
    """The offsets of the records in a dump as JSON."""
    lines = [json.loads(line) for line in out.splitlines()]
    return [line["offset"] for line in lines if line["type"] == "record"]


@pytest.mark.parametrize("lie", LIES)
def test_lies(command_server: CommandServer, lie: str, tmp_path: Path) -> None:
    """The lie is told with its file and byte; the batches around it are shown."""
    data, log = log_directory(tmp_path, LIES[lie])
    check = checker(command_server, tmp_path)
    shown = check(JSON, log)
    assert {0, 2} <= set(shown_offsets(shown.out))
    verified = check(VERIFY, data)
    assert verified.code == 1 and names(verified, log) and names_byte(verified)
    if lie not in NO_DAMAGE_TO_A_DUMP:
        for run in (shown, check(KAFKA, log)):
            assert run.code == 1 and names(run, log) and names_byte(run, len(FIRST.encode())), run.told


@pytest.mark.ci
@pytest.mark.parametrize("lie", LIES)
def test_lies_in_every_output(command_server: CommandServer, lie: str, tmp_path: Path) -> None:
    """The other outputs, plans and descriptions, of the file and of the directory."""
    data, log = log_directory(tmp_path, LIES[lie])
    check = checker(command_server, tmp_path)
    for command in COMMANDS:
        check(command, data)
        if command in DUMPS:
            check(command, log)


LZ4_HEADER_BYTES, LZ4_END_BYTES = 7, 4


def deflated(codec: int, *pieces: bytes | tuple[bytes, int]) -> bytes:
    """Pieces, or pieces so many times, deflated without ever being held: members or frames, one behind the other.

    Of lz4 one frame with the blocks of all pieces: readers take the first frame only.
    """
    found = [
        (deflate(codec, piece), 1) if isinstance(piece, bytes) else (deflate(codec, piece[0]), piece[1]) for piece in pieces
    ]
    if codec != codec_id("lz4"):
        return b"".join(data * times for data, times in found)
    blocks = b"".join(data[LZ4_HEADER_BYTES:-LZ4_END_BYTES] * times for data, times in found)
    return found[0][0][:LZ4_HEADER_BYTES] + blocks + bytes(LZ4_END_BYTES)


def zeros(megabytes: int) -> tuple[bytes, int]:
    return bytes(MEGABYTE), megabytes


def large_record(megabytes: int) -> bytes:
    """The beginning of a record whose value has so many megabytes."""
    head = b"\0\0\0\x01" + write_varint(megabytes * MEGABYTE)
    return write_varint(len(head) + megabytes * MEGABYTE + 1) + head


def bomb(kind: str, codec: int, megabytes: int = BOMB_MEGABYTES) -> NewRecordBatch:
    """A compressed batch that inflates to far more than it is."""
    match kind:
        case "one record":
            records, count = deflated(codec, large_record(megabytes), zeros(megabytes), b"\0"), 1
        case "a record that ends early":
            records, count = deflated(codec, large_record(2 * megabytes), zeros(megabytes)), 1
        case "zeros for records":
            records, count = deflated(codec, zeros(megabytes)), INT32_MAX
        case _:  # zeros behind the record
            records, count = deflated(codec, encode_record(RECORD), zeros(megabytes)), 1
    return BAD._replace(attributes=codec, records=records, record_count=count, max_timestamp=TIME + 1)


BOMBS = ("one record", "a record that ends early", "zeros for records", "zeros behind the record")


def survives(command_server: CommandServer, bad: NewRecordBatch | bytes, tmp_path: Path) -> None:
    """Demand of all commands that the bomb does no harm, and that what stands around it is shown."""
    data, log = log_directory(tmp_path, bad if isinstance(bad, bytes) else bad.encode())
    check = checker(command_server, tmp_path)
    for command in COMMANDS:
        run = check(command, data if command == DESCRIBE else log)
        if command == JSON:
            assert {0, 2} <= set(shown_offsets(run.out)) and len(run.out) < MEGABYTE


def test_a_bomb(command_server: CommandServer, tmp_path: Path) -> None:
    """A few kilobytes that are one record of 192 MB."""
    survives(command_server, bomb("one record", codec_id("zstd")), tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec])
@pytest.mark.parametrize("kind", BOMBS)
def test_bombs(command_server: CommandServer, kind: str, codec: int, tmp_path: Path) -> None:
    """Of every codec, with its bytes in a record, behind the records, or in place of them."""
    survives(command_server, bomb(kind, codec), tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize("codec", [codec_id("zstd"), codec_id("lz4")])
def test_a_bomb_beyond_the_limit(command_server: CommandServer, codec: int, tmp_path: Path) -> None:
    """Beyond 2 GiB, what a Java array holds, inflating ends; the record is refused, the next batch is shown."""
    data, log = log_directory(tmp_path, bomb("zeros behind the record", codec, 2100).encode())
    check = checker(command_server, tmp_path)
    assert {0, 2} <= set(shown_offsets(check(JSON, log).out))
    assert check(VERIFY, data).code == 1


@pytest.mark.ci
def test_a_million_records_in_a_kilobyte(command_server: CommandServer, tmp_path: Path) -> None:
    """Three million records of seven bytes, all of the same offset: columns of a few thousand at a time."""
    tiny = encode_record(Record(0, 0, None, None))
    per_piece = 100_000
    records = deflated(codec_id("zstd"), (tiny * per_piece, 30))
    bad = BAD._replace(attributes=codec_id("zstd"), records=records, record_count=30 * per_piece)
    data, log = log_directory(tmp_path, bad.encode())
    check = checker(command_server, tmp_path)
    for command in (VERIFY, DESCRIBE, (*KAFKA, "--max-bytes", "70"), (*JSON, "--stats"), (*JSON, "--tail", "1")):
        check(command, data if command == DESCRIBE else log)


def wrapper(magic: int, codec: int, value: bytes) -> bytes:
    """A wrapper message whose value is this, whatever it is."""
    return encode_message(NewLegacyRecord(1, TIME, None, value), magic, codec)


def large_message(magic: int, megabytes: int) -> bytes:
    """The beginning of a message whose value has so many megabytes; its CRC is wrong."""
    head = encode_message(NewLegacyRecord(0, TIME, None, b""), magic)[:-4]
    body = megabytes * MEGABYTE
    return head[:8] + (len(head) - 12 + 4 + body).to_bytes(4, "big") + head[12:] + body.to_bytes(4, "big")


def nested(kind: str, magic: int, codec: int) -> bytes:
    """A compressed message set that inflates to far more than it is, or whose messages are sets again."""
    small = encode_message_set([NewLegacyRecord(0, TIME, b"k", b"v")], magic=magic, codec=codec)
    match kind:
        case "one message":
            return wrapper(magic, codec, deflated(codec, large_message(magic, BOMB_MEGABYTES), zeros(BOMB_MEGABYTES)))
        case "many messages":
            tiny = encode_message(NewLegacyRecord(0, TIME, None, None), magic)
            return wrapper(magic, codec, deflated(codec, (tiny * 10_000, 20)))
        case "beyond the limit":
            return wrapper(magic, codec, deflated(codec, large_message(magic, 1500), zeros(600)))
        case "zeros":
            return wrapper(magic, codec, deflated(codec, zeros(BOMB_MEGABYTES)))
        case "twice":
            return wrapper(magic, codec, deflate(codec, small, magic=magic))
        case _:  # a bomb in a bomb in a bomb
            inside = nested("one message", magic, codec)
            for _ in range(3):
                inside = wrapper(magic, codec, deflate(codec, inside * 20, magic=magic))
            return inside


NESTED = ("one message", "beyond the limit", "zeros", "twice", "bombs in bombs")


def test_a_nested_bomb(command_server: CommandServer, tmp_path: Path) -> None:
    """A set within a set within a set, each a bomb."""
    survives(command_server, nested("bombs in bombs", 1, codec_id("gzip")), tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [codec_id("gzip"), codec_id("snappy"), codec_id("lz4")])
@pytest.mark.parametrize("kind", NESTED)
def test_nested_bombs(command_server: CommandServer, kind: str, codec: int, magic: int, tmp_path: Path) -> None:
    """Message sets of the old formats, of every codec that they have."""
    survives(command_server, nested(kind, magic, codec), tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize("magic", [0, 1])
def test_many_messages_in_a_set(command_server: CommandServer, magic: int, tmp_path: Path) -> None:
    """200,000 messages that are 3 KB deflated: held a window at a time."""
    data, log = log_directory(tmp_path, nested("many messages", magic, codec_id("gzip")))
    check = checker(command_server, tmp_path)
    for command in (VERIFY, DESCRIBE, REPAIR, (*JSON, "--stats"), (*JSON, "--tail", "1")):
        check(command, data if command == DESCRIBE else log)


@pytest.mark.parametrize("claimed", [-2, 0, 13, 14, 100, INT32_MAX])
@pytest.mark.parametrize("field_at", [8, 26, 30], ids=["message size", "key size", "value size"])
def test_lies_of_old_formats(command_server: CommandServer, field_at: int, claimed: int, tmp_path: Path) -> None:
    """Sizes of a message, a key or a value of format 1 that lie."""
    data = bytearray(encode_message(NewLegacyRecord(1, TIME, None, b"value"), 1))
    data[field_at : field_at + 4] = claimed.to_bytes(4, "big", signed=True)
    _, log = log_directory(tmp_path, bytes(data))
    check = checker(command_server, tmp_path)
    assert {0, 2} <= set(shown_offsets(check(JSON, log).out))
    assert check(KAFKA, log).code in (0, 1)
    assert check(VERIFY, log).code == 1


def test_the_lies_are_lies() -> None:
    """The builders build what they claim: the sound record parses, and only the one field differs."""
    sound = record_of(START, KEY, VALUE, HEADERS)
    assert len(sound) - HEADER_BYTES == len(encode_record(RECORD._replace(headers=())))
    assert read_header(LIES["2 records"]).record_count == 2
    assert LIES["codec 7"][HEADER_BYTES:] == BAD.encode()[HEADER_BYTES:]
