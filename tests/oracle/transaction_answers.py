"""What Apache Kafka answers to the exchanges of tests/oracle/transaction_exchanges.py.

`python -m tests.oracle.transaction_answers` asks anew and writes the fixture, one exchange a line.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.oracle.brokers import new_broker
from tests.oracle.peer import Peer
from tests.oracle.raw_requests import RawClient
from tests.oracle.transaction_exchanges import EXCHANGES, LEVELS, Answers, Ask, hold, prepare, set_level

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "transactions" / "answers.json.gz"
SETTINGS = (
    "transaction.state.log.num.partitions=2",
    "offsets.topic.num.partitions=2",
    "offsets.topic.replication.factor=1",
    "auto.create.topics.enable=false",
    "log.retention.ms=-1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=100000000",
)
PAUSE_S = 0.005


def hold_all(ask: Ask, pause: Callable[[], None]) -> dict[str, Answers]:
    """All exchanges with one broker at each level of transaction.version -> their answers by name."""
    prepare(ask, pause)
    found: dict[str, Answers] = {}
    for level in LEVELS:
        set_level(ask, level)
        for exchange in EXCHANGES:
            found |= hold(exchange, level, ask, pause)
    return found


def ask_broker(address: str) -> dict[str, Answers]:
    """All exchanges with a broker, through its socket."""
    client = RawClient(address)
    try:
        return hold_all(client.ask, partial(time.sleep, PAUSE_S))  # a poll of another process, which gives no other sign
    finally:
        client.close()


def ask_kafka(peer: Peer, home: Path) -> dict[str, Answers]:
    """All exchanges with a new Apache Kafka."""
    home.mkdir()
    with new_broker(peer, home, *SETTINGS) as address:
        return ask_broker(address)


def load_fixture() -> dict[str, Answers]:
    """Kafka's answers."""
    lines = gzip.decompress(FIXTURE.read_bytes()).decode().splitlines()
    return dict(json.loads(line) for line in lines)


def differences(mine: dict[str, Answers], kafkas: dict[str, Answers]) -> list[str]:
    """The requests whose answers, or the states after them, are not the same."""
    found = []
    for name in sorted({*mine, *kafkas}):
        pairs = zip(mine.get(name, []), kafkas.get(name, []), strict=False)
        found += [f"{name}: {one[0]}\n kcli {one[1:]}\nKafka {two[1:]}" for one, two in pairs if one != two]
        if len(mine.get(name, [])) != len(kafkas.get(name, [])):
            found.append(f"{name}: {len(mine.get(name, []))} answers of kcli, {len(kafkas.get(name, []))} of Kafka")
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        asked = ask_kafka(Peer(Path(work)), Path(work) / "broker")
    FIXTURE.parent.mkdir(exist_ok=True)
    text = "".join(f"{json.dumps(entry)}\n" for entry in asked.items())
    FIXTURE.write_bytes(gzip.compress(text.encode(), mtime=0))
