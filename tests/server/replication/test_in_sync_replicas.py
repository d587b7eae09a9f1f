"""Protects what a leader acknowledges: no record is committed before every replica has it that may lead next."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.log.log_config import LogConfig
from kcli.protocol import error_codes
from kcli.server.replication.partition import Partition, PartitionError
from kcli.server.replication.replica import IsrAnswer, Replica
from tests.log.live_logs import LiveLog
from tests.server.replication.invented_followers import MAX_LAG_MS, InventedHost, fetched, registration
from tests.server.whole_node import START_MS, batch

ALL = (1, 2, 3)


class Leader:
    """A partition with a real log that this broker leads, and two followers."""

    def __init__(self, directory: Path, min_isr: int = 1) -> None:
        self.now_ms = 0
        self.host = InventedHost(lambda: self.now_ms)
        self.host.epochs = {2: 20, 3: 30}
        self.live = LiveLog(directory / "t-0", LogConfig(min_insync_replicas=min_isr))
        self.log = self.live.log
        self.partition = Partition(self.host, "t", 0, Uuid(b"\1" * 16), self.log)
        self.lead()

    def lead(self, epoch: int = 1, isr: tuple[int, ...] = ALL, **fields: object) -> None:
        """Take a registration."""
        self.partition.apply(registration(epoch, isr=isr, replicas=ALL, **fields))  # type: ignore[arg-type]

    def append(self, count: int = 1, acks: int = -1) -> None:
        """Append batches of one record."""
        for _ in range(count):
            self.partition.append(memoryview(bytearray(batch(b"x"))), acks, START_MS)

    def fetch(self, broker_id: int, offset: int, **fields: int) -> None:
        """Let a follower fetch with the epoch of its registration."""
        fetched(self.partition, broker_id, offset, **{"broker_epoch": 10 * broker_id, **fields})


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    return Leader(tmp_path)


def test_a_record_is_committed_when_all_in_sync_replicas_have_it(leader: Leader) -> None:
    leader.append(3)
    assert leader.log.high_watermark == 0 and leader.host.grown == 3
    leader.fetch(2, 3)
    assert leader.log.high_watermark == 0
    leader.fetch(3, 2)
    assert leader.log.high_watermark == 2
    leader.fetch(3, 3)
    assert leader.host.high_watermarks == [2, 3]


def test_nothing_is_committed_while_the_isr_is_too_small(tmp_path: Path) -> None:
    leader = Leader(tmp_path, min_isr=2)
    leader.lead(isr=(1,), partition_epoch=2)
    with pytest.raises(PartitionError) as refused:
        leader.append()
    assert refused.value.code == error_codes.NOT_ENOUGH_REPLICAS and leader.log.log_end_offset == 0
    leader.append(acks=1)
    for broker_id in (2, 3):
        leader.fetch(broker_id, 1)
    assert leader.log.high_watermark == 0, "KIP-966: for any acks"
    leader.partition.isr_answered(leader.host.changes[0], IsrAnswer(1, 3, [1, 2]))
    assert leader.log.high_watermark == 1


def test_a_follower_that_will_join_is_waited_for_and_one_that_cannot_is_not(leader: Leader) -> None:
    leader.lead(isr=(1,), partition_epoch=2)
    leader.fetch(2, 0)
    leader.partition.isr_answered(leader.host.changes[0], error_codes.OPERATION_NOT_ATTEMPTED)
    leader.append(2)
    assert leader.log.high_watermark == 0, "follower 2 was caught up"
    del leader.host.epochs[2]  # fenced
    leader.append()
    assert leader.log.high_watermark == 3, "follower 3 has not fetched"
    leader.host.epochs[2] = 20
    leader.append()
    assert leader.log.high_watermark == 3
    leader.now_ms += MAX_LAG_MS + 1
    leader.append()
    assert leader.log.high_watermark == 5, "follower 2 lags"


def test_members_of_an_isr_without_an_answer_are_waited_for(leader: Leader) -> None:
    """Kafka's maximal ISR: the controller may have made the change, and elect such a member."""
    leader.lead(isr=(1, 2), partition_epoch=2)
    leader.fetch(3, 0)
    (change,) = leader.host.changes
    assert change.isr == [(1, -1), (2, -1), (3, 30)] and change.maximal_isr == {1, 2, 3} and change.is_expansion
    leader.append()
    leader.now_ms += MAX_LAG_MS + 1
    leader.fetch(2, 1)
    assert leader.log.high_watermark == 0
    leader.lead(isr=(1, 2), partition_epoch=2)
    assert leader.log.high_watermark == 0, "the same metadata once more are no answer"
    leader.partition.maybe_shrink_isr()
    assert len(leader.host.changes) == 1, "one change at a time"
    leader.partition.isr_answered(change, error_codes.INELIGIBLE_REPLICA)
    leader.append()
    leader.fetch(2, 2)
    assert leader.log.high_watermark == 2 and leader.host.counts == ["failed"]


