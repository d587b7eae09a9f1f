"""Protects the sentences of `kcli to-parquet`: no word of Spark, Hadoop or Java is shown, whatever fails below it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from kcli.commands.output import EXIT_CANNOT_RUN, EXIT_FINDINGS
from kcli.spark.session import SparkError, check_worker_python
from kcli.spark.spark_errors import ExportError, sentence, translated
from tests.damage.layout import flip
from tests.log_builder import PartitionBuilder
from tests.spark.to_parquet_run import Run

STAGE = (
    "An error occurred while calling o77.parquet.\n: org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 "
    "in stage 0.0 failed 1 times, most recent failure: Lost task 3.0 in stage 0.0 (TID 3) (localhost executor driver): {}\n"
    "\tat org.apache.spark.scheduler.Task.run(Task.scala:147)\n"
)
WORDS_OF_SPARK = ("Set mode as", "Job aborted", "Mkdirs failed", "org.apache", "java.", "Traceback", "SQLSTATE", "stage 0.0")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '[PATH_ALREADY_EXISTS] Path file:/o already exists. Set mode as "overwrite" to overwrite the existing path.',
            "the output /o already exists; --mode overwrite replaces it",
        ),
        (
            STAGE.format("java.io.IOException: Mkdirs failed to create file:/o/_temporary/0 (exists=false, cwd=file:/)"),
            "cannot write the output /o: the directory cannot be created; choose another output",
        ),
        (
            STAGE.format("java.io.FileNotFoundException: /o/part-0 (Permission denied)"),
            "cannot write the output /o: permission denied",
        ),
        (STAGE.format("java.io.IOException: No space left on device"), "cannot write the output /o: no space is left"),
        (
            'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "foo"',
            "cannot reach the output /o",
        ),
        (STAGE.format("java.lang.IllegalStateException: a reason"), "a reason"),
        (
            STAGE.format(
                "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
                '  File "a.py", line 1, in f\n    g()\n    ^^^\n  File "b.py", line 2, in g\n    h()\n'
                "OSError: [Errno 5] Input/output error: '/logs/t-0/0.log'\n"
            ),
            "a Python worker of Spark failed: OSError: [Errno 5] Input/output error: '/logs/t-0/0.log'",
        ),
        (
            STAGE.format("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)."),
            "ended before the end of its task",
        ),
    ],
)
def test_texts_of_spark(text: str, says: str) -> None:
    """Texts as Spark 4.3 gives them: the reason is kept, the words around it go, and the sentence says what to do."""
    said = sentence(text, "/o")
    assert says in said and "\n" not in said
    assert not [word for word in WORDS_OF_SPARK if word in said], said


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("echo 2.7", "exit 0"), "which is Python 2.7, but kcli runs in Python"),
        (("echo OWN", "echo 'ModuleNotFoundError: No module named x' >&2", "exit 1"), "ModuleNotFoundError: No module named x"),
        ((), "which cannot be run"),
    ],
)
def test_a_python_of_the_workers_that_does_not_fit(tmp_path: Path, lines: tuple[str, ...], says: str) -> None:
    """PYSPARK_PYTHON of another version or environment is named before Spark starts, which would name a Java exception."""
    python = tmp_path / "python"
    if lines:
        python.write_text("\n".join(("#!/bin/sh", *lines)).replace("OWN", f"{sys.version_info.major}.{sys.version_info.minor}"))
        python.chmod(0o755)
    with pytest.raises(SparkError, match=f"^PYSPARK_PYTHON names {python}, .*{says}.*; unset it, or set it to "):
        check_worker_python("PYSPARK_PYTHON", str(python))
    check_worker_python("PYSPARK_PYTHON", sys.executable)


@pytest.mark.spark
def test_outputs_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    """An output under a file, one that cannot be made, one without a file system: the output and the reason."""
    log = PartitionBuilder(tmp_path / "logs" / "t-0")
    log.append([(b"k", b"v")] * 3)
    log.flush()
    (tmp_path / "file").write_text("")
    outs = {tmp_path / "file" / "out": "file is not a directory", "foo://host/out": "no jar for its scheme"}
    if Path("/proc/self").exists():
        outs["/proc/out"] = "the directory cannot be created"
    for out, says in outs.items():
        code, _, err = run(tmp_path / "logs", "--out", out)
        assert code == EXIT_CANNOT_RUN and says in err and err.count("\n") == 1, err
        assert re.match(f"kcli: cannot (write|reach) the output {re.escape(str(out))}:", err), err
        assert not [word for word in WORDS_OF_SPARK if word in err], err
    code, _, err = run(tmp_path / "logs", "--out", tmp_path / "out", "--partition-by", "headers")
    assert code == EXIT_CANNOT_RUN and err == "kcli: cannot partition by headers: its type is array\n"
    flip(log.path(".log"), -1)
    code, _, err = run(tmp_path / "logs", "--out", tmp_path / "out")
    assert (
        code == EXIT_FINDINGS and err.startswith(f"kcli: {log.path('.log')}: byte 0: the batch's CRC") and err.count("\n") == 1
    )


@pytest.mark.spark
def test_workers_that_fail(spark: Any) -> None:
    """The last line of the worker's traceback; for a worker that was killed, that it was."""
    spark.sparkContext.setLogLevel("OFF")

    def run_in_worker(act: Any) -> None:
        frame = spark.range(1).select(F.udf(act, useArrow=False)("id"))
        translated(lambda: frame.collect(), "/o")

    with pytest.raises(ExportError, match=r"^a Python worker of Spark failed: FileNotFoundError: .*'/nothing/file'$"):
        run_in_worker(lambda _: open("/nothing/file"))
    with pytest.raises(ExportError, match=r"^a Python worker of Spark ended before the end of its task"):
        run_in_worker(lambda _: os._exit(3))
