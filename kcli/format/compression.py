"""The codecs of Kafka's batches by id and name; compression and decompression as in Kafka 4.3.1.

    ==  ======  ==============================================================================================
    id  name    framing
    ==  ======  ==============================================================================================
    0   none    the bytes themselves
    1   gzip    RFC 1952 members; written with modification time 0
    2   snappy  xerial blocks, 32 KiB each when written; one raw block without framing is accepted on read
    3   lz4     lz4 frames of independent blocks, 64 KB when written, without content size or checksums
    4   zstd    zstd frames
    ==  ======  ==============================================================================================

Sizes in headers are not trusted: no memory is allocated from them. `codec_streams` decompresses in small pieces, and their
total is compared with a limit. If the result is certain to be within the limit, one call decompresses all of it, twice as fast
for small batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kcli.format import codec_streams, limits
from kcli.format.codec_streams import GZIP, LZ4, NONE, SNAPPY, ZSTD, ByteSource
from kcli.format.primitives import Buffer, FormatError, InflationLimitError

CODECS: dict[int, str] = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
_CODEC_IDS = {name: codec for codec, name in CODECS.items()}
# A block of a few bytes costs a hundred times its size as an object of its own.
_TINY_PIECE_BYTES = 4 * 1024
_JOINED_PIECE_BYTES = 64 * 1024


def codec_name(codec: int) -> str:
    """Return the name that Kafka prints for a codec id 0 to 4. Raises FormatError for any other id."""
    try:
        return CODECS[codec]
    except KeyError:
        raise FormatError(f"Unknown compression type id: {codec}") from None


def codec_id(name: str) -> int:
    """Return the id of the codec with Kafka's `name`. Raises FormatError for an unknown name."""
    try:
        return _CODEC_IDS[name]
    except KeyError:
        raise FormatError(f"Unknown compression name: {name}") from None


def inflate(codec: int, data: Buffer, *, limit: int, magic: int = 2) -> bytes:
    """Inflate the whole of `data` to at most `limit` bytes.

    `magic` is the message format around it, 0 to 2. Raises InflationLimitError beyond `limit`, InflationError when the
    bytes are damaged or end early, FormatError for an unknown codec. Never holds more than about twice what truly
    inflates, up to `limit`.
    """
    one_shot = codec_streams.ONE_SHOTS.get(codec)
    if one_shot is not None:
        whole = one_shot(data, limit)
        if whole is not None:
            return whole
    pieces = list(_pieces(codec, ByteSource(data), limits.INFLATE_WINDOW_BYTES, limit, magic))
    return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)


def inflate_at_once(codec: int, data: Buffer) -> bytes | None:
    """Inflate a small batch's `data` of format 2 in one call, None if it is damaged, of an unexpected form, or may be large."""
    one_shot = codec_streams.ONE_SHOTS.get(codec)
    return None if one_shot is None else one_shot(data, limits.INFLATE_WINDOW_BYTES)


def inflate_stream(
    codec: int,
    data: Buffer | Iterable[Buffer],
    *,
    window: int,
    limit: int = limits.MAX_INFLATED_BATCH_BYTES,
    magic: int = 2,
) -> Iterator[bytes]:
    """Inflate `data`, whole or in chunks that are read as needed; yield windows of `window` bytes, the last one shorter.

    Holds about two windows and one chunk; only a single raw snappy block, which has no parts, is held whole. Raises as
    `inflate` does, at the fault, when what inflated before it has been handed out.
    """
    gathered: list[Buffer] = []
    size = 0
    fault: FormatError | None = None
    pieces = _pieces(codec, ByteSource(data), window, limit, magic)
    while fault is None:
        try:
            piece = next(pieces, None)
        except FormatError as error:
            piece, fault = None, error
        if piece is None:
            break
        gathered.append(piece)
        size += len(piece)
        if size >= window:
            joined = memoryview(b"".join(gathered))
            for start in range(0, size - window + 1, window):
                yield bytes(joined[start : start + window])
            gathered = [joined[size - size % window :]]
            size %= window
    if size:
        yield b"".join(gathered)
    if fault is not None:
        raise fault


def deflate(codec: int, data: Buffer, *, level: int | None = None, magic: int = 2) -> bytes:
    """Deflate `data` so that Kafka inflates it in a batch of format `magic`; `level` None is Kafka's default.

    Raises FormatError for an unknown codec, ValueError for a level that the codec does not know.
    """
    codec_name(codec)
    return codec_streams.DEFLATERS[codec](data, level, magic)


def _pieces(codec: int, source: ByteSource, window: int, limit: int, magic: int) -> Iterator[Buffer]:
    """Yield the inflated bytes in the pieces that the codec makes, tiny ones joined, counted against `limit`."""
    codec_name(codec)
    left = limit
    joined = bytearray()
    try:
        for piece in codec_streams.INFLATERS[codec](source, min(window, limit + 1), limit, magic):
            left -= len(piece)
            if left < 0:
                raise InflationLimitError(f"the {CODECS[codec]} bytes inflate to more than the limit of {limit} bytes")
            if len(piece) < _TINY_PIECE_BYTES:
                joined += piece
                if len(joined) < _JOINED_PIECE_BYTES:
                    continue
                piece = b""
            if joined:
                yield joined
                joined = bytearray()
            if piece:
                yield piece
    except FormatError:
        if joined:
            yield joined
        raise
    if joined:
        yield joined
