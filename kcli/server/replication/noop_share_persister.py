"""A persister without a share coordinator: every state is new, and writes succeed (Kafka: NoOpStatePersister)."""

from __future__ import annotations

from collections.abc import Callable

from kcli.protocol import error_codes
from kcli.server.replication.share_persister import ShareKey, ShareState, ShareSummary, ShareUpdateBatches


class NoOpSharePersister:
    """Keeps nothing: a group begins anew with each leader."""

    def read(self, key: ShareKey, leader_epoch: int, done: Callable[[ShareState | int], None]) -> None:
        """Return a state without a start offset."""
        done(ShareState(0, -1, ()))

    def write(self, key: ShareKey, update: ShareUpdateBatches, done: Callable[[int], None]) -> None:
        """Do nothing."""
        done(error_codes.NONE)

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int, done: Callable[[int], None]) -> None:
        """Do nothing."""
        done(error_codes.NONE)

    def delete(self, key: ShareKey, done: Callable[[int], None]) -> None:
        """Do nothing."""
        done(error_codes.NONE)

    def read_summary(self, key: ShareKey, done: Callable[[ShareSummary | int], None]) -> None:
        """Return a state without a start offset."""
        done(ShareSummary(0, -1, -1, -1))
