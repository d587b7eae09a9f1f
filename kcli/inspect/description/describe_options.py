"""The options of describe: sections, topics, groups, how much is read, and the order of the rows.

section       contents
------------  --------------------------------------------------------------------------------
cluster       log directories, cluster and node ids, features, quorum, the metadata's source
brokers       brokers and controllers as they registered
topics        a row for each topic
partitions    a row for each replica: offsets, sizes, codecs, time span, leader, replicas
segments      a row for each segment
epochs        leader epochs and where they begin
producers     idempotent and transactional producers of each partition
compaction    up to where compacted topics are cleaned, and partitions that are no longer cleaned
groups        groups of all kinds, their committed offsets and lag
members       the groups' members and what is assigned to them
transactions  transactional ids, and the transactions that are open in partitions
configs       configurations that were set; sensitive values are left out
acls          access control entries
users         SCRAM users, never their secrets
quotas        client quotas
tokens        delegation tokens, without their secrets

By --sort the largest or the latest rows come first, unknown values last.

sort      sections and the member to sort by
--------  ------------------------------------------------------------------------------------------------
name      all: the names, then the numbers of partitions, ascending; the order without --sort
size      topics, partitions, segments: sizeInBytes
records   the same: records
segments  topics, partitions: segments
time      topics, partitions, segments: maxTimestamp; producers: lastTimestamp; transactions: lastUpdateTimestamp
lag       groups: totalLag, and within a group the lag of its offsets
members   groups: members
dirty     compaction: dirtyBytes
ratio     compaction: dirtyRatio

Sections that have no such member keep their order.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple

from kcli.inspect.json_text import JsonObject as Row

SECTIONS = (
    *("cluster", "brokers", "topics", "partitions", "segments", "epochs", "producers", "compaction"),
    *("groups", "members", "transactions", "configs", "acls", "users", "quotas", "tokens"),
)


# The sections if none is asked for: of log directories, of single partitions, of chosen topics or groups.
OVERVIEW_SECTIONS = frozenset(
    (
        *("cluster", "brokers", "topics", "partitions", "compaction", "groups", "transactions"),
        *("configs", "acls", "users", "quotas", "tokens"),
    )
)
PARTITION_SECTIONS = frozenset(("cluster", "partitions", "segments", "epochs", "producers", "compaction"))
TOPIC_SECTIONS = frozenset(("topics", "partitions", "segments", "compaction", "configs", "groups", "transactions"))
GROUP_SECTIONS = frozenset(("groups", "members", "configs"))


class DescribeOptions(NamedTuple):
    """The options of describe.

    `show` has names of SECTIONS; None chooses them by the paths, topics and groups. `topics` and `groups` are globs, of which
    any may match; without globs all are shown. With `deep` every batch is read. `now_ms` is the current time, for the dirty
    bytes that a cleaner would find. `sort` is the order of rows, one of sorting.SORTS.
    """

    show: frozenset[str] | None = None
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    deep: bool = False
    now_ms: int | None = None
    sort: str = "name"

    def wants_topic(self, name: str) -> bool:
        """Return True if a topic is asked for."""
        return not self.topics or any(fnmatchcase(name, glob) for glob in self.topics)

    def wants_group(self, group_id: str) -> bool:
        """Return True if a group is asked for."""
        return not self.groups or any(fnmatchcase(group_id, glob) for glob in self.groups)


NAME = "name"
# By --sort and section of the report (kcli.inspect.renderers.description_report.ROW_TYPES): the member.
_MEMBERS: dict[str, dict[str, str]] = {
    "size": dict.fromkeys(("topics", "partitions", "segments"), "sizeInBytes"),
    "records": dict.fromkeys(("topics", "partitions", "segments"), "records"),
    "segments": dict.fromkeys(("topics", "partitions"), "segments"),
    "time": {
        **dict.fromkeys(("topics", "partitions", "segments"), "maxTimestamp"),
        "producers": "lastTimestamp",
        "transactions": "lastUpdateTimestamp",
    },
    "lag": {"groups": "totalLag"},
    "members": {"groups": "members"},
    "dirty": {"compaction": "dirtyBytes"},
    "ratio": {"compaction": "dirtyRatio"},
}
SORTS = (NAME, *_MEMBERS)


def sorted_sections(sort: str) -> frozenset[str]:
    """Return the sections that `sort`, one of SORTS except name, sorts."""
    return frozenset(_MEMBERS[sort])


def sort_rows(report: Row, sort: str) -> None:
    """Sort the rows of the report by `sort`, one of SORTS."""
    for section, member in _MEMBERS.get(sort, {}).items():
        if report.get(section):
            report[section] = _largest_first(report[section], member)
    if sort == "lag":
        for group in report.get("groups") or ():
            group["offsets"] = _largest_first(group["offsets"], "lag")


def _largest_first(rows: list[Row], member: str) -> list[Row]:
    return sorted(rows, key=lambda row: (row[member] is None, -(row[member] or 0)))
