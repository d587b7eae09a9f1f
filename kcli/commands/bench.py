"""`kcli bench`: how fast a topic is written and read, with latencies (as kafka-producer-perf-test, kafka-consumer-perf-test).

figure          what it is
--------------  ------------------------------------------------------------------------------------------------------
latency         produce: from the call of send to the acknowledgement, with the time in the batch; consume: from the
                record's timestamp to poll, only with --follow, since records that lay there have none
MB              10^6 bytes of keys and values
client CPU      user and system time of this process, with the time to make the records
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kcli.commands.client_options import (
    ClientLog,
    add_client_options,
    add_producer_options,
    check_cluster,
    client_errors,
    client_properties,
    producer_settings,
)
from kcli.commands.output import EXIT_FINDINGS, EXIT_OK, CannotRun, print_message, print_text

if TYPE_CHECKING:
    from kcli.client import ConsumerRecord
    from kcli.inspect.dumping.sketches import SizeHistogram
    from kcli.inspect.json_text import JsonObject

ARGUMENTS = "produce|consume --topic TOPIC"
DESCRIPTION = """\
Measures how fast a topic of a running cluster is written or read: records and bytes per second, latencies, and CPU
time of this client. `kcli bench produce` writes real records: use a topic that is only for tests."""
EPILOG = """\
Exit codes: 0 done; 1 records were not acknowledged, or fewer than --num-records were read; 2 the command could not
run. docs/console.md has examples."""

DEFAULT_RECORDS = 100_000
DEFAULT_RECORD_BYTES = 100
DEFAULT_TIMEOUT_MS = 10_000
VALUES = 512  # different values, which are sent in turn: making one for each record would be part of what is measured
VALUES_BYTES = 16 * 1024 * 1024  # at most, if that is more than one value
SEED = 1
LETTERS = bytes(ord("A") + byte % 26 for byte in range(256))
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))
BAR_COLUMNS = 40
PAUSE_S = 0.001  # the finest step in which a limited rate is kept


class Totals(NamedTuple):
    """What one run came to; `latencies_us` is empty if there are none."""

    records: int
    size_bytes: int
    elapsed_s: float
    cpu_s: float
    latencies_us: SizeHistogram


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kcli bench`."""
    parser.add_argument("what", choices=["produce", "consume"], help="what to measure")
    parser.add_argument("--topic", required=True, metavar="TOPIC", help="write to this topic, or read it")
    parser.add_argument("--output", choices=["text", "json"], default="text", help="format of the result (%(default)s)")
    add_client_options(parser)
    parser.add_argument("--num-records", type=int, default=DEFAULT_RECORDS, metavar="N", help="number of records (%(default)s)")
    group = parser.add_argument_group("produce")
    group.add_argument("--record-size", type=int, metavar="BYTES", help=f"size of each value ({DEFAULT_RECORD_BYTES})")
    group.add_argument("--throughput", type=float, metavar="N", help="records per second; -1: as many as possible (-1)")
    add_producer_options(group)
    group = parser.add_argument_group("consume")
    group.add_argument("--follow", action="store_true", help="read only new records, and measure their latencies")
    group.add_argument(
        "--timeout-ms", type=int, metavar="MS", help=f"stop when no record has arrived for this time ({DEFAULT_TIMEOUT_MS})"
    )


# The options of one measurement, which would have no effect on the other, with their defaults.
_OWN_OPTIONS: dict[str, dict[str, int | bool | None]] = {
    "produce": {"record_size": DEFAULT_RECORD_BYTES, "throughput": -1, "acks": None, "compression_type": None},
    "consume": {"follow": False, "timeout_ms": DEFAULT_TIMEOUT_MS},
}


