"""Protects connections to other nodes on real sockets: answers in order, ends that are reported, and another attempt."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from pathlib import Path

import pytest

from kcli.network.events import (
    Closing,
    NodeRole,
    Peer,
    PeerAddress,
    PeerClosed,
    PeerNode,
    ResponseReceived,
    SendRequest,
)
from kcli.network.peer_request import Answer, PeerFailure
from kcli.network.shell import peer_connections
from kcli.network.shell.peer_connections import SMALL_BUFFER_BYTES, PeerConnections
from kcli.protocol.apis import API_VERSIONS, DESCRIBE_QUORUM, METADATA
from kcli.server.events import Event
from tests.server.shell.driven_node import DrivenNode, run, silent_port
from tests.server.shell.sockets import PATIENCE_S, framed


class OtherSide:
    """A listening socket and the connections of a PeerConnections to it; `events` is what came of them."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.peer = Peer(PeerNode(2, NodeRole.BROKER), "PLAINTEXT", PeerAddress(*self.listening.getsockname()[:2]))
        self.events: list[Event] = []
        self.connections = PeerConnections(asyncio.get_running_loop(), self.events.append)

    def send(self, *request_ids: int) -> None:
        for request_id in request_ids:
            self.connections.send(SendRequest(request_id, self.peer, framed(b"ask %d" % request_id)))

    async def accept(self) -> socket.socket:
        async with asyncio.timeout(PATIENCE_S):
            accepted, _ = await asyncio.get_running_loop().sock_accept(self.listening)
        return accepted

    async def read(self, accepted: socket.socket, size: int) -> bytes:
        got = bytearray()
        async with asyncio.timeout(PATIENCE_S):
            while len(got) < size:
                got += await asyncio.get_running_loop().sock_recv(accepted, min(size - len(got), 2**20))
        return bytes(got)

    async def until(self, count: int) -> list[Event]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.events) < count:
                await asyncio.sleep(0.001)
        return self.events


def test_requests_share_a_connection_and_answers_come_in_their_order() -> None:
    """Those that were sent before it was made too; frames may be split and joined as TCP likes."""

    async def test() -> None:
        side = OtherSide()
        side.send(1, 2)
        accepted = await side.accept()
        asked = framed(b"ask 1") + framed(b"ask 2")
        assert await side.read(accepted, len(asked)) == asked
        side.send(3)
        answers = framed(b"one") + framed(b"") + framed(b"three")
        for part in (answers[:2], answers[2:9], answers[9:]):
            await asyncio.get_running_loop().sock_sendall(accepted, part)
            await asyncio.sleep(0.005)
        assert await side.until(3) == [ResponseReceived(1, b"one"), ResponseReceived(2, b""), ResponseReceived(3, b"three")]
        side.connections.close_all()
        accepted.close()
        side.listening.close()

    run(test)


def test_large_answers_come_whole_whatever_is_around_them() -> None:
    """In memory of their own, with small ones before and after them, cut anywhere."""

    async def test() -> None:
        side = OtherSide()
        side.send(1, 2, 3, 4)
        accepted = await side.accept()
        await side.read(accepted, len(framed(b"ask 1")) * 4)
        large = [bytes(range(256)) * 256, b"x" * SMALL_BUFFER_BYTES]
        answers = framed(b"one") + framed(large[0]) + framed(large[1]) + framed(b"four")
        for start in range(0, len(answers), 7777):
            await asyncio.get_running_loop().sock_sendall(accepted, answers[start : start + 7777])
            await asyncio.sleep(0)
        expected = [b"one", *large, b"four"]
        assert await side.until(4) == [ResponseReceived(place + 1, frame) for place, frame in enumerate(expected)]
        side.connections.close_all()
        accepted.close()
        side.listening.close()

    run(test)


def test_a_request_without_answer_is_reported_when_it_is_written() -> None:
    """Not while its bytes wait in the process, where the end of the connection loses them."""

    async def test() -> None:
        side = OtherSide()
        side.send(1)
        accepted = await side.accept()
        await side.read(accepted, len(framed(b"ask 1")))
        side.connections.send(SendRequest(2, side.peer, framed(b"small"), has_answer=False))
        assert not side.events, "the core may be in the middle of a call"
        assert await side.until(1) == [ResponseReceived(2, b"")]
        await side.read(accepted, len(framed(b"small")))
        large = framed(bytes(16 * 1024 * 1024))
        side.connections.send(SendRequest(3, side.peer, large, has_answer=False))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(side.events) == 1
        reading = asyncio.create_task(side.read(accepted, len(large)))
        assert (await side.until(2))[1] == ResponseReceived(3, b"")
        await reading
        await asyncio.get_running_loop().sock_sendall(accepted, framed(b"one"))
        assert (await side.until(3))[2] == ResponseReceived(1, b"one")
        side.connections.close_all()
        accepted.close()
        side.listening.close()

    run(test)


