"""Protects the rule of the README on missing paths: a sentence on stderr, the others are done, and the exit code is 2.

It holds in every command that takes several paths, and in each output of dump-log.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcli.commands.app import main
from tests.forked_commands import CommandServer
from tests.inspect.verified import batch, partition, root_files

LOG = f"{0:020d}.log"
DUMPS = [
    *(["--output", output] for output in ("text", "kafka", "json", "csv")),
    *(["--output", output, "--stats"] for output in ("text", "json", "csv")),
    *(["--output", output, "--follow", "--limit", "1"] for output in ("text", "json", "csv")),
    *(["--tail", "1"], ["--key", "key"], ["--isolation", "read_committed"], []),
]
COMMANDS = [
    *(["dump-log", *words] for words in DUMPS),
    *(["verify"], ["verify", "--output", "json"], ["verify", "--repair"], ["describe"], ["describe", "--output", "json"]),
    *(["compact", "--any-policy", "--dry-run"], ["compact", "--any-policy", "--dry-run", "--output", "json"]),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    partition(root, "__consumer_offsets-0", [batch(0, 3)])
    root_files(root)
    return root


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("name", ["no-such-0", f"no-such-0/{LOG}", "no-*"])
def test_alone(words: list[str], name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One sentence and exit code 2, for a directory, a file and a pattern; the sentence is not among the results."""
    path = str(tmp_path / name)
    assert main([*words, path]) == 2
    out, err = capfd.readouterr()
    pattern = " (nothing matches the pattern)" if "*" in name else ""
    assert err == f"kcli: {path}: there is no such file or directory{pattern}\n"
    assert "json" in words or "no such file" not in out