def _fill_in(args: argparse.Namespace) -> None:
    """Give the options that are not given their defaults. Raises CannotRun for those of the other measurement."""
    for what, options in _OWN_OPTIONS.items():
        for name, default in options.items():
            is_given = getattr(args, name) not in (None, False)
            if is_given and what != args.what:
                raise CannotRun(f"--{name.replace('_', '-')} is for kcli bench {what}")
            if not is_given:
                setattr(args, name, default)


def run(args: argparse.Namespace) -> int:
    """Measure, print the result and return the exit code. Raises CannotRun."""
    _fill_in(args)
    if args.num_records < 1 or args.record_size < 0:
        raise CannotRun("--num-records must be 1 or more, --record-size 0 or more")
    if args.timeout_ms < 0:
        raise CannotRun(f"--timeout-ms {args.timeout_ms}: write 0 or more milliseconds")
    properties = client_properties(args, producer_settings(args) if args.what == "produce" else None)
    with client_errors():
        totals = _produce(args, properties) if args.what == "produce" else _consume(args, properties)
    if args.output == "json":
        from kcli.inspect.json_text import dump

        print_text(dump(report(args.what, args.topic, totals)))
    else:
        print_text("\n".join(lines(args.what, totals)))
    return EXIT_OK if totals.records == args.num_records else EXIT_FINDINGS


# --------------------------------------------------------------------------------------------------------------- produce


