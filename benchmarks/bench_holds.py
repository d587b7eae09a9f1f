"""Measures how long a request of one client delays the others of `kcli serve`: each call of the event loop is timed.

    python -m benchmarks.bench_holds [--partitions 1000] [--rounds 3] [--tables holds,bombs,cleaning] [--work DIR]

    table     measurement
    --------  ----------------------------------------------------------------------------------------------------------
    holds     every request whose work depends on its number of partitions, one after the other, for a topic with
              --partitions; the starts and the stop. The longest call of the event loop for each, with its follow-up work
    bombs     a batch with one record of BOMB_BYTES zeros, compressed, while another client sends small produce requests:
              how long those take; and for comparison without such a batch for BASELINE_S
    cleaning  the topic of a log with DIRTY_MB of uncleaned records becomes compacted, while another client sends small
              produce requests until the log is clean; records and keys are those of benchmarks.bench_cleaner

The output are Markdown tables on stdout: medians of the rounds, with the minimum and maximum in brackets. The server is
benchmarks.held_server, whose measurement costs some microseconds per call. An error in any response ends the run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.brokers import FETCH_VERSION, METADATA_VERSION, Broker, Client, batch, started
from benchmarks.measure import markdown_table
from kcli.format.compression import codec_id, deflate
from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.protocol import apis
from kcli.protocol.apis import API_KEYS
from kcli.protocol.message import Message

BOMB_BYTES = 120_000_000
BOMB_CODECS = ("gzip", "zstd")
BASELINE_S = 1.0
DIRTY_MB = 200
DIRTY_SEGMENT_BYTES = 50_000_000
CLEANED_ROWS = ("100b-none", "100b-zstd", "1kb-none")
# The follow-up work of a request (time slices, publishing, flushes) is done within this time after the response.
SETTLE_S = 0.5
LIMIT_S = 120.0
SHOWN_MS = 1.0  # shorter parts are left out
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
LATEST_TIMESTAMP = HIGH_WATERMARK = -1
TIMEOUT_MS = 60_000


class Report(NamedTuple):
    """A report of benchmarks.held_server."""

    longest_ms: float
    longest_cpu_ms: float
    parts: dict[str, float]


class HeldBroker(Broker):
    """A kcli that measures its event loop. Files of deleted topics are removed after a second instead of a minute."""

    def __init__(self, directory: Path) -> None:
        super().__init__("kcli", directory, ("log.segment.delete.delay.ms=1000", "log.cleaner.backoff.ms=100"))
        self.reports = directory / "reports"
        self.program = ("benchmarks.held_server", str(self.reports))
        self._seen = 0

    def report(self, *, is_gone: bool = False) -> Report:
        """Return the measurements since the last report; for a process that has ended, its last report."""
        if not is_gone:
            assert self.process is not None
            self.process.send_signal(signal.SIGUSR1)
        path = self.reports / f"{self._seen:04}.json"
        wait_until(path.exists, "a report of the server")
        self._seen += 1
        return Report(**json.loads(path.read_text()))


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait until a condition is true. Raises RuntimeError after LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > end:
            raise RuntimeError(f"{what} did not come in {LIMIT_S:.0f} s")
        time.sleep(0.01)


@contextmanager
def held_broker(work: Path) -> Iterator[HeldBroker]:
    """Yield a started server with an empty directory."""
    with started(HeldBroker(Path(tempfile.mkdtemp(prefix="held-", dir=work)))) as broker:
        yield broker


# ----------------------------------------------------------------------------------------------------- requests for all


class AllPartitions:
    """Sends requests for all `count` partitions of a topic. Raises RuntimeError for an error in a response."""

    TOPIC = "big"

    def __init__(self, port: int, count: int) -> None:
        self.client, self.count = Client(port), count

    def _ask(self, key: int, version: int | None = None, **fields: Any) -> None:
        api = API_KEYS[key]
        answer = self.client.ask(key, api.highest_version if version is None else version, api.request.new(**fields))
        for error in errors_in(answer):
            raise RuntimeError(f"{api.name}: error {error}")

    def _until_led(self, topic: str) -> None:
        """Wait for the last partition, which is created last."""
        self.client.send_until_taken(self.client.produce_frame(topic, self.count - 1, batch(1, 100)))

    def _each(
        self, key: int, topic_class: str, class_name: str, index: str = "partition_index", **fields: Any
    ) -> list[Message]:
        """Return the topics of a request: one topic with all its partitions, which have the same fields."""
        classes = API_KEYS[key].request.classes
        partitions = [classes[class_name](**{index: at}, **fields) for at in range(self.count)]
        return [classes[topic_class](name=self.TOPIC, partitions=partitions)]

    def create(self) -> None:
        """In one request; until they are led."""
        topic = API_KEYS[apis.CREATE_TOPICS].request.classes["CreatableTopic"]
        topics = [topic(name=self.TOPIC, num_partitions=self.count, replication_factor=1)]
        self._ask(apis.CREATE_TOPICS, topics=topics, timeout_ms=TIMEOUT_MS)
        self._until_led(self.TOPIC)

    def add(self) -> None:
        """To the topic of one partition, in one request; until they are led."""
        classes = API_KEYS[apis.CREATE_PARTITIONS].request.classes
        topics = [classes["CreatePartitionsTopic"](name="grown", count=self.count, assignments=None)]
        self._ask(apis.CREATE_PARTITIONS, topics=topics, timeout_ms=TIMEOUT_MS)
        self._until_led("grown")

    def produce(self) -> None:
        """Two records to each, in one request."""
        classes = API_KEYS[apis.PRODUCE].request.classes
        records = batch(2, 100)
        data = [classes["PartitionProduceData"](index=at, records=records) for at in range(self.count)]
        topics = [classes["TopicProduceData"](name=self.TOPIC, partition_data=data)]
        self._ask(apis.PRODUCE, 9, acks=1, timeout_ms=TIMEOUT_MS, topic_data=topics)

    def fetch(self) -> None:
        """From the beginning of each."""
        classes = API_KEYS[apis.FETCH].request.classes
        partitions = [classes["FetchPartition"](partition=at, partition_max_bytes=1 << 20) for at in range(self.count)]
        topics = [classes["FetchTopic"](topic=self.TOPIC, partitions=partitions)]
        self._ask(apis.FETCH, FETCH_VERSION, max_wait_ms=0, min_bytes=1, max_bytes=1 << 26, session_epoch=-1, topics=topics)

    def metadata(self) -> None:
        """Of all topics."""
        self._ask(apis.METADATA, METADATA_VERSION, topics=None)

    def describe_topic_partitions(self) -> None:
        """All in one answer."""
        topics = [API_KEYS[apis.DESCRIBE_TOPIC_PARTITIONS].request.classes["TopicRequest"](name=self.TOPIC)]
        self._ask(apis.DESCRIBE_TOPIC_PARTITIONS, topics=topics, response_partition_limit=self.count)

    def describe_log_dirs(self) -> None:
        """Of all topics."""
        self._ask(apis.DESCRIBE_LOG_DIRS, topics=None)

    def describe_configs(self) -> None:
        """All of the broker's, with synonyms and documentation."""
        resource = API_KEYS[apis.DESCRIBE_CONFIGS].request.classes["DescribeConfigsResource"]
        resources = [resource(resource_type=BROKER_RESOURCE, resource_name="1", configuration_keys=None)]
        self._ask(apis.DESCRIBE_CONFIGS, resources=resources, include_synonyms=True, include_documentation=True)

    def list_offsets(self) -> None:
        """The latest of each."""
        topics = self._each(apis.LIST_OFFSETS, "ListOffsetsTopic", "ListOffsetsPartition", timestamp=LATEST_TIMESTAMP)
        self._ask(apis.LIST_OFFSETS, 9, replica_id=-1, topics=topics)

    def delete_records(self) -> None:
        """All that there are."""
        topics = self._each(apis.DELETE_RECORDS, "DeleteRecordsTopic", "DeleteRecordsPartition", offset=HIGH_WATERMARK)
        self._ask(apis.DELETE_RECORDS, topics=topics, timeout_ms=TIMEOUT_MS)

    def delete(self) -> None:
        """The topic."""
        self._ask(apis.DELETE_TOPICS, 5, topic_names=[self.TOPIC], timeout_ms=TIMEOUT_MS)


