"""The core of a consumer (Kafka: KafkaConsumer): its parts, and what an application calls. It never waits; its shells do.

    part               what it does
    -----------------  -----------------------------------------------------------------------------------------------
    SubscriptionState  partitions and positions
    Membership         the group: assignment, commits; None without group.id
    InitialPositions   positions of partitions that were assigned
    OffsetFetcher      positions that must be looked up or validated
    Fetcher            records
    RecreatedTopics    positions in topics that were deleted and created again

    a partition that was assigned gets its position  from
    -----------------------------------------------  -------------------------------------------------------------------
    by `seek`, at any time                           the application
    else, with group.id                              the committed offset, once the assignment is settled
    else                                             auto.offset.reset

A poll of an application is, in a shell: `begin_poll`, the calls of the listener that are due, `raise_error`, `collect`; without
records `await_work`, `polled`, and again from the listener on, until the time is over. Each error is raised once, by the next
poll. If a partition has no valid position and no reset strategy, each poll raises until the application seeks.

`ask_topics` asks for the topics of a cluster and their partitions (Kafka: TopicMetadataFetcher). A topic that does not exist is
not in the result; one that the client may not see is an error if it was named. A request that gets no answer is sent again, to
another broker if there is one, until the time is over.

RecreatedTopics are deleted and created again while a consumer reads them: its positions are offsets of the old topic.

    the metadata have, of an assigned partition      then
    -----------------------------------------------  -----------------------------------------------------------------------
    the first id of its topic since its assignment   the position is one of this topic
    another id                                       the position is looked up as after an assignment: the committed offset,
                                                     else auto.offset.reset. With none poll raises TopicRecreatedError
    an id that another one has replaced              nothing: a broker is behind
    no id: the topic is deleted, or the broker old   nothing

Kafka's own consumer has no such rule. If the log of the new topic is longer than the old position, it reads on in the middle.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from kcli.client.cluster import Cluster, PartitionInfo
from kcli.client.consumer.application_waits import ApplicationWaits, Done
from kcli.client.consumer.arrow_records import ArrowColumns
from kcli.client.consumer.consumer_config import READ_COMMITTED, ConsumerConfig, check_config
from kcli.client.consumer.consumer_record import ConsumerRecord
from kcli.client.consumer.fetcher import Fetcher
from kcli.client.consumer.initial_positions import InitialPositions
from kcli.client.consumer.membership import CloseOption, GroupMetadata, Membership
from kcli.client.consumer.offset_fetcher import ListDone, OffsetFetcher
from kcli.client.consumer.position_errors import PositionErrors
from kcli.client.consumer.subscription_state import (
    NONE,
    ConsumerRebalanceListener,
    FetchPosition,
    FetchState,
    NoOffsetForPartitionError,
    OffsetResetStrategy,
    SubscriptionState,
    SubscriptionType,
    parse_reset_strategy,
)
from kcli.client.errors import ClientError, ConfigError, IllegalStateError, KafkaError, KafkaTimeoutError, TopicRecreatedError
from kcli.client.metadata import Metadata
from kcli.client.network_client import NetworkClient, failure_error
from kcli.client.serializers import Deserializer
from kcli.client.value_checks import (
    OffsetAndMetadata,
    check_offset,
    check_offsets,
    check_timestamps,
    check_topic,
    checked_partitions,
    checked_topics,
)
from kcli.format.primitives import TopicPartition
from kcli.network.peer_request import Answer, PeerFailure
from kcli.network.timing_wheel import TimerTask
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, METADATA
from kcli.protocol.message import Message

MakeMembership = Callable[[NetworkClient, ConsumerConfig, SubscriptionState], Membership]
OffsetsDone = Callable[[dict[TopicPartition, OffsetAndMetadata | None] | ClientError, int], None]
_LASTING_TOPIC_ERRORS = (error_codes.TOPIC_AUTHORIZATION_FAILED, error_codes.INVALID_TOPIC_EXCEPTION)


PositionDone = Callable[[int | ClientError, int], None]


PartitionsDone = Callable[[tuple[PartitionInfo, ...] | ClientError, int], None]
Topics = dict[str, tuple[PartitionInfo, ...]]
TopicsDone = Callable[[Topics | ClientError, int], None]


class RecreatedTopics:
    """Forgets the positions of one consumer in topics that were created again.

    `forget(partition)` is called for each of them, `log(line)` with a sentence.
    """

    def __init__(
        self,
        metadata: Metadata,
        subscriptions: SubscriptionState,
        errors: PositionErrors,
        forget: Callable[[TopicPartition], None],
        log: Callable[[str], None],
    ) -> None:
        self._metadata = metadata
        self._subscriptions = subscriptions
        self._errors = errors
        self._forget = forget
        self._log = log
        self._ids: dict[TopicPartition, bytes] = {}
        self._replaced: set[bytes] = set()

    def check(self) -> None:
        """Compare the ids of the assigned partitions' topics with those in the metadata, after either has changed."""
        ids = self._metadata.topic_ids
        before, self._ids = self._ids, {}
        for partition in self._subscriptions.assigned_partitions:
            topic_id, known = ids.get(partition[0]), before.get(partition)
            if topic_id is None or topic_id in self._replaced:
                topic_id = known
            if topic_id is not None:
                self._ids[partition] = topic_id
        changed = [one for one, topic_id in self._ids.items() if before.get(one, topic_id) != topic_id]
        self._replaced.update(before[one] for one in changed)
        for partition in sorted(changed):
            self._recreated(partition)

    def _recreated(self, partition: TopicPartition) -> None:
        state = self._subscriptions.state_of(partition)
        if state.position is None:
            return
        topic, number = partition
        offset = self._subscriptions.consumed_offset(partition)
        self._log(
            f"the topic {topic} was deleted and created again: offset {offset} of {topic}-{number} is not a position any more"
        )
        self._forget(partition)
        state.put(FetchState.INITIALIZING, None)
        if self._subscriptions.default_strategy == NONE and offset is not None:
            self._errors.put(TopicRecreatedError({partition: offset}), partition)


