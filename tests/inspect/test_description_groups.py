"""Protects the quick way through __consumer_offsets: commits that wait undecoded change nothing in what comes out.

The slow way, every record applied when it comes, is the judge, on random logs of commits, tombstones, transactions, their
markers, and groups that come and go.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kcli.inspect.description.coordinators import read_groups
from kcli.inspect.description.remarks import Remarks
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import read_partition
from kcli.protocol.internal_records import OFFSETS
from kcli.protocol.message_types import message_types
from kcli.state.group_state import GroupState
from kcli.state.state_error import StateError
from tests.log_builder import PartitionBuilder

TYPES = message_types("group_records")
GROUPS = ("a", "b")


def encoded(record_type: int, name: str, key: dict[str, Any], value: dict[str, Any] | None) -> tuple[bytes, bytes | None]:
    """A record as a coordinator writes it: its type and key, its version and value."""
    key_bytes = record_type.to_bytes(2, "big") + TYPES[f"{name}Key"].encode(TYPES[f"{name}Key"].new(**key), 0)
    if value is None:
        return key_bytes, None
    kind = TYPES[f"{name}Value"]
    version = kind.newest_version
    return key_bytes, version.to_bytes(2, "big") + kind.encode(kind.new(**value), version)


def commit(group: str, partition: int, offset: int | None, *, legacy: bool = False) -> tuple[bytes, bytes | None]:
    name, record_type = ("LegacyOffsetCommit", 0) if legacy else ("OffsetCommit", 1)
    key = {"group": group, "topic": "t", "partition": partition}
    return encoded(record_type, name, key, None if offset is None else {"offset": offset})


def classic(group: str, generation: int | None) -> tuple[bytes, bytes | None]:
    value = None if generation is None else {"protocol_type": "consumer", "generation": generation}
    return encoded(2, "GroupMetadata", {"group": group}, value)


def consumer(group: str, epoch: int | None) -> tuple[bytes, bytes | None]:
    return encoded(3, "ConsumerGroupMetadata", {"group_id": group}, None if epoch is None else {"epoch": epoch})


numbers = st.integers(0, 9)
commits = st.builds(
    commit, st.sampled_from(GROUPS), st.integers(0, 1), st.none() | numbers, legacy=st.just(value=False) | st.booleans()
)
records = commits | commits | commits | st.builds(classic, st.sampled_from(GROUPS), st.none() | numbers)
records |= st.builds(consumer, st.sampled_from(GROUPS), st.none() | numbers)
plain = st.tuples(st.just("plain"), st.lists(records, min_size=1, max_size=4))
transactional = st.tuples(st.just("transactional"), st.integers(1, 2), st.lists(commits, min_size=1, max_size=3))
marker = st.tuples(st.just("marker"), st.integers(1, 2), st.booleans())


def build(directory: Path, steps: list[Any]) -> None:
    builder = PartitionBuilder(directory)
    is_open: set[int] = set()
    for step in steps:
        if step[0] == "plain":
            builder.append(step[1])
        elif step[0] == "transactional":
            is_open.add(step[1])
            builder.append(step[2], producer=step[1], transactional=True)
        elif step[1] in is_open:
            is_open.discard(step[1])
            builder.end_transaction(step[1], commit=step[2])
    builder.flush()


def applied_one_by_one(steps: list[Any]) -> GroupState:
    state, offset, is_open = GroupState(), 0, set()

    def apply(pairs: list[tuple[bytes, bytes | None]], producer_id: int) -> None:
        nonlocal offset
        for key, value in pairs:
            key_message, value_message = OFFSETS.decode(key, value)
            assert key_message is not None
            try:
                state.apply(key_message, value_message, offset, producer_id)
            except StateError:
                pass
            offset += 1

    for step in steps:
        if step[0] == "plain":
            apply(step[1], -1)
        elif step[0] == "transactional":
            is_open.add(step[1])
            apply(step[2], step[1])
        elif step[1] in is_open:
            is_open.discard(step[1])
            state.apply_marker(step[1], step[2])
            offset += 1
    return state


@settings(max_examples=300)
@example([("plain", [consumer("b", 0), commit("b", 0, 0), consumer("b", None)])])
@given(st.lists(plain | plain | transactional | marker, max_size=14))
def test_waiting_commits_change_nothing(steps: list[Any]) -> None:
    with TemporaryDirectory() as directory:
        build(Path(directory) / "__consumer_offsets-0", steps)
        found = read_groups(OsDisk(), read_partition(OsDisk(), f"{directory}/__consumer_offsets-0"), Remarks())
    expected = applied_one_by_one(steps)
    assert found.committed_offsets == expected.committed_offsets
    assert {key: value for key, value in found.pending_offsets.items() if value} == {
        key: value for key, value in expected.pending_offsets.items() if value
    }
    # A group that only held offsets may be left without any; then it is nothing, whether it is there or not.
    held = {key.group_id for key in expected.committed_offsets}
    for group_id in GROUPS:
        groups = [state.groups.get(group_id) for state in (found, expected)]
        if group_id in held or any(group is not None and not getattr(group, "is_simple", False) for group in groups):
            assert groups[0] == groups[1]


def test_records_of_a_newer_kafka_are_passed_over_and_told(tmp_path: Path) -> None:
    builder = PartitionBuilder(tmp_path / "__consumer_offsets-0")
    builder.append([commit("a", 0, 5), ((4711).to_bytes(2, "big") + b"?", b"?"), (b"\x00", b"?"), (None, b"?")])
    builder.flush()
    remarks = Remarks()
    state = read_groups(OsDisk(), read_partition(OsDisk(), str(tmp_path / "__consumer_offsets-0")), remarks)
    assert [offset.offset for offset in state.committed_offsets.values()] == [5]
    assert len(remarks.unknowns) == 1 and "type 4711" in remarks.unknowns[0]
    assert [problem.message.split(" cannot")[0] for problem in remarks.problems] == [
        "the record at offset 2",
        "the record at offset 3",
    ]


def test_of_many_problems_of_a_path_the_first_are_told() -> None:
    remarks = Remarks()
    for number in range(30):
        remarks.problem("f", f"sentence {number}")
        remarks.problem("f", f"sentence {number}")
    remarks.problem("g", "alone")
    assert [problem.path for problem in remarks.problems] == ["f"] * 8 + ["g", "f"]
    assert remarks.problems[7].message == "sentence 7" and "more problems" in remarks.problems[-1].message