def errors_in(message: Any) -> Iterator[int]:
    """Yield the error codes in a response that are not 0."""
    if isinstance(message, list):
        for item in message:
            yield from errors_in(item)
    elif isinstance(message, Message):
        for field in message.STRUCT.fields:
            value = getattr(message, field.attribute)
            if field.attribute == "error_code" and value:
                yield value
            elif isinstance(value, list | Message):
                yield from errors_in(value)


# ------------------------------------------------------------------------------------------------------------- the holds


def hold_steps(broker: HeldBroker, count: int) -> Iterator[tuple[str, Report]]:
    """Run one round -> the name of each step, and its report."""
    everything = AllPartitions(broker.port, count)
    everything.client.create_topic("grown", 1)

    def done(*requests: Callable[[], None]) -> Report:
        broker.report()
        for request in requests:
            request()
        time.sleep(SETTLE_S)
        return broker.report()

    yield "creating them, at the controller", done(everything.create)
    yield "Produce to all, the first", done(everything.produce)
    yield "Produce to all, again", done(everything.produce)
    yield "Fetch of all, the first", done(everything.fetch)
    yield "Fetch of all, again", done(everything.fetch)
    yield "Metadata", done(everything.metadata)
    yield "DescribeTopicPartitions", done(everything.describe_topic_partitions)
    yield "DescribeLogDirs", done(everything.describe_log_dirs)
    yield "DescribeConfigs of a broker, the first", done(everything.describe_configs)
    yield "DescribeConfigs of a broker, again", done(everything.describe_configs)
    yield "ListOffsets", done(everything.list_offsets)
    for how, number in (("SIGKILL", signal.SIGKILL), ("a clean stop", signal.SIGTERM)):
        broker.report()
        broker.stop(number)
        if number == signal.SIGTERM:
            yield "clean stop", broker.report(is_gone=True)
        broker.start()
        everything = AllPartitions(broker.port, count)
        time.sleep(SETTLE_S)
        yield f"start after {how}", broker.report()
        yield f"Fetch of all, the first after {how}", done(everything.fetch)
    yield "CreatePartitions", done(everything.add)
    yield "DeleteRecords of all", done(everything.delete_records)
    logs = broker.directory / "data"
    gone = partial(wait_until, lambda: not any(logs.glob("big-*")), "the removal of their files")
    yield "DeleteTopics of all, and the removal of their files", done(everything.delete, gone)


