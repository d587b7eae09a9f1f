"""Protects what a repair keeps of a damaged log: every sound batch, the right one of two that contradict each other, and
batches whose headers can be put right; and that it keeps nothing else."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from kcli.format.primitives import INT64_MAX
from kcli.format.record_batch import HEADER_BYTES, read_header
from kcli.inspect.repairing.salvage import LogSalvager, SegmentSalvage, fix_leader_epochs
from kcli.log.disk.os_disk import OsDisk
from kcli.log.reading.explanation import (
    BATCH,
    BIT,
    BYTE,
    GAP,
    Candidate,
    EpochRun,
    LogWitnesses,
    best_choice,
    choose_epochs,
    difference,
)
from tests.log_builder import PartitionBuilder

BATCHES = 12


@pytest.fixture
def log(tmp_path: Path) -> bytes:
    """A segment of twelve batches of three records."""
    builder = PartitionBuilder(tmp_path / "t-0")
    for _ in range(BATCHES):
        builder.append([(b"key", random.Random(builder.offset).randbytes(50))] * 3, producer=5)
    return bytes(builder.log)


def size_of(log: bytes) -> int:
    return len(log) // BATCHES


def salvage(tmp_path: Path, data: bytes, *, take_inner: bool = False, **bounds: int) -> tuple[SegmentSalvage, bytes]:
    """-> what is to be done, and the segment after it."""
    path = tmp_path / "0.log"
    path.write_bytes(data)
    found = LogSalvager(OsDisk(), take_inner=take_inner).salvage(
        str(path), 0, bounds.get("first_offset", 0), bounds.get("end_offset", INT64_MAX)
    )
    fix_leader_epochs([found])
    fixed = bytearray(data)
    for fix in found.fixes:
        fixed[fix.position : fix.position + len(fix.data)] = fix.data
    kept, position = b"", 0
    for cut in found.cuts:
        kept += fixed[position : cut.start]
        position = cut.end
    return found, kept + bytes(fixed[position:])


def runs(found: SegmentSalvage) -> list[tuple[int, int, int]]:
    return [run[:3] for run in found.epochs]


def patched(log: bytes, position: int, data: bytes) -> bytes:
    return log[:position] + data + log[position + len(data) :]


def test_a_sound_segment_stays_whole(tmp_path: Path, log: bytes) -> None:
    found, left = salvage(tmp_path, log)
    assert (found.cuts, found.fixes, left) == ([], [], log)
    assert (found.kept, found.next_offset, runs(found)) == (12, 36, [(0, 0, 35)])


@pytest.mark.parametrize("bad", [0, 5, 11])
def test_only_the_bad_batch_goes(tmp_path: Path, log: bytes, bad: int) -> None:
    """And the hole that it leaves is told, open where the log ends in it."""
    size = size_of(log)
    at = bad * size + HEADER_BYTES + 20
    found, left = salvage(tmp_path, patched(log, at, bytes([log[at] ^ 1, log[at + 1] ^ 6])))
    assert left == log[: bad * size] + log[(bad + 1) * size :]
    (cut,) = found.cuts
    assert (cut.start, cut.end, cut.first_offset) == (bad * size, (bad + 1) * size, 3 * bad)
    assert cut.end_offset == (None if bad == 11 else 3 * bad + 3)
    assert "CRC" in cut.why


@pytest.mark.parametrize("bad", [0, 5, 11])
@pytest.mark.parametrize(
    ("position", "data"),
    [
        (8, b"\x7f\xff\xff\xff"),  # the length
        (8, b"\x80\x00\x00\x01"),
        (8, b"\x00\x00\x00\x03"),
        (16, b"\x03"),  # the magic
        (16, b"\x00"),
        (16, b"\x82"),
        (0, b"\x40"),  # the base offset
        (7, b"\x50"),
    ],
)
def test_a_header_that_the_crc_does_not_cover_is_put_right(
    tmp_path: Path, log: bytes, bad: int, position: int, data: bytes
) -> None:
    """Nothing is lost: the very bytes are there again."""
    if (bad, position, data) == (11, 7, b"\x50"):
        pytest.skip("behind the last batch nothing tells that an offset further on is wrong")
    found, left = salvage(tmp_path, patched(log, bad * size_of(log) + position, data))
    assert left == log
    assert (len(found.fixes), found.cuts) == (1, [])


def test_a_crc_with_one_wrong_bit_is_put_right_and_with_two_it_is_not(tmp_path: Path, log: bytes) -> None:
    """One bit off it is the CRC itself that is damaged; two may be anything."""
    at = 3 * size_of(log) + 17
    found, left = salvage(tmp_path, patched(log, at, bytes([log[at] ^ 0x10])))
    assert (left, found.cuts, len(found.fixes)) == (log, [], 1)
    found, _ = salvage(tmp_path, patched(log, at, bytes([log[at] ^ 0x11])))
    assert (len(found.cuts), found.fixes) == (1, [])


@pytest.mark.parametrize("bad", [0, 5])
def test_a_leader_epoch_that_cannot_be_is_put_right(tmp_path: Path, log: bytes, bad: int) -> None:
    """Epochs never go back, so one above those around it is wrong; at the log's end a higher one may be true."""
    found, left = salvage(tmp_path, patched(log, bad * size_of(log) + 12, b"\x00\x00\x00\x08"))
    assert (left, len(found.fixes), runs(found)) == (log, 1, [(0, 0, 35)])
    found, _ = salvage(tmp_path, patched(log, 11 * size_of(log) + 12, b"\x00\x00\x00\x08"))
    assert (found.fixes, runs(found)) == ([], [(0, 0, 32), (8, 33, 35)])


