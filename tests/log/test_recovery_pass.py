"""Protects recovering a segment: the fast pass adds up to what taking each batch as Kafka does adds up to."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kcli.format.records import Record, encode_records
from kcli.log.disk.load_disk import LiveDisk
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.planned_disk import Change, PlannedDisk
from kcli.log.disk.port import DiskFile
from kcli.log.files.indexes import IndexSettings
from kcli.log.loading.log_loader import LoadSettings, _LogLoader, load_log
from kcli.log.loading.recovering_segment import LogRefusedError, RecoveryPass, is_torn_offset
from kcli.log.log_config import LogConfig
from kcli.log.slices import Slices
from tests.conftest import given_partition
from tests.damage import DAMAGES, NotApplicableError, damaged_copy
from tests.inspect.verified import batch, partition
from tests.log.live_logs import LiveLog, new_batch

PARTITIONS = ("transactions-0", "codec-zstd-0", "open-transaction-0")


def outcome(directory: Path, *, is_broker: bool = False) -> tuple[object, ...]:
    """What an unclean load plans and states, as plain values."""
    disk = PlannedDisk(OsDisk())
    try:
        loaded = load_log(disk, str(directory), LoadSettings(False, 0, 0, IndexSettings(1024), is_broker=is_broker))
    except LogRefusedError as error:
        return "refused", error.message, error.path, error.position
    changes = [change._replace(content=()) if isinstance(change, Change) else change for change in disk.changes()]
    contents = [disk.open_file(change.path).read_at(0, 1 << 22) for change in changes if disk.exists(change.path)]
    producers = sorted(entry.to_snapshot() for entry in loaded.producers.producers.values())
    return loaded[:5], changes, contents, producers, loaded.epochs.entries


def nothing(self: RecoveryPass, position: int) -> Slices[int]:
    """A pass that takes no batch."""
    return position
    yield


class Forgetful(dict[int, int]):
    """Keeps no next offset."""

    def __setitem__(self, base_offset: int, next_offset: int) -> None:
        """Keep nothing."""


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_recovered_segment_that_is_not_read_again_ends_where_it_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker takes the end of the log from the recovery: with every kind of damage it is what the files say afterwards."""
    source, known, begin = given_partition(name), {}, _LogLoader.__init__
    for kind in DAMAGES:
        with suppress(NotApplicableError):
            known[kind] = outcome(damaged_copy(kind, source, tmp_path / kind), is_broker=True)

    def forgetful(self: _LogLoader, *args: Any) -> None:
        begin(self, *args)
        self._next_offsets = Forgetful()

    monkeypatch.setattr(_LogLoader, "__init__", forgetful)
    assert len(known) > 50
    for kind, found in known.items():
        assert outcome(tmp_path / kind / source.name, is_broker=True) == found, kind


