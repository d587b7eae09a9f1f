"""The small text files that identify a directory: its node, its topic, how it was stopped, the leader of the quorum.

    file                  where      text
    --------------------  ---------  ------------------------------------------------------------------------------
    partition.metadata    partition  "version: 0", newline, "topic_id: <22 characters>"; no newline at the end
    meta.properties       log dir    Java properties: "#", "#<date>", then version=0|1, cluster.id, node.id (1) or
                                     broker.id (0), directory.id; in the order of Java's hash map
    .kafka_cleanshutdown  log dir    {"version":0,"brokerEpoch":N}; empty before KRaft; there after a clean stop only
    quorum-state          metadata   one line of JSON with "data_version" 0 or 1:
                          partition  0: clusterId, leaderId, leaderEpoch, votedId, appliedOffset, currentVoters
                                     1: leaderId, leaderEpoch, votedId, votedDirectoryId (from kraft.version 1 on)

Decoding rejects what Kafka's readers reject; the error names the line or the key. Encoding what was decoded
gives the same bytes for files that Kafka wrote; meta.properties is rewritten by changing values in place, so that its
comments and its date stay.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from kcli.format import limits
from kcli.format.checkpoint import malformed_line, text_lines
from kcli.format.java_text import parse_integer, quote
from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.primitives import Buffer, CorruptCheckpointError, FormatError

_COLON = re.compile(r":[ \t\n\x0b\f\r]+")
_PLAIN_PROPERTIES = re.compile(rb"(?:(?:#[ -~]*|[a-z.]+=[\w.-]+)\n)*", re.ASCII)
_INT_BITS = {"int32": 32, "int64": 64}

# -------------------------------------------------------------------------------------------------- partition.metadata


class PartitionMetadata(NamedTuple):
    """The topic that a partition directory belongs to; never the zero id."""

    version: int
    topic_id: Uuid


def decode_partition_metadata(data: Buffer) -> PartitionMetadata:
    """Decode partition.metadata; Kafka reads the values of the first two lines only, not their names.

    Raises CorruptCheckpointError, which names the line.
    """
    lines = text_lines(data)
    values = []
    for number in (1, 2):
        if len(lines) < number:
            raise CorruptCheckpointError(f"line {number} is missing")
        words = _COLON.split(lines[number - 1])
        if len(words) != 2 or not words[1]:
            raise malformed_line(number, lines[number - 1])
        values.append(words[1])
    version = parse_integer(values[0], 32)
    if version is None:
        raise malformed_line(1, lines[0])
    if version < 0:
        raise CorruptCheckpointError(f"line 1 states version {version}; version 0 is the first")
    topic_id = _parse_uuid(values[1], "line 2")
    if topic_id == ZERO_UUID:
        raise CorruptCheckpointError("line 2 states the topic id of zeros, which no topic has")
    return PartitionMetadata(version, topic_id)


def encode_partition_metadata(metadata: PartitionMetadata) -> bytes:
    """Encode partition.metadata."""
    return f"version: {metadata.version}\ntopic_id: {metadata.topic_id}".encode()


# ----------------------------------------------------------------------------------------------------- meta.properties


class MetaProperties(NamedTuple):
    """The cluster and node that a log directory belongs to. Only version 1 guarantees that both ids are there."""

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: Uuid | None = None

    def properties(self) -> dict[str, str]:
        """Return the properties by Kafka's names, in the order in which its files have them."""
        return {
            key: str(value)
            for key, value in (
                ("node.id" if self.version else "broker.id", self.node_id),
                ("directory.id", self.directory_id),
                ("version", self.version),
                ("cluster.id", self.cluster_id),
            )
            if value is not None
        }


