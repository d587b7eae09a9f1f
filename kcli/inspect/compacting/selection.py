"""Which partitions are compacted, of what was named, and by which settings.

    named                          taken are
    -----------------------------  -------------------------------------------------------------------------------------
    a log directory                the partitions of compacted topics; others are told and left alone
    with --topic GLOB              the partitions of those topics
    a partition's directory, or    it; refused where its topic is not compacted, unless that is waived
      a pattern of such

    a topic's settings come from                       when
    -------------------------------------------------  -----------------------------------------------------------------
    the metadata log in the same log directory, or     it is there and knows the topic
      in another one that was named
    its name                                           __consumer_offsets and __transaction_state are compacted,
                                                       whatever is known
    its node's configuration (node_defaults)           for all that the topic does not set, but a cleanup.policy
                                                       only where it is known that the topic has none

Options go above all of these. `__cluster_metadata` has snapshots instead of cleaning. Re-compression takes any other topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from kcli.format.file_names import METADATA_TOPIC, DirectoryState
from kcli.inspect.description.cluster_topics import ClusterTopics
from kcli.log.log_config import LogConfig
from kcli.log.log_directory import PartitionDirectory, Target, parent_path
from kcli.state.topic_names import COMPACTED_INTERNAL_TOPICS

WAIVER = "--any-policy"
_POLICY = "cleanup.policy"


class Asked(NamedTuple):
    """The partitions of one log directory that were asked for; `named` are those by their own paths or by topic.

    `is_whole` tells that the log directory itself was named.
    """

    log_directory: str
    partitions: list[PartitionDirectory]
    named: frozenset[str]
    is_whole: bool
    unreadable: list[tuple[str, str]]


class Selected(NamedTuple):
    """A partition to work on and its topic's settings."""

    partition: PartitionDirectory
    config: LogConfig


class LeftOut(NamedTuple):
    """A partition that is not worked on, and why; `is_refused` where it was named."""

    path: str
    topic: str
    message: str
    is_refused: bool


def asked_for(targets: Iterable[Target], topics: tuple[str, ...]) -> tuple[list[Asked], list[str]]:
    """What was named, by log directory, and a sentence for each path or pattern that names nothing which can be taken."""
    found: dict[str, Asked] = {}
    problems: list[str] = []
    for target in targets:
        if target.log_directory is not None:
            path = target.log_directory.path.rstrip("/") or "/"
            partitions = [one for one in target.log_directory.partitions if _matches(one, topics)]
            named = frozenset(one.path for one in partitions) if topics else frozenset()
            new = Asked(path, partitions, named, True, target.log_directory.unreadable)
        elif target.partition is not None:
            path = parent_path(target.partition.path)
            chosen = [target.partition] if _matches(target.partition, topics) else []
            new = Asked(path, chosen, frozenset(one.path for one in chosen), False, [])
        else:
            problems.append(f"{target.path}: a file; compact takes log directories and partitions' directories")
            continue
        found[path] = _joined(found[path], new) if path in found else new
    seen = {partition.topic for one in found.values() for partition in one.partitions}
    for glob in topics if found else ():
        if not any(fnmatchcase(topic, glob) for topic in seen):
            problems.append(f"--topic {glob}: nothing that was named has a partition of such a topic")
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
    cluster: ClusterTopics | None,
    defaults: Mapping[str, str],
    overrides: Mapping[str, str],
    *,
    any_policy: bool,
    recompresses: bool,
) -> tuple[list[Selected], list[LeftOut]]:
    """What of it is worked on, and what is not. Raises ValueError for a setting whose text is not of its type."""
    selected: list[Selected] = []
    left_out: list[LeftOut] = []
    for partition in asked.partitions:
        is_named = partition.path in asked.named
        own = None if cluster is None else cluster.configs.get(partition.topic, {} if partition.topic in cluster.ids else None)
        is_known = own is not None or _POLICY in overrides
        config = LogConfig.of({**defaults, **(own or {}), **overrides})
        if not is_known:
            config = config._replace(cleanup_policy=LogConfig().cleanup_policy)
        if partition.topic in COMPACTED_INTERNAL_TOPICS:
            config = config._replace(cleanup_policy=config.cleanup_policy | {"compact"})
        why = _why_not(partition, config, is_known=is_known, any_policy=any_policy and is_named, any_topic=recompresses)
        if why is None:
            selected.append(Selected(partition, config))
        else:
            left_out.append(LeftOut(partition.path, partition.topic, why, is_named))
    return selected, left_out


def _why_not(
    partition: PartitionDirectory, config: LogConfig, *, is_known: bool, any_policy: bool, any_topic: bool
) -> str | None:
    if partition.is_metadata_log:
        return f"{METADATA_TOPIC} is kept small by its snapshots, and never compacted"
    if partition.state is not DirectoryState.CURRENT or not partition.is_named:
        state = partition.state.value.lstrip("-")
        return f"it is no partition in use ({state})" if state else "its name is not that of a partition's directory"
    if not partition.segments:
        return "it has no segments"
    if any_topic or any_policy or config.is_compacted:
        return None
    if is_known:
        policy = ",".join(sorted(config.cleanup_policy)) or "none"
        return f"its topic's cleanup.policy is {policy}; {WAIVER} compacts what is named all the same"
    return f"no metadata log here tells its topic's cleanup.policy; {WAIVER} compacts what is named all the same"
