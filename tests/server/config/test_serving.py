"""Protects the word "served": a key that docs/configuration.md calls so is read by some part of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.commands.app import main as kcli
from kcli.log.errors import TieredStorageError
from kcli.server.config.definitions import BROKER_KEYS, TOPIC_KEYS, Serving
from kcli.server.config.group_config import _BOUNDS
from kcli.server.config.loading import load_config
from kcli.server.config.values import ConfigError
from kcli.server.log_lines import WARN, level_of
from tests.conftest import ROOT
from tests.server.whole_node import WholeNode, batch

SERVED = [key.name for key in BROKER_KEYS.definitions() if key.serving == Serving.SERVED]
WITHOUT_EFFECT = (Serving.LATER, Serving.NO_MEANING)
# Keys without effect whose values are compared with others, or are the default of others.
ONLY_COMPARED = (
    "group.streams.max.warmup.replicas",
    "log.cleaner.io.buffer.size",
    "log.cleaner.threads",
    "num.replica.alter.log.dirs.threads",
)
# Modules that know every key or check keys, and do not act on them.
NOT_READERS = ("checks", "definitions", "serving", "loading", "reference", "alter_configs", "describe_configs", "key_names")


@pytest.fixture(scope="module")
def sources() -> str:
    paths = [path for path in (ROOT / "kcli").rglob("*.py") if not {"inspect", "client"} & set(path.parts)]
    return "\n".join(path.read_text() for path in paths if path.parent.name != "config" or path.stem not in NOT_READERS)


@pytest.mark.parametrize("name", SERVED)
def test_a_served_key_is_read(name: str, sources: str) -> None:
    behind = {one for key in TOPIC_KEYS.definitions() if key.serving == Serving.SERVED for one in key.broker_keys}
    limits = {key for keys in _BOUNDS.values() for key in keys}
    assert name in behind | limits or f'"{name}"' in sources


@pytest.mark.parametrize("name", [key.name for key in BROKER_KEYS.definitions() if key.serving in WITHOUT_EFFECT])
def test_a_key_without_effect_is_not_read(name: str, sources: str) -> None:
    """Three timeouts were read and documented as not served."""
    assert f'"{name}"' not in sources or name in ONLY_COMPARED


@pytest.mark.parametrize(
    ("setting", "known"),
    [
        ("group.consumer.assignors=org.example.X", "the assignors are uniform and range"),
        ("group.consumer.assignors=uniform,org.example.X", "the assignors are uniform and range"),
        ("group.share.assignors=org.example.X", "the assignor is simple"),
        ("group.streams.assignors=org.example.X", "the assignor is sticky"),
        ("replica.selector.class=org.example.X", "remove the key"),
        ("group.share.dlq.manager.class.name=org.example.X", "remove the key"),
    ],
)
def test_a_class_that_is_not_there_is_refused(setting: str, known: str) -> None:
    """A broker started, and each group that used the assignor failed with UNKNOWN_SERVER_ERROR."""
    with pytest.raises(ConfigError, match=rf"org\.example\.X .*{known} \(--override {setting.partition('=')[0]}\)"):
        load_config(None, [setting])


def test_each_fault_of_a_configuration_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """They were one line, with a backslash and an n between the sentences."""
    assert kcli(["serve", "--override", "num.partitions=x", "--override", "log.retention.ms=y"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all(line.startswith("kcli: ") and "\\n" not in line for line in lines)


@pytest.mark.parametrize("second", ["{0}/", "{0}/../{1}", "{0}/.", "{0}.link"])
def test_one_directory_is_one_directory(tmp_path: Path, second: str) -> None:
    """It was formatted twice, with two directory ids, and never started again."""
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "data.link").symlink_to(data)
    other = second.format(data, data.name)
    for settings in (
        [f"log.dirs={data}", f"metadata.log.dir={other}"],
        [f"log.dirs={data},{other}"],
        [f"log.dirs={other},{data}"],
    ):
        config = load_config(None, settings)
        assert len(config.log_dirs) == 1 and config.metadata_log_dir == config.log_dirs[0]
        assert config.log_dirs[0] == (other.rstrip("/") if settings[0].startswith(f"log.dirs={other}") else str(data))
    for _ in range(2):
        node = WholeNode(data, f"log.dirs={data},{other}", f"metadata.log.dir={other}")
        assert len(node.broker.log_manager.dirs) == 1
        node.stop()


@pytest.mark.parametrize("stated", ["{}/", "{}//", "/{}", "{}/./", "{}/.", "{}/../data/"])
def test_slashes_in_the_name_of_a_directory_are_as_in_kafka(tmp_path: Path, stated: str) -> None:
    """log.dirs=/data/ served no topic: the directory of its partitions did not lead back to that of the log directory."""
    data = tmp_path / "data"
    data.mkdir()
    for _ in range(2):
        node = WholeNode(data, f"log.dirs={stated.format(data)}")
        if not node.broker.log_manager.logs:
            node.create_topic("t")
        assert node.produce("t", 0, batch(b"x")).result().responses[0].partition_responses[0].error_code == 0
        node.stop()
    assert (data / "t-0").is_dir() and (data / ".kafka_cleanshutdown").is_file()
    assert load_config(None, ["log.dirs=/"]).log_dirs == ["/"]


def test_a_topic_in_remote_storage_refuses_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its local part was served as if it were all of it."""
    node = WholeNode(tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr("kcli.server.controller.replication_control_manager.check_topic_config", lambda *_: None)
        node.create_topic("tiered", remote_storage_enable="true")
    node.stop()
    with pytest.raises(TieredStorageError, match=r"remote\.storage\.enable=true of topic tiered: .*Apache Kafka"):
        WholeNode(tmp_path / "data")


def test_a_setting_without_effect_is_reported(tmp_path: Path) -> None:
    """A change was answered as made, and nothing was different."""
    node = WholeNode(tmp_path / "data")
    node.create_topic("t", max_decompressed_message_bytes="100000")
    (line,) = [line for line in node.lines if "no effect" in line]
    assert line == "topic t: max.decompressed.message.bytes is accepted, and has no effect in kcli" and level_of(line) == WARN
    node.stop()
