"""The core of a producer: records in, results out, transactions, flush and close (Kafka: KafkaProducer).

    `appender.append`          when                                           what happens
    -------------------------  ---------------------------------------------  -------------------------------------------------
    returns True               the topic is known and memory is free          the record is in a batch
    returns False              the topic's partitions are not known,          nothing; `send` waits for it up to max.block.ms
                               or buffer.memory is full
    raises                     too large, closed, no transaction, ...         nothing

    call                       ends
    -------------------------  -----------------------------------------------------------------------------------------------
    send                       when the record is in a batch; KafkaTimeoutError after max.block.ms
    flush                      when all batches that were there have ended
    close                      the same for all work; a transaction is aborted. After its timeout batches fail with
                               ProducerClosedError
    init_transactions, ...     with its requests; KafkaTimeoutError after max.block.ms, and the call can be repeated

Results come by the records' `on_delivery(metadata, error)`, in the order of a partition; what it raises is logged. Nothing
here waits, and no clock is read: `now_ms` comes with each call.

The calls of an application that a producer has not ended yet, but for those of transactions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from kcli.client.cluster import UNKNOWN_PARTITION, Cluster, PartitionInfo
from kcli.client.consumer.membership import GroupMetadata
from kcli.client.errors import (
    AuthenticationError,
    ClientError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    TransactionAbortedError,
    as_client_error,
)
from kcli.client.network_client import NetworkClient
from kcli.client.producer.arrow_appender import ArrowAppender, ArrowRows
from kcli.client.producer.partitioner import Partitioner, RecordPartitioner
from kcli.client.producer.producer_batch import Callback, Headers, ProducerBatch
from kcli.client.producer.producer_config import ProducerConfig
from kcli.client.producer.producer_metrics import ProducerMetrics
from kcli.client.producer.record_accumulator import RecordAccumulator
from kcli.client.producer.record_appender import RecordAppender
from kcli.client.producer.sender import Sender
from kcli.client.producer.transaction_manager import State
from kcli.client.producer.transaction_requests import CallDone, Left, Offsets, TransactionRequests
from kcli.client.value_checks import check_offsets
from kcli.network.timing_wheel import TimerTask
from kcli.protocol import error_codes
from kcli.state.topic_names import topic_name_fault

NO_TIMESTAMP = -1
# Of a batch of rows: the larger, the fewer requests; the half of the default max.message.bytes of topics.
MOST_ARROW_BATCH_BYTES = 524288
ROWS_AT_ONCE = 20_000  # then the sender has its turn
# Errors of a topic that waiting does not change.
_LASTING = frozenset((error_codes.INVALID_TOPIC_EXCEPTION, error_codes.TOPIC_AUTHORIZATION_FAILED))

_Result = TypeVar("_Result")
Done = Callable[[_Result | ClientError, int], None]


class Waiting:
    """A record, or a question for partitions, that waits for metadata or memory."""

    def __init__(
        self,
        topic: str,
        partition: int,
        try_again: Callable[[int], bool],
        done: Callable[[ClientError], None],
        owner: object,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.try_again = try_again
        self.done = done
        self.owner = owner
        self.deadline: TimerTask | None = None


class Flush:
    """A call of flush, and the batches that have not ended."""

    def __init__(self, batches: list[ProducerBatch], done: CallDone) -> None:
        self.batches = batches
        self.done = done

    def is_over(self) -> bool:
        """Return whether all batches have ended; each is checked until it has."""
        while self.batches and self.batches[-1].is_done:
            self.batches.pop()
        return not self.batches


class Record(NamedTuple):
    """A record with its bytes; a partition of -1 is chosen, a timestamp of -1 is that of the call."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int = UNKNOWN_PARTITION
    timestamp: int = NO_TIMESTAMP
    on_delivery: Callback | None = None


