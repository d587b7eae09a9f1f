"""What Apache Kafka 4.4.0 answers where it differs from 4.3.1, level by level of metadata.version: questions and the fixture.

`ask_all` puts the same questions to any broker that was formatted with the features of 4.3 and is its own controller. The
fixture holds Kafka's answers, and the metadata log that it then has; `python -m tests.oracle.kafka_4_4` writes it anew.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from kcli.protocol import apis
from kcli.protocol.message import Message
from tests.conftest import FIXTURES
from tests.oracle.brokers import DYNAMIC_QUORUM, NODE, new_broker
from tests.oracle.peer import Peer
from tests.oracle.raw_requests import RawClient

FIXTURE = FIXTURES / "kafka-4.4"
ANSWERS = FIXTURE / "answers.json"
LEVELS = (30, 31, 32, 33)
NO_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
CLIENT = {"client_software_name": "test", "client_software_version": "1"}
# One node, whose quorum is dynamic; snapshots of its metadata are only made when it is formatted.
PROPERTIES = (
    NODE
    + DYNAMIC_QUORUM
    + """
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""
)


def controller_of(broker: str) -> str:
    """The controller's address of a node, whose port is the next one."""
    host, _, port = broker.rpartition(":")
    return f"{host}:{int(port) + 1}"


def api_versions(client: RawClient) -> dict[str, Any]:
    """The ranges of the APIs by key, and the features."""
    answer = client.ask(apis.API_VERSIONS, 5, **CLIENT)
    return {
        "apis": {str(one.api_key): [one.min_version, one.max_version] for one in answer.api_keys},
        "supported": {one.name: [one.min_version, one.max_version] for one in answer.supported_features},
        "finalized": {one.name: one.max_version_level for one in answer.finalized_features},
    }


def update(client: RawClient, name: str, level: int, upgrade_type: int, *, validate_only: bool = False) -> int:
    """The error code of an UpdateFeatures."""
    asked = client.struct(
        apis.UPDATE_FEATURES, "FeatureUpdateKey", feature=name, max_version_level=level, upgrade_type=upgrade_type
    )
    answer = client.ask(apis.UPDATE_FEATURES, 2, timeout_ms=30_000, feature_updates=[asked], validate_only=validate_only)
    return int(answer.error_code)


def raise_features(address: str) -> None:
    """Give a new cluster the features of 4.4."""
    client = RawClient(address)
    for name, level in (("metadata.version", LEVELS[-1]), ("share.version", 2)):
        assert update(client, name, level, UPGRADE) == 0
    finalized(client, LEVELS[-1])
    client.close()


def misrouted(client: RawClient, cluster_id: str) -> dict[str, list[int]]:
    """ApiVersions for this and other nodes and clusters: the error codes, and how many APIs the answers have."""
    found = {}
    for cluster in (None, cluster_id, NO_CLUSTER):
        for node in (-1, 1, 2):
            answer = client.ask(apis.API_VERSIONS, 5, **CLIENT, cluster_id=cluster, node_id=node)
            name = "none" if cluster is None else "own" if cluster == cluster_id else "other"
            found[f"{name} {node}"] = [answer.error_code, int(bool(answer.api_keys)), int(bool(answer.supported_features))]
    return found


def unregister(client: RawClient) -> dict[str, int]:
    """The error codes of UnregisterController for the active controller, and for one that is not registered."""
    ids = {"itself": 1, "unknown": 9999}
    return {name: int(client.ask(94, 0, controller_id=controller_id).error_code) for name, controller_id in ids.items()}


def features(client: RawClient, level: int) -> dict[str, int]:
    """Which changes of features are possible at a level, without making them."""
    tried = {f"{target} {kind}": (target, kind) for target in range(29, 35) for kind in (1, 2, 3)}
    found = {
        f"metadata.version {name}": update(client, "metadata.version", *change, validate_only=True)
        for name, change in tried.items()
        if change[0] != level
    }
    for target in (0, 1, 2, 3):
        for kind in (UPGRADE, SAFE_DOWNGRADE):
            found[f"share.version {target} {kind}"] = update(client, "share.version", target, kind, validate_only=True)
    return found


