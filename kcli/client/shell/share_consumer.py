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

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TypeVar

from kcli.client.consumer.share_records import ShareRecord
from kcli.client.errors import IllegalStateError
from kcli.client.shell.client_thread import ClientThread
from kcli.client.shell.consumer_builder import MILLISECONDS, milliseconds
from kcli.client.shell.open_operations import Done
from kcli.client.shell.record_slices import collect_in_slices
from kcli.client.shell.share_consumer_base import Results, ShareConsumerBase
from kcli.client.shell.single_user import SingleThread

_Result = TypeVar("_Result")


class ShareConsumer(ShareConsumerBase):
    """A share consumer for callers that block; ShareConsumerBase has the calls that wait for nothing."""

    def _start(self) -> None:
        self._use = SingleThread()
        self._thread = ClientThread(self._core, self._clock, f"kcli share consumer {self._core.network.config.client_id}")

    def __enter__(self) -> ShareConsumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _call(self, function: Callable[[int], _Result]) -> _Result:
        with self._use.used():
            return self._thread.call(function)

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
        end_ms = thread.clock.now_ms() + milliseconds(timeout)
        try:
            while True:
                self._call_back()
                found = self._collect()
                left_ms = end_ms - thread.clock.now_ms()
                if found or left_ms <= 0:
                    return found
                thread.start(partial(core.await_work, timeout_ms=left_ms)).result()
                thread.call(core.waiting)
        finally:
            core.poll_ended()

    def _collect(self) -> list[ShareRecord]:
        core, thread = self._core, self._thread
        if self._deserializers == (None, None):
            return thread.call(core.collect)
        found: list[ShareRecord] = []
        try:
            most, keep = core.config.max_poll_records, core.fetcher.keep_unread
            for _ in collect_in_slices(thread.call_lightly, thread.clock, self._collect_some, found, most, keep):
                thread.let_in()
        except BaseException:
            thread.call(lambda now_ms: core.put_back(found))
            raise
        thread.call(lambda now_ms: None)  # what is due is sent
        return found

    def commit_sync(self, timeout: float | None = None) -> Results:
        """Send the acknowledgements and return the error of each partition, None where they succeeded."""
        timeout_ms = milliseconds(timeout, self._api_ms)
        with self._use.used():
            commit: Callable[[Done[Results], int], None] = partial(self._core.commit, timeout_ms=timeout_ms)
            try:
                results: Results = self._thread.start(partial(self._core.waits.start, commit)).result()
            except KeyboardInterrupt:
                with self._thread.lock:
                    self._core.waits.abandon(commit)
                raise
            self._call_back()
            return results

    def commit_async(self) -> None:
        """Send the acknowledgements; the callback gets the results."""
        with self._use.used():
            self._thread.call(lambda now_ms: self._core.commit(lambda results, now_ms: None, now_ms))
            self._call_back()

    def wakeup(self) -> None:
        """End the poll or commit_sync under way, or the next one, with WakeupError; other threads may call this.

        The acknowledgements are sent nevertheless, and the callback gets their results. After a close nothing happens.
        """
        with suppress(IllegalStateError):
            self._thread.call(self._core.wakeup)

    def close(self, timeout: float = 30.0) -> None:
        """Send explicit acknowledgements, release the other records of the last poll, and leave the group."""
        with self._use.used():
            if self._is_closed:
                return
            self._is_closed = True
            if self._thread.is_forked:
                return
            try:
                self._thread.start(self._core.close).result(milliseconds(timeout) / MILLISECONDS)
            except TimeoutError:
                pass  # the broker finds out by its timeouts
            finally:
                self._thread.close()
                self._call_back()
