"""A cluster of whole nodes in virtual time: machines with a disk, a clock and a network each, and kcli's own client.

    machines            controllers of a quorum, brokers, or both in one process; static or dynamic voters. In half of the
                        seeds a broker, or a controller of a dynamic quorum, is added while the others run
    clients             an administrator, producers and consumers of kcli.client, with the checks of the one-node workload; or
                        groups, share groups and transactional producers (kcli.simulator.coordination.cluster_groups), and no
                        disk that fails
    an operator         upgrades metadata.version; unregisters brokers, which register again; in a dynamic quorum it removes
                        controllers from the voters and adds them again, some of them with an empty disk; at the end all are
                        voters
    faults of a machine as of one node (kcli.simulator.chaos): deaths, power losses, clean stops, clocks, disks; and pauses
    faults of the ways  two machines that cannot reach each other, in both directions or one; one that is cut off from all;
                        slow ways; requests between nodes that come twice
    a healed world      at the end: each node is up, one leader, and all have the same metadata

    check                     when               what must hold
    ------------------------  -----------------  --------------------------------------------------------------------------
    one leader an epoch       after each event   no two nodes lead one epoch of the quorum
    one vote an epoch         after each event   a voter's quorum-state has one candidate in an epoch, also after its restarts
    equal commits             after each event   what a node takes for committed has the same bytes on every node, for ever
    no step back              after each event   the high watermark of a process does not fall
    snapshots                 after each event   a new snapshot of a node makes the same image as the log up to its end
    equal images              now and then       a node that has applied the metadata up to an offset has the image that the
                                                 committed records make: controllers, brokers, those that began with a snapshot
    fences                    now and then       a broker that cannot reach the active controller is fenced after its session
    records                   by the clients     as with one node (kcli.simulator.partition_ledger): acknowledged records are
                                                 there, unchanged, once, in order, after every start of their machine,
                                                 or at the end if there are several replicas (kcli.simulator.replicas)
    groups, transactions      at the end         as with one node (kcli.simulator.coordination.anomalies)
    topics, configurations    by the client      what was answered stays, also over elections (kcli.simulator.administrator)
    a healed world            at the end         nodes and clients are done within a bound of steps

A partition has one replica, on one of the brokers; while its machine is down, its clients wait. In a third of the seeds each
broker has a replica of every partition, and machines lose power only if each append is flushed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import NamedTuple, TypeVar

from kcli.client.admin.cluster import (
    FeatureUpdate,
    QuorumInfo,
    RaftEndpoint,
    add_raft_voter,
    describe_metadata_quorum,
    remove_raft_voter,
    unregister_broker,
    update_features,
)
from kcli.client.admin.driver import AdminCore
from kcli.client.admin.operation import Operation
from kcli.client.client_config import ClientConfig
from kcli.client.errors import ClientError
from kcli.format.kafka_uuid import Uuid, random_uuid
from kcli.log.disk.port import parent_path
from kcli.log.wall_time import WallTime
from kcli.network.events import PeerAddress
from kcli.protocol.apis import API_KEYS
from kcli.server.controller.controller_server import ControllerServer
from kcli.server.controller.formatting import FormatPlan, format_directories
from kcli.server.features import DEFAULT_METADATA_VERSION, METADATA_VERSION, SHARE_VERSION, initial_features
from kcli.server.node import Node
from kcli.server.raft.kafka_raft_client import KafkaRaftClient
from kcli.server.raft.messages import ReplicaKey, SnapshotId
from kcli.server.raft.metadata_batches import MetadataBatch
from kcli.simulator.chaos import FAULTY_SHARE, POWER_LOSS_SHARE, Chaos
from kcli.simulator.checkers import DiskChecker
from kcli.simulator.client import Task
from kcli.simulator.coordination.cluster_groups import ClusterGroups
from kcli.simulator.coordination.node_settings import group_settings, share_settings, share_terms_of
from kcli.simulator.core_log_clients import CoreLogAdmin, CoreLogConsumer, CoreLogProducer
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.machine import Machine, NodeProcess
from kcli.simulator.network import Network, NetworkConditions
from kcli.simulator.node_maker import NodeMaker
from kcli.simulator.partition_ledger import PartitionLedger, SimulationFailure
from kcli.simulator.replicas import ReplicaChecks
from kcli.simulator.runner import START_MS
from kcli.simulator.sent_records import whole_batches
from kcli.simulator.trace import Trace, failure_of
from kcli.simulator.virtual_time import VirtualTime, WallClock
from kcli.simulator.world import World
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import Voter

DEFAULT_STEPS = 6000
MAX_QUIET_STEPS = 60_000
# Nodes whose controllers have stopped before them wait for minutes, and ask all the time.
MAX_STOP_STEPS = 300_000
MAX_DRAIN_STEPS = 200_000
CONTROLLER, BROKER = "CONTROLLER", "PLAINTEXT"
CONTROLLER_PORT, BROKER_PORT = 9093, 9092
DEATH_PAUSES_MS = (2000, 10_000, 60_000)
# A broker waits five minutes at most for a controller that lets it go, as Kafka's does.
STOP_TIMEOUT_MS = 330_000
MAX_PARTITIONED_MS = 8000
MAX_PAUSE_MS = 6000
IMAGES_EACH_STEPS = 100
# A heartbeat that was sent before may still arrive, and the controller checks the sessions now and then.
LATE_FENCE_MS = 2500
# The levels of metadata.version that a cluster begins with (4.0 to 4.3).
FIRST_LEVELS = (25, 26, DEFAULT_METADATA_VERSION)
OPERATOR_PAUSES_MS = (3000, 15_000)
RETRY_MS = 300
GROUPS_SHARE = 0.4
REPLICAS_SHARE = (0.5, 0.0)  # of the seeds without groups, and of those with groups
NEWCOMER_SHARE = 0.7  # of the seeds that may have one
MAX_ADDITION_MS = 12_000
# Machines lose power, and what coordinators have answered must be there.
FLUSH_EACH: dict[str, object] = {"log.flush.interval.messages": 1}
READ_BYTES = 1 << 20
REPEATED_SHARES = (0.0, 0.01, 0.1)  # of the requests between nodes


class Layout(NamedTuple):
    """The nodes of a cluster by their roles."""

    controllers: tuple[int, ...]
    brokers: tuple[int, ...]

    @property
    def nodes(self) -> list[int]:
        """The ids of all nodes."""
        return sorted({*self.controllers, *self.brokers})


LAYOUTS = (
    Layout((1, 2, 3), (1, 2, 3)),
    Layout((1, 2, 3), (4, 5)),
    Layout((1,), (2, 3)),
    Layout((1, 2, 3), (3, 4)),
)


REPLICATED_LAYOUTS = (LAYOUTS[0], Layout((1, 2, 3), (4, 5, 6)), Layout((1,), (2, 3, 4)), LAYOUTS[1])


def host_of(node_id: int) -> str:
    """Return the host name of a machine."""
    return f"127.0.0.{node_id}"


def node_settings(layout: Layout, node_id: int, is_dynamic: bool, rng: Random, groups: dict[str, object]) -> dict[str, object]:
    """Return the settings of a node, those of Kafka's names; rare events are frequent."""
    roles = [role for role, ids in (("broker", layout.brokers), ("controller", layout.controllers)) if node_id in ids]
    listeners = [f"{BROKER}://{host_of(node_id)}:{BROKER_PORT}"] if "broker" in roles else []
    listeners += [f"{CONTROLLER}://{host_of(node_id)}:{CONTROLLER_PORT}"] if "controller" in roles else []
    servers = {one: f"{host_of(one)}:{CONTROLLER_PORT}" for one in layout.controllers}
    quorum = (
        {"controller.quorum.bootstrap.servers": ",".join(servers.values())}
        if is_dynamic
        else {"controller.quorum.voters": ",".join(f"{one}@{server}" for one, server in servers.items())}
    )
    return {
        "process.roles": ",".join(roles),
        "node.id": node_id,
        "listeners": ",".join(listeners),
        "controller.listener.names": CONTROLLER,
        **quorum,
        "controller.quorum.election.timeout.ms": rng.choice((300, 1000)),
        "controller.quorum.fetch.timeout.ms": rng.choice((600, 2000)),
        "broker.session.timeout.ms": rng.choice((1500, 9000)),
        "broker.heartbeat.interval.ms": rng.choice((300, 1000)),
        "metadata.log.max.record.bytes.between.snapshots": rng.choice((2000, 10_000, 20_971_520)),
        # A log that begins at a snapshot: nodes that fall behind get it while they run.
        "metadata.max.retention.bytes": rng.choice((1000, 104_857_600)),
        "kcli.quorum.elect.at.once": rng.choice(("true", "false")),
        "default.replication.factor": 1,
        "log.index.size.max.bytes": 65_536,  # each start preallocates the indexes
        # At the end most controllers are gone, and a controlled shutdown waits for five minutes: thousands of events.
        "controlled.shutdown.enable": rng.choice(("true",) + 29 * ("false",)) if node_id in layout.controllers else "true",
        **groups,
    }


