"""Groups of one kind in one shard, on a real state and timer. Every record is encoded, decoded and applied, as by a load."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.network.timing_wheel import Timer
from kcli.protocol.error_codes import COORDINATOR_NOT_AVAILABLE, NONE, POLICY_VIOLATION
from kcli.protocol.internal_records import OFFSETS
from kcli.protocol.message_types import message_type
from kcli.server.config.loading import load_config
from kcli.server.coordinator.coordinator_limit import CoordinatorLimit
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.group.group_manager import ShardParts
from kcli.server.coordinator.group.metadata_hash import TopicHashes
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.metadata_cache import MetadataCache
from kcli.server.metrics.group_metrics import GroupMetrics
from kcli.server.scheduler import Scheduler
from kcli.state.group_state import GroupState

START_MS = 1_750_000_000_000


def _no_flush(paths: Any, callback: Any) -> None:
    raise AssertionError("groups flush nothing")


class Manager(Protocol):
    """What ModernGroups needs of a manager."""

    def loaded(self) -> None:
        """Begin the sessions of all members."""

    def unloaded(self) -> None:
        """Cancel all timers."""


AnyManager = TypeVar("AnyManager", bound=Manager)


class ModernGroups(ABC, Generic[AnyManager]):
    """`written` are the records of the last operation, `log` all of them as bytes; with `fails` an operation writes nothing."""

    def __init__(self, *overrides: str) -> None:
        self.config = load_config(None, ["log.dirs=/nowhere", "listeners=PLAINTEXT://127.0.0.1:0", *overrides])
        self.metadata = MetadataCache()
        self.state = GroupState()
        self.timer = Timer(START_MS)
        self.scheduler = Scheduler(self.timer, _no_flush)
        self.lines: list[str] = []
        self.metrics = GroupMetrics()
        self.written: list[CoordinatorRecord] = []
        self.log: list[tuple[bytes, bytes | None]] = []
        self.fails = False
        self.manager = self._make()

    def _make(self) -> AnyManager:
        """Make a manager of the state."""
        hashes, rng = TopicHashes(self.metadata), random.Random(1)
        config, timer, report = self.config, self.timer, self.lines.append
        limit = CoordinatorLimit("kcli.max.groups", POLICY_VIOLATION, lambda: len(self.state.groups), config, timer, report)
        parts = ShardParts(
            self.state,
            config,
            self.metadata,
            hashes,
            timer,
            rng,
            self._write,
            self.metrics,
            report,
            limit,
            self.scheduler,
        )
        return self._manager(parts)

    @abstractmethod
    def _manager(self, parts: ShardParts) -> AnyManager:
        """Make a manager."""

    @abstractmethod
    def check(self) -> None:
        """Check the state."""

    def _write(self, operation: Callable[[], Decision[None]], respond: Callable[[CoordinatorError | None, int], None]) -> None:
        decision = operation()
        self.apply(decision)
        error = CoordinatorError(COORDINATOR_NOT_AVAILABLE, "not appended")
        respond(error if self.fails and decision.records else None, self.timer.clock_ms)

    def apply(self, decision: Decision[Any]) -> None:
        """Write the records of a decision."""
        self.written = []
        for record in decision.records if not self.fails else ():
            assert isinstance(record, CoordinatorRecord)
            self.written.append(record)
            encoded = OFFSETS.encode(record.key, record.value)
            key, value = OFFSETS.decode(*encoded)
            assert key is not None
            self.state.apply(key, value, len(self.log))
            self.log.append(encoded)
        if decision.settled is not None:
            decision.settled(COORDINATOR_NOT_AVAILABLE if self.fails and decision.records else NONE)
        self.check()

    def reload(self) -> None:
        """Let the next coordinator load the log; its state must be the same."""
        before, self.state = self.state, GroupState()
        for encoded in self.log:
            key, value = OFFSETS.decode(*encoded)
            assert key is not None
            self.state.apply(key, value, 0)
        assert self.state.groups == before.groups
        self.check()
        self.manager.unloaded()
        self.manager = self._make()
        self.manager.loaded()

    def set_topic(self, name: str, partitions: int, topic_id: Uuid | None = None) -> Uuid:
        """Make a topic, or give it more partitions."""
        image = self.metadata.image
        known = image.topic(name)
        if known is not None:
            topic_id = known.topic_id
        else:
            topic_id = topic_id or Uuid(name.encode().ljust(16, b".")[:16])
            image.apply(message_type("metadata_records", "TopicRecord").new(name=name, topic_id=topic_id))
        for index in range(len(image.topics[topic_id].partitions), partitions):
            record = message_type("metadata_records", "PartitionRecord").new(
                partition_id=index, topic_id=topic_id, replicas=[1], isr=[1], leader=1, directories=[ZERO_UUID]
            )
            image.apply(record)
        self.metadata.topic_changed(topic_id)
        return topic_id

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.timer.advance(self.timer.clock_ms + ms)

    def settle(self) -> None:
        """Run what is due now, and what that makes due: tasks in time slices."""
        while (at_ms := self.timer.next_deadline_ms()) is not None and at_ms <= self.timer.clock_ms:
            self.timer.advance(self.timer.clock_ms)

    def kinds(self) -> list[str]:
        """What the last operation wrote: the numbers of the records' types; tombstones with a minus."""
        return [
            f"{'-' if value is None else ''}{int.from_bytes(key[:2], 'big')}"
            for key, value in (OFFSETS.encode(record.key, record.value) for record in self.written)
        ]
