"""Errors of Spark as one sentence of kcli.

error of Spark, Hadoop or a worker                        sentence
--------------------------------------------------------  ------------------------------------------------------------
an error of kcli, from a worker or the planning worker    its message, which contains the file, byte or option
any other exception in a Python worker                    the last line of the worker's traceback
the worker process ended                                  that, and what to do
"already exists. Set mode as ...", FileAlreadyExists      the output already exists, and the modes of --mode
"Mkdirs failed", a parent that is a file, no permission,  cannot write the output: the reason
  read-only, no space
no class or file system for a scheme, no connection       cannot reach the output: the reason
"Job aborted due to stage failure: ... : reason"          the reason, without names of Java classes
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from kcli.spark.parquet_output import OutputError, already_exists
from kcli.spark.read_options import OptionError
from kcli.spark.run_commit import RunError

Result = TypeVar("Result")

_OWN_ERROR = re.compile(r"kcli\.[\w.]+\.(\w+Error): ([^\n]+)")
_DAMAGE = "CorruptLogError"
# A traceback of Python; the exception is its first line that is not indented.
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n|\n)+(?!\s)([\w.]+(?:: [^\n]+)?)")
_WORKER_ENDED = re.compile(r"Python worker exited unexpectedly|Python worker failed to connect back|ExecutorLostFailure")
# The message of the function raise_error.
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
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
    """An export failed, because of corrupt bytes if `is_damage` is True; the message is a sentence."""

    def __init__(self, message: str, *, is_damage: bool = False) -> None:
        super().__init__(message)
        self.is_damage = is_damage


def translated(act: Callable[[], Result], out: str | None = None) -> Result:
    """Return the result of `act`, which uses Spark and may write to `out`. Raises ExportError with one sentence."""
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
    """Return one sentence for the text of an error that is not one of kcli; `out` is the output that was written, if any."""
    worker = _TRACEBACK.search(text)
    if worker is not None:
        return f"a Python worker of Spark failed: {worker[1].strip()}"
    raised = _RAISED.search(text)
    if raised is not None:
        return raised[1].strip()
    if _WORKER_ENDED.search(text):
        return (
            "a Python worker of Spark ended before the end of its task, perhaps for lack of memory; run the job again with "
            "fewer cores"
        )
    if out is not None:
        output_error = _output_error(text, out)
        if output_error is not None:
            return output_error
    return _reason(text)


def _output_error(text: str, out: str) -> str | None:
    """Return the sentence for an error of the output, None for another error."""
    if re.search(r"PATH_ALREADY_EXISTS|FileAlreadyExistsException|already exists\. Set mode as", text):
        return str(already_exists(out))
    for pattern, reason in _OUTPUT_FAULTS:
        found = pattern.search(text)
        if found is not None:
            why = reason.format(found=found[1] if found.groups() else "")
            return f"cannot write the output {out}: {why}; choose another output, or correct that"
    for pattern, reason in _UNREACHABLE:
        if pattern.search(text):
            hint = "; --conf spark.jars.packages=... adds it" if "jar" in reason else ""
            return f"cannot reach the output {out}: {reason}{hint}"
    return None


def _reason(text: str) -> str:
    """Return the first line that is not empty, without Java classes, stages and tasks, Spark's error names and SQL states."""
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
