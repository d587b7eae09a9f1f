"""Wrong nodes of a cluster: each replaces one function around the raft core with one that has a fault. All must be found.

The faults of the core itself are in wrong_quorums; these are of what carries it out: files, images, ways to the controller.
"""

from __future__ import annotations

from typing import Any

from built_in_faults import Fault, FaultList, SmallWorld, patched
from wrong_coordinators import reads_to_the_end

from kcli.log.unified_log import UnifiedLog
from kcli.server.broker.metadata_publisher import MetadataPublisher
from kcli.server.controller.cluster_control_manager import ClusterControlManager
from kcli.server.controller.controller_state import ControllerState
from kcli.server.raft import snapshot_generator
from kcli.server.raft.kafka_raft_client import KafkaRaftClient
from kcli.server.raft.metadata_log import MetadataLog
from kcli.simulator.cluster import ClusterSimulation
from kcli.state.speculative_state import SpeculativeState


def keeps_what_is_not_committed(real: Any) -> Any:
    """After its leadership a controller keeps the records that it appended and that were not committed."""

    def roll_back(self: Any, from_offset: int = 0) -> None:
        self._undo.clear()
        self._uncommitted.clear()

    return roll_back


def takes_all_for_committed(real: Any) -> Any:
    """A snapshot of the controller has what is not committed yet."""
    return lambda self: self._speculative.state.frozen()


def truncates_nothing(real: Any) -> Any:
    return lambda self, offset: None


def flushes_nothing(real: Any) -> Any:
    """Says that the metadata log is durable when it is only written."""

    def flush(self: Any) -> None:
        flush_paths = self._flush
        self._flush = lambda paths, done: self._timer.schedule(self._timer.clock_ms, lambda now_ms: done(None, now_ms))
        try:
            real(self)
        finally:
            self._flush = flush_paths

    return flush


def misses_the_changes_of_a_snapshot(real: Any) -> Any:
    """A broker applies a snapshot that comes while it runs to the image that it has."""

    def load(self: Any, image: Any, batch: Any, now_ms: int) -> None:
        if batch.ends_snapshot:
            self._loading = None

    return load


def forgets_topics(real: Any) -> Any:
    """A broker does not apply the last record of a batch with several."""

    def apply(self: Any, batch: Any, now_ms: int) -> None:
        real(self, batch._replace(records=batch.records[:-1]) if len(batch.records) > 4 else batch, now_ms)

    return apply


def fences_no_silent_broker(real: Any) -> Any:
    return lambda self, now_ms: None


def skips_configurations(real: Any) -> Any:
    """A snapshot lacks the configurations."""
    return lambda image: (record for record in real(image) if record.STRUCT.name != "ConfigRecord")


FAULTS = {
    "keeps what was not committed": Fault(
        patched(SpeculativeState, "roll_back", keeps_what_is_not_committed), ".*has applied the metadata|StateError"
    ),
    "makes snapshots of what is not committed": Fault(
        patched(ControllerState, "committed_image", takes_all_for_committed), ".*has applied the metadata"
    ),
    "truncates nothing": Fault(patched(MetadataLog, "truncate_to", truncates_nothing)),
    "does not flush the metadata log": Fault(patched(KafkaRaftClient, "_begin_flush", flushes_nothing)),
    "keeps its image when a snapshot comes": Fault(patched(MetadataPublisher, "_load", misses_the_changes_of_a_snapshot)),
    "does not fence a silent broker": Fault(
        patched(ClusterControlManager, "stale_broker", fences_no_silent_broker), "fences: broker"
    ),
    "makes snapshots without configurations": Fault(
        patched(snapshot_generator, "image_records", skips_configurations), "the snapshot of node"
    ),
    "shows records of open transactions": Fault(
        patched(UnifiedLog, "last_stable_offset", reads_to_the_end), "precommitted_reads|aborted_reads"
    ),
    "skips the last record of a batch": Fault(
        patched(MetadataPublisher, "apply", forgets_topics), ".*has applied the metadata"
    ),
}


def simulate(seed: int, world: SmallWorld) -> str:
    """Return the failure of a seed."""
    return ClusterSimulation(seed).run().failure


CLUSTERS = FaultList("clusters", FAULTS, simulate)