def decode_meta_properties(data: Buffer) -> MetaProperties:
    """Decode meta.properties. Raises CorruptCheckpointError, which names the key."""
    properties = _plain_properties(data)
    if properties is None:
        properties = dict(_properties_file(data))
    version_text = properties.get("version", "0")
    version = parse_integer(version_text.strip(), 32)
    if version not in (0, 1):
        raise CorruptCheckpointError(f"version is {version_text!r}; 0 and 1 are known")
    node_key = "node.id" if version else "broker.id"
    node_text = properties.get(node_key)
    node_id = None if node_text is None else parse_integer(node_text, 32)
    if node_text is not None and node_id is None:
        raise CorruptCheckpointError(f"{node_key} is {node_text!r}, which is not an int32")
    directory_text = properties.get("directory.id")
    directory_id = None if directory_text is None else _parse_uuid(directory_text, "directory.id")
    cluster_id = properties.get("cluster.id")
    if version == 1 and node_id is None:
        raise CorruptCheckpointError("node.id is missing")
    if version == 1 and cluster_id is None:
        raise CorruptCheckpointError("cluster.id is missing")
    return MetaProperties(version, cluster_id, node_id, directory_id)


def encode_meta_properties(meta: MetaProperties, *, previous: Buffer | None = None, date: str = "") -> bytes:
    """Encode meta.properties: `previous` with changed values only, or a new file with `date`.

    `date` is Java's form, "Sat Nov 21 03:50:00 UTC 2026". Raises CorruptCheckpointError when `previous` cannot be read.
    """
    wanted = meta.properties()
    if previous is None:
        text = f"#\n#{date}\n" + "".join(f"{key}={value}\n" for key, value in wanted.items())
        if _plain_properties(text.encode()) == wanted:
            return text.encode()
    file = _properties_file(f"#\n#{date}\n".encode() if previous is None else previous)
    for key in ("version", "cluster.id", "node.id", "broker.id", "directory.id"):
        if key in file and key not in wanted:
            del file[key]
    for key, value in wanted.items():
        if file.get(key) != value:
            file[key] = value
    rewritten: str = file.dumps()
    return rewritten.encode("iso-8859-1")


def _plain_properties(data: Buffer) -> dict[str, str] | None:
    """Return the properties of a file as Kafka writes it, without escapes and indents; None for any other: use javaproperties.

    The library takes 46 ms to import, too long for the start of a node.
    """
    if len(data) > limits.MAX_TEXT_FILE_BYTES or not _PLAIN_PROPERTIES.fullmatch(data):
        return None
    lines = (line.partition("=") for line in str(data, "ascii").splitlines() if not line.startswith("#"))
    return {key: value for key, _, value in lines}


def _properties_file(data: Buffer) -> Any:
    if len(data) > limits.MAX_TEXT_FILE_BYTES:
        raise CorruptCheckpointError(f"the file has {len(data)} bytes; at most {limits.MAX_TEXT_FILE_BYTES} are read")
    # Imported late: 46 ms.
    from javaproperties import InvalidUEscapeError, PropertiesFile

    try:
        return PropertiesFile.loads(str(data, "iso-8859-1"))
    except InvalidUEscapeError as error:
        raise CorruptCheckpointError(f"the properties have a malformed escape: {error}") from None


# ------------------------------------------------------------------------------------------------ .kafka_cleanshutdown


class CleanShutdown(NamedTuple):
    """How a broker marked its clean stop; both are None in the empty file of Kafka before KRaft."""

    version: int | None
    broker_epoch: int | None


def decode_clean_shutdown(data: Buffer) -> CleanShutdown:
    """Decode .kafka_cleanshutdown. Raises CorruptCheckpointError where Kafka would go on without a broker epoch."""
    if not len(data):
        return CleanShutdown(None, None)
    content = _json_object(data, "the file", errors="replace")
    version = _json_int(content.get("version", 0), "version", "int32")
    return CleanShutdown(version, _json_int(content.get("brokerEpoch"), "brokerEpoch", "int64"))


def encode_clean_shutdown(clean: CleanShutdown) -> bytes:
    """Encode .kafka_cleanshutdown."""
    if clean.version is None:
        return b""
    return b'{"version":%d,"brokerEpoch":%d}' % (clean.version, -1 if clean.broker_epoch is None else clean.broker_epoch)


# -------------------------------------------------------------------------------------------------------- quorum-state


class QuorumStateData(NamedTuple):
    """The state of the election that a KRaft voter keeps.

    The leader's id is -1 if no leader is known; the id of the node that it voted for is -1 if it has not voted.
    Cluster id, applied offset and voters are of version 0, the voted directory of version 1.
    """

    version: int
    leader_id: int
    leader_epoch: int
    voted_id: int
    voted_directory_id: Uuid = ZERO_UUID
    cluster_id: str = ""
    applied_offset: int = 0
    current_voters: tuple[int, ...] | None = ()


