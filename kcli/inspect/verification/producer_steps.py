"""Steps: the batches of a producer that follow each other in its sequence, joined while a segment is read.

Several producers write to a partition alternately, so several runs of batches grow at the same time
(kcli.format.batch_scan). All of them become steps, in the order of their first batches, before anything that needs their
total: a control batch, an offset at which a snapshot is compared, missing offsets, damage, the end of the segment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kcli.format.batch_scan import BatchColumns, ProducerRuns
from kcli.format.end_transaction_marker import EndTransactionMarker
from kcli.format.record_batch import TRANSACTIONAL_FLAG, increment_sequence

MOST_RUNS = 64


class ProducerStep(NamedTuple):
    """Batches of one producer, each next in its sequence; or one control batch, with its marker.

    `first_offset`, `first_sequence`, `first_position` are those of the first batch, `batch_offset` (its base offset),
    `last_offset`, `last_sequence` and `max_timestamp` (ms) those of the last one. `records` is their number. `gap_offset` is
    the highest offset, at or below the end of the first batch, before which something is missing in the segment, or -1;
    `is_after_damage`: some of it is missing because of damage.
    """

    producer_id: int
    producer_epoch: int
    is_transactional: bool
    first_position: int
    first_offset: int
    first_sequence: int
    batch_offset: int
    last_offset: int
    last_sequence: int
    max_timestamp: int
    records: int
    gap_offset: int
    is_after_damage: bool = False
    marker: EndTransactionMarker | None = None
    is_control: bool = False


def last_sequence(rows: BatchColumns, row: int) -> int:
    """Return the sequence of the last record of a row's batch, -1 where it has none."""
    first = rows.base_sequence[row]
    return first if first < 0 else increment_sequence(first, rows.last_offset[row] - rows.base_offset[row])


class StepGatherer:
    """The runs of one segment; `on_step` is called with each step. `gap_offset`, `is_after_damage`: see ProducerStep."""

    def __init__(self, on_step: Callable[[ProducerStep], None]) -> None:
        self.runs = ProducerRuns(MOST_RUNS)
        self.batches = 0  # of producers, in the steps so far
        self.gap_offset = -1
        self.is_after_damage = False
        self._on_step = on_step

    def begin(self, rows: BatchColumns, row: int) -> None:
        """Begin a run with a row of `rows`, a batch of records."""
        runs = self.runs
        producer_id = rows.producer_id[row]
        if runs.used == runs.capacity or producer_id in runs.producer_id[: runs.used]:
            self.flush()
        slot = runs.used
        runs.producer_id[slot], runs.producer_epoch[slot] = producer_id, rows.producer_epoch[row]
        runs.attributes[slot] = rows.attributes[row] & -8
        runs.first_position[slot] = rows.position[row]
        runs.first_offset[slot] = runs.batch_offset[slot] = rows.base_offset[row]
        runs.first_sequence[slot] = rows.base_sequence[row]
        runs.last_offset[slot], runs.last_sequence[slot] = rows.last_offset[row], last_sequence(rows, row)
        runs.max_timestamp[slot] = rows.max_timestamp[row]
        runs.records[slot], runs.batches[slot] = rows.record_count[row], 1
        runs.used = slot + 1

    def flush(self) -> None:
        """Make steps of all runs."""
        runs = self.runs
        for slot in range(runs.used):
            if runs.producer_id[slot] < 0:
                continue
            self.batches += runs.batches[slot]
            self._on_step(
                ProducerStep(
                    runs.producer_id[slot],
                    runs.producer_epoch[slot],
                    bool(runs.attributes[slot] & TRANSACTIONAL_FLAG),
                    runs.first_position[slot],
                    runs.first_offset[slot],
                    runs.first_sequence[slot],
                    runs.batch_offset[slot],
                    runs.last_offset[slot],
                    runs.last_sequence[slot],
                    runs.max_timestamp[slot],
                    runs.records[slot],
                    self.gap_offset,
                    self.is_after_damage,
                )
            )
        runs.used = 0

    def add(self, step: ProducerStep) -> None:
        """Make steps of all runs, then add the step of a control batch."""
        self.flush()
        self.batches += 1
        self._on_step(step)
