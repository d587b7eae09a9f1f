"""`send` of a blocking producer: the lock, the clocks and one compiled append for each record.

A record of 100 bytes takes 0.5 us compiled. The shells' common way to call a core (ClientThread.call) would take twice as long.
This one source runs two ways, as kcli.format.record_scan does; its C types are in record_sender.pxd.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kcli.client.cluster import UNKNOWN_PARTITION
from kcli.client.producer import record_appender
from kcli.client.producer.producer_batch import Callback
from kcli.client.shell import system_clock

AnyHeaders = Iterable[tuple["str | bytes", "bytes | None"]] | Mapping["str | bytes", "bytes | None"] | None
# Takes topic, value, key, headers, partition, timestamp and on_delivery.
SendSlowly = Callable[[str, Any, Any, AnyHeaders, "int | None", "int | None", "Callback | None"], None]


class RecordSender:
    """The base of Producer: sends records of bytes at once if there is room for them, and all others by `send_slowly`."""

    def __init__(
        self,
        appender: record_appender.RecordAppender,
        lock: threading.RLock,
        wake: Callable[[], None],
        send_slowly: SendSlowly,
        is_plain: bool,
        ahead_s: float,
    ) -> None:
        """Make it for a client's lock and its function that wakes the sender; `ahead_s` is added to the monotonic clock.

        `send_slowly` sends a record that needs serializers, or that has to wait; its arguments are those of `send`.
        """
        self._appender = appender
        self._accumulator = appender.accumulator
        self._acquire, self._release = lock.acquire, lock.release
        self._wake = wake
        self._send_slowly = send_slowly
        self._is_plain = is_plain
        self._ahead_s = ahead_s

    def send(
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
        """Send a record; this ends when it is in a batch.

        Raises ClientError: KafkaTimeoutError after max.block.ms, RecordTooLargeError, SerializationError and others; of the
        record's delivery `on_delivery` is informed.
        """
        is_plain = self._is_plain and timestamp is None and type(headers) is tuple and not headers
        is_plain = is_plain and (value is None or type(value) is bytes) and (key is None or type(key) is bytes)
        is_plain = is_plain and type(topic) is str and (partition is None or (type(partition) is int and partition >= 0))
        is_plain = is_plain and (on_delivery is None or callable(on_delivery))  # the slow way says what is wrong
        number = UNKNOWN_PARTITION if partition is None else partition
        if is_plain and self._append(topic, value, key, number, on_delivery):
            return
        self._send_slowly(topic, value, key, headers, partition, timestamp, on_delivery)

    def _append(self, topic: str, value: bytes | None, key: bytes | None, partition: int, on_delivery: Callback | None) -> bool:
        """Append a record at once; return False if that is not possible."""
        self._acquire()
        try:
            seconds = system_clock.monotonic_s() + self._ahead_s
            now_ms = int(seconds * 1000)
            seconds = system_clock.wall_s()
            wall_ms = int(seconds * 1000)
            if not self._appender.append(topic, value, key, (), partition, wall_ms, on_delivery, now_ms):
                return False
            if self._accumulator.should_wake_sender:
                self._accumulator.should_wake_sender = False  # the next records, before it runs, need not wake it again
                self._wake()
            return True
        finally:
            self._release()
