"""Protects the example programs of docs/serve.md: they are run as they are in the page, against a broker of their own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.server.live import LiveServer

PAGE = ROOT / "docs" / "serve.md"
PROGRAM = re.compile(r"<!-- example: ([a-z-]+) -->\n\n```python\n(.*?)```\n", re.DOTALL)
WORDS = 5_000
PATIENCE_S = 60


def test_every_program_is_run() -> None:
    """No Python program of the page is left out."""
    page = PAGE.read_text()
    assert [found[1] for found in PROGRAM.finditer(page)] == ["exactly-once"]
    assert page.count("```python") == 1


def test_each_record_is_written_once_though_the_program_is_killed(tmp_path: Path) -> None:
    kafka = pytest.importorskip("confluent_kafka")
    (program,) = (found[2] for found in PROGRAM.finditer(PAGE.read_text()) if found[1] == "exactly-once")
    with LiveServer(tmp_path / "home", "group.initial.rebalance.delay.ms=0") as server:
        address = f"127.0.0.1:{server.port}"
        assert program.count("127.0.0.1:9092") == 1
        path = tmp_path / "shouter.py"
        path.write_text(program.replace("127.0.0.1:9092", address))
        producer = kafka.Producer({"bootstrap.servers": address})
        for number in range(WORDS):
            producer.produce("words", key=str(number).encode(), value=f"word {number}".encode())
        producer.flush()
        del producer
        reader = kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "reader",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "topic.metadata.refresh.interval.ms": 200,
            }
        )
        reader.subscribe(["shouted"])
        found: list[bytes] = []
        read_until(reader, found, 1, path, kills=True)
        assert len(found) < WORDS
        read_until(reader, found, WORDS, path, kills=False)
        time.sleep(0.5)  # a second copy of a word would come now
        found += [record.value() for record in reader.consume(WORDS, timeout=1.0) if not record.error()]
        reader.close()
    assert sorted(found) == sorted(f"WORD {number}".encode() for number in range(WORDS))


def read_until(reader: object, found: list[bytes], count: int, program: Path, *, kills: bool) -> None:
    """Run the program until `count` words have been read from the topic that it writes; kill it, or end it as Ctrl-C does."""
    running = subprocess.Popen([sys.executable, str(program)], stderr=subprocess.PIPE, text=True)
    until_s = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < until_s:
        assert running.poll() is None, running.communicate()[1]
        found += [record.value() for record in reader.consume(100, timeout=0.2) if not record.error()]  # type: ignore[attr-defined]
    running.send_signal(signal.SIGKILL if kills else signal.SIGINT)
    running.communicate(timeout=PATIENCE_S)
    assert len(found) >= count
