"""Fetching of records: which partitions are asked for at which broker, and what the answers mean (Kafka: Fetcher).

    a broker is asked     if it has no request of this consumer under way and does not back off, for the partitions that are
                          fetchable and that it leads, or that it is the preferred replica of (client.rack, KIP-392)
    a partition is asked  from its position if nothing of it is buffered; if one answer is buffered, from the end of that answer
    for                   if less than half of fetch.max.bytes is buffered in all

Memory: an answer has at most fetch.max.bytes (a first batch may be larger), and less if that plus what waits and what other
brokers were asked for would be above twice fetch.max.bytes.

    error of a partition                             then
    -----------------------------------------------  -----------------------------------------------------------------------
    OFFSET_OUT_OF_RANGE                              from a follower: the leader is asked; else auto.offset.reset, and without
                                                     one OffsetOutOfRangeError
    FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER ...  the leader that the answer names (KIP-951), or new metadata; a position
                                                     whose leader changed is validated before the next fetch (KIP-320)
    UNKNOWN_LEADER_EPOCH                             asked again after retry.backoff.ms: the broker is behind
    UNKNOWN_TOPIC_..., UNKNOWN_TOPIC_ID ...          new metadata
    TOPIC_AUTHORIZATION_FAILED, CORRUPT_MESSAGE ...  raised by poll

A broker without a usable version of Fetch is asked again after retry.backoff.ms, and poll raises UnsupportedVersionError. An
answer to an earlier position (the caller has sought since) is dropped.

The fetch session with a broker is in kcli.network.fetch_session.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kcli.client.client_config import ClientConfig
from kcli.client.cluster import NO_LEADER
from kcli.client.consumer.completed_fetch import CompletedFetch
from kcli.client.consumer.consumer_config import READ_COMMITTED, ConsumerConfig
from kcli.client.consumer.fetch_buffer import FetchBuffer
from kcli.client.consumer.fetch_metrics import FetchMetrics
from kcli.client.consumer.position_errors import PositionErrors
from kcli.client.consumer.subscription_state import (
    NO_NODE,
    NONE,
    FetchState,
    SubscriptionState,
    TopicPartitionState,
)
from kcli.client.errors import KafkaError, OffsetOutOfRangeError
from kcli.client.metadata import ZERO_UUID, LeaderIdAndEpoch, Node
from kcli.client.network_client import NetworkClient, failure_error
from kcli.format import limits
from kcli.format.primitives import TopicPartition
from kcli.format.record_scan import RecordColumns
from kcli.log.report_line import Line
from kcli.network.fetch_session import (
    FetchAnswerError,
    FetchLimits,
    FetchPartition,
    FetchSession,
    FetchSessionError,
    Wanted,
)
from kcli.network.peer_request import Answer, PeerFailure
from kcli.protocol import error_codes
from kcli.protocol.apis import FETCH
from kcli.protocol.message import Message

# Answers of one partition that wait, at most: one that is being taken, and the next one.
MOST_ANSWERS = 2
_LEADER_ERRORS = (
    error_codes.NOT_LEADER_OR_FOLLOWER,
    error_codes.REPLICA_NOT_AVAILABLE,
    error_codes.KAFKA_STORAGE_ERROR,
    error_codes.FENCED_LEADER_EPOCH,
    error_codes.OFFSET_NOT_AVAILABLE,
    error_codes.LEADER_NOT_AVAILABLE,
)
_TOPIC_ERRORS = (
    error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    error_codes.UNKNOWN_TOPIC_ID,
    error_codes.INCONSISTENT_TOPIC_ID,
)
_WAITING_ERRORS = (error_codes.UNKNOWN_LEADER_EPOCH, error_codes.UNKNOWN_SERVER_ERROR)


class _Broker:
    """The fetches of one broker."""

    __slots__ = ("asked_bytes", "is_asked", "retry_at_ms", "session")

    def __init__(self) -> None:
        self.session = FetchSession()
        self.is_asked = False
        self.asked_bytes = 0
        self.retry_at_ms = 0


class Fetcher:
    """Fetches the partitions of one consumer into `buffer`; `errors` wait to be raised by poll.

    `log(line)` gets a sentence for each answer that cannot be used.
    """

    def __init__(
        self, network: NetworkClient, config: ConsumerConfig, subscriptions: SubscriptionState, log: Callable[[str], None]
    ) -> None:
        self.metrics = FetchMetrics()
        self.errors = PositionErrors()
        self._network = network
        self._client: ClientConfig = network.config
        self._config = config
        self._subscriptions = subscriptions
        self._log = log
        self._is_read_committed = config.isolation_level == READ_COMMITTED
        self.buffer = FetchBuffer(subscriptions, self.metrics, self._is_read_committed)
        self._columns = RecordColumns(limits.SCAN_WINDOW_RECORDS)
        self._brokers: dict[int, _Broker] = {}
        self._retry_at_ms: dict[TopicPartition, int] = {}
        self._is_due = True
        self._seen_removals = 0
        self._is_closed = False

    @property
    def is_due(self) -> bool:
        """Whether the next poll may ask brokers."""
        return self._is_due or self.buffer.removals != self._seen_removals

    def wake(self) -> None:
        """Let the next poll check what can be fetched: positions, assignment, pauses or leaders have changed."""
        self._is_due = True

    def _wake_later(self, now_ms: int) -> None:
        """Check again after retry.backoff.ms."""
        self._network.timer.schedule(now_ms + self._client.retry_backoff_ms, lambda now_ms: self.wake())

    # --------------------------------------------------------------------------------------------------------- requests

    def poll(self, now_ms: int) -> None:
        """Ask the brokers that can be asked."""
        if not self.is_due or self._is_closed:
            return
        self._is_due, self._seen_removals = False, self.buffer.removals
        for node_id, wanted in self._wanted_by_broker(now_ms).items():
            self._ask(node_id, wanted, now_ms)

    def _wanted_by_broker(self, now_ms: int) -> dict[int, Wanted]:
        """Return what to ask each broker for that can be asked now."""
        found: dict[int, Wanted] = {}
        metadata = self._network.metadata
        may_fetch_ahead = self.buffer.size_bytes < self._config.fetch_max_bytes // 2
        for partition in self._subscriptions.partitions_in(FetchState.FETCHING):
            state = self._subscriptions.state_of(partition)
            if not state.is_fetchable or state.position is None or self._retry_at_ms.get(partition, now_ms) > now_ms:
                continue
            offset = self.buffer.next_fetch_offset(partition, state.position.offset)
            waiting = self.buffer.count(partition)
            if offset is None or waiting >= MOST_ANSWERS or (waiting and not may_fetch_ahead):
                continue
            node_id = self._node_for(partition, state, now_ms)
            if node_id == NO_LEADER:
                self._network.request_update()
                continue
            broker = self._brokers.get(node_id)
            if broker is not None and (broker.is_asked or broker.retry_at_ms > now_ms):
                continue
            topic_id = metadata.topic_ids.get(partition[0], ZERO_UUID)
            max_bytes = self._config.max_partition_fetch_bytes
            wanted = FetchPartition(topic_id, offset, max_bytes, state.position.leader_epoch)
            found.setdefault(node_id, {})[partition] = wanted
        return found

    def _node_for(self, partition: TopicPartition, state: TopicPartitionState, now_ms: int) -> int:
        """Return the broker to fetch a partition from: the preferred replica, as long as it is one, or the leader."""
        leader = self._network.metadata.cluster.leader_for(*partition)
        if state.preferred_replica == NO_NODE:
            return leader
        if state.preferred_until_ms <= now_ms or state.preferred_replica not in self._network.metadata.nodes:
            state.preferred_replica = NO_NODE
            return leader
        return state.preferred_replica

    def _limits(self) -> FetchLimits:
        config = self._config
        asked = sum(broker.asked_bytes for broker in self._brokers.values())
        left = 2 * config.fetch_max_bytes - self.buffer.size_bytes - asked
        max_bytes = min(config.fetch_max_bytes, max(left, config.max_partition_fetch_bytes))
        isolation = int(self._is_read_committed)
        return FetchLimits(config.fetch_max_wait_ms, config.fetch_min_bytes, max_bytes, isolation, self._client.client_rack)

    def _ask(self, node_id: int, wanted: Wanted, now_ms: int) -> None:
        broker = self._brokers.setdefault(node_id, _Broker())
        asked = self._limits()
        broker.is_asked, broker.asked_bytes = True, asked.max_bytes
        request = partial(broker.session.request, wanted, asked)
        self._network.send(node_id, FETCH, request, partial(self._answered, node_id, broker, now_ms))

    # ---------------------------------------------------------------------------------------------------------- answers

    def _answered(self, node_id: int, broker: _Broker, asked_ms: int, answer: Answer, now_ms: int) -> None:
        broker.is_asked, broker.asked_bytes = False, 0
        self._is_due = True
        if self._is_closed:
            return
        if isinstance(answer, PeerFailure):
            broker.session.failed()
            if answer.is_lasting:
                self.errors.put(failure_error(answer, FETCH))
            broker.retry_at_ms = now_ms + self._client.retry_backoff_ms
            for partition in broker.session.partitions:
                state = self._subscriptions.find(partition)
                if state is not None:
                    state.preferred_replica = NO_NODE
            self._network.request_update()
            self._wake_later(now_ms)
            return
        asked = broker.session.partitions
        try:
            found = broker.session.answered(answer)
        except FetchAnswerError as error:
            if isinstance(error, FetchSessionError):
                self._log(Line(f"the fetch session with broker {node_id} is made again: {error}", broker=node_id))
            else:
                self._log(f"an answer of broker {node_id} to Fetch is not used: {error}")
            broker.retry_at_ms = now_ms + self._client.retry_backoff_ms
            self._wake_later(now_ms)
            return
        size_bytes = sum(len(one.records or b"") for _, one in found)
        self.metrics.fetched(size_bytes, now_ms - asked_ms, now_ms)
        self._take_leaders(answer, found, now_ms)
        for partition, one in found:
            self._take(node_id, partition, asked[partition].fetch_offset, one, now_ms)

    def _take_leaders(self, answer: Message, found: list[tuple[TopicPartition, Message]], now_ms: int) -> None:
        """Take the leaders that the answer names for partitions with an error (KIP-951)."""
        named = {
            partition: LeaderIdAndEpoch(one.current_leader.leader_id, one.current_leader.leader_epoch)
            for partition, one in found
            if one.error_code in (error_codes.NOT_LEADER_OR_FOLLOWER, error_codes.FENCED_LEADER_EPOCH)
            and one.current_leader.leader_id != NO_LEADER
        }
        if named:
            nodes = [Node(one.node_id, one.host, one.port, one.rack) for one in answer.node_endpoints]
            self._network.metadata.update_leaders(named, nodes, now_ms)

    def _take(self, node_id: int, partition: TopicPartition, asked_offset: int, one: Message, now_ms: int) -> None:
        """Take the part of an answer for one partition."""
        state = self._subscriptions.find(partition)
        if state is None or state.state is not FetchState.FETCHING or state.position is None:
            return
        if self.buffer.next_fetch_offset(partition, state.position.offset) != asked_offset:
            return
        if one.error_code:
            self._failed(node_id, partition, asked_offset, state, one.error_code, now_ms)
            return
        self._retry_at_ms.pop(partition, None)
        self.errors.drop(partition)
        if one.high_watermark >= 0:
            state.high_watermark = one.high_watermark
        if one.last_stable_offset >= 0:
            state.last_stable_offset = one.last_stable_offset
        if one.log_start_offset >= 0:
            state.log_start_offset = one.log_start_offset
        if one.preferred_read_replica != NO_NODE:
            state.preferred_replica = one.preferred_read_replica
            state.preferred_until_ms = now_ms + self._client.metadata_max_age_ms
        if one.records:
            aborted = None
            if self._is_read_committed:
                aborted = [(entry.producer_id, entry.first_offset) for entry in one.aborted_transactions or ()]
            fetch = CompletedFetch(*partition, one.records, asked_offset, self._columns, aborted, self._config.check_crcs)
            self.buffer.add(partition, fetch)

    def _failed(
        self, node_id: int, partition: TopicPartition, offset: int, state: TopicPartitionState, code: int, now_ms: int
    ) -> None:
        """Take an error of a partition."""
        self._retry_at_ms[partition] = now_ms + self._client.retry_backoff_ms
        self._wake_later(now_ms)
        if code == error_codes.OFFSET_OUT_OF_RANGE:
            self._out_of_range(node_id, partition, offset, state)
        elif code in _LEADER_ERRORS:
            state.preferred_replica = NO_NODE
            self._network.request_update()
        elif code in _TOPIC_ERRORS:
            self._network.request_update()
        elif code not in _WAITING_ERRORS:
            topic, number = partition
            self.errors.put(KafkaError(code, f"the answer to Fetch for {topic}-{number} at offset {offset}"), partition)

    def _out_of_range(self, node_id: int, partition: TopicPartition, offset: int, state: TopicPartitionState) -> None:
        if state.preferred_replica == node_id:
            state.preferred_replica = NO_NODE  # a follower may be behind: the leader decides
            return
        if state.position is None or state.position.offset != offset:
            return  # records before it are buffered: the offset is asked again after the backoff
        if self._subscriptions.default_strategy != NONE:
            self._log(f"offset {offset} of {partition[0]}-{partition[1]} is out of range: it is reset")
            self._subscriptions.request_reset(partition)
        else:
            self.errors.put(OffsetOutOfRangeError({partition: offset}), partition)

    def close(self) -> None:
        """Close the sessions with the brokers, whose answers are not awaited, and drop what waits."""
        self._is_closed = True
        self.buffer.clear()
        for node_id, broker in self._brokers.items():
            request = broker.session.closing_request(self._limits())
            if request is not None and node_id in self._network.metadata.nodes:
                self._network.send(node_id, FETCH, request, lambda answer, now_ms: None)
