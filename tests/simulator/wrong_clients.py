"""Wrong clients: each replaces a function of kcli's own client with one that has a fault. The simulator must find all of them.

`FAULTS` names, for each, the check that reports it, as wrong_coordinators.py does; those of `LOG_FAULTS` are found by the
workload of logs.
"""

from __future__ import annotations

from typing import Any

from built_in_faults import WHOLE, Fault, FaultList, SmallWorld, patched
from wrong_coordinators import simulate

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
from kcli.simulator.coordination import transactional_producer, workload
from kcli.simulator.coordination.share_history import ACCEPT
from kcli.simulator.node_maker import NodeMaker
from kcli.simulator.runner import Simulation


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


_CORES = (
    (workload, "CORE_SHARES", (1.0,)),
    (workload, "CORE_SHARE", 1.0),
    (transactional_producer, "CORE_SHARE", 1.0),
)
PRODUCERS = SmallWorld(("simple",), 2000, True, _CORES)
CRASHED_PRODUCERS = SmallWorld(("simple",), 3000, False, _CORES)
CONSUMERS = SmallWorld(("reads-1", "reads-2"), 3000, True, _CORES)
CRASHED_CONSUMERS = SmallWorld(("reads-1", "reads-2"), 3000, False, _CORES)
SHARE_CONSUMERS = SmallWorld(("shares-1",), 3000, True, _CORES)
CRASHED_SHARE_CONSUMERS = SmallWorld(("shares-1",), 3000, False, _CORES)

LOG_FAULTS = {
    "does not return every record": Fault(patched(ConsumerCore, "collect", returns_every_other_record), ".* is expected"),
    "does not notice that a log was truncated": Fault(
        patched(SubscriptionState, "maybe_validate", validates_no_position), ".*a power failure took the record before it"
    ),
    "reports a record at the next offset": Fault(patched(Sender, "_succeed", acknowledges_at_the_next_offset), ".*but it has"),
}
FAULTS = {
    "gives a batch that is sent again another sequence": Fault(
        patched(TransactionManager, "can_retry", numbers_a_retry_anew), "duplicates", CRASHED_PRODUCERS
    ),
    "commits a transaction before its records are written": Fault(
        patched(TransactionRequests, "__init__", does_not_wait_for_batches), world=PRODUCERS
    ),
    "commits offsets of records that it has not returned": Fault(
        patched(SubscriptionState, "all_consumed", commits_what_it_has_not_returned), "unseen_writes"
    ),
    "reports each commit as done": Fault(
        patched(OffsetCommits, "commit", reports_each_commit_as_done), "offset_regressions", CRASHED_CONSUMERS
    ),
    "begins behind the committed offset": Fault(
        patched(InitialPositions, "_answered", begins_behind_the_committed_offset), "unseen_writes", CONSUMERS
    ),
    "returns records of aborted transactions": Fault(
        patched(Fetcher, "_limits", reads_uncommitted), "aborted_reads|precommitted_reads", CONSUMERS
    ),
    "accepts the records that the application releases": Fault(
        patched(ShareFetcher, "acknowledge", accepts_everything), world=SHARE_CONSUMERS
    ),
    "reports each acknowledgement as done": Fault(
        patched(ShareFetcher, "_settle", reports_each_acknowledgement_as_done), world=CRASHED_SHARE_CONSUMERS
    ),
}


def simulate_logs(seed: int, world: SmallWorld) -> str:
    """Return the failure of a seed of the workload of logs."""
    make_node = NodeMaker(seed)
    return Simulation(seed, make_node, make_node.directories, cleaning_rounds=make_node.cleaning_rounds).run().failure


CLIENTS = FaultList("clients", FAULTS, simulate)
SMALL_WORLDS = list(dict.fromkeys(fault.world for fault in FAULTS.values() if fault.world != WHOLE))
LOG_CLIENTS = FaultList("log-clients", LOG_FAULTS, simulate_logs)
