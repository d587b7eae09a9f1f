"""Partitions that move to other brokers: AlterPartitionReassignments, ListPartitionReassignments (KIP-455).

asked                                            done
-----------------------------------------------  ---------------------------------------------------------------
other replicas                                   the new ones are adding, the old ones removing; it is complete
                                                 when all that are to stay are in sync: see partition_change
the same replicas in another order               at once
null, while it is moving                         back to where it was; refused where that needs an unclean election
null, while nothing moves                        NO_REASSIGNMENT_IN_PROGRESS
another number of replicas, not allowed          INVALID_REPLICATION_FACTOR
"""

from __future__ import annotations

from kcli.protocol import error_codes
from kcli.protocol.apis import ALTER_PARTITION_REASSIGNMENTS, API_KEYS, LIST_PARTITION_REASSIGNMENTS
from kcli.protocol.message import Message
from kcli.server.controller.controller_result import ApiError, ControllerRequestContext, ControllerResult
from kcli.server.controller.controller_state import ControllerState
from kcli.server.controller.partition_control_manager import find_partition
from kcli.server.controller.replication_control_manager import check_assignment
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import Partition, Topic


def alter_partition_reassignments(state: ControllerState, request: Message, info: ControllerRequestContext) -> ControllerResult:
    """Decide an AlterPartitionReassignments."""
    classes = API_KEYS[ALTER_PARTITION_REASSIGNMENTS].response.classes
    records: list[Message] = []
    responses = []
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            code, text = error_codes.NONE, None
            try:
                found = find_partition(state, topic.name, asked.partition_index)
                if asked.replicas is None:
                    record = _cancel(state, found, asked.partition_index)
                else:
                    allowed = request.allow_replication_factor_change
                    record = _move(state, found, asked.partition_index, list(asked.replicas), may_resize=allowed)
                records += [] if record is None else [record]
            except ApiError as error:
                code, text = error.code, error.message
            results.append(
                classes["ReassignablePartitionResponse"](
                    partition_index=asked.partition_index, error_code=code, error_message=text
                )
            )
        responses.append(classes["ReassignableTopicResponse"](name=topic.name, partitions=results))
    response = API_KEYS[ALTER_PARTITION_REASSIGNMENTS].response.new(
        responses=responses,
        error_message=None,
        allow_replication_factor_change=request.allow_replication_factor_change,
    )
    return ControllerResult(records, response)


def _settled(partition: Partition) -> list[int]:
    """The replicas as they were before a move that is under way."""
    return [replica for replica in partition.replicas if replica not in partition.adding_replicas]


def _move(state: ControllerState, topic: Topic, index: int, target: list[int], *, may_resize: bool) -> Message | None:
    partition = topic.partitions[index]
    check_assignment(state, index, target, None, is_new=False)
    before = _settled(partition)
    if not may_resize and len(target) != len(before):
        text = f"{topic.name}-{index} has {len(before)} replicas and would get {len(target)}, which the request does not allow"
        raise ApiError(error_codes.INVALID_REPLICATION_FACTOR, text)
    change = state.change(topic, index)
    removing = sorted(replica for replica in partition.replicas if replica not in target)
    adding = sorted(replica for replica in target if replica not in before)
    # Those that go stay behind those that come until the move is complete.
    change.target_replicas = [*target, *removing]
    change.target_removing = removing
    change.target_adding = adding
    return change.record()


def _cancel(state: ControllerState, topic: Topic, index: int) -> Message | None:
    partition = topic.partitions[index]
    if not partition.adding_replicas and not partition.removing_replicas:
        raise ApiError(error_codes.NO_REASSIGNMENT_IN_PROGRESS, f"{topic.name}-{index} is not being moved")
    replicas = _settled(partition)
    isr = [replica for replica in partition.isr if replica in replicas]
    if not isr:
        if not state.is_unclean_allowed(topic):
            text = f"{topic.name}-{index} cannot go back: none of {replicas} is in sync, and unclean elections are not allowed"
            raise ApiError(error_codes.INVALID_REPLICA_ASSIGNMENT, text)
        isr = [next(filter(state.is_active, replicas), replicas[0])]
    change = state.change(topic, index)
    change.target_replicas, change.target_isr = replicas, isr
    change.target_removing, change.target_adding = [], []
    return change.record()


def list_partition_reassignments(request: Message, image: MetadataImage) -> Message:
    """The answer to ListPartitionReassignments: what moves, of the partitions asked for or of all."""
    api = API_KEYS[LIST_PARTITION_REASSIGNMENTS]
    classes = api.response.classes
    if request.topics is None:
        asked = [(topic, list(topic.partitions)) for topic in image.topics.values()]
    else:
        found = ((image.topic(topic.name), topic.partition_indexes) for topic in request.topics)
        asked = [(topic, indexes) for topic, indexes in found if topic is not None]
    topics = []
    for topic, indexes in asked:
        moving = []
        for index in indexes:
            partition = topic.partitions.get(index)
            if partition is not None and (partition.adding_replicas or partition.removing_replicas):
                moving.append(
                    classes["OngoingPartitionReassignment"](
                        partition_index=index,
                        replicas=partition.replicas,
                        adding_replicas=partition.adding_replicas,
                        removing_replicas=partition.removing_replicas,
                    )
                )
        if moving:
            topics.append(classes["OngoingTopicReassignment"](name=topic.name, partitions=moving))
    return api.response.new(topics=topics, error_message=None)
