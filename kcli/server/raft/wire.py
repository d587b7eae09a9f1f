"""Raft's requests and answers as messages of the wire protocol, both ways (Kafka: RaftUtil).

    API                 versions  the wire has it, in addition to the values of kcli.server.raft.messages
    ------------------  --------  ------------------------------------------------------------------------------------
    Vote                0 to 2    from 1 on: directory ids, the receiver's key, endpoints. 2: PreVote
    BeginQuorumEpoch    0 to 1    1: the receiver's key, endpoints
    EndQuorumEpoch      0 to 1    0: successors as ids; 1: with directory ids, endpoints
    Fetch               4 to 18   topic ids from 13 on: a fetch of the metadata log has at least that. From 17 on: the
                                  replica's directory id, endpoints. 18: the replica's high watermark
    FetchSnapshot       0 to 1    1: the replica's directory id, endpoints
    AddRaftVoter        0 to 1    1: AckWhenCommitted
    RemoveRaftVoter     0
    UpdateRaftVoter     0
    ApiVersions         4 to 5    as the probe of a voter that is added: earlier versions hide kraft.version (KAFKA-17492)

A request for anything but partition 0 of the metadata topic is answered here. Kafka checks the cluster id first, so a request
that fails both checks is answered as of another cluster. A PreVote in version 0 or 1 cannot be encoded, nor an
AddRaftVoter of version 0 that is to be answered before the commit: kcli.network.peers answers them with UNSUPPORTED_VERSION, as
Kafka's client does. It makes a prospective candidate a candidate.

An answer names the endpoint of the leader on one listener only: that on which the request came, or to which it was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

from kcli import __version__
from kcli.format.file_names import METADATA_TOPIC
from kcli.format.kafka_uuid import Uuid
from kcli.network.peer_connection import CLIENT_SOFTWARE_NAME
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ADD_RAFT_VOTER,
    API_KEYS,
    API_VERSIONS,
    BEGIN_QUORUM_EPOCH,
    END_QUORUM_EPOCH,
    FETCH,
    FETCH_SNAPSHOT,
    REMOVE_RAFT_VOTER,
    UPDATE_RAFT_VOTER,
    VOTE,
)
from kcli.protocol.message import Message
from kcli.protocol.message_errors import DecodeError, NotInVersionError
from kcli.server.features import KRAFT_VERSION
from kcli.server.raft.messages import (
    NO_NODE,
    TOP_LEVEL_ERRORS,
    AddRaftVoter,
    AnyAnswer,
    ApiVersionsProbe,
    ApiVersionsProbeAnswer,
    BeginQuorumEpoch,
    BeginQuorumEpochAnswer,
    ChangeVotersAnswer,
    Endpoints,
    EndQuorumEpoch,
    EndQuorumEpochAnswer,
    EpochEnd,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    FetchSnapshotAnswer,
    ListenerEndpoint,
    RemoveRaftVoter,
    ReplicaKey,
    Request,
    SnapshotId,
    UpdateRaftVoter,
    UpdateRaftVoterAnswer,
    Vote,
    VoteAnswer,
)
from kcli.server.raft.metadata_log import METADATA_TOPIC_ID

_NO_EPOCH = -1
# The first versions with the endpoint of the leader in an answer, by API.
_ENDPOINTS_SINCE = {VOTE: 1, BEGIN_QUORUM_EPOCH: 1, END_QUORUM_EPOCH: 1, FETCH: 17, FETCH_SNAPSHOT: 1}
_PRE_VOTE_SINCE = 2
_CANDIDATES_SINCE = 1
_REPLICA_STATE_SINCE = 15
_KRAFT_VERSION_SHOWN_SINCE = 4


class Wire(NamedTuple):
    """What the translation of an API needs to know: the cluster, the version and the listener of a connection."""

    cluster_id: str
    version: int
    listener: str


def read_request(api_key: int, message: Message, wire: Wire) -> Request | Message:
    """Return the request in a message of another node or a tool, or the response that refuses it."""
    return _READ_REQUEST[api_key](message, wire)


def write_answer(request: Request, answer: AnyAnswer, wire: Wire) -> Message:
    """Return the response that has the answer to a request."""
    return _WRITE_ANSWER[type(request)](request, answer, wire)


def api_key_of(request: Request) -> int:
    """Return the API of a request."""
    return _API_KEY[type(request)]


def write_request(request: Request, version: int) -> Message:
    """Return the message of a request to another node. Raises NotInVersionError, or its encoder does."""
    return _WRITE_REQUEST[type(request)](request, version)


def read_answer(request: Request, response: Message, listener: str) -> AnyAnswer:
    """Return the answer in a response to a request that was sent to a listener. Raises DecodeError for another partition's."""
    return _READ_ANSWER[type(request)](response, listener)


