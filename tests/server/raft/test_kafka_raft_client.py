"""Protects the raft client with one voter: nothing is committed before it is flushed, each batch is told once and in order,
epochs rise, and a directory that was left at any moment opens again.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kcli.format.kafka_uuid import ZERO_UUID
from kcli.protocol import error_codes
from kcli.protocol.control_records import KRAFT_VERSION, KRAFT_VOTERS, LEADER_CHANGE
from kcli.server.raft.kafka_raft_client import KafkaRaftClient, NotLeaderError
from kcli.server.raft.messages import ListenerEndpoint, ReplicaKey, VoterNode, Voters
from kcli.server.raft.metadata_batches import SnapshotBatches, new_record
from kcli.server.raft.metadata_log import MetadataLogError
from kcli.server.raft.startable_quorum import refusal
from kcli.state.metadata_values import Voter
from tests.server.raft.nodes import (
    PORT,
    Follower,
    Surroundings,
    formatted,
    raft_client,
    raft_config,
    started_raft,
    stop,
    voters_of,
)


def no_op() -> list[object]:
    return [new_record("NoOpRecord")]


def kinds(follower: Follower) -> list[str]:
    """What a follower was told, batch by batch: the names of control types, or of records."""
    told = []
    for batch in follower.batches:
        told += [str(record.type_id) for record in batch.control_records] or [record.STRUCT.name for record in batch.records]
    return told


def with_static_quorum(directory: Path, around: Surroundings, follower: Follower) -> tuple[Path, Voters, KafkaRaftClient]:
    """Start a node whose voters are configured, on a formatted directory -> its metadata log's directory, the voters, it."""
    metadata = directory / "__cluster_metadata-0"
    (metadata / "00000000000000000000-0000000000.checkpoint").unlink()
    voters = (VoterNode(ReplicaKey(1), (ListenerEndpoint("CONTROLLER", "127.0.0.1", 1),)),)
    raft = started_raft(directory, around, follower, static_voters=voters)
    around.run()
    return metadata, voters, raft


def stopped_after(directory: Path, appends: int) -> None:
    """Start a node, append that many records one by one, and stop it."""
    around = Surroundings()
    raft = started_raft(directory, around)
    around.run()
    for _ in range(appends):
        raft.append(no_op(), around.now_ms)
        around.run()
    stop(raft, around)


def test_the_first_epoch_begins_with_the_voters(tmp_path: Path) -> None:
    """LeaderChange with KRaftVersion and Voters; LeaderChange alone in the next epoch; with other endpoints all again."""
    directory = formatted(tmp_path / "data")
    for expected, changes in (
        ([LEADER_CHANGE, KRAFT_VERSION, KRAFT_VOTERS], {}),
        ([LEADER_CHANGE], {}),
        ([LEADER_CHANGE, KRAFT_VERSION, KRAFT_VOTERS], {"endpoints": (ListenerEndpoint("CONTROLLER", "127.0.0.1", 1),)}),
    ):
        around, follower = Surroundings(), Follower()
        raft = started_raft(directory, around, follower, **changes)
        around.run()
        assert [record.type_id for record in follower.batches[-1].control_records] == expected
        assert follower.leaders == [(1, raft.epoch)]
        assert follower.image.voters == voters_of(raft)
        stop(raft, around)
    assert raft.epoch == 3


def test_nothing_is_committed_before_the_flush(tmp_path: Path) -> None:
    """Followers hear of records when the flush of all before them has come back, and then at once."""
    around, follower = Surroundings(), Follower()
    raft = started_raft(formatted(tmp_path / "data"), around, follower)
    around.run()
    seen = len(follower.batches)
    first = raft.append(no_op(), around.now_ms)
    second = raft.append(no_op(), around.now_ms)
    assert (raft.high_watermark, len(follower.batches)) == (first, seen)
    around.finish_flush()
    assert raft.high_watermark == first + 1, "the flush began before the second append"
    assert len(follower.batches) == seen + 1
    around.run()
    assert raft.high_watermark == second + 1
    assert [batch.base_offset for batch in follower.batches[seen:]] == [first, second]


