"""Protects the metadata log of a follower: it takes a leader's batches up to the first that it must not have, ends where the
leader's log ends, and begins at a fetched snapshot; what a truncation removed cannot come back behind newer records.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.log.disk.os_disk import OsDisk
from kcli.log.errors import MessageTooLargeError
from kcli.log.file_cache import FileCache
from kcli.log.wall_time import WallTime
from kcli.protocol.control_records import LEADER_CHANGE
from kcli.server.raft.messages import (
    AppendedControl,
    KRaftVersionEntry,
    LeaderChangeEntry,
    ListenerEndpoint,
    ReplicaKey,
    VoterNode,
    VotersEntry,
)
from kcli.server.raft.metadata_batches import (
    EncodedRecords,
    SnapshotBatches,
    encode_control_batch,
    encode_data_batch,
    encode_metadata_record,
    leader_change_message,
    new_record,
)
from kcli.server.raft.metadata_log import (
    MetadataLog,
    MetadataLogConfig,
    MetadataLogError,
    SnapshotId,
)
from kcli.simulator.disk import SimulatedDisk

NOW_MS = 1_700_000_000_000
LARGE = MetadataLogConfig()
REFUSALS: list[str] = []
SMALL = MetadataLogConfig(segment_bytes=200)


def opened(directory: Path, config: MetadataLogConfig = LARGE) -> MetadataLog:
    disk = OsDisk()
    return MetadataLog.open(disk, FileCache(disk), str(directory), config, WallTime(), NOW_MS, REFUSALS.append)


def data(base_offset: int, epoch: int, count: int = 1) -> bytes:
    return encode_data_batch([encode_metadata_record(new_record("NoOpRecord"))] * count, base_offset, epoch, NOW_MS)


def leader_change(base_offset: int, epoch: int) -> bytes:
    return encode_control_batch([(LEADER_CHANGE, leader_change_message(1, [1, 2], [1]))], base_offset, epoch, NOW_MS)


def filled(directory: Path, config: MetadataLogConfig = LARGE) -> MetadataLog:
    """A log with epoch 1 at offsets 0 to 9, epoch 3 from 10, epoch 4 from 15, end 20; batches of five records."""
    log = opened(directory, config)
    for base_offset, epoch in ((0, 1), (5, 1), (10, 3), (15, 4)):
        log.append(data(base_offset, epoch, 5), NOW_MS)
    return log


def with_snapshot(log: MetadataLog, snapshot: SnapshotId, contents: bytes = b"x") -> None:
    """Let the log fetch a snapshot."""
    log.begin_snapshot(snapshot)
    log.append_snapshot(snapshot, contents)
    log.name_snapshot(snapshot)
    log.finish_snapshot(snapshot)


def contents(log: MetadataLog) -> list[tuple[int, int]]:
    return [(batch.base_offset, batch.leader_epoch) for batch in log.batches(log.start_offset, log.end_offset)]


@pytest.fixture(autouse=True)
def refusals() -> list[str]:
    """What the logs of a test report."""
    REFUSALS.clear()
    return REFUSALS


def test_a_follower_takes_whole_batches_and_learns_their_control_records(tmp_path: Path, refusals: list[str]) -> None:
    """The last batch of an answer may be cut by the leader's limit; it is fetched again."""
    log = opened(tmp_path / "log")
    appended = log.append_as_follower(1, leader_change(0, 1) + data(1, 1, 2) + data(3, 1)[:-1], NOW_MS)
    assert appended == [AppendedControl(0, LeaderChangeEntry(1, (1, 2), (1,)))]
    assert log.append_as_follower(1, b"", NOW_MS) == []
    assert (log.end_offset, refusals) == (3, [])


def test_a_follower_stops_at_a_batch_of_a_later_epoch(tmp_path: Path, refusals: list[str]) -> None:
    """KAFKA-18723: such a batch was written by a leader that this node has not followed yet."""
    log = opened(tmp_path / "log")
    log.append_as_follower(1, data(0, 1) + data(1, 2) + data(2, 1), NOW_MS)
    assert (contents(log), refusals) == ([(0, 1)], [])


def test_a_follower_stops_at_damage_and_at_a_gap(tmp_path: Path, refusals: list[str]) -> None:
    """What comes before is kept; the log line names the offset, once for the same answer again and again."""
    log = opened(tmp_path / "log")
    damaged = bytearray(data(1, 1))
    damaged[-1] ^= 1
    log.append_as_follower(1, data(0, 1) + bytes(damaged), NOW_MS)
    for _ in range(3):
        log.append_as_follower(1, bytes(damaged), NOW_MS)
    log.append_as_follower(1, data(5, 1), NOW_MS)
    assert contents(log) == [(0, 1)]
    assert ["the batch of offset 1 is damaged" in line for line in refusals] == [True, False]
    assert "a batch begins at offset 5 instead of 1" in refusals[1]


