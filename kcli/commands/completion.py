"""`kcli completion`: prints the script with which a shell completes kcli's commands, options and paths; shtab generates it.

part of a command line                               is completed with
---------------------------------------------------  ---------------------------------
commands, options, arguments with choices            the words that argparse accepts
PATH and FILE of options; arguments without choices  files and directories
DIR of options                                       directories
TOPIC and GROUP of options                           the names that the cluster has, which `kcli topics list` and
                                                     `kcli groups list` print for the --bootstrap-server and the
                                                     --command-config of the line, or none if no broker answers within a
                                                     second
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator

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
_NAMES = {"TOPIC": "topics", "TOPIC[:0,1]": "topics", "GROUP": "groups"}  # by metavar: the command that lists them
_BASH_NAMES = """\
%s() {
  local name options=()
  for name in --bootstrap-server --command-config; do
    # Not COMP_WORDS, where a colon is a word of its own.
    [[ "$COMP_LINE" =~ $name[\\ =]+([^\\ ]+) ]] && options+=("$name" "${BASH_REMATCH[1]}")
  done
  compgen -W "$(%s ${options[@]+"${options[@]}"} 2>/dev/null)" -- "$1"
}"""
_ZSH_NAMES = """\
%s() {
  local -a options names
  local name at
  for name in --bootstrap-server --command-config; do
    at=${words[(I)$name]}
    (( at )) && options+=($name ${words[at + 1]})
  done
  names=(${(f)"$(%s $options 2>/dev/null)"})
  compadd -a names
}"""


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
    for command in _all_parsers(parser):
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


def _all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of the commands, and those of their actions."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield inner
                yield from _all_parsers(inner)


def _names(what: str) -> dict[str, object]:
    """Return how each shell completes the names of topics or groups, as shtab expects it."""
    function = f"_kcli_{what}_of_cluster"
    ask = f"kcli {what} list --timeout 1 --output names"
    options = "string match -ra -- '--(?:bootstrap-server|command-config)[ =]\\S+' (commandline -p) | string split ' '"
    fish = f"({ask} ({options}) 2>/dev/null)"
    return {
        "bash": function,
        "zsh": f"{{{function}}}",
        "fish": fish,
        "preamble": {"bash": _BASH_NAMES % (function, ask), "zsh": _ZSH_NAMES % (function, ask)},
    }


def _complete(action: argparse.Action, files: object, directories: object) -> None:
    """Mark an argument that is a path, as shtab expects it."""
    is_path = not action.option_strings and action.choices is None
    if action.metavar in _NAMES:
        action.complete = _names(_NAMES[action.metavar])  # type: ignore[attr-defined]
    elif action.metavar in _DIRECTORIES and action.option_strings:
        action.complete = directories  # type: ignore[attr-defined]
    elif is_path or action.metavar in _FILES:
        action.complete = files  # type: ignore[attr-defined]
