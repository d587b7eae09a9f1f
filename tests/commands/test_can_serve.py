"""Protects `kcli verify --can-serve`: whoever moves a cluster learns before the move all that kcli refuses or ignores of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcli.commands.app import main
from kcli.server.config.server_config import ServerConfig
from kcli.server.config.serving import ClusterUse, Effect, not_served
from tests.conftest import FIXTURES

PLAIN = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
controller.quorum.voters=1@localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
log.retention.hours=100
metric.reporters=org.apache.kafka.common.metrics.JmxReporter
"""


def lines(tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str], *paths: str) -> tuple[int, list[str]]:
    (tmp_path / "server.properties").write_text(text)
    code = main(["verify", "--can-serve", str(tmp_path / "server.properties"), *paths])
    printed, errors = capfd.readouterr()
    assert errors == ""
    return code, printed.replace(f"{tmp_path}/", "").splitlines()


def test_what_kcli_serves_whole(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Threads of a JVM have no meaning, and cost nothing: exit code 0."""
    code, found = lines(tmp_path, PLAIN + "num.network.threads=8\n", capfd)
    assert code == 0
    assert found == [
        "no meaning: num.network.threads=8 has no meaning in kcli (server.properties, line 9)",
        "kcli serves all of it: 0 refused, 0 ignored, 1 without meaning (checked: the settings; name log directories "
        "for the metadata)",
    ]


@pytest.mark.parametrize(
    ("setting", "effect", "word"),
    [
        (
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "refused",
            "authorizer.class.name is set",
        ),
        ("remote.log.storage.system.enable=true", "refused", "remote.log.storage.system.enable is set"),
        ("listeners=PLAINTEXT://:9092,SSL://:9094,CONTROLLER://:9093", "refused", "SSL://:9094 is SSL"),
        ("create.topic.policy.class.name=com.example.Policy", "refused", "create.topic.policy.class.name is set"),
        ("metric.reporters=com.example.Reporter", "ignored", "kcli loads no Java classes"),
        ("quota.window.num=20", "ignored", "quota.window.num=20 has no effect"),
        ("inter.broker.protocol.version=3.0", "ignored", "inter.broker.protocol.version"),
        ("no.such.key=1", "ignored", "no.such.key is unknown"),
    ],
)
def test_a_setting_that_it_does_not_serve(
    setting: str, effect: str, word: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is named with its place and what becomes of it, and the exit code is 1."""
    key = setting.partition("=")[0]
    text = "".join(f"{line}\n" for line in PLAIN.splitlines() if not line.startswith(f"{key}="))
    code, found = lines(tmp_path, f"{text}{setting}\n", capfd)
    assert code == 1
    (line,) = [line for line in found[:-1] if word in line]
    assert line.startswith(f"{effect}: ") and "server.properties, line " in line
    assert ("does not serve it" if effect == "refused" else "serves it without what is ignored") in found[-1]


def test_the_metadata_of_a_directory(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """ACLs, credentials and quotas of a cluster of Kafka, and dynamic settings without meaning."""
    code, found = lines(tmp_path, PLAIN, capfd, str(FIXTURES / "kafka-logs" / "data"))
    assert code == 1
    assert [line.partition(",")[0] for line in found[:-1]] == [
        "ignored: access control entries: 1",
        "ignored: SCRAM credentials: 1",
        "ignored: quotas of clients: 1",
        "no meaning: log.cleaner.threads=2 has no meaning in kcli (broker default)",
    ]


def test_metadata_that_is_refused() -> None:
    """A feature of a later Kafka, tiered topics, a directory of ZooKeeper's time; what is served is not listed."""
    configs = [
        ("TOPIC", "tiered", "remote.storage.enable", "true"),
        ("TOPIC", "plain", "remote.storage.enable", "false"),
        ("TOPIC", "plain", "retention.ms", "1"),
        ("TOPIC", "later", "no.such.setting", "1"),
        ("GROUP", "g", "share.auto.offset.reset", "earliest"),
    ]
    use = ClusterUse({"metadata.version": 30, "group.version": 9, "new.version": 1}, configs, meta_versions={"/d": 0})
    found = not_served(ServerConfig({}), use)
    assert {(one.effect, one.of, one.name) for one in found} == {
        (Effect.REFUSED, "feature", "group.version"),
        (Effect.REFUSED, "feature", "new.version"),
        (Effect.REFUSED, "topic", "remote.storage.enable"),
        (Effect.REFUSED, "directory", "/d"),
        (Effect.IGNORED, "topic", "no.such.setting"),
    }


def test_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One object a line; the last one has the counts."""
    path = tmp_path / "server.properties"
    path.write_text(PLAIN + "quota.window.num=20\n")
    assert main(["verify", "--can-serve", str(path), "--output", "json"]) == 1
    first, last = map(json.loads, capfd.readouterr().out.splitlines())
    assert (first["effect"], first["of"], first["name"]) == ("ignored", "setting", "quota.window.num")
    assert last == {"type": "summary", "canServe": True, "refused": 0, "ignored": 1, "noMeaning": 0}


def test_what_cannot_be_checked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An invalid file, directories without metadata, and options of a repair: a sentence and exit code 2."""
    path = tmp_path / "server.properties"
    path.write_text(PLAIN + "num.partitions=many\n")
    assert main(["verify", "--can-serve", str(path)]) == 2
    assert "line 9" in capfd.readouterr().err
    path.write_text(PLAIN)
    assert main(["verify", "--can-serve", str(path), str(FIXTURES / "kafka-logs" / "data" / "compacted-0")]) == 2
    assert "no metadata of the cluster is there" in capfd.readouterr().err
    assert main(["verify", "--can-serve", str(path), "--repair"]) == 2
    assert "--can-serve reads" in capfd.readouterr().err
