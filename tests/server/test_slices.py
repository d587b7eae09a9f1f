"""Protects what is done in slices: it comes to the same as in one go, whatever others do between the slices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import apis, error_codes
from kcli.protocol.apis import API_KEYS, FETCH
from kcli.protocol.framing import encode_request
from kcli.protocol.message import Message
from kcli.server import scheduler
from kcli.server.apis import fetch, produce
from kcli.server.broker import metadata_publisher
from kcli.server.controller import quorum_controller
from kcli.server.events import DeadlineReached
from kcli.server.raft.metadata_batches import new_record
from kcli.state.image_records import partition_record
from kcli.state.metadata_values import Topic
from tests.server.apis.asking import ask, struct
from tests.server.whole_node import Closed, Pending, WholeNode, batch, partitions_of, produce_request

PARTITIONS = 7
ALL = {("t", index): 0 for index in range(PARTITIONS)}


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    made = WholeNode(tmp_path / "data")
    made.create_topic("t", PARTITIONS)
    made.create_topic("u", 2)
    for index in range(0, PARTITIONS, 2):
        made.produce("t", index, batch(b"%d" % index * 100))
    return made


@pytest.fixture
def finely(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Calling it makes every slice as small as it can be."""

    def cut() -> None:
        monkeypatch.setattr(scheduler, "SLICE_US", 1)
        monkeypatch.setattr(fetch, "MANY_PARTITIONS", 1)

    return cut


def slice_(node: WholeNode) -> None:
    """One slice more, without time going by."""
    node.handle(DeadlineReached())


def questions() -> list[tuple[int, int, Message]]:
    """Of each API that answers in slices: its key, a version, a request."""
    offset = API_KEYS[apis.LIST_OFFSETS].request.classes["ListOffsetsPartition"]
    offsets = [offset(partition_index=index, timestamp=-3) for index in range(PARTITIONS + 1)]
    config = API_KEYS[apis.DESCRIBE_CONFIGS].request.classes["DescribeConfigsResource"]
    named = [(2, "t"), (4, "1"), (2, "none"), (4, "7")]
    configs = [config(resource_type=kind, resource_name=name, configuration_keys=None) for kind, name in named]
    metadata = [struct(apis.METADATA, "MetadataRequestTopic", name=name) for name in ("t", "none", "u")]
    logs = [struct(apis.DESCRIBE_LOG_DIRS, "DescribableLogDirTopic", topic="t", partitions=[1, 2, 9])]
    topics = [struct(apis.DESCRIBE_TOPIC_PARTITIONS, "TopicRequest", name=name) for name in ("t", "none", "u")]
    return [
        (apis.METADATA, 12, API_KEYS[apis.METADATA].request.new(topics=None)),
        (apis.METADATA, 12, API_KEYS[apis.METADATA].request.new(topics=metadata, allow_auto_topic_creation=False)),
        (apis.DESCRIBE_TOPIC_PARTITIONS, 0, API_KEYS[apis.DESCRIBE_TOPIC_PARTITIONS].request.new(topics=topics)),
        (apis.DESCRIBE_LOG_DIRS, 4, API_KEYS[apis.DESCRIBE_LOG_DIRS].request.new(topics=None)),
        (apis.DESCRIBE_LOG_DIRS, 4, API_KEYS[apis.DESCRIBE_LOG_DIRS].request.new(topics=logs)),
        (
            apis.LIST_OFFSETS,
            10,
            API_KEYS[apis.LIST_OFFSETS].request.new(
                replica_id=-1, topics=[struct(apis.LIST_OFFSETS, "ListOffsetsTopic", name="t", partitions=offsets)]
            ),
        ),
        (apis.DESCRIBE_CONFIGS, 4, API_KEYS[apis.DESCRIBE_CONFIGS].request.new(resources=configs, include_synonyms=True)),
    ]


def test_answers_are_those_of_one_go(node: WholeNode, finely: Callable[[], None]) -> None:
    def answers() -> list[Message]:
        found = [until_answered(node, node.send(key, version, request)).result() for key, version, request in questions()]
        for result in (result for answer in found for result in getattr(answer, "results", ())):
            if hasattr(result, "usable_bytes"):
                result.usable_bytes = 0  # others use the disk too
        return found

    expected = answers()
    finely()
    node.broker.parts.metadata.changed()  # else the answer about all topics is one that was kept
    assert node.send(*questions()[0]).answer is None
    node.advance(100)
    node.broker.parts.metadata.changed()
    assert answers() == expected


