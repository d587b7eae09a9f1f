"""The messages of a quorum as text, for traces: what a reader of the protocol looks for."""

from __future__ import annotations

from kcli.protocol import error_codes
from kcli.protocol.error_codes import NONE
from kcli.server.raft.messages import (
    HIGH_WATERMARK_NOT_SENT,
    AddRaftVoter,
    AnyAnswer,
    ApiVersionsProbe,
    ApiVersionsProbeAnswer,
    BeginQuorumEpoch,
    BeginQuorumEpochAnswer,
    ChangeVotersAnswer,
    EndQuorumEpoch,
    EndQuorumEpochAnswer,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    FetchSnapshotAnswer,
    RemoveRaftVoter,
    Request,
    UpdateRaftVoter,
    UpdateRaftVoterAnswer,
    Vote,
    VoteAnswer,
)

CLIENT = -100  # the node id of a tool
_ERROR_NAMES = {code: name for name, code in vars(error_codes).items() if name.isupper() and isinstance(code, int)}


def actor(node_id: int) -> str:
    """Return how a node is called."""
    return "a tool" if node_id == CLIENT else "none" if node_id < 0 else f"n{node_id}"


def text_of(body: Request | AnyAnswer) -> str:
    """Return a message as text."""
    error = getattr(body, "error", NONE)
    if error != NONE:
        return f"{_error_name(error)}{_epoch_text(body)}"
    return _request_text(body) or _answer_text(body)


def _epoch_text(body: object) -> str:
    epoch, leader_id = getattr(body, "epoch", None), getattr(body, "leader_id", -1)
    return "" if epoch is None else f" (epoch {epoch}, leader {actor(leader_id)})"


def _request_text(body: Request | AnyAnswer) -> str:
    match body:
        case Vote():
            kind = "PreVote" if body.is_pre_vote else "Vote"
            return f"{kind}(epoch {body.epoch}, log ends at {body.end_offset} in epoch {body.last_epoch})"
        case BeginQuorumEpoch():
            return f"BeginQuorumEpoch(epoch {body.epoch})"
        case EndQuorumEpoch():
            successors = " ".join(actor(one.node_id) for one in body.preferred_successors)
            return f"EndQuorumEpoch(epoch {body.epoch}, successors {successors or 'none'})"
        case Fetch():
            mark = "" if body.high_watermark == HIGH_WATERMARK_NOT_SENT else f", high watermark {body.high_watermark}"
            return f"Fetch(epoch {body.epoch}, from {body.fetch_offset} after epoch {body.last_fetched_epoch}{mark})"
        case FetchSnapshot():
            return f"FetchSnapshot({body.snapshot.end_offset}-{body.snapshot.epoch}, from byte {body.position})"
        case AddRaftVoter():
            return f"AddRaftVoter({actor(body.voter.node_id)})"
        case RemoveRaftVoter():
            return f"RemoveRaftVoter({actor(body.voter.node_id)})"
        case UpdateRaftVoter():
            return f"UpdateRaftVoter({actor(body.voter.node_id)}, epoch {body.epoch})"
        case ApiVersionsProbe():
            return "ApiVersions"
    return ""


def _answer_text(body: Request | AnyAnswer) -> str:
    match body:
        case VoteAnswer():
            return ("vote granted" if body.is_granted else "vote refused") + _epoch_text(body)
        case BeginQuorumEpochAnswer() | EndQuorumEpochAnswer() | UpdateRaftVoterAnswer():
            return f"done{_epoch_text(body)}"
        case FetchAnswer(diverging=end) if end is not None:
            return f"diverging: epoch {end.epoch} ends at {end.offset}"
        case FetchAnswer(snapshot=snapshot) if snapshot is not None:
            return f"fetch snapshot {snapshot.end_offset}-{snapshot.epoch}"
        case FetchAnswer():
            return f"{_records_text(body.records)}, high watermark {body.high_watermark}"
        case FetchSnapshotAnswer():
            length = 0 if body.data is None else len(body.data)
            return f"bytes {body.position}..{body.position + length} of {body.size}"
        case ChangeVotersAnswer():
            return "done"
        case ApiVersionsProbeAnswer():
            return f"kraft.version {body.lowest_kraft_version}..{body.highest_kraft_version}"
    return type(body).__name__


def _records_text(records: object) -> str:
    if not records or not isinstance(records, tuple):
        return "no records"
    first, last = records[0].base_offset, records[-1].last_offset
    return f"record {first}" if first == last else f"records {first}..{last}"


def _error_name(code: int) -> str:
    return _ERROR_NAMES.get(code, f"error {code}")