def test_a_follower_that_lags_leaves_only_with_the_controllers_consent(leader: Leader) -> None:
    leader.append()
    leader.fetch(2, 1)
    leader.now_ms += MAX_LAG_MS + 1
    leader.fetch(2, 1)
    leader.partition.maybe_shrink_isr()
    (change,) = leader.host.changes
    assert change.isr == [(1, -1), (2, 20)] and change.maximal_isr == {1, 2, 3} and not change.is_expansion
    assert leader.log.high_watermark == 0 and leader.partition.isr == [1, 2, 3]
    leader.partition.isr_answered(change, IsrAnswer(1, 2, [1, 2]))
    assert leader.log.high_watermark == 1
    assert leader.partition.isr == [1, 2] and leader.partition.partition_epoch == 2 and leader.host.counts == ["shrink"]


@pytest.mark.parametrize("later_ms, is_in_sync", [(0, True), (1, False)])
def test_a_follower_that_never_reaches_the_log_end_is_in_sync(leader: Leader, later_ms: int, is_in_sync: bool) -> None:
    """It is as current as its fetch before the last, whose log end it has reached."""
    leader.append(6)
    leader.now_ms += MAX_LAG_MS
    leader.fetch(3, 5)
    leader.append()
    leader.now_ms += MAX_LAG_MS
    leader.fetch(3, 6)
    leader.append()
    leader.now_ms += later_ms
    leader.fetch(2, 8)
    leader.partition.maybe_shrink_isr()
    assert (leader.host.changes == []) == is_in_sync


@pytest.mark.parametrize(
    "code, is_proposed_again, may_propose",
    [
        (error_codes.INELIGIBLE_REPLICA, False, True),
        (error_codes.OPERATION_NOT_ATTEMPTED, False, True),
        (error_codes.UNKNOWN_TOPIC_ID, False, False),
        (error_codes.UNKNOWN_TOPIC_OR_PARTITION, False, False),
        (error_codes.FENCED_LEADER_EPOCH, False, False),
        (error_codes.INVALID_UPDATE_VERSION, False, False),
        (error_codes.INVALID_REQUEST, False, False),
        (error_codes.NEW_LEADER_ELECTED, False, False),
        (error_codes.UNKNOWN_SERVER_ERROR, True, False),
    ],
)
def test_each_error_of_the_controller(leader: Leader, code: int, is_proposed_again: bool, may_propose: bool) -> None:
    leader.lead(isr=(1, 2), partition_epoch=2)
    leader.fetch(3, 0)
    (change,) = leader.host.changes
    leader.partition.isr_answered(change, code)
    assert (len(leader.host.changes) == 2) == is_proposed_again
    leader.host.changes.clear()
    leader.fetch(3, 0)
    assert (len(leader.host.changes) == 1) == may_propose
    leader.lead(isr=ALL, partition_epoch=3)
    leader.partition.isr_answered(change, IsrAnswer(1, 2, [1, 2]))
    assert leader.partition.isr == [1, 2, 3], "metadata came first"


def test_answers_of_another_epoch_change_nothing(leader: Leader) -> None:
    leader.lead(isr=(1, 2), partition_epoch=5)
    leader.fetch(3, 0)
    for answer in (IsrAnswer(2, 6, [1, 2, 3]), IsrAnswer(1, 4, [1, 2, 3])):
        leader.partition.isr_answered(leader.host.changes[0], answer)
        assert leader.partition.isr == [1, 2] and leader.partition.partition_epoch == 5
    leader.partition.isr_answered(leader.host.changes[0], IsrAnswer(1, 6, [1, 2, 3]))
    leader.lead(isr=(1, 2), partition_epoch=5)
    assert leader.partition.isr == [1, 2, 3], "metadata that are older than the answer"


def test_a_follower_joins_when_it_has_what_may_be_committed(leader: Leader) -> None:
    leader.append(4)
    leader.fetch(2, 4)
    leader.fetch(3, 4)
    leader.append(2)
    leader.lead(2, isr=(1, 2))  # the epoch begins at 6, above the high watermark
    for offset, is_proposed in ((3, False), (4, False), (5, False), (6, True)):
        leader.fetch(3, offset)
        assert bool(leader.host.changes) == is_proposed


