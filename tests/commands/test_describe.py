"""Protects `kcli describe` as a command: its exit codes, its options, what goes to which stream."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kcli.commands.app import main
from kcli.inspect.description.describe_options import SECTIONS
from tests.conftest import FIXTURES

DATA = str(FIXTURES / "kafka-logs" / "data")


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["describe", *arguments])
    out, err = capfd.readouterr()
    return code, out, err


def test_an_overview_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, DATA)
    assert (code, err) == (0, "")
    assert out.startswith("cluster kcliKcliKcliKcliKcliKg\n") and "\ntransactional ids\n" in out
    assert "\x1b" not in out and out.endswith("\n")


def test_sections_by_name(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, DATA, "--show", "acls, users", "--show", "quotas")
    assert code == 0
    assert [line for line in out.splitlines() if line and not line.startswith(" ")] == [
        "access control",
        "SCRAM credentials",
        "client quotas",
    ]


def test_json_has_every_section_unless_some_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capfd, DATA, "--output", "json")
    objects = [json.loads(line) for line in out.splitlines()]
    assert len(objects[-1]["rows"]) == len(SECTIONS) + 2  # controllers with brokers, open transactions with transactions
    _, out, _ = run(capfd, DATA, "--output", "json", "--show", "topics", "--topic", "orders")
    objects = [json.loads(line) for line in out.splitlines()]
    assert [one["type"] for one in objects] == ["schema", "topic", "summary"] and objects[1]["name"] == "orders"


def test_a_group_and_a_topic_by_globs(capfd: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capfd, DATA, "--group", "by-*")
    assert "\ncommitted offsets\n" in out and "set by hand" in out and "classic-group" not in out
    _, out, _ = run(capfd, DATA, "--topic", "codec-*")
    assert "\npartitions\n" in out and "orders" not in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name what to describe"),
        (["no/such/place"], "there is no such file or directory"),
        ([DATA, "--show", "topic"], "--show: 'topic' is not a section; the sections are cluster, brokers"),
        ([f"{DATA}/meta.properties"], "a file; describe takes log directories and partitions"),
        ([DATA, DATA.replace("kafka-logs", "kafka-logs-legacy")], "several clusters"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, *arguments)
    assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1


def test_damage_is_reported_on_stderr_and_by_the_exit_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(f"{DATA}/orders-0", tmp_path / "orders-0")
    log = next(iter((tmp_path / "orders-0").glob("*.log")))
    log.write_bytes(log.read_bytes()[:-1])
    code, out, err = run(capfd, str(tmp_path))
    assert code == 1 and "orders-0" in out
    assert err.startswith(f"kcli: {log}: byte ") and "left in the file" in err
    code, _, err = run(capfd, str(tmp_path), str(tmp_path / "missing"))
    assert code == 2 and "no such file" in err


def test_a_partition_is_known_from_within(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition is what its directory is called, also where that is "."."""
    monkeypatch.chdir(f"{DATA}/orders-1")
    code, out, _ = run(capfd, ".")
    assert code == 0 and "\n  orders-1 " in out
    monkeypatch.chdir(DATA)
    _, out, _ = run(capfd, ".", DATA, f"{DATA}/", "--output", "json", "--show", "cluster")
    assert len(json.loads(out.splitlines()[1])["logDirectories"]) == 1


def test_nothing_is_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(DATA, tmp_path / "data")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")}
    assert run(capfd, str(tmp_path / "data"), "--show", "all", "--deep")[0] == 0
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")} == before