def test_a_leader_epoch_at_the_edge_of_a_segment_is_put_right(tmp_path: Path, log: bytes) -> None:
    """The neighbours are in two files."""
    size = size_of(log)
    first, _ = salvage(tmp_path, patched(log, 11 * size + 12, b"\x00\x00\x00\x08"))
    second, _ = salvage(tmp_path, log)
    fix_leader_epochs([first, second])
    assert [(fix.position, fix.data) for fix in first.fixes] == [(11 * size + 12, bytes(4))]
    assert (runs(first)[-1][0], second.fixes) == (0, [])


def test_the_only_batch_of_a_segment_gets_the_epoch_of_the_others(tmp_path: Path, log: bytes) -> None:
    """It is the first one of the log: those of the segments behind it are more."""
    size = size_of(log)
    first, _ = salvage(tmp_path, patched(log[:size], 12, (1 << 25).to_bytes(4, "big")))
    others = [salvage(tmp_path, log[:size])[0] for _ in range(2)]
    fix_leader_epochs([first, *others])
    assert [(fix.position, fix.data) for fix in first.fixes] == [(12, bytes(4))]
    assert all(not other.fixes for other in others)


def test_a_length_that_leads_past_a_sound_batch_hides_none(tmp_path: Path, log: bytes) -> None:
    """A length of exactly two batches, a CRC that is wrong for it: both batches are found."""
    size = size_of(log)
    lie = (2 * size - 12).to_bytes(4, "big")
    found, left = salvage(tmp_path, patched(log, 4 * size + 8, lie))
    assert (left, found.cuts) == (log, [])


def test_the_last_batches_out_of_order_say_where_the_log_ended(tmp_path: Path, log: bytes) -> None:
    """One of two that have changed places goes. If it was the last one, its offsets were given out all the same."""
    size = size_of(log)
    found, left = salvage(tmp_path, log[: 10 * size] + log[11 * size :] + log[10 * size : 11 * size])
    assert left == log[: 11 * size]
    assert (found.next_offset, found.displaced, found.moved_end) == (33, [(33, 35)], 36)


def test_a_wrong_offset_is_fixed_before_it_misleads_the_next_header(tmp_path: Path, log: bytes) -> None:
    """The base offset of the only sound batch has a wrong bit; the batch behind it has a wrong length and the right offset."""
    size = size_of(log)
    path = tmp_path / "0.log"
    path.write_bytes(patched(patched(log[: 2 * size], 0, (1 << 19).to_bytes(8, "big")), size + 10, b"\x7f"))
    found = LogSalvager(OsDisk()).salvage(str(path), 0, 0, INT64_MAX, LogWitnesses([6, 6]))
    assert (runs(found), found.cuts) == ([(0, 0, 5)], [])


def test_batches_twice_and_out_of_order(tmp_path: Path, log: bytes) -> None:
    """Offsets rise afterwards, as many batches stay as can, and none that is whole twice is lost."""
    size = size_of(log)
    rows = [log[i * size : (i + 1) * size] for i in range(BATCHES)]
    found, left = salvage(tmp_path, b"".join([*rows[:5], rows[4], *rows[5:]]))
    assert left == log
    assert found.cuts[0].first_offset == found.cuts[0].end_offset
    found, left = salvage(tmp_path, b"".join([*rows[:5], rows[6], rows[5], *rows[7:]]))
    assert len(left) == len(log) - size
    assert found.kept == 11


