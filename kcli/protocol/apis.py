"""The APIs of the wire protocol by key: their names, versions and messages; declared in messages/apis.txt.

    name        meaning
    ----------  ------------------------------------------------------------------------------------------------
    API_KEYS    every API that has versions in Kafka 4.4, by its key -> Api
    Api         key, name, version range, first flexible version, and `.request`, `.response`: message types
    PRODUCE...  the keys by name, as generated code and handlers use them

The file has 2,000 lines, and a node needs few of them. So the file is split into blocks at its empty lines. The head line of
a block has the API key and the versions; the block itself is parsed when its message is first used.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from kcli.protocol.compiler import MessageType
from kcli.protocol.schema import Versions, parse_schemas

PRODUCE = 0
FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
OFFSET_COMMIT = 8
OFFSET_FETCH = 9
FIND_COORDINATOR = 10
JOIN_GROUP = 11
HEARTBEAT = 12
LEAVE_GROUP = 13
SYNC_GROUP = 14
DESCRIBE_GROUPS = 15
LIST_GROUPS = 16
SASL_HANDSHAKE = 17
API_VERSIONS = 18
CREATE_TOPICS = 19
DELETE_TOPICS = 20
DELETE_RECORDS = 21
INIT_PRODUCER_ID = 22
OFFSET_FOR_LEADER_EPOCH = 23
ADD_PARTITIONS_TO_TXN = 24
ADD_OFFSETS_TO_TXN = 25
END_TXN = 26
WRITE_TXN_MARKERS = 27
TXN_OFFSET_COMMIT = 28
DESCRIBE_ACLS = 29
CREATE_ACLS = 30
DELETE_ACLS = 31
DESCRIBE_CONFIGS = 32
ALTER_CONFIGS = 33
ALTER_REPLICA_LOG_DIRS = 34
DESCRIBE_LOG_DIRS = 35
SASL_AUTHENTICATE = 36
CREATE_PARTITIONS = 37
CREATE_DELEGATION_TOKEN = 38
RENEW_DELEGATION_TOKEN = 39
EXPIRE_DELEGATION_TOKEN = 40
DESCRIBE_DELEGATION_TOKEN = 41
DELETE_GROUPS = 42
ELECT_LEADERS = 43
INCREMENTAL_ALTER_CONFIGS = 44
ALTER_PARTITION_REASSIGNMENTS = 45
LIST_PARTITION_REASSIGNMENTS = 46
OFFSET_DELETE = 47
DESCRIBE_CLIENT_QUOTAS = 48
ALTER_CLIENT_QUOTAS = 49
DESCRIBE_USER_SCRAM_CREDENTIALS = 50
ALTER_USER_SCRAM_CREDENTIALS = 51
VOTE = 52
BEGIN_QUORUM_EPOCH = 53
END_QUORUM_EPOCH = 54
DESCRIBE_QUORUM = 55
ALTER_PARTITION = 56
UPDATE_FEATURES = 57
ENVELOPE = 58
FETCH_SNAPSHOT = 59
DESCRIBE_CLUSTER = 60
DESCRIBE_PRODUCERS = 61
BROKER_REGISTRATION = 62
BROKER_HEARTBEAT = 63
UNREGISTER_BROKER = 64
DESCRIBE_TRANSACTIONS = 65
LIST_TRANSACTIONS = 66
ALLOCATE_PRODUCER_IDS = 67
CONSUMER_GROUP_HEARTBEAT = 68
CONSUMER_GROUP_DESCRIBE = 69
CONTROLLER_REGISTRATION = 70
GET_TELEMETRY_SUBSCRIPTIONS = 71
PUSH_TELEMETRY = 72
ASSIGN_REPLICAS_TO_DIRS = 73
LIST_CONFIG_RESOURCES = 74
DESCRIBE_TOPIC_PARTITIONS = 75
SHARE_GROUP_HEARTBEAT = 76
SHARE_GROUP_DESCRIBE = 77
SHARE_FETCH = 78
SHARE_ACKNOWLEDGE = 79
ADD_RAFT_VOTER = 80
REMOVE_RAFT_VOTER = 81
UPDATE_RAFT_VOTER = 82
INITIALIZE_SHARE_GROUP_STATE = 83
READ_SHARE_GROUP_STATE = 84
WRITE_SHARE_GROUP_STATE = 85
DELETE_SHARE_GROUP_STATE = 86
READ_SHARE_GROUP_STATE_SUMMARY = 87
STREAMS_GROUP_HEARTBEAT = 88
STREAMS_GROUP_DESCRIBE = 89
DESCRIBE_SHARE_GROUP_OFFSETS = 90
ALTER_SHARE_GROUP_OFFSETS = 91
DELETE_SHARE_GROUP_OFFSETS = 92
STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
UNREGISTER_CONTROLLER = 94

_PATH = __file__.removesuffix("apis.py") + "messages/apis.txt"
_KINDS = ("request", "response")


class _Block(NamedTuple):
    """The text of a declaration that is not parsed yet, and the options of its head line."""

    text: str
    options: dict[str, str]


def _blocks() -> dict[str, _Block]:
    text = __loader__.get_data(_PATH).decode()  # type: ignore[name-defined]
    found = {}
    for block in text.split("\n\n"):
        kind, name, *options = block[: block.find("\n")].split()
        if kind in _KINDS:
            found[name] = _Block(block, dict(option.partition("=")[::2] for option in options))
    return found


_BLOCKS = _blocks()


def _message_type(name: str) -> MessageType:
    return MessageType(parse_schemas(_BLOCKS[name].text)[0])


class Api:
    """One API with the versions `lowest_version` to `highest_version`, both included.

    `flexible_from` is the first version with tagged fields, or `highest_version` + 1 if no version has them.
    `is_latest_unstable`: the highest version is offered only with unstable.api.versions.enable.
    """

    def __init__(self, name: str, options: dict[str, str]) -> None:
        versions, flexible = Versions.parse(options["versions"]), Versions.parse(options["flexible"])
        self.key = int(options["key"])
        self.name = name
        self.lowest_version, self.highest_version = versions
        self.flexible_from = flexible.lowest if flexible.highest >= 0 else versions.highest + 1
        self.is_latest_unstable = "latest-unstable" in options

    def __repr__(self) -> str:
        return f"<api {self.name}>"

    @cached_property
    def request(self) -> MessageType:
        """The message type of the request."""
        return _message_type(f"{self.name}Request")

    @cached_property
    def response(self) -> MessageType:
        """The message type of the response."""
        return _message_type(f"{self.name}Response")


API_KEYS: dict[int, Api] = {
    api.key: api
    for api in (Api(name.removesuffix("Request"), block.options) for name, block in _BLOCKS.items() if "on" in block.options)
}
