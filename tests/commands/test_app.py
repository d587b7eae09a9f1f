"""Protects the command line as a whole: what each word does, where its output goes, and with which exit code."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kcli import __version__
from kcli.commands import app
from kcli.commands.app import COMMANDS, GROUPS, build_parser, main, overview
from kcli.commands.output import EXIT_CANNOT_RUN, EXIT_FINDINGS, EXIT_HOLES, EXIT_INTERRUPTED, EXIT_OK
from kcli.format.record_scan import is_compiled

ROOT = Path(__file__).resolve().parents[2]


# What a command cannot do without.
REQUIRED = {
    "to-parquet": ["--out", "x"],
    "format": ["--config", "x"],
    "simulate": ["--seed", "1"],
    "completion": ["bash"],
    "produce": ["--topic", "x"],
    "bench": ["produce", "--topic", "x"],
    "topics": ["list"],
    "configs": ["describe"],
    "groups": ["list"],
    "transactions": ["list"],
    "cluster": ["nodes"],
}


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], ["help", "help"], ["help", "--help"]])
def test_help(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """Names every command, on stdout; it is what was asked for."""
    assert main(words) == 0
    out, err = capfd.readouterr()
    assert out == overview() and err == "" and all(f"\n  {name} " in out for name in COMMANDS)
    # Every exit code that kcli.commands.output has.
    codes = out[out.index("Exit codes: ") :]
    assert all(f"{code} " in codes for code in (EXIT_OK, EXIT_FINDINGS, EXIT_CANNOT_RUN, EXIT_HOLES, EXIT_INTERRUPTED))


def test_help_is_in_groups() -> None:
    """Each command is in one group, and what repairs is with what changes; the description is true of the broker, too."""
    text = overview()
    listed = [name for _, commands in GROUPS for name, _ in commands]
    assert [name for name in listed if name in COMMANDS] == list(COMMANDS)
    assert [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")][-len(GROUPS) :] == [
        f"{title}:" for title, _ in GROUPS
    ]
    assert text.index("change log directories:") < text.index("\n  verify --repair ") < text.index("learn and test:")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"]
    for said in (text, project):
        assert "in a cluster" in said and "No broker" not in said and "to follow" not in said
    # What is not served is named where the broker is promised: in --help and in the README's first paragraph.
    for said in (text, (ROOT / "README.md").read_text().split("\n\n")[1]):
        assert "security" in " ".join(said.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    """What its --help prints."""
    assert main(["help", command]) == 0
    assert capfd.readouterr() == (build_parser(command).format_help(), "")


def test_help_of_what_is_none(capfd: pytest.CaptureFixture[str]) -> None:
    """A sentence, as where the word is the command."""
    assert main(["help", "dump-logs"]) == 2
    assert capfd.readouterr() == (
        "",
        "kcli: there is no command 'dump-logs'; did you mean 'dump-log'? kcli help lists all commands\n",
    )
    assert main(["help", "verify", "compact"]) == 2
    assert "takes one command" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("dump", "dump-log"),
        ("dumplog", "dump-log"),
        ("kafka-dump-log", "dump-log"),
        ("Verify", "verify"),
        ("verfiy", "verify"),
        ("descibe", "describe"),
        ("compac", "compact"),
        ("parquet", "to-parquet"),
        ("server", "serve"),
        ("repair", "verify --repair"),
        ("start", "serve"),
    ],
)
def test_a_misspelt_command(typed: str, meant: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Is answered with the one that is most like it."""
    assert main([typed, "x"]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith(f"kcli: there is no command {typed!r}; did you mean {meant!r}") and err.count("\n") == 1


def test_nothing_to_do(capfd: pytest.CaptureFixture[str]) -> None:
    """Without a word there is help, and no success."""
    assert main([]) == 2
    assert capfd.readouterr().out == overview()


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_version(word: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Says which of the two ways the loops run."""
    assert main([word]) == 0
    out = capfd.readouterr().out
    way = "compiled" if is_compiled() else "interpreted: there was no C compiler when kcli was installed"
    assert out == f"kcli {__version__}, Kafka in one Python program (distribution kafka-kcli; record loops {way})\n"


@pytest.mark.parametrize("word", ["xyz", "--nothing", "", "\x1b[31m"])
def test_an_unknown_command(word: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Is reported with the commands that there are, harmless to a terminal."""
    assert main([word]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err == f"kcli: there is no command {word!r}; the commands are {', '.join(COMMANDS)}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_commands_help(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Goes to stdout as the docs have it; an unknown option is reported on stderr, with exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    out = capfd.readouterr().out
    assert ended.value.code in (0, None)
    assert out.startswith((f"usage: kcli {command} [OPTIONS]", f"usage: kcli {command} ACTION [OPTIONS]"))
    assert out == build_parser(command).format_help()
    with pytest.raises(SystemExit) as ended:
        main([command, *REQUIRED.get(command, []), "--no-such-option", "x"])
    out, err = capfd.readouterr()
    assert ended.value.code == 2 and out == "" and "--no-such-option" in err


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "serve"])
def test_without_a_path(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A sentence, no traceback. (serve needs nothing, and would run.)"""
    try:
        code: object = main([command])
    except SystemExit as ended:
        code = ended.code
    assert code == 2 and "Traceback" not in (err := capfd.readouterr().err) and err


def test_a_fault_of_kcli_itself(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Even that is a sentence, unless a traceback is asked for."""

    def fail(command: str) -> None:
        raise RuntimeError("impossible")

    monkeypatch.setattr(app, "build_parser", fail)
    monkeypatch.delenv("KCLI_TRACEBACK", raising=False)
    assert main(["verify"]) == 2
    err = capfd.readouterr().err
    assert "a fault in kcli itself: RuntimeError: impossible" in err and "Traceback" not in err
    monkeypatch.setenv("KCLI_TRACEBACK", "1")
    with pytest.raises(RuntimeError):
        main(["verify"])


def test_as_a_program() -> None:
    """`python -m kcli` is `kcli`: its exit codes are the process's."""
    words = [sys.executable, "-m", "kcli"]
    assert subprocess.run([*words, "--version"], cwd=ROOT, capture_output=True, check=False).returncode == 0
    done = subprocess.run([*words, "verify", "/no/such/place"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "/no/such/place" in done.stderr and done.stdout == ""


def test_start_up_loads_little() -> None:
    """What dump-log does not need is not loaded: each of these would cost more than the rest of the start."""
    program = (
        "import sys; from kcli.commands.app import main; main(['dump-log', sys.argv[1]]); "
        "heavy = {'construct', 'rich', 'pyarrow', 'pyspark', 'multiprocessing', 'asyncio', 'concurrent.futures', 'inspect', "
        "'dataclasses', 'zstandard', 'cramjam', 'lz4'}; print(*sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    log = ROOT / "fixtures" / "kafka-logs" / "data" / "empty-0" / f"{0:020d}.log"
    done = subprocess.run([sys.executable, "-c", program, str(log)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == "\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["verify", "--repair", "--a"], "--apply"), (["compact", "--actve"], "--active"), (["verify", "--outptu=x"], "--output")],
)
def test_the_beginning_of_an_option_is_no_option(
    words: list[str], meant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--a once carried a repair out. A mistyped option is refused, with the one that may have been meant."""
    with pytest.raises(SystemExit) as ended:
        main([*words, str(tmp_path)])
    assert ended.value.code == 2
    assert f"did you mean '{meant}'?" in capsys.readouterr().err
