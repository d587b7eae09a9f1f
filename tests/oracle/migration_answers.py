"""What Apache Kafka answers to the exchanges of tests/oracle/migration_exchanges.py.

`python -m tests.oracle.migration_answers` asks anew and writes the fixture, one exchange a line.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kcli.protocol.message import Message
from tests.oracle.brokers import new_broker
from tests.oracle.migration_exchanges import EXCHANGES, SETTINGS, Answers, hold, prepare
from tests.oracle.peer import Peer
from tests.oracle.raw_requests import RawClient

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "groups" / "migration.json.gz"
PAUSE_S = 0.1
ANSWER_SECONDS = 30


class SocketAsker:
    """A broker behind a socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = RawClient(address)

    def ask(self, key: int, version: int, /, **fields: Any) -> Message:
        return self.client.ask(key, version, **fields)

    def later(self, key: int, version: int, /, **fields: Any) -> Callable[[], Message]:
        client = RawClient(self.address)
        found: list[Message] = []
        thread = threading.Thread(target=lambda: found.append(client.ask(key, version, **fields)), daemon=True)
        thread.start()

        def wait() -> Message:
            thread.join(ANSWER_SECONDS)
            client.close()
            return found[0]

        return wait

    def pause(self) -> None:
        time.sleep(PAUSE_S)  # a poll of another process, which gives no other sign


def ask_broker(address: str) -> dict[str, Answers]:
    """All exchanges with a broker, by name."""
    asker = SocketAsker(address)
    ids = prepare(asker)
    found = {exchange.__name__: hold(exchange, asker, ids) for exchange in EXCHANGES}
    asker.client.close()
    return found


def ask_kafka(peer: Peer, home: Path) -> dict[str, Answers]:
    """All exchanges with a new Apache Kafka."""
    home.mkdir()
    with new_broker(peer, home, *SETTINGS) as address:
        return ask_broker(address)


def load_fixture() -> dict[str, Answers]:
    """Kafka's answers."""
    with gzip.open(FIXTURE, "rt", encoding="utf-8") as file:
        return dict(json.loads(line) for line in file)


def as_json(answers: Answers) -> Answers:
    """Answers as a fixture has them: tuples are lists."""
    found: Answers = json.loads(json.dumps(answers))
    return found


def _write_fixture() -> None:
    with tempfile.TemporaryDirectory() as directory:
        answers = ask_kafka(Peer(Path(directory)), Path(directory) / "kafka")
    FIXTURE.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps([name, found])}\n" for name, found in answers.items())
    FIXTURE.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    _write_fixture()
