"""Compares a round of kcli's cleaner with one of Apache Kafka's: the same log, on the same machine, one after the other.

    python -m benchmarks.bench_cleaner DIR [--rows 100b-none,...] [--megabytes 1000] [--rounds 3]

DIR is for the inputs, which are created once and kept, and for the output of the rounds, which is deleted. It needs three times
--megabytes for each row. The result is a table (as in RESULTS.md) on stdout, and a JSON object for each round on stderr.

    row          records                                          keys, drawn at random
    -----------  -----------------------------------------------  ---------------------
    100b-none    100 B each, the whole record                     1,000,000
    100b-zstd    the same, in batches compressed by zstd           1,000,000
    1kb-none     1,000 B                                          50,000
    1kb-zstd     the same with zstd                               50,000
    txn-small    100 B each, in transactions of ten: a batch of     100,000
                 them and the marker that commits it

Values are random capital letters. Batches are those of an idempotent producer with up to 16 KB of records, segments have 1 GiB,
and nothing was cleaned before. --megabytes is the size of the uncompressed records.

Only the round is measured, without the start of the process and the opening of the log. Both programs flush the new segments
before they replace the old ones. Kafka's Cleaner runs with its defaults (a map of 128 MiB, buffers of 512 KiB, no throttle) in
its own JVM with the JVM's defaults. It cleans the same log ROUNDS_OF_A_JVM times, and the best round is used, when the JIT
compiler has finished; its CPU time is that of the whole JVM during the round, or of the cleaner's thread, as the columns say.
kcli runs one round in a new process; its CPU time is user and system time. Each figure is the best of --rounds. The segments
are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import ENVIRONMENT, ROOT, markdown_table, warm
from kcli.format.compression import codec_id, deflate
from kcli.format.end_transaction_marker import encode_marker
from kcli.format.primitives import write_varint
from kcli.format.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.log.cleaner.cleaner import CleanedLog, Cleaner
from kcli.log.cleaner.log_cleaner_manager import log_to_clean
from kcli.log.cleaner.offset_map import SECRET_BYTES, OffsetMap
from kcli.log.disk.os_disk import OsDisk
from kcli.log.file_cache import FileCache
from kcli.log.log_config import LogConfig
from kcli.log.log_opener import open_log
from kcli.log.log_validator import AppendOrigin
from kcli.log.unified_log import UnifiedLog
from tests.oracle.peer import Peer

NOW_MS = 1_700_000_000_000
DEDUPE_BUFFER_BYTES = 128 * 1024 * 1024
BUFFER_BYTES = 256 * 1024  # half of log.cleaner.io.buffer.size is for reading, half for the retained records
BATCH_RECORDS_BYTES = 16_000
KEY_BYTES = 12
POOL_BYTES = 1 << 24
ROUNDS_OF_A_JVM = 3
CONFIG = LogConfig(cleanup_policy=frozenset(("compact",)))


class Row(NamedTuple):
    """An input: its name, the bytes of a record, the number of keys, the codec."""

    name: str
    record_bytes: int
    keys: int
    codec: str
    transaction_records: int = 0  # records per transaction, each of one batch; 0: no transactions

    @property
    def batch_records(self) -> int:
        """How many records a batch has."""
        return self.transaction_records or BATCH_RECORDS_BYTES // self.record_bytes


ROWS = {
    row.name: row
    for row in (
        Row("100b-none", 100, 1_000_000, "none"),
        Row("100b-zstd", 100, 1_000_000, "zstd"),
        Row("1kb-none", 1000, 50_000, "none"),
        Row("1kb-zstd", 1000, 50_000, "zstd"),
        Row("txn-small", 100, 100_000, "none", transaction_records=10),
    )
}

# ------------------------------------------------------------------------------------------------------------- inputs


def open_at(directory: Path, *, clean: bool, end: int = 0) -> UnifiedLog:
    disk = OsDisk()
    log = open_log(disk, FileCache(disk), str(directory), "t", 0, CONFIG, NOW_MS, clean_shutdown=clean, recovery_point=end)
    log.update_high_watermark(log.log_end_offset)
    return log


def record(row: Row, at: int, rng: random.Random, pool: bytes) -> bytes:
    """Encode a record with its index in the batch."""
    head = b"\0\0" + write_varint(at) + write_varint(KEY_BYTES) + b"%012d" % rng.randrange(row.keys)
    value_bytes = row.record_bytes - len(head) - 5  # two varints of two bytes, and no headers
    start = rng.randrange(POOL_BYTES - value_bytes)
    return write_varint(row.record_bytes - 2) + head + write_varint(value_bytes) + pool[start : start + value_bytes] + b"\0"


def batches(row: Row, megabytes: int) -> Iterator[memoryview]:
    """Yield batches as a producer sends them, and the markers of their transactions."""
    rng = random.Random(row.name)
    pool = rng.randbytes(POOL_BYTES).translate(bytes(65 + byte % 26 for byte in range(256)))
    codec = codec_id(row.codec)
    count = row.batch_records
    attributes = codec | (TRANSACTIONAL_FLAG if row.transaction_records else 0)
    key, value = encode_marker(is_abort=False, coordinator_epoch=0)
    marker = NewRecordBatch(
        0, 0, NOW_MS, NOW_MS, 1, encode_records([Record(0, 0, key, value)]), TRANSACTIONAL_FLAG | CONTROL_FLAG, 0, 7, 0, -1
    ).encode()
    for number in range(megabytes * 1_000_000 // (count * row.record_bytes)):
        body = b"".join(record(row, at, rng, pool) for at in range(count))
        made = NewRecordBatch(
            0, count - 1, NOW_MS, NOW_MS, count, deflate(codec, body), attributes, 0, 7, 0, number * count % (1 << 31)
        )
        yield memoryview(bytearray(made.encode()))
        if row.transaction_records:
            yield memoryview(bytearray(marker))


def make_input(row: Row, megabytes: int, directory: Path) -> None:
    """Create the log of a row if it does not exist."""
    if directory.exists():
        return
    print(f"making {directory}", file=sys.stderr, flush=True)
    making = directory.with_name(directory.name + ".making")
    shutil.rmtree(making, ignore_errors=True)
    log = open_at(making, clean=False)
    for batch in batches(row, megabytes):
        log.append_as_leader(batch, 0, NOW_MS, origin=AppendOrigin.COORDINATOR)
    log.roll(NOW_MS)
    end = log.log_end_offset
    log.close()
    (making / "end").write_text(str(end))
    making.rename(directory)


def copy_of(source: Path, target: Path) -> int:
    """Copy a log with hard links to its segments, which no round changes -> the log end offset."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix == ".log" and path.stat().st_size:
            warm(path)
            os.link(path, target / path.name)
        elif path.name != "end":
            shutil.copy2(path, target / path.name)
    return int((source / "end").read_text())


