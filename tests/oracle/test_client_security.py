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

from kcli.client import (
    Admin,
    AlterConfigOp,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    AsyncShareConsumer,
    ConfigResource,
    Consumer,
    NewTopic,
    Producer,
    ResourceType,
    ShareConsumer,
    TopicPartition,
)
from kcli.client.admin import security
from kcli.client.admin.configs import AlterOperation
from kcli.client.admin.operation import value_of
from kcli.client.admin.partitions import OffsetSpec
from kcli.client.errors import AuthenticationError, TransactionFatalError
from kcli.commands.app import main
from tests.certificates import Authority, Issued
from tests.oracle.brokers import NODE, new_broker
from tests.oracle.peer import Peer, ToolCase
from tests.server.live import wait_for

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

LISTENERS = ("SSL", "MUTUAL", "EXPIRED", "SASL_SSL", "SASL_PLAINTEXT", "SHORT")
PROTOCOLS = {"MUTUAL": "SSL", "EXPIRED": "SSL", "SHORT": "SASL_PLAINTEXT"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SESSION_MS = 2000
PATIENCE_S = 30.0
AT_ONCE_S = 5.0  # of a loaded machine; the timeouts are ten times as long
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
TOKEN_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
# SASLprep (RFC 4013) would make "a" of "ª"; Kafka does not use it.
PASSWORD = 'pass "word" \\, =1 ä\u00aa'


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
        path.write_text("".join(f"{name}={escaped(value)}\n" for name, value in settings.items()))
        return str(path)


def escaped(text: str) -> str:
    """A value in a properties file."""
    plain = text.replace("\\", "\\\\")
    return "".join(one if one.isascii() else f"\\u{ord(one):04x}" for one in plain)


def quoted(text: str) -> str:
    """A value in a JAAS entry."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def properties(ports: dict[str, int], authority: Authority, broker: Issued, expired: Issued) -> str:
    """The broker's settings; its own listener PLAINTEXT is where the tests make users."""
    lines = NODE.splitlines()
    kinds = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **{one: PROTOCOLS.get(one, one) for one in LISTENERS}}
    addresses = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    lines = [f"{line},{addresses}" if line.startswith(("listeners=", "advertised.")) else line for line in lines]
    user = escaped(f'username="kafka" password="kafka" user_alice="{quoted(PASSWORD)}"')
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
        "delegation.token.secret.key=a key of the broker",
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
    assert main(["topics", "list", "--command-config", cluster.file(settings)]) == 0
    assert "orders" in capfd.readouterr().out


def test_the_file_of_kafkas_own_tools(cluster: Cluster, kafka_peer: Peer, capfd: pytest.CaptureFixture[str]) -> None:
    """One client.properties with sasl.jaas.config serves Kafka's tool and kcli; each reads the password with its quotes."""
    settings = cluster.settings("SASL_SSL", "SCRAM-SHA-512")
    del settings["sasl.username"], settings["sasl.password"]
    settings["sasl.jaas.config"] = f'{SCRAM_MODULE} required username="alice" password="{quoted(PASSWORD)}";'
    settings["ssl.truststore.type"] = "PEM"
    settings["sasl.login.refresh.window.factor"] = "0.8"  # of Java's client only
    file = cluster.file(settings)
    bootstrap = settings["bootstrap.servers"]
    words = ("--bootstrap-server", bootstrap, "--list", "--command-config", file)
    (theirs,) = kafka_peer.run_tools([ToolCase("org.apache.kafka.tools.TopicCommand", words)], 60)
    assert "orders" in theirs.stdout.decode().split()
    assert main(["topics", "list", "--output", "names", "--bootstrap-server", bootstrap, "--command-config", file]) == 0
    assert "orders" in capfd.readouterr().out.split()


def test_the_clients_for_asyncio_and_groups(cluster: Cluster) -> None:
    """Members of a group and of a share group, whose coordinators have connections of their own."""
    settings = cluster.settings("SASL_SSL", "SCRAM-SHA-256")

    async def test() -> None:
        async with AsyncAdmin(settings) as admin, AsyncProducer(settings) as producer:
            group = {**settings, "group.id": "readers", "auto.offset.reset": "earliest"}
            async with AsyncConsumer(group) as consumer, AsyncShareConsumer({**settings, "group.id": "workers"}) as sharing:
                consumer.subscribe(["shared"])
                sharing.subscribe(["shared"])
                resource = ConfigResource(ResourceType.GROUP, "workers")
                earliest = AlterConfigOp("share.auto.offset.reset", AlterOperation.SET, "earliest")
                assert await admin.incremental_alter_configs({resource: [earliest]}) == {resource: None}
                await producer.send_and_wait("shared", b"to all")
                async with asyncio.timeout(PATIENCE_S):
                    while not (read := await consumer.poll(0.2)):
                        pass
                    while not (shared := await sharing.poll(0.2)):
                        pass
                assert {one.value for one in (*read, *shared)} == {b"to all"}
                await consumer.commit()
                await sharing.commit()

    asyncio.run(test())


