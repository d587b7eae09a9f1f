"""ShareFetch and ShareAcknowledge: records for the members of share groups (KIP-932).

API               needs                                answered
----------------  -----------------------------------  ---------------------------------------------------------------------
ShareFetch        READ on the group and on the topics  when min_bytes can be acquired, or max_wait_ms are over; and its
                                                       acknowledgements are written
ShareAcknowledge  READ on the group and on the topics  when the acknowledgements are written

request                                                               refused with
--------------------------------------------------------------------  ----------------------------------------------------
any without share.version 1                                           UNSUPPORTED_VERSION
no group id; a member id that is empty or above 36 characters         INVALID_REQUEST
is_renew_ack with max_bytes, min_bytes, max_records or max_wait_ms    INVALID_REQUEST
one that does not fit its session (see                                the error of the session;
kcli.server.replication.share.share_session)                          SHARE_SESSION_LIMIT_REACHED after max_wait_ms

The group coordinator is not asked whether the member exists.

a partition is answered with  in a fetch                          in an acknowledgement
----------------------------  ----------------------------------  ----------------------------------------------------------
UNKNOWN_TOPIC_ID              an unknown topic id                 the same
INVALID_REQUEST                                                   batches that overlap, have no type, a wrong number of types,
                                                                  an unknown type, or RENEW without is_renew_ack
TOPIC_AUTHORIZATION_FAILED    no READ on the topic                the same
UNKNOWN_TOPIC_OR_PARTITION    the metadata does not have it       the same; or the group reads nothing of it here
NOT_LEADER_OR_FOLLOWER        another broker leads it; the        the state belongs to another leader
                              answer names it

Kafka 4.3 answers a fetch of an unknown topic id with UNKNOWN_SERVER_ERROR as a whole, because its handler fails when it counts
the bytes of the topic; here the partition is answered with UNKNOWN_TOPIC_ID, as the protocol says.

Only acknowledgements that a share partition refuses have an error message. With is_renew_ack a ShareFetch acknowledges and
fetches nothing, so that the locks are renewed without a wait (KIP-1222).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.leader_hints import FENCED_OR_NOT_LEADER, name_leaders
from kcli.server.features import SHARE_VERSION
from kcli.server.replication.share.acknowledgement import GAP, REJECT, RENEW, AcknowledgementBatch, ShareError
from kcli.server.replication.share.acquisition import RECORD_LIMIT
from kcli.server.replication.share.delayed_share_fetch import Results, ShareFetchParams, ShareFetchResult
from kcli.server.replication.share.share_partition_manager import Errors
from kcli.server.replication.share.share_session import (
    FINAL_EPOCH,
    MemberKey,
    SharePlan,
    ShareSessionError,
    ShareTarget,
)

RENEW_VERSION = 2
_LONGEST_MEMBER_ID = 36
_MAX_BYTES_KEY = "fetch.max.bytes"
_NO_RECORDS = b""
# What is_renew_ack does not allow.
_ZERO_IF_RENEWED = ("max_bytes", "min_bytes", "max_records", "max_wait_ms")


def handle_share_fetch(context: RequestContext, request: Message) -> Message | None:
    """Answer a ShareFetchRequest, now or later."""
    refused = _refusal(context, request) or _renewal_fault(context, request)
    if refused is not None:
        return context.new("ShareFetchResponse", error_code=refused)
    key = MemberKey(request.group_id, request.member_id)
    targets = [(topic.topic_id, part.partition_index) for topic in request.topics for part in topic.partitions]
    has_acknowledgements = any(part.acknowledgement_batches for topic in request.topics for part in topic.partitions)
    try:
        plan = context.broker.share_partitions.sessions.plan(
            key,
            request.share_session_epoch,
            targets,
            [(topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions],
            context.connection,
            has_acknowledgements=has_acknowledgements,
        )
    except ShareSessionError as error:
        response = context.new("ShareFetchResponse", error_code=error.code)
        if error.code != error_codes.SHARE_SESSION_LIMIT_REACHED:
            return response
        at_ms = context.now_ms + max(0, request.max_wait_ms)
        context.broker.timer.schedule(at_ms, lambda now_ms: context.respond(response))
        return None
    if not 0 <= request.share_acquire_mode <= RECORD_LIMIT and not _is_renewal(context, request):
        return context.new("ShareFetchResponse", error_code=error_codes.UNKNOWN_SERVER_ERROR)
    _ShareFetch(context, request, key, plan).begin(has_acknowledgements=has_acknowledgements)
    return None


def handle_share_acknowledge(context: RequestContext, request: Message) -> Message | None:
    """Answer a ShareAcknowledgeRequest when the acknowledgements are written."""
    refused = _refusal(context, request)
    if refused is not None:
        return context.new("ShareAcknowledgeResponse", error_code=refused)
    key = MemberKey(request.group_id, request.member_id)
    shares = context.broker.share_partitions
    try:
        shares.sessions.acknowledge(key, request.share_session_epoch)
    except ShareSessionError as error:
        return context.new("ShareAcknowledgeResponse", error_code=error.code)

    def respond(errors: Errors) -> None:
        if request.share_session_epoch == FINAL_EPOCH:
            shares.release_session(key)
        make = context.api.response.classes["PartitionData"]
        answers = {
            target: make(
                partition_index=target[1],
                error_code=error_codes.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
            )
            for target, error in errors.items()
        }
        response = context.new("ShareAcknowledgeResponse", node_endpoints=_name_leaders(context, answers))
        response.responses = _by_topic(context, "ShareAcknowledgeTopicResponse", answers)
        if context.version >= RENEW_VERSION:
            response.acquisition_lock_timeout_ms = shares.config.record_lock_duration_ms(request.group_id)
        context.respond(response)

    _acknowledge(context, request, key, respond)
    return None


# -------------------------------------------------------------------------------------------------------------- checks


def _refusal(context: RequestContext, request: Message) -> int | None:
    """Return the error code if the request is refused for any member."""
    if context.broker.metadata.image.features.get(SHARE_VERSION, 0) < 1:
        return error_codes.UNSUPPORTED_VERSION
    if request.group_id is None:
        return error_codes.INVALID_REQUEST
    if not context.is_allowed("READ", "GROUP", request.group_id):
        return error_codes.GROUP_AUTHORIZATION_FAILED
    if not request.member_id or len(request.member_id) > _LONGEST_MEMBER_ID:
        return error_codes.INVALID_REQUEST
    return None


def _is_renewal(context: RequestContext, request: Message) -> bool:
    return context.version >= RENEW_VERSION and bool(request.is_renew_ack)


def _renewal_fault(context: RequestContext, request: Message) -> int | None:
    """Return the error code of a ShareFetch that renews locks, if it would fetch, too."""
    may_fetch = any(getattr(request, name) != 0 for name in _ZERO_IF_RENEWED)
    return error_codes.INVALID_REQUEST if _is_renewal(context, request) and may_fetch else None


# --------------------------------------------------------------------------------------------------------- acknowledge


def _acknowledge(context: RequestContext, request: Message, key: MemberKey, done: Callable[[Errors], None]) -> None:
    """Acknowledge what a request of either API says; `done` gets the errors of its partitions, None for none."""
    broker = context.broker
    errors: Errors = {}
    wanted: dict[ShareTarget, list[AcknowledgementBatch]] = {}
    empty: Errors = {}
    most = RENEW if context.version == RENEW_VERSION else REJECT
    may_renew = _is_renewal(context, request)
    for topic in request.topics:
        name = broker.metadata.topic_name(topic.topic_id)
        for partition in topic.partitions:
            target = topic.topic_id, partition.partition_index
            batches = [
                AcknowledgementBatch(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                for batch in partition.acknowledgement_batches
            ]
            if name is None:
                errors[target] = ShareError(error_codes.UNKNOWN_TOPIC_ID)
            elif not _are_valid(batches, most, may_renew=may_renew):
                errors[target] = ShareError(error_codes.INVALID_REQUEST)
            elif not context.is_allowed("READ", "TOPIC", name):
                errors[target] = ShareError(error_codes.TOPIC_AUTHORIZATION_FAILED)
            elif broker.metadata.partition(*target) is None:
                errors[target] = ShareError(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
            elif batches:
                wanted[target] = batches
            else:
                empty[target] = None

    def acknowledged(found: Errors) -> None:
        _count_acknowledged(context, wanted, {**found, **errors})
        done({**found, **errors, **empty} if wanted else errors)

    if wanted:
        broker.share_partitions.acknowledge(key, wanted, acknowledged)
    else:
        acknowledged({})


def _count_acknowledged(
    context: RequestContext, wanted: Mapping[ShareTarget, Sequence[AcknowledgementBatch]], errors: Errors
) -> None:
    """Count acknowledgements by their type and topic."""
    broker = context.broker
    names = {target: broker.metadata.topic_name(target[0]) for target in errors}
    for name in set(names.values()) - {None}:
        found = [error for target, error in errors.items() if names[target] == name]
        topic = broker.metrics.topic(str(name))
        topic.total_share_acknowledgement_requests += 1
        topic.failed_share_acknowledgement_requests += any(error is not None for error in found)
    for target, batches in wanted.items():
        if errors.get(target) is None:
            for batch in batches:
                broker.metrics.share_acknowledgements.update(batch.types)


def _are_valid(batches: Sequence[AcknowledgementBatch], most: int, *, may_renew: bool) -> bool:
    """Return whether acknowledgements are in order and have valid types."""
    last_offset = -1
    for batch in batches:
        types = batch.types
        if batch.first_offset > batch.last_offset or batch.first_offset < last_offset or not types:
            return False
        if len(types) > 1 and len(types) != batch.last_offset - batch.first_offset + 1:
            return False
        if min(types) < GAP or max(types) > most or (RENEW in types and not may_renew):
            return False
        last_offset = batch.last_offset
    return True


# --------------------------------------------------------------------------------------------------------------- fetch


class _ShareFetch:
    """One ShareFetch that is being handled: it is answered when both its halves are done."""

    __slots__ = ("_acknowledged", "_context", "_key", "_plan", "_request", "_results")

    def __init__(self, context: RequestContext, request: Message, key: MemberKey, plan: SharePlan) -> None:
        self._context = context
        self._request = request
        self._key = key
        self._plan = plan
        self._results: Results | None = None
        self._acknowledged: Errors | None = None

    def begin(self, *, has_acknowledgements: bool) -> None:
        """Acknowledge, and fetch."""
        context, request = self._context, self._request
        if has_acknowledgements:
            _acknowledge(context, request, self._key, self._take_acknowledged)
        else:
            self._acknowledged = {}
        if _is_renewal(context, request):
            self._take_results({}, context.now_ms)
            return
        errors: Results = {}
        targets: list[tuple[ShareTarget, str]] = []
        for target in self._plan.targets:
            name = context.broker.metadata.topic_name(target[0])
            if name is None:
                errors[target] = _failed(error_codes.UNKNOWN_TOPIC_ID)
            elif not context.is_allowed("READ", "TOPIC", name):
                errors[target] = _failed(error_codes.TOPIC_AUTHORIZATION_FAILED)
            elif context.broker.metadata.partition(*target) is None:
                errors[target] = _failed(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                targets.append((target, name))
        if not targets:
            self._take_results(errors, context.now_ms)
            return
        shares = context.broker.share_partitions

        def fetched(results: Results, now_ms: int) -> None:
            self._take_results({**results, **errors}, now_ms)

        shares.fetch(self._params(targets), context.connection, fetched, context.failed, context.now_ms)

    def _params(self, targets: list[tuple[ShareTarget, str]]) -> ShareFetchParams:
        """Return what is fetched. Each fetch of a session begins with another partition."""
        context, request = self._context, self._request
        epoch = request.share_session_epoch
        turn = epoch % len(targets) if epoch >= 1 else 0
        max_bytes = min(request.max_bytes, context.broker.config.get_int(_MAX_BYTES_KEY))
        return ShareFetchParams(
            group_id=request.group_id,
            member_id=request.member_id,
            targets=targets[turn:] + targets[:turn],
            acquire_mode=request.share_acquire_mode,
            batch_size=request.batch_size,
            max_records=request.max_records,
            max_wait_ms=request.max_wait_ms,
            min_bytes=min(request.min_bytes, max_bytes),
            max_bytes=max_bytes,
            is_read_committed=context.broker.share_partitions.config.is_read_committed(request.group_id),
        )

    def _take_acknowledged(self, errors: Errors) -> None:
        self._acknowledged = errors
        if self._results is not None:
            # While the acknowledgements were written, the log may have closed the files of the records.
            self._results = self._context.broker.share_partitions.renew(self._results)
        self._respond()

    def _take_results(self, results: Results, now_ms: int) -> None:
        self._results = results
        self._respond()

    def _respond(self) -> None:
        """Answer when the fetch and the acknowledgements are done."""
        if self._results is None or self._acknowledged is None:
            return
        context, session, results = self._context, self._plan.session, self._results
        response = context.new("ShareFetchResponse")
        answers = {target: self._answer(target, results[target]) for target in self._in_order(results)}
        if session is not None and session.epoch != self._plan.epoch:
            response.error_code = error_codes.INVALID_SHARE_SESSION_EPOCH
            answers = {}
        elif session is not None:
            answers = {
                target: answer
                for target, answer in answers.items()
                if session.has_news(target, len(answer.records), answer.error_code)
            }
        response.node_endpoints = _name_leaders(context, answers)
        for target, error in self._acknowledged.items():
            answer = answers.get(target)
            if answer is None:
                answer = answers[target] = self._answer(target, ShareFetchResult())
            if error is not None:
                answer.acknowledge_error_code = error.code
                answer.acknowledge_error_message = error.message
        response.responses = _by_topic(context, "ShareFetchableTopicResponse", answers)
        shares = context.broker.share_partitions
        response.acquisition_lock_timeout_ms = shares.config.record_lock_duration_ms(self._key.group_id)
        if self._request.share_session_epoch == FINAL_EPOCH:
            shares.release_session(self._key)
        self._count(results)
        context.respond(response)

    def _in_order(self, results: Results) -> list[ShareTarget]:
        return [target for target in self._plan.targets if target in results]

    def _answer(self, target: ShareTarget, result: ShareFetchResult) -> Message:
        classes = self._context.api.response.classes
        make = classes["AcquiredRecords"]
        return classes["PartitionData"](
            partition_index=target[1],
            error_code=error_codes.NONE if result.error is None else result.error.code,
            records=_NO_RECORDS if result.records is None else result.records,
            acquired_records=[
                make(first_offset=first, last_offset=last, delivery_count=count) for first, last, count in result.acquired
            ],
        )

    def _count(self, results: Results) -> None:
        """Count the fetch and its bytes for the metrics of the topics."""
        broker = self._context.broker
        topics: set[str] = set()
        failed: set[str] = set()
        for (topic_id, _), result in results.items():
            name = broker.metadata.topic_name(topic_id)
            if name is None:
                continue
            topics.add(name)
            if result.error is not None:
                failed.add(name)
            if result.records is not None:
                broker.metrics.topic(name).bytes_out += len(result.records)
        for name in topics:
            broker.metrics.topic(name).total_share_fetch_requests += 1
        for name in failed:
            broker.metrics.topic(name).failed_share_fetch_requests += 1


def _failed(code: int) -> ShareFetchResult:
    return ShareFetchResult(ShareError(code))


def _by_topic(context: RequestContext, struct: str, answers: Mapping[ShareTarget, Message]) -> list[Message]:
    """Return the answers by topic; each topic is named once."""
    topics: dict[object, Message] = {}
    for (topic_id, _), answer in answers.items():
        if topic_id not in topics:
            topics[topic_id] = context.new(struct, topic_id=topic_id, partitions=[])
        topics[topic_id].partitions.append(answer)
    return list(topics.values())


def _name_leaders(context: RequestContext, answers: Mapping[ShareTarget, Message]) -> list[Message]:
    topic_name = context.broker.metadata.topic_name
    parts = ((topic_name(topic_id), index, answer) for (topic_id, index), answer in answers.items())
    return name_leaders(context, parts, FENCED_OR_NOT_LEADER)
