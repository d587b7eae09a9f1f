"""What an active controller counts for its metrics: elections by their kind, expired sessions, records that do not fit.

the new leader was      counts as
----------------------  --------------------------------------------------------------------------
in the ISR              nothing
in the ELR (KIP-966)    election_from_eligible
in neither              unclean: records may be lost
"""

from __future__ import annotations

from kcli.protocol.message import Message
from kcli.state.metadata_image import MetadataImage


class QuorumControllerMetrics:
    """Counters since the start of the process."""

    __slots__ = ("elections_from_eligible", "metadata_errors", "new_leaders", "timed_out_heartbeats", "unclean_elections")

    def __init__(self) -> None:
        self.elections_from_eligible = 0
        self.metadata_errors = 0
        self.new_leaders = 0
        self.timed_out_heartbeats = 0
        self.unclean_elections = 0

    def count_election(self, image: MetadataImage, record: Message) -> None:
        """Count the election, if a record that is about to be applied to `image` makes one."""
        if record.STRUCT.name != "PartitionChangeRecord" or record.leader < 0:
            return
        topic = image.topics.get(record.topic_id)
        partition = None if topic is None else topic.partitions.get(record.partition_id)
        if partition is None or record.leader == partition.leader or record.leader in partition.isr:
            return
        if record.leader in partition.eligible_leader_replicas:
            self.elections_from_eligible += 1
        else:
            self.unclean_elections += 1
