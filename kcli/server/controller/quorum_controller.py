"""The quorum controller: decides requests on the metadata one after the other, and answers when their records are committed.

    step      does
    --------  --------------------------------------------------------------------------------------------------------
    decide    a handler reads the state and returns records and a response, or refuses; it changes no state
    append    the records are appended to the metadata log in one batch and applied to the controller's image (a higher
              kraft.version before them, in a batch of its own). A request of an administrator is refused if it makes more
              than MAX_RECORDS_PER_APPEND records or MAX_BATCH_BYTES; the records that follow from a broker's state are split
              into batches of SPLIT_RECORDS
    prepare   a larger batch, which may not be split, is applied before it is appended, in time slices. A client that asks for
              the state in between is answered afterwards
    commit    the raft client delivers them to its listeners; then the response is sent
    nothing   a decision without records is also answered only when all earlier records are committed, which it may be based on

A decision of many records is made and encoded in time slices. Requests that arrive in between wait until it is applied: no
decision is based on half of another one, and the other users of the event loop are not delayed.

Only the active controller (the leader of the quorum) decides; others answer NOT_CONTROLLER. When a controller loses the
leadership, the records that it appended and that are not committed are reverted in its image; what later leaders write is then
applied to it.

The active controller decides some things itself, the first time one interval after it became active:

    task                 each                                     does
    -------------------  ---------------------------------------  ------------------------------------------------------
    NoOp record          metadata.max.idle.interval.ms            if nothing was appended: followers and observers see the
                                                                  high watermark advance
    sessions             broker.session.timeout.ms / 8            fences the broker whose session expired first; one a run,
                                                                  so that the next decision sees what follows from it
    preferred leaders    leader.imbalance.check.interval.seconds  elects them (auto.leader.rebalance.enable)
    unclean elections    unclean.leader.election.interval.ms      of partitions without a leader whose topic allows them

Of elections a run makes at most MAX_ELECTIONS records; the rest follow at once, as decisions of their own.

QuorumControllerMetrics counts elections by their kind, expired sessions, and records that do not fit.

the new leader was      counts as
----------------------  --------------------------------------------------------------------------
in the ISR              nothing
in the ELR (KIP-966)    election_from_eligible
in neither              unclean: records may be lost
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from kcli.format.kafka_uuid import ZERO_UUID
from kcli.format.primitives import FormatError
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.protocol.apis import ALTER_PARTITION, API_KEYS, BROKER_HEARTBEAT, BROKER_REGISTRATION, UNREGISTER_BROKER
from kcli.protocol.message import Message
from kcli.server.controller.control_managers import ControlManagers
from kcli.server.controller.controller_result import ApiError, ControllerRequestContext
from kcli.server.controller.controller_state import ControllerState
from kcli.server.controller.error_answers import error_answer
from kcli.server.log_lines import WarningLine, fault_line
from kcli.server.metrics.sampled import Sampled
from kcli.server.raft.kafka_raft_client import KafkaRaftClient, NotLeaderError
from kcli.server.raft.messages import SnapshotId
from kcli.server.raft.metadata_batches import MAX_BATCH_BYTES, MAX_RECORDS_PER_APPEND, EncodedRecords, MetadataBatch, new_record
from kcli.server.raft.raft_manager import check_features
from kcli.server.scheduler import Scheduler
from kcli.state.metadata_image import MetadataImage


class QuorumControllerMetrics:
    """Counters since the start of the process; the times of operations are in ms of the node's own time.

    On the active controller the last applied record is the last one that it appended, on others the last committed one.
    """

    __slots__ = (
        *("applied_offset", "applied_timestamp_ms", "committed_offset", "elections_from_eligible", "metadata_errors"),
        *("new_leaders", "operations", "processing_times", "queue_times", "timed_out_heartbeats", "unclean_elections"),
    )

    def __init__(self) -> None:
        self.applied_offset = self.committed_offset = -1
        self.applied_timestamp_ms = -1
        self.operations = 0
        self.queue_times = Sampled()
        self.processing_times = Sampled()
        self.elections_from_eligible = 0
        self.metadata_errors = 0
        self.new_leaders = 0
        self.timed_out_heartbeats = 0
        self.unclean_elections = 0

    def applied(self, last_offset: int, timestamp_ms: int) -> None:
        """Note that records up to an offset are applied."""
        self.applied_offset, self.applied_timestamp_ms = last_offset, timestamp_ms

    def count_election(self, image: MetadataImage, record: Message) -> None:
        """Count the election, if a record that is about to be applied to `image` makes one."""
        if record.STRUCT.name != "PartitionChangeRecord" or record.leader < 0:
            return
        topic = image.topics.get(record.topic_id)
        partition = None if topic is None else topic.partitions.get(record.partition_id)
        if partition is None or record.leader == partition.leader or record.leader in partition.isr:
            return
        if record.leader in partition.eligible_leader_replicas:
            self.elections_from_eligible += 1
        else:
            self.unclean_elections += 1


# The records that follow from a change of a broker's state may need several batches. A prefix of them is a valid state, too,
# because the change of the registration is the last. The changes of an AlterPartition have nothing to do with each other.
_MAY_BE_SPLIT = frozenset((BROKER_REGISTRATION, BROKER_HEARTBEAT, UNREGISTER_BROKER, ALTER_PARTITION))
# The number of records that are made and encoded in one time slice, about 3 ms of work.
SLICE_RECORDS = 100
# The number of records in a batch of those that may be split. It is appended and applied in one time slice, 10 us a record.
SPLIT_RECORDS = 300
_CHECKS_PER_SESSION = 8
_UNCLEAN_TEXT = "elected leaders of {} partition(s) that had none; records may be lost: unclean.leader.election.enable is true"
# The number of elections in a run of a periodic task, as in Kafka (MAX_ELECTIONS_PER_IMBALANCE).
MAX_ELECTIONS = 1000
Respond = Callable[[Message], None]


class ControllerTimes(NamedTuple):
    """The intervals of the controller's own work; 0 disables it."""

    max_idle_interval_ms: int = 500
    preferred_leaders_ms: int = 300_000
    unclean_elections_ms: int = 300_000


