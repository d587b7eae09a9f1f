"""--follow: a writer that appends, rolls, truncates and deletes between the polls, byte by byte where it matters.

No time passes here: `wait` is the writer's next step.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.inspect.dumping.dump import DumpOptions
from kcli.inspect.dumping.follow import dump_followed
from kcli.log.disk.os_disk import OsDisk
from kcli.selecting.selection import parse_selection
from tests.inspect.seen import Seen
from tests.log_builder import PartitionBuilder

Step = Callable[[], object]


def followed(*paths: Path, steps: Iterator[Step] | list[Step], **selection: Any) -> Seen:
    """Follow paths; each wait takes the writer's next step, and the last one ends it."""
    seen = Seen()
    left = iter(steps)

    def wait() -> bool:
        step = next(left, None)
        if step is not None:
            step()
        return step is not None

    options = DumpOptions()
    dump_followed([str(path) for path in paths], parse_selection(**selection), seen, options, OsDisk(), wait, report=print)
    assert seen.flushes > 0
    return seen


class Writer:
    """A broker that appends to a partition; `grow` gives the steps in which the file grows to what was appended."""

    def __init__(self, directory: Path) -> None:
        self.log = PartitionBuilder(directory, index_every=1000)  # truncating here does not touch the indexes
        self.log.flush()

    def append(self, count: int = 1, **options: Any) -> None:
        self.log.append([(b"k", b"value %d" % (self.log.offset + slot)) for slot in range(count)], **options)
        self.log.flush()

    def roll(self) -> None:
        self.log.roll()
        self.log.flush()


def test_appends_and_rolls(tmp_path: Path) -> None:
    """What is there comes first, then what is appended, over a roll and into the next segment."""
    writer = Writer(tmp_path / "t-0")
    writer.append(2)

    def roll_and_append() -> None:
        writer.append(1)
        writer.roll()
        writer.append(3)

    seen = followed(tmp_path / "t-0", steps=[writer.append, lambda: None, roll_and_append, writer.roll, writer.append])
    assert seen.offsets == list(range(8))
    assert not seen.damages and not seen.notes
    assert [Path(file.path).stem[-1] for file in seen.files] == ["0", "4", "7"]


@pytest.mark.parametrize("preallocated", [False, True])
def test_half_written_batches(tmp_path: Path, preallocated: bool) -> None:
    """At whatever byte the file is cut, nothing is shown or told until the batch is whole; then it is, once."""
    writer = Writer(tmp_path / "t-0")
    writer.append(1)
    whole = len(writer.log.log)
    writer.log.append([(b"key", b"x" * 40)] * 2)
    writer.log.append([(b"key", b"y" * 40)])
    path, data = writer.log.path(".log"), bytes(writer.log.log)
    shown_at: list[int] = []
    seen = Seen()
    ends = iter(range(whole, len(data) + 1))

    def wait() -> bool:
        shown_at.append(len(seen.offsets))
        end = next(ends, None)
        if end is not None:
            path.write_bytes(data[:end] + bytes(len(data) - end + 200 if preallocated else 0))
        return end is not None

    dump_followed([str(path)], parse_selection(), seen, DumpOptions(), OsDisk(), wait, report=print)
    assert seen.offsets == [0, 1, 2, 3]
    assert not seen.damages and not seen.notes
    assert shown_at.count(1) > 100 and shown_at.count(3) > 60, "each batch waited for its last byte"


def test_damage_in_the_middle_is_told_once(tmp_path: Path) -> None:
    """Bytes that are no batch, and a wrong CRC, are damage as soon as something sound stands behind them."""
    writer = Writer(tmp_path / "t-0")
    writer.append(1)
    writer.log.log += b"no batch at all, but more than a header's bytes of something else"
    writer.log.flush()

    def wrong_crc() -> None:
        writer.append(1)
        writer.log.log[-2] ^= 1  # the last byte of the value
        writer.log.flush()

    seen = followed(tmp_path / "t-0", steps=[lambda: None, writer.append, wrong_crc, lambda: None, writer.append])
    assert seen.offsets == [0, 1, 2, 3]
    assert [damage.kind for _, damage in seen.damages] == ["truncated", "bad-crc"] or [
        damage.kind for _, damage in seen.damages
    ] == ["bad-size", "bad-crc"]


