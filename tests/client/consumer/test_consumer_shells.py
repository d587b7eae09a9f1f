"""Protects what the blocking and the asyncio consumer add to their core: iteration, interceptors, callbacks, users, endings.

No broker runs: a test puts the answers to Fetch into the buffer, and a membership of its own makes the commits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest

from kcli.client.consumer.classic_membership import ClassicMembership
from kcli.client.consumer.completed_fetch import CompletedFetch
from kcli.client.consumer.consumer import ConsumerCore
from kcli.client.consumer.group_member import GroupMember
from kcli.client.consumer.membership import CallbackKind, RebalanceCallback
from kcli.client.errors import (
    ClientError,
    IllegalStateError,
    KafkaError,
    RebalanceListenerError,
    RecordDeserializationError,
    WakeupError,
)
from kcli.client.shell.async_consumer import AsyncConsumer
from kcli.client.shell.consumer import Consumer
from kcli.client.shell.consumer_builder import Interceptors
from kcli.client.value_checks import OffsetAndMetadata
from kcli.format import limits
from kcli.format.record_scan import RecordColumns
from kcli.network.shell.clock import Clock
from kcli.protocol import error_codes
from tests.client.consumer.test_fetcher import T0, T1, offsets, records

SETTINGS = {"bootstrap.servers": "127.0.0.1:9", "auto.offset.reset": "earliest"}


class Group:
    """A membership whose commits end when the test says so, at once by default."""

    is_ready_to_fetch = True

    def __init__(self) -> None:
        self.commits: list[dict[Any, OffsetAndMetadata]] = []
        self.waiting: list[Callable[[ClientError | None, int], None]] = []
        self.is_slow = False
        self.calls: list[RebalanceCallback] = []
        self.running: list[RebalanceCallback] = []
        self.auto_commits: deque[dict[Any, OffsetAndMetadata]] = deque()

    def poll(self, now_ms: int) -> None:
        pass

    def polled(self, now_ms: int) -> None:
        pass

    def subscription_changed(self, now_ms: int) -> None:
        pass

    def assignment_changes(self, now_ms: int) -> None:
        pass

    def disable_auto_commit(self) -> None:
        pass

    def next_poll_ms(self, now_ms: int) -> int | None:
        return None

    def next_callback(self) -> RebalanceCallback | None:
        return self.calls[0] if self.calls else None

    def start_callback(self) -> RebalanceCallback | None:
        if not self.calls:
            return None
        self.running.append(self.calls.pop(0))
        return self.running[-1]

    def callback_done(self, error: BaseException | None, now_ms: int) -> None:
        self.running.pop()

    def take_error(self) -> ClientError | None:
        return None

    def take_listener_error(self) -> ClientError | None:
        return None

    def commit(self, wanted: Any, done: Any, now_ms: int, timeout_ms: int | None = None) -> None:
        self.commits.append(dict(wanted))
        if self.is_slow:
            self.waiting.append(done)
        else:
            done(None, now_ms)

    def close(self, done: Any, now_ms: int, option: object = None) -> None:
        self.closing = done
        self.auto_commits.append({T0: OffsetAndMetadata(9)})
        if not self.is_slow:
            done(None, now_ms)


def join(core: ConsumerCore) -> Group:
    group = Group()
    core.membership = group  # type: ignore[assignment]
    return group


def begin(core: ConsumerCore, now_ms: int, *partitions: tuple[str, int]) -> None:
    """Assign partitions that have three records each, from offset 0 on."""
    core.assign(partitions, now_ms)
    put_records(core, now_ms, *partitions)


def fill(core: ConsumerCore, now_ms: int, *partitions: tuple[str, int]) -> None:
    """Assign partitions with records as a group does."""
    core.subscriptions.assign_from_subscribed(partitions)
    put_records(core, now_ms, *partitions)


def put_records(core: ConsumerCore, now_ms: int, *partitions: tuple[str, int]) -> None:
    columns = RecordColumns(limits.SCAN_WINDOW_RECORDS)
    for partition in partitions:
        core.seek(partition, 0, -1, now_ms)
        core.fetcher.buffer.add(partition, CompletedFetch(*partition, records(0), 0, columns))


@contextmanager
def blocking(*partitions: tuple[str, int], **words: Any) -> Iterator[tuple[Consumer, Group]]:
    with Consumer(SETTINGS, **words) as consumer:
        group = join(consumer._core)
        consumer._call(lambda now_ms: begin(consumer._core, now_ms, *partitions))
        yield consumer, group


def awaited(*partitions: tuple[str, int], **words: Any) -> tuple[AsyncConsumer, Group]:
    consumer = AsyncConsumer(SETTINGS, **words)
    group = join(consumer._core)
    consumer._call(lambda now_ms: begin(consumer._core, now_ms, *partitions))
    return consumer, group


def committed(group: Group) -> dict[Any, int]:
    return {partition: one.offset for partition, one in group.commits[-1].items()}


def test_an_iterator_counts_what_it_has_yielded() -> None:
    """A batch that is left in the middle is not lost: not by a commit, and not for the next iterator or poll."""
    with blocking(T0, T1) as (consumer, group):
        for record in consumer:
            consumer.commit_sync()
            assert (record.topic, record.partition, record.offset) == ("t", 0, 0)
            break
        assert committed(group) == {T0: 1, T1: 0}
        assert consumer.position(T0) == 1 and consumer.position(T1) == 0
        assert next(iter(consumer)).offset == 1
        assert [(one.partition, one.offset) for one in consumer.poll(0)] == [(0, 2), (1, 0), (1, 1), (1, 2)]
        consumer.commit_sync()
        assert committed(group) == {T0: 3, T1: 3}


def test_held_records_follow_seeks_pauses_and_assignments() -> None:
    with blocking(T0, T1) as (consumer, _):
        assert next(iter(consumer)).offset == 0
        consumer.seek(T0, 40)
        consumer.pause([T1])
        assert consumer.poll(0) == [] and consumer.position(T0) == 40
        assert consumer.position(T1) == 0  # its records are fetched again after resume
    with blocking(T0, T1) as (consumer, _):
        assert next(iter(consumer)).offset == 0
        consumer.assign([T1])
        assert [one.partition for one in consumer.poll(0)] == [1, 1, 1]


def test_held_records_of_partitions_that_are_taken_away_are_not_returned() -> None:
    """They are read by the next owner, from the offset that is committed: that of the first held record."""
    with Consumer({**SETTINGS, "group.id": "g", "group.protocol": "consumer"}) as consumer:
        core = consumer._core
        consumer.subscribe(["t"], CalledListener(lambda: None))

        def take_away(now_ms: int) -> None:
            core.subscriptions.mark_pending_revocation((T0,))

        consumer._call(lambda now_ms: fill(core, now_ms, T0, T1))
        records = iter(consumer)
        assert next(records).offset == 0
        consumer._thread.call(take_away)
        assert [(one.partition, one.offset) for one in consumer.poll(0)] == [(1, 0), (1, 1), (1, 2)]
        assert {one: consumed.offset for one, consumed in core.subscriptions.all_consumed().items()} == {T0: 1, T1: 3}


def test_held_records_that_interceptors_replace_follow_the_assignment() -> None:
    """They run without a lock: a partition can be lost at the same time."""

    class Losing(Noting):
        def on_consume(self, found: list[Any]) -> list[Any]:
            consumer._thread.call(lambda now_ms: consumer._core.subscriptions.assign_from_user((T1,)))
            return found

    with blocking(T0, T1, interceptors=[Losing()]) as (consumer, _):
        assert next(iter(consumer)).partition == 1


def test_an_iterator_ends_with_its_consumer() -> None:
    with blocking(T0) as (consumer, _):
        records = iter(consumer)
        next(records)
    with pytest.raises(IllegalStateError, match="closed"):
        next(records)

    async def run() -> None:
        consumer, _ = awaited(T0)
        records = consumer.__aiter__()
        await records.__anext__()
        await consumer.close()
        with pytest.raises(IllegalStateError, match="closed"):
            await records.__anext__()

    asyncio.run(run())


def test_the_asyncio_iterator_counts_what_it_has_yielded() -> None:
    async def run() -> None:
        consumer, group = awaited(T0)
        async for record in consumer:
            assert record.offset == 0
            await consumer.commit()
            break
        assert committed(group) == {T0: 1} and await consumer.position(T0) == 1
        assert offsets(await consumer.poll(0)) == [1, 2]
        await consumer.close()

    asyncio.run(run())


class Failing:
    """An interceptor whose methods all raise."""

    def on_consume(self, found: list[Any]) -> list[Any]:
        raise ValueError("consume")

    def on_commit(self, found: Any) -> None:
        raise ValueError("commit")

    def close(self) -> None:
        raise ValueError("close")


def test_an_interceptor_that_fails_is_logged_and_costs_nothing() -> None:
    lines: list[str] = []
    with blocking(T0, interceptors=[Failing()], log=lines.append) as (consumer, _):
        assert offsets(consumer.poll(0)) == [0, 1, 2]
        consumer.commit_sync()

    async def run() -> None:
        consumer, _ = awaited(T0, interceptors=[Failing()], log=lines.append)
        assert offsets(await consumer.poll(0)) == [0, 1, 2]
        await consumer.commit()
        await consumer.close()

    asyncio.run(run())
    assert [line.rpartition(" ")[2] for line in lines if "interceptor" in line] == [
        f"ValueError('{method}')" for method in ("consume", "commit", "commit", "close") * 2
    ]


class Noting:
    """An interceptor that notes the offsets that were committed."""

    def __init__(self) -> None:
        self.noted: list[object] = []

    def on_consume(self, found: list[Any]) -> list[Any]:
        return found

    def on_commit(self, found: Any) -> None:
        self.noted.append(found[T0].offset)

    def close(self) -> None:
        self.noted.append("closed")


def test_interceptors_see_no_poll_without_records() -> None:
    """As in Kafka: one that counts records, or looks at the first one, need not expect none."""

    class Counting(Noting):
        def on_consume(self, found: list[Any]) -> list[Any]:
            self.noted.append(len(found))
            return found

    counting = Counting()
    with blocking(T0, interceptors=[counting]) as (consumer, _):
        assert len(consumer.poll(0)) == 3 and consumer.poll(0) == []
        assert counting.noted == [3]

    async def run() -> None:
        consumer, _ = awaited(T0, interceptors=[counting])
        assert len(await consumer.poll(0)) == 3 and await consumer.poll(0) == []
        assert counting.noted[-2:] == ["closed", 3]
        await consumer.close()

    asyncio.run(run())


def test_interceptors_see_automatic_commits() -> None:
    """In the calls of the consumer, those of close included, before the interceptors are closed."""
    noting = Noting()
    with blocking(T0, interceptors=[noting]) as (consumer, group):
        group.auto_commits.append({T0: OffsetAndMetadata(2)})
        consumer.poll(0)
        assert noting.noted == [2]
    assert noting.noted == [2, 9, "closed"]

    async def run() -> None:
        noting.noted.clear()
        consumer, group = awaited(T0, interceptors=[noting])
        group.auto_commits.append({T0: OffsetAndMetadata(2)})
        await consumer.poll(0)
        assert noting.noted == [2]
        await consumer.close()
        assert noting.noted == [2, 9, "closed"]

    asyncio.run(run())


def test_a_poll_that_waits_calls_the_callback_of_a_commit() -> None:
    """And the interceptors for an automatic one; both without records."""
    noting = Noting()
    called = threading.Event()
    with blocking(T0, interceptors=[noting]) as (consumer, group):
        consumer.pause([T0])
        group.is_slow = True

        def committed(found: Any, error: ClientError | None) -> None:
            called.set()
            consumer.wakeup()

        consumer.commit_async({T0: OffsetAndMetadata(1)}, committed)
        threading.Timer(0.05, lambda: consumer._thread.call(lambda now_ms: group.waiting[0](None, now_ms))).start()
        with pytest.raises(WakeupError):
            consumer.poll(30.0)
        assert called.is_set()

        class Waking(Noting):
            def on_commit(self, found: Any) -> None:
                super().on_commit(found)
                consumer.wakeup()

        waking = Waking()
        consumer._interceptors = Interceptors([waking], lambda line: None)
        commit = {T0: OffsetAndMetadata(5)}
        threading.Timer(0.05, lambda: consumer._thread.call(lambda now_ms: group.auto_commits.append(commit))).start()
        with pytest.raises(WakeupError):
            consumer.poll(30.0)
        assert waking.noted == [5]
        group.is_slow = False


def test_callbacks_of_commits_run_on_the_callers_thread_and_may_use_the_consumer() -> None:
    """On the network thread, under the lock, a commit_sync inside one would wait for ever."""
    called: list[tuple[str, int, ClientError | None]] = []

    def callback(found: Any, error: ClientError | None) -> None:
        called.append((threading.current_thread().name, found[T0].offset, error))
        if len(called) == 1:
            group.is_slow = False
            consumer.commit_sync()

    with blocking(T0) as (consumer, group):
        group.is_slow = True
        for offset in (1, 2, 3):
            consumer.commit_async({T0: OffsetAndMetadata(offset)}, callback)
        assert called == []
        error = KafkaError(error_codes.REBALANCE_IN_PROGRESS)
        consumer._call(lambda now_ms: [done(error, now_ms) for done in group.waiting])
        assert called == []
        consumer.poll(0)
        own = threading.current_thread().name
        assert called == [(own, 1, error), (own, 2, error), (own, 3, error)]
        consumer.commit_async(None, callback)
    assert called[3:] == [(own, 3, None)]  # close calls what is left


def test_a_callback_that_raises_is_not_lost_and_holds_nothing_up() -> None:
    def callback(found: Any, error: ClientError | None) -> None:
        raise ValueError(found[T0].offset)

    consumer = Consumer(SETTINGS)
    join(consumer._core)
    for offset in (1, 2):
        consumer.commit_async({T0: OffsetAndMetadata(offset)}, callback)
    with pytest.raises(ValueError, match="1"):
        consumer.commit_sync({T0: OffsetAndMetadata(9)})
    with pytest.raises(ValueError, match="2"):
        consumer.close()
    assert not consumer._thread._thread.is_alive()


def test_two_tasks_do_not_poll_or_close_at_the_same_time() -> None:
    async def run() -> None:
        consumer, group = awaited(T0)
        consumer.pause([T0])
        polling = asyncio.ensure_future(consumer.poll(60.0))
        await asyncio.sleep(0)
        for call in (consumer.poll(0), consumer.poll_arrow(0), consumer.unsubscribe(), consumer.close()):
            with pytest.raises(IllegalStateError, match="another task"):
                await call
        group.is_slow = True
        committing = asyncio.ensure_future(consumer.commit({T0: OffsetAndMetadata(1)}))
        consumer.resume([T0])
        assert offsets(await polling) == [0, 1, 2]
        group.is_slow = False
        await consumer.close()
        with pytest.raises(IllegalStateError, match="closed"):
            await committing  # which would have waited for ever

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_wakeup_ends_the_calls_that_wait() -> None:
    with blocking(T0) as (consumer, group):
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.poll(0)
        group.is_slow = True
        threading.Timer(0.05, consumer.wakeup).start()
        with pytest.raises(WakeupError):
            consumer.commit_sync()
        threading.Timer(0.05, consumer.wakeup).start()
        with pytest.raises(WakeupError):
            consumer.end_offsets([T0])
        assert offsets(consumer.poll(0)) == [0, 1, 2]  # each wakeup ends one call
        group.is_slow = False
    consumer.wakeup()

    async def run() -> None:
        consumer, group = awaited(T0)
        group.is_slow = True
        committing = asyncio.ensure_future(consumer.commit())
        await asyncio.sleep(0)
        consumer.wakeup()
        with pytest.raises(WakeupError):
            await committing
        group.is_slow = False
        await consumer.close()
        consumer.wakeup()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_close_that_waits_does_not_spin() -> None:
    """Records, errors and wakeups are no work for it; a call of the listener is."""
    called: list[object] = []

    class Listener:
        def on_partitions_assigned(self, partitions: Any) -> None:
            pass

        def on_partitions_lost(self, partitions: Any) -> None:
            pass

        def on_partitions_revoked(self, partitions: Any) -> None:
            called.append(partitions)

    consumer = Consumer(SETTINGS)
    core, group = consumer._core, join(consumer._core)
    consumer._call(lambda now_ms: begin(core, now_ms, T0))
    core.subscriptions.listener = Listener()
    waits: list[int] = []
    await_callback = core.await_callback

    def counted(done: Any, now_ms: int, timeout_ms: int) -> None:
        waits.append(now_ms)
        await_callback(done, now_ms, timeout_ms)

    core.await_callback = counted  # type: ignore[method-assign]
    group.is_slow = True

    def call_listener(now_ms: int) -> None:
        core.errors.put(ClientError("not for a close"))
        group.calls.append(RebalanceCallback(CallbackKind.REVOKED, (T0,)))

    threading.Timer(0.05, lambda: consumer._thread.call(call_listener)).start()
    threading.Timer(0.1, lambda: consumer._thread.call(lambda now_ms: group.closing(None, now_ms))).start()
    consumer.close()
    assert called == [[T0]] and len(waits) <= 3


def test_a_text_is_not_a_list_of_topics_and_offsets_have_a_range() -> None:
    with blocking() as (consumer, group):
        consumer._call(consumer._core.unsubscribe)
        with pytest.raises(TypeError, match=r"\['orders'\]"):
            consumer.subscribe("orders")
        with pytest.raises(ValueError, match="an offset must be"):
            consumer.commit_sync({T0: OffsetAndMetadata(-1)})
        with pytest.raises(ValueError, match="an offset must be"):
            consumer.commit_async({T0: OffsetAndMetadata(2**63)})
        assert group.commits == []


class CalledListener:
    """Notes its calls; each does what the test says."""

    def __init__(self, acts: Callable[[], object]) -> None:
        self.calls: list[tuple[str, list[tuple[str, int]]]] = []
        self.acts = acts

    def on_partitions_assigned(self, partitions: Any) -> object:
        self.calls.append(("assigned", partitions))
        return self.acts()

    def on_partitions_revoked(self, partitions: Any) -> object:
        self.calls.append(("revoked", partitions))
        return self.acts()

    def on_partitions_lost(self, partitions: Any) -> object:
        self.calls.append(("lost", partitions))
        return self.acts()


def assign_by_group(core: ConsumerCore) -> GroupMember:
    """Assign a partition as the group does, without a broker."""
    core.subscriptions.assign_from_subscribed((T0,))
    assert isinstance(core.membership, GroupMember)
    return core.membership


def revoke(core: ConsumerCore, now_ms: int) -> None:
    assign_by_group(core).revoke((T0,), lambda now_ms: None, now_ms)


def fence(core: ConsumerCore, now_ms: int) -> None:
    member = assign_by_group(core)
    assert isinstance(member, ClassicMembership)
    member.lose_generation(error_codes.FENCED_INSTANCE_ID, now_ms)


IN_GROUP = {**SETTINGS, "group.id": "g", "group.instance.id": "one", "enable.auto.commit": "false"}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_listener_that_unsubscribes_or_polls_is_called_once(protocol: str) -> None:
    """Its call has begun: it must not begin again in the calls of the consumer that it makes itself."""

    def act() -> None:
        assert consumer.poll(0.01) == []
        consumer.unsubscribe()

    listener = CalledListener(act)
    settings = {name: value for name, value in IN_GROUP.items() if protocol == "classic" or name != "group.instance.id"}
    with Consumer({**settings, "group.protocol": protocol}) as consumer:
        consumer.subscribe(["t"], listener)
        consumer._call(partial(revoke, consumer._core))
        assert consumer.poll(0.01) == [] and consumer.subscription() == set()
    assert listener.calls == [("revoked", [T0])]

    async def act_in_task() -> None:
        assert await awaiting.poll(0.01) == []
        await awaiting.unsubscribe()

    async def run() -> None:
        nonlocal awaiting, listener
        listener = CalledListener(act_in_task)
        async with AsyncConsumer({**settings, "group.protocol": protocol}) as awaiting:
            awaiting.subscribe(["t"], listener)
            awaiting._call(partial(revoke, awaiting._core))
            assert await awaiting.poll(0.01) == [] and awaiting.subscription() == set()

    awaiting: AsyncConsumer
    asyncio.run(run())
    assert listener.calls == [("revoked", [T0])]


def test_subscribe_without_topics_calls_the_listener_of_an_asyncio_consumer() -> None:
    """It does not wait: a listener with coroutine methods needs `unsubscribe`, and nothing happens without it."""

    class Awaited(CalledListener):
        async def on_partitions_revoked(self, partitions: Any) -> None:
            self.calls.append(("revoked", partitions))

        async def on_partitions_lost(self, partitions: Any) -> None:
            self.calls.append(("lost", partitions))

    def refuse() -> None:
        raise ValueError("not now")

    async def run() -> None:
        async with AsyncConsumer(IN_GROUP) as awaiting:
            listener = CalledListener(lambda: None)
            awaiting.subscribe(["t"], listener)
            awaiting._call(lambda now_ms: assign_by_group(awaiting._core))
            awaiting.subscribe([])
            assert listener.calls == [("lost", [T0])] and awaiting.subscription() == set() == awaiting.assignment()
            awaiting.subscribe(["t"], CalledListener(refuse))
            awaiting._call(lambda now_ms: assign_by_group(awaiting._core))
            with pytest.raises(RebalanceListenerError, match="not now"):
                awaiting.subscribe([])
            assert awaiting.subscription() == set()
            awaited = Awaited(lambda: None)
            awaiting.subscribe(["t"], awaited)
            awaiting._call(lambda now_ms: assign_by_group(awaiting._core))
            with pytest.raises(IllegalStateError, match=r"await unsubscribe\(\)"):
                awaiting.subscribe([])
            assert awaiting.subscription() == {"t"} and awaited.calls == []
            await awaiting.unsubscribe()
            assert awaited.calls == [("lost", [T0])]

    asyncio.run(run())


def test_a_poll_inside_the_listener_does_not_spin() -> None:
    """What the membership does after the call is no work for it."""

    def act() -> None:
        consumer.poll(0.1)

    listener = CalledListener(act)
    with Consumer(IN_GROUP) as consumer:
        consumer.subscribe(["t"], listener)
        consumer._call(partial(revoke, consumer._core))
        waits: list[int] = []
        await_work = consumer._core.await_work

        def counted(done: Any, now_ms: int, timeout_ms: int) -> None:
            waits.append(now_ms)
            await_work(done, now_ms, timeout_ms)

        consumer._core.await_work = counted  # type: ignore[method-assign]
        consumer.poll(0)
        assert len(listener.calls) == 1 and len(waits) <= 3


def test_a_fenced_member_hears_of_its_loss_before_poll_raises() -> None:
    listener = CalledListener(lambda: None)
    with Consumer(IN_GROUP) as consumer:
        consumer.subscribe(["t"], listener)
        consumer._call(partial(fence, consumer._core))
        with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
            consumer.poll(0)
        assert listener.calls == [("lost", [T0])]

    async def run() -> None:
        listener.calls.clear()
        async with AsyncConsumer(IN_GROUP) as awaiting:
            awaiting.subscribe(["t"], listener)
            awaiting._call(partial(fence, awaiting._core))
            with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
                await awaiting.poll(0)
            assert listener.calls == [("lost", [T0])]

    asyncio.run(run())


def test_a_listener_call_that_is_interrupted_has_ended() -> None:
    """Else no record would ever be returned again; the next poll reports it."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with Consumer(IN_GROUP) as consumer:
        consumer.subscribe(["t"], CalledListener(interrupt))
        consumer._call(partial(revoke, consumer._core))
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(0)
        assert consumer._core.membership is not None and consumer._core.membership.is_ready_to_fetch
        with pytest.raises(RebalanceListenerError, match="KeyboardInterrupt"):
            consumer.poll(0)

    async def run() -> None:
        async with AsyncConsumer(IN_GROUP) as awaiting:
            awaiting.subscribe(["t"], CalledListener(asyncio.Event().wait))
            awaiting._call(partial(revoke, awaiting._core))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(awaiting.poll(0), 0.01)
            with pytest.raises(RebalanceListenerError, match="CancelledError"):
                await awaiting.poll(0)

    asyncio.run(run())


