"""The positions of partitions that were assigned and have none yet: committed offsets, or a reset.

the partition's position  then
------------------------  ----------------------------------------------------------------------------------
is not looked up          with group.id the committed offset is asked for, as soon as the assignment is settled
is committed              it is the position
is not committed          auto.offset.reset; with none the partition is lost until the application seeks
has an error              asked for again after retry.backoff.ms; an error that stays is reported, too
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from kcli.client.cluster import TopicPartition
from kcli.client.consumer.membership import Membership
from kcli.client.consumer.position_errors import PositionErrors
from kcli.client.consumer.subscription_state import (
    NONE,
    FetchPosition,
    FetchState,
    OffsetAndMetadata,
    SubscriptionState,
)
from kcli.client.errors import ClientError
from kcli.client.network_client import NetworkClient


class InitialPositions:
    """Finds positions; `found(partition, position)` is called with those that are committed, `wake()` after each answer."""

    def __init__(
        self,
        network: NetworkClient,
        subscriptions: SubscriptionState,
        membership: Membership | None,
        errors: PositionErrors,
        found: Callable[[TopicPartition, FetchPosition], None],
        wake: Callable[[], None],
    ) -> None:
        self._network = network
        self._subscriptions = subscriptions
        self._membership = membership
        self._errors = errors
        self._found = found
        self._wake = wake
        self._asked: set[TopicPartition] = set()
        self._without_offset: set[TopicPartition] = set()

    def poll(self, now_ms: int) -> None:
        """Find the positions of partitions that were assigned."""
        busy = self._asked | self._without_offset
        due = [
            partition
            for partition in self._subscriptions.partitions_in(FetchState.INITIALIZING)
            if partition not in busy and (self._subscriptions.state_of(partition).next_retry_ms or now_ms) <= now_ms
        ]
        if not due:
            return
        if self._membership is None:
            if self._subscriptions.default_strategy != NONE:
                for partition in due:
                    self._subscriptions.request_reset(partition)
            return
        if not self._membership.is_ready_to_fetch:
            return
        self._asked.update(due)
        timeout_ms = self._network.config.default_api_timeout_ms
        self._membership.committed(due, partial(self._answered, due), now_ms, timeout_ms)

    def _answered(
        self,
        asked: Collection[TopicPartition],
        found: dict[TopicPartition, OffsetAndMetadata | None] | ClientError,
        now_ms: int,
    ) -> None:
        self._asked.difference_update(asked)
        if isinstance(found, ClientError):
            if not found.is_retriable:
                self._errors.put(found)
            at_ms = now_ms + self._network.config.retry_backoff_ms
            self._network.timer.schedule(at_ms, lambda now_ms: None)
        for partition in asked:
            state = self._subscriptions.find(partition)
            if state is None or state.state is not FetchState.INITIALIZING:
                continue
            if isinstance(found, ClientError):
                state.next_retry_ms = now_ms + self._network.config.retry_backoff_ms
                continue
            committed = found.get(partition)
            if committed is not None:
                self._found(partition, FetchPosition(committed.offset, committed.leader_epoch))
            elif self._subscriptions.default_strategy != NONE:
                self._subscriptions.request_reset(partition)
            else:
                self._without_offset.add(partition)  # until the application seeks
        self._wake()

    def keep(self, assigned: frozenset[TopicPartition]) -> None:
        """Forget the partitions that are not assigned any more."""
        self._asked &= assigned
        self._without_offset &= assigned

    def forget(self, partition: TopicPartition) -> None:
        """Take note that the application has chosen a position."""
        self._without_offset.discard(partition)

    def is_lost(self, partition: TopicPartition) -> bool:
        """Return whether a partition has no position, and gets none before the application seeks."""
        state = self._subscriptions.find(partition)
        if state is None or state.state is not FetchState.INITIALIZING or self._subscriptions.default_strategy != NONE:
            return False
        return self._membership is None or partition in self._without_offset

    def lost_partitions(self) -> list[TopicPartition]:
        """Return the partitions for which `is_lost` holds."""
        return [one for one in self._subscriptions.partitions_in(FetchState.INITIALIZING) if self.is_lost(one)]