# ------------------------------------------------------------------------------------------------------------- rounds


def drive(log: UnifiedLog) -> tuple[CleanedLog, float, float]:
    """Run a round -> the result, the CPU time of its longest step, and the time of all flushes, in seconds."""
    cleanable = log_to_clean(log, None, NOW_MS)
    under_way = Cleaner(log, cleanable, OffsetMap(DEDUPE_BUFFER_BYTES, os.urandom(SECRET_BYTES)), NOW_MS, BUFFER_BYTES)
    steps, longest, flushes = under_way.run(), 0.0, 0.0
    disk = OsDisk()
    while True:
        began = time.thread_time()
        try:
            paths = next(steps)
        except StopIteration as end:
            return end.value, longest, flushes
        longest = max(longest, time.thread_time() - began)
        if paths:
            began = time.perf_counter()
            for path in paths:
                disk.flush(path)
            flushes += time.perf_counter() - began


def peak_mb() -> float:
    """Return the peak resident memory of this process (getrusage returns the parent's peak if that is higher)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def clean_here(directory: Path, end: int) -> None:
    """Clean a log in this process, and print the measurements."""
    log = open_at(directory, clean=True, end=end)
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    done, longest, flushes = drive(log)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "records": done.stats.records_read,
                "kept": done.stats.records_kept,
                "keys": done.keys,
                "seconds": wall,
                "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
                "system_seconds": after.ru_stime - before.ru_stime,
                "flush_seconds": flushes,
                "longest_step_ms": longest * 1000,
                "peak_mb": peak_mb(),
            }
        )
    )


def ours(source: Path, work: Path) -> dict[str, Any]:
    """Run a round of kcli in a new process."""
    end = copy_of(source, work / "t-0")
    command = [sys.executable, "-m", "benchmarks.bench_cleaner", "--clean", str(work / "t-0"), "--end", str(end)]
    ran = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, check=True)
    shutil.rmtree(work / "t-0")
    return dict(json.loads(ran.stdout), who="kcli")


def kafkas(peer: Peer, source: Path, work: Path) -> list[dict[str, Any]]:
    """Run rounds of Kafka's cleaner in a new JVM."""
    copies = [work / f"{at}" / "t-0" for at in range(ROUNDS_OF_A_JVM)]
    ends = [copy_of(source, copy) for copy in copies]
    lines = [
        "\t".join((str(copy), "cleanup.policy=compact", *map(str, (0, 0, end, end, NOW_MS, DEDUPE_BUFFER_BYTES)))) + "\n"
        for copy, end in zip(copies, ends, strict=True)
    ]
    (work / "cases").write_text("".join(lines))
    # With all compilers of the JVM, as a broker has them.
    environment = {**os.environ, "KAFKA_PEER_OPTS": "-Xmx1g"}
    command = peer.java_command("CleanLog", [str(work / "cases")])
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    for copy in copies:
        shutil.rmtree(copy)
    return [dict(json.loads(line), who="kafka", nth=at) for at, line in enumerate(ran.stdout.splitlines())]


