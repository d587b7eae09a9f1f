"""Compares `kcli serve` with Apache Kafka in other respects than load: starts, memory, codecs, partitions, clients.

    python -m benchmarks.bench_serve [--brokers kcli,kafka] [--rows start,partitions,codecs,scaling,clients] [--work DIR]

    row         measurement
    ----------  --------------------------------------------------------------------------------------------------------
    start       process start to the first acknowledged record in an empty directory; resident memory then; stopping
    partitions  1,000 partitions on disk, 100 records each: the start after a clean stop and after SIGKILL, memory
    codecs      lz4 and zstd batches of 1,000 records: uncompressed MB per second of the broker's CPU time
    scaling     CPU time of a produce and of a fetch of 10 KB, with 10 and 100 partitions, and in a log of 1 and 10 segments
    clients     1,000 connections with one produce per second each, and a producer at full rate: response times, memory

One line of JSON per figure on stdout. Client and broker share the machine, so CPU time varies less than elapsed time.
"""

from __future__ import annotations

import selectors
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.brokers import Broker, Client, batch, measure_rows, report, started

CODECS = {"lz4": 3, "zstd": 4}

# A broker that uses less CPU time in a second is idle; Kafka needs some time for that, or never is.
IDLE_CPU_S = 0.05
SETTLE_S = 20.0


@contextmanager
def running(name: str, work: Path, *overrides: str) -> Iterator[Broker]:
    """Yield a started broker with an empty directory."""
    with started(Broker(name, Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work)), overrides)) as broker:
        yield broker


def row_start(name: str, work: Path) -> None:
    """Measure the start from an empty directory to the first acknowledged record."""
    found = []
    for _ in range(5):
        broker = Broker(name, Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work)))
        began = time.monotonic()
        answer_s = broker.start()
        client = Client(broker.port)
        client.create_topic("t", 1)
        client.send_until_taken(client.produce_frame("t", 0, batch(1, 5)))
        acked_s = time.monotonic() - began
        time.sleep(1)
        memory = broker.memory_mb()
        client.close()
        found.append((answer_s, acked_s, memory, broker.stop()))
        broker.remove()
    answer, acked, memory, stop = (statistics.median(values) for values in zip(*found))
    report("start", name, first_answer_s=answer, first_acknowledged_s=acked, idle_mb=memory, stop_s=stop)


def row_partitions(name: str, work: Path) -> None:
    """Measure starts with 1,000 partitions, after a clean stop and after SIGKILL."""
    with running(name, work) as broker:
        client = Client(broker.port)
        for topic in range(10):
            client.create_topic(f"t{topic}", 100)
            for partition in range(100):
                client.send_until_taken(client.produce_frame(f"t{topic}", partition, batch(100, 100)))
        figures = {"serving_mb": broker.memory_mb()}
        client.close()
        for how, number in (("clean", signal.SIGTERM), ("killed", signal.SIGKILL)):
            figures[f"stop_{how}_s"] = broker.stop(number)
            began = time.monotonic()
            broker.start()
            client = Client(broker.port)
            client.send_until_taken(client.produce_frame("t3", 7, batch(1, 5)))
            figures[f"start_{how}_s"] = time.monotonic() - began
            figures[f"memory_{how}_mb"] = broker.memory_mb()
            client.close()
        report("partitions", name, **figures)


def row_codecs(name: str, work: Path) -> None:
    """Measure the validation of compressed batches."""
    with running(name, work) as broker:
        client = Client(broker.port)
        client.create_topic("t", 1)
        for codec, number in CODECS.items():
            size = 1000 * 1000
            frames = [client.produce_frame("t", 0, batch(1000, 1000, number, seed)) for seed in range(8)]
            for frame in frames * 20:
                client.send_until_taken(frame)
            before, rounds = broker.cpu_seconds(), 800
            for at in range(rounds):
                client.send(frames[at % 8], check=False)
            cpu = broker.cpu_seconds() - before
            report("codecs", name, codec=number, mb_per_cpu_s=rounds * size / 1e6 / cpu, batch_bytes=len(frames[0]))
            print(f"  {name} {codec}", file=sys.stderr)


