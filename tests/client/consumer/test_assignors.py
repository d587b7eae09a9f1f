"""Protects what the assignors promise: each partition once, balance, few moves, racks, the two steps of a cooperative move.

tests/oracle/test_client_assignors.py compares them with those of the Java consumer.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Collection
from types import FrameType

import pytest

from kcli.client.consumer.assignors.assignor import Assignor, ClusterMetadata, RebalanceProtocol
from kcli.client.consumer.assignors.built_in import ASSIGNORS
from kcli.client.consumer.assignors.sticky_user_data import encode_cooperative, encode_sticky
from kcli.client.consumer.consumer_protocol import Assignment, Subscription, TopicPartition
from tests.client.consumer.drawn_groups import DrawnGroup, Rebalance

Assignments = dict[str, Assignment]
EAGER = ("range", "roundrobin", "sticky")
STICKY = ("sticky", "cooperative-sticky")
SEEDS = range(40)


def cluster_of(counts: dict[str, int], racks: Callable[[int], Collection[str]] = lambda partition: ()) -> ClusterMetadata:
    return ClusterMetadata({topic: [frozenset(racks(one)) for one in range(count)] for topic, count in counts.items()})


def texts(assigned: Assignments) -> dict[str, str]:
    return {
        member: " ".join(f"{topic}-{number}" for topic, number in one.partitions) for member, one in sorted(assigned.items())
    }


def having(topics: list[str], text: str, generation: int, rack: str | None = None) -> Subscription:
    """The subscription of a member that has these partitions, for both sticky assignors."""
    owned = [TopicPartition(topic, int(number)) for topic, number in (one.rsplit("-", 1) for one in text.split())]
    return Subscription(topics, encode_sticky(owned, generation), owned, generation, rack)


def returned(subscriptions: dict[str, Subscription], assigned: Assignments, generation: int) -> dict[str, Subscription]:
    """The subscriptions with which the members come back after this assignment."""
    return {
        member: having(list(one.topics), texts({member: assigned[member]})[member], generation, one.rack)
        for member, one in subscriptions.items()
    }


def owners(assigned: Assignments) -> dict[TopicPartition, str]:
    """The member of each partition; no partition has two."""
    found = [(partition, member) for member, one in assigned.items() for partition in one.partitions]
    assert len({partition for partition, _ in found}) == len(found)
    return dict(found)


def subscribed_partitions(rebalance: Rebalance) -> set[TopicPartition]:
    topics = {topic for subscription in rebalance.subscriptions.values() for topic in subscription.topics}
    known = rebalance.cluster.topics
    return {TopicPartition(topic, number) for topic in topics for number in range(len(known.get(topic, ())))}


def test_names_and_protocols() -> None:
    both = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)
    assert {name: tuple(new().protocols) for name, new in ASSIGNORS.items()} == {
        "range": (RebalanceProtocol.EAGER,),
        "roundrobin": (RebalanceProtocol.EAGER,),
        "sticky": (RebalanceProtocol.EAGER,),
        "cooperative-sticky": both,
    }
    assert all(new().name == name for name, new in ASSIGNORS.items())


@pytest.mark.parametrize("name", EAGER)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_partition_of_a_subscribed_topic_has_one_member(name: str, seed: int) -> None:
    group, leader = DrawnGroup(random.Random(seed), name), ASSIGNORS[name]()
    for rebalance in group.rebalances(6):
        assigned = leader.assign(rebalance.cluster, rebalance.subscriptions)
        assert assigned.keys() == rebalance.subscriptions.keys()
        assert owners(assigned).keys() == subscribed_partitions(rebalance)
        group.take(assigned)


@pytest.mark.parametrize("name", ["range", "roundrobin"])
@pytest.mark.parametrize("seed", SEEDS)
def test_members_get_partitions_of_their_topics_only(name: str, seed: int) -> None:
    group, leader = DrawnGroup(random.Random(seed), name), ASSIGNORS[name]()
    for rebalance in group.rebalances(6):
        for member, assignment in leader.assign(rebalance.cluster, rebalance.subscriptions).items():
            assert {partition.topic for partition in assignment.partitions} <= set(rebalance.subscriptions[member].topics)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_cooperative_assignor_takes_nothing_from_a_member_that_has_it(seed: int) -> None:
    """When the members come back with what they got, the partitions that were left out are assigned; then nothing moves."""
    rng = random.Random(seed)
    cluster, subscriptions = drawn_tidy_group(rng)
    leader = ASSIGNORS["cooperative-sticky"]()
    subscriptions = returned(subscriptions, settle(leader, cluster, subscriptions), 5)
    gone = rng.choice(list(subscriptions))
    subscriptions = {member: one for member, one in subscriptions.items() if member != gone or len(subscriptions) == 1}
    subscriptions |= {f"new{at}": Subscription(rng.choice(list(subscriptions.values())).topics) for at in range(3)}
    assigned = leader.assign(cluster, subscriptions)
    held = {partition: member for member, one in subscriptions.items() for partition in one.owned_partitions}
    for partition, member in owners(assigned).items():
        assert held.get(partition, member) == member
    final = settle(leader, cluster, returned(subscriptions, assigned, 6))
    assert owners(final).keys() == all_subscribed(cluster, subscriptions)


def all_subscribed(cluster: ClusterMetadata, subscriptions: dict[str, Subscription]) -> set[TopicPartition]:
    topics = {topic for one in subscriptions.values() for topic in one.topics}
    return {TopicPartition(topic, number) for topic in topics for number in range(len(cluster.topics.get(topic, ())))}


def drawn_tidy_group(rng: random.Random) -> tuple[ClusterMetadata, dict[str, Subscription]]:
    """New members, some with different subscriptions, without racks."""
    cluster = cluster_of({f"t{at}": rng.randrange(1, 15) for at in range(rng.randrange(1, 6))})
    topics = list(cluster.topics)
    are_equal = rng.random() < 0.5
    members = [f"m{rng.getrandbits(32)}" for _ in range(rng.randrange(1, 10))]
    return cluster, {
        member: Subscription(rng.sample(topics, len(topics) if are_equal else rng.randrange(1, len(topics) + 1)))
        for member in members
    }


def settle(leader: Assignor, cluster: ClusterMetadata, subscriptions: dict[str, Subscription]) -> Assignments:
    """Rebalance until nothing changes; two rounds after the first are enough for any move."""
    rounds = []
    for generation in range(10, 14):
        rounds.append(leader.assign(cluster, subscriptions))
        subscriptions = returned(subscriptions, rounds[-1], generation)
    assert owners(rounds[-1]) == owners(rounds[-2])
    return rounds[-1]


@pytest.mark.parametrize("name", STICKY)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_moves_without_a_change(name: str, seed: int) -> None:
    cluster, subscriptions = drawn_tidy_group(random.Random(seed))
    assigned = ASSIGNORS[name]().assign(cluster, subscriptions)
    again = ASSIGNORS[name]().assign(cluster, returned(subscriptions, assigned, 1))
    assert owners(again) == owners(assigned)


@pytest.mark.parametrize("name", ["roundrobin", *STICKY])
@pytest.mark.parametrize("seed", SEEDS)
def test_members_with_the_same_topics_have_as_many_partitions(name: str, seed: int) -> None:
    """Also after a member left and another one joined."""
    rng = random.Random(seed)
    cluster = cluster_of({f"t{at}": rng.randrange(15) for at in range(rng.randrange(1, 6))})
    subscriptions = {f"m{rng.getrandbits(32)}": Subscription(list(cluster.topics)) for _ in range(rng.randrange(2, 9))}
    for generation in range(4):
        assigned = settle(ASSIGNORS[name](), cluster, subscriptions)
        sizes = [len(one.partitions) for one in assigned.values()]
        assert max(sizes) - min(sizes) <= 1
        subscriptions = returned(subscriptions, assigned, generation)
        del subscriptions[rng.choice(list(subscriptions))]
        subscriptions[f"m{rng.getrandbits(32)}"] = Subscription(list(cluster.topics))


@pytest.mark.parametrize("name", STICKY)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_partition_could_move_for_a_better_balance(name: str, seed: int) -> None:
    """Members with different topics: no member has two partitions more than another that could have one of them."""
    cluster, subscriptions = drawn_tidy_group(random.Random(seed))
    assigned = settle(ASSIGNORS[name](), cluster, subscriptions)
    sizes = {member: len(one.partitions) for member, one in assigned.items()}
    for partition, member in owners(assigned).items():
        least = min(sizes[other] for other, one in subscriptions.items() if partition.topic in one.topics)
        assert sizes[member] <= least + 1


@pytest.mark.parametrize("seed", SEEDS)
def test_when_a_member_leaves_the_others_keep_what_they_have(seed: int) -> None:
    rng = random.Random(seed)
    cluster = cluster_of({f"t{at}": rng.randrange(1, 15) for at in range(rng.randrange(1, 6))})
    subscriptions = {f"m{rng.getrandbits(32)}": Subscription(list(cluster.topics)) for _ in range(rng.randrange(3, 9))}
    before = ASSIGNORS["sticky"]().assign(cluster, subscriptions)
    rest = returned(subscriptions, before, 1)
    gone = rng.choice(list(rest))
    del rest[gone]
    after = owners(ASSIGNORS["sticky"]().assign(cluster, rest))
    assert {partition for partition, member in owners(before).items() if after[partition] != member} == set(
        before[gone].partitions
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_when_a_member_joins_partitions_move_to_it_alone(seed: int) -> None:
    rng = random.Random(seed)
    cluster = cluster_of({f"t{at}": rng.randrange(1, 15) for at in range(rng.randrange(1, 6))})
    subscriptions = {f"m{rng.getrandbits(32)}": Subscription(list(cluster.topics)) for _ in range(rng.randrange(1, 9))}
    before = owners(first := ASSIGNORS["sticky"]().assign(cluster, subscriptions))
    grown = {**returned(subscriptions, first, 1), "new": Subscription(list(cluster.topics))}
    after = owners(ASSIGNORS["sticky"]().assign(cluster, grown))
    moved = [partition for partition, member in after.items() if before[partition] != member]
    assert all(after[partition] == "new" for partition in moved)
    assert len(before) // len(grown) <= len(moved) <= -(-len(before) // len(grown))


def test_ranges() -> None:
    """Of each topic, the first members get one partition more. A static member precedes the others."""
    cluster = cluster_of({"a": 5, "b": 1, "c": 3})
    subscriptions = {
        "m1": Subscription(["a", "b"]),
        "m2": Subscription(["a", "c", "unknown"]),
        "m3": Subscription(["a", "b"], instance_id="i"),
    }
    assert texts(ASSIGNORS["range"]().assign(cluster, subscriptions)) == {
        "m1": "a-2 a-3",
        "m2": "a-4 c-0 c-1 c-2",
        "m3": "a-0 a-1 b-0",
    }


def test_round_robin() -> None:
    """The turn goes on from topic to topic; a member that is not subscribed to one misses it."""
    cluster = cluster_of({"a": 3, "b": 2, "c": 2})
    subscriptions = {"m1": Subscription(["a", "c"]), "m2": Subscription(["c", "b", "a"])}
    assert texts(ASSIGNORS["roundrobin"]().assign(cluster, subscriptions)) == {"m1": "a-0 a-2 c-0", "m2": "a-1 b-0 b-1 c-1"}


@pytest.mark.parametrize("name", ["range", *STICKY])
def test_members_read_in_their_racks_if_the_balance_allows_it(name: str) -> None:
    """Partition n has its only replica in rack n % 3; the members are in racks 2, 0, 1."""
    cluster = cluster_of({"a": 6, "b": 6}, lambda partition: ["012"[partition % 3]])
    subscriptions = {f"m{at}": Subscription(["a", "b"], rack="201"[at]) for at in range(3)}
    assigned = ASSIGNORS[name]().assign(cluster, subscriptions)
    for partition, member in owners(assigned).items():
        assert "012"[partition.partition % 3] == subscriptions[member].rack
    assert {len(one.partitions) for one in assigned.values()} == {4}


def test_ranges_of_topics_with_as_many_partitions_go_together_in_racks() -> None:
    """A member has partition n of both topics or of none, for joins, even if only one of the topics has matching racks."""
    racks = [frozenset("x"), frozenset("y"), frozenset("x"), frozenset("y")]
    cluster = ClusterMetadata({"a": racks, "b": racks, "c": [frozenset("x")] * 4})
    subscriptions = {"m1": Subscription(["a", "b"], rack="y"), "m2": Subscription(["a", "b"], rack="x")}
    assert texts(ASSIGNORS["range"]().assign(cluster, subscriptions)) == {"m1": "a-1 a-3 b-1 b-3", "m2": "a-0 a-2 b-0 b-2"}
    subscriptions = {member: Subscription(["a", "b", "c"], rack=one.rack) for member, one in subscriptions.items()}
    assigned = owners(ASSIGNORS["range"]().assign(cluster, subscriptions))
    for number in range(4):
        assert len({assigned[TopicPartition(topic, number)] for topic in "abc"}) == 1


@pytest.mark.parametrize("name", STICKY)
def test_the_latest_generation_has_a_partition_that_two_members_claim(name: str) -> None:
    """KIP-341: m1 missed a rebalance."""
    cluster = cluster_of({"t": 4})
    subscriptions = {"m1": having(["t"], "t-0 t-1", 3), "m2": having(["t"], "t-1 t-2 t-3", 4), "m3": Subscription(["t"])}
    if name == "sticky":
        assert texts(ASSIGNORS[name]().assign(cluster, subscriptions)) == {"m1": "t-0", "m2": "t-1 t-2", "m3": "t-3"}
    else:
        assert texts(ASSIGNORS[name]().assign(cluster, subscriptions)) == {"m1": "t-0", "m2": "t-1 t-2", "m3": ""}


def test_a_partition_that_two_members_of_a_generation_claim_is_assigned_after_both_revoked_it() -> None:
    cluster = cluster_of({"t": 2})
    subscriptions = {"m1": having(["t"], "t-0", 3), "m2": having(["t"], "t-0 t-1", 3)}
    assigned = ASSIGNORS["cooperative-sticky"]().assign(cluster, subscriptions)
    assert texts(assigned) == {"m1": "", "m2": "t-1"}
    assigned = ASSIGNORS["cooperative-sticky"]().assign(cluster, returned(subscriptions, assigned, 4))
    assert texts(assigned) == {"m1": "t-0", "m2": "t-1"}


def test_a_member_that_lists_a_partition_twice_does_not_get_it_by_that() -> None:
    """Another member of its generation has it, too. The generation of m2 is in its user data alone."""
    claimed = [TopicPartition("t", number) for number in (0, 0, 2)]
    subscriptions = {"m1": having(["t"], "t-0 t-1", 5), "m2": Subscription(["t", "u"], encode_cooperative(5), claimed)}
    assigned = ASSIGNORS["cooperative-sticky"]().assign(cluster_of({"t": 4, "u": 1}), subscriptions)
    assert texts(assigned) == {"m1": "t-1 t-0 t-3", "m2": "t-2 u-0"}


@pytest.mark.parametrize("name", STICKY)
def test_partitions_that_do_not_exist_are_not_assigned(name: str) -> None:
    """A topic was created again with fewer partitions, another one is gone. Kafka's do not skip them."""
    cluster = cluster_of({"t": 2, "u": 2})
    for topics in (["t", "u"], ["t"]):
        subscriptions = {"m1": having(["t", "u"], "t-5 gone-0 u-0 u-1", 3), "m2": having(topics, "t-7", 3)}
        assert owners(settle(ASSIGNORS[name](), cluster, subscriptions)).keys() == {
            TopicPartition(topic, number) for topic in "tu" for number in range(2)
        }


