"""Times as people write them, and as Kafka stores them: milliseconds since 1970 in UTC.

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

Dates are formatted without the datetime module, which takes 2 ms to import and has no year 0.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kcli.format.primitives import INT64_MAX

_MS_PER_DAY = 86_400_000
# The days from 1 March 0000 to 1970, and in 400 years. A year that begins in March ends with the leap day.
_DAYS_TO_1970 = 719_468
_DAYS_IN_400_YEARS = 146_097
# date(1970, 1, 1).toordinal()
_ORDINAL_OF_1970 = 719_163
# 0000-01-01 and 9999-12-31.
_FIRST_DAY = -719_528
_LAST_DAY = 2_932_896
# The last timestamp that has a date: 9999-12-31T23:59:59.999Z.
LAST_DATED_MS = (_LAST_DAY + 1) * _MS_PER_DAY - 1
# Numbers without a unit from this, 1973-03-03, to LAST_DATED_MS are milliseconds.
_LEAST_PLAIN_MS = 10**11
_NUMBER = re.compile(r"-?[0-9]+")
_MONTH = re.compile(r"([0-9]{4})-([0-9]{2})")
_WEEK = re.compile(r"[0-9]{4}-?W[0-9]{2}")
_DATE_DIGITS = re.compile(r"(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])")
_MONTH_DIGITS = re.compile(r"(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])")


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
    if len(text) <= 20 and (int(text) == 0 or _LEAST_PLAIN_MS <= int(text) <= LAST_DATED_MS):
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


def format_instant(timestamp_ms: int) -> str:
    """Format a timestamp as ISO 8601 in UTC with milliseconds, or as a number with its unit outside the years 0 to 9999."""
    days, ms_of_day = divmod(timestamp_ms, _MS_PER_DAY)
    if not _FIRST_DAY <= days <= _LAST_DAY:
        return f"{timestamp_ms}ms"
    seconds, ms = divmod(ms_of_day, 1000)
    return f"{format_day(days)}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{ms:03}Z"


def format_day(days: int) -> str:
    """Format a day, counted from 1970-01-01, as YYYY-MM-DD of the Gregorian calendar."""
    era, day = divmod(days + _DAYS_TO_1970, _DAYS_IN_400_YEARS)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day_of_year = day - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153
    day_of_month = day_of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return f"{era * 400 + year + (month <= 2):04}-{month:02}-{day_of_month:02}"


class InstantFormatter:
    """Formats timestamps that are mostly in order: the text of the last second is kept for the next one."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second = -1
        self._text = "1969-12-31T23:59:59"

    def format(self, timestamp_ms: int) -> str:
        """Format a timestamp as format_instant does."""
        second, ms = divmod(timestamp_ms, 1000)
        if second != self._second:
            text = format_instant(timestamp_ms)
            if not text.endswith("Z"):
                return text
            self._second, self._text = second, text[:-5]
        return f"{self._text}.{ms:03}Z"
