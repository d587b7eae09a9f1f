"""Protects open transactions that move between Apache Kafka and kcli with their directory: they are ended by the other broker.

Under the first broker three transactions are opened by clients of transaction.version 2, and three by older ones. Under the
second broker one is continued and committed with the offsets of a group, one is aborted, and one expires; another one is
opened, which the first broker commits. `kcli describe` shows the open transactions, and `kcli verify` finds nothing wrong at
each stop.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kcli.protocol import apis
from tests.inspect.described import described
from tests.oracle.brokers import KcliBroker, broker_at
from tests.oracle.peer import Peer
from tests.oracle.raw_requests import RawClient
from tests.oracle.reading import TopicPartitionName, served_records
from tests.oracle.test_swap import DYNAMIC, assert_sound
from tests.oracle.transaction_answers import PAUSE_S
from tests.oracle.transaction_exchanges import Client, Exchange, prepare

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

COUNTS = "offsets.topic.num.partitions=2\ntransaction.state.log.num.partitions=2\ngroup.initial.rebalance.delay.ms=0\n"
KEEPING = DYNAMIC + COUNTS
EXPIRING = KEEPING.replace("cleanup.interval.ms=100000000", "cleanup.interval.ms=500")
LIMIT_S = 30
# Of transactions that must outlive the stop and the start of brokers, also on a machine that has other work.
LONG_MS = 900_000


class Places:
    """A log directory, and the brokers that serve it one after the other."""

    def __init__(self, peer: Peer, home: Path) -> None:
        self.peer = peer
        self.home = home
        self.data = home / "data"
        self.stops = 0

    @contextmanager
    def broker(self, kind: str, properties: str, exchanges: list[Exchange]) -> Iterator[RawClient]:
        """Runs a broker, to which the exchanges talk from now on."""
        self.stops += 1
        home = self.home / f"{kind}-{self.stops}"
        kcli = KcliBroker(home, properties=properties, data=self.data)
        with kcli if kind == "kcli" else broker_at(self.peer, home, properties, self.data) as running:
            client = RawClient(running.bootstrap if isinstance(running, KcliBroker) else running)
            pause = partial(time.sleep, PAUSE_S)  # a poll of another process, which gives no other sign
            prepare(client.ask, pause)
            for exchange in exchanges:
                exchange.ask, exchange.pause = client.ask, pause
            yield client
            client.close()
        assert_sound(self.peer, self.data)


def commit_offset(x: Exchange, client: Client) -> None:
    if not x.bumps:
        assert x.ask(apis.ADD_OFFSETS_TO_TXN, 4, **client.fields, group_id=x.group).error_code == 0
    answer = x.send(client.offsets_request(5 if x.bumps else 4))
    assert answer.topics[0].partitions[0].error_code == 0


def until_state(x: Exchange, client: Client, state: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while transactions(x)[client.name]["transaction_state"] != state:
        assert time.monotonic() < deadline, f"{client.name} is not {state}"
        x.pause()


def transactions(x: Exchange) -> dict[str, Any]:
    """What the broker says of the transactional ids of an exchange."""
    return {found["transactional_id"]: found for found in x.state()[0]["transaction_states"]}


def committed_offset(x: Exchange) -> int:
    answer = x.ask(apis.OFFSET_FETCH, 7, group_id=x.group, topics=None, require_stable=True)
    return int(answer.topics[0].partitions[0].committed_offset)


def open_transactions(data: Path) -> dict[str, Any]:
    """The states of the transactional ids, by `kcli describe`, without those of `prepare`."""
    report = described(data).report
    states = {row["transactionalId"]: row["state"] for row in report["transactions"]}
    assert {row["transactionalId"] for row in report["openTransactions"]} == {
        name for name, state in states.items() if state == "Ongoing"
    }
    return {name: state for name, state in states.items() if not name.startswith("warm-")}


@pytest.mark.parametrize(("first", "second"), [("kafka", "kcli"), ("kcli", "kafka")])
def test_open_transactions(kafka_peer: Peer, tmp_path: Path, first: str, second: str) -> None:
    places = Places(kafka_peer, tmp_path)
    with KcliBroker(tmp_path / "formats", properties=KEEPING, data=places.data):
        pass  # it formats the directory
    with places.broker(first, KEEPING, []) as client:
        made = [Exchange("swap", client.ask, partial(time.sleep, PAUSE_S), bumps=bumps) for bumps in (True, False)]
        for x in made:
            x.client("commits").init(LONG_MS).begin(0, value=b"one")
            x.client("aborts").init(LONG_MS).begin(0, 1)
            x.client("expires").init(timeout_ms=1_000).begin(1)
            commit_offset(x, x.clients[0])
        before = [transactions(x) for x in made]
    names = [client.name for x in made for client in x.clients]
    assert open_transactions(places.data) == dict.fromkeys(names, "Ongoing")
    with places.broker(second, EXPIRING, made):
        for x, state in zip(made, before, strict=True):
            commits, aborts, expires = x.clients
            until_state(x, expires, "CompleteAbort")
            assert transactions(x) == {**state, expires.name: transactions(x)[expires.name]}, "the others have changed"
            late = x.send(expires.produce_request(index=1, sequence=1, version=12 if x.bumps else 11))
            assert late.responses[0].partition_responses[0].error_code != 0
            more = x.send(commits.produce_request(sequence=1, version=12 if x.bumps else 11, value=b"two"))
            assert more.responses[0].partition_responses[0].error_code == 0
            commits.end(True)
            aborts.end(False)
            assert committed_offset(x) == 5
            aborts.init(LONG_MS).begin(1, value=b"three")
    states = {"commits": "CompleteCommit", "aborts": "Ongoing", "expires": "CompleteAbort"}
    assert open_transactions(places.data) == {name: states[name.rpartition(".")[2]] for name in names}
    with places.broker(first, KEEPING, made) as client:
        for x in made:
            x.clients[1].end(True)
            assert committed_offset(x) == 5
            wanted = [TopicPartitionName(x.topic, index) for index in (0, 1)]
            read = served_records(client.address, wanted, "read_committed")
            assert [[record.value for record in read[name]] for name in wanted] == [[b"one", b"two"], [b"three"]]