class ClusterChecks:
    """What must hold in the quorum, whatever happens; each violation is a SimulationFailure."""

    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}  # by epoch
        self._votes: dict[tuple[int, ReplicaKey], int] = {}  # by epoch and voter: the candidate
        self._committed: dict[int, tuple[int, int]] = {}  # base offset of a batch -> next offset, CRC of its bytes
        self._seen: dict[int, tuple[KafkaRaftClient, int]] = {}  # by node id: the process, its high watermark
        self._image = MetadataImage()  # of all that is committed
        self._image_end = 0
        self._facts: dict[int, dict[str, object]] = {}  # of the image by the offset below which it has everything
        self._snapshots: dict[ReplicaKey, SnapshotId | None] = {}  # by metadata directory: the last one that was checked
        self.snapshots = 0  # that replaced the log of a running node

    def elections(self) -> int:
        """Return how many leaders there were."""
        return len(self._leaders)

    def check(self, node: Node) -> None:
        """Check the state of the quorum at a node after an event. Raises SimulationFailure."""
        raft = node.quorum.client
        quorum = raft.core.quorum
        if quorum.is_leader and self._leaders.setdefault(raft.epoch, node.node_id) != node.node_id:
            raise SimulationFailure(f"nodes {self._leaders[raft.epoch]} and {node.node_id} lead epoch {raft.epoch}")
        if quorum.voted is not None and raft.core.is_election_stored:
            self.check_vote(quorum.epoch, raft.core.config.local, quorum.voted)
        offset = raft.core.high_watermark
        process, earlier = self._seen.get(node.node_id, (raft, -1))
        if process is not raft:
            earlier = -1
        if offset < earlier:
            raise SimulationFailure(f"the high watermark of node {node.node_id} falls from {earlier} to {offset}")
        if offset > earlier:
            self.snapshots += 0 < earlier < raft.log.start_offset
            self._compare(node.node_id, raft, max(earlier, raft.log.start_offset), offset)
        self._seen[node.node_id] = raft, offset
        if raft.log.latest_snapshot != self._snapshots.get(raft.core.config.local):
            self._snapshots[raft.core.config.local] = raft.log.latest_snapshot
            self._check_snapshot(node.node_id, raft)

    def check_vote(self, epoch: int, voter: ReplicaKey, candidate: ReplicaKey) -> None:
        """Check a vote in the quorum-state of a voter. Raises SimulationFailure."""
        earlier = self._votes.setdefault((epoch, voter), candidate.node_id)
        if earlier != candidate.node_id:
            raise SimulationFailure(
                f"node {voter.node_id} votes for node {candidate.node_id} in epoch {epoch}, after node {earlier}"
            )

    def _compare(self, node_id: int, raft: KafkaRaftClient, start: int, end: int) -> None:
        """Compare what a node has committed with what was committed before."""
        while start < end:
            data = raft.log.read(start, READ_BYTES)
            batches = [] if data is None else list(whole_batches(data))
            if data is None or not batches:
                raise SimulationFailure(f"node {node_id} commits up to {end}, but its log has nothing from {start} on")
            for batch in batches:
                if batch.base_offset >= end:
                    start = end
                    break
                found = batch.next_offset, zlib.crc32(data[batch.end_position - batch.size_bytes : batch.end_position])
                if self._committed.setdefault(batch.base_offset, found) != found:
                    raise SimulationFailure(f"node {node_id} has other bytes at the committed offset {batch.base_offset}")
                start = batch.next_offset
        if raft.log.start_offset <= self._image_end < end:
            for one in raft.log.batches(self._image_end, end):
                self._apply(one)

    def _apply(self, batch: MetadataBatch) -> None:
        for record in batch.records:
            self._image.apply(record)
        self._image_end = batch.last_offset + 1
        self._facts[self._image_end] = image_facts(self._image)

    def _check_snapshot(self, node_id: int, raft: KafkaRaftClient) -> None:
        """Compare the image of a node's newest snapshot with that of the log up to its end."""
        snapshot = raft.log.latest_snapshot
        if snapshot is None or snapshot.end_offset == 0:
            return
        image = MetadataImage()
        for batch in raft.log.snapshot_batches(snapshot):
            for record in batch.records:
                image.apply(record)
        self.check_image(f"the snapshot of node {node_id}", snapshot.end_offset, image)

    def check_image(self, whose: str, offset: int, image: MetadataImage) -> None:
        """Compare an image with what the records below an offset make. Raises SimulationFailure."""
        facts = image_facts(image)
        known = self._facts.setdefault(offset, facts)
        if facts != known:
            names = [name for name in facts if facts[name] != known[name]]
            raise SimulationFailure(
                f"{whose} has applied the metadata up to {offset}, but its {', '.join(names)} are not what the records make"
            )


