"""Protects how the controller decides: one request after the other, a large one in slices, nobody sees half of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcli.log.errors import AppendError
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, CREATE_TOPICS
from kcli.protocol.message import Message
from kcli.server.controller import quorum_controller
from kcli.server.controller.quorum_controller import SLICE_RECORDS, SPLIT_RECORDS
from kcli.server.controller.replication_control_manager import ReplicationControlManager
from kcli.server.events import Connection, DeadlineReached
from kcli.server.raft.leader_state import ReplicaProgress
from kcli.server.raft.messages import ReplicaKey
from kcli.server.raft.metadata_batches import MetadataBatch, new_record
from kcli.server.raft.metadata_log import MetadataLogError
from kcli.state.state_error import StateError
from tests.server.whole_node import Pending, WholeNode


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    return WholeNode(tmp_path / "data")


def ask(node: WholeNode, name: str, partitions: int, connection: Connection | None = None) -> Pending:
    """Ask for a topic and do not wait for the answer."""
    classes = API_KEYS[CREATE_TOPICS].request.classes
    topic = classes["CreatableTopic"](name=name, num_partitions=partitions, replication_factor=1)
    return node.send(CREATE_TOPICS, 7, API_KEYS[CREATE_TOPICS].request.new(topics=[topic], timeout_ms=1000), connection)


def code(pending: Pending) -> int:
    (topic,) = pending.result().topics
    return int(topic.error_code)


def test_what_is_asked_between_two_slices_is_decided_behind_them_in_order(node: WholeNode) -> None:
    large = ask(node, "large", 2 * SLICE_RECORDS)
    assert large.answer is None and "large" not in node.broker.image.topic_ids, "it is between two slices"
    behind = [ask(node, name, 1) for name in ("large", "small", "small")]
    assert all(pending.answer is None for pending in behind)
    node.until(lambda: all(pending.answer is not None for pending in [large, *behind]))
    exists = error_codes.TOPIC_ALREADY_EXISTS
    assert [code(pending) for pending in [large, *behind]] == [0, exists, 0, exists]
    assert code(ask(node, "later", 1)) == 0


@pytest.mark.parametrize("validate_only", [False, True])
def test_many_topics_are_checked_in_slices_too(node: WholeNode, monkeypatch: pytest.MonkeyPatch, validate_only: bool) -> None:
    """500 topics of one request were checked, placed and described in one step of 60 ms; each result is there at the end."""
    checked: list[str] = []
    create_topic = ReplicationControlManager._create_topic

    def counted(self: ReplicationControlManager, topic: Message, *args: Any) -> Any:
        checked.append(topic.name)
        return create_topic(self, topic, *args)

    monkeypatch.setattr(ReplicationControlManager, "_create_topic", counted)
    make = API_KEYS[CREATE_TOPICS].request.classes["CreatableTopic"]
    names = [*(f"t{number}" for number in range(40)), "t3", "not/allowed"]
    topics = [make(name=name, num_partitions=1, replication_factor=1) for name in names]
    request = API_KEYS[CREATE_TOPICS].request.new(topics=topics, timeout_ms=1000, validate_only=validate_only)
    pending = node.send(CREATE_TOPICS, 7, request)
    assert pending.answer is None and 0 < len(checked) < 20
    node.until(lambda: pending.answer is not None)
    codes = {topic.name: topic.error_code for topic in pending.result().topics}
    wrong = {"t3": error_codes.INVALID_REQUEST, "not/allowed": error_codes.INVALID_TOPIC_EXCEPTION}
    assert codes == dict.fromkeys(names, 0) | wrong
    assert len(node.broker.image.topics) == (0 if validate_only else 39)


def test_the_controller_itself_does_not_come_between_two_slices(node: WholeNode) -> None:
    """Its NoOp record, and the fencing of who is silent, wait for their next time; the offsets are those of the decision."""
    controller = node.node.controller.controller  # type: ignore[attr-defined]
    large = ask(node, "large", 2 * SLICE_RECORDS)
    end_offset = controller._raft.next_offset
    controller._write_no_op(node.now_ms + 10_000)
    controller._check_sessions(node.now_ms)
    assert controller._raft.next_offset == end_offset
    node.until(lambda: large.answer is not None)
    assert code(large) == 0


def test_who_loses_the_lead_between_two_slices_writes_nothing_more(node: WholeNode) -> None:
    controller = node.node.controller.controller  # type: ignore[attr-defined]
    large, behind = (
        ask(node, name, partitions, Connection(client, "CONTROLLER", "127.0.0.1"))
        for client, name, partitions in ((1001, "large", 2 * SLICE_RECORDS), (1002, "small", 1))
    )
    forwarded = ask(node, "forwarded", 1)
    end_offset = controller._raft.next_offset
    controller._raft.resign(node.now_ms)
    node.until(lambda: large.answer is not None and behind.answer is not None)
    assert [code(large), code(behind)] == [error_codes.NOT_CONTROLLER] * 2
    node.advance(1000)
    assert forwarded.answer is None, "the broker waits for the next controller, as Kafka's does"
    assert controller._raft.next_offset == end_offset


def half_prepared(node: WholeNode, name: str) -> Pending:
    """Ask for a topic of more records than are applied at once, until a part of them is applied."""
    state = node.node.controller.state  # type: ignore[attr-defined]
    large = ask(node, name, SPLIT_RECORDS + 2 * SLICE_RECORDS, Connection(1001, "CONTROLLER", "127.0.0.1"))
    while name not in state.image.topic_ids:
        assert large.answer is None
        node.handle(DeadlineReached())
    assert 0 < len(state.image.topic(name).partitions) < SPLIT_RECORDS
    return large


def test_a_large_batch_is_applied_in_slices_before_it_is_appended(node: WholeNode) -> None:
    """In between it is in no snapshot, other commits do not make it committed, and who reads the state waits."""
    server: Any = node.node.controller
    end_offset = server.raft.next_offset
    large = half_prepared(node, "large")
    assert server.raft.next_offset == end_offset
    server.state.commit(end_offset + SPLIT_RECORDS)
    assert "large" not in server.state.committed_image().topic_ids
    seen: list[int] = []
    server.controller.read(lambda: len(server.state.image.topic("large").partitions), seen.append)
    server.controller.when_committed(lambda: seen.append(-1), lambda: seen.append(-2))
    assert seen == []
    node.until(lambda: large.answer is not None and len(seen) == 2)
    partitions = SPLIT_RECORDS + 2 * SLICE_RECORDS
    assert (code(large), seen) == (0, [partitions, -1])
    node.until(lambda: "large" in node.broker.image.topic_ids)
    assert len(node.broker.image.topic("large").partitions) == partitions
    assert len(server.state.committed_image().topic("large").partitions) == partitions


def test_a_large_batch_is_reverted_by_a_resignation_and_by_a_failure(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is appended; after a failure that leaves the leadership, the next decisions are made without it."""
    server: Any = node.node.controller

    def fails(*args: object) -> int:
        raise AppendError("it is too large")

    with monkeypatch.context() as patch:
        large = half_prepared(node, "refused")
        patch.setattr(server.raft, "append", fails)
        node.until(lambda: large.answer is not None)
    assert code(large) == error_codes.UNKNOWN_SERVER_ERROR
    assert "refused" not in server.state.image.topic_ids
    assert code(ask(node, "small", 1)) == 0
    end_offset = server.raft.next_offset
    large = half_prepared(node, "large")
    server.raft.resign(node.now_ms)
    assert "large" not in server.state.image.topic_ids
    node.until(lambda: large.answer is not None)
    assert code(large) == error_codes.NOT_CONTROLLER
    assert (list(server.state.image.topic_ids), server.raft.next_offset) == (["small"], end_offset)


