"""A server of its own process on 127.0.0.1, and a client that speaks to it in whole requests or in whatever bytes it likes."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kcli.protocol.apis import API_KEYS, CREATE_TOPICS, FETCH, METADATA, PRODUCE
from kcli.protocol.framing import encode_request, read_response_header
from kcli.protocol.message import Message
from tests.server.whole_node import batch, fetch_request, partitions_of

PATIENCE_S = 60.0


class LiveServer:
    """`kcli serve` on `home`/data; its log is `home`/log. `limits` are resource limits that the process gets."""

    def __init__(
        self, home: Path, *overrides: str, data: Path | None = None, limits: dict[int, tuple[int, int]] | None = None
    ) -> None:
        home.mkdir(exist_ok=True)
        self.home = home
        self.data = data or home / "data"
        self.log_path = home / f"log-{len(list(home.glob('log-*')))}"
        settings = {
            "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "log.dirs": str(self.data),
            "log.retention.ms": "-1",  # the records of these tests are old
            **dict(override.split("=", 1) for override in overrides),
        }
        command = [sys.executable, "-m", "kcli", "serve"]
        for key, value in settings.items():
            command += ["--override", f"{key}={value}"]

        def limit() -> None:
            for what, values in (limits or {}).items():
                resource.setrlimit(what, values)

        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, cwd=home, preexec_fn=limit if limits else None)
        self.port = 0

    def __enter__(self) -> LiveServer:
        try:
            self.wait_until_ready()
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()

    def wait_until_ready(self) -> None:
        """Wait for the line that says so."""

        def is_ready() -> bool:
            assert self.process.poll() is None, self.log()
            return "is ready" in self.log() and self.log().endswith("\n")

        wait_for(is_ready)
        self.port = int(re.findall(r"(?<!clients: )PLAINTEXT://127\.0\.0\.1:(\d+)", self.log())[-1])

    def log(self) -> str:
        """What it has said."""
        return self.log_path.read_text()

    def lines(self, containing: str) -> list[str]:
        """The lines of the log that hold a text."""
        return [line for line in self.log().splitlines() if containing in line]

    def exit_code(self) -> int:
        """Wait for the end."""
        return self.process.wait(PATIENCE_S)

    def memory_mb(self, what: str = "VmRSS") -> float:
        """Resident memory now, or its peak (VmHWM)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(rf"{what}:\s+(\d+) kB", status)[0]) / 1024

    def descriptors(self) -> int:
        """How many descriptors it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def client(self) -> LiveClient:
        """A new connection."""
        return LiveClient(self.port)


def wait_for(is_so: Callable[[], bool]) -> None:
    """Look until something is so."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "it did not come to be so"
        time.sleep(0.005)


class LiveClient:
    """One connection, blocking."""

    def __init__(self, port: int) -> None:
        self.raw = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> LiveClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.raw.close()

    def receive(self, size: int) -> bytes:
        """Exactly so many bytes; fewer where the other end closes."""
        got = bytearray()
        while len(got) < size:
            try:
                data = self.raw.recv(min(1 << 20, size - len(got)))
            except ConnectionResetError:
                break
            if not data:
                break
            got += data
        return bytes(got)

    def is_closed(self) -> bool:
        """Wait for the other end to close; False where bytes come instead."""
        return self.receive(1) == b""

    def send(self, data: bytes) -> None:
        """Send bytes; a connection that is closed meanwhile is no error."""
        try:
            self.raw.sendall(data)
        except (ConnectionResetError, BrokenPipeError):
            pass

    def ask(self, key: int, version: int, request: Message) -> Message:
        """Send a request and wait for its answer."""
        api = API_KEYS[key]
        self.raw.sendall(encode_request(5, api, version, "live", request))
        size = self.receive(4)
        assert len(size) == 4, f"the connection was closed instead of answering {api.name}"
        frame = self.receive(int.from_bytes(size, "big"))
        _, position = read_response_header(frame, api, version)
        return api.response.decode(frame, version, position)[0]

    def metadata(self) -> Message:
        """Ask for all topics."""
        return self.ask(METADATA, 12, API_KEYS[METADATA].request.new(topics=None))

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Make a topic."""
        classes = API_KEYS[CREATE_TOPICS].request.classes
        wanted = [classes["CreatableTopicConfig"](name=key.replace("_", "."), value=value) for key, value in configs.items()]
        topic = classes["CreatableTopic"](name=name, num_partitions=partitions, replication_factor=1, configs=wanted)
        answer = self.ask(CREATE_TOPICS, 7, API_KEYS[CREATE_TOPICS].request.new(topics=[topic], timeout_ms=60_000))
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message

    def produce(self, topic: str, index: int, records: bytes, acks: int = -1) -> Message:
        """Produce a batch -> its part of the answer."""
        classes = API_KEYS[PRODUCE].request.classes
        data = classes["PartitionProduceData"](index=index, records=records)
        wanted = classes["TopicProduceData"](name=topic, partition_data=[data])
        request = API_KEYS[PRODUCE].request.new(acks=acks, timeout_ms=30_000, topic_data=[wanted])
        answer: Message = self.ask(PRODUCE, 12, request).responses[0].partition_responses[0]
        return answer

    def fetch(self, offsets: dict[tuple[Any, int], int], **options: Any) -> dict[tuple[Any, int], Message]:
        """Fetch -> the partitions of the answer."""
        return partitions_of(self.ask(FETCH, 12, fetch_request(offsets, **options)))

    def values(self, topic: str, index: int = 0) -> list[bytes]:
        """All records of a partition whose values have 8 bytes, as `numbered` makes them."""
        found: list[bytes] = []
        while True:
            part = self.fetch({(topic, index): len(found)}, max_bytes=1 << 22, partition_max_bytes=1 << 22)[topic, index]
            assert part.error_code == 0
            if not len(part.records):
                return found
            found += numbers_in(bytes(part.records))


def numbered(number: int) -> bytes:
    """A batch of one record whose value is a number."""
    return batch(b"%08d" % number)


def numbers_in(records: bytes) -> list[bytes]:
    """The values of batches that `numbered` made."""
    size = len(numbered(0))
    assert len(records) % size == 0
    return [records[at + size - 9 : at + size - 1] for at in range(0, len(records), size)]


class Witness:
    """A client that produces and reads all the while on connections of its own; `slowest_s` is what it had to wait most."""

    def __init__(self, server: LiveServer, topic: str = "witness") -> None:
        self._server = server
        self._topic = topic
        self._over = threading.Event()
        self._error: BaseException | None = None
        self.count = 0
        self.slowest_s = 0.0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Witness:
        with self._server.client() as client:
            client.create_topic(self._topic)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)
        if self._error is not None:
            raise self._error
        assert self.count > 0

    def _run(self) -> None:
        try:
            with self._server.client() as client:
                while not self._over.is_set():
                    began = time.monotonic()
                    answer = client.produce(self._topic, 0, numbered(self.count))
                    assert (answer.error_code, answer.base_offset) == (0, self.count)
                    part = client.fetch({(self._topic, 0): self.count})[self._topic, 0]
                    found = numbers_in(bytes(part.records))
                    assert found == [b"%08d" % self.count], f"{found[:3]} at {self.count}, high watermark {part.high_watermark}"
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                    self.count += 1
                    time.sleep(0.001)
        except BaseException as error:
            self._error = error
