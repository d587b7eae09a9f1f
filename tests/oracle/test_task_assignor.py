"""Protects the assignor of streams groups against Kafka's own: the same targets for groups that grow and shrink at random."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from kcli.server.coordinator.group.task_assignor import StreamsMemberSpec, TaskSource, assign_tasks
from kcli.state.groups import TargetTasks
from tests.oracle.peer import Peer

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

GROUPS = 60
STEPS = 12


def random_groups(rng: random.Random) -> list[tuple[str, dict[str, Any]]]:
    """Questions to Kafka, and our answers: each one begins with the targets of the one before."""
    found = []
    for _ in range(GROUPS):
        sources = [TaskSource(str(at), rng.randrange(1, 9), rng.random() < 0.6) for at in range(rng.randrange(1, 4))]
        replicas, processes = rng.randrange(3), [f"{rng.getrandbits(40):x}" for _ in range(rng.randrange(1, 7))]
        members: dict[str, str] = {}
        targets: dict[str, TargetTasks] = {}
        for _ in range(STEPS):
            if members and rng.random() < 0.4:
                del members[rng.choice(list(members))]
            for _ in range(rng.randrange(3) or not members):
                members[f"{rng.getrandbits(60):x}"] = rng.choice(processes)
            specs = [StreamsMemberSpec(name, members[name], targets.get(name, TargetTasks())) for name in members]
            listed = [[spec.member_id, spec.process_id, spec.target.active, spec.target.standby] for spec in specs]
            question = {"standby": replicas, "sources": sources, "members": listed}
            targets = assign_tasks(specs, sources, replicas)
            found.append((json.dumps(question), {name: [one.active, one.standby] for name, one in targets.items()}))
    return found


def test_targets_are_those_of_kafka(kafka_peer: Peer) -> None:
    """Also of equally loaded processes and members the same one gets a task."""
    asked = random_groups(random.Random(7))
    ran = kafka_peer.run_java("AssignTasks", stdin="".join(question + "\n" for question, _ in asked).encode())
    answers = [json.loads(line) for line in ran.stdout.decode().splitlines()]
    assert len(answers) == len(asked), ran.stderr[-2000:]
    for (question, own), other in zip(asked, answers, strict=True):
        assert own == other, question
