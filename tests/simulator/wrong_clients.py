"""Wrong clients: each replaces a function of kcli's own client with one that has a fault. The simulator must find all of them.

`WRONG` has, for each, a seed that finds it, and the check that reports it, as tests/simulator/wrong_coordinators.py has for
coordinators.
"""

from __future__ import annotations

from typing import Any

from wrong_coordinators import Wrong, patched

from kcli.client.consumer.consumer import ConsumerCore
from kcli.client.consumer.fetcher import Fetcher
from kcli.client.consumer.initial_positions import InitialPositions
from kcli.client.consumer.offset_commits import OffsetCommits
from kcli.client.consumer.share_fetcher import ShareFetcher
from kcli.client.consumer.subscription_state import OffsetAndMetadata, SubscriptionState
from kcli.client.producer.sender import Sender
from kcli.client.producer.transaction_manager import TransactionManager
from kcli.client.producer.transaction_requests import TransactionRequests
from kcli.format.record_batch import increment_sequence
from kcli.simulator.coordination.share_history import ACCEPT


def numbers_a_retry_anew(real: Any) -> Any:
    """Gives a batch that is sent again the next sequence."""

    def can_retry(self: Any, batch: Any, result: Any) -> bool:
        is_retried: bool = real(self, batch, result)
        if is_retried and batch.has_sequence:
            self.sequences.remove_in_flight(batch)
            found = self.sequences.partition(batch)
            batch.set_producer_state(*found.producer, found.next_sequence, self.is_transactional)
            found.next_sequence = increment_sequence(found.next_sequence, batch.record_count)
            self.sequences.add_in_flight(batch)
        return is_retried

    return can_retry


def does_not_wait_for_batches(real: Any) -> Any:
    def init(self: Any, network: Any, transactional_id: Any, timeout_ms: Any, has_incomplete: Any, log: Any) -> None:
        real(self, network, transactional_id, timeout_ms, lambda: False, log)

    return init


def commits_what_it_has_not_returned(real: Any) -> Any:
    """Up to the end of each partition."""

    def all_consumed(self: Any) -> Any:
        found = real(self)
        for partition, offset in found.items():
            end = self._states[partition].high_watermark or 0
            if end > offset.offset:
                found[partition] = OffsetAndMetadata(end)
        return found

    return all_consumed


def reports_each_commit_as_done(real: Any) -> Any:
    def commit(self: Any, offsets: Any, done: Any, now_ms: int, *args: Any, **options: Any) -> None:
        real(self, offsets, lambda error, now_ms: done(None, now_ms), now_ms, *args, **options)

    return commit


def begins_behind_the_committed_offset(real: Any) -> Any:
    """One record later."""

    def answered(self: Any, asked: Any, found: Any, now_ms: int) -> None:
        if isinstance(found, dict):
            found = {where: one and one._replace(offset=one.offset + 1) for where, one in found.items()}
        real(self, asked, found, now_ms)

    return answered


def reads_uncommitted(real: Any) -> Any:
    return lambda self, *args: real(self, *args)._replace(isolation_level=0)


def accepts_everything(real: Any) -> Any:
    return lambda self, node_id, partition_id, partition, kinds: real(
        self, node_id, partition_id, partition, dict.fromkeys(kinds, ACCEPT)
    )


def reports_each_acknowledgement_as_done(real: Any) -> Any:
    return lambda self, said, error_of, now_ms: real(self, said, lambda partition_id: None, now_ms)


def returns_every_other_record(real: Any) -> Any:
    """Of those of one poll."""
    return lambda self, *args: real(self, *args)[::2]


def acknowledges_at_the_next_offset(real: Any) -> Any:
    def succeed(self: Any, batch: Any, result: Any, now_ms: int) -> None:
        real(self, batch, result._replace(base_offset=result.base_offset + 1), now_ms)

    return succeed


def validates_no_position(real: Any) -> Any:
    """Whatever leader epochs the metadata tell."""
    return lambda self, partition, cluster, may_validate=True: real(self, partition, cluster, may_validate=False)


# Those that the workload of logs finds: by a seed, with a part of the failure.
LOG_WRONG: dict[str, Wrong] = {
    "does not return every record": Wrong(patched(ConsumerCore, "collect", returns_every_other_record), 0, "is expected"),
    "does not notice that a log was truncated": Wrong(
        patched(SubscriptionState, "maybe_validate", validates_no_position), 409, "a power failure took the record before it"
    ),
    "reports a record at the next offset": Wrong(patched(Sender, "_succeed", acknowledges_at_the_next_offset), 0, "but it has"),
}
WRONG: dict[str, Wrong] = {
    "gives a batch that is sent again another sequence": Wrong(
        patched(TransactionManager, "can_retry", numbers_a_retry_anew), 1, "duplicates"
    ),
    "commits a transaction before its records are written": Wrong(
        patched(TransactionRequests, "__init__", does_not_wait_for_batches), 0
    ),
    "commits offsets of records that it has not returned": Wrong(
        patched(SubscriptionState, "all_consumed", commits_what_it_has_not_returned), 12, "unseen_writes"
    ),
    "reports each commit as done": Wrong(
        patched(OffsetCommits, "commit", reports_each_commit_as_done), 15, "offset_regressions"
    ),
    "begins behind the committed offset": Wrong(
        patched(InitialPositions, "_answered", begins_behind_the_committed_offset), 0, "unseen_writes"
    ),
    "returns records of aborted transactions": Wrong(patched(Fetcher, "_limits", reads_uncommitted), 1, "aborted_reads"),
    "accepts the records that the application releases": Wrong(patched(ShareFetcher, "acknowledge", accepts_everything), 0),
    "reports each acknowledgement as done": Wrong(patched(ShareFetcher, "_settle", reports_each_acknowledgement_as_done), 5),
}
