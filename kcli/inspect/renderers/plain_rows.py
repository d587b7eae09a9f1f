"""Plain records through the compiled rows of kcli.inspect.dumping.record_rows, the others one by one through Python."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from kcli.format import limits
from kcli.format.record_batch import RecordBatch
from kcli.inspect.dumping.record_rows import COMPILED, RowForm, put_rows
from kcli.inspect.dumping.renderer import fixed_timestamp
from kcli.inspect.dumping.selected_log import SelectedRecords
from kcli.inspect.dumping.text_buffer import TextBuffer
from kcli.log.reading.segment_reader import LogBatch

_EVERY_INDEX = array("q", range(limits.SCAN_WINDOW_RECORDS))


def sequences(batch: LogBatch) -> tuple[int, int]:
    """The base sequence of a batch, -1 where its records have none, and the base offset that it belongs to."""
    header = batch.header
    return (header.base_sequence, header.base_offset) if isinstance(header, RecordBatch) else (-1, 0)


def put_plain_rows(
    out: TextBuffer,
    selected: SelectedRecords,
    form: RowForm,
    contents: bool,
    row: Callable[[int], bytes],
    *,
    is_compiled: bool = COMPILED,
) -> None:
    """Write the rows of selected records, in order; `row` gives the row of one, by its index in the window.

    Interpreted, all go through `row`, which is faster then than the loops made for a compiler.
    """
    window, indexes = selected.window, selected.indexes
    if not is_compiled:
        for index in indexes:
            out.put(row(index))
        return
    if isinstance(indexes, range):
        chosen, turn, count = _EVERY_INDEX, indexes.start, indexes.stop
    else:
        chosen, turn, count = array("q", indexes), 0, len(indexes)
    fixed, base_sequence, base_offset = fixed_timestamp(selected.batch), *sequences(selected.batch)
    while turn < count:
        turn = put_rows(
            out.memory,
            window.buffer,
            window.columns,
            chosen,
            turn,
            count,
            form,
            fixed or 0,
            fixed is not None,
            base_offset,
            base_sequence,
            contents,
            out.place,
        )
        if turn < count and out.place[0] > len(out.memory) // 2:
            out.flush()
        elif turn < count:
            out.put(row(chosen[turn]))
            turn += 1
