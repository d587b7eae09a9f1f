"""A simulated consumer by assignment: it reads a topic's partitions and holds what it gets against the ledger.

    it checks that               how
    ---------------------------  ---------------------------------------------------------------------------------------
    offsets are continuous       the first batch has the offset that was asked for, each other begins where one ended; of a
                                 compacted topic it may begin behind
    batches are sound            CRC and counts; a torn one only at the end of an answer
    records are those sent       kcli.simulator.ledger
    nothing above is seen        no record at or above the high watermark that came with it
    the last value of each key   of a compacted topic, where it began at the start: kcli.simulator.compacted_ledger
      is seen
    times lead to offsets        ListOffsets of a time gives the first record at or behind it, as far as is known

With a fetch session (KIP-227) it sends only what changed and takes a partition that is left out as having nothing new.
"""

from __future__ import annotations

from random import Random

from kcli.protocol import error_codes
from kcli.protocol.apis import FETCH, LIST_OFFSETS
from kcli.protocol.message import Message
from kcli.simulator.client import Pending, Task
from kcli.simulator.compacted_ledger import CompactedLedger, View
from kcli.simulator.ledger import TopicLedger
from kcli.simulator.partition_ledger import PartitionLedger, SimulationFailure
from kcli.simulator.producer import RETRIABLE, TOPIC_IDS_VERSION
from kcli.simulator.records import placed_records, whole_batches
from kcli.simulator.world import PAUSE_MS, World

EARLIEST = -2
LATEST = -1
SESSIONS_VERSION = 7
ZSTD_VERSION = 10
SESSION_ERRORS = frozenset((error_codes.FETCH_SESSION_ID_NOT_FOUND, error_codes.INVALID_FETCH_SESSION_EPOCH))
NO_SESSION_EPOCH = -1


