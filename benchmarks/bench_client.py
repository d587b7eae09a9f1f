"""Measures what a record costs a producer's client in CPU time: kcli's accumulator next to confluent-kafka and kafka-python.

    row                   what is counted
    --------------------  -----------------------------------------------------------------------------------------------
    kcli append           choice of the partition and encoding of each record
    kcli drain            readiness, batch headers, CRC, compression and the end of each batch; with callbacks, these too
    confluent-kafka       produce() into its queue without a broker; librdkafka encodes later, when it sends
    confluent-kafka, all  produce() and flush() to its own mock broker in the same process, whose time is in the figure
    kafka-python          append() of its RecordAccumulator, which encodes the record

    produce(), send()     with --broker: the whole client against `kcli serve`, and flush(); the CPU time of the client
                          alone, with its threads. Each client is a process of its own
    produce_arrow         the same records as an Arrow table
    Java client           with --broker: Kafka's ProducerPerformance (see java_client)

    latency               with --latency: the time from the call to the callback of single records, acks=all and linger.ms=0,
                          1,000 a second, against `kcli serve`

All take turns, so that changes in the machine's speed affect all of them. The time is that of the process, all threads.

    python -m benchmarks.bench_client [--broker [PARTITIONS] | --latency]
"""

from __future__ import annotations

import asyncio
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.java_client import cpu_of_a_record
from kcli.client.cluster import UNKNOWN_PARTITION, Cluster, PartitionInfo
from kcli.client.producer.accumulator_config import AccumulatorConfig
from kcli.client.producer.partitioner import RecordPartitioner
from kcli.client.producer.record_accumulator import RecordAccumulator
from kcli.format.compression import codec_id

ROUNDS = 5
RECORDS = 200_000
MEMORY = 2**30
TIMESTAMP = 1_700_000_000_000
VALUE, KEY = b"v" * 100, b"k" * 16

# Named parts of the CPU time of one round, in seconds.
Costs = dict[str, float]


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def ignore(found: object, error: object) -> None:
    """A callback that does nothing."""


def kcli(name: str, partitions: int, key: bytes | None = None, codec: str = "none", callback: Any = None) -> Costs:
    """Append and drain all records as a sender would, which knows the partitions' leaders and answers at once."""
    cluster = Cluster(PartitionInfo("t", index, 1, 0) for index in range(partitions))
    config = AccumulatorConfig(buffer_memory=MEMORY, codec=codec_id(codec))
    accumulator = RecordAccumulator(config, random.Random(1))
    append, choose = accumulator.append, RecordPartitioner().partition
    began = cpu_s()
    for _ in range(RECORDS):
        partition = choose("t", UNKNOWN_PARTITION, key, VALUE, cluster)
        append("t", partition, TIMESTAMP, key, VALUE, (), callback, 0, cluster)
    appended = cpu_s()
    while accumulator.has_undrained():
        for batches in accumulator.drain(cluster, accumulator.ready(cluster, 10).ready_nodes, 10).values():
            for batch in batches:
                batch.complete(0)
                for call, found, error in batch.deliveries():
                    call(found, error)
                accumulator.deallocate(batch)
    return {f"kcli append, {name}": appended - began, f"kcli drain, {name}": cpu_s() - appended}


def confluent(name: str, **words: Any) -> Costs:
    from confluent_kafka import Producer

    most = {"queue.buffering.max.messages": 10_000_000, "queue.buffering.max.kbytes": 2_000_000, "log_level": 0}
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", **most})
    produce = producer.produce
    began = cpu_s()
    for _ in range(RECORDS):
        produce("t", **words)
    spent = cpu_s() - began
    producer.purge()
    producer.flush(1)
    return {f"confluent-kafka, {name}": spent}


def confluent_to_mock() -> Costs:
    from confluent_kafka import Producer

    most = {"queue.buffering.max.messages": 10_000_000, "queue.buffering.max.kbytes": 2_000_000, "log_level": 0}
    producer = Producer({"bootstrap.servers": "-", "test.mock.num.brokers": 1, **most})
    produce = producer.produce
    produce("t", value=VALUE)
    producer.flush()
    began = cpu_s()
    for _ in range(RECORDS):
        produce("t", value=VALUE)
    producer.flush()
    return {"confluent-kafka, all, value": cpu_s() - began}


