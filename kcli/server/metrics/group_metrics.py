"""The counters of a group coordinator (Kafka: the sensors of GroupCoordinatorMetrics)."""

from __future__ import annotations


class GroupMetrics:
    """The counters of all groups of a broker; offsets are counted by partition."""

    __slots__ = (
        "completed_rebalances",
        "consumer_rebalances",
        "offset_commits",
        "offset_deletions",
        "offset_expirations",
        "share_rebalances",
        "streams_rebalances",
    )

    def __init__(self) -> None:
        self.completed_rebalances = 0  # of classic groups
        self.consumer_rebalances = 0  # epochs of consumer groups that a subscription or a topic began
        self.share_rebalances = 0  # the same of share groups
        self.streams_rebalances = 0
        self.offset_commits = 0
        self.offset_deletions = 0  # by an administrator
        self.offset_expirations = 0
