"""Apache Kafka judges a quorum of both kinds on bad days: voters of kcli and of Kafka are killed, paused, cut off and emptied.

The quorum is dynamic (KIP-853), or static, and then no disk is emptied; brokers of both kinds make topics, configurations and
groups in it, and a controller of Kafka ACLs. Each kind leads when each event comes. At the end Kafka's tool says that all have
caught up, the logs are equal byte by byte, Kafka's dump tool takes them, and all snapshots, which both kinds have made, are the
image of the log.

The voters of the kind that has one are the more patient: the second to ask for pre-votes wins, since the first asks while the
other still believes in the leader. So both kinds lead in turn.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from kcli.client import Admin, NewTopic, Producer
from kcli.client.admin.cluster import FeatureUpdate, QuorumInfo
from kcli.client.admin.configs import AlterConfigOp, AlterOperation, ConfigResource, ResourceType
from kcli.client.admin.operation import value_of
from kcli.client.admin.security import AclBinding
from kcli.client.errors import ClientError
from kcli.commands.app import main as kcli
from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import decode_meta_properties
from kcli.log.disk.os_disk import OsDisk
from kcli.protocol.framing import read_request_header
from kcli.server.controller.formatting import METADATA_PARTITION
from kcli.server.raft.metadata_batches import MetadataBatch, decode_batches
from kcli.server.raft.metadata_log import read_snapshot_file
from kcli.state.image_records import image_records
from kcli.state.metadata_image import MetadataImage
from tests.frame_proxy import SIZE_BYTES, Carrier, FrameProxy
from tests.oracle.peer import Peer, ToolCase
from tests.server.live import wait_for
from tests.server.quorum_processes import Controller, Quorum, addresses, faults, free_ports, kcli_command
from tests.server.test_quorum_live import BROKER, leaders_of, read, send

pytestmark = pytest.mark.oracle

KCLI, KAFKA = "kcli", "kafka"
QUORUM_TOOL = "org.apache.kafka.tools.MetadataQuorumCommand"
VOTERS = (1, 2, 3)
KCLI_BROKER, KAFKA_BROKER = 4, 5
PATIENT = "controller.quorum.fetch.timeout.ms=2500"
AUTO_JOIN = "controller.quorum.auto.join.enable=true"
SNAPSHOTS = "metadata.log.max.record.bytes.between.snapshots=3000"
# As long, a broker of Kafka waits for a leader that was paused before it asks the next one; 30 s by default.
HURRIED = "controller.socket.timeout.ms=3000"
AUTHORIZER = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:ANONYMOUS",
)
MOST_EVENTS = 16
LEVELS_OF_4_4 = {"metadata.version": 33, "share.version": 2}
TOPIC_TYPE, LITERAL, READ, ALLOW = 2, 3, 3, 3  # of ACLs


class ControllerProxy(FrameProxy):
    """In front of one controller; the frames of the nodes in `cut` are lost in it, all if the controller is itself cut off."""

    def __init__(self, node_id: int, target_port: int, cut: set[int]) -> None:
        self.node_id, self.cut = node_id, cut
        super().__init__(lambda: target_port)

    def carriers(self) -> tuple[Carrier, Carrier]:
        """See FrameProxy. The client id of a controller ends with its node.id."""
        clients = ("{}", "raft-client-{}", "broker-{}", "broker-{}-heartbeat")
        names = {client.format(node_id): node_id for node_id in VOTERS for client in clients}
        peers = {self.node_id}

        def is_lost() -> bool:
            return not peers.isdisjoint(self.cut)

        def request(frame: bytes, target: socket.socket) -> bool:
            peers.add(names.get(read_request_header(frame[SIZE_BYTES:])[3] or "", self.node_id))
            return answer(frame, target)

        def answer(frame: bytes, target: socket.socket) -> bool:
            if not is_lost():
                target.sendall(frame)
            return True

        return request, answer


class MixedQuorum(Quorum):
    """Three voters of these kinds, a broker of kcli, and one of Kafka if there is one voter of Kafka only."""

    def __init__(self, peer: Peer, home: Path, kinds: tuple[str, ...], *, is_dynamic: bool = True) -> None:
        self.peer = peer
        self.is_dynamic = is_dynamic
        self.kinds = dict(zip(VOTERS, kinds))
        self.cut: set[int] = set()
        real_ports = free_ports(len(VOTERS))
        self.proxies = [ControllerProxy(node_id, port, self.cut) for node_id, port in zip(VOTERS, real_ports)]
        ports = [proxy.port for proxy in self.proxies]
        self.bootstrap = addresses(ports)
        ids = {node_id: str(Uuid(bytes([node_id]) * 16)) for node_id in VOTERS}
        first_voters = ",".join(f"{node_id}@127.0.0.1:{ports[node_id - 1]}:{ids[node_id]}" for node_id in VOTERS)
        nodes = []
        for node_id, kind in self.kinds.items():
            own = f"CONTROLLER://127.0.0.1:{real_ports[node_id - 1]}"
            settings = [SNAPSHOTS, f"listeners={own}", f"advertised.listeners=CONTROLLER://127.0.0.1:{ports[node_id - 1]}"]
            settings += [PATIENT] if kinds.count(kind) == 1 else []
            settings += [AUTO_JOIN] if is_dynamic and self.joins_by_itself(node_id) else []
            settings += AUTHORIZER if kind == KAFKA else []
            nodes.append(self._node(home, node_id, kind, ports, *settings))
            self.format(nodes[-1], *(["--initial-controllers", first_voters] if is_dynamic else []))
        brokers = {KCLI_BROKER: KCLI} | ({KAFKA_BROKER: KAFKA} if kinds.count(KAFKA) == 1 else {})
        for (node_id, kind), port in zip(brokers.items(), free_ports(len(brokers))):
            self.kinds[node_id] = kind
            hurried = [HURRIED] if kind == KAFKA else []
            nodes.append(self._node(home, node_id, kind, ports, *BROKER, SNAPSHOTS, *hurried, broker_port=port))
            self.format(nodes[-1], *(["--no-initial-controllers"] if is_dynamic else []))
        super().__init__(nodes)
        self.brokers = nodes[len(VOTERS) :]
        self.made = 0

    def _node(
        self, home: Path, node_id: int, kind: str, ports: list[int], *settings: str, broker_port: int | None = None
    ) -> Controller:
        command = kcli_command() if kind == KCLI else [str(self.peer.script), "java", "kafka.Kafka"]
        return Controller(home, node_id, ports, command, *settings, is_dynamic=self.is_dynamic, broker_port=broker_port)

    @staticmethod
    def joins_by_itself(node_id: int) -> bool:
        """Return whether a voter that comes back with an empty disk is one again without a tool; the second is not."""
        return node_id != VOTERS[1]

    def kind(self, node: Controller) -> str:
        return self.kinds[node.node_id]

    def format(self, node: Controller, *options: str) -> None:
        """Format a directory by the tool of its kind."""
        if self.kind(node) == KCLI:
            node.format_by_kcli(*options)
        else:
            node.format_by([str(self.peer.script), "java", "kafka.tools.StorageTool", "format"], *options)

    def others(self, without: Controller) -> Quorum:
        """The cluster without a node that cannot be heard."""
        return Quorum([one for one in self.controllers.values() if one is not without])

    def admin(self, node: Controller | None = None) -> Admin:
        """A client of all controllers; of the brokers if one is given."""
        settings: dict[str, str | int] = {"default.api.timeout.ms": 60_000}
        settings["bootstrap.controllers" if node is None else "bootstrap.servers"] = (
            self.bootstrap if node is None else node.bootstrap
        )
        return Admin(settings, log=lambda line: None)

    def make(self) -> None:
        """Let each broker's clients make a topic, its configuration and a group, and an ACL if Kafka leads."""
        for broker in self.brokers:
            self.made += 1
            topic = f"topic-{self.made}"
            with self.admin(broker) as admin, Producer({"bootstrap.servers": broker.bootstrap}) as producer:
                new = NewTopic(topic, assignments={0: [broker.node_id], 1: [broker.node_id]})
                wait_for(partial(is_created, admin, new))
                wait_for(partial(has_leader, admin, topic, broker))
                resource = ConfigResource(ResourceType.TOPIC, topic)
                change = AlterConfigOp("retention.ms", AlterOperation.SET, str(self.made))
                value_of(admin.incremental_alter_configs({resource: [change]})[resource])
                sent = send(producer, topic, (0, 1), topic)
                assert read(broker.bootstrap, topic, len(sent)) == sent
        binding = AclBinding(TOPIC_TYPE, f"topic-{self.made}", LITERAL, "User:a", "*", READ, ALLOW)
        with suppress(ClientError), self.admin() as admin:  # kcli has no authorizer
            admin.create_acls([binding])

    def describe(self) -> QuorumInfo:
        with self.admin() as admin:
            return admin.describe_metadata_quorum()

    def directory_id(self, node: Controller) -> str:
        return str(decode_meta_properties((node.home / "data/meta.properties").read_bytes()).directory_id)

    def is_voter(self, node: Controller) -> bool:
        """Return whether a node votes with the directory that it has, and no other one of it does."""
        with suppress(ClientError):
            found = [str(one.directory_id) for one in self.describe().voters if one.replica_id == node.node_id]
            return found == [self.directory_id(node)] and len(self.describe().voters) == len(VOTERS)
        return False

    def replace_disk(self, node: Controller) -> None:
        """A voter loses its disk, and is one again with another directory: by itself, or by the other kind's tool."""
        gone, leader = self.directory_id(node), self.elected()
        node.end()
        # Kafka halts a node without a log if others say that it leads.
        self.others(node).elected(leader.election.leader_epoch if leader is node else 0)
        shutil.rmtree(node.home / "data")
        self.format(node, "--no-initial-controllers")
        node.start()
        if not self.joins_by_itself(node.node_id):
            self.change_voter("remove-controller", "--controller-id", str(node.node_id), "--controller-directory-id", gone)
            wait_for(lambda: {one.replica_id for one in self.describe().observers} >= {node.node_id})
            self.change_voter("add-controller", config=node)
        wait_for(lambda: self.is_voter(node))

    def change_voter(self, *words: str, config: Controller | None = None) -> None:
        """Run a tool until it succeeds: the leader may change meanwhile, and a new voter may have to catch up first."""
        by_kcli = config is not None and self.kind(config) == KAFKA

        def is_done() -> bool:
            if by_kcli:
                assert config is not None
                where = ["--config", str(config.properties), "--bootstrap-controller", self.bootstrap, "--timeout", "60"]
                return kcli(["cluster", *words, *where]) == 0
            options = [] if config is None else ["--command-config", str(config.properties)]
            return self.tool(*options, *words).startswith(("Removed", "Added"))

        wait_for(is_done)

    def tool(self, *words: str) -> str:
        """What Kafka's tool for the quorum prints."""
        (outcome,) = self.peer.run_tools([ToolCase(QUORUM_TOOL, ("--bootstrap-controller", self.bootstrap, *words))], 120)
        return outcome.stdout.decode() + outcome.stderr