def test_a_failing_flush_ends_the_leadership(tmp_path: Path) -> None:
    """Nobody hears of the records, no more are taken, and the node is told once."""
    around, follower = Surroundings(), Follower()
    raft = started_raft(formatted(tmp_path / "data"), around, follower)
    around.run()
    seen = len(follower.batches)
    raft.append(no_op(), around.now_ms)
    around.finish_flush(OSError(5, "Input/output error"))
    assert (len(follower.batches), raft.is_leader, len(around.storage_failures)) == (seen, False, 1)
    assert follower.leaders[-1] == (-1, raft.epoch)
    assert "cannot be written" in around.lines[-1]
    with pytest.raises(NotLeaderError):
        raft.append(no_op(), around.now_ms)


def test_the_next_epoch_hears_all_of_the_log_first(tmp_path: Path) -> None:
    """A new leader is announced when the listeners have everything before its epoch; slices bring it, nothing twice."""
    directory = formatted(tmp_path / "data")
    stopped_after(directory, 700)
    around, follower = Surroundings(), Follower()
    order: list[int] = []
    follower.on_leader_change = lambda leader_id, epoch, now_ms: order.append(len(follower.batches))  # type: ignore[method-assign]
    started_raft(directory, around, follower)
    assert order == [], "nothing of the log is known to be committed yet"
    around.run()
    offsets = [batch.base_offset for batch in follower.batches[2:]]
    assert offsets == sorted(set(offsets))
    assert len(offsets) == 702
    assert order == [703]


def test_every_prefix_of_the_log_opens(tmp_path: Path) -> None:
    """A log cut at any byte, as a crash may leave it, is recovered to its whole batches, and this node leads again."""
    directory = formatted(tmp_path / "data")
    stopped_after(directory, 3)
    path = directory / "__cluster_metadata-0" / "00000000000000000000.log"
    whole = path.read_bytes()
    for size in range(0, len(whole) + 1, 7):
        for leftover in path.parent.glob("0000000000000000000*"):
            if not leftover.name.endswith(".checkpoint"):
                leftover.unlink()
        (path.parent / "leader-epoch-checkpoint").unlink(missing_ok=True)
        path.write_bytes(whole[:size])
        around, follower = Surroundings(), Follower()
        raft = started_raft(directory, around, follower)
        around.run()
        assert raft.is_leader
        assert raft.high_watermark == raft.next_offset
        offsets = [batch.base_offset for batch in follower.batches[2:]]
        assert offsets == sorted(set(offsets))
        stop(raft, around)


def test_a_quorum_state_that_was_not_renamed_does_not_count(tmp_path: Path) -> None:
    """A crash before the first flush leaves a node that begins as new; the log's epoch is never used twice."""
    directory = formatted(tmp_path / "data")
    around = Surroundings()
    started_raft(directory, around)  # nothing comes back of its flushes
    assert not (directory / "__cluster_metadata-0" / "quorum-state").exists()
    around, follower = Surroundings(), Follower()
    raft = started_raft(directory, around, follower)
    around.run()
    assert raft.epoch == 2, "the log holds the leader change of epoch 1"
    stop(raft, around)


def test_leader_epochs_come_from_the_log(tmp_path: Path) -> None:
    """leader-epoch-checkpoint is not waited for, so a power cut may leave any prefix of it: the recovery makes it anew."""
    directory = formatted(tmp_path / "data")
    for _ in range(3):
        around = Surroundings()
        raft = started_raft(directory, around)
        around.run()
        raft.append(no_op(), around.now_ms)
        around.run()
        stop(raft, around)
    entries = raft.log.log.leader_epochs.entries
    path = directory / "__cluster_metadata-0" / "leader-epoch-checkpoint"
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        raft = started_raft(directory, Surroundings())
        assert raft.log.log.leader_epochs.entries[: len(entries)] == entries


def test_a_static_quorum_keeps_its_form(tmp_path: Path) -> None:
    """Voters by configuration: kraft.version 0, quorum-state of version 0, no voters in the log."""
    around, follower, directory = Surroundings(), Follower(), formatted(tmp_path / "data")
    metadata, _, raft = with_static_quorum(directory, around, follower)
    assert raft.is_leader
    assert raft.log.latest_snapshot is None
    assert kinds(follower) == [str(LEADER_CHANGE)]
    assert b'"data_version":0' in (metadata / "quorum-state").read_bytes()
    stop(raft, around)


