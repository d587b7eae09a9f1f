"""Protects: whichever error code a broker answers to whichever request of a producer, each record that has an offset is in the
log once and in order, a record with an error has the right one, and a transaction is committed whole or not at all.

The broker is a whole node of kcli in virtual time; in each run another request meets the code (tests.client.refusing_node).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kcli.client.consumer.membership import GroupMetadata
from kcli.client.errors import (
    ClientError,
    KafkaError,
    TransactionAbortableError,
    TransactionFatalError,
)
from kcli.client.value_checks import OffsetAndMetadata
from kcli.protocol import apis
from kcli.protocol import error_codes as codes
from tests.client.faulty_node import SHORT_TIMEOUTS
from tests.client.producer.producer_app import ProducerApp, committed_offset, values_in_log
from tests.client.refusing_node import Refusal, RefusingNode, each_of, refusals_of

pytestmark = pytest.mark.ci  # half a minute of CPU time together

RECORDS = 10
PARTITION = "PartitionProduceResponse"
MOVED = (codes.COORDINATOR_LOAD_IN_PROGRESS, codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR)
OF_ALL = [
    *refusals_of(
        apis.METADATA,
        "MetadataResponseTopic",
        codes.LEADER_NOT_AVAILABLE,
        codes.UNKNOWN_TOPIC_OR_PARTITION,
        codes.UNKNOWN_TOPIC_ID,
    ),
    *refusals_of(
        apis.METADATA,
        "MetadataResponsePartition",
        codes.LEADER_NOT_AVAILABLE,
        codes.LISTENER_NOT_FOUND,
        codes.REPLICA_NOT_AVAILABLE,
    ),
    Refusal(apis.METADATA, "", codes.REBOOTSTRAP_REQUIRED),
    *refusals_of(
        apis.PRODUCE,
        PARTITION,
        codes.CORRUPT_MESSAGE,
        codes.UNKNOWN_TOPIC_OR_PARTITION,
        codes.LEADER_NOT_AVAILABLE,
        codes.NOT_LEADER_OR_FOLLOWER,
        codes.REQUEST_TIMED_OUT,
        codes.NETWORK_EXCEPTION,
        codes.NOT_ENOUGH_REPLICAS,
        codes.KAFKA_STORAGE_ERROR,
        codes.UNKNOWN_TOPIC_ID,
        codes.INCONSISTENT_TOPIC_ID,
        codes.COORDINATOR_NOT_AVAILABLE,
        codes.CONCURRENT_TRANSACTIONS,
        codes.UNKNOWN_PRODUCER_ID,
    ),
    *refusals_of(
        apis.PRODUCE,
        PARTITION,
        codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        codes.REQUEST_TIMED_OUT,
        codes.NOT_LEADER_OR_FOLLOWER,
        codes.KAFKA_STORAGE_ERROR,
        codes.UNKNOWN_TOPIC_OR_PARTITION,
        codes.NETWORK_EXCEPTION,
        is_executed=True,
    ),
]
OF_IDEMPOTENCE = [
    *refusals_of(apis.INIT_PRODUCER_ID, "", *MOVED, codes.REQUEST_TIMED_OUT, codes.CONCURRENT_TRANSACTIONS),
    *refusals_of(apis.PRODUCE, PARTITION, codes.OUT_OF_ORDER_SEQUENCE_NUMBER),
]
# The batch fails, and those after it are written.
OF_A_BATCH = refusals_of(
    apis.PRODUCE,
    PARTITION,
    codes.UNKNOWN_SERVER_ERROR,
    codes.INVALID_TOPIC_EXCEPTION,
    codes.RECORD_LIST_TOO_LARGE,
    codes.INVALID_REQUIRED_ACKS,
    codes.TOPIC_AUTHORIZATION_FAILED,
    codes.INVALID_TIMESTAMP,
    codes.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    codes.POLICY_VIOLATION,
    codes.UNSUPPORTED_COMPRESSION_TYPE,
    codes.INVALID_RECORD,
    codes.INVALID_PRODUCER_EPOCH,
    codes.INVALID_REQUEST,
)
# The producer is of no use any more.
OF_THE_PRODUCER = [
    *refusals_of(apis.PRODUCE, PARTITION, codes.CLUSTER_AUTHORIZATION_FAILED, codes.UNSUPPORTED_VERSION),
]
PASSING_IN_TRANSACTIONS = [
    *refusals_of(apis.FIND_COORDINATOR, "Coordinator", *MOVED, codes.REQUEST_TIMED_OUT),
    *refusals_of(apis.INIT_PRODUCER_ID, "", *MOVED, codes.CONCURRENT_TRANSACTIONS, codes.REQUEST_TIMED_OUT),
    *refusals_of(apis.INIT_PRODUCER_ID, "", *MOVED, codes.CONCURRENT_TRANSACTIONS, is_executed=True),
    *refusals_of(
        apis.TXN_OFFSET_COMMIT,
        "TxnOffsetCommitResponsePartition",
        *MOVED,
        codes.UNKNOWN_TOPIC_OR_PARTITION,
        codes.REQUEST_TIMED_OUT,
        codes.CONCURRENT_TRANSACTIONS,
    ),
    *refusals_of(
        apis.TXN_OFFSET_COMMIT,
        "TxnOffsetCommitResponsePartition",
        *MOVED,
        codes.REQUEST_TIMED_OUT,
        is_executed=True,
    ),
    *refusals_of(apis.END_TXN, "", *MOVED, codes.CONCURRENT_TRANSACTIONS),
    *refusals_of(apis.END_TXN, "", *MOVED, is_executed=True),
]
PASSING_IN_VERSION_1 = [
    *refusals_of(
        apis.ADD_PARTITIONS_TO_TXN,
        "AddPartitionsToTxnPartitionResult",
        *MOVED,
        codes.CONCURRENT_TRANSACTIONS,
        codes.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    *refusals_of(apis.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxnPartitionResult", *MOVED, is_executed=True),
    *refusals_of(apis.ADD_OFFSETS_TO_TXN, "", *MOVED, codes.CONCURRENT_TRANSACTIONS),
    *refusals_of(apis.ADD_OFFSETS_TO_TXN, "", *MOVED, is_executed=True),
]
LASTING_IN_TRANSACTIONS = [
    *OF_A_BATCH,
    *OF_THE_PRODUCER,
    *refusals_of(
        apis.PRODUCE,
        PARTITION,
        codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
        codes.INVALID_TXN_STATE,
        codes.INVALID_PRODUCER_ID_MAPPING,
        codes.PRODUCER_FENCED,
        codes.TRANSACTION_ABORTABLE,
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    *refusals_of(
        apis.TXN_OFFSET_COMMIT,
        "TxnOffsetCommitResponsePartition",
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.FENCED_INSTANCE_ID,
        codes.ILLEGAL_GENERATION,
        codes.UNKNOWN_MEMBER_ID,
        codes.STALE_MEMBER_EPOCH,
        codes.INVALID_PRODUCER_EPOCH,
        codes.PRODUCER_FENCED,
        codes.UNKNOWN_PRODUCER_ID,
        codes.INVALID_PRODUCER_ID_MAPPING,
        codes.TRANSACTION_ABORTABLE,
        codes.OFFSET_METADATA_TOO_LARGE,
        codes.INVALID_COMMIT_OFFSET_SIZE,
        codes.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        codes.UNKNOWN_SERVER_ERROR,
    ),
    *refusals_of(
        apis.END_TXN,
        "",
        codes.INVALID_TXN_STATE,
        codes.INVALID_PRODUCER_EPOCH,
        codes.PRODUCER_FENCED,
        codes.UNKNOWN_PRODUCER_ID,
        codes.INVALID_PRODUCER_ID_MAPPING,
        codes.TRANSACTION_ABORTABLE,
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        codes.UNKNOWN_SERVER_ERROR,
    ),
    *refusals_of(
        apis.FIND_COORDINATOR, "Coordinator", codes.GROUP_AUTHORIZATION_FAILED, codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    ),
    *refusals_of(
        apis.INIT_PRODUCER_ID, "", codes.INVALID_PRODUCER_EPOCH, codes.PRODUCER_FENCED, codes.INVALID_TRANSACTION_TIMEOUT
    ),
]
LASTING_IN_VERSION_1 = [
    *refusals_of(
        apis.ADD_PARTITIONS_TO_TXN,
        "AddPartitionsToTxnPartitionResult",
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.OPERATION_NOT_ATTEMPTED,
        codes.INVALID_PRODUCER_EPOCH,
        codes.UNKNOWN_PRODUCER_ID,
        codes.INVALID_PRODUCER_ID_MAPPING,
        codes.INVALID_TXN_STATE,
        codes.TRANSACTION_ABORTABLE,
    ),
    *refusals_of(
        apis.ADD_OFFSETS_TO_TXN,
        "",
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.INVALID_PRODUCER_EPOCH,
        codes.UNKNOWN_PRODUCER_ID,
        codes.INVALID_PRODUCER_ID_MAPPING,
        codes.INVALID_TXN_STATE,
        codes.TRANSACTION_ABORTABLE,
    ),
]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RefusingNode]:
    settings = "offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1", "group.initial.rebalance.delay.ms=0"
    node = RefusingNode(tmp_path, *settings)
    yield node
    node.clients.clear()
    node.stop()


def written(
    node: RefusingNode, run: int, refusal: Refusal, **settings: object
) -> tuple[ProducerApp, list[list[bytes]], list[list[bytes]]]:
    """Write to two partitions; return the producer, the values that were sent, and those in the log."""
    topic = f"t{run}"
    node.create_topic(topic, 2)
    app = ProducerApp(node, "p", **{**SHORT_TIMEOUTS, "batch_size": 150, "linger_ms": 0, **settings})
    sent = [[b"%d-%d" % (partition, number) * 9 for number in range(RECORDS)] for partition in range(2)]
    for number in range(RECORDS):
        for partition in range(2):
            app.send(topic, sent[partition][number], partition)
    app.flush()
    node.advance(2000)
    logs = [values_in_log(node, topic, partition) for partition in range(2)]
    assert set(app.results) == {value for values in sent for value in values}
    for log in logs:
        for offset, value in enumerate(log):
            assert isinstance(app.results[value], ClientError) or app.results[value] == offset, (run, refusal.name)
    for partition in range(2):
        kept = [value for value in sent[partition] if not isinstance(app.results[value], ClientError)]
        assert [value for value in logs[partition] if value in kept] == kept, (run, refusal.name)
        assert [value for value in sent[partition] if value in logs[partition]] == logs[partition], (run, refusal.name)
    assert app.call(app.core.close, 1000) is None
    app.kill()
    return app, sent, logs


@each_of([*OF_ALL, *OF_IDEMPOTENCE])
def test_an_idempotent_producer_writes_each_record_once(node: RefusingNode, refusal: Refusal) -> None:
    for run in node.refusals(refusal):
        _, sent, logs = written(node, run, refusal)
        assert logs == sent, run
    assert run > 1


@each_of([one for one in OF_ALL if not one.is_executed and one.code != codes.UNKNOWN_PRODUCER_ID])
def test_a_producer_with_one_request_in_flight_keeps_the_order(node: RefusingNode, refusal: Refusal) -> None:
    for run in node.refusals(refusal):
        _, sent, logs = written(node, run, refusal, enable_idempotence=False, max_in_flight_requests_per_connection=1)
        assert logs == sent, run
    assert run > 1


@each_of(OF_A_BATCH)
@pytest.mark.parametrize("is_idempotent", [True, False])
def test_only_the_refused_batch_fails(node: RefusingNode, refusal: Refusal, is_idempotent: bool) -> None:
    for run in node.refusals(refusal):
        app, sent, logs = written(node, run, refusal, enable_idempotence=is_idempotent)
        errors = {value: one for value, one in app.results.items() if isinstance(one, ClientError)}
        assert bool(errors) == node.is_refused
        assert all(isinstance(one, KafkaError) and one.code == refusal.code for one in errors.values())
        assert logs == [[value for value in values if value not in errors] for values in sent], run
    assert run > 1


@each_of(refusals_of(apis.PRODUCE, PARTITION, codes.MESSAGE_TOO_LARGE))
@pytest.mark.parametrize("is_idempotent", [True, False])
def test_a_batch_that_is_too_large_is_split(node: RefusingNode, refusal: Refusal, is_idempotent: bool) -> None:
    settings = {"batch_size": 1000, "linger_ms": 50, "enable_idempotence": is_idempotent}
    for run in node.refusals(refusal):
        _, sent, logs = written(node, run, refusal, **settings, max_in_flight_requests_per_connection=1)
        assert logs == sent, run
    assert run > 1


@each_of(OF_THE_PRODUCER)
def test_all_records_fail_after_a_fatal_error(node: RefusingNode, refusal: Refusal) -> None:
    for run in node.refusals(refusal):
        app, _, _ = written(node, run, refusal)
        errors = [one for one in app.results.values() if isinstance(one, ClientError)]
        assert bool(errors) == node.is_refused
    assert run > 1


# ---------------------------------------------------------------------------------------------------------- transactions


class Application:
    """Writes three transactions, of which the second is aborted, and does after errors what Kafka's documentation says."""

    def __init__(self, node: RefusingNode, run: int, version: int) -> None:
        self.node, self.version = node, version
        self.topic, self.group = f"t{run}", f"g{run}"
        self.aborts = self.starts = 0
        node.create_topic(self.topic)
        self.app = self.started()

    def started(self) -> ProducerApp:
        for _ in range(5):
            self.starts += 1
            app = ProducerApp(self.node, "p", batch_size=150, linger_ms=0, transactional_id=self.topic, **SHORT_TIMEOUTS)
            app.client.network.feature_level = lambda name: self.version  # type: ignore[method-assign]
            if app.call(app.core.init_transactions) is None:
                return app
            app.kill()
        raise AssertionError("no producer can be initialized")

    def run(self) -> list[bytes]:
        expected: list[bytes] = []
        for number in range(3):
            values = [b"%d-%d" % (number, index) * 9 for index in range(4)]
            is_commit = number != 1
            for _ in range(5):
                error = self.attempt(number, values, is_commit)
                if error is None:
                    break
                assert isinstance(error, (TransactionAbortableError, TransactionFatalError)), error
                if isinstance(error, TransactionFatalError):
                    self.app.kill()
                    self.app = self.started()
            else:
                raise AssertionError("the transaction fails again and again")
            expected += values if is_commit else []
        self.app.kill()
        return expected

    def attempt(self, number: int, values: list[bytes], is_commit: bool) -> ClientError | None:
        """One transaction; return the error after which it is to be tried again."""
        app = self.app
        app.results.clear()
        error = self.body(number, values, is_commit)
        if error is None or isinstance(error, TransactionFatalError):
            return error
        self.aborts += 1
        failed = app.call(app.core.abort_transaction)
        return error if failed is None else failed

    def body(self, number: int, values: list[bytes], is_commit: bool) -> ClientError | None:
        app = self.app
        try:
            app.core.begin_transaction()
        except ClientError as error:
            return error
        for value in values:
            app.send(self.topic, value, waits=True)
        offsets = {(self.topic, 0): OffsetAndMetadata(number)}
        error = app.call(app.core.send_offsets_to_transaction, offsets, GroupMetadata(self.group))
        if error is None:
            error = app.call(app.core.commit_transaction if is_commit else app.core.abort_transaction)
        if error is None and is_commit:
            app.node.pump()
            assert all(isinstance(app.results[value], int) for value in values)
        return error


