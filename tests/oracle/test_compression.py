"""Protects what kcli compresses against Kafka itself: its dump tool must read every batch and every message set that we
deflate, and what we read of other writers' framings, spoilt message sets included, must be what Kafka reads."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from kcli.format.compression import CODECS, deflate, inflate
from kcli.format.java_text import decode_utf8
from kcli.format.legacy_message_set import iter_records, read_legacy_header
from kcli.format.primitives import FormatError, InflationError
from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Record, encode_records, read_records
from tests.message_sets import NewLegacyRecord, encode_message, encode_message_set
from tests.oracle.peer import Outcome, Peer

pytestmark = pytest.mark.oracle

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
PRINT = "--print-data-log"


def some_records(count: int, value_bytes: int) -> list[Record]:
    dice = random.Random(f"{count} {value_bytes}")
    letters = "abcdefghij"
    return [
        Record(
            i, i, b"key-%d" % i if i % 3 else None, "".join(dice.choices(letters, k=value_bytes)).encode() if i % 5 else None
        )
        for i in range(count)
    ]


def batch_of(records: list[Record], codec: int, payload: bytes) -> bytes:
    return NewRecordBatch(
        0, len(records) - 1, 1_700_000_000_000, 1_700_000_000_000 + len(records), len(records), payload, codec
    ).encode()


def dumped(peer: Peer, root: Path, logs: list[bytes]) -> list[Outcome]:
    """Kafka's dump, with data, of each of `logs`."""
    paths = []
    for number, log in enumerate(logs):
        path = root / f"t-{number}" / "00000000000000000000.log"
        path.parent.mkdir()
        path.write_bytes(log)
        paths.append(path)
    return peer.dump_many([["--files", str(path), PRINT] for path in paths])


def record_lines(outcome: Outcome) -> list[str]:
    return [line for line in outcome.stdout.decode("utf-8", "replace").split("\n") if line.startswith("|")]


def expected_lines(records: list[Record]) -> list[str]:
    lines = []
    for record in records:
        sizes = [-1 if part is None else len(part) for part in (record.key, record.value)]
        line = (
            f"| offset: {record.offset_delta} CreateTime: {1_700_000_000_000 + record.timestamp_delta} keySize: {sizes[0]} "
            f"valueSize: {sizes[1]} sequence: -1 headerKeys: []"
        )
        line += "" if record.key is None else f" key: {decode_utf8(record.key)}"
        lines.append(line + ("" if record.value is None else f" payload: {decode_utf8(record.value)}"))
    return lines


@pytest.mark.ci
def test_kafka_reads_what_each_codec_deflates(kafka_peer: Peer, tmp_path: Path) -> None:
    """From one record to blocks of every codec crossed several times, at levels that Kafka knows."""
    cases = []
    for codec in CODECS:
        for count, value_bytes in ((1, 0), (3, 20), (200, 50), (2500, 700)):
            for level in (None,) if codec in (0, SNAPPY) else (None, 1, 9):
                cases.append((codec, some_records(count, value_bytes), level))
    logs = [batch_of(records, codec, deflate(codec, encode_records(records), level=level)) for codec, records, level in cases]
    for (codec, records, level), outcome in zip(cases, dumped(kafka_peer, tmp_path, logs), strict=True):
        assert outcome.exit_code == 0, (codec, level, outcome.stderr)
        assert f"compresscodec: {CODECS[codec]}" in outcome.stdout.decode() and "isvalid: true" in outcome.stdout.decode()
        assert record_lines(outcome) == expected_lines(records), (codec, len(records), level)


