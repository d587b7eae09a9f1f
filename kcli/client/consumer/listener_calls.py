"""The calls of a rebalance listener that a membership waits for: one at a time, in the application's own calls.

asked for               the listener                    then
----------------------  ------------------------------  -------------------------------------------------------------
`call`, no listener     is not called                   at once
`call`, with a listener is called by a shell            after `done`; an error that it raised is kept for the
                                                        application, and the membership goes on
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

    def __bool__(self) -> bool:
        """Return whether a call is due."""
        return bool(self._due)

    def call(self, kind: CallbackKind, partitions: Collection[TopicPartition], then: Then, now_ms: int) -> None:
        """Have a method of the listener called, and go on with `then(now_ms)`."""
        if self._subscription.listener is None and not self._due:
            then(now_ms)
            return
        self._due.append((RebalanceCallback(kind, tuple(sorted(partitions))), then))

    def next(self) -> RebalanceCallback | None:
        """Return the call that is due, None if there is none."""
        return self._due[0][0] if self._due else None

    def done(self, error: Exception | None, now_ms: int) -> None:
        """Take the end of the call that `next` returned."""
        (kind, _), then = self._due.popleft()
        if error is not None:
            wrapped = RebalanceListenerError(f"{kind.value} of the rebalance listener raised {error!r}")
            wrapped.__cause__ = error
            self.errors.append(wrapped)
        then(now_ms)

    def forget(self) -> None:
        """Drop the calls that are due: the listener was removed."""
        self._due.clear()
