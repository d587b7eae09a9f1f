"""A client that commits offsets for a group without members, as consumers do that assign partitions to themselves.

Its offsets rise by one, sometimes they are set back, or deleted. It reads them often, so that a lost commit is found.

OffsetDeleter deletes committed offsets of groups with OffsetDelete. A group that reads a topic keeps its offsets:
GROUP_SUBSCRIBED_TO_TOPIC. While it has no members the offsets are deleted, and the next members begin at the start of the
partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import OFFSET_DELETE
from kcli.protocol.message import Message
from kcli.simulator.client import Task
from kcli.simulator.coordination.group_member import Offsets
from kcli.simulator.coordination.history import NO_OFFSET, OffsetCommit
from kcli.simulator.coordination.stage import GROUP_KEY, RETRIABLE, Caller, Stage

REWIND_SHARE = 0.02
DELETED_SHARE = 0.03
MAX_PAUSE_MS = 200


class OffsetCommitter:
    """See the head of this module."""

    def __init__(self, stage: Stage, name: str, rng: Random, group: str, topic: str) -> None:
        self._stage = stage
        self._rng = rng
        self._group = group
        self._topic = topic
        self._caller = Caller(stage, name, rng)
        self._offsets = Offsets(stage, self._caller, group)

    def run(self) -> Task[None]:
        """Commit and read offsets until the workload drains. Raises SimulationFailure."""
        stage, rng, next_offset = self._stage, self._rng, 0
        yield from self._caller.find_coordinator(GROUP_KEY, self._group)
        while not stage.is_draining:
            partitions = stage.topics[self._topic].partitions
            if rng.random() < REWIND_SHARE:
                next_offset = rng.randrange(next_offset + 1)
            next_offset += 1
            chosen = rng.sample(partitions, rng.randint(1, len(partitions)))
            # A late repetition would make every offset possible.
            code = yield from self._offsets.commit(dict.fromkeys(chosen, next_offset), may_repeat=rng.random() < 0.1)
            self._caller.check(code or 0, "OffsetCommit of a group without members", _TEMPORARY)
            if rng.random() < DELETED_SHARE:
                yield from delete_offsets(stage, self._caller, self._group, chosen)
            if rng.random() < 0.5:
                yield from self._offsets.fetch(partitions)
            yield rng.randrange(MAX_PAUSE_MS)


_TEMPORARY = frozenset(
    (
        error_codes.COORDINATOR_LOAD_IN_PROGRESS,
        error_codes.COORDINATOR_NOT_AVAILABLE,
        error_codes.NOT_COORDINATOR,
        error_codes.REQUEST_TIMED_OUT,
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        error_codes.UNKNOWN_TOPIC_ID,
    )
)


MAX_DELETING_PAUSE_MS = 1500
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
            yield rng.randrange(MAX_DELETING_PAUSE_MS)
