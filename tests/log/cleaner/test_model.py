"""Protects what rounds leave, by a model of a dozen lines: last values, tombstones, aborted transactions, markers.

The model knows records and transactions only, no batches' bytes, segments' files or maps.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format.record_batch import TRANSACTIONAL_FLAG
from kcli.log.cleaner.log_cleaner_manager import log_to_clean
from tests.log.cleaner.logs import CompactedLog, as_bytes
from tests.log.live_logs import NOW_MS, marker, new_batch

RETENTION_MS = 1000

records = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=4)  # key, is a tombstone
batches = st.tuples(st.just("batch"), st.integers(0, 4), records)  # producer: 0 none, 1 and 2 idempotent, 3 and 4 transactions
ends = st.tuples(st.just("end"), st.integers(3, 4), st.booleans())
rolls = st.tuples(st.just("roll"), st.just(0), st.none())
rounds = st.tuples(st.just("clean"), st.integers(0, 1500), st.none())
steps_of = st.lists(st.one_of(batches, batches, ends, rolls, rounds), max_size=40)


class Record(NamedTuple):
    """A record as it was appended; `batch` is the base offset of its batch, `transaction` a number or None."""

    offset: int
    key: int
    value: bytes | None
    batch: int
    transaction: int | None


class Model:
    """What must be there."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.outcome: dict[int, bool] = {}  # transaction -> whether it was aborted
        self.markers: dict[int, int] = {}  # transaction -> the offset of its marker
        self.horizons: dict[int, int] = {}  # batch -> when its tombstones may go, in ms
        self.dirty = 0

    def clean(self, end: int, now_ms: int) -> None:
        """A round of all that is dirty below `end`."""
        decided = [one for one in self.records if one.transaction is None or not self.outcome.get(one.transaction)]
        last = {one.key: one.offset for one in decided if self.dirty <= one.offset < end}
        expired = {batch for batch, horizon in self.horizons.items() if horizon <= now_ms}
        self.records = [
            one
            for one in self.records
            if one.offset >= end
            or (one in decided and one.offset >= last.get(one.key, -1) and (one.value or one.batch not in expired))
        ]
        for one in self.records:
            if one.offset < end and one.value is None:
                self.horizons.setdefault(one.batch, now_ms + RETENTION_MS)
        self.dirty = end


class Run:
    """A log and its model, step by step."""

    def __init__(self, directory: Path) -> None:
        self.log = CompactedLog(directory, segment_bytes=400, delete_retention_ms=RETENTION_MS)
        self.model = Model()
        self.now_ms = NOW_MS
        self.open: dict[int, int] = {}  # producer -> its transaction, which is the offset that it begins at
        self.producer_of: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.last_batches: dict[int, int] = {}

    def batch(self, producer: int, rows: list[tuple[int, bool]]) -> None:
        base, transaction = self.log.log.log_end_offset, None
        if producer > 2:
            transaction = self.open.setdefault(producer, base)
            self.producer_of[transaction] = producer
        values = [None if is_tombstone else b"%d" % (base + at) for at, (_, is_tombstone) in enumerate(rows)]
        sequence = self.sequences.get(producer, 0)
        self.log.append(
            new_batch(
                values,
                keys=[as_bytes(key) for key, _ in rows],
                producer=(producer, 0, sequence) if producer else None,
                attributes=TRANSACTIONAL_FLAG if producer > 2 else 0,
            )
        )
        self.sequences[producer] = sequence + len(rows)
        if producer:
            self.last_batches[producer] = base + len(rows) - 1
        self.model.records += [
            Record(base + at, key, value, base, transaction)
            for at, ((key, _), value) in enumerate(zip(rows, values, strict=True))
        ]

    def end(self, producer: int, is_abort: bool) -> None:
        transaction = self.open.pop(producer, None)
        if transaction is not None:
            self.model.outcome[transaction] = is_abort
            self.model.markers[transaction] = self.log.log.log_end_offset
            self.log.live.append(marker(producer, abort=is_abort))

    def clean(self, later_ms: int) -> None:
        self.now_ms += later_ms
        found = log_to_clean(self.log.log, self.model.dirty, self.now_ms)
        if not found.cleanable_bytes:
            return
        end = found.first_uncleanable_offset
        assert self.log.clean(self.model.dirty, end=end, now_ms=self.now_ms).end_offset == end
        self.model.clean(end, self.now_ms)
        self.check()

    def check(self) -> None:
        """The log says what the model does."""
        left = self.log.batches()
        rows = [row for header, rows in left if not header.is_control for row in rows]
        assert [(offset, int(key or b""), value) for offset, _, key, value in rows] == [one[:3] for one in self.model.records]
        data = {header.last_offset for header, _ in left if not header.is_control}
        assert data >= set(self.last_batches.values())
        with_records = {header.base_offset for header, rows in left if header.is_control and rows}
        needed = {one.transaction for one in self.model.records} & self.model.markers.keys()
        assert with_records >= {self.model.markers[transaction] for transaction in needed if transaction is not None}
        indexed = {(txn.producer_id, txn.last_offset) for txn in self.log.aborted()}
        for header, _ in left:
            for transaction, at in self.model.markers.items():
                is_of_it = header.is_transactional and not header.is_control and transaction <= header.base_offset < at
                if is_of_it and self.model.outcome[transaction] and self.producer_of[transaction] == header.producer_id:
                    assert (header.producer_id, at) in indexed and at in with_records
        assert self.log.live.faults(is_compacted=True) == []


def play(steps: list[tuple[str, int, object]], directory: Path) -> None:
    """Do the steps; rounds around the horizons that they have set, and a start, end them."""
    run = Run(directory)
    for what, number, more in steps:
        if what == "batch":
            run.batch(number, more)  # type: ignore[arg-type]
        elif what == "end":
            run.end(number, bool(more))
        elif what == "roll":
            run.log.roll()
        else:
            run.clean(number)
    for later_ms in (0, RETENTION_MS - 1, 1, RETENTION_MS):
        run.batch(0, [(9, False)])
        run.log.roll()
        run.clean(later_ms)
    run.log.live.crash()
    run.check()


@settings(max_examples=40)
@given(steps_of)
def test_rounds_leave_what_the_model_says(steps: list[tuple[str, int, object]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        play(steps, Path(directory) / "t-0")


@pytest.mark.slow
@settings(max_examples=1000)
@given(steps_of)
def test_many_rounds_leave_what_the_model_says(steps: list[tuple[str, int, object]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        play(steps, Path(directory) / "t-0")
