"""The calls of a rebalance listener that a membership waits for: one at a time, in the application's own calls.

asked for               the listener                    then
----------------------  ------------------------------  -------------------------------------------------------------
`call`, no listener     is not called                   at once
`call`, with a listener is called by a shell            after `done`; an error that it raised is kept for the
                                                        application, and the membership goes on
`forget`                is not called any more          never, not even after the `done` of a call that is running
`drop_assigned`         never hears of it               never
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from kcli.client.cluster import TopicPartition
from kcli.client.consumer.membership import CallbackKind, RebalanceCallback
from kcli.client.consumer.subscription_state import SubscriptionState
from kcli.client.errors import RebalanceListenerError

Then = Callable[[int], None]


class ListenerCalls:
    """The queue of calls; `errors` are those that the listener raised."""

    def __init__(self, subscription: SubscriptionState) -> None:
        self.errors: deque[RebalanceListenerError] = deque()
        self._subscription = subscription
        self._due: deque[tuple[RebalanceCallback, Then]] = deque()
        self._running: list[tuple[RebalanceCallback, Then]] = []  # a listener that unsubscribes is called inside a call

    def __bool__(self) -> bool:
        """Return whether a call is due or running."""
        return bool(self._due or self._running)

    def call(self, kind: CallbackKind, partitions: Collection[TopicPartition], then: Then, now_ms: int) -> None:
        """Have a method of the listener called, and go on with `then(now_ms)`."""
        if self._subscription.listener is None and not self:
            then(now_ms)
            return
        self._due.append((RebalanceCallback(kind, tuple(sorted(partitions))), then))

    def next(self) -> RebalanceCallback | None:
        """Return the call that is due, None if there is none."""
        return self._due[0][0] if self._due else None

    def start(self) -> RebalanceCallback | None:
        """Return the call that is due, which begins now, None if there is none."""
        if not self._due:
            return None
        self._running.append(self._due.popleft())
        return self._running[-1][0]

    def done(self, error: BaseException | None, now_ms: int) -> None:
        """Take the end of the call that `start` returned last."""
        (kind, _), then = self._running.pop()
        if error is not None:
            wrapped = RebalanceListenerError(f"{kind.value} of the rebalance listener raised {error!r}")
            wrapped.__cause__ = error
            self.errors.append(wrapped)
        then(now_ms)

    def taken_now(self) -> frozenset[TopicPartition]:
        """Return the partitions that calls which are running take from the listener."""
        running = [callback for callback, _ in self._running if callback.kind is not CallbackKind.ASSIGNED]
        return frozenset(partition for callback in running for partition in callback.partitions)

    def forget(self) -> None:
        """Drop the calls that are due: the listener was removed. After one that is running, nothing happens."""
        self._due.clear()
        self._running = [(callback, _do_nothing) for callback, _ in self._running]

    def drop_assigned(self) -> frozenset[TopicPartition]:
        """Drop the calls for new partitions that have not begun; return these partitions."""
        dropped = [callback for callback, _ in self._due if callback.kind is CallbackKind.ASSIGNED]
        self._due = deque(one for one in self._due if one[0].kind is not CallbackKind.ASSIGNED)
        return frozenset(partition for callback in dropped for partition in callback.partitions)


def _do_nothing(now_ms: int) -> None:
    """Go on with nothing."""
