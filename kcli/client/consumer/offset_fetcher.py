"""Offsets that a consumer asks the leaders for (Kafka: OffsetFetcher).

    for                                        API                   answer
    -----------------------------------------  --------------------  --------------------------------------------------------
    partitions in AWAIT_RESET                  ListOffsets           the position, by auto.offset.reset or seek_to_...
    beginning_offsets, end_offsets,            ListOffsets           `list_offsets`: repeated until each partition has an
    offsets_for_times                                                answer or the time is over
    partitions in AWAIT_VALIDATION (KIP-320)   OffsetForLeaderEpoch  where the log of the position's epoch ends at the leader:
                                                                     before the position, the log was truncated

    timestamp            offset
    -------------------  ----------------------------------------------------------------------------------------------
    EARLIEST_TIMESTAMP   of the first record
    LATEST_TIMESTAMP     after the last one; with read_committed after the last one that it returns
    >= 0, ms             of the first record with this timestamp or a later one; none if there is none. A reset
                         `by_duration` then begins at the end (KIP-1106)

Each leader gets one request for all its partitions. Errors that may pass are tried again after retry.backoff.ms with new
metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from kcli.client.cluster import NO_EPOCH, NO_LEADER
from kcli.client.consumer.consumer_config import READ_COMMITTED, ConsumerConfig
from kcli.client.consumer.position_errors import PositionErrors
from kcli.client.consumer.subscription_state import (
    LATEST_TIMESTAMP,
    FetchPosition,
    FetchState,
    LogTruncation,
    OffsetResetStrategy,
    SubscriptionState,
)
from kcli.client.errors import ClientError, KafkaError, KafkaTimeoutError, LogTruncationError
from kcli.client.network_client import NetworkClient
from kcli.format.primitives import TopicPartition
from kcli.network.peer_request import Answer, AuthenticationFailure, InvalidRequest, PeerFailure
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from kcli.protocol.message import Message

UNKNOWN_OFFSET = -1
CONSUMER_ID = -1  # the replica id of a consumer


class OffsetAndTimestamp(NamedTuple):
    """An offset with the timestamp of its record, -1 if it was not asked by time."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = NO_EPOCH


ListedOffsets = dict[TopicPartition, "OffsetAndTimestamp | None"]
Strategies = Mapping[TopicPartition, OffsetResetStrategy]
ListDone = Callable[[ListedOffsets | ClientError, int], None]
# One answer: what was found, and the errors of the other partitions (0: no answer).
_Listed = Callable[[ListedOffsets, dict[TopicPartition, int], int], None]


def is_passing(code: int) -> bool:
    """Return whether a partition may be asked again after an error."""
    return code in error_codes.RETRIABLE or code in (
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        error_codes.FENCED_LEADER_EPOCH,
        error_codes.UNKNOWN_LEADER_EPOCH,
        error_codes.NONE,
    )


