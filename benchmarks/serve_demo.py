"""The first step of the demo: a client writes records to `kcli serve` and reads them; the offline tools read its directory.

The broker uses a free port of 127.0.0.1 and a temporary directory. In any case it is stopped, and the directory is removed.
The client is kcli's protocol package with a plain socket, so that no other package is needed.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from benchmarks.brokers import ROOT, Client
from kcli.format.record_batch import HEADER_BYTES, NewRecordBatch, check_batch
from kcli.format.records import Record, encode_records, read_records

KCLI = [sys.executable, "-m", "kcli"]
TOPIC = "greetings"
WORDS = [(b"de", b"Guten Tag"), (b"en", b"Good day"), (b"fr", b"Bonjour"), (b"it", b"Buon giorno")]
# For the whole demo: a broker that hangs is killed after this time, and the demo reads the end of its stderr.
LIMIT_SECONDS = 60
STOP_SECONDS = 20


def wait_until_ready(broker: subprocess.Popen[str]) -> int:
    """Print the broker's log lines until it is ready -> its port. Ends the demo if it does not get ready."""
    assert broker.stderr is not None
    for line in broker.stderr:
        print(line, end="", flush=True)
        if found := re.search(r"is ready: PLAINTEXT://127\.0\.0\.1:(\d+)", line):
            return int(found.group(1))
    sys.exit("kcli serve ended, or was ended by the demo's limit in time, before it was ready; its lines are above")


def batch_of_words() -> bytes:
    """Encode the records as a producer does."""
    now_ms = int(time.time() * 1000)
    body = encode_records(Record(delta, 0, key, value, (), 0) for delta, (key, value) in enumerate(WORDS))
    return NewRecordBatch(0, len(WORDS) - 1, now_ms, now_ms, len(WORDS), body).encode()


def produce_and_fetch(port: int) -> None:
    """Send the records, and read them from the start."""
    client = Client(port)
    client.create_topic(TOPIC, 1)
    client.send_until_taken(client.produce_frame(TOPIC, 0, batch_of_words()))
    print(f"produced {len(WORDS)} records to {TOPIC}-0", flush=True)
    partition = client.fetch(TOPIC, {0: 0}).responses[0].partitions[0]
    print(f"fetched from {TOPIC}-0, high watermark {partition.high_watermark}:", flush=True)
    batch = check_batch(partition.records)
    for record in read_records(partition.records[HEADER_BYTES : batch.size_bytes], batch.record_count):
        print(f"  offset {batch.base_offset + record.offset_delta}: {record.key!r} = {record.value!r}", flush=True)
    client.close()


def run(*words: str) -> None:
    """Print and run a command. Ends the demo if it fails or takes too long."""
    shown(words)
    if code := subprocess.run([*KCLI, *words], check=False, timeout=LIMIT_SECONDS).returncode:
        sys.exit(code)


def shown(words: Sequence[str]) -> None:
    """Print a command as a user types it."""
    print("$ kcli", *words, flush=True)


def stop(broker: subprocess.Popen[str]) -> None:
    """Stop the broker, and print its log lines. Ends the demo if it does not stop cleanly."""
    print(f"$ kill -TERM {broker.pid}", flush=True)
    broker.send_signal(signal.SIGTERM)
    _, lines = broker.communicate(timeout=STOP_SECONDS)
    print(lines, end="", flush=True)
    if broker.returncode:
        sys.exit(f"kcli serve ended with exit code {broker.returncode}")


def main() -> None:
    """Start a broker, write and read records, show its files, stop it, and verify its directory."""
    with tempfile.TemporaryDirectory(prefix="kcli-demo-") as directory:
        data = f"{directory}/data"
        words = ["serve", "--override", "listeners=PLAINTEXT://127.0.0.1:0", "--override", f"log.dirs={data}"]
        shown(words)
        broker = subprocess.Popen([*KCLI, *words], stderr=subprocess.PIPE, text=True, cwd=ROOT)
        limit = threading.Timer(LIMIT_SECONDS, broker.kill)
        limit.start()
        try:
            produce_and_fetch(wait_until_ready(broker))
            run("dump-log", "--output", "text", f"{data}/{TOPIC}-0")
            stop(broker)
            run("verify", data)
        finally:
            limit.cancel()
            broker.kill()  # no effect if it has stopped
            broker.wait()


if __name__ == "__main__":
    main()
