"""Protects the wire protocol against what real clients and Apache Kafka say to each other: every frame decodes, and its
message is encoded again to the same bytes, header and all."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcli.protocol import apis
from kcli.protocol.apis import API_KEYS, API_VERSIONS, PRODUCE
from kcli.protocol.framing import encode_request, encode_response, read_request_header, read_response_header
from tests.oracle.peer import Peer, free_ports
from tests.oracle.recording_proxy import Exchange, RecordingProxy

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

TOOL_SECONDS = 120
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def proxy(kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordingProxy]:
    """A proxy before Apache Kafka, which tells its clients to come through it."""
    home, port, script = tmp_path_factory.mktemp("client-messages"), free_ports(), str(kafka_peer.script)
    subprocess.run([script, "format", str(home), str(port)], check=True, timeout=TOOL_SECONDS)
    with RecordingProxy(port) as made:
        properties = home / "server.properties"
        advertised = f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}"
        text = properties.read_text()
        assert advertised in text
        properties.write_text(text.replace(advertised, f"advertised.listeners=PLAINTEXT://127.0.0.1:{made.port}"))
        subprocess.run([script, "start", str(home)], check=True, timeout=TOOL_SECONDS, stdout=subprocess.DEVNULL)
        try:
            yield made
        finally:
            subprocess.run([script, "stop", str(home)], check=True, timeout=TOOL_SECONDS)


def judge(exchanges: list[Exchange]) -> set[tuple[int, int]]:
    """Decode and encode all frames -> the (API key, version)s that were seen."""
    seen = set()
    for exchange in exchanges:
        waiting: dict[int, tuple[int, int]] = {}
        for frame in exchange.requests:
            key, version, correlation_id, client_id, position = read_request_header(frame)
            api = API_KEYS[key]
            seen.add((key, version))
            known = api.lowest_version <= version <= api.highest_version
            waiting[correlation_id] = (key, version if known else 0)
            if known:
                message, end = api.request.decode(frame, version, position)
                assert end == len(frame), (api, version)
                assert encode_request(correlation_id, api, version, client_id, message)[4:] == frame, (api, version, message)
                if key == PRODUCE and message.acks == 0:
                    del waiting[correlation_id]
        for frame in exchange.responses:
            key, version = waiting.pop(int.from_bytes(frame[:4], "big", signed=True))
            api = API_KEYS[key]
            correlation_id, position = read_response_header(frame, api, version)
            if key == API_VERSIONS and int.from_bytes(frame[position : position + 2], "big"):
                version = 0
            message, end = api.response.decode(frame, version, position)
            assert end == len(frame), (api, version)
            assert encode_response(correlation_id, api, version, message)[4:] == frame, (api, version, message)
    return seen


def confluent(address: str) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic("confluent", 2, 1, config={"retention.ms": "100000000"})]).values():
        future.result(30)
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": address, "compression.type": codec, "enable.idempotence": codec != "gzip"})
        for number in range(20):
            producer.produce("confluent", b"v" * 100, b"k%d" % number, headers=[("h", b"x"), ("n", None)])
        assert producer.flush(30) == 0
    transactional = Producer({"bootstrap.servers": address, "transactional.id": "confluent-t"})
    transactional.init_transactions(30)
    transactional.begin_transaction()
    transactional.produce("confluent", b"in a transaction")
    consumer = Consumer({"bootstrap.servers": address, "group.id": "confluent-g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["confluent"])
    got = 0
    while got < 100:
        got += len(consumer.consume(100, 30))
    transactional.send_offsets_to_transaction([TopicPartition("confluent", 0, 5)], consumer.consumer_group_metadata(), 30)
    transactional.commit_transaction(30)
    consumer.commit(asynchronous=False)
    consumer.get_watermark_offsets(TopicPartition("confluent", 0), timeout=30)
    consumer.offsets_for_times([TopicPartition("confluent", 0, 1)], timeout=30)
    consumer.close()
    for ask in (
        lambda: admin.create_partitions([NewPartitions("confluent", 3)]),
        lambda: admin.describe_configs([ConfigResource("topic", "confluent"), ConfigResource("broker", "1")]),
        lambda: admin.describe_consumer_groups(["confluent-g"]),
        lambda: admin.delete_records([TopicPartition("confluent", 0, 1)]),
        lambda: admin.delete_topics(["confluent"]),
    ):
        for future in ask().values():
            future.result(30)
    for future in (admin.list_consumer_groups(), admin.describe_cluster()):
        future.result(30)


def kafka_python(address: str) -> None:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka.admin import NewTopic

    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic("python", 1, 1)])
    for codec in CODECS:
        producer = KafkaProducer(bootstrap_servers=address, compression_type=None if codec == "none" else codec, acks="all")
        for _ in range(10):
            producer.send("python", b"v", b"k", headers=[("h", b"x")])
        producer.flush(30)
        producer.close()
    consumer = KafkaConsumer("python", bootstrap_servers=address, group_id="python-g", auto_offset_reset="earliest")
    for _, _record in zip(range(50), consumer):
        pass
    consumer.commit()
    consumer.close()
    admin.describe_cluster()
    admin.list_topics()
    admin.close()


def aio_kafka(address: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def talk() -> None:
        async with AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True) as producer:
            for _ in range(10):
                await producer.send_and_wait("aio", b"v")
        consumer = AIOKafkaConsumer("aio", bootstrap_servers=address, group_id="aio-g", auto_offset_reset="earliest")
        async with consumer:
            for _ in range(10):
                await asyncio.wait_for(consumer.getone(), 30)

    asyncio.run(talk())


def kcat(address: str) -> None:
    program = shutil.which("kcat")
    if program is None:
        pytest.skip("kcat is not on this machine")
    for arguments, given in (
        (["-P", "-t", "kcat"], b"a\nb\n"),
        (["-C", "-t", "kcat", "-e", "-o", "beginning"], b""),
        (["-L"], b""),
        (["-Q", "-t", "kcat:0:-1"], b""),
    ):
        command = [program, "-b", address, *arguments]
        subprocess.run(command, input=given, capture_output=True, check=True, timeout=TOOL_SECONDS)


@pytest.mark.parametrize("talk", [confluent, kafka_python, aio_kafka, kcat], ids=lambda talk: talk.__name__)
def test_clients(proxy: RecordingProxy, talk: Callable[[str], None]) -> None:
    before = len(proxy.exchanges)
    talk(f"127.0.0.1:{proxy.port}")
    seen = {key for key, _ in judge(proxy.exchanges[before:])}
    assert {apis.API_VERSIONS, apis.METADATA, apis.PRODUCE, apis.FETCH} <= seen


TOOLS = (
    ("org.apache.kafka.tools.TopicCommand", "--create", "--topic", "tools", "--partitions", "3"),
    ("org.apache.kafka.tools.TopicCommand", "--describe"),
    ("kafka.admin.ConfigCommand", "--describe", "--entity-type", "topics", "--entity-name", "tools", "--all"),
    ("org.apache.kafka.tools.LogDirsCommand", "--describe"),
    ("org.apache.kafka.tools.GetOffsetShell", "--topic", "tools", "--time", "-3"),
    ("org.apache.kafka.tools.MetadataQuorumCommand", "describe", "--status"),
    ("org.apache.kafka.tools.FeatureCommand", "describe"),
    ("org.apache.kafka.tools.BrokerApiVersionsCommand",),
    ("org.apache.kafka.tools.TransactionsCommand", "describe-producers", "--topic", "tools", "--partition", "0"),
)


@pytest.mark.slow
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool[0].rpartition(".")[2])
def test_tools(kafka_peer: Peer, proxy: RecordingProxy, tool: tuple[str, ...], tmp_path: Path) -> None:
    before = len(proxy.exchanges)
    name, *arguments = tool
    address = ["--bootstrap-server", f"127.0.0.1:{proxy.port}"]
    command = [str(kafka_peer.script), "java", name, *address, *arguments]
    subprocess.run(command, check=True, timeout=TOOL_SECONDS, stdout=subprocess.DEVNULL)
    assert judge(proxy.exchanges[before:])
