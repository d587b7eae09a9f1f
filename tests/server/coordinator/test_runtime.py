"""Protects the promise of coordinators: an answer is sent when its records are committed, and state is what the log says.

Each test has a real log. A run of random operations, with appends that fail, must leave the state that a load of
the log gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.record_batch import NO_PRODUCER, Producer
from kcli.log.log_config import LogConfig
from kcli.log.reading.segment_reader import SegmentReader
from kcli.log.unified_log import UnifiedLog
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.protocol.internal_records import OFFSETS
from kcli.server.coordinator.coordinator_record import EncodedRecord, EndTransaction, ShardRecord, encode_data_batch
from kcli.server.coordinator.group.offset_manager import OffsetToCommit, offset_commit_record, offset_tombstone
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.coordinator.runtime import RELOAD_MS, CoordinatorRuntime
from kcli.server.replication.partition import Partition
from kcli.server.scheduler import Scheduler
from kcli.state.group_state import GroupState
from tests.log.live_logs import LiveLog
from tests.server.replication.invented_followers import InventedHost, fetched, registration

START_MS = 1_750_000_000_000


def no_flush(paths: Any, callback: Any) -> None:
    raise AssertionError("a load flushes nothing")


class Shard:
    """Groups without members."""

    def __init__(self, index: int) -> None:
        self.state = GroupState()
        self.is_loaded = False

    def apply(self, record: ShardRecord, offset: int) -> None:
        if isinstance(record, EndTransaction):
            self.state.apply_marker(record.producer.producer_id, record.is_commit)
        else:
            self.state.apply(record.key, record.value, offset, record.producer_id)

    def loaded(self, now_ms: int) -> None:
        self.is_loaded = True

    def unloaded(self) -> None:
        self.is_loaded = False


class Replicas:
    """What the runtime uses of a ReplicaManager."""

    node_id = 1

    def __init__(self) -> None:
        self.failures: list[OSError] = []

    def watch_high_watermark(self, topic: str, watcher: Callable[[Partition], None]) -> None:
        self.watcher = watcher

    def handle_log_dir_failure(self, partition: Partition, error: OSError) -> None:
        self.failures.append(error)


class Bench:
    """One partition of __consumer_offsets on a directory, and a runtime."""

    def __init__(self, log: UnifiedLog) -> None:
        self.timer = Timer(START_MS)
        self.lines: list[str] = []
        self.replicas: Any = Replicas()
        self.log = log
        self.host = InventedHost(lambda: self.timer.clock_ms)
        self.partition = Partition(self.host, "__consumer_offsets", 0, Uuid(b"\1" * 16), log)
        self.answers: list[Any] = []
        self.runtime = CoordinatorRuntime[Shard](
            OFFSETS,
            Shard,
            self.replicas,
            self.timer,
            Scheduler(self.timer, no_flush),
            self.lines.append,
            linger_ms=-1,
            write_timeout_ms=5_000,
        )
        self.host.on_high_watermark = self.replicas.watcher

    def lead(self, epoch: int, isr: tuple[int, ...] = (1,), leader: int = 1) -> None:
        """Take a registration of the partition."""
        self.partition.apply(registration(epoch, isr=isr, leader=leader))
        self.runtime.leadership_changed(self.partition, self.timer.clock_ms)

    def settle(self) -> None:
        """Do what is due now, and what that makes due."""
        for _ in range(10):
            self.timer.advance(self.timer.clock_ms)

    def commit(self, group: str, offset: int, producer: Producer | None = None) -> None:
        """Commit an offset of partition 0 of topic t."""
        producer_id = -1 if producer is None else producer.producer_id
        record = offset_commit_record(group, OffsetToCommit("t", ZERO_UUID, 0, offset, -1, None), START_MS, -1, producer_id)
        args = () if producer is None else (producer,)
        self.runtime.write(0, lambda shard: Decision(offset, [record]), self._answered, *args)

    def forget(self, group: str) -> None:
        """Delete an offset."""
        record = offset_tombstone(group, "t", 0)
        self.runtime.write(0, lambda shard: Decision(None, [record]), self._answered)

    def read(self, group: str) -> None:
        """Read an offset."""

        def operation(shard: Shard) -> Decision[int | None]:
            found = shard.state.committed_offset(group, "t", 0)
            return Decision(None if found is None else found.offset)

        self.runtime.write(0, operation, self._answered)

    def _answered(self, response: Any, now_ms: int) -> None:
        self.answers.append(error_codes.NAMES[response.code] if isinstance(response, CoordinatorError) else response)

    def taken(self) -> list[Any]:
        """The answers since the last call."""
        answers, self.answers = self.answers, []
        return answers


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(LiveLog(tmp_path, LogConfig(max_message_bytes=20_000)).log)
    made.lead(0)
    made.settle()
    return made


def test_operations_of_one_moment_are_one_batch_and_are_answered_in_their_order(bench: Bench) -> None:
    bench.commit("a", 5)
    bench.read("a")
    bench.commit("b", 6)
    assert bench.taken() == [] and bench.log.log_end_offset == 0
    bench.settle()
    assert bench.taken() == [5, 5, 6]
    (segment,) = bench.log.local_log().segments
    assert bench.log.log_end_offset == 2 and segment.size_bytes < 2 * 120, "two batches would be larger"
    bench.read("b")
    assert bench.taken() == [6], "nothing waits for what is committed"


def test_requests_during_a_load_are_refused(bench: Bench) -> None:
    for at in range(400):
        bench.commit(f"g{at}", at)
    bench.settle()
    assert bench.taken() == list(range(400))
    bench.lead(1, leader=2)
    bench.read("g7")
    bench.lead(2)
    bench.read("g7")
    bench.settle()
    bench.read("g7")
    assert bench.taken() == ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", 7]


def test_a_response_waits_for_the_high_watermark(bench: Bench) -> None:
    bench.lead(1, isr=(1, 2))
    bench.settle()
    bench.commit("a", 5)
    bench.settle()
    bench.read("a")
    bench.settle()
    assert bench.taken() == [] and bench.log.log_end_offset == 1
    fetched(bench.partition, 2, 1)
    assert bench.taken() == [5, 5]


def test_what_is_not_committed_in_time_is_refused_and_stays(bench: Bench) -> None:
    bench.lead(1, isr=(1, 2))
    bench.settle()
    bench.commit("a", 5)
    bench.settle()
    bench.timer.advance(START_MS + 5_000)
    assert bench.taken() == ["COORDINATOR_NOT_AVAILABLE"]
    shard = bench.runtime.shard(0)
    assert shard.state.committed_offset("a", "t", 0) is not None, "the log has the record"


def test_a_leader_that_resigns_fails_what_waits(bench: Bench) -> None:
    bench.lead(1, isr=(1, 2))
    bench.settle()
    bench.commit("a", 5)
    bench.settle()
    bench.commit("b", 6)
    bench.lead(2, leader=2)
    bench.settle()
    assert bench.taken() == ["NOT_COORDINATOR", "NOT_COORDINATOR"]
    assert bench.log.log_end_offset == 1, "the second was not appended"


def test_a_failed_append_takes_back_its_records(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.commit("a", 5)
    bench.settle()
    append = bench.partition.log.append_as_leader  # type: ignore[union-attr]

    def fails(*args: Any, **kwargs: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(UnifiedLog, "append_as_leader", fails)
    bench.commit("a", 6)
    bench.read("a")
    bench.forget("a")
    bench.settle()
    assert bench.taken() == [5, "NOT_COORDINATOR", "NOT_COORDINATOR", "NOT_COORDINATOR"]
    assert len(bench.replicas.failures) == 1
    monkeypatch.setattr(UnifiedLog, "append_as_leader", lambda log, *args, **kwargs: append(*args, **kwargs))
    bench.read("a")
    bench.commit("a", 7)
    bench.settle()
    assert bench.taken() == [5, 7]


def test_a_log_that_goes_offline_within_an_append_fails_the_operation(bench: Bench) -> None:
    """The append moves the high watermark, which wakes a fetch, whose read takes the log directory offline."""
    bench.commit("a", 5)
    bench.settle()

    def goes_offline(partition: Partition) -> None:
        partition.log = None

    bench.host.on_high_watermark = goes_offline
    bench.commit("a", 6)
    bench.settle()
    assert bench.taken() == [5, "NOT_COORDINATOR"]


def test_records_that_do_not_fit_into_a_batch_are_refused(bench: Bench) -> None:
    records = [
        offset_commit_record("g", OffsetToCommit("t", ZERO_UUID, at, 1, -1, "m" * 1000), START_MS, -1, -1) for at in range(20)
    ]
    bench.runtime.write(0, lambda shard: Decision(1, records), bench._answered)
    for record in records[:3] * 8:
        bench.runtime.write(0, lambda shard, record=record: Decision(2, [record]), bench._answered)  # type: ignore[misc]
    bench.settle()
    assert bench.taken() == ["UNKNOWN_SERVER_ERROR", *[2] * 24]


@pytest.mark.parametrize("isr", [(1,), (1, 2)])
def test_an_append_of_another_client_makes_it_load_again(bench: Bench, isr: tuple[int, ...]) -> None:
    bench.lead(1, isr)
    bench.settle()
    bench.commit("a", 5)
    bench.settle()
    fetched(bench.partition, 2, 1)
    record = offset_commit_record("z", OffsetToCommit("t", ZERO_UUID, 0, 9, -1, None), START_MS, -1, -1)
    data = encode_data_batch([EncodedRecord(*OFFSETS.encode(record.key, record.value), START_MS)], NO_PRODUCER)
    bench.partition.append(memoryview(data), 1, START_MS)
    bench.commit("b", 6)
    bench.settle()
    assert bench.taken() == [5, 6 if len(isr) == 1 else "NOT_COORDINATOR"]
    fetched(bench.partition, 2, bench.log.log_end_offset)
    bench.read("z")
    bench.read("b")
    assert bench.taken() == [9, 6], "as the log says"


def test_offsets_of_a_transaction_count_from_its_commit_on(bench: Bench) -> None:
    producer = Producer(7, 0)
    bench.commit("a", 1)
    bench.commit("a", 5, producer)
    bench.commit("b", 6, producer)
    bench.commit("c", 2)
    bench.settle()
    bench.read("a")
    assert bench.taken() == [1, 5, 6, 2, 1]
    bench.runtime.end_transaction(0, EndTransaction(producer, 0, True), bench._answered)
    bench.read("a")
    bench.read("b")
    assert bench.taken() == [None, 5, 6]
    assert state_of(bench.log) == state_of_shard(bench)


def state_of_shard(bench: Bench) -> Any:
    state = bench.runtime.shard(0).state
    return state.committed_offsets, {key: pending for key, pending in state.pending_offsets.items() if pending}


def state_of(log: UnifiedLog) -> Any:
    """The state that a load of the log gives."""
    bench = Bench(log)
    bench.partition.is_leader = True
    bench.partition.leader_epoch = 9
    bench.runtime.leadership_changed(bench.partition, START_MS)
    bench.settle()
    assert not [line for line in bench.lines if "is skipped" in line]
    return state_of_shard(bench)


@pytest.mark.parametrize("seed", range(40))
def test_the_state_is_always_what_the_log_says(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    bench = Bench(LiveLog(tmp_path, LogConfig(max_message_bytes=20_000)).log)
    bench.lead(0)
    bench.settle()
    append: Callable[..., Any] = UnifiedLog.append_as_leader

    def sometimes(log: UnifiedLog, *args: Any, **kwargs: Any) -> Any:
        if log is bench.log and rng.random() < 0.3:
            raise OSError(5, "Input/output error")
        return append(log, *args, **kwargs)

    monkeypatch.setattr(UnifiedLog, "append_as_leader", sometimes)
    asked = 0
    for _ in range(60):
        asked += 1
        group, kind = rng.choice("abc"), rng.random()
        if kind < 0.5:
            bench.commit(group, rng.randrange(100), rng.choice((None, None, Producer(rng.randrange(3), 0))))
        elif kind < 0.6:
            bench.forget(group)
        elif kind < 0.7:
            end = EndTransaction(Producer(rng.randrange(3), 0), 0, rng.random() < 0.5)
            bench.runtime.end_transaction(0, end, bench._answered)
        else:
            bench.read(group)
        if rng.random() < 0.4:
            bench.settle()
    bench.settle()
    assert len(bench.taken()) == asked
    assert state_of_shard(bench) == state_of(bench.log)


def test_an_operation_fails_with_the_open_batch_that_it_was_decided_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch of a producer must be appended first, and cannot be: what was read from it must not be written."""
    bench.commit("a", 5)
    bench.settle()

    def fails(*args: Any, **kwargs: Any) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(UnifiedLog, "append_as_leader", fails)
        bench.commit("a", 6)
        bench.commit("a", 7, Producer(3, 0))
        bench.settle()
    assert bench.taken() == [5, "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"]
    bench.read("a")
    assert bench.taken() == [5] and bench.log.log_end_offset == 1


