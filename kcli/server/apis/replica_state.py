"""Which replicas of a partition count as offline, as Metadata and DescribeTopicPartitions tell it.

A replica is offline where its broker is not registered, is fenced, cannot be reached on the listener that the client came
by, or has lost the directory that the replica was in (KIP-858). A broker that registered no directories is believed.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcli.format.kafka_uuid import Uuid
from kcli.state.metadata_values import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    BrokerRegistration,
    Partition,
)


class ReplicaStates:
    """The brokers as clients of one listener see them, for one answer: what is found once is remembered."""

    def __init__(self, brokers: Mapping[int, BrokerRegistration], listener: str) -> None:
        self.reached = {
            node_id: broker for node_id, broker in brokers.items() if not broker.is_fenced and listener in broker.endpoints
        }
        self._is_online: dict[tuple[int, Uuid], bool] = {}

    def offline(self, partition: Partition) -> list[int]:
        """The nodes of the replicas that are offline."""
        offline, known = [], self._is_online
        for place in zip(partition.replicas, partition.directories):
            is_online = known.get(place)
            if is_online is None:
                is_online = known[place] = self._find(*place)
            if not is_online:
                offline.append(place[0])
        return offline

    def _find(self, node_id: int, directory: Uuid) -> bool:
        broker = self.reached.get(node_id)
        if broker is None or directory == DIRECTORY_LOST:
            return False
        return not broker.log_dirs or directory in (DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, *broker.log_dirs)
