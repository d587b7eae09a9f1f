"""Times as text: the same as Python's datetime for all that datetime knows, and a number beyond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.inspect.instants import InstantFormatter, format_day, format_instant
from kcli.selecting.selection import parse_period

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEAST_MS = int((datetime(1, 1, 1, tzinfo=UTC) - EPOCH) / timedelta(milliseconds=1))
MOST_MS = 253_402_300_799_999


@given(st.integers(LEAST_MS, MOST_MS))
def test_as_datetime_writes_it(timestamp_ms: int) -> None:
    """ISO 8601 with milliseconds and Z, and back."""
    text = format_instant(timestamp_ms)
    assert text == (EPOCH + timedelta(milliseconds=timestamp_ms)).strftime("%Y").zfill(4) + (
        EPOCH + timedelta(milliseconds=timestamp_ms)
    ).isoformat(timespec="milliseconds")[4:].replace("+00:00", "Z")
    assert parse_period(text) == (timestamp_ms, timestamp_ms)


@given(st.integers(datetime(1, 1, 1).toordinal(), datetime(9999, 12, 31).toordinal()))
def test_a_day_is_all_of_it(ordinal: int) -> None:
    """From its first ms up to the first ms of the next day, for each day that datetime knows."""
    start = datetime.fromordinal(ordinal).replace(tzinfo=UTC)
    first = (start - EPOCH) // timedelta(milliseconds=1)
    assert parse_period(format_day(first // 86_400_000)) == (first, first + 86_400_000)


@pytest.mark.parametrize("month", ["0001-01", "1970-01", "2023-12", "2024-02", "2100-02", "9999-11"])
def test_a_month_ends_where_the_next_begins(month: str) -> None:
    """Whatever its number of days."""
    year, number = map(int, month.split("-"))
    following = f"{year + number // 12:04}-{number % 12 + 1:02}"
    assert parse_period(month).end_ms == parse_period(following).first_ms
    assert parse_period(month).first_ms == parse_period(f"{month}-01").first_ms


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(1_700_000_000_000, 1_700_000_003_000)))
def test_the_one_that_remembers_agrees(timestamps_ms: list[int]) -> None:
    """InstantFormatter gives what format_instant gives, in any order, for any int64."""
    formatter = InstantFormatter()
    assert [formatter.format(ms) for ms in timestamps_ms] == [format_instant(ms) for ms in timestamps_ms]


def test_beyond_the_calendar() -> None:
    """Years that four digits cannot name are shown as the number."""
    assert format_instant(MOST_MS + 1) == f"{MOST_MS + 1}ms"
    assert format_instant(-(2**63)) == f"{-(2**63)}ms"
