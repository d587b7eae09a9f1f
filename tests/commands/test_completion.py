"""Protects `kcli completion`: the scripts complete what there is, in the shells that this machine has."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kcli.commands.app import COMMANDS, build_parser, main
from kcli.commands.completion import SHELLS, parser_of_commands, whole_parser
from tests.conftest import missing

# What readline does on a tab, with the words of the command line as arguments.
TAB = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*"
"$(complete -p kcli | sed 's/.*-F \\([^ ]*\\) .*/\\1/')" kcli "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""

# A kcli that lists what a cluster has.
LISTING = """#!/bin/sh
[ "$2 $3 $4 $5 $6" = "list --timeout 1 --output names" ] || exit 1
if [ "$1" = topics ]; then echo orders; echo "orders.of.${8:-127.0.0.1:9092}${10}"; else echo readers; fi
"""


def script(shell: str, capfd: pytest.CaptureFixture[str]) -> str:
    """What `kcli completion SHELL` prints; the test is skipped where shtab is not installed."""
    if importlib.util.find_spec("shtab") is None:
        missing("shtab, which kcli depends on: install kcli again")
    assert main(["completion", shell]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_parser_of_all_commands_is_theirs(command: str) -> None:
    """It has the options of each command that the program itself takes."""
    completed, taken = parser_of_commands(whole_parser())[command], build_parser(command)
    assert [action.option_strings for action in completed._actions] == [action.option_strings for action in taken._actions]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ver"], {"verify"}),
        ([""], {*COMMANDS, "help"}),
        (["dump-log", "--deep"], {"--deep-iteration"}),
        (["completion", ""], set(SHELLS)),
        (["help", "comp"], {"compact", "completion"}),
        (["verify", "orders"], {"orders-0"}),
        (["format", "--config", "server"], {"server.properties"}),
    ],
)
def test_bash(words: list[str], expected: set[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A tab after the words gives the commands, options, choices and files that there are."""
    bash = shutil.which("bash") or missing("bash")
    (tmp_path / "script").write_text(script("bash", capfd))
    work = tmp_path / "work"
    (work / "orders-0").mkdir(parents=True)
    (work / "server.properties").touch()
    command = [bash, "--norc", "--noprofile", "-c", TAB, "bash", str(tmp_path / "script"), "kcli", *words]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == expected and done.stderr == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["topics", "describe", "--topic", "or"], {"orders", "orders.of.127.0.0.1:9092"}),
        (["topics", "delete", "--bootstrap-server", "broker:9092", "--topic", ""], {"orders", "orders.of.broker:9092"}),
        (
            ["topics", "delete", "--command-config", ".conf", "--bootstrap-server=b:1", "--topic", "o"],
            {"orders", "orders.of.b:1.conf"},
        ),
        (["topics", "create", "--part"], {"--partitions"}),
        (["groups", "describe", "--group", "r"], {"readers"}),
        (["configs", "describe", "--group", ""], {"readers"}),
        (["groups", "rese"], {"reset-offsets"}),
    ],
)
def test_names_of_the_cluster(words: list[str], expected: set[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The names after --topic and --group are those that kcli lists for the connection that the line has."""
    bash = shutil.which("bash") or missing("bash")
    (tmp_path / "script").write_text(script("bash", capfd))
    (tmp_path / "kcli").write_text(LISTING)
    (tmp_path / "kcli").chmod(0o755)
    command = [bash, "--norc", "--noprofile", "-c", TAB, "bash", str(tmp_path / "script"), "kcli", *words]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=environment)
    assert set(done.stdout.split()) == expected and done.stderr == ""


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_takes_the_script(shell: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It names each command, and is without a syntax error where the shell is installed."""
    text = script(shell, capfd)
    assert all(command in text for command in COMMANDS)
    if (program := shutil.which(shell)) is not None:
        (tmp_path / "script").write_text(text)
        done = subprocess.run([program, "-n", str(tmp_path / "script")], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_without_shtab(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A sentence says what to install."""
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert capfd.readouterr() == ("", "kcli: completion needs the package shtab: pip install shtab installs it\n")
