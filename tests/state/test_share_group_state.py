"""Protects how share groups' progress is put together from snapshots and updates."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type
from kcli.state.share_group_state import ShareGroupState, SharePartitionKey, StateBatch, combine_batches
from kcli.state.state_error import StateError
from tests.state.given_topics import HAS_GIVEN, applied, directories, files, shown

SNAPSHOT_KEY = message_type("share_records", "ShareSnapshotKey")
UPDATE_KEY = message_type("share_records", "ShareUpdateKey")
SNAPSHOT = message_type("share_records", "ShareSnapshotValue")
UPDATE = message_type("share_records", "ShareUpdateValue")
TOPIC_ID = Uuid(b"topic".ljust(16))
NAME = SharePartitionKey("g", TOPIC_ID, 0)
KEY = SNAPSHOT_KEY.new(group_id="g", topic_id=TOPIC_ID)
UPDATED = UPDATE_KEY.new(group_id="g", topic_id=TOPIC_ID)


def batches(found: object, *numbers: tuple[int, int, int, int]) -> list[Message]:
    names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
    return [found.classes["StateBatch"](**dict(zip(names, batch))) for batch in numbers]  # type: ignore[attr-defined]


@pytest.mark.skipif(not HAS_GIVEN, reason="neither fixtures/ nor ../shared holds a given log directory")
@pytest.mark.parametrize("directory", directories(), ids=lambda directory: directory.parent.name)
def test_the_snapshots_of_the_given_directories_are_the_state(directory: Path) -> None:
    state, last = ShareGroupState(), {}
    for file, dump in files(directory, "__share_group_state"):
        for record in applied(file, dump, "__share_group_state"):
            assert record.key is not None
            state.apply(record.key, record.value)
        for line in shown(dump):
            data = line.key["data"]
            last[data["groupId"], data["topicId"], data["partition"]] = line.payload["data"]
    assert {(name.group_id, str(name.topic_id), name.partition) for name in state.partitions} == set(last)
    for name, partition in state.partitions.items():
        expected = last[name.group_id, str(name.topic_id), name.partition]
        assert (partition.start_offset, partition.state_epoch, partition.create_timestamp_ms) == (
            expected["startOffset"],
            expected["stateEpoch"],
            expected["createTimestamp"],
        )


def test_an_update_changes_what_it_tells_and_leaves_the_rest() -> None:
    state = ShareGroupState()
    whole = batches(SNAPSHOT, (10, 19, 0, 1))
    state.apply(KEY, SNAPSHOT.new(snapshot_epoch=1, state_epoch=2, leader_epoch=3, start_offset=10, state_batches=whole))
    changed = batches(UPDATE, (12, 14, 2, 1))
    state.apply(UPDATED, UPDATE.new(leader_epoch=-1, start_offset=-1, delivery_complete_count=3, state_batches=changed))
    partition = state.partitions[NAME]
    assert (partition.leader_epoch, partition.start_offset, partition.delivery_complete_count) == (3, 10, 3)
    assert partition.state_batches == [(10, 11, 0, 1), (12, 14, 2, 1), (15, 19, 0, 1)]
    state.apply(UPDATED, UPDATE.new(leader_epoch=4, start_offset=13))
    partition = state.partitions[NAME]
    assert (partition.leader_epoch, partition.state_batches) == (4, [(13, 14, 2, 1), (15, 19, 0, 1)])


def test_an_update_without_its_snapshot_stands_for_itself_until_the_next() -> None:
    state = ShareGroupState()
    state.apply(UPDATED, UPDATE.new(snapshot_epoch=1, leader_epoch=3, start_offset=10))
    assert (state.partitions[NAME].leader_epoch, state.partitions[NAME].start_offset) == (3, 10)


def test_a_tombstone_of_the_snapshot_forgets() -> None:
    state = ShareGroupState()
    state.apply(KEY, SNAPSHOT.new())
    state.apply(UPDATED, None)
    assert NAME in state.partitions
    state.apply(KEY, None)
    state.apply(KEY, None)
    assert state.partitions == {}


def test_a_record_of_another_topic_is_refused() -> None:
    with pytest.raises(StateError):
        ShareGroupState().apply(message_type("transaction_records", "TransactionLogKey").new(), None)


some_batches = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8), st.sampled_from([0, 2, 4]), st.integers(1, 3)).map(
        lambda batch: StateBatch(batch[0], batch[0] + batch[1], batch[2], batch[3])
    ),
    max_size=8,
)


@given(some_batches, st.integers(-1, 35))
def test_combined_batches_say_of_every_offset_what_the_strongest_batch_says(
    given_batches: list[StateBatch], start_offset: int
) -> None:
    out = combine_batches(given_batches, start_offset)
    said = {offset: batch[2:] for batch in out for offset in range(batch.first_offset, batch.last_offset + 1)}
    for offset in range(40):
        over = [b for b in given_batches if b.first_offset <= offset <= b.last_offset and offset >= start_offset]
        expected = max(((b.delivery_count, b.delivery_state) for b in over), default=None)
        assert said.get(offset) == (None if expected is None else (expected[1], expected[0]))
    assert sum(batch.last_offset - batch.first_offset + 1 for batch in out) == len(said)
    for left, right in pairwise(out):
        assert left.last_offset < right.first_offset
        assert left.last_offset + 1 < right.first_offset or left[2:] != right[2:]
