"""What the clients of a simulation know of the cluster: its topics, and the producer ids that were given."""

from __future__ import annotations

from kcli.simulator.compacted_ledger import CompactedLedger
from kcli.simulator.partition_ledger import PartitionLedger, SimulationFailure, TopicFacts

TopicId = bytes


class TopicLedger:
    """A topic with one id."""

    def __init__(self, topic_id: TopicId, facts: TopicFacts, partition_count: int) -> None:
        self.topic_id = topic_id
        self.facts = facts
        self.partitions: list[PartitionLedger] = []
        self.configs: dict[str, str] = {}
        self.deletion_asked = False
        self.is_deleted = False
        self.grow(partition_count)

    def grow(self, partition_count: int) -> None:
        """There are more partitions now."""
        for index in range(len(self.partitions), partition_count):
            make = CompactedLedger if self.facts.is_compacted else PartitionLedger
            self.partitions.append(make(self.facts, index))


class Ledger:
    """All that is known."""

    def __init__(self) -> None:
        self.topics: dict[TopicId, TopicLedger] = {}
        self.producer_ids: set[int] = set()
        self.in_doubt: dict[str, tuple[TopicFacts, dict[str, str]]] = {}  # topics that were asked for, and their configs

    def live_topics(self) -> list[TopicLedger]:
        """The topics that nobody asked to be deleted."""
        return [topic for topic in self.topics.values() if not topic.deletion_asked]

    def find(self, name: str) -> TopicLedger | None:
        """The topic of that name that should be there."""
        return next((topic for topic in self.live_topics() if topic.facts.name == name), None)

    def give_producer_id(self, producer_id: int) -> None:
        """A producer got a new id. Raises SimulationFailure where another had it before."""
        if producer_id in self.producer_ids:
            raise SimulationFailure(f"producer id {producer_id} was given twice")
        self.producer_ids.add(producer_id)