# -------------------------------------------------------------------------------------------------- parts of all messages


def _voter(node_id: int, directory_id: Uuid) -> ReplicaKey | None:
    """Return the voter to which a request is addressed, None if it does not say."""
    return None if node_id < 0 else ReplicaKey(node_id, directory_id)


def _endpoints(listeners: list[Message]) -> Endpoints:
    return tuple(ListenerEndpoint(at.name.upper(), at.host, at.port) for at in listeners)


def _leader_endpoint(response: Message, leader_id: int, listener: str) -> Endpoints:
    """Return the endpoint of the leader in an answer, as one of the listener to which the request was sent."""
    return tuple(
        ListenerEndpoint(listener.upper(), at.host, at.port) for at in response.node_endpoints if at.node_id == leader_id
    )


def _set_endpoint(api_key: int, response: Message, leader_id: int, endpoints: Endpoints, wire: Wire) -> None:
    """Name the leader's endpoint on the listener of the request, if the version has it."""
    if wire.version < _ENDPOINTS_SINCE[api_key] or leader_id < 0:
        return
    struct = API_KEYS[api_key].response.classes["NodeEndpoint"]
    response.node_endpoints = [
        struct(node_id=leader_id, host=at.host, port=at.port) for at in endpoints if at.listener == wire.listener.upper()
    ][:1]


def _partition_of(message: Message, partition: str = "partition_index") -> Message | None:
    """Return the only partition of a message, None if it is not that of the metadata log."""
    if len(message.topics) != 1 or message.topics[0].topic_name != METADATA_TOPIC or len(message.topics[0].partitions) != 1:
        return None
    found: Message = message.topics[0].partitions[0]
    return found if getattr(found, partition) == 0 else None


def _refusal(api_key: int, message: Message, wire: Wire, error: int = error_codes.INVALID_REQUEST) -> Message:
    """Return the response to a request that is not for the metadata log."""
    is_foreign = message.cluster_id not in (None, wire.cluster_id)
    return API_KEYS[api_key].response.new(error_code=error_codes.INCONSISTENT_CLUSTER_ID if is_foreign else error)


def _not_of_the_log(api_key: int) -> DecodeError:
    return DecodeError(f"the answer to {API_KEYS[api_key].name} is not that of {METADATA_TOPIC}-0")


def _request_of_partition(api_key: int, partition: Message, **fields: object) -> Message:
    request = API_KEYS[api_key].request
    return request.new(topics=[request.classes["TopicData"](topic_name=METADATA_TOPIC, partitions=[partition])], **fields)


def _answer_of_partition(
    api_key: int, wire: Wire, error: int, leader_id: int, epoch: int, endpoints: Endpoints, **fields: object
) -> Message:
    """Return the response of Vote, BeginQuorumEpoch or EndQuorumEpoch."""
    if error in TOP_LEVEL_ERRORS:
        return API_KEYS[api_key].response.new(error_code=error)
    response = API_KEYS[api_key].response
    partition = response.classes["PartitionData"](
        partition_index=0, error_code=error, leader_id=leader_id, leader_epoch=epoch, **fields
    )
    made = response.new(topics=[response.classes["TopicData"](topic_name=METADATA_TOPIC, partitions=[partition])])
    _set_endpoint(api_key, made, leader_id, endpoints, wire)
    return made


def _partition_answered(api_key: int, response: Message) -> Message:
    """Return the partition of such a response. Raises DecodeError."""
    partition = _partition_of(response)
    if partition is None:
        raise _not_of_the_log(api_key)
    return partition


# ------------------------------------------------------------------------------------------------------------------ Vote


def _read_vote(message: Message, wire: Wire) -> Request | Message:
    partition = _partition_of(message)
    if partition is None:
        return _refusal(VOTE, message, wire)
    return Vote(
        message.cluster_id,
        ReplicaKey(partition.replica_id, partition.replica_directory_id),
        partition.replica_epoch,
        _voter(message.voter_id, partition.voter_directory_id),
        partition.last_offset_epoch,
        partition.last_offset,
        partition.pre_vote,
    )


