"""Protects what the sender makes of answers: success, retries, splits, failures, expiry, throttling, leaders, versions."""

from __future__ import annotations

from typing import Any

import pytest

from kcli.client.cluster import Cluster
from kcli.client.errors import KafkaError, KafkaTimeoutError
from kcli.client.producer.producer_metrics import ProducerMetrics
from kcli.client.producer.sender import Sender, SenderConfig
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, PRODUCE
from tests.client.producer.batches import accumulator_of
from tests.client.producer.fake_broker import Broker, Network

TIMESTAMP = 1_700_000_000_000


class Sending:
    """A sender with its accumulator, on a fake broker."""

    def __init__(
        self, leaders: tuple[int, ...] = (1,), versions: Any = None, config: SenderConfig | None = None, **own: Any
    ) -> None:
        self.broker = Broker(leaders, versions)
        self.network = Network(self.broker)
        config = config or SenderConfig()
        self.accumulator = accumulator_of(linger_ms=0, delivery_timeout_ms=config.delivery_timeout_ms, **own)
        self.metrics = ProducerMetrics()
        self.sender = Sender(self.network.client, self.accumulator, config, self.metrics, self._ended)
        self.results: list[Any] = []
        self.network.client.metadata.want_topic("t")
        self.network.client.request_update()
        self.network.pump()
        self.network.poll = self.sender.poll

    @property
    def cluster(self) -> Cluster:
        return self.network.client.metadata.cluster

    def _ended(self, batch: Any, now_ms: int) -> None:
        for callback, found, error in batch.deliveries():
            callback(found, error)

    def append(self, value: bytes, partition: int = 0) -> Any:
        def done(found: Any, error: Any) -> None:
            self.results.append(error or found.offset)

        return self.accumulator.append("t", partition, TIMESTAMP, None, value, (), done, self.network.now_ms, self.cluster)

    def send(self, *values: bytes, partition: int = 0) -> None:
        for value in values:
            self.append(value, partition)
        self.network.pump()


def codes(results: list[Any]) -> list[Any]:
    return [one.code if isinstance(one, KafkaError) else one for one in results]


def test_records_are_written_with_their_offsets() -> None:
    sending = Sending()
    sending.send(b"a", b"b")
    sending.send(b"c")
    assert sending.results == [0, 1, 2]
    assert sending.broker.written[0] == [b"a", b"b", b"c"]
    assert sending.accumulator.pool.available == sending.accumulator.pool.total
    assert sending.metrics.values()["record-send-total"] == 3


def test_an_error_that_may_pass_is_tried_again_after_its_backoff() -> None:
    sending = Sending()
    sending.broker.results.append({"error_code": error_codes.NOT_ENOUGH_REPLICAS})
    sending.send(b"a")
    assert not sending.results
    sending.network.advance(79)
    assert len(sending.broker.seen(PRODUCE)) == 1
    sending.network.advance(200)
    assert sending.results == [0] and sending.metrics.values()["record-retry-total"] == 1


def test_records_go_to_a_new_leader_while_the_old_one_accepts_connections_and_never_answers() -> None:
    """A broker that is stopped (SIGSTOP) before the producer connects: the metadata are asked for again, of another broker."""
    sending = Sending(leaders=(2,))
    sending.network.silent.add(2)
    sending.send(b"a")
    sending.network.advance(15_000)
    assert sending.results == [] and sending.broker.seen(PRODUCE) == []
    sending.broker.leaders[0], sending.broker.epochs[0] = 1, 1
    sending.network.advance(3_000)
    assert sending.results == [0] and sending.broker.written[0] == [b"a"]


def test_retries_are_counted() -> None:
    sending = Sending(config=SenderConfig(retries=2))
    sending.broker.results.extend([{"error_code": error_codes.NOT_ENOUGH_REPLICAS}] * 3)
    sending.send(b"a")
    sending.network.advance(10_000)
    assert codes(sending.results) == [error_codes.NOT_ENOUGH_REPLICAS]
    assert len(sending.broker.seen(PRODUCE)) == 3


