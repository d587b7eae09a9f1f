"""Commits of offsets, and what is committed: OffsetCommit and OffsetFetch (Kafka: ConsumerCoordinator, CommitRequestManager).

    version       OffsetCommit                             OffsetFetch
    ------------  ---------------------------------------  ------------------------------------------------------------
    before        group, generation, offsets, metadata     one group
    6 / 5         leader epochs of the offsets             the same
    7             group.instance.id                        offsets of open transactions are waited for (KIP-447)
    8             flexible                                 several groups; here always one
    9             generation or member epoch (KIP-848)     member id and epoch
    10            topics by id (KIP-848); 9 is used if an  the same; 9 is used if an id is not known
                  id was never known

    error                                   of a commit                            of a fetch
    --------------------------------------  -------------------------------------  -----------------------------------
    the coordinator moves, loads, no answer again, with the time of the caller     again
    UNKNOWN_TOPIC_OR_PARTITION, .._TOPIC_ID again                                  again (the id), or an error (the name)
    UNSTABLE_OFFSET_COMMIT                  -                                      again
    STALE_MEMBER_EPOCH                      again with the newer epoch, if there   again if there is a newer epoch,
                                            is one and all its partitions are      otherwise the error
                                            still assigned, otherwise
                                            CommitFailedError
    UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION   the member is fenced: CommitFailedError
    FENCED_INSTANCE_ID                      the error; it stays
    REBALANCE_IN_PROGRESS                   the error: the caller polls, and commits again
    any other                               the error

A commit without `timeout_ms` is sent once. A caller that does not wait for a commit before it starts the next one gets them in
the order of its calls, since all use one connection. A commit that is tried again leaves out the partitions of which a newer
commit has succeeded. It fails after a rebalance if one of its partitions is not assigned any more, and if one of its topics was
deleted and created again: the offsets are those of the old topic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Protocol

from kcli.client.consumer.membership import CommitDone, CommittedDone, GroupMetadata
from kcli.client.coordinator_lookup import CoordinatorLookup
from kcli.client.errors import ClientError, CommitFailedError, KafkaError
from kcli.client.network_client import NetworkClient
from kcli.client.retrying import Finished, Retrying
from kcli.client.value_checks import OffsetAndMetadata
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, OFFSET_COMMIT, OFFSET_FETCH
from kcli.protocol.message import Message

FIRST_VERSION_WITH_IDS = 10
FIRST_VERSION_WITH_GROUPS = 8
NO_OFFSET = -1
_FINAL_OF_FETCH = frozenset((error_codes.UNKNOWN_TOPIC_OR_PARTITION,))  # as in Kafka: the caller asks for what is not there
FENCED = frozenset((error_codes.UNKNOWN_MEMBER_ID, error_codes.ILLEGAL_GENERATION, error_codes.FENCED_INSTANCE_ID))
LEFT_GROUP = (
    "the member is not part of its group any more, so its partitions may have been assigned to another member: poll more often "
    "(max.poll.interval.ms) or fetch fewer records at a time (max.poll.records)"
)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Committed = dict[TopicPartition, OffsetAndMetadata | None]


class CommittingMember(Protocol):
    """What commits need of the member in whose name they are made."""

    uses_epochs: bool  # the consumer protocol

    def commit_identity(self) -> GroupMetadata | ClientError:
        """Return the member for a commit now, or why it cannot commit."""
        ...

    def group_metadata(self) -> GroupMetadata:
        """Return the member as it is known to the group."""
        ...

    def fenced(self, error_code: int, used: GroupMetadata, now_ms: int) -> None:
        """Take an error that says that the group does not know the member as it was in a request."""
        ...

    def may_commit_again(self, used: GroupMetadata, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether a newer epoch is known than a request had, and whether the partitions are still assigned."""
        ...

    def owns(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether all these partitions are assigned to the member."""
        ...


class _StaleEpochError(KafkaError):
    """A member epoch that is older than the member's own now."""

    @property
    def is_retriable(self) -> bool:  # type: ignore[override]
        """Always: the next attempt has the newer epoch."""
        return True


class _Commit:
    """One commit, whose number is that of the call; `generation_id` and `ids` (of topics) are those of its first attempt."""

    def __init__(self, number: int, offsets: Offsets) -> None:
        self.number = number
        self.offsets = offsets
        self.generation_id: int | None = None
        self.ids: Mapping[str, bytes] = {}


class OffsetCommits:
    """The commits and fetches of offsets of one member."""

    def __init__(self, network: NetworkClient, coordinator: CoordinatorLookup, member: CommittingMember, group_id: str) -> None:
        self._network = network
        self._group_id = group_id
        self._coordinator = coordinator
        self._member = member
        self._commit_count = 0
        self._ids_of_commits: dict[str, bytes] = {}  # of topics that were known at some commit
        self._succeeded: dict[TopicPartition, int] = {}  # the number of the newest commit of a partition that succeeded

    def commit(
        self,
        offsets: Offsets,
        done: CommitDone,
        now_ms: int,
        timeout_ms: int | None = None,
        final_codes: frozenset[int] = frozenset(),
    ) -> None:
        """Commit offsets; without `timeout_ms` in one attempt. After `final_codes` there is no other attempt either."""
        if not offsets:
            done(None, now_ms)
            return

        def finished(result: bool | ClientError, now_ms: int) -> None:
            done(result if isinstance(result, ClientError) else None, now_ms)

        deadline_ms = None if timeout_ms is None else now_ms + timeout_ms
        self._commit_count += 1
        attempt = partial(self._try_commit, _Commit(self._commit_count, offsets))
        Retrying(self._network, "the commit of offsets", attempt, finished, deadline_ms, final_codes).start(now_ms)

    def committed(self, partitions: Collection[TopicPartition], done: CommittedDone, now_ms: int, timeout_ms: int) -> None:
        """Return the committed offset of each partition, None where there is none."""
        if not partitions:
            done({}, now_ms)
            return
        attempt = partial(self._try_fetch, frozenset(partitions))
        Retrying(self._network, "OffsetFetch", attempt, done, now_ms + timeout_ms, _FINAL_OF_FETCH).start(now_ms)

    # ---------------------------------------------------------------------------------------------------------- commits

    def _try_commit(self, commit: _Commit, finished: Finished[bool], now_ms: int, timeout_ms: int) -> None:
        number = commit.number
        offsets = {one: offset for one, offset in commit.offsets.items() if self._succeeded.get(one, 0) < number}
        if not offsets:
            finished(True, now_ms)
            return
        member = self._member.commit_identity()
        if isinstance(member, ClientError):
            finished(member, now_ms)
            return
        if commit.generation_id is None:
            commit.generation_id = member.generation_id
        elif commit.generation_id != member.generation_id and not self._member.owns(offsets):
            finished(CommitFailedError(f"the offsets are not committed: {LEFT_GROUP}"), now_ms)
            return
        # A topic that is not known any more was deleted: by its name the offsets would be those of a new one.
        self._ids_of_commits |= self._network.metadata.topic_ids
        ids = _ids_of(offsets, self._ids_of_commits)
        other = [topic for topic in ids if commit.ids.get(topic, ids[topic]) != ids[topic]]
        if other:
            finished(CommitFailedError(f"the offsets are not committed: {other[0]} was deleted and created again"), now_ms)
            return
        commit.ids = ids
        request = partial(self._commit_request, offsets, member, ids)
        answered = partial(self._committed, number, offsets, member, ids, finished)
        self._coordinator.send(OFFSET_COMMIT, request, answered, now_ms, timeout_ms, _max_version(ids))

    def _commit_request(self, offsets: Offsets, member: GroupMetadata, ids: Mapping[str, bytes], version: int) -> Message:
        kind = API_KEYS[OFFSET_COMMIT].request
        of_topic, of_partition = (
            kind.classes["OffsetCommitRequestTopic"],
            kind.classes["OffsetCommitRequestPartition"],
        )
        topics: dict[str, Message] = {}
        for (topic, partition), offset in offsets.items():
            if topic not in topics:
                named = {"topic_id": ids[topic]} if version >= FIRST_VERSION_WITH_IDS else {"name": topic}
                topics[topic] = of_topic(**named, partitions=[])
            entry = of_partition(
                partition_index=partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
            topics[topic].partitions.append(entry)
        return kind.new(
            group_id=member.group_id,
            generation_id_or_member_epoch=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=list(topics.values()),
        )

    def _committed(
        self,
        number: int,
        offsets: Offsets,
        member: GroupMetadata,
        ids: Mapping[str, bytes],
        finished: Finished[bool],
        answer: Message | ClientError,
        now_ms: int,
    ) -> None:
        if isinstance(answer, ClientError):
            finished(answer, now_ms)
            return
        topics = {topic_id: name for name, topic_id in ids.items()}
        codes: dict[TopicPartition, int] = {}
        for topic in answer.topics:
            name = topic.name or topics.get(topic.topic_id, "")
            codes |= {(name, entry.partition_index): entry.error_code for entry in topic.partitions if entry.error_code}
        for partition in offsets.keys() - codes.keys():
            self._succeeded[partition] = max(self._succeeded.get(partition, 0), number)
        for code in FENCED.intersection(codes.values()):
            self._member.fenced(code, member, now_ms)
        error = self._commit_error(codes, offsets, member)
        finished(True if error is None else error, now_ms)

    def _commit_error(self, codes: dict[TopicPartition, int], offsets: Offsets, member: GroupMetadata) -> ClientError | None:
        errors = [self._one_commit_error(one, code, offsets, member) for one, code in codes.items()]
        # An error that stays decides: the same commit cannot succeed.
        return min(errors, key=lambda error: error.is_retriable, default=None)

    def _one_commit_error(self, partition: TopicPartition, code: int, offsets: Offsets, member: GroupMetadata) -> ClientError:
        self._check(code)
        if code == error_codes.UNKNOWN_TOPIC_ID:
            self._network.request_update()
        where = f"the offset of {partition[0]}-{partition[1]} is not committed"
        if code == error_codes.STALE_MEMBER_EPOCH:
            if self._member.may_commit_again(member, offsets):
                return _StaleEpochError(code, where)
            return CommitFailedError(f"{where}: {LEFT_GROUP}")
        if code in (error_codes.UNKNOWN_MEMBER_ID, error_codes.ILLEGAL_GENERATION):
            return CommitFailedError(f"{where}: {LEFT_GROUP}")
        return KafkaError(code, where)

    def _check(self, code: int) -> None:
        self._coordinator.check(error_codes.NOT_COORDINATOR if code == error_codes.REQUEST_TIMED_OUT else code)

    # ---------------------------------------------------------------------------------------------------------- fetches

    def _try_fetch(
        self, partitions: frozenset[TopicPartition], finished: Finished[Committed], now_ms: int, timeout_ms: int
    ) -> None:
        ids = _ids_of(partitions, self._network.metadata.topic_ids)
        member = self._member.group_metadata()
        request = partial(self._fetch_request, partitions, member, ids)
        answered = partial(self._fetched, partitions, member, ids, finished)
        self._coordinator.send(OFFSET_FETCH, request, answered, now_ms, timeout_ms, _max_version(ids))

    def _fetch_request(
        self, partitions: Iterable[TopicPartition], member: GroupMetadata, ids: Mapping[str, bytes], version: int
    ) -> Message:
        kind = API_KEYS[OFFSET_FETCH].request
        indexes: dict[str, list[int]] = {}
        for topic, partition in sorted(partitions):
            indexes.setdefault(topic, []).append(partition)
        if version < FIRST_VERSION_WITH_GROUPS:
            of_topic = kind.classes["OffsetFetchRequestTopic"]
            topics = [of_topic(name=name, partition_indexes=found) for name, found in indexes.items()]
            return kind.new(group_id=self._group_id, topics=topics, require_stable=version >= 7)
        of_topic = kind.classes["OffsetFetchRequestTopics"]
        topics = [
            of_topic(
                partition_indexes=found,
                **({"topic_id": ids[name]} if version >= FIRST_VERSION_WITH_IDS else {"name": name}),
            )
            for name, found in indexes.items()
        ]
        group = kind.classes["OffsetFetchRequestGroup"](group_id=self._group_id, topics=topics)
        if self._member.uses_epochs and member.generation_id > 0:
            group.member_id, group.member_epoch = member.member_id, member.generation_id
        return kind.new(groups=[group], require_stable=True)

    def _fetched(
        self,
        partitions: frozenset[TopicPartition],
        member: GroupMetadata,
        ids: Mapping[str, bytes],
        finished: Finished[Committed],
        answer: Message | ClientError,
        now_ms: int,
    ) -> None:
        if isinstance(answer, ClientError):
            finished(answer, now_ms)
            return
        group = answer.groups[0] if answer.groups else answer
        if group.error_code:
            finished(self._group_error(group.error_code, member, now_ms), now_ms)
            return
        topics = {topic_id: name for name, topic_id in ids.items()}
        found: Committed = dict.fromkeys(partitions)
        for topic in group.topics:
            name = topic.name or topics.get(topic.topic_id, "")
            for entry in topic.partitions:
                if entry.error_code:
                    self._coordinator.check(entry.error_code)
                    if entry.error_code == error_codes.UNKNOWN_TOPIC_ID:
                        self._network.request_update()
                    finished(_fetch_error(name, entry.partition_index, entry.error_code), now_ms)
                    return
                if entry.committed_offset != NO_OFFSET and (name, entry.partition_index) in found:
                    found[name, entry.partition_index] = OffsetAndMetadata(
                        entry.committed_offset, entry.committed_leader_epoch, entry.metadata or ""
                    )
        finished(found, now_ms)

    def _group_error(self, code: int, member: GroupMetadata, now_ms: int) -> ClientError:
        self._check(code)
        detail = "committed offsets cannot be read"
        if code == error_codes.STALE_MEMBER_EPOCH and self._member.may_commit_again(member, ()):
            return _StaleEpochError(code, detail)
        if code in FENCED:
            self._member.fenced(code, member, now_ms)
        return KafkaError(code, detail)


def _ids_of(partitions: Iterable[TopicPartition], known: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the ids of the topics; nothing if one is not known, so that all are named."""
    names = {topic for topic, _ in partitions}
    return {topic: known[topic] for topic in names} if names <= known.keys() else {}


def _max_version(ids: Mapping[str, bytes]) -> int | None:
    return None if ids else FIRST_VERSION_WITH_IDS - 1


def _fetch_error(topic: str, partition: int, code: int) -> KafkaError:
    return KafkaError(code, f"the committed offset of {topic}-{partition} cannot be read")
