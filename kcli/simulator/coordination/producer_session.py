"""A producer's session: an id and an epoch, sequences, and one transaction after the other; without a transactional id an
idempotent producer.

    protocol of the client      partitions are added    after the end of a transaction
    --------------------------  ----------------------  -------------------------------------------------------------------
    version 2 (KIP-890)         by Produce 12 and       EndTxn 5 has returned the next epoch
                                TxnOffsetCommit 5
    version 1 (older requests)  by AddPartitionsToTxn,  the epoch stays; if a request was left without a response,
                                AddOffsetsToTxn         InitProducerId increments it: the request may still arrive (KIP-360)

    outcome  meaning
    -------  ------------------------------------------------------------------------------------------------
    DONE     the broker has done it
    ABORT    the transaction must be aborted
    FENCED   the producer id or epoch is not valid any more: InitProducerId is needed, as a new producer
    OVER     the simulation is over
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from random import Random
from typing import Protocol

from kcli.format.codec_streams import ZSTD
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from kcli.protocol.message import Message
from kcli.simulator.client import Task
from kcli.simulator.coordination.history import Fate, GivenEpoch, OffsetCommit, Transaction, Write, is_by_id
from kcli.simulator.coordination.stage import TRANSACTION_KEY, Caller, Stage
from kcli.simulator.sent_records import CODECS, SentRecord, encode_batch
from kcli.simulator.world import PAUSE_MS

TIMEOUTS_MS = (1500, 4000, 10_000)
MAX_ATTEMPTS = 6
_TOPIC_IDS_VERSION = 13
_ZSTD_VERSION = 7
# The last versions of a client without transaction.version 2.
_OLD_PRODUCE, _OLD_ADD_PARTITIONS, _OLD_TXN_OFFSET_COMMIT, _OLD_END = 11, 3, 4, 4
_EXPECTED_VERSION = 3  # of InitProducerId: from here on it may state an id and epoch
_GENERATION_VERSION = 3  # of TxnOffsetCommit
_FENCED = frozenset(
    (
        error_codes.PRODUCER_FENCED,
        error_codes.INVALID_PRODUCER_EPOCH,
        error_codes.INVALID_PRODUCER_ID_MAPPING,
    )
)
_MUST_ABORT = frozenset((error_codes.INVALID_TXN_STATE, error_codes.TRANSACTION_ABORTABLE))
# The member that commits offsets is not in the group any more, or not in this generation.
_STALE_MEMBER = frozenset(
    (
        error_codes.ILLEGAL_GENERATION,
        error_codes.UNKNOWN_MEMBER_ID,
        error_codes.REBALANCE_IN_PROGRESS,
        error_codes.STALE_MEMBER_EPOCH,
        error_codes.FENCED_MEMBER_EPOCH,
        error_codes.FENCED_INSTANCE_ID,
    )
)
# After these errors the transaction has certainly not ended by this request.
_WITHOUT_EFFECT = frozenset((error_codes.CONCURRENT_TRANSACTIONS, error_codes.COORDINATOR_LOAD_IN_PROGRESS))

CodeOf = Callable[[Message], int]


class Outcome(Enum):
    """See the head of this module."""

    DONE = auto()
    ABORT = auto()
    FENCED = auto()
    OVER = auto()


class Session(Protocol):
    """A producer with an id and one transaction after the other: a raw one, or one on a core of kcli's own client."""

    transaction: Transaction | None
    is_ready: bool

    def start(self) -> Task[Outcome]:
        """Get a producer id and epoch as a new producer, whatever the one before has left."""
        ...

    def begin(self) -> Transaction:
        """Begin a transaction."""
        ...

    def produce(self, partition: TopicPartition, values: Sequence[bytes]) -> Task[Outcome]:
        """Write records, in the transaction if there is one."""
        ...

    def commit_offsets(
        self,
        group: str,
        member_id: str,
        generation: int,
        offsets: Mapping[TopicPartition, int],
        instance_id: str | None,
    ) -> Task[Outcome]:
        """Commit offsets of a group with the transaction."""
        ...

    def end(self, *, is_commit: bool) -> Task[Outcome]:
        """Commit or abort the transaction."""
        ...

    def abandon(self) -> None:
        """Leave the transaction open."""
        ...

    def finish(self) -> Task[None]:
        """Wait until all records have a result."""
        ...


