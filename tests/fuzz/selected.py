"""Readers of damaged directories that begin at a time, read in several splits, or send a log on: all show the same records.

A case is a scene of tests.fuzz.directories, or one of compacted logs whose batches keep their codecs (gaps, and no later index
entry), damaged once or twice by the generators of tests.fuzz.score and tests.fuzz.damages. Nothing is repaired.

    reader                                            must show, of each partition
    ------------------------------------------------  --------------------------------------------------------------------
    Spark source, onCorrupt=skip, small splits        the rows of one split
    Spark source, onCorrupt=skip, startingTimestamp   the rows of one split from the first one of that time on
    the same with onCorrupt=fail                      these rows, or an error
    dump-log --time                                   the records of the whole dump of that time
    replay, directories of one cluster                the records of the whole dump, without control records
    replay, a topic in directories of two clusters    nothing: it is refused
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from kcli.format.compression import inflate
from kcli.format.primitives import FormatError
from kcli.format.record_batch import HEADER_BYTES, check_batch
from kcli.format.records import read_records
from kcli.log.disk.os_disk import OsDisk
from kcli.replay.directory_source import DirectorySource, Problems
from kcli.replay.source import SourceError
from kcli.selecting.selection import Selection
from kcli.spark.log_partitions import PlanError
from kcli.spark.range_reader import CorruptLogError
from tests.damage import NotApplicableError
from tests.fuzz import outputs
from tests.fuzz.batches import BASE_TIMESTAMP_MS
from tests.fuzz.cases import draw_kind
from tests.fuzz.directories import DUPLICATE, TWO_CLUSTERS, PartitionModel, Scene, write_scene
from tests.fuzz.score import DAMAGES
from tests.spark.source import rows_of

Row = tuple[int, int, bytes | None, bytes | None, bool]


class SelectedReads:
    """The case of a seed; `faults` are sentences."""

    def __init__(self, parent: Path, seed: int, only: Callable[[Scene, random.Random], str] | None = None) -> None:
        rng = self._rng = random.Random(f"selected {seed}")
        self.scene: Scene = write_scene(parent, rng, keeps_codecs=rng.random() < 0.4)
        self.damages: list[str] = []
        self.faults: list[str] = []
        for _ in range(rng.choice((1, 1, 2))):
            damage = only or (rng.choice(DAMAGES) if rng.random() < 0.6 else draw_kind(rng).damage)
            try:
                self.damages.append(f"{damage.__name__}: {damage(self.scene, rng)}")
            except NotApplicableError:
                continue

    def check(self) -> list[str]:
        """Compare the readers -> what differs."""
        sent = self._replayed()
        for partition in self.scene.partitions:
            if not any(partition.path.glob("*.log")):
                continue
            whole = self._rows(partition, "skip")
            if isinstance(whole, str):
                continue
            size = str(self._rng.choice((150, 400, 1500)))
            self._same(partition, f"splits of {size} bytes", self._rows(partition, "skip", maxPartitionBytes=size), whole)
            last_ms = BASE_TIMESTAMP_MS + partition.end_offset
            for time_ms in {self._rng.randint(BASE_TIMESTAMP_MS, last_ms) for _ in range(3)}:
                self._check_time(partition, time_ms, whole)
            if self.scene.kind not in (DUPLICATE, TWO_CLUSTERS) and sent is not None:
                here = sent.get((partition.topic, partition.number), [])
                dumped = [record for _, record in outputs.dumped_json(partition.path)]
                wanted = [(one.timestamp_ms, one.key, one.value) for one in dumped if not one.is_control]
                self._same(partition, "replay", here, wanted)
        return self.faults

    def check_copies(self) -> list[str]:
        """Compare the readers where all damages are copies of segments: each record is given once."""
        sent = self._replayed()
        for partition in self.scene.partitions:
            if not any(partition.path.glob("*.log")):
                continue
            written = [
                (one.offset, one.timestamp_ms, one.key, one.value, one.is_control)
                for _, one in outputs.dumped_json(partition.path)
            ]
            offsets = [row[0] for row in written]
            if len(set(offsets)) < len(offsets):
                self.faults.append(f"{partition.name}: dump-log gives offsets twice: {offsets}")
            self._same(partition, "Spark", self._rows(partition, "fail"), written)
            self._same(partition, "Spark in splits", self._rows(partition, "skip", maxPartitionBytes="400"), written)
            if self.scene.kind not in (DUPLICATE, TWO_CLUSTERS) and sent is not None:
                here = sent.get((partition.topic, partition.number), [])
                self._same(partition, "replay", here, [row[1:4] for row in written if not row[4]])
        return self.faults

    def _same(self, partition: PartitionModel, what: str, found: object, wanted: list[Row] | list[tuple[object, ...]]) -> None:
        if found != wanted:
            words = f"{len(found)} rows" if isinstance(found, list) else found
            self.faults.append(f"{partition.path.parent.name}/{partition.name}: {what}: {words} of {len(wanted)}")

    def _rows(self, partition: PartitionModel, on_corrupt: str, **options: str) -> list[Row] | str:
        """The rows in the order of the log, or the sentence of an error."""
        every = {"includeControl": "true", "includeBelowLogStart": "true", "stopAtHighWatermark": "false", **options}
        try:
            found = rows_of(partition.path, onCorrupt=on_corrupt, failOnDataLoss="false", **every)
        except (PlanError, CorruptLogError) as error:
            return str(error)
        return [
            (one["offset"], round(one["timestamp"].timestamp() * 1000), one["key"], one["value"], one["isControl"])
            for one in found
        ]

    def _check_time(self, partition: PartitionModel, time_ms: int, whole: list[Row]) -> None:
        first = min((row[0] for row in whole if row[1] >= time_ms), default=None)
        wanted = [row for row in whole if first is not None and row[0] >= first]
        options = {"startingTimestamp": str(time_ms), "startingOffsetsByTimestampStrategy": "latest"}
        self._same(partition, f"from {time_ms} on, skip", self._rows(partition, "skip", **options), wanted)
        found = self._rows(partition, "fail", **options)
        if not isinstance(found, str):
            self._same(partition, f"from {time_ms} on, fail", found, wanted)
        all_shown, shown = (outputs.dumped_json(partition.path, options=words) for words in ((), ("--time", f"{time_ms}..")))
        of_time = [one for one in all_shown if one.record.timestamp_ms >= time_ms]
        self._same(partition, f"dump-log --time {time_ms}..", shown, of_time)

    def _replayed(self) -> dict[tuple[str, int], list[tuple[object, ...]]] | None:
        """What a replay sends: timestamp, key and value by partition; None if it is refused."""
        paths = [str(directory.path) for directory in self.scene.directories]
        twice = {one.topic for one in self.scene.directories[0].partitions} & {
            one.topic for one in self.scene.directories[-1].partitions
        }
        sent: dict[tuple[str, int], list[tuple[object, ...]]] = {}
        try:
            source = DirectorySource(OsDisk(), paths, Selection(), lambda topic: True, Problems(lambda sentence: None))
            for where in source.partitions():
                stream = source.open(where, 0, [])
                rows = sent.setdefault(where, [])
                while (batch := stream.peek()) is not None:
                    stream.take()
                    batch.stamp(5, 1, 7)
                    header = check_batch(batch.data)
                    records = inflate(header.codec, batch.data[HEADER_BYTES:], limit=1 << 24)
                    for one in read_records(records, header.record_count):
                        rows.append((header.base_timestamp + one.timestamp_delta, one.key, one.value))
                stream.close()
        except (SourceError, FormatError) as error:
            if not isinstance(error, SourceError):
                self.faults.append(f"replay: {error}")
            return None
        if self.scene.kind == TWO_CLUSTERS and twice:
            self.faults.append(f"replay of {twice} of two clusters is not refused")
        return sent
