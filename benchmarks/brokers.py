"""The brokers to measure: kcli, Apache Kafka and a bare Python loop as processes, with their CPU time and memory; and a
client for raw frames.

All listen on 127.0.0.1, have a time limit, and are stopped by their own process id.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.protocol.apis import API_KEYS, CREATE_TOPICS, FETCH, METADATA, PRODUCE
from kcli.protocol.framing import encode_request, read_response_header

ROOT = Path(__file__).resolve().parents[1]
KAFKA = ROOT.parent / "shared" / "apache-kafka" / "kafka"
BARE_LOOP = ROOT.parent / "shared" / "bench" / "bare_loop.py"
PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION, CREATE_VERSION = 9, 12, 12, 5


def free_port() -> int:
    """Return a free port; the next one is assumed to be free too."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def java() -> list[str]:
    """Return the words that begin the command of a program of Apache Kafka."""
    libs = subprocess.run([KAFKA, "libs"], check=True, capture_output=True, text=True).stdout.strip()
    return ["java", "-Xmx1g", "-cp", f"{libs}/*", f"-Dlog4j2.configurationFile={KAFKA.parent / 'log4j2.properties'}"]


class Broker:
    """A broker process with its directory. `name` is "kcli", "kafka", or "bare": the loop of ../shared/bench, which has no
    configuration and no CreateTopics: every topic name exists, with `partitions` partitions."""

    program: tuple[str, ...] = ("kcli",)  # the command line of kcli
    limit_s = 90.0  # of a start

    def __init__(self, name: str, directory: Path, overrides: tuple[str, ...] = (), partitions: int = 1) -> None:
        self.name, self.directory, self.overrides, self.partitions = name, directory, overrides, partitions
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the process -> seconds until the first response."""
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["NP"] = str(self.partitions)
        log = open(self.directory.with_suffix(".log"), "ab")
        began = time.monotonic()
        self.process = subprocess.Popen(self._command(), stdout=log, stderr=log, cwd=ROOT, env=environment)
        while True:
            try:
                Client(self.port).close()
                return time.monotonic() - began
            except OSError:
                if self.process.poll() is not None or time.monotonic() - began > self.limit_s:
                    raise RuntimeError(self.directory.with_suffix(".log").read_text()[-2000:]) from None
                time.sleep(0.002)

    def _command(self) -> list[str]:
        if self.name == "kcli":
            words = [sys.executable, "-m", *self.program, "serve"]
            words += ["--override", f"listeners=PLAINTEXT://127.0.0.1:{self.port}"]
            for setting in (f"log.dirs={self.directory / 'data'}", *self.overrides):
                words += ["--override", setting]
            return words
        if self.name == "bare":
            return [sys.executable, str(BARE_LOOP), str(self.port), str(self.directory / "data")]
        properties = self.directory / "server.properties"
        if not properties.exists():
            subprocess.run([KAFKA, "format", self.directory, str(self.port), *self.overrides], check=True, capture_output=True)
        else:
            text = properties.read_text()
            self.port = int(re.search(r"listeners=PLAINTEXT://127.0.0.1:(\d+)", text).group(1))  # type: ignore[union-attr]
        return [*java(), "-Dkafka.log.level=warn", "kafka.Kafka", str(properties)]

    @property
    def pid(self) -> int:
        """The process."""
        assert self.process is not None
        return self.process.pid

    def cpu_seconds(self) -> float:
        """Return the user and system time so far, from the CPU clock of the process, which is finer than the ticks of /proc."""
        return time.clock_gettime(~self.pid << 3 | 2)

    def memory_mb(self, field: str = "VmRSS") -> float:
        """Return the resident memory, or its peak (VmHWM)."""
        found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text(), re.M)
        assert found is not None
        return int(found.group(1)) * 1024 / 1e6

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Stop the process -> seconds."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(number)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return time.monotonic() - began

    def remove(self) -> None:
        """Remove the files of the broker."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.with_suffix(".log").unlink(missing_ok=True)


AnyBroker = TypeVar("AnyBroker", bound=Broker)


@contextmanager
def started(broker: AnyBroker) -> Iterator[AnyBroker]:
    """Yield a started broker; at the end it is stopped, and its files are removed."""
    try:
        broker.start()
        yield broker
    finally:
        if broker.process is not None and broker.process.poll() is None:
            broker.stop()
        broker.remove()


