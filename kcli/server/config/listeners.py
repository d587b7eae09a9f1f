"""Listeners: the addresses that a node binds, the addresses that it advertises, and the security protocol of each.

    key                             text
    ------------------------------  -----------------------------------------------------------------------------------
    listeners                       NAME://host:port, ... ; an empty host is every address, [::1] an IPv6 one, port 0 any
                                    free port
    advertised.listeners            the same: the addresses for clients; without it `listeners`
    listener.security.protocol.map  NAME:PROTOCOL, ... ; names not in it must be protocols themselves
    controller.listener.names       NAME, ... : the controllers' listeners, which are not advertised to clients
    inter.broker.listener.name      the listener that brokers use; without it the one with the name of
                                    security.inter.broker.protocol

Names are upper case (Kafka converts them). The rules are those of Kafka's AbstractKafkaConfig: each name once, each port once
unless one host is IPv4 and the other IPv6, no 0.0.0.0 in advertised listeners, an advertised listener for brokers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from kcli.format.java_text import parse_integer
from kcli.server.config.values import ConfigError, split_list

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_HOST_CHARACTERS = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-%._:")
_IPV4 = r"\d+\.\d+\.\d+\.\d+"
UNROUTABLE_HOST = "0.0.0.0"
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


class Listener(NamedTuple):
    """One listener. An empty host is every address (in an advertised one: this machine's name); port 0 any free port."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    @property
    def is_plaintext(self) -> bool:
        """Whether it neither encrypts nor authenticates."""
        return self.security_protocol == "PLAINTEXT"

    def __str__(self) -> str:
        from kcli.network.events import PeerAddress  # commands without a network read settings, too

        return f"{self.name}://{PeerAddress(self.host, self.port)}"


class BoundAddresses(NamedTuple):
    """The addresses of a node's bound listeners: their ports by name, and the machine's canonical name."""

    ports: Mapping[str, int] = {}
    host_name: str = "localhost"

    def resolve(self, listener: Listener) -> Listener:
        """Fill in an empty host and port 0, as Kafka does for a registration (withWildcardHostnamesResolved)."""
        return listener._replace(host=listener.host or self.host_name, port=listener.port or self.ports.get(listener.name, 0))


# The addresses of a node whose listeners are never bound, as in the simulator.
NOT_BOUND = BoundAddresses()


def parse_security_protocols(key: str, text: str) -> dict[str, str]:
    """Parse listener.security.protocol.map; return the protocol by listener. Raises ConfigError."""
    protocols: dict[str, str] = {}
    for item in split_list(text):
        name, colon, protocol = (part.strip() for part in item.rpartition(":"))
        if not colon or not name or protocol.upper() not in SECURITY_PROTOCOLS:
            raise ConfigError(f"{key}={text} is not valid: {item!r} is not NAME:PROTOCOL with one of {_PROTOCOLS}")
        protocols[name.upper()] = protocol.upper()
    return protocols


_PROTOCOLS = ", ".join(SECURITY_PROTOCOLS)


def parse_listeners(key: str, texts: list[str], protocols: dict[str, str]) -> list[Listener]:
    """Parse the listeners of a key. Raises ConfigError, which names the invalid one."""
    return [_parse_listener(key, text, protocols) for text in texts]


def _parse_listener(key: str, text: str, protocols: dict[str, str]) -> Listener:
    name, slashes, address = text.strip().rpartition("://")
    host, colon, port_text = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    port = parse_integer(port_text, 32)
    if not (slashes and name and colon and _HOST_CHARACTERS.issuperset(host)) or port is None:
        raise ConfigError(f"{key}: {text!r} is not valid: it must be NAME://host:port, for example PLAINTEXT://127.0.0.1:9092")
    name = name.upper()
    if not 0 <= port <= 65535:
        raise ConfigError(f"{key}: the port of {text!r} is not valid: it must be from 0 (any free port) to 65535")
    if name not in protocols:
        raise ConfigError(
            f"{key}: {text!r} has no security protocol; add {name}:PLAINTEXT (or another of {_PROTOCOLS}) to "
            "listener.security.protocol.map"
        )
    return Listener(name, host, port, protocols[name])


def repeated_listeners(key: str, listeners: list[Listener], *, ports_too: bool) -> list[str]:
    """Return a sentence for each name or port that two listeners share."""
    faults = []
    names: dict[str, Listener] = {}
    ports: dict[int, Listener] = {}
    for listener in listeners:
        first = names.setdefault(listener.name, listener)
        if first is not listener:
            faults.append(f"{key}: {first} and {listener} have the same name; each listener needs its own")
        if not ports_too or listener.port == 0:
            continue
        first = ports.setdefault(listener.port, listener)
        if first is not listener and not _are_two_families(first, listener):
            faults.append(f"{key}: {first} and {listener} have the same port; each listener needs its own")
    return faults


def _are_two_families(one: Listener, other: Listener) -> bool:
    """Return whether one host is an IPv4 address and the other an IPv6 address, which may share a port."""
    first, second = sorted((one.host, other.host), key=lambda host: ":" in host)
    return re.fullmatch(_IPV4, first) is not None and ":" in second