class OffsetFetcher:
    """Asks for the offsets of one consumer; `errors` gets errors that its poll raises, `changed` is called for new positions.

    `hold_topics` and `release_topics` keep topics in the metadata while an operation needs them.
    """

    def __init__(
        self,
        network: NetworkClient,
        config: ConsumerConfig,
        subscriptions: SubscriptionState,
        errors: PositionErrors,
        changed: Callable[[], None],
        hold_topics: Callable[[Iterable[str]], None],
        release_topics: Callable[[Iterable[str]], None],
    ) -> None:
        self._network = network
        self._isolation = int(config.isolation_level == READ_COMMITTED)
        self._subscriptions = subscriptions
        self._errors = errors
        self._changed = changed
        self.hold_topics = hold_topics
        self.release_topics = release_topics
        self._resetting: set[TopicPartition] = set()
        self._validating: set[TopicPartition] = set()
        self._last_codes: dict[TopicPartition, int] = {}  # of partitions whose last answer was an error

    def poll(self, now_ms: int) -> None:
        """Ask for the positions that are due."""
        self._reset_positions(now_ms)
        self._validate_positions(now_ms)

    def _retry_later(self, partitions: Iterable[TopicPartition], now_ms: int) -> None:
        """Try partitions again after the backoff, with new metadata."""
        at_ms = now_ms + self._network.config.retry_backoff_ms
        for partition in partitions:
            state = self._subscriptions.find(partition)
            if state is not None:
                state.next_retry_ms = at_ms
        self._network.request_update()
        self._network.timer.schedule(at_ms, lambda now_ms: None)  # the client polls after it

    def _due(self, wanted: FetchState, busy: set[TopicPartition], now_ms: int) -> list[TopicPartition]:
        found = []
        for partition in self._subscriptions.partitions_in(wanted):
            retry_ms = self._subscriptions.state_of(partition).next_retry_ms
            if partition not in busy and (retry_ms is None or retry_ms <= now_ms):
                found.append(partition)
        return found

    # ----------------------------------------------------------------------------------------------------------- resets

    def _reset_positions(self, now_ms: int) -> None:
        due = self._due(FetchState.AWAIT_RESET, self._resetting, now_ms)
        if not due:
            return
        timestamps: dict[TopicPartition, int] = {}
        strategies: dict[TopicPartition, OffsetResetStrategy] = {}
        for partition in due:
            strategy = self._subscriptions.state_of(partition).reset_strategy
            timestamp = None if strategy is None else strategy.timestamp(self._network.timer.wall.at(now_ms))
            if strategy is not None and timestamp is not None:
                timestamps[partition], strategies[partition] = timestamp, strategy
        self._ask_for_reset(timestamps, strategies, now_ms)

    def _ask_for_reset(self, timestamps: Mapping[TopicPartition, int], strategies: Strategies, now_ms: int) -> None:
        by_leader, unknown = self._by_leader(timestamps)
        if unknown:
            self._retry_later(unknown, now_ms)
        for node_id, partitions in by_leader.items():
            self._resetting.update(partitions)
            strategies_asked = {one: strategies[one] for one in partitions}
            asked = {one: timestamps[one] for one in partitions}
            self._ask(node_id, asked, partial(self._found_reset, strategies_asked, asked))

    def _found_reset(
        self,
        asked: Strategies,
        timestamps: Mapping[TopicPartition, int],
        found: ListedOffsets,
        failed: dict[TopicPartition, int],
        now_ms: int,
    ) -> None:
        """Take an answer to a reset. Partitions for which another reset was requested since `asked` are asked again by poll."""
        self._resetting.difference_update(asked)
        behind_all = {}
        for partition, one in found.items():
            strategy = asked[partition]
            if one is None:
                if timestamps[partition] == LATEST_TIMESTAMP:
                    failed[partition] = error_codes.OFFSET_NOT_AVAILABLE  # a leader always has one; this one maybe later
                elif self._subscriptions.is_reset_by(partition, strategy):
                    behind_all[partition] = LATEST_TIMESTAMP
            elif self._subscriptions.maybe_seek(partition, FetchPosition(one.offset, one.leader_epoch), strategy):
                self._subscriptions.maybe_validate(partition, self._network.metadata.cluster, may_validate=False)
        if behind_all:
            self._ask_for_reset(behind_all, asked, now_ms)
        self._take_failures(failed, "ListOffsets", now_ms)
        self._changed()

    def _take_failures(self, failed: Mapping[TopicPartition, int], api: str, now_ms: int) -> None:
        """Try partitions again, or report their errors."""
        again = []
        for partition, code in failed.items():
            if not is_passing(code) and code != error_codes.UNKNOWN_SERVER_ERROR:
                self._errors.put(KafkaError(code, f"the answer to {api} for {partition[0]}-{partition[1]}"), partition)
            again.append(partition)
        if again:
            self._retry_later(again, now_ms)

    # ------------------------------------------------------------------------------------------------------ ListOffsets

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> tuple[dict[int, list[TopicPartition]], list[TopicPartition]]:
        """Return partitions by their leaders, and those without a known leader."""
        found: dict[int, list[TopicPartition]] = {}
        unknown = []
        for partition in partitions:
            leader = self._network.metadata.cluster.leader_for(*partition)
            if leader == NO_LEADER or self._network.is_backing_off(leader):
                unknown.append(partition)
            else:
                found.setdefault(leader, []).append(partition)
        return found, unknown

    def _ask(self, node_id: int, timestamps: Mapping[TopicPartition, int], listed: _Listed) -> None:
        """Ask a leader; `listed` is called once."""
        kind = API_KEYS[LIST_OFFSETS].request
        of_topic, of_partition = kind.classes["ListOffsetsTopic"], kind.classes["ListOffsetsPartition"]
        topics: dict[str, list[Message]] = {}
        for (topic, partition), timestamp in timestamps.items():
            epoch = self._network.metadata.cluster.leader_epoch_for(topic, partition)
            one = of_partition(partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp)
            topics.setdefault(topic, []).append(one)
        request = kind.new(
            replica_id=CONSUMER_ID,
            isolation_level=self._isolation,
            topics=[of_topic(name=topic, partitions=found) for topic, found in topics.items()],
            timeout_ms=self._network.config.request_timeout_ms,
        )
        self._network.send(node_id, LIST_OFFSETS, request, partial(self._listed, timestamps, listed))

    def why_not_found(self, partitions: Iterable[TopicPartition]) -> str:
        """Describe why offsets were not found in time: the errors of the leaders, no leaders, or else the network's reason."""
        by_code: dict[int, list[TopicPartition]] = {}
        cluster = self._network.metadata.cluster
        leaderless = []
        for partition in partitions:
            if cluster.leader_for(*partition) == NO_LEADER and cluster.partition(*partition) is not None:
                leaderless.append("-".join(map(str, partition)))
            by_code.setdefault(self._last_codes.get(partition, error_codes.NONE), []).append(partition)
        by_code.pop(error_codes.NONE, None)
        reasons = [
            f"the answer for {', '.join(f'{topic}-{number}' for topic, number in found)} is {error_codes.NAMES.get(code, code)}"
            for code, found in by_code.items()
        ]
        if leaderless:
            reasons.append(f"there is no leader of {', '.join(leaderless)}")
        return "; ".join(reasons) or self._network.failure_reason()

    def _listed(self, asked: Mapping[TopicPartition, int], listed: _Listed, answer: Answer, now_ms: int) -> None:
        for partition in asked:
            self._last_codes.pop(partition, None)
        found: ListedOffsets = {}
        failed = dict.fromkeys(asked, 0)
        if not isinstance(answer, PeerFailure):
            for topic in answer.topics:
                for one in topic.partitions:
                    partition = (topic.name, one.partition_index)
                    if partition not in asked:
                        continue
                    if one.error_code in (error_codes.NONE, error_codes.UNSUPPORTED_FOR_MESSAGE_FORMAT):
                        is_found = one.offset != UNKNOWN_OFFSET and not one.error_code
                        offset = OffsetAndTimestamp(one.offset, one.timestamp, one.leader_epoch)
                        found[partition] = offset if is_found else None
                        failed.pop(partition, None)
                    else:
                        failed[partition] = self._last_codes[partition] = one.error_code
        elif answer.is_lasting and not isinstance(answer, AuthenticationFailure):
            is_invalid = isinstance(answer, InvalidRequest)
            failed = dict.fromkeys(asked, error_codes.INVALID_REQUEST if is_invalid else error_codes.UNSUPPORTED_VERSION)
        listed(found, failed, now_ms)

    def list_offsets(self, timestamps: Mapping[TopicPartition, int], done: ListDone, now_ms: int, timeout_ms: int) -> None:
        """Find the offset of each partition by a timestamp; `done` gets them, or the error, within `timeout_ms`."""
        _ListOffsets(self, self._network, timestamps, done, now_ms, timeout_ms).attempt(now_ms)

    def ask_leaders(self, timestamps: Mapping[TopicPartition, int], listed: _Listed, now_ms: int) -> int:
        """Ask all leaders once; return how many times `listed` will be called. Partitions without a leader are not asked."""
        by_leader, _ = self._by_leader(timestamps)
        for node_id, partitions in by_leader.items():
            self._ask(node_id, {one: timestamps[one] for one in partitions}, listed)
        return len(by_leader)

    # ------------------------------------------------------------------------------------------------------- validation

    def _validate_positions(self, now_ms: int) -> None:
        due = self._due(FetchState.AWAIT_VALIDATION, self._validating, now_ms)
        if not due:
            return
        by_leader, unknown = self._by_leader(due)
        if unknown:
            self._retry_later(unknown, now_ms)
        for node_id, partitions in by_leader.items():
            asked = {one: position for one in partitions if (position := self._subscriptions.position(one)) is not None}
            self._validating.update(asked)
            self._ask_epochs(node_id, asked)

    def _ask_epochs(self, node_id: int, asked: dict[TopicPartition, FetchPosition]) -> None:
        kind = API_KEYS[OFFSET_FOR_LEADER_EPOCH].request
        of_topic, of_partition = kind.classes["OffsetForLeaderTopic"], kind.classes["OffsetForLeaderPartition"]
        topics: dict[str, list[Message]] = {}
        for (topic, partition), position in asked.items():
            one = of_partition(
                partition=partition, current_leader_epoch=position.leader_epoch, leader_epoch=position.offset_epoch
            )
            topics.setdefault(topic, []).append(one)
        found = [of_topic(topic=topic, partitions=partitions) for topic, partitions in topics.items()]
        request = kind.new(replica_id=CONSUMER_ID, topics=found)
        self._network.send(node_id, OFFSET_FOR_LEADER_EPOCH, request, partial(self._epochs_found, asked))

    def _epochs_found(self, asked: dict[TopicPartition, FetchPosition], answer: Answer, now_ms: int) -> None:
        self._validating.difference_update(asked)
        failed = dict.fromkeys(asked, 0)
        if isinstance(answer, PeerFailure) and answer.is_lasting and not isinstance(answer, AuthenticationFailure):
            for partition, position in asked.items():
                self._subscriptions.complete_validation(partition, position, position.offset, position.offset_epoch)
            failed = {}
        elif not isinstance(answer, PeerFailure):
            for topic in answer.topics:
                for one in topic.partitions:
                    partition = (topic.topic, one.partition)
                    if partition not in asked:
                        continue
                    failed[partition] = one.error_code
                    if not one.error_code:
                        del failed[partition]
                        truncation = self._subscriptions.complete_validation(
                            partition, asked[partition], one.end_offset, one.leader_epoch
                        )
                        if truncation is not None:
                            # Until the application seeks; asked again seldom, since the answer will not be another one.
                            state = self._subscriptions.state_of(partition)
                            state.next_retry_ms = now_ms + self._network.config.request_timeout_ms
                            self._errors.put(_truncation_error(truncation), partition)
        self._take_failures(failed, "OffsetForLeaderEpoch", now_ms)
        self._changed()


