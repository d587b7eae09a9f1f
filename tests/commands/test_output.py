"""Protects where output goes and what ends a command: each end has its exit code and, where it is a fault, one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.commands.client_options import ClientLog
from kcli.commands.output import CannotRun, ReaderGone, guarded, print_text, use_colour, write_out
from kcli.log.report_line import Line, WarningLine
from tests.conftest import ROOT


def raising(error: BaseException) -> Callable[[], int]:
    def run() -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "reported"),
    [
        (CannotRun("name what to show"), 2, "kcli: name what to show\n"),
        (KeyboardInterrupt(), 130, ""),
        (PermissionError(13, "Permission denied", "/some/file"), 2, "kcli: /some/file: Permission denied\n"),
        (OSError("no errno"), 2, "kcli: input: no errno\n"),
        (MemoryError(), 2, "kcli: out of memory; give the process more, or select less with --offset or --limit\n"),
    ],
)
def test_what_ends_a_command(error: BaseException, code: int, reported: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A sentence each, no traceback."""
    assert guarded(raising(error)) == code
    assert capfd.readouterr() == ("", reported)


@pytest.mark.parametrize("code", [0, 1, 2])
def test_its_own_code(code: int) -> None:
    """A command that ends by itself says how."""
    assert guarded(lambda: code) == code


@pytest.fixture
def stdout_to() -> Callable[[int], None]:
    """Points stdout to another descriptor, and back at the end."""
    kept = os.dup(1)
    yield lambda fd: os.dup2(fd, 1)
    os.dup2(kept, 1)
    os.close(kept)


def test_a_reader_that_is_gone(stdout_to: Callable[[int], None], capfd: pytest.CaptureFixture[str]) -> None:
    """Is no error, says nothing, and leaves a stdout that can be flushed."""
    reading, writing = os.pipe()
    os.close(reading)
    stdout_to(writing)
    os.close(writing)
    with pytest.raises(ReaderGone):
        write_out(b"x")
    assert guarded(lambda: print_text("line") or 1) == 0
    os.write(1, b"goes nowhere")
    assert capfd.readouterr().err == ""


def test_a_stdout_that_is_full(stdout_to: Callable[[int], None]) -> None:
    """Cannot be written, says the sentence; the error is not one of a file that is read."""
    full = os.open("/dev/full", os.O_WRONLY)
    stdout_to(full)
    os.close(full)
    with pytest.raises(CannotRun, match="stdout cannot be written: No space left on device"):
        write_out(b"x")


def test_all_bytes_are_written(stdout_to: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Though the system takes a few at a time."""
    file = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    stdout_to(file)
    os.close(file)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    write_out(memoryview(b"0123456789"))
    write_out(b"")
    print_text("ä\udcff")
    print_text("ends already\n")
    assert (tmp_path / "out").read_bytes() == b"0123456789\xc3\xa4\xff\nends already\n"


@pytest.mark.parametrize(("no_colour", "term", "expected"), [("", "xterm", True), ("1", "xterm", False), ("", "dumb", False)])
def test_colours(
    no_colour: str, term: str, expected: bool, monkeypatch: pytest.MonkeyPatch, stdout_to: Callable[[int], None]
) -> None:
    """Only on a terminal that may show them; never in a pipe."""
    monkeypatch.setenv("NO_COLOR", no_colour)
    monkeypatch.setenv("TERM", term)
    reading, writing = os.pipe()
    stdout_to(writing)
    assert not use_colour()
    parent, terminal = os.openpty()
    stdout_to(terminal)
    assert use_colour() == expected
    for fd in (reading, writing, parent, terminal):
        os.close(fd)


def test_an_interrupt_in_a_callback_of_the_interpreter_is_not_lost() -> None:
    """Python ignores exceptions of such callbacks, as those of its import locks: the command would go on till its timeout."""
    program = """
import sys, threading, weakref
from kcli.commands.output import guarded

class Referred:
    pass

def interrupted(_reference):
    raise KeyboardInterrupt

def run():
    referred = Referred()
    reference = weakref.ref(referred, interrupted)
    del referred
    threading.Event().wait(60)
    return 0

sys.exit(guarded(run))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_command_reports_what_its_client_warns_of(capfd: pytest.CaptureFixture[str]) -> None:
    """Not what is normal, such as a new fetch session after the restart of a broker; connections are reported otherwise."""
    log = ClientLog()
    for line in ("this", WarningLine("that"), Line("as always"), WarningLine("a connection", peer="127.0.0.1:9092")):
        log(line)
    assert capfd.readouterr() == ("", "kcli: this\nkcli: that\n")
