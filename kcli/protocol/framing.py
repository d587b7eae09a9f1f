"""The frame of a message on a connection: the size, and the header of a request or response.

    part             layout                                                                   version
    ---------------  -----------------------------------------------------------------------  ------------------------------
    size             int32: the number of bytes after it                                      before both
    request header   api_key int16, api_version int16, correlation_id int32, client_id        v1: versions without tags
                     (int16 length, -1 for null; never compact)
                     the same, tagged fields                                                  v2: flexible versions
    response header  correlation_id int32                                                     v0: versions without tags
                     correlation_id int32, tagged fields                                      v1: flexible versions

ApiVersions is an exception, because the client does not know the broker's versions yet (KIP-511): its response always has
header v0, and a request with an unknown version is accepted, to be answered in version 0 with UNSUPPORTED_VERSION. The
request header v0, which had no client id, was used by ControlledShutdown only and was removed with ZooKeeper. A null client
id is an empty one, as in Kafka. After an invalid header the connection is closed: without a valid version the format of the
response is not known.

Encoded frames are complete, with their size, in one buffer that is filled once.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

from kcli.format.java_text import decode_utf8
from kcli.format.primitives import Buffer
from kcli.protocol import codec_support
from kcli.protocol.apis import API_KEYS, API_VERSIONS, Api
from kcli.protocol.codec_support import past_the_end, read_int32_varint
from kcli.protocol.message import Message
from kcli.protocol.message_errors import DecodeError, EncodeError, UnsupportedVersionError

SIZE_BYTES = 4
# The number of client ids whose decoded text is cached.
REMEMBERED_CLIENT_IDS = 2048

_REQUEST_HEAD = struct.Struct(">hhih")
_RESPONSE_HEAD = struct.Struct(">ii")
_INT32 = struct.Struct(">i")
_client_id = lru_cache(REMEMBERED_CLIENT_IDS)(decode_utf8)
_read_head = _REQUEST_HEAD.unpack_from
# By API key: (lowest version, highest version, first flexible version).
_VERSIONS = {api.key: (api.lowest_version, api.highest_version, api.flexible_from) for api in API_KEYS.values()}

RequestHead = tuple[int, int, int, str, int]


def read_request_header(frame: Buffer) -> RequestHead:
    """Decode the header of a request: api_key, api_version, correlation_id, client_id, position of the body.

    `frame` does not include its size. Raises DecodeError for an invalid header or an API key that Kafka 4.4 does not have, and
    UnsupportedVersionError for a version that Kafka 4.4 does not have, except of ApiVersions.
    """
    try:
        api_key, api_version, correlation_id, length = _read_head(frame)
        lowest, highest, flexible_from = _VERSIONS[api_key]
        at = 10
        client_id = ""
        if length > 0:
            at += length
            if at > len(frame):
                raise DecodeError(f"a client id of {length} bytes in a request of {len(frame)}", 10)
            client_id = _client_id(bytes(frame[10:at]))
        elif length < -1:
            raise DecodeError(f"a client id of {length} bytes", 8)
        if api_version >= flexible_from:
            # Nearly all requests have no tagged fields in their headers.
            at = at + 1 if not frame[at] else _skip_tagged_fields(frame, at)
    except (struct.error, IndexError):
        raise past_the_end("RequestHeader", len(frame)) from None
    except KeyError:
        raise DecodeError(f"a request of API key {api_key}, which Kafka 4.4 does not have", 0) from None
    if not lowest <= api_version <= highest and api_key != API_VERSIONS:
        name = API_KEYS[api_key].name
        raise UnsupportedVersionError(f"a request {name} of version {api_version}, which has {lowest} to {highest}", 2)
    return api_key, api_version, correlation_id, client_id, at


def read_response_header(frame: Buffer, api: Api, version: int) -> tuple[int, int]:
    """Decode the header of a response; return correlation_id and the body's position. `frame` does not include its size.

    Raises DecodeError for an invalid header.
    """
    try:
        (correlation_id,) = _INT32.unpack_from(frame)
        at = 4
        if version >= api.flexible_from and api.key != API_VERSIONS:
            at = 5 if not frame[4] else _skip_tagged_fields(frame, 4)
    except (struct.error, IndexError):
        raise past_the_end("ResponseHeader", len(frame)) from None
    return correlation_id, at


def _skip_tagged_fields(frame: Buffer, at: int) -> int:
    """Return the position after the tagged fields at `at`; headers have no known tagged fields yet."""
    count, at = read_int32_varint(frame, at)
    for _ in range(count):
        _tag, at = read_int32_varint(frame, at)
        size, at = read_int32_varint(frame, at)
        if size < 0 or size > len(frame) - at:
            raise DecodeError(f"a tagged field of {size} bytes where {len(frame) - at} are left", at)
        at += size
    return at


def encode_response(correlation_id: int, api: Api, version: int, message: Message) -> bytearray:
    """Encode a response frame: size, header, message. The buffer is new, so the caller may keep it.

    Raises EncodeError for values that the version cannot represent, and UnsupportedVersionError.
    """
    out = bytearray(8 if version < api.flexible_from or api.key == API_VERSIONS else 9)
    api.response.encode_into(out, message, version)
    _RESPONSE_HEAD.pack_into(out, 0, len(out) - SIZE_BYTES, correlation_id)
    return out


def with_correlation_id(frame: bytes | bytearray, correlation_id: int) -> bytearray:
    """Return a copy of a response frame for the request with this correlation id."""
    out = bytearray(frame)
    _RESPONSE_HEAD.pack_into(out, 0, len(out) - SIZE_BYTES, correlation_id)
    return out


def encode_response_parts(correlation_id: int, api: Api, version: int, message: Message) -> list[Any]:
    """Encode a response frame as parts: bytes, and the values of records fields that are not bytes (regions of files).

    Raises as encode_response does.
    """
    out = codec_support.SplicedBuffer(8 if version < api.flexible_from or api.key == API_VERSIONS else 9)
    splices = out.splices = []
    api.response.encode_into(out, message, version)
    if not splices:
        _RESPONSE_HEAD.pack_into(out, 0, len(out) - SIZE_BYTES, correlation_id)
        return [out]
    view = memoryview(out)
    parts: list[Any] = []
    start, spliced_bytes = 0, 0
    for _, value in splices:
        spliced_bytes += len(value)
    _RESPONSE_HEAD.pack_into(out, 0, len(out) - SIZE_BYTES + spliced_bytes, correlation_id)
    for position, value in splices:
        if position > start:
            parts.append(bytes(view[start:position]))
        parts.append(value)
        start = position
    if start < len(out):
        parts.append(bytes(view[start:]))
    return parts


def encode_request(correlation_id: int, api: Api, version: int, client_id: str, message: Message) -> bytearray:
    """Encode a request frame: size, header, message. The buffer is new, so the caller may keep it.

    Raises EncodeError for values that the version cannot represent, and UnsupportedVersionError.
    """
    name = client_id.encode()
    try:
        out = bytearray(SIZE_BYTES) + _REQUEST_HEAD.pack(api.key, version, correlation_id, len(name)) + name
    except struct.error as error:
        raise EncodeError(f"a client id of {len(name)} bytes, or a version or correlation id, is too large") from error
    if version >= api.flexible_from:
        out.append(0)
    api.request.encode_into(out, message, version)
    _INT32.pack_into(out, 0, len(out) - SIZE_BYTES)
    return out
