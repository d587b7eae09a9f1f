"""Protects the quick ways of a round: each leaves the bytes and the counts that looking at every batch with objects leaves."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import batch_header, limits, loop_results, record_copy, record_scan
from kcli.log.cleaner import (
    batch_filter,
    batch_reader,
    batch_strides,
    cut_strides,
    general_batch_filter,
    offset_map,
    offset_map_builder,
    retained_offsets,
    transaction_metadata,
)
from tests.interpreted import interpreted
from tests.log.cleaner import random_logs
from tests.log.cleaner.random_logs import RandomLog

ROUNDS = 3

SCANS = {"record_scan": interpreted(record_scan)}
INTERPRETED_MAP = interpreted(offset_map)
INTERPRETED_HEAD = interpreted(batch_header)
INTERPRETED_STATE = interpreted(batch_reader, **SCANS)
STATES: dict[str, ModuleType] = {"as installed": batch_reader, "interpreted": INTERPRETED_STATE}
PARTS = {"batch_header": INTERPRETED_HEAD, "offset_map": INTERPRETED_MAP, "batch_reader": INTERPRETED_STATE}
INTERPRETED_STRIDES = interpreted(batch_strides, **PARTS)
INTERPRETED_CUT = interpreted(batch_filter, record_copy=interpreted(record_copy), **PARTS)
INTERPRETED_CUTS = interpreted(cut_strides, batch_strides=INTERPRETED_STRIDES, batch_filter=INTERPRETED_CUT)
INTERPRETED = (INTERPRETED_MAP, INTERPRETED_STATE, INTERPRETED_STRIDES, INTERPRETED_CUT, INTERPRETED_CUTS)
# Who makes and calls what is compiled.
USERS = (general_batch_filter, retained_offsets, offset_map_builder, random_logs, transaction_metadata)


def by_objects(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(offset_map_builder, "note_batches", no_notes)
    patch.setattr(general_batch_filter, "clean_batches", no_batches)


def no_notes(*arguments: Any) -> object:
    stride = arguments[-1]
    stride.records = stride.keyless = stride.tombstones = stride.work_bytes = 0
    stride.why = loop_results.OTHER
    return arguments[2]


def no_batches(*arguments: Any) -> object:
    stride = arguments[-1]
    stride.begin()
    stride.why = loop_results.OTHER
    return arguments[2]


def by_keys(patch: pytest.MonkeyPatch) -> None:
    """No bits of live offsets."""
    patch.setattr(retained_offsets, "SLOTS_OF_A_RECORD", 0)
    patch.setattr(retained_offsets, "WINDOW_OFFSETS", 0)


def by_small_windows(patch: pytest.MonkeyPatch) -> None:
    """Bits of few live offsets at a time, gathered in many slices."""
    patch.setattr(retained_offsets, "SLOTS_OF_A_RECORD", 1 << 40)
    patch.setattr(retained_offsets, "WINDOW_OFFSETS", 64)
    patch.setattr(retained_offsets, "GATHERED_SLOTS", 5)


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
    patch.setattr(batch_reader, "_PRODUCERS", 1)


def by_interpreted_code(patch: pytest.MonkeyPatch) -> None:
    for user in USERS:
        for module in INTERPRETED:
            for name, made in vars(module).items():
                if getattr(made, "__module__", None) == module.__name__ and hasattr(user, name):
                    patch.setattr(user, name, made)


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


@pytest.mark.parametrize("way", STATES)
@given(st.sets(st.integers(0, 255), max_size=6), st.integers(0, 255), st.integers(0, 255))
def test_a_window_is_a_set_of_offsets(way: str, live: set[int], one: int, other: int) -> None:
    start = 1000
    table = array("Q", bytes(24 * 10))
    for slot, number in enumerate(live):
        table[3 * slot + 2] = start + number + 1
    table[3 * 8 + 2], table[3 * 9 + 2] = start, start + 257  # before and behind the window
    window = STATES[way].LiveWindow(start - 100, start + 200)
    assert not window.holds(start, start)
    window.begin(start, 256)
    assert window.mark(memoryview(table), 0, len(table)) == len(live)
    first, last = start + min(one, other), start + max(one, other)
    assert window.holds(first, last) and window.is_mapped(first, last) is (last < start + 200)
    assert not window.holds(start - 1, last) and not window.holds(first, start + 256)
    assert window.any_live(first, last) == any(first <= start + number <= last for number in live)


@pytest.mark.parametrize("way", STATES)
@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 30)), max_size=60))
def test_open_transactions_are_a_set_of_producers(way: str, steps: list[tuple[bool, int]]) -> None:
    """More of them than there is room for at first."""
    transactions, expected = STATES[way].OpenTransactions(), set()
    for is_data, producer_id in steps:
        if is_data:
            transactions.note_open(producer_id)
            expected.add(producer_id)
        else:
            assert transactions.close_open(producer_id) is (producer_id in expected)
            expected.discard(producer_id)
        assert transactions.open_count == len(expected)
    transactions.set_aborted(100, sorted(expected))
    for producer_id in range(-3, 31):
        assert (transactions.find_open(producer_id) >= 0) is (producer_id in expected)
        assert transactions.is_aborted(producer_id, 99) is (producer_id in expected)
        assert transactions.is_aborted(producer_id, 100)
