"""Measures `kcli serve`, Apache Kafka and a bare Python loop with the same load of ../shared/bench (rdload), in turn.

    python -m benchmarks.bench_load [--brokers kcli,kafka,bare] [--rounds 3] [--seconds 2] [--max-mb 700] [--cells PATTERN,...]
                                    [--fresh] [--warm SECONDS] [--work DIR]

    cell     produce-BYTES-PARTITIONS-ACKS or consume-BYTES-PARTITIONS-ACKS; --cells has patterns of such names: consume-*,
             *-1024-16-*. BYTES: 100, 1024; PARTITIONS: 1, 16; ACKS: 1, all, and for produce also idempotent (acks=all)
    produce  for --seconds, or until --max-mb; each record must be acknowledged
    consume  reads topics that were filled with --max-mb megabytes, with the same number of records for every broker, in at
             least MANY_SEGMENTS segments per partition (the files are counted), completely from the start: if there are too
             few or too many records, the run ends with an error
    bare     ../shared/bench/bare_loop.py: it has no segments (one file per partition), no CreateTopics (every topic name
             exists, with the number of partitions of the command line) and no InitProducerId (no idempotent cells)

Each round starts a process per broker with an empty directory (for the bare loop, one per number of partitions), loads it for
--warm seconds that are not measured (default: as long as a cell), and runs the cells in a random order, which is the same for
all brokers. The data of a cell is deleted before the next one starts: on a virtual machine, the first write to a page of memory
costs up to seven times as much as later ones, so that later cells would be slow while the page cache grows. With --fresh each
cell has its own process and empty directory, and a warm-up only with --warm. Use it to compare with the bare loop, because no
data of earlier cells is left; Apache Kafka's JIT compiler is cold then. The output are tables on stdout with the medians of
the rounds, and a line of JSON per cell on stderr. Client and broker share the machine, so megabytes per second of the
broker's CPU time vary less than megabytes per second.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from benchmarks.brokers import Broker, Client
from benchmarks.load_generator import ACKS, Load, LoadError, LoadGenerator, load_generator
from benchmarks.measure import markdown_table
from kcli.protocol.apis import API_KEYS, DELETE_TOPICS

TITLES = {"kcli": "kcli serve", "kafka": "Apache Kafka 4.3.1", "bare": "bare loop"}
MANY_SEGMENTS = 10
LEAST_SEGMENT_BYTES = 1 << 20  # the smallest segment.bytes of Kafka
FILL_S = 120  # time limit for filling the topics of a consume cell
READ_S = 60
FORGET_S = 60  # time limit for removing the files of a deleted topic; a broker waits FILE_DELETE_DELAY_MS first
FILE_DELETE_DELAY_MS = 200
ASKED_OF_BARE = 0.65
# The required ratios to Kafka's megabytes per CPU second, by direction, record bytes and partitions.
ASKED_OF_KAFKA = {
    ("produce", 100, 1): 3, ("produce", 100, 16): 2.3, ("produce", 1024, 1): 3, ("produce", 1024, 16): 3,
    ("consume", 100, 1): 2, ("consume", 100, 16): 1.5, ("consume", 1024, 1): 1, ("consume", 1024, 16): 0.75,
}  # fmt: skip
ASKED_RATE = {1024: 1.3}  # and to its megabytes per second, by record bytes


class Cell(NamedTuple):
    """One load."""

    kind: str
    record_bytes: int
    partitions: int
    acks: str

    @property
    def name(self) -> str:
        """The name in --cells."""
        return "-".join(map(str, self))

    @property
    def title(self) -> str:
        """The name in the tables."""
        size = "1 KB" if self.record_bytes == 1024 else f"{self.record_bytes} B"
        acks = self.acks if self.acks == "idempotent" else f"acks={self.acks}"
        return f"{self.kind} {size}, {acks}, {self.partitions} partition{'s' * (self.partitions > 1)}"

    def can_be_done_by(self, broker: str) -> bool:
        """False for an idempotent producer with the bare loop, which has no producer ids."""
        return broker != "bare" or self.acks != "idempotent"


CELLS = [
    Cell(kind, size, partitions, acks)
    for kind, all_acks in (("produce", ACKS), ("consume", ACKS[:2]))
    for size in (100, 1024)
    for acks in all_acks
    for partitions in (1, 16)
]
Found = dict[tuple[Cell, str], list[Load]]


# ------------------------------------------------------------------------------------------------------------ the cells


class Session:
    """The processes of a broker in one round; `close` stops them and removes their files."""

    def __init__(self, name: str, rdload: LoadGenerator, options: argparse.Namespace) -> None:
        self.name, self.rdload, self.options = name, rdload, options
        self._brokers: dict[int, Broker] = {}
        self._topics = 0

    def measure(self, cell: Cell) -> Load:
        """Run one cell. Raises LoadError."""
        broker = self._broker(cell.partitions)
        if cell.kind == "produce":
            topic = self._topic(broker, cell.partitions)
            load = self._produce(broker, topic, cell, self.options.seconds)
        else:
            filled_bytes = self.options.max_mb * 1e6
            segment_bytes = int(filled_bytes / cell.partitions / MANY_SEGMENTS)
            topic = self._topic(broker, cell.partitions, segment_bytes=str(segment_bytes))
            filled = self._produce(broker, topic, cell, FILL_S)
            if filled.records != int(filled_bytes / cell.record_bytes):
                raise LoadError(f"{self.name} took only {filled.megabytes:.0f} MB in {FILL_S} s")
            self._count_segments(broker, topic, cell.partitions)
            load = self.rdload.consume(broker, topic, cell.partitions, cell.record_bytes, filled.records, READ_S)
        self._forget(broker, topic)
        return load

    def close(self) -> None:
        """Stop all processes."""
        for broker in self._brokers.values():
            if broker.process is not None and broker.process.poll() is None:
                broker.stop()
            broker.remove()
        self._brokers.clear()

    def _produce(self, broker: Broker, topic: str, cell: Cell, seconds: float) -> Load:
        sizes = (cell.partitions, cell.record_bytes)
        return self.rdload.produce(broker, topic, *sizes, cell.acks, seconds, self.options.max_mb)

    def _broker(self, partitions: int) -> Broker:
        """Return the process for a cell, which is started and warmed up if necessary."""
        key = partitions if self.name == "bare" else 0
        if key not in self._brokers:
            directory = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=self.options.work))
            overrides = () if self.name == "bare" else (f"log.segment.delete.delay.ms={FILE_DELETE_DELAY_MS}",)
            broker = self._brokers[key] = Broker(self.name, directory, partitions=partitions, overrides=overrides)
            broker.start()
            if self.options.warm:
                for cell in (Cell("produce", 100, 1, "1"), Cell("produce", 1024, partitions, "all")):
                    self._warm(broker, cell)
        return self._brokers[key]

    def _warm(self, broker: Broker, cell: Cell) -> None:
        """Run load that is not measured: JIT compilers warm up, files and heaps grow."""
        topic = self._topic(broker, cell.partitions)
        done = self._produce(broker, topic, cell, self.options.warm / 2)
        self.rdload.consume(broker, topic, cell.partitions, cell.record_bytes, done.records, READ_S)
        self._forget(broker, topic)

    def _topic(self, broker: Broker, partitions: int, **configs: str) -> str:
        self._topics += 1
        topic = f"t{self._topics}"
        if self.name != "bare":
            client = Client(broker.port)
            client.create_topic(topic, partitions, **configs)
            client.close()
        return topic

    def _count_segments(self, broker: Broker, topic: str, partitions: int) -> None:
        if self.name == "bare":
            return
        for partition in range(partitions):
            count = len(list((broker.directory / "data" / f"{topic}-{partition}").glob("*.log")))
            if count < MANY_SEGMENTS:
                raise LoadError(f"{self.name}: partition {partition} has only {count} segments")

    def _forget(self, broker: Broker, topic: str) -> None:
        """Delete the data of a cell."""
        if self.name == "bare":
            for path in (broker.directory / "data").glob(f"{topic}-*.log"):
                os.truncate(path, 0)
            return
        client = Client(broker.port)
        client.ask(DELETE_TOPICS, 5, API_KEYS[DELETE_TOPICS].request.new(topic_names=[topic], timeout_ms=30_000))
        client.close()
        end = time.monotonic() + FORGET_S
        while any((broker.directory / "data").glob(f"{topic}-*")):
            if time.monotonic() > end:
                raise LoadError(f"{self.name} still has files of {topic} {FORGET_S} s after the topic was deleted")
            time.sleep(0.05)


def measurements(cells: Sequence[Cell], rdload: LoadGenerator, options: argparse.Namespace) -> Iterator[tuple[Cell, str, Load]]:
    """Run all rounds, cell by cell. Raises LoadError."""

    def of(name: str, some: Sequence[Cell]) -> Iterator[tuple[Cell, str, Load]]:
        session = Session(name, rdload, options)
        try:
            for cell in some:
                if cell.can_be_done_by(name):
                    yield cell, name, session.measure(cell)
        finally:
            session.close()

    for number in range(options.rounds):
        shuffled = random.Random(number).sample(list(cells), len(cells))
        for some in [[cell] for cell in cells] if options.fresh else [shuffled]:
            for name in options.brokers:
                yield from of(name, some)


# ----------------------------------------------------------------------------------------------------------- the tables


def _median(found: Found, cell: Cell, broker: str, figure: str) -> float | None:
    loads = found.get((cell, broker))
    return statistics.median(getattr(load, figure) for load in loads) if loads else None


def _ratio(found: Found, cell: Cell, peer: str, figure: str, asked: float | None, form: str = ".2f") -> str:
    """Format the ratio of kcli to another broker, marked if it is lower than required."""
    ours, theirs = _median(found, cell, "kcli", figure), _median(found, cell, peer, figure)
    if ours is None or theirs is None:
        return "-"
    return format(ours / theirs, form) + (", **short**" if asked is not None and ours / theirs < asked else "")


def ratio_table(cells: Sequence[Cell], brokers: Sequence[str], found: Found) -> str:
    """Return a table with the medians, the ratios of kcli to the other brokers, and the required ratios."""
    head = ["MB/s, MB per broker CPU-second", *(TITLES[name] for name in brokers)]
    if "kafka" in brokers:
        head += ["by CPU, of Kafka", "asked", "by rate, of Kafka", "asked"]
    if "bare" in brokers:
        head += ["by CPU, of the bare loop", "asked"]
    rows = []
    for cell in cells:
        row = [cell.title]
        for name in brokers:
            rate, by_cpu = _median(found, cell, name, "mb_s"), _median(found, cell, name, "mb_per_cpu_s")
            row.append("-" if rate is None or by_cpu is None else f"{rate:,.0f} / {by_cpu:,.0f}")
        if "kafka" in brokers:
            asked, asked_rate = ASKED_OF_KAFKA[cell[:3]], ASKED_RATE.get(cell.record_bytes)
            row += [_ratio(found, cell, "kafka", "mb_per_cpu_s", asked), f"{asked:g}"]
            row += [_ratio(found, cell, "kafka", "mb_s", asked_rate), f"{asked_rate:g}" if asked_rate else "-"]
        if "bare" in brokers:
            row += [_ratio(found, cell, "bare", "mb_per_cpu_s", ASKED_OF_BARE, ".0%"), f"{ASKED_OF_BARE:.0%}"]
        rows.append(row)
    return markdown_table(head, rows)


def range_table(cells: Sequence[Cell], brokers: Sequence[str], found: Found) -> str:
    """Return a table with the spread of the rounds."""
    rows = []
    for cell in cells:
        row = [cell.title]
        for name in brokers:
            values = [load.mb_per_cpu_s for load in found.get((cell, name), ())]
            row.append(f"{min(values):,.0f} to {max(values):,.0f}" if values else "-")
        rows.append(row)
    return markdown_table(["MB per broker CPU-second, lowest to highest", *(TITLES[name] for name in brokers)], rows)


# ---------------------------------------------------------------------------------------------------------- the command


def parsed(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[Cell]]:
    """Parse the options -> the options, and the selected cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", default=",".join(TITLES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--max-mb", type=float, default=700)
    parser.add_argument("--cells", default="*")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--warm", type=float)
    parser.add_argument("--work", type=Path)
    options = parser.parse_args(arguments)
    options.brokers = options.brokers.split(",")
    cells = [cell for cell in CELLS if any(fnmatch(cell.name, pattern) for pattern in options.cells.split(","))]
    if options.warm is None:
        options.warm = 0 if options.fresh else options.seconds
    if unknown := [name for name in options.brokers if name not in TITLES]:
        parser.error(f"no such broker: {', '.join(unknown)}")
    if not cells:
        parser.error("no cell has such a name")
    if options.warm and options.warm < 1:
        parser.error("--warm: less than a second is not worth it")
    least_mb = (
        max((cell.partitions for cell in cells if cell.kind == "consume"), default=0)
        * MANY_SEGMENTS
        * LEAST_SEGMENT_BYTES
        / 1e6
    )
    if options.max_mb < least_mb:
        parser.error(f"--max-mb: {MANY_SEGMENTS} segments a partition need {least_mb:.0f}")
    return options, cells


def main() -> None:
    """Measure the selected cells, and print the tables."""
    options, cells = parsed(None)
    found: Found = {}
    with tempfile.TemporaryDirectory(prefix="bench-load-", dir=options.work) as work:
        options.work = Path(work)
        rdload = load_generator(options.work)
        if not rdload.can_be_idempotent:
            cells = [cell for cell in cells if cell.acks != "idempotent"]
            print("RDLOAD names the load generator: no idempotent cells", file=sys.stderr)
        try:
            for cell, name, load in measurements(cells, rdload, options):
                found.setdefault((cell, name), []).append(load)
                figures = {"mb_s": round(load.mb_s), "mb_per_cpu_s": round(load.mb_per_cpu_s)}
                line = {"cell": cell.name, "broker": name, "records": load.records} | figures
                print(json.dumps(line), file=sys.stderr, flush=True)
        except LoadError as error:
            sys.exit(str(error))
    print(ratio_table(cells, options.brokers, found), range_table(cells, options.brokers, found), sep="\n\n")


if __name__ == "__main__":
    main()
