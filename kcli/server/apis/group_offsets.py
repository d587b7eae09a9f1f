"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete: committed offsets of groups.

API            needs                                 versions
-------------  ------------------------------------  --------------------------------------------------------------------
OffsetCommit   READ on the group and on each topic   2 to 9 topics by name, 10 by id
TxnOffsetCommit, in addition WRITE on the transac-   0 to 5 topics by name, 6 by id; from 5 on it adds the group's partition
  tional id                                          to the transaction, before that the transaction is verified (KIP-890)
OffsetFetch    DESCRIBE on the group and each topic  1 to 7 one group, from 8 on several; topics by id from 10 on
OffsetDelete   DELETE on the group, READ on topics   0

partition of OffsetCommit              error
-------------------------------------  ----------------------------------------------------------------------------------
topic not allowed                      TOPIC_AUTHORIZATION_FAILED
topic id unknown                       UNKNOWN_TOPIC_ID
topic or partition unknown             UNKNOWN_TOPIC_OR_PARTITION
any other                              the coordinator's error for the group, or OFFSET_METADATA_TOO_LARGE

A group that does not exist has no offsets: OffsetFetch returns -1. OffsetFetch without topics (null) returns all offsets of the
group, of those topics that may be described. In version 10 offsets of topics that no longer exist are left out. For a topic id
an offset that was committed with another id is not returned: it belongs to a deleted topic of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import Producer
from kcli.log.producer_state_manager import VerificationStateEntry
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.coordinator.group.consumer_members import validate_offset_fetch
from kcli.server.coordinator.group.group_coordinator import GROUP_TOPIC, GroupShard
from kcli.server.coordinator.group.offset_manager import NO_RETENTION_TIME, FetchedOffset, OffsetToCommit
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.replication.partition import PartitionError
from kcli.server.replication.transaction_verification import TransactionSupportedOperation

_COMMIT_BY_ID_VERSION = 10
_TXN_COMMIT_BY_ID_VERSION = 6
_NOT_FOUND_VERSION = 9  # of OffsetCommit
_FETCH_BY_ID_VERSION = 10
_FETCH_GROUPS_VERSION = 8
_FETCH_MEMBER_VERSION = 9  # of OffsetFetch: a member of a consumer group states its epoch
_LOADING_VERSION = 2  # of TxnOffsetCommit: older clients fail after COORDINATOR_LOAD_IN_PROGRESS
_OPERATIONS = {  # by the version of TxnOffsetCommit
    3: TransactionSupportedOperation.VERIFY,
    4: TransactionSupportedOperation.VERIFY_ABORTABLE,
    5: TransactionSupportedOperation.ADD,
}
_FETCH_ERROR_VERSION = 2  # of OffsetFetch: from here on the answer has an error code of its own


# ------------------------------------------------------------------------------------------------------------------ commit


def handle_offset_commit(context: RequestContext, request: Message) -> Message | None:
    """Answer an OffsetCommitRequest when its offsets are committed."""
    group_id = request.group_id
    if not context.is_allowed("READ", "GROUP", group_id):
        return _all_failed(context, request, error_codes.GROUP_AUTHORIZATION_FAILED)
    response, commits, answers = _begin_commit(context, request, context.version >= _COMMIT_BY_ID_VERSION)
    if not commits:
        return response

    def decide(shard: GroupShard) -> Decision[list[int]]:
        member_id, instance_id = request.member_id, request.group_instance_id
        epoch = request.generation_id_or_member_epoch
        partitions = ((commit.topic, commit.partition) for commit in commits)
        if shard.validate_member_commit(group_id, member_id, instance_id, epoch, context.version, partitions):
            return shard.commit_offsets(group_id, commits, request.retention_time_ms)
        try:
            shard.classic.validate_offset_commit(group_id, member_id, instance_id, epoch, is_transactional=False)
        except CoordinatorError as error:
            is_unknown = error.code == error_codes.GROUP_ID_NOT_FOUND and group_id not in shard.state.groups
            if is_unknown and context.version < _NOT_FOUND_VERSION:
                raise CoordinatorError(error_codes.ILLEGAL_GENERATION, error.message) from error
            raise
        return shard.commit_offsets(group_id, commits, request.retention_time_ms)

    def committed(codes: list[int] | CoordinatorError, now_ms: int) -> None:
        if isinstance(codes, CoordinatorError):
            codes = [codes.code] * len(answers)
        for answer, code in zip(answers, codes, strict=True):
            answer.error_code = code
        context.respond(response)

    context.broker.groups.write(group_id, decide, committed)
    return None


