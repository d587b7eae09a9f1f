"""Protects: what errors do to ids, epochs and sequences of a producer, and which calls its states allow."""

from __future__ import annotations

from typing import Any

import pytest

from kcli.client.errors import (
    ConfigError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionFatalError,
)
from kcli.client.producer.producer import ProducerCore, Record
from kcli.client.producer.producer_config import ProducerConfig, read_producer_config
from kcli.client.producer.transaction_requests import Verdict, verdict_of
from kcli.format.record_batch import check_batch
from kcli.protocol import apis, error_codes
from kcli.protocol.apis import API_KEYS
from kcli.protocol.message import Message
from tests.client.producer.fake_broker import Broker, Network


class Producing:
    """A producer's core on a fake broker that is also the coordinator of transactions."""

    def __init__(self, versions: dict[int, tuple[int, int]] | None = None, **settings: Any) -> None:
        self.broker = Broker(versions=versions)
        self.broker.handlers |= {
            apis.INIT_PRODUCER_ID: self._init,
            apis.FIND_COORDINATOR: self._find,
            apis.END_TXN: self._end,
            apis.ADD_PARTITIONS_TO_TXN: self._add,
        }
        self.codes: dict[int, list[int]] = {}  # by API: the errors of the next answers
        self.epoch = 0
        self.network = Network(self.broker)
        self.core = ProducerCore(self.network.client, ProducerConfig(linger_ms=0, **settings), lambda line: None)
        self.network.poll = self.core.poll
        self.results: list[Any] = []

    def _code(self, key: int) -> int:
        codes = self.codes.get(key)
        return codes.pop(0) if codes else error_codes.NONE

    def _init(self, request: Message, version: int) -> Message:
        code = self._code(apis.INIT_PRODUCER_ID)
        if not code and request.producer_id >= 0:
            self.epoch = request.producer_epoch + 1
        return API_KEYS[apis.INIT_PRODUCER_ID].response.new(error_code=code, producer_id=7, producer_epoch=self.epoch)

    def _find(self, request: Message, version: int) -> Message:
        kind = API_KEYS[apis.FIND_COORDINATOR].response
        if version < 4:
            return kind.new(node_id=1, host="broker", port=1)
        found = kind.classes["Coordinator"](key=request.coordinator_keys[0], node_id=1, host="broker", port=1)
        return kind.new(coordinators=[found])

    def _end(self, request: Message, version: int) -> Message:
        code = self._code(apis.END_TXN)
        if version >= 5 and not code:
            self.epoch += 1
            return API_KEYS[apis.END_TXN].response.new(producer_id=7, producer_epoch=self.epoch)
        return API_KEYS[apis.END_TXN].response.new(error_code=code)

    def _add(self, request: Message, version: int) -> Message:
        kind = API_KEYS[apis.ADD_PARTITIONS_TO_TXN].response
        of_topic, of_partition = (kind.classes[f"AddPartitionsToTxn{name}Result"] for name in ("Topic", "Partition"))
        code = self._code(apis.ADD_PARTITIONS_TO_TXN)
        topics = [
            of_topic(
                name=topic.name,
                results_by_partition=[of_partition(partition_index=one, partition_error_code=code) for one in topic.partitions],
            )
            for topic in request.v3_and_below_topics
        ]
        return kind.new(results_by_topic_v3_and_below=topics)

    def send(self, *values: bytes) -> None:
        for value in values:
            record = Record("t", value, on_delivery=lambda found, error: self.results.append(error or found.offset))
            self.core.send(record, lambda error, now_ms: self.results.append(error) if error else None, self.network.now_ms)
            self.network.pump()

    def hold_from_produce_on(self) -> None:
        """Hold the answers to Produce, and what follows, until `release`."""

        def hold(request: Message, version: int) -> Message:
            self.network.holds = True
            return self.broker._produce(request, version)

        self.broker.handlers[apis.PRODUCE] = hold

    def release(self) -> None:
        self.broker.handlers[apis.PRODUCE] = self.broker._produce
        self.network.release()

    def call(self, start: Any) -> Any:
        found: list[Any] = []
        start(lambda result, now_ms: found.append(result), self.network.now_ms)
        self.network.advance(61_000)
        return found[0]

    def sent(self) -> list[tuple[int, int]]:
        """Epoch and sequence of all batches that the broker got."""
        batches = [
            check_batch(bytes(part.records))
            for request in self.broker.seen(apis.PRODUCE)
            for topic in request.topic_data
            for part in topic.partition_data
        ]
        return [(batch.producer_epoch, batch.base_sequence) for batch in batches]


