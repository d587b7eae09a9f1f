"""Measures three nodes, each a controller and a broker: starts, elections, topics a second. Kafka next to kcli in one run.

    python -m benchmarks.bench_quorum [--brokers kcli,kcli-at-once,kafka] [--rows start,election,topics] [--rounds 10]

    row                  measurement
    -------------------  ---------------------------------------------------------------------------------------------
    start                the three processes of formatted directories begin, until a topic is created and a record in it
                         acknowledged
    election             SIGKILL of the leading controller, until another node answers with a new leader
    election and topic   the same, until a topic is created through another broker; the killed node starts again after it
    topics one by one    TOPICS topics of one partition, each in a request of its own, until the last response
    topics in requests   TOPICS topics of one partition, TOPICS_A_REQUEST in a request

Partitions have one replica, and all timeouts are the defaults, which are Kafka's. `kcli-at-once` is kcli with its option
kcli.quorum.elect.at.once. The rows `topics` have CPU seconds of all three nodes, too. The output is a Markdown table on stdout
with the medians of the rounds, and one line of JSON for each round on stderr. All files are removed at the end.
benchmarks.brokers finds Kafka.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.brokers import CREATE_VERSION, Broker, Client, batch, free_port, java
from benchmarks.measure import Figures, compare_rounds
from kcli.protocol.apis import API_KEYS, CREATE_TOPICS, DESCRIBE_QUORUM

NODES = 3
TOPICS, TOPICS_A_REQUEST = 500, 50
LIMIT_S = 120.0
CLUSTER_ID = "kcliKcliKcliKcliKcliKg"
METADATA_TOPIC = "__cluster_metadata"
ROWS = ("start", "election", "topics")


class QuorumNode(Broker):
    """A node of a static quorum, controller and broker."""

    def __init__(self, name: str, directory: Path, node_id: int, controllers: list[int]) -> None:
        super().__init__(name, directory)
        self.node_id = node_id
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, 1))
        lines = [
            "process.roles=broker,controller",
            f"node.id={node_id}",
            f"controller.quorum.voters={voters}",
            f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controllers[node_id - 1]}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names=CONTROLLER",
            f"log.dirs={directory / 'data'}",
            "offsets.topic.replication.factor=1",
        ]
        if name == "kcli-at-once":
            lines.append("kcli.quorum.elect.at.once=true")
        directory.mkdir(parents=True)
        self.properties = directory / "server.properties"
        self.properties.write_text("\n".join(lines) + "\n")

    def format(self) -> None:
        """Format the directory, each program by its own tool."""
        words = [*java(), "kafka.tools.StorageTool"] if self.name == "kafka" else [sys.executable, "-m", "kcli"]
        command = [*words, "format", "-t", CLUSTER_ID, "-c", str(self.properties)]
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)

    def launch(self) -> None:
        """Start the process, and do not wait for it."""
        with open(self.directory.with_suffix(".log"), "ab") as log:
            self.process = subprocess.Popen(self._command(), stdout=log, stderr=log)

    def _command(self) -> list[str]:
        if self.name == "kafka":
            return [*java(), "-Dkafka.log.level=warn", "kafka.Kafka", str(self.properties)]
        return [sys.executable, "-m", "kcli", "serve", str(self.properties)]


class Quorum:
    """Three nodes in directories of their own."""

    def __init__(self, name: str, directory: Path) -> None:
        controllers = [free_port() for _ in range(NODES)]
        self.nodes = [QuorumNode(name, directory / str(number), number, controllers) for number in range(1, NODES + 1)]
        self.created = 0
        for node in self.nodes:
            node.format()

    def __enter__(self) -> Quorum:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                node.stop(signal.SIGKILL)
            node.remove()

    def start(self) -> float:
        """Start all nodes -> seconds until a record is acknowledged in a topic that was created then."""
        began = time.monotonic()
        for node in self.nodes:
            node.launch()
        until(self.create_one)
        frame = None

        def produce() -> bool:
            nonlocal frame
            for node in self.nodes:
                client = Client(node.port)
                try:
                    frame = client.produce_frame(self.topic(), 0, batch(1, 100))
                    client.send(frame)
                    return True
                except RuntimeError:
                    continue  # another broker leads, or none yet
                finally:
                    client.close()
            return False

        until(produce)
        return time.monotonic() - began

    def topic(self) -> str:
        """The topic that was created last."""
        return f"topic-{self.created}"

    def running(self) -> list[QuorumNode]:
        """The nodes whose processes run."""
        return [node for node in self.nodes if node.process is not None and node.process.poll() is None]

    def create_one(self) -> bool:
        """Create one topic through any broker; return whether one did."""
        for node in self.running():
            client = Client(node.port)
            try:
                self.create(client, 1)
                return True
            except RuntimeError:
                continue
            finally:
                client.close()
        return False

    def create(self, client: Client, count: int) -> None:
        """Create topics of one partition in one request. Raises RuntimeError for an error."""
        classes = API_KEYS[CREATE_TOPICS].request.classes
        names = [f"topic-{self.created + number}" for number in range(1, count + 1)]
        topics = [classes["CreatableTopic"](name=name, num_partitions=1, replication_factor=1) for name in names]
        answer = client.ask(CREATE_TOPICS, CREATE_VERSION, API_KEYS[CREATE_TOPICS].request.new(topics=topics, timeout_ms=5_000))
        self.created += count
        codes = {topic.error_code for topic in answer.topics}
        if codes != {0}:
            raise RuntimeError(f"CreateTopics: errors {codes}")

    def leader(self, besides: int | None = None) -> int | None:
        """Return the leading controller as a broker knows it, None if it is `besides` or not known."""
        classes = API_KEYS[DESCRIBE_QUORUM].request.classes
        partition = classes["PartitionData"](partition_index=0)
        topic = classes["TopicData"](topic_name=METADATA_TOPIC, partitions=[partition])
        for node in self.running():
            client = Client(node.port)
            try:
                answer = client.ask(DESCRIBE_QUORUM, 0, API_KEYS[DESCRIBE_QUORUM].request.new(topics=[topic]))
            finally:
                client.close()
            if answer.error_code or answer.topics[0].partitions[0].error_code:
                continue
            found = int(answer.topics[0].partitions[0].leader_id)
            if found not in (-1, besides):
                return found
        return None

    def elect(self) -> tuple[float, float]:
        """Kill the leading controller -> seconds until there is another one, and until a topic is created."""
        old: list[int] = []

        def known() -> bool:
            found = self.leader()
            old[:] = [] if found is None else [found]
            return found is not None

        until(known)
        node = self.nodes[old[0] - 1]
        began = time.monotonic()
        node.stop(signal.SIGKILL)
        until(lambda: self.leader(old[0]) is not None)
        elected = time.monotonic() - began
        until(self.create_one)
        created = time.monotonic() - began
        node.launch()
        until(lambda: Client(node.port).close() is None)
        return elected, created

    def cpu_seconds(self) -> float:
        """CPU seconds of all nodes that run."""
        return sum(node.cpu_seconds() for node in self.running())


def until(done: Callable[[], bool]) -> None:
    """Try again until it is done. Raises RuntimeError after LIMIT_S."""
    began = time.monotonic()
    error: Exception | None = None
    while time.monotonic() - began < LIMIT_S:
        try:
            if done():
                return
        except OSError as found:
            error = found
        time.sleep(0.005)
    raise RuntimeError(f"not done within {LIMIT_S} s: {error}")


def measured(quorum: Quorum, requests: int, topics: int) -> dict[str, float]:
    """Create topics through the first broker -> wall and CPU seconds."""
    client = Client(quorum.nodes[0].port)
    began, cpu_began = time.monotonic(), quorum.cpu_seconds()
    for _ in range(requests):
        quorum.create(client, topics)
    wall_s, cpu_s = time.monotonic() - began, quorum.cpu_seconds() - cpu_began
    client.close()
    return {"s": wall_s, "cpu_s": cpu_s}


def measure(name: str, rows: list[str], work: Path) -> Figures:
    """Return the figures of one round."""
    found: Figures = {}
    with Quorum(name, work) as quorum:
        found["start"] = {"s": quorum.start()}
        if "election" in rows:
            elected, created = quorum.elect()
            found["election"], found["election and topic"] = {"s": elected}, {"s": created}
        if "topics" in rows:
            found["topics one by one"] = measured(quorum, TOPICS, 1)
            found["topics in requests"] = measured(quorum, TOPICS // TOPICS_A_REQUEST, TOPICS_A_REQUEST)
    return found


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", default="kcli,kcli-at-once,kafka")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    rows = options.rows.split(",")
    print(compare_rounds(options.brokers.split(","), options.rounds, lambda name, work: measure(name, rows, work)))


if __name__ == "__main__":
    main()
