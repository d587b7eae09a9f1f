"""A simulated consumer that assigns partitions to itself: it reads them and compares the records with the ledger.

    check                        details
    ---------------------------  ---------------------------------------------------------------------------------------
    offsets are continuous       the first batch has the requested offset, and each other one starts where the last one
                                 ended; in a compacted topic it may start later
    batches are not damaged      CRC and counts; only the last batch of a response may be incomplete
    records are those sent       kcli.simulator.partition_ledger
    records are committed        no record is at or above the high watermark of the response
    the last value of each key   in a compacted topic, if it was read from its start: kcli.simulator.compacted_ledger
      is read
    ListOffsets by time          it returns the first record with that or a later time, as far as is known

With a fetch session (KIP-227) it sends only changed positions; a partition that a response leaves out has no new records.
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
from kcli.simulator.sent_records import placed_records, whole_batches
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
        self._in_session: dict[int, int] = {}  # partition -> the position that the session knows
        self._by_id = False
        self._version = 0

    def run(self) -> Task[None]:
        """Read until the simulation ends. Raises SimulationFailure."""
        world, rng = self._world, self._rng
        yield from world.negotiate_versions(self._client)
        while not world.is_ending:
            if self._topic is None or self._topic.deletion_requested or rng.random() < 0.02:
                self._choose()
            if self._topic is None:
                yield PAUSE_MS
                continue
            yield from self._fetch_once(self._topic)
            if rng.random() < 0.05:
                yield from self._look_up_time(self._topic)
            yield rng.randrange(30) * world.pause_factor

    def run_keyed(self) -> Task[None]:
        """Read compacted topics from start to end, repeatedly. Raises SimulationFailure."""
        world, rng = self._world, self._rng
        yield from world.negotiate_versions(self._client)
        while not world.is_ending:
            topics = [topic for topic in world.ledger.live_topics() if topic.facts.is_compacted]
            if topics:
                yield from self.read_whole(rng.choice(topics))
            yield rng.randrange(100) * world.pause_factor

    def read_whole(self, topic: TopicLedger) -> Task[None]:
        """Read all partitions of a topic from the start to the last acknowledged record. Raises SimulationFailure."""
        self._topic, self._positions, self._views = topic, {}, {}
        self._end_session()
        for partition in topic.partitions:
            while partition.index not in self._positions and not self._is_over(topic):
                yield from self._seek(topic, partition, EARLIEST)
        while not self._is_over(topic) and self._is_behind(topic):
            yield from self._fetch_once(topic)

    def _is_over(self, topic: TopicLedger) -> bool:
        return topic.deletion_requested or self._world.is_ending

    def _is_behind(self, topic: TopicLedger) -> bool:
        return any(self._positions.get(partition.index, -1) < partition.readable_end for partition in topic.partitions)

    def _choose(self) -> None:
        topics = self._world.ledger.live_topics()
        self._topic = self._rng.choice(topics) if topics else None
        self._positions, self._views = {}, {}
        self._end_session()

    def _end_session(self) -> None:
        self._session_id, self._in_session = 0, {}
        self._session_epoch = 0 if self._rng.random() < 0.5 else NO_SESSION_EPOCH

    def _fetch_once(self, topic: TopicLedger) -> Task[None]:
        for partition in topic.partitions:
            if partition.index not in self._positions:
                yield from self._seek(topic, partition, LATEST if self._rng.random() < 0.2 else EARLIEST)
        if not self._positions:
            yield PAUSE_MS
            return
        if any(index not in self._positions for index in self._in_session):
            # The session contains a partition that has no position now.
            self._end_session()
        response = yield self._fetch(topic)
        if response is None:
            self._end_session()
            yield PAUSE_MS
            return
        self._check(topic, response)

    # ---------------------------------------------------------------------------------------------------------- seeking

    def _look_up_time(self, topic: TopicLedger) -> Task[None]:
        """Request the first offset at or after a time, and compare it with the known records."""
        partition = self._rng.choice(topic.partitions)
        known = {offset: partition.sent[value][0].timestamp for offset, value in partition.known.items()}
        if not known or topic.facts.is_log_append_time or topic.facts.has_retention:
            return
        timestamp = self._rng.choice(list(known.values())) + self._rng.randrange(-1, 2)
        response = yield self._client.send(LIST_OFFSETS, *self._list_offsets(topic, partition, timestamp))
        if response is None or topic.deletion_requested or response.topics[0].partitions[0].error_code:
            return
        found = response.topics[0].partitions[0].offset
        for offset, time in known.items():
            # A record of a compacted topic may have been removed.
            exists = (
                not topic.facts.is_compacted
                and partition.deleted_end <= offset < partition.acknowledged_end
                and offset in partition.known
            )
            if exists and time >= timestamp and not 0 <= found <= offset:
                partition.fail(f"ListOffsets of time {timestamp} returned {found}, but offset {offset} has the time {time}")
        if found in known and known[found] < timestamp:
            partition.fail(f"ListOffsets of time {timestamp} returned {found}, which has the time {known[found]}")

    def _list_offsets(self, topic: TopicLedger, partition: PartitionLedger, timestamp: int) -> tuple[int, Message]:
        """Return a version, and a request for it."""
        world = self._world
        wanted = world.struct(LIST_OFFSETS, "ListOffsetsPartition", partition_index=partition.index, timestamp=timestamp)
        of_topic = world.struct(LIST_OFFSETS, "ListOffsetsTopic", name=topic.facts.name, partitions=[wanted])
        return world.version(self._rng, LIST_OFFSETS), world.request(LIST_OFFSETS, replica_id=-1, topics=[of_topic])

    def _seek(self, topic: TopicLedger, partition: PartitionLedger, timestamp: int) -> Task[None]:
        """Set the position to the start or the end of a partition."""
        low, high = partition.low_watermark, partition.acknowledged_end
        clocks, power_losses = self._world.clocks(), self._world.power_losses
        response = yield self._client.send(LIST_OFFSETS, *self._list_offsets(topic, partition, timestamp))
        if response is None:
            yield PAUSE_MS
            return
        answer = response.topics[0].partitions[0]
        if answer.error_code in (*RETRIABLE, error_codes.OFFSET_NOT_AVAILABLE):
            yield PAUSE_MS
            return
        if answer.error_code:
            raise SimulationFailure(f"{partition}: ListOffsets returned error {answer.error_code}")
        if topic.deletion_requested:
            return
        # Changes while the request was in flight may be visible or not; a power loss changes both ends.
        low, high = min(low, partition.low_watermark), min(high, partition.acknowledged_end)
        if answer.offset < (high if timestamp == LATEST else low):
            partition.fail(f"ListOffsets of {timestamp} returned {answer.offset}; the log starts at {low} and ends at {high}")
        self._positions[partition.index] = answer.offset
        self._views.pop(partition.index, None)
        if isinstance(partition, CompactedLedger) and timestamp == EARLIEST:
            self._views[partition.index] = partition.begin_view(answer.offset, clocks, power_losses)

    # --------------------------------------------------------------------------------------------------------- fetching

    def _fetch(self, topic: TopicLedger) -> Pending:
        world, rng = self._world, self._rng
        version = world.version(rng, FETCH, SESSIONS_VERSION if self._session_id else 0)
        if self._session_id and (version >= TOPIC_IDS_VERSION) != self._by_id:
            # A session uses either topic names or topic ids.
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
            if self._in_session.get(index) != position
        ]
        if self._session_epoch != NO_SESSION_EPOCH:
            self._in_session = dict(self._positions)
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
        """Compare a response with the ledger. Raises SimulationFailure."""
        if response.error_code in SESSION_ERRORS or response.error_code in RETRIABLE:
            self._end_session()
            return
        if response.error_code:
            raise SimulationFailure(f"a fetch of {topic.facts.name} returned error {response.error_code}")
        if self._session_epoch != NO_SESSION_EPOCH:
            self._session_id = response.session_id
            self._session_epoch = self._session_epoch + 1 if response.session_id else NO_SESSION_EPOCH
            if not response.session_id:
                self._in_session = {}
        for answered in response.responses:
            if (bytes(answered.topic_id) if self._by_id else answered.topic) != (
                topic.topic_id if self._by_id else topic.facts.name
            ):
                raise SimulationFailure(f"a fetch of {topic.facts.name} returned topic {answered.topic} {answered.topic_id}")
            for answer in answered.partitions:
                if answer.partition_index not in self._positions:
                    raise SimulationFailure(f"a fetch returned {topic.facts.name}-{answer.partition_index}, not requested")
                self._check_partition(topic, topic.partitions[answer.partition_index], answer)

    def _check_partition(self, topic: TopicLedger, partition: PartitionLedger, answer: Message) -> None:
        code = answer.error_code
        if topic.deletion_requested:
            return
        if code == error_codes.OFFSET_OUT_OF_RANGE:
            del self._positions[partition.index]
            self._views.pop(partition.index, None)
            return
        if code in RETRIABLE or (code == error_codes.UNSUPPORTED_COMPRESSION_TYPE and self._version < ZSTD_VERSION):
            return
        if code:
            partition.fail(f"a fetch returned error {code}")
        data = bytes(answer.records or b"")
        position, view = self._positions[partition.index], self._views.get(partition.index)
        expected, end = position, 0
        for batch in whole_batches(data):
            is_next = batch.base_offset == expected or (end == 0 and batch.base_offset <= position < batch.next_offset)
            is_behind = topic.facts.is_compacted and batch.base_offset > expected
            if not is_next and not is_behind and not partition.is_hole(expected, batch.base_offset):
                partition.fail(
                    f"a fetch of offset {position} returned a batch with offset {batch.base_offset}, expected {expected}"
                )
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
            partition.fail(f"a fetch of offset {position} returned a damaged batch at byte {end} of {len(data)}")
        self._positions[partition.index] = expected
        # The record that replaces a removed one may be newer than the start of the reading, but is below its end.
        is_whole = view is not None and expected >= max(view.goal, answer.high_watermark)
        if view is not None and is_whole and isinstance(partition, CompactedLedger):
            del self._views[partition.index]
            partition.end_view(view, self._world.clocks(), self._world.power_losses)
