"""A partition's directory while its repair is planned, and the steps that Kafka would refuse.

If Kafka would refuse to load the log, the cause is removed and the step is run again. A cause is a file, an index that points
at bytes that are not a batch, or the bytes of a batch.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.format.file_names import FileKind, FileState, parse_file_name, segment_file_name
from kcli.format.primitives import FormatError
from kcli.inspect.repairing.holes import Hole, Holes, Remark
from kcli.inspect.verification.small_file_checks import SEGMENT_KINDS
from kcli.log.disk.planned_disk import PlannedDisk
from kcli.log.disk.port import Disk, base_name, join_path
from kcli.log.loading.recovering_segment import LogRefusedError
from kcli.log.reading.segment_reader import LogBatch, SegmentReader

# How many causes of a refused load are removed one by one before the log is cut at the next one.
MOST_SINGLE_CUTS = 64
MOST_REFUSALS = 4096


class RepairError(Exception):
    """The partition cannot be repaired; the message names the file."""


class PlannedPartition:
    """The partition at `directory` as planned, with the remarks and holes of the plan.

    With `cuts_rest` a segment is cut from the first batch on that Kafka refuses, otherwise only the batch is removed.
    """

    def __init__(self, disk: Disk, directory: str, *, cuts_rest: bool) -> None:
        self.disk = PlannedDisk(disk)
        self.directory = directory
        self.remarks: list[Remark] = []
        self.holes = Holes(directory)
        self._cuts_rest = cuts_rest
        self._single_cuts = 0
        self._removed_indexes: set[str] = set()

    def path(self, base_offset: int, kind: FileKind, state: FileState = FileState.CURRENT) -> str:
        """Return the path of a segment's file."""
        return join_path(self.directory, segment_file_name(base_offset, kind, state))

    def names(self) -> list[str]:
        """Return the names of the regular files."""
        listed = self.disk.list_directory(self.directory)
        return [name for name in listed if self.disk.is_regular(join_path(self.directory, name))]

    def bases(self, state: FileState = FileState.CURRENT) -> list[int]:
        """Return the base offsets of the segments in a state, ascending."""
        parsed = (parse_file_name(name) for name in self.names())
        return sorted(
            file.base_offset
            for file in parsed
            if file.kind is FileKind.LOG and file.state is state and file.is_regular and file.base_offset is not None
        )

    def remove(self, path: str, why: str) -> None:
        """Remove a file and note the reason."""
        self.disk.explain(path, why)
        self.disk.remove(path)

    def remove_segment(self, base_offset: int, why: str) -> None:
        """Remove the files of a segment and note the reason."""
        for kind in SEGMENT_KINDS:
            if self.disk.exists(self.path(base_offset, kind)):
                self.remove(self.path(base_offset, kind), why)

    # ---------------------------------------------------------------------------------------------- what Kafka refuses

    def run(self, step: Callable[[], object]) -> None:
        """Run a step until Kafka would load the log: remove the cause of each LogRefusedError. Raises RepairError."""
        for _ in range(MOST_REFUSALS):
            try:
                step()
            except LogRefusedError as refusal:
                self._remove_cause(refusal)
            except FormatError as error:
                raise RepairError(f"{self.directory}: a broker does not load the log: {error.message}") from error
            else:
                return
        raise RepairError(f"{self.directory}: a broker does not load this log after any cut; use another replica")

    def _remove_cause(self, refusal: LogRefusedError) -> None:
        path, name = refusal.path, parse_file_name(base_name(refusal.path))
        if name.kind is FileKind.LOG and name.base_offset is not None:
            index = self.path(name.base_offset, FileKind.INDEX, name.state)
            # Once: the search for the end of the segment writes a new index, which is not the cause.
            if self.disk.exists(index) and index not in self._removed_indexes:
                self._removed_indexes.add(index)
                self.remove(index, "it points at bytes of its segment that are not a batch")
                return
        self.remarks.append(Remark(path, f"a broker does not load the log: {refusal.message}"))
        position, end = refusal.position, refusal.end_position
        if name.kind is not FileKind.LOG or position is None or end is None or name.base_offset is None:
            self.remove(path, refusal.message)
            return
        size_bytes = self.disk.size(path)
        if position >= min(end, size_bytes):
            raise RepairError(f"{path}: {refusal.message}, and nothing can be cut to change that")
        self.disk.explain(path, refusal.message)
        if self._cuts_rest or self._single_cuts >= MOST_SINGLE_CUTS:
            end = size_bytes
        self._single_cuts += 1
        self.holes.append(self._hole(path, name.base_offset, position, end, refusal.message))
        self.disk.cut_out(path, [(position, end)])
        if end == size_bytes and name.state is FileState.CURRENT:
            self._remove_later_segments(name.base_offset)

    def _hole(self, path: str, base_offset: int, position: int, end: int, why: str) -> Hole:
        """Return the offsets of bytes [position, end) of a segment as a hole."""
        first_offset, end_offset = base_offset, None
        with SegmentReader(self.disk, path) as reader:
            for found in reader.batches():
                if not isinstance(found, LogBatch):
                    continue
                if found.position < position:
                    first_offset = found.header.next_offset
                elif found.position >= end:
                    end_offset = found.header.base_offset
                    break
        return Hole(path, first_offset, end_offset, why)

    def _remove_later_segments(self, base_offset: int) -> None:
        for later in [base for base in self.bases() if base > base_offset]:
            self.remove_segment(later, "the segment before it was cut, and this one would follow a hole")