def until_answered(node: WholeNode, pending: Pending) -> Pending:
    node.until(lambda: pending.answer is not None)
    return pending


@pytest.mark.parametrize("max_bytes", [1, 150, 1 << 20])
def test_a_fetch_reads_what_it_reads_in_one_go(node: WholeNode, finely: Callable[[], None], max_bytes: int) -> None:
    expected = node.fetch(ALL, max_bytes=max_bytes).frame
    finely()
    in_slices = node.fetch(ALL, max_bytes=max_bytes)
    assert in_slices.answer is None
    assert until_answered(node, in_slices).frame == expected


def test_files_may_be_closed_between_slices(tmp_path: Path, finely: Callable[[], None]) -> None:
    node = WholeNode(tmp_path / "data", max_open_files=2)
    node.create_topic("t", PARTITIONS)
    for index in range(PARTITIONS):
        node.produce("t", index, batch(b"%d" % index * 100))
    finely()
    waiting = node.fetch(ALL)
    for index in range(PARTITIONS):
        slice_(node)
        node.fetch({("t", index): 0})
    answers = partitions_of(until_answered(node, waiting).result())
    assert bytes(answers["t", 0].records).endswith(b"0" * 100 + b"\0")
    # No more files than may be open are answered from, however many have records.
    assert [index for _, index in ALL if len(answers["t", index].records)] == [0]


def test_a_topic_may_be_deleted_between_slices(node: WholeNode, finely: Callable[[], None]) -> None:
    finely()
    waiting = node.fetch(ALL | {("u", 0): 0})
    for _ in range(3):
        slice_(node)
    node.delete_topic("t")
    answers = partitions_of(until_answered(node, waiting).result())
    codes = [answers["t", index].error_code for index in range(0, PARTITIONS, 2)]
    assert codes == [error_codes.UNKNOWN_TOPIC_OR_PARTITION] * len(codes)
    assert not any(len(answer.records) for answer in answers.values())
    assert answers["u", 0].error_code == 0


@pytest.mark.parametrize("after", range(PARTITIONS + 2))
def test_what_is_produced_between_slices_ends_the_wait(node: WholeNode, finely: Callable[[], None], after: int) -> None:
    """Also where its partition had been read when the records came."""
    finely()
    wanted = {("t", 1): 0, **{("u", index): 0 for index in range(2)}, **{("t", index): 9 for index in (3, 5)}}
    waiting = node.fetch({key: 0 for key in wanted if key[0] == "u" or key[1] == 1}, max_wait_ms=5_000)
    for _ in range(after):
        slice_(node)
    assert waiting.answer is None
    node.produce("t", 1, batch(b"late"))
    began_ms = node.now_ms
    answers = partitions_of(until_answered(node, waiting).result())
    assert node.now_ms - began_ms < 100
    assert b"late" in bytes(answers["t", 1].records)


def test_a_fetch_in_slices_ends_when_its_time_is_up(node: WholeNode, finely: Callable[[], None]) -> None:
    finely()
    waiting = node.fetch({("u", 0): 0, ("u", 1): 0}, max_wait_ms=500)
    began_ms = node.now_ms
    assert until_answered(node, waiting).result().error_code == 0
    assert 500 <= node.now_ms - began_ms < 520


def test_a_session_goes_on_through_slices(node: WholeNode, finely: Callable[[], None]) -> None:
    finely()
    topic = node.broker.image.topic_ids["t"]
    first = until_answered(node, node.fetch({(topic, index): 0 for _, index in ALL}, version=13, session_epoch=0)).result()
    assert first.session_id and len(partitions_of(first, "topic_id")) == PARTITIONS
    node.produce("t", 3, batch(b"news"))
    following = {(topic, index): 1 for index in range(0, PARTITIONS, 2)}
    pending = node.fetch(following, version=13, session_id=first.session_id, session_epoch=1)
    told = partitions_of(until_answered(node, pending).result(), "topic_id")
    assert list(told) == [(topic, 3)]
    assert node.send(FETCH, 13, API_KEYS[FETCH].request.new(session_id=first.session_id, session_epoch=1)).result().error_code


