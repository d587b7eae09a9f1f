"""The streams group protocol (KIP-1071).

API                   needs                                    answered
--------------------  ---------------------------------------  -------------------------------------------------------------
StreamsGroupHeartbeat READ on the group, DESCRIBE on the       when the records of the change are committed; missing internal
                      topics of the topology                   topics are then requested, which needs CREATE on the cluster
                                                               or on each of them
StreamsGroupDescribe  DESCRIBE on the group and its topics     streams groups; GROUP_ID_NOT_FOUND for any other
StreamsGroupTopology- READ on the group                        after the description of the topology is kept (KIP-1331);
DescriptionUpdate                                              UNSUPPORTED_VERSION without a plugin class for it

Without streams.version 1, or without `streams` in group.coordinator.rebalance.protocols, they are refused with
UNSUPPORTED_VERSION. Version 0 of the heartbeat is that of Kafka 4.3, without static members and offsets of tasks. Version 1 is
that of Kafka 4.4. Neither serves patterns of topics.

heartbeat                                                                        refused with
-------------------------------------------------------------------------------  ---------------------------------------
a topology with Kafka's own topics, or names that no topic can have              STREAMS_INVALID_TOPOLOGY
a pattern; in version 0 an instance id, offsets of tasks, warm-up tasks          INVALID_REQUEST
no member id, no group id, a blank instance or rack id; an epoch below -2, or    INVALID_REQUEST
-2 without instance id
epoch 0 without a rebalance timeout or a topology, or with tasks; a topology     INVALID_REQUEST
with any other epoch; tasks of some roles only
a changelog topic with a number of partitions                                    STREAMS_INVALID_TOPOLOGY
"""

from __future__ import annotations

from functools import partial

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.modern_groups import HIDDEN_TOPICS, describe_groups, is_blank
from kcli.server.apis.topology_description import described_topology, update_topology_description
from kcli.server.config.group_config import GroupConfigs
from kcli.server.coordinator.group.consumer_group_change import FIRST_GROUP_EPOCH
from kcli.server.coordinator.group.consumer_group_manager import LEAVE_STATIC_EPOCH
from kcli.server.coordinator.group.current_tasks import OwnedTasks
from kcli.server.coordinator.group.group_coordinator import GroupShard
from kcli.server.coordinator.group.group_records import topology_value
from kcli.server.coordinator.group.streams_endpoints import EndpointPartitions
from kcli.server.coordinator.group.streams_group_change import FIRST_TARGET_EPOCH
from kcli.server.coordinator.group.streams_heartbeat import (
    StreamsHeartbeat,
    StreamsHeartbeatResult,
    TaskOffset,
    TaskOffsets,
)
from kcli.server.coordinator.group.streams_topology import MISSING_INTERNAL_TOPICS, ConfiguredSubtopology, Status
from kcli.server.coordinator.group.topology_descriptions import AVAILABLE, NOT_STORED
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.state.groups import InternalTopic, StreamsGroup, StreamsGroupMember, Subtopology, TargetTasks, Tasks
from kcli.state.topic_names import INTERNAL_TOPICS, topic_name_fault

_STREAMS_FEATURE = "streams.version"
_KAFKA_4_4 = 1  # the version of both APIs since Kafka 4.4
_ASSIGNOR = "sticky"
_NAMED_ERRORS = 3  # in one status


def is_enabled(context: RequestContext) -> bool:
    """Return whether the streams protocol is served."""
    level = context.broker.metadata.image.features.get(_STREAMS_FEATURE, 0)
    return level >= 1 and "streams" in context.broker.config.get_list("group.coordinator.rebalance.protocols")


def handle_streams_group_heartbeat(context: RequestContext, request: Message) -> Message | None:
    """Answer a StreamsGroupHeartbeatRequest."""
    try:
        _check_access(context, request)
        _check_features(request, context.version)
        _check_heartbeat(request)
    except CoordinatorError as error:
        return _refused(context, error)
    endpoint, tags = request.user_endpoint, request.client_tags
    owned = None
    if request.active_tasks is not None:
        owned = OwnedTasks(*map(_tasks, (request.active_tasks, request.standby_tasks, request.warmup_tasks)))
    heartbeat = StreamsHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        endpoint_epoch=request.endpoint_information_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=None if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
        client_id=context.client_id or "",
        client_host=f"/{context.connection.client_host}",
        topology=None if request.topology is None else topology_value(request.topology),
        owned=owned,
        process_id=request.process_id,
        user_endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        client_tags=None if tags is None else {tag.key: tag.value for tag in tags},
        task_offsets=_task_offsets(request.task_offsets),
        task_end_offsets=_task_offsets(request.task_end_offsets),
        shuts_down=request.shutdown_application,
        of_kafka_4_4=context.version >= _KAFKA_4_4,
    )

    def decide(shard: GroupShard) -> Decision[StreamsHeartbeatResult]:
        return shard.streams.heartbeat(heartbeat)

    def respond(result: StreamsHeartbeatResult | CoordinatorError, now_ms: int) -> None:
        context.respond(
            _refused(context, result)
            if isinstance(result, CoordinatorError)
            else _heartbeat_answer(context, request.group_id, result)
        )

    context.broker.groups.write(request.group_id, decide, respond)
    return None


