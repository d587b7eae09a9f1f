"""Compares dump-log and verify with Kafka's own tool and with a plain read of the file: the rows of RESULTS.md.

    python -m benchmarks.make_inputs OUT 19392        the four inputs, once (about 1.7 GB)
    python -m benchmarks.bench_inspect OUT [--runs 5]

Whole processes, warm page cache, output discarded, in turn; medians. Ratios are Kafka's wall time over kcli's.
"""

from __future__ import annotations

import argparse
import mmap
import random
import shutil
import struct
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import KAFKA, ROOT, Figure, kcli, side_by_side, warm

INPUTS = ("records-100b-none-0", "records-100b-zstd-0", "records-1kb-none-0", "records-1kb-zstd-0")
RECORDS = {"records-100b": 4_000_000, "records-1kb": 600_000}
DUMPS = {"batches only": [], "--deep-iteration": ["--deep-iteration"], "--print-data-log": ["--print-data-log"]}
AT_LEAST = {"batches only": 3, "--deep-iteration": 10, "--print-data-log": 6}

PLAIN_READ = """
import sys
from kcli.format.primitives import crc32c
buffer = memoryview(bytearray(1 << 20)); crc = 0
with open(sys.argv[1], "rb", buffering=0) as file:
    while count := file.readinto(buffer):
        crc = crc32c(buffer[:count], crc)
"""
SCAN = """
import importlib.util, sys, time
from kcli.format import record_scan
source = record_scan.__file__.split(".cpython")[0].removesuffix(".py") + ".py"
spec = importlib.util.spec_from_file_location("interpreted_scan", source)
plain = importlib.util.module_from_spec(spec); spec.loader.exec_module(plain)
from kcli.format.records import Record, encode_records
for name, module, rounds in (("interpreted", plain, 300), ("compiled", record_scan, 20000)):
    data = encode_records([Record(i, i // 50, None, b"x" * 100) for i in range(150)])
    columns, best = module.RecordColumns(4096), 1e9
    for _ in range(5):
        start = time.process_time()
        for _ in range(rounds):
            columns.begin_batch(0, 0)
            assert columns.scan(data, 0, len(data), 150, 0) == module.loop_results.COMPLETE
        best = min(best, (time.process_time() - start) / rounds / 150)
    print(f"| scanner, {name} ({'.py' if module is plain else module.__file__[-3:]}) | {1e-6 / best:.2f} M records/s |")
"""


def dump_rows(folder: Path, runs: int) -> None:
    """Measure dump-log and kafka-dump-log."""
    print("| input | what | kafka-dump-log | kcli dump-log | ratio (wall) | at least | ratio (CPU) | kcli peak |")
    print("|---|---|---|---|---|---|---|---|")
    for name in INPUTS:
        log = next((folder / name).glob("*.log"))
        warm(log)
        for what, options in DUMPS.items():
            found = side_by_side(
                {
                    "kafka": [str(KAFKA), "dump-log", *options, "--files", str(log)],
                    "kcli": kcli("dump-log", "--output", "kafka", *options, str(log)),
                },
                runs,
            )
            theirs, ours = found["kafka"], found["kcli"]
            print(
                f"| {name} | {what} | {theirs.wall_s:.2f} s | {ours.wall_s:.2f} s | {theirs.wall_s / ours.wall_s:.1f}x | "
                f"{AT_LEAST[what]}x | {theirs.cpu_s / ours.cpu_s:.1f}x | {ours.peak_mb:.0f} MB |",
                flush=True,
            )


def verify_rows(folder: Path, runs: int) -> None:
    """Measure verify and a plain read with CRC-32C of the file; the time of an empty process is subtracted from both."""
    print("\n| input | plain read + CRC-32C | kcli verify | share of its rate | records/s a core | peak |")
    print("|---|---|---|---|---|---|")
    for name in INPUTS:
        log = next((folder / name).glob("*.log"))
        warm(log)
        found = side_by_side(
            {
                "start": kcli("--version"),
                "plain": [sys.executable, "-c", PLAIN_READ, str(log)],
                "verify": kcli("verify", str(folder / name)),
            },
            runs,
        )
        plain, verify = found["plain"], found["verify"]
        records = RECORDS[name.rsplit("-", 2)[0]]
        print(
            f"| {name} | {plain.wall_s:.2f} s | {verify.wall_s:.2f} s | {plain.wall_s / verify.wall_s:.2f} | "
            f"{records / verify.cpu_s / 1e6:.2f} M/s | {verify.peak_mb:.0f} MB |",
            flush=True,
        )


def damage(source: Path, target: Path, every: int) -> Path:
    """Copy a partition directory and flip one bit, chosen at random with a fixed seed, in one of `every` batches -> its log."""
    shutil.copytree(source, target)
    log = next(target.glob("*.log"))
    rng = random.Random(1)
    with log.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        position = number = 0
        while position < len(data):
            size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            if number % every == every // 2:
                data[position + rng.randrange(size)] ^= 1 << rng.randrange(8)
            position += size
            number += 1
    return log


