"""Selects the partitions to compact from the named paths, and finds the settings of their topics.

    named                          selected
    -----------------------------  -------------------------------------------------------------------------------------
    a log directory                the partitions of compacted topics; the others are reported and not changed
    with --topic GLOB              the partitions of those topics
    partition directories          those partitions; refused if the topic is not compacted, unless --any-policy is given

    a topic's settings come from                       when
    -------------------------------------------------  -----------------------------------------------------------------
    the metadata log in the same log directory, or     it has the topic, with the topic id of
      in another one of the same node that was named     partition.metadata (see below)
    its name                                           __consumer_offsets and __transaction_state are always
                                                       compacted
    its node's configuration (node_defaults)           the topic does not set them; a cleanup.policy only if the
                                                       metadata log shows that the topic has none

Options override all of these. `__cluster_metadata` is never compacted: it has snapshots. Re-compression takes every other
topic.

Among the named log directories, the metadata log that has the settings of a partition is found so.

    the partition's log directory                    settings come from
    -----------------------------------------------  -------------------------------------------------------------------
    has a metadata log                               that one
    states its cluster and node                      the metadata log of another directory that states the same two
    does not (partitions were copied there)          any metadata log that has the topic with the topic id of
                                                       partition.metadata: ids differ between clusters, names do not

In each case the metadata log must have the topic id of partition.metadata. Otherwise the partition belongs to another topic
of the same name, which was deleted or is in another cluster; its settings are not known, and it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import NamedTuple

from kcli.format.file_names import METADATA_TOPIC, DirectoryState, FileKind
from kcli.format.primitives import CorruptCheckpointError
from kcli.inspect.description.metadata_view import METADATA_DIRECTORY, ClusterTopics, read_cluster_topics
from kcli.inspect.description.remarks import missing_name
from kcli.log.disk.port import Disk, parent_path
from kcli.log.files.log_dir_owner import Owner, metadata_owners, read_owner, topic_id_conflict
from kcli.log.files.log_directory import PartitionDirectory, ResolvedPath, read_topic_id
from kcli.log.log_config import LogConfig
from kcli.state.topic_names import COMPACTED_INTERNAL_TOPICS

_POLICY = "cleanup.policy"
WAIVER = "--any-policy"


class UnfitError(Exception):
    """None of the named metadata logs belongs to a partition or directory; the message is one sentence."""


class MetadataLogs:
    """The metadata logs of some log directories. Raises UnfitError for a damaged meta.properties, and OSError."""

    def __init__(self, disk: Disk, directories: Sequence[str]) -> None:
        self._disk = disk
        self._owners = {directory: self._read_owner(directory) for directory in directories}
        found = {directory: read_cluster_topics(disk, directory) for directory in directories}
        self._topics = {directory: topics for directory, topics in found.items() if topics is not None}

    def _read_owner(self, directory: str) -> Owner:
        try:
            return read_owner(self._disk, directory)
        except CorruptCheckpointError as error:
            raise UnfitError(f"{error.message}; `kcli verify --repair {directory}` shows what a repair can do") from None

    def owner(self, directory: str) -> Owner:
        """Return the cluster and node of a log directory."""
        return self._owners[directory]

    def other_owners(self) -> tuple[Owner, Owner] | None:
        """Return the owners of two directories that belong to different nodes, or None if all may belong to one node."""
        known = [owner for owner in self._owners.values() if owner.is_known]
        return next(((known[0], other) for other in known[1:] if not known[0].is_same_node(other)), None)

    def of_directory(self, directory: str) -> ClusterTopics | None:
        """Return the topics in the metadata log of a directory's node, None if it was not named.

        Raises UnfitError if two metadata logs of the node were named.
        """
        with_metadata_log = (self._owners[one] for one in self._topics)
        serving = metadata_owners(self._owners[directory], with_metadata_log)
        if len(serving) > 1:
            paths = " and ".join(self._topics[one.directory].path for one in serving)
            raise UnfitError(
                f"{paths} are metadata logs of the same node, so one of them is a copy, and {directory} has none: name only one"
            )
        return self._topics[serving[0].directory] if serving else None

    def of_partition(self, partition: PartitionDirectory) -> ClusterTopics | None:
        """Return the topics of a partition's cluster, None if no metadata log of it was named. Raises UnfitError, OSError."""
        directory, topic = partition.log_directory, partition.topic
        topics = self.of_directory(directory)
        path = partition.file(FileKind.PARTITION_METADATA)
        try:
            topic_id = read_topic_id(self._disk, partition)
        except CorruptCheckpointError as error:
            raise UnfitError(
                f"{path}: {error.message}; the partition was not changed: `kcli verify --repair {directory}` shows what a "
                "repair can do"
            ) from None
        if topics is None:
            if self._owners[directory].is_known or topic_id is None:
                return None
            return next((one for one in self._topics.values() if one.ids.get(topic) == topic_id), None)
        if topics.damage:
            raise UnfitError(
                f"{topics.damage}. The metadata log is damaged, so the present cleanup.policy of {topic} is not certain. The "
                f"partition was not changed: restore the metadata log, or copy the partition elsewhere and give {WAIVER}"
            )
        expected = topics.ids.get(topic)
        if path is None or topic_id is None or expected in (None, topic_id):
            return topics
        conflict = topic_id_conflict(topic, path, topic_id, topics.path, expected)
        raise UnfitError(
            f"{conflict}: the partition belongs to another topic of that name, which was deleted or is in another cluster. It "
            f"was not changed; a broker would rename it to -stray. To compact it, copy it elsewhere and name it with {WAIVER}"
        )

    def mismatch(self, directory: str) -> str | None:
        """Return one sentence if metadata logs were named, but not the one of `directory`; otherwise None."""
        if not self._topics or self.of_directory(directory) is not None:
            return None
        owner, other = self._owners[directory], next(iter(self._topics))
        found = (
            f"{self._topics[other].path} is the metadata log of another node: {self._owners[other].sentence}, {owner.sentence}"
        )
        if not owner.is_known:
            return (
                f"{directory}: only partitions whose partition.metadata has a topic id of {self._topics[other].path} are known "
                f"to belong to its cluster, because {owner.sentence}; name the log directory that the partitions come from"
            )
        return (
            f"{found}; name the log directory of cluster {owner.cluster_id}, node {owner.node_id}, that has "
            f"{METADATA_DIRECTORY}, too"
        )


