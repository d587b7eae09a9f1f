"""The judge itself is trustworthy: what it says of sound files, of damage it must see, and of many dumps in one JVM."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from tests.conftest import every_log_set
from tests.damage import copy_partition, damaged_copy
from tests.oracle.peer import LoadCase, Peer, PeerFailedError, ToolCase

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def partition() -> Path:
    """A small partition that Kafka wrote: records in batches compressed with zstd, one segment."""
    for log_set in every_log_set():
        if (log_set.data / "codec-zstd-0").is_dir():
            return log_set.data / "codec-zstd-0"
    pytest.skip("neither ../shared nor fixtures/ holds codec-zstd-0")


def log_bytes(directory: Path) -> dict[str, bytes]:
    """The partition's .log files by name."""
    return {path.name: path.read_bytes() for path in directory.glob("*.log")}


@pytest.mark.ci
def test_load_leaves_a_sound_log_alone(kafka_peer: Peer, partition: Path, tmp_path: Path) -> None:
    """Both ways of loading keep every byte of a sound log, and find the same end: else every comparison is void."""
    clean = copy_partition(partition, tmp_path / "clean")
    unclean = copy_partition(partition, tmp_path / "unclean")
    answers = kafka_peer.load_logs([LoadCase(clean, True), LoadCase(unclean, False)], ["--entries"])
    assert log_bytes(clean) == log_bytes(unclean) == log_bytes(partition)
    assert [answer["mode"] for answer in answers] == ["clean", "unclean"]
    assert answers[0]["log"]["end_offset"] == answers[1]["log"]["end_offset"] > 0
    assert answers[0]["segments"] == answers[1]["segments"]
    index = (partition / "00000000000000000000.index").read_bytes()
    entries = [list(entry) for entry in struct.iter_unpack(">ii", index)]
    assert answers[1]["segments"][0]["offset_index"] == {"count": len(entries), "entries": entries}


@pytest.mark.ci
def test_load_cuts_at_a_bad_batch_only_when_unclean(kafka_peer: Peer, partition: Path, tmp_path: Path) -> None:
    """The two modes differ where they must: a clean load believes what is there."""
    cases = []
    for clean in (True, False):
        cases.append(LoadCase(damaged_copy("flip_crc", partition, tmp_path / str(clean)), clean))
    clean_answer, unclean_answer = kafka_peer.load_logs(cases)
    size_bytes = sum(len(data) for data in log_bytes(partition).values())
    assert clean_answer["segments"][0]["size_bytes"] == size_bytes
    assert 0 < unclean_answer["segments"][0]["size_bytes"] < size_bytes
    assert unclean_answer["log"]["end_offset"] < clean_answer["log"]["end_offset"]


@pytest.mark.ci
def test_load_reports_a_refusal_and_goes_on(kafka_peer: Peer, partition: Path, tmp_path: Path) -> None:
    """A directory that Kafka refuses is an answer with the exception; the case behind it is still loaded."""
    refused = damaged_copy("stray_log_without_offset", partition, tmp_path / "refused")
    sound = copy_partition(partition, tmp_path / "sound")
    first, second = kafka_peer.load_logs([LoadCase(refused, True), LoadCase(sound, True)])
    assert first["exception"]["class"] == "java.lang.NumberFormatException"
    assert first["exception"]["phase"] == "load"
    assert "segments" not in first
    assert second["segments"][0]["size_bytes"] > 0


def test_load_takes_offsets_from_the_checkpoints(kafka_peer: Peer, partition: Path, tmp_path: Path) -> None:
    """Without given offsets those of the log directory's checkpoint files count, as at a broker's start."""
    copy = copy_partition(partition, tmp_path)
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\ncodec-zstd 0 100\n")
    (answer,) = kafka_peer.load_logs([LoadCase(copy, False)])
    assert answer["log_start_offset"] == 100
    assert answer["log"]["start_offset"] == 100
    assert answer["recovery_point_offset"] == 0


@pytest.mark.ci
def test_dump_many_is_the_dump_tool(kafka_peer: Peer, partition: Path) -> None:
    """In one JVM the tool prints the same bytes, and fails the same, as in a process of its own."""
    cases = [
        ["--files", "00000000000000000000.log"],
        ["--files", "00000000000000000000.log,00000000000000000000.index", "--print-data-log"],
        ["--files", "no-such-offset.log"],
        ["--files"],
    ]
    many = kafka_peer.dump_many(cases, partition)
    assert [outcome.exit_code for outcome in many] == [0, 0, 1, 1]
    for case, outcome in zip(cases, many, strict=True):
        alone = kafka_peer.dump_log(case, partition)
        assert (alone.stdout, alone.exit_code) == (outcome.stdout, outcome.exit_code)
        if outcome.exit_code == 0:
            assert alone.stderr == outcome.stderr
        else:
            assert alone.stderr.splitlines()[0] == outcome.stderr.splitlines()[0]


@pytest.mark.ci
def test_a_tool_that_hangs_is_named(kafka_peer: Peer) -> None:
    """The case that hangs and those behind it have no outcome: a comparison of two brokers would compare nothing."""
    features, dump = "org.apache.kafka.tools.FeatureCommand", "org.apache.kafka.tools.DumpLogSegments"
    waits = ToolCase(features, ("--bootstrap-server", "127.0.0.1:1", "describe"))
    with pytest.raises(PeerFailedError, match=r"case 2 of 3 took more than 3 s .*\.FeatureCommand --bootstrap-server 127"):
        kafka_peer.run_tools([ToolCase(dump, ()), waits, ToolCase(dump, ())], 3)


@pytest.mark.ci
def test_java_text(kafka_peer: Peer) -> None:
    """Each mode of the small text judge answers line by line, for sound and unsound bytes."""
    rng = random.Random(1)
    assert kafka_peer.java_text("decode", ["schlüssel-鍵-🔑".encode(), b"\xc3(", b"\xff", b""]) == [
        "schlüssel-鍵-🔑".encode(),
        b"\xef\xbf\xbd(",
        b"\xef\xbf\xbd",
        b"",
    ]
    assert kafka_peer.java_text("quote", [b'a"\\\n\x01']) == [rb'"a\"\\\n\u0001"']
    assert kafka_peer.java_text("double", [struct.pack(">d", value) for value in (1e7, 0.1, 100.0)]) == [
        b"1.0E7",
        b"0.1",
        b"100.0",
    ]
    numbers = [rng.randrange(-(2**63), 2**63) for _ in range(20)]
    assert kafka_peer.java_text("long", [struct.pack(">q", n) for n in numbers]) == [b"%d" % n for n in numbers]