def is_created(admin: Admin, new: NewTopic) -> bool:
    """Create a topic; False if its broker is fenced, since a leader was away for longer than a broker's session."""
    (created,) = admin.create_topics([new]).values()
    # A leader that stops leading may have appended the topic before: then the second request finds it.
    is_there = not isinstance(created, ClientError) or "TOPIC_ALREADY_EXISTS" in str(created)
    assert is_there or "fenced" in str(created), created
    return is_there


def has_leader(admin: Admin, topic: str, broker: Controller) -> bool:
    """Return whether a broker leads the two partitions of a topic."""
    return leaders_of(admin, topic) == {0: broker.node_id, 1: broker.node_id}


# ------------------------------------------------------------------------------------------------------------------ events


@contextmanager
def killed(cluster: MixedQuorum, node: Controller) -> Iterator[None]:
    """kill -9, and a start."""
    node.end()
    yield
    node.start()


@contextmanager
def paused(cluster: MixedQuorum, node: Controller) -> Iterator[None]:
    """Its connections stay, and nothing is answered; afterwards it goes on with the clock and the role that it had."""
    assert node.process is not None
    node.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        node.process.send_signal(signal.SIGCONT)


@contextmanager
def cut_off(cluster: MixedQuorum, node: Controller) -> Iterator[None]:
    """All that it sends to controllers and they or brokers to it is lost; connections are made and stay."""
    cluster.cut.add(node.node_id)
    yield
    cluster.cut.clear()


