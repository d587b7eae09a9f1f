"""Runs kcli commands, each in a process of its own with bounds, without a start-up for each: a server that forks.

    with CommandServer() as server:
        run = server.run("verify", path)      # -> Run: exit code, stdout, stderr, peak of memory, seconds

The bounds hold whatever a command does: past `seconds` the kernel's alarm kills it (inside of C code, too), past `megabytes`
of address space an allocation fails, past MOST_OUTPUT_BYTES a write does. The server is this module run as a program; it
has kcli's commands loaded, takes a JSON object a line on stdin and answers with one on stdout.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

SECONDS = 60
MEGABYTES = 1024
MOST_OUTPUT_BYTES = 256 * 1024 * 1024
CRASHED = 70


class Run(NamedTuple):
    """How a command went. `code` is minus the signal that killed it; an exception that came out of it is CRASHED."""

    code: int
    out: bytes
    err: str
    max_rss_bytes: int
    seconds: float

    @property
    def told(self) -> str:
        """All that the user sees."""
        return self.out.decode(errors="replace") + self.err


class CommandServer:
    """Forks a process for each command; to be closed, as a context."""

    def __init__(self) -> None:
        root = Path(__file__).resolve().parents[1]
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.forked_commands"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(root), "KCLI_TRACEBACK": "1"},
        )
        self._scratch = tempfile.TemporaryDirectory(prefix="kcli-commands-")

    def __enter__(self) -> CommandServer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()
        self._scratch.cleanup()

    def run(
        self,
        *words: str | Path,
        seconds: int = SECONDS,
        megabytes: int = MEGABYTES,
        as_root: bool = True,
        cwd: Path | str = "/",
    ) -> Run:
        """Run one command in directory `cwd`; with `as_root=False` modes of files stop it, even where root runs the tests."""
        out, err = Path(self._scratch.name, "out"), Path(self._scratch.name, "err")
        request = {"words": [str(word) for word in words], "out": str(out), "err": str(err)}
        request |= {"seconds": seconds, "megabytes": megabytes, "as_root": as_root}
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        return Run(answer["code"], out.read_bytes(), err.read_text(errors="replace"), answer["rss"], answer["seconds"])


def _respect_modes() -> None:
    """Give up root's capabilities CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: files of mode 0 are then closed to it, too."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, of capabilities 0 to 31 and 32 to 63
    if libc.capget(header, sets) == 0:
        sets[0] &= ~0b110
        libc.capset(header, sets)


def _child(request: dict[str, object], out: int, err: int) -> int:
    from kcli.commands.app import main

    os.dup2(out, 1)
    os.dup2(err, 2)
    megabytes = int(str(request["megabytes"]))
    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_OUTPUT_BYTES, MOST_OUTPUT_BYTES))
    signal.alarm(int(str(request["seconds"])))
    if not request["as_root"]:
        _respect_modes()
    words = request["words"]
    assert isinstance(words, list)
    try:
        code: object = main(words)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        sys.stderr.write(traceback.format_exc())
        code = CRASHED
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else 0 if code is None else 1


def serve() -> None:
    """Answer requests until stdin ends."""
    from kcli.commands.app import COMMANDS, build_parser
    from kcli.format import legacy_message_set  # noqa: F401 - loaded here it need not be loaded by each child

    for command in COMMANDS:
        build_parser(command)
    for line in sys.stdin:
        request = json.loads(line)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        out, err = (os.open(request[name], flags, 0o666) for name in ("out", "err"))
        start = time.monotonic()
        if (pid := os.fork()) == 0:
            code = CRASHED
            try:
                code = _child(request, out, err)
            finally:
                os._exit(code)
        _, status, usage = os.wait4(pid, 0)
        os.close(out)
        os.close(err)
        answer = {
            "code": os.waitstatus_to_exitcode(status),
            "rss": usage.ru_maxrss * 1024,
            "seconds": time.monotonic() - start,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
