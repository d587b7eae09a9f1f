"""The codecs: what is written is read back, damage and bombs end in one error within bounds, Kafka's framings are exact."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zlib
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import codec_streams
from kcli.format.compression import CODECS, codec_id, codec_name, deflate, inflate, inflate_stream
from kcli.format.legacy_message_set import read_legacy_header
from kcli.format.primitives import FormatError, InflationError, InflationLimitError, read_unsigned_varint
from kcli.format.record_batch import HEADER_BYTES, read_header
from tests.conftest import every_log_set, peak_bytes
from tests.format.damaged_bytes import damaged

MIB = 1024 * 1024
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
COMPRESSED = [GZIP, SNAPPY, LZ4, ZSTD]
codecs = pytest.mark.parametrize("codec", COMPRESSED, ids=CODECS.__getitem__)
any_magic = st.integers(0, 2)
# What compresses and what does not, within one block of every codec and across several.
payloads = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=40), st.integers(1, 20_000)),
    st.builds(
        lambda seed, size: bytes(zlib.crc32(b"%d %d" % (seed, i)) & 0xFF for i in range(size)),
        st.integers(0, 9),
        st.integers(0, 3000),
    ),
)


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(ends)]


def refused(codec: int, data: bytes, limit: int) -> None:
    with pytest.raises(InflationLimitError):
        inflate(codec, data, limit=limit)


def test_names_are_kafkas() -> None:
    assert [codec_name(codec) for codec in range(5)] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert all(codec_id(codec_name(codec)) == codec for codec in range(5))
    with pytest.raises(FormatError, match="Unknown compression type id: 5"):
        codec_name(5)
    with pytest.raises(FormatError, match="Unknown compression name: lzma"):
        codec_id("lzma")
    with pytest.raises(FormatError):
        inflate(7, b"", limit=1)
    with pytest.raises(FormatError):
        deflate(7, b"")


@pytest.mark.parametrize("codec", CODECS, ids=CODECS.__getitem__)
@given(data=payloads, magic=any_magic, cuts=st.lists(st.integers(0, 10**6), max_size=12), window=st.integers(1, 200_000))
def test_what_is_deflated_inflates_whole_and_in_windows(
    codec: int, data: bytes, magic: int, cuts: list[int], window: int
) -> None:
    deflated = deflate(codec, data, magic=magic)
    # A tight limit takes the careful way, a wide one the quick way.
    assert inflate(codec, deflated, limit=len(data), magic=magic) == data
    assert inflate(codec, memoryview(deflated), limit=2**31 - 1, magic=magic) == data
    windows = list(inflate_stream(codec, iter(chunked(deflated, cuts)), window=window, magic=magic))
    assert b"".join(windows) == data
    assert all(len(one) == window for one in windows[:-1]) and all(0 < len(one) <= window for one in windows)


@pytest.mark.parametrize("codec", COMPRESSED, ids=CODECS.__getitem__)
@pytest.mark.parametrize("level", [None, 1, 9])
def test_levels_inflate_to_the_same(codec: int, level: int | None) -> None:
    data = b"a level changes the size alone" * 5000
    assert inflate(codec, deflate(codec, data, level=level), limit=MIB) == data


def test_large_inputs_cross_every_block_size() -> None:
    data = b"".join(b"%d " % number for number in range(1_000_000))
    for codec in COMPRESSED:
        deflated = deflate(codec, data)
        assert inflate(codec, deflated, limit=len(data)) == data
        assert (
            b"".join(inflate_stream(codec, [deflated[i : i + 10_007] for i in range(0, len(deflated), 10_007)], window=MIB))
            == data
        )


@codecs
def test_every_truncation_is_noticed(codec: int) -> None:
    """zlib and zstandard by themselves hand out what there is; a half batch must not look whole."""
    data = b"".join(b"%d," % (i * i) for i in range(9000))
    deflated = deflate(codec, data)
    whole_blocks = set()
    if codec == SNAPPY:
        position = 16
        while position < len(deflated):
            whole_blocks.update(range(position, position + 4))
            position += 4 + int.from_bytes(deflated[position : position + 4], "big")
    for size in [*range(200), *range(200, len(deflated), 97), len(deflated) - 1]:
        for read in (inflate_all, inflate_in_windows):
            if size in whole_blocks:
                # Xerial framing has no end mark: whole blocks are all that can be known, to Kafka's reader too.
                assert data.startswith(read(codec, deflated[:size]))
                continue
            with pytest.raises(InflationError):
                read(codec, deflated[:size])


def inflate_all(codec: int, data: bytes, limit: int = 64 * MIB) -> bytes:
    return inflate(codec, data, limit=limit)


def inflate_in_windows(codec: int, data: bytes, limit: int = 64 * MIB) -> bytes:
    return b"".join(inflate_stream(codec, [data[i : i + 50] for i in range(0, len(data), 50)], window=1000, limit=limit))


@codecs
@given(data=st.data(), magic=any_magic)
def test_damage_raises_inflation_errors_only(codec: int, data: st.DataObject, magic: int) -> None:
    spoilt = data.draw(damaged(payloads.map(lambda sound: deflate(codec, sound, magic=magic))))
    for limit in (1000, 64 * MIB):
        for read in (inflate_all, inflate_in_windows):
            try:
                assert len(read(codec, spoilt, limit)) <= limit
            except InflationError:
                pass


@codecs
@given(noise=st.binary(max_size=200))
def test_noise_raises_inflation_errors_only(codec: int, noise: bytes) -> None:
    starts = {
        GZIP: b"\x1f\x8b\x08\x00" + bytes(6),
        SNAPPY: b"\x82SNAPPY\0\0\0\0\1\0\0\0\1",
        LZ4: b"\x04\x22\x4d\x18\x60\x40\x82",
    }
    for data in (noise, starts.get(codec, b"\x28\xb5\x2f\xfd") + noise):
        try:
            assert len(inflate(codec, data, limit=MIB)) <= MIB
        except InflationError:
            pass


# ------------------------------------------------------------------------------------------------------- limits, bombs


@codecs
def test_a_byte_above_the_limit_is_refused(codec: int) -> None:
    data = b"x" * 100_000
    deflated = deflate(codec, data)
    assert inflate(codec, deflated, limit=100_000) == data
    for limit in (99_999, 1000, 0):
        with pytest.raises(InflationLimitError):
            inflate(codec, deflated, limit=limit)
        with pytest.raises(InflationLimitError):
            list(inflate_stream(codec, deflated, window=500, limit=limit))
    with pytest.raises(InflationLimitError):
        inflate(0, data, limit=99_999)


def zstd_bomb(blocks: int) -> bytes:
    """A frame that claims 2**62 bytes and has `blocks` blocks of 128 KB in 4 bytes each."""
    header = b"\x28\xb5\x2f\xfd" + bytes((0xC0, 0x38)) + (2**62).to_bytes(8, "little")
    repeated = (128 * 1024 << 3 | 1 << 1).to_bytes(3, "little") + b"z"
    return header + repeated * blocks


@codecs
def test_a_bomb_is_stopped_in_bounded_memory(codec: int) -> None:
    """The limit, not what the bytes inflate to or claim, bounds memory."""
    bomb = zstd_bomb(10_000) if codec == ZSTD else deflate(codec, bytes(64 * MIB))
    assert peak_bytes(lambda: refused(codec, bomb, MIB)) < 12 * MIB
    with pytest.raises(InflationLimitError):
        list(inflate_stream(codec, bomb, window=MIB, limit=MIB))


@codecs
def test_windows_keep_memory_flat(codec: int) -> None:
    deflated = deflate(codec, bytes(48 * MIB))

    def walk() -> None:
        assert sum(len(window) for window in inflate_stream(codec, chunks(deflated), window=MIB)) == 48 * MIB

    def chunks(data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), 65_536):
            yield data[start : start + 65_536]

    assert peak_bytes(walk) < 8 * MIB


LIES = {
    SNAPPY: [b"\xff\xff\xff\xff\x0f\x00a", b"\x82SNAPPY\0\0\0\0\1\0\0\0\1\0\0\0\x07\xff\xff\xff\xff\x0f\x00a"],
    LZ4: [b"\x04\x22\x4d\x18\x68\x40" + (2**63).to_bytes(8, "little") + b"\0", b"\x04\x22\x4d\x18\x60\x70\x73\xff\xff\xff\x7f"],
    ZSTD: [zstd_bomb(0), zstd_bomb(0)[:5] + b"\xff" + bytes(8), b"\x28\xb5\x2f\xfd\xa0\xff\xff\xff\x7f\x01\0\0"],
}


def test_sizes_that_lie_allocate_nothing() -> None:
    """Headers that claim up to 2**63 bytes, read in a process that may have half a gigabyte in all."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29))\n"
        "from kcli.format.compression import inflate, InflationLimitError\n"
        "from kcli.format.primitives import InflationError\n"
        f"for codec, lies in {LIES!r}.items():\n"
        "    for lie in lies:\n"
        "        try:\n"
        "            inflate(codec, lie, limit=2**31 - 1)\n"
        "        except InflationError:\n"
        "            print('refused')\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("refused\n" * sum(map(len, LIES.values())), "")


