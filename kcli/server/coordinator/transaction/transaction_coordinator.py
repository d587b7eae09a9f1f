"""The transaction coordinator: the transactional ids of the partitions of __transaction_state that this broker leads.

    part                             does
    -------------------------------  -----------------------------------------------------------------------------------
    TransactionCoordinator           decides requests and timeouts (kcli.server.coordinator.transaction.transitions)
    TransactionShard                 the entries of one partition, and those whose change is not committed yet
    TransactionMarkerChannelManager  writes the markers of a transaction whose end is committed, and then completes it

While a change of an entry is not committed, other changes of it get CONCURRENT_TRANSACTIONS. An end is answered when it is
committed; the markers follow. A load begins with the markers of the transactions that were ending.

    every                                                            what happens
    ---------------------------------------------------------------  ---------------------------------------------------
    transaction.abort.timed.out.transaction.cleanup.interval.ms      open transactions beyond their timeout are aborted
    transaction.remove.expired.transaction.cleanup.interval.ms       ids without a transaction that have not changed for
                                                                     transactional.id.expiration.ms are removed

The lines of a node's log about transactional ids: aborted transactions and fenced producers.

line                                      level   written
----------------------------------------  ------  ------------------------------------------------------------------
an open transaction is aborted            INFO    once for each: its timeout is over, or another producer has begun
a producer is fenced by a later epoch     INFO    at most one in a minute, with the number since the last one
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import NO_SEQUENCE, Producer
from kcli.network.peers import Peers
from kcli.network.timing_wheel import Timer, TimerTask
from kcli.protocol import error_codes
from kcli.protocol.internal_records import TRANSACTION_LOG
from kcli.server.config.server_config import ConfigReader
from kcli.server.coordinator.coordinator_limit import CoordinatorLimit
from kcli.server.coordinator.group.group_coordinator import coordinator_partition
from kcli.server.coordinator.operation import CoordinatorError, Decision, Respond
from kcli.server.coordinator.runtime import APPEND_AFTER_EVENTS, CoordinatorRuntime
from kcli.server.coordinator.transaction import transitions
from kcli.server.coordinator.transaction.marker_channel import RETRY_MS, EndingTransaction, TransactionMarkerChannelManager
from kcli.server.coordinator.transaction.transaction_shard import (
    ListFilter,
    PendingChange,
    TransactionShard,
    transaction_record,
)
from kcli.server.coordinator.transaction.transitions import (
    IDLE,
    NO_TIMEOUT_MS,
    ONGOING,
    PREPARED,
    InitRequest,
    NeedsProducerIdError,
)
from kcli.server.features import TRANSACTION_VERSION
from kcli.server.log_lines import LimitedLines, Line
from kcli.server.metadata_cache import MetadataCache
from kcli.server.replication.replica_manager import ReplicaManager
from kcli.server.scheduler import Scheduler, SliceBudget
from kcli.state.metadata_values import Topic
from kcli.state.transaction_state import TransactionMetadata

TRANSACTION_TOPIC = TRANSACTION_LOG.topic
_ABORT_INTERVAL = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
_EXPIRY_INTERVAL = "transaction.remove.expired.transaction.cleanup.interval.ms"
_ALL_REPLICAS = -1
_CHANGE_US, _LIST_US = 150, 2

# Decides a change of an entry (None if there is none) with a new producer id (None if it has none yet); returns the same
# entry for no change, None for its removal.
Change = Callable[[TransactionMetadata | None, int | None], TransactionMetadata | None]


class InitProducerIdRequest(NamedTuple):
    """An InitProducerId with a transactional id; `expected` is the client's id and epoch, None for a new client."""

    transactional_id: str
    timeout_ms: int
    expected: Producer | None
    enables_two_phase_commit: bool = False
    keeps_prepared_transaction: bool = False


class ProducerIds(Protocol):
    """The source of new producer ids (kcli.server.broker.producer_ids)."""

    def next(self, callback: Callable[[int, int], None], now_ms: int) -> None:
        """Have `callback(producer_id, now_ms)` called, now or when the controller has given out a block."""
        ...