# ------------------------------------------------------------------------------------------------------------------- judges


def loaded(image: MetadataImage, batches: Iterable[MetadataBatch]) -> MetadataImage:
    """The image with what batches have."""
    for batch in batches:
        for record in batch.records:
            image.apply(record)
        for control in batch.control_records:
            image.apply_control(control)
    return image


def content(image: MetadataImage) -> list[str]:
    """The records of an image, and its voters, which a static quorum has in the settings of its nodes.

    The order of a node's features is that of a hash map in Kafka.
    """
    records = list(image_records(image))
    for record in records:
        if record.STRUCT.name in ("RegisterBrokerRecord", "RegisterControllerRecord"):
            record.features.sort(key=lambda feature: feature.name)
    voters = [str(voter) for _, voter in sorted(image.voters.items()) if image.kraft_version]
    return [*sorted(map(str, records)), *voters, str(image.kraft_version)]


def snapshots(node: Controller) -> dict[int, Path]:
    """The snapshots of a node by their end, but for the one of the format."""
    found = (node.home / "data" / METADATA_PARTITION).glob("*.checkpoint")
    return {int(path.name.partition("-")[0]): path for path in found if int(path.name.partition("-")[0])}


def whole_log(nodes: list[Controller], high_watermark: int) -> dict[int, bytes]:
    """The batches of all logs by their first offset. A log may begin behind others, with a snapshot; each ends behind the
    high watermark, and AssertionError if a batch of one is another than that of another."""
    found: dict[int, bytes] = {}
    for node in nodes:
        end = -1
        text, position = node.metadata_log, 0
        for batch in decode_batches(text):
            raw = text[position : position + batch.size_bytes]
            position += batch.size_bytes
            assert found.setdefault(batch.base_offset, raw) == raw, (node.node_id, batch.base_offset)
            assert end in (-1, batch.base_offset)
            end = batch.last_offset + 1
        assert end >= high_watermark
    return dict(sorted(found.items()))


