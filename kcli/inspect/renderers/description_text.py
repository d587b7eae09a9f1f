"""The report of kcli.inspect.description as tables for people.

An overview has a row for each topic, group and transactional id, at most OVERVIEW_ROWS in a table, and the numbers of
configurations, ACLs and so on. Its table of partitions leaves out those of internal topics, which have a row each among the
topics. With --show all rows of a section are printed. An unknown value is a dash. A column without
values is left out, and the log directory if there is only one. Nothing is wider than the terminal: tables are made narrower as
kcli.inspect.renderers.text_table describes, with a line on the columns that do not fit, and sentences are wrapped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from kcli.inspect.json_text import JsonObject as Row
from kcli.inspect.quantities import format_count
from kcli.inspect.renderers.description_tables import (
    DIRECTORIES,
    DROPPED_FIRST,
    LEFT_COLUMNS,
    LOG_DIRECTORY,
    TABLES,
    Column,
    Table,
)
from kcli.inspect.renderers.human_text import Palette
from kcli.inspect.renderers.terminal_text import escape
from kcli.inspect.renderers.text_table import fit_table, wrapped

OVERVIEW_ROWS = 50
# The least width: a narrower terminal wraps.
LEAST_COLUMNS = 40
# The sections that an overview only counts, and the word for a row.
_COUNTED = (
    ("configs", "configuration"),
    ("acls", "ACL"),
    ("users", "SCRAM credential"),
    ("quotas", "quota"),
    ("tokens", "delegation token"),
)


def description_lines(report: Row, *, overview: bool, colour: bool = False, columns: int | None = None) -> Iterator[str]:
    """Yield the lines of the report, without line ends and control characters, with a blank line between two parts.

    `columns` is the width of the terminal, None if there is none.
    """
    text = _Text(Palette(colour), None if columns is None else max(columns, LEAST_COLUMNS))
    is_first = True
    for part in text.parts(report, overview):
        for slot, line in enumerate(part):
            if slot == 0 and not is_first:
                yield ""
            is_first = False
            yield line


class _Text:
    """Makes the parts of the text."""

    def __init__(self, palette: Palette, columns: int | None) -> None:
        self.palette = palette
        self.columns = columns

    def parts(self, report: Row, overview: bool) -> Iterator[Iterator[str]]:
        for cluster in report.get("cluster") or ():
            yield self._cluster(cluster)
        for table in TABLES:
            rows = table.rows(report)
            if rows is not None and not (overview and (not rows or not table.is_in_overview)):
                yield self._table(table, rows, overview, _internal_topics(report) if overview else frozenset())
        if overview:
            yield self._counts(report)
        yield self._unknowns(report)

    def _title(self, text: str) -> str:
        return f"{self.palette.bold}{text}{self.palette.plain}"

    def _table(self, table: Table, given: list[Row], overview: bool, internal_topics: Collection[str]) -> Iterator[str]:
        rows = given
        if table.option == "partitions":
            rows = [row for row in given if not _is_internal_partition(row, internal_topics)]
        most = OVERVIEW_ROWS if overview else len(rows)
        yield self._title(table.title) + ("" if given else ": none")
        if rows:
            columns = [column for column in table.columns if column[0] != LOG_DIRECTORY or len(set(map(column[1], rows))) > 1]
            yield from self._lines(columns, rows[:most])
        if len(rows) > most:
            yield f"  {len(rows) - most:,} more: --show {table.option}"
        if len(given) > len(rows):
            of_internal = format_count(len(given) - len(rows), "partition")
            note = f"  {of_internal} of internal topics, which the table of topics sums up: --show {table.option}"
            yield from wrapped(note, self.columns, "    ")

    def _lines(self, columns: Sequence[Column], rows: Sequence[Row]) -> Iterator[str]:
        cells = [[cell(row) for _, cell in columns] for row in rows]
        names = [name for name, _ in columns]
        table = fit_table(names, cells, left=LEFT_COLUMNS, drop_empty=True, fit=self.columns, dropped_first=DROPPED_FIRST)
        for line in table.head:
            yield f"{self.palette.dim}{line}{self.palette.plain}"
        yield from table.rows
        if table.left_out:
            note = f"  without {', '.join(table.left_out)}: the terminal is too narrow"
            for line in wrapped(note, self.columns, "  "):
                yield f"{self.palette.dim}{line}{self.palette.plain}"

    def _cluster(self, cluster: Row) -> Iterator[str]:
        yield self._title("cluster" if cluster["clusterId"] is None else f"cluster {escape(cluster['clusterId'])}")
        yield from self._lines(DIRECTORIES, cluster["logDirectories"])
        metadata = cluster["metadata"]
        if metadata is not None and not metadata["isBootstrap"]:
            snapshot = metadata["snapshotEndOffset"]
            source = "the log" if snapshot is None else f"snapshot {snapshot}-{metadata['snapshotEpoch']} and the log after it"
            yield from self._wrapped(
                f"  metadata  up to offset {metadata['endOffset']}, from {source} in {escape(metadata['path'])}"
            )
        if cluster["features"]:
            yield from self._wrapped(f"  features  {', '.join(map(_feature, cluster['features']))}")
        if cluster["quorum"] is not None:
            yield from self._wrapped(f"  quorum    {_quorum(cluster['quorum'])}")

    def _wrapped(self, text: str) -> Iterator[str]:
        """Wrap one of the lines on the cluster."""
        return wrapped(text, self.columns, " " * 12)

    def _counts(self, report: Row) -> Iterator[str]:
        counts = [(section, len(report[section]), what) for section, what in _COUNTED if report.get(section)]
        if counts:
            sections = ",".join(section for section, _, _ in counts)
            text = f"{', '.join(format_count(count, what) for _, count, what in counts)}: --show {sections}"
            yield from wrapped(text, self.columns, "  ")

    def _unknowns(self, report: Row) -> Iterator[str]:
        if report["unknowns"]:
            yield self._title("unknown or uncertain")
            for sentence in report["unknowns"]:
                yield from wrapped(f"  {escape(sentence)}", self.columns, "    ")


def _internal_topics(report: Row) -> frozenset[str]:
    return frozenset(row["name"] for row in report.get("topics") or () if row["isInternal"])


def _is_internal_partition(row: Row, internal_topics: Collection[str]) -> bool:
    """Return True if the row of its topic includes the partition; a stray or future replica is in no other row."""
    return row["topic"] in internal_topics and row["state"] == "current"


def _feature(feature: Row) -> str:
    level = f"{feature['version']} ({feature['level']})" if feature["version"] else feature["level"]
    return escape(f"{feature['name']} {level}")


def _quorum(quorum: Row) -> str:
    leader = "no leader" if quorum["leaderId"] is None else f"leader {quorum['leaderId']}"
    epoch = "" if quorum["leaderEpoch"] is None else f" in epoch {quorum['leaderEpoch']}"
    voters = ", ".join(str(voter["id"]) for voter in quorum["voters"]) or "unknown"
    return f"{leader}{epoch}; voters {voters}; kraft.version {quorum['kraftVersion']}"
