"""Measures what a record costs a consumer's client in CPU time: kcli's next to confluent-kafka and kafka-python.

    row                     what is counted
    ----------------------  -------------------------------------------------------------------------------------------
    kcli poll               Consumer.poll: an object for each record
    kcli poll_arrow         Consumer.poll_arrow: columns, taken by pyarrow.record_batch
    confluent-kafka         Consumer.consume(500), as its documentation recommends for speed
    kafka-python            KafkaConsumer.poll
    Java client             Kafka's ConsumerPerformance, a member of a group (see java_client)

Each reads the same records of a running `kcli serve` from the beginning, in a process of its own whose whole CPU time (user and
system, all threads) after the first records counts. They take turns, so that changes in the machine's speed affect all.

With --lag the peak of resident memory of each is measured instead, for a consumer that begins so many MB behind the end of 16
partitions and reads all of them.

    python -m benchmarks.bench_consume [--partitions N | --lag MB]
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.brokers import Broker, Client, started
from benchmarks.java_client import cpu_of_a_record
from kcli.format.compression import codec_id, deflate
from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Record, encode_records

ROUNDS = 3
BATCH_RECORDS, BATCHES = 150, 8_000
TOPICS = {"plain": "none", "lz4": "lz4", "zstd": "zstd"}
SLOW = {"kafka_python"}  # reads a tenth of the records


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def kcli_poll(address: str, topic: str, records: int, partitions: int) -> float:
    from kcli.client.shell.consumer import Consumer

    with Consumer({"bootstrap.servers": address, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(topic, index) for index in range(partitions)])
        count = len(consumer.poll(10))
        began, first = cpu_s(), count
        while count < records:
            count += len(consumer.poll(10))
        return (cpu_s() - began) / (count - first)


def kcli_arrow(address: str, topic: str, records: int, partitions: int) -> float:
    import pyarrow

    from kcli.client.shell.consumer import Consumer

    with Consumer({"bootstrap.servers": address, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(topic, index) for index in range(partitions)])
        count = consumer.poll_arrow(10).rows
        began, first = cpu_s(), count
        while count < records:
            for batch in consumer.poll_arrow(10):
                count += pyarrow.record_batch(batch).num_rows
        return (cpu_s() - began) / (count - first)


def confluent(address: str, topic: str, records: int, partitions: int) -> float:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "b", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    count = len(consumer.consume(500, 10))
    began, first = cpu_s(), count
    while count < records:
        count += len(consumer.consume(500, 10))
    return (cpu_s() - began) / (count - first)


def kafka_python(address: str, topic: str, records: int, partitions: int) -> float:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", group_id=None)
    consumer.assign([TopicPartition(topic, index) for index in range(partitions)])
    count = 0
    while not count:
        count += sum(map(len, consumer.poll(1000).values()))
    began, first = cpu_s(), count
    while count < records:
        count += sum(map(len, consumer.poll(1000).values()))
    return (cpu_s() - began) / (count - first)


def java(address: str, topic: str, records: int, partitions: int) -> float:
    words = ["--bootstrap-server", address, "--topic", topic, "--timeout", "60000"]
    return cpu_of_a_record("ConsumerPerformance", words, records // 4, records)


RUNS = {one.__name__: one for one in (kcli_poll, kcli_arrow, confluent, kafka_python, java)}


def kcli_lag(address: str, topic: str, records: int) -> float:
    from kcli.client.shell.consumer import Consumer

    with Consumer({"bootstrap.servers": address, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(topic, index) for index in range(LAG_PARTITIONS)])
        count = 0
        while count < records:
            count += len(consumer.poll(10))
    return peak_mb()


def kcli_arrow_lag(address: str, topic: str, records: int) -> float:
    from kcli.client.shell.consumer import Consumer

    with Consumer({"bootstrap.servers": address, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(topic, index) for index in range(LAG_PARTITIONS)])
        count = 0
        while count < records:
            count += consumer.poll_arrow(10).rows
    return peak_mb()


def confluent_lag(address: str, topic: str, records: int) -> float:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "b", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(LAG_PARTITIONS)])
    count = 0
    while count < records:
        count += len(consumer.consume(500, 10))
    return peak_mb()


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


LAG_RUNS = {one.__name__: one for one in (kcli_lag, kcli_arrow_lag, confluent_lag)}
LAG_PARTITIONS, LAG_RECORD_BYTES, LAG_BATCH_RECORDS = 16, 1000, 1000


def fill(broker: Broker, partitions: int) -> None:
    """Produce the records of all topics."""
    client = Client(broker.port)
    for topic, codec in TOPICS.items():
        client.create_topic(topic, partitions)
        values = [(b"%08d" % (index * 7919)) * 12 + b"tail" for index in range(BATCH_RECORDS)]
        records = deflate(
            codec_id(codec), encode_records(Record(index, index, None, value) for index, value in enumerate(values))
        )
        now_ms = int(time.time() * 1000)
        batch = NewRecordBatch(0, BATCH_RECORDS - 1, now_ms, now_ms, BATCH_RECORDS, records, codec_id(codec)).encode()
        frames = [client.produce_frame(topic, index, batch) for index in range(partitions)]
        for number in range(BATCHES):
            client.send(frames[number % partitions])


@contextmanager
def serving() -> Iterator[Broker]:
    """Yield a broker that keeps all records, with an empty directory."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory) / "kcli"
        home.mkdir()
        with started(Broker("kcli", home, ("log.retention.ms=-1",))) as broker:
            yield broker