@pytest.mark.parametrize("slice_records", [1, 3, 100])
def test_a_decision_in_slices_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_records: int) -> None:
    """Topics made, grown and deleted, a broker that comes back after its death: what is asked meanwhile comes after it."""
    monkeypatch.setattr(quorum_controller, "SLICE_RECORDS", slice_records)
    monkeypatch.setattr(metadata_publisher, "CHANGES_A_LOG", slice_records)
    node = WholeNode(tmp_path / "data")
    made = API_KEYS[apis.CREATE_TOPICS].request
    topic = made.classes["CreatableTopic"]
    request = made.new(topics=[topic(name=name, num_partitions=9, replication_factor=1) for name in "xy"], timeout_ms=5_000)
    both = node.send(apis.CREATE_TOPICS, 7, request), node.send(apis.CREATE_TOPICS, 7, request)
    for pending in both:
        until_answered(node, pending)
    assert [[result.error_code for result in pending.result().topics] for pending in both] == [
        [0, 0],
        [error_codes.TOPIC_ALREADY_EXISTS] * 2,
    ]
    more = struct(apis.CREATE_PARTITIONS, "CreatePartitionsTopic", name="x", count=12, assignments=None)
    assert ask(node, apis.CREATE_PARTITIONS, 3, topics=[more], timeout_ms=5_000).results[0].error_code == 0
    node.until(lambda: node.broker.replica_manager.partition("x", 11) is not None)
    node.produce("x", 11, batch(b"kept"))
    again = WholeNode(tmp_path / "data")
    keys = sorted(again.broker.replica_manager.partitions)
    assert keys == [("x", index) for index in range(12)] + [("y", index) for index in range(9)]
    again.until(lambda: all(partition.is_leader for partition in again.broker.replica_manager.partitions.values()))
    assert {partition.leader_epoch for partition in again.broker.replica_manager.partitions.values()} == {2}
    assert len(partitions_of(again.fetch({("x", 11): 0}).result())["x", 11].records) > 0


class _CountedLogs(dict[Any, Any]):
    """Logs that count how many of them are visited one after the other."""

    visited = 0

    def items(self) -> Any:
        """All of them are visited."""
        self.visited += len(self)
        return super().items()


@pytest.mark.parametrize("name", ["", "1", "each topic"])
def test_new_settings_of_many_topics_cost_each_log_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A new default, or settings for each topic, reach all logs in slices; no topic costs a look at those of the others."""
    monkeypatch.setattr(metadata_publisher, "TOPICS_A_LOG", 2, raising=False)
    node = WholeNode(tmp_path / "data")
    topics = [f"t{index}" for index in range(40)]
    for topic in topics:
        node.create_topic(topic, 2, **({"flush_messages": "7"} if topic == "t3" else {}))
    manager = node.broker.log_manager
    logs = manager.logs = _CountedLogs(manager.logs)
    monkeypatch.setattr(metadata_publisher, "SLICE_LOGS", 1)
    turns_before = node.turns
    make = API_KEYS[apis.INCREMENTAL_ALTER_CONFIGS].request.classes
    named = [(2, topic, "retention.ms") for topic in topics] if name == "each topic" else [(4, name, "log.retention.ms")]
    resources = [
        make["AlterConfigsResource"](
            resource_type=kind,
            resource_name=resource,
            configs=[make["AlterableConfig"](name=key, config_operation=0, value="123456")],
        )
        for kind, resource, key in named
    ]
    assert {found.error_code for found in ask(node, apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources).responses} == {0}
    node.until(lambda: {log.config.retention_ms for log in logs.values()} == {123456})
    assert logs.visited <= 2 * len(logs)
    assert node.turns - turns_before > 15
    assert [key for key, log in sorted(logs.items()) if log.config.flush_messages == 7] == [("t3", 0), ("t3", 1)]


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("held_bytes", [0, 150, 1 << 20])
def test_a_produce_in_slices_appends_every_batch_once(
    node: WholeNode, finely: Callable[[], None], monkeypatch: pytest.MonkeyPatch, acks: int, held_bytes: int
) -> None:
    """Its frame is somebody else's after the first slice; where no more may be held it is done in one go."""
    monkeypatch.setattr(produce, "MAX_HELD_BYTES", held_bytes)
    finely()
    batches = {("t", index): batch(b"new %d" % index) for index in range(PARTITIONS)} | {("u", 1): batch(b"u"), ("?", 0): None}
    request = produce_request(batches, acks)
    frame = bytearray(encode_request(77, API_KEYS[apis.PRODUCE], 12, "test", request))[4:]
    connection = node.connection()
    pending = node.send_frame(frame, apis.PRODUCE, 12, connection)
    frame[:] = bytes(len(frame))
    assert (pending.answer is None) == bool(held_bytes)
    if acks:
        result = until_answered(node, pending).result()
        codes = {
            (topic.name, answer.index): answer.error_code for topic in result.responses for answer in topic.partition_responses
        }
        assert codes == dict.fromkeys(batches, 0) | {("?", 0): error_codes.UNKNOWN_TOPIC_OR_PARTITION}
    node.advance(100)
    assert node.broker.produce.held_bytes == node.held_bytes == 0
    monkeypatch.undo()
    for index in range(PARTITIONS):
        kept = bytes(partitions_of(node.fetch({("t", index): (index + 1) % 2}).result())["t", index].records)
        assert kept.count(b"new %d" % index) == 1