def _refused(context: RequestContext, error: CoordinatorError) -> Message:
    message = None if error.code == error_codes.UNKNOWN_SERVER_ERROR else error.message or None
    return context.new("StreamsGroupHeartbeatResponse", error_code=error.code, error_message=message)


def _tasks(given: list[Message]) -> Tasks:
    return {tasks.subtopology_id: tasks.partitions for tasks in given}


def _task_offsets(given: list[Message] | None) -> tuple[TaskOffset, ...] | None:
    return None if given is None else tuple(TaskOffset(one.subtopology_id, one.partition, one.offset) for one in given)


# ----------------------------------------------------------------------------------------------------------------- checks


def _check_access(context: RequestContext, request: Message) -> None:
    """Check the rights of the client and the topics of the topology. Raises CoordinatorError, like Kafka without texts."""
    if not is_enabled(context):
        raise CoordinatorError(error_codes.UNSUPPORTED_VERSION, "")
    if not context.is_allowed("READ", "GROUP", request.group_id):
        raise CoordinatorError(error_codes.GROUP_AUTHORIZATION_FAILED, "")
    names: dict[str, None] = {}
    for part in request.topology.subtopologies if request.topology is not None else ():
        internal = (*part.repartition_source_topics, *part.state_changelog_topics)
        names |= dict.fromkeys((*part.source_topics, *part.repartition_sink_topics, *(topic.name for topic in internal)))
    reserved = [name for name in names if name in INTERNAL_TOPICS]
    if reserved:
        text = f"Use of Kafka internal topics {','.join(reserved)} in a Kafka Streams topology is prohibited."
        raise CoordinatorError(error_codes.STREAMS_INVALID_TOPOLOGY, text)
    wrong = [name for name in names if topic_name_fault(name) is not None]
    if wrong:
        text = f"Topic names {','.join(wrong)} are not valid topic names."
        raise CoordinatorError(error_codes.STREAMS_INVALID_TOPOLOGY, text)
    if not all(context.is_allowed("DESCRIBE", "TOPIC", name) for name in names):
        raise CoordinatorError(error_codes.TOPIC_AUTHORIZATION_FAILED, "")


def _check_features(request: Message, version: int) -> None:
    """Check that a heartbeat uses only what Kafka serves in this version. Raises CoordinatorError."""
    parts = request.topology.subtopologies if request.topology is not None else ()
    is_old = version < _KAFKA_4_4
    _refuse_first(
        (is_old and request.instance_id is not None, "Static membership is not yet supported."),
        (is_old and request.task_offsets is not None, "TaskOffsets are not supported yet."),
        (is_old and request.task_end_offsets is not None, "TaskEndOffsets are not supported yet."),
        (is_old and bool(request.warmup_tasks), "WarmupTasks are not supported yet."),
        (any(part.source_topic_regex for part in parts), "Regular expressions for source topics are not supported yet."),
    )


