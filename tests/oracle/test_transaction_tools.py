"""Protects administrators of transactions: kafka-transactions.sh prints of kcli what it prints of Apache Kafka.

Both brokers have an open transaction, one that has ended, and a hanging one: its records are in a partition, but its
coordinator does not know of them, since the brokers do not verify transactions here. Addresses and times are left out.
"""

from __future__ import annotations

import re
import time
from functools import partial
from typing import NamedTuple

import pytest

from tests.oracle.brokers import new_broker
from tests.oracle.peer import Outcome, Peer, ToolCase
from tests.oracle.raw_requests import RawClient, running_kcli
from tests.oracle.transaction_answers import PAUSE_S, SETTINGS
from tests.oracle.transaction_exchanges import Exchange, prepare

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

TRANSACTIONS, PERFORMANCE = "org.apache.kafka.tools.TransactionsCommand", "org.apache.kafka.tools.ProducerPerformance"
TOPIC = "tools.new"
PARTITION = ("--topic", TOPIC, "--partition", "1")
HANGING = (*PARTITION, "--start-offset", "0")
FIND = ("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
LIMIT_MS = 3_000  # of one call of the tools, which repeat what cannot succeed until then
# In the order in which they run.
CASES = {
    "list": ("list",),
    "list-pattern": ("list", "--transactional-id-pattern", r"tools\.new\.o.*"),
    "list-wrong-pattern": ("list", "--transactional-id-pattern", "("),
    "list-long": ("list", "--duration-filter", "100000000"),
    "describe": ("describe", "--transactional-id", "tools.new.open"),
    "describe-ended": ("describe", "--transactional-id", "tools.new.ended"),
    "describe-unknown": ("describe", "--transactional-id", "nobody"),
    "producers-0": ("describe-producers", "--topic", TOPIC, "--partition", "0"),
    "producers-1": ("describe-producers", *PARTITION),
    "producers-of-broker": ("describe-producers", "--broker-id", "1", "--topic", TOPIC, "--partition", "0"),
    "producers-9": ("describe-producers", "--topic", TOPIC, "--partition", "9"),
    "find-hanging": FIND,
    "find-hanging-topic": ("find-hanging", "--topic", TOPIC, "--max-transaction-timeout", "0"),
    "abort-wrong": ("abort", *PARTITION, "--start-offset", "7"),
    "abort-unknown": ("abort", *PARTITION, "--producer-id", "99", "--producer-epoch", "0", "--coordinator-epoch", "0"),
    "abort": ("abort", *HANGING),
    "abort-again": ("abort", *HANGING),
    "producers-after-abort": ("describe-producers", *PARTITION),
    "find-hanging-after": FIND,
    "terminate": ("forceTerminateTransaction", "--transactionalId", "tools.new.open"),
    "terminate-unknown": ("forceTerminateTransaction", "--transactionalId", "nobody"),
    "list-after": ("list",),
}
# Their exit code is 1, that of the others 0.
FAILING = {"list-wrong-pattern", "describe-unknown", "producers-9", "abort-wrong", "abort-again"}


class Ran(NamedTuple):
    """What the tools printed, and where the partitions end for readers of committed records."""

    outcomes: dict[str, Outcome]
    ends: list[int]


def run_all(peer: Peer, address: str) -> Ran:
    client = RawClient(address)
    pause = partial(time.sleep, PAUSE_S)  # a poll of another process, which gives no other sign
    prepare(client.ask, pause)
    x = Exchange("tools", client.ask, pause, bumps=True)
    x.client("open").init().begin(0)
    x.client("ended").init().begin(0).end(True)
    hanging = x.client("hanging").init()
    (part,) = x.send(hanging.produce_request(index=1, version=11)).responses[0].partition_responses
    assert part.error_code == 0
    admin = peer.work_dir / "transaction-tools.properties"
    admin.write_text(f"request.timeout.ms={LIMIT_MS}\ndefault.api.timeout.ms={LIMIT_MS}\n")
    options = ("--bootstrap-server", address, "--command-config", str(admin))
    cases = [ToolCase(TRANSACTIONS, (*options, *words)) for words in CASES.values()]
    records = ("--num-records", "2000", "--record-size", "100", "--throughput", "-1", "--topic", TOPIC)
    settings = ("--bootstrap-server", address, "--transactional-id", "performance")
    cases.append(ToolCase(PERFORMANCE, (*records, *settings, "--transaction-duration-ms", "50")))
    outcomes = dict(zip([*CASES, "performance"], peer.run_tools(cases, 60), strict=True))
    x.settle()
    ends = [answer["offset"] for answer in x.state()[2]]
    client.close()
    return Ran(outcomes, ends)


def neutral(printed: bytes | str) -> list[list[str]]:
    """The words of each line without times and durations, which make columns wider."""
    text = printed.decode() if isinstance(printed, bytes) else printed
    text = re.sub(r"(?m)^(\tat |Caused by: |\t\.\.\. ).*\n?", "", text)
    text = re.sub(r"\b1[5-9]\d{11}\b( +\t?\d+|\t\d{6,})?", "TIME", text)  # with a duration, not with an offset
    text = re.sub(r"(?<= on leader: ).*timed out.*", "TIMED OUT", text, flags=re.IGNORECASE)  # before or after a call
    return sorted(line.split() for line in text.splitlines())


@pytest.fixture(scope="module")
def ran(kafka_peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Ran]:
    """What the tools say of kcli, and of Kafka."""
    home = tmp_path_factory.mktemp("transaction-tools")
    (home / "kafka").mkdir()
    settings = (*SETTINGS, "transaction.partition.verification.enable=false")
    with running_kcli(home / "kcli", *settings, "node.id=1") as address:
        mine = run_all(kafka_peer, address)
    with new_broker(kafka_peer, home / "kafka", *settings) as address:
        return mine, run_all(kafka_peer, address)


@pytest.mark.parametrize("name", CASES)
def test_a_tool_prints_what_it_prints_of_kafka(ran: tuple[Ran, Ran], name: str) -> None:
    mine, kafkas = (each.outcomes[name] for each in ran)
    assert kafkas.exit_code == (name in FAILING)
    assert neutral(mine.stdout) == neutral(kafkas.stdout)
    assert (mine.exit_code, neutral(mine.stderr)) == (kafkas.exit_code, neutral(kafkas.stderr))


def test_producer_performance_commits_all(ran: tuple[Ran, Ran]) -> None:
    """kafka-producer-perf-test with transactions."""
    for each in ran:
        outcome = each.outcomes["performance"]
        assert outcome.exit_code == 0 and "2000 records sent" in outcome.stdout.decode(), outcome
        assert sum(each.ends[:2]) >= 2000 and each.ends[:2] == each.ends[2:]
