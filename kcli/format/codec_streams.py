"""Compress, and decompress in pieces of bounded size.

What is written, byte by byte, and what else is read:

    ======  =========================================================  ===========================================
    codec   written                                                    also read
    ======  =========================================================  ===========================================
    gzip    1F 8B 08 00, time 0, deflate, CRC-32, size                 several members
    snappy  82 "SNAPPY" 00, int32 1, int32 1, (int32 size, block)*     repeated headers; one bare raw block
    lz4     04 22 4D 18, flags 60, blocks 40, checksum,                larger blocks; content size; checksums;
            (int32 LE size, block)*, int32 0
    zstd    one frame with its content size                            no content size; several and skipped frames
    ======  =========================================================  ===========================================

Bounds of a piece: 16 KB (gzip), one block (lz4 up to 4 MB, zstd 128 KB), 32 times the compressed bytes (snappy).

Traps, and what is done about them:

* A stream that ends early is an error in every codec, where zstandard and zlib return what there is. Bytes after the end
  that are not another member or frame are ignored, as in Kafka; with zstd they are an error.
* lz4: only the first frame is read. A second one is behind the end for Kafka (Lz4BlockInputStream of 4.3 ends with its
  frame), so a broker that took its records would write a batch that Kafka's consumers cannot read.
* lz4: clients of message format 0 computed the header's checksum over four bytes too many. Kafka does not check it
  there, and writes it that way. As Kafka's reader does, blocks that depend on earlier ones are refused, and the checksum of
  the whole content is not checked (Kafka's readers and writers never agreed on it).
* zstandard's one-call function fails without a content size, which Kafka's writer leaves out.

The libraries are imported with the first batch that needs them: together they would cost 45 ms at start-up.

ByteSource gives bytes front to back, out of one buffer or out of chunks that are asked for as they are needed: a small batch is
in memory whole, a large one comes in the chunks that its file is read in. It holds one chunk. A read returns a view of it;
bytes that span two chunks are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kcli.format.primitives import Buffer, InflationError, InflationLimitError


class ByteSource:
    """Compressed bytes, read front to back from one buffer or from chunks."""

    __slots__ = ("_chunks", "_position", "_view")

    def __init__(self, data: Buffer | Iterable[Buffer]) -> None:
        try:
            self._view = memoryview(data)  # type: ignore[arg-type]
            self._chunks: Iterator[Buffer] = iter(())
        except TypeError:
            self._view = memoryview(b"")
            self._chunks = iter(data)  # type: ignore[arg-type]
        self._position = 0

    def _fill(self, count: int) -> bool:
        """Collect `count` bytes behind the position; False if fewer are left."""
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
        """Return the next `count` bytes, fewer at the end, without taking them."""
        self._fill(count)
        return self._view[self._position : self._position + count]

    def take(self, count: int) -> memoryview:
        """Take the next `count` bytes. Raises InflationError if there are fewer."""
        if not self._fill(count):
            raise InflationError("the compressed bytes end early")
        start = self._position
        self._position = start + count
        return self._view[start : start + count]

    def take_some(self, at_most: int) -> memoryview:
        """Return the next bytes without joining chunks: 1 to `at_most`, or none at the end."""
        self._fill(1)
        start = self._position
        self._position = min(start + at_most, len(self._view))
        return self._view[start : self._position]

    def skip(self, count: int) -> int:
        """Skip up to `count` bytes; return the number skipped."""
        left = count
        while left > 0 and (passed := len(self.take_some(left))):
            left -= passed
        return count - left

    def give_back(self, count: int) -> None:
        """Undo the last `count` bytes of the last take."""
        self._position -= count

    def take_rest(self) -> memoryview:
        """Take all bytes that are left."""
        rest: list[Buffer] = [self._view[self._position :], *self._chunks]
        self._view, self._position = memoryview(b""), 0
        return memoryview(rest[0] if len(rest) == 1 else b"".join(rest))

    def at_end(self) -> bool:
        """Return True if no byte is left."""
        return not self._fill(1)


NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)


# ---------------------------------------------------------------------------------------------------------------- none


def _pass(source: ByteSource, window: int, limit: int, magic: int) -> Iterator[Buffer]:
    while piece := source.take_some(window):
        yield piece


# ---------------------------------------------------------------------------------------------------------------- gzip

_GZIP_WBITS = 31
_GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_HEADER_BYTES = 10
# zlib hands out nothing of a piece in which it finds a fault, so small ones save more of a damaged stream.
_GZIP_STEP_BYTES = 16 * 1024
_GZIP_PIECE_BYTES = 16 * 1024
_GZIP_NEXT_MEMBER_STEP_BYTES = 512


def _inflate_gzip(source: ByteSource, window: int, limit: int, magic: int) -> Iterator[Buffer]:
    import zlib

    step = _GZIP_STEP_BYTES
    while True:
        member = zlib.decompressobj(_GZIP_WBITS)
        while not member.eof:
            fed = member.unconsumed_tail or source.take_some(step)
            try:
                piece = member.decompress(fed, _GZIP_PIECE_BYTES)
            except zlib.error as error:
                raise InflationError(f"the gzip bytes are damaged: {error}") from None
            if piece:
                yield piece
            elif not fed:
                raise InflationError("the gzip bytes end early")
            step = min(2 * step, _GZIP_STEP_BYTES)
        source.give_back(len(member.unused_data))
        following = source.peek(_GZIP_HEADER_BYTES)
        if len(following) < _GZIP_HEADER_BYTES or following[: len(_GZIP_MAGIC)] != _GZIP_MAGIC:
            return
        # Small steps at first: zlib copies what it did not use, and there may be a million tiny members.
        step = _GZIP_NEXT_MEMBER_STEP_BYTES


def _inflate_gzip_at_once(data: Buffer, limit: int) -> bytes | None:
    import zlib

    member = zlib.decompressobj(_GZIP_WBITS)
    try:
        whole = member.decompress(data, limit + 1)
    except zlib.error:
        return None
    return whole if member.eof and not member.unused_data and len(whole) <= limit else None


def _deflate_gzip(data: Buffer, level: int | None, magic: int) -> bytes:
    import zlib

    member = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
    return member.compress(data) + member.flush()


# -------------------------------------------------------------------------------------------------------------- snappy

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + (1).to_bytes(4, "big") * 2
_XERIAL_BLOCK_BYTES = 32 * 1024
# A copy of at most 64 bytes takes at least 2 bytes of compressed input.
_SNAPPY_MAX_RATIO = 32


def _inflate_snappy(source: ByteSource, window: int, limit: int, magic: int) -> Iterator[Buffer]:
    header = source.peek(len(_XERIAL_HEADER))
    if len(header) < len(_XERIAL_HEADER) or header[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield _inflate_snappy_block(source.take_rest(), limit)
        return
    while len(start := source.peek(4)) == 4:
        if start == _XERIAL_MAGIC[:4]:
            header = source.take(len(_XERIAL_HEADER))
            if header[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
                return
            version = int.from_bytes(header[len(_XERIAL_MAGIC) : len(_XERIAL_MAGIC) + 4], "big", signed=True)
            if version < 1:
                raise InflationError(f"the snappy bytes are of version {version}; the first one is 1")
            continue
        size = int.from_bytes(source.take(4), "big", signed=True)
        if size < 0:
            raise InflationError(f"a snappy block claims a size of {size} bytes")
        yield _inflate_snappy_block(source.take(size), limit)


def _inflate_snappy_block(block: memoryview, limit: int) -> Buffer:
    from cramjam import DecompressionError, snappy

    try:
        claimed = snappy.decompress_raw_len(block)
        if claimed > limit:
            raise InflationLimitError(f"a snappy block claims to inflate to {claimed} bytes, more than the limit of {limit}")
        if claimed > _SNAPPY_MAX_RATIO * len(block):
            raise InflationError(f"a snappy block of {len(block)} bytes claims to inflate to {claimed}")
        return memoryview(snappy.decompress_raw(block))
    except DecompressionError as error:
        raise InflationError(f"a snappy block is damaged: {error}") from None


def _inflate_snappy_at_once(data: Buffer, limit: int) -> bytes | None:
    view = memoryview(data)
    start = len(_XERIAL_HEADER) + 4
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC or int.from_bytes(view[start - 4 : start], "big") != len(view) - start:
        return None
    try:
        return bytes(_inflate_snappy_block(view[start:], limit))
    except InflationError:
        return None


def _deflate_snappy(data: Buffer, level: int | None, magic: int) -> bytes:
    from cramjam import snappy

    view = memoryview(data)
    parts: list[Any] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES])
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


# ----------------------------------------------------------------------------------------------------------------- lz4

_LZ4_MAGIC = 0x184D2204.to_bytes(4, "little")
_LZ4_BLOCK_BYTES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_LZ4_STORED = 0x8000_0000
_LZ4_CONTENT_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_BLOCK_CHECKSUM, _LZ4_INDEPENDENT = 0x04, 0x08, 0x10, 0x20
_LZ4_HEADER = _LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_MAX_LEVEL = 12
_LZ4_MAX_RATIO = 255


def _lz4_header_checksum(descriptor: bytes, magic: int) -> int:
    """Return the checksum byte after a frame's descriptor, as clients of message format `magic` compute it."""
    import xxhash  # takes 1 ms, and only frames of lz4 need it

    return xxhash.xxh32_intdigest((_LZ4_MAGIC if magic == 0 else b"") + descriptor) >> 8 & 0xFF


