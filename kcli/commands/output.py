"""Where commands put what they have: results on stdout, all else on stderr; plain when piped, colours only on terminals.

exit code  meaning
---------  ----------------------------------------------------------------------
0          done, and all was sound
1          done, but something that was read is damaged, or findings were made; or no topic or group
           has a name that was asked for (--topic, --group): a sentence says which may have been meant
2          could not run: wrong options, nothing to read, no permission; or a path that was
           named is missing or cannot be opened (what the other paths name is done all the same)
3          done, and nothing is damaged, but offsets are missing (verify and repair)
130        interrupted
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

EXIT_OK = 0
EXIT_FINDINGS = 1
EXIT_CANNOT_RUN = 2
EXIT_HOLES = 3
EXIT_INTERRUPTED = 130


def exit_code(*, is_sound: bool, all_opened: bool) -> int:
    """Return the exit code of a run that came to its end.

    `all_opened` is False if a path of the command line is missing or cannot be opened: this counts more than findings.
    """
    if not all_opened:
        return EXIT_CANNOT_RUN
    return EXIT_OK if is_sound else EXIT_FINDINGS


class CannotRun(Exception):
    """The command cannot do what it was asked; the message is the sentence that the user reads."""


class ReaderGone(Exception):
    """Nobody reads stdout any more. Not an OSError: those are of the files that are read, and told with their names."""


def tell(message: str) -> None:
    """Print one sentence on stderr, its control characters escaped: it may quote a path."""
    if not message.isprintable():
        from kcli.inspect.renderers.terminal_text import escape

        message = escape(message)
    sys.stderr.write(f"kcli: {message}\n")


def write_out(data: memoryview | bytes) -> None:
    """Write bytes to stdout, all of them, past Python's buffer.

    Raises ReaderGone when nobody reads any more, CannotRun where they cannot be written (a full disk).
    """
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(1, view) :]
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise CannotRun(f"stdout cannot be written: {error.strerror or error}") from error


def print_text(text: str) -> None:
    """Print lines on stdout. Raises as write_out does."""
    write_out((text if text.endswith("\n") else text + "\n").encode("utf-8", "surrogateescape"))


def is_terminal(stream: int = 1) -> bool:
    """True where stdout (1) or stderr (2) is a terminal."""
    return os.isatty(stream)


def use_colour() -> bool:
    """True where stdout is a terminal that may show colours (NO_COLOR unset, TERM not dumb)."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def guarded(run: Callable[[], int]) -> int:
    """Run a command -> its exit code; what ends it early becomes a sentence, never a traceback.

    A closed pipe is no error: whoever read has what they wanted.
    """
    try:
        return run()
    except CannotRun as error:
        tell(str(error))
        return EXIT_CANNOT_RUN
    except (ReaderGone, BrokenPipeError):
        # The interpreter flushes stdout once more at its end; give it a place where that cannot fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        tell(f"{error.filename or 'input'}: {error.strerror or error}")
        return EXIT_CANNOT_RUN
    except MemoryError:
        tell("out of memory; give the process more, or select less with --offset or --limit")
        return EXIT_CANNOT_RUN
    except Exception as error:
        if os.environ.get("KCLI_TRACEBACK"):
            raise
        tell(f"a fault in kcli itself: {type(error).__name__}: {error}; please report it with what KCLI_TRACEBACK=1 prints")
        return EXIT_CANNOT_RUN
