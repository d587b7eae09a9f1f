"""Protects the recipe of docs/to-parquet.md for a cluster: its commands, as they are on the page, make one and use it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import FIXTURES, ROOT
from tests.oracle.peer import free_ports

RECIPE = re.compile(r"<!-- recipe: cluster -->\n\n```console\n(.*?)```\n", re.DOTALL)
STARTED = {"Master": "I have been elected leader", "Worker": "Successfully registered with master"}
INFO_LOG = """rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %m%n
"""

pytestmark = [pytest.mark.ci, pytest.mark.spark]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A small worker without web pages, whose log says when it is ready."""
    if shutil.which("java") is None:
        pytest.skip("no java on the PATH, which Spark's own scripts start")
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "log4j2.properties").write_text(INFO_LOG)
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    return keep | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER_WEBUI_PORT": "0",
        "SPARK_WORKER_WEBUI_PORT": "0",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_CORES": "1",
        "SPARK_WORKER_DIR": str(tmp_path / "worker"),
    }


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """What is started here is ended at the end, the last one first."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in reversed(started):
        process.terminate()
        process.communicate(timeout=60)


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Read what a process logs up to a line with a text; its end is a failure."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if text in line:
            return
    raise AssertionError("".join(seen))


def test_the_recipe_of_the_page(environment: dict[str, str], processes: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    """Variables, master, worker, to-parquet; every row is in the files, and the worker's executor wrote them."""
    found = RECIPE.search((ROOT / "docs" / "to-parquet.md").read_text(encoding="utf-8"))
    assert found is not None
    out = tmp_path / "out"
    page = found[1].replace("7077", str(free_ports())).replace("OUT", str(out))
    page = page.replace("LOGDIR", str(FIXTURES / "kafka-logs" / "data"))
    lines = page.splitlines()
    exports = "; ".join(line.partition("  #")[0] for line in lines if line.startswith("export"))
    ended = []
    for line in (line for line in lines if not line.startswith("export")):
        command = ["bash", "-c", f"{exports}; exec {line}"]
        if "spark-class" not in line:
            ended.append(subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False))
            continue
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        )
        (text,) = [text for name, text in STARTED.items() if name in line]
        wait_for(processes[-1], text)
    (ran,) = ended
    assert ran.returncode == 0, ran.stderr
    assert f"350 rows written to {out}" in ran.stdout
    assert list(out.glob("*.parquet")) and list((tmp_path / "worker").glob("app-*"))