def test_what_the_listener_raises_is_raised_by_the_same_poll() -> None:
    def fail() -> None:
        raise ValueError("of the application")

    with Consumer(IN_GROUP) as consumer:
        consumer.subscribe(["t"], CalledListener(fail))
        consumer._call(partial(revoke, consumer._core))
        with pytest.raises(RebalanceListenerError, match="of the application"):
            consumer.poll(0)


def test_the_listener_can_ask_for_the_position_of_a_new_partition() -> None:
    positions: list[int] = []
    listener = CalledListener(lambda: positions.append(consumer.position(T0, 30.0)))
    with Consumer(IN_GROUP) as consumer:
        consumer.subscribe(["t"], listener)
        member = assign_by_group(consumer._core)

        def committed(partitions: Any, done: Any, now_ms: int, timeout_ms: int) -> None:
            done({T0: OffsetAndMetadata(7)}, now_ms)

        member.committed = committed  # type: ignore[method-assign]
        consumer._call(lambda now_ms: member.calls.call(CallbackKind.ASSIGNED, (T0,), lambda now_ms: None, now_ms))
        consumer.poll(0)
        assert positions == [7] and listener.calls == [("assigned", [T0])]


def test_what_the_listener_raises_at_the_end_is_raised_by_that_call() -> None:
    """The consumer has ended nevertheless: nothing of it is left."""

    def fail() -> None:
        raise ValueError("of the application")

    def started(consumer: Consumer | AsyncConsumer) -> None:
        consumer.subscribe(["t"], CalledListener(fail))
        consumer._call(lambda now_ms: assign_by_group(consumer._core) and None)

    settings = {**SETTINGS, "group.id": "g", "group.protocol": "consumer", "enable.auto.commit": "false"}
    consumer = Consumer(settings)
    started(consumer)
    with pytest.raises(RebalanceListenerError, match="of the application"):
        consumer.unsubscribe()
    assert consumer.subscription() == set()
    started(consumer)
    with pytest.raises(RebalanceListenerError, match="of the application"):
        consumer.close()
    assert not consumer._thread._thread.is_alive()

    async def run() -> None:
        awaiting = AsyncConsumer(settings)
        started(awaiting)
        with pytest.raises(RebalanceListenerError, match="of the application"):
            await awaiting.unsubscribe()
        started(awaiting)
        with pytest.raises(RebalanceListenerError, match="of the application"):
            await awaiting.close()
        with pytest.raises(IllegalStateError, match="closed"):
            awaiting.subscribe(["t"])

    asyncio.run(run())


