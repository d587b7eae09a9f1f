"""Accepts connections as far as the quotas allow; connections that must wait do so in the socket's backlog, as in Kafka.

when                                                     then
-------------------------------------------------------  ------------------------------------------------------------
max.connections is reached                               none is accepted until one ends
a host has reached its limit                             its new connection is closed
max.connection.creation.rate is reached                  none is accepted until the second is over
the system has no descriptors or memory for more         a line in the log, and another try after RETRY_S
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress

from kcli.server.log_lines import WarningLine
from kcli.server.shell.connection_quotas import ConnectionQuotas

# The number of connections accepted before other events are handled.
ACCEPTS_PER_TURN = 32
RETRY_S = 0.5
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_MAPPED = "::ffff:"


def plain_host(host: str) -> str:
    """Format an address; an IPv4-mapped IPv6 address is shown as IPv4."""
    return host[len(_MAPPED) :] if host.startswith(_MAPPED) and "." in host else host


class Acceptor:
    """One listening socket. `serve(host, port)` makes the protocol of a connection, which reports its end to the quotas."""

    def __init__(
        self, bound: socket.socket, quotas: ConnectionQuotas, serve: Callable[[str, int], asyncio.BaseProtocol]
    ) -> None:
        self._bound = bound
        self._quotas = quotas
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._loop.add_reader(bound, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._quotas.is_full(self._resume):
                self._loop.remove_reader(self._bound)
                return
            delay_s = self._quotas.delay_s(self._loop.time())
            if delay_s:
                self._pause(delay_s)
                return
            try:
                accepted, address = self._bound.accept()
            except BlockingIOError:
                self._quotas.backlog_is_empty()
                return
            except (InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._quotas.report(
                    WarningLine(f"cannot accept connections: {error.strerror}; trying again", error=error.strerror)
                )
                self._pause(RETRY_S)
                return
            host = plain_host(address[0])
            if not self._quotas.add(host):
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
            self._quotas.remove(host)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._bound)
        self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._bound, self._accept)

    def close(self) -> None:
        """Accept no more connections."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._bound)
            with suppress(OSError):
                self._bound.close()
