"""Topics: CreateTopics, CreatePartitions, DeleteTopics (KIP-4, KIP-195, KIP-516, KIP-525).

    refused                                                        with
    -------------------------------------------------------------  -------------------------------------------------
    a topic named twice in a request; __cluster_metadata           INVALID_REQUEST
    an invalid name, or one that collides with another             INVALID_TOPIC_EXCEPTION
    the name of an existing topic                                  TOPIC_ALREADY_EXISTS
    partitions or replication factor with an assignment            INVALID_REQUEST
    0 partitions, or below -1; not more than the topic has         INVALID_PARTITIONS
    a replication factor of 0 or below -1, or too large            INVALID_REPLICATION_FACTOR
    an assignment with gaps, unknown, repeated or inactive         INVALID_REPLICA_ASSIGNMENT
    invalid configs of a topic                                     INVALID_CONFIG
    more than MAX_RECORDS_PER_USER_OP partitions at once           POLICY_VIOLATION, the whole request
    a topic that does not exist, by name / by id                   UNKNOWN_TOPIC_OR_PARTITION / UNKNOWN_TOPIC_ID
    deleting with delete.topic.enable=false                        TOPIC_DELETION_DISABLED (INVALID_REQUEST below v3)

-1 partitions or replicas stand for the defaults (num.partitions, default.replication.factor). Each topic of a request is
decided separately; `validate_only` has the same response and no records. The records of a topic are in the order Topic, Config,
Partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING

from kcli.format.file_names import METADATA_TOPIC
from kcli.format.kafka_uuid import ZERO_UUID, Uuid, random_uuid
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from kcli.protocol.message import Message
from kcli.server.config.request_errors import ConfigRequestError
from kcli.server.config.topic_config import check_topic_config
from kcli.server.controller.controller_result import ApiError, ControllerRequestContext, ControllerResult
from kcli.server.controller.controller_state import ControllerState
from kcli.server.controller.striped_replica_placer import Assignments, StripedReplicaPlacer, UsableBroker
from kcli.server.raft.metadata_batches import MAX_RECORDS_PER_APPEND, new_record
from kcli.state.image_records import partition_record
from kcli.state.metadata_values import PartitionRegistration, Topic
from kcli.state.topic_names import colliding_topic, metric_name, topic_name_fault

if TYPE_CHECKING:
    from kcli.server.config.describe_configs import ConfigEntry

MAX_RECORDS_PER_USER_OP = MAX_RECORDS_PER_APPEND
# To check a topic of a CreateTopics, place it and describe it takes as long as to make and encode this many records.
_RECORDS_A_TOPIC = 8
_DEFAULT = -1
_TOPIC_RESOURCE = 2
_CONFIGS_SINCE = 5


class ReplicationControlManager:
    """Creation, growth and deletion of topics; for existing partitions see PartitionControlManager."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        self._placer = StripedReplicaPlacer(state.rng)

    def create_topics(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide a CreateTopics. Raises ApiError for a request that is refused as a whole."""
        self._check_total(request)
        response = API_KEYS[CREATE_TOPICS].response.new(topics=[])
        records = self._create_topics(request, response.topics, info.version)
        return ControllerResult((None for _ in records) if request.validate_only else records, response)

    def _create_topics(self, request: Message, results: list[Message], version: int) -> Iterator[Message | None]:
        """Yield the records of the new topics, and None for a part of the work on each of them; add their results."""
        make = API_KEYS[CREATE_TOPICS].response.classes["CreatableTopicResult"]
        names = [topic.name for topic in request.topics]
        twice = _named_twice(names)
        colliding = self._colliding_names(names)
        for topic in request.topics:
            if topic.name in twice:
                continue
            try:
                made, result = self._create_topic(topic, colliding, version)
            except ApiError as error:
                made, result = iter(()), make(name=topic.name, error_code=error.code, error_message=error.message)
            results.append(result)
            yield from repeat(None, _RECORDS_A_TOPIC)
            yield from made
        for name in dict.fromkeys(name for name in names if name in twice):
            text = "the request names this topic twice"
            results.append(make(name=name, error_code=error_codes.INVALID_REQUEST, error_message=text))

    def _check_total(self, request: Message) -> None:
        total = 0
        for topic in request.topics:
            default = int(self._state.setting("num.partitions"))
            total += len(topic.assignments) or (default if topic.num_partitions == _DEFAULT else max(topic.num_partitions, 0))
        if total > MAX_RECORDS_PER_USER_OP:
            text = f"the request creates {total} partitions; at most {MAX_RECORDS_PER_USER_OP} can be created by one request"
            raise ApiError(error_codes.POLICY_VIOLATION, text)

    def _colliding_names(self, names: Sequence[str]) -> dict[str, str]:
        """Return, for each name that collides with that of an existing topic, this topic's name."""
        if not any("." in name or "_" in name for name in names):
            return {}
        found = {}
        written = {metric_name(name): name for name in names}
        for existing in self._state.image.topic_ids:
            name = written.get(metric_name(existing))
            if name is not None and name != existing and colliding_topic(name, (existing,)):
                found[name] = existing
        return found

    def _create_topic(self, topic: Message, colliding: dict[str, str], version: int) -> tuple[Iterator[Message], Message]:
        """Return the records of a new topic, which are made one by one, and its result. Raises ApiError."""
        if topic.name == METADATA_TOPIC:
            raise ApiError(
                error_codes.INVALID_REQUEST,
                f"{METADATA_TOPIC} is an internal topic of the metadata quorum and cannot be created",
            )
        fault = topic_name_fault(topic.name)
        if fault is None and topic.name in colliding:
            fault = f"topic name {topic.name!r} collides with {colliding[topic.name]!r}: metrics replace '.' by '_'"
        if fault is not None:
            raise ApiError(error_codes.INVALID_TOPIC_EXCEPTION, fault)
        if topic.name in self._state.image.topic_ids:
            raise ApiError(error_codes.TOPIC_ALREADY_EXISTS, f"topic {topic.name!r} already exists")
        configs = self._new_configs(topic)
        assignments = self._manual(topic) if topic.assignments else self._placed(topic)
        made = Topic(topic.name, random_uuid(self._state.rng.randbytes), {})
        described = self._described(configs) if version >= _CONFIGS_SINCE else []
        result = _result(topic.name, made.topic_id, assignments, described)
        return chain(_topic_records(made, configs), self._partition_records(made, 0, assignments.replicas)), result

    def _partition_records(self, topic: Topic, first_index: int, assignments: Iterable[list[int]]) -> Iterator[Message]:
        """Yield the records of new partitions, whose replicas were checked: about 12 us each, and 3 us to place them."""
        for index, replicas in enumerate(assignments, first_index):
            yield partition_record(topic, index, self._new_partition(replicas), self._state.metadata_version)

    def _new_configs(self, topic: Message) -> dict[str, str]:
        """Return the configs of a new topic. Raises ApiError."""
        configs = {}
        for config in topic.configs:
            if config.value is None:
                raise ApiError(error_codes.INVALID_CONFIG, f"{config.name} of topic {topic.name!r} has no value")
            configs[config.name] = config.value
        try:
            check_topic_config(self._state.dynamic, configs)
        except ConfigRequestError as error:
            raise ApiError(error.code, str(error)) from None
        return configs

    def _manual(self, topic: Message) -> Assignments:
        """Return the replicas of each partition by the request's assignment. Raises ApiError."""
        if topic.replication_factor != _DEFAULT or topic.num_partitions != _DEFAULT:
            text = "with a replica assignment, the number of partitions and the replication factor must be -1"
            raise ApiError(error_codes.INVALID_REQUEST, text)
        assignments: dict[int, list[int]] = {}
        for assignment in topic.assignments:
            index = assignment.partition_index
            if index in assignments:
                raise ApiError(error_codes.INVALID_REPLICA_ASSIGNMENT, f"partition {index} is assigned twice")
            expected = len(next(iter(assignments.values()))) if assignments else None
            self._state.check_assignment(index, assignment.broker_ids, expected)
            assignments[index] = list(assignment.broker_ids)
        missing = next((index for index in range(len(assignments)) if index not in assignments), None)
        if missing is not None:
            text = f"partition {missing} is not assigned; partitions are numbered from 0 without a gap"
            raise ApiError(error_codes.INVALID_REPLICA_ASSIGNMENT, text)
        stated = [assignments[index] for index in range(len(assignments))]
        self._check_active(stated)
        return Assignments(len(stated), len(stated[0]), stated)

    def _placed(self, topic: Message) -> Assignments:
        """Return the replicas of each partition as the replica placer chooses them. Raises ApiError."""
        if topic.replication_factor < _DEFAULT or topic.replication_factor == 0:
            text = f"the replication factor is {topic.replication_factor}; it must be at least 1, or -1 for the default"
            raise ApiError(error_codes.INVALID_REPLICATION_FACTOR, text)
        if topic.num_partitions < _DEFAULT or topic.num_partitions == 0:
            text = f"the number of partitions is {topic.num_partitions}; it must be at least 1, or -1 for the default"
            raise ApiError(error_codes.INVALID_PARTITIONS, text)
        partitions, replication_factor = topic.num_partitions, topic.replication_factor
        if partitions == _DEFAULT:
            partitions = int(self._state.setting("num.partitions"))
        if replication_factor == _DEFAULT:
            replication_factor = int(self._state.setting("default.replication.factor"))
        return self._placer.place(self._usable_brokers(), partitions, replication_factor)

    def _usable_brokers(self) -> list[UsableBroker]:
        """Return the brokers that can get new replicas."""
        return [
            UsableBroker(broker.broker_id, broker.rack or "", broker.is_fenced)
            for broker in sorted(self._state.image.brokers.values(), key=lambda broker: broker.broker_id)
            if not self._state.is_stopping(broker.broker_id)
            and not (broker.log_dirs and set(broker.log_dirs) <= set(broker.cordoned_log_dirs or ()))
        ]

    def _check_active(self, assignments: Sequence[Sequence[int]]) -> None:
        """Check that each partition of an assignment has an active replica; the placer's have one. Raises ApiError."""
        active = set(filter(self._state.is_active, self._state.image.brokers))
        if any(map(active.isdisjoint, assignments)):
            text = "all brokers of a partition are fenced or shutting down; try again when one of them is back"
            raise ApiError(error_codes.INVALID_REPLICATION_FACTOR, text)

    def _new_partition(self, replicas: list[int]) -> PartitionRegistration:
        """Return a new partition: the active replicas are in sync."""
        isr = [broker_id for broker_id in replicas if self._state.is_active(broker_id)]
        return PartitionRegistration(
            replicas=replicas,
            isr=isr,
            removing_replicas=[],
            adding_replicas=[],
            leader=isr[0],
            leader_recovery_state="RECOVERED",
            leader_epoch=0,
            partition_epoch=0,
            directories=[self._state.default_directory(broker_id) for broker_id in replicas],
            eligible_leader_replicas=[],
            last_known_elr=[],
        )

    def _described(self, configs: dict[str, str]) -> list[ConfigEntry]:
        """Return the effective configurations of a topic that is being created."""
        from kcli.server.config.describe_configs import describe_created_topic

        return describe_created_topic(configs, self._state.dynamic)

    # ----------------------------------------------------------------------------------------------------- CreatePartitions

    def create_partitions(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide a CreatePartitions. Raises ApiError for a request that is refused as a whole."""
        api = API_KEYS[CREATE_PARTITIONS]
        result = api.response.classes["CreatePartitionsTopicResult"]
        twice = _named_twice(topic.name for topic in request.topics)
        records: list[Iterable[Message]] = []
        results: dict[str, Message] = {}
        total = 0
        for topic in request.topics:
            if topic.name in twice:
                text = "the request names this topic twice"
                results[topic.name] = result(name=topic.name, error_code=error_codes.INVALID_REQUEST, error_message=text)
                continue
            try:
                additional, made = self._create_partitions(topic, total)
                total += additional
                records.append(made)
                results[topic.name] = result(name=topic.name, error_code=error_codes.NONE)
            except ApiError as error:
                results[topic.name] = result(name=topic.name, error_code=error.code, error_message=error.message)
        response = api.response.new(results=list(results.values()))
        return ControllerResult(() if request.validate_only else chain.from_iterable(records), response)

    def _create_partitions(self, request: Message, already: int) -> tuple[int, Iterator[Message]]:
        """Return the number of partitions to add, and their records. Raises ApiError."""
        topic = self._state.image.topic(request.name)
        if topic is None:
            raise ApiError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {request.name!r} does not exist")
        present = len(topic.partitions)
        if request.count <= present:
            text = f"topic {request.name!r} already has {present} partition(s), and {request.count} are requested"
            raise ApiError(error_codes.INVALID_PARTITIONS, text)
        additional = request.count - present
        if already + additional > MAX_RECORDS_PER_USER_OP:
            text = f"{already + additional} partitions are requested; at most {MAX_RECORDS_PER_USER_OP} can be added at once"
            raise ApiError(error_codes.POLICY_VIOLATION, text)
        replication_factor = len(next(iter(topic.partitions.values())).replicas)
        if request.assignments is None:
            placed = self._placer.place(self._usable_brokers(), additional, replication_factor)
            assignments: Iterable[list[int]] = placed.replicas
        else:
            if len(request.assignments) != additional:
                text = f"{additional} partition(s) are to be added, but {len(request.assignments)} assignment(s) are given"
                raise ApiError(error_codes.INVALID_REPLICA_ASSIGNMENT, text)
            stated = [list(assignment.broker_ids) for assignment in request.assignments]
            for index, replicas in enumerate(stated, present):
                self._state.check_assignment(index, replicas, replication_factor)
            self._check_active(stated)
            assignments = stated
        return additional, self._partition_records(topic, present, assignments)

    # --------------------------------------------------------------------------------------------------------- DeleteTopics

    def delete_topics(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide a DeleteTopics, whose topics come by name or by id. Raises ApiError where deleting is disabled."""
        if self._state.setting("delete.topic.enable") != "true":
            code = error_codes.TOPIC_DELETION_DISABLED if info.version >= 3 else error_codes.INVALID_REQUEST
            raise ApiError(code, "topic deletion is disabled: delete.topic.enable is false")
        wanted: list[tuple[str | None, Uuid]] = [(topic.name, topic.topic_id) for topic in request.topics]
        if info.version < 6:
            wanted = [(name, ZERO_UUID) for name in request.topic_names]
        counts = Counter(wanted)
        records: list[Message] = []
        results: list[Message] = []
        made = API_KEYS[DELETE_TOPICS].response.classes["DeletableTopicResult"]
        for name, topic_id in counts:
            try:
                topic = self._topic_to_delete(counts, name, topic_id)
                records.append(new_record("RemoveTopicRecord", topic_id=topic.topic_id))
                results.append(made(name=topic.name, topic_id=topic.topic_id, error_code=error_codes.NONE))
            except ApiError as error:
                results.append(made(name=name, topic_id=topic_id, error_code=error.code, error_message=error.message))
        return ControllerResult(records, API_KEYS[DELETE_TOPICS].response.new(responses=results))

    def _topic_to_delete(self, counts: Counter[tuple[str | None, Uuid]], name: str | None, topic_id: Uuid) -> Topic:
        """Return the topic of an entry; `counts` is how often the request has each entry. Raises ApiError."""
        code, fault = error_codes.INVALID_REQUEST, None
        if name is not None and topic_id != ZERO_UUID:
            fault = "a topic must be identified by its name or by its id, not by both"
        elif name is None and topic_id == ZERO_UUID:
            fault = "a topic has neither a name nor an id"
        elif counts[name, topic_id] > 1:
            fault = "the request names this topic twice"
        if fault is not None:
            raise ApiError(code, fault)
        if name is None:
            found = self._state.image.topics.get(topic_id)
            if found is None:
                raise ApiError(error_codes.UNKNOWN_TOPIC_ID, f"topic id {topic_id} does not exist")
            return found
        found = self._state.image.topic(name)
        if found is None:
            raise ApiError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        if (None, found.topic_id) in counts:
            raise ApiError(code, f"the request has topic {name!r} also by its id")
        return found


def _named_twice(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def _topic_records(made: Topic, configs: dict[str, str]) -> Iterator[Message]:
    yield new_record("TopicRecord", name=made.name, topic_id=made.topic_id)
    for key, value in configs.items():
        yield new_record("ConfigRecord", resource_type=_TOPIC_RESOURCE, resource_name=made.name, name=key, value=value)


def _result(name: str, topic_id: Uuid, assignments: Assignments, described: list[ConfigEntry]) -> Message:
    classes = API_KEYS[CREATE_TOPICS].response.classes
    return classes["CreatableTopicResult"](
        name=name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=assignments.partitions,
        replication_factor=assignments.replication_factor,
        configs=[
            classes["CreatableTopicConfigs"](
                name=entry.name,
                value=entry.value,
                read_only=entry.is_read_only,
                config_source=entry.source,
                is_sensitive=entry.is_sensitive,
            )
            for entry in described
        ],
    )
