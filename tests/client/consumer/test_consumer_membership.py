"""Protects: members of a consumer group (KIP-848) share the partitions, whatever happens to some of them.

The members are on a whole node of kcli, in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcli.client.consumer.consumer_membership import ConsumerMembership
from kcli.client.consumer.epoch_member import MemberState
from kcli.client.consumer.membership import CloseOption
from kcli.client.errors import ClientError, CommitFailedError, KafkaError
from kcli.client.value_checks import OffsetAndMetadata
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, CONSUMER_GROUP_HEARTBEAT
from kcli.protocol.message import Message
from tests.client.clients_of_node import ClientsOfNode
from tests.client.consumer.group_app import GroupApp

FOUR = {("t", partition) for partition in range(4)}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClientsOfNode]:
    node = ClientsOfNode(
        tmp_path,
        "offsets.topic.num.partitions=1",
        "group.consumer.heartbeat.interval.ms=500",
        "group.consumer.min.heartbeat.interval.ms=500",
        "group.consumer.session.timeout.ms=10000",
        "group.consumer.min.session.timeout.ms=10000",
    )
    node.create_topic("t", 4)
    yield node
    node.clients.clear()
    node.stop()


def member_app(node: ClientsOfNode, name: str, seed: int = 1, **settings: object) -> GroupApp:
    return GroupApp(node, name, seed, group_protocol="consumer", **settings)


def member_of(app: GroupApp) -> ConsumerMembership:
    assert isinstance(app.member, ConsumerMembership)
    return app.member


def settle(
    node: ClientsOfNode,
    *apps: GroupApp,
    partitions: set[tuple[str, int]] = FOUR,
    within_ms: int = 60_000,
    knows: bool = True,
) -> None:
    """Wait until the members have all partitions, each one once, in one epoch; if not `knows`, one may still be fenced."""

    def is_settled() -> bool:
        owned = [one for app in apps for one in app.assigned]
        assert not knows or len(owned) == len(set(owned)), "two members have a partition"
        return (
            all(member_of(app).member.state is MemberState.STABLE for app in apps)
            and len({app.member.group_metadata().generation_id for app in apps}) == 1
            and sorted(owned) == sorted(partitions)
            and all(app.assigned for app in apps)
        )

    node.until(is_settled, within_ms)


def test_members_come_and_go(node: ClientsOfNode) -> None:
    apps = [member_app(node, name, seed) for seed, name in enumerate("abc")]
    for count, app in enumerate(apps, 1):
        app.subscribe("t")
        settle(node, *apps[:count])
        node.advance(100)
        app.read(5)
    assert {min(len(app.assigned) for app in apps), max(len(app.assigned) for app in apps)} == {1, 2}
    apps[0].close()
    settle(node, *apps[1:])
    committed = apps[1].committed(*FOUR)
    assert all(offset in (5, 10, None) for offset in committed.values()) and 5 in committed.values()
    apps[1].kill()
    settle(node, apps[2])


def test_an_assignment_whose_answer_is_lost_is_asked_for(node: ClientsOfNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat without an answer is executed after the next one; the answer with the new epoch has no assignment then."""
    app = member_app(node, "a")
    app.subscribe("t")
    settle(node, app)
    member = member_of(app).member
    sent: list[tuple[Message, Callable[[Message | ClientError, int], None]]] = []

    def keep(api_key: int, message: Message, answered: Callable[[Message | ClientError, int], None], now_ms: int) -> None:
        sent.append((message, answered))

    monkeypatch.setattr(member._coordinator, "send", keep)

    def answer(epoch: int) -> bool:
        """Answer the next heartbeat without an assignment -> whether the heartbeat has all fields."""
        node.until(lambda: bool(sent))
        message, answered = sent.pop()
        fields = {"member_id": member.member_id, "member_epoch": epoch, "heartbeat_interval_ms": 500, "assignment": None}
        answered(API_KEYS[CONSUMER_GROUP_HEARTBEAT].response.new(**fields), node.now_ms)
        return message.topic_partitions is not None and message.rebalance_timeout_ms != -1

    epoch = member.epoch
    assert not answer(epoch + 1) and not answer(epoch + 1), "all answers have come"
    node.until(lambda: bool(sent))
    sent.pop()[1](KafkaError(error_codes.COORDINATOR_NOT_AVAILABLE), node.now_ms)
    assert answer(epoch + 1) and not answer(epoch + 1)
    assert not answer(epoch + 2)
    assert answer(epoch + 2)
    assert not answer(epoch + 3) and not answer(epoch + 3), "once for each lost answer"


