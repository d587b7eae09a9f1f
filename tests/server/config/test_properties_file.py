"""Protects the reading of properties files: every text means what it means to Java, judged by javaproperties."""

from __future__ import annotations

import javaproperties
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.server.config.properties_file import PropertiesError, parse_properties

PIECES = ["a", "b.c", "=", ":", " ", "\t", "\f", "\\", "\\\\", "\n", "\r", "\r\n", "#", "!", "\\u00e9", "\\u", "é", "\\n", "1"]


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_it_reads_as_java_does(text: str) -> None:
    data = text.encode("latin-1")
    try:
        expected = list(javaproperties.parse(data))
    except javaproperties.InvalidUEscapeError:
        with pytest.raises(PropertiesError):
            parse_properties(data)
        return
    pairs = [(item.key, item.value) for item in expected if isinstance(item, javaproperties.KeyValue)]
    # Of a line that is nothing but a backslash Java makes an empty key, javaproperties none; no key of Kafka is empty.
    found = [(key, value) for key, value, _ in parse_properties(data)]
    assert [pair for pair in found if pair != ("", "")] == [pair for pair in pairs if pair != ("", "")]


def test_a_key_knows_its_line() -> None:
    data = b"# head\n\na = 1\\\n  2\nb: x\n"
    assert [tuple(item) for item in parse_properties(data)] == [("a", "12", 3), ("b", "x", 5)]
