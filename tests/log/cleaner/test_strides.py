"""Protects the quick ways of a round: each leaves the bytes and the counts that looking at every batch with objects leaves."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import limits, record_copy, record_scan
from kcli.log.cleaner import (
    batch_cut,
    batch_filter,
    batch_strides,
    cut_strides,
    live_offsets,
    map_builder,
    offset_map,
    transactions,
)
from tests.interpreted import interpreted
from tests.log.cleaner.random_logs import RandomLog

ROUNDS = 3

SCANS = {"record_scan": interpreted(record_scan)}
INTERPRETED_MAP = interpreted(offset_map)
INTERPRETED_STRIDES = interpreted(batch_strides, offset_map=INTERPRETED_MAP, **SCANS)
INTERPRETED_COPY = interpreted(record_copy)
INTERPRETED_CUT = interpreted(
    batch_cut, batch_strides=INTERPRETED_STRIDES, offset_map=INTERPRETED_MAP, record_copy=INTERPRETED_COPY, **SCANS
)
INTERPRETED_CUTS = interpreted(cut_strides, batch_strides=INTERPRETED_STRIDES, batch_cut=INTERPRETED_CUT)
STRIDES: dict[str, ModuleType] = {"as installed": batch_strides, "interpreted": INTERPRETED_STRIDES}


def by_objects(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(map_builder, "note_batches", no_notes)
    patch.setattr(batch_filter, "clean_batches", no_batches)


def no_notes(*arguments: object) -> object:
    scratch = arguments[-1]
    assert isinstance(scratch, array)
    for slot in (batch_strides.RECORDS, batch_strides.KEYLESS, batch_strides.TOMBSTONES, batch_strides.WORK_BYTES):
        scratch[slot] = 0
    scratch[batch_strides.WHY] = batch_strides.OTHER
    return arguments[2]


def no_batches(*arguments: object) -> object:
    facts = arguments[-1]
    assert isinstance(facts, array)
    for slot in range(batch_cut.FACT_SLOTS):
        facts[slot] = 0
    facts[batch_cut.WHY] = batch_strides.OTHER
    return arguments[2]


def by_keys(patch: pytest.MonkeyPatch) -> None:
    """No bits of live offsets."""
    patch.setattr(live_offsets, "SLOTS_OF_A_RECORD", 0)
    patch.setattr(live_offsets, "WINDOW_OFFSETS", 1)


def by_small_windows(patch: pytest.MonkeyPatch) -> None:
    """Bits of few live offsets at a time, gathered in many slices."""
    patch.setattr(live_offsets, "SLOTS_OF_A_RECORD", 1 << 40)
    patch.setattr(live_offsets, "WINDOW_OFFSETS", 64)
    patch.setattr(live_offsets, "GATHERED_SLOTS", 5)


def by_short_strides(patch: pytest.MonkeyPatch) -> None:
    """Runs of a batch or two each, dead and live ones in turn."""
    for module in (batch_strides, cut_strides):
        patch.setattr(module, "STRIDE_BYTES", 150)


def by_short_strides_and_small_windows(patch: pytest.MonkeyPatch) -> None:
    by_small_windows(patch)
    by_short_strides(patch)


def by_little_room(patch: pytest.MonkeyPatch) -> None:
    """For what is read at once, what is left of batches, and producers with open transactions."""
    patch.setattr(limits, "READ_CHUNK_BYTES", 500)
    patch.setattr(transactions, "_PRODUCERS", 1)


def by_interpreted_code(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(map_builder, "note_batches", INTERPRETED_STRIDES.note_batches)
    patch.setattr(live_offsets, "mark_live", INTERPRETED_STRIDES.mark_live)
    patch.setattr(batch_filter, "clean_batches", INTERPRETED_CUTS.clean_batches)


WAYS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    by_keys,
    by_small_windows,
    by_short_strides,
    by_short_strides_and_small_windows,
    by_little_room,
    by_interpreted_code,
    by_objects,
)


def rounds_of(seed: int, directory: Path) -> list[object]:
    """All that rounds over the log of a seed leave and count."""
    log, found = RandomLog(directory / "t-0", seed), []
    for _ in range(ROUNDS):
        log.grow()
        done = log.clean()
        found.append((done.end_offset, done.keys, [getattr(done.counts, name) for name in done.counts.__slots__]))
        found += [
            (path.name, path.read_bytes()) for path in sorted((directory / "t-0").glob("*.*")) if ".check" not in path.name
        ]
        log.now_ms += log.dice.choice((0, 500, 1500))
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(12))
def test_every_way_leaves_the_same(way: Callable[[pytest.MonkeyPatch], None], seed: int, tmp_path: Path) -> None:
    usual = rounds_of(seed, tmp_path / "usual")
    with pytest.MonkeyPatch.context() as patch:
        way(patch)
        assert rounds_of(seed, tmp_path / "other") == usual


@pytest.mark.parametrize("way", STRIDES)
@given(st.sets(st.integers(0, 255), max_size=6), st.integers(0, 255), st.integers(0, 255))
def test_live_bits_are_a_set_of_offsets(way: str, live: set[int], one: int, other: int) -> None:
    module, first_offset = STRIDES[way], 1000
    table = array("Q", bytes(24 * 10))
    for slot, number in enumerate(live):
        table[3 * slot + 2] = first_offset + number + 1
    table[3 * 8 + 2], table[3 * 9 + 2] = first_offset, first_offset + 257  # before and behind the window
    words = array("Q", bytes(32))
    assert module.mark_live(memoryview(table), 0, len(table), first_offset, words) == len(live)
    first, last = min(one, other), max(one, other)
    assert module.any_live(words, first, last) == any(first <= number <= last for number in live)