def test_slow_deserializers_let_the_network_thread_work() -> None:
    """It sends the heartbeats: without them the member is taken out of its group."""
    worked = threading.Event()
    seen: list[bool] = []

    def work() -> None:
        with consumer._thread._own_lock:
            worked.set()

    def deserialize(data: bytes) -> bytes:
        if not seen:
            consumer._thread.call_soon(work)
        seen.append(worked.wait(0.01))
        return data

    with blocking(T0, T1, ("t", 2), ("t", 3), value_deserializer=deserialize) as (consumer, _):
        assert len(consumer.poll(0)) == 12
    assert seen[-1]


class Ticks:
    """Counts how often the event loop had time, while a deserializer takes 10 ms for a record by the clock of the consumer."""

    def __init__(self, clock: Clock) -> None:
        self.count = 0
        self.seen: list[int] = []
        self._slow_s = 0.0
        clock._steady = lambda: time.monotonic() + self._slow_s
        self._ticking = asyncio.ensure_future(self._tick())

    async def _tick(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)

    def deserialize(self, data: bytes) -> bytes:
        self._slow_s += 0.01
        self.seen.append(self.count)
        return data

    def stop(self) -> None:
        self._ticking.cancel()


def test_slow_deserializers_let_the_event_loop_work() -> None:
    """It sends the heartbeats, and serves other tasks. A poll that is cancelled between two records loses none."""

    async def run() -> None:
        consumer, _ = awaited(T0, T1, ("t", 2), ("t", 3), value_deserializer=lambda data: ticks.deserialize(data))
        ticks = Ticks(consumer._clock)
        assert len(await consumer.poll(0)) == 12
        assert ticks.seen[-1] >= ticks.seen[0] + 4, "after the first records there is time before each one"
        consumer._call(lambda now_ms: begin(consumer._core, now_ms, T0, T1, ("t", 2), ("t", 3)))
        polling = asyncio.ensure_future(consumer.poll(0))
        while len(ticks.seen) < 12 + 10:
            await asyncio.sleep(0)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        assert {one.offset for one in consumer._core.subscriptions.all_consumed().values()} == {0}
        ticks.stop()
        await consumer.close()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_deserializer_that_fails_later_costs_no_record() -> None:
    """The records before it are returned, and its position is where it is: also of another slice."""

    def deserialize(data: bytes) -> bytes:
        count.append(data)
        if len(count) > 10:
            raise ValueError("not this one")
        return data

    count: list[bytes] = []
    with blocking(T0, T1, ("t", 2), ("t", 3), value_deserializer=deserialize) as (consumer, _):
        assert len(consumer.poll(0)) == 10
        for _ in range(2):
            with pytest.raises(RecordDeserializationError, match="t-3@1: the value cannot be deserialized"):
                consumer.poll(0)
        assert consumer.position(("t", 3)) == 1
        consumer.seek(("t", 3), 2)
        assert consumer.poll(0) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, WakeupError, None])
