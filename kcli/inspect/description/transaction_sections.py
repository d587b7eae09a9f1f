"""The sections on transactions, as rows of docs/describe.md: transactional ids, and open transactions of partitions.

A transaction that is open in a partition is hanging if no coordinator will end it: no transactional id has its producer id, or
the one that has it is not in a transaction with that partition. `kafka-transactions find-hanging` finds the same ones, but only
after a time. This is known only if all partitions of __transaction_state are given.
"""

from __future__ import annotations

from kcli.inspect.description.describe_options import DescribeOptions
from kcli.inspect.description.partition_log import PartitionLog, TransactionAtLogEnd
from kcli.inspect.description.topic_sections import Surveyed, known_time
from kcli.inspect.json_text import JsonObject as Row
from kcli.state.transaction_state import TransactionMetadata, TransactionState


def transaction_rows(state: TransactionState, options: DescribeOptions) -> list[Row]:
    """Return a row for each transactional id; with globs for topics only those in a transaction with one of them."""
    rows = []
    for transactional_id, transaction in sorted(state.transactions.items()):
        partitions = [
            {"topic": topic, "partitions": numbers}
            for topic, numbers in transaction.partitions_by_topic.items()
            if options.wants_topic(topic)
        ]
        if options.topics and not partitions:
            continue
        rows.append(
            {
                "transactionalId": transactional_id,
                "state": transaction.state,
                "producerId": transaction.producer_id,
                "producerEpoch": transaction.producer_epoch,
                "previousProducerId": _known_id(transaction.previous_producer_id),
                "nextProducerId": _known_id(transaction.next_producer_id),
                "timeoutMs": transaction.timeout_ms,
                "startTimestamp": known_time(transaction.start_timestamp_ms),
                "lastUpdateTimestamp": known_time(transaction.last_update_timestamp_ms),
                "clientTransactionVersion": transaction.client_transaction_version,
                "partitions": partitions,
            }
        )
    return rows


def open_transaction_rows(surveyed: Surveyed, state: TransactionState, *, is_whole: bool) -> list[Row]:
    """Return a row for each transaction that is open in a replica; `is_whole` if all of __transaction_state is given."""
    by_producer = {transaction.producer_id: transaction for transaction in state.transactions.values()}
    return [
        _open_row(log, txn, by_producer.get(txn.producer.producer_id), is_whole)
        for log in surveyed.logs
        for txn in log.open_transactions
    ]


def _open_row(log: PartitionLog, txn: TransactionAtLogEnd, transaction: TransactionMetadata | None, is_whole: bool) -> Row:
    topic, partition = log.directory.topic, log.directory.partition
    is_awaited = transaction is not None and (topic, partition) in transaction.partitions
    return {
        "topic": topic,
        "partition": partition,
        "producerId": txn.producer.producer_id,
        "producerEpoch": txn.producer.producer_epoch,
        "firstOffset": txn.first_offset,
        "lastTimestamp": known_time(txn.producer.last_timestamp),
        "transactionalId": None if transaction is None else transaction.transactional_id,
        "coordinatorState": None if transaction is None else transaction.state,
        "isHanging": False if is_awaited else True if is_whole else None,
    }


def _known_id(producer_id: int) -> int | None:
    return producer_id if producer_id >= 0 else None
