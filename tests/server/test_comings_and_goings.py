"""Protects a broker that runs for months: what comes and goes leaves no object, no entry and no descriptor behind.

A node serves the same number of comings and goings twice, in virtual time, with the expirations of each kind between them. The
second time may not add what the first did. What fills on purpose is a cache: it has a bound, and a row in ARCHITECTURE.md.
"""

from __future__ import annotations

import functools
import gc
import importlib
import pkgutil
import re
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kcli.network.timing_wheel import TimerTask
from kcli.protocol import apis
from kcli.protocol.apis import API_KEYS
from kcli.protocol.message import Message
from kcli.server.events import Connection
from tests.conftest import ROOT, open_descriptors
from tests.server.whole_node import WholeNode, batch

SETTINGS = (
    "offsets.retention.minutes=1",
    "offsets.retention.check.interval.ms=5000",
    "transactional.id.expiration.ms=20000",
    "transaction.remove.expired.transaction.cleanup.interval.ms=5000",
    "producer.id.expiration.ms=20000",
    "producer.id.expiration.check.interval.ms=5000",
    "offsets.topic.num.partitions=1",
    "transaction.state.log.num.partitions=1",
    "share.coordinator.state.topic.num.partitions=1",
    "log.segment.delete.delay.ms=1000",
    "group.initial.rebalance.delay.ms=0",
)
# The time in which all that has gone expires.
EXPIRATION_MS = 200_000
PACKAGES = ("kcli.server", "kcli.protocol", "kcli.log", "kcli.state", "kcli.network", "kcli.format")


def ask(node: WholeNode, key: int, version: int, connection: Connection | None = None, **fields: Any) -> Message:
    """Send a request and wait for its answer."""
    pending = node.send(key, version, API_KEYS[key].request.new(**fields), connection)
    node.until(lambda: pending.answer is not None)
    return pending.result()


def asked_until_done(node: WholeNode, *request: Any, **fields: Any) -> Message:
    """Ask again while the coordinator loads its partition."""
    for _ in range(100):
        answer = ask(node, *request, **fields)
        if answer.error_code not in (14, 16):
            return answer
        node.advance(100)
    raise AssertionError(f"the coordinator does not answer: {answer}")


def topic(node: WholeNode, name: str) -> None:
    """A topic that is made, used and deleted."""
    node.create_topic(name, 2)
    node.produce(name, 0, batch(b"x")).result()
    node.fetch({(name, 0): 0}).result()
    node.delete_topic(name)


def connection(node: WholeNode, name: str) -> None:
    """A consumer with a fetch session that leaves without closing it."""
    client = node.connection()
    node.fetch({("t", 0): 0}, session_id=0, session_epoch=0, connection=client).result()
    node.close(client)


def producer(node: WholeNode, name: str) -> None:
    """An idempotent producer that writes one batch."""
    ask(node, apis.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=1000)
    node.produce("t", 0, batch(b"x")).result()


def transactional_id(node: WholeNode, name: str) -> None:
    """A transactional id with an empty transaction."""
    found = asked_until_done(node, apis.INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout_ms=1000)
    assert found.error_code == 0
    ids = {"producer_id": found.producer_id, "producer_epoch": found.producer_epoch}
    topics = API_KEYS[apis.ADD_PARTITIONS_TO_TXN].request.classes["AddPartitionsToTxnTopic"](name="t", partitions=[0])
    ask(node, apis.ADD_PARTITIONS_TO_TXN, 3, v3_and_below_transactional_id=name, **_v3(ids), v3_and_below_topics=[topics])
    assert ask(node, apis.END_TXN, 3, transactional_id=name, **ids, committed=True).error_code == 0


def _v3(ids: dict[str, int]) -> dict[str, int]:
    return {f"v3_and_below_{name}": value for name, value in ids.items()}


