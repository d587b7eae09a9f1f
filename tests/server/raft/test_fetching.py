"""Protects Fetch and FetchSnapshot: every answer of a leader, and what a follower does with every answer."""

from __future__ import annotations

import random

import pytest

from kcli.protocol import error_codes
from kcli.server.raft.messages import (
    BOOTSTRAP_SNAPSHOT_ID,
    HIGH_WATERMARK_NOT_SENT,
    NO_NODE,
    AnswerArrived,
    BeginQuorumEpoch,
    Destination,
    Election,
    ElectionStored,
    EpochEnd,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    FetchSnapshotAnswer,
    HighWatermarkMoved,
    KRaftVersionEntry,
    LogTruncated,
    ReplicaKey,
    Report,
    RequestFailed,
    SnapshotFlushed,
    SnapshotId,
    SnapshotLoaded,
    StoreElection,
    VotersEntry,
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
    key,
    ready,
    voter,
)

SNAPSHOT = SnapshotId(10, 2)


def log_with_snapshot(start: int = 10) -> MemoryLog:
    """Records from `start` on, of epoch 2 below offset 13, then of epoch 4; a snapshot ends at offset 10."""
    voters = (KRaftVersionEntry(1), VotersEntry(tuple(map(voter, (1, 2, 3)))))
    log = MemoryLog(snapshots={SNAPSHOT: (*voters, *"abcdefgh")})
    log.start_offset = start
    log.entries = [Entry(2 if at < 13 else 4, str(at), at) for at in range(start, 16)]
    return log


def leader(**settings: object) -> Context:
    """The leader of epoch 5 with the log above, and LeaderChange at offset 16."""
    node = ready("leader", log=log_with_snapshot(), stored=Election(4), **settings)
    assert (node.core.quorum.epoch, node.log.end_offset) == (5, 17)
    return node


def ask(node: Context, **changes: object) -> FetchAnswer:
    answer = node.ask(fetch(node, 2)._replace(**changes))  # type: ignore[arg-type]
    assert isinstance(answer, FetchAnswer)
    return answer


# ------------------------------------------------------------------------------------------------------------ the leader


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"cluster_id": "other", "epoch": 1}, error_codes.INCONSISTENT_CLUSTER_ID),
        ({"max_wait_ms": -1}, error_codes.INVALID_REQUEST),
        ({"fetch_offset": -1}, error_codes.INVALID_REQUEST),
        ({"last_fetched_epoch": -1}, error_codes.INVALID_REQUEST),
        ({"last_fetched_epoch": 6}, error_codes.INVALID_REQUEST),
        ({"epoch": 4, "last_fetched_epoch": 4}, error_codes.FENCED_LEADER_EPOCH),
        ({"epoch": 6}, error_codes.UNKNOWN_LEADER_EPOCH),
        ({"replica": key(1)}, error_codes.UNKNOWN_SERVER_ERROR),
        ({"cluster_id": None}, error_codes.NONE),
        ({"replica": ReplicaKey(-1)}, error_codes.NONE),
    ],
)
def test_fetches_that_a_leader_refuses(changes: dict[str, object], error: int) -> None:
    """The errors in Kafka's order, each with epoch and leader except for another cluster; a replica without an id is served."""
    answer = ask(leader(), **changes)
    assert answer.error == error
    assert answer[1:4] == ((-1, NO_NODE, ()) if error == 104 else (5, 1, endpoints(1)))
    assert answer.records is None


