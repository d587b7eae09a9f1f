"""What the commands for a running cluster share: actions, connection options, names, tables and JSON, exit codes.

    kcli topics ACTION [OPTIONS]      each action is a parser of its own, with the options of `add_connection`

exit code  meaning
---------  ------------------------------------------------------------------------------------------------
0          done
1          the cluster refused the request, for example because a topic exists; or no topic or group has the name
2          could not run: wrong options, no broker can be reached, TLS or SASL fails, no answer in time, an API that
           is missing
130        interrupted

Text is for people: tables that fit the terminal, with "-" for what is not known or not set. `--output json` is for programs:
one object a line, with all that is known. Both are printed from the same rows (`show`).
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kcli.commands.client_options import (
    BOOTSTRAP_CONTROLLERS,
    ClientLog,
    add_client_options,
    client_errors,
    client_properties,
    common_settings,
)
from kcli.commands.output import EXIT_FINDINGS, EXIT_OK, CannotRun, is_terminal, print_message, print_text
from kcli.inspect.json_text import JsonObject, JsonValue, dump

if TYPE_CHECKING:
    from kcli.client.admin.operation import Operation
    from kcli.client.errors import ClientError

    Actions = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_TIMEOUT_S = 10.0
ACTION_USAGE = "ACTION [OPTIONS]"
_Result = TypeVar("_Result")
_Value = TypeVar("_Value")
_Key = TypeVar("_Key")

Action = Callable[[argparse.Namespace], int]
# The title of a column, and the member of the rows that it shows.
Columns = Sequence[tuple[str, str]]


# ------------------------------------------------------------------------------------------------------------------ options


def add_actions(
    parser: argparse.ArgumentParser, metavar: str = "ACTION"
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    """Let a command have actions, one of which must be named."""
    return parser.add_subparsers(metavar=metavar, dest="action", required=True, prog=parser.prog)


def action_epilog(command: str, about: str = "") -> str:
    """Return the end of the help of a command with actions; `about` is what to know of this one."""
    return f"""\
{about}kcli {command} ACTION --help shows the options of an action.
Exit codes: 0 done; 1 the cluster refused the request, or no topic or group has the name; 2 the command could not
run, or there was no answer in time. docs/administration.md has examples."""


def add_action(
    actions: Actions, name: str, run: Action, text: str, epilog: str = "", takes_controllers: bool = False
) -> argparse.ArgumentParser:
    """Add an action with the options that all of them have; `text` is a line of help.

    `takes_controllers` adds --bootstrap-controller, for actions that controllers answer as well (KIP-919).

    If the cluster refuses something (KafkaError), the action ends with a message and exit code 1.
    """
    description = f"{text[0].upper()}{text[1:]}."
    parser = actions.add_parser(name, help=text, description=description, epilog=epilog or None)
    parser.set_defaults(run_action=_answered(run))
    add_connection(parser, has_names=name == "list", takes_controllers=takes_controllers)
    return parser


def add_connection(parser: argparse.ArgumentParser, has_names: bool = False, takes_controllers: bool = False) -> None:
    """Add the options for the connection and the output."""
    group = add_client_options(parser, "connection and output", takes_controllers)
    group.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        help=f"stop trying after this time (default.api.timeout.ms; {DEFAULT_TIMEOUT_S:g})",
    )
    help_text = "tables, or one JSON object per line" + (", or only names" if has_names else "") + " (text)"
    formats = ["text", "json", "names"] if has_names else ["text", "json"]
    group.add_argument("--output", choices=formats, default="text", help=help_text)


def seconds(text: str) -> float:
    """Return a time of the command line. Raises ArgumentTypeError if it is not a number above 0."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return found


def run_action(args: argparse.Namespace) -> int:
    """Run the action of a command line and return the exit code. Raises CannotRun."""
    action: Action = args.run_action
    return action(args)


# --------------------------------------------------------------------------------------------------------------- the client


def settings_of(args: argparse.Namespace) -> dict[str, str]:
    """Return the settings of the client for the options; a file may have those of other clients. Raises CannotRun."""
    properties = client_properties(args)
    settings = common_settings(properties)
    if BOOTSTRAP_CONTROLLERS in properties and hasattr(args, "bootstrap_controller"):
        settings[BOOTSTRAP_CONTROLLERS] = properties[BOOTSTRAP_CONTROLLERS]
    if args.timeout is not None or "default.api.timeout.ms" not in settings:
        settings["default.api.timeout.ms"] = str(max(int((args.timeout or DEFAULT_TIMEOUT_S) * 1000), 1))
    return settings


def ask(args: argparse.Namespace, operation: Operation[_Result]) -> _Result:
    """Execute an operation on the cluster that the options name.

    Raises KafkaError if the cluster refuses it, CannotRun if there is no answer.
    """
    from kcli.client.errors import KafkaError
    from kcli.client.shell.admin import Admin

    with client_errors(passed_on=KafkaError), ClientLog() as log, Admin(settings_of(args), log=log) as admin:
        log.watch(admin)
        return admin.execute(operation)


def _answered(run: Action) -> Action:
    def action(args: argparse.Namespace) -> int:
        from kcli.client.errors import KafkaError

        try:
            return run(args)
        except KafkaError as error:
            print_message(str(error))
            return EXIT_FINDINGS

    return action


def values_of(outcomes: Mapping[_Key, _Value | ClientError], name: Callable[[_Key], str]) -> tuple[dict[_Key, _Value], int]:
    """Return the values, after a message for each item that the cluster refused, and the exit code.

    Raises CannotRun for an error that is not one of the item, such as a broker that does not answer.
    """
    from kcli.client.errors import ClientError, KafkaError

    values: dict[_Key, _Value] = {}
    code = EXIT_OK
    for key, outcome in outcomes.items():
        if isinstance(outcome, KafkaError):
            print_message(f"{name(key)}: {outcome}")
            code = EXIT_FINDINGS
        elif isinstance(outcome, ClientError):
            raise CannotRun(str(outcome))
        else:
            values[key] = outcome
    return values, code


