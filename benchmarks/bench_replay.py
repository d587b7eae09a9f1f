"""Compares `kcli replay` with a loop of confluent-kafka over the same records, and with what the broker takes from rdload.

    row           what is measured, against one `kcli serve`
    ------------  ------------------------------------------------------------------------------------------------------
    kcli replay   the whole command, from the start of Python to the table
    confluent     produce() of each record, from memory, acks=all, and flush(); its start is not in the time
    limit         rdload (librdkafka from C) with acks=all for 2 s, the broker's limit beside a client on the same machine

Each reads the same directory, which the broker of another process has written: batches of 16 KB, as Java's producers make
them, and of 500 KB. CPU time is that of the client.

    python -m benchmarks.bench_replay [--megabytes 400] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.brokers import Broker, Client, batch, started
from benchmarks.load_generator import load_generator

BATCH_BYTES = (16_000, 500_000)
RECORD_BYTES = (100, 1000)
PARTITIONS = (1, 16)
LIMIT_S = 2


class Cost(NamedTuple):
    """Elapsed and CPU time of a client."""

    seconds: float
    cpu_s: float


def fill(home: Path, topic: str, partitions: int, record_bytes: int, batch_bytes: int, megabytes: int) -> int:
    """Write the source; return its records."""
    count = batch_bytes // record_bytes
    data = batch(count, record_bytes)
    home.mkdir(parents=True)
    with started(Broker("kcli", home, ("log.retention.ms=-1",))) as broker:
        client = Client(broker.port)
        client.create_topic(topic, partitions)
        frames = [client.produce_frame(topic, index, data) for index in range(partitions)]
        batches = max(megabytes * 1_000_000 // len(data), 1)
        for number in range(batches):
            client.send(frames[number % partitions])
        client.close()
        broker.stop()
        (home / "data").rename(home.with_suffix(".source"))
    return batches * count


def run(command: list[str]) -> Cost:
    """Run a client."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(time.monotonic() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def replay(source: Path, broker: Broker, topic: str, target: str) -> Cost:
    words = ["replay", str(source), "--topic", topic, "--to", f"127.0.0.1:{broker.port}", "--map", f"{topic}={target}"]
    return run([sys.executable, "-m", "kcli", *words, "--timeout", "120"])


def confluent(broker: Broker, target: str, partitions: int, records: int, record_bytes: int) -> Cost:
    words = [f"127.0.0.1:{broker.port}", target, str(partitions), str(records), str(record_bytes)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_replay", "--loop", *words],
        check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return Cost(*map(float, done.stdout.split()))


def loop(address: str, topic: str, partitions: int, records: int, record_bytes: int) -> None:
    """Produce records as confluent-kafka's documentation does; print elapsed and CPU time."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "acks": "all", "queue.buffering.max.kbytes": 2_000_000})
    value = b"v" * record_bytes
    producer.produce(topic, value, partition=0)
    producer.flush()
    began, cpu_s = time.monotonic(), sum(os.times()[:2])
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.01)
        if not number % 1000:
            producer.poll(0)
    producer.flush()
    print(time.monotonic() - began, sum(os.times()[:2]) - cpu_s)


def main() -> None:
    if sys.argv[1:2] == ["--loop"]:
        address, topic, *numbers = sys.argv[2:]
        loop(address, topic, *map(int, numbers))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| records, batches, partitions | replay, MB/s | confluent-kafka | x | by CPU, x | limit | of it |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        rdload = load_generator(work)
        for record_bytes in RECORD_BYTES:
            for batch_bytes in BATCH_BYTES:
                for partitions in PARTITIONS:
                    name = f"t{record_bytes}-{batch_bytes}-{partitions}"
                    records = fill(work / name, name, partitions, record_bytes, batch_bytes, options.megabytes)
                    source, target_home = (work / name).with_suffix(".source"), work / f"target-{name}"
                    target_home.mkdir()
                    costs: dict[str, list[Cost]] = {}
                    limits = []
                    with started(Broker("kcli", target_home)) as broker:
                        client = Client(broker.port)
                        for number in range(options.rounds):
                            found = {"replay": replay(source, broker, name, f"r{number}")}
                            client.create_topic(f"c{number}", partitions)
                            found["confluent"] = confluent(broker, f"c{number}", partitions, records, record_bytes)
                            client.create_topic(f"l{number}", partitions)
                            load = rdload.produce(broker, f"l{number}", partitions, record_bytes, "all", LIMIT_S, 700)
                            limits.append(load.mb_s)
                            for what, cost in found.items():
                                costs.setdefault(what, []).append(cost)
                    size = records * record_bytes / 1e6
                    seconds = {what: statistics.median(one.seconds for one in rows) for what, rows in costs.items()}
                    cpu = {what: statistics.median(one.cpu_s for one in rows) for what, rows in costs.items()}
                    limit = statistics.median(limits)
                    print(
                        f"| {record_bytes} B, {batch_bytes // 1000} KB, {partitions} | {size / seconds['replay']:,.0f} "
                        f"| {size / seconds['confluent']:,.0f} | {seconds['confluent'] / seconds['replay']:.1f} "
                        f"| {cpu['confluent'] / cpu['replay']:.1f} | {limit:,.0f} "
                        f"| {size / seconds['replay'] / limit:.0%} |",
                        flush=True,
                    )
                    subprocess.run(["rm", "-rf", str(source), str(target_home)], check=True)


if __name__ == "__main__":
    main()
