"""describe: reads log directories and returns a report: rows by section (docs/describe.md), problems, and what is unknown.

    section                               is made from
    ------------------------------------  ------------------------------------------------------------------------------
    every section                         names; the newest snapshot of __cluster_metadata-0 and the log after it
    topics, partitions, segments          batch headers, within a budget
    compaction                            the checkpoints, sizes, sometimes time indexes
    partitions, producers, transactions   the newest producer snapshot of each partition, and headers after it
    groups, members                       __consumer_offsets, __share_group_state, the ends of the logs in them
    transactions                          __transaction_state

Only the files for the sections that are asked for are read. Records are decoded in internal topics only.

Partitions of another topic with the same name are not joined with the topic. The topic ids show which they are:

    id of the topic               a partition with another id in partition.metadata
    ----------------------------  --------------------------------------------------------------------------------------
    in the metadata               is of a topic that was deleted since, or of another cluster
    not in the metadata, or       is of another topic than the partition of that name which was given first
      there is no metadata

Such a partition is a problem, and is shown with its own topic id. It has no leader, replicas or settings, and does not count
for the topic or for the lag of a group. If neither partition.metadata nor the metadata has an id, this is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.file_names import METADATA_TOPIC, DirectoryState, FileKind
from kcli.inspect.description.describe_options import (
    GROUP_SECTIONS,
    NAME,
    OVERVIEW_SECTIONS,
    PARTITION_SECTIONS,
    TOPIC_SECTIONS,
    DescribeOptions,
    sort_rows,
    sorted_sections,
)
from kcli.inspect.description.metadata_view import MetadataView, read_metadata
from kcli.inspect.description.partition_log import Logs
from kcli.inspect.description.remarks import Problem, Remarks, missing_name
from kcli.inspect.description.segment_survey import missing_between
from kcli.inspect.description.sources import DescriptionError, Sources, find_sources
from kcli.inspect.description.topic_sections import (
    Surveyed,
    epoch_rows,
    is_compacted_topic,
    partition_rows,
    producer_rows,
    segment_rows,
    topic_rows,
)
from kcli.inspect.json_text import JsonObject as Row
from kcli.inspect.node_defaults import DefaultsOf, NodeLayers, kafkas_defaults
from kcli.inspect.quantities import format_offsets
from kcli.log.disk.port import Disk
from kcli.log.files.log_dir_owner import topic_id_conflict
from kcli.log.files.log_directory import PartitionDirectory

if TYPE_CHECKING:
    from kcli.format.kafka_uuid import Uuid
    from kcli.inspect.description.describe_options import DescribeOptions
    from kcli.inspect.description.group_sections import GroupSections
    from kcli.inspect.description.metadata_view import MetadataView
    from kcli.state.metadata_image import MetadataImage
    from kcli.state.transaction_state import TransactionState

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
SHARE_GROUP_STATE = "__share_group_state"
# Sections that join partitions with the metadata or with each other.
_JOINED_SECTIONS = frozenset(("topics", "partitions", "compaction", "groups", "transactions"))
_METADATA_SECTIONS = frozenset(("configs", "acls", "users", "quotas", "tokens"))


class Description(NamedTuple):
    """The result of `describe`. `is_overview` is True for log directories if no sections, topics or groups were asked for.

    `report` has the rows of each section that was asked for, None if they are not known, and `unknowns` and `problems`.
    `all_opened` is False if a path of the command line could not be described, `matches_nothing` True if no topic and no group
    matches those that were asked for: then only the problems are to be printed.
    """

    report: Row
    problems: list[Problem]
    is_overview: bool
    all_opened: bool
    matches_nothing: bool = False


def describe(
    disk: Disk, paths: Iterable[str], options: DescribeOptions, defaults_of: DefaultsOf = kafkas_defaults
) -> Description:
    """Describe the directories at `paths`; `defaults_of` returns what their nodes set for all topics.

    Raises DescriptionError if there is nothing to describe, or if a directory is not of the node whose settings were given.
    """
    remarks = Remarks()
    sources = find_sources(disk, paths, remarks)
    show = options.show or _default_sections(sources, options)
    if options.sort != NAME and not show & sorted_sections(options.sort):
        sections = ", ".join(sorted(sorted_sections(options.sort)))
        raise DescriptionError(f"--sort {options.sort} is for the sections {sections}, and none of them is shown")
    describer = _Describer(disk, sources, options._replace(show=show), remarks, defaults_of)
    matches_nothing = not describer.find_asked()
    report = describer.report()
    sort_rows(report, options.sort)
    report["unknowns"] = remarks.unknowns
    report["problems"] = [problem._asdict() for problem in remarks.problems]
    is_overview = options.show is None and show is OVERVIEW_SECTIONS
    return Description(report, remarks.problems, is_overview, remarks.all_opened, matches_nothing)


def _default_sections(sources: Sources, options: DescribeOptions) -> frozenset[str]:
    """Return the sections to show if none was asked for."""
    if options.topics:
        return TOPIC_SECTIONS
    if options.groups:
        return GROUP_SECTIONS
    if sources.has_whole_directory or sources.current(METADATA_TOPIC, 0):
        return OVERVIEW_SECTIONS
    show = PARTITION_SECTIONS
    if sources.partitions_of(CONSUMER_OFFSETS):
        show |= GROUP_SECTIONS
    if sources.partitions_of(TRANSACTION_STATE):
        show |= {"transactions"}
    return show


class _Describer:
    """Makes the sections, and reads each source once."""

    def __init__(
        self,
        disk: Disk,
        sources: Sources,
        options: DescribeOptions,
        remarks: Remarks,
        defaults_of: DefaultsOf,
    ) -> None:
        self.disk = disk
        self.sources = sources
        self.options = options
        self.show = options.show or frozenset()
        self.remarks = remarks
        self.logs = Logs(disk, sources, remarks, deep=options.deep)
        self._defaults_of = defaults_of

    def find_asked(self) -> bool:
        """Return False if no topic and no group is one that was asked for; each pattern without any is a problem."""
        topics = {replica.directory.topic for replica in self.sources.replicas}
        if self.options.topics and self.image is not None:
            topics |= self.image.topic_ids.keys()
        missing = [missing_name("topic", glob, topics) for glob in self.options.topics]
        if self.options.groups and self.groups is not None:
            missing += [missing_name("group", glob, self.groups.ids()) for glob in self.options.groups]
        for sentence in missing:
            if sentence is not None:
                self.remarks.problem(self.sources.directories[0].path, sentence)
        return not missing or None in missing

    def report(self) -> Row:
        show, report = self.show, Row()
        self._remark_on_directories()
        if show & _JOINED_SECTIONS:
            set_foreign_aside(self.logs, self.metadata, self.options)
        if "cluster" in show:
            from kcli.inspect.description.cluster_sections import cluster_row

            report["cluster"] = [cluster_row(self.sources, self.metadata)]
        if show & _METADATA_SECTIONS or "brokers" in show:
            self._put_metadata_sections(report)
        if "topics" in show:
            report["topics"] = topic_rows(self.surveyed, self.image, self.options)
        if "partitions" in show:
            report["partitions"] = partition_rows(self.surveyed, self.image)
        if "segments" in show:
            report["segments"] = segment_rows(self.surveyed)
        if "epochs" in show:
            report["leaderEpochs"] = epoch_rows(self.surveyed)
        if "producers" in show:
            report["producers"] = producer_rows(self.surveyed)
        if "compaction" in show:
            from kcli.inspect.description.topic_sections import compaction_rows

            defaults_of = self._topic_defaults().__getitem__
            report["compaction"] = compaction_rows(self.surveyed, self.image, self.options.now_ms, defaults_of)
        if "groups" in show:
            report["groups"] = None if self.groups is None else self.groups.rows()
        if "members" in show:
            report["members"] = None if self.groups is None else self.groups.member_rows()
        if "transactions" in show:
            self._put_transactions(report)
        return report

    # ---------------------------------------------------------------------------------------------------- metadata

    @cached_property
    def metadata(self) -> MetadataView | None:
        found = read_metadata(self.disk, self.sources, self.logs, self.remarks)
        if found is None:
            self._remark_on_missing_metadata()
        elif found.is_bootstrap:
            self.remarks.unknown(
                f"The storage was formatted, and no broker has run on it yet: {found.path} has only the features."
            )
        elif len(found.image.voters) != 1:
            self.remarks.unknown(
                f"The metadata includes all records up to the end of its log, offset {found.end_offset}. The log directory "
                "does not say which of the last records a majority of voters has."
            )
        return found

    def _remark_on_missing_metadata(self) -> None:
        if any(source.meta is not None and source.meta.version == 0 for source in self.sources.directories):
            self.remarks.unknown(
                "The directory belongs to a cluster with ZooKeeper, which stored topic ids, leaders, replicas, configs, ACLs, "
                "users, quotas and brokers: they are not shown."
            )
        else:
            self.remarks.unknown(
                f"{METADATA_TOPIC}-0 is not in the given directories: leaders, replicas, features, brokers, configs, ACLs, "
                "users, quotas and tokens are not shown. It is in metadata.log.dir, or else in the first of log.dirs; "
                "give that directory, too."
            )

    def _topic_defaults(self) -> dict[str, Mapping[str, str]]:
        """Return what nodes set for all topics, by the path of the partition."""
        brokers = {} if self.image is None else self.image.configs_of("BROKER")
        found: dict[str, Mapping[str, str]] = {}
        for source in self.sources.directories:
            layers = NodeLayers(source.path, None if source.meta is None else source.meta.node_id, brokers)
            of_source = (partition.path for partition in source.partitions)
            try:
                found.update(dict.fromkeys(of_source, self._defaults_of(layers).topic_config))
            except ValueError as error:
                raise DescriptionError(str(error)) from None
        return found

    @property
    def image(self) -> MetadataImage | None:
        return None if self.metadata is None or self.metadata.is_bootstrap else self.metadata.image

    def _put_metadata_sections(self, report: Row) -> None:
        from kcli.inspect.description import cluster_sections as sections

        image = self.image
        makers: dict[str, Callable[[MetadataImage], list[Row]]] = {
            "brokers": sections.broker_rows,
            "controllers": sections.controller_rows,
            "configs": lambda image: sections.config_rows(image, self.options),
            "acls": sections.acl_rows,
            "users": sections.user_rows,
            "quotas": sections.quota_rows,
            "tokens": sections.token_rows,
        }
        for name, make in makers.items():
            if ("brokers" if name == "controllers" else name) in self.show:
                report[name] = None if image is None else make(image)

    # ------------------------------------------------------------------------------------------------------- logs

    @cached_property
    def surveyed(self) -> Surveyed:
        found = Surveyed(self.logs, self.options)
        self._report_missing_segments(found)
        return found

    def _report_missing_segments(self, surveyed: Surveyed) -> None:
        """Report offsets that are missing between two segments, unless a cleaner may have removed them."""
        for log in surveyed.logs:
            missing = missing_between(surveyed.of(log)) if log.directory.state is DirectoryState.CURRENT else []
            missing = [offsets for offsets in missing if offsets[1] > (log.cleaned_offset or 0)]
            # The metadata is read for this only if it is here: without it, nothing is said about it.
            image = self.image if missing and self.sources.current(METADATA_TOPIC, 0) else None
            if not missing or is_compacted_topic(log, image) or log.was_swapped:
                continue
            for start, end in missing:
                self.remarks.problem(
                    log.directory.path,
                    f"{format_offsets(start, end)} {'is' if end == start + 1 else 'are'} missing before the segment with base "
                    f"offset {end}, and nothing shows that the log was compacted; kcli verify has the details",
                )

    def _remark_on_directories(self) -> None:
        for source in self.sources.directories:
            if source.is_live:
                self.remarks.unknown(
                    f"A broker is running on {source.path}: it may have written while the files were read, and the "
                    "checkpointed offsets are some seconds old."
                )
            elif source.listing is not None and source.clean_shutdown is None:
                self.remarks.unknown(
                    f"{source.path} has no .kafka_cleanshutdown: it was not stopped cleanly, or a repair removed the file. "
                    "High watermarks are those of the last checkpoint, and a broker that starts may still cut the ends of logs."
                )

    # ---------------------------------------------------------------------------------------------- internal topics

    @cached_property
    def groups(self) -> GroupSections | None:
        from kcli.inspect.description.coordinators import read_groups, read_share_state
        from kcli.inspect.description.group_sections import GroupSections
        from kcli.state.groups import ShareGroup
        from kcli.state.share_group_state import ShareGroupState

        found = self._internal(CONSUMER_OFFSETS, "groups, their members and their committed offsets")
        if found is None:
            return None
        states = [read_groups(self.disk, partition, self.remarks) for partition in found]
        share_state = ShareGroupState()
        if any(isinstance(group, ShareGroup) for state in states for group in state.groups.values()):
            for partition in self._internal(SHARE_GROUP_STATE, "the progress of share groups") or ():
                read_share_state(self.disk, partition, share_state, self.remarks)
        return GroupSections(states, share_state, self.image, self.logs, self.options)

    def _put_transactions(self, report: Row) -> None:
        from kcli.inspect.description.coordinators import read_transactions
        from kcli.inspect.description.group_sections import open_transaction_rows, transaction_rows
        from kcli.state.transaction_state import TransactionState

        state: TransactionState = TransactionState()
        found = self._internal(TRANSACTION_STATE, "transactional ids and their states")
        for partition in found or ():
            read_transactions(self.disk, partition, state, self.remarks)
        is_whole = found is not None and len(found) == self._partition_count(TRANSACTION_STATE)
        report["transactions"] = None if found is None else transaction_rows(state, self.options)
        report["openTransactions"] = open_transaction_rows(self.surveyed, state, is_whole=is_whole)

    def _internal(self, topic: str, what: str) -> list[PartitionDirectory] | None:
        """Return the partitions of an internal topic, of each the replica that ends last, and remark on missing ones.

        None if the topic has partitions, or may have some, and none is in the given directories.
        """
        logs = [self.logs.best(topic, partition) for partition in self.sources.partitions_of(topic)]
        count = self._partition_count(topic)
        if not logs and count != 0:
            self.remarks.unknown(f"No partition of {topic} is in the given directories: {what} are not shown.")
            return None
        if count is None:
            self.remarks.unknown(
                f"The number of partitions of {topic} is not known; {len(logs)} are here, and only their {what} are shown."
            )
        elif len(logs) < count:
            self.remarks.unknown(
                f"Only {len(logs)} of the {count} partitions of {topic} are here: only their {what} are shown."
            )
        return [log.directory for log in logs if log is not None]

    def _partition_count(self, topic: str) -> int | None:
        """Return the number of partitions of a topic by the metadata, 0 if it is not in it; None without metadata."""
        if self.image is None:
            return None
        found = self.image.topic(topic)
        return 0 if found is None else len(found.partitions)


def set_foreign_aside(logs: Logs, metadata: MetadataView | None, options: DescribeOptions) -> None:
    """Exclude the partitions of other topics from joins, each with a problem that has both ids and both files."""
    ids: dict[str, tuple[str, Uuid]] = {}
    for replica in logs.sources.current_replicas():
        topic = replica.directory.topic
        topic_id = logs.of(replica).topic_id if options.wants_topic(topic) else None
        path = replica.directory.file(FileKind.PARTITION_METADATA)
        if topic_id is None or path is None:
            continue
        known = None if metadata is None or metadata.is_bootstrap else metadata.image.topic(topic)
        if known is not None and metadata is not None:
            ids.setdefault(topic, (metadata.path, known.topic_id))
        other_path, other_id = ids.setdefault(topic, (path, topic_id))
        if topic_id != other_id:
            logs.sources.set_aside(replica)
            logs.remarks.problem(
                replica.directory.path,
                f"{topic_id_conflict(topic, path, topic_id, other_path, other_id)}: the partition is of another topic of that "
                "name, deleted since or of another cluster, and is joined with nothing; describe it by itself",
            )
