"""The positions of partitions that were assigned and have none yet: committed offsets, or a reset.

the partition's position  then
------------------------  ----------------------------------------------------------------------------------
is not looked up          with group.id the committed offset is asked for, as soon as the assignment is settled, or
                          at once for a call of `position`, such as one of the rebalance listener
is committed              it is the position
is not committed          auto.offset.reset; with none the partition is lost until the application seeks
has an error              asked for again after retry.backoff.ms, and an error that stays is reported. An error that
                          says that the member is not in its group any more is not reported: the member loses the
                          partitions anyway
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from kcli.client.consumer.membership import Membership
from kcli.client.consumer.position_errors import PositionErrors
from kcli.client.consumer.subscription_state import (
    NONE,
    FetchPosition,
    FetchState,
    SubscriptionState,
    TopicPartitionState,
)
from kcli.client.errors import ClientError, KafkaError
from kcli.client.network_client import NetworkClient
from kcli.client.value_checks import OffsetAndMetadata
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes

_NOT_IN_GROUP = frozenset((error_codes.UNKNOWN_MEMBER_ID, error_codes.FENCED_MEMBER_EPOCH, error_codes.STALE_MEMBER_EPOCH))


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
        self._asked: dict[TopicPartition, TopicPartitionState] = {}
        self._without_offset: set[TopicPartition] = set()

    def poll(self, now_ms: int, awaited: Collection[TopicPartition] = ()) -> None:
        """Find the positions of partitions that were assigned; a call of the application waits for those of `awaited`."""
        due = {
            partition: state
            for partition in self._subscriptions.partitions_in(FetchState.INITIALIZING)
            if self._is_due(partition, state := self._subscriptions.state_of(partition), now_ms)
        }
        if self._membership is not None and not self._membership.is_ready_to_fetch:
            due = {partition: state for partition, state in due.items() if partition in awaited}
        if not due:
            return
        if self._membership is None:
            if self._subscriptions.default_strategy != NONE:
                for partition in due:
                    self._subscriptions.request_reset(partition)
            return
        self._asked |= due
        timeout_ms = self._network.config.default_api_timeout_ms
        self._membership.committed(list(due), partial(self._answered, due), now_ms, timeout_ms)

    def _is_due(self, partition: TopicPartition, state: TopicPartitionState, now_ms: int) -> bool:
        is_asked = self._asked.get(partition) is state
        return not is_asked and partition not in self._without_offset and (state.next_retry_ms or now_ms) <= now_ms

    def _answered(
        self,
        asked: Mapping[TopicPartition, TopicPartitionState],
        found: dict[TopicPartition, OffsetAndMetadata | None] | ClientError,
        now_ms: int,
    ) -> None:
        if isinstance(found, ClientError):
            if not found.is_retriable and not (isinstance(found, KafkaError) and found.code in _NOT_IN_GROUP):
                self._errors.put(found)
            at_ms = now_ms + self._network.config.retry_backoff_ms
            self._network.timer.schedule(at_ms, lambda now_ms: None)
        for partition, state in asked.items():
            if self._asked.get(partition) is state:
                del self._asked[partition]
            # A partition that came back has another state: another member may have committed since the request.
            if self._subscriptions.find(partition) is not state or state.state is not FetchState.INITIALIZING:
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
        self._asked = {partition: state for partition, state in self._asked.items() if partition in assigned}
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
        if self._subscriptions.default_strategy != NONE:
            return []
        return [one for one in self._subscriptions.partitions_in(FetchState.INITIALIZING) if self.is_lost(one)]