def test_an_operation_behind_an_append_of_another_client_is_answered(bench: Bench) -> None:
    """The partition is loaded again in the middle of the operation, which belongs to what was loaded before."""
    bench.lead(1, isr=(1, 2))
    bench.settle()
    record = offset_commit_record("z", OffsetToCommit("t", ZERO_UUID, 0, 9, -1, None), START_MS, -1, -1)
    data = encode_data_batch([EncodedRecord(*OFFSETS.encode(record.key, record.value), START_MS)], NO_PRODUCER)
    bench.commit("a", 5)
    bench.partition.append(memoryview(data), 1, START_MS)
    bench.commit("a", 7, Producer(3, 0))
    assert bench.taken() == ["NOT_COORDINATOR", "NOT_COORDINATOR"]
    bench.settle()
    bench.commit("b", 8)
    bench.partition.append(memoryview(data), 1, START_MS)
    end_offset = bench.log.log_end_offset + 1
    bench.runtime.end_transaction(0, EndTransaction(Producer(3, 0), 0, is_commit=True), bench._answered)
    assert bench.taken() == ["NOT_COORDINATOR", "NOT_COORDINATOR"] and bench.log.log_end_offset == end_offset, "no marker"


def test_a_new_epoch_of_the_same_leader_interrupts_nothing(bench: Bench) -> None:
    bench.lead(1, isr=(1, 2))
    bench.settle()
    bench.commit("a", 5)
    bench.lead(2, isr=(1,))
    bench.settle()
    assert bench.taken() == [5]


