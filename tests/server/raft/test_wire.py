"""Protects the requests and answers of raft on the wire: what one node writes in any version, another reads as the same, less
what the version does not have; requests for other partitions and clusters get Kafka's errors.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format.file_names import METADATA_TOPIC
from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, API_VERSIONS, END_QUORUM_EPOCH, FETCH, FETCH_SNAPSHOT, VOTE
from kcli.protocol.message import Message
from kcli.protocol.message_errors import DecodeError, NotInVersionError
from kcli.server.raft.messages import (
    HIGH_WATERMARK_NOT_SENT,
    AddRaftVoter,
    AnyAnswer,
    ApiVersionsProbe,
    ApiVersionsProbeAnswer,
    BeginQuorumEpoch,
    BeginQuorumEpochAnswer,
    ChangeVotersAnswer,
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
from kcli.server.raft.wire import RAFT_APIS, Wire, api_key_of, read_answer, read_request, write_answer, write_request

CLUSTER = "a-cluster"
NODES = st.integers(0, 2**31 - 1)
EPOCHS = st.integers(0, 2**31 - 1)
OFFSETS = st.integers(0, 2**63 - 1)
DIRECTORIES = st.builds(Uuid, st.binary(min_size=16, max_size=16))
KEYS = st.builds(ReplicaKey, NODES, DIRECTORIES)
CLUSTERS = st.sampled_from([None, CLUSTER])
ENDPOINTS = st.lists(
    st.builds(ListenerEndpoint, st.sampled_from(["CONTROLLER", "CONTROLLER_2"]), st.sampled_from(["a", "::1"]), st.just(9093)),
    max_size=2,
    unique_by=lambda at: at.listener,
).map(tuple)
SNAPSHOTS = st.builds(SnapshotId, OFFSETS, EPOCHS)
BYTES = st.one_of(st.none(), st.binary(min_size=1, max_size=20))
VOTES = st.builds(Vote, CLUSTERS, KEYS, EPOCHS, st.one_of(st.none(), KEYS), EPOCHS, OFFSETS, st.booleans())
REQUESTS = st.one_of(
    VOTES,
    st.builds(BeginQuorumEpoch, CLUSTERS, NODES, EPOCHS, st.one_of(st.none(), KEYS), ENDPOINTS),
    st.builds(EndQuorumEpoch, CLUSTERS, NODES, EPOCHS, st.lists(KEYS, max_size=3).map(tuple), ENDPOINTS),
    st.builds(Fetch, CLUSTERS, KEYS, EPOCHS, OFFSETS, EPOCHS, OFFSETS, NODES, NODES),
    st.builds(FetchSnapshot, CLUSTERS, KEYS, EPOCHS, SNAPSHOTS, OFFSETS, NODES),
    st.builds(AddRaftVoter, CLUSTERS, KEYS, ENDPOINTS, NODES, st.booleans()),
    st.builds(RemoveRaftVoter, CLUSTERS, KEYS),
    st.builds(UpdateRaftVoter, CLUSTERS, EPOCHS, KEYS, ENDPOINTS, st.integers(0, 5), st.integers(0, 5)),
)
# Errors of the partition, and two of the whole answer.
OF_ALL = (error_codes.INCONSISTENT_CLUSTER_ID, error_codes.CLUSTER_AUTHORIZATION_FAILED)
ERRORS = st.sampled_from([0, error_codes.FENCED_LEADER_EPOCH, *OF_ALL])
ANSWERS: dict[type[Request], st.SearchStrategy[AnyAnswer]] = {
    Vote: st.builds(VoteAnswer, ERRORS, EPOCHS, NODES, st.booleans(), ENDPOINTS),
    BeginQuorumEpoch: st.builds(BeginQuorumEpochAnswer, ERRORS, EPOCHS, NODES, ENDPOINTS),
    EndQuorumEpoch: st.builds(EndQuorumEpochAnswer, ERRORS, EPOCHS, NODES, ENDPOINTS),
    Fetch: st.builds(
        FetchAnswer,
        ERRORS,
        EPOCHS,
        NODES,
        ENDPOINTS,
        OFFSETS,
        OFFSETS,
        st.one_of(st.none(), st.builds(EpochEnd, EPOCHS, OFFSETS)),
        st.one_of(st.none(), SNAPSHOTS),
        BYTES,
    ),
    FetchSnapshot: st.builds(FetchSnapshotAnswer, ERRORS, EPOCHS, NODES, ENDPOINTS, SNAPSHOTS, OFFSETS, OFFSETS, BYTES),
    AddRaftVoter: st.builds(ChangeVotersAnswer, ERRORS, st.sampled_from(["", "a reason"])),
    RemoveRaftVoter: st.builds(ChangeVotersAnswer, ERRORS, st.sampled_from(["", "a reason"])),
    UpdateRaftVoter: st.builds(UpdateRaftVoterAnswer, ERRORS, EPOCHS, NODES, ENDPOINTS),
}
# The first version with a topic id: a fetch of the metadata log has at least that.
FETCH_SINCE = 13
NAMED_ENDPOINTS_SINCE = {FETCH: 17, 82: 0}


def sent(message: Message, api_key: int, side: str, version: int) -> Message:
    """What the other node decodes."""
    api = API_KEYS[api_key]
    kind = api.request if side == "request" else api.response
    return kind.decode(kind.encode(message, version), version)[0]


def versions_of(request: Request) -> range:
    api = API_KEYS[api_key_of(request)]
    return range(FETCH_SINCE if api.key == FETCH else api.lowest_version, api.highest_version + 1)


def without_directory(key: ReplicaKey | None) -> ReplicaKey | None:
    return None if key is None else ReplicaKey(key.node_id)


def as_read(request: Request, version: int) -> Request:
    """A request less what its version does not have."""
    if isinstance(request, Vote) and version == 0:
        return request._replace(candidate=ReplicaKey(request.candidate.node_id), voter=None)
    if isinstance(request, BeginQuorumEpoch) and version == 0:
        return request._replace(voter=None, endpoints=())
    if isinstance(request, EndQuorumEpoch) and version == 0:
        ids = tuple(ReplicaKey(key.node_id) for key in request.preferred_successors)
        return request._replace(preferred_successors=ids, endpoints=())
    if isinstance(request, Fetch):
        if version < 17:
            request = request._replace(replica=ReplicaKey(request.replica.node_id))
        return request if version >= 18 else request._replace(high_watermark=HIGH_WATERMARK_NOT_SENT)
    if isinstance(request, FetchSnapshot) and version == 0:
        return request._replace(replica=ReplicaKey(request.replica.node_id))
    return request


def needs_later_version(request: Request, version: int) -> bool:
    """What a version cannot say; a client gets UNSUPPORTED_VERSION for it."""
    if isinstance(request, AddRaftVoter):
        return not request.is_acknowledged_when_committed and version == 0
    return isinstance(request, Vote) and request.is_pre_vote and version < 2


@given(REQUESTS)
def test_requests_are_read_as_they_were_written(request: Request) -> None:
    """In each version, also with unknown directories and without a cluster id."""
    key = api_key_of(request)
    assert key in RAFT_APIS
    for version in versions_of(request):
        if needs_later_version(request, version):
            with pytest.raises(NotInVersionError):
                sent(write_request(request, version), key, "request", version)
            continue
        message = sent(write_request(request, version), key, "request", version)
        assert read_request(key, message, Wire(CLUSTER, version, "CONTROLLER")) == as_read(request, version)


@given(REQUESTS.flatmap(lambda request: ANSWERS[type(request)].map(lambda answer: (request, answer))))
def test_answers_are_read_as_they_were_written(pair: tuple[Request, AnyAnswer]) -> None:
    """Of the leader's endpoints, that of the listener arrives; an error of the whole answer comes without anything else."""
    request, answer = pair
    key = api_key_of(request)
    for version in versions_of(request):
        wire = Wire(CLUSTER, version, "controller")
        found = read_answer(request, sent(write_answer(request, answer, wire), key, "response", version), "CONTROLLER")
        assert type(found) is type(answer)
        if isinstance(answer, ChangeVotersAnswer):
            assert found == answer
            continue
        assert not isinstance(answer, ApiVersionsProbeAnswer)
        if answer.error in OF_ALL and not isinstance(answer, UpdateRaftVoterAnswer):
            assert found[:3] == (answer.error, -1, -1)
            continue
        has_endpoint = version >= NAMED_ENDPOINTS_SINCE.get(key, 1)
        assert found == answer._replace(
            endpoints=tuple(at for at in answer.endpoints if at.listener == "CONTROLLER" and has_endpoint)
        )


