"""The lines of a node's log about transactional ids: aborted transactions and fenced producers.

line                                      level   written
----------------------------------------  ------  ------------------------------------------------------------------
an open transaction is aborted            INFO    once for each: its timeout is over, or another producer has begun
a producer is fenced by a later epoch     INFO    at most one in a minute, with the number since the last one
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.format.record_batch import Producer
from kcli.protocol import error_codes
from kcli.server.coordinator.operation import CoordinatorError
from kcli.server.coordinator.transaction.transitions import PREPARED
from kcli.server.log_lines import LimitedLines, Line
from kcli.state.transaction_state import TransactionMetadata


class TransactionLines:
    """Writes the lines; `report` writes a line of the node's log."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._fenced = LimitedLines(report)

    def timed_out(self, before: TransactionMetadata, after: object, now_ms: int) -> None:
        """Report that the transaction `before` was aborted because of its timeout, if `after` is the entry after that."""
        if isinstance(after, TransactionMetadata) and after.state in PREPARED:
            self._aborted(before.transactional_id, before.producer_id, f"it was open for more than {before.timeout_ms} ms")

    def replaced(self, after: TransactionMetadata) -> None:
        """Report that an open transaction, now `after`, is aborted, because a producer has begun with its transactional id."""
        reason = "another producer has begun with this id, which fences the one before"
        self._aborted(after.transactional_id, after.producer_id, reason)

    def _aborted(self, name: str, producer_id: int, reason: str) -> None:
        text = f"the transaction of transactional id {name} is aborted: {reason}"
        self._report(Line(text, transactional_id=name, producer_id=producer_id, reason=reason))

    def refused(self, name: str, producer: Producer, result: object, now_ms: int) -> None:
        """Report a request of `producer` that was refused because it is fenced: the transactional id has another epoch."""
        if not isinstance(result, CoordinatorError) or result.code != error_codes.PRODUCER_FENCED:
            return
        message = result.message

        def line(count: int) -> str:
            more = f" ({count} requests since the last such line)" if count > 1 else ""
            text = f"producer {producer.producer_id} with epoch {producer.producer_epoch} is fenced: {message}{more}"
            return Line(text, transactional_id=name, producer_id=producer.producer_id, count=count)

        self._fenced.report(line, now_ms)
