"""A simulated operator: replicas move between the log directories, leaders are elected, and leader epochs are asked for.

does                  and holds it to
--------------------  ----------------------------------------------------------------------------------------------
AlterReplicaLogDirs   the move ends: one replica, no future one; where no power was lost meanwhile and nobody took the
                      move back, in the directory that was asked for. Often the node dies in the midst of it
ElectLeaders          a partition with its leader needs no election, and one that is not there is unknown
OffsetForLeaderEpoch  an epoch's end lies behind all that is known to be of it or of lower ones, before all of higher
                      ones, and not behind what stands in the log; the present one's behind all that is acknowledged;
                      of one that is past it stays the same
"""

from __future__ import annotations

from random import Random

from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ALTER_REPLICA_LOG_DIRS,
    DESCRIBE_LOG_DIRS,
    ELECT_LEADERS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
)
from kcli.protocol.message import Message
from kcli.simulator.checkers import DiskChecker
from kcli.simulator.client import Task
from kcli.simulator.ledger import TopicLedger
from kcli.simulator.partition_ledger import PartitionLedger, SimulationFailure
from kcli.simulator.producer import RETRIABLE
from kcli.simulator.world import World

PACE_MS = 800
# How often a move is looked at until it must have ended; a look that gets no answer does not count.
MOVE_PATIENCE = 60
LOOK_MS = 300
NO_SUCH_DIRECTORY = "/data/nowhere"
# No leader epoch comes that far.
FAR_EPOCHS = 1000
NO_EPOCH = -1
NO_LEADER = frozenset((error_codes.PREFERRED_LEADER_NOT_AVAILABLE, error_codes.ELIGIBLE_LEADERS_NOT_AVAILABLE))