def _inflate_lz4(source: ByteSource, window: int, limit: int, magic: int) -> Iterator[Buffer]:
    flags, block_bytes = _take_lz4_header(source, magic)
    checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    inflate_block = _lz4_block_inflater(block_bytes, checked=checksum_bytes > 0)
    while True:
        size = int.from_bytes(source.peek(4), "little")
        stored = size & ~_LZ4_STORED
        if stored == 0:
            break
        if stored > block_bytes:
            raise InflationError(f"an lz4 block claims {stored} bytes, more than the {block_bytes} of its frame")
        yield inflate_block(source.take(4 + stored + checksum_bytes))
    source.take(8 if flags & _LZ4_CONTENT_CHECKSUM else 4)


def _take_lz4_header(source: ByteSource, magic: int) -> tuple[int, int]:
    """Take a frame's header; return its flags and the largest size of its blocks in bytes."""
    if source.take(4) != _LZ4_MAGIC:
        raise InflationError("the data does not begin with the magic number of an lz4 frame")
    flags, block_flags = source.take(2)
    if flags >> 6 != 1 or flags & 3 or block_flags & 0x8F or block_flags >> 4 not in _LZ4_BLOCK_BYTES:
        raise InflationError(f"an lz4 frame has the unknown flags {flags:#04x} {block_flags:#04x}")
    if not flags & _LZ4_INDEPENDENT:
        raise InflationError("an lz4 frame has blocks that depend on one another, which Kafka refuses")
    descriptor = bytes((flags, block_flags)) + source.take(8 if flags & _LZ4_CONTENT_SIZE else 0)
    if source.take(1)[0] != _lz4_header_checksum(descriptor, 1) and magic != 0:
        raise InflationError("the header of an lz4 frame is damaged")
    return flags, _LZ4_BLOCK_BYTES[block_flags >> 4]