def ask_topics(network: NetworkClient, topics: Collection[str] | None, done: TopicsDone, timeout_ms: int) -> None:
    """Find topics by name, or all topics."""
    kind = API_KEYS[METADATA].request
    of_topic = kind.classes["MetadataRequestTopic"]
    may_create = topics is not None and network.config.allow_auto_create_topics
    named = None if topics is None else [of_topic(name=topic) for topic in topics]
    request = kind.new(topics=named, allow_auto_topic_creation=may_create)
    deadline_ms = network.timer.clock_ms + timeout_ms

    def ask(now_ms: int) -> None:
        left_ms = deadline_ms - now_ms
        if left_ms <= 0:
            done(KafkaTimeoutError(f"the topics were not listed in time ({network.failure_reason()})"), now_ms)
        else:
            network.send_to_any(METADATA, request, answered, min(left_ms, network.config.request_timeout_ms))

    def answered(answer: Answer, now_ms: int) -> None:
        if isinstance(answer, PeerFailure) and answer.is_lasting:
            done(failure_error(answer, METADATA), now_ms)
        elif isinstance(answer, PeerFailure) or _is_incomplete(answer):
            network.timer.schedule(min(now_ms + network.config.retry_backoff_ms, deadline_ms), ask)
        else:
            done(_topics_of(answer, topics is not None), now_ms)

    ask(network.timer.clock_ms)


def _is_incomplete(answer: Message) -> bool:
    passing = (error_codes.LEADER_NOT_AVAILABLE, error_codes.UNKNOWN_SERVER_ERROR)
    return not answer.brokers or any(topic.error_code in passing for topic in answer.topics)


def _topics_of(answer: Message, is_named: bool) -> Topics | ClientError:
    found: Topics = {}
    for topic in answer.topics:
        if topic.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        if topic.error_code:
            if is_named:
                return KafkaError(topic.error_code, f"the metadata of topic {topic.name}")
            continue
        found[topic.name] = tuple(
            PartitionInfo(
                topic.name,
                one.partition_index,
                one.leader_id,
                one.leader_epoch,
                tuple(one.replica_nodes),
                tuple(one.isr_nodes),
                tuple(one.offline_replicas),
            )
            for one in sorted(topic.partitions, key=lambda one: int(one.partition_index))
        )
    return found


