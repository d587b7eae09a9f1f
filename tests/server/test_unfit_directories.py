"""Protects the start on directories of other clusters: it serves, or one sentence says what to set. It is never silent."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kcli.commands.app import main as kcli
from kcli.log.errors import PartitionMetadataError, StorageError, UnknownTopicsError
from kcli.protocol.apis import BROKER_REGISTRATION
from kcli.server.node_builder import NodeError
from kcli.server.raft.metadata_log import MetadataLogError
from tests.conftest import FIXTURES
from tests.server.whole_node import WholeNode, batch

QUORUM_STATE = "__cluster_metadata-0/quorum-state"
# Kafka's own example, config/server.properties of 4.3, as far as addresses go.
KAFKAS_EXAMPLE = (
    "listeners=PLAINTEXT://:9092,CONTROLLER://:9093",
    "advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
)


def formatted(folder: Path, *options: str) -> Path:
    """A directory that kcli format made for node 1."""
    data, file = folder / "data", folder / "server.properties"
    listeners = "PLAINTEXT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093"
    file.write_text(f"process.roles=broker,controller\nnode.id=1\nlog.dirs={data}\nlisteners={listeners}\n")
    assert kcli(["format", "--config", str(file), *options]) == 0
    return data


@pytest.fixture
def given(shared: Path, tmp_path: Path) -> Path:
    """A copy of the directory that Kafka wrote for controller.quorum.voters=1@..."""
    data = tmp_path / "data"
    shutil.copytree(shared / "kafka-logs" / "data", data)
    for path in [data, *data.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)
    return data


def test_kafkas_static_directory_is_served_without_naming_its_voter(given: Path) -> None:
    """The directory records this node as the only voter: that suffices, over restarts and without quorum-state, too."""
    for _ in range(2):
        node = WholeNode(given)
        pending = node.produce("orders", 0, batch(b"x"))
        assert pending.result().responses[0].partition_responses[0].error_code == 0
        node.stop()
    (given / QUORUM_STATE).unlink()
    WholeNode(given).stop()


@pytest.mark.parametrize(
    ("voters", "sentence"),
    [
        ('{"voterId":1},{"voterId":2}', r"has the voters 1, 2, and node\.id is 1: set controller\.quorum\.voters"),
        ('{"voterId":2}', r"has the voters 2, and node\.id is 1"),
    ],
)
def test_a_static_directory_with_other_voters_is_refused(given: Path, voters: str, sentence: str) -> None:
    """What others have decided may be missing here: this node must not lead alone."""
    path = given / QUORUM_STATE
    path.write_text(path.read_text().replace('{"voterId":1}', voters))
    clean = (given / ".kafka_cleanshutdown").exists()
    with pytest.raises(MetadataLogError, match=sentence):
        WholeNode(given)
    assert (given / ".kafka_cleanshutdown").exists() == clean


def test_a_directory_that_names_no_voter_is_refused(tmp_path: Path) -> None:
    """Formatted for a static quorum or to join one: the sentence says which key names the voter; with it the node serves."""
    data = formatted(tmp_path, "--no-initial-controllers")
    with pytest.raises(MetadataLogError, match=r"set controller\.quorum\.voters=1@127\.0\.0\.1:19093, or format"):
        WholeNode(data)
    WholeNode(data, "controller.quorum.voters=1@127.0.0.1:19093").stop()


def test_a_directory_of_the_time_of_zookeeper_is_refused(tmp_path: Path) -> None:
    """It has no metadata log: a node without its topics would hold its partitions for strays."""
    data = tmp_path / "data"
    shutil.copytree(FIXTURES / "kafka-logs-legacy" / "data", data)
    with pytest.raises(NodeError, match=r"ZooKeeper \(version=0 in meta.properties\).*migrate the cluster to KRaft"):
        WholeNode(data, "controller.quorum.voters=1@localhost:9093")


def test_a_voter_without_the_others_says_that_there_is_no_leader(tmp_path: Path) -> None:
    """It used to bind its ports, and to answer nobody; a broker, too, waits for a majority of the voters."""
    voters = "1@127.0.0.1:19093:AAAAAAAAAAAAAAAAAAAAAQ,2@127.0.0.1:19094:AAAAAAAAAAAAAAAAAAAAAg"
    data = formatted(tmp_path, "--initial-controllers", voters)
    node = WholeNode(data, is_awaited=False)
    node.advance(10_500)
    assert node.node.is_controller_ready and not node.node.is_ready
    assert "not ready after 10 s: the metadata quorum has no leader" in node.lines


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("controller.quorum.bootstrap.servers=127.0.0.1:19093,b.example:9093", "b.example:9093"),
        ("controller.quorum.bootstrap.servers=127.0.0.1:9999", "127.0.0.1:9999"),
    ],
)
def test_an_empty_directory_of_a_cluster_is_not_made_another_cluster(tmp_path: Path, setting: str, named: str) -> None:
    """The node was to join; formatted by itself it would begin a second cluster beside the first."""
    data = tmp_path / "data"
    with pytest.raises(NodeError, match=rf"{setting.partition('=')[0]} names {named}, which is not this node") as refused:
        WholeNode(data, setting)
    assert "kcli format --standalone" in str(refused.value)
    assert not data.exists()


@pytest.mark.parametrize(
    "settings",
    [
        ("controller.quorum.bootstrap.servers=127.0.0.1:19093",),
        ("controller.quorum.bootstrap.servers=localhost:19093",),
        ("controller.quorum.voters=1@anything.example:19093",),
        (*KAFKAS_EXAMPLE, "controller.quorum.bootstrap.servers=localhost:9093"),
    ],
)
def test_an_empty_directory_is_formatted_where_the_quorum_is_this_node(tmp_path: Path, settings: tuple[str, ...]) -> None:
    """Kafka's own server.properties names the node itself."""
    WholeNode(tmp_path / "data", *settings).stop()


