"""Points in time as people write them and as Kafka stores them: milliseconds since 1970 in UTC.

    written                          means
    -------------------------------  ------------------------------------------------------------------
    1700000000000                    ms since 1970
    2023-11-14                       the start of that day in UTC
    2023-11-14T22:13:20.5            that instant in UTC; a blank may stand for the T
    2023-11-14T22:13:20Z, ...+02:00  that instant in its own zone

A bound finer than a millisecond is rounded up, which leaves half-open ranges of whole milliseconds exact.
"""

from __future__ import annotations

from kcli.format.primitives import INT64_MAX

_MS_PER_DAY = 86_400_000
# The days from 1 March 0000 to 1970, and in 400 years; years that begin in March end with the leap day.
_DAYS_TO_1970 = 719_468
_DAYS_IN_400_YEARS = 146_097
# 0000-01-01 and 9999-12-31.
_FIRST_DAY = -719_528
_LAST_DAY = 2_932_896


def parse_instant(text: str) -> int:
    """One point in time as in the table above -> ms since 1970. Raises ValueError with a sentence that quotes it."""
    if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit():
        return _parse_ms(text)
    from datetime import UTC, datetime, timedelta  # late: most runs need no time, and it costs 2 ms

    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no point in time: write ISO 8601 (2023-11-14, 2023-11-14T22:13:20, with Z or +02:00 for "
            "another zone than UTC) or milliseconds since 1970"
        ) from None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    microseconds = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return -(-microseconds // 1000)


def _parse_ms(text: str) -> int:
    if (
        len(text) == 8
        and text.isdigit()
        and "19" <= text[:2] <= "20"
        and "01" <= text[4:6] <= "12"
        and "01" <= text[6:] <= "31"
    ):
        raise ValueError(
            f"{text!r} may be a date or milliseconds since 1970: write {text[:4]}-{text[4:6]}-{text[6:]} for the date"
        )
    if len(text) > 20 or abs(int(text)) > INT64_MAX:
        raise ValueError(f"{text!r} is beyond the timestamps that Kafka has, milliseconds in 64 bits")
    return int(text)


def format_instant(timestamp_ms: int) -> str:
    """A timestamp in ISO 8601, UTC, with milliseconds; outside the years 0 to 9999 the number with its unit."""
    days, ms_of_day = divmod(timestamp_ms, _MS_PER_DAY)
    if not _FIRST_DAY <= days <= _LAST_DAY:
        return f"{timestamp_ms}ms"
    seconds, ms = divmod(ms_of_day, 1000)
    return f"{format_day(days)}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{ms:03}Z"


def format_day(days: int) -> str:
    """A day, counted from 1970-01-01, as YYYY-MM-DD of the Gregorian calendar."""
    era, day = divmod(days + _DAYS_TO_1970, _DAYS_IN_400_YEARS)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day_of_year = day - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153
    day_of_month = day_of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return f"{era * 400 + year + (month <= 2):04}-{month:02}-{day_of_month:02}"


class InstantFormatter:
    """Formats timestamps that come mostly in order: the text of one second is kept for those that share it."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second = -1
        self._text = "1969-12-31T23:59:59"

    def format(self, timestamp_ms: int) -> str:
        """As format_instant."""
        second, ms = divmod(timestamp_ms, 1000)
        if second != self._second:
            text = format_instant(timestamp_ms)
            if not text.endswith("Z"):
                return text
            self._second, self._text = second, text[:-5]
        return f"{self._text}.{ms:03}Z"