def test_a_length_that_lies(tmp_path: Path) -> None:
    """A batch whose length, its CRC wrong, reaches over sound ones does not hide them."""
    writer = Writer(tmp_path / "t-0")
    writer.append(1)
    at = len(writer.log.log)
    writer.append(1)
    writer.append(1)
    writer.append(1)
    size = int.from_bytes(writer.log.log[at + 8 : at + 12], "big")
    writer.log.log[at + 8 : at + 12] = (size + 30).to_bytes(4, "big")
    writer.log.flush()
    seen = followed(tmp_path / "t-0", steps=[writer.append])
    assert {0, 2, 3, 4} <= set(seen.offsets)
    assert sorted(set(seen.offsets)) == seen.offsets


def test_a_torn_tail_is_damage_once_the_segment_is_closed(tmp_path: Path) -> None:
    """After a crash a broker truncates or rolls; what is left torn in a closed segment is told then."""
    writer = Writer(tmp_path / "t-0")
    writer.append(2)
    torn = writer.log.path(".log")

    def roll() -> None:
        writer.roll()
        writer.append(1)
        torn.write_bytes(torn.read_bytes() + b"\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x50torn behind its header")

    seen = followed(tmp_path / "t-0", steps=[roll])
    assert seen.offsets == [0, 1, 2]
    assert [(path, damage.kind) for path, damage in seen.damages] == [(str(torn), "truncated")]


def test_truncation(tmp_path: Path) -> None:
    """A follower that truncates and fetches other records: a note, then on from the last batch that is still there."""
    writer = Writer(tmp_path / "t-0")
    writer.append(1)
    writer.append(1)
    kept = len(writer.log.log)
    writer.append(1)
    writer.append(1)

    def truncate() -> None:
        del writer.log.log[kept:]
        writer.log.offset = 2
        writer.log.flush()

    def rewrite() -> None:
        truncate()
        writer.log.append([(b"k", b"another value, longer than all that was there before" * 3)])
        writer.append(2)

    steps = [truncate, lambda: writer.append(1), rewrite]
    seen = followed(tmp_path / "t-0", steps=steps)
    assert seen.offsets == [0, 1, 2, 3, 2, 2, 3, 4]
    assert len(seen.notes) == 2 and all(f"continuing at byte {kept}" in note for _, note in seen.notes)
    assert not seen.damages


def test_truncation_to_nothing(tmp_path: Path) -> None:
    """All may go: then it begins anew."""
    writer = Writer(tmp_path / "t-0")
    writer.append(2)

    def empty() -> None:
        writer.log.log.clear()
        writer.log.offset = 0
        writer.log.flush()

    seen = followed(tmp_path / "t-0", steps=[empty, lambda: writer.append(1)])
    assert seen.offsets == [0, 1, 0]


def test_deletion_by_retention_and_of_the_topic(tmp_path: Path) -> None:
    """What was open is read to its end, though its name is gone; the end of the directory is the end."""
    writer = Writer(tmp_path / "t-0")
    writer.append(1)
    first = writer.log.path(".log")

    def append_roll_delete() -> None:
        writer.append(1)
        writer.roll()
        writer.append(1)
        first.rename(f"{first}.deleted")

    def delete() -> None:
        (tmp_path / "t-0").rename(tmp_path / "t-0.0123456789abcdef0123456789abcdef-delete")

    def never() -> None:
        raise AssertionError("nothing is left to wait for")

    seen = followed(tmp_path / "t-0", steps=[append_roll_delete, delete, never])
    assert seen.offsets == [0, 1, 2]
    assert seen.result is not None and seen.result.is_sound


def test_several_partitions(tmp_path: Path) -> None:
    """Partitions of a log directory are followed together; the file's name stands where it changes."""
    one, two = Writer(tmp_path / "data" / "t-0"), Writer(tmp_path / "data" / "t-1")
    one.append(1)
    seen = followed(tmp_path / "data", steps=[two.append, one.append, two.append])
    assert [Path(record.path).parent.name for record in seen.records_seen] == ["t-0", "t-1", "t-0", "t-1"]
    assert len(seen.files) == 4
    shutil.rmtree(tmp_path / "data")


