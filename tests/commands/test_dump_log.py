"""Protects `kcli dump-log` as a command: its paths, its choice of output, its decoders, what it refuses and how."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kcli.commands.app import main
from kcli.commands.dump_log import SELECTING, TOPIC_DECODERS, expand
from kcli.log.disk.os_disk import OsDisk
from tests.conftest import FIXTURES
from tests.damage.layout import flip
from tests.inspect.verified import batch, partition, root_files

LOG = f"{0:020d}.log"
OFFSETS = FIXTURES / "kafka-logs" / "data" / "__consumer_offsets-0" / LOG


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for name in ("a-0", "b-0"):
        partition(root, name, [batch(0, 3)])
    root_files(root)
    return root


def test_paths_become_files(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory is walked by name, a glob matched, a file taken as it was typed, there or not; twice is twice."""
    disk = OsDisk()
    whole = expand(disk, [str(data)], {})
    assert whole == sorted(whole) and f"{data}/a-0/{LOG}" in whole and f"{data}/meta.properties" in whole
    assert expand(disk, [f"{data}/"], {}) == whole
    assert expand(disk, [f"{data}/?-0/*.log"], {}) == [f"{data}/{name}/{LOG}" for name in ("a-0", "b-0")]
    assert expand(disk, ["missing.log", "missing.log"], {}) == ["missing.log"] * 2
    monkeypatch.chdir(data)
    assert expand(disk, [f"a-0/{LOG}", f"./a-0/{LOG}"], {}) == [f"a-0/{LOG}", f"./a-0/{LOG}"]
    problems: dict[str, str] = {}
    assert expand(disk, [f"{data}/*.nothing"], problems) == [] and list(problems) == [f"{data}/*.nothing"]
    (data / "star*").write_bytes(b"")
    assert expand(disk, ["star*"], {}) == ["star*"], "a file of that very name"


def test_links_that_lead_back_are_walked_once(data: Path) -> None:
    """A directory that is reached twice has its files once."""
    before = expand(OsDisk(), [str(data)], {})
    (data / "a-0" / "up").symlink_to("..")
    (data / "c-0").symlink_to("a-0")
    assert len(expand(OsDisk(), [str(data)], {})) == len(before)


@pytest.mark.parametrize("output", ["kafka", "text", "json"])
@pytest.mark.parametrize(
    ("name", "sentence"), [("pipe", "neither a plain file nor a directory"), (f"{LOG}.gz", "not a file that Kafka writes")]
)
def test_a_named_file_that_is_not_kafkas_is_an_error(
    data: Path, capfd: pytest.CaptureFixture[str], name: str, sentence: str, output: str
) -> None:
    """Nothing of it was shown, and the exit code was 0. One that is found in a directory is passed over, as by Kafka's tool."""
    path = data / "a-0" / name
    if name == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"\x1f\x8b")
    assert main(["dump-log", "--output", output, str(path)]) == 2
    assert f"{path}: {sentence}" in capfd.readouterr().err
    assert main(["dump-log", "--output", output, str(data / "a-0")]) == 0
    assert main(["dump-log", "--output", output, str(data / "meta.properties")]) == 0