class Operator:
    """The one operator of a simulation."""

    def __init__(self, world: World, rng: Random, checker: DiskChecker, directories: list[str]) -> None:
        self.moves = 0
        self._world = world
        self._rng = rng
        self._client = world.client("operator")
        self._checker = checker
        self._directories = directories

    def run(self) -> Task[None]:
        """Operate until the simulation ends. Raises SimulationFailure."""
        world, rng = self._world, self._rng
        yield from world.greet(self._client)
        while not world.is_ending and ALTER_REPLICA_LOG_DIRS in world.versions:
            yield rng.randrange(PACE_MS) * world.pace
            topics = world.ledger.live_topics()
            if not topics or world.is_ending:
                continue
            topic, die = rng.choice(topics), rng.random()
            if die < 0.5:
                yield from self._move(topic, rng.choice(topic.partitions))
            elif die < 0.6:
                yield from self._elect(topic)
            else:
                yield from self._ask_epoch(topic, rng.choice(topic.partitions))

    # ------------------------------------------------------------------------------------------------------------ moves

    def _move(self, topic: TopicLedger, partition: PartitionLedger) -> Task[None]:
        """Move a replica, perhaps change the mind, and see that it ends somewhere."""
        world, rng, machine = self._world, self._rng, self._world.machine
        life, losses = machine.start_count, machine.disk.power_losses
        target = rng.choice((*self._directories, *self._directories, NO_SUCH_DIRECTORY))
        code = yield from self._ask_for_move(partition, target)
        if target == NO_SUCH_DIRECTORY:
            if code not in (None, error_codes.LOG_DIR_NOT_FOUND, *RETRIABLE):
                partition.fail(f"a move to {target}, which is no log directory, was answered with error {code}")
            return
        if code not in (None, error_codes.NONE, *RETRIABLE):
            partition.fail(f"a move to {target} was answered with error {code}")
        self.moves += code == error_codes.NONE
        if code == error_codes.NONE and rng.random() < 0.3:
            yield rng.randrange(LOOK_MS // 3)
            if not world.is_ending:
                machine.die_soon()
        elif rng.random() < 0.2:
            yield rng.randrange(LOOK_MS)
            target = rng.choice(self._directories)
            code = yield from self._ask_for_move(partition, target)
        place = yield from self._settled(topic, partition)
        # What was asked for is not on the device at once, and a directory that fails takes its part of the move with it.
        is_certain = code == error_codes.NONE and machine.disk.power_losses == losses and not world.faults_allowed
        if place is not None and is_certain and place != target:
            starts = machine.start_count - life
            partition.fail(
                f"its move to {target} was accepted and ended in {place}, after {starts} starts and no loss of power"
            )

    def _ask_for_move(self, partition: PartitionLedger, path: str) -> Task[int | None]:
        """Ask for a move -> the error code, or None where no answer came."""
        world = self._world
        name = partition.facts.name
        asked = world.struct(ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirTopic", name=name, partitions=[partition.index])
        wanted = world.struct(ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDir", path=path, topics=[asked])
        version = world.version(self._rng, ALTER_REPLICA_LOG_DIRS)
        response = yield self._client.send(
            ALTER_REPLICA_LOG_DIRS, version, world.request(ALTER_REPLICA_LOG_DIRS, dirs=[wanted])
        )
        code = None if response is None else response.results[0].partitions[0].error_code
        world.trace.add("operator", f"move {partition} to {path}: {code}")
        return code

    def _settled(self, topic: TopicLedger, partition: PartitionLedger) -> Task[str | None]:
        """Wait until a replica moves no more -> its directory; None where its topic goes. Raises SimulationFailure."""
        places: list[tuple[str, bool]] = []
        looks = 0
        while looks < MOVE_PATIENCE:
            yield LOOK_MS
            if topic.deletion_asked:
                return None
            answer = yield from self._places(partition)
            if answer is None:
                continue
            places = answer
            if len(places) == 1 and not places[0][1]:
                self._world.trace.add("operator", f"{partition} is in {places[0][0]}")
                return places[0][0]
            looks += 1
        partition.fail(f"its move does not end; it lies in {places}")

    def _places(self, partition: PartitionLedger) -> Task[list[tuple[str, bool]] | None]:
        """Where a replica lies -> (directory, whether it is a future one); None where that cannot be told now."""
        world = self._world
        asked = world.struct(
            DESCRIBE_LOG_DIRS, "DescribableLogDirTopic", topic=partition.facts.name, partitions=[partition.index]
        )
        request = world.request(DESCRIBE_LOG_DIRS, topics=[asked])
        response = yield self._client.send(DESCRIBE_LOG_DIRS, world.version(self._rng, DESCRIBE_LOG_DIRS), request)
        if response is None or response.error_code or any(result.error_code for result in response.results):
            return None
        return [
            (result.log_dir, replica.is_future_key)
            for result in response.results
            for topic in result.topics
            for replica in topic.partitions
        ]

    # -------------------------------------------------------------------------------------------------------- elections

    def _elect(self, topic: TopicLedger) -> Task[None]:
        """Ask for an election that is not needed."""
        world, rng = self._world, self._rng
        absent = len(topic.partitions) + FAR_EPOCHS
        indexes = [partition.index for partition in topic.partitions]
        wanted = world.struct(ELECT_LEADERS, "TopicPartitions", topic=topic.facts.name, partitions=[*indexes, absent])
        is_all, version = rng.random() < 0.3, world.version(rng, ELECT_LEADERS)
        request = world.request(
            ELECT_LEADERS,
            election_type=rng.randrange(2) if version else 0,
            topic_partitions=None if is_all else [wanted],
            timeout_ms=1000,
        )
        response = yield self._client.send(ELECT_LEADERS, version, request)
        world.trace.add("operator", f"elect {'all' if is_all else topic.facts.name}: {response is not None}")
        if response is None or response.error_code in RETRIABLE or topic.deletion_asked:
            return
        if response.error_code:
            raise SimulationFailure(f"ElectLeaders was answered with error {response.error_code}")
        for result in response.replica_election_results:
            for answer in result.partition_result:
                self._judge_election(f"{result.topic}-{answer.partition_id}", answer, answer.partition_id == absent)

    def _judge_election(self, partition: str, answer: Message, is_absent: bool) -> None:
        code = answer.error_code
        if is_absent and code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
            return
        # A broker that comes or goes, or whose disk has failed, leads for a while nothing.
        if not is_absent and code in (error_codes.NONE, error_codes.ELECTION_NOT_NEEDED, *NO_LEADER, *RETRIABLE):
            return
        raise SimulationFailure(f"{partition}: an election was answered with error {code}: {answer.error_message}")

    # ----------------------------------------------------------------------------------------------------------- epochs

    def _ask_epoch(self, topic: TopicLedger, partition: PartitionLedger) -> Task[None]:
        """Learn the leader epoch, then ask where one ended."""
        world, rng, machine = self._world, self._rng, self._world.machine
        life, acknowledged_end, read = machine.start_count, partition.acknowledged_end, dict(partition.epochs)
        present = yield from self._leader_epoch(topic, partition)
        if present is None:
            return
        epoch = rng.choice((present, present, max(0, present - 1), rng.randrange(present + 1), present + FAR_EPOCHS, NO_EPOCH))
        wanted = world.struct(
            OFFSET_FOR_LEADER_EPOCH,
            "OffsetForLeaderPartition",
            partition=partition.index,
            current_leader_epoch=rng.choice((NO_EPOCH, present)),
            leader_epoch=epoch,
        )
        asked = world.struct(OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderTopic", topic=topic.facts.name, partitions=[wanted])
        request = world.request(OFFSET_FOR_LEADER_EPOCH, topics=[asked])
        response = yield self._client.send(OFFSET_FOR_LEADER_EPOCH, world.version(rng, OFFSET_FOR_LEADER_EPOCH), request)
        if response is None or topic.deletion_asked or machine.start_count != life:
            return
        answer = response.topics[0].partitions[0]
        found = (answer.leader_epoch, answer.end_offset)
        world.trace.add("operator", f"{partition} epoch {epoch} of {present}: error {answer.error_code} {found}")
        if answer.error_code in (error_codes.FENCED_LEADER_EPOCH, *RETRIABLE):
            return
        if answer.error_code:
            partition.fail(f"OffsetForLeaderEpoch was answered with error {answer.error_code}")
        if epoch in (NO_EPOCH, present + FAR_EPOCHS):
            if found != (-1, -1):
                partition.fail(f"epoch {epoch} ended at {found}, but nothing was ever of it")
            return
        if epoch == present and found[1] < acknowledged_end:
            partition.fail(f"the present epoch {epoch} ends at {found}, but offsets below {acknowledged_end} are acknowledged")
        if found[1] > (end := self._checker.end_of(partition)):
            partition.fail(f"epoch {epoch} ended at {found}, but the log has records only below {end}")
        partition.epoch_ended(epoch, *found, read, is_past=epoch < present)

    def _leader_epoch(self, topic: TopicLedger, partition: PartitionLedger) -> Task[int | None]:
        """The epoch of a partition's leader, as the metadata has it; None where nobody says."""
        world = self._world
        version = world.versions[METADATA][1]
        asked = world.struct(METADATA, "MetadataRequestTopic", topic_id=bytes(16), name=topic.facts.name)
        request = world.request(METADATA, topics=[asked], allow_auto_topic_creation=False)
        response = yield self._client.send(METADATA, version, request)
        if response is None or response.topics[0].error_code or bytes(response.topics[0].topic_id) != topic.topic_id:
            return None
        found = (part.leader_epoch for part in response.topics[0].partitions if part.partition_index == partition.index)
        return next(found, None)
