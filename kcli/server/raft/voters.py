"""Who votes at first in a dynamic quorum, as --initial-controllers says it (KIP-853).

    1@a.example:9093:<directory id>,2@[::1]:9093:<directory id>

Each voter has its node's id, the address of its controller's listener and the id of its metadata directory, 22 characters. A
host that holds colons stands in brackets. `--standalone` makes the same of a node's own listener and a new directory id;
those of a static quorum stand in controller.quorum.voters and are read by kcli.server.config.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.java_integers import parse_integer
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import FormatError

_HIGHEST_PORT = 65535


class VoterError(ValueError):
    """A text that names no voters; the message is one sentence that quotes it."""


class VoterAddress(NamedTuple):
    """A voter, where its controller listens, and its metadata directory."""

    node_id: int
    host: str
    port: int
    directory_id: Uuid


def parse_dynamic_voters(text: str) -> list[VoterAddress]:
    """The voters of --initial-controllers. Raises VoterError, also for a node or a directory named twice."""
    voters = [_parse(part.strip()) for part in text.split(",") if part.strip()]
    if not voters:
        raise VoterError("no voter is named; a voter is ID@HOST:PORT:DIRECTORY_ID")
    for field in ("node_id", "directory_id"):
        values = [getattr(voter, field) for voter in voters]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise VoterError(f"{twice} is the {field.replace('_', ' ')} of two voters")
    return voters


def _parse(text: str) -> VoterAddress:
    id_text, _, rest = text.partition("@")
    node_id = parse_integer(id_text, 32)
    address, _, directory_text = rest.rpartition(":")
    host, _, port_text = address.rpartition(":")
    port = parse_integer(port_text, 32)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if node_id is None or node_id < 0 or not host or port is None or not 0 <= port <= _HIGHEST_PORT:
        raise VoterError(f"{text!r} is no voter; a voter is ID@HOST:PORT:DIRECTORY_ID")
    try:
        return VoterAddress(node_id, host, port, Uuid.parse(directory_text))
    except FormatError as error:
        raise VoterError(f"{text!r} is no voter: {error.message}") from None
