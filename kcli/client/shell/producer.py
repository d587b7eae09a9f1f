"""`Producer`, whose methods block, and `AsyncProducer`, whose methods are awaited (Kafka: Producer, KafkaProducer).

    with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
        producer.send("orders", b"value", key=b"key", on_delivery=print)

    async with AsyncProducer({"bootstrap.servers": "localhost:9092"}) as producer:
        metadata = await producer.send_and_wait("orders", b"value")

`send` ends as soon as the record is in a batch, and blocks for at most max.block.ms. What became of the record is reported to
`on_delivery(metadata, error)`, if it is given: there is no future for each record, which would cost more than the rest.
Callbacks of Producer run on its own thread, and no lock is held there. They may send, but not wait: `flush` and a full buffer
raise IllegalStateError and KafkaTimeoutError there. What `flush` and the other methods wait for comes after the callbacks.

A program that ends without `flush` or `close` has its records sent for EXIT_S at most; what is lost then is logged, and so are
the records of an AsyncProducer whose event loop has ended: nothing can send them.

An interceptor has `on_send(record)`, which returns the Record to be sent, and `on_acknowledgement(metadata, error)`.
"""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kcli.client.client_config import ClientConfig, refuse_unknown
from kcli.client.cluster import UNKNOWN_PARTITION, PartitionInfo
from kcli.client.consumer.membership import GroupMetadata
from kcli.client.errors import ClientError, IllegalStateError, KafkaTimeoutError
from kcli.client.producer.arrow_appender import ArrowRows, record_batches
from kcli.client.producer.partitioner import Partitioner
from kcli.client.producer.producer import NO_TIMESTAMP, Done, ProducerCore, Record
from kcli.client.producer.producer_batch import Callback, Headers, ProducerBatch, RecordMetadata
from kcli.client.producer.producer_config import ProducerConfig, read_producer_config
from kcli.client.producer.transaction_requests import Left, Offsets
from kcli.client.serializers import Serializer, find_serializer, serialize
from kcli.client.shell.client_builder import FOREVER_S, Setting, build_network, log_line, property_texts
from kcli.client.shell.client_loop import ClientLoop
from kcli.client.shell.client_thread import ClientThread
from kcli.client.shell.open_operations import settle
from kcli.client.shell.record_sender import AnyHeaders, RecordSender
from kcli.client.value_checks import check_callable, check_timeout, check_topic
from kcli.network.shell.clock import Clock

if TYPE_CHECKING:
    from kcli.client.shell.tokens import TokenFunction

_Result = TypeVar("_Result")
# How long a program that ends waits for the records of a producer that was not closed.
EXIT_S = 10.0
_OPEN: weakref.WeakSet[Producer] = weakref.WeakSet()
_is_exit_awaited = False


def _await_exit() -> None:
    """Have the open producers closed when the program ends."""
    global _is_exit_awaited
    if not _is_exit_awaited:
        _is_exit_awaited = True
        # The last one that is registered is called first: while names can still be resolved, which the executor does.
        import concurrent.futures.thread  # noqa: F401

        threading._register_atexit(_close_all)  # type: ignore[attr-defined]  # atexit comes after the end of the executor


def _close_all() -> None:
    for producer in list(_OPEN):
        producer._end_of_program()


def _count(core: ProducerCore) -> int:
    """Return how many records have no result yet."""
    return sum(batch.record_count for batch in core.accumulator.incomplete)


def _report_lost(count: int, log: Callable[[str], None], reason: str) -> None:
    if count:
        log(
            f"{count:,} records of a producer were lost: {reason}"
            if count > 1
            else f"a record of a producer was lost: {reason}"
        )


def _report_unsent(core: ProducerCore, log: Callable[[str], None]) -> None:
    """Take the end of the event loop of an AsyncProducer, or of the program."""
    _report_lost(_count(core), log, "the event loop has ended before flush or close of the AsyncProducer")


class Interceptor(Protocol):
    """Sees each record and its result (Kafka: ProducerInterceptor)."""

    def on_send(self, record: Record) -> Record:
        """Return the record to be sent; called before the partition is chosen."""
        ...

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        """Take the result of a record."""
        ...


