"""Names the leader in the answer to a client that has asked another broker (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext

# The partitions of an answer: the topic's name, None for one that does not exist, the index, and the part of the answer.
Answers = Iterable[tuple[str | None, int, Message]]
_NOT_LEADER = (error_codes.NOT_LEADER_OR_FOLLOWER,)
FENCED_OR_NOT_LEADER = (error_codes.NOT_LEADER_OR_FOLLOWER, error_codes.FENCED_LEADER_EPOCH)


def name_leaders(context: RequestContext, answers: Answers, codes: tuple[int, ...] = _NOT_LEADER) -> list[Message]:
    """Name the leader in each part with one of the error codes; return the leaders' addresses on the client's listener."""
    broker, listener = context.broker, context.connection.listener
    endpoints: dict[int, Message] = {}
    for topic, index, answer in answers:
        if answer.error_code not in codes:
            continue
        leader_id = leader_epoch = -1
        partition = None if topic is None else broker.replica_manager.partition(topic, index)
        if partition is not None:
            leader_id, leader_epoch = partition.leader_id, partition.leader_epoch
        elif topic is not None and (found := broker.metadata.image.topic(topic)) is not None and index in found.partitions:
            leader_id, leader_epoch = found.partitions[index].leader, found.partitions[index].leader_epoch
        answer.current_leader = context.new("LeaderIdAndEpoch", leader_id=leader_id, leader_epoch=leader_epoch)
        leader = broker.metadata.image.brokers.get(leader_id)
        if leader is not None and not leader.is_fenced and listener in leader.endpoints:
            address = leader.endpoints[listener]
            endpoints[leader_id] = context.new(
                "NodeEndpoint", node_id=leader_id, host=address.host, port=address.port, rack=leader.rack
            )
    return list(endpoints.values())
