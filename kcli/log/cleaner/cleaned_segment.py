"""What a cleaner writes: a segment whose four files are `*.cleaned` until they take the place of others.

    file                 written                             holds
    -------------------  ----------------------------------  ---------------------------------------------------------
    `.log`               as batches are kept                 them
    `.index, .timeindex` at the end                          entries by kcli.log.files.indexes, counted from the first byte
    `.txnindex`          at the end, where it has entries    aborted transactions whose data is still there

A crash leaves `*.cleaned` files, which every start of a broker removes, or `*.swap` files, which it puts in place
(kcli.log.loading.leftovers).
"""

from __future__ import annotations

from array import array

from kcli.format.file_names import FileKind, FileState, segment_file_name
from kcli.format.index_entries import AbortedTxn, OffsetIndex, TimeIndex
from kcli.format.primitives import INT32_MAX, Buffer
from kcli.format.structs import ABORTED_TXN
from kcli.log.cleaner.cut_strides import ROW_SLOTS
from kcli.log.disk.port import LogDisk, join_path
from kcli.log.files.indexes import IndexAppender

# So much is gathered before it is written: a call of the system for each small batch would cost more than its copy.
WRITE_BYTES = 1024 * 1024


class CleanedSegment:
    """A segment in the making. Methods raise OSError."""

    def __init__(self, disk: LogDisk, directory: str, base_offset: int, index_interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.size_bytes = 0
        self._disk = disk
        self._directory = directory
        self._offset_index = OffsetIndex.of(base_offset)
        self._time_index = TimeIndex.of(base_offset)
        self._indexes = IndexAppender(self._offset_index, self._time_index, index_interval_bytes)
        self._aborted: list[AbortedTxn] = []
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self.paths: list[str] = []
        log_path = self._path(FileKind.LOG)
        self._remove_leftovers()
        self._file = disk.open_log_file(log_path, create=True)
        self.paths.append(log_path)

    def _path(self, kind: FileKind) -> str:
        return join_path(self._directory, segment_file_name(self.base_offset, kind, FileState.CLEANED))

    def _remove_leftovers(self) -> None:
        """A round before may have been given up."""
        for kind in (FileKind.LOG, FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX):
            if self._disk.exists(self._path(kind)):
                self._disk.remove(self._path(kind))

    def fits(self, size_bytes: int, last_offset: int) -> bool:
        """Whether a batch of that size and last offset may come next."""
        return self.size_bytes + size_bytes <= INT32_MAX and last_offset - self.base_offset <= INT32_MAX

    def append(self, batch: Buffer, last_offset: int, max_timestamp: int) -> None:
        """Add a batch; its bytes are copied."""
        self._indexes.add(self.size_bytes, len(batch), last_offset, max_timestamp)
        self.size_bytes += len(batch)
        self._gather(batch)

    def append_rows(self, batches: Buffer, rows: array, count: int) -> None:  # type: ignore[type-arg]
        """Add batches that lie one behind the other, as `count` rows of kcli.log.cleaner.cut_strides tell of them."""
        add, position = self._indexes.add, self.size_bytes
        for row in range(0, ROW_SLOTS * count, ROW_SLOTS):
            add(position, rows[row], rows[row + 1], rows[row + 2])
            position += rows[row]
        self.size_bytes = position
        self._gather(batches)

    def _gather(self, batches: Buffer) -> None:
        self._gathered.append(bytes(batches))
        self._gathered_bytes += len(batches)
        if self._gathered_bytes >= WRITE_BYTES:
            self._write()

    def add_aborted(self, transactions: list[AbortedTxn]) -> None:
        """Add entries of the `.txnindex`, by the offsets of their markers."""
        self._aborted += transactions

    def _write(self) -> None:
        if self._gathered:
            self._file.append([b"".join(self._gathered)])
            self._gathered, self._gathered_bytes = [], 0

    def finish(self, mtime_ms: int) -> list[str]:
        """Write what waits, and the indexes; `mtime_ms` is when it was modified -> the paths of all, to be flushed."""
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
        """Rename the files to `*.swap`: what is written is complete."""
        for slot, path in enumerate(self.paths):
            self.paths[slot] = path.removesuffix(FileState.CLEANED.value) + FileState.SWAP.value
            self._disk.rename(path, self.paths[slot])

    def discard(self) -> None:
        """Give up: the files go."""
        self._file.close()
        for path in self.paths:
            if self._disk.exists(path):
                self._disk.remove(path)