def in_words(values: Sequence[float]) -> str:
    """Format the median, the minimum and the maximum."""
    between = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
    return f"{statistics.median(values):.1f}{between}"


def hold_table(count: int, found: dict[str, list[Report]]) -> str:
    """Return the table with a row for each step."""
    rows = []
    for step, reports in found.items():
        parts: dict[str, float] = {}
        for report in reports:
            for name, ms in report.parts.items():
                parts[name] = max(ms, parts.get(name, 0))
        longest = sorted(((ms, name) for name, ms in parts.items() if ms >= SHOWN_MS), reverse=True)
        rows.append([
            step,
            in_words([report.longest_ms for report in reports]),
            f"{statistics.median(report.longest_cpu_ms for report in reports):.1f}",
            ", ".join(f"{name} {ms:.1f}" for ms, name in longest),
        ])  # fmt: skip
    return markdown_table(
        [f"with {count:,} partitions", "longest hold, ms", "its CPU time, ms", "longest by what was done, ms"], rows
    )


def measure_holds(options: argparse.Namespace) -> None:
    """Print the table."""
    found: dict[str, list[Report]] = {}
    for _ in range(options.rounds):
        with held_broker(options.work) as broker:
            for step, report in hold_steps(broker, options.partitions):
                found.setdefault(step, []).append(report)
    print(hold_table(options.partitions, found), end="\n\n", flush=True)


# ------------------------------------------------------------------------------------------------------------- the bombs


