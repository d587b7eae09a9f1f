"""Damage inside .log files: torn tails, flipped bits, lengths that lie, forged fields, moved and lost batches.

Flipped bits go into a batch in the middle of the last segment, so that sound batches lie before and behind it. Forged
fields come with the CRC that fits: what a checksum cannot see.
"""

from __future__ import annotations

import itertools
import random
import struct
from pathlib import Path

from tests.damage.layout import (
    CODEC_BITS,
    CONTROL_BIT,
    HEADER_BYTES,
    HEADER_FIELDS,
    PREFIX_BYTES,
    TRANSACTIONAL_BIT,
    Batch,
    NotApplicableError,
    append,
    cut,
    damage,
    fix_crc,
    flip_bit,
    get_field,
    log_with_batches,
    middle_batch,
    patch,
    read_batches,
    register,
    segment_logs,
    set_field,
)

PAGE_BYTES = 4096
ZSTD_CODEC = 4


@damage
def torn_tail_in_prefix(partition_dir: Path, rng: random.Random) -> None:
    """The last batch ends within its first 17 bytes, too few to tell its length and magic."""
    log, batches = log_with_batches(partition_dir)
    cut(log, batches[-1].position + rng.randint(1, PREFIX_BYTES - 1))


@damage
def torn_tail_in_header(partition_dir: Path, rng: random.Random) -> None:
    """The last batch ends within its header, behind the length."""
    log, batches = log_with_batches(partition_dir)
    cut(log, batches[-1].position + rng.randint(PREFIX_BYTES + 1, HEADER_BYTES - 1))


@damage
def torn_tail_in_records(partition_dir: Path, rng: random.Random) -> None:
    """The last batch ends within its records."""
    log, batches = log_with_batches(partition_dir)
    if batches[-1].size_bytes <= HEADER_BYTES + 1:
        raise NotApplicableError("the last batch has no records")
    cut(log, batches[-1].position + rng.randint(HEADER_BYTES + 1, batches[-1].size_bytes - 1))


@damage
def torn_old_segment(partition_dir: Path, rng: random.Random) -> None:
    """The first segment, though others follow it, ends within its last batch."""
    log, batches = log_with_batches(partition_dir, old=True)
    cut(log, batches[-1].position + rng.randint(PREFIX_BYTES + 1, batches[-1].size_bytes - 1))


@damage
def zero_tail(partition_dir: Path, rng: random.Random) -> None:
    """Pages of zeros follow the last batch: a size that reached the disk before its data, or preallocation."""
    log, _ = log_with_batches(partition_dir)
    append(log, bytes(PAGE_BYTES * rng.randint(1, 8)))


@damage
def short_zero_tail(partition_dir: Path, rng: random.Random) -> None:
    """A few zeros, fewer than the prefix of a batch, follow the last batch."""
    log, _ = log_with_batches(partition_dir)
    append(log, bytes(rng.randint(1, PREFIX_BYTES - 1)))


@damage
def garbage_tail(partition_dir: Path, rng: random.Random) -> None:
    """Random bytes follow the last batch."""
    log, _ = log_with_batches(partition_dir)
    append(log, rng.randbytes(rng.randint(100, 2000)))


def _flip_field(partition_dir: Path, rng: random.Random, at: int, size_bytes: int) -> None:
    log, batches = log_with_batches(partition_dir)
    flip_bit(log, middle_batch(batches, rng).position + at, size_bytes, rng)


def _register_flips() -> None:
    for field, (at, size_bytes) in HEADER_FIELDS.items():

        def flip(partition_dir: Path, rng: random.Random, at: int = at, size_bytes: int = size_bytes) -> None:
            _flip_field(partition_dir, rng, at, size_bytes)

        if field != "base_offset":
            words = field.replace("_", " ")
            register(f"flip_{field}", flip, f"One bit of the {words} in a batch's header is flipped.")


@damage
def flip_base_offset_low(partition_dir: Path, rng: random.Random) -> None:
    """One of the low 16 bits of a batch's base offset is flipped, which no CRC covers."""
    _flip_field(partition_dir, rng, 6, 2)


