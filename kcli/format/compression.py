"""The four codecs of Kafka's batches, inflated and deflated as Kafka 4.3.1 reads and writes them.

    ==  ======  =====================================================================================================
    id  name    framing
    ==  ======  =====================================================================================================
    0   none    the bytes themselves
    1   gzip    RFC 1952 members; written with modification time 0
    2   snappy  xerial blocks: 82 "SNAPPY" 00, int32 version 1, int32 compatible version 1, then (int32 size, raw block)
                of 32 KiB each; one raw block without any framing is accepted on read (librdkafka writes it)
    3   lz4     lz4 frames of independent blocks, 64 KB when written; neither content size nor checksums are written
    4   zstd    zstd frames
    ==  ======  =====================================================================================================

Traps, and what is done about them:

* A frame's header may claim anything. Nothing is allocated by a claim: a piece is at most a window (gzip), a block (lz4 4 MB,
  zstd 128 KB) or what so many compressed bytes can hold at all (snappy), and the sum is held against a limit.
* A stream that ends early is an error in every codec, where zstandard and zlib would hand out what there is.
* lz4: the header's checksum byte was computed over the wrong bytes by clients of message format 0 (magic included), so there
  Kafka does not look at it, and writes it wrong. Blocks that depend on earlier ones are refused and the checksum of the whole
  content is not looked at, both as in Kafka's reader.
* Frames and members may follow one another; anything else behind the end of one is an error.

The libraries are imported with the first batch that needs them: together they would cost 45 ms at start-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kcli.format import limits
from kcli.format.primitives import Buffer, FormatError, InflationError, read_unsigned_varint

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS: dict[int, str] = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
_CODEC_IDS = {name: codec for codec, name in CODECS.items()}

_GZIP_WBITS = 31
_GZIP_STEP_BYTES = 64 * 1024
_GZIP_NEXT_MEMBER_STEP_BYTES = 512

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + (1).to_bytes(4, "big") * 2
_XERIAL_BLOCK_BYTES = 32 * 1024
# A copy of at most 64 bytes takes at least 2 bytes of compressed input.
_SNAPPY_MAX_RATIO = 32

_LZ4_MAGIC = 0x184D2204.to_bytes(4, "little")
_LZ4_BLOCK_BYTES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_LZ4_STORED = 0x8000_0000
_LZ4_FLAG_CONTENT_CHECKSUM, _LZ4_FLAG_CONTENT_SIZE = 0x04, 0x08
_LZ4_FLAG_BLOCK_CHECKSUM, _LZ4_FLAG_INDEPENDENT = 0x10, 0x20
_LZ4_MAX_LEVEL = 12

_ZSTD_MAGIC = 0xFD2FB528.to_bytes(4, "little")
_ZSTD_SKIPPABLE = 0x184D2A50
_ZSTD_DEFAULT_LEVEL = 3
# Decompressors are costly to make (20 us) and must not be shared while at work: a pool of idle ones.
_zstd_idle: list[Any] = []


def codec_name(codec: int) -> str:
    """The name that Kafka prints for a codec id 0 to 4. Raises FormatError for any other id."""
    try:
        return CODECS[codec]
    except KeyError:
        raise FormatError(f"Unknown compression type id: {codec}") from None


def codec_id(name: str) -> int:
    """The id of the codec with Kafka's `name`. Raises FormatError for an unknown name."""
    try:
        return _CODEC_IDS[name]
    except KeyError:
        raise FormatError(f"Unknown compression name: {name}") from None


def inflate(codec: int, data: Buffer, *, limit: int, magic: int = 2) -> bytes:
    """Inflate the whole of `data` -> at most `limit` bytes.

    `magic` is the message format around it (0 to 2). Raises InflationError when the bytes are damaged, end early or inflate
    beyond `limit`, FormatError for an unknown codec. Allocates no more than about twice the smaller of `limit` and what
    inflates truly.
    """
    if codec == NONE:
        if len(data) > limit:
            raise _beyond(codec, limit)
        return bytes(data)
    pieces = list(_pieces(codec, _Source(data), limits.INFLATE_WINDOW_BYTES, limit, magic))
    if len(pieces) == 1:
        return bytes(pieces[0])
    return b"".join(pieces)


