"""Helps the tests of describe: a description of a path, its rows by name, and what Kafka's dumps say of the same files."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from kcli.inspect.description.describe_options import SECTIONS, DescribeOptions
from kcli.inspect.description.description import Description, describe
from kcli.log.disk.os_disk import OsDisk, OsFile
from kcli.log.disk.port import Disk
from tests.conftest import LogSet

Row = dict[str, Any]
_BATCH = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .* isControl: (\w+) .*"
    r"(CreateTime|LogAppendTime|NoTimestampType): (-?\d+) size: (\d+) magic: 2 compresscodec: (\w+)"
)
_LEGACY = re.compile(
    r"offset: (\d+) position: \d+ (CreateTime|LogAppendTime|NoTimestampType): (-?\d+) .*magic: ([01]) compresscodec: (\w+)"
)
_LEGACY_SIZE = re.compile(r" size: (\d+) ")
_RECORD = re.compile(r"\| offset: (\d+) (?:CreateTime|LogAppendTime|NoTimestampType): (-?\d+)")


def described(*paths: Path | str, disk: Disk | None = None, **options: Any) -> Description:
    """All sections of what lies at `paths`, unless `show` names some."""
    options.setdefault("show", frozenset(SECTIONS))
    return describe(disk or OsDisk(), [str(path) for path in paths], DescribeOptions(**options))


def by_partition(rows: list[Row]) -> dict[str, Row]:
    return {f"{row['topic']}-{row['partition']}": row for row in rows}


class DumpedSegment(NamedTuple):
    """What Kafka's dump of a segment adds up to; `records` is None where compressed sets of format 0 and 1 hide the number."""

    batches: int
    records: int | None
    control_records: int
    batches_by_codec: dict[str, int]
    bytes_by_codec: dict[str, int]
    end_offset: int
    first_timestamp: int | None
    max_timestamp: int | None


def dumped_segment(given: LogSet, path: str) -> DumpedSegment:
    """Read Kafka's deep dump of `path`, by nothing but regular expressions."""
    batches = records = control_records = 0
    hidden, is_data = False, False
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    end_offset, first, largest = 0, None, -1
    for line in given.golden(path).decode("utf-8", "replace").split("\n"):
        if found := _BATCH.match(line):
            batches += 1
            is_data = found[4] == "false"
            end_offset = int(found[2]) + 1
            largest = max(largest, int(found[6]))
            if not is_data:
                control_records += int(found[3])
            elif int(found[3]):
                records += int(found[3])
                counts[found[8]] += 1
                sizes[found[8]] += int(found[7])
        elif found := _LEGACY.match(line):
            batches += 1
            records += 1
            is_data = True
            end_offset = int(found[1]) + 1
            hidden = hidden or found[5] != "none"
            largest = max(largest, int(found[3]))
            counts[found[5]] += 1
            size = _LEGACY_SIZE.search(line)
            sizes[found[5]] += int(size[1]) if size else 0
        elif first is None and is_data and (found := _RECORD.match(line)):
            first = int(found[2])
    return DumpedSegment(
        batches,
        None if hidden else records,
        control_records,
        dict(counts),
        dict(sizes),
        end_offset,
        first if first is not None and first >= 0 else None,
        largest if largest >= 0 else None,
    )


class ReplacedDisk(OsDisk):
    """The real disk with the bytes of some files replaced; None for a file that cannot be read."""

    def __init__(self, replaced: dict[str, bytes | None]) -> None:
        self._directory = TemporaryDirectory()
        self._places: dict[str, str | None] = {}
        for number, (path, data) in enumerate(replaced.items()):
            place = Path(self._directory.name) / str(number)
            if data is not None:
                place.write_bytes(data)
            self._places[path] = None if data is None else str(place)

    def open_file(self, path: str) -> OsFile:
        return super().open_file(self._place(path))

    def read_file(self, path: str, limit: int) -> bytes:
        return super().read_file(self._place(path), limit)

    def size(self, path: str) -> int:
        return super().size(self._places.get(path) or path)

    def _place(self, path: str) -> str:
        place = self._places.get(path, path)
        if place is None:
            raise PermissionError(13, "Permission denied", path)
        return place