@pytest.mark.parametrize("role", ["unattached", "prospective", "candidate", "follower", "resigned"])
def test_only_the_leader_serves(role: str) -> None:
    """All others name the leader that they know; one that shuts down is not available."""
    node = ready(role)
    known = 2 if role == "follower" else 1 if role == "resigned" else NO_NODE
    answer = node.ask(Fetch(CLUSTER, key(3), node.core.quorum.epoch, 0, 0))
    assert isinstance(answer, FetchAnswer)
    assert answer[:3] == (error_codes.NOT_LEADER_OR_FOLLOWER, node.core.quorum.epoch, known)
    answer = node.ask(FetchSnapshot(CLUSTER, key(3), node.core.quorum.epoch, SNAPSHOT, 0))
    assert isinstance(answer, FetchSnapshotAnswer)
    assert answer[:3] == (error_codes.NOT_LEADER_OR_FOLLOWER, node.core.quorum.epoch, known)


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [
        (0, 0, SNAPSHOT),
        (9, 2, SNAPSHOT),
        (10, 1, SNAPSHOT),
        (10, 2, None),
        (12, 1, SNAPSHOT),
        (12, 2, None),
        (13, 2, None),
        (14, 2, EpochEnd(2, 13)),
        (14, 3, EpochEnd(2, 13)),
        (16, 4, None),
        (17, 4, EpochEnd(4, 16)),
        (17, 5, None),
        (18, 5, EpochEnd(5, 17)),
    ],
)
def test_what_a_follower_gets(offset: int, epoch: int, expected: SnapshotId | EpochEnd | None) -> None:
    """Records, the end of the epoch that both have, or the latest snapshot (RaftLog.validateOffsetAndEpoch)."""
    node = leader()
    answer = ask(node, fetch_offset=offset, last_fetched_epoch=epoch)
    assert answer.error == error_codes.NONE
    assert answer.log_start_offset == 10
    assert answer.snapshot == (expected if isinstance(expected, SnapshotId) else None)
    assert answer.diverging == (expected if isinstance(expected, EpochEnd) else None)
    if expected is None:
        assert (answer.records or ()) == tuple(node.log.entries[offset - 10 :])
    else:
        assert answer.records is None
        assert node.core.quorum.leader is not None
        assert node.core.quorum.leader.voters[2].end_offset == -1, "neither is counted"


def test_offset_0_gets_a_snapshot_though_the_log_has_it() -> None:
    """The records below a snapshot may be gone at any time; 0-0.checkpoint is never sent."""
    node = ready("leader", log=log_with_snapshot(start=0), stored=Election(4))
    assert ask(node, fetch_offset=0, last_fetched_epoch=0).snapshot == SNAPSHOT
    assert ask(node, fetch_offset=1, last_fetched_epoch=2).records
    node = ready("leader")
    assert node.log.latest_snapshot == BOOTSTRAP_SNAPSHOT_ID
    answer = ask(node, fetch_offset=0, last_fetched_epoch=0)
    assert answer.snapshot is None
    assert len(answer.records or ()) == 3


def test_the_bytes_of_a_fetch() -> None:
    """At least one batch, complete batches, up to the limit; all of them if it is high."""
    node = leader()
    base = node.log.end_offset
    node.append("a", "b", "c")
    node.append("d", "e")
    for max_bytes, count in ((0, 3), (1, 3), (3, 3), (4, 5), (100, 5)):
        answer = ask(node, fetch_offset=base, last_fetched_epoch=5, max_bytes=max_bytes)
        assert len(answer.records or ()) == count
    settings = ready("follower", fetch_max_bytes=77, fetch_max_wait_ms=5)
    assert settings.sent(Fetch)[-1][1][6:] == (5, 77)


def test_a_fetch_waits() -> None:
    """For an append or a move of the high watermark; at its deadline it gets what was known when it came."""
    node = leader()
    commit_epoch(node, 2, 3)
    last = node.core.high_watermark
    for change in ("append", "commit", "time", "resignation"):
        wait = fetch(node, 9, max_wait_ms=500, high_watermark=node.core.high_watermark)
        assert node.ask(wait) is None, change
        waiting = node._request_id
        if change == "append":
            node.append("a")
            answer = node.answered(waiting)
            assert isinstance(answer, FetchAnswer)
            assert (len(answer.records or ()), answer.high_watermark) == (1, last)
        elif change == "commit":
            node.ask(fetch(node, 3))
            answer = node.answered(waiting)
            assert isinstance(answer, FetchAnswer)
            assert (answer.records, answer.high_watermark) == (None, last + 1)
        elif change == "time":
            node.advance(499)
            assert node.answered(waiting) is None
            node.advance(1)
            answer = node.answered(waiting)
            assert isinstance(answer, FetchAnswer)
            assert (answer.error, answer.records) == (error_codes.NONE, None)
        else:
            node.ask(BeginQuorumEpoch(CLUSTER, 3, 9, None, endpoints(3)))
            assert node.answered(waiting) == FetchAnswer(error_codes.NOT_LEADER_OR_FOLLOWER, 9, 3, endpoints(3))


@pytest.mark.parametrize(
    ("known", "is_committed", "waits"),
    [
        (HIGH_WATERMARK_NOT_SENT, True, True),
        (-1, False, True),
        (-1, True, False),
        (16, True, False),
        (17, True, True),
        (18, True, True),
    ],
)
def test_the_high_watermark_in_a_fetch(known: int, is_committed: bool, waits: bool) -> None:
    """A follower that does not know the leader's high watermark is answered at once (KIP-1166); versions without it wait."""
    node = leader()
    if is_committed:
        commit_epoch(node, 2)
    assert (node.ask(fetch(node, 9, max_wait_ms=500, high_watermark=known)) is None) is waits