def kafka_python() -> Costs:
    from kafka.producer.record_accumulator import RecordAccumulator as Accumulator
    from kafka.structs import TopicPartition

    append = Accumulator().append
    partition = TopicPartition("t", 0)
    began = cpu_s()
    for _ in range(RECORDS // 10):
        append(partition, TIMESTAMP, None, VALUE, [])
    return {"kafka-python append, value": (cpu_s() - began) * 10}


RUNS: tuple[Callable[[], Costs], ...] = (
    lambda: kcli("value, 1 partition", 1),
    lambda: kcli("value, 16 partitions", 16),
    lambda: kcli("key of 16 B, 16 partitions", 16, KEY),
    lambda: kcli("callback", 1, callback=ignore),
    lambda: kcli("lz4", 1, codec="lz4"),
    lambda: kcli("zstd", 1, codec="zstd"),
    lambda: confluent("value", value=VALUE),
    lambda: confluent("key of 16 B", value=VALUE, key=KEY),
    lambda: confluent("callback", value=VALUE, on_delivery=ignore),
    confluent_to_mock,
    kafka_python,
)


# ------------------------------------------------------------------------------------------------------- with a broker


def send_all(send: Callable[[], object], flush: Callable[[], object]) -> float:
    """The CPU time of all records; what a first record costs is not in it."""
    send()
    flush()
    began = cpu_s()
    for _ in range(RECORDS):
        send()
    flush()
    return cpu_s() - began


def whole_kcli(address: str, topic: str, **settings: Any) -> float:
    from kcli.client import Producer

    with Producer({"bootstrap.servers": address, **settings}) as producer:
        return send_all(lambda: producer.send(topic, VALUE), producer.flush)


def whole_arrow(address: str, topic: str, key: bytes | None = None) -> float:
    import pyarrow

    from kcli.client import Producer

    columns = {"value": [VALUE] * RECORDS} | ({} if key is None else {"key": [b"%016d" % one for one in range(RECORDS)]})
    table = pyarrow.table(columns)
    with Producer({"bootstrap.servers": address}) as producer:
        producer.produce_arrow(topic, table.slice(0, 1))  # as in send_all: the first record is not counted
        producer.flush()
        began = cpu_s()
        producer.produce_arrow(topic, table)
        producer.flush()
        return cpu_s() - began


def whole_confluent(address: str, topic: str) -> float:
    from confluent_kafka import Producer

    most = {"queue.buffering.max.messages": 10_000_000, "queue.buffering.max.kbytes": 2_000_000}
    producer = Producer({"bootstrap.servers": address, **most})
    return send_all(lambda: producer.produce(topic, VALUE), producer.flush)


def whole_kafka_python(address: str, topic: str) -> float:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=address)
    spent = send_all(lambda: producer.send(topic, VALUE), producer.flush)
    producer.close()
    return spent


def whole_aiokafka(address: str, topic: str) -> float:
    from aiokafka import AIOKafkaProducer

    async def run() -> float:
        async with AIOKafkaProducer(bootstrap_servers=address) as producer:
            await producer.send_and_wait(topic, VALUE)
            began = cpu_s()
            for _ in range(RECORDS):
                await producer.send(topic, VALUE)
            await producer.flush()
            return cpu_s() - began

    return asyncio.run(run())


def whole_java(address: str, topic: str) -> float:
    words = ["--topic", topic, "--record-size", str(len(VALUE)), "--throughput", "-1"]
    return cpu_of_a_record("ProducerPerformance", [*words, "--producer-props", f"bootstrap.servers={address}"]) * RECORDS


WHOLE: dict[str, Callable[[str, str], float]] = {
    "kcli send()": whole_kcli,
    "kcli send(), batch.size=16384": lambda address, topic: whole_kcli(address, topic, **{"batch.size": 16384}),
    "kcli produce_arrow()": whole_arrow,
    "kcli produce_arrow(), keys": lambda address, topic: whole_arrow(address, topic, KEY),
    "confluent-kafka produce()": whole_confluent,
    "kafka-python send()": whole_kafka_python,
    "aiokafka send()": whole_aiokafka,
    "Java client": whole_java,
}


def in_turns(names: Iterable[str], partitions: int = 1) -> Iterator[tuple[str, list[float]]]:
    """Run each client of these names in a process of its own, in turns; yield what it prints."""
    from tests.server.live import LiveServer

    with tempfile.TemporaryDirectory() as directory, LiveServer(Path(directory), f"num.partitions={partitions}") as server:
        address = f"127.0.0.1:{server.port}"
        for _ in range(ROUNDS):
            for number, name in enumerate(names):
                command = [sys.executable, "-m", "benchmarks.bench_client", "--one", name, address, f"t{number}"]
                printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
                yield name, [float(one) for one in printed.split()]


