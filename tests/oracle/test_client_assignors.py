"""Protects the client's assignors against those of the Java consumer: the same partitions in the same order, the same bytes."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from kcli.client.consumer.assignors.assignor import Assignor
from kcli.client.consumer.assignors.built_in import ASSIGNORS
from kcli.client.consumer.assignors.general_assignment import PartitionMovements
from kcli.client.consumer.assignors.sticky_user_data import encode_cooperative, encode_sticky
from kcli.client.consumer.consumer_protocol import (
    Assignment,
    Subscription,
    TopicPartition,
    encode_assignment,
    encode_subscription,
)
from tests.client.consumer.drawn_groups import DrawnGroup, Rebalance, draw_stale_claims
from tests.oracle.peer import Peer

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

GROUPS = 100
LARGE_GROUPS = 4
LARGE_SCALE = 8
REBALANCES = 8
REVERSE_MOVES = 40
OLD_LEADER = 200


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


Asked = list[tuple[str, dict[str, list[Any]]]]


def drawn_questions(name: str, rng: random.Random, scale: int = 1) -> Asked:
    """Questions to Kafka, and our answers; in a group, a member has what the rebalance before assigned to it."""
    found = []
    group, leader = DrawnGroup(rng, name, scale), ASSIGNORS[name]()
    for rebalance in group.rebalances(REBALANCES):
        assigned = leader.assign(rebalance.cluster, rebalance.subscriptions)
        found.append((question_of(name, rebalance), answer_of(name, rebalance, assigned)))
        group.take(assigned)
    return found


def all_questions() -> Asked:
    rng = random.Random(1)
    found = []
    for name in ASSIGNORS:
        for _ in range(GROUPS):
            found += drawn_questions(name, rng)
        for _ in range(LARGE_GROUPS):
            found += drawn_questions(name, rng, LARGE_SCALE)
    return found + reverse_questions(rng) + questions_to_an_old_leader(rng) + question_of_two_claims()


def reverse_questions(rng: random.Random) -> Asked:
    """Questions in which a partition moves back from A to B where another one was to move from B to A."""
    found: Asked = []
    find_partition, moves_back = PartitionMovements.find_partition, []

    def watched(movements: PartitionMovements, partition: TopicPartition, source: str, destination: str) -> TopicPartition:
        moved = find_partition(movements, partition, source, destination)
        moves_back.append(moved != partition)
        return moved

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PartitionMovements, "find_partition", watched)
        while len(found) < REVERSE_MOVES:
            rebalance = draw_stale_claims(rng)
            moves_back.clear()
            assigned = ASSIGNORS["sticky"]().assign(rebalance.cluster, rebalance.subscriptions)
            if any(moves_back):
                found.append((question_of("sticky", rebalance), answer_of("sticky", rebalance, assigned)))
    return found


def questions_to_an_old_leader(rng: random.Random) -> Asked:
    """Questions to a leader that has seen a later generation: all that the members have counts as old."""
    leader, found = ASSIGNORS["sticky"](), []
    first = Rebalance(True, 10, 3, {"t": [[]]}, [("m", None, sticky_member(["t"], [("t", 0)], 9))])
    for rebalance in [first, *(draw_stale_claims(rng)._replace(is_first=False) for _ in range(OLD_LEADER))]:
        assigned = leader.assign(rebalance.cluster, rebalance.subscriptions)
        found.append((question_of("sticky", rebalance), answer_of("sticky", rebalance, assigned)))
    return found


def sticky_member(topics: list[str], partitions: list[tuple[str, int]], generation: int) -> bytes:
    owned = [TopicPartition(*partition) for partition in partitions]
    return encode_subscription(Subscription(topics, encode_sticky(owned, generation), generation=generation))


def question_of_two_claims() -> Asked:
    """Ask for a member that lists a partition of another member twice, with its generation in the user data alone."""
    claimed = [TopicPartition("t", number) for number in (0, 0, 2)]
    others = [TopicPartition("t", number) for number in (0, 1)]
    members = [
        ("m1", None, encode_subscription(Subscription(["t"], encode_cooperative(5), others, 5))),
        ("m2", None, encode_subscription(Subscription(["t", "u"], encode_cooperative(5), claimed))),
    ]
    rebalance = Rebalance(True, 6, 3, {"t": [[]] * 4, "u": [[]]}, members)
    name = "cooperative-sticky"
    assigned = ASSIGNORS[name]().assign(rebalance.cluster, rebalance.subscriptions)
    return [(question_of(name, rebalance), answer_of(name, rebalance, assigned))]


# What the Java consumer's assignor fails on, and the end of its answer; None: it assigns a partition twice. Kcli's goes on, see
# its sticky_assignor and general_assignment.
FAILURES = {
    "partitions that do not exist, same topics": (
        {"t": 3},
        [sticky_member(["t"], [("t", 7)], 1), sticky_member(["t"], [("t", 8)], 1), sticky_member(["t"], [], 1)],
        "No more unfilled consumers to be assigned.",
    ),
    "a previous owner that takes no part in the balance": (
        {"t": 6, "u": 1},
        [
            sticky_member(["u"], [("t", 0), ("t", 1), ("u", 0)], 1),
            sticky_member(["t"], [("t", number) for number in range(6)], 2),
            sticky_member(["t"], [], 2),
        ],
        "is null",
    ),
    "a partition that does not exist, different topics": (
        {"t": 2, "u": 2},
        [sticky_member(["t", "u"], [("t", 5), ("t", 0), ("u", 0)], 1), sticky_member(["u"], [("u", 1)], 1)],
        None,
    ),
}


def failure_questions() -> list[str]:
    found = []
    for counts, members, _ in FAILURES.values():
        racks: dict[str, list[list[str | None]]] = {topic: [[]] * count for topic, count in counts.items()}
        listed = [(f"m{at}", None, data) for at, data in enumerate(members)]
        found.append(question_of("sticky", Rebalance(True, 3, 3, racks, listed)))
    return found


def test_assignments_are_those_of_the_java_consumer(kafka_peer: Peer) -> None:
    """All but those on which Java's assignor fails; then FAILURES."""
    asked, failing = all_questions(), failure_questions()
    stdin = "".join(question + "\n" for question in [*(question for question, _ in asked), *failing]).encode()
    ran = kafka_peer.run_java("AssignPartitions", stdin=stdin)
    answers = [json.loads(line) for line in ran.stdout.decode().splitlines()]
    assert len(answers) == len(asked) + len(failing), ran.stderr[-2000:]
    failed = [other["error"] for other in answers[: len(asked)] if "error" in other]
    assert len(failed) < len(asked) / 500
    assert all("NullPointerException" in error for error in failed)
    for (question, own), other in zip(asked, answers):
        assert "error" in other or own == other, question
    for (case, (_, _, error)), other in zip(FAILURES.items(), answers[len(asked) :], strict=True):
        if error is None:
            assigned = [tuple(partition) for partitions, *_ in other.values() for partition in partitions]
            assert len(assigned) > len(set(assigned)), (case, other)
        else:
            assert other.get("error", "").endswith(error), (case, other)
