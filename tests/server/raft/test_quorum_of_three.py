"""Protects the raft client with several voters, on real files and with the bytes of the wire: they elect a leader, replicate,
truncate what was not committed, load snapshots while they run, and come back after a restart.
"""

from __future__ import annotations

import random
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.metadata_files import QuorumStateData, encode_quorum_state
from kcli.network.events import PeerAddress
from kcli.network.peer_request import AnswerCallback, PeerFailure
from kcli.network.peer_request import Request as PeerRequest
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, API_VERSIONS
from kcli.protocol.message import Message
from kcli.server.controller.formatting import METADATA_PARTITION, FormatPlan, format_directories
from kcli.server.features import initial_features
from kcli.server.log_lines import WarningLine
from kcli.server.outstanding import FlushCallback
from kcli.server.raft.describe_quorum import describe_quorum
from kcli.server.raft.kafka_raft_client import KafkaRaftClient, NotLeaderError, RaftConfig
from kcli.server.raft.messages import AddRaftVoter, Destination, ListenerEndpoint, RemoveRaftVoter, ReplicaKey, SnapshotId
from kcli.server.raft.metadata_batches import new_record
from kcli.server.raft.metadata_log import FETCHED_PART, MetadataLogError
from kcli.server.raft.quorum_state import Role
from kcli.server.raft.raft_manager import _FeatureCheck
from kcli.server.raft.replica import RaftCoreConfig
from kcli.server.raft.snapshot_writer import SnapshotWriter
from kcli.server.raft.wire import Wire, api_key_of, write_request
from kcli.state.image_records import image_records
from kcli.state.metadata_values import Voter
from tests.server.raft.nodes import START_MS, Follower, Surroundings

CLUSTER = "quorum-of-three"
ONE_MS = 1


def directory_id(node_id: int) -> Uuid:
    return Uuid(bytes([node_id] * 16))


def endpoint(node_id: int) -> ListenerEndpoint:
    return ListenerEndpoint("CONTROLLER", "127.0.0.1", 9000 + node_id)


class Node:
    """One voter: a raft client with its disk and timer, and what it delivered."""

    def __init__(self, quorum: Quorum, node_id: int, path: Path, directory_id: Uuid) -> None:
        self.node_id = node_id
        self.directory_id = directory_id
        self.path = path
        self.quorum = quorum
        self.start()

    def start(self) -> None:
        self.around, self.follower = Surroundings(self.quorum.now_ms), Follower()
        local = ReplicaKey(self.node_id, self.directory_id)
        bootstrap = tuple(self.quorum.bootstrap)
        core = RaftCoreConfig(local, CLUSTER, "CONTROLLER", (endpoint(self.node_id),), bootstrap_servers=bootstrap)
        around = self.around
        self.raft = KafkaRaftClient(
            RaftConfig(f"{self.path}/{METADATA_PARTITION}", core),
            around.disk,
            around.files,
            around.timer,
            around.flush,
            around.scheduler,
            Link(self.quorum, self),
            random.Random(self.node_id),
            around.lines.append,
            lambda error, now_ms: around.storage_failures.append(error),
        )
        self.raft.register(self.follower)
        self.raft.start(self.quorum.now_ms)

    @property
    def topics(self) -> list[str]:
        """The topics that this node knows to be committed."""
        return sorted(topic.name for topic in self.follower.image.topics.values())

    def append(self, name: str) -> None:
        topic_id = Uuid(random.Random(name).randbytes(16))
        self.raft.append([new_record("TopicRecord", name=name, topic_id=topic_id)], self.quorum.now_ms)


class Link:
    """The network as one node sees it (kcli.server.raft.kafka_raft_client.Network)."""

    def __init__(self, quorum: Quorum, source: Node) -> None:
        self._quorum = quorum
        self._source = source

    def send(
        self,
        destination: PeerAddress,
        listener: str,
        api_key: int,
        message: PeerRequest,
        callback: AnswerCallback,
        deadline_ms: int,
    ) -> None:
        version = API_KEYS[api_key].highest_version
        made = message if isinstance(message, Message) else message(version)
        self._quorum.sent.append((self._source.node_id, destination.port - 9000, api_key, version, made, callback))

    def is_backing_off(self, destination: PeerAddress, listener: str) -> bool:
        return False


