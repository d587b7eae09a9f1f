"""The report of kcli.inspect.description as tables for people, and as JSON for programs.

An overview has a row for each topic, group and transactional id, at most OVERVIEW_ROWS in a table, and the numbers of
configurations, ACLs and so on. Its table of partitions leaves out those of internal topics, which have a row each among the
topics. With --show all rows of a section are printed. An unknown value is a dash. A column without
values is left out, and the log directory if there is only one. Nothing is wider than the terminal: tables are made narrower as
kcli.inspect.renderers.terminal_text describes, with a line on the columns that do not fit, and sentences are wrapped.

TABLES has the tables of describe and their columns. A cell is made from a row of the report: text without control characters,
empty if there is nothing to show.

As JSON it is an object per line. The first line is {"type":"schema","name":"kcli.describe","version":1}, then come the rows of
the sections that were asked for, each with its type, then `unknown` and `problem`, and last `summary`, which has the number of
rows of each section, or null if it is not known. docs/describe.md documents the types; the version grows when the meaning of a
field changes or a field is removed, not when one is added. A path that is not UTF-8 is in pathBase64, in base64, instead of
path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from kcli.inspect.instants import format_instant
from kcli.inspect.json_text import JsonObject, JsonValue, dump, json_string, path_member
from kcli.inspect.json_text import JsonObject as Row
from kcli.inspect.quantities import format_bytes, format_count
from kcli.inspect.renderers.human_text import Palette
from kcli.inspect.renderers.terminal_text import escape, fit_table, wrapped
from kcli.log.disk.port import parent_path

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
SCHEMA_NAME = "kcli.describe"
SCHEMA_VERSION = 1
# The type of the rows of each section of the report.
ROW_TYPES = {
    "cluster": "cluster",
    "brokers": "broker",
    "controllers": "controller",
    "topics": "topic",
    "partitions": "partition",
    "segments": "segment",
    "leaderEpochs": "leaderEpoch",
    "producers": "producer",
    "compaction": "compaction",
    "groups": "group",
    "members": "member",
    "transactions": "transaction",
    "openTransactions": "openTransaction",
    "configs": "config",
    "acls": "acl",
    "users": "user",
    "quotas": "quota",
    "tokens": "token",
}


def json_lines(report: JsonObject) -> Iterator[str]:
    """Yield the lines of the report, without line ends."""
    yield f'{{"type":"schema","name":"{SCHEMA_NAME}","version":{SCHEMA_VERSION}}}'
    for section, row_type in ROW_TYPES.items():
        for row in report.get(section) or ():
            yield f'{{"type":"{row_type}",{_members(row)}}}'
    for sentence in report["unknowns"]:
        yield f'{{"type":"unknown","message":{json_string(sentence)}}}'
    for problem in report["problems"]:
        yield f'{{"type":"problem",{_members(problem)}}}'
    counts = {section: None if report[section] is None else len(report[section]) for section in ROW_TYPES if section in report}
    yield dump({"type": "summary", "rows": counts, "problems": len(report["problems"])})


def _members(row: JsonObject) -> str:
    return ",".join([_member(name, value) for name, value in row.items()])


def _member(name: str, value: JsonValue) -> str:
    return path_member(value) if name == "path" and isinstance(value, str) else f"{json_string(name)}:{_value(value)}"


def _value(value: JsonValue) -> str:
    """Return a value as json_text.dump does, except for paths in inner objects."""
    if isinstance(value, dict):
        return f"{{{_members(value)}}}"
    if isinstance(value, list):
        return f"[{','.join(_value(inner) for inner in value)}]"
    return dump(value)


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


# A column that is left out if all rows have the same value.
LOG_DIRECTORY = "log directory"
Cell = Callable[[Row], str]
Column = tuple[str, Cell]


class Table(NamedTuple):
    """A table: `rows` returns its rows from the report (None if unknown or not asked for); `option` is its name for --show.

    Without `is_in_overview` it is shown for that option only.
    """

    title: str
    option: str
    rows: Callable[[Row], list[Row] | None]
    columns: tuple[Column, ...]
    is_in_overview: bool = True


# ------------------------------------------------------------------------------------------------------------------ cells


def _text(name: str) -> Cell:
    """Show a value as it is."""
    return lambda row: "" if row[name] is None else escape(str(row[name]))


def _number(name: str) -> Cell:
    return lambda row: "" if row[name] is None else f"{row[name]:,}"


def _known(cell: Cell) -> Cell:
    """Show a dash for an empty cell."""
    return lambda row: cell(row) or "-"


def _time(name: str) -> Cell:
    """Show a time to the second."""
    return lambda row: "" if row[name] is None else _seconds(format_instant(row[name]))


def _seconds(instant: str) -> str:
    return f"{instant[:-5]}Z" if instant.endswith("Z") else instant


def _unless_at_end(name: str) -> Cell:
    """Show an offset unless it is the log end offset, as is normal; a dash if it is unknown."""
    return lambda row: "-" if row[name] is None else "" if row[name] == row["logEndOffset"] else str(row[name])


def _ids(name: str) -> Cell:
    return lambda row: "" if row[name] is None else ",".join(map(str, row[name]))


def _size(row: Row) -> str:
    return format_bytes(row["sizeInBytes"])


def _bytes(name: str) -> Cell:
    return lambda row: "-" if row[name] is None else format_bytes(row[name])


def _percent(name: str) -> Cell:
    return lambda row: "-" if row[name] is None else f"{row[name]:.0%}"


def _codecs(row: Row) -> str:
    return " ".join(escape(codec["name"]) for codec in row["codecs"])


def _partition(row: Row) -> str:
    return escape(f"{row['topic']}-{row['partition']}")


def _places(name: str) -> Cell:
    """Show topics, or subtopologies, with their partitions: orders:0,1."""
    return lambda row: " ".join(map(_place, row[name] or ()))


def _place(part: Row) -> str:
    name = part["topic"] if "topic" in part else part["subtopology"]
    role = f"({part['role']})" if part.get("role", "active") != "active" else ""
    return escape(f"{name}:{','.join(map(str, part['partitions']))}{role}")


def _endpoints(row: Row) -> str:
    from kcli.network.events import PeerAddress

    return " ".join(escape(f"{part['name']}://{PeerAddress(part['host'], part['port'])}") for part in row["endpoints"])


def _stopped(row: Row) -> str:
    if row["isLive"]:
        return "running"
    return "" if row["isCleanShutdown"] is None else "cleanly" if row["isCleanShutdown"] else "not cleanly"


def _broker_state(row: Row) -> str:
    if row["isInControlledShutdown"]:
        return "shut down" if row["isFenced"] else "shutting down"
    return "fenced" if row["isFenced"] else "active"


def _topic_partitions(row: Row) -> str:
    total, here = row["partitions"], row["partitionsHere"]
    return str(here) if total is None or total == here else f"{here} of {total}"


def _log_directory(row: Row) -> str:
    return escape(parent_path(row["path"]))


def _not_current(row: Row) -> str:
    return "" if row["state"] == "current" else escape(row["state"])


def _not_in_metadata(row: Row) -> str:
    return "not in the metadata" if row["isInMetadata"] is False else ""


def _other_files(row: Row) -> str:
    names = (("index", "hasOffsetIndex"), ("timeindex", "hasTimeIndex"), ("txnindex", "hasTransactionIndex"))
    return " ".join(word for word, name in (*names, ("snapshot", "hasProducerSnapshot")) if row[name])


def _resource(row: Row) -> str:
    return escape(f"{row['resourceType']} {row['resourceName'] or '(default)'}")


def _config_value(row: Row) -> str:
    return "(hidden)" if row["isSensitive"] else escape(row["value"]) or '""'


def _entity(row: Row) -> str:
    return " ".join(escape(f"{kind}={'(default)' if name is None else name}") for kind, name in row["entity"].items())


def _hanging(row: Row) -> str:
    return "-" if row["isHanging"] is None else "yes" if row["isHanging"] else "no"


def _milliseconds(name: str) -> Cell:
    return lambda row: f"{row[name]:,} ms"


def _amount(row: Row) -> str:
    value = row["value"]
    return f"{int(value):,}" if value.is_integer() else f"{value:,}"


def _renewers(row: Row) -> str:
    return " ".join(map(escape, row["renewers"]))


def _offset_count(row: Row) -> str:
    return f"{len(row['offsets']):,}"


# ------------------------------------------------------------------------------------------------------------------- rows


def _section(name: str) -> Callable[[Row], list[Row] | None]:
    return lambda report: report.get(name)


def _offsets_of(*, share: bool) -> Callable[[Row], list[Row] | None]:
    """Return a row for each offset of a group, with the group's id; None without groups of that kind."""

    def rows(report: Row) -> list[Row] | None:
        groups = [group for group in report.get("groups") or () if (group["kind"] == "share") is share]
        return [{"groupId": group["groupId"], **offset} for group in groups for offset in group["offsets"]] or None

    return rows


