"""Protects the states of records in a share group: each is with one member at a time, not delivered too often, and not lost.

The rules are those of KIP-932, KIP-1206 (record_limit), KIP-1222 (renew) and of Kafka 4.3.1's SharePartition.
"""

from __future__ import annotations

import random

import pytest

from kcli.format.index_entries import AbortedTxn
from kcli.protocol import error_codes
from kcli.server.replication.share.acquisition import RECORD_LIMIT, archive_aborted
from kcli.server.replication.share.in_flight import ACKNOWLEDGED, ACQUIRED, ARCHIVED, AVAILABLE
from kcli.server.replication.share.share_partition import ShareStatus
from kcli.state.share_group_state import StateBatch
from tests.server.replication.share_partitions import A, B, Bench, MemoryPersister

ACCEPT, RELEASE, REJECT, RENEW, GAP = 1, 2, 3, 4, 0
LOCK_MS = 30_000


def ranges(acquired: object) -> list[tuple[int, int, int]]:
    """The ranges as plain tuples."""
    return [tuple(found) for found in acquired]  # type: ignore[attr-defined]


# -------------------------------------------------------------------------------------------------------------- acquire


def test_whole_batches_are_acquired_until_max_records_are_reached() -> None:
    bench = Bench(10, 10, 10)
    assert ranges(bench.fetch(max_records=15)) == [(0, 19, 1)]
    assert ranges(bench.fetch(B)) == [(20, 29, 1)]
    assert ranges(bench.fetch(B)) == []


def test_ranges_are_split_at_batches_of_the_log_by_batch_size() -> None:
    bench = Bench(4, 4, 4, 4)
    assert ranges(bench.fetch(batch_size=5)) == [(0, 7, 1), (8, 15, 1)]


def test_record_limit_leaves_the_rest_of_a_batch_available() -> None:
    bench = Bench(10)
    assert ranges(bench.fetch(max_records=4, mode=RECORD_LIMIT)) == [(0, 3, 1)]
    assert bench.states()[4] == (AVAILABLE, 0)
    assert ranges(bench.fetch(B, max_records=3, mode=RECORD_LIMIT)) == [(4, 6, 1)]
    assert ranges(bench.fetch(B)) == [(7, 9, 1)]


def test_records_in_flight_are_limited() -> None:
    bench = Bench(*[100] * 4, partition_max_record_locks=200)
    assert ranges(bench.fetch()) == [(0, 199, 1)]
    assert not bench.partition.can_acquire
    assert bench.acknowledge((0, 49, ACCEPT)) == 0
    assert ranges(bench.fetch(max_records=10)) == [(200, 299, 1)]


def test_at_the_limit_released_records_are_acquired_again_but_none_behind_them() -> None:
    bench = Bench(*[100] * 3, partition_max_record_locks=200)
    bench.fetch()
    assert bench.acknowledge((20, 20, RELEASE)) == 0
    assert ranges(bench.fetch(B)) == [(20, 20, 2)]
    assert bench.span == (0, 199)


def test_what_compaction_has_removed_is_archived() -> None:
    bench = Bench(10, 10, 10)
    bench.fetch()
    bench.release()
    del bench.log[0]
    assert ranges(bench.fetch()) == [(10, 29, 2)]
    assert {bench.states()[offset][0] for offset in range(10)} == {ARCHIVED}


def test_at_the_limit_what_compaction_has_removed_makes_room() -> None:
    bench = Bench(100, 100, partition_max_record_locks=100)
    bench.fetch()
    bench.release()
    del bench.log[0]
    assert ranges(bench.fetch()) == []
    assert bench.span == (100, 100)
    assert ranges(bench.fetch()) == [(100, 199, 1)]


# ---------------------------------------------------------------------------------------------------------- acknowledge


