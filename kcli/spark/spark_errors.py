"""Errors of Spark as one sentence of kcli.

what Spark, Hadoop or a worker says                       the sentence
--------------------------------------------------------  ------------------------------------------------------------
an error of kcli, from a worker or the planning worker    that error's own: it names the file, byte or option
any other exception in a Python worker                    the last line of the worker's traceback
the worker process ended                                  that, and what to do
"already exists. Set mode as ...", FileAlreadyExists      the output already exists, and the modes of --mode
"Mkdirs failed", a parent that is a file, no permission,  the output cannot be written: the reason
  read-only, no space
no class or file system for a scheme, no connection       the output cannot be reached: the reason
"Job aborted due to stage failure: ... : reason"          the reason, without classes of Java
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kcli.spark.options import OptionError
from kcli.spark.parquet_output import OutputError, already_exists
from kcli.spark.run_commit import RunError

_OWN_ERROR = re.compile(r"kcli\.[\w.]+\.(\w+Error): ([^\n]+)")
_DAMAGE = "CorruptLogError"
# A traceback of Python: its last line is the first one that is not indented.
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n|\n)+(?!\s)([\w.]+(?:: [^\n]+)?)")
_WORKER_ENDED = re.compile(r"Python worker exited unexpectedly|Python worker failed to connect back|ExecutorLostFailure")
_CLASS = re.compile(r"^(?:Caused by: )?(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error|Throwable): ")
_STAGE = re.compile(r"^Job aborted due to stage failure: .*?Lost task [^)]*\)\s*\([^)]*\):\s*")
_OUTPUT_FAULTS = (
    (re.compile(r"Mkdirs failed to create (?:file:)?(\S+)"), "the directory cannot be created"),
    (re.compile(r"Parent path is not a directory: (?:file:)?(\S+)"), "{found} is not a directory"),
    (re.compile(r"Permission denied|AccessControlException|AccessDeniedException"), "permission denied"),
    (re.compile(r"Read-only file system"), "the file system is read-only"),
    (re.compile(r"No space left on device|Disk quota exceeded"), "no space is left"),
)
_UNREACHABLE = (
    (
        re.compile(r"Class org\.apache\.hadoop\.\S+FileSystem not found|No FileSystem for scheme"),
        "Spark has no jar for its scheme",
    ),
    (re.compile(r"ConnectException|UnknownHostException|NoRouteToHost|SocketTimeoutException"), "no connection to its host"),
)


class ExportError(Exception):
    """The export failed for what it was asked or for what it read; `is_damage` tells which. The message is a sentence."""

    def __init__(self, message: str, *, is_damage: bool = False) -> None:
        super().__init__(message)
        self.is_damage = is_damage


def translated(act: Callable[[], Any], out: str | None = None) -> Any:
    """Do something with Spark, which writes to `out` -> what it returns. Raises ExportError with one sentence of kcli."""
    try:
        return act()
    except (OptionError, ExportError):
        raise
    except (OutputError, RunError) as error:
        raise ExportError(str(error)) from None
    except Exception as error:
        text = str(error)
        own = _OWN_ERROR.search(text)
        if own is not None:
            raise ExportError(own[2].strip(), is_damage=own[1] == _DAMAGE) from error
        raise ExportError(sentence(text, out) or type(error).__name__) from error


def sentence(text: str, out: str | None = None) -> str:
    """The sentence of an error's text that is not one of kcli's own errors; `out` is what was being written."""
    worker = _TRACEBACK.search(text)
    if worker is not None:
        return f"a Python worker of Spark failed: {worker[1].strip()}"
    if _WORKER_ENDED.search(text):
        return (
            "a Python worker of Spark ended before its task was done, perhaps for want of memory; run it again with fewer cores"
        )
    if out is not None:
        said = _of_output(text, out)
        if said is not None:
            return said
    return _reason(text)


def _of_output(text: str, out: str) -> str | None:
    """What is wrong with the output; None where the error is of something else."""
    if re.search(r"PATH_ALREADY_EXISTS|FileAlreadyExistsException|already exists\. Set mode as", text):
        return str(already_exists(out))
    for pattern, reason in _OUTPUT_FAULTS:
        found = pattern.search(text)
        if found is not None:
            why = reason.format(found=found[1] if found.groups() else "")
            return f"the output {out} cannot be written: {why}; choose another one, or change that"
    for pattern, reason in _UNREACHABLE:
        if pattern.search(text):
            hint = "; --conf spark.jars.packages=... adds it" if "jar" in reason else ""
            return f"the output {out} cannot be reached: {reason}{hint}"
    return None


def _reason(text: str) -> str:
    """The first line that says something, without classes of Java, stages and tasks, Spark's error names and SQL states."""
    lines = [line.strip(" :") for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        lines = lines[1:]
    found = lines[0] if lines else ""
    before = None
    while before != found:
        before = found
        for pattern in (_CLASS, _STAGE):
            found = pattern.sub("", found)
    return re.sub(r"^\[[A-Z_.]+\]\s*|\s*SQLSTATE: \w+$", "", found)
