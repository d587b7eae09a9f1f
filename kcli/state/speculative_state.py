"""A state that a leader decides on: the committed records, and those that this leader appended and that are not committed yet.

    step       when                                        does
    ---------  ------------------------------------------  ----------------------------------------------------------------
    append     the leader appended a record                applies it, and keeps what reverts it
    prepare,   the leader is about to append a record,     the same, in time slices: a record that is prepared is committed
    confirm    and has appended those that are prepared    by no offset before it is confirmed
    commit     the high watermark moved                    drops what reverts the records below it
    roll_back  the leader lost its leadership              reverts all records that are not committed
    committed  a snapshot is to be written                 returns a frozen copy without the records that are not committed

Committed records that another leader wrote are applied to the state itself. The controller's image (SnapshottedState) and the
coordinators' states use this. Kafka does the same with its timeline data structures (SnapshotRegistry.revertToSnapshot and
deleteSnapshotsUpTo). The state exists once, so that committed records cost nothing more than before; a record has undo entries
only between its append and its commit, which take about 0.5 us.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

_UNDO_ITEMS = 3
_ABSENT = object()


class RevertibleState(Protocol):
    """A state made of records. While `undo` is a list, applying a record adds the entries that `revert` needs."""

    undo: list[Any] | None

    def revert(self, undo: Sequence[Any]) -> None:
        """Restore what these undo entries describe, the last first; they may be those of a state that this one is a copy of."""
        ...


class FreezableState(RevertibleState, Protocol):
    """A state of which snapshots are made."""

    def frozen(self) -> Self:
        """Return a copy that later changes of this state do not affect."""
        ...


class MapsState:
    """A revertible state of maps and of objects with attributes: a subclass changes them by the methods of this class only.

    An undo entry is three items of the list: the map or object, the key or attribute, and the value before.
    """

    def __init__(self) -> None:
        self.undo: list[Any] | None = None

    def _put(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        if self.undo is not None:
            self.undo += (mapping, key, mapping.get(key, _ABSENT))
        mapping[key] = value

    def _remove(self, mapping: dict[Any, Any], key: Any) -> None:
        """Remove a key; nothing happens if the map does not have it."""
        if key in mapping:
            if self.undo is not None:
                self.undo += (mapping, key, mapping[key])
            del mapping[key]

    def _assign(self, owner: object, attribute: str, value: Any) -> None:
        if self.undo is not None:
            self.undo += (owner, attribute, getattr(owner, attribute))
        setattr(owner, attribute, value)

    def revert(self, undo: Sequence[Any]) -> None:
        """Restore the values of these undo entries, the last first."""
        for at in range(len(undo) - _UNDO_ITEMS, -1, -_UNDO_ITEMS):
            owner, key, before = undo[at : at + _UNDO_ITEMS]
            if not isinstance(owner, dict):
                setattr(owner, key, before)
            elif before is _ABSENT:
                owner.pop(key, None)
            else:
                owner[key] = before


_State = TypeVar("_State", bound=RevertibleState)
_Freezable = TypeVar("_Freezable", bound=FreezableState)
_Record = TypeVar("_Record")


class SpeculativeState(Generic[_State, _Record]):
    """`state` has every record that was applied, committed or not. `apply(record, offset)` is its method that applies one."""

    def __init__(self, state: _State, apply: Callable[[_Record, int], None]) -> None:
        self.state = state
        self._apply = apply
        self._undo: list[Any] = []  # of all records that are not committed
        self._uncommitted: deque[int] = deque()  # offset and number of undo entries of each record
        self._prepared = 0  # the number of undo entries, the last ones, of records that are prepared

    def append(self, record: _Record, offset: int) -> None:
        """Apply a record that this leader appended. Raises what the state raises, which is then as before."""
        self._uncommitted += (offset, self._apply_revertibly(record, offset))

    def prepare(self, record: _Record, offset: int) -> None:
        """Apply a record that will be appended; `confirm` or `roll_back` comes before any `append`. Raises as `append`."""
        self._prepared += self._apply_revertibly(record, offset)

    def confirm(self, last_offset: int) -> None:
        """Take the records that are prepared as appended in one batch, whose last offset is given."""
        self._uncommitted += (last_offset, self._prepared)
        self._prepared = 0

    def _apply_revertibly(self, record: _Record, offset: int) -> int:
        """Return the number of undo entries."""
        undo = self._undo
        before = len(undo)
        self.state.undo = undo
        try:
            self._apply(record, offset)
        except BaseException:
            self.state.undo = None
            self.state.revert(undo[before:])
            del undo[before:]
            raise
        self.state.undo = None
        return len(undo) - before

    def commit(self, last_offset: int) -> None:
        """Take the records up to this offset as committed."""
        uncommitted, count = self._uncommitted, 0
        while uncommitted and uncommitted[0] <= last_offset:
            uncommitted.popleft()
            count += uncommitted.popleft()
        del self._undo[:count]

    def roll_back(self, from_offset: int = 0) -> None:
        """Revert the records that are prepared, and those that are not committed from an offset on."""
        uncommitted, count = self._uncommitted, self._prepared
        self._prepared = 0
        while uncommitted and uncommitted[-2] >= from_offset:
            count += uncommitted.pop()
            uncommitted.pop()
        at = len(self._undo) - count
        undo = self._undo[at:]
        del self._undo[at:]
        self.state.revert(undo)


class SnapshottedState(SpeculativeState[_Freezable, _Record]):
    """A speculative state of which snapshots are made."""

    def committed(self) -> _Freezable:
        """Return a copy of the state as the committed records alone make it."""
        copy = self.state.frozen()
        copy.revert(self._undo)
        return copy