def test_many_tiny_members_and_frames_take_linear_time() -> None:
    """Each member left the rest of the input copied once; a hundred thousand of them would copy gigabytes."""
    for codec in (GZIP, ZSTD):
        many = deflate(codec, b"") * 30_000 + deflate(codec, b"the last")
        assert inflate(codec, many, limit=100) == b"the last"


# ------------------------------------------------------------------------------------------------- Kafka's own framings


def test_gzip_members_follow_one_another() -> None:
    assert deflate(GZIP, b"a")[:8] == b"\x1f\x8b\x08\x00\0\0\0\0"  # no file time: the same bytes every day
    two = gzip.compress(b"first ") + gzip.compress(b"second")
    assert inflate(GZIP, two, limit=100) == b"first second"
    assert list(inflate_stream(GZIP, two, window=5)) == [b"first", b" seco", b"nd"]
    # What begins no member does not count, to Java; what begins one must be one.
    for junk in (b"something else", b"\x1f\x8b", bytes(30)):
        assert inflate(GZIP, two + junk, limit=100) == b"first second"
    with pytest.raises(InflationError):
        inflate(GZIP, two + two[:12], limit=100)


def test_snappy_blocks_are_xerials() -> None:
    data = bytes(range(256)) * 300
    framed = deflate(SNAPPY, data)
    assert framed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    sizes, position = [], 16
    while position < len(framed):
        size = int.from_bytes(framed[position : position + 4], "big")
        sizes.append(read_unsigned_varint(framed, position + 4, len(framed))[0])
        position += 4 + size
    assert position == len(framed) and sizes == [32768, 32768, 76800 - 65536]
    # Streams put one behind the other repeat the header.
    assert inflate(SNAPPY, framed + framed, limit=MIB) == data + data
    assert b"".join(inflate_stream(SNAPPY, [framed, framed], window=999)) == data + data
    assert inflate(SNAPPY, framed + b"abc", limit=MIB) == data
    assert inflate(SNAPPY, framed + b"\x82SNAP, but not the rest", limit=MIB) == data
    with pytest.raises(InflationError, match="version 0"):
        inflate(SNAPPY, framed[:8] + bytes(8) + framed[16:], limit=MIB)
    with pytest.raises(InflationError, match="size of -1"):
        inflate(SNAPPY, framed[:16] + b"\xff\xff\xff\xff", limit=MIB)