@damage
def flip_base_offset_high(partition_dir: Path, rng: random.Random) -> None:
    """One of the high 32 bits of a batch's base offset is flipped: it no longer fits the index's relative offsets."""
    _flip_field(partition_dir, rng, 0, 4)


_register_flips()


@damage
def flip_record(partition_dir: Path, rng: random.Random) -> None:
    """One bit of a batch's uncompressed records is flipped."""
    log, batches = log_with_batches(partition_dir)
    plain = [batch for batch in batches if batch.is_plain_data]
    if not plain:
        raise NotApplicableError("no uncompressed batch of records")
    batch = middle_batch(plain, rng)
    flip_bit(log, batch.position + HEADER_BYTES, batch.size_bytes - HEADER_BYTES, rng)


@damage
def flip_compressed_payload(partition_dir: Path, rng: random.Random) -> None:
    """One bit of a batch's compressed payload is flipped."""
    log, batches = log_with_batches(partition_dir)
    packed = [batch for batch in batches if batch.attributes & CODEC_BITS]
    if not packed:
        raise NotApplicableError("no compressed batch")
    batch = middle_batch(packed, rng)
    flip_bit(log, batch.position + HEADER_BYTES, batch.size_bytes - HEADER_BYTES, rng)


@damage
def bad_first_batch(partition_dir: Path, rng: random.Random) -> None:
    """The first batch of the last segment has a wrong CRC."""
    log, batches = log_with_batches(partition_dir)
    flip_bit(log, batches[0].position + 17, 4, rng)


@damage
def bad_last_batch(partition_dir: Path, rng: random.Random) -> None:
    """The last batch of the log has a wrong CRC."""
    log, batches = log_with_batches(partition_dir)
    flip_bit(log, batches[-1].position + 17, 4, rng)


@damage
def bad_batch_in_old_segment(partition_dir: Path, rng: random.Random) -> None:
    """A batch in the first segment, though others follow it, has a wrong CRC."""
    log, batches = log_with_batches(partition_dir, old=True)
    flip_bit(log, middle_batch(batches, rng).position + 17, 4, rng)


@damage
def last_batch_overflows(partition_dir: Path, rng: random.Random) -> None:
    """The last batch's base offset is 2^32 too high: the segment spans more offsets than its indexes can tell apart."""
    log, batches = log_with_batches(partition_dir, at_least=2)
    set_field(log, batches[-1], "base_offset", batches[-1].base_offset + 2**32)


def _register_lengths() -> None:
    lies = {
        "huge": (lambda length, rng: 2**31 - 1, "is the largest int32, far beyond the end of the file"),
        "negative": (lambda length, rng: -rng.randint(1, 2**31), "is negative"),
        "below_minimum": (lambda length, rng: rng.randint(0, 13), "is below the 14 bytes that any message has"),
        "short": (lambda length, rng: length - rng.randint(1, min(20, length - 14)), "is a few bytes too small"),
        "long": (lambda length, rng: length + rng.randint(1, 20), "is a few bytes too large"),
    }
    for name, (lie, words) in lies.items():

        def change(partition_dir: Path, rng: random.Random, lie=lie) -> None:  # type: ignore[no-untyped-def]
            log, batches = log_with_batches(partition_dir)
            batch = middle_batch(batches, rng)
            set_field(log, batch, "length", lie(batch.size_bytes - 12, rng))

        register(f"length_{name}", change, f"The length in a batch's header {words}.")


_register_lengths()


def _forge(partition_dir: Path, rng: random.Random, field: str, add: int, *, with_producer: bool = False) -> None:
    """Add to a header field of a data batch in the middle and make the CRC fit."""
    log, batches = log_with_batches(partition_dir)
    wanted = [each for each in batches if not each.is_control and (each.producer_id >= 0 or not with_producer)]
    if not wanted:
        raise NotApplicableError("no batch of records of an idempotent producer")
    batch = middle_batch(wanted, rng)
    set_field(log, batch, field, get_field(log, batch, field) + add, forge_crc=True)


@damage
def forged_count(partition_dir: Path, rng: random.Random) -> None:
    """A batch states one record more than it has; its CRC fits."""
    _forge(partition_dir, rng, "count", 1)