def partitions_of(api_key: int, names: list[str], indexes: list[int]) -> Message:
    """A request for the partitions of that many topics."""
    request = API_KEYS[api_key].request
    topic = request.classes["TopicSnapshot" if api_key == FETCH_SNAPSHOT else "TopicData"]
    partition = request.classes["PartitionSnapshot" if api_key == FETCH_SNAPSHOT else "PartitionData"]
    name, index = ("name", "partition") if api_key == FETCH_SNAPSHOT else ("topic_name", "partition_index")
    return request.new(
        topics=[topic(**{name: at, "partitions": [partition(**{index: number}) for number in indexes]}) for at in names]
    )


@pytest.mark.parametrize("api_key", [VOTE, 53, END_QUORUM_EPOCH])
@pytest.mark.parametrize(
    ("names", "indexes"),
    [([], []), (["other"], [0]), ([METADATA_TOPIC] * 2, [0]), ([METADATA_TOPIC], [0, 0]), ([METADATA_TOPIC], [1])],
)
def test_other_partitions_are_refused(api_key: int, names: list[str], indexes: list[int]) -> None:
    """With INVALID_REQUEST; if the cluster is another one, too, with that error, which Kafka checks first."""
    message = partitions_of(api_key, names, indexes)
    wire = Wire(CLUSTER, API_KEYS[api_key].highest_version, "CONTROLLER")
    refused = read_request(api_key, message, wire)
    assert isinstance(refused, Message)
    assert (refused.error_code, refused.topics) == (error_codes.INVALID_REQUEST, [])
    message.cluster_id = "another"
    refused = read_request(api_key, message, wire)
    assert isinstance(refused, Message)
    assert refused.error_code == error_codes.INCONSISTENT_CLUSTER_ID