def _check_heartbeat(request: Message) -> None:
    """Check what does not depend on the group. Raises CoordinatorError."""
    epoch, is_joining = request.member_epoch, request.member_epoch == 0
    _refuse_first(
        (is_blank(request.member_id), "MemberId can't be empty."),
        (is_blank(request.group_id), "GroupId can't be empty."),
        (is_blank(request.instance_id), "InstanceId can't be empty."),
        (is_blank(request.rack_id), "RackId can't be empty."),
        (is_joining and request.rebalance_timeout_ms == -1, "RebalanceTimeoutMs must be provided in first request."),
        (is_joining and request.active_tasks != [], "ActiveTasks must be empty when (re-)joining."),
        (is_joining and request.standby_tasks != [], "StandbyTasks must be empty when (re-)joining."),
        (is_joining and request.warmup_tasks != [], "WarmupTasks must be empty when (re-)joining."),
        (is_joining and request.topology is None, "Topology must be non-null when (re-)joining."),
    )
    for part in request.topology.subtopologies if is_joining else ():
        for topic in part.state_changelog_topics:
            if topic.partitions:
                text = f"Changelog topic {topic.name} must have an undefined partition count, but it is set to"
                raise CoordinatorError(error_codes.STREAMS_INVALID_TOPOLOGY, f"{text} {topic.partitions}.")
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    has_some = any(found is not None for found in tasks) and any(found is None for found in tasks)
    _refuse_first(
        (epoch == LEAVE_STATIC_EPOCH and request.instance_id is None, "InstanceId can't be null."),
        (epoch < LEAVE_STATIC_EPOCH, f"MemberEpoch is {epoch}, but must be greater than or equal to -2."),
        (has_some, "If one task-type is non-null, all must be non-null."),
        (not is_joining and request.topology is not None, "Topology can only be provided when (re-)joining."),
    )


def _refuse_first(*checks: tuple[bool, str]) -> None:
    for is_wrong, text in checks:
        if is_wrong:
            raise CoordinatorError(error_codes.INVALID_REQUEST, text)


# ----------------------------------------------------------------------------------------------------------------- answer


def _heartbeat_answer(context: RequestContext, group_id: str, result: StreamsHeartbeatResult) -> Message:
    statuses = list(result.statuses)
    if result.missing_topics:
        statuses = _create_topics(context, group_id, result.missing_topics, statuses)
    tasks = None
    if result.tasks is not None:
        active = {key: list(found) for key, found in result.tasks.active.items()}
        tasks = [_task_ids(context, found) for found in (active, result.tasks.standby, result.tasks.warmup)]
    active_tasks, standby_tasks, warmup_tasks = (None, None, None) if tasks is None else tasks
    endpoints = None
    if result.endpoints is not None:
        endpoints = [_endpoint_partitions(context, found) for found in result.endpoints]
    return context.new(
        "StreamsGroupHeartbeatResponse",
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        task_offset_interval_ms=result.task_offset_interval_ms if context.version >= _KAFKA_4_4 else 0,
        acceptable_recovery_lag=result.acceptable_recovery_lag,
        topology_description_required=result.requires_description,
        status=[context.new("Status", status_code=status.code, status_detail=status.detail) for status in statuses],
        active_tasks=active_tasks,
        standby_tasks=standby_tasks,
        warmup_tasks=warmup_tasks,
        endpoint_information_epoch=result.endpoint_epoch,
        partitions_by_user_endpoint=endpoints,
    )


def _create_topics(
    context: RequestContext, group_id: str, missing: tuple[InternalTopic, ...], statuses: list[Status]
) -> list[Status]:
    """Request internal topics from the controller; return the statuses with the reasons why topics could not be created."""
    if not context.is_allowed("CREATE", "CLUSTER"):
        refused = [topic.name for topic in missing if not context.is_allowed("CREATE", "TOPIC", topic.name)]
        if refused:
            return [_with_detail(status, f"Unauthorized to CREATE on topics {', '.join(refused)}.") for status in statuses]
    broker = context.broker
    interval_ms = GroupConfigs(broker.config, broker.metadata).get_int(group_id, "group.streams.heartbeat.interval.ms")
    broker.topic_creation.create_internal(missing, 2 * interval_ms)
    errors = broker.topic_creation.errors(topic.name for topic in missing)
    if not errors:
        return statuses
    named = ", ".join(f"{name} ({text})" for name, text in list(errors.items())[:_NAMED_ERRORS])
    more = f" and {len(errors) - _NAMED_ERRORS} more" if len(errors) > _NAMED_ERRORS else ""
    return [_with_detail(status, f"Creation failed: {named}{more}.") for status in statuses]


def _with_detail(status: Status, detail: str) -> Status:
    return status._replace(detail=f"{status.detail}; {detail}") if status.code == MISSING_INTERNAL_TOPICS else status


def _task_ids(context: RequestContext, tasks: Tasks) -> list[Message]:
    return [context.new("TaskIds", subtopology_id=key, partitions=sorted(tasks[key])) for key in sorted(tasks)]


def _endpoint_partitions(context: RequestContext, found: EndpointPartitions) -> Message:
    host, port = found.endpoint
    active, standby = (
        [context.new("TopicPartition", topic=topic, partitions=partitions) for topic, partitions in part]
        for part in (found.active, found.standby)
    )
    endpoint = context.new("Endpoint", host=host, port=port)
    return context.new("EndpointToPartitions", user_endpoint=endpoint, active_partitions=active, standby_partitions=standby)


