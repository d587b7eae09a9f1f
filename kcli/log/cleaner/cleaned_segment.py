"""The segment that a cleaner writes: its four files are `*.cleaned` until they replace others.

    file                 written                      contains
    -------------------  ---------------------------  -----------------------------------------------------------------
    `.log`               while batches are appended   the batches
    `.index, .timeindex` at the end                   entries of kcli.log.files.indexes, from the first byte on
    `.txnindex`          at the end, if not empty     aborted transactions whose data still exists

A crash leaves `*.cleaned` files, which the next start of the broker removes, or `*.swap` files, which it puts in place
(kcli.log.loading.leftovers).
"""

from __future__ import annotations

from collections.abc import Iterable

from kcli.format.file_names import FileKind, FileState, segment_file_name
from kcli.format.index_entries import AbortedTxn, OffsetIndex, TimeIndex
from kcli.format.primitives import INT32_MAX, Buffer
from kcli.format.structs import ABORTED_TXN
from kcli.log.disk.port import LogDisk, join_path
from kcli.log.files.indexes import IndexAppender

# This much is collected before it is written: a system call for each small batch would cost more than its copy.
WRITE_BYTES = 1024 * 1024


class CleanedSegment:
    """A segment that is being written. Methods raise OSError."""

    def __init__(self, disk: LogDisk, directory: str, base_offset: int, index_interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.size_bytes = 0
        self._disk = disk
        self._directory = directory
        self._offset_index = OffsetIndex.of(base_offset)
        self._time_index = TimeIndex.of(base_offset)
        self._indexes = IndexAppender(self._offset_index, self._time_index, index_interval_bytes)
        self._aborted: list[AbortedTxn] = []
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self.paths: list[str] = []
        log_path = self._path(FileKind.LOG)
        self._remove_leftovers()
        self._file = disk.open_log_file(log_path, create=True)
        self.paths.append(log_path)

    def _path(self, kind: FileKind) -> str:
        return join_path(self._directory, segment_file_name(self.base_offset, kind, FileState.CLEANED))

    def _remove_leftovers(self) -> None:
        """Remove the files of an aborted round."""
        for kind in (FileKind.LOG, FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX):
            if self._disk.exists(self._path(kind)):
                self._disk.remove(self._path(kind))

    def fits(self, size_bytes: int, last_offset: int) -> bool:
        """Return whether a batch of that size and last offset can be appended."""
        return self.size_bytes + size_bytes <= INT32_MAX and last_offset - self.base_offset <= INT32_MAX

    def append(self, batch: Buffer, last_offset: int, max_timestamp: int) -> None:
        """Append a batch; its bytes are copied."""
        self._indexes.add(self.size_bytes, len(batch), last_offset, max_timestamp)
        self.size_bytes += len(batch)
        self._collect(batch)

    def append_batches(self, data: Buffer, batches: Iterable[tuple[int, int, int]]) -> None:
        """Append consecutive batches: size, last offset and largest timestamp of each; their bytes are copied."""
        add, position = self._indexes.add, self.size_bytes
        for size_bytes, last_offset, max_timestamp in batches:
            add(position, size_bytes, last_offset, max_timestamp)
            position += size_bytes
        self.size_bytes = position
        self._collect(data)

    def _collect(self, batches: Buffer) -> None:
        self._pending.append(bytes(batches))
        self._pending_bytes += len(batches)
        if self._pending_bytes >= WRITE_BYTES:
            self._write()

    def add_aborted(self, transactions: list[AbortedTxn]) -> None:
        """Add entries of the `.txnindex`, in the order of their markers."""
        self._aborted += transactions

    def _write(self) -> None:
        if self._pending:
            self._file.append([b"".join(self._pending)])
            self._pending, self._pending_bytes = [], 0

    def finish(self, mtime_ms: int) -> list[str]:
        """Write the rest and the indexes, set the modification time, and return all paths, which are to be flushed."""
        self._write()
        self._file.close()
        self._indexes.close()
        for kind, data in (
            (FileKind.INDEX, self._offset_index.encode()),
            (FileKind.TIME_INDEX, self._time_index.encode()),
            (FileKind.TXN_INDEX, b"".join(ABORTED_TXN.pack(*txn) for txn in self._aborted)),
        ):
            if data or kind is not FileKind.TXN_INDEX:
                self._disk.append(self._path(kind), data)
                self.paths.append(self._path(kind))
        self._disk.set_mtime_ms(self.paths[0], mtime_ms)
        return self.paths

    def become_swap(self) -> None:
        """Rename the files to `*.swap`: they are complete."""
        for slot, path in enumerate(self.paths):
            self.paths[slot] = path.removesuffix(FileState.CLEANED.value) + FileState.SWAP.value
            self._disk.rename(path, self.paths[slot])

    def discard(self) -> None:
        """Remove the files."""
        self._file.close()
        for path in self.paths:
            if self._disk.exists(path):
                self._disk.remove(path)