def _write_vote(request: Request, version: int) -> Message:
    vote = cast(Vote, request)
    if vote.is_pre_vote and version < _PRE_VOTE_SINCE:
        raise NotInVersionError(f"version {version} of Vote has no PreVote")
    voter = vote.voter or ReplicaKey(NO_NODE)
    partition = API_KEYS[VOTE].request.classes["PartitionData"](
        partition_index=0,
        replica_epoch=vote.epoch,
        replica_id=vote.candidate.node_id,
        replica_directory_id=vote.candidate.directory_id,
        voter_directory_id=voter.directory_id,
        last_offset_epoch=vote.last_epoch,
        last_offset=vote.end_offset,
        pre_vote=vote.is_pre_vote,
    )
    return _request_of_partition(VOTE, partition, cluster_id=vote.cluster_id, voter_id=voter.node_id)


def _write_vote_answer(request: Request, answer: AnyAnswer, wire: Wire) -> Message:
    vote = cast(VoteAnswer, answer)
    return _answer_of_partition(
        VOTE, wire, vote.error, vote.leader_id, vote.epoch, vote.endpoints, vote_granted=vote.is_granted
    )


def _read_vote_answer(response: Message, listener: str) -> AnyAnswer:
    if response.error_code:
        return VoteAnswer(response.error_code, _NO_EPOCH, NO_NODE, False)
    partition = _partition_answered(VOTE, response)
    leader_id = partition.leader_id
    endpoints = _leader_endpoint(response, leader_id, listener)
    return VoteAnswer(partition.error_code, partition.leader_epoch, leader_id, partition.vote_granted, endpoints)


# ------------------------------------------------------------------------------------------------------ BeginQuorumEpoch


def _read_begin(message: Message, wire: Wire) -> Request | Message:
    partition = _partition_of(message)
    if partition is None:
        return _refusal(BEGIN_QUORUM_EPOCH, message, wire)
    return BeginQuorumEpoch(
        message.cluster_id,
        partition.leader_id,
        partition.leader_epoch,
        _voter(message.voter_id, partition.voter_directory_id),
        _endpoints(message.leader_endpoints),
    )


def _write_begin(request: Request, version: int) -> Message:
    begin = cast(BeginQuorumEpoch, request)
    classes = API_KEYS[BEGIN_QUORUM_EPOCH].request.classes
    voter = begin.voter or ReplicaKey(NO_NODE)
    partition = classes["PartitionData"](
        partition_index=0, voter_directory_id=voter.directory_id, leader_id=begin.leader_id, leader_epoch=begin.epoch
    )
    endpoints = [classes["LeaderEndpoint"](name=at.listener, host=at.host, port=at.port) for at in begin.endpoints]
    return _request_of_partition(
        BEGIN_QUORUM_EPOCH, partition, cluster_id=begin.cluster_id, voter_id=voter.node_id, leader_endpoints=endpoints
    )


def _write_begin_answer(request: Request, answer: AnyAnswer, wire: Wire) -> Message:
    begin = cast(BeginQuorumEpochAnswer, answer)
    return _answer_of_partition(BEGIN_QUORUM_EPOCH, wire, begin.error, begin.leader_id, begin.epoch, begin.endpoints)


def _read_begin_answer(response: Message, listener: str) -> AnyAnswer:
    if response.error_code:
        return BeginQuorumEpochAnswer(response.error_code, _NO_EPOCH, NO_NODE)
    partition = _partition_answered(BEGIN_QUORUM_EPOCH, response)
    endpoints = _leader_endpoint(response, partition.leader_id, listener)
    return BeginQuorumEpochAnswer(partition.error_code, partition.leader_epoch, partition.leader_id, endpoints)


# -------------------------------------------------------------------------------------------------------- EndQuorumEpoch


def _read_end(message: Message, wire: Wire) -> Request | Message:
    partition = _partition_of(message)
    if partition is None:
        return _refusal(END_QUORUM_EPOCH, message, wire)
    successors = [ReplicaKey(node_id) for node_id in partition.preferred_successors]
    if wire.version >= _CANDIDATES_SINCE:
        successors = [ReplicaKey(at.candidate_id, at.candidate_directory_id) for at in partition.preferred_candidates]
    endpoints = _endpoints(message.leader_endpoints)
    return EndQuorumEpoch(message.cluster_id, partition.leader_id, partition.leader_epoch, tuple(successors), endpoints)


