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


def random_groups(rng: random.Random, *, is_4_4: bool) -> list[tuple[str, dict[str, Any]]]:
    """Questions to Kafka, and our answers: each one begins with the targets of the one before.

    In 4.4 some members also report offsets of tasks.
    """
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
            all_tasks = [task for source in sources for task in source.tasks]
            specs = []
            for name in members:
                reported = rng.sample(all_tasks, rng.randrange(1 + len(all_tasks))) if is_4_4 and rng.random() < 0.5 else []
                offsets = {task: rng.randrange(4) for task in reported}
                specs.append(StreamsMemberSpec(name, members[name], targets.get(name, TargetTasks()), offsets))
            listed = [
                [one.member_id, one.process_id, one.before.active, one.before.standby]
                + [[key, index, offset] for (key, index), offset in one.offsets.items()]
                for one in specs
            ]
            question = {"standby": replicas, "sources": sources, "members": listed}
            targets = assign_tasks(specs, sources, replicas, is_4_4)
            found.append((json.dumps(question), {name: [one.active, one.standby] for name, one in targets.items()}))
    return found


def test_targets_are_those_of_kafka(each_kafka: Peer) -> None:
    """Also of equally loaded processes and members the same one gets a task, in 4.3.1 and in 4.4.0."""
    is_4_4 = each_kafka.version == "4.4.0"
    asked = random_groups(random.Random(7), is_4_4=is_4_4)
    program = "AssignTasksByState" if is_4_4 else "AssignTasks"
    ran = each_kafka.run_java(program, stdin="".join(question + "\n" for question, _ in asked).encode())
    answers = [json.loads(line) for line in ran.stdout.decode().splitlines()]
    assert len(answers) == len(asked), ran.stderr[-2000:]
    for (question, own), other in zip(asked, answers, strict=True):
        assert own == other, question
