"""Message sets of formats 0 and 1, as old producers and brokers wrote them: input for tests."""

from __future__ import annotations

from collections.abc import Iterable

from kcli.format.compression import NONE, ZSTD, codec_name, deflate
from kcli.format.legacy_message_set import LOG_APPEND_TIME_FLAG, NewLegacyRecord, encode_message


def encode_message_set(
    records: Iterable[NewLegacyRecord],
    *,
    magic: int,
    codec: int = NONE,
    log_append_time_ms: int | None = None,
    level: int | None = None,
) -> bytes:
    """Encode a message set: an entry for each record, or with a codec one wrapper around them.

    With `log_append_time_ms` (format 1 only) that is the timestamp of all. Raises ValueError for a magic that is not 0 or 1,
    for zstd, and for a compressed set of no records.
    """
    messages = list(records)
    if magic not in (0, 1) or codec == ZSTD or (codec != NONE and not messages):
        raise ValueError(f"no message set of magic {magic}, codec {codec_name(codec)} and {len(messages)} messages can be")
    flags = 0
    if magic == 1 and log_append_time_ms is not None:
        flags = LOG_APPEND_TIME_FLAG
        messages = [message._replace(timestamp=log_append_time_ms) for message in messages]
    if codec == NONE:
        return b"".join(encode_message(message, magic, flags) for message in messages)
    base_offset = 0 if magic == 0 else messages[0].offset
    inner = b"".join(
        encode_message(message._replace(offset=message.offset - base_offset), magic, flags) for message in messages
    )
    timestamp = max(message.timestamp for message in messages)
    wrapper = NewLegacyRecord(messages[-1].offset, timestamp, None, deflate(codec, inner, level=level, magic=magic))
    return encode_message(wrapper, magic, flags | codec)
