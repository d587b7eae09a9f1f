"""The program `kcli`: one module per command, which is imported when the command is used.

The parser is argparse because of the start-up time (150 ms for a small file); ARCHITECTURE.md has the times of typer.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from kcli.commands.output import EXIT_CANNOT_RUN, EXIT_OK, CannotRun, guarded, print_message, print_text

# name -> (module, one line of help); the order is that of --help and of the README.
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("serve", "run a Kafka broker and controller in this process, or a cluster on this machine"),
    "format": ("format", "format empty log directories for a node, as kafka-storage format does"),
    "dump-log": ("dump_log", "show the files of a log directory: segments, indexes, snapshots, checkpoints"),
    "describe": ("describe", "list what a log directory holds: topics, offsets, groups, transactions, configs"),
    "verify": ("verify", "check everything in a log directory that a broker relies on; with --repair, repair it"),
    "to-parquet": ("to_parquet", "write records to Parquet through Spark"),
    "replay": ("replay", "send the records of segments, partitions or log directories to a Kafka cluster"),
    "compact": ("compact", "clean compacted topics with no broker running, or give batches another codec"),
    "produce": ("produce", "send lines as records to a topic of a running cluster"),
    "consume": ("consume", "print the records of topics of a running cluster"),
    "bench": ("bench", "measure how fast a topic of a running cluster is written or read"),
    "topics": ("topics", "list, describe, create, delete and extend topics of a running cluster"),
    "configs": ("configs", "show and change the configurations of a running cluster"),
    "groups": ("groups", "list, describe, reset and delete groups of a running cluster"),
    "transactions": ("transactions", "list, describe, find and abort transactions of a running cluster"),
    "cluster": ("cluster", "show nodes, quorum, features and log directories of a running cluster; change voters"),
    "simulate": ("simulate", "run a broker in virtual time with crashes and disk errors, from a random seed"),
    "completion": ("completion", "print the completion script of kcli for bash, zsh or fish"),
}
# The groups of the overview: the words of a command line, and their help if it is not the one in COMMANDS.
GROUPS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("run a broker", (("serve", ""), ("format", ""))),
    ("inspect log directories without changing them", (("dump-log", ""), ("describe", ""), ("verify", ""), ("to-parquet", ""))),
    ("send records to a cluster", (("replay", ""),)),
    ("change log directories", (("compact", ""), ("verify --repair", "plan a repair; with --apply, carry it out"))),
    ("write and read a running cluster", (("produce", ""), ("consume", ""), ("bench", ""))),
    (
        "administer a running cluster",
        (("topics", ""), ("configs", ""), ("groups", ""), ("transactions", ""), ("cluster", "")),
    ),
    (
        "learn and test",
        (("simulate", ""), ("completion", ""), ("help COMMAND", "show the options of a command, as kcli COMMAND --help does")),
    ),
)
# Python collects after each 700 objects. A command makes many thousands when it is imported, nearly all of them to stay, which
# takes a twentieth of the time of a short command.
COLLECT_AFTER_ALLOCATIONS = 10_000
# Names that other programs use for a command.
ALIASES = {"repair": "verify --repair", "start": "serve", "broker": "serve", "fsck": "verify"}

DESCRIPTION = """\
Kafka in one Python program: a broker and controller for Kafka's clients and tools, also in a cluster
(security is not supported yet), tools that show, check, repair, compact and export log
directories of Apache Kafka and of kcli, with no broker running, and tools that write, read and
administer running clusters."""
EPILOG = """\
Exit codes: 0 done, no damage; 1 done, with damage or findings, or no topic or group has the name, or
the cluster refused the request; 2 the command could not run, a path is missing, or no broker answers;
3 no damage, but offsets are missing (verify); 130 interrupted (143 by SIGTERM, 129 by SIGHUP).
docs/ and the README have examples."""


# What the value of an option is called if it is a place.
_PLACES = ("DIR", "FILE", "PATH", "HOST:PORT")


class _StoreOnce(argparse._StoreAction):
    """An option with one value: given twice, it is an error (as in Kafka's tools), since only one could have an effect.

    So is an empty place (`--to "$UNSET"`): without its place, the command would do something else, such as to compact in place.
    """

    def __call__(self, parser: argparse.ArgumentParser, namespace: object, values: object, option: str | None = None) -> None:
        """Store the value. Raises ArgumentError for a second one, and for an empty place."""
        assert isinstance(parser, Parser)
        if values == "" and str(self.metavar).startswith(_PLACES):
            raise argparse.ArgumentError(self, "its value is empty: name a place, or leave the option out")
        if option is not None and self.dest in parser.given:
            raise argparse.ArgumentError(self, "it was given twice, and takes one value")
        parser.given.add(self.dest)
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with help of 100 columns, also in a pipe, that does not accept abbreviated option names.

    An abbreviation, such as --a for --apply, could change data by a typing error. dump-log changes no data, and accepts
    abbreviations as kafka-dump-log does. `given` has the options with a value that the command line had so far.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("formatter_class", lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=100))
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.given: set[str] = set()
        self.register("action", None, _StoreOnce)
        self.register("action", "store", _StoreOnce)

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        """Parse a command line as argparse does, with no option given so far."""
        self.given.clear()
        return super().parse_known_args(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Print one sentence about a wrong command line, with a similar option if there is one, and exit with 2."""
        start, _, words = message.partition("unrecognized arguments: ")
        option = words.split()[0].partition("=")[0] if words and not start else ""
        if option.startswith("--"):
            from kcli.inspect.suggestions import did_you_mean

            message += did_you_mean(option, options_of(self))
        super().error(message)

    def print_help(self, file: object = None) -> None:
        """Print the help on stdout. Raises as write_out does; argparse itself would ignore the errors."""
        print_text(self.format_help())


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options of a parser and of its actions."""
    found = list(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += (option for inner in action.choices.values() for option in options_of(inner))
    return list(dict.fromkeys(found))


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of one command. Raises KeyError for an unknown command."""
    module = importlib.import_module(f"kcli.commands.{COMMANDS[command][0]}")
    usage = getattr(module, "USAGE", None) or f"[OPTIONS] {module.ARGUMENTS}"
    parser = Parser(
        prog=f"kcli {command}",
        usage=f"kcli {command} {usage}",
        description=module.DESCRIPTION,
        epilog=getattr(module, "EPILOG", None),
        allow_abbrev=command == "dump-log",
    )
    parser.set_defaults(run=module.run)
    module.add_arguments(parser)
    return parser


def overview() -> str:
    """Return the text of `kcli --help`."""
    parser = Parser(prog="kcli", description=DESCRIPTION, epilog=EPILOG, usage="kcli COMMAND [OPTIONS] [ARGUMENTS]")
    parser.add_argument("--version", action="store_true", help="print the version, and whether the record loops are compiled")
    for title, commands in GROUPS:
        group = parser.add_argument_group(title)
        for name, help_text in commands:
            group.add_argument(name, help=help_text or COMMANDS[name][1], action="store_true")
    return parser.format_help()


def version() -> str:
    """Return the text of `kcli --version`."""
    from kcli import __version__
    from kcli.distribution import DISTRIBUTION
    from kcli.format.record_scan import is_compiled

    how = "compiled" if is_compiled() else "interpreted: there was no C compiler when kcli was installed"
    return f"kcli {__version__}, Kafka in one Python program (distribution {DISTRIBUTION}; record loops {how})\n"


def _report_other_kcli() -> None:
    """Report on stderr that another program with a command `kcli` is installed, if there is one."""
    from kcli.distribution import other_kcli

    other = other_kcli()
    if other is not None:
        print_message(other)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `kcli` and return its exit code (see kcli.commands.output)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        gc.set_threshold(COLLECT_AFTER_ALLOCATIONS)
    return guarded(lambda: _run(words))


def _run(words: list[str]) -> int:
    """Run a command line and return the exit code. Raises CannotRun if it is invalid, SystemExit as argparse does."""
    if not words or words[0] in ("-h", "--help"):
        print_text(overview())
        return EXIT_OK if words else EXIT_CANNOT_RUN
    if words[0] == "help":
        return _help(words[1:])
    if words[0] in ("-V", "--version"):
        print_text(version())
        _report_other_kcli()
        return EXIT_OK
    parsed = build_parser(_known(words[0])).parse_args(words[1:])
    return int(parsed.run(parsed))


def _help(words: list[str]) -> int:
    """Print the help of one command, or the overview, and return the exit code. Raises CannotRun."""
    if len(words) > 1:
        raise CannotRun(f"kcli help takes one command, not {len(words)}: kcli help {words[0]}")
    of_all = not words or words[0] in ("help", "-h", "--help")
    print_text(overview() if of_all else build_parser(_known(words[0])).format_help())
    return EXIT_OK


def _known(command: str) -> str:
    """Return the command if it exists. Raises CannotRun, with the commands of similar names."""
    if command in COMMANDS:
        return command
    from kcli.inspect.suggestions import did_you_mean

    alias = ALIASES.get(command.lower())
    meant = did_you_mean(command, COMMANDS) if alias is None else f"; did you mean {alias!r}?"
    what = f"{meant} kcli help lists all commands" if meant else f"; the commands are {', '.join(COMMANDS)}"
    raise CannotRun(f"there is no command {command!r}{what}")


if __name__ == "__main__":
    sys.exit(main())
