"""Timestamps as text: ISO 8601 in UTC (kcli.selecting.selection parses times).

Dates are formatted without the datetime module, which takes 2 ms to import and has no year 0.
"""

from __future__ import annotations

_MS_PER_DAY = 86_400_000
# The days from 1 March 0000 to 1970, and in 400 years. A year that begins in March ends with the leap day.
_DAYS_TO_1970 = 719_468
_DAYS_IN_400_YEARS = 146_097
# 0000-01-01 and 9999-12-31.
_FIRST_DAY = -719_528
_LAST_DAY = 2_932_896
# The last timestamp that has a date: 9999-12-31T23:59:59.999Z.
LAST_DATED_MS = (_LAST_DAY + 1) * _MS_PER_DAY - 1


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