class QuorumController:
    """The controller of one node, a RaftListener. `first_records()` yields the batches that a new leader begins with."""

    def __init__(
        self,
        raft: KafkaRaftClient,
        state: ControllerState,
        managers: ControlManagers,
        timer: Timer,
        scheduler: Scheduler,
        times: ControllerTimes,
        first_records: Callable[[], Iterable[list[Message]]],
        report: Callable[[str], None],
    ) -> None:
        self._raft = raft
        self.state = state
        self._managers = managers
        self._timer = timer
        self._scheduler = scheduler
        self._times = times
        self._first_records = first_records
        self._report = report
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()  # (offset to be committed, answer)
        self._is_deciding = False  # a decision is between two time slices, or waits for its first
        self._is_preparing = False  # a part of its records is applied, and none is appended
        self._queue: deque[tuple[Callable[[int], Iterator[None]], int]] = deque()  # and when it was enqueued
        self._last_append_ms = 0
        self._activations = 0  # periodic tasks belong to one
        self.is_active = False
        self._active_epoch = -1
        self.metrics = QuorumControllerMetrics()

    # ----------------------------------------------------------------------------------------------------- the raft log

    def on_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        """Begin a new image, which the snapshot's batches fill; it is used when it is complete. A leader never loads one."""
        self.state.begin_snapshot()

    def on_commit(self, batch: MetadataBatch, now_ms: int) -> None:
        """Apply the records of other leaders; answer the requests whose records are committed.

        Raises MetadataLogError for features that this node does not support: it must stop.
        """
        self.state.commit(batch.last_offset)
        self.metrics.committed_offset = batch.last_offset
        if batch.last_offset > self.metrics.applied_offset:
            self.metrics.applied(batch.last_offset, batch.timestamp_ms)
        for control in batch.control_records:
            self.state.replay(control, batch.last_offset)
        if not self.is_active:
            check_features(self._raft.config.directory, batch.records)
            for delta, record in enumerate(batch.records):
                self.state.replay(record, min(batch.base_offset + delta, batch.last_offset))
        if batch.ends_snapshot:
            self.state.end_snapshot()
        while self._waiting and self._waiting[0][0] <= batch.last_offset:
            self._waiting.popleft()[1]()

    def on_leader_change(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Become the active controller, or stop being it."""
        self.metrics.new_leaders += leader_id >= 0
        if leader_id >= 0 and self.state.joined_offset is None:
            self.state.joined_offset = self._raft.next_offset
        if self.is_active and not (self._raft.is_leader and self._active_epoch == self._raft.epoch):
            self._resign()
        if self._raft.is_leader and not self.is_active:
            self.is_active, self._active_epoch = True, self._raft.epoch
            self.state.begin_sessions(now_ms)
            self._last_append_ms = now_ms
            try:
                for records in self._first_records():
                    self._append_now(records, now_ms)
            except NotLeaderError:
                return  # it has resigned, and has logged why
            self._begin_tasks(now_ms)

    def _resign(self) -> None:
        """Stop being active: revert what is not committed, and answer those who wait for it with NOT_CONTROLLER."""
        self.is_active = False
        self.state.roll_back()
        self.metrics.applied_offset = self.metrics.committed_offset
        waiting, self._waiting = self._waiting, deque()
        for _, answer in waiting:
            answer()

    # --------------------------------------------------------------------------------------------------------- deciding

    def submit(self, api_key: int, request: Message, context: ControllerRequestContext, respond: Respond) -> None:
        """Decide a request; `respond` is called once, now or when the records are committed."""
        self._enqueue(lambda now_ms: self._decide(api_key, request, context._replace(now_ms=now_ms), respond), context.now_ms)

    def read(self, make: Callable[[], Message], respond: Callable[[Message], None]) -> None:
        """Make an answer from the state, and respond when all records that it shows are committed.

        If the controller loses its leadership before that, the answer is made again, from the committed records.
        """
        if self._is_preparing:
            self._after_decision(lambda: self.read(make, respond))
            return
        response = make()
        self.when_committed(lambda: respond(response), lambda: respond(make()))

    def when_committed(self, committed: Callable[[], None], lost: Callable[[], None]) -> None:
        """Call `committed` when all records of the state are committed, or `lost` if some are reverted instead."""
        if self._is_preparing:
            self._after_decision(lambda: self.when_committed(committed, lost))
            return
        last_offset = self._raft.next_offset - 1
        if not self.is_active or (last_offset < self._raft.high_watermark and not self._waiting):
            committed()
        else:
            self._waiting.append((last_offset, lambda: committed() if self.is_active else lost()))

    def _after_decision(self, call: Callable[[], None]) -> None:
        """Call something when the decision that is being made has ended, before the next ones that are enqueued later."""

        def begin(now_ms: int) -> Iterator[None]:
            call()
            yield from ()

        self._enqueue(begin, self._scheduler.now_ms)

    def _enqueue(self, begin: Callable[[int], Iterator[None]], now_ms: int) -> None:
        """Begin a decision, now or when those before it are done."""
        self._queue.append((begin, now_ms))
        if not self._is_deciding:
            self._is_deciding = True
            self._scheduler.run(self._decide_all(), now_ms)

    def _decide_all(self) -> Iterator[None]:
        """Make the decisions in the queue, in its order; each begins in a time slice of its own."""
        try:
            while True:
                begin, enqueued_ms = self._queue.popleft()
                began_ms = self._scheduler.now_ms
                self.metrics.operations += 1
                self.metrics.queue_times.add(began_ms - enqueued_ms)
                yield from begin(began_ms)
                self.metrics.processing_times.add(self._scheduler.now_ms - began_ms)
                if not self._queue:
                    return
                yield
        finally:
            self._is_deciding = False

    def _decide(self, api_key: int, request: Message, context: ControllerRequestContext, respond: Respond) -> Iterator[None]:
        """Decide, append and apply, in time slices."""
        api = API_KEYS[api_key]

        def refuse(code: int, message: str) -> None:
            respond(error_answer(api, context.version, request, code, message))

        def answer(response: Message) -> None:
            if self.is_active:
                respond(response)
            else:
                text = "the controller lost its leadership before the records were committed"
                refuse(error_codes.NOT_CONTROLLER, text)

        if not self.is_active:
            refuse(error_codes.NOT_CONTROLLER, "this node is not the active controller")
            return
        try:
            result = self._managers.handler_of(api_key)(request, context)
            if result.kraft_version:
                self._upgrade(result.kraft_version, context.now_ms)
            may_be_split = api_key in _MAY_BE_SPLIT
            yield from self._append(result.records, context.now_ms, partial(answer, result.response), may_be_split=may_be_split)
        except ApiError as error:
            refuse(error.code, error.message)
        except NotLeaderError as error:
            refuse(error_codes.NOT_CONTROLLER, str(error))
        except OSError as error:
            refuse(error_codes.KAFKA_STORAGE_ERROR, f"the metadata log cannot be written: {error.strerror or error}")
        except Exception as error:
            self._report(fault_line(f"deciding {api.name}", error))
            refuse(error_codes.UNKNOWN_SERVER_ERROR, "an internal error of kcli; the log of the controller has the details")

    def _upgrade(self, kraft_version: int, now_ms: int) -> None:
        """Upgrade the quorum to a kraft.version. Raises ApiError, and what the raft client raises."""
        config = self._raft.config
        if config.core.local.directory_id == ZERO_UUID:
            # The next node that opens the directory may give it a new id, and would not be a voter with that.
            raise ApiError(
                error_codes.INVALID_UPDATE_VERSION,
                f"a voter needs a directory id, and the meta.properties above {config.directory} has no directory.id",
            )
        base_offset = self._raft.next_offset
        answer, controls = self._raft.upgrade_kraft_version(kraft_version, now_ms)
        if answer.error:
            raise ApiError(answer.error, answer.message)
        self._check_active()
        for offset, control in enumerate(controls, base_offset):
            self.state.append(control, offset)

    def _append_now(self, records: list[Message], now_ms: int) -> None:
        """Append records without time slices. Raises NotLeaderError, AppendError and OSError as the raft client does."""
        for _ in self._append(records, now_ms, None):
            pass

    def _append(
        self, records: Iterable[Message | None], now_ms: int, answer: Callable[[], None] | None, *, may_be_split: bool = True
    ) -> Iterator[None]:
        """Append records and apply them, in batches; `answer` is called when the last batch is committed.

        A step is a time slice of making and encoding records, where None counts as one: something was checked and needs no
        record. Each batch is appended and applied in one step. Raises ApiError, before anything is appended, if there are too
        many records for one batch and they may not be split.
        """
        last_offset, epoch = self._raft.next_offset - 1, self._raft.epoch
        remaining = iter(records)
        limit = min(SPLIT_RECORDS, MAX_RECORDS_PER_APPEND) if may_be_split else MAX_RECORDS_PER_APPEND
        in_slice = 0
        while True:
            batch: list[Message] = []
            encoded = EncodedRecords()
            while len(batch) < limit:
                checked = list(islice(remaining, min(SLICE_RECORDS, limit - len(batch))))
                if not checked:
                    break
                made = [record for record in checked if record is not None]
                batch += made
                for record in made:
                    encoded.add(record)
                if encoded.size_bytes > MAX_BATCH_BYTES:
                    text = f"the request needs more than {MAX_BATCH_BYTES} bytes of records; split it into several requests"
                    raise ApiError(error_codes.POLICY_VIOLATION, text)
                in_slice += len(checked)
                if in_slice >= SLICE_RECORDS:
                    in_slice = 0
                    yield
            if not batch:
                break
            if not may_be_split and any(record is not None for record in remaining):
                text = f"the request needs more than {MAX_RECORDS_PER_APPEND} records; split it into several requests"
                raise ApiError(error_codes.POLICY_VIOLATION, text)
            if len(batch) > SLICE_RECORDS:
                yield
            if self._raft.epoch != epoch:
                raise NotLeaderError("a new epoch of the metadata quorum began while the request was decided")
            last_offset = yield from self._append_batch(batch, encoded, epoch, now_ms)
            if not self.is_active:
                raise NotLeaderError("this controller cannot apply what it has appended, and has resigned")
        if answer is None:
            return
        if last_offset < self._raft.high_watermark and not self._waiting:
            answer()
        else:
            self._waiting.append((last_offset, answer))

    def _append_batch(
        self, batch: list[Message], encoded: EncodedRecords, epoch: int, now_ms: int
    ) -> Generator[None, None, int]:
        """Append a batch and apply it, a large one in time slices before that; return its last offset. Raises as `_append`."""
        is_large = len(batch) > SPLIT_RECORDS
        try:
            if is_large:
                yield from self._prepare(batch, epoch)
            base_offset = self._raft.next_offset
            last_offset = self._raft.append(batch, now_ms, encoded)
        except Exception:
            if is_large:
                self.state.roll_back(self._raft.next_offset)
            raise
        self._check_active()
        self._last_append_ms = now_ms
        self.metrics.applied(last_offset, self._timer.wall.at(now_ms))
        if is_large:
            self.state.confirm(last_offset)
        else:
            self._apply(batch, base_offset)
        return last_offset

    def _check_active(self) -> None:
        """Raise NotLeaderError if the leadership ended in an append: what is not committed is reverted, this batch, too.

        The append may be the first event after the deadline of check-quorum, as when the process was paused.
        """
        if not self.is_active:
            raise NotLeaderError("the controller lost its leadership before the records were committed")

    def _prepare(self, batch: list[Message], epoch: int) -> Iterator[None]:
        """Apply the records of a large batch in time slices. Raises NotLeaderError after a resignation, which reverts them."""
        base_offset = self._raft.next_offset
        self._is_preparing = True
        try:
            for number, record in enumerate(batch):
                if number and number % SLICE_RECORDS == 0:
                    yield
                    if not self.is_active or self._raft.epoch != epoch:
                        raise NotLeaderError("a new epoch of the metadata quorum began while the request was decided")
                self.metrics.count_election(self.state.image, record)
                self.state.prepare(record, base_offset + number)
        except FormatError:
            self.metrics.metadata_errors += 1
            raise
        finally:
            self._is_preparing = False

    def _apply(self, batch: list[Message], base_offset: int) -> None:
        """Apply appended records to the image; if one does not fit, this controller must not decide anything more."""
        for offset, record in enumerate(batch, base_offset):
            self.metrics.count_election(self.state.image, record)
            try:
                self.state.append(record, offset)
            except FormatError as error:
                self.metrics.metadata_errors += 1
                self._report(fault_line(f"applying {record.STRUCT.name} at offset {offset}", error))
                self._resign()
                self._raft.resign(self._timer.clock_ms)
                return

    # ------------------------------------------------------------------------------------------------- periodic tasks

    def _begin_tasks(self, now_ms: int) -> None:
        self._activations += 1
        times = self._times
        self._repeat(times.max_idle_interval_ms, self._write_no_op, now_ms)
        self._repeat(max(1, self.state.session_timeout_ms // _CHECKS_PER_SESSION), self._check_sessions, now_ms)
        self._repeat(times.preferred_leaders_ms, self._elect_preferred_leaders, now_ms)
        self._repeat(times.unclean_elections_ms, self._elect_unclean_leaders, now_ms)

    def _repeat(self, interval_ms: int, task: Callable[[int, bool], int | None], now_ms: int) -> None:
        """Call `task(now_ms, is_late)` each interval while this controller is active; it may return another next time.

        A task is late if the timer reached it a whole interval after its time.
        """
        activation, due_ms = self._activations, now_ms + interval_ms

        def run(now_ms: int) -> None:
            nonlocal due_ms
            if self.is_active and self._activations == activation:
                due_ms = task(now_ms, now_ms - due_ms >= interval_ms) or now_ms + interval_ms
                self._timer.schedule(due_ms, run)

        if interval_ms > 0:
            self._timer.schedule(due_ms, run)

    def _write_no_op(self, now_ms: int, is_late: bool = False) -> int | None:
        interval_ms = self._times.max_idle_interval_ms
        if self._is_deciding:
            return None
        if now_ms - self._last_append_ms >= interval_ms:
            self._enqueue(partial(self._append_unasked, [new_record("NoOpRecord")]), now_ms)
            self._last_append_ms = now_ms
        return self._last_append_ms + interval_ms

    def _check_sessions(self, now_ms: int, is_late: bool = False) -> None:
        # If this check runs late, the process was stopped, and heartbeats wait to be read: they are handled first. Nor may a
        # broker be fenced in the middle of a decision.
        broker = None if is_late or self._is_deciding else self._managers.cluster.stale_broker(now_ms)
        if broker is not None:
            self.metrics.timed_out_heartbeats += 1
            text = f"broker {broker.broker_id} sent no heartbeat for {self.state.session_timeout_ms} ms and is fenced"
            self._report(WarningLine(text, broker=broker.broker_id))
            self._enqueue(partial(self._append_unasked, self._managers.cluster.fence_records(broker)), now_ms)

    def _elect_preferred_leaders(self, now_ms: int, is_late: bool = False) -> None:
        self._enqueue(partial(self._elect, self.state.preferred_elections, ""), now_ms)

    def _elect_unclean_leaders(self, now_ms: int, is_late: bool = False) -> None:
        self._enqueue(partial(self._elect, self.state.unclean_elections, _UNCLEAN_TEXT), now_ms)

    def _elect(self, elections: Callable[[], Iterator[Message | None]], text: str, now_ms: int) -> Iterator[None]:
        """Append at most MAX_ELECTIONS of the records; the rest are the next decision. `text` is the log line for them."""
        made = 0

        def counted() -> Iterator[Message | None]:
            nonlocal made
            for record in elections():
                made += record is not None
                yield record
                if made == MAX_ELECTIONS:
                    return

        yield from self._append_unasked(counted(), now_ms)
        if made and text:
            self._report(WarningLine(text.format(made)))
        if made == MAX_ELECTIONS and self.is_active:
            self._enqueue(partial(self._elect, elections, text), now_ms)

    def _append_unasked(self, records: Iterable[Message | None], now_ms: int) -> Iterator[None]:
        """Append records that no client asked for."""
        try:
            yield from self._append(records, now_ms, None)
        except (NotLeaderError, OSError):
            return  # the raft client has logged it, and this node is no longer the leader
