"""One Spark session for all tests that need one; the rest of the tests here call the source's classes directly."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcli.commands import to_parquet
from tests.conftest import ROOT
from tests.spark.to_parquet_run import TOTALS_LINE, Run, parse

# Without the extra `spark` there is nothing here to test.
HAS_SPARK = all(importlib.util.find_spec(name) is not None for name in ("pyspark", "pyarrow"))
collect_ignore_glob = [] if HAS_SPARK else ["test_*.py"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All tests with Spark run in one process, so that one JVM serves them."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session as kcli starts it, on two cores; Python workers find this checkout by PYTHONPATH, as an installed kcli."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    from kcli.spark.session import start_session

    session = start_session(
        "local[2]",
        "kcli tests",
        {
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
        },
    )
    yield session
    session.stop()


@pytest.fixture
def run(spark: Any, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run `kcli to-parquet` in the tests' session -> (exit code, stdout but for the line that has the time, stderr)."""

    def started(*_: object, log_level: str) -> Any:
        spark.sparkContext.setLogLevel(log_level)
        return spark

    monkeypatch.setattr("kcli.spark.session.start_session", started)
    monkeypatch.setattr(spark, "stop", lambda: None, raising=False)

    def call(*words: str | Path) -> tuple[int, str, str]:
        capfdbinary.readouterr()
        code = to_parquet.run(parse(*map(str, words)))
        out, err = capfdbinary.readouterr()
        return code, TOTALS_LINE.sub("", out.decode()), err.decode()

    return call
