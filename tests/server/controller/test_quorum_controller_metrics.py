"""Protects the alerts on lost records and slow commits: elections by what the new leader was, latencies since last asked."""

from __future__ import annotations

from math import isnan

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.server.controller.quorum_controller import QuorumControllerMetrics
from kcli.server.metrics.sampled import Latency
from kcli.server.raft.metadata_batches import new_record
from kcli.state.metadata_image import MetadataImage

TOPIC = Uuid(bytes(15) + b"\7")


@pytest.mark.parametrize(
    ("leader", "unclean", "eligible"), [(1, 0, 0), (2, 0, 0), (3, 0, 1), (4, 1, 0), (-1, 0, 0), (-2, 0, 0)]
)
def test_an_election_counts_as_what_it_was(leader: int, unclean: int, eligible: int) -> None:
    """Broker 1 leads, 2 is in sync, 3 eligible, 4 neither; -1 is no leader."""
    image, counts = MetadataImage(), QuorumControllerMetrics()
    image.apply(new_record("TopicRecord", name="orders", topic_id=TOPIC))
    partition = {"topic_id": TOPIC, "partition_id": 0}
    values = {"replicas": [1, 2, 3, 4], "isr": [1, 2], "leader": 1, "eligible_leader_replicas": [3]}
    image.apply(new_record("PartitionRecord", **partition, **values))
    counts.count_election(image, new_record("PartitionChangeRecord", **partition, leader=leader))
    assert (counts.unclean_elections, counts.elections_from_eligible) == (unclean, eligible)


def test_latencies_begin_anew_when_taken() -> None:
    """Without a commit they are not a number, as in Kafka."""
    times = Latency()
    assert all(map(isnan, times.take()))
    times.add(2)
    times.add(6)
    assert times.take() == (4.0, 6.0)
    assert all(map(isnan, times.take()))
