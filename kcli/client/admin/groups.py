"""Groups of all types: list, describe, delete, remove members (Kafka: GroupListing, ConsumerGroupDescription).

operation                  API                                               node
-------------------------  ------------------------------------------------  ----------------------------
list_groups                ListGroups                                        each broker
describe_consumer_groups   ConsumerGroupDescribe; DescribeGroups for groups  the coordinator of each group
                           that it does not find, or if the broker does not
                           have it
describe_classic_groups    DescribeGroups                                    the coordinator
describe_share_groups      ShareGroupDescribe                                the coordinator
describe_streams_groups    StreamsGroupDescribe (kcli.client.admin.streams)  the coordinator
delete_groups              DeleteGroups                                      the coordinator
remove_members_from_group  LeaveGroup                                        the coordinator
find_coordinators          FindCoordinator                                   any broker
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kcli.client.admin.brokers import run_on_each_broker
from kcli.client.admin.error_sentences import kafka_error, outcome_error
from kcli.client.admin.operation import TRIED_AGAIN, Call, Fallback, Operation, Outcomes, RequestContext, Route, run
from kcli.client.coordinator_lookup import GROUP_KEY, TRANSACTION_KEY, coordinator_request, coordinators_by_key
from kcli.client.errors import ClientError, KafkaError, UnsupportedVersionError
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    API_KEYS,
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    LEAVE_GROUP,
    LIST_GROUPS,
    SHARE_GROUP_DESCRIBE,
)
from kcli.protocol.consumer_protocol import decode_assignment_message
from kcli.protocol.message import Message
from kcli.protocol.message_errors import DecodeError

GROUP_TYPES = CLASSIC, CONSUMER, SHARE, STREAMS = "Classic", "Consumer", "Share", "Streams"
CONSUMER_PROTOCOL = "consumer"  # protocol type of classic groups of consumers
DEAD = "Dead"
# Of classic groups, of the others, of streams groups.
GROUP_STATES = (
    *("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", DEAD),
    *("Assigning", "Reconciling"),
    "NotReady",
)
NO_EPOCH = -1
_TYPES_SINCE = 5
# A broker that starts answers the second one until its coordinator is active.
_LIST_RETRIED = TRIED_AGAIN | {error_codes.COORDINATOR_NOT_AVAILABLE}
_MEMBERS_SINCE = 3
_CLASSIC_MEMBER = 0  # MemberType of a member of a consumer group that uses the classic protocol


class GroupListing(NamedTuple):
    """A group in a list; `type` is empty if the broker does not report types (before 3.8)."""

    group_id: str
    type: str
    protocol: str
    state: str


class ListedGroups(NamedTuple):
    """The groups, sorted by id, and the errors of brokers that did not list theirs."""

    groups: list[GroupListing]
    errors: dict[int, ClientError]


class GroupMember(NamedTuple):
    """A member; `target_assignment` is None if the protocol has none, `protocol_metadata` is that of classic groups."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    host: str
    member_epoch: int
    subscribed_topics: tuple[str, ...]
    subscribed_regex: str | None
    assignment: tuple[TopicPartition, ...]
    target_assignment: tuple[TopicPartition, ...] | None
    uses_classic_protocol: bool
    protocol_metadata: bytes = b""


class GroupDescription(NamedTuple):
    """A classic, consumer or share group; the epochs are NO_EPOCH in classic groups."""

    group_id: str
    type: str
    protocol: str
    state: str
    assignor: str
    group_epoch: int
    assignment_epoch: int
    members: tuple[GroupMember, ...]


class MemberToRemove(NamedTuple):
    """A member that shall leave: a static one by its instance id, any other one by its member id."""

    instance_id: str | None = None
    member_id: str = ""


class CoordinatorNode(NamedTuple):
    """The broker that coordinates a group or a transactional id."""

    node_id: int
    host: str
    port: int


# --------------------------------------------------------------------------------------------------------------------- list


def list_groups(
    *, states: Iterable[str] = (), types: Iterable[str] = (), protocols: Iterable[str] = ()
) -> Operation[ListedGroups]:
    """Return the groups of the cluster with one of the states, types and protocol types; none named: with any."""
    wanted_states, wanted_types, wanted_protocols = list(states), list(types), set(protocols)

    def request(_keys: Sequence[int], _context: RequestContext) -> Message:
        return API_KEYS[LIST_GROUPS].request.new(states_filter=wanted_states, types_filter=wanted_types)

    by_broker = yield from run_on_each_broker(LIST_GROUPS, request, _read_listed, _LIST_RETRIED)
    found: dict[str, GroupListing] = {}
    for outcome in by_broker.values():
        if not isinstance(outcome, ClientError):
            found.update({one.group_id: one for one in outcome})
    groups = [one for _, one in sorted(found.items()) if not wanted_protocols or one.protocol in wanted_protocols]
    return ListedGroups(groups, {at: error for at, error in by_broker.items() if isinstance(error, ClientError)})


