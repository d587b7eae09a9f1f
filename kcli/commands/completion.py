"""`kcli completion`: prints the script with which a shell completes kcli's commands, options and paths; shtab generates it.

part of a command line                               is completed with
---------------------------------------------------  ---------------------------------
commands, options, arguments with choices            the words that argparse accepts
PATH and FILE of options; arguments without choices  files and directories
DIR of options                                       directories
"""

from __future__ import annotations

import argparse
import importlib

from kcli.commands.output import EXIT_OK, CannotRun, print_text

ARGUMENTS = "SHELL"
DESCRIPTION = """\
Prints the script that completes kcli's commands, options and paths in a shell."""
EPILOG = """\
bash:  eval "$(kcli completion bash)"                  in ~/.bashrc
zsh:   kcli completion zsh > DIR/_kcli                 DIR is one of $fpath; then start a new shell
fish:  kcli completion fish > ~/.config/fish/completions/kcli.fish"""

SHELLS = ("bash", "zsh", "fish")
_DIRECTORIES = ("DIR",)
_FILES = ("PATH", "FILE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `kcli completion`."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}")


def run(args: argparse.Namespace) -> int:
    """Print the script and return the exit code. Raises CannotRun if shtab is not installed."""
    try:
        import shtab
    except ImportError:
        raise CannotRun("completion needs the package shtab: pip install shtab installs it") from None
    parser = whole_parser()
    for command in parser_of_commands(parser).values():
        for action in command._actions:  # argparse has no public list of the arguments
            _complete(action, shtab.FILE, shtab.DIRECTORY)
    print_text(shtab.complete(parser, args.shell))
    return EXIT_OK


def whole_parser() -> argparse.ArgumentParser:
    """Return one parser for all commands. Other commands do not use it, because it imports every command."""
    from kcli.commands.app import COMMANDS, Parser

    parser = Parser(prog="kcli")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command")
    for name, (module, help_text) in COMMANDS.items():
        importlib.import_module(f"kcli.commands.{module}").add_arguments(commands.add_parser(name, help=help_text))
    of_help = commands.add_parser("help", help="show the options of a command")
    of_help.add_argument("command", choices=list(COMMANDS))
    return parser


def parser_of_commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands by their names."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(commands.choices)


def _complete(action: argparse.Action, files: object, directories: object) -> None:
    """Mark an argument that is a path, as shtab expects it."""
    is_path = not action.option_strings and action.choices is None
    if action.metavar in _DIRECTORIES and action.option_strings:
        action.complete = directories  # type: ignore[attr-defined]
    elif is_path or action.metavar in _FILES:
        action.complete = files  # type: ignore[attr-defined]