def test_a_failed_block_commits_nothing_automatically(error: type[BaseException] | None) -> None:
    """The application had not done its work with the records of the last poll. A wakeup is no failure."""
    settings = {**SETTINGS, "group.id": "g", "enable.auto.commit": True}
    commits: list[dict[Any, OffsetAndMetadata]] = []

    def read(consumer: Consumer | AsyncConsumer) -> None:
        def note(wanted: Any, done: Any, now_ms: int, *others: Any) -> None:
            commits.append(dict(wanted))
            done(None, now_ms)

        core = consumer._core
        assert isinstance(core.membership, GroupMember)
        core.membership.commits.commit = note  # type: ignore[method-assign]
        consumer._call(lambda now_ms: begin(core, now_ms, T0))

    def fail() -> None:
        if error is not None:
            raise error

    with pytest.raises(error) if error else nullcontext(), Consumer(settings) as consumer:
        read(consumer)
        assert len(consumer.poll(0)) == 3
        fail()

    async def run() -> None:
        async with AsyncConsumer(settings) as awaiting:
            read(awaiting)
            assert len(await awaiting.poll(0)) == 3
            fail()

    with pytest.raises(error) if error else nullcontext():
        asyncio.run(run())
    offsets = [{one.offset for one in wanted.values()} for wanted in commits if wanted]
    assert offsets == ([{3}] * 2 if error in (None, WakeupError) else [])


