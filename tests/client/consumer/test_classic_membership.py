"""Protects: members of a classic group share the partitions, whatever happens to some of them; no commit goes backwards.

The members are on a whole node of kcli, in virtual time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kcli.client.consumer.classic_membership import ClassicMembership, State
from kcli.client.consumer.membership import CloseOption
from kcli.client.errors import CommitFailedError, KafkaError, RebalanceListenerError
from tests.client.clients_of_node import ClientsOfNode
from tests.client.consumer.group_app import GroupApp

FOUR = {("t", partition) for partition in range(4)}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClientsOfNode]:
    node = ClientsOfNode(tmp_path, "offsets.topic.num.partitions=1", "group.initial.rebalance.delay.ms=0")
    node.create_topic("t", 4)
    yield node
    node.clients.clear()
    node.stop()


def settle(node: ClientsOfNode, *apps: GroupApp, partitions: set[tuple[str, int]] = FOUR, within_ms: int = 60_000) -> None:
    """Wait until the members have all partitions, each one once, in one generation."""

    def is_settled() -> bool:
        members = [app.member for app in apps]
        assert all(isinstance(member, ClassicMembership) for member in members)
        return (
            all(member.state is State.STABLE and not member._is_rejoin_due() for member in members)  # type: ignore[union-attr]
            and len({member.group_metadata().generation_id for member in members}) == 1
            and sorted(one for app in apps for one in app.assigned) == sorted(partitions)
        )

    node.until(is_settled, within_ms)


def test_one_member_gets_everything_and_goes_on_after_a_restart(node: ClientsOfNode) -> None:
    app = GroupApp(node, "a")
    app.subscribe("t")
    settle(node, app)
    assert app.listener.calls == [("assigned", tuple(sorted(FOUR)))]
    node.advance(100)
    app.read(7)
    app.close()
    again = GroupApp(node, "b")
    again.subscribe("t")
    settle(node, again)
    assert again.committed(*FOUR) == dict.fromkeys(FOUR, 7)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_members_come_and_go(node: ClientsOfNode, assignor: str) -> None:
    apps = [GroupApp(node, name, seed, partition_assignment_strategy=(assignor,)) for seed, name in enumerate("abc")]
    for count, app in enumerate(apps, 1):
        app.subscribe("t")
        settle(node, *apps[:count])
    node.advance(100)
    for app in apps:
        app.read(5)
    apps[0].close()
    settle(node, *apps[1:])
    assert apps[1].committed(*FOUR)[min(FOUR)] == 5
    apps[1].kill()
    settle(node, apps[2], within_ms=90_000)
    if assignor == "cooperative-sticky":
        kept = [call for call in apps[2].listener.calls if call[0] == "revoked"]
        assert not kept, "a cooperative member keeps its partitions"


def test_cooperative_members_keep_what_they_have_while_others_join(node: ClientsOfNode) -> None:
    first, second = (GroupApp(node, name, partition_assignment_strategy=("cooperative-sticky",)) for name in "ab")
    first.subscribe("t")
    settle(node, first)
    node.advance(100)
    first.read(3)
    second.subscribe("t")
    settle(node, first, second)
    revoked = [call for call in first.listener.calls if call[0] == "revoked"]
    assert len(revoked) == 1 and set(revoked[0][1]) == second.assigned
    node.advance(10)
    assert {second.subscription.position(one).offset for one in second.assigned} == {3}  # type: ignore[union-attr]


@pytest.mark.parametrize("has_listener", [True, False])
def test_partitions_are_committed_and_given_back_in_a_poll_only(node: ClientsOfNode, has_listener: bool) -> None:
    """What the application works on is not committed, and stays its own, when the answers come in between."""
    first, second = (GroupApp(node, name, partition_assignment_strategy=("cooperative-sticky",)) for name in "ab")
    first.subscribe("t")
    settle(node, first)
    if not has_listener:
        first.subscription.listener = None
    node.advance(100)
    first.stops_when = lambda: first.member.state is State.JOINING  # type: ignore[union-attr]
    second.subscribe("t")
    node.until(lambda: not first.polls)
    first.read(3)
    node.advance(1000)
    assert first.member.state is State.COMPLETING  # type: ignore[union-attr]
    assert first.assigned == FOUR and first.committed(*FOUR) == dict.fromkeys(FOUR, 0)
    first.stops_when, first.polls = lambda: False, True
    settle(node, first, second)
    assert set(second.committed(*second.assigned).values()) == {3}


def test_a_member_that_does_not_poll_leaves_and_comes_back(node: ClientsOfNode) -> None:
    slow, quick = GroupApp(node, "a", max_poll_interval_ms=10_000), GroupApp(node, "b", max_poll_interval_ms=10_000)
    slow.subscribe("t")
    quick.subscribe("t")
    settle(node, slow, quick)
    slow.polls = False
    node.advance(1000)
    settle(node, quick, within_ms=30_000)
    assert isinstance(slow.commit({("t", 0): 99}), CommitFailedError)
    slow.polls = True
    settle(node, slow, quick)
    assert [name for name, _ in slow.listener.calls][-2:] == ["lost", "assigned"]


def test_a_static_member_that_does_not_poll_keeps_its_partitions_for_its_session(node: ClientsOfNode) -> None:
    """As Kafka documents max.poll.interval.ms: it sends no heartbeats, and may come back before session.timeout.ms."""
    slow = GroupApp(node, "a", group_instance_id="one", max_poll_interval_ms=10_000, session_timeout_ms=40_000)
    quick = GroupApp(node, "b", max_poll_interval_ms=10_000)
    slow.subscribe("t")
    quick.subscribe("t")
    settle(node, slow, quick)
    had = slow.assigned
    slow.polls = False
    node.advance(30_000)
    assert quick.assigned == FOUR - had and not slow.returned
    slow.polls = True
    settle(node, slow, quick)
    assert slow.assigned == had and [name for name, _ in slow.listener.calls][-2:] == ["lost", "assigned"]
    slow.polls = False
    settle(node, quick)


def test_lost_partitions_return_nothing_before_the_listener_knows(node: ClientsOfNode) -> None:
    """The assignment is new when the application stops to poll: then it never hears of it."""
    app = GroupApp(node, "a", max_poll_interval_ms=10_000)
    app.calls_listener = False
    app.stops_when = lambda: app.member.next_callback() is not None
    app.subscribe("t")
    node.until(lambda: not app.polls)
    node.advance(11_000)
    assert app.member.next_callback() is None and not app.assigned
    app.polls = app.calls_listener = True
    app.stops_when = lambda: False
    settle(node, app)
    assert app.listener.calls == [("assigned", tuple(sorted(FOUR)))]
    app.polls = False
    node.advance(11_000)
    assert app.assigned == FOUR and not app.returned
    app.polls = True
    settle(node, app)
    assert [name for name, _ in app.listener.calls] == ["assigned", "lost", "assigned"] and app.returned == FOUR


def test_a_killed_member_is_replaced_after_its_session(node: ClientsOfNode) -> None:
    one, other = GroupApp(node, "a"), GroupApp(node, "b")
    one.subscribe("t")
    other.subscribe("t")
    settle(node, one, other)
    one.kill()
    node.advance(40_000)
    assert other.assigned != FOUR
    settle(node, other)


def test_a_static_member_keeps_its_partitions_over_a_restart(node: ClientsOfNode) -> None:
    static = GroupApp(node, "a", group_instance_id="one")
    other = GroupApp(node, "b")
    static.subscribe("t")
    other.subscribe("t")
    settle(node, static, other)
    generation = other.member.group_metadata().generation_id
    had = static.assigned
    static.close()
    again = GroupApp(node, "c", group_instance_id="one")
    again.subscribe("t")
    settle(node, again, other)
    assert again.assigned == had
    assert other.member.group_metadata().generation_id == generation
    again.close(CloseOption.LEAVE_GROUP)
    settle(node, other)


def test_a_second_member_with_an_instance_id_fences_the_first(node: ClientsOfNode) -> None:
    first = GroupApp(node, "a", group_instance_id="one")
    first.subscribe("t")
    settle(node, first)
    second = GroupApp(node, "b", group_instance_id="one")
    second.subscribe("t")
    settle(node, second)
    node.until(lambda: bool(first.errors))
    assert isinstance(first.errors[0], KafkaError) and first.errors[0].name == "FENCED_INSTANCE_ID"
    assert first.listener.calls[1:] == [("lost", tuple(sorted(FOUR)))] and not first.assigned
    first.close()
    assert len(first.listener.calls) == 2


def test_a_fenced_member_that_is_closed_before_it_polls_loses_its_partitions_once(node: ClientsOfNode) -> None:
    first = GroupApp(node, "a", group_instance_id="one")
    first.subscribe("t")
    settle(node, first)
    first.polls = False
    second = GroupApp(node, "b", group_instance_id="one")
    second.subscribe("t")
    settle(node, second)
    node.until(lambda: first.member.next_callback() is not None)
    assert not first.returned
    answers: list[object] = []
    first.member.close(lambda error, now_ms: answers.append(error), node.now_ms)
    first.call_listener(node.now_ms)
    node.until(lambda: bool(answers))
    assert [name for name, _ in first.listener.calls] == ["assigned", "lost"]


def test_auto_commit_follows_its_interval(node: ClientsOfNode) -> None:
    app = GroupApp(node, "a", auto_commit_interval_ms=1000)
    app.subscribe("t")
    settle(node, app)
    node.advance(10)
    app.read(4)
    node.advance(1100)
    assert app.committed(*FOUR) == dict.fromkeys(FOUR, 4)
    assert {one.offset for one in app.member.auto_commits.pop().values()} == {4}
    app.read(1)
    app.close()
    assert {one.offset for one in app.member.auto_commits.pop().values()} == {5}
    silent = GroupApp(node, "b", group_id="other", enable_auto_commit=False)
    silent.subscribe("t")
    settle(node, silent)
    silent.read(4)
    node.advance(10_000)
    silent.close()
    assert not silent.member.auto_commits
    assert GroupApp(node, "c", group_id="other").committed(*FOUR) == dict.fromkeys(FOUR)


def test_an_automatic_commit_that_fails_for_good_is_reported(node: ClientsOfNode) -> None:
    app = GroupApp(node, "a", auto_commit_interval_ms=1000)
    app.subscribe("t")
    settle(node, app)
    app.member.commit_identity = lambda: CommitFailedError("the test refuses it")  # type: ignore[method-assign]
    node.advance(1100)
    before = len(app.client.lines)
    app.close()
    assert [line for line in app.client.lines if "automatically" in line] == [
        "the consumed offsets of the group g are not committed automatically: the test refuses it"
    ] * 2
    assert len(app.client.lines) > before and not app.errors


def test_a_pattern_finds_new_topics(node: ClientsOfNode) -> None:
    app = GroupApp(node, "a")
    app.subscribe_pattern("t.*")
    settle(node, app)
    assert app.subscription.subscription == {"t"}
    node.create_topic("t2", 2)
    node.create_topic("u", 2)
    app.client.network.request_update()
    settle(node, app, partitions=FOUR | {("t2", 0), ("t2", 1)})


def test_more_partitions_make_the_leader_assign_again(node: ClientsOfNode) -> None:
    app = GroupApp(node, "a")
    app.subscribe("missing", "t")
    settle(node, app)
    node.create_topic("missing", 1)
    app.client.network.request_update()
    settle(node, app, partitions=FOUR | {("missing", 0)})


def test_a_subscription_changes_and_ends(node: ClientsOfNode) -> None:
    node.create_topic("u", 1)
    app = GroupApp(node, "a", partition_assignment_strategy=("cooperative-sticky",))
    app.subscribe("t")
    settle(node, app)
    app.subscribe("u")
    settle(node, app, partitions={("u", 0)})
    assert app.listener.calls[1] == ("revoked", tuple(sorted(FOUR)))
    app.subscription.unsubscribe()
    app.member.subscription_changed(node.now_ms)
    node.advance(100)
    assert app.member.group_metadata().generation_id == -1
    other = GroupApp(node, "b")
    other.subscribe("t")
    settle(node, other, within_ms=1000)


def test_the_listener_may_raise(node: ClientsOfNode) -> None:
    app = GroupApp(node, "a")
    app.listener.raises = ValueError("of the application")
    app.subscribe("t")
    settle(node, app)
    assert isinstance(app.errors[0], RebalanceListenerError) and isinstance(app.errors[0].__cause__, ValueError)


@pytest.mark.parametrize("leaves_first", [True, False])
def test_the_listener_may_unsubscribe(node: ClientsOfNode, leaves_first: bool) -> None:
    app, other = GroupApp(node, "a"), GroupApp(node, "b")
    app.listener.acts = app.leave if leaves_first else app.unsubscribe
    app.subscribe("t")
    node.until(lambda: bool(app.listener.calls))
    node.advance(1000)
    assert [name for name, _ in app.listener.calls] == ["assigned", "revoked"][: 2 if leaves_first else 1]
    assert not app.errors and not app.assigned and app.member.group_metadata().generation_id == -1
    other.subscribe("t")
    settle(node, other, within_ms=1000)
    app.subscribe("t")
    settle(node, app, other)


@pytest.mark.parametrize("leaves_first", [True, False])
def test_the_listener_may_unsubscribe_when_partitions_are_revoked(node: ClientsOfNode, leaves_first: bool) -> None:
    app, other = GroupApp(node, "a"), GroupApp(node, "b")
    app.subscribe("t")
    settle(node, app)
    app.listener.acts = app.leave if leaves_first else app.unsubscribe
    other.subscribe("t")
    settle(node, other)
    node.advance(1000)
    assert [name for name, _ in app.listener.calls] == ["assigned", "revoked"]
    assert not app.errors and not app.assigned and app.member.group_metadata().generation_id == -1
    app.subscribe("t")
    settle(node, app, other)


def test_a_generation_that_is_lost_during_a_commit_does_not_end_in_a_join(node: ClientsOfNode) -> None:
    """The coordinator does not answer the commit before a rebalance, and the application does not poll any more."""
    app = GroupApp(node, "a", max_poll_interval_ms=10_000, partition_assignment_strategy=("cooperative-sticky",))
    app.subscribe("t")
    settle(node, app)
    member = app.member
    assert isinstance(member, ClassicMembership)
    node.advance(100)
    app.read(3)
    app.client.is_cut = True
    app.stops_when = lambda: member.state is State.PREPARING
    member.enforce_rebalance("the test wants it", node.now_ms)
    node.until(lambda: not app.polls)
    node.advance(30_000)
    assert member.state is State.UNJOINED and not app.returned
    app.client.is_cut = False
    node.disconnect(app.client)
    node.advance(30_000)
    assert member.state is State.UNJOINED
    app.polls, app.stops_when = True, lambda: False
    settle(node, app)
    assert [name for name, _ in app.listener.calls] == ["assigned", "lost", "assigned"]


def test_connections_may_end_at_any_time(node: ClientsOfNode) -> None:
    apps = [GroupApp(node, name, seed) for seed, name in enumerate("ab")]
    for app in apps:
        app.subscribe("t")
        node.disconnect(app.client)
    settle(node, *apps)
    node.disconnect(apps[0].client)
    apps[0].read(2)
    assert apps[0].commit(dict.fromkeys(apps[0].assigned, 2)) is None
    settle(node, *apps)


def test_a_consumer_without_a_subscription_commits(node: ClientsOfNode) -> None:
    app = GroupApp(node, "a")
    assert app.commit({("t", 0): 5, ("t", 1): 6}) is None
    assert app.committed(("t", 0), ("t", 1), ("t", 2)) == {("t", 0): 5, ("t", 1): 6, ("t", 2): None}
    active = GroupApp(node, "b")
    active.subscribe("t")
    settle(node, active)
    assert isinstance(app.commit({("t", 0): 7}), CommitFailedError)


def test_members_with_different_assignors_have_none_in_common(node: ClientsOfNode) -> None:
    one = GroupApp(node, "a", partition_assignment_strategy=("range",))
    other = GroupApp(node, "b", partition_assignment_strategy=("sticky",))
    one.subscribe("t")
    settle(node, one)
    other.subscribe("t")
    node.until(lambda: bool(other.errors))
    assert isinstance(other.errors[0], KafkaError) and other.errors[0].name == "INCONSISTENT_GROUP_PROTOCOL"


def test_a_member_leaves_at_once_while_the_group_waits_for_another(node: ClientsOfNode) -> None:
    slow, joining = GroupApp(node, "a"), GroupApp(node, "b", 2)
    slow.subscribe("t")
    settle(node, slow)
    slow.polls = False
    joining.subscribe("t")
    node.advance(500)
    assert isinstance(joining.member, ClassicMembership) and joining.member.state is State.JOINING
    before_ms = node.now_ms
    joining.close()
    assert node.now_ms - before_ms < 100
    slow.polls = True
    settle(node, slow, within_ms=5000)