def test_an_error_that_stays_fails_the_batch() -> None:
    sending = Sending()
    sending.broker.results.append({"error_code": error_codes.INVALID_TIMESTAMP, "error_message": "too old"})
    sending.send(b"a", b"b")
    assert [str(one) for one in sending.results] == ["INVALID_TIMESTAMP: too old"] * 2
    assert sending.accumulator.pool.available == sending.accumulator.pool.total


@pytest.mark.parametrize(
    ("wrong", "code"), [((1,), error_codes.INVALID_TIMESTAMP), ((1, 2), error_codes.INVALID_RECORD)], ids=["one", "two"]
)
def test_only_the_records_that_the_broker_names_are_wrong(wrong: tuple[int, ...], code: int) -> None:
    """KIP-467: the error of the partition is that of a record if it cannot be another one's; sound records have no code."""
    sending = Sending()
    of_record = API_KEYS[PRODUCE].response.classes["BatchIndexAndErrorMessage"]
    errors = [of_record(batch_index=index, batch_index_error_message="too old") for index in wrong]
    sending.broker.results.append({"error_code": error_codes.INVALID_TIMESTAMP, "record_errors": errors})
    sending.send(b"a", b"b", b"c")
    for index, result in enumerate(sending.results):
        assert (getattr(result, "code", None), str(result).endswith("too old")) == (
            (code, True) if index in wrong else (None, False)
        )
        assert index in wrong or "sound" in str(result)


def test_a_batch_that_is_too_large_is_split() -> None:
    sending = Sending()
    sending.broker.results.append({"error_code": error_codes.MESSAGE_TOO_LARGE})
    values = [b"%d" % number * 100 for number in range(8)]
    sending.send(*values)
    assert sending.results == list(range(8)) and sending.broker.written[0] == values
    assert len(sending.broker.seen(PRODUCE)) > 2 and sending.metrics.batch_split_total == 1
    assert not sending.accumulator.incomplete


def test_one_record_that_is_too_large_fails() -> None:
    sending = Sending()
    sending.broker.results.append({"error_code": error_codes.MESSAGE_TOO_LARGE})
    sending.send(b"a")
    assert codes(sending.results) == [error_codes.MESSAGE_TOO_LARGE]


def test_the_leader_that_an_answer_names_is_used_at_once() -> None:
    """KIP-951: neither metadata nor a backoff delay the next attempt."""
    sending = Sending()
    leader = API_KEYS[PRODUCE].response.classes["LeaderIdAndEpoch"](leader_id=2, leader_epoch=7)
    sending.broker.results.append({"error_code": error_codes.NOT_LEADER_OR_FOLLOWER, "current_leader": leader})
    sending.broker.leaders, sending.broker.epochs = [2], [7]
    sending.send(b"a")
    assert sending.results == [0] and sending.network.now_ms == 0
    assert [node for node, key, _, _ in sending.broker.requests if key == PRODUCE] == [1, 2]


def test_a_lost_connection_is_no_answer() -> None:
    sending = Sending()
    sending.network.holds = True
    sending.send(b"a")
    sending.network.disconnect()
    assert not sending.results
    sending.network.advance(1000)
    # Without idempotence the first attempt may have been written.
    assert sending.results == [1] and sending.broker.written[0] == [b"a", b"a"]


def test_records_expire_in_the_queue_and_in_flight() -> None:
    sending = Sending(config=SenderConfig(delivery_timeout_ms=1000, max_in_flight=1, request_timeout_ms=5000))
    sending.network.holds = True
    sending.send(b"a")
    sending.send(b"b")
    sending.network.advance(999)
    assert not sending.results
    sending.network.advance(1)
    assert [type(one) for one in sending.results] == [KafkaTimeoutError] * 2
    assert sending.accumulator.pool.available < sending.accumulator.pool.total, "the request still has its batch"
    sending.network.release()
    assert sending.accumulator.pool.available == sending.accumulator.pool.total
    assert len(sending.results) == 2
    sending.send(b"c")
    assert sending.results[2] == 1


