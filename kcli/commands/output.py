"""The output of commands: results on stdout, everything else on stderr; colours only on terminals.

exit code  meaning
---------  ----------------------------------------------------------------------
0          done, no damage
1          done, but data is damaged, or there are findings; or no topic or group has
           the name, and a message on stderr suggests similar names; or the cluster
           refused the request, for example because a topic exists already
2          could not run: wrong options, nothing to read, no permission; or a named path
           is missing or cannot be opened (the other paths are done); or no broker
           answers
3          done, no damage, but offsets are missing (verify and repair)
128 + N    ended by signal N: 130 interrupted, 143 terminated, 129 hung up. The command ends in order: a member
           leaves its group, records that were read are sent
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident, start_new_thread  # `threading` takes a millisecond to import
from collections.abc import Callable

EXIT_OK = 0
EXIT_FINDINGS = 1
EXIT_CANNOT_RUN = 2
EXIT_HOLES = 3
EXIT_SIGNAL = 128
EXIT_INTERRUPTED = EXIT_SIGNAL + 2
# After an interrupt that the interpreter has ignored, until the next one.
AGAIN_S = 0.01


def exit_code(*, is_sound: bool, all_opened: bool) -> int:
    """Return the exit code of a finished run.

    `all_opened` is False if a path of the command line is missing or cannot be opened; this has priority over findings.
    """
    if not all_opened:
        return EXIT_CANNOT_RUN
    return EXIT_OK if is_sound else EXIT_FINDINGS


class CannotRun(Exception):
    """The command cannot run; each argument is a sentence for the user, printed on a line of its own."""

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: the command ends as after an interrupt."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class ReaderGone(Exception):
    """The reader of stdout closed the pipe. This is not an OSError: an OSError is reported with the name of a file."""


def print_message(message: str) -> None:
    """Print one sentence on stderr; control characters are escaped, because it may contain a path."""
    if not message.isprintable():
        from kcli.inspect.renderers.terminal_text import escape

        message = escape(message)
    sys.stderr.write(f"kcli: {message}\n")


def write_out(data: memoryview | bytes) -> None:
    """Write all bytes to stdout, without Python's buffer.

    Raises ReaderGone if the pipe is closed, CannotRun if the bytes cannot be written (a full disk).
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
    """Return True if stdout (1) or stderr (2) is a terminal."""
    return os.isatty(stream)


def use_colour(stream: int = 1) -> bool:
    """Return True if stdout (1) or stderr (2) is a terminal that may show colours (NO_COLOR unset, TERM not dumb)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def guarded(run: Callable[[], int]) -> int:
    """Run a command and return its exit code; an error is printed as a sentence, without a traceback.

    A closed pipe is not an error: the reader does not want more. An interrupt ends it wherever it comes.
    """
    hook, sys.unraisablehook = sys.unraisablehook, _unraisable
    handled = _handle_signals()
    try:
        return run()
    except CannotRun as error:
        for sentence in error.args:
            print_message(str(sentence))
        return EXIT_CANNOT_RUN
    except (ReaderGone, BrokenPipeError):
        # The interpreter flushes stdout when it exits; with /dev/null that cannot fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_OK
    except Terminated as signal:
        return EXIT_SIGNAL + signal.number
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        print_message(f"{error.filename or 'input'}: {error.strerror or error}")
        return EXIT_CANNOT_RUN
    except MemoryError:
        print_message("out of memory; give the process more, or select less with --offset or --limit")
        return EXIT_CANNOT_RUN
    except Exception as error:
        if os.environ.get("KCLI_TRACEBACK"):
            raise
        print_message(
            f"a fault in kcli itself: {type(error).__name__}: {error}; please report it with what KCLI_TRACEBACK=1 prints"
        )
        return EXIT_CANNOT_RUN
    finally:
        sys.unraisablehook = hook
        _set_default(handled)


def _handle_signals() -> list[int]:
    """Have SIGTERM and SIGHUP raise Terminated, unless the parent process ignores them (nohup); return which do."""
    import _signal  # type: ignore[import-not-found]  # `signal` makes its enumerations, which takes 0.4 ms

    def end(number: int, frame: object) -> None:
        raise Terminated(number)

    found: list[int] = [number for number in (_signal.SIGTERM, _signal.SIGHUP) if _signal.getsignal(number) == _signal.SIG_DFL]
    try:
        for number in found:
            _signal.signal(number, end)
    except ValueError:  # another thread than the main one
        return []
    return found


def _set_default(numbers: list[int]) -> None:
    import _signal

    for number in numbers:
        _signal.signal(number, _signal.SIG_DFL)


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    """Deliver an interrupt again that came in a callback of the interpreter, which ignores exceptions.

    Not here: this is a part of the callback.
    """
    if found.exc_type is not None and issubclass(found.exc_type, KeyboardInterrupt):
        start_new_thread(_interrupt_again, (get_ident(),))  # interrupts come on the main thread
    else:
        sys.__unraisablehook__(found)


def _interrupt_again(thread_id: int) -> None:
    from signal import SIGINT, pthread_kill

    time.sleep(AGAIN_S)
    pthread_kill(thread_id, SIGINT)  # unlike _thread.interrupt_main, it ends a wait for a lock
