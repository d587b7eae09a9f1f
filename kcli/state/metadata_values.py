"""The values of a metadata image; kcli.state.metadata_image creates them from records.

Numbers in the records, as in Kafka's protocol:

    resource type   ACL: 2 TOPIC, 3 GROUP, 4 CLUSTER ...     configuration: 2 TOPIC, 4 BROKER, 16 CLIENT_METRICS, 32 GROUP
    directory id    0 MIGRATING (not known), 1 UNASSIGNED, 2 LOST (offline), else the directory.id of a meta.properties
    leader          -1 none; in a change -2: no change
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Self

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.protocol.message import Message

NO_LEADER = -1
NO_LEADER_CHANGE = -2
DIRECTORY_MIGRATING = ZERO_UUID
DIRECTORY_UNASSIGNED = Uuid((1).to_bytes(16, "big"))
DIRECTORY_LOST = Uuid((2).to_bytes(16, "big"))

SECURITY_PROTOCOLS = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}
SCRAM_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
CONFIG_RESOURCE_TYPES = {2: "TOPIC", 4: "BROKER", 8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP"}
LEADER_RECOVERY_STATES = {0: "RECOVERED", 1: "RECOVERING"}
# The levels of the feature metadata.version by number; Kafka 4 does not read those before 7.
_FIRST_METADATA_VERSION = 7
_METADATA_VERSIONS = (
    *("3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1", "3.7-IV2"),
    *("3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0"),
    *("4.2-IV1", "4.3-IV0", "4.4-IV0", "4.4-IV1", "4.4-IV2", "4.5-IV0"),
)
METADATA_VERSIONS = dict(enumerate(_METADATA_VERSIONS, _FIRST_METADATA_VERSION))
ACL_RESOURCE_TYPES = {
    1: "ANY",
    2: "TOPIC",
    3: "GROUP",
    4: "CLUSTER",
    5: "TRANSACTIONAL_ID",
    6: "DELEGATION_TOKEN",
    7: "USER",
}
ACL_PATTERN_TYPES = {1: "ANY", 2: "MATCH", 3: "LITERAL", 4: "PREFIXED"}
ACL_PERMISSION_TYPES = {1: "ANY", 2: "DENY", 3: "ALLOW"}
ACL_OPERATIONS = {
    1: "ANY",
    2: "ALL",
    3: "READ",
    4: "WRITE",
    5: "CREATE",
    6: "DELETE",
    7: "ALTER",
    8: "DESCRIBE",
    9: "CLUSTER_ACTION",
    10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS",
    12: "IDEMPOTENT_WRITE",
    13: "CREATE_TOKENS",
    14: "DESCRIBE_TOKENS",
    15: "TWO_PHASE_COMMIT",
}

# The ends of the names of Kafka's configurations of type PASSWORD, and of common names of other software.
_SENSITIVE_ENDINGS = (
    "password",
    "secret",
    "passphrase",
    "secret.key",
    "jaas.config",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.truststore.certificates",
)


def is_sensitive_config(name: str) -> bool:
    """Return True for a configuration whose value must not be shown."""
    return name.lower().endswith(_SENSITIVE_ENDINGS)


def name_of(names: dict[int, str], number: int) -> str:
    """Return Kafka's name for a number, or UNKNOWN(number) if the table does not have it."""
    return names.get(number, f"UNKNOWN({number})")


class StateValue:
    """The base of the values that are made and read often; values of one class with equal fields are equal.

    Its slots are made and read a third faster than a NamedTuple's. Importing dataclasses takes 20 ms of a node's start.
    """

    __slots__: tuple[str, ...] = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"

    def copy(self) -> Self:
        """Return a shallow copy."""
        twin = object.__new__(type(self))
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin


