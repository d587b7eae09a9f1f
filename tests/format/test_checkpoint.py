"""Checkpoint files: byte-identical both ways, read as loosely and as strictly as Kafka reads them, faults name the line."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import checkpoint
from kcli.format.checkpoint import (
    EpochStart,
    PartitionOffset,
    decode_leader_epochs,
    decode_offset_checkpoint,
    encode_leader_epochs,
    encode_offset_checkpoint,
)
from kcli.format.primitives import CorruptCheckpointError
from tests.format.damaged_bytes import damaged
from tests.format.given_files import given_files

int32s, int64s = (st.integers(-(2**bits), 2**bits - 1) for bits in (31, 63))
topics = st.text("abcXYZ019._-", min_size=1, max_size=20)
offset_entries = st.lists(st.builds(PartitionOffset, topics, int32s, int64s), max_size=8)
epoch_entries = st.lists(st.builds(EpochStart, int32s, int64s), max_size=8)


def test_given_files_come_back_byte_for_byte() -> None:
    filled = 0
    for file in given_files("*-offset-checkpoint"):
        checkpoint = decode_offset_checkpoint(file.read_bytes())
        assert encode_offset_checkpoint(*checkpoint) == file.read_bytes()
        filled += len(checkpoint.entries)
    for file in given_files("leader-epoch-checkpoint"):
        epochs = decode_leader_epochs(file.read_bytes())
        assert encode_leader_epochs(*epochs) == file.read_bytes()
        assert [entry.epoch for entry in epochs.entries] == sorted({entry.epoch for entry in epochs.entries})
        filled += len(epochs.entries)
    assert filled > 0


@given(offsets=offset_entries, epochs=epoch_entries)
def test_any_entries_come_back(offsets: list[PartitionOffset], epochs: list[EpochStart]) -> None:
    checkpoint = decode_offset_checkpoint(encode_offset_checkpoint(offsets))
    assert list(checkpoint.entries) == offsets
    assert checkpoint.offsets() == {(topic, partition): offset for topic, partition, offset in offsets}
    assert list(decode_leader_epochs(memoryview(encode_leader_epochs(epochs))).entries) == epochs


@given(
    spoilt=damaged(offset_entries.map(encode_offset_checkpoint) | epoch_entries.map(encode_leader_epochs))
    | st.binary(max_size=80)
    | st.text("0123456789 \t\n\r+-a", max_size=60).map(str.encode)
)
def test_damage_raises_corrupt_checkpoint_errors_only(spoilt: bytes) -> None:
    for decode in (decode_offset_checkpoint, decode_leader_epochs):
        try:
            checkpoint = decode(spoilt)
        except CorruptCheckpointError:
            continue
        assert len(checkpoint.entries) <= spoilt.count(b"\n") + spoilt.count(b"\r")


def test_files_that_have_not_been_written_yet_are_empty() -> None:
    for data, head_lines in ((b"", 0), (b"0\n", 1), (b"0", 1), (b"0\n0\n", 2)):
        assert decode_offset_checkpoint(data) == ((), head_lines)
    for data in (b"", b"0\n", b"0\n0\n"):
        assert encode_offset_checkpoint(*decode_offset_checkpoint(data)) == data


def test_words_may_stand_apart_and_lines_end_in_any_way() -> None:
    checkpoint = decode_offset_checkpoint(b"0\r\n+3\rt\t 1\x0b+7 \n t-2  0 -8\nt 1 9".replace(b" t-2", b"t-2"))
    assert checkpoint.entries == (("t", 1, 7), ("t-2", 0, -8), ("t", 1, 9))
    assert checkpoint.offsets() == {("t", 1): 9, ("t-2", 0): -8}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"1\n0\n", "line 1 states version 1; version 0 is known"),
        (b"x\n0\n", "line 1 is malformed: 'x'"),
        (b" 0\n0\n", "line 1 is malformed: ' 0'"),
        (b"0\n\n", "line 2 is malformed: ''"),
        (b"0\n99999999999\n", "line 2 is malformed: '99999999999'"),
        (b"0\n2\nt 0 1\n", "line 2 states 2 entries and 1 follow"),
        (b"0\n-1\n", "line 2 states -1 entries and 0 follow"),
        (b"0\n1\nt 0 1 2\n", "line 3 is malformed: 't 0 1 2'"),
        (b"0\n1\n t 0 1\n", "line 3 is malformed: ' t 0 1'"),
        (b"0\n2\nt 0 1\n\n", "line 4 is malformed: ''"),
        (b"0\n1\nt 0 9223372036854775808\n", "line 3 is malformed: 't 0 9223372036854775808'"),
        (b"0\n1\nt 1_0 1\n", "line 3 is malformed: 't 1_0 1'"),
        (b"0\n1\nt\xff 0 1\n", "line 3 is not UTF-8"),
    ],
)
def test_faults_name_the_line(data: bytes, message: str) -> None:
    with pytest.raises(CorruptCheckpointError) as caught:
        decode_offset_checkpoint(data)
    assert caught.value.message == message


def test_a_file_of_absurd_size_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcli.format.limits.MAX_TEXT_FILE_BYTES", 10)
    with pytest.raises(CorruptCheckpointError, match="at most 10 are read"):
        decode_leader_epochs(b"0\n1\n5 123456\n")


@given(
    line=st.one_of(
        st.lists(st.text("a.-_ \t\x0b\x0c\x1c\x85\xa0\u3000é0123456789+", max_size=12), max_size=4).map(" ".join),
        st.builds("{} {} {}".format, st.sampled_from(["t", "", "a\tb"]), st.integers(), st.integers()),
    )
)
def test_the_usual_lines_are_read_as_any_line(line: str) -> None:
    """A start reads 10,000 of them from each file, so those as brokers write them have a path of their own."""
    with pytest.MonkeyPatch.context() as patch:
        found = checkpoint._partition_offset(line)
        patch.setattr(checkpoint, "_DIGITS", re.compile("(?!)"))
        assert checkpoint._partition_offset(line) == found
