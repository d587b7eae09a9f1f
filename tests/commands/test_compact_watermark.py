"""Protects records that may not be committed: without a high watermark `kcli compact` cleans nothing, as Kafka would not.

A follower cuts what is above its high watermark when it rejoins. If an uncommitted record has made a committed one obsolete,
and the cleaner has removed that one, the key's last committed value is gone.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from kcli.commands.app import main
from tests.commands.test_compact import active_base, batches_in, last_of_each_key, make, reported, rows_in, run
from tests.commands.test_repair_output import tree
from tests.inspect.verified import root_files

NAMES = ("__consumer_offsets-0", "__consumer_offsets-1")
CHECKPOINT = "replication-offset-checkpoint"
END = 180


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A log directory of a broker that was stopped, with two partitions of a compacted topic, wholly committed."""
    root = tmp_path / "logs"
    for name in NAMES:
        make(root, name)
    root_files(root, replication=dict.fromkeys(NAMES, END))
    return root


def remove(logs: Path) -> None:
    (logs / CHECKPOINT).unlink()


def damage(logs: Path) -> None:
    (logs / CHECKPOINT).write_text("0\n2\n__consumer_offsets 0 180\n")


def forget(logs: Path) -> None:
    root_files(logs, replication={NAMES[0]: END})


def empty(logs: Path) -> None:
    (logs / CHECKPOINT).write_bytes(b"")


