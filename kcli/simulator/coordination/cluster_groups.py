"""Groups and transactions on the brokers of a cluster, with the checks of the coordination workload.

    client                                          topics
    ----------------------------------------------  ----------------------------------------------------------------
    two transactional producers, perhaps with one   write `input`
      transactional id
    members of a classic and of a consumer group    read `input` with read_committed and commit
    members of a group that transforms              read `input`, write `output` in transactions
    a member of a group                             reads `output` with read_committed
    members of share groups, in two thirds of the   read `input`, and perhaps `output`
      seeds

All are cores of kcli's own client. The brokers flush each append before they answer it, since machines lose power.
kcli.simulator.cluster gives the phases: clients work while faults are injected; in the healed world open transactions end,
members read to the ends, and anomalies.find_anomaly compares the history with what is in the partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TypeVar

from kcli.client.admin.configs import (
    AlterConfigOp,
    AlterOperation,
    ConfigResource,
    ResourceType,
    incremental_alter_configs,
)
from kcli.client.admin.driver import AdminCore
from kcli.client.admin.group_offsets import SharePartitionOffset, list_consumer_group_offsets, list_share_group_offsets
from kcli.client.admin.operation import Operation
from kcli.client.admin.partitions import IsolationLevel, OffsetSpec, list_offsets
from kcli.client.admin.topics import NewTopic, TopicDescription, create_topics, describe_topics
from kcli.client.admin.transactions import list_transactions
from kcli.client.client_config import ClientConfig
from kcli.client.consumer.consumer import ConsumerCore
from kcli.client.consumer.consumer_config import ConsumerConfig
from kcli.client.consumer.subscription_state import EARLIEST
from kcli.client.errors import ClientError
from kcli.client.value_checks import OffsetAndMetadata
from kcli.format.primitives import TopicPartition
from kcli.simulator.client import REQUEST_TIMEOUT_MS, Task
from kcli.simulator.coordination.anomalies import find_anomaly
from kcli.simulator.coordination.core_producer import CoreProducerSession
from kcli.simulator.coordination.core_share_member import CoreShareMember
from kcli.simulator.coordination.fetching import READ_COMMITTED
from kcli.simulator.coordination.group_member import CommitWork
from kcli.simulator.coordination.history import FinalRecord, FinalState
from kcli.simulator.coordination.producer_session import Outcome
from kcli.simulator.coordination.share_history import ShareTerms
from kcli.simulator.coordination.stage import Stage, StageTopic
from kcli.simulator.coordination.transactional_producer import TransactionalProducer, Transform
from kcli.simulator.coordination.workload import (
    CHECK_MS,
    CLASSIC_KIND,
    CONSUMER_KIND,
    INPUT,
    MAX_DRAIN_MS,
    OUTPUT,
    SECOND_IDS,
    GroupMembers,
    Member,
)
from kcli.simulator.partition_ledger import SimulationFailure
from kcli.simulator.world import PAUSE_MS, World

POLL_MS = 200
_IDLE_STATES = frozenset(("Empty", "CompleteCommit", "CompleteAbort", "Dead"))
_ISOLATIONS = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
_Result = TypeVar("_Result")
_Ends = dict[TopicPartition, tuple[int, int]]  # the last stable offset and the end


class ClusterGroups:
    """The clients of one seed; `make_rng` returns the random numbers of a client, `life` is that of Stage.

    `share_terms` are the delivery count limit and the lock duration of share groups.
    """

    def __init__(
        self,
        world: World,
        make_rng: Callable[[str], Random],
        life: Callable[[], int],
        share_terms: tuple[int, int],
        replication_factor: int,
    ) -> None:
        self._replication_factor = replication_factor
        least_ms = REQUEST_TIMEOUT_MS if replication_factor > 1 else 0  # commits on all replicas, each of which flushes
        self.stage = Stage(world, loses_power=True, is_core_only=True, life=life, least_timeout_ms=least_ms)
        self.is_drained = False
        self._make_rng = make_rng
        self._world = world
        rng = make_rng("groups")
        self._counts = {INPUT: rng.choice((2, 3)), OUTPUT: 2}
        self._ids = ["tp0"]
        second = rng.choice(SECOND_IDS)
        self._ids += [second] * (second not in self._ids)
        self._writers = [
            TransactionalProducer(self.stage, name, make_rng(name), INPUT, transactional_id)
            for name, transactional_id in (("p0", "tp0"), ("p1", second))
        ]
        self.members: list[Member] = []
        for group, kind in (("reads-1", CLASSIC_KIND), ("reads-2", CONSUMER_KIND)):
            self._add_readers(group, kind, INPUT, rng.choice((1, 2)))
        self._add_transformers("maps", rng.choice((CLASSIC_KIND, CONSUMER_KIND)), rng.choice((1, 2)))
        self._add_readers("results", rng.choice((CLASSIC_KIND, CONSUMER_KIND)), OUTPUT, 1)
        self._share_members: list[CoreShareMember] = []
        self._add_share_groups(make_rng("share groups"), share_terms)
        config = ClientConfig(request_timeout_ms=2000, retry_backoff_ms=100, default_api_timeout_ms=6000)
        self._client = world.core_client("groups", rng, config)
        self._admin = AdminCore(self._client.network)
        self._client.run(self._admin.poll)

    def _group(self, group: str, kind: str, topic: str) -> GroupMembers:
        history = self.stage.history
        history.readers_of[group] = (topic,)
        if kind == CONSUMER_KIND:
            history.consumer_groups.add(group)
        return GroupMembers(self.stage, group, kind, topic, self._make_rng(f"{group} members"))

    def _add_readers(self, group: str, kind: str, topic: str, count: int) -> None:
        made = self._group(group, kind, topic)
        for name in (f"{group}.{number}" for number in range(count)):
            work = CommitWork(self._make_rng(f"{name} work"), self.stage, READ_COMMITTED)
            self.members.append(made.make(name, self._make_rng(name), work))

    def _add_transformers(self, group: str, kind: str, count: int) -> None:
        made, targets = self._group(group, kind, INPUT), {INPUT: OUTPUT}
        self.stage.history.transforms[group] = targets
        for name in (f"{group}.{number}" for number in range(count)):
            self._ids.append(f"t-{name}")
            work = Transform(self.stage, f"{name}.producer", self._make_rng(f"{name} work"), f"t-{name}", targets)
            self.members.append(made.make(name, self._make_rng(name), work))

    def _add_share_groups(self, rng: Random, share_terms: tuple[int, int]) -> None:
        for group, topic in (("shares-1", INPUT), ("shares-2", OUTPUT))[: rng.choice((0, 1, 2))]:
            terms = self.stage.history.shares.terms[group] = ShareTerms(topic, *share_terms, is_committed_only=True)
            for number in range(rng.choice((1, 2))):
                name = f"{group}.{number}"
                member = CoreShareMember(self.stage, group, name, self._make_rng(name), terms, may_end=number > 0)
                self._share_members.append(member)

    @property
    def acknowledged(self) -> int:
        """How many records of the producers were acknowledged."""
        return sum(write.is_acknowledged for write in self.stage.history.writes.values())

    @property
    def read(self) -> int:
        """How many records the members have read."""
        return sum(member.record_count for member in (*self.members, *self._share_members))

    @property
    def read_by_shares(self) -> int:
        """How many records the members of share groups have got."""
        return sum(member.record_count for member in self._share_members)

    # ------------------------------------------------------------------------------------------------------------- phases

    def run(self) -> Task[None]:
        """Create the topics, and let all clients begin."""
        topics = [NewTopic(name, count, self._replication_factor) for name, count in self._counts.items()]
        while len(self.stage.topics) < len(self._counts) and not self.stage.is_over:
            yield from self._ask(create_topics(topics))
            described = yield from self._ask(describe_topics(self._counts))
            for name, found in (described or {}).items():
                if isinstance(found, TopicDescription) and len(found.partitions) == self._counts[name]:
                    self.stage.topics[name] = StageTopic(name, bytes(found.topic_id), len(found.partitions))
            yield PAUSE_MS
        for group in self.stage.history.shares.terms:
            yield from self._configure(group)
        for client in (*self._writers, *self.members, *self._share_members):
            self._world.run(client.run())

    def _configure(self, group: str) -> Task[None]:
        """Let a share group begin at the start of its partitions, with read_committed."""
        resource = ConfigResource(ResourceType.GROUP, group)
        values = {"share.auto.offset.reset": "earliest", "share.isolation.level": "read_committed"}
        changes = {resource: [AlterConfigOp(name, AlterOperation.SET, value) for name, value in values.items()]}
        while not self.stage.is_over:
            altered = yield from self._ask(incremental_alter_configs(changes))
            if altered is not None and altered[resource] is None:
                return
            yield PAUSE_MS

    def drain(self) -> Task[None]:
        """Wait until no transaction is open and all groups have committed the ends, or until that takes too long."""
        stage = self.stage
        begin_ms = stage.now_ms
        while len(stage.topics) < len(self._counts) or not all(one.is_idle for one in self._writers):
            yield CHECK_MS
        if self._world.clocks().max_error_ms:  # the timeouts of transactions may have moved far away
            yield from self._end_transactions()
        while stage.now_ms < begin_ms + MAX_DRAIN_MS and not (yield from self._is_done(begin_ms)):
            yield CHECK_MS
        self.is_drained = stage.is_over = True

    def check(self) -> Task[None]:
        """Read every partition to its end, and search the history for anomalies. Raises SimulationFailure."""
        ends = yield from self._until_known(self._ends)
        visible = yield from self._read_all(IsolationLevel.READ_COMMITTED, {one: at for one, (at, _) in ends.items()})
        everything = yield from self._read_all(IsolationLevel.READ_UNCOMMITTED, {one: at for one, (_, at) in ends.items()})
        logs = {
            partition: [FinalRecord(at, value, visible[partition].get(at) == value) for at, value in sorted(found.items())]
            for partition, found in everything.items()
        }
        open_ids = yield from self._until_known(self._open_transactions)
        committed = yield from self._until_known(self._committed)
        lags = yield from self._until_known(self._share_lags)
        anomaly = find_anomaly(self.stage.history, FinalState(logs, ends, open_ids, committed, lags))
        if anomaly:
            raise SimulationFailure(anomaly)
        self._client.close()

    # ------------------------------------------------------------------------------------------------- what the cluster has

    def _ask(self, operation: Operation[_Result]) -> Task[_Result | None]:
        """Execute an operation; None if it has failed, as it may after faults."""
        result: _Result | ClientError = yield from self._client.ask(partial(self._admin.start, operation))
        return None if isinstance(result, ClientError) else result

    def _until_known(self, ask: Callable[[], Task[_Result | None]]) -> Task[_Result]:
        while (found := (yield from ask())) is None:
            yield PAUSE_MS
        return found

    def _ends(self) -> Task[_Ends | None]:
        """Return the ends of all partitions, None if one is not known."""
        partitions = [partition for topic in self.stage.topics.values() for partition in topic.partitions]
        found: list[dict[TopicPartition, int]] = []
        for isolation in _ISOLATIONS:
            listed = yield from self._ask(list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST), isolation_level=isolation))
            ends = {one: at.offset for one, at in (listed or {}).items() if not isinstance(at, ClientError)}
            if len(ends) < len(partitions):
                return None
            found.append(ends)
        return {partition: (found[0][partition], found[1][partition]) for partition in partitions}

    def _committed(self) -> Task[dict[str, dict[TopicPartition, int]] | None]:
        """Return the committed offsets of all groups, None if they are not known."""
        listed = yield from self._ask(list_consumer_group_offsets(dict.fromkeys(self.stage.history.readers_of)))
        committed = {
            group: {one: at.offset for one, at in found.items() if isinstance(at, OffsetAndMetadata)}
            for group, found in (listed or {}).items()
            if not isinstance(found, ClientError)
        }
        return committed if len(committed) == len(self.stage.history.readers_of) else None

    def _open_transactions(self) -> Task[list[str] | None]:
        """Return the transactional ids whose transaction is not complete, None if a broker does not say."""
        listed = yield from self._ask(list_transactions())
        if listed is None or listed.errors:
            return None
        return [one.transactional_id for found in listed.by_broker.values() for one in found if one.state not in _IDLE_STATES]

    def _share_lags(self) -> Task[dict[str, dict[TopicPartition, int]] | None]:
        """Return the lags of all share groups, -1 in a partition that a group has not begun; None if they are not known."""
        terms, lags = self.stage.history.shares.terms, dict[str, dict[TopicPartition, int]]()
        partitions = {group: self.stage.topics[one.topic].partitions for group, one in terms.items()}
        listed = yield from self._ask(list_share_group_offsets(partitions))
        for group, found in (listed or {}).items():
            if isinstance(found, ClientError) or any(isinstance(at, ClientError) for at in found.values()):
                return None
            lags[group] = {one: at.lag if isinstance(at, SharePartitionOffset) else -1 for one, at in found.items()}
        return lags if len(lags) == len(terms) else None

    def _is_done(self, begin_ms: int) -> Task[bool]:
        ends, committed, lags = (yield from self._ends()), (yield from self._committed()), (yield from self._share_lags())
        if ends is None or committed is None or lags is None or any(stable != end for stable, end in ends.values()):
            return False
        for group, found in lags.items():
            left = [lag for partition, lag in found.items() if lag and ends[partition][1]]
            if any(lag < 0 for lag in left):
                return False  # its coordinators still look for each other
            if left and not self.stage.history.shares.is_quiet(group, begin_ms, self.stage.now_ms):
                return False
        is_read = all(
            committed[group].get(partition, 0) >= end
            for group, topics in self.stage.history.readers_of.items()
            for partition, (_, end) in ends.items()
            if partition[0] in topics
        )
        # Members that transform may have written more since then.
        return is_read and (yield from self._open_transactions()) == [] and (yield from self._ends()) == ends

    def _end_transactions(self) -> Task[None]:
        """End all transactions as new producers."""
        for transactional_id in self._ids:
            name = f"end {transactional_id}"
            outcome = yield from CoreProducerSession(self.stage, name, self._make_rng(name), transactional_id).start()
            if outcome is not Outcome.DONE:
                raise SimulationFailure(f"the transaction of {transactional_id} cannot be ended")

    def _read_all(
        self, isolation: IsolationLevel, ends: dict[TopicPartition, int]
    ) -> Task[dict[TopicPartition, dict[int, bytes]]]:
        """Read all partitions from the start to these ends."""
        name = isolation.name.lower()
        client = self._world.core_client(f"reader {name}", self._make_rng(name), ClientConfig(request_timeout_ms=2000))
        core = ConsumerCore(client.network, ConsumerConfig(isolation_level=name, fetch_max_wait_ms=100))
        client.run(core.poll)
        client.call(partial(core.assign, list(ends)))
        client.call(partial(core.reset, list(ends), EARLIEST))
        found: dict[TopicPartition, dict[int, bytes]] = {partition: {} for partition in ends}
        while any(_position(core, partition) < end for partition, end in ends.items()):
            client.call(core.begin_poll)
            yield client.start(partial(core.await_work, timeout_ms=POLL_MS))
            client.call(core.polled)
            client.call(core.raise_error)
            for record in client.call(core.collect):
                assert isinstance(record.value, bytes)
                found[record.topic, record.partition][record.offset] = record.value
        client.close()
        return found


def _position(core: ConsumerCore, partition: TopicPartition) -> int:
    position = core.subscriptions.position(partition)
    return 0 if position is None else position.offset