def test_commits() -> None:
    """Nothing of an earlier epoch is committed before LeaderChange; then the median of the ends, which never falls."""
    node = leader()
    node.ask(fetch(node, 2, 16))
    assert node.core.high_watermark == 10, "the snapshot's; offset 16 is the start of the epoch"
    node.append("a")
    node.ask(fetch(node, 2, 17))
    assert node.core.high_watermark == 17
    node.ask(fetch(node, 2, 12))
    assert node.core.high_watermark == 17
    node.ask(fetch(node, 3, 18))
    assert node.effects_of(HighWatermarkMoved)[-1] == HighWatermarkMoved(18)
    node.append("b")
    node.ask(fetch(node, 9))
    node.ask(fetch(node, 2)._replace(replica=ReplicaKey(2, key(9).directory_id)))
    assert node.core.high_watermark == 18, "an observer does not count, nor another disk of a voter"


def test_fetch_snapshot_as_leader() -> None:
    """The errors in Kafka's order, then parts of any size; check quorum counts them."""
    node = leader()

    def part(**changes: object) -> FetchSnapshotAnswer:
        request = FetchSnapshot(CLUSTER, key(2), 5, SNAPSHOT, 0)._replace(**changes)  # type: ignore[arg-type]
        answer = node.ask(request)
        assert isinstance(answer, FetchSnapshotAnswer)
        return answer

    assert part(cluster_id="other")[:3] == (error_codes.INCONSISTENT_CLUSTER_ID, -1, NO_NODE)
    assert part(epoch=4)[:3] == (error_codes.FENCED_LEADER_EPOCH, 5, 1)
    assert part(epoch=6).error == error_codes.UNKNOWN_LEADER_EPOCH
    assert part(snapshot=SnapshotId(11, 2)).error == error_codes.SNAPSHOT_NOT_FOUND
    assert part(snapshot=BOOTSTRAP_SNAPSHOT_ID).error == error_codes.SNAPSHOT_NOT_FOUND
    for position in (-1, 10, 11):
        assert part(position=position).error == error_codes.POSITION_OUT_OF_RANGE
    assert part(cluster_id=None)[4:7] == (SNAPSHOT, 10, 0)
    whole = part().data
    assert whole is not None
    assert (part(max_bytes=4).data, part(position=4).data) == (tuple(whole)[:4], tuple(whole)[4:])  # type: ignore[arg-type]
    for _ in range(4):
        node.advance(2000)
        part()
    assert node.state[0] == "leader"
    node.advance(3000)
    assert node.state[0] == "resigned"


# ---------------------------------------------------------------------------------------------------------- the follower


def answered(node: Context, **fields: object) -> None:
    """Answer the last Fetch as leader 2 of epoch 5."""
    send = node.sent(Fetch)[-1][0]
    node.reply(send, FetchAnswer(error_codes.NONE, 5, 2, endpoints(2))._replace(**fields))  # type: ignore[arg-type]


def follower(**settings: object) -> Context:
    """A follower in epoch 5 whose log has offsets 10 to 15 behind a snapshot."""
    node = ready("follower", log=log_with_snapshot(), **settings)
    assert node.sent(Fetch)[-1][1] == Fetch(CLUSTER, key(1), 5, 16, 4, 10, 500, 1024 * 1024)
    return node


def test_a_follower_appends_and_commits() -> None:
    """Records, their control records, and the leader's high watermark up to its own end, which never falls."""
    node = follower()
    voters = VotersEntry((voter(1), voter(2)))
    answered(node, records=Batches((Entry(5, "a", 16), Entry(5, voters, 17))), high_watermark=99)
    assert (node.log.end_offset, node.core.high_watermark) == (18, 18)
    assert node.core.voters == voters.voters
    assert node.sent(Fetch)[-1][1][3:6] == (18, 5, 18)
    answered(node, high_watermark=3)
    assert node.core.high_watermark == 18
    answered(node, records=Batches((Entry(5, "b", 18), Entry(6, "c", 19))), high_watermark=-1)
    assert node.log.end_offset == 19, "batches of a later epoch are not this leader's (KAFKA-18723)"


