"""The cluster: nodes, features, the quorum of controllers (Kafka: DescribeClusterResult, FeatureMetadata, QuorumInfo).

    operation                API                                      node
    -----------------------  ---------------------------------------  --------------
    describe_cluster         DescribeCluster; Metadata before 2.8     any broker
    unregister_broker        UnregisterBroker                         the controller
    unregister_controller    UnregisterController (Kafka 4.4)         the controller
    describe_api_versions    ApiVersions                              each node
    describe_features        ApiVersions                              any broker
    update_features          UpdateFeatures                           the controller
    describe_metadata_quorum DescribeQuorum                           the controller
    add_raft_voter           AddRaftVoter                             the controller
    remove_raft_voter        RemoveRaftVoter                          the controller

In KRaft, the controller that Metadata names is a broker: it forwards requests, since clients do not reach the controllers. With
bootstrap.controllers they do (KIP-919): describe_cluster then returns the controllers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple, cast

from kcli.client.admin.driver import AdminCore, answer_or_error, refused
from kcli.client.admin.error_sentences import kafka_error, outcome_error
from kcli.client.admin.operation import (
    METADATA_RETRIED,
    NOT_EXECUTED,
    TRIED_AGAIN,
    Call,
    Operation,
    Outcomes,
    RequestContext,
    Route,
    StepDone,
    run,
    run_one,
    value_of,
)
from kcli.client.errors import ClientError, KafkaError, KafkaTimeoutError, UnsupportedVersionError
from kcli.client.metadata import Node, controllers_request
from kcli.client.network_client import failure_error
from kcli.format.kafka_uuid import Uuid
from kcli.network.peer_request import Answer, PeerFailure
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ADD_RAFT_VOTER,
    API_KEYS,
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    DESCRIBE_QUORUM,
    METADATA,
    REMOVE_RAFT_VOTER,
    UNREGISTER_BROKER,
    UNREGISTER_CONTROLLER,
    UPDATE_FEATURES,
)
from kcli.protocol.message import Message

METADATA_TOPIC = "__cluster_metadata"
_VALIDATE_SINCE = 1
# A controller that is not the leader of the quorum, or not any more, has these for the partition, as in an election.
_QUORUM_RETRIED = TRIED_AGAIN | {
    error_codes.NOT_LEADER_OR_FOLLOWER,
    error_codes.LEADER_NOT_AVAILABLE,
    error_codes.BROKER_NOT_AVAILABLE,
}


class ClusterDescription(NamedTuple):
    """The brokers of a cluster, or its controllers with bootstrap.controllers; `controller_id` is -1 if it is not known.

    `fenced` are the ids of the brokers that are registered and do not run, if they were asked for.
    """

    cluster_id: str | None
    controller_id: int
    nodes: tuple[Node, ...]
    fenced: frozenset[int] = frozenset()


def reach_any_broker() -> Operation[int]:
    """Return the id of the first broker that answers at the address that it advertises. Raises KafkaTimeoutError.

    A cluster that answers at an address of bootstrap.servers may advertise others that do not lead to it from here.
    """

    def step(core: AdminCore, deadline_ms: int, done: StepDone) -> None:
        network = core.network
        began_ms = network.timer.clock_ms
        is_over = False

        def finish(result: int | ClientError, now_ms: int) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                deadline.cancel()
                done(result, now_ms)

        def expired(now_ms: int) -> None:
            where = f"the address that it advertises within {deadline_ms - began_ms} ms"
            reason = "; ".join(network.unready()) or network.failure_reason()
            finish(KafkaTimeoutError(f"no broker can be reached at {where}: {reason}"), now_ms)

        def ask(node_id: int, now_ms: int) -> None:
            if not is_over:
                left_ms = max(deadline_ms - now_ms, 1)
                network.send(node_id, METADATA, network.metadata.request, partial(answered, node_id), left_ms)

        def answered(node_id: int, answer: Answer, now_ms: int) -> None:
            if isinstance(answer, PeerFailure) and answer.is_lasting:
                finish(failure_error(answer, METADATA), now_ms)
            elif isinstance(answer, PeerFailure):
                network.timer.schedule(now_ms + network.config.retry_backoff_ms, partial(ask, node_id))
            else:
                finish(node_id, now_ms)

        def begin() -> None:
            for node_id in network.metadata.nodes:
                ask(node_id, network.timer.clock_ms)

        deadline = network.timer.schedule(deadline_ms, expired)
        core.when_updated(begin)

    return value_of(cast("int | ClientError", (yield step)))


class VersionRange(NamedTuple):
    """The levels of a feature, both included."""

    lowest: int
    highest: int


class FeatureMetadata(NamedTuple):
    """The finalized levels and their epoch (-1 if it is not known), and what the broker that answered supports."""

    finalized: dict[str, int]
    finalized_epoch: int
    supported: dict[str, VersionRange]


class UpgradeType(IntEnum):
    """What an update of a feature may do."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """The level that a feature shall have, 0 for none."""

    max_version_level: int
    upgrade_type: UpgradeType = UpgradeType.UPGRADE


class RaftEndpoint(NamedTuple):
    """A listener of a controller."""

    name: str
    host: str
    port: int


class ReplicaState(NamedTuple):
    """A voter or observer; the timestamps are in ms, -1 if they are not known."""

    replica_id: int
    directory_id: Uuid
    log_end_offset: int
    last_fetch_timestamp: int
    last_caught_up_timestamp: int


class QuorumInfo(NamedTuple):
    """The state of the metadata quorum; `nodes` has the listeners of the voters by id."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[ReplicaState, ...]
    observers: tuple[ReplicaState, ...]
    nodes: dict[int, tuple[RaftEndpoint, ...]]


