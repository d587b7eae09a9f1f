"""What each error code of an answer means to a transactional producer (Kafka: the handlers in TransactionManager, KIP-1050).

verdict     what the manager does
----------  ------------------------------------------------------------------------------------------------------------
DONE        goes on
AGAIN       sends the request again after a backoff, to another coordinator if the error says so
ABORTABLE   the transaction can only be aborted; then the producer can begin another one
BUMP        the same, and abort_transaction gets a new epoch, since the broker has lost the producer's state
FENCED      another producer has the transactional id: this one is of no use any more
FATAL       this producer is of no use any more

error                                    InitProducerId  AddPartitions  AddOffsets  TxnOffsetCommit  EndTxn
---------------------------------------  --------------  -------------  ----------  ---------------  ---------
retriable, such as NOT_COORDINATOR and   AGAIN           AGAIN          AGAIN       AGAIN            AGAIN
CONCURRENT_TRANSACTIONS
INVALID_PRODUCER_EPOCH, PRODUCER_FENCED  FENCED          FENCED         FENCED      FENCED           FENCED
UNKNOWN_PRODUCER_ID,                     FATAL           BUMP           BUMP        BUMP             BUMP
INVALID_PRODUCER_ID_MAPPING
TRANSACTION_ABORTABLE                    ABORTABLE       ABORTABLE      ABORTABLE   ABORTABLE        ABORTABLE
TOPIC_AUTHORIZATION_FAILED,              FATAL           ABORTABLE      ABORTABLE   ABORTABLE        FATAL
GROUP_AUTHORIZATION_FAILED
errors of the group's member             FATAL           ABORTABLE      FATAL       ABORTABLE        FATAL
TRANSACTIONAL_ID_AUTHORIZATION_FAILED,   FATAL           FATAL          FATAL       FATAL            FATAL
INVALID_TXN_STATE
any other                                FATAL           ABORTABLE      FATAL       FATAL            FATAL
"""

from __future__ import annotations

from enum import Enum

from kcli.protocol import error_codes as codes
from kcli.protocol.apis import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)


class Verdict(Enum):
    """What an answer means; the table is above."""

    DONE = "done"
    AGAIN = "again"
    ABORTABLE = "abortable"
    BUMP = "bump"
    FENCED = "fenced"
    FATAL = "fatal"


_ALL = frozenset((INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT, END_TXN))
_IN_TRANSACTION = _ALL - {INIT_PRODUCER_ID}
_WITH_RESOURCES = _IN_TRANSACTION - {END_TXN}
_COMMIT = frozenset((TXN_OFFSET_COMMIT,))

# By error code: the verdict, and the APIs to which it applies.
_VERDICTS: dict[int, tuple[Verdict, frozenset[int]]] = {
    codes.NONE: (Verdict.DONE, _ALL),
    codes.INVALID_PRODUCER_EPOCH: (Verdict.FENCED, _ALL),
    codes.PRODUCER_FENCED: (Verdict.FENCED, _ALL),
    codes.UNKNOWN_PRODUCER_ID: (Verdict.BUMP, _IN_TRANSACTION),
    codes.INVALID_PRODUCER_ID_MAPPING: (Verdict.BUMP, _IN_TRANSACTION),
    codes.TRANSACTION_ABORTABLE: (Verdict.ABORTABLE, _ALL),
    codes.TOPIC_AUTHORIZATION_FAILED: (Verdict.ABORTABLE, _WITH_RESOURCES),
    codes.GROUP_AUTHORIZATION_FAILED: (Verdict.ABORTABLE, _WITH_RESOURCES),
    codes.FENCED_INSTANCE_ID: (Verdict.ABORTABLE, _COMMIT),
    codes.UNKNOWN_MEMBER_ID: (Verdict.ABORTABLE, _COMMIT),
    codes.ILLEGAL_GENERATION: (Verdict.ABORTABLE, _COMMIT),
    codes.STALE_MEMBER_EPOCH: (Verdict.ABORTABLE, _COMMIT),
    codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (Verdict.FATAL, _ALL),
    codes.INVALID_TXN_STATE: (Verdict.FATAL, _ALL),
}
# From the best to the worst, for answers with several codes.
_ORDER = tuple(Verdict)


def verdict_of(api_key: int, code: int) -> Verdict:
    """Return what an error code in an answer of an API means."""
    if code in codes.RETRIABLE:
        return Verdict.AGAIN
    verdict, apis = _VERDICTS.get(code, (Verdict.FATAL, frozenset()))
    if api_key in apis:
        return verdict
    return Verdict.ABORTABLE if api_key == ADD_PARTITIONS_TO_TXN else Verdict.FATAL


def worst(api_key: int, found: list[int]) -> int:
    """Return the code of an answer with several that decides, NONE if there are no errors."""
    return max(found, key=lambda code: _ORDER.index(verdict_of(api_key, code)), default=codes.NONE)
