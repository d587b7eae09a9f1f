"""Protects the leader epochs' rules, which decide where two replicas part (expectations: Kafka's LeaderEpochFileCache)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.checkpoint import EpochStart
from kcli.format.primitives import CorruptCheckpointError, FormatError
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache, load_leader_epochs


def cache(*entries: tuple[int, int]) -> LeaderEpochFileCache:
    return LeaderEpochFileCache(EpochStart(*entry) for entry in entries)


def rows(found: LeaderEpochFileCache) -> list[tuple[int, int]]:
    return [tuple(entry) for entry in found.entries]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        ((3, 40), [(0, 0), (2, 20), (3, 40)]),
        ((2, 30), [(0, 0), (2, 20)]),  # the same epoch, later: known already
        ((2, 10), [(0, 0), (2, 10)]),  # the same epoch, earlier: it moves
        ((1, 30), [(0, 0), (1, 30)]),  # a lower epoch takes the higher ones away
        ((5, 0), [(5, 0)]),  # at the start of all: nothing else was written
    ],
)
def test_assigning_keeps_epochs_and_starts_rising(entry: tuple[int, int], wanted: list[tuple[int, int]]) -> None:
    """Entries that the new one contradicts go."""
    found = cache((0, 0), (2, 20))
    found.assign(*entry)
    assert rows(found) == wanted


def test_a_file_out_of_order_is_read_entry_by_entry() -> None:
    """As Kafka reads it: later lines win."""
    assert rows(cache((0, 0), (5, 50), (3, 10))) == [(0, 0), (3, 10)]


def test_truncation_from_either_end() -> None:
    """An epoch that begins at the end is none yet; the one that the start lies in begins there."""
    found = cache((0, 0), (2, 20), (3, 40))
    found.truncate_from_end(-1)
    found.truncate_from_start(-1)
    assert rows(found) == [(0, 0), (2, 20), (3, 40)]
    found.truncate_from_end(40)
    assert rows(found) == [(0, 0), (2, 20)]
    found.truncate_from_start(25)
    assert rows(found) == [(2, 25)]


def test_what_a_follower_asks() -> None:
    """OffsetForLeaderEpoch: the end of an epoch is the start of the next that is known."""
    found = cache((2, 20), (5, 50))
    assert found.end_offset_for(5, 99) == (5, 99)
    assert found.end_offset_for(3, 99) == (2, 50)
    assert found.end_offset_for(1, 99) == (1, 20)
    assert found.end_offset_for(6, 99) == (-1, -1)
    assert found.end_offset_for(-1, 99) == (-1, -1)
    assert [found.epoch_for_offset(offset) for offset in (19, 20, 49, 50)] == [None, 2, 2, 5]


def test_the_file_follows_every_change(tmp_path: Path) -> None:
    """A missing file is created, as Kafka does; what does not change is not written."""
    found = load_leader_epochs(OsDisk(), str(tmp_path))
    path = tmp_path / "leader-epoch-checkpoint"
    assert path.read_bytes() == b""
    found.assign(4, 7)
    assert path.read_bytes() == b"0\n1\n4 7\n"
    found.assign(4, 9)
    assert path.read_bytes() == b"0\n1\n4 7\n"
    found.clear()
    assert path.read_bytes() == b"0\n0\n"
    path.write_bytes(b"0\n2\n0 0\n")
    with pytest.raises(CorruptCheckpointError):
        load_leader_epochs(OsDisk(), str(tmp_path))
    path.write_bytes(b"0\n1\n0 -5\n")
    with pytest.raises(FormatError, match="negative"):
        load_leader_epochs(OsDisk(), str(tmp_path))


def test_an_epoch_is_written_with_its_first_record(tmp_path: Path) -> None:
    """A leader's epoch is known at once; its file is only written when there is a record of it, and follows a move."""
    cache = load_leader_epochs(OsDisk(), str(tmp_path))
    path = tmp_path / "leader-epoch-checkpoint"
    cache.assign(3, 0, is_written=False)
    assert cache.latest_epoch == 3 and cache.written_epoch is None and path.read_bytes() == b""
    cache.assign(3, 0)
    assert cache.written_epoch == 3 and path.read_text() == "0\n1\n3 0\n"
    (tmp_path / "moved").mkdir()
    cache.assign(4, 7, is_written=False)
    cache.move_to(OsDisk(), str(tmp_path / "moved"))
    cache.assign(4, 7)
    assert (tmp_path / "moved" / path.name).read_text() == "0\n2\n3 0\n4 7\n" and path.read_text() == "0\n1\n3 0\n"


def test_a_start_that_a_crash_may_bring_back_keeps_its_epochs_in_the_file(tmp_path: Path) -> None:
    """Records were deleted, and the log start's own checkpoint is written later: until then the file tells of them."""
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("0\n2\n1 0\n2 10\n")
    cache = load_leader_epochs(OsDisk(), str(tmp_path))
    cache.truncate_from_start(15, is_written=False)
    assert cache.entries == ((2, 15),)
    cache.assign(5, 15)
    assert cache.entries == ((5, 15),) and path.read_text() == "0\n3\n1 0\n2 10\n5 15\n"
    cache.truncate_from_end(12)
    assert cache.entries == () and path.read_text() == "0\n2\n1 0\n2 10\n"
    cache.assign(6, 12)
    assert cache.entries == ((6, 12),) and path.read_text() == "0\n3\n1 0\n2 10\n6 12\n"
    cache.truncate_from_start(20)
    assert path.read_text() == "0\n1\n6 20\n"


def test_the_file_begins_where_the_first_segment_does(tmp_path: Path) -> None:
    """Once segments are gone no crash can bring their records back; else the first segment would seem to be missing."""
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("0\n2\n1 0\n2 10\n")
    cache = load_leader_epochs(OsDisk(), str(tmp_path))
    cache.truncate_from_start(15, is_written=False)
    cache.segments_gone(12)
    assert cache.entries == ((2, 15),) and path.read_text() == "0\n1\n2 12\n"
    cache.segments_gone(15)
    assert path.read_text() == "0\n1\n2 15\n"
    cache.assign(3, 20)
    assert path.read_text() == "0\n2\n2 15\n3 20\n"


def test_what_waits_for_the_file_is_done_once_it_is_written(tmp_path: Path) -> None:
    """Deleted segments are kept until the file no longer tells of them."""
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("0\n1\n1 0\n")
    cache = load_leader_epochs(OsDisk(), str(tmp_path))
    cache.defer = lambda: True
    done: list[str] = []
    cache.when_written(lambda: done.append("at once"))
    cache.truncate_from_start(9, is_written=False)
    cache.segments_gone(9)
    cache.when_written(lambda: done.append("later"))
    assert cache.is_unwritten and done == ["at once"] and path.read_text() == "0\n1\n1 0\n"
    cache.catch_up()
    assert not cache.is_unwritten and done == ["at once", "later"] and path.read_text() == "0\n1\n1 9\n"
    cache.catch_up()
    assert done == ["at once", "later"]