def _produce(args: argparse.Namespace, properties: dict[str, str]) -> Totals:
    from kcli.client import Producer
    from kcli.inspect.dumping.sketches import SizeHistogram

    latencies = SizeHistogram()
    errors: list[Exception] = []

    def delivered(sent_ns: int, metadata: object, error: Exception | None) -> None:
        if error is None:
            latencies.add((time.perf_counter_ns() - sent_ns) // 1000)
        else:
            errors.append(error)

    values = make_values(args.record_size)
    with ClientLog() as log, Producer(properties, log=log) as producer:
        check_cluster(properties, log)
        log.watch(producer)
        producer.partitions_for(args.topic)  # the metadata are no part of what is measured
        began, cpu_began = time.perf_counter(), time.process_time()
        for number in paced(args.num_records, args.throughput):
            on_delivery = partial(delivered, time.perf_counter_ns())
            producer.send(args.topic, values[number % len(values)], on_delivery=on_delivery)
            if errors:
                break
        producer.flush()
        elapsed_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    if errors:
        print_message(f"{len(errors):,} records were not acknowledged: {errors[0]}")
    return Totals(latencies.count, latencies.count * args.record_size, elapsed_s, cpu_s, latencies)


def make_values(size_bytes: int) -> list[bytes]:
    """Make the values to send: random letters, which no codec shrinks to nothing; fewer values if they are large."""
    import random

    rng = random.Random(SEED)
    count = min(VALUES, max(1, VALUES_BYTES // max(size_bytes, 1)))
    return [rng.randbytes(size_bytes).translate(LETTERS) for _ in range(count)]


def paced(count: int, per_second: float) -> Iterator[int]:
    """Yield the numbers below `count`, `per_second` of them in a second; 0 or less is no limit."""
    began = time.perf_counter()
    for number in range(count):
        if per_second > 0:
            ahead_s = number / per_second - (time.perf_counter() - began)
            if ahead_s > PAUSE_S:
                time.sleep(ahead_s)
        yield number


# --------------------------------------------------------------------------------------------------------------- consume


def _consume(args: argparse.Namespace, properties: dict[str, str]) -> Totals:
    from kcli.client import Consumer
    from kcli.inspect.dumping.sketches import SizeHistogram

    latencies = SizeHistogram()
    records = size_bytes = 0
    with ClientLog() as log, Consumer({"max.poll.records": "10000", **properties}, log=log) as consumer:
        check_cluster(properties, log)
        log.watch(consumer)
        partitions = [(args.topic, one.partition) for one in consumer.partitions_for(args.topic)]
        if not partitions:
            raise CannotRun(f"there is no topic {args.topic}")
        consumer.assign(partitions)
        if args.follow:
            consumer.seek_to_end(partitions)
            for partition in partitions:
                consumer.position(partition)
        else:
            consumer.seek_to_beginning(partitions)
        began, cpu_began = time.perf_counter(), time.process_time()
        while records < args.num_records:
            found = consumer.poll(args.timeout_ms / 1000)
            if not found:
                break
            if not records and args.follow:
                began, cpu_began = time.perf_counter(), time.process_time()
            records += len(found)
            for record in found:
                size_bytes += size_of(record)
            if args.follow:
                now_ms = time.time_ns() // 1_000_000
                for record in found:
                    latencies.add(max(now_ms - record.timestamp, 0) * 1000)
        elapsed_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    if records < args.num_records:
        print_message(f"no record came for {args.timeout_ms:,} ms; {records:,} of {args.num_records:,} were read")
    return Totals(records, size_bytes, elapsed_s, cpu_s, latencies)


def size_of(record: ConsumerRecord) -> int:
    """Return the size of a record's key and value."""
    return sum(len(data) for data in (record.key, record.value) if isinstance(data, bytes))


# ----------------------------------------------------------------------------------------------------------------- result


def report(what: str, topic: str, totals: Totals) -> JsonObject:
    """Return the result for --output json; latencies are in microseconds."""
    found: JsonObject = {
        "type": f"bench-{what}",
        "topic": topic,
        "records": totals.records,
        "sizeInBytes": totals.size_bytes,
        "elapsedSeconds": round(totals.elapsed_s, 6),
        "recordsPerSecond": round(totals.records / totals.elapsed_s, 3),
        "bytesPerSecond": round(totals.size_bytes / totals.elapsed_s, 3),
        "clientCpuSeconds": round(totals.cpu_s, 6),
    }
    latencies = totals.latencies_us
    if latencies.count:
        found["latencyMicros"] = {
            "min": latencies.least,
            "mean": latencies.total // latencies.count,
            **{name: latencies.quantile(share) for name, share in QUANTILES},
            "max": latencies.most,
            "doublings": [{"from": first, "count": count} for first, count in latencies.doublings()],
        }
    return found


def lines(what: str, totals: Totals) -> Iterator[str]:
    """Yield the result for people."""
    verb = "written" if what == "produce" else "read"
    rate, megabytes = totals.records / totals.elapsed_s, totals.size_bytes / 1e6
    yield f"{totals.records:,} records, {megabytes:,.1f} MB {verb} in {totals.elapsed_s:.2f} s"
    yield f"  {rate:,.0f} records/s, {megabytes / totals.elapsed_s:,.1f} MB/s"
    if totals.cpu_s:
        per_record = totals.cpu_s / max(totals.records, 1) * 1e6
        yield f"  client CPU {totals.cpu_s:.2f} s, {per_record:.2f} us a record"
    latencies = totals.latencies_us
    if not latencies.count:
        return
    yield ""
    named = [(name, latencies.quantile(share)) for name, share in QUANTILES]
    named = [("min", latencies.least), ("mean", latencies.total // latencies.count), *named, ("max", latencies.most)]
    yield "latency   " + "   ".join(f"{name} {_duration(value)}" for name, value in named)
    yield ""
    yield from histogram_lines(latencies)


def histogram_lines(latencies: SizeHistogram) -> Iterator[str]:
    """Yield a bar for each power of two."""
    rows = latencies.doublings()
    most = max(count for _, count in rows)
    for first, count in rows:
        bar = "#" * max(round(BAR_COLUMNS * count / most), 1)
        yield f"  from {_duration(first):>8}  {count:>12,}  {100 * count / latencies.count:5.1f} %  {bar}"


def _duration(micros: int) -> str:
    if micros < 1000:
        return f"{micros} us"
    return f"{micros / 1000:.1f} ms" if micros < 1_000_000 else f"{micros / 1e6:.2f} s"