async def awaited_token() -> str:
    await asyncio.sleep(0)
    return token()


def test_tokens(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    """OAUTHBEARER with a token of a function, of an async function, and of a file, which a command can use."""
    settings = cluster.settings("SASL_SSL", "OAUTHBEARER")
    del settings["sasl.username"], settings["sasl.password"]
    with Admin(settings, oauth_token=token) as admin:
        assert "orders" in admin.list_topics()

    async def test() -> None:
        async with AsyncAdmin(settings, oauth_token=awaited_token) as admin:
            assert "orders" in await admin.list_topics()

    asyncio.run(test())
    path = cluster.home / "a token"
    path.write_text(token() + "\n")
    settings["sasl.oauthbearer.token.endpoint.url"] = path.as_uri()
    roundtrip(settings)
    assert main(["topics", "list", "--command-config", cluster.file(settings)]) == 0
    assert "orders" in capfd.readouterr().out
    path.write_text(base64.b64encode(b"no token").decode())
    ends_at_once(settings, "refused the authentication with OAUTHBEARER: ", "check sasl.oauthbearer.token.endpoint.url")
    path.unlink()
    ends_at_once(settings, "a token: No such file or directory")


def test_a_delegation_token(cluster: Cluster) -> None:
    """KIP-48: the id and the HMAC of a token are user and password of SCRAM, with tokenauth=true."""
    settings = cluster.settings("SASL_SSL", "SCRAM-SHA-512")
    with Admin(settings) as admin:
        made = admin.create_delegation_token()
        # Until the broker has it from the controller.
        wait_for(lambda: made.token_id in {one.token_id for one in admin.describe_delegation_token()})
    del settings["sasl.username"], settings["sasl.password"]
    secret = base64.b64encode(made.hmac).decode()
    user = f'username="{made.token_id}" password="{secret}"'
    roundtrip({**settings, "sasl.jaas.config": f'{SCRAM_MODULE} required {user} tokenauth="true";'})
    unmarked = {**settings, "sasl.jaas.config": f"{SCRAM_MODULE} required {user};"}
    with Admin(unmarked) as admin, pytest.raises(AuthenticationError, match=r"check sasl\.jaas\.config"):
        admin.list_topics()


def test_a_session_that_ends(cluster: Cluster) -> None:
    """Clients authenticate again on the same connection, before the broker would close it: no request fails (KIP-368)."""
    settings = {**cluster.settings("SHORT"), "reconnect.backoff.ms": "20000", "reconnect.backoff.max.ms": "20000"}
    lines: list[str] = []
    with Producer(settings, log=lines.append) as producer, Admin(settings, log=lines.append) as admin:
        until = time.monotonic() + 3 * SESSION_MS / 1000
        count = 0
        while time.monotonic() < until:
            producer.send_and_wait("orders", b"again")
            admin.list_topics()
            count += 1
            time.sleep(0.05)  # so that the sessions end between requests, not a wait for something
        assert count > 20 and lines == []
        time.sleep(1.2 * SESSION_MS / 1000)  # a session that has ended: the first request of the next one is SaslHandshake
        producer.send_and_wait("orders", b"late")
        assert lines == []


# ------------------------------------------------------------------------------------------------------------- refusals


def ends_at_once(settings: dict[str, str], *sentences: str, all_clients: bool = False) -> None:
    """Clients end with AuthenticationError and the sentences, long before their timeouts; an Admin, or all of them."""
    settings = {**settings, "client.id": "refused"}
    address = settings["bootstrap.servers"]

    def check(call: Callable[[], object]) -> None:
        began = time.monotonic()
        with pytest.raises((AuthenticationError, TransactionFatalError)) as raised:
            call()
        assert time.monotonic() - began < AT_ONCE_S
        text = str(raised.value)
        assert all(sentence in text for sentence in (*sentences, address.rpartition(":")[2])), text
        assert PASSWORD not in text and "hush" not in text and "\n" not in text

    with Admin(settings) as admin:
        check(admin.list_topics)
        check(admin.describe_cluster)  # the next call, too
        check(lambda: value_of(admin.list_offsets({("orders", 0): OffsetSpec.LATEST})["orders", 0]))
    if not all_clients:
        return
    with Producer(settings) as producer:
        check(lambda: producer.send("orders", b"never"))
    with Producer({**settings, "transactional.id": "refused"}) as producer:
        check(producer.init_transactions)
    with Consumer({**settings, "group.id": "refused"}) as consumer:
        consumer.subscribe(["orders"])
        check(lambda: consumer.poll(PATIENCE_S))
        check(lambda: consumer.committed([TopicPartition("orders", 0)]))
    with Consumer(settings) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        check(lambda: consumer.poll(PATIENCE_S))
        check(lambda: consumer.poll(PATIENCE_S))
        check(lambda: consumer.end_offsets([TopicPartition("orders", 0)]))
    with ShareConsumer({**settings, "group.id": "refused"}) as sharing:
        sharing.subscribe(["orders"])
        check(lambda: sharing.poll(PATIENCE_S))


def test_wrong_passwords(cluster: Cluster) -> None:
    for mechanism in MECHANISMS:
        settings = {**cluster.settings("SASL_PLAINTEXT", mechanism), "sasl.password": "hush"}
        what = f"it refused the authentication of the user 'alice' with {mechanism}: Authentication failed"
        ends_at_once(settings, what, "check sasl.username and sasl.password", all_clients=mechanism == "SCRAM-SHA-512")


def test_listeners_and_protocols_that_do_not_fit(cluster: Cluster) -> None:
    """TLS and SASL in all wrong combinations."""
    plain = cluster.settings("SASL_PLAINTEXT")
    ends_at_once(
        {**plain, "security.protocol": "PLAINTEXT"}, "as a listener with SASL does: check security.protocol", all_clients=True
    )
    ends_at_once({**plain, "security.protocol": "SASL_SSL"}, "as a listener without TLS does: check security.protocol")
    secured = cluster.settings("SSL")
    ends_at_once(
        {**secured, "security.protocol": "PLAINTEXT"}, "it expects TLS: set security.protocol=SSL, or use another port"
    )
    user = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": PASSWORD}
    ends_at_once(
        {**secured, **user, "security.protocol": "SASL_SSL"}, "the listener does not use SASL: set security.protocol=SSL"
    )


def test_certificates_that_do_not_fit(cluster: Cluster) -> None:
    secured = cluster.settings("SSL")
    other = Authority(cluster.home / "other")
    elsewhere = cluster.settings("SSL", host="localhost")
    ends_at_once(elsewhere, "its certificate is for another name", "'localhost'", all_clients=True)
    roundtrip({**cluster.settings("SSL", host="localhost"), "ssl.endpoint.identification.algorithm": ""})
    ends_at_once({**secured, "ssl.truststore.location": str(other.pem)}, "no known authority has signed its certificate")
    ends_at_once(cluster.settings("EXPIRED"), "its certificate has expired")
    mutual = cluster.settings("MUTUAL")
    ends_at_once(
        {**mutual, "ssl.keystore.location": str(other.issue("stranger").both)}, "it refused the certificate of the client"
    )
    del mutual["ssl.keystore.location"]
    ends_at_once(mutual, "it expects a certificate of the client")


def test_commands_end_with_one_sentence(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, no traceback and no password."""
    file = cluster.file({**cluster.settings("SASL_SSL"), "sasl.password": "hush"})
    commands = [
        ("topics", "list"),
        ("groups", "describe", "--group", "x"),
        ("consume", "--topic", "orders"),
        ("produce", "--topic", "orders", __file__),
        ("bench", "produce", "--topic", "orders", "--num-records", "10"),
    ]
    for words in commands:
        began = time.monotonic()
        assert main([*words, "--command-config", file]) == 2, words
        out, err = capfd.readouterr()
        assert time.monotonic() - began < AT_ONCE_S
        assert out == "" and err.count("\n") == 1 and "it refused the authentication of the user 'alice'" in err, err
        assert "hush" not in err
    address = f"127.0.0.1:{cluster.ports['SASL_SSL']}"
    for words in (("--from-config", file, "--to", address), ("--to", address, "--from-config", file, "--dry-run")):
        assert main(["replay", f"kafka://{address}", *words]) == 2
        _, err = capfd.readouterr()
        assert err.count("\n") == 1 and "it refused the authentication of the user 'alice'" in err, err


def test_a_replay_between_secured_listeners(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    source, target = cluster.settings("SASL_SSL", "SCRAM-SHA-256"), cluster.settings("MUTUAL")
    with Producer(source) as producer:
        producer.send_and_wait("orders", b"replayed")
    files = []
    for settings in (source, target):
        name = cluster.file(settings)
        files.append(f"{name}-{len(files)}")
        Path(name).rename(files[-1])
    words = ["replay", f"kafka://{source['bootstrap.servers']}", "--from-config", files[0], "--to", target["bootstrap.servers"]]
    assert main([*words, "--to-config", files[1], "--map", "orders=copied", "--topic", "orders"]) == 0, capfd.readouterr()
    with Admin(target) as admin:
        ends = admin.list_offsets({("copied", 0): OffsetSpec.LATEST, ("orders", 0): OffsetSpec.LATEST})
        assert value_of(ends["copied", 0]).offset > 0
