"""Copy records of a batch without decoding them; the timestamp deltas can be changed to another base timestamp.

    the base timestamp        what is written of a record that stays
    ------------------------  ----------------------------------------------------------------------------------------
    stays                     its bytes, and of neighbours all at once
    moves                     a new length and timestampDelta (varints may grow), all else as it was

Offset deltas stay: the cleaner keeps a batch's base offset. A batch that is produced again must not have gaps: there
`renumber_records` gives the records the offset deltas 0, 1, 2 and so on, and a base timestamp as above.

This one source runs two ways, as kcli.format.record_scan does; its C types are in record_copy.pxd.
"""

from array import array

from kcli.format.primitives import INT64_MAX, Buffer, InvalidRecordError
from kcli.format.record_scan import RecordColumns, read_zigzag

# By how much the length and the timestamp delta of a record may grow: five and ten bytes instead of one and one.
MOST_GROWTH_BYTES = 13
# The same with an offset delta of five bytes.
MOST_RENUMBERED_GROWTH_BYTES = 17
KEEP_OFFSET_DELTAS = -1


def copy_records(
    buffer: Buffer,
    columns: RecordColumns,
    count: int,
    kept: bytearray,
    base_timestamp: int | None,
) -> bytearray:
    """Return the bytes of the records among the first `count` whose byte in `kept` is not 0, concatenated.

    With a `base_timestamp` (ms) their deltas count from that one, so that `columns.timestamp` stays. Raises
    InvalidRecordError for one that is further away than 64 bits count.
    """
    if base_timestamp is not None:
        return _copy_rebased(buffer, columns, count, kept, base_timestamp, columns.timestamp[:count], KEEP_OFFSET_DELTAS)
    out = bytearray(columns.end - (columns.record_position[0] if count else 0))
    end = copy_unchanged(buffer, columns.record_position, columns.end, count, kept, out)
    del out[end:]
    return out


def renumber_records(
    buffer: Buffer,
    columns: RecordColumns,
    count: int,
    kept: bytearray,
    base_timestamp: int,
    timestamps: array,  # type: ignore[type-arg]
    first_delta: int,
) -> bytearray:
    """Return the bytes of the records among the first `count` whose byte in `kept` is not 0, as those of another batch.

    Their offset deltas are `first_delta` and those after it; `timestamps` are theirs, whose deltas count from
    `base_timestamp` (ms). Raises InvalidRecordError for one that is further away than 64 bits count.
    """
    return _copy_rebased(buffer, columns, count, kept, base_timestamp, timestamps, first_delta)


def _copy_rebased(
    buffer: Buffer,
    columns: RecordColumns,
    count: int,
    kept: bytearray,
    base_timestamp: int,
    timestamps: array,  # type: ignore[type-arg]
    first_delta: int,
) -> bytearray:
    if count and max(max(timestamps) - base_timestamp, base_timestamp - min(timestamps)) > INT64_MAX:
        raise InvalidRecordError(f"a record's timestamp is too far from its batch's, {base_timestamp}")
    position = columns.record_position[0] if count else 0
    out = bytearray(columns.end - position + count * MOST_RENUMBERED_GROWTH_BYTES)
    end = copy_rebased(
        buffer, columns.record_position, timestamps, columns.end, count, kept, base_timestamp, first_delta, out, columns.scratch
    )
    del out[end:]
    return out


def copy_unchanged(
    buffer: Buffer,
    positions: array,  # type: ignore[type-arg]
    end: int,
    count: int,
    kept: bytearray,
    out: bytearray | memoryview,
) -> int:
    """Copy records if the base timestamp stays, the loop of `copy_records`; return the number of bytes."""
    done = 0
    index = 0
    while index < count:
        if not kept[index]:
            index += 1
            continue
        start = positions[index]
        while index < count and kept[index]:
            index += 1
        stop = positions[index] if index < count else end
        out[done : done + stop - start] = buffer[start:stop]
        done += stop - start
    return done


def put_zigzag(value: int, out: bytearray | memoryview, position: int) -> int:
    """Write a zigzag integer of 64 bits at out[position]; return the position behind it."""
    raw = value << 1 if value >= 0 else -2 * (value + 1) + 1
    while raw > 127:
        out[position] = raw & 127 | 128
        raw >>= 7
        position += 1
    out[position] = raw
    return position + 1


def size_zigzag(value: int) -> int:
    """Return how many bytes a zigzag integer of 64 bits takes."""
    raw = value << 1 if value >= 0 else -2 * (value + 1) + 1
    size = 1
    while raw > 127:
        raw >>= 7
        size += 1
    return size


def copy_rebased(
    buffer: Buffer,
    positions: array,  # type: ignore[type-arg]
    timestamps: array,  # type: ignore[type-arg]
    end: int,
    count: int,
    kept: bytearray,
    base_timestamp: int,
    offset_delta: int,
    out: bytearray | memoryview,
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """Copy records with other timestamp deltas, the loop of `copy_records` and `renumber_records`; return the number of bytes.

    The first copied record gets `offset_delta`, the next one 1 more, and so on; with KEEP_OFFSET_DELTAS they keep theirs.
    """
    done = 0
    index = 0
    is_renumbered = offset_delta != KEEP_OFFSET_DELTAS
    while index < count:
        if kept[index]:
            stop = positions[index + 1] if index + 1 < count else end
            attributes_at = read_zigzag(buffer, positions[index], 5, scratch)
            start = read_zigzag(buffer, attributes_at + 1, 10, scratch)
            delta = timestamps[index] - base_timestamp
            size = 1 + size_zigzag(delta)
            if is_renumbered:
                start = read_zigzag(buffer, start, 5, scratch)
                size += size_zigzag(offset_delta)
            done = put_zigzag(size + stop - start, out, done)
            out[done] = buffer[attributes_at]
            done = put_zigzag(delta, out, done + 1)
            if is_renumbered:
                done = put_zigzag(offset_delta, out, done)
                offset_delta += 1
            out[done : done + stop - start] = buffer[start:stop]
            done += stop - start
        index += 1
    return done
