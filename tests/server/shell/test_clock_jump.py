"""Protects a server whose machine's clock is set by an hour: it goes on taking records, answering in time, and stopping."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from functools import partial
from pathlib import Path

import pytest

from kcli.network.shell.clock import Clock
from kcli.protocol.apis import API_KEYS, FETCH, METADATA, PRODUCE
from kcli.protocol.framing import encode_request, read_response_header
from kcli.protocol.message import Message
from kcli.server.config.listeners import BoundAddresses
from kcli.server.config.loading import load_config
from kcli.server.shell import driver as driver_module
from kcli.server.shell import server as server_module
from kcli.server.shell.server import Server
from tests.server.shell.sockets import PATIENCE_S, Client
from tests.server.whole_node import batch, fetch_request, partitions_of

HOUR_S = 3600
WAIT_MS = 300


class Wall:
    """The system's clock, which somebody sets."""

    off_s = 0.0

    def now_s(self) -> float:
        return time.time() + self.off_s


async def ask(client: Client, key: int, version: int, request: Message) -> Message:
    """One request and its answer."""
    await client.send(bytes(encode_request(1, API_KEYS[key], version, "test", request)))
    frame = await client.frame()
    _, position = read_response_header(frame, API_KEYS[key], version)
    return API_KEYS[key].response.decode(frame, version, position)[0]


async def produce(client: Client, value: bytes) -> int:
    """A record, acknowledged by all -> its offset."""
    classes = API_KEYS[PRODUCE].request.classes
    part = classes["PartitionProduceData"](index=0, records=batch(value))
    topic = classes["TopicProduceData"](name="t", partition_data=[part])
    request = API_KEYS[PRODUCE].request.new(acks=-1, timeout_ms=1000, topic_data=[topic])
    answer = (await ask(client, PRODUCE, 12, request)).responses[0].partition_responses[0]
    assert answer.error_code == 0, answer
    return int(answer.base_offset)


async def served(client: Client, other: Client, wall: Wall, step_s: float) -> None:
    """Before, at and behind the jump."""
    classes = API_KEYS[METADATA].request.classes
    wanted = API_KEYS[METADATA].request.new(topics=[classes["MetadataRequestTopic"](name="t")], allow_auto_topic_creation=True)
    while (await ask(client, METADATA, 12, wanted)).topics[0].error_code:
        await asyncio.sleep(0.01)
    offsets = [await produce(client, b"before %d" % number) for number in range(3)]
    # A fetch that waits over the step waits its time, neither none of it nor an hour.
    began = time.monotonic()
    waiting = asyncio.create_task(ask(other, FETCH, 12, fetch_request({("t", 0): 3}, max_wait_ms=WAIT_MS)))
    await asyncio.sleep(0.01)
    wall.off_s = step_s
    assert not partitions_of(await waiting)["t", 0].records
    assert WAIT_MS / 1000 - 0.01 <= time.monotonic() - began < PATIENCE_S / 2
    offsets += [await produce(client, b"behind %d" % number) for number in range(3)]
    assert offsets == list(range(6))
    began = time.monotonic()
    empty = await ask(client, FETCH, 12, fetch_request({("t", 0): 6}, max_wait_ms=WAIT_MS))
    assert WAIT_MS / 1000 - 0.01 <= time.monotonic() - began < PATIENCE_S / 2
    assert not partitions_of(empty)["t", 0].records
    found = partitions_of(await ask(client, FETCH, 12, fetch_request({("t", 0): 0})))["t", 0]
    assert found.high_watermark == 6
    assert all(b"%s %d" % (when, number) in bytes(found.records) for when in (b"before", b"behind") for number in range(3))


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
def test_a_step_of_an_hour_is_nothing_to_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    """No session ends, no timer is stuck: the broker stays registered, and a stop is in order."""
    wall, lines = Wall(), list[str]()
    for module in (driver_module, server_module):
        monkeypatch.setattr(module, "Clock", partial(Clock, wall.now_s))
    monkeypatch.setattr(server_module, "settle_garbage_collector", lambda: None)
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail(f"the process ended with {code}: {lines}"))
    settings = ["listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", f"log.dirs={tmp_path / 'data'}"]
    config = load_config(None, [*settings, "log.retention.ms=-1", "log.flush.interval.messages=1"])

    async def main() -> None:
        ready: asyncio.Future[BoundAddresses] = asyncio.get_running_loop().create_future()
        server = Server(config, lines.append)
        running = asyncio.create_task(server.run(ready.set_result))
        async with asyncio.timeout(2 * PATIENCE_S):
            await asyncio.wait((ready, running), return_when=asyncio.FIRST_COMPLETED)
            bound = ready.result() if ready.done() else await running
            assert bound is not None
            reader, other = await connect(bound.ports["PLAINTEXT"]), await connect(bound.ports["PLAINTEXT"])
            try:
                await served(reader, other, wall, step_s)
                now_ms = server.driver.clock.now_ms()
                sessions = server.node.controller.controller.state.sessions  # type: ignore[attr-defined]
                assert abs(now_ms - sessions[1].last_heartbeat_ms) < PATIENCE_S * 1000
            finally:
                reader.close()
                other.close()
                server.stop("the test is done")
            await running

    asyncio.run(main())
    assert not [line for line in lines if "fault" in line or "cannot" in line], lines


async def connect(port: int) -> Client:
    """A client of the server's."""

    raw = socket.socket()
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
    return Client(raw)
