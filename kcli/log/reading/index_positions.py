"""The positions of batches in a segment's .index, for a reader that has to find the next batch after damage.

An index whose positions do not ascend is ignored. The entries are hints: the reader checks the bytes at their positions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import lt
from typing import TYPE_CHECKING

from kcli.format import limits
from kcli.format.file_names import FileKind, FileState, parse_file_name, segment_file_name
from kcli.format.index_entries import OffsetIndex
from kcli.log.disk.port import Disk

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch
    from kcli.format.record_batch import RecordBatch


class IndexPositions:
    """The positions in a segment's .index, which is read at the first use."""

    def __init__(self, disk: Disk, log_path: str) -> None:
        self._disk = disk
        self._log_path = log_path
        self._index: OffsetIndex | None = None

    def _read(self) -> OffsetIndex:
        if self._index is None:
            self._index = OffsetIndex.of(0)
            directory, slash, name = self._log_path.rpartition("/")
            parsed = parse_file_name(name)
            if parsed.kind is FileKind.LOG and parsed.state is FileState.CURRENT and parsed.base_offset is not None:
                path = directory + slash + segment_file_name(parsed.base_offset, FileKind.INDEX)
                try:
                    data = self._disk.read_file(path, limits.MAX_INDEX_FILE_BYTES)
                except OSError:
                    return self._index
                index = OffsetIndex.decode(data, parsed.base_offset).trimmed()
                if all(map(lt, index.positions, index.positions[1:])):
                    self._index = index
        return self._index

    def after(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield (position, offset) of the entries after byte `position`, ascending; nothing without a valid index."""
        index = self._read()
        for slot in range(bisect_right(index.positions, position), len(index)):
            entry = index.entry(slot)
            yield entry.position, entry.offset

    def points_at(self, header: RecordBatch | LegacyBatch) -> bool:
        """Return True if an entry points at this header, with an offset at or above its base offset."""
        found = next(self.after(header.position - 1), None)
        return found is not None and found[0] == header.position and found[1] >= header.base_offset
