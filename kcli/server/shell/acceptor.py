"""Lets clients in, as far as the limits allow; who has to wait does so in the listening socket's backlog, as in Kafka.

    when                                                     then
    -------------------------------------------------------  ------------------------------------------------------------
    all connections there may be are there                   nobody is let in until one ends; one line in the log, and the
                                                         next once a tenth of them have ended and none waited
    a host has all that it may have                          its new one is closed, with a line in the log
    more come in a second than may                           the rest waits for its time
    the system has no descriptors or memory for more         a line in the log, and another try after RETRY_S

`Gate` counts for all listeners of a server together; `Acceptor` is one listener.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress

from kcli.server.log_lines import WarningLine
from kcli.server.shell.limits import Limits

# How many are let in before those that are in get their turn.
ACCEPTS_PER_TURN = 32
RETRY_S = 0.5
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_MAPPED = "::ffff:"


def plain_host(host: str) -> str:
    """An address as text; that of IPv4 as such where it came in the clothes of IPv6."""
    return host[len(_MAPPED) :] if host.startswith(_MAPPED) and "." in host else host


class Gate:
    """Counts connections."""

    def __init__(self, limits: Limits, tell: Callable[[str], None]) -> None:
        self.limits = limits
        self.tell = tell
        self.count = 0
        self._by_host: dict[str, int] = {}
        self._waiting: list[Callable[[], None]] = []
        self._is_told = False  # that max.connections is reached; see `backlog_is_empty`
        self._second = 0
        self._in_second = 0

    def wait_s(self, now_s: float) -> float:
        """How long nobody is to be let in, for there were as many in this second as may be; 0: come in."""
        if int(now_s) != self._second:
            self._second, self._in_second = int(now_s), 0
        return 0.0 if self._in_second < self.limits.connections_per_second else self._second + 1 - now_s

    def is_full(self, when_not: Callable[[], None]) -> bool:
        """True where all connections are there that may be; `when_not` is then called as soon as one ends."""
        if self.count < self.limits.max_connections:
            return False
        if not self._is_told:
            self._is_told = True
            what = f"there are {self.count} connections, which is all there may be (max.connections): new ones wait"
            self.tell(WarningLine(what, connections=self.count, key="max.connections"))
        self._waiting.append(when_not)
        return True

    def backlog_is_empty(self) -> None:
        """No connection waits at a listener: where there is room again, the next time that there is none is reported anew."""
        most = self.limits.max_connections
        if self.count <= most - max(1, most // 10):
            self._is_told = False

    def enter(self, host: str) -> bool:
        """Count a connection in -> False, where its host has all that it may have."""
        of_host = self._by_host.get(host, 0)
        if of_host >= self.limits.of_host(host):
            what = f"closing a connection of {host}: it has {of_host} already, all it may have (max.connections.per.ip)"
            self.tell(WarningLine(what, host=host, connections=of_host, key="max.connections.per.ip"))
            return False
        self._by_host[host] = of_host + 1
        self.count += 1
        self._in_second += 1
        return True

    def leave(self, host: str) -> None:
        """Count a connection out."""
        self.count -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        self._go_on()

    def replace(self, limits: Limits) -> None:
        """Go by other limits from now on; who is in stays in."""
        self.limits = limits
        self._go_on()

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()


class Acceptor:
    """One listening socket; `serve(host, port)` makes what serves a connection, which tells the gate when it ends."""

    def __init__(self, bound: socket.socket, gate: Gate, serve: Callable[[str, int], asyncio.BaseProtocol]) -> None:
        self._bound = bound
        self._gate = gate
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._loop.add_reader(bound, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._gate.is_full(self._open_again):
                self._loop.remove_reader(self._bound)
                return
            wait_s = self._gate.wait_s(self._loop.time())
            if wait_s:
                self._pause(wait_s)
                return
            try:
                accepted, address = self._bound.accept()
            except BlockingIOError:
                self._gate.backlog_is_empty()
                return
            except (InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._gate.tell(WarningLine(f"no connection can be taken now: {error.strerror}", error=error.strerror))
                self._pause(RETRY_S)
                return
            host = plain_host(address[0])
            if not self._gate.enter(host):
                accepted.close()
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._take(accepted, host, address[1]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _take(self, accepted: socket.socket, host: str, port: int) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._serve(host, port), accepted)
        except OSError:
            accepted.close()
            self._gate.leave(host)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._bound)
        self._loop.call_later(seconds, self._open_again)

    def _open_again(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._bound, self._accept)

    def close(self) -> None:
        """Take no more connections."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._bound)
            with suppress(OSError):
                self._bound.close()
