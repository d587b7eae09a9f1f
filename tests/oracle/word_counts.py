"""An application that counts words, given lines all the time: its instances stop, are killed and come back.

Every count is written, so a reader of committed records must see 1, 2, 3 and so on for each word: a record that is counted
twice, or not at all, leaves another sequence.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

LIMIT_S = 120
PAUSE_S = 0.02  # between two lines of the input
MORE_LINES = 60  # after each change
# Of the broker of such an application.
BROKER_SETTINGS = (
    "offsets.topic.replication.factor=1",
    "offsets.topic.num.partitions=2",
    "transaction.state.log.replication.factor=1",
    "transaction.state.log.num.partitions=2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=500",
    "group.initial.rebalance.delay.ms=0",
)


class Counting:
    """The application, its lines, and the counts that a reader of committed records sees.

    `command_of` makes the words that start an instance, of its number and the directory of its state. An instance reads the
    topic `application`-words, writes `application`-counts, and ends when a line comes on its stdin.
    """

    def __init__(self, bootstrap: str, application: str, command_of: Callable[[int, Path], list[str]], home: Path) -> None:
        self._command_of = command_of
        self._home = home
        self.words, self.counts = (f"{application}-{name}" for name in ("words", "counts"))
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for made in admin.create_topics([NewTopic(self.words, 3, 1), NewTopic(self.counts, 2, 1)]).values():
            made.result(60)
        self.seen: dict[bytes, list[int]] = defaultdict(list)
        self.sent: dict[bytes, int] = defaultdict(int)
        self.lines = 0
        self.instances: dict[int, subprocess.Popen[bytes]] = {}
        settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": "false"}
        self._reader = Consumer({**settings, "isolation.level": "read_committed", "auto.offset.reset": "earliest"})
        self._reader.assign([TopicPartition(self.counts, index, 0) for index in range(2)])
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._is_ending = threading.Event()
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._sender.start()

    def _send(self) -> None:
        while not self._is_ending.wait(PAUSE_S):
            line = b"all w%d" % (self.lines % 7)
            self._producer.produce(self.words, line, partition=self.lines % 3)
            self._producer.poll(0)
            for word in line.split():
                self.sent[word] += 1
            self.lines += 1
        self._producer.flush(LIMIT_S)

    def start(self, number: int) -> None:
        """Start an instance, with the state that an instance of this number left."""
        with (self._home / f"instance-{number}.log").open("ab") as log:
            command = self._command_of(number, self._home / f"state-{number}")
            self.instances[number] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def kill(self, number: int) -> None:
        instance = self.instances.pop(number)
        assert instance.poll() is None, self.said()
        instance.kill()
        instance.wait()

    def stop(self, number: int) -> None:
        instance = self.instances.pop(number)
        instance.communicate(b"\n", LIMIT_S)
        assert instance.returncode == 0, self.said()

    def said(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self._home.glob("*.log"))

    def read_until(self, lines: int, what: str) -> None:
        """Read counts until so many lines are counted."""
        end = time.monotonic() + LIMIT_S
        while sum(map(len, self.seen.values())) < 2 * lines:
            assert time.monotonic() < end, f"{what}: {len(self.seen[b'all'])} of {lines} lines are counted; {self.said()}"
            for message in self._reader.consume(500, 0.1):
                assert message.error() is None, message.error()
                self.seen[message.key()].append(int.from_bytes(message.value(), "big"))

    def go_on(self, what: str) -> None:
        """Wait until lines that are sent from now on are counted."""
        self.read_until(self.lines + MORE_LINES, what)

    def end(self) -> None:
        """Send no more, read all counts, and check them."""
        self._is_ending.set()
        self._sender.join(LIMIT_S)
        self.read_until(self.lines, "the end")
        for number in list(self.instances):
            self.stop(number)
        assert {word: list(range(1, count + 1)) for word, count in self.sent.items()} == dict(self.seen)

    def close(self) -> None:
        self._is_ending.set()
        for instance in self.instances.values():
            if instance.poll() is None:
                instance.kill()
                instance.wait()
        self._reader.close()