@pytest.mark.parametrize(
    ("diverging", "end"),
    [
        (EpochEnd(2, 13), 13),
        (EpochEnd(2, 12), 12),
        (EpochEnd(2, 20), 13),
        (EpochEnd(3, 13), 13),
        (EpochEnd(4, 14), 14),
        (EpochEnd(0, 12), 12),
        (EpochEnd(4, 99), 16),
        (EpochEnd(2, 9), 16),
        (EpochEnd(1, 9), 10),
        (EpochEnd(-1, 12), 16),
        (EpochEnd(2, -1), 16),
    ],
)
def test_a_follower_truncates(diverging: EpochEnd, end: int) -> None:
    """To what both logs have in the largest epoch that both know; never below what is committed (a Kafka node ends)."""
    node = follower()
    node.forget()
    node.effects = list(node.effects)
    send = next(iter(node.core.requests._in_flight))
    node.handle(AnswerArrived(send, FetchAnswer(error_codes.NONE, 5, 2, diverging=diverging)))
    assert node.log.end_offset == end
    assert node.effects_of(LogTruncated) == ([LogTruncated(end)] if end < 16 else [])
    is_wrong = diverging in (EpochEnd(2, 9), EpochEnd(-1, 12), EpochEnd(2, -1))
    assert [report.is_fault for report in node.effects_of(Report)] == [True] * is_wrong
    assert node.core.log.end_offset == node.sent(Fetch)[-1][1].fetch_offset


def test_voters_in_truncated_records_do_not_count() -> None:
    """The voters before them do again, and the node is again what it was."""
    node = follower()
    answered(node, records=Batches((Entry(5, VotersEntry((voter(2), voter(3))), 16),)))
    assert not node.core.is_voter
    answered(node, diverging=EpochEnd(4, 16))
    assert node.core.is_voter


def test_a_follower_loads_a_snapshot() -> None:
    """In parts from the leader, without a Fetch before it is complete; then the log begins behind it, with its voters."""
    node, snapshot = follower(fetch_snapshot_max_bytes=2), SnapshotId(40, 4)
    answered(node, snapshot=snapshot)
    contents = (KRaftVersionEntry(1), VotersEntry((voter(1), voter(2))), "x")
    fetches = len(node.sent(Fetch))
    for position in (0, 2):
        send, request = node.sent(FetchSnapshot)[-1]
        assert (send.destination.node_id, request) == (2, FetchSnapshot(CLUSTER, key(1), 5, snapshot, position, 2))
        assert len(node.sent(Fetch)) == fetches
        node.advance(1500)
        data = Batches(contents[position : position + 2])  # type: ignore[arg-type]
        node.reply(send, FetchSnapshotAnswer(error_codes.NONE, 5, 2, (), snapshot, 3, position, data))
    assert node.effects_of(SnapshotLoaded) == [SnapshotLoaded(snapshot)]
    assert (node.log.start_offset, node.log.end_offset, node.core.high_watermark) == (40, 40, 40)
    assert node.core.voters == (voter(1), voter(2))
    assert node.sent(Fetch)[fetches:][0][1][3:6] == (40, 4, 40)
    answered(node, snapshot=snapshot)
    assert node.core.snapshot is None, "a snapshot that it has is not loaded again"


@pytest.mark.parametrize(
    "answer",
    [
        FetchSnapshotAnswer(error_codes.SNAPSHOT_NOT_FOUND, 5, 2, (), SnapshotId(40, 4)),
        FetchSnapshotAnswer(error_codes.POSITION_OUT_OF_RANGE, 5, 2, (), SnapshotId(40, 4)),
        FetchSnapshotAnswer(error_codes.NONE, 5, 2, (), SnapshotId(-1, 4), 3, 0, Batches()),
        FetchSnapshotAnswer(error_codes.NONE, 5, 2, (), SnapshotId(41, 4), 3, 0, Batches((Entry(1, "a", 0),))),
        FetchSnapshotAnswer(error_codes.NONE, 5, 2, (), SnapshotId(40, 4), 3, 1, Batches((Entry(1, "a", 0),))),
        FetchSnapshotAnswer(error_codes.FENCED_LEADER_EPOCH, 6, 3, endpoints(3), SnapshotId(40, 4)),
        FetchSnapshotAnswer(error_codes.NOT_LEADER_OR_FOLLOWER, 6, NO_NODE, (), SnapshotId(40, 4)),
    ],
)
def test_a_snapshot_that_is_not_completed(answer: FetchSnapshotAnswer) -> None:
    """The part file is removed and the fetch begins again, with the leader of that time; stale answers change nothing."""
    node = follower()
    answered(node, snapshot=SnapshotId(40, 4))
    send, _ = node.sent(FetchSnapshot)[-1]
    node.forget()
    node.reply(send, answer)
    assert node.log.parts == {}
    node.advance(20)
    assert node.sent(Fetch)[-1][1][3:5] == (16, 4)
    node.reply(send, answer._replace(error=error_codes.NONE, snapshot=SnapshotId(40, 4)))
    assert node.log.parts == {}


