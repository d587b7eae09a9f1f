"""A client that commits offsets for a group without members, as consumers do that assign partitions to themselves.

Its offsets rise by one, sometimes they are set back, or deleted. It reads them often, so that a lost commit is found.
"""

from __future__ import annotations

from random import Random

from kcli.protocol import error_codes
from kcli.simulator.client import Task
from kcli.simulator.coordination.group_member import Offsets
from kcli.simulator.coordination.offset_deleting import delete_offsets
from kcli.simulator.coordination.stage import GROUP_KEY, Caller, Stage

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
