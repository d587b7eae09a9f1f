"""A shard with classic groups and a runtime that commits, holds or fails what is written, on a clock that tests advance."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import pytest

from kcli.network.timing_wheel import Timer
from kcli.protocol.error_codes import POLICY_VIOLATION
from kcli.protocol.internal_records import OFFSETS
from kcli.server.config.server_config import ConfigReader, ServerConfig
from kcli.server.coordinator.coordinator_limit import CoordinatorLimit
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.group.classic_group_manager import ClassicGroupManager, Completion, write_classic
from kcli.server.coordinator.group.classic_messages import (
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from kcli.server.coordinator.group.group_manager import ShardParts
from kcli.server.coordinator.group.metadata_hash import TopicHashes
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.metadata_cache import MetadataCache
from kcli.server.metrics.group_metrics import GroupMetrics
from kcli.server.scheduler import Scheduler
from kcli.state.group_state import GroupState
from kcli.state.speculative_state import SpeculativeState

START_MS = 1_750_000_000_000
CONFIG = {
    "group.max.size": 100,
    "group.initial.rebalance.delay.ms": 3_000,
    "group.min.session.timeout.ms": 6_000,
    "group.max.session.timeout.ms": 1_800_000,
    "kcli.max.groups": 2**31 - 1,
}
SESSION_MS, REBALANCE_MS, DELAY_MS = 10_000, 60_000, CONFIG["group.initial.rebalance.delay.ms"]
RANGE = (("range", b"\0\0\0\0\0\0\xff\xff\xff\xff"),)  # a subscription without topics
BOTH = (*RANGE, ("sticky", RANGE[0][1]))
STICKY = BOTH[1:]

T = TypeVar("T")


class Config(ConfigReader):
    def __init__(self, **overrides: int) -> None:
        self.values = CONFIG | {name.replace("_", "."): value for name, value in overrides.items()}

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    @property
    def current(self) -> ServerConfig:
        raise AssertionError("a coordinator asks for single keys")


def _no_flush(paths: Any, callback: Any) -> None:
    raise AssertionError("groups flush nothing")


class Call(Generic[T]):
    """The answer to a request, which comes at most once."""

    def __init__(self) -> None:
        self.results: list[T] = []

    def __call__(self, result: T) -> None:
        self.results.append(result)
        assert len(self.results) == 1, "a request is answered twice"

    @property
    def waits(self) -> bool:
        return not self.results

    @property
    def result(self) -> T:
        assert self.results, "the request is not answered"
        return self.results[0]


class Shard:
    """`fail_with` is the error of the next appends; with `hold`, what is written is committed or failed by `release`."""

    def __init__(self, state: GroupState | None = None, **config: int) -> None:
        self.state = state or GroupState()
        self.timer = Timer(START_MS)
        self.lines: list[str] = []
        self.records: list[CoordinatorRecord] = []
        self.fail_with = 0
        self.hold = False
        self.held: list[tuple[int, Callable[[Any, int], None]]] = []
        self._offset = 0
        self._speculative = SpeculativeState[GroupState, CoordinatorRecord](self.state, self._apply)
        metadata, rng, report = MetadataCache(), random.Random(7), self.lines.append
        values = Config(**config)
        self.manager = ClassicGroupManager(
            ShardParts(
                self.state,
                values,
                metadata,
                TopicHashes(metadata),
                self.timer,
                rng,
                self.write,
                GroupMetrics(),
                report,
                CoordinatorLimit(
                    "kcli.max.groups", POLICY_VIOLATION, lambda: len(self.state.groups), values, self.timer, report
                ),
                Scheduler(self.timer, _no_flush),
            )
        )
        self.manager.loaded(START_MS)

    def _apply(self, record: CoordinatorRecord, offset: int) -> None:
        key, value = OFFSETS.encode(record.key, record.value)
        self.state.apply(*OFFSETS.decode(key, value), offset)

    def write(self, operation: Callable[[], Decision[T]], respond: Callable[[T | CoordinatorError, int], None]) -> None:
        try:
            decision = operation()
        except CoordinatorError as error:
            respond(error, self.timer.clock_ms)
            return
        base = self._offset
        for record in decision.records:
            self._speculative.append(record, self._offset)
            self._offset += 1
        self.records += decision.records
        if self.hold and decision.records:
            self.held.append((base, lambda error, now_ms: respond(error or decision.response, now_ms)))
        elif self.fail_with and decision.records:
            self._speculative.roll_back(base)
            respond(CoordinatorError(self.fail_with, "not appended"), self.timer.clock_ms)
        else:
            self._speculative.commit(self._offset)
            respond(decision.response, self.timer.clock_ms)

    def release(self, code: int = 0) -> None:
        """Commit what is held, or fail it and revert its records."""
        held, self.held, self.hold = self.held, [], False
        error = CoordinatorError(code, "not appended") if code else None
        if error is None:
            self._speculative.commit(self._offset)
        else:
            self._speculative.roll_back(held[0][0])
        for _, respond in held:
            respond(error, self.timer.clock_ms)

    def advance(self, by_ms: int) -> None:
        for _ in range(by_ms // 500):
            self.timer.advance(self.timer.clock_ms + 500)
        self.timer.advance(self.timer.clock_ms + by_ms % 500)

    def reloaded(self, **config: int) -> Shard:
        """Return the shard of another broker that has loaded the same records."""
        return Shard(self.state, **config)

    # -------------------------------------------------------------------------------------------------------- requests

    def _write_classic(self, operation: Callable[[ClassicGroupManager], Decision[Completion | None]]) -> None:
        def refuse(error: CoordinatorError) -> None:
            raise error

        write_classic(lambda decide, respond: self.write(lambda: decide(self.manager), respond), operation, refuse)

    def join(
        self,
        member_id: str = "",
        instance_id: str | None = None,
        *,
        group_id: str = "g",
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
    ) -> Call[JoinResult]:
        request = JoinRequest(
            group_id, member_id, instance_id, "client", "/127.0.0.1", protocol_type, protocols, session_ms, rebalance_ms,
            requires_known_member_id=version >= 4, supports_skipping_assignment=version >= 9, reason="because",
        )  # fmt: skip
        call = Call[JoinResult]()
        self._write_classic(lambda manager: manager.join(request, call))
        return call

    def sync(
        self,
        joined: JoinResult,
        assignment: Mapping[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        group_id: str = "g",
        protocol_type: str | None = "consumer",
        protocol_name: str | None = "range",
    ) -> Call[SyncResult]:
        request = SyncRequest(
            group_id, joined.generation_id, joined.member_id, instance_id, protocol_type, protocol_name, assignment or {}
        )
        call = Call[SyncResult]()
        self._write_classic(lambda manager: manager.sync(request, call))
        return call

    def heartbeat(self, joined: JoinResult, instance_id: str | None = None, group_id: str = "g") -> int:
        try:
            return self.manager.heartbeat(group_id, joined.member_id, instance_id, joined.generation_id)
        except CoordinatorError as error:
            return error.code

    # ---------------------------------------------------------------------------------------------------------- states

    @property
    def group_state(self) -> str:
        return str(self.manager.describe("g").state)

    def joined(self, count: int = 1, instance_ids: tuple[str, ...] = ()) -> list[JoinResult]:
        """Let static members, and dynamic ones up to `count`, join a new group; return their results, the leader's first."""
        calls = [self.join(instance_id=instance_id) for instance_id in instance_ids]
        for _ in range(count - len(instance_ids)):
            calls.append(self.join(self.join().result.member_id))
        self.advance(DELAY_MS * (2 if count > 1 else 1))
        results = [call.result for call in calls]
        assert [result.error_code for result in results] == [0] * count
        return sorted(results, key=lambda result: result.member_id != result.leader)

    def stable(self, count: int = 1, instance_ids: tuple[str, ...] = ()) -> list[JoinResult]:
        """Return the members of a group that is stable; the assignment of each one is its member id."""
        results = self.joined(count, instance_ids)
        assignment = {result.member_id: result.member_id.encode() for result in results}
        instances = {member.member_id: member.instance_id for member in results[0].members}
        calls = [
            self.sync(result, assignment if result is results[0] else None, instance_id=instances[result.member_id])
            for result in results
        ]
        assert [call.result.assignment for call in calls] == [result.member_id.encode() for result in results]
        assert self.group_state == "Stable"
        return results


def code_of(call: Call[Any]) -> int:
    return int(call.result.error_code)


def error_of(function: Any, *arguments: Any) -> int:
    with pytest.raises(CoordinatorError) as caught:
        function(*arguments)
    return caught.value.code


def leave(shard: Shard, *leaving: LeavingMember, group_id: str = "g") -> list[LeaveResult]:
    answers: list[Any] = []
    shard.write(lambda: shard.manager.leave(group_id, leaving), lambda result, now_ms: answers.append(result))
    return list(answers[0])
