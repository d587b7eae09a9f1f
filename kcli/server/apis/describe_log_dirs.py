"""DescribeLogDirs: the log directories, the replicas in them, and the room there is (KIP-113, KIP-827).

    log directory    answered with
    ---------------  -------------------------------------------------------------------------------------------------
    online           its replicas, all or those asked for; from version 4 on the bytes of its file system
    offline          KAFKA_STORAGE_ERROR

A client that may not DESCRIBE the cluster gets CLUSTER_AUTHORIZATION_FAILED; before version 3, which has no place for it, no
directories.
"""

from __future__ import annotations

from kcli.log.log_dir_facts import LogDirFacts, ReplicaFacts, describe_log_dirs
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext


def handle_describe_log_dirs(context: RequestContext, request: Message) -> Message:
    """Answer a DescribeLogDirsRequest."""
    if not context.is_allowed("DESCRIBE", "CLUSTER"):
        return context.new("DescribeLogDirsResponse", error_code=error_codes.CLUSTER_AUTHORIZATION_FAILED)
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    broker = context.broker
    registered = broker.image.brokers.get(broker.node_id)
    cordoned = (registered.cordoned_log_dirs if registered is not None else None) or []
    results = []
    for facts in describe_log_dirs(broker.log_manager):
        result = _result(context, facts, wanted)
        result.is_cordoned = facts.directory_id is not None and facts.directory_id in cordoned
        results.append(result)
    return context.new("DescribeLogDirsResponse", results=results)


def _result(context: RequestContext, facts: LogDirFacts, wanted: set[tuple[str, int]] | None) -> Message:
    if facts.offline_reason is not None:
        return context.new("DescribeLogDirsResult", error_code=error_codes.KAFKA_STORAGE_ERROR, log_dir=facts.path)
    replicas: dict[str, list[ReplicaFacts]] = {}
    for replica in facts.replicas:
        if wanted is None or (replica.topic, replica.partition) in wanted:
            replicas.setdefault(replica.topic, []).append(replica)
    return context.new(
        "DescribeLogDirsResult",
        log_dir=facts.path,
        topics=[_topic(context, name, found) for name, found in replicas.items()],
        total_bytes=facts.total_bytes,
        usable_bytes=facts.usable_bytes,
    )


def _topic(context: RequestContext, name: str, replicas: list[ReplicaFacts]) -> Message:
    partitions = [
        context.new(
            "DescribeLogDirsPartition",
            partition_index=replica.partition,
            partition_size=replica.size_bytes,
            offset_lag=replica.offset_lag,
            is_future_key=replica.is_future,
        )
        for replica in replicas
    ]
    return context.new("DescribeLogDirsTopic", name=name, partitions=partitions)