def test_a_static_quorum_becomes_a_dynamic_one(tmp_path: Path) -> None:
    """KRaftVersion and Voters in one batch, once; committed by a flush; in the next epoch the directory's id is checked."""
    around, follower, directory = Surroundings(), Follower(), formatted(tmp_path / "data")
    metadata, voters, raft = with_static_quorum(directory, around, follower)
    answer, appended = raft.upgrade_kraft_version(1, around.now_ms)
    assert [answer.error, *(record.type_id for record in appended)] == [error_codes.NONE, KRAFT_VERSION, KRAFT_VOTERS]
    assert raft.upgrade_kraft_version(1, around.now_ms) == (answer, [])
    assert (raft.high_watermark, raft.next_offset, follower.image.kraft_version) == (1, 3, 0)
    around.run()
    assert (raft.high_watermark, follower.image.kraft_version) == (3, 1)
    own = Voter(1, raft.config.core.local.directory_id, {"CONTROLLER": ("127.0.0.1", PORT)})
    assert follower.image.voters == voters_of(raft) == {1: own}
    assert b'"data_version":0' in (metadata / "quorum-state").read_bytes()
    stop(raft, around)
    around, follower = Surroundings(), Follower()
    raft = started_raft(directory, around, follower, static_voters=voters)
    around.run()
    assert (raft.is_leader, raft.core.history.kraft_version, follower.image.voters) == (True, 1, {1: own})
    assert kinds(follower)[-1] == str(LEADER_CHANGE)
    assert b'"data_version":1' in (metadata / "quorum-state").read_bytes()
    stop(raft, around)
    raft = started_raft(directory, Surroundings(), static_voters=voters, local=ReplicaKey(1))
    assert not raft.is_leader
    assert raft.upgrade_kraft_version(2, around.now_ms)[0].error == error_codes.NOT_LEADER_OR_FOLLOWER


def test_a_node_that_is_not_the_only_voter_waits(tmp_path: Path) -> None:
    """Another voter, or another directory than the voter's: no leader, a sentence that says who votes, nothing appended."""
    directory = formatted(tmp_path / "data")
    for changes, sentence in (
        ({"local": ReplicaKey(1)}, r"voter 1 .* has the directory id .* meta\.properties states"),
        ({"local": ReplicaKey(2)}, r"voter 1 .* has the address .* also this node's, and node\.id is 2"),
    ):
        around = Surroundings()
        raft = started_raft(directory, around, **changes)
        around.run()
        assert (raft.is_leader, raft.leader_id, raft.next_offset) == (False, -1, 0)
        assert re.search(sentence, refusal(raft, is_controller=True) or "")
        with pytest.raises(NotLeaderError):
            raft.append(no_op(), around.now_ms)


def test_a_log_without_the_snapshot_below_it_is_refused(tmp_path: Path) -> None:
    """What lies below the log's start is known from a snapshot alone."""
    directory = formatted(tmp_path / "data")
    metadata = directory / "__cluster_metadata-0"
    (metadata / "00000000000000000000-0000000000.checkpoint").unlink()
    (metadata / "00000000000000000005.log").write_bytes(b"")
    around = Surroundings()
    raft = raft_client(raft_config(directory), around)
    with pytest.raises(MetadataLogError, match="no snapshot of the records below"):
        raft.start(around.now_ms)


def test_a_snapshot_without_its_footer_is_refused(tmp_path: Path) -> None:
    """It is cut off: the topics that it lacks would be deleted."""
    directory = formatted(tmp_path / "data")
    snapshot, topic = SnapshotBatches(leader_epoch=1, now_ms=0), new_record("TopicRecord", name="t", topic_id=ZERO_UUID)
    data = b"".join([snapshot.header(0, 0, ()), *snapshot.batches([topic])])
    (directory / "__cluster_metadata-0" / "00000000000000000005-0000000001.checkpoint").write_bytes(data)
    around = Surroundings()
    with pytest.raises(MetadataLogError, match=r"00000000000000000005-0000000001\.checkpoint has no footer"):
        started_raft(directory, around, Follower())
        around.run()