def applied_image(node: Node) -> Iterator[tuple[int, MetadataImage]]:
    """Yield the offset up to which a node has applied the metadata, and its image: that of the broker, of the controller."""
    offset = node.quorum.client.delivered_offset
    if offset is None:
        return
    if node.broker is not None:
        yield offset, node.broker.image
    if node.controller is not None:
        yield offset, node.controller.committed_image()


def image_facts(image: MetadataImage) -> dict[str, object]:
    """Return what an image says now, comparable and readable."""
    facts: dict[str, object] = {name: dict(getattr(image, name)) for name in MetadataImage.map_names()}
    facts["topics"] = {str(one.topic_id): (one.name, dict(one.partitions)) for one in image.topics.values()}
    return facts | {"next_producer_id": image.next_producer_id}


def _controller_of(node: NodeProcess | None) -> ControllerServer | None:
    found = node.controller if isinstance(node, Node) else None
    return found if isinstance(found, ControllerServer) else None


def _is_active(machine: Machine) -> bool:
    """Return whether a machine has the active controller, and is not paused."""
    controller = _controller_of(machine.node)
    return controller is not None and controller.controller.is_active and not machine.is_paused


_Result = TypeVar("_Result")


class ClusterOperator:
    """Changes what a cluster consists of, while it runs. `voters` are the directory ids that the voters shall have in the end.

    `brokers` are unregistered, although they run.
    `replace_disk(node_id)` gives a machine of `replaceable` an empty disk and returns the id of its new directory.
    """

    def __init__(
        self,
        world: World,
        rng: Random,
        brokers: Sequence[int],
        voters: dict[int, Uuid],
        replaceable: list[int],
        replace_disk: Callable[[int], Uuid],
    ) -> None:
        self.changes = self.replacements = self.unregistrations = 0
        self._brokers = brokers
        self._world = world
        self._rng = rng
        self._voters = voters
        self._replaceable = replaceable
        self._replace_disk = replace_disk
        config = ClientConfig(request_timeout_ms=2000, retry_backoff_ms=100, default_api_timeout_ms=4000)
        self._process = world.core_client("operator", rng, config)
        self._core = AdminCore(self._process.network)
        self._process.run(self._core.poll)

    def run(self) -> Task[None]:
        """Change voters and features until the simulation ends; then all voters are as they shall be."""
        rng = self._rng
        pause_ms = rng.choice(OPERATOR_PAUSES_MS)
        while not self._world.is_ending:
            yield rng.randrange(pause_ms)
            choice = rng.random()
            if choice < 0.15:
                broker_id = rng.choice(self._brokers)
                yield from self._ask(unregister_broker(broker_id), f"unregister broker {broker_id}")
                self.unregistrations += 1
            elif choice < 0.4:
                update = {METADATA_VERSION: FeatureUpdate(DEFAULT_METADATA_VERSION)}
                yield from self._ask(update_features(update), "upgrade metadata.version")
            elif self._voters:
                yield from self._change(rng.choice(sorted(self._voters)))
        while self._voters and not (yield from self._restore()):
            yield RETRY_MS
        self._process.close()

    def _ask(self, operation: Operation[_Result], what: str) -> Task[_Result | None]:
        """Execute an operation; None if it has failed, as it may: a request may be executed twice, and one change waits."""
        result = yield from self._process.ask(partial(self._core.start, operation))
        self._world.trace.add("operator", f"{what}: {result if isinstance(result, ClientError) else 'done'}")
        return None if isinstance(result, ClientError) else result

    def _current(self) -> Task[QuorumInfo | None]:
        return (yield from self._ask(describe_metadata_quorum(), "describe the quorum"))

    def _change(self, node_id: int) -> Task[None]:
        """Remove a voter, perhaps with its disk, and add it again; only when no other voter is missing."""
        rng, quorum = self._rng, (yield from self._current())
        if quorum is None or {one.replica_id: one.directory_id for one in quorum.voters} != self._voters:
            yield from self._restore()
            return
        old = self._voters[node_id]
        if node_id in self._replaceable and rng.random() < 0.4:
            self._voters[node_id] = self._replace_disk(node_id)
            self.replacements += 1
        yield from self._ask(remove_raft_voter(node_id, old), f"remove voter {node_id}")
        yield rng.randrange(2000)
        yield from self._restore()

    def _restore(self) -> Task[bool]:
        """Take one step to the voters that there shall be; return whether they are there."""
        quorum = yield from self._current()
        if quorum is None:
            return False
        found = {(one.replica_id, one.directory_id) for one in quorum.voters}
        wanted = {*self._voters.items()}
        if found - wanted:
            node_id, directory_id = min(found - wanted)
            yield from self._ask(remove_raft_voter(node_id, directory_id), f"remove voter {node_id} with its old disk")
        elif wanted - found:
            node_id, directory_id = min(wanted - found)
            endpoint = RaftEndpoint(CONTROLLER, host_of(node_id), CONTROLLER_PORT)
            yield from self._ask(add_raft_voter(node_id, directory_id, [endpoint]), f"add voter {node_id}")
            self.changes += 1
        return found == wanted