def inflate_stream(
    codec: int,
    data: Buffer | Iterable[Buffer],
    *,
    window: int,
    limit: int = limits.MAX_INFLATED_BATCH_BYTES,
    magic: int = 2,
) -> Iterator[bytes]:
    """Inflate `data`, whole or in chunks that are asked for as they are needed -> windows of `window` bytes, the last shorter.

    Holds about two windows and one chunk; only a single raw snappy block, which knows no parts, is held whole. Raises as
    `inflate` does, when the fault is reached: the windows before it have been handed out by then.
    """
    gathered: list[Buffer] = []
    size = 0
    for piece in _pieces(codec, _Source(data), window, limit, magic):
        gathered.append(piece)
        size += len(piece)
        if size < window:
            continue
        joined = memoryview(b"".join(gathered))
        for start in range(0, size - window + 1, window):
            yield bytes(joined[start : start + window])
        gathered = [joined[size - size % window :]]
        size %= window
    if size:
        yield b"".join(gathered)


def deflate(codec: int, data: Buffer, *, level: int | None = None, magic: int = 2) -> bytes:
    """Deflate `data` -> bytes that Kafka inflates in a batch of format `magic`; `level` None is Kafka's default.

    Raises FormatError for an unknown codec, ValueError for a level that the codec does not know.
    """
    codec_name(codec)
    return _DEFLATERS[codec](data, level, magic)


class _Source:
    """Compressed bytes, taken front to back from one buffer or from chunks; slices are views of the chunk, not copies."""

    __slots__ = ("_chunks", "_position", "_view")

    def __init__(self, data: Buffer | Iterable[Buffer]) -> None:
        whole = isinstance(data, bytes | bytearray | memoryview)
        self._view = memoryview(data) if whole else memoryview(b"")  # type: ignore[arg-type]
        self._chunks: Iterator[Buffer] = iter(()) if whole else iter(data)  # type: ignore[arg-type]
        self._position = 0

    def _fill(self, count: int) -> bool:
        """Bring `count` bytes together behind the position; False when so many do not come."""
        missing = count - (len(self._view) - self._position)
        if missing <= 0:
            return True
        pieces: list[Buffer] = [self._view[self._position :]]
        for chunk in self._chunks:
            pieces.append(chunk)
            missing -= len(chunk)
            if missing <= 0:
                break
        self._view = memoryview(b"".join(pieces))
        self._position = 0
        return missing <= 0

    def peek(self, count: int) -> memoryview:
        """The next `count` bytes, fewer at the end, without taking them."""
        self._fill(count)
        return self._view[self._position : self._position + count]

    def take(self, count: int) -> memoryview:
        """The next `count` bytes. Raises InflationError when there are fewer."""
        if not self._fill(count):
            raise InflationError("the compressed bytes end early")
        start = self._position
        self._position = start + count
        return self._view[start : start + count]

    def take_int(self, count: int) -> int:
        """The next `count` bytes as an unsigned little-endian integer."""
        return int.from_bytes(self.take(count), "little")

    def take_some(self, at_most: int) -> memoryview:
        """The next bytes as they lie there: 1 to `at_most`, or none at the end."""
        self._fill(1)
        start = self._position
        self._position = min(start + at_most, len(self._view))
        return self._view[start : self._position]

    def give_back(self, count: int) -> None:
        """Undo the last `count` bytes of the last take."""
        self._position -= count

    def take_rest(self) -> memoryview:
        """Everything that is left."""
        pieces: list[Buffer] = [self._view[self._position :], *self._chunks]
        self._view, self._position = memoryview(b""), 0
        return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def at_end(self) -> bool:
        """Whether no byte is left."""
        return not self._fill(1)