def _write_end(request: Request, version: int) -> Message:
    end = cast(EndQuorumEpoch, request)
    classes = API_KEYS[END_QUORUM_EPOCH].request.classes
    partition = classes["PartitionData"](
        partition_index=0,
        leader_id=end.leader_id,
        leader_epoch=end.epoch,
        preferred_successors=[at.node_id for at in end.preferred_successors],
        preferred_candidates=[
            classes["ReplicaInfo"](candidate_id=at.node_id, candidate_directory_id=at.directory_id)
            for at in end.preferred_successors
        ],
    )
    endpoints = [classes["LeaderEndpoint"](name=at.listener, host=at.host, port=at.port) for at in end.endpoints]
    return _request_of_partition(END_QUORUM_EPOCH, partition, cluster_id=end.cluster_id, leader_endpoints=endpoints)


def _write_end_answer(request: Request, answer: AnyAnswer, wire: Wire) -> Message:
    end = cast(EndQuorumEpochAnswer, answer)
    return _answer_of_partition(END_QUORUM_EPOCH, wire, end.error, end.leader_id, end.epoch, end.endpoints)


def _read_end_answer(response: Message, listener: str) -> AnyAnswer:
    if response.error_code:
        return EndQuorumEpochAnswer(response.error_code, _NO_EPOCH, NO_NODE)
    partition = _partition_answered(END_QUORUM_EPOCH, response)
    endpoints = _leader_endpoint(response, partition.leader_id, listener)
    return EndQuorumEpochAnswer(partition.error_code, partition.leader_epoch, partition.leader_id, endpoints)


# ----------------------------------------------------------------------------------------------------------------- Fetch


def _read_fetch(message: Message, wire: Wire) -> Request | Message:
    topics = message.topics
    is_of_the_log = len(topics) == 1 and topics[0].topic_id == METADATA_TOPIC_ID and len(topics[0].partitions) == 1
    if not is_of_the_log or topics[0].partitions[0].partition != 0:
        return _refusal(FETCH, message, wire)
    partition = topics[0].partitions[0]
    replica_id = message.replica_state.replica_id if wire.version >= _REPLICA_STATE_SINCE else message.replica_id
    return Fetch(
        message.cluster_id,
        ReplicaKey(replica_id, partition.replica_directory_id),
        partition.current_leader_epoch,
        partition.fetch_offset,
        partition.last_fetched_epoch,
        partition.high_watermark,
        message.max_wait_ms,
        message.max_bytes,
    )


def _write_fetch(request: Request, version: int) -> Message:
    fetch = cast(Fetch, request)
    api_request = API_KEYS[FETCH].request
    classes = api_request.classes
    partition = classes["FetchPartition"](
        partition=0,
        current_leader_epoch=fetch.epoch,
        fetch_offset=fetch.fetch_offset,
        last_fetched_epoch=fetch.last_fetched_epoch,
        replica_directory_id=fetch.replica.directory_id,
        high_watermark=fetch.high_watermark,
    )
    topic = classes["FetchTopic"](topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])
    made = api_request.new(
        cluster_id=fetch.cluster_id, max_wait_ms=fetch.max_wait_ms, max_bytes=fetch.max_bytes, topics=[topic]
    )
    if version >= _REPLICA_STATE_SINCE:
        made.replica_state = classes["ReplicaState"](replica_id=fetch.replica.node_id)
    else:
        made.replica_id = fetch.replica.node_id
    return made


def _write_fetch_answer(request: Request, answer: AnyAnswer, wire: Wire) -> Message:
    fetch = cast(FetchAnswer, answer)
    response = API_KEYS[FETCH].response
    classes = response.classes
    if fetch.error in TOP_LEVEL_ERRORS:
        return response.new(error_code=fetch.error)
    partition = classes["PartitionData"](
        partition_index=0,
        error_code=fetch.error,
        high_watermark=fetch.high_watermark,
        log_start_offset=fetch.log_start_offset,
        current_leader=classes["LeaderIdAndEpoch"](leader_id=fetch.leader_id, leader_epoch=fetch.epoch),
        records=b"" if fetch.records is None else fetch.records,
    )
    if fetch.diverging is not None:
        epoch, end_offset = fetch.diverging
        partition.diverging_epoch = classes["EpochEndOffset"](epoch=epoch, end_offset=end_offset)
    if fetch.snapshot is not None:
        partition.snapshot_id = classes["SnapshotId"](end_offset=fetch.snapshot.end_offset, epoch=fetch.snapshot.epoch)
    topic = classes["FetchableTopicResponse"](topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])
    made = response.new(responses=[topic])
    _set_endpoint(FETCH, made, fetch.leader_id, fetch.endpoints, wire)
    return made


