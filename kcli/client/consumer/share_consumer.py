"""A share consumer without time, sockets and threads (KIP-932; Kafka: ShareConsumerImpl).

the application         the core
----------------------  --------------------------------------------------------------------------------------------------
polls                   acknowledges what the last poll returned (implicit), or refuses the call as long as something is
                        not acknowledged (explicit); then renewed records are returned again, or new ones are fetched
acknowledges            keeps it until the next poll or commit: it may be changed until then
commits                 sends the acknowledgements; the result is an error or None for each partition
closes                  sends explicit acknowledgements, ends the sessions, which releases the rest (with implicit all that
                        the last poll returned, as Kafka does), and leaves the group

a renewal (KIP-1222)    then
----------------------  ----------------------------------------------------------------------------------------------
succeeds                the next poll returns the record again, to be acknowledged again
fails                   the record is not the member's any more
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from kcli.client.cluster import Cluster
from kcli.client.consumer.application_waits import ApplicationWaits, Done
from kcli.client.consumer.share_config import EXPLICIT, ShareConsumerConfig, check_share_config
from kcli.client.consumer.share_fetcher import Flushed, ShareFetcher
from kcli.client.consumer.share_membership import ShareMembership
from kcli.client.consumer.share_records import AcknowledgeType, ShareRecord
from kcli.client.consumer.share_session import PartitionId
from kcli.client.errors import AuthenticationError, ClientError, IllegalStateError, KafkaError, KafkaTimeoutError
from kcli.client.network_client import NetworkClient
from kcli.client.serializers import Deserializer
from kcli.client.value_checks import checked_topics
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes

_LASTING_TOPIC_ERRORS = (error_codes.TOPIC_AUTHORIZATION_FAILED, error_codes.INVALID_TOPIC_EXCEPTION)


class AcknowledgementResult(NamedTuple):
    """The result of acknowledgements of one partition, for the callback of the application."""

    partition: TopicPartition
    offsets: frozenset[int]
    error: ClientError | None


class _Held(NamedTuple):
    """A record that a poll returned, and where it was acquired."""

    record: ShareRecord
    node_id: int
    partition_id: PartitionId


class ShareConsumerCore:
    """One share consumer; `results` has what the acknowledgement commit callback is to be called with."""

    def __init__(self, network: NetworkClient, config: ShareConsumerConfig) -> None:
        """Raises ConfigError."""
        check_share_config(config)
        self.network = network
        self.config = config
        self.membership = ShareMembership(network, config)
        self.errors: deque[ClientError] = deque()
        self.results: deque[AcknowledgementResult] = deque()
        self.keeps_results = False
        self.fetcher = ShareFetcher(network, config, self.membership, self.errors, self._resulted, self._session_lost)
        self._held: dict[tuple[str, int, int], _Held] = {}
        self._kinds: dict[tuple[str, int, int], AcknowledgeType] = {}
        self._renewing: dict[tuple[str, int, int], _Held] = {}
        self._renewed: list[tuple[float, _Held]] = []  # with the time at which the lock expires
        self.waits = ApplicationWaits(network.timer)
        self._is_closed = False
        network.metadata.add_listener(self._metadata_updated)
        network.add_refusal_listener(self._refused)

    # ------------------------------------------------------------------------------------------------- after each event

    def poll(self, now_ms: int) -> None:
        """Do what is due after calls and events."""
        if self._is_closed:
            return
        self._want_topics()
        self.fetcher.poll(now_ms)
        self.waits.check(now_ms)

    def _want_topics(self) -> None:
        metadata = self.network.metadata
        wanted = self.membership.subscription | set(self.membership.topics.names.values())
        if wanted != metadata.wanted_topics:
            for topic in metadata.wanted_topics - wanted:
                metadata.forget_topic(topic)
            is_new = [metadata.want_topic(topic) for topic in sorted(wanted)]
            if any(is_new):
                self.network.request_update()

    def _metadata_updated(self, cluster: Cluster, now_ms: int) -> None:
        for topic, code in self.network.metadata.topic_errors.items():
            if code in _LASTING_TOPIC_ERRORS and topic in self.membership.subscription:
                self.errors.append(KafkaError(code, f"the metadata of topic {topic}"))

    def _refused(self, error: ClientError, node_id: int | None, now_ms: int) -> None:
        """Take a broker that TLS or SASL does not let the consumer use: the next poll raises the newest such error."""
        if not any(isinstance(one, AuthenticationError) for one in self.errors):
            self.errors.append(error)

    def has_work(self, now_ms: int) -> bool:
        """Return whether a poll of the application has something to return, raise or call."""
        is_failed = self.errors or self.membership.errors or self.waits.is_woken
        return bool(is_failed or self.fetcher.buffer or self._renewed or self.results)

    def await_work(self, done: Done, now_ms: int, timeout_ms: int) -> None:
        """Call `done` as soon as `has_work`, at the latest after `timeout_ms`; one call at a time."""
        # A caller that waits is there: its time of max.poll.interval.ms begins again.
        timeout_ms = min(timeout_ms, max(self.membership.watch.next_ms() - now_ms, 1))
        self.waits.await_work(self.has_work, done, now_ms, timeout_ms)

    def wakeup(self, now_ms: int) -> None:
        """Let the poll or commit under way, or the next one, end with WakeupError."""
        self.waits.wakeup(now_ms)

    # ----------------------------------------------------------------------------------------------------- subscription

    @property
    def subscription(self) -> frozenset[str]:
        """The subscribed topics."""
        return self.membership.subscription

    def subscribe(self, topics: Iterable[str], now_ms: int) -> None:
        """Read these topics, and no others; without any the member leaves the group. Raises TypeError, KafkaError."""
        self.membership.subscribe(checked_topics(topics), now_ms)

    # ---------------------------------------------------------------------------------------------------------- records

    def polled(self, now_ms: int) -> None:
        """Take the start of a poll of the application. Raises ClientError."""
        if not self.membership.subscription:
            raise IllegalStateError("the share consumer is not subscribed to topics: subscribe first")
        self._say(is_poll=True)
        self.waiting(now_ms)

    def waiting(self, now_ms: int) -> None:
        """Take note that a poll waits for records. Raises ClientError."""
        self.membership.polled(now_ms)
        self.waits.raise_if_woken()
        error = self.errors.popleft() if self.errors else self.membership.take_error()
        if error is not None:
            raise error
        self.fetcher.is_wanted = not self._renewed

    def collect(
        self,
        now_ms: int,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        most: int | None = None,
    ) -> list[ShareRecord]:
        """Return up to max.poll.records records, none if there is none now. Raises FetchedRecordError."""
        held = [one for expires_ms, one in self._renewed if expires_ms > now_ms]
        self._renewed = []
        if not held:
            wanted = self.config.max_poll_records if most is None else most
            found = self.fetcher.take(wanted, now_ms, key_deserializer, value_deserializer)
            held = [_Held(record, one.node_id, (one.topic_id, record.partition)) for one, record in found]
        if held:
            # A fetch now could get the same records once more, if their lock expires before they are acknowledged.
            self.fetcher.is_wanted = False
        for one in held:
            self._held[_place(one.record)] = one
        return [one.record for one in held]

    def put_back(self, records: Iterable[ShareRecord]) -> None:
        """Release collected records that are not returned."""
        for record in records:
            held = self._held.pop(_place(record), None)
            if held is not None:
                place = (record.topic, record.partition)
                self.fetcher.acknowledge(held.node_id, held.partition_id, place, {record.offset: int(AcknowledgeType.RELEASE)})

    def poll_ended(self) -> None:
        """Take the end of a poll: no more records are acquired until the next one."""
        self.fetcher.is_wanted = False

    def acknowledge(self, topic: str, partition: int, offset: int, kind: AcknowledgeType) -> None:
        """Say what became of a record that the last poll returned. Raises IllegalStateError, ValueError."""
        kind = AcknowledgeType(kind)
        if self.config.share_acknowledgement_mode != EXPLICIT:
            raise IllegalStateError("records are acknowledged one by one with share.acknowledgement.mode=explicit only")
        if (topic, partition, offset) not in self._held:
            raise IllegalStateError(f"{topic}-{partition}@{offset} is not a record that waits for its acknowledgement")
        if kind is AcknowledgeType.GAP:
            raise IllegalStateError("a record that was returned is not a gap")
        self._kinds[topic, partition, offset] = kind

    def _say(self, is_poll: bool = False) -> None:
        """Give the acknowledgements to the fetcher. Raises IllegalStateError for a poll before all are acknowledged."""
        kinds = self._kinds
        if self.config.share_acknowledgement_mode != EXPLICIT:
            kinds = dict.fromkeys(self._held, AcknowledgeType.ACCEPT)
        elif is_poll and len(kinds) < len(self._held):
            topic, partition, offset = next(one for one in self._held if one not in kinds)
            raise IllegalStateError(
                f"{topic}-{partition}@{offset} is not acknowledged: with share.acknowledgement.mode=explicit all records "
                "of a poll are acknowledged before the next one"
            )
        said: dict[tuple[int, PartitionId, str], dict[int, int]] = {}
        for place, kind in kinds.items():
            held = self._held.pop(place)
            if kind is AcknowledgeType.RENEW:
                self._renewing[place] = held
            said.setdefault((held.node_id, held.partition_id, place[0]), {})[place[2]] = int(kind)
        self._kinds = {}
        for (node_id, partition_id, topic), offsets in said.items():
            self.fetcher.acknowledge(node_id, partition_id, (topic, partition_id[1]), offsets)

    def _resulted(
        self,
        partition_id: PartitionId,
        partition: TopicPartition,
        kinds: dict[int, int],
        error: ClientError | None,
        now_ms: int,
    ) -> None:
        """Take the result of acknowledgements."""
        for offset, kind in kinds.items():
            if kind == AcknowledgeType.RENEW:
                held = self._renewing.pop((*partition, offset), None)
                if held is not None and error is None:
                    self._renewed.append((now_ms + (self.fetcher.lock_timeout_ms or math.inf), held))
        if self.keeps_results:
            self.results.append(AcknowledgementResult(partition, frozenset(kinds), error))

    def _session_lost(self, node_id: int) -> None:
        """Forget renewed records of a session that is over."""
        self._renewed = [(expires_ms, held) for expires_ms, held in self._renewed if held.node_id != node_id]

    def commit(self, done: Flushed, now_ms: int, timeout_ms: int | None = None) -> None:
        """Send the acknowledgements; `done` gets the error of each partition, or None, when all have results.

        What has no result after `timeout_ms` has a KafkaTimeoutError.
        """
        self._say()
        waiting = self.fetcher.unsaid_partitions()
        is_done = False

        def flushed(results: dict[TopicPartition, ClientError | None], now_ms: int) -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                if expiry is not None:
                    expiry.cancel()
                done(results, now_ms)

        def expired(now_ms: int) -> None:
            error = KafkaTimeoutError(f"the acknowledgements have no result after {timeout_ms} ms")
            flushed(dict.fromkeys(waiting, error), now_ms)

        expiry = None if timeout_ms is None else self.network.timer.schedule(now_ms + timeout_ms, expired)
        self.fetcher.flush(flushed, now_ms)

    # ------------------------------------------------------------------------------------------------------------ close

    def close(self, done: Done, now_ms: int) -> None:
        """Send what was acknowledged explicitly, end the sessions, which releases the other records, and leave the group."""
        if self.config.share_acknowledgement_mode == EXPLICIT:
            self._say()  # a caller that accepts implicitly may have failed in the middle of its records

        def flushed(results: dict[TopicPartition, ClientError | None], now_ms: int) -> None:
            self.membership.leave(left, now_ms)

        def left(error: ClientError | None, now_ms: int) -> None:
            self._is_closed = True
            self.waits.end_wait(now_ms)
            done(error, now_ms)

        self.fetcher.close(flushed, now_ms)


def _place(record: ShareRecord) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset
