"""Starts of damaged directories, without a repair: what is acknowledged can be read, and what is before the damage stays.

A case is a scene of tests.fuzz.directories whose first directory is damaged by tests.fuzz.score; most have the mark of a
clean stop, which then lies. The log manager starts, each log takes a batch, and the manager stops or is killed.

    must hold                     of each partition, in what dump-log shows afterwards
    ----------------------------  --------------------------------------------------------------------------------------
    appended records are there    the records of the batch, at the offsets that the append returned
    sound records stay            those of the batches before the first damaged byte of the log, from the log start offset on
    a refusal is an error         of kcli.log.errors or of the disk, with a sentence
"""

from __future__ import annotations

import random
from pathlib import Path

from kcli.log.errors import StorageError
from kcli.log.log_manager import LogManager
from tests.damage import NotApplicableError
from tests.fuzz import outputs, score
from tests.fuzz.directories import MARK, ONE, PartitionModel, write_scene
from tests.log.log_nodes import NOW_MS, Node, batch, crash, flush, stop

DAMAGES = (score.cut, score.cut, score.torn_sector, score.bits, score.index, score.state_file, score.lost_file, score.mark)
VALUE = b"appended after the start"
LEADER_EPOCH = 99  # above all of a scene


class DamagedStart:
    """The case of a seed; `damages` has what was done."""

    def __init__(self, parent: Path, seed: int) -> None:
        rng = self._rng = random.Random(f"start {seed}")
        scene = write_scene(parent, rng)
        while scene.kind != ONE:
            (parent := parent / "another").mkdir()
            scene = write_scene(parent, rng)
        self.directory = scene.directories[0]
        if rng.random() < 0.7:
            (self.directory.path / ".kafka_cleanshutdown").write_bytes(MARK)
        self.damages: list[str] = []
        for _ in range(rng.choice((1, 1, 2))):
            damage = rng.choice(DAMAGES)
            try:
                self.damages.append(f"{damage.__name__}: {damage(scene, rng)}")
            except NotApplicableError:
                continue
        self.before = {partition.name: sound_offsets(partition) for partition in self.directory.partitions}

    def check(self) -> list[str]:
        """Start, append, end -> what does not hold."""
        node = Node(self.directory.path, ids=False)
        try:
            manager = node.started()
        except (StorageError, OSError) as error:
            return [] if str(error) else ["the start is refused without a sentence"]
        acknowledged: dict[str, list[int]] = {}
        for (topic, number), log in sorted(manager.logs.items()):
            info = log.append_as_leader(batch(2, VALUE), LEADER_EPOCH, NOW_MS)
            acknowledged[f"{topic}-{number}"] = [info.first_offset, info.first_offset + 1]
        self._end(manager)
        faults = []
        for partition in self.directory.partitions:
            if not any(partition.path.glob("*.log")):
                continue
            shown = outputs.dumped_json(partition.path)
            read = {one.record.offset for one in shown if one.record.value == VALUE}
            if not read >= set(acknowledged.get(partition.name, ())):
                faults.append(f"{partition.name}: {acknowledged[partition.name]} were acknowledged, {sorted(read)} are there")
            if partition.name in acknowledged:
                gone = self.before[partition.name] - {one.record.offset for one in shown}
                faults += [f"{partition.name}: sound records {sorted(gone)} are gone"] if gone else []
        return faults

    def _end(self, manager: LogManager) -> None:
        flush(manager)
        if self._rng.random() < 0.5:
            stop(manager)
        else:
            crash(manager)


def sound_offsets(partition: PartitionModel) -> set[int]:
    """The offsets from the log start offset on of the records before the first damaged byte."""
    found: set[int] = set()
    for base, batches in partition.segments.items():
        log = partition.path / f"{base:020d}.log"
        data, position = log.read_bytes() if log.is_file() else b"", 0
        for one in batches:
            if not data.startswith(one.data, position):
                return found
            found |= {record.offset for record in one.records if record.offset >= partition.log_start}
            position += len(one.data)
    return found