def test_what_was_sent_leaves_before_the_connections_are_closed() -> None:
    async def test() -> None:
        side = OtherSide()
        side.send(1)
        accepted = await side.accept()
        await side.read(accepted, len(framed(b"ask 1")))
        large = framed(bytes(16 * 1024 * 1024))
        side.connections.send(SendRequest(2, side.peer, large, has_answer=False))
        side.connections.close_all()
        reading = asyncio.create_task(side.read(accepted, len(large)))
        await side.connections.drained()
        assert await reading == large and not side.events
        accepted.close()
        side.listening.close()

    run(test)


@pytest.mark.parametrize("address", [PeerAddress("a" * 64 + ".example", 9092), PeerAddress("127.0.0.1", 70_000)])
def test_an_address_that_cannot_be_is_reported_at_once(address: PeerAddress) -> None:
    async def test() -> None:
        side = OtherSide()
        peer = side.peer._replace(address=address)
        side.connections.send(SendRequest(1, peer, framed(b"ask")))
        (event,) = await side.until(1)
        assert isinstance(event, PeerClosed) and event.peer == peer
        side.listening.close()

    run(test)


def test_an_address_that_drops_packets_does_not_hide_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two addresses of a host the second is tried while the first still connects."""

    async def test() -> None:
        side = OtherSide()
        loop = asyncio.get_running_loop()
        port = side.listening.getsockname()[1]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.2", "127.0.0.1")]
        connect = loop.sock_connect
        silent = asyncio.Event()

        async def addresses(*args: object, **words: object) -> object:
            return found

        async def connecting(sock: socket.socket, address: tuple[str, int]) -> None:
            if address[0] == "127.0.0.2":
                await silent.wait()
            await connect(sock, address)

        monkeypatch.setattr(loop, "getaddrinfo", addresses)
        monkeypatch.setattr(loop, "sock_connect", connecting)
        monkeypatch.setattr(peer_connections, "NEXT_ADDRESS_S", 0.01)
        peer = side.peer._replace(address=PeerAddress("two-addresses", port))
        side.connections.send(SendRequest(1, peer, framed(b"ask")))
        accepted = await side.accept()
        await side.read(accepted, len(framed(b"ask")))
        side.connections.close_all()
        accepted.close()
        side.listening.close()

    run(test)


def test_a_size_alone_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a frame grows with its bytes, not with the size that the peer states."""
    monkeypatch.setattr(peer_connections, "LARGEST_AT_ONCE", 20_000)

    async def test() -> None:
        side = OtherSide()
        side.send(1)
        accepted = await side.accept()
        await side.read(accepted, len(framed(b"ask 1")))
        frame = bytes(range(250)) * 400
        await asyncio.get_running_loop().sock_sendall(accepted, framed(frame))
        assert await side.until(1) == [ResponseReceived(1, frame)]
        side.send(2)
        tracemalloc.start()
        await asyncio.get_running_loop().sock_sendall(accepted, b"\x7f\xff\xff\xff" + frame)
        await asyncio.sleep(0.02)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
        tracemalloc.stop()
        side.connections.close_all()
        accepted.close()
        side.listening.close()

    run(test)


@pytest.mark.parametrize(
    ("sent", "reason", "closing"),
    [
        (b"", "it closed the connection", Closing.CLOSED),
        (framed(b"one")[:5], "it closed the connection", Closing.CLOSED),
        (b"\xff\xff\xff\xff", "it sent a frame of -1 bytes", Closing.ENDED),
        (b"HTTP/1.1 ", "it is an HTTP server and not a Kafka broker", Closing.REFUSED),
        (b"\x15\x03\x01\x00\x02\x02", "it expects TLS", Closing.EXPECTS_TLS),
        (
            b"+OK POP3",
            "it did not answer like a Kafka broker; check that the port is a Kafka listener without TLS",
            Closing.ENDED,
        ),
        (framed(b"one") * 3, "it sent an answer without a request", Closing.ENDED),
        (b"\x15\x03\x03\0\2\2\x46", "it expects TLS", Closing.EXPECTS_TLS),
        (b"HTTP/1.1", "it is an HTTP server and not a Kafka broker", Closing.REFUSED),
    ],
)
def test_an_end_is_reported_once_and_the_next_request_connects_again(sent: bytes, reason: str, closing: Closing) -> None:
    async def test() -> None:
        side = OtherSide()
        side.send(1, 2)
        accepted = await side.accept()
        await side.read(accepted, 18)
        await asyncio.get_running_loop().sock_sendall(accepted, sent)
        accepted.close()
        answers = 2 if len(sent) > 10 else 0
        assert (await side.until(answers + 1))[answers:] == [PeerClosed(side.peer, reason, closing)]
        await asyncio.sleep(0.01)
        assert len(side.events) == answers + 1
        side.send(3)
        again = await side.accept()
        assert await side.read(again, 9) == framed(b"ask 3")
        side.connections.close_all()
        again.close()
        side.listening.close()

    run(test)


