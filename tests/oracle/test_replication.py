"""Apache Kafka judges the copies of a kcli broker: they are in its ISR, are equal byte by byte, and lead after its leader."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from kcli.client import Admin, NewTopic, Producer
from kcli.client.admin.operation import value_of
from kcli.client.errors import KafkaTimeoutError
from tests.oracle.peer import Peer
from tests.server.live import wait_for
from tests.server.quorum_processes import Controller, Quorum, faults, free_ports, kcli_command
from tests.server.test_quorum_live import BROKER, leaders_of, read, send
from tests.server.test_replication_live import EARLY_FENCES, in_sync, log_of

pytestmark = pytest.mark.oracle

KAFKA_BROKER, KCLI_BROKER = 2, 3
CODECS = ("none", "gzip", "lz4")
QUICK_SHRINKS = "replica.lag.time.max.ms=2000"


def assert_equal_logs(nodes: Iterable[Controller], topic: str, partitions: int) -> None:
    """The replicas have the same bytes, and some."""
    for partition in range(partitions):
        first, *others = [log_of(node, topic, partition) for node in nodes]
        assert first
        assert [other == first for other in others] == [True] * len(others), (topic, partition)


@pytest.mark.slow
def test_a_broker_of_kcli_follows_a_leader_of_kafka(each_kafka: Peer, tmp_path: Path) -> None:
    """It joins the ISR, has what was acknowledged with acks=all, and leads when the leader is killed: nothing is lost."""
    ports, broker_ports = free_ports(1), free_ports(2)
    kafka = [str(each_kafka.script), "java", "kafka.Kafka"]
    controller = Controller(tmp_path, 1, ports, kcli_command(), EARLY_FENCES)
    leader = Controller(tmp_path, KAFKA_BROKER, ports, kafka, *BROKER, broker_port=broker_ports[0])
    follower = Controller(tmp_path, KCLI_BROKER, ports, kcli_command(), *BROKER, broker_port=broker_ports[1])
    nodes = [controller, leader, follower]
    # Alone it leads below min.insync.replicas=2, and could not raise the high watermark that it knows (KIP-966).
    topics = {codec: {"min.insync.replicas": "1", "compression.type": "producer"} for codec in CODECS}
    with Quorum([node.format_by_kcli() for node in nodes]):
        wait_for(lambda: "is ready" in follower.log())
        settings: dict[str, str | int] = {"bootstrap.servers": f"{leader.bootstrap},{follower.bootstrap}"}
        with Admin(settings) as admin:
            wait_for(lambda: {node.node_id for node in admin.describe_cluster().nodes} == {KAFKA_BROKER, KCLI_BROKER})
            placed = {0: [KAFKA_BROKER, KCLI_BROKER], 1: [KAFKA_BROKER, KCLI_BROKER]}
            for topic, configs in topics.items():
                value_of(admin.create_topics([NewTopic(topic, assignments=placed, configs=configs)])[topic])
            sent = {}
            for codec in CODECS:
                wait_for(lambda codec=codec: leaders_of(admin, codec) == dict.fromkeys(placed, KAFKA_BROKER))
                with Producer({**settings, "acks": "all", "compression.type": codec}) as producer:
                    sent[codec] = send(producer, codec, placed, "first")
                with Producer({**settings, "transactional.id": codec}) as producer:
                    producer.init_transactions()
                    for number, end in enumerate((producer.abort_transaction, producer.commit_transaction)):
                        producer.begin_transaction()
                        values = send(producer, codec, placed, f"transaction-{number}")
                        sent[codec] |= values if end == producer.commit_transaction else set()
                        end()
                wait_for(lambda codec=codec: in_sync(admin, codec) == {frozenset((KAFKA_BROKER, KCLI_BROKER))})
            for codec in CODECS:
                wait_for(partial(have_equal_ends, [leader, follower], codec, len(placed)))
                assert_equal_logs([leader, follower], codec, len(placed))
            leader.end()
            for codec in CODECS:
                wait_for(lambda codec=codec: leaders_of(admin, codec) == dict.fromkeys(placed, KCLI_BROKER))
                assert read(follower.bootstrap, codec, len(sent[codec]), codec) == sent[codec]
    assert faults([controller, follower]) == []


def have_equal_ends(nodes: list[Controller], topic: str, partitions: int) -> bool:
    """Return whether the logs of the replicas are equally long."""
    return all(len({len(log_of(node, topic, one)) for node in nodes}) == 1 for one in range(partitions))


@pytest.mark.slow
def test_a_broker_of_kafka_follows_a_leader_of_kcli(each_kafka: Peer, tmp_path: Path) -> None:
    """It leaves the ISR when it is killed, comes back, and leads when the leader is killed: nothing acknowledged is lost."""
    ports, broker_ports = free_ports(1), free_ports(2)
    kafka = [str(each_kafka.script), "java", "kafka.Kafka"]
    controller = Controller(tmp_path, 1, ports, kcli_command(), EARLY_FENCES)
    follower = Controller(tmp_path, KAFKA_BROKER, ports, kafka, *BROKER, broker_port=broker_ports[0])
    leader = Controller(tmp_path, KCLI_BROKER, ports, kcli_command(), *BROKER, QUICK_SHRINKS, broker_port=broker_ports[1])
    nodes = [controller, leader, follower]
    both = {frozenset((KAFKA_BROKER, KCLI_BROKER))}
    topics = {codec: {"min.insync.replicas": "2", "compression.type": "producer"} for codec in CODECS}
    topics["alone"] = {"min.insync.replicas": "1"}
    with Quorum([node.format_by_kcli() for node in nodes]):
        wait_for(lambda: "is ready" in leader.log())
        settings: dict[str, str | int] = {"bootstrap.servers": f"{leader.bootstrap},{follower.bootstrap}"}
        with Admin(settings) as admin:
            wait_for(lambda: {node.node_id for node in admin.describe_cluster().nodes} == {KAFKA_BROKER, KCLI_BROKER})
            placed = {0: [KCLI_BROKER, KAFKA_BROKER], 1: [KCLI_BROKER, KAFKA_BROKER]}
            sent: dict[str, set[bytes]] = {}
            for topic, configs in topics.items():
                value_of(admin.create_topics([NewTopic(topic, assignments=placed, configs=configs)])[topic])
                wait_for(lambda topic=topic: leaders_of(admin, topic) == dict.fromkeys(placed, KCLI_BROKER))
                codec = "none" if topic == "alone" else topic
                with Producer({**settings, "acks": "all", "compression.type": codec}) as producer:
                    sent[topic] = send(producer, topic, placed, "first")
                assert in_sync(admin, topic) == both
                assert_equal_logs([leader, follower], topic, len(placed))
            follower.end()
            for topic in topics:
                wait_for(lambda topic=topic: in_sync(admin, topic) == {frozenset((KCLI_BROKER,))})
            with Producer({**settings, "acks": "all"}) as producer:
                sent["alone"] |= send(producer, "alone", placed, "second")
                errors: list[Exception | None] = []
                for codec in CODECS:
                    producer.send(codec, b"refused", partition=0, on_delivery=lambda _, error: errors.append(error))
                with pytest.raises(KafkaTimeoutError):
                    producer.flush(1)
                assert errors == [], "they are fewer than min.insync.replicas"
                follower.start()
                wait_for(lambda: len(errors) == len(CODECS))
            assert errors == [None] * len(CODECS), "they are acknowledged when the follower is back"
            for topic in topics:
                wait_for(lambda topic=topic: in_sync(admin, topic) == both)
                sent[topic] |= {b"refused"} if topic in CODECS else set()
                wait_for(partial(have_equal_ends, [leader, follower], topic, len(placed)))
                assert_equal_logs([leader, follower], topic, len(placed))
            leader.end()
            for topic in topics:
                wait_for(lambda topic=topic: leaders_of(admin, topic) == dict.fromkeys(placed, KAFKA_BROKER))
            leader.start()  # below min.insync.replicas, the new leader's high watermark would not pass the last records
            for topic in topics:
                wait_for(lambda topic=topic: in_sync(admin, topic) == both)
                assert read(follower.bootstrap, topic, len(sent[topic]), topic) == sent[topic]
    assert faults([controller, leader]) == []
