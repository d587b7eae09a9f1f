"""A Selection applied to batches by their headers, and then to the columns of their records.

    asked for                     decided by the header                             else by the records
    ----------------------------  ------------------------------------------------  ---------------------------
    producer, flags, isolation    always
    offsets                       unless the range ends inside it                   offset column
    times                         none: max timestamp before the range              timestamp column
                                  LogAppendTime: always
    keys, headers                 never                                             the bytes themselves

So a batch is inflated only if its header does not decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kcli.format.primitives import INT64_MAX
from kcli.format.record_batch import LOG_APPEND_TIME_FLAG, NO_TIMESTAMP, RecordBatch
from kcli.selecting.selection import Range, Selection

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch
    from kcli.log.reading.batch_records import RecordWindow
    from kcli.log.reading.transaction_filter import AbortedTransactions

# How much of a batch is selected.
NONE = 0
SOME = 1  # its records decide
ALL = 2

Indexes = Sequence[int]


class RecordFilter:
    """Decides which batches and records a Selection selects, without its limit and tail.

    `looks_inside` is True if keys or headers decide; a record whose bytes were left out is then not selected.
    """

    def __init__(self, selection: Selection, transactions: AbortedTransactions | None = None) -> None:
        self.selection = selection
        self.transactions = transactions
        self._keys = frozenset(selection.keys)
        self.looks_inside = bool(selection.keys or selection.headers)
        self._by_flags = bool(
            selection.producer_ids or selection.transactional or selection.control or selection.needs_transactions
        )
        self._takes_all = selection._replace(limit=None, tail=None) == Selection()

    def verdict(self, header: RecordBatch | LegacyBatch) -> int:
        """Return how much of a batch is selected by its header: NONE, ALL, or SOME if its records decide."""
        if self._takes_all:
            return ALL
        if self._by_flags and not self._flags_match(header):
            return NONE
        offsets, times = self.selection.offsets, self.selection.times
        verdict = SOME if self.looks_inside else ALL
        if offsets.first is not None or offsets.end is not None:
            verdict = min(verdict, _offsets_verdict(header, offsets))
        if times.first is not None or times.end is not None:
            verdict = min(verdict, _times_verdict(header, times))
        return verdict

    def _flags_match(self, header: RecordBatch | LegacyBatch) -> bool:
        wanted = self.selection
        if not isinstance(header, RecordBatch):
            return not (wanted.producer_ids or wanted.transactional or wanted.control or wanted.aborted)
        if wanted.producer_ids and header.producer_id not in wanted.producer_ids:
            return False
        if wanted.transactional and not header.is_transactional:
            return False
        if wanted.control and not header.is_control:
            return False
        if not wanted.needs_transactions:
            return True
        return self._isolation_matches(header)

    def _isolation_matches(self, header: RecordBatch) -> bool:
        transactions = self.transactions
        if transactions is None:
            raise ValueError("a selection by transactions needs the aborted transactions of the partition")
        aborted = header.is_transactional and transactions.is_aborted(header.producer_id, header.base_offset)
        if self.selection.aborted:
            return aborted and not header.is_control
        return not aborted and not header.is_control and header.base_offset < transactions.last_stable_offset

    def indexes(self, header: RecordBatch | LegacyBatch, window: RecordWindow, verdict: int = SOME) -> Indexes:
        """Return the indexes of the selected records within a window of that batch, ascending."""
        if verdict == ALL:
            return range(window.count)
        columns = window.columns
        found: Indexes = range(0 if window.left_out and self.looks_inside else window.count)
        if self.selection.offsets != Range() and _offsets_verdict(header, self.selection.offsets) != ALL:
            found = _within(columns.offset, found, self.selection.offsets)
        if self.selection.times != Range() and _times_verdict(header, self.selection.times) != ALL:
            found = _within(columns.timestamp, found, self.selection.times)
        if self._keys and found:
            found = self._with_keys(window, found)
        if self.selection.headers and found:
            found = self._with_headers(window, found)
        return found

    def _with_keys(self, window: RecordWindow, candidates: Indexes) -> Indexes:
        keys, buffer = self._keys, window.buffer
        sizes, positions = window.columns.key_size, window.columns.key_position
        lengths = {len(key) for key in keys}
        return [
            index
            for index in candidates
            if (size := sizes[index]) in lengths and bytes(buffer[(at := positions[index]) : at + size]) in keys
        ]

    def _with_headers(self, window: RecordWindow, candidates: Indexes) -> Indexes:
        wanted, counts = self.selection.headers, window.columns.header_count
        found = []
        for index in candidates:
            if counts[index] == 0:
                continue
            headers = window.headers(index)
            if all(
                any(header.key == match.key and match.value in (None, header.value) for header in headers) for match in wanted
            ):
                found.append(index)
        return found


def _offsets_verdict(header: RecordBatch | LegacyBatch, offsets: Range) -> int:
    first, end = offsets.first or 0, INT64_MAX + 1 if offsets.end is None else offsets.end
    if header.last_offset < first:
        return NONE
    if not isinstance(header, RecordBatch) and header.codec:
        return SOME  # the header has its last offset only
    if header.base_offset >= end:
        return NONE
    return ALL if first <= header.base_offset and header.last_offset < end else SOME


def _times_verdict(header: RecordBatch | LegacyBatch, times: Range) -> int:
    latest = header.max_timestamp
    if latest == NO_TIMESTAMP or (times.first is not None and latest < times.first):
        return NONE
    if header.attributes & LOG_APPEND_TIME_FLAG:
        return ALL if times.has(latest) else NONE
    return SOME


def _within(numbers: Sequence[int], candidates: Indexes, wanted: Range) -> list[int]:
    """Return the candidates whose offset or timestamp is in the range; -1 (no timestamp) is in no range."""
    first = -INT64_MAX - 1 if wanted.first is None else wanted.first
    end = INT64_MAX + 1 if wanted.end is None else wanted.end
    return [index for index in candidates if first <= numbers[index] < end and numbers[index] != NO_TIMESTAMP]
