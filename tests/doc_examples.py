"""Runs the examples that a page of docs/ shows: commands of console blocks, and Python programs.

    in a page                                     is run as
    --------------------------------------------  ----------------------------------------------------------------------
    ```console with lines `$ kcli ...`            kcli in this process, in the current directory; `| head -n N`,
                                                  `| tail -n N`, `| grep TEXT`, `| cut -c A-B` and `> FILE` for its output
    `$ echo $?`, `$ wc -l FILE`, `$ cp -r A B`    what these commands do
    ```python, then ```text                       the program in this process; the second block is what it prints

Each function returns the block as it should be. With KCLI_WRITE_DOCS=1 the tests write it into the page and compare nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.commands.app import main

BROKER = "127.0.0.1:9092"  # in programs; they get the address of the broker that runs
WRITES = os.environ.get("KCLI_WRITE_DOCS") == "1"
CONSOLE = re.compile(r"(?P<head>```console\n)(?P<body>.*?)(?P<end>```\n)", re.DOTALL)
PROGRAM = re.compile(r"(?P<head>```python\n(?P<code>.*?)```\n\n```text\n)(?P<body>.*?)(?P<end>```\n)", re.DOTALL)


def check(page: Path, run: Callable[[re.Match[str]], str]) -> None:
    """Run the examples of a page in their order, and compare or write what they print."""
    text = page.read_text()
    found = sorted([*CONSOLE.finditer(text), *PROGRAM.finditer(text)], key=lambda match: match.start())
    results = [run(match) for match in found]
    if WRITES:
        for match, result in reversed(list(zip(found, results))):
            text = text[: match.start("body")] + result + text[match.end("body") :]
        page.write_text(text)
        return
    for match, result in zip(found, results):
        assert match["body"] == result, f"{page.name}: run the test with KCLI_WRITE_DOCS=1"


def runner(page: Path, capfd: pytest.CaptureFixture[str], broker: str) -> Callable[[re.Match[str]], str]:
    """Run one example; programs get the address of the broker."""

    def run(match: re.Match[str]) -> str:
        if "code" in match.groupdict():
            return run_program(match["code"].replace(BROKER, broker), page, capfd)
        return run_console(match["body"], capfd)

    return run


def run_console(block: str, capfd: pytest.CaptureFixture[str]) -> str:
    """Run the commands of a console block -> the block with what they print."""
    lines: list[str] = []
    code = 0
    for command in (line for line in block.splitlines() if line.startswith("$ ")):
        lines.append(command)
        words = shlex.split(command[2:])
        if words == ["echo", "$?"]:
            lines.append(str(code))
        elif words[:2] == ["wc", "-l"]:
            lines.append(f"{Path(words[2]).read_text().count(chr(10))} {words[2]}")
        elif words[:2] == ["cp", "-r"]:
            shutil.copytree(words[2], words[3])
        else:
            assert words[0] == "kcli", command
            words, *filters = split_at_bars(words)
            target = words.pop() if ">" in words else ""
            code = main([word for word in words[1:] if word != ">"])
            printed, errors = capfd.readouterr()
            if target:
                Path(target).write_text(printed)
                printed = ""
            for one in filters:
                printed = filtered(printed, one)
            lines += (printed + errors).replace(f"{Path.cwd()}/", "").splitlines()
    return "\n".join([*lines, ""])


def split_at_bars(words: list[str]) -> list[list[str]]:
    """The commands of a pipe."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "|":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def filtered(text: str, words: list[str]) -> str:
    """What a filter of a pipe prints of `text`."""
    lines = text.splitlines()
    if words[:2] == ["head", "-n"]:
        lines = lines[: int(words[2])]
    elif words[:2] == ["tail", "-n"]:
        lines = lines[-int(words[2]) :]
    elif words[:1] == ["grep"]:
        lines = [line for line in lines if words[-1] in line]
    else:
        assert words[:2] == ["cut", "-c"], words
        first, last = map(int, words[2].split("-"))
        lines = [line[first - 1 : last] for line in lines]
    return "".join(f"{line}\n" for line in lines)


def run_program(code: str, page: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """Run a Python program of a page -> what it prints."""
    capfd.readouterr()
    exec(compile(code, f"{page.name}: an example", "exec"), {"__name__": "__main__"})
    return capfd.readouterr().out
