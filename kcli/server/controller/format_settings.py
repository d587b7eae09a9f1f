"""The plan of `kcli format`: what it reads from a node's configuration, completed by its options.

key                                   states
------------------------------------  --------------------------------------------------------------------------
node.id                               the node that the directories belong to
process.roles                         "controller" among them: the metadata directory may hold voters
log.dirs, log.dir, metadata.log.dir   the directories; the metadata log is in the first unless the last names another
controller.listener.names             the first is the listener of the voters' endpoints
advertised.listeners, listeners       the endpoint of the voter, for --standalone
controller.quorum.voters              a static quorum; no option may name voters
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kcli.format.java_integers import parse_integer
from kcli.format.kafka_uuid import random_uuid
from kcli.server.config.server_config import ServerConfig
from kcli.server.controller.formatting import FormatPlan, FormattingError
from kcli.server.controller.scram_parser import ScramError, parse_scram
from kcli.server.features import (
    METADATA_VERSION,
    SCRAM_SINCE,
    FeatureError,
    initial_features,
    metadata_version_name,
)
from kcli.server.raft.voter_set import VoterError, parse_dynamic_voters
from kcli.state.metadata_values import Voter


class FormatOptions(NamedTuple):
    """The options of `kcli format`; without `cluster_id`, that of formatted directories or a new one is used."""

    cluster_id: str | None = None
    is_standalone: bool = False
    has_no_initial_controllers: bool = False
    initial_controllers: str | None = None
    features: Sequence[str] = ()
    release: str | None = None
    scram: Sequence[str] = ()
    ignore_formatted: bool = False


def plan_format(config: ServerConfig, options: FormatOptions, random_bytes: Callable[[int], bytes]) -> FormatPlan:
    """Return the plan for a configuration and options. Raises FormattingError if they conflict."""
    is_static = bool(config.quorum_voters)
    try:
        voters = _initial_voters(config, options, random_bytes)
        features = initial_features(_requested_features(options.features), options.release, is_dynamic_quorum=not is_static)
        records = [parse_scram(text, random_bytes) for text in options.scram]
    except (VoterError, FeatureError, ScramError) as error:
        raise FormattingError(str(error)) from None
    if records and features[METADATA_VERSION] < SCRAM_SINCE:
        raise FormattingError(
            f"SCRAM credentials need metadata.version {metadata_version_name(SCRAM_SINCE)} or later; "
            f"it is {metadata_version_name(features[METADATA_VERSION])}"
        )
    return FormatPlan(
        cluster_id=options.cluster_id,
        node_id=config.node_id,
        directories=tuple(dict.fromkeys([*config.log_dirs, config.metadata_log_dir])),
        metadata_directory=config.metadata_log_dir,
        features=features,
        voters=voters,
        more_records=records,
        ignore_formatted=options.ignore_formatted,
        is_controller=config.is_controller,
    )


def _requested_features(texts: Sequence[str]) -> dict[str, int]:
    requested: dict[str, int] = {}
    for text in texts:
        name, _, level_text = text.partition("=")
        level = parse_integer(level_text.strip(), 16)
        if level is None:
            raise FeatureError(f"--feature needs NAME=LEVEL, such as group.version=1, not {text!r}")
        requested[name.strip()] = level
    return requested


def _initial_voters(config: ServerConfig, options: FormatOptions, random_bytes: Callable[[int], bytes]) -> list[Voter] | None:
    """Return the first voters of a dynamic quorum; None if the metadata directory gets none."""
    listener_name = config.controller_listener_names[0].upper()
    choices = (options.is_standalone, options.has_no_initial_controllers, options.initial_controllers is not None)
    if config.quorum_voters and any(choices):
        raise FormattingError(
            "controller.quorum.voters makes the quorum static: remove either the key, or --standalone, "
            "--initial-controllers and --no-initial-controllers"
        )
    if options.initial_controllers is not None:
        return parse_dynamic_voters(options.initial_controllers, listener_name)
    if options.is_standalone:
        if not config.is_controller:
            raise FormattingError("--standalone is for a controller, and process.roles does not contain that role")
        if not config.advertised_controller_listeners:
            names = ", ".join(config.controller_listener_names)
            raise FormattingError(
                f"listeners has none of controller.listener.names ({names}), which --standalone needs for the voter's endpoint"
            )
        listener = config.advertised_controller_listeners[0]
        address = (listener.host or "localhost", listener.port)
        return [Voter(config.node_id, random_uuid(random_bytes), {listener_name: address})]
    if config.is_controller and not config.quorum_voters and not options.has_no_initial_controllers:
        raise FormattingError(
            "this controller has no controller.quorum.voters, so the first voters must be given: use --standalone, "
            "--initial-controllers or --no-initial-controllers"
        )
    return None
