"""`kcli to-parquet --incremental` as a command: summary, decoding, partitions and side table in one commit, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kcli.commands import to_parquet
from kcli.commands.output import EXIT_CANNOT_RUN, EXIT_FINDINGS, EXIT_OK, CannotRun
from kcli.log.disk.os_disk import OsDisk
from kcli.spark.session import SparkError
from tests.log_builder import PartitionBuilder
from tests.spark.test_to_parquet import build, digests
from tests.spark.to_parquet_run import Run, parse

WARNING = "--mode append may write the same rows again; --incremental, with a new directory"


def values(log: PartitionBuilder, first: int, count: int) -> None:
    for number in range(first, first + count):
        log.append([(b"k", json.dumps({"id": number, "name": f"n{number:03}"}).encode())])
    log.flush()


def offsets_in(out: Path) -> list[int]:
    return sorted(row["offset"] for row in pq.read_table(out).to_pylist())


# ------------------------------------------------------------------------------------------------------------ no Spark


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting Spark fails, so a run that gets here has passed all checks."""

    def started(*_: object, **__: object) -> None:
        raise SparkError("Spark would start now")

    monkeypatch.setattr("kcli.spark.session.start_session", started)


@pytest.mark.parametrize(
    ("words", "there", "warned"),
    [
        (("--mode", "append"), True, True),
        (("--mode", "append"), False, False),
        (("--mode", "overwrite"), True, False),
    ],
)
def test_append_says_that_rows_may_be_there_twice(
    no_spark: None, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], there: bool, warned: bool
) -> None:
    """In one sentence on stderr, if the output has files that may contain rows."""
    build(tmp_path / "logs")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ("part-0.parquet" if there else "_SUCCESS")).touch()
    with pytest.raises(CannotRun, match="would start"):
        to_parquet.run(parse(str(tmp_path / "logs"), "--out", str(tmp_path / "out"), *words))
    assert capfd.readouterr().err.count(WARNING) == warned


