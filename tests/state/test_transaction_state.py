"""Protects the state of transactional ids: the last record of each counts, tombstones forget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type
from kcli.state.state_error import StateError
from kcli.state.transaction_state import TRANSACTION_STATES, TransactionState
from tests.state.given_topics import HAS_GIVEN, applied, directories, files, shown

KEY = message_type("transaction_records", "TransactionLogKey")
VALUE = message_type("transaction_records", "TransactionLogValue")


def key(transactional_id: str) -> Message:
    return KEY.new(transactional_id=transactional_id)


@pytest.mark.skipif(not HAS_GIVEN, reason="neither fixtures/ nor ../shared holds a given log directory")
@pytest.mark.parametrize("given", directories(), ids=lambda given: given.parent.name)
def test_the_last_record_of_each_transactional_id_counts(given: Path) -> None:
    state = TransactionState()
    last: dict[str, dict[str, Any]] = {}
    for file, dump in files(given, "__transaction_state"):
        for record in applied(file, dump, "__transaction_state"):
            if record.key is not None:
                state.apply(record.key, record.value)
        last |= {line.key["data"]["transactionalId"]: line.payload for line in shown(dump) if line.key}
    assert len(last) > 3 and sorted(state.transactions) == sorted(last)
    for transactional_id, payload in last.items():
        transaction, expected = state.transactions[transactional_id], payload["data"]
        assert (
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.previous_producer_id,
            transaction.timeout_ms,
            transaction.state,
            transaction.partitions_by_topic,
            transaction.last_update_timestamp_ms,
            transaction.start_timestamp_ms,
        ) == (
            expected["producerId"],
            expected["producerEpoch"],
            expected.get("previousProducerId", -1),
            expected["transactionTimeoutMs"],
            TRANSACTION_STATES[expected["transactionStatus"]],
            {part["topic"]: part["partitionIds"] for part in expected["transactionPartitions"] or []},
            expected["transactionLastUpdateTimestampMs"],
            expected["transactionStartTimestampMs"],
        )
    assert "Ongoing" in {transaction.state for transaction in state.transactions.values()}


def test_a_tombstone_forgets_and_one_of_nothing_is_ignored() -> None:
    state = TransactionState()
    state.apply(key("a"), VALUE.new(producer_id=5, transaction_status=1, transaction_partitions=None))
    assert (state.transactions["a"].state, state.transactions["a"].partitions_by_topic) == ("Ongoing", {})
    state.apply(key("b"), None)
    state.apply(key("a"), None)
    assert state.transactions == {}


def test_a_state_that_is_newer_than_the_table_has_its_number() -> None:
    state = TransactionState()
    state.apply(key("a"), VALUE.new(transaction_status=9))
    assert state.transactions["a"].state == "UNKNOWN(9)"


def test_a_record_of_another_topic_is_refused() -> None:
    with pytest.raises(StateError, match="GroupMetadataKey"):
        TransactionState().apply(message_type("group_records", "GroupMetadataKey").new(), None)