def with_broker(partitions: int) -> None:
    """Measure the CPU time of each client."""
    found: dict[str, list[float]] = {}
    for name, (spent,) in in_turns(WHOLE, partitions):
        found.setdefault(name, []).append(spent / RECORDS * 1e6)
    report(found)


# ------------------------------------------------------------------------------------------------------------- latencies

PACED, A_SECOND = 5_000, 1_000
# Takes a callback for the result, which may be called by any thread.
SendOne = Callable[[Callable[..., object]], object]


def paced(send: SendOne) -> list[float]:
    """The ms from each call to its result, of records that are sent one a ms."""
    found: list[float] = []
    began = time.perf_counter()
    for number in range(PACED):
        wait_s = began + number / A_SECOND - time.perf_counter()
        if wait_s > 0:
            time.sleep(wait_s)
        at = time.perf_counter()
        send(lambda *result, at=at: found.append((time.perf_counter() - at) * 1000))
    while len(found) < PACED:
        time.sleep(0.01)
    return found


def latency_of_kcli(address: str, topic: str) -> list[float]:
    from kcli.client import Producer

    with Producer({"bootstrap.servers": address, "linger.ms": 0}) as producer:
        producer.send_and_wait(topic, VALUE)
        return paced(lambda done: producer.send(topic, VALUE, on_delivery=done))


def latency_of_confluent(address: str, topic: str) -> list[float]:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": "all"})
    producer.produce(topic, VALUE)
    producer.flush()
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            producer.poll(0.1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        return paced(lambda done: producer.produce(topic, VALUE, on_delivery=done))
    finally:
        is_over.set()
        thread.join()


def latency_of_kafka_python(address: str, topic: str) -> list[float]:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=address, linger_ms=0, acks="all")
    producer.send(topic, VALUE).get(10)
    found = paced(lambda done: producer.send(topic, VALUE).add_callback(done))
    producer.close()
    return found


def latency_of_aiokafka(address: str, topic: str) -> list[float]:
    from aiokafka import AIOKafkaProducer

    async def run() -> list[float]:
        found: list[float] = []

        async def one() -> None:
            at = time.perf_counter()
            await producer.send_and_wait(topic, VALUE)
            found.append((time.perf_counter() - at) * 1000)

        async with AIOKafkaProducer(bootstrap_servers=address, acks="all") as producer:
            await producer.send_and_wait(topic, VALUE)
            began, tasks = time.perf_counter(), []
            for number in range(PACED):
                await asyncio.sleep(max(began + number / A_SECOND - time.perf_counter(), 0))
                tasks.append(asyncio.create_task(one()))
            await asyncio.gather(*tasks)
        return found

    return asyncio.run(run())


LATENCIES: dict[str, Callable[[str, str], list[float]]] = {
    "latency of kcli": latency_of_kcli,
    "latency of confluent-kafka": latency_of_confluent,
    "latency of kafka-python": latency_of_kafka_python,
    "latency of aiokafka": latency_of_aiokafka,
}


def with_pace() -> None:
    """Measure the time to the result of single records."""
    found: dict[str, list[list[float]]] = {}
    for name, times in in_turns(LATENCIES):
        found.setdefault(name, []).append(times)
    print("| single records, 1,000 a second, acks=all | p50, ms | p99, ms |\n|---|---|---|")
    for name, runs in found.items():
        medians = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"| {name} | {' | '.join(f'{one:.2f}' for one in medians)} |")


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        name, address, topic = sys.argv[2:]
        if name in LATENCIES:
            times = statistics.quantiles(LATENCIES[name](address, topic), n=100)
            print(times[49], times[98])
        else:
            print(WHOLE[name](address, topic))
        return
    if sys.argv[1:2] == ["--latency"]:
        with_pace()
        return
    if sys.argv[1:2] == ["--broker"]:
        with_broker(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
        return
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for run in RUNS:
            for name, spent in run().items():
                found.setdefault(name, []).append(spent / RECORDS * 1e6)
    report(found)


def report(found: dict[str, list[float]]) -> None:
    print("| a record of 100 B | us of CPU, median | best |\n|---|---|---|")
    for name, costs in found.items():
        print(f"| {name} | {statistics.median(costs):.2f} | {min(costs):.2f} |")


if __name__ == "__main__":
    main()
