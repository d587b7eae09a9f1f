"""Finds messages by name, and record messages by record type; the declarations are the text files in messages/.

    file                     declares
    -----------------------  ----------------------------------------------------------------------------
    control_records          control records, the classic consumers' subscription and assignment, quorum-state
    group_records            __consumer_offsets
    transaction_records      __transaction_state
    share_records            __share_group_state
    metadata_records         __cluster_metadata
    remote_log_records       __remote_log_metadata

A file is read and parsed when one of its messages is first used.
"""

from __future__ import annotations

from functools import cache

from kcli.protocol.compiler import MessageType
from kcli.protocol.schema import parse_schemas

_FOLDER = __file__.removesuffix("message_types.py") + "messages/"


@cache
def message_types(file: str) -> dict[str, MessageType]:
    """Return the messages of messages/`file`.txt by name. Raises OSError if the package does not have the file."""
    # The package's loader also reads from a zip file, which Spark sends to its executors.
    text = __loader__.get_data(f"{_FOLDER}{file}.txt").decode()  # type: ignore[name-defined]
    return {schema.name: MessageType(schema) for schema in parse_schemas(text)}


@cache
def record_types(file: str, kind: str) -> dict[int, MessageType]:
    """Return the messages of one `kind` ("metadata", "coordinator-key", "coordinator-value") in a file, by record type."""
    found = [type_ for type_ in message_types(file).values() if type_.schema.kind == kind]
    return {type_.key: type_ for type_ in found if type_.key is not None}


def message_type(file: str, name: str) -> MessageType:
    """Return the message `name` of messages/`file`.txt. Raises KeyError if the file does not declare it."""
    return message_types(file)[name]
