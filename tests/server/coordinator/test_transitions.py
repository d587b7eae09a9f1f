"""Protects the table of transactions: what a request makes of a transactional id in each state, or its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kcli.format.record_batch import Producer
from kcli.protocol import error_codes
from kcli.server.coordinator.operation import CoordinatorError
from kcli.server.coordinator.transaction import transitions
from kcli.server.coordinator.transaction.transaction_shard import transaction_record
from kcli.server.coordinator.transaction.transitions import InitRequest, NeedsProducerIdError
from kcli.state.transaction_state import TransactionMetadata, TransactionState

NAMES = error_codes.NAMES
ID, NEW_ID, EPOCH, NOW = 7, 99, 4, 1_000
MAX_EPOCH = 32767
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


def entry(state: str, epoch: int = EPOCH, **fields: Any) -> TransactionMetadata:
    made = transitions.new_transaction("x", ID, 60_000, 10)._replace(state=state, producer_epoch=epoch, previous_producer_id=ID)
    if state in ("Ongoing", "PrepareCommit", "PrepareAbort"):
        made = made._replace(partitions=frozenset((("t", 0),)), start_timestamp_ms=20)
    return made._replace(**fields)


def result_of(decide: Callable[[], TransactionMetadata]) -> Any:
    """The state, producer id and epoch that a decision leads to, or the name of its error."""
    try:
        found = decide()
    except CoordinatorError as error:
        return NAMES[error.code]
    return found.state, found.producer_id, found.producer_epoch


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("state", STATES)
def test_init_producer_id_in_each_state(state: str, version: int) -> None:
    expected: Any = ("Empty", ID, EPOCH + 1)
    if state == "Ongoing":
        expected = ("PrepareAbort", ID, EPOCH + 1)
    elif state.startswith("Prepare"):
        expected = "CONCURRENT_TRANSACTIONS"
    request = InitRequest(5_000, None)
    assert result_of(lambda: transitions.init_producer_id(entry(state), request, version, None, NOW)) == expected


@pytest.mark.parametrize(
    ("producer", "expected"),
    [
        (Producer(ID, EPOCH), ("Empty", ID, EPOCH + 1)),  # the client goes on after an error
        (Producer(ID, EPOCH - 1), ("Empty", ID, EPOCH)),  # a retry: it has not seen the answer
        (Producer(ID, EPOCH - 2), "PRODUCER_FENCED"),
        (Producer(ID, EPOCH + 1), "PRODUCER_FENCED"),
        (Producer(ID + 1, EPOCH), "PRODUCER_FENCED"),
        (Producer(3, MAX_EPOCH - 1), "PRODUCER_FENCED"),  # an older id, but its epoch is not the last one
    ],
)
def test_init_producer_id_with_an_epoch_of_the_client(producer: Producer, expected: Any) -> None:
    """KIP-360."""
    found = entry("Empty", last_producer_epoch=EPOCH - 1, previous_producer_id=3)
    assert result_of(lambda: transitions.init_producer_id(found, InitRequest(1, producer), 2, None, NOW)) == expected


def test_an_exhausted_epoch_gives_a_new_producer_id() -> None:
    found = entry("CompleteCommit", MAX_EPOCH - 1)
    with pytest.raises(NeedsProducerIdError):
        transitions.init_producer_id(found, InitRequest(1, None), 2, None, NOW)
    made = transitions.init_producer_id(found, InitRequest(1, Producer(ID, MAX_EPOCH - 1)), 2, NEW_ID, NOW)
    assert (made.producer_id, made.producer_epoch, made.previous_producer_id) == (NEW_ID, 0, ID)
    assert made.last_producer_epoch == MAX_EPOCH - 1
    stale = InitRequest(1, Producer(ID, 5))
    assert result_of(lambda: transitions.init_producer_id(found, stale, 2, NEW_ID, NOW)) == "UNKNOWN_SERVER_ERROR"


@pytest.mark.parametrize("state", STATES)
def test_add_partitions_in_each_state(state: str) -> None:
    def add(producer: Producer, *partitions: tuple[str, int]) -> Any:
        return result_of(lambda: transitions.add_partitions(entry(state), producer, partitions, 2, NOW))

    is_ending = state.startswith("Prepare")
    assert add(Producer(ID, EPOCH), ("t", 1)) == ("CONCURRENT_TRANSACTIONS" if is_ending else ("Ongoing", ID, EPOCH))
    assert add(Producer(ID, EPOCH - 1)) == ("CONCURRENT_TRANSACTIONS" if is_ending else "PRODUCER_FENCED")
    assert add(Producer(8, EPOCH)) == ("CONCURRENT_TRANSACTIONS" if is_ending else "INVALID_PRODUCER_ID_MAPPING")


def test_partitions_are_added_to_an_open_transaction_and_begin_a_new_one() -> None:
    found = entry("Ongoing")
    assert transitions.add_partitions(found, Producer(ID, EPOCH), [("t", 0)], 2, NOW) is found
    added = transitions.add_partitions(found, Producer(ID, EPOCH), [("t", 1)], 2, NOW)
    assert added.partitions == {("t", 0), ("t", 1)} and added.start_timestamp_ms == 20
    begun = transitions.add_partitions(entry("CompleteAbort"), Producer(ID, EPOCH), [("t", 1)], 2, NOW)
    assert begun.partitions == {("t", 1)} and begun.start_timestamp_ms == NOW
    unknown = result_of(lambda: transitions.add_partitions(None, Producer(ID, EPOCH), [], 2, NOW))
    assert unknown == "INVALID_PRODUCER_ID_MAPPING"


# By state: commit and abort by the current epoch, and by the one before.
ENDS_BEFORE_BUMPS = {
    "Empty": ("INVALID_TXN_STATE", "INVALID_TXN_STATE"),
    "Ongoing": (("PrepareCommit", ID, EPOCH), ("PrepareAbort", ID, EPOCH)),
    "PrepareCommit": ("CONCURRENT_TRANSACTIONS", "CONCURRENT_TRANSACTIONS"),
    "PrepareAbort": ("CONCURRENT_TRANSACTIONS", "CONCURRENT_TRANSACTIONS"),
    "CompleteCommit": (("CompleteCommit", ID, EPOCH), "INVALID_TXN_STATE"),
    "CompleteAbort": ("INVALID_TXN_STATE", ("CompleteAbort", ID, EPOCH)),
}
ABORTED = ("PrepareAbort", ID, EPOCH + 1)
ENDS_WITH_BUMPS = {
    "Empty": ("INVALID_TXN_STATE", ABORTED, "PRODUCER_FENCED", "PRODUCER_FENCED"),
    "Ongoing": (("PrepareCommit", ID, EPOCH + 1), ABORTED, "PRODUCER_FENCED", "PRODUCER_FENCED"),
    "PrepareCommit": ("CONCURRENT_TRANSACTIONS",) * 4,
    "PrepareAbort": ("CONCURRENT_TRANSACTIONS",) * 4,
    "CompleteCommit": ("INVALID_TXN_STATE", ABORTED, ("CompleteCommit", ID, EPOCH), "INVALID_TXN_STATE"),
    "CompleteAbort": ("INVALID_TXN_STATE", ABORTED, "INVALID_TXN_STATE", ("CompleteAbort", ID, EPOCH)),
}


def end(found: TransactionMetadata | None, producer: Producer, is_commit: bool, version: int, new_id: int | None = None) -> Any:
    return result_of(lambda: transitions.end_transaction(found, producer, is_commit, version, new_id, NOW))


@pytest.mark.parametrize("state", STATES)
def test_end_in_each_state(state: str) -> None:
    found = entry(state)
    current, before = Producer(ID, EPOCH), Producer(ID, EPOCH - 1)
    assert (end(found, current, True, 0), end(found, current, False, 0)) == ENDS_BEFORE_BUMPS[state]
    assert end(found, before, True, 0) == "PRODUCER_FENCED" == end(found, Producer(ID, EPOCH + 1), True, 0)
    ends = [end(found, producer, is_commit, 2) for producer in (current, before) for is_commit in (True, False)]
    assert tuple(ends) == ENDS_WITH_BUMPS[state]
    if not state.startswith("Prepare"):
        assert end(found, Producer(8, EPOCH), True, 2) == "INVALID_PRODUCER_ID_MAPPING"
        assert end(found, Producer(ID, EPOCH + 1), True, 2) == "PRODUCER_FENCED"
    assert end(None, current, True, 2) == "INVALID_PRODUCER_ID_MAPPING" == end(None, current, True, 0)


def test_the_last_epoch_ends_with_a_new_producer_id() -> None:
    """KIP-890: the markers have the largest epoch, the next transaction has a new id; the answer may be asked for again."""
    found, producer = entry("Ongoing", MAX_EPOCH - 1), Producer(ID, MAX_EPOCH - 1)
    with pytest.raises(NeedsProducerIdError):
        transitions.end_transaction(found, producer, True, 2, None, NOW)
    prepared = transitions.end_transaction(found, producer, True, 2, NEW_ID, NOW)
    assert (prepared.producer_id, prepared.producer_epoch, prepared.next_producer_id) == (ID, MAX_EPOCH, NEW_ID)
    done = transitions.complete(prepared, NOW)
    assert (done.producer_id, done.producer_epoch, done.previous_producer_id, done.next_producer_id) == (NEW_ID, 0, ID, -1)
    assert transitions.end_transaction(done, producer, True, 2, None, NOW) is done
    fenced = transitions.fence(found, 2, NEW_ID, NOW)
    assert (fenced.state, fenced.producer_epoch, fenced.next_producer_id) == ("PrepareAbort", MAX_EPOCH, NEW_ID)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_fencing_increments_the_epoch_once(version: int) -> None:
    fenced = transitions.fence(entry("Ongoing"), version, None, NOW)
    assert (fenced.state, fenced.producer_epoch) == ("PrepareAbort", EPOCH + 1)
    assert transitions.complete(fenced, NOW).producer_epoch == EPOCH + 1


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("state", STATES)
def test_a_record_has_what_the_version_of_the_cluster_knows(state: str, version: int) -> None:
    found, state_of_log = entry(state, client_transaction_version=min(version, 2)), TransactionState()
    record = transaction_record("x", found, version)
    state_of_log.apply(record.key, record.value)
    expected = found if version else found._replace(previous_producer_id=-1, next_producer_id=-1)
    assert state_of_log.transactions["x"] == expected
    state_of_log.apply(*transaction_record("x", None, version)[:2])
    assert not state_of_log.transactions
