"""Protects what must be durable before what leaves: the table at the head of replica.py, row by row."""

from __future__ import annotations

from kcli.protocol import error_codes
from kcli.server.raft.messages import (
    NO_NODE,
    BeginQuorumEpoch,
    Election,
    ElectionStored,
    Fetch,
    FetchAnswer,
    FlushLog,
    FlushSnapshot,
    HighWatermarkMoved,
    LogFlushed,
    SnapshotFlushed,
    SnapshotId,
    StoreElection,
    Vote,
    VoteAnswer,
)
from tests.server.raft.quorum_context import (
    CLUSTER,
    Batches,
    Context,
    Entry,
    MemoryLog,
    commit_epoch,
    endpoints,
    fetch,
    grant,
    key,
    ready,
)


def test_a_vote_is_durable_before_it_is_granted() -> None:
    """The answer leaves when quorum-state is stored; a second vote of the same event order is covered by the later file."""
    node = ready("unattached")
    node.holds_disk = True
    node.forget()
    assert node.ask(Vote(CLUSTER, key(2), 3, key(1), 0, 0)) is None
    assert node.ask(Vote(CLUSTER, key(3), 4, key(1), 0, 0)) is None
    (first,) = node.effects_of(StoreElection)
    assert first.election == Election(3, NO_NODE, key(2))
    node.handle(ElectionStored(first.version))
    assert node.answered(node._request_id - 1) == VoteAnswer(error_codes.NONE, 3, NO_NODE, True)
    assert node.answered() is None
    second = node.effects_of(StoreElection)[-1]
    assert second.election == Election(4, NO_NODE, key(3))
    node.handle(ElectionStored(second.version))
    assert node.answered() == VoteAnswer(error_codes.NONE, 4, NO_NODE, True)


def test_the_own_vote_is_durable_before_others_are_asked() -> None:
    """A candidate that crashes before has asked for nothing in that epoch; pre-votes need no write."""
    node = ready("prospective")
    assert not node.effects_of(StoreElection)
    node.holds_disk = True
    send = node.sent(Vote)[0][0]
    node.forget()
    node.reply(send, VoteAnswer(error_codes.NONE, 0, NO_NODE, True))
    assert node.state[0] == "candidate"
    assert not node.sent(Vote)
    (store,) = node.effects_of(StoreElection)
    assert store.election == Election(1, NO_NODE, key(1))
    node.finish_disk()
    assert len(node.sent(Vote)) == 2


def test_the_log_for_which_votes_are_asked_is_durable() -> None:
    """After a crash the candidate begins anew in its epoch, and keeps votes that were granted for records it has lost."""
    node = ready("follower")
    send, _ = node.sent(Fetch)[-1]
    node.holds_disk = True
    node.reply(send, FetchAnswer(error_codes.NONE, 5, 2, records=Batches((Entry(5, "a", 0),))))
    (flush,) = node.effects_of(FlushLog)
    node.forget()
    while node.state[0] != "prospective":
        node.advance(1000)
    grant(node, 2)
    assert node.state[0] == "candidate"
    node.forget()
    node.handle(ElectionStored(1 << 30))
    assert not node.sent(Vote)
    node.handle(LogFlushed(flush.end_offset))
    assert [(one.end_offset, one.is_pre_vote) for _, one in node.sent(Vote)] == [(1, False)] * 2


def test_a_follower_acknowledges_what_it_has_flushed() -> None:
    """Its next Fetch, whose offset is the acknowledgement, waits for the flush; that of a broker does not."""
    for is_controller in (True, False):
        node = Context(1 if is_controller else 9, is_controller=is_controller)
        node.ask(BeginQuorumEpoch(CLUSTER, 2, 5, None, endpoints(2)))
        send, _ = node.sent(Fetch)[-1]
        node.holds_disk = True
        node.forget()
        node.reply(send, FetchAnswer(error_codes.NONE, 5, 2, records=Batches((Entry(5, "a", 0), Entry(5, "b", 0)))))
        assert node.log.end_offset == 2
        if is_controller:
            assert node.effects_of(FlushLog) == [FlushLog(2)]
            assert not node.sent(Fetch)
            node.finish_disk()
        else:
            assert not node.effects_of(FlushLog)
        assert node.sent(Fetch)[0][1].fetch_offset == 2


def test_a_fetch_that_waits_for_a_flush_does_not_outlive_its_epoch() -> None:
    """Its offset would acknowledge records that the next leader has replaced."""
    node = ready("follower")
    send, _ = node.sent(Fetch)[-1]
    node.holds_disk = True
    node.reply(send, FetchAnswer(error_codes.NONE, 5, 2, records=Batches((Entry(5, "a", 0),))))
    node.forget()
    node.ask(BeginQuorumEpoch(CLUSTER, 3, 6, key(1), endpoints(3)))
    node.finish_disk()
    assert [(one.destination.node_id, request.epoch) for one, request in node.sent(Fetch)] == [(3, 6)]