def _flush_all(disk: SimulatedDisk, path: str) -> None:
    """Make what is below a directory durable."""
    for name in disk.list_directory(path):
        below = f"{path.rstrip('/')}/{name}"
        if disk.is_directory(below):
            _flush_all(disk, below)
        else:
            disk.flush(below)
    disk.flush_directory(path)


class ClusterResult(NamedTuple):
    """The result of a seed; `failure` is empty if no guarantee was violated."""

    seed: int
    failure: str
    digest: str
    tail: list[str]
    starts: int
    deaths: int
    elections: int
    voter_changes: int
    records: int  # that were acknowledged
    records_read: int
    virtual_ms: int

    @property
    def summary(self) -> str:
        """What happened, in one line."""
        return (
            f"{self.starts} starts, {self.deaths} deaths, {self.elections} leaders, {self.voter_changes} changes of voters, "
            f"{self.records} records acknowledged, {self.records_read} read, {self.virtual_ms / 1000:.1f} s of virtual time"
        )


class ClusterSimulation:
    """One run of one seed; by default it is random whether its partitions have several replicas, and whether it has groups."""

    def __init__(
        self,
        seed: int,
        *,
        steps: int = DEFAULT_STEPS,
        write: Callable[[str], None] | None = None,
        is_replicated: bool | None = None,
        has_groups: bool | None = None,
    ) -> None:
        self.seed = seed
        rng = self._rng("layout")
        self.layout = rng.choice(LAYOUTS)
        self.is_dynamic = rng.random() < 0.5
        has_groups = (rng.random() < GROUPS_SHARE) if has_groups is None else has_groups
        self._loses_power = True
        self.replicas: ReplicaChecks | None = None
        self._replica_settings: dict[str, object] = {}
        if is_replicated or (is_replicated is None and self._rng("replicas").random() < REPLICAS_SHARE[has_groups]):
            self.replicas = ReplicaChecks()
            self._choose_replicas(self._rng("several replicas"), has_groups=has_groups)
        self.newcomer = self._choose_newcomer(self._rng("newcomer"))
        self.steps = steps * 2 if has_groups or self.replicas else steps
        shares = share_settings(self._rng("shares"))
        self._group_settings = group_settings(self._rng("groups")) | shares | FLUSH_EACH if has_groups else {}
        self.virtual_time = VirtualTime(self._rng("time"), START_MS)
        self.trace = Trace(lambda: self.virtual_time.now_ms, write)
        self.network = Network(self.virtual_time, self._rng("network"), self._network_conditions())
        self.checks = ClusterChecks()
        self._checked_steps: dict[int, int] = {}  # by machine
        self._leader: Machine | None = None  # with the active controller, if that runs
        self._active: NodeProcess | None = None  # its process
        self._silent_ms: dict[int, int] = {}  # by broker: since when it cannot reach that
        self._homes: dict[PartitionLedger, int] = {}
        self._new_disks = self._rng("new disks")
        self._makers = {node_id: self._maker(node_id) for node_id in self.layout.nodes}
        self.machines = {node_id: self._machine(node_id) for node_id in self.layout.nodes}
        brokers = [(self.machines[one], PeerAddress(host_of(one), BROKER_PORT)) for one in self.layout.brokers]
        self.world = World(self.virtual_time, self.network, list(self.machines.values()), self.trace, 1, brokers)
        self.world.versions = {api.key: (api.lowest_version, api.highest_version) for api in API_KEYS.values()}
        self._format()
        self.checkers = {node_id: self._checker(node_id) for node_id in self.layout.nodes}
        self.chaos = {node_id: self._chaos(node_id) for node_id in self.layout.nodes}
        # Of the voters of a quorum of two none can be spared.
        voters = self._voters if self.is_dynamic and len(self.layout.controllers) > 2 else {}
        replaceable = [one for one in self.layout.controllers if one not in self.layout.brokers]
        self.operator = ClusterOperator(
            self.world, self._rng("operator"), self.layout.brokers, voters, replaceable, self._replace_disk
        )
        self.groups = None
        if has_groups:
            terms = share_terms_of(shares)
            self.groups = ClusterGroups(self.world, self._rng, self._share_life, terms, self._replication_factor)
        if has_groups or self.replicas:  # what writes at once, before the leader epochs are written to their file
            for checker in self.checkers.values():
                checker.allowed_at_start = ("leader-epoch-mismatch",)
        self.administrator = self._administrator("admin")
        acks = None if self.replicas is None else "all"
        names = [f"p{n}" for n in range(0 if has_groups else 2)]
        self.producers = [CoreLogProducer(self.world, name, self._rng(name), acks) for name in names]
        self.consumers = [self._consumer("c0")]

    def _rng(self, name: str) -> Random:
        return Random(f"{self.seed} cluster {name}")

    def _administrator(self, name: str) -> CoreLogAdmin:
        return CoreLogAdmin(self.world, self._rng(name), self._replication_factor)

    @property
    def _replication_factor(self) -> int:
        return 1 if self.replicas is None else len(self.layout.brokers)

    def _consumer(self, name: str) -> CoreLogConsumer:
        return CoreLogConsumer(self.world, name, self._rng(name), is_replicated=self.replicas is not None)

    def _choose_replicas(self, rng: Random, *, has_groups: bool) -> None:
        """Choose the layout and settings of a seed whose partitions have several replicas."""
        self.layout = rng.choice(REPLICATED_LAYOUTS)
        self._loses_power = rng.random() < 0.5
        self._replica_settings = {
            "min.insync.replicas": rng.randrange(1, len(self.layout.brokers)),
            "replica.lag.time.max.ms": rng.choice((800, 3000)),
            "replica.fetch.wait.max.ms": rng.choice((100, 500)),
            # Coordinators write more than followers could copy batch by batch.
            "replica.fetch.max.bytes": 1_048_576 if has_groups else rng.choice((300, 1_048_576)),
            "num.replica.fetchers": rng.choice((1, 2)),
            "offsets.topic.replication.factor": self._replication_factor,
            "transaction.state.log.replication.factor": self._replication_factor,
            "share.coordinator.state.topic.replication.factor": self._replication_factor,
            **(FLUSH_EACH if self._loses_power else {}),
        }

    def _choose_newcomer(self, rng: Random) -> int | None:
        """Return the node that is added later: a quorum of two voters, and one broker, can do without it."""
        controllers, brokers = self.layout
        may_be_added = [one for one in brokers if one not in controllers and len(brokers) > 1 and self.replicas is None]
        if self.is_dynamic and len(controllers) > 2:
            may_be_added += [one for one in controllers if one not in brokers]
        return rng.choice(may_be_added) if may_be_added and rng.random() < NEWCOMER_SHARE else None

    def _network_conditions(self) -> NetworkConditions:
        rng = self._rng("weather")
        return NetworkConditions(rng.choice((1, 4, 20)), rng.choice((50, 400)), rng.choice((0.0, 0.02)), rng.choice((0.0, 0.1)))

    # ------------------------------------------------------------------------------------------------------ the machines

    def _maker(self, node_id: int) -> NodeMaker:
        more = self._group_settings | self._replica_settings
        settings = node_settings(self.layout, node_id, self.is_dynamic, self._rng("settings"), more)
        return NodeMaker(self.seed, node_id, settings)

    def _machine(self, node_id: int) -> Machine:
        wall_clock = WallClock(self.virtual_time)
        disk = SimulatedDisk(self._rng(f"disk {node_id}"), wall_clock.wall_ms)
        maker = self._makers[node_id]

        def log(line: str) -> None:
            self.trace.add(f"node {node_id}", line)
            if "a fault of kcli" in line:
                raise SimulationFailure(f"node {node_id}: {line}")

        def make(disk: SimulatedDisk, rng: Random, now_ms: int, wall: WallTime) -> NodeProcess:
            return maker(disk, rng, now_ms, log, wall)

        addresses = {CONTROLLER: PeerAddress(host_of(node_id), CONTROLLER_PORT)}
        rng = self._rng(f"machine {node_id}")
        machine = Machine(self.virtual_time, self.network, disk, rng, self.trace, make, wall_clock, node_id, addresses)
        machine.repeated_share = self._rng("repeated").choice(REPEATED_SHARES)
        return machine

    def _format(self) -> None:
        """Format the disks for one cluster, as `kcli format` does."""
        rng = self._rng("format")
        cluster_id = str(random_uuid(rng.randbytes))
        self._voters = {one: random_uuid(rng.randbytes) for one in self.layout.controllers if one != self.newcomer}
        voters = [Voter(*one, {CONTROLLER: (host_of(one[0]), CONTROLLER_PORT)}) for one in self._voters.items()]
        levels = {METADATA_VERSION: rng.choice(FIRST_LEVELS)} | ({SHARE_VERSION: 1} if self._group_settings else {})
        features = initial_features(levels, None, is_dynamic_quorum=self.is_dynamic)
        self._plans: dict[int, FormatPlan] = {}
        for node_id in self.layout.nodes:
            directories = tuple(self._makers[node_id].directories)
            is_controller = node_id in self.layout.controllers
            first = voters if self.is_dynamic and is_controller and node_id != self.newcomer else None
            self._plans[node_id] = FormatPlan(
                cluster_id, node_id, directories, directories[0], features, first, is_controller=is_controller
            )
            directory_id = self._format_one(self._plans[node_id], rng)
            if is_controller and node_id == self.newcomer:
                self._voters[node_id] = directory_id  # which the operator adds

    def _format_one(self, plan: FormatPlan, rng: Random) -> Uuid:
        """Format the empty disk of a machine; return the id of its metadata directory."""
        disk = self.machines[plan.node_id].disk
        for directory in plan.directories:
            disk.make_directory(parent_path(directory))
        made = format_directories(disk, plan, rng.randbytes, START_MS)
        _flush_all(disk, "/")
        directory_id = made[plan.metadata_directory].directory_id
        assert directory_id is not None
        return directory_id

    def _replace_disk(self, node_id: int) -> Uuid:
        """Give a machine an empty disk, formatted for its cluster without voters; return the id of the metadata directory."""
        machine = self.machines[node_id]
        self.trace.add(machine.name, "gets another disk")
        if machine.is_up:
            machine.die_now()
        machine.disk.replace()
        return self._format_one(self._plans[node_id]._replace(voters=None), self._new_disks)

    def _share_life(self) -> int:
        """Return a number that changes with each start of a node, and with each leader that a broker learns of."""
        brokers = (one.node.broker for one in self.machines.values() if isinstance(one.node, Node))
        topics = (topic for one in brokers if one is not None for topic in one.image.topics.values())
        epochs = sum(partition.leader_epoch for topic in topics for partition in topic.partitions.values())
        return self.world.start_count * 1_000_000 + epochs

    def _checker(self, node_id: int) -> DiskChecker:
        machine, directories = self.machines[node_id], self._makers[node_id].directories
        return DiskChecker(
            machine.disk,
            directories,
            self.world.ledger,
            self.world.clocks,
            lambda one: self.replicas is None and self._home_of(one) == node_id,
        )

    def _home_of(self, partition: PartitionLedger) -> int | None:
        """Return the node that has a partition: the first one on whose disk it was seen."""
        if partition not in self._homes:
            for node_id, machine in self.machines.items():
                directories = self._makers[node_id].directories
                if any(machine.disk.is_directory(f"{directory}/{partition}") for directory in directories):
                    self._homes[partition] = node_id
        return self._homes.get(partition)

    def _chaos(self, node_id: int) -> Chaos:
        machine, rng = self.machines[node_id], self._rng(f"chaos {node_id}")
        directories = self._makers[node_id].directories
        return Chaos(
            self.world,
            self.checkers[node_id],
            rng,
            directories,
            machine=machine,
            ready_ms=None,
            stop_ms=STOP_TIMEOUT_MS,
            faulty_share=0.0 if self._group_settings or self.replicas else FAULTY_SHARE,
            power_loss_share=POWER_LOSS_SHARE if self._loses_power else 0.0,
            # Groups with a death each second do nothing but rebalance.
            max_pause_ms=self._rng("deaths").choice(DEATH_PAUSES_MS[1:] if self._group_settings else DEATH_PAUSES_MS),
        )

    # ---------------------------------------------------------------------------------------------------------- the run

    def run(self) -> ClusterResult:
        """Run all phases and return the outcome; a failure is returned, not raised."""
        failure = failure_of([self._inject_faults, self._calm, self._read_all, self._end], SimulationFailure)
        return ClusterResult(
            seed=self.seed,
            failure=failure,
            digest=self.trace.digest(),
            tail=list(self.trace.tail),
            starts=self.world.start_count,
            deaths=sum(one.deaths for one in self.chaos.values()),
            elections=self.checks.elections(),
            voter_changes=self.operator.changes,
            records=sum(one.acknowledged_batches for one in self.producers) + (self.groups.acknowledged if self.groups else 0),
            records_read=sum(one.record_count for one in self.consumers) + (self.groups.read if self.groups else 0),
            virtual_ms=self.virtual_time.now_ms - START_MS,
        )

    def _inject_faults(self) -> None:
        world = self.world
        for node_id, chaos in self.chaos.items():
            if node_id == self.newcomer:
                self.virtual_time.after(self._rng("addition").randrange(MAX_ADDITION_MS), chaos.start)
            else:
                self.trace.add(f"node {node_id}", "is started")
                chaos.start()
            world.run(chaos.run())
        world.run(self._break_ways())
        world.run(self.operator.run())
        if self.groups is not None:
            world.run(self.groups.run())
        else:
            world.run(self.administrator.run())
            for producer in self.producers:
                world.run(producer.run())
            for consumer in self.consumers:
                world.run(consumer.run())
        for step in range(self.steps):
            self._next(step)

    def _next(self, step: int) -> bool:
        """Run the next event, and check what must hold after it; False if nothing is left to do."""
        is_over = not self.virtual_time.run_next()
        for node_id, machine in self.machines.items():
            if machine.steps != self._checked_steps.get(node_id) and isinstance(machine.node, Node):
                self._checked_steps[node_id] = machine.steps
                with machine.disk.without_faults():
                    self.checks.check(machine.node)
                    if self.replicas is not None:
                        self.replicas.check(machine.node)
        self._note_silence()
        if step % IMAGES_EACH_STEPS == 0:
            nodes = [one.node for one in self.machines.values() if isinstance(one.node, Node)]
            self._compare_images(nodes)
            if self.replicas is not None:
                self.replicas.check_isrs(nodes)
            self._check_fences()
        return not is_over

    def _compare_images(self, nodes: list[Node]) -> int:
        """Check the images of all nodes; return how many different offsets they have."""
        offsets = set()
        for node in nodes:
            for offset, image in applied_image(node):
                self.checks.check_image(f"node {node.node_id}", offset, image)
                offsets.add(offset)
        return len(offsets)

    def _note_silence(self) -> None:
        """Note since when each broker cannot reach the active controller, and since when that has been active."""
        leader, now_ms = self._leader, self.virtual_time.now_ms
        if leader is None or leader.node is not self._active or not _is_active(leader):
            leader = self._leader = next((one for one in self.machines.values() if _is_active(one)), None)
            self._active, self._silent_ms = None if leader is None else leader.node, {}
        if leader is None:
            return
        for node_id in self.layout.brokers:
            machine = self.machines[node_id]
            is_silent = not machine.is_up or machine.is_paused or self.network.is_partitioned(node_id, leader.machine_id)
            if is_silent and machine is not leader:
                self._silent_ms.setdefault(node_id, now_ms)
            else:
                self._silent_ms.pop(node_id, None)

    def _check_fences(self) -> None:
        """Check that no broker is silent for longer than its session and not fenced. Raises SimulationFailure."""
        active = _controller_of(self._active)
        if active is None:
            return
        state = active.state
        for node_id, since_ms in self._silent_ms.items():
            broker, silent_ms = state.image.brokers.get(node_id), self.virtual_time.now_ms - since_ms
            if broker is not None and not broker.is_fenced and silent_ms > state.session_timeout_ms + LATE_FENCE_MS:
                raise SimulationFailure(
                    f"fences: broker {node_id} has not reached the active controller for {silent_ms} ms, and is not fenced "
                    f"after a session of {state.session_timeout_ms} ms"
                )

    def _break_ways(self) -> Task[None]:
        """Cut machines off from one another, slow their ways, and let them pause, until the simulation ends."""
        rng, network = self._rng("ways"), self.network
        max_pause_ms = rng.choice((500, 2000, 6000))
        nodes = self.layout.nodes
        while True:
            yield rng.randrange(max_pause_ms)
            if self.world.is_ending:
                return  # a way that stays slow could take longer than a heartbeat may
            one, other = rng.sample(nodes, 2)
            choice = rng.random()
            pairs = [(one, other)]
            if choice < 0.3:
                self.trace.add("ways", f"{one} and {other} cannot reach each other")
                network.partition(one, other)
            elif choice < 0.5:
                self.trace.add("ways", f"what {one} sends to {other} is lost")
                network.partition_one_way(one, other)
            elif choice < 0.7:
                self.trace.add("ways", f"{one} is cut off")
                pairs = [(one, peer) for peer in nodes if peer != one]
                for pair in pairs:
                    network.partition(*pair)
            elif choice < 0.85:
                network.slow_ms[frozenset((one, other))] = rng.choice((0, 50, 400))
                continue
            else:
                self.machines[one].pause()
                yield rng.randrange(MAX_PAUSE_MS)
                self.machines[one].resume()
                continue
            yield rng.randrange(MAX_PARTITIONED_MS)
            for pair in pairs:
                network.heal(*pair)

    def _calm(self) -> None:
        """End all faults; the cluster and its clients must finish."""
        self.trace.add("runner", "calm")
        self.world.is_ending = True
        if self.groups is not None:
            self.groups.stage.is_draining = True
        self.network.slow_ms.clear()
        for one in self.layout.nodes:
            for other in self.layout.nodes:
                self.network.heal(one, other)
        for machine in self.machines.values():
            machine.die_never()
            machine.resume()
            machine.repeated_share = 0.0
        for chaos in self.chaos.values():
            chaos.calm()
        machines = self.machines.values()
        most_steps = MAX_QUIET_STEPS if self.groups is None else MAX_DRAIN_STEPS
        self._until(lambda: all(machine.is_ready for machine in machines), "all nodes are ready", most_steps)
        if (groups := self.groups) is not None:
            self.network.conditions = NetworkConditions()  # or a member could always be too slow for its session
            self.world.run(groups.drain())
            self._until(lambda: groups.is_drained, "the groups have read everything", MAX_DRAIN_STEPS)
        self._until(lambda: not self.world.tasks_running, "the clients are done")
        self.world.is_ending = False
        if self.groups is not None:
            self.world.run(self.groups.check())
        else:
            self.administrator = self._administrator("auditor")
            self.world.run(self.administrator.audit())
        self._until(lambda: not self.world.tasks_running, "the audit is done")
        self._until(self._is_settled, "all nodes have the metadata of one leader")
        if (replicas := self.replicas) is not None:
            nodes = [one.node for one in machines if isinstance(one.node, Node)]
            self._until(lambda: replicas.are_equal(nodes), "all replicas are in sync and equal")

    def _is_settled(self) -> bool:
        nodes = [machine.node for machine in self.machines.values() if isinstance(machine.node, Node)]
        rafts = [node.quorum.client for node in nodes]
        if len(nodes) != len(self.machines) or sum(raft.is_leader for raft in rafts) != 1:
            return False
        offsets = {offset for raft in rafts for offset in (raft.core.high_watermark, raft.delivered_offset)}
        return len(offsets) == 1 and len({raft.epoch for raft in rafts}) == 1 and self._compare_images(nodes) == 1

    def _read_all(self) -> None:
        self.trace.add("runner", "read all")
        reader = self._consumer("reader")
        self.consumers.append(reader)
        for topic in self.world.ledger.live_topics():
            self.world.run(reader.read_whole(topic))
            self._until(lambda: not self.world.tasks_running, f"topic {topic.facts.name} is read")

    def _end(self) -> None:
        self.trace.add("runner", "end")
        self.world.is_ending = True
        # Each broker asks the controllers first; of controllers that are brokers the last one has no majority for that.
        both = sorted({*self.layout.brokers} & {*self.layout.controllers})
        groups = ([*({*self.layout.brokers} - {*both})], *([one] for one in both), [*({*self.layout.controllers} - {*both})])
        for nodes in groups:
            for node_id in nodes:
                self.world.run(self.chaos[node_id].stop())
            self._until(lambda: not self.world.tasks_running, "all nodes have stopped", MAX_STOP_STEPS)
        for checker in self.checkers.values():
            checker.finished()

    def _until(self, is_done: Callable[[], bool], what: str, most_steps: int = MAX_QUIET_STEPS) -> None:
        for step in range(most_steps):
            if is_done():
                return
            if not self._next(step):
                break
        if not is_done():
            raise SimulationFailure(f"timed out waiting until {what}")