def test_a_segment_holds_what_its_name_and_the_next_ones_allow(tmp_path: Path, log: bytes) -> None:
    """What lies below or above belongs to another segment."""
    size = size_of(log)
    found, left = salvage(tmp_path, log, first_offset=6, end_offset=30)
    assert left == log[2 * size : 10 * size]
    assert found.next_offset == 30


def test_records_that_do_not_open_do_not_stay(tmp_path: Path, log: bytes) -> None:
    """Though the CRC is right: consumers would be stuck there for ever."""
    from kcli.format.record_batch import NewRecordBatch

    size = size_of(log)
    header = read_header(log, 4 * size)
    forged = NewRecordBatch(
        header.base_offset, 2, header.base_timestamp, header.max_timestamp, 4, log[4 * size + HEADER_BYTES : 5 * size],
        producer_id=5, producer_epoch=0, base_sequence=header.base_sequence,
    ).encode()  # fmt: skip
    found, left = salvage(tmp_path, log[: 4 * size] + forged + log[5 * size :])
    assert left == log[: 4 * size] + log[5 * size :]
    assert "records" in found.cuts[0].why


def test_garbage_before_between_and_behind(tmp_path: Path, log: bytes) -> None:
    """Only batches stay, and only those from which the log leads on to its end: behind noise nothing else tells of them."""
    size = size_of(log)
    noise = random.Random(1).randbytes(300)
    _, left = salvage(tmp_path, noise + log)
    assert left == log
    _, left = salvage(tmp_path, log[: 3 * size] + noise + log[3 * size :])
    assert left == log
    found, left = salvage(tmp_path, log[: 3 * size] + noise + log[3 * size :] + noise)
    assert left == log[: 3 * size]
    assert [len(inner.batches) for inner in found.inner] == [9]
    found, left = salvage(tmp_path, log[: 3 * size] + noise + log[3 * size :] + noise, take_inner=True)
    assert left == log
    found, left = salvage(tmp_path, log + bytes(5000))
    assert (left, found.cuts[0].start, found.cuts[0].end) == (log, len(log), len(log) + 5000)


def score_of(chosen: list[Candidate]) -> tuple[int, int]:
    """What a choice saves, and its gaps, negative."""
    pairs = list(itertools.pairwise([Candidate(0, -1), *chosen]))
    gaps = [after.base_offset - before.last_offset - 1 for before, after in pairs]
    return sum(BATCH - one.cost - GAP * bool(gap) for one, gap in zip(chosen, gaps, strict=True)), -sum(gaps)


def brute_force(rows: list[list[Candidate]]) -> tuple[int, int]:
    """The best score of any choice, by trying all."""
    best = (0, 0)
    for some in itertools.product(*([None, *row] for row in rows)):
        chosen = [one for one in some if one is not None]
        if all(after.base_offset > before.last_offset for before, after in itertools.pairwise(chosen)):
            best = max(best, score_of(chosen))
    return best


@pytest.mark.parametrize("wrong", [{0: 2048, 1: 4}, {0: 4, 1: 2048}, {5: 9, 6: 8}, {0: 1 << 25}, {3: 1, 7: 2, 8: 1}])
def test_wrong_leader_epochs_give_way_to_the_majority(tmp_path: Path, log: bytes, wrong: dict[int, int]) -> None:
    """Neighbours that are wrong as well are no example."""
    size, damaged = size_of(log), log
    for number, epoch in wrong.items():
        damaged = patched(damaged, number * size + 12, epoch.to_bytes(4, "big"))
    _, left = salvage(tmp_path, damaged)
    assert left == log


@pytest.mark.parametrize("seed", range(30))
def test_the_leader_epochs_are_the_cheapest_that_rise(seed: int) -> None:
    """Against all choices for small random runs: never more batches change than one epoch of the log would cost."""
    rng = random.Random(seed)
    runs = [EpochRun(rng.randrange(4), 10 * index, rng.randrange(1, 4)) for index in range(6)]
    chosen = choose_epochs(runs, LogWitnesses())
    cost = sum(run.batches * difference(run.epoch, epoch) for run, epoch in zip(runs, chosen, strict=True))
    rising = [some for some in itertools.product({run.epoch for run in runs}, repeat=6) if list(some) == sorted(some)]
    costs = [sum(run.batches * difference(run.epoch, epoch) for run, epoch in zip(runs, some, strict=True)) for some in rising]
    assert chosen == sorted(chosen)
    assert cost == min(costs)


