"""Streams groups with their topologies and tasks (KIP-1071; Kafka: StreamsGroupDescription).

The coordinator of each group answers StreamsGroupDescribe. Committed offsets are those of kcli.client.admin.group_offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kcli.client.admin.error_sentences import kafka_error
from kcli.client.admin.operation import Call, Operation, Outcomes, RequestContext, Route, run
from kcli.client.errors import ClientError
from kcli.protocol.apis import API_KEYS, STREAMS_GROUP_DESCRIBE
from kcli.protocol.message import Message

# Partitions by subtopology.
Tasks = dict[str, tuple[int, ...]]


class StreamsAssignment(NamedTuple):
    """The tasks of a member."""

    active_tasks: Tasks
    standby_tasks: Tasks
    warmup_tasks: Tasks


class StreamsSubtopology(NamedTuple):
    """A part of a topology, with the names of its topics."""

    subtopology_id: str
    source_topics: tuple[str, ...]
    repartition_sink_topics: tuple[str, ...]
    state_changelog_topics: tuple[str, ...]
    repartition_source_topics: tuple[str, ...]


class StreamsMember(NamedTuple):
    """A member of a streams group; `user_endpoint` is host and port for queries of its state, None if it has none."""

    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    host: str
    topology_epoch: int
    process_id: str
    user_endpoint: tuple[str, int] | None
    client_tags: dict[str, str]
    assignment: StreamsAssignment
    target_assignment: StreamsAssignment
    is_classic: bool


class StreamsGroupDescription(NamedTuple):
    """A streams group; `topology_epoch` is -1 and `subtopologies` is empty before a member described its topology."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    topology_epoch: int
    subtopologies: tuple[StreamsSubtopology, ...]
    members: tuple[StreamsMember, ...]


def describe_streams_groups(group_ids: Iterable[str]) -> Operation[Outcomes[str, StreamsGroupDescription]]:
    """Return streams groups with their topologies and members."""

    def request(keys: Sequence[str], _context: RequestContext) -> Message:
        return API_KEYS[STREAMS_GROUP_DESCRIBE].request.new(group_ids=list(keys))

    def read(_keys: Sequence[str], answer: Message) -> Iterator[tuple[str, StreamsGroupDescription | ClientError]]:
        for one in answer.groups:
            if one.error_code:
                yield one.group_id, kafka_error(one.error_code, one.error_message)
            else:
                yield one.group_id, _description(one)

    return (yield from run(Call(STREAMS_GROUP_DESCRIBE, Route.GROUP, request, read), group_ids))


def _description(one: Message) -> StreamsGroupDescription:
    topology = one.topology
    subtopologies = [] if topology is None else topology.subtopologies or []
    return StreamsGroupDescription(
        one.group_id,
        one.group_state,
        one.group_epoch,
        one.assignment_epoch,
        -1 if topology is None else topology.epoch,
        tuple(map(_subtopology, subtopologies)),
        tuple(map(_member, one.members)),
    )


def _subtopology(one: Message) -> StreamsSubtopology:
    return StreamsSubtopology(
        one.subtopology_id,
        tuple(one.source_topics),
        tuple(one.repartition_sink_topics),
        tuple(topic.name for topic in one.state_changelog_topics),
        tuple(topic.name for topic in one.repartition_source_topics),
    )


def _member(one: Message) -> StreamsMember:
    endpoint = one.user_endpoint
    return StreamsMember(
        one.member_id,
        one.member_epoch,
        one.instance_id,
        one.rack_id,
        one.client_id,
        one.client_host,
        one.topology_epoch,
        one.process_id,
        None if endpoint is None else (endpoint.host, endpoint.port),
        {tag.key: tag.value for tag in one.client_tags},
        _assignment(one.assignment),
        _assignment(one.target_assignment),
        one.is_classic,
    )


def _assignment(one: Message) -> StreamsAssignment:
    kinds = (one.active_tasks, one.standby_tasks, one.warmup_tasks)
    return StreamsAssignment(*({each.subtopology_id: tuple(each.partitions) for each in tasks} for tasks in kinds))
