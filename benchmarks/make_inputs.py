"""Creates the four inputs of the benchmarks with Apache Kafka: one broker, one partition each, filled by Kafka's own tool.

    python -m benchmarks.make_inputs OUT PORT

PORT and PORT + 1 of 127.0.0.1 must be free; this takes 2 GB of disk and some minutes.

    ==================  ===========  ==============  ===============
    OUT/...             records      value, bytes    producer's codec
    ==================  ===========  ==============  ===============
    records-100b-none-0  4,000,000   100             none
    records-100b-zstd-0  4,000,000   100             zstd
    records-1kb-none-0     600,000   1,000           none
    records-1kb-zstd-0     600,000   1,000           zstd
    ==================  ===========  ==============  ===============

The tool is org.apache.kafka.tools.ProducerPerformance with the Java producer's own settings for everything but the
codec: no keys, no headers, values of random capital letters A-Z (4.7 bits per byte, so zstd reduces them to about 60 %),
the same ones on every run (the tool has a fixed random seed), idempotent, batches of up to 16 KiB. segment.bytes is
1 GiB, so each partition has one segment. The broker is stopped cleanly, which trims the indexes, before the directories
are copied. OUT/inputs.json has for each partition the number of records, log bytes and batches, and the tool's own
summary line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.oracle.peer import find_peer

SEGMENT_BYTES = 1 << 30
STEP_SECONDS = 900
CODECS = ("none", "zstd")
# name, records, bytes of a value
SIZES = (("records-100b", 4_000_000, 100), ("records-1kb", 600_000, 1_000))
BATCH_PREFIX = struct.Struct(">qi")


def run_peer(peer: Path, *args: str) -> str:
    """Run the peer's script with `args` for at most STEP_SECONDS; its stdout. Raises SubprocessError when it fails."""
    ran = subprocess.run([str(peer), *args], stdout=subprocess.PIPE, timeout=STEP_SECONDS, check=True, text=True)
    return ran.stdout


def fill_topic(peer: Path, bootstrap: str, topic: str, records: int, value_bytes: int, codec: str) -> str:
    """Create `topic` with one partition and fill it; the last line that Kafka's tool printed."""
    configs = (f"segment.bytes={SEGMENT_BYTES}", "retention.ms=-1", "retention.bytes=-1")
    config_args = [word for config in configs for word in ("--config", config)]
    create = ["--bootstrap-server", bootstrap, "--create", "--topic", topic, "--partitions", "1", *config_args]
    run_peer(peer, "java", "org.apache.kafka.tools.TopicCommand", *create)
    counts = ["--num-records", str(records), "--record-size", str(value_bytes), "--throughput", "-1"]
    settings = ["--bootstrap-server", bootstrap, "--command-property", f"compression.type={codec}", "acks=all"]
    printed = run_peer(peer, "java", "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, *counts, *settings)
    return printed.strip().splitlines()[-1]


def count_batches(segment: Path) -> tuple[int, int]:
    """Count the batches and records of a segment by their headers alone; (batches, next offset). Raises ValueError."""
    batches = next_offset = position = 0
    size_bytes = segment.stat().st_size
    with segment.open("rb") as file:
        while position < size_bytes:
            file.seek(position)
            header = file.read(61)
            base_offset, length = BATCH_PREFIX.unpack_from(header)
            if base_offset != next_offset or length < 49:
                raise ValueError(f"{segment} holds no sound batch at byte {position}")
            next_offset = base_offset + int.from_bytes(header[23:27], "big") + 1
            position += BATCH_PREFIX.size + length
            batches += 1
    if position != size_bytes:
        raise ValueError(f"{segment} ends inside a batch")
    return batches, next_offset


def describe(directory: Path, records: int, summary: str) -> dict[str, Any]:
    """Say what one partition directory holds; raises ValueError unless it is one segment of `records` records."""
    segments = sorted(directory.glob("*.log"))
    if len(segments) != 1:
        raise ValueError(f"{directory} holds {len(segments)} segments instead of one")
    batches, next_offset = count_batches(segments[0])
    if next_offset != records:
        raise ValueError(f"{segments[0]} holds {next_offset} records instead of {records}")
    files = {path.name: path.stat().st_size for path in sorted(directory.iterdir())}
    log_bytes = segments[0].stat().st_size
    return {
        "records": records,
        "log_bytes": log_bytes,
        "batches": batches,
        "file_bytes": files,
        "tool_summary": summary,
    }


def stop_broker(peer: Path, broker_dir: Path) -> None:
    """Stop the broker of `broker_dir` cleanly; end it at once when that does not work in time."""
    pid_file = broker_dir / "pid"
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    try:
        subprocess.run([str(peer), "stop", str(broker_dir)], timeout=120, check=True)
    except (subprocess.SubprocessError, OSError):
        os.kill(pid, signal.SIGKILL)
        raise


def make_inputs(out: Path, port: int) -> dict[str, Any]:
    """Make all four inputs under `out`, which must not hold them yet; what was made, as written to inputs.json."""
    peer = find_peer()
    if peer is None:
        raise SystemExit("no real Kafka: ../shared/apache-kafka/kafka is missing (KCLI_KAFKA_PEER may name another)")
    names = [(f"{size}-{codec}", records, value, codec) for size, records, value in SIZES for codec in CODECS]
    out.mkdir(parents=True, exist_ok=True)
    taken = [name for name, *_ in names if (out / f"{name}-0").exists()]
    if taken:
        raise SystemExit(f"{out} holds {', '.join(taken)} already; remove them or give another folder")
    broker_dir = out.resolve() / "broker"
    shutil.rmtree(broker_dir, ignore_errors=True)
    summaries: dict[str, str] = {}
    try:
        run_peer(peer, "format", str(broker_dir), str(port), "log.retention.ms=-1")
        # The broker inherits stdout: a pipe would stay open as long as the broker runs.
        subprocess.run([str(peer), "start", str(broker_dir)], timeout=120, check=True, stdout=subprocess.DEVNULL)
        for name, records, value, codec in names:
            print(f"{name}: {records} records of {value} bytes, {codec}", file=sys.stderr, flush=True)
            summaries[name] = fill_topic(peer, f"127.0.0.1:{port}", name, records, value, codec)
            print(f"  {summaries[name]}", file=sys.stderr, flush=True)
    finally:
        stop_broker(peer, broker_dir)
    made: dict[str, Any] = {}
    for name, records, *_ in names:
        directory = out / f"{name}-0"
        (broker_dir / "data" / f"{name}-0").rename(directory)
        made[directory.name] = describe(directory, records, summaries[name])
    shutil.rmtree(broker_dir)
    (out / "inputs.json").write_text(json.dumps(made, indent=2) + "\n")
    return made


def main() -> None:
    """Read the two arguments, make the inputs, print what was made as JSON."""
    parser = argparse.ArgumentParser(description="Make the benchmarks' inputs with the real Kafka.")
    parser.add_argument("out", type=Path, help="folder for the four partition directories")
    parser.add_argument("port", type=int, help="first of two free ports of 127.0.0.1")
    args = parser.parse_args()
    print(json.dumps(make_inputs(args.out, args.port), indent=2))


if __name__ == "__main__":
    main()
