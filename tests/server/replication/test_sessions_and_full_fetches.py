"""Protects fetch sessions, which read only what has changed: each answer has what a full fetch of all partitions would have.

Random appends, transactions, fetches of followers, log starts, leaders, ISRs and truncations happen before and during the waits
of three readers: two consumers and a follower. A change that does not mark a partition is an answer without its news; one
that does not wake a fetch is one that waits for nothing.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcli.format.record_batch import Producer
from kcli.log.log_validator import AppendOrigin
from kcli.log.unified_log import UnifiedLog
from kcli.protocol.message import Message
from kcli.server.apis import fetch
from kcli.server.coordinator.coordinator_record import EndTransaction, encode_marker_batch
from kcli.server.events import DeadlineReached
from kcli.server.replication.partition import Partition
from kcli.state.image_records import new_record
from tests.server.replication.test_leader import Node
from tests.server.whole_node import START_MS, Pending, WholeNode, batch

PARTITIONS = 2
Key = tuple[str, int]
KEYS: list[Key] = [("t", index) for index in range(PARTITIONS)]
FOLLOWER = 2


class Part:
    """What an answer has of a partition."""

    def __init__(self, found: Message) -> None:
        self.bounds = found.high_watermark, found.log_start_offset
        self.code, self.size_bytes = found.error_code, len(found.records or b"")
        self.all = self.code, self.bounds, self.size_bytes


class Reader:
    """A session of one kind of reader, and what its client knows."""

    def __init__(self, world: World, kind: str) -> None:
        self.world, self.kind = world, kind
        self.session_id, self.epoch = 0, 0
        self.offsets = dict.fromkeys(KEYS, 0)
        self.known = dict.fromkeys(KEYS, (-1, -1))
        self.named = set(KEYS)

    def send(self, offsets: dict[Key, int], **fields: int) -> Pending:
        """Send a Fetch; a session's with its id and epoch."""
        if self.kind == "follower":
            return self.world.node.follow(offsets, FOLLOWER, **fields)
        return self.world.node.fetch(offsets, isolation_level=int(self.kind == "committed"), **fields)

    def ask(self, wait_ms: int) -> Pending:
        """Send the next request of the session."""
        offsets = {key: self.offsets[key] for key in self.named}
        self.named = set()
        fields = {"session_id": self.session_id, "session_epoch": self.epoch, "max_wait_ms": wait_ms}
        return self.send(offsets, **(fields if self.session_id else {"session_epoch": 0}))

    def take(self, answer: Message) -> None:
        """Take an answer, after which the session is at its next epoch."""
        assert answer.error_code == 0
        self.session_id, self.epoch = answer.session_id, self.epoch + 1
        for key, part in self.world.parts(answer).items():
            log = self.world.partition(key).log
            assert log is not None
            self.known[key] = (-1 if part.code else part.bounds[0], part.bounds[1])
            if part.code:
                self.offsets[key] = max(log.log_start_offset, min(self.offsets[key], log.log_end_offset))
                self.named.add(key)
            elif part.size_bytes and self.world.rng.random() < 0.8:
                ends = {"follower": log.log_end_offset, "committed": log.last_stable_offset, "uncommitted": part.bounds[0]}
                self.offsets[key] = ends[self.kind]
                self.named.add(key)

    def check(self) -> None:
        """Compare an answer at once with that to a full fetch."""
        before = dict(self.known)
        answer = self.world.finished(self.ask(0))
        told = self.world.parts(answer)
        offsets = dict(self.offsets)
        for key, part in self.world.parts(self.world.finished(self.send(offsets))).items():
            is_news = part.code != 0 or part.size_bytes > 0 or part.bounds != before[key]
            assert (key in told) >= is_news, f"{self.kind} does not know of {key}: {part.all}, was {before[key]}"
            assert key not in told or told[key].all == part.all
        self.take(answer)