def test_files_by_the_option(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """--files with commas, as kafka-dump-log has it, more than once, and beside plain paths."""
    paths = [f"{data}/{name}/{LOG}" for name in ("a-0", "b-0", "a-0")]
    assert main(["dump-log", "--files", f"{paths[1]},{paths[2]}", paths[0]]) == 0
    assert [line.split()[1] for line in capfd.readouterr().out.splitlines() if line.startswith("Dumping ")] == paths


def test_the_output_is_chosen(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Kafka's in a pipe, text for what Kafka's cannot, and the one that is named."""
    log = f"{data}/a-0/{LOG}"
    assert main(["dump-log", log]) == 0
    plain = capfd.readouterr().out
    assert plain.startswith(f"Dumping {log}\n")
    assert main(["dump-log", "--output", "kafka", log]) == 0
    assert capfd.readouterr().out == plain
    assert main(["dump-log", "--limit", "1", log]) == 0
    text = capfd.readouterr().out
    assert text and not text.startswith("Dumping")
    assert main(["dump-log", "--output", "json", "--limit", "1", log]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["offset"] for line in lines if line["type"] == "record"] == [0]


@pytest.mark.parametrize("option", [*SELECTING, "isolation"])
def test_kafkas_output_selects_nothing(option: str, data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each option that it does not know is refused by name, and never passed over."""
    name = f"--{option.replace('_', '-')}"
    values = {"isolation": ["read_committed"], "limit": ["1"], "tail": ["1"]}
    flags = {"transactional", "control", "aborted", "stats", "follow"}
    words = [] if option in flags else values.get(option, ["1"])
    assert main(["dump-log", "--output", "kafka", name, *words, str(data)]) == 2
    assert capfd.readouterr() == ("", f"kcli: {name} is not possible with --output kafka; use text, json or csv\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name what to show"),
        (["--files", ","], "name what to show"),
        (["--max-bytes", "-1", "x.log"], "--max-bytes takes a number of bytes, 0 or more"),
        (["--value-decoder-class", "com.example.Decoder", "x.log"], "kcli runs no Java classes"),
        (["--key-decoder-class", "no_such:thing", "x.log"], "no_such:thing: cannot be loaded"),
        (["--output", "json", "--offset", "5..x", "x.log"], "--offset"),
        (["--output", "json", "--limit", "-1", "x.log"], "--limit"),
        (["no-*-match"], "there is no such file or directory (nothing matches the pattern)"),
    ],
)
def test_what_cannot_run(words: list[str], sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and a sentence that names the option."""
    assert main(["dump-log", *words]) == 2
    out, err = capfd.readouterr()
    assert out == "" and sentence in err and err.startswith("kcli: ") and "Traceback" not in err


@pytest.mark.parametrize("output", ["kafka", "text", "json", "csv"])
def test_exit_codes(output: str, data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """0 where all is sound, 1 where something is damaged, 2 where a path is missing beside what could be shown."""
    log = data / "a-0" / LOG
    assert main(["dump-log", "--output", output, str(data / "a-0")]) == 0
    capfd.readouterr()
    with open(log, "ab") as file:
        file.write(b"garbage that is long enough to be looked at")
    size = len(batch(0, 3).encode())
    assert main(["dump-log", "--output", output, str(log), str(data / "b-0" / LOG)]) == 1
    reported = "".join(capfd.readouterr())
    assert str(log) in reported and ("json" not in output or f'"position":{size}' in reported)
    assert main(["dump-log", "--output", output, str(data / "missing.log"), str(data / "b-0" / LOG)]) == 2
    assert "missing.log" in "".join(capfd.readouterr())


@pytest.mark.parametrize("option", TOPIC_DECODERS)
def test_a_topics_decoder_wins(option: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Each decoder option implies the records, and is taken whatever the directory is called."""
    assert main(["dump-log", f"--{option.replace('_', '-')}", str(OFFSETS)]) in (0, 1)
    out = capfd.readouterr().out
    assert "| offset: " in out
    assert ('"type":"' in out) == (option == "offsets_decoder") or option != "offsets_decoder"


def test_decoders_by_class(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Kafka's, one's own, and the default of an option without a class; each prints records."""
    (tmp_path / "my_decoders.py").write_text("def shout(data):\n    return data.decode().upper()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    log = f"{data}/a-0/{LOG}"
    assert main(["dump-log", "--value-decoder-class", "my_decoders:shout", "--key-decoder-class", "DefaultDecoder", log]) == 0
    out = capfd.readouterr().out
    assert " payload: VALUE 0" in out and f" key: {b'key'.hex()}" in out
    assert main(["dump-log", "--files", log, "--value-decoder-class"]) == 0
    assert " payload: value 0" in capfd.readouterr().out
    assert main(["dump-log", "--value-decoder-class", "LongDecoder", "--key-decoder-class", "LongDecoder", log]) == 1
    assert "LongDecoder needs 8 bytes, and there are 3" in capfd.readouterr().err


def test_names_that_are_no_text(data: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A path is printed as it was typed, byte for byte."""
    odd = data / os.fsdecode(b"caf\xe9-0")
    partition(data, odd.name, [batch(0)])
    assert main(["dump-log", str(odd / LOG)]) == 0
    assert os.fsencode(str(odd / LOG)) in capfdbinary.readouterr().out


@pytest.mark.parametrize("words", [("--offset", "6.."), ("--key", "key"), ("--offset", "12..")])
def test_damage_follows_the_header_of_its_batch(
    tmp_path: Path, words: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Also of a batch without a selected record: else the sound batch above looks damaged."""
    log = partition(tmp_path, "t-0", [batch(at, 5) for at in (0, 5, 10)]) / f"{0:020}.log"
    flip(log, log.stat().st_size // 2)
    assert main(["dump-log", "--output", "text", *words, str(log)]) == 1
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    (at,) = [at for at, line in enumerate(lines) if line[:1] == ["DAMAGED"]]
    assert lines[at - 1][:2] == ["batch", "5..9"]
