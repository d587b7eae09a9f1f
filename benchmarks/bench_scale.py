"""Measures what a broker needs for many partitions: creation, service, stops, starts and deletion. Kafka next to kcli.

    python -m benchmarks.bench_scale [--partitions 10000] [--brokers kcli,kafka] [--rounds 1] [--work DIR]

    row                     measurement
    ----------------------  ------------------------------------------------------------------------------------------
    create                  topics of TOPIC_PARTITIONS partitions, TOPICS_A_REQUEST in a request, until the last response
    create and serve        the same, until the last partition accepts a record
    first, second produce   one record to each partition, 1,000 partitions in a request
    after two records each  CPU time of the broker in the SETTLED_S after that: files that follow the records
    metadata                the median of METADATA_ROUNDS Metadata requests for all topics
    clean stop              SIGTERM until the process has ended
    start after a clean     process start until a record is accepted
      stop, after a kill
    delete                  DeleteTopics for all, TOPICS_A_REQUEST in a request, until the last response

A row has wall seconds and CPU seconds of the broker. The output is a Markdown table on stdout with the medians of the rounds,
and one line of JSON for each round on stderr. All files are removed at the end. benchmarks.brokers finds Kafka.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.brokers import CREATE_VERSION, METADATA_VERSION, PRODUCE_VERSION, Broker, Client, batch
from benchmarks.measure import markdown_table
from kcli.protocol.apis import API_KEYS, CREATE_TOPICS, DELETE_TOPICS, METADATA, PRODUCE
from kcli.protocol.framing import encode_request
from kcli.protocol.message import Message

TOPIC_PARTITIONS = 10
TOPICS_A_REQUEST = 50
TOPICS_A_PRODUCE = 100
SETTLED_S = 10.0
METADATA_ROUNDS = 10
DELETE_VERSION = 5
LIMIT_S = 600.0
TIMEOUT_MS = 120_000
OVERRIDES = ("log.segment.delete.delay.ms=200",)


class Cost(NamedTuple):
    """The wall seconds and the broker's CPU seconds of a row."""

    wall_s: float
    cpu_s: float


