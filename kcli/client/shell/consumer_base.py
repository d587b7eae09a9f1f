"""What the blocking and the asyncio consumer share: their parts, and the calls that wait for nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from kcli.client.cluster import NO_EPOCH
from kcli.client.consumer.arrow_export import ArrowBatch
from kcli.client.consumer.consumer_protocol import TopicPartition
from kcli.client.consumer.consumer_record import ConsumerRecord
from kcli.client.consumer.membership import GroupMetadata
from kcli.client.consumer.offset_fetcher import OffsetAndTimestamp
from kcli.client.consumer.subscription_state import EARLIEST, LATEST, ConsumerRebalanceListener
from kcli.client.errors import WakeupError
from kcli.client.serializers import Deserializer, find_deserializer
from kcli.client.shell.client_builder import Setting, log_line
from kcli.client.shell.consumer_builder import ConsumerInterceptor, Interceptors, build_core, named
from kcli.client.value_checks import OffsetAndMetadata
from kcli.format.primitives import TopicPartition as Pair
from kcli.network.shell.clock import Clock

if TYPE_CHECKING:
    from kcli.client.shell.tokens import TokenFunction

_Result = TypeVar("_Result")


class ConsumerBase(ABC):
    """A consumer; `settings` have Kafka's names. A deserializer is a name of kcli.client.serializers, or a
    function that gets the bytes of a key or value that is not null.

    `oauth_token` returns a token for sasl.mechanism=OAUTHBEARER (kcli.client.shell.tokens).
    """

    def __init__(
        self,
        settings: Mapping[str, Setting],
        *,
        key_deserializer: Deserializer | str | None = None,
        value_deserializer: Deserializer | str | None = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
        log: Callable[[str], None] = log_line,
        oauth_token: TokenFunction | None = None,
    ) -> None:
        """Raises ConfigError."""
        self._clock = Clock()
        self._core = build_core(settings, self._clock, log, oauth_token)
        self._deserializers = find_deserializer(key_deserializer), find_deserializer(value_deserializer)
        self._interceptors = Interceptors(interceptors, log)
        self._api_ms = self._core.network.config.default_api_timeout_ms
        self._is_closed = False
        self._is_seen = False  # whether the interceptors have seen the records that were taken last
        self._start()

    @abstractmethod
    def _start(self) -> None:
        """Make what runs the core."""

    @abstractmethod
    def _call(self, function: Callable[[int], _Result]) -> _Result:
        """Call a function of the core with the time. Raises IllegalStateError after close, and what the function raises."""

    def _call_lightly(self, function: Callable[[int], _Result]) -> _Result:
        """Call a function of the core that seldom has effects, as `_call`."""
        return self._call(function)

    # ---------------------------------------------------------------------------------------------------- subscriptions

    def subscribe(self, topics: Iterable[str], listener: ConsumerRebalanceListener | None = None) -> None:
        """Let the group assign partitions of topics; this replaces the subscription before."""
        self._call(lambda now_ms: self._core.subscribe(topics, listener, now_ms))

    def subscribe_pattern(self, pattern: str, listener: ConsumerRebalanceListener | None = None) -> None:
        """Let the group assign partitions of all topics whose whole names match a regular expression.

        With group.protocol=consumer the coordinator matches (RE2 syntax), internal topics included as with Apache Kafka:
        exclude.internal.topics is for classic groups.
        """
        self._call(lambda now_ms: self._core.subscribe_pattern(pattern, listener, now_ms))

    def assign(self, partitions: Iterable[Pair]) -> None:
        """Read these partitions, without a group; this replaces the partitions before.

        With group.id and enable.auto.commit, what was consumed of those before is committed, without waiting.
        """
        self._call(lambda now_ms: self._core.assign(partitions, now_ms))

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        return set(named(self._core.subscriptions.assigned_partitions))

    def subscription(self) -> set[str]:
        """Return the subscribed topics."""
        return set(self._core.subscriptions.subscription)

    def _begin_listener_call(self) -> Callable[[], object] | None:
        """Begin the call of the rebalance listener that the membership waits for; return it, None if there is none.

        `_end_listener_call` is called after it.
        """
        membership = self._core.membership
        callback = None if membership is None else self._call_lightly(lambda now_ms: membership.start_callback())
        if callback is None:
            return None
        listener, partitions = self._core.subscriptions.listener, named(callback.partitions)
        return lambda: None if listener is None else getattr(listener, callback.kind.value)(partitions)

    def _end_listener_call(self, error: BaseException | None) -> None:
        membership = self._core.membership
        if membership is not None:
            self._call(lambda now_ms: membership.callback_done(error, now_ms))

    def _raise_listener_error(self) -> None:
        """Raise what the listener has raised inside `unsubscribe` or `close`: no later call would."""
        membership = self._core.membership
        error = None if membership is None else membership.take_listener_error()
        if error is not None:
            raise error

    # ---------------------------------------------------------------------------------------------------------- records

    def _intercept(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return what the interceptors make of the records that were taken last."""
        return records if self._is_seen or not records else self._interceptors.on_consume(records)

    def _collect_some(self, most: int, now_ms: int) -> list[ConsumerRecord]:
        """Return up to `most` records, deserialized."""
        return self._core.collect(now_ms, *self._deserializers, most)

    def _take_arrow(self, max_rows: int, now_ms: int) -> list[ArrowBatch]:
        return [ArrowBatch(columns) for columns in self._core.collect_columns(now_ms, max_rows)]

    # -------------------------------------------------------------------------------------------------------- positions

    def seek(self, partition: Pair, offset: int | OffsetAndMetadata) -> None:
        """Continue a partition at an offset."""
        target = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset, NO_EPOCH)
        self._call(lambda now_ms: self._core.seek(partition, target.offset, target.leader_epoch, now_ms))

    def seek_to_beginning(self, partitions: Iterable[Pair] = ()) -> None:
        """Continue partitions, by default all, at their first offsets."""
        self._call(lambda now_ms: self._core.reset(partitions, EARLIEST, now_ms))

    def seek_to_end(self, partitions: Iterable[Pair] = ()) -> None:
        """Continue partitions, by default all, at their ends."""
        self._call(lambda now_ms: self._core.reset(partitions, LATEST, now_ms))

    def pause(self, partitions: Iterable[Pair]) -> None:
        """Return no records of partitions until `resume`."""
        self._call(lambda now_ms: self._core.pause(partitions, now_ms))

    def resume(self, partitions: Iterable[Pair]) -> None:
        """Return records of partitions again."""
        self._call(lambda now_ms: self._core.resume(partitions, now_ms))

    def paused(self) -> set[TopicPartition]:
        """Return the partitions that are paused."""
        return set(named(self._core.subscriptions.paused_partitions))

    # ------------------------------------------------------------------------------------------------------------ others

    def _leave_block(self, kind: type[BaseException] | None) -> None:
        """Take the end of a `with` block: one that failed had not done its work with the records of the last poll."""
        membership = self._core.membership
        if membership is not None and kind is not None and not issubclass(kind, WakeupError):
            membership.disable_auto_commit()

    def _report_auto_commits(self) -> None:
        """Have the interceptors see the automatic commits that have ended."""
        while (committed := self._core.take_auto_commit()) is not None:
            self._interceptors.on_commit(committed)

    def unready_brokers(self) -> list[str]:
        """Return a sentence for each broker to which a connection is needed and not there, with the reason."""
        return self._core.network.unready()

    def group_metadata(self) -> GroupMetadata:
        """Return what a transactional producer sends of this consumer."""
        return self._core.group_metadata()

    def enforce_rebalance(self, reason: str = "") -> None:
        """Have the group assigned anew. Raises TypeError."""
        if not isinstance(reason, str):
            raise TypeError(f"the reason is a text, not {reason!r}")
        self._call(lambda now_ms: self._core.enforce_rebalance(reason, now_ms))

    def current_lag(self, partition: Pair) -> int | None:
        """Return how many offsets are after the position of a partition, None if that is not known yet."""
        return self._call(lambda now_ms: self._core.lag(partition))

    def metrics(self) -> dict[str, float]:
        """Return what is counted, by Kafka's names (kcli.client.consumer.fetch_metrics)."""
        return self._call_lightly(self._core.fetcher.metrics.values)


def offsets_of(found: Mapping[TopicPartition, OffsetAndTimestamp | None]) -> dict[TopicPartition, int]:
    """Return the offsets of partitions that have one."""
    return {partition: one.offset for partition, one in found.items() if one is not None}
