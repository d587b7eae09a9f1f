"""The calls and requests of transactions, one request after the other (Kafka: TransactionManager and its handlers).

    call                  state             the result comes after
    --------------------  ----------------  --------------------------------------------------------------------------------
    init_transactions     UNINITIALIZED     InitProducerId, which fences older producers and ends their transaction
    begin                 READY             at once; no request
    send_offsets          IN_TRANSACTION    AddOffsetsToTxn (transaction.version 0, 1), TxnOffsetCommit
    commit, abort         IN_TRANSACTION,   the batches have ended, EndTxn, and InitProducerId if the epoch must rise. Without
                          abort: any error  partitions and offsets nothing is sent

    `poll` sends the first of these that is due, if nothing is under way       to
    -------------------------------------------------------------------------  ---------------------------------------------
    InitProducerId                                                             transaction coordinator; idempotent: any
    AddPartitionsToTxn, for the partitions of new batches                      transaction coordinator
    AddOffsetsToTxn, TxnOffsetCommit                                           transaction and group coordinator
    EndTxn                                                                     transaction coordinator

If the caller of a call has stopped waiting, the call can be repeated, and nothing else can be called before. The repeated call
gets the result of the first one, also if that has ended already. A request is sent again until its answer is final.

What each error code of an answer means to a transactional producer (Kafka: the handlers in TransactionManager, KIP-1050).

verdict     what the manager does
----------  ------------------------------------------------------------------------------------------------------------
DONE        goes on
AGAIN       sends the request again after a backoff, to another coordinator if the error says so
ABORTABLE   the transaction can only be aborted; then the producer can begin another one
BUMP        the same, and abort_transaction gets a new epoch, since the broker has lost the producer's state
FENCED      another producer has the transactional id: this one is of no use any more
FATAL       this producer is of no use any more

error                                    InitProducerId  AddPartitions  AddOffsets  TxnOffsetCommit  EndTxn
---------------------------------------  --------------  -------------  ----------  ---------------  ---------
retriable, such as NOT_COORDINATOR and   AGAIN           AGAIN          AGAIN       AGAIN            AGAIN
CONCURRENT_TRANSACTIONS
INVALID_PRODUCER_EPOCH, PRODUCER_FENCED  FENCED          FENCED         FENCED      FENCED           FENCED
UNKNOWN_PRODUCER_ID,                     FATAL           BUMP           BUMP        BUMP             BUMP
INVALID_PRODUCER_ID_MAPPING
TRANSACTION_ABORTABLE                    ABORTABLE       ABORTABLE      ABORTABLE   ABORTABLE        ABORTABLE
TOPIC_AUTHORIZATION_FAILED,              FATAL           ABORTABLE      ABORTABLE   ABORTABLE        FATAL
GROUP_AUTHORIZATION_FAILED
errors of the group's member             FATAL           ABORTABLE      FATAL       ABORTABLE        FATAL
TRANSACTIONAL_ID_AUTHORIZATION_FAILED,   FATAL           FATAL          FATAL       FATAL            FATAL
INVALID_TXN_STATE
any other                                FATAL           ABORTABLE      FATAL       FATAL            FATAL
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial

from kcli.client.consumer.membership import GroupMetadata
from kcli.client.coordinator_lookup import GROUP_KEY, TRANSACTION_KEY, CoordinatorLookup
from kcli.client.errors import ClientError, IllegalStateError, KafkaError, TransactionAbortableError, TransactionAbortedError
from kcli.client.network_client import NetworkClient, failure_error
from kcli.client.producer.sequences import NO_PRODUCER, ProducerIdAndEpoch
from kcli.client.producer.transaction_manager import State, TransactionManager
from kcli.client.value_checks import OffsetAndMetadata
from kcli.format.primitives import TopicPartition
from kcli.network.peer_request import Answer, PeerFailure
from kcli.network.timing_wheel import TimerTask
from kcli.protocol import error_codes
from kcli.protocol import error_codes as codes
from kcli.protocol.apis import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_KEYS,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)
from kcli.protocol.message import Message

FEATURE = "transaction.version"
NO_TIMEOUT_MS = 0x7FFFFFFF
# While a transaction of the same id is being ended, the first partition of the next one waits only so long.
CONCURRENT_RETRY_MS = 20
_LAST_ADD_PARTITIONS = 3  # later versions are for brokers
_LAST_OF_VERSION_1 = {TXN_OFFSET_COMMIT: 4, END_TXN: 4}
_LAST_TXN_OFFSET_COMMIT = 5  # later versions have topic ids
_FIRST_INIT_WITH_EPOCH = 3
_INIT, _COMMIT, _ABORT = "init_transactions()", "commit_transaction()", "abort_transaction()"

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
# Gets None or the error of a call, once, and the time.
CallDone = Callable[[ClientError | None, int], None]
# Takes the news that the caller of a call waits no longer.
Left = Callable[[], None]


class Verdict(Enum):
    """What an answer means; the table is above."""

    DONE = "done"
    AGAIN = "again"
    ABORTABLE = "abortable"
    BUMP = "bump"
    FENCED = "fenced"
    FATAL = "fatal"


_ALL = frozenset((INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT, END_TXN))
_IN_TRANSACTION = _ALL - {INIT_PRODUCER_ID}
_WITH_RESOURCES = _IN_TRANSACTION - {END_TXN}
_OF_OFFSETS = frozenset((TXN_OFFSET_COMMIT,))

# By error code: the verdict, and the APIs to which it applies.
_VERDICTS: dict[int, tuple[Verdict, frozenset[int]]] = {
    codes.NONE: (Verdict.DONE, _ALL),
    codes.INVALID_PRODUCER_EPOCH: (Verdict.FENCED, _ALL),
    codes.PRODUCER_FENCED: (Verdict.FENCED, _ALL),
    codes.UNKNOWN_PRODUCER_ID: (Verdict.BUMP, _IN_TRANSACTION),
    codes.INVALID_PRODUCER_ID_MAPPING: (Verdict.BUMP, _IN_TRANSACTION),
    codes.TRANSACTION_ABORTABLE: (Verdict.ABORTABLE, _ALL),
    codes.TOPIC_AUTHORIZATION_FAILED: (Verdict.ABORTABLE, _WITH_RESOURCES),
    codes.GROUP_AUTHORIZATION_FAILED: (Verdict.ABORTABLE, _WITH_RESOURCES),
    codes.FENCED_INSTANCE_ID: (Verdict.ABORTABLE, _OF_OFFSETS),
    codes.UNKNOWN_MEMBER_ID: (Verdict.ABORTABLE, _OF_OFFSETS),
    codes.ILLEGAL_GENERATION: (Verdict.ABORTABLE, _OF_OFFSETS),
    codes.STALE_MEMBER_EPOCH: (Verdict.ABORTABLE, _OF_OFFSETS),
    codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (Verdict.FATAL, _ALL),
    codes.INVALID_TXN_STATE: (Verdict.FATAL, _ALL),
}
# From the best to the worst, for answers with several codes.
_ORDER = tuple(Verdict)


def verdict_of(api_key: int, code: int) -> Verdict:
    """Return what an error code in an answer of an API means."""
    if code in codes.RETRIABLE:
        return Verdict.AGAIN
    verdict, apis = _VERDICTS.get(code, (Verdict.FATAL, frozenset()))
    if api_key in apis:
        return verdict
    return Verdict.ABORTABLE if api_key == ADD_PARTITIONS_TO_TXN else Verdict.FATAL


def worst(api_key: int, found: list[int]) -> int:
    """Return the code of an answer with several that decides, NONE if there are no errors."""
    return max(found, key=lambda code: _ORDER.index(verdict_of(api_key, code)), default=codes.NONE)


class _OffsetCommit:
    """Offsets that are to be part of the transaction."""

    def __init__(self, group: GroupMetadata, offsets: Offsets, done: CallDone) -> None:
        self.group = group
        self.offsets = offsets
        self.done = done
        self.is_group_added = False


class TransactionRequests:
    """The requests of one producer; `has_incomplete` says whether a batch has not ended."""

    def __init__(
        self,
        network: NetworkClient,
        transactional_id: str | None,
        timeout_ms: int,
        has_incomplete: Callable[[], bool],
        log: Callable[[str], None],
    ) -> None:
        self.manager = TransactionManager(transactional_id, log, self._can_bump)
        self.idempotence_error: ClientError | None = None  # why an idempotent producer gets no id; its batches fail
        self._network = network
        self._timeout_ms = timeout_ms
        self._has_incomplete = has_incomplete
        self._coordinator = CoordinatorLookup(network, TRANSACTION_KEY, transactional_id or "")
        self._groups: dict[str, CoordinatorLookup] = {}
        self._backoff = network.config.retry_backoff()
        self._failures = 0
        self._is_under_way = False
        self._retry: TimerTask | None = None
        self._commits: deque[_OffsetCommit] = deque()
        self._is_commit = False
        self._call = _INIT
        self._waiting: list[CallDone] = []  # for the end of init_transactions, commit or abort
        self._left: list[CallDone] = []  # those of them whose callers wait no longer
        # The call that has succeeded without a caller who waited; it is to be repeated, and ends at once.
        self._unclaimed: str | None = None
        self._is_end_due = False
        self._ends_in_version_2: bool | None = None  # of the EndTxn that is due, set when it is sent first

    # ------------------------------------------------------------------------------------------------------------- calls

    def init_transactions(self, done: CallDone) -> None:
        """Get a producer id for the transactional id. Raises IllegalStateError, and as check_usable does."""
        manager = self.manager
        manager.check_usable()
        if self._claim(_INIT, done):
            return
        if manager.state is not State.INITIALIZING:
            if manager.state is not State.UNINITIALIZED:
                raise IllegalStateError("init_transactions() was called before")
            manager.enter(State.INITIALIZING)
            self._call = _INIT
        self._waiting.append(done)

    def begin(self) -> None:
        """Begin a transaction. Raises IllegalStateError, and as check_usable does."""
        manager = self.manager
        manager.check_usable()
        self._check_idle()
        if manager.state is not State.READY:
            what = "call init_transactions() first" if manager.state is State.UNINITIALIZED else f"it is {manager.state.value}"
            raise IllegalStateError(f"the producer cannot begin a transaction: {what}")
        manager.enter(State.IN_TRANSACTION)

    def end(self, done: CallDone, *, is_commit: bool) -> None:
        """Commit or abort the transaction. Raises IllegalStateError, and as check_usable does."""
        manager = self.manager
        if self._claim(_COMMIT if is_commit else _ABORT, done):
            return
        if self._is_end_due and manager.state is not State.FATAL_ERROR:
            if self._is_commit != is_commit:
                self._check_idle()
            self._waiting.append(done)
            return
        if is_commit or manager.state is not State.ABORTABLE_ERROR:
            manager.check_usable()
            if manager.state is not State.IN_TRANSACTION:
                raise IllegalStateError(f"there is no transaction: the producer is {manager.state.value}")
        manager.enter(State.COMMITTING if is_commit else State.ABORTING)
        if not is_commit:
            manager.new_partitions.clear()
            commits, self._commits = self._commits, deque()
            for commit in commits:
                commit.done(TransactionAbortedError("the transaction was aborted"), self._network.timer.clock_ms)
        self._is_commit, self._is_end_due, self._call = is_commit, True, _COMMIT if is_commit else _ABORT
        self._ends_in_version_2 = None
        self._waiting.append(done)

    def send_offsets(self, group: GroupMetadata, offsets: Offsets, done: CallDone) -> None:
        """Make offsets of a consumer group a part of the transaction. Raises IllegalStateError, and as check_usable does."""
        manager = self.manager
        manager.check_usable()
        if manager.state is not State.IN_TRANSACTION:
            raise IllegalStateError(f"offsets are sent in a transaction only: the producer is {manager.state.value}")
        self._commits.append(_OffsetCommit(group, dict(offsets), done))

    def leave(self, done: CallDone) -> None:
        """Take the news that the caller of init_transactions, commit or abort waits no longer."""
        if done in self._waiting:
            self._left.append(done)

    def _claim(self, call: str, done: CallDone) -> bool:
        """End a repeated call whose first one has succeeded. Raises IllegalStateError if it was another one."""
        if self._unclaimed is None:
            return False
        if self._unclaimed != call:
            self._check_idle()
        self._unclaimed = None
        done(None, self._network.timer.clock_ms)
        return True

    def _check_idle(self) -> None:
        if self._waiting or self._unclaimed is not None:
            what = self._unclaimed or self._call
            raise IllegalStateError(f"{what} did not end in its time: call it again before anything else")

    @property
    def has_work(self) -> bool:
        """Whether a call has no result yet."""
        return bool(self._waiting or self._commits)

    # ---------------------------------------------------------------------------------------------------------- requests

    def poll(self, now_ms: int) -> None:
        """Send the request that is due, if none is under way or backs off."""
        manager = self.manager
        manager.resolve()
        if manager.state is State.FATAL_ERROR:
            self.fail_all(manager.fatal_error(), now_ms)
        elif manager.state is State.ABORTABLE_ERROR:
            self.fail_all(TransactionAbortableError(f"the transaction has failed and must be aborted: {manager.error}"), now_ms)
        elif not self._is_under_way and self._retry is None:
            self._send_next(now_ms)

    def _send_next(self, now_ms: int) -> None:
        manager = self.manager
        if not manager.is_transactional and manager.state is State.UNINITIALIZED:
            manager.enter(State.INITIALIZING)
        if manager.state is State.INITIALIZING:
            self._send_init(now_ms)
            return
        if not manager.is_transactional:
            return
        partitions = manager.take_new_partitions()
        if partitions:
            self._send_partitions(partitions, now_ms)
        elif self._commits:
            self._send_offsets(self._commits[0], now_ms)
        elif self._is_end_due and not self._has_incomplete():
            if self._ends_in_version_2 is None:
                # The transaction ends in the version in which it was, also by an EndTxn that is sent again.
                self._ends_in_version_2 = manager.is_version_2
            manager.take_version(self._network.feature_level(FEATURE))
            if manager.has_started:
                self._send_end(self._ends_in_version_2, now_ms)
            else:
                self._end_transaction(None, now_ms)

    def _send(
        self,
        coordinator: CoordinatorLookup,
        api_key: int,
        message: Message,
        take: Callable[[Message, int], int],
        now_ms: int,
        max_version: int | None = None,
    ) -> None:
        """Send a request; `take(answer, now_ms)` takes an answer without an error, and returns its code otherwise."""
        self._is_under_way = True
        done = partial(self._answered, coordinator, api_key, take)
        coordinator.send(api_key, message, done, now_ms, max_version=max_version)

    def _answered(
        self,
        coordinator: CoordinatorLookup,
        api_key: int,
        take: Callable[[Message, int], int],
        answer: Message | ClientError,
        now_ms: int,
    ) -> None:
        self._is_under_way = False
        if self.manager.state is State.FATAL_ERROR:
            return
        if isinstance(answer, ClientError):
            self._unanswered(answer, now_ms)
            return
        code = take(answer, now_ms)
        if code == error_codes.NONE:
            self._failures = 0
            return
        coordinator.check(code)
        self._judge(api_key, KafkaError(code, API_KEYS[api_key].name), now_ms)

    def _unanswered(self, error: ClientError, now_ms: int) -> None:
        """Take a request without an answer: no connection, or no coordinator."""
        if error.is_retriable:
            self._again(now_ms)
        elif isinstance(error, KafkaError) and error.code == error_codes.GROUP_AUTHORIZATION_FAILED:
            self.manager.fail_abortable(error)
        else:
            self.manager.fail_fatally(error)

    def _judge(self, api_key: int, error: KafkaError, now_ms: int) -> None:
        manager, verdict = self.manager, verdict_of(api_key, error.code)
        if verdict is Verdict.AGAIN:
            is_first = api_key == ADD_PARTITIONS_TO_TXN and not manager.partitions
            is_quick = is_first and error.code == error_codes.CONCURRENT_TRANSACTIONS
            self._again(now_ms, CONCURRENT_RETRY_MS if is_quick else None)
        elif verdict is Verdict.FENCED:
            manager.fail_fenced(error)
        elif verdict is Verdict.FATAL:
            manager.fail_fatally(error)
        else:
            if verdict is Verdict.BUMP:
                manager.fail_abortable_if_possible(error)
            else:
                manager.fail_abortable(error)
            manager.drop_pending_partitions()
            if manager.state is State.ABORTING and api_key == END_TXN:
                # The coordinator refuses the abort. InitProducerId ends the transaction if it is open: without it, the next
                # commit could commit its records, too.
                manager.must_bump_epoch = True
                self._end_transaction(None, now_ms)

    def _again(self, now_ms: int, delay_ms: int | None = None) -> None:
        if delay_ms is None:
            delay_ms = self._backoff.delay_ms(self._failures, self._network.rng)
            self._failures += 1
        self._retry = self._network.timer.schedule(now_ms + delay_ms, self._backed_off)

    def _backed_off(self, now_ms: int) -> None:
        self._retry = None

    def fail_all(self, error: ClientError, now_ms: int) -> None:
        """Give all calls an error."""
        commits, self._commits = self._commits, deque()
        for commit in commits:
            commit.done(error, now_ms)
        self._settle(error, now_ms)

    def _settle(self, error: ClientError | None, now_ms: int) -> None:
        waiting, self._waiting = self._waiting, []
        left, self._left = self._left, []
        self._is_end_due = False
        if waiting and error is None and all(done in left for done in waiting):
            self._unclaimed = self._call
        for done in waiting:
            done(error, now_ms)

    # ---------------------------------------------------------------------------------------------------- InitProducerId

    def _can_bump(self) -> bool:
        return self._coordinator.supports(INIT_PRODUCER_ID, _FIRST_INIT_WITH_EPOCH) is not False

    def _send_init(self, now_ms: int) -> None:
        manager = self.manager
        kind = API_KEYS[INIT_PRODUCER_ID].request
        if not manager.is_transactional:
            self._is_under_way = True
            message = kind.new(transactional_id=None, transaction_timeout_ms=NO_TIMEOUT_MS)
            self._network.send_to_any(INIT_PRODUCER_ID, message, self._id_answered)
            return
        known = manager.producer if manager.producer.is_valid else NO_PRODUCER
        message = kind.new(
            transactional_id=manager.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
        )
        self._send(self._coordinator, INIT_PRODUCER_ID, message, self._take_init, now_ms)

    def _take_init(self, answer: Message, now_ms: int) -> int:
        if not answer.error_code:
            self.manager.take_version(self._network.feature_level(FEATURE))
            self.manager.initialized(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))
            self._settle(None, now_ms)
        return int(answer.error_code)

    def _id_answered(self, answer: Answer, now_ms: int) -> None:
        """Take the id of a producer without transactions. If it gets none, its batches fail, and it asks again."""
        self._is_under_way = False
        manager = self.manager
        if not isinstance(answer, PeerFailure) and not answer.error_code:
            self._failures = 0
            manager.initialized(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))
            return
        if isinstance(answer, PeerFailure):
            error = failure_error(answer, INIT_PRODUCER_ID)
        else:
            error = KafkaError(answer.error_code, API_KEYS[INIT_PRODUCER_ID].name)
        if not error.is_retriable:
            self.idempotence_error = error
        self._again(now_ms)

    # --------------------------------------------------------------------------------------------- partitions and offsets

    def _send_partitions(self, partitions: list[TopicPartition], now_ms: int) -> None:
        kind = API_KEYS[ADD_PARTITIONS_TO_TXN].request
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        of_topic = kind.classes["AddPartitionsToTxnTopic"]
        message = kind.new(
            v3_and_below_transactional_id=self.manager.transactional_id,
            v3_and_below_producer_id=self.manager.producer.producer_id,
            v3_and_below_producer_epoch=self.manager.producer.epoch,
            v3_and_below_topics=[of_topic(name=name, partitions=found) for name, found in by_topic.items()],
        )

        def take(answer: Message, now_ms: int) -> int:
            results = [
                (topic.name, entry) for topic in answer.results_by_topic_v3_and_below for entry in topic.results_by_partition
            ]
            code = worst(ADD_PARTITIONS_TO_TXN, [entry.partition_error_code for _, entry in results])
            if code == error_codes.NONE:
                self.manager.partitions_added([(name, entry.partition_index) for name, entry in results])
            return code

        self._send(self._coordinator, ADD_PARTITIONS_TO_TXN, message, take, now_ms, _LAST_ADD_PARTITIONS)

    def _send_offsets(self, commit: _OffsetCommit, now_ms: int) -> None:
        if not self.manager.is_version_2 and not commit.is_group_added:
            self._send_group(commit, now_ms)
            return
        # With transaction.version 2 the group's coordinator may add it even if its answer is lost.
        self.manager.has_started = True
        group = commit.group
        kind = API_KEYS[TXN_OFFSET_COMMIT].request
        of_topic = kind.classes["TxnOffsetCommitRequestTopic"]
        of_partition = kind.classes["TxnOffsetCommitRequestPartition"]
        topics: dict[str, Message] = {}
        for (name, partition), found in sorted(commit.offsets.items()):
            topic = topics.setdefault(name, of_topic(name=name, partitions=[]))
            entry = of_partition(
                partition_index=partition,
                committed_offset=found.offset,
                committed_leader_epoch=found.leader_epoch,
                committed_metadata=found.metadata,
            )
            topic.partitions.append(entry)
        message = kind.new(
            transactional_id=self.manager.transactional_id,
            group_id=group.group_id,
            producer_id=self.manager.producer.producer_id,
            producer_epoch=self.manager.producer.epoch,
            generation_id_or_member_epoch=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=list(topics.values()),
        )

        def take(answer: Message, now_ms: int) -> int:
            codes = [entry.error_code for topic in answer.topics for entry in topic.partitions]
            code = worst(TXN_OFFSET_COMMIT, codes)
            if code == error_codes.NONE and commit in self._commits:
                self._commits.remove(commit)
                commit.done(None, now_ms)
            return code

        coordinator = self._groups.get(group.group_id)
        if coordinator is None:
            coordinator = self._groups[group.group_id] = CoordinatorLookup(self._network, GROUP_KEY, group.group_id)
        self._send(coordinator, TXN_OFFSET_COMMIT, message, take, now_ms, self._max_version(TXN_OFFSET_COMMIT))

    def _max_version(self, api_key: int) -> int:
        return _LAST_TXN_OFFSET_COMMIT if self.manager.is_version_2 else _LAST_OF_VERSION_1[api_key]

    def _send_group(self, commit: _OffsetCommit, now_ms: int) -> None:
        message = API_KEYS[ADD_OFFSETS_TO_TXN].request.new(
            transactional_id=self.manager.transactional_id,
            producer_id=self.manager.producer.producer_id,
            producer_epoch=self.manager.producer.epoch,
            group_id=commit.group.group_id,
        )

        def take(answer: Message, now_ms: int) -> int:
            if not answer.error_code:
                commit.is_group_added = self.manager.has_started = True
            return int(answer.error_code)

        self._send(self._coordinator, ADD_OFFSETS_TO_TXN, message, take, now_ms)

    # ------------------------------------------------------------------------------------------------------------ EndTxn

    def _send_end(self, is_version_2: bool, now_ms: int) -> None:
        message = API_KEYS[END_TXN].request.new(
            transactional_id=self.manager.transactional_id,
            producer_id=self.manager.producer.producer_id,
            producer_epoch=self.manager.producer.epoch,
            committed=self._is_commit,
        )

        def take(answer: Message, now_ms: int) -> int:
            if not answer.error_code:
                next_producer = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
                self._end_transaction(next_producer if next_producer.is_valid else None, now_ms)
            return int(answer.error_code)

        max_version = None if is_version_2 else _LAST_OF_VERSION_1[END_TXN]
        self._send(self._coordinator, END_TXN, message, take, now_ms, max_version)

    def _end_transaction(self, producer: ProducerIdAndEpoch | None, now_ms: int) -> None:
        """Take the end of the transaction. If the epoch must rise, the call ends after that."""
        self.manager.ended(producer)
        self._is_end_due = False
        if self.manager.state is State.READY:
            self._settle(None, now_ms)