def batch(records: int, size: int, codec: int = 0, seed: int = 0) -> bytes:
    """Encode a batch of records with `size` bytes of half-random text each, compressed with a codec."""
    from kcli.format.compression import deflate

    now = int(time.time() * 1000)
    word = (b"%08d" % seed) * 4
    body = encode_records(
        Record(i, 0, None, (b"%d-%s-%d " % (i * 7919 % 100_003, word, i) * (size // 20 + 1))[:size], (), 0)
        for i in range(records)
    )
    packed = deflate(codec, body) if codec else body
    return NewRecordBatch(0, records - 1, now, now, records, packed, attributes=codec).encode()


class Client:
    """A blocking connection that sends and receives whole frames."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        self.read()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def read(self) -> bytes:
        """Return the next frame, without its size."""
        size = struct.unpack(">i", self._read(4))[0]
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self.socket.recv_into(view)
            if not count:
                raise ConnectionError("the broker closed the connection")
            view = view[count:]
        return bytes(data)

    def ask(self, key: int, version: int, message: Any) -> Any:
        """Send a request -> the decoded response."""
        api = API_KEYS[key]
        self.socket.sendall(encode_request(1, api, version, "bench", message))
        frame = self.read()
        _, position = read_response_header(frame, api, version)
        return api.response.decode(frame, version, position)[0]

    def create_topic(self, name: str, partitions: int, **configs: str) -> None:
        """Create a topic, and wait until all partitions have leaders."""
        classes = API_KEYS[CREATE_TOPICS].request.classes
        topic = classes["CreatableTopic"](name=name, num_partitions=partitions, replication_factor=1)
        topic.configs = [
            classes["CreatableTopicConfig"](name=key.replace("_", "."), value=value) for key, value in configs.items()
        ]
        request = API_KEYS[CREATE_TOPICS].request.new(topics=[topic], timeout_ms=60_000)
        answer = self.ask(CREATE_TOPICS, CREATE_VERSION, request)
        if answer.topics[0].error_code:
            raise RuntimeError(f"CreateTopics: error {answer.topics[0].error_code} {answer.topics[0].error_message}")
        wanted = API_KEYS[METADATA].request.classes["MetadataRequestTopic"](name=name)
        for _ in range(2000):
            answer = self.ask(METADATA, METADATA_VERSION, API_KEYS[METADATA].request.new(topics=[wanted]))
            found = answer.topics[0].partitions
            if len(found) == partitions and not any(partition.error_code for partition in found):
                return
            time.sleep(0.005)
        raise RuntimeError(f"{name} is not led")

    def produce_frame(self, topic: str, partition: int, records: bytes) -> bytearray:
        """Encode a Produce request with one batch, acks=1."""
        api = API_KEYS[PRODUCE]
        data = api.request.classes["PartitionProduceData"](index=partition, records=records)
        topics = [api.request.classes["TopicProduceData"](name=topic, partition_data=[data])]
        request = api.request.new(acks=1, timeout_ms=30_000, topic_data=topics)
        return encode_request(1, api, PRODUCE_VERSION, "bench", request)

    def send(self, frame: bytearray, check: bool = True) -> int:
        """Send a Produce request -> the base offset. Raises RuntimeError for an error."""
        self.socket.sendall(frame)
        answer = self.read()
        if not check:
            return -1
        api = API_KEYS[PRODUCE]
        _, position = read_response_header(answer, api, PRODUCE_VERSION)
        found = api.response.decode(answer, PRODUCE_VERSION, position)[0].responses[0].partition_responses[0]
        if found.error_code:
            raise RuntimeError(f"Produce: error {found.error_code} {found.error_message}")
        return int(found.base_offset)

    def send_until_taken(self, frame: bytearray) -> None:
        """Send a Produce request until it succeeds: a partition may have no leader yet although Metadata has one."""
        for _ in range(4000):
            try:
                self.send(frame)
                return
            except RuntimeError:
                time.sleep(0.005)
        raise RuntimeError("a Produce request was not taken in 20 s")

    def fetch(self, topic: str, offsets: dict[int, int], max_bytes: int = 1 << 20) -> Any:
        """Fetch from partitions -> the decoded response."""
        api = API_KEYS[FETCH]
        make = api.request.classes["FetchPartition"]
        partitions = [make(partition=p, fetch_offset=at, partition_max_bytes=max_bytes) for p, at in offsets.items()]
        topics = [api.request.classes["FetchTopic"](topic=topic, partitions=partitions)]
        request = api.request.new(max_wait_ms=0, min_bytes=1, max_bytes=1 << 26, session_epoch=-1, topics=topics)
        return self.ask(FETCH, FETCH_VERSION, request)


# -------------------------------------------------------------------------------------------------------------------- rows


def report(row: str, broker: str, **figures: float) -> None:
    """Print one line of JSON."""
    print(json.dumps({"row": row, "broker": broker} | {key: round(value, 4) for key, value in figures.items()}), flush=True)


def measure_rows(description: str | None, rows: Mapping[str, Callable[[str, Path], None]]) -> None:
    """Measure the rows that the command line names, the brokers one after the other for each."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", default="kcli,kafka")
    parser.add_argument("--rows", default=",".join(rows))
    parser.add_argument("--work", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kcli-bench-", dir=options.work) as work:
        for row in options.rows.split(","):
            for name in options.brokers.split(","):
                print(f"{row} {name}", file=sys.stderr)
                rows[row](name, Path(work))
