"""Protects TLS and SASL of kcli's client: it works with each kind of listener of Apache Kafka, and a refusal ends it at once.

One broker has a listener for each case. The refusals that a broker of Apache Kafka does not make are in tests/client.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from kcli.client import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, AsyncShareConsumer, Consumer, NewTopic, Producer
from kcli.client import ShareConsumer, TopicPartition
from kcli.client.admin import security
from kcli.client.admin.operation import value_of
from kcli.client.errors import AuthenticationError, ClientError
from kcli.commands.app import main
from tests.certificates import Authority, Issued
from tests.oracle.brokers import NODE, new_broker
from tests.oracle.peer import Peer
from tests.server.live import wait_for

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

LISTENERS = ("SSL", "MUTUAL", "EXPIRED", "SASL_SSL", "SASL_PLAINTEXT", "SHORT")
PROTOCOLS = {"MUTUAL": "SSL", "EXPIRED": "SSL", "SHORT": "SASL_PLAINTEXT"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SESSION_MS = 2000
AT_ONCE_S = 5.0  # of a loaded machine; the timeouts are ten times as long
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
TOKEN_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
PASSWORD = 'pass "word" \\, =1'


def token() -> str:
    """A JWT without a signature, as Apache Kafka's broker takes it for tests."""
    now_s = int(time.time())
    parts = ({"alg": "none"}, {"sub": "alice", "iat": now_s - 60, "exp": now_s + 3600, "scope": "test"})
    return ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=").decode() for one in parts) + "."


class Cluster(NamedTuple):
    """A broker with the ports of its listeners, and certificates."""

    ports: dict[str, int]
    home: Path
    authority: Authority
    client: Issued

    def settings(self, listener: str, mechanism: str = "PLAIN", host: str = "127.0.0.1") -> dict[str, str]:
        """Settings of a client that work."""
        protocol = PROTOCOLS.get(listener, listener)
        found = {"bootstrap.servers": f"{host}:{self.ports[listener]}", "security.protocol": protocol}
        if protocol.endswith("SSL"):
            found["ssl.truststore.location"] = str(self.authority.pem)
        if listener == "MUTUAL":
            found["ssl.keystore.location"] = str(self.client.both)
        if protocol.startswith("SASL"):
            found |= {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": PASSWORD}
        return found

    def file(self, settings: dict[str, str]) -> str:
        """A properties file of settings."""
        path = self.home / "client.properties"
        text = "".join(f"{name}={value}\n".replace("\\", "\\\\") for name, value in settings.items())
        path.write_text(text)
        return str(path)


def quoted(text: str) -> str:
    """A value in a JAAS entry in a properties file."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def properties(ports: dict[str, int], authority: Authority, broker: Issued, expired: Issued) -> str:
    """The broker's settings; its own listener PLAINTEXT is where the tests make users."""
    lines = NODE.splitlines()
    kinds = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **{one: PROTOCOLS.get(one, one) for one in LISTENERS}}
    addresses = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    lines = [f"{line},{addresses}" if line.startswith(("listeners=", "advertised.")) else line for line in lines]
    user = f'username="kafka" password="kafka" user_alice="{quoted(PASSWORD)}"'.replace("\\", "\\\\")
    lines += [
        "controller.quorum.bootstrap.servers=127.0.0.1:{controller}",
        "listener.security.protocol.map=" + ",".join(f"{name}:{kind}" for name, kind in kinds.items()),
        "inter.broker.listener.name=PLAINTEXT",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={broker.both}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={authority.pem}",
        "listener.name.mutual.ssl.client.auth=required",
        "listener.name.expired.ssl.keystore.type=PEM",
        f"listener.name.expired.ssl.keystore.location={expired.both}",
        *(f"{name}=1" for name in ONE),
        "group.initial.rebalance.delay.ms=0",
        "sasl.mechanism.inter.broker.protocol=PLAIN",
    ]
    for listener in ("sasl_ssl", "sasl_plaintext", "short"):
        start = f"listener.name.{listener}"
        lines += [
            f"{start}.sasl.enabled.mechanisms=" + ",".join((*MECHANISMS, "OAUTHBEARER")),
            f"{start}.plain.sasl.jaas.config={PLAIN_MODULE} required {user};",
            f"{start}.scram-sha-256.sasl.jaas.config={SCRAM_MODULE} required;",
            f"{start}.scram-sha-512.sasl.jaas.config={SCRAM_MODULE} required;",
            f"{start}.oauthbearer.sasl.jaas.config={TOKEN_MODULE} required;",
        ]
    for mechanism in ("plain", "scram-sha-256", "oauthbearer"):
        lines.append(f"listener.name.short.{mechanism}.connections.max.reauth.ms={SESSION_MS}")
    return "\n".join(lines) + "\n"


ONE = (
    "offsets.topic.replication.factor",
    "offsets.topic.num.partitions",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "share.coordinator.state.topic.min.isr",
    "share.coordinator.state.topic.num.partitions",
)


@pytest.fixture(scope="module")
def cluster(kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("secured")
    authority = Authority(home / "authority")
    broker, expired = authority.issue("broker"), authority.issue("expired", days=-1)
    with ExitStack() as stack:
        taken = {name: stack.enter_context(socket.create_server(("127.0.0.1", 0))) for name in LISTENERS}
        ports = {name: one.getsockname()[1] for name, one in taken.items()}
    text = properties(ports, authority, broker, expired)
    with new_broker(kafka_peer, home, properties=text) as bootstrap:
        with Admin({"bootstrap.servers": bootstrap}) as admin:
            for mechanism in (security.ScramMechanism.SCRAM_SHA_256, security.ScramMechanism.SCRAM_SHA_512):
                made = security.ScramUpsertion.of_password("alice", mechanism, PASSWORD.encode(), b"a-salt", 4096)
                assert admin.alter_user_scram_credentials([made]) == {"alice": None}
            # Until the broker has them from the controller.
            wait_for(lambda: len(value_of(admin.describe_user_scram_credentials().get("alice", []))) == 2)
            admin.create_topics([NewTopic("orders", 1), NewTopic("shared", 1)])
            wait_for(lambda: {"orders", "shared"} <= set(admin.list_topics()))
        yield Cluster(ports, home, authority, authority.issue("client"))


def roundtrip(settings: dict[str, str]) -> None:
    """One record, written and read, and an answer of an administrator."""
    text = f"{time.monotonic_ns()}".encode()
    with Producer(settings) as producer:
        written = producer.send_and_wait("orders", text)
    with Consumer({**settings}) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        consumer.seek(TopicPartition("orders", 0), written.offset)
        found = []
        wait_for(lambda: bool(found.extend(consumer.poll(0.5)) or found))
        assert found[0].value == text
    with Admin(settings) as admin:
        assert "orders" in admin.list_topics()


CASES = [
    ("SSL", ""),
    ("MUTUAL", ""),
    *(("SASL_SSL", mechanism) for mechanism in MECHANISMS),
    *(("SASL_PLAINTEXT", mechanism) for mechanism in MECHANISMS),
]


@pytest.mark.parametrize(("listener", "mechanism"), CASES)
def test_clients_and_commands(listener: str, mechanism: str, cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    """Produce, consume, an administrator and a command work by each listener and mechanism."""
    settings = cluster.settings(listener, mechanism)
    roundtrip(settings)
    assert (
        main(
            ["topics", "list", "--command-config", cluster.file(settings), "--bootstrap-server", settings["bootstrap.servers"]]
        )
        == 0
    )
    assert "orders" in capfd.readouterr().out