def test_a_connection_that_the_core_closes_is_not_reported() -> None:
    """Neither one that is made nor one that is being made."""

    async def test() -> None:
        side = OtherSide()
        side.send(1)
        accepted = await side.accept()
        await side.read(accepted, 9)
        side.connections.close(side.peer)
        assert await asyncio.get_running_loop().sock_recv(accepted, 1) == b""
        side.send(2)
        side.connections.close(side.peer)
        await asyncio.sleep(0.02)
        assert side.events == []
        accepted.close()
        side.listening.close()

    run(test)


def test_an_address_where_nothing_listens_is_reported() -> None:
    async def test() -> None:
        side = OtherSide()
        side.listening.close()
        side.send(1)
        (event,) = await side.until(1)
        assert isinstance(event, PeerClosed) and event.peer == side.peer and "refused" in event.reason.lower()

    run(test)


# --------------------------------------------------------------------------------------------------------- whole nodes


def test_a_node_asks_another_one_over_its_death_and_return(tmp_path: Path) -> None:
    """Its broker and its controller; what was under way ends with it; once it is back, what is sent is answered."""

    async def test() -> None:
        one = await DrivenNode(tmp_path / "1", 1).ready()
        two = await DrivenNode(tmp_path / "2", 2).ready()
        broker, controller = two.address("PLAINTEXT"), two.address("CONTROLLER")
        answers = await asyncio.gather(
            one.ask(broker, "PLAINTEXT", METADATA, topics=[]),
            one.ask(broker, "PLAINTEXT", API_VERSIONS, client_software_name="test", client_software_version="1"),
            one.ask(controller, "CONTROLLER", API_VERSIONS, client_software_name="test", client_software_version="1"),
            one.ask(controller, "CONTROLLER", METADATA),
        )
        assert broker_ids(answers[0]) == [2]
        assert not isinstance(answers[1], PeerFailure) and not isinstance(answers[2], PeerFailure)
        assert METADATA in {api.api_key for api in answers[1].api_keys}
        assert DESCRIBE_QUORUM in {api.api_key for api in answers[2].api_keys}
        assert answers[3] is PeerFailure.UNSUPPORTED_VERSION  # no controller serves it
        assert two.driver.connection_count == 2
        two.kill()
        assert await one.ask(broker, "PLAINTEXT", METADATA, topics=[]) is PeerFailure.DISCONNECTED
        two = DrivenNode(tmp_path / "2", 2, two.ports)
        answer: Answer = PeerFailure.DISCONNECTED
        while answer is PeerFailure.DISCONNECTED:
            answer = await one.ask(broker, "PLAINTEXT", METADATA, topics=[])
        assert broker_ids(answer) == [2]
        assert not one.failures and not two.failures
        one.kill()
        two.kill()

    run(test)


def test_a_node_that_does_not_answer_ends_at_the_deadline(tmp_path: Path) -> None:
    async def test() -> None:
        one = await DrivenNode(tmp_path / "1", 1).ready()
        listening, address = silent_port()
        assert await one.ask(address, "PLAINTEXT", METADATA, 50, topics=[]) is PeerFailure.TIMED_OUT
        listening.close()
        one.kill()

    run(test)


def test_a_node_asks_its_own_broker_and_its_own_controller(tmp_path: Path) -> None:
    """Without a socket: the role of the destination says which of the two is meant."""

    async def test() -> None:
        one = await DrivenNode(tmp_path / "1", 1).ready()
        assert broker_ids(await one.ask(PeerNode(1, NodeRole.BROKER), "PLAINTEXT", METADATA, topics=[])) == [1]
        quorum = await one.ask(PeerNode(1, NodeRole.CONTROLLER), "CONTROLLER", DESCRIBE_QUORUM)
        assert not isinstance(quorum, PeerFailure) and quorum.error_code == 0
        assert await one.ask(PeerNode(9, NodeRole.BROKER), "PLAINTEXT", METADATA) is PeerFailure.UNKNOWN_ADDRESS
        assert one.driver.connection_count == 0
        one.kill()

    run(test)


def broker_ids(answer: Answer) -> list[int]:
    assert not isinstance(answer, PeerFailure), answer
    return [broker.node_id for broker in answer.brokers]
