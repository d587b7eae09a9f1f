"""A simulated producer: requests for several partitions, several requests in flight, retries as real clients do.

    kind        acks        after a timeout or a broken link
    ----------  ----------  -----------------------------------------------------------------------------------------
    plain       0, 1, -1    retries the batch a few times (not with acks=0), so its records may be written twice
    idempotent  -1          retries with the same sequence until there is a response; if the broker has forgotten the
                            sequence, it drops the batch and takes a new producer id: records are written once or never

Only idempotent producers send tombstones to compacted topics: each is written once, so it is known when it may be removed.

OUT_OF_ORDER_SEQUENCE_NUMBER is a failure unless acknowledged records may have been lost in a power loss.
"""

from __future__ import annotations

from collections.abc import Container
from random import Random
from typing import NamedTuple

from kcli.format.codec_streams import ZSTD
from kcli.format.record_batch import read_header
from kcli.protocol import error_codes
from kcli.protocol.apis import INIT_PRODUCER_ID, PRODUCE
from kcli.protocol.message import Message
from kcli.simulator.client import Pending, Task
from kcli.simulator.ledger import TopicLedger
from kcli.simulator.partition_ledger import PartitionLedger, SimulationFailure
from kcli.simulator.sent_records import CODECS, RecordMaker, SentRecord, encode_batch
from kcli.simulator.world import PAUSE_MS, World

TOPIC_IDS_VERSION = 13
ZSTD_VERSION = 7
MAX_IN_FLIGHT = 5
PLAIN_RETRIES = 3
# message.timestamp.after.max.ms: a broker rejects a record that is further ahead of its clock.
MAX_AHEAD_MS = 3_600_000
RETRIABLE = frozenset(
    (
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        error_codes.UNKNOWN_TOPIC_ID,
        error_codes.LEADER_NOT_AVAILABLE,
        error_codes.NOT_LEADER_OR_FOLLOWER,
        error_codes.NOT_CONTROLLER,
        error_codes.REQUEST_TIMED_OUT,
        error_codes.KAFKA_STORAGE_ERROR,
    )
)
# The broker does not know the producer id or its sequence any more.
FORGOTTEN = frozenset(
    (
        error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
        error_codes.UNKNOWN_PRODUCER_ID,
        error_codes.INVALID_PRODUCER_EPOCH,
    )
)


class ProducedBatch(NamedTuple):
    """A batch that is encoded once and may be sent several times."""

    topic: TopicLedger
    partition: PartitionLedger
    records: list[SentRecord]
    data: bytes
    start: int  # the number of the node's start when the batch was encoded