class Asked(NamedTuple):
    """The partitions of one log directory that were asked for.

    `named` are the paths of those that were named by path or by topic; `is_whole`: the log directory itself was named;
    `unreadable` has a path and the reason for each partition directory that cannot be read.
    """

    log_directory: str
    partitions: list[PartitionDirectory]
    named: frozenset[str]
    is_whole: bool
    unreadable: list[tuple[str, str]]


class Selected(NamedTuple):
    """A partition to work on, and the settings of its topic."""

    partition: PartitionDirectory
    config: LogConfig


class LeftOutReason(StrEnum):
    """Why a partition is left out; the values are those of --output json."""

    NOT_COMPACTED = "not-compacted"
    POLICY_UNKNOWN = "policy-unknown"
    OTHER_TOPIC = "other-topic"
    METADATA_LOG = "metadata-log"
    NOT_IN_USE = "not-in-use"
    NO_SEGMENTS = "no-segments"


class LeftOut(NamedTuple):
    """A partition that is left out, and why; `is_refused` if it was named, or belongs to another topic of the same name."""

    path: str
    topic: str
    reason: LeftOutReason
    message: str
    is_refused: bool


def asked_for(targets: Iterable[ResolvedPath], topics: tuple[str, ...]) -> tuple[list[Asked], list[tuple[str, str]]]:
    """Return the named partitions by log directory, and the problems.

    A problem is a path and a sentence: for a file, and for a topic pattern that matches nothing.
    """
    found: dict[str, Asked] = {}
    problems: list[tuple[str, str]] = []
    names: set[str] = set()  # all topics of the log directories
    for target in targets:
        if target.log_directory is not None:
            path = target.log_directory.path.rstrip("/") or "/"
            names |= {one.topic for one in target.log_directory.partitions}
            partitions = [one for one in target.log_directory.partitions if _matches(one, topics)]
            named = frozenset(one.path for one in partitions) if topics else frozenset()
            new = Asked(path, partitions, named, True, target.log_directory.unreadable)
        elif target.partition is not None:
            path = parent_path(target.partition.path)
            names.add(target.partition.topic)
            chosen = [target.partition] if _matches(target.partition, topics) else []
            new = Asked(path, chosen, frozenset(one.path for one in chosen), False, [])
        else:
            problems.append((target.path, "a file; compact takes log directories and partitions' directories"))
            continue
        found[path] = _joined(found[path], new) if path in found else new
    for glob in topics if found else ():
        sentence = missing_name("topic", glob, names)
        if sentence is not None:
            problems.append((next(iter(found)), sentence))
    return list(found.values()), problems


