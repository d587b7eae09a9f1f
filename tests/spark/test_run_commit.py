"""The commit of an incremental run, no JVM: a crash at every change of the disk, states that cannot be read, locks, links."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcli.log.disk.os_disk import OsDisk
from kcli.spark.run_commit import RunError, RunOutput, has_state
from kcli.spark.run_state import RunFile, RunState, RunStateError, TopicState, decode_state, encode_state
from tests.spark.test_moving_logs import held

SUFFIXES = ("", ".corrupt")
CHANGES = ("write_file", "rename", "remove", "make_directory", "remove_directory", "flush", "flush_directory", "append")


class FastDisk(OsDisk):
    """A disk that does not wait for the device, which makes the tests faster."""

    def flush(self, path: str) -> None:
        assert self.exists(path)

    def flush_directory(self, path: str) -> None:
        assert self.is_directory(path)

    def write_file(self, path: str, data: bytes) -> None:
        temporary = Path(path + ".tmp")
        temporary.write_bytes(data)
        temporary.replace(path)


class DyingDisk(FastDisk):
    """A machine that loses power before the change number `changes_left`: this one and all later ones are not made."""

    def __init__(self, changes_left: int) -> None:
        self.changes_left = changes_left

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self._counted(found) if name in CHANGES else found

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            self.changes_left -= 1
            if self.changes_left < 0:
                raise OSError("the power is off")
            return call(*args)

        return run


def state_of(run: int, files: tuple[RunFile, ...] = ()) -> RunState:
    topics = {"t": TopicState("AAAAAAAAAAAAAAAAAAAAAQ", "cluster", {0: run * 10, 11: run})}
    return RunState(run, {"columns": "offset"}, "struct<offset:bigint>", None, topics, files)


def one_run(out: Path, disk: FastDisk) -> int:
    """A run as kcli does it, with two files of rows, one of them in a folder, and one of a side table -> its number."""
    output = RunOutput(disk, str(out), SUFFIXES)
    try:
        output.recover()
        before = output.read_state()
        run = before.run + 1 if before else 1
        for suffix, name in (("", "part-0"), ("", "topic=a/date=b/part-1"), ("", "_x=1/part-2"), (".corrupt", "part-0")):
            path = Path(output.staging(suffix), "attempt", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"rows of run {run}")
            (path.parent / f".{path.name}.crc").write_text("a checksum of Hadoop's")
        Path(output.staging(""), "attempt", "_SUCCESS").touch()
        files = tuple(output.target(suffix, name, run) for suffix in SUFFIXES for name in output.staged_files(suffix))
        output.commit(state_of(run, files))
        return run
    finally:
        output.close()


def data(out: Path) -> dict[str, str]:
    """What a reader sees of an output and its side table: names that begin with _ or . are not data."""
    found = {}
    for suffix in SUFFIXES:
        root = out.with_name(out.name + suffix)
        for path in root.rglob("*") if root.exists() else ():
            words = path.relative_to(root).parts
            if path.is_file() and not any(word.startswith((".", "_")) and "=" not in word for word in words):
                found[f"{suffix}/{path.relative_to(root)}"] = path.read_text()
    return found


def expected(runs: int) -> dict[str, str]:
    return {
        f"{place}run-{run:08d}-{name}": f"rows of run {run}"
        for run in range(1, runs + 1)
        for place, name in (("/", "part-0"), ("/topic=a/date=b/", "part-1"), ("/_x=1/", "part-2"), (".corrupt/", "part-0"))
    }


@pytest.mark.parametrize("relative", [False, True])
def test_three_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool) -> None:
    """Each run adds its files under its own number, and leaves nothing else but the state."""
    monkeypatch.chdir(tmp_path)
    for run in (1, 2, 3):
        assert one_run(Path("out") if relative else tmp_path / "out", FastDisk()) == run
        assert data(tmp_path / "out") == expected(run)
    assert sorted(path.name for path in (tmp_path / "out" / "_kcli_state").iterdir()) == ["lock", "state.json"]
    assert has_state(FastDisk(), str(tmp_path / "out")) and not has_state(FastDisk(), str(tmp_path))


def test_a_crash_at_every_change(tmp_path: Path) -> None:
    """After a crash at any step, and one at any step of the recovery, the run's files are all there once or not at all.

    And the state says the same as the files: rows are never lost and never written twice.
    """
    changes, steps, outcomes = 0, 0, set()
    while True:
        out = tmp_path / f"out-{changes}"
        one_run(out, FastDisk())
        disk = DyingDisk(changes)
        try:
            one_run(out, disk)
            break
        except OSError as error:
            assert str(error) == "the power is off"
        crashed = [tmp_path / f"out-{changes}{suffix}" for suffix in SUFFIXES]
        again = 0
        while True:
            for path in crashed:
                copy = path.with_name(path.name.replace("out", "copy"))
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(path, copy, symlinks=True)
            copied = out.with_name(f"copy-{changes}")
            try:
                output = RunOutput(DyingDisk(again), str(copied), SUFFIXES)
                output.recover()
                break
            except OSError as error:
                assert str(error) == "the power is off"
            again += 1
            steps += 1
            output = RunOutput(FastDisk(), str(copied), SUFFIXES)
            output.recover()
            state = output.read_state()
            output.close()
            assert state is not None and data(copied) == expected(state.run)
            assert not Path(output.staging("")).exists() and not Path(output.staging(".corrupt")).exists()
        outcomes.add(state.run)
        runs = one_run(out, FastDisk())
        assert runs == state.run + 1 and data(out) == expected(runs)
        changes += 1
    assert outcomes == {1, 2} and changes > 20 and steps > 50


def test_a_crash_of_the_first_run(tmp_path: Path) -> None:
    """There may be no state before it: the next run is the first, or the second where the first was committed."""
    outcomes = set()
    for changes in range(100):
        out = tmp_path / f"out-{changes}"
        try:
            one_run(out, DyingDisk(changes))
            break
        except OSError:
            run = one_run(out, FastDisk())
            assert data(out) == expected(run)
            outcomes.add(run)
    assert outcomes == {1, 2}


def test_a_run_without_files(tmp_path: Path) -> None:
    """Offsets may advance though there is nothing to write."""
    output = RunOutput(FastDisk(), str(tmp_path / "out"), SUFFIXES)
    output.commit(state_of(1))
    assert output.read_state() == state_of(1)
    assert data(tmp_path / "out") == {}


def test_a_second_run_at_the_same_time(tmp_path: Path) -> None:
    """It is refused while another process holds the lock, by any path to the output."""
    one_run(tmp_path / "out", FastDisk())
    (tmp_path / "link").symlink_to("out")
    with held(tmp_path / "out" / "_kcli_state" / "lock"):
        for name in ("out", "link"):
            with pytest.raises(RunError, match=r"another run writes to .* wait until it ends"):
                RunOutput(FastDisk(), str(tmp_path / name), SUFFIXES)
    assert one_run(tmp_path / "link", FastDisk()) == 2


@pytest.mark.parametrize("name", ["state.json", "pending.json"])
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda text: text[: len(text) // 2], "not JSON"),
        (lambda text: "", "not JSON"),
        (lambda text: "[]", "version"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "another version"),
        (lambda text: text.replace('"11": ', '"11": 9'), "checksum"),
    ],
)
def test_a_state_that_cannot_be_read(tmp_path: Path, name: str, spoil: Callable[[str], str], says: str) -> None:
    """It is not treated as an empty one, which would write all rows again; the data is not changed."""
    out = tmp_path / "out"
    one_run(out, FastDisk())
    path = out / "_kcli_state" / name
    path.write_text(spoil(encode_state(state_of(1 if name == "state.json" else 2)).decode()))
    before = data(out)
    with pytest.raises(RunError, match=f"cannot read .*{name}: .*{says}"):
        one_run(out, FastDisk())
    assert data(out) == before


def test_a_pending_run_that_does_not_follow(tmp_path: Path) -> None:
    """A state that was restored from a backup below a newer pending run would lose rows."""
    out = tmp_path / "out"
    one_run(out, FastDisk())
    (out / "_kcli_state" / "pending.json").write_bytes(encode_state(state_of(3)))
    with pytest.raises(RunError, match="they do not belong together"):
        one_run(out, FastDisk())


def test_a_moved_file_that_is_gone(tmp_path: Path) -> None:
    """A file that is neither staged nor in place is named: nothing is committed that is not there."""
    out = tmp_path / "out"
    one_run(out, FastDisk())
    missing = RunFile("", "_kcli_state/staging/attempt/part-7", "run-00000002-part-7")
    (out / "_kcli_state" / "pending.json").write_bytes(encode_state(state_of(2, (missing,))))
    with pytest.raises(RunError, match=r"part-7 of the interrupted run 2 is missing, and so is the staged file .*part-7"):
        one_run(out, FastDisk())


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", "a//b"])
@pytest.mark.parametrize("field", [1, 2])
def test_files_that_lead_elsewhere(tmp_path: Path, path: str, field: int) -> None:
    """A state in an output from elsewhere cannot have kcli rename other files."""
    words = ["", "_kcli_state/staging/a/part", "part"]
    words[field] = path
    with pytest.raises(RunStateError, match="not a file of a run"):
        decode_state(encode_state(state_of(1, (RunFile(*words),))), SUFFIXES)
    with pytest.raises(RunStateError, match="not a file of a run"):
        decode_state(encode_state(state_of(1, (RunFile(".other", "a", "b"),))), SUFFIXES)


def test_a_state_comes_back_as_it_was() -> None:
    """Decoding an encoded state returns the same state, with any names."""
    state = state_of(3, (RunFile(".corrupt", "a/b", "c=ü/d"),))._replace(value_schema="`a b` STRING", schema=None)
    assert decode_state(encode_state(state), SUFFIXES) == state
    assert state.offsets == {("t", 0): 30, ("t", 11): 3}
    for field in ("run", "options", "topics", "files", "schema"):
        found = json.loads(encode_state(state))
        found.pop(field)
        with pytest.raises(RunStateError):
            decode_state(json.dumps(found).encode(), SUFFIXES)


def test_what_is_there_before_the_first_run(tmp_path: Path) -> None:
    """Files of which no state says what they hold, an output that is a file, a state directory on another disk."""
    (tmp_path / "out").mkdir()
    output = RunOutput(FastDisk(), str(tmp_path / "out"), SUFFIXES)
    output.check_is_new()
    (tmp_path / "out.corrupt").mkdir()
    (tmp_path / "out.corrupt" / "part-0").touch()
    with pytest.raises(RunError, match=r"out\.corrupt is not empty and has no state"):
        output.check_is_new()
    output.close()
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file exists and is not a directory"):
        RunOutput(FastDisk(), str(tmp_path / "file"), SUFFIXES)
    (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(RunError, match="gone exists and is not a directory"):
        RunOutput(FastDisk(), str(tmp_path / "gone"), SUFFIXES)


def test_a_link_in_the_output_to_another_file_system(tmp_path: Path) -> None:
    """A rename is not possible there: refused before the commit, not in the middle of it."""

    class TwoDevices(FastDisk):
        def device(self, path: str) -> int:
            return 2 if "elsewhere" in str(Path(path).resolve()) else 1

    out = tmp_path / "out"
    one_run(out, TwoDevices())
    (tmp_path / "elsewhere").mkdir()
    shutil.rmtree(out / "topic=a")
    (out / "topic=a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="another file system"):
        one_run(out, TwoDevices())
    output = RunOutput(TwoDevices(), str(out), SUFFIXES)
    state = output.read_state()
    assert state is not None and state.run == 1


def test_links_among_staged_files_are_not_followed(tmp_path: Path) -> None:
    """Removing what a crash left removes links, not what they lead to."""
    out = tmp_path / "out"
    one_run(out, FastDisk())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    staging = out / "_kcli_state" / "staging"
    staging.mkdir()
    (staging / "link").symlink_to(tmp_path / "mine")
    output = RunOutput(FastDisk(), str(out), SUFFIXES)
    assert output.recover().removed_staging and not staging.exists()
    assert (tmp_path / "mine" / "file").exists()