def test_a_recovery_reads_a_segment_once(tmp_path: Path) -> None:
    """A start of many small logs after a crash opened and read each three times."""
    opened: list[str] = []

    class CountingDisk(OsDisk):
        def open_file(self, path: str) -> DiskFile:
            opened.append(Path(path).suffix)
            return super().open_file(path)

    path = partition(tmp_path, "t-0", [batch(0), batch(1)])
    load_log(LiveDisk(CountingDisk(), str(path)), str(path), LoadSettings(is_broker=True))
    assert opened.count(".log") == 1


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_pass_changes_nothing_but_the_time(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every kind of damage, each twice: once with the pass, once batch by batch."""
    source = given_partition(name)
    fast, kinds = {}, []
    for kind in DAMAGES:
        try:
            copy = damaged_copy(kind, source, tmp_path / kind)
        except NotApplicableError:
            continue
        kinds.append((kind, copy))
        fast[kind] = outcome(copy)
    monkeypatch.setattr(RecoveryPass, "run", nothing)
    assert len(kinds) > 50
    for kind, copy in kinds:
        assert outcome(copy) == fast[kind], kind


def test_the_pass_takes_plain_batches(tmp_path: Path) -> None:
    """It does take something: a log of plain batches is taken whole."""
    from tests.log_builder import PartitionBuilder

    builder = PartitionBuilder(tmp_path / "t-0")
    for _ in range(50):
        builder.append([(b"k", random.Random(1).randbytes(100))] * 3, producer=1)
    builder.flush()
    taken = []
    run = RecoveryPass.run

    def watched(self: RecoveryPass, position: int) -> Slices[int]:
        taken.append((yield from run(self, position)))
        return taken[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecoveryPass, "run", watched)
        outcome(tmp_path / "t-0")
    assert taken == [len(builder.log)]


@pytest.mark.parametrize("interval_bytes", [0, 4096])
@pytest.mark.parametrize("written", [0, 1, 7])
def test_a_torn_offset_costs_its_batch_only(tmp_path: Path, interval_bytes: int, written: int) -> None:
    """The CRC does not cover the offset; a broker keeps what lies before such a batch, which Kafka would give up.

    Of the offset's 8 bytes the last `written` lie in the next sector, and are there.
    """
    place, last = 512 - (8 - written), batch(300)
    fill = batch(0)._replace(last_offset_delta=299)
    for size in range(300, 500):
        fill = fill._replace(records=encode_records([Record(0, 0, b"key", bytes(size))]))
        if len(fill.encode()) == place:
            break
    path = partition(tmp_path, "t-0", [fill, last])
    log = path / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    assert len(data) - len(last.encode()) == place
    data[place:512] = bytes(512 - place)
    log.write_bytes(data)
    settings = LoadSettings(indexes=IndexSettings(interval_bytes, 4096), is_broker=True)
    is_whole = written == 7  # offset 300 is all in the two last bytes
    assert load_log(LiveDisk(OsDisk()), str(path), settings).log_end_offset == (301 if is_whole else 300)
    assert log.stat().st_size == (len(data) if is_whole else place)


def test_only_a_sectors_first_bytes_make_an_offset_torn() -> None:
    """Whatever else goes back is as in Kafka: another place, another value, an offset that does not go back."""
    assert is_torn_offset(0, 5, 504) and is_torn_offset(0x34, 0x1234, 512 - 7) and is_torn_offset(0, 5, 500)
    assert not is_torn_offset(0, 5, 512) and not is_torn_offset(0, 5, 499) and not is_torn_offset(0, 5, 0)
    assert not is_torn_offset(1, 5, 504) and not is_torn_offset(5, 5, 504) and not is_torn_offset(0, 0x1234, 512 - 7)


def test_what_a_recovery_cuts_is_off_the_device_before_anything_is_appended_there(tmp_path: Path) -> None:
    """Else a power cut could mix it with what comes in its place: a batch sent again differs in its leader epoch alone."""
    live = LiveLog(tmp_path / "t-0", LogConfig())
    live.append(new_batch([b"v"] * 3))
    log_path = live.directory / f"{0:020}.log"
    sound = log_path.read_bytes()
    log_path.write_bytes(sound + sound[:70])

    class Watched(OsDisk):
        flushed: ClassVar[list[bytes]] = []

        def flush(self, path: str) -> None:
            if path == str(log_path):
                self.flushed.append(log_path.read_bytes())
            super().flush(path)

    opened = LiveLog(live.directory, LogConfig(), disk=Watched())
    assert opened.log.log_end_offset == 3
    assert Watched.flushed == [sound]


def test_an_index_that_a_recovery_overwrites_below_the_recovery_point_is_flushed_at_once(tmp_path: Path) -> None:
    """After the next roll no recovery reads the segment again: a power failure would leave old and new entries side by side."""
    config = LogConfig(index_interval_bytes=0)
    live = LiveLog(tmp_path / "t-0", config)
    for _ in range(4):
        live.append(new_batch([b"v"] * 3))
    live.log.close()
    index_path = live.directory / f"{0:020}.index"
    entries = index_path.read_bytes()
    assert len(entries) == 3 * 8
    index_path.write_bytes(entries[8:])  # as valid as the whole, and another one

    class Watched(OsDisk):
        flushed: ClassVar[list[bytes]] = []

        def flush(self, path: str) -> None:
            if path == str(index_path):
                self.flushed.append(index_path.read_bytes())
            super().flush(path)

    again = LiveLog.__new__(LiveLog)
    again.directory, again.config, again.disk = live.directory, config, Watched()
    again.files = live.files
    assert again.open(recovery_point=12).log_end_offset == 12
    assert [data[: len(entries)] for data in Watched.flushed] == [entries]
    Watched.flushed.clear()
    assert again.open(recovery_point=12).log_end_offset == 12
    assert Watched.flushed == [], "it is as it should be"