def test_random_bytes_of_a_leader_are_no_records(tmp_path: Path, refusals: list[str]) -> None:
    """Nothing of them is appended, and the log takes sound records afterwards; each is reported."""
    log, rng = opened(tmp_path / "log"), random.Random(1)
    for _ in range(200):
        log.append_as_follower(1, rng.randbytes(rng.randrange(1, 300)), NOW_MS)
        # What looks like a whole batch of the right offset has random contents.
        length = rng.randrange(50, 200)
        head = bytes(8) + (length - 12).to_bytes(4, "big") + bytes(4) + b"\2"
        log.append_as_follower(1, head + rng.randbytes(length - len(head)), NOW_MS)
    assert contents(log) == []
    assert refusals
    log.append_as_follower(1, data(0, 1), NOW_MS)
    assert contents(log) == [(0, 1)]


def test_a_leader_writes_what_a_follower_reads(tmp_path: Path) -> None:
    """Control records and values of records; also those of voters, by ascending id, whose range of kraft.version may differ."""
    leader, follower = opened(tmp_path / "leader"), opened(tmp_path / "follower")
    voters = tuple(
        VoterNode(
            ReplicaKey(node_id, Uuid(bytes(15) + bytes([node_id]))), (ListenerEndpoint("C", "::1", 9093),), 0, node_id - 1
        )
        for node_id in (1, 2)
    )
    entries = [LeaderChangeEntry(1, (1, 2), (2,)), KRaftVersionEntry(1), VotersEntry(voters)]
    leader.start_epoch(3)
    assert leader.append_control(3, entries, NOW_MS) == 0
    assert leader.append_as_leader(3, EncodedRecords([new_record("NoOpRecord")] * 2), NOW_MS) == 4
    records = leader.read(0, 1_000_000)
    assert records is not None
    expected = [AppendedControl(offset, entry) for offset, entry in enumerate(entries)]
    assert follower.append_as_follower(3, records, NOW_MS) == expected == follower.control_entries()
    assert (follower.end_offset, follower.last_epoch) == (5, 3)


@pytest.mark.parametrize(
    ("epoch", "expected"), [(1, (1, 10)), (2, (1, 10)), (3, (3, 15)), (4, (4, 20)), (5, (4, 20)), (0, (0, 0))]
)
def test_the_end_of_an_epoch_is_the_start_of_the_next_one(tmp_path: Path, epoch: int, expected: tuple[int, int]) -> None:
    """Between two epochs it is the lower one; above all it is the end of the log."""
    assert filled(tmp_path / "log").end_of_epoch(epoch) == expected


def test_a_log_behind_a_snapshot_ends_earlier_epochs_at_the_snapshot(tmp_path: Path) -> None:
    """A follower of an earlier epoch learns that the logs can agree only there; the last epoch is the snapshot's."""
    log = opened(tmp_path / "log")
    with_snapshot(log, SnapshotId(10, 3))
    assert (log.last_epoch, log.start_offset, log.end_offset) == (3, 10, 10)
    assert log.end_of_epoch(3) == log.end_of_epoch(9) == (3, 10)
    log.append(data(10, 5), NOW_MS)
    assert (log.end_of_epoch(2), log.end_of_epoch(5), log.last_epoch) == ((3, 10), (5, 11), 5)


@pytest.mark.parametrize("config", [LARGE, SMALL], ids=["one segment", "small segments"])
def test_a_truncated_log_is_that_of_the_leader_also_after_a_restart(tmp_path: Path, config: MetadataLogConfig) -> None:
    """Records and epochs from the offset on are gone, later ones follow, and nothing removed is opened again."""
    log = filled(tmp_path / "log", config)
    log.truncate_to(10)
    assert (contents(log), log.last_epoch, log.end_of_epoch(4)) == ([(0, 1), (5, 1)], 1, (1, 10))
    log.truncate_to(10)  # nothing to remove
    log.append(data(10, 5), NOW_MS)
    expected = [(0, 1), (5, 1), (10, 5)]
    assert contents(log) == expected
    assert contents(opened(tmp_path / "log", config)) == expected


def test_removed_segments_are_flushed_before_what_replaces_them(tmp_path: Path) -> None:
    """Else a loss of power between two flushes could leave new records in front of the old segments."""
    log = filled(tmp_path / "log", SMALL)
    log.log.mark_flushed(log.end_offset)
    log.truncate_to(7)
    paths = log.unflushed_paths()
    assert paths[0] == log.directory
    assert paths[1].endswith(".log")
    removed = log.take_removable()
    assert removed
    assert all(path.endswith(".deleted") for path in removed)
    assert log.take_removable() == []