def test_a_flush_does_not_cover_what_was_written_after_a_truncation() -> None:
    """Records that take the place of truncated ones are flushed anew, though a flush of a longer log was on its way."""
    node = ready("follower")
    send, _ = node.sent(Fetch)[-1]
    node.holds_disk = True
    node.reply(send, FetchAnswer(error_codes.NONE, 5, 2, records=Batches(Entry(5, str(at), at) for at in range(10))))
    assert node.effects_of(FlushLog)[-1] == FlushLog(10)
    node.core.truncate_to(4)
    node.log.append_as_leader(6, "wxyz", 0)
    node.handle(LogFlushed(10))
    assert node.core.durable_end_offset == 4
    assert node.effects_of(FlushLog)[-1] == FlushLog(8)
    node.finish_disk()
    assert node.core.durable_end_offset == 8


def test_the_leader_counts_what_it_has_flushed() -> None:
    """A record that one follower and the leader have is committed when the leader has flushed it; two followers are enough."""
    node = ready("leader")
    commit_epoch(node)
    assert node.core.high_watermark == node.log.end_offset
    node.holds_disk = True
    node.forget()
    last = node.append("a")
    node.ask(fetch(node, 2))
    assert not node.effects_of(HighWatermarkMoved)
    node.finish_disk()
    assert node.effects_of(HighWatermarkMoved) == [HighWatermarkMoved(last + 1)]
    last = node.append("b")
    for replica in (2, 3):
        node.ask(fetch(node, replica))
    assert node.core.high_watermark == last + 1, "records may be sent before they are flushed here"


def test_the_only_voter_commits_when_both_files_are_durable() -> None:
    """Log and quorum-state are written in one go; the log alone commits nothing."""
    node = Context(1, (1,), starts=False)
    node.holds_disk = True
    node._take(node.core.start(None, node.now_ms))
    (store,), (flush,) = node.effects_of(StoreElection), node.effects_of(FlushLog)
    node.append("bootstrap")
    node.handle(LogFlushed(4))
    assert flush == FlushLog(3)
    assert not node.effects_of(HighWatermarkMoved)
    node.handle(ElectionStored(store.version))
    assert node.core.high_watermark == 4, "a flush counts to the end at which it began"


def test_a_snapshot_is_durable_before_it_replaces_the_log() -> None:
    """The part file is flushed before it gets its name, and the log's new start before the next Fetch."""
    snapshot = SnapshotId(40, 4)
    node = ready("follower", log=MemoryLog())
    node.holds_disk = True
    node.forget()
    node.core.snapshot = snapshot
    node.log.begin_snapshot(snapshot)
    node.log.append_snapshot(snapshot, "abc")
    node.core.flush_snapshot(snapshot)
    node._take(node.core.take_effects(node.now_ms))
    assert node.effects_of(FlushSnapshot) == [FlushSnapshot(snapshot)]
    assert node.log.start_offset == 0
    node.core.requests.reset()
    node.forget()
    node.handle(SnapshotFlushed(snapshot))
    assert (node.log.start_offset, node.core.high_watermark) == (40, 40)
    assert node.effects_of(FlushLog) == [FlushLog(40)]
    assert not node.sent(Fetch)
    node.handle(LogFlushed(40))
    assert node.sent(Fetch)[0][1][3:5] == (40, 4)


def test_every_message_of_a_leader_waits_for_its_election() -> None:
    """BeginQuorumEpoch leaves when quorum-state names this leader."""
    node = ready("candidate")
    node.holds_disk = True
    send = node.sent(Vote)[-1][0]
    node.forget()
    node.reply(send, VoteAnswer(error_codes.NONE, 1, NO_NODE, True))
    assert node.state[0] == "leader"
    assert not node.sent(BeginQuorumEpoch)
    node.finish_disk()
    assert len(node.sent(BeginQuorumEpoch)) == 2
    assert node.stored == Election(1, 1, None)


def test_a_copy_shares_nothing_that_changes() -> None:
    """The search copies cores: what one does is not seen in the other, and equal states have equal digests."""
    node = ready("leader")
    twin = node.core.copy(node.log, node.rng)
    before = twin.digest(node.now_ms)
    assert before == node.core.digest(node.now_ms)
    assert hash(before) == hash(node.core.digest(node.now_ms))
    node.ask(fetch(node, 2))
    after = node.core.digest(node.now_ms)
    assert after != before
    assert twin.digest(node.now_ms) == before