def test_accepted_records_leave_the_front() -> None:
    bench = Bench(5, 5)
    bench.fetch(max_records=5)
    bench.fetch(max_records=5)
    assert bench.acknowledge((5, 9, ACCEPT)) == 0
    assert bench.span == (0, 9)
    assert bench.partition.records.delivery_complete_count == 5
    assert bench.acknowledge((0, 2, ACCEPT)) == 0
    assert bench.span == (3, 9)
    assert bench.acknowledge((3, 4, [REJECT, GAP])) == 0
    assert bench.span == (10, 10)
    assert bench.partition.records.delivery_complete_count == 0
    assert bench.persister.updates[-1].batches == (StateBatch(3, 4, ARCHIVED, 1),)


def test_a_released_record_is_delivered_again_until_the_limit() -> None:
    bench = Bench(1, delivery_count_limit=3)
    for count in (1, 2, 3):
        assert ranges(bench.fetch()) == [(0, 0, count)]
        assert bench.acknowledge((0, 0, RELEASE)) == 0
    assert ranges(bench.fetch()) == []
    assert bench.span == (1, 1)


@pytest.mark.parametrize(
    ("batches", "member_id", "code"),
    [
        (((0, 9, ACCEPT),), B, error_codes.INVALID_RECORD_STATE),
        (((0, 19, ACCEPT),), A, error_codes.INVALID_REQUEST),
        (((10, 12, ACCEPT),), A, error_codes.INVALID_REQUEST),
        (((0, 9, 7),), A, error_codes.INVALID_REQUEST),
        (((0, 4, ACCEPT), (3, 5, ACCEPT)), A, error_codes.INVALID_RECORD_STATE),
    ],
)
def test_a_refused_request_changes_nothing(batches: tuple[tuple[int, int, int], ...], member_id: str, code: int) -> None:
    bench = Bench(10)
    bench.fetch()
    assert bench.acknowledge(*batches, member_id=member_id) == code
    assert set(bench.states().values()) == {(ACQUIRED, 1)}
    assert bench.partition.records.delivery_complete_count == 0
    assert not bench.persister.updates
    assert bench.acknowledge((0, 9, ACCEPT)) == 0


def test_offsets_that_were_never_acquired_are_invalid_state_below_and_invalid_request_above() -> None:
    bench = Bench(10, persister=MemoryPersister(5))
    assert ranges(bench.fetch()) == [(5, 9, 1)]
    assert bench.acknowledge((5, 9, ACCEPT)) == 0
    assert bench.acknowledge((10, 12, ACCEPT)) == error_codes.INVALID_RECORD_STATE
    assert bench.acknowledge((0, 4, ACCEPT)) == 0, "what is below the start offset is skipped"


def test_what_is_being_written_cannot_be_acknowledged_again() -> None:
    bench = Bench(3)
    bench.fetch()
    bench.persister.is_held = True
    assert bench.acknowledge((0, 2, ACCEPT)) is None
    assert bench.acknowledge((0, 2, ACCEPT)) == error_codes.INVALID_RECORD_STATE
    assert bench.span == (0, 2)
    bench.persister.finish()
    assert bench.span == (3, 3)