def test_a_fault_in_a_later_slice_of_a_produce_leaves_nothing_held(
    node: WholeNode, finely: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    finely()
    pending = node.send(apis.PRODUCE, 12, produce_request({("t", index): batch(b"x") for index in range(3)}, 1))
    monkeypatch.setattr(node.broker.replica_manager, "partition", lambda *args: 1 // 0)
    node.advance(100)
    assert isinstance(pending.answer, Closed)
    assert node.broker.produce.held_bytes == node.held_bytes == 0


# ---------------------------------------------------------------------------------- what happens to others between slices


def test_requests_in_slices_have_their_turns_one_by_one(node: WholeNode, finely: Callable[[], None]) -> None:
    """However many are under way, no more than one slice is done before others are let in."""
    finely()
    first, second = (node.send(apis.METADATA, 12, API_KEYS[apis.METADATA].request.new(topics=None)) for _ in range(2))
    while first.answer is None:
        assert second.answer is None
        slice_(node)
    assert second.answer is None
    slice_(node)
    assert second.result() == first.result()


def test_a_fetch_is_forgotten_whose_client_goes_while_it_is_read(node: WholeNode, finely: Callable[[], None]) -> None:
    finely()
    connection = node.connection()
    node.fetch({("u", 0): 0, ("u", 1): 0}, max_wait_ms=60_000, connection=connection)
    node.close(connection)
    node.advance(1_000)
    assert node.broker.replica_manager.fetch_purgatory.size == 0


def test_a_fetch_in_slices_learns_that_its_leader_is_another(node: WholeNode, finely: Callable[[], None]) -> None:
    finely()
    waiting = node.fetch({("u", 0): 0, ("u", 1): 0}, max_wait_ms=5_000, version=10)
    for _ in range(2):
        slice_(node)
    partition = node.broker.replica_manager.partition("u", 0)
    assert partition is not None and waiting.answer is None
    partition.is_leader = False
    node.advance(100)
    assert partitions_of(waiting.result())["u", 0].error_code == error_codes.NOT_LEADER_OR_FOLLOWER


@pytest.fixture
def make_anew(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Calling it deletes topic t and makes another of its name, with one record in each partition, between two slices."""

    def delete_and_make() -> None:
        monkeypatch.setattr(metadata_publisher, "SLICE_LOGS", 1_000)
        image, topic_id = node.broker.image, Uuid(b"another topic t.")
        old = image.topics[image.topic_ids["t"]]
        records = [
            new_record("RemoveTopicRecord", topic_id=old.topic_id),
            new_record("TopicRecord", name="t", topic_id=topic_id),
        ]
        made, version = Topic("t", topic_id, {}), image.features["metadata.version"]
        records += [partition_record(made, index, old.partitions[index], version) for index in range(PARTITIONS)]
        node.publish(records)
        for index in range(PARTITIONS):
            node.produce("t", index, batch(b"new"))

    return delete_and_make


@pytest.mark.parametrize("after", range(PARTITIONS + 2))
def test_a_fetch_by_id_reads_no_topic_that_is_made_anew_between_slices(
    node: WholeNode, finely: Callable[[], None], make_anew: Callable[[], None], after: int
) -> None:
    finely()
    topic = node.broker.image.topic_ids["t"]
    waiting = node.fetch({(topic, index): 0 for index in range(PARTITIONS)}, version=13)
    for _ in range(after):
        slice_(node)
    make_anew()
    answers = partitions_of(until_answered(node, waiting).result(), "topic_id").values()
    assert not any(b"new" in bytes(answer.records) for answer in answers)
    codes = {answer.error_code for answer in answers}
    assert error_codes.INCONSISTENT_TOPIC_ID in codes and codes <= {0, error_codes.INCONSISTENT_TOPIC_ID}


def test_a_fetch_by_id_does_not_wait_for_a_topic_that_was_made_anew_while_it_was_read(
    node: WholeNode, finely: Callable[[], None], make_anew: Callable[[], None]
) -> None:
    """Also where the new one has come as far as the old one was read."""
    finely()
    topic = node.broker.image.topic_ids["t"]
    waiting = node.fetch({(topic, 0): 1, (topic, 2): 1}, version=13, max_wait_ms=5_000)
    for _ in range(2):
        slice_(node)
    make_anew()
    node.advance(100)
    assert {answer.error_code for answer in partitions_of(waiting.result(), "topic_id").values()} >= {
        error_codes.INCONSISTENT_TOPIC_ID
    }


@pytest.mark.parametrize("after", range(PARTITIONS - 1))
def test_a_produce_by_id_appends_to_no_topic_that_is_made_anew_between_slices(
    node: WholeNode, finely: Callable[[], None], make_anew: Callable[[], None], after: int
) -> None:
    finely()
    pending = node.produce_all({("t", index): batch(b"old") for index in range(PARTITIONS)}, version=13)
    for _ in range(after):
        slice_(node)
    make_anew()
    (topic,) = until_answered(node, pending).result().responses
    codes = [answer.error_code for answer in topic.partition_responses]
    assert codes == [0] * (after + 1) + [error_codes.UNKNOWN_TOPIC_ID] * (PARTITIONS - after - 1)
    for index in range(PARTITIONS):
        partition = node.broker.replica_manager.partition("t", index)
        assert partition is not None and partition.log is not None and partition.log.log_end_offset == 1


def test_a_node_that_leaves_appends_nothing_to_logs_that_it_closes(tmp_path: Path, finely: Callable[[], None]) -> None:
    """What is not appended when the closing begins is not appended: it would lie behind the marks of a stop in order."""
    node = WholeNode(tmp_path / "leaving", "controlled.shutdown.enable=false")
    node.create_topic("t", PARTITIONS)
    logs = [node.broker.replica_manager.partition("t", index).log for index in range(PARTITIONS)]  # type: ignore[union-attr]
    finely()
    pending = node.produce_all({("t", index): batch(b"x") for index in reversed(range(PARTITIONS))})
    node.stop()
    node.advance(100)
    assert [log.log_end_offset for log in logs if log is not None] == [0] * (PARTITIONS - 1) + [1]
    assert pending.answer is None


def test_large_batches_are_appended_in_one_go(node: WholeNode, finely: Callable[[], None]) -> None:
    """To copy them for later slices would hold the loop for longer than to append them does."""
    finely()
    pending = node.produce_all({("t", index): batch(bytes(300_000)) for index in range(PARTITIONS)}, acks=1)
    (topic,) = pending.result().responses
    assert [answer.error_code for answer in topic.partition_responses] == [0] * PARTITIONS


@pytest.mark.parametrize("after", range(4))
def test_a_node_that_leaves_first_deletes_the_logs_that_it_has_begun_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """A directory that is renamed while its log directory closes would leave that without the mark of a stop in order."""
    monkeypatch.setattr(metadata_publisher, "SLICE_LOGS", 1)
    monkeypatch.setattr(metadata_publisher, "LOGS_DELETED_TOGETHER", 1)
    node = WholeNode(tmp_path / "leaving", "controlled.shutdown.enable=false")
    node.create_topic("t", PARTITIONS)
    topic = struct(apis.DELETE_TOPICS, "DeleteTopicState", name="t")
    node.send(apis.DELETE_TOPICS, 6, API_KEYS[apis.DELETE_TOPICS].request.new(topics=[topic], timeout_ms=5_000))
    for _ in range(after):
        slice_(node)
    node.stop()
    assert (tmp_path / "leaving" / ".kafka_cleanshutdown").exists(), node.lines
    assert [path.name.endswith("-delete") for path in (tmp_path / "leaving").glob("t-*")] == [True] * PARTITIONS
