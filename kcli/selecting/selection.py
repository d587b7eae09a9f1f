"""The records of a log to select, as options of the command line say.

    option                       selects                                       notes
    ---------------------------  --------------------------------------------  -------------------------------------------
    --offset A..B                offsets A to B - 1                            A.., ..B, and A alone for that offset
    --time A..B                  timestamps A to B - 1 ms                      ISO 8601 (UTC unless it has a zone) or ms
                                                                               since 1970 (`parse_period`); a day, week
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

A record must match all options. Ranges are half-open, and either end may be missing. Times are written as

    text                             meaning
    -------------------------------  ------------------------------------------------------------------
    2023-11-14                       that day in UTC
    2023-11, 2023-W46                that month, that week (from Monday) in UTC
    2023-11-14T22:13:20.5            that instant in UTC; a blank may replace the T
    2023-11-14T22:13:20Z, ...+02:00  that instant in its own zone
    1700000000000                    ms since 1970: 0, or 12 to 15 digits (1973 to 9999)
    5ms, -5ms                        any number of ms since 1970

Other numbers are refused, because they are probably meant otherwise: 2023 as a year, 1700000000 as seconds, 1700000000000000 as
microseconds. A time with a fraction of a millisecond is rounded up, so that half-open ranges of whole milliseconds are exact.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kcli.format.primitives import INT64_MAX

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"
# The largest --tail: the memory for it grows with the number of batches.
MAX_TAIL_RECORDS = 100_000_000

_MS_PER_DAY = 86_400_000
# date(1970, 1, 1).toordinal()
_ORDINAL_OF_1970 = 719_163
# Numbers without a unit from 1973-03-03 to 9999-12-31T23:59:59.999Z are milliseconds.
_LEAST_PLAIN_MS = 10**11
_LAST_PLAIN_MS = 253_402_300_799_999
_NUMBER = re.compile(r"-?[0-9]+")
_MONTH = re.compile(r"([0-9]{4})-([0-9]{2})")
_WEEK = re.compile(r"[0-9]{4}-?W[0-9]{2}")
_DATE_DIGITS = re.compile(r"(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])")
_MONTH_DIGITS = re.compile(r"(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])")


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


# --------------------------------------------------------------------------------------------------------- times as text


class Period(NamedTuple):
    """The time that a text means: from `first_ms` up to, not including, `end_ms`, or an instant if both are equal."""

    first_ms: int
    end_ms: int

    @property
    def is_instant(self) -> bool:
        """Whether this is a point in time, and not a day, a week or a month."""
        return self.first_ms == self.end_ms


def parse_period(text: str) -> Period:
    """Parse a time. Raises ValueError, whose message quotes `text` and says how to write a time."""
    number = text.removesuffix("ms")
    if _NUMBER.fullmatch(number):
        timestamp_ms = _any_ms(text, number) if number != text else _plain_ms(text)
        return Period(timestamp_ms, timestamp_ms)
    from datetime import UTC, date, datetime, timedelta  # late: most runs need no time, and it costs 2 ms

    try:
        if month := _MONTH.fullmatch(text):
            first = date(int(month[1]), int(month[2]), 1)
            days = 31 if first.month == 12 else (first.replace(month=first.month + 1) - first).days
            return _days(first.toordinal(), first.toordinal() + days)
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: write ISO 8601 (2023-11-14 for the day, 2023-11 for the month, 2023-11-14T22:13:20, with "
            "Z or +02:00 for another zone than UTC) or milliseconds since 1970"
        ) from None
    if _is_date(text):
        first_day = instant.toordinal()
        return _days(first_day, first_day + (7 if _WEEK.fullmatch(text) else 1))
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    microseconds = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    timestamp_ms = -(-microseconds // 1000)
    return Period(timestamp_ms, timestamp_ms)


def _is_date(text: str) -> bool:
    from datetime import date

    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _days(first_ordinal: int, end_ordinal: int) -> Period:
    """Return the period of days, which are counted from 0001-01-01, day 1."""
    return Period((first_ordinal - _ORDINAL_OF_1970) * _MS_PER_DAY, (end_ordinal - _ORDINAL_OF_1970) * _MS_PER_DAY)


def _any_ms(text: str, number: str) -> int:
    if len(number) > 20 or abs(int(number)) > INT64_MAX:
        raise ValueError(f"{text!r} is not a timestamp of Kafka: it does not fit into 64 bits")
    return int(number)


def _plain_ms(text: str) -> int:
    """Parse a number without a unit. Raises ValueError if it is too small or too large for milliseconds."""
    if len(text) <= 20 and (int(text) == 0 or _LEAST_PLAIN_MS <= int(text) <= _LAST_PLAIN_MS):
        return int(text)
    raise ValueError(f"{text!r} is not milliseconds since 1970, which have 12 or 13 digits today: {_advice(text)}")


def _advice(text: str) -> str:
    """Return how to write what a number may have been meant as."""
    digits = len(text)
    if _DATE_DIGITS.fullmatch(text):
        return f"write {text[:4]}-{text[4:6]}-{text[6:]} for the day"
    if _MONTH_DIGITS.fullmatch(text):
        return f"write {text[:4]}-{text[4:]} for the month"
    if digits == 4 and text > "0000":
        return (
            f"write {text}-01-01 for the beginning of that year, {text}-12 for its last month, "
            f"{text}ms for that number of milliseconds"
        )
    if text.isdigit() and 9 <= digits <= 11:
        return f"write {text}000 if these are seconds"
    if text.isdigit() and digits in (16, 19):
        unit = "microseconds" if digits == 16 else "nanoseconds"
        return f"write {text[:13]} if these are {unit}"
    if digits > 16:
        return "write a time as 2023-11-14T22:13:20"
    return f"write a time as 2023-11-14T22:13:20, or {text}ms for that number of milliseconds"
