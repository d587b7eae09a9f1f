"""What the clients of a simulation know about the cluster: its topics, and the producer ids that were assigned."""

from __future__ import annotations

from collections import Counter

from kcli.simulator.compacted_ledger import CompactedLedger
from kcli.simulator.partition_ledger import PartitionLedger, SimulationFailure, TopicFacts

TopicId = bytes


class TopicLedger:
    """A topic with its id; a new topic of the same name has another one."""

    def __init__(self, topic_id: TopicId, facts: TopicFacts, partition_count: int) -> None:
        self.topic_id = topic_id
        self.facts = facts
        self.partitions: list[PartitionLedger] = []
        self.configs: dict[str, str] = {}
        # By config: the alterations that were sent, and those of them that have no answer. Such a one may still be applied.
        self.alterations: Counter[str] = Counter()
        self.unanswered_alterations: Counter[str] = Counter()
        self.deletion_requested = False
        self.is_deleted = False
        self.grow(partition_count)

    def grow(self, partition_count: int) -> None:
        """Add partitions until there are `partition_count`."""
        for index in range(len(self.partitions), partition_count):
            make = CompactedLedger if self.facts.is_compacted else PartitionLedger
            self.partitions.append(make(self.facts, index))


class Ledger:
    """All topics and producer ids."""

    def __init__(self) -> None:
        self.topics: dict[TopicId, TopicLedger] = {}
        self.producer_ids: set[int] = set()
        # Topics whose creation was requested and not confirmed yet: their facts and configs.
        self.in_doubt: dict[str, tuple[TopicFacts, dict[str, str]]] = {}
        # Those of them whose request was sent again: the first one may be executed late, when the topic was deleted.
        self.may_be_created_again: set[str] = set()

    def live_topics(self) -> list[TopicLedger]:
        """Return the topics whose deletion was not requested."""
        return [topic for topic in self.topics.values() if not topic.deletion_requested]

    def find(self, name: str) -> TopicLedger | None:
        """Return the live topic with that name, or None."""
        return next((topic for topic in self.live_topics() if topic.facts.name == name), None)

    def add_producer_id(self, producer_id: int) -> None:
        """Record that a producer got a new id. Raises SimulationFailure if the id was assigned before."""
        if producer_id in self.producer_ids:
            raise SimulationFailure(f"producer id {producer_id} was assigned twice")
        self.producer_ids.add(producer_id)