def test_records_of_an_interrupted_poll_are_not_committed() -> None:
    """Neither those of earlier slices of the deserializer, nor those that an interceptor saw."""

    def deserialize(data: bytes) -> bytes:
        count.append(data)
        if len(count) == 10:
            raise KeyboardInterrupt
        return data

    class Interrupted(Noting):
        def on_consume(self, found: list[Any]) -> list[Any]:
            raise KeyboardInterrupt

    four = (T0, T1, ("t", 2), ("t", 3))
    count: list[bytes] = []
    with blocking(*four, value_deserializer=deserialize) as (consumer, group):
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(0)
        consumer.commit_sync()
        assert set(committed(group).values()) == {0}
    for use in (lambda: consumer.poll(0), lambda: next(iter(consumer))):
        with blocking(*four, interceptors=[Interrupted()]) as (consumer, group):
            with pytest.raises(KeyboardInterrupt):
                use()
            consumer.commit_sync()
            assert set(committed(group).values()) == {0}


def test_a_subscription_to_nothing_calls_the_listener() -> None:
    listener = CalledListener(lambda: None)
    with Consumer({**SETTINGS, "group.id": "g", "group.protocol": "consumer"}) as consumer:
        consumer.subscribe([])
        consumer.subscribe(["t"], listener)
        consumer._call(lambda now_ms: assign_by_group(consumer._core) and None)
        consumer.subscribe(iter(()))
        assert listener.calls == [("revoked", [T0])] and consumer.subscription() == set()


def test_a_wakeup_is_not_for_a_call_that_was_cancelled() -> None:
    """The next call would wait, although it was to end."""

    async def run() -> None:
        consumer, group = awaited(T0)
        group.is_slow = True
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(consumer.commit({T0: OffsetAndMetadata(1)}), 0.01)
        consumer.wakeup()
        with pytest.raises(WakeupError):
            await consumer.poll(0)
        group.waiting[0](None, 0)
        group.is_slow = False
        await consumer.close()

    asyncio.run(run())
