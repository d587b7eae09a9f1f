"""What a live log costs beside the device: an append, a read, an opening; the best of many rounds, since machines are noisy.

    python -m benchmarks.bench_log

Appends go to a file that takes everything and keeps nothing, so that only kcli is measured: its checks (CRC and records, both
compiled) and its Python. A batch of one record shows the Python alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kcli.format.compression import codec_id, deflate
from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.log.disk import LogFile, OsDisk
from kcli.log.file_cache import FileCache
from kcli.log.log_config import LogConfig
from kcli.log.log_opener import open_log
from kcli.log.unified_log import UnifiedLog

NOW_MS = 1_700_000_000_000
ROUNDS = 30
APPENDS = 20
PARTITIONS = 16
LOGS = 200


class Nowhere:
    """A LogFile that keeps nothing."""

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


def best_us(prepare: Callable[[], object], run: Callable[[object], int]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        prepared = prepare()
        began = time.perf_counter()
        times = run(prepared)
        best = min(best, (time.perf_counter() - began) / times)
    return best * 1e6


def append_us(directory: Path, records: int, value_bytes: int, *, codec: str = "none", idempotent: bool = False) -> float:
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

    return best_us(prepare, run)


def tail_read_us(root: Path) -> float:
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

    return best_us(prepare, run)


def open_us(root: Path) -> tuple[float, float]:
    """After a clean stop, and after a crash, of logs of one segment with one batch."""
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
    began = time.perf_counter()
    opened(clean=True, end=100)
    clean = time.perf_counter() - began
    began = time.perf_counter()
    opened(clean=False, end=0)
    return clean / LOGS * 1e6, (time.perf_counter() - began) / LOGS * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        rows = {
            "append, 1 record of 100 B": append_us(root / "a", 1, 88),
            "append, 1 record of 100 B, idempotent": append_us(root / "b", 1, 88, idempotent=True),
            "append, 1,000 records of 100 B": append_us(root / "c", 1000, 88),
            "append, 100 records of 1 KB": append_us(root / "d", 100, 1000),
            "append, 100 records of 1 KB, lz4": append_us(root / "e", 100, 1000, codec="lz4"),
            "append, 100 records of 1 KB, zstd": append_us(root / "f", 100, 1000, codec="zstd"),
            "read at the end, of 16 partitions": tail_read_us(root / "g"),
        }
        rows["open after a clean stop"], rows["open after a crash"] = open_us(root / "h")
        for name, microseconds in rows.items():
            print(f"{name:40} {microseconds:8.1f} us")


if __name__ == "__main__":
    main()
