"""Protects exactly-once processing: whatever is killed, each record of the source is in the target once, as clients read it.

A worker reads records, transforms them and commits the result and its offsets in transactions, by the Java client, librdkafka
and aiokafka. One after the other the worker is killed, a worker is stopped while a second one of the same name takes over and
wakes up late, the broker is killed, and the broker, which coordinates group and transactions, is restarted. A worker that ends
is started again, as by a supervisor.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.oracle.brokers import KcliBroker
from tests.oracle.clients import transform
from tests.oracle.peer import Peer
from tests.oracle.reading import TopicPartitionName, served_records

pytestmark = pytest.mark.oracle

SETTINGS = ("group.initial.rebalance.delay.ms=0", "transaction.abort.timed.out.transaction.cleanup.interval.ms=1000")
LIMIT_S = 120
BACKLOG = 100  # records that are not transformed yet, so that a worker always has something to do
COMMITS = 5  # before the next thing happens


class Scene:
    """The broker, the workers of one name, what feeds them, and the reader that counts what is transformed."""

    def __init__(self, broker: KcliBroker, command: list[str], log: Path) -> None:
        self.broker = broker
        self.log = log
        self.fed = 0
        self.values: list[bytes] = []
        self._is_feeding = True
        self._command = [*command, broker.bootstrap, "worker", "source", "target"]
        self.worker = self._start()
        self.zombie: subprocess.Popen[bytes] | None = None
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        settings: dict[str, Any] = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
        }
        self._reader = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
        self._reader.subscribe(["target"])

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log)

    def _feed(self) -> None:
        for number in range(self.fed, len(self.values) + BACKLOG):
            self._producer.produce("source", b"%d" % number, partition=number % 2)
            self.fed = number + 1
        self._producer.poll(0)

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        """Feed, read, and start the worker again when it ends, until something is so."""
        deadline = time.monotonic() + LIMIT_S
        while not is_so():
            assert time.monotonic() < deadline, f"{what}: {len(self.values)} of {self.fed} records are transformed"
            if self._is_feeding:
                self._feed()
            for message in self._reader.consume(100, 0.02):
                if message.error() is None:
                    self.values.append(message.value())
            if self.worker.poll() is not None:
                self.worker = self._start()

    def wait_for_commits(self) -> None:
        """Wait for some more transactions, and until the next one has records but no offsets."""
        enough = self.log.read_bytes().count(b"committed\n") + COMMITS

        def is_so() -> bool:
            printed = self.log.read_bytes()
            return printed.count(b"committed\n") >= enough and printed.endswith(b"written\n")

        self.wait(is_so, f"there are not {enough} transactions")

    def kill_worker(self) -> None:
        self.worker.kill()
        self.worker.wait()

    def stop_worker(self) -> None:
        """Stop the worker; the next one takes over."""
        assert self.worker.poll() is None
        self.worker.send_signal(signal.SIGSTOP)
        self.zombie, self.worker = self.worker, self._start()

    def wake_worker(self) -> None:
        """Wake the stopped worker up: it is fenced, and ends."""
        zombie = self.zombie
        assert zombie is not None
        zombie.send_signal(signal.SIGCONT)
        self.wait(lambda: zombie.poll() is not None, "the worker that woke up late has not ended")
        assert zombie.returncode > 0

    def finish(self) -> None:
        """Feed no more, and wait until everything is transformed."""
        self._is_feeding = False
        assert self._producer.flush(LIMIT_S) == 0
        self.wait(lambda: len(self.values) >= self.fed, "records are missing")

    def close(self) -> None:
        for process in (self.worker, self.zombie):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        self._reader.close()


@contextmanager
def running_scene(home: Path, command: list[str]) -> Iterator[Scene]:
    with KcliBroker(home / "broker", *SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.create_topics([NewTopic(name, 2, 1) for name in ("source", "target")]).values():
            future.result(30)
        scene = Scene(broker, command, home / "workers.log")
        try:
            yield scene
        finally:
            scene.close()


def check_exactly_once(home: Path, command: list[str]) -> None:
    with running_scene(home, command) as scene:
        scene.wait_for_commits()
        scene.kill_worker()
        scene.wait_for_commits()
        scene.stop_worker()
        scene.wait_for_commits()
        scene.wake_worker()
        scene.wait_for_commits()
        scene.broker.kill()
        scene.broker.start()
        scene.wait_for_commits()
        scene.broker.stop()
        scene.broker.start()
        scene.wait_for_commits()
        scene.finish()
        names = [TopicPartitionName("target", index) for index in (0, 1)]
        read = served_records(scene.broker.bootstrap, names, "read_committed")
        values = [record.value or b"" for name in names for record in read[name]]
        assert sorted(values) == sorted(transform.transformed(b"%d" % number) for number in range(scene.fed))


@pytest.mark.slow
@pytest.mark.parametrize("client", ["confluent", "aiokafka"])
def test_python_clients(tmp_path: Path, client: str) -> None:
    check_exactly_once(tmp_path, [sys.executable, os.fspath(Path(transform.__file__)), client])


@pytest.mark.slow
def test_java_client(kafka_peer: Peer, tmp_path: Path) -> None:
    check_exactly_once(tmp_path, kafka_peer.java_command("TransformClient"))