@pytest.mark.ci
def test_kafka_reads_the_other_framings_that_we_read(kafka_peer: Peer, tmp_path: Path) -> None:
    import zstandard
    from cramjam import snappy
    from lz4 import frame

    records = some_records(900, 200)
    plain = encode_records(records)
    half = len(plain) // 2
    streamed = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compressobj()
    lz4_settings = {
        "block_linked": False,
        "block_size": 5,
        "store_size": True,
        "block_checksum": True,
        "content_checksum": True,
    }
    framings = [
        (GZIP, gzip.compress(plain[:half]) + gzip.compress(plain[half:])),
        (SNAPPY, bytes(snappy.compress_raw(plain))),
        (SNAPPY, deflate(SNAPPY, plain[:half]) + deflate(SNAPPY, plain[half:])),
        (LZ4, bytes(frame.compress(plain, **lz4_settings))),
        (ZSTD, streamed.compress(plain) + streamed.flush()),
        (ZSTD, deflate(ZSTD, plain[:half]) + deflate(ZSTD, plain[half:])),
    ]
    logs = [batch_of(records, codec, payload) for codec, payload in framings]
    for (codec, payload), outcome in zip(framings, dumped(kafka_peer, tmp_path, logs), strict=True):
        assert inflate(codec, payload, limit=len(plain)) == plain
        assert record_lines(outcome) == expected_lines(records), (codec, outcome.stderr)


def test_kafka_refuses_linked_lz4_blocks_as_we_do(kafka_peer: Peer, tmp_path: Path) -> None:
    from lz4 import frame

    records = some_records(900, 200)
    linked = bytes(frame.compress(encode_records(records), block_linked=True))
    (outcome,) = dumped(kafka_peer, tmp_path, [batch_of(records, LZ4, linked)])
    assert "Dependent block stream is unsupported" in outcome.stderr and not record_lines(outcome)
    with pytest.raises(InflationError):
        inflate(LZ4, linked, limit=2**24)


def our_lines(codec: int, payload: bytes, records: list[Record]) -> list[str] | None:
    """The lines of a batch of as many records as `records`, or None where it does not open."""
    try:
        inflated = inflate(codec, payload, limit=2**24)
        return expected_lines(list(read_records(inflated, len(records))))
    except FormatError:
        return None


@pytest.mark.ci
def test_damaged_payloads_open_where_they_open_for_kafka(kafka_peer: Peer, tmp_path: Path) -> None:
    """Bits flipped, ends cut off, ends put on: the same records, or none for both."""
    dice = random.Random("payloads")
    records = some_records(2000, 100)
    cases = []
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        sound = deflate(codec, encode_records(records))
        for junk in (
            b"x",
            b"xyz",
            b"\0\0\0\0",
            bytes(40),
            b"\x1f\x8b\x08",
            b"\x82SNA",
            b"\x82SNAPPY\0" + bytes(8),
            b"\x04\x22\x4d",
        ):
            cases.append((codec, sound + junk))
        for _ in range(25):
            spoilt = bytearray(sound)
            if dice.random() < 0.7:
                spoilt[dice.randrange(len(spoilt))] ^= 1 << dice.randrange(8)
            else:
                del spoilt[dice.choice([len(spoilt) - dice.randrange(1, 12), dice.randrange(len(spoilt))]) :]
            cases.append((codec, bytes(spoilt)))
    logs = [batch_of(records, codec, payload) for codec, payload in cases]
    opened = 0
    for (codec, payload), outcome in zip(cases, dumped(kafka_peer, tmp_path, logs), strict=True):
        lines = our_lines(codec, payload, records)
        assert (lines is None) == (outcome.exit_code != 0), (CODECS[codec], payload[-50:].hex(), outcome.stderr[:500])
        assert record_lines(outcome) == (lines or []), CODECS[codec]
        opened += lines is not None
    assert 10 < opened < len(cases) - 60


# --------------------------------------------------------------------------------------------------- formats 0 and 1


def legacy_lines(log: bytes) -> tuple[list[str], str | None]:
    """The record lines of a log of one entry -> (those before a fault, the fault's message or None)."""
    batch = read_legacy_header(log)
    kind = "NoTimestampType" if batch.magic == 0 else "LogAppendTime" if batch.is_log_append_time else "CreateTime"
    lines = []
    try:
        for record in iter_records(batch, log):
            line = (
                f"| offset: {record.offset} {kind}: {record.timestamp} keySize: {record.key_size} "
                f"valueSize: {record.value_size} isValid: {str(record.is_valid).lower()} crc: {record.crc}"
            )
            line += "" if record.key is None else f" key: {decode_utf8(record.key)}"
            lines.append(line + ("" if record.value is None else f" payload: {decode_utf8(record.value)}"))
    except FormatError as error:
        return lines, error.message
    return lines, None