class Quorum:
    """Nodes on one virtual network; `down` are those that do not run, `cut_off` those that run, and reach no other."""

    def __init__(self, path: Path, node_ids: tuple[int, ...] = (1, 2, 3)) -> None:
        self.now_ms = START_MS
        self.path = path
        self.bootstrap: list[Destination] = []
        self.down: set[int] = set()
        self.cut_off: set[int] = set()
        self.sent: deque[tuple[int, int, int, int, Message, AnswerCallback]] = deque()
        self.nodes: dict[int, Node] = {}
        voters = [Voter(node_id, directory_id(node_id), {"CONTROLLER": endpoint(node_id)[1:]}) for node_id in node_ids]
        for node_id in node_ids:
            self.add(node_id, voters)

    def add(self, node_id: int, voters: list[Voter] | None, key: Uuid | None = None) -> Node:
        path = self.path / str(node_id)
        features = initial_features({}, None, is_dynamic_quorum=True)
        plan = FormatPlan(CLUSTER, node_id, (str(path),), str(path), features, voters)
        format_directories(Surroundings().disk, plan, random.Random(node_id).randbytes, START_MS)
        self.nodes[node_id] = node = Node(self, node_id, path, key or directory_id(node_id))
        return node

    def restart(self, node_id: int) -> None:
        """End a node, as kill -9 does, and start it again; what was on its way to or from it is lost."""
        self.sent = deque(one for one in self.sent if node_id not in one[:2])
        self.nodes[node_id].start()
        self.down.discard(node_id)

    def run(self, until: Callable[[], object], limit_ms: int = 30_000) -> None:
        """Let everything happen, step by step, until a condition is true."""
        end_ms = self.now_ms + limit_ms
        while not until():
            assert self.now_ms < end_ms, "this does not happen"
            self.step()

    def run_for(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        self.run(lambda: self.now_ms >= end_ms, ms + ONE_MS)

    def step(self) -> None:
        up = [node for node in self.nodes.values() if node.node_id not in self.down]
        flushing = next((node for node in up if node.around.flushes), None)
        if flushing is not None:
            flushing.around.finish_flush()
        elif self.sent:
            self._deliver(*self.sent.popleft())
        else:
            self.now_ms += ONE_MS
            for node in up:
                node.around.now_ms = self.now_ms
                node.around.timer.advance(self.now_ms)

    def _deliver(
        self, source: int, target: int, api_key: int, version: int, message: Message, callback: AnswerCallback
    ) -> None:
        """Carry a request over as bytes, and its answer back."""
        sender, api = self.nodes[source], API_KEYS[api_key]
        if {source, target} & (self.down | self.cut_off):
            if source not in self.down:
                callback(PeerFailure.DISCONNECTED, self.now_ms)
            return
        receiver, decoded = self.nodes[target], api.request.decode(api.request.encode(message, version), version)[0]
        incarnation = sender.raft

        def respond(response: Message) -> None:
            if not {source, target} & (self.down | self.cut_off) and sender.raft is incarnation:
                callback(api.response.decode(api.response.encode(response, version), version)[0], self.now_ms)

        if api_key == API_VERSIONS:
            shown = api.response.classes["SupportedFeatureKey"](name="kraft.version", min_version=0, max_version=1)
            respond(api.response.new(supported_features=[shown]))
        else:
            receiver.raft.receive(api_key, decoded, Wire(CLUSTER, version, "CONTROLLER"), respond, self.now_ms)

    @property
    def leader(self) -> Node | None:
        """The leader of the highest epoch among the nodes that are up."""
        leaders = [node for node in self.nodes.values() if node.raft.is_leader and node.node_id not in self.down]
        return max(leaders, key=lambda node: node.raft.epoch, default=None)

    def elected(self) -> Node:
        """Run until a leader has committed its epoch, and return it."""

        def is_known() -> bool:
            leader = self.leader
            return leader is not None and leader.follower.leaders[-1:] == [(leader.node_id, leader.raft.epoch)]

        self.run(is_known)
        assert self.leader is not None
        return self.leader

    def are_equal(self) -> bool:
        """Return whether all nodes that are up have the same log, all of it committed and delivered."""
        up = [node for node in self.nodes.values() if node.node_id not in self.down]
        rafts = [(node.raft, node.topics) for node in up]
        states = {(raft.log.end_offset, raft.high_watermark, raft.leader_id, raft.epoch, *topics) for raft, topics in rafts}
        (end_offset, high_watermark, leader_id, *_), *others = states
        return not others and end_offset == high_watermark and leader_id in {node.node_id for node in up}

    def ask(self, node: Node, request: AddRaftVoter | RemoveRaftVoter) -> list[Message]:
        """Send a tool's request to a node -> the list that its answer will be put into."""
        answers: list[Message] = []
        key = api_key_of(request)
        message = write_request(request, API_KEYS[key].highest_version)
        node.raft.receive(key, message, Wire(CLUSTER, API_KEYS[key].highest_version, "CONTROLLER"), answers.append, self.now_ms)
        return answers


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[Quorum]:
    made = Quorum(tmp_path)
    yield made
    for node in made.nodes.values():
        assert node.around.storage_failures == []


def test_three_voters_elect_a_leader_and_commit(quorum: Quorum) -> None:
    """All nodes have the same log, its first records are LeaderChange, KRaftVersion and Voters; only the leader appends."""
    leader = quorum.elected()
    leader.append("orders")
    quorum.run(quorum.are_equal)
    for node in quorum.nodes.values():
        assert node.topics == ["orders"]
        assert node.follower.image.voters.keys() == {1, 2, 3}
        assert node.follower.leaders[-1] == (leader.node_id, leader.raft.epoch)
    follower = next(node for node in quorum.nodes.values() if node is not leader)
    assert follower.raft.quorum.role is Role.FOLLOWER
    with pytest.raises(NotLeaderError):
        follower.append("payments")
    logs = {(node.path / METADATA_PARTITION / "00000000000000000000.log").read_bytes() for node in quorum.nodes.values()}
    assert len(logs) == 1


def test_nothing_is_committed_without_a_majority(quorum: Quorum) -> None:
    """A leader alone appends, delivers nothing, and resigns; what it had appended is gone when it follows the next one."""
    old = quorum.elected()
    quorum.run(quorum.are_equal)
    quorum.down = {old.node_id}
    for number in range(3):
        old.append(f"lost-{number}")
    old.around.finish_flush()
    new = quorum.elected()
    new.append("kept")
    quorum.run(quorum.are_equal)
    assert (new.topics, old.topics) == (["kept"], [])
    quorum.down = set()
    quorum.run(quorum.are_equal)
    assert old.topics == ["kept"]
    assert old.follower.leaders[-1] == (new.node_id, new.raft.epoch)


def test_a_leader_that_is_cut_off_resigns(quorum: Quorum) -> None:
    """By itself, after 1.5 fetch timeouts without a majority; a follower that is cut off comes back without an election."""
    leader = quorum.elected()
    epoch = leader.raft.epoch
    others = [node.node_id for node in quorum.nodes.values() if node is not leader]
    quorum.cut_off = {others[0]}
    quorum.run_for(5_000)
    quorum.cut_off = set()
    quorum.run(quorum.are_equal)
    assert (leader.raft.is_leader, leader.raft.epoch) == (True, epoch)
    quorum.cut_off = {leader.node_id}
    quorum.run(lambda: not leader.raft.is_leader, 3_100)
    assert leader.follower.leaders[-1] == (-1, epoch)
    quorum.cut_off = set()
    quorum.elected()
    quorum.run(quorum.are_equal)


def test_a_voter_that_restarts_has_what_it_acknowledged(quorum: Quorum) -> None:
    """Each in turn, the leader too, without a clean stop."""
    for number, node_id in enumerate((1, 2, 3, 1, 2, 3)):
        quorum.elected().append(f"topic-{number}")
        quorum.run(quorum.are_equal)
        quorum.restart(node_id)
        quorum.elected()
        quorum.run(quorum.are_equal)
        assert all(len(node.topics) == number + 1 for node in quorum.nodes.values())


def test_a_leader_that_stops_hands_over(quorum: Quorum) -> None:
    """By EndQuorumEpoch, so that the next one is elected long before a fetch timeout; then the stop is complete."""
    leader = quorum.elected()
    quorum.run(quorum.are_equal)
    stopped: list[int] = []
    before_ms = quorum.now_ms
    leader.raft.stop(stopped.append, quorum.now_ms)
    quorum.run(lambda: stopped, 1_000)
    assert quorum.now_ms - before_ms < 1_000
    quorum.down = {leader.node_id}
    assert quorum.elected() is not leader


def test_the_log_names_the_leaders_that_lead(quorum: Quorum) -> None:
    """After a restart of all, quorum-state has the leader of before: to name it looked like two elections in one moment."""
    for _ in range(3):
        leader = quorum.elected()
        quorum.run(quorum.are_equal)
        for node in quorum.nodes.values():
            lines = [line for line in node.around.lines if "leads" in line]
            assert lines == [f"node {leader.node_id} leads epoch {leader.raft.epoch} of the metadata quorum"]
        for node_id in (1, 2, 3):
            quorum.restart(node_id)


def test_a_voter_with_another_disk_says_how_to_make_it_a_voter_again(quorum: Quorum) -> None:
    """It follows, and has no vote: without a line that looked like a sound quorum of three."""
    leader = quorum.elected()
    quorum.run(quorum.are_equal)
    away = next(node for node in quorum.nodes.values() if node is not leader)
    quorum.restart(away.node_id)
    quorum.run(quorum.are_equal)
    assert not [line for line in away.around.lines if "has no vote" in line]
    shutil.rmtree(away.path)
    quorum.bootstrap = [Destination(-2, *endpoint(leader.node_id)[1:])]
    node = quorum.add(away.node_id, None, Uuid(b"\7" * 16))
    quorum.run(quorum.are_equal)
    (line,) = [line for line in node.around.lines if "has no vote" in line]
    assert f"voter {node.node_id} of the metadata quorum has the directory id {directory_id(node.node_id)}" in line
    assert f"remove-controller --controller-id {node.node_id} --controller-directory-id" in line


def write_snapshot(quorum: Quorum, node: Node) -> SnapshotId:
    """Let a node write a snapshot of all that is committed, and drop the log below it."""
    around, raft = node.around, node.raft
    writer = SnapshotWriter(raft, around.timer, around.scheduler, around.lines.append)
    snapshot = SnapshotId(raft.high_watermark, raft.log.last_epoch)
    raft.log.log.roll(quorum.now_ms)
    raft.log.config = raft.log.config._replace(retention_bytes=0)
    writer.begin(snapshot, quorum.now_ms, image_records(node.follower.image.frozen()), quorum.now_ms)
    quorum.run(lambda: not writer.is_writing)
    assert raft.log.start_offset == snapshot.end_offset
    return snapshot


def test_a_voter_that_was_away_loads_a_snapshot_while_it_runs(quorum: Quorum) -> None:
    """The log that it lacks is gone; its listeners drop what they have; it continues behind the snapshot, and restarts."""
    leader = quorum.elected()
    leader.append("before")
    quorum.run(quorum.are_equal)
    away = next(node for node in quorum.nodes.values() if node is not leader)
    quorum.down = {away.node_id}
    for number in range(40):
        leader.append(f"topic-{number}")
    quorum.run(lambda: leader.raft.high_watermark == leader.raft.next_offset)
    snapshot = write_snapshot(quorum, leader)
    quorum.elected().append("behind")
    flushed: list[str] = []
    begin_flush, finish = away.around.flush, away.raft.log.finish_snapshot

    def flush(paths: tuple[str, ...], callback: FlushCallback) -> None:
        flushed.extend(paths)
        begin_flush(paths, callback)

    def finish_snapshot(found: SnapshotId) -> None:
        path, part = away.raft.log.snapshot_path(found), away.raft.log.part_path(found, FETCHED_PART)
        assert away.around.disk.exists(path)
        assert flushed[-2:] == [part, away.raft.log.directory], "the name is durable before the log is emptied"
        finish(found)

    away.raft._flush, away.raft.log.finish_snapshot = flush, finish_snapshot  # type: ignore[method-assign]
    quorum.down = set()
    quorum.elected()
    quorum.run(quorum.are_equal)
    assert away.raft.log.snapshots == [snapshot]
    assert (away.raft.metrics.snapshots_loaded, leader.raft.metrics.snapshots_loaded) == (1, 0)
    assert (away.raft.metrics.snapshot_bytes, leader.raft.metrics.snapshot_bytes) == (
        0,
        leader.raft.log.snapshot_size(snapshot),
    )
    assert away.topics == leader.topics
    assert len(away.topics) == 42
    quorum.restart(away.node_id)
    quorum.run(quorum.are_equal)
    assert len(away.topics) == 42
    assert away.follower.image.voters.keys() == {1, 2, 3}


def test_a_follower_does_not_apply_features_that_it_does_not_support(quorum: Quorum) -> None:
    """A newer node leads and raises metadata.version: the broker and the controller of this one end with a sentence."""
    leader = quorum.elected()
    quorum.run(quorum.are_equal)
    follower = next(node for node in quorum.nodes.values() if node is not leader)
    directory = f"{follower.path}/{METADATA_PARTITION}"
    follower.raft.register(_FeatureCheck(directory))
    leader.raft.append([new_record("FeatureLevelRecord", name="metadata.version", feature_level=99)], quorum.now_ms)
    with pytest.raises(MetadataLogError, match=rf"{directory}: .*metadata\.version.*99"):
        quorum.run(quorum.are_equal)


@pytest.mark.parametrize("voted_id", [1, 2])
def test_a_node_in_an_election_knows_what_is_committed(quorum: Quorum, voted_id: int) -> None:
    """Its listeners hear it while it waits for the candidate that it voted for, and while it is a candidate itself."""
    quorum.elected().append("orders")
    quorum.run(quorum.are_equal)
    node = quorum.nodes[1]
    write_snapshot(quorum, node)
    quorum.cut_off = {1}
    state = QuorumStateData(1, -1, node.raft.epoch + 1, voted_id, directory_id(voted_id))
    (node.path / METADATA_PARTITION / "quorum-state").write_bytes(encode_quorum_state(state))
    quorum.restart(1)
    quorum.run(lambda: node.topics == ["orders"])
    assert node.raft.quorum.role is (Role.CANDIDATE if voted_id == 1 else Role.UNATTACHED)
    assert node.raft.quorum.voted == ReplicaKey(voted_id, directory_id(voted_id))
    assert node.follower.leaders == [(-1, node.raft.epoch)]


@pytest.mark.parametrize("damage", ["a byte", "the beginning", "the end"])
def test_a_voter_keeps_its_log_while_the_snapshot_that_it_gets_is_damaged(quorum: Quorum, damage: str) -> None:
    """It would be a voter without its records, and could not start again; when the leader's file is sound, it is loaded."""
    leader = quorum.elected()
    leader.append("before")
    quorum.run(quorum.are_equal)
    away = next(node for node in quorum.nodes.values() if node is not leader)
    quorum.down = {away.node_id}
    for number in range(40):
        leader.append(f"topic-{number}")
    quorum.run(lambda: leader.raft.high_watermark == leader.raft.next_offset)
    path = Path(leader.raft.log.snapshot_path(snapshot := write_snapshot(quorum, leader)))
    sound = path.read_bytes()
    sizes = [batch.size_bytes for batch in leader.raft.log.snapshot_batches(snapshot)]
    middle = len(sound) // 2
    damaged = {
        "a byte": sound[:middle] + bytes([sound[middle] ^ 1]) + sound[middle + 1 :],
        "the beginning": sound[sizes[0] :],
        "the end": sound[: -sizes[-1]],
    }
    path.write_bytes(damaged[damage])
    before = (away.raft.log.start_offset, away.raft.log.end_offset)
    quorum.down = set()
    part = away.raft.log.part_path(snapshot, FETCHED_PART)
    quorum.run(lambda: any("removed" in line for line in away.around.lines))
    quorum.run_for(300)
    (line,) = [line for line in away.around.lines if "removed" in line]
    assert isinstance(line, WarningLine)
    assert line.startswith(part)
    assert f"leader {quorum.elected().node_id}" in line
    assert (away.raft.log.start_offset, away.raft.log.end_offset) == before
    assert not away.around.disk.exists(away.raft.log.snapshot_path(snapshot))
    path.write_bytes(sound)
    quorum.run(quorum.are_equal)
    assert away.raft.log.snapshots == [snapshot]
    assert away.topics == leader.topics


def test_a_voter_is_added_and_removed(quorum: Quorum) -> None:
    """It observes first; then it counts, and after its removal it does not; the answers come when that is committed."""
    leader = quorum.elected()
    quorum.bootstrap = [Destination(-2, "127.0.0.1", 9000 + leader.node_id)]
    joining = quorum.add(4, None)
    quorum.run(lambda: joining.raft.leader_id == leader.node_id)
    quorum.run(lambda: joining.raft.high_watermark == leader.raft.high_watermark)
    assert joining.raft.quorum.role is Role.FOLLOWER
    quorum.run_for(1_000)
    key = ReplicaKey(4, directory_id(4))
    answers = quorum.ask(leader, AddRaftVoter(CLUSTER, joining.raft.config.core.local, (endpoint(4),)))
    quorum.run(lambda: answers)
    assert (answers[0].error_code, answers[0].error_message) == (error_codes.NONE, None)
    quorum.run(quorum.are_equal)
    assert [voter.key.node_id for voter in joining.raft.voters] == [1, 2, 3, 4]
    described = describe(quorum, leader)
    assert [voter.replica_id for voter in described.current_voters] == [1, 2, 3, 4]
    assert described.observers == []
    answers = quorum.ask(leader, RemoveRaftVoter(CLUSTER, joining.raft.config.core.local))
    quorum.run(lambda: answers)
    assert answers[0].error_code == error_codes.NONE
    quorum.run(quorum.are_equal)
    quorum.run_for(1_000)
    described = describe(quorum, leader)
    assert [voter.replica_id for voter in described.current_voters] == [1, 2, 3]
    assert [(key.node_id, at.replica_id) for at in described.observers] == [(4, 4)]
    _, known, _ = leader.raft.core.history.digest()
    write_snapshot(quorum, leader)
    _, kept, _ = leader.raft.core.history.digest()
    assert kept == known[-1:] != known, "voters that no snapshot needs are kept"


def asked_topic() -> Message:
    classes = API_KEYS[55].request.classes
    return classes["TopicData"](topic_name="__cluster_metadata", partitions=[classes["PartitionData"](partition_index=0)])


def describe(quorum: Quorum, node: Node) -> Message:
    response = describe_quorum(API_KEYS[55].request.new(topics=[asked_topic()]), 2, node.raft, quorum.now_ms)
    partition: Message = response.topics[0].partitions[0]
    return partition


def test_only_the_leader_describes_the_quorum(quorum: Quorum) -> None:
    """It shows how far each voter is; the others answer that they do not lead."""
    leader = quorum.elected()
    leader.append("topic")
    quorum.run(quorum.are_equal)
    quorum.run_for(600)
    partition = describe(quorum, leader)
    assert (partition.leader_id, partition.high_watermark) == (leader.node_id, leader.raft.next_offset)
    ends = {voter.replica_id: voter.log_end_offset for voter in partition.current_voters}
    assert ends == dict.fromkeys((1, 2, 3), leader.raft.next_offset)
    for version in range(3):
        response = describe_quorum(API_KEYS[55].request.new(topics=[asked_topic()]), version, leader.raft, quorum.now_ms)
        data = bytearray()
        API_KEYS[55].response.encode_into(data, response, version)
        received, _ = API_KEYS[55].response.decode(memoryview(data), version)
        voters = received.topics[0].partitions[0].current_voters
        assert {voter.replica_directory_id == ZERO_UUID for voter in voters} == {version < 2}
        assert bool(received.nodes) is (version >= 2)
    for node in quorum.nodes.values():
        if node is not leader:
            response = describe_quorum(API_KEYS[55].request.new(topics=[asked_topic()]), 2, node.raft, quorum.now_ms)
            assert response.error_code == error_codes.NOT_LEADER_OR_FOLLOWER
