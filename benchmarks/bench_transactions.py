"""Compares transactions and share groups of `kcli serve` with Apache Kafka's.

    python -m benchmarks.bench_transactions [--brokers kcli,kafka] [--rows single,thousand,share] [--work DIR]

    row       measurement
    --------  ----------------------------------------------------------------------------------------------------------
    single    transactions of one record per second of the broker's CPU time, by one producer, transaction.version 2
    thousand  the broker's CPU time for a transaction of 1,000 records of 100 bytes, compared with a plain produce of the same
              records: in one batch, and in 7 requests with batches of 16 KB, as producers send them by default
    share     records per second of the broker's CPU time that one member of a share group fetches and acknowledges: with a
              request for each record, and with an acknowledgement for each record in the next fetch

One line of JSON per figure on stdout. Client and broker share the machine, so CPU time varies less than elapsed time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.brokers import Broker, Client, batch, measure_rows, report, started
from kcli.format.record_batch import TRANSACTIONAL_FLAG, NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.protocol import apis
from kcli.protocol.apis import API_KEYS
from kcli.protocol.message import Message

SETTINGS = (
    "offsets.topic.replication.factor=1",
    "transaction.state.log.replication.factor=1",
    "transaction.state.log.min.isr=1",
    "transaction.state.log.num.partitions=4",
    "share.coordinator.state.topic.replication.factor=1",
    "share.coordinator.state.topic.min.isr=1",
    "share.coordinator.state.topic.num.partitions=4",
    "group.share.record.lock.duration.ms=60000",
)
PRODUCE_VERSION, END_VERSION, INIT_VERSION, SHARE_VERSION = 12, 5, 4, 1
WARM = {"kcli": 200, "kafka": 5_000}  # a JVM compiles what runs often
TRANSACTIONS, LARGE_TRANSACTIONS, SHARED_RECORDS = 3_000, 1_000, 20_000
RECORD_BYTES, BATCH_RECORDS = 100, 145  # 145 records of 100 bytes are 16 KB
FETCHED_RECORDS = 500


def new(key: int, /, **fields: Any) -> Message:
    """Make a request."""
    return API_KEYS[key].request.new(**fields)


@contextmanager
def serving(name: str, work: Path) -> Iterator[tuple[Broker, Client]]:
    """Yield a broker with topic t of one partition, and a connection to it."""
    with started(Broker(name, Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work)), SETTINGS)) as broker:
        client = Client(broker.port)
        client.create_topic("t", 1)
        client.send_until_taken(client.produce_frame("t", 0, batch(1, RECORD_BYTES)))
        yield broker, client
        client.close()


def retry(client: Client, key: int, version: int, request: Message) -> Message:
    """Send a request until its answer has no error: coordinators start late."""
    for _ in range(1200):
        answer: Message = client.ask(key, version, request)
        if not answer.error_code:
            return answer
        time.sleep(0.05)
    raise RuntimeError(f"{API_KEYS[key].name} fails with {answer.error_code}")


class Producer:
    """A producer that sends batches of given sizes, in transactions if it has a transactional id."""

    def __init__(self, client: Client, transactional_id: str | None) -> None:
        self.client = client
        self.transactional_id = transactional_id
        if transactional_id is not None:
            retry(client, apis.FIND_COORDINATOR, 3, new(apis.FIND_COORDINATOR, key=transactional_id, key_type=1))
        fields = {"transactional_id": transactional_id, "transaction_timeout_ms": 60_000}
        answer = retry(client, apis.INIT_PRODUCER_ID, INIT_VERSION, new(apis.INIT_PRODUCER_ID, **fields))
        self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0

    def send(self, counts: Sequence[int]) -> None:
        """Send a request with one batch for each count of records, and end the transaction."""
        for count in counts:
            self._produce(count)
        if self.transactional_id is not None:
            fields = {"transactional_id": self.transactional_id, "committed": True}
            fields |= {"producer_id": self.producer_id, "producer_epoch": self.epoch}
            answer = retry(self.client, apis.END_TXN, END_VERSION, new(apis.END_TXN, **fields))
            self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0

    def _produce(self, count: int) -> None:
        now = int(time.time() * 1000)
        body = encode_records(Record(at, 0, None, b"x" * RECORD_BYTES, ()) for at in range(count))
        flags = TRANSACTIONAL_FLAG if self.transactional_id is not None else 0
        fields = {"producer_id": self.producer_id, "producer_epoch": self.epoch, "base_sequence": self.sequence}
        data = NewRecordBatch(0, count - 1, now, now, count, body, attributes=flags, **fields).encode()
        self.sequence += count
        classes = API_KEYS[apis.PRODUCE].request.classes
        part = classes["PartitionProduceData"](index=0, records=data)
        topics = [classes["TopicProduceData"](name="t", partition_data=[part])]
        request = new(apis.PRODUCE, transactional_id=self.transactional_id, acks=-1, timeout_ms=30_000, topic_data=topics)
        for _ in range(1200):
            found = self.client.ask(apis.PRODUCE, PRODUCE_VERSION, request).responses[0].partition_responses[0]
            if not found.error_code:
                return
            time.sleep(0.005)  # the transaction before is still being ended
        raise RuntimeError(f"Produce: error {found.error_code} {found.error_message}")

    def cpu(self, broker: Broker, counts: Sequence[int], times: int) -> float:
        """Send the same `times` times -> the broker's CPU seconds."""
        before = broker.cpu_seconds()
        for _ in range(times):
            self.send(counts)
        return broker.cpu_seconds() - before