def test_a_partition_is_given_back_before_another_member_gets_it(node: ClientsOfNode) -> None:
    first, second = member_app(node, "a"), member_app(node, "b", 2)
    first.subscribe("t")
    settle(node, first)
    node.advance(100)
    first.read(3)
    second.subscribe("t")
    settle(node, first, second)
    (revoked,) = [call for call in first.listener.calls if call[0] == "revoked"]
    assert set(revoked[1]) == second.assigned
    node.advance(10)
    assert {second.subscription.position(one).offset for one in second.assigned} == {3}  # type: ignore[union-attr]


def test_a_member_that_does_not_poll_leaves_and_comes_back(node: ClientsOfNode) -> None:
    slow, quick = member_app(node, "a", max_poll_interval_ms=10_000), member_app(node, "b", 2, max_poll_interval_ms=10_000)
    slow.subscribe("t")
    quick.subscribe("t")
    settle(node, slow, quick)
    slow.polls = False
    settle_without(node, quick)
    assert isinstance(slow.commit({("t", 0): 99}), CommitFailedError)
    slow.polls = True
    settle(node, slow, quick, knows=False)
    assert "lost" in [name for name, _ in slow.listener.calls]


def test_lost_partitions_return_nothing_before_the_listener_knows(node: ClientsOfNode) -> None:
    """The assignment is new when the application stops to poll: then it never hears of it."""
    app = member_app(node, "a", max_poll_interval_ms=10_000)
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
    node.until(lambda: app.returned == FOUR)
    assert [name for name, _ in app.listener.calls] == ["assigned", "lost", "assigned"]


def test_a_member_that_fails_for_good_loses_its_partitions(node: ClientsOfNode) -> None:
    app = member_app(node, "a", group_instance_id="one")
    app.subscribe("t")
    settle(node, app)
    member_of(app).member._fail(KafkaError(error_codes.FENCED_INSTANCE_ID), node.now_ms)
    node.pump()
    assert isinstance(app.errors[0], KafkaError) and app.errors[0].name == "FENCED_INSTANCE_ID"
    assert app.listener.calls[1:] == [("lost", tuple(sorted(FOUR)))] and not app.assigned
    app.close()
    assert len(app.listener.calls) == 2


@pytest.mark.parametrize("leaves_first", [True, False])
def test_the_listener_may_unsubscribe(node: ClientsOfNode, leaves_first: bool) -> None:
    app, other = member_app(node, "a"), member_app(node, "b", 2)
    app.listener.acts = app.leave if leaves_first else app.unsubscribe
    app.subscribe("t")
    node.until(lambda: bool(app.listener.calls) and bool(app.listener.calls[0][1]))
    node.advance(1000)
    assert [name for name, _ in app.listener.calls] == ["assigned", "revoked"][: 2 if leaves_first else 1]
    assert not app.errors and not app.assigned and app.member.group_metadata().generation_id == -1
    other.subscribe("t")
    settle(node, other, within_ms=10_000)
    app.subscribe("t")
    settle(node, app, other)


def settle_without(node: ClientsOfNode, *apps: GroupApp) -> None:
    node.until(lambda: {one for app in apps for one in app.assigned} == FOUR, 60_000)


def test_a_fenced_member_loses_its_partitions_and_joins_again(node: ClientsOfNode) -> None:
    one, other = member_app(node, "a"), member_app(node, "b", 2)
    one.subscribe("t")
    other.subscribe("t")
    settle(node, one, other)
    one.client.is_cut = True
    settle_without(node, other)
    one.client.is_cut = False
    node.disconnect(one.client)
    settle(node, one, other, within_ms=120_000, knows=False)
    assert "lost" in [name for name, _ in one.listener.calls]


