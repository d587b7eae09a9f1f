"""Texts of server.properties that Kafka takes or refuses, one case a line of CASES: what stands behind BASE ("|": a new line).

`python -m tests.oracle.server_properties_cases` asks Kafka and writes the fixture: each case with "ok" or Kafka's exception.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.oracle.peer import Peer

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "configs" / "server-properties.json"

BASE = """\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
controller.quorum.voters=1@h:9093
"""
CASES = """
broker.id=1
broker.id=2
broker.id=-1
node.id=-1
node.id=x
listeners=PLAINTEXT://:9092,CONTROLLER://:9092
listeners=PLAINTEXT://:0,CONTROLLER://:0
listeners=PLAINTEXT://127.0.0.1:9092,OTHER://[::1]:9092,CONTROLLER://:9093|listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT,CONTROLLER:PLAINTEXT|advertised.listeners=PLAINTEXT://a:1,OTHER://b:2
listeners=PLAINTEXT://127.0.0.1:9092,PLAINTEXT://[::1]:9092,CONTROLLER://:9093
listeners=PLAINTEXT://127.0.0.1:9092,PLAINTEXT://127.0.0.1:9094,CONTROLLER://:9093
listeners=PLAINTEXT://0.0.0.0:9092,CONTROLLER://:9093
listeners=PLAINTEXT://0.0.0.0:9092,CONTROLLER://:9093|advertised.listeners=PLAINTEXT://h:9092
listeners=PLAINTEXT://h:9092,CONTROLLER://:9093|advertised.listeners=PLAINTEXT://0.0.0.0:9092
listeners=PLAINTEXT://h:9092,CONTROLLER://:9093|advertised.listeners=PLAINTEXT://h:9092,CONTROLLER://h:9093
listeners=PLAINTEXT://h:9092,CONTROLLER://:9093|advertised.listeners=CONTROLLER://h:9093
listeners=CONTROLLER://:9093
listeners=PLAINTEXT://h:9092
listeners=FOO://h:9092,CONTROLLER://:9093
listeners=plaintext://h:9092,controller://:9093
listeners=PLAINTEXT://h_x:9092,CONTROLLER://:9093
listeners=PLAINTEXT://h x:9092,CONTROLLER://:9093
listeners=PLAINTEXT://:-1,CONTROLLER://:9093
listeners=PLAINTEXT://:65536,CONTROLLER://:9093
listeners=PLAINTEXT://:x,CONTROLLER://:9093
listeners=PLAINTEXT,CONTROLLER://:9093
listeners=://:1,CONTROLLER://:9093
listeners=
listeners=PLAINTEXT://[::1]:9092,CONTROLLER://[fe80::1%eth0]:9093
listeners=PLAINTEXT://::1:9092,CONTROLLER://:9093
listeners=INTERNAL://h:9092,CONTROLLER://:9093|listener.security.protocol.map=INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT
listeners=INTERNAL://h:9092,CONTROLLER://:9093|listener.security.protocol.map=INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT|inter.broker.listener.name=INTERNAL
listeners=INTERNAL://h:9092,CONTROLLER://:9093|listener.security.protocol.map=INTERNAL:PLAINTEXT|inter.broker.listener.name=INTERNAL
listeners=INTERNAL://h:9092,CONTROLLER://:9093|listener.security.protocol.map=INTERNAL:PLAINTEXTS,CONTROLLER:PLAINTEXT|inter.broker.listener.name=INTERNAL
inter.broker.listener.name=CONTROLLER
inter.broker.listener.name=PLAINTEXT
inter.broker.listener.name=plaintext
inter.broker.listener.name=NONE
inter.broker.listener.name=PLAINTEXT|security.inter.broker.protocol=PLAINTEXT
security.inter.broker.protocol=SSL
advertised.listeners=
advertised.listeners=PLAINTEXT://:9092
advertised.listeners=PLAINTEXT://a:1,PLAINTEXT://b:2
controller.quorum.voters=2@h:9093
controller.quorum.voters=1@h:9093,1@h:9094
controller.quorum.voters=1@h:9093,2@h:9094
controller.quorum.voters=h:9093
controller.quorum.voters=1@h
controller.quorum.voters=1@h:99999
controller.quorum.voters=
controller.quorum.voters=1@[::1]:9093
controller.quorum.voters=|controller.quorum.bootstrap.servers=h:9093
controller.quorum.voters=|controller.quorum.bootstrap.servers=h
controller.quorum.bootstrap.servers=h:9093
process.roles=broker
process.roles=controller
process.roles=controller|listeners=CONTROLLER://:9093
process.roles=broker|controller.quorum.voters=2@h:9093|listeners=PLAINTEXT://:9092
process.roles=broker|controller.quorum.voters=2@h:9093
process.roles=
process.roles=broker,broker
process.roles=zookeeper
controller.listener.names=
controller.listener.names=NONE
controller.listener.names=PLAINTEXT
controller.listener.names=PLAINTEXT,CONTROLLER
log.retention.ms=0
log.retention.ms=-1
log.retention.ms=-5
log.retention.hours=0
log.retention.minutes=-1
log.roll.ms=0
log.roll.hours=0
log.roll.jitter.ms=-1
log.dirs=
log.dirs=/a,,/b
log.dirs=/a,/a
log.dir=/a
log.dir=
log.cleaner.threads=0
log.cleaner.threads=200
log.cleaner.dedupe.buffer.size=1048576
log.cleaner.dedupe.buffer.size=1048577
replica.fetch.wait.max.ms=40000
replica.fetch.wait.max.ms=30000
replica.fetch.wait.max.ms=30001
replica.lag.time.max.ms=400
replica.socket.timeout.ms=400
connections.max.idle.ms=50
connections.max.idle.ms=100
connections.max.idle.ms=-1
offsets.topic.compression.codec=5
offsets.topic.compression.codec=3
offset.metadata.max.bytes=-1
broker.heartbeat.interval.ms=9000
broker.heartbeat.interval.ms=5000
broker.session.timeout.ms=1
group.consumer.session.timeout.ms=44000
group.consumer.session.timeout.ms=61000
group.consumer.heartbeat.interval.ms=4000
group.consumer.heartbeat.interval.ms=15000
group.consumer.heartbeat.interval.ms=16000
group.consumer.min.session.timeout.ms=5000
group.consumer.max.session.timeout.ms=44000
group.consumer.min.session.timeout.ms=5000|group.consumer.session.timeout.ms=5000
group.consumer.max.heartbeat.interval.ms=60000|group.consumer.heartbeat.interval.ms=50000
group.consumer.assignment.interval.ms=16000
group.consumer.assignors=
group.consumer.assignors=range
group.consumer.assignors=unknown
group.consumer.migration.policy=Upgrade
group.consumer.migration.policy=x
group.coordinator.rebalance.protocols=consumer
group.coordinator.rebalance.protocols=classic,foo
group.coordinator.append.linger.ms=-2
group.share.session.timeout.ms=44000
group.share.record.lock.duration.ms=14000
group.share.record.lock.duration.ms=61000
group.share.delivery.count.limit=11
group.share.max.delivery.count.limit=5|group.share.delivery.count.limit=6
group.share.partition.max.record.locks=5000
group.share.max.partition.max.record.locks=2000|group.share.partition.max.record.locks=3000
group.share.max.share.sessions=100|group.share.max.size=200
group.share.max.size=1001
group.share.heartbeat.interval.ms=50000
group.share.assignors=x
group.streams.session.timeout.ms=1
group.streams.num.standby.replicas=3
group.streams.heartbeat.interval.ms=50000|group.streams.max.heartbeat.interval.ms=60000
group.min.session.timeout.ms=10|group.max.session.timeout.ms=5
cordoned.log.dirs=/x
cordoned.log.dirs=/tmp/kafka-logs
cordoned.log.dirs=*
num.partitions=0
num.partitions=\t3
num.partitions=3.0
num.partitions=
num.partitions=+3
compression.type=none
compression.type=GZIP
auto.create.topics.enable=yes
auto.create.topics.enable=TRUE
log.cleaner.io.max.bytes.per.second=Infinity
log.cleaner.io.max.bytes.per.second=1e3
log.cleaner.io.max.bytes.per.second=0x1p3
log.cleaner.min.cleanable.ratio=1.5
max.connections.per.ip.overrides=127.0.0.1:5
max.connections.per.ip.overrides=127.0.0.1
max.connections.per.ip.overrides=127.0.0.1:x
max.connections.per.ip=0
max.connections.per.ip=0|max.connections.per.ip.overrides=127.0.0.1:100
log.segment.bytes=1048575
log.message.timestamp.before.max.ms=-1
message.max.bytes=-1
queued.max.requests=0
queued.max.request.bytes=5
queued.max.request.bytes=200000000
queued.max.request.bytes=0
queued.max.request.bytes=-5
socket.request.max.bytes=0
sasl.enabled.mechanisms=
metadata.log.segment.bytes=100
metadata.log.max.snapshot.interval.ms=0
metadata.max.idle.interval.ms=-1
early.start.listeners=CONTROLLER
early.start.listeners=NONE
listener.security.protocol.map=PLAINTEXT:PLAINTEXT
listener.security.protocol.map=PLAINTEXT
listener.security.protocol.map=
offsets.topic.replication.factor=40000
offsets.topic.replication.factor=0
remote.log.storage.system.enable=true
remote.log.manager.task.retry.jitter=0.6
ssl.client.auth=maybe
ssl.client.auth=required
log.local.retention.ms=-3
log.local.retention.ms=700000000
log.local.retention.bytes=5
unknown.key=5
listener.name.plaintext.max.connections=x
listener.name.plaintext.max.connections=5
metric.reporters=
authorizer.class.name=
log.flush.interval.ms=-1
log.flush.interval.messages=0
min.insync.replicas=0
default.replication.factor=0
unclean.leader.election.enable=1
fetch.max.bytes=1000
producer.id.expiration.ms=0
transaction.max.timeout.ms=0
telemetry.max.bytes=0
principal.builder.class=
listeners=SSL://h:1,CONTROLLER://:9093|inter.broker.listener.name=SSL
listeners=SSL://h:1,PLAINTEXT://h:2,CONTROLLER://:9093
listeners=SSL://h:1,PLAINTEXT://h:2,CONTROLLER://:9093|listener.security.protocol.map=SSL:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.mechanism.inter.broker.protocol=NONE
listeners=SASL_PLAINTEXT://h:1,CONTROLLER://:9093|listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT|inter.broker.listener.name=SASL_PLAINTEXT|sasl.mechanism.inter.broker.protocol=NONE
controller.quorum.election.timeout.ms=-1
log.index.size.max.bytes=3
log.dir.failure.timeout.ms=0
""".strip("\n").split("\n")
# Where kcli answers otherwise, and why.
DIFFERENT = {
    "listeners=PLAINTEXT://h:9092": "the controller of a node that is both is reached inside it",
    "controller.quorum.voters=": "likewise",
    "listeners=SASL_PLAINTEXT://h:1,CONTROLLER://:9093|listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,"
    "CONTROLLER:PLAINTEXT|inter.broker.listener.name=SASL_PLAINTEXT|sasl.mechanism.inter.broker.protocol=NONE": (
        "SASL refuses the start anyway"
    ),
    "listeners=PLAINTEXT://:-1,CONTROLLER://:9093": "Kafka finds out when it binds",
    "listeners=PLAINTEXT://:65536,CONTROLLER://:9093": "Kafka finds out when it binds",
    "controller.quorum.voters=1@h:9093,1@h:9094": "Kafka takes the last of the two",
    "log.cleaner.threads=0": "Kafka divides by it",
    "principal.builder.class=": "Kafka looks for the class",
    "log.cleaner.io.max.bytes.per.second=0x1p3": "a number in hexadecimal",
    "listener.name.plaintext.max.connections=x": "Kafka finds out when it listens",
}


def text_of(case: str) -> str:
    """The file of a case."""
    return BASE + case.replace("|", "\n") + "\n"


def ask_kafka(peer: Peer) -> dict[str, str]:
    """What Apache Kafka makes of each case: "ok", or the name of its exception."""
    ran = peer.run_java("ServerProperties", stdin="\0".join(map(text_of, CASES)).encode("latin-1"))
    lines = [line for line in ran.stdout.decode().splitlines() if not line.startswith("[")]
    assert len(lines) == len(CASES), ran.stderr
    return {case: line.partition(":")[0] for case, line in zip(CASES, lines)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        FIXTURE.write_text(json.dumps(ask_kafka(Peer(Path(folder))), indent=0) + "\n")