@pytest.mark.parametrize(
    ("written", "answered"),
    [
        (error_codes.NOT_COORDINATOR, error_codes.COORDINATOR_NOT_AVAILABLE),
        (error_codes.FENCED_STATE_EPOCH, error_codes.NOT_LEADER_OR_FOLLOWER),
        (error_codes.FENCED_LEADER_EPOCH, error_codes.NOT_LEADER_OR_FOLLOWER),
        (error_codes.GROUP_ID_NOT_FOUND, error_codes.GROUP_ID_NOT_FOUND),
        (error_codes.REQUEST_TIMED_OUT, error_codes.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_failed_write_is_rolled_back(written: int, answered: int) -> None:
    bench = Bench(3)
    bench.fetch()
    bench.persister.code = written
    assert bench.acknowledge((0, 2, ACCEPT)) == answered
    assert set(bench.states().values()) == {(ACQUIRED, 1)}
    assert bench.partition.records.delivery_complete_count == 0


# ---------------------------------------------------------------------------------------------------------------- locks


def test_an_expired_lock_makes_records_available_and_says_so() -> None:
    bench = Bench(10)
    bench.fetch()
    bench.advance(LOCK_MS - 1)
    assert ranges(bench.fetch(B)) == []
    bench.advance(1)
    assert bench.changes == 1
    assert bench.persister.updates[-1].batches == (StateBatch(0, 9, AVAILABLE, 1),)
    assert bench.acknowledge((0, 9, ACCEPT)) == error_codes.INVALID_RECORD_STATE
    assert ranges(bench.fetch(B)) == [(0, 9, 2)]


def test_a_renewed_lock_begins_anew() -> None:
    bench = Bench(10)
    bench.fetch()
    bench.advance(20_000)
    assert bench.acknowledge((0, 9, RENEW)) == 0
    bench.advance(20_000)
    assert bench.acknowledge((0, 4, RENEW), (5, 9, RELEASE)) == 0
    bench.advance(20_000)
    assert set(bench.states().values()) == {(ACQUIRED, 1), (AVAILABLE, 1)}
    bench.advance(10_000)
    assert set(bench.states().values()) == {(AVAILABLE, 1)}


def test_a_group_may_forbid_renewals() -> None:
    bench = Bench(10, renew_acknowledge_enable=False)
    bench.fetch()
    assert bench.acknowledge((0, 9, RENEW)) == error_codes.INVALID_RECORD_STATE


def test_a_lock_that_expires_during_a_write_counts_if_the_write_fails() -> None:
    bench = Bench(2)
    bench.fetch()
    bench.persister.is_held = True
    assert bench.acknowledge((0, 1, ACCEPT)) is None
    bench.advance(LOCK_MS)
    assert bench.states()[0] == (ACKNOWLEDGED, 1)
    bench.persister.code = error_codes.COORDINATOR_NOT_AVAILABLE
    bench.persister.finish()
    assert bench.states()[0] == (AVAILABLE, 1)
    assert ranges(bench.fetch(B)) == [(0, 1, 2)]


def test_an_expiry_counts_even_if_it_cannot_be_written() -> None:
    bench = Bench(2)
    bench.fetch()
    bench.persister.code = error_codes.COORDINATOR_NOT_AVAILABLE
    bench.advance(LOCK_MS)
    assert ranges(bench.fetch(B)) == [(0, 1, 2)]


def test_a_member_that_leaves_releases_what_it_has() -> None:
    bench = Bench(5, 5)
    bench.fetch(A, 5)
    bench.fetch(B, 5)
    assert bench.acknowledge((1, 2, ACCEPT)) == 0
    bench.release(A)
    assert ranges(bench.fetch(B)) == [(0, 0, 2), (3, 4, 2)]
    assert bench.acknowledge((5, 9, ACCEPT), member_id=B) == 0


# ------------------------------------------------------------------------------------------------------------ throttling


def test_bad_records_are_delivered_in_smaller_and_smaller_parts() -> None:
    bench = Bench(8, delivery_count_limit=5)
    for count in (1, 2, 3):
        assert ranges(bench.fetch()) == [(0, 7, count)]
        bench.release()
    assert ranges(bench.fetch()) == [(0, 3, 4)], "half of the batch after 3 of 5 deliveries"
    bench.release()
    assert ranges(bench.fetch()) == [(0, 0, 5)], "the last delivery is that of one record"
    assert ranges(bench.fetch(B)) == [(1, 1, 5)]


# ----------------------------------------------------------------------------------------------------- start, gaps, log


def test_a_persisted_state_is_continued_and_its_gap_is_fetched() -> None:
    persister = MemoryPersister(10, [StateBatch(15, 19, ACKNOWLEDGED, 1), StateBatch(20, 24, AVAILABLE, 2)])
    bench = Bench(*[5] * 6, persister=persister)
    assert bench.span == (10, 24)
    assert bench.partition.records.next_fetch_offset() == 10
    assert ranges(bench.fetch(max_records=100)) == [(10, 14, 1), (20, 24, 3), (25, 29, 1)]
    assert bench.acknowledge((10, 14, ACCEPT)) == 0
    assert bench.span == (20, 29)


def test_a_state_that_cannot_be_read_fails_the_partition() -> None:
    persister = MemoryPersister()
    persister.code = error_codes.COORDINATOR_LOAD_IN_PROGRESS
    bench = Bench(5, persister=persister)
    assert bench.partition.status is ShareStatus.FAILED
    assert [error and error.code for error in bench.results] == [error_codes.COORDINATOR_NOT_AVAILABLE]
    assert bench.fetch() == []


def test_the_log_start_archives_what_is_available_and_leaves_what_is_acquired() -> None:
    bench = Bench(5, 5, 5)
    bench.fetch(A, 5)
    bench.fetch(B, 5)
    bench.release(A)
    bench.partition.log_start_moved(8)
    assert bench.span == (8, 9)
    assert bench.states()[0][0] is ARCHIVED
    assert bench.states()[5] == (ACQUIRED, 1)
    assert bench.acknowledge((5, 9, ACCEPT), member_id=B) == 0
    bench.advance(LOCK_MS)
    assert bench.span == (10, 10), "those below the log start keep their place until the lock expires"


def test_the_log_start_beyond_all_records_begins_anew() -> None:
    bench = Bench(5, 5, 5)
    bench.fetch(A, 5)
    bench.partition.log_start_moved(10)
    assert bench.partition.records.next_fetch_offset() == 10
    bench.advance(LOCK_MS)
    assert bench.span == (10, 10)
    assert ranges(bench.fetch()) == [(10, 14, 1)]


def test_a_fenced_partition_serves_and_writes_nothing() -> None:
    bench = Bench(5)
    bench.fetch()
    bench.partition.fence()
    assert bench.fetch() == []
    bench.advance(LOCK_MS)
    assert not bench.persister.updates


# --------------------------------------------------------------------------------------------------------- transactions


def test_records_of_aborted_transactions_are_archived() -> None:
    bench = Bench(5, 5, 1, 5)
    acquired = bench.fetch()
    batches = [
        batch._replace(producer_id=7 if slot in (1, 2) else -1, is_transactional=slot in (1, 2), is_control=slot == 2)
        for slot, batch in enumerate(bench.log)
    ]
    left = archive_aborted(bench.partition.records, batches, [AbortedTxn(0, 7, 5, 10, 11)], acquired)
    assert ranges(left) == [(0, 4, 1), (10, 15, 1)]
    assert {bench.states()[offset][0] for offset in range(5, 10)} == {ARCHIVED}
    assert bench.acknowledge((0, 4, ACCEPT), (10, 15, ACCEPT)) == 0
    assert bench.span == (16, 16)


# --------------------------------------------------------------------------------------------------------- random order


class Model:
    """What a share group may expect of each offset: which member has it until when, and how often it was delivered."""

    def __init__(self) -> None:
        self.owner: dict[int, tuple[str, int]] = {}
        self.deliveries: dict[int, int] = {}
        self.done: set[int] = set()


@pytest.mark.parametrize("seed", range(40))
def test_random_orders_agree_with_a_simple_model(seed: int) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    limit = rng.choice((2, 3, 5))
    bench = Bench(*[rng.randint(1, 12) for _ in range(6)], delivery_count_limit=limit, partition_max_record_locks=100)
    model = Model()
    for _ in range(150):
        _step(rng, bench, model, limit)
        _compare(bench, model)
    _finish(bench, model, limit)


def _step(rng: random.Random, bench: Bench, model: Model, limit: int) -> None:
    member = rng.choice((A, B))
    action = rng.choice(("fetch", "fetch", "acknowledge", "acknowledge", "release", "wait", "append", "fail"))
    if action == "append":
        bench.append(rng.randint(1, 12))
    elif action == "fetch":
        mode = rng.choice((0, RECORD_LIMIT))
        most = rng.randint(1, 20)
        acquired = bench.fetch(member, most, mode=mode, batch_size=rng.randint(1, 20), most_batches=rng.randint(1, 4))
        if mode == RECORD_LIMIT:
            assert sum(last - first + 1 for first, last, _ in acquired) <= most
        for first, last, count in acquired:
            for offset in range(first, last + 1):
                assert offset not in model.owner, f"{offset} is with {model.owner.get(offset)}"
                assert offset not in model.done
                model.deliveries[offset] = model.deliveries.get(offset, 0) + 1
                assert count == model.deliveries[offset] <= limit
                model.owner[offset] = (member, bench.timer.clock_ms + LOCK_MS)
    elif action in ("acknowledge", "fail"):
        _acknowledge(rng, bench, model, member, limit, fails=action == "fail")
    elif action == "release":
        bench.release(member)
        _give_back(model, [offset for offset, (owner, _) in model.owner.items() if owner == member], limit)
    else:
        bench.advance(rng.choice((1, 10_000, LOCK_MS)))
        _give_back(model, [offset for offset, (_, until) in model.owner.items() if until <= bench.timer.clock_ms], limit)


def _acknowledge(rng: random.Random, bench: Bench, model: Model, member: str, limit: int, *, fails: bool) -> None:
    start, end = bench.span
    first = rng.randint(start, max(start, end))
    last = min(first + rng.randint(0, 6), end)
    if last < first:
        return
    kinds = [rng.choice((ACCEPT, RELEASE, REJECT, GAP, RENEW)) for _ in range(last - first + 1)]
    if rng.random() < 0.5:
        kinds = kinds[:1]
    bench.persister.code = error_codes.COORDINATOR_NOT_AVAILABLE if fails else error_codes.NONE
    code = bench.acknowledge((first, last, kinds), member_id=member)
    bench.persister.code = error_codes.NONE
    is_owned = all(model.owner.get(offset, ("", 0))[0] == member for offset in range(first, last + 1))
    given = dict(zip(range(first, last + 1), kinds if len(kinds) > 1 else kinds * (last - first + 1)))
    if not is_owned:
        assert code == error_codes.INVALID_RECORD_STATE
        return
    assert code == (error_codes.COORDINATOR_NOT_AVAILABLE if fails and set(given.values()) != {RENEW} else 0)
    for offset, kind in given.items():
        if kind == RENEW:
            model.owner[offset] = (member, bench.timer.clock_ms + LOCK_MS)
        elif code == 0:
            del model.owner[offset]
            if kind != RELEASE or model.deliveries[offset] >= limit:
                model.done.add(offset)


def _give_back(model: Model, offsets: list[int], limit: int) -> None:
    for offset in offsets:
        del model.owner[offset]
        if model.deliveries[offset] >= limit:
            model.done.add(offset)


def _compare(bench: Bench, model: Model) -> None:
    records = bench.partition.records
    for offset, (state, count) in bench.states().items():
        if offset < records.start_offset:
            continue
        assert (state is ACQUIRED) == (offset in model.owner), offset
        assert (state in (ACKNOWLEDGED, ARCHIVED)) == (offset in model.done), offset
        assert count == model.deliveries.get(offset, 0)
    in_flight = range(records.start_offset, records.end_offset + 1) if len(records) else range(0)
    assert set(range(records.start_offset)) <= model.done
    assert records.delivery_complete_count == sum(offset in model.done for offset in in_flight)
    available = [offset for offset in in_flight if offset not in model.owner and offset not in model.done]
    expected = available[0] if available else (records.end_offset + 1 if len(records) else records.end_offset)
    assert records.next_fetch_offset() == expected


def _finish(bench: Bench, model: Model, limit: int) -> None:
    """Every record comes to its end, and no timer is left."""
    bench.advance(LOCK_MS)
    _give_back(model, list(model.owner), limit)
    for _ in range(10_000):
        acquired = bench.fetch()
        if not acquired:
            break
        for first, last, _ in acquired:
            assert bench.acknowledge((first, last, ACCEPT)) == 0
    assert bench.span == (bench.end_offset, bench.end_offset)
    bench.timer.advance(bench.timer.clock_ms)
    assert bench.timer.next_deadline_ms() is None or not len(bench.partition.records)
