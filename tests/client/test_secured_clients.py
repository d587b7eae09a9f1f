"""Protects clients behind TLS and SASL against a real broker, and against servers that lie; Apache Kafka is in tests/oracle.

The broker is kcli's, behind a proxy that has the security.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from kcli.client import Admin, AsyncAdmin, AsyncProducer, Consumer, NewTopic, Producer, TopicPartition
from kcli.client.errors import AuthenticationError, KafkaTimeoutError
from kcli.commands.app import main
from tests.answering_server import answering_server
from tests.certificates import Authority, Issued
from tests.client.secured_proxy import SecuredProxy
from tests.server.live import LiveServer, wait_for

USERS = {"alice": "the secret", "bob": "other"}
AT_ONCE_S = 10.0  # of a loaded machine; the timeouts of the clients are a minute


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue("broker")


@pytest.fixture(scope="module")
def users() -> dict[str, str]:
    return dict(USERS)


@pytest.fixture(scope="module")
def proxy(issued: Issued, users: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredProxy]:
    home = tmp_path_factory.mktemp("broker")
    with (
        SecuredProxy(issued, users, session_ms=1500) as proxy,
        LiveServer(home, f"advertised.listeners=PLAINTEXT://127.0.0.1:{proxy.port}") as server,
    ):
        proxy.target = lambda: server.port
        yield proxy


def settings_of(proxy: SecuredProxy, authority: Authority, mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{proxy.port}",
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(authority.pem),
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": "the secret",
    }


def test_large_batches_and_sessions_that_end(proxy: SecuredProxy, authority: Authority) -> None:
    """Frames larger than each buffer of TLS come whole, both ways, while the sessions end again and again."""
    settings = settings_of(proxy, authority)
    lines: list[str] = []
    value = random.Random(1).randbytes(900_000)
    with Admin(settings, log=lines.append) as admin:
        admin.create_topics([NewTopic("large", 1)])
        with Producer(settings, log=lines.append) as producer:
            for _ in range(20):
                producer.send("large", value)
            producer.flush()
        before, count = proxy.logins, proxy.connections
        with Consumer({**settings, "fetch.max.bytes": "20000000"}, log=lines.append) as consumer:
            consumer.assign([TopicPartition("large", 0)])
            until = time.monotonic() + 4
            while time.monotonic() < until:
                consumer.seek_to_beginning([TopicPartition("large", 0)])
                assert read(consumer, 20) == [value] * 20
                admin.list_topics()
        assert proxy.logins - before > proxy.connections - count, "no client has authenticated again on its connection"
    assert lines == []


@pytest.mark.parametrize("acks", ["0", "all"])
def test_what_was_sent_leaves_before_the_end(acks: str, proxy: SecuredProxy, authority: Authority) -> None:
    """The end of a client drops no bytes that TLS has not passed on, and waits for no peer to end TLS."""
    settings = settings_of(proxy, authority, "PLAIN")
    topic = f"sent-{acks}"
    with Admin(settings) as admin:
        admin.create_topics([NewTopic(topic, 1)])
        producer = Producer({**settings, "acks": acks, "enable.idempotence": acks == "all"})
        for _ in range(8):
            producer.send(topic, bytes(500_000))
        producer.flush()
        began = time.monotonic()
        producer.close()
        assert time.monotonic() - began < AT_ONCE_S / 2
        with Consumer(settings) as consumer:
            wait_for(lambda: list(consumer.end_offsets([TopicPartition(topic, 0)]).values()) == [8])


def test_clients_for_asyncio(proxy: SecuredProxy, authority: Authority) -> None:
    async def test() -> None:
        settings = settings_of(proxy, authority)
        async with AsyncProducer(settings) as producer, AsyncAdmin(settings) as admin:
            await producer.send_and_wait("asynchronous", b"one")
            assert "asynchronous" in await admin.list_topics()

    asyncio.run(test())


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    """The values of the next records."""
    found: list[bytes | None] = []
    until = time.monotonic() + AT_ONCE_S
    while len(found) < count and time.monotonic() < until:
        found += [one.value for one in consumer.poll(0.2)]
    return found


def refused(settings: dict[str, Any], sentence: str) -> None:
    """An administrator and a producer end at once, and nothing that is printed has a password."""
    lines: list[str] = []
    for call in (lambda: Admin(settings, log=lines.append), lambda: Producer(settings, log=lines.append)):
        began = time.monotonic()
        with call() as client, pytest.raises(AuthenticationError) as raised:
            client.send("refused", b"") if isinstance(client, Producer) else client.list_topics()
        assert time.monotonic() - began < AT_ONCE_S
        text = f"{raised.value} {lines}"
        assert sentence in text and settings["bootstrap.servers"] in text, text
        assert not any(password in text for password in ("the secret", "wrong password")), text


def test_refusals(proxy: SecuredProxy, authority: Authority, tmp_path: Path) -> None:
    settings = settings_of(proxy, authority)
    refused(
        {**settings, "sasl.password": "wrong password"}, "it refused the authentication of the user 'alice' with SCRAM-SHA-256"
    )
    refused({**settings, "sasl.mechanism": "SCRAM-SHA-512"}, "it offers PLAIN, SCRAM-SHA-256: set sasl.mechanism")
    other = Authority(tmp_path)
    refused({**settings, "ssl.truststore.location": str(other.pem)}, "no known authority has signed its certificate")
    without = dict(settings)
    del without["ssl.truststore.location"]  # the authorities of the system
    refused(without, "no known authority has signed its certificate")
    refused({**settings, "security.protocol": "SSL"}, "as a listener with SASL does")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_clients_recover_when_the_broker_knows_the_user(
    protocol: str, users: dict[str, str], proxy: SecuredProxy, authority: Authority
) -> None:
    """A refusal ends calls, not the client: a broker may learn of a user late."""
    settings = {**settings_of(proxy, authority), "sasl.username": "carol", "sasl.password": "new"}
    topic = f"late-{protocol}"
    group = {"group.id": topic, "group.protocol": protocol, "auto.offset.reset": "earliest", "reconnect.backoff.max.ms": 50}
    with Consumer({**settings, **group}) as consumer, Producer(settings) as producer:
        consumer.subscribe([topic])
        for _ in range(3):
            with pytest.raises(AuthenticationError, match="it refused the authentication of the user 'carol'"):
                consumer.poll(AT_ONCE_S)
        with pytest.raises(AuthenticationError):
            producer.send(topic, b"too early")
        users["carol"] = "new"
        wait_for(lambda: sent(producer, topic))
        until = time.monotonic() + 3 * AT_ONCE_S
        found: list[bytes | None] = []
        while not found and time.monotonic() < until:
            with contextlib.suppress(AuthenticationError):  # one more may be under way
                found = [one.value for one in consumer.poll(0.2)]
        assert found == [b"in time"]
    del users["carol"]


def sent(producer: Producer, topic: str) -> bool:
    try:
        producer.send_and_wait(topic, b"in time")
    except AuthenticationError:
        return False
    return True


def test_batches_wait_for_a_broker_that_has_worked(users: dict[str, str], proxy: SecuredProxy, authority: Authority) -> None:
    """A producer whose session cannot be renewed for a while loses no record."""
    settings = {**settings_of(proxy, authority), "sasl.username": "dave", "sasl.password": "the secret"}
    users["dave"] = "the secret"
    lines: list[str] = []
    errors: list[Exception | None] = []
    with Producer(settings, log=lines.append) as producer:
        producer.send_and_wait("kept", b"first")
        users["dave"] = "changed"
        wait_for(lambda: keeps_sending(producer, errors) and any("refused the authentication" in line for line in lines))
        users["dave"] = "the secret"
        producer.flush()
    assert len(errors) > 1 and errors == [None] * len(errors)
    del users["dave"]


def keeps_sending(producer: Producer, errors: list[Exception | None]) -> bool:
    producer.send("kept", b"next", on_delivery=lambda metadata, error: errors.append(error))
    return True


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda answer: b"v=" + b"A" * 44 if answer.startswith(b"v=") else answer, "its signature of SCRAM-SHA-256 is wrong"),
        (lambda answer: b"" if answer.startswith(b"v=") else answer, "0 bytes that are not a message of SCRAM-SHA-256"),
        (lambda answer: answer.replace(b"i=4096", b"i=99999999"), "'99999999' iterations"),
        (lambda answer: answer.replace(b"i=4096", b"i=1"), "'1' iterations"),
        (lambda answer: b"r=x" + answer[3:] if answer.startswith(b"r=") else answer, "the nonce is another one"),
        (lambda answer: answer[:9], "its "),
    ],
)
def test_a_server_that_lies(spoil: Callable[[bytes], bytes], sentence: str, proxy: SecuredProxy, authority: Authority) -> None:
    proxy.spoil = spoil
    try:
        refused(settings_of(proxy, authority), sentence)
    finally:
        proxy.spoil = lambda answer: answer


def test_without_sasl_and_without_tls(issued: Issued, proxy: SecuredProxy, authority: Authority) -> None:
    """A listener that lacks what the client is configured for."""
    settings = settings_of(proxy, authority)
    with SecuredProxy(issued) as only_tls, SecuredProxy(None, USERS) as only_sasl:
        only_tls.target = only_sasl.target = proxy.target
        tls, sasl = (f"127.0.0.1:{one.port}" for one in (only_tls, only_sasl))
        refused({**settings, "bootstrap.servers": tls}, "the listener does not use SASL: set security.protocol=SSL")
        with Admin({**settings, "bootstrap.servers": sasl, "security.protocol": "SASL_PLAINTEXT"}) as admin:
            assert admin.describe_cluster().nodes
        unprotected = {"bootstrap.servers": sasl}
        refused(unprotected, "as a listener with SASL does: check security.protocol and sasl.mechanism")


# ------------------------------------------------------------------------------------- servers that are not brokers


def server(answer: Callable[[socket.socket], object]) -> AbstractContextManager[str]:
    """A server that does this after the first bytes of each connection -> its address."""

    def read_and_answer(connection: socket.socket) -> None:
        connection.recv(10_000)
        answer(connection)

    return answering_server(read_and_answer)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda one: one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "the listener does not use TLS: set security.protocol"),
        (lambda one: one.sendall(b"SSH-2.0-OpenSSH_9.6\r\n"), "the listener does not use TLS: set security.protocol"),
        (lambda one: one.sendall(b"\0\0\0\x10" + bytes(16)), "the listener does not use TLS: set security.protocol"),
        (lambda one: one.sendall(b"\x16\x03\x03\xff\xff" + bytes(100)), "the listener does not use TLS"),
        (lambda one: one.close(), "it closed the connection during the TLS handshake, as a listener without TLS does"),
        (lambda one: (one.sendall(b"\x16\x03\x03\0\x10"), one.close()), "it closed the connection during the TLS handshake"),
    ],
)
def test_servers_without_tls(answer: Callable[[socket.socket], object], sentence: str, authority: Authority) -> None:
    with server(answer) as address:
        settings = {"bootstrap.servers": address, "security.protocol": "SSL", "ssl.ca.location": str(authority.pem)}
        refused(settings, sentence)


@pytest.mark.parametrize(
    "answer",
    [
        lambda one: None,
        lambda one: one.sendall(b"\x16\x03\x03\0\x10\x02"),
    ],
)
def test_servers_that_do_not_end_the_handshake(answer: Callable[[socket.socket], object], authority: Authority) -> None:
    """A handshake has the time of a connection; the call ends at its own timeout, and the client can be closed."""
    with server(answer) as address:
        settings = {
            "bootstrap.servers": address,
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority.pem),
            "socket.connection.setup.timeout.ms": 150,
            "default.api.timeout.ms": 600,
        }
        began = time.monotonic()
        with Admin(settings) as admin, pytest.raises(KafkaTimeoutError) as raised:
            admin.list_topics()
        assert time.monotonic() - began < AT_ONCE_S and address in str(raised.value)


def test_a_command_behind_tls_and_sasl(
    proxy: SecuredProxy, authority: Authority, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a properties file; the exit codes and the one sentence of a refusal."""
    file = tmp_path / "client.properties"
    settings = settings_of(proxy, authority)
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    assert main(["topics", "create", "--topic", "by-a-command", "--command-config", str(file)]) == 0
    assert main(["topics", "list", "--output", "names", "--command-config", str(file)]) == 0
    assert "by-a-command" in capfd.readouterr().out
    words = ["topics", "list", "--command-config", str(file), "--command-property", "sasl.username=bob"]
    assert main(words) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and "the user 'bob' with SCRAM-SHA-256: wrong; check sasl.username and" in err