def _lz4_block_inflater(block_bytes: int, *, checked: bool) -> Callable[[memoryview], Buffer]:
    """Return a function that inflates a block: its size, its bytes and, if `checked`, its checksum."""
    from lz4 import block, frame

    size_code = next(code for code, size in _LZ4_BLOCK_BYTES.items() if size == block_bytes)
    descriptor = bytes((0x40 | _LZ4_INDEPENDENT | _LZ4_BLOCK_CHECKSUM, size_code << 4))
    header = _LZ4_MAGIC + descriptor + bytes((_lz4_header_checksum(descriptor, 1),))

    def inflate_block(raw: memoryview) -> Buffer:
        try:
            if checked:
                # As a frame of its own: the library checks a checksum only so.
                return frame.decompress(b"".join((header, raw, bytes(4))))  # type: ignore[no-any-return]
            if raw[3] & 0x80:
                return raw[4:]
            return block.decompress(raw[4:], uncompressed_size=block_bytes)  # type: ignore[no-any-return]
        except (block.LZ4BlockError, RuntimeError) as error:
            raise InflationError(f"an lz4 block is damaged: {error}") from None

    return inflate_block


def _inflate_lz4_at_once(data: Buffer, limit: int) -> bytes | None:
    if data[: len(_LZ4_HEADER)] != _LZ4_HEADER:
        return None
    position, left = len(_LZ4_HEADER), limit
    while size := int.from_bytes(data[position : position + 4], "little") & ~_LZ4_STORED:
        position += 4 + size
        left -= min(_LZ4_BLOCK_BYTES[4], _LZ4_MAX_RATIO * size)
    if left < 0 or position + 4 != len(data):
        return None
    from lz4 import frame

    try:
        whole: bytes = frame.decompress(data)
    except RuntimeError:
        return None
    return whole


