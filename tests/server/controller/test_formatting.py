"""Protects formatting: the same files as kafka-storage writes, refusals that name what is wrong, nothing formatted twice."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import random
from pathlib import Path

import pytest

from kcli.commands.app import main as kcli
from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import decode_meta_properties, encode_meta_properties
from kcli.log.disk.os_disk import OsDisk
from kcli.protocol.control_records import KRAFT_VERSION, KRAFT_VOTERS, SNAPSHOT_FOOTER, SNAPSHOT_HEADER
from kcli.server.config.loading import configure
from kcli.server.config.server_config import ServerConfig
from kcli.server.controller.format_settings import FormatOptions, ScramError, parse_scram, plan_format
from kcli.server.controller.formatting import METADATA_PARTITION, FormattingError, format_directories, java_date
from kcli.server.features import FeatureError, initial_features, metadata_version_of
from kcli.server.raft.metadata_log import read_snapshot_file
from kcli.server.raft.voter_set import VoterError, parse_dynamic_voters
from kcli.simulator.disk import SimulatedDisk
from tests.server.controller.controllers import ControllerNode
from tests.server.raft.nodes import START_MS, formatted

DIRECTORY_ID = "JEXY6aqzQY-32P5TStzaFg"
CONTROLLER = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093",
}


def dice(seed: int = 1) -> random.Random:
    return random.Random(seed)


def config_of(properties: dict[str, str]) -> ServerConfig:
    text = "".join(f"{key}={value}\n" for key, value in properties.items())
    return configure(text.encode(), "server.properties", serving=False)


def levels(directory: Path) -> dict[str, int]:
    """The features in bootstrap.checkpoint, in their order."""
    batches = list(read_snapshot_file(OsDisk(), str(directory / "bootstrap.checkpoint")))
    assert batches[0].control_records[0].type_id == SNAPSHOT_HEADER
    assert batches[-1].control_records[-1].type_id == SNAPSHOT_FOOTER
    records = [record for batch in batches for record in batch.records if record.STRUCT.name == "FeatureLevelRecord"]
    return {record.name: record.feature_level for record in records}


def test_a_new_directory_has_kafkas_files(tmp_path: Path) -> None:
    """Features of 4.3 in Kafka's order; a dynamic quorum with this node's directory; meta.properties of version 1."""
    directory = formatted(tmp_path / "data")
    assert list(levels(directory).items()) == [
        ("metadata.version", 30),
        ("eligible.leader.replicas.version", 1),
        ("group.version", 1),
        ("share.version", 1),
        ("streams.version", 1),
        ("transaction.version", 2),
    ]
    meta = decode_meta_properties((directory / "meta.properties").read_bytes())
    assert (meta.version, meta.node_id) == (1, 1)
    path = directory / "__cluster_metadata-0" / "00000000000000000000-0000000000.checkpoint"
    first, last = read_snapshot_file(OsDisk(), str(path))
    assert [record.type_id for record in first.control_records] == [SNAPSHOT_HEADER, KRAFT_VERSION, KRAFT_VOTERS]
    voters = first.control_records[2].message
    assert voters is not None
    assert [(voter.voter_id, voter.voter_directory_id) for voter in voters.voters] == [(1, meta.directory_id)]
    assert last.control_records[0].type_id == SNAPSHOT_FOOTER


def test_the_first_records_of_4_4_are_in_the_metadata_log(tmp_path: Path) -> None:
    """StorageTool of 4.4 writes no bootstrap.checkpoint (KAFKA-19648); a node that is only a broker gets no first records."""
    for options, has_snapshot, quorum in (
        (FormatOptions(release="4.4", is_standalone=True), True, [KRAFT_VERSION, KRAFT_VOTERS]),
        (FormatOptions(release="4.4", has_no_initial_controllers=True), True, [KRAFT_VERSION]),
        (FormatOptions(release="4.4"), False, []),
    ):
        directory = tmp_path / f"{options.is_standalone}-{options.has_no_initial_controllers}"
        own = {} if has_snapshot else {"process.roles": "broker", "listeners": "PLAINTEXT://:9092"}
        plan = plan_format(config_of(CONTROLLER | {"log.dirs": str(directory)} | own), options, dice().randbytes)
        format_directories(OsDisk(), plan, dice().randbytes, START_MS)
        path = directory / METADATA_PARTITION / "00000000000000000000-0000000000.checkpoint"
        assert not (directory / "bootstrap.checkpoint").exists()
        assert path.exists() == has_snapshot
        if has_snapshot:
            batches = list(read_snapshot_file(OsDisk(), str(path)))
            controls = [record.type_id for batch in batches for record in batch.control_records]
            assert controls == [SNAPSHOT_HEADER, *quorum, SNAPSHOT_FOOTER]
            found = {record.name: record.feature_level for batch in batches for record in batch.records}
            assert (found["metadata.version"], found["share.version"]) == (33, 2)


def test_a_node_begins_with_the_records_in_its_metadata_log(tmp_path: Path) -> None:
    """They are appended to the log by its first leader, as those of bootstrap.checkpoint are, and only once."""
    options = FormatOptions(release="4.4", is_standalone=True, scram=["SCRAM-SHA-256=[name=alice,password=secret]"])
    plan = plan_format(config_of(CONTROLLER | {"log.dirs": str(tmp_path / "data")}), options, dice().randbytes)
    format_directories(OsDisk(), plan, dice().randbytes, START_MS)
    node = ControllerNode(tmp_path / "data").start()
    names = [record.STRUCT.name for record in node.broker.seen]
    assert names[:2] == ["BeginTransactionRecord", "FeatureLevelRecord"]
    assert node.broker.image.features == {name: level for name, level in plan.features.items() if name != "kraft.version"}
    assert [name for name, _ in node.broker.image.scram_credentials] == ["alice"]
    node.stop()
    node = ControllerNode(tmp_path / "data").start()
    assert [record.STRUCT.name for record in node.broker.seen].count("BeginTransactionRecord") == 1
    assert node.broker.image.features["metadata.version"] == 33
    node.stop()


def test_a_formatted_directory_outlasts_a_power_cut() -> None:
    """Of a disk that loses all that is not flushed, each file of each directory is left, whole."""
    disk = SimulatedDisk(dice())
    paths = ["/one", "/other"]
    for path in paths:
        disk.make_directory(path)
    disk.flush_directory("/")
    plan = plan_format(
        config_of(CONTROLLER | {"log.dirs": ",".join(paths)}), FormatOptions(is_standalone=True), dice().randbytes
    )
    format_directories(disk, plan, dice().randbytes, START_MS)
    left = disk.flushed_image()
    metadata = f"/one/{METADATA_PARTITION}"
    assert set(disk.list_directory("/one")) == {"bootstrap.checkpoint", "meta.properties", METADATA_PARTITION}
    for path in (*paths, metadata):
        names = disk.list_directory(path)
        assert names and left.list_directory(path) == names
        for file in (f"{path}/{name}" for name in names if disk.is_regular(f"{path}/{name}")):
            assert left.read_file(file, 10_000) == disk.read_file(file, 10_000) != b""


def test_an_interrupted_format_is_no_format(tmp_path: Path) -> None:
    """meta.properties is written last: without it a directory counts as empty and is formatted again."""
    directory = formatted(tmp_path / "data")
    (directory / "meta.properties").unlink()
    assert formatted(directory, seed=2) == directory
    assert (directory / "meta.properties").exists()


def test_formatted_directories_are_refused_or_ignored(tmp_path: Path) -> None:
    """A second format is refused; with --ignore-formatted it formats what is new; another cluster or node is refused."""
    settings = CONTROLLER | {"log.dirs": str(tmp_path / "a")}
    options = FormatOptions(cluster_id="one", is_standalone=True)
    made = format_directories(OsDisk(), plan_format(config_of(settings), options, dice().randbytes), dice().randbytes, START_MS)
    assert list(made) == [str(tmp_path / "a")]
    with pytest.raises(FormattingError, match="already formatted"):
        format_directories(OsDisk(), plan_format(config_of(settings), options, dice().randbytes), dice().randbytes, START_MS)
    both = settings | {"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"}
    ignoring = options._replace(ignore_formatted=True)
    made = format_directories(OsDisk(), plan_format(config_of(both), ignoring, dice().randbytes), dice().randbytes, START_MS)
    assert list(made) == [str(tmp_path / "b")]
    nameless = FormatOptions(is_standalone=True)
    with pytest.raises(FormattingError, match="already formatted, for node 1 of cluster one"):
        format_directories(OsDisk(), plan_format(config_of(settings), nameless, dice().randbytes), dice().randbytes, START_MS)
    third = settings | {"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'c'}"}
    plan = plan_format(config_of(third), nameless._replace(ignore_formatted=True), dice().randbytes)
    made = format_directories(OsDisk(), plan, dice().randbytes, START_MS)
    assert [(path, meta.cluster_id) for path, meta in made.items()] == [(str(tmp_path / "c"), "one")]
    assert format_directories(OsDisk(), plan, dice().randbytes, START_MS) == {}
    for changed, sentence in ((ignoring._replace(cluster_id="two"), "belongs to cluster one"), (ignoring, "belongs to node 1")):
        other = both | ({} if "cluster" in sentence else {"node.id": "2"})
        with pytest.raises(FormattingError, match=sentence):
            format_directories(OsDisk(), plan_format(config_of(other), changed, dice().randbytes), dice().randbytes, START_MS)


def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    """Which of them a third directory would be of cannot be known."""
    for name in ("one", "two"):
        options = FormatOptions(cluster_id=name, is_standalone=True)
        plan = plan_format(config_of(CONTROLLER | {"log.dirs": str(tmp_path / name)}), options, dice().randbytes)
        assert format_directories(OsDisk(), plan, dice().randbytes, START_MS)
    config = config_of(CONTROLLER | {"log.dirs": f"{tmp_path / 'one'},{tmp_path / 'two'},{tmp_path / 'new'}"})
    plan = plan_format(config, FormatOptions(is_standalone=True, ignore_formatted=True), dice().randbytes)
    with pytest.raises(FormattingError, match="different clusters"):
        format_directories(OsDisk(), plan, dice().randbytes, START_MS)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("properties", "options", "sentence"),
    [
        ({}, FormatOptions(), "the first voters must be given"),
        ({"process.roles": "broker", "listeners": "PLAINTEXT://:9092"}, FormatOptions(is_standalone=True), "for a controller"),
        ({"controller.quorum.voters": "1@a:1"}, FormatOptions(is_standalone=True), "makes the quorum static"),
        ({"listeners": "PLAINTEXT://:9092"}, FormatOptions(is_standalone=True), "has none of controller.listener.names"),
        ({}, FormatOptions(is_standalone=True, release="9.9"), "not a release"),
        ({}, FormatOptions(is_standalone=True, features=["group.version"]), "NAME=LEVEL"),
        ({}, FormatOptions(is_standalone=True, features=["group.version=7"]), "levels 0 to 1"),
        ({}, FormatOptions(is_standalone=True, features=["odd.version=1"]), "feature 'odd.version' does not exist"),
        ({}, FormatOptions(is_standalone=True, features=["kraft.version=0"]), "does not fit a dynamic quorum"),
        (
            {"controller.quorum.voters": "1@a:1"},
            FormatOptions(release="3.4", scram=["SCRAM-SHA-256=[name=a,password=b]"]),
            "SCRAM credentials",
        ),
        ({}, FormatOptions(initial_controllers="1@host:9093"), "is not a voter"),
    ],
)
def test_what_does_not_go_together_is_refused(properties: dict[str, str], options: FormatOptions, sentence: str) -> None:
    """Each refusal is a sentence that names the key or the option."""
    with pytest.raises(FormattingError, match=sentence):
        plan_format(config_of(CONTROLLER | properties), options, dice().randbytes)


def test_releases_and_features() -> None:
    """A release is its last level; features begin where they were finished when it was; one that needs more is refused."""
    assert [metadata_version_of(name) for name in ("4.3-IV0", "4.3", "4.3.1", "4.0", "3.3")] == [30, 30, 30, 25, 7]
    assert [metadata_version_of(name) for name in ("4.4", "4.4.0", "4.4-IV0", "4.4-IV1", "4.4-IV2")] == [33, 33, 31, 32, 33]
    assert initial_features({}, "4.4-IV0", is_dynamic_quorum=True)["share.version"] == 2
    assert initial_features({}, "4.0", is_dynamic_quorum=True) == {
        "metadata.version": 25,
        "kraft.version": 1,
        "transaction.version": 2,
        "group.version": 1,
        "eligible.leader.replicas.version": 0,
        "share.version": 0,
        "streams.version": 0,
    }
    with pytest.raises(FeatureError, match=r"needs metadata\.version 4\.0-IV1"):
        initial_features({"eligible.leader.replicas.version": 1}, "3.9", is_dynamic_quorum=False)
    with pytest.raises(FeatureError, match="is given twice"):
        initial_features({"metadata.version": 30}, "4.3", is_dynamic_quorum=False)


def test_voters_are_read_as_kafka_reads_them() -> None:
    """IPv6 in brackets; what is none is quoted in the refusal."""
    voters = parse_dynamic_voters(f"0@example.com:8082:{DIRECTORY_ID}, 2@[::1]:9094:{DIRECTORY_ID[::-1][:21]}A", "C")
    assert str(voters[0].directory_id) == DIRECTORY_ID
    assert (voters[1].voter_id, voters[1].endpoints) == (2, {"C": ("::1", 9094)})
    for text in ("", "a@b:1:" + DIRECTORY_ID, "1@:1:" + DIRECTORY_ID, "1@b:70000:" + DIRECTORY_ID, "1@b:1:short"):
        with pytest.raises(VoterError):
            parse_dynamic_voters(text, "C")
    with pytest.raises(VoterError, match="two voters"):
        parse_dynamic_voters(f"1@a:1:{DIRECTORY_ID},2@b:2:{DIRECTORY_ID}", "C")


def test_a_scram_credential_holds_the_keys_of_rfc_5802() -> None:
    """The keys are those that the RFC derives of the password; the password itself is nowhere."""
    record = parse_scram("SCRAM-SHA-256=[name=alice,password=secret,iterations=4096]", dice().randbytes)
    salted = hashlib.pbkdf2_hmac("sha256", b"secret", record.salt, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    assert record.stored_key == hashlib.sha256(client_key).digest()
    assert record.server_key == hmac.digest(salted, b"Server Key", "sha256")
    assert "secret" not in repr(record)
    again = parse_scram('SCRAM-SHA-512=[name=bob,salt="N3E=",saltedpassword="YCE="]', dice().randbytes)
    assert (again.mechanism, again.salt) == (2, b"7q")
    for text in ("PLAIN=[name=a,password=b]", "SCRAM-SHA-256=[name=a]", "SCRAM-SHA-256=[name=a,password=b,iterations=1]"):
        with pytest.raises(ScramError) as refused:
            parse_scram(text, dice().randbytes)
        assert "password=b" not in str(refused.value)


def test_the_date_is_javas() -> None:
    """Leap years, centuries and the first of months."""
    for ms in (0, 951_782_400_000, 1_795_282_939_477, 4_107_542_399_000, 1_709_164_800_000):
        expected = datetime.datetime.fromtimestamp(ms // 1000, datetime.UTC).strftime("%a %b %d %H:%M:%S UTC %Y")
        assert java_date(ms) == expected


def test_meta_properties_of_any_form_are_read(tmp_path: Path) -> None:
    """The quick reader and the whole one say the same; what only the whole one reads is handed to it."""
    plain = (formatted(tmp_path / "data") / "meta.properties").read_bytes()
    spaced = plain.replace(b"=", b" : ").replace(b"version", b"ver\\\n   sion")
    assert decode_meta_properties(spaced) == decode_meta_properties(plain)
    odd = decode_meta_properties(plain)._replace(cluster_id="a cluster = \u00e9")
    assert decode_meta_properties(encode_meta_properties(odd, date="today")) == odd


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """kcli format formats what a server.properties names, says so, and refuses to do it again."""
    config = tmp_path / "server.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in CONTROLLER.items()) + f"log.dirs={tmp_path / 'data'}\n")
    arguments = ["format", "-c", str(config), "-t", "kcliKcliKcliKcliKcliKg", "--standalone", "-f", "group.version=0"]
    assert kcli(arguments) == 0
    assert levels(tmp_path / "data").get("group.version") is None
    assert kcli(arguments) == 2
    assert "already formatted" in capsys.readouterr().err


def test_what_the_directories_are(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """kcli format --info, as kafka-storage info: a line for each directory; a problem has the exit code 1."""
    config = tmp_path / "server.properties"
    names = ["a", "b", "c", "d"]
    values = CONTROLLER | {"log.dirs": ",".join(str(tmp_path / name) for name in names)}

    def info() -> tuple[int, list[str]]:
        config.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        code = kcli(["format", "-c", str(config), "--info"])
        return code, [line.removeprefix(f"{tmp_path}/") for line in capfd.readouterr().out.splitlines()]

    assert info() == (1, [f"{name} does not exist" for name in names])
    assert not (tmp_path / "a").exists()
    assert kcli(["format", "-c", str(config), "-t", "one", "-N"]) == 0
    capfd.readouterr()
    code, lines = info()
    directory_id = decode_meta_properties((tmp_path / "a/meta.properties").read_bytes()).directory_id
    assert (code, lines[0]) == (0, f"a: formatted for node 1 of cluster one, directory id {directory_id}")
    for name, odd in (("b", {"cluster_id": "two"}), ("c", {"node_id": 7})):
        file = tmp_path / name / "meta.properties"
        meta = decode_meta_properties(file.read_bytes())
        file.write_bytes(encode_meta_properties(meta._replace(**odd), date="today"))
    (tmp_path / "d/meta.properties").unlink()
    code, found = info()
    assert (code, found[1:]) == (
        1,
        [
            f"b belongs to cluster two, but {tmp_path}/a to cluster one",
            f"c belongs to node 7, but {tmp_path}/a to node 1",
            "d is not formatted",
        ],
    )


def test_a_new_id(capfd: pytest.CaptureFixture[str]) -> None:
    """kcli format --random-uuid, as kafka-storage random-uuid."""
    assert kcli(["format", "--random-uuid"]) == 0
    text = capfd.readouterr().out.strip()
    assert str(Uuid.parse(text)) == text
    assert kcli(["format", "--random-uuid"]) == 0
    assert capfd.readouterr().out.strip() != text