def row_single(name: str, work: Path) -> None:
    """Measure transactions of one record."""
    with serving(name, work) as (broker, client):
        producer = Producer(client, "single")
        producer.cpu(broker, [1], WARM[name])
        began = time.monotonic()
        cpu = producer.cpu(broker, [1], TRANSACTIONS)
        elapsed = time.monotonic() - began
        report("single", name, transactions_per_cpu_s=TRANSACTIONS / cpu, transactions_per_s=TRANSACTIONS / elapsed)


def row_thousand(name: str, work: Path) -> None:
    """Measure transactions of 1,000 records, in turn with plain produces of idempotent producers."""
    with serving(name, work) as (broker, client):
        full, rest = divmod(1000, BATCH_RECORDS)
        for what, counts in {"one_batch": [1000], "batches_of_16_kb": [BATCH_RECORDS] * full + [rest]}.items():
            plain, transactional = Producer(client, None), Producer(client, f"thousand-{what}")
            for one in (plain, transactional):
                one.cpu(broker, counts, WARM[name] // 5)
            sums = dict.fromkeys((plain, transactional), 0.0)
            for _ in range(10):
                for one in sums:
                    sums[one] += one.cpu(broker, counts, LARGE_TRANSACTIONS // 10)
            plain_ms, transaction_ms = (1000 * cpu / LARGE_TRANSACTIONS for cpu in sums.values())
            ratio = transaction_ms / plain_ms
            report(f"thousand {what}", name, plain_ms=plain_ms, transaction_ms=transaction_ms, ratio=ratio)


class Acquired(NamedTuple):
    """The offsets of a fetch that a member has acquired."""

    first: int
    last: int


class ShareMember:
    """The one member of a share group that reads topic t."""

    def __init__(self, client: Client, group: str) -> None:
        self.client, self.group, self.epoch = client, group, 0
        self._acquired: Acquired | None = None
        self.member_id = "AAAAAAAAAAAAAAAAAAAAAA"
        retry(client, apis.FIND_COORDINATOR, 3, new(apis.FIND_COORDINATOR, key=group, key_type=0))
        self._set_earliest()
        fields = {"group_id": group, "member_id": self.member_id, "member_epoch": 0, "subscribed_topic_names": ["t"]}
        answer = retry(client, apis.SHARE_GROUP_HEARTBEAT, 1, new(apis.SHARE_GROUP_HEARTBEAT, **fields))
        while answer.assignment is None or not answer.assignment.topic_partitions:
            time.sleep(0.05)
            fields = {"group_id": group, "member_id": self.member_id, "member_epoch": answer.member_epoch}
            answer = retry(client, apis.SHARE_GROUP_HEARTBEAT, 1, new(apis.SHARE_GROUP_HEARTBEAT, **fields))
        self.topic_id = answer.assignment.topic_partitions[0].topic_id

    def _set_earliest(self) -> None:
        classes = API_KEYS[apis.INCREMENTAL_ALTER_CONFIGS].request.classes
        config = classes["AlterableConfig"](name="share.auto.offset.reset", config_operation=0, value="earliest")
        resource = classes["AlterConfigsResource"](resource_type=32, resource_name=self.group, configs=[config])
        self.client.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, new(apis.INCREMENTAL_ALTER_CONFIGS, resources=[resource]))

    def _fields(self) -> dict[str, Any]:
        fields = {"group_id": self.group, "member_id": self.member_id, "share_session_epoch": self.epoch}
        self.epoch += 1
        return fields

    def fetch(self, accepted: Acquired | None = None) -> Acquired | None:
        """Fetch, with an acceptance of each record of an earlier fetch -> what is acquired."""
        classes = API_KEYS[apis.SHARE_FETCH].request.classes
        acks = []
        if accepted is not None:
            types = [1] * (accepted.last - accepted.first + 1)
            fields = {"first_offset": accepted.first, "last_offset": accepted.last, "acknowledge_types": types}
            acks = [classes["AcknowledgementBatch"](**fields)]
        topics = []
        if self.epoch == 0 or acks:
            part = classes["FetchPartition"](partition_index=0, acknowledgement_batches=acks)
            topics = [classes["FetchTopic"](topic_id=self.topic_id, partitions=[part])]
        sizes = {"min_bytes": 1, "max_wait_ms": 500, "max_records": FETCHED_RECORDS, "batch_size": FETCHED_RECORDS}
        answer = self.client.ask(
            apis.SHARE_FETCH, SHARE_VERSION, new(apis.SHARE_FETCH, topics=topics, **sizes, **self._fields())
        )
        if answer.error_code:
            raise RuntimeError(f"ShareFetch: error {answer.error_code} {answer.error_message}")
        found = [one for topic in answer.responses for part in topic.partitions for one in part.acquired_records]
        return Acquired(found[0].first_offset, found[-1].last_offset) if found else None

    def accept(self, offset: int) -> None:
        """Acknowledge one record."""
        classes = API_KEYS[apis.SHARE_ACKNOWLEDGE].request.classes
        ack = classes["AcknowledgementBatch"](first_offset=offset, last_offset=offset, acknowledge_types=[1])
        part = classes["AcknowledgePartition"](partition_index=0, acknowledgement_batches=[ack])
        topics = [classes["AcknowledgeTopic"](topic_id=self.topic_id, partitions=[part])]
        answer = self.client.ask(
            apis.SHARE_ACKNOWLEDGE, SHARE_VERSION, new(apis.SHARE_ACKNOWLEDGE, topics=topics, **self._fields())
        )
        code = answer.error_code or answer.responses[0].partitions[0].error_code
        if code:
            raise RuntimeError(f"ShareAcknowledge: error {code}")

    def read(self, count: int, by_requests: bool) -> None:
        """Fetch and acknowledge at least this many records; what is acquired last is acknowledged by the next call."""
        while count > 0:
            accepted, self._acquired = self._acquired, None
            if accepted is not None and by_requests:
                for offset in range(accepted.first, accepted.last + 1):
                    self.accept(offset)
            self._acquired = self.fetch(None if by_requests else accepted)
            if accepted is not None:
                count -= accepted.last - accepted.first + 1


def row_share(name: str, work: Path) -> None:
    """Measure a share group."""
    with serving(name, work) as (broker, client):
        warm = WARM[name] * 4
        frame = client.produce_frame("t", 0, batch(FETCHED_RECORDS, RECORD_BYTES))
        for _ in range((2 * SHARED_RECORDS + 8 * warm) // FETCHED_RECORDS + 20):
            client.send(frame)
        for what, by_requests in {"a_request_each": True, "with_the_next_fetch": False}.items():
            other = Client(broker.port)  # a connection has one share session
            member = ShareMember(other, f"share-{what}")
            member.read(warm, by_requests)
            before, began = broker.cpu_seconds(), time.monotonic()
            member.read(SHARED_RECORDS, by_requests)
            cpu, elapsed = broker.cpu_seconds() - before, time.monotonic() - began
            report(f"share {what}", name, records_per_cpu_s=SHARED_RECORDS / cpu, records_per_s=SHARED_RECORDS / elapsed)
            other.close()


ROWS = {"single": row_single, "thousand": row_thousand, "share": row_share}


def main() -> None:
    """Measure the requested rows for each broker."""
    measure_rows(__doc__, ROWS)


if __name__ == "__main__":
    main()
