"""to-parquet beside its floor and beside what people do today, in one run; prints a table with ratios.

    python -m benchmarks.bench_parquet INPUTS [--rounds N] [--columns A,B] [--live PORT] [--only NAME]

INPUTS is what `benchmarks.make_inputs` made. For each of its four partitions, in one warm session with local[2]:

    floor        Spark rewrites the same rows, same columns, from uncompressed Parquet to zstd Parquet
    same level   the floor again, with the level of zstd that to-parquet takes (Spark takes 3 by itself)
    to-parquet   the same rows out of the segment (kcli.spark.parquet_export, the account at its end included)
    live         with --live: a real Kafka on 127.0.0.1:PORT serves the segment to a consumer (confluent-kafka) that writes zstd
                 Parquet by pyarrow, one process, as is usual; PORT and PORT + 1 must be free. It runs once for each input.

Rounds alternate, the best of each counts. All inputs are read once before, so that nobody waits for a disk. Also told: the
CPU time of both, which other work on the machine disturbs less, and of inflating the segment's batches alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import warm

FLOOR, SAME_LEVEL, OURS, LIVE = "floor", "same level", "to-parquet", "live"
CPU = " cpu"
CONSUMER_BATCH = 10_000
STEP_SECONDS = 300


def seconds(act: Callable[[], object]) -> float:
    """How long something takes."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def cpu_seconds() -> float:
    """The CPU time that this process and all below it (Spark's JVM, its Python workers) have used so far."""
    ticks: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended
        ticks[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while more := {pid for pid, (parent, _) in ticks.items() if parent in family} - family:
        family |= more
    return sum(ticks[pid][1] for pid in family) / os.sysconf("SC_CLK_TCK")


def warm_all(*paths: Path) -> None:
    """Read files once, so that they lie in the page cache."""
    for path in paths:
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file():
                warm(file)


def inflate_seconds(segment: Path) -> float:
    """How long inflating every batch of a segment takes on one core."""
    from kcli.format.compression import inflate
    from kcli.format.record_batch import HEADER_BYTES
    from kcli.log.disk.os_disk import OsDisk
    from kcli.log.reading.segment_reader import LogBatch, SegmentReader

    total = 0.0
    with SegmentReader(OsDisk(), str(segment)) as reader:
        for batch in reader.batches():
            if isinstance(batch, LogBatch) and batch.header.codec and batch.data is not None:
                payload = batch.data[HEADER_BYTES:]
                start = time.perf_counter()
                inflate(batch.header.codec, payload, limit=1 << 26)
                total += time.perf_counter() - start
    return total


def measure(spark: Any, source: Path, work: Path, rounds: int, columns: str) -> dict[str, float]:
    """The best time of the floor and of to-parquet for one partition directory, in seconds."""
    from kcli.spark.data_source import FORMAT
    from kcli.spark.parquet_export import DEFAULT_COMPRESSION, ExportOptions, compression_options, export

    choice = {"columns": columns} if columns else {}
    plain = work / "plain"
    options = {"paths": str(source), "minPartitions": "2", **choice}
    spark.read.format(FORMAT).options(**options).load().write.option("compression", "none").parquet(str(plain))
    warm_all(plain, source)
    best: dict[str, float] = {}
    rows = set()

    def floor(out: Path) -> None:
        spark.read.parquet(str(plain)).write.option("compression", "zstd").parquet(str(out))

    def same_level(out: Path) -> None:
        spark.read.parquet(str(plain)).write.options(**compression_options(DEFAULT_COMPRESSION)).parquet(str(out))

    def ours(out: Path) -> None:
        rows.add(export(spark, ExportOptions(str(out), dict(options))).rows)

    for _ in range(rounds):
        for name, act in ((FLOOR, floor), (SAME_LEVEL, same_level), (OURS, ours)):
            out = work / "out"
            before = cpu_seconds()
            taken = seconds(lambda act=act, out=out: act(out))
            used = cpu_seconds() - before
            best[name] = min(taken, best.get(name, taken))
            best[name + CPU] = min(used, best.get(name + CPU, used))
            print(f"    {name:<12}{taken:8.2f} s, {used:6.2f} s of CPU", file=sys.stderr, flush=True)
            shutil.rmtree(out)
    assert rows == {spark.read.parquet(str(plain)).count()}, "the two did not write the same rows"
    shutil.rmtree(plain)
    return best


# ---------------------------------------------------------------------------------------------------- what people do today


def run_live(inputs: dict[str, Path], records: dict[str, int], work: Path, port: int) -> dict[str, float]:
    """Serve copies of the partitions by a real broker and consume each into zstd Parquet -> seconds for each."""
    from tests.oracle.peer import find_peer

    peer = find_peer()
    if peer is None:
        raise SystemExit("no real Kafka: ../shared/apache-kafka/kafka is missing (KCLI_KAFKA_PEER may name another)")
    broker = work / "broker"
    settings = ("log.retention.ms=-1", "log.retention.bytes=-1", "log.segment.bytes=1073741824", "log.cleaner.enable=false")
    command = [str(peer), "format", str(broker), str(port), *settings]
    subprocess.run(command, check=True, timeout=STEP_SECONDS, stdout=subprocess.DEVNULL)
    start = [str(peer), "start", str(broker)]
    subprocess.run(start, check=True, timeout=STEP_SECONDS, stdout=subprocess.DEVNULL)
    taken: dict[str, float] = {}
    try:
        for name in inputs:
            create = ["java", "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", f"127.0.0.1:{port}", "--create"]
            create += ["--topic", name, "--partitions", "1", "--config", "segment.bytes=1073741824"]
            subprocess.run([str(peer), *create], check=True, timeout=STEP_SECONDS, stdout=subprocess.DEVNULL)
        subprocess.run([str(peer), "stop", str(broker)], check=True, timeout=STEP_SECONDS)
        for name, source in inputs.items():
            target = broker / "data" / f"{name}-0"
            for file in source.iterdir():
                if file.suffix in (".log", ".index", ".timeindex", ".snapshot"):
                    shutil.copyfile(file, target / file.name)
        for checkpoint in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            lines = "".join(f"{name} 0 {records[name]}\n" for name in inputs)
            (broker / "data" / checkpoint).write_text(f"0\n{len(inputs)}\n{lines}")
        subprocess.run(start, check=True, timeout=STEP_SECONDS, stdout=subprocess.DEVNULL)
        for name in inputs:
            warm_all(broker / "data" / f"{name}-0")
            taken[name] = seconds(lambda name=name: consume(name, records[name], port, work / "live.parquet"))
            print(f"    {name}: live {taken[name]:8.2f} s", file=sys.stderr, flush=True)
    finally:
        subprocess.run([str(peer), "stop", str(broker)], check=False, timeout=STEP_SECONDS)
        shutil.rmtree(broker, ignore_errors=True)
    return taken


def consume(topic: str, records: int, port: int, out: Path) -> None:
    """Read a topic from its start and write key, value, topic, partition, offset and timestamp as zstd Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "bench", "enable.auto.commit": False, "fetch.min.bytes": 1 << 20}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", "UTC")),
            ("timestampType", pa.int32()),
        ]
    )
    done = 0
    deadline = time.monotonic() + STEP_SECONDS
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        while done < records:
            messages = consumer.consume(CONSUMER_BATCH, timeout=5.0)
            if time.monotonic() > deadline:
                raise SystemExit(f"the consumer got {done} of {records} records in {STEP_SECONDS} s")
            stamps = [message.timestamp() for message in messages]
            columns = [
                [message.key() for message in messages],
                [message.value() for message in messages],
                [message.topic() for message in messages],
                [message.partition() for message in messages],
                [message.offset() for message in messages],
                [stamp for _, stamp in stamps],
                [kind for kind, _ in stamps],
            ]
            writer.write_batch(
                pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
            )
            done += len(messages)
    consumer.close()
    out.unlink()


# ---------------------------------------------------------------------------------------------------------------- table


def table(results: dict[str, dict[str, float]]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| input | floor, s | same level, s | to-parquet, s | x floor | x same level | CPU of the three, s | inflating, s "
        "| live, s | live / ours |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in results.items():
        live = found.get(LIVE)
        lines.append(
            f"| {name} | {found[FLOOR]:.2f} | {found[SAME_LEVEL]:.2f} | {found[OURS]:.2f} | {found[OURS] / found[FLOOR]:.2f} | "
            f"{found[OURS] / found[SAME_LEVEL]:.2f} | "
            f"{', '.join(f'{found[way + CPU]:.1f}' for way in (FLOOR, SAME_LEVEL, OURS))} | {found['inflate']:.2f} | "
            + (f"{live:.1f} | {live / found[OURS]:.1f} |" if live else "- | - |")
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table."""
    parser = argparse.ArgumentParser(description="to-parquet beside Spark itself and a live pipeline.")
    parser.add_argument("inputs", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--columns", default="key,value,topic,partition,offset,timestamp,timestampType")
    parser.add_argument("--live", type=int, metavar="PORT")
    parser.add_argument("--only", metavar="NAME")
    parser.add_argument("--memory", default="4g", help="heap of Spark's JVM")
    args = parser.parse_args()
    made = json.loads((args.inputs / "inputs.json").read_text())
    names = [name.removesuffix("-0") for name in made]
    inputs = {name: args.inputs / f"{name}-0" for name in names if args.only in (None, name)}
    records = {name: int(found["records"]) for name, found in zip(names, made.values(), strict=True)}
    from kcli.spark.session import start_session

    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="kcli-bench-", dir=os.environ.get("KCLI_BENCH_DIR")) as folder:
        work = Path(folder)
        spark = start_session("local[2]", "bench_parquet", {"spark.driver.memory": args.memory})
        for name, source in inputs.items():
            print(f"{name}", file=sys.stderr, flush=True)
            results[name] = measure(spark, source, work, args.rounds, args.columns)
            (segment,) = source.glob("*.log")
            warm(segment)
            results[name]["inflate"] = inflate_seconds(segment)
        spark.stop()
        if args.live is not None:
            for name, taken in run_live(inputs, records, work, args.live).items():
                results[name][LIVE] = taken
    print(table(results))


if __name__ == "__main__":
    main()
