"""Protects: offsets are committed and read in each version of the protocol, and each error has its meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from kcli.client.consumer.membership import GroupMetadata
from kcli.client.consumer.offset_commits import OffsetCommits
from kcli.client.coordinator_lookup import AnswerDone, CoordinatorLookup
from kcli.client.errors import ClientError, CommitFailedError, DisconnectedError, KafkaError, KafkaTimeoutError
from kcli.client.value_checks import OffsetAndMetadata
from kcli.network.peer_request import Request
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, OFFSET_COMMIT, OFFSET_FETCH
from kcli.protocol.message import Message
from tests.client.clients_of_node import Client

TOPIC_ID = b"\5" * 16
PLACE = ("t", 1)
OFFSETS = {PLACE: OffsetAndMetadata(7, 2, "note")}


class FakeMember:
    """The member in whose name commits are made."""

    def __init__(self, uses_epochs: bool = False) -> None:
        self.uses_epochs = uses_epochs
        self.epoch = 5
        self.fenced_by: list[int] = []
        self.refuses: ClientError | None = None
        self.owned = {PLACE}

    def commit_identity(self) -> GroupMetadata | ClientError:
        return self.refuses or self.group_metadata()

    def group_metadata(self) -> GroupMetadata:
        return GroupMetadata("g", self.epoch, "me")

    def fenced(self, error_code: int, used: GroupMetadata, now_ms: int) -> None:
        self.fenced_by.append(error_code)

    def may_commit_again(self, used: GroupMetadata, partitions: Iterable[tuple[str, int]]) -> bool:
        return self.epoch > used.generation_id and self.owns(partitions)

    def owns(self, partitions: Iterable[tuple[str, int]]) -> bool:
        return self.owned.issuperset(partitions)


class Commits:
    """OffsetCommits with a coordinator that answers in a version, with a function of the request."""

    def __init__(
        self, version: int, answer: Callable[[Message], Message | ClientError], member: FakeMember, *, knows: bool = True
    ) -> None:
        self.client = Client("one", 0)
        self.sent: list[Message] = []
        self.results: list[Any] = []
        if knows:
            self.client.network.metadata.topic_ids["t"] = TOPIC_ID
        commits = self

        class Coordinator(CoordinatorLookup):
            def send(
                self,
                api_key: int,
                request: Request,
                done: AnswerDone,
                now_ms: int,
                timeout_ms: int | None = None,
                max_version: int | None = None,
                connection: str = "",
            ) -> None:
                used = version if max_version is None else min(version, max_version)
                assert not isinstance(request, Message)
                api = API_KEYS[api_key]
                message, _ = api.request.decode(api.request.encode(request(used), used), used)
                commits.sent.append(message)
                found = answer(message)
                if isinstance(found, Message):
                    found, _ = api.response.decode(api.response.encode(found, used), used)
                done(found, now_ms)

        coordinator = Coordinator(self.client.network, 0, "g")
        self.commits = OffsetCommits(self.client.network, coordinator, member, "g")

    def commit(self, timeout_ms: int | None = 1000) -> Any:
        self.commits.commit(OFFSETS, lambda error, now_ms: self.results.append(error), 0, timeout_ms)
        return self._result()

    def fetch(self, *partitions: tuple[str, int]) -> Any:
        self.commits.committed(partitions, lambda result, now_ms: self.results.append(result), 0, 1000)
        return self._result()

    def _result(self) -> Any:
        for now_ms in range(0, 2000, 10):
            if self.results:
                return self.results[0]
            self.client.network.advance(now_ms)
        raise AssertionError("there is no result")


def committed(*codes: int) -> Callable[[Message], Message]:
    """Answer with one code after the other, then with none."""
    left = list(codes)

    def answer(request: Message) -> Message:
        kind = API_KEYS[OFFSET_COMMIT].response
        code = left.pop(0) if left else 0
        part = kind.classes["OffsetCommitResponsePartition"](partition_index=1, error_code=code)
        asked = request.topics[0]
        topic = kind.classes["OffsetCommitResponseTopic"](name=asked.name, topic_id=asked.topic_id, partitions=[part])
        return kind.new(topics=[topic])

    return answer


@pytest.mark.parametrize("version", range(2, 11))
def test_a_commit_in_each_version(version: int) -> None:
    run = Commits(version, committed(), FakeMember())
    assert run.commit() is None
    (request,) = run.sent
    assert (request.group_id, request.generation_id_or_member_epoch, request.member_id) == ("g", 5, "me")
    (topic,) = request.topics
    assert topic.topic_id == TOPIC_ID if version >= 10 else topic.name == "t"
    (part,) = topic.partitions
    assert (part.partition_index, part.committed_offset, part.committed_metadata) == (1, 7, "note")
    assert part.committed_leader_epoch == (2 if version >= 6 else -1)


def test_a_topic_without_a_known_id_is_named() -> None:
    run = Commits(10, committed(), FakeMember(), knows=False)
    assert run.commit() is None and run.sent[0].topics[0].name == "t"


@pytest.mark.parametrize(
    "code", [error_codes.COORDINATOR_LOAD_IN_PROGRESS, error_codes.NOT_COORDINATOR, error_codes.UNKNOWN_TOPIC_ID]
)
def test_errors_that_may_pass(code: int) -> None:
    run = Commits(10, committed(code, code), FakeMember())
    assert run.commit() is None and len(run.sent) == 3
    once = Commits(10, committed(code), FakeMember())
    assert isinstance(once.commit(None), KafkaError) and len(once.sent) == 1


def test_the_time_of_the_caller_ends_a_commit() -> None:
    run = Commits(10, lambda request: DisconnectedError("gone"), FakeMember())
    error = run.commit()
    assert isinstance(error, KafkaTimeoutError) and "gone" in str(error)


@pytest.mark.parametrize("code", [error_codes.UNKNOWN_MEMBER_ID, error_codes.ILLEGAL_GENERATION])
def test_a_fenced_member(code: int) -> None:
    member = FakeMember()
    assert isinstance(Commits(9, committed(code), member).commit(), CommitFailedError)
    assert member.fenced_by == [code]


@pytest.mark.parametrize(
    "code", [error_codes.REBALANCE_IN_PROGRESS, error_codes.OFFSET_METADATA_TOO_LARGE, error_codes.GROUP_AUTHORIZATION_FAILED]
)
def test_errors_that_stay(code: int) -> None:
    run = Commits(9, committed(code), FakeMember())
    error = run.commit()
    assert isinstance(error, KafkaError) and error.code == code and len(run.sent) == 1


def test_a_member_that_cannot_commit_sends_nothing() -> None:
    member = FakeMember()
    member.refuses = CommitFailedError("not a member")
    run = Commits(9, committed(), member)
    assert run.commit() is member.refuses and not run.sent


def test_a_stale_epoch_is_replaced_if_the_partitions_are_still_owned() -> None:
    member = FakeMember(uses_epochs=True)
    stale = committed(error_codes.STALE_MEMBER_EPOCH)

    def answer(request: Message) -> Message:
        member.epoch = 6
        return stale(request)

    run = Commits(10, answer, member)
    assert run.commit() is None
    assert [one.generation_id_or_member_epoch for one in run.sent] == [5, 6]
    lost = FakeMember(uses_epochs=True)
    lost.owned = set()
    assert isinstance(Commits(10, committed(error_codes.STALE_MEMBER_EPOCH), lost).commit(), CommitFailedError)


def read(code: int = 0, group_codes: Iterable[int] = ()) -> Callable[[Message], Message]:
    left = list(group_codes)

    def answer(request: Message) -> Message:
        kind = API_KEYS[OFFSET_FETCH].response
        values = {"partition_index": 1, "committed_offset": 7, "committed_leader_epoch": 2, "metadata": "note"}
        other = {"partition_index": 2, "committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}
        group_code = left.pop(0) if left else 0
        if not request.groups:
            of_part = kind.classes["OffsetFetchResponsePartition"]
            parts = [of_part(**values, error_code=code), of_part(**other)]
            return kind.new(
                topics=[kind.classes["OffsetFetchResponseTopic"](name="t", partitions=parts)], error_code=group_code
            )
        of_part = kind.classes["OffsetFetchResponsePartitions"]
        parts = [of_part(**values, error_code=code), of_part(**other)]
        topic = kind.classes["OffsetFetchResponseTopics"](name="t", topic_id=TOPIC_ID, partitions=parts)
        group = kind.classes["OffsetFetchResponseGroup"](group_id="g", topics=[topic], error_code=group_code)
        return kind.new(groups=[group])

    return answer


@pytest.mark.parametrize("version", range(1, 11))
@pytest.mark.parametrize("uses_epochs", [False, True])
def test_offsets_are_read_in_each_version(version: int, uses_epochs: bool) -> None:
    run = Commits(version, read(), FakeMember(uses_epochs))
    epoch = 2 if version >= 5 else -1
    assert run.fetch(PLACE, ("t", 2)) == {PLACE: OffsetAndMetadata(7, epoch, "note"), ("t", 2): None}
    (request,) = run.sent
    assert request.require_stable == (version >= 7)
    if version >= 9:
        assert (request.groups[0].member_id, request.groups[0].member_epoch) == (("me", 5) if uses_epochs else (None, -1))


def test_errors_of_a_read() -> None:
    again = Commits(10, read(0, [error_codes.COORDINATOR_LOAD_IN_PROGRESS]), FakeMember())
    assert isinstance(again.fetch(PLACE), dict) and len(again.sent) == 2
    unstable = Commits(10, read(error_codes.UNSTABLE_OFFSET_COMMIT), FakeMember())
    assert isinstance(unstable.fetch(PLACE), KafkaTimeoutError) and len(unstable.sent) > 2
    for code in (error_codes.TOPIC_AUTHORIZATION_FAILED, error_codes.UNKNOWN_TOPIC_OR_PARTITION):
        refused = Commits(10, read(code), FakeMember())
        error = refused.fetch(PLACE)
        assert isinstance(error, KafkaError) and error.code == code and len(refused.sent) == 1


def test_an_unknown_topic_id_has_the_metadata_asked_for() -> None:
    """Of a topic that was made again, whose old id the coordinator does not know any more."""
    run = Commits(10, read(error_codes.UNKNOWN_TOPIC_ID), FakeMember())
    assert isinstance(run.fetch(PLACE), KafkaTimeoutError)
    assert run.client.network.is_update_wanted
    other = Commits(10, read(error_codes.UNSTABLE_OFFSET_COMMIT), FakeMember())
    assert isinstance(other.fetch(PLACE), KafkaTimeoutError)
    assert not other.client.network.is_update_wanted


def test_offsets_of_a_topic_that_was_deleted_are_not_those_of_a_new_one() -> None:
    """The name is that of the new topic as well, so that the id of the old one is sent as long as there is none."""
    run = Commits(10, committed(0, error_codes.UNKNOWN_TOPIC_ID), FakeMember())
    ids = run.client.network.metadata.topic_ids
    assert run.commit(None) is None
    ids.clear()
    run.results.clear()
    run.commits.commit(OFFSETS, lambda error, now_ms: run.results.append(error), 0, 1000)
    assert [one.topics[0].topic_id for one in run.sent] == [TOPIC_ID] * 2 and not run.results
    ids["t"] = b"\6" * 16
    error = run._result()
    assert isinstance(error, CommitFailedError) and "t was deleted and created again" in str(error)
    assert len(run.sent) == 2
    run.results.clear()
    assert run.commit() is None and run.sent[-1].topics[0].topic_id == ids["t"]


class SlowCommits(Commits):
    """The first commit meets an error that passes; the others succeed."""

    def __init__(self, member: FakeMember) -> None:
        super().__init__(10, committed(error_codes.COORDINATOR_LOAD_IN_PROGRESS), member)
        self.commits.commit(OFFSETS, lambda error, now_ms: self.results.append(error), 0, 1000)

    def try_again(self) -> Any:
        """Let the first commit come to its end."""
        assert not self.results
        return self._result()


def test_a_commit_that_is_tried_again_does_not_undo_a_newer_one() -> None:
    """Its caller may wait no longer: a call that was cancelled, or ended by wakeup."""
    run = SlowCommits(FakeMember())
    newer: list[Any] = []
    run.commits.commit({PLACE: OffsetAndMetadata(9)}, lambda error, now_ms: newer.append(error), 0, 1000)
    assert newer == [None]
    assert run.try_again() is None
    assert [one.topics[0].partitions[0].committed_offset for one in run.sent] == [7, 9]


def test_a_commit_is_not_tried_again_for_partitions_that_were_lost() -> None:
    """In the name of a later generation the coordinator takes it, and their next owner has committed since."""
    member = FakeMember()
    run = SlowCommits(member)
    member.epoch, member.owned = 6, set()
    assert isinstance(run.try_again(), CommitFailedError) and len(run.sent) == 1
    kept = FakeMember()
    again = SlowCommits(kept)
    kept.epoch = 6
    assert again.try_again() is None and len(again.sent) == 2
