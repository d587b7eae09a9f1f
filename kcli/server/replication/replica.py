"""What a leader knows of its followers, and the changes of the ISR that it proposes (Kafka: Replica, PartitionState).

A follower's state is updated by its Fetch requests: a fetch from an offset says that the follower has all records below it.

    caught-up time     set to                                                       by a fetch from an offset
    -----------------  -----------------------------------------------------------  -----------------------------------------
    the present        the time of this fetch                                       at the leader's log end
    the last fetch     the time of the fetch before: the follower had then          at or above the log end that the leader
                       reached what it has fetched since                            had at the fetch before
    unchanged                                                                       below that

A follower is in sync while its log ends where the leader's does, or its caught-up time is at most replica.lag.time.max.ms ago.
"""

from __future__ import annotations

from typing import NamedTuple

NO_OFFSET = -1
NO_EPOCH = -1  # of a broker that states none, or has not fetched; such an epoch is not checked
NEVER_MS = -(1 << 62)


class Replica:
    """A follower of a partition that this broker leads. `broker_epoch` is that of its last fetch."""

    __slots__ = (
        "_last_fetch_leader_end",
        "_last_fetch_ms",
        "broker_epoch",
        "broker_id",
        "caught_up_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch: int | None = None  # it has not fetched
        self.log_start_offset = NO_OFFSET
        self.log_end_offset = NO_OFFSET
        self.caught_up_ms = NEVER_MS
        self._last_fetch_ms = NEVER_MS
        self._last_fetch_leader_end = NO_OFFSET

    def fetched(self, offset: int, log_start_offset: int, broker_epoch: int, leader_end_offset: int, now_ms: int) -> None:
        """Update the state by a fetch from `offset`, which found the leader's log end at `leader_end_offset`."""
        if offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self._last_fetch_leader_end:
            self.caught_up_ms = max(self.caught_up_ms, self._last_fetch_ms)
        self.log_start_offset, self.log_end_offset, self.broker_epoch = log_start_offset, offset, broker_epoch
        self._last_fetch_leader_end = max(leader_end_offset, self._last_fetch_leader_end)
        self._last_fetch_ms = now_ms

    def was_at_end(self, at_ms: int) -> None:
        """Note that the follower had all records at its fetch at `at_ms`, which did not name the partition."""
        self.caught_up_ms, self._last_fetch_ms = max(self.caught_up_ms, at_ms), max(self._last_fetch_ms, at_ms)

    def reset(self, leader_end_offset: int, now_ms: int, *, is_in_sync: bool, is_new_leader: bool) -> None:
        """Begin a leader epoch. A broker that did not lead before knows nothing of its followers' logs."""
        self.caught_up_ms = now_ms if is_in_sync else NEVER_MS
        if is_new_leader:
            self.log_start_offset = self.log_end_offset = self._last_fetch_leader_end = NO_OFFSET
            self._last_fetch_ms = NEVER_MS
        else:
            self._last_fetch_leader_end, self._last_fetch_ms = leader_end_offset, now_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        """Return whether the follower is in sync with a leader whose log ends at `leader_end_offset`."""
        return self.log_end_offset == leader_end_offset or now_ms - self.caught_up_ms <= max_lag_ms


class IsrChange(NamedTuple):
    """An ISR that a leader proposes to the controller, with the broker epoch of each member, NO_EPOCH for one that is unknown.

    Until the controller has answered, the new ISR may be in force or not: `maximal_isr` has the members of both.
    """

    leader_epoch: int
    partition_epoch: int
    isr: list[tuple[int, int]]
    maximal_isr: frozenset[int]
    is_expansion: bool


class IsrAnswer(NamedTuple):
    """The answer of the controller to an IsrChange."""

    leader_epoch: int
    partition_epoch: int
    isr: list[int]
