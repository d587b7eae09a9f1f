"""Producers of a coordination workload: transactional ones, also two with one transactional id, and idempotent ones.

what a transactional producer does   how often
-----------------------------------  ---------------------------------------------------------------------------------
commits, aborts                      mostly; one of four transactions is aborted
pauses in a transaction              sometimes for longer than the timeout of the transaction; then it goes on, as a zombie
leaves a transaction open            sometimes; later it begins again with InitProducerId. Of the transactions that are
                                     open when draining begins, some are left to the coordinator's timeout

`make_session` chooses what a producer runs on, by its seed: the core of kcli's own producer, or raw requests.

producer                                                  its session
--------------------------------------------------------  ----------------------------------------------------------
idempotent; transactional with transaction.version 2      mostly a CoreProducerSession; else a ProducerSession, which
                                                          sends requests of all versions
transactional with transaction.version 1; of a topic      a ProducerSession: the core uses the version of the
that is created again and again                           cluster, and names topics

Transform is the loop consume-transform-produce: an output of each record, and the offset after the records, in one transaction.
The committed offset and the outputs are visible together or not at all, so each input has exactly one output in the end. If the
transaction is aborted, the member goes back to the committed offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from kcli.format.primitives import TopicPartition
from kcli.simulator.client import Task
from kcli.simulator.coordination.anomalies import INPUT_MARK
from kcli.simulator.coordination.core_producer import CoreProducerSession
from kcli.simulator.coordination.fetching import READ_COMMITTED, Fetched
from kcli.simulator.coordination.group_member import WorkingMember
from kcli.simulator.coordination.history import AGAIN
from kcli.simulator.coordination.producer_session import TIMEOUTS_MS, Outcome, ProducerSession, Session
from kcli.simulator.coordination.stage import Stage

CORE_SHARE = 0.75


def make_session(stage: Stage, name: str, rng: Random, transactional_id: str | None, topic: str = "") -> Session:
    """Make the session of a producer."""
    # With Kafka's rules, EndTxn of a fenced client of version 2 may look like a retry of an end by a client of version 1.
    # So all producers of a transactional id have one version.
    is_new_style = stage.styles.setdefault(transactional_id, rng.random() < 0.6) or transactional_id is None
    if stage.is_core_only or (is_new_style and topic != AGAIN and rng.random() < CORE_SHARE):
        return CoreProducerSession(stage, name, rng, transactional_id)
    return ProducerSession(stage, name, rng, transactional_id)


ABORTED_SHARE = 0.25
PAUSED_SHARE = 0.03
ABANDONED_SHARE, LAST_ABANDONED_SHARE = 0.03, 0.4  # the second one of those that are open when draining begins
MAX_PAUSE_MS = 250


class TransactionalProducer:
    """Writes records to a topic in transactions; without a transactional id one by one."""

    def __init__(self, stage: Stage, name: str, rng: Random, topic: str, transactional_id: str | None) -> None:
        self._stage = stage
        self.name = name
        self._rng = rng
        self._topic = topic
        self._is_transactional = transactional_id is not None
        self.session = make_session(stage, name, rng, transactional_id, topic)
        self._count = 0
        self.is_idle = False  # it writes nothing more

    def run(self) -> Task[None]:
        """Produce until the workload drains. Raises SimulationFailure."""
        session, rng = self.session, self._rng
        while not self._stage.is_draining:
            if self._stage.topic(self._topic) is None:
                yield rng.randrange(1, MAX_PAUSE_MS)
                continue
            if not session.is_ready:
                outcome = yield from session.start()
                if outcome is Outcome.FENCED:
                    yield rng.randrange(MAX_PAUSE_MS)
            elif self._is_transactional:
                yield from self._transaction()
            else:
                yield from session.produce(self._partition(), self._values())
            yield rng.randrange(MAX_PAUSE_MS)
        yield from session.finish()
        self.is_idle = True

    def _transaction(self) -> Task[None]:
        session, rng = self.session, self._rng
        session.begin()
        outcome = Outcome.DONE
        for _ in range(rng.choice((1, 1, 2, 3))):
            outcome = yield from session.produce(self._partition(), self._values())
            if outcome is not Outcome.DONE:
                break
            if rng.random() < PAUSED_SHARE and not self._stage.is_draining:
                yield rng.randrange(2 * max(TIMEOUTS_MS))
            yield rng.randrange(MAX_PAUSE_MS // 4)
        abandoned_share = LAST_ABANDONED_SHARE if self._stage.is_draining else ABANDONED_SHARE
        if outcome is Outcome.FENCED or outcome is Outcome.OVER or rng.random() < abandoned_share:
            session.abandon()
            return
        is_commit = outcome is Outcome.DONE and rng.random() >= ABORTED_SHARE
        yield from session.end(is_commit=is_commit)

    def _partition(self) -> tuple[str, int]:
        topic = self._stage.topic(self._topic)
        assert topic is not None
        return topic.name, self._rng.randrange(topic.partition_count)

    def _values(self) -> list[bytes]:
        values = []
        for _ in range(self._rng.choice((1, 1, 2, 3))):
            self._count += 1
            values.append(f"{self.name}#{self._count}".encode())
        return values


ABORTED_OUTPUTS_SHARE = 0.1
PAUSED_OUTPUTS_SHARE = 0.02
MAX_OUTPUTS_PAUSE_MS = 50
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
        if rng.random() < PAUSED_OUTPUTS_SHARE and not self._stage.is_draining:
            self._stage.world.trace.add(member.name, f"pauses in {transaction.name}")
            yield rng.randrange(2 * max(TIMEOUTS_MS))
        if outcome is Outcome.FENCED or outcome is Outcome.OVER:
            session.abandon()
            return False
        is_commit = outcome is Outcome.DONE and (self._stage.is_draining or rng.random() >= ABORTED_OUTPUTS_SHARE)
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
            yield self._rng.randrange(MAX_OUTPUTS_PAUSE_MS)
        offsets = {where: one.position for where, one in advanced.items()}
        outcome = yield from session.commit_offsets(
            member.group, member.member_id, member.generation, offsets, member.instance_id
        )
        return outcome
