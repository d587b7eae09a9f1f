"""The report of kcli.inspect.dumping.statistics as rows of CSV: name, value.

name                            value
------------------------------  ----------------------------------------------------------------------------
records, keySize.p99            a number; the names are those of docs/json-output.md, with a dot before a member
codecs.zstd.batches             of codecs and partitions with their names
partitions.orders-0.records
topKeys.keys.1.count            of other lists with the number, from 1
firstTimestamp                  a time, as the renderer writes times; empty if there is none
topKeys.keys.1.keyBase64        a key that is not text; keyBase64 instead of key
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kcli.inspect.json_text import JsonObject, JsonValue, base64_text, dump
from kcli.inspect.renderers.csv_rows import text_of
from kcli.inspect.renderers.terminal_text import escape

# Lists whose objects have a name of their own, and which member that is.
_NAMED = {"codecs": "name", "partitions": "partition"}
_TIMES = frozenset(("firstTimestamp", "lastTimestamp", "start"))


def statistics_rows(report: JsonObject, format_time: Callable[[int], str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each number of the report; `format_time` takes ms since 1970."""
    for name, value in report.items():
        yield from _rows(name, name, value, format_time)


def _rows(path: str, name: str, value: JsonValue, format_time: Callable[[int], str]) -> Iterator[tuple[str, str]]:
    """Yield the rows of the member called `name`, which is found at `path`."""
    if isinstance(value, dict):
        for inner, part in value.items():
            yield from _rows(f"{path}.{inner}", inner, part, format_time)
    elif isinstance(value, list):
        for number, part in enumerate(value, 1):
            own = _NAMED.get(path)
            rest = {inner: member for inner, member in part.items() if inner != own}
            yield from _rows(f"{path}.{number if own is None else escape(part[own])}", name, rest, format_time)
    elif isinstance(value, str):
        data = value.encode("utf-8", "replace")
        yield (path, value) if text_of(data) is not None else (f"{path}Base64", base64_text(data))
    elif value is None:
        yield path, ""
    else:
        yield path, format_time(value) if name in _TIMES else dump(value)