def damaged_rows(folder: Path, runs: int) -> None:
    """Measure dump-log, verify and the plan of a repair on damaged copies of one input; Kafka's tool trusts the lengths."""
    print("\n| damaged batches | what | wall | CPU |\n|---|---|---|---|")
    source = folder / INPUTS[0]
    for every in (100, 2):
        with tempfile.TemporaryDirectory(dir=folder, prefix="damaged-") as parent:
            log = damage(source, Path(parent) / source.name, every)
            warm(log)
            found = side_by_side(
                {
                    "kafka-dump-log": [str(KAFKA), "dump-log", "--files", str(log)],
                    "kcli dump-log": kcli("dump-log", "--output", "kafka", str(log)),
                    "kcli verify": kcli("verify", str(log.parent)),
                    "kcli verify --repair": kcli("verify", "--repair", str(log.parent)),
                },
                runs,
                may_end_with=(0, 1),
            )
        for what, figure in found.items():
            print(f"| 1 of {every} | {what} | {figure.wall_s:.2f} s | {figure.cpu_s:.2f} s |", flush=True)


def bounded_rows(folder: Path, runs: int) -> None:
    """Measure what damage costs in the first 100 MB of 1 KB records: one flipped bit, and every second batch damaged.

    At most 1 ms more than the sound segment, and a plan in 10 s. The segment has its index: without one, the headers up to the
    end of the file are read, 2 us for each.
    """
    print("\n| 100 MB of 1 KB records | kcli verify (CPU) | more than sound | kcli verify --repair (CPU) |\n|---|---|---|---|")
    source = next((folder / "records-1kb-none-0").glob("*.log"))
    with tempfile.TemporaryDirectory(dir=folder, prefix="bounded-") as parent:
        sound = Path(parent) / "sound" / "t-0"
        sound.mkdir(parents=True)
        with source.open("rb") as file:
            data = file.read(100 << 20)
        end, batches = whole_batches(data)
        (sound / source.name).write_bytes(data[:end])
        entries = [one for one in struct.iter_unpack(">ii", source.with_suffix(".index").read_bytes()) if 0 < one[1] < end]
        (sound / source.name).with_suffix(".index").write_bytes(b"".join(struct.pack(">ii", *one) for one in entries))
        logs = {"sound": sound / source.name}
        for name, every in (("one flipped bit", batches), ("every second batch", 2)):
            logs[name] = damage(sound, Path(parent) / name.replace(" ", "-") / "t-0", every)
        found: dict[str, Figure] = {}
        for name, log in logs.items():
            warm(log)
            words = {"verify": kcli("verify", str(log.parent)), "plan": kcli("verify", "--repair", str(log.parent))}
            for what, figure in side_by_side(words, runs, may_end_with=(0, 1)).items():
                found[f"{name} {what}"] = figure
        for name in logs:
            verify, plan = found[f"{name} verify"], found[f"{name} plan"]
            more = 1000 * (verify.cpu_s - found["sound verify"].cpu_s)
            print(f"| {name} | {verify.cpu_s:.3f} s | {more:.1f} ms | {plan.cpu_s:.2f} s |", flush=True)


def whole_batches(data: bytes) -> tuple[int, int]:
    """Return the end of the last whole batch, and how many there are."""
    position = count = 0
    while position + 12 <= len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if position + size > len(data):
            break
        position, count = position + size, count + 1
    return position, count


def small_rows(runs: int) -> None:
    """Measure the start-up on a tiny file, that of Python, and the scanner alone."""
    tiny = next((ROOT / "fixtures" / "kafka-logs" / "data" / "orders-0").glob("*.log"))
    found: dict[str, Figure] = side_by_side(
        {"python": [sys.executable, "-c", "pass"], "kcli": kcli("dump-log", "--output", "kafka", str(tiny))}, max(runs, 9)
    )
    print("\n| what | measured |\n|---|---|")
    print(f"| start-up of `kcli dump-log` on a tiny file (at most 150 ms) | {found['kcli'].wall_s * 1000:.0f} ms |")
    print(f"| of which Python itself | {found['python'].wall_s * 1000:.0f} ms |", flush=True)
    import subprocess

    subprocess.run([sys.executable, "-c", SCAN], cwd=ROOT, check=True)


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where benchmarks.make_inputs wrote")
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each command (%(default)s)")
    parser.add_argument("--only", choices=["dump", "verify", "damaged", "bounded", "small"], help="one of the tables")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if arguments.only in (None, "dump"):
        dump_rows(folder, arguments.runs)
    if arguments.only in (None, "verify"):
        verify_rows(folder, arguments.runs)
    if arguments.only in (None, "damaged"):
        damaged_rows(folder, arguments.runs)
    if arguments.only in (None, "bounded"):
        bounded_rows(folder, arguments.runs)
    if arguments.only in (None, "small"):
        small_rows(arguments.runs)


if __name__ == "__main__":
    main()
