"""Protects the tables of describe: columns in line, nothing that says nothing, overviews that stay short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcli.inspect.renderers.description_report import (
    LEFT_COLUMNS,
    OVERVIEW_ROWS,
    ROW_TYPES,
    TABLES,
    description_lines,
    json_lines,
)
from kcli.inspect.renderers.terminal_text import MAX_CELL_COLUMNS, fit_table, table_lines, width, wrapped
from tests.conftest import FIXTURES, log_sets
from tests.inspect.described import described
from tests.log_builder import PartitionBuilder

DATA = log_sets(FIXTURES)[0].data


def test_columns_are_in_line_whatever_the_width_of_characters() -> None:
    rows = [["鍵-鍵", "1"], ["ключ", "1000"], ["k\u0301ey", "22"]]
    lines = list(table_lines(["name", "count"], rows))
    assert lines[0] == "  name   count"
    assert {width(line) for line in lines} == {width(lines[0])}
    assert lines[1] == "  鍵-鍵      1"


def test_columns_that_say_nothing_are_left_out_where_asked_for() -> None:
    rows = [["a", "", "1"], ["b", "", ""]]
    table = fit_table(["x", "y", "z"], rows, drop_empty=True)
    assert [*table.head, *table.rows] == ["  x  z", "  a  1", "  b"]
    assert next(table_lines(["x", "y", "z"], rows)) == "  x  y  z"


def test_one_long_cell_does_not_blow_up_the_table() -> None:
    lines = list(table_lines(["x", "y"], [["k" * 100_000, "1"], ["a", "2"]]))
    assert max(map(len, lines)) < MAX_CELL_COLUMNS + 20 and "…" in lines[1]


def test_every_table_has_rows_of_the_given_directory_or_says_none() -> None:
    """Each column of each table can be made of a real row; a section that is asked for is never silently missing."""
    report = described(DATA).report
    text = "\n".join(description_lines(report, overview=False))
    for table in TABLES:
        rows = table.rows(report)
        if rows is None:
            continue
        assert f"\n{table.title}\n" in text or f"\n{table.title}: none" in text, table.title
        for row in rows:
            for name, cell in table.columns:
                assert isinstance(cell(row), str), (table.title, name)
    assert "\nmembers: none\n" in text and "\ndelegation tokens: none" in text
    columns = {name for table in TABLES for name, _ in table.columns}
    assert columns >= LEFT_COLUMNS - {"node", "directory id", "stopped"}


def test_members_tasks_and_tokens_have_their_columns() -> None:
    """Rows that the given directory does not have."""
    members = [
        member("c", [{"topic": "orders", "partitions": [0, 2]}, {"topic": "x", "partitions": [1]}]),
        member("s", [{"subtopology": "0", "role": "standby", "partitions": [3]}]),
        member("u", None),
    ]
    token = {"tokenId": "t1", "owner": "User:a", "requester": "User:b", "renewers": ["User:c", "User:d"]}
    times = {"issueTimestamp": 0, "expirationTimestamp": 1, "maxTimestamp": 2}
    report = {"members": members, "tokens": [{**token, **times}], "unknowns": [], "problems": []}
    text = "\n".join(description_lines(report, overview=False))
    assert "orders:0,2 x:1" in text and "0:3(standby)" in text
    assert "User:c User:d" in text and "1970-01-01T00:00:00Z" in text


def member(member_id: str, assignment: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("instanceId", "epoch", "state", "subscribedTopics"))
    return {"groupId": "g", "memberId": member_id, "clientId": "c", "clientHost": "h", **empty, "assignment": assignment}


def test_an_overview_is_short_and_says_what_it_left_out(tmp_path: Path) -> None:
    for number in range(OVERVIEW_ROWS + 5):
        builder = PartitionBuilder(tmp_path / f"topic{number:03}-0")
        builder.append([(b"k", b"v")])
        builder.flush()
    description = described(tmp_path, show=None)
    assert description.is_overview
    text = "\n".join(description_lines(description.report, overview=True))
    assert "5 more: --show topics" in text and "topic049 " in text and "topic052" not in text
    assert "topic054" in "\n".join(description_lines(described(tmp_path).report, overview=False))


def test_an_overview_sums_up_internal_topics(tmp_path: Path) -> None:
    """Their partitions come first by name and would fill the table; --show, --topic and JSON have them all."""
    names = [f"__consumer_offsets-{number}" for number in range(OVERVIEW_ROWS)]
    for name in [*names, "__consumer_offsets-7.0123456789abcdef0123456789abcdef-stray", "orders-0"]:
        builder = PartitionBuilder(tmp_path / name)
        builder.append([(b"k", b"v")])
        builder.flush()
    report = described(tmp_path, show=None).report
    lines = list(description_lines(report, overview=True))
    table = lines[lines.index("partitions") :]
    assert [line.split()[0] for line in table[2:5]] == [names[7], "orders-0", "50"]  # the stray one is in no other row
    assert table[4] == "  50 partitions of internal topics, which the table of topics sums up: --show partitions"
    assert any(line.split()[:2] == ["__consumer_offsets", "50"] for line in lines)
    for asked in ({"show": frozenset(("partitions",))}, {"show": None, "topics": ("__consumer_offsets",)}):
        description = described(tmp_path, **asked)
        text = "\n".join(description_lines(description.report, overview=description.is_overview))
        assert f"{names[0]} " in text and f"{names[-1]} " in text and "sums up" not in text
    partitions = [line for line in json_lines(report) if line.startswith('{"type":"partition"')]
    assert len(partitions) == OVERVIEW_ROWS + 2


def test_an_overview_counts_what_is_set() -> None:
    text = "\n".join(description_lines(described(DATA, show=None).report, overview=True))
    assert "39 configurations, 1 ACL, 1 SCRAM credential, 1 quota: --show configs,acls,users,quotas" in text
    assert "cleanup.policy" not in text and "made-up-password" not in text


def test_offsets_stand_where_they_differ_from_the_end() -> None:
    """The last stable offset and the high watermark are what is expected, the end, or they stand there."""
    report = described(DATA, show=frozenset(("partitions",))).report
    lines = list(description_lines(report, overview=False))
    head = next(line for line in lines if line.startswith("  partition "))
    open_line = next(line for line in lines if line.startswith("  open-transaction-0 "))
    orders_line = next(line for line in lines if line.startswith("  orders-0 "))
    end = head.index("last stable") + len("last stable")
    assert open_line[end - 11 : end].strip() == "0" and orders_line[end - 11 : end].strip() == ""


def test_the_log_directory_stands_where_there_are_several(tmp_path: Path) -> None:
    for disk in ("disk1", "disk2"):
        builder = PartitionBuilder(tmp_path / disk / f"orders-{disk[-1]}")
        builder.append([(b"k", b"v")])
        builder.flush()
    show = frozenset(("partitions",))
    both = "\n".join(description_lines(described(tmp_path / "disk1", tmp_path / "disk2", show=show).report, overview=False))
    one = "\n".join(description_lines(described(tmp_path / "disk1", show=show).report, overview=False))
    assert f"orders-2   {tmp_path}/disk2 " in both and "log directory" in both
    assert "orders-1" in one and "log directory" not in one


def test_colours_are_for_those_who_ask() -> None:
    report = described(DATA, show=frozenset(("topics",))).report
    coloured = "\n".join(description_lines(report, overview=False, colour=True))
    plain = "\n".join(description_lines(report, overview=False))
    assert "\x1b[1mtopics\x1b[0m" in coloured and "\x1b" not in plain


def test_json_lines_are_objects_with_their_types_and_counts() -> None:
    report = described(DATA).report
    objects = [json.loads(line) for line in json_lines(report)]
    assert objects[0] == {"type": "schema", "name": "kcli.describe", "version": 1}
    summary = objects[-1]
    assert summary["type"] == "summary" and summary["problems"] == 0
    types = [one["type"] for one in objects[1:-1]]
    for section, row_type in ROW_TYPES.items():
        assert types.count(row_type) == summary["rows"][section] == len(report[section]), section
    assert set(types) <= set(ROW_TYPES.values())


def test_json_tells_unknown_from_none() -> None:
    report = described(DATA / "orders-0").report
    objects = [json.loads(line) for line in json_lines(report)]
    assert objects[-1]["rows"]["acls"] is None and objects[-1]["rows"]["groups"] is None
    assert any(one["type"] == "unknown" for one in objects)
    assert objects[-1]["rows"]["partitions"] == 1


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 132, 200, 1000])
@pytest.mark.parametrize("overview", [True, False])
def test_nothing_is_wider_than_the_terminal(columns: int, overview: bool) -> None:
    """Every line fits, every table keeps its first column, and what had no room is named, with a terminal of any width."""
    report = described(DATA).report
    whole = list(description_lines(report, overview=overview))
    lines = list(description_lines(report, overview=overview, columns=columns))
    too_wide = [line for line in lines if width(line) > columns and " " in line.strip()]
    assert not too_wide
    titles = [line for line in whole if line and not line.startswith(" ") and len(line) <= columns]
    assert [line for line in lines if line in titles] == titles
    if columns == 1000:
        assert lines == whole
    left_out = sum("too narrow" in line or "without " in line for line in lines)
    assert bool(left_out) == (columns < 200)


def test_a_narrow_table_keeps_what_matters() -> None:
    """Names of columns are broken first, then text is cut, then columns go in the order that was asked for."""
    columns = ["topic", "log end offset", "id", "codecs", "size"]
    rows = [["t" * 40, "17", "i" * 22, "zstd lz4 snappy gzip", "1.0 MiB"], ["u", "18", "j" * 22, "none", "2 B"]]
    left = frozenset(("topic", "id", "codecs"))
    whole = fit_table(columns, rows, left=left, fit=200)
    assert (whole.head, whole.left_out) == (fit_table(columns, rows, left=left).head[:1], [])
    broken = fit_table(columns, rows, left=left, fit=110)
    assert len(broken.head) > 1 and "t" * 40 in broken.rows[0] and not broken.left_out
    cut = fit_table(columns, rows, left=left, fit=90, dropped_first=("id", "codecs"))
    assert not cut.left_out and "…" in cut.rows[0] and "i" * 22 in cut.rows[0]
    gone = fit_table(columns, rows, left=left, fit=50, dropped_first=("id", "codecs"))
    assert gone.left_out == ["id", "codecs"] and "1.0 MiB" in gone.rows[0] and gone.rows[0].startswith("  " + "t" * 10)
    for fit in range(40, 140):
        table = fit_table(columns, rows, left=left, fit=fit, dropped_first=("id",))
        assert max(map(width, [*table.head, *table.rows])) <= fit


def test_a_sentence_is_wrapped_at_its_blanks() -> None:
    """With its own indent on the first line, and a word that is too long on a line of its own."""
    assert list(wrapped("  one two  three", 8, "    ")) == ["  one", "    two", "    three"]
    assert list(wrapped("  one " + "x" * 20, 10, "  ")) == ["  one", "  " + "x" * 20]
    assert list(wrapped("  as it is", None, "")) == ["  as it is"]
