"""Protects what the authors of clients count on: librdkafka's and kafka-python's own integration suites pass on kcli.

The suites are in ../shared/conformance, whose scripts build them once into a cache. librdkafka's suite runs twice, since its
consumers use the classic protocol or the consumer protocol (KIP-848). conformance_excluded.txt has the tests that are left out,
with the reason. The ci tier has kafka-python's suite and librdkafka's short tests of groups and transactions.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oracle.brokers import KcliBroker

pytestmark = [pytest.mark.oracle]

EXCLUDED_FILE = Path(__file__).parent / "conformance_excluded.txt"
SUITE_SECONDS = 2400
# As broker.properties of the suites, without the authorizer; node.id and partitions are counted on.
SETTINGS = (
    *("node.id=0", "num.partitions=4", "auto.create.topics.enable=true", "group.min.session.timeout.ms=1000"),
    "group.share.min.record.lock.duration.ms=1000",
)
# librdkafka's 0089, 0102 and 0113 count rebalances; at Apache Kafka, too, they need this delay.
LIBRDKAFKA_SETTINGS = ("group.initial.rebalance.delay.ms=3000",)
# The tests of groups, share groups and transactions that take less than half a minute.
SHORT = (
    *("0014", "0019", "0022", "0029", "0030", "0040", "0051", "0056", "0060", "0061"),
    *("0064", "0067", "0083", "0090", "0099", "0118", "0129", "0130", "0140", "0175"),
)
# It allows 60 ms between two messages, and fails at Apache Kafka, too, on a machine that is busy: it runs alone, repeatedly.
TIMED = "0127"
TIMED_RUNS = 5
# The same of kafka-python's: it reads the first records within 90 polls of 100 ms, with `nice`.
TIMED_OF_PYTHON = "test_kafka_consumer_max_bytes_simple"
SHARE_CONSUMERS = re.compile("01[78]")  # the same in both protocols
ADMIN_SUBTESTS = (
    *("CreateTopics", "DeleteTopics", "CreatePartitions", "AlterConfigs", "DescribeConfigs", "DeleteRecords"),
    *("DescribeTopics", "DescribeCluster", "ListOffsets", "unclean_destroy"),
    "DescribeConsumerGroups",  # the suite leaves it out with the consumer protocol
)
ADMIN_GROUP_SUBTESTS = ("ListConsumerGroups", "DeleteGroups", "ConsumerGroupOffsets")
PROTOCOLS = ("classic", "consumer")


def excluded(suite: str) -> dict[str, str]:
    """The tests of a suite that are left out -> why."""
    rows = [line.split(maxsplit=2) for line in EXCLUDED_FILE.read_text().splitlines() if line and not line.startswith("#")]
    return {name: reason for of, name, reason in rows if of == suite}


def left_out_of_consumer() -> set[str]:
    """The numbers of librdkafka's tests that are left out where its consumers use the consumer protocol."""
    return {name[:4] for name in excluded("librdkafka-consumer")}


@pytest.fixture(scope="module")
def bootstrap(kcli_serves: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker for librdkafka's suite."""
    broker = KcliBroker(tmp_path_factory.mktemp("librdkafka"), *SETTINGS, *LIBRDKAFKA_SETTINGS, advertised=True)
    with broker:
        yield broker.bootstrap


def run_suite(script: Path, bootstrap: str, *words: str, **environment: str) -> str:
    """What the script of a suite prints."""
    command = [str(script), bootstrap, *words]
    variables = {**os.environ, **environment}
    ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=SUITE_SECONDS, check=False)
    assert ran.returncode in (0, 1), ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout


def run_librdkafka(shared: Path, bootstrap: str, *numbers: str, **environment: str) -> list[str]:
    """Run tests of librdkafka, of which none may fail; return the names of those that passed, and did not skip themselves."""
    printed = run_suite(shared / "conformance" / "librdkafka" / "run", bootstrap, *numbers, **environment)
    failed = re.findall(r"(?m)^failed.*", printed)
    assert not failed, "\n".join(failed)
    return re.findall(r"(?m)^passed +(\S+)", printed)


