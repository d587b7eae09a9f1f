"""Protects the buffer of lines: every byte goes out once, in its order, in large pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.inspect.dumping.text_buffer import TextBuffer


@given(st.lists(st.binary(max_size=30) | st.none(), max_size=30), st.integers(1, 20))
def test_nothing_is_lost_or_moved(pieces: list[bytes | None], size: int) -> None:
    """Pieces of any size through a buffer of any size; None is a flush."""
    out: list[bytes] = []
    buffer = TextBuffer(lambda view: out.append(bytes(view)), size)
    for piece in pieces:
        if piece is None:
            buffer.flush()
            assert buffer.position == 0
        else:
            buffer.put(piece)
    buffer.flush()
    assert b"".join(out) == b"".join(piece or b"" for piece in pieces)
    assert b"" not in out


def test_it_writes_only_when_it_must() -> None:
    """Nothing goes out before the buffer is full; a piece larger than the buffer goes by itself, behind what waits."""
    out: list[bytes] = []
    buffer = TextBuffer(lambda view: out.append(bytes(view)), 10)
    buffer.put(b"12345")
    buffer.put(b"67890")
    assert out == []
    buffer.put(b"x")
    assert out == [b"1234567890"]
    buffer.put(b"longer than ten bytes")
    assert out[1:] == [b"x", b"longer than ten bytes"]
    buffer.flush()
    assert len(out) == 3


def test_what_compiled_code_wrote_goes_out_too() -> None:
    """`position` says how far the memory is filled; compiled code moves it, as putting does."""
    out: list[bytes] = []
    buffer = TextBuffer(lambda view: out.append(bytes(view)), 10)
    buffer.put(b"abcxx")
    buffer.position = 3
    buffer.put(b"def")
    buffer.flush()
    assert out == [b"abcdef"]


def test_it_is_flushed_for_a_line_only_if_that_makes_room() -> None:
    """A buffer that is at most half full is not written: the line that did not fit is too long for it."""
    out: list[bytes] = []
    buffer = TextBuffer(lambda view: out.append(bytes(view)), 10)
    buffer.put(b"12345")
    assert not buffer.flush_if_half_full() and out == []
    buffer.put(b"6")
    assert buffer.flush_if_half_full() and out == [b"123456"]


def test_a_writer_that_fails() -> None:
    """Its error comes out, and what it did not take is not written again."""

    def fail(view: memoryview) -> None:
        raise BrokenPipeError

    buffer = TextBuffer(fail, 4)
    buffer.put(b"1234")
    with pytest.raises(BrokenPipeError):
        buffer.put(b"5")
    buffer.flush()