def _beyond(codec: int, limit: int) -> InflationError:
    return InflationError(f"the {CODECS[codec]} bytes inflate to more than the limit of {limit} bytes")


def _pieces(codec: int, source: _Source, window: int, limit: int, magic: int) -> Iterator[Buffer]:
    """The inflated bytes in pieces as the codec makes them, counted against `limit`."""
    codec_name(codec)
    room = limit
    for piece in _INFLATERS[codec](source, min(window, limit + 1), limit, magic):
        room -= len(piece)
        if room < 0:
            raise _beyond(codec, limit)
        yield piece


def _copied(source: _Source, window: int, limit: int, magic: int) -> Iterator[Buffer]:
    while piece := source.take_some(window):
        yield piece


# ---------------------------------------------------------------------------------------------------------------- gzip


def _inflate_gzip(source: _Source, window: int, limit: int, magic: int) -> Iterator[Buffer]:
    import zlib

    step = _GZIP_STEP_BYTES
    while True:
        member = zlib.decompressobj(_GZIP_WBITS)
        while not member.eof:
            fed = member.unconsumed_tail or source.take_some(step)
            try:
                piece = member.decompress(fed, window)
            except zlib.error as error:
                raise InflationError(f"the gzip bytes are damaged: {error}") from None
            if piece:
                yield piece
            elif not fed:
                raise InflationError("the gzip bytes end early")
            step = min(2 * step, _GZIP_STEP_BYTES)
        source.give_back(len(member.unused_data))
        if source.at_end():
            return
        # Small steps at first: zlib copies what it did not use, and there may be a million tiny members.
        step = _GZIP_NEXT_MEMBER_STEP_BYTES


def _deflate_gzip(data: Buffer, level: int | None, magic: int) -> bytes:
    import zlib

    try:
        member = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
    except ValueError:
        raise ValueError(f"gzip has no level {level}: -1 to 9") from None
    return member.compress(data) + member.flush()


# -------------------------------------------------------------------------------------------------------------- snappy


def _inflate_snappy(source: _Source, window: int, limit: int, magic: int) -> Iterator[Buffer]:
    header = source.peek(len(_XERIAL_HEADER))
    if len(header) < len(_XERIAL_HEADER) or header[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield _inflate_snappy_block(source.take_rest(), limit)
        return
    room = limit
    while not source.at_end():
        if source.peek(len(_XERIAL_MAGIC)) == _XERIAL_MAGIC:
            version = int.from_bytes(source.take(len(_XERIAL_HEADER))[8:12], "big", signed=True)
            if version < 1:
                raise InflationError(f"the snappy bytes are of version {version}; version 1 is the first known")
            continue
        size = int.from_bytes(source.take(4), "big", signed=True)
        if size < 0:
            raise InflationError(f"a snappy block claims a size of {size} bytes")
        block = _inflate_snappy_block(source.take(size), room)
        room -= len(block)
        yield block


def _inflate_snappy_block(block: memoryview, limit: int) -> bytes:
    import cramjam

    try:
        claimed, _ = read_unsigned_varint(block, 0, len(block))
    except FormatError:
        raise InflationError("a snappy block has no valid length in front") from None
    if claimed > limit:
        raise _beyond(SNAPPY, limit)
    if claimed > _SNAPPY_MAX_RATIO * len(block):
        raise InflationError(f"a snappy block of {len(block)} bytes claims to inflate to {claimed}")
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise InflationError(f"a snappy block is damaged: {error}") from None


def _deflate_snappy(data: Buffer, level: int | None, magic: int) -> bytes:
    import cramjam

    view = memoryview(data)
    parts: list[Any] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES])
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


# ----------------------------------------------------------------------------------------------------------------- lz4