def offsets_and_groups(client: RawClient) -> dict[str, Any]:
    """Versions of group APIs that 4.4 added: topics by id in TxnOffsetCommit, messages in DeleteGroups."""
    topics = [client.struct(apis.CREATE_TOPICS, "CreatableTopic", name="t", num_partitions=1, replication_factor=1)]
    created = client.ask(apis.CREATE_TOPICS, 7, topics=topics, timeout_ms=30_000)
    for kind, key in ((0, "g"), (1, "x")):
        while client.ask(apis.FIND_COORDINATOR, 6, key_type=kind, coordinator_keys=[key]).coordinators[0].error_code:
            pass
    fields = {"transactional_id": "x", "transaction_timeout_ms": 60_000}
    while (producer := client.ask(apis.INIT_PRODUCER_ID, 5, **fields)).error_code:
        pass

    def commit(topic_id: bytes, partition: int, **more: Any) -> list[Any]:
        key = apis.TXN_OFFSET_COMMIT
        part = client.struct(key, "TxnOffsetCommitRequestPartition", partition_index=partition, committed_offset=5)
        part.committed_metadata = ""
        topic = client.struct(key, "TxnOffsetCommitRequestTopic", topic_id=topic_id, partitions=[part])
        stated = {"transactional_id": "x", "group_id": "g", "producer_id": producer.producer_id}
        answer = client.ask(key, 6, topics=[topic], producer_epoch=producer.producer_epoch, **{**stated, **more})
        (topic,) = answer.topics
        return [topic.topic_id == topic_id, *([one.partition_index, one.error_code] for one in topic.partitions)]

    topic_id = created.topics[0].topic_id
    commits = {
        "an unknown topic": commit(b"none has this id", 0),
        "an unknown partition": commit(topic_id, 7),
        "without a topic": commit(bytes(16), 0),
        "an unknown member": commit(topic_id, 0, member_id="nobody", generation_id_or_member_epoch=3),
        "an unknown group": commit(topic_id, 0, group_id="none", member_id="nobody", generation_id_or_member_epoch=3),
        "plain": commit(topic_id, 0),
    }
    transaction = {"transactional_id": "x", "producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    ended = client.ask(apis.END_TXN, 5, committed=True, **transaction)
    deleted = client.ask(apis.DELETE_GROUPS, 3, groups_names=["none", ""])
    results = {one.group_id: [one.error_code, one.error_message is None] for one in deleted.results}
    return {"TxnOffsetCommit": commits, "EndTxn": ended.error_code, "DeleteGroups": results}


def finalized(client: RawClient, level: int) -> Message:
    """ApiVersions when the broker has a level of metadata.version."""
    while True:
        answer = client.ask(apis.API_VERSIONS, 5, **CLIENT)
        if {one.name: one.max_version_level for one in answer.finalized_features}["metadata.version"] == level:
            return answer


def ask_all(address: str) -> dict[str, Any]:
    """The answers to all questions; the metadata.version of the broker is raised from 30 to 33 on the way."""
    broker, controller = RawClient(address), RawClient(controller_of(address))
    cluster_id = broker.ask(apis.DESCRIBE_CLUSTER, 1).cluster_id
    found: dict[str, Any] = {}
    for level in LEVELS:
        if level > LEVELS[0]:
            assert update(broker, "metadata.version", level, UPGRADE) == 0
        finalized(broker, level)
        found[str(level)] = {
            "broker": api_versions(broker),
            "controller": api_versions(controller),
            "unregister": unregister(broker),
            "features": features(broker, level),
        }
    found["misrouted"] = {"broker": misrouted(broker, cluster_id), "controller": misrouted(controller, cluster_id)}
    found["groups"] = offsets_and_groups(broker)
    broker.close()
    controller.close()
    return found


def write_fixture() -> None:
    """Ask Apache Kafka 4.4.0 anew, and keep its answers and the metadata log."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        peer = Peer(home, "4.4.0", Peer(home))
        (home / "asked").mkdir()
        with new_broker(peer, home / "asked", "-r", "4.3", properties=PROPERTIES) as address:
            answers = ask_all(address)
        (home / "made").mkdir()
        with new_broker(peer, home / "made", properties=PROPERTIES) as address:
            client = RawClient(address)
            topics = [client.struct(apis.CREATE_TOPICS, "CreatableTopic", name="t", num_partitions=1, replication_factor=1)]
            client.ask(apis.CREATE_TOPICS, 7, topics=topics, timeout_ms=30_000)
            client.close()
        shutil.rmtree(FIXTURE, ignore_errors=True)
        shutil.copytree(home / "made" / "data", FIXTURE / "data")
        for path in (FIXTURE / "data" / "__cluster_metadata-0").iterdir():
            path.chmod(0o644)
            # Kafka leaves the indexes of the metadata log as large as it reserves them, 10 MB of zeros.
            if path.suffix in (".index", ".timeindex"):
                assert not path.read_bytes().strip(b"\0")
                path.write_bytes(b"")
    ANSWERS.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write_fixture()