def _read_listed(answer: Message) -> list[GroupListing] | ClientError:
    if answer.error_code:
        return kafka_error(answer.error_code)
    return [
        GroupListing(one.group_id, one.group_type.capitalize(), one.protocol_type, one.group_state) for one in answer.groups
    ]


# ----------------------------------------------------------------------------------------------------------------- describe


def describe_consumer_groups(group_ids: Iterable[str]) -> Operation[Outcomes[str, GroupDescription]]:
    """Return groups of consumers of both protocols with their members."""
    fallback = Fallback(_may_be_classic, DESCRIBE_GROUPS, _classic_request, _read_classic)
    return (yield from run(_describe_modern(CONSUMER_GROUP_DESCRIBE, CONSUMER)._replace(fallback=fallback), group_ids))


def _may_be_classic(outcome: GroupDescription | ClientError) -> bool:
    if isinstance(outcome, KafkaError):
        return outcome.code in (error_codes.GROUP_ID_NOT_FOUND, error_codes.UNSUPPORTED_VERSION)
    return isinstance(outcome, UnsupportedVersionError)


def describe_share_groups(group_ids: Iterable[str]) -> Operation[Outcomes[str, GroupDescription]]:
    """Return share groups with their members."""
    return (yield from run(_describe_modern(SHARE_GROUP_DESCRIBE, SHARE), group_ids))


def assigned_partitions(assignment: Message) -> tuple[TopicPartition, ...]:
    """Return the partitions of an assignment of a group that is not classic."""
    return tuple((topic.topic_name, index) for topic in assignment.topic_partitions for index in topic.partitions)


def _describe_modern(api_key: int, group_type: str) -> Call[str, GroupDescription]:
    """Return the call that describes groups of consumers (KIP-848) or share groups."""

    def request(keys: Sequence[str], _context: RequestContext) -> Message:
        return API_KEYS[api_key].request.new(group_ids=list(keys))

    def read(_keys: Sequence[str], answer: Message) -> Iterator[tuple[str, GroupDescription | ClientError]]:
        for one in answer.groups:
            if one.error_code:
                yield one.group_id, kafka_error(one.error_code, one.error_message)
            else:
                yield one.group_id, _modern_group(one, group_type)

    return Call(api_key, Route.GROUP, request, read)


def _modern_group(one: Message, group_type: str) -> GroupDescription:
    is_share = group_type == SHARE
    members = tuple(
        GroupMember(
            each.member_id,
            None if is_share else each.instance_id,
            each.rack_id,
            each.client_id,
            each.client_host,
            each.member_epoch,
            tuple(each.subscribed_topic_names),
            None if is_share else each.subscribed_topic_regex or None,
            assigned_partitions(each.assignment),
            None if is_share else assigned_partitions(each.target_assignment),
            not is_share and each.member_type == _CLASSIC_MEMBER,
        )
        for each in one.members
    )
    epochs = (one.group_epoch, one.assignment_epoch)
    return GroupDescription(one.group_id, group_type, group_type.lower(), one.group_state, one.assignor_name, *epochs, members)


def describe_classic_groups(group_ids: Iterable[str]) -> Operation[Outcomes[str, GroupDescription]]:
    """Return classic groups with their members, also those that are not of consumers."""
    return (yield from run(Call(DESCRIBE_GROUPS, Route.GROUP, _classic_request, _read_classic), group_ids))


def _classic_request(group_ids: Sequence[str], _context: RequestContext) -> Message:
    return API_KEYS[DESCRIBE_GROUPS].request.new(groups=list(group_ids))


def _read_classic(_group_ids: Sequence[str], answer: Message) -> Iterator[tuple[str, GroupDescription | ClientError]]:
    for one in answer.groups:
        if one.error_code:
            yield one.group_id, kafka_error(one.error_code, one.error_message)
        elif one.group_state == DEAD and not one.members:
            # So brokers before 4.0 answer for a group that does not exist.
            yield one.group_id, kafka_error(error_codes.GROUP_ID_NOT_FOUND, f"Group {one.group_id} not found.")
        else:
            members = tuple(_classic_member(one.protocol_type, each) for each in one.members)
            head = (one.group_id, CLASSIC, one.protocol_type, one.group_state, one.protocol_data)
            yield one.group_id, GroupDescription(*head, NO_EPOCH, NO_EPOCH, members)