class World:
    """A node, and what happens to the partitions that it leads or follows."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.node = Node(directory)
        self.topic_id = self.node.broker.image.topic_ids["t"]
        self.transactions: dict[Key, int] = {}
        self.producers = 100

    def partition(self, key: Key) -> Partition:
        """A partition of the node."""
        found = self.node.broker.replica_manager.partition(*key)
        assert found is not None
        return found

    def parts(self, answer: Message) -> dict[Key, Part]:
        """The partitions of an answer, whose version has names or ids."""
        return {("t", part.partition_index): Part(part) for topic in answer.responses for part in topic.partitions}

    def finished(self, pending: Pending) -> Message:
        """Run the slices of a fetch to its answer."""
        self.node.until(lambda: pending.answer is not None)
        return pending.result()

    def change(self, **fields: object) -> None:
        """Publish a change of a partition."""
        self.node.publish([new_record("PartitionChangeRecord", topic_id=self.topic_id, **fields)])
        self.node.advance(1)

    def happens(self) -> None:
        """Let something happen to a partition."""
        rng, key = self.rng, self.rng.choice(KEYS)
        partition = self.partition(key)
        log = partition.log
        assert log is not None
        what = rng.random()
        if what < 0.1:
            self.change(partition_id=key[1], leader=rng.choice((1, 1, 2)))
        elif what < 0.2:
            self.change(partition_id=key[1], isr=rng.choice(([1, 2, 3], [1, 3], [1, 2], [1])))
        elif what < 0.3:
            self.node.advance(rng.choice((1, 100, 3000)))
        elif partition.is_leader:
            self._leads(partition, log, what)
        elif what < 0.6:
            fetchers, offset = self.node.broker.fetchers, rng.randint(log.high_watermark, log.log_end_offset)
            fetchers.truncate(partition, log, offset, "a test", self.node.now_ms)
            fetchers.end_truncations(self.node.now_ms)
        else:
            log.update_high_watermark(rng.randint(log.log_start_offset, log.log_end_offset))
            self.node.broker.replica_manager.records_appended(key, self.node.now_ms)
        self.node.handle(DeadlineReached())

    def _leads(self, partition: Partition, log: UnifiedLog, what: float) -> None:
        key = partition.key
        if what < 0.5:
            data = batch(b"x" * self.rng.choice((10, 100)))
        elif what < 0.6:
            if key in self.transactions:
                producer = Producer(self.transactions.pop(key), 0)
                marker = encode_marker_batch(EndTransaction(producer, 0, self.rng.random() < 0.5), START_MS)
                partition.append(memoryview(marker), 1, START_MS, AppendOrigin.COORDINATOR)
                return
            self.producers += 1
            self.transactions[key] = self.producers
            data = batch(b"y", attributes=0x10, producer_id=self.producers, producer_epoch=0, base_sequence=0)
        elif what < 0.9:
            follower = partition.followers.get(self.rng.choice((2, 3)))
            if follower is not None:
                partition.follower_fetched(follower, log.log_end_offset, 0, 10 * follower.broker_id)
            return
        else:
            log.maybe_increment_log_start_offset(self.rng.randint(log.log_start_offset, log.high_watermark))
            return
        partition.append(memoryview(bytearray(data)), 1, START_MS)


def run(directory: Path, seed: int, steps: int) -> None:
    """Let things happen before, between the slices and during the waits of the readers' fetches."""
    world = World(directory, seed)
    readers = [Reader(world, kind) for kind in ("uncommitted", "committed", "follower")]
    for _ in range(steps):
        reader = world.rng.choice(readers)
        if world.rng.random() < 0.6:
            world.happens()
        pending = reader.ask(world.rng.choice((0, 500, 500)))
        for _ in range(7):
            if pending.answer is not None:
                break
            if world.rng.random() < 0.6:
                world.happens()
            world.node.advance(1)
            if pending.answer is None and reader.session_id:
                full = world.parts(world.finished(reader.send(dict(reader.offsets))))
                assert not any(part.size_bytes for part in full.values()), f"{reader.kind} waits for what is there"
            world.node.advance(99)
        reader.take(world.finished(pending))
        reader.check()


@pytest.mark.parametrize("least", [0, 150], ids=["in slices", "at once"])
@pytest.mark.parametrize("seed", range(6))
def test_a_session_has_what_a_full_fetch_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, least: int) -> None:
    monkeypatch.setattr(fetch, "MANY_PARTITIONS", least)
    monkeypatch.setattr(fetch, "_READ_US", 10_000)  # each read of a sliced fetch is a slice
    run(tmp_path / "data", seed, 60)


def test_a_change_between_slices_wakes_the_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that the fetch does not read, since it had not changed, changes while the others are read."""
    monkeypatch.setattr(fetch, "MANY_PARTITIONS", 1)
    monkeypatch.setattr(fetch, "_READ_US", 10_000)
    node = WholeNode(tmp_path / "data")
    node.create_topic("u", 4)
    session_id = 0
    for epoch in range(3):
        pending = node.fetch(
            {("u", index): 0 for index in range(4)} if epoch == 0 else {}, session_id=session_id, session_epoch=epoch
        )
        node.until(lambda pending=pending: pending.answer is not None)
        session_id = pending.result().session_id
    waiting = node.fetch(
        {("u", index): 0 for index in range(3)}, session_id=session_id, session_epoch=3, max_wait_ms=30_000, min_bytes=1
    )
    assert waiting.answer is None
    began_ms = node.now_ms
    node.produce("u", 3, batch(b"x"), acks=1)
    node.until(lambda: waiting.answer is not None)
    (topic,) = waiting.result().responses
    assert [part.partition_index for part in topic.partitions] == [3] and node.now_ms - began_ms < 1000


@pytest.mark.slow
@pytest.mark.parametrize("least", [0, 150], ids=["in slices", "at once"])
@pytest.mark.parametrize("block", range(10))
def test_many_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, least: int) -> None:
    monkeypatch.setattr(fetch, "MANY_PARTITIONS", least)
    monkeypatch.setattr(fetch, "_READ_US", 10_000)
    for seed in range(100 + block * 20, 120 + block * 20):
        run(tmp_path / f"data-{seed}", seed, 170)
