"""Gathers the batches of each producer into steps, while a segment goes by.

Several producers write to a partition in turn, so several runs grow at the same time (kcli.format.batch_passes). They become
steps, in the order in which they began, before anything happens that must see them all: a control batch, an offset at which a
snapshot is compared, missing offsets, damage, the segment's end.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.format.batch_passes import ProducerRuns
from kcli.format.batch_scan import BatchColumns
from kcli.format.record_batch import TRANSACTIONAL_FLAG, increment_sequence
from kcli.inspect.verification.producers import ProducerStep

MOST_RUNS = 64


def last_sequence(rows: BatchColumns, row: int) -> int:
    """The sequence of a row's last record, -1 where it has none."""
    first = rows.base_sequence[row]
    return first if first < 0 else increment_sequence(first, rows.last_offset[row] - rows.base_offset[row])


class StepGatherer:
    """The runs of one segment; `on_step` gets them as steps. `gap_offset` and `is_after_damage` are those of ProducerStep."""

    def __init__(self, on_step: Callable[[ProducerStep], None]) -> None:
        self.runs = ProducerRuns(MOST_RUNS)
        self.batches = 0  # of producers, as far as they have become steps
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
        """Hand a step of its own on, a control batch's, behind all runs."""
        self.flush()
        self.batches += 1
        self._on_step(step)