FAULTS = {
    remove: "is missing",
    damage: "cannot be read: ",
    forget: "has no entry of the partition",
    empty: "has no entry of the partition",
}


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--active",), ("--to",), ("--from-start",)])
@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_cleaned_without_a_high_watermark(
    logs: Path, fault: Any, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever is wrong with the checkpoint; the reason and what to do are in the text, and the exit code says so."""
    fault(logs)
    before = rows_in(logs / NAMES[1])
    target = logs.parent / "new" if words == ("--to",) else logs
    assert run(*words, *([target] if words == ("--to",) else []), logs) == 1
    out, err = capfd.readouterr()
    assert f"no high watermark is known ({logs / CHECKPOINT} {FAULTS[fault]}" in out
    assert "--assume-committed" in out and "verify --repair" not in out + err
    count = "1 partition" if fault is forget else "2 partitions"
    assert f"no high watermark is known of {count}: not cleaned, see the plan" in err
    assert rows_in(target / NAMES[1]) == before
    if fault is not forget:
        assert rows_in(target / NAMES[0]) == before
        assert "nothing to clean in 2 partitions" in out
    elif words != ("--dry-run",):
        assert rows_in(target / NAMES[0]) != before, "its entry is there"


@pytest.mark.parametrize("fault", FAULTS)
def test_json_says_why_and_what_to_do(logs: Path, fault: Any, capfd: pytest.CaptureFixture[str]) -> None:
    fault(logs)
    assert run("--output", "json", logs / NAMES[1]) == 1
    rows = reported(capfd)
    (plan,), (problem,), (summary,) = rows["plan"], rows["problem"], rows["summary"]
    assert plan["reasons"] == ["no-high-watermark"] and plan["options"] == ["--assume-committed"]
    assert plan["highWatermark"] is None and plan["assumedCommitted"] is False and plan["rounds"] == 0
    assert FAULTS[fault] in plan["message"] and problem["message"] == plan["message"]
    assert problem["path"] == str(logs / NAMES[1]) and summary["problems"] == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_who_vouches_has_all_of_it_cleaned(logs: Path, fault: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """--assume-committed; the plan records that it was said, and which high watermark there was."""
    fault(logs)
    before = rows_in(logs / NAMES[1])
    kept = (logs / CHECKPOINT).read_bytes() if (logs / CHECKPOINT).exists() else None
    assert run("--assume-committed", "--dry-run", logs / NAMES[1]) == 1
    assert "--assume-committed counts records as committed that no high watermark covers" in capfd.readouterr().out
    assert run("--assume-committed", "--output", "json", logs / NAMES[1]) == 0
    (plan,) = reported(capfd)["plan"]
    assert plan["assumedCommitted"] is True and plan["highWatermark"] is None and plan["reasons"] == []
    assert rows_in(logs / NAMES[1]) == last_of_each_key(before, active_base(logs / NAMES[1]))
    assert ((logs / CHECKPOINT).read_bytes() if kept is not None else None) == kept, "the word of a user is no watermark"


def test_a_low_high_watermark_stops_the_round_and_is_named(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One that is known is no fault of the directory: exit 0; also one below the log start, which Kafka raises to it."""
    root_files(logs, replication={NAMES[0]: 1, NAMES[1]: -5})
    before = tree(logs)
    assert run("--output", "json", logs) == 0
    plans = reported(capfd)["plan"]
    assert [plan["reasons"] for plan in plans] == [["high-watermark"], ["high-watermark"]]
    assert [plan["highWatermark"] for plan in plans] == [1, -5]
    assert f"the high watermark is 1 and the log end {END}" in plans[0]["message"]
    assert {name: one for name, one in tree(logs).items() if "/" in name} == {
        name: one for name, one in before.items() if "/" in name
    }
    rows = rows_in(logs / NAMES[0])
    assert run("--assume-committed", "--output", "json", logs) == 0
    assert [plan["assumedCommitted"] for plan in reported(capfd)["plan"]] == [True, True]
    assert rows_in(logs / NAMES[0]) == last_of_each_key(rows, active_base(logs / NAMES[0]))


def test_a_high_watermark_beyond_the_log_end_is_wrong_after_a_clean_stop(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Kafka would lower it to the log end, and so count every record as committed. A repair does not believe it either."""
    root_files(logs, replication=dict.fromkeys(NAMES, END + 1000))
    rows = rows_in(logs / NAMES[0])
    assert run("--active", logs / NAMES[0]) == 1
    assert f"(the checkpointed one is {END + 1000}, and the log ends at {END})" in capfd.readouterr().out
    assert rows_in(logs / NAMES[0]) == rows


def test_a_high_watermark_beyond_the_log_end_is_the_log_end_after_a_crash(
    logs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As Kafka lowers it when it starts: the crash took the end of the log, and what is left was committed."""
    (logs / ".kafka_cleanshutdown").unlink()
    root_files(logs, clean=False, replication=dict.fromkeys(NAMES, END + 1000))
    rows = rows_in(logs / NAMES[0])
    assert run("--unclean", "--active", "--output", "json", logs / NAMES[0]) == 0
    assert [plan["assumedCommitted"] for plan in reported(capfd)["plan"]] == [False]
    assert rows_in(logs / NAMES[0]) == last_of_each_key(rows, END)


def test_a_copied_partition_has_no_high_watermark_either(logs: Path, tmp_path: Path) -> None:
    """A partition's directory by itself, with no log directory's files around it."""
    shutil.copytree(logs / NAMES[0], tmp_path / "copy" / NAMES[0])
    path = tmp_path / "copy" / NAMES[0]
    before = tree(path)
    assert run(path) == run("--active", path) == 1
    assert tree(path) == before
    assert run("--assume-committed", "--active", path) == 0
    assert tree(path) != before


def test_an_empty_partition_needs_no_high_watermark(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing would be cleaned with one: there is no reason to fail."""
    make(logs, "__consumer_offsets-2", batches=0)
    assert run("--output", "json", logs / "__consumer_offsets-2") == 0
    assert [plan["reasons"] for plan in reported(capfd)["plan"]] == [["empty"]]


def test_another_codec_needs_no_high_watermark(logs: Path) -> None:
    """Every record stays, with its offset: what a follower cuts and fetches again is the same."""
    damage(logs)
    before = rows_in(logs / NAMES[0])
    assert run("--compression", "zstd", logs) == 0
    assert rows_in(logs / NAMES[0]) == before and {batch.header.codec for batch in batches_in(logs / NAMES[0])} == {4}
    assert run("--compression", "zstd", "--assume-committed", logs) == 2


def test_a_repair_does_not_lead_to_a_cleaning_of_everything(logs: Path) -> None:
    """`kcli verify --repair` may take a checkpoint away that cannot be read: afterwards no high watermark is known."""
    damage(logs)
    before = {name: rows_in(logs / name) for name in NAMES}
    main(["verify", "--repair", "--apply", str(logs)])
    assert run("--unclean", logs) == 1
    assert {name: rows_in(logs / name) for name in NAMES} == before


def test_a_target_gets_no_checkpoint_that_cannot_be_read(logs: Path, tmp_path: Path) -> None:
    """A broker would not start on it; without the file it counts nothing as committed, and asks the leader."""
    damage(logs)
    assert run("--to", tmp_path / "new", "--assume-committed", logs) == 0
    assert not (tmp_path / "new" / CHECKPOINT).exists() and (tmp_path / "new" / "recovery-point-offset-checkpoint").exists()