def partition_name(partition: tuple[str, int]) -> str:
    """Return the name of a partition for messages."""
    return f"{partition[0]}-{partition[1]}"


# -------------------------------------------------------------------------------------------------------------------- names


class SelectedNames(NamedTuple):
    """The names that patterns matched, and the exit code: EXIT_FINDINGS if a pattern matched none."""

    names: list[str]
    code: int


def select(what: str, patterns: Iterable[str], known: Iterable[str]) -> SelectedNames:
    """Select the known names that match any of the patterns, all without patterns.

    A pattern that is a known name selects that one; otherwise * and ? stand for any characters. One that matches nothing is
    reported on stderr, with similar names.
    """
    from kcli.inspect.suggestions import did_you_mean

    names, wanted = list(known), list(patterns)
    if not wanted:
        return SelectedNames(names, EXIT_OK)
    code = EXIT_OK
    chosen: set[str] = set()
    for pattern in wanted:
        found = {pattern} if pattern in names else set(filter(glob(pattern).fullmatch, names))
        if not found:
            print_message(f"the cluster has no {what} {pattern!r}{did_you_mean(pattern, names)}")
            code = EXIT_FINDINGS
        chosen |= found
    return SelectedNames([name for name in names if name in chosen], code)


def glob(pattern: str) -> re.Pattern[str]:
    """Return the regular expression for a pattern in which * and ? stand for any characters."""
    parts = (".*" if one == "*" else "." if one == "?" else re.escape(one) for one in pattern)
    return re.compile("".join(parts), re.DOTALL)


def split_words(values: Iterable[str]) -> list[str]:
    """Return the words of options that can be repeated, or separated by commas."""
    return [word.strip() for value in values for word in value.split(",") if word.strip()]


def known_words(option: str, words: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return words as the cluster writes them, PreparingRebalance also for preparing_rebalance. Raises CannotRun for others.

    Brokers do not refuse a word that they do not know: no item has it, and the list is empty.
    """
    written = {_letters(one): one for one in known}
    found = list(words)
    for word in found:
        if _letters(word) not in written:
            raise CannotRun(f"{option}: {word!r} is not one of {', '.join(written.values())}")
    return [written[_letters(word)] for word in found]


def _letters(word: str) -> str:
    return word.replace("-", "").replace("_", "").lower()


def partitions_of(texts: Iterable[str]) -> list[tuple[str, list[int] | None]]:
    """Parse Kafka's `topic` and `topic:0,1`: topics with their partitions, None for all. Raises CannotRun."""
    found: list[tuple[str, list[int] | None]] = []
    for text in texts:
        topic, colon, numbers = text.partition(":")
        words = [word.strip() for word in numbers.split(",")]
        if not topic or (colon and not all(word.isascii() and word.isdigit() for word in words)):
            raise CannotRun(f"{text!r} does not name partitions: write TOPIC, or TOPIC:0,1,2")
        found.append((topic, [int(word) for word in words] if colon else None))
    return found


# ------------------------------------------------------------------------------------------------------------------- output


def show(args: argparse.Namespace, rows: Sequence[JsonObject], columns: Columns, empty: str = "") -> None:
    """Print rows as a table of these columns, or as JSON with all their members; without rows, `empty` is printed on stderr."""
    if args.output == "json":
        print_lines(dump(row) for row in rows)
        return
    if args.output == "names":
        print_lines(cell(row[columns[0][1]]) for row in rows)
        return
    if rows:
        print_lines(table(rows, columns))
    elif empty:
        print_message(empty)


def table(rows: Sequence[JsonObject], columns: Columns) -> Iterator[str]:
    """Yield the lines of a table: numbers to the right, columns without values are left out."""
    from kcli.inspect.renderers.terminal_text import fit_table

    titles = [title for title, _ in columns]
    shown = [member for _, member in columns if any(cell(row.get(member)) for row in rows)]
    cells = [[cell(row.get(member)) or ("-" if member in shown else "") for _, member in columns] for row in rows]
    words = [title for title, member in columns if not all(_is_number(row.get(member)) for row in rows)]
    fit = shutil.get_terminal_size().columns if is_terminal() else None
    fitted = fit_table(titles, cells, left=frozenset((titles[0], *words)), drop_empty=True, fit=fit)
    yield from fitted.head
    yield from fitted.rows


def _is_number(value: JsonValue) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def cell(value: JsonValue) -> str:
    """Return a value as the text of a cell, "" for one that is not known or not set."""
    from kcli.inspect.renderers.terminal_text import escape

    if value is None or value == "" or value == [] or value == {}:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(cell(one) for one in value)
    if isinstance(value, dict):
        return ",".join(f"{escape(str(name))}={cell(one)}" for name, one in value.items())
    return escape(str(value))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on stdout, nothing if there are none. Raises as write_out does."""
    text = "\n".join(lines)
    if text:
        print_text(text)


def done(args: argparse.Namespace, row: JsonObject, sentence: str) -> None:
    """Report one thing that was done: the row as JSON, or the sentence."""
    from kcli.inspect.renderers.terminal_text import escape

    print_lines([dump(row)] if args.output == "json" else [escape(sentence)])


def instant(timestamp_ms: int) -> str | None:
    """Return a timestamp of a broker as text, None for -1."""
    from kcli.inspect.instants import format_instant

    return None if timestamp_ms < 0 else format_instant(timestamp_ms)
