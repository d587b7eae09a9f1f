"""Which replicas of a partition count as offline, as Metadata and DescribeTopicPartitions tell it.

A replica is offline where its broker is not registered, is fenced, cannot be reached on the listener that the client came
by, or has lost the directory that the replica was in (KIP-858). A broker that registered no directories is believed.
"""

from __future__ import annotations

from kcli.format.kafka_uuid import Uuid
from kcli.state.metadata_values import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    BrokerRegistration,
    Partition,
)


def offline_replicas(partition: Partition, brokers: dict[int, BrokerRegistration], listener: str) -> list[int]:
    """The nodes of the replicas that are offline for clients of a listener."""
    offline = []
    for node_id, directory in zip(partition.replicas, partition.directories):
        broker = brokers.get(node_id)
        if broker is None or broker.is_fenced or listener not in broker.endpoints or not _is_online(directory, broker):
            offline.append(node_id)
    return offline


def _is_online(directory: Uuid, broker: BrokerRegistration) -> bool:
    if directory in (DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED):
        return True
    if directory == DIRECTORY_LOST:
        return False
    return not broker.log_dirs or directory in broker.log_dirs