class PositionWait:
    """One call of `position`; `waits` are those that have no result yet.

    `is_lost(partition)` says whether only the application can give a partition a position.
    """

    def __init__(
        self,
        network: NetworkClient,
        offsets: OffsetFetcher,
        subscriptions: SubscriptionState,
        waits: list[PositionWait],
        is_lost: Callable[[TopicPartition], bool],
        partition: TopicPartition,
        done: PositionDone,
    ) -> None:
        self._network = network
        self._offsets = offsets
        self._subscriptions = subscriptions
        self._waits = waits
        self._is_lost = is_lost
        self.partition = partition
        self._done = done
        self._timer: TimerTask | None = None

    def begin(self, now_ms: int, timeout_ms: int) -> None:
        """Wait for at most `timeout_ms`."""
        self._timer = self._network.timer.schedule(now_ms + timeout_ms, self._timed_out)
        self._waits.append(self)

    def check(self, take_error: Callable[[], ClientError | None], now_ms: int) -> None:
        """End if the position is known, the partition is not assigned any more, or the consumer has an error."""
        topic, number = self.partition
        if not self._subscriptions.is_assigned(self.partition):
            self._end(IllegalStateError(f"{topic}-{number} is not assigned to this consumer any more"), now_ms)
            return
        found = self._subscriptions.consumed_offset(self.partition)
        if found is not None:
            self._end(found, now_ms)
        elif self._is_lost(self.partition):
            self._end(NoOffsetForPartitionError([self.partition]), now_ms)
        elif (error := take_error()) is not None:
            self._end(error, now_ms)

    def _timed_out(self, now_ms: int) -> None:
        topic, number = self.partition
        reason = self._offsets.why_not_found([self.partition])
        self._end(KafkaTimeoutError(f"the position of {topic}-{number} was not found in time ({reason})"), now_ms)

    def _end(self, result: int | ClientError, now_ms: int) -> None:
        self._waits.remove(self)
        if self._timer is not None:
            self._timer.cancel()
        self._done(result, now_ms)


