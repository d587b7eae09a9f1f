"""Protects the client's assignors against those of the Java consumer: the same partitions in the same order, the same bytes."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from kcli.client.consumer.assignors.assignor import Assignor
from kcli.client.consumer.assignors.built_in import ASSIGNORS
from kcli.client.consumer.consumer_protocol import Assignment, Subscription, encode_assignment, encode_subscription
from tests.client.consumer.drawn_groups import DrawnGroup, Rebalance
from tests.oracle.peer import Peer

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

GROUPS = 120
REBALANCES = 8


def question_of(name: str, rebalance: Rebalance) -> str:
    return json.dumps(
        {
            "assignor": name,
            "new": rebalance.is_first,
            "generation": rebalance.generation,
            "version": rebalance.version,
            "topics": rebalance.replica_racks,
            "members": [[member, instance_id, data.hex()] for member, instance_id, data in rebalance.members],
        }
    )


def answer_of(name: str, rebalance: Rebalance, assigned: dict[str, Assignment]) -> dict[str, list[Any]]:
    subscriptions = rebalance.subscriptions
    return {
        member: member_answer(ASSIGNORS[name](), rebalance, subscriptions[member], assignment)
        for member, assignment in assigned.items()
    }


def member_answer(own: Assignor, rebalance: Rebalance, subscription: Subscription, assignment: Assignment) -> list[Any]:
    own.on_assignment(assignment, rebalance.generation)
    user_data = own.subscription_user_data(subscription.topics)
    return [
        [list(partition) for partition in assignment.partitions],
        encode_subscription(subscription, rebalance.version).hex(),
        encode_assignment(assignment, rebalance.version).hex(),
        None if user_data is None else user_data.hex(),
    ]


def drawn_questions(name: str, rng: random.Random) -> list[tuple[str, dict[str, list[Any]]]]:
    """Questions to Kafka, and our answers; in each group, a member has what the rebalance before assigned to it."""
    found = []
    for _ in range(GROUPS):
        group, leader = DrawnGroup(rng, name), ASSIGNORS[name]()
        for rebalance in group.rebalances(REBALANCES):
            assigned = leader.assign(rebalance.cluster, rebalance.subscriptions)
            found.append((question_of(name, rebalance), answer_of(name, rebalance, assigned)))
            group.take(assigned)
    return found


def test_assignments_are_those_of_the_java_consumer(kafka_peer: Peer) -> None:
    asked = [pair for seed, name in enumerate(ASSIGNORS) for pair in drawn_questions(name, random.Random(seed))]
    ran = kafka_peer.run_java("AssignPartitions", stdin="".join(question + "\n" for question, _ in asked).encode())
    answers = [json.loads(line) for line in ran.stdout.decode().splitlines()]
    assert len(answers) == len(asked), ran.stderr[-2000:]
    failed = 0
    for (question, own), other in zip(asked, answers, strict=True):
        if "error" in other:
            failed += 1
            print(other["error"])
            continue
        assert own == other, question
    print(len(answers), failed)
