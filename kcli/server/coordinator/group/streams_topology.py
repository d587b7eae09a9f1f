"""The topics of a streams group's topology: how many partitions and tasks there are, and what is missing (KIP-1071).

Kafka: InternalTopicManager with RepartitionTopics, CopartitionedTopicsEnforcer and ChangelogTopics.

    topic                  number of partitions
    ---------------------  ---------------------------------------------------------------------------------------------
    source                 as it has; all of them must exist
    repartition            as the client states, otherwise the most of the inputs of a subtopology that writes to it; the
                           topics of a copartition group have the same number, so it may be changed to that of the others
    changelog              the most of the inputs of its subtopology, which is also the number of its tasks

A topic that exists keeps its number; the topology is not ready if it should be another one. Subtopologies are taken in the
order of Kafka's hash map, because the number of a repartition topic is found from the inputs that have a number by then.

    what is wrong                                                     answered
    ----------------------------------------------------------------  ---------------------------------------------------
    a source topic does not exist                                     status MISSING_SOURCE_TOPICS
    copartitioned topics, or an internal topic, have another number   status INCORRECTLY_PARTITIONED_TOPICS
    an internal topic does not exist                                  status MISSING_INTERNAL_TOPICS; the broker makes it
    no number can be found: a loop, or nothing writes to a topic      error STREAMS_INVALID_TOPOLOGY
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from kcli.format.java_text import hash_map_order
from kcli.protocol import error_codes
from kcli.server.coordinator.operation import CoordinatorError
from kcli.state.groups import InternalTopic, Subtopology

STALE_TOPOLOGY, MISSING_SOURCE_TOPICS, INCORRECTLY_PARTITIONED_TOPICS, MISSING_INTERNAL_TOPICS = range(4)
SHUTDOWN_APPLICATION, ASSIGNMENT_DELAYED, MISSING_CLIENT_TAGS = 4, 5, 6
_NAMED = 3  # topics in one status

PartitionCount = Callable[[str], int | None]  # of a topic that exists


class Status(NamedTuple):
    """A status in the answer to a heartbeat."""

    code: int
    detail: str


class Topology(NamedTuple):
    """The topology of a group or of a client, by the ids of its subtopologies."""

    epoch: int
    subtopologies: Mapping[str, Subtopology]

    @property
    def required_topics(self) -> set[str]:
        """The names of all topics that must exist."""
        names: set[str] = set()
        for part in self.subtopologies.values():
            names.update(part.input_topics, (topic.name for topic in part.state_changelog_topics))
        return names

    @property
    def subtopology_of(self) -> dict[str, str]:
        """The id of the subtopology that reads a topic, by the topic's name."""
        return {name: part.subtopology_id for part in self.subtopologies.values() for name in part.input_topics}


class ConfiguredSubtopology(NamedTuple):
    """A subtopology with the number of its tasks; its internal topics have their numbers of partitions."""

    task_count: int
    source_topics: list[str]
    repartition_sink_topics: list[str]
    repartition_source_topics: list[InternalTopic]
    state_changelog_topics: list[InternalTopic]

    @property
    def input_topics(self) -> set[str]:
        """The names of the topics that its tasks read."""
        return {*self.source_topics, *(topic.name for topic in self.repartition_source_topics)}


class ConfiguredTopology(NamedTuple):
    """What a topology needs of the topics with this hash; without a problem it is ready.

    `subtopologies` are in the order of their ids, None if the numbers of partitions cannot be found; `missing` are the internal
    topics that the broker must create.
    """

    epoch: int
    metadata_hash: int
    subtopologies: dict[str, ConfiguredSubtopology] | None
    missing: list[InternalTopic]
    problem: Status | None

    @property
    def is_ready(self) -> bool:
        """True if tasks can be assigned."""
        return self.problem is None