class _ProducerBase(ABC):
    """What both producers have: the core, and the way from arguments to a record."""

    def __init__(
        self,
        settings: Mapping[str, Setting],
        *,
        key_serializer: Serializer | str | None = None,
        value_serializer: Serializer | str | None = None,
        partitioner: Partitioner | None = None,
        interceptors: Sequence[Interceptor] = (),
        log: Callable[[str], None] = log_line,
        oauth_token: TokenFunction | None = None,
    ) -> None:
        """Raises ConfigError for settings that do not exist, or values that they cannot have."""
        properties = property_texts(settings)
        refuse_unknown(properties, ClientConfig, ProducerConfig)
        self._clock = Clock()
        self._log = log
        network = build_network(properties, self._clock, self._log, oauth_token)
        self._core = ProducerCore(network, read_producer_config(properties), self._log, partitioner)
        self._key_serializer, self._value_serializer = find_serializer(key_serializer), find_serializer(value_serializer)
        self._interceptors = tuple(interceptors)
        # Whether arguments of `send` are a record as they are.
        self._takes_plain = self._key_serializer is None and self._value_serializer is None and not self._interceptors
        self._is_closed = False
        self._start()

    @abstractmethod
    def _start(self) -> None:
        """Make what runs the core."""

    def _make_record(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: AnyHeaders,
        partition: int | None,
        timestamp: int | None,
        on_delivery: Callback | None,
    ) -> Record:
        """Return the record of the arguments of `send`, after serializers and interceptors. Raises SerializationError."""
        _check_whole(timestamp, "the timestamp", "timestamps are milliseconds since 1970, such as int(time.time() * 1000)")
        _check_whole(partition, "the partition", "partitions are counted from 0")
        check_callable(on_delivery, "on_delivery")
        if not isinstance(topic, str):
            raise TypeError(f"the name of a topic is a text, not {topic!r}")
        record = Record(
            topic,
            serialize(self._value_serializer, value, "value"),
            serialize(self._key_serializer, key, "key"),
            header_bytes(headers),
            UNKNOWN_PARTITION if partition is None else partition,
            NO_TIMESTAMP if timestamp is None else timestamp,
            on_delivery,
        )
        for interceptor in self._interceptors:
            try:
                record = interceptor.on_send(record)
            except Exception as error:
                self._log(f"the interceptor {interceptor!r} has failed: {error!r}")
        return record._replace(on_delivery=self._acknowledged(record.on_delivery)) if self._interceptors else record

    def _acknowledged(self, on_delivery: Callback | None) -> Callback:
        def acknowledged(metadata: RecordMetadata | None, error: Exception | None) -> None:
            for interceptor in self._interceptors:
                try:
                    interceptor.on_acknowledgement(metadata, error)
                except Exception as problem:
                    self._log(f"the interceptor {interceptor!r} has failed: {problem!r}")
            if on_delivery is not None:
                on_delivery(metadata, error)

        return acknowledged

    def _append_record(self, record: Record) -> bool:
        """Append a record; return False if it has to wait."""
        topic, value, key, headers, partition, timestamp, on_delivery = record
        now_ms = self._clock.now_ms()
        if timestamp == NO_TIMESTAMP:
            timestamp = self._clock.wall_time.at(now_ms)
        return self._core.appender.append(topic, value, key, headers, partition, timestamp, on_delivery, now_ms)