def test_a_static_member_keeps_its_partitions_over_a_restart(node: ClientsOfNode) -> None:
    static, other = member_app(node, "a", group_instance_id="one"), member_app(node, "b", 2)
    static.subscribe("t")
    other.subscribe("t")
    settle(node, static, other)
    had, epoch = static.assigned, other.member.group_metadata().generation_id
    static.close()
    again = member_app(node, "c", 3, group_instance_id="one")
    again.subscribe("t")
    settle(node, again, other)
    assert again.assigned == had and other.member.group_metadata().generation_id == epoch
    late = member_app(node, "d", 4, group_instance_id="one")
    late.subscribe("t")
    node.until(lambda: bool(late.errors))
    assert isinstance(late.errors[0], KafkaError) and late.errors[0].name == "UNRELEASED_INSTANCE_ID"
    again.close(CloseOption.LEAVE_GROUP)
    settle(node, other)


def test_the_coordinator_resolves_a_pattern(node: ClientsOfNode) -> None:
    app = member_app(node, "a")
    app.subscribe_pattern("t.*")
    settle(node, app)
    node.create_topic("t2", 2)
    node.create_topic("u", 2)
    settle(node, app, partitions=FOUR | {("t2", 0), ("t2", 1)})
    app.subscription.unsubscribe()
    app.member.subscription_changed(node.now_ms)
    node.advance(100)
    app.subscribe("u")
    settle(node, app, partitions={("u", 0), ("u", 1)})


def test_a_wrong_pattern_is_reported(node: ClientsOfNode) -> None:
    app = member_app(node, "a")
    app.subscribe_pattern("t(")
    node.until(lambda: bool(app.errors))
    assert isinstance(app.errors[0], KafkaError) and app.errors[0].name == "INVALID_REGULAR_EXPRESSION"


def test_an_assignor_that_the_coordinator_does_not_have_is_reported(node: ClientsOfNode) -> None:
    app = member_app(node, "a", group_remote_assignor="mine")
    app.subscribe("t")
    node.until(lambda: bool(app.errors))
    assert isinstance(app.errors[0], KafkaError) and app.errors[0].name == "UNSUPPORTED_ASSIGNOR"


def test_a_commit_with_an_epoch_that_is_over_is_sent_again(node: ClientsOfNode) -> None:
    app = member_app(node, "a")
    app.subscribe("t")
    settle(node, app)
    app.member.member.epoch -= 1  # type: ignore[union-attr]
    node.clients[0].poll = lambda now_ms: None
    answers: list[object] = []
    offsets = {("t", 0): OffsetAndMetadata(3)}
    app.member.commit(offsets, lambda error, now_ms: answers.append(error), node.now_ms, 10_000)
    app.member.member.epoch += 1  # type: ignore[union-attr]
    node.until(lambda: bool(answers))
    assert answers == [None] and app.committed(("t", 0)) == {("t", 0): 3}


def test_topics_that_come_and_go(node: ClientsOfNode) -> None:
    app = member_app(node, "a")
    app.subscribe("t", "later")
    settle(node, app)
    node.create_topic("later", 1)
    settle(node, app, partitions=FOUR | {("later", 0)})
    node.delete_topic("later")
    settle(node, app)


def test_connections_may_end_at_any_time(node: ClientsOfNode) -> None:
    apps = [member_app(node, name, seed) for seed, name in enumerate("ab")]
    for app in apps:
        app.subscribe("t")
        node.disconnect(app.client)
    settle(node, *apps)
    node.disconnect(apps[0].client)
    assert apps[0].commit(dict.fromkeys(apps[0].assigned, 2)) is None
    settle(node, *apps)


def test_the_protocols_of_a_group_may_be_mixed(node: ClientsOfNode) -> None:
    """KIP-848: a group is migrated one member at a time."""
    old = GroupApp(node, "a")
    old.subscribe("t")
    node.until(lambda: old.assigned == FOUR)
    new = member_app(node, "b", 2)
    new.subscribe("t")
    node.until(lambda: len(old.assigned) == len(new.assigned) == 2 and old.assigned | new.assigned == FOUR, 60_000)
    old.close()
    settle(node, new)