class SimulatedConsumer:
    """One consumer."""

    def __init__(self, world: World, name: str, rng: Random) -> None:
        self.record_count = 0
        self._world = world
        self._rng = rng
        self._client = world.client(name)
        self._topic: TopicLedger | None = None
        self._positions: dict[int, int] = {}
        self._views: dict[int, View] = {}
        self._session_id = 0
        self._session_epoch = NO_SESSION_EPOCH
        self._told: dict[int, int] = {}  # partition -> the position that the session knows
        self._by_id = False
        self._version = 0

    def run(self) -> Task[None]:
        """Read until the simulation ends. Raises SimulationFailure."""
        world, rng = self._world, self._rng
        yield from world.greet(self._client)
        while not world.is_ending:
            if self._topic is None or self._topic.deletion_asked or rng.random() < 0.02:
                self._choose()
            if self._topic is None:
                yield PAUSE_MS
                continue
            yield from self._fetch_once(self._topic)
            if rng.random() < 0.05:
                yield from self._look_up_time(self._topic)
            yield rng.randrange(30) * world.pace

    def run_keyed(self) -> Task[None]:
        """Read compacted topics from their starts to their ends, again and again. Raises SimulationFailure."""
        world, rng = self._world, self._rng
        yield from world.greet(self._client)
        while not world.is_ending:
            topics = [topic for topic in world.ledger.live_topics() if topic.facts.is_compacted]
            if topics:
                yield from self.read_whole(rng.choice(topics))
            yield rng.randrange(100) * world.pace

    def read_whole(self, topic: TopicLedger) -> Task[None]:
        """Read all partitions of a topic from their starts to where they were acknowledged. Raises SimulationFailure."""
        self._topic, self._positions, self._views = topic, {}, {}
        self._end_session()
        for partition in topic.partitions:
            while partition.index not in self._positions and not self._is_over(topic):
                yield from self._seek(topic, partition, EARLIEST)
        while not self._is_over(topic) and self._is_behind(topic):
            yield from self._fetch_once(topic)

    def _is_over(self, topic: TopicLedger) -> bool:
        return topic.deletion_asked or self._world.is_ending

    def _is_behind(self, topic: TopicLedger) -> bool:
        return any(self._positions.get(partition.index, -1) < partition.readable_end for partition in topic.partitions)

    def _choose(self) -> None:
        topics = self._world.ledger.live_topics()
        self._topic = self._rng.choice(topics) if topics else None
        self._positions, self._views = {}, {}
        self._end_session()

    def _end_session(self) -> None:
        self._session_id, self._told = 0, {}
        self._session_epoch = 0 if self._rng.random() < 0.5 else NO_SESSION_EPOCH

    def _fetch_once(self, topic: TopicLedger) -> Task[None]:
        for partition in topic.partitions:
            if partition.index not in self._positions:
                yield from self._seek(topic, partition, LATEST if self._rng.random() < 0.2 else EARLIEST)
        if not self._positions:
            yield PAUSE_MS
            return
        if any(index not in self._positions for index in self._told):
            # The session would go on with a partition that has no position for now.
            self._end_session()
        response = yield self._fetch(topic)
        if response is None:
            self._end_session()
            yield PAUSE_MS
            return
        self._check(topic, response)

    # ---------------------------------------------------------------------------------------------------------- seeking

    def _look_up_time(self, topic: TopicLedger) -> Task[None]:
        """Ask for the first record at or behind a time, and hold the answer against all that is known to stand there."""
        partition = self._rng.choice(topic.partitions)
        known = {offset: partition.sent[value][0].timestamp for offset, value in partition.standing.items()}
        if not known or topic.facts.is_log_append_time or topic.facts.has_retention:
            return
        timestamp = self._rng.choice(list(known.values())) + self._rng.randrange(-1, 2)
        response = yield self._client.send(LIST_OFFSETS, *self._list_offsets(topic, partition, timestamp))
        if response is None or topic.deletion_asked or response.topics[0].partitions[0].error_code:
            return
        found = response.topics[0].partitions[0].offset
        for offset, standing in known.items():
            # Of a compacted topic what was there may be gone.
            is_there = (
                not topic.facts.is_compacted
                and partition.deleted_end <= offset < partition.acknowledged_end
                and offset in partition.standing
            )
            if is_there and standing >= timestamp and not 0 <= found <= offset:
                partition.fail(f"ListOffsets of time {timestamp} gave {found}, but offset {offset} has the time {standing}")
        if found in known and known[found] < timestamp:
            partition.fail(f"ListOffsets of time {timestamp} gave {found}, which has the time {known[found]}")

    def _list_offsets(self, topic: TopicLedger, partition: PartitionLedger, timestamp: int) -> tuple[int, Message]:
        """A version, and a request in it."""
        world = self._world
        wanted = world.struct(LIST_OFFSETS, "ListOffsetsPartition", partition_index=partition.index, timestamp=timestamp)
        asked = world.struct(LIST_OFFSETS, "ListOffsetsTopic", name=topic.facts.name, partitions=[wanted])
        return world.version(self._rng, LIST_OFFSETS), world.request(LIST_OFFSETS, replica_id=-1, topics=[asked])

    def _seek(self, topic: TopicLedger, partition: PartitionLedger, timestamp: int) -> Task[None]:
        """Find where a partition begins or ends."""
        low, high = partition.low_watermark, partition.acknowledged_end
        clocks, power_losses = self._world.clocks(), self._world.machine.disk.power_losses
        response = yield self._client.send(LIST_OFFSETS, *self._list_offsets(topic, partition, timestamp))
        if response is None:
            yield PAUSE_MS
            return
        answer = response.topics[0].partitions[0]
        if answer.error_code in RETRIABLE:
            yield PAUSE_MS
            return
        if answer.error_code:
            raise SimulationFailure(f"{partition}: ListOffsets was answered with error {answer.error_code}")
        if topic.deletion_asked:
            return
        # What came while it was under way may or may not show; a power loss takes from both.
        low, high = min(low, partition.low_watermark), min(high, partition.acknowledged_end)
        if answer.offset < (high if timestamp == LATEST else low):
            partition.fail(f"ListOffsets of {timestamp} gave {answer.offset}; it begins at {low} and ends at {high}")
        self._positions[partition.index] = answer.offset
        self._views.pop(partition.index, None)
        if isinstance(partition, CompactedLedger) and timestamp == EARLIEST:
            self._views[partition.index] = partition.begin_view(answer.offset, clocks, power_losses)

    # --------------------------------------------------------------------------------------------------------- fetching

    def _fetch(self, topic: TopicLedger) -> Pending:
        world, rng = self._world, self._rng
        version = world.version(rng, FETCH, SESSIONS_VERSION if self._session_id else 0)
        if self._session_id and (version >= TOPIC_IDS_VERSION) != self._by_id:
            # A session is of names or of ids.
            version = world.versions[FETCH][1] if self._by_id else TOPIC_IDS_VERSION - 1
        self._version = version
        self._by_id = version >= TOPIC_IDS_VERSION
        partitions = [
            world.struct(
                FETCH,
                "FetchPartition",
                partition=index,
                fetch_offset=position,
                partition_max_bytes=rng.choice((1, 200, 5000, 1 << 20)),
            )
            for index, position in self._positions.items()
            if self._told.get(index) != position
        ]
        if self._session_epoch != NO_SESSION_EPOCH:
            self._told = dict(self._positions)
        asked = world.struct(
            FETCH, "FetchTopic", topic="" if self._by_id else topic.facts.name, topic_id=topic.topic_id, partitions=partitions
        )
        request = world.request(
            FETCH,
            max_wait_ms=rng.choice((0, 20, 500)),
            min_bytes=rng.choice((0, 1, 1, 2000)),
            max_bytes=rng.choice((1, 1000, 1 << 20)),
            isolation_level=rng.randrange(2),
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=[asked] if partitions else [],
        )
        return self._client.send(FETCH, version, request)

    def _check(self, topic: TopicLedger, response: Message) -> None:
        """Hold an answer against the ledger. Raises SimulationFailure."""
        if response.error_code in SESSION_ERRORS or response.error_code in RETRIABLE:
            self._end_session()
            return
        if response.error_code:
            raise SimulationFailure(f"a fetch of {topic.facts.name} was answered with error {response.error_code}")
        if self._session_epoch != NO_SESSION_EPOCH:
            self._session_id = response.session_id
            self._session_epoch = self._session_epoch + 1 if response.session_id else NO_SESSION_EPOCH
            if not response.session_id:
                self._told = {}
        for answered in response.responses:
            if (bytes(answered.topic_id) if self._by_id else answered.topic) != (
                topic.topic_id if self._by_id else topic.facts.name
            ):
                raise SimulationFailure(f"a fetch of {topic.facts.name} was answered with {answered.topic} {answered.topic_id}")
            for answer in answered.partitions:
                if answer.partition_index not in self._positions:
                    raise SimulationFailure(f"{topic.facts.name}-{answer.partition_index} was not asked for")
                self._check_partition(topic, topic.partitions[answer.partition_index], answer)

    def _check_partition(self, topic: TopicLedger, partition: PartitionLedger, answer: Message) -> None:
        code = answer.error_code
        if topic.deletion_asked:
            return
        if code == error_codes.OFFSET_OUT_OF_RANGE:
            del self._positions[partition.index]
            self._views.pop(partition.index, None)
            return
        if code in RETRIABLE or (code == error_codes.UNSUPPORTED_COMPRESSION_TYPE and self._version < ZSTD_VERSION):
            return
        if code:
            partition.fail(f"a fetch was answered with error {code}")
        data = bytes(answer.records or b"")
        position, view = self._positions[partition.index], self._views.get(partition.index)
        expected, end = position, 0
        for batch in whole_batches(data):
            is_next = batch.base_offset == expected or (end == 0 and batch.base_offset <= position < batch.next_offset)
            is_behind = topic.facts.is_compacted and batch.base_offset > expected
            if not is_next and not is_behind and not partition.is_hole(expected, batch.base_offset):
                partition.fail(f"a fetch of offset {position} gave a batch of offset {batch.base_offset} for {expected}")
            for offset, record in placed_records(data, batch, is_compacted=topic.facts.is_compacted):
                if offset >= position:
                    if view is not None:
                        view.found[offset] = record.identity
                    partition.read(offset, record, "was read")
                    partition.read_epoch(offset, batch.partition_leader_epoch)
                    self.record_count += 1
                    if offset >= answer.high_watermark:
                        partition.fail(f"offset {offset} was read above the high watermark {answer.high_watermark}")
            expected, end = batch.next_offset, batch.end_position
        rest = data[end:]
        if len(rest) >= 12 and len(rest) >= 12 + int.from_bytes(rest[8:12], "big"):
            partition.fail(f"a fetch of offset {position} gave a broken batch at byte {end} of {len(data)}")
        self._positions[partition.index] = expected
        # What replaces a record that is gone may be younger than the reader's first look, but not than its last.
        is_whole = view is not None and expected >= max(view.goal, answer.high_watermark)
        if view is not None and is_whole and isinstance(partition, CompactedLedger):
            del self._views[partition.index]
            partition.end_view(view, self._world.clocks(), self._world.machine.disk.power_losses)
