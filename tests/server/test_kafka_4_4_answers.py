"""Protects directories of Apache Kafka 4.4.0, and that kcli answers as it does at each level of metadata.version.

The answers and the directory are recorded (tests/oracle/kafka_4_4.py). APIs that kcli does not serve are left out, and the APIs
that Kafka offers only with a plugin for client telemetry.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kcli.commands.app import main as kcli
from kcli.protocol import apis
from tests.oracle.brokers import KcliBroker
from tests.oracle.kafka_4_4 import ANSWERS, FIXTURE, LEVELS, PROPERTIES, ask_all
from tests.server.apis.asking import ask
from tests.server.whole_node import WholeNode

TELEMETRY = (apis.GET_TELEMETRY_SUBSCRIPTIONS, apis.PUSH_TELEMETRY)


@pytest.fixture(scope="module")
def kafkas() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ANSWERS.read_text())
    return found


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answers of `kcli serve` on a directory that begins with the features of 4.3."""
    home = tmp_path_factory.mktemp("kcli")
    broker = KcliBroker(home, properties=PROPERTIES)
    assert kcli(["format", "--standalone", "-c", str(home / "server.properties")]) == 0
    with broker:
        return ask_all(broker.bootstrap)


@pytest.mark.ci
@pytest.mark.parametrize("listener", ["broker", "controller"])
@pytest.mark.parametrize("level", LEVELS)
def test_the_versions_of_each_api(ours: dict[str, Any], kafkas: dict[str, Any], level: int, listener: str) -> None:
    mine, theirs = (found[str(level)][listener] for found in (ours, kafkas))
    assert mine["finalized"] == theirs["finalized"]
    assert mine["supported"] == theirs["supported"]
    served = {key: versions for key, versions in mine["apis"].items() if int(key) not in TELEMETRY}
    assert served == {key: theirs["apis"].get(key) for key in served}


@pytest.mark.ci
@pytest.mark.parametrize("level", LEVELS)
def test_the_changes_of_features(ours: dict[str, Any], kafkas: dict[str, Any], level: int) -> None:
    for what in ("features", "unregister"):
        assert ours[str(level)][what] == kafkas[str(level)][what]


@pytest.mark.ci
def test_the_other_answers(ours: dict[str, Any], kafkas: dict[str, Any]) -> None:
    for what in ("misrouted", "groups"):
        assert ours[what] == kafkas[what]


def test_a_directory_of_kafka_4_4_is_sound(capfd: pytest.CaptureFixture[str]) -> None:
    """Its first records are in the metadata log, and there is no bootstrap.checkpoint."""
    data = FIXTURE / "data"
    assert not (data / "bootstrap.checkpoint").exists()
    assert kcli(["verify", str(data)]) == 0
    capfd.readouterr()
    assert kcli(["describe", "--output", "json", str(data)]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    (cluster,) = (row for row in rows if row["type"] == "cluster")
    levels = {feature["name"]: (feature["level"], feature["version"]) for feature in cluster["features"]}
    assert (levels["metadata.version"], levels["share.version"]) == ((33, "4.4-IV2"), (2, None))
    assert kcli(["dump-log", "--output", "kafka", "--cluster-metadata-decoder", "--files", str(log_of(data))]) == 0
    assert '"name":"metadata.version","featureLevel":33' in capfd.readouterr().out


def log_of(data: Path) -> Path:
    return data / "__cluster_metadata-0" / f"{0:020}.log"


def test_a_node_serves_a_directory_of_kafka_4_4(tmp_path: Path) -> None:
    """It keeps the features and adds records of its own."""
    shutil.copytree(FIXTURE / "data", tmp_path / "data")
    node = WholeNode(tmp_path / "data")
    features = node.broker.metadata.image.features
    assert (features["metadata.version"], features["share.version"]) == (33, 2)
    assert [topic.name for topic in ask(node, apis.METADATA, 12, topics=None).topics] == ["t"]
    node.create_topic("more")
    assert ask(node, apis.UNREGISTER_CONTROLLER, 0, controller_id=2).error_code == 136
