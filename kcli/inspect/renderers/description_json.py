"""The report of kcli.inspect.description as JSON for programs: an object per line.

The first line is {"type":"schema","name":"kcli.describe","version":1}, then come the rows of the sections that were asked
for, each with its type, then `unknown` and `problem`, and last `summary`, which has the number of rows of each section, or null
if it is not known. docs/describe.md documents the types; the version grows when the meaning of a field changes or a field is
removed, not when one is added. A path that is not UTF-8 is in pathBase64, in base64, instead of path.
"""

from __future__ import annotations

from collections.abc import Iterator

from kcli.inspect.json_text import JsonObject, JsonValue, dump, path_member, quote

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
        yield f'{{"type":"unknown","message":{quote(sentence)}}}'
    for problem in report["problems"]:
        yield f'{{"type":"problem",{_members(problem)}}}'
    counts = {section: None if report[section] is None else len(report[section]) for section in ROW_TYPES if section in report}
    yield dump({"type": "summary", "rows": counts, "problems": len(report["problems"])})


def _members(row: JsonObject) -> str:
    return ",".join([_member(name, value) for name, value in row.items()])


def _member(name: str, value: JsonValue) -> str:
    return path_member(value) if name == "path" and isinstance(value, str) else f"{quote(name)}:{_value(value)}"


def _value(value: JsonValue) -> str:
    """Return a value as json_text.dump does, except for paths in inner objects."""
    if isinstance(value, dict):
        return f"{{{_members(value)}}}"
    if isinstance(value, list):
        return f"[{','.join(_value(inner) for inner in value)}]"
    return dump(value)
