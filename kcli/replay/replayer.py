"""The core of a replay: it sends the batches of all partitions, saves the progress and translates offsets of groups.

    stage       what happens                                                           kcli.replay.
    ----------  ---------------------------------------------------------------------  -----------------------------------
    prepare     topics of the target, progress of earlier runs, producer id            preparation
    send        batches, as many at once as idempotence allows; progress each second   here, partition_replay
    finish      the last progress, the offsets of groups                               here
    check       with --check: what the target has is compared with the source          checking

One Produce has one batch of each partition of a leader that has one ready, up to REQUEST_BYTES; up to MAX_IN_FLIGHT requests to
a broker are under way, none while the broker throttles the client (KIP-219). Like each client's core it takes calls and events
with the time and never waits; the shells of kcli.client.shell run it.

It does not use a producer's Sender: a TransactionManager begins with new sequences, or a new epoch, after some errors. Here the
producer id, its epoch and the sequence of each record must stay for all runs: they say what the target has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from kcli.client.cluster import NO_LEADER
from kcli.client.errors import ClientError, KafkaTimeoutError
from kcli.client.network_client import NetworkClient, failure_error
from kcli.format.kafka_uuid import ZERO_UUID
from kcli.format.primitives import TopicPartition
from kcli.network.peer_request import Answer, PeerFailure
from kcli.network.timing_wheel import TimerTask
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, PRODUCE
from kcli.protocol.message import Message
from kcli.replay.group_offsets import Commit, GroupOffsets, place_earlier
from kcli.replay.partition_replay import MAX_IN_FLIGHT, MAX_MESSAGE_BYTES, BatchState, InFlightBatch, PartitionReplay
from kcli.replay.progress import ProgressStore, check_alone
from kcli.replay.scheduling import AtOnce, Schedule, Sent
from kcli.replay.source import CommittedOffset, OutgoingBatch, Source
from kcli.replay.steps import ReplayError, StepRunner, Steps, as_client_error, refresh

# A request gets no further batch then. One of 4 MB was half as fast: memory for it is new each time, here and in the broker.
REQUEST_BYTES = 512 * 1024
SAVE_INTERVAL_MS = 1000
DELIVERY_TIMEOUT_MS = 120_000
# Partitions whose files are open at the same time, unless the schedule needs the first timestamps of all.
MOST_ACTIVE = 32
NO_TIMESTAMP = -1
# Committed offsets of partitions that are done would expire before those of the others (offsets.retention.minutes).
SAVE_ALL_INTERVAL_MS = 86_400_000
_IDS_FROM_VERSION = 13

# The settings of the target by which it refuses a batch.
_REFUSALS = {
    error_codes.MESSAGE_TOO_LARGE: "the batch is larger than max.message.bytes of the topic",
    error_codes.RECORD_LIST_TOO_LARGE: "the batch is larger than the segments of the topic (segment.bytes)",
    error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER: "the target does not have the records before it, or it has these already: is "
    "another run of this replay under way?",
    error_codes.INVALID_TIMESTAMP: "its timestamps are outside of message.timestamp.before.max.ms and "
    "message.timestamp.after.max.ms of the topic",
}


class Prepared(NamedTuple):
    """What the preparation found out."""

    partitions: list[PartitionReplay]
    producer_id: int
    producer_epoch: int


class Replayer:
    """One run; `prepare` and `check` are the steps before and after the records, `committed` the offsets to bring along."""

    def __init__(
        self,
        network: NetworkClient,
        source: Source,
        store: ProgressStore,
        prepare: Callable[[], Steps[Prepared]],
        schedule: Schedule | None = None,
        committed: Mapping[TopicPartition, list[CommittedOffset]] | None = None,
        check: Callable[[list[PartitionReplay]], Steps[None]] | None = None,
    ) -> None:
        self.network = network
        self.source = source
        self.partitions: list[PartitionReplay] = []
        self.sent = Sent()
        self.group_problems: dict[str, str] = {}
        self.committed_groups: dict[str, int] = {}
        self.kept_groups: dict[str, int] = {}
        self._store = store
        self._prepare = prepare
        self._check = check
        self._schedule = schedule or AtOnce()
        self._committed = committed or {}
        self._runner = StepRunner(network)
        self._done: Callable[[ClientError | None, int], None] | None = None
        self._producer = (-1, -1)
        self._topic_ids: dict[str, bytes] = {}
        self._checked_update = -1
        self._saved_all_ms = 0
        self._save_failing_since_ms: int | None = None
        self._uncommitted: dict[str, dict[TopicPartition, Commit]] = {}
        self._waiting: list[PartitionReplay] = []
        self._active: list[PartitionReplay] = []
        self._is_sending = False
        self._is_saving = False
        self._start_ms = 0
        self._origin: int | None = None
        self._wake: TimerTask | None = None
        self._save_timer: TimerTask | None = None
        self._throttled_until: dict[int, int] = {}

    # ------------------------------------------------------------------------------------------------------------ stages

    def run(self, done: Callable[[ClientError | None, int], None], now_ms: int) -> None:
        """Replay all; `done` gets None or the error that ended the run, after which the counts are final."""
        self._done = done
        self._runner.start(self._prepare(), self._prepared)

    def _prepared(self, result: Prepared | ClientError, now_ms: int) -> None:
        if isinstance(result, ClientError):
            self._end(result, now_ms)
            return
        self.partitions = result.partitions
        self._producer = result.producer_id, result.producer_epoch
        ids = {partition.target[0]: partition.progress.topic_id for partition in self.partitions}
        self._topic_ids = {name: topic_id for name, topic_id in ids.items() if topic_id != ZERO_UUID}
        self._waiting = list(reversed(self.partitions))
        self._start_ms = self._saved_all_ms = now_ms
        self._is_sending = True
        self._save_timer = self.network.timer.schedule(now_ms + SAVE_INTERVAL_MS, self._save_due)

    def poll(self, now_ms: int) -> None:
        """Send what is ready."""
        if not self._is_sending:
            return
        try:
            self._check_topics()
            self._activate()
            if self._has_origin():
                self._send_ready(now_ms)
        except Exception as error:
            self._end(as_client_error(error), now_ms)
            return
        if not self._active and not self._waiting and not self._is_saving:
            self._is_sending = False
            self._runner.start(self._finish(), self._finished)

    def _check_topics(self) -> None:
        """End the run if a topic of the target was deleted and made again: the new one would get the rest only."""
        metadata = self.network.metadata
        if metadata.update_count == self._checked_update:
            return
        self._checked_update = metadata.update_count
        for name in {partition.target[0] for partition in self.partitions} & metadata.topic_ids.keys():
            topic_id = metadata.topic_ids[name]
            if self._topic_ids.setdefault(name, topic_id) != topic_id:  # an id may come late, after an error of the topic
                raise ReplayError(
                    f"the topic {name!r} of the target was deleted and created again during the run; to send all records to "
                    "the new topic, run the same command again"
                )

    def _finish(self) -> Steps[None]:
        yield from refresh(self.network)  # a broker without topic ids in Produce does not notice another topic
        self._check_topics()
        for partition in self.partitions:
            partition.place_rest()
        yield from self._save()  # what follows may fail
        for partition in self.partitions:
            if partition.passed:
                committed = self._committed.get(partition.source, ())
                steps = place_earlier(self.network, self.source, partition, committed, self.group_problems)
                for group in (yield from steps):
                    self.kept_groups[group] = self.kept_groups.get(group, 0) + 1
        yield from self._save()
        if self._check is not None:
            yield from self._check(self.partitions)

    def _finished(self, result: ClientError | None, now_ms: int) -> None:
        self._end(result, now_ms)

    def _end(self, result: ClientError | None, now_ms: int) -> None:
        self._is_sending = False
        for timer in (self._wake, self._save_timer):
            if timer is not None:
                timer.cancel()
        for partition in self.partitions:
            if partition.stream is not None:
                partition.stream.close()
        done, self._done = self._done, None
        if done is not None:
            done(result, now_ms)

    # ----------------------------------------------------------------------------------------------------------- sending

    def _activate(self) -> None:
        """Open the streams of the partitions that may be active, and close those that are done."""
        for partition in self._active:
            if partition.is_ended and partition.stream is not None:
                partition.stream.close()
        self._active = [partition for partition in self._active if not partition.is_ended]
        most = len(self.partitions) if self._schedule.needs_origin else MOST_ACTIVE
        while self._waiting and len(self._active) < most:
            partition = self._waiting.pop()
            partition.open(self.source)
            self._active.append(partition)

    def _has_origin(self) -> bool:
        """Return whether the first timestamp is known, if the schedule needs it."""
        if self._origin is not None or not self._schedule.needs_origin:
            return True
        first = []
        for partition in self._active:
            batch = partition.peek()
            if batch is not None:
                first.append(batch.timestamp)
            elif not partition.is_ended:
                return False
        self._origin = min((timestamp for timestamp in first if timestamp != NO_TIMESTAMP), default=NO_TIMESTAMP)
        self._start_ms = self.network.timer.clock_ms
        return True

    def _send_ready(self, now_ms: int) -> None:
        """Send requests to all leaders that may get one, until no batch is ready."""
        wake_ms: float | None = None
        while True:
            by_leader: dict[int, list[InFlightBatch]] = {}
            sizes: dict[int, int] = {}
            wake_ms = None
            for partition in self._active:
                leader = self.network.metadata.cluster.leader_for(*partition.target)
                if leader == NO_LEADER:
                    due_ms = self._lost_leader(partition, now_ms)
                    if due_ms is not None:
                        wake_ms = due_ms if wake_ms is None else min(wake_ms, due_ms)
                    continue
                partition.leaderless_since_ms = None
                if self.network.in_flight_count(leader) >= MAX_IN_FLIGHT or sizes.get(leader, 0) >= REQUEST_BYTES:
                    continue
                paused_until_ms = max(partition.paused_until_ms, self._throttled_until.get(leader, 0))
                if now_ms < paused_until_ms:
                    wake_ms = paused_until_ms if wake_ms is None else min(wake_ms, paused_until_ms)
                    continue
                ready, due_ms = self._next_of(partition, now_ms)
                if ready is not None:
                    by_leader.setdefault(leader, []).append(ready)
                    sizes[leader] = sizes.get(leader, 0) + len(ready.batch.data)
                elif due_ms is not None:
                    wake_ms = due_ms if wake_ms is None else min(wake_ms, due_ms)
            if not by_leader:
                break
            self._active.append(self._active.pop(0))  # so that another partition is the first of the next request
            for leader, batches in by_leader.items():
                self._produce(leader, batches)
        if self._wake is not None:
            self._wake.cancel()
        self._wake = None if wake_ms is None else self.network.timer.schedule(int(wake_ms) + 1, lambda now_ms: None)

    def _next_of(self, partition: PartitionReplay, now_ms: int) -> tuple[InFlightBatch | None, float | None]:
        """Return the batch that a partition sends next; if there is one that is not due yet, its time."""
        waiting = partition.next_waiting()
        if waiting is not None or partition.has_failed:
            return waiting, None
        if len(partition.in_flight) >= partition.most_in_flight:
            return None, None
        batch = partition.peek()
        if batch is None:
            return None, None
        due_ms = self._due_ms(batch)
        if due_ms > now_ms:
            return None, due_ms
        self._check_size(partition, batch)
        self.sent = Sent(self.sent.records + batch.record_count, self.sent.bytes + len(batch.data))
        return partition.take(*self._producer), None

    def _check_size(self, partition: PartitionReplay, batch: OutgoingBatch) -> None:
        most = partition.max_message_bytes
        if most is not None and len(batch.data) > most:
            raise ReplayError(
                f"{partition.name}: the batch of {len(batch.data)} bytes at offset {batch.first_offset} of "
                f"{partition.source[0]}-{partition.source[1]} is larger than {MAX_MESSAGE_BYTES}={most} of the topic "
                f"{partition.target[0]!r} of the target; increase the limit, and run the same command again"
            )

    def _due_ms(self, batch: OutgoingBatch) -> float:
        return self._start_ms + self._schedule.due_ms(batch.timestamp, self._origin or 0, self.sent)

    def _lost_leader(self, partition: PartitionReplay, now_ms: int) -> float | None:
        """Count the time without a leader while something is due; return when that is the case, if it is not."""
        self.network.request_update()
        if not partition.in_flight:
            batch = partition.peek()
            due_ms = None if batch is None else self._due_ms(batch)
            if due_ms is None or due_ms > now_ms:
                partition.leaderless_since_ms = None
                return due_ms
        if partition.leaderless_since_ms is None:
            partition.leaderless_since_ms = now_ms
        self._check_time(partition, partition.leaderless_since_ms, now_ms, "it has no leader")
        return None

    def _produce(self, leader: int, batches: list[InFlightBatch]) -> None:
        kind = API_KEYS[PRODUCE].request
        of_topic, of_partition = kind.classes["TopicProduceData"], kind.classes["PartitionProduceData"]
        by_topic: dict[str, list[Message]] = {}
        for one in batches:
            one.state = BatchState.SENT
            topic, number = one.replay.target
            by_topic.setdefault(topic, []).append(of_partition(index=number, records=one.batch.data))
        ids = self._topic_ids

        def request(version: int) -> Message:
            has_ids = version >= _IDS_FROM_VERSION
            topics = [
                of_topic(**({"topic_id": ids[name]} if has_ids else {"name": name}), partition_data=parts)
                for name, parts in by_topic.items()
            ]
            return kind.new(acks=-1, timeout_ms=self.network.config.request_timeout_ms, topic_data=topics)

        self.network.send(leader, PRODUCE, request, partial(self._answered, leader, batches))

    # ----------------------------------------------------------------------------------------------------------- answers

    def _answered(self, leader: int, batches: list[InFlightBatch], answer: Answer, now_ms: int) -> None:
        if not self._is_sending:
            return
        try:
            if not isinstance(answer, PeerFailure) and answer.throttle_time_ms:
                self._throttled_until[leader] = now_ms + answer.throttle_time_ms
            self._take_answer(batches, answer, now_ms)
        except Exception as error:
            self._end(as_client_error(error), now_ms)

    def _take_answer(self, batches: list[InFlightBatch], answer: Answer, now_ms: int) -> None:
        if isinstance(answer, PeerFailure):
            if answer.is_lasting:
                raise failure_error(answer, PRODUCE)
            for one in batches:
                self._fail(one, now_ms, self.network.failure_reason())
            self.network.request_update()
            return
        parts = {}
        names = {topic_id: name for name, topic_id in self._topic_ids.items()}
        for topic in answer.responses:
            name = topic.name or names.get(topic.topic_id, "")
            for part in topic.partition_responses:
                parts[name, part.index] = part
        for one in batches:
            part = parts.get(one.replay.target)
            if part is None:
                self._fail(one, now_ms, "the answer to Produce does not have it")
            elif part.error_code in (0, error_codes.DUPLICATE_SEQUENCE_NUMBER):
                one.state, one.base_offset = BatchState.ACKED, part.base_offset
                one.replay.acknowledge()
            elif self._may_retry(one, part.error_code):
                self._fail(one, now_ms, error_codes.NAMES[part.error_code])
                self.network.request_update()
            else:
                raise self._refused(one, part)

    @staticmethod
    def _may_retry(one: InFlightBatch, code: int) -> bool:
        """Return whether a batch may be sent again; one after a batch that failed comes out of order."""
        if code == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return one.replay.in_flight[0] is not one
        return code in error_codes.RETRIABLE

    def _fail(self, one: InFlightBatch, now_ms: int, reason: str) -> None:
        one.state = BatchState.FAILED
        one.replay.paused_until_ms = now_ms + self.network.config.retry_backoff_ms
        self._failing(one.replay, now_ms, reason)

    def _failing(self, partition: PartitionReplay, now_ms: int, reason: str) -> None:
        """End the run if a partition has failed for too long."""
        if partition.failing_since_ms is None:
            partition.failing_since_ms = now_ms
        self._check_time(partition, partition.failing_since_ms, now_ms, reason)

    @staticmethod
    def _check_time(partition: PartitionReplay, since_ms: int, now_ms: int, reason: str) -> None:
        if now_ms - since_ms > DELIVERY_TIMEOUT_MS:
            raise ReplayError(f"{partition.name}: nothing was acknowledged for {DELIVERY_TIMEOUT_MS // 1000} s: {reason}")

    @staticmethod
    def _refused(one: InFlightBatch, part: Message) -> ReplayError:
        source = f"{one.replay.source[0]}-{one.replay.source[1]}"
        name = error_codes.NAMES.get(part.error_code, f"error code {part.error_code}")
        reason = _REFUSALS.get(part.error_code) or part.error_message
        details = [error.batch_index_error_message for error in part.record_errors if error.batch_index_error_message]
        reason = "; ".join(filter(None, [reason, *details[:1]]))
        return ReplayError(
            f"{one.replay.name}: the target refuses the batch at offset {one.batch.first_offset} of {source} with {name}"
            + (f": {reason}" if reason else "")
        )

    # ---------------------------------------------------------------------------------------------------------- progress

    def _save_due(self, now_ms: int) -> None:
        if self._is_sending and not self._is_saving:
            self._is_saving = True
            self._runner.start(self._save(), self._saved)

    def _saved(self, result: ClientError | None, now_ms: int) -> None:
        self._is_saving = False
        if isinstance(result, KafkaTimeoutError) and self._is_sending:
            since_ms = self._save_failing_since_ms = self._save_failing_since_ms or now_ms
            if now_ms - since_ms <= DELIVERY_TIMEOUT_MS:
                self._save_timer = self.network.timer.schedule(now_ms + SAVE_INTERVAL_MS, self._save_due)
                return
        else:
            self._save_failing_since_ms = None
        if isinstance(result, ClientError):
            self._end(result, now_ms)
        elif self._is_sending:
            self._save_timer = self.network.timer.schedule(now_ms + SAVE_INTERVAL_MS, self._save_due)

    def _save(self) -> Steps[None]:
        """Commit the offsets of groups that have become known, then save the progress. Raises ClientError."""
        now_ms = self.network.timer.clock_ms
        is_for_all = now_ms - self._saved_all_ms >= SAVE_ALL_INTERVAL_MS
        changed = [partition for partition in self.partitions if is_for_all or not partition.is_saved]
        progress = {partition.target: partition.progress for partition in changed}
        for partition in changed:
            partition.is_saved = True
        try:
            yield from self._commit_known_offsets()
            if progress:
                yield from check_alone(self._store, list(progress), self._producer[0])
                yield from self._store.save(progress)
        except ClientError:
            for partition in changed:
                partition.is_saved = False
            raise
        if is_for_all:
            self._saved_all_ms = now_ms

    def _commit_known_offsets(self) -> Steps[None]:
        self._add_known_offsets()
        for group, commits in list(self._uncommitted.items()):
            if group not in self.group_problems:
                try:
                    yield from self._commit(group, commits)
                except ClientError as error:
                    if isinstance(error, KafkaTimeoutError) and self._is_sending:
                        raise
                    self.group_problems[group] = str(error)
            del self._uncommitted[group]

    def _commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> Steps[None]:
        """Commit the offsets of a group that are larger than its own in the target, where its consumers may run already."""
        offsets = GroupOffsets(self.network, group)
        own = yield from offsets.fetch(sorted(commits))
        new = {where: commit for where, commit in commits.items() if where not in own or own[where].offset < commit.offset}
        if new:
            yield from offsets.commit(new)
            self.committed_groups[group] = self.committed_groups.get(group, 0) + len(new)
        kept = sum(own[where].offset > commit.offset for where, commit in commits.items() if where in own)
        if kept:
            self.kept_groups[group] = self.kept_groups.get(group, 0) + kept

    def _add_known_offsets(self) -> None:
        for partition in self.partitions:
            places = partition.take_places()
            for committed in self._committed.get(partition.source, ()) if places else ():
                place = places.get(committed.offset)
                if place is not None:
                    commits = self._uncommitted.setdefault(committed.group, {})
                    commits[partition.target] = Commit(place, committed.metadata)
