"""Options for selecting: what they mean, and the sentence that each mistake is answered with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.selecting.selection import HeaderMatch, Range, Selection, SelectionError, parse_selection

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("5..10", Range(5, 10)),
        ("5..", Range(5, None)),
        ("..10", Range(None, 10)),
        ("7", Range(7, 8)),
        ("0..1", Range(0, 1)),
    ],
)
def test_offsets(typed: str, meant: Range) -> None:
    """Ranges are half-open, either end may be missing, one offset stands for itself."""
    assert parse_selection(offset=typed).offsets == meant


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("1700000000000..1700000000001", Range(1_700_000_000_000, 1_700_000_000_001)),
        ("2023-11-14..2023-11-15", Range(1_699_920_000_000, 1_700_092_800_000)),
        ("2023-11-14T22:13:20..", Range(1_700_000_000_000, None)),
        ("2023-11-14T22:13:20Z..", Range(1_700_000_000_000, None)),
        ("2023-11-14T22:13:20+02:00..", Range(1_700_000_000_000 - 2 * HOUR_MS, None)),
        ("..2023-11-14 22:13:20.5", Range(None, 1_700_000_000_500)),
        ("2023-11-14T22:13:20.0001..", Range(1_700_000_000_001, None)),
        ("-5ms..", Range(-5, None)),
        ("0..2030ms", Range(0, 2030)),
        ("2023-11-14..2023-11-14", Range(1_699_920_000_000, 1_700_006_400_000)),
        ("2023-11-14..2023-11-14T01:00", Range(1_699_920_000_000, 1_699_920_000_000 + HOUR_MS)),
        ("2023-11-14", Range(1_699_920_000_000, 1_700_006_400_000)),
        (" 2023-11-14 .. ", Range(1_699_920_000_000, None)),
        ("2024-02", Range(1_706_745_600_000, 1_709_251_200_000)),
        ("..2023-12", Range(None, 1_704_067_200_000)),
        ("2023-W46", Range(1_699_833_600_000, 1_700_438_400_000)),
        ("2023-W46-2", Range(1_699_920_000_000, 1_700_006_400_000)),
        ("100000000000..253402300799999", Range(10**11, 253_402_300_799_999)),
    ],
)
def test_times(typed: str, meant: Range) -> None:
    """ISO 8601 in UTC unless it names a zone, or milliseconds; what is finer than a millisecond is rounded up.

    A day, a week or a month is all of it: from its first ms as the start, to its last ms as the end, both alone.
    """
    assert parse_selection(time=typed).times == meant


def test_the_others() -> None:
    """Keys and headers are bytes as typed, what is not UTF-8 included; numbers may be text or numbers."""
    found = parse_selection(
        keys=["ключ", "\udcff"], headers=["a", "b=c=d", "e="], producer_ids=["5", 6], limit="3", tail=4, transactional=True
    )
    assert found.keys == ("ключ".encode(), b"\xff")
    assert found.headers == (HeaderMatch(b"a"), HeaderMatch(b"b", b"c=d"), HeaderMatch(b"e", b""))
    assert (found.producer_ids, found.limit, found.tail, found.transactional) == ((5, 6), 3, 4, True)


def test_nothing_asked_for_is_everything() -> None:
    """Without options, and with the default isolation, all is selected."""
    assert parse_selection().is_everything
    assert parse_selection(isolation="read_uncommitted").is_everything
    assert not parse_selection(limit="1").is_everything


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"offset": "5..5"}, "--offset 5..5: the range is empty"),
        ({"offset": "9..5"}, "--offset 9..5: the range is empty"),
        ({"offset": ".."}, "at least one end"),
        ({"offset": "1..2..3"}, "at least one end"),
        ({"offset": "-1.."}, "'-1' is not an offset"),
        ({"offset": "x"}, "'x' is not an offset"),
        ({"offset": "٣.."}, "is not an offset"),
        ({"offset": f"{2**63}.."}, "is not an offset"),
        ({"time": "2023-11-14T00:00"}, "write a range, A..B, A.. or ..B; only a day, a week or a month may be alone"),
        ({"time": "1700000000000"}, "write a range"),
        ({"time": "yesterday.."}, "'yesterday' is not a time: write ISO 8601"),
        ({"time": "2023-13.."}, "'2023-13' is not a time"),
        ({"time": "2023-11-31"}, "'2023-11-31' is not a time"),
        ({"time": "2030.."}, "--time 2030..: '2030' is not milliseconds since 1970"),
        (
            {"time": "..2030"},
            "write 2030-01-01 for the beginning of that year, 2030-12 for its last month, 2030ms for that number",
        ),
        ({"time": "202311.."}, "write 2023-11 for the month"),
        ({"time": "20231114"}, "write 2023-11-14 for the day"),
        ({"time": "1700000000.."}, "write 1700000000000 if these are seconds"),
        ({"time": "1700000000000000.."}, "write 1700000000000 if these are microseconds"),
        ({"time": "1700000000000000000.."}, "write 1700000000000 if these are nanoseconds"),
        ({"time": "-5.."}, "or -5ms for that number of milliseconds"),
        ({"time": "5.."}, "or 5ms for that number of milliseconds"),
        ({"time": "99999999999999999999.."}, "is not milliseconds"),
        ({"time": "99999999999999999999ms.."}, "is not a timestamp of Kafka: it does not fit into 64 bits"),
        ({"time": "2023-11-15..2023-11-14"}, "the range is empty"),
        ({"time": "2023-11-14T01:00..2023-11-14T01:00"}, "the range is empty"),
        ({"producer_ids": ["x"]}, "--producer-id x: write a whole number"),
        ({"limit": "-1"}, "--limit -1: write a whole number"),
        ({"tail": "1e3"}, "--tail 1e3: write a whole number"),
        ({"tail": str(10**12)}, "--tail"),
        ({"isolation": "serializable"}, "--isolation must be read_committed or read_uncommitted"),
        ({"isolation": "read_committed", "control": True}, "exclude each other"),
        ({"isolation": "read_committed", "aborted": True}, "exclude each other"),
        ({"control": True, "aborted": True}, "exclude each other"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(options: dict, sentence: str) -> None:
    """Each names the option, or what is wrong with its value."""
    with pytest.raises(SelectionError, match=r".") as raised:
        parse_selection(**options)
    assert sentence in str(raised.value)


@given(st.text(max_size=30), st.sampled_from(["offset", "time", "limit", "tail"]))
def test_no_text_makes_it_fall(typed: str, option: str) -> None:
    """Any text is understood or answered with SelectionError, never with another exception."""
    try:
        found = parse_selection(**{option: typed})
    except SelectionError:
        return
    assert isinstance(found, Selection)