@pytest.mark.parametrize(("size", "count"), [(-1, 0), (0, 0), (3, 0), (1, 2)])
def test_a_part_of_a_snapshot_without_progress(size: int, count: int) -> None:
    """It completes nothing: the log stays as it is, and the same bytes are asked for after the backoff."""
    node, snapshot = follower(), SnapshotId(40, 4)
    answered(node, snapshot=snapshot)
    voters = VotersEntry((voter(1), voter(2)))
    for position, value in enumerate((KRaftVersionEntry(1), voters, "x")):
        send, request = node.sent(FetchSnapshot)[-1]
        node.forget()
        wrong = tuple("ab")[:count] or None
        node.reply(send, FetchSnapshotAnswer(error_codes.NONE, 5, 2, (), snapshot, size, position, wrong))
        assert (node.log.start_offset, node.log.end_offset, node.core.high_watermark) == (10, 16, 10)
        assert len(node.log.parts[snapshot]) == position
        assert [report.is_fault for report in node.effects_of(Report)] == [True]
        assert not node.sent(FetchSnapshot)
        node.reply(node.sent(Fetch)[-1][0], FetchAnswer(error_codes.NOT_LEADER_OR_FOLLOWER, 5, 2, endpoints(2)))
        node.advance(20)
        again, same = node.sent(FetchSnapshot)[-1]
        assert (again.destination.node_id, same) == (2, request)
        node.reply(again, FetchSnapshotAnswer(error_codes.NONE, 5, 2, (), snapshot, 3, position, (value,)))
    assert node.effects_of(SnapshotLoaded) == [SnapshotLoaded(snapshot)]


def test_a_snapshot_that_changes_its_size() -> None:
    """Its parts are not of one file: it is fetched again from its beginning."""
    node, snapshot = follower(), SnapshotId(40, 4)
    answered(node, snapshot=snapshot)
    for size, position in ((3, 0), (2, 1)):
        part = FetchSnapshotAnswer(error_codes.NONE, 5, 2, (), snapshot, size, position, ("x",))
        node.reply(node.sent(FetchSnapshot)[-1][0], part)
    assert (node.log.parts, node.core.snapshot, node.log.end_offset) == ({}, None, 16)
    assert "of 2 bytes" in node.effects_of(Report)[-1].text
    node.reply(node.sent(Fetch)[-1][0], FetchAnswer(error_codes.NOT_LEADER_OR_FOLLOWER, 5, 2, endpoints(2)))
    node.advance(20)
    answered(node, snapshot=snapshot)
    assert node.sent(FetchSnapshot)[-1][1].position == 0
    part = FetchSnapshotAnswer(error_codes.NONE, 5, 2, (), snapshot, 2, 0, ("x", "y"))
    node.reply(node.sent(FetchSnapshot)[-1][0], part)
    assert node.effects_of(SnapshotLoaded) == [SnapshotLoaded(snapshot)]


def test_a_snapshot_that_arrives_damaged() -> None:
    """Its log, all that this voter has, stays. The snapshot is fetched again later and later; one line names the leader."""
    node, snapshot = follower(), SnapshotId(40, 4)
    node.holds_disk = True
    part = FetchSnapshotAnswer(error_codes.NONE, 5, 2, (), snapshot, 1, 0, ("x",))
    answered(node, snapshot=snapshot)
    for backoff_ms in (20, 40, 80, 160, 320, 500, 500):
        send, request = node.sent(FetchSnapshot)[-1]
        assert request.position == 0
        node.reply(send, part)
        sent = len(node.sent(Fetch))
        node.handle(SnapshotFlushed(snapshot, "/data/40.part: no footer"))
        assert (node.log.parts, node.log.start_offset, node.log.end_offset) == ({}, 10, 16)
        node.advance(backoff_ms - 1)
        assert len(node.sent(Fetch)) == sent, "and no other voter is asked for the leader"
        node.advance(1)
        assert [send.destination.node_id for send, _ in node.sent(Fetch)[sent:]] == [2]
        answered(node, snapshot=snapshot)
    (report,) = node.effects_of(Report)
    assert report.is_fault
    assert "/data/40.part: no footer" in report.text and "leader 2" in report.text
    node.reply(node.sent(FetchSnapshot)[-1][0], part)
    node.handle(SnapshotFlushed(snapshot))
    assert (node.state, node.log.start_offset) == (("follower", 5, 2), 40)