def _xxh32_of_short(data: Buffer) -> int:
    """XXH32 with seed 0 of fewer than 16 bytes: all that a frame header needs."""
    mask, position = 0xFFFF_FFFF, 0
    value = (0x165667B1 + len(data)) & mask
    while position + 4 <= len(data):
        value = (value + int.from_bytes(data[position : position + 4], "little") * 0xC2B2AE3D) & mask
        value = ((value << 17 | value >> 15) & mask) * 0x27D4EB2F & mask
        position += 4
    for byte in data[position:]:
        value = (value + byte * 0x165667B1) & mask
        value = ((value << 11 | value >> 21) & mask) * 0x9E3779B1 & mask
    value = (value ^ value >> 15) * 0x85EBCA77 & mask
    value = (value ^ value >> 13) * 0xC2B2AE3D & mask
    return value ^ value >> 16


def _lz4_header_checksum(descriptor: bytes, magic: int) -> int:
    """The checksum byte of a frame descriptor, as clients of format `magic` compute it."""
    return _xxh32_of_short((_LZ4_MAGIC if magic == 0 else b"") + descriptor) >> 8 & 0xFF


def _inflate_lz4(source: _Source, window: int, limit: int, magic: int) -> Iterator[Buffer]:
    yield from _inflate_lz4_frame(source, magic)
    while not source.at_end():
        yield from _inflate_lz4_frame(source, magic)


def _inflate_lz4_frame(source: _Source, magic: int) -> Iterator[Buffer]:
    flags, block_bytes = _take_lz4_header(source, magic)
    checksum_bytes = 4 if flags & _LZ4_FLAG_BLOCK_CHECKSUM else 0
    inflate_block = _checked_lz4_block(flags, block_bytes) if checksum_bytes else _lz4_block(block_bytes)
    while size := int.from_bytes(source.peek(4), "little"):
        stored = size & ~_LZ4_STORED
        if stored > block_bytes:
            raise InflationError(f"an lz4 block claims {stored} bytes, more than the frame's {block_bytes}")
        if stored == 0:
            break
        block = source.take(4 + stored + checksum_bytes)
        yield block[4:] if size & _LZ4_STORED and not checksum_bytes else inflate_block(block)
    source.take(4 + (4 if flags & _LZ4_FLAG_CONTENT_CHECKSUM else 0))


def _take_lz4_header(source: _Source, magic: int) -> tuple[int, int]:
    """Take a frame's header -> its flags, the largest size of its blocks in bytes."""
    if source.take(4) != _LZ4_MAGIC:
        raise InflationError("the lz4 bytes do not begin with an lz4 frame")
    flags, block_descriptor = source.peek(2) if len(source.peek(2)) == 2 else source.take(2)
    if flags >> 6 != 1 or flags & 3 or block_descriptor & 0x8F or block_descriptor >> 4 not in _LZ4_BLOCK_BYTES:
        raise InflationError(f"an lz4 frame has the unknown flags {flags:#04x} {block_descriptor:#04x}")
    if not flags & _LZ4_FLAG_INDEPENDENT:
        raise InflationError("an lz4 frame has blocks that depend on one another, which Kafka refuses")
    descriptor = bytes(source.take(10 if flags & _LZ4_FLAG_CONTENT_SIZE else 2))
    if source.take_int(1) != _lz4_header_checksum(descriptor, 1) and magic != 0:
        raise InflationError("the header of an lz4 frame is damaged")
    return flags, _LZ4_BLOCK_BYTES[block_descriptor >> 4]


def _lz4_block(block_bytes: int) -> Callable[[memoryview], bytes]:
    """A function: a block with its size in front -> its inflated bytes."""
    from lz4.block import LZ4BlockError, decompress

    def inflate_block(block: memoryview) -> bytes:
        try:
            return decompress(block[4:], uncompressed_size=block_bytes)  # type: ignore[no-any-return]
        except LZ4BlockError as error:
            raise InflationError(f"an lz4 block is damaged: {error}") from None

    return inflate_block


