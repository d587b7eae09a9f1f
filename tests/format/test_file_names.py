"""What a file or directory is by its name: every given file is known, and names parse as Kafka parses them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format.file_names import (
    DirectoryState,
    FileKind,
    FileState,
    metadata_snapshot_name,
    parse_file_name,
    parse_partition_directory,
    partition_directory_name,
    segment_file_name,
)
from kcli.format.java_text import parse_integer
from kcli.format.primitives import FormatError
from tests.conftest import every_log_set

offsets = st.integers(0, 2**63 - 1)
epochs = st.integers(0, 2**31 - 1)
SEGMENT_KINDS = [FileKind.LOG, FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX, FileKind.PRODUCER_SNAPSHOT]
HEX_ID = "0123456789abcdef0123456789abcdef"


def test_every_given_file_and_directory_is_known() -> None:
    kinds = set()
    for given_set in every_log_set():
        for path in given_set.data.rglob("*"):
            if path.is_dir():
                directory = parse_partition_directory(path.name)
                assert f"{directory.topic}-{directory.partition}" == path.name and not directory.state
                continue
            name = parse_file_name(path.name)
            assert name.kind is not FileKind.UNKNOWN and name.is_regular and not name.state
            assert name.sentence()
            kinds.add(name.kind)
    assert kinds >= {*SEGMENT_KINDS, FileKind.PARTITION_METADATA, FileKind.META_PROPERTIES, FileKind.CLEAN_SHUTDOWN}


@given(offset=offsets, kind=st.sampled_from(SEGMENT_KINDS), state=st.sampled_from(FileState))
def test_segment_names_come_back(offset: int, kind: FileKind, state: FileState) -> None:
    name = segment_file_name(offset, kind, state)
    parsed = parse_file_name(name)
    assert (parsed.kind, parsed.state, parsed.base_offset, parsed.is_regular) == (kind, state, offset, True)
    assert name.startswith(f"{offset:020d}.")


@given(offset=offsets, epoch=epochs, state=st.sampled_from([FileState.CURRENT, FileState.DELETED]))
def test_metadata_snapshot_names_come_back(offset: int, epoch: int, state: FileState) -> None:
    parsed = parse_file_name(metadata_snapshot_name(offset, epoch, state))
    assert parsed[1:5] == (FileKind.METADATA_SNAPSHOT, state, offset, epoch) and parsed.is_regular


@pytest.mark.parametrize(
    ("name", "kind", "state", "offset", "regular"),
    [
        ("5.log", FileKind.LOG, "", 5, False),
        ("+5.index", FileKind.INDEX, "", 5, False),
        ("x.log", FileKind.LOG, "", None, False),
        (".log", FileKind.LOG, "", None, False),
        ("99999999999999999999.log", FileKind.LOG, "", None, False),
        ("00000000000000000005.log.swap.deleted", FileKind.LOG, ".deleted", 5, False),
        ("00000000000000000005.x.log", FileKind.LOG, "", 5, False),
        ("00000000000000000100-0000000002-7316.checkpoint.part", FileKind.METADATA_SNAPSHOT, ".part", 100, True),
        ("00000000000000000100-0000000002.checkpoint.part", FileKind.METADATA_SNAPSHOT, ".part", 100, False),
        ("00000000000000000100-0000000002.checkpoint.deleted", FileKind.METADATA_SNAPSHOT, ".deleted", 100, True),
        ("bootstrap.checkpoint", FileKind.BOOTSTRAP_CHECKPOINT, "", None, True),
        ("short.checkpoint", FileKind.UNKNOWN, "", None, False),
        ("leader-epoch-checkpoint.tmp", FileKind.LEADER_EPOCH_CHECKPOINT, ".tmp", None, True),
        ("meta.properties.tmp", FileKind.META_PROPERTIES, ".tmp", None, True),
        ("quorum-state", FileKind.QUORUM_STATE, "", None, True),
        (".lock", FileKind.LOCK, "", None, True),
        (".deleted", FileKind.UNKNOWN, ".deleted", None, False),
        ("", FileKind.UNKNOWN, "", None, False),
        ("notes.txt", FileKind.UNKNOWN, "", None, False),
        ("00000000000000000005.log.bak", FileKind.UNKNOWN, "", None, False),
    ],
)
def test_odd_names(name: str, kind: FileKind, state: str, offset: int | None, regular: bool) -> None:
    parsed = parse_file_name(name)
    assert (parsed.kind, parsed.state, parsed.base_offset, parsed.is_regular) == (kind, state, offset, regular)


def test_cached_remote_indexes_have_an_id() -> None:
    parsed = parse_file_name("42_QoFnWZgfUfRaWzLX7TiLhw.timeindex.deleted")
    assert parsed.kind is FileKind.TIME_INDEX and parsed.base_offset == 42 and parsed.is_regular
    assert parsed.remote_id == "QoFnWZgfUfRaWzLX7TiLhw" and "remote" in parsed.sentence() and "deleted" in parsed.sentence()


@given(st.text(max_size=60))
def test_any_name_is_classified(name: str) -> None:
    for given_name in (name, name + ".log", name + ".checkpoint", name + ".checkpoint.part", name + ".deleted"):
        assert parse_file_name(given_name).sentence()


@given(topic=st.text("abc.-_09", min_size=1, max_size=249), partition=epochs, state=st.sampled_from(DirectoryState))
def test_directory_names_come_back(topic: str, partition: int, state: DirectoryState) -> None:
    name = partition_directory_name(topic, partition, state, HEX_ID)
    parsed = parse_partition_directory(name)
    assert (parsed.partition, parsed.state, parsed.unique_id) == (partition, state, HEX_ID if state else None)
    if state in (DirectoryState.CURRENT, DirectoryState.FUTURE):
        assert parsed.topic == topic
    else:
        assert topic.startswith(parsed.topic) and len(name) <= 255
        assert parsed.topic == topic or len(name) == 255


@pytest.mark.parametrize(
    ("name", "topic", "partition"),
    [
        ("a-b-1", "a-b", 1),
        ("a--1", "a-", 1),
        ("a-+1", "a", 1),
        ("a b-0", "a b", 0),
        ("a-0.x-delete", "a", 0),
        ("a-0.x.y-delete-7", "a-0.x.y-delete", 7),
        ("lost-and-0", "lost-and", 0),
    ],
)
def test_odd_directories_that_kafka_takes(name: str, topic: str, partition: int) -> None:
    assert parse_partition_directory(name)[:2] == (topic, partition)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a",
        "-1",
        "a-",
        "a-x",
        "a-delete",
        "a-0-delete",
        "a-0.-delete",
        "a b-0.x-delete",
        "a-0.x.y-future",
        "a-2147483648",
        "a-1_0",
    ],
)
def test_directories_over_which_kafka_refuses_to_start(name: str) -> None:
    with pytest.raises(FormatError, match="not in the form of topic-partition"):
        parse_partition_directory(name)


def test_integers_are_javas() -> None:
    assert [parse_integer(text, 32) for text in ("0", "+7", "-0012", "2147483647", "-2147483648")] == [
        0,
        7,
        -12,
        2**31 - 1,
        -(2**31),
    ]
    for text in ("", "+", "1_0", " 1", "1 ", "0x1", "1.0", "2147483648", "-2147483649", "9" * 100_000):
        assert parse_integer(text, 32) is None
    assert parse_integer("9223372036854775807", 64) == 2**63 - 1 and parse_integer("9223372036854775808", 64) is None
