"""Protects describe against bad files: what can be told is told, what is wrong is a sentence, and nothing else happens."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest

from kcli.format.checkpoint import PartitionOffset, encode_offset_checkpoint
from kcli.inspect.description.description import Description
from kcli.inspect.renderers.description_report import description_lines, json_lines
from tests.conftest import FIXTURES, log_sets
from tests.inspect.described import ReplacedDisk, by_partition, described
from tests.log_builder import BASE_TIMESTAMP, PartitionBuilder

DATA = log_sets(FIXTURES)[0].data
LEGACY = log_sets(FIXTURES)[1].data
METADATA = DATA / "__cluster_metadata-0"
SNAPSHOT = next(iter(METADATA.glob("*.checkpoint")))


def with_bytes(path: Path, data: bytes | None, *given: Path) -> Description:
    return described(*(given or (DATA,)), disk=ReplacedDisk({str(path): data}))


def messages(description: Description, path: Path) -> list[str]:
    return [problem.message for problem in description.problems if problem.path == str(path)]


def damaged(dice: random.Random, data: bytes) -> bytes:
    """Bytes flipped, cut, grown, zeroed or replaced."""
    out = bytearray(data)
    how = dice.randrange(6)
    if how == 0 and out:
        for _ in range(dice.randrange(1, 5)):
            out[dice.randrange(len(out))] ^= 1 << dice.randrange(8)
    elif how == 1:
        del out[dice.randrange(len(out) + 1) :]
    elif how == 2:
        out += dice.randbytes(dice.randrange(1, 200))
    elif how == 3 and out:
        start = dice.randrange(len(out))
        out[start : start + dice.randrange(1, 200)] = bytes(min(100, len(out) - start))
    elif how == 4:
        out = bytearray(dice.randbytes(dice.randrange(400)))
    elif out:
        start = dice.randrange(len(out))
        out[start : start + 4] = dice.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00"])
    return bytes(out)


def all_files(*directories: Path) -> list[Path]:
    return sorted(path for directory in directories for path in directory.rglob("*") if path.is_file())


SMALL = [
    *(METADATA, DATA / "__consumer_offsets-0", DATA / "__transaction_state-0", DATA / "__share_group_state-0"),
    *(DATA / "open-transaction-0", DATA / "transactions-out-1", LEGACY / "magic1-gzip-0", LEGACY / "magic0-none-0"),
]
ROOT_FILES = [path for path in DATA.iterdir() if path.is_file()]


@pytest.mark.parametrize("seed", range(4))
def test_no_damage_ends_it(seed: int) -> None:
    """Any file may be anything: the rest is told, in text and in JSON, and the text stays harmless."""
    dice = random.Random(seed)
    targets = [*all_files(*SMALL), *ROOT_FILES]
    cut = 0
    for _ in range(60):
        target = dice.choice(targets)
        given = [directory for directory in SMALL if directory in target.parents] or [*SMALL[:4], DATA / "orders-0"]
        description = with_bytes(target, damaged(dice, target.read_bytes()), *given)
        lines = [*description_lines(description.report, overview=False), *json_lines(description.report)]
        assert len(lines) > 10
        assert not [line for line in lines if re.search(r"[\x00-\x1f\x7f-\x9f]", line)]
        cut += bool(description.problems)
    assert cut > 10


def test_a_torn_tail_and_what_is_before_it() -> None:
    log = DATA / "orders-0" / "00000000000000000000.log"
    description = with_bytes(log, log.read_bytes()[:-5], DATA)
    assert any("left in the file" in message for message in messages(description, log))
    row = by_partition(description.report["partitions"])["orders-0"]
    assert row["logEndOffset"] < 150 and row["records"] == row["logEndOffset"]
    assert by_partition(description.report["partitions"])["orders-1"]["logEndOffset"] == 100


def test_a_preallocated_tail_is_nothing(tmp_path: Path) -> None:
    builder = PartitionBuilder(tmp_path / "orders-0")
    builder.append([(b"k", b"v")] * 3)
    builder.log += bytes(5000)
    builder.flush()
    description = described(tmp_path / "orders-0")
    assert description.problems == [] and description.report["partitions"][0]["logEndOffset"] == 3


def test_the_last_batch_with_a_wrong_crc_is_told() -> None:
    log = DATA / "orders-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[-3] ^= 1
    assert any("wrong CRC" in message for message in messages(with_bytes(log, bytes(data)), log))


def test_an_offset_that_cannot_be_does_not_become_the_end() -> None:
    """The base offset lies before what the CRC covers: a flipped bit there must not move the end by 2**56."""
    log = DATA / "orders-1" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[0] = 0x80
    description = with_bytes(log, bytes(data), DATA / "orders-1")
    assert by_partition(description.report["partitions"])["orders-1"]["logEndOffset"] == 100
    assert any("do not count" in message for message in messages(description, log))


def test_a_copy_of_a_segment_under_a_later_name_does_not_count(tmp_path: Path) -> None:
    """Neither its name as the log's end, to which every group would have a lag, nor its records."""
    shutil.copytree(DATA, tmp_path / "data")
    log = tmp_path / "data" / "orders-0" / f"{0:020}.log"
    copy = log.with_name(f"{500:020}.log")
    for suffix in (".log", ".index", ".timeindex"):
        shutil.copy(log.with_suffix(suffix), copy.with_suffix(suffix))
    description = described(tmp_path / "data")
    row = by_partition(description.report["partitions"])["orders-0"]
    assert (row["logEndOffset"], row["records"], row["segments"]) == (150, 150, 1)
    assert [message for message in messages(description, copy) if "is a copy or was renamed" in message]
    whole = described(DATA)
    lags = {row["groupId"]: row["totalLag"] for row in description.report["groups"]}
    assert lags == {row["groupId"]: row["totalLag"] for row in whole.report["groups"]}


