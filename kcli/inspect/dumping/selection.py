"""The records of a log to select, as options of the command line say.

    option                       selects                                       notes
    ---------------------------  --------------------------------------------  -------------------------------------------
    --offset A..B                offsets A to B - 1                            A.., ..B, and A alone for that offset
    --time A..B                  timestamps A to B - 1 ms                      ISO 8601 (UTC unless it has a zone) or ms
                                                                               since 1970 (kcli.inspect.instants); a day, week
                                                                               or month is whole, as A, as B and alone; a
                                                                               record without a timestamp is in no range
    --key TEXT                   records with that key, in UTF-8               may be given several times: any of them
    --header NAME[=VALUE]        records with that header                      several: all of them
    --producer-id N              batches of that producer                      several: any of them
    --transactional              batches of transactions, their markers too
    --control                    control batches only
    --aborted                    records of transactions that were aborted
    --isolation read_committed   the records that such a consumer receives     no markers, none of aborted transactions, and
                                                                               none from the last stable offset on
    --limit N                    the first N of these                          over all files of the run
    --tail N                     the last N of these                           of each partition, or of each file that is named

A record must match all options. Ranges are half-open, and either end may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kcli.format.primitives import INT64_MAX
from kcli.inspect.instants import parse_period

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"
# The largest --tail: the memory for it grows with the number of batches.
MAX_TAIL_RECORDS = 100_000_000


class SelectionError(ValueError):
    """An option with an invalid value, or two that exclude each other; the message is one sentence."""


class HeaderMatch(NamedTuple):
    """A header that a record must have; a value of None matches any."""

    key: bytes
    value: bytes | None = None


class Range(NamedTuple):
    """Integers from `first` up to, not including, `end`; None leaves that end open."""

    first: int | None = None
    end: int | None = None

    def has(self, value: int) -> bool:
        """Return True for a value within the range."""
        return (self.first is None or value >= self.first) and (self.end is None or value < self.end)


class Selection(NamedTuple):
    """The records to select; by default all. Offsets and times (ms) are Ranges, keys and headers are bytes."""

    offsets: Range = Range()
    times: Range = Range()
    keys: tuple[bytes, ...] = ()
    headers: tuple[HeaderMatch, ...] = ()
    producer_ids: tuple[int, ...] = ()
    transactional: bool = False
    control: bool = False
    aborted: bool = False
    read_committed: bool = False
    limit: int | None = None
    tail: int | None = None

    @property
    def is_everything(self) -> bool:
        """Whether all records are selected."""
        return self == Selection()

    @property
    def needs_transactions(self) -> bool:
        """Whether the ends of transactions decide."""
        return self.aborted or self.read_committed


def parse_selection(
    *,
    offset: str | None = None,
    time: str | None = None,
    keys: Sequence[str] = (),
    headers: Sequence[str] = (),
    producer_ids: Sequence[str | int] = (),
    transactional: bool = False,
    control: bool = False,
    aborted: bool = False,
    isolation: str | None = None,
    limit: str | int | None = None,
    tail: str | int | None = None,
) -> Selection:
    """Parse the options above. Raises SelectionError, whose message names the option."""
    if isolation not in (None, READ_COMMITTED, READ_UNCOMMITTED):
        raise SelectionError(f"--isolation must be {READ_COMMITTED} or {READ_UNCOMMITTED}, not {isolation!r}")
    read_committed = isolation == READ_COMMITTED
    for name, given in (("--control", control), ("--aborted", aborted)):
        if read_committed and given:
            raise SelectionError(f"{name} and --isolation {READ_COMMITTED} exclude each other: such a consumer receives none")
    if control and aborted:
        raise SelectionError("--control and --aborted exclude each other: a control record is not part of a transaction's data")
    return Selection(
        offsets=_parse_offsets(offset),
        times=_parse_times(time),
        keys=tuple(_typed_bytes(key) for key in keys),
        headers=tuple(_parse_header(header) for header in headers),
        producer_ids=tuple(_parse_count("--producer-id", text, INT64_MAX, -1) for text in producer_ids),
        transactional=transactional,
        control=control,
        aborted=aborted,
        read_committed=read_committed,
        limit=None if limit is None else _parse_count("--limit", limit, INT64_MAX),
        tail=None if tail is None else _parse_count("--tail", tail, MAX_TAIL_RECORDS),
    )


def _parse_offsets(text: str | None) -> Range:
    if text is None:
        return Range()
    if ".." not in text:
        only = _parse_offset(text, text)
        return Range(only, only + 1)
    first, end = (None if part == "" else _parse_offset(part, text) for part in _two_ends("--offset", text))
    return _checked("--offset", text, Range(first, end))


def _parse_offset(part: str, text: str) -> int:
    if not _is_number(part) or int(part) > INT64_MAX:
        raise SelectionError(f"--offset {text}: {part!r} is not an offset; write A..B, A.., ..B or one offset")
    return int(part)


def _parse_times(text: str | None) -> Range:
    if text is None:
        return Range()
    try:
        if ".." in text:
            starts, ends = (None if part.strip() == "" else parse_period(part.strip()) for part in _two_ends("--time", text))
            first = None if starts is None else starts.first_ms
            return _checked("--time", text, Range(first, None if ends is None else ends.end_ms))
        period = parse_period(text.strip())
    except SelectionError:
        raise
    except ValueError as error:
        raise SelectionError(f"--time {text}: {error}") from None
    if period.is_instant:
        raise SelectionError(f"--time {text}: write a range, A..B, A.. or ..B; only a day, a week or a month may be alone")
    return Range(*period)


def _two_ends(option: str, text: str) -> list[str]:
    ends = text.split("..")
    if len(ends) != 2 or ends == ["", ""]:
        raise SelectionError(f"{option} {text}: write a range with at least one end, A..B, A.. or ..B")
    return ends


def _checked(option: str, text: str, ends: Range) -> Range:
    if ends.first is not None and ends.end is not None and ends.first >= ends.end:
        raise SelectionError(f"{option} {text}: the range is empty: its end, which is not part of it, must be after its start")
    return ends


def _parse_header(text: str) -> HeaderMatch:
    name, has_value, value = text.partition("=")
    return HeaderMatch(_typed_bytes(name), _typed_bytes(value) if has_value else None)


def _parse_count(option: str, given: str | int, most: int, least: int = 0) -> int:
    text = str(given)
    digits = text.removeprefix("-") if least < 0 else text
    if not _is_number(digits) or not least <= int(text) <= most:
        raise SelectionError(f"{option} {text}: write a whole number, {least} to {most}")
    return int(text)


def _is_number(text: str) -> bool:
    """Return True for digits that may be an int64."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(INT64_MAX))


def _typed_bytes(text: str) -> bytes:
    """Return text of the command line as bytes; bytes that are not UTF-8 are surrogates in it."""
    return text.encode("utf-8", "surrogateescape")
