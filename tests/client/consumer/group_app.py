"""An application that is a member of a group: it polls, its listener notes what it is called with, it "reads" and commits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from kcli.client.consumer.consumer_config import ConsumerConfig
from kcli.client.consumer.making_membership import make_membership
from kcli.client.consumer.membership import CloseOption, RebalanceCallback
from kcli.client.consumer.subscription_state import EARLIEST, FetchPosition, SubscriptionState
from kcli.client.errors import ClientError
from kcli.client.value_checks import OffsetAndMetadata
from kcli.format.primitives import TopicPartition
from tests.client.clients_of_node import Client, ClientsOfNode


class NotingListener:
    """Notes its calls; `raises` is raised by the next one, which does `acts` before."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.raises: Exception | None = None
        self.acts: Callable[[], None] | None = None

    def _note(self, name: str, partitions: Collection[TopicPartition]) -> None:
        self.calls.append((name, tuple(sorted(partitions))))
        if self.acts is not None:
            acts, self.acts = self.acts, None
            acts()
        if self.raises is not None:
            error, self.raises = self.raises, None
            raise error

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._note("assigned", partitions)

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._note("revoked", partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._note("lost", partitions)


class GroupApp:
    """One application; `owned` is what its listener knows, `errors` what its polls raised."""

    def __init__(self, node: ClientsOfNode, name: str, seed: int = 1, **settings: Any) -> None:
        self.node = node
        self.client = node.add(
            Client(name, node.now_ms, seed, client_rack=settings.pop("client_rack", ""), allow_auto_create_topics=False)
        )
        self.config = ConsumerConfig(group_id="g")._replace(**settings)
        self.subscription = SubscriptionState(EARLIEST)
        self.member = make_membership(self.client.network, self.config, self.subscription)
        self.listener = NotingListener()
        self.errors: list[ClientError] = []
        self.polls = True  # else the application does not poll
        self.calls_listener = True
        self.stops_when: Callable[[], bool] = lambda: False  # looked at after each poll
        self.client.poll = self._poll
        self._is_looking_up = False

    @property
    def assigned(self) -> set[TopicPartition]:
        return set(self.subscription.assigned_partitions)

    def subscribe(self, *topics: str) -> None:
        self.subscription.subscribe(topics, self.listener)
        for topic in topics:
            self.client.network.metadata.want_topic(topic)
        self.client.network.request_update()
        self.member.subscription_changed(self.node.now_ms)
        self.node.pump()

    def subscribe_pattern(self, pattern: str) -> None:
        self.subscription.subscribe_pattern(pattern, self.listener)
        self.member.subscription_changed(self.node.now_ms)
        self.node.pump()

    def unsubscribe(self) -> None:
        """Unsubscribe as a core does."""
        self.subscription.unsubscribe()
        self.member.subscription_changed(self.node.now_ms)
        self.node.pump()

    def leave(self) -> None:
        """Leave the group as a shell's unsubscribe does, with calls of the listener, then unsubscribe."""
        answers: list[ClientError | None] = []
        self.member.leave(lambda error, now_ms: answers.append(error), self.node.now_ms)
        self.call_listener(self.node.now_ms)
        self.unsubscribe()

    @property
    def returned(self) -> set[TopicPartition]:
        """The partitions whose records may be returned."""
        states = {one: self.subscription.state_of(one) for one in self.assigned}
        return {one for one, state in states.items() if not state.is_pending_revocation and self.member.is_ready_to_fetch}

    def _poll(self, now_ms: int) -> None:
        self.member.poll(now_ms)
        if not self.polls:
            return
        self._poll_as_application(now_ms)
        if self.stops_when():
            self.polls = False  # it works on the records of this poll

    def _poll_as_application(self, now_ms: int) -> None:
        next_ms = self.member.next_poll_ms(now_ms)
        if next_ms is not None and next_ms <= now_ms:
            self.member.polled(now_ms)
        if self.calls_listener:
            self.call_listener(now_ms)
        while (error := self.member.take_error()) is not None:
            self.errors.append(error)
            if len(self.errors) > 5:
                self.polls = False
                break
        self._find_positions(now_ms)

    def call_listener(self, now_ms: int) -> None:
        """Call the listener as long as the member wants it."""
        while (call := self.member.start_callback()) is not None:
            self._call(call, now_ms)

    def _call(self, call: RebalanceCallback, now_ms: int) -> None:
        raised: Exception | None = None
        try:
            getattr(self.listener, call.kind.value)(call.partitions)
        except Exception as error:
            raised = error
        self.member.callback_done(raised, now_ms)

    def _find_positions(self, now_ms: int) -> None:
        missing = [one for one in self.subscription.assigned_partitions if self.subscription.state_of(one).position is None]
        if not missing or self._is_looking_up or not self.member.is_ready_to_fetch:
            return
        self._is_looking_up = True

        def found(result: dict[TopicPartition, OffsetAndMetadata | None] | ClientError, now_ms: int) -> None:
            self._is_looking_up = False
            if isinstance(result, ClientError):
                return
            for partition, offset in result.items():
                if self.subscription.is_assigned(partition) and self.subscription.position(partition) is None:
                    self.subscription.seek(partition, FetchPosition(0 if offset is None else offset.offset))

        self.member.committed(missing, found, now_ms, 10_000)

    def read(self, count: int = 1) -> None:
        """Take `count` records of each assigned partition."""
        for partition in self.assigned:
            position = self.subscription.position(partition)
            if position is not None and not self.subscription.state_of(partition).is_pending_revocation:
                self.subscription.advance(partition, position.offset + count, -1)

    def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Return what is committed."""
        answers: list[Any] = []
        self.member.committed(partitions, lambda result, now_ms: answers.append(result), self.node.now_ms, 10_000)
        self.node.until(lambda: bool(answers))
        assert not isinstance(answers[0], ClientError), answers[0]
        return {one: None if offset is None else offset.offset for one, offset in answers[0].items()}

    def commit(self, offsets: dict[TopicPartition, int], timeout_ms: int | None = 10_000) -> ClientError | None:
        """Commit offsets and return the error."""
        answers: list[ClientError | None] = []
        wanted = {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        self.member.commit(wanted, lambda error, now_ms: answers.append(error), self.node.now_ms, timeout_ms)
        self.node.until(lambda: bool(answers), 20_000)
        return answers[0]

    def close(self, option: CloseOption = CloseOption.DEFAULT) -> None:
        """Close the member, then the client."""
        answers: list[ClientError | None] = []
        self.member.close(lambda error, now_ms: answers.append(error), self.node.now_ms, option)
        self.node.until(lambda: bool(answers))
        self.node.remove(self.client)

    def kill(self) -> None:
        self.node.remove(self.client)
