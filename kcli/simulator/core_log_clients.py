"""A producer, a consumer and an administrator of the workload of logs on kcli's own client, next to the raw ones.

    client            settings                         what is checked
    ----------------  -------------------------------  -------------------------------------------------------------------
    CoreLogProducer   acks 0, 1 or all, not            an acknowledged record is at its offset, unchanged
                      idempotent, retries; of topics
                      with several replicas acks=all
    CoreLogConsumer   auto.offset.reset=none, so that  the offsets of a partition are continuous, from a seek or an error to
                      each jump is an error that the   the next one; each record was sent to it, and is unchanged. After a
                      application gets                 power failure: no record of a later leader epoch comes while the one
                                                       before it was lost, without an error (KIP-320)
    CoreLogAdmin      of the raw administrator         what the raw one checks, with the operations of Admin: an operation
                                                       ends in its result, in an allowed error, or in a timeout

None of these producers is idempotent. After a power failure a broker may not know a producer any more; the producer then
writes its last batches again with the next epoch, as the Java client does. The ledger would take the second copies for a fault
of the broker. The coordination workload has idempotent producers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import TypeVar

from kcli.client.admin.configs import (
    AlterConfigOp,
    AlterOperation,
    ConfigResource,
    ResourceType,
    describe_configs,
    incremental_alter_configs,
)
from kcli.client.admin.driver import AdminCore
from kcli.client.admin.operation import Operation as AdminOperation
from kcli.client.admin.operation import Outcomes
from kcli.client.admin.partitions import delete_records
from kcli.client.admin.topics import (
    NewPartitions,
    NewTopic,
    TopicDescription,
    create_partitions,
    create_topics,
    delete_topics,
    describe_topics,
    list_topics,
)
from kcli.client.client_config import ClientConfig
from kcli.client.consumer.consumer import ConsumerCore
from kcli.client.consumer.consumer_config import ConsumerConfig
from kcli.client.consumer.consumer_record import ConsumerRecord
from kcli.client.consumer.subscription_state import EARLIEST, LATEST
from kcli.client.errors import ClientError, KafkaError, KafkaTimeoutError, OffsetOutOfRangeError
from kcli.client.producer.producer import ProducerCore, Record
from kcli.client.producer.producer_batch import RecordMetadata
from kcli.client.producer.producer_config import ProducerConfig
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import TopicPartition
from kcli.format.records import Header
from kcli.protocol import error_codes
from kcli.protocol.apis import CREATE_TOPICS, INCREMENTAL_ALTER_CONFIGS
from kcli.simulator.administrator import Administrator, Answer, FoundTopic
from kcli.simulator.client import Task
from kcli.simulator.core_client import CoreClient
from kcli.simulator.ledger import TopicLedger
from kcli.simulator.partition_ledger import PartitionLedger, SimulationFailure
from kcli.simulator.producer import MAX_AHEAD_MS, RETRIABLE
from kcli.simulator.sent_records import RecordMaker, SentRecord
from kcli.simulator.world import PAUSE_MS, World

_Result = TypeVar("_Result")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
# A record of a topic that was deleted must not reach a later one of its name: less than the administrator waits.
DELIVERY_MS = 5000
MAX_UNDER_WAY = 30  # records
POLL_MS = 200
# The topic, or a part of its data, is not there now.
_PASSING = RETRIABLE | {error_codes.NETWORK_EXCEPTION, error_codes.OFFSET_NOT_AVAILABLE, error_codes.UNKNOWN_LEADER_EPOCH}


def _client(world: World, name: str, rng: Random, default_api_timeout_ms: int = 60_000) -> CoreClient:
    config = ClientConfig(
        request_timeout_ms=rng.choice((500, 2000)),
        retry_backoff_ms=rng.choice((5, 100)),
        reconnect_backoff_max_ms=rng.choice((50, 500)),
        socket_connection_setup_timeout_ms=1000,
        metadata_max_age_ms=rng.choice((1000, 300_000)),
        allow_auto_create_topics=False,
        default_api_timeout_ms=default_api_timeout_ms,
    )
    return world.core_client(name, rng, config)


class CoreLogProducer:
    """One producer that is not idempotent: its records may be written twice. `acks` are random by default."""

    def __init__(self, world: World, name: str, rng: Random, acks: str | None = None) -> None:
        self.acknowledged_batches = 0  # counts records, each in its batch or in one with others
        self._world = world
        self._name = name
        self._rng = rng
        self._maker = RecordMaker(name, rng)
        self._acks = acks
        self._under_way = 0

    def run(self) -> Task[None]:
        """Produce until the simulation ends. Raises SimulationFailure."""
        world, rng = self._world, self._rng
        client = _client(world, self._name, rng)
        acks, batch_size = rng.choice(("0", "1", "all")), rng.choice((0, 200, 1000))
        acks = self._acks or acks
        config = ProducerConfig(
            acks=acks,
            enable_idempotence=False,
            batch_size=batch_size,
            kcli_max_batch_size=4 * batch_size,
            linger_ms=rng.choice((0, 20)),
            max_block_ms=1000,
            delivery_timeout_ms=DELIVERY_MS,
            compression_type=rng.choice(("none", "gzip", "snappy", "lz4", "zstd")),
        )
        core = ProducerCore(client.network, config, client.log)
        client.run(core.poll)
        while not world.is_ending:
            partitions = [
                (topic, one) for topic in world.ledger.live_topics() for one in topic.partitions if not topic.facts.is_compacted
            ]
            for topic, partition in rng.sample(partitions, min(2, len(partitions))):
                for sent in self._maker.make(rng.choice((1, 1, 2, 5)), client.now_ms):
                    yield from self._send(client, core, topic, partition, sent, config.acks)
            if self._under_way > MAX_UNDER_WAY or rng.random() < 0.2:
                yield from client.ask(core.flush)
            yield rng.randrange(1, 120) * world.pause_factor
        yield from client.ask(core.flush)
        client.close()

    def _send(
        self,
        client: CoreClient,
        core: ProducerCore,
        topic: TopicLedger,
        partition: PartitionLedger,
        sent: SentRecord,
        acks: str,
    ) -> Task[None]:
        if topic.deletion_requested:
            return
        partition.send([sent], is_idempotent=False)
        self._under_way += 1

        def delivered(found: RecordMetadata | None, error: Exception | None) -> None:
            self._under_way -= 1
            if found is not None and acks != "0" and found.offset >= 0:
                partition.acknowledge(found.offset, [sent])
                self.acknowledged_batches += 1
            elif error is not None:
                self._check(error, topic)

        headers = tuple((header.key, header.value) for header in sent.headers)
        record = Record(topic.facts.name, sent.value, sent.key, headers, partition.index, sent.timestamp, delivered)
        error = yield from client.ask(partial(core.send, record))
        if error is not None:
            delivered(None, error)

    def _check(self, error: Exception, topic: TopicLedger) -> None:
        """Raise SimulationFailure for an error that a valid record may not have."""
        if topic.deletion_requested or isinstance(error, KafkaTimeoutError):
            return
        is_behind = self._world.max_behind_ms >= MAX_AHEAD_MS
        allowed = _PASSING | {error_codes.INVALID_TIMESTAMP} if is_behind else _PASSING
        if not (isinstance(error, KafkaError) and error.code in allowed):
            raise SimulationFailure(f"{self._name}: a valid record was not written: {type(error).__name__}: {error}")


class CoreLogConsumer:
    """One consumer without a group, which reads one topic after the other. `is_replicated`: no power loss takes a record."""

    def __init__(self, world: World, name: str, rng: Random, *, is_replicated: bool = False) -> None:
        self.record_count = 0
        self._world = world
        self._name = name
        self._rng = rng
        self._client: CoreClient
        self._core: ConsumerCore
        self._topic: TopicLedger | None = None
        self._next: dict[int, int] = {}  # the offset that must come next, of partitions that have had a record
        self._last: dict[int, tuple[ConsumerRecord, bytes]] = {}  # the last record of partitions, and its identity
        self._is_replicated = is_replicated
        self._power_losses = 0
        self._is_after_loss = False  # the log may not have the records any more that the client has

    def run(self) -> Task[None]:
        """Read until the simulation ends. Raises SimulationFailure."""
        world, rng = self._world, self._rng
        self._begin()
        while not world.is_ending:
            self._is_after_loss = self._is_after_loss or self._has_lost()
            self._power_losses = world.power_losses
            if self._topic is None or self._topic.deletion_requested or rng.random() < (0.05 if self._is_after_loss else 0.02):
                self._choose()
            if self._topic is None:
                yield PAUSE_MS
                continue
            records = yield from self._poll(rng.randrange(POLL_MS))
            if not self._topic.deletion_requested:
                for record in records:
                    self._take(self._topic, record)
            yield rng.randrange(1, 60) * world.pause_factor
        self._client.close()

    def _begin(self) -> None:
        rng = self._rng
        self._client = _client(self._world, self._name, rng)
        config = ConsumerConfig(
            auto_offset_reset="none",
            max_poll_records=rng.choice((1, 7, 500)),
            fetch_max_wait_ms=rng.choice((0, 100)),
            max_partition_fetch_bytes=rng.choice((1, 500, 1 << 20)),
        )
        self._core = ConsumerCore(self._client.network, config)
        self._client.run(self._core.poll)

    def read_whole(self, topic: TopicLedger) -> Task[None]:
        """Read a topic from its start until there is everything that was acknowledged. Raises SimulationFailure."""
        self._begin()
        self._is_after_loss, self._power_losses = False, self._world.power_losses
        self._assign(topic)
        ends = {one.index: one.readable_end for one in topic.partitions}
        reached: dict[int, int] = dict.fromkeys(ends, 0)
        while any(reached[index] < end for index, end in ends.items()):
            for record in (yield from self._poll(POLL_MS)):
                self._take(topic, record)
            for index in ends:
                position = yield from self._client.ask(
                    partial(self._core.position, (topic.facts.name, index), timeout_ms=POLL_MS)
                )
                if isinstance(position, int):
                    reached[index] = position
        self._client.close()

    def _has_lost(self) -> bool:
        """Return whether power was lost since the last poll began."""
        return self._power_losses != self._world.power_losses and not self._is_replicated

    def _choose(self) -> None:
        """Read another topic, from the start or the end of its partitions."""
        call, core = self._client.call, self._core
        self._is_after_loss = False
        if self._topic is not None:
            call(core.unsubscribe)
        topics = self._world.ledger.live_topics()
        self._topic, self._next, self._last = (self._rng.choice(topics) if topics else None), {}, {}
        if self._topic is not None:
            self._assign(self._topic, 0.2)

    def _assign(self, topic: TopicLedger, latest_share: float = 0.0) -> None:
        partitions = [(topic.facts.name, one.index) for one in topic.partitions]
        self._client.call(partial(self._core.assign, partitions))
        for where in partitions:
            self._reset(where, LATEST if self._rng.random() < latest_share else EARLIEST)

    def _reset(self, where: TopicPartition, strategy: object) -> None:
        reset: Callable[[int], None] = partial(self._core.reset, [where], strategy)  # type: ignore[arg-type]
        self._client.call(reset)
        self._next.pop(where[1], None)
        self._last.pop(where[1], None)

    def _poll(self, timeout_ms: int) -> Task[list[ConsumerRecord]]:
        client, core = self._client, self._core
        client.call(core.begin_poll)
        end_ms = client.now_ms + timeout_ms
        while True:
            try:
                client.call(core.raise_error)
            except ClientError as error:
                self._failed(error)
            records = client.call(core.collect)
            left_ms = end_ms - client.now_ms
            if records or left_ms <= 0:
                return records
            yield client.start(partial(core.await_work, timeout_ms=left_ms))
            client.call(core.polled)

    def _failed(self, error: ClientError) -> None:
        """Go on after an error of a position. Raises SimulationFailure for one that is not allowed."""
        self._world.trace.add(self._name, f"{type(error).__name__}: {error}")
        if isinstance(error, OffsetOutOfRangeError):
            for where, offset in error.offsets.items():  # DeleteRecords, retention, or records that a power loss took
                self._check_range(where, offset)
                self._reset(where, EARLIEST)
        elif not (isinstance(error, KafkaTimeoutError) or (isinstance(error, KafkaError) and error.code in _PASSING)):
            raise SimulationFailure(f"{self._name}: a poll has failed: {type(error).__name__}: {error}")

    def _check_range(self, where: TopicPartition, offset: int) -> None:
        """Raise SimulationFailure if an offset of a topic with several replicas is gone that must be there."""
        topic = self._topic
        if not self._is_replicated or topic is None or topic.facts.has_retention or topic.deletion_requested:
            return
        partition = topic.partitions[where[1]]
        if topic.facts.name == where[0] and offset >= partition.deleted_end:
            partition.fail(f"{self._name} has read up to offset {offset}, which is out of range now")

    def _take(self, topic: TopicLedger, record: ConsumerRecord) -> None:
        """Compare a record with the ledger. Raises SimulationFailure."""
        ledger, offset = topic.partitions[record.partition], record.offset
        assert isinstance(record.key, bytes | None) and isinstance(record.value, bytes | None)
        headers = tuple(Header(key.encode(), value) for key, value in record.headers)
        sent = SentRecord(record.timestamp, record.key, record.value, headers)
        self.record_count += 1
        if self._is_after_loss or self._has_lost():
            self._check_truncation(ledger, record)
        else:
            expected = self._next.get(record.partition, offset)
            is_behind = topic.facts.is_compacted and offset > expected
            if record.topic != topic.facts.name or not (offset == expected or is_behind or ledger.is_hole(expected, offset)):
                ledger.fail(f"{self._name} got offset {offset} of {record.topic}, but {expected} is expected")
            ledger.read(offset, sent, "was read")
            ledger.read_epoch(offset, record.leader_epoch)
        self._next[record.partition] = offset + 1
        self._last[record.partition] = record, sent.identity

    def _check_truncation(self, ledger: PartitionLedger, record: ConsumerRecord) -> None:
        """Check that the record before this one was not lost, unless both were fetched before. Raises SimulationFailure."""
        if record.partition not in self._last:
            return
        before, identity = self._last[record.partition]
        found = ledger.known.get(before.offset, identity)
        if record.leader_epoch > before.leader_epoch and found != identity:
            ledger.fail(
                f"{self._name} got offset {record.offset} and no error, though a power failure took the record before it: "
                f"offset {before.offset} was {identity!r}, and is {found!r}"
            )


class CoreLogAdmin(Administrator):
    """One administrator with topics of its own, which also alters and deletes those of the raw one."""

    name = "ca"
    topic_prefix = "own"

    def __init__(self, world: World, rng: Random, replication_factor: int = 1) -> None:
        super().__init__(world, rng)
        self._replication_factor = replication_factor
        self._process = _client(world, self.name, rng, default_api_timeout_ms=rng.choice((1500, 6000)))
        self._core = AdminCore(self._process.network)
        self._process.run(self._core.poll)

    def _begin(self) -> Task[None]:
        while not self._world.versions:  # of the raw administrator, whose checks ask for them
            yield PAUSE_MS

    def _ended(self) -> None:
        self._process.close()

    def _ask(self, operation: AdminOperation[_Result]) -> Task[_Result | None]:
        """Execute an operation; return its result, None after a timeout. Raises SimulationFailure."""
        result: _Result | ClientError = yield from self._process.ask(partial(self._core.start, operation))
        if isinstance(result, KafkaTimeoutError):
            return None
        if isinstance(result, ClientError):
            raise SimulationFailure(f"{self.name}: {type(result).__name__}: {result}")
        return result

    def _answer(
        self, operation: AdminOperation[Outcomes[_Key, _Value]], key: _Key
    ) -> Task[tuple[Answer, _Value | None] | None]:
        """Return the answer about one key, and its value; None after a timeout. Raises SimulationFailure."""
        outcomes = yield from self._ask(operation)
        outcome = None if outcomes is None else outcomes[key]
        if outcomes is None or isinstance(outcome, KafkaTimeoutError):
            return None
        if isinstance(outcome, KafkaError):
            return Answer(outcome.code, str(outcome)), None
        if isinstance(outcome, ClientError):
            raise SimulationFailure(f"{self.name}: {type(outcome).__name__}: {outcome}")
        return Answer(error_codes.NONE), outcome

    def _ask_to_create(self, name: str, partition_count: int, configs: Mapping[str, str]) -> Task[Answer | None]:
        lost = self._process.stray_counts[CREATE_TOPICS]
        new = NewTopic(name, partition_count, self._replication_factor, configs=configs)
        found = yield from self._answer(create_topics([new]), name)
        if self._process.stray_counts[CREATE_TOPICS] > lost or len(self._world.machines) > 1:
            self._world.ledger.may_be_created_again.add(name)
            if found is not None and found[0].code == error_codes.TOPIC_ALREADY_EXISTS:
                return None
        return found and found[0]

    def _asking_to_delete(self, topic: TopicLedger) -> Callable[[], Task[Answer | None]]:
        key = topic.facts.name if self._rng.random() < 0.5 else Uuid(topic.topic_id)

        def ask() -> Task[Answer | None]:
            found = yield from self._answer(delete_topics([key]), key)
            return found and found[0]

        return ask

    def _ask_to_grow(self, topic: TopicLedger, count: int) -> Task[Answer | None]:
        name = topic.facts.name
        found = yield from self._answer(create_partitions({name: NewPartitions(count)}), name)
        return found and found[0]

    def _ask_to_delete_records(self, topic: TopicLedger, partition: PartitionLedger, offset: int) -> Task[Answer | None]:
        where = topic.facts.name, partition.index
        found = yield from self._answer(delete_records({where: offset}), where)
        if found is None or found[1] is None:
            return found and found[0]
        return found[0]._replace(low_watermark=found[1])

    def _ask_to_alter(self, topic: TopicLedger, name: str, value: str) -> Task[Answer | None]:
        lost = self._process.stray_counts[INCREMENTAL_ALTER_CONFIGS]
        resource = ConfigResource(ResourceType.TOPIC, topic.facts.name)
        change = AlterConfigOp(name, AlterOperation.SET, value)
        found = yield from self._answer(incremental_alter_configs({resource: [change]}), resource)
        # A request that was lost may be applied later, when the value is another one.
        is_lost = self._process.stray_counts[INCREMENTAL_ALTER_CONFIGS] > lost
        return None if found is None or is_lost else found[0]

    def _ask_for_topics(self) -> Task[list[FoundTopic] | None]:
        listed = yield from self._ask(list_topics())
        described = None if listed is None else (yield from self._ask(describe_topics(listed)))
        if listed is None or described is None:
            return None
        found = {name: one for name, one in described.items() if isinstance(one, TopicDescription)}
        return [FoundTopic(bytes(one.topic_id), name, len(one.partitions)) for name, one in found.items()]

    def _ask_for_configs(self, topic: TopicLedger) -> Task[dict[str, str | None] | None]:
        resource = ConfigResource(ResourceType.TOPIC, topic.facts.name)
        found = yield from self._answer(describe_configs([resource]), resource)
        if found is None or found[1] is None:
            return None
        return {name: entry.value for name, entry in found[1].items()}