def begun(**settings: Any) -> Producing:
    producing = Producing(transactional_id="x", **settings)
    assert producing.call(producing.core.init_transactions) is None
    producing.core.begin_transaction()
    producing.send(b"first")
    producing.network.advance(1000)
    assert producing.results == [0]
    return producing


def test_an_idempotent_producer_numbers_its_batches() -> None:
    producing = Producing()
    producing.send(b"a", b"b", b"c")
    assert producing.sent() == [(0, 0), (0, 1), (0, 2)] and producing.results == [0, 1, 2]


@pytest.mark.parametrize("code", [error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER, error_codes.UNKNOWN_PRODUCER_ID])
def test_a_lost_state_raises_the_epoch(code: int) -> None:
    """KIP-360: the producer goes on with the next epoch, from sequence 0 on, and asks nobody."""
    producing = Producing()
    producing.send(b"a", b"b")
    producing.broker.results.append({"error_code": code, "log_start_offset": 0})
    producing.send(b"c")
    producing.network.advance(1000)
    assert producing.sent() == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert producing.results == [0, 1, 2] and len(producing.broker.seen(apis.INIT_PRODUCER_ID)) == 1


def test_the_first_batch_of_a_partition_is_sent_alone() -> None:
    """A broker without a state of the producer takes any sequence, also that of a second batch if it refused the first one.

    The first one could not be written any more: it would be out of order until it expires.
    """
    producing = Producing()
    producing.hold_from_produce_on()
    producing.broker.results.append({"error_code": error_codes.NOT_LEADER_OR_FOLLOWER})
    producing.send(b"a", b"b", b"c")
    assert producing.sent() == [(0, 0)]
    producing.release()
    producing.network.advance(1000)
    assert producing.broker.written[0] == [b"a", b"b", b"c"]
    count = len(producing.sent())
    producing.hold_from_produce_on()
    producing.send(b"d", b"e", b"f")
    assert len(producing.sent()) == count + 3, "after its first acknowledgement a partition has several requests in flight"
    producing.release()


def test_a_batch_that_others_have_overtaken_is_not_written_twice() -> None:
    """Its answer was lost, and the broker that was restarted knows the last batch only: it may have this one, too."""
    producing = Producing(delivery_timeout_ms=31_000)
    producing.send(b"a")
    producing.hold_from_produce_on()
    producing.broker.results.append({"error_code": error_codes.NOT_LEADER_OR_FOLLOWER})
    producing.send(b"b", b"c")
    producing.broker.results += [{"error_code": error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER}] * 1000
    producing.release()
    producing.network.advance(40_000)
    assert producing.broker.written[0] == [b"a", b"c"] and producing.results[1] == 1
    assert {one for one in producing.sent() if one != (0, 1)} == {(0, 0), (0, 2)}, "it keeps its sequence"
    assert isinstance(producing.results[2], KafkaTimeoutError | KafkaError)


def test_a_batch_that_failed_for_good_raises_the_epoch() -> None:
    producing = Producing()
    producing.send(b"a")
    producing.broker.results.append({"error_code": error_codes.INVALID_TIMESTAMP})
    producing.send(b"b")
    producing.send(b"c")
    assert producing.sent() == [(0, 0), (0, 1), (1, 0)] and producing.results[2] == 1


