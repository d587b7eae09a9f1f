"""DescribeLogDirs and AlterReplicaLogDirs: the log directories, their replicas, and moves between them (KIP-113, KIP-827).

    log directory    DescribeLogDirs answers
    ---------------  -------------------------------------------------------------------------------------------------
    online           its replicas, all or those asked for; from version 4 on the bytes of its file system
    offline          KAFKA_STORAGE_ERROR

A client that may not DESCRIBE the cluster gets CLUSTER_AUTHORIZATION_FAILED; before version 3, which has no field for it, no
directories.

AlterReplicaLogDirs answers that a move has begun; it ends when the new replica has caught up (replica_mover). For a
directory that is not in log.dirs it answers LOG_DIR_NOT_FOUND, for a cordoned one INVALID_REPLICA_ASSIGNMENT (KIP-1066). The
directory of a partition that is not hosted here is remembered for the time when it is, and the answer is the error of a
missing partition.
"""

from __future__ import annotations

from collections.abc import Iterator

from kcli.log.errors import NotHostedError, StorageError
from kcli.log.log_manager import LogDirDescription, ReplicaInfo
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.scheduler import SliceBudget

_REPLICA_US = 10


def handle_describe_log_dirs(context: RequestContext, request: Message) -> Message | None:
    """Answer a DescribeLogDirsRequest, in slices where it asks for many replicas."""
    if not context.is_allowed("DESCRIBE", "CLUSTER"):
        return context.new("DescribeLogDirsResponse", error_code=error_codes.CLUSTER_AUTHORIZATION_FAILED)
    response = context.new("DescribeLogDirsResponse")
    context.respond_after(_fill(context, request, response.results), response)
    return None


def _fill(context: RequestContext, request: Message, results: list[Message]) -> Iterator[None]:
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    log_manager, budget = context.broker.replica_manager.log_manager, SliceBudget()
    cordoned = log_manager.cordoned_dirs()
    for found in log_manager.describe_log_dirs():
        result = _result(context, found)
        result.is_cordoned = found.path in cordoned
        results.append(result)
        topics: dict[str, Message] = {}
        for replica in found.replicas:
            if wanted is None or (replica.topic, replica.partition) in wanted:
                _add(context, topics, replica)
                if budget.is_spent(_REPLICA_US):
                    yield
        result.topics = list(topics.values())


def _result(context: RequestContext, found: LogDirDescription) -> Message:
    if found.offline_reason is not None:
        return context.new("DescribeLogDirsResult", error_code=error_codes.KAFKA_STORAGE_ERROR, log_dir=found.path)
    return context.new(
        "DescribeLogDirsResult", log_dir=found.path, total_bytes=found.total_bytes, usable_bytes=found.usable_bytes
    )


def _add(context: RequestContext, topics: dict[str, Message], replica: ReplicaInfo) -> None:
    topic = topics.get(replica.topic)
    if topic is None:
        topic = topics[replica.topic] = context.new("DescribeLogDirsTopic", name=replica.topic)
    partition = context.new(
        "DescribeLogDirsPartition",
        partition_index=replica.partition,
        partition_size=replica.size_bytes,
        offset_lag=replica.offset_lag,
        is_future_key=replica.is_future,
    )
    topic.partitions.append(partition)


def handle_alter_replica_log_dirs(context: RequestContext, request: Message) -> Message:
    """Answer an AlterReplicaLogDirsRequest: the moves have begun."""
    is_allowed = context.is_allowed("ALTER", "CLUSTER")
    results: dict[str, list[Message]] = {}
    for log_dir in request.dirs:
        for topic in log_dir.topics:
            answers = results.setdefault(topic.name, [])
            for index in topic.partitions:
                code = error_codes.CLUSTER_AUTHORIZATION_FAILED
                if is_allowed:
                    code = _move(context, topic.name, index, log_dir.path)
                answers.append(context.new("AlterReplicaLogDirPartitionResult", partition_index=index, error_code=code))
    return context.new(
        "AlterReplicaLogDirsResponse",
        results=[
            context.new("AlterReplicaLogDirTopicResult", topic_name=name, partitions=answers)
            for name, answers in results.items()
        ],
    )


def _move(context: RequestContext, topic: str, index: int, path: str) -> int:
    log_manager = context.broker.replica_manager.log_manager
    if path in log_manager.cordoned_dirs():
        return error_codes.INVALID_REPLICA_ASSIGNMENT
    try:
        log_manager.mover.move(topic, index, path, context.now_ms)
    except NotHostedError:
        return context.broker.replica_manager.missing_partition_code(topic, index)
    except StorageError as error:
        return error.code
    return error_codes.NONE
