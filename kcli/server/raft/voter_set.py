"""The voters of the metadata quorum: as text, as a control record, and by the offset from which they are valid (KIP-853).

A KRaft node uses the last voters in its log, even before they are committed. They come from the control records KRaftVersion
and Voters of the latest snapshot and of the log behind it. Without such records the quorum is static: the voters are those of
controller.quorum.voters, or else this node, if quorum-state or the last LeaderChange names it as the only voter.

`kcli format --initial-controllers` names the first voters of a dynamic quorum:

    1@a.example:9093:<directory id>,2@[::1]:9093:<directory id>

Each voter has the id of its node, the address of its controller listener and the id of its metadata directory (22 characters).
A host that contains colons is in brackets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from kcli.format.java_text import parse_integer
from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.primitives import FormatError
from kcli.server.raft.messages import (
    AppendedControl,
    Endpoints,
    KRaftVersionEntry,
    ListenerEndpoint,
    ReplicaKey,
    VoterNode,
    Voters,
    VotersEntry,
)
from kcli.state.metadata_values import Voter

# The offset of voters that are not in the log yet, but only in the snapshot at offset 0 that formatting writes.
BEFORE_THE_LOG = -1
_HIGHEST_PORT = 65535
_LATEST_KRAFT_VERSION = 1
_Value = TypeVar("_Value")


class VoterError(ValueError):
    """A text that does not name voters; the message is one sentence that quotes it."""


def parse_dynamic_voters(text: str, listener: str) -> list[Voter]:
    """Return the voters of --initial-controllers, whose addresses are those of `listener`.

    Raises VoterError, also for a node or a directory that is named twice.
    """
    voters = [_parse(part.strip(), listener) for part in text.split(",") if part.strip()]
    if not voters:
        raise VoterError("no voter is named; a voter is ID@HOST:PORT:DIRECTORY_ID")
    for field, name in (("voter_id", "node id"), ("directory_id", "directory id")):
        values = [getattr(voter, field) for voter in voters]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise VoterError(f"two voters have the {name} {twice}")
    return voters


def _parse(text: str, listener: str) -> Voter:
    id_text, _, rest = text.partition("@")
    voter_id = parse_integer(id_text, 32)
    address, _, directory_text = rest.rpartition(":")
    host, _, port_text = address.rpartition(":")
    port = parse_integer(port_text, 32)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if voter_id is None or voter_id < 0 or not host or port is None or not 0 <= port <= _HIGHEST_PORT:
        raise VoterError(f"{text!r} is not a voter; a voter is ID@HOST:PORT:DIRECTORY_ID")
    try:
        return Voter(voter_id, Uuid.parse(directory_text), {listener: (host, port)})
    except FormatError as error:
        raise VoterError(f"{text!r} is not a voter: {error.message}") from None


def voter_node(voter: Voter) -> VoterNode:
    """Return a voter of a format or of controller.quorum.voters as the raft core has it."""
    endpoints = (ListenerEndpoint(name.upper(), host, port) for name, (host, port) in voter.endpoints.items())
    return VoterNode(ReplicaKey(voter.voter_id, voter.directory_id), tuple(endpoints), 0, _LATEST_KRAFT_VERSION)


def find_voter(voters: Voters, node_id: int) -> VoterNode | None:
    """Return the voter with a node id, or None."""
    return next((voter for voter in voters if voter.key.node_id == node_id), None)


def is_voter(voters: Voters, key: ReplicaKey) -> bool:
    """Return True for a voter; its directory counts only if the voters have directory ids."""
    voter = find_voter(voters, key.node_id)
    return voter is not None and voter.key.directory_id in (ZERO_UUID, key.directory_id)


def voter_ids(voters: Voters) -> tuple[int, ...]:
    """Return the node ids of voters."""
    return tuple(voter.key.node_id for voter in voters)


def with_voter(voters: Voters, voter: VoterNode) -> Voters:
    """Return the voters with one added, or replaced if its node is a voter already."""
    others = (one for one in voters if one.key.node_id != voter.key.node_id)
    return tuple(sorted((*others, voter), key=lambda one: one.key.node_id))


def address_on(endpoints: Endpoints, listener: str) -> tuple[str, int] | None:
    """Return host and port of a listener, whose name is compared in upper case."""
    return next(((at.host, at.port) for at in endpoints if at.listener.upper() == listener.upper()), None)


class VoterHistory:
    """The voters and the levels of kraft.version by the offsets of their records, which count as soon as they are appended.

    A truncation of the log takes them back. The records of a snapshot have the offset before its end; of 0-0.checkpoint -1.
    When the start of the log moves behind a snapshot, the voters below it are forgotten but for the last ones.
    """

    __slots__ = ("_kraft_versions", "_static", "_voters")

    def __init__(self, static_voters: Voters) -> None:
        self._static = static_voters
        self._voters: tuple[tuple[int, Voters], ...] = ()
        self._kraft_versions: tuple[tuple[int, int], ...] = ()

    def copy(self) -> VoterHistory:
        """Return a copy that shares nothing that changes."""
        twin = VoterHistory(self._static)
        twin._voters, twin._kraft_versions = self._voters, self._kraft_versions
        return twin

    def digest(self) -> tuple[object, ...]:
        """Return the state as a value that can be hashed."""
        return (self._static, self._voters, self._kraft_versions)

    @property
    def voters(self) -> Voters:
        """The voters at the end of the log."""
        return self._voters[-1][1] if self._voters else self._static

    @property
    def voters_offset(self) -> int:
        """The offset of the last record with voters; BEFORE_THE_LOG if the log has none."""
        return self._voters[-1][0] if self._voters else BEFORE_THE_LOG

    @property
    def kraft_version(self) -> int:
        """The level of kraft.version at the end of the log."""
        return self._kraft_versions[-1][1] if self._kraft_versions else 0

    def voters_before(self, offset: int) -> Voters:
        """Return the voters of all records below `offset`, for a snapshot there."""
        return next((voters for at, voters in reversed(self._voters) if at < offset), self._static)

    def kraft_version_before(self, offset: int) -> int:
        """Return the level of kraft.version of all records below `offset`."""
        return next((version for at, version in reversed(self._kraft_versions) if at < offset), 0)

    def apply(self, record: AppendedControl) -> None:
        """Add a control record of the log or of a snapshot."""
        entry = record.entry
        if isinstance(entry, VotersEntry):
            self._voters = (*self._voters, (record.offset, entry.voters))
        elif isinstance(entry, KRaftVersionEntry):
            self._kraft_versions = (*self._kraft_versions, (record.offset, entry.level))

    def truncate_to(self, offset: int) -> None:
        """Forget the records from `offset` on."""
        self._voters = tuple(entry for entry in self._voters if entry[0] < offset)
        self._kraft_versions = tuple(entry for entry in self._kraft_versions if entry[0] < offset)

    def trim_to(self, log_start_offset: int) -> None:
        """Forget what no snapshot at the start of the log or behind it needs (Kafka: trimPrefixTo)."""
        self._voters = _from_last_below(self._voters, log_start_offset)
        self._kraft_versions = _from_last_below(self._kraft_versions, log_start_offset)

    def reload(self, records: Iterable[AppendedControl]) -> None:
        """Forget everything, then add the control records of a snapshot and of the log behind it."""
        self._voters = self._kraft_versions = ()
        for record in records:
            self.apply(record)


def _from_last_below(entries: tuple[tuple[int, _Value], ...], offset: int) -> tuple[tuple[int, _Value], ...]:
    below = sum(at < offset for at, _ in entries)
    return entries[max(below - 1, 0) :]
