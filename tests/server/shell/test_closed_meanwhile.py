"""Protects against what comes too late: an answer to a connection that was closed meanwhile neither fails nor stays behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.protocol.apis import API_KEYS, LIST_OFFSETS
from kcli.server import scheduler
from kcli.server.events import (
    CloseConnection,
    Connection,
    ConnectionClosed,
    Effect,
    NoResponse,
    SendFile,
    SendResponse,
)
from tests.server.shell.sockets import Shell, framed, run, silent
from tests.server.whole_node import START_MS, WholeNode, batch, partitions_of


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    return WholeNode(tmp_path / "data")


def is_at_rest(node: WholeNode) -> bool:
    """Whether nobody waits for anything, under any key."""
    produces, fetches = node.broker.replica_manager.produce_purgatory, node.broker.replica_manager.fetch_purgatory
    return not any((produces._watched, fetches._watched, node.broker.fetch.waiting)) and produces.size == fetches.size == 0


def faults(node: WholeNode) -> list[str]:
    return [line for line in node.lines if "fault" in line]


def high_watermark(node: WholeNode) -> int:
    return int(partitions_of(node.fetch({("t", 0): 0}).result())["t", 0].high_watermark)


@pytest.mark.parametrize("later_ms", [0, 5000])
def test_a_flush_that_ends_behind_its_producer(node: WholeNode, later_ms: int) -> None:
    """The record is written, whoever still wants to know; also where the request's time is up by then."""
    node.create_topic("t", flush_messages="1")
    node.holds_flushes = True
    connection = node.connection()
    pending = node.produce("t", 0, batch(b"x"), connection=connection)
    assert pending.answer is None and len(node.held) == 1
    (flush_id,) = (effect.flush_id for effect in node.held)
    node.handle(ConnectionClosed(connection))
    node.advance(later_ms)
    node.holds_flushes = False
    node.release_flushes()
    assert flush_id not in node.node._flushes._outstanding
    assert is_at_rest(node) and not faults(node)
    assert high_watermark(node) == 1


def test_a_fetch_whose_consumer_left(node: WholeNode) -> None:
    """It waits no more: neither the records that it waited for nor its time bring it back."""
    node.create_topic("t")
    connection = node.connection()
    pending = node.fetch({("t", 0): 0}, max_wait_ms=60_000, connection=connection)
    assert pending.answer is None and not is_at_rest(node)
    node.handle(ConnectionClosed(connection))
    assert is_at_rest(node)
    node.produce("t", 0, batch(b"x"))
    node.advance(120_000)
    assert pending.answer is None and is_at_rest(node) and not faults(node)


def test_slices_go_on_to_their_end_for_nobody(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer in slices whose client leaves behind the first one ends as always, and others are served between."""
    monkeypatch.setattr(scheduler, "SLICE_US", 1)
    node.create_topic("t", 4)
    for index in range(4):
        node.produce("t", index, batch(b"x"))
    type_ = API_KEYS[LIST_OFFSETS].request
    wanted = [type_.classes["ListOffsetsPartition"](partition_index=index, timestamp=START_MS - 1) for index in range(4)]
    request = type_.new(replica_id=-1, topics=[type_.classes["ListOffsetsTopic"](name="t", partitions=wanted)])
    connection = node.connection()
    left = node.send(LIST_OFFSETS, 7, request, connection)
    stays = node.send(LIST_OFFSETS, 7, request)
    assert left.answer is None and stays.answer is None
    node.handle(ConnectionClosed(connection))
    deadline_ms = node.node.next_deadline_ms()
    assert deadline_ms is not None and deadline_ms <= node.now_ms
    node.advance(100)
    assert [part.error_code for part in stays.result().topics[0].partitions] == [0] * 4
    assert is_at_rest(node) and not faults(node)


LATE: dict[str, Callable[[Connection], Effect]] = {
    "response": lambda connection: SendResponse(connection, framed(b"late")),
    "file": lambda connection: SendFile(connection, [framed(b"late")[:4], b"late"]),
    "none": NoResponse,
    "close": lambda connection: CloseConnection(connection, "late"),
}


@pytest.mark.parametrize("kind", LATE)
@pytest.mark.parametrize("reset", [False, True])
def test_an_effect_for_a_client_that_is_gone(kind: str, reset: bool) -> None:
    """The shell drops it; the next client is served."""

    async def test(shell: Shell) -> None:
        shell.node.serve = silent
        client = await shell.connect()
        connections: list[Connection] = []
        shell.node.serve = lambda event: connections.append(event.connection) or []  # type: ignore[func-returns-value]
        await client.send(framed(b"x") + framed(b"the next one"))
        await shell.until(lambda: bool(connections))
        client.close(reset=reset)
        await shell.until(lambda: bool(shell.node.of_kind(ConnectionClosed)))
        shell.driver.execute([LATE[kind](connections[0])])
        await shell.turns()
        assert shell.driver.connection_count == 0 and not shell.faults and len(connections) == 1
        shell.node.serve = lambda event: [SendResponse(event.connection, framed(bytes(event.frame)))]
        assert await (await shell.connect()).ask(b"y") == b"y"

    run(test)
