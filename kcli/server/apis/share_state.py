"""The states of share partitions, which brokers initialize, read, write, summarize and delete (KIP-932).

Each needs CLUSTER_ACTION on the cluster, and is answered when its records are committed. A request names share partitions of
one group; each is an operation of its own on its partition of __share_group_state. A request without group id or topics, or
with a topic without partitions gets an empty answer.

error                              its message
---------------------------------  ---------------------------------------------------------------------------------
one that the operation decides     as kcli.server.coordinator.share.share_shard has it
one of the coordinator's runtime   Unable to ... share group state: and the runtime's
CLUSTER_AUTHORIZATION_FAILED       Cluster authorization failed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.coordinator.share.share_shard import ShareRefusal, ShareShard
from kcli.server.outstanding import Gather
from kcli.server.replication.share_persister import ShareKey, ShareState, ShareSummary, ShareUpdateBatches
from kcli.state.share_group_state import StateBatch

# Decides the operation for a partition of a request; what fills its result into the answer.
_Decide = Callable[[ShareKey, Message, ShareShard], Decision[Any]]
_Fill = Callable[[RequestContext, Message, Any], None]


def handle_initialize_share_group_state(context: RequestContext, request: Message) -> None:
    """Answer an InitializeShareGroupStateRequest."""
    _execute(context, request, "InitializeState", "initialize share group state", _initialize, _fill_nothing)


def handle_read_share_group_state(context: RequestContext, request: Message) -> None:
    """Answer a ReadShareGroupStateRequest."""
    _execute(context, request, "ReadState", "read share group state", _read, _fill_state)


def handle_write_share_group_state(context: RequestContext, request: Message) -> None:
    """Answer a WriteShareGroupStateRequest."""
    _execute(context, request, "WriteState", "write share group state", _write, _fill_nothing)


def handle_delete_share_group_state(context: RequestContext, request: Message) -> None:
    """Answer a DeleteShareGroupStateRequest."""
    _execute(context, request, "DeleteState", "delete share group state", _delete, _fill_nothing)


def handle_read_share_group_state_summary(context: RequestContext, request: Message) -> None:
    """Answer a ReadShareGroupStateSummaryRequest."""
    _execute(context, request, "ReadStateSummary", "read share group state summary", _summarize, _fill_summary)


def _execute(context: RequestContext, request: Message, kind: str, action: str, decide: _Decide, fill: _Fill) -> None:
    """Execute an operation for each partition of a request, and answer when all are done."""
    response = context.api.response.new()
    is_whole = request.group_id and request.topics and all(topic.partitions for topic in request.topics)
    if not is_whole:
        context.respond(response)
        return
    is_allowed = context.is_allowed("CLUSTER_ACTION", "CLUSTER")
    gather = Gather(sum(len(topic.partitions) for topic in request.topics), partial(context.respond, response))
    for topic in request.topics:
        answers: list[Message] = []
        response.results.append(context.new(f"{kind}Result", topic_id=topic.topic_id, partitions=answers))
        for asked in topic.partitions:
            answer = context.new("PartitionResult", partition=asked.partition)
            answers.append(answer)
            if not is_allowed:
                answer.error_code = error_codes.CLUSTER_AUTHORIZATION_FAILED
                answer.error_message = "Cluster authorization failed."
                gather.done()
                continue
            key = ShareKey(request.group_id, topic.topic_id, asked.partition)
            done = partial(_done, context, action, answer, fill, gather)
            context.broker.share_coordinator.write(key, partial(decide, key, asked), done)


def _done(context: RequestContext, action: str, answer: Message, fill: _Fill, gather: Gather, result: Any, now_ms: int) -> None:
    if isinstance(result, CoordinatorError):
        is_refusal = isinstance(result, ShareRefusal)
        answer.error_code = result.code
        answer.error_message = result.message if is_refusal else f"Unable to {action}: {result.message}"
    else:
        fill(context, answer, result)
    gather.done()


def _initialize(key: ShareKey, asked: Message, shard: ShareShard) -> Decision[None]:
    return shard.initialize(key, asked.state_epoch, asked.start_offset)


def _read(key: ShareKey, asked: Message, shard: ShareShard) -> Decision[ShareState]:
    return shard.read(key, asked.leader_epoch)


def _write(key: ShareKey, asked: Message, shard: ShareShard) -> Decision[None]:
    batches = tuple(
        StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in asked.state_batches
    )
    change = ShareUpdateBatches(
        asked.state_epoch, asked.leader_epoch, asked.start_offset, asked.delivery_complete_count, batches
    )
    return shard.write(key, change)


def _delete(key: ShareKey, asked: Message, shard: ShareShard) -> Decision[None]:
    return shard.delete(key)


def _summarize(key: ShareKey, asked: Message, shard: ShareShard) -> Decision[ShareSummary]:
    return shard.read_summary(key)


def _fill_nothing(context: RequestContext, answer: Message, result: None) -> None:
    """Leave the answer as it is: it has no fields but the error."""


def _fill_state(context: RequestContext, answer: Message, result: ShareState) -> None:
    answer.state_epoch, answer.start_offset = result.state_epoch, result.start_offset
    answer.state_batches = [context.new("StateBatch", **batch._asdict()) for batch in result.batches]


def _fill_summary(context: RequestContext, answer: Message, result: ShareSummary) -> None:
    answer.state_epoch, answer.leader_epoch = result.state_epoch, result.leader_epoch
    answer.start_offset, answer.delivery_complete_count = result.start_offset, result.delivery_complete_count
