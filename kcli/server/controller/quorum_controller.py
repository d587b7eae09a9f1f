"""The quorum controller: decides requests on the metadata, one after the other, and answers when the disk has the records.

    step      does
    --------  --------------------------------------------------------------------------------------------------------
    decide    a handler looks at the state and gives records and a response, or refuses; it changes nothing in the image
    append    the records go to the metadata log in one batch, and are applied to the controller's own image (another
              kraft.version before them, in a batch of its own); what an
              administrator asks for is refused above MAX_RECORDS_PER_APPEND, what follows of a broker's stop is split
    commit    the raft client hands them to everybody who follows the log; then the response leaves
    nothing   a decision without records waits too, if others before it are not committed: it may have seen their records

A decision of many records is made and encoded in slices, and what is asked meanwhile waits until it is applied: so no decision
sees half of another, and the broker's clients, who share the loop, are not held.

Only the leader decides; all others answer NOT_CONTROLLER. By itself it fences brokers that are silent, and writes a NoOp record
where the log was idle for metadata.max.idle.interval.ms, so that followers and observers see the log moving.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from kcli.format.kafka_uuid import ZERO_UUID
from kcli.format.primitives import FormatError
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, BROKER_HEARTBEAT, BROKER_REGISTRATION, UNREGISTER_BROKER
from kcli.protocol.message import Message
from kcli.server.controller.activation import check_features
from kcli.server.controller.cluster_control_manager import expired_brokers, fence_records
from kcli.server.controller.controller_result import ApiError, ControllerRequestContext, ControllerResult
from kcli.server.controller.controller_state import ControllerState
from kcli.server.controller.error_answers import error_answer
from kcli.server.controller.quorum_controller_metrics import QuorumControllerMetrics
from kcli.server.log_lines import FailureLine, WarningLine
from kcli.server.raft.kafka_raft_client import KafkaRaftClient, NotLeaderError
from kcli.server.raft.metadata_batches import (
    MAX_RECORDS_PER_APPEND,
    MetadataBatch,
    encode_metadata_record,
    new_record,
)
from kcli.server.raft.metadata_log import SnapshotId
from kcli.server.timing_wheel import Timer
from kcli.state.metadata_image import MetadataImage

# What follows of a broker's coming and going may be more than one batch: it is as right in parts, the registration last.
_IN_PARTS = frozenset((BROKER_REGISTRATION, BROKER_HEARTBEAT, UNREGISTER_BROKER))
# How many records are made and encoded in one go, some 3 ms of work.
SLICE_RECORDS = 100
_DONE = object()
Handler = Callable[[ControllerState, Message, ControllerRequestContext], ControllerResult]
Respond = Callable[[Message], None]


class ControllerTimes(NamedTuple):
    """When the controller does something by itself; 0 stands for never."""

    max_idle_interval_ms: int = 500


class QuorumController:
    """One controller; a listener of its raft client. `on_activation(now_ms)` gives the first records of a leadership."""

    def __init__(
        self,
        raft: KafkaRaftClient,
        state: ControllerState,
        handler_of: Callable[[int], Handler],
        timer: Timer,
        times: ControllerTimes,
        on_activation: Callable[[int], None],
        tell: Callable[[str], None],
    ) -> None:
        self._raft = raft
        self.state = state
        self._handler_of = handler_of
        self._timer = timer
        self._times = times
        self._on_activation = on_activation
        self._tell = tell
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._is_deciding = False  # a decision is between two slices
        self._queue: deque[Callable[[int], Iterator[None]]] = deque()
        self._last_append_ms = 0
        self._check_due_ms = 0
        self.is_active = False
        self.counts = QuorumControllerMetrics()

    # ----------------------------------------------------------------------------------------------------- the raft log

    def on_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        """Begin with an empty image."""
        self.state.image = MetadataImage()
        self.state.registration_offsets.clear()

    def on_commit(self, batch: MetadataBatch, now_ms: int) -> None:
        """Apply what others wrote; answer for what this controller wrote.

        Raises MetadataLogError for features that this node does not know: it must not go on.
        """
        for control in batch.control_records:
            self.state.image.apply_control(control)
        if not self.is_active:
            check_features(self._raft.config.directory, batch.records)
            for delta, record in enumerate(batch.records):
                self.state.apply(record, min(batch.base_offset + delta, batch.last_offset), now_ms)
        while self._waiting and self._waiting[0][0] <= batch.last_offset:
            self._waiting.popleft()[1]()

    def on_leader_change(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Begin to decide, or stop."""
        self.counts.new_leaders += leader_id >= 0
        was_active, self.is_active = self.is_active, self._raft.is_leader
        if self.is_active and not was_active:
            self.state.activated_ms = now_ms
            self.state.sessions.clear()
            self._last_append_ms = now_ms
            self._on_activation(now_ms)
            self._schedule_idle_check(now_ms)
            self._schedule_session_check(now_ms)
        elif was_active and not self.is_active:
            waiting, self._waiting = self._waiting, deque()
            for _, answer in waiting:
                answer()

    # --------------------------------------------------------------------------------------------------------- deciding

    def submit(self, api_key: int, request: Message, info: ControllerRequestContext, respond: Respond) -> None:
        """Decide a request; `respond` is called once, now or when its records are committed."""
        self._in_turn(lambda now_ms: self._decision(api_key, request, info._replace(now_ms=now_ms), respond), info.now_ms)

    def _in_turn(self, begin: Callable[[int], Iterator[None]], now_ms: int) -> None:
        """Begin a decision, now or when those before it are done."""
        if self._is_deciding or self._queue:
            self._queue.append(begin)
        else:
            self._go_on(begin(now_ms), now_ms)

    def _go_on(self, work: Iterator[None], now_ms: int) -> None:
        """Take a slice of a decision; when it is done or fails, the next one that waits has its turn."""
        self._is_deciding, is_over = True, True
        try:
            is_over = next(work, _DONE) is _DONE
        finally:
            self._is_deciding = not is_over
            if not is_over:
                self._timer.schedule(now_ms, partial(self._go_on, work))
            elif self._queue:
                self._timer.schedule(now_ms, self._next_decision)

    def _next_decision(self, now_ms: int) -> None:
        if self._queue and not self._is_deciding:
            self._go_on(self._queue.popleft()(now_ms), now_ms)

    def _decision(self, api_key: int, request: Message, info: ControllerRequestContext, respond: Respond) -> Iterator[None]:
        """Decide, append and apply, in slices."""
        api = API_KEYS[api_key]

        def refuse(code: int, message: str) -> None:
            respond(error_answer(api, info.version, request, code, message))

        if not self.is_active:
            refuse(error_codes.NOT_CONTROLLER, "this node is not the active controller")
            return
        try:
            decision = self._handler_of(api_key)(self.state, request, info)
            if decision.kraft_version:
                self._upgrade(decision.kraft_version, info.now_ms)
            yield from self._commit(
                decision.records,
                info.now_ms,
                lambda: self._answer(refuse, respond, decision.response),
                in_parts=api_key in _IN_PARTS,
            )
        except ApiError as error:
            refuse(error.code, error.message)
        except NotLeaderError as error:
            refuse(error_codes.NOT_CONTROLLER, str(error))
        except OSError as error:
            refuse(error_codes.KAFKA_STORAGE_ERROR, f"the metadata log cannot be written: {error.strerror or error}")
        except Exception as error:
            self._fault(f"deciding {api.name}", error)
            refuse(error_codes.UNKNOWN_SERVER_ERROR, "a fault of kcli; its log tells more")

    def _upgrade(self, kraft_version: int, now_ms: int) -> None:
        """Have the quorum go up to a kraft.version. Raises ApiError, and what the raft client does."""
        config = self._raft.config
        if config.directory_id == ZERO_UUID:
            # Whoever opens the directory next may give it an id of its own, and would be no voter with that.
            raise ApiError(
                error_codes.INVALID_UPDATE_VERSION,
                f"a voter needs an id of its metadata directory, and the meta.properties above {config.directory} has none",
            )
        for control in self._raft.upgrade_kraft_version(kraft_version, now_ms):
            self.state.image.apply_control(control)

    def _answer(self, refuse: Callable[[int, str], None], respond: Respond, response: Message) -> None:
        if self.is_active:
            respond(response)
        else:
            refuse(error_codes.NOT_CONTROLLER, "the controller lost its leadership before the records were committed")

    def write(self, records: list[Message], now_ms: int) -> None:
        """Append records that nobody asked for. Raises NotLeaderError, AppendError and OSError as the raft client does."""
        for _ in self._commit(records, now_ms, None):
            pass

    def _commit(
        self, records: Iterable[Message], now_ms: int, answer: Callable[[], None] | None, *, in_parts: bool = True
    ) -> Iterator[None]:
        """Append and apply, in parts where it is much and may be so; the answer waits for the commit of the last.

        A step is a slice of making and encoding. Each part is appended and applied in one step: nobody sees the one without
        the other. Raises ApiError for what is too much and not to be parted, before anything is appended.
        """
        last_offset, epoch = self._raft.next_offset - 1, self._raft.epoch
        undrawn = iter(records)
        while True:
            part: list[Message] = []
            values: list[bytes] = []
            while len(part) < MAX_RECORDS_PER_APPEND:
                drawn = list(islice(undrawn, min(SLICE_RECORDS, MAX_RECORDS_PER_APPEND - len(part))))
                if not drawn:
                    break
                part += drawn
                values += map(encode_metadata_record, drawn)
                if len(drawn) == SLICE_RECORDS:
                    yield
            if not part:
                break
            if not in_parts and next(undrawn, None) is not None:
                text = f"the request makes more than {MAX_RECORDS_PER_APPEND} records; that many are not written at once"
                raise ApiError(error_codes.POLICY_VIOLATION, text)
            if len(part) > SLICE_RECORDS:
                yield
            if self._raft.epoch != epoch:
                raise NotLeaderError("another epoch of the metadata quorum began meanwhile")
            base_offset = self._raft.next_offset
            last_offset = self._raft.append(part, now_ms, values)
            self._last_append_ms = now_ms
            for offset, record in enumerate(part, base_offset):
                self._apply(record, offset, now_ms)
        if answer is None:
            return
        if last_offset < self._raft.high_watermark and not self._waiting:
            answer()
        else:
            self._waiting.append((last_offset, answer))

    def _apply(self, record: Message, offset: int, now_ms: int) -> None:
        self.counts.count_election(self.state.image, record)
        try:
            self.state.apply(record, offset, now_ms)
        except FormatError as error:
            self.counts.metadata_errors += 1
            # It stands in the log now, and every reader will find it not to fit: nothing may be decided on top of it.
            self._fault(f"applying {record.STRUCT.name} at offset {offset}", error)
            self.is_active = False

    def _fault(self, what: str, error: Exception) -> None:
        import traceback

        where = traceback.extract_tb(error.__traceback__)
        at = f" at {where[-1].filename.rpartition('/')[2]}:{where[-1].lineno}" if where else ""
        text = f"a fault of kcli in {what}{at}: {error!r}; please report it"
        self._tell(FailureLine(text, error=repr(error), what=what))

    # ----------------------------------------------------------------------------------------------------------- by itself

    def _schedule_idle_check(self, now_ms: int) -> None:
        if self._times.max_idle_interval_ms > 0:
            self._timer.schedule(self._last_append_ms + self._times.max_idle_interval_ms, self._write_no_op)

    def _write_no_op(self, now_ms: int) -> None:
        if not self.is_active:
            return
        if now_ms - self._last_append_ms >= self._times.max_idle_interval_ms and not self._is_deciding:
            self._in_turn(partial(self._by_itself, [new_record("NoOpRecord")]), now_ms)
            self._last_append_ms = now_ms
        self._schedule_idle_check(now_ms)

    @property
    def _check_interval_ms(self) -> int:
        return max(1, self.state.session_timeout_ms // 4)

    def _check_sessions(self, now_ms: int) -> None:
        if not self.is_active:
            return
        # A check that comes late stood still itself, and with it the heartbeats that wait to be read: they come first.
        # What is being decided must not be overtaken either.
        is_idle = not self._is_deciding and not self._queue
        if now_ms - self._check_due_ms < self._check_interval_ms and is_idle:
            for broker in expired_brokers(self.state, now_ms):
                self.counts.timed_out_heartbeats += 1
                text = f"broker {broker.broker_id} was silent for {self.state.session_timeout_ms} ms and is fenced"
                self._tell(WarningLine(text, broker=broker.broker_id))
                self._in_turn(partial(self._by_itself, fence_records(self.state, broker)), now_ms)
        self._schedule_session_check(now_ms)

    def _schedule_session_check(self, now_ms: int) -> None:
        self._check_due_ms = now_ms + self._check_interval_ms
        self._timer.schedule(self._check_due_ms, self._check_sessions)

    def _by_itself(self, records: Iterable[Message], now_ms: int) -> Iterator[None]:
        try:
            yield from self._commit(records, now_ms, None)
        except (NotLeaderError, OSError):
            return  # the raft client has said so, and this is no leader any more
