"""The order of the rows of describe by --sort: the largest or the latest first, unknown values last.

sort      sections and the member to sort by
--------  ------------------------------------------------------------------------------------------------
name      all: the names, then the numbers of partitions, ascending; the order without --sort
size      topics, partitions, segments: sizeInBytes
records   the same: records
segments  topics, partitions: segments
time      topics, partitions, segments: maxTimestamp; producers: lastTimestamp; transactions: lastUpdateTimestamp
lag       groups: totalLag, and within a group the lag of its offsets
members   groups: members
dirty     compaction: dirtyBytes
ratio     compaction: dirtyRatio

Sections that have no such member keep their order.
"""

from __future__ import annotations

from kcli.inspect.json_text import JsonObject as Row

NAME = "name"
# By --sort and section of the report (kcli.inspect.renderers.description_json.ROW_TYPES): the member.
_MEMBERS: dict[str, dict[str, str]] = {
    "size": dict.fromkeys(("topics", "partitions", "segments"), "sizeInBytes"),
    "records": dict.fromkeys(("topics", "partitions", "segments"), "records"),
    "segments": dict.fromkeys(("topics", "partitions"), "segments"),
    "time": {
        **dict.fromkeys(("topics", "partitions", "segments"), "maxTimestamp"),
        "producers": "lastTimestamp",
        "transactions": "lastUpdateTimestamp",
    },
    "lag": {"groups": "totalLag"},
    "members": {"groups": "members"},
    "dirty": {"compaction": "dirtyBytes"},
    "ratio": {"compaction": "dirtyRatio"},
}
SORTS = (NAME, *_MEMBERS)


def sorted_sections(sort: str) -> frozenset[str]:
    """Return the sections that `sort`, one of SORTS except name, sorts."""
    return frozenset(_MEMBERS[sort])


def sort_rows(report: Row, sort: str) -> None:
    """Sort the rows of the report by `sort`, one of SORTS."""
    for section, member in _MEMBERS.get(sort, {}).items():
        if report.get(section):
            report[section] = _largest_first(report[section], member)
    if sort == "lag":
        for group in report.get("groups") or ():
            group["offsets"] = _largest_first(group["offsets"], "lag")


def _largest_first(rows: list[Row], member: str) -> list[Row]:
    return sorted(rows, key=lambda row: (row[member] is None, -(row[member] or 0)))
