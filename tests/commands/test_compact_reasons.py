"""Protects an operator from guessing: if `kcli compact` changes nothing, it says why, and the option it names does change it.

What is said first is what would make a difference to the partitions that may be cleaned; other topics come behind the plan.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_compact import CONFIG, KEYS, make, reported, run
from tests.commands.test_compact_config import TOPIC, metadata_log
from tests.inspect.verified import root_files
from tests.log.live_logs import NOW_MS, LiveLog, new_batch, of_producer

NAME = "__consumer_offsets-0"
ACTIVE = "all records that were not cleaned yet are in the active segment"
LAG = ("--min-compaction-lag-ms", str(100 * 365 * 86_400_000))


def one_segment(root: Path) -> None:
    make(root, NAME, batches=5)
    root_files(root, replication={NAME: 15})


def several_segments(root: Path) -> None:
    make(root, NAME)
    root_files(root, replication={NAME: 180})


def cleaned(root: Path) -> None:
    several_segments(root)
    assert run("--active", root) == 0


def nothing_in_it(root: Path) -> None:
    make(root, NAME, batches=0)
    root_files(root, replication={NAME: 0})


def in_a_transaction(root: Path) -> None:
    """One that begins with the first record and never ends."""
    live = LiveLog(root / NAME, CONFIG)
    live.append(of_producer(1, 0, 3, transactional=True))
    for number in range(60):
        keys = [b"key-%d" % (number % KEYS)]
        live.append(new_batch([b"v" * 40], keys=keys, timestamps=[NOW_MS + number]))
    live.log.close()
    root_files(root, replication={NAME: 63})


def half_committed(root: Path) -> None:
    make(root, NAME, batches=5)
    root_files(root, replication={NAME: 3})


CASES: list[tuple[Any, tuple[str, ...], list[str], str]] = [
    (one_segment, (), ["active-segment"], f"{ACTIVE}; --active cleans it, too"),
    (cleaned, (), ["cleaned-before"], "all records were cleaned before; --from-start cleans them again"),
    (nothing_in_it, (), ["empty"], "there are no records\n"),
    (several_segments, LAG, ["min-compaction-lag"], "; --min-compaction-lag-ms 0 cleans them now"),
    (in_a_transaction, (), ["open-transaction"], "a transaction is open from offset 0 on; start the broker: the transaction"),
    (half_committed, (), ["active-segment", "high-watermark"], "; to clean it, give --active and --assume-committed"),
    (one_segment, LAG, ["active-segment", "min-compaction-lag"], "; to clean it, give --active and --min-compaction-lag-ms 0"),
    (several_segments, ("--compression", "none"), ["has-codec"], "all data batches have this codec already; with a level"),
]


@pytest.mark.parametrize(
    ("prepare", "words", "reasons", "text"), CASES, ids=[f"{one[0].__name__}-{one[2][-1]}" for one in CASES]
)
def test_each_outcome_says_why_and_what_would_change_it(
    tmp_path: Path, prepare: Any, words: tuple[str, ...], reasons: list[str], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """In one sentence; with the options that it names, the partition is cleaned."""
    root = tmp_path / "logs"
    prepare(root)
    capfd.readouterr()
    assert run(*words, root) == 0
    out, err = capfd.readouterr()
    line, closing = out.splitlines()
    assert line.startswith(f"{root / NAME}: ") and text in out and closing.startswith("nothing to ") and err == ""
    assert run(*words, "--output", "json", root) == 0
    (plan,) = reported(capfd)["plan"]
    assert plan["reasons"] == reasons and plan["message"] == line.removeprefix(f"{root / NAME}: ")
    if plan["options"]:
        options = [word for option in plan["options"] for word in shlex.split(option)]
        # An option that is named with another value takes the place of the one that was given.
        kept = () if words and words[0] in options else words
        assert run(*kept, *options, "--output", "json", root) == 0
        (plan,) = reported(capfd)["plan"]
        assert plan["rounds"] > 0 and plan["reasons"] == [] and plan["message"] is None


def test_what_would_make_a_difference_comes_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Many partitions of one reason are one line; topics that are not compacted come last, and no option is thrown in."""
    root = tmp_path / "logs"
    for number in range(5):
        make(root, f"users-{number}", batches=5)
    for number in range(12):
        make(root, f"topic-{number:02}-0", batches=1)
    make(root, "users-9", batches=0)
    for path in root.glob("*/partition.metadata"):
        path.unlink()
    root_files(root, replication={f"users-{number}": 15 for number in range(5)} | {"users-9": 0})
    metadata_log(root, (TOPIC, "users", "cleanup.policy", "compact"))
    assert run(root) == 0
    out, err = capfd.readouterr()
    first = ", ".join(f"{root}/users-{number}" for number in range(3))
    assert out.splitlines() == [
        f"{first} and 2 more: {ACTIVE}; --active cleans it, too",
        f"{root}/users-9: there are no records",
        "nothing to clean in 6 partitions",
    ]
    assert "--any-policy" not in out + err and "and 2 more: cleanup.policy is not known" in err


def test_topics_that_are_not_compacted_are_no_reason_for_an_option(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A log directory without a compacted topic: one sentence, and no advice that would remove records."""
    root = tmp_path / "logs"
    make(root, "users-0")
    (root / "users-0" / "partition.metadata").unlink()
    root_files(root, replication={"users-0": 180})
    assert run(root) == 2
    err = capfd.readouterr().err
    assert "name the log directory that has __cluster_metadata-0, too\n" in err and "--any-policy" not in err
    assert err.endswith("kcli: nothing to compact: no topic is known to be compacted\n")
    metadata_log(root, (TOPIC, "users", "cleanup.policy", "delete"))
    assert run(root) == 2
    assert capfd.readouterr().err == (
        "kcli: left alone: __cluster_metadata: __cluster_metadata is never compacted: its snapshots keep it small\n"
        "kcli: left alone: users: cleanup.policy is delete\n"
        "kcli: nothing to compact: no topic has the cleanup.policy compact\n"
    )
    assert run("--output", "json", root) == 2
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(row["topic"], row["reason"]) for row in rows if row["type"] == "skipped"] == [
        ("__cluster_metadata", "metadata-log"),
        ("users", "not-compacted"),
    ]


def test_who_names_a_partition_is_reported_what_it_would_mean(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "logs"
    make(root, "users-0")
    (root / "users-0" / "partition.metadata").unlink()
    root_files(root, replication={"users-0": 180})
    metadata_log(root, (TOPIC, "users", "cleanup.policy", "delete"))
    assert run(root / "users-0") == 2
    err = capfd.readouterr().err
    assert "cleaning would remove every record but the last of its key\n" in err
    assert "--any-policy" not in err  # it removes records: nobody is led to it in passing
    assert err.endswith("kcli: nothing to compact: all named partitions are refused\n")