class Bombed(NamedTuple):
    """The times of small produce requests in ms, and the longest call of the loop, while other work took `seconds`."""

    seconds: float
    latencies_ms: list[float]
    longest_ms: float

    @property
    def p99_ms(self) -> float:
        """The 99th percentile in ms."""
        return sorted(self.latencies_ms)[len(self.latencies_ms) * 99 // 100]


def bomb(codec: str) -> bytes:
    """The batch."""
    now_ms, number = int(time.time() * 1000), codec_id(codec)
    packed = deflate(number, encode_records([Record(0, 0, None, bytes(BOMB_BYTES), (), 0)]))
    return NewRecordBatch(0, 0, now_ms, now_ms, 1, packed, attributes=number).encode()


def small_produces_during(broker: HeldBroker, other_work: Callable[[], object]) -> Bombed:
    """Send small produce requests, one after the other, until other work in a thread is done."""
    client = Client(broker.port)
    frame = client.produce_frame("t", 1, batch(1, 10))
    client.send_until_taken(frame)
    broker.report()
    failed: list[Exception] = []

    def work() -> None:
        try:
            other_work()
        except (OSError, RuntimeError) as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    latencies_ms: list[float] = []
    began = time.perf_counter()
    thread.start()
    while thread.is_alive():
        sent = time.perf_counter()
        client.send(frame)
        latencies_ms.append((time.perf_counter() - sent) * 1e3)
    seconds = time.perf_counter() - began
    for error in failed:
        raise error
    client.close()
    return Bombed(seconds, latencies_ms, broker.report().longest_ms)


def measure_bombs(options: argparse.Namespace) -> None:
    """Print the table."""
    bombs = {codec: bomb(codec) for codec in BOMB_CODECS}
    found: dict[str, list[Bombed]] = {name: [] for name in ("none", *BOMB_CODECS)}
    with held_broker(options.work) as broker:
        client = Client(broker.port)
        client.create_topic("t", 2)
        client.send_until_taken(client.produce_frame("t", 0, batch(1, 10)))
        for _ in range(options.rounds):
            found["none"].append(small_produces_during(broker, lambda: time.sleep(BASELINE_S)))
            for codec, records in bombs.items():
                found[codec].append(small_produces_during(broker, partial(client.send, client.produce_frame("t", 0, records))))
    names = {name: f"{name}, {len(bombs[name]):,} bytes" if name in bombs else name for name in found}
    print_small_produces(f"a batch that inflates to {BOMB_BYTES / 1e6:.0f} MB", "answered in, s", names, found)


def print_small_produces(what: str, until: str, names: dict[str, str], found: dict[str, list[Bombed]]) -> None:
    """Print a table with a row for each kind of other work."""
    rows = []
    for name, results in found.items():
        rows.append([
            names[name],
            in_words([result.seconds for result in results]),
            f"{sum(len(result.latencies_ms) for result in results):,}",
            in_words([statistics.median(result.latencies_ms) for result in results]),
            in_words([result.p99_ms for result in results]),
            in_words([max(result.latencies_ms) for result in results]),
            in_words([result.longest_ms for result in results]),
        ])  # fmt: skip
    head = [what, until, "small produces meanwhile", "p50, ms", "p99, ms", "maximum, ms", "longest hold, ms"]
    print(markdown_table(head, rows), end="\n\n", flush=True)


# ----------------------------------------------------------------------------------------------------------- the cleaner


def cleaned(broker: HeldBroker, topic: str) -> None:
    """Make a topic compacted, and wait until its log is clean."""
    client, api = Client(broker.port), API_KEYS[apis.INCREMENTAL_ALTER_CONFIGS]
    classes = api.request.classes
    config = classes["AlterableConfig"](name="cleanup.policy", config_operation=0, value="compact")
    resource = classes["AlterConfigsResource"](resource_type=TOPIC_RESOURCE, resource_name=topic, configs=[config])
    answer = client.ask(api.key, api.highest_version, api.request.new(resources=[resource]))
    if answer.responses[0].error_code:
        raise RuntimeError(f"IncrementalAlterConfigs: error {answer.responses[0].error_code}")
    checkpoint = broker.directory / "data" / "cleaner-offset-checkpoint"
    wait_until(lambda: checkpoint.exists() and f"{topic} 0 " in checkpoint.read_text(), f"the cleaning of {topic}")
    client.close()


def measure_cleaning(options: argparse.Namespace) -> None:
    """Print the table."""
    from benchmarks.bench_cleaner import ROWS, batches

    found: dict[str, list[Bombed]] = {name: [] for name in ("none", *CLEANED_ROWS)}
    with held_broker(options.work) as broker:
        client = Client(broker.port)
        client.create_topic("t", 2)
        client.send_until_taken(client.produce_frame("t", 0, batch(1, 10)))
        for number in range(options.rounds):
            found["none"].append(small_produces_during(broker, lambda: time.sleep(BASELINE_S)))
            for row in CLEANED_ROWS:
                topic = f"{row}-{number}"
                client.create_topic(topic, 1, segment_bytes=str(DIRTY_SEGMENT_BYTES), retention_ms="-1")
                for made in batches(ROWS[row], DIRTY_MB):
                    client.send_until_taken(client.produce_frame(topic, 0, bytes(made)))
                time.sleep(SETTLE_S)
                found[row].append(small_produces_during(broker, partial(cleaned, broker, topic)))
    print_small_produces(f"a log of {DIRTY_MB} MB", "clean in, s", {name: name for name in found}, found)


TABLES = {"holds": measure_holds, "bombs": measure_bombs, "cleaning": measure_cleaning}


def main() -> None:
    """Measure and print the requested tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--work", type=Path)
    options = parser.parse_args()
    work = options.work = Path(tempfile.mkdtemp(prefix="bench-holds-", dir=options.work))
    try:
        for name in options.tables.split(","):
            TABLES[name](options)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