class _ProblemError(Exception):
    """The topics do not fit the topology; the argument is the status."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(code, detail)


def configure_topology(topology: Topology, metadata_hash: int, count_of: PartitionCount) -> ConfiguredTopology:
    """Return what a topology needs. Raises CoordinatorError: STREAMS_INVALID_TOPOLOGY, or UNKNOWN_SERVER_ERROR like Kafka's."""
    groups = _copartition_groups(topology)
    try:
        _check_sources(topology, count_of)
        counts = _Counts(topology, count_of)
        counts.decide(groups)
        configured = {key: counts.configured(topology.subtopologies[key]) for key in sorted(topology.subtopologies)}
        missing = _missing(configured.values(), count_of)
    except _ProblemError as error:
        return ConfiguredTopology(topology.epoch, metadata_hash, None, [], error.status)
    problem = None
    if missing:
        text = f"Internal topics are missing: {_summary([topic.name for topic in missing])}"
        problem = Status(MISSING_INTERNAL_TOPICS, text)
    return ConfiguredTopology(topology.epoch, metadata_hash, configured, missing, problem)


def _copartition_groups(topology: Topology) -> list[set[str]]:
    groups = []
    for part in topology.subtopologies.values():
        for group in part.copartition_groups:
            for positions, names in (
                (group.source_topics, part.source_topics),
                (group.repartition_source_topics, part.repartition_source_topics),
            ):
                wrong = [at for at in positions if not 0 <= at < len(names)]
                if wrong:
                    raise _unexpected(f"Index {wrong[0]} out of bounds for length {len(names)}")
            sources = (part.source_topics[at] for at in group.source_topics)
            groups.append({*sources, *(part.repartition_source_topics[at].name for at in group.repartition_source_topics)})
    return groups


def _check_sources(topology: Topology, count_of: PartitionCount) -> None:
    missing = {name for part in topology.subtopologies.values() for name in part.source_topics if count_of(name) is None}
    if missing:
        raise _ProblemError(MISSING_SOURCE_TOPICS, f"Source topics {_summary(sorted(missing))} are missing.")


def _missing(configured: Iterable[ConfiguredSubtopology], count_of: PartitionCount) -> list[InternalTopic]:
    wanted: dict[str, InternalTopic] = {}
    for part in configured:
        wanted |= {topic.name: topic for topic in (*part.repartition_source_topics, *part.state_changelog_topics)}
    missing = []
    for name in sorted(wanted):
        found, expected = count_of(name), wanted[name].partitions
        if found is None:
            missing.append(wanted[name])
        elif found != expected:
            text = f"Existing topic {name} has different number of partitions: expected {expected}, found {found}"
            raise _ProblemError(INCORRECTLY_PARTITIONED_TOPICS, text)
    order = {name: at for at, name in enumerate(hash_map_order(wanted))}
    return sorted(missing, key=lambda topic: order[topic.name])


def _summary(names: Collection[str]) -> str:
    more = f" and {len(names) - _NAMED} additional topics" if len(names) > _NAMED else ""
    return ", ".join(list(names)[:_NAMED]) + more


def _unexpected(text: str) -> CoordinatorError:
    return CoordinatorError(error_codes.UNKNOWN_SERVER_ERROR, text)


def _invalid(text: str) -> CoordinatorError:
    return CoordinatorError(error_codes.STREAMS_INVALID_TOPOLOGY, text)


