"""Cores of clients on a whole node, without sockets: requests and answers are events, and time goes by as a test lets it.

Like a broker's network threads, a connection has one request under way: the next ones wait for its answer.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kcli.client.client_config import ClientConfig
from kcli.client.network_client import NetworkClient
from kcli.network.events import Peer, PeerClosed, ResponseReceived, SendRequest
from kcli.server.events import Connection, ConnectionClosed, DeadlineReached, RequestReceived
from tests.server.whole_node import NOTHING, WholeNode

SIZE_BYTES = 4


class _Link:
    """One connection of a client to the node."""

    def __init__(self, client: Client, peer: Peer, connection: Connection) -> None:
        self.client = client
        self.peer = peer
        self.connection = connection
        self.waiting: deque[SendRequest] = deque()
        self.under_way: SendRequest | None = None


class Client:
    """One client; `poll` is that of its core. `is_cut` drops its requests, as a network without a route does."""

    def __init__(self, name: str, now_ms: int, seed: int = 1, **settings: object) -> None:
        config = ClientConfig(bootstrap_servers=("127.0.0.1:19092",), client_id=name)._replace(**settings)  # type: ignore[arg-type]
        self.name = name
        self.lines: list[str] = []
        self.network = NetworkClient(config, random.Random(seed), self.lines.append, now_ms)
        self.poll: Callable[[int], object] = lambda now_ms: None
        self.is_cut = False
        self.unreachable: set[Peer] = set()  # peers of requests that were dropped


class ClientsOfNode(WholeNode):
    """A node with clients."""

    def __init__(self, directory: Path, *overrides: str) -> None:
        self.clients: list[Client] = []
        self._links: dict[int, _Link] = {}
        self._is_pumping = False
        super().__init__(directory, *overrides)

    def add(self, client: Client) -> Client:
        """Connect a client."""
        self.clients.append(client)
        return client

    def remove(self, client: Client) -> None:
        """Kill a client: its connections end, nothing more comes of it."""
        self.clients.remove(client)
        for link in [one for one in self._links.values() if one.client is client]:
            del self._links[link.connection.connection_id]
            self.handle(ConnectionClosed(link.connection))

    def disconnect(self, client: Client) -> None:
        """End the connections of a client, which may connect again."""
        for link in [one for one in self._links.values() if one.client is client]:
            del self._links[link.connection.connection_id]
            self.handle(ConnectionClosed(link.connection))
            client.unreachable.add(link.peer)
        for peer in client.unreachable:
            client.network.handle(PeerClosed(peer, "the test ended it"), self.now_ms)
        client.unreachable.clear()
        self.pump()

    # ------------------------------------------------------------------------------------------------------------ moving

    def pump(self) -> None:
        """Carry requests and answers until none is left."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            is_busy = True
            while is_busy:
                is_busy = False
                for client in list(self.clients):
                    client.poll(self.now_ms)
                    for effect in client.network.take_effects():
                        is_busy = True
                        if isinstance(effect, SendRequest):
                            self._send_for(client, effect)
                        else:
                            self._close_for(client, effect.peer)
        finally:
            self._is_pumping = False

    def _link(self, client: Client, peer: Peer) -> _Link | None:
        return next((one for one in self._links.values() if one.client is client and one.peer == peer), None)

    def _send_for(self, client: Client, effect: SendRequest) -> None:
        if client.is_cut:
            client.unreachable.add(effect.peer)
            return
        link = self._link(client, effect.peer)
        if link is None:
            link = _Link(client, effect.peer, self.connection())
            self._links[link.connection.connection_id] = link
        link.waiting.append(effect)
        self._send_next(link)

    def _send_next(self, link: _Link) -> None:
        while link.waiting and link.under_way is None:
            link.under_way = link.waiting.popleft()
            self.handle(RequestReceived(link.connection, memoryview(bytearray(link.under_way.frame))[SIZE_BYTES:]))

    def _close_for(self, client: Client, peer: Peer) -> None:
        link = self._link(client, peer)
        if link is not None:
            del self._links[link.connection.connection_id]
            self.handle(ConnectionClosed(link.connection))

    def _answered(self, connection: Connection, frame: bytes) -> None:
        link = self._links.get(connection.connection_id)
        if link is None:
            if connection.connection_id in self._pending or connection.is_internal:
                super()._answered(connection, frame)
            return
        sent, link.under_way = link.under_way, None
        assert sent is not None
        if not link.client.is_cut:
            link.client.network.handle(ResponseReceived(sent.request_id, frame[SIZE_BYTES:]), self.now_ms)
        self._send_next(link)

    def _settle(self, connection: Connection, answer: object) -> None:
        link = self._links.get(connection.connection_id)
        if link is None:
            if connection.connection_id in self._pending or connection.is_internal:
                super()._settle(connection, answer)
        elif answer is NOTHING:
            sent, link.under_way = link.under_way, None
            if sent is not None:
                link.client.network.handle(ResponseReceived(sent.request_id, b""), self.now_ms)
            self._send_next(link)
        else:
            del self._links[connection.connection_id]
            link.client.network.handle(PeerClosed(link.peer, str(answer)), self.now_ms)

    # -------------------------------------------------------------------------------------------------------------- time

    def advance(self, ms: int) -> None:
        """Let time go by, with every deadline of the node and of the clients on the way."""
        until_ms = self.now_ms + ms
        self.pump()
        while True:
            node_ms = self.node.next_deadline_ms()
            deadlines = [one.network.next_deadline_ms() for one in self.clients]
            due = [at_ms for at_ms in (node_ms, *deadlines) if at_ms is not None]
            if not due or min(due) > until_ms:
                break
            self.now_ms = max(self.now_ms, min(due))
            if node_ms is not None and node_ms <= self.now_ms:
                self.handle(DeadlineReached())
            for client in list(self.clients):
                client.network.advance(self.now_ms)
            self.pump()
        self.now_ms = until_ms


def client_of(
    node: ClientsOfNode, name: str, settings: dict[str, Any], seed: int | None = None
) -> tuple[Client, dict[str, Any]]:
    """Connect a client with those of the settings that all kinds of clients have; return it and the other settings.

    Without a seed each name has another one.
    """
    common = {field: value for field, value in settings.items() if field in ClientConfig._fields}
    own = {field: value for field, value in settings.items() if field not in common}
    return node.add(Client(name, node.now_ms, zlib.crc32(name.encode()) if seed is None else seed, **common)), own
