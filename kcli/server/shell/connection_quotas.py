"""The limits of a server's clients, and the count of their connections (Kafka: ConnectionQuotas).

limit                     key                                                          beyond it
------------------------  -----------------------------------------------------------  -------------------------------
max_request_bytes         socket.request.max.bytes                                     the connection is closed
max_receive_bytes         queued.max.request.bytes, else DEFAULT_MAX_BYTES             requests wait, unread
max_connections           max.connections, and the process's limit of descriptors      new ones wait in the backlog
max_connections_per_host  max.connections.per.ip, max.connections.per.ip.overrides     new ones of that host are closed
connections_per_second    max.connection.creation.rate                                 new ones wait in the backlog
max_idle_ms               connections.max.idle.ms                                      the connection is closed

Reaching max.connections is logged once, and again after a tenth of the connections have ended and none waited.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kcli.server.config.server_config import ServerConfig
from kcli.server.log_lines import WarningLine
from kcli.server.shell.receive_buffers import DEFAULT_MAX_BYTES

# Descriptors for neither clients nor segments: listeners, locks, checkpoints, the interpreter's own.
RESERVED_DESCRIPTORS = 64
OVERRIDES = "max.connections.per.ip.overrides"
# The keys that may change while the broker runs.
DYNAMIC_KEYS = ("max.connections", "max.connections.per.ip", OVERRIDES, "max.connection.creation.rate")


class UnknownHostError(ValueError):
    """A host name that cannot be resolved; the message is one sentence."""


class Limits(NamedTuple):
    """The limits of a server; `hosts` has those that differ from `max_connections_per_host`, by address."""

    max_request_bytes: int = 100 * 1024 * 1024
    max_receive_bytes: int = DEFAULT_MAX_BYTES
    max_connections: int = 2**31 - 1
    connections_limit: str = "max.connections"  # what sets that limit
    max_connections_per_host: int = 2**31 - 1
    hosts: Mapping[str, int] = {}
    connections_per_second: int = 2**31 - 1
    max_idle_ms: int = 600_000

    def of_host(self, host: str) -> int:
        """Return how many connections a host may have."""
        return self.hosts.get(host, self.max_connections_per_host)


class ConnectionQuotas:
    """The connections of all listeners of a server. `report` writes a line of the node's log."""

    def __init__(self, limits: Limits, report: Callable[[str], None]) -> None:
        self.limits = limits
        self.report = report
        self.count = 0
        self._by_host: dict[str, int] = {}
        self._waiting: list[Callable[[], None]] = []
        self._is_full_logged = False  # see `backlog_is_empty`
        self._second = 0
        self._in_second = 0

    def delay_s(self, now_s: float) -> float:
        """Return the seconds until the next connection may be accepted (max.connection.creation.rate), 0 for now."""
        if int(now_s) != self._second:
            self._second, self._in_second = int(now_s), 0
        return 0.0 if self._in_second < self.limits.connections_per_second else self._second + 1 - now_s

    def is_full(self, when_not: Callable[[], None]) -> bool:
        """Return whether max.connections is reached; `when_not` is then called as soon as a connection ends."""
        if self.count < self.limits.max_connections:
            return False
        if not self._is_full_logged:
            self._is_full_logged = True
            limit = self.limits.connections_limit
            what = f"there are {self.count} connections, which is the limit ({limit}): new ones wait"
            self.report(WarningLine(what, connections=self.count, key=limit))
        self._waiting.append(when_not)
        return True

    def backlog_is_empty(self) -> None:
        """Note that no connection waits at a listener: once enough have ended, reaching the limit is logged again."""
        limit = self.limits.max_connections
        if self.count <= limit - max(1, limit // 10):
            self._is_full_logged = False

    def add(self, host: str) -> bool:
        """Count a new connection; return False, and log it, if its host has reached its limit."""
        of_host = self._by_host.get(host, 0)
        if of_host >= self.limits.of_host(host):
            what = f"closing a connection of {host}: it has {of_host} already, which is the limit (max.connections.per.ip)"
            self.report(WarningLine(what, host=host, connections=of_host, key="max.connections.per.ip"))
            return False
        self._by_host[host] = of_host + 1
        self.count += 1
        self._in_second += 1
        return True

    def remove(self, host: str) -> None:
        """Count a connection that has ended."""
        self.count -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        self._wake()

    def change_limits(self, limits: Limits) -> None:
        """Use other limits from now on; no connection is closed for them."""
        self.limits = limits
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for when_not_full in waiting:
            when_not_full()


def limits_of(config: ServerConfig, descriptors: int, max_open_files: int) -> Limits:
    """Return the limits that a configuration sets, for a process with that limit of descriptors. Raises UnknownHostError."""
    queued_bytes = config.get_int("queued.max.request.bytes")
    stated, possible = config.get_int("max.connections"), max(1, descriptors - max_open_files - RESERVED_DESCRIPTORS)
    by_descriptors = f"the process may have {descriptors} open files; raise it by ulimit -n or LimitNOFILE of systemd"
    return Limits(
        max_request_bytes=config.get_int("socket.request.max.bytes"),
        max_receive_bytes=queued_bytes if queued_bytes > 0 else DEFAULT_MAX_BYTES,
        max_connections=min(stated, possible),
        connections_limit="max.connections" if stated <= possible else by_descriptors,
        max_connections_per_host=config.get_int("max.connections.per.ip"),
        hosts=resolve_overrides(parse_overrides(config.get_str(OVERRIDES))),
        connections_per_second=config.get_int("max.connection.creation.rate"),
        max_idle_ms=config.get_int("connections.max.idle.ms"),
    )


def parse_overrides(text: str) -> dict[str, int]:
    """Parse "host:100,127.0.0.1:200"; return the limits by host."""
    entries = (entry.strip().rpartition(":") for entry in text.split(",") if entry.strip())
    return {host.strip("[]"): int(limit) for host, _, limit in entries}


def resolve_overrides(overrides: Mapping[str, int]) -> dict[str, int]:
    """Replace host names by all of their addresses. Raises UnknownHostError, as Kafka refuses such a name.

    An address in the overrides takes precedence over the same address of a name. Names are resolved once, as in Kafka.
    """
    stated, resolved = {}, {}
    for host, limit in overrides.items():
        try:
            stated[str(ipaddress.ip_address(host))] = limit
            continue
        except ValueError:
            pass
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UnknownHostError(f"{OVERRIDES}: the host {host} cannot be resolved: {reason}; correct or remove it") from None
        resolved.update({str(entry[4][0]): limit for entry in found})
    return resolved | stated