def without_its_middle(path: Path, *, horizon: int | None = None) -> Path:
    """Three segments of ten records each; the files of the second are lost."""
    builder = PartitionBuilder(path)
    for number in range(3):
        if number:
            builder.roll()
        builder.append([(b"k", b"v")] * 5, horizon=horizon)
        builder.append([(b"k", b"v")] * 5)
    builder.flush()
    for suffix in (".log", ".index", ".timeindex"):
        builder.path(suffix, 10).unlink()
    return path


def test_a_segment_that_is_missing_in_the_middle_is_a_problem_of_the_partition(tmp_path: Path) -> None:
    """The offsets at both ends of the log do not show that ten of its records are lost."""
    lost = without_its_middle(tmp_path / "data" / "orders-0")
    description = described(tmp_path / "data")
    (message,) = messages(description, lost)
    assert message.startswith("offsets 10 to 19 are missing before the segment with base offset 20, and nothing shows")
    assert not messages(described(tmp_path / "data", show=frozenset(("epochs",))), lost)  # no segment is read for it


def test_an_empty_segment_in_the_middle_is_missing_too(tmp_path: Path) -> None:
    lost = without_its_middle(tmp_path / "orders-0")
    (lost / f"{10:020}.log").touch()
    (message,) = messages(described(lost), lost)
    assert message.startswith("offsets 10 to 19 are missing")


def test_what_a_cleaner_may_have_removed_is_not_missing(tmp_path: Path) -> None:
    """Each of these shows a cleaner: its checkpoint, its mark in a batch, files that it replaced, an internal topic."""
    cleaned = without_its_middle(tmp_path / "a" / "orders-0")
    checkpoint = tmp_path / "a" / "cleaner-offset-checkpoint"
    checkpoint.write_bytes(encode_offset_checkpoint([PartitionOffset("orders", 0, 20)]))
    assert not messages(described(cleaned), cleaned)
    checkpoint.write_bytes(encode_offset_checkpoint([PartitionOffset("orders", 0, 10)]))
    assert messages(described(cleaned), cleaned)
    thinned = without_its_middle(tmp_path / "b" / "orders-0", horizon=BASE_TIMESTAMP)
    assert not messages(described(thinned), thinned)
    swapped = without_its_middle(tmp_path / "c" / "orders-0")
    (swapped / f"{0:020}.log.deleted").write_bytes(b"old")
    assert not messages(described(swapped), swapped)
    compacted = without_its_middle(tmp_path / "d" / "__consumer_offsets-0")
    assert not messages(described(compacted, show=frozenset(("segments",))), compacted)


def test_damage_at_the_end_of_a_segment_is_not_a_missing_one(tmp_path: Path) -> None:
    """The damaged bytes may be the records before the next segment: they are the problem, and not the offsets."""
    builder = PartitionBuilder(tmp_path / "orders-0")
    builder.append([(b"k", b"v")] * 5)
    builder.append([(b"k", b"v")] * 5)
    builder.log[-1] ^= 1
    log = builder.path(".log")
    builder.roll()
    builder.append([(b"k", b"v")])
    builder.flush()
    description = described(tmp_path / "orders-0")
    assert messages(description, log) and not messages(description, tmp_path / "orders-0")


