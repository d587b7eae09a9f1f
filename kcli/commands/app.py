"""The program `kcli`: one command line, one module a command, loaded when it is asked for.

argparse and not a richer library: start-up is promised (150 ms for a small file, of which Python takes 15), and typer takes
200 ms, click 55, argparse 10.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from kcli.commands.output import EXIT_CANNOT_RUN, EXIT_OK, CannotRun, guarded, print_text

# name -> (module, one line of help); the order is that of --help and of the README.
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("serve", "run a Kafka broker and controller in this process"),
    "dump-log": ("dump_log", "show the files of a log directory: segments, indexes, snapshots, checkpoints"),
    "verify": ("verify", "check a log directory, and repair it with --repair"),
    "compact": ("compact", "clean compacted topics with no broker running, or give batches another codec"),
    "describe": ("describe", "tell what a log directory holds: topics, offsets, groups, transactions, configs"),
    "format": ("format", "make empty log directories those of a node, as kafka-storage format does"),
    "to-parquet": ("to_parquet", "write records to Parquet through Spark"),
    "simulate": ("simulate", "run a broker under virtual time with crashes and bad disks, from a seed"),
}

DESCRIPTION = "Opens, checks, repairs and queries what Apache Kafka leaves on disk. No broker, no JVM tools."
EPILOG = "Exit codes: 0 done and sound; 1 done, with damage or findings; 2 could not run. `kcli COMMAND --help` tells more."


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose help is as wide in a pipe as in the docs: 100 columns."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("formatter_class", lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=100))
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def print_help(self, file: object = None) -> None:
        """Print the help on stdout. Raises as write_out does, where argparse itself would pass over it."""
        print_text(self.format_help())


def build_parser(command: str) -> argparse.ArgumentParser:
    """The parser of one command, `kcli COMMAND`. Raises KeyError for an unknown one."""
    module = importlib.import_module(f"kcli.commands.{COMMANDS[command][0]}")
    parser = Parser(
        prog=f"kcli {command}",
        usage=f"kcli {command} [OPTIONS] {module.ARGUMENTS}",
        description=module.DESCRIPTION,
        epilog=getattr(module, "EPILOG", None),
    )
    parser.set_defaults(run=module.run)
    module.add_arguments(parser)
    return parser


def overview() -> str:
    """What `kcli --help` prints."""
    parser = Parser(prog="kcli", description=DESCRIPTION, epilog=EPILOG, usage="kcli COMMAND [OPTIONS] [ARGUMENTS]")
    parser.add_argument("--version", action="store_true", help="print the version, and how the record loops run")
    commands = parser.add_argument_group("commands")
    for name, (_, help_text) in COMMANDS.items():
        commands.add_argument(name, help=help_text, action="store_true")
    return parser.format_help()


def version() -> str:
    """What `kcli --version` prints."""
    from kcli import __version__
    from kcli.format.record_scan import is_compiled

    how = "compiled" if is_compiled() else "interpreted: no C compiler was at hand when kcli was installed"
    return f"kcli {__version__} (record loops {how})\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `kcli` -> its exit code (see kcli.commands.output)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: _run(words))


def _run(words: list[str]) -> int:
    """Do what the command line says -> exit code. Raises CannotRun where it makes no sense, SystemExit as argparse does."""
    if not words or words[0] in ("-h", "--help", "help"):
        print_text(overview())
        return EXIT_OK if words else EXIT_CANNOT_RUN
    if words[0] in ("-V", "--version"):
        print_text(version())
        return EXIT_OK
    if words[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise CannotRun(f"there is no command {words[0]!r}; the commands are {known}")
    parsed = build_parser(words[0]).parse_args(words[1:])
    return int(parsed.run(parsed))


if __name__ == "__main__":
    sys.exit(main())