def judge(cluster: MixedQuorum, high_watermark: int) -> None:
    """Compare what the nodes, which have ended, have on their disks."""
    nodes = list(cluster.controllers.values())
    log = whole_log(nodes, high_watermark)
    batches = [one for batch in log.values() for one in decode_batches(batch)]
    files = [file for one in nodes for file in (one.home / "data" / METADATA_PARTITION).glob("*.log")]
    dumps = cluster.peer.dump_many([("--cluster-metadata-decoder", "--files", str(file)) for file in files])
    texts: dict[str, set[str]] = {}
    for dump in dumps:
        rows = re.split("^baseOffset: ", dump.stdout.decode(), flags=re.M)[1:]
        assert all("isvalid: true" in row for row in rows)
        for row in rows:
            text = re.sub(r" position: \d+", "", row)
            texts.setdefault(row.partition(" ")[0], set()).add(text.rstrip())
    assert set(map(int, texts)) == set(log)
    assert {offset: text for offset, text in texts.items() if len(text) > 1} == {}
    image = loaded(MetadataImage(), batches)
    assert image.acls
    makers = set()
    for node in nodes:
        for end, snapshot in snapshots(node).items():
            whole = [batch for batch in batches if batch.last_offset < end]
            if whole and whole[-1].last_offset + 1 == end:
                expected = content(loaded(MetadataImage(), whole))
                assert content(loaded(MetadataImage(), read_snapshot_file(OsDisk(), str(snapshot)))) == expected, snapshot
                makers.add(cluster.kind(node))
    assert makers == {KCLI, KAFKA}
    assert faults([one for one in nodes if cluster.kind(one) == KCLI]) == []