def _checked_lz4_block(flags: int, block_bytes: int) -> Callable[[memoryview], bytes]:
    """The same for blocks with a checksum behind them: each goes as a frame of its own through the library, which checks it."""
    from lz4.frame import decompress

    descriptor = bytes((0x40 | _LZ4_FLAG_INDEPENDENT | _LZ4_FLAG_BLOCK_CHECKSUM, _lz4_size_code(block_bytes) << 4))
    header = _LZ4_MAGIC + descriptor + bytes((_lz4_header_checksum(descriptor, 1),))

    def inflate_block(block: memoryview) -> bytes:
        try:
            return decompress(b"".join((header, block, bytes(4))))  # type: ignore[no-any-return]
        except RuntimeError as error:
            raise InflationError(f"an lz4 block is damaged: {error}") from None

    return inflate_block


def _lz4_size_code(block_bytes: int) -> int:
    return next(code for code, size in _LZ4_BLOCK_BYTES.items() if size == block_bytes)


def _deflate_lz4(data: Buffer, level: int | None, magic: int) -> bytes:
    from lz4 import frame

    out = frame.compress(
        data,
        compression_level=0 if level is None else min(level, _LZ4_MAX_LEVEL),
        block_size=frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        store_size=False,
    )
    if magic == 0:
        return b"".join((out[:6], bytes((_lz4_header_checksum(out[4:6], 0),)), memoryview(out)[7:]))
    return out  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------------------- zstd


def _inflate_zstd(source: _Source, window: int, limit: int, magic: int) -> Iterator[Buffer]:
    from zstandard import ZstdDecompressor, ZstdError

    decompressor = _zstd_idle.pop() if _zstd_idle else ZstdDecompressor()
    try:
        yield from _inflate_zstd_frame(source, decompressor)
        while not source.at_end():
            yield from _inflate_zstd_frame(source, decompressor)
    except ZstdError as error:
        raise InflationError(f"the zstd bytes are damaged: {error}") from None
    _zstd_idle.append(decompressor)


def _inflate_zstd_frame(source: _Source, decompressor: Any) -> Iterator[Buffer]:
    """Feed one frame block by block: a block inflates to 128 KB at most, whatever the frame claims."""
    start = source.peek(18)
    if start[:4] != _ZSTD_MAGIC:
        if len(start) >= 8 and int.from_bytes(start[:4], "little") & ~0xF == _ZSTD_SKIPPABLE:
            source.take(8 + int.from_bytes(start[4:8], "little"))
            return
        raise InflationError("the zstd bytes do not begin with a zstd frame" if len(start) >= 4 else "the zstd bytes end early")
    flags = start[4] if len(start) > 4 else 0
    single_segment = flags >> 5 & 1
    content_size_bytes = (single_segment, 2, 4, 8)[flags >> 6]
    frame = decompressor.decompressobj()
    frame.decompress(source.take(6 - single_segment + (0, 1, 2, 4)[flags & 3] + content_size_bytes))
    last = 0
    while not last:
        header = int.from_bytes(source.peek(3), "little")
        last = header & 1
        content = 1 if header >> 1 & 3 == 1 else header >> 3
        piece = frame.decompress(source.take(3 + content))
        if piece:
            yield piece
    if flags & 4:
        frame.decompress(source.take(4))
    if not frame.eof:
        raise InflationError("the zstd bytes end early")


def _deflate_zstd(data: Buffer, level: int | None, magic: int) -> bytes:
    from zstandard import ZstdCompressor

    return ZstdCompressor(level=_ZSTD_DEFAULT_LEVEL if level is None else level).compress(data)


_Inflater = Callable[[_Source, int, int, int], Iterator[Buffer]]
_INFLATERS: dict[int, _Inflater] = {
    NONE: _copied,
    GZIP: _inflate_gzip,
    SNAPPY: _inflate_snappy,
    LZ4: _inflate_lz4,
    ZSTD: _inflate_zstd,
}
_DEFLATERS: dict[int, Callable[[Buffer, int | None, int], bytes]] = {
    NONE: lambda data, level, magic: bytes(data),
    GZIP: _deflate_gzip,
    SNAPPY: _deflate_snappy,
    LZ4: _deflate_lz4,
    ZSTD: _deflate_zstd,
}
