"""Protects command lines drawn from the parsers: an option is refused, or it has an effect; none is passed over in silence.

Each option with one value is given twice to each command. Each option of the commands for a running cluster is given once to a
real cluster, and the command must read it, or refuse it in one sentence.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kcli.commands.app import COMMANDS, Parser, build_parser, main
from kcli.commands.output import EXIT_CANNOT_RUN, EXIT_FINDINGS, EXIT_OK, guarded
from kcli.server.config.server_config import ServerConfig
from kcli.server.supervisor.layout import ClusterLayout
from tests.log_builder import PartitionBuilder
from tests.option_effects import check_differences
from tests.server.live import LiveServer

VALUES = ("1", "1.5", "a", "a=1")


class Line(NamedTuple):
    """A command, or an action of one, with its parser."""

    words: tuple[str, ...]
    parser: argparse.ArgumentParser


def lines_of(command: str) -> Iterator[Line]:
    """Yield the command, or its actions."""
    parser = build_parser(command)
    inner = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not inner:
        yield Line((command,), parser)
    for name, action in (inner[0].choices if inner else {}).items():
        yield Line((command, name), action)


LINES = [line for command in COMMANDS for line in lines_of(command)]


def value_for(parser: argparse.ArgumentParser, option: argparse.Action) -> str:
    """Return a value that the parser takes."""
    if option.choices is not None:
        return str(next(iter(option.choices)))
    for value in VALUES:
        try:
            parser._get_value(option, value)
        except argparse.ArgumentError:
            continue
        return value
    raise AssertionError(f"no value for {option.option_strings}")


def required(parser: argparse.ArgumentParser) -> list[str]:
    """Return the words without which a command line is refused."""
    words = []
    for one in parser._actions:
        if not one.option_strings:
            words += [] if one.nargs in ("*", "?") else [value_for(parser, one)]
        elif one.required:
            words += [one.option_strings[0], value_for(parser, one)]
    for group in parser._mutually_exclusive_groups:
        first = group._group_actions[0]
        if group.required:
            words += [first.option_strings[0], *([] if first.nargs == 0 else [value_for(parser, first)])]
    return words


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line.words))
def test_an_option_with_one_value_is_refused_if_it_is_given_twice(line: Line, capfd: pytest.CaptureFixture[str]) -> None:
    for option in line.parser._actions:
        if not option.option_strings or option.nargs is not None or not isinstance(option, argparse._StoreAction):
            continue
        words = [option.option_strings[0], value_for(line.parser, option)]
        with pytest.raises(SystemExit) as ended:
            build_parser(line.words[0]).parse_args([*line.words[1:], *words, *words, *required(line.parser)])
        assert ended.value.code == EXIT_CANNOT_RUN
        assert "was given twice, and takes one value" in capfd.readouterr().err, words


def test_an_option_with_an_empty_place_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    """compact --apply --to "$UNSET" would compact in place."""
    tried = set()
    for line in LINES:
        for option in line.parser._actions:
            if option.option_strings and option.nargs is None and str(option.metavar) in ("DIR", "FILE", "PATH"):
                with pytest.raises(SystemExit) as ended:
                    build_parser(line.words[0]).parse_args([*line.words[1:], option.option_strings[0], ""])
                assert ended.value.code == EXIT_CANNOT_RUN
                assert "its value is empty: name a place" in capfd.readouterr().err, (line.words, option.option_strings)
                tried.add((line.words[0], option.option_strings[0]))
    assert {("compact", "--to"), ("verify", "--quarantine"), ("to-parquet", "--out"), ("replay", "--progress")} <= tried


def test_options_of_two_command_lines_are_not_mixed() -> None:
    parser = build_parser("consume")
    assert [parser.parse_args(["--format", text, "--topic", "a", "--topic", "b"]).format for text in ("%k", "%s")] == [
        "%k",
        "%s",
    ]


# ------------------------------------------------------------------------------------------------------- with a cluster


class Watched(argparse.Namespace):
    """The result of a parser, which notes the names that are read."""

    def __getattribute__(self, name: str) -> object:
        found = object.__getattribute__(self, "__dict__")
        if not name.startswith("_"):
            found.setdefault("_seen", set()).add(name)
        return object.__getattribute__(self, name)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("lines"), "num.partitions=1", "group.initial.rebalance.delay.ms=0") as found:
        assert main(["topics", "create", "--topic", "t", "--bootstrap-server", f"127.0.0.1:{found.port}"]) == EXIT_OK
        yield found


# The words with which an action does something on a cluster that has topic t; others are those that the parser requires.
ENOUGH: dict[tuple[str, ...], list[str]] = {
    ("produce",): ["--topic", "t"],
    ("consume",): ["--topic", "t"],
    ("bench",): ["produce", "--topic", "t", "--num-records", "1"],
    ("bench", "consume"): ["consume", "--topic", "t", "--num-records", "1"],
    ("configs", "describe"): ["--topic", "t"],
    ("configs", "alter"): ["--topic", "t", "--add-config", "retention.ms=-1"],
    ("topics", "alter"): ["--topic", "t", "--partitions", "2"],
    ("topics", "delete"): ["--topic", "none"],
    ("groups", "describe"): ["--group", "g"],
    ("groups", "delete"): ["--group", "g"],
    ("groups", "delete-offsets"): ["--group", "g", "--topic", "t"],
    ("groups", "reset-offsets"): ["--group", "g", "--topic", "t", "--to-latest"],
    ("transactions", "describe-producers"): ["--topic", "t", "--partition", "0"],
    ("transactions", "find-hanging"): ["--topic", "t"],
    ("transactions", "abort"): ["--topic", "t", "--partition", "0", "--start-offset", "0"],
}
# Values that a cluster takes, where the parser does not say which they are.
GOOD = {"--command-property": "client.id=x", "--config": "retention.ms=-1", "--timeout-ms": "100", "--state": "Empty"}
# Options that say what is so without them, for scripts that want to be clear, and those that are read by `vars`.
DEFAULTS = {
    ("groups", "reset-offsets", "dry_run"),
    ("dump-log", "print_data_log"),
    ("dump-log", "deep_iteration"),
    *((command, name) for command in ("dump-log", "replay") for name in ("producer_id", "transactional")),
}
CLUSTER = ("produce", "consume", "bench", "topics", "configs", "groups", "transactions", "cluster")


@pytest.mark.ci
@pytest.mark.xdist_group("command-lines")
@pytest.mark.parametrize("line", [one for one in LINES if one.words[0] in CLUSTER], ids=lambda line: " ".join(line.words))
def test_an_option_has_an_effect_or_is_refused(
    server: LiveServer, line: Line, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Pairs of options are drawn, too: the one may take the effect of the other."""
    (tmp_path / "input").write_bytes(b"x\n")
    where = ["--bootstrap-server", f"127.0.0.1:{server.port}"]
    files = [str(tmp_path / "input")] if line.words == ("produce",) else []
    main_words = ENOUGH.get(line.words, required(line.parser))
    check_effects(line, lambda: [*main_words, *where], files, tmp_path, capfd)


