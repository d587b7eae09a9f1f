"""A simulated operator: it moves replicas between log directories, elects leaders, and requests the ends of leader epochs.

request               check
--------------------  ----------------------------------------------------------------------------------------------
AlterReplicaLogDirs   the move ends with one replica and no future replica, in the requested directory unless power was
                      lost or the move was changed. The node often dies during the move
ElectLeaders          a partition with a leader needs no election, and a missing partition is unknown
OffsetForLeaderEpoch  the end of an epoch is above all known records of this and lower epochs, below all of higher ones,
                      and not above the log end; the end of the present epoch is not below the acknowledged records; the
                      end of a past epoch does not change
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

MAX_PAUSE_MS = 800
# How many checks with a response a move may take.
MAX_MOVE_CHECKS = 60
CHECK_MS = 300
NO_SUCH_DIRECTORY = "/data/nowhere"
# More than the leader epochs of a simulation.
FAR_EPOCHS = 1000
NO_EPOCH = -1
NO_LEADER = frozenset((error_codes.PREFERRED_LEADER_NOT_AVAILABLE, error_codes.ELIGIBLE_LEADERS_NOT_AVAILABLE))


class Operator:
    """The operator of a simulation."""

    def __init__(self, world: World, rng: Random, checker: DiskChecker, directories: list[str]) -> None:
        self.moves = 0
        self._world = world
        self._rng = rng
        self._client = world.client("operator")
        self._checker = checker
        self._directories = directories

    def run(self) -> Task[None]:
        """Send requests until the simulation ends. Raises SimulationFailure."""
        world, rng = self._world, self._rng
        yield from world.negotiate_versions(self._client)
        while not world.is_ending and ALTER_REPLICA_LOG_DIRS in world.versions:
            yield rng.randrange(MAX_PAUSE_MS) * world.pause_factor
            topics = world.ledger.live_topics()
            if not topics or world.is_ending:
                continue
            topic, choice = rng.choice(topics), rng.random()
            if choice < 0.5:
                yield from self._move(topic, rng.choice(topic.partitions))
            elif choice < 0.6:
                yield from self._elect(topic)
            else:
                yield from self._check_epoch(topic, rng.choice(topic.partitions))

    # ------------------------------------------------------------------------------------------------------------ moves

    def _move(self, topic: TopicLedger, partition: PartitionLedger) -> Task[None]:
        """Move a replica, perhaps change the target, and check that the move ends."""
        world, rng, machine = self._world, self._rng, self._world.machine
        start, losses = machine.start_count, machine.disk.power_losses
        target = rng.choice((*self._directories, *self._directories, NO_SUCH_DIRECTORY))
        code = yield from self._request_move(partition, target)
        if target == NO_SUCH_DIRECTORY:
            if code not in (None, error_codes.LOG_DIR_NOT_FOUND, *RETRIABLE):
                partition.fail(f"a move to {target}, which is not a log directory, returned error {code}")
            return
        if code not in (None, error_codes.NONE, *RETRIABLE):
            partition.fail(f"a move to {target} returned error {code}")
        self.moves += code == error_codes.NONE
        if code == error_codes.NONE and rng.random() < 0.3:
            yield rng.randrange(CHECK_MS // 3)
            if not world.is_ending:
                machine.die_soon()
        elif rng.random() < 0.2:
            yield rng.randrange(CHECK_MS)
            target = rng.choice(self._directories)
            code = yield from self._request_move(partition, target)
        place = yield from self._wait_for_move(topic, partition)
        # A requested move is not flushed at once, and the files of a move are lost with a directory that fails.
        is_certain = code == error_codes.NONE and machine.disk.power_losses == losses and not world.faults_allowed
        if place is not None and is_certain and place != target:
            starts = machine.start_count - start
            partition.fail(f"its move to {target} was accepted and ended in {place}, after {starts} starts and no power loss")

    def _request_move(self, partition: PartitionLedger, path: str) -> Task[int | None]:
        """Request a move; return the error code, or None without a response."""
        world = self._world
        name = partition.facts.name
        of_topic = world.struct(ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirTopic", name=name, partitions=[partition.index])
        wanted = world.struct(ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDir", path=path, topics=[of_topic])
        version = world.version(self._rng, ALTER_REPLICA_LOG_DIRS)
        response = yield self._client.send(
            ALTER_REPLICA_LOG_DIRS, version, world.request(ALTER_REPLICA_LOG_DIRS, dirs=[wanted])
        )
        code = None if response is None else response.results[0].partitions[0].error_code
        world.trace.add("operator", f"move {partition} to {path}: {code}")
        return code

    def _wait_for_move(self, topic: TopicLedger, partition: PartitionLedger) -> Task[str | None]:
        """Wait until a move ends; return the directory, None if the topic is deleted. Raises SimulationFailure."""
        places: list[tuple[str, bool]] = []
        checks = 0
        while checks < MAX_MOVE_CHECKS:
            yield CHECK_MS
            if topic.deletion_requested:
                return None
            answer = yield from self._places(partition)
            if answer is None:
                continue
            places = answer
            if len(places) == 1 and not places[0][1]:
                self._world.trace.add("operator", f"{partition} is in {places[0][0]}")
                return places[0][0]
            checks += 1
        partition.fail(f"its move does not end; its replicas are in {places}")

    def _places(self, partition: PartitionLedger) -> Task[list[tuple[str, bool]] | None]:
        """Return (directory, True for a future replica) of each replica of a partition; None if not known now."""
        world = self._world
        of_topic = world.struct(
            DESCRIBE_LOG_DIRS, "DescribableLogDirTopic", topic=partition.facts.name, partitions=[partition.index]
        )
        request = world.request(DESCRIBE_LOG_DIRS, topics=[of_topic])
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
        """Request an election that is not needed."""
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
        if response is None or response.error_code in RETRIABLE or topic.deletion_requested:
            return
        if response.error_code:
            raise SimulationFailure(f"ElectLeaders returned error {response.error_code}")
        for result in response.replica_election_results:
            for answer in result.partition_result:
                self._check_election(f"{result.topic}-{answer.partition_id}", answer, answer.partition_id == absent)

    def _check_election(self, partition: str, answer: Message, is_absent: bool) -> None:
        code = answer.error_code
        if is_absent and code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
            return
        # A broker that starts or stops, or whose disk has failed, is not a leader for some time.
        if not is_absent and code in (error_codes.NONE, error_codes.ELECTION_NOT_NEEDED, *NO_LEADER, *RETRIABLE):
            return
        raise SimulationFailure(f"{partition}: an election returned error {code}: {answer.error_message}")

    # ----------------------------------------------------------------------------------------------------------- epochs

    def _check_epoch(self, topic: TopicLedger, partition: PartitionLedger) -> Task[None]:
        """Get the present leader epoch, then request and check the end of an epoch."""
        world, rng, machine = self._world, self._rng, self._world.machine
        start, acknowledged_end, read = machine.start_count, partition.acknowledged_end, dict(partition.epochs)
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
        of_topic = world.struct(OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderTopic", topic=topic.facts.name, partitions=[wanted])
        request = world.request(OFFSET_FOR_LEADER_EPOCH, topics=[of_topic])
        response = yield self._client.send(OFFSET_FOR_LEADER_EPOCH, world.version(rng, OFFSET_FOR_LEADER_EPOCH), request)
        if response is None or topic.deletion_requested or machine.start_count != start:
            return
        answer = response.topics[0].partitions[0]
        found = (answer.leader_epoch, answer.end_offset)
        world.trace.add("operator", f"{partition} epoch {epoch} of {present}: error {answer.error_code} {found}")
        if answer.error_code in (error_codes.FENCED_LEADER_EPOCH, *RETRIABLE):
            return
        if answer.error_code:
            partition.fail(f"OffsetForLeaderEpoch returned error {answer.error_code}")
        if epoch in (NO_EPOCH, present + FAR_EPOCHS):
            if found != (-1, -1):
                partition.fail(f"epoch {epoch} ended at {found}, but there was no such epoch")
            return
        if epoch == present and found[1] < acknowledged_end:
            partition.fail(f"the present epoch {epoch} ends at {found}, but offsets below {acknowledged_end} are acknowledged")
        if found[1] > (end := self._checker.end_of(partition)):
            partition.fail(f"epoch {epoch} ended at {found}, but the log ends at {end}")
        partition.epoch_ended(epoch, *found, read, is_past=epoch < present)

    def _leader_epoch(self, topic: TopicLedger, partition: PartitionLedger) -> Task[int | None]:
        """Return the leader epoch of a partition from its metadata; None without a response."""
        world = self._world
        version = world.versions[METADATA][1]
        wanted = world.struct(METADATA, "MetadataRequestTopic", topic_id=bytes(16), name=topic.facts.name)
        request = world.request(METADATA, topics=[wanted], allow_auto_topic_creation=False)
        response = yield self._client.send(METADATA, version, request)
        if response is None or response.topics[0].error_code or bytes(response.topics[0].topic_id) != topic.topic_id:
            return None
        found = (part.leader_epoch for part in response.topics[0].partitions if part.partition_index == partition.index)
        return next(found, None)
