"""Protects records that only an index still shows: what a .log has lost is named, also where a cleaner explains gaps."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kcli.format.file_names import DirectoryState
from kcli.format.index_entries import OffsetIndex, OffsetIndexEntry
from kcli.format.metadata_files import MetaProperties
from kcli.format.records import Record, encode_records
from kcli.inspect.description.metadata_view import ClusterTopics
from kcli.inspect.repairing.planned_partition import RepairError
from kcli.inspect.repairing.repair import CLEAN, NO_LONGER_CLEAN, LogDirectoryRepair, RootPlan
from kcli.inspect.repairing.repair_plan import PartitionPlan
from kcli.inspect.verification.directories import Root, with_sibling_topics
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import DIRECTORY_NOT_FILE, Checkpoints, PartitionDirectory, read_partition
from kcli.log.files.quarantine import Quarantine
from tests.damage.layout import flip, patch
from tests.inspect.verified import batch, codes, entry, marker, partition, root_files, verify

KEPT_BYTES = len(batch(0, 5).encode()) + len(batch(8, 5).encode())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The first of two segments of a log that a cleaner has passed; gaps between the offsets are its work."""
    path = partition(tmp_path, "t-0", [batch(0, 5), batch(8, 5), batch(15, 5)], [batch(24, 5)])
    root_files(tmp_path, recovery_point={"t-0": 29}, replication={"t-0": 29}, cleaner={"t-0": 24})
    return path / f"{0:020}.log"


def repair(root: Path, *, apply: bool = True) -> tuple[PartitionPlan, RootPlan]:
    session = LogDirectoryRepair(OsDisk(), str(root))
    found = read_partition(OsDisk(), str(root / "t-0"))
    if not apply:
        return session.plan(found), session.plan_root()
    kept = Quarantine(OsDisk(), str(root) + ".quarantine", str(root))
    return session.apply(found, kept), session.apply_root(kept)


def holes(plan: PartitionPlan) -> list[tuple[int, int | None]]:
    return [(hole.first_offset, hole.end_offset) for hole in plan.holes]


def test_a_cleaned_log_is_sound(tmp_path: Path, log: Path) -> None:
    """What the tests below find is the damage's doing."""
    assert codes(verify(tmp_path)) == set()
    assert repair(tmp_path)[1].shutdown == CLEAN


@pytest.mark.parametrize("without", [".index", ".timeindex"])
def test_a_segment_that_was_cut_between_two_batches_has_lost_what_its_indexes_show(
    tmp_path: Path, log: Path, without: str
) -> None:
    """One of the two indexes is enough; the offsets from 20 on are a gap that the cleaner left."""
    log.with_suffix(without).write_bytes(b"")
    log.write_bytes(log.read_bytes()[:KEPT_BYTES])
    assert "segment-gap" in codes(verify(tmp_path))
    plan, root = repair(tmp_path)
    assert (holes(plan), root.shutdown) == ([(13, 20)], NO_LONGER_CLEAN)
    assert "offset-hole" in codes(verify(tmp_path)), "the quarantine remembers it"
    assert holes(repair(tmp_path)[0]) == [(13, 20)]


def test_a_first_segment_of_which_only_the_indexes_are_left_is_named(tmp_path: Path, log: Path) -> None:
    """A broker removes the .log first, but renames it before: there would be a .log.deleted."""
    log.unlink()
    plan, root = repair(tmp_path)
    assert (holes(plan), root.shutdown) == ([(0, 24)], NO_LONGER_CLEAN)


def test_a_first_segment_that_a_broker_was_removing_is_not_missing(tmp_path: Path, log: Path) -> None:
    """It stopped after it had renamed the .log."""
    log.rename(log.with_name(f"{log.name}.deleted"))
    plan, root = repair(tmp_path)
    assert (holes(plan), root.shutdown) == ([], CLEAN)
    assert "segment-gap" not in codes(verify(tmp_path))
    assert repair(tmp_path)[0].changes == []


def test_a_first_segment_that_is_gone_with_its_indexes_is_missing_where_the_leader_epochs_begin_before(
    tmp_path: Path, log: Path
) -> None:
    """A cleaner keeps the name of the first segment; a broker that deletes a segment moves the first leader epoch's start."""
    for file in tmp_path.glob(f"t-0/{log.stem}.*"):
        file.unlink()
    assert "segment-gap" in codes(verify(tmp_path))
    plan, root = repair(tmp_path)
    assert (holes(plan), root.shutdown) == ([(0, 24)], NO_LONGER_CLEAN)


@pytest.mark.parametrize(("left", "end"), [(60, 7), (27, 7), (26, 3)])
def test_a_torn_header_says_how_far_the_log_reached(tmp_path: Path, left: int, end: int) -> None:
    """Its offsets were given out, and its first bytes tell which."""
    path = partition(tmp_path, "t-0", [batch(0, 3)])
    root_files(tmp_path, clean=False)
    with (path / f"{0:020}.log").open("ab") as log:
        log.write(batch(3, 4).encode()[:left])
    plan, _ = repair(tmp_path)
    assert plan.log_end_offset == end
    assert holes(plan) == ([(3, 7)] if end > 3 else [(3, None)])


