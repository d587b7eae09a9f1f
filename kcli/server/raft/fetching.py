"""Fetch and FetchSnapshot: what a leader answers, and how a follower or an observer replicates (KIP-595, 630, 1166).

    what a leader finds, in this order             answer to Fetch
    ---------------------------------------------  ------------------------------------------------------------------------
    another cluster; values that cannot be         INCONSISTENT_CLUSTER_ID; INVALID_REQUEST
    an epoch below, above its own; not the leader  FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER
    it shuts down                                  BROKER_NOT_AVAILABLE
    offset 0, and a snapshot                       the latest snapshot: the records below it may be gone at any time
    an offset or an epoch before the log           the latest snapshot
    an epoch that it does not have, or that ended  the end of its largest epoch that is not above it
    below the offset
    else                                           records up to its end, committed or not; the fetch is counted

The answer waits for records or for a high watermark above that of the request, up to the longest wait of the request. The first
Fetch of a new node has epoch 0, and it learns the leader from FENCED_LEADER_EPOCH.

A follower appends, flushes, applies the control records, and sets its high watermark to that of the leader. It asks the leader;
if the leader does not answer, or is not known, a random bootstrap server. An observer whose fetch timeout is over asks any of
these, the leader among them: to ask it first would take another request timeout each time. One request of it is on its way.

While a snapshot that was fetched is flushed and read, its last byte is asked for each half fetch timeout: the answer shows
that the leader is there, and the leader counts the request for its check-quorum. One that is damaged is fetched again after
controller.quorum.retry.backoff.ms, doubled with each time, up to a quarter of controller.quorum.fetch.timeout.ms.
"""

from __future__ import annotations

from kcli.protocol import error_codes
from kcli.server.raft.elections import cluster_error
from kcli.server.raft.leader_state import LeaderState, WaitingFetch
from kcli.server.raft.messages import (
    NO_NODE,
    NO_OFFSET,
    Destination,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    FetchSnapshotAnswer,
    SnapshotId,
    SnapshotLoaded,
)
from kcli.server.raft.quorum_state import Role
from kcli.server.raft.replica import Replica, is_real_snapshot
from kcli.server.raft.voter_set import voter_ids

# ----------------------------------------------------------------------------------------------------------- the leader


def leader_error(replica: Replica, epoch: int | None) -> int:
    """Return why a request that only the leader may answer is refused; NONE if it is not."""
    if epoch is not None and epoch < replica.quorum.epoch:
        return error_codes.FENCED_LEADER_EPOCH
    if epoch is not None and epoch > replica.quorum.epoch:
        return error_codes.UNKNOWN_LEADER_EPOCH
    if not replica.quorum.is_leader:
        return error_codes.NOT_LEADER_OR_FOLLOWER
    return error_codes.NONE if replica.shutdown_deadline_ms is None else error_codes.BROKER_NOT_AVAILABLE


def handle_fetch(replica: Replica, request_id: int, request: Fetch, now_ms: int) -> None:
    """Answer Fetch now, or let it wait."""
    error = cluster_error(replica, request.cluster_id)
    if error != error_codes.NONE:
        replica.answer(request_id, FetchAnswer(error, -1, NO_NODE))
        return
    answer = _fetch_answer(replica, request, now_ms, is_new=True)
    leader = replica.quorum.leader
    if leader is None or request.max_wait_ms == 0 or is_complete(request, answer):
        replica.answer(request_id, answer)
        return
    leader.waiting = (*leader.waiting, WaitingFetch(request_id, request, now_ms + request.max_wait_ms, answer))


def is_complete(request: Fetch, answer: FetchAnswer) -> bool:
    """Return True if an answer does not wait: it says something that the follower does not know."""
    return (
        answer.error != error_codes.NONE
        or answer.records is not None
        or answer.diverging is not None
        or answer.snapshot is not None
        or request.high_watermark < answer.high_watermark
    )


def complete_waiting(replica: Replica, leader: LeaderState, now_ms: int) -> None:
    """Answer the fetches that wait and have an answer now, after an append or a move of the high watermark."""
    waiting, leader.waiting = leader.waiting, ()
    still_waiting = []
    for one in waiting:
        answer = _fetch_answer(replica, one.request, now_ms, is_new=False)
        if is_complete(one.request, answer):
            replica.answer(one.request_id, answer)
        else:
            still_waiting.append(one)
    leader.waiting = tuple(still_waiting)


def expire_waiting(replica: Replica, leader: LeaderState, now_ms: int) -> None:
    """Answer the fetches that have waited long enough with what was known when they came."""
    for one in leader.waiting:
        if one.deadline_ms <= now_ms:
            replica.answer(one.request_id, one.first)
    leader.waiting = tuple(one for one in leader.waiting if one.deadline_ms > now_ms)