def test_a_record_that_does_not_fit_ends_the_leadership(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its image cannot be trusted any more: it decides nothing more, and says so (Kafka's process ends)."""
    controller = node.node.controller.controller  # type: ignore[attr-defined]

    def refuse(record: object, offset: int) -> None:
        raise StateError("it does not fit")

    monkeypatch.setattr(controller.state, "append", refuse)
    asked = ask(node, "small", 1, Connection(1001, "CONTROLLER", "127.0.0.1"))
    node.until(lambda: asked.answer is not None)
    assert code(asked) == error_codes.NOT_CONTROLLER
    assert not controller.is_active and controller.metrics.metadata_errors == 1
    assert [line for line in node.lines if "applying TopicRecord" in line and "it does not fit" in line]


def test_a_decision_that_fails_keeps_nobody_waiting(node: WholeNode) -> None:
    """The controller's own, which answers nobody: its fault goes to the log of the node, and those behind it are decided."""
    controller = node.node.controller.controller  # type: ignore[attr-defined]

    def unforeseen(now_ms: int) -> Iterator[None]:
        yield
        raise ValueError("unforeseen")

    controller._enqueue(unforeseen, node.now_ms)
    behind = ask(node, "small", 1)
    assert behind.answer is None
    with pytest.raises(ValueError, match="unforeseen"):
        node.until(lambda: behind.answer is not None)
    node.until(lambda: behind.answer is not None)
    assert code(behind) == 0


def test_reads_show_nothing_that_a_lost_leadership_reverts(node: WholeNode) -> None:
    """A read that has seen an uncommitted record is answered with its commit, or, if that is reverted, without it."""
    controller = node.node.controller.controller  # type: ignore[attr-defined]
    image = controller.state.image
    answers: list[bool] = []

    def read() -> None:
        controller.read(lambda: "new" in image.topic_ids, answers.append)

    read()
    assert answers == [False]
    node.holds_flushes = True
    create = ask(node, "new", 1, Connection(1001, "CONTROLLER", "127.0.0.1"))
    assert "new" in image.topic_ids and create.answer is None, "appended, and not committed"
    read()
    assert answers == [False]
    controller._raft.resign(node.now_ms)
    assert answers == [False, False] and "new" not in image.topic_ids


def test_a_read_is_answered_with_the_commit_of_what_it_shows(node: WholeNode) -> None:
    controller = node.node.controller.controller  # type: ignore[attr-defined]
    answers: list[bool] = []
    node.holds_flushes = True
    ask(node, "new", 1)
    controller.read(lambda: "new" in controller.state.image.topic_ids, answers.append)
    assert answers == []
    node.holds_flushes = False
    node.release_flushes()
    assert answers == [True]


@pytest.mark.parametrize("is_large", [False, True])
def test_who_loses_the_lead_in_an_append_keeps_nothing_of_it(node: WholeNode, is_large: bool) -> None:
    """As after a pause: the request is the first event behind the deadline of check-quorum, and its append finds that out."""
    controller, state = node.node.controller.controller, node.node.controller.state  # type: ignore[attr-defined]
    large = half_prepared(node, "lost") if is_large else None
    leader = controller._raft.core.quorum.leader
    leader.voters[2] = ReplicaProgress(ReplicaKey(2), 0, node.now_ms, node.now_ms, 0)
    leader.check_quorum_deadline_ms = node.now_ms
    lost = large or ask(node, "lost", 1, Connection(1001, "CONTROLLER", "127.0.0.1"))
    node.until(lambda: lost.answer is not None)
    assert code(lost) == error_codes.NOT_CONTROLLER
    assert not controller.is_active
    assert "lost" not in state.image.topic_ids and not state._speculative._uncommitted


def test_a_decision_that_needs_a_batch_above_8_mib_is_refused(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is appended."""
    monkeypatch.setattr(quorum_controller, "MAX_BATCH_BYTES", 2000)
    end_offset = node.node.controller.raft.next_offset  # type: ignore[attr-defined]
    refused = ask(node, "large", 100)
    node.until(lambda: refused.answer is not None)
    (topic,) = refused.result().topics
    assert topic.error_code == error_codes.POLICY_VIOLATION and "more than 2000 bytes" in topic.error_message
    assert node.node.controller.raft.next_offset == end_offset  # type: ignore[attr-defined]
    assert "large" not in node.broker.image.topic_ids


def test_a_controller_does_not_apply_features_that_it_does_not_support(node: WholeNode) -> None:
    """A newer node leads and raises metadata.version: this one ends with a sentence, and what came before stays."""
    controller = node.node.controller.controller  # type: ignore[attr-defined]
    controller._raft.resign(node.now_ms)
    before = controller.state.image.features
    end = controller._raft.next_offset
    newer = new_record("FeatureLevelRecord", name="metadata.version", feature_level=99)
    with pytest.raises(MetadataLogError, match=r"__cluster_metadata-0: .*metadata\.version.*99"):
        controller.on_commit(MetadataBatch(end, end, 9, 0, [newer], []), node.now_ms)
    assert controller.state.image.features == before