class ProducerSession:
    """One raw session; `name` is unique among all sessions."""

    def __init__(self, stage: Stage, name: str, rng: Random, transactional_id: str | None) -> None:
        self.transaction: Transaction | None = None
        self.is_ready = False
        self._stage = stage
        self._name = name
        self._rng = rng
        self._id = transactional_id
        self._caller = Caller(stage, name, rng)
        # With Kafka's rules, EndTxn of a fenced client of version 2 may look like a retry of an end by a client of version 1.
        # So all producers of a transactional id have one version.
        self._is_new_style = stage.styles.setdefault(transactional_id, rng.random() < 0.6)
        self._timeout_ms = rng.choice(TIMEOUTS_MS)
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition | str] = set()
        self._commits: list[OffsetCommit] = []
        self._has_stray = False
        self._unresolved: list[Transaction] = []
        self._life = 0

    @property
    def _session(self) -> str:
        return f"{self._name}/{self._life}"

    # ------------------------------------------------------------------------------------------------- id and transactions

    def start(self) -> Task[Outcome]:
        """Get a producer id and epoch as a new producer, whatever the one before has left."""
        if self._id is not None:
            yield from self._caller.find_coordinator(TRANSACTION_KEY, self._id)
        else:
            yield from self._stage.world.negotiate_versions(self._stage.world.client(f"{self._name}-versions"))
        self._life += 1
        outcome = yield from self._init(is_new=True)
        self.is_ready = outcome is Outcome.DONE
        return outcome

    def _init(self, *, is_new: bool) -> Task[Outcome]:
        world, caller = self._stage.world, self._caller
        while not self._stage.is_over:
            version = caller.version(INIT_PRODUCER_ID, 0 if is_new else _EXPECTED_VERSION)
            expected = {} if is_new else {"producer_id": self._producer_id, "producer_epoch": self._epoch}
            timeout_ms, sent_ms = self._timeout_ms, self._stage.now_ms
            request = world.request(INIT_PRODUCER_ID, transactional_id=self._id, transaction_timeout_ms=timeout_ms, **expected)
            # Both producers of a transactional id would be fenced again and again by repeated requests.
            response = yield from caller.call(INIT_PRODUCER_ID, version, request, may_repeat=False)
            if response is not None and not response.error_code:
                self._take_epoch(response, sent_ms)
                for transaction in self._unresolved:
                    transaction.resolved_ms = self._stage.now_ms
                self._unresolved.clear()
                self._has_stray = False
                return Outcome.DONE
            if response is not None:
                if response.error_code in _FENCED:
                    return Outcome.FENCED
                caller.check(response.error_code, "InitProducerId")
            yield self._rng.randrange(1, PAUSE_MS)
        return Outcome.OVER

    def _take_epoch(self, response: Message, sent_ms: int) -> None:
        stage, producer_id, epoch = self._stage, response.producer_id, response.producer_epoch
        self._producer_id, self._epoch = producer_id, epoch
        self._sequences.clear()
        stage.world.trace.add(self._name, f"has epoch {epoch} of producer id {producer_id}")
        stage.history.epochs.append(GivenEpoch(self._session, self._id, producer_id, epoch, sent_ms, stage.now_ms))

    def begin(self) -> Transaction:
        """Begin a transaction; the broker hears of it with the first record or offset."""
        assert self._id is not None
        self.transaction = self._stage.history.begin_transaction(self._id)
        self._added.clear()
        self._commits.clear()
        return self.transaction

    def abandon(self) -> None:
        """Leave the transaction open; the broker ends it after its timeout, or when there is a new session."""
        if self.transaction is not None and self.transaction.resolved_ms is None:
            self._stage.world.trace.add(self._name, f"leaves {self.transaction.name} {self.transaction.fate.value}")
            self._unresolved.append(self.transaction)
        self.transaction = None
        self.is_ready = False

    def end(self, *, is_commit: bool) -> Task[Outcome]:
        """Commit or abort the transaction."""
        transaction, stage = self.transaction, self._stage
        assert transaction is not None
        if is_commit:
            transaction.commit_sent_ms = stage.now_ms
        outcome = yield from self._end(transaction, is_commit=is_commit)
        if outcome is Outcome.DONE:
            transaction.resolved_ms = stage.now_ms
            self.transaction = None
            if self._has_stray and not self._is_new_style:
                outcome = yield from self._init(is_new=False)
        stage.world.trace.add(self._name, f"{transaction.name} is {transaction.fate.value}")
        if outcome is not Outcome.DONE:
            self.abandon()
        return outcome

    def _end(self, transaction: Transaction, *, is_commit: bool) -> Task[Outcome]:
        world, caller, is_certain = self._stage.world, self._caller, True
        new = self._is_new_style
        while not self._stage.is_over:
            version = caller.version(END_TXN, 5) if new else caller.version(END_TXN, 0, _OLD_END)
            request = world.request(
                END_TXN,
                transactional_id=self._id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                committed=is_commit,
            )
            sent_ms = self._stage.now_ms
            response = yield from caller.call(END_TXN, version, request, may_repeat=new)
            self._note_stray()
            is_certain = is_certain and not caller.was_stray
            if response is not None:
                code = response.error_code
                if not code:
                    transaction.fate = Fate.COMMITTED if is_commit else Fate.ABORTED
                    if new:
                        self._take_epoch(response, sent_ms)
                    return Outcome.DONE
                if code in _FENCED or code in _MUST_ABORT:
                    transaction.fate = Fate.ABORTED if is_certain or not is_commit else Fate.UNKNOWN
                    return Outcome.FENCED
                caller.check(code, "EndTxn")
                is_certain = is_certain and code in _WITHOUT_EFFECT
            yield self._rng.randrange(1, PAUSE_MS)
        transaction.fate = Fate.UNKNOWN if is_commit else Fate.ABORTED
        return Outcome.OVER

    def _outcome(self, code: int, what: str) -> Outcome | None:
        """Return the outcome of a request with an error code, None if it is to be sent again. Raises SimulationFailure."""
        if not code:
            return Outcome.DONE
        if code in _FENCED or code in _MUST_ABORT or code in _STALE_MEMBER:
            self._stage.world.trace.add(self._name, f"{what} (epoch {self._epoch}): {error_codes.NAMES[code]}")
            return Outcome.FENCED if code in _FENCED else Outcome.ABORT
        self._caller.check(code, f"{what} ({self._session}, epoch {self._epoch})")
        return None

    def _note_stray(self) -> None:
        self._has_stray = self._has_stray or self._caller.was_stray

    # ------------------------------------------------------------------------------------------------------------- records

    def produce(self, partition: TopicPartition, values: Sequence[bytes]) -> Task[Outcome]:
        """Write records, in the transaction if there is one."""
        stage = self._stage
        if self.transaction is not None and not self._is_new_style:
            outcome = yield from self._add_partition(partition)
            if outcome is not Outcome.DONE:
                return outcome
        session, transaction = self._session, self.transaction
        writes = [stage.history.write(value, partition, session, transaction, stage.now_ms) for value in values]
        records = [SentRecord(stage.now_ms, None, value) for value in values]
        codec, sequence = self._rng.choice(CODECS), self._sequences.get(partition, 0)
        is_transactional = self.transaction is not None
        data = encode_batch(records, codec, self._producer_id, self._epoch, sequence, is_transactional=is_transactional)
        attempts = 0
        while not stage.is_over and (attempts < MAX_ATTEMPTS or not is_transactional):
            attempts += 1
            response = yield from self._send(partition, data, _ZSTD_VERSION if codec == ZSTD else 3)
            self._note_stray()
            if response is not None:
                answer = response.responses[0].partition_responses[0]
                settled = self._settle(writes, answer)
                if settled is Outcome.DONE:
                    self._sequences[partition] = sequence + len(values)
                if settled is not None:
                    return settled
            yield self._rng.randrange(1, PAUSE_MS)
        # A broker that ceases to lead answers with an error after it has appended: the sequence is used.
        self._has_stray = True
        return Outcome.OVER if stage.is_over else Outcome.ABORT

    def _send(self, partition: TopicPartition, data: bytes, lowest: int) -> Task[Message | None]:
        world, caller, topic = self._stage.world, self._caller, self._stage.topics[partition[0]]
        is_old = self.transaction is not None and not self._is_new_style
        lowest = 12 if self.transaction is not None and self._is_new_style else lowest
        lowest = _TOPIC_IDS_VERSION if is_by_id(topic.name) else lowest
        version = caller.version(PRODUCE, lowest, _OLD_PRODUCE if is_old else 1 << 15)
        part = world.struct(PRODUCE, "PartitionProduceData", index=partition[1], records=data)
        name = "" if version >= _TOPIC_IDS_VERSION else topic.name
        of_topic = world.struct(PRODUCE, "TopicProduceData", name=name, topic_id=topic.topic_id, partition_data=[part])
        transactional_id = None if self.transaction is None else self._id
        request = world.request(PRODUCE, transactional_id=transactional_id, acks=-1, timeout_ms=1000, topic_data=[of_topic])
        response = yield from caller.call(PRODUCE, version, request)
        return response

    def _settle(self, writes: list[Write], answer: Message) -> Outcome | None:
        """Return the outcome of an answer, None if the batch is to be sent again."""
        code = answer.error_code
        if not code or code == error_codes.DUPLICATE_SEQUENCE_NUMBER:
            for at, write in enumerate(writes):
                write.is_acknowledged = True
                write.offset = None if code else answer.base_offset + at
            return Outcome.DONE
        return self._outcome(code, "Produce")

    def finish(self) -> Task[None]:
        """Do nothing: `produce` has waited for the results."""
        yield from ()

    # ----------------------------------------------------------------------------------- partitions and offsets of version 1

    def _add_partition(self, partition: TopicPartition) -> Task[Outcome]:
        if partition in self._added:
            return Outcome.DONE
        world = self._stage.world
        topic = world.struct(ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxnTopic", name=partition[0], partitions=[partition[1]])
        request = world.request(
            ADD_PARTITIONS_TO_TXN,
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[topic],
        )

        def code_of(response: Message) -> int:
            return int(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

        outcome = yield from self._add(ADD_PARTITIONS_TO_TXN, _OLD_ADD_PARTITIONS, request, code_of)
        if outcome is Outcome.DONE:
            self._added.add(partition)
        return outcome

    def _add_group(self, group: str) -> Task[Outcome]:
        if group in self._added:
            return Outcome.DONE
        request = self._stage.world.request(
            ADD_OFFSETS_TO_TXN,
            transactional_id=self._id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            group_id=group,
        )
        outcome = yield from self._add(ADD_OFFSETS_TO_TXN, 1 << 15, request, lambda response: int(response.error_code))
        if outcome is Outcome.DONE:
            self._added.add(group)
        return outcome

    def _add(self, key: int, highest: int, request: Message, code_of: CodeOf) -> Task[Outcome]:
        caller = self._caller
        for _ in range(MAX_ATTEMPTS):
            response = yield from caller.call(key, caller.version(key, 0, highest), request, may_repeat=False)
            self._note_stray()
            if response is not None:
                outcome = self._outcome(code_of(response), "AddPartitionsToTxn or AddOffsetsToTxn")
                if outcome is not None:
                    return outcome
            yield self._rng.randrange(1, PAUSE_MS)
        return Outcome.ABORT

    def commit_offsets(
        self,
        group: str,
        member_id: str,
        generation: int,
        offsets: Mapping[TopicPartition, int],
        instance_id: str | None,
    ) -> Task[Outcome]:
        """Commit offsets of a group with the transaction."""
        stage, caller, new = self._stage, self._caller, self._is_new_style
        assert self.transaction is not None
        if not new:
            outcome = yield from self._add_group(group)
            if outcome is not Outcome.DONE:
                return outcome
        commits = [
            OffsetCommit(group, partition, offset, stage.now_ms, member_id, generation, self.transaction)
            for partition, offset in offsets.items()
        ]
        stage.history.commits += commits
        request = self._offsets_request(group, member_id, generation, offsets, instance_id)
        for _ in range(MAX_ATTEMPTS):
            lowest = 5 if new else _GENERATION_VERSION
            version = caller.version(TXN_OFFSET_COMMIT, lowest, 1 << 15 if new else _OLD_TXN_OFFSET_COMMIT)
            response = yield from caller.call(TXN_OFFSET_COMMIT, version, request, may_repeat=new)
            self._note_stray()
            if response is not None:
                code = max((part.error_code for topic in response.topics for part in topic.partitions), key=abs)
                settled = self._outcome(code, "TxnOffsetCommit")
                if settled is Outcome.DONE:
                    for commit in commits:
                        commit.answered_ms = stage.now_ms
                if settled is not None:
                    return settled
            yield self._rng.randrange(1, PAUSE_MS)
        return Outcome.ABORT

    def _offsets_request(
        self,
        group: str,
        member_id: str,
        generation: int,
        offsets: Mapping[TopicPartition, int],
        instance_id: str | None,
    ) -> Message:
        world, by_topic = self._stage.world, dict[str, list[Message]]()
        for (name, index), offset in offsets.items():
            part = world.struct(
                TXN_OFFSET_COMMIT,
                "TxnOffsetCommitRequestPartition",
                partition_index=index,
                committed_offset=offset,
                committed_metadata="",
            )
            by_topic.setdefault(name, []).append(part)
        return world.request(
            TXN_OFFSET_COMMIT,
            transactional_id=self._id,
            group_id=group,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=[
                world.struct(
                    TXN_OFFSET_COMMIT,
                    "TxnOffsetCommitRequestTopic",
                    name=name,  # versions below 6 have the name, the others the id
                    topic_id=self._stage.topics[name].topic_id,
                    partitions=parts,
                )
                for name, parts in by_topic.items()
            ],
        )
