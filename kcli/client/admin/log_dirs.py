"""Log directories of brokers (Kafka: LogDirDescription, ReplicaInfo, TopicPartitionReplica).

operation                  API                   node
-------------------------  --------------------  ------------------------------
describe_log_dirs          DescribeLogDirs       each of the brokers
describe_replica_log_dirs  DescribeLogDirs       the brokers of the replicas
alter_replica_log_dirs     AlterReplicaLogDirs   the brokers of the replicas
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kcli.client.admin.error_sentences import kafka_error, outcome_error
from kcli.client.admin.operation import Call, Operation, Outcomes, RequestContext, Route, run
from kcli.client.admin.partitions import by_topic
from kcli.client.errors import ClientError
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import ALTER_REPLICA_LOG_DIRS, API_KEYS, DESCRIBE_LOG_DIRS
from kcli.protocol.message import Message

UNKNOWN_BYTES = -1


class ReplicaInfo(NamedTuple):
    """A replica in a log directory; `is_future` if it is the copy of a move to this directory."""

    size_bytes: int
    offset_lag: int
    is_future: bool


class LogDirDescription(NamedTuple):
    """A log directory; an offline one has an error. The sizes of the file system are UNKNOWN_BYTES before Kafka 3.3."""

    error: ClientError | None
    replicas: dict[TopicPartition, ReplicaInfo]
    total_bytes: int = UNKNOWN_BYTES
    usable_bytes: int = UNKNOWN_BYTES
    is_cordoned: bool = False


class TopicPartitionReplica(NamedTuple):
    """A replica of a partition on a broker."""

    topic: str
    partition: int
    broker_id: int


class ReplicaLogDir(NamedTuple):
    """Where a replica is: its directory and lag, and those of its copy during a move, None if there is none."""

    current_dir: str | None = None
    current_lag: int = -1
    future_dir: str | None = None
    future_lag: int = -1


def describe_log_dirs(
    broker_ids: Iterable[int], partitions: Iterable[TopicPartition] | None = None
) -> Operation[Outcomes[int, dict[str, LogDirDescription]]]:
    """Return the log directories of brokers by path, with some replicas or all (None)."""
    wanted = None if partitions is None else by_topic(partitions)

    def request(_keys: Sequence[int], _context: RequestContext) -> Message:
        kind = API_KEYS[DESCRIBE_LOG_DIRS].request
        one = kind.classes["DescribableLogDirTopic"]
        topics = None if wanted is None else [one(topic=name, partitions=found) for name, found in wanted.items()]
        return kind.new(topics=topics)

    return (yield from run(Call(DESCRIBE_LOG_DIRS, Route.BROKER, request, _read_dirs, is_single=True), broker_ids))


def _read_dirs(keys: Sequence[int], answer: Message) -> Iterator[tuple[int, dict[str, LogDirDescription] | ClientError]]:
    if answer.error_code:
        yield keys[0], kafka_error(answer.error_code)
        return
    if not answer.results:  # so brokers before version 3 answer a client that may not see the directories
        yield keys[0], kafka_error(error_codes.CLUSTER_AUTHORIZATION_FAILED)
        return
    found = {}
    for one in answer.results:
        replicas = {
            (topic.name, each.partition_index): ReplicaInfo(each.partition_size, each.offset_lag, each.is_future_key)
            for topic in one.topics
            for each in topic.partitions
        }
        error = outcome_error(one.error_code)
        found[one.log_dir] = LogDirDescription(error, replicas, one.total_bytes, one.usable_bytes, one.is_cordoned)
    yield keys[0], found


def describe_replica_log_dirs(
    replicas: Iterable[TopicPartitionReplica],
) -> Operation[Outcomes[TopicPartitionReplica, ReplicaLogDir]]:
    """Return where replicas are; all fields are empty for one that its broker does not have."""
    wanted = list(dict.fromkeys(replicas))
    brokers = list(dict.fromkeys(one.broker_id for one in wanted))
    partitions = list(dict.fromkeys((one.topic, one.partition) for one in wanted))
    described = yield from describe_log_dirs(brokers, partitions)
    return {one: _place(one, described[one.broker_id]) for one in wanted}


def _place(
    replica: TopicPartitionReplica, described: dict[str, LogDirDescription] | ClientError
) -> ReplicaLogDir | ClientError:
    if isinstance(described, ClientError):
        return described
    place = ReplicaLogDir()
    for path, directory in described.items():
        info = directory.replicas.get((replica.topic, replica.partition))
        if info is None:
            continue
        if info.is_future:
            place = place._replace(future_dir=path, future_lag=info.offset_lag)
        else:
            place = place._replace(current_dir=path, current_lag=info.offset_lag)
    return place


def alter_replica_log_dirs(
    targets: Mapping[TopicPartitionReplica, str],
) -> Operation[Outcomes[TopicPartitionReplica, None]]:
    """Begin to move replicas to other directories of their brokers; a replica that does not exist yet is created there."""

    def request(keys: Sequence[TopicPartitionReplica], _context: RequestContext) -> Message:
        kind = API_KEYS[ALTER_REPLICA_LOG_DIRS].request
        directory, topic = kind.classes["AlterReplicaLogDir"], kind.classes["AlterReplicaLogDirTopic"]
        by_path: dict[str, list[TopicPartition]] = {}
        for key in keys:
            by_path.setdefault(targets[key], []).append((key.topic, key.partition))
        dirs = [
            directory(path=path, topics=[topic(name=name, partitions=at) for name, at in by_topic(found).items()])
            for path, found in by_path.items()
        ]
        return kind.new(dirs=dirs)

    def read(
        keys: Sequence[TopicPartitionReplica], answer: Message
    ) -> Iterator[tuple[TopicPartitionReplica, ClientError | None]]:
        broker_id = keys[0].broker_id
        for topic in answer.results:
            for one in topic.partitions:
                key = TopicPartitionReplica(topic.topic_name, one.partition_index, broker_id)
                yield key, outcome_error(one.error_code)

    call = Call(ALTER_REPLICA_LOG_DIRS, Route.BROKER, request, read, lambda key: key.broker_id)
    return (yield from run(call, targets))