def test_a_member_that_takes_no_part_in_the_balance_gets_nothing_back() -> None:
    """m0 had partitions of t in an earlier generation, and now has all of u alone. Kafka's assignor fails here."""
    cluster = cluster_of({"t": 6, "u": 1})
    subscriptions = {
        "m0": having(["u"], "t-0 t-1 u-0", 1),
        "m1": having(["t"], "t-0 t-1 t-2 t-3 t-4 t-5", 2),
        "m2": having(["t"], "", 2),
    }
    assigned = ASSIGNORS["sticky"]().assign(cluster, subscriptions)
    assert {member: len(one.partitions) for member, one in assigned.items()} == {"m0": 1, "m1": 3, "m2": 3}
    assert set(owners(assigned)) == {*(TopicPartition("t", number) for number in range(6)), TopicPartition("u", 0)}


def test_user_data_follows_the_assignment() -> None:
    assigned, partitions = Assignment([TopicPartition("t", 1)]), [TopicPartition("t", 1)]
    expected: dict[str, tuple[bytes | None, bytes | None]] = {
        "range": (None, None),
        "roundrobin": (None, None),
        "sticky": (None, encode_sticky(partitions, 6)),
        "cooperative-sticky": (b"\xff\xff\xff\xff", b"\0\0\0\x06"),
    }
    for name, (before, after) in expected.items():
        assignor = ASSIGNORS[name]()
        assert assignor.subscription_user_data(["t"]) == before
        assignor.on_assignment(assigned, 6)
        assert assignor.subscription_user_data(["t"]) == after


