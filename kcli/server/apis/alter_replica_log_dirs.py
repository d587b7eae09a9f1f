"""AlterReplicaLogDirs: replicas of this broker moved from one of its log directories to another (KIP-113).

The answer says that a move has begun; it ends when the new replica has caught up (kcli.log.replica_mover). A directory that
is not in log.dirs: LOG_DIR_NOT_FOUND. A partition that is not here is remembered for when it comes, and answered with why.
"""

from __future__ import annotations

from kcli.log.storage_errors import NotHostedError, StorageError
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext


def handle_alter_replica_log_dirs(context: RequestContext, request: Message) -> Message:
    """Answer an AlterReplicaLogDirsRequest."""
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
    try:
        context.broker.replica_manager.log_manager.mover.move(topic, index, path, context.now_ms)
    except NotHostedError:
        return context.broker.replica_manager.missing_partition_code(topic, index)
    except StorageError as error:
        return error.code
    return error_codes.NONE