class _Counts:
    """The numbers of partitions that are decided for the internal topics of a topology."""

    def __init__(self, topology: Topology, count_of: PartitionCount) -> None:
        self._parts = [topology.subtopologies[key] for key in hash_map_order(topology.subtopologies)]
        self._count_of = count_of
        self._decided: dict[str, int] = {}

    def decide(self, copartition_groups: Iterable[set[str]]) -> None:
        """Decide all numbers. Raises _ProblemError and CoordinatorError."""
        self._decided.update(self._repartition_counts())
        topics = [topic for part in self._parts for topic in part.repartition_source_topics]
        fixed = {topic.name: None for topic in topics if topic.partitions}
        flexible = {topic.name for topic in topics if not topic.partitions}
        for group in copartition_groups:
            if group:
                self._decided.update(self._copartitioned(group, fixed, flexible))
        changelogs: dict[str, int] = {}
        for part in self._parts:
            if not part.input_topics:
                raise _invalid(f"No source topics found for subtopology {part.subtopology_id}")
            count = self._input_count(part)
            changelogs |= {topic.name: count for topic in part.state_changelog_topics}
        self._decided.update(changelogs)

    def configured(self, part: Subtopology) -> ConfiguredSubtopology:
        """Return a subtopology with the numbers that are decided."""
        return ConfiguredSubtopology(
            self._input_count(part),
            part.source_topics,
            part.repartition_sink_topics,
            [self._with_count(topic) for topic in part.repartition_source_topics],
            [self._with_count(topic) for topic in part.state_changelog_topics],
        )

    def _with_count(self, topic: InternalTopic) -> InternalTopic:
        return topic._replace(partitions=topic.partitions or self._decided[topic.name])

    def _count(self, name: str) -> int:
        count = self._count_of(name)
        if count is None:
            count = self._decided.get(name)
        if count is None:
            raise _unexpected(f"Number of partitions is not set for topic: {name}")
        return count

    def _input_count(self, part: Subtopology) -> int:
        return max(self._count(name) for name in part.input_topics)

    def _repartition_counts(self) -> dict[str, int]:
        """Return the number of each repartition topic, found from the topics that its writers read."""
        counts = {topic.name: topic.partitions for part in self._parts for topic in part.repartition_source_topics}
        counts = {name: count for name, count in counts.items() if count}
        is_complete = False
        while not is_complete:
            is_complete, has_found = True, False
            for part in self._parts:
                for name in part.repartition_sink_topics:
                    if name in counts:
                        continue
                    known = [counts[topic.name] for topic in part.repartition_source_topics if topic.name in counts]
                    known += [self._count(source) for source in part.source_topics]
                    if known:
                        counts[name], has_found = max(known), True
                    else:
                        is_complete = False
            if not is_complete and not has_found:
                text = "Failed to compute number of partitions for all repartition topics"
                raise _invalid(f"{text}. There may be loops in the topology that cannot be resolved.")
        if any(topic.name not in counts for part in self._parts for topic in part.repartition_source_topics):
            text = "Failed to compute number of partitions for all repartition topics"
            raise _invalid(f"{text}, because a repartition source topic is never used as a sink topic.")
        return counts

    def _copartitioned(self, group: set[str], fixed: Collection[str], flexible: Collection[str]) -> dict[str, int]:
        """Return the number of each repartition topic of a copartition group."""
        internal = {name: self._count(name) for name in sorted(group) if name in fixed or name in flexible}
        external = {name: self._count(name) for name in sorted(group) if name not in internal}
        if external:
            count = _same(external, external.values())
        elif fixed:
            count = _same(internal, [self._count(name) for name in fixed])
        else:
            count = max(internal.values())
        for name, known in internal.items():
            if name in fixed and known != count:
                text = (
                    f"Number of partitions [{known}] of repartition topic [{name}] doesn't match number of partitions "
                    f"[{count}] of the source topic."
                )
                raise _ProblemError(INCORRECTLY_PARTITIONED_TOPICS, text)
        return dict.fromkeys(internal, count)


def _same(topics: Mapping[str, int], counts: Collection[int]) -> int:
    """Return the number that all of these counts are."""
    count = next(iter(counts))
    if any(other != count for other in counts):
        listed = ", ".join(f"{name}={topics[name]}" for name in sorted(topics))
        text = f"Following topics do not have the same number of partitions: [{{{listed}}}]"
        raise _ProblemError(INCORRECTLY_PARTITIONED_TOPICS, text)
    return count
