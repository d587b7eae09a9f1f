"""Protects the purgatory: what waits is completed once, by its keys or by its time, and nothing of it stays."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.network.timing_wheel import Timer
from kcli.server.apis.fetch import DelayedFetch
from kcli.server.apis.produce import DelayedProduce
from kcli.server.replication.purgatory import DelayedOperation, Purgatory


class Waiting(DelayedOperation):
    """Completes when `is_ready`; counts how often it was asked and completed."""

    def __init__(self, faults: list[DelayedOperation] | None = None) -> None:
        super().__init__()
        self.faults = [] if faults is None else faults
        self.is_ready = False
        self.fails_at: str | None = None
        self.asked: list[Hashable] = []
        self.completed = 0

    def can_complete(self, now_ms: int) -> bool:
        return self.is_ready

    def key_changed(self, key: Hashable, now_ms: int) -> bool:
        self.asked.append(key)
        if self.fails_at == "check":
            raise RuntimeError("a fault")
        return self.can_complete(now_ms)

    def on_complete(self, now_ms: int) -> None:
        self.completed += 1
        if self.fails_at == "complete":
            raise RuntimeError("a fault")

    def failed(self, error: Exception) -> None:
        self.faults.append(self)


def make() -> tuple[Timer, Purgatory]:
    timer = Timer()
    return timer, Purgatory(timer)


def test_an_operation_defines_when_it_is_complete() -> None:
    """try_complete_else_watch asks each operation, also one that is otherwise asked by key only."""

    class Undefined(DelayedOperation):
        pass

    with pytest.raises(TypeError, match=r"can_complete.*failed.*on_complete"):
        Undefined()  # type: ignore[abstract]
    assert not DelayedFetch.__abstractmethods__
    assert not DelayedProduce.__abstractmethods__


def test_what_is_ready_does_not_wait() -> None:
    timer, purgatory = make()
    operation = Waiting()
    operation.is_ready = True
    assert purgatory.try_complete_else_watch(operation, ["a"], 100, 0)
    assert (operation.completed, purgatory.size, timer.next_deadline_ms()) == (1, 0, None)


def test_a_key_completes_who_waits_for_it_once() -> None:
    timer, purgatory = make()
    operation, other = Waiting(), Waiting()
    purgatory.watch(operation, ["a", "b"], 100)
    purgatory.watch(other, ["b"], 100)
    assert purgatory.check("c", 1) == purgatory.check("a", 1) == 0
    operation.is_ready = True
    assert purgatory.check("b", 2) == 1
    assert purgatory.check("a", 3) == 0
    timer.advance(99)
    assert (operation.completed, operation.asked, other.completed, purgatory.size) == (1, ["a", "b"], 0, 1)
    timer.advance(100)
    assert (other.completed, purgatory.size, purgatory.expired_count) == (1, 0, 1)
    assert not purgatory._watched


def test_one_that_completes_another_on_the_way() -> None:
    """An answer may lead to the next event of the same key, before the first is done with."""
    _, purgatory = make()
    second = Waiting()

    class First(Waiting):
        def on_complete(self, now_ms: int) -> None:
            super().on_complete(now_ms)
            second.is_ready = True
            purgatory.check("a", now_ms)

    first = First()
    first.is_ready = True
    purgatory.watch(first, ["a"], 100)
    purgatory.watch(second, ["a"], 100)
    purgatory.check("a", 1)
    assert (first.completed, second.completed, purgatory.size) == (1, 1, 0)


def test_who_is_dropped_hears_nothing() -> None:
    timer, purgatory = make()
    operation = Waiting()
    purgatory.watch(operation, ["a", "a"], 100)
    purgatory.drop(operation)
    purgatory.drop(operation)
    operation.is_ready = True
    purgatory.check("a", 1)
    timer.advance(1000)
    assert (operation.completed, operation.asked, purgatory.size, timer.next_deadline_ms()) == (0, [], 0, None)


def test_a_fault_is_of_one_operation() -> None:
    faults: list[DelayedOperation] = []
    timer, purgatory = make()
    operations = []
    for fails_at in ("check", None, "complete", None):
        operation = Waiting(faults)
        operation.is_ready, operation.fails_at = True, fails_at
        purgatory.watch(operation, ["a"], 100)
        operations.append(operation)
    late = Waiting(faults)
    late.fails_at = "complete"
    purgatory.watch(late, ["b"], 100)
    assert purgatory.check("a", 1) == 3
    timer.advance(100)
    assert [operation.completed for operation in operations] == [0, 1, 1, 1]
    assert faults == [operations[0], operations[2], late]
    assert purgatory.size == 0 and not purgatory._watched


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("watch"), st.sets(st.integers(0, 3), min_size=1), st.integers(0, 50)),
            st.tuples(st.just("ready"), st.integers(0, 20), st.just(0)),
            st.tuples(st.just("check"), st.integers(0, 3), st.just(0)),
            st.tuples(st.just("drop"), st.integers(0, 20), st.just(0)),
            st.tuples(st.just("advance"), st.integers(0, 20), st.just(0)),
        ),
        max_size=40,
    )
)
def test_nobody_is_forgotten_and_nobody_twice(steps: list[tuple[str, object, int]]) -> None:
    timer, purgatory = make()
    now_ms = 0
    made: list[tuple[Waiting, frozenset[int], int]] = []
    over: dict[int, int] = {}  # by number: how often it must have been completed
    for what, value, delay in steps:
        if what == "watch":
            assert isinstance(value, set)
            operation = Waiting()
            purgatory.watch(operation, value, now_ms + delay)
            made.append((operation, frozenset(value), now_ms + delay))
            continue
        assert isinstance(value, int)
        if what == "ready" and value < len(made):
            made[value][0].is_ready = True
        elif what == "drop" and value < len(made):
            over.setdefault(value, 0)
            purgatory.drop(made[value][0])
        elif what == "check":
            purgatory.check(value, now_ms)
            over |= {n: 1 for n, (op, keys, _) in enumerate(made) if n not in over and value in keys and op.is_ready}
        elif what == "advance":
            now_ms += value
            timer.advance(now_ms)
            over |= {n: 1 for n, (_, _, at_ms) in enumerate(made) if n not in over and at_ms <= now_ms}
        assert [op.completed for op, _, _ in made] == [over.get(n, 0) for n in range(len(made))]
        assert purgatory.size == len(made) - len(over)
