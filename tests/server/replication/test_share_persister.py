"""Protects the order of the persister's calls: a write that is repeated does not undo the start offset of a later one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kcli.format.kafka_uuid import Uuid
from kcli.network.timing_wheel import Timer
from kcli.protocol import apis, error_codes
from kcli.protocol.apis import API_KEYS
from kcli.protocol.message import Message
from kcli.server.config.loading import load_config
from kcli.server.replication.share_persister import DefaultStatePersister, ShareKey, ShareUpdateBatches
from kcli.state.share_group_state import StateBatch

START_MS = 1_750_000_000_000
KEY = ShareKey("g", Uuid(b"t" * 16), 0)
OTHER = ShareKey("g", Uuid(b"t" * 16), 1)


class FakePeers:
    """Keeps the requests until a test answers them."""

    def __init__(self) -> None:
        self.rng = random.Random(1)
        self.sent: list[tuple[int, Message, Callable[..., None]]] = []

    def send(
        self, node: Any, listener: str, api_key: int, message: Message, done: Callable[..., None], deadline_ms: int
    ) -> None:
        """Keep a request."""
        self.sent.append((api_key, message, done))


class Persister:
    """A persister with its requests; `results` has the names of finished calls with their results."""

    def __init__(self) -> None:
        self.peers, self.timer = FakePeers(), Timer(START_MS)
        config = load_config(None, ["log.dirs=/nowhere", "listeners=PLAINTEXT://127.0.0.1:0"])
        self.persister = DefaultStatePersister(config, lambda key: 1, self.peers, "PLAINTEXT", self.timer)  # type: ignore[arg-type]
        self.results: list[tuple[str, Any]] = []

    def write(self, name: str, start_offset: int, key: ShareKey = KEY, leader_epoch: int = 0) -> None:
        """Write a start offset, and an accepted record at it."""
        update = ShareUpdateBatches(0, leader_epoch, start_offset, 1, (StateBatch(start_offset, start_offset, 2, 1),))
        self.persister.write(key, update, lambda code: self.results.append((name, code)))

    def requests(self) -> list[tuple[int, Message]]:
        """Let the timers run that are due, and return the requests without an answer."""
        self.timer.advance(self.timer.clock_ms + 1)
        return [(api_key, message) for api_key, message, _ in self.peers.sent]

    def answer(self, code: int = error_codes.NONE) -> None:
        """Answer the first request."""
        self.requests()
        api_key, message, done = self.peers.sent.pop(0)
        response = API_KEYS[api_key].response
        parts = [(topic.topic_id, part.partition) for topic in message.topics for part in topic.partitions]
        struct = next(name for name in response.classes if name.endswith("StateResult"))
        results = [
            response.classes[struct](
                topic_id=topic_id, partitions=[response.classes["PartitionResult"](partition=index, error_code=code)]
            )
            for topic_id, index in parts
        ]
        done(response.new(results=results), self.timer.clock_ms)


def starts(message: Message) -> list[tuple[int, list[int]]]:
    """The start offset of each partition, and the first offsets of its batches."""
    return [
        (part.start_offset, [batch.first_offset for batch in part.state_batches])
        for topic in message.topics
        for part in topic.partitions
    ]


def test_later_writes_wait_for_the_one_that_is_repeated() -> None:
    """They are one write then, with the last start offset and all batches."""
    made = Persister()
    for name, start_offset in (("a", 3), ("b", 4), ("c", 5)):
        made.write(name, start_offset)
    made.write("other", 7, OTHER)
    ((api_key, message),) = made.requests()
    assert (api_key, starts(message)) == (apis.WRITE_SHARE_GROUP_STATE, [(3, [3]), (7, [7])])
    made.answer(error_codes.COORDINATOR_LOAD_IN_PROGRESS)
    assert made.requests() == [] and made.results == []
    made.timer.advance(made.timer.clock_ms + 10_000)
    made.answer()
    ((_, message),) = made.requests()
    assert starts(message) == [(5, [4, 5])]
    made.answer(error_codes.FENCED_STATE_EPOCH)
    fenced = error_codes.FENCED_STATE_EPOCH
    assert made.results == [("a", 0), ("other", 0), ("b", fenced), ("c", fenced)]
    made.write("d", 6)
    assert len(made.requests()) == 1


def test_a_read_and_a_write_of_another_leader_keep_their_order() -> None:
    """The read has what was written before it, and is not joined with it."""
    made = Persister()
    made.write("a", 3)
    made.write("b", 4)
    made.persister.read(KEY, 1, lambda state: made.results.append(("read", None)))
    made.write("c", 5, leader_epoch=1)
    made.write("d", 6, leader_epoch=1)
    kinds = []
    for _ in range(4):
        ((api_key, _),) = made.requests()
        kinds.append(api_key)
        made.answer()
    assert kinds == [
        apis.WRITE_SHARE_GROUP_STATE,
        apis.WRITE_SHARE_GROUP_STATE,
        apis.READ_SHARE_GROUP_STATE,
        apis.WRITE_SHARE_GROUP_STATE,
    ]
    assert [name for name, _ in made.results] == ["a", "b", "read", "c", "d"]
