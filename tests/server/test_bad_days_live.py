"""Protects a server's data on bad days: what cannot be served is told in a sentence, what was acknowledged stays."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcli.protocol import error_codes
from kcli.server.apis.fetch import MAX_FILES_PER_FETCH
from kcli.server.raft.metadata_batches import decode_batches, encode_data_batch, encode_metadata_record, new_record
from tests.conftest import missing
from tests.server.live import PATIENCE_S, LiveServer, numbered, wait_for
from tests.server.whole_node import batch

MB = 1 << 20


@pytest.fixture(scope="module")
def formatted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a server that has stopped; topic t has ten records."""
    home = tmp_path_factory.mktemp("formatted")
    with LiveServer(home) as server, server.client() as client:
        client.create_topic("t")
        for number in range(10):
            assert client.produce("t", 0, numbered(number)).error_code == 0
    return server.data


def refused(home: Path, *overrides: str, data: Path | None = None) -> str:
    """The one sentence with which a server does not start."""
    server = LiveServer(home, *overrides, data=data)
    assert server.exit_code() == 2
    sentence = server.log().strip().splitlines()[-1]
    assert "Traceback" not in server.log()
    return sentence


# ------------------------------------------------------------------------------------------------------ does not start


def test_a_port_that_is_in_use(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "first") as server:
        listeners = f"listeners=PLAINTEXT://127.0.0.1:{server.port},CONTROLLER://127.0.0.1:0"
        sentence = refused(tmp_path / "second", listeners)
        assert f"127.0.0.1:{server.port}" in sentence and "another process has it" in sentence
        assert not (tmp_path / "second/data").exists(), "nothing was made"


def test_a_metrics_port_that_is_in_use(tmp_path: Path) -> None:
    """It is told before a directory is formatted, as that of a listener is."""
    with LiveServer(tmp_path / "first") as server:
        data = tmp_path / "data"
        command = [sys.executable, "-m", "kcli", "serve", "--metrics-port", str(server.port)]
        for setting in ("listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", f"log.dirs={data}"):
            command += ["--override", setting]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert ran.returncode == 2
        assert f"--metrics-port {server.port}: " in ran.stderr and "another process has it" in ran.stderr
        assert not data.exists(), "nothing was made"


def test_a_directory_that_another_process_holds(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "first") as server:
        assert "another process uses this log directory" in refused(tmp_path / "second", data=server.data)
        with server.client() as client:
            client.create_topic("t")


def test_a_directory_of_another_node(tmp_path: Path, formatted: Path) -> None:
    assert "belongs to node 1, and node.id is 7" in refused(tmp_path / "home", "node.id=7", data=formatted)


def test_directories_of_two_clusters(tmp_path: Path, formatted: Path) -> None:
    with LiveServer(tmp_path / "other") as other:
        pass
    assert "different clusters" in refused(tmp_path / "home", f"log.dirs={formatted},{other.data}")


def test_a_directory_that_is_not_formatted_beside_one_that_is(tmp_path: Path, formatted: Path) -> None:
    sentence = refused(tmp_path / "home", f"log.dirs={formatted},{tmp_path / 'new'}")
    assert "new is not formatted" in sentence and "kcli format" in sentence


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").write_bytes(b"x")
    assert "cat.jpg" in refused(tmp_path / "home", data=tmp_path / "photos")
    assert os.listdir(tmp_path / "photos") == ["cat.jpg"]


def test_logs_whose_meta_properties_are_lost_are_not_taken_for_a_new_cluster(tmp_path: Path, formatted: Path) -> None:
    shutil.copytree(formatted, tmp_path / "data")
    (tmp_path / "data/meta.properties").unlink()
    assert "no meta.properties" in refused(tmp_path / "home", data=tmp_path / "data")
    (tmp_path / "data/meta.properties").write_bytes(b"\xff\xfe nonsense")
    assert "meta.properties states no cluster.id" in refused(tmp_path / "home", data=tmp_path / "data")


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is not a directory" in refused(tmp_path / "home", data=tmp_path / "file")


def test_metadata_of_a_newer_kafka(tmp_path: Path, formatted: Path) -> None:
    """What a metadata.version above those that are known means, nobody here knows."""
    shutil.copytree(formatted, tmp_path / "data")
    log = tmp_path / "data/__cluster_metadata-0/00000000000000000000.log"
    last = list(decode_batches(log.read_bytes()))[-1]
    newer = new_record("FeatureLevelRecord", name="metadata.version", feature_level=99)
    with log.open("ab") as file:
        file.write(
            encode_data_batch([encode_metadata_record(newer)], last.last_offset + 1, last.leader_epoch, 1_750_000_000_000)
        )
    sentence = refused(tmp_path / "home", data=tmp_path / "data")
    assert "metadata.version" in sentence and "99" in sentence


# ------------------------------------------------------------------------------------------------------------- signals


def test_sigterm_ends_it_in_seconds_and_sighup_does_nothing(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as server:
        waiting, client = server.client(), server.client()
        client.create_topic("t")
        server.process.send_signal(signal.SIGHUP)
        assert client.produce("t", 0, numbered(0)).error_code == 0
        began = time.monotonic()
        server.process.terminate()
        assert server.exit_code() == 0
        assert time.monotonic() - began < 5
        assert waiting.is_closed() and client.is_closed()
    assert (server.data / ".kafka_cleanshutdown").exists()


def test_a_second_sigterm_ends_it_at_once(tmp_path: Path) -> None:
    server = LiveServer(tmp_path)
    server.wait_until_ready()
    server.process.send_signal(signal.SIGSTOP)  # so that both signals are there when it looks
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGINT)
    server.process.send_signal(signal.SIGCONT)
    assert server.exit_code() in (0, 1)
    assert "stopping" in server.log()


