"""Share sessions: a member names its partitions once, and then only changes (KIP-932; Kafka: ShareSession, ShareSessionCache).

    epoch   ShareFetch                                             ShareAcknowledge
    ------  -----------------------------------------------------  -----------------------------------------------------
    0       begins a session of the named partitions; a previous   INVALID_SHARE_SESSION_EPOCH
            one of the member ends. Not with acknowledgements:
            INVALID_REQUEST
    n > 0   the partitions of the session, after the changes; n    acknowledges; n must be the session's epoch
            must be the session's epoch, which is increased
    -1      acknowledges, fetches nothing, and ends the session    acknowledges and ends the session

A session belongs to a group and a member: SHARE_SESSION_NOT_FOUND without one, INVALID_SHARE_SESSION_EPOCH for another epoch.
The cache holds group.share.max.share.sessions sessions; it evicts none of them. A session also ends with the connection that
began it. When the last member of a group has no session any more and a connection of the group ends, the group is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import INT32_MAX
from kcli.protocol import error_codes
from kcli.server.events import Connection

INITIAL_EPOCH = 0
FINAL_EPOCH = -1

# A topic's id and the index of a partition.
ShareTarget = tuple[Uuid, int]


class MemberKey(NamedTuple):
    """The key of a session."""

    group_id: str
    member_id: str


class ShareSessionError(Exception):
    """A request that does not fit its session; `code` is Kafka's error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class ShareSession:
    """The partitions of a member, in the order in which they are read; True for one whose next answer is sent in any case.

    `connection` is the one that has begun it.
    """

    __slots__ = ("connection", "epoch", "key", "targets")

    def __init__(self, key: MemberKey, targets: Iterable[ShareTarget], connection: Connection) -> None:
        self.key = key
        self.connection = connection
        self.epoch = 1
        self.targets: dict[ShareTarget, bool] = dict.fromkeys(targets, False)

    def update(self, targets: Iterable[ShareTarget], forgotten: Iterable[ShareTarget]) -> None:
        """Add and remove partitions."""
        for target in targets:
            self.targets.setdefault(target, True)
        for target in forgotten:
            self.targets.pop(target, None)

    def next_epoch(self) -> None:
        """Increase the epoch; 1 follows the highest."""
        self.epoch = 1 if self.epoch == INT32_MAX else self.epoch + 1

    def has_news(self, target: ShareTarget, size_bytes: int, code: int) -> bool:
        """Return whether the answer for a partition is to be sent; one with records moves to the end of the order."""
        must_send = self.targets.get(target)
        if must_send is None:
            return False
        self.targets[target] = code != error_codes.NONE
        if size_bytes > 0:
            self.targets[target] = self.targets.pop(target)
        return size_bytes > 0 or must_send or code != error_codes.NONE


class SharePlan(NamedTuple):
    """The partitions that a fetch reads; `session` is that of a fetch with an epoch above 0, and `epoch` what it has become."""

    targets: list[ShareTarget]
    session: ShareSession | None
    epoch: int


class ShareSessionCache:
    """The sessions of a broker.

    `member_left(key)` is called before a session ends with its connection, `group_empty(group_id)` when no member is left.
    """

    def __init__(self, max_sessions: int, member_left: Callable[[MemberKey], None], group_empty: Callable[[str], None]) -> None:
        self._max_sessions = max_sessions
        self._member_left = member_left
        self._group_empty = group_empty
        self._sessions: dict[MemberKey, ShareSession] = {}
        self._members: dict[str, int] = {}  # the number of sessions by group
        self._keys: dict[Connection, MemberKey] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """The number of partitions of all sessions."""
        return sum(len(session.targets) for session in self._sessions.values())

    def remove(self, key: MemberKey) -> bool:
        """Remove a session; return whether there was one."""
        if self._sessions.pop(key, None) is None:
            return False
        self._members[key.group_id] -= 1
        return True

    def plan(
        self,
        key: MemberKey,
        epoch: int,
        targets: list[ShareTarget],
        forgotten: list[ShareTarget],
        connection: Connection,
        *,
        has_acknowledgements: bool,
    ) -> SharePlan:
        """Return the partitions that a ShareFetch reads, and update its session. Raises ShareSessionError."""
        if epoch == FINAL_EPOCH:
            self._find(key)
            return SharePlan([], None, epoch)
        if epoch == INITIAL_EPOCH:
            if has_acknowledgements:
                raise ShareSessionError(error_codes.INVALID_REQUEST, "the first fetch of a share session acknowledges records")
            self.remove(key)
            if len(self._sessions) >= self._max_sessions:
                raise ShareSessionError(
                    error_codes.SHARE_SESSION_LIMIT_REACHED, f"there are {len(self._sessions)} share sessions"
                )
            session = self._sessions[key] = ShareSession(key, targets, connection)
            self._members[key.group_id] = self._members.get(key.group_id, 0) + 1
            self._keys[connection] = key
            return SharePlan(list(session.targets), None, epoch)
        session = self._checked(key, epoch)
        session.update(targets, forgotten)
        session.next_epoch()
        return SharePlan(list(session.targets), session, session.epoch)

    def acknowledge(self, key: MemberKey, epoch: int) -> None:
        """Update the session of a ShareAcknowledge. Raises ShareSessionError."""
        if epoch == INITIAL_EPOCH:
            raise ShareSessionError(error_codes.INVALID_SHARE_SESSION_EPOCH, "ShareAcknowledge cannot begin a share session")
        if epoch == FINAL_EPOCH:
            self._find(key)
        else:
            self._checked(key, epoch).next_epoch()

    def _find(self, key: MemberKey) -> ShareSession:
        session = self._sessions.get(key)
        if session is None:
            text = f"member {key.member_id} of group {key.group_id} has no share session"
            raise ShareSessionError(error_codes.SHARE_SESSION_NOT_FOUND, text)
        return session

    def _checked(self, key: MemberKey, epoch: int) -> ShareSession:
        session = self._find(key)
        if session.epoch != epoch:
            text = f"the share session of member {key.member_id} is at epoch {session.epoch}, not {epoch}"
            raise ShareSessionError(error_codes.INVALID_SHARE_SESSION_EPOCH, text)
        return session

    def connection_closed(self, connection: Connection) -> None:
        """End the session that a connection has begun."""
        key = self._keys.pop(connection, None)
        if key is None:
            return
        session = self._sessions.get(key)
        if session is not None and session.connection == connection:  # not a later session of the member
            self._member_left(key)
            self.remove(key)
        if not self._members.get(key.group_id):
            self._members.pop(key.group_id, None)
            self._group_empty(key.group_id)