class ConsumerCore:
    """A consumer without time, sockets and threads; `log(line)` gets a sentence for each event that an operator may want."""

    def __init__(
        self,
        network: NetworkClient,
        config: ConsumerConfig,
        make_membership: MakeMembership | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Raises ConfigError for settings that do not fit together."""
        check_config(config)
        self.network = network
        self.config = config
        self.subscriptions = SubscriptionState(parse_reset_strategy(config.auto_offset_reset))
        self.membership: Membership | None = None
        if config.group_id is not None:
            if make_membership is None:
                raise ConfigError("group.id is set, and this consumer cannot be a member of a group")
            self.membership = make_membership(network, config, self.subscriptions)
        self._held_topics: Counter[str] = Counter()
        self.fetcher = Fetcher(network, config, self.subscriptions, log)
        self.errors = self.fetcher.errors
        self.offsets = OffsetFetcher(
            network, config, self.subscriptions, self.errors, self.fetcher.wake, self._hold, self._release
        )
        self._pattern: re.Pattern[str] | None = None
        self._initial = InitialPositions(
            network, self.subscriptions, self.membership, self.errors, self._set_position, self.fetcher.wake
        )
        self._recreated = RecreatedTopics(network.metadata, self.subscriptions, self.errors, self._forget_position, log)
        self.waits = ApplicationWaits(network.timer)
        self._waiting_for_position: list[PositionWait] = []
        self._collected_count = 0  # the assignment of the records that were collected last
        self._is_closing = False
        self._is_closed = False
        network.metadata.add_listener(self._metadata_updated)
        network.add_refusal_listener(self._refused)
        self.subscriptions.add_assignment_listener(self._assignment_changed)

    # ------------------------------------------------------------------------------------------------- after each event

    def poll(self, now_ms: int) -> None:
        """Do what is due after calls and events."""
        if self.membership is not None:
            self.membership.poll(now_ms)
        if self._is_closed:
            return
        self._initial.poll(now_ms, [one.partition for one in self._waiting_for_position])
        self.offsets.poll(now_ms)
        self.fetcher.poll(now_ms)
        for wait in self._waiting_for_position.copy():
            wait.check(self.take_error, now_ms)
        self.waits.check(now_ms)

    def has_work(self, now_ms: int) -> bool:
        """Return whether a poll of the application has something to return, raise or call."""
        if self.errors or self.waits.is_woken or self._initial.lost_partitions():
            return True
        if self.membership is not None:
            if self._is_callback_due or self.membership.auto_commits:
                return True
            next_ms = self.membership.next_poll_ms(now_ms)
            if next_ms is not None and next_ms <= now_ms:
                return True
            if not self.membership.is_ready_to_fetch:
                return False
        return self.fetcher.buffer.has_records

    def wakeup(self, now_ms: int) -> None:
        """Let the waiting call under way, or the next one, end with WakeupError; a close is not ended."""
        if not self._is_closing:
            self.waits.wakeup(now_ms)

    def await_work(self, done: Done, now_ms: int, timeout_ms: int) -> None:
        """Call `done` as soon as `has_work`, at the latest after `timeout_ms`; one call at a time."""
        self.waits.await_work(self.has_work, done, now_ms, timeout_ms)

    def await_callback(self, done: Done, now_ms: int, timeout_ms: int) -> None:
        """Call `done` as soon as a call of the listener is due, at the latest after `timeout_ms`."""
        self.waits.await_work(lambda now_ms: self._is_callback_due, done, now_ms, timeout_ms)

    @property
    def _is_callback_due(self) -> bool:
        return self.membership is not None and self.membership.next_callback() is not None

    def _set_position(self, partition: TopicPartition, position: FetchPosition) -> None:
        self.fetcher.buffer.drop(partition)
        self.subscriptions.seek(partition, position)
        self.subscriptions.maybe_validate(partition, self.network.metadata.cluster)
        self.fetcher.wake()

    # --------------------------------------------------------------------------------------------------------- metadata

    def _hold(self, topics: Iterable[str]) -> None:
        self._held_topics.update(topics)
        self._want_topics()

    def _release(self, topics: Iterable[str]) -> None:
        self._held_topics.subtract(topics)
        self._held_topics = +self._held_topics
        self._want_topics()

    def _want_topics(self) -> None:
        """Ask for the topics that are needed, and for no others."""
        metadata = self.network.metadata
        wanted = self.subscriptions.metadata_topics | set(self._held_topics)
        for topic in metadata.wanted_topics - wanted:
            metadata.forget_topic(topic)
        is_new = [metadata.want_topic(topic) for topic in sorted(wanted)]
        if any(is_new):
            self.network.request_update()

    def _assignment_changed(self, assigned: frozenset[TopicPartition]) -> None:
        self._initial.keep(assigned)
        needed = self.subscriptions.metadata_topics
        self.errors.keep(lambda place: place is None or (place in needed if isinstance(place, str) else place in assigned))
        self.fetcher.buffer.drop_unassigned()
        self._recreated.check()
        self._want_topics()
        self.fetcher.wake()

    def _metadata_updated(self, cluster: Cluster, now_ms: int) -> None:
        self._recreated.check()
        for partition in self.subscriptions.assigned_partitions:
            self.subscriptions.maybe_validate(partition, cluster)
        self._match_topics(cluster, now_ms)
        needed = self.subscriptions.metadata_topics
        refused = {
            topic: code
            for topic, code in self.network.metadata.topic_errors.items()
            if code in _LASTING_TOPIC_ERRORS and topic in needed
        }
        self.errors.keep(lambda place: not isinstance(place, str) or place in refused)
        for topic, code in refused.items():
            self.errors.put(KafkaError(code, f"the metadata of topic {topic}"), topic)
        self.fetcher.wake()

    def _refused(self, error: ClientError, node_id: int | None, now_ms: int) -> None:
        """Take a broker that TLS or SASL does not let the consumer use: calls end, and the next poll raises it."""
        self.waits.fail(error, now_ms)
        self.errors.put(error)

    def _match_topics(self, cluster: Cluster, now_ms: int) -> None:
        """Subscribe to the topics that match the pattern."""
        if self._pattern is None:
            return
        internal = self.network.metadata.internal_topics if self.config.exclude_internal_topics else frozenset()
        found = [topic for topic in cluster.topics if topic not in internal and self._pattern.fullmatch(topic)]
        if self.subscriptions.subscribe_from_pattern(found) and self.membership is not None:
            self.membership.subscription_changed(now_ms)

    # ----------------------------------------------------------------------------------------------------- subscriptions

    def _required_membership(self) -> Membership:
        """Return the membership. Raises IllegalStateError without group.id."""
        if self.membership is None:
            raise IllegalStateError("group.id is not set: it is needed for subscriptions and committed offsets")
        return self.membership

    def assign(self, partitions: Iterable[TopicPartition], now_ms: int) -> None:
        """Read these partitions, without a group. Raises IllegalStateError, TypeError, ValueError, KafkaError."""
        wanted = checked_partitions(partitions)
        if not wanted:
            self.unsubscribe(now_ms)
            return
        before = self.subscriptions.assigned_partitions
        is_own = self.subscriptions.type is SubscriptionType.USER_ASSIGNED
        if self.membership is not None and is_own and before != frozenset(wanted):
            self.membership.assignment_changes(now_ms)
        self.subscriptions.assign_from_user(wanted)

    def subscribe(self, topics: Iterable[str], listener: ConsumerRebalanceListener | None, now_ms: int) -> None:
        """Let the group assign partitions of topics. Raises IllegalStateError, TypeError, KafkaError."""
        membership = self._required_membership()
        wanted = checked_topics(topics)
        if not wanted:
            self.unsubscribe(now_ms)
            return
        if self.subscriptions.subscribe(wanted, listener):
            self._want_topics()
            membership.subscription_changed(now_ms)

    def subscribe_pattern(self, pattern: str, listener: ConsumerRebalanceListener | None, now_ms: int) -> None:
        """Let the group assign partitions of the topics whose whole names match. Raises IllegalStateError, ConfigError."""
        membership = self._required_membership()
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{pattern!r} is not a regular expression: {error}") from None
        self.subscriptions.subscribe_pattern(pattern, listener)
        self._pattern = compiled
        self.network.metadata.want_all_topics(True)
        self.network.request_update()
        self._match_topics(self.network.metadata.cluster, now_ms)
        membership.subscription_changed(now_ms)

    def leave_group(self, done: Done, now_ms: int) -> None:
        """Have the listener called for the partitions of a group and leave it, before `unsubscribe`."""
        if self.membership is None or not self.subscriptions.has_auto_assigned_partitions:
            done(None, now_ms)
        else:
            self.membership.leave(done, now_ms)

    def unsubscribe(self, now_ms: int) -> None:
        """Read nothing; a member that is still in its group leaves it."""
        self._pattern = None
        self.network.metadata.want_all_topics(False)
        self.subscriptions.unsubscribe()
        self._want_topics()
        if self.membership is not None:
            self.membership.subscription_changed(now_ms)

    # -------------------------------------------------------------------------------------------------------- positions

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int, now_ms: int) -> None:
        """Continue at an offset. Raises IllegalStateError, ValueError."""
        check_offset(offset, leader_epoch)
        self.subscriptions.state_of(partition)
        self._forget(partition)
        self._set_position(partition, FetchPosition(offset, leader_epoch))

    def reset(self, partitions: Iterable[TopicPartition], strategy: OffsetResetStrategy, now_ms: int) -> None:
        """Continue at the beginning or end of partitions, of all assigned ones if there is none. Raises IllegalStateError."""
        for partition in checked_partitions(partitions) or self.subscriptions.assigned_partitions:
            self.subscriptions.request_reset(partition, strategy)
            self._forget_position(partition)

    def _forget_position(self, partition: TopicPartition) -> None:
        self._forget(partition)
        self.fetcher.buffer.drop(partition)

    def _forget(self, partition: TopicPartition) -> None:
        """Drop the records and errors before a new position."""
        self.subscriptions.held.drop(partition)
        self.errors.drop(partition)
        self._initial.forget(partition)

    def position(self, partition: TopicPartition, done: PositionDone, now_ms: int, timeout_ms: int) -> None:
        """Return the offset of the next record of a partition, as soon as it is known. Raises IllegalStateError."""
        self.subscriptions.state_of(partition)
        wait = PositionWait(
            self.network, self.offsets, self.subscriptions, self._waiting_for_position, self._initial.is_lost, partition, done
        )
        wait.begin(now_ms, timeout_ms)

    def pause(self, partitions: Iterable[TopicPartition], now_ms: int) -> None:
        """Fetch and return no more records of partitions. Raises IllegalStateError."""
        wanted = checked_partitions(partitions)
        self.subscriptions.pause(wanted)
        self.give_back(wanted)

    def give_back(self, partitions: Iterable[TopicPartition]) -> None:
        """Have the held records of partitions fetched and returned again later."""
        for partition in self.subscriptions.give_back(partitions):
            self.fetcher.buffer.drop(partition)
        self.fetcher.wake()

    def resume(self, partitions: Iterable[TopicPartition], now_ms: int) -> None:
        """Fetch and return records of paused partitions again. Raises IllegalStateError."""
        self.subscriptions.resume(checked_partitions(partitions))
        self.fetcher.wake()

    # ---------------------------------------------------------------------------------------------------------- records

    def begin_poll(self, now_ms: int) -> None:
        """Take the start of a poll of the application. Raises IllegalStateError."""
        if self.subscriptions.type is SubscriptionType.NONE:
            raise IllegalStateError("the consumer is not subscribed to topics and has no partitions: subscribe or assign first")
        self.polled(now_ms)

    def polled(self, now_ms: int) -> None:
        """Take note that a poll of the application begins or goes on; calls of the listener may be due then."""
        if self.membership is not None:
            self.membership.polled(now_ms)

    def raise_error(self, now_ms: int) -> None:
        """Raise WakeupError after `wakeup`, or the oldest error that was found since the last poll."""
        self.waits.raise_if_woken()
        error = self.take_error()
        if error is not None:
            raise error
        lost = self._initial.lost_partitions()
        if lost:
            raise NoOffsetForPartitionError(lost)

    def take_error(self) -> ClientError | None:
        """Return the oldest error that was found since the last poll, once."""
        if not self.errors and self.membership is not None:
            return self.membership.take_error()
        error = self.errors.take()
        if isinstance(error, KafkaError) and error.code == error_codes.TOPIC_AUTHORIZATION_FAILED:
            self.network.request_update()  # by then the application may have been allowed to read the topic
        return error

    @property
    def _may_return(self) -> bool:
        return self.membership is None or self.membership.is_ready_to_fetch

    def collect(
        self,
        now_ms: int,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        most: int | None = None,
    ) -> list[ConsumerRecord]:
        """Return up to max.poll.records records, none if there is none now. Raises FetchedRecordError."""
        if not self._may_return:
            return []
        self._collected_count = self.subscriptions.assignment_count
        wanted = self.config.max_poll_records if most is None else most
        return self.fetcher.buffer.collect(wanted, now_ms, key_deserializer, value_deserializer)

    def hold(self, records: Sequence[ConsumerRecord]) -> None:
        """Hold collected records for an iterator: each is consumed when it is taken of the held records.

        Those of partitions that were taken away since are dropped.
        """
        self.subscriptions.held.put(records)
        if self._collected_count != self.subscriptions.assignment_count or self.subscriptions.has_pending_revocations:
            self.subscriptions.held.keep(self.subscriptions.is_kept)

    def put_back(self, records: Sequence[ConsumerRecord]) -> None:
        """Have collected records that are not returned fetched again."""
        if records:
            self.subscriptions.held.put(records)
            self.give_back({(one.topic, one.partition) for one in records})

    def collect_columns(self, now_ms: int, most: int) -> list[ArrowColumns]:
        """Return up to `most` records as columns, none if there is none now. Raises FetchedRecordError."""
        if not self._may_return:
            return []
        if self.subscriptions.held:
            self.give_back(self.subscriptions.assigned_partitions)
        return self.fetcher.buffer.collect_columns(most, now_ms)

    # ------------------------------------------------------------------------------------------------------------ group

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None,
        done: Done,
        now_ms: int,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit offsets, without them the positions of all partitions. Raises IllegalStateError, TypeError, ValueError."""
        membership = self._required_membership()
        wanted = self.subscriptions.all_consumed() if offsets is None else offsets
        check_offsets(wanted)

        def committed(error: ClientError | None, now_ms: int) -> None:
            done(error, now_ms)
            self.waits.end_wait(now_ms)  # a poll calls the callback of commit_async

        if wanted:
            membership.commit(wanted, committed, now_ms, timeout_ms)
        else:
            done(None, now_ms)

    def committed(self, partitions: Collection[TopicPartition], done: OffsetsDone, now_ms: int, timeout_ms: int) -> None:
        """Find the committed offsets of partitions. Raises IllegalStateError, TypeError, ValueError, KafkaError."""
        self._required_membership().committed(checked_partitions(partitions), done, now_ms, timeout_ms)

    def take_auto_commit(self) -> Mapping[TopicPartition, OffsetAndMetadata] | None:
        """Return offsets that were committed automatically, for the interceptors, once."""
        return self.membership.auto_commits.popleft() if self.membership is not None and self.membership.auto_commits else None

    def group_metadata(self) -> GroupMetadata:
        """Return what a transactional producer needs. Raises IllegalStateError without group.id."""
        return self._required_membership().last_group_metadata()

    def enforce_rebalance(self, reason: str, now_ms: int) -> None:
        """Have the group assigned anew. Raises IllegalStateError without group.id."""
        self._required_membership().enforce_rebalance(reason, now_ms)

    def lag(self, partition: TopicPartition) -> int | None:
        """Return how many offsets are after the position of a partition, None if that is not known yet."""
        return self.subscriptions.lag(partition, self.config.isolation_level == READ_COMMITTED)

    def close(self, done: Done, now_ms: int, option: CloseOption = CloseOption.DEFAULT) -> None:
        """Commit consumed offsets if enable.auto.commit is set, leave the group, and close the fetch sessions."""

        self._is_closing = True

        def left(error: ClientError | None, now_ms: int) -> None:
            self._is_closed = True
            self.fetcher.close()
            self.waits.end_wait(now_ms)
            done(error, now_ms)

        if self.membership is None or self._is_closed:
            left(None, now_ms)
        else:
            self.membership.close(left, now_ms, option)

    # --------------------------------------------------------------------------------------------------- other questions

    def list_offsets(self, timestamps: Mapping[TopicPartition, int], done: ListDone, now_ms: int, timeout_ms: int) -> None:
        """Find offsets by timestamps (kcli.client.consumer.offset_fetcher)."""
        check_timestamps(timestamps)
        self.offsets.list_offsets(timestamps, done, now_ms, timeout_ms)

    def partitions_for(self, topic: str, done: PartitionsDone, now_ms: int, timeout_ms: int) -> None:
        """Find the partitions of a topic, none if the topic does not exist. Raises TypeError, KafkaError."""
        check_topic(topic)

        def listed(found: dict[str, tuple[PartitionInfo, ...]] | ClientError, now_ms: int) -> None:
            done(found if isinstance(found, ClientError) else found.get(topic, ()), now_ms)

        ask_topics(self.network, (topic,), listed, timeout_ms)

    def list_topics(self, done: TopicsDone, now_ms: int, timeout_ms: int) -> None:
        """Find all topics that the consumer may see, with their partitions."""
        ask_topics(self.network, None, done, timeout_ms)