def _read_fetch_answer(response: Message, listener: str) -> AnyAnswer:
    if response.error_code:
        return FetchAnswer(response.error_code, _NO_EPOCH, NO_NODE)
    topics = response.responses
    if len(topics) != 1 or topics[0].topic_id != METADATA_TOPIC_ID or len(topics[0].partitions) != 1:
        raise _not_of_the_log(FETCH)
    partition = topics[0].partitions[0]
    if partition.partition_index != 0:
        raise _not_of_the_log(FETCH)
    leader, diverging, snapshot = partition.current_leader, partition.diverging_epoch, partition.snapshot_id
    return FetchAnswer(
        partition.error_code,
        leader.leader_epoch,
        leader.leader_id,
        _leader_endpoint(response, leader.leader_id, listener),
        partition.high_watermark,
        partition.log_start_offset,
        EpochEnd(diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
        SnapshotId(snapshot.end_offset, snapshot.epoch) if snapshot.epoch >= 0 or snapshot.end_offset >= 0 else None,
        bytes(partition.records) if partition.records else None,
    )


# --------------------------------------------------------------------------------------------------------- FetchSnapshot


def _read_fetch_snapshot(message: Message, wire: Wire) -> Request | Message:
    found = [(topic.name, partition) for topic in message.topics for partition in topic.partitions]
    at = next((partition for name, partition in found if name == METADATA_TOPIC and partition.partition == 0), None)
    if at is None:
        return _refuse_fetch_snapshot(message, wire)
    return FetchSnapshot(
        message.cluster_id,
        ReplicaKey(message.replica_id, at.replica_directory_id),
        at.current_leader_epoch,
        SnapshotId(at.snapshot_id.end_offset, at.snapshot_id.epoch),
        at.position,
        message.max_bytes,
    )


def _refuse_fetch_snapshot(message: Message, wire: Wire) -> Message:
    """Answer a FetchSnapshot of other partitions, as Kafka 4.4 does also for one of none."""
    response = API_KEYS[FETCH_SNAPSHOT].response
    if message.cluster_id not in (None, wire.cluster_id):
        return response.new(error_code=error_codes.INCONSISTENT_CLUSTER_ID)
    topics = [
        response.classes["TopicSnapshot"](
            name=topic.name,
            partitions=[
                response.classes["PartitionSnapshot"](index=at.partition, error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION)
                for at in topic.partitions
            ],
        )
        for topic in message.topics
    ]
    return response.new(topics=topics)


def _write_fetch_snapshot(request: Request, version: int) -> Message:
    fetch = cast(FetchSnapshot, request)
    api_request = API_KEYS[FETCH_SNAPSHOT].request
    classes = api_request.classes
    partition = classes["PartitionSnapshot"](
        partition=0,
        current_leader_epoch=fetch.epoch,
        snapshot_id=classes["SnapshotId"](end_offset=fetch.snapshot.end_offset, epoch=fetch.snapshot.epoch),
        position=fetch.position,
        replica_directory_id=fetch.replica.directory_id,
    )
    topics = [classes["TopicSnapshot"](name=METADATA_TOPIC, partitions=[partition])]
    return api_request.new(
        cluster_id=fetch.cluster_id, replica_id=fetch.replica.node_id, max_bytes=fetch.max_bytes, topics=topics
    )


def _write_fetch_snapshot_answer(request: Request, answer: AnyAnswer, wire: Wire) -> Message:
    fetch = cast(FetchSnapshotAnswer, answer)
    response = API_KEYS[FETCH_SNAPSHOT].response
    classes = response.classes
    if fetch.error in TOP_LEVEL_ERRORS:
        return response.new(error_code=fetch.error)
    partition = classes["PartitionSnapshot"](
        index=0,
        error_code=fetch.error,
        snapshot_id=classes["SnapshotId"](end_offset=fetch.snapshot.end_offset, epoch=fetch.snapshot.epoch),
        current_leader=classes["LeaderIdAndEpoch"](leader_id=fetch.leader_id, leader_epoch=fetch.epoch),
        size=fetch.size,
        position=fetch.position,
        unaligned_records=b"" if fetch.data is None else fetch.data,
    )
    made = response.new(topics=[classes["TopicSnapshot"](name=METADATA_TOPIC, partitions=[partition])])
    _set_endpoint(FETCH_SNAPSHOT, made, fetch.leader_id, fetch.endpoints, wire)
    return made


def _read_fetch_snapshot_answer(response: Message, listener: str) -> AnyAnswer:
    if response.error_code:
        return FetchSnapshotAnswer(response.error_code, _NO_EPOCH, NO_NODE)
    topics = response.topics
    if len(topics) != 1 or topics[0].name != METADATA_TOPIC or len(topics[0].partitions) != 1:
        raise _not_of_the_log(FETCH_SNAPSHOT)
    partition = topics[0].partitions[0]
    if partition.index != 0:
        raise _not_of_the_log(FETCH_SNAPSHOT)
    leader, snapshot = partition.current_leader, partition.snapshot_id
    return FetchSnapshotAnswer(
        partition.error_code,
        leader.leader_epoch,
        leader.leader_id,
        _leader_endpoint(response, leader.leader_id, listener),
        SnapshotId(snapshot.end_offset, snapshot.epoch),
        partition.size,
        partition.position,
        bytes(partition.unaligned_records) if partition.unaligned_records else None,
    )


# ------------------------------------------------------------------------------------------------------ changes of voters


def _listeners(api_key: int, endpoints: Endpoints) -> list[Message]:
    struct = API_KEYS[api_key].request.classes["Listener"]
    return [struct(name=at.listener, host=at.host, port=at.port) for at in endpoints]


def _read_add(message: Message, wire: Wire) -> Request | Message:
    voter, endpoints = ReplicaKey(message.voter_id, message.voter_directory_id), _endpoints(message.listeners)
    return AddRaftVoter(message.cluster_id, voter, endpoints, message.timeout_ms, message.ack_when_committed)


def _write_add(request: Request, version: int) -> Message:
    add = cast(AddRaftVoter, request)
    return API_KEYS[ADD_RAFT_VOTER].request.new(
        cluster_id=add.cluster_id,
        timeout_ms=add.timeout_ms,
        voter_id=add.voter.node_id,
        voter_directory_id=add.voter.directory_id,
        listeners=_listeners(ADD_RAFT_VOTER, add.endpoints),
        ack_when_committed=add.is_acknowledged_when_committed,
    )


def _read_remove(message: Message, wire: Wire) -> Request | Message:
    return RemoveRaftVoter(message.cluster_id, ReplicaKey(message.voter_id, message.voter_directory_id))


def _write_remove(request: Request, version: int) -> Message:
    remove = cast(RemoveRaftVoter, request)
    voter = remove.voter
    return API_KEYS[REMOVE_RAFT_VOTER].request.new(
        cluster_id=remove.cluster_id, voter_id=voter.node_id, voter_directory_id=voter.directory_id
    )


def _write_change_answer(request: Request, answer: AnyAnswer, wire: Wire) -> Message:
    change = cast(ChangeVotersAnswer, answer)
    return API_KEYS[api_key_of(request)].response.new(error_code=change.error, error_message=change.message or None)


def _read_change_answer(response: Message, listener: str) -> AnyAnswer:
    return ChangeVotersAnswer(response.error_code, response.error_message or "")


def _read_update(message: Message, wire: Wire) -> Request | Message:
    levels = message.kraft_version_feature
    return UpdateRaftVoter(
        message.cluster_id,
        message.current_leader_epoch,
        ReplicaKey(message.voter_id, message.voter_directory_id),
        _endpoints(message.listeners),
        levels.min_supported_version,
        levels.max_supported_version,
    )


def _write_update(request: Request, version: int) -> Message:
    update = cast(UpdateRaftVoter, request)
    api_request = API_KEYS[UPDATE_RAFT_VOTER].request
    levels = api_request.classes["KRaftVersionFeature"](
        min_supported_version=update.lowest_kraft_version, max_supported_version=update.highest_kraft_version
    )
    return api_request.new(
        cluster_id=update.cluster_id,
        current_leader_epoch=update.epoch,
        voter_id=update.voter.node_id,
        voter_directory_id=update.voter.directory_id,
        listeners=_listeners(UPDATE_RAFT_VOTER, update.endpoints),
        kraft_version_feature=levels,
    )


def _write_update_answer(request: Request, answer: AnyAnswer, wire: Wire) -> Message:
    update = cast(UpdateRaftVoterAnswer, answer)
    response = API_KEYS[UPDATE_RAFT_VOTER].response
    at = next((at for at in update.endpoints if at.listener == wire.listener.upper()), ListenerEndpoint("", "", 0))
    leader = response.classes["CurrentLeader"](
        leader_id=update.leader_id, leader_epoch=update.epoch, host=at.host, port=at.port
    )
    return response.new(error_code=update.error, current_leader=leader)


def _read_update_answer(response: Message, listener: str) -> AnyAnswer:
    leader = response.current_leader
    endpoints = (ListenerEndpoint(listener.upper(), leader.host, leader.port),) if leader.host else ()
    return UpdateRaftVoterAnswer(response.error_code, leader.leader_epoch, leader.leader_id, endpoints)


# ----------------------------------------------------------------------------------------------------------- ApiVersions


def _write_probe(request: Request, version: int) -> Message:
    if version < _KRAFT_VERSION_SHOWN_SINCE:
        raise NotInVersionError(f"version {version} of ApiVersions does not show kraft.version")
    return API_KEYS[API_VERSIONS].request.new(client_software_name=CLIENT_SOFTWARE_NAME, client_software_version=__version__)


def _read_probe_answer(response: Message, listener: str) -> AnyAnswer:
    for feature in response.supported_features:
        if feature.name == KRAFT_VERSION:
            return ApiVersionsProbeAnswer(response.error_code, feature.min_version, feature.max_version)
    return ApiVersionsProbeAnswer(response.error_code, 0, 0)


_API_KEY: dict[type[Request], int] = {
    Vote: VOTE,
    BeginQuorumEpoch: BEGIN_QUORUM_EPOCH,
    EndQuorumEpoch: END_QUORUM_EPOCH,
    Fetch: FETCH,
    FetchSnapshot: FETCH_SNAPSHOT,
    AddRaftVoter: ADD_RAFT_VOTER,
    RemoveRaftVoter: REMOVE_RAFT_VOTER,
    UpdateRaftVoter: UPDATE_RAFT_VOTER,
    ApiVersionsProbe: API_VERSIONS,
}
_READ_REQUEST: dict[int, Callable[[Message, Wire], Request | Message]] = {
    VOTE: _read_vote,
    BEGIN_QUORUM_EPOCH: _read_begin,
    END_QUORUM_EPOCH: _read_end,
    FETCH: _read_fetch,
    FETCH_SNAPSHOT: _read_fetch_snapshot,
    ADD_RAFT_VOTER: _read_add,
    REMOVE_RAFT_VOTER: _read_remove,
    UPDATE_RAFT_VOTER: _read_update,
}
_WRITE_ANSWER: dict[type[Request], Callable[[Request, AnyAnswer, Wire], Message]] = {
    Vote: _write_vote_answer,
    BeginQuorumEpoch: _write_begin_answer,
    EndQuorumEpoch: _write_end_answer,
    Fetch: _write_fetch_answer,
    FetchSnapshot: _write_fetch_snapshot_answer,
    AddRaftVoter: _write_change_answer,
    RemoveRaftVoter: _write_change_answer,
    UpdateRaftVoter: _write_update_answer,
}
_WRITE_REQUEST: dict[type[Request], Callable[[Request, int], Message]] = {
    Vote: _write_vote,
    BeginQuorumEpoch: _write_begin,
    EndQuorumEpoch: _write_end,
    Fetch: _write_fetch,
    FetchSnapshot: _write_fetch_snapshot,
    AddRaftVoter: _write_add,
    RemoveRaftVoter: _write_remove,
    UpdateRaftVoter: _write_update,
    ApiVersionsProbe: _write_probe,
}
_READ_ANSWER: dict[type[Request], Callable[[Message, str], AnyAnswer]] = {
    Vote: _read_vote_answer,
    BeginQuorumEpoch: _read_begin_answer,
    EndQuorumEpoch: _read_end_answer,
    Fetch: _read_fetch_answer,
    FetchSnapshot: _read_fetch_snapshot_answer,
    AddRaftVoter: _read_change_answer,
    RemoveRaftVoter: _read_change_answer,
    UpdateRaftVoter: _read_update_answer,
    ApiVersionsProbe: _read_probe_answer,
}
RAFT_APIS = frozenset(_READ_REQUEST)
