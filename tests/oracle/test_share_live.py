"""Protects share groups of real clients: each record is acknowledged, and none is delivered to two members at the same time.

A member is a process: LiveShare.java or clients/share_member.py, which say what is done with a record of each value. The
judge has the times of all deliveries and acknowledgements, and checks each record:

    rule                                         what it shows
    -------------------------------------------  ------------------------------------------------------------------------
    it is delivered, and then acknowledged       no record is lost; the lag of the group becomes 0
    one acknowledgement is successful at most    two members never had it at the same time
    no delivery has a higher count than that     an acknowledged record is never delivered again
    delivery counts rise, up to the limit        each acquisition is counted
    nobody else gets it before its lock expires  acquisition locks have their duration
    acknowledgements within it are successful    the same

What a member did not learn the result of (killed, paused, or the broker was) may have been applied or not.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kcli.protocol import apis
from tests.oracle.brokers import KcliBroker
from tests.oracle.member_process import MemberProcess
from tests.oracle.peer import Peer, free_ports
from tests.oracle.raw_requests import RawClient

pytestmark = [pytest.mark.oracle]

LOCK_MS = 4000
SLACK_MS = 1500  # what a delivery may take from the acquisition to the member's line, and an acknowledgement to the broker
DELIVERY_LIMIT = 5
BROKER_SETTINGS = (
    "auto.create.topics.enable=false",
    "offsets.topic.num.partitions=2",
    "offsets.topic.replication.factor=1",
    "transaction.state.log.num.partitions=1",
    "transaction.state.log.replication.factor=1",
    "transaction.state.log.min.isr=1",
    "share.coordinator.state.topic.num.partitions=2",
    "share.coordinator.state.topic.replication.factor=1",
    "share.coordinator.state.topic.min.isr=1",
    "group.share.min.session.timeout.ms=1000",
    "group.share.session.timeout.ms=5000",
    "group.share.min.heartbeat.interval.ms=100",
    "group.share.heartbeat.interval.ms=500",
    "group.share.assignment.interval.ms=0",
    "group.share.min.record.lock.duration.ms=1000",
    f"group.share.record.lock.duration.ms={LOCK_MS}",
    f"group.share.delivery.count.limit={DELIVERY_LIMIT}",
)
PARTITIONS = 3
SETTLE_SECONDS = 30
PAUSE_S = 0.05  # between the records of the producer; and of a poll of other processes, which give no other sign
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
_NAMES = itertools.count()
_MS = 1_000_000  # ns

Record = tuple[int, int]


class Broker:
    """A broker that can be killed and started again on its address."""

    def __init__(self, bootstrap: str, kill: Callable[[], None], start: Callable[[], None]) -> None:
        self.bootstrap = bootstrap
        self.kill = kill
        self.start = start


@pytest.fixture(scope="module", params=["kcli", pytest.param("kafka", marks=pytest.mark.slow)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A new broker: kcli and, in the slow tier, Apache Kafka."""
    home = tmp_path_factory.mktemp(f"share-{request.param}")
    if request.param == "kcli":
        request.getfixturevalue("kcli_serves")
        with KcliBroker(home, *BROKER_SETTINGS) as own:
            yield Broker(own.bootstrap, own.kill, own.start)
        return
    script, port = str(request.getfixturevalue("kafka_peer").script), free_ports()
    run(script, "format", str(home), str(port), *BROKER_SETTINGS)

    def kill() -> None:
        os.kill(int((home / "pid").read_text()), signal.SIGKILL)

    run(script, "start", str(home))
    try:
        yield Broker(f"127.0.0.1:{port}", kill, lambda: run(script, "start", str(home)))
    finally:
        kill()


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL)


class Acknowledgement:
    """An acknowledgement of a member; `is_ok` is None as long as the result is not known."""

    def __init__(self, at_ns: int, kind: int) -> None:
        self.at_ns = at_ns
        self.kind = kind
        self.is_ok: bool | None = None