def classic_group(node: WholeNode, name: str) -> None:
    """A group of one member, which commits an offset and leaves."""
    client, member_id = node.connection(), ""
    protocol = API_KEYS[apis.JOIN_GROUP].request.classes["JoinGroupRequestProtocol"](name="range", metadata=b"")
    fields = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer"}
    for _ in range(2):
        found = asked_until_done(
            node, apis.JOIN_GROUP, 7, client, group_id=name, member_id=member_id, protocols=[protocol], **fields
        )
        member_id = found.member_id
    ids = {"group_id": name, "generation_id": found.generation_id, "member_id": member_id}
    assert ask(node, apis.SYNC_GROUP, 4, client, assignments=[], **ids).error_code == 0
    commit = API_KEYS[apis.OFFSET_COMMIT].request.classes
    partition = commit["OffsetCommitRequestPartition"](partition_index=0, committed_offset=1)
    committed = commit["OffsetCommitRequestTopic"](name="t", partitions=[partition])
    ids = {"group_id": name, "generation_id_or_member_epoch": found.generation_id, "member_id": member_id}
    ask(node, apis.OFFSET_COMMIT, 7, client, topics=[committed], **ids)
    member = API_KEYS[apis.LEAVE_GROUP].request.classes["MemberIdentity"](member_id=member_id)
    assert ask(node, apis.LEAVE_GROUP, 3, client, group_id=name, members=[member]).error_code == 0
    node.close(client)


def consumer_group(node: WholeNode, name: str) -> None:
    """A group of the consumer protocol with one member, which leaves."""
    client = node.connection()
    fields = {"group_id": name, "member_id": f"{name}-member"}
    wanted = {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
    key = apis.CONSUMER_GROUP_HEARTBEAT
    assert asked_until_done(node, key, 1, client, member_epoch=0, **fields, **wanted).error_code == 0
    assert ask(node, key, 1, client, member_epoch=-1, **fields).error_code == 0
    node.close(client)


def share_group(node: WholeNode, name: str) -> None:
    """A share group with one member, which leaves; then the group is deleted."""
    client = node.connection()
    fields = {"group_id": name, "member_id": f"{name}-member"}
    key = apis.SHARE_GROUP_HEARTBEAT
    assert asked_until_done(node, key, 1, client, member_epoch=0, subscribed_topic_names=["t"], **fields).error_code == 0
    node.advance(50)
    assert ask(node, key, 1, client, member_epoch=-1, **fields).error_code == 0
    for _ in range(100):  # the states of its partitions may still be written
        if ask(node, apis.DELETE_GROUPS, 2, groups_names=[name]).results[0].error_code == 0:
            break
        node.advance(100)
    else:
        pytest.fail("the group is not deleted")
    node.close(client)


KINDS: dict[str, Callable[[WholeNode, str], None]] = {
    kind.__name__: kind for kind in (topic, connection, producer, transactional_id, classic_group, consumer_group, share_group)
}


def started(directory: Path) -> WholeNode:
    """A node with a topic `t` and the internal topics."""
    node = WholeNode(directory, *SETTINGS)
    node.create_topic("t")
    share_key = f"s:{node.broker.image.topic_ids['t']}:0"
    for key_type, key in enumerate(("g", "x", share_key)):
        for _ in range(100):
            answer = ask(node, apis.FIND_COORDINATOR, 6, key_type=key_type, coordinator_keys=[key])
            if answer.coordinators[0].error_code == 0:
                break
            node.advance(100)
    return node


def settled(node: WholeNode) -> tuple[Counter[str], Counter[str], int]:
    """Let all expire; return the objects by type, the entries of containers by their owner, and the open descriptors."""
    node.advance(EXPIRATION_MS)
    node.lines.clear()
    gc.collect()
    kinds = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects() if _is_ours(type(one)))
    return kinds, entries(node.node), open_descriptors()


def _is_ours(kind: type) -> bool:
    return isinstance(kind.__module__, str) and kind.__module__.startswith("kcli.")