class ProducerCore:
    """One producer; `log` gets a line for what goes wrong."""

    def __init__(
        self, network: NetworkClient, config: ProducerConfig, log: Callable[[str], None], partitioner: Partitioner | None = None
    ) -> None:
        self.network = network
        self.config = config
        self.counts = ProducerMetrics()
        self._log = log
        self._requests: TransactionRequests | None = None
        if config.enable_idempotence:
            self._requests = TransactionRequests(
                network, config.transactional_id, config.transaction_timeout_ms, lambda: bool(self.accumulator.incomplete), log
            )
        self._transactions = None if self._requests is None else self._requests.manager
        common = network.config
        self.accumulator = RecordAccumulator(config.accumulator(common), network.rng, self._transactions)
        self._sender = Sender(
            network, self.accumulator, config.sender(common), self.counts, self._batch_ended, self._transactions
        )
        self._is_transactional = config.transactional_id is not None
        chooser = RecordPartitioner(partitioner, ignore_keys=config.partitioner_ignore_keys)
        self._cluster = network.metadata.cluster
        self.appender = RecordAppender(self.accumulator, chooser, self._transactions, self._is_transactional, self._cluster)
        self._used_ms: dict[str, int] = {}
        self._waiting: deque[Waiting] = deque()
        self._flushes: list[Flush] = []
        self._ended_count = 0
        # Takes each batch that has ended; a shell whose threads share the producer calls its callbacks without the lock.
        self.deliver: Callable[[ProducerBatch], object] = self.call_back
        self._closing: Callable[[int], None] | None = None  # goes on with a close
        self._end_closing: Callable[[int], None] | None = None  # ends it
        network.metadata.add_listener(self._metadata_changed)
        network.add_refusal_listener(self._refused)

    # ----------------------------------------------------------------------------------------------------------- records

    def send(self, record: Record, done: Done[None], now_ms: int) -> None:
        """Append a record as soon as it can be; `done(None or error, now_ms)` is called then."""
        topic, value, key, headers, partition, timestamp, on_delivery = record
        if timestamp == NO_TIMESTAMP:
            timestamp = self.network.timer.wall.at(now_ms)

        def append(now_ms: int) -> bool:
            return self.appender.append(topic, value, key, headers, partition, timestamp, on_delivery, now_ms)

        self._wait(topic, append, done, now_ms, partition, record)

    def begin_rows(self, topic: str, rows: ArrowRows, on_batch: Callback | None) -> ArrowAppender:
        """Return what appends the rows of a record batch to a topic.

        `on_batch` gets the place of each batch's first record, or its error.
        """
        transactions = self._transactions
        added = None if transactions is None or not self._is_transactional else transactions.add_partition
        batch_bytes = max(self.config.batch_size, min(self.config.max_request_size // 2, MOST_ARROW_BATCH_BYTES))
        return ArrowAppender(rows, self.accumulator, topic, batch_bytes, on_batch, added)

    def append_rows(self, appender: ArrowAppender, topic: str, now_ms: int) -> bool:
        """Append some of the rows that are left; return False if they have to wait. Raises as `appender.append` does."""
        partitions = len(self._cluster.partitions_for_topic(topic))
        if not partitions:
            return False
        if self._transactions is not None:
            self._transactions.check_can_append()
        wall_ms = self.network.timer.wall.at(now_ms)
        try:
            return appender.append(partitions, ROWS_AT_ONCE, wall_ms, now_ms, self._cluster)
        except Exception as error:
            # Rows before this one may be in batches: the transaction must not be committed without the rest.
            self._fail_transaction(as_client_error(error))
            raise

    def wait_for_rows(self, appender: ArrowAppender, topic: str, done: Done[None], now_ms: int) -> None:
        """Append rows as soon as some can be; `done(None or error, now_ms)` is called then."""
        first = appender.row

        def append(now_ms: int) -> bool:
            return self.append_rows(appender, topic, now_ms) or appender.row > first

        self._wait(topic, append, done, now_ms, owner=appender)

    def partitions_for(self, topic: str, done: Done[list[PartitionInfo]], now_ms: int) -> None:
        """Get the partitions of a topic, within max.block.ms."""

        def found(error: ClientError | None, now_ms: int) -> None:
            done(list(self._cluster.partitions_for_topic(topic)) if error is None else error, now_ms)

        self._wait(topic, lambda now_ms: bool(self._cluster.partitions_for_topic(topic)), found, now_ms)

    def _wait(
        self,
        topic: str,
        attempt: Callable[[int], bool],
        done: Done[None],
        now_ms: int,
        partition: int = UNKNOWN_PARTITION,
        owner: object = None,
    ) -> None:
        """Attempt until it returns True or raises; `owner` is the record or the rows, which `withdraw` takes."""

        def try_again(now_ms: int) -> bool:
            try:
                is_over = attempt(now_ms)
            except Exception as error:  # also of a partitioner of the application
                done(as_client_error(error), now_ms)
                return True
            if is_over:
                done(None, now_ms)
            return is_over

        def failed(error: ClientError) -> None:
            if owner is not None:
                self.send_failed(error)
            done(error, self.network.timer.clock_ms)

        if self.accumulator.is_closed:
            failed(ProducerClosedError("the producer is closed"))
            return
        if try_again(now_ms):
            return
        fault = topic_name_fault(topic)
        if fault is not None:  # a broker may refuse the whole request that asks for it
            failed(KafkaError(error_codes.INVALID_TOPIC_EXCEPTION, fault))
            return
        waiting = Waiting(topic, partition, try_again, failed, owner)

        def expired(now_ms: int) -> None:
            self._waiting.remove(waiting)
            self._count_waiting()
            failed(KafkaTimeoutError(self._reason(waiting)))

        waiting.deadline = self.network.timer.schedule(now_ms + self.config.max_block_ms, expired)
        self._waiting.append(waiting)
        self._count_waiting()
        self._used_ms[topic] = now_ms
        if self.network.metadata.want_topic(topic) or not self._is_known(waiting):
            self.network.request_update()
        self._check_topics()

    def withdraw(self, owner: object) -> None:
        """Do not append a record, or rows, that wait: the caller has been cancelled."""
        for waiting in [one for one in self._waiting if one.owner is owner]:
            self._waiting.remove(waiting)
            if waiting.deadline is not None:
                waiting.deadline.cancel()
        self._count_waiting()

    def send_failed(self, error: ClientError) -> None:
        """Let a transaction that lacks a record only be aborted (Kafka: maybeTransitionToErrorState)."""
        if isinstance(error, (KafkaError, KafkaTimeoutError, AuthenticationError)):
            self._fail_transaction(error)

    def _fail_transaction(self, error: ClientError) -> None:
        if self._transactions is not None:
            self._transactions.record_failed(error)

    def _is_known(self, waiting: Waiting) -> bool:
        return len(self._cluster.partitions_for_topic(waiting.topic)) > max(waiting.partition, 0)

    def _reason(self, waiting: Waiting) -> str:
        """Say why a record could not be appended in max.block.ms."""
        topic = waiting.topic
        within = f"in {self.config.max_block_ms} ms (max.block.ms)"
        count = len(self._cluster.partitions_for_topic(topic))
        if self._is_known(waiting):
            return f"buffer.memory had no room for the record {within}"
        if count:
            return f"topic {topic} has {count} partitions, and did not get partition {waiting.partition} {within}"
        code = self.network.metadata.topic_errors.get(topic)
        detail = self.network.failure_reason() if code is None else error_codes.NAMES.get(code, str(code))
        return f"the partitions of topic {topic} were not known {within}: {detail}"

    def _refused(self, error: ClientError, node_id: int | None, now_ms: int) -> None:
        """Take a broker that TLS or SASL does not let the producer use: calls that wait for metadata end.

        If no connection to the broker has worked, the batches that were never sent end, too. After it has worked, they wait
        for delivery.timeout.ms, as in Kafka: a broker may learn of new credentials late.
        """
        unknown = [one for one in self._waiting if not self._is_known(one)]
        for waiting in unknown:
            self._waiting.remove(waiting)
            if waiting.deadline is not None:
                waiting.deadline.cancel()
        self._count_waiting()
        for waiting in unknown:
            waiting.done(error)
        incomplete = self.accumulator.incomplete
        if node_id is not None and any(self._cluster.leader_for(one.topic, one.partition) == node_id for one in incomplete):
            self._fail_transaction(error)
            for batch in self.accumulator.abort_undrained_batches(error):
                self._batch_ended(batch, now_ms)

    def _count_waiting(self) -> None:
        # All batches are sent at once while a record waits for memory.
        self.accumulator.pool.waiting = sum(self._is_known(one) for one in self._waiting)

    def _try_waiting(self, now_ms: int) -> None:
        """Try again, in order; a topic whose memory is missing keeps its order."""
        stuck: deque[Waiting] = deque()
        before, self._waiting = self._waiting, deque()
        topics: set[str] = set()
        for waiting in before:
            if waiting.topic in topics or not waiting.try_again(now_ms):
                topics.add(waiting.topic)
                stuck.append(waiting)
            elif waiting.deadline is not None:
                waiting.deadline.cancel()
        self._waiting.extendleft(reversed(stuck))
        self._count_waiting()

    # ---------------------------------------------------------------------------------------------------------- metadata

    def _metadata_changed(self, cluster: Cluster, now_ms: int) -> None:
        self._cluster = cluster
        self.appender.set_cluster(cluster)
        limit_ms = now_ms - self.config.metadata_max_idle_ms
        for topic in [topic for topic, used_ms in self._used_ms.items() if used_ms < limit_ms]:
            del self._used_ms[topic]
            self.network.metadata.forget_topic(topic)
        self._check_topics()
        if any(not self._is_known(waiting) for waiting in self._waiting):
            self.network.request_update()

    def _check_topics(self) -> None:
        """Fail the records of topics that waiting does not bring."""
        errors = self.network.metadata.topic_errors
        for waiting in [one for one in self._waiting if errors.get(one.topic) in _LASTING]:
            self._waiting.remove(waiting)
            if waiting.deadline is not None:
                waiting.deadline.cancel()
            waiting.done(KafkaError(errors[waiting.topic], f"topic {waiting.topic}"))
        self._count_waiting()

    # ------------------------------------------------------------------------------------------------------------ events

    def poll(self, now_ms: int) -> None:
        """Do what is due: transactions, batches, calls that wait."""
        if self._requests is not None:
            self._abort_batches(self._requests, now_ms)
            self._requests.poll(now_ms)
        ended = self._ended_count
        self._sender.poll(now_ms)
        if self._waiting:
            self._try_waiting(now_ms)
            self._sender.poll(now_ms)
        if self._requests is not None and self._ended_count != ended:
            self._requests.poll(now_ms)  # the transaction may have waited for a batch that expired
        if self._closing is not None:
            self._closing(now_ms)

    def _abort_batches(self, requests: TransactionRequests, now_ms: int) -> None:
        manager = requests.manager
        if not self.accumulator.incomplete:
            requests.idempotence_error = None
            return
        aborted: list[ProducerBatch] = []
        if requests.idempotence_error is not None:
            aborted = self.accumulator.abort_batches(requests.idempotence_error)
            requests.idempotence_error = None
        elif manager.state is State.FATAL_ERROR:
            aborted = self.accumulator.abort_batches(manager.fatal_error())
        elif manager.state is State.ABORTABLE_ERROR and manager.error is not None:
            aborted = self.accumulator.abort_undrained_batches(manager.error)
        elif manager.state is State.ABORTING:
            aborted = self.accumulator.abort_undrained_batches(TransactionAbortedError("the transaction was aborted"))
        for batch in aborted:
            self._batch_ended(batch, now_ms)

    def _batch_ended(self, batch: ProducerBatch, now_ms: int) -> None:
        self._used_ms[batch.topic] = now_ms
        self._ended_count += 1
        self.deliver(batch)
        if self._flushes:
            over = [flush for flush in self._flushes if flush.is_over()]
            for flush in over:
                self._flushes.remove(flush)
                self.accumulator.end_flush()
                flush.done(None, now_ms)

    def call_back(self, batch: ProducerBatch) -> None:
        """Call the callbacks of a batch that has ended; this needs nothing of the producer."""
        for callback, found, error in batch.deliveries():
            try:
                callback(found, error)
            except Exception as problem:
                self._log(f"the callback of a record of {batch.topic}-{batch.partition} has failed: {problem!r}")

    # ------------------------------------------------------------------------------------------------------ flush, close

    def flush(self, done: CallDone, now_ms: int) -> None:
        """Send all batches without linger.ms; `done(None, now_ms)` is called when they have ended."""
        flush = Flush(self.accumulator.begin_flush(), done)
        if flush.is_over():
            self.accumulator.end_flush()
            done(None, now_ms)
        else:
            self._flushes.append(flush)

    def close(self, timeout_ms: int, done: CallDone, now_ms: int) -> None:
        """Send what is there, for at most `timeout_ms`; what is left then fails.

        A second call with a `timeout_ms` of 0 ends the first one at once.
        """
        if self.accumulator.is_closed:
            if self._end_closing is not None and timeout_ms <= 0:
                self._end_closing(now_ms)
            done(None, now_ms)
            return
        self.accumulator.close()
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            if one.deadline is not None:
                one.deadline.cancel()
            one.done(ProducerClosedError("the producer was closed"))
        self._count_waiting()

        def finish(now_ms: int) -> None:
            self._closing = self._end_closing = None
            deadline.cancel()
            error = ProducerClosedError("the producer was closed before the record was sent")
            for batch in self.accumulator.abort_batches(error):
                self._batch_ended(batch, now_ms)
            if self._requests is not None:
                self._requests.fail_all(ProducerClosedError("the producer was closed"), now_ms)
            done(None, now_ms)

        def check(now_ms: int) -> None:
            if self._sender.has_work or self.accumulator.incomplete:
                return
            if self._requests is not None and self._is_transactional and self._abort_open_transaction(self._requests, now_ms):
                return
            finish(now_ms)

        deadline = self.network.timer.schedule(now_ms + timeout_ms, finish)
        self._closing, self._end_closing = check, finish
        if timeout_ms <= 0:
            finish(now_ms)

    def _abort_open_transaction(self, requests: TransactionRequests, now_ms: int) -> bool:
        """Abort a transaction that is open when the producer is closed; return whether a request is left."""
        if requests.manager.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            requests.end(lambda error, now_ms: None, is_commit=False)
            requests.poll(now_ms)
        return requests.has_work

    # ------------------------------------------------------------------------------------------------------ transactions

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction was begun and neither committed nor aborted."""
        return self._is_transactional and self._requests is not None and self._requests.manager.state is State.IN_TRANSACTION

    def _of_transactions(self) -> TransactionRequests:
        if self._requests is None or not self._is_transactional:
            raise IllegalStateError("the producer has no transactions: set transactional.id")
        return self._requests

    def init_transactions(self, done: Done[None], now_ms: int) -> Left:
        """Begin to use the transactional id: fence older producers, and end their transaction."""
        return self._call(lambda one: self._of_transactions().init_transactions(one), "init_transactions()", done, now_ms)

    def begin_transaction(self) -> None:
        """Begin a transaction. Raises IllegalStateError, TransactionAbortableError, TransactionFatalError."""
        self._of_transactions().begin()

    def commit_transaction(self, done: Done[None], now_ms: int) -> Left:
        """Send all records and commit the transaction."""
        return self._call(lambda one: self._of_transactions().end(one, is_commit=True), "commit_transaction()", done, now_ms)

    def abort_transaction(self, done: Done[None], now_ms: int) -> Left:
        """Abort the transaction; records that were not sent are dropped."""
        return self._call(lambda one: self._of_transactions().end(one, is_commit=False), "abort_transaction()", done, now_ms)

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata, done: Done[None], now_ms: int) -> None:
        """Make offsets of a consumer group a part of the transaction. Raises TypeError, ValueError, KafkaError."""
        check_offsets(offsets)
        if not isinstance(group, GroupMetadata):
            raise TypeError(f"the group is the GroupMetadata of a consumer's group_metadata(), not {group!r}")
        if not offsets:
            done(None, now_ms)
            return
        self._call(
            lambda one: self._of_transactions().send_offsets(group, offsets, one), "send_offsets_to_transaction()", done, now_ms
        )

    def _call(self, start: Callable[[CallDone], None], name: str, done: Done[None], now_ms: int) -> Left:
        """Start a call that ends within max.block.ms for its caller."""
        is_over = False

        def finished(result: ClientError | None, now_ms: int) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                deadline.cancel()
                done(result, now_ms)

        def leave() -> None:
            if self._requests is not None:
                self._requests.leave(finished)

        def expired(now_ms: int) -> None:
            reason = self.network.failure_reason()
            leave()
            finished(KafkaTimeoutError(f"{name} did not end in {self.config.max_block_ms} ms (max.block.ms): {reason}"), now_ms)

        deadline = self.network.timer.schedule(now_ms + self.config.max_block_ms, expired)
        try:
            start(finished)
        except ClientError as error:
            finished(error, now_ms)
        return leave

    # ----------------------------------------------------------------------------------------------------------- metrics

    def metrics(self) -> dict[str, float]:
        """Return what the producer has counted, by Kafka's names."""
        pool = self.accumulator.pool
        return {
            **self.counts.values(),
            "requests-in-flight": self._sender.in_flight_requests,
            "buffer-total-bytes": pool.total,
            "buffer-available-bytes": pool.available,
            "waiting-threads": len(self._waiting),
        }