def test_a_node_that_cannot_be_reached_gets_no_batch() -> None:
    sending = Sending(config=SenderConfig(delivery_timeout_ms=1000))
    sending.network.refused.add(1)
    sending.send(b"a")
    sending.network.advance(2000)
    assert "connection refused" in str(sending.results[0])
    assert not sending.broker.seen(PRODUCE)


def test_a_throttled_node_gets_no_request() -> None:
    sending = Sending()
    sending.broker.throttle_time_ms = 500
    sending.send(b"a")
    sending.broker.throttle_time_ms = 0
    sending.send(b"b")
    sending.network.advance(499)
    assert sending.results == [0]
    sending.network.advance(1)
    assert sending.results == [0, 1]


def test_requests_in_flight_are_limited() -> None:
    sending = Sending(config=SenderConfig(max_in_flight=2), batch_size=1)
    sending.network.holds = True
    sending.send(*(value * 100 for value in (b"a", b"b", b"c")))
    assert len(sending.network.held) == 2
    sending.network.release()
    assert sending.results == [0, 1, 2]


def test_one_request_in_flight_keeps_the_order() -> None:
    sending = Sending(leaders=(1, 1), config=SenderConfig(max_in_flight=1), batch_size=1)
    sending.broker.results.append({"error_code": error_codes.NOT_ENOUGH_REPLICAS})
    sending.send(b"a" * 100, b"b" * 100)
    sending.network.advance(1000)
    assert sending.broker.written[0] == [b"a" * 100, b"b" * 100]


def test_without_acks_there_are_no_offsets() -> None:
    sending = Sending(config=SenderConfig(acks=0))
    sending.send(b"a")
    sending.network.advance(1)
    assert sending.results == [-1] and sending.broker.written[0] == [b"a"]


def test_without_acks_a_batch_ends_when_it_is_written() -> None:
    """Until then its memory is held and the request counts; one that is never written expires."""
    sending = Sending(config=SenderConfig(acks=0, delivery_timeout_ms=100_000, retries=0))
    sending.network.holds = True
    sending.send(b"a")
    sending.network.advance(1000)
    assert not sending.results and sending.sender.has_work
    assert sending.accumulator.pool.available < sending.accumulator.pool.total
    sending.network.release()
    assert sending.results == [-1] and not sending.sender.has_work
    sending.network.drops = True
    sending.send(b"b")
    sending.network.advance(30_000)
    assert codes(sending.results) == [-1, error_codes.REQUEST_TIMED_OUT]
    assert sending.accumulator.pool.available == sending.accumulator.pool.total


def test_a_partition_without_a_leader_waits_for_one() -> None:
    sending = Sending(leaders=(-1,))
    sending.send(b"a")
    sending.broker.leaders = [2]
    sending.network.advance(3000)
    assert sending.results == [0]


def test_versions_of_produce() -> None:
    sending = Sending()
    sending.send(b"a")
    assert sending.broker.versions_seen(PRODUCE) == [13]
    assert sending.broker.seen(PRODUCE)[0].topic_data[0].topic_id == sending.broker.topic_id
    sending = Sending(versions={PRODUCE: (0, 7)})
    sending.send(b"a")
    assert sending.broker.versions_seen(PRODUCE) == [7] and sending.results == [0]
    sending = Sending()
    sending.network.client.metadata.topic_ids.clear()
    sending.send(b"a")
    assert sending.broker.versions_seen(PRODUCE) == [12] and sending.results == [0]


def test_a_broker_without_our_versions_fails_the_batch() -> None:
    sending = Sending(versions={PRODUCE: (0, 2)})
    sending.send(b"a")
    sending.network.advance(1)
    assert codes(sending.results) == [error_codes.UNSUPPORTED_VERSION]