def test_without_the_permission_to_be_idempotent_batches_fail_until_it_is_given() -> None:
    producing = Producing()
    producing.codes[apis.INIT_PRODUCER_ID] = [error_codes.CLUSTER_AUTHORIZATION_FAILED] * 2
    producing.send(b"a")
    producing.network.advance(5000)
    assert [one.code for one in producing.results] == [error_codes.CLUSTER_AUTHORIZATION_FAILED]
    producing.send(b"b")
    assert producing.results[1] == 0


def test_a_coordinator_that_loads_is_asked_again() -> None:
    producing = Producing(transactional_id="x")
    codes = [error_codes.COORDINATOR_LOAD_IN_PROGRESS, error_codes.NOT_COORDINATOR, error_codes.CONCURRENT_TRANSACTIONS]
    producing.codes[apis.INIT_PRODUCER_ID] = list(codes)
    assert producing.call(producing.core.init_transactions) is None
    assert len(producing.broker.seen(apis.INIT_PRODUCER_ID)) == 4 and len(producing.broker.seen(apis.FIND_COORDINATOR)) == 2


def test_calls_that_the_state_forbids() -> None:
    producing = Producing(transactional_id="x")
    with pytest.raises(IllegalStateError):
        producing.core.begin_transaction()
    producing.send(b"a")
    assert isinstance(producing.results.pop(), IllegalStateError)
    assert producing.call(producing.core.init_transactions) is None
    assert isinstance(producing.call(producing.core.init_transactions), IllegalStateError)
    assert isinstance(producing.call(producing.core.commit_transaction), IllegalStateError)
    producing.core.begin_transaction()
    with pytest.raises(IllegalStateError):
        producing.core.begin_transaction()
    with pytest.raises(IllegalStateError):
        Producing().core.begin_transaction()


def test_an_empty_transaction_sends_nothing() -> None:
    producing = Producing(transactional_id="x")
    producing.call(producing.core.init_transactions)
    producing.core.begin_transaction()
    assert producing.call(producing.core.commit_transaction) is None
    assert not producing.broker.seen(apis.END_TXN)


def test_an_aborted_transaction_drops_what_was_not_sent() -> None:
    producing = Producing(transactional_id="x", batch_size=16384)
    producing.call(producing.core.init_transactions)
    producing.core.begin_transaction()
    producing.network.client.metadata.want_topic("t")
    producing.network.client.request_update()
    producing.network.advance(1000)
    producing.network.holds = True
    record = Record("t", b"a", on_delivery=lambda found, error: producing.results.append(error))
    producing.core.send(record, lambda error, now_ms: None, producing.network.now_ms)
    found: list[Any] = []
    producing.core.abort_transaction(lambda error, now_ms: found.append(error), producing.network.now_ms)
    producing.network.pump()
    producing.network.release()
    producing.network.advance(1000)
    assert found == [None] and isinstance(producing.results[0], TransactionAbortedError)


def test_an_abortable_error_leaves_only_the_abort() -> None:
    producing = begun()
    producing.broker.results.append({"error_code": error_codes.INVALID_TIMESTAMP})
    producing.send(b"bad")
    producing.send(b"late")
    assert isinstance(producing.results[1], KafkaError) and isinstance(producing.results[2], TransactionAbortableError)
    assert isinstance(producing.call(producing.core.commit_transaction), TransactionAbortableError)
    assert producing.call(producing.core.abort_transaction) is None
    # The sequence of the batch that failed is missing: the epoch rises (KIP-360).
    assert producing.epoch == 1
    producing.core.begin_transaction()
    producing.send(b"good")
    producing.network.advance(100)
    assert producing.sent()[-1] == (1, 0)
    assert producing.call(producing.core.commit_transaction) is None


