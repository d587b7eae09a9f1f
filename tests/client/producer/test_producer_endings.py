"""Protects that every call of a producer ends, with the error that says why, and that a transaction never lacks a record."""

from __future__ import annotations

from typing import Any

import pytest

from kcli.client.client_config import ClientConfig
from kcli.client.errors import (
    ConfigError,
    IllegalStateError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
    TransactionAbortableError,
)
from kcli.client.producer.arrow_appender import ArrowRows
from kcli.client.producer.producer import ProducerCore, Record
from kcli.client.producer.producer_config import ProducerConfig, read_producer_config
from kcli.format import compression
from kcli.protocol import apis, error_codes
from tests.client.producer.test_sender import Sending
from tests.client.producer.test_transaction_manager import Producing, begun


def started(producing: Producing, start: Any, *args: Any) -> list[Any]:
    """Start a call of the core; its result comes to the list."""
    found: list[Any] = []
    start(*args, lambda result, now_ms: found.append(result), producing.network.now_ms)
    producing.network.pump()
    return found


@pytest.mark.parametrize(
    ("properties", "size", "limit"),
    [
        ({}, 16384, 1_000_000),
        ({"max.request.size": "50000"}, 16384, 50_000),
        ({"batch.size": "16384"}, 16384, 16384),
        ({"batch.size": "0"}, 0, 0),
        ({"batch.size": "500", "kcli.max.batch.size": "2000"}, 500, 2000),
        ({"batch.size": "500", "kcli.max.batch.size": "100"}, 500, 500),
        ({"kcli.max.batch.size": "0"}, 16384, 16384),
    ],
)
def test_no_batch_is_larger_than_a_batch_size_that_is_set(properties: dict[str, str], size: int, limit: int) -> None:
    config = read_producer_config(properties).accumulator(ClientConfig())
    assert (config.batch_size, config.most_batch_bytes) == (size, limit)


@pytest.mark.parametrize(
    ("name", "valid", "wrong"),
    [
        ("compression.gzip.level", ("-1", "1", "9"), ("-2", "0", "99")),
        ("compression.lz4.level", ("1", "17"), ("0", "18")),
        ("compression.zstd.level", ("-131072", "22"), ("-131073", "23")),
        ("max.in.flight.requests.per.connection", ("1",), ("0", "-1")),
        ("retries", ("1", "2147483647"), ("-1", "2147483648")),
        ("batch.size", ("0",), ("-1",)),
        ("linger.ms", ("0",), ("-1",)),
        ("max.request.size", ("0",), ("-1",)),
        ("buffer.memory", ("0", "68719476736"), ("-1",)),
        ("max.block.ms", ("0",), ("-1",)),
        ("metadata.max.idle.ms", ("5000",), ("4999",)),
        ("retry.backoff.ms", ("0",), ("-1",)),
        ("request.timeout.ms", ("0",), ("-1",)),
    ],
)
def test_ranges_of_settings(name: str, valid: tuple[str, ...], wrong: tuple[str, ...]) -> None:
    for text in valid:
        read_producer_config({name: text})
    for text in wrong:
        with pytest.raises(ConfigError, match=name):
            read_producer_config({name: text})


def test_a_batch_that_cannot_be_encoded_fails() -> None:
    sending = Sending(codec=compression.GZIP, compression_level=99)
    sending.send(b"a")
    assert isinstance(sending.results[0], InvalidRecordError)
    assert not sending.accumulator.incomplete
    assert sending.accumulator.pool.available == sending.accumulator.pool.total


def test_close_ends_the_calls_of_transactions() -> None:
    producing = Producing(transactional_id="x")
    producing.network.drops = True
    found = started(producing, producing.core.init_transactions)
    closed = started(producing, producing.core.close, 1000)
    producing.network.advance(999)
    assert not found and not closed
    producing.network.advance(1)
    assert isinstance(found[0], ProducerClosedError) and closed == [None]


def test_close_without_time_ends_at_once() -> None:
    """Also where nothing runs the timer any more, as in a callback that closes the producer."""
    producing = Producing()
    producing.network.holds = True
    producing.send(b"a")
    flushed = started(producing, producing.core.flush)
    closed: list[Any] = []
    producing.core.close(0, lambda error, now_ms: closed.append(error), producing.network.now_ms)
    assert closed == [None] and flushed == [None] and isinstance(producing.results[0], ProducerClosedError)


def refusing(*args: Any) -> int:
    """A partitioner of an application that fails."""
    raise KeyError("no such region")


def test_a_second_close_without_time_ends_the_first_one() -> None:
    """The caller of the first one was interrupted or cancelled."""
    producing = Producing()
    producing.send(b"a")
    assert producing.results == [0]
    producing.network.holds = True
    producing.send(b"b")
    first = started(producing, producing.core.close, 60_000)
    assert not first
    assert started(producing, producing.core.close, 0) == [None] and first == [None]
    assert isinstance(producing.results[-1], ProducerClosedError)


