"""Protects decoders of keys and values: Kafka's four by each of their names, one's own, sentences for what is not to be had."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format.primitives import FormatError
from kcli.inspect.dumping.record_contents import KAFKA_DECODERS, KAFKA_PACKAGES, ClassParser, UnknownDecoder, find_decoder


@pytest.mark.parametrize("package", KAFKA_PACKAGES)
@pytest.mark.parametrize("name", KAFKA_DECODERS)
def test_kafkas_names(package: str, name: str) -> None:
    """Of 4.3, of before, and short."""
    assert find_decoder(package + name) is KAFKA_DECODERS[name]


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=9))
def test_integers(small: int, large: int, behind: bytes) -> None:
    """Big-endian, signed; bytes behind them do not count, too few are refused with their number."""
    parser = ClassParser("IntegerDecoder", "LongDecoder")
    key, value = small.to_bytes(4, "big", signed=True), large.to_bytes(8, "big", signed=True)
    assert parser.describe(0, key + behind, value + behind) == (str(small), str(large))
    for size in range(4):
        with pytest.raises(FormatError, match=f"offset 7: IntegerDecoder needs 4 bytes, and there are {size}"):
            parser.describe(7, key[:size], value)


@given(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=40))
def test_any_bytes(key: bytes | None, value: bytes | None) -> None:
    """Strings and bytes take whatever comes; null stays null."""
    shown = ClassParser("StringDecoder", "DefaultDecoder").describe(0, key, value)
    assert shown[1] == (None if value is None else value.hex())
    assert (shown[0] is None) == (key is None)
    assert ClassParser("StringDecoder", "StringDecoder").describe(0, "ä".encode(), b"\xff") == ("ä", "\ufffd")


OWN = """
def upper(data):
    return data.decode().upper()

class Counting:
    def __call__(self, data):
        return len(data)

class Outer:
    @staticmethod
    def inner(data):
        return data[::-1].decode()

def failing(data):
    raise KeyError("no such schema")

class Unmakeable:
    def __init__(self, registry):
        pass

constant = 5
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of one's own, by its name."""
    (tmp_path / "own_decoders.py").write_text(OWN)
    (tmp_path / "broken_decoders.py").write_text("this is no Python")
    (tmp_path / "dying_decoders.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_decoders"
    sys.modules.pop("own_decoders", None)


def test_ones_own(own: str) -> None:
    """A function, a class whose objects are called, something inside of something."""
    assert ClassParser(f"{own}:upper", f"{own}:Counting").describe(0, b"abc", b"12345") == ("ABC", "5")
    assert ClassParser(f"{own}:Outer.inner", "LongDecoder").describe(0, b"abc", None) == ("cba", None)


def test_ones_own_that_fails(own: str) -> None:
    """What it raises is told with the offset and its kind."""
    parser = ClassParser("StringDecoder", f"{own}:failing")
    with pytest.raises(FormatError, match="offset 12: the decoder failed: KeyError: 'no such schema'"):
        parser.describe(12, b"k", b"v")
    with pytest.raises(FormatError, match="offset 5: the value cannot be read: why"):
        parser.describe_unreadable(5, b"k", "why")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("com.example.AvroDecoder", "runs no Java classes.*StringDecoder.*package.module:callable"),
        ("org.apache.kafka.tools.api.Unknown", "runs no Java classes"),
        ("", "runs no Java classes"),
        ("no_such_module:decode", "cannot be loaded: No module named"),
        ("own_decoders:missing", "cannot be loaded: .*missing"),
        ("own_decoders:", "cannot be loaded"),
        (":upper", "cannot be loaded"),
        ("own_decoders:constant", "is not callable"),
        ("own_decoders:Unmakeable", "cannot be loaded: TypeError"),
        ("broken_decoders:decode", "cannot be loaded: SyntaxError"),
        ("dying_decoders:decode", "cannot be loaded: ZeroDivisionError"),
    ],
)
def test_what_is_not_to_be_had(own: str, name: str, told: str) -> None:
    """A sentence that says what is wrong with the name, whatever the module does when it is loaded."""
    with pytest.raises(UnknownDecoder, match=told) as refused:
        find_decoder(name)
    assert str(refused.value).startswith(f"{name}: ")