@pytest.mark.parametrize("is_written", [True, False])
def test_a_batch_behind_one_out_of_order_keeps_its_sequence(is_written: bool) -> None:
    """A broker that was restarted may know the last batch only. Each one then gets its own answer: with the sequence of the
    one before, a record would be reported at the offset of another. In a transaction that has failed none is tried again."""
    producing = begun()
    producing.network.holds = True
    producing.send(b"a", b"b")
    code = error_codes.DUPLICATE_SEQUENCE_NUMBER if is_written else error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER
    producing.broker.results += [{"error_code": error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER}, {"error_code": code}]
    producing.network.disconnect()
    producing.network.advance(10_000)
    assert producing.sent() == [(0, 0), (0, 1), (0, 2), (0, 1), (0, 2)]
    assert isinstance(producing.results[1], KafkaError) and isinstance(producing.results[2], KafkaError) != is_written
    assert producing.call(producing.core.abort_transaction) is None
    producing.core.begin_transaction()
    producing.send(b"next")
    producing.network.advance(100)
    assert producing.sent()[-1] == (1, 0)


def test_with_version_2_each_transaction_has_its_epoch_and_adds_no_partitions() -> None:
    producing = Producing(transactional_id="x")
    producing.broker.features = {"transaction.version": 2}
    producing.call(producing.core.init_transactions)
    for number in range(2):
        producing.core.begin_transaction()
        producing.send(b"%d" % number)
        assert producing.call(producing.core.commit_transaction) is None
    assert producing.sent() == [(0, 0), (1, 0)] and not producing.broker.seen(apis.ADD_PARTITIONS_TO_TXN)
    assert producing.broker.versions_seen(apis.END_TXN) == [5, 5]
    old = begun()
    assert old.call(old.core.commit_transaction) is None
    assert old.broker.versions_seen(apis.END_TXN) == [4] and old.broker.versions_seen(apis.PRODUCE) == [11]


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("code", [error_codes.TRANSACTION_ABORTABLE, error_codes.INVALID_PRODUCER_ID_MAPPING])
def test_an_abort_that_is_refused_ends_with_a_new_epoch(level: int, code: int) -> None:
    """The transaction may be open: the next commit of the same epoch would commit its records."""
    producing = Producing(transactional_id="x")
    producing.network.client.feature_level = lambda name: level  # type: ignore[method-assign]
    assert producing.call(producing.core.init_transactions) is None
    producing.core.begin_transaction()
    producing.send(b"first")
    producing.network.advance(1000)
    producing.codes[apis.END_TXN] = [code]
    assert producing.call(producing.core.abort_transaction) is None
    assert [one.producer_id for one in producing.broker.seen(apis.INIT_PRODUCER_ID)] == [-1, 7]
    producing.core.begin_transaction()
    producing.send(b"second")
    assert producing.call(producing.core.commit_transaction) is None
    assert [epoch for epoch, _ in producing.sent()] == [0, 1]


def test_an_abort_after_init_transactions_failed_gets_a_producer_id() -> None:
    """KIP-1050 allows the error there, too; a producer without an id could send nothing, and its records would expire."""
    producing = Producing(transactional_id="x")
    producing.codes[apis.INIT_PRODUCER_ID] = [error_codes.TRANSACTION_ABORTABLE]
    assert isinstance(producing.call(producing.core.init_transactions), TransactionAbortableError)
    assert producing.call(producing.core.abort_transaction) is None
    assert len(producing.broker.seen(apis.INIT_PRODUCER_ID)) == 2
    producing.core.begin_transaction()
    producing.send(b"a")
    assert producing.call(producing.core.commit_transaction) is None and producing.results == [0]


def test_a_transaction_ends_in_the_version_in_which_it_was() -> None:
    """An EndTxn that is sent again, too: the coordinator takes another version for a second end, and refuses it."""
    producing = Producing(transactional_id="x")
    level = 1
    producing.network.client.feature_level = lambda name: level  # type: ignore[method-assign]
    assert producing.call(producing.core.init_transactions) is None
    producing.core.begin_transaction()
    producing.send(b"first")
    producing.network.advance(1000)
    level = 2
    producing.codes[apis.END_TXN] = [error_codes.COORDINATOR_LOAD_IN_PROGRESS]
    assert producing.call(producing.core.commit_transaction) is None
    assert producing.broker.versions_seen(apis.END_TXN) == [4, 4]
    producing.core.begin_transaction()
    producing.send(b"second")
    assert producing.call(producing.core.commit_transaction) is None
    assert producing.broker.versions_seen(apis.END_TXN) == [4, 4, 5]