# ----------------------------------------------------------------------------------------------------------------- tables

_SURVEY: tuple[Column, ...] = (
    ("records", _known(_number("records"))),
    ("size", _size),
    ("codecs", _codecs),
    ("first record", _time("firstTimestamp")),
    ("largest time", _time("maxTimestamp")),
)
DIRECTORIES: tuple[Column, ...] = (
    (LOG_DIRECTORY, _text("path")),
    ("node", _text("nodeId")),
    ("directory id", _text("directoryId")),
    ("partitions", _number("partitions")),
    ("stopped", _stopped),
)
TABLES = (
    Table(
        "brokers",
        "brokers",
        _section("brokers"),
        (
            ("id", _text("id")),
            ("state", _broker_state),
            ("endpoints", _endpoints),
            ("rack", _text("rack")),
            ("epoch", _number("epoch")),
            ("directory ids", _ids("logDirs")),
        ),
    ),
    Table("controllers", "brokers", _section("controllers"), (("id", _text("id")), ("endpoints", _endpoints)), False),
    Table(
        "topics",
        "topics",
        _section("topics"),
        (
            ("topic", _text("name")),
            ("partitions", _topic_partitions),
            ("replicas", _number("replicationFactor")),
            ("segments", _number("segments")),
            *_SURVEY,
            ("id", _text("id")),
            ("remark", _not_in_metadata),
        ),
    ),
    Table(
        "partitions",
        "partitions",
        _section("partitions"),
        (
            ("partition", _partition),
            (LOG_DIRECTORY, _log_directory),
            ("state", _not_current),
            ("leader", _text("leader")),
            ("on nodes", _ids("replicas")),
            ("in sync", _ids("isr")),
            ("epoch", _text("lastLeaderEpoch")),
            ("start offset", _known(_text("logStartOffset"))),
            ("cleaned to", _text("cleanedOffset")),
            ("last stable", _unless_at_end("lastStableOffset")),
            ("high watermark", _unless_at_end("highWatermark")),
            ("end offset", _known(_text("logEndOffset"))),
            ("segments", _number("segments")),
            *_SURVEY,
        ),
    ),
    Table(
        "segments",
        "segments",
        _section("segments"),
        (
            ("partition", _partition),
            ("base offset", _text("baseOffset")),
            ("end offset", _text("endOffset")),
            ("batches", _known(_number("batches"))),
            *_SURVEY,
            ("other files", _other_files),
        ),
    ),
    Table(
        "leader epochs",
        "epochs",
        _section("leaderEpochs"),
        (("partition", _partition), ("epoch", _text("epoch")), ("from offset", _text("startOffset"))),
    ),
    Table(
        "producers",
        "producers",
        _section("producers"),
        (
            ("partition", _partition),
            ("producer id", _text("producerId")),
            ("epoch", _text("producerEpoch")),
            ("last sequence", _text("lastSequence")),
            ("last offset", _text("lastOffset")),
            ("last time", _time("lastTimestamp")),
            ("coordinator epoch", _text("coordinatorEpoch")),
            ("open since offset", _text("currentTxnFirstOffset")),
        ),
    ),
    Table(
        "compaction",
        "compaction",
        _section("compaction"),
        (
            ("partition", _partition),
            (LOG_DIRECTORY, _log_directory),
            ("cleaned to", _known(_text("cleanedOffset"))),
            ("dirty to", _known(_text("firstUncleanableOffset"))),
            ("clean", _bytes("cleanBytes")),
            ("dirty", _bytes("dirtyBytes")),
            ("ratio", _percent("dirtyRatio")),
            ("cleaned above", _percent("minCleanableDirtyRatio")),
        ),
        False,
    ),
    Table(
        "groups",
        "groups",
        _section("groups"),
        (
            ("group", _text("groupId")),
            ("kind", _text("kind")),
            ("state", _text("state")),
            ("members", _number("members")),
            ("epoch", _text("epoch")),
            ("partitions", _offset_count),
            ("lag", _known(_number("totalLag"))),
        ),
    ),
    Table(
        "committed offsets",
        "groups",
        _offsets_of(share=False),
        (
            ("group", _text("groupId")),
            ("partition", _partition),
            ("committed", _known(_text("committedOffset"))),
            ("in a transaction", _text("pendingOffset")),
            ("end offset", _known(_text("logEndOffset"))),
            ("lag", _known(_number("lag"))),
            ("committed at", _time("commitTimestamp")),
            ("metadata", _text("metadata")),
        ),
        False,
    ),
    Table(
        "progress of share groups",
        "groups",
        _offsets_of(share=True),
        (
            ("group", _text("groupId")),
            ("partition", _partition),
            ("start offset", _known(_text("startOffset"))),
            ("done above it", _text("deliveryCompleteCount")),
            ("end offset", _known(_text("logEndOffset"))),
            ("lag", _known(_number("lag"))),
            ("written at", _time("writeTimestamp")),
        ),
        False,
    ),
    Table(
        "members",
        "members",
        _section("members"),
        (
            ("group", _text("groupId")),
            ("member", _text("memberId")),
            ("instance", _text("instanceId")),
            ("client", _text("clientId")),
            ("host", _text("clientHost")),
            ("epoch", _text("epoch")),
            ("state", _text("state")),
            ("assigned", _places("assignment")),
        ),
        False,
    ),
    Table(
        "transactional ids",
        "transactions",
        _section("transactions"),
        (
            ("transactional id", _text("transactionalId")),
            ("state", _text("state")),
            ("producer id", _text("producerId")),
            ("epoch", _text("producerEpoch")),
            ("timeout", _milliseconds("timeoutMs")),
            ("started", _time("startTimestamp")),
            ("updated", _time("lastUpdateTimestamp")),
            ("partitions written to", _places("partitions")),
        ),
    ),
    Table(
        "open transactions",
        "transactions",
        _section("openTransactions"),
        (
            ("partition", _partition),
            ("producer id", _text("producerId")),
            ("epoch", _text("producerEpoch")),
            ("first offset", _text("firstOffset")),
            ("last time", _time("lastTimestamp")),
            ("transactional id", _text("transactionalId")),
            ("state", _text("coordinatorState")),
            ("hanging", _hanging),
        ),
    ),
    Table(
        "configurations",
        "configs",
        _section("configs"),
        (("resource", _resource), ("name", _text("name")), ("value", _config_value)),
        False,
    ),
    Table(
        "access control",
        "acls",
        _section("acls"),
        (
            ("principal", _text("principal")),
            ("host", _text("host")),
            ("permission", _text("permissionType")),
            ("operation", _text("operation")),
            ("resource", _resource),
            ("pattern", _text("patternType")),
        ),
        False,
    ),
    Table(
        "SCRAM credentials",
        "users",
        _section("users"),
        (("user", _text("user")), ("mechanism", _text("mechanism")), ("iterations", _number("iterations"))),
        False,
    ),
    Table(
        "client quotas",
        "quotas",
        _section("quotas"),
        (("entity", _entity), ("quota", _text("key")), ("amount", _amount)),
        False,
    ),
    Table(
        "delegation tokens",
        "tokens",
        _section("tokens"),
        (
            ("token", _text("tokenId")),
            ("owner", _text("owner")),
            ("requester", _text("requester")),
            ("renewers", _renewers),
            ("issued", _time("issueTimestamp")),
            ("expires", _time("expirationTimestamp")),
            ("at the latest", _time("maxTimestamp")),
        ),
        False,
    ),
)
# The other columns have numbers and times, which are right-aligned.
LEFT_COLUMNS = frozenset(
    (
        *(LOG_DIRECTORY, "node", "directory id", "stopped", "endpoints", "rack", "directory ids", "topic", "id", "remark"),
        *("partition", "state", "on nodes", "in sync", "codecs", "other files", "group", "kind", "metadata", "member"),
        *("instance", "client", "host", "assigned", "transactional id", "partitions written to", "hanging", "resource"),
        *("name", "value", "principal", "permission", "operation", "pattern", "user", "mechanism", "entity", "quota"),
        *("token", "owner", "requester", "renewers"),
    )
)
# The columns that are left out first on a narrow terminal: long ones that are less important than sizes and offsets.
DROPPED_FIRST = (
    *("id", "directory id", "directory ids", "first record", "other files", "coordinator epoch", "on nodes", "cleaned to"),
    *("largest time", "codecs", "epoch", "in sync", "high watermark", "last stable", "replicas", "segments", "records"),
)
