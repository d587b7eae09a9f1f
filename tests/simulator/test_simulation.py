"""Protects the simulation as a whole, on a small broker of the tests: a right one passes, each wrong one is found out, and a
seed is a trace to the byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kcli.format.record_batch import read_header
from kcli.protocol import apis
from kcli.protocol.message import Message
from kcli.server.events import Connection, Effect
from kcli.simulator.runner import Simulation, SimulationResult

sys.path.insert(0, str(Path(__file__).parent))
from small_node import SmallLog, SmallNode

STEPS = 800


def simulate(seed: int, node: type[SmallNode], steps: int = STEPS) -> SimulationResult:
    simulation = Simulation(seed, node, ["/data"], steps=steps)
    # Its directories are not Kafka's.
    simulation.checker.verify = lambda **_: None  # type: ignore[method-assign]
    return simulation.run()


def test_a_right_broker_passes() -> None:
    """And the storm was one: there were deaths, batches, and records that were read and checked."""
    outcomes = [simulate(seed, SmallNode) for seed in range(40)]
    assert [outcome.failure for outcome in outcomes if outcome.failure] == []
    assert sum(outcome.deaths for outcome in outcomes) > 40
    assert sum(outcome.batches for outcome in outcomes) > 1000
    assert sum(outcome.records_read for outcome in outcomes) > 2000
    assert sum(outcome.records_checked for outcome in outcomes) > 4000


def broken_log(**methods: Any) -> type[SmallNode]:
    """A node whose logs have other methods."""
    return type("BrokenNode", (SmallNode,), {"log_class": type("BrokenLog", (SmallLog,), methods)})


def acknowledge_first(self: SmallLog, data: bytearray) -> None:
    """Keeps the batch back until the next one comes."""
    held, self.held = getattr(self, "held", None), data  # type: ignore[attr-defined]
    if held is not None:
        self.file.append([held])


def forget_producers(self: SmallLog, batch: Any) -> None:
    SmallLog.note(self, batch)
    self.producers.clear()


def keep_torn(self: SmallLog) -> None:
    """Appends behind whatever a crash has left."""
    self.size = self.file.size()


def lose_the_last(self: SmallLog) -> None:
    if self.batches:
        self.end, self.size = self.batches[-1].base_offset, self.batches[-1].position
    SmallLog.recover(self)


def change_a_byte(self: SmallLog, data: bytearray) -> None:
    if self.end % 7 == 3:
        data = bytearray(read_header_and_recompress(data))
    self.file.append([data])


def read_header_and_recompress(data: bytearray) -> bytes:
    """The batch without its last record, everything else in order."""
    from kcli.format.record_batch import NewRecordBatch
    from kcli.format.records import Record, encode_records
    from kcli.simulator.sent_records import placed_records

    batch = read_header(data)
    records = [record._replace(value=record.value[:-1]) for _, record in placed_records(data, batch)]
    encoded = encode_records(
        Record(at, record.timestamp - batch.base_timestamp, record.key, record.value, record.headers)
        for at, record in enumerate(records)
    )
    return NewRecordBatch(
        batch.base_offset,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.record_count,
        encoded,
        batch.attributes & ~7,
        0,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
    ).encode()


class NoFlush(SmallNode):
    """Answers without waiting for the disk."""

    def flush(self, paths: list[str], done: Any) -> None:
        done()


class ForgetfulOfTopics(SmallNode):
    """Keeps a new topic to itself."""

    def save(self) -> None:
        self.open_logs()


class OneProducerId(SmallNode):
    """Gives the ids of the life before again."""

    def on_initproducerid(self, api: apis.Api, request: Message) -> Message:
        given = self.meta["next_producer_id"]
        self.meta["next_producer_id"] += 1
        return api.response.new(producer_id=given, producer_epoch=0)


class KeepsTheFrame(SmallNode):
    """Decodes a request only when the next one comes: its view is of another request by then."""

    def serve(self, api: apis.Api, request: Message, connection: Connection, respond: Any) -> None:
        if api.key == apis.PRODUCE:
            held, self.held = getattr(self, "held", None), (api, request, connection, respond)
            if held is not None:
                SmallNode.serve(self, *held)
            return
        super().serve(api, request, connection, respond)


class ReadsTooFar(SmallNode):
    """Gives consumers the batch behind the one that they asked for."""

    def on_fetch(self, api: apis.Api, request: Message) -> Message:
        for topic in request.topics:
            for part in topic.partitions:
                log = self.logs.get((self.topic(topic.topic, topic.topic_id)[0], part.partition))
                if log is not None and part.fetch_offset + 1 < log.end:
                    part.fetch_offset += 1
        return super().on_fetch(api, request)


class StopsWithoutFlush(SmallNode):
    """Leaves in order, as far as anybody can tell."""

    def stop(self, now_ms: int) -> list[Effect]:
        self.is_stopped = True
        return []


BROKEN = {
    "acknowledges before it appends": broken_log(write=acknowledge_first),
    "forgets what producers have sent": broken_log(note=forget_producers),
    "appends behind a torn batch": broken_log(recover=keep_torn),
    "loses the last batch at a start": broken_log(recover=lose_the_last),
    "changes a record": broken_log(write=change_a_byte),
    "does not wait for the disk": NoFlush,
    "keeps topics in memory": ForgetfulOfTopics,
    "gives producer ids twice": OneProducerId,
    "keeps a request's frame": KeepsTheFrame,
    "skips records": ReadsTooFar,
    "stops without a flush": StopsWithoutFlush,
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_wrong_broker_is_found_out(what: str) -> None:
    """A simulator that cannot fail proves nothing: one of the first 50 seeds finds it."""
    assert any(simulate(seed, BROKEN[what]).failure for seed in range(50)), f"nobody noticed that it {what}"


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from test_simulation import simulate, SmallNode
for seed in range(6):
    print(simulate(seed, SmallNode).digest)
"""


def test_a_seed_is_a_trace_to_the_byte() -> None:
    """In this process, in another, and whatever Python's hashes are."""
    here = [simulate(seed, SmallNode).digest for seed in range(6)]
    assert len(set(here)) == 6
    for hash_seed in ("0", "4711"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent)]
        found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert found.stdout.split() == here


def test_each_part_has_its_own_random_numbers() -> None:
    """More steps go on with the same beginning."""
    short, long = simulate(9, SmallNode, 300), Simulation(9, SmallNode, ["/data"], steps=600)
    long.checker.verify = lambda **_: None  # type: ignore[method-assign]
    lines: list[str] = []
    long.trace._write = lines.append
    long.run()
    until_calm = [line for line in short.tail if " calm" in line]
    assert until_calm and Random("9 time").random() == Random("9 time").random()
    beginning = short.tail[: short.tail.index(until_calm[0])]
    assert "\n".join(beginning) in "\n".join(lines)