@pytest.mark.parametrize("size_bytes", [0, 9])
def test_a_segment_that_was_cleaned_before_the_cleaners_checkpoint_was_written(tmp_path: Path, size_bytes: int) -> None:
    """The file that the cleaned segment replaced is still to be deleted; an empty one shows nothing: it had no records."""
    path = partition(tmp_path, "t-0", [batch(0, 5)], [batch(7, 5)], [batch(12, 5)])
    root_files(tmp_path, recovery_point={"t-0": 17}, replication={"t-0": 17})
    (path / f"{0:020}.log.deleted").write_bytes(bytes(size_bytes))
    assert ("segment-gap" in codes(verify(tmp_path))) == (size_bytes == 0)


def test_the_topics_of_another_log_directory_of_the_same_broker_count() -> None:
    """Only one of a broker's log directories has the metadata log; another broker's may be of another time."""
    topics = ClusterTopics("/a", {}, {"t": {"cleanup.policy": "compact"}}, {}, "", {})

    def root(path: str, node_id: int, topics: ClusterTopics | None) -> Root:
        checkpoints = Checkpoints({}, {}, {}, {}, [])
        return Root(path, False, True, True, checkpoints, MetaProperties(1, "c", node_id), topics)

    roots = with_sibling_topics([root("/b", 1, None), root("/a", 1, topics), root("/c", 2, None)])
    assert [one.sibling_topics is topics for one in roots] == [True, True, False]
    found = PartitionDirectory("/b/t-0", "t", 0, DirectoryState.CURRENT, True, [], [], [], [], [])
    assert [one.options(found).is_compacted for one in roots] == [True, True, False]


def test_a_wrong_offset_that_was_corrected_makes_no_offsets_missing_beyond_the_end(tmp_path: Path) -> None:
    """The log once reached 6. Its last batch, at offset 3, seemed to be at 259, with 256 offsets missing before it."""
    first = batch(0, 3)._replace(records=encode_records(Record(i, i, None, b"no key") for i in range(3)))
    path = partition(tmp_path, "t-0", [first, batch(3, 2)])
    root_files(tmp_path, clean=False, recovery_point={"t-0": 0}, replication={"t-0": 6})
    patch(path / f"{0:020}.log", len(first.encode()), struct.pack(">q", 3 + 256))
    plan, _ = repair(tmp_path)
    assert (plan.log_end_offset, holes(plan)) == (6, [(5, 6)])


def test_the_mark_of_a_clean_stop_shows_a_log_directory_also_while_it_is_set_aside(tmp_path: Path, log: Path) -> None:
    """The plan and what is carried out name the same findings that are left."""
    for path in [*tmp_path.glob("*checkpoint"), tmp_path / "meta.properties"]:
        path.unlink()
    log.with_suffix(".timeindex").write_bytes(b"\xff" * 12)
    planned, done = repair(tmp_path, apply=False), repair(tmp_path)
    assert [one.code for one in planned[1].left] == ["meta-properties-missing"]
    assert [one.code for one in done[1].left] == ["meta-properties-missing"]


def test_an_index_of_before_a_cut_does_not_cost_a_sound_batch(tmp_path: Path) -> None:
    """Bytes before a batch go: the entry of the old .index points into it, and a broker would not load the log."""
    batches = [batch(0, 2), batch(2, 8), batch(10, 2), batch(12, 5)]
    path = partition(tmp_path, "t-0", batches)
    log = path / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    sizes = [len(one.encode()) for one in batches]
    data[sizes[0] - 3] ^= 1
    data[-3] ^= 1
    log.write_bytes(data)
    log.with_suffix(".index").write_bytes(OffsetIndex.of(0, [OffsetIndexEntry(11, sum(sizes[:2]))]).encode())
    root_files(tmp_path, clean=False, replication={"t-0": 17})
    plan, _ = repair(tmp_path)
    assert (holes(plan), plan.log_end_offset) == ([(0, 2), (12, 17)], 17)


def test_a_segment_that_is_gone_is_named_also_where_the_next_one_begins_damaged(tmp_path: Path) -> None:
    """The gap ends at the name of the segment; the damaged batch in it is named by itself."""
    path = partition(tmp_path, "t-0", [batch(0, 4)], [batch(4, 8)], [batch(12, 2), batch(14, 2)])
    root_files(tmp_path, recovery_point={"t-0": 16}, replication={"t-0": 16})
    for file in path.glob(f"{4:020}.*"):
        file.unlink()
    log = path / f"{12:020}.log"
    flip(log, 70)
    plan, _ = repair(tmp_path)
    assert holes(plan) == [(4, 12), (12, 14)]