# -------------------------------------------------------------------------------------------------------------- table


def measure(row: Row, options: argparse.Namespace, peer: Peer | None, work: Path) -> list[str]:
    """Return the cells of a row."""
    source = options.directory / f"{row.name}-{options.megabytes}"
    make_input(row, options.megabytes, source)
    found: list[dict[str, Any]] = []
    for _ in range(options.rounds):
        done = [*(kafkas(peer, source, work) if peer else ()), ours(source, work)]
        for each in done:
            print(json.dumps({"row": row.name, **each}), file=sys.stderr, flush=True)
        found += done
    mine = [one for one in found if one["who"] == "kcli"]
    theirs = [one for one in found if one["who"] == "kafka"]
    wall, cpu = (min(one[field] for one in mine) for field in ("seconds", "cpu_seconds"))
    records, peak = mine[0]["records"], max(one["peak_mb"] for one in mine)
    cells = [row.name, f"{records:,}", f"{wall:.2f}", f"{cpu:.2f}", f"{records / cpu / 1e6:.2f}"]
    if theirs:
        assert {one["messages_read"] for one in theirs} == {records}
        their_wall, thread, process = (
            min(one[field] for one in theirs) for field in ("seconds", "thread_cpu_seconds", "process_cpu_seconds")
        )
        cells += [f"{their_wall:.2f}", f"{thread:.2f} / {process:.2f}", f"{their_wall / wall:.2f}"]
        cells += [f"{thread / cpu:.2f} / {process / cpu:.2f}"]
    else:
        cells += ["-"] * 4
    step = min(one["longest_step_ms"] for one in mine)
    return [*cells, f"{peak:.0f}", f"{24 * mine[0]['keys'] / 1e6:.0f} + 50", f"{step:.1f}"]


HEAD = (
    "row",
    "records",
    "kcli: s",
    "CPU s",
    "M records a CPU s",
    "Kafka: s",
    "CPU s of the thread / the JVM",
    "ratio by wall",
    "ratio by CPU",
    "kcli: peak MB",
    "asked: 24 B a key + 50 MB",
    "longest step, ms of CPU",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Clean the same logs by kcli and by Kafka, and print a table.")
    parser.add_argument("directory", type=Path, nargs="?", help="where the inputs are kept")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="without Kafka")
    parser.add_argument("--clean", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--end", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.clean is not None:
        clean_here(options.clean, options.end)
        return
    if options.directory is None:
        parser.error("DIR is missing")
    options.directory = options.directory.resolve()
    options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="rounds-") as work:
        peer = None if options.alone else Peer(Path(work))
        cells = [measure(ROWS[name], options, peer, Path(work)) for name in options.rows.split(",")]
    print(markdown_table(HEAD, cells))


if __name__ == "__main__":
    main()
