"""Which voters and which kraft.version hold at an offset of the metadata log, committed or not.

A KRaft node goes by the last voters that stand in its log, even before they are committed (KIP-853). They come from the
control records KRaftVersion and Voters of the latest snapshot and of the log behind it. Where there are none, the quorum is
static: the voters are those of controller.quorum.voters, or else this node where quorum-state or the last LeaderChange
lists it alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcli.protocol.control_records import KRAFT_VERSION, KRAFT_VOTERS, LEADER_CHANGE, ControlRecord
from kcli.protocol.message import Message
from kcli.state.metadata_values import Voter

# The offset of voters that a snapshot at offset 0 tells: they do not stand in the log yet.
BEFORE_THE_LOG = -1


def voters_of(message: Message) -> dict[int, Voter]:
    """The voters of a VotersRecord, by id."""
    return {
        voter.voter_id: Voter(
            voter.voter_id,
            voter.voter_directory_id,
            {endpoint.name: (endpoint.host, endpoint.port) for endpoint in voter.endpoints},
        )
        for voter in message.voters
    }


class VoterHistory:
    """The sets of voters and the kraft.versions by the offsets where they were written."""

    def __init__(self, static_voters: Iterable[Voter]) -> None:
        self._static = {voter.voter_id: voter for voter in static_voters}
        self._voters: list[tuple[int, dict[int, Voter]]] = []
        self._kraft_versions: list[tuple[int, int]] = []
        self.recorded_voter_ids: tuple[int, ...] = ()  # of a static quorum, as quorum-state or the last LeaderChange lists them

    @property
    def voters(self) -> dict[int, Voter]:
        """The voters that hold now."""
        return self._voters[-1][1] if self._voters else self._static

    @property
    def voters_offset(self) -> int:
        """Where the voters that hold now were written; BEFORE_THE_LOG where the log does not have them."""
        return self._voters[-1][0] if self._voters else BEFORE_THE_LOG

    @property
    def kraft_version(self) -> int:
        """The kraft.version that holds now."""
        return self._kraft_versions[-1][1] if self._kraft_versions else 0

    def voters_before(self, offset: int) -> dict[int, Voter]:
        """The voters that all records below `offset` leave, for a snapshot there."""
        return next((voters for at, voters in reversed(self._voters) if at < offset), self._static)

    def kraft_version_before(self, offset: int) -> int:
        """The kraft.version that all records below `offset` leave."""
        return next((version for at, version in reversed(self._kraft_versions) if at < offset), 0)

    def apply(self, offset: int, record: ControlRecord) -> None:
        """Take note of a control record at an offset, or of a snapshot that ends there (then the offset before its end)."""
        if record.message is None:
            return
        if record.type_id == KRAFT_VERSION:
            self._kraft_versions.append((offset, record.message.kraft_version))
        elif record.type_id == KRAFT_VOTERS:
            self._voters.append((offset, voters_of(record.message)))
        elif record.type_id == LEADER_CHANGE:
            self.recorded_voter_ids = tuple(voter.voter_id for voter in record.message.voters)

    def take_recorded_voter(self, own: Voter) -> None:
        """Take this node for the voter where no voters are known, but the directory records it as the only one."""
        if not self.voters and self.recorded_voter_ids == (own.voter_id,):
            self._static = {own.voter_id: own}

    def truncate_to(self, offset: int) -> None:
        """Forget what was written from `offset` on."""
        self._voters = [entry for entry in self._voters if entry[0] < offset]
        self._kraft_versions = [entry for entry in self._kraft_versions if entry[0] < offset]
