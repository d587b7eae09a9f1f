"""Protects the compiled paths of a round: they write the bytes and count what the general path writes for every batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import batch_header, limits, record_copy, record_scan
from kcli.format.index_entries import AbortedTxn
from kcli.format.record_batch import read_header
from kcli.log.cleaner import (
    batch_filter,
    batch_reader,
    cleaner,
    offset_map,
    offset_map_builder,
    retained_offsets,
    transaction_metadata,
)
from kcli.log.reading import batch_records
from tests.interpreted import interpreted
from tests.log.cleaner import random_logs
from tests.log.cleaner.random_logs import SECRET, RandomLog
from tests.log.live_logs import new_batch

ROUNDS = 3

PARTS = {"offset_map": interpreted(offset_map), "transaction_metadata": interpreted(transaction_metadata)}
SCANS = {"record_scan": interpreted(record_scan), "batch_header": interpreted(batch_header)}
PARTS["batch_reader"] = interpreted(batch_reader, **SCANS, **PARTS)
PARTS["retained_offsets"] = interpreted(retained_offsets, **PARTS)
PARTS["offset_map_builder"] = interpreted(offset_map_builder, **PARTS)
PARTS["batch_filter"] = interpreted(batch_filter, record_copy=interpreted(record_copy), **PARTS)
MODULES: dict[str, dict[str, ModuleType]] = {
    "as installed": {
        "offset_map": offset_map,
        "transaction_metadata": transaction_metadata,
        "retained_offsets": retained_offsets,
    },
    "interpreted": PARTS,
}
STATS = tuple(vars(PARTS["batch_filter"].CleanerStats()))
# The modules that make and call what is compiled.
USERS = (cleaner, random_logs)


def all_by_the_general_path(patch: pytest.MonkeyPatch) -> None:
    """The compiled loops end before the first batch."""
    patch.setattr(offset_map_builder, "SLICE_BYTES", 0)
    patch.setattr(batch_filter, "SLICE_BYTES", 0)


def by_keys(patch: pytest.MonkeyPatch) -> None:
    """No window of retained offsets."""
    patch.setattr(retained_offsets, "SLOTS_OF_A_RECORD", 0)
    patch.setattr(retained_offsets, "WINDOW_OFFSETS", 0)


def by_small_windows(patch: pytest.MonkeyPatch) -> None:
    """Windows of few retained offsets, gathered in many slices."""
    patch.setattr(retained_offsets, "SLOTS_OF_A_RECORD", 1 << 40)
    patch.setattr(retained_offsets, "WINDOW_OFFSETS", 64)
    patch.setattr(retained_offsets, "GATHERED_SLOTS", 5)


def by_short_slices(patch: pytest.MonkeyPatch) -> None:
    """Calls and mapped ranges of a batch or two each, some of them skipped."""
    patch.setattr(offset_map_builder, "SLICE_BYTES", 150)
    patch.setattr(batch_filter, "SLICE_BYTES", 150)


def by_short_slices_and_small_windows(patch: pytest.MonkeyPatch) -> None:
    by_small_windows(patch)
    by_short_slices(patch)


def by_small_buffers(patch: pytest.MonkeyPatch) -> None:
    """For input, output, and producers with open transactions."""
    patch.setattr(limits, "READ_CHUNK_BYTES", 500)
    patch.setattr(transaction_metadata, "FIRST_PRODUCERS", 1)


def by_interpreted_code(patch: pytest.MonkeyPatch) -> None:
    for user in USERS:
        for module in PARTS.values():
            for name, made in vars(module).items():
                if getattr(made, "__module__", None) == module.__name__ and hasattr(user, name):
                    patch.setattr(user, name, made)
    patch.setattr(batch_records, "RecordColumns", SCANS["record_scan"].RecordColumns)
    assert cleaner.BatchFilter is not batch_filter.BatchFilter


WAYS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    by_keys,
    by_small_windows,
    by_short_slices,
    by_short_slices_and_small_windows,
    by_small_buffers,
    by_interpreted_code,
    all_by_the_general_path,
)


def rounds_of(seed: int, directory: Path) -> list[object]:
    """Return all that rounds over the log of a seed write and count."""
    log, found = RandomLog(directory / "t-0", seed), []
    for _ in range(ROUNDS):
        log.grow()
        done = log.clean()
        found.append((done.end_offset, done.keys, [getattr(done.stats, name) for name in STATS]))
        found += [
            (path.name, path.read_bytes()) for path in sorted((directory / "t-0").glob("*.*")) if ".check" not in path.name
        ]
        log.now_ms += log.rng.choice((0, 500, 1500))
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(12))
def test_every_path_writes_the_same(way: Callable[[pytest.MonkeyPatch], None], seed: int, tmp_path: Path) -> None:
    normal = rounds_of(seed, tmp_path / "normal")
    with pytest.MonkeyPatch.context() as patch:
        way(patch)
        assert rounds_of(seed, tmp_path / "other") == normal


@pytest.mark.parametrize("way", MODULES)
@given(st.sets(st.integers(0, 255), max_size=6), st.integers(0, 255), st.integers(0, 255))
def test_a_window_is_a_set_of_offsets(way: str, retained: set[int], one: int, other: int) -> None:
    start = 1000
    offsets = MODULES[way]["offset_map"].OffsetMap(24 * 10, SECRET)
    offsets.latest_offset = start + 199
    for slot, number in enumerate(retained):
        offsets.table[3 * slot + 2] = start + number + 1
    offsets.table[3 * 8 + 2], offsets.table[3 * 9 + 2] = start, start + 257  # before and after the window
    window = MODULES[way]["retained_offsets"].RetainedOffsets(offsets, start - 100)
    assert not window.is_in_window(start, start)
    while window.move_window(start):
        pass
    first, last = start + min(one, other), start + max(one, other)
    assert window.is_in_window(first, last) and window.is_mapped(first, last) is (last < start + 200)
    assert not window.is_in_window(start - 1, last) and not window.is_in_window(first, start + 256)
    assert window.has_any(first, last) == any(first <= start + number <= last for number in retained)
    assert sum(word.bit_count() for word in window.words) == len(retained)


@pytest.mark.parametrize("way", MODULES)
@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 30)), max_size=60))
def test_ongoing_transactions_are_a_set_of_producers(way: str, steps: list[tuple[bool, int]]) -> None:
    """More of them than fit the first list."""
    transactions, expected = MODULES[way]["transaction_metadata"].CleanedTransactionMetadata(), set()
    for is_data, producer_id in steps:
        if is_data:
            transactions.add_ongoing(producer_id)
            expected.add(producer_id)
        else:
            assert transactions.complete(producer_id) is (producer_id in expected)
            expected.discard(producer_id)
        assert transactions.ongoing_count == len(expected)
    for producer_id in range(-3, 31):
        assert (transactions.find_ongoing(producer_id) >= 0) is (producer_id in expected)


@pytest.mark.parametrize("way", MODULES)
@given(st.sets(st.integers(0, 30)), st.integers(0, 30))
def test_a_batch_may_be_of_an_aborted_transaction_that_began(way: str, producers: set[int], begun: int) -> None:
    """The transaction of each producer begins at ten times its id."""
    transactions = MODULES[way]["transaction_metadata"].CleanedTransactionMetadata()
    transactions.add_aborted(AbortedTxn(0, number, 10 * number, 10 * number + 5, 0) for number in producers)
    transactions.on_batch_read(read_header(new_batch([b"value"], base_offset=10 * begun)))
    for producer_id in range(-3, 31):
        has_begun = producer_id in producers and producer_id <= begun
        assert transactions.may_be_aborted(producer_id, 10 * begun) is has_begun
        next_one = min((number for number in producers if number > begun), default=None)
        assert next_one is None or transactions.may_be_aborted(producer_id, 10 * next_one)