def test_a_fenced_producer_can_only_be_closed() -> None:
    producing = begun()
    producing.codes[apis.END_TXN] = [error_codes.PRODUCER_FENCED]
    assert isinstance(producing.call(producing.core.commit_transaction), ProducerFencedError)
    producing.send(b"late")
    assert isinstance(producing.results[-1], ProducerFencedError)
    assert isinstance(producing.call(producing.core.abort_transaction), TransactionFatalError)


def test_a_broker_of_kafka_2_1() -> None:
    """It has no epochs in InitProducerId: after an error the transaction can be aborted, and the epoch stays."""
    highest = {
        apis.PRODUCE: 7,
        apis.METADATA: 7,
        apis.API_VERSIONS: 2,
        apis.FIND_COORDINATOR: 2,
        apis.INIT_PRODUCER_ID: 1,
        apis.ADD_PARTITIONS_TO_TXN: 1,
        apis.END_TXN: 1,
    }
    producing = begun(versions={key: (0, version) for key, version in highest.items()})
    producing.broker.results.append({"error_code": error_codes.INVALID_TIMESTAMP})
    producing.send(b"bad")
    producing.send(b"late")
    assert producing.call(producing.core.abort_transaction) is None
    producing.core.begin_transaction()
    producing.send(b"good")
    producing.network.advance(100)
    assert producing.call(producing.core.commit_transaction) is None
    assert producing.sent() == [(0, 0), (0, 1), (0, 1)]
    assert set(producing.broker.versions_seen(apis.PRODUCE)) == {7} and producing.broker.seen(apis.END_TXN)
    plain = Producing(versions={key: (0, version) for key, version in highest.items()})
    plain.send(b"a")
    plain.network.advance(1000)
    assert plain.results == [0]


def test_verdicts() -> None:
    assert verdict_of(apis.END_TXN, error_codes.NONE) is Verdict.DONE
    for key in (
        apis.INIT_PRODUCER_ID,
        apis.ADD_PARTITIONS_TO_TXN,
        apis.ADD_OFFSETS_TO_TXN,
        apis.TXN_OFFSET_COMMIT,
        apis.END_TXN,
    ):
        assert verdict_of(key, error_codes.NOT_COORDINATOR) is Verdict.AGAIN
        assert verdict_of(key, error_codes.INVALID_PRODUCER_EPOCH) is Verdict.FENCED
        assert verdict_of(key, error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED) is Verdict.FATAL
        assert verdict_of(key, error_codes.TRANSACTION_ABORTABLE) is Verdict.ABORTABLE
    assert verdict_of(apis.TXN_OFFSET_COMMIT, error_codes.ILLEGAL_GENERATION) is Verdict.ABORTABLE
    assert verdict_of(apis.INIT_PRODUCER_ID, error_codes.UNKNOWN_PRODUCER_ID) is Verdict.FATAL


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, True),
        ({"acks": "1"}, False),
        ({"retries": "0"}, False),
        ({"max.in.flight.requests.per.connection": "6"}, False),
        ({"enable.idempotence": "true", "acks": "1"}, None),
        ({"transactional.id": "x", "acks": "0"}, None),
        ({"transactional.id": "x", "enable.idempotence": "false"}, None),
        ({"delivery.timeout.ms": "1000"}, None),
        ({"acks": "2"}, None),
        ({"compression.type": "rar"}, None),
    ],
)
def test_settings_that_contradict(properties: dict[str, str], expected: bool | None) -> None:
    if expected is None:
        with pytest.raises(ConfigError):
            read_producer_config(properties)
    else:
        assert read_producer_config(properties).enable_idempotence is expected