def test_a_node_that_does_not_become_ready_says_why_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever holds the start up is logged each 10 s; once it is ready, no more."""
    from kcli.server.controller.controller_server import ControllerServer

    receive = ControllerServer.receive

    def without_registration(core: ControllerServer, connection: object, frame: memoryview, *rest: object) -> None:
        if int.from_bytes(frame[:2], "big") != BROKER_REGISTRATION:
            receive(core, connection, frame, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ControllerServer, "receive", without_registration)
    node = WholeNode(tmp_path / "data", is_awaited=False)
    node.advance(30_500)
    found = [line for line in node.lines if line.startswith("not ready")]
    reason = "the controller has not answered the registration"
    assert found == [f"not ready after {seconds} s: {reason}" for seconds in (10, 20, 30)]
    monkeypatch.undo()
    node.broker.lifecycle.start(node.now_ms)
    node.until(lambda: node.node.is_ready)
    node.advance(60_000)
    assert len([line for line in node.lines if line.startswith("not ready")]) == 3


@pytest.fixture
def with_records(tmp_path: Path) -> Path:
    """A directory of a node that was stopped cleanly, with records of topic `orders` and an empty topic `empty`."""
    data = tmp_path / "data"
    node = WholeNode(data)
    for topic in ("orders", "empty"):
        node.create_topic(topic)
    node.produce("orders", 0, batch(b"x")).result()
    node.stop()
    return data


@pytest.mark.parametrize("was_killed", [False, True])
@pytest.mark.parametrize("content", [b"", bytes(43), b"version: 0\n", b"version: 0\ntopic_id: AAAA", b"\xff\xfe"])
def test_records_whose_topic_id_cannot_be_read_refuse_the_start(with_records: Path, content: bytes, was_killed: bool) -> None:
    """They were renamed to -stray, and an empty partition was served in their place; Kafka does not start either.

    After a kill the recovery point shows that the log was flushed, and the file with it.
    """
    if was_killed:
        (with_records / ".kafka_cleanshutdown").unlink()
    path = with_records / "orders-0" / "partition.metadata"
    whole = path.read_bytes()
    path.write_bytes(content)
    names = sorted(with_records.iterdir())
    with pytest.raises(StorageError, match=rf"^{path}: .*kcli verify --repair {with_records}") as refused:
        WholeNode(with_records)
    assert isinstance(refused.value, PartitionMetadataError)
    assert sorted(with_records.iterdir()) == names  # the mark of the clean stop, too
    if content != b"\xff\xfe":  # which says nothing
        assert kcli(["verify", "--repair", "--apply", str(with_records)]) in (0, 1)
        assert path.read_bytes() == whole
    path.write_bytes(whole)
    node = WholeNode(with_records)
    log = node.broker.log_manager.get_log("orders", 0)
    assert log is not None and log.log_end_offset == 1
    node.stop()


@pytest.mark.parametrize("was_killed", [False, True])
def test_records_without_a_topic_id_refuse_the_start(with_records: Path, was_killed: bool) -> None:
    """Kafka takes a lost file for one that was not written yet: without records. These would go out of sight."""
    if was_killed:
        (with_records / ".kafka_cleanshutdown").unlink()
    path = with_records / "orders-0" / "partition.metadata"
    whole = path.read_bytes()
    path.unlink()
    (with_records / "empty-0" / "partition.metadata").unlink()
    names = sorted(with_records.iterdir())
    with pytest.raises(
        StorageError, match=rf"^{path} is missing, and the log has records of offsets 0 to 0, .*--accept-stray"
    ) as e:
        WholeNode(with_records)
    assert isinstance(e.value, PartitionMetadataError) and f"kcli verify --repair {with_records}" in str(e.value)
    assert sorted(with_records.iterdir()) == names
    assert kcli(["verify", "--repair", "--apply", str(with_records)]) in (0, 1)
    assert path.read_bytes() == whole
    node = WholeNode(with_records)
    log = node.broker.log_manager.get_log("orders", 0)
    assert log is not None and log.log_end_offset == 1
    node.stop()
    path.unlink()
    node = WholeNode(with_records, accepts_stray=True)
    assert [line for line in node.lines if line.endswith("-stray; its records of offsets 0 to 0 are not served")]
    node.stop()


def test_records_without_a_topic_id_of_a_topic_that_is_gone_are_a_stray(with_records: Path) -> None:
    """Nothing is served in their place, so Kafka's rule holds; the line names what is in the directory."""
    node = WholeNode(with_records)
    node.delete_topic("orders")
    node.stop()
    deleted = next(with_records.glob("orders-0.*-delete"))
    deleted = deleted.rename(with_records / "orders-0")
    (deleted / "partition.metadata").unlink()
    node = WholeNode(with_records)
    assert [line for line in node.lines if "it has no topic id" in line and "records of offsets 0 to 0 are not served" in line]
    node.stop()


