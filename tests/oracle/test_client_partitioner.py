"""Protects the partitions of keys against Kafka's own producer: records of both with equal keys are in one partition."""

from __future__ import annotations

import random

import pytest

from kcli.client.cluster import Cluster, PartitionInfo
from kcli.client.producer.partitioner import RecordPartitioner
from tests.oracle.peer import Peer

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

KEYS = 10_000
MOST_KEY_BYTES = 64
MOST_PARTITIONS = 100


def test_keys_have_the_partitions_that_java_chooses(kafka_peer: Peer) -> None:
    rng = random.Random(19)
    keys = [rng.randbytes(number % (MOST_KEY_BYTES + 1)) for number in range(KEYS)]
    counts = [1 + number % MOST_PARTITIONS for number in range(KEYS)]
    clusters = {count: Cluster(PartitionInfo("t", index, 1) for index in range(count)) for count in set(counts)}
    asked = "".join(f"{key.hex()} {count}\n" for key, count in zip(keys, counts, strict=True))
    ran = kafka_peer.run_java("ChoosePartition", stdin=asked.encode())
    answers = [int(line) for line in ran.stdout.split()]
    assert len(answers) == KEYS, ran.stderr[-2000:]
    own = RecordPartitioner()
    for key, count, answer in zip(keys, counts, answers, strict=True):
        assert own.partition("t", -1, key, b"", clusters[count]) == answer, (key.hex(), count)