def test_refusals_before_spark_starts(no_spark: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and a sentence; an output that is refused is not touched."""
    build(tmp_path / "logs")
    words = [str(tmp_path / "logs"), "--incremental", "--out"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "part-0.parquet").touch()
    (tmp_path / "file").touch()
    for out, more, says in (
        ("s3a://bucket/out", [], "s3a://bucket/out is not; run without --incremental"),
        (str(tmp_path / "out"), ["--mode", "overwrite"], "it cannot be used with --mode overwrite"),
        (str(tmp_path / "out"), ["--table", "batches"], "it cannot be used with the table batches"),
        (str(tmp_path / "full"), [], "is not empty and has no state of incremental runs"),
        (str(tmp_path / "file"), [], "is not a directory"),
        (str(tmp_path / "logs" / "new"), [], "is in the input"),
    ):
        assert to_parquet.run(parse(*words, out, *more)) == EXIT_CANNOT_RUN
        err = capfd.readouterr().err
        assert says in err and err.count("\n") == 1, err
    assert not (tmp_path / "out").exists() and not (tmp_path / "logs" / "new").exists()


def test_nothing_new_needs_no_spark(no_spark: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 and a sentence, and no file."""
    log = PartitionBuilder(tmp_path / "logs" / "t-0")
    values(log, 0, 3)
    words = [str(tmp_path / "logs"), "--out", str(tmp_path / "out"), "--incremental", "--starting-offsets", "latest"]
    assert to_parquet.run(parse(*words)) == EXIT_OK
    assert capfd.readouterr() == (f"nothing new: no rows written to {tmp_path / 'out'}\n", "")
    assert to_parquet.run(parse(*words)) == EXIT_OK
    assert capfd.readouterr() == (f"nothing new since run 1: no rows written to {tmp_path / 'out'}\n", "")
    report = tmp_path / "report.json"
    assert to_parquet.run(parse(*words, "--report", str(report))) == EXIT_OK
    capfd.readouterr()
    summary = json.loads(report.read_text())
    assert (summary["run"], summary["rows"], summary["exitCode"]) == (None, 0, EXIT_OK)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_kcli_state"]
    values(log, 3, 1)
    with pytest.raises(CannotRun, match="would start"):
        to_parquet.run(parse(*words))


@pytest.mark.parametrize("mode", ["overwrite", "append", "error"])
def test_other_modes_leave_an_incremental_output_alone(
    no_spark: None, tmp_path: Path, capfd: pytest.CaptureFixture[str], mode: str
) -> None:
    """Replacing it would lose the state, and rows that are appended would be unknown to it."""
    PartitionBuilder(tmp_path / "logs" / "t-0").flush()
    words = [str(tmp_path / "logs"), "--out", str(tmp_path / "out")]
    assert to_parquet.run(parse(*words, "--incremental")) == EXIT_OK
    before = digests(tmp_path)
    assert to_parquet.run(parse(*words, "--mode", mode)) == EXIT_CANNOT_RUN
    assert "is written by incremental runs, whose state is in" in capfd.readouterr().err
    assert digests(tmp_path) == before


# ---------------------------------------------------------------------------------------------------------- with Spark


@pytest.mark.spark
def test_runs_with_everything(run: Run, spark: Any, tmp_path: Path) -> None:
    """JSON by a schema that the first run finds, directories, corrupt places: each row and each place is there once."""
    log = PartitionBuilder(tmp_path / "logs" / "t-0")
    values(log, 0, 10)
    path = log.path(".log")

    def spoil(*numbers: int) -> None:
        data = path.read_bytes()
        for number in numbers:
            data = data.replace(b'"n%03d"' % number, b'"x%03d"' % number)
        path.write_bytes(data)

    out = tmp_path / "o{u}*[t] %20#"
    words = (tmp_path / "logs", "--out", out, "--incremental", "--decode-value", "json", "--partition-by", "topic,date")
    spoil(4)
    code, text, err = run(*words)
    assert code == EXIT_FINDINGS and "CRC" in err and not text
    assert sorted(item.name for item in out.iterdir()) == ["_kcli_state"]
    code, text, err = run(*words, "--on-corrupt", "skip")
    assert code == EXIT_FINDINGS and err.count("the batch's CRC is") == 1
    assert text.splitlines()[0].startswith("t-0: 9 rows; offsets 0 to 9; 1 corrupt place skipped (")
    assert text.splitlines()[1:] == [f"9 rows written to {out} by run 1", f"1 corrupt place is listed in {out}.corrupt"]

    values(log, 10, 4)
    log.append([(b"k", b'{"id": 14, "more": 1}'), (b"k", b"not json")])
    values(log, 16, 2)
    spoil(4, 12)
    code, text, err = run(*words, "--on-corrupt", "skip")
    assert code == EXIT_FINDINGS and err.count("the batch's CRC is") == 1
    assert text.splitlines()[0].startswith("t-0: 7 rows; offsets 10 to 17; 1 corrupt place skipped (")
    assert f"7 rows written to {out} by run 2" in text and "1 rows were not decoded" in text
    assert offsets_in(out) == [offset for offset in range(18) if offset not in (4, 12)]
    rows = {row["offset"]: row for row in pq.read_table(out).to_pylist()}
    assert rows[14]["value"] == {"id": 14, "name": None} and rows[15]["value"] is None
    undecoded = pq.read_table(f"{out}.undecoded").to_pylist()
    assert [(row["offset"], row["value"], row["column"]) for row in undecoded] == [(15, b"not json", "value")]
    assert [row["baseOffset"] for row in pq.read_table(f"{out}.corrupt").to_pylist()] == [4, 12]
    (tmp_path / "link").symlink_to(out)
    assert spark.read.parquet(str(tmp_path / "link")).count() == 16
    names = [file.relative_to(out).as_posix() for file in out.rglob("*.parquet")]
    assert all(name.startswith("topic=t/date=2023-11-14/run-0000000") for name in names)
    assert not [
        file for folder in (out, tmp_path / f"{out.name}.corrupt") for file in folder.rglob("*") if file.name == "staging"
    ]

    before = digests(tmp_path)
    assert run(*words)[:2] == (EXIT_OK, f"nothing new since run 2: no rows written to {out}\n")
    assert digests(tmp_path) == before
    values(log, 18, 1)
    spoil(4, 12)
    code, _, err = run(*words, "--value-schema", "id string")
    assert code == EXIT_CANNOT_RUN and "decoded the values by the schema" in err
    assert run(*words, "--value-schema", "id bigint, name string")[0] == EXIT_OK
    assert offsets_in(out)[-2:] == [17, 18]


@pytest.mark.spark
@pytest.mark.parametrize("step", ["pending", "first move", "second move", "state"])
def test_a_run_that_dies_while_it_commits(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The next run completes it, or reads its records again; and then adds what is new."""
    logs = [PartitionBuilder(tmp_path / "logs" / f"t-{number}") for number in range(2)]
    for log in logs:
        values(log, 0, 3)
    out = tmp_path / "out"
    words = (tmp_path / "logs", "--out", out, "--incremental", "--columns", "partition,offset", "--partition-by", "partition")
    renames: list[str] = []

    class Dead(BaseException):
        pass

    def rename(disk: OsDisk, source: str, target: str) -> None:
        renames.append(target)
        if len(renames) == {"first move": 1, "second move": 2, "state": 3}.get(step):
            raise Dead
        Path(source).rename(target)

    def write_file(disk: OsDisk, path: str, data: bytes) -> None:
        raise Dead

    with monkeypatch.context() as patched:
        patched.setattr(OsDisk, "rename", rename)
        if step == "pending":
            patched.setattr(OsDisk, "write_file", write_file)
        with pytest.raises(Dead):
            run(*words)
    for log in logs:
        values(log, 3, 2)
    code, text, err = run(*words)
    assert code == EXIT_OK
    assert ("run 1 on" in err and "it has been completed" in err) == (step != "pending")
    assert f"by run {1 if step == 'pending' else 2}\n" in text
    assert offsets_in(out) == sorted([*range(5), *range(5)])


@pytest.mark.spark
def test_executors_elsewhere(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that tasks report by a row of their own are counted and committed in the same way."""
    log = PartitionBuilder(tmp_path / "logs" / "t-0")
    values(log, 0, 5)
    monkeypatch.setattr("kcli.spark.parquet_export.is_on_this_machine", lambda master: False)
    words = (tmp_path / "logs", "--out", tmp_path / "o u,t", "--incremental")
    assert "5 rows written" in run(*words)[1]
    values(log, 5, 2)
    assert f"2 rows written to {tmp_path / 'o u,t'} by run 2\n" in run(*words)[1]
    assert offsets_in(tmp_path / "o u,t") == list(range(7))


@pytest.mark.spark
def test_a_run_of_control_records_only(run: Run, tmp_path: Path) -> None:
    """Offsets advance and no file without rows is left."""
    log = PartitionBuilder(tmp_path / "logs" / "t-0")
    log.append([(b"k", b"v")], producer=1, transactional=True)
    log.flush()
    words = (tmp_path / "logs", "--out", tmp_path / "out", "--incremental")
    assert run(*words)[0] == EXIT_OK
    log.end_transaction(1, commit=True)
    log.flush()
    code, text, _ = run(*words)
    assert code == EXIT_OK
    assert text == (f"t-0: 0 rows; offsets 1 to 1; 1 control record left out\n0 rows written to {tmp_path / 'out'} by run 2\n")
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 1