def test_snappy_without_framing_is_read() -> None:
    """librdkafka and others write one raw block."""
    from cramjam import snappy

    for data in (b"", b"short", b"long enough for copies " * 9000):
        raw = bytes(snappy.compress_raw(data))
        assert inflate(SNAPPY, raw, limit=MIB) == data
        assert b"".join(inflate_stream(SNAPPY, [raw[:3], raw[3:]], window=1000)) == data


def lz4_frame(data: bytes, **options: object) -> bytes:
    from lz4 import frame

    settings = {"block_linked": False, "block_size": 4, "store_size": False, "content_checksum": False, **options}
    return bytes(frame.compress(data, **settings))


def test_lz4_header_is_kafkas() -> None:
    assert deflate(LZ4, b"x" * 70_000)[:7].hex() == "04224d18604082"
    # Format 0: the checksum of the header is computed over its magic number too. Seen in what a 2.8.2 broker wrote:
    assert deflate(LZ4, b"x" * 70_000, magic=0)[:7].hex() == "04224d1860401a"
    broken = deflate(LZ4, b"payload", magic=0)
    assert inflate(LZ4, broken, limit=100, magic=0) == b"payload"
    for magic in (1, 2):
        assert inflate(LZ4, deflate(LZ4, b"payload", magic=magic), limit=100, magic=magic) == b"payload"
        with pytest.raises(InflationError, match="header"):
            inflate(LZ4, broken, limit=100, magic=magic)
    assert inflate(LZ4, deflate(LZ4, b"payload"), limit=100, magic=0) == b"payload"


@pytest.mark.parametrize(
    "options",
    [
        {"block_checksum": True},
        {"content_checksum": True},
        {"store_size": True},
        {"block_size": 7},
        {"block_size": 5, "block_checksum": True, "content_checksum": True, "store_size": True},
    ],
    ids=str,
)
def test_lz4_frames_of_other_writers_are_read(options: dict[str, object]) -> None:
    data = b"".join(b"%d;" % i for i in range(200_000)) + bytes(zlib.crc32(b"%d" % i) & 0xFF for i in range(70_000))
    framed = lz4_frame(data, **options)
    assert inflate(LZ4, framed, limit=len(data)) == data
    # Kafka's Lz4BlockInputStream ends with the first frame; what follows it is not read.
    assert inflate(LZ4, framed + framed, limit=2 * len(data)) == data
    assert b"".join(inflate_stream(LZ4, [framed[:5000], framed[5000:]], window=MIB)) == data


