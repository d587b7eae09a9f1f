"""Protects the text that Kafka's tools print: Java's decoding of bytes, Jackson's strings, Java's doubles.

The expected values were read from a JVM.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format.java_text import decode_utf8, double_text, quote


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        ("é€😀".encode(), "é€😀"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xed\xa0b", "\ufffdb"),
        (b"\xed\xa0\x80\xed\xbf\xbf", "\ufffd\ufffd"),
        (b"\xed\x80", "\ufffd"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\xe0\x80a", "\ufffd\ufffda"),
        (b"\xf0\x90\x80", "\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
        (b"\xc1\xbf", "\ufffd\ufffd"),
    ],
)
def test_bytes_become_the_text_that_java_makes_of_them(data: bytes, text: str) -> None:
    assert decode_utf8(data) == text
    assert decode_utf8(memoryview(data)) == text


@given(st.text())
def test_valid_text_comes_back_as_it_was(text: str) -> None:
    assert decode_utf8(text.encode()) == text


@given(st.binary())
def test_any_bytes_become_text_that_can_be_encoded(data: bytes) -> None:
    decode_utf8(data).encode()


def test_strings_are_quoted_as_jackson_does() -> None:
    assert quote('a"\\/\b\t\n\f\r\x00\x1f\x7fé\u2028😀') == '"a\\"\\\\/\\b\\t\\n\\f\\r\\u0000\\u001F\x7fé\u2028😀"'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (0.00123, "0.00123"),
        (0.000999, "9.99E-4"),
        (9999999.0, "9999999.0"),
        (10000000.0, "1.0E7"),
        (1048576.0, "1048576.0"),
        (-15000000000.0, "-1.5E10"),
        (2e23, "2.0E23"),
        (5e-324, "4.9E-324"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_doubles_are_written_as_java_writes_them(value: float, text: str) -> None:
    assert double_text(value) == text


@given(st.floats(allow_nan=False))
def test_a_double_reads_back_as_the_same(value: float) -> None:
    assert float(double_text(value)) == value
