"""Protects the main loop of `--output kafka`: each file by the suffix of its name, nothing that is wrong with one keeps the
others from being shown, and damage is told and counted. (Goldens: test_kafka_text.)"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from kcli.inspect.dumping.kafka_text import KafkaDumpOptions, dump_as_kafka
from kcli.log.disk.os_disk import OsDisk, OsFile
from tests.inspect.verified import batch, entry, partition

LOG = f"{0:020d}.log"


class Dumped(NamedTuple):
    """What went where."""

    out: str
    told: list[str]
    is_sound: bool


def dump(*paths: Path | str, disk: OsDisk | None = None, **options: object) -> Dumped:
    out, told = bytearray(), []
    chosen = KafkaDumpOptions(print_data_log=True)._replace(**options)  # type: ignore[arg-type]
    sound = dump_as_kafka(disk or OsDisk(), map(str, paths), chosen, out.extend, told.append, lambda path: f"/absolute{path}")
    return Dumped(out.decode(), told, sound)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return partition(tmp_path, "t-0", [batch(0, 2), batch(2)], snapshots={3: [entry(7, 1, 1)]})


def test_each_suffix_has_its_printer(logs: Path) -> None:
    """In the order given, each under its name; what Kafka does not know is ignored in its words, and no damage."""
    names = [
        LOG,
        f"{0:020d}.index",
        f"{0:020d}.timeindex",
        f"{3:020d}.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    dumped = dump(*(logs / name for name in names))
    assert re.findall(r"^Dumping (.*)$", dumped.out, re.M) == [str(logs / name) for name in names]
    assert "Log starting offset: 0\n" in dumped.out and dumped.out.count("| offset: ") == 3
    assert "offset: 2 position: " in dumped.out and "timestamp: " in dumped.out and "producerId: 7 " in dumped.out
    assert dumped.told == [f"Ignoring unknown file {logs / name}" for name in names[-2:]]
    assert dumped.is_sound


@pytest.mark.parametrize("name", ["a.log", "99999999999999999999.log", "x.index", "-.checkpoint", "1-2.checkpoint"])
def test_names_that_kafka_does_not_open(logs: Path, name: str) -> None:
    """It is told, it counts, and the file is shown all the same."""
    bad = logs / name
    bad.write_bytes((logs / LOG).read_bytes() if not name.endswith("index") else (logs / f"{0:020d}.index").read_bytes())
    dumped = dump(bad, logs / LOG)
    assert not dumped.is_sound and f"kcli: {bad}: its name" in dumped.told[0]
    assert dumped.out.count("| offset: ") == (3 if name.endswith("index") else 6)


def test_names_of_snapshots(tmp_path: Path) -> None:
    """A snapshot of the metadata has its end in its name; the bootstrap file has not."""
    for name, title in (
        ("00000000000000000012-0000000003.checkpoint", "Snapshot end offset: 12, epoch: 3\n"),
        ("bootstrap.checkpoint", "KRaft bootstrap snapshot\n"),
    ):
        (tmp_path / name).write_bytes(batch(0).encode())
        dumped = dump(tmp_path / name)
        assert f"Dumping {tmp_path / name}\n{title}baseOffset: 0 " in dumped.out and dumped.is_sound


class Refusing(OsDisk):
    """Lets nobody open files of one name."""

    def open_file(self, path: str) -> OsFile:
        if path.endswith("/u-0/" + LOG):
            raise PermissionError(13, "Permission denied", path)
        return super().open_file(path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Told with its name; the files before and behind it are shown."""
    paths = [partition(tmp_path, name, [batch(0)]) / LOG for name in ("t-0", "u-0", "v-0")]
    dumped = dump(*paths, tmp_path / "missing" / LOG, disk=Refusing())
    assert dumped.told == [
        f"kcli: {paths[1]}: cannot be read: Permission denied",
        f"kcli: {tmp_path / 'missing' / LOG}: there is no such file or directory",
    ]
    assert dumped.out.count("| offset: 0 ") == 2 and not dumped.is_sound


def test_damage_goes_on_with_the_next_batch_and_file(tmp_path: Path) -> None:
    """A wrong CRC is shown as Kafka shows it; garbage is told with its byte; sound batches come, of this file and the next."""
    flipped = bytearray(batch(1).encode())
    flipped[70] ^= 1
    first = partition(tmp_path, "t-0", [batch(0), bytes(flipped), b"garbage " * 20, batch(3)]) / LOG
    second = partition(tmp_path, "u-0", [batch(0)]) / LOG
    dumped = dump(first, second)
    assert "baseOffset: 1 " in dumped.out and "isvalid: false" in dumped.out
    assert re.findall(r"^baseOffset: (\d+)", dumped.out, re.M) == ["0", "1", "3", "0"]
    garbage_at = len(batch(0).encode()) + len(flipped)
    assert any(f"{first}: byte {garbage_at}: " in line and "continuing at byte" in line for line in dumped.told)
    assert not dumped.is_sound


def test_the_summary_stands_at_the_end(tmp_path: Path) -> None:
    """Offsets that do not follow one another, by the absolute path, as Kafka prints them."""
    path = partition(tmp_path, "t-0", [batch(0), batch(5)]) / LOG
    assert dump(path).told == [f"Non-consecutive offsets in /absolute{path}", "  0 is followed by 5"]


@pytest.mark.parametrize("max_bytes", range(0, 200, 7))
def test_max_bytes(logs: Path, max_bytes: int) -> None:
    """Only batches that end within so many bytes; what is not asked for is no damage."""
    first = len(batch(0, 2).encode())
    dumped = dump(logs / LOG, max_bytes=max_bytes)
    assert dumped.out.count("baseOffset: ") == (max_bytes >= first) + (max_bytes >= first + len(batch(2).encode()))
    assert dumped.is_sound


def test_a_writer_that_fails_is_not_the_files_fault(logs: Path) -> None:
    """What `write` raises ends the run, and is told of no file."""

    class Gone(Exception):
        pass

    def write(view: memoryview) -> None:
        raise Gone

    told: list[str] = []
    with pytest.raises(Gone):
        dump_as_kafka(OsDisk(), [str(logs / LOG)], KafkaDumpOptions(), write, told.append, str)
    assert not told