def test_an_empty_path(data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A variable of the shell that is not set is not the working directory: compact --apply would change it."""
    monkeypatch.chdir(data)
    before = {path.name: path.stat().st_mtime_ns for path in data.rglob("*")}
    for words in (*COMMANDS, ["compact", "--any-policy", "--active", "--unclean", "--assume-committed", "--apply"]):
        assert main([*words, ""]) == 2, words
        assert "the path is empty; . is the working directory" in capfd.readouterr().err, words
    assert {path.name: path.stat().st_mtime_ns for path in data.rglob("*")} == before


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_empty_directory(words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is not a log directory without partitions: a disk may not be mounted."""
    assert main([*words, str(tmp_path)]) == 2
    assert capfd.readouterr().err.startswith(f"kcli: {tmp_path}: an empty directory; a log directory has meta.properties or ")


@pytest.mark.parametrize("words", [words for words in COMMANDS if "--repair" not in words], ids=" ".join)
@pytest.mark.parametrize("is_first", [True, False])
def test_beside_another(words: list[str], is_first: bool, data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The other path is done as if it had been named alone, and the exit code is 2 all the same."""
    there, missing = str(data / "__consumer_offsets-0"), str(data / "missing-0")
    main([*words, there])
    alone = capfd.readouterr().out
    assert main([*words, *([missing, there] if is_first else [there, missing])]) == 2
    out, err = capfd.readouterr()
    assert err.count(f"kcli: {missing}: there is no such file or directory\n") == 1
    if "json" not in words and not (words[0] == "compact" or "kafka" in words or words == ["dump-log"]):
        assert out == alone
    assert len(out) >= len(alone) > 0


def test_files_by_the_option(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """--files is one more way to name a path."""
    there, missing = str(data / "__consumer_offsets-0" / LOG), str(data / "missing-0" / LOG)
    for output in ("text", "kafka", "json", "csv"):
        assert main(["dump-log", "--output", output, "--files", f"{missing},{there}"]) == 2
        assert capfd.readouterr().err == f"kcli: {missing}: there is no such file or directory\n"


def test_kafkas_output_prints_what_kafka_prints_before_it_dies(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two lines for a missing log, one for a missing file that Kafka would not know; no word on the name of the file."""
    for name, line in ((LOG, "Log starting offset: 0\n"), ("odd.log", ""), ("odd", "")):
        assert main(["dump-log", str(data / name)]) == 2
        out, err = capfd.readouterr()
        assert out == f"Dumping {data / name}\n{line}" and err.count("\n") == 1


def test_a_named_file_that_cannot_be_opened(data: Path) -> None:
    """As one that is missing; a file that only lies in a directory that was named is a finding."""
    log = data / "__consumer_offsets-0" / LOG
    log.chmod(0)
    with CommandServer() as server:
        for words in (["--output", "text"], ["--output", "kafka"], ["--output", "json"], ["--output", "csv"], ["--stats"]):
            run = server.run("dump-log", *words, log, as_root=False)
            assert run.code == 2 and run.err.count("Permission denied") == run.err.count("\n") == 1, words
            assert "may not read" in run.err and "; change its mode" in run.err, words
        for words in (["--output", "text"], ["--output", "kafka"], ["--output", "json"]):
            run = server.run("dump-log", *words, data, as_root=False)
            assert run.code == 1 and f"{log}: " in run.err, words


def test_a_directory_of_another_user(data: Path) -> None:
    """The message says which user lacks what, who owns the directory, and what to do, also about a file below it."""
    if os.geteuid() != 0:
        pytest.skip("only root may give a directory to another user")
    owner = 54321
    os.chown(data, owner, owner)
    data.chmod(0o700)
    advice = f"{data}, which belongs to {owner} (drwx------); run kcli as user {owner}, or use a copy that belongs to root"
    with CommandServer() as server:
        for words in (["describe"], ["verify"], ["compact"], ["verify", "--repair"], ["dump-log"]):
            run = server.run(*words, data, as_root=False)
            assert (run.code, run.err.count("\n")) == (2, 1) and f"user root may not read {advice}" in run.err, words
        for words in (["describe"], ["verify"], ["dump-log"], ["dump-log", "--output", "text"]):
            run = server.run(*words, data / "__consumer_offsets-0", as_root=False)
            assert run.code == 2 and f"user root may not search {advice}" in run.err, words
        data.chmod(0o755)
        run = server.run("verify", "--repair", "--apply", data, as_root=False)
        assert run.code == 2 and f"user root may not write to {data}, which belongs to {owner}" in run.err


def test_findings_count_less(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Damage in what could be read does not hide that something was not read at all."""
    log = data / "__consumer_offsets-0" / LOG
    log.write_bytes(log.read_bytes() + b"garbage that is long enough to be looked at")
    for words in (["dump-log"], ["dump-log", "--output", "csv"], ["verify"], ["describe"]):
        assert main([*words, str(data)]) == 1
        assert main([*words, str(data), str(data / "missing")]) == 2
    capfd.readouterr()


def test_a_path_with_control_characters(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What a sentence quotes does nothing to a terminal."""
    for words in (["dump-log"], ["dump-log", "--stats"], ["verify"], ["describe"], ["compact"]):
        assert main([*words, str(tmp_path / "\x1b[31m")]) == 2
        err = capfd.readouterr().err
        assert "\x1b" not in err and "\\x1b[31m: there is no such file" in err


@pytest.mark.parametrize("words", [["--key", "nobody"], ["--time", "2001-01-01..2001-01-02"], ["--stats", "--key", "nobody"]])
@pytest.mark.parametrize("output", ["text", "json", "csv"])
def test_a_selection_that_matches_nothing(words: list[str], output: str, data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Says so on stderr; it is no failure."""
    assert main(["dump-log", "--output", output, *words, str(data)]) == 0
    times = "; the timestamps searched are from 2001-01-01T00:00:00.000Z up to, not including, 2001-01-03T00:00:00.000Z"
    assert capfd.readouterr().err == f"kcli: 0 records matched{times if '--time' in words else ''}\n"


@pytest.mark.parametrize(
    ("typed", "searched"),
    [
        ("2100-01-01..", "from 2100-01-01T00:00:00.000Z on"),
        ("..2001-02-03T04:05:06.7", "up to, not including, 2001-02-03T04:05:06.700Z"),
    ],
)
def test_the_searched_times_of_an_open_range(typed: str, searched: str, data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A mistyped year or zone is seen: stderr names the range in UTC as it was understood."""
    assert main(["dump-log", "--time", typed, str(data)]) == 0
    assert capfd.readouterr().err == f"kcli: 0 records matched; the timestamps searched are {searched}\n"


def test_a_selection_that_matches(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Has nothing to say, and neither has a dump without a selection of a log without records."""
    (data / "a-0").mkdir()
    (data / "a-0" / LOG).write_bytes(b"")
    for words in (["--key", "key"], ["--tail", "1"], ["--stats"]):
        assert main(["dump-log", *words, str(data)]) == 0
    assert main(["dump-log", "--output", "csv", str(data / "a-0")]) == 0
    assert main(["dump-log", "--limit", "5", str(data / "a-0")]) == 0
    assert capfd.readouterr().err == ""