def _matches(partition: PartitionDirectory, topics: tuple[str, ...]) -> bool:
    return not topics or any(fnmatchcase(partition.topic, glob) for glob in topics)


def _joined(one: Asked, other: Asked) -> Asked:
    partitions = {partition.path: partition for partition in (*one.partitions, *other.partitions)}
    return Asked(
        one.log_directory,
        list(partitions.values()),
        one.named | other.named,
        one.is_whole or other.is_whole,
        [*one.unreadable, *other.unreadable],
    )


def select(
    asked: Asked,
    metadata: MetadataLogs,
    defaults: Mapping[str, str],
    overrides: Mapping[str, str],
    *,
    any_policy: bool,
    recompresses: bool,
) -> tuple[list[Selected], list[LeftOut]]:
    """Return the partitions to work on, and those that are left out. Raises ValueError for an invalid setting, and OSError."""
    selected: list[Selected] = []
    left_out: list[LeftOut] = []
    for partition in asked.partitions:
        is_named = is_refused = partition.path in asked.named
        reason = _unusable(partition)
        if reason is None:
            try:
                cluster = metadata.of_partition(partition)
            except UnfitError as error:
                reason, is_refused = (LeftOutReason.OTHER_TOPIC, str(error)), True
            else:
                config, is_known = _config(partition.topic, cluster, defaults, overrides)
                if recompresses or (any_policy and is_named) or config.is_compacted:
                    selected.append(Selected(partition, config))
                    continue
                reason = _not_compacted(config, is_named=is_named) if is_known else _unknown(cluster, is_named=is_named)
        left_out.append(LeftOut(partition.path, partition.topic, *reason, is_refused))
    return selected, left_out


def _unusable(partition: PartitionDirectory) -> tuple[LeftOutReason, str] | None:
    """Return why a partition cannot be worked on, independent of its topic, or None."""
    if partition.is_metadata_log:
        return LeftOutReason.METADATA_LOG, f"{METADATA_TOPIC} is never compacted: its snapshots keep it small"
    if partition.state is not DirectoryState.CURRENT or not partition.is_named:
        state = partition.state.value.lstrip("-")
        return (
            LeftOutReason.NOT_IN_USE,
            f"the partition is not in use ({state})" if state else "its name is not the name of a partition directory",
        )
    if not partition.segments:
        return LeftOutReason.NO_SEGMENTS, "it has no segments"
    return None


def _config(
    topic: str, cluster: ClusterTopics | None, defaults: Mapping[str, str], overrides: Mapping[str, str]
) -> tuple[LogConfig, bool]:
    """Return the settings of a topic, and whether its cleanup.policy is known."""
    own = None if cluster is None else cluster.configs.get(topic, {} if topic in cluster.ids else None)
    is_known = own is not None or _POLICY in overrides
    config = LogConfig.of({**defaults, **(own or {}), **overrides})
    if not is_known:
        config = config._replace(cleanup_policy=LogConfig().cleanup_policy)
    if topic in COMPACTED_INTERNAL_TOPICS:
        config = config._replace(cleanup_policy=config.cleanup_policy | {"compact"})
    return config, is_known


def _not_compacted(config: LogConfig, *, is_named: bool) -> tuple[LeftOutReason, str]:
    policy = ",".join(sorted(config.cleanup_policy)) or "none"
    if not is_named:
        return LeftOutReason.NOT_COMPACTED, f"cleanup.policy is {policy}"
    return (
        LeftOutReason.NOT_COMPACTED,
        f"its topic is not compacted (cleanup.policy is {policy}): cleaning would remove every record but the last of its key",
    )


def _unknown(cluster: ClusterTopics | None, *, is_named: bool) -> tuple[LeftOutReason, str]:
    if cluster is None:
        why = "cleanup.policy is not known, since no metadata log of the node was named"
        remedy = f"name the log directory that has {METADATA_DIRECTORY}, too"
    else:
        why, remedy = "cleanup.policy is not known", f"the metadata log {cluster.path} has no such topic"
    return LeftOutReason.POLICY_UNKNOWN, f"{why}; {remedy}{f', or say {WAIVER} if the topic is compacted' if is_named else ''}"
