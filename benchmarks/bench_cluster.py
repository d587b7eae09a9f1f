"""Measures clusters of three brokers: start, memory, megabytes per CPU-second, and how long a record waits for a failover.

    python -m benchmarks.bench_cluster [--clusters kcli,kafka] [--replicas 3] [--controllers 1] [--rounds 3] [--seconds 5]
                                         [--rows start,produce,failover]

    row              measurement
    ---------------  -------------------------------------------------------------------------------------------------------
    first record     from the start of the processes until a record is acknowledged by all replicas of a new topic, and the CPU
                     seconds of the nodes until then; kcli by `kcli serve --brokers 3` on empty directories, Kafka on
                     formatted ones
    idle memory      of all processes, SETTLE_S after that: PSS, in which a page of several processes counts once, and RSS
    peak memory      the highest RSS of each process at the end, added up
    produce SIZE, P  acks=all, P partitions: MB of records per CPU-second of all nodes, the client not included
    kill -9          RATE records a second to one partition, whose leader is killed, and started again after AWAY_S: the longest
                     time from the send of a record to its acknowledgement. The leader is not the active controller, where
                     there is another one
    SIGTERM          the same with an orderly stop

A cluster of kcli has `--controllers` nodes that are only controllers; 0 makes the brokers controllers, as those of Kafka are.
The clients are those of kcli.client, so that nothing but kcli is needed; benchmarks.brokers finds Kafka. The output is a table
on stdout with the medians of the rounds, and one line of JSON for each round on stderr. All timeouts are the defaults.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.bench_quorum import Quorum, until
from benchmarks.measure import Figures, compare_rounds
from kcli.client import Admin, NewTopic, Producer
from kcli.client.admin.operation import value_of
from kcli.client.errors import ClientError
from kcli.testing import Cluster

BROKERS = 3
SETTLE_S, AWAY_S = 3.0, 5.0
RATE, FAILOVER_S, KILL_AFTER_S = 1000, 25.0, 3.0
CELLS = ((100, 1), (100, 16), (1024, 1), (1024, 16))
Settings = dict[str, str | int]


class Nodes(Protocol):
    """A running cluster; nodes are named by their node.id."""

    bootstrap: str

    def pids(self) -> list[int]: ...

    def end(self, node_id: int, how: signal.Signals) -> None: ...

    def start(self, node_id: int) -> None: ...

    def controller(self) -> int | None: ...


class KcliNodes:
    """`kcli serve --brokers 3`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.bootstrap = cluster.bootstrap_servers

    def pids(self) -> list[int]:
        status = self._cluster.status()
        return [status["pid"], *(node["pid"] for node in status["nodes"] if node["pid"] is not None)]

    def end(self, node_id: int, how: signal.Signals) -> None:
        (self._cluster.kill if how == signal.SIGKILL else self._cluster.stop)(node_id)

    def start(self, node_id: int) -> None:
        self._cluster.start(node_id)

    def controller(self) -> int | None:
        return self._cluster.leader


