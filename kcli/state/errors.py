"""The error of records that do not fit the state to which they are applied."""

from __future__ import annotations

from kcli.format.primitives import FormatError


class StateError(FormatError):
    """A record that does not fit what came before it, such as a change of a partition that was never made.

    The state is as it was before the record. Kafka's brokers and controllers stop, or fail to load, for the same reason.
    """
