"""The report of kcli.inspect.dumping.statistics as text tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kcli.inspect.dumping.sketches import narrowed
from kcli.inspect.instants import format_instant
from kcli.inspect.json_text import JsonObject
from kcli.inspect.quantities import format_bytes, format_count
from kcli.inspect.renderers.terminal_text import EMPTY, escape, fitted
from kcli.inspect.renderers.text_table import table_lines

MAX_RATE_ROWS = 24
MAX_PARTITION_ROWS = 20
_BAR_COLUMNS = 30
_KEY_COLUMNS = 40


def statistics_lines(report: JsonObject) -> Iterator[str]:
    """Yield the lines of the report, without colours and control characters."""
    yield (
        f"{format_count(report['records'], 'record')} in {format_count(report['batches'], 'batch')} of "
        f"{format_count(report['files'], 'file')}, {format_bytes(report['sizeInBytes'])}; "
        f"{format_count(report['controlRecords'], 'control record')}"
    )
    if report["batchesLeftOut"]:
        yield f"{format_count(report['batchesLeftOut'], 'damaged batch')} left out"
    if report["firstTimestamp"] is not None:
        yield f"times {format_instant(report['firstTimestamp'])} to {format_instant(report['lastTimestamp'])}"
    headers = report["headers"]
    if headers["count"]:
        yield f"{format_count(headers['count'], 'header')} on {format_count(headers['records'], 'record')}"
    yield from _codecs(report["codecs"])
    yield from _sizes(report)
    yield from _rates(report["rates"])
    yield from _keys(report["topKeys"])
    yield from _producers(report["producers"])
    yield from _transactions(report["transactions"])
    yield from _partitions(report)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a title, the column names, and the rows; the first column is left-aligned, the others right-aligned."""
    yield ""
    yield title
    yield from table_lines(columns, rows)


def _codecs(codecs: Sequence[JsonObject]) -> Iterator[str]:
    rows = [
        (
            row["name"],
            f"{row['batches']:,}",
            f"{row['records']:,}",
            format_bytes(row["sizeInBytes"]),
            format_bytes(row["inflatedBytes"]),
            "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
        )
        for row in codecs
    ]
    if rows:
        yield from _table("codecs", ("codec", "batches", "records", "size", "inflated", "ratio"), rows)


def _sizes(report: JsonObject) -> Iterator[str]:
    rows = []
    for label, name, shown in (
        ("batch", "batchSize", format_bytes),
        ("records in a batch", "recordsPerBatch", str),
        ("key", "keySize", format_bytes),
        ("value", "valueSize", format_bytes),
    ):
        sizes = report[name]
        if sizes["count"] or sizes.get("nulls"):
            mean = f"{sizes['mean']:,}" if shown is str else format_bytes(round(sizes["mean"]))
            values = [shown(sizes[part]) for part in ("min", "p50", "p90", "p99", "max")]
            rows.append((label, *values, mean, f"{sizes['nulls']:,}" if "nulls" in sizes else ""))
    if rows:
        yield from _table("sizes", ("", "least", "p50", "p90", "p99", "most", "mean", "nulls"), rows)


def _rates(rates: JsonObject) -> Iterator[str]:
    found = [(bucket["start"], bucket["records"], bucket["sizeInBytes"]) for bucket in rates["buckets"]]
    if not found:
        return
    buckets, width_ms = narrowed(found, rates["bucketMs"], MAX_RATE_ROWS)
    most = max(records for _, records, _ in buckets)
    rows = [
        (
            format_instant(start)[:19],
            f"{records:,}",
            f"{records * 1000 / width_ms:,.1f}/s",
            format_bytes(size_bytes),
            ("#" * max(round(_BAR_COLUMNS * records / most), 1)).ljust(_BAR_COLUMNS),
        )
        for start, records, size_bytes in buckets
    ]
    title = f"records by time, {_duration(width_ms)} each, keys and values only"
    yield from _table(title, ("from (UTC)", "records", "rate", "size", ""), rows)


def _duration(width_ms: int) -> str:
    for unit, size_ms in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        if width_ms % size_ms == 0:
            return format_count(width_ms // size_ms, unit)
    return format_count(width_ms // 1000, "second")


def _keys(top: JsonObject) -> Iterator[str]:
    if not top["keys"]:
        return
    rows = []
    for row in top["keys"]:
        key = escape(row["key"]) if "key" in row else f"base64:{row['keyBase64']}"
        rows.append((fitted(key, _KEY_COLUMNS) or EMPTY, f"{row['count']:,}"))
    too_low = top["countsMayBeTooLowBy"]
    title = "most frequent keys" + (f" (counts may be too low by up to {too_low:,})" if too_low else "")
    yield from _table(title, ("key", "records"), rows)


def _producers(producers: JsonObject) -> Iterator[str]:
    rows = [
        (
            str(row["producerId"]),
            str(row["producerEpoch"]),
            f"{row['batches']:,}",
            f"{row['records']:,}",
            format_bytes(row["sizeInBytes"]),
            str(row["lastSequence"]),
            "yes" if row["isTransactional"] else "no",
        )
        for row in producers["top"]
    ]
    if rows:
        title = f"producers: {format_count(producers['count'], 'idempotent or transactional one')}"
        columns = ("producer id", "epoch", "batches", "records", "size", "last sequence", "transactional")
        yield from _table(title, columns, rows)


def _transactions(transactions: JsonObject) -> Iterator[str]:
    if not (transactions["committed"] or transactions["aborted"] or transactions["openCount"]):
        return
    yield ""
    yield (
        f"transactions: {transactions['committed']:,} committed, {transactions['aborted']:,} aborted, "
        f"{transactions['openCount']:,} open at the end"
    )
    for row in transactions["open"]:
        yield f"  producer {row['producerId']} in {escape(row['partition'])} since offset {row['firstOffset']}"


def _partitions(report: JsonObject) -> Iterator[str]:
    found = sorted(report["partitions"], key=lambda row: -row["sizeInBytes"])
    if len(found) < 2:
        return
    rows = [
        (
            escape(row["partition"]),
            f"{row['batches']:,}",
            f"{row['records']:,}",
            format_bytes(row["sizeInBytes"]),
            f"{row['firstOffset']}..{row['lastOffset']}" if row["records"] else "-",
        )
        for row in found[:MAX_PARTITION_ROWS]
    ]
    more = len(found) + report["partitionsLeftOut"] - len(rows)
    title = "partitions" + (f", the largest {len(rows)}; {more:,} more" if more else "")
    yield from _table(title, ("partition", "batches", "records", "size", "offsets"), rows)