def _fetch_answer(replica: Replica, request: Fetch, now_ms: int, *, is_new: bool) -> FetchAnswer:
    log, quorum = replica.log, replica.quorum
    fields = replica.leader_fields()
    if min(request.max_wait_ms, request.fetch_offset, request.last_fetched_epoch) < 0:
        return FetchAnswer(error_codes.INVALID_REQUEST, *fields)
    if request.last_fetched_epoch > request.epoch:
        return FetchAnswer(error_codes.INVALID_REQUEST, *fields)
    error = leader_error(replica, request.epoch)
    leader = quorum.leader
    if error != error_codes.NONE or leader is None:
        return FetchAnswer(error, *fields)
    answer = FetchAnswer(error_codes.NONE, *fields, leader.high_watermark, log.start_offset)
    snapshot = _snapshot_instead(replica, request)
    if snapshot is not None:
        return answer._replace(snapshot=snapshot)
    if not (log.start_offset == 0 and request.fetch_offset == 0):
        known = log.end_of_epoch(request.last_fetched_epoch)
        if known.epoch != request.last_fetched_epoch or known.offset < request.fetch_offset:
            return answer._replace(diverging=known)
    if is_new and request.replica.node_id == replica.local_id:
        # Its own end is what it has flushed, and no other node may claim one.
        return FetchAnswer(error_codes.UNKNOWN_SERVER_ERROR, *fields)
    if is_new and request.replica.node_id >= 0:
        leader.update_replica(request.replica, request.fetch_offset, log.end_offset, now_ms)
    records = None
    if request.fetch_offset < log.end_offset:
        records = log.read(request.fetch_offset, request.max_bytes)
    return answer._replace(high_watermark=leader.high_watermark, records=records)


def _snapshot_instead(replica: Replica, request: Fetch) -> SnapshotId | None:
    """Return the snapshot that a follower needs, None if the log has what it asks for (RaftLog.validateOffsetAndEpoch)."""
    log = replica.log
    latest, earliest = log.latest_snapshot, log.earliest_snapshot
    if latest is None or earliest is None or not is_real_snapshot(latest):
        return None
    offset, epoch = request.fetch_offset, request.last_fetched_epoch
    is_before_log = (
        offset == 0
        or offset < log.start_offset
        or (offset == log.start_offset and epoch != earliest.epoch)
        or epoch < earliest.epoch
    )
    return latest if is_before_log else None


def handle_fetch_snapshot(replica: Replica, request_id: int, request: FetchSnapshot, now_ms: int) -> None:
    """Answer FetchSnapshot."""
    error = cluster_error(replica, request.cluster_id)
    if error != error_codes.NONE:
        replica.answer(request_id, FetchSnapshotAnswer(error, -1, NO_NODE, snapshot=request.snapshot))
        return
    fields, leader = replica.leader_fields(), replica.quorum.leader
    answer = FetchSnapshotAnswer(leader_error(replica, request.epoch), *fields, request.snapshot)
    if answer.error == error_codes.NONE and leader is not None:
        size = replica.log.snapshot_size(request.snapshot) if is_real_snapshot(request.snapshot) else None
        if size is None:
            answer = answer._replace(error=error_codes.SNAPSHOT_NOT_FOUND)
        elif not 0 <= request.position < size:
            answer = answer._replace(error=error_codes.POSITION_OUT_OF_RANGE)
        else:
            leader.heard_of(request.replica, now_ms)
            data = replica.log.read_snapshot(request.snapshot, request.position, request.max_bytes)
            answer = answer._replace(size=size, position=request.position, data=data)
    replica.answer(request_id, answer)


# --------------------------------------------------------------------------------------------------------- the follower


def handle_fetch_answer(replica: Replica, request: Fetch, answer: FetchAnswer, now_ms: int) -> bool:
    """Replicate what an answer without an error has; the common rules of answers are applied already.

    Return False if it has nothing that can be used: at once the same Fetch would get the same answer.
    """
    quorum, log = replica.quorum, replica.log
    if quorum.role is not Role.FOLLOWER or request.epoch != quorum.epoch or request.fetch_offset != log.end_offset:
        return False
    quorum.deadline_ms = now_ms + replica.config.fetch_timeout_ms
    quorum.has_fetched = True
    if replica.catch_up_offset == NO_OFFSET:
        replica.catch_up_offset = answer.high_watermark
    if replica.snapshot is not None:
        return False
    if answer.diverging is not None:
        return _truncate(replica, answer)
    if answer.snapshot is not None:
        return _begin_snapshot(replica, answer.snapshot)
    if answer.records is not None:
        for record in log.append_as_follower(quorum.epoch, answer.records, now_ms):
            replica.history.apply(record)
    replica.move_high_watermark(answer.high_watermark)
    return answer.records is None or log.end_offset > request.fetch_offset


