"""What must hold of partitions with several replicas, whatever happens to their brokers.

check               when                what must hold
------------------  ------------------  ------------------------------------------------------------------------------
equal commits       after each event    what a replica has below its high watermark has the same bytes on each broker that
                                        ever had it there: no offset has two contents
nothing taken back  after each event    a running broker does not cut off what was below its high watermark
in-sync replicas    now and then        a member of the ISR of a leader, with the same leader epoch, has all that is below
                                        the leader's high watermark
equal logs          at the end          all replicas are in sync and have the same records, those that were acknowledged
                                        with acks=all among them
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from kcli.log.unified_log import UnifiedLog
from kcli.server.node import Node
from kcli.server.replication.partition import Partition
from kcli.simulator.partition_ledger import SimulationFailure
from kcli.simulator.sent_records import whole_batches

READ_BYTES = 1 << 20
_Key = tuple[bytes, int]  # topic id and partition


def _key(partition: Partition) -> _Key:
    return bytes(partition.topic_id), partition.index


def hosted(nodes: Iterable[Node]) -> Iterator[tuple[Node, Partition, UnifiedLog]]:
    """Yield the partitions of brokers that have logs."""
    for node in nodes:
        if node.broker is not None:
            for partition in node.broker.replica_manager.partitions.values():
                if partition.log is not None:
                    yield node, partition, partition.log


def read_batches(log: UnifiedLog, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield base offset, next offset and CRC of the bytes of the batches from the one with `start` on that end up to `end`.

    Raises SimulationFailure if the log has no whole batch there. After a start a high watermark may be inside of a batch: the
    checkpoint of the recovery point is one record lower.
    """
    while start < end:
        part = log.read(start, READ_BYTES, limit_offset=log.log_end_offset)
        data = bytearray(part.size)
        if part.file is not None:
            part.file.read_into(part.position, memoryview(data))
        batches = list(whole_batches(data))
        if not batches:
            raise SimulationFailure(f"{log} has nothing from offset {start} on, and its high watermark is {end}")
        for batch in batches:
            if batch.next_offset > end:
                return
            yield (
                batch.base_offset,
                batch.next_offset,
                zlib.crc32(data[batch.end_position - batch.size_bytes : batch.end_position]),
            )
        start = batches[-1].next_offset


class ReplicaChecks:
    """The checks of one run."""

    def __init__(self) -> None:
        self._committed: dict[_Key, dict[int, tuple[int, int]]] = {}  # base offset -> next offset, CRC of the bytes
        # By node and partition: the log of a process, and the highest high watermark that it had there.
        self._seen: dict[tuple[int, _Key], tuple[UnifiedLog, int]] = {}
        self._leader_epochs: dict[_Key, int] = {}
        self._truncations: dict[UnifiedLog, int] = {}

    @property
    def leader_changes(self) -> int:
        """How often partitions got another leader."""
        return sum(self._leader_epochs.values())

    @property
    def truncations(self) -> int:
        """How often followers have cut their logs."""
        return sum(self._truncations.values())

    def check(self, node: Node) -> None:
        """Check the replicas of a node after an event. Raises SimulationFailure."""
        for _, partition, log in hosted([node]):
            key = _key(partition)
            self._leader_epochs[key] = max(partition.leader_epoch, self._leader_epochs.get(key, 0))
            if log.truncation_count:
                self._truncations[log] = log.truncation_count
            seen, highest = self._seen.get((node.node_id, key), (log, -1))
            if seen is not log:
                highest = -1
            if log.log_end_offset < highest:
                raise SimulationFailure(
                    f"node {node.node_id} has cut off offsets {log.log_end_offset} to {highest} of {partition.topic}-"
                    f"{partition.index}, which were below its high watermark"
                )
            if log.high_watermark > highest:
                self._compare(node, partition, log, max(highest, log.log_start_offset))
                self._seen[node.node_id, key] = log, log.high_watermark

    def _compare(self, node: Node, partition: Partition, log: UnifiedLog, start: int) -> None:
        committed = self._committed.setdefault(_key(partition), {})
        for base_offset, next_offset, crc in read_batches(log, start, log.high_watermark):
            if committed.setdefault(base_offset, (next_offset, crc)) != (next_offset, crc):
                raise SimulationFailure(
                    f"node {node.node_id} has other bytes at the committed offset {base_offset} of {partition.topic}-"
                    f"{partition.index}"
                )

    def check_isrs(self, nodes: list[Node]) -> None:
        """Check that members of the ISRs have what is committed. Raises SimulationFailure."""
        found = {(node.node_id, _key(partition)): (partition, log) for node, partition, log in hosted(nodes)}
        for node, leading, log in hosted(nodes):
            if not leading.is_leader:
                continue
            for member in leading.isr:
                partition, other = found.get((member, _key(leading)), (leading, log))
                if partition.leader_epoch == leading.leader_epoch and other.log_end_offset < log.high_watermark:
                    raise SimulationFailure(
                        f"node {member} is in the ISR {leading.isr} of {leading.topic}-{leading.index}, ends at "
                        f"{other.log_end_offset}, and the high watermark of its leader, node {node.node_id}, is "
                        f"{log.high_watermark}"
                    )

    def are_equal(self, nodes: list[Node]) -> bool:
        """Return whether all replicas are in sync and end at the same offset, which is their high watermark.

        Raises SimulationFailure if they do not have the same bytes then.
        """
        replicas: dict[_Key, list[tuple[Partition, UnifiedLog]]] = {}
        for _, partition, log in hosted(nodes):
            replicas.setdefault(_key(partition), []).append((partition, log))
        for found in replicas.values():
            ends = {end for _, log in found for end in (log.log_end_offset, log.high_watermark)}
            in_sync = [set(one.isr) == set(one.replicas) for one, _ in found if one.is_leader]
            if len(ends) != 1 or in_sync != [True] or len(found) != len(found[0][0].replicas):
                return False
        for found in replicas.values():
            start = max(log.log_start_offset for _, log in found)
            texts = [list(read_batches(log, start, log.log_end_offset)) for _, log in found]
            if any(text != texts[0] for text in texts):
                raise SimulationFailure(f"the replicas of {found[0][0].topic}-{found[0][0].index} are not equal")
        return True
