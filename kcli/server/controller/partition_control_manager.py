"""Changes of existing partitions: AlterPartition, ElectLeaders, AssignReplicasToDirs, partition reassignments (KIP-455).

    AlterPartition refuses, for each partition                     with
    -------------------------------------------------------------  ------------------------------------------------
    a topic or partition that does not exist                       UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION
    epochs that are newer than the controller's                    NOT_CONTROLLER: another controller wrote them
    another leader epoch / partition epoch                         FENCED_LEADER_EPOCH / INVALID_UPDATE_VERSION
    a request of another broker than the leader; an invalid ISR;   INVALID_REQUEST
      two members while recovering; a return to RECOVERING
    a member that is fenced, shutting down, or another incarnation INELIGIBLE_REPLICA
    a change that completes a reassignment and elects another      NEW_LEADER_ELECTED (the change is made)
      leader

    AlterPartitionReassignments asks for                           result
    -------------------------------------------------------------  ------------------------------------------------
    other replicas                                                 the new ones are adding, the old ones removing; it is
                                                                   complete when all that stay are in sync (see
                                                                   partition_change_builder)
    the same replicas in another order                             done at once
    null, during a reassignment                                    the old replicas again; refused if that needs an
                                                                   unclean election
    null, without a reassignment                                   NO_REASSIGNMENT_IN_PROGRESS
    another number of replicas, if that is not allowed             INVALID_REPLICATION_FACTOR

The response to ElectLeaders for all partitions (null) leaves out those that need no election. AssignReplicasToDirs states the
directory of a replica (KIP-858); if that directory is offline, the broker leaves the ISR.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ALTER_PARTITION,
    ALTER_PARTITION_REASSIGNMENTS,
    API_KEYS,
    ASSIGN_REPLICAS_TO_DIRS,
    ELECT_LEADERS,
    LIST_PARTITION_REASSIGNMENTS,
)
from kcli.protocol.message import Message
from kcli.server.controller.controller_result import ApiError, ControllerRequestContext, ControllerResult
from kcli.server.controller.controller_state import ControllerImage, ControllerState, PartitionKey
from kcli.server.controller.partition_change_builder import RECOVERING, Election
from kcli.state.image_records import DIRECTORIES_SINCE, number_of
from kcli.state.metadata_values import (
    LEADER_RECOVERY_STATES,
    NO_LEADER,
    NO_LEADER_CHANGE,
    BrokerRegistration,
    PartitionRegistration,
    Topic,
)

_ISR_WITH_EPOCHS_SINCE = 3
_ANY_EPOCH = -1
_PREFERRED, _UNCLEAN = 0, 1


class PartitionControlManager:
    """Changes of existing partitions, which are a part of Kafka's ReplicationControlManager."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state

    def alter_partition(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide an AlterPartition. Raises ApiError for a stale broker."""
        self._state.check_epoch(request.broker_id, request.broker_epoch)
        response = API_KEYS[ALTER_PARTITION].response.new()
        return ControllerResult(self._alter_all(request, info.version, response.topics), response)

    def _alter_all(self, request: Message, version: int, topics: list[Message]) -> Iterator[Message | None]:
        """Yield the changes that an AlterPartition makes, and add the results to `topics`."""
        classes = API_KEYS[ALTER_PARTITION].response.classes
        for topic_data in request.topics:
            results: list[Message] = []
            topics.append(classes["TopicData"](topic_id=topic_data.topic_id, partitions=results))
            for asked in topic_data.partitions:
                record = None
                try:
                    record, result = self._alter_one(request.broker_id, topic_data.topic_id, asked, version)
                except ApiError as error:
                    result = classes["PartitionData"](partition_index=asked.partition_index, error_code=error.code)
                results.append(result)
                yield record

    def _alter_one(self, broker_id: int, topic_id: Uuid, asked: Message, version: int) -> tuple[Message | None, Message]:
        """Return the record of one partition's change, if there is one, and the result. Raises ApiError."""
        topic = self._state.image.topics.get(topic_id)
        if topic is None:
            raise ApiError(error_codes.UNKNOWN_TOPIC_ID, f"topic id {topic_id} does not exist")
        index = asked.partition_index
        if index not in topic.partitions:
            raise ApiError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name} has no partition {index}")
        partition = topic.partitions[index]
        isr = [(broker, _ANY_EPOCH) for broker in asked.new_isr]
        if version >= _ISR_WITH_EPOCHS_SINCE:
            isr = [(member.broker_id, member.broker_epoch) for member in asked.new_isr_with_epochs]
        _check_epochs(broker_id, partition, asked)
        self._check_isr(partition, asked, isr)
        change = self._state.change(topic, index)
        change.target_isr = [member for member, _ in isr]
        change.target_recovery_state = asked.leader_recovery_state
        record = change.build()
        made = API_KEYS[ALTER_PARTITION].response.classes["PartitionData"]
        leader, leader_epoch = partition.leader, partition.leader_epoch
        partition_epoch, in_sync = partition.partition_epoch, partition.isr
        recovery_state = number_of(LEADER_RECOVERY_STATES, partition.leader_recovery_state)
        if record is not None:
            partition_epoch += 1
            in_sync = in_sync if record.isr is None else record.isr
            recovery_state = recovery_state if record.leader_recovery_state < 0 else record.leader_recovery_state
            if record.leader != NO_LEADER_CHANGE:
                leader, leader_epoch = record.leader, leader_epoch + 1
                if leader != broker_id:
                    return record, made(partition_index=index, error_code=error_codes.NEW_LEADER_ELECTED)
        result = made(
            partition_index=index,
            leader_id=leader,
            leader_epoch=leader_epoch,
            isr=in_sync,
            leader_recovery_state=recovery_state,
            partition_epoch=partition_epoch,
        )
        return record, result

    def _check_isr(self, partition: PartitionRegistration, asked: Message, isr: list[tuple[int, int]]) -> None:
        code = error_codes.INVALID_REQUEST
        members = [member for member, _ in isr]
        fault = _isr_fault(members, partition.replicas)
        if fault is not None:
            raise ApiError(code, f"the ISR {members} is invalid for replicas {partition.replicas}: {fault}")
        if partition.leader not in members:
            raise ApiError(code, f"the ISR {members} does not contain the leader {partition.leader}")
        if asked.leader_recovery_state == RECOVERING:
            if len(members) > 1:
                raise ApiError(code, "a leader that is recovering must be the only member of the ISR")
            if number_of(LEADER_RECOVERY_STATES, partition.leader_recovery_state) != RECOVERING:
                raise ApiError(code, "a leader that has recovered cannot be recovering again")
        for member, epoch in isr:
            broker = self._state.image.brokers.get(member)
            if broker is None or not self._state.is_active(member) or epoch not in (_ANY_EPOCH, broker.broker_epoch):
                text = f"broker {member} cannot join the ISR: it is fenced, shutting down or restarted"
                raise ApiError(error_codes.INELIGIBLE_REPLICA, text)

    # --------------------------------------------------------------------------------------------------------- ElectLeaders

    def elect_leaders(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide an ElectLeaders. Raises ApiError for an election type that is none."""
        if request.election_type not in (_PREFERRED, _UNCLEAN):
            raise ApiError(
                error_codes.INVALID_REQUEST, f"{request.election_type} is not an election type: 0 is preferred, 1 is unclean"
            )
        response = API_KEYS[ELECT_LEADERS].response.new()
        return ControllerResult(self._elect_all(request, response.replica_election_results), response)

    def _elect_all(self, request: Message, results: list[Message]) -> Iterator[Message | None]:
        """Yield the changes that an ElectLeaders makes, and add the results of each topic to `results`."""
        is_unclean = request.election_type == _UNCLEAN
        classes = API_KEYS[ELECT_LEADERS].response.classes
        is_all = request.topic_partitions is None
        for name, indexes in self._to_elect(request.topic_partitions, is_unclean=is_unclean):
            answers: list[Message] = []
            results.append(classes["ReplicaElectionResult"](topic=name, partition_result=answers))
            for index in indexes:
                code, text, record = error_codes.NONE, None, None
                try:
                    record = self._elect_one(name, index, is_unclean=is_unclean)
                except ApiError as error:
                    code, text = error.code, error.message
                if not is_all or code != error_codes.ELECTION_NOT_NEEDED:
                    answers.append(classes["PartitionResult"](partition_id=index, error_code=code, error_message=text))
                yield record

    def _to_elect(self, wanted: Sequence[Message] | None, *, is_unclean: bool) -> Iterable[tuple[str, Sequence[int]]]:
        """Return the partitions of an ElectLeaders by topic: those in the request, or all topics with those that need one."""
        if wanted is not None:
            return [(topic.topic, topic.partitions) for topic in wanted]
        image = self._state.image
        found: dict[str, list[int]] = {name: [] for name in image.topic_ids}
        for topic, index in self._state.existing(image.index.without_leader if is_unclean else image.index.imbalanced):
            found[topic.name].append(index)
        return found.items()

    def _elect_one(self, name: str, index: int, *, is_unclean: bool) -> Message:
        topic = self.find_partition(name, index)
        partition = topic.partitions[index]
        is_right = partition.leader != NO_LEADER if is_unclean else partition.leader == partition.replicas[0]
        if is_right:
            raise ApiError(error_codes.ELECTION_NOT_NEEDED, f"{name}-{index} needs no election")
        record = self._state.change(topic, index, election=Election.UNCLEAN if is_unclean else Election.PREFERRED).build()
        if record is None:
            code = error_codes.ELIGIBLE_LEADERS_NOT_AVAILABLE if is_unclean else error_codes.PREFERRED_LEADER_NOT_AVAILABLE
            raise ApiError(code, f"no broker is available that could lead {name}-{index}")
        return record

    def find_partition(self, name: str, index: int) -> Topic:
        """Return the topic of that name. Raises ApiError if it has no such partition."""
        topic = self._state.image.topic(name)
        if topic is None or index not in topic.partitions:
            raise ApiError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"partition {name}-{index} does not exist")
        return topic

    # ------------------------------------------------------------------------------------------------- AssignReplicasToDirs

    def assign_replicas_to_dirs(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide an AssignReplicasToDirs. Raises ApiError for a stale broker, or a metadata.version without directories."""
        if self._state.metadata_version < DIRECTORIES_SINCE:
            raise ApiError(
                error_codes.UNSUPPORTED_VERSION, "the cluster's metadata.version does not support directory assignments"
            )
        broker_id = request.broker_id
        broker = self._state.check_epoch(broker_id, request.broker_epoch)
        response = API_KEYS[ASSIGN_REPLICAS_TO_DIRS].response.new()
        return ControllerResult(self._assign_all(request, broker, response.directories), response)

    def _assign_all(self, request: Message, broker: BrokerRegistration, directories: list[Message]) -> Iterator[Message | None]:
        """Yield the changes that an AssignReplicasToDirs makes, and add the results to `directories`."""
        classes = API_KEYS[ASSIGN_REPLICAS_TO_DIRS].response.classes
        offline: dict[PartitionKey, None] = {}
        for directory in request.directories:
            is_offline = bool(broker.log_dirs) and directory.id not in broker.log_dirs
            topics: list[Message] = []
            directories.append(classes["DirectoryData"](id=directory.id, topics=topics))
            for asked in directory.topics:
                topic = self._state.image.topics.get(asked.topic_id)
                results: list[Message] = []
                topics.append(classes["TopicData"](topic_id=asked.topic_id, partitions=results))
                for named in asked.partitions:
                    index = named.partition_index
                    code = _assignment_fault(topic, index, broker.broker_id)
                    results.append(classes["PartitionData"](partition_index=index, error_code=code))
                    if code != error_codes.NONE or topic is None:
                        yield None
                        continue
                    change = self._state.change(topic, index, election=Election.ONLINE)
                    change.target_directories[broker.broker_id] = directory.id
                    yield change.build()
                    if is_offline:
                        offline[topic.topic_id, index] = None
        yield from self._state.leader_and_isr_records(offline, removed=broker.broker_id)

    # ------------------------------------------------------------------------------------------------------- reassignments

    def alter_partition_reassignments(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide an AlterPartitionReassignments."""
        allowed = request.allow_replication_factor_change
        response = API_KEYS[ALTER_PARTITION_REASSIGNMENTS].response.new(
            error_message=None, allow_replication_factor_change=allowed
        )
        return ControllerResult(self._reassign_all(request, response.responses), response)

    def _reassign_all(self, request: Message, responses: list[Message]) -> Iterator[Message | None]:
        """Yield the changes that an AlterPartitionReassignments makes, and add the results to `responses`."""
        classes = API_KEYS[ALTER_PARTITION_REASSIGNMENTS].response.classes
        for topic in request.topics:
            results: list[Message] = []
            responses.append(classes["ReassignableTopicResponse"](name=topic.name, partitions=results))
            for asked in topic.partitions:
                index, code, text, record = asked.partition_index, error_codes.NONE, None, None
                try:
                    found = self.find_partition(topic.name, index)
                    if asked.replicas is None:
                        record = self._cancel(found, index)
                    else:
                        allowed = request.allow_replication_factor_change
                        record = self._move(found, index, list(asked.replicas), may_change_factor=allowed)
                except ApiError as error:
                    code, text = error.code, error.message
                made = classes["ReassignablePartitionResponse"]
                results.append(made(partition_index=index, error_code=code, error_message=text))
                yield record

    def _move(self, topic: Topic, index: int, target: list[int], *, may_change_factor: bool) -> Message | None:
        partition = topic.partitions[index]
        self._state.check_assignment(index, target, None, is_new=False)
        before = _original_replicas(partition)
        # A reassignment that is in progress counts as complete.
        factor = len({*partition.replicas, *partition.adding_replicas} - {*partition.removing_replicas})
        if not may_change_factor and len(target) != factor:
            text = f"{topic.name}-{index} has {factor} replicas and would have {len(target)}; the request does not allow this"
            raise ApiError(error_codes.INVALID_REPLICATION_FACTOR, text)
        change = self._state.change(topic, index, election=Election.ONLINE)
        removing = sorted(replica for replica in partition.replicas if replica not in target)
        adding = sorted(replica for replica in target if replica not in before)
        # Replicas to be removed stay, behind the new ones, until the reassignment is complete.
        change.target_replicas = [*target, *removing]
        change.target_removing = removing
        change.target_adding = adding
        return change.build()

    def _cancel(self, topic: Topic, index: int) -> Message | None:
        partition = topic.partitions[index]
        if not partition.adding_replicas and not partition.removing_replicas:
            raise ApiError(error_codes.NO_REASSIGNMENT_IN_PROGRESS, f"no reassignment of {topic.name}-{index} is in progress")
        replicas = _original_replicas(partition)
        isr = [replica for replica in partition.isr if replica in replicas]
        if not isr:
            if not self._state.is_unclean_allowed(topic):
                text = (
                    f"the reassignment of {topic.name}-{index} cannot be cancelled: none of {replicas} is in sync, "
                    "and unclean elections are disabled"
                )
                raise ApiError(error_codes.INVALID_REPLICA_ASSIGNMENT, text)
            isr = [next(filter(self._state.is_active, replicas), replicas[0])]
        change = self._state.change(topic, index)
        change.target_replicas, change.target_isr = replicas, isr
        change.target_removing, change.target_adding = [], []
        return change.build()


def _check_epochs(broker_id: int, partition: PartitionRegistration, asked: Message) -> None:
    if asked.leader_epoch > partition.leader_epoch or asked.partition_epoch > partition.partition_epoch:
        raise ApiError(error_codes.NOT_CONTROLLER, "the request has epochs that this controller does not know")
    if asked.leader_epoch < partition.leader_epoch:
        raise ApiError(error_codes.FENCED_LEADER_EPOCH, f"the leader epoch is {partition.leader_epoch}")
    if broker_id != partition.leader:
        raise ApiError(error_codes.INVALID_REQUEST, f"the leader is {partition.leader}")
    if asked.partition_epoch < partition.partition_epoch:
        raise ApiError(error_codes.INVALID_UPDATE_VERSION, f"the partition epoch is {partition.partition_epoch}")


def _assignment_fault(topic: Topic | None, index: int, broker_id: int) -> int:
    if topic is None:
        return error_codes.UNKNOWN_TOPIC_ID
    if index not in topic.partitions:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION
    if broker_id not in topic.partitions[index].replicas:
        return error_codes.NOT_LEADER_OR_FOLLOWER
    return error_codes.NONE


def _original_replicas(partition: PartitionRegistration) -> list[int]:
    """Return the replicas before the reassignment that is in progress."""
    return [replica for replica in partition.replicas if replica not in partition.adding_replicas]


def list_partition_reassignments(request: Message, image: ControllerImage) -> Message:
    """Answer ListPartitionReassignments, for the partitions in the request or for all."""
    api = API_KEYS[LIST_PARTITION_REASSIGNMENTS]
    classes = api.response.classes
    if request.topics is None:
        by_topic: dict[Uuid, list[int]] = {}
        for topic_id, index in image.index.moving:
            by_topic.setdefault(topic_id, []).append(index)
        asked = [(image.topics[topic_id], indexes) for topic_id, indexes in by_topic.items()]
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


def _isr_fault(members: list[int], replicas: list[int]) -> str | None:
    """Return what is wrong with a proposed ISR, None for nothing."""
    if not members:
        return "it is empty"
    for member in members:
        if members.count(member) > 1:
            return f"broker {member} is listed twice"
        if member not in replicas:
            return f"broker {member} is not a replica"
    return None
