"""Changes of partitions that brokers and administrators ask for: AlterPartition, ElectLeaders, AssignReplicasToDirs.

    AlterPartition is refused, a partition                         with
    -------------------------------------------------------------  ------------------------------------------------
    the topic or the partition is not there                        UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION
    the leader's epochs are newer than the controller's            NOT_CONTROLLER: ask the one that wrote them
    another leader epoch / partition epoch                         FENCED_LEADER_EPOCH / INVALID_UPDATE_VERSION
    from another than the leader; an ISR that is none; two in      INVALID_REQUEST
      sync while recovering; back to RECOVERING
    a broker in the ISR that is fenced, leaving, or another one    INELIGIBLE_REPLICA
    it would end a reassignment and with it the leadership         NEW_LEADER_ELECTED (and it is done)

ElectLeaders goes by partition; for all of them (null) those that need none are not told. AssignReplicasToDirs tells where a
replica lies (KIP-858); one in a directory that is offline makes its broker leave the ISR.
"""

from __future__ import annotations

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.protocol.apis import ALTER_PARTITION, API_KEYS, ASSIGN_REPLICAS_TO_DIRS, ELECT_LEADERS
from kcli.protocol.message import Message
from kcli.server.controller.cluster_control_manager import leader_and_isr_records
from kcli.server.controller.controller_result import ApiError, ControllerRequestContext, ControllerResult
from kcli.server.controller.controller_state import ControllerState
from kcli.server.controller.partition_change_builder import RECOVERING, Election
from kcli.state.image_records import DIRECTORIES_SINCE, number_of
from kcli.state.metadata_values import LEADER_RECOVERY_STATES, NO_LEADER, NO_LEADER_CHANGE, Partition, Topic

_ISR_WITH_EPOCHS_SINCE = 3
_ANY_EPOCH = -1
_PREFERRED, _UNCLEAN = 0, 1


def alter_partition(state: ControllerState, request: Message, info: ControllerRequestContext) -> ControllerResult:
    """Decide an AlterPartition. Raises ApiError for a stale broker."""
    state.check_epoch(request.broker_id, request.broker_epoch)
    api = API_KEYS[ALTER_PARTITION]
    records: list[Message] = []
    topics = []
    for topic_data in request.topics:
        results = []
        for asked in topic_data.partitions:
            try:
                record, result = _alter_one(state, request.broker_id, topic_data.topic_id, asked, info.version)
                records += record
            except ApiError as error:
                made = api.response.classes["PartitionData"]
                result = made(partition_index=asked.partition_index, error_code=error.code)
            results.append(result)
        topics.append(api.response.classes["TopicData"](topic_id=topic_data.topic_id, partitions=results))
    return ControllerResult(records, api.response.new(topics=topics))


def _alter_one(
    state: ControllerState, broker_id: int, topic_id: Uuid, asked: Message, version: int
) -> tuple[list[Message], Message]:
    """One partition's change -> (its record, if any, its result). Raises ApiError."""
    topic = state.image.topics.get(topic_id)
    if topic is None:
        raise ApiError(error_codes.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
    index = asked.partition_index
    if index not in topic.partitions:
        raise ApiError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name} has no partition {index}")
    partition = topic.partitions[index]
    isr = [(broker, _ANY_EPOCH) for broker in asked.new_isr]
    if version >= _ISR_WITH_EPOCHS_SINCE:
        isr = [(member.broker_id, member.broker_epoch) for member in asked.new_isr_with_epochs]
    _check_epochs(broker_id, partition, asked)
    _check_isr(state, partition, asked, isr)
    change = state.change(topic, index)
    change.target_isr = [member for member, _ in isr]
    change.target_recovery_state = asked.leader_recovery_state
    record = change.record()
    made = API_KEYS[ALTER_PARTITION].response.classes["PartitionData"]
    leader, leader_epoch, partition_epoch, in_sync = (
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
        partition.isr,
    )
    recovery_state = number_of(LEADER_RECOVERY_STATES, partition.leader_recovery_state)
    if record is not None:
        partition_epoch += 1
        in_sync = in_sync if record.isr is None else record.isr
        recovery_state = recovery_state if record.leader_recovery_state < 0 else record.leader_recovery_state
        if record.leader != NO_LEADER_CHANGE:
            leader, leader_epoch = record.leader, leader_epoch + 1
            if leader != broker_id:
                return [record], made(partition_index=index, error_code=error_codes.NEW_LEADER_ELECTED)
    result = made(
        partition_index=index,
        leader_id=leader,
        leader_epoch=leader_epoch,
        isr=in_sync,
        leader_recovery_state=recovery_state,
        partition_epoch=partition_epoch,
    )
    return [] if record is None else [record], result


def _check_epochs(broker_id: int, partition: Partition, asked: Message) -> None:
    if asked.leader_epoch > partition.leader_epoch or asked.partition_epoch > partition.partition_epoch:
        raise ApiError(error_codes.NOT_CONTROLLER, "the leader has epochs that this controller has not heard of")
    if asked.leader_epoch < partition.leader_epoch:
        raise ApiError(error_codes.FENCED_LEADER_EPOCH, f"the leader epoch is {partition.leader_epoch}")
    if broker_id != partition.leader:
        raise ApiError(error_codes.INVALID_REQUEST, f"the leader is {partition.leader}")
    if asked.partition_epoch < partition.partition_epoch:
        raise ApiError(error_codes.INVALID_UPDATE_VERSION, f"the partition epoch is {partition.partition_epoch}")