class KafkaNodes:
    """Three processes, each a broker and a controller."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self.bootstrap = ",".join(f"127.0.0.1:{node.port}" for node in quorum.nodes)

    def pids(self) -> list[int]:
        return [node.pid for node in self._quorum.running()]

    def end(self, node_id: int, how: signal.Signals) -> None:
        self._quorum.nodes[node_id - 1].stop(how)

    def start(self, node_id: int) -> None:
        self._quorum.nodes[node_id - 1].launch()

    def controller(self) -> int | None:
        return self._quorum.leader()


@contextmanager
def running(name: str, controllers: int, work: Path) -> Iterator[tuple[Nodes, float]]:
    """Yield a cluster and when its start began; it ends with the `with`."""
    if name == "kcli":
        began = time.monotonic()
        with Cluster(BROKERS, controllers or None, directory=work / "cluster") as cluster:
            yield KcliNodes(cluster), began
    else:
        with Quorum(name, work) as quorum:
            began = time.monotonic()
            for node in quorum.nodes:
                node.launch()
            yield KafkaNodes(quorum), began


class Measured:
    """One cluster with its administrator; topics have `replicas` replicas."""

    def __init__(self, nodes: Nodes, replicas: int) -> None:
        self.nodes = nodes
        self.replicas = replicas
        self.settings: Settings = {"bootstrap.servers": nodes.bootstrap, "default.api.timeout.ms": 60_000}
        self.topics = 0

    def topic(self, partitions: int, in_sync: int) -> str:
        """Create a topic with its min.insync.replicas, and wait until all replicas are in sync."""
        self.topics += 1
        name = f"topic-{self.topics}"
        new = NewTopic(name, partitions, self.replicas, configs={"min.insync.replicas": str(in_sync)})

        def is_created() -> bool:
            with suppress(ClientError):
                value_of(admin.create_topics([new])[name])
                return True
            return False

        with Admin(self.settings, log=lambda _: None) as admin:
            until(is_created)
            until(lambda: all(len(isr) == self.replicas for _, isr in self.leaders(admin, name)))
        return name

    @staticmethod
    def leaders(admin: Admin, topic: str) -> list[tuple[int, tuple[int, ...]]]:
        """Return the leader and the ISR of each partition; one without a leader if the topic is not known yet."""
        (found,) = admin.describe_topics([topic]).values()
        return [(-1, ())] if isinstance(found, ClientError) else [(one.leader, tuple(one.isr)) for one in found.partitions]

    def first_record(self, began: float) -> float:
        """Return the seconds until a record is acknowledged by all replicas."""
        topic = self.topic(1, self.replicas)
        errors: list[object] = []
        with Producer({**self.settings, "acks": "all"}) as producer:
            producer.send(topic, b"first", on_delivery=lambda _, error: errors.append(error))
            producer.flush(60)
        if errors != [None]:
            raise RuntimeError(f"the first record was not acknowledged: {errors}")
        return time.monotonic() - began

    def memory(self) -> dict[str, float]:
        """Return PSS, RSS and the highest RSS of all processes, in MB."""
        found = {"pss_mb": 0.0, "rss_mb": 0.0, "peak_mb": 0.0}
        for pid in self.nodes.pids():
            texts = [Path(f"/proc/{pid}/{name}").read_text() for name in ("smaps_rollup", "status", "status")]
            for field, text, key in zip(found, texts, ("Pss", "VmRSS", "VmHWM"), strict=True):
                found[field] += int(re.findall(rf"^{key}:\s+(\d+) kB", text, re.M)[0]) * 1024 / 1e6
        return found

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all processes so far."""
        return sum(time.clock_gettime(~pid << 3 | 2) for pid in self.nodes.pids())

    def produce(self, size: int, partitions: int, seconds: float) -> dict[str, float]:
        """Produce from another process for a time -> MB/s, and MB per CPU-second of the nodes."""
        topic = self.topic(partitions, max(1, self.replicas - 1))
        before = self.cpu_seconds()
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            acked, took = pool.apply(produce, (self.settings, topic, partitions, size, seconds))
        megabytes = acked * size / 1e6
        return {"mb_s": megabytes / took, "mb_per_cpu_s": megabytes / (self.cpu_seconds() - before)}

    def failover(self, how: signal.Signals) -> dict[str, float]:
        """End the leader of a partition under load -> the longest wait of a record in ms, and the records that failed."""
        with Admin(self.settings, log=lambda _: None) as admin:
            for _ in range(2 * BROKERS):  # leaders are spread over the brokers
                topic = self.topic(1, max(1, self.replicas - 1))
                ((leader, _),) = self.leaders(admin, topic)
                if leader != self.nodes.controller():
                    break
        waits: list[float] = []
        failed: list[object] = []

        def delivered(sent: float, _: object, error: object) -> None:
            waits.append(time.monotonic() - sent)
            if error is not None:
                failed.append(error)

        began = time.monotonic()
        steps = [(KILL_AFTER_S, lambda: self.nodes.end(leader, how)), (KILL_AFTER_S + AWAY_S, lambda: self.nodes.start(leader))]
        with Producer({**self.settings, "acks": "all", "linger.ms": 0, "retry.backoff.ms": 10}) as producer:
            number = 0
            while (now := time.monotonic() - began) < FAILOVER_S:
                if steps and now > steps[0][0]:
                    steps.pop(0)[1]()
                while number < (time.monotonic() - began) * RATE:
                    sent = time.monotonic()
                    producer.send(topic, b"x" * 100, on_delivery=partial(delivered, sent))
                    number += 1
                time.sleep(1 / RATE)
            producer.flush(60)
        return {"longest_ms": max(waits) * 1000, "p50_ms": statistics.median(waits) * 1000, "failed": len(failed)}


def produce(settings: Settings, topic: str, partitions: int, size: int, seconds: float) -> tuple[int, float]:
    """Send records for a time -> how many were acknowledged, and seconds until the last was. Raises RuntimeError."""
    errors: list[object] = []
    acked = 0

    def delivered(_: object, error: object) -> None:
        nonlocal acked
        acked += error is None
        if error is not None:
            errors.append(error)

    began, number, value = time.monotonic(), 0, b"x" * size
    with Producer({**settings, "acks": "all", "linger.ms": 5}) as producer:
        while time.monotonic() - began < seconds:
            for _ in range(100):
                producer.send(topic, value, partition=number % partitions, on_delivery=delivered)
                number += 1
        producer.flush(60)
    if errors or acked != number:
        raise RuntimeError(f"of {number:,} records {acked:,} were acknowledged: {errors[:1]}")
    return acked, time.monotonic() - began


def measure(name: str, options: argparse.Namespace, work: Path) -> Figures:
    """Return the figures of one round."""
    found: Figures = {}
    with running(name, options.controllers, work) as (nodes, began):
        measured = Measured(nodes, options.replicas)
        found["first record"] = {"s": measured.first_record(began), "cpu_s": measured.cpu_seconds()}
        time.sleep(SETTLE_S)
        idle = measured.memory()
        found["idle memory"] = {"pss_mb": idle["pss_mb"], "rss_mb": idle["rss_mb"]}
        for size, partitions in CELLS if "produce" in options.rows else ():
            found[f"produce {size} B, {partitions}"] = measured.produce(size, partitions, options.seconds)
        found["peak memory"] = {"peak_mb": measured.memory()["peak_mb"]}
        if options.replicas > 1 and "failover" in options.rows:
            found["kill -9"] = measured.failover(signal.SIGKILL)
            found["SIGTERM"] = measured.failover(signal.SIGTERM)
    return found


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", default="kcli")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--controllers", type=int, default=1)
    parser.add_argument("--rows", default="start,produce,failover")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    names = options.clusters.split(",")
    print(compare_rounds(names, options.rounds, lambda name, work: measure(name, options, work)))


if __name__ == "__main__":
    main()
