"""What the clients of a coordination workload did and were answered; kcli.simulator.coordination.anomalies checks it.

    entry         what it is
    ------------  ------------------------------------------------------------------------------------------------------
    Write         a record that was sent; all values are different
    Transaction   its writes belong to it; its fate is known once EndTxn is answered
    Poll          the records that one fetch returned to a reader, after the filter of its isolation level
    OffsetCommit  an offset that was committed, or may have been; in a transaction it counts when that is committed
    OffsetRead    the answer to an OffsetFetch
    Ownership     a partition that a coordinator has assigned to a member in a generation or member epoch
    shares        the deliveries and acknowledgements of share groups: kcli.simulator.coordination.share_history
    GivenEpoch    a producer id and epoch that a session of a producer got

The topic of a TopicPartition is the name of the topic. A topic that is deleted and created again under the same name has in
addition the number of its creation (`again/2`), because its partitions begin anew: see topic_name.

Times are virtual ms. A stray request is one that was repeated or got no response, so that the broker may execute it later.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from kcli.format.primitives import TopicPartition
from kcli.simulator.coordination.share_history import ShareHistory

NUMBER_MARK = "/"  # no topic's name has it
AGAIN = "again"  # the topic that is deleted and created again
NO_OFFSET = -1
NO_GENERATION = -1


def topic_name(topic: str) -> str:
    """Return the name that requests have for a topic of the history."""
    return topic.partition(NUMBER_MARK)[0]


def is_by_id(topic: str) -> bool:
    """Return whether requests must state the topic's id: by its name they could reach a later topic of that name."""
    return NUMBER_MARK in topic


class Fate(Enum):
    """The end of a transaction, as its client knows it."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Transaction:
    """A transaction; `resolved_ms` is the time from which on its end is certain to have happened, whatever it was."""

    def __init__(self, name: str, transactional_id: str) -> None:
        self.name = name
        self.transactional_id = transactional_id
        self.fate = Fate.OPEN
        self.commit_sent_ms: int | None = None
        self.resolved_ms: int | None = None

    @property
    def is_aborted(self) -> bool:
        """True if no reader may see its records: it was aborted, or no client has asked to commit it."""
        return self.fate is Fate.ABORTED or self.commit_sent_ms is None


class Write:
    """A record of a producer's session; `offset` is None until it is acknowledged."""

    __slots__ = ("is_acknowledged", "offset", "partition", "sent_ms", "session", "transaction", "value")

    def __init__(
        self, value: bytes, partition: TopicPartition, session: str, transaction: Transaction | None, sent_ms: int
    ) -> None:
        self.value = value
        self.partition = partition
        self.session = session
        self.transaction = transaction
        self.sent_ms = sent_ms
        self.offset: int | None = None
        self.is_acknowledged = False


class Poll(NamedTuple):
    """What a reader got of the offsets `start` to `end`; a reader begins a new `view` when it sets its position."""

    reader: str
    group: str | None
    view: int
    partition: TopicPartition
    start: int
    end: int
    records: list[tuple[int, bytes]]
    is_committed_only: bool
    at_ms: int


class OffsetCommit:
    """An offset that a member commits; `answered_ms` is None until the broker has accepted it."""

    __slots__ = (
        "answered_ms",
        "generation",
        "group",
        "is_refused",
        "is_stray",
        "member",
        "offset",
        "partition",
        "sent_ms",
        "transaction",
    )

    def __init__(
        self,
        group: str,
        partition: TopicPartition,
        offset: int,
        sent_ms: int,
        member: str = "",
        generation: int = NO_GENERATION,
        transaction: Transaction | None = None,
    ) -> None:
        self.group = group
        self.partition = partition
        self.offset = offset
        self.sent_ms = sent_ms
        self.member = member
        self.generation = generation
        self.transaction = transaction
        self.answered_ms: int | None = None
        self.is_stray = False
        self.is_refused = False

    @property
    def first_possible_ms(self) -> int | None:
        """The first time at which the offset may be seen; None: never."""
        if self.is_refused or (self.transaction is not None and self.transaction.is_aborted):
            return None
        return self.sent_ms if self.transaction is None else self.transaction.commit_sent_ms

    @property
    def certain_ms(self) -> int | None:
        """The time from which on the offset is certainly committed; None: it may not be."""
        if self.transaction is None:
            return self.answered_ms
        is_committed = self.transaction.fate is Fate.COMMITTED and self.answered_ms is not None
        return self.transaction.resolved_ms if is_committed else None

    @property
    def last_possible_ms(self) -> int | None:
        """The time after which the offset is not written again; None: there is no such time."""
        if self.transaction is not None:
            return self.transaction.resolved_ms
        return None if self.is_stray else self.answered_ms