def has_caught_up(cluster: MixedQuorum) -> bool:
    """Return whether Kafka's tool says so of all nodes. The old directory of a voter is shown as an observer for 5 minutes."""
    status, rows = cluster.tool("describe", "--status"), cluster.tool("describe", "--replication")
    found = re.findall(r"^(\d+)\s+(\S+)\s+\d+\s+(\d+)\s+-?\d+\s+-?\d+\s+(Leader|Follower|Observer)", rows, flags=re.M)
    present = {(str(node_id), cluster.directory_id(node)) for node_id, node in cluster.controllers.items()}
    if not cluster.is_dynamic:  # whose voters have no directory ids
        found = [(row[0], dict(present)[row[0]], *row[2:]) for row in found]
    lags = {(node_id, directory_id): lag for node_id, directory_id, lag, _ in found if (node_id, directory_id) in present}
    voters = [(node_id, directory_id) for node_id, directory_id, _, role in found if role != "Observer"]
    return (
        lags == dict.fromkeys(present, "0")
        and sorted(voters) == sorted(one for one in present if int(one[0]) in VOTERS)
        and re.search(r"MaxFollowerLag:\s+0\n", status) is not None
    )


# -------------------------------------------------------------------------------------------------------------------- tests


Event = Callable[[MixedQuorum, Controller], AbstractContextManager[None]]


def bad_days(cluster: MixedQuorum, events: list[Event], emptied: Iterable[int]) -> None:
    """Each event hits a leader of each kind, and these voters get an empty disk; then all is judged."""
    missing = {kind: list(events) for kind in (KCLI, KAFKA)}
    with ExitStack() as stack:
        for proxy in cluster.proxies:
            stack.enter_context(proxy)
        stack.enter_context(cluster)
        epoch = 0
        for _ in range(MOST_EVENTS):
            leader = cluster.elected(epoch)
            epoch = leader.election.leader_epoch
            cluster.make()
            of_kind = missing[cluster.kind(leader)]
            with (of_kind.pop(0) if of_kind else killed)(cluster, leader):
                cluster.others(leader).elected(epoch)
                cluster.make()
            if not any(missing.values()):
                break
        assert missing == {KCLI: [], KAFKA: []}
        cluster.elected(epoch)
        for node_id in emptied:
            cluster.replace_disk(cluster.controllers[node_id])
            cluster.make()
        wait_for(partial(has_caught_up, cluster))
        high_watermark = cluster.describe().high_watermark
    judge(cluster, high_watermark)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [(KCLI, KCLI, KAFKA), (KCLI, KAFKA, KAFKA)], ids=["two of kcli", "two of kafka"])
def test_voters_of_both_kinds_on_bad_days(each_kafka: Peer, tmp_path: Path, kinds: tuple[str, ...]) -> None:
    """A leader of each kind is killed, paused and cut off, and each voter loses its disk."""
    bad_days(MixedQuorum(each_kafka, tmp_path, kinds), [killed, paused, cut_off], VOTERS)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [(KCLI, KCLI, KAFKA), (KCLI, KAFKA, KAFKA)], ids=["two of kcli", "two of kafka"])
def test_static_voters_of_both_kinds_on_bad_days(kafka_peer: Peer, tmp_path: Path, kinds: tuple[str, ...]) -> None:
    """With controller.quorum.voters and kraft.version 0, as clusters of before KIP-853 have it."""
    cluster = MixedQuorum(kafka_peer, tmp_path, kinds, is_dynamic=False)
    bad_days(cluster, [killed, paused, cut_off], ())
    assert {node.election.version for node in cluster.controllers.values()} == {0}


@pytest.mark.ci
def test_a_leader_of_each_kind_is_killed(kafka_peer: Peer, tmp_path: Path) -> None:
    """Two voters of kcli and one of Kafka, which loses its disk."""
    bad_days(MixedQuorum(kafka_peer, tmp_path, (KCLI, KCLI, KAFKA)), [killed], VOTERS[2:])