def test_a_fetch_by_name_is_refused() -> None:
    """Only an id says which topic is meant; versions before 13 do not have it."""
    message = write_request(Fetch(None, ReplicaKey(1), 0, 0, 0), 12)
    refused = read_request(FETCH, sent(message, FETCH, "request", 12), Wire(CLUSTER, 12, "CONTROLLER"))
    assert isinstance(refused, Message)
    assert refused.error_code == error_codes.INVALID_REQUEST


def test_snapshots_of_other_partitions_are_unknown() -> None:
    """As an error of each partition; without a partition there is no error, as in Kafka 4.4."""
    wire = Wire(CLUSTER, 1, "CONTROLLER")
    refused = read_request(FETCH_SNAPSHOT, partitions_of(FETCH_SNAPSHOT, ["other"], [3]), wire)
    assert isinstance(refused, Message)
    (partition,) = refused.topics[0].partitions
    assert (partition.index, partition.error_code) == (3, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    refused = read_request(FETCH_SNAPSHOT, partitions_of(FETCH_SNAPSHOT, [], []), wire)
    assert isinstance(refused, Message)
    assert (refused.error_code, refused.topics) == (0, [])


@pytest.mark.parametrize(
    "request_",
    [
        Vote(None, ReplicaKey(1), 1, None, 0, 0),
        Fetch(None, ReplicaKey(1), 0, 0, 0),
        FetchSnapshot(None, ReplicaKey(1), 0, SnapshotId(1, 1), 0),
    ],
)
def test_an_answer_without_the_partition_is_an_error(request_: Request) -> None:
    """A peer that sends nonsense does not end the node: the caller gets one error to handle."""
    with pytest.raises(DecodeError, match="is not that of __cluster_metadata-0"):
        read_answer(request_, API_KEYS[api_key_of(request_)].response.new(), "CONTROLLER")


def test_the_probe_of_a_new_voter_asks_for_kraft_versions() -> None:
    """Versions that do not show a feature from level 0 on cannot be asked; a node without the feature has level 0 only."""
    with pytest.raises(NotInVersionError):
        write_request(ApiVersionsProbe(), 3)
    request = sent(write_request(ApiVersionsProbe(), 4), API_VERSIONS, "request", 4)
    assert request.client_software_name == "kcli"
    response = API_KEYS[API_VERSIONS].response
    shown = response.classes["SupportedFeatureKey"](name="kraft.version", min_version=0, max_version=1)
    assert read_answer(ApiVersionsProbe(), response.new(supported_features=[shown]), "C") == ApiVersionsProbeAnswer(0, 0, 1)
    assert read_answer(ApiVersionsProbe(), response.new(), "C") == ApiVersionsProbeAnswer(0, 0, 0)


def test_an_unknown_receiver_is_not_sent() -> None:
    """A vote for no voter in particular has the id -1 and the zero directory."""
    message = write_request(Vote(CLUSTER, ReplicaKey(1), 2, None, 1, 5), 2)
    assert (message.voter_id, message.topics[0].partitions[0].voter_directory_id) == (-1, ZERO_UUID)
