"""partition.metadata, meta.properties, .kafka_cleanshutdown and quorum-state: byte-identical, strict, faults named."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format.java_text import quote
from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.metadata_files import (
    CleanShutdown,
    MetaProperties,
    PartitionMetadata,
    QuorumStateData,
    decode_clean_shutdown,
    decode_meta_properties,
    decode_partition_metadata,
    decode_quorum_state,
    encode_clean_shutdown,
    encode_meta_properties,
    encode_partition_metadata,
    encode_quorum_state,
)
from kcli.format.primitives import CorruptCheckpointError
from tests.format.damaged_bytes import damaged
from tests.format.given_files import given_files

int32s, int64s = (st.integers(-(2**bits), 2**bits - 1) for bits in (31, 63))
uuids = st.binary(min_size=16, max_size=16).filter(any).map(Uuid)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=12)
ID = "QoFnWZgfUfRaWzLX7TiLhw"


def test_given_files_come_back_byte_for_byte() -> None:
    for file in given_files("partition.metadata"):
        assert encode_partition_metadata(decode_partition_metadata(file.read_bytes())) == file.read_bytes()
    for file in given_files(".kafka_cleanshutdown"):
        assert encode_clean_shutdown(decode_clean_shutdown(file.read_bytes())) == file.read_bytes()
    for file in given_files("quorum-state"):
        assert encode_quorum_state(decode_quorum_state(file.read_bytes())) == file.read_bytes()
    for file in given_files("meta.properties"):
        data = file.read_bytes()
        meta = decode_meta_properties(data)
        assert encode_meta_properties(meta, previous=data) == data
        date = data.split(b"\n")[1][1:].decode()
        if meta.version == 1:
            assert encode_meta_properties(meta, date=date) == data
        assert decode_meta_properties(encode_meta_properties(meta, date=date)) == meta


@given(version=st.integers(0, 2**31 - 1), topic_id=uuids)
def test_any_partition_metadata_comes_back(version: int, topic_id: Uuid) -> None:
    metadata = PartitionMetadata(version, topic_id)
    assert decode_partition_metadata(encode_partition_metadata(metadata)) == metadata


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "line 1 is missing"),
        (b"version: 0", "line 2 is missing"),
        (b"version:0\ntopic_id: " + ID.encode(), "line 1 is malformed: 'version:0'"),
        (b"version: x\ntopic_id: " + ID.encode(), "line 1 is malformed: 'version: x'"),
        (b"version: -1\ntopic_id: " + ID.encode(), "line 1 states version -1; version 0 is the first"),
        (b"version: 0\ntopic_id: short", "line 2"),
        (b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", "line 2 states the topic id of zeros, which no topic has"),
    ],
)
def test_partition_metadata_faults_name_the_line(data: bytes, message: str) -> None:
    with pytest.raises(CorruptCheckpointError) as caught:
        decode_partition_metadata(data)
    assert caught.value.message.startswith(message)


def test_names_of_partition_metadata_do_not_count() -> None:
    """Kafka splits at the colon and takes the second word, whatever the first one is."""
    metadata = decode_partition_metadata(f"a:   1\r\nb:\t{ID}\nmore".encode())
    assert metadata == (1, Uuid.parse(ID))


def test_meta_properties_keep_what_is_not_theirs() -> None:
    """Comments, the date, order, unknown keys and odd spacing stay; only what changes does."""
    previous = (
        b"#\n#Sat Nov 21 03:50:00 UTC 2026\r\n! mine\nbroker.id : 1\nversion=0\nextra.key=\\u00e9 \\\n  more\ncluster.id=abc\n"
    )
    meta = decode_meta_properties(previous)
    assert meta == MetaProperties(0, "abc", 1, None)
    assert encode_meta_properties(meta, previous=previous) == previous
    moved = encode_meta_properties(meta._replace(node_id=7), previous=previous)
    assert moved == previous.replace(b"broker.id : 1", b"broker.id=7")
    upgraded = encode_meta_properties(meta._replace(version=1, directory_id=Uuid.parse(ID)), previous=previous)
    assert b"broker.id" not in upgraded and b"! mine\n" in upgraded and b"extra.key=\\u00e9 \\\n  more\n" in upgraded
    assert decode_meta_properties(upgraded) == MetaProperties(1, "abc", 1, Uuid.parse(ID))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"version=2\n", "version is '2'; 0 and 1 are known"),
        (b"version=x\n", "version is 'x'; 0 and 1 are known"),
        (b"version=1\ncluster.id=c\n", "node.id is missing"),
        (b"version=1\nnode.id=1\n", "cluster.id is missing"),
        (b"version=1\nnode.id=one\ncluster.id=c\n", "node.id is 'one', which is not an int32"),
        (b"broker.id=99999999999\n", "broker.id is '99999999999', which is not an int32"),
        (b"directory.id=zz\n", "directory.id"),
        (b"a=\\u12\n", "the properties have a malformed escape"),
    ],
)
def test_meta_properties_faults_name_the_key(data: bytes, message: str) -> None:
    with pytest.raises(CorruptCheckpointError) as caught:
        decode_meta_properties(data)
    assert caught.value.message.startswith(message)


def test_meta_properties_of_version_0_guarantee_nothing() -> None:
    assert decode_meta_properties(b"") == MetaProperties(0, None, None, None)
    assert encode_meta_properties(MetaProperties(0, None, None, None), date="x") == b"#\n#x\nversion=0\n"


@given(
    leader=int32s,
    epoch=int32s,
    voted=int32s,
    directory=uuids,
    cluster=texts,
    applied=int64s,
    voters=st.none() | st.lists(int32s),
)
def test_any_quorum_state_comes_back(
    leader: int, epoch: int, voted: int, directory: Uuid, cluster: str, applied: int, voters: list[int] | None
) -> None:
    members = None if voters is None else tuple(voters)
    for state in (
        QuorumStateData(0, leader, epoch, voted, ZERO_UUID, cluster, applied, members),
        QuorumStateData(1, leader, epoch, voted, directory),
    ):
        data = encode_quorum_state(state)
        assert decode_quorum_state(data) == state
        assert json.loads(data)["data_version"] == state.version and b" " not in data.replace(quote(cluster).encode(), b"")
    assert decode_quorum_state(data + b"\nwhat follows the first line is not read") == state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"leaderId": None}, "leaderId is missing"),
        ({"leaderId": "1"}, "leaderId is '1', which is not an int32"),
        ({"leaderId": True}, "leaderId is 'True', which is not an int32"),
        ({"leaderEpoch": 2**31}, "leaderEpoch is '2147483648', which is not an int32"),
        ({"votedId": 1.5}, "votedId is '1.5', which is not an int32"),
        ({"appliedOffset": 2**63}, "appliedOffset is '9223372036854775808', which is not an int64"),
        ({"clusterId": 5}, "clusterId is '5', which is not a string"),
        ({"clusterId": None}, "clusterId is missing"),
        ({"currentVoters": [1]}, "currentVoters is not an array of objects"),
        ({"currentVoters": [{}]}, "voterId is missing"),
        ({"data_version": 2}, "data_version is 2; 0 and 1 are known"),
        ({"data_version": None}, "data_version is missing"),
        ({"data_version": 1}, "votedDirectoryId is missing"),
        ({"data_version": 1, "votedDirectoryId": "zz"}, "votedDirectoryId"),
    ],
)
def test_quorum_state_faults_name_the_key(change: dict[str, object], message: str) -> None:
    content = {**json.loads(encode_quorum_state(QuorumStateData(0, 1, 2, -1, current_voters=(1,)))), **change}
    with pytest.raises(CorruptCheckpointError) as caught:
        decode_quorum_state(json.dumps(content).encode())
    assert caught.value.message.startswith(message)


def test_json_that_is_none() -> None:
    for data, message in (
        (b"", "empty"),
        (b"[]", "not a JSON object"),
        (b"{", "not JSON"),
        (b"\xff", "UTF-8"),
        (b"[" * 100_000, "not JSON"),
    ):
        with pytest.raises(CorruptCheckpointError, match=message):
            decode_quorum_state(data)
    content = json.loads(encode_quorum_state(QuorumStateData(0, 1, 2, -1)))
    del content["currentVoters"]
    with pytest.raises(CorruptCheckpointError, match="currentVoters is missing"):
        decode_quorum_state(json.dumps(content).encode())


def test_clean_shutdown() -> None:
    assert decode_clean_shutdown(b"") == CleanShutdown(None, None)  # as brokers before KRaft left it
    assert decode_clean_shutdown(b'{"version":0,"brokerEpoch":130}') == CleanShutdown(0, 130)
    assert decode_clean_shutdown(b'{"brokerEpoch":-1, "more":[1]}') == CleanShutdown(0, -1)
    for data, message in (
        (b"{}", "brokerEpoch is missing"),
        (b'{"version":"x","brokerEpoch":1}', "version is 'x'"),
        (b'{"version":0,"brokerEpoch":9223372036854775808}', "not an int64"),
        (b'"text"', "not a JSON object"),
        (b"\0\0\0\0", "not JSON"),
    ):
        with pytest.raises(CorruptCheckpointError, match=message):
            decode_clean_shutdown(data)


DECODERS: list[Callable[[bytes], object]] = [
    decode_partition_metadata,
    decode_meta_properties,
    decode_clean_shutdown,
    decode_quorum_state,
]
SOUND = [
    f"version: 0\ntopic_id: {ID}".encode(),
    f"#\n#Sat Nov 21 03:50:00 UTC 2026\nnode.id=1\ndirectory.id={ID}\nversion=1\ncluster.id=kcli\\u0041\n".encode(),
    b'{"version":0,"brokerEpoch":130}',
    encode_quorum_state(QuorumStateData(0, 1, 2, -1, current_voters=(1, 2))),
]


@given(
    spoilt=damaged(st.sampled_from(SOUND))
    | st.binary(max_size=60)
    | st.text('{}[]":,0123e-.\\u tru', max_size=40).map(str.encode)
)
def test_damage_raises_corrupt_checkpoint_errors_only(spoilt: bytes) -> None:
    for decode in DECODERS:
        try:
            decode(spoilt)
        except CorruptCheckpointError as error:
            assert len(error.message) < 400
