"""The coordination workload of one seed: groups and transactions, with crashes, a bad network, slow disks and clock jumps.

    client                                   topics
    ---------------------------------------  ------------------------------------------------------------------------------
    transactional producers, two with one    write `input`
      transactional id; an idempotent one
    members of a classic, a consumer and a   read `input` and commit; one group with read_committed
      streams group
    members of share groups                  acquire records of `input` and `output` and acknowledge them
    members of groups that transform         read `input`, write `output` in transactions; members of a streams group by way
                                             of a repartition topic
    members of a group                       read `output` with read_committed
    a committer without a group's protocol   commits and deletes offsets only
    an administrator of offsets              deletes the offsets of groups that read `input`
    a share group and its administrator      read `input`; its start offsets are set and deleted (share_resetting)
    a producer, members of a consumer group  write and read `again`, which its administrator deletes and creates again
      and of a share group                   (topic_replacing)

    phase     actions
    --------  --------------------------------------------------------------------------------------------------------------
    topics    the topics are created; no faults yet
    faults    all clients work while faults are injected
    draining  no more faults; open transactions end by their timeouts; members read to the end of each partition
    reading   every partition is read from start to end
    end       kcli.simulator.coordination.anomalies compares the history with what was read; the node stops; kcli verify
              checks the disk

In a share of the seeds power is lost at deaths. Then every append is flushed before it is answered, as Kafka does with
log.flush.interval.messages=1, and all records are transactional.

The seed chooses what the members of a group run on, the core of kcli's own consumer, or raw requests:

group                           its members
------------------------------  ------------------------------------------------------------------------------------
classic, consumer               mostly all on the core, with one of its assignors; sometimes raw ones next to them,
                                which share the assignor range; sometimes raw ones only
streams; of a topic that is     raw ones: the client has no streams protocol, and names topics
created again and again

`only` makes a smaller world of the writers and these groups ("shares-3" and "reads-4" with their administrators; "simple" is
the committer, "deleter" the administrator of offsets). Tests aim it at one fault: more seeds meet it, and each takes less time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from random import Random

from kcli.client.consumer.consumer_config import CLASSIC, CONSUMER
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import TopicPartition
from kcli.protocol.apis import CREATE_TOPICS, INCREMENTAL_ALTER_CONFIGS, LIST_TRANSACTIONS
from kcli.server.coordinator.group.group_coordinator import GROUP_TOPIC
from kcli.server.coordinator.share.share_coordinator import SHARE_STATE_TOPIC
from kcli.server.coordinator.transaction.transaction_coordinator import TRANSACTION_TOPIC
from kcli.simulator.administrator import SET_OPERATION, TOPIC_RESOURCE
from kcli.simulator.chaos import Chaos
from kcli.simulator.client import Task
from kcli.simulator.coordination.anomalies import find_anomaly
from kcli.simulator.coordination.consumer_member import REPARTITION, ConsumerMember, RepartitioningMember, StreamsMember
from kcli.simulator.coordination.core_member import CoreMember
from kcli.simulator.coordination.core_share_member import CoreShareMember
from kcli.simulator.coordination.fetching import READ_COMMITTED, READ_UNCOMMITTED, Fetcher
from kcli.simulator.coordination.group_member import ClassicMember, CommitWork, GroupMember, Offsets, Work
from kcli.simulator.coordination.history import AGAIN, FinalRecord, FinalState, topic_name
from kcli.simulator.coordination.node_settings import loses_power, share_terms
from kcli.simulator.coordination.offset_committer import OffsetCommitter, OffsetDeleter
from kcli.simulator.coordination.producer_session import Outcome, ProducerSession
from kcli.simulator.coordination.share_history import ShareTerms
from kcli.simulator.coordination.share_member import ShareMember
from kcli.simulator.coordination.share_resetting import ShareGroupGate, ShareResetter, configure_share_group, share_starts
from kcli.simulator.coordination.stage import GROUP_KEY, SHARE_KEY, TRANSACTION_KEY, Caller, Stage
from kcli.simulator.coordination.topic_replacing import TopicReplacer
from kcli.simulator.coordination.transactional_producer import TransactionalProducer, Transform
from kcli.simulator.network import NetworkConditions
from kcli.simulator.partition_ledger import SimulationFailure
from kcli.simulator.runner import NodeFactory, Simulation
from kcli.simulator.world import PAUSE_MS

Member = GroupMember | CoreMember
CLASSIC_KIND, CONSUMER_KIND = CLASSIC, CONSUMER
STREAMS_KIND, REPARTITIONING_KIND = "streams", "repartitioning"
KINDS = (CLASSIC_KIND, CONSUMER_KIND, STREAMS_KIND)
EPOCH_KINDS = frozenset((CONSUMER_KIND, STREAMS_KIND, REPARTITIONING_KIND))  # their members have epochs
_RAW: Mapping[str, type[GroupMember]] = {
    CLASSIC_KIND: ClassicMember,
    CONSUMER_KIND: ConsumerMember,
    STREAMS_KIND: StreamsMember,
    REPARTITIONING_KIND: RepartitioningMember,
}
STATIC_SHARE = 0.5  # of the classic groups, and of the consumer groups on the core
CORE_SHARES = (1.0, 1.0, 1.0, 0.5, 0.0)  # of the members of a group
_STRATEGIES = (
    ("range",),
    ("roundrobin",),
    ("sticky",),
    ("cooperative-sticky",),
    ("range", "cooperative-sticky"),
)


class GroupMembers:
    """Makes the members of one group."""

    def __init__(self, stage: Stage, group: str, kind: str, topic: str, rng: Random, *, may_be_core: bool = True) -> None:
        self._stage = stage
        self._group = group
        self._kind = kind
        self._topic = topic
        is_core = may_be_core and kind in (CLASSIC_KIND, CONSUMER_KIND)
        self._core_share = 1.0 if stage.is_core_only else rng.choice(CORE_SHARES) if is_core else 0.0
        self._strategies = rng.choice(_STRATEGIES) if self._core_share == 1.0 else ("range",)
        self._is_static = rng.random() < STATIC_SHARE

    def make(self, name: str, rng: Random, work: Work, *, may_end: bool = False) -> Member:
        """Make a member with its work."""
        stage, group = self._stage, self._group
        if rng.random() >= self._core_share:
            member = _RAW[self._kind](stage, group, name, rng, self._topic, work, may_end=may_end)
            if self._kind == CLASSIC_KIND and self._is_static:
                member.instance_id = name
            return member
        return CoreMember(
            stage,
            group,
            name,
            rng,
            self._topic,
            work,
            protocol=self._kind,
            strategies=self._strategies,
            instance_id=name if self._is_static else None,
            may_end=may_end,
        )


DEFAULT_STEPS = 9000
INPUT, OUTPUT = "input", "output"
SEGMENT_BYTES = "internal.segment.bytes"
# How long the groups may take to read the rest, and how long they may get no further: a member that has died holds its
# partitions for the time of its session; one may transform a single record in each transaction, after a long pause.
MAX_DRAIN_MS = 100_000
MAX_STANDSTILL_MS = 40_000
CHECK_MS = 400
MAX_OPEN_MS = 20_000  # more than the timeout of a transaction and the interval after which the coordinator looks for it
CORE_SHARE = 0.7  # of the members of share groups
TRANSFORMER_COUNTS = (1, 2)  # members of a group that transforms
SECOND_IDS = ("tp0", "tp1")  # the transactional ids of the second writer; the first one has tp0

AnyShareMember = ShareMember | CoreShareMember
_Client = TransactionalProducer | Member | AnyShareMember | OffsetCommitter | OffsetDeleter | ShareResetter | TopicReplacer


class CoordinationSimulation(Simulation):
    """One run; see the head of this module."""

    max_quiet_steps = 500_000  # more than MAX_DRAIN_MS has

    def __init__(
        self,
        seed: int,
        make_node: NodeFactory,
        directories: list[str],
        *,
        steps: int = DEFAULT_STEPS,
        write: Callable[[str], None] | None = None,
        cleaning_rounds: Callable[[], int] = lambda: 0,
        only: Collection[str] = (),
    ) -> None:
        self._only = frozenset(only)
        super().__init__(seed, make_node, directories, steps=steps, write=write, cleaning_rounds=cleaning_rounds)
        self.steps = steps
        # A coordinator writes markers as soon as it is loaded; the leader epochs are written to their file after that.
        self.checker.allowed_at_start = ("leader-epoch-mismatch",)

    def _pause_factor(self) -> int:
        return 1

    def _make_chaos(self, directories: list[str]) -> Chaos:
        share = 0.5 if loses_power(self.seed) else 0.0
        return Chaos(self.world, self.checker, self._rng("chaos"), directories, faulty_share=0.0, power_loss_share=share)

    # ---------------------------------------------------------------------------------------------------------------- clients

    def _add_clients(self, directories: list[str]) -> None:
        rng = self._rng("clients")
        self.stage = Stage(self.world, loses_power=loses_power(self.seed))
        self.members: list[Member] = []
        self.share_members: list[AnyShareMember] = []
        self.transactional_ids: list[str] = []
        self._reader = Caller(self.stage, "reader", self._rng("reader"))
        self._input_partitions = rng.choice((2, 3))
        self.writers = [self._writer("p0", "tp0"), self._writer("p1", rng.choice(SECOND_IDS))]
        if not self.stage.loses_power:
            self.writers.append(self._writer("i0", None))
        self._add_groups(rng)
        self._add_share_groups(self._rng("share groups"))
        self._add_administrators(self._rng("administrators"))
        self.committer = OffsetCommitter(self.stage, "committer", self._rng("committer"), "simple", INPUT)
        if self._only:
            self._leave_out_others()

    def _leave_out_others(self) -> None:
        """Reduce the workload to the groups and administrators of `only`, and the writers of their topics."""
        history = self.stage.history
        self.members = [one for one in self.members if one.name.partition(".")[0] in self._only]
        self.share_members = [one for one in self.share_members if one.name.partition(".")[0] in self._only]
        for group in history.readers_of.keys() - self._only:
            del history.readers_of[group]
            history.transforms.pop(group, None)
        for group in history.shares.terms.keys() - self._only:
            del history.shares.terms[group]

    def _writer(self, name: str, transactional_id: str | None, topic: str = INPUT) -> TransactionalProducer:
        if transactional_id is not None and transactional_id not in self.transactional_ids:
            self.transactional_ids.append(transactional_id)
        return TransactionalProducer(self.stage, name, self._rng(name), topic, transactional_id)

    def _add_groups(self, rng: Random) -> None:
        """Create the members of all groups; which protocols there are depends on the seed."""
        for group, kind in (("reads-1", "classic"), ("reads-2", "consumer"), ("reads-3", "streams")):
            isolation = READ_COMMITTED if self.stage.loses_power else rng.choice((READ_COMMITTED, READ_UNCOMMITTED))
            made = self._group(group, kind, INPUT)
            for number in range(rng.choice((1, 2, 3))):
                name = f"{group}.{number}"
                work = CommitWork(self._rng(f"{name} work"), self.stage, isolation)
                self.members.append(made.make(name, self._rng(name), work, may_end=number > 0))
        group, kind = "maps", rng.choice(KINDS)
        targets = {INPUT: OUTPUT}
        if kind == STREAMS_KIND:
            kind, targets = REPARTITIONING_KIND, {INPUT: group + REPARTITION, group + REPARTITION: OUTPUT}
        self.stage.history.transforms[group] = targets
        made = self._group(group, kind, INPUT)
        for number in range(rng.choice(TRANSFORMER_COUNTS)):
            name = f"{group}.{number}"
            transactional_id = f"t-{name}"
            self.transactional_ids.append(transactional_id)
            transform = Transform(self.stage, f"{name}.producer", self._rng(f"{name} work"), transactional_id, targets)
            self.members.append(made.make(name, self._rng(name), transform, may_end=number > 0))
        self.stage.history.readers_of[group] = tuple(targets)
        group, kind = "results", rng.choice(KINDS)
        work = CommitWork(self._rng(f"{group} work"), self.stage, READ_COMMITTED)
        self.members.append(self._group(group, kind, OUTPUT).make(group, self._rng(group), work))

    def _add_share_groups(self, rng: Random) -> None:
        """Create the members of share groups: one that reads the input, and in half of the seeds one for the output."""
        for group, topic in (("shares-1", INPUT), ("shares-2", OUTPUT))[: rng.choice((1, 2))]:
            self._add_share_group(rng, group, topic)

    def _add_share_group(self, rng: Random, group: str, topic: str, gate: ShareGroupGate | None = None) -> None:
        limit, lock_ms = share_terms(self.seed)
        is_committed_only = self.stage.loses_power or rng.random() < 0.5
        terms = self.stage.history.shares.terms[group] = ShareTerms(topic, limit, lock_ms, is_committed_only)
        for number in range(rng.choice((1, 2, 3))):
            name = f"{group}.{number}"
            self.share_members.append(self._share_member(group, name, terms, gate, may_end=number > 0))

    def _share_member(
        self, group: str, name: str, terms: ShareTerms, gate: ShareGroupGate | None, *, may_end: bool
    ) -> AnyShareMember:
        """Make a member: mostly one on kcli's own share consumer, if no administrator sets offsets or deletes the topic."""
        rng, stage = self._rng(name), self.stage
        may_be_core = gate is None and terms.topic != AGAIN
        if may_be_core and self._rng(f"{name} core").random() < CORE_SHARE:
            return CoreShareMember(stage, group, name, rng, terms, may_end=may_end)
        return ShareMember(stage, group, name, rng, terms, may_end=may_end, gate=gate)

    def _add_administrators(self, rng: Random) -> None:
        """Create administrators and the groups whose offsets or topics they delete; a seed has some of them."""
        stage = self.stage
        self.deleter = OffsetDeleter(
            stage, "deleter", self._rng("deleter"), dict.fromkeys(("reads-1", "reads-2", "reads-3"), INPUT)
        )
        self.resetter: ShareResetter | None = None
        self.replacer: TopicReplacer | None = None
        if self._takes_part("shares-3", rng):
            gate = ShareGroupGate()
            self._add_share_group(rng, "shares-3", INPUT, gate)
            self.resetter = ShareResetter(stage, "resetter", self._rng("resetter"), "shares-3", INPUT, gate)
        if self._takes_part("reads-4", rng):
            stage.styles["tp-again"] = True  # a client of transaction.version 1 does not state the ids of topics
            self.writers.append(self._writer("pa", "tp-again", AGAIN))
            made = self._group("reads-4", CONSUMER_KIND, AGAIN, may_be_core=False)
            for number in range(rng.choice((1, 2))):
                name = f"reads-4.{number}"
                work = CommitWork(self._rng(f"{name} work"), stage, READ_COMMITTED)
                self.members.append(made.make(name, self._rng(name), work, may_end=number > 0))
            self._add_share_group(rng, "shares-4", AGAIN)
            self.replacer = TopicReplacer(stage, AGAIN, self._rng("replacer"), "reads-4")

    def _takes_part(self, group: str, rng: Random) -> bool:
        """Decide whether the administrator of a group is in this world."""
        is_drawn = rng.random() < 0.5
        return group in self._only if self._only else is_drawn

    def _group(self, group: str, kind: str, topic: str, *, may_be_core: bool = True) -> GroupMembers:
        """Begin a group of a kind."""
        history = self.stage.history
        history.readers_of[group] = (topic,)
        if kind in EPOCH_KINDS:
            history.consumer_groups.add(group)
        return GroupMembers(self.stage, group, kind, topic, self._rng(f"{group} members"), may_be_core=may_be_core)

    def _batches(self) -> int:
        return sum(write.is_acknowledged for write in self.stage.history.writes.values())

    def _records_read(self) -> int:
        members: list[Member | AnyShareMember] = [*self.members, *self.share_members]
        return sum(member.record_count for member in members)

    # ----------------------------------------------------------------------------------------------------------------- phases

    def _inject_faults(self) -> None:
        self.chaos.start()
        world = self.world
        world.run(self._create_topics())
        self._until(lambda: not world.tasks_running, "the topics exist")
        world.run(self.chaos.run())
        clients: list[_Client] = [*self.writers, *self.members, *self.share_members]
        alone: dict[str, _Client] = {"simple": self.committer, "deleter": self.deleter}
        clients += [one for name, one in alone.items() if not self._only or name in self._only]
        clients += [one for one in (self.resetter, self.replacer) if one is not None]
        for client in clients:
            world.run(client.run())
        for _ in range(self.steps):
            self.virtual_time.run_next()

    def _create_topics(self) -> Task[None]:
        world, caller = self.world, self._reader
        client = world.client("creator")
        yield from world.negotiate_versions(client)
        wanted = {INPUT: self._input_partitions, OUTPUT: 2}
        size = self._rng("segments").choice(("2000", "20000"))
        config = world.struct(CREATE_TOPICS, "CreatableTopicConfig", name=SEGMENT_BYTES, value=size)
        topics = [
            world.struct(
                CREATE_TOPICS, "CreatableTopic", name=name, num_partitions=count, replication_factor=1, configs=[config]
            )
            for name, count in wanted.items()
        ]
        while len(self.stage.topics) < len(wanted):
            request = world.request(CREATE_TOPICS, topics=topics, timeout_ms=1000)
            yield from caller.call(CREATE_TOPICS, world.versions[CREATE_TOPICS][1], request, may_repeat=False)
            yield PAUSE_MS
            yield from self.stage.look_up(caller, wanted)
        # Both coordinators' topics are created with their first lookup.
        yield from caller.find_coordinator(GROUP_KEY, "simple")
        yield from caller.find_coordinator(TRANSACTION_KEY, "tp0")
        yield from caller.find_coordinator(SHARE_KEY, f"shares-1:{Uuid(self.stage.topics[INPUT].topic_id)}:0")
        yield from self._shrink_segments()
        for group, terms in self.stage.history.shares.terms.items():
            yield from configure_share_group(self.stage, caller, group, is_committed_only=terms.is_committed_only)

    def _shrink_segments(self) -> Task[None]:
        """Make the segments of the coordinators' topics so small that they are rolled and cleaned."""
        world, size = self.world, self._rng("coordinator segments").choice(("2000", "20000"))
        entry = world.struct(
            INCREMENTAL_ALTER_CONFIGS, "AlterableConfig", name=SEGMENT_BYTES, config_operation=SET_OPERATION, value=size
        )
        resources = [
            world.struct(
                INCREMENTAL_ALTER_CONFIGS,
                "AlterConfigsResource",
                resource_type=TOPIC_RESOURCE,
                resource_name=name,
                configs=[entry],
            )
            for name in (GROUP_TOPIC, TRANSACTION_TOPIC, SHARE_STATE_TOPIC)
        ]
        request = world.request(INCREMENTAL_ALTER_CONFIGS, resources=resources, validate_only=False)
        version = world.versions[INCREMENTAL_ALTER_CONFIGS][1]
        yield from self._reader.call(INCREMENTAL_ALTER_CONFIGS, version, request, may_repeat=False)

    def _calm(self) -> None:
        self.trace.add("runner", "draining")
        self.world.is_ending = self.stage.is_draining = True
        self.machine.die_never()
        self.chaos.calm()
        self.world.network.conditions = NetworkConditions()  # or a member could always be too slow for its session
        done: list[bool] = []
        self.world.run(self._drain(done))
        self._until(lambda: bool(done), "the groups have read everything")
        self.stage.is_over = True
        self._until(lambda: not self.world.tasks_running, "the clients have ended")
        self.stage.is_over = False

    def _read_all(self) -> None:
        self.trace.add("runner", "read all")
        found: list[FinalState] = []
        self.world.run(self._read(found))
        self._until(lambda: bool(found), "every partition is read")
        anomaly = find_anomaly(self.stage.history, found[0])
        if anomaly:
            raise SimulationFailure(anomaly)

    # ------------------------------------------------------------------------------------------------------ the rest, the end

    def _partitions(self) -> list[TopicPartition]:
        return [partition for topic in self.stage.live_topics() for partition in topic.partitions]

    def _drain(self, done: list[bool]) -> Task[None]:
        """Wait until no transaction is open and all groups have committed the ends of their partitions.

        If that takes too long, the final checks find the anomaly.
        """
        if self.machine.wall_clock.max_behind_ms or self.machine.wall_clock.max_ahead_ms:
            yield from self._end_transactions()
        fetcher = Fetcher(self.stage, self._reader, self._rng("drain"))
        while not all(one is None or one.is_idle for one in (self.resetter, self.replacer, *self.writers)):
            yield CHECK_MS
        begin_ms = moved_ms = self.virtual_time.now_ms
        state: object = None
        while self.virtual_time.now_ms < min(begin_ms + MAX_DRAIN_MS, moved_ms + MAX_STANDSTILL_MS):
            yield CHECK_MS
            ends = yield from fetcher.end_offsets(self._partitions(), READ_COMMITTED)
            marks = yield from fetcher.end_offsets(self._partitions(), READ_UNCOMMITTED)
            if len(ends) < len(self._partitions()) or ends != marks:
                continue
            committed = yield from self._committed()
            if state != (state := (ends, committed)):
                moved_ms = self.virtual_time.now_ms
            if all(
                committed[group].get(partition, 0) >= end or (end == 0)
                for group, topics in self.stage.history.readers_of.items()
                for partition, end in ends.items()
                if topic_name(partition[0]) in topics
            ) and (yield from self._are_shares_done(ends, begin_ms)):
                # Transforming members may have written more since then, and a writer that was pausing may have gone on.
                later = yield from fetcher.end_offsets(self._partitions(), READ_UNCOMMITTED)
                open_ids = yield from self._open_transactions()
                if later == ends and not open_ids:
                    break
        done.append(True)

    def _are_shares_done(self, ends: Mapping[TopicPartition, int], begin_ms: int) -> Task[bool]:
        """Return whether the share groups have finished all partitions; the members have only read since `begin_ms`."""
        lags = yield from self._share_lags()
        return all(
            self.stage.history.shares.is_quiet(group, begin_ms, self.stage.now_ms)
            for group, found in lags.items()
            if any(lag and ends[partition] for partition, lag in found.items())
        )

    def _share_lags(self) -> Task[dict[str, dict[TopicPartition, int]]]:
        """Return the lags of all share groups."""
        lags: dict[str, dict[TopicPartition, int]] = {}
        for group, terms in self.stage.history.shares.terms.items():
            topic = self.stage.topic(terms.topic)
            assert topic is not None
            found = yield from share_starts(self.stage, self._reader, group, topic)
            lags[group] = {partition: lag for partition, (_, lag) in found.items()}
        return lags

    def _end_transactions(self) -> Task[None]:
        """End all transactions as new producers: a clock that was set back has moved their timeouts far away."""
        for transactional_id in self.transactional_ids:
            session = ProducerSession(self.stage, f"end {transactional_id}", self._rng(transactional_id), transactional_id)
            outcome = yield from session.start()
            if outcome is not Outcome.DONE:
                raise SimulationFailure(f"the transaction of {transactional_id} cannot be ended")

    def _committed(self) -> Task[dict[str, dict[TopicPartition, int]]]:
        """Return the committed offsets of all groups."""
        committed: dict[str, dict[TopicPartition, int]] = {}
        for group, names in self.stage.history.readers_of.items():
            topics = [topic for name in names if (topic := self.stage.topic(name)) is not None]
            partitions = [partition for topic in topics for partition in topic.partitions]
            while group not in committed:
                found = yield from Offsets(self.stage, self._reader, group).fetch(partitions)
                if isinstance(found, int):
                    yield PAUSE_MS
                else:
                    committed[group] = found
        return committed

    def _open_transactions(self) -> Task[list[str]]:
        """Return the transactional ids whose transaction is not complete."""
        while True:
            request = self.world.request(LIST_TRANSACTIONS)
            version = self._reader.version(LIST_TRANSACTIONS)
            response = yield from self._reader.call(LIST_TRANSACTIONS, version, request, may_repeat=False)
            if response is not None and not response.error_code:
                idle = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
                return [one.transactional_id for one in response.transaction_states if one.transaction_state not in idle]
            yield PAUSE_MS

    def _read(self, found: list[FinalState]) -> Task[None]:
        """Read every partition twice, with and without the records of aborted transactions.

        A late request may have opened a transaction when all groups had read everything: it ends by its timeout before that.
        """
        begin_ms = self.virtual_time.now_ms
        while (yield from self._open_transactions()) and self.virtual_time.now_ms < begin_ms + MAX_OPEN_MS:
            yield CHECK_MS
        fetcher = Fetcher(self.stage, self._reader, self._rng("final"))
        logs: dict[TopicPartition, list[FinalRecord]] = {}
        stable: dict[TopicPartition, tuple[int, int]] = {}
        for partition in self._partitions():
            visible: dict[int, bytes] = {}
            everything: dict[int, bytes] = {}
            ends = []
            for isolation, records in ((READ_COMMITTED, visible), (READ_UNCOMMITTED, everything)):
                end = yield from self._end_offset(fetcher, partition, isolation)
                ends.append(end)
                position = 0
                while position < end:
                    fetched = (yield from fetcher.fetch({partition: position}, isolation)).get(partition)
                    if fetched is None:
                        yield PAUSE_MS
                        continue
                    records.update(fetched.records)
                    position = fetched.position
            stable[partition] = ends[0], ends[1]
            logs[partition] = [
                FinalRecord(offset, value, visible.get(offset) == value) for offset, value in sorted(everything.items())
            ]
        open_ids = yield from self._open_transactions()
        committed = yield from self._committed()
        starts = yield from self._share_lags()
        found.append(FinalState(logs, stable, open_ids, committed, starts))

    def _end_offset(self, fetcher: Fetcher, partition: TopicPartition, isolation: int) -> Task[int]:
        for _ in range(self.max_quiet_steps):
            ends = yield from fetcher.end_offsets([partition], isolation)
            if partition in ends:
                return ends[partition]
            yield PAUSE_MS
        raise SimulationFailure(f"ListOffsets of {partition[0]}-{partition[1]} does not succeed")