class Delivery:
    """A record that a member got; `is_timed` is False if the member may have had it for long."""

    def __init__(self, member: MemberProcess, at_ns: int, count: int, is_timed: bool) -> None:
        self.member = member
        self.at_ns = at_ns
        self.count = count
        self.is_timed = is_timed
        self.acknowledgements: list[Acknowledgement] = []

    @property
    def is_final(self) -> bool:
        """Whether the member has finished the record within its lock.

        Brokers accept late acknowledgements, too, without effect: of records below the start offset.
        """
        start_ns = self.at_ns
        for one in self.acknowledgements:
            if not self.is_timed or not one.is_ok or one.at_ns - start_ns > (LOCK_MS - SLACK_MS) * _MS:
                return False
            if one.kind in (ACCEPT, REJECT):
                return True
            start_ns = one.at_ns
        return False

    @property
    def may_be_final(self) -> bool:
        """Whether the broker may have finished the record."""
        return any(one.is_ok is not False and one.kind in (ACCEPT, REJECT) for one in self.acknowledgements)

    @property
    def ends_ns(self) -> int | None:
        """When the member gave the record back, None if it did not."""
        return next((one.at_ns for one in self.acknowledgements if one.kind != RENEW), None)

    def is_gone_at(self, at_ns: int) -> bool:
        """Whether the member had ended, or was paused, before that time."""
        closed = next((event.at_ns for event in self.member.events if event.kind == "closed"), None)
        return any(one is not None and one <= at_ns for one in (closed, self.member.gone_ns))

    def __repr__(self) -> str:
        acknowledged = [(one.at_ns // _MS, one.kind, one.is_ok) for one in self.acknowledgements]
        return f"{self.member.process.pid}: {self.at_ns // _MS} ms, count {self.count}, {acknowledged}"


def deliveries_of(member: MemberProcess) -> Iterator[tuple[Record, Delivery]]:
    """What a member got, with its acknowledgements."""
    present: dict[Record, Delivery] = {}
    slept_ns = 0
    for event in list(member.events):
        if event.kind == "slept":
            slept_ns = event.at_ns
            continue
        if len(event.numbers) != 3:
            continue
        record, number = event.numbers[:2], event.numbers[2]
        known = present.get(record)
        if event.kind == "got":
            is_renewed = known is not None and known.acknowledgements and known.acknowledgements[-1].kind == RENEW
            if known is not None and is_renewed and known.count == number:
                continue
            is_timed = (event.at_ns - slept_ns) // _MS > SLACK_MS and member.gone_ns is None
            present[record] = Delivery(member, event.at_ns, number, is_timed)
            yield record, present[record]
        elif known is None:  # a gap, which clients acknowledge by themselves
            assert number == 0, f"{event} of a record that the member did not get"
        elif event.kind == "acking":
            known.acknowledgements.append(Acknowledgement(event.at_ns, number))
        else:
            for one in known.acknowledgements:
                if one.is_ok is None and one.kind == number:
                    one.is_ok = event.kind == "acked"
                    break


def _mark_late(deliveries: list[Delivery]) -> None:
    """Do not hold a member to the time of a delivery that was in the buffer of its client until its lock had expired."""
    for number, one in enumerate(deliveries):
        if any(one.count < before.count for before in deliveries[:number]):
            one.is_timed = False


class Judge:
    """A share group, and the records that a producer sends all the time."""

    def __init__(
        self, broker: Broker, peer: Callable[[], Peer], mode: str, acquire_mode: str = "batch_optimized", **configs: str
    ) -> None:
        self.broker = broker
        self.group = self.topic = f"share-{next(_NAMES)}"
        self._peer = peer
        self._words = (broker.bootstrap, self.group, self.topic, mode, acquire_mode, str(LOCK_MS))
        self.members: list[MemberProcess] = []
        self.restarts: list[tuple[int, int]] = []
        self.sent: dict[Record, str] = {}
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)]).values():
            made.result(60)
        self.set_configs(
            {"share.auto.offset.reset": "earliest"} | {name.replace("_", "."): value for name, value in configs.items()}
        )
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "enable.idempotence": True})
        self._is_ending = threading.Event()
        self._sender = threading.Thread(target=self._send, daemon=True)

    def set_configs(self, configs: dict[str, str]) -> None:
        client = RawClient(self.broker.bootstrap)
        struct, key = client.struct, apis.INCREMENTAL_ALTER_CONFIGS
        values = [struct(key, "AlterableConfig", name=name, config_operation=0, value=value) for name, value in configs.items()]
        resource = struct(key, "AlterConfigsResource", resource_type=32, resource_name=self.group, configs=values)
        answer = client.ask(key, 1, resources=[resource], validate_only=False)
        assert answer.responses[0].error_code == 0, answer.responses[0].error_message
        client.close()

    def start_sending(self) -> None:
        self._sender.start()

    def _send(self) -> None:
        rng = random.Random(self.topic)
        for number in itertools.count(1):
            if self._is_ending.wait(PAUSE_S):
                break
            for index in range(PARTITIONS):
                value = rng.choices(("accept", "release", "reject", "poison"), (90, 4, 4, 2))[0]
                self.send(index, value if (number + 60 * index) % 180 else ("renew", "hold", "renew")[index])
            self._producer.poll(0)
        assert self._producer.flush(SETTLE_SECONDS) == 0

    def send(self, index: int, value: str) -> None:
        def sent(error: Any, message: Message) -> None:
            assert error is None, error
            offset = message.offset()
            assert offset is not None
            self.sent[index, offset] = value

        self._producer.produce(self.topic, value.encode(), partition=index, on_delivery=sent)

    def add(self, client: str) -> MemberProcess:
        if client == "java":
            command = self._peer().java_command("LiveShare", self._words)
        else:
            module = "kcli_share_member" if client == "kcli" else "share_member"
            command = [sys.executable, "-m", f"tests.oracle.clients.{module}", *self._words]
        self.members.append(MemberProcess(command))
        return self.members[-1]

    @property
    def alive(self) -> list[MemberProcess]:
        return [member for member in self.members if member.is_alive]

    def until(self, is_so: Callable[[], bool], what: str, seconds: float = SETTLE_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > end:
                pytest.fail(f"{what}: not within {seconds} s; {self._told()}")
            time.sleep(PAUSE_S)

    def settle(self, what: str) -> None:
        """Wait until each member that is alive has got records from now on."""
        now_ns = time.monotonic_ns()

        def has_read(member: MemberProcess) -> bool:
            return any(event.at_ns > now_ns and event.kind == "got" for event in reversed(member.events[-200:]))

        self.until(lambda: all(has_read(member) for member in self.alive), what)

    def _told(self) -> str:
        """What a failure says of the group: its start offsets, the records there, and the last errors of members."""
        lines = []
        for index, (start, lag) in enumerate(self.offsets()):
            found = [one for member in self.members for record, one in deliveries_of(member) if record == (index, start)]
            lines.append(f"partition {index} starts at {start}, its lag is {lag}, {self.sent.get((index, start))}: {found}")
        return "\n".join([*lines, *(f"{member.process.pid}: {member.errors[-5:]}" for member in self.members)])

    def restart_broker(self, down_s: float) -> None:
        killed_ns = time.monotonic_ns()
        self.broker.kill()
        time.sleep(down_s)
        self.broker.start()
        self.restarts.append((killed_ns, time.monotonic_ns()))

    def offsets(self) -> list[tuple[int, int]]:
        """The group's start offset and lag in each partition; the start offset may stay behind what is acknowledged."""
        client = RawClient(self.broker.bootstrap)
        struct, key = client.struct, apis.DESCRIBE_SHARE_GROUP_OFFSETS
        topic = struct(key, "DescribeShareGroupOffsetsRequestTopic", topic_name=self.topic, partitions=list(range(PARTITIONS)))
        group = struct(key, "DescribeShareGroupOffsetsRequestGroup", group_id=self.group, topics=[topic])
        (answer,) = client.ask(key, 1, groups=[group]).groups
        client.close()
        found = sorted(
            (part.partition_index, part.start_offset, part.lag) for topic in answer.topics for part in topic.partitions
        )
        return [(start, lag) for _, start, lag in found]

    def stop_sending(self) -> None:
        self._is_ending.set()
        if self._sender.ident is not None:
            self._sender.join(SETTLE_SECONDS)

    def end(self) -> None:
        """Send no more, wait until the group has no record left, and judge."""
        self.stop_sending()
        self.until(lambda: all(lag == 0 for _, lag in self.offsets()), "all is acknowledged", 60)
        for member in self.alive:
            member.leave()
        self.check()

    def check(self) -> None:
        """Hold all deliveries to the rules."""
        found: dict[Record, list[Delivery]] = {record: [] for record in self.sent}
        for member in self.members:
            for record, delivery in deliveries_of(member):
                assert record in found, f"{record} was not sent, or is of an aborted transaction: {delivery}"
                found[record].append(delivery)
        for record, deliveries in found.items():
            deliveries.sort(key=lambda one: one.at_ns)
            told = f"{record} {self.sent[record]}: {deliveries}; restarts {[(a // _MS, b // _MS) for a, b in self.restarts]}"
            _mark_late(deliveries)
            self._check_end(deliveries, told)
            self._check_counts(deliveries, told)
            self._check_locks(deliveries, told)

    def _check_end(self, deliveries: list[Delivery], told: str) -> None:
        assert deliveries, f"never delivered: {told}"
        limit = DELIVERY_LIMIT - any(member.gone_ns is not None for member in self.members)
        is_done = any(one.may_be_final for one in deliveries) or max(one.count for one in deliveries) >= limit or self.restarts
        assert is_done, f"not acknowledged: {told}"

    def _check_counts(self, deliveries: list[Delivery], told: str) -> None:
        assert all(1 <= one.count <= DELIVERY_LIMIT for one in deliveries), f"delivery count: {told}"
        final = [one for one in deliveries if one.is_final]
        assert len(final) <= 1, f"acknowledged twice: {told}"
        for done, other in itertools.product(final, deliveries):
            is_before = other.count < done.count or (other.at_ns <= done.at_ns and self._may_repeat(other, done.at_ns))
            assert other is done or is_before, f"delivered after it was acknowledged: {told}"
        for one, after in itertools.pairwise(sorted(deliveries, key=lambda one: one.count)):
            is_another = one.count < after.count or after.member.gone_ns is not None
            assert is_another or self._may_repeat(one, after.at_ns), f"two acquisitions with one count: {told}"

    def _may_repeat(self, delivery: Delivery, at_ns: int) -> bool:
        """Whether the acquisition may be forgotten at that time: the member is gone, or the broker was restarted."""
        return delivery.is_gone_at(at_ns) or self._is_restart_between(delivery.at_ns, at_ns)

    def _is_restart_between(self, start_ns: int, end_ns: int) -> bool:
        return any(start_ns - LOCK_MS * _MS < ready and killed <= end_ns for killed, ready in self.restarts)

    def _check_locks(self, deliveries: list[Delivery], told: str) -> None:
        held_ns = (LOCK_MS - SLACK_MS) * _MS
        for number, one in enumerate(deliveries):
            start_ns = one.at_ns
            for acknowledgement in one.acknowledgements:
                if not one.is_timed or self._is_restart_between(start_ns, acknowledgement.at_ns + SLACK_MS * _MS):
                    break
                if acknowledgement.at_ns - start_ns < held_ns:
                    assert acknowledgement.is_ok is not False, f"an acknowledgement in time failed: {told}"
                start_ns = acknowledgement.at_ns
            until_ns = min(one.at_ns + held_ns, one.ends_ns or one.at_ns + held_ns)
            for other in deliveries[number + 1 :]:
                if one.is_timed and not self._may_repeat(one, other.at_ns) and other.is_timed:
                    assert other.at_ns >= until_ns, f"two members at the same time: {told}"

    def close(self) -> None:
        self._is_ending.set()
        for member in self.members:
            member.close()


Make = Callable[..., Judge]


@pytest.fixture
def judge(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Judge] = []

    def make(mode: str, **settings: str) -> Judge:
        made.append(Judge(broker, lambda: request.getfixturevalue("kafka_peer"), mode, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.ci
@pytest.mark.parametrize("mode", ["explicit", "implicit"])
def test_members_come_go_and_die(judge: Make, mode: str) -> None:
    """Four members of two clients; one leaves, one is killed, and one is paused past its locks and its session."""
    come_go_and_die(judge(mode), "java", "librdkafka")


def come_go_and_die(group: Judge, first_client: str, other_client: str) -> None:
    """One member of the first client, two of the other one, and one of the Java client."""
    group.start_sending()
    first, second = group.add(first_client), group.add(other_client)
    group.settle("two members")
    third = group.add(other_client)
    group.add("java")
    group.settle("four members")
    second.leave()
    group.settle("one has left")
    first.kill()
    group.settle("one is dead")
    third.pause()
    time.sleep(LOCK_MS / 1000 + 3)
    group.settle("one is paused")
    third.resume()
    group.settle("it goes on")
    group.end()
    third.leave()


@pytest.mark.ci
def test_the_state_survives_a_kill_of_the_broker(judge: Make) -> None:
    """Members of both clients continue after a broker was killed, twice, and nothing acknowledged comes back."""
    group = judge("explicit")
    group.start_sending()
    group.add("java")
    group.add("librdkafka")
    group.settle("two members")
    for down_s in (0.0, 2.0):
        group.restart_broker(down_s)
        group.settle("after a restart")
    group.end()


@pytest.mark.ci
@pytest.mark.parametrize("isolation", ["read_committed", pytest.param("read_uncommitted", marks=pytest.mark.slow)])
def test_transactions(judge: Make, broker: Broker, isolation: str) -> None:
    """A group reads the records of transactions by its share.isolation.level."""
    group = judge("explicit", share_isolation_level=isolation)
    group.add("java")
    group.add("librdkafka")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": group.topic, "linger.ms": 0})
    producer.init_transactions()
    aborted: dict[Record, str] = {}
    rng = random.Random(isolation)
    for number in range(20):
        producer.begin_transaction()
        into = aborted if number % 3 == 1 else group.sent
        for _ in range(rng.randrange(1, 5)):
            index = rng.randrange(PARTITIONS)

            def sent(error: Any, message: Message, into: dict[Record, str] = into) -> None:
                assert error is None, error
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None
                into[partition, offset] = "accept"

            producer.produce(group.topic, b"accept", partition=index, on_delivery=sent)
        producer.flush()
        if number % 3 == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
        time.sleep(0.05)
    if isolation == "read_uncommitted":
        group.sent |= aborted
    group.end()


LONG = {
    "Java": (("java",), "explicit", "batch_optimized"),
    "Java, record limit": (("java",), "explicit", "record_limit"),
    "Java, implicit": (("java",), "implicit", "batch_optimized"),
    "librdkafka": (("librdkafka",), "explicit", "batch_optimized"),
    "both": (("java", "librdkafka"), "explicit", "record_limit"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_a_long_life(judge: Make, name: str) -> None:
    """Two to five members join, leave, are killed and paused; the broker is killed in between."""
    clients, mode, acquire_mode = LONG[name]
    rng = random.Random(name)
    group = judge(mode, acquire_mode=acquire_mode)
    group.start_sending()
    for client in (*clients, *clients)[:2]:
        group.add(client)
    group.settle("two members")
    for step in range(10):
        can_go = ["leave", "kill", "pause"] if len(group.alive) > 2 else []
        action = rng.choice([*can_go, *(["add"] * 2 if len(group.alive) < 5 else []), *(["restart"] if step % 5 == 2 else [])])
        if action == "add":
            group.add(rng.choice(clients))
        elif action == "restart":
            group.restart_broker(rng.choice((0.0, 2.0)))
        elif action == "pause":
            member = rng.choice(group.alive)
            member.pause()
            time.sleep(rng.choice((1.2, 2.5)) * LOCK_MS / 1000)
            member.resume()
        else:
            member = rng.choice(group.alive)
            member.leave() if action == "leave" else member.kill()
        group.settle(f"step {step}: {action}")
    group.end()
    if name == "Java":
        kinds = {event.numbers[2] for member in group.members for event in member.events if event.kind == "acked"}
        assert kinds >= {ACCEPT, RELEASE, REJECT, RENEW}