def test_a_read_of_what_is_never_committed_is_refused_in_time(bench: Bench) -> None:
    bench.lead(1, isr=(1, 2))
    bench.settle()
    bench.commit("a", 5)
    bench.settle()
    bench.timer.advance(START_MS + 5_001)
    assert bench.taken() == ["COORDINATOR_NOT_AVAILABLE"]
    bench.read("a")
    bench.timer.advance(START_MS + 10_100)
    assert bench.taken() == ["COORDINATOR_NOT_AVAILABLE"]


def test_records_that_are_not_atomic_may_need_several_batches(bench: Bench) -> None:
    records = [
        offset_commit_record(f"{at:0100}", OffsetToCommit("t", ZERO_UUID, 0, at, -1, None), START_MS, -1, -1)
        for at in range(300)
    ]
    bench.runtime.write(0, lambda shard: Decision("atomic", records), bench._answered)
    bench.runtime.write(0, lambda shard: Decision("in parts", records, is_atomic=False), bench._answered)
    bench.settle()
    assert bench.taken() == ["UNKNOWN_SERVER_ERROR", "in parts"]
    assert bench.log.log_end_offset == 300 and len(bench.runtime.shard(0).state.offsets_by_group) == 300


def test_a_fault_of_an_operation_refuses_it_and_no_more(bench: Bench) -> None:
    def fault(shard: Shard) -> Decision[int]:
        raise KeyError("wrong")

    bench.runtime.write(0, fault, bench._answered)
    bench.commit("a", 5)
    bench.settle()
    assert bench.taken() == ["UNKNOWN_SERVER_ERROR", 5]
    assert any("an operation of __consumer_offsets-0" in line for line in bench.lines)


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file or directory"), OSError(5, "Input/output error")])
def test_a_load_that_fails_is_repeated(bench: Bench, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    """The cleaner may replace a segment while it is loaded; a disk may fail for a while."""
    bench.commit("a", 5)
    bench.settle()
    bench.lead(1, leader=2)
    failures = [error]
    read = SegmentReader.batches

    def batches(self: SegmentReader, *arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return read(self, *arguments)

    monkeypatch.setattr(SegmentReader, "batches", batches)
    bench.lead(2)
    bench.settle()
    is_passing = isinstance(error, FileNotFoundError)
    bench.read("a")
    assert bench.taken() == [5, 5 if is_passing else "NOT_COORDINATOR"] and not bench.runtime.loading_count()
    assert bench.replicas.failures == ([] if is_passing else [error])
    bench.timer.advance(bench.timer.clock_ms + RELOAD_MS)
    bench.settle()
    bench.read("a")
    assert bench.taken() == [5]