def run_apart(name: str, broker: Broker, topic: str, records: int, timeout_s: float, *more: object) -> float:
    """Run one of the consumers in a process of its own; return what it prints."""
    words = [f"127.0.0.1:{broker.port}", topic, str(records), *map(str, more)]
    command = [sys.executable, "-m", "benchmarks.bench_consume", name, *words]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout_s).stdout.split()[-1])


def lag(megabytes: int) -> None:
    """Print the peak memory of each consumer that reads so many MB."""
    with serving() as broker:
        client = Client(broker.port)
        client.create_topic("lag", LAG_PARTITIONS)
        value = b"v" * LAG_RECORD_BYTES
        records = encode_records(Record(index, index, None, value) for index in range(LAG_BATCH_RECORDS))
        now_ms = int(time.time() * 1000)
        batch = NewRecordBatch(0, LAG_BATCH_RECORDS - 1, now_ms, now_ms, LAG_BATCH_RECORDS, records).encode()
        frames = [client.produce_frame("lag", index, batch) for index in range(LAG_PARTITIONS)]
        count = megabytes * 1_000_000 // len(batch)
        for index in range(count):
            client.send(frames[index % LAG_PARTITIONS])
        print(f"| consumer that lags by {megabytes:,} MB | peak of resident memory, MB | s |\n|---|---|---|")
        for name in LAG_RUNS:
            began = time.monotonic()
            peak = run_apart(name, broker, "lag", count * LAG_BATCH_RECORDS, 600)
            print(f"| {name} | {peak:.0f} | {time.monotonic() - began:.1f} |")


def main() -> None:
    if sys.argv[1:2] == ["--lag"]:
        lag(int(sys.argv[2]))
        return
    partitions = 1
    if sys.argv[1:2] == ["--partitions"]:
        partitions = int(sys.argv[2])
    elif sys.argv[1:2] and sys.argv[1] in LAG_RUNS:
        name, address, topic, records = sys.argv[1:]
        print(LAG_RUNS[name](address, topic, int(records)))
        return
    elif len(sys.argv) > 1:
        name, address, topic, records, of = sys.argv[1:]
        print(RUNS[name](address, topic, int(records), int(of)))
        return
    found: dict[tuple[str, str], list[float]] = {}
    with serving() as broker:
        fill(broker, partitions)
        for _ in range(ROUNDS):
            for topic in TOPICS:
                for name in RUNS:
                    records = BATCH_RECORDS * BATCHES // (10 if name in SLOW else 1)
                    found.setdefault((topic, name), []).append(run_apart(name, broker, topic, records, 120, partitions) * 1e6)
    print("| records of 100 B, batches of 150 | us of CPU a record, median | best |\n|---|---|---|")
    for (topic, name), costs in found.items():
        print(f"| {topic}: {name} | {statistics.median(costs):.3f} | {min(costs):.3f} |")


if __name__ == "__main__":
    main()