class Endpoint(NamedTuple):
    """An endpoint of a node; `security_protocol` is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""

    host: str
    port: int
    security_protocol: str


class VersionRange(NamedTuple):
    """The levels of a feature that a node supports."""

    lowest: int
    highest: int


class PartitionRegistration(StateValue):
    """The registration of a partition: the node ids of its replicas and of its leader.

    `directories` has one id for each replica; `leader` is -1 for none; `eligible_leader_replicas` and `last_known_elr` are
    from KIP-966.
    """

    __slots__ = (
        "adding_replicas",
        "directories",
        "eligible_leader_replicas",
        "isr",
        "last_known_elr",
        "leader",
        "leader_epoch",
        "leader_recovery_state",
        "partition_epoch",
        "removing_replicas",
        "replicas",
    )

    def __init__(
        self,
        replicas: list[int],
        isr: list[int],
        removing_replicas: list[int],
        adding_replicas: list[int],
        leader: int,
        leader_recovery_state: str,
        leader_epoch: int,
        partition_epoch: int,
        directories: list[Uuid],
        eligible_leader_replicas: list[int],
        last_known_elr: list[int],
    ) -> None:
        self.replicas = replicas
        self.isr = isr
        self.removing_replicas = removing_replicas
        self.adding_replicas = adding_replicas
        self.leader = leader
        self.leader_recovery_state = leader_recovery_state
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.directories = directories
        self.eligible_leader_replicas = eligible_leader_replicas
        self.last_known_elr = last_known_elr


class Topic(StateValue):
    """A topic with its partitions by number."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: Uuid, partitions: dict[int, PartitionRegistration]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions


class BrokerRegistration(NamedTuple):
    """The registration of a broker: endpoints by listener name, features by name, the ids of its log directories."""

    broker_id: int
    broker_epoch: int
    incarnation_id: Uuid
    endpoints: dict[str, Endpoint]
    features: dict[str, VersionRange]
    rack: str | None
    is_fenced: bool
    is_in_controlled_shutdown: bool
    is_migrating_zk_broker: bool
    log_dirs: list[Uuid]
    cordoned_log_dirs: list[Uuid] | None


class ControllerRegistration(NamedTuple):
    """The registration of a controller: endpoints by listener name, features by name."""

    controller_id: int
    incarnation_id: Uuid
    is_zk_migration_ready: bool
    endpoints: dict[str, Endpoint]
    features: dict[str, VersionRange]


class ConfigResource(NamedTuple):
    """The resource of a configuration; `name` is "" for the defaults of all brokers."""

    type: str
    name: str


# The entity of a quota: (type, name) pairs sorted by type ("user", "client-id", "ip"); None is the default of that type.
QuotaEntity = tuple[tuple[str, str | None], ...]


class Acl(NamedTuple):
    """An access control entry, with Kafka's names instead of numbers."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission_type: str


class ScramCredential(NamedTuple):
    """A SCRAM credential of a user; its secret bytes are never shown."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations}, [hidden])"


class DelegationToken(NamedTuple):
    """A delegation token; the metadata does not contain its HMAC. Principals are "User:name", times in ms."""

    token_id: str
    owner: str
    requester: str
    renewers: list[str]
    issue_timestamp_ms: int
    max_timestamp_ms: int
    expiration_timestamp_ms: int


class Voter(NamedTuple):
    """A voter of the KRaft quorum (KIP-853); of a static quorum only the id is known."""

    voter_id: int
    directory_id: Uuid = ZERO_UUID
    endpoints: Mapping[str, tuple[str, int]] = MappingProxyType({})


def endpoints_of(listeners: Iterable[Message]) -> dict[str, Endpoint]:
    """Return the endpoints of a registration, by listener name: those of a record, or those of a request."""
    return {at.name: Endpoint(at.host, at.port, name_of(SECURITY_PROTOCOLS, at.security_protocol)) for at in listeners}


def features_of(features: Iterable[Message]) -> dict[str, VersionRange]:
    """Return the features of a registration, by name: those of a record, or those of a request."""
    return {feature.name: VersionRange(feature.min_supported_version, feature.max_supported_version) for feature in features}


def voters_of(message: Message) -> dict[int, Voter]:
    """Return the voters of a VotersRecord, by id."""
    return {
        voter.voter_id: Voter(voter.voter_id, voter.voter_directory_id, {at.name: (at.host, at.port) for at in voter.endpoints})
        for voter in message.voters
    }
