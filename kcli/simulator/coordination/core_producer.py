"""A producer's session on the core of kcli's own producer: what ProducerSession does with raw requests, the client does itself.

    what the application does            how often
    -----------------------------------  -------------------------------------------------------------------------------
    sends, and waits for the results     half of the time; else the records are under way while it goes on
    repeats a call that timed out        init_transactions, commit and abort, until they end
    aborts                               after each TransactionAbortableError
    begins as a new process              after each TransactionFatalError; the one before is killed, or is a zombie for a
                                         time: what it has not sent yet comes when another producer has the id

What the client promises is checked here: a record has one result, and all records of a committed transaction have an offset.
The cluster has transaction.version 2, so that the core uses it; producers of version 1 are raw ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

from kcli.client.client_config import ClientConfig
from kcli.client.consumer.membership import GroupMetadata
from kcli.client.errors import ClientError, KafkaTimeoutError, TransactionAbortableError, TransactionFatalError
from kcli.client.producer.producer import Done, ProducerCore, Record
from kcli.client.producer.producer_batch import RecordMetadata
from kcli.client.producer.producer_config import ProducerConfig
from kcli.client.value_checks import OffsetAndMetadata
from kcli.format.primitives import TopicPartition
from kcli.protocol.apis import END_TXN, INIT_PRODUCER_ID, PRODUCE, TXN_OFFSET_COMMIT
from kcli.protocol.message import Message
from kcli.simulator.client import Task
from kcli.simulator.coordination.history import Fate, GivenEpoch, OffsetCommit, Transaction, Write
from kcli.simulator.coordination.producer_session import TIMEOUTS_MS, Outcome
from kcli.simulator.coordination.stage import Stage
from kcli.simulator.core_client import CoreClient, WireRequest
from kcli.simulator.partition_ledger import SimulationFailure
from kcli.simulator.world import PAUSE_MS

# A batch must not be larger than the smallest segments.
BATCH_BYTES = (0, 200, 1000)
MAX_UNDER_WAY = 20  # records
ZOMBIE_SHARE = 0.5  # of the sessions that are abandoned
MAX_ZOMBIE_MS = 3000
_REPEATED = {PRODUCE: 0, END_TXN: 5, TXN_OFFSET_COMMIT: 5}
_CODECS = ("none", "none", "gzip", "snappy", "lz4", "zstd")


def _may_repeat(request: WireRequest) -> bool:
    return request.version >= _REPEATED.get(request.api_key, request.version + 1)


class CoreProducerSession:
    """One session; `name` is unique among all sessions."""

    def __init__(self, stage: Stage, name: str, rng: Random, transactional_id: str | None) -> None:
        self.transaction: Transaction | None = None
        self.is_ready = False
        self._stage = stage
        self._name = name
        self._rng = rng
        self._id = transactional_id
        self._client: CoreClient
        self._core: ProducerCore
        self._unresolved: list[Transaction] = []
        self._writes: list[Write] = []  # of the transaction
        self._under_way = 0
        self._error: ClientError | None = None  # of a record of the transaction
        self._life = 0

    @property
    def _session(self) -> str:
        return f"{self._name}/{self._life}"

    # ------------------------------------------------------------------------------------------------- id and transactions

    def _begin_life(self) -> None:
        rng = self._rng
        self._life += 1
        self._under_way, self._error = 0, None
        common = self._stage.client_config(rng)
        batch_size = rng.choice(BATCH_BYTES)
        config = ProducerConfig(
            batch_size=batch_size,
            kcli_max_batch_size=4 * batch_size,
            linger_ms=rng.choice((0, 5, 50)),
            max_block_ms=rng.choice((3000, 10_000)),
            delivery_timeout_ms=rng.choice((5000, 30_000)),
            max_in_flight_requests_per_connection=rng.choice((1, 2, 5)),
            compression_type=rng.choice(_CODECS),
            transactional_id=self._id,
            transaction_timeout_ms=rng.choice(TIMEOUTS_MS),
        )
        self._client = self._make_client(common)
        self._core = self._make_core(self._client, config)
        self._client.run(self._core.poll)

    def _make_client(self, common: ClientConfig) -> CoreClient:
        client = self._stage.core_client(self._session, self._rng, common, _may_repeat)
        client.observers[INIT_PRODUCER_ID] = client.observers[END_TXN] = partial(self._observe_epoch, self._session)
        return client

    def _make_core(self, client: CoreClient, config: ProducerConfig) -> ProducerCore:
        return ProducerCore(client.network, config, client.log)

    def _observe_epoch(self, session: str, request: WireRequest) -> None:
        """Record the producer ids and epochs that the client gets."""

        def answered(answer: Message | None) -> None:
            if answer is None or answer.error_code or answer.producer_id < 0:
                return
            stage, producer_id, epoch = self._stage, answer.producer_id, answer.producer_epoch
            stage.world.trace.add(self._name, f"has epoch {epoch} of producer id {producer_id}")
            given = GivenEpoch(session, self._id, producer_id, epoch, request.sent_ms, stage.now_ms)
            stage.history.epochs.append(given)

        request.on_end = answered

    def start(self) -> Task[Outcome]:
        """Get a producer id and epoch as a new process, whatever the one before has left."""
        self._begin_life()
        outcome = Outcome.DONE
        if self._id is not None:
            outcome = yield from self._call(self._core.init_transactions)
        if outcome is Outcome.DONE:
            for transaction in self._unresolved:
                transaction.resolved_ms = self._stage.now_ms
            self._unresolved.clear()
        self.is_ready = outcome is Outcome.DONE
        return outcome

    def _call(self, call: Callable[[Done[None], int], object]) -> Task[Outcome]:
        """Make a call, again and again if it times out. Raises SimulationFailure for an error that is not allowed."""
        while True:
            error = yield from self._client.ask(call)
            if error is None:
                return Outcome.DONE
            self._stage.world.trace.add(self._name, f"{type(error).__name__}: {error}")
            outcome = self._outcome(error)
            if outcome is not None:
                return outcome
            if self._stage.is_over:
                return Outcome.OVER
            yield self._rng.randrange(1, PAUSE_MS)

    def _outcome(self, error: ClientError) -> Outcome | None:
        """Return what an error of a call means, None if the call is to be repeated."""
        if isinstance(error, KafkaTimeoutError):
            return None
        if isinstance(error, TransactionFatalError):
            return Outcome.FENCED
        if isinstance(error, TransactionAbortableError):
            return Outcome.ABORT
        raise SimulationFailure(f"{self._session}: {type(error).__name__}: {error}")

    def begin(self) -> Transaction:
        """Begin a transaction; the broker hears of it with the first record or offset."""
        assert self._id is not None
        self._client.call(lambda now_ms: self._core.begin_transaction())
        self.transaction = self._stage.history.begin_transaction(self._id)
        self._writes, self._error = [], None
        return self.transaction

    def abandon(self) -> None:
        """Leave the transaction open; the broker ends it after its timeout, or when there is a new session."""
        if self.transaction is not None and self.transaction.resolved_ms is None:
            self._stage.world.trace.add(self._name, f"leaves {self.transaction.name} {self.transaction.fate.value}")
            self._unresolved.append(self.transaction)
        self.transaction = None
        self.is_ready = False
        client, world = self._client, self._stage.world
        if self._rng.random() < ZOMBIE_SHARE and not self._stage.is_draining:
            world.trace.add(self._name, f"{self._session} is a zombie")
            world.virtual_time.after(self._rng.randrange(MAX_ZOMBIE_MS), client.kill)
        else:
            client.kill()

    def end(self, *, is_commit: bool) -> Task[Outcome]:
        """Commit or abort the transaction; one that can only be aborted is aborted."""
        transaction, stage, core = self.transaction, self._stage, self._core
        assert transaction is not None
        if is_commit:
            transaction.commit_sent_ms = stage.now_ms
        sent = self._client.sent_counts[END_TXN]
        outcome = yield from self._call(core.commit_transaction if is_commit else core.abort_transaction)
        if outcome is Outcome.DONE and is_commit:
            self._check_committed(transaction)
        is_ended = outcome is Outcome.DONE
        if outcome is Outcome.ABORT and is_commit:
            is_commit = False
            is_ended = (yield from self._call(core.abort_transaction)) is Outcome.DONE
        if is_ended:
            transaction.fate = Fate.COMMITTED if is_commit else Fate.ABORTED
            transaction.resolved_ms = stage.now_ms
            self.transaction = None
        else:
            was_sent = self._client.sent_counts[END_TXN] > sent
            is_certain = transaction.commit_sent_ms is None or not was_sent
            transaction.fate = Fate.ABORTED if is_certain else Fate.UNKNOWN
        stage.world.trace.add(self._name, f"{transaction.name} is {transaction.fate.value}")
        if not is_ended:
            self.abandon()
        return outcome

    def _check_committed(self, transaction: Transaction) -> None:
        """Check that each record of a committed transaction has been acknowledged. Raises SimulationFailure."""
        for write in self._writes:
            if not write.is_acknowledged:
                raise SimulationFailure(
                    f"{self._session}: {transaction.name} is committed, but its record {write.value!r} has no offset"
                )

    # ------------------------------------------------------------------------------------------------------------- records

    def produce(self, partition: TopicPartition, values: Sequence[bytes]) -> Task[Outcome]:
        """Send records, in the transaction if there is one; wait for their results, or do not."""
        stage, client = self._stage, self._client
        for value in values:
            write = stage.history.write(value, partition, self._session, self.transaction, stage.now_ms)
            self._writes.append(write)
            self._under_way += 1
            record = Record(partition[0], value, partition=partition[1], on_delivery=partial(self._delivered, write))
            error = yield from client.ask(partial(self._core.send, record))
            if error is not None:
                self._delivered(write, None, error)
                break
        if self._rng.random() < 0.5 or self._under_way > MAX_UNDER_WAY:
            yield from client.ask(self._core.flush)
        if self._error is None or self.transaction is None:
            return Outcome.DONE
        return Outcome.FENCED if isinstance(self._error, TransactionFatalError) else Outcome.ABORT

    def _delivered(self, write: Write, found: RecordMetadata | None, error: Exception | None) -> None:
        self._under_way -= 1
        if write.is_acknowledged:
            raise SimulationFailure(f"{self._session}: {write.value!r} has two results")
        if found is not None:
            write.is_acknowledged = True
            write.offset = found.offset if found.offset >= 0 else None
            return
        assert isinstance(error, ClientError)
        if write.transaction is self.transaction:
            self._error = self._error or error
        self._stage.world.trace.add(self._name, f"{write.value!r}: {type(error).__name__}: {error}")

    def finish(self) -> Task[None]:
        """Wait until all records have a result."""
        if self.is_ready:
            yield from self._client.ask(self._core.flush)

    # ------------------------------------------------------------------------------------------------------------- offsets

    def commit_offsets(
        self,
        group: str,
        member_id: str,
        generation: int,
        offsets: Mapping[TopicPartition, int],
        instance_id: str | None,
    ) -> Task[Outcome]:
        """Commit offsets of a group with the transaction."""
        stage = self._stage
        assert self.transaction is not None
        commits = [
            OffsetCommit(group, partition, offset, stage.now_ms, member_id, generation, self.transaction)
            for partition, offset in offsets.items()
        ]
        stage.history.commits += commits
        wanted = {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        metadata = GroupMetadata(group, generation, member_id, instance_id)
        error = yield from self._client.ask(partial(self._core.send_offsets_to_transaction, wanted, metadata))
        if error is None:
            for commit in commits:
                commit.answered_ms = stage.now_ms
            return Outcome.DONE
        stage.world.trace.add(self._name, f"{type(error).__name__}: {error}")
        return self._outcome(error) or Outcome.ABORT