def _deflate_lz4(data: Buffer, level: int | None, magic: int) -> bytes:
    from lz4 import frame

    deflated: bytes = frame.compress(
        data,
        compression_level=0 if level is None else min(level, _LZ4_MAX_LEVEL),
        block_size=frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        store_size=False,
    )
    if magic == 0:
        return b"".join((deflated[:6], bytes((_lz4_header_checksum(deflated[4:6], 0),)), memoryview(deflated)[7:]))
    return deflated


# ---------------------------------------------------------------------------------------------------------------- zstd

_ZSTD_MAGIC = 0xFD2FB528.to_bytes(4, "little")
_ZSTD_SKIPPABLE = 0x184D2A50
_ZSTD_DEFAULT_LEVEL = 3
_ZSTD_BLOCK_BYTES = 128 * 1024
_ZSTD_CHECKSUM = 0x04  # the flag, and the checksum's size
# Decompressors are costly to make (20 us) and must not be shared while they work: a pool of idle ones.
_zstd_idle: list[Any] = []
# Compressors likewise, by level.
_zstd_idle_compressors: dict[int, list[Any]] = {}


def _zstd_decompressor() -> Any:
    """Return an idle decompressor or a new one. `pop` is atomic, because a thread may decompress concurrently."""
    try:
        return _zstd_idle.pop()
    except IndexError:
        from zstandard import ZstdDecompressor

        return ZstdDecompressor()


def _inflate_zstd(source: ByteSource, window: int, limit: int, magic: int) -> Iterator[Buffer]:
    from zstandard import ZstdError

    decompressor = _zstd_decompressor()
    try:
        yield from _inflate_zstd_frame(source, decompressor)
        while not source.at_end():
            yield from _inflate_zstd_frame(source, decompressor)
    except ZstdError as error:
        raise InflationError(f"the zstd bytes are damaged: {error}") from None
    finally:
        _zstd_idle.append(decompressor)


def _inflate_zstd_frame(source: ByteSource, decompressor: Any) -> Iterator[Buffer]:
    """Feed one frame block by block: each inflates to 128 KB at most, whatever the frame claims."""
    magic_number = source.take(4)
    if int.from_bytes(magic_number, "little") & ~0xF == _ZSTD_SKIPPABLE:
        source.take(int.from_bytes(source.take(4), "little"))
        return
    if magic_number != _ZSTD_MAGIC:
        raise InflationError("the data does not begin with the magic number of a zstd frame")
    source.give_back(4)
    flags = source.take(5)[4]
    source.give_back(5)
    frame = decompressor.decompressobj()
    frame.decompress(source.take(_zstd_header_bytes(flags)))
    last = 0
    while not last:
        header = int.from_bytes(source.peek(3), "little")
        last = header & 1
        piece = frame.decompress(source.take(_zstd_block_bytes(header)))
        if piece:
            yield piece
    if flags & _ZSTD_CHECKSUM:
        frame.decompress(source.take(_ZSTD_CHECKSUM))
    if not frame.eof:
        raise InflationError("the zstd bytes end early")