class TransactionCoordinator:
    """The transaction coordinator of one broker. `listener` is the listener that brokers use for each other.

    `report` writes a line of the node's log.
    """

    def __init__(
        self,
        config: ConfigReader,
        metadata: MetadataCache,
        replica_manager: ReplicaManager,
        producer_ids: ProducerIds,
        peers: Peers,
        listener: str,
        timer: Timer,
        scheduler: Scheduler,
        report: Callable[[str], None],
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._replica_manager = replica_manager
        self._producer_ids = producer_ids
        self._timer = timer
        self._scheduler = scheduler
        self._lines = TransactionLines(report)
        self._tasks: dict[str, TimerTask] = {}  # by the key of their interval
        self._when_ended: dict[str, dict[Callable[[int], None], None]] = {}  # by transactional id
        self.runtime = CoordinatorRuntime[TransactionShard](
            TRANSACTION_LOG,
            lambda index: TransactionShard(index, self._loaded, self._unloaded),
            replica_manager,
            timer,
            scheduler,
            report,
            linger_ms=APPEND_AFTER_EVENTS,
            write_timeout_ms=config.get_int("request.timeout.ms"),
            base_sequence=NO_SEQUENCE,
            required_acks=_ALL_REPLICAS,
        )
        self._limit = CoordinatorLimit(
            "kcli.max.open.transactions", error_codes.CONCURRENT_TRANSACTIONS, self.open_count, config, timer, report
        )
        self._markers = TransactionMarkerChannelManager(
            metadata, peers, listener, timer, config.get_int("request.timeout.ms"), self._markers_written, report
        )

    @property
    def transaction_version(self) -> int:
        """The cluster's level of transaction.version."""
        return self._metadata.image.features.get(TRANSACTION_VERSION, 0)

    def open_count(self) -> int:
        """Return the number of open transactions in the partitions that are loaded."""
        return sum(len(shard.state.open_transactions) for shard in self.runtime.shards())

    def partition_for(self, transactional_id: str) -> int:
        """Return the partition of __transaction_state that has a transactional id."""
        topic = self._metadata.image.topic(TRANSACTION_TOPIC)
        count = self._config.get_int("transaction.state.log.num.partitions") if topic is None else len(topic.partitions)
        return coordinator_partition(transactional_id, count)

    def node_for(self, transactional_id: str) -> int | None:
        """Return the broker that coordinates a transactional id, None if there is none that can be reached."""
        image = self._metadata.image
        topic = image.topic(TRANSACTION_TOPIC)
        partition = None if topic is None else topic.partitions.get(self.partition_for(transactional_id))
        leader = None if partition is None else image.brokers.get(partition.leader)
        return None if partition is None or leader is None or leader.is_fenced else partition.leader

    def topic_removed(self, topic: Topic) -> None:
        """Unload the transactional ids if __transaction_state is deleted."""
        if topic.name == TRANSACTION_TOPIC:
            self.runtime.close()

    # -------------------------------------------------------------------------------------------------------- requests

    def init_producer_id(self, request: InitProducerIdRequest, respond: Respond[Producer]) -> None:
        """Give a client the next epoch of its transactional id. An open transaction is aborted; the client asks again then."""
        code = self._refusal(request)
        if code:
            respond(CoordinatorError(code, f"InitProducerId of {request.transactional_id!r} is refused"), self._timer.clock_ms)
            return
        timeout_ms = NO_TIMEOUT_MS if request.enables_two_phase_commit else request.timeout_ms
        init = InitRequest(timeout_ms, request.expected)

        def change(entry: TransactionMetadata | None, new_id: int | None) -> TransactionMetadata:
            now_ms = self._wall_ms()
            if entry is None:
                if new_id is None:
                    raise NeedsProducerIdError
                entry = transitions.new_transaction(request.transactional_id, new_id, timeout_ms, now_ms)
            return transitions.init_producer_id(entry, init, self.transaction_version, new_id, now_ms)

        def changed(entry: TransactionMetadata | CoordinatorError | None, now_ms: int) -> None:
            if isinstance(entry, CoordinatorError):
                respond(entry, now_ms)
            elif entry is None or entry.state in PREPARED:
                if entry is not None:
                    self._lines.replaced(entry)
                text = f"the open transaction of {request.transactional_id} is being aborted"
                respond(CoordinatorError(error_codes.CONCURRENT_TRANSACTIONS, text), now_ms)
            else:
                respond(Producer(entry.producer_id, entry.producer_epoch), now_ms)

        self._change(request.transactional_id, change, changed)

    def _refusal(self, request: InitProducerIdRequest) -> int:
        if not request.transactional_id:
            return error_codes.INVALID_REQUEST
        if request.enables_two_phase_commit and not self._config.get_bool("transaction.two.phase.commit.enable"):
            return error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if request.keeps_prepared_transaction:
            return error_codes.UNSUPPORTED_VERSION
        is_valid = 0 < request.timeout_ms <= self._config.get_int("transaction.max.timeout.ms")
        return 0 if is_valid or request.enables_two_phase_commit else error_codes.INVALID_TRANSACTION_TIMEOUT

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        client_version: int,
        respond: Callable[[int, int], None],
    ) -> None:
        """Add partitions to the transaction of a producer; `respond(error code, now_ms)` is called once."""

        def change(entry: TransactionMetadata | None, new_id: int | None) -> TransactionMetadata:
            changed = transitions.add_partitions(entry, producer, partitions, client_version, self._wall_ms())
            if entry is not None and entry.state in IDLE:
                self._limit.check(f"a new transaction of {transactional_id}")
            return changed

        def changed(entry: TransactionMetadata | CoordinatorError | None, now_ms: int) -> None:
            self._lines.refused(transactional_id, producer, entry, now_ms)
            respond(entry.code if isinstance(entry, CoordinatorError) else error_codes.NONE, now_ms)

        self._change(transactional_id, change, changed, producer=producer)

    def verify_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        respond: Callable[[dict[TopicPartition, int], int], None],
    ) -> None:
        """Respond with NONE for each partition that is in the transaction of a producer, an error for the others.

        Only what is committed counts: a refusal is answered at once, and a change may still be reverted. Nothing is raised: a
        CoordinatorError becomes the error of all partitions.
        """
        partitions = list(partitions)

        def verify(shard: TransactionShard) -> Decision[dict[TopicPartition, int]]:
            entry = transitions.check_producer(shard.committed(transactional_id), producer)
            if entry.state in PREPARED:
                raise CoordinatorError(error_codes.CONCURRENT_TRANSACTIONS, f"{transactional_id} is ending its transaction")
            missing = error_codes.TRANSACTION_ABORTABLE
            return Decision({where: error_codes.NONE if where in entry.partitions else missing for where in partitions})

        def verified(codes: dict[TopicPartition, int] | CoordinatorError, now_ms: int) -> None:
            self._lines.refused(transactional_id, producer, codes, now_ms)
            respond(dict.fromkeys(partitions, codes.code) if isinstance(codes, CoordinatorError) else codes, now_ms)

        if transactional_id:
            self.runtime.write(self.partition_for(transactional_id), verify, verified)
        else:
            respond(dict.fromkeys(partitions, error_codes.INVALID_REQUEST), self._timer.clock_ms)

    def end_transaction(
        self, transactional_id: str, producer: Producer, is_commit: bool, client_version: int, respond: Respond[Producer]
    ) -> None:
        """Commit or abort the transaction of a producer; the response is the id and epoch of its next one."""

        def change(entry: TransactionMetadata | None, new_id: int | None) -> TransactionMetadata:
            return transitions.end_transaction(entry, producer, is_commit, client_version, new_id, self._wall_ms())

        def changed(entry: TransactionMetadata | CoordinatorError | None, now_ms: int) -> None:
            if isinstance(entry, CoordinatorError):
                self._lines.refused(transactional_id, producer, entry, now_ms)
                respond(entry, now_ms)
            elif entry is not None:
                following = transitions.complete(entry, now_ms) if entry.state in PREPARED else entry
                respond(Producer(following.producer_id, following.producer_epoch), now_ms)

        is_of_one_epoch = client_version < transitions.EPOCH_BUMP_VERSION  # else a retry has the epoch before
        self._change(transactional_id, change, changed, producer=producer if is_of_one_epoch else None)

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """Return the committed entry of a transactional id; of an ending one with the partitions without a marker.

        Raises CoordinatorError.
        """
        if not transactional_id:
            raise CoordinatorError(error_codes.INVALID_REQUEST, "the transactional id is empty")
        entry = self.runtime.shard(self.partition_for(transactional_id)).committed(transactional_id)
        if entry is None:
            raise CoordinatorError(error_codes.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {transactional_id}")
        left = self._markers.left(entry)
        return entry if left is None else entry._replace(partitions=frozenset(left))

    def list_transactions(self, wanted: ListFilter, found: list[TransactionMetadata]) -> Iterator[None]:
        """Add the committed entries that pass a filter to `found`; yield after each time slice."""
        now_ms, budget = self._wall_ms(), SliceBudget()
        for shard in self.runtime.shards():
            for transactional_id in shard.transactional_ids():
                entry = shard.committed(transactional_id)
                if entry is not None and wanted.passes(entry, now_ms):
                    found.append(entry)
                if budget.is_spent(_LIST_US):
                    yield

    def when_ended(self, transactional_id: str, callback: Callable[[int], None]) -> None:
        """Have `callback(now_ms)` called when the end of a transaction is complete; never if this broker is not ending it."""
        shard = self.runtime.loaded_shard(self.partition_for(transactional_id))
        entry = None if shard is None else shard.state.transactions.get(transactional_id)
        if shard is not None and entry is not None and (entry.state in PREPARED or transactional_id in shard.changing):
            self._when_ended.setdefault(transactional_id, {})[callback] = None

    def cancel_when_ended(self, transactional_id: str, callback: Callable[[int], None]) -> None:
        """Do not call a callback of `when_ended` any more."""
        waiting = self._when_ended.get(transactional_id, {})
        waiting.pop(callback, None)
        if not waiting:
            self._when_ended.pop(transactional_id, None)

    # --------------------------------------------------------------------------------------------------------- changes

    def _wall_ms(self) -> int:
        return self._timer.wall.at(self._timer.clock_ms)

    def _change(
        self,
        transactional_id: str,
        change: Change,
        respond: Respond[TransactionMetadata | None],
        new_id: int | None = None,
        producer: Producer | None = None,
    ) -> None:
        """Change the entry of an id; respond with the entry when the change is committed, and write markers if it is ending.

        A fenced `producer` gets its own error also while another change is not committed.
        """
        if not transactional_id:
            respond(CoordinatorError(error_codes.INVALID_REQUEST, "the transactional id is empty"), self._timer.clock_ms)
            return
        changing: TransactionShard | None = None

        def decide(shard: TransactionShard) -> Decision[TransactionMetadata | None]:
            nonlocal changing
            if transactional_id in shard.changing:
                if producer is not None:
                    transitions.check_producer(shard.committed(transactional_id), producer)
                text = f"a change of transactional id {transactional_id} is not committed yet"
                raise CoordinatorError(error_codes.CONCURRENT_TRANSACTIONS, text)
            entry = shard.state.transactions.get(transactional_id)
            changed = change(entry, new_id)
            if changed is entry:
                return Decision(entry)
            if changed is not None and changed.client_transaction_version and not self.transaction_version:
                raise CoordinatorError(error_codes.UNSUPPORTED_VERSION, "a record of version 0 has no client version")
            changing = shard
            shard.changing[transactional_id] = PendingChange(entry, changed)
            return Decision(changed, [transaction_record(transactional_id, changed, self.transaction_version)])

        def decided(result: TransactionMetadata | CoordinatorError | None, now_ms: int) -> None:
            if isinstance(result, NeedsProducerIdError):
                again = partial(self._change, transactional_id, change, respond)
                self._producer_ids.next(lambda new_id, now_ms: again(new_id, producer), now_ms)
                return
            is_late = isinstance(result, CoordinatorError) and result.code == error_codes.COORDINATOR_NOT_AVAILABLE
            if changing is not None and not (is_late and self._await_commit(changing, transactional_id)):
                del changing.changing[transactional_id]
            respond(result, now_ms)
            if changing is None:
                return
            if isinstance(result, TransactionMetadata) and result.state in PREPARED:
                self._write_markers(changing, result)
            else:
                for callback in self._when_ended.pop(transactional_id, ()):
                    callback(now_ms)

        self.runtime.write(self.partition_for(transactional_id), decide, decided)

    def _await_commit(self, shard: TransactionShard, transactional_id: str) -> bool:
        """Wait for the commit of a change that is later than request.timeout.ms; return False if the change is reverted."""
        entry = shard.changing[transactional_id].after
        if shard.state.transactions.get(transactional_id) != entry:
            return False

        def committed(result: bool | CoordinatorError, now_ms: int) -> None:
            if isinstance(result, CoordinatorError) and result.code == error_codes.COORDINATOR_NOT_AVAILABLE:
                self._timer.schedule(now_ms + RETRY_MS, ask)
            elif result is True:
                del shard.changing[transactional_id]
                if entry is not None and entry.state in PREPARED:
                    self._write_markers(shard, entry)

        def ask(now_ms: int) -> None:
            self.runtime.write(shard.index, lambda loaded: Decision(loaded is shard), committed)

        self._timer.schedule(self._timer.clock_ms + RETRY_MS, ask)
        return True

    def _write_markers(self, shard: TransactionShard, entry: TransactionMetadata) -> None:
        partition = self._replica_manager.partition(TRANSACTION_TOPIC, shard.index)
        if partition is not None:
            self._markers.add(EndingTransaction(shard.index, partition.leader_epoch, entry))

    def _markers_written(self, ending: EndingTransaction) -> None:
        """Complete a transaction, again until the record is appended or this broker is no longer the coordinator."""

        def change(entry: TransactionMetadata | None, new_id: int | None) -> TransactionMetadata | None:
            if entry != ending.entry or entry is None:
                return entry
            completed = transitions.complete(entry, self._wall_ms())
            # After a downgrade of transaction.version the record has no place for it, but the transaction must end.
            return completed if self.transaction_version else completed._replace(client_transaction_version=0)

        def changed(entry: TransactionMetadata | CoordinatorError | None, now_ms: int) -> None:
            if isinstance(entry, CoordinatorError) and entry.code == error_codes.COORDINATOR_NOT_AVAILABLE:
                self._markers.add_later(ending)

        self._change(ending.entry.transactional_id, change, changed)

    # ---------------------------------------------------------------------------------------------- load, time, unload

    def _loaded(self, shard: TransactionShard, now_ms: int) -> None:
        self._scheduler.run(self._resume(shard), now_ms)
        if not self._tasks:
            self._schedule(_ABORT_INTERVAL, self._abort_timed_out)
            self._schedule(_EXPIRY_INTERVAL, self._remove_expired)

    def _resume(self, shard: TransactionShard) -> Iterator[None]:
        """Send the markers of the transactions that were ending; yield after each time slice."""
        budget = SliceBudget()
        for entry in list(shard.state.open_transactions.values()):
            if self.runtime.loaded_shard(shard.index) is not shard:
                return
            is_ending = entry.state in PREPARED and shard.state.transactions.get(entry.transactional_id) is entry
            if is_ending and self._markers.left(entry) is None:
                self._write_markers(shard, entry)
            if budget.is_spent(_CHANGE_US if is_ending else _LIST_US):
                yield

    def _unloaded(self, shard: TransactionShard) -> None:
        self._markers.drop_partition(shard.index)
        for transactional_id in shard.state.transactions:
            self._when_ended.pop(transactional_id, None)  # the tries ask again by their timers
        if not self.runtime.shards():
            for task in self._tasks.values():
                task.cancel()
            self._tasks.clear()

    def _schedule(self, interval: str, work: Callable[[], Iterator[None]]) -> None:
        def run(now_ms: int) -> None:
            self._schedule(interval, work)
            self._scheduler.run(work(), now_ms)

        self._tasks[interval] = self._timer.schedule(self._timer.clock_ms + self._config.get_int(interval), run)

    def _change_all(
        self,
        entries: Callable[[TransactionShard], Mapping[str, TransactionMetadata]],
        is_due: Callable[[TransactionMetadata], bool],
        change: Change,
        respond: Callable[[TransactionMetadata], Respond[TransactionMetadata | None]],
    ) -> Iterator[None]:
        """Change those of the entries that are due; yield after each time slice."""
        budget = SliceBudget()
        for shard in self.runtime.shards():
            for entry in list(entries(shard).values()):
                is_changed = is_due(entry)
                if is_changed:
                    self._change(entry.transactional_id, change, respond(entry))
                if budget.is_spent(_CHANGE_US if is_changed else _LIST_US):
                    yield

    def _abort_timed_out(self) -> Iterator[None]:
        now_ms = self._wall_ms()

        def is_timed_out(entry: TransactionMetadata) -> bool:
            is_timed = entry.timeout_ms != NO_TIMEOUT_MS  # else only its client ends it (KIP-939)
            return entry.state == ONGOING and is_timed and entry.start_timestamp_ms + entry.timeout_ms < now_ms

        def change(entry: TransactionMetadata | None, new_id: int | None) -> TransactionMetadata | None:
            if entry is None or not is_timed_out(entry):
                return entry
            return transitions.fence(entry, self.transaction_version, new_id, now_ms)

        log = partial(partial, self._lines.timed_out)
        return self._change_all(lambda shard: shard.state.open_transactions, is_timed_out, change, log)

    def _remove_expired(self) -> Iterator[None]:
        unchanged_since_ms = self._wall_ms() - self._config.get_int("transactional.id.expiration.ms")

        def is_expired(entry: TransactionMetadata) -> bool:
            return entry.state in IDLE and entry.last_update_timestamp_ms <= unchanged_since_ms

        def change(entry: TransactionMetadata | None, new_id: int | None) -> TransactionMetadata | None:
            return None if entry is not None and is_expired(entry) else entry

        return self._change_all(lambda shard: shard.state.transactions, is_expired, change, lambda entry: _ignore)


def _ignore(response: TransactionMetadata | CoordinatorError | None, now_ms: int) -> None:
    """Do nothing: the next expiry finds what this one could not remove."""


class TransactionLines:
    """Writes the lines; `report` writes a line of the node's log."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._fenced = LimitedLines(report)

    def timed_out(self, before: TransactionMetadata, after: object, now_ms: int) -> None:
        """Report that the transaction `before` was aborted because of its timeout, if `after` is the entry after that."""
        if isinstance(after, TransactionMetadata) and after.state in PREPARED:
            self._aborted(before.transactional_id, before.producer_id, f"it was open for more than {before.timeout_ms} ms")

    def replaced(self, after: TransactionMetadata) -> None:
        """Report that an open transaction, now `after`, is aborted, because a producer has begun with its transactional id."""
        reason = "another producer has begun with this id, which fences the one before"
        self._aborted(after.transactional_id, after.producer_id, reason)

    def _aborted(self, name: str, producer_id: int, reason: str) -> None:
        text = f"the transaction of transactional id {name} is aborted: {reason}"
        self._report(Line(text, transactional_id=name, producer_id=producer_id, reason=reason))

    def refused(self, name: str, producer: Producer, result: object, now_ms: int) -> None:
        """Report a request of `producer` that was refused because it is fenced: the transactional id has another epoch."""
        if not isinstance(result, CoordinatorError) or result.code != error_codes.PRODUCER_FENCED:
            return
        message = result.message

        def line(count: int) -> str:
            more = f" ({count} requests since the last such line)" if count > 1 else ""
            text = f"producer {producer.producer_id} with epoch {producer.producer_epoch} is fenced: {message}{more}"
            return Line(text, transactional_id=name, producer_id=producer.producer_id, count=count)

        self._fenced.report(line, now_ms)