@pytest.mark.parametrize("error", [error_codes.NONE, error_codes.SNAPSHOT_NOT_FOUND])
def test_a_snapshot_that_is_flushed_for_longer_than_the_fetch_timeout(error: int) -> None:
    """The follower asks for its last byte: so it hears from the leader, keeps what it has, and begins no election."""
    node, snapshot = follower(), SnapshotId(40, 4)
    node.holds_disk = True
    answered(node, snapshot=snapshot)
    for position in range(2):
        part = FetchSnapshotAnswer(error_codes.NONE, 5, 2, (), snapshot, 2, position, ("x",))
        node.reply(node.sent(FetchSnapshot)[-1][0], part)
    for _ in range(10):
        sent = len(node.sent(FetchSnapshot))
        node.advance(999)
        assert len(node.sent(FetchSnapshot)) == sent
        node.advance(1)
        ((send, request),) = node.sent(FetchSnapshot)[sent:]
        assert (send.destination.node_id, request) == (2, FetchSnapshot(CLUSTER, key(1), 5, snapshot, 1, 1))
        node.reply(send, FetchSnapshotAnswer(error, 5, 2, (), snapshot, 2, 1, ("x",) if error == error_codes.NONE else None))
        assert node.state == ("follower", 5, 2)
    node.handle(SnapshotFlushed(snapshot))
    assert node.log.start_offset == 40


def test_a_leader_that_is_silent_while_its_snapshot_is_flushed() -> None:
    """The election begins as always, and what was fetched goes."""
    node, snapshot = follower(), SnapshotId(40, 4)
    node.holds_disk = True
    answered(node, snapshot=snapshot)
    part = FetchSnapshotAnswer(error_codes.NONE, 5, 2, (), snapshot, 1, 0, ("x",))
    node.reply(node.sent(FetchSnapshot)[-1][0], part)
    node.advance(2000)
    assert node.state[0] == "prospective"
    node.handle(SnapshotFlushed(snapshot))
    assert node.log.start_offset == 10


def test_snapshots_that_cannot_be() -> None:
    """A snapshot below what is committed would remove it; 0-0 and negative numbers are nonsense: each is reported."""
    for snapshot in (SnapshotId(9, 2), BOOTSTRAP_SNAPSHOT_ID, SnapshotId(-1, 2), SnapshotId(40, -1)):
        node = follower()
        answered(node, snapshot=snapshot)
        assert node.core.snapshot is None
        assert [report.is_fault for report in node.effects_of(Report)] == [True]


@pytest.mark.parametrize(
    "refused",
    [
        {"diverging": EpochEnd(2, 9)},
        {"diverging": EpochEnd(-1, 12)},
        {"diverging": EpochEnd(4, 99)},
        {"snapshot": SnapshotId(9, 2)},
        {"snapshot": SNAPSHOT},
        {"records": Batches((Entry(6, "a", 16),))},
        {"epoch": 4},
        {"leader_id": 3, "endpoints": endpoints(3)},
        {"leader_id": 1, "endpoints": endpoints(1)},
    ],
)
def test_the_leader_is_asked_again_after_the_backoff(refused: dict[str, object]) -> None:
    """What cannot be used is followed by the same Fetch, and mostly the same answer: at once that would occupy both nodes."""
    node = follower()
    send = node.sent(Fetch)[-1][0]
    for _ in range(3):
        assert send.destination.node_id == 2
        node.forget()
        node.reply(send, FetchAnswer(error_codes.NONE, 5, 2, endpoints(2))._replace(**refused))  # type: ignore[arg-type]
        while node.core.requests.has_any_in_flight:
            send = node.sent(Fetch)[-1][0]
            assert send.destination.node_id == 3, "another voter is asked for the leader, as after an error"
            node.reply(send, FetchAnswer(error_codes.NOT_LEADER_OR_FOLLOWER, 5, 2, endpoints(2)))
        node.forget()
        node.advance(19)
        assert not node.effects
        node.advance(1)
        send = node.sent(Fetch)[-1][0]
    assert node.state == ("follower", 5, 2)


def test_a_snapshot_waits_for_the_one_before_that_is_being_flushed() -> None:
    """A part file of an earlier epoch goes when its flush is done; until then the leader is asked each backoff."""
    node, snapshot = follower(), SnapshotId(40, 4)
    answered(node, snapshot=snapshot)
    node.holds_disk = True
    data = Batches((Entry(1, "a", 0),))
    node.reply(node.sent(FetchSnapshot)[-1][0], FetchSnapshotAnswer(error_codes.NONE, 5, 2, (), snapshot, 1, 0, data))
    node.ask(BeginQuorumEpoch(CLUSTER, 2, 6, key(1), endpoints(2)))
    node.handle(ElectionStored(node.effects_of(StoreElection)[-1].version))
    node.forget()
    send = next(iter(node.core.requests._in_flight))
    node.handle(AnswerArrived(send, FetchAnswer(error_codes.NONE, 6, 2, snapshot=snapshot)))
    assert node.core.snapshot is None
    assert [sent.destination.node_id for sent, _ in node.sent(Fetch)] == [3], "the leader backs off"


