"""What the blocking and the asyncio share consumer share: their parts, and the calls that wait for nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kcli.client.client_config import ClientConfig, read_config, refuse_unknown
from kcli.client.consumer.share_config import ShareConsumerConfig
from kcli.client.consumer.share_consumer import ShareConsumerCore
from kcli.client.consumer.share_records import AcknowledgeType, ShareRecord
from kcli.client.errors import ClientError
from kcli.client.serializers import Deserializer, find_deserializer
from kcli.client.shell.client_builder import Setting, build_network, log_line, property_texts
from kcli.client.shell.consumer_builder import MILLISECONDS
from kcli.client.value_checks import check_callable
from kcli.format.primitives import TopicPartition
from kcli.network.shell.clock import Clock

if TYPE_CHECKING:
    from kcli.client.shell.tokens import TokenFunction

_Result = TypeVar("_Result")
# Gets a partition, offsets whose acknowledgements have a result, and their error, None if they succeeded.
AcknowledgementCommitCallback = Callable[[TopicPartition, frozenset[int], "ClientError | None"], object]
Results = dict[TopicPartition, "ClientError | None"]


def _build_core(
    settings: Mapping[str, Setting], clock: Clock, log: Callable[[str], None], oauth_token: TokenFunction | None
) -> ShareConsumerCore:
    properties = property_texts(settings)
    refuse_unknown(properties, ClientConfig, ShareConsumerConfig)
    network = build_network(properties, clock, log, oauth_token)
    return ShareConsumerCore(network, read_config(ShareConsumerConfig, properties))


class ShareConsumerBase(ABC):
    """A share consumer; `settings` have Kafka's names. A deserializer is a name of kcli.client.serializers,
    or a function that gets the bytes of a key or value that is not null.

    `oauth_token` returns a token for sasl.mechanism=OAUTHBEARER (kcli.client.shell.tokens).
    """

    def __init__(
        self,
        settings: Mapping[str, Setting],
        *,
        key_deserializer: Deserializer | str | None = None,
        value_deserializer: Deserializer | str | None = None,
        log: Callable[[str], None] = log_line,
        oauth_token: TokenFunction | None = None,
    ) -> None:
        """Raises ConfigError."""
        self._clock = Clock()
        self._core = _build_core(settings, self._clock, log, oauth_token)
        self._deserializers = find_deserializer(key_deserializer), find_deserializer(value_deserializer)
        self._api_ms = self._core.network.config.default_api_timeout_ms
        self._callback: AcknowledgementCommitCallback | None = None
        self._is_closed = False
        self._start()

    @abstractmethod
    def _start(self) -> None:
        """Make what runs the core."""

    @abstractmethod
    def _call(self, function: Callable[[int], _Result]) -> _Result:
        """Call a function of the core with the time. Raises IllegalStateError after close, and what the function raises."""

    # ---------------------------------------------------------------------------------------------------- subscription

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics; this replaces the subscription before."""
        self._call(partial(self._core.subscribe, topics))

    def unsubscribe(self) -> None:
        """Read nothing; the member leaves its group."""
        self._call(partial(self._core.subscribe, ()))

    def subscription(self) -> set[str]:
        """Return the subscribed topics."""
        return set(self._core.subscription)

    # --------------------------------------------------------------------------------------------------------- records

    def _collect_some(self, most: int, now_ms: int) -> list[ShareRecord]:
        """Return up to `most` records, deserialized."""
        return self._core.collect(now_ms, *self._deserializers, most)

    # ------------------------------------------------------------------------------------------------- acknowledgements

    def acknowledge(self, record: ShareRecord, kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Say what became of a record of the last poll; it is sent with the next poll or commit.

        Raises TypeError, IllegalStateError.
        """
        if not isinstance(record, ShareRecord):
            raise TypeError(f"acknowledge takes a record of poll, not {record!r}")
        self.acknowledge_offset(record.topic, record.partition, record.offset, kind)

    def acknowledge_offset(
        self, topic: str, partition: int, offset: int, kind: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        """Say what became of the record at an offset, as `acknowledge`."""
        self._call(lambda now_ms: self._core.acknowledge(topic, partition, offset, kind))

    def set_acknowledgement_commit_callback(self, callback: AcknowledgementCommitCallback | None) -> None:
        """Have a function called with the results of acknowledgements, inside later calls of the consumer."""
        check_callable(callback, "the callback")
        self._callback = callback
        self._core.keeps_results = callback is not None

    def _call_back(self) -> None:
        while self._core.results:
            result = self._core.results.popleft()
            if self._callback is not None:
                self._callback(*result)

    def acquisition_lock_timeout(self) -> float | None:
        """Return for how many seconds records are acquired, None before the first fetch was answered."""
        timeout_ms = self._core.fetcher.lock_timeout_ms
        return None if timeout_ms is None else timeout_ms / MILLISECONDS