@pytest.mark.parametrize(
    ("selection", "offsets"),
    [
        ({"tail": 1}, [2, 3, 4, 5]),
        ({"tail": 0}, [3, 4, 5]),
        ({"limit": 4}, [0, 1, 2, 3]),
        ({"tail": 2, "limit": 3}, [1, 2, 3]),
        ({"offset": "2..5"}, [2, 3, 4]),
        ({"keys": ["k"], "offset": "4.."}, [4, 5]),
    ],
    ids=str,
)
def test_selections(tmp_path: Path, selection: dict[str, Any], offsets: list[int]) -> None:
    """A tail is the start of what comes; limits end it; offsets that are yet to come are waited for."""
    writer = Writer(tmp_path / "t-0")
    writer.append(3)
    seen = followed(tmp_path / "t-0", steps=[lambda: writer.append(2), writer.roll, writer.append], **selection)
    assert seen.offsets == offsets


def test_limits_end_the_waiting(tmp_path: Path) -> None:
    """Once the limit is reached nothing is waited for."""
    writer = Writer(tmp_path / "t-0")
    writer.append(3)

    def never() -> None:
        raise AssertionError("waited on")

    assert followed(tmp_path / "t-0", steps=[never], limit=2).offsets == [0, 1]


def test_read_committed_waits_for_the_end_of_transactions(tmp_path: Path) -> None:
    """Records of an open transaction, and all behind them, come when it has ended; those of an aborted one never."""
    writer = Writer(tmp_path / "t-0")
    counts: list[int] = []
    seen = Seen()

    def begin() -> None:
        writer.append(1)
        writer.append(1, producer=5, transactional=True)
        writer.append(1)

    def end(commit: bool) -> None:
        writer.log.end_transaction(5, commit=commit)
        writer.log.flush()

    def begin_and_roll() -> None:
        writer.append(1, producer=5, transactional=True)
        writer.roll()
        writer.append(1)

    steps: Iterator[Step] = iter(
        [begin, lambda: None, lambda: end(True), begin_and_roll, lambda: end(False), lambda: writer.append(1)]
    )

    def wait() -> bool:
        counts.append(len(seen.offsets))
        step = next(steps, None)
        if step is not None:
            step()
        return step is not None

    selection = parse_selection(isolation="read_committed")
    dump_followed([str(tmp_path / "t-0")], selection, seen, DumpOptions(), OsDisk(), wait, report=print)
    assert seen.offsets == [0, 1, 2, 5, 7]
    assert counts == [0, 1, 1, 3, 3, 4, 5]


def test_what_cannot_be_followed(tmp_path: Path) -> None:
    """Other files, empty directories and missing paths are problems, and nothing is waited for."""
    (tmp_path / "t-0").mkdir()
    index = tmp_path / "00000000000000000000.index"
    index.write_bytes(b"")
    seen = followed(tmp_path / "t-0", index, tmp_path / "missing", steps=[])
    assert [message for _, message in seen.problems if message]
    assert len(seen.problems) == 3


@settings(max_examples=25)
@given(st.lists(st.sampled_from(["append", "append many", "roll", "nothing", "bytes"]), max_size=25), st.integers(0, 3))
def test_any_order_of_steps(tmp_path_factory: pytest.TempPathFactory, names: list[str], codec: int) -> None:
    """Whatever the writer does between polls, every record is shown once and in order."""
    directory = tmp_path_factory.mktemp("follow") / "t-0"
    writer = Writer(directory)

    def flush_cut() -> None:
        writer.log.append([(b"k", b"cut off for now")], codec=codec)
        path = writer.log.path(".log")
        writer.log.flush()
        path.write_bytes(path.read_bytes()[:-9])

    actions: dict[str, Step] = {
        "append": lambda: writer.append(1, codec=codec),
        "append many": lambda: writer.append(40),
        "roll": lambda: writer.log.log and writer.roll(),
        "nothing": lambda: None,
        "bytes": flush_cut,
    }
    seen = followed(directory, steps=[*(actions[name] for name in names), writer.log.flush])
    assert seen.offsets == list(range(writer.log.offset))
    assert not seen.damages and not seen.notes