def _check_whole(value: object, what: str, hint: str) -> None:
    """Check a number that may be None. Raises TypeError, ValueError."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} {value!r} is not a whole number: {hint}")
    if value < 0:
        raise ValueError(f"{what} {value} is negative: {hint}")


def header_bytes(headers: AnyHeaders) -> Headers:
    """Return headers, pairs or a dict, whose keys may be text as the record has them. Raises TypeError."""
    pairs: Iterable[object] = headers.items() if isinstance(headers, Mapping) else headers or ()
    if not isinstance(pairs, Iterable) or isinstance(pairs, str | bytes):
        raise TypeError(f"headers are a list of (key, value), or a dict, not {headers!r}")
    found = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"a header is a pair (key, value), not {pair!r}")
        key, value = pair
        if not isinstance(key, str | bytes) or not isinstance(value, bytes | None):
            raise TypeError(f"a header has a text and bytes or None, not {pair!r}")
        found.append((key.encode() if isinstance(key, str) else key, value))
    return tuple(found)


def _delivered(future: Future[RecordMetadata], metadata: RecordMetadata | None, error: Exception | None) -> None:
    if future.done() or not future.set_running_or_notify_cancel():
        return  # the caller waits no longer
    if error is not None:
        future.set_exception(error)
    elif metadata is not None:
        future.set_result(metadata)


def _ignore(error: ClientError | None, now_ms: int) -> None:
    """Take the end of a call whose caller does not wait."""


def _settle(future: Future[_Result], result: _Result | ClientError) -> None:
    if not future.done():  # else an exception of the thread has ended it
        settle(future, result)


class Producer(_ProducerBase, RecordSender):
    """A producer for any thread; `log` gets a line for each connection, callback or interceptor that fails."""

    def _start(self) -> None:
        self._thread = ClientThread(self._core, self._clock, "kcli-producer", self._forked)
        self._lock = self._thread.lock
        # What is to be called on the thread without the lock, in this order: callbacks of batches, ends of waiting calls.
        self._deferred: deque[Callable[[], object]] = deque()
        self._is_call_due = False
        self._core.deliver = lambda batch: self._defer(partial(self._core.call_back, batch))
        wake, ahead_s = self._thread.wake, self._clock.ahead_s
        RecordSender.__init__(self, self._core.appender, self._lock, wake, self._send_or_wait, self._takes_plain, ahead_s)
        _OPEN.add(self)
        _await_exit()

    def _forked(self) -> None:
        self._is_plain = False  # each record goes to _send_or_wait, which raises

    def _end_of_program(self) -> None:
        """Send what is left when the program ends, for EXIT_S at most, and log what is lost."""
        if self._is_closed or self._thread.is_forked:
            return
        lost = 0
        deliver = self._core.deliver

        def counted(batch: ProducerBatch) -> None:
            nonlocal lost
            lost += 0 if batch.error is None else batch.record_count
            deliver(batch)

        self._core.deliver = counted
        is_open = self._core.is_in_transaction
        try:
            self.close(EXIT_S)
        except (Exception, KeyboardInterrupt) as error:
            self._log(f"the producer cannot be closed: {error!r}")
        _report_lost(lost, self._log, "the program has ended before flush or close")
        if is_open:
            self._log("the transaction of a producer was aborted: the program has ended before commit_transaction")

    def _send_or_wait(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: AnyHeaders,
        partition: int | None,
        timestamp: int | None,
        on_delivery: Callback | None,
    ) -> None:
        record = self._make_record(topic, value, key, headers, partition, timestamp, on_delivery)
        self._thread.check_process()
        with self._lock:
            if self._append_record(record):
                if self._accumulator.should_wake_sender:
                    self._thread.wake()
                return
        if self._thread.is_current():
            error = KafkaTimeoutError("the record has to wait for metadata or memory, which a callback cannot do")
            with self._lock:
                self._core.send_failed(error)
            raise error
        self._wait(partial(self._core.send, record))

    def send_and_wait(self, topic: str, value: Any = None, key: Any = None, **words: Any) -> RecordMetadata:
        """Send a record and return where it is. Raises ClientError."""
        future: Future[RecordMetadata] = self._thread.future()
        try:
            self.send(topic, value, key, on_delivery=partial(_delivered, future), **words)
        except BaseException:
            future.cancel()
            raise
        self._check_thread()
        return future.result()

    def produce_arrow(self, topic: str, table: Any, *, on_delivery: Callback | None = None) -> None:
        """Send the rows of an Arrow table or record batch as records; this ends when they are in batches.

        Its columns are those of kcli.client.producer.arrow_appender; serializers and interceptors are not called. `on_delivery`
        is called once for each batch, with the place of its first record, or the error of the batch. Raises ClientError.
        """
        check_topic(topic)
        check_callable(on_delivery, "on_delivery")
        for batch in record_batches(table):
            rows = ArrowRows(batch)
            appender = self._core.begin_rows(topic, rows, on_delivery)
            while appender.row < rows.count:
                with self._lock:
                    is_appended = self._core.append_rows(appender, topic, self._clock.now_ms())
                    if self._accumulator.should_wake_sender:
                        self._thread.wake()
                if not is_appended:
                    self._wait(partial(self._core.wait_for_rows, appender, topic))

    def _defer(self, function: Callable[[], object]) -> None:
        self._deferred.append(function)
        if not self._is_call_due:
            self._is_call_due = True
            self._thread.call_soon(self._call_deferred)

    def _call_deferred(self) -> None:
        self._is_call_due = False
        while self._deferred:
            self._deferred.popleft()()

    def _wait(self, operation: Callable[[Done[_Result], int], object], timeout: float | None = None) -> _Result:
        """Start an operation and return its result. Raises the ClientError that it ends with, and TimeoutError."""
        self._check_thread()
        future: Future[_Result] = self._thread.future()

        def done(result: _Result | ClientError, now_ms: int) -> None:
            self._defer(partial(_settle, future, result))

        self._thread.call(lambda now_ms: operation(done, now_ms))
        return future.result(timeout)

    def _check_thread(self) -> None:
        if self._thread.is_current():
            raise IllegalStateError("a callback of the producer cannot wait for the producer")

    def flush(self, timeout: float | None = None) -> None:
        """Send all records, and wait until each has a result. Raises KafkaTimeoutError after `timeout` seconds."""
        check_timeout(timeout)
        try:
            self._wait(self._core.flush, timeout)
        except TimeoutError:
            raise KafkaTimeoutError(f"flush did not end in {timeout} s") from None

    def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """Return the partitions of a topic. Raises ClientError."""
        return self._wait(partial(self._core.partitions_for, topic))

    def init_transactions(self) -> None:
        """Begin to use the transactional id: fence older producers, and end their transaction. Raises ClientError."""
        self._wait(self._core.init_transactions)

    def begin_transaction(self) -> None:
        """Begin a transaction. Raises ClientError."""
        self._thread.call(lambda now_ms: self._core.begin_transaction())

    def commit_transaction(self) -> None:
        """Send all records and commit the transaction. Raises ClientError."""
        self._wait(self._core.commit_transaction)

    def abort_transaction(self) -> None:
        """Abort the transaction; records that were not sent are dropped. Raises ClientError."""
        self._wait(self._core.abort_transaction)

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Make offsets of a consumer group a part of the transaction. Raises ClientError."""
        self._wait(partial(self._core.send_offsets_to_transaction, offsets, group))

    def unready_brokers(self) -> list[str]:
        """Return a sentence for each broker to which a connection is needed and not there, with the reason."""
        return self._core.network.unready()

    def metrics(self) -> dict[str, float]:
        """Return what the producer has counted, by Kafka's names."""
        with self._lock:
            return self._core.metrics()

    def close(self, timeout: float | None = None) -> None:
        """Send what is there for at most `timeout` seconds, without one until it has a result; then close the connections."""
        check_timeout(timeout)
        with self._lock:
            is_closed, self._is_closed = self._is_closed, True
        if is_closed or self._thread.is_forked:
            return
        timeout_ms = math.ceil((FOREVER_S if timeout is None else timeout) * 1000)
        if self._thread.is_current():
            self._thread.call(partial(self._core.close, 0, _ignore))
            self._thread.close()
            return
        try:
            self._wait(partial(self._core.close, timeout_ms))
        except KeyboardInterrupt:
            self._thread.call(partial(self._core.close, 0, _ignore))
            raise
        finally:
            self._thread.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class AsyncProducer(_ProducerBase):
    """A producer for the event loop that runs when it is made; `log` as of Producer."""

    def _start(self) -> None:
        self._client = ClientLoop(self._core, self._clock)
        self._is_woken = False
        self._unsent = weakref.finalize(self._client, _report_unsent, self._core, self._log)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: AnyHeaders = (),
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callback | None = None,
    ) -> None:
        """Send a record; this ends when it is in a batch. Raises as Producer.send does."""
        self._client.check_process()
        record = self._make_record(topic, value, key, headers, partition, timestamp, on_delivery)
        if not self._append_record(record):
            await self._client.start(partial(self._core.send, record), partial(self._core.withdraw, record))
        elif self._core.accumulator.should_wake_sender and not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._wake)
            await asyncio.sleep(0)  # so that a loop of sends does not keep the batches from being sent

    def _wake(self) -> None:
        self._is_woken = False
        self._client.execute()

    async def send_and_wait(self, topic: str, value: Any = None, key: Any = None, **words: Any) -> RecordMetadata:
        """Send a record and return where it is. Raises ClientError."""
        future: Future[RecordMetadata] = Future()
        await self.send(topic, value, key, on_delivery=partial(_delivered, future), **words)
        return await asyncio.wrap_future(future)

    async def produce_arrow(self, topic: str, table: Any, *, on_delivery: Callback | None = None) -> None:
        """Send the rows of an Arrow table or record batch as Producer.produce_arrow does. Raises ClientError."""
        check_topic(topic)
        check_callable(on_delivery, "on_delivery")
        for batch in record_batches(table):
            rows = ArrowRows(batch)
            appender = self._core.begin_rows(topic, rows, on_delivery)
            while appender.row < rows.count:
                waiting = partial(self._core.wait_for_rows, appender, topic)
                await self._client.start(waiting, partial(self._core.withdraw, appender))
                await asyncio.sleep(0)

    async def flush(self) -> None:
        """Send all records, and wait until each has a result."""
        await self._client.start(self._core.flush)

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """Return the partitions of a topic. Raises ClientError."""
        return await self._client.start(partial(self._core.partitions_for, topic))

    async def _transact(self, call: Callable[[Done[None], int], Left]) -> None:
        """Wait for a call of transactions; a caller that is cancelled can repeat it, and gets the result of this one."""
        left: list[Left] = []

        def cancelled() -> None:
            for leave in left:
                leave()

        def begin(done: Done[None], now_ms: int) -> None:
            left.append(call(done, now_ms))

        await self._client.start(begin, cancelled)

    async def init_transactions(self) -> None:
        """Begin to use the transactional id: fence older producers, and end their transaction. Raises ClientError."""
        await self._transact(self._core.init_transactions)

    def begin_transaction(self) -> None:
        """Begin a transaction. Raises ClientError."""
        self._client.call(lambda now_ms: self._core.begin_transaction())

    async def commit_transaction(self) -> None:
        """Send all records and commit the transaction. Raises ClientError."""
        await self._transact(self._core.commit_transaction)

    async def abort_transaction(self) -> None:
        """Abort the transaction; records that were not sent are dropped. Raises ClientError."""
        await self._transact(self._core.abort_transaction)

    async def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Make offsets of a consumer group a part of the transaction. Raises ClientError."""
        await self._client.start(partial(self._core.send_offsets_to_transaction, offsets, group))

    def metrics(self) -> dict[str, float]:
        """Return what the producer has counted, by Kafka's names."""
        return self._core.metrics()

    async def close(self, timeout: float | None = None) -> None:
        """Send what is there for at most `timeout` seconds, without one until it has a result; then close the connections."""
        check_timeout(timeout)
        if self._is_closed:
            return
        self._is_closed = True
        self._unsent.detach()
        if self._client.is_forked:
            return
        try:
            await self._client.start(partial(self._core.close, math.ceil((FOREVER_S if timeout is None else timeout) * 1000)))
        except asyncio.CancelledError:
            self._client.call(partial(self._core.close, 0, _ignore))
            raise
        finally:
            self._client.close()
        await self._client.drained()

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