def _truncate(replica: Replica, answer: FetchAnswer) -> bool:
    diverging, log = answer.diverging, replica.log
    if diverging is None or diverging.epoch < 0 or diverging.offset < 0:
        replica.report(f"the leader {replica.quorum.leader_id} names no valid end of an epoch: {diverging}", is_fault=True)
        return False
    known = log.end_of_epoch(diverging.epoch)
    # RaftLog.truncateToEndOffset: in an epoch that both have, up to what both have.
    offset = min(known.offset, diverging.offset) if known.epoch == diverging.epoch else known.offset
    if diverging.epoch == 0:
        offset = min(diverging.offset, log.end_offset)
    if offset < replica.high_watermark:
        replica.report(
            f"the leader {replica.quorum.leader_id} asks for a truncation of the metadata log to offset {offset}; the records "
            f"below offset {replica.high_watermark} are committed and stay. Its log has lost records: restore them",
            is_fault=True,
        )
    elif offset < log.end_offset:
        replica.truncate_to(offset)
        return True
    return False


def _begin_snapshot(replica: Replica, snapshot: SnapshotId) -> bool:
    if replica.stale_snapshot is not None or replica.log.snapshot_size(snapshot) is not None:
        return False
    if not is_real_snapshot(snapshot) or snapshot.end_offset < 0 or snapshot.epoch < 0:
        replica.report(f"the leader {replica.quorum.leader_id} names the snapshot {snapshot}, which cannot be", is_fault=True)
    elif snapshot.end_offset < replica.high_watermark:
        replica.report(
            f"the leader {replica.quorum.leader_id} names a snapshot of the records below offset {snapshot.end_offset}; those "
            f"below offset {replica.high_watermark} are committed and stay. Its log has lost records: restore them",
            is_fault=True,
        )
    else:
        replica.snapshot, replica.snapshot_position = snapshot, 0
        replica.log.begin_snapshot(snapshot)
        return True
    return False


def handle_fetch_snapshot_answer(replica: Replica, request: FetchSnapshot, answer: FetchSnapshotAnswer, now_ms: int) -> bool:
    """Append a part of a snapshot; the common rules of answers are applied already. Return False if it cannot be used."""
    quorum, snapshot = replica.quorum, replica.snapshot
    if quorum.role is not Role.FOLLOWER or snapshot is None or snapshot != request.snapshot:
        return False
    if replica.is_snapshot_flushing:
        quorum.deadline_ms = now_ms + replica.config.fetch_timeout_ms
        return True
    if answer.error != error_codes.NONE:
        # The leader has removed the snapshot: the next Fetch names a later one.
        replica.drop_snapshot()
        return False
    quorum.deadline_ms = now_ms + replica.config.fetch_timeout_ms
    quorum.has_fetched = True
    position, size_bytes = replica.snapshot_position, replica.snapshot_bytes or answer.size
    count = 0 if answer.data is None else len(answer.data)
    is_part = answer.snapshot == snapshot and answer.position == position
    has_progress = position < position + count <= answer.size
    if not is_part or (has_progress and answer.size != size_bytes):
        if answer.snapshot.end_offset >= 0 and answer.snapshot.epoch >= 0:
            replica.report(
                f"the leader {quorum.leader_id} sent byte {answer.position} of the snapshot {answer.snapshot}, of "
                f"{answer.size} bytes; byte {position} of {snapshot} was asked for, of {size_bytes} bytes. It is fetched again",
                is_fault=True,
            )
        replica.drop_snapshot()
        return False
    if answer.data is None or not has_progress:
        replica.report(
            f"the leader {quorum.leader_id} sent {count} bytes from byte {position} of the snapshot {snapshot} on, and says "
            f"that it has {answer.size} bytes in all: they are asked for again",
            is_fault=True,
        )
        return False
    replica.log.append_snapshot(snapshot, answer.data)
    replica.snapshot_bytes = size_bytes
    replica.snapshot_position += count
    if replica.snapshot_position == size_bytes:
        replica.flush_snapshot(snapshot)
    return True


