"""The bytes in classic groups of consumers: the subscription of a member, and its assignment (Kafka: ConsumerProtocol).

    version  subscription                                   assignment
    -------  ---------------------------------------------  --------------------
    0        topics, user data                              topics with partitions, user data
    1        + the partitions that the member has (KIP-429)
    2        + the generation in which it got them (KIP-792)
    3        + its rack (KIP-881)

Both begin with the version, an int16. A later version than the latest known one is read as that: new versions only add fields.
"""

from __future__ import annotations

from kcli.protocol.compiler import MessageType
from kcli.protocol.message import Message
from kcli.protocol.message_errors import DecodeError
from kcli.protocol.message_types import message_type

LATEST_VERSION = 3
_VERSION_BYTES = 2


def subscription_type() -> MessageType:
    """Return the type of subscriptions."""
    return message_type("control_records", "ConsumerProtocolSubscription")


def assignment_type() -> MessageType:
    """Return the type of assignments."""
    return message_type("control_records", "ConsumerProtocolAssignment")


def read_version(data: bytes) -> int:
    """Return the version in which a subscription or an assignment is read, 0 to 3. Raises DecodeError."""
    version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
    if len(data) < _VERSION_BYTES or version < 0:
        raise DecodeError(f"{version} is not a version of the consumer protocol", 0)
    return min(version, LATEST_VERSION)


def decode_subscription_message(metadata: bytes) -> Message:
    """Decode the subscription of a member. Raises DecodeError."""
    return subscription_type().decode(metadata, read_version(metadata), _VERSION_BYTES)[0]


def decode_assignment_message(assignment: bytes) -> Message:
    """Decode the assignment of a member. Raises DecodeError."""
    return assignment_type().decode(assignment, read_version(assignment), _VERSION_BYTES)[0]


def encode_message(kind: MessageType, message: Message, version: int) -> bytes:
    """Encode a subscription or an assignment. Raises EncodeError and UnsupportedVersionError."""
    return version.to_bytes(_VERSION_BYTES, "big") + kind.encode(message, version)