# -------------------------------------------------------------------------------------------------------------------- nodes


def describe_cluster(*, include_fenced_brokers: bool = False) -> Operation[ClusterDescription]:
    """Return the brokers of the cluster, sorted by id, or its controllers with bootstrap.controllers. Raises KafkaError."""

    def request(_keys: Sequence[str], context: RequestContext) -> Message:
        if context.is_for_controller:
            return controllers_request(context.version)
        return API_KEYS[DESCRIBE_CLUSTER].request.new(include_fenced_brokers=include_fenced_brokers)

    try:
        answer = yield from run_one(Call(DESCRIBE_CLUSTER, Route.ANY, request, answer_or_error), "cluster")
    except UnsupportedVersionError as unsupported:
        if include_fenced_brokers:
            raise
        try:
            return (yield from _describe_by_metadata())
        except KafkaError as error:
            if error.code != error_codes.UNSUPPORTED_ENDPOINT_TYPE:
                raise
            raise unsupported from None  # a controller does not answer Metadata
    nodes = sorted(Node(one.broker_id, one.host, one.port, one.rack) for one in answer.brokers)
    fenced = frozenset(one.broker_id for one in answer.brokers if one.is_fenced)
    return ClusterDescription(answer.cluster_id, answer.controller_id, tuple(nodes), fenced)


def _describe_by_metadata() -> Operation[ClusterDescription]:
    def request(_keys: Sequence[str], _context: RequestContext) -> Message:
        return API_KEYS[METADATA].request.new(topics=[])

    answer = yield from run_one(Call(METADATA, Route.ANY, request, answer_or_error, retried=METADATA_RETRIED), "cluster")
    nodes = sorted(Node(one.node_id, one.host, one.port, one.rack) for one in answer.brokers)
    return ClusterDescription(answer.cluster_id, answer.controller_id, tuple(nodes))


def unregister_broker(broker_id: int) -> Operation[None]:
    """Remove the registration of a broker that does not run any more. Raises KafkaError."""

    def request(_keys: Sequence[str], _context: RequestContext) -> Message:
        return API_KEYS[UNREGISTER_BROKER].request.new(broker_id=broker_id)

    yield from run_one(Call(UNREGISTER_BROKER, Route.CONTROLLER, request, answer_or_error), "broker")


def unregister_controller(controller_id: int) -> Operation[None]:
    """Remove the registration of a controller that does not run any more (KIP-1312). Raises KafkaError.

    Raises UnsupportedVersionError before Kafka 4.4.
    """

    def request(_keys: Sequence[str], _context: RequestContext) -> Message:
        return API_KEYS[UNREGISTER_CONTROLLER].request.new(controller_id=controller_id)

    yield from run_one(Call(UNREGISTER_CONTROLLER, Route.CONTROLLER, request, answer_or_error), "controller")


def describe_api_versions() -> Operation[Outcomes[Node, dict[int, VersionRange]]]:
    """Return the versions of each API that each broker has, or each controller with bootstrap.controllers, by API key."""

    def read(keys: Sequence[int], answer: Message) -> Iterator[tuple[int, dict[int, VersionRange] | ClientError]]:
        versions = {one.api_key: VersionRange(one.min_version, one.max_version) for one in answer.api_keys}
        yield keys[0], outcome_error(answer.error_code) or versions

    found = yield from describe_cluster()
    call = Call(API_VERSIONS, Route.BROKER, _api_versions_request, read)
    outcomes = yield from run(call, [node.node_id for node in found.nodes])
    return {node: outcomes[node.node_id] for node in found.nodes}


def _api_versions_request(_keys: Sequence[object], _context: RequestContext) -> Message:
    return API_KEYS[API_VERSIONS].request.new(client_software_name="kcli", client_software_version="admin")


# ----------------------------------------------------------------------------------------------------------------- features


def describe_features() -> Operation[FeatureMetadata]:
    """Return the features of the cluster. Raises KafkaError."""
    answer = yield from run_one(Call(API_VERSIONS, Route.ANY, _api_versions_request, answer_or_error), "features")
    return FeatureMetadata(
        {one.name: one.max_version_level for one in answer.finalized_features},
        answer.finalized_features_epoch,
        {one.name: VersionRange(one.min_version, one.max_version) for one in answer.supported_features},
    )