class OffsetRead(NamedTuple):
    """The committed offset of a partition (NO_OFFSET if none), as an OffsetFetch returned it."""

    group: str
    partition: TopicPartition
    offset: int
    sent_ms: int
    answered_ms: int


class Ownership(NamedTuple):
    """A partition that a member has in a generation; it asked at `sent_ms`, and has known it since `at_ms`."""

    group: str
    generation: int
    member: str
    partition: TopicPartition
    sent_ms: int
    at_ms: int


class GivenEpoch(NamedTuple):
    """A producer id and epoch in a response to InitProducerId or EndTxn; `session` is the one that asked for it."""

    session: str
    transactional_id: str | None  # None: of an idempotent producer
    producer_id: int
    epoch: int
    sent_ms: int
    at_ms: int


class History:
    """All entries, in the order in which the clients made them."""

    def __init__(self) -> None:
        self.writes: dict[bytes, Write] = {}
        self.transactions: list[Transaction] = []
        self.polls: list[Poll] = []
        self.commits: list[OffsetCommit] = []
        self.offset_reads: list[OffsetRead] = []
        self.ownerships: list[Ownership] = []
        self.epochs: list[GivenEpoch] = []
        # Groups by the version of their protocol: in consumer groups an earlier epoch of the same member may commit.
        self.consumer_groups: set[str] = set()
        # Of a group that transforms records: its input topics, and the output topic of each.
        self.transforms: dict[str, dict[str, str]] = {}
        self.readers_of: dict[str, tuple[str, ...]] = {}  # group -> the topics that its members read to the end
        self.deleted_ms: dict[str, int] = {}  # topic -> when its deletion was requested
        # Offsets of deleted topics that a coordinator still had after it had deleted them.
        self.leftovers: list[str] = []
        # Member ids whose static member has joined again, and when it knew its new id.
        self.fenced_ms: dict[str, int] = {}
        self.shares = ShareHistory()
        self._view_count = 0

    def begin_transaction(self, transactional_id: str) -> Transaction:
        """Add a transaction with a new name."""
        transaction = Transaction(f"{transactional_id}.{len(self.transactions)}", transactional_id)
        self.transactions.append(transaction)
        return transaction

    def write(
        self, value: bytes, partition: TopicPartition, session: str, transaction: Transaction | None, sent_ms: int = 0
    ) -> Write:
        """Add a record that is about to be sent."""
        assert value not in self.writes, "two records have one value"
        self.writes[value] = Write(value, partition, session, transaction, sent_ms)
        return self.writes[value]

    def new_view(self) -> int:
        """Return the number of a new view."""
        self._view_count += 1
        return self._view_count


class FinalRecord(NamedTuple):
    """A record in a log at the end; `is_visible` to consumers with read_committed."""

    offset: int
    value: bytes
    is_visible: bool


class FinalState(NamedTuple):
    """What is in the cluster at the end, after all transactions had time to end."""

    logs: dict[TopicPartition, list[FinalRecord]]
    stable: dict[TopicPartition, tuple[int, int]]  # last stable offset, high watermark
    open_transactions: list[str]
    committed: dict[str, dict[TopicPartition, int]]  # by group
    share_lags: dict[str, dict[TopicPartition, int]]  # by share group; -1 if it is not known