def _begin_commit(
    context: RequestContext, request: Message, uses_ids: bool
) -> tuple[Message, list[OffsetToCommit], list[Message]]:
    """Return the response, what is to be committed, and the parts of the response for that; errors are filled in."""
    response, commits, answers = context.new(f"{context.api.name}Response"), list[OffsetToCommit](), list[Message]()
    make_partition = _partition_maker(context)
    for topic in request.topics:
        code, name, topic_id = _find_topic(context, topic, uses_ids)
        parts: list[Message] = []
        response.topics.append(_new_topic(context, topic, parts))
        found = None if code else context.broker.metadata.image.topic(name)
        for part in topic.partitions:
            index = part.partition_index
            if code or found is None or index not in found.partitions:
                parts.append(make_partition(partition_index=index, error_code=code or error_codes.UNKNOWN_TOPIC_OR_PARTITION))
                continue
            answer = make_partition(partition_index=index, error_code=0)
            parts.append(answer)
            answers.append(answer)
            offset, epoch, metadata = part.committed_offset, part.committed_leader_epoch, part.committed_metadata
            commits.append(OffsetToCommit(name, topic_id, index, offset, epoch, metadata))
    return response, commits, answers


def _partition_maker(context: RequestContext) -> Callable[..., Message]:
    return context.api.response.classes[f"{context.api.name}ResponsePartition"]


def _new_topic(context: RequestContext, topic: Message, partitions: list[Message]) -> Message:
    struct = f"{context.api.name}ResponseTopic"
    return context.new(struct, name=topic.name, topic_id=topic.topic_id, partitions=partitions)


def _find_topic(context: RequestContext, topic: Message, uses_ids: bool) -> tuple[int, str, Uuid]:
    """Return the error code, the name and the id of a topic of a request that may read it."""
    name, topic_id = topic.name, ZERO_UUID
    if uses_ids:
        topic_id = topic.topic_id
        known = context.broker.metadata.topic_name(topic_id)
        if known is None:
            return error_codes.UNKNOWN_TOPIC_ID, "", topic_id
        name = known
    if not context.is_allowed("READ", "TOPIC", name):
        return error_codes.TOPIC_AUTHORIZATION_FAILED, name, topic_id
    return error_codes.NONE, name, topic_id


def _all_failed(context: RequestContext, request: Message, code: int) -> Message:
    make = _partition_maker(context)
    topics = [
        _new_topic(context, topic, [make(partition_index=part.partition_index, error_code=code) for part in topic.partitions])
        for topic in request.topics
    ]
    return context.new(f"{context.api.name}Response", topics=topics)


# ----------------------------------------------------------------------------------------------- commit in a transaction