def update_features(updates: Mapping[str, FeatureUpdate], *, validate_only: bool = False) -> Operation[Outcomes[str, None]]:
    """Set levels of features; `validate_only` checks and changes nothing."""

    def request(keys: Sequence[str], context: RequestContext) -> Message:
        kind = API_KEYS[UPDATE_FEATURES].request
        one = kind.classes["FeatureUpdateKey"]
        asked = []
        for name in keys:
            level, upgrade_type = updates[name]
            if context.version < _VALIDATE_SINCE:
                is_downgrade = upgrade_type is not UpgradeType.UPGRADE
                asked.append(one(feature=name, max_version_level=level, allow_downgrade=is_downgrade))
            else:
                asked.append(one(feature=name, max_version_level=level, upgrade_type=upgrade_type))
        return kind.new(timeout_ms=context.timeout_ms, feature_updates=asked, validate_only=validate_only)

    def read(keys: Sequence[str], answer: Message) -> Iterator[tuple[str, ClientError | None]]:
        if answer.error_code:
            yield from refused(keys, answer.error_code, answer.error_message)
            return
        for one in answer.results:
            yield one.feature, outcome_error(one.error_code, one.error_message)
        # From version 2 on all features are updated, or none; those that are named above keep their outcome.
        yield from ((key, None) for key in keys)

    return (yield from run(Call(UPDATE_FEATURES, Route.CONTROLLER, request, read), updates))


# ------------------------------------------------------------------------------------------------------------------- quorum


def describe_metadata_quorum() -> Operation[QuorumInfo]:
    """Return the state of the quorum of controllers. Raises KafkaError."""

    def request(_keys: Sequence[str], _context: RequestContext) -> Message:
        kind = API_KEYS[DESCRIBE_QUORUM].request
        partition = kind.classes["PartitionData"](partition_index=0)
        return kind.new(topics=[kind.classes["TopicData"](topic_name=METADATA_TOPIC, partitions=[partition])])

    return (
        yield from run_one(Call(DESCRIBE_QUORUM, Route.CONTROLLER, request, _read_quorum, retried=_QUORUM_RETRIED), "quorum")
    )


def _read_quorum(keys: Sequence[str], answer: Message) -> Iterator[tuple[str, QuorumInfo | ClientError]]:
    partitions = [one for topic in answer.topics if topic.topic_name == METADATA_TOPIC for one in topic.partitions]
    if answer.error_code:
        yield from refused(keys, answer.error_code, answer.error_message)
    elif len(partitions) != 1:
        yield keys[0], kafka_error(-1, f"the answer of the broker has {len(partitions)} metadata partitions, not one")
    elif partitions[0].error_code:
        yield from refused(keys, partitions[0].error_code, partitions[0].error_message)
    else:
        yield keys[0], _quorum_info(partitions[0], answer.nodes)


def _quorum_info(found: Message, listed: Iterable[Message]) -> QuorumInfo:
    nodes = {node.node_id: tuple(RaftEndpoint(one.name, one.host, one.port) for one in node.listeners) for node in listed}
    return QuorumInfo(
        found.leader_id,
        found.leader_epoch,
        found.high_watermark,
        tuple(map(_replica_state, found.current_voters)),
        tuple(map(_replica_state, found.observers)),
        nodes,
    )


def _replica_state(one: Message) -> ReplicaState:
    return ReplicaState(
        one.replica_id,
        Uuid(one.replica_directory_id),
        one.log_end_offset,
        one.last_fetch_timestamp,
        one.last_caught_up_timestamp,
    )


def add_raft_voter(
    voter_id: int, directory_id: Uuid, endpoints: Iterable[RaftEndpoint], *, cluster_id: str | None = None
) -> Operation[None]:
    """Add a controller to the voters of the quorum. Raises KafkaError."""
    listening = list(endpoints)

    def request(_keys: Sequence[str], context: RequestContext) -> Message:
        kind = API_KEYS[ADD_RAFT_VOTER].request
        one = kind.classes["Listener"]
        return kind.new(
            cluster_id=cluster_id,
            timeout_ms=context.timeout_ms,
            voter_id=voter_id,
            voter_directory_id=directory_id,
            listeners=[one(name=name, host=host, port=port) for name, host, port in listening],
        )

    yield from run_one(Call(ADD_RAFT_VOTER, Route.CONTROLLER, request, answer_or_error, retried=NOT_EXECUTED), "voter")


def remove_raft_voter(voter_id: int, directory_id: Uuid, *, cluster_id: str | None = None) -> Operation[None]:
    """Remove a controller from the voters of the quorum. Raises KafkaError."""

    def request(_keys: Sequence[str], _context: RequestContext) -> Message:
        return API_KEYS[REMOVE_RAFT_VOTER].request.new(
            cluster_id=cluster_id, voter_id=voter_id, voter_directory_id=directory_id
        )

    yield from run_one(Call(REMOVE_RAFT_VOTER, Route.CONTROLLER, request, answer_or_error, retried=NOT_EXECUTED), "voter")