def test_an_empty_log_whose_topic_id_cannot_be_read_is_made_again(with_records: Path) -> None:
    """The power may fail before the first flush of a new partition; nothing is lost then."""
    (with_records / "empty-0" / "partition.metadata").write_bytes(b"")
    node = WholeNode(with_records)
    assert node.produce("empty", 0, batch(b"x")).result().responses[0].partition_responses[0].error_code == 0
    node.stop()


@pytest.mark.parametrize("other", ["missing", "empty", "of another cluster"])
def test_a_metadata_log_without_any_of_the_topics_refuses_the_start(with_records: Path, tmp_path: Path, other: str) -> None:
    """All partitions would be renamed to -stray, and the node would serve none of the records."""
    metadata = with_records / "__cluster_metadata-0"
    metadata.rename(tmp_path / "kept")
    if other != "missing":
        WholeNode(tmp_path / "other").stop()
        shutil.copytree(tmp_path / "other" / "__cluster_metadata-0", metadata)
    if other == "of another cluster":
        shutil.rmtree(metadata)
        node = WholeNode(tmp_path / "other")
        node.create_topic("orders")
        node.stop()
        shutil.copytree(tmp_path / "other" / "__cluster_metadata-0", metadata)
    names = sorted(with_records.iterdir())
    with pytest.raises((StorageError, MetadataLogError)) as refused:
        WholeNode(with_records)
    assert sorted(path for path in with_records.iterdir() if path != metadata) == [path for path in names if path != metadata]
    if isinstance(refused.value, UnknownTopicsError):
        assert f"{with_records}/orders-0, which have records" in str(refused.value) and "--accept-stray" in str(refused.value)
        node = WholeNode(with_records, accepts_stray=True)
        assert [path for path in with_records.iterdir() if path.name.startswith("orders-0.") and path.name.endswith("-stray")]
        node.stop()
    shutil.rmtree(metadata, ignore_errors=True)
    (tmp_path / "kept").rename(metadata)


def test_a_topic_that_was_deleted_before_a_crash_is_a_stray(with_records: Path, tmp_path: Path) -> None:
    """The metadata log knows that it was deleted, though it has no topic with records any more."""
    kept = tmp_path / "kept"
    shutil.copytree(with_records / "orders-0", kept)
    node = WholeNode(with_records)
    node.delete_topic("orders")
    node.stop()
    shutil.copytree(kept, with_records / "orders-0", dirs_exist_ok=True)
    WholeNode(with_records).stop()
    assert [path for path in with_records.iterdir() if path.name.startswith("orders-0.") and path.name.endswith("-stray")]


def test_an_empty_directory_of_one_of_several_voters_is_not_formatted(tmp_path: Path) -> None:
    """It would become a cluster of its own, with another cluster id than the other voters have."""
    data = tmp_path / "data"
    with pytest.raises(NodeError, match=r"names node 2, too.* format the directory with `kcli format --cluster-id`"):
        WholeNode(
            data,
            "process.roles=controller",
            "listeners=CONTROLLER://127.0.0.1:19093",
            "controller.quorum.voters=1@127.0.0.1:19093,2@127.0.0.1:19094",
        )
    assert not data.exists() or list(data.iterdir()) == []
