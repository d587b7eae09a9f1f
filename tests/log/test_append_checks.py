"""Protects what a leader takes and refuses: each rule of Kafka's with its error, and nothing changed in the log after it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import limits
from kcli.format.compression import CODECS, inflate
from kcli.format.primitives import crc32c
from kcli.format.record_batch import HEADER_BYTES, NewRecordBatch, check_batch, read_header
from kcli.format.records import Header, Record, encode_records, read_records
from kcli.log.errors import (
    CorruptMessageError,
    InvalidRecordsError,
    InvalidTimestampError,
    MessageTooLargeError,
    NotOneBatchError,
    RecordListTooLargeError,
    UnreadableCompressionError,
    UnsupportedCompressionError,
    UnsupportedMessageFormatError,
)
from kcli.log.log_config import LOG_APPEND_TIME, LogConfig
from kcli.log.log_validator import AppendOrigin
from kcli.log.record_validator import HURRIED_INFLATED_BYTES, MAX_RECORD_ERRORS, LongCheckError
from tests.log.live_logs import NOW_MS, LiveLog, new_batch

HOUR_MS = 3_600_000


def with_config(live: LiveLog, **settings: object) -> LiveLog:
    live.log.config = LogConfig()._replace(**settings)
    return live


def resealed(batch: memoryview) -> memoryview:
    """The batch with the CRC of what it now holds."""
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    return batch


def patched(at: int, data: bytes, batch: memoryview | None = None, *, seal: bool = True) -> memoryview:
    batch = new_batch([b"a", b"b"]) if batch is None else batch
    batch[at : at + len(data)] = data
    return resealed(batch) if seal else batch


def test_only_twelve_bytes_of_a_producers_batch_change(live: LiveLog) -> None:
    """Base offset and leader epoch are patched, the CRC stays right, all else lies in the file as it was sent."""
    live.append(new_batch([b"first"]), epoch=3)
    batch = new_batch([b"x"] * 5)
    sent = bytes(batch)
    assert live.append(batch, epoch=7) == 1
    stored = live.read(1)
    assert (stored[8:12], stored[16:]) == (sent[8:12], sent[16:])
    header = check_batch(stored)
    assert (header.base_offset, header.partition_leader_epoch, header.last_offset) == (1, 7, 5)
    assert [tuple(entry) for entry in live.log.leader_epochs.entries] == [(3, 0), (7, 1)]


def test_headers_that_cannot_be_are_refused(live: LiveLog) -> None:
    """Counts, offsets, control bits, sequences: InvalidRecord; sizes, magic and CRC: CorruptMessage."""
    cases = [
        (patched(0, (5).to_bytes(8, "big"), seal=False), InvalidRecordsError, "base offset"),
        (patched(23, (-1).to_bytes(4, "big", signed=True)), InvalidRecordsError, "last offset delta"),
        (patched(57, (0).to_bytes(4, "big")), InvalidRecordsError, "must be positive and is 0"),
        (patched(57, (3).to_bytes(4, "big")), InvalidRecordsError, "is 3, but its offsets are 2"),
        (patched(21, (0x20).to_bytes(2, "big")), InvalidRecordsError, "control"),
        (new_batch(producer=(5, 0, -1)), InvalidRecordsError, "sequence"),
        (patched(17, b"\0\0\0\0", seal=False), CorruptMessageError, "CRC"),
        (patched(16, b"\3", seal=False), CorruptMessageError, "magic"),
        (patched(16, b"\1", seal=False), NotOneBatchError, "with magic 1"),
        (patched(8, (13).to_bytes(4, "big"), seal=False), CorruptMessageError, "length field of a batch is 13"),
        (patched(8, (48).to_bytes(4, "big"), seal=False)[:60], CorruptMessageError, "shorter than its header"),
        (patched(8, (2**31 - 1).to_bytes(4, "big"), seal=False), NotOneBatchError, "no complete batch"),
        (memoryview(bytearray()), NotOneBatchError, "no complete batch"),
        (memoryview(bytearray(16)), NotOneBatchError, "no complete batch"),
    ]
    for batch, error, words in cases:
        found = live.refused(batch)
        assert type(found) is error, (words, found)
        assert words in found.message
    both = memoryview(bytearray(bytes(new_batch()) * 2))
    assert "more than one batch" in live.refused(both).message
    assert type(live.refused(patched(16, b"\0", seal=False), origin=AppendOrigin.COORDINATOR)) is UnsupportedMessageFormatError


def test_a_torn_piece_behind_the_batch_is_left_out(live: LiveLog) -> None:
    """As in Kafka: what is no whole batch behind the first is not looked at and not written."""
    batch = new_batch()
    live.append(memoryview(bytearray(bytes(batch) + b"\0" * 11)))
    assert live.log.size_bytes == len(batch)


def test_sizes_have_bounds(live: LiveLog) -> None:
    """max.message.bytes counts the whole batch; one that no segment holds has an error of its own."""
    batch = new_batch([b"x" * 100])
    with_config(live, max_message_bytes=len(batch) - 1)
    assert type(live.refused(batch)) is MessageTooLargeError
    with_config(live, segment_bytes=len(batch) - 1)
    assert type(live.refused(batch)) is RecordListTooLargeError
    with_config(live, segment_bytes=len(batch), max_message_bytes=len(batch))
    live.append(batch)


@pytest.mark.parametrize("codec", CODECS)
def test_records_that_do_not_parse_are_refused(live: LiveLog, codec: int) -> None:
    """Fewer records than stated, more, bytes left over, a length that lies; compressed or not."""
    rows = [Record(at, 0, b"k", b"v") for at in range(3)]
    sound = encode_records(rows)
    lying = bytearray(sound)
    lying[0] += 2
    from kcli.format.compression import deflate

    for body, count in ((sound, 4), (sound, 2), (sound + b"\0", 3), (bytes(lying), 3), (sound[:-1], 3), (b"", 1)):
        batch = NewRecordBatch(0, count - 1, NOW_MS, NOW_MS, count, deflate(codec, body), attributes=codec).encode()
        assert type(live.refused(memoryview(bytearray(batch)))) is InvalidRecordsError


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec])
def test_compressed_bytes_that_do_not_inflate(live: LiveLog, codec: int) -> None:
    """Kafka has no code for them: UNKNOWN_SERVER_ERROR; a codec that does not exist is named."""
    batch = new_batch([b"x" * 1000], codec=codec)
    batch[HEADER_BYTES : HEADER_BYTES + 8] = b"\xff" * 8
    assert type(live.refused(resealed(batch))) is UnreadableCompressionError
    unknown = patched(21, (5 + codec % 3).to_bytes(2, "big"))
    assert type(live.refused(unknown)) is UnsupportedCompressionError


def test_a_bomb_is_refused(live: LiveLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that inflates beyond the limit is too large; one of many windows below it is walked through and taken."""
    zeros = [b"\0" * 3_000_000] * 4
    monkeypatch.setattr(limits, "MAX_APPENDED_INFLATED_BYTES", 10_000_000)
    assert type(live.refused(new_batch(zeros, codec=4))) is MessageTooLargeError
    monkeypatch.setattr(limits, "MAX_APPENDED_INFLATED_BYTES", 13_000_000)
    live.append(new_batch(zeros, codec=4))
    batch = new_batch(zeros, codec=4)
    batch[57:61], batch[23:27] = (5).to_bytes(4, "big"), (4).to_bytes(4, "big")
    assert type(live.refused(resealed(batch))) is InvalidRecordsError