def handle_txn_offset_commit(context: RequestContext, request: Message) -> Message | None:
    """Answer a TxnOffsetCommitRequest when its offsets are in the log; they are effective when the transaction is committed."""
    if not context.is_allowed("WRITE", "TRANSACTIONAL_ID", request.transactional_id):
        return _all_failed(context, request, error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not context.is_allowed("READ", "GROUP", request.group_id):
        return _all_failed(context, request, error_codes.GROUP_AUTHORIZATION_FAILED)
    response, commits, answers = _begin_commit(context, request, context.version >= _TXN_COMMIT_BY_ID_VERSION)
    if not commits:
        return response
    _TxnOffsetCommit(context, request, response, commits, answers).start()
    return None


class _TxnOffsetCommit:
    """One TxnOffsetCommit that is being handled: the transaction is verified, then the offsets are written."""

    def __init__(
        self,
        context: RequestContext,
        request: Message,
        response: Message,
        commits: list[OffsetToCommit],
        answers: list[Message],
    ) -> None:
        self._context = context
        self._request = request
        self._response = response
        self._commits = commits
        self._answers = answers
        self._producer = Producer(request.producer_id, request.producer_epoch)
        self._index = context.broker.groups.partition_for(request.group_id)
        self._operation = _OPERATIONS[min(max(context.version, 3), 5)]
        self._guard: VerificationStateEntry | None = None
        self._refusal_code = error_codes.NONE  # before the transaction coordinator was asked

    def start(self) -> None:
        """Verify the transaction, unless it is open in the group's partition."""
        context, request = self._context, self._request
        if not request.group_id:
            self._failed(error_codes.INVALID_GROUP_ID)
            return
        partition = context.broker.replica_manager.partition(GROUP_TOPIC, self._index)
        if partition is None or not partition.is_leader or partition.log is None:
            self._failed(error_codes.NOT_COORDINATOR)
            return
        self._begin()
        if self._refusal_code:
            self._failed(self._refusal_code)
        elif self._guard is None:
            self._write()
        else:
            context.broker.txn_verification.verify(
                request.transactional_id, self._producer, [partition.key], self._operation, self._begin, self._verified
            )

    def _begin(self) -> None:
        """Take a guard if the transaction has to be verified; a fenced producer is refused."""
        broker = self._context.broker
        partition = broker.replica_manager.partition(GROUP_TOPIC, self._index)
        if partition is not None and partition.log is not None:
            try:
                self._guard = broker.txn_verification.begin(partition.log.producers, self._producer, self._operation)
            except PartitionError as error:
                self._refusal_code = error.code

    def _verified(self, codes: dict[TopicPartition, int], now_ms: int) -> None:
        code = self._refusal_code or next(iter(codes.values()))
        if code:
            # Older clients do not retry after NETWORK_EXCEPTION.
            self._failed(error_codes.COORDINATOR_LOAD_IN_PROGRESS if code == error_codes.NETWORK_EXCEPTION else code)
        else:
            self._write()

    def _write(self) -> None:
        self._context.broker.groups.runtime.write(self._index, self._decide, self._committed, self._producer)

    def _decide(self, shard: GroupShard) -> Decision[list[int]]:
        request, broker = self._request, self._context.broker
        partition = broker.replica_manager.partition(GROUP_TOPIC, self._index)
        if partition is not None and partition.log is not None:
            try:
                broker.txn_verification.check_verified(partition.log.producers, self._producer, self._guard)
            except PartitionError as error:
                raise CoordinatorError(error.code, str(error)) from error
        try:
            self._validate(shard)
        except CoordinatorError as error:
            is_missing = error.code == error_codes.GROUP_ID_NOT_FOUND and request.group_id not in shard.state.groups
            is_newer = is_missing or error.code == error_codes.STALE_MEMBER_EPOCH
            if is_newer and self._context.version < _TXN_COMMIT_BY_ID_VERSION:
                raise CoordinatorError(error_codes.ILLEGAL_GENERATION, error.message) from error
            raise
        return shard.commit_offsets(request.group_id, self._commits, NO_RETENTION_TIME, self._producer.producer_id)

    def _validate(self, shard: GroupShard) -> None:
        """Check the member that commits. Raises CoordinatorError."""
        request = self._request
        group_id, member_id, instance_id = request.group_id, request.member_id, request.group_instance_id
        epoch = request.generation_id_or_member_epoch
        partitions = ((commit.topic, commit.partition) for commit in self._commits)
        if not shard.validate_member_commit(group_id, member_id, instance_id, epoch, None, partitions):
            shard.classic.validate_offset_commit(group_id, member_id, instance_id, epoch, is_transactional=True)

    def _committed(self, codes: list[int] | CoordinatorError, now_ms: int) -> None:
        if isinstance(codes, CoordinatorError):
            self._failed(codes.code)
            return
        for answer, code in zip(self._answers, codes, strict=True):
            answer.error_code = code
        self._context.respond(self._response)

    def _failed(self, code: int) -> None:
        if code == error_codes.COORDINATOR_LOAD_IN_PROGRESS and self._context.version < _LOADING_VERSION:
            code = error_codes.COORDINATOR_NOT_AVAILABLE
        for answer in self._answers:
            answer.error_code = code
        self._context.respond(self._response)


# ------------------------------------------------------------------------------------------------------------------- fetch


def handle_offset_fetch(context: RequestContext, request: Message) -> None:
    """Answer an OffsetFetchRequest when all of its groups are answered."""
    _OffsetFetch(context, request).start()


class _OffsetFetch:
    """One OffsetFetch that is being handled."""

    def __init__(self, context: RequestContext, request: Message) -> None:
        self._context = context
        self._request = request
        self._has_groups = context.version >= _FETCH_GROUPS_VERSION
        names = ("OffsetFetchResponseTopics", "OffsetFetchResponsePartitions")
        if not self._has_groups:
            names = ("OffsetFetchResponseTopic", "OffsetFetchResponsePartition")
        self._make_topic, self._make_partition = (context.api.response.classes[name] for name in names)
        self._groups: list[Message] = []  # of the answer
        self._left = 0

    def start(self) -> None:
        """Pass each group to its coordinator."""
        wanted = self._request.groups if self._has_groups else [self._request]
        for group in wanted:
            self._groups.append(self._context.new("OffsetFetchResponseGroup", group_id=group.group_id))
        self._left = len(self._groups) + 1
        for group, answer in zip(wanted, self._groups, strict=True):
            self._fetch(group, answer)
        self._answered()

    def _fetch(self, group: Message, answer: Message) -> None:
        if not self._context.is_allowed("DESCRIBE", "GROUP", group.group_id):
            answer.error_code = error_codes.GROUP_AUTHORIZATION_FAILED
            self._answered()
            return

        def decide(shard: GroupShard) -> Decision[list[Message]]:
            known = shard.consumer_group(group.group_id) or shard.streams_group(group.group_id)
            if known is not None and self._context.version >= _FETCH_MEMBER_VERSION:
                validate_offset_fetch(known, group.member_id, group.member_epoch)
            if group.topics is None:
                return Decision(self._all_topics(shard, group.group_id))
            return Decision([self._one_topic(shard, group.group_id, topic) for topic in group.topics])

        def fetched(topics: list[Message] | CoordinatorError, now_ms: int) -> None:
            if isinstance(topics, CoordinatorError):
                answer.error_code = topics.code
            else:
                answer.topics = topics
            self._answered()

        self._context.broker.groups.write(group.group_id, decide, fetched)

    def _one_topic(self, shard: GroupShard, group_id: str, topic: Message) -> Message:
        context, name = self._context, topic.name
        code = error_codes.NONE
        uses_ids = context.version >= _FETCH_BY_ID_VERSION
        topic_id = topic.topic_id if uses_ids else ZERO_UUID
        if uses_ids:
            name = context.broker.metadata.topic_name(topic_id)
            code = error_codes.UNKNOWN_TOPIC_ID if name is None else code
        if not code and not context.is_allowed("DESCRIBE", "TOPIC", name):
            code = error_codes.TOPIC_AUTHORIZATION_FAILED
        if code:
            found: Iterable[FetchedOffset] = [FetchedOffset(index, error_code=code) for index in topic.partition_indexes]
        else:
            found = shard.offsets.fetch(group_id, name, topic_id, topic.partition_indexes, self._request.require_stable)
        return self._topic(topic.name, topic_id, found)

    def _all_topics(self, shard: GroupShard, group_id: str) -> list[Message]:
        context = self._context
        topics = []
        for name, found in shard.offsets.fetch_all(group_id, self._request.require_stable).items():
            if not context.is_allowed("DESCRIBE", "TOPIC", name):
                continue
            topic_id = context.broker.metadata.image.topic_ids.get(name)
            if context.version >= _FETCH_BY_ID_VERSION and topic_id is None:
                continue
            topics.append(self._topic(name, topic_id or ZERO_UUID, found))
        return topics

    def _topic(self, name: str, topic_id: Uuid, found: Iterable[FetchedOffset]) -> Message:
        make = self._make_partition
        partitions = [
            make(
                partition_index=one.partition,
                committed_offset=one.offset,
                committed_leader_epoch=one.leader_epoch,
                metadata=one.metadata,
                error_code=one.error_code,
            )
            for one in found
        ]
        if self._has_groups:
            return self._make_topic(name=name, topic_id=topic_id, partitions=partitions)
        return self._make_topic(name=name, partitions=partitions)

    def _answered(self) -> None:
        """Count a group as answered; respond when none is left."""
        self._left -= 1
        if self._left:
            return
        context = self._context
        if self._has_groups:
            context.respond(context.new("OffsetFetchResponse", groups=self._groups))
            return
        group = self._groups[0]
        if group.error_code and context.version < _FETCH_ERROR_VERSION:
            group.topics = [self._failed_topic(topic, group.error_code) for topic in self._request.topics]
        context.respond(context.new("OffsetFetchResponse", topics=group.topics, error_code=group.error_code))

    def _failed_topic(self, topic: Message, code: int) -> Message:
        return self._topic(topic.name, ZERO_UUID, [FetchedOffset(index, error_code=code) for index in topic.partition_indexes])


# ------------------------------------------------------------------------------------------------------------------ delete


def handle_offset_delete(context: RequestContext, request: Message) -> Message | None:
    """Answer an OffsetDeleteRequest when the offsets are deleted."""
    if not context.is_allowed("DELETE", "GROUP", request.group_id):
        return context.new("OffsetDeleteResponse", error_code=error_codes.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return context.new("OffsetDeleteResponse", error_code=error_codes.INVALID_GROUP_ID)
    response = context.new("OffsetDeleteResponse")
    valid: list[tuple[str, Message]] = []
    for topic in request.topics:
        partitions: list[Message] = []
        response.topics.append(context.new("OffsetDeleteResponseTopic", name=topic.name, partitions=partitions))
        is_allowed = context.is_allowed("READ", "TOPIC", topic.name)
        found = context.broker.metadata.image.topic(topic.name)
        for part in topic.partitions:
            answer = context.new("OffsetDeleteResponsePartition", partition_index=part.partition_index, error_code=0)
            partitions.append(answer)
            if not is_allowed:
                answer.error_code = error_codes.TOPIC_AUTHORIZATION_FAILED
            elif found is None or part.partition_index not in found.partitions:
                answer.error_code = error_codes.UNKNOWN_TOPIC_OR_PARTITION
            else:
                valid.append((topic.name, answer))

    context.broker.groups.write(
        request.group_id,
        partial(_decide_delete, request.group_id, valid),
        partial(_deleted, context, response),
    )
    return None


def _decide_delete(group_id: str, valid: Iterable[tuple[str, Message]], shard: GroupShard) -> Decision[None]:
    is_kept = shard.offset_delete_check(group_id)
    records = []
    for topic, answer in valid:
        if is_kept(topic):
            answer.error_code = error_codes.GROUP_SUBSCRIBED_TO_TOPIC
        else:
            records += shard.offsets.delete(group_id, topic, answer.partition_index)
    shard.metrics.offset_deletions += len(records)
    return Decision(None, records)


def _deleted(context: RequestContext, response: Message, result: CoordinatorError | None, now_ms: int) -> None:
    if result is not None:
        response.error_code, response.topics = result.code, []
    context.respond(response)
