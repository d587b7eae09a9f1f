"""Apache Kafka 4.3.1, and 4.4.0, judge the controller: it starts on what kcli formatted and wrote, and kcli on what Kafka
wrote; both kinds of quorum, both directions, nothing of the metadata lost.

    directory                       goes through
    ------------------------------  --------------------------------------------------------------------------------------
    formatted by kcli, dynamic      kcli (topics, configs) -> Kafka (describes them, makes one) -> kcli (has all)
    formatted by kcli, static       Kafka -> kcli -> Kafka
    formatted by Kafka, dynamic     kcli -> Kafka
    formatted for 4.0, static       kcli (makes it dynamic) -> Kafka -> kcli
    given, static, written by 4.3   kcli (an equal image; appends) -> Kafka -> kcli (equal again, but for what was appended)
    a snapshot of kcli              Kafka starts from it alone and writes one of its own: both hold the same image
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kcli.commands.app import main as kcli
from kcli.log.disk.os_disk import OsDisk
from kcli.protocol.apis import API_KEYS, UPDATE_FEATURES
from kcli.protocol.control_records import KRAFT_VOTERS
from kcli.server.raft.messages import SnapshotId
from kcli.server.raft.metadata_log import read_snapshot_file
from kcli.state.metadata_image import MetadataImage
from tests.oracle.brokers import TOOL_SECONDS, ask, copy_of_given, release_options, started_broker
from tests.oracle.peer import Peer, free_ports
from tests.server.controller.controllers import ControllerNode
from tests.server.controller.test_snapshots import begin_snapshot

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

CLUSTER_ID = "kcliKcliKcliKcliKcliKg"
SCRAM = ("-S", "SCRAM-SHA-256=[name=a,password=b]")
TOPICS_TOOL = "org.apache.kafka.tools.TopicCommand"
QUORUM_TOOL = "org.apache.kafka.tools.MetadataQuorumCommand"
CONFIGS_TOOL = "kafka.admin.ConfigCommand"
# What a start of any node changes: who leads, incarnations and epochs of nodes, when the snapshot was taken.
VOLATILE = ("_own_topics", "registration_offsets", "index", "leader_id", "snapshot_timestamp_ms", "controllers", "brokers")


def settings(home: Path, port: int, *more: str, static: bool = False) -> Path:
    """The server.properties of one node with its data in home/data -> its path."""
    quorum = "voters=1@127.0.0.1" if static else "bootstrap.servers=127.0.0.1"
    lines = [
        "process.roles=broker,controller",
        "node.id=1",
        f"controller.quorum.{quorum}:{port + 1}",
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names=CONTROLLER",
        f"log.dirs={home / 'data'}",
        "offsets.topic.replication.factor=1",
        "broker.session.timeout.ms=3000",
        *more,
    ]
    path = home / "server.properties"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def our_controller(home: Path, port: int, *overrides: str, static: bool = False) -> ControllerNode:
    """kcli's controller on home/data, with a broker that follows it."""
    voters = [f"controller.quorum.voters=1@127.0.0.1:{port + 1}"] if static else []
    node = ControllerNode(home / "data", *voters, *overrides, now_ms=time.time_ns() // 1_000_000, port=port)
    return node.start()


def state_of(image: MetadataImage) -> dict[str, Any]:
    return {name: value for name, value in vars(image).items() if name not in VOLATILE} | {
        "scram_credentials": {
            key: (value.salt, value.stored_key, value.server_key, value.iterations)
            for key, value in image.scram_credentials.items()
        }
    }


@contextmanager
def kafka(peer: Peer, home: Path, port: int) -> Iterator[str]:
    """Kafka on home/server.properties -> its address."""
    with started_broker(peer, home, port) as address:
        yield address


def described(peer: Peer, address: str) -> dict[str, int]:
    """The topics that Kafka describes, with their numbers of partitions; every partition has its leader."""
    text = ask(str(peer.tools.script), address, TOPICS_TOOL, "--describe")
    assert "Leader: none" not in text
    return {name: int(count) for name, count in re.findall(r"Topic: (\S+)\s+TopicId: \S+\s+PartitionCount: (\d+)", text)}


def dumps_without_a_fault(peer: Peer, home: Path) -> None:
    """Kafka's dump tool decodes every record of the log and of the snapshots."""
    metadata = home / "data" / "__cluster_metadata-0"
    files = ",".join(str(path) for path in sorted([*metadata.glob("*.log"), *metadata.glob("*.checkpoint")]))
    dumped = peer.dump_log(["--cluster-metadata-decoder", "--files", files])
    text = dumped.stdout.decode()
    assert dumped.exit_code == 0
    assert "Error at" not in text
    assert "isvalid: false" not in text
    for line in text.splitlines():
        if " payload: " in line:
            json.loads(line.partition(" payload: ")[2])


def test_a_dynamic_quorum_goes_both_ways(each_kafka: Peer, tmp_path: Path) -> None:
    port = free_ports()
    path = settings(tmp_path, port)
    assert kcli(["format", "-c", str(path), "-t", CLUSTER_ID, "--standalone", *SCRAM, *release_options(each_kafka)]) == 0
    node = our_controller(tmp_path, port)
    node.register()
    node.beat()
    assert node.create_topic("orders", 3, retention_ms="1234").error_code == 0
    assert node.create_topic("more", 1).error_code == 0
    ours = state_of(node.core.state.image)
    node.beat(want_fence=True)
    node.stop()
    dumps_without_a_fault(each_kafka, tmp_path)
    with kafka(each_kafka, tmp_path, port) as address:
        assert described(each_kafka, address) == {"orders": 3, "more": 1}
        status = ask(str(each_kafka.tools.script), address, QUORUM_TOOL, "describe", "--status")
        assert f"CONTROLLER://127.0.0.1:{port + 1}" in status
        told = ask(
            str(each_kafka.tools.script),
            address,
            CONFIGS_TOOL,
            "--describe",
            "--entity-type",
            "topics",
            "--entity-name",
            "orders",
        )
        assert "retention.ms=1234" in told
        ask(str(each_kafka.tools.script), address, TOPICS_TOOL, "--create", "--topic", "by-kafka", "--partitions", "2")
    node = our_controller(tmp_path, port)
    image = node.core.state.image
    assert set(image.topic_ids) == {"orders", "more", "by-kafka"}
    theirs = state_of(image)
    for name in ("features", "configs", "scram_credentials", "kraft_version", "voters"):
        assert theirs[name] == ours[name]
    assert node.core.raft.epoch == 3
    node.stop()


def test_a_static_quorum_goes_both_ways(each_kafka: Peer, tmp_path: Path) -> None:
    port = free_ports()
    path = settings(tmp_path, port, static=True)
    assert kcli(["format", "-c", str(path), "-t", CLUSTER_ID, *release_options(each_kafka)]) == 0
    with kafka(each_kafka, tmp_path, port) as address:
        ask(str(each_kafka.tools.script), address, TOPICS_TOOL, "--create", "--topic", "by-kafka", "--partitions", "2")
    node = our_controller(tmp_path, port, static=True)
    assert (node.core.raft.core.history.kraft_version, node.core.raft.epoch) == (0, 2)
    node.register(1, 2)
    node.beat()
    assert node.create_topic("by-kcli", 2).error_code == 0
    node.beat(want_fence=True)
    node.stop()
    with kafka(each_kafka, tmp_path, port) as address:
        assert described(each_kafka, address) == {"by-kafka": 2, "by-kcli": 2}


def test_a_static_quorum_that_became_dynamic_is_one_to_kafka(each_kafka: Peer, tmp_path: Path) -> None:
    """kcli raises kraft.version with all that came since 4.0; Kafka then names the voter by its directory."""
    port = free_ports()
    path = settings(tmp_path, port, static=True)
    command = [str(each_kafka.script), "java", "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(path)]
    subprocess.run([*command, "-r", "4.0"], check=True, timeout=TOOL_SECONDS, stdout=subprocess.DEVNULL)
    node = our_controller(tmp_path, port, static=True)
    update = API_KEYS[UPDATE_FEATURES].request
    levels = {"metadata.version": 30, "kraft.version": 1, "share.version": 1}
    asked = [
        update.classes["FeatureUpdateKey"](feature=name, max_version_level=level, upgrade_type=1)
        for name, level in levels.items()
    ]
    assert node.ask(UPDATE_FEATURES, update.new(feature_updates=asked)).error_code == 0
    node.stop()
    dumps_without_a_fault(each_kafka, tmp_path)
    with kafka(each_kafka, tmp_path, port) as address:
        status = ask(str(each_kafka.tools.script), address, QUORUM_TOOL, "describe", "--status")
        assert f'"directoryId": "{node.meta.directory_id}", "endpoints": ["CONTROLLER://127.0.0.1:{port + 1}"]' in status
        features = ask(str(each_kafka.tools.script), address, "org.apache.kafka.tools.FeatureCommand", "describe")
        assert re.search(r"kraft.version.*FinalizedVersionLevel: 1\b", features)
    node = our_controller(tmp_path, port, static=True)
    assert (node.core.raft.core.history.kraft_version, node.core.raft.epoch) == (1, 3)
    node.stop()


def test_what_kafka_formatted_opens(each_kafka: Peer, tmp_path: Path) -> None:
    port = free_ports()
    path = settings(tmp_path, port)
    command = [str(each_kafka.script), "java", "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(path)]
    subprocess.run([*command, "--standalone"], check=True, timeout=TOOL_SECONDS, stdout=subprocess.DEVNULL)
    node = our_controller(tmp_path, port)
    node.register()
    node.beat()
    assert node.create_topic("orders").error_code == 0
    node.beat(want_fence=True)
    node.stop()
    with kafka(each_kafka, tmp_path, port) as address:
        assert described(each_kafka, address) == {"orders": 1}


def test_a_given_directory_loses_nothing(each_kafka: Peer, shared: Path, tmp_path: Path) -> None:
    """A snapshot and a log of Kafka's, with ACLs, SCRAM credentials, quotas: the same through kcli and Kafka and kcli."""
    port = free_ports()
    copy_of_given(shared / "kafka-logs" / "data", tmp_path / "data")
    settings(tmp_path, port, "log.retention.ms=-1", "log.cleaner.enable=false", static=True)
    node = our_controller(tmp_path, port, static=True)
    given = state_of(node.core.state.image)
    assert given["acls"] or given["client_quotas"] or given["scram_credentials"]
    node.register(1, 2)
    node.beat()
    assert node.create_topic("by-kcli").error_code == 0
    raft = node.core.raft
    begin_snapshot(node, SnapshotId(raft.next_offset, raft.epoch))
    node.run()
    node.beat(want_fence=True)
    node.stop()
    dumps_without_a_fault(each_kafka, tmp_path)
    with kafka(each_kafka, tmp_path, port) as address:
        assert "by-kcli" in described(each_kafka, address)
    node = our_controller(tmp_path, port, static=True)
    found = state_of(node.core.state.image)
    for name in found.keys() - {"topics", "topic_ids"}:
        assert found[name] == given[name], name
    assert set(found["topic_ids"]) == {*given["topic_ids"], "by-kcli"}
    for topic_id, topic in given["topics"].items():
        assert [part.replicas for part in found["topics"][topic_id].partitions.values()] == [
            part.replicas for part in topic.partitions.values()
        ]
    node.stop()


def image_of(path: Path) -> MetadataImage:
    """The image that a snapshot holds."""
    image = MetadataImage()
    for batch in read_snapshot_file(OsDisk(), str(path)):
        for control in batch.control_records:
            if control.type_id == KRAFT_VOTERS:
                image.apply_control(control)
        for record in batch.records:
            image.apply(record)
    return image


def test_kafka_starts_from_our_snapshot_and_we_from_its(each_kafka: Peer, tmp_path: Path) -> None:
    """The log is gone, the snapshot tells all; the snapshot that Kafka then writes holds what ours did."""
    port = free_ports()
    path = settings(tmp_path, port, "metadata.log.max.record.bytes.between.snapshots=1", "metadata.max.idle.interval.ms=50")
    assert kcli(["format", "-c", str(path), "-t", CLUSTER_ID, "--standalone", *release_options(each_kafka)]) == 0
    node = our_controller(tmp_path, port)
    node.register()
    node.beat()
    for index in range(30):
        assert node.create_topic(f"topic-{index}", 2, retention_ms=str(index)).error_code == 0
    node.beat(want_fence=True)
    raft = node.core.raft
    snapshot = SnapshotId(raft.next_offset, raft.epoch)
    begin_snapshot(node, snapshot)
    node.run()
    node.stop()
    metadata = tmp_path / "data" / "__cluster_metadata-0"
    for leftover in [*metadata.glob("*.log"), *metadata.glob("*index"), *metadata.glob("*.snapshot")]:
        leftover.unlink()
    (metadata / "leader-epoch-checkpoint").unlink()
    with kafka(each_kafka, tmp_path, port) as address:
        assert described(each_kafka, address) == {f"topic-{index}": 2 for index in range(30)}
    written = sorted(metadata.glob("*.checkpoint"))
    assert len(written) > 1, "Kafka writes a snapshot of its own"
    ours, theirs = state_of(image_of(Path(raft.log.snapshot_path(snapshot)))), state_of(image_of(written[-1]))
    for name in ours.keys() - {"topics"}:
        assert theirs[name] == ours[name], name
    assert {topic.name: len(topic.partitions) for topic in theirs["topics"].values()} == {
        topic.name: len(topic.partitions) for topic in ours["topics"].values()
    }
    node = our_controller(tmp_path, port)
    assert set(node.core.state.image.topic_ids) == set(ours["topic_ids"])
    node.stop()
