"""Protects what the authors of clients count on: librdkafka's and kafka-python's own integration suites pass on kcli.

The suites come with ../shared/conformance, whose scripts build them once into a cache. Left out, by name and with the reason in
conformance_excluded.txt, is what needs what kcli does not serve yet: it fails at Apache Kafka, too, behind a proxy that hides
those APIs (tests/oracle/hiding_proxy.py; `python -m tests.oracle.hiding_proxy` tells how it is used).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oracle.brokers import KcliBroker

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

EXCLUDED_FILE = Path(__file__).parent / "conformance_excluded.txt"
SUITE_SECONDS = 2400
ADMIN_SUBTESTS = (
    *("CreateTopics", "DeleteTopics", "CreatePartitions", "AlterConfigs", "DescribeConfigs", "DeleteRecords"),
    *("DescribeTopics", "DescribeCluster", "ListOffsets"),
)


def excluded(suite: str) -> dict[str, str]:
    """The tests of a suite that are left out -> why."""
    rows = [line.split(maxsplit=2) for line in EXCLUDED_FILE.read_text().splitlines() if line and not line.startswith("#")]
    return {name: reason for of, name, reason in rows if of == suite}


@pytest.fixture(scope="module")
def bootstrap(kcli_serves: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker as the suites want it: broker.properties beside them, without the authorizer."""
    home = tmp_path_factory.mktemp("conformance")
    settings = ("node.id=0", "num.partitions=4", "auto.create.topics.enable=true", "group.min.session.timeout.ms=1000")
    broker = KcliBroker(home, *settings, advertised=True)
    with broker:
        yield broker.bootstrap


def run_suite(script: Path, bootstrap: str, *words: str, **environment: str) -> str:
    """What the script of a suite prints."""
    command = [str(script), bootstrap, *words]
    variables = {**os.environ, **environment}
    ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=SUITE_SECONDS, check=False)
    assert ran.returncode in (0, 1), ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout


def test_kafka_python(bootstrap: str, shared: Path) -> None:
    """kafka-python's integration tests, but those that are left out."""
    only = f"not ({' or '.join(excluded('kafka-python'))})"
    printed = run_suite(shared / "conformance" / "kafka-python" / "run", bootstrap, "-k", only)
    counts = re.search(r"(\d+) passed, (\d+) failed, (\d+) skipped\s*\Z", printed)
    assert counts is not None and counts[2] == "0", printed[-6000:]
    assert int(counts[1]) >= 40, printed[-3000:]


def test_librdkafka(bootstrap: str, shared: Path) -> None:
    """librdkafka's tests, but those that are left out; the suite itself leaves out some more, as it tells."""
    names = excluded("librdkafka")
    suite = shared / "conformance" / "librdkafka"
    cache = Path(os.environ.get("CONFORMANCE_CACHE", Path.home() / ".cache" / "kafka-conformance"))
    if not (cache / "librdkafka-2.15.1" / ".complete").exists():
        run_suite(suite / "run", bootstrap, "0001")
    source = (cache / "librdkafka-2.15.1" / "tests" / "test.c").read_text()
    numbers = set(re.findall(r"\n    _TEST\((\d{4})_", source))
    upstream = set(re.findall(r"(?m)^(\d{4}) ", (suite / "excluded.txt").read_text()))
    wanted = sorted(numbers - upstream - {name[:4] for name in names})
    printed = run_suite(suite / "run", bootstrap, *wanted, JOBS="6")
    failed = re.findall(r"(?m)^failed +(\S+)", printed)
    assert not failed, "\n".join(line for line in printed.splitlines() if line.startswith("failed"))
    assert len(re.findall(r"(?m)^passed", printed)) >= 35, printed[-3000:]


@pytest.mark.parametrize("subtest", ADMIN_SUBTESTS)
def test_librdkafka_admin(bootstrap: str, shared: Path, subtest: str) -> None:
    """The sub-tests of its 0081_admin that need neither groups nor ACLs, by what their names have in them."""
    printed = run_suite(shared / "conformance" / "librdkafka" / "run", bootstrap, "0081", SUBTESTS=subtest)
    counts = re.search(r"; (\d+) sub-tests passed", printed)
    assert re.search(r"(?m)^passed +0081_admin", printed) and counts is not None and int(counts[1]) > 0, printed[-3000:]