def _classic_member(protocol: str, one: Message) -> GroupMember:
    assignment: tuple[TopicPartition, ...] = ()
    if protocol == CONSUMER_PROTOCOL and one.member_assignment:
        try:
            decoded = decode_assignment_message(one.member_assignment)
            assignment = tuple((each.topic, index) for each in decoded.assigned_partitions for index in each.partitions)
        except DecodeError:
            pass  # an assignor may write what it likes
    return GroupMember(
        one.member_id,
        one.group_instance_id,
        None,
        one.client_id,
        one.client_host,
        NO_EPOCH,
        (),
        None,
        assignment,
        None,
        True,
        bytes(one.member_metadata),
    )


def find_coordinators(names: Iterable[str], *, of_transactions: bool = False) -> Operation[Outcomes[str, CoordinatorNode]]:
    """Return the coordinators of groups, or of transactional ids."""
    key_type = TRANSACTION_KEY if of_transactions else GROUP_KEY

    def request(keys: Sequence[str], context: RequestContext) -> Message:
        return coordinator_request(context.version, key_type, keys)

    def read(keys: Sequence[str], answer: Message) -> Iterator[tuple[str, CoordinatorNode | ClientError]]:
        for key, one in coordinators_by_key(answer, keys).items():
            error = outcome_error(one.error_code, one.error_message)
            yield key, error or CoordinatorNode(one.node_id, one.host, one.port)

    retried = frozenset((error_codes.COORDINATOR_NOT_AVAILABLE, error_codes.COORDINATOR_LOAD_IN_PROGRESS))
    return (yield from run(Call(FIND_COORDINATOR, Route.ANY, request, read, retried=retried), names))


# ------------------------------------------------------------------------------------------------------------------- change


def delete_groups(group_ids: Iterable[str]) -> Operation[Outcomes[str, None]]:
    """Delete groups without members, of any type."""

    def request(keys: Sequence[str], _context: RequestContext) -> Message:
        return API_KEYS[DELETE_GROUPS].request.new(groups_names=list(keys))

    def read(_keys: Sequence[str], answer: Message) -> Iterator[tuple[str, ClientError | None]]:
        for one in answer.results:
            yield one.group_id, outcome_error(one.error_code, one.error_message)

    return (yield from run(Call(DELETE_GROUPS, Route.GROUP, request, read), group_ids))


def remove_members_from_group(
    group_id: str, members: Iterable[MemberToRemove] | None = None, *, reason: str = "removed by an administrator"
) -> Operation[Outcomes[MemberToRemove, None]]:
    """Let members of a group of consumers leave, all members for None. Raises KafkaError if there is no such group."""
    if members is None:
        described = yield from describe_consumer_groups([group_id])
        description = described[group_id]
        if isinstance(description, ClientError):
            raise description
        members = [MemberToRemove(one.instance_id, "" if one.instance_id else one.member_id) for one in description.members]

    def request(keys: Sequence[MemberToRemove], context: RequestContext) -> Message:
        kind = API_KEYS[LEAVE_GROUP].request
        if context.version < _MEMBERS_SINCE and len(keys) == 1 and keys[0].instance_id is None:
            return kind.new(group_id=group_id, member_id=keys[0].member_id)
        identity = kind.classes["MemberIdentity"]
        leaving = [identity(member_id=key.member_id, group_instance_id=key.instance_id, reason=reason) for key in keys]
        return kind.new(group_id=group_id, members=leaving)

    def read(keys: Sequence[MemberToRemove], answer: Message) -> Iterable[tuple[MemberToRemove, ClientError | None]]:
        if answer.error_code or answer.schema_version < _MEMBERS_SINCE:
            return [(key, outcome_error(answer.error_code)) for key in keys]
        codes = {one.group_instance_id or one.member_id: one.error_code for one in answer.members}
        return [
            (key, outcome_error(codes.get(key.instance_id or key.member_id, error_codes.UNKNOWN_MEMBER_ID))) for key in keys
        ]

    call = Call(LEAVE_GROUP, Route.GROUP, request, read, lambda _key: group_id)
    return (yield from run(call, members))
