"""Protects what a leader reverts when it loses its leadership: its state is then what the committed records alone make it."""

from __future__ import annotations

import copy

import pytest

from kcli.protocol.message import Message
from kcli.state.metadata_image import MetadataImage
from kcli.state.speculative_state import SnapshottedState
from kcli.state.state_error import StateError
from tests.state.test_image_records import applied, every_kind, state_of


def appended(records: list[Message]) -> SnapshottedState[MetadataImage, Message]:
    image = MetadataImage()
    state = SnapshottedState[MetadataImage, Message](image, lambda record, offset: image.apply(record))
    for offset, record in enumerate(records):
        state.append(record, offset)
    return state


@pytest.mark.parametrize("committed", range(36))
def test_a_state_is_rolled_back_to_what_is_committed(committed: int) -> None:
    """Records of every kind, after each of them; frozen and committed copies stay as they are."""
    records = every_kind()
    state = appended(records)
    state.commit(committed - 1)
    frozen = state.state.frozen()
    snapshot = state.committed()
    expected = copy.deepcopy(state_of(applied(records[:committed])))
    assert state_of(snapshot) == expected
    assert state_of(state.state) == state_of(frozen) == state_of(applied(records))
    state.roll_back()
    assert state_of(state.state) == expected
    for record in records[committed:]:
        state.state.apply(record)
    assert state_of(state.state) == state_of(frozen)
    assert state_of(snapshot) == expected
    for record in records[committed:]:
        snapshot.apply(record)
    assert state_of(snapshot) == state_of(frozen)


@pytest.mark.parametrize("at", range(0, 36, 5))
def test_records_that_are_prepared_count_when_they_are_confirmed(at: int) -> None:
    """Until then no commit reaches them, and a roll back reverts them, whatever its offset is."""
    records = every_kind()
    state = appended(records[:at])
    before = copy.deepcopy(state_of(applied(records[:at])))
    for record in records[at:]:
        state.prepare(record, at)
    state.commit(99)
    assert state_of(state.committed()) == before
    state.roll_back(99)
    assert state_of(state.state) == before
    for record in records[at:]:
        state.prepare(record, at)
    state.confirm(len(records) - 1)
    state.commit(len(records) - 2)
    assert state_of(state.committed()) == before
    state.commit(len(records) - 1)
    state.roll_back()
    assert state_of(state.state) == state_of(state.committed()) == state_of(applied(records))


def test_a_record_that_does_not_fit_leaves_nothing_to_revert() -> None:
    records = every_kind()
    state = appended(records)
    before = copy.deepcopy(state_of(state.state))
    with pytest.raises(StateError):
        state.append(next(record for record in records if record.STRUCT.name == "EndTransactionRecord"), 99)
    assert state_of(state.state) == before
    state.commit(len(records))
    state.roll_back()
    assert state_of(state.state) == before
