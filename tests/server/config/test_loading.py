"""Protects what a node starts with: that every key of server.properties means here what it means to Kafka.

And that whatever is wrong with a file is said in one sentence that names the key, the value, the place and what is valid.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.server.config import ConfigError, ServerConfig, load_config
from kcli.server.config.definitions import BROKER_KEYS
from kcli.server.config.listeners import Listener
from kcli.server.config.loading import configure
from kcli.server.config.server_config import ConfigSource
from kcli.server.config.values import default_value


def of_text(text: str, *overrides: str, strict: bool = False, serving: bool = True) -> ServerConfig:
    return configure(text.encode("latin-1"), "server.properties", overrides, strict=strict, serving=serving)


def faults_of(text: str, *overrides: str, strict: bool = False) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        of_text(text, *overrides, strict=strict)
    return list(caught.value.faults)


def test_nothing_is_needed() -> None:
    config = load_config(None)
    assert config.node_id == 1 and config.is_broker and config.is_controller
    assert config.listeners == config.advertised_listeners == [Listener("PLAINTEXT", "127.0.0.1", 9092)]
    assert config.controller_listeners == []
    assert config.log_dirs == ["./kcli-data"] and config.metadata_log_dir == "./kcli-data"
    assert config["offsets.topic.replication.factor"] == 1
    assert config.warnings == []


def test_what_is_built_in_is_valid() -> None:
    config = load_config(None, ["num.partitions=1"])  # which checks all of it
    assert config.warnings == [] and config["listeners"] == load_config(None)["listeners"]


def test_every_key_has_a_value_of_its_type() -> None:
    config = load_config(None)
    types = {"INT": int, "LONG": int, "SHORT": int, "DOUBLE": float, "BOOLEAN": bool, "LIST": list}
    for name in BROKER_KEYS:
        value = config[name]
        assert value is None or isinstance(value, types.get(BROKER_KEYS[name].type, str)), name
    with pytest.raises(KeyError):
        config["num.partition"]


def test_a_file_has_kafkas_defaults() -> None:
    config = of_text("node.id=7\nprocess.roles=broker,controller\ncontroller.listener.names=CONTROLLER\n")
    assert config.node_id == 7 and config.get_int("broker.id") == 7
    assert config.log_dirs == ["/tmp/kafka-logs"]
    assert config["offsets.topic.replication.factor"] == 3
    assert config.listeners == [Listener("PLAINTEXT", "", 9092)]
    assert config.source("node.id") == ConfigSource.FILE and config.source("num.partitions") == ConfigSource.DEFAULT
    assert config.warnings == []


def test_an_override_stands_over_the_file() -> None:
    config = of_text("num.partitions=3\n", "num.partitions=5")
    assert config["num.partitions"] == 5 and config.source("num.partitions") == ConfigSource.OVERRIDE
    assert load_config(None, ["log.dir=/data"]).log_dirs == ["/data"]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("log.retention.hours=2", "log.retention.ms", 7_200_000),
        ("log.retention.hours=2\nlog.retention.minutes=3", "log.retention.ms", 180_000),
        ("log.retention.minutes=3\nlog.retention.ms=5", "log.retention.ms", 5),
        ("log.retention.hours=-1", "log.retention.ms", -1),
        ("log.roll.hours=1", "log.roll.ms", 3_600_000),
        ("log.roll.jitter.hours=1", "log.roll.jitter.ms", 3_600_000),
        ("log.flush.scheduler.interval.ms=9", "log.flush.interval.ms", 9),
        ("broker.id=4", "node.id", 4),
        ("log.dir=/a,/b", "log.dirs", ["/a", "/b"]),
        ("log.dir=/a\nlog.dirs=/b", "log.dirs", ["/b"]),
        ("log.dirs=/a , /b", "metadata.log.dir", "/a"),
        ("log.dirs=/a,/b", "num.replica.alter.log.dirs.threads", 2),
        ("metadata.log.dir=/m", "metadata.log.dir", "/m"),
        ("auto.create.topics.enable=FALSE", "auto.create.topics.enable", False),
        ("log.cleaner.min.cleanable.ratio=.25", "log.cleaner.min.cleanable.ratio", 0.25),
        ("inter.broker.listener.name=plaintext", "inter.broker.listener.name", "plaintext"),
    ],
)
def test_keys_follow_others(text: str, key: str, value: object) -> None:
    assert of_text(text)[key] == value


def test_listeners_are_parsed() -> None:
    config = of_text(
        "listeners=PLAINTEXT://[::1]:0,INTERNAL://:9093,controller://localhost:9094\n"
        "advertised.listeners=PLAINTEXT://kafka.example.org:443,INTERNAL://:9093\n"
        "controller.listener.names=CONTROLLER\nlistener.security.protocol.map=PLAINTEXT:PLAINTEXT,internal:plaintext,CONTROLLER:PLAINTEXT\n"
    )
    assert config.listeners == [
        Listener("PLAINTEXT", "::1", 0),
        Listener("INTERNAL", "", 9093),
        Listener("CONTROLLER", "localhost", 9094),
    ]
    assert str(config.listeners[0]) == "PLAINTEXT://[::1]:0"
    assert config.controller_listeners == [Listener("CONTROLLER", "localhost", 9094)]
    assert config.advertised_listeners == [Listener("PLAINTEXT", "kafka.example.org", 443), Listener("INTERNAL", "", 9093)]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "a=1\nnum.partitions=0",
            "server.properties, line 2: num.partitions=0 is not valid: it must be a 32-bit integer of at least 1",
        ),
        ("num.partitions=many", "num.partitions=many is not valid"),
        ("compression.type=lzo", "it must be one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("log.cleanup.policy=keep", "it must be a list of compact, delete"),
        ("listeners=nonsense", "'nonsense' is not valid: it must be NAME://host:port"),
        ("listeners=FOO://:1", "add FOO:PLAINTEXT"),
        ("listeners=PLAINTEXT://:99999", "it must be from 0 (any free port) to 65535"),
        ("listeners=PLAINTEXT://0.0.0.0:9092", "clients cannot connect to PLAINTEXT://0.0.0.0:9092"),
        ("listeners=PLAINTEXT://:9092,PLAINTEXT://:9093", "have the same name"),
        ("listeners=SSL://:9092", "SSL://:9092 is SSL, which is not served yet"),
        ("authorizer.class.name=org.Foo", "authorizer.class.name is set, but its feature is not served yet"),
        ("create.topic.policy.class.name=org.Foo", "create.topic.policy.class.name is set"),
        ("sasl.enabled.mechanisms=PLAIN", "sasl.enabled.mechanisms is set"),
        ("ssl.client.auth=required", "ssl.client.auth is set"),
        ("listener.name.plaintext.scram-sha-256.sasl.jaas.config=secret", "is set"),
        ("node.id=1\nbroker.id=2", "differ; set node.id only"),
        ("zookeeper.connect=localhost:2181\nbroker.id=0", "ZooKeeper was removed in Kafka 4.0"),
        ("controller.quorum.voters=2@localhost:9093", "node 1 is a controller but not one of the voters 2"),
        ("controller.quorum.voters=localhost:9093", "it must be a list of id@host:port with different ids"),
        ("log.retention.ms=0", "it must be 1 or more, or -1 for no limit"),
        ("cordoned.log.dirs=/x", "/x is not in log.dirs"),
        ("group.streams.assignors=sticky,org.Foo", "org.Foo is not known"),
        ("group.streams.rack.aware.assignment.tags=a, b,a", "must not contain a tag twice"),
        ("num.partitions=\\u00g1", "line 1: \\u is followed by fewer"),
    ],
)
def test_a_fault_is_one_clear_sentence(text: str, fault: str) -> None:
    faults = faults_of(text)
    assert len(faults) == 1 and fault in faults[0], faults


def test_every_fault_is_told_at_once() -> None:
    assert len(faults_of("num.partitions=0\nnum.io.threads=x\nlog.dirs=\n")) == 3


def test_a_secret_is_never_shown() -> None:
    assert not any("hunter2" in fault for fault in faults_of("sasl.jaas.config=hunter2\nssl.key.password=hunter2"))


def test_an_unknown_key_gets_the_nearest_name() -> None:
    config = of_text("num.partition=3\n")
    assert config.warnings[0] == "server.properties, line 1: num.partition is unknown; did you mean num.partitions?"
    assert faults_of("num.partition=3", strict=True) == [config.warnings[0]]
    assert "did you mean num.partitions?" in faults_of("", "num.partition=3")[0]
    assert "it must be key=value" in faults_of("", "num.partitions")[0]


def test_names_that_kafka_hands_on_are_known() -> None:
    text = "rlmm.config.x=1\nrsm.config.y=2\nsuper.users=User:a\nmetrics.jmx.include=.*\n"
    base = "node.id=1\nprocess.roles=broker,controller\ncontroller.listener.names=CONTROLLER\n"
    assert of_text(base + text, strict=True).warnings == []


def test_keys_without_meaning_are_named_in_one_line() -> None:
    warnings = of_text("num.io.threads=4\nbackground.threads=3\nalter.log.dirs.replication.quota.window.num=4").warnings
    assert any(line.endswith("num.io.threads, background.threads") for line in warnings)
    assert any(line.endswith("not served yet: alter.log.dirs.replication.quota.window.num") for line in warnings)


def test_what_guards_may_stand_at_its_default() -> None:
    for name in BROKER_KEYS:
        key = BROKER_KEYS[name]
        if key.serving == "guard" and key.default and default_value(key) != []:
            of_text(f"{name}={key.default}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(str(tmp_path / "server.properties"))


def test_format_may_read_what_cannot_be_served() -> None:
    assert of_text("authorizer.class.name=org.Foo", serving=False)["authorizer.class.name"] == "org.Foo"
