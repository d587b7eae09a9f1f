"""One Spark session for all tests that need one; the rest of the tests here call the source's classes directly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ROOT

pytest.importorskip("pyspark", reason="needs the extra `spark`")
pytest.importorskip("pyarrow", reason="needs the extra `spark`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests with Spark run in one process, so that one JVM serves them."""
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
