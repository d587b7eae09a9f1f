"""--output text: no payload drives the terminal, lines keep to its width, nothing is shown as something else."""

from __future__ import annotations

import re
from pathlib import Path
from unicodedata import category

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format.records import Header
from kcli.inspect.dumping.dump import DumpOptions, dump
from kcli.inspect.renderers.human_text import HumanText
from kcli.inspect.renderers.terminal_text import cut, escape, show, width
from kcli.log.disk.os_disk import OsDisk
from kcli.selecting.selection import Selection
from tests.conftest import every_log_set
from tests.log_builder import PartitionBuilder

COLOURS = re.compile(r"\x1b\[[0-9]+m")
NASTY = st.sampled_from(
    [b"\x1b[31mred", b"\x9b31m", b"\xc2\x9b31m", b"\r\n", b"\x07", b"\x7f", "\u202e\u2066".encode(), b"\xff\xfe", b"a\xffb" * 9]
)
BYTES = st.binary(max_size=200) | st.text(max_size=80).map(lambda text: text.encode("utf-8", "ignore")) | NASTY


def text_of(*paths: Path, columns: int | None = None, colour: bool = False) -> str:
    """Dump paths as text."""
    out = bytearray()
    renderer = HumanText(out.extend, columns=columns, colour=colour)
    dump([str(path) for path in paths], Selection(), renderer, DumpOptions(), OsDisk(), report=lambda line: None)
    return out.decode("utf-8")


@given(BYTES | st.none(), st.none() | st.integers(1, 100))
def test_shown_bytes_are_harmless(data: bytes | None, columns: int | None) -> None:
    """Only printable characters come out, and no more columns than asked for."""
    text = show(data, columns)
    assert text.isprintable()
    assert not [char for char in text if category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs")]
    if columns is not None and columns >= len("<empty>"):
        assert width(text) <= columns


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (None, "<null>"),
        (b"", "<empty>"),
        (b"plain [bold]", "plain [bold]"),
        ("ключ-鍵".encode(), "ключ-鍵"),
        (b"a\nb\tc\x00", "a\\nb\\tc\\0"),
        (b"\x1b[2J", "\\x1b[2J"),
        ("\u202eabc".encode(), "\\u202eabc"),
        (b"mostly text \xff", "mostly text \\xff"),
        (b"\x00\x01\xfe\xff", "0x0001feff"),
    ],
)
def test_forms(data: bytes | None, shown: str) -> None:
    """The table of terminal_text."""
    assert show(data) == shown


def test_cut_at_characters() -> None:
    """What is cut keeps whole characters, counts wide ones twice, and tells the size; the rest is not looked at."""
    assert show("鍵".encode() * 100, 20) == "鍵" * 6 + "…(300 B)"
    assert show(b"x" * 100, 9) == "x" * 8 + "…"
    assert show(b"x" * 100, 20) == "x" * 12 + "…(100 B)"
    assert show("é".encode() * 50, 21) == "é" * 13 + "…(100 B)"
    assert cut("鍵a", 2) == "鍵" and cut("鍵a", 1) == ""
    assert escape("a\u0301") == "a\u0301" and width("a\u0301") == 1


@settings(max_examples=60)
@given(
    records=st.lists(st.tuples(BYTES | st.none(), BYTES | st.none()), min_size=1, max_size=6),
    headers=st.lists(st.tuples(BYTES, BYTES | st.none()), max_size=5),
    columns=st.integers(80, 160),
    colour=st.booleans(),
)
def test_lines_fit_the_terminal(
    tmp_path_factory: pytest.TempPathFactory, records: list, headers: list, columns: int, colour: bool
) -> None:
    """Each record is one line within the terminal's width; colours, and no other sequence, are ours."""
    log = PartitionBuilder(tmp_path_factory.mktemp("text") / "topic-0")
    log.append(records, headers=tuple(Header(*pair) for pair in headers))
    log.flush()
    text = text_of(log.path(".log"), columns=columns, colour=colour)
    plain = COLOURS.sub("", text) if colour else text
    assert all(line.isprintable() for line in plain.split("\n"))
    lines = plain.rstrip("\n").split("\n")[2:]
    assert len(lines) == len(records)
    assert [line.split()[0] for line in lines] == [str(offset) for offset in range(len(records))]
    assert max(map(width, lines)) <= columns


def test_whole_values_in_a_pipe(tmp_path: Path) -> None:
    """Without a terminal nothing is cut."""
    log = PartitionBuilder(tmp_path / "topic-0")
    log.append([(b"k", b"v" * 5000)])
    log.flush()
    assert "v" * 5000 in text_of(log.path(".log"))


def test_damage_is_red_and_in_place(tmp_path: Path) -> None:
    """Damage stands where it was met, and the last line counts it."""
    log = PartitionBuilder(tmp_path / "topic-0")
    log.append([(b"a", b"1")])
    size = len(log.log)
    log.log += b"garbage, long enough to be no batch"
    log.append([(b"b", b"2")])
    log.flush()
    text = text_of(log.path(".log"), colour=True)
    assert f"\x1b[31mDAMAGED at bytes [{size}, {size + 35})" in text
    assert text.index("DAMAGED") < text.index("batch 1  ")
    assert "1 damaged place" in text.split("\n")[-2]


def test_every_file_that_kafka_wrote() -> None:
    """Both directories are shown without a control character, an empty time or a decoding error."""
    for given_set in every_log_set():
        text = text_of(given_set.data, columns=120)
        assert all(line.isprintable() for line in text.split("\n"))
        assert "DAMAGED" not in text
        assert len(text) > 10_000