def settle(broker: Broker) -> None:
    """Wait until a broker has finished the follow-up work of earlier requests, such as the files of new partitions."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        before = broker.cpu_seconds()
        time.sleep(1)
        if broker.cpu_seconds() - before < IDLE_CPU_S:
            return


def row_scaling(name: str, work: Path) -> None:
    """Measure requests with more partitions, and with more segments."""
    rounds = 3000
    with running(name, work) as broker:
        client = Client(broker.port)
        costs: dict[str, float] = {}
        records = batch(10, 1000)
        for partitions in (10, 100, 1000):
            client.create_topic(f"p{partitions}", partitions)
            frames = [client.produce_frame(f"p{partitions}", at, records) for at in range(partitions)]
            for at in range(max(partitions, 500)):
                client.send_until_taken(frames[at % partitions])
            settle(broker)
            before = broker.cpu_seconds()
            for at in range(rounds):
                client.send(frames[at % 10], check=False)
            costs[f"produce_us_{partitions}_partitions"] = (broker.cpu_seconds() - before) / rounds * 1e6
            before = broker.cpu_seconds()
            for at in range(rounds):
                client.fetch(f"p{partitions}", {at % 10: 10 * (at // 10 % 300)}, 10_000)
            costs[f"fetch_us_{partitions}_partitions"] = (broker.cpu_seconds() - before) / rounds * 1e6
        for segments in (1, 10, 100):
            client.create_topic(f"s{segments}", 1, segment_bytes=str(1 << 20 if segments > 1 else 1 << 30))
            batches = 105 * max(10, segments)
            frame = client.produce_frame(f"s{segments}", 0, records)
            client.send_until_taken(frame)
            for _ in range(batches):
                client.send(frame, check=False)
            settle(broker)
            before = broker.cpu_seconds()
            for at in range(rounds):
                client.fetch(f"s{segments}", {0: 10 * (at * 7919 % batches)}, 10_000)
            costs[f"fetch_us_{segments}_segments"] = (broker.cpu_seconds() - before) / rounds * 1e6
        report("scaling", name, **costs)


def row_clients(name: str, work: Path) -> None:
    """Measure 1,000 clients while another producer runs at full rate."""
    with running(name, work) as broker:
        client = Client(broker.port)
        client.create_topic("full", 1)
        client.create_topic("many", 16)
        for partition in range(16):
            client.send_until_taken(client.produce_frame("many", partition, batch(1, 100)))
        clients = [Client(broker.port) for _ in range(1000)]
        idle_mb = broker.memory_mb()
        stop = threading.Event()
        sent = [0]

        def full_rate() -> None:
            frame = client.produce_frame("full", 0, batch(1000, 1000))
            client.send_until_taken(frame)
            while not stop.is_set():
                client.send(frame, check=False)
                sent[0] += 1

        thread = threading.Thread(target=full_rate)
        thread.start()
        latencies, missing = one_a_second(clients, 10)
        stop.set()
        thread.join()
        latencies.sort()
        report(
            "clients", name, connections_mb=idle_mb, after_mb=broker.memory_mb(), answers=len(latencies), unanswered=missing,
            p50_ms=latencies[len(latencies) // 2] * 1e3, p99_ms=latencies[len(latencies) * 99 // 100] * 1e3,
            full_rate_mb_s=sent[0] / 10,
        )  # fmt: skip
        for one in clients:
            one.close()


def one_a_second(clients: list[Client], seconds: int) -> tuple[list[float], int]:
    """Send one produce per second from each client, spread evenly -> response times, number of missing responses."""
    frames = [clients[0].produce_frame("many", partition, batch(1, 100)) for partition in range(16)]
    selector = selectors.DefaultSelector()
    for at, client in enumerate(clients):
        client.socket.setblocking(False)
        selector.register(client.socket, selectors.EVENT_READ, at)
    sent_at: dict[int, float] = {}
    latencies: list[float] = []
    began, step = time.monotonic(), 0
    total = len(clients) * seconds
    while step < total or (sent_at and time.monotonic() - began < seconds + 10):
        now = time.monotonic()
        while step < total and now - began >= step / len(clients):
            at = step % len(clients)
            if at not in sent_at:
                clients[at].socket.send(frames[at % 16])
                sent_at[at] = time.monotonic()
            step += 1
        for key, _ in selector.select(0.001):
            clients[key.data].socket.recv(4096)
            latencies.append(time.monotonic() - sent_at.pop(key.data))
    selector.close()
    return latencies, total - len(latencies)


ROWS = {"start": row_start, "partitions": row_partitions, "codecs": row_codecs, "scaling": row_scaling, "clients": row_clients}


def main() -> None:
    """Measure the requested rows for each broker."""
    measure_rows(__doc__, ROWS)


if __name__ == "__main__":
    main()
