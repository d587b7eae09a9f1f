"""Protects describe --sort and the answer to a name that is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcli.commands.app import main
from kcli.inspect.description.describe_options import SORTS, sort_rows, sorted_sections
from kcli.inspect.description.remarks import missing_name
from tests.conftest import FIXTURES, log_sets
from tests.inspect.described import described

DATA = log_sets(FIXTURES)[0].data
MEMBERS = {
    "size": ("topics", "sizeInBytes"),
    "records": ("partitions", "records"),
    "segments": ("topics", "segments"),
    "time": ("segments", "maxTimestamp"),
    "lag": ("groups", "totalLag"),
    "members": ("groups", "members"),
    "dirty": ("compaction", "dirtyBytes"),
    "ratio": ("compaction", "dirtyRatio"),
}


@pytest.mark.parametrize("sort", SORTS)
def test_rows_are_in_order(sort: str) -> None:
    """The largest first, what is not known last; no row is lost, and sections that have no such member stay as they are."""
    before, after = described(DATA).report, described(DATA, sort=sort).report
    if sort == "name":
        assert before == after
        return
    section, member = MEMBERS[sort]
    values = [row[member] for row in after[section]]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=True) and values == known + [None] * (len(values) - len(known)) and known
    for name, rows in before.items():
        if name not in sorted_sections(sort):
            assert after[name] == rows
        else:
            assert sorted(map(repr, strip(rows))) == sorted(map(repr, strip(after[name])))


def strip(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without the offsets of groups, which have an order of their own."""
    return [{name: value for name, value in row.items() if name != "offsets"} for row in rows]


def test_what_is_not_known_is_last() -> None:
    """As is a lag without the ends of logs; rows of the same number keep the order of their names."""
    groups = [{"groupId": name, "totalLag": lag, "offsets": []} for name, lag in (("a", None), ("b", 1), ("c", 7), ("d", 1))]
    report = {"groups": groups}
    sort_rows(report, "lag")
    assert [row["groupId"] for row in report["groups"]] == ["c", "b", "d", "a"]


def test_offsets_of_a_group_are_sorted_too() -> None:
    offsets = next(row["offsets"] for row in described(DATA, sort="lag").report["groups"] if row["groupId"] == "classic-group")
    lags = [offset["lag"] for offset in offsets]
    assert len(lags) == 3 and lags == sorted(lags, reverse=True)


def test_text_and_json_have_the_order(capfd: pytest.CaptureFixture[str]) -> None:
    """What is the largest is in the overview, however many there are."""
    assert main(["describe", str(DATA), "--sort", "size"]) == 0
    text = capfd.readouterr().out
    assert text.index("\n  odd-records ") < text.index("\n  transactions ") < text.index("\n  compacted ")
    assert main(["describe", str(DATA), "--show", "topics", "--sort", "size", "--output", "json"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()[1:-1]]
    sizes = [row["sizeInBytes"] for row in rows if row["type"] == "topic"]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) > 10


def test_an_order_that_no_section_has(capfd: pytest.CaptureFixture[str]) -> None:
    """Is refused, and not passed over."""
    assert main(["describe", str(DATA), "--show", "acls,users", "--sort", "size"]) == 2
    sentence = "--sort size is for the sections partitions, segments, topics, and none of them is shown"
    assert capfd.readouterr() == ("", f"kcli: {sentence}\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--topic", "order"], "no topic here is called 'order'; did you mean 'orders'?"),
        (["--topic", "Orders"], "no topic here is called 'Orders'; did you mean 'orders'?"),
        (["--topic", "order-*"], "no topic here matches 'order-*'; did you mean 'orders'?"),
        (["--topic", "nope"], "no topic here is called 'nope'; there are __cluster_metadata, __consumer_offsets, "),
        (["--group", "clasic-group"], "no group here is called 'clasic-group'; did you mean 'classic-group'"),
    ],
)
def test_a_name_that_is_not_there(words: list[str], sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 and one sentence with what may have been meant; empty tables say nothing more."""
    assert main(["describe", str(DATA), *words]) == 1
    out, err = capfd.readouterr()
    assert out == "" and err.startswith(f"kcli: {DATA}: {sentence}") and err.count("\n") == 1
    assert main(["describe", str(DATA), *words, "--output", "json"]) == 1
    problem, summary = map(json.loads, capfd.readouterr().out.splitlines()[-2:])
    assert problem["type"] == "problem" and problem["message"].startswith(sentence) and summary["problems"] == 1


def test_a_name_beside_one_that_is_there(capfd: pytest.CaptureFixture[str]) -> None:
    """That one is described."""
    assert main(["describe", str(DATA), "--topic", "codec-*", "--topic", "order"]) == 1
    out, err = capfd.readouterr()
    assert "\n  codec-zstd " in out and "'orders'" in err
    assert main(["describe", str(DATA / "orders-0"), "--topic", "orders"]) == 0
    assert main(["describe", str(DATA), "--topic", "trimmed"]) == 0, "a topic that only the metadata knows"


def test_nothing_is_like_it() -> None:
    """Then some names are listed, or none where there is none."""
    names = [f"t{number}" for number in range(20)]
    assert missing_name("topic", "xyz", names) == (
        "no topic here is called 'xyz'; there are t0, t1, t10, t11, t12, t13, t14, t15 and 12 more"
    )
    assert missing_name("group", "xyz", []) == "no group here is called 'xyz'"
    assert missing_name("group", "x?z", ["xyz"]) is None


def test_given_paths_stay_in_the_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A missing path and a missing name: both are reported, and the path decides the exit code."""
    assert main(["describe", str(DATA), str(tmp_path / "missing"), "--topic", "order"]) == 2
    err = capfd.readouterr().err
    assert "no such file" in err and "did you mean 'orders'?" in err