def snapshot_flushed(replica: Replica, snapshot: SnapshotId, damage: str, now_ms: int) -> None:
    """Let the log begin behind a snapshot that is complete and durable; one with `damage` is fetched again."""
    if snapshot == replica.stale_snapshot:
        replica.log.drop_snapshot(snapshot)
        replica.stale_snapshot = None
        return
    if snapshot != replica.snapshot or not replica.is_snapshot_flushing:
        return
    if damage:
        leader_id = replica.quorum.leader_id
        text = f"{damage}; the snapshot, which the leader {leader_id} sent, is removed and fetched again, and the log stays"
        replica.report(text, is_fault=True)
        replica.is_snapshot_flushing = False
        replica.drop_snapshot()
        config = replica.config
        most_ms = config.fetch_timeout_ms // 4  # the timeout of this follower continues
        replica.snapshot_backoff_ms = min(most_ms, replica.snapshot_backoff_ms * 2 or config.retry_backoff_ms)
        replica.snapshot_retry_ms = now_ms + replica.snapshot_backoff_ms
        return
    replica.snapshot_backoff_ms = 0
    replica.log.finish_snapshot(snapshot)
    replica.history.reload(replica.log.control_entries())
    replica.forget_snapshot()
    replica.log_was_cut(0)
    replica.emit(SnapshotLoaded(snapshot))
    replica.move_high_watermark(snapshot.end_offset)


def send_fetch(replica: Replica, now_ms: int) -> None:
    """Fetch from the leader or, if it does not answer or is not known, from a random bootstrap server."""
    quorum = replica.quorum
    if replica.requests.has_any_in_flight or now_ms < replica.snapshot_retry_ms:
        return
    leader = replica.destination(quorum.leader_id) if quorum.role is Role.FOLLOWER else None
    if replica.snapshot is not None and replica.is_snapshot_flushing:
        if leader is not None and replica.requests.is_ready(leader.node_id) and now_ms >= snapshot_flush_deadline_ms(replica):
            _send_fetch_snapshot(replica, leader, replica.snapshot, now_ms, replica.snapshot_bytes - 1, 1)
        return
    servers = replica.bootstrap_servers()
    if leader is not None and now_ms >= quorum.deadline_ms:  # an observer, which remains a follower
        if all((server.host, server.port) != (leader.host, leader.port) for server in servers):
            servers = (*servers, leader)
        leader = None
    if leader is not None and replica.requests.is_ready(leader.node_id):
        if replica.snapshot is not None:
            position, max_bytes = replica.snapshot_position, replica.config.fetch_snapshot_max_bytes
            _send_fetch_snapshot(replica, leader, replica.snapshot, now_ms, position, max_bytes)
        else:
            _send_fetch(replica, leader, now_ms)
        return
    if quorum.role is Role.UNATTACHED:
        unasked = (replica.voter_destination(node_id) for node_id in sorted(unasked_voters(replica)))
        for destination in unasked:
            if destination is not None and replica.requests.is_ready(destination.node_id):
                _send_fetch(replica, destination, now_ms)
                return
    ready = [server for server in servers if replica.requests.is_ready(server.node_id)]
    if not ready and quorum.role is Role.UNATTACHED and not replica.is_voter:
        # All configured servers may have left the quorum, this node among them. A voter would begin an election.
        known = (replica.voter_destination(node_id) for node_id in voter_ids(replica.voters))
        ready = [voter for voter in known if voter is not None and replica.requests.is_ready(voter.node_id)]
    if ready:
        _send_fetch(replica, ready[replica.rng.randint(0, len(ready) - 1)], now_ms)


def snapshot_flush_deadline_ms(replica: Replica) -> int:
    """Return when a follower that flushes a snapshot asks whether the leader is there."""
    return replica.quorum.deadline_ms - replica.config.fetch_timeout_ms // 2


def unasked_voters(replica: Replica) -> frozenset[int]:
    """Return the voters that have not said whether they know a leader, while the first election may begin at once."""
    if replica.leaderless is None:
        return frozenset()
    return frozenset(voter_ids(replica.voters)) - replica.leaderless - {replica.local_id}


def note_leaderless(replica: Replica, node_id: int, answer: FetchAnswer) -> None:
    """Note that a voter answers a Fetch and knows no leader."""
    is_none = answer.leader_id == NO_NODE and 0 <= answer.epoch <= replica.quorum.epoch
    if replica.leaderless is not None and replica.quorum.role is Role.UNATTACHED and is_none and node_id >= 0:
        replica.leaderless = replica.leaderless | {node_id}


def _send_fetch(replica: Replica, destination: Destination, now_ms: int) -> None:
    log, config = replica.log, replica.config
    request = Fetch(
        config.cluster_id,
        config.local,
        replica.quorum.epoch,
        log.end_offset,
        log.last_epoch,
        replica.high_watermark,
        config.fetch_max_wait_ms,
        config.fetch_max_bytes,
    )
    replica.send(destination, request, now_ms, flushed_offset=log.end_offset)


def _send_fetch_snapshot(
    replica: Replica, leader: Destination, snapshot: SnapshotId, now_ms: int, position: int, max_bytes: int
) -> None:
    config = replica.config
    request = FetchSnapshot(config.cluster_id, config.local, replica.quorum.epoch, snapshot, position, max_bytes)
    replica.send(leader, request, now_ms)
