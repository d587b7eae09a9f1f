"""Protects the bytes of a connection: whole requests in, whole answers out in order, whatever way they are cut on the way."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kcli.log.disk.os_disk import OsDisk
from kcli.server.events import (
    ConnectionClosed,
    Effect,
    FileRegion,
    HoldMemory,
    RequestReceived,
    SendFile,
    SendResponse,
)
from kcli.server.log_lines import WARN, level_of
from kcli.server.shell.client_connection import REQUESTS_PER_TURN, ClientConnection
from kcli.server.shell.connection_quotas import Limits
from kcli.server.shell.receive_buffers import LARGE_BUFFER_BYTES, SMALL_BUFFER_BYTES, BufferPool
from tests.conftest import open_descriptors
from tests.server.shell.sockets import Shell, framed, run, silent, unanswered

MB = 1 << 20
# Of a reader that is slow; much less would make loopback itself slow.
SMALL_WINDOW_BYTES = 65_536


def test_a_request_may_come_cut_anywhere() -> None:
    frames = [b"", b"x", b"hello", bytes(300)]
    stream = b"".join(map(framed, frames))

    async def test(shell: Shell) -> None:
        client = await shell.connect()
        for byte in stream:
            await client.send(bytes([byte]))
        assert await client.receive(len(stream)) == stream
        assert shell.node.frames == frames

    run(test)


@pytest.mark.parametrize("seed", range(4))
def test_requests_of_all_sizes_come_whole_and_in_order(seed: int) -> None:
    """Around the sizes of small and large buffers, many at once, answered late or at once."""
    dice = random.Random(seed)
    edges = [SMALL_BUFFER_BYTES, SMALL_BUFFER_BYTES - 1024, LARGE_BUFFER_BYTES]
    sizes = [dice.choice(edges) + dice.randint(-8, 8) if dice.random() < 0.5 else dice.randint(0, 60_000) for _ in range(40)]
    frames = [dice.randbytes(size) for size in [*sizes, 5 * MB, 3]]
    stream = b"".join(map(framed, frames))

    async def test(shell: Shell) -> None:
        client = await shell.connect()
        sending = shell.driver.loop.create_task(client.send(stream))
        answers = [await client.frame() for _ in frames]
        await sending
        assert answers == frames == shell.node.frames
        assert shell.driver.buffers.taken_bytes == 0, "an idle connection holds no buffer"

    run(test)


def test_a_request_is_not_handed_in_before_the_one_before_it_is_answered() -> None:
    async def test(shell: Shell) -> None:
        waiting: list[RequestReceived] = []

        def later(event: RequestReceived) -> list[Effect]:
            waiting.append(event)
            return []

        shell.node.serve = later
        client = await shell.connect()
        await client.send(framed(b"a") + framed(b"b"))
        await shell.until(lambda: bool(waiting))
        await shell.turns()
        assert shell.node.frames == [b"a"]
        shell.driver.execute([SendResponse(waiting[0].connection, framed(b"A"))])
        assert await client.frame() == b"A"
        await shell.until(lambda: shell.node.frames == [b"a", b"b"])

    run(test)


def test_while_a_request_waits_no_more_is_read_than_a_buffer() -> None:
    async def test(shell: Shell) -> None:
        shell.node.serve = silent
        client = await shell.connect()
        await client.send(framed(b"a"))
        client.raw.setblocking(False)
        sent = 0
        chunk = framed(bytes(996)) * 64
        for _ in range(2000):
            try:
                sent += client.raw.send(chunk)
            except BlockingIOError:
                await shell.turns(3)
                try:
                    sent += client.raw.send(chunk)
                except BlockingIOError:
                    break
        else:
            pytest.fail(f"{sent} bytes were taken")
        assert shell.driver.buffers.taken_bytes == 0, "only a small buffer is held"
        assert shell.node.frames == [b"a"]
        # Once it is answered, all the others are served.
        (served,) = shell.driver._clients
        shell.node.serve = unanswered
        served.answered()
        await shell.until(lambda: len(shell.node.frames) >= 1 + sent // 1000)

    run(test)


def test_no_answer_lets_the_next_request_in() -> None:
    async def test(shell: Shell) -> None:
        shell.node.serve = unanswered
        client = await shell.connect()
        await client.send(framed(b"a") * 100)
        await shell.until(lambda: len(shell.node.frames) == 100)

    run(test)


def test_one_connection_does_not_keep_the_others_waiting() -> None:
    """Thousands of requests in one buffer: who comes after them is served between them."""

    async def test(shell: Shell) -> None:
        shell.node.serve = unanswered
        greedy, other = await shell.connect(), await shell.connect()
        await greedy.send(framed(bytes(100_000)))
        await shell.until(lambda: len(shell.node.frames) == 1)
        await greedy.send(framed(b"") * 20_000)
        await other.send(framed(b"other"))
        await shell.until(lambda: b"other" in shell.node.frames)
        assert shell.node.frames.index(b"other") <= 100 * REQUESTS_PER_TURN
        await shell.until(lambda: len(shell.node.frames) == 20_002)

    run(test)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "uses TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "it uses HTTP"),
        (b"\xff\xff\xff\xff", "-1 bytes"),
        (b"\x80\0\0\0", "-2147483648 bytes"),
        (b"\x7f\xff\xff\xff", "socket.request.max.bytes allows 104857600"),
        (b"\x06\x40\x00\x01", "104857601 bytes"),
    ],
)
def test_a_size_that_lies_ends_the_connection_with_one_line(data: bytes, says: str) -> None:
    async def test(shell: Shell) -> None:
        client, other = await shell.connect(), await shell.connect()
        await client.send(data)
        assert await client.is_closed()
        assert await other.ask(b"still here") == b"still here"
        await shell.until(lambda: shell.driver.connection_count == 1)
        (line,) = shell.lines
        assert says in line and f"127.0.0.1:{client.port}" in line
        assert shell.node.frames == [b"still here"]

    run(test)


def test_a_size_that_is_only_claimed_costs_nothing() -> None:
    async def test(shell: Shell) -> None:
        clients = [await shell.connect() for _ in range(20)]
        for client in clients:
            await client.send((90 * MB).to_bytes(4, "big") + bytes(1000))
        await shell.until(lambda: sum(c._end for c in shell.driver._clients) == 20 * 1004)
        assert shell.driver.buffers.taken_bytes == 0

    run(test)


@pytest.mark.parametrize("half", [b"", b"\0", b"\0\0\0\x10", b"\0\0\0\x10abc"])
@pytest.mark.parametrize("reset", [False, True])
def test_who_leaves_in_the_middle_is_forgotten(half: bytes, reset: bool) -> None:
    async def test(shell: Shell) -> None:
        client = await shell.connect()
        await shell.until(lambda: shell.driver.connection_count == 1)
        await client.send(half)
        await shell.turns()
        client.close(reset=reset)
        await shell.until(lambda: bool(shell.node.of_kind(ConnectionClosed)))
        assert (shell.driver.connection_count, shell.driver.quotas.count, shell.node.frames, shell.lines) == (0, 0, [], [])

    run(test)


# ------------------------------------------------------------------------------------------------------------- answers


def file_of(path: Path, data: bytes) -> FileRegion:
    path.write_bytes(data)
    return FileRegion(OsDisk().open_log_file(str(path), create=False), 0, len(data))


def serve_parts(shell: Shell, *parts: bytes | FileRegion) -> bytes:
    """Answer every request with these -> the frame that must come."""
    data = b"".join(part.file.read_at(part.position, part.size) if isinstance(part, FileRegion) else part for part in parts)
    head = len(data).to_bytes(4, "big")
    shell.node.serve = lambda event: [SendFile(event.connection, [head, *parts])]
    return data


def test_files_and_bytes_come_as_one_frame(tmp_path: Path) -> None:
    dice = random.Random(1)

    async def test(shell: Shell) -> None:
        regions = [file_of(tmp_path / str(n), dice.randbytes(size)) for n, size in enumerate((1, 100_000, 3 * MB))]
        inner = FileRegion(regions[2].file, 12345, 67_890)
        expected = serve_parts(shell, b"head", regions[0], regions[1], b"between", regions[2], inner, b"tail")
        client = await shell.connect()
        for _ in range(3):
            assert await client.ask(b"?") == expected

    run(test)


def test_a_slow_reader_gets_all_though_the_file_is_deleted_meanwhile(tmp_path: Path) -> None:
    data = random.Random(2).randbytes(24 * MB)

    async def test(shell: Shell) -> None:
        region = file_of(tmp_path / "segment", data)
        serve_parts(shell, b"head", region)
        slow, other = await shell.connect(receive_bytes=SMALL_WINDOW_BYTES), await shell.connect()
        before = open_descriptors()
        await slow.send(framed(b"?"))
        await shell.until(lambda: bool(shell.node.frames))
        await shell.turns()
        os.remove(tmp_path / "segment")
        region.file.close()  # type: ignore[attr-defined]
        shell.node.serve = lambda event: [SendResponse(event.connection, framed(b"ok"))]
        assert await other.ask(b"!") == b"ok"
        assert await slow.frame() == b"head" + data
        assert await slow.ask(b"!") == b"ok", "the next request of the slow one"
        assert open_descriptors() == before - 1, "the duplicates are given back"

    run(test)


def test_a_slow_reader_that_leaves_gives_its_files_back(tmp_path: Path) -> None:
    async def test(shell: Shell) -> None:
        region = file_of(tmp_path / "segment", bytes(24 * MB))
        serve_parts(shell, region)
        before = open_descriptors()
        for reset in (False, True):
            slow = await shell.connect(receive_bytes=SMALL_WINDOW_BYTES)
            await slow.send(framed(b"?"))
            await shell.until(lambda: any(client._watched for client in shell.driver._clients))
            slow.close(reset=reset)
            await shell.until(lambda: shell.driver.connection_count == 0)
        await shell.turns()
        assert open_descriptors() == before

    run(test)


def test_a_slow_reader_of_bytes_keeps_the_order() -> None:
    async def test(shell: Shell) -> None:
        shell.node.serve = lambda event: [SendResponse(event.connection, framed(bytes(event.frame) * 200_000))]
        slow = await shell.connect(receive_bytes=SMALL_WINDOW_BYTES)
        await slow.send(b"".join(framed(bytes([n]) * 10) for n in range(5)))
        await shell.turns()
        assert len(shell.node.frames) < 5, "one answer at a time"
        for n in range(5):
            assert await slow.frame() == bytes([n]) * 2_000_000

    run(test)


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_file_that_is_shorter_than_it_should_be_ends_the_connection(tmp_path: Path, is_plain: bool) -> None:
    """Its size was stated already: other bytes in its place would be taken for records."""

    async def test(shell: Shell) -> None:
        region = file_of(tmp_path / "segment", bytes(100))
        shell.node.serve = lambda event: [
            SendFile(event.connection, [framed(bytes(200))[:4], FileRegion(region.file, 50, 200)])
        ]
        client = await shell.connect()
        await shell.until(lambda: shell.driver.connection_count == 1)
        (served,) = shell.driver._clients
        served._can_send_files = is_plain
        await client.send(framed(b"?"))
        assert len(await client.receive(1000)) < 204
        assert "ends before byte 250" in shell.lines[0]

    run(test)


# -------------------------------------------------------------------------------------------------------------- memory


class Waiter:
    def __init__(self, buffer_available: Callable[[], None], *, has_bytes: bool = True) -> None:
        self.buffer_available = buffer_available
        self.has_bytes = lambda: has_bytes


def test_a_pool_counts_and_keeps() -> None:
    pool = BufferPool(3 * LARGE_BUFFER_BYTES)
    large = [pool.take_large() for _ in range(3)]
    assert not pool.has_room() and len(pool.first(True)) == SMALL_BUFFER_BYTES
    went: list[int] = []
    pool.wait(Waiter(lambda: went.append(1), has_bytes=False))
    pool.wait(Waiter(lambda: went.append(2)))
    pool.wait(Waiter(lambda: (went.append(3), pool.take_large())[0]))
    pool.give_back(large.pop())
    assert went == [2, 3], "one without bytes comes last, the second did not take any: the third may"
    assert not pool.has_room() and pool.taken_bytes == 3 * LARGE_BUFFER_BYTES


def test_large_requests_wait_for_memory_and_all_are_served() -> None:
    """With room for one large buffer, ten connections send large requests at once; small ones are served meanwhile."""

    async def test(shell: Shell) -> None:
        clients = [await shell.connect() for _ in range(10)]
        other = await shell.connect()
        halves = [framed(bytes([n]) * MB) for n in range(10)]
        sending = [shell.driver.loop.create_task(client.send(half[:-1])) for client, half in zip(clients, halves)]
        await shell.until(lambda: shell.driver.buffers.taken_bytes > 0)
        assert await other.ask(b"small") == b"small"
        assert shell.driver.buffers.taken_bytes <= LARGE_BUFFER_BYTES
        finishing = [
            shell.driver.loop.create_task(finish(client, half, task)) for client, half, task in zip(clients, halves, sending)
        ]
        for n, task in enumerate(finishing):
            assert await task == bytes([n]) * MB
        assert shell.driver.buffers.taken_bytes == 0

    async def finish(client: object, half: bytes, task: object) -> bytes:
        await task  # type: ignore[misc]
        await client.send(half[-1:])  # type: ignore[attr-defined]
        return await client.frame()  # type: ignore[attr-defined, no-any-return]

    run(test, Limits(max_receive_bytes=LARGE_BUFFER_BYTES))


def test_who_waits_for_memory_and_leaves_does_not_block_the_others() -> None:
    async def test(shell: Shell) -> None:
        holder, leaver, waiter = [await shell.connect() for _ in range(3)]
        await holder.send(framed(bytes(MB))[:-1])
        await shell.until(lambda: shell.driver.buffers.taken_bytes > 0)
        for client in (leaver, waiter):
            client.raw.setblocking(False)
            client.raw.send(framed(bytes(100_000)))
        await shell.until(lambda: sum(client._is_waiting for client in shell.driver._clients) == 2)
        leaver.close(reset=True)
        await holder.send(b"\0")
        assert len(await holder.frame()) == MB
        assert len(await waiter.frame()) == 100_000

    run(test, Limits(max_receive_bytes=LARGE_BUFFER_BYTES))


def test_memory_that_the_node_holds_makes_large_requests_wait() -> None:
    """What the node keeps of requests counts with those that come in: reading pauses, and goes on when it is released."""

    async def test(shell: Shell) -> None:
        client, other = await shell.connect(), await shell.connect()
        shell.driver.execute([HoldMemory(LARGE_BUFFER_BYTES)])
        sending = shell.driver.loop.create_task(client.send(framed(bytes(MB))))
        await shell.until(lambda: any(known._is_waiting for known in shell.driver._clients))
        assert await other.ask(b"small") == b"small"
        assert shell.driver.buffers.taken_bytes == LARGE_BUFFER_BYTES
        shell.driver.execute([HoldMemory(-LARGE_BUFFER_BYTES)])
        assert len(await client.frame()) == MB
        await sending
        assert shell.driver.buffers.taken_bytes == 0

    run(test, Limits(max_receive_bytes=LARGE_BUFFER_BYTES))


def test_a_huge_request_beyond_the_memory_loses_its_connection() -> None:
    async def test(shell: Shell) -> None:
        client, other = await shell.connect(), await shell.connect()
        sending = shell.driver.loop.create_task(client.send(framed(bytes(20 * MB))))
        assert await client.is_closed()
        sending.cancel()
        assert "are in memory already" in shell.lines[0]
        assert await other.ask(bytes(2 * MB)) == bytes(2 * MB)

    run(test, Limits(max_receive_bytes=3 * LARGE_BUFFER_BYTES))


@pytest.mark.parametrize("bytes_at_a_time", [0, 1])
def test_a_request_that_stalls_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch, bytes_at_a_time: int) -> None:
    """Clients that stated 100 MB and sent 61 KB filled the memory for requests, and no other client got an answer.

    A client that sends a byte at a time holds the memory as long. Requests of up to 64 KiB do not wait for it.
    """
    monkeypatch.setattr("kcli.server.shell.driver.STALLED_AFTER_S", 3600)  # the test calls it

    async def test(shell: Shell) -> None:
        stalled = [await shell.connect() for _ in range(5)]
        for client in stalled:
            await client.send(framed(bytes(20 * MB))[:100_000])
        await shell.until(lambda: sum(client._is_waiting for client in shell.driver._clients) == 3)
        small, large = await shell.connect(), await shell.connect()
        assert len(await small.ask(bytes(64 * 1024))) == 64 * 1024
        answer = shell.driver.loop.create_task(large.ask(bytes(MB)))
        while not answer.done():
            for client in stalled:
                with suppress(OSError):
                    client.raw.send(bytes(bytes_at_a_time))
            await shell.turns()
            shell.driver._close_stalled_clients()
        assert len(await answer) == MB
        assert shell.lines and all(
            "its request of 20971520 bytes has" in line and level_of(line) == WARN for line in shell.lines
        )

    run(test, Limits(max_receive_bytes=2 * LARGE_BUFFER_BYTES))


def test_many_that_stall_do_not_take_the_memory_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory for one large request, each of 150 that stalled had it for some seconds before another's turn came."""
    monkeypatch.setattr("kcli.server.shell.driver.STALLED_AFTER_S", 3600)  # the test calls it

    async def test(shell: Shell) -> None:
        stalled = [await shell.connect() for _ in range(30)]
        for client in stalled:
            await client.send(framed(bytes(MB))[:70_000])
        await shell.until(lambda: sum(client._is_waiting for client in shell.driver._clients) == 29)
        large = await shell.connect()
        answer = shell.driver.loop.create_task(large.ask(bytes(MB)))
        await shell.until(lambda: sum(client._is_waiting for client in shell.driver._clients) == 30)
        for _ in range(2):
            shell.driver._close_stalled_clients()
        assert len(await answer) == MB
        await shell.until(lambda: shell.driver.connection_count == 1)

    run(test, Limits(max_receive_bytes=LARGE_BUFFER_BYTES))


def test_a_slow_request_is_served_while_no_other_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is closed only for those that wait for its memory."""
    monkeypatch.setattr("kcli.server.shell.driver.STALLED_AFTER_S", 0.0)

    async def test(shell: Shell) -> None:
        slow = await shell.connect()
        frame = framed(bytes(200_000))
        await slow.send(frame[:100_000])
        await shell.turns(200)
        await slow.send(frame[100_000:])
        assert len(await slow.frame()) == 200_000
        assert not shell.lines

    run(test, Limits(max_receive_bytes=LARGE_BUFFER_BYTES))


def test_a_connection_has_no_dictionary_of_its_own() -> None:
    """A thousand of them must cost little."""
    assert not hasattr(ClientConnection.__new__(ClientConnection), "__dict__")