def test_a_segment_that_is_gone_is_named_also_behind_one_with_damage(tmp_path: Path) -> None:
    """The damage is in its middle: the gap behind its last batch is no part of it."""
    path = partition(tmp_path, "t-0", [batch(0, 4), batch(4, 2), batch(6, 2)], [batch(8, 4)], [batch(12, 2)])
    root_files(tmp_path, recovery_point={"t-0": 14}, replication={"t-0": 14})
    for file in path.glob(f"{8:020}.*"):
        file.unlink()
    log = path / f"{0:020}.log"
    flip(log, len(batch(0, 4).encode()) + 70)
    assert holes(repair(tmp_path)[0]) == [(4, 6), (8, 12)]


def test_a_snapshot_that_cannot_be_read_confirms_an_index(tmp_path: Path) -> None:
    """Its name says where the log ended; alone it would be no evidence, nor would the .timeindex."""
    path = partition(tmp_path, "t-0", [batch(0, 5), batch(5, 4)], snapshots={9: []})
    log = path / f"{0:020}.log"
    log.write_bytes(batch(0, 5).encode())
    log.with_suffix(".index").write_bytes(b"")
    (path / f"{9:020}.snapshot").write_bytes(b"not a snapshot")
    root_files(tmp_path)
    for name in ("recovery-point", "replication"):
        (tmp_path / f"{name}-offset-checkpoint").unlink()
    plan, root = repair(tmp_path)
    assert (holes(plan), plan.log_end_offset, root.shutdown) == ([(5, 9)], 9, NO_LONGER_CLEAN)


def test_an_entry_of_the_txnindex_may_begin_at_the_log_start(tmp_path: Path) -> None:
    """The transaction began below it; a broker that recovers the segment reads from the log start on."""
    batches = [batch(0, 5, producer=7, sequence=0, transactional=True), batch(5, 3, producer=7, sequence=5, transactional=True)]
    path = partition(tmp_path, "t-0", batches[:1], [batches[1], marker(8, 7, abort=True)], snapshots={9: [entry(7, 7, 7)]})
    root_files(tmp_path, recovery_point={"t-0": 9}, replication={"t-0": 9}, log_start={"t-0": 5})
    (path / f"{5:020}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 5, 8, 9))
    assert "txnindex-mismatch" not in codes(verify(tmp_path))
    (path / f"{5:020}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 6, 7, 9))
    assert "txnindex-mismatch" in codes(verify(tmp_path))


def test_a_symbolic_link_to_nothing_is_not_a_file_that_vanished(tmp_path: Path) -> None:
    """What depends on the file is checked all the same, and a repair leaves it to people."""
    path = partition(tmp_path, "t-0", [batch(0, 5)], [batch(5, 5)])
    root_files(tmp_path, recovery_point={"t-0": 10}, replication={"t-0": 10})
    log = path / f"{5:020}.log"
    log.rename(tmp_path / "kept")
    log.symlink_to(tmp_path / "gone")
    report = verify(tmp_path)
    assert {"file-unreadable", "records-missing"} <= codes(report)
    assert [one.message for one in report.findings if one.file == str(log)] == [
        "the file cannot be read: it is a symbolic link to a file that does not exist"
    ]
    with pytest.raises(OSError, match="symbolic link"):
        repair(tmp_path)


@pytest.mark.parametrize("name", ["partition.metadata", "leader-epoch-checkpoint", f"{0:020}.index"])
def test_a_directory_in_the_place_of_a_file(tmp_path: Path, name: str) -> None:
    """Kafka does not load the log: people have to move it away before anything else is done."""
    path = partition(tmp_path, "t-0", [batch(0, 5)])
    root_files(tmp_path, recovery_point={"t-0": 5}, replication={"t-0": 5})
    (path / name).unlink()
    (path / name).mkdir()
    found = [(one.code, one.message) for one in verify(tmp_path).findings if one.file == str(path / name)]
    assert found == [("file-unreadable", DIRECTORY_NOT_FILE)]
    assert "partition-metadata-missing" not in codes(verify(tmp_path))
    with pytest.raises(RepairError, match="move it away, then repair"):
        repair(tmp_path)


def test_verify_names_the_offsets_that_a_wrong_length_hides(tmp_path: Path) -> None:
    """The damaged batch states that it ends where a later batch begins, and its records are damaged too.

    Sound batches that it would extend over are found; damaged ones are hidden.
    """
    batches = [batch(5 * number, 5).encode() for number in range(8)]
    damaged = bytearray(batches[2])
    damaged[8:12] = struct.pack(">i", sum(map(len, batches[2:5])) - 12)
    damaged[70] ^= 0x80
    path = partition(tmp_path, "t-0", [batch(0, 5)])
    for hidden, last in (([batches[3], batches[4]], 14), ([bytes(len(one)) for one in batches[3:5]], 24)):
        (path / f"{0:020}.log").write_bytes(b"".join([*batches[:2], damaged, *hidden, *batches[5:]]))
        messages = [one.message for one in verify(path).findings]
        assert any(message.endswith(f"; no sound batch has offsets 10 to {last}") for message in messages)
