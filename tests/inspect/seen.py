"""A renderer that remembers what it was told, and a way to dump into it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from kcli.inspect.dumping.dump import DumpOptions, dump
from kcli.inspect.dumping.renderer import DumpedFile, DumpResult, Entry, fixed_timestamp
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import Disk
from kcli.log.reading.segment_reader import Damage, LogBatch
from kcli.selecting.selected_log import SelectedRecords
from kcli.selecting.selection import parse_selection


class SeenRecord(NamedTuple):
    """A record that was shown."""

    path: str
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class Seen:
    """Remembers files, batches, records, entries, damages, notes and problems, each in its order."""

    shows_damage = True

    def __init__(self) -> None:
        self.files: list[DumpedFile] = []
        self.batches: list[tuple[str, int, int]] = []
        self.records_seen: list[SeenRecord] = []
        self.entries_seen: list[tuple[str, Entry]] = []
        self.damages: list[tuple[str, Damage]] = []
        self.notes: list[tuple[str, str]] = []
        self.problems: list[tuple[str, str]] = []
        self.report: dict[str, Any] | None = None
        self.result: DumpResult | None = None
        self.flushes = 0
        self._is_open = False

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.records_seen]

    @property
    def _path(self) -> str:
        assert self._is_open, "what is in a file comes between its begin and its end"
        return self.files[-1].path

    def begin_file(self, file: DumpedFile) -> None:
        assert not self._is_open
        self._is_open = True
        self.files.append(file)

    def batch(self, batch: LogBatch) -> None:
        self.batches.append((self._path, batch.header.base_offset, batch.position))

    def records(self, selected: SelectedRecords) -> None:
        window, columns, fixed = selected.window, selected.window.columns, fixed_timestamp(selected.batch)
        assert len(selected.indexes) > 0
        for index in selected.indexes:
            timestamp = columns.timestamp[index] if fixed is None else fixed
            record = SeenRecord(self._path, columns.offset[index], timestamp, window.key(index), window.value(index))
            self.records_seen.append(record)

    def entries(self, entries: Iterable[Entry]) -> None:
        self.entries_seen += ((self._path, entry) for entry in entries)

    def damage(self, damage: Damage) -> None:
        self.damages.append((self._path, damage))

    def note(self, message: str) -> None:
        self.notes.append((self._path, message))

    def end_file(self) -> None:
        assert self._is_open
        self._is_open = False

    def problem(self, path: str, message: str) -> None:
        self.problems.append((path, message))

    def statistics(self, report: dict[str, Any]) -> None:
        self.report = report

    def end(self, result: DumpResult) -> None:
        assert not self._is_open
        self.result = result

    def flush(self) -> None:
        self.flushes += 1


def dumped(*paths: Path | str, options: DumpOptions | None = None, disk: Disk | None = None, **selection: Any) -> Seen:
    """Dump paths with the options of parse_selection -> what was shown."""
    seen = Seen()
    dump(
        [str(path) for path in paths],
        parse_selection(**selection),
        seen,
        DumpOptions() if options is None else options,
        OsDisk() if disk is None else disk,
        report=lambda sentence: None,
    )
    return seen
