"""Protects the cost and the content of the states of a batch in a share group: the runs agree with one state for each offset.

Few state objects are made for a batch of many records, whatever is acknowledged of it.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kcli.server.replication.share import state_runs
from kcli.server.replication.share.in_flight import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    NO_MEMBER,
    AcquisitionLock,
    InFlightState,
)
from kcli.server.replication.share.in_flight_batch import InFlightBatch
from tests.server.replication.share_partitions import A, B, Bench

ACCEPT, RELEASE, RENEW = 1, 2, 4
LOCK_MS = 30_000
LIMIT = 5
RECORDS = 500_000


def seen(state: InFlightState) -> tuple[object, ...]:
    """What a state says."""
    return state.state, state.delivery_count, state.member_id, state.lock, state.is_in_transition, state.is_final


class Compared:
    """A batch, and a state for each of its offsets; both get the same operations."""

    def __init__(self, rng: random.Random, first_offset: int, last_offset: int) -> None:
        self._rng = rng
        self._locks: list[AcquisitionLock] = []
        lock = self._lock(first_offset, last_offset)
        self.batch = InFlightBatch(first_offset, last_offset, InFlightState(ACQUIRED, 1, A, lock))
        self.model = {at: InFlightState(ACQUIRED, 1, A, lock) for at in range(first_offset, last_offset + 1)}
        self._transitions: list[tuple[int, int]] = []
        lock.users = 1  # those of the model do not count

    def _lock(self, first_offset: int, last_offset: int) -> AcquisitionLock:
        self._locks.append(AcquisitionLock(first_offset, last_offset))
        return self._locks[-1]

    def step(self) -> None:
        """Apply a random operation to a random range."""
        rng = self._rng
        first = rng.randint(self.batch.first_offset, self.batch.last_offset)
        last = min(self.batch.last_offset, first + rng.choice((0, 0, 0, 1, 5, 100)))
        action = rng.choice(("begin", "begin", "begin", "end", "end", "acquire", "acquire", "hold", "expire", "archive"))
        lock = self._lock(first, last)
        if action == "end":
            self._end(is_written=rng.random() < 0.7)
            return
        wanted, expired = rng.choice((AVAILABLE, ACKNOWLEDGED, ARCHIVED)), rng.choice(self._locks)
        for run in self.batch.runs(first, last):
            if action == "begin" and run.state.state is not ACQUIRED:
                continue
            if action == "acquire" and not run.state.is_acquirable:
                continue
            if action == "hold" and (run.state.state is not ACQUIRED or run.state.is_in_transition):
                continue
            if action == "expire" and (run.state.state is not ACQUIRED or run.state.lock is not expired):
                continue
            if action == "archive" and run.state.state is not AVAILABLE:
                continue
            model = [self.model[at] for at in range(run.first_offset, run.last_offset + 1)]
            for state in (self.batch.isolate(run.first_offset, run.last_offset), *model):
                is_model = state is not self.batch.state_at(run.first_offset)
                users = Counter({one: one.users for one in self._locks})
                if action == "begin":
                    assert state.begin_transition(wanted, LIMIT)
                elif action == "acquire":
                    assert state.update(ACQUIRED, LIMIT, A)
                    state.hold(lock)
                elif action == "hold":
                    state.hold(lock)
                elif action == "expire":
                    assert state.update(AVAILABLE, LIMIT, NO_MEMBER)
                    state.release()
                else:
                    state.archive()
                if is_model:
                    self._restore(users)
            if action == "begin":
                self._transitions.append((run.first_offset, run.last_offset))
            else:
                self.batch.changed(run.first_offset)

    def _end(self, *, is_written: bool) -> None:
        """End a random transition."""
        if not self._transitions:
            return
        first, last = self._transitions.pop(self._rng.randrange(len(self._transitions)))
        for run in self.batch.runs(first, last):
            run.state.end_transition(is_written=is_written)
            self.batch.changed(run.first_offset)
        users = Counter({one: one.users for one in self._locks})
        for at in range(first, last + 1):
            self.model[at].end_transition(is_written=is_written)
        self._restore(users)

    def _restore(self, users: Counter[AcquisitionLock]) -> None:
        for lock, count in users.items():
            lock.users = count

    def compare(self) -> None:
        """Check that both have the same states, that the runs are disjoint, and that each lock counts the runs that use it."""
        batch, offsets = self.batch, list(self.model)
        runs = batch.runs(-1, 1 << 40)
        assert [at for run in runs for at in range(run.first_offset, run.last_offset + 1)] == offsets
        assert [seen(run.state) for run in runs for _ in range(run.record_count)] == [seen(self.model[at]) for at in offsets]
        assert all(batch.state_at(run.last_offset) is run.state for run in runs)
        assert len(runs) == batch.run_count
        users = Counter(run.state.lock for run in runs if run.state.lock is not None)
        assert {lock: lock.users for lock in self._locks if lock.users} == users
        acquirable = [at for at in offsets if self.model[at].is_acquirable]
        assert batch.first_acquirable() == (acquirable[0] if acquirable else None)
        first, last = sorted(self._rng.choices(range(batch.first_offset - 3, batch.last_offset + 4), k=2))
        matching = batch.matching(lambda state: state.is_acquirable, first, last)
        found = [at for run in matching for at in range(run.first_offset, run.last_offset + 1)]
        assert found == [at for at in acquirable if first <= at <= last]
        not_final = next((slot for slot, at in enumerate(offsets) if not self.model[at].is_final), len(offsets))
        assert batch.final_count() == not_final


@pytest.mark.parametrize("seed", range(30))
def test_runs_agree_with_a_state_for_each_offset(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    monkeypatch.setattr(state_runs, "MOST_RUNS_OF_BLOCK", rng.choice((4, 16, 512)))
    monkeypatch.setattr(state_runs, "_LEAST_CHANGES", rng.choice((1, 8, 64)))
    first_offset = rng.randint(0, 1000)
    compared = Compared(rng, first_offset, first_offset + rng.choice((0, 5, 60, 300)))
    for _ in range(250):
        compared.step()
        compared.compare()


def test_few_states_are_made_for_a_large_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[InFlightState] = []
    real = InFlightState.__init__

    def init(self: InFlightState, *args: object) -> None:
        made.append(self)
        real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(InFlightState, "__init__", init)
    bench = Bench(RECORDS)
    bench.fetch()
    middle = RECORDS // 2
    assert bench.acknowledge((middle, middle, ACCEPT)) == 0
    bench.advance(LOCK_MS)
    assert [tuple(found) for found in bench.fetch(B)] == [(0, middle - 1, 2), (middle + 1, RECORDS - 1, 2)]
    assert bench.acknowledge((10, 20, RENEW), (30, 30, RELEASE), member_id=B) == 0
    bench.release(B)
    assert [tuple(found)[:2] for found in bench.fetch()] == [(0, middle - 1), (middle + 1, RECORDS - 1)]
    assert len(made) < 20


def test_records_that_are_accepted_one_by_one_leave_few_runs() -> None:
    bench = Bench(2_000)
    bench.fetch()
    batch = next(iter(bench.partition.records))
    for offset in range(1_999, 0, -1):
        assert bench.acknowledge((offset, offset, ACCEPT)) == 0
        assert batch.run_count <= 70