def test_a_follower_that_was_restarted_is_refused_and_one_of_an_unknown_epoch_is_not(leader: Leader) -> None:
    leader.lead(isr=(1, 2), partition_epoch=2)
    with pytest.raises(PartitionError) as refused:
        leader.fetch(3, 0, broker_epoch=29)
    assert refused.value.code == error_codes.NOT_LEADER_OR_FOLLOWER
    leader.fetch(3, 0, broker_epoch=31)
    assert leader.host.changes == [], "the metadata here are older"
    leader.fetch(3, 0, broker_epoch=-1)
    assert leader.host.changes[0].isr[-1] == (3, -1)


def test_who_is_no_follower_is_refused(leader: Leader) -> None:
    for broker_id, epoch, code in (
        (4, 1, error_codes.UNKNOWN_LEADER_EPOCH),
        (4, -1, error_codes.NOT_LEADER_OR_FOLLOWER),
        (1, -1, error_codes.NOT_LEADER_OR_FOLLOWER),
    ):
        with pytest.raises(PartitionError) as refused:
            leader.partition.follower(broker_id, epoch)
        assert refused.value.code == code


def test_a_new_leader_knows_nothing_of_its_followers(leader: Leader) -> None:
    leader.append(2)
    leader.fetch(2, 2)
    leader.fetch(3, 2)
    leader.lead(2)
    leader.append()
    leader.fetch(2, 3)
    leader.fetch(3, 3)
    assert leader.log.high_watermark == 3, "the same leader knows where they are"
    leader.lead(3, leader=2)
    assert leader.partition.followers == {}
    leader.lead(4, isr=(1, 2))
    leader.append()
    assert leader.log.high_watermark == 3
    leader.now_ms += MAX_LAG_MS
    leader.partition.maybe_shrink_isr()
    assert leader.host.changes == [], "a member of the ISR counts as caught up when the epoch begins"


def test_records_are_deleted_when_the_replicas_that_live_have_deleted_them(leader: Leader) -> None:
    leader.append(5)
    for broker_id in (2, 3):
        leader.fetch(broker_id, 5)
    leader.log.maybe_increment_log_start_offset(4)
    leader.fetch(2, 5, log_start_offset=3)
    assert leader.host.low_watermarks[-1] == 0
    leader.fetch(3, 5, log_start_offset=4)
    assert leader.host.low_watermarks[-1] == 3
    del leader.host.epochs[2]
    assert leader.partition.low_watermark(leader.log) == 4


def test_the_high_watermark_is_the_model_of_random_runs(tmp_path: Path) -> None:
    """It never falls, and a record below it is on every member of the ISR, of an ISR that may be in force too."""
    for seed in range(30):
        rng = random.Random(seed)
        leader = Leader(tmp_path / str(seed), rng.choice((1, 2)))
        partition, log, ends, highest = leader.partition, leader.log, {2: 0, 3: 0}, 0
        for _ in range(150):
            leader.now_ms += rng.choice((0, 1, 100, 8_000))
            step = rng.random()
            if step < 0.3:
                leader.append(rng.randint(1, 3), acks=1)
            elif step < 0.7:
                broker_id = rng.choice((2, 2, 3))
                ends[broker_id] = rng.randint(ends[broker_id], log.log_end_offset)
                leader.fetch(broker_id, ends[broker_id])
            elif step < 0.85:
                partition.maybe_shrink_isr()
            elif leader.host.changes:
                change = leader.host.changes.pop(0)
                isr = [broker_id for broker_id, _ in change.isr]
                code = rng.choice((0, 0, error_codes.INELIGIBLE_REPLICA, error_codes.REQUEST_TIMED_OUT))
                partition.isr_answered(change, code or IsrAnswer(1, partition.partition_epoch + 1, isr))
            assert highest <= log.high_watermark <= log.log_end_offset
            if log.high_watermark > highest:
                assert len(partition.isr) >= log.config.min_insync_replicas
                pending = [member for change in leader.host.changes for member, _ in change.isr]
                assert all(ends[member] >= log.high_watermark for member in {*partition.isr, *pending} - {1})
            highest = log.high_watermark
        assert highest > 0


def test_caught_up_times_are_kafkas() -> None:
    """Kafka's ReplicaTest: the time of the last fetch if the follower has what the leader had then."""
    replica = Replica(2)
    replica.fetched(5, 1, -1, leader_end_offset=10, now_ms=100)
    assert replica.caught_up_ms < 0
    replica.fetched(10, 1, -1, leader_end_offset=20, now_ms=200)
    assert replica.caught_up_ms == 100
    replica.fetched(20, 1, -1, leader_end_offset=20, now_ms=300)
    assert replica.caught_up_ms == 300
    replica.fetched(19, 1, -1, leader_end_offset=20, now_ms=400)
    assert replica.caught_up_ms == 300 and replica.is_caught_up(20, 300 + MAX_LAG_MS, MAX_LAG_MS)
    assert not replica.is_caught_up(20, 301 + MAX_LAG_MS, MAX_LAG_MS)
