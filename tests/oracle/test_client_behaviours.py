"""Protects what applications count on of consumers, producers and administrators, in the cases that other clients' suites have.

tests/client/test_peer_suites.py says which suites. The broker is kcli and, in the slow tier, Apache Kafka.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any

import pytest

from kcli.client import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    ConsumerRecord,
    NewTopic,
    OffsetAndMetadata,
    Producer,
)
from kcli.client.admin.operation import value_of
from kcli.client.admin.topics import NewPartitions
from kcli.client.consumer.consumer_record import CREATE_TIME, LOG_APPEND_TIME
from kcli.client.consumer.membership import GroupMetadata
from kcli.client.consumer.subscription_state import NoOffsetForPartitionError
from kcli.client.errors import (
    CommitFailedError,
    ConfigError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    TransactionAbortableError,
)
from tests.oracle.conftest import Served

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

BROKER_SETTINGS = (
    "auto.create.topics.enable=false",
    "group.initial.rebalance.delay.ms=0",
    "offsets.topic.num.partitions=2",
    "offsets.topic.replication.factor=1",
    "transaction.state.log.replication.factor=1",
    "transaction.state.log.min.isr=1",
    "group.min.session.timeout.ms=2000",
)
PATIENCE_S = 30.0
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])
TIMESTAMP = 1_700_000_000_000


def settings(served: Served, **others: Any) -> dict[str, Any]:
    return {"bootstrap.servers": served.bootstrap, **{name.replace("_", "."): value for name, value in others.items()}}


def reader(served: Served, **others: Any) -> Consumer:
    return Consumer(settings(served, **{"auto_offset_reset": "earliest", "enable_auto_commit": False, **others}))


def create(served: Served, partitions: int = 1, name: str = "", **configs: str) -> str:
    name = name or f"t-{uuid.uuid4()}"
    with Admin(settings(served)) as admin:
        words = {key.replace("_", "."): value for key, value in configs.items()}
        value_of(admin.create_topics([NewTopic(name, partitions, 1, configs=words)])[name])
    return name


def write(served: Served, topic: str, values: Iterable[bytes], partition: int = 0, **others: Any) -> None:
    with Producer(settings(served, **others)) as producer:
        for value in values:
            producer.send(topic, value, partition=partition)


def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    while len(found) < count:
        records = consumer.poll(PATIENCE_S)
        assert records, f"{len(found)} of {count} records came"
        found += records
    return found


# ---------------------------------------------------------------------------------------------------- what a consumer reads


def test_a_record_larger_than_a_fetch_is_returned(served: Served) -> None:
    """Also between others, with limits far below its size."""
    topic = create(served, max_message_bytes="3000000")
    values = [b"before", bytes(1_500_000), b"after", bytes(500_000)]
    write(served, topic, values, max_request_size=3_000_000)
    with reader(served, max_partition_fetch_bytes=1000, fetch_max_bytes=1000) as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for record in read(consumer, len(values))] == values


def test_records_have_the_time_of_their_topic(served: Served) -> None:
    by_producer, by_broker = create(served), create(served, message_timestamp_type="LogAppendTime")
    with Producer(settings(served)) as producer:
        for topic in (by_producer, by_broker):
            made = producer.send_and_wait(topic, b"v", timestamp=TIMESTAMP)
            assert (made.timestamp == TIMESTAMP) == (topic == by_producer)
    with reader(served) as consumer:
        consumer.assign([(by_producer, 0), (by_broker, 0)])
        found = {record.topic: record for record in read(consumer, 2)}
    assert (found[by_producer].timestamp, found[by_producer].timestamp_type) == (TIMESTAMP, CREATE_TIME)
    assert found[by_broker].timestamp > TIMESTAMP and found[by_broker].timestamp_type == LOG_APPEND_TIME


def test_headers_keep_their_order_and_may_repeat(served: Served) -> None:
    topic = create(served)
    headers = [("a", b"1"), ("b", None), ("a", b"2"), ("ü", b"")]
    with Producer(settings(served)) as producer:
        producer.send_and_wait(topic, None, b"key", headers=headers)
    with reader(served) as consumer:
        consumer.assign([(topic, 0)])
        (record,) = read(consumer, 1)
    assert (record.key, record.value, list(record.headers)) == (b"key", None, headers)


def test_a_poll_returns_at_most_max_poll_records(served: Served) -> None:
    topic = create(served, 3)
    for partition in range(3):
        write(served, topic, [b"%d" % number for number in range(25)], partition)
    with reader(served, max_poll_records=7) as consumer:
        consumer.assign([(topic, partition) for partition in range(3)])
        polls: list[list[ConsumerRecord]] = []
        while sum(map(len, polls)) < 75:
            polls.append(consumer.poll(PATIENCE_S))
            assert 0 < len(polls[-1]) <= 7
    for partition in range(3):
        offsets = [record.offset for poll in polls for record in poll if record.partition == partition]
        assert offsets == list(range(25))


def test_what_a_transaction_leaves_is_passed(served: Served) -> None:
    """A partition that ends with an aborted transaction and its marker has nothing to read, and the position is its end."""
    topic = create(served)
    with Producer(settings(served, transactional_id=topic)) as producer:
        producer.init_transactions()
        for is_kept in (True, False):
            producer.begin_transaction()
            producer.send_and_wait(topic, b"kept" if is_kept else b"dropped")
            producer.commit_transaction() if is_kept else producer.abort_transaction()
    with reader(served, isolation_level="read_committed") as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for record in read(consumer, 1)] == [b"kept"]
        end = time.monotonic() + PATIENCE_S
        while consumer.position((topic, 0)) < 4:
            assert consumer.poll(0.1) == [] and time.monotonic() < end
        assert consumer.end_offsets([(topic, 0)]) == {(topic, 0): 4} and consumer.current_lag((topic, 0)) == 0


# ---------------------------------------------------------------------------------------------------------------- positions


def test_partitions_that_are_not_assigned_have_no_position(served: Served) -> None:
    topic = create(served, 2)
    with reader(served) as consumer:
        consumer.assign([(topic, 0)])
        other = [(topic, 1)]
        for call in (
            lambda: consumer.seek(other[0], 0),
            lambda: consumer.position(other[0]),
            lambda: consumer.pause(other),
            lambda: consumer.resume(other),
            lambda: consumer.seek_to_beginning(other),
            lambda: consumer.seek_to_end(other),
            lambda: consumer.current_lag(other[0]),
        ):
            with pytest.raises(IllegalStateError, match=f"{topic}-1"):
                call()
        with pytest.raises(ValueError, match="offset"):
            consumer.seek((topic, 0), -1)
        assert consumer.position((topic, 0)) == 0


def test_offsets_by_time_of_many_partitions(served: Served) -> None:
    topic = create(served, 3)
    with Producer(settings(served)) as producer:
        for partition in range(2):
            for number in range(5):
                producer.send(topic, b"v", partition=partition, timestamp=TIMESTAMP + 100 * number + 10 * partition)
    places = [(topic, partition) for partition in range(3)]
    with reader(served) as consumer:
        found = consumer.offsets_for_times(dict.fromkeys(places, TIMESTAMP + 201))
        assert [None if one is None else (one.offset, one.timestamp) for one in map(found.get, places)] == [  # type: ignore[arg-type]
            (3, TIMESTAMP + 300),
            (2, TIMESTAMP + 210),
            None,
        ]
        assert set(consumer.offsets_for_times(dict.fromkeys(places, TIMESTAMP + 1000)).values()) == {None}
        assert consumer.offsets_for_times({}) == {}
        with pytest.raises(ValueError, match="a timestamp must be"):
            consumer.offsets_for_times({places[0]: -1})
        with pytest.raises(KafkaTimeoutError):
            consumer.offsets_for_times({(topic, 9): TIMESTAMP}, timeout=1.0)


def test_without_a_reset_the_application_seeks(served: Served) -> None:
    topic = create(served)
    write(served, topic, [b"0", b"1", b"2"])
    with reader(served, auto_offset_reset="none", group_id=f"g-{topic}") as consumer:
        consumer.assign([(topic, 0)])
        for _ in range(2):
            with pytest.raises(NoOffsetForPartitionError, match=f"{topic}-0"):
                consumer.poll(PATIENCE_S)
        consumer.seek((topic, 0), 50)
        with pytest.raises(OffsetOutOfRangeError, match=f"{topic}-0@50"):
            consumer.poll(PATIENCE_S)
        consumer.seek((topic, 0), 1)
        assert [record.value for record in read(consumer, 2)] == [b"1", b"2"]


def test_records_of_partitions_before_are_not_returned(served: Served) -> None:
    """Those that were fetched, and those of a fetch under way."""
    first, second = create(served), create(served)
    write(served, first, [b"first"] * 20)
    write(served, second, [b"second"] * 20)
    with reader(served, max_poll_records=2, group_id=f"g-{first}") as consumer:
        consumer.assign([(first, 0)])
        read(consumer, 2)
        consumer.assign([(second, 0)])
        assert {record.value for record in read(consumer, 6)} == {b"second"}
        consumer.unsubscribe()
        consumer.subscribe([first])
        assert {record.value for record in read(consumer, 6)} == {b"first"}
        consumer.subscribe([second])
        assert {record.value for record in read(consumer, 6)} <= {b"first", b"second"}
        while consumer.assignment() != {(second, 0)}:
            consumer.poll(0.1)
        assert {record.value for record in read(consumer, 6)} == {b"second"}


def test_paused_partitions_return_nothing_and_keep_their_place(served: Served) -> None:
    topic = create(served, 2)
    for partition in range(2):
        write(served, topic, [b"%d" % partition] * 10, partition)
    with reader(served, max_poll_records=3) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        consumer.pause([(topic, 0)])
        assert consumer.paused() == {(topic, 0)}
        assert {record.partition for record in read(consumer, 10)} == {1} and consumer.poll(0.3) == []
        consumer.resume([(topic, 0)])
        assert [record.offset for record in read(consumer, 10)] == list(range(10)) and consumer.paused() == set()


# ------------------------------------------------------------------------------------------------------------------- groups


def test_ways_to_choose_partitions_exclude_each_other(served: Served) -> None:
    topic = create(served)
    with reader(served, group_id=f"g-{topic}") as consumer:
        with pytest.raises(IllegalStateError, match="subscribe"):
            consumer.poll(0)
        consumer.subscribe([topic])
        for call in (lambda: consumer.assign([(topic, 0)]), lambda: consumer.subscribe_pattern("t-.*")):
            with pytest.raises(IllegalStateError):
                call()
        consumer.unsubscribe()
        consumer.assign([(topic, 0)])
        with pytest.raises(IllegalStateError):
            consumer.subscribe([topic])
        consumer.assign([])
        with pytest.raises(ConfigError, match="regular expression"):
            consumer.subscribe_pattern("(")
        consumer.subscribe_pattern("t-.*")
    with reader(served) as consumer:
        for call in (lambda: consumer.subscribe([topic]), consumer.commit_sync, consumer.group_metadata):
            with pytest.raises(IllegalStateError, match=r"group\.id"):
                call()


@PROTOCOLS
def test_a_pattern_finds_topics_that_are_created_later(served: Served, protocol: str) -> None:
    """A topic that is deleted is given up. The client of a classic group matches itself, and leaves out internal topics."""
    prefix = f"p-{uuid.uuid4()}"
    first = create(served, name=f"{prefix}-1")
    write(served, first, [b"first"])
    with reader(served, group_id=prefix, group_protocol=protocol, metadata_max_age_ms=500) as consumer:
        consumer.subscribe_pattern(f"{prefix}-.*" if protocol == "consumer" else f"{prefix}-.*|__consumer_offsets")
        read(consumer, 1)
        consumer.commit_sync()
        second = create(served, name=f"{prefix}-2")
        write(served, second, [b"second"])
        assert [record.value for record in read(consumer, 1)] == [b"second"]
        assert {one.topic for one in consumer.assignment()} == {first, second}
        with Admin(settings(served)) as admin:
            value_of(admin.delete_topics([first])[first])
        end = time.monotonic() + PATIENCE_S
        while first in {one.topic for one in consumer.assignment()}:
            consumer.poll(0.1)
            assert time.monotonic() < end


@PROTOCOLS
def test_a_commit_has_its_metadata(served: Served, protocol: str) -> None:
    """Also of partitions that the application has assigned; other partitions have none."""
    topic = create(served, 2)
    write(served, topic, [b"0", b"1", b"2"])
    with reader(served, group_id=f"g-{topic}", group_protocol=protocol) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        assert consumer.committed([(topic, 0)]) == {(topic, 0): None}
        consumer.commit_sync({(topic, 0): OffsetAndMetadata(2, metadata="until two")})
        found = consumer.committed([(topic, 0), (topic, 1)])
        one = found[topic, 0]  # type: ignore[index]
        assert one is not None and (one.offset, one.metadata) == (2, "until two") and found[topic, 1] is None  # type: ignore[index]
    with reader(served, group_id=f"g-{topic}", group_protocol=protocol) as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for record in read(consumer, 1)] == [b"2"]


def test_a_session_timeout_that_the_broker_does_not_allow_is_reported(served: Served) -> None:
    topic = create(served)
    with reader(served, group_id=f"g-{topic}", session_timeout_ms=100, heartbeat_interval_ms=30) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(KafkaError, match="INVALID_SESSION_TIMEOUT"):
            consumer.poll(PATIENCE_S)


def test_a_commit_does_not_wait_for_a_fetch(served: Served) -> None:
    """Fetches wait at the broker for records; commits have a connection of their own, in the asyncio consumer a task, too."""
    topic = create(served)
    write(served, topic, [b"v"])
    waits = {"fetch_max_wait_ms": 20_000, "fetch_min_bytes": 1000, "group_id": f"g-{topic}"}
    with reader(served, **waits) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 1)
        consumer.committed([(topic, 0)])  # the coordinator is known
        assert consumer.poll(0.5) == []
        begin = time.monotonic()
        consumer.commit_sync()
        assert time.monotonic() - begin < 10

    async def run() -> None:
        async with AsyncConsumer(settings(served, enable_auto_commit=False, **waits)) as awaiting:
            awaiting.assign([(topic, 0)])
            awaiting.seek((topic, 0), 1)
            await awaiting.committed([(topic, 0)])
            polling = asyncio.ensure_future(awaiting.poll(60.0))
            await asyncio.sleep(0.5)
            await asyncio.wait_for(awaiting.commit({(topic, 0): OffsetAndMetadata(1)}), 10)
            assert not polling.done()
            awaiting.wakeup()
            await asyncio.gather(polling, return_exceptions=True)

    asyncio.run(run())


@PROTOCOLS
def test_an_application_that_works_too_long_joins_again(served: Served, protocol: str) -> None:
    """Its commit is refused, the listener hears that the partitions are lost, and the records come again."""
    topic = create(served)
    write(served, topic, [b"0", b"1"])
    calls: list[str] = []

    class Listener:
        def on_partitions_assigned(self, partitions: Any) -> None:
            calls.append("assigned")

        def on_partitions_revoked(self, partitions: Any) -> None:
            calls.append("revoked")

        def on_partitions_lost(self, partitions: Any) -> None:
            calls.append("lost")

    with reader(served, group_id=f"g-{topic}", group_protocol=protocol, max_poll_interval_ms=3000) as consumer:
        consumer.subscribe([topic], Listener())
        read(consumer, 2)
        time.sleep(4.5)  # its work
        with pytest.raises(CommitFailedError):
            consumer.commit_sync()
        assert [record.value for record in read(consumer, 2)] == [b"0", b"1"]
        consumer.commit_sync()
    assert calls == ["assigned", "lost", "assigned", "revoked"]


# --------------------------------------------------------------------------------------------------- producers, transactions


@pytest.mark.parametrize("in_flight", [1, 3, 5])
def test_an_idempotent_producer_keeps_the_order(served: Served, in_flight: int) -> None:
    topic = create(served, 2)
    with Producer(settings(served, max_in_flight_requests_per_connection=in_flight, batch_size=100, linger_ms=0)) as producer:
        for number in range(500):
            producer.send(topic, b"%d" % number, partition=number % 2)
    with reader(served) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        found = read(consumer, 500)
    for partition in range(2):
        assert [int(one.value) for one in found if one.partition == partition] == list(range(partition, 500, 2))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_record_has_its_metadata(served: Served, codec: str) -> None:
    topic = create(served)
    with Producer(settings(served, compression_type=codec)) as producer:
        for number in range(3):
            made = producer.send_and_wait(topic, b"value" * 10, b"key", timestamp=TIMESTAMP + number)
            assert made[:4] == (topic, 0, number, TIMESTAMP + number) and (made.key_size, made.value_size) == (3, 50)


def test_a_topic_that_does_not_exist_is_an_error_after_max_block_ms(served: Served) -> None:
    with Producer(settings(served, max_block_ms=1500)) as producer:
        begin = time.monotonic()
        with pytest.raises((KafkaTimeoutError, KafkaError), match=r"not-there|UNKNOWN_TOPIC_OR_PARTITION"):
            producer.send_and_wait("not-there", b"v")
        assert time.monotonic() - begin < 10


def test_calls_of_transactions_in_a_wrong_order(served: Served) -> None:
    topic = create(served)
    with Producer(settings(served)) as plain:
        for call in (plain.init_transactions, plain.begin_transaction, plain.commit_transaction, plain.abort_transaction):
            with pytest.raises(IllegalStateError, match=r"transactional\.id"):
                call()
    with Producer(settings(served, transactional_id=topic)) as producer:
        with pytest.raises(IllegalStateError):
            producer.begin_transaction()
        producer.init_transactions()
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(IllegalStateError):
                call()
        with pytest.raises(IllegalStateError):
            producer.send_offsets_to_transaction({(topic, 0): OffsetAndMetadata(1)}, GroupMetadata("g"))
        producer.begin_transaction()
        with pytest.raises(IllegalStateError):
            producer.begin_transaction()
        producer.send(topic, b"v")
        producer.commit_transaction()


def test_transactions_without_records_and_offsets_that_are_aborted(served: Served) -> None:
    topic, group = create(served), f"g-{uuid.uuid4()}"
    with Producer(settings(served, transactional_id=topic)) as producer:
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            end()
        for offset, end in ((1, producer.commit_transaction), (2, producer.abort_transaction)):
            producer.begin_transaction()
            producer.send_offsets_to_transaction({(topic, 0): OffsetAndMetadata(offset)}, GroupMetadata(group))
            end()
    with reader(served, group_id=group) as consumer:
        one = consumer.committed([(topic, 0)])[topic, 0]  # type: ignore[index]
        assert one is not None and one.offset == 1
        assert consumer.end_offsets([(topic, 0)]) == {(topic, 0): 0}


def test_a_producer_that_starts_again_ends_the_transaction_before(served: Served) -> None:
    """That of an application that was killed: nothing of it is read, and nothing after it waits."""
    topic = create(served)
    killed = Producer(settings(served, transactional_id=topic))
    killed.init_transactions()
    killed.begin_transaction()
    killed.send_and_wait(topic, b"left open")
    with Producer(settings(served, transactional_id=topic)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(3):
            producer.send(topic, b"%d" % number)
            producer.flush()
        producer.commit_transaction()
    with pytest.raises((ProducerFencedError, TransactionAbortableError)):
        killed.commit_transaction()
    killed.close(0)
    with reader(served, isolation_level="read_committed") as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for record in read(consumer, 3)] == [b"0", b"1", b"2"]


def test_a_commit_that_is_cancelled_can_be_repeated(served: Served) -> None:
    topic = create(served)

    async def run() -> None:
        async with AsyncProducer(settings(served, transactional_id=topic)) as producer:
            await producer.init_transactions()
            for number in range(3):
                producer.begin_transaction()
                await producer.send(topic, b"%d" % number)
                committing = asyncio.ensure_future(producer.commit_transaction())
                await asyncio.sleep(0)
                committing.cancel()
                await asyncio.gather(committing, return_exceptions=True)
                await producer.commit_transaction()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    with reader(served, isolation_level="read_committed") as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for record in read(consumer, 3)] == [b"0", b"1", b"2"]


# -------------------------------------------------------------------------------------------------------------- administrators


def test_threads_share_an_administrator(served: Served) -> None:
    topics = [create(served, 2) for _ in range(3)]
    errors: list[BaseException] = []
    with Admin(settings(served)) as admin:

        def work() -> None:
            try:
                for topic in topics:
                    assert len(value_of(admin.describe_topics([topic])[topic]).partitions) == 2
                    assert value_of(admin.list_offsets({(topic, 1): -1})[topic, 1]).offset == 0
                    assert len(admin.describe_cluster().nodes) == 1
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert errors == []


def test_errors_of_items_leave_the_others(served: Served) -> None:
    """Groups with members, partitions that do not exist, offsets out of range, fewer partitions than there are."""
    topic = create(served, 2)
    write(served, topic, [b"0", b"1", b"2"])
    with Admin(settings(served)) as admin, reader(served, group_id=f"g-{topic}") as consumer:
        consumer.subscribe([topic])
        read(consumer, 3)
        groups = admin.delete_groups([f"g-{topic}", "no-such-group"])
        assert [code(one) for one in groups.values()] == ["NON_EMPTY_GROUP", "GROUP_ID_NOT_FOUND"]
        deleted = admin.delete_records({(topic, 0): 2, (topic, 1): 5})
        assert deleted[topic, 0] == 2 and code(deleted[topic, 1]) == "OFFSET_OUT_OF_RANGE"
        assert consumer.beginning_offsets([(topic, 0)]) == {(topic, 0): 2}
        more = admin.create_partitions({topic: NewPartitions(1), "no-such-topic": NewPartitions(3)})
        assert [code(one) for one in more.values()] == ["INVALID_PARTITIONS", "UNKNOWN_TOPIC_OR_PARTITION"]


def code(outcome: object) -> str:
    assert isinstance(outcome, KafkaError), outcome
    return outcome.name
