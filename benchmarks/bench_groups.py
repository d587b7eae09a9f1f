"""Compares the group coordinator of `kcli serve` with Apache Kafka's.

    python -m benchmarks.bench_groups [--brokers kcli,kafka] [--rows commits,heartbeats,join,load] [--work DIR]

    row         measurement
    ----------  --------------------------------------------------------------------------------------------------------
    commits     offset commits per second of the broker's CPU time: of one group by one client, of 100 groups by 100
    heartbeats  share of a core that 2,000 members need: of classic groups, a heartbeat in 3 s; of the consumer protocol, in 5 s
    join        100 clients join one group: time until all are stable; the same members again after a kill of the broker
    load        10,000 groups with 10 offsets each: from the start of the broker until the last one is served; memory

One line of JSON per figure on stdout. Client and broker share the machine, so CPU time varies less than elapsed time.
"""

from __future__ import annotations

import selectors
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.brokers import Broker, Client, measure_rows, report, started
from kcli.protocol import apis, error_codes
from kcli.protocol.apis import API_KEYS
from kcli.protocol.framing import encode_request, read_response_header
from kcli.protocol.message import Message

SETTINGS = ("offsets.topic.replication.factor=1", "offsets.topic.num.partitions=10", "group.initial.rebalance.delay.ms=0")
COMMITS = 20_000
WARM_COMMITS = {"kcli": 2_000, "kafka": 60_000}  # a JVM compiles what runs often
MEMBERS, HEARTBEAT_S, MODERN_HEARTBEAT_S, HEARTBEAT_ROUNDS = 2_000, 3.0, 5.0, 5
JOINING_BEAT_S = 0.1  # between the heartbeats of members that wait for the others
NOTHING = -1  # the key of no request
GROUPS, OFFSETS = 10_000, 10


def frame(key: int, version: int, /, **fields: Any) -> bytes:
    """Encode a request with its size."""
    return bytes(encode_request(7, API_KEYS[key], version, "bench", API_KEYS[key].request.new(**fields)))


def response(key: int, version: int, data: bytes) -> Message:
    """Decode the answer to a request."""
    api = API_KEYS[key]
    return api.response.decode(data, version, read_response_header(data, api, version)[1])[0]


def commit_frame(group: str, partitions: int = 1) -> bytes:
    """Encode an OffsetCommit of partitions of topic t, by a consumer that assigns partitions to itself."""
    classes = API_KEYS[apis.OFFSET_COMMIT].request.classes
    parts = [
        classes["OffsetCommitRequestPartition"](partition_index=index, committed_offset=5, committed_metadata="")
        for index in range(partitions)
    ]
    topic = classes["OffsetCommitRequestTopic"](name="t", partitions=parts)
    return frame(apis.OFFSET_COMMIT, 8, group_id=group, topics=[topic])


class Connections:
    """Clients that each send a frame, and the next one after its answer."""

    def __init__(self, port: int, count: int) -> None:
        self.sockets = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(count)]
        for one in self.sockets:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def part(self, chosen: Sequence[int]) -> Connections:
        """Return some of the connections."""
        found = Connections.__new__(Connections)
        found.sockets = [self.sockets[at] for at in chosen]
        return found

    def exchange(self, frames: Sequence[bytes]) -> list[bytes]:
        """Send a frame on each connection -> their answers."""
        for one, data in zip(self.sockets, frames, strict=True):
            one.sendall(data)
        return [self.read(one) for one in self.sockets]

    def repeat(self, frames: Sequence[bytes], count: int) -> None:
        """Send each connection's frame again and again, `count` answers in all."""
        selector = selectors.DefaultSelector()
        for one, data in zip(self.sockets, frames, strict=True):
            selector.register(one, selectors.EVENT_READ, data)
            one.sendall(data)
        left = count
        while left > 0:
            for key, _ in selector.select():
                self.read(key.fileobj)  # type: ignore[arg-type]
                left -= 1
                if left >= len(self.sockets):
                    key.fileobj.sendall(key.data)  # type: ignore[union-attr]
        selector.close()

    @staticmethod
    def read(one: socket.socket) -> bytes:
        """Read a frame."""
        data = b""
        while len(data) < 4 or len(data) < 4 + struct.unpack(">i", data[:4])[0]:
            part = one.recv(1 << 16)
            if not part:
                raise RuntimeError("the broker has closed the connection")
            data += part
        return data[4:]

    def close(self) -> None:
        """Close all."""
        for one in self.sockets:
            one.close()


@contextmanager
def serving(name: str, work: Path) -> Iterator[Broker]:
    """Yield a broker with topic t and a coordinator."""
    with started(Broker(name, Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work)), SETTINGS)) as broker:
        client = Client(broker.port)
        client.create_topic("t", OFFSETS)
        client.close()
        wait_for_groups(broker, [f"warm-{at}" for at in range(40)])
        yield broker


