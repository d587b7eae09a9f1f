"""The loop consume-transform-produce: an output of each record, and the offset after the records, in one transaction.

The committed offset and the outputs are visible together or not at all, so each input has exactly one output in the end. If the
transaction is aborted, the member goes back to the committed offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from kcli.simulator.client import Task
from kcli.simulator.coordination.anomalies import INPUT_MARK
from kcli.simulator.coordination.fetching import READ_COMMITTED, Fetched
from kcli.simulator.coordination.group_member import WorkingMember
from kcli.simulator.coordination.history import TopicPartition
from kcli.simulator.coordination.producer_session import TIMEOUTS_MS, Outcome
from kcli.simulator.coordination.stage import Stage
from kcli.simulator.coordination.transactional_producer import make_session

ABORTED_SHARE = 0.1
PAUSED_SHARE = 0.02
MAX_PAUSE_MS = 50
BATCH_RECORDS = 10  # a batch must not be larger than a segment


class Transform:
    """Writes an output of each record; `targets` has the topic of the outputs for each topic that is read."""

    isolation = READ_COMMITTED

    def __init__(self, stage: Stage, name: str, rng: Random, transactional_id: str, targets: Mapping[str, str]) -> None:
        self._stage = stage
        self._rng = rng
        self._targets = targets
        self._session = make_session(stage, name, rng, transactional_id)

    def process(self, member: WorkingMember, fetched: dict[TopicPartition, Fetched]) -> Task[bool]:
        """Write the outputs and commit the positions in a transaction; return False if it is not committed."""
        session, rng = self._session, self._rng
        advanced = {where: one for where, one in fetched.items() if one.position > max(0, member.committed.get(where, 0))}
        if not advanced:
            return True
        if not session.is_ready and (yield from session.start()) is not Outcome.DONE:
            return False
        transaction = session.begin()
        outcome = yield from self._write(member, advanced)
        if rng.random() < PAUSED_SHARE and not self._stage.is_draining:
            self._stage.world.trace.add(member.name, f"pauses in {transaction.name}")
            yield rng.randrange(2 * max(TIMEOUTS_MS))
        if outcome is Outcome.FENCED or outcome is Outcome.OVER:
            session.abandon()
            return False
        is_commit = outcome is Outcome.DONE and (self._stage.is_draining or rng.random() >= ABORTED_SHARE)
        outcome = yield from session.end(is_commit=is_commit)
        if is_commit and outcome is Outcome.DONE:
            member.committed.update({where: one.position for where, one in advanced.items()})
            return True
        return False

    def _produce(self, target: str, index: int, values: list[bytes]) -> Task[Outcome]:
        topic, outcome = self._stage.topics[target], Outcome.DONE
        for start in range(0, len(values), BATCH_RECORDS):
            batch = values[start : start + BATCH_RECORDS]
            outcome = yield from self._session.produce((topic.name, index % topic.partition_count), batch)
            if outcome is not Outcome.DONE:
                break
        return outcome

    def _write(self, member: WorkingMember, advanced: dict[TopicPartition, Fetched]) -> Task[Outcome]:
        session, transaction = self._session, self._session.transaction
        assert transaction is not None
        for (source, index), one in advanced.items():
            prefix = f"{member.group}:{transaction.name}".encode() + INPUT_MARK
            values = [*dict.fromkeys(prefix + value for _, value in one.records)]  # a wrong log may have a record twice
            if values:
                outcome = yield from self._produce(self._targets[source], index, values)
                if outcome is not Outcome.DONE:
                    return outcome
            yield self._rng.randrange(MAX_PAUSE_MS)
        offsets = {where: one.position for where, one in advanced.items()}
        outcome = yield from session.commit_offsets(
            member.group, member.member_id, member.generation, offsets, member.instance_id
        )
        return outcome