def test_a_log_is_not_truncated_below_its_start(tmp_path: Path) -> None:
    """The records there exist as a snapshot only, and were committed."""
    log = opened(tmp_path / "log")
    with_snapshot(log, SnapshotId(10, 3))
    with pytest.raises(MetadataLogError, match="below its start, 10"):
        log.truncate_to(9)


def test_pieces_of_a_log_are_whole_batches(tmp_path: Path) -> None:
    """At least one is read, whatever the limit; at the end there is none."""
    log = filled(tmp_path / "log")
    first = data(0, 1, 5)
    assert log.read(0, 1) == log.read(3, len(first) + 5) == first
    assert log.read(15, 1_000_000) == data(15, 4, 5)
    assert log.read(20, 1_000_000) is None


def test_a_snapshot_is_fetched_by_pieces_and_then_replaces_the_log(tmp_path: Path) -> None:
    """Only the finished file is a snapshot; an unfinished one, and one dropped, are gone at the next start."""
    leader, log = opened(tmp_path / "leader"), filled(tmp_path / "log")
    snapshot = SnapshotId(40, 6)
    leader.disk.append(leader.part_path(snapshot), bytes(range(100)))
    leader.publish_snapshot(snapshot)
    assert leader.snapshot_size(snapshot) == 100
    assert leader.snapshot_size(SnapshotId(41, 6)) is None
    assert leader.snapshot_size(SnapshotId(0, 0)) is None
    log.begin_snapshot(snapshot)
    for position in (0, 60):
        log.append_snapshot(snapshot, leader.read_snapshot(snapshot, position, 60))
    log.begin_snapshot(SnapshotId(50, 6))
    log.snapshots.insert(0, older := SnapshotId(5, 1))
    log.disk.append(log.snapshot_path(older), b"x")
    assert log.name_snapshot(snapshot) == (log.directory,)
    log.finish_snapshot(snapshot)
    assert (log.start_offset, log.end_offset, log.last_epoch, log.snapshots) == (40, 40, 6, [snapshot])
    assert log.read_snapshot(snapshot, 0, 1000) == bytes(range(100))
    again = opened(tmp_path / "log")
    assert (again.start_offset, again.snapshots) == (40, [snapshot])
    assert not [path for path in (tmp_path / "log").iterdir() if path.name.endswith((".part", ".deleted"))]


def test_a_fetched_snapshot_is_read_in_steps_before_it_is_used(tmp_path: Path) -> None:
    """A large one takes time slices; without header or footer, or with a byte that has changed, it is refused."""
    log, snapshot, made = opened(tmp_path / "log"), SnapshotId(40, 6), SnapshotBatches(6, NOW_MS)
    header, footer = made.header(NOW_MS, 0, ()), made.footer()
    records = b"".join(encode_data_batch([b"x" * 100_000], at, 6, NOW_MS) for at in range(10))

    def steps(received: bytes) -> int:
        log.begin_snapshot(snapshot)
        log.append_snapshot(snapshot, received)
        return sum(1 for _ in log.check_snapshot(snapshot))

    assert steps(header + records + footer) == 3
    assert steps(header + footer) == 0
    for damaged in (
        b"",
        records + footer,
        header + records,
        header + records + footer[:-1],
        header + records[:-1] + b"y" + footer,
    ):
        with pytest.raises(MetadataLogError, match=r"00000000000000000040-0000000006-1\.checkpoint\.part: "):
            steps(damaged)


def test_a_leader_appends_no_batch_above_8_mib(tmp_path: Path) -> None:
    """As in Kafka; a follower whose segments have the smallest size could not append it, either."""
    log = filled(tmp_path / "m")
    value = "x" * 32_000
    records = [new_record("ConfigRecord", resource_type=2, resource_name="t", name=f"n{at}", value=value) for at in range(270)]
    with pytest.raises(MessageTooLargeError, match="the largest has 8388608"):
        log.append_as_leader(4, EncodedRecords(records), NOW_MS)
    assert log.end_offset == 20
    assert log.append_as_leader(4, EncodedRecords(records[:250]), NOW_MS) == 20 + 249


def test_a_new_directory_is_there_after_a_loss_of_power() -> None:
    """The quorum-state in it, flushed with its directory, has the first votes, before any record: a voter voted twice in an
    epoch whose directory was lost. Also if the process that made the directory was killed."""
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("/data")
    disk.flush("/")
    disk.make_directory("/data/log")
    MetadataLog.open(disk, FileCache(disk), "/data/log", LARGE, WallTime(), NOW_MS)
    disk.write_file("/data/log/quorum-state", b"a vote")
    for path in ("/data/log/quorum-state", "/data/log"):
        disk.flush(path)
    disk.kill()
    disk.lose_power(random.Random(2))
    assert disk.read_file("/data/log/quorum-state", 100) == b"a vote"
