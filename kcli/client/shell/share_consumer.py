"""The blocking share consumer (Kafka: KafkaShareConsumer), over a ShareConsumerCore on a thread of its own.

    with ShareConsumer({"bootstrap.servers": "localhost:9092", "group.id": "workers"}) as consumer:
        consumer.subscribe(["jobs"])
        while True:
            for record in consumer.poll():
                work(record)

With share.acknowledgement.mode=implicit, as here, the next poll or commit accepts the records, and close releases them, so that
nothing is lost when `work` fails: commit before close to accept the last ones. With explicit the caller acknowledges each one
before the next poll, and close sends these acknowledgements. The acknowledgement commit callback is called inside the calls of
the consumer. One thread uses a consumer at a time; only `wakeup` may be called by others. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TypeVar

from kcli.client.client_config import ClientConfig, read_config, refuse_unknown
from kcli.client.cluster import TopicPartition
from kcli.client.consumer.completed_fetch import Deserializer
from kcli.client.consumer.share_config import ShareConsumerConfig
from kcli.client.consumer.share_consumer import ShareConsumerCore
from kcli.client.consumer.share_records import AcknowledgeType, ShareRecord
from kcli.client.errors import ClientError, IllegalStateError
from kcli.client.shell.client_builder import Setting, build_network, property_texts
from kcli.client.shell.client_thread import ClientThread
from kcli.client.shell.consumer_builder import MILLISECONDS, ignore_line, milliseconds
from kcli.client.shell.single_user import SingleThread
from kcli.network.shell.clock import Clock

_Result = TypeVar("_Result")
# Gets a partition, offsets whose acknowledgements have a result, and their error, None if they succeeded.
AcknowledgementCommitCallback = Callable[[TopicPartition, frozenset[int], "ClientError | None"], object]
Results = dict[TopicPartition, "ClientError | None"]


def build_share_core(settings: Mapping[str, Setting], clock: Clock, log: Callable[[str], None]) -> ShareConsumerCore:
    """Make the core of a share consumer from its settings. Raises ConfigError."""
    properties = property_texts(settings)
    refuse_unknown(properties, ClientConfig, ShareConsumerConfig)
    network = build_network(properties, clock, log)
    return ShareConsumerCore(network, read_config(ShareConsumerConfig, properties))


class ShareConsumer:
    """A share consumer; `settings` have Kafka's names. A deserializer gets the bytes of a key or value that is not null."""

    def __init__(
        self,
        settings: Mapping[str, Setting],
        *,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        log: Callable[[str], None] = ignore_line,
    ) -> None:
        """Raises ConfigError."""
        clock = Clock()
        self._core = build_share_core(settings, clock, log)
        self._deserializers = (key_deserializer, value_deserializer)
        self._api_ms = self._core.network.config.default_api_timeout_ms
        self._callback: AcknowledgementCommitCallback | None = None
        self._use = SingleThread()
        self._is_closed = False
        self._thread = ClientThread(self._core, clock, f"kcli share consumer {self._core.network.config.client_id}")

    def __enter__(self) -> ShareConsumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _call(self, function: Callable[[int], _Result]) -> _Result:
        with self._use.used():
            return self._thread.call(function)

    # ---------------------------------------------------------------------------------------------------- subscription

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics; this replaces the subscription before."""
        self._call(partial(self._core.subscribe, topics))

    def unsubscribe(self) -> None:
        """Read nothing; the member leaves its group."""
        self._call(partial(self._core.subscribe, ()))

    def subscription(self) -> set[str]:
        """Return the subscribed topics."""
        return set(self._core.subscription)

    # --------------------------------------------------------------------------------------------------------- records

    def poll(self, timeout: float = 1.0) -> list[ShareRecord]:
        """Return the next records, up to max.poll.records, after at most `timeout` seconds without records an empty list.

        Raises FetchedRecordError for a record that cannot be read; it is released or rejected, and the next poll goes on.
        """
        with self._use.used():
            return self._poll(timeout)

    def _poll(self, timeout: float) -> list[ShareRecord]:
        thread, core = self._thread, self._core
        thread.call(core.polled)
        end_ms = thread.clock.now_ms() + round(timeout * MILLISECONDS)
        try:
            while True:
                self._call_back()
                found = thread.call(lambda now_ms: core.collect(now_ms, *self._deserializers))
                left_ms = end_ms - thread.clock.now_ms()
                if found or left_ms <= 0:
                    return found
                thread.start(partial(core.await_work, timeout_ms=left_ms)).result()
                thread.call(core.waiting)
        finally:
            core.poll_ended()

    def acknowledge(self, record: ShareRecord, kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Say what became of a record of the last poll; it is sent with the next poll or commit. Raises IllegalStateError."""
        self.acknowledge_offset(record.topic, record.partition, record.offset, kind)

    def acknowledge_offset(
        self, topic: str, partition: int, offset: int, kind: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        """Say what became of the record at an offset, as `acknowledge`."""
        self._call(lambda now_ms: self._core.acknowledge(topic, partition, offset, kind))

    def commit_sync(self, timeout: float | None = None) -> Results:
        """Send the acknowledgements and return the error of each partition, None where they succeeded."""
        timeout_ms = milliseconds(timeout, self._api_ms)
        with self._use.used():
            results: Results = self._thread.start(partial(self._core.commit, timeout_ms=timeout_ms)).result()
            self._call_back()
            return results

    def commit_async(self) -> None:
        """Send the acknowledgements; the callback gets the results."""
        with self._use.used():
            self._thread.call(lambda now_ms: self._core.commit(lambda results, now_ms: None, now_ms))
            self._call_back()

    def set_acknowledgement_commit_callback(self, callback: AcknowledgementCommitCallback | None) -> None:
        """Have a function called with the results of acknowledgements, inside later calls of the consumer."""
        self._callback = callback
        self._core.keeps_results = callback is not None

    def _call_back(self) -> None:
        while self._core.results:
            result = self._core.results.popleft()
            if self._callback is not None:
                self._callback(*result)

    def acquisition_lock_timeout(self) -> float | None:
        """Return for how many seconds records are acquired, None before the first fetch was answered."""
        timeout_ms = self._core.fetcher.lock_timeout_ms
        return None if timeout_ms is None else timeout_ms / MILLISECONDS

    def wakeup(self) -> None:
        """End the poll under way, or the next one, with WakeupError; other threads may call this.

        After a close nothing happens.
        """
        with suppress(IllegalStateError):
            self._thread.call(self._core.wakeup)

    def close(self, timeout: float = 30.0) -> None:
        """Send explicit acknowledgements, release the other records of the last poll, and leave the group."""
        with self._use.used():
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._thread.start(self._core.close).result(timeout)
            except TimeoutError:
                pass  # the broker finds out by its timeouts
            finally:
                self._thread.close()
                self._call_back()