def wait_for_groups(broker: Broker, names: Sequence[str]) -> None:
    """Ask until every group has a coordinator that takes its commits."""
    connection = Connections(broker.port, 1)
    find = frame(apis.FIND_COORDINATOR, 3, key="warm", key_type=0)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        answer = response(apis.FIND_COORDINATOR, 3, connection.exchange([find])[0])
        if not answer.error_code and not any(commit_code(connection, name) for name in names):
            connection.close()
            return
        time.sleep(0.05)
    raise RuntimeError(f"{broker.name} has no coordinator")


def commit_code(connection: Connections, group: str) -> int:
    """Commit an offset -> the error code."""
    answer = response(apis.OFFSET_COMMIT, 8, connection.exchange([commit_frame(group)])[0])
    return int(answer.topics[0].partitions[0].error_code)


def row_commits(name: str, work: Path) -> None:
    """Measure commits."""
    with serving(name, work) as broker:
        for clients in (1, 100):
            connections = Connections(broker.port, clients)
            frames = [commit_frame(f"g{at}") for at in range(clients)]
            connections.repeat(frames, WARM_COMMITS[name])
            before, began = broker.cpu_seconds(), time.monotonic()
            connections.repeat(frames, COMMITS)
            cpu, elapsed = broker.cpu_seconds() - before, time.monotonic() - began
            connections.close()
            report("commits", name, groups=clients, commits_per_cpu_s=COMMITS / cpu, commits_per_s=COMMITS / elapsed)


def join_frame(group: str, member_id: str) -> bytes:
    """Encode a join of a consumer."""
    subscription = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
    protocol = API_KEYS[apis.JOIN_GROUP].request.classes["JoinGroupRequestProtocol"](name="range", metadata=subscription)
    return frame(
        apis.JOIN_GROUP,
        5,
        group_id=group,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[protocol],
    )


def sync_frame(group: str, member_id: str, generation: int, assignment: dict[str, bytes]) -> bytes:
    """Encode a sync."""
    make = API_KEYS[apis.SYNC_GROUP].request.classes["SyncGroupRequestAssignment"]
    parts = [make(member_id=member, assignment=data) for member, data in assignment.items()]
    return frame(apis.SYNC_GROUP, 3, group_id=group, generation_id=generation, member_id=member_id, assignments=parts)


class Joiner:
    """A member that joins a group as clients do, until the group is stable."""

    def __init__(self, connection: socket.socket, group: str, member_id: str) -> None:
        self.connection, self.group, self.member_id = connection, group, member_id
        self.generation, self.is_stable = -1, False
        self._next_beat = 0.0
        self._join()

    def _join(self) -> None:
        self.is_stable = False
        self._send(apis.JOIN_GROUP, 5, join_frame(self.group, self.member_id))

    def _send(self, key: int, version: int, data: bytes) -> None:
        self._asked = (key, version)
        self.connection.sendall(data)

    def beat(self, now: float) -> None:
        """Send a heartbeat if one is due."""
        if self._asked[0] == NOTHING and now >= self._next_beat:
            self._send(apis.HEARTBEAT, 3, heartbeat_frame(self.group, self.member_id, self.generation))

    def answered(self, data: bytes) -> None:
        """Go on after an answer."""
        key, version = self._asked
        answer = response(key, version, data)
        code = answer.error_code
        if key == apis.JOIN_GROUP and not code:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            assignment = {member.member_id: b"a" for member in answer.members}
            self._send(apis.SYNC_GROUP, 3, sync_frame(self.group, self.member_id, self.generation, assignment))
        elif code in (error_codes.MEMBER_ID_REQUIRED, error_codes.REBALANCE_IN_PROGRESS):
            self.member_id = answer.member_id if key == apis.JOIN_GROUP else self.member_id
            self._join()
        elif code:
            raise RuntimeError(f"{self.group}: {error_codes.NAMES[code]}")
        else:
            self.is_stable = key == apis.HEARTBEAT
            self._asked = (NOTHING, 0)
            self._next_beat = time.monotonic() + (JOINING_BEAT_S if self.is_stable else 0)


def join_all(port: int, groups: Sequence[str], ids: Sequence[str] = ()) -> tuple[Connections, list[tuple[str, int]]]:
    """Let a client for each entry of `groups` join it, until all are stable in one generation -> member ids and generations.

    `ids` are those of members that were in the groups before.
    """
    connections = Connections(port, len(groups))
    selector = selectors.DefaultSelector()
    members = []
    for at, one in enumerate(connections.sockets):
        members.append(Joiner(one, groups[at], ids[at] if ids else ""))
        selector.register(one, selectors.EVENT_READ, members[-1])
    while not all(one.is_stable for one in members) or len({(one.group, one.generation) for one in members}) > len({*groups}):
        for key, _ in selector.select(JOINING_BEAT_S / 10):
            key.data.answered(connections.read(key.data.connection))
        now = time.monotonic()
        for one in members:
            one.beat(now)
    selector.close()
    return connections, [(one.member_id, one.generation) for one in members]


def heartbeat_frame(group: str, member_id: str, generation: int) -> bytes:
    """Encode a heartbeat."""
    return frame(apis.HEARTBEAT, 3, group_id=group, generation_id=generation, member_id=member_id)