def test_a_leader_epoch_between_two_equal_ones_is_wrong(tmp_path: Path, log: bytes) -> None:
    """The first one and all behind it are as many as the low one and all behind it."""
    size, sound = size_of(log), log
    for number in range(BATCHES):
        sound = patched(sound, number * size + 12, (3).to_bytes(4, "big"))
    _, left = salvage(tmp_path, patched(sound, size + 12, bytes(4)))
    assert left == sound


@pytest.mark.parametrize("seed", range(40))
def test_the_choice_is_the_best_there_is(seed: int) -> None:
    """Against all choices of small random heaps of batches, some of which may have other offsets at a cost."""
    rng = random.Random(seed)

    def row(size: int, costs: list[int]) -> list[Candidate]:
        starts = rng.sample(range(25), len(costs))
        return [Candidate(start, start + size - 1, cost) for start, cost in zip(starts, costs, strict=True)]

    rows = [row(rng.randrange(1, 5), rng.choice([[0], [0], [BYTE, 0], [BIT, BYTE, 0]])) for _ in range(8)]
    chosen = [
        next(one for one in rows[row] if one.base_offset == base_offset) for row, base_offset in best_choice(rows, 0, 1000)
    ]
    assert all(after.base_offset > before.last_offset for before, after in itertools.pairwise(chosen))
    assert score_of(chosen)[0] == brute_force(rows)[0]


def test_a_wrong_offset_that_overlaps_the_batch_before_it_does_not_cost_that_one(tmp_path: Path, log: bytes) -> None:
    """One bit makes offset 3 to 1: of two choices with as many batches the one that begins at the segment's start is right."""
    size = size_of(log)
    found, left = salvage(tmp_path, patched(log, size, (1).to_bytes(8, "big")))
    assert (left, found.displaced) == (log, [])


def test_a_wrong_offset_far_beyond_the_log_does_not_cost_the_batch_behind_it(tmp_path: Path, log: bytes) -> None:
    """Two batches that follow no other: the one whose gap is smaller stays, and with it the other one is put right."""
    size = size_of(log)
    data = patched(log, 10 * size, (30 + (1 << 29)).to_bytes(8, "big"))
    _, left = salvage(tmp_path, data)
    assert left == log


def test_the_last_batch_twice_is_no_batch_with_a_wrong_offset(tmp_path: Path) -> None:
    """Its offset 10 and the next one, 11, differ by one bit: the copy goes, and its records do not appear at offset 11."""
    builder = PartitionBuilder(tmp_path / "t-0")
    for count in (5, 5, 1):
        builder.append([(b"key", b"value")] * count)
    data = bytes(builder.log)
    last = data[data.rfind((10).to_bytes(8, "big")) :]
    found, left = salvage(tmp_path, data + last)
    assert (left, found.next_offset) == (data, 11)


def test_a_batch_twice_of_which_one_states_a_wrong_length(tmp_path: Path, log: bytes) -> None:
    """The comparison of the two read the header that was still wrong, and the repair ended with a traceback."""
    first = log[: size_of(log)]
    _, left = salvage(tmp_path, patched(first, 8, b"\x80") + log)
    assert left == log


def test_a_wrong_offset_that_is_that_of_the_next_batch_is_put_right(tmp_path: Path) -> None:
    """Both choices have a gap of eight offsets; the batch with the wrong one fills it."""
    builder = PartitionBuilder(tmp_path / "t-0")
    for count in (8, 8, 3):
        builder.append([(b"key", b"value")] * count)
    data = bytes(builder.log)
    second = data.find((8).to_bytes(8, "big"))
    _, left = salvage(tmp_path, patched(data, second, (16).to_bytes(8, "big")))
    assert left == data


def test_of_two_choices_that_one_stays_with_which_the_other_batch_can_be_put_right(tmp_path: Path) -> None:
    """Offsets 0 to 4 look like 1 to 5, and the last batch begins at 5; only the first one can have one wrong bit."""
    builder = PartitionBuilder(tmp_path / "t-0")
    for count in (5, 3):
        builder.append([(b"key", b"value")] * count)
    data = bytes(builder.log)
    _, left = salvage(tmp_path, patched(data, 0, (1).to_bytes(8, "big")))
    assert left == data


def test_two_wrong_leader_epochs_next_to_each_other_are_put_right(tmp_path: Path, log: bytes) -> None:
    """A negative one is no example for the next."""
    size = size_of(log)
    damaged = patched(patched(log, 12, (-2147483648).to_bytes(4, "big", signed=True)), size + 12, (32).to_bytes(4, "big"))
    _, left = salvage(tmp_path, damaged)
    assert left == log
