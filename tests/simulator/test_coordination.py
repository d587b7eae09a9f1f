"""Protects groups and transactions through crashes, repeated requests and clock jumps: seeds pass, built-in faults are found.

A seed that fails is repeated by `kcli simulate --workload coordination --seed N`, which prints the end of its trace.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kcli.simulator.coordination import anomalies
from kcli.simulator.coordination.anomalies import GRACE_MS
from kcli.simulator.coordination.fetching import READ_COMMITTED, consumed
from kcli.simulator.coordination.history import (
    NO_GENERATION,
    NO_OFFSET,
    Fate,
    FinalRecord,
    FinalState,
    GivenEpoch,
    History,
    OffsetCommit,
    OffsetRead,
    Ownership,
    Poll,
)
from kcli.simulator.coordination.node_settings import SESSIONS_MS, loses_power
from kcli.simulator.coordination.share_history import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Delivery,
    LostFetch,
    ShareEra,
    ShareTerms,
    SilentDeath,
)
from kcli.simulator.coordination.workload import DEFAULT_STEPS, CoordinationSimulation
from kcli.simulator.runner import SimulationResult
from kcli.simulator.sent_records import SentRecord, encode_batch

sys.path.insert(0, str(Path(__file__).parent))
from built_in_faults import SmallWorld
from wrong_coordinators import COORDINATORS, SMALL_WORLDS

P = ("input", 0)


def simulation(seed: int, steps: int = DEFAULT_STEPS) -> CoordinationSimulation:
    return SmallWorld(steps=steps).simulation(seed)


def simulate(seed: int, steps: int = DEFAULT_STEPS) -> SimulationResult:
    return simulation(seed, steps).run()


def failures(seeds: range) -> list[str]:
    """What failed, and how to repeat it."""
    outcomes = (simulate(seed) for seed in seeds)
    return [f"kcli simulate --workload coordination --seed {one.seed}: {one.failure}" for one in outcomes if one.failure]


def test_one_seed() -> None:
    """In every run of the tests."""
    assert failures(range(1)) == []


@pytest.mark.ci
def test_a_few_seeds() -> None:
    """With power losses and without; and the clients did something: a workload in which nothing happens proves nothing."""
    runs = [simulation(seed) for seed in (*range(1, 18), 29, 38)]  # 38 has refused acknowledgements, 29 locks that expire early
    outcomes = [run.run() for run in runs]
    assert [one.failure for one in outcomes if one.failure] == []
    assert {loses_power(run.seed) for run in runs} == {True, False}
    assert sum(one.deaths for one in outcomes) > 30
    histories = [run.stage.history for run in runs]
    fates = [transaction.fate for history in histories for transaction in history.transactions]
    assert fates.count(Fate.COMMITTED) > 50 and fates.count(Fate.ABORTED) > 50
    assert sum(len(history.ownerships) for history in histories) > 200
    assert sum(commit.is_refused for history in histories for commit in history.commits) > 1
    assert sum(any(b"<" in value for value in history.writes) for history in histories) > 6
    said = [one for history in histories for one in history.shares.acknowledgements]
    accepted = [one.kind for one in said if one.answered_ms is not None]
    assert all(accepted.count(kind) > 10 for kind in (GAP, ACCEPT, RELEASE, REJECT, RENEW))
    assert any(one.is_refused for one in said)
    deliveries = [one for history in histories for one in history.shares.deliveries]
    assert sum(one.count > 1 for one in deliveries) > 30
    assert {terms.is_committed_only for history in histories for terms in history.shares.terms.values()} == {True, False}
    # Only the end of a lock frees the records of a member that has died silently.
    expired = [[*history.shares.expired_locks(is_draining=True)] for history in histories]
    assert sum(map(bool, expired)) > len(expired) // 2
    assert any(any(history.shares.expired_locks(is_draining=False)) for history in histories)
    assert len({one.member for history in histories for one in history.ownerships if one.group == "reads-3"}) > 12


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_1000_seeds(block: int) -> None:
    """Before a release, 50 at a time."""
    assert failures(range(1000 + block * 50, 1050 + block * 50)) == []


@pytest.mark.ci
def test_a_seed_is_a_trace_to_the_byte() -> None:
    """In another process, whatever Python's hashes are."""
    digest = simulate(4, 1500).digest[:16]
    environment = os.environ | {"PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "kcli", "simulate", "--workload", "coordination", "--seed", "4", "--steps", "1500"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"digest {digest}" in found.stdout


@pytest.mark.ci
@pytest.mark.parametrize("what", COORDINATORS.faults)
def test_a_wrong_coordinator_is_found(what: str) -> None:
    """By its check, so that no check is idle; see built_in_faults."""
    COORDINATORS.check_is_found(what)


@pytest.mark.ci
@pytest.mark.parametrize("world", SMALL_WORLDS, ids=lambda world: " ".join(world.only))
def test_a_small_world_passes(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it finds is the fault, not the world; and its clients do something."""
    world.enter(monkeypatch)
    outcome = world.simulation(0).run()
    assert outcome.failure == ""
    assert outcome.batches > 10


def test_each_check_finds_a_wrong_coordinator() -> None:
    """As the first one: a check that reports only what another one has reported before protects nothing."""
    assert {check.__name__ for check in anomalies.ANOMALIES} == {fault.check for fault in COORDINATORS.faults.values()} - {""}


# --------------------------------------------------------------------------------------------------------------- the checks


def committed(history: History, *values: bytes, fate: Fate = Fate.COMMITTED) -> None:
    """Adds acknowledged records of one transaction, from offset 0 on."""
    transaction = history.begin_transaction("t")
    for offset, value in enumerate(values):
        write = history.write(value, P, "s", transaction)
        write.offset, write.is_acknowledged = offset, True
    transaction.fate, transaction.resolved_ms = fate, 20
    transaction.commit_sent_ms = 10 if fate is not Fate.ABORTED else None


def poll(*records: tuple[int, bytes], start: int = 0, end: int = 2, at_ms: int = 30, view: int = 1) -> Poll:
    return Poll("r", "g", view, P, start, end, list(records), True, at_ms)


def commit(offset: int, sent_ms: int, member: str = "m", generation: int = 1) -> OffsetCommit:
    made = OffsetCommit("g", P, offset, sent_ms, member, generation)
    made.answered_ms = sent_ms + 1
    return made


def sound() -> tuple[History, FinalState]:
    """A history without an anomaly: a committed transaction, read by a group, whose offset is committed."""
    history = History()
    committed(history, b"a", b"b")
    history.readers_of["g"] = ("input",)
    history.polls.append(poll((0, b"a"), (1, b"b")))
    history.ownerships += [Ownership("g", 1, "m", P, 0, 1), Ownership("g", 2, "n", P, 60, 61)]
    history.commits += [commit(1, 40), commit(2, 50)]
    history.offset_reads.append(OffsetRead("g", P, 2, 55, 56))
    history.epochs += [GivenEpoch("a", "t", 1, 0, 1, 1), GivenEpoch("b", "t", 1, 2, 2, 4), GivenEpoch("a", "t", 1, 1, 1, 5)]
    history.epochs.append(GivenEpoch("c", None, 2, 0, 1, 2))
    history.shares.terms["s"] = ShareTerms("input", 4, 1000, True)
    delivered(history, 0, 31, kinds=(RELEASE,))
    delivered(history, 0, 35, count=2, kinds=(RENEW, ACCEPT))
    delivered(history, 1, 35, kinds=(REJECT,))
    logs = {P: [FinalRecord(0, b"a", True), FinalRecord(1, b"b", True)]}
    return history, FinalState(logs, {P: (3, 3)}, [], {"g": {P: 2}}, {"s": {P: 0}})


def delivered(
    history: History,
    offset: int,
    sent_ms: int,
    *,
    member: str = "m",
    count: int = 1,
    kinds: tuple[int, ...] = (),
    life: int = 1,
    group: str = "s",
) -> Delivery:
    """Adds a delivery that is held for 1 ms, and acknowledgements of it that are accepted 2 ms later."""
    one = Delivery(group, member, P, offset, b"v", count, sent_ms, sent_ms + 1, sent_ms + 1000, life)
    one.held_until_ms = sent_ms + 2
    history.shares.deliveries.append(one)
    for kind in kinds:
        said = Acknowledgement(one, kind, sent_ms + 2)
        said.answered_ms = sent_ms + 3
        history.shares.acknowledgements.append(said)
    return one


def two_records_at_an_offset(history: History, final: FinalState) -> None:
    final.logs[P][1] = FinalRecord(1, b"c", True)


def a_record_is_gone(history: History, final: FinalState) -> None:
    del final.logs[P][1]


def a_record_is_there_twice(history: History, final: FinalState) -> None:
    final.logs[P].append(FinalRecord(2, b"a", True))


def an_aborted_record_is_read(history: History, final: FinalState) -> None:
    committed(history, b"x", fate=Fate.ABORTED)
    history.polls.append(poll((5, b"x"), start=5, end=6))


def a_record_is_read_early(history: History, final: FinalState) -> None:
    history.polls[0] = poll((0, b"a"), (1, b"b"), at_ms=9)


def an_aborted_record_is_in_the_log(history: History, final: FinalState) -> None:
    committed(history, b"x", fate=Fate.ABORTED)
    final.logs[P].append(FinalRecord(2, b"x", True))


def a_record_is_read_that_was_never_sent(history: History, final: FinalState) -> None:
    history.polls.append(poll((5, b"x"), start=5, end=6))


def half_a_transaction(history: History, final: FinalState) -> None:
    history.transactions[0].fate = Fate.UNKNOWN
    final.logs[P][1] = FinalRecord(1, b"b", False)


def a_poll_goes_back(history: History, final: FinalState) -> None:
    history.polls.append(poll((1, b"b"), start=1))


def a_poll_begins_below_the_position(history: History, final: FinalState) -> None:
    history.polls.append(poll((0, b"a"), (1, b"b"), start=1, view=2))


def a_poll_skips(history: History, final: FinalState) -> None:
    history.polls.append(poll((1, b"b"), view=2))


def a_poll_of_open_transactions_skips(history: History, final: FinalState) -> None:
    final.logs[P].append(FinalRecord(2, b"aborted", False))
    history.polls.append(poll(start=2, end=3))
    history.polls.append(poll(start=2, end=3)._replace(is_committed_only=False))


def a_record_is_skipped_between_two_polls(history: History, final: FinalState) -> None:
    history.polls += [poll(start=0, end=0, view=2), poll((1, b"b"), start=1, view=2)]


def sent_in_another_order(history: History, final: FinalState) -> None:
    final.logs[P][:] = [FinalRecord(0, b"b", True), FinalRecord(1, b"a", True)]


def nobody_has_read_it(history: History, final: FinalState) -> None:
    history.polls.clear()


def another_owner(history: History, final: FinalState) -> None:
    history.ownerships.append(Ownership("g", 1, "n", P, 0, 1))


def a_late_commit(history: History, final: FinalState) -> None:
    history.commits.append(commit(2, 62))


def an_old_offset(history: History, final: FinalState) -> None:
    history.offset_reads.append(OffsetRead("g", P, 1, 57, 58))


def a_lost_offset(history: History, final: FinalState) -> None:
    history.offset_reads.append(OffsetRead("g", P, -1, 57, 58))


def an_old_generation(history: History, final: FinalState) -> None:
    history.ownerships.append(Ownership("g", 1, "o", P, 70, 71))


def an_epoch_again(history: History, final: FinalState) -> None:
    history.epochs.append(GivenEpoch("d", "t", 1, 1, 3, 6))


def an_epoch_of_an_idempotent_producer_again(history: History, final: FinalState) -> None:
    history.epochs.append(GivenEpoch("d", None, 2, 0, 3, 6))


def an_earlier_epoch(history: History, final: FinalState) -> None:
    history.epochs.append(GivenEpoch("d", "t", 1, 3, 5, 6))
    history.epochs.append(GivenEpoch("e", "t", 1, -1, 7, 8))


def a_producer_id_of_another(history: History, final: FinalState) -> None:
    history.epochs.append(GivenEpoch("d", "u", 1, 9, 5, 6))


def an_input_without_output(history: History, final: FinalState) -> None:
    history.transforms["g"] = {"input": "output"}


def an_open_transaction(history: History, final: FinalState) -> None:
    final.open_transactions.append("t")


def a_stuck_offset(history: History, final: FinalState) -> None:
    final.stable[P] = 2, 3


def an_accepted_record_comes_again(history: History, final: FinalState) -> None:
    delivered(history, 0, 40, count=3)


def a_held_record_is_given_to_another(history: History, final: FinalState) -> None:
    held = delivered(history, 2, 40)
    held.held_until_ms = 60
    delivered(history, 2, 50, member="n", count=2)


def a_zombie_acknowledges(history: History, final: FinalState) -> None:
    late = Acknowledgement(delivered(history, 2, 40, member="zombie"), RELEASE, 52)
    late.answered_ms = 53
    history.shares.acknowledgements.append(late)
    delivered(history, 2, 50, count=2)


def a_lock_ends_early(history: History, final: FinalState) -> None:
    held = delivered(history, 2, 40)
    history.shares.silent_deaths.append(SilentDeath("s", 45, [held], is_draining=True))
    delivered(history, 2, 1035, member="n", count=2)


def a_lock_ends_late(history: History, final: FinalState) -> None:
    held = delivered(history, 2, 40)
    history.shares.silent_deaths.append(SilentDeath("s", 45, [held], is_draining=True))
    delivered(history, 2, 45 + max(SESSIONS_MS) + GRACE_MS, member="n", count=2)


def a_holder_is_refused(history: History, final: FinalState) -> None:
    history.shares.wrong_refusals.append("m held offset 1")


def a_delivery_count_does_not_grow(history: History, final: FinalState) -> None:
    delivered(history, 2, 40)
    delivered(history, 2, 50)


def a_release_does_not_outlive_a_crash(history: History, final: FinalState) -> None:
    delivered(history, 2, 40, kinds=(RELEASE,))
    delivered(history, 2, 50, life=2)


def a_delivery_count_skips(history: History, final: FinalState) -> None:
    delivered(history, 2, 40)
    delivered(history, 2, 50, count=3)


def a_delivery_above_the_limit(history: History, final: FinalState) -> None:
    for number in range(1, 6):
        delivered(history, 2, 30 + 10 * number, count=number)


def nobody_has_accepted_it(history: History, final: FinalState) -> None:
    del history.shares.acknowledgements[1:]


def nobody_has_acquired_it(history: History, final: FinalState) -> None:
    history.shares.acknowledgements.clear()
    history.shares.deliveries.clear()


def a_share_group_has_a_lag(history: History, final: FinalState) -> None:
    final.share_lags["s"][P] = 2  # the marker behind the records may be left, but no record


def a_record_below_the_start_offset(history: History, final: FinalState) -> None:
    history.shares.begin_era("s", ShareEra({P: 1}, 20, is_strict=True))
    delivered(history, 0, 50, group="s@1")


def a_wrong_start_offset(history: History, final: FinalState) -> None:
    history.shares.wrong_starts.append("s has start offset 1, but 0 was set")


def a_leftover_offset(history: History, final: FinalState) -> None:
    history.leftovers.append("g has offset 1 of a deleted topic")


def an_offset_of_a_member_is_deleted(history: History, final: FinalState) -> None:
    history.commits.append(commit(2, 58))
    history.commits.insert(2, commit(NO_OFFSET, 54, "", NO_GENERATION))


def a_fenced_member_commits(history: History, final: FinalState) -> None:
    history.fenced_ms["m"] = 45


FOUND: dict[Callable[[History, FinalState], None], anomalies.Check] = {
    two_records_at_an_offset: anomalies.inconsistent_offsets,
    a_record_is_gone: anomalies.lost_writes,
    a_record_is_there_twice: anomalies.duplicates,
    an_aborted_record_is_read: anomalies.aborted_reads,
    a_record_is_read_early: anomalies.precommitted_reads,
    an_aborted_record_is_in_the_log: anomalies.aborted_reads,
    a_record_is_read_that_was_never_sent: anomalies.aborted_reads,
    half_a_transaction: anomalies.fractured_commits,
    a_poll_goes_back: anomalies.nonmonotonic_polls,
    a_poll_begins_below_the_position: anomalies.nonmonotonic_polls,
    a_poll_skips: anomalies.skipped_polls,
    a_poll_of_open_transactions_skips: anomalies.skipped_polls,
    a_record_is_skipped_between_two_polls: anomalies.skipped_polls,
    sent_in_another_order: anomalies.nonmonotonic_sends,
    nobody_has_read_it: anomalies.unseen_writes,
    another_owner: anomalies.two_owners,
    a_late_commit: anomalies.zombie_commits,
    an_old_offset: anomalies.offset_regressions,
    a_lost_offset: anomalies.offset_regressions,
    an_old_generation: anomalies.generation_regressions,
    an_epoch_again: anomalies.repeated_epochs,
    an_epoch_of_an_idempotent_producer_again: anomalies.repeated_epochs,
    an_earlier_epoch: anomalies.repeated_epochs,
    a_producer_id_of_another: anomalies.repeated_epochs,
    an_input_without_output: anomalies.unprocessed_inputs,
    an_open_transaction: anomalies.stuck_transactions,
    a_stuck_offset: anomalies.stuck_transactions,
    an_accepted_record_comes_again: anomalies.redelivered_records,
    a_held_record_is_given_to_another: anomalies.two_holders,
    a_zombie_acknowledges: anomalies.two_holders,
    a_lock_ends_early: anomalies.two_holders,
    a_lock_ends_late: anomalies.late_expiries,
    a_holder_is_refused: anomalies.refused_holders,
    a_delivery_count_does_not_grow: anomalies.wrong_delivery_counts,
    a_release_does_not_outlive_a_crash: anomalies.wrong_delivery_counts,
    a_delivery_count_skips: anomalies.wrong_delivery_counts,
    a_delivery_above_the_limit: anomalies.wrong_delivery_counts,
    nobody_has_accepted_it: anomalies.lost_deliveries,
    nobody_has_acquired_it: anomalies.lost_deliveries,
    a_share_group_has_a_lag: anomalies.stuck_share_partitions,
    a_record_below_the_start_offset: anomalies.early_deliveries,
    a_wrong_start_offset: anomalies.wrong_start_offsets,
    a_leftover_offset: anomalies.leftover_offsets,
    an_offset_of_a_member_is_deleted: anomalies.deleted_read_offsets,
    a_fenced_member_commits: anomalies.zombie_commits,
}


def test_a_sound_history_has_no_anomaly() -> None:
    assert anomalies.find_anomaly(*sound()) == ""
    assert set(FOUND.values()) == set(anomalies.ANOMALIES), "each check has a history that violates it"


@pytest.mark.parametrize("spoil", FOUND)
def test_an_anomaly_is_found(spoil: Callable[[History, FinalState], None]) -> None:
    """By the check with its name."""
    history, final = sound()
    spoil(history, final)
    found: Iterator[str] = FOUND[spoil](history, final)
    assert next(found, "")
    assert anomalies.find_anomaly(history, final) != ""


def test_a_record_of_an_aborted_transaction_is_read_too_early_by_no_reader() -> None:
    """Two checks never report one read: aborted_reads has the aborted transactions, precommitted_reads all others."""
    history, final = sound()
    an_aborted_record_is_read(history, final)
    history.writes[b"x"].offset = 5
    history.transactions[-1].commit_sent_ms = 40  # it was sent after the timeout of the transaction
    assert [check for check in anomalies.ANOMALIES if any(check(history, final))] == [anomalies.aborted_reads]
    history.transactions[-1].fate = Fate.UNKNOWN
    assert [check for check in anomalies.ANOMALIES if any(check(history, final))] == [anomalies.precommitted_reads]


def test_a_reader_gets_the_records_of_an_old_batch() -> None:
    """So that nonmonotonic_polls finds it. Of the batch with its position it gets the later records only, as consumers do."""
    batches = b""
    for base_offset, values in ((0, b"ab"), (2, b"cd")):
        data = encode_batch([SentRecord(0, None, bytes([value])) for value in values], 0, -1, -1, -1)
        batches += base_offset.to_bytes(8, "big") + data[8:]
    answer: Any = SimpleNamespace(records=batches, aborted_transactions=None)
    assert consumed(answer, 1, READ_COMMITTED) == ([(1, b"b"), (2, b"c"), (3, b"d")], 4)
    assert consumed(answer, 3, READ_COMMITTED) == ([(0, b"a"), (1, b"b"), (3, b"d")], 4)


def test_what_a_crash_and_lost_fetches_explain_is_no_anomaly() -> None:
    """Acquisitions are not written, so a count may be repeated after a crash; a fetch without an answer may acquire records."""
    history, final = sound()
    delivered(history, 2, 40)
    delivered(history, 2, 50, life=2)
    history.shares.lost_fetches.append(LostFetch("s", "m", 60, 70))
    delivered(history, 2, 80, count=3, life=2)
    assert anomalies.find_anomaly(history, final) == ""
    del history.shares.acknowledgements[1:3]
    history.shares.lost_fetches.append(LostFetch("s", "m", 60, 70))
    assert anomalies.find_anomaly(history, final) == "", "two more deliveries are the last ones"
    history.shares.lost_fetches.pop()
    assert anomalies.find_anomaly(history, final).startswith("lost_deliveries")


def test_records_and_offsets_of_a_deleted_topic_may_be_lost() -> None:
    """And a transaction may have a part of its records there."""
    history, final = sound()
    write = history.write(b"c", ("input/1", 0), "s", history.transactions[0])
    write.offset, write.is_acknowledged = 0, True
    history.offset_reads.append(OffsetRead("g", ("input/1", 0), 5, 70, 71))
    assert next(anomalies.lost_writes(history, final))
    assert anomalies.find_anomaly(history, final).startswith("fractured_commits")
    history.deleted_ms["input/1"] = 65
    assert anomalies.find_anomaly(history, final) == ""
    history.deleted_ms["input/1"] = 72
    assert anomalies.find_anomaly(history, final).startswith("offset_regressions"), "the topic was there when they were read"


def test_groups_read_the_last_topic_of_a_name_to_its_end() -> None:
    history, final = sound()
    final.logs["input/2", 0] = [FinalRecord(0, b"c", True)]
    expected = "no member of g got b'c' of input/2-0 (and 0 others)"
    assert next(anomalies.unseen_writes(history, final)) == expected
    assert next(anomalies.lost_deliveries(history, final)).startswith("offset 0 of input/2-0 in s")


def test_a_deleted_offset_may_be_read() -> None:
    """Until the next commit; a deletion without a response may be executed at any time."""
    history, final = sound()
    deletion = commit(NO_OFFSET, 60, "", NO_GENERATION)
    history.commits.append(deletion)
    history.offset_reads.append(OffsetRead("g", P, NO_OFFSET, 70, 71))
    assert anomalies.find_anomaly(history, final) == ""
    history.offset_reads.append(OffsetRead("g", P, 2, 72, 73))
    assert anomalies.find_anomaly(history, final).startswith("offset_regressions")
    history.offset_reads.pop()
    history.commits.append(commit(2, 65, "n", 3))
    assert anomalies.find_anomaly(history, final).startswith("offset_regressions")
    deletion.answered_ms, deletion.is_stray = None, True
    assert anomalies.find_anomaly(history, final) == ""


def test_set_offsets_begin_another_era() -> None:
    """Records above the offset are delivered once more, with a new count; those below it need not be."""
    history, final = sound()
    history.shares.begin_era("s", ShareEra({P: 1}, 50, is_strict=True))
    assert anomalies.find_anomaly(history, final).startswith("lost_deliveries")
    delivered(history, 1, 60, kinds=(ACCEPT,), group="s@1")
    assert anomalies.find_anomaly(history, final) == ""
    delivered(history, 1, 80, count=2, group="s@1")
    assert anomalies.find_anomaly(history, final).startswith("redelivered_records")


def test_a_leader_may_have_kept_the_share_partition_of_the_era_before() -> None:
    history, final = sound()
    history.shares.begin_era("s", ShareEra({P: 1}, 50, is_strict=False))
    delivered(history, 0, 60, count=3, group="s@1")
    delivered(history, 1, 70, kinds=(ACCEPT,), group="s@1")
    delivered(history, 1, 80, group="s@1")
    assert anomalies.find_anomaly(history, final) == ""
    history.shares.acknowledgements.clear()
    assert anomalies.find_anomaly(history, final).startswith("lost_deliveries")


def test_a_static_member_takes_the_place_of_its_predecessor() -> None:
    """In the same generation, with another member id."""
    history, final = sound()
    history.ownerships.append(Ownership("g", 1, "o", P, 2, 3))
    assert anomalies.find_anomaly(history, final).startswith("two_owners")
    history.fenced_ms["m"] = 60
    assert anomalies.find_anomaly(history, final) == ""


def test_records_of_a_repartition_topic_have_outputs() -> None:
    history, final = sound()
    history.transforms["g"] = {"input": "middle", "middle": "output"}
    final.committed["g"] = {P: 1, ("middle", 0): 1}
    final.logs["middle", 0] = [FinalRecord(0, b"g:1<a", True)]
    assert next(anomalies.unprocessed_inputs(history, final)).startswith("b'g:1<a' at offset 0 of middle-0 has 0 outputs")
    final.logs["output", 0] = [FinalRecord(0, b"g:2<g:1<a", True)]
    assert not list(anomalies.unprocessed_inputs(history, final))


def test_an_acknowledgement_below_the_start_offset_is_skipped() -> None:
    """The broker accepts it without effect if another member has accepted the record before."""
    history, final = sound()
    first = delivered(history, 2, 40, member="zombie")
    late = Acknowledgement(first, ACCEPT, 56)
    late.accept(57, 1000)
    history.shares.acknowledgements.append(late)
    delivered(history, 2, 50, count=2, kinds=(ACCEPT,))
    assert anomalies.find_anomaly(history, final) == ""
    history.shares.acknowledgements.pop()
    assert anomalies.find_anomaly(history, final).startswith("two_holders")


def test_a_lock_may_end_later_for_a_reason() -> None:
    """A renewal, a lost fetch, the death of the next reader, a deletion of the topic, and another start of the broker."""
    history, final = sound()
    a_lock_ends_late(history, final)
    assert anomalies.find_anomaly(history, final).startswith("late_expiries")
    held = history.shares.silent_deaths[0].held[0]
    lost = LostFetch("s", "o", 50, 45 + max(SESSIONS_MS))
    history.shares.lost_fetches.append(lost)
    assert not any(anomalies.late_expiries(history, final))
    history.shares.lost_fetches.clear()
    history.shares.silent_deaths.append(SilentDeath("s", 46, [], is_draining=True))
    assert not any(anomalies.late_expiries(history, final))
    history.shares.silent_deaths.pop()
    history.shares.acknowledgements.append(Acknowledgement(held, RENEW, 44))
    assert not any(anomalies.late_expiries(history, final))
    history.shares.acknowledgements.pop()
    history.deleted_ms["input"] = 50
    assert not any(anomalies.late_expiries(history, final))
    history.deleted_ms.clear()
    held.life += 1
    assert not any(anomalies.late_expiries(history, final))


def test_a_renewal_after_the_end_of_the_lock_proves_nothing() -> None:
    delivery = Delivery("s", "m", P, 0, b"v", 1, 30, 31, 1030, 1)
    Acknowledgement(delivery, RENEW, 1000).accept(1031, 1000)
    assert delivery.lock_end_ms == 1030
    Acknowledgement(delivery, RENEW, 1000).accept(1029, 1000)
    assert delivery.lock_end_ms == 2000


def test_a_late_commit_of_the_same_member_may_be_read() -> None:
    """A request without a response may be executed later, but not after a commit of a later generation."""
    history, final = sound()
    stray = OffsetCommit("g", P, 1, 45, "m", 1)
    stray.is_stray = True
    history.commits.insert(1, stray)
    history.offset_reads.append(OffsetRead("g", P, 1, 57, 58))
    assert anomalies.find_anomaly(history, final) == ""
    history.commits.append(commit(2, 63, "n", 2))
    history.offset_reads.append(OffsetRead("g", P, 1, 70, 71))
    assert anomalies.find_anomaly(history, final).startswith("offset_regressions")