def check_effects(
    line: Line, main_words: Callable[[], list[str]], files: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Give a command each option, and as many pairs of options: it reads them, or refuses them in a sentence."""
    (tmp_path / "empty").write_bytes(b"")
    options = {}
    for one in line.parser._actions:
        if one.option_strings and one.dest not in ("help", "bootstrap_server", "follow"):
            name = one.option_strings[0]
            good = str(tmp_path / "empty") if name in ("--command-config", "--from-file") else GOOD.get(name)
            options.setdefault(one.dest, [name] if one.nargs == 0 else [name, good or value_for(line.parser, one)])
    rng = random.Random(" ".join(line.words))
    drawn = [(name,) for name in options] + [tuple(rng.sample(sorted(options), 2)) for _ in range(len(options))]
    for names in drawn:
        found, enough = Watched(), main_words()
        words = [word for name in names if options[name][0] not in enough for word in options[name]]
        parser = build_parser(line.words[0])
        assert isinstance(parser, Parser)
        try:
            parser.parse_args([*line.words[1:], *enough, *words, *files], found)
        except SystemExit as ended:
            assert ended.code == EXIT_CANNOT_RUN
            continue
        seen = vars(found)["_seen"]
        seen.clear()
        code = guarded(lambda found=found: found.run(found))  # type: ignore[misc]
        message = capfd.readouterr().err
        assert "Traceback" not in message and "a fault in kcli itself" not in message, (words, message)
        unread = {name for name in names if name not in seen and (*line.words, name) not in DEFAULTS}
        assert (code != EXIT_OK and message) or not unread, (words, unread)


# ---------------------------------------------------------------------------------------------------- with a directory

TOOLS = ("dump-log", "verify", "compact", "describe", "replay", "format")


@pytest.mark.ci
@pytest.mark.parametrize("line", [one for one in LINES if one.words[0] in TOOLS], ids=lambda line: " ".join(line.words))
def test_an_option_of_a_tool_has_an_effect_or_is_refused(line: Line, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The same for the commands that read and write log directories; each line gets a directory of its own."""
    numbers = itertools.count()

    def words() -> list[str]:
        directory = tmp_path / str(next(numbers))
        if line.words[0] == "format":
            return ["--config", f"log.dirs={directory}"]
        log = PartitionBuilder(directory / "t-0")
        for _ in range(3):
            log.append([(b"k", b"v")])
        log.flush()
        return [str(directory), *(["--dry-run"] if line.words[0] == "replay" else [])]

    check_effects(line, words, [], tmp_path, capfd)


def test_an_option_of_serve_changes_the_start_or_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the node is started with differs, and what it logs before: --strict-config without a file did nothing."""
    (tmp_path / "file").write_text(f"log.dirs={tmp_path}\nnode.id=1\nprocess.roles=broker,controller\nno.such.key=1\n")

    def observe(words: list[str]) -> tuple[int, object]:
        found: list[object] = []

        def serve(config: ServerConfig, log: Callable[[object], None], *_: object, **given: object) -> None:
            log("a line")
            stated = {key: value.text for key, value in config.stated.items()}
            found.extend((stated, config.warnings, *_[1:], sorted(given.items())))

        class Supervisor:
            def __init__(self, layout: ClusterLayout, configs: list[ServerConfig], options: object, _: float) -> None:
                stated = [{key: value.text for key, value in config.stated.items()} for config in configs]
                found.extend((layout.directory, layout.nodes, stated, options))

            def run(self) -> int:
                return EXIT_OK

        lines = io.StringIO()
        monkeypatch.setattr("kcli.server.shell.server.serve", serve)
        monkeypatch.setattr("kcli.server.supervisor.supervisor.Supervisor", Supervisor)
        work = tmp_path / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        monkeypatch.chdir(work)
        with contextlib.redirect_stderr(lines):
            code = main(["serve", *words])
        printed = re.sub(r"\d\d:\d\d:\d\d[.,]\d+|\d{10,}", "", lines.getvalue())
        assert code == EXIT_OK or printed
        return code, (printed, found)

    check_differences(
        "serve",
        {
            "file": [str(tmp_path / "file")],
            "--override": ["--override", "num.io.threads=3"],
            "--strict-config": ["--strict-config"],
            "--accept-stray": ["--accept-stray"],
            "--metrics-port": ["--metrics-port", "0"],
            "--log-format": ["--log-format", "json"],
            "--port": ["--port", "9192"],
            "--data-dir": ["--data-dir", "elsewhere"],
            "--brokers": ["--brokers", "2"],
            "--controllers": ["--controllers", "1"],
            "--no-restart": ["--no-restart"],
        },
        observe,
        pairs=12,
    )
    cluster = ["--brokers", "2"]
    for words in (
        *(["--port", "9192"], ["--data-dir", "elsewhere"], ["--controllers", "1"], ["--no-restart"]),
        *(["--log-format", "json"], ["--metrics-port", "0"], ["--override", "num.io.threads=3"]),
    ):
        code, seen = observe([*cluster, *words])
        assert code == EXIT_OK and seen != observe(cluster)[1], words
    assert observe([*cluster, "--accept-stray"])[0] == EXIT_CANNOT_RUN


@pytest.mark.ci
@pytest.mark.xdist_group("command-lines")
def test_a_wildcard_deletes_internal_topics_only_when_asked(server: LiveServer, capfd: pytest.CaptureFixture[str]) -> None:
    """Without __consumer_offsets all groups would begin again: a wildcard for topics of one's own must not take it."""

    def topics(*words: str) -> tuple[int, str, str]:
        code = main(["topics", *words, "--bootstrap-server", f"127.0.0.1:{server.port}"])
        return code, *capfd.readouterr()

    assert main(["consume", "--topic", "t", "--group", "g", "--bootstrap-server", f"127.0.0.1:{server.port}"]) == EXIT_OK
    assert topics("create", "--topic", "swept-1")[0] == EXIT_OK
    code, out, err = topics("delete", "--topic", "*", "--dry-run")
    assert code == EXIT_OK and "topic swept-1\n" in out and "__consumer_offsets" not in out
    assert "__consumer_offsets" in err and err.endswith(": internal, and left out; name them, or give --include-internal\n")
    code, out, err = topics("delete", "--topic", "__c*", "--dry-run")
    assert (code, out) == (EXIT_FINDINGS, "") and "internal, and left out" in err
    for words in (["--topic", "*", "--include-internal"], ["--topic", "__consumer_offsets"]):
        code, out, err = topics("delete", *words, "--dry-run")
        assert code == EXIT_OK and "would delete topic __consumer_offsets" in out and err == ""
