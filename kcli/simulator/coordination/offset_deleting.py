"""Deletes committed offsets of groups with OffsetDelete.

A group that reads a topic keeps its offsets: GROUP_SUBSCRIBED_TO_TOPIC. While it has no members the offsets are deleted, and
the next members begin at the start of the partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from kcli.protocol import error_codes
from kcli.protocol.apis import OFFSET_DELETE
from kcli.protocol.message import Message
from kcli.simulator.client import Task
from kcli.simulator.coordination.history import NO_OFFSET, OffsetCommit, TopicPartition
from kcli.simulator.coordination.stage import GROUP_KEY, RETRIABLE, Caller, Stage

MAX_PAUSE_MS = 1500
_KEPT = frozenset((error_codes.GROUP_SUBSCRIBED_TO_TOPIC,))
# The group does not exist yet, or has members that do not say which topics they read.
_WITHOUT_EFFECT = frozenset((error_codes.GROUP_ID_NOT_FOUND, error_codes.NON_EMPTY_GROUP))


def delete_offsets(stage: Stage, caller: Caller, group: str, partitions: Iterable[TopicPartition]) -> Task[None]:
    """Delete offsets of a group; the history has a commit of NO_OFFSET for each. Raises SimulationFailure."""
    world, by_topic = stage.world, dict[str, list[Message]]()
    commits = {where: OffsetCommit(group, where, NO_OFFSET, stage.now_ms) for where in partitions}
    stage.history.commits += commits.values()
    for name, index in commits:
        part = world.struct(OFFSET_DELETE, "OffsetDeleteRequestPartition", partition_index=index)
        by_topic.setdefault(name, []).append(part)
    topics = [
        world.struct(OFFSET_DELETE, "OffsetDeleteRequestTopic", name=name, partitions=parts) for name, parts in by_topic.items()
    ]
    request = world.request(OFFSET_DELETE, group_id=group, topics=topics)
    # A late repetition would make a missing offset possible at any time.
    response = yield from caller.call(OFFSET_DELETE, caller.version(OFFSET_DELETE), request, may_repeat=False)
    for commit in commits.values():
        commit.is_stray = response is None
    if response is None:
        return
    caller.check(response.error_code, "OffsetDelete", RETRIABLE | _WITHOUT_EFFECT)
    for commit in commits.values():
        commit.is_refused = response.error_code in _WITHOUT_EFFECT
        commit.is_stray = response.error_code != 0 and not commit.is_refused
    for topic in response.topics:
        for part in topic.partitions:
            caller.check(part.error_code, "OffsetDelete of a partition", RETRIABLE | _KEPT)
            commit = commits[topic.name, part.partition_index]
            commit.is_refused = part.error_code in _KEPT
            if not part.error_code:
                commit.answered_ms = stage.now_ms


class OffsetDeleter:
    """Tries to delete offsets of groups and their topics, again and again."""

    def __init__(self, stage: Stage, name: str, rng: Random, topics: dict[str, str]) -> None:
        self._stage = stage
        self._rng = rng
        self._topics = topics
        self._caller = Caller(stage, name, rng)

    def run(self) -> Task[None]:
        """Delete offsets until the workload drains. Raises SimulationFailure."""
        stage, rng = self._stage, self._rng
        for group in self._topics:
            yield from self._caller.find_coordinator(GROUP_KEY, group)
        while not stage.is_draining:
            group, name = rng.choice(list(self._topics.items()))
            partitions = stage.topics[name].partitions
            yield from delete_offsets(stage, self._caller, group, rng.sample(partitions, rng.randint(1, len(partitions))))
            yield rng.randrange(MAX_PAUSE_MS)