# --------------------------------------------------------------------------------------------------------------- disks


def values_of(data: Path, home: Path, size: int) -> int:
    """How many records of topic t a new start serves; each must be the one that was acknowledged."""
    with LiveServer(home, data=data) as server, server.client() as client:
        count = 0
        one = len(batch(bytes(size)))
        while True:
            part = client.fetch({("t", 0): count}, max_bytes=4 * MB, partition_max_bytes=4 * MB)["t", 0]
            assert part.error_code == 0
            records = bytes(part.records)
            if not records:
                return count
            assert len(records) % one == 0
            for at in range(0, len(records), one):
                value = records[at : at + one][-size - 1 : -1]
                assert value.startswith(b"%08d" % count)
                count += 1


def fill(server: LiveServer, size: int) -> int:
    """Produce until that is refused -> how many records were acknowledged."""
    acknowledged = 0
    with server.client() as client:
        client.create_topic("t")
        while True:
            try:
                code = client.produce("t", 0, batch((b"%08d" % acknowledged).ljust(size, b"x"))).error_code
            except (AssertionError, ConnectionError):
                return acknowledged
            if code:
                assert code == error_codes.KAFKA_STORAGE_ERROR
                return acknowledged
            acknowledged += 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    path = tmp_path / "small"
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "kcli-test", str(path)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.ci
def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path, small_disk: Path) -> None:
    server = LiveServer(tmp_path / "home", "log.index.size.max.bytes=100000", data=small_disk / "data")
    server.wait_until_ready()
    acknowledged = fill(server, 50_000)
    assert acknowledged > 50
    assert server.exit_code() == 2
    assert server.lines("No space left on device") and "Traceback" not in server.log()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert values_of(small_disk / "data", tmp_path / "again", 50_000) == acknowledged


@pytest.mark.ci
def test_a_disk_that_cannot_be_written(tmp_path: Path, small_disk: Path) -> None:
    with LiveServer(tmp_path / "home", data=small_disk / "data"):
        pass
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert "Read-only file system" in refused(tmp_path / "again", data=small_disk / "data")


@pytest.mark.ci
def test_a_file_that_may_not_grow_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    limits = {resource.RLIMIT_FSIZE: (11 * MB, 11 * MB)}  # an index is made 10 MB long
    server = LiveServer(tmp_path / "home", limits=limits)
    server.wait_until_ready()
    acknowledged = fill(server, 100_000)
    assert acknowledged > 50
    assert server.exit_code() == 2
    assert server.lines("File too large") and "Traceback" not in server.log()
    assert values_of(server.data, tmp_path / "again", 100_000) == acknowledged


@pytest.mark.ci
def test_a_directory_that_vanishes_ends_the_server_with_a_sentence(tmp_path: Path) -> None:
    server = LiveServer(tmp_path)
    server.wait_until_ready()
    with server.client() as client:
        client.create_topic("t")
        shutil.rmtree(server.data)
        with pytest.raises((AssertionError, OSError)):
            client.create_topic("u")
    assert server.exit_code() == 2
    assert server.lines("No such file or directory") and "Traceback" not in server.log()


@pytest.mark.ci
def test_killed_it_serves_what_it_had_acknowledged(tmp_path: Path) -> None:
    """With flush.messages=1, again and again, on the same directory."""
    acknowledged: list[bytes] = []
    for life in range(5):
        server = LiveServer(tmp_path / f"home-{life}", data=tmp_path / "data")
        server.wait_until_ready()
        with server.client() as client:
            if life == 0:
                client.create_topic("t", flush_messages="1")
            # What recovery found is flushed again before the high watermark moves over it.
            wait_for(lambda client=client: len(client.values("t")) >= len(acknowledged))
            assert client.values("t") == acknowledged
            for number in range(len(acknowledged), len(acknowledged) + 40):
                answer = client.produce("t", 0, numbered(number))
                assert (answer.error_code, answer.base_offset) == (0, number)
                acknowledged.append(b"%08d" % number)
        server.kill()


# --------------------------------------------------------------------------------------------------------- descriptors


@pytest.mark.ci
def test_a_thousand_partitions_and_connections_under_a_soft_limit_of_1024(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 4096:
        missing(f"this process may have {hard} descriptors, and the test needs some thousand")
    own_soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(own_soft, 2048), hard))
    with LiveServer(tmp_path, limits={resource.RLIMIT_NOFILE: (1024, hard)}) as server:
        idle_mb = server.memory_mb()
        with server.client() as client:
            client.create_topic("wide", 1000)
            # They are made one after the other, some while after the answer: till then they have no leader here.
            wait_for(lambda: client.fetch({("wide", 999): 0})["wide", 999].error_code == 0)
            for index in range(1000):
                assert client.produce("wide", index, numbered(index)).error_code == 0
            loaded_mb = server.memory_mb()
            clients = [server.client() for _ in range(1000)]
            for number, other in enumerate(clients):
                assert len(other.fetch({("wide", number): 0})["wide", number].records) == len(numbered(0))
            assert server.memory_mb() < loaded_mb + 60
            assert loaded_mb < 150 and idle_mb < 45
            for other in clients:
                other.raw.close()
            wait_for(lambda: server.descriptors() < 1200)
            # A fetch is answered from some of them; who asks for the others next has them all in the end.
            left = {("wide", index): 0 for index in range(1000)}
            while left:
                found = [key for key, part in client.fetch(left, max_bytes=50 * MB).items() if len(part.records) > 0]
                assert len(found) >= min(len(left), MAX_FILES_PER_FETCH)
                left = {key: 0 for key in left if key not in found}
