"""Measures the CPU cost of the broker's Python code without device and network: request envelopes, and a live log.

    python -m benchmarks.bench_log            one JSON object per line: what, median_us, best_us, rounds

Compare the medians; the best value shows how much a busy machine added. Appends "to nowhere" go to a file that discards all
bytes, so that only kcli is measured: its checks (CRC and records, both compiled) and its Python code. A batch of one record
shows the Python code alone. Appends "to a file" write to a file in the temporary directory, without a flush.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import bench_messages
from kcli.format.compression import codec_id, deflate
from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import LogFile
from kcli.log.file_cache import FileCache
from kcli.log.log_config import LogConfig
from kcli.log.log_opener import open_log
from kcli.log.unified_log import UnifiedLog

NOW_MS = 1_700_000_000_000
ROUNDS = 60
APPENDS = 20
MESSAGES = 500  # a round
FILE_APPENDS = 100
BATCH_BYTES = 1_000_000
PARTITIONS = 16
LOGS = 200


class Nowhere:
    """A LogFile that discards all bytes."""

    name = "nowhere"

    def append(self, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        return 0

    def close(self) -> None:
        pass


class NowhereDisk(OsDisk):
    def open_log_file(self, path: str, *, create: bool) -> LogFile:  # type: ignore[override]
        return Nowhere()  # type: ignore[return-value]


def batch(records: int, value_bytes: int, *, codec: str = "none", sequence: int = -1) -> memoryview:
    body = encode_records(Record(at, at % 50, b"k%d" % at, b"v" * value_bytes) for at in range(records))
    codec_number = codec_id(codec)
    last = NOW_MS + min(records - 1, 49)
    producer = (7, 0, sequence) if sequence >= 0 else (-1, -1, -1)
    return memoryview(
        bytearray(
            NewRecordBatch(
                0, records - 1, NOW_MS, last, records, deflate(codec_number, body), codec_number, 0, *producer
            ).encode()
        )
    )


class Cost(NamedTuple):
    """Measure the microseconds of one unit of work, in rounds of many units."""

    median_us: float
    best_us: float
    rounds: int


def cost_of(seconds: Sequence[float]) -> Cost:
    return Cost(statistics.median(seconds) * 1e6, min(seconds) * 1e6, len(seconds))


def measured(prepare: Callable[[], object], run: Callable[[object], int], rounds: int = ROUNDS) -> Cost:
    """Measure `run`, which returns the number of units that it has done with the result of `prepare`."""
    seconds = []
    for _ in range(rounds):
        prepared = prepare()
        began = time.perf_counter()
        times = run(prepared)
        seconds.append((time.perf_counter() - began) / times)
    return cost_of(seconds)


def message_cost(work: Callable[[], object]) -> Cost:
    def run(_: object) -> int:
        for _ in range(MESSAGES):
            work()
        return MESSAGES

    return measured(lambda: None, run)


def file_append_cost(directory: Path, record_bytes: int) -> Cost:
    """Append one batch of BATCH_BYTES repeatedly: its buffer is in the CPU cache, like one that was just received."""
    disk = OsDisk()
    log = open_log(disk, FileCache(disk), str(directory), "t", 0, LogConfig(), NOW_MS)
    overhead = 12 if record_bytes < 128 else 14
    made = batch(BATCH_BYTES // record_bytes, record_bytes - overhead)

    def prepare() -> object:
        made[:8] = bytes(8)  # the base offset, which an append overwrites
        return None

    def run(_: object) -> int:
        log.append_as_leader(made, 0, NOW_MS)
        return 1

    cost = measured(prepare, run, FILE_APPENDS)
    log.close()
    return cost


def append_cost(directory: Path, records: int, value_bytes: int, *, codec: str = "none", idempotent: bool = False) -> Cost:
    disk = NowhereDisk()
    log = open_log(disk, FileCache(disk), str(directory), "t", 0, LogConfig(), NOW_MS)
    made = [0]

    def prepare() -> object:
        found = [
            batch(records, value_bytes, codec=codec, sequence=(made[0] + at) * records if idempotent else -1)
            for at in range(APPENDS)
        ]
        made[0] += APPENDS
        return found

    def run(batches: object) -> int:
        for each in batches:  # type: ignore[attr-defined]
            log.append_as_leader(each, 0, NOW_MS)
        return APPENDS

    return measured(prepare, run)


def tail_read_cost(root: Path) -> Cost:
    disk = OsDisk()
    files = FileCache(disk)
    logs = [open_log(disk, files, str(root / f"t-{at}"), "t", at, LogConfig(), NOW_MS) for at in range(PARTITIONS)]
    ends = [0] * PARTITIONS

    def prepare() -> object:
        for at, log in enumerate(logs):
            ends[at] = log.log_end_offset
            log.append_as_leader(batch(10, 1000), 0, NOW_MS)
            log.update_high_watermark(log.log_end_offset)
        return None

    def run(_: object) -> int:
        for at, log in enumerate(logs):
            log.read(ends[at], 1 << 20, limit_offset=log.high_watermark)
        return PARTITIONS

    return measured(prepare, run)


def open_costs(root: Path) -> tuple[Cost, Cost]:
    """Measure opening logs of one segment with one batch, after a clean stop and after a crash."""
    disk = OsDisk()
    files = FileCache(disk)

    def opened(*, clean: bool, end: int) -> list[UnifiedLog]:
        return [
            open_log(disk, files, str(root / f"t-{at}"), "t", at, LogConfig(), NOW_MS, clean_shutdown=clean, recovery_point=end)
            for at in range(LOGS)
        ]

    for log in opened(clean=False, end=0):
        log.append_as_leader(batch(100, 100, sequence=0), 0, NOW_MS)
        log.close()
    seconds = []
    for clean, end in ((True, 100), (False, 0)):
        began = time.perf_counter()
        opened(clean=clean, end=end)
        seconds.append((time.perf_counter() - began) / LOGS)
    return cost_of(seconds[:1]), cost_of(seconds[1:])


def show(what: str, cost: Cost) -> None:
    row = {"what": what, "median_us": round(cost.median_us, 2), "best_us": round(cost.best_us, 2), "rounds": cost.rounds}
    print(json.dumps(row), flush=True)


def main() -> None:
    for what, work in bench_messages.rows():
        show(what, message_cost(work))
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        show("append 1 MB to a file, records of 100 B", file_append_cost(root / "x", 100))
        show("append 1 MB to a file, records of 1 KB", file_append_cost(root / "y", 1000))
        show("append to nowhere, 1 record of 100 B", append_cost(root / "a", 1, 88))
        show("append to nowhere, 1 record of 100 B, idempotent", append_cost(root / "b", 1, 88, idempotent=True))
        show("append to nowhere, 1,000 records of 100 B", append_cost(root / "c", 1000, 88))
        show("append to nowhere, 100 records of 1 KB", append_cost(root / "d", 100, 1000))
        show("append to nowhere, 100 records of 1 KB, lz4", append_cost(root / "e", 100, 1000, codec="lz4"))
        show("append to nowhere, 100 records of 1 KB, zstd", append_cost(root / "f", 100, 1000, codec="zstd"))
        show("read at the end, of 16 partitions", tail_read_cost(root / "g"))
        clean, crashed = open_costs(root / "h")
        show("open after a clean stop", clean)
        show("open after a crash", crashed)


if __name__ == "__main__":
    main()
