"""Protects what a node says of its own addresses: clients and controllers get a host and a port that they can connect to."""

from __future__ import annotations

import errno
import os
import re
import socket
from functools import partial
from pathlib import Path

import pytest

from kcli.protocol.apis import API_KEYS, DESCRIBE_CLUSTER, DESCRIBE_QUORUM
from kcli.server.config.loading import load_config
from kcli.server.shell import server as shell
from tests.server.live import LiveClient
from tests.server.serving import address_of, serving


def test_a_listener_without_a_host_is_registered_by_name_and_port(tmp_path: Path) -> None:
    """Kafka registers the canonical host name and the bound port; an empty host or port 0 sends clients nowhere."""
    name = shell.canonical_host_name()
    listeners = "listeners=PLAINTEXT://:0,CONTROLLER://:0"
    with serving(tmp_path, "--override", listeners, "--override", "log.dirs=data") as lines:
        port = int(address_of(lines).rpartition(":")[2])
        client = LiveClient(port)
        (broker,) = client.metadata().brokers
        assert (broker.host, broker.port) == (name, port)
        socket.create_connection((broker.host, broker.port), 10).close()
        classes = API_KEYS[DESCRIBE_QUORUM].request.classes
        topic = classes["TopicData"](topic_name="__cluster_metadata", partitions=[classes["PartitionData"](partition_index=0)])
        quorum = client.ask(DESCRIBE_QUORUM, 2, API_KEYS[DESCRIBE_QUORUM].request.new(topics=[topic]))
        (voter,) = quorum.nodes[0].listeners
        assert voter.host == name
        controller = LiveClient(voter.port)
        asked = API_KEYS[DESCRIBE_CLUSTER].request.new(endpoint_type=2)
        (node,) = controller.ask(DESCRIBE_CLUSTER, 1, asked).brokers
        assert (node.host, node.port) == (name, voter.port)


def test_every_address_is_that_of_ipv4_where_ipv6_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without IPv6 refuses the socket; an empty host is then 0.0.0.0."""
    made = socket.socket

    def without_ipv6(family: int, *rest: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return made(family, *rest)

    monkeypatch.setattr(shell.socket, "socket", without_ipv6)
    bound = shell.bind("", 0, 1, "PLAINTEXT://:0", shell.metrics_advice)
    assert (bound.family, bound.getsockname()[0]) == (socket.AF_INET, "0.0.0.0")
    bound.close()


@pytest.mark.parametrize(
    ("listeners", "error", "advice"),
    [
        (
            "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
            errno.EADDRINUSE,
            r"another process has it: stop that one, or set another port in listeners \(--override "
            r"listeners\), for example: kcli serve --override listeners=PLAINTEXT://127.0.0.1:9192,CONTROLLER://127.0.0.1:9093$",
        ),
        ("PLAINTEXT://:65500", errno.EADDRINUSE, "listeners=PLAINTEXT://:65400$"),
        (
            "PLAINTEXT://192.0.2.7:9092",
            errno.EADDRNOTAVAIL,
            r"192.0.2.7 is not an address of this machine, and listeners \(--override listeners\) must have addresses of this "
            r"machine: set one of them, or PLAINTEXT://:9092 for all of them; the address that clients.*advertised\.listeners$",
        ),
        ("PLAINTEXT://127.0.0.1:92", errno.EACCES, "ports below 1024 are for privileged processes: set another port"),
        ("PLAINTEXT://127.0.0.1:9092", errno.ENOBUFS, "$"),
    ],
)
def test_a_listener_that_cannot_be_bound(listeners: str, error: int, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the setting, where it comes from, and what to set instead."""

    def refused(*_: object) -> socket.socket:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(shell, "_bind", refused)
    config = load_config(None, [f"listeners={listeners}"])
    at = config.listeners[0]
    with pytest.raises(shell.ServerError, match=f"^{re.escape(f'{at}: {os.strerror(error)}')}.*{advice}"):
        shell.bind(at.host, at.port, 1, str(at), partial(shell.listener_advice, config, at))


def test_a_listener_whose_host_does_not_resolve() -> None:
    config = load_config(None, ["listeners=PLAINTEXT://no-such-host.invalid:9092"])
    at = config.listeners[0]
    with pytest.raises(shell.ServerError, match=r"no-such-host.invalid does not resolve to an address, and listeners"):
        shell.bind(at.host, at.port, 1, str(at), partial(shell.listener_advice, config, at))


def test_a_machine_whose_name_means_nothing_must_state_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name that resolves there is nothing to register: one sentence says what to set."""

    def unresolved(*args: object, **named: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(shell.socket, "getaddrinfo", unresolved)
    config = load_config(None, ["listeners=PLAINTEXT://:9092"])
    with pytest.raises(shell.ServerError, match=r"PLAINTEXT://:9092 has no host.*set advertised\.listeners"):
        shell.bound_addresses(config, {})
    named = load_config(None, ["listeners=PLAINTEXT://:9092", "advertised.listeners=PLAINTEXT://a.example:9092"])
    assert shell.bound_addresses(named, {"PLAINTEXT": 9092}).ports == {"PLAINTEXT": 9092}


@pytest.mark.parametrize(
    ("settings", "ready", "warns"),
    [
        (["listeners=PLAINTEXT://127.0.0.1:9192"], "PLAINTEXT://127.0.0.1:9192; data in", False),
        (
            ["listeners=PLAINTEXT://127.0.0.1:9192", "advertised.listeners=PLAINTEXT://localhost:9192"],
            "PLAINTEXT://127.0.0.1:9192; advertised to clients: PLAINTEXT://localhost:9192; data in",
            False,
        ),
        (
            ["listeners=PLAINTEXT://127.0.0.1:9192", "advertised.listeners=PLAINTEXT://localhost:9092"],
            "PLAINTEXT://127.0.0.1:9192; advertised to clients: PLAINTEXT://localhost:9092; data in",
            True,
        ),
        (
            ["listeners=PLAINTEXT://:9192", "advertised.listeners=PLAINTEXT://kafka.example:9092"],
            "PLAINTEXT://:9192; advertised to clients: PLAINTEXT://kafka.example:9092; data in",
            False,
        ),
    ],
)
def test_the_ready_line_shows_the_addresses_that_clients_get(settings: list[str], ready: str, warns: bool) -> None:
    """A port of this machine that no listener has is a warning: clients get the metadata, and then cannot connect."""
    from kcli.server.config.listeners import BoundAddresses

    lines = list[str]()
    shell.log_ready(load_config(None, settings), BoundAddresses({"PLAINTEXT": 9192, "CONTROLLER": 9193}, "here"), lines.append)
    assert f"is ready: {ready}" in lines[-1]
    assert [f"no listener of this node has the port {9092}" in line for line in lines[:-1]] == [True] * warns
