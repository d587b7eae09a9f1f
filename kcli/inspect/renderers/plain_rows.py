"""Rows of records: by kcli.inspect.dumping.record_rows, and those that it leaves out one by one in Python."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from kcli.format import limits
from kcli.format.record_batch import RecordBatch
from kcli.format.record_scan import is_compiled
from kcli.inspect.dumping.record_rows import RecordRows, RowForm
from kcli.inspect.dumping.renderer import fixed_timestamp
from kcli.inspect.dumping.text_buffer import TextBuffer
from kcli.log.reading.segment_reader import LogBatch
from kcli.selecting.selected_log import SelectedRecords

_EVERY_INDEX = array("q", range(limits.SCAN_WINDOW_RECORDS))


def sequences(batch: LogBatch) -> tuple[int, int]:
    """Return the base sequence of a batch, -1 if its records have none, and its base offset."""
    header = batch.header
    return (header.base_sequence, header.base_offset) if isinstance(header, RecordBatch) else (-1, 0)


def put_plain_rows(
    out: TextBuffer,
    selected: SelectedRecords,
    form: RowForm,
    row: Callable[[int], bytes],
    *,
    runs_compiled: bool = is_compiled(),
) -> None:
    """Write the rows of selected records, in order; `row` returns the row of one, by its index in the window.

    Interpreted, all rows come from `row`, which is then faster than the loops that are made for a compiler.
    """
    window, indexes = selected.window, selected.indexes
    if not runs_compiled:
        for index in indexes:
            out.put(row(index))
        return
    if isinstance(indexes, range):
        chosen, number, count = _EVERY_INDEX, indexes.start, indexes.stop
    else:
        chosen, number, count = array("q", indexes), 0, len(indexes)
    base_sequence, base_offset = sequences(selected.batch)
    fixed = fixed_timestamp(selected.batch)
    rows = RecordRows(form, window.columns, chosen)
    rows.begin_batch(base_offset, base_sequence, fixed or 0, fixed is not None)
    while number < count:
        number = rows.put(out, window.buffer, number, count)
        if number < count and not out.flush_if_half_full():
            out.put(row(chosen[number]))
            number += 1