class ScaleRun:
    """One broker with `count` partitions, from its creation to its deletion; `rows` has the cost of each step."""

    def __init__(self, name: str, directory: Path, count: int) -> None:
        self.broker = Broker(name, directory, OVERRIDES)
        self.broker.limit_s = LIMIT_S
        self.topics = [f"t{number:05}" for number in range(count // TOPIC_PARTITIONS)]
        self.rows: dict[str, Cost] = {}
        self.memory_mb = 0.0

    def run(self) -> None:
        """Measure all rows. Raises RuntimeError for an error in a response, or when a step takes longer than LIMIT_S."""
        try:
            self.broker.start()
            with self._connected() as client:
                self._serve(client)
            self.rows["clean stop"] = self._stop(signal.SIGTERM)
            self.rows["start after a clean stop"] = self._start()
            time.sleep(2)
            self._stop(signal.SIGKILL)
            self.rows["start after a kill"] = self._start()
            with self._connected() as client, self._measured("delete"):
                self._delete(client)
        finally:
            if self.broker.process is not None and self.broker.process.poll() is None:
                self.broker.stop(signal.SIGKILL)
            self.broker.remove()

    def _serve(self, client: Client) -> None:
        began, cpu_began = time.monotonic(), self.broker.cpu_seconds()
        with self._measured("create"):
            self._create(client)
        self._produce_last(client)
        self.rows["create and serve"] = Cost(time.monotonic() - began, self.broker.cpu_seconds() - cpu_began)
        time.sleep(1 + len(self.topics) * TOPIC_PARTITIONS / 2000)
        frames = [
            self._produce_frame(self.topics[first : first + TOPICS_A_PRODUCE], range(TOPIC_PARTITIONS))
            for first in range(0, len(self.topics), TOPICS_A_PRODUCE)
        ]
        for row in ("first produce", "second produce"):
            with self._measured(row):
                for frame in frames:
                    client.send(frame)
        time.sleep(3)
        with self._measured("after two records each"):
            time.sleep(SETTLED_S)
        self.memory_mb = self.broker.memory_mb()
        found = []
        request = encode_request(1, API_KEYS[METADATA], METADATA_VERSION, "bench", API_KEYS[METADATA].request.new(topics=None))
        for _ in range(METADATA_ROUNDS):
            with self._measured("metadata"):
                client.socket.sendall(request)
                client.read()
            found.append(self.rows["metadata"])
        self.rows["metadata"] = Cost(*(statistics.median(values) for values in zip(*found, strict=True)))

    # ------------------------------------------------------------------------------------------------------- steps

    @contextmanager
    def _connected(self) -> Iterator[Client]:
        client = Client(self.broker.port)
        client.socket.settimeout(LIMIT_S)
        try:
            yield client
        finally:
            client.close()

    @contextmanager
    def _measured(self, row: str) -> Iterator[None]:
        began, cpu_began = time.monotonic(), self.broker.cpu_seconds()
        yield
        self.rows[row] = Cost(time.monotonic() - began, self.broker.cpu_seconds() - cpu_began)

    def _requests(self) -> Iterator[list[str]]:
        return (self.topics[first : first + TOPICS_A_REQUEST] for first in range(0, len(self.topics), TOPICS_A_REQUEST))

    def _create(self, client: Client) -> None:
        make = API_KEYS[CREATE_TOPICS].request.classes["CreatableTopic"]
        for names in self._requests():
            topics = [make(name=name, num_partitions=TOPIC_PARTITIONS, replication_factor=1) for name in names]
            request = API_KEYS[CREATE_TOPICS].request.new(topics=topics, timeout_ms=TIMEOUT_MS)
            check(client.ask(CREATE_TOPICS, CREATE_VERSION, request).topics)

    def _delete(self, client: Client) -> None:
        for names in self._requests():
            request = API_KEYS[DELETE_TOPICS].request.new(topic_names=names, timeout_ms=TIMEOUT_MS)
            check(client.ask(DELETE_TOPICS, DELETE_VERSION, request).responses)

    def _produce_frame(self, names: list[str], partitions: range) -> bytearray:
        api, records = API_KEYS[PRODUCE], batch(1, 100)
        make, of_topic = (api.request.classes[name] for name in ("PartitionProduceData", "TopicProduceData"))
        topics = [
            of_topic(name=name, partition_data=[make(index=index, records=records) for index in partitions]) for name in names
        ]
        return encode_request(1, api, PRODUCE_VERSION, "bench", api.request.new(acks=-1, timeout_ms=30_000, topic_data=topics))

    def _produce_last(self, client: Client) -> None:
        frame = self._produce_frame(self.topics[-1:], range(TOPIC_PARTITIONS - 1, TOPIC_PARTITIONS))
        wait_until(lambda: is_accepted(client, frame))

    def _start(self) -> Cost:
        began = time.monotonic()
        self.broker.start()
        with self._connected() as client:
            self._produce_last(client)
        return Cost(time.monotonic() - began, self.broker.cpu_seconds())

    def _stop(self, number: int) -> Cost:
        """Stop the broker; its CPU time is that of the stop."""
        assert self.broker.process is not None
        began, cpu_began = time.monotonic(), self.broker.cpu_seconds()
        self.broker.process.send_signal(number)
        _, _, usage = os.wait4(self.broker.pid, 0)
        self.broker.process.returncode = 0
        return Cost(time.monotonic() - began, usage.ru_utime + usage.ru_stime - cpu_began)


def is_accepted(client: Client, frame: bytearray) -> bool:
    """Return whether a Produce request was accepted."""
    try:
        client.send(frame)
    except RuntimeError:
        return False
    return True


def wait_until(is_done: Callable[[], bool]) -> None:
    """Wait for a state of the broker. Raises RuntimeError after LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while not is_done():
        if time.monotonic() > end:
            raise RuntimeError(f"the last partition has accepted no record for {LIMIT_S:.0f} s")
        time.sleep(0.01)


def check(results: list[Message]) -> None:
    """Raise RuntimeError for an error code in the results of a request."""
    for result in results:
        if result.error_code:
            raise RuntimeError(f"{result.name}: error {result.error_code}")


def main() -> None:
    """Measure the brokers in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--brokers", default="kcli,kafka")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--work", type=Path)
    options = parser.parse_args()
    names = options.brokers.split(",")
    found: dict[str, list[ScaleRun]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="kcli-bench-", dir=options.work) as work:
        for _ in range(options.rounds):
            for name in names:
                run = ScaleRun(name, Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work)), options.partitions)
                run.run()
                found[name].append(run)
                rows = {row: [round(value, 4) for value in cost] for row, cost in run.rows.items()}
                line = {
                    "broker": name,
                    "partitions": options.partitions,
                    "mb": round(run.memory_mb, 1),
                    "load": os.getloadavg()[0],
                }
                print(json.dumps(line | rows), file=sys.stderr, flush=True)
    lines = []
    for row in found[names[0]][0].rows:
        costs = [
            tuple(statistics.median(values) for values in zip(*(run.rows[row] for run in found[name]), strict=True))
            for name in names
        ]
        lines.append([row, *(f"{wall:.3g} ({cpu:.3g})" for wall, cpu in costs)])
    lines.append(["resident, MB", *(f"{statistics.median(run.memory_mb for run in found[name]):.0f}" for name in names)])
    print(markdown_table([f"{options.partitions:,} partitions", *(f"{name}, s (CPU s)" for name in names)], lines))


if __name__ == "__main__":
    main()