def test_answers_of_an_earlier_role_are_ignored() -> None:
    """Records of a leader that this node does not follow any more are not appended."""
    for change in ("prospective", "follower"):
        node = follower()
        send, _ = node.sent(Fetch)[-1]
        if change == "follower":
            node.ask(BeginQuorumEpoch(CLUSTER, 3, 6, key(1), endpoints(3)))
        else:
            node.advance(2000)
        assert node.state[0] == change
        node.reply(send, FetchAnswer(error_codes.NONE, 5, 2, records=Batches((Entry(5, "a", 16),))))
        assert node.log.end_offset == 16


def test_each_answer_without_an_error_keeps_the_follower() -> None:
    """Its timer starts again with it, not with an error; without answers it is prospective after the fetch timeout."""
    node = follower()
    for _ in range(3):
        node.advance(1400)
        if node.core.requests.has_any_in_flight:
            answered(node)
    assert node.state == ("follower", 5, 2)
    node.advance(2000)
    assert node.state == ("prospective", 5, 2)


def test_where_a_node_looks_for_the_leader() -> None:
    """Bootstrap servers while no leader is known or it does not answer; then the leader; one request at a time."""
    servers = (Destination(-2, "b", 1), Destination(-3, "c", 1))
    for is_controller in (True, False):
        node = Context(9, bootstrap_servers=servers, is_controller=is_controller, retry_backoff_ms=50)
        (first,) = node.sent(Fetch)
        assert first[0].destination == servers[0]
        node.rng.value = 1
        node.forget()
        node.handle(RequestFailed(first[0].correlation_id))
        (second,) = node.sent(Fetch)
        assert second[0].destination == servers[1], "the first one backs off"
        node.forget()
        node.reply(second[0], FetchAnswer(error_codes.FENCED_LEADER_EPOCH, 5, 2, endpoints(2)))
        assert node.state == ("follower", 5, 2)
        (third,) = node.sent(Fetch)
        assert third[0].destination == Destination(2, "localhost", 9992)
        node.forget()
        node.advance(2000)
        (fourth,) = node.sent(Fetch)
        assert fourth[0].destination in servers, "the leader has not answered in time"
        node.forget()
        node.reply(fourth[0], FetchAnswer(error_codes.BROKER_NOT_AVAILABLE, 5, 2, endpoints(2)))
        node.advance(60)
        assert node.state == ("follower", 5, 2)


@pytest.mark.parametrize("error", [error_codes.BROKER_NOT_AVAILABLE, None])
def test_a_voter_whose_leader_does_not_answer_asks_a_bootstrap_server(error: int | None) -> None:
    """At once after an error and after a request timeout, while its fetch timeout goes on; then the leader again."""
    server = Destination(-2, "b", 1)
    node = ready("follower", bootstrap_servers=(server,), fetch_timeout_ms=5000, retry_backoff_ms=50)
    send, _ = node.sent(Fetch)[-1]
    assert send.destination.node_id == 2
    node.forget()
    if error is None:
        node.advance(2000)
    else:
        node.reply(send, FetchAnswer(error, 5, 2, endpoints(2)))
    ((send, _),) = node.sent(Fetch)
    assert send.destination == server
    node.advance(60)
    node.forget()
    node.reply(send, FetchAnswer(error_codes.NOT_LEADER_OR_FOLLOWER, 5, 2, endpoints(2)))
    assert [send.destination.node_id for send, _ in node.sent(Fetch)] == [2]
    assert node.state == ("follower", 5, 2)


