"""dump-log as text for people: a line for each batch and each record, with colours if the caller asks for them.

    orders-0/00000000000000000000.log  a log segment: ...  1.2 MiB
    batch 0..16  17 records  874 B gzip  2023-11-14T22:13:20.000Z  epoch 0  producer 5/0 sequence 0..16  transactional  at 0
        0  2023-11-14T22:13:20.000Z  key-1  {"amount": 12}  {trace=abc}

Columns: offset, time, key, value, headers. If the width of the terminal is known, a line is cut to it: of the columns after the
time the key has a quarter, the headers a quarter, the value the rest. Times are UTC; a record without a timestamp has a dash.
terminal_text escapes the control characters of payloads.

`statistics_lines` prints the report of kcli.inspect.dumping.statistics as tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kcli.format.compression import CODECS
from kcli.format.record_batch import RecordBatch
from kcli.inspect.dumping.record_contents import ContentDecoder, Contents, decode_control
from kcli.inspect.dumping.renderer import DumpedFile, DumpResult, Entry, Renderer, fixed_timestamp
from kcli.inspect.instants import InstantFormatter, format_instant
from kcli.inspect.quantities import format_byte_range, format_bytes, format_count
from kcli.inspect.renderers.terminal_text import EMPTY, escape, fitted, show, table_lines, width
from kcli.log.reading.batch_records import RecordWindow
from kcli.log.reading.segment_reader import Damage, LogBatch
from kcli.selecting.selected_log import SelectedRecords

if TYPE_CHECKING:
    from kcli.inspect.json_text import JsonObject, JsonValue

# On a terminal with fewer columns lines are cut to this many, and wrap.
MIN_TERMINAL_COLUMNS = 60
_NO_TIME = "-".ljust(24)
_NOT_DECODED = Contents()
_TIMESTAMP_FIELDS = ("timestamp", "lastTimestamp")


class Palette:
    """The escape sequences of colours; empty strings without colours."""

    def __init__(self, colour: bool) -> None:
        codes = ("1", "2", "36", "31", "33", "0") if colour else ()
        sequences = [f"\x1b[{code}m" for code in codes] or [""] * 6
        self.bold, self.dim, self.cyan, self.red, self.yellow, self.plain = sequences


class HumanText(Renderer):
    """The renderer of --output text. `write` takes bytes; `columns` is the width of the terminal, None if there is none."""

    def __init__(self, write: Callable[[memoryview], object], *, colour: bool = False, columns: int | None = None) -> None:
        super().__init__(write)
        self._palette = Palette(colour)
        self._columns = None if columns is None else max(columns, MIN_TERMINAL_COLUMNS)
        self._file: DumpedFile | None = None
        self._is_first = True
        self._format_time = InstantFormatter().format

    def _put(self, text: str) -> None:
        self._out.put(text.encode("utf-8", "replace"))

    def begin_file(self, file: DumpedFile) -> None:
        """Write a line with the name, the kind and the size of the file."""
        self._file = file
        colours = self._palette
        blank = "" if self._is_first else "\n"
        self._is_first = False
        path = escape(file.path)
        self._put(f"{blank}{colours.bold}{path}{colours.plain}  {colours.dim}{file.sentence}, {_size(file)}{colours.plain}\n")

    def batch(self, batch: LogBatch) -> None:
        """Write the line of a batch."""
        header, colours = batch.header, self._palette
        codec = CODECS.get(header.codec, f"codec {header.codec}")
        time = "no timestamp" if header.max_timestamp == -1 else format_instant(header.max_timestamp)
        size = f"{format_bytes(header.size_bytes)} {codec}"
        if isinstance(header, RecordBatch):
            offsets = _from_to(header.base_offset, header.last_offset)
            parts = [f"batch {offsets}", format_count(header.record_count, "record"), size, time, *_batch_traits(header)]
        else:
            what = f"set up to {header.last_offset}" if header.codec else f"message {header.last_offset}"
            parts = [what, size, time, f"format {header.magic}"]
        parts.append(f"at {header.position}")
        self._put(f"{colours.dim}{'  '.join(parts)}{colours.plain}\n")

    def records(self, selected: SelectedRecords) -> None:
        """Write the lines of records."""
        header = selected.batch.header
        window, columns = selected.window, selected.window.columns
        digits = max(len(str(header.last_offset)), 5)
        fixed, decoder = fixed_timestamp(selected.batch), self._file.decoder if self._file is not None else None
        is_control = isinstance(header, RecordBatch) and header.is_control
        limit = None if self._columns is None else self._columns - digits - 2 - 2 - 24 - 2
        lines = []
        for index in selected.indexes:
            timestamp = columns.timestamp[index] if fixed is None else fixed
            time = _NO_TIME if timestamp == -1 else self._format_time(timestamp).ljust(24)
            if window.left_out:
                text = f"key {columns.key_size[index]} B  value {columns.value_size[index]} B  too large to be shown"
            elif is_control:
                text = self._control(decode_control(window.key(index), window.value(index)), window, index)
            else:
                text = self._payload(columns.offset[index], window, index, decoder, limit)
            lines.append(f"  {columns.offset[index]:>{digits}}  {self._palette.dim}{time}{self._palette.plain}  {text}\n")
        self._put("".join(lines))

    def _payload(self, offset: int, window: RecordWindow, index: int, decoder: ContentDecoder | None, limit: int | None) -> str:
        """Return key, value and headers of a record, coloured, in at most `limit` columns."""
        colours = self._palette
        key, value = window.key(index), window.value(index)
        quarter = None if limit is None else max(limit // 4, 8)
        decoded = _NOT_DECODED if decoder is None else decoder.decode(offset, key, value)
        key_text = show(key, quarter) if decoded.key is None else fitted(_decoded_text(decoded.key), quarter)
        headers = f"  {self._headers(window, index, quarter)}" if window.columns.header_count[index] else ""
        left = None if limit is None else max(limit - width(key_text) - width(headers) - 2, 8)
        value_text = show(value, left) if decoded.value is None else fitted(_decoded_text(decoded.value), left)
        key_colour = colours.dim if key is None else colours.cyan
        if value is None:
            value_text = f"{colours.dim}{value_text}{colours.plain}"
        text = f"{key_colour}{key_text}{colours.plain}  {value_text}"
        if headers:
            text = f"{text}{colours.dim}{headers}{colours.plain}"
        if decoded.error is not None:
            text = f"{text}  {colours.yellow}({escape(decoded.error)}){colours.plain}"
        return text

    def _headers(self, window: RecordWindow, index: int, limit: int | None) -> str:
        """Return the headers of a record that has some, in at most `limit` columns."""
        shown: list[str] = []
        used = 2
        headers = window.headers(index)
        for key, value in headers:
            text = f"{show(key, limit)}={show(value, limit)}"
            used += width(text) + 2
            if limit is not None and used > limit and shown:
                shown.append(f"{len(headers) - len(shown)} more")
                break
            shown.append(text)
        return fitted("{" + ", ".join(shown) + "}", limit)

    def _control(self, decoded: Contents, window: RecordWindow, index: int) -> str:
        colours = self._palette
        if decoded.value is None:
            error = escape(decoded.error or "")
            return f"{show(window.key(index))}  {show(window.value(index))}  {colours.red}({error}){colours.plain}"
        data = decoded.value.get("data")
        text = f"{decoded.value['name']}" + ("" if data is None else f" {_json(data)}")
        return f"{colours.yellow}{text}{colours.plain}"

    def entries(self, entries: Iterable[Entry]) -> None:
        """Write a line for each entry: its fields by name."""
        for _, fields in entries:
            parts = [
                f"{name} {_entry_value(name, value)}" for name, value in fields.items() if value is not None and value != ""
            ]
            self._put(f"  {'  '.join(parts)}\n")

    def damage(self, damage: Damage) -> None:
        """Write a line in red."""
        span = format_byte_range(damage.position, damage.end_position)
        self._coloured(self._palette.red, f"DAMAGED at {span} ({damage.kind}): {damage.message}")

    def note(self, message: str) -> None:
        """Write a line in yellow."""
        self._coloured(self._palette.yellow, message)

    def _coloured(self, colour: str, message: str) -> None:
        self._put(f"  {colour}{escape(message)}{self._palette.plain}\n")

    def statistics(self, report: JsonObject) -> None:
        """Write the tables of kcli.inspect.renderers.human_text."""

        for line in statistics_lines(report):
            self._put(f"{line}\n")

    def end(self, result: DumpResult) -> None:
        """Write a line that counts the damage, if there is any, and what was collected."""
        if result.damages:
            self._put(f"\n{self._palette.red}{format_count(result.damages, 'damaged place')}{self._palette.plain}\n")
        self.flush()


def _size(file: DumpedFile) -> str:
    if not file.preallocated_bytes:
        return format_bytes(file.size_bytes)
    used_bytes = file.size_bytes - file.preallocated_bytes
    used = format_bytes(used_bytes) if used_bytes else "no entries in use"
    return f"{used} (preallocated: {format_bytes(file.size_bytes)})"


def _batch_traits(header: RecordBatch) -> list[str]:
    """Return the properties of a batch that not every batch has, and its leader epoch."""
    traits = [f"epoch {header.partition_leader_epoch}"]
    if header.has_producer:
        sequences = f" sequence {_from_to(header.base_sequence, header.last_sequence)}" if header.base_sequence >= 0 else ""
        traits.append(f"producer {header.producer_id}/{header.producer_epoch}{sequences}")
    if header.is_transactional:
        traits.append("transactional")
    if header.is_control:
        traits.append("control")
    if header.is_log_append_time:
        traits.append("LogAppendTime")
    if header.delete_horizon_ms is not None:
        traits.append(f"delete horizon {format_instant(header.delete_horizon_ms)}")
    return traits


def _from_to(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}..{last}"


def _decoded_text(decoded: JsonValue) -> str:
    """Return a decoded key or value in one line: the text of a decoder, or the name of a message and its data as JSON."""
    if isinstance(decoded, str):
        return escape(decoded)
    return f"{decoded['name']} {_json(decoded['data'])}"


def _json(value: JsonValue) -> str:
    from kcli.inspect.json_text import dump

    return escape(dump(value))


def _entry_value(name: str, value: JsonValue) -> str:
    if name in _TIMESTAMP_FIELDS and isinstance(value, int):
        return format_instant(value) if value >= 0 else "-"
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Sequence):
        return ",".join(str(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    from kcli.inspect.dumping.sketches import narrowed

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
