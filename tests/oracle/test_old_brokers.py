"""Protects kcli's client against older brokers of Apache Kafka: 2.8.2, with ZooKeeper, and 3.9.1, by their jars.

Each API is used in the newest version that both know, and what an old broker does not have is refused with a sentence.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from kcli.client.admin.configs import AlterConfigOp, AlterOperation, ConfigResource, ResourceType
from kcli.client.admin.operation import value_of
from kcli.client.admin.partitions import OffsetSpec
from kcli.client.admin.topics import NewTopic
from kcli.client.errors import AuthenticationError, ClientError, UnsupportedVersionError
from kcli.client.shell.admin import Admin
from kcli.client.shell.consumer import Consumer
from kcli.client.shell.producer import Producer
from kcli.client.shell.share_consumer import ShareConsumer
from kcli.client.value_checks import OffsetAndMetadata
from tests.certificates import Authority
from tests.conftest import FIXTURES
from tests.oracle.peer import Peer, free_ports
from tests.replay.delivered import delivered
from tests.replay.runs import arrived, replay
from tests.server.live import wait_for

pytestmark = [pytest.mark.oracle, pytest.mark.ci]
VERSIONS = ("2.8.2", "3.9.1")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START_S = 60.0
PATIENCE_S = 30.0
KEY_PASSWORD = "of-the-key"
_SETTINGS = """
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
log.cleaner.enable=false
listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secured}{controller_listener}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secured}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={certificate}
ssl.key.password={key_password}
listener.name.sasl_ssl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.plain.connections.max.reauth.ms=1500
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  username="kafka" password="kafka" user_alice="secret";
"""
_ZOOKEEPER = "broker.id=1\nzookeeper.connect=127.0.0.1:{controller}\n"
_KRAFT = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
"""


class OldBroker(NamedTuple):
    """A broker, its version, and its log directory."""

    version: str
    bootstrap: str
    data: Path
    secured: str
    authority: Authority

    @property
    def settings(self) -> dict[str, str | int | float | bool]:
        """The settings of clients."""
        return {"bootstrap.servers": self.bootstrap}

    @property
    def reading(self) -> dict[str, str | int | float | bool]:
        """The settings of consumers."""
        return {**self.settings, "auto.offset.reset": "earliest"}


