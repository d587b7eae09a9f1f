"""Whole nodes on sockets of this machine, several on one loop: a test asks one of them to ask another."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from kcli.network.events import PeerAddress, PeerNode
from kcli.network.peer_request import Answer
from kcli.network.shell.clock import Clock
from kcli.protocol.apis import API_KEYS
from kcli.server.config.listeners import BoundAddresses
from kcli.server.config.loading import load_config
from kcli.server.log_lines import Loggers
from kcli.server.node_builder import build_node
from kcli.server.shell.connection_quotas import Limits
from kcli.server.shell.driver import Driver
from kcli.server.shell.server import bind, metrics_advice
from kcli.server.shell.serving_disk import ServingDisk
from tests.server.shell.sockets import PATIENCE_S

LISTENERS = ("PLAINTEXT", "CONTROLLER")


class DrivenNode:
    """A broker and controller of a cluster of its own; `ports` has the ports of its listeners if they are given."""

    def __init__(self, directory: Path, node_id: int, ports: dict[str, int] | None = None) -> None:
        wanted = ports or dict.fromkeys(LISTENERS, 0)
        self.sockets = {name: bind("127.0.0.1", wanted[name], 16, name, metrics_advice) for name in LISTENERS}
        self.ports = {name: int(bound.getsockname()[1]) for name, bound in self.sockets.items()}
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        settings = (f"node.id={node_id}", f"log.dirs={directory}", f"listeners={listeners}")
        self.lines: list[str] = []
        self.failures: list[Exception] = []
        clock = Clock()
        config = load_config(None, list(settings))
        bound = BoundAddresses(self.ports, "127.0.0.1")
        self.node = build_node(
            config,
            ServingDisk(),
            random.Random(node_id),
            clock.now_ms(),
            Loggers(self.lines.append),
            16,
            bound,
            clock.wall_time,
        )
        self.driver = Driver(self.node, self.lines.append, Limits(), clock, self._open, self.failures.append)
        self.driver.step(self.node.start)

    def _open(self) -> None:
        for name in [name for name in self.sockets if self.node.is_open(name)]:
            self.driver.listen(name, self.sockets.pop(name))

    def address(self, listener: str) -> PeerAddress:
        """The address of a listener."""
        return PeerAddress("127.0.0.1", self.ports[listener])

    async def ready(self) -> DrivenNode:
        """Wait until clients are served."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.node.is_ready:
                assert not self.failures
                await asyncio.sleep(0.001)
        return self

    async def ask(
        self, destination: PeerNode | PeerAddress, listener: str, key: int, timeout_ms: int = 20_000, **fields: object
    ) -> Answer:
        """Have this node send a request -> the answer."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def send(now_ms: int) -> None:
            request = API_KEYS[key].request.new(**fields)
            deadline_ms = now_ms + timeout_ms
            self.node.peers.send(
                destination, listener, key, request, lambda answer, now_ms: answered.set_result(answer), deadline_ms
            )

        self.node.timer.schedule(self.node.timer.clock_ms, send)
        self.driver.execute([])
        async with asyncio.timeout(PATIENCE_S):
            return await answered

    def kill(self) -> None:
        """End it as a crash would: all of its sockets are closed, and nothing is written any more."""
        self.driver.close()
        for bound in self.sockets.values():
            bound.close()


def silent_port() -> tuple[socket.socket, PeerAddress]:
    """A socket that accepts connections and never answers."""
    listening = socket.create_server(("127.0.0.1", 0))
    return listening, PeerAddress("127.0.0.1", listening.getsockname()[1])


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test on a loop of its own; what the loop reports as an error fails it."""
    complaints: list[dict[str, object]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        await test()
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert not complaints, complaints
