"""A soak of `kcli serve`: for hours, clients of all kinds come and go, each record comes once, and memory stays where it was.

    python -m tests.server.soak --hours 2
    python -m tests.server.soak --hours 2 --pause 3      who writes rests three times as long as it worked

    worker            what comes and goes, again and again
    ----------------  ------------------------------------------------------------------------------------------------
    producer          an idempotent producer that sends numbered records to the topic `soak`
    transaction       a transactional id, and a transaction with numbered records; every third one is aborted
    classic,          a member of the groups `classic` and `consumer`, which reads `soak`, commits and leaves; each commits
    consumer          for a group of one use, too, which expires
    share             a member of the share group `share`
    streams           a member of a streams group of one use, by heartbeats, and the deletion of the group
    topic             a topic, with records that are read
    connection        connections: without a byte, with half of a request, with an unknown one

Records, offsets, transactional ids and producers expire after one or two minutes. Each of the three groups that stay must get
each number once, and none of an aborted transaction. A line of JSON each minute has the resident memory and the descriptors of
the broker, and the objects of kcli by type that have become more since the third line. The last line has the slope of the
memory since then, in bytes per second, that of the last half (what fills until its bound is full by then), and the faults; with
a fault the exit code is 1.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from kcli.client import (
    Admin,
    AlterConfigOp,
    AlterOperation,
    ConfigResource,
    Consumer,
    NewTopic,
    Producer,
    ResourceType,
    ShareConsumer,
)
from kcli.client.admin.operation import Call, RequestContext, Route, run_one, value_of
from kcli.client.errors import ClientError, KafkaError
from kcli.protocol.apis import API_KEYS, STREAMS_GROUP_HEARTBEAT
from kcli.protocol.error_codes import GROUP_ID_NOT_FOUND
from kcli.protocol.message import Message
from tests.conftest import ROOT
from tests.server.test_comings_and_goings import SETTINGS

TOPIC = "soak"
GROUPS = ("classic", "consumer", "share")
# Expirations are longer than a round of a worker on a busy machine, and many times shorter than a soak.
OVERRIDES = (
    *SETTINGS,
    "transactional.id.expiration.ms=120000",
    "producer.id.expiration.ms=120000",
    "log.retention.check.interval.ms=5000",
    "log.cleaner.backoff.ms=1000",
    "listeners=PLAINTEXT://127.0.0.1:0",
)
RECORDS_A_TIME = 50
WARM_UP_LINES = 3
DRAIN_S = 60.0
ABORTED = b"aborted"


class Ledger:
    """The numbers that were sent and that a group has not got yet."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.done: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._numbers = count()
        self._awaited: dict[str, set[int]] = {group: set() for group in GROUPS}

    def next_values(self) -> list[bytes]:
        """Return values for records, which each group must get once."""
        with self._lock:
            numbers = [next(self._numbers) for _ in range(RECORDS_A_TIME)]
            for awaited in self._awaited.values():
                awaited.update(numbers)
        return [str(number).encode() for number in numbers]

    def got(self, group: str, values: Iterator[bytes | None]) -> None:
        """Take what a group has got."""
        with self._lock:
            for value in values:
                if value is None or value == ABORTED or int(value) not in self._awaited[group]:
                    self.faults.append(f"group {group} got {value!r}, which was aborted, or which it had before")
                else:
                    self._awaited[group].remove(int(value))

    def missing(self) -> int:
        """Return how many records are still to come."""
        with self._lock:
            return sum(map(len, self._awaited.values()))


