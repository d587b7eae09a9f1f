"""The options of describe: sections, topics, groups, and how much is read.

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
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple

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