def test_who_is_in_a_hurry_is_told_what_would_take_long(live: LiveLog) -> None:
    """Inflating much, building anew, naming what is wrong with each record: then nothing has happened, to batch and log."""
    many = [bytes(100)] * 2000
    long_ones = [
        new_batch([bytes(HURRIED_INFLATED_BYTES)], codec=4),
        new_batch(many, timestamps=[NOW_MS + 2 * HOUR_MS] * 2000),
    ]
    for batch in long_ones:
        before = bytes(batch)
        with pytest.raises(LongCheckError):
            live.log.append_as_leader(batch, 0, NOW_MS, is_hurried=True)
        assert bytes(batch) == before and live.log.log_end_offset == 0
    live.log.append_as_leader(new_batch([bytes(HURRIED_INFLATED_BYTES // 2)], codec=4), 0, NOW_MS, is_hurried=True)
    with_config(live, compression_type="zstd")
    with pytest.raises(LongCheckError):
        live.log.append_as_leader(new_batch(many), 0, NOW_MS, is_hurried=True)
    live.log.append_as_leader(new_batch(many[:200]), 0, NOW_MS, is_hurried=True)
    live.append(new_batch(many))


def test_timestamps_have_bounds(live: LiveLog) -> None:
    """One hour ahead by default, none behind; -1 is no timestamp; the records that lie outside are named."""
    live.append(new_batch([b"a"], timestamps=[NOW_MS + HOUR_MS]), new_batch([b"a"], timestamps=[0]))
    live.append(new_batch([b"a"], timestamps=[-1]))
    late = new_batch([b"a", b"b", b"c"], timestamps=[NOW_MS, NOW_MS + HOUR_MS + 1, NOW_MS + HOUR_MS + 2])
    error = live.refused(late)
    assert type(error) is InvalidTimestampError
    assert [found.batch_index for found in error.record_errors] == [1, 2]
    with_config(live, message_timestamp_before_max_ms=1000)
    error = live.refused(new_batch([b"a", b"b"], timestamps=[NOW_MS - 1001, NOW_MS - 1000]))
    assert [found.batch_index for found in error.record_errors] == [0]
    live.append(new_batch([b"a", b"b"], timestamps=[-1, NOW_MS - 1000]))
    with_config(live)
    assert type(live.refused(new_batch([b"a"], timestamps=[-1], attributes=8))) is InvalidTimestampError


def test_log_append_time_is_the_brokers(live: LiveLog) -> None:
    """Attribute, maxTimestamp and CRC are the broker's, the records' bytes stay; a producer may not set that type itself."""
    with_config(live, message_timestamp_type=LOG_APPEND_TIME)
    batch = new_batch([b"a", b"b"], timestamps=[5, 9])
    body = bytes(batch[HEADER_BYTES:])
    info = live.log.append_as_leader(batch, 0, NOW_MS + 7)
    assert (info.log_append_time_ms, info.max_timestamp) == (NOW_MS + 7, NOW_MS + 7)
    stored = live.read(0)
    assert (check_batch(stored).log_append_time_ms, stored[HEADER_BYTES:]) == (NOW_MS + 7, body)
    error = live.refused(new_batch([b"a", b"b"], attributes=8))
    assert type(error) is InvalidTimestampError
    assert len(error.record_errors) == 2
    with_config(live)
    # CreateTime: the producer's bit goes, its maxTimestamp counts for every record (as in Kafka).
    live.append(new_batch([b"a"], timestamps=[NOW_MS - 5], attributes=8, max_timestamp=NOW_MS))
    header = check_batch(live.read(2))
    assert (header.log_append_time_ms, header.max_timestamp) == (None, NOW_MS)


def test_a_wrong_max_timestamp_is_set_right(live: LiveLog) -> None:
    """maxTimestamp is that of the records; the CRC follows."""
    live.append(new_batch([b"a", b"b"], timestamps=[NOW_MS, NOW_MS - 9], max_timestamp=NOW_MS + 5))
    header = check_batch(live.read(0))
    assert header.max_timestamp == NOW_MS


def test_compacted_topics_want_keys(live: LiveLog) -> None:
    """Each record without one is named, up to a bound; an empty key is one."""
    with_config(live, cleanup_policy=frozenset(("compact",)))
    error = live.refused(new_batch([b"a", b"b", b"c"], keys=[b"k", None, None]))
    assert type(error) is InvalidRecordsError
    assert [found.batch_index for found in error.record_errors] == [1, 2]
    live.append(new_batch([b"a"], keys=[b""]))
    many = live.refused(new_batch([b""] * (MAX_RECORD_ERRORS + 5), keys=[None] * (MAX_RECORD_ERRORS + 5)))
    assert len(many.record_errors) == MAX_RECORD_ERRORS
    both = live.refused(new_batch([b"a", b"b"], keys=[None, b"k"], timestamps=[NOW_MS, NOW_MS + 2 * HOUR_MS]))
    assert type(both) is InvalidTimestampError
    assert [found.batch_index for found in both.record_errors] == [0, 1]


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("codec", CODECS)
def test_a_topics_codec_is_kept(live: LiveLog, codec: int, target: str) -> None:
    """Another codec than the topic's is exchanged, the same one is left byte for byte; records and fields stay."""
    with_config(live, compression_type=target)
    headers = (Header(b"h", b"1"),)
    batch = new_batch([b"x" * 500, None, b"z"], timestamps=[9, 5, 12], codec=codec, headers=headers, producer=(7, 2, 40))
    sent = bytes(batch)
    live.append(batch)
    stored = live.read(0)
    header = check_batch(stored)
    wanted = {"uncompressed": "none"}.get(target, target)
    assert CODECS[header.codec] == wanted
    if CODECS[codec] == wanted:
        assert stored[61:] == sent[61:]
    kept = read_header(sent)
    assert header[7:14] == kept._replace(attributes=header.attributes)[7:14] or header.codec != codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 40)
    body = inflate(header.codec, stored[HEADER_BYTES:], limit=10_000)
    rows = list(read_records(body, 3))
    assert [(header.base_timestamp + row.timestamp_delta, row.value) for row in rows] == [
        (9, b"x" * 500),
        (5, None),
        (12, b"z"),
    ]
    assert all(row.headers == headers for row in rows)


def test_recompression_may_make_a_batch_too_large(live: LiveLog) -> None:
    """The batch as it would be written is held against max.message.bytes."""
    with_config(live, compression_type="uncompressed", max_message_bytes=1000)
    assert type(live.refused(new_batch([b"x" * 2000], codec=4))) is MessageTooLargeError


def test_records_that_do_not_count_from_zero_are_numbered(live: LiveLog) -> None:
    """Two records never get one offset, whatever a client numbers."""
    rows = [Record(0, 0, b"k", b"a"), Record(0, 3, b"k", b"b")]
    batch = NewRecordBatch(0, 1, NOW_MS, NOW_MS + 3, 2, encode_records(rows)).encode()
    live.append(memoryview(bytearray(batch)))
    stored = live.read(0)
    assert check_batch(stored).record_count == 2
    assert [row.offset_delta for row in read_records(stored[HEADER_BYTES:], 2)] == [0, 1]


def test_errors_do_not_depend_on_whether_the_loops_are_compiled(live: LiveLog) -> None:
    """Every single bit of a batch flipped: taken with a right CRC only where the batch still reads as one."""
    sound = bytes(new_batch([b"a", b"b"], producer=(1, 0, 0)))
    for bit in range(8 * len(sound)):
        batch = bytearray(sound)
        batch[bit // 8] ^= 1 << bit % 8
        if 12 <= bit // 8 < 16:
            continue  # the leader epoch, which the broker sets
        live.refused(memoryview(batch))


@given(st.binary(min_size=0, max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    """No bytes of a client make anything but an AppendError."""
    from kcli.log.errors import AppendError
    from kcli.log.log_validator import validated_batch as check
    from kcli.log.log_validator import whole_batch

    view = memoryview(bytearray(data))
    try:
        size = whole_batch(view)
        if size:
            check(view, size, LogConfig(), AppendOrigin.CLIENT)
    except AppendError:
        return
    assert not size