def _truncation_error(found: LogTruncation) -> LogTruncationError:
    return LogTruncationError({found.partition: found.position.offset}, {found.partition: found.diverging_offset})


class _ListOffsets:
    """One call of `list_offsets`."""

    def __init__(
        self,
        fetcher: OffsetFetcher,
        network: NetworkClient,
        timestamps: Mapping[TopicPartition, int],
        done: ListDone,
        now_ms: int,
        timeout_ms: int,
    ) -> None:
        self._fetcher = fetcher
        self._network = network
        self._left = dict(timestamps)
        self._found: ListedOffsets = {}
        self._done: ListDone | None = done
        self._under_way = 0
        self._topics = {topic for topic, _ in timestamps}
        self._deadline = network.timer.schedule(now_ms + timeout_ms, self._timed_out)
        fetcher.hold_topics(self._topics)

    def attempt(self, now_ms: int) -> None:
        """Ask for what is not found yet."""
        if self._done is None:
            return
        if not self._left:
            self._end(self._found, now_ms)
            return
        for topic in self._topics:
            code = self._network.metadata.topic_errors.get(topic, 0)
            if code and not is_passing(code):
                self._end(KafkaError(code, f"the metadata of topic {topic}"), now_ms)
                return
        self._under_way = self._fetcher.ask_leaders(self._left, self._listed, now_ms)
        if not self._under_way:
            self._retry(now_ms)

    def _retry(self, now_ms: int) -> None:
        self._network.request_update()
        self._network.timer.schedule(now_ms + self._network.config.retry_backoff_ms, self.attempt)

    def _listed(self, found: ListedOffsets, failed: dict[TopicPartition, int], now_ms: int) -> None:
        self._under_way -= 1
        self._found.update(found)
        for partition in found:
            self._left.pop(partition, None)
        for (topic, number), code in failed.items():
            if not is_passing(code):
                self._end(KafkaError(code, f"the answer to ListOffsets for {topic}-{number}"), now_ms)
                return
        if not self._left:
            self._end(self._found, now_ms)
        elif not self._under_way:
            self._retry(now_ms)

    def _timed_out(self, now_ms: int) -> None:
        names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(self._left))
        reason = self._fetcher.why_not_found(sorted(self._left))
        self._end(KafkaTimeoutError(f"the offsets of {names} were not found in time ({reason})"), now_ms)

    def _end(self, result: ListedOffsets | ClientError, now_ms: int) -> None:
        done, self._done = self._done, None
        if done is not None:
            self._deadline.cancel()
            self._fetcher.release_topics(self._topics)
            done(result, now_ms)
