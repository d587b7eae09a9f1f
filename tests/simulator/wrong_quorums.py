"""Wrong raft cores: each replaces one function of kcli's with one that has a fault. The simulator must find all of them.

`FAULTS` names, for each, the check that reports it (kcli.simulator.quorum.checks), and the small world
(kcli.simulator.quorum.small_worlds) whose search finds it, too, if there is one.
"""

from __future__ import annotations

from typing import Any

from built_in_faults import Fault, FaultList, SmallWorld, patched

from kcli.server.raft import elections, fetching
from kcli.server.raft.consensus import RaftCore
from kcli.server.raft.leader_state import LeaderState
from kcli.server.raft.messages import LeaderChangeEntry
from kcli.server.raft.quorum_state import Role
from kcli.server.raft.replica import Replica
from kcli.simulator.quorum import world
from kcli.simulator.quorum.simulation import QuorumSimulation


def votes_again(real: Any) -> Any:
    """Forgets a vote when the next candidate of the epoch asks."""

    def decide(replica: Any, request: Any, now_ms: int) -> Any:
        if not request.is_pre_vote and replica.quorum.role is Role.UNATTACHED:
            replica.quorum.voted = None
        return real(replica, request, now_ms)

    return decide


def counts_replicas_of_earlier_epochs(real: Any) -> Any:
    def advance(self: Any) -> Any:
        start_offset, self.epoch_start_offset = self.epoch_start_offset, -1
        try:
            return real(self)
        finally:
            self.epoch_start_offset = start_offset

    return advance


def begins_without_leader_change(real: Any) -> Any:
    def append(self: Any, entries: Any, now_ms: int) -> Any:
        others = tuple(entry for entry in entries if not isinstance(entry, LeaderChangeEntry))
        return real(self, others, now_ms) if others else self.log.end_offset

    return append


def truncates_to_the_high_watermark(real: Any) -> Any:
    def truncate(replica: Any, answer: Any) -> None:
        replica.truncate_to(max(replica.high_watermark, replica.log.start_offset))

    return truncate


def appends_in_an_epoch_that_is_over(real: Any) -> Any:
    return lambda self, epoch, records, now_ms: self.log.append_as_leader(epoch, records, now_ms)


def fetches_at_once(real: Any) -> Any:
    """Does not wait until the log is flushed."""

    def release(self: Any) -> None:
        self._held = [held._replace(flushed_offset=0) for held in self._held]
        real(self)

    return release


def asks_for_votes_at_once(real: Any) -> Any:
    """Does not wait until the log that it states is flushed."""
    return lambda replica, destination, request, now_ms, flushed_offset=0: real(replica, destination, request, now_ms)


def sends_at_once(real: Any) -> Any:
    """Does not wait until quorum-state is stored."""

    def release(self: Any) -> None:
        self._held = [held._replace(version=0) for held in self._held]
        real(self)

    return release


def keeps_removed_voters(real: Any) -> Any:
    def set_voters(self: Any, voters: Any) -> None:
        earlier = self.voters
        real(self, voters)
        self.voters = {**earlier, **self.voters}

    return set_voters


def answers_pre_votes_by_its_own_epoch(real: Any) -> Any:
    def error(replica: Any, request: Any) -> Any:
        return real(replica, request._replace(epoch=replica.quorum.epoch) if request.is_pre_vote else request)

    return error


def counts_what_it_has_not_flushed(real: Any) -> Any:
    return lambda self, durable_end_offset, end_offset, now_ms: real(self, end_offset, end_offset, now_ms)


FAULTS = {
    "votes twice in an epoch": Fault(
        patched(elections, "_decide", votes_again), "one vote an epoch", space="three voters; two elections at once"
    ),
    "commits records of an earlier epoch by a count of replicas": Fault(
        patched(LeaderState, "_advance", counts_replicas_of_earlier_epochs),
        "an epoch's own commit",
        space="two voters elect a leader",
    ),
    "begins an epoch without LeaderChange": Fault(
        patched(Replica, "append_control", begins_without_leader_change),
        "an epoch's own commit",
        space="three voters; one is removed, an append",
    ),
    "truncates to the high watermark": Fault(patched(fetching, "_truncate", truncates_to_the_high_watermark), "no step back"),
    "appends for a leader whose epoch is over": Fault(
        patched(RaftCore, "append", appends_in_an_epoch_that_is_over),
        "appends",
    ),
    "makes snapshots of what is not committed": Fault(
        patched(world, "snapshot_offset", lambda real: lambda replica: replica.log.end_offset), "snapshots"
    ),
    "grants pre-votes of earlier epochs": Fault(
        patched(elections, "_vote_error", answers_pre_votes_by_its_own_epoch), "pre-votes"
    ),
    "counts a voter that was removed": Fault(
        patched(LeaderState, "set_voters", keeps_removed_voters),
        "a majority has it",
        space="three voters; one is removed, an append",
    ),
    "sends a vote before it is stored": Fault(
        patched(Replica, "_release", sends_at_once), "durable first", space="two voters elect a leader"
    ),
    "asks for votes before the log is flushed": Fault(
        patched(elections, "send_if_ready", asks_for_votes_at_once), "durable first"
    ),
    "fetches before the log is flushed": Fault(
        patched(Replica, "_release", fetches_at_once), "durable first", space="two voters elect a leader"
    ),
    "counts its own end before it is flushed": Fault(
        patched(LeaderState, "update_local", counts_what_it_has_not_flushed),
        "a majority has it",
        space="two voters elect a leader",
    ),
}


def simulate(seed: int, world: SmallWorld) -> str:
    """Return the failure of a seed."""
    return QuorumSimulation(seed).run().failure


QUORUMS = FaultList("quorums", FAULTS, simulate)