@damage
def forged_last_offset_delta(partition_dir: Path, rng: random.Random) -> None:
    """A batch claims a thousand offsets more than it has, so that the batches behind it overlap it; its CRC fits."""
    _forge(partition_dir, rng, "last_offset_delta", 1000)


@damage
def forged_max_timestamp(partition_dir: Path, rng: random.Random) -> None:
    """A batch claims a maximal timestamp ten years ahead; its CRC fits."""
    _forge(partition_dir, rng, "max_timestamp", 10 * 365 * 86_400_000)


@damage
def forged_sequence(partition_dir: Path, rng: random.Random) -> None:
    """An idempotent producer's batch skips a thousand sequence numbers; its CRC fits."""
    _forge(partition_dir, rng, "base_sequence", 1000, with_producer=True)


@damage
def forged_producer_epoch(partition_dir: Path, rng: random.Random) -> None:
    """A batch has an epoch of its producer one above that of the batches behind it; its CRC fits."""
    _forge(partition_dir, rng, "producer_epoch", 1, with_producer=True)


@damage
def forged_leader_epoch(partition_dir: Path, rng: random.Random) -> None:
    """A batch has a leader epoch seven above that of the batches behind it (no CRC covers it)."""
    _forge(partition_dir, rng, "leader_epoch", 7)


@damage
def forged_codec(partition_dir: Path, rng: random.Random) -> None:
    """An uncompressed batch says that it is compressed with zstd; its CRC fits."""
    log, batches = log_with_batches(partition_dir)
    plain = [batch for batch in batches if batch.is_plain_data]
    if not plain:
        raise NotApplicableError("no uncompressed batch of records")
    batch = middle_batch(plain, rng)
    set_field(log, batch, "attributes", batch.attributes | ZSTD_CODEC, forge_crc=True)


@damage
def forged_record_length(partition_dir: Path, rng: random.Random) -> None:
    """The first record of an uncompressed batch states a length of its own that lies; the batch's CRC fits."""
    log, batches = log_with_batches(partition_dir)
    plain = [batch for batch in batches if batch.is_plain_data]
    if not plain:
        raise NotApplicableError("no uncompressed batch of records")
    batch = middle_batch(plain, rng)
    with log.open("rb") as file:
        file.seek(batch.position + HEADER_BYTES)
        first = file.read(1)[0]
    # The low seven bits of the varint; any other value than the true one is a lie.
    patch(log, batch.position + HEADER_BYTES, bytes([first ^ rng.randint(1, 0x3F) * 2]))
    fix_crc(log, batch)


@damage
def forged_not_transactional(partition_dir: Path, rng: random.Random) -> None:
    """The second or a later batch of a transaction does not say that it belongs to one; its CRC fits."""
    log, batches = log_with_batches(partition_dir)
    later = [
        batch
        for before, batch in itertools.pairwise(batches)
        if before.producer_id == batch.producer_id
        and before.attributes & batch.attributes & TRANSACTIONAL_BIT
        and not (before.is_control or batch.is_control)
    ]
    if not later:
        raise NotApplicableError("no transaction of two batches in a row")
    batch = rng.choice(later)
    set_field(log, batch, "attributes", batch.attributes & ~TRANSACTIONAL_BIT, forge_crc=True)


@damage
def forged_control_batch(partition_dir: Path, rng: random.Random) -> None:
    """A transaction's batch of records says that it holds markers; its CRC fits."""
    log, batches = log_with_batches(partition_dir)
    wanted = [each for each in batches if each.attributes & TRANSACTIONAL_BIT and not each.is_control]
    if not wanted:
        raise NotApplicableError("no batch of a transaction")
    batch = middle_batch(wanted, rng)
    set_field(log, batch, "attributes", batch.attributes | CONTROL_BIT, forge_crc=True)


@damage
def magic_of_format_1(partition_dir: Path, rng: random.Random) -> None:
    """A batch says that it is a message of format 1."""
    log, batches = log_with_batches(partition_dir)
    set_field(log, middle_batch(batches, rng), "magic", 1)