def test_lz4_block_checksums_are_checked_and_linked_blocks_refused() -> None:
    data = b"".join(b"%d;" % i for i in range(20_000))
    framed = bytearray(lz4_frame(data, block_checksum=True))
    framed[-6] ^= 1
    with pytest.raises(InflationError, match="lz4 block"):
        inflate(LZ4, framed, limit=MIB)
    with pytest.raises(InflationError, match="depend on one another"):
        inflate(LZ4, lz4_frame(data, block_linked=True), limit=MIB)
    # A wrong checksum of the whole content is no fault to Kafka's reader.
    framed = bytearray(lz4_frame(data, content_checksum=True))
    framed[-1] ^= 1
    assert inflate(LZ4, framed, limit=MIB) == data


def test_zstd_frames_of_other_writers_are_read() -> None:
    import zstandard

    data = b"".join(b"%d;" % i for i in range(60_000))
    plain = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    kafkas = plain.compress(data) + plain.flush()
    with_checksum = zstandard.ZstdCompressor(write_checksum=True).compress(data)
    skipped = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"aside"
    for framed in (kafkas, with_checksum, skipped + kafkas, kafkas + skipped):
        assert inflate(ZSTD, framed, limit=len(data)) == data
    assert inflate(ZSTD, kafkas + with_checksum + kafkas, limit=3 * len(data)) == data * 3
    with pytest.raises(InflationError):
        inflate(ZSTD, with_checksum[:-4] + b"\0\0\0\0", limit=MIB)
    with pytest.raises(InflationError):
        inflate(ZSTD, kafkas + b"something else", limit=MIB)


def test_windows_that_are_not_finished_leave_the_next_reader_alone() -> None:
    """Decompressors are reused; one that is still at work must not be."""
    one, other = deflate(ZSTD, b"1" * 900_000), deflate(ZSTD, b"2" * 900_000)
    first = inflate_stream(ZSTD, one, window=200_000)
    start = next(first)
    second = inflate_stream(ZSTD, other, window=200_000)
    assert next(second) == b"2" * 200_000
    assert inflate(ZSTD, other, limit=MIB) == b"2" * 900_000
    assert start + b"".join(first) == b"1" * 900_000
    del second
    assert inflate(ZSTD, one, limit=MIB) == b"1" * 900_000


# ------------------------------------------------------------------------------------------------------ given batches


def given_payloads() -> Iterator[tuple[int, int, bytes]]:
    """(codec, message format, compressed bytes) of every compressed batch in the given directories."""
    for given_set in every_log_set():
        for file in sorted(given_set.data.rglob("*.log")):
            data, position = file.read_bytes(), 0
            while position + HEADER_BYTES <= len(data):
                magic = data[position + 16]
                if magic == 2:
                    batch = read_header(data, position, position)
                    if batch.codec:
                        yield batch.codec, magic, data[position + HEADER_BYTES : batch.end_position]
                    position = batch.end_position
                else:
                    entry = read_legacy_header(data, position, position)
                    if entry.codec:
                        # The wrapper has no key: its value begins behind two sizes.
                        yield entry.codec, magic, data[position + (26 if magic == 0 else 34) : entry.end_position]
                    position = entry.end_position


def test_what_kafka_wrote_inflates_the_same_both_ways_and_deflates_again() -> None:
    seen = set()
    for codec, magic, payload in given_payloads():
        inflated = inflate(codec, payload, limit=16 * MIB, magic=magic)
        assert b"".join(inflate_stream(codec, [payload], window=3000, magic=magic)) == inflated
        assert inflate(codec, deflate(codec, inflated, magic=magic), limit=len(inflated), magic=magic) == inflated
        if codec == LZ4:
            assert deflate(codec, inflated, magic=magic)[:7] == payload[:7]
        seen.add((codec, magic))
    assert {codec for codec, magic in seen if magic == 2} == set(COMPRESSED)


def test_no_codec_library_is_imported_before_it_is_needed() -> None:
    """They cost 45 ms, and start-up has 150."""
    check = (
        "import sys, kcli.format.compression, kcli.format.legacy_message_set;"
        "print([name for name in ('cramjam', 'lz4', 'zstandard', 'construct', 'javaproperties') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_another_thread_may_take_the_last_idle_decompressor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that is looked at first and taken from then is empty by then."""

    class Taken(list[object]):
        def __bool__(self) -> bool:
            return True

    monkeypatch.setattr(codec_streams, "_zstd_idle", Taken())
    data = deflate(4, b"x" * 1000)
    assert inflate(4, data, limit=1000) == b"x" * 1000
    monkeypatch.setattr(codec_streams, "_zstd_idle", Taken())
    assert b"".join(inflate_stream(4, data, window=100)) == b"x" * 1000