def decode_quorum_state(data: Buffer) -> QuorumStateData:
    """Decode quorum-state; its first line is all that Kafka reads. Raises CorruptCheckpointError, which names the key."""
    lines = text_lines(data)
    if not lines:
        raise CorruptCheckpointError("the file is empty")
    content = _json_object(lines[0].encode(), "line 1")
    version = _json_int(content.get("data_version"), "data_version", "int32")
    if version not in (0, 1):
        raise CorruptCheckpointError(f"data_version is {version}; 0 and 1 are known")
    leader_id, leader_epoch, voted_id = (
        _json_int(content.get(key), key, "int32") for key in ("leaderId", "leaderEpoch", "votedId")
    )
    state = QuorumStateData(version, leader_id, leader_epoch, voted_id)
    if version == 1:
        return state._replace(
            voted_directory_id=_parse_uuid(_json_text(content.get("votedDirectoryId"), "votedDirectoryId"), "votedDirectoryId")
        )
    return state._replace(
        cluster_id=_json_text(content.get("clusterId"), "clusterId"),
        applied_offset=_json_int(content.get("appliedOffset"), "appliedOffset", "int64"),
        current_voters=_voters(content),
    )


def encode_quorum_state(state: QuorumStateData) -> bytes:
    """Encode quorum-state."""
    common = f'"leaderId":{state.leader_id},"leaderEpoch":{state.leader_epoch},"votedId":{state.voted_id}'
    if state.version == 1:
        return f'{{{common},"votedDirectoryId":{quote(str(state.voted_directory_id))},"data_version":1}}'.encode()
    voters = "null"
    if state.current_voters is not None:
        voters = "[" + ",".join(f'{{"voterId":{voter}}}' for voter in state.current_voters) + "]"
    return (
        f'{{"clusterId":{quote(state.cluster_id)},{common},"appliedOffset":{state.applied_offset},'
        f'"currentVoters":{voters},"data_version":0}}'
    ).encode()


def _voters(content: dict[str, Any]) -> tuple[int, ...] | None:
    if "currentVoters" not in content:
        raise CorruptCheckpointError("currentVoters is missing")
    voters = content["currentVoters"]
    if voters is None:
        return None
    if not isinstance(voters, list) or not all(isinstance(voter, dict) for voter in voters):
        raise CorruptCheckpointError("currentVoters is not an array of objects")
    return tuple(_json_int(voter.get("voterId"), "voterId", "int32") for voter in voters)


# -------------------------------------------------------------------------------------------------------------- pieces


def _parse_uuid(text: str, where: str) -> Uuid:
    try:
        return Uuid.parse(text)
    except FormatError as error:
        raise CorruptCheckpointError(f"{where}: {error.message}") from None


def _json_object(data: Buffer, where: str, *, errors: str = "strict") -> dict[str, Any]:
    """Return the JSON object at the start of `data`; as in Kafka's parser, anything after it is ignored."""
    if len(data) > limits.MAX_TEXT_FILE_BYTES:
        raise CorruptCheckpointError(f"the file has {len(data)} bytes; at most {limits.MAX_TEXT_FILE_BYTES} are read")
    import json

    try:
        text = str(data, "utf-8", errors).lstrip(" \t\r\n")
        content, _ = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{where} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CorruptCheckpointError(f"{where} is not a JSON object")
    return content


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _json_int(value: Any, key: str, kind: str) -> int:
    bits = _INT_BITS[kind]
    if value is None:
        raise CorruptCheckpointError(f"{key} is missing")
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise CorruptCheckpointError(f"{key} is {str(value)[:40]!r}, which is not an {kind}")
    return value


def _json_text(value: Any, key: str) -> str:
    if value is None:
        raise CorruptCheckpointError(f"{key} is missing")
    if not isinstance(value, str):
        raise CorruptCheckpointError(f"{key} is {str(value)[:40]!r}, which is not a string")
    return value
