"""A member of a classic or consumer group: an application on the core of kcli's own consumer.

    the application                        what it does
    -------------------------------------  -------------------------------------------------------------------------------
    polls                                  as the shells do: listener calls, errors, records; then its work (CommitWork,
                                           Transform), and sometimes pauses
    commits                                waiting or not, its positions or all that was returned; or has the client do it
    its listener: revoked                  commits what it has of the partitions; takes its time
    its listener: lost                     sometimes tries to commit: that must be refused
    after an aborted transaction           seeks to the committed offsets
    misbehaves                             does not poll for longer than max.poll.interval.ms and commits then; dies, so that
                                           the broker hears of it or not; closes or unsubscribes, and comes back
    a zombie of it                         commits its last positions by raw requests when it has died or closed: when others
                                           have the partitions, that must be refused

What the application gets is in the history: polls with the positions before and after them, a view for each assignment or seek,
and the partitions that it has in each generation.

WireHistory adds to the history what the core sends and gets: offsets that it commits, and offsets that it reads. The
application does not see all of them: an automatic commit, an attempt that was lost and may be executed later, the committed
offset at which a partition begins. So they come from the frames; what the client returns is recorded in addition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from random import Random

from kcli.client.consumer.consumer import ConsumerCore
from kcli.client.consumer.consumer_config import CLASSIC, ConsumerConfig
from kcli.client.consumer.consumer_record import ConsumerRecord
from kcli.client.consumer.making_membership import make_membership
from kcli.client.consumer.membership import CloseOption, GroupMetadata, Membership
from kcli.client.errors import ClientError, CommitFailedError, DisconnectedError, KafkaError, KafkaTimeoutError
from kcli.client.value_checks import OffsetAndMetadata
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import CONSUMER_GROUP_HEARTBEAT, HEARTBEAT, JOIN_GROUP, OFFSET_COMMIT, OFFSET_FETCH
from kcli.protocol.message import Message
from kcli.simulator.client import Task
from kcli.simulator.coordination.fetching import READ_COMMITTED, Fetched
from kcli.simulator.coordination.group_member import (
    DIED_SHARE,
    ENDED_SHARE,
    HEARTBEAT_MS,
    LEFT_SHARE,
    MAX_PAUSE_MS,
    PAUSED_SHARE,
    SESSION_MS,
    STALE,
    CommitWork,
    Offsets,
    Work,
)
from kcli.simulator.coordination.history import OffsetCommit, OffsetRead, Ownership, Poll
from kcli.simulator.coordination.stage import RETRIABLE, Caller, Stage
from kcli.simulator.core_client import CoreClient, WireRequest
from kcli.simulator.partition_ledger import SimulationFailure
from kcli.simulator.world import PAUSE_MS

AUTO_COMMIT_SHARE = 0.3
SILENT_SHARE = 0.4  # of the deaths
POLL_INTERVALS_MS = (2500, 4000)
POLL_MS = 200
CLOSE_MS = 4000
MAX_ZOMBIE_MS, ZOMBIE_COMMITS = 2000, 5
_ISOLATION = {True: "read_committed", False: "read_uncommitted"}
# A static member whose predecessor is still in the group, or that has a successor, begins again as a new process.
_TAKEN = frozenset((error_codes.FENCED_INSTANCE_ID, error_codes.UNRELEASED_INSTANCE_ID))


class CoreMember:
    """See the head of this module."""

    def __init__(
        self,
        stage: Stage,
        group: str,
        name: str,
        rng: Random,
        topic: str,
        work: Work,
        *,
        protocol: str = CLASSIC,
        strategies: tuple[str, ...] = ("range",),
        instance_id: str | None = None,
        may_end: bool = False,
    ) -> None:
        self.group = group
        self.name = name
        self.record_count = 0
        self.instance_id = instance_id
        self.committed: dict[TopicPartition, int] = {}
        self._stage = stage
        self._rng = rng
        self._topic = topic
        self._work = work
        self._is_auto = isinstance(work, CommitWork) and rng.random() < AUTO_COMMIT_SHARE
        self._is_committed_only = work.isolation == READ_COMMITTED
        self._may_end = may_end  # it may die for good, since the group has another member
        self._ends_at_draining = may_end and rng.random() < ENDED_SHARE
        self._has_ended = False
        self._config = ConsumerConfig(
            group_id=group,
            group_instance_id=instance_id,
            group_protocol=protocol,
            partition_assignment_strategy=strategies,
            session_timeout_ms=rng.choice(SESSION_MS),
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=rng.choice(POLL_INTERVALS_MS),
            max_poll_records=rng.choice((1, 5, 500)),
            enable_auto_commit=self._is_auto,
            auto_commit_interval_ms=rng.choice((100, 700)),
            auto_offset_reset="earliest",
            isolation_level=_ISOLATION[self._is_committed_only],
            # Below all request timeouts; each Fetch of a cluster is many events.
            fetch_max_wait_ms=rng.choice((100, 250) if stage.is_core_only else (0, 50, 100)),
            max_partition_fetch_bytes=rng.choice((1, 300, 1 << 20)),
        )
        self._lives = 0
        self._earlier_ids: set[str] = set()
        self._views: dict[TopicPartition, int] = {}
        self._done: dict[TopicPartition, int] = {}  # the positions after what was processed
        self._zombie = Caller(stage, f"{name} zombie", rng)
        self._noted: tuple[GroupMetadata, frozenset[TopicPartition]] | None = None
        self._client: CoreClient
        self._core: ConsumerCore
        self._wire: WireHistory

    # --------------------------------------------------------------------------------------------- of the group, for the work

    @property
    def _membership(self) -> Membership:
        membership = self._core.membership
        assert membership is not None
        return membership

    @property
    def member_id(self) -> str:
        """The member's id, as the application gets it for a transaction."""
        return self._core.group_metadata().member_id

    @property
    def generation(self) -> int:
        """The member's generation or epoch, in the same way."""
        return self._core.group_metadata().generation_id

    # -------------------------------------------------------------------------------------------------------------- lives

    def _begin_life(self) -> None:
        """Begin as a new process."""
        stage = self._stage
        self._lives += 1
        self._client = stage.core_client(f"{self.name}.{self._lives}", self._rng, stage.client_config(self._rng), may_repeat)
        self._wire = WireHistory(stage, self._client, self.group)
        self._core = self._make_core(self._client)
        self._client.run(self._core.poll)
        self._noted = None
        self._forget(list(self._views))
        self._client.call(partial(self._core.subscribe, [self._topic], self))

    def _make_core(self, client: CoreClient) -> ConsumerCore:
        return ConsumerCore(client.network, self._config, make_membership, client.log)

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._views.pop(partition, None)
            self._done.pop(partition, None)
            self.committed.pop(partition, None)

    def run(self) -> Task[None]:
        """Read until the workload is over. Raises SimulationFailure."""
        self._begin_life()
        while not self._stage.is_over:
            try:
                records = yield from self._poll(self._rng.randrange(POLL_MS))
            except ClientError as error:
                yield from self._failed(error)
                continue
            fetched = self._take(records)
            is_good = yield from self._work.process(self, fetched)
            if is_good:
                self._done.update({where: one.position for where, one in fetched.items() if where in self._views})
            else:
                yield from self._go_back(list(fetched))
            yield from self._misbehave()
            if self._has_ended or (self._ends_at_draining and self._stage.is_draining):
                self._stage.world.trace.add(self.name, "has ended without a word")
                self._client.kill()
                return
            yield self._rng.randrange(1, MAX_PAUSE_MS)
        yield from self._close(CloseOption.LEAVE_GROUP)

    # --------------------------------------------------------------------------------------------------------------- poll

    def _poll(self, timeout_ms: int) -> Task[list[ConsumerRecord]]:
        """Poll as a shell does. Raises ClientError."""
        client, core = self._client, self._core
        client.call(core.begin_poll)
        end_ms = client.now_ms + timeout_ms
        while True:
            while core.take_auto_commit() is not None:  # for the interceptors
                pass
            yield from self._call_listener()
            client.call(core.raise_error)
            self._note_ownership()
            before = self._positions()
            records = client.call(core.collect)
            self._note_polls(before, records)
            left_ms = end_ms - client.now_ms
            if records or left_ms <= 0:
                return records
            yield client.start(partial(core.await_work, timeout_ms=left_ms))
            client.call(core.polled)

    def _positions(self) -> dict[TopicPartition, int]:
        """Return the positions of the partitions whose records may be returned."""
        state = self._core.subscriptions
        found = {partition: state.position(partition) for partition in sorted(self._views) if state.is_kept(partition)}
        return {partition: position.offset for partition, position in found.items() if position is not None}

    def _note_polls(self, before: Mapping[TopicPartition, int], records: list[ConsumerRecord]) -> None:
        by_partition: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        for one in records:
            assert isinstance(one.value, bytes)
            by_partition.setdefault((one.topic, one.partition), []).append((one.offset, one.value))
        after, stage = self._positions(), self._stage
        for partition in by_partition.keys() - before.keys():
            raise SimulationFailure(f"{self.name} got records of {partition}, whose assignment its listener has not heard of")
        for partition, start in before.items():
            found, end = by_partition.get(partition, []), after.get(partition, start)
            self.record_count += len(found)
            if found or end > start:
                view = self._views[partition]
                poll = Poll(self.name, self.group, view, partition, start, end, found, self._is_committed_only, stage.now_ms)
                stage.history.polls.append(poll)

    def _take(self, records: list[ConsumerRecord]) -> dict[TopicPartition, Fetched]:
        """Return what is to be processed, and the positions after it; also of partitions without records."""
        found: dict[TopicPartition, Fetched] = {
            partition: Fetched([], position) for partition, position in self._positions().items()
        }
        for one in records:
            assert isinstance(one.value, bytes)
            found[one.topic, one.partition].records.append((one.offset, one.value))
        return found

    def _note_ownership(self) -> None:
        """Record the partitions of a new generation, once the listener knows them."""
        metadata, owned = self._core.group_metadata(), frozenset(self._views)
        if metadata.generation_id <= 0 or not self._membership.is_ready_to_fetch or (metadata, owned) == self._noted:
            return
        self._noted = metadata, owned
        stage, member_id, generation = self._stage, metadata.member_id, metadata.generation_id
        if self.instance_id is not None:
            for earlier in self._earlier_ids - {member_id}:
                stage.history.fenced_ms.setdefault(earlier, stage.now_ms)
            self._earlier_ids.add(member_id)
        for partition in sorted(owned):
            ownership = Ownership(self.group, generation, member_id, partition, self._wire.asked_ms, stage.now_ms)
            stage.history.ownerships.append(ownership)
        names = ",".join(f"{name}-{index}" for name, index in sorted(owned))
        stage.world.trace.add(self.name, f"{member_id} has {names or 'nothing'} in generation {generation}")

    # ----------------------------------------------------------------------------------------------------------- listener

    def _call_listener(self) -> Task[None]:
        """Call the listener, which is this object, as long as the membership wants it; its methods are tasks."""
        client, membership = self._client, self._membership
        while (callback := client.call(lambda now_ms: membership.start_callback())) is not None:
            partitions = sorted(callback.partitions)
            self._stage.world.trace.add(self.name, f"{callback.kind.value} {partitions}")
            method: Callable[[list[TopicPartition]], Task[None]] = getattr(self, callback.kind.value)
            yield from method(partitions)
            client.call(lambda now_ms: membership.callback_done(None, now_ms))

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> Task[None]:
        """Begin a view of each partition. Raises SimulationFailure for one that the member has."""
        for partition in partitions:
            if partition in self._views:
                raise SimulationFailure(f"{self.name} was assigned {partition}, which it has")
            self._views[partition] = self._stage.history.new_view()
        yield from ()

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> Task[None]:
        """Commit what was processed. Raises SimulationFailure for partitions that the member does not have."""
        missing = [partition for partition in partitions if partition not in self._views]
        if missing:
            raise SimulationFailure(f"{self.name} gives back {missing}, which it does not have")
        yield from self._give_back(partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> Task[None]:
        """Try to commit what was processed: the group must refuse it."""
        yield from self._give_back(partitions)

    def _give_back(self, partitions: Collection[TopicPartition]) -> Task[None]:
        offsets = {where: at for where, at in self._done.items() if where in partitions and at > self.committed.get(where, 0)}
        if offsets and isinstance(self._work, CommitWork) and not self._is_auto and self._rng.random() < 0.7:
            yield from self._commit_and_wait(offsets)
        if self._rng.random() < 0.3:
            yield self._rng.randrange(MAX_PAUSE_MS)
        self._forget(partitions)

    # ------------------------------------------------------------------------------------------------------------ commits

    def commit(self, offsets: Mapping[TopicPartition, int]) -> Task[None]:
        """Commit offsets, waiting for the result or not."""
        if self._is_auto:
            return
        if self._stage.is_draining or self._rng.random() < 0.5:
            yield from self._commit_and_wait(offsets)
        else:
            self._commit(offsets, None)

    def _commit_and_wait(self, offsets: Mapping[TopicPartition, int]) -> Task[None]:
        done: list[bool] = []
        self._commit(offsets, self._rng.choice((500, 2000)), done)
        while not done:
            yield self._rng.randrange(1, 20)

    def _commit(self, offsets: Mapping[TopicPartition, int], timeout_ms: int | None, done: list[bool] | None = None) -> None:
        stage, sent_ms = self._stage, self._stage.now_ms
        wanted = {where: OffsetAndMetadata(at) for where, at in offsets.items()}

        def committed(error: ClientError | None, now_ms: int) -> None:
            if done is not None:
                done.append(True)
            if error is not None:
                self._check_commit(error)
                return
            for partition, offset in offsets.items():
                # The word of the client; what it has sent is in the history, too.
                commit = OffsetCommit(self.group, partition, offset, sent_ms)
                commit.answered_ms = now_ms
                stage.history.commits.append(commit)
                if partition in self._views:
                    self.committed[partition] = max(offset, self.committed.get(partition, 0))

        try:
            self._client.call(lambda now_ms: self._core.commit(wanted, committed, now_ms, timeout_ms))
        except ClientError as error:
            committed(error, stage.now_ms)

    def _check_commit(self, error: ClientError) -> None:
        """Raise SimulationFailure for an error that a commit may not have."""
        self._stage.world.trace.add(self.name, f"{type(error).__name__}: {error}")
        if isinstance(error, KafkaError) and error.code in RETRIABLE | STALE:
            return
        if not isinstance(error, (CommitFailedError, DisconnectedError, KafkaTimeoutError)):
            raise SimulationFailure(f"{self.name}: a commit has failed: {type(error).__name__}: {error}")

    def _go_back(self, partitions: list[TopicPartition]) -> Task[None]:
        """Seek to the committed offsets, after a transaction that was not committed."""
        wanted = [partition for partition in partitions if partition in self._views]
        while wanted and not self._stage.is_over:
            found = yield from self._client.ask(partial(self._core.committed, wanted, timeout_ms=1000))
            if isinstance(found, ClientError):
                self._stage.world.trace.add(self.name, f"{type(found).__name__}: {found}")
                yield self._rng.randrange(1, PAUSE_MS)
                if self._membership.next_callback() is not None:
                    # The partitions are given back, or lost; those that are not begin at the committed offsets later.
                    yield from self._call_listener()
                    wanted = [partition for partition in wanted if partition in self._views]
                continue
            for partition in sorted(found):
                offset = found[partition]
                if self._core.subscriptions.is_kept(partition):
                    at = 0 if offset is None else offset.offset
                    self._client.call(partial(self._core.seek, partition, at, -1))
                    self._views[partition] = self._stage.history.new_view()
                    self.committed[partition] = at
            return

    # ------------------------------------------------------------------------------------------------------------- faults

    def _failed(self, error: ClientError) -> Task[None]:
        """Begin again after an error that stays. Raises SimulationFailure for one that is not allowed."""
        self._stage.world.trace.add(self.name, f"{type(error).__name__}: {error}")
        if not (isinstance(error, KafkaError) and error.code in _TAKEN and self.instance_id is not None):
            raise SimulationFailure(f"{self.name}: a poll has failed: {type(error).__name__}: {error}")
        self._client.kill()
        yield self._rng.randrange(1, 500)
        self._begin_life()

    def _misbehave(self) -> Task[None]:
        rng, trace = self._rng, self._stage.world.trace
        if self._stage.is_draining:
            return
        choice = rng.random()
        if choice < PAUSED_SHARE:
            trace.add(self.name, "does not poll")
            yield rng.randrange(2 * self._config.max_poll_interval_ms)
            if self._done and isinstance(self._work, CommitWork):
                yield from self.commit(dict(self._done))
        elif choice < PAUSED_SHARE + DIED_SHARE:
            trace.add(self.name, f"{self.member_id} dies")
            self._leave_zombie()
            self._client.kill(is_silent=rng.random() < SILENT_SHARE)
            self._has_ended = self._may_end and rng.random() < ENDED_SHARE
            if not self._has_ended:
                yield rng.randrange(self._config.session_timeout_ms // (2 if self.instance_id else 1))
                self._begin_life()
        elif choice < PAUSED_SHARE + DIED_SHARE + LEFT_SHARE / 2:
            self._leave_zombie()
            yield from self._close(rng.choice((CloseOption.DEFAULT, CloseOption.LEAVE_GROUP)))
            yield rng.randrange(PAUSE_MS)
            self._begin_life()
        elif choice < PAUSED_SHARE + DIED_SHARE + LEFT_SHARE:
            yield from self._unsubscribe()

    def _leave_zombie(self) -> None:
        """Let another thread of the process commit when the member has gone; the client itself would not send that."""
        metadata = self._core.group_metadata()
        if self._stage.is_core_only:
            return
        if self._done and isinstance(self._work, CommitWork) and metadata.generation_id > 0:
            self._stage.world.run(self._commit_as_zombie(dict(self._done), metadata))

    def _commit_as_zombie(self, offsets: dict[TopicPartition, int], metadata: GroupMetadata) -> Task[None]:
        member_id, generation, instance_id = metadata.member_id, metadata.generation_id, metadata.group_instance_id
        late, is_consumer = Offsets(self._stage, self._zombie, self.group), self._config.group_protocol != CLASSIC
        for _ in range(ZOMBIE_COMMITS):
            yield self._rng.randrange(MAX_ZOMBIE_MS)
            if not self._stage.is_draining:
                yield from late.commit(
                    offsets, member_id, generation, is_consumer=is_consumer, may_repeat=False, instance_id=instance_id
                )

    def _finish(self, start: partial[None]) -> Task[None]:
        """Wait for the end of a membership, as a shell does, for a limited time."""
        client = self._client
        left = client.start(start)
        end_ms = client.now_ms + CLOSE_MS
        while not left.is_done and client.now_ms < end_ms:
            yield from self._call_listener()
            yield self._rng.randrange(1, 20)
        yield from self._call_listener()

    def _close(self, option: CloseOption) -> Task[None]:
        self._stage.world.trace.add(self.name, f"closes ({option.value})")
        yield from self._finish(partial(self._core.close, option=option))
        self._client.close()

    def _unsubscribe(self) -> Task[None]:
        """Leave the group and come back, in the same process."""
        self._stage.world.trace.add(self.name, "unsubscribes")
        yield from self._finish(partial(self._core.leave_group))
        self._client.call(self._core.unsubscribe)
        self._forget(list(self._views))
        yield self._rng.randrange(PAUSE_MS)
        self._client.call(partial(self._core.subscribe, [self._topic], self))


_GROUPS_VERSION = 8  # of OffsetFetch
_REPEATED = frozenset((OFFSET_COMMIT, HEARTBEAT))


def may_repeat(request: WireRequest) -> bool:
    """Return whether a request may come a second time without giving partitions away for the member."""
    return request.api_key in _REPEATED


class WireHistory:
    """The requests of one process; `asked_ms` is the time of the last request that brought a generation or member epoch."""

    def __init__(self, stage: Stage, client: CoreClient, group: str) -> None:
        self.asked_ms = stage.now_ms
        self._stage = stage
        self._name = client.name
        self._group = group
        client.observers[OFFSET_COMMIT] = self._commit
        client.observers[OFFSET_FETCH] = self._fetch
        client.observers[JOIN_GROUP] = client.observers[CONSUMER_GROUP_HEARTBEAT] = self._join

    def _check(self, code: int, what: str, allowed: frozenset[int]) -> None:
        if code and code not in allowed:
            raise SimulationFailure(f"{self._name}: {what} returned error {error_codes.NAMES.get(code, code)}")

    def _topic(self, topic: Message) -> str:
        return topic.name or self._stage.topic_name(topic.topic_id)

    # ---------------------------------------------------------------------------------------------------------- commits

    def _commit(self, request: WireRequest) -> None:
        message, stage = request.decode(), self._stage
        commits = {
            (self._topic(topic), part.partition_index): OffsetCommit(
                self._group,
                (self._topic(topic), part.partition_index),
                part.committed_offset,
                stage.now_ms,
                message.member_id,
                message.generation_id_or_member_epoch,
            )
            for topic in message.topics
            for part in topic.partitions
        }
        for commit in commits.values():
            commit.is_stray = True  # until it is answered
        stage.history.commits += commits.values()
        request.on_end = partial(self._committed, commits, request.is_repeated)

    def _committed(self, commits: dict[tuple[str, int], OffsetCommit], is_repeated: bool, answer: Message | None) -> None:
        if answer is None:
            return
        for topic in answer.topics:
            for part in topic.partitions:
                code, commit = part.error_code, commits[self._topic(topic), part.partition_index]
                self._check(code, "OffsetCommit", RETRIABLE | STALE)
                if not code:
                    commit.answered_ms = self._stage.now_ms
                    commit.is_stray = is_repeated
                elif code in STALE:
                    commit.is_refused, commit.is_stray = not is_repeated, is_repeated

    # ------------------------------------------------------------------------------------------------------------ reads

    def _fetch(self, request: WireRequest) -> None:
        def answered(answer: Message | None) -> None:
            if answer is None:
                return
            group = answer.groups[0] if request.version >= _GROUPS_VERSION else answer
            self._check(group.error_code, "OffsetFetch", RETRIABLE | STALE)
            reads = []
            for topic in () if group.error_code else group.topics:
                for part in topic.partitions:
                    self._check(part.error_code, "OffsetFetch", RETRIABLE | {error_codes.UNSTABLE_OFFSET_COMMIT})
                    if part.error_code:
                        return  # the client uses none of the offsets
                    where, now_ms = (self._topic(topic), part.partition_index), self._stage.now_ms
                    reads.append(OffsetRead(self._group, where, part.committed_offset, request.sent_ms, now_ms))
            self._stage.history.offset_reads += reads

        request.on_end = answered

    # ------------------------------------------------------------------------------------------------------- generations

    def _join(self, request: WireRequest) -> None:
        def answered(answer: Message | None) -> None:
            if answer is not None and not answer.error_code:
                self.asked_ms = request.sent_ms

        request.on_end = answered
