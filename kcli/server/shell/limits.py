"""What a server lets its clients have, each limit under its name.

limit                     set by                                                       beyond it
------------------------  -----------------------------------------------------------  -------------------------------
max_request_bytes         socket.request.max.bytes                                     the connection is closed
max_receive_bytes         queued.max.request.bytes, else DEFAULT_MAX_BYTES             requests wait, unread
max_connections           max.connections, and what descriptors the process may have   new ones wait in the backlog
max_connections_per_host  max.connections.per.ip, max.connections.per.ip.overrides     new ones of that host are closed
connections_per_second    max.connection.creation.rate                                 new ones wait in the backlog
max_idle_ms               connections.max.idle.ms                                      the connection is closed
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from typing import NamedTuple

from kcli.server.config.server_config import ServerConfig
from kcli.server.shell.receive_buffers import DEFAULT_MAX_BYTES

# Descriptors that are neither clients' nor segments': listeners, locks, checkpoints, what the interpreter has open.
RESERVED_DESCRIPTORS = 64
# The keys behind them that may change while the broker runs.
OVERRIDES = "max.connections.per.ip.overrides"
DYNAMIC_KEYS = ("max.connections", "max.connections.per.ip", OVERRIDES, "max.connection.creation.rate")


class UnknownHostError(ValueError):
    """A host name that cannot be resolved; the message is one sentence."""


class Limits(NamedTuple):
    """The limits of a server; `hosts` has those that differ from `max_connections_per_host`, by address."""

    max_request_bytes: int = 100 * 1024 * 1024
    max_receive_bytes: int = DEFAULT_MAX_BYTES
    max_connections: int = 2**31 - 1
    max_connections_per_host: int = 2**31 - 1
    hosts: Mapping[str, int] = {}
    connections_per_second: int = 2**31 - 1
    max_idle_ms: int = 600_000

    def of_host(self, host: str) -> int:
        """How many connections a host may have."""
        return self.hosts.get(host, self.max_connections_per_host)


def limits_of(config: ServerConfig, descriptors: int, max_open_files: int) -> Limits:
    """Return the limits that a configuration sets, for a process that may have so many descriptors. Raises UnknownHostError."""
    queued_bytes = config.get_int("queued.max.request.bytes")
    return Limits(
        max_request_bytes=config.get_int("socket.request.max.bytes"),
        max_receive_bytes=queued_bytes if queued_bytes > 0 else DEFAULT_MAX_BYTES,
        max_connections=min(config.get_int("max.connections"), max(1, descriptors - max_open_files - RESERVED_DESCRIPTORS)),
        max_connections_per_host=config.get_int("max.connections.per.ip"),
        hosts=resolve_overrides(parse_overrides(config.get_str(OVERRIDES))),
        connections_per_second=config.get_int("max.connection.creation.rate"),
        max_idle_ms=config.get_int("connections.max.idle.ms"),
    )


def parse_overrides(text: str) -> dict[str, int]:
    """ "host:100,127.0.0.1:200" -> by host."""
    entries = (entry.strip().rpartition(":") for entry in text.split(",") if entry.strip())
    return {host.strip("[]"): int(limit) for host, _, limit in entries}


def resolve_overrides(overrides: Mapping[str, int]) -> dict[str, int]:
    """Replace host names by all of their addresses, as connections show them. Raises UnknownHostError, as Kafka refuses it.

    An address that is stated itself comes before one that a name leads to. Names are resolved once, as in Kafka.
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
