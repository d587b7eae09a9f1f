"""A consumer's core as a client of a whole node in virtual time, which is called as the shells call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kcli.client.consumer.consumer import ConsumerCore
from kcli.client.consumer.consumer_config import ConsumerConfig
from kcli.client.consumer.consumer_record import ConsumerRecord
from kcli.client.consumer.making_membership import make_membership
from kcli.client.errors import ClientError, KafkaTimeoutError
from kcli.format.primitives import TopicPartition
from tests.client.clients_of_node import ClientsOfNode, client_of
from tests.client.consumer.group_app import NotingListener

HANGS_MS = 600_000  # no call may take so long
MOST_WAITS = 1000  # of one poll


class ConsumerApp:
    """One application; calls return their result or raise the ClientError."""

    def __init__(self, node: ClientsOfNode, name: str, **settings: Any) -> None:
        self.node = node
        self.client, own = client_of(node, name, settings)
        config = ConsumerConfig(**{"auto_offset_reset": "earliest", "enable_auto_commit": False, **own})
        self.core = ConsumerCore(self.client.network, config, make_membership)
        self.client.poll = self.core.poll
        self.listener = NotingListener()
        self.api_ms = self.client.network.config.default_api_timeout_ms

    def do(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the core that waits for nothing."""
        self.client.network.timer.observe(self.node.now_ms)
        result = function(*args, self.node.now_ms)
        self.node.pump()
        return result

    def ask(self, function: Callable[..., Any], *args: Any, timeout_ms: int | None = None) -> Any:
        """Start an operation of the core and wait for its result. Raises its ClientError; it must end in its time."""
        timeout_ms = self.api_ms if timeout_ms is None else timeout_ms
        found: list[Any] = []
        began_ms = self.node.now_ms
        self.do(lambda now_ms: function(*args, lambda result, now_ms: found.append(result), now_ms, timeout_ms))
        self.node.until(lambda: bool(found), HANGS_MS)
        assert self.node.now_ms - began_ms <= timeout_ms, "the call has not ended in its time"
        if isinstance(found[0], ClientError):
            raise found[0]
        return found[0]

    def subscribe(self, *topics: str) -> None:
        self.do(self.core.subscribe, topics, self.listener)

    def poll(self, timeout_ms: int) -> list[ConsumerRecord]:
        """Poll as a shell does."""
        core, node = self.core, self.node
        self.do(core.begin_poll)
        end_ms = node.now_ms + timeout_ms
        for _ in range(MOST_WAITS):
            while core.take_auto_commit() is not None:
                pass
            self.call_listener()
            core.raise_error(node.now_ms)
            found: list[ConsumerRecord] = self.do(core.collect)
            left_ms = end_ms - node.now_ms
            if found or left_ms <= 0:
                return found
            self._wait(core.await_work, left_ms)
            self.do(core.polled)
        raise AssertionError("the poll is woken again and again, and has nothing to do")

    def call_listener(self) -> None:
        """Call the listener as long as the membership wants it."""
        membership = self.core.membership
        while membership is not None and (call := self.do(lambda now_ms: membership.start_callback())) is not None:
            getattr(self.listener, call.kind.value)(call.partitions)
            self.do(lambda now_ms: membership.callback_done(None, now_ms))

    def _wait(self, start: Callable[..., None], ms: int, is_over: Callable[[], bool] = lambda: False) -> None:
        found: list[object] = []
        self.do(lambda now_ms: start(lambda error, now_ms: found.append(error), now_ms, ms))
        self.node.until(lambda: bool(found) or is_over(), ms + 1)

    def read(self, count: int, within_ms: int = 60_000) -> list[ConsumerRecord]:
        """Poll until `count` records have come. Raises KafkaTimeoutError."""
        found: list[ConsumerRecord] = []
        end_ms = self.node.now_ms + within_ms
        while len(found) < count:
            if self.node.now_ms >= end_ms:
                raise KafkaTimeoutError(f"{len(found)} of {count} records came")
            found += self.poll(1000)
        return found

    def commit(self) -> None:
        self.ask(self.core.commit, None)

    def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        found = self.ask(self.core.committed, list(partitions))
        return {partition: None if one is None else one.offset for partition, one in found.items()}

    def close(self, within_ms: int = 30_000) -> None:
        """Close as a shell does: what has not ended within the time is given up."""
        ended: list[object] = []
        end_ms = self.node.now_ms + within_ms
        self.do(lambda now_ms: self.core.close(lambda error, now_ms: ended.append(error), now_ms))
        while not ended and self.node.now_ms < end_ms:
            self.call_listener()
            self._wait(self.core.await_callback, end_ms - self.node.now_ms, lambda: bool(ended))
        self.node.remove(self.client)