@pytest.mark.parametrize("is_last", [True, False])
def test_one_wrong_offset_does_not_make_a_segment_a_copy(tmp_path: Path, is_last: bool) -> None:
    """The CRC does not cover the base offset: the batch behind it confirms that the name is wrong, or a second bit."""
    builder = PartitionBuilder(tmp_path / "orders-0", first_offset=16)
    for _ in range(1 if is_last else 2):
        builder.append([(b"k", b"v")] * 3)
    builder.flush()
    log = tmp_path / "orders-0" / f"{16:020}.log"
    data = bytearray(log.read_bytes())
    data[7] ^= 16
    description = with_bytes(log, bytes(data), tmp_path / "orders-0")
    row = description.report["partitions"][0]
    assert (row["segments"], row["logEndOffset"]) == (1, 16 if is_last else 22)


def test_a_damaged_snapshot_leaves_the_log_from_the_start() -> None:
    data = bytearray(SNAPSHOT.read_bytes())
    data[len(data) // 2] ^= 1
    whole, broken = described(DATA), with_bytes(SNAPSHOT, bytes(data))
    assert any("wrong CRC" in message for message in messages(broken, SNAPSHOT))
    (cluster,) = broken.report["cluster"]
    assert cluster["metadata"]["snapshotEndOffset"] is None
    for section in ("topics", "configs", "acls", "users", "quotas", "brokers"):
        assert broken.report[section] == whole.report[section], section


def test_a_snapshot_without_its_footer_is_not_whole() -> None:
    from tests.protocol.given_logs import batches

    *_, (footer, _) = batches(SNAPSHOT)
    description = with_bytes(SNAPSHOT, SNAPSHOT.read_bytes()[: footer.position])
    assert messages(description, SNAPSHOT) == ["the snapshot ends before its footer"]


def test_a_metadata_log_that_begins_behind_the_snapshot_is_incomplete(tmp_path: Path) -> None:
    builder = PartitionBuilder(tmp_path / "__cluster_metadata-0", first_offset=500)
    builder.append([(None, b"\x01\x14\x00\x00")])
    builder.flush()
    (tmp_path / "__cluster_metadata-0" / SNAPSHOT.name).write_bytes(SNAPSHOT.read_bytes())
    description = described(tmp_path)
    assert any("begins at offset 500" in problem.message for problem in description.problems)
    assert {"orders", "codec-gzip"} <= {row["name"] for row in description.report["topics"]}


def test_a_damaged_batch_of_a_coordinator_leaves_the_others() -> None:
    log = DATA / "__consumer_offsets-1" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    description = with_bytes(log, bytes(data))
    assert any("its records are left out" in message for message in messages(description, log))
    assert len(description.report["groups"]) >= 4


def test_what_cannot_be_opened_is_a_problem() -> None:
    log = DATA / "orders-1" / "00000000000000000000.log"
    description = with_bytes(log, None)
    assert messages(description, log)[0] == "cannot be read: Permission denied"
    row = by_partition(description.report["partitions"])["orders-1"]
    assert (row["logEndOffset"], row["records"], row["isComplete"]) == (None, None, False)
    group = next(group for group in description.report["groups"] if group["groupId"] == "classic-group")
    assert group["totalLag"] is None


@pytest.mark.parametrize(
    ("name", "data"),
    [("meta.properties", b"version=7"), ("replication-offset-checkpoint", b"0\n2\n"), (".kafka_cleanshutdown", b"what")],
)
def test_a_bad_file_of_the_directory_is_a_problem(name: str, data: bytes) -> None:
    description = with_bytes(DATA / name, data)
    assert len(messages(description, DATA / name)) == 1
    assert len(description.report["partitions"]) > 20


def test_a_directory_that_was_not_stopped_cleanly_says_so(tmp_path: Path) -> None:
    builder = PartitionBuilder(tmp_path / "orders-0")
    builder.append([(b"k", b"v")])
    builder.flush()
    description = described(tmp_path)
    assert description.problems == []
    assert any(
        "it was not stopped cleanly, or a repair removed the file" in sentence for sentence in description.report["unknowns"]
    )


def test_names_cannot_drive_a_terminal(tmp_path: Path) -> None:
    """Directories' names, group ids and metadata are data: no control character of theirs reaches the text."""
    from tests.inspect.test_description_groups import commit

    evil = "\x1b[31mred\r\u202e"
    builder = PartitionBuilder(tmp_path / f"{evil}-0")
    builder.append([(b"k", b"v")])
    builder.flush()
    offsets = PartitionBuilder(tmp_path / "__consumer_offsets-0")
    offsets.append([commit(evil, 0, 5)])
    offsets.flush()
    (tmp_path.joinpath("x" + "\udcff" + "-0")).mkdir()
    description = described(tmp_path)
    text = "\n".join(description_lines(description.report, overview=False))
    assert "\\x1b[31mred\\r\\u202e" in text and "x\\xff-0" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    document = "\n".join(json_lines(description.report)).encode("utf-8", "backslashreplace").decode("utf-8")
    assert "\x1b" not in document and "\\udcff" in document and '"pathBase64"' in document
