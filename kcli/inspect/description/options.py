"""What is asked of describe: which sections, which topics and groups, how thoroughly.

section       tells
------------  --------------------------------------------------------------------------------
cluster       log directories, cluster and node ids, features, quorum, the metadata's source
brokers       brokers and controllers as they registered
topics        one row a topic
partitions    one row a replica: offsets, sizes, codecs, time span, leader, replicas
segments      one row a segment
epochs        leader epochs and where they begin
producers     idempotent and transactional producers of each partition
compaction    how far the cleaner has come in compacted topics, and what it gave up
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


# What is told where no section is asked for: of log directories, of single partitions, of chosen topics or groups.
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
    """`show` are names of SECTIONS, None to choose by what was given and asked for; `topics` and `groups` are globs, any of
    which may match, none for all. With `deep` every batch header is read, so that nothing is left out for its cost.
    `now_ms` is what time it is, for what a cleaner would find now. `sort` is the order of rows, one of sorting.SORTS.
    """

    show: frozenset[str] | None = None
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    deep: bool = False
    now_ms: int | None = None
    sort: str = "name"

    def wants_topic(self, name: str) -> bool:
        """True where a topic is asked for."""
        return not self.topics or any(fnmatchcase(name, glob) for glob in self.topics)

    def wants_group(self, group_id: str) -> bool:
        """True where a group is asked for."""
        return not self.groups or any(fnmatchcase(group_id, glob) for glob in self.groups)