class Calls:
    """Counts calls of Python functions of kcli, which a faster machine does not change."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and "kcli" in frame.f_code.co_filename:
            self.counts[frame.f_code.co_name] += 1

    def __enter__(self) -> Counter[str]:
        sys.setprofile(self)
        return self.counts

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


@pytest.mark.parametrize("name", list(ASSIGNORS))
@pytest.mark.parametrize("are_equal", [True, False])
def test_work_grows_with_the_partitions_alone(name: str, are_equal: bool) -> None:
    """100 members, 2,000 partitions, half of the members leave: 25 calls a partition at most, as with a tenth of both."""
    rng = random.Random(3)
    for members, topics in ((10, 10), (100, 100)):
        cluster = cluster_of({f"t{at}": 20 for at in range(topics)}, lambda _: rng.sample("abc", 2))
        known = list(cluster.topics)
        subscriptions = {
            f"m{at}": Subscription(known if are_equal else rng.sample(known, topics // 2), rack=rng.choice("abc"))
            for at in range(members)
        }
        leader = ASSIGNORS[name]()
        first = leader.assign(cluster, subscriptions)
        rest = dict(list(returned(subscriptions, first, 1).items())[: members // 2])
        with Calls() as counts:
            leader.assign(cluster, rest)
        assert counts.total() < 25 * 20 * topics, counts.most_common(5)