# --------------------------------------------------------------------------------------------------------------- describe


def handle_topology_description_update(context: RequestContext, request: Message) -> Message | None:
    """Answer a StreamsGroupTopologyDescriptionUpdateRequest."""
    return update_topology_description(context, request, is_enabled=is_enabled(context))


def handle_streams_group_describe(context: RequestContext, request: Message) -> None:
    """Answer a StreamsGroupDescribeRequest."""
    describe = partial(_describe, context, with_topology=request.include_topology_description)
    describe_groups(context, request, describe, is_enabled=is_enabled(context))


def _describe(context: RequestContext, answer: Message, shard: GroupShard, *, with_topology: bool) -> Decision[None]:
    group = shard.streams.find(answer.group_id)
    configured = shard.streams.configured(answer.group_id)
    parts: dict[str, Subtopology] | dict[str, ConfiguredSubtopology] = group.subtopologies
    if configured is not None and configured.subtopologies is not None:
        parts = configured.subtopologies
    subtopologies = [_subtopology(context, key, parts[key]) for key in sorted(parts)]
    used = {
        name
        for part in subtopologies
        for name in (
            *part.source_topics,
            *part.repartition_sink_topics,
            *(topic.name for topic in (*part.repartition_source_topics, *part.state_changelog_topics)),
        )
    }
    if not all(context.is_allowed("DESCRIBE", "TOPIC", name) for name in used):
        raise CoordinatorError(error_codes.TOPIC_AUTHORIZATION_FAILED, HIDDEN_TOPICS)
    answer.group_state, answer.group_epoch = group.state, max(group.group_epoch, FIRST_GROUP_EPOCH)
    answer.assignment_epoch = max(group.assignment_epoch, FIRST_TARGET_EPOCH)
    answer.topology = context.new("Topology", epoch=group.topology_epoch, subtopologies=subtopologies)
    answer.members = [
        _member(context, group, member, shard.streams.offsets(group.group_id, member.member_id))
        for member in group.members.values()
    ]
    answer.assignor_name = _ASSIGNOR
    if with_topology:
        description = shard.streams.descriptions.find(group.group_id, group.topology_epoch)
        answer.topology_description_status = NOT_STORED if description is None else AVAILABLE
        if description is not None:
            answer.topology_description = described_topology(context, description)
    return Decision(None)


def _subtopology(context: RequestContext, key: str, part: Subtopology | ConfiguredSubtopology) -> Message:
    repartition, changelogs = (
        [_topic_info(context, topic) for topic in sorted(topics)]
        for topics in (part.repartition_source_topics, part.state_changelog_topics)
    )
    return context.new(
        "Subtopology",
        subtopology_id=key,
        source_topics=sorted(part.source_topics),
        repartition_sink_topics=sorted(part.repartition_sink_topics),
        state_changelog_topics=changelogs,
        repartition_source_topics=repartition,
    )


def _topic_info(context: RequestContext, topic: InternalTopic) -> Message:
    return context.new(
        "TopicInfo",
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=[context.new("KeyValue", key=key, value=value) for key, value in topic.configs],
    )


def _member(context: RequestContext, group: StreamsGroup, member: StreamsGroupMember, offsets: TaskOffsets) -> Message:
    target, tasks = group.target_assignment.get(member.member_id, TargetTasks()), member.assigned_tasks
    current = TargetTasks({key: list(found) for key, found in tasks.active.items()}, tasks.standby, tasks.warmup)
    endpoint = member.user_endpoint
    return context.new(
        "Member",
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else context.new("Endpoint", host=endpoint[0], port=endpoint[1]),
        client_tags=[context.new("KeyValue", key=key, value=value) for key, value in member.client_tags.items()],
        task_offsets=[context.new("TaskOffset", **one._asdict()) for one in offsets.reached],
        task_end_offsets=[context.new("TaskOffset", **one._asdict()) for one in offsets.ends],
        assignment=_assignment(context, current),
        target_assignment=_assignment(context, target),
    )


def _assignment(context: RequestContext, tasks: TargetTasks) -> Message:
    active, standby, warmup = (_task_ids(context, found) for found in (tasks.active, tasks.standby, tasks.warmup))
    return context.new("Assignment", active_tasks=active, standby_tasks=standby, warmup_tasks=warmup)