def _zstd_header_bytes(flags: int) -> int:
    """Return the size of a frame's header with its magic number, by the flags in its fifth byte."""
    single_segment = flags >> 5 & 1
    return 6 - single_segment + (0, 1, 2, 4)[flags & 3] + (single_segment, 2, 4, 8)[flags >> 6]


def _zstd_block_bytes(header: int) -> int:
    """Return the size of a block with its header, by that header: one byte to repeat, or as many as it states."""
    return 4 if header >> 1 & 3 == 1 else 3 + (header >> 3)


def _inflate_zstd_at_once(data: Buffer, limit: int) -> bytes | None:
    if len(data) < 9 or data[:4] != _ZSTD_MAGIC or not 0 < _zstd_most_bytes(data) <= limit:
        return None
    from zstandard import ZstdError

    decompressor = _zstd_decompressor()
    # Not decompress(data, most): what that sets aside is so large that malloc asks the system for it, batch by batch.
    frame = decompressor.decompressobj()
    try:
        whole: bytes = frame.decompress(data)
    except ZstdError:
        return None
    finally:
        _zstd_idle.append(decompressor)
    return whole if frame.eof else None


def _zstd_most_bytes(data: Buffer) -> int:
    """Return the most bytes that `data` can inflate to by the number of its blocks; 0 if it is not exactly one whole frame."""
    flags, end = data[4], len(data)
    position, most = _zstd_header_bytes(flags), 0
    while position < end - 2:
        low = data[position]
        position += 4 if low & 6 == 2 else 3 + (low >> 3 | data[position + 1] << 5 | data[position + 2] << 13)
        most += _ZSTD_BLOCK_BYTES
        if low & 1:
            return most if position + (flags & _ZSTD_CHECKSUM) == end else 0
    return 0


def _deflate_zstd(data: Buffer, level: int | None, magic: int) -> bytes:
    wanted = _ZSTD_DEFAULT_LEVEL if level is None else level
    try:
        compressor = _zstd_idle_compressors.setdefault(wanted, []).pop()
    except IndexError:
        from zstandard import ZstdCompressor

        compressor = ZstdCompressor(level=wanted)
    try:
        deflated: bytes = compressor.compress(data)
    finally:
        _zstd_idle_compressors[wanted].append(compressor)
    return deflated


# -------------------------------------------------------------------------------------------------------------- tables


# (data, limit) -> the bytes of a single, sound stream, or None for anything else and for what may pass the limit: the quick
# way of small batches, which allocates no more than the careful one.
ONE_SHOTS: dict[int, Callable[[Buffer, int], bytes | None]] = {
    GZIP: _inflate_gzip_at_once,
    SNAPPY: _inflate_snappy_at_once,
    LZ4: _inflate_lz4_at_once,
    ZSTD: _inflate_zstd_at_once,
}
# (source, size of a piece where the codec has a choice, limit of the whole, message format) -> pieces
INFLATERS: dict[int, Callable[[ByteSource, int, int, int], Iterator[Buffer]]] = {
    NONE: _pass,
    GZIP: _inflate_gzip,
    SNAPPY: _inflate_snappy,
    LZ4: _inflate_lz4,
    ZSTD: _inflate_zstd,
}
# (data, level or None, message format) -> compressed bytes
DEFLATERS: dict[int, Callable[[Buffer, int | None, int], bytes]] = {
    NONE: lambda data, level, magic: bytes(data),
    GZIP: _deflate_gzip,
    SNAPPY: _deflate_snappy,
    LZ4: _deflate_lz4,
    ZSTD: _deflate_zstd,
}