@pytest.mark.parametrize("is_listed", [True, False])
def test_an_observer_whose_leader_is_away_asks_all_others(is_listed: bool) -> None:
    """To ask the leader first each time would take a request timeout each time; it is asked as one of the servers."""
    own = Destination(-3, "localhost", 9992) if is_listed else Destination(-3, "c", 1)
    servers = (Destination(-2, "b", 1), own)
    node = Context(9, bootstrap_servers=servers, retry_backoff_ms=50)
    node.reply(node.sent(Fetch)[-1][0], FetchAnswer(error_codes.FENCED_LEADER_EPOCH, 5, 2, endpoints(2)))
    assert node.sent(Fetch)[-1][0].destination.node_id == 2
    node.advance(2000)
    asked = []
    for node.rng.value in (0, 1, 2) * 3:
        node.advance(60)
        send, _ = node.sent(Fetch)[-1]
        asked.append(send.destination.node_id)
        node.reply(send, FetchAnswer(error_codes.NOT_LEADER_OR_FOLLOWER, 5, 2, endpoints(2)))
    assert set(asked) == ({-2, -3} if is_listed else {-2, -3, 2})
    node.advance(60)
    node.reply(node.sent(Fetch)[-1][0], FetchAnswer(error_codes.NONE, 5, 2, endpoints=endpoints(2)))
    assert node.sent(Fetch)[-1][0].destination.node_id == 2, "the leader has answered at the address of a server"


def test_a_voter_that_hears_of_the_leader_follows_it() -> None:
    """It asks bootstrap servers while it waits for its election, and fetches from the leader that one of them names."""
    server = Destination(-2, "b", 1)
    node = ready("unattached", bootstrap_servers=(server,))
    ((send, request),) = node.sent(Fetch)
    assert (send.destination, request.epoch) == (server, 0)
    node.forget()
    node.reply(send, FetchAnswer(error_codes.FENCED_LEADER_EPOCH, 5, 2, endpoints(2)))
    assert node.state == ("follower", 5, 2)
    ((send, request),) = node.sent(Fetch)
    assert (send.destination.node_id, request.epoch) == (2, 5)
    node.advance(1999)
    assert node.state == ("follower", 5, 2), "its election timeout is over"


def test_a_follower_takes_over_the_form_of_the_quorum() -> None:
    """KRaftVersion and Voters of the log count at once, before they are committed."""
    node = ready("follower", kraft_version=0, log=MemoryLog())
    assert (node.core.history.kraft_version, [one.key.node_id for one in node.core.voters]) == (0, [1, 2, 3])
    voters = VotersEntry((voter(1), voter(2)))
    answered(node, records=Batches((Entry(5, KRaftVersionEntry(1), 0), Entry(5, voters, 1))), high_watermark=0)
    assert (node.core.history.kraft_version, node.core.voters) == (1, voters.voters)
    assert node.core.high_watermark == 0


def test_an_observer_asks_the_voters_of_its_log_if_no_configured_server_helps() -> None:
    """A controller that is the only configured server, and was removed from the voters, would ask itself for ever."""
    node = Context(9, bootstrap_servers=(Destination(-2, "b", 1),), retry_backoff_ms=50)
    (first,) = node.sent(Fetch)
    node.forget()
    node.reply(first[0], FetchAnswer(error_codes.NOT_LEADER_OR_FOLLOWER, 0, NO_NODE))
    (second,) = node.sent(Fetch)
    assert second[0].destination == Destination(1, "localhost", 9991)
    node.forget()
    node.reply(second[0], FetchAnswer(error_codes.FENCED_LEADER_EPOCH, 5, 2, endpoints(2)))
    assert node.state == ("follower", 5, 2)


def test_random_logs_converge() -> None:
    """Any follower's log becomes the leader's, whatever it had before: no committed record is in question here."""
    for seed in range(60):
        rng = random.Random(seed)
        epochs = sorted(rng.choices((2, 4, 6), k=rng.randrange(12)))  # each epoch has one leader: the odd ones are theirs
        mine = [Entry(epoch, f"mine{at}", at) for at, epoch in enumerate(epochs)]
        shared = rng.randrange(len(mine) + 1)
        theirs = mine[:shared]
        first = theirs[-1].epoch + 1 if theirs else 1
        for epoch in sorted(rng.choices(range(first, 9, 2), k=rng.randrange(8))):
            theirs = [*theirs, Entry(epoch, f"theirs{len(theirs)}", len(theirs))]
        chief = ready("leader", log=MemoryLog(theirs), kraft_version=0, stored=Election(9))
        node = ready("unattached", log=MemoryLog(mine), kraft_version=0)
        epoch = chief.core.quorum.epoch
        node.ask(BeginQuorumEpoch(CLUSTER, 2, epoch, None, endpoints(2)))
        for _ in range(20):
            send, request = node.sent(Fetch)[-1]
            answer = chief.ask(request._replace(replica=key(3), max_wait_ms=0))
            assert isinstance(answer, FetchAnswer)
            node.reply(send, answer._replace(leader_id=2, endpoints=endpoints(2)))
        assert node.log.entries == chief.log.entries, seed