def entries(root: object) -> Counter[str]:
    """Count the entries of all containers that can be reached, by the attribute that has them: Class.attribute."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    todo: list[tuple[object, str]] = [(root, "")]
    while todo:
        one, owner = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            found[owner] += len(one)
            todo += [(part, owner) for pair in one.items() for part in pair]
        elif isinstance(one, list | set | frozenset | deque) or type(one) is tuple:
            found[owner] += len(one)
            todo += [(part, owner) for part in one]
        elif isinstance(one, types.MethodType):
            todo.append((one.__self__, owner))
        elif isinstance(one, functools.partial):
            todo += [(part, owner) for part in (one.func, *one.args)]
        elif _is_ours(type(one)):
            todo += [(value, f"{type(one).__name__}.{name}") for name, value in _attributes(one)]
    return found


def _attributes(one: object) -> Iterator[tuple[str, object]]:
    slots = (getattr(kind, "__slots__", ()) for kind in type(one).__mro__)
    names = [name for some in slots for name in ((some,) if isinstance(some, str) else some)]
    if isinstance(one, TimerTask):
        names.remove("_bucket")  # the way back: whichever comes first would own the entries of a bucket of the timer
    for name in dict.fromkeys([*getattr(one, "__dict__", ()), *names, *getattr(one, "_fields", ())]):
        try:
            yield name, getattr(one, name)
        except AttributeError:
            continue


def rows() -> dict[str, str]:
    """The caches in ARCHITECTURE.md, each with its bound."""
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Caches and their bounds")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([\w.]+)` \|[^|]*\| (.*?) \|$", text, re.MULTILINE))


def comes_and_goes(directory: Path, kind: str, count: int) -> None:
    """Let `count` of a kind come and go twice; the second time may not add what the first did."""
    node = started(directory)
    for at in range(count):
        KINDS[kind](node, f"first-{at}")
    objects, containers, descriptors = settled(node)
    for at in range(count):
        KINDS[kind](node, f"second-{at}")
    more_objects, more_containers, more_descriptors = settled(node)
    node.stop()
    cached, least = set(rows()), max(count // 3, 5)
    grown = {name: (containers[name], now) for name, now in more_containers.items() if now - containers[name] >= least}
    assert not {name: sizes for name, sizes in grown.items() if not {name, name.partition(".")[0]} & cached}
    risen = {name: (objects[name], now) for name, now in more_objects.items() if now - objects[name] >= least}
    assert not {name: counts for name, counts in risen.items() if name.rpartition(".")[2] not in cached | HELD_BY_CACHES}
    assert more_descriptors <= descriptors


# Objects that are the entries of the caches, by their type.
HELD_BY_CACHES = {"Uuid", "FileName", "FetchSession", "FetchTarget", "SessionReader", "FetchPartition", "OffsetIndex"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_and_goes_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    """Also not in a cache without a bound: 3.5 KB a second were caches by name that filled."""
    comes_and_goes(tmp_path / "data", kind, 20)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_come_and_go_and_leave_nothing_behind(tmp_path: Path, kind: str) -> None:
    """More than the caches hold, twice 10,000: what still grows has no bound."""
    comes_and_goes(tmp_path / "data", kind, 10_000)


def test_each_cache_of_a_function_has_a_row_with_its_bound() -> None:
    found: dict[int, tuple[int | None, list[str]]] = {}  # the bound and the names, for modules import each other's functions
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, functools._lru_cache_wrapper):
                    bound = value.cache_parameters()["maxsize"]
                    found.setdefault(id(value), (bound, []))[1].append(f"{module.name.removeprefix('kcli.')}.{name}")
    stated = rows()
    for bound, names in found.values():
        row = next((name for name in names if name in stated), None)
        assert row is not None, f"{names} has no row in ARCHITECTURE.md"
        assert bound is None or f"{bound:,}" in stated[row], f"the bound of {row} is {bound}"
