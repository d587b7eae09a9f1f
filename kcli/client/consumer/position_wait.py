"""A caller that waits for the position of a partition."""

from __future__ import annotations

from collections.abc import Callable

from kcli.client.cluster import TopicPartition
from kcli.client.consumer.subscription_state import NoOffsetForPartitionError, SubscriptionState
from kcli.client.errors import ClientError, IllegalStateError, KafkaTimeoutError
from kcli.client.network_client import NetworkClient
from kcli.network.timing_wheel import TimerTask

PositionDone = Callable[[int | ClientError, int], None]


class PositionWait:
    """One call of `position`; `waits` are those that have no result yet.

    `is_lost(partition)` says whether only the application can give a partition a position.
    """

    def __init__(
        self,
        network: NetworkClient,
        subscriptions: SubscriptionState,
        waits: list[PositionWait],
        is_lost: Callable[[TopicPartition], bool],
        partition: TopicPartition,
        done: PositionDone,
    ) -> None:
        self._network = network
        self._subscriptions = subscriptions
        self._waits = waits
        self._is_lost = is_lost
        self.partition = partition
        self._done = done
        self._timer: TimerTask | None = None

    def begin(self, now_ms: int, timeout_ms: int) -> None:
        """Wait for at most `timeout_ms`."""
        self._timer = self._network.timer.schedule(now_ms + timeout_ms, self._timed_out)
        self._waits.append(self)

    def check(self, take_error: Callable[[], ClientError | None], now_ms: int) -> None:
        """End if the position is known, the partition is not assigned any more, or the consumer has an error."""
        topic, number = self.partition
        if not self._subscriptions.is_assigned(self.partition):
            self._end(IllegalStateError(f"{topic}-{number} is not assigned to this consumer any more"), now_ms)
            return
        found = self._subscriptions.consumed_offset(self.partition)
        if found is not None:
            self._end(found, now_ms)
        elif self._is_lost(self.partition):
            self._end(NoOffsetForPartitionError([self.partition]), now_ms)
        elif (error := take_error()) is not None:
            self._end(error, now_ms)

    def _timed_out(self, now_ms: int) -> None:
        topic, number = self.partition
        reason = self._network.failure_reason()
        self._end(KafkaTimeoutError(f"the position of {topic}-{number} was not found in time ({reason})"), now_ms)

    def _end(self, result: int | ClientError, now_ms: int) -> None:
        self._waits.remove(self)
        if self._timer is not None:
            self._timer.cancel()
        self._done(result, now_ms)