def legacy_records(count: int, value_bytes: int, base_offset: int = 0) -> list[NewLegacyRecord]:
    return [
        NewLegacyRecord(base_offset + record.offset_delta, 1000 + record.offset_delta, record.key, record.value)
        for record in some_records(count, value_bytes)
    ]


@pytest.mark.ci
def test_kafka_reads_the_message_sets_that_we_write(kafka_peer: Peer, tmp_path: Path) -> None:
    """Formats 0 and 1, each codec, large sets, LogAppendTime; lz4 of format 0 with its wrong header checksum."""
    logs = []
    for magic in (0, 1):
        for codec in (0, GZIP, SNAPPY, LZ4):
            for count, value_bytes in ((1, 0), (50, 30), (900, 300)):
                for append_time in (None, 77_000) if magic else (None,):
                    records = legacy_records(count if codec else 1, value_bytes, 1000)
                    logs.append(encode_message_set(records, magic=magic, codec=codec, log_append_time_ms=append_time))
    for log, outcome in zip(logs, dumped(kafka_peer, tmp_path, logs), strict=True):
        assert outcome.exit_code == 0 and "isvalid: true" in outcome.stdout.decode(), outcome.stderr
        assert (record_lines(outcome), None) == legacy_lines(log)


def spoilt_sets(count: int) -> list[bytes]:
    """Wrappers with a sound CRC around entries that are not sound."""
    dice = random.Random("message sets")
    logs = []
    for _ in range(count):
        magic, codec = dice.choice([0, 1, 1]), dice.choice([GZIP, GZIP, LZ4])
        entries = [
            bytearray(
                encode_message(
                    NewLegacyRecord(
                        dice.choice([i, i, i * 3, 900]),
                        dice.randrange(99),
                        dice.choice([None, b"k"]),
                        dice.choice([None, b"val"]),
                    ),
                    dice.choice([magic, magic, magic, 0, 1]),
                    dice.choice([0, 0, 0, 0, 0, 8, 1, 6]),
                )
            )
            for i in range(dice.randrange(4))
        ]
        for entry in entries:
            if dice.random() < 0.3:
                at = dice.randrange(12, len(entry))
                entry[at] ^= 1 << dice.randrange(8)
            if dice.random() < 0.1:
                entry[8:12] = dice.choice([0, 13, 14, 500, -1]).to_bytes(4, "big", signed=True)
        inside = b"".join(entries)
        inside = inside[: dice.choice([len(inside)] * 4 + [dice.randrange(len(inside) + 1)])]
        value = dice.choice([deflate(codec, inside, magic=magic)] * 9 + [None])
        wrapper = NewLegacyRecord(dice.choice([0, 2, 50, 1000]), 555, None, value)
        logs.append(encode_message(wrapper, magic, dice.choice([codec] * 12 + [ZSTD, 6]) | dice.choice([0, 0, 8])))
    return logs


@pytest.mark.ci
def test_spoilt_message_sets_read_as_kafka_reads_them(kafka_peer: Peer, tmp_path: Path) -> None:
    """The same messages before the same fault; in Kafka's words where Kafka has any."""
    logs = spoilt_sets(300)
    faults = set()
    for log, outcome in zip(logs, dumped(kafka_peer, tmp_path, logs), strict=True):
        lines, fault = legacy_lines(log)
        # Where a line breaks off, Kafka found the key or the value at fault when it came to print it.
        whole = outcome.stdout.decode("utf-8", "replace").split("\n")[:-1] if fault else record_lines(outcome)
        assert [line for line in whole if line.startswith("|")] == lines, (log.hex(), fault, outcome.stderr[:400])
        assert (fault is None) == (outcome.exit_code == 0), (log.hex(), fault, outcome.stderr[:400])
        if fault is not None and "Exception: " in outcome.stderr and fault[:1].isupper():
            assert outcome.stderr.split("Exception: ", 1)[1].split("\n")[0] == fault, log.hex()
            faults.add(fault)
    assert len(faults) >= 5, faults
