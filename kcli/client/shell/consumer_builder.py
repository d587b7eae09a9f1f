"""What the blocking consumer and the asyncio consumer have in common: how they are made, and the words of their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from kcli.client.client_config import ClientConfig, read_config, refuse_unknown
from kcli.client.consumer.consumer import ConsumerCore
from kcli.client.consumer.consumer_config import ConsumerConfig
from kcli.client.consumer.consumer_protocol import TopicPartition
from kcli.client.consumer.consumer_record import ConsumerRecord
from kcli.client.consumer.making_membership import make_membership
from kcli.client.shell.client_builder import FOREVER_S, Setting, build_network, property_texts
from kcli.client.value_checks import OffsetAndMetadata, check_timeout
from kcli.format.primitives import TopicPartition as Pair
from kcli.network.shell.clock import Clock

if TYPE_CHECKING:
    from kcli.client.shell.tokens import TokenFunction

_Value = TypeVar("_Value")
MILLISECONDS = 1000
# The rows of one poll_arrow, unless the caller says otherwise.
ARROW_ROWS = 100_000


class ConsumerInterceptor(Protocol):
    """What may see, and replace, the records that poll returns (Kafka: ConsumerInterceptor)."""

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return the records that the application gets."""
        ...

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Take offsets that were committed, by the application or automatically."""
        ...

    def close(self) -> None:
        """Take the end of the consumer."""
        ...


def build_core(
    settings: Mapping[str, Setting], clock: Clock, log: Callable[[str], None], oauth_token: TokenFunction | None
) -> ConsumerCore:
    """Make the core of a consumer from its settings. Raises ConfigError."""
    properties = property_texts(settings)
    refuse_unknown(properties, ClientConfig, ConsumerConfig)
    network = build_network(properties, clock, log, oauth_token)
    return ConsumerCore(network, read_config(ConsumerConfig, properties), make_membership, log)


def milliseconds(timeout: float | None, default_ms: int = 0) -> int:
    """Return a timeout in seconds as ms; None is `default_ms`, and infinity a time that never comes. Raises TypeError."""
    check_timeout(timeout)
    return default_ms if timeout is None else round(min(max(timeout, 0), FOREVER_S) * MILLISECONDS)


class Interceptors:
    """The interceptors of one consumer, called one after the other; what they raise is logged (Kafka: ConsumerInterceptors)."""

    def __init__(self, interceptors: Sequence[ConsumerInterceptor], log: Callable[[str], None]) -> None:
        self._interceptors = tuple(interceptors)
        self._log = log

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return what the interceptors make of records; one that fails changes nothing."""
        for interceptor in self._interceptors:
            try:
                records = interceptor.on_consume(records)
            except Exception as error:
                self._failed(interceptor, error)
        return records

    def on_commit(self, offsets: Mapping[Pair, OffsetAndMetadata]) -> None:
        """Report offsets that were committed."""
        for interceptor in self._interceptors:
            try:
                interceptor.on_commit(by_name(offsets))
            except Exception as error:
                self._failed(interceptor, error)

    def close(self) -> None:
        """Report the end of the consumer."""
        for interceptor in self._interceptors:
            try:
                interceptor.close()
            except Exception as error:
                self._failed(interceptor, error)

    def _failed(self, interceptor: ConsumerInterceptor, error: Exception) -> None:
        self._log(f"the interceptor {interceptor!r} has failed: {error!r}")


def by_name(values: Mapping[Pair, _Value]) -> dict[TopicPartition, _Value]:
    """Return a mapping of partitions with the named tuples that an application gets."""
    return {TopicPartition(*partition): value for partition, value in values.items()}


def named(partitions: Iterable[Pair]) -> list[TopicPartition]:
    """Return partitions as the named tuples that an application gets."""
    return [TopicPartition(*partition) for partition in partitions]
