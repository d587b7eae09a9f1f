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

All take turns, so that changes in the machine's speed affect all of them. The time is that of the process, all threads.

    python -m benchmarks.bench_client [--broker]
"""

from __future__ import annotations

import asyncio
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kcli.client.cluster import UNKNOWN_PARTITION, Cluster, PartitionInfo
from kcli.client.producer.partitioner import RecordPartitioner
from kcli.client.producer.record_accumulator import AccumulatorConfig, RecordAccumulator
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
        producer.partitions_for(topic)
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


WHOLE: dict[str, Callable[[str, str], float]] = {
    "kcli send()": whole_kcli,
    "kcli send(), batch.size=1000000": lambda address, topic: whole_kcli(address, topic, **{"batch.size": 1_000_000}),
    "kcli produce_arrow()": whole_arrow,
    "kcli produce_arrow(), keys": lambda address, topic: whole_arrow(address, topic, KEY),
    "confluent-kafka produce()": whole_confluent,
    "kafka-python send()": whole_kafka_python,
    "aiokafka send()": whole_aiokafka,
}


def with_broker() -> None:
    """Measure each client in a process of its own, in turns."""
    from tests.server.live import LiveServer

    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory, LiveServer(Path(directory), "num.partitions=1") as server:
        address = f"127.0.0.1:{server.port}"
        for _ in range(ROUNDS):
            for number, name in enumerate(WHOLE):
                command = [sys.executable, "-m", "benchmarks.bench_client", "--one", name, address, f"t{number}"]
                spent = float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                found.setdefault(name, []).append(spent / RECORDS * 1e6)
    report(found)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        name, address, topic = sys.argv[2:]
        print(WHOLE[name](address, topic))
        return
    if sys.argv[1:2] == ["--broker"]:
        with_broker()
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
