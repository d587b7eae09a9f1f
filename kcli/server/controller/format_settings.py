"""What formatting takes from a server.properties, and how the options of `kcli format` complete it.

key                                   says
------------------------------------  --------------------------------------------------------------------------
node.id                               whose the directories are
process.roles                         "controller" among them: the metadata directory may hold voters
log.dirs, log.dir, metadata.log.dir   the directories; the metadata lies in the first unless the last names another
controller.listener.names             the first is the listener under which voters are known
advertised.listeners, listeners       where it is reached, for --standalone
controller.quorum.voters              a static quorum; then no option may name voters
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kcli.format.java_integers import parse_integer
from kcli.format.kafka_uuid import random_uuid
from kcli.server.controller.features import (
    METADATA_VERSION,
    SCRAM_SINCE,
    FeatureError,
    initial_features,
    metadata_version_name,
)
from kcli.server.controller.formatting import FormatPlan, FormattingError
from kcli.server.controller.scram import ScramError, parse_scram
from kcli.server.controller.voters import VoterAddress, VoterError, parse_dynamic_voters, parse_static_voters

DEFAULT_LOG_DIR = "/tmp/kafka-logs"


class FormatOptions(NamedTuple):
    """The options of `kcli format` as they were typed; `cluster_id` None asks for a new one."""

    cluster_id: str | None = None
    is_standalone: bool = False
    has_no_initial_controllers: bool = False
    initial_controllers: str | None = None
    features: Sequence[str] = ()
    release: str | None = None
    scram: Sequence[str] = ()
    ignore_formatted: bool = False


def plan_format(properties: Mapping[str, str], options: FormatOptions, random_bytes: Callable[[int], bytes]) -> FormatPlan:
    """What is to be formatted, by a configuration and the options. Raises FormattingError where they do not go together."""
    node_id = parse_integer(properties.get("node.id", properties.get("broker.id", "")).strip(), 32)
    if node_id is None or node_id < 0:
        raise FormattingError("node.id is missing in the configuration, or is no number from 0 on")
    directories = _list(properties, "log.dirs") or _list(properties, "log.dir") or [DEFAULT_LOG_DIR]
    metadata_directory = properties.get("metadata.log.dir", "").strip() or directories[0]
    if metadata_directory not in directories:
        directories.append(metadata_directory)
    listener = (_list(properties, "controller.listener.names") or ["CONTROLLER"])[0]
    try:
        static = parse_static_voters(properties.get("controller.quorum.voters", ""))
        voters = _initial_voters(properties, options, node_id, listener, bool(static), random_bytes)
        features = initial_features(_asked_features(options.features), options.release, is_dynamic_quorum=not static)
        records = [parse_scram(text, random_bytes) for text in options.scram]
    except (VoterError, FeatureError, ScramError) as error:
        raise FormattingError(str(error)) from None
    if records and features[METADATA_VERSION] < SCRAM_SINCE:
        raise FormattingError(
            f"SCRAM credentials need metadata.version {metadata_version_name(SCRAM_SINCE)} or later; "
            f"it is {metadata_version_name(features[METADATA_VERSION])}"
        )
    return FormatPlan(
        cluster_id=options.cluster_id if options.cluster_id is not None else str(random_uuid(random_bytes)),
        node_id=node_id,
        directories=tuple(dict.fromkeys(directories)),
        metadata_directory=metadata_directory,
        features=features,
        voters=voters,
        controller_listener=listener,
        more_records=records,
        ignore_formatted=options.ignore_formatted,
    )


def _list(properties: Mapping[str, str], key: str) -> list[str]:
    return [part.strip() for part in properties.get(key, "").split(",") if part.strip()]


def _asked_features(texts: Sequence[str]) -> dict[str, int]:
    asked: dict[str, int] = {}
    for text in texts:
        name, _, level_text = text.partition("=")
        level = parse_integer(level_text.strip(), 16)
        if level is None:
            raise FeatureError(f"--feature takes NAME=LEVEL, such as group.version=1; {text!r} is not that")
        asked[name.strip()] = level
    return asked


def _initial_voters(
    properties: Mapping[str, str],
    options: FormatOptions,
    node_id: int,
    listener: str,
    is_static: bool,
    random_bytes: Callable[[int], bytes],
) -> list[VoterAddress] | None:
    """The voters that a dynamic quorum begins with; None where this directory tells none."""
    choices = (options.is_standalone, options.has_no_initial_controllers, options.initial_controllers is not None)
    if is_static and any(choices):
        raise FormattingError(
            "controller.quorum.voters makes the quorum static: leave --standalone, --initial-controllers and "
            "--no-initial-controllers out, or the key"
        )
    is_controller = "controller" in _list(properties, "process.roles")
    if options.initial_controllers is not None:
        return parse_dynamic_voters(options.initial_controllers)
    if options.is_standalone:
        if not is_controller:
            raise FormattingError("--standalone is for a controller; process.roles does not name that role")
        host, port = _controller_address(properties, listener)
        return [VoterAddress(node_id, host, port, random_uuid(random_bytes))]
    if is_controller and not is_static and not options.has_no_initial_controllers:
        raise FormattingError(
            "this controller has no controller.quorum.voters, so say who votes: --standalone, --initial-controllers "
            "or --no-initial-controllers"
        )
    return None


def _controller_address(properties: Mapping[str, str], listener: str) -> tuple[str, int]:
    """Where the controller's listener is reached. Raises FormattingError where no listener has that name."""
    for key in ("advertised.listeners", "listeners"):
        for entry in _list(properties, key):
            name, _, address = entry.partition("://")
            host, _, port_text = address.rpartition(":")
            port = parse_integer(port_text, 32)
            if name.upper() == listener.upper() and port is not None:
                return host.removeprefix("[").removesuffix("]") or "localhost", port
    raise FormattingError(f"neither advertised.listeners nor listeners has a listener {listener!r}, where the voter would be")