def test_a_partitioner_that_fails_fails_the_record() -> None:
    """Also of a record that waits for metadata, whose caller would see nothing of an exception of the client's thread."""
    producing = Producing()
    config = ProducerConfig(linger_ms=0)
    core = ProducerCore(producing.network.client, config, lambda line: None, refusing)
    producing.network.poll = core.poll
    found = started(producing, core.send, Record("t", b"a"))
    assert isinstance(found[0], InvalidRecordError) and isinstance(found[0].__cause__, KeyError)


def test_a_record_that_is_too_large_fails_its_transaction() -> None:
    producing = begun(max_request_size=1000)
    producing.send(b"x" * 2000)
    assert isinstance(producing.results.pop(), RecordTooLargeError)
    assert isinstance(producing.call(producing.core.commit_transaction), TransactionAbortableError)
    assert producing.call(producing.core.abort_transaction) is None
    producing.core.begin_transaction()
    producing.send(b"good")
    producing.network.advance(100)
    assert producing.call(producing.core.commit_transaction) is None


def test_a_record_that_waited_too_long_fails_its_transaction() -> None:
    producing = begun(max_block_ms=500)
    found = started(producing, producing.core.send, Record("t", b"a", partition=7))
    producing.network.advance(500)
    assert isinstance(found[0], KafkaTimeoutError)
    assert isinstance(producing.call(producing.core.commit_transaction), TransactionAbortableError)


def test_rows_of_which_some_cannot_be_appended_fail_the_transaction() -> None:
    producing = begun(max_request_size=1000, batch_size=500)
    pa = pytest.importorskip("pyarrow")
    rows = ArrowRows(pa.record_batch({"value": pa.array([b"a", b"x" * 2000], pa.binary())}))
    appender = producing.core.begin_rows("t", rows, None)
    with pytest.raises(RecordTooLargeError):
        producing.core.append_rows(appender, "t", producing.network.now_ms)
    assert isinstance(producing.call(producing.core.commit_transaction), TransactionAbortableError)


def test_a_question_for_partitions_does_not_fail_the_transaction() -> None:
    producing = begun(max_block_ms=500)
    found = started(producing, producing.core.partitions_for, "nobody")
    producing.network.advance(500)
    assert isinstance(found[0], KafkaTimeoutError)
    assert producing.call(producing.core.commit_transaction) is None


def test_a_commit_that_ended_after_its_caller_can_be_repeated() -> None:
    """Kafka's TransactionalRequestResult stays until a caller has it; nothing else may be called before."""
    producing = begun(max_block_ms=500)
    producing.network.holds = True
    found = started(producing, producing.core.commit_transaction)
    producing.network.advance(500)
    assert isinstance(found[0], KafkaTimeoutError)
    producing.network.release()
    assert len(producing.broker.seen(apis.END_TXN)) == 1
    with pytest.raises(IllegalStateError, match=r"commit_transaction\(\)"):
        producing.core.begin_transaction()
    assert isinstance(started(producing, producing.core.abort_transaction)[0], IllegalStateError)
    assert started(producing, producing.core.commit_transaction) == [None]
    assert len(producing.broker.seen(apis.END_TXN)) == 1
    producing.core.begin_transaction()


def test_init_transactions_that_ended_after_its_caller_can_be_repeated() -> None:
    producing = Producing(transactional_id="x", max_block_ms=500)
    producing.network.holds = True
    found = started(producing, producing.core.init_transactions)
    producing.network.advance(500)
    assert isinstance(found[0], KafkaTimeoutError)
    producing.network.release()
    assert started(producing, producing.core.init_transactions) == [None]
    producing.core.begin_transaction()


def test_a_commit_whose_caller_has_left_can_be_repeated() -> None:
    """As one whose time was over: it was committed, and no caller knows."""
    producing = begun()
    producing.network.holds = True
    found: list[Any] = []
    leave = producing.core.commit_transaction(lambda result, now_ms: found.append(result), producing.network.now_ms)
    producing.network.pump()
    leave()
    producing.network.release()
    assert len(producing.broker.seen(apis.END_TXN)) == 1 and found == [None]
    with pytest.raises(IllegalStateError, match=r"commit_transaction\(\)"):
        producing.core.begin_transaction()
    assert started(producing, producing.core.commit_transaction) == [None]
    producing.core.begin_transaction()


def test_a_record_that_is_withdrawn_is_not_sent() -> None:
    producing = Producing()
    record, other = Record("t", b"withdrawn"), Record("t", b"sent")
    found: list[Any] = []
    for one in (record, other):
        producing.core.send(one, lambda error, now_ms: found.append(error), 0)
    producing.core.withdraw(record)
    producing.network.advance(1000)
    assert found == [None] and producing.broker.written[0] == [b"sent"]
    producing.network.advance(100_000)


@pytest.mark.parametrize("name", ["", "no topic", "x" * 250, "\ud800"])
def test_a_topic_that_cannot_be_is_refused_alone(name: str) -> None:
    """It is never asked for: one bad name would fail each request for metadata."""
    producing = Producing()
    found = started(producing, producing.core.send, Record(name, b"a"))
    assert isinstance(found[0], KafkaError) and found[0].code == error_codes.INVALID_TOPIC_EXCEPTION
    assert name not in producing.network.client.metadata.wanted_topics
    producing.send(b"b")
    producing.network.advance(1000)
    assert producing.results == [0]
