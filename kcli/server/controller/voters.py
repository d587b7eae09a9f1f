"""Who votes, as command lines and configurations say it, and where a controller listens.

    text                                                means
    --------------------------------------------------  ------------------------------------------------------------
    controller.quorum.voters=1@a:9093,2@b:9093          a static quorum: ids and addresses, known to all by file
    --initial-controllers 1@a:9093:<directory id>,...   the voters that a dynamic quorum begins with (KIP-853)

A host that holds colons stands in brackets. `--standalone` makes the same of a node's own listener and a new directory id.
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
    """A voter and where its controller listens; a static quorum tells no directory."""

    node_id: int
    host: str
    port: int
    directory_id: Uuid | None = None


def parse_static_voters(text: str) -> list[VoterAddress]:
    """The voters of controller.quorum.voters; none for an empty text. Raises VoterError."""
    return [_parse(part.strip(), has_directory=False) for part in text.split(",") if part.strip()]


def parse_dynamic_voters(text: str) -> list[VoterAddress]:
    """The voters of --initial-controllers. Raises VoterError, also for a node or a directory named twice."""
    voters = [_parse(part.strip(), has_directory=True) for part in text.split(",") if part.strip()]
    if not voters:
        raise VoterError("no voter is named; a voter is ID@HOST:PORT:DIRECTORY_ID")
    for field in ("node_id", "directory_id"):
        values = [getattr(voter, field) for voter in voters]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise VoterError(f"{twice} is the {field.replace('_', ' ')} of two voters")
    return voters


def _parse(text: str, *, has_directory: bool) -> VoterAddress:
    form = "ID@HOST:PORT:DIRECTORY_ID" if has_directory else "ID@HOST:PORT"
    id_text, _, rest = text.partition("@")
    node_id = parse_integer(id_text, 32)
    directory_id = None
    if has_directory:
        rest, _, directory_text = rest.rpartition(":")
        try:
            directory_id = Uuid.parse(directory_text)
        except FormatError as error:
            raise VoterError(f"{text!r} is no voter ({form}): {error.message}") from None
    host, _, port_text = rest.rpartition(":")
    port = parse_integer(port_text, 32)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if node_id is None or node_id < 0 or not host or port is None or not 0 <= port <= _HIGHEST_PORT:
        raise VoterError(f"{text!r} is no voter; a voter is {form}")
    return VoterAddress(node_id, host, port, directory_id)