class Soak:
    """The clients of one broker; each worker has a thread and stops at the end of a round."""

    def __init__(self, address: str, pause: float = 0.0) -> None:
        self.ledger = Ledger()
        self._client = {"bootstrap.servers": address}
        self._address = address.rpartition(":")
        self._names = count()
        self._is_over, self._is_drained = threading.Event(), threading.Event()
        with Admin(self._client) as admin:
            made = admin.create_topics([NewTopic(TOPIC, 2, configs={"retention.ms": "600000", "segment.ms": "20000"})])
            value_of(made[TOPIC])
            share = ConfigResource(ResourceType.GROUP, "share")
            settings = {"share.auto.offset.reset": "earliest", "share.isolation.level": "read_committed"}
            changes = [AlterConfigOp(name, AlterOperation.SET, value) for name, value in settings.items()]
            value_of(admin.incremental_alter_configs({share: changes})[share])
        self._senders = [self._worker(work, self._is_over, pause) for work in self._sending()]
        # Those who read do not rest: retention would delete what they have not read.
        self._readers = [self._worker(work, self._is_drained) for work in self._reading()]

    def _sending(self) -> list[Callable[[], None]]:
        return [self.producer, self.transaction, self.topic, self.streams, self.connection]

    def _reading(self) -> list[Callable[[], None]]:
        return [lambda: self.member("classic"), lambda: self.member("consumer"), self.share]

    def _worker(self, work: Callable[[], None], until: threading.Event, pause: float = 0.0) -> threading.Thread:
        def run() -> None:
            while not until.is_set() and not self.ledger.faults:
                began = time.monotonic()
                try:
                    work()
                except (ClientError, OSError) as error:
                    self.ledger.faults.append(f"{work.__qualname__}: {error!r}")
                until.wait(pause * (time.monotonic() - began))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def end(self) -> None:
        """Stop sending, wait until each group has each record, and stop reading."""
        self._is_over.set()
        for thread in self._senders:
            thread.join()
        deadline = time.monotonic() + DRAIN_S
        while self.ledger.missing() and not self.ledger.faults and time.monotonic() < deadline:
            self._is_drained.wait(0.1)
        self._is_drained.set()
        for thread in self._readers:
            thread.join()
        if self.ledger.missing():
            self.ledger.faults.append(f"{self.ledger.missing()} records were not read, or deleted before they were read")

    # --------------------------------------------------------------------------------------------------------- workers

    def producer(self) -> None:
        """Send records by a new producer."""
        with Producer(self._client) as producer:
            for value in self.ledger.next_values():
                producer.send(TOPIC, value)
            producer.flush()
        self.ledger.done["producer"] += 1

    def transaction(self) -> None:
        """Send records in a transaction of a new transactional id."""
        number = next(self._names)
        with Producer({**self._client, "transactional.id": f"transactional-{number}"}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            is_aborted = number % 3 == 0
            for value in [ABORTED] * RECORDS_A_TIME if is_aborted else self.ledger.next_values():
                producer.send(TOPIC, value)
            producer.flush()
            if is_aborted:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        self.ledger.done["transaction"] += 1

    def _consumer(self, group: str, protocol: str) -> Consumer:
        return Consumer(
            {
                **self._client,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": "false",
                "isolation.level": "read_committed",
            }
        )

    def member(self, protocol: str) -> None:
        """Read as a new member of a group that stays; then commit as a group of one use."""
        with self._consumer(protocol, protocol) as consumer:
            consumer.subscribe([TOPIC])
            for _ in range(10):
                self.ledger.got(protocol, (record.value for record in consumer.poll(0.2)))
            consumer.commit_sync()
        with self._consumer(f"{protocol}-{next(self._names)}", protocol) as consumer:
            consumer.subscribe([TOPIC])
            consumer.poll(0.5)
            consumer.commit_sync()
        self.ledger.done[protocol] += 1

    def share(self) -> None:
        """Read as a new member of the share group."""
        with ShareConsumer({**self._client, "group.id": "share"}) as consumer:
            consumer.subscribe([TOPIC])
            for _ in range(10):
                self.ledger.got("share", (record.value for record in consumer.poll(0.2)))
            consumer.commit_sync()
        self.ledger.done["share"] += 1

    def streams(self) -> None:
        """Join a new streams group, leave it, and delete it."""
        group = f"streams-{next(self._names)}"

        def beat(epoch: int, **fields: Any) -> Message:
            def request(keys: object, context: RequestContext) -> Message:
                kind = API_KEYS[STREAMS_GROUP_HEARTBEAT].request
                return kind.new(group_id=group, member_id="member", member_epoch=epoch, **fields)

            def read(keys: Sequence[str], answer: Message) -> list[tuple[str, Message | ClientError]]:
                # As an error it is tried again while the coordinator is loaded or moves, after a pause of a busy machine.
                return [(keys[0], KafkaError(answer.error_code, answer.error_message) if answer.error_code else answer)]

            return admin.execute(run_one(Call[str, Message](STREAMS_GROUP_HEARTBEAT, Route.GROUP, request, read), group))

        structs = API_KEYS[STREAMS_GROUP_HEARTBEAT].request.classes
        topology = structs["Topology"](
            epoch=0, subtopologies=[structs["Subtopology"](subtopology_id="0", source_topics=[TOPIC])]
        )
        with Admin(self._client) as admin:
            tasks = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
            beat(0, rebalance_timeout_ms=10_000, process_id="member", topology=topology, **tasks)
            beat(-1)
            error = admin.delete_groups([group])[group]
            # A streams group without members and offsets expires with the next check, which may be the first to see it.
            if not isinstance(error, KafkaError) or error.code != GROUP_ID_NOT_FOUND:
                value_of(error)
        self.ledger.done["streams"] += 1

    def topic(self) -> None:
        """Create a topic, write it, read it and delete it."""
        name = f"topic-{next(self._names)}"
        with Admin(self._client) as admin, Producer(self._client) as producer:
            value_of(admin.create_topics([NewTopic(name, 2)])[name])
            for _ in range(RECORDS_A_TIME):
                producer.send(name, b"x")
            producer.flush()
            with Consumer({**self._client, "auto.offset.reset": "earliest"}) as consumer:
                consumer.assign([(name, 0), (name, 1)])
                found = 0
                while found < RECORDS_A_TIME:
                    found += len(consumer.poll(1.0))
            value_of(admin.delete_topics([name])[name])
        self.ledger.done["topic"] += 1

    def connection(self) -> None:
        """Open connections that are of no use, and close them."""
        for sent in (b"", b"\0\0\0\x20\0\x12\0", b"\0\0\0\x0a\x7f\xff\0\0\0\0\0\0\xff\xff"):
            with socket.create_connection((self._address[0], int(self._address[2]))) as client:
                client.sendall(sent)
        self.ledger.done["connection"] += 1
        self._is_over.wait(0.2)


# -------------------------------------------------------------------------------------------------------------- the broker


def serve_and_count() -> int:
    """Run `kcli serve`, and answer each line on stdin with a line on stdout: the objects of kcli by type, as JSON."""
    from kcli.commands.app import main

    def answer() -> None:
        for _ in sys.stdin:
            gc.collect()
            kinds = (type(one) for one in gc.get_objects())
            found = Counter(kind.__qualname__ for kind in kinds if str(kind.__module__).startswith("kcli."))
            print(json.dumps(found), flush=True)

    threading.Thread(target=answer, daemon=True).start()
    return main(["serve", *(word for one in OVERRIDES for word in ("--override", one))])


class Measured:
    """A broker in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.address = address
        self._process = process

    def memory_bytes(self) -> int:
        """Return the resident memory."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        """Return the number of open descriptors."""
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def objects(self) -> Counter[str]:
        """Return the objects of kcli by type."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Counter(json.loads(self._process.stdout.readline()))


@contextmanager
def measured_broker(directory: Path) -> Iterator[Measured]:
    """Run a broker until the block ends; its log is serve.log in the directory."""
    command = [sys.executable, "-m", "tests.server.soak", "--serve"]
    with (directory / "serve.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            yield Measured(process, _address(process, directory / "serve.log"))
        finally:
            process.terminate()
            process.communicate(timeout=60)


def _address(process: subprocess.Popen[str], log: Path) -> str:
    while process.poll() is None:
        if "is ready: PLAINTEXT://" in log.read_text():
            return log.read_text().partition("is ready: PLAINTEXT://")[2].partition(";")[0]
        time.sleep(0.05)
    raise RuntimeError(f"the broker has ended: {log.read_text()}")


def run(
    directory: Path, seconds: float, interval_s: float, report: Callable[[dict[str, Any]], None], pause: float = 0.0
) -> list[str]:
    """Run a soak, pass a dict to `report` at each interval and at the end, and return the faults."""
    with measured_broker(directory) as broker:
        soak = Soak(broker.address, pause)
        began = time.monotonic()
        samples: list[tuple[float, int]] = []
        first = Counter[str]()
        while (now := time.monotonic() - began) < seconds and not soak.ledger.faults:
            time.sleep(min(interval_s, seconds - now))
            objects = broker.objects()
            samples.append((time.monotonic() - began, broker.memory_bytes()))
            if len(samples) <= WARM_UP_LINES:
                first = objects
            report(
                {
                    "seconds": round(samples[-1][0]),
                    "memoryBytes": samples[-1][1],
                    "descriptors": broker.descriptors(),
                    "objects": objects.total(),
                    "more": dict((objects - first).most_common(8)),
                    "done": dict(soak.ledger.done),
                }
            )
        soak.end()
        slopes = {"bytesPerSecond": slope_of(samples[WARM_UP_LINES - 1 :])}
        slopes["bytesPerSecondOfLastHalf"] = slope_of(samples[max(WARM_UP_LINES - 1, len(samples) // 2) :])
        report({**slopes, "faults": soak.ledger.faults[:10]})
        return soak.ledger.faults


def slope_of(samples: list[tuple[float, int]]) -> float | None:
    """Return the slope of the line through the samples with the least squares, None for fewer than two."""
    if len(samples) < 2:
        return None
    mean_s = sum(at for at, _ in samples) / len(samples)
    mean = sum(value for _, value in samples) / len(samples)
    spread = sum((at - mean_s) ** 2 for at, _ in samples)
    return round(sum((at - mean_s) * (value - mean) for at, value in samples) / spread, 1)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.server.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--interval", type=float, default=60.0, metavar="SECONDS", help="between two lines")
    parser.add_argument("--pause", type=float, default=0.0, metavar="TIMES", help="of a worker, in times of its last round")
    parser.add_argument("--directory", type=Path, help="for the broker's data and log; by default one that is removed")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve_and_count()
    with tempfile.TemporaryDirectory() as folder:
        directory = args.directory or Path(folder)
        faults = run(directory, args.hours * 3600, args.interval, lambda line: print(json.dumps(line), flush=True), args.pause)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
