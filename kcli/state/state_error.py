"""The error for records that do not fit the state."""

from __future__ import annotations

from kcli.format.primitives import FormatError


class StateError(FormatError):
    """A record that does not fit the state, such as a change of a partition that does not exist.

    The state does not change. With such a record Kafka's brokers and controllers stop, or fail to load.
    """
