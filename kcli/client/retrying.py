"""An operation that is tried again after errors that may pass, until a deadline.

attempt ends with                        then
---------------------------------------  ------------------------------------------------------------------------------
a result, or an error that stays         it is the result of the operation
an error that may pass (`is_retriable`)  another attempt after retry.backoff.ms, which grows up to retry.backoff.max.ms
the same, and the deadline would pass    KafkaTimeoutError with the last error in its text
the same, without a deadline             it is the result: one attempt only
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from kcli.client.errors import ClientError, KafkaError, KafkaTimeoutError
from kcli.client.network_client import NetworkClient

_Result = TypeVar("_Result")
Finished = Callable[[_Result | ClientError, int], None]
# Gets the callback for its end, the time, and how many ms it may take.
Attempt = Callable[[Finished[_Result], int, int], None]


class Retrying(Generic[_Result]):
    """One operation; `what` names it in the error of a timeout. `final_codes` are errors that stay in addition to Kafka's."""

    def __init__(
        self,
        network: NetworkClient,
        what: str,
        attempt: Attempt[_Result],
        done: Finished[_Result],
        deadline_ms: int | None,
        final_codes: frozenset[int] = frozenset(),
    ) -> None:
        self._network = network
        self._what = what
        self._attempt = attempt
        self._done = done
        self._deadline_ms = deadline_ms
        self._final_codes = final_codes
        self._backoff = network.config.retry_backoff()
        self._failures = 0

    def start(self, now_ms: int) -> None:
        """Make the first attempt, or the next one."""
        timeout_ms = self._network.config.request_timeout_ms
        if self._deadline_ms is not None:
            timeout_ms = min(timeout_ms, max(self._deadline_ms - now_ms, 1))
        self._attempt(self._finished, now_ms, timeout_ms)

    def _finished(self, result: _Result | ClientError, now_ms: int) -> None:
        if self._deadline_ms is None or not isinstance(result, ClientError) or not self._may_pass(result):
            self._done(result, now_ms)
            return
        delay_ms = self._backoff.delay_ms(self._failures, self._network.rng)
        self._failures += 1
        if now_ms + delay_ms < self._deadline_ms:
            self._network.timer.schedule(now_ms + delay_ms, self.start)
        else:
            self._done(KafkaTimeoutError(f"{self._what} did not succeed in its time: {result}"), now_ms)

    def _may_pass(self, error: ClientError) -> bool:
        return error.is_retriable and not (isinstance(error, KafkaError) and error.code in self._final_codes)