def transacted(node: RefusingNode, run: int, version: int, refusal: Refusal) -> Application:
    application = Application(node, run, version)
    expected = application.run()
    node.advance(3000)
    assert values_in_log(node, application.topic, committed_only=True) == expected, (run, refusal.name)
    assert committed_offset(node, application.group, application.topic) == 2, (run, refusal.name)
    return application


VERSIONS = pytest.mark.parametrize("version", [1, 2])


@each_of([*OF_ALL, *PASSING_IN_TRANSACTIONS, *PASSING_IN_VERSION_1])
@VERSIONS
def test_transactions_succeed_in_spite_of_errors_that_pass(node: RefusingNode, refusal: Refusal, version: int) -> None:
    for run in node.refusals(refusal):
        application = transacted(node, run, version, refusal)
        if refusal.code != codes.UNKNOWN_PRODUCER_ID:
            assert (application.starts, application.aborts) == (1, 0), run
    assert run > 1 or (version == 2 and refusal in PASSING_IN_VERSION_1)


@each_of([*LASTING_IN_TRANSACTIONS, *LASTING_IN_VERSION_1])
@VERSIONS
def test_transactions_that_fail_leave_nothing(node: RefusingNode, refusal: Refusal, version: int) -> None:
    """They can be aborted, or the producer is closed and another one begins: what is committed then is there once."""
    for run in node.refusals(refusal):
        application = transacted(node, run, version, refusal)
        is_noticed = application.starts > 1 or application.aborts > 0
        assert is_noticed == node.is_refused or (refusal.api_key == apis.END_TXN and node.is_refused), run  # of an abort
    assert run > 1 or (version == 2 and refusal in LASTING_IN_VERSION_1)
