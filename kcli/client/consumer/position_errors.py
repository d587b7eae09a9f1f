"""Errors that wait for the next poll of an application, which raises the oldest one.

One error waits for each place and kind: a second one replaces it. The errors of a partition are removed when the application
seeks or resets it, when a fetch of it succeeds, and when it is not assigned any more.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.client.errors import ClientError, KafkaError
from kcli.format.primitives import TopicPartition

# A partition, a topic, or the consumer itself.
Place = TopicPartition | str | None


class PositionErrors:
    """The errors of one consumer."""

    def __init__(self) -> None:
        self._errors: dict[tuple[Place, type[ClientError], int], ClientError] = {}

    def __len__(self) -> int:
        return len(self._errors)

    def put(self, error: ClientError, place: Place = None) -> None:
        """Keep an error until it is taken."""
        code = error.code if isinstance(error, KafkaError) else 0
        self._errors[place, type(error), code] = error

    def take(self) -> ClientError | None:
        """Return the oldest error, once."""
        return self._errors.pop(next(iter(self._errors))) if self._errors else None

    def drop(self, place: Place) -> None:
        """Remove the errors of a place."""
        self.keep(lambda one: one != place)

    def keep(self, is_kept: Callable[[Place], bool]) -> None:
        """Remove the errors of other places."""
        if self._errors:
            self._errors = {kind: error for kind, error in self._errors.items() if is_kept(kind[0])}
