"""Protects Kafka Connect in distributed mode on kcli: workers form a group, keep their topics, and survive the kill of one.

A file is read by a source connector and written by a sink connector. Every line must come through, also those that are written
while the worker that had the tasks is dead.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing
from tests.oracle.brokers import KcliBroker
from tests.oracle.peer import Peer, free_ports

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
PLUGIN = "org.apache.kafka:connect-file:4.3.1"
SECONDS = 180
PAUSE_S = 0.2  # of a poll of other processes, which give no other sign
PROPERTIES = """
bootstrap.servers={bootstrap}
group.id=connect
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
config.storage.topic=connect-configs
config.storage.replication.factor=1
offset.storage.topic=connect-offsets
offset.storage.replication.factor=1
offset.storage.partitions=2
status.storage.topic=connect-status
status.storage.replication.factor=1
status.storage.partitions=2
offset.flush.interval.ms=500
session.timeout.ms=8000
heartbeat.interval.ms=1000
rebalance.timeout.ms=20000
scheduled.rebalance.max.delay.ms=1000
listeners=http://127.0.0.1:{port}
plugin.path={plugins}
plugin.discovery=only_scan
"""


class Worker:
    """A worker, and its REST interface."""

    def __init__(self, peer: Peer, home: Path, bootstrap: str, plugins: Path) -> None:
        self.port = free_ports()
        file = home / f"worker-{self.port}.properties"
        file.write_text(PROPERTIES.format(bootstrap=bootstrap, port=self.port, plugins=plugins))
        with (home / f"worker-{self.port}.log").open("wb") as log:
            environment = {**os.environ, "KAFKA_PEER_OPTS": "-Xmx384m -XX:TieredStopAtLevel=1"}
            command = [str(peer.script), "java", WORKER, str(file)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def try_to_ask(self, path: str, body: Any = None) -> Any:
        """The answer, nothing while the worker starts or its group rebalances."""
        with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            return self.ask(path, body)
        return None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


def until(is_so: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + SECONDS
    while not (found := is_so()):
        assert time.monotonic() < end, what
        time.sleep(PAUSE_S)
    return found


@pytest.fixture(scope="module")
def plugins(kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={PLUGIN}", f"-DoutputDirectory={folder}"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        missing(f"{PLUGIN} cannot be had: {error}")
    return folder


@pytest.fixture
def start(kcli_serves: None, kafka_peer: Peer, plugins: Path, tmp_path: Path) -> Iterator[Callable[[], Worker]]:
    workers: list[Worker] = []
    with KcliBroker(tmp_path, "offsets.topic.replication.factor=1", "group.initial.rebalance.delay.ms=0") as broker:

        def make() -> Worker:
            workers.append(Worker(kafka_peer, tmp_path, broker.bootstrap, plugins))
            return workers[-1]

        yield make
        for worker in workers:
            worker.kill()


def test_a_file_goes_through_two_workers(start: Callable[[], Worker], tmp_path: Path) -> None:
    """Lines go from a file to another, before and after the kill of a worker."""
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"

    def write(first: int, last: int) -> None:
        with source.open("a") as file:
            file.writelines(f"line {number}\n" for number in range(first, last))

    def arrived() -> set[str]:
        return set(sink.read_text().splitlines()) if sink.exists() else set()

    def lines(last: int) -> set[str]:
        return {f"line {number}" for number in range(last)}

    write(0, 100)
    first = start()
    until(lambda: first.try_to_ask("/"), "the first worker answers")
    package = "org.apache.kafka.connect.file.FileStream"
    reading = {"connector.class": f"{package}SourceConnector", "tasks.max": "1", "file": str(source), "topic": "lines"}
    writing = {"connector.class": f"{package}SinkConnector", "tasks.max": "1", "file": str(sink), "topics": "lines"}
    for name, config in (("source", reading), ("sink", writing)):
        until(lambda name=name, config=config: first.try_to_ask("/connectors", {"name": name, "config": config}), name)
    until(lambda: lines(100) <= arrived(), "the first lines arrive")
    second = start()
    until(lambda: second.try_to_ask("/connectors"), "the second worker answers")
    write(100, 200)
    until(lambda: lines(200) <= arrived(), "lines arrive with two workers")
    first.kill()
    write(200, 300)
    until(lambda: lines(300) <= arrived(), "lines arrive without the first worker")
    status = until(lambda: second.try_to_ask("/connectors/sink/status"), "the state of the sink")
    assert status["connector"]["state"] == "RUNNING" and status["connector"]["worker_id"].endswith(f":{second.port}")