class SimulatedProducer:
    """One producer."""

    def __init__(self, world: World, name: str, rng: Random, *, is_idempotent: bool, is_keyed: bool = False) -> None:
        self.acknowledged_batches = 0
        self._world = world
        self._rng = rng
        self._client = world.client(name)
        self._maker = RecordMaker(name, rng)
        self._is_idempotent = is_idempotent
        self._is_keyed = is_keyed  # it sends only to compacted topics
        self._acks = -1 if is_idempotent else rng.choice((0, 1, -1))
        self._producer_id = -1
        self._epoch = -1
        self._sequences: dict[PartitionLedger, int] = {}
        self._losses: dict[PartitionLedger, int] = {}  # the losses of a partition at its last acknowledgement
        self._known: set[PartitionLedger] = set()  # the partitions that have acknowledged a batch

    def run(self) -> Task[None]:
        """Produce until the simulation ends. Raises SimulationFailure."""
        world, rng = self._world, self._rng
        yield from world.negotiate_versions(self._client)
        while not world.is_ending:
            if not self._topics():
                yield PAUSE_MS
                continue
            if self._is_idempotent and self._producer_id < 0:
                yield from self._get_producer_id()
                continue
            requests = [self._make_request()]
            if all(batch.partition in self._known for batch in requests[0]):
                # A broker may reject the first batch to a new partition because it is not ready, and then accept the second.
                requests += [self._make_request(self._known) for _ in range(rng.choice((0, 0, 1, MAX_IN_FLIGHT - 1)))]
            in_flight = [(batches, self._send(batches)) for batches in requests]
            failed: list[ProducedBatch] = []
            for batches, pending in in_flight:
                failed += self._settle(batches, (yield pending))
            yield from self._retry(failed)
            yield rng.randrange(60) * world.pause_factor

    def _topics(self) -> list[TopicLedger]:
        topics = self._world.ledger.live_topics()
        return [topic for topic in topics if topic.facts.is_compacted] if self._is_keyed else topics

    def _get_producer_id(self) -> Task[None]:
        version = self._world.version(self._rng, INIT_PRODUCER_ID)
        request = self._world.request(INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=60_000)
        response = yield self._client.send(INIT_PRODUCER_ID, version, request)
        if response is None or response.error_code:
            yield PAUSE_MS
            return
        self._world.ledger.add_producer_id(response.producer_id)
        self._producer_id, self._epoch = response.producer_id, response.producer_epoch
        self._sequences.clear()
        self._losses.clear()

    # ---------------------------------------------------------------------------------------------------------- sending

    def _make_request(self, among: Container[PartitionLedger] | None = None) -> list[ProducedBatch]:
        rng = self._rng
        partitions = {
            partition: topic
            for topic in self._topics()
            for partition in topic.partitions
            if among is None or partition in among
        }
        wanted = min(rng.choice((1, 1, 2, 3)), len(partitions))
        chosen = dict(rng.sample(list(partitions.items()), wanted))
        return [self._make_batch(topic, partition) for partition, topic in chosen.items()]

    def _make_batch(self, topic: TopicLedger, partition: PartitionLedger) -> ProducedBatch:
        make = self._maker.make
        if topic.facts.is_compacted:
            make = self._maker.make_keyed if self._is_idempotent else self._maker.make_values
        records = make(self._rng.choice((1, 1, 2, 5)), self._world.virtual_time.now_ms)
        codec = self._rng.choice(CODECS)
        if self._is_idempotent:
            sequence = self._sequences.get(partition, 0)
            self._sequences[partition] = sequence + len(records)
            self._losses.setdefault(partition, partition.losses)
            data = encode_batch(records, codec, self._producer_id, self._epoch, sequence)
        else:
            data = encode_batch(records, codec)
        partition.send(records, is_idempotent=self._is_idempotent)
        return ProducedBatch(topic, partition, records, data, self._world.start_count)

    def _send(self, batches: list[ProducedBatch]) -> Pending:
        world = self._world
        version = world.version(self._rng, PRODUCE)
        if any(read_header(batch.data).codec == ZSTD for batch in batches):
            version = max(version, ZSTD_VERSION)
        by_topic: dict[TopicLedger, list[Message]] = {}
        for batch in batches:
            part = world.struct(PRODUCE, "PartitionProduceData", index=batch.partition.index, records=batch.data)
            by_topic.setdefault(batch.topic, []).append(part)
        topics = [
            world.struct(
                PRODUCE,
                "TopicProduceData",
                name="" if version >= TOPIC_IDS_VERSION else topic.facts.name,
                topic_id=topic.topic_id,
                partition_data=parts,
            )
            for topic, parts in by_topic.items()
        ]
        request = world.request(PRODUCE, transactional_id=None, acks=self._acks, timeout_ms=1000, topic_data=topics)
        return self._client.send(PRODUCE, version, request, has_response=self._acks != 0)

    # -------------------------------------------------------------------------------------------------------- responses

    def _settle(self, batches: list[ProducedBatch], response: Message | None) -> list[ProducedBatch]:
        """Process a response; return the batches that are not acknowledged. Raises SimulationFailure."""
        if response is None:
            return [] if self._acks == 0 else batches
        answers = {
            (topic.name, bytes(topic.topic_id), answer.index): answer
            for topic in response.responses
            for answer in topic.partition_responses
        }
        by_id = response.schema_version >= TOPIC_IDS_VERSION
        failed = []
        for batch in batches:
            name, topic_id = ("", bytes(batch.topic.topic_id)) if by_id else (batch.topic.facts.name, bytes(16))
            answer = answers.get((name, topic_id, batch.partition.index))
            if answer is None:
                raise SimulationFailure(f"{batch.partition} is missing in the response to a produce request: {response}")
            if not self._is_settled(batch, answer):
                failed.append(batch)
        return failed

    def _is_settled(self, batch: ProducedBatch, answer: Message) -> bool:
        """Return True if a batch is acknowledged. Raises SimulationFailure for an error that is not allowed."""
        code = answer.error_code
        if code == error_codes.NONE:
            batch.partition.acknowledge(answer.base_offset, batch.records)
            self._known.add(batch.partition)
            self._losses[batch.partition] = batch.partition.losses
            self.acknowledged_batches += 1
            return True
        if code == error_codes.DUPLICATE_SEQUENCE_NUMBER and self._is_idempotent:
            return True
        if code in FORGOTTEN and self._is_idempotent:
            # This is expected for a batch after one that failed; `_retry` checks it when it sends the batch again.
            return False
        if code in RETRIABLE or (code == error_codes.INVALID_TIMESTAMP and self._is_clock_behind()):
            return False
        raise SimulationFailure(f"{batch.partition}: a valid batch was rejected with error {code}: {answer.error_message}")

    def _is_clock_behind(self) -> bool:
        """Return True if the broker's clock was so far behind that it may reject the client's timestamps."""
        return self._world.max_behind_ms >= MAX_AHEAD_MS

    def _retry(self, failed: list[ProducedBatch]) -> Task[None]:
        """Send the failed batches again, one after the other, in their order."""
        for batch in failed:
            left = PLAIN_RETRIES
            while not batch.topic.deletion_requested and not self._world.is_ending:
                if not self._is_idempotent and left == 0:
                    break
                left -= 1
                yield self._rng.randrange(PAUSE_MS)
                response = yield self._send([batch])
                if not self._settle([batch], response):
                    break
                if self._is_forgotten(response):
                    self._drop_producer_id(batch, failed)
                    return
            else:
                self._producer_id = -1
                return

    def _is_forgotten(self, response: Message | None) -> bool:
        if response is None or not self._is_idempotent:
            return False
        return response.responses[0].partition_responses[0].error_code in FORGOTTEN

    def _drop_producer_id(self, batch: ProducedBatch, failed: list[ProducedBatch]) -> None:
        """Drop the producer id after the broker did not accept a retried batch. Raises SimulationFailure without a reason.

        A broker remembers five batches of each producer, but after a restart only the last one, as Kafka's snapshots have it.
        So after a restart it cannot recognise a retry of an earlier batch.
        """
        followed = any(other.partition is batch.partition for other in failed[failed.index(batch) + 1 :])
        if followed and batch.start != self._world.start_count:
            self._producer_id = -1
            return
        is_excused = self._losses[batch.partition] != batch.partition.losses or batch.partition.facts.has_retention
        if not is_excused and not self._world.faults_allowed and not batch.topic.deletion_requested:
            raise SimulationFailure(f"{batch.partition}: a retry was rejected as out of order, though nothing was lost")
        self._producer_id = -1
