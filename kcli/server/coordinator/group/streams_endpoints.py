"""Which partitions the members of a streams group serve at their endpoints, for interactive queries (KIP-535, KIP-1071).

Members with an application.server state its host and port. The answer to a heartbeat has the partitions of all endpoints if the
member does not know the present epoch of this information, which grows when a member with an endpoint gets other tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kcli.protocol import error_codes
from kcli.server.coordinator.group.streams_topology import ConfiguredSubtopology, ConfiguredTopology, PartitionCount
from kcli.server.coordinator.operation import CoordinatorError
from kcli.state.groups import StreamsGroupMember, Tasks

TopicPartitions = list[tuple[str, list[int]]]


class EndpointPartitions(NamedTuple):
    """An endpoint, and the partitions that its active and standby tasks read."""

    endpoint: tuple[str, int]
    active: TopicPartitions
    standby: TopicPartitions


def endpoint_partitions(
    members: Iterable[StreamsGroupMember], configured: ConfiguredTopology, count_of: PartitionCount
) -> list[EndpointPartitions]:
    """Return the partitions of each member with an endpoint. Raises CoordinatorError if the topics are not known."""
    found = []
    for member in members:
        if member.user_endpoint is None:
            continue
        if configured.subtopologies is None:
            raise CoordinatorError(error_codes.UNKNOWN_SERVER_ERROR, "No value present")
        tasks, parts = member.assigned_tasks, configured.subtopologies
        active = {key: list(indexes) for key, indexes in tasks.active.items()}
        found.append(
            EndpointPartitions(
                member.user_endpoint, _partitions(active, parts, count_of), _partitions(tasks.standby, parts, count_of)
            )
        )
    return found


def _partitions(tasks: Tasks, parts: Mapping[str, ConfiguredSubtopology], count_of: PartitionCount) -> TopicPartitions:
    """Return the partitions that tasks read: of a topic with fewer partitions than tasks the first ones, as by Kafka."""
    found: TopicPartitions = []
    for key in sorted(tasks):
        indexes = sorted(tasks[key])
        for name in sorted(parts[key].input_topics):
            count = count_of(name)
            if count is None:
                raise CoordinatorError(error_codes.UNKNOWN_SERVER_ERROR, f"Topic {name} not found in metadata image")
            found.append((name, indexes[:count]))
    return found