def _check_isr(state: ControllerState, partition: Partition, asked: Message, isr: list[tuple[int, int]]) -> None:
    code = error_codes.INVALID_REQUEST
    members = [member for member, _ in isr]
    if not members or len(set(members)) != len(members) or not set(members) <= set(partition.replicas):
        raise ApiError(code, f"{members} is no ISR of replicas {partition.replicas}")
    if partition.leader not in members:
        raise ApiError(code, "the leader is not in the ISR that it asks for")
    if asked.leader_recovery_state == RECOVERING:
        if len(members) > 1:
            raise ApiError(code, "a leader that is recovering is alone in its ISR")
        if number_of(LEADER_RECOVERY_STATES, partition.leader_recovery_state) != RECOVERING:
            raise ApiError(code, "a leader that has recovered does not go back to recovering")
    for member, epoch in isr:
        broker = state.image.brokers.get(member)
        if broker is None or not state.is_active(member) or epoch not in (_ANY_EPOCH, broker.broker_epoch):
            text = f"broker {member} cannot be in sync: it is fenced, leaving or restarted"
            raise ApiError(error_codes.INELIGIBLE_REPLICA, text)


# --------------------------------------------------------------------------------------------------------- ElectLeaders


def elect_leaders(state: ControllerState, request: Message, info: ControllerRequestContext) -> ControllerResult:
    """Decide an ElectLeaders. Raises ApiError for an election type that is none."""
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        raise ApiError(error_codes.INVALID_REQUEST, f"{request.election_type} is no election type: 0 is preferred, 1 unclean")
    is_unclean = request.election_type == _UNCLEAN
    wanted = request.topic_partitions
    if wanted is None:
        asked = [(topic.name, list(topic.partitions)) for topic in state.image.topics.values()]
    else:
        asked = [(topic.topic, topic.partitions) for topic in wanted]
    classes = API_KEYS[ELECT_LEADERS].response.classes
    records: list[Message] = []
    results = []
    for name, indexes in asked:
        answers = []
        for index in indexes:
            try:
                records.append(_elect_one(state, name, index, is_unclean=is_unclean))
                answers.append(classes["PartitionResult"](partition_id=index, error_code=error_codes.NONE, error_message=None))
            except ApiError as error:
                if wanted is not None or error.code != error_codes.ELECTION_NOT_NEEDED:
                    answers.append(
                        classes["PartitionResult"](partition_id=index, error_code=error.code, error_message=error.message)
                    )
        results.append(classes["ReplicaElectionResult"](topic=name, partition_result=answers))
    return ControllerResult(records, API_KEYS[ELECT_LEADERS].response.new(replica_election_results=results))


def _elect_one(state: ControllerState, name: str, index: int, *, is_unclean: bool) -> Message:
    topic = find_partition(state, name, index)
    partition = topic.partitions[index]
    is_fine = partition.leader != NO_LEADER if is_unclean else partition.leader == partition.replicas[0]
    if is_fine:
        raise ApiError(error_codes.ELECTION_NOT_NEEDED, f"{name}-{index} has the leader that it should have")
    record = state.change(topic, index, election=Election.UNCLEAN if is_unclean else Election.PREFERRED).record()
    if record is None:
        code = error_codes.ELIGIBLE_LEADERS_NOT_AVAILABLE if is_unclean else error_codes.PREFERRED_LEADER_NOT_AVAILABLE
        raise ApiError(code, f"no broker that could lead {name}-{index} is there")
    return record


def find_partition(state: ControllerState, name: str, index: int) -> Topic:
    """The topic of that name, which has that partition. Raises ApiError."""
    topic = state.image.topic(name)
    if topic is None or index not in topic.partitions:
        raise ApiError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}")
    return topic


# ------------------------------------------------------------------------------------------------- AssignReplicasToDirs


def assign_replicas_to_dirs(state: ControllerState, request: Message, info: ControllerRequestContext) -> ControllerResult:
    """Decide an AssignReplicasToDirs. Raises ApiError for a stale broker, or where directories are not told yet."""
    if state.metadata_version < DIRECTORIES_SINCE:
        raise ApiError(error_codes.UNSUPPORTED_VERSION, "the cluster's metadata.version does not tell directories")
    broker_id = request.broker_id
    broker = state.check_epoch(broker_id, request.broker_epoch)
    classes = API_KEYS[ASSIGN_REPLICAS_TO_DIRS].response.classes
    records: list[Message] = []
    offline: dict[int, Partition] = {}  # by identity
    directories = []
    for directory in request.directories:
        is_offline = bool(broker.log_dirs) and directory.id not in broker.log_dirs
        topics = []
        for asked in directory.topics:
            topic = state.image.topics.get(asked.topic_id)
            results = []
            for named in asked.partitions:
                index = named.partition_index
                code = _assignment_fault(topic, index, broker_id)
                if code == error_codes.NONE and topic is not None:
                    change = state.change(topic, index)
                    change.target_directories[broker_id] = directory.id
                    record = change.record()
                    records += [] if record is None else [record]
                    if is_offline:
                        offline[id(topic.partitions[index])] = topic.partitions[index]
                results.append(classes["PartitionData"](partition_index=index, error_code=code))
            topics.append(classes["TopicData"](topic_id=asked.topic_id, partitions=results))
        directories.append(classes["DirectoryData"](id=directory.id, topics=topics))
    if offline:
        records += leader_and_isr_records(state, lambda partition: id(partition) in offline, removed=broker_id)
    return ControllerResult(records, API_KEYS[ASSIGN_REPLICAS_TO_DIRS].response.new(directories=directories))


def _assignment_fault(topic: Topic | None, index: int, broker_id: int) -> int:
    if topic is None:
        return error_codes.UNKNOWN_TOPIC_ID
    if index not in topic.partitions:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION
    if broker_id not in topic.partitions[index].replicas:
        return error_codes.NOT_LEADER_OR_FOLLOWER
    return error_codes.NONE