@pytest.mark.ci
def test_kafka_python(kcli_serves: None, tmp_path: Path, shared: Path) -> None:
    """kafka-python's integration tests; it has the classic protocol only. Those of SASL and SSL skip themselves."""
    left_out = [*excluded("kafka-python"), TIMED_OF_PYTHON]
    suite = shared / "conformance" / "kafka-python" / "run"
    with KcliBroker(tmp_path, *SETTINGS, "group.initial.rebalance.delay.ms=0", advertised=True) as broker:
        printed = run_suite(suite, broker.bootstrap, "-k", f"not ({' or '.join(left_out)})")
        timed = (run_suite(suite, broker.bootstrap, "-k", TIMED_OF_PYTHON) for _ in range(TIMED_RUNS))
        assert any(re.search(r"1 passed, 0 failed", one) for one in timed)
    counts = re.search(r"(\d+) passed, (\d+) failed, (\d+) skipped\s*\Z", printed)
    assert counts is not None and counts[2] == "0", printed[-6000:]
    assert int(counts[1]) >= 53, printed[-3000:]


@pytest.mark.ci
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_librdkafka_short(bootstrap: str, shared: Path, protocol: str) -> None:
    """librdkafka's short tests of groups and transactions."""
    wanted = set(SHORT) - (left_out_of_consumer() if protocol == "consumer" else set())
    passed = run_librdkafka(shared, bootstrap, *sorted(wanted), GROUP_PROTOCOL=protocol, JOBS="8")
    assert {name[:4] for name in passed} == wanted


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_librdkafka(bootstrap: str, shared: Path, protocol: str) -> None:
    """All of librdkafka's tests that are not left out; the suite excludes some more, which its folder lists."""
    suite = shared / "conformance" / "librdkafka"
    cache = Path(os.environ.get("CONFORMANCE_CACHE", Path.home() / ".cache" / "kafka-conformance"))
    if not (cache / "librdkafka-2.15.1" / ".complete").exists():
        run_suite(suite / "run", bootstrap, "0001")
    source = (cache / "librdkafka-2.15.1" / "tests" / "test.c").read_text()
    numbers = set(re.findall(r"\n    _TEST\((\d{4})_", source))
    upstream = set(re.findall(r"(?m)^(\d{4}) ", (suite / "excluded.txt").read_text()))
    wanted = numbers - upstream - {name[:4] for name in excluded("librdkafka")} - {TIMED}
    if protocol == "consumer":
        wanted = {number for number in wanted if not SHARE_CONSUMERS.match(number)}
        wanted -= left_out_of_consumer()
    passed = run_librdkafka(shared, bootstrap, *sorted(wanted), GROUP_PROTOCOL=protocol, JOBS="6")
    assert len(passed) >= (98 if protocol == "classic" else 80)


@pytest.mark.slow
def test_librdkafka_patterns(bootstrap: str, shared: Path) -> None:
    """The part of its 0045 that is not left out with the consumer protocol: patterns, and topics that come later."""
    run_librdkafka(shared, bootstrap, "0045", GROUP_PROTOCOL="consumer", SUBTESTS="do_test_regex")


@pytest.mark.slow
def test_librdkafka_timed(bootstrap: str, shared: Path) -> None:
    """The test that measures how soon a full queue of fetched messages is refilled; one run within its limits is enough."""
    script = shared / "conformance" / "librdkafka" / "run"
    assert any("\npassed" in "\n" + run_suite(script, bootstrap, TIMED) for _ in range(TIMED_RUNS))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_librdkafka_auto_create(bootstrap: str, shared: Path, protocol: str) -> None:
    """The parts of its 0109_auto_create_topics that need no ACLs; for a broker of that version it leaves out the others."""
    run_librdkafka(shared, bootstrap, "0109", GROUP_PROTOCOL=protocol, KAFKA_VERSION="2.0.0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subtest", "protocol"),
    [(one, "classic") for one in ADMIN_SUBTESTS] + [(one, protocol) for one in ADMIN_GROUP_SUBTESTS for protocol in PROTOCOLS],
)
def test_librdkafka_admin(bootstrap: str, shared: Path, subtest: str, protocol: str) -> None:
    """The sub-tests of its 0081_admin that need neither ACLs nor SCRAM, by what their names have in them."""
    script = shared / "conformance" / "librdkafka" / "run"
    printed = run_suite(script, bootstrap, "0081", SUBTESTS=subtest, GROUP_PROTOCOL=protocol)
    counts = re.search(r"; (\d+) sub-tests passed", printed)
    assert re.search(r"(?m)^passed +0081_admin", printed) and counts is not None and int(counts[1]) > 0, printed[-3000:]