def row_heartbeats(name: str, work: Path) -> None:
    """Measure heartbeats of members in groups of 20, which share 100 connections: classic ones, then the consumer protocol."""
    with serving(name, work) as broker:
        groups = [f"beat-{at // 20}" for at in range(MEMBERS)]
        frames: list[bytes] = []
        for start in range(0, MEMBERS, 20):
            connections, members = join_all(broker.port, groups[start : start + 20])
            frames += [heartbeat_frame(groups[start], *member) for member in members]
            connections.close()
        beat_all(broker, "classic", frames, HEARTBEAT_S)
    with serving(name, work) as broker:
        connections = Connections(broker.port, 20)
        frames = [data for start in range(0, MEMBERS, 20) for data in join_modern(connections, f"beat-{start // 20}")]
        connections.close()
        beat_all(broker, "consumer", frames, MODERN_HEARTBEAT_S)


def beat_all(broker: Broker, protocol: str, frames: Sequence[bytes], interval_s: float) -> None:
    """Send the heartbeats of all members in each interval, and report what that costs."""
    connections = Connections(broker.port, 100)
    for rounds in (2, HEARTBEAT_ROUNDS):
        before, began = broker.cpu_seconds(), time.monotonic()
        for at in range(rounds):
            for start in range(0, MEMBERS, 100):
                connections.exchange(frames[start : start + 100])
                pause_until(began + at * interval_s + (start + 100) / MEMBERS * interval_s)
        cpu, elapsed = broker.cpu_seconds() - before, time.monotonic() - began
    connections.close()
    report(f"heartbeats {protocol}", broker.name, members=MEMBERS, percent_of_a_core=100 * cpu / elapsed)


def modern_frame(group: str, member_id: str, epoch: int, **fields: Any) -> bytes:
    """Encode a heartbeat of the consumer protocol."""
    return frame(apis.CONSUMER_GROUP_HEARTBEAT, 1, group_id=group, member_id=member_id, member_epoch=epoch, **fields)


def join_modern(connections: Connections, group: str) -> list[bytes]:
    """Let a member for each connection join a group of the consumer protocol until all have their partitions -> heartbeats."""
    first = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
    ids = [f"{group}-member-{at}" for at in range(len(connections.sockets))]
    frames = [modern_frame(group, member_id, 0, **first) for member_id in ids]
    make = API_KEYS[apis.CONSUMER_GROUP_HEARTBEAT].request.classes["TopicPartitions"]
    epochs: list[int] = []
    is_settled = False
    while not is_settled:
        answers = [response(apis.CONSUMER_GROUP_HEARTBEAT, 1, data) for data in connections.exchange(frames)]
        for answer in answers:
            if answer.error_code:
                raise RuntimeError(f"{group}: {error_codes.NAMES[answer.error_code]}")
        before, epochs = epochs, [answer.member_epoch for answer in answers]
        is_settled = len({*before, *epochs}) == 1 and all(answer.assignment is None for answer in answers)
        frames = []
        for member_id, answer in zip(ids, answers, strict=True):
            fields: dict[str, Any] = {}
            if answer.assignment is not None:
                given = answer.assignment.topic_partitions
                fields = {"topic_partitions": [make(topic_id=one.topic_id, partitions=one.partitions) for one in given]}
            frames.append(modern_frame(group, member_id, answer.member_epoch, **fields))
    return frames


def pause_until(at: float) -> None:
    """Sleep until a time of the monotonic clock."""
    time.sleep(max(0.0, at - time.monotonic()))


def row_join(name: str, work: Path) -> None:
    """Measure 100 joins, and again after a kill."""
    ids: list[str] = []
    with serving(name, work) as broker:
        for what in ("first", "after_kill"):
            began = time.monotonic()
            connections, members = join_all(broker.port, ["join"] * 100, ids)
            report("join", name, **{f"{what}_s": time.monotonic() - began})
            ids = [member_id for member_id, _ in members]
            connections.close()
            if what == "first":
                broker.stop(signal.SIGKILL)
                broker.start()
                wait_for_groups(broker, [f"warm-{at}" for at in range(40)])


def row_load(name: str, work: Path) -> None:
    """Measure the load of many groups after a clean stop."""
    with serving(name, work) as broker:
        connections = Connections(broker.port, 50)
        for start in range(0, GROUPS, 50):
            connections.exchange([commit_frame(f"load-{at}", OFFSETS) for at in range(start, start + 50)])
        connections.close()
        broker.stop()
        began, cpu_before = time.monotonic(), 0.0
        broker.start()
        wait_for_groups(broker, [f"load-{at}" for at in range(0, GROUPS, 250)])
        took = time.monotonic() - began
        report("load", name, start_to_loaded_s=took, cpu_s=broker.cpu_seconds() - cpu_before, memory_mb=broker.memory_mb())


ROWS: dict[str, Callable[[str, Path], None]] = {
    "commits": row_commits,
    "heartbeats": row_heartbeats,
    "join": row_join,
    "load": row_load,
}


def main() -> None:
    """Measure the requested rows for each broker."""
    measure_rows(__doc__, ROWS)


if __name__ == "__main__":
    main()
