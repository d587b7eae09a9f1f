"""What the members of share groups did and were answered; kcli.simulator.coordination.share_anomalies checks it.

    entry            what it is
    ---------------  ---------------------------------------------------------------------------------------------------
    Delivery         an offset that a member acquired with a ShareFetch, with its delivery count
    Acknowledgement  what a member said about an acquired offset, and what the broker answered
    LostFetch        a ShareFetch that may have acquired records of which no member knows

A member certainly holds an acquired offset from the answer of the ShareFetch until `held_until_ms`: the time at which it sent
its last request that was answered in the same share session, but not longer than the lock. After that its session may have
ended with a broken connection, and the broker releases the records of a session that ends.
"""

from __future__ import annotations

from typing import NamedTuple

TopicPartition = tuple[str, int]
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
FINAL = frozenset((GAP, ACCEPT, REJECT))  # the offset is not delivered again after these


class ShareTerms(NamedTuple):
    """The settings of a share group."""

    topic: str
    delivery_limit: int
    lock_ms: int
    is_committed_only: bool


class Delivery:
    """An offset that a member has acquired; `value` is None if the log has no record there.

    `life` is the number of the broker's start, -1 if the broker may have been started again during the fetch.
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


class ShareHistory:
    """All entries, in the order in which the clients made them."""

    def __init__(self) -> None:
        self.terms: dict[str, ShareTerms] = {}
        self.deliveries: list[Delivery] = []
        self.acknowledgements: list[Acknowledgement] = []
        self.lost_fetches: list[LostFetch] = []
        # Acknowledgements that the broker refused although the member held all of the records.
        self.wrong_refusals: list[str] = []