@damage
def zeroed_page(partition_dir: Path, rng: random.Random) -> None:
    """A page in the middle of the last segment (a sector, where it is small) is full of zeros."""
    log, _ = log_with_batches(partition_dir)
    size_bytes = log.stat().st_size
    unit_bytes = PAGE_BYTES if size_bytes > 4 * PAGE_BYTES else 512
    if size_bytes < 3 * unit_bytes:
        raise NotApplicableError("the last segment has no whole sector in its middle")
    patch(log, rng.randint(1, size_bytes // unit_bytes - 1) * unit_bytes, bytes(unit_bytes))


def _rewrite(log: Path, batches: list[Batch], order: list[int]) -> None:
    """Write the segment anew with its batches in `order` (indexes; one may come twice or not at all)."""
    data = log.read_bytes()
    log.write_bytes(b"".join(data[batches[i].position : batches[i].end] for i in order))


@damage
def duplicated_batch(partition_dir: Path, rng: random.Random) -> None:
    """A batch stands twice, one behind the other."""
    log, batches = log_with_batches(partition_dir)
    twice = batches.index(middle_batch(batches, rng))
    _rewrite(log, batches, sorted([*range(len(batches)), twice]))


@damage
def duplicated_last_batch(partition_dir: Path, rng: random.Random) -> None:
    """The last batch stands twice."""
    log, batches = log_with_batches(partition_dir)
    _rewrite(log, batches, [*range(len(batches)), len(batches) - 1])


@damage
def swapped_batches(partition_dir: Path, rng: random.Random) -> None:
    """Two neighbouring batches have changed places, so that offsets go back."""
    log, batches = log_with_batches(partition_dir, at_least=2)
    first = rng.randrange(len(batches) - 1)
    order = list(range(len(batches)))
    order[first : first + 2] = [first + 1, first]
    _rewrite(log, batches, order)


@damage
def lost_batch(partition_dir: Path, rng: random.Random) -> None:
    """A batch in the middle of the last segment is gone, without a trace: a gap in the offsets."""
    log, batches = log_with_batches(partition_dir, at_least=2)
    lost = batches.index(middle_batch(batches, rng))
    _rewrite(log, batches, [i for i in range(len(batches)) if i != lost])


@damage
def lost_marker(partition_dir: Path, rng: random.Random) -> None:
    """The marker that ends a transaction is gone: the transaction seems open."""
    for log in reversed(segment_logs(partition_dir)):
        batches = read_batches(log)
        markers = [i for i, batch in enumerate(batches) if batch.is_control]
        if markers:
            lost = rng.choice(markers)
            _rewrite(log, batches, [i for i in range(len(batches)) if i != lost])
            return
    raise NotApplicableError("no transaction markers")


@damage
def segment_starts_below_its_name(partition_dir: Path, rng: random.Random) -> None:
    """The second segment starts with a copy of the first one's last batch, below the offset that it is named by."""
    first, batches = log_with_batches(partition_dir, old=True)
    second = segment_logs(partition_dir)[segment_logs(partition_dir).index(first) + 1]
    last = first.read_bytes()[batches[-1].position :]
    second.write_bytes(last + second.read_bytes())


@damage
def segment_runs_into_next(partition_dir: Path, rng: random.Random) -> None:
    """The first segment ends with a copy of the second one's first batch."""
    logs = segment_logs(partition_dir)
    for first, second in itertools.pairwise(logs):
        batches = read_batches(second)
        if batches:
            append(first, second.read_bytes()[: batches[0].end])
            return
    raise NotApplicableError("no second segment with a batch")


@damage
def emptied_old_segment(partition_dir: Path, rng: random.Random) -> None:
    """The first segment's .log has no bytes, though its indexes do and other segments follow."""
    log, _ = log_with_batches(partition_dir, old=True)
    cut(log, 0)


@damage
def marker_of_unknown_version(partition_dir: Path, rng: random.Random) -> None:
    """A marker's key says version -1; the batch's CRC fits."""
    for log in reversed(segment_logs(partition_dir)):
        markers = [batch for batch in read_batches(log) if batch.is_control and batch.size_bytes > HEADER_BYTES]
        if markers:
            batch = rng.choice(markers)
            # length, attributes, timestamp delta, offset delta, key length: a byte each in a marker; then the key.
            patch(log, batch.position + HEADER_BYTES + 5, struct.pack(">h", -1))
            fix_crc(log, batch)
            return
    raise NotApplicableError("no transaction markers")
