"""Measures what a record through a fetch session costs, by the partitions that the session watches. Kafka next to kcli.

    python -m benchmarks.bench_fetch [--brokers kcli,kafka] [--partitions 10,100,1000,10000] [--records 300]

A consumer has a session of all partitions, and waits; a record is produced to one of them; the consumer gets it and asks for
the next. A row has the median wall milliseconds from the Produce request to the record, and the broker's CPU milliseconds for
each record. The output is a Markdown table on stdout. All files are removed at the end. benchmarks.brokers finds Kafka.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.brokers import FETCH_VERSION, Broker, Client, batch, started
from benchmarks.measure import markdown_table
from kcli.protocol.apis import API_KEYS, FETCH
from kcli.protocol.framing import encode_request, read_response_header

WARM_UP = 20
TOPIC_PARTITIONS = 1_000
Place = tuple[str, int]  # topic and partition
OVERRIDES = ("log.segment.delete.delay.ms=200",)


class Session:
    """A consumer's incremental fetch session over partitions."""

    def __init__(self, port: int, places: list[Place]) -> None:
        self.client = Client(port)
        self.epoch = 0
        self.session_id = 0
        offsets = dict.fromkeys(places, 0)
        for _ in range(3):
            self.ask(offsets, 0)
            offsets = self.receive()

    def ask(self, offsets: dict[Place, int], wait_ms: int = 30_000) -> None:
        """Send the next request of the session."""
        api = API_KEYS[FETCH]
        make = api.request.classes["FetchPartition"]
        topics: dict[str, Any] = {}
        for (name, index), offset in offsets.items():
            topic = topics.setdefault(name, api.request.classes["FetchTopic"](topic=name, partitions=[]))
            topic.partitions.append(make(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20))
        request = api.request.new(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 26,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=list(topics.values()),
        )
        self.client.socket.sendall(encode_request(1, api, FETCH_VERSION, "bench", request))

    def receive(self) -> dict[Place, int]:
        """Receive an answer -> the next offsets of the partitions that had records. Raises RuntimeError for an error."""
        api = API_KEYS[FETCH]
        frame = self.client.read()
        _, position = read_response_header(frame, api, FETCH_VERSION)
        answer = api.response.decode(frame, FETCH_VERSION, position)[0]
        if answer.error_code:
            raise RuntimeError(f"Fetch: error {answer.error_code}")
        self.session_id, self.epoch = answer.session_id, self.epoch + 1
        parts = [(topic.topic, part) for topic in answer.responses for part in topic.partitions]
        if any(part.error_code for _, part in parts):
            raise RuntimeError(f"Fetch: errors { ({part.error_code for _, part in parts}) }")
        return {(name, part.partition_index): part.high_watermark for name, part in parts if part.records}


def measure(name: str, partitions: int, records: int) -> dict[str, float]:
    """Return the median wall milliseconds and the broker's CPU milliseconds of a record."""
    with (
        tempfile.TemporaryDirectory(prefix="kcli-bench-") as work,
        started(Broker(name, Path(work) / "b", OVERRIDES)) as broker,
    ):
        producer = Client(broker.port)
        places: list[Place] = []
        while len(places) < partitions:
            topic, count = f"watched-{len(places)}", min(TOPIC_PARTITIONS, partitions - len(places))
            producer.create_topic(topic, count)
            places += [(topic, index) for index in range(count)]
        data = batch(1, 100)
        frames = [producer.produce_frame(*places[number * 7 % partitions], data) for number in range(10)]
        for name, index in places[-1:] + places[:: max(1, partitions // 37)]:
            producer.send_until_taken(producer.produce_frame(name, index, data))
        time.sleep(1 + partitions / 500)
        session = Session(broker.port, places)
        offsets: dict[Place, int] = {}
        walls, cpu_began = [], 0.0
        for number in range(WARM_UP + records):
            if number == WARM_UP:
                cpu_began = broker.cpu_seconds()
            session.ask(offsets)
            time.sleep(0.002)  # so that the broker waits already
            began = time.monotonic()
            producer.send(frames[number % len(frames)])
            offsets = session.receive()
            walls.append(time.monotonic() - began)
        cpu_s = broker.cpu_seconds() - cpu_began
        producer.close()
        session.client.close()
    return {"wall_ms": statistics.median(walls[WARM_UP:]) * 1000, "cpu_ms": cpu_s / records * 1000}


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", default="kcli,kafka")
    parser.add_argument("--partitions", default="10,100,1000,10000")
    parser.add_argument("--records", type=int, default=300)
    options = parser.parse_args()
    names = options.brokers.split(",")
    table = []
    for count in map(int, options.partitions.split(",")):
        row = [f"{count:,}"]
        for name in names:
            found = measure(name, count, options.records)
            print(json.dumps({"broker": name, "partitions": count, **found}), file=sys.stderr, flush=True)
            row.append(f"{found['wall_ms']:.2f} ms, {found['cpu_ms']:.2f} ms of CPU")
        table.append(row)
    print(markdown_table(("partitions of the session", *names), table))


if __name__ == "__main__":
    main()