@pytest.mark.slow
def test_features_of_three_versions_are_upgraded(kafka_peer: Peer, kafka_4_4: Peer, tmp_path: Path) -> None:
    """Controllers of kcli, Kafka 4.3.1 and 4.4.0, of which each leads: none goes to levels that 4.3.1 does not have. When that
    one is of 4.4.0, too, all go to those of 4.4, and the logs are equal."""
    ports, broker_ports = free_ports(3), free_ports(1)
    peers = {2: kafka_peer, 3: kafka_4_4}
    commands = {1: kcli_command()} | {node_id: [str(peer.script), "java", "kafka.Kafka"] for node_id, peer in peers.items()}
    nodes = [Controller(tmp_path, node_id, ports, command, is_dynamic=True) for node_id, command in commands.items()]
    ids = {node_id: str(Uuid(bytes([node_id]) * 16)) for node_id in VOTERS}
    voters = ",".join(f"{node_id}@127.0.0.1:{ports[node_id - 1]}:{ids[node_id]}" for node_id in VOTERS)
    for node in nodes:
        of_kafka = [str(peers[node.node_id].script), "java", "kafka.tools.StorageTool", "format"] if node.node_id > 1 else None
        tool = of_kafka or [sys.executable, "-m", "kcli", "format"]
        node.format_by(tool, "--initial-controllers", voters, "--release-version", "4.3")
    broker = Controller(tmp_path, KCLI_BROKER, ports, kcli_command(), *BROKER, is_dynamic=True, broker_port=broker_ports[0])
    broker.format_by_kcli("--no-initial-controllers")
    settings: dict[str, str | int] = {"bootstrap.controllers": addresses(ports), "default.api.timeout.ms": 60_000}
    with Quorum([*nodes, broker]) as quorum, Admin(settings, log=lambda line: None) as admin:
        epoch, refusals = 0, {}
        for _ in range(MOST_EVENTS):
            leader = quorum.elected(epoch)
            epoch = leader.election.leader_epoch
            wait_for(lambda: len(admin.describe_cluster().nodes) == len(VOTERS))
            for name, level in LEVELS_OF_4_4.items():
                outcome = admin.update_features({name: FeatureUpdate(level)})[name]
                refusals[leader.node_id, name] = str(outcome).partition(":")[0]
            if {node_id for node_id, _ in refusals} == {*VOTERS}:
                break
            leader.end()
            quorum.elected(epoch)
            leader.start()
        assert refusals == {(node_id, name): "INVALID_UPDATE_VERSION" for node_id in VOTERS for name in LEVELS_OF_4_4}
        # Its registration remains when it is stopped: it is upgraded, as each node of a cluster.
        nodes[1].end()
        nodes[1].command = commands[3]
        nodes[1].start()
        for name, level in LEVELS_OF_4_4.items():
            wait_for(partial(is_upgraded, admin, name, level))
        broker.end()
        broker.start()
        wait_for(lambda: f"node {KCLI_BROKER} is ready" in broker.log())
        with Admin({"bootstrap.servers": broker.bootstrap}) as of_broker:
            value_of(of_broker.create_topics([NewTopic("t", 1)])["t"])
        wait_for(partial(is_level, admin))
        high_watermark = admin.describe_metadata_quorum().high_watermark
    log = whole_log([*nodes, broker], high_watermark)
    image = loaded(MetadataImage(), [one for batch in log.values() for one in decode_batches(batch)])
    assert {name: image.features[name] for name in LEVELS_OF_4_4} == LEVELS_OF_4_4
    assert set(image.controllers) == {*VOTERS}
    assert faults([nodes[0], broker]) == []


def is_upgraded(admin: Admin, name: str, level: int) -> bool:
    """Upgrade a feature; False if a node is not registered yet with the levels that it has now."""
    outcome = admin.update_features({name: FeatureUpdate(level)})[name]
    assert outcome is None or "INVALID_UPDATE_VERSION" in str(outcome), outcome
    return outcome is None


def is_level(admin: Admin) -> bool:
    """Return whether all logs end at the high watermark."""
    quorum = admin.describe_metadata_quorum()
    return {one.log_end_offset for one in (*quorum.voters, *quorum.observers)} == {quorum.high_watermark}
