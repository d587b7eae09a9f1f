"""Wrong leaders and followers of partitions with several replicas: each replaces one function. All must be found."""

from __future__ import annotations

from typing import Any

from built_in_faults import Fault, FaultList, SmallWorld, patched

from kcli.log.unified_log import UnifiedLog
from kcli.server.replication.partition import Partition
from kcli.server.replication.replica_fetcher import Follower, ReplicaFetcher, ReplicaFetcherManager
from kcli.simulator.cluster import ClusterSimulation


def truncates_to_its_high_watermark(real: Any) -> Any:
    """As before KIP-101: a follower may not know yet that records are committed which it has."""

    def follow(self: Any, partition: Any, now_ms: int) -> None:
        log = partition.log
        if log is not None and partition.leader_id >= 0 and not partition.is_leader:
            self.truncate(partition, log, log.high_watermark, "a fault", now_ms)
        real(self, partition, now_ms)

    return follow


def states_no_epoch(real: Any) -> Any:
    """The leader cannot see that the log of a follower diverges."""
    return lambda self, follower, log: real(self, follower, log)._replace(last_fetched_epoch=-1)


def cuts_nothing(real: Any) -> Any:
    """A follower keeps what its leader does not have, and goes on behind it."""

    def diverged(self: Any, follower: Any, log: UnifiedLog, answer: Any, now_ms: int) -> None:
        follower.last_fetched_epoch = -1
        self._fetch_again(follower)

    return diverged


def waits_for_no_follower(real: Any) -> Any:
    """The leader's high watermark is the end of its own log."""
    return lambda self, log, offset: offset


def takes_each_follower_for_a_member(real: Any) -> Any:
    """A follower joins the ISR before it has what is committed."""

    def expand(self: Any, replica: Any, log: UnifiedLog) -> None:
        end_offset, replica.log_end_offset = replica.log_end_offset, log.log_end_offset
        real(self, replica, log)
        replica.log_end_offset = end_offset

    return expand


def forgets_its_epochs(real: Any) -> Any:
    """A follower goes on in the log of its new leader at its own end, whatever is before it."""

    def restart(self: Follower, log: UnifiedLog) -> None:
        real(self, log)
        self.last_fetched_epoch = -1

    return restart


FAULTS = {
    "truncates to its high watermark": Fault(patched(ReplicaFetcherManager, "follow", truncates_to_its_high_watermark)),
    "states no leader epoch": Fault(patched(ReplicaFetcher, "_wanted", states_no_epoch)),
    "cuts nothing off": Fault(patched(ReplicaFetcher, "_diverged", cuts_nothing)),
    "commits without its followers": Fault(patched(Partition, "_replicated_offset", waits_for_no_follower)),
    "takes each follower for a member": Fault(patched(Partition, "_maybe_expand_isr", takes_each_follower_for_a_member)),
    "forgets its leader epochs": Fault(patched(Follower, "restart", forgets_its_epochs)),
}


def simulate(seed: int, world: SmallWorld) -> str:
    """Return the failure of a seed."""
    return ClusterSimulation(seed, is_replicated=True, has_groups=False).run().failure


REPLICAS = FaultList("replicas", FAULTS, simulate)
