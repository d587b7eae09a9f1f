"""What the members of share groups did and were answered; kcli.simulator.coordination.anomalies checks it.

    entry            what it is
    ---------------  ---------------------------------------------------------------------------------------------------
    Delivery         an offset that a member acquired with a ShareFetch, with its delivery count
    Acknowledgement  what a member said about an acquired offset, and what the broker answered
    LostFetch        a ShareFetch that may have acquired records of which no member knows
    SilentDeath      a member that holds records and sends nothing any more, on a connection that stays open
    ShareEra         begins when an administrator sets or deletes the start offsets of a group's partitions

Deliveries and acknowledgements of different eras have nothing to do with each other. `group` in a Delivery is the name of the
era of its partition, which is the name of the group until its start offset is set for the first time.

A member certainly holds an acquired offset from the answer of the ShareFetch until `held_until_ms`: the time at which it sent
its last request that was answered in the same share session, but not longer than the lock. After that its session may have
ended with a broken connection, and the broker releases the records of a session that ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kcli.format.primitives import TopicPartition

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
ERA_MARK = "@"  # no share group's name has it
QUIET_MS = 5000  # more than a client waits for an answer
FINAL = frozenset((GAP, ACCEPT, REJECT))  # the offset is not delivered again after these


class ShareTerms(NamedTuple):
    """The settings of a share group."""

    topic: str
    delivery_limit: int
    lock_ms: int
    is_committed_only: bool


class ShareEra(NamedTuple):
    """The start offsets of partitions whose states began anew at `begin_ms`.

    In an era that is not strict, the leader may have kept the share partition of the era before: a session of a member that had
    left the group was not over. It serves fetches until the share coordinator refuses its first write, as Kafka's does.
    """

    starts: dict[TopicPartition, int]
    begin_ms: int
    is_strict: bool


class Delivery:
    """An offset that a member has acquired; `value` is None if the log has no record there.

    `life` is that of the stage, -1 if it may have changed during the fetch.
    """

    __slots__ = (
        "answered_ms",
        "count",
        "group",
        "held_until_ms",
        "life",
        "lock_end_ms",
        "member",
        "offset",
        "partition",
        "sent_ms",
        "value",
    )

    def __init__(
        self,
        group: str,
        member: str,
        partition: TopicPartition,
        offset: int,
        value: bytes | None,
        count: int,
        sent_ms: int,
        answered_ms: int,
        lock_end_ms: int,
        life: int,
    ) -> None:
        self.group = group
        self.member = member
        self.partition = partition
        self.offset = offset
        self.value = value
        self.count = count
        self.sent_ms = sent_ms
        self.answered_ms = answered_ms
        self.lock_end_ms = lock_end_ms
        self.held_until_ms = answered_ms
        self.life = life


class Acknowledgement:
    """A member's word about a delivery; `answered_ms` is None until the broker has accepted it.

    A stray one may be executed later or not at all; a refused one is certainly not executed.
    """

    __slots__ = ("answered_ms", "delivery", "is_refused", "is_stray", "kind", "sent_ms")

    def __init__(self, delivery: Delivery, kind: int, sent_ms: int) -> None:
        self.delivery = delivery
        self.kind = kind
        self.sent_ms = sent_ms
        self.answered_ms: int | None = None
        self.is_stray = False
        self.is_refused = False

    def accept(self, now_ms: int, lock_ms: int) -> None:
        """Note that the broker has accepted it.

        A renewal extends the lock only if the answer came before the lock ended. After that another member may have got the
        record and accepted it, and the broker skips acknowledgements of records below the start offset without an error.
        """
        self.answered_ms = now_ms
        delivery = self.delivery
        if self.kind == RENEW and now_ms < delivery.lock_end_ms:
            delivery.lock_end_ms = max(delivery.lock_end_ms, self.sent_ms + lock_ms)


class LostFetch(NamedTuple):
    """A ShareFetch of a member that was sent at `sent_ms` and is not executed after `last_ms`."""

    group: str
    member: str
    sent_ms: int
    last_ms: int


class SilentDeath(NamedTuple):
    """A member's last deliveries, which only the ends of their locks release, or another start of the broker.

    While the workload drains this is certain, for no connection breaks then; and others read the partitions.
    """

    group: str
    at_ms: int
    held: list[Delivery]
    is_draining: bool


class ShareHistory:
    """All entries, in the order in which the clients made them."""

    def __init__(self) -> None:
        self.terms: dict[str, ShareTerms] = {}
        self.eras: dict[str, ShareEra] = {}
        self._era_of: dict[tuple[str, TopicPartition], str] = {}
        self.deliveries: list[Delivery] = []
        self.acknowledgements: list[Acknowledgement] = []
        self.lost_fetches: list[LostFetch] = []
        self.silent_deaths: list[SilentDeath] = []
        # Acknowledgements that the broker refused although the member held all of the records.
        self.wrong_refusals: list[str] = []
        # Start offsets that are not those that an administrator has set.
        self.wrong_starts: list[str] = []

    def expired_locks(self, *, is_draining: bool) -> Iterator[tuple[SilentDeath, Delivery, Delivery]]:
        """Yield the deliveries of silent members that followed one another while the broker ran: it has ended a lock.

        The records of a member that has died silently are free only then, unless the broker has noticed that its connection
        was broken. `is_draining` selects the deaths.
        """
        later: dict[tuple[str, TopicPartition, int], list[Delivery]] = {}
        for one in self.deliveries:
            later.setdefault((one.group, one.partition, one.offset), []).append(one)
        for death in self.silent_deaths:
            for held in death.held if death.is_draining == is_draining else ():
                found = later[held.group, held.partition, held.offset]
                following = [one for one in found if one.sent_ms > held.answered_ms and one.life == held.life != -1]
                if following:
                    yield death, held, min(following, key=lambda one: one.answered_ms)

    def is_quiet(self, group: str, since_ms: int, now_ms: int) -> bool:
        """Return whether the members of a group with read_committed, who only read since a time, get nothing any more.

        The broker does not write that records of aborted transactions are archived, so such a group may keep a lag.
        """
        terms = self.terms[group]
        last_ms = max((one.answered_ms for one in self.deliveries if group_of(one.group) == group), default=0)
        return terms.is_committed_only and now_ms > max(last_ms, since_ms) + 2 * terms.lock_ms + QUIET_MS

    def begin_era(self, group: str, era: ShareEra) -> None:
        """Begin an era of partitions of a group."""
        name = f"{group}{ERA_MARK}{len(self.eras) + 1}"
        self.eras[name] = era
        for partition in era.starts:
            self._era_of[group, partition] = name

    def era_of(self, group: str, partition: TopicPartition) -> str:
        """Return the name of the present era of a partition."""
        return self._era_of.get((group, partition), group)

    def era(self, name: str) -> ShareEra:
        """Return an era."""
        return self.eras.get(name, _FIRST_ERA)

    def terms_of(self, era: str) -> ShareTerms:
        """Return the settings of the group of an era."""
        return self.terms[group_of(era)]


def group_of(era: str) -> str:
    """Return the group of an era."""
    return era.partition(ERA_MARK)[0]


_FIRST_ERA = ShareEra({}, 0, is_strict=True)
