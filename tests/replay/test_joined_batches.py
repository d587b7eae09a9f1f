"""Protects the joining of small batches: the compiled loop over a buffer makes what is made batch by batch.

Logs are drawn, with everything that the loop leaves to the caller in between: compressed batches, transactions, gaps, odd
timestamps, damage, batches across the end of a buffer, offsets that are watched, ends of earlier runs.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format import limits
from kcli.format.record_batch import HEADER_BYTES, NewRecordBatch, check_batch
from kcli.format.records import Record, encode_records, read_records
from kcli.log.disk.os_disk import OsDisk
from kcli.replay import batch_maker
from kcli.replay.batch_maker import BatchMaker
from kcli.replay.directory_source import DirectorySource, Problems
from kcli.replay.source import EarlierRun, OutgoingBatch
from kcli.selecting.selection import Range, Selection
from tests.log_builder import PartitionBuilder

KINDS = ("plain", "plain", "plain", "plain", "codec", "committed", "aborted", "append_time", "gap", "renumbered", "old", "flip")
# With a right CRC, which does not cover the offset; and a length that leads nowhere.
HOSTILE = ("high", "low", "size", "wide", "far", "short", "long", "bit")
STEPS, HOSTILE_STEPS = (
    st.lists(
        st.tuples(st.sampled_from(kinds), st.integers(1, 6), st.integers(0, 60), st.integers(-5000, 5000)),
        min_size=1,
        max_size=30,
    )
    for kinds in (KINDS, KINDS + HOSTILE)
)


class Made(NamedTuple):
    """What is sent, with all that a replay keeps of it, and what was reported."""

    batches: list[tuple[Any, ...]]
    reports: list[str]


def build(root: Path, steps: list[tuple[str, int, int, int]]) -> int:
    """Write a log; return its end."""
    builder = PartitionBuilder(root / "t-0")
    flips = []
    for at, (kind, count, size, shift) in enumerate(steps):
        records = [(b"k%d" % number, bytes([at % 256]) * size) for number in range(count)]
        stamp = 1_700_000_000_000 + shift * at * 1000
        match kind:
            case "codec":
                builder.append(records, codec=1 + at % 4)
            case "committed" | "aborted":
                builder.append(records, producer=5, transactional=True)
                builder.end_transaction(5, commit=kind == "committed")
            case "append_time":
                builder.append(records, append_time=True)
            case "gap" | "renumbered" | "old":
                deltas = list(range(count))
                if kind == "gap":
                    deltas[-1] += 3
                base_timestamp = -1 if kind == "old" else stamp
                last = deltas[-1]
                if kind == "renumbered" and count > 1:
                    deltas[0], deltas[1] = deltas[1], deltas[0]
                encoded = encode_records(Record(delta, 0, None, b"v" * size) for delta in deltas)
                builder.log += NewRecordBatch(builder.offset, last, base_timestamp, base_timestamp, count, encoded).encode()
                builder.offset += last + 1
            case "wide" | "far" | "short" | "long" | "bit":
                hostile(builder, kind, count, stamp, shift)
            case _:
                begin = len(builder.log)
                builder.append(records, timestamp=stamp)
                byte = {"flip": HEADER_BYTES + 1, "high": 5 + at % 2, "low": 7, "size": 10}.get(kind)
                if byte is not None:
                    flips.append(begin + byte)
        if at % 11 == 10:
            flip(builder, flips)
            flips = []
            builder.roll()
    flip(builder, flips)
    builder.flush()
    return builder.offset


def flip(builder: PartitionBuilder, positions: list[int]) -> None:
    for position in positions:
        builder.log[position] ^= 1 << position % 7


def hostile(builder: PartitionBuilder, kind: str, count: int, stamp: int, shift: int) -> None:
    """A batch with a right CRC that no producer makes."""
    rng = random.Random(shift)
    encoded = bytearray(encode_records(Record(at, rng.choice((0, 5, 2**40)), b"k", b"v" * 9) for at in range(count)))
    if kind == "wide":  # integers with more bytes than they need
        # attributes, timestampDelta 0, offsetDelta 0, a null key, a value of one byte, no headers
        body = b"\0" + b"\x80\x80\0" + b"\x80\0" + b"\x81\0" + b"\x82\x80\0v" + b"\x80\0"
        encoded, count = bytearray((2 * len(body) | 0x80, 0x80, 0)) + body, 1
    elif kind == "far":
        deltas = [rng.choice((0, 1, -1, 2**61, 2**61 + 1, -(2**62), 2**63 - 1, -(2**63))) for _ in range(count)]
        encoded = bytearray(encode_records(Record(at, delta, None, b"v") for at, delta in enumerate(deltas)))
        stamp = rng.choice((0, 1, 2**61, 2**61 + 1, 2**63 - 1, stamp))
    elif kind == "short":
        del encoded[len(encoded) - rng.randint(1, len(encoded)) :]
    elif kind == "long":
        encoded += rng.randbytes(rng.randint(1, 30))
    else:
        encoded[rng.randrange(len(encoded))] ^= 1 << rng.randrange(8)
    builder.log += NewRecordBatch(builder.offset, count - 1, stamp, stamp, count, bytes(encoded)).encode()
    builder.offset += count


def made(root: Path, selection: Selection, from_offset: int, watched: list[int], earlier: EarlierRun, join_bytes: int) -> Made:
    reports: list[str] = []
    source = DirectorySource(OsDisk(), [str(root)], selection, lambda topic: True, Problems(reports.append), str, join_bytes)
    stream = source.open(("t", 0), from_offset, watched, earlier)
    batches = []
    while (batch := stream.peek()) is not None:
        stream.take()
        batch.stamp(1, 0, 0)
        batches.append(all_of(batch))
    stream.close()
    return Made(batches, reports)


def all_of(batch: OutgoingBatch) -> tuple[Any, ...]:
    check_batch(batch.data)
    return tuple(bytes(batch.data) if name == "data" else getattr(batch, name) for name in OutgoingBatch.__slots__)


@settings(deadline=None)
@given(
    HOSTILE_STEPS,
    st.sampled_from([1, 90, 300, 700, 20_000]),
    st.sampled_from([200, 600, 1 << 20]),
    st.lists(st.integers(0, 120), max_size=4).map(sorted),
    st.integers(0, 60),
    st.booleans(),
    st.sampled_from([Range(), Range(5, 40), Range(None, 17)]),
    st.lists(st.integers(1, 20), max_size=3),
)
def test_a_run_of_batches_is_made_as_batch_by_batch(
    steps: list[tuple[str, int, int, int]],
    join_bytes: int,
    chunk_bytes: int,
    watched: list[int],
    from_offset: int,
    committed: bool,
    offsets: Range,
    counts: list[int],
) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "READ_CHUNK_BYTES", chunk_bytes)
        root = Path(directory)
        build(root, steps)
        selection = Selection(read_committed=committed, offsets=offsets)
        runs = []
        original = BatchMaker.join_run

        def noted(self: BatchMaker, buffer: memoryview, position: int, *rest: Any) -> tuple[int, list[OutgoingBatch]]:
            end, batches = original(self, buffer, position, *rest)
            runs.append(end > position)
            return end, batches

        patch.setattr(BatchMaker, "join_run", noted)
        watched = [offset for offset in watched if offset >= from_offset]
        earlier = EarlierRun(max(from_offset - 3, 0) if from_offset % 2 else None, tuple(counts))
        fast = made(root, selection, from_offset, watched, earlier, join_bytes)
        patch.setattr(BatchMaker, "join_run", lambda self, buffer, position, *rest: (position, []))
        assert fast == made(root, selection, from_offset, watched, earlier, join_bytes)
        plain = [kind for kind, count, size, _ in steps if kind == "plain"]
        if join_bytes == 20_000 and plain == [kind for kind, *_ in steps] and not from_offset and not watched and not counts:
            assert any(runs) or offsets != Range() or committed


@settings(deadline=None)
@given(STEPS, st.sampled_from([90, 300, 20_000]), st.data())
def test_a_later_run_makes_what_an_earlier_one_has_sent(
    steps: list[tuple[str, int, int, int]], join_bytes: int, data: st.DataObject
) -> None:
    """The source grows, --join or the limit of the target changes: the batches that the target has are the same."""
    with tempfile.TemporaryDirectory() as directory:
        roots = Path(directory) / "first", Path(directory) / "grown"
        cut = data.draw(st.integers(1, len(steps)))
        build(roots[0], steps[:cut])
        build(roots[1], steps)
        selection = Selection(read_committed=True)
        sent = made(roots[0], selection, 0, [], EarlierRun(), join_bytes).batches
        names = OutgoingBatch.__slots__
        count_at, next_at, first_at = (names.index(name) for name in ("record_count", "next_offset", "first_offset"))
        saved = data.draw(st.integers(0, len(sent)))
        last = sent[saved - 1] if saved else None
        earlier = EarlierRun(
            None if last is None else last[first_at],
            tuple(batch[count_at] for batch in sent[max(saved - 1, 0) :]),
            data.draw(st.sampled_from([None, 30_000, 200, 100])),
        )
        join_bytes = data.draw(st.sampled_from([join_bytes, 0]))
        again = made(roots[1], selection, 0 if last is None else last[next_at], [], earlier, join_bytes).batches
        data_at, codec_at = names.index("data"), names.index("is_recompressed")
        expected = sent[max(saved - 1, 0) :]
        is_odd = any(kind == "renumbered" for kind, *_ in steps)  # a broker refuses such a batch unless it was joined
        for before, after in zip(expected, again, strict=False):
            assert before[codec_at] or is_odd or before[data_at] == after[data_at]
            assert (before[first_at], before[count_at]) == (after[first_at], after[count_at])
        assert len(again) >= len(expected)


def test_records_stay_and_small_batches_are_few(tmp_path: Path) -> None:
    steps = [("plain", 3, 40, 7)] * 400
    build(tmp_path, steps)
    found = made(tmp_path, Selection(), 0, [], EarlierRun(), 512 * 1024)
    again = made(tmp_path, Selection(), 0, [], EarlierRun(), 0)
    assert (len(found.batches), len(again.batches)) == (1, 400)

    def records(batches: list[tuple[Any, ...]]) -> list[tuple[int, bytes | None, bytes | None]]:
        rows = []
        for data, *_ in batches:
            header = check_batch(data)
            for record in read_records(data[HEADER_BYTES:], header.record_count):
                rows.append((header.base_timestamp + record.timestamp_delta, record.key, record.value))
        return rows

    assert records(found.batches) == records(again.batches) and len(records(found.batches)) == 1200


def test_a_batch_of_64_KB_goes_as_it_is(tmp_path: Path) -> None:
    builder = PartitionBuilder(tmp_path / "t-0")
    for size in (10, batch_maker.SMALL_BATCH_BYTES, 10, 10):
        builder.append([(None, b"v" * size)])
    builder.flush()
    found = made(tmp_path, Selection(), 0, [], EarlierRun(), 1 << 20).batches
    assert [batch[OutgoingBatch.__slots__.index("record_count")] for batch in found] == [1, 1, 2]


@pytest.mark.parametrize(("index_every", "counts"), [(100, [2, 1, 4]), (2, [1, 1, 4])], ids=["no index", "an index"])
def test_what_follows_damage_is_found_after_a_wrong_offset(tmp_path: Path, index_every: int, counts: list[int]) -> None:
    """The CRC does not cover the offset. One that is too high is not that of the batches after the damage.

    A batch that .index contradicts is damage itself, and a report.
    """
    builder = PartitionBuilder(tmp_path / "t-0", index_every=index_every)
    begins = []
    for codec in (0, 0, 1, 0, 0, 0, 0, 0):
        begins.append(len(builder.log))
        builder.append([(b"k", b"v" * 40)], codec=codec)
    builder.log[begins[1] + 4] ^= 1
    builder.log[begins[5] : begins[6]] = b"\xff" * (begins[6] - begins[5])
    builder.flush()
    found = made(tmp_path, Selection(), 0, [], EarlierRun(), 10_000)
    assert [batch[OutgoingBatch.__slots__.index("record_count")] for batch in found.batches] == counts
    assert len(found.reports) == (1 if index_every > 2 else 2)


def damaged(count: int, good: int, builder: PartitionBuilder) -> None:
    """A batch with a right CRC, of whose records only the first `good` ones are sound."""
    encoded = bytearray(encode_records(Record(at, 0, b"k", b"value") for at in range(count)))
    size = len(encoded) // count
    encoded[size * good] = 0x7F  # a length of -64
    builder.log += NewRecordBatch(builder.offset, count - 1, 1000, 1000, count, bytes(encoded)).encode()
    builder.offset += count


@pytest.mark.parametrize("good", [0, 2])
@pytest.mark.parametrize("next_codec", [0, 1])
def test_a_watched_offset_of_a_damaged_record_leads_to_the_next_sound_one(tmp_path: Path, good: int, next_codec: int) -> None:
    """The consumers of its group would miss the records between it and another place."""
    builder = PartitionBuilder(tmp_path / "t-0")
    damaged(6, good, builder)
    builder.append([(b"k", b"next")], codec=next_codec)
    for _ in range(10):
        builder.append([(b"k", b"later")])
    builder.flush()
    source = DirectorySource(OsDisk(), [str(tmp_path)], Selection(), lambda topic: True, Problems(str), str, 10_000)
    stream = source.open(("t", 0), 0, [5])
    records, places = 0, []
    while (batch := stream.peek()) is not None:
        stream.take()
        places += [records + one.slot for one in batch.watched]
        records += batch.record_count
    assert places == [good] and records == good + 11