def answers(port: int, request: bytes) -> bool:
    """Whether something answers on a port."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(request)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


@contextmanager
def process(peer: Peer, log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        running = subprocess.Popen([peer.script, "java", *command], stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(30)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def wait_for_answer(port: int, request: bytes, running: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while not answers(port, request):
        assert running.poll() is None and time.monotonic() < end, log.read_text(errors="replace")[-2000:]
        time.sleep(0.1)


@pytest.fixture(scope="module", params=VERSIONS)
def broker(request: pytest.FixtureRequest, kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldBroker]:
    version = request.param
    home = tmp_path_factory.mktemp(f"kafka-{version}")
    peer = Peer(home, version, kafka_peer)
    port, data = free_ports(), home / "data"
    is_kraft = version >= "3"
    listener = f",CONTROLLER://127.0.0.1:{port + 1}" if is_kraft else ""
    authority = Authority(home / "authority")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        secured = taken.getsockname()[1]
    issued, certificate = authority.issue("broker"), home / "broker.pem"
    # Kafka 2.8 takes an encrypted key only.
    certificate.write_text(
        authority.encrypted(issued, KEY_PASSWORD, for_java=True).read_text() + issued.certificate.read_text()
    )
    of_tls = {"secured": secured, "certificate": certificate, "key_password": KEY_PASSWORD}
    text = _SETTINGS.format(data=data, port=port, controller_listener=listener, **of_tls)
    text += (_KRAFT if is_kraft else _ZOOKEEPER).format(controller=port + 1)
    (home / "server.properties").write_text(text)
    api_versions = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    if is_kraft:
        format_words = (
            "kafka.tools.StorageTool",
            "format",
            "-t",
            "kcliKcliKcliKcliKcliKg",
            "-c",
            str(home / "server.properties"),
        )
        subprocess.run([peer.script, "java", *format_words], check=True, timeout=120, capture_output=True)
        with process(peer, home / "broker.log", "kafka.Kafka", str(home / "server.properties")) as running:
            wait_for_answer(port, api_versions, running, home / "broker.log")
            yield OldBroker(version, f"127.0.0.1:{port}", data, f"127.0.0.1:{secured}", authority)
        return
    (home / "zoo.cfg").write_text(
        f"dataDir={home / 'zookeeper'}\nclientPort={port + 1}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
        "4lw.commands.whitelist=ruok\n"
    )
    zookeeper = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    with process(peer, home / "zookeeper.log", zookeeper, str(home / "zoo.cfg")) as keeper:
        wait_for_answer(port + 1, b"ruok", keeper, home / "zookeeper.log")
        with process(peer, home / "broker.log", "kafka.Kafka", str(home / "server.properties")) as running:
            wait_for_answer(port, api_versions, running, home / "broker.log")
            yield OldBroker(version, f"127.0.0.1:{port}", data, f"127.0.0.1:{secured}", authority)


def create(broker: OldBroker, topic: str, partitions: int = 1) -> None:
    """Make a topic; the controller of 3.9 answers before the broker knows of it."""
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
        value_of(admin.create_topics([NewTopic(topic, partitions)])[topic])

        def has_leaders() -> bool:
            found = admin.describe_topics([topic])[topic]
            return not isinstance(found, ClientError) and [part.leader for part in found.partitions] == [1] * partitions

        wait_for(has_leaders)


def read(consumer: Consumer, count: int) -> list[tuple[int, int, object, object]]:
    found: list[tuple[int, int, object, object]] = []
    end = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} records came"
        found += [(one.partition, one.offset, one.key, one.value) for one in consumer.poll(1)]
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back(broker: OldBroker, codec: str) -> None:
    topic = f"codec-{codec}"
    create(broker, topic, 3)
    with Producer({**broker.settings, "compression.type": codec}) as producer:
        for number in range(300):
            producer.send(topic, b"value %d" % number, key=b"key %d" % (number % 10), headers=[("n", b"%d" % number)])
    with Consumer({**broker.reading, "group.id": topic}) as consumer:
        consumer.subscribe([topic])
        found = read(consumer, 300)
        assert sorted(value for _, _, _, value in found) == sorted(b"value %d" % number for number in range(300))
        assert len({(partition, key) for partition, _, key, _ in found}) == 10
        consumer.commit_sync()
        assert sum(one.offset for one in consumer.committed([(topic, index) for index in range(3)]).values() if one) == 300


def test_a_group_of_two_shares_the_partitions(broker: OldBroker) -> None:
    create(broker, "shared", 4)
    settings = {**broker.reading, "group.id": "two", "session.timeout.ms": 10_000}
    with Consumer(settings) as one, Consumer(settings) as two:
        one.subscribe(["shared"])
        two.subscribe(["shared"])
        end = time.monotonic() + PATIENCE_S
        while not (len(one.assignment()) == len(two.assignment()) == 2):
            assert time.monotonic() < end
            one.poll(0.1)
            two.poll(0.1)
        assert not one.assignment() & two.assignment()


def test_transactions(broker: OldBroker) -> None:
    create(broker, "input")
    create(broker, "output")
    with Producer(broker.settings) as producer:
        for number in range(20):
            producer.send("input", b"%d" % number)
    settings = {**broker.reading, "isolation.level": "read_committed"}
    with (
        Consumer({**settings, "group.id": "transformer", "enable.auto.commit": False}) as consumer,
        Producer({**broker.settings, "transactional.id": "transformer"}) as producer,
    ):
        consumer.assign([("input", 0)])
        producer.init_transactions()
        for is_committed in (False, True):
            consumer.seek(("input", 0), 0)
            producer.begin_transaction()
            for _, offset, _, value in read(consumer, 20)[:20]:
                producer.send("output", b"%s %d" % (value, is_committed), key=b"%d" % offset)
            if is_committed:
                producer.send_offsets_to_transaction({("input", 0): OffsetAndMetadata(20)}, consumer.group_metadata())
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()
        committed = consumer.committed([("input", 0)])
        assert [one.offset for one in committed.values() if one is not None] == [20]
    with Consumer(settings) as reader:
        reader.assign([("output", 0)])
        assert [value for _, _, _, value in read(reader, 20)] == [b"%d 1" % number for number in range(20)]


def test_administration(broker: OldBroker) -> None:
    create(broker, "administered", 2)
    resource = ConfigResource(ResourceType.TOPIC, "administered")
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin, Producer(broker.settings) as producer:
        assert "administered" in admin.list_topics()
        described = value_of(admin.describe_topics(["administered"])["administered"])
        assert [part.leader for part in described.partitions] == [1, 1]
        assert [node.node_id for node in admin.describe_cluster().nodes] == [1]
        value_of(
            admin.incremental_alter_configs({resource: [AlterConfigOp("retention.ms", AlterOperation.SET, "5000000")]})[
                resource
            ]
        )
        for number in range(10):
            producer.send("administered", b"%d" % number, partition=0)
        producer.flush()
        key = ("administered", 0)
        assert value_of(admin.list_offsets({key: OffsetSpec.LATEST})[key]).offset == 10
        value_of(admin.delete_records({key: 4})[key])
        assert value_of(admin.list_offsets({key: OffsetSpec.EARLIEST})[key]).offset == 4
        value_of(admin.delete_topics(["administered"])["administered"])


def test_what_an_old_broker_does_not_have_is_refused(broker: OldBroker) -> None:
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin, pytest.raises(UnsupportedVersionError):
        value_of(admin.describe_share_groups(["any"])["any"])
    with ShareConsumer({"bootstrap.servers": broker.bootstrap, "group.id": "queue"}) as consumer:
        consumer.subscribe(["codec-none"])
        with pytest.raises(ClientError, match=r"ShareGroupHeartbeat|share"):
            for _ in range(20):
                consumer.poll(1)


def test_a_directory_is_replayed(broker: OldBroker) -> None:
    run = replay(FIXTURES / "kafka-logs" / "data", "--to", broker.bootstrap, "--map", r"(.*)=replayed.\1", "--check")
    assert run.code == 0, run.messages
    expected = delivered(FIXTURES / "kafka-logs" / "data")
    assert {where: rows for where, rows in arrived(broker.data, "replayed.").items() if where in expected} == expected


def test_tls_and_sasl(broker: OldBroker) -> None:
    """With the older versions of SaslAuthenticate, and sessions that end (KIP-368, since Kafka 2.2)."""
    create(broker, "secured")
    settings = {
        "bootstrap.servers": broker.secured,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(broker.authority.pem),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "secret",
    }
    lines: list[str] = []
    with Producer(settings, log=lines.append) as producer, Consumer(settings, log=lines.append) as consumer:
        consumer.assign([("secured", 0)])
        consumer.seek_to_beginning([("secured", 0)])
        for number in range(6):
            producer.send_and_wait("secured", b"%d" % number)
            assert read(consumer, 1)[0][3] == b"%d" % number
            time.sleep(0.5)  # so that the sessions end between requests
    assert lines == []
    with Admin({**settings, "sasl.password": "wrong"}) as admin, pytest.raises(AuthenticationError, match="the user 'alice'"):
        admin.list_topics()
    with Admin({**settings, "security.protocol": "SSL"}) as admin, pytest.raises(AuthenticationError, match="with SASL does"):
        admin.list_topics()
    with Admin({"bootstrap.servers": broker.secured}) as admin, pytest.raises(AuthenticationError, match="it expects TLS"):
        admin.list_topics()
