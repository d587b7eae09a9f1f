"""The features of a cluster: which levels this node supports, which a new cluster starts with, and what they need.

    feature                           levels  what its highest level brings
    --------------------------------  ------  ------------------------------------------------------------------------
    metadata.version                  7-33    which metadata records there are, and in which versions (KIP-778)
    kraft.version                     0-1     voters that can be added and removed (KIP-853); stored in control records
    transaction.version               0-2     transactions that are verified and bump the epoch (KIP-890)
    group.version                     0-1     the consumer group protocol (KIP-848)
    eligible.leader.replicas.version  0-1     replicas outside the ISR that have all committed records (KIP-966)
    share.version                     0-2     share groups (KIP-932), whose failed records may go to a topic (KIP-1191)
    streams.version                   0-1     streams groups (KIP-1071)

A new cluster gets metadata.version 4.3-IV0 if no other is requested, and the highest level of each feature that was released
with its metadata.version; kraft.version 1 if its quorum is dynamic. The names and numbers of metadata.version are in
kcli.state.metadata_values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kcli.state.image_records import LEADER_ELR_SINCE
from kcli.state.image_records import METADATA_VERSION as METADATA_VERSION
from kcli.state.metadata_values import METADATA_VERSIONS, VersionRange

KRAFT_VERSION = "kraft.version"
TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
ELIGIBLE_LEADER_REPLICAS_VERSION = "eligible.leader.replicas.version"
SHARE_VERSION = "share.version"
STREAMS_VERSION = "streams.version"

LOWEST_METADATA_VERSION = 7
LATEST_METADATA_VERSION = 33
# That of a new cluster, if none is requested: Apache Kafka 4.3 can open it, too.
DEFAULT_METADATA_VERSION = 30
# Levels of metadata.version by what they introduced.
SCRAM_SINCE = 11
CONTROLLER_REGISTRATION_SINCE = 15
KAFKA_4_4_SINCE = 31  # the first of the release 4.4
BOOTSTRAP_SNAPSHOT_SINCE = KAFKA_4_4_SINCE  # StorageTool writes the first records into the metadata log
CONTROLLER_UNREGISTRATION_SINCE = 33

_LEVEL_BY_RELEASE = {name: level for level, name in METADATA_VERSIONS.items()}


class FeatureError(ValueError):
    """A level that a feature does not have, or that conflicts with another feature; the message is one sentence."""


class Feature(NamedTuple):
    """A feature: its highest level, and for each level from 1 on the metadata.version since which new clusters have it.

    `needs` is the lowest metadata.version for levels above 0.
    """

    highest: int
    default_since: tuple[int, ...]
    needs: int = LOWEST_METADATA_VERSION


FEATURES: dict[str, Feature] = {
    KRAFT_VERSION: Feature(1, (21,), needs=21),
    TRANSACTION_VERSION: Feature(2, (24, 24)),
    GROUP_VERSION: Feature(1, (22,)),
    ELIGIBLE_LEADER_REPLICAS_VERSION: Feature(1, (26,), needs=LEADER_ELR_SINCE),
    SHARE_VERSION: Feature(2, (28, 31)),
    STREAMS_VERSION: Feature(1, (29,)),
}


def supported_features() -> dict[str, VersionRange]:
    """Return the levels that this node supports."""
    supported = {METADATA_VERSION: VersionRange(LOWEST_METADATA_VERSION, LATEST_METADATA_VERSION)}
    return supported | {name: VersionRange(0, feature.highest) for name, feature in FEATURES.items()}


def is_4_4(features: Mapping[str, int]) -> bool:
    """Return whether a cluster with these levels has the features of Kafka 4.4: then it behaves as Kafka 4.4.0 does."""
    return features.get(METADATA_VERSION, 0) >= KAFKA_4_4_SINCE


def metadata_version_of(release: str) -> int:
    """Return the level of a release: "4.3-IV0", or "4.3" or "4.3.1" for the last of a release. Raises FeatureError."""
    level = _LEVEL_BY_RELEASE.get(release)
    if level is None:
        short = ".".join(release.split(".")[:2])
        levels = [level for name, level in _LEVEL_BY_RELEASE.items() if name.partition("-")[0] == short]
        level = max(levels, default=None)
    if level is None or level > LATEST_METADATA_VERSION:
        first, last = METADATA_VERSIONS[LOWEST_METADATA_VERSION], METADATA_VERSIONS[LATEST_METADATA_VERSION]
        raise FeatureError(f"{release!r} is not a release that storage can be formatted for; these are {first} to {last}")
    return level


def metadata_version_name(level: int) -> str:
    """Return the name of a level of metadata.version: 30 is "4.3-IV0"."""
    return METADATA_VERSIONS.get(level, str(level))


def default_level(name: str, metadata_version: int) -> int:
    """Return the level of a feature in a new cluster of that metadata.version."""
    return sum(since <= metadata_version for since in FEATURES[name].default_since)


def initial_features(requested: Mapping[str, int], release: str | None, *, is_dynamic_quorum: bool) -> dict[str, int]:
    """Return the level of each feature of a new cluster: the requested ones, and the defaults of the others.

    Raises FeatureError for features and levels that do not exist or conflict.
    """
    if METADATA_VERSION in requested and release is not None:
        raise FeatureError(f"metadata.version is given twice: use either --release-version or --feature {METADATA_VERSION}=N")
    metadata_version = requested.get(METADATA_VERSION, DEFAULT_METADATA_VERSION)
    if release is not None:
        metadata_version = metadata_version_of(release)
    check_level(METADATA_VERSION, metadata_version)
    levels = {METADATA_VERSION: metadata_version}
    for name in FEATURES:
        levels[name] = requested.get(name, default_level(name, metadata_version))
    levels[KRAFT_VERSION] = requested.get(KRAFT_VERSION, int(is_dynamic_quorum))
    if levels[KRAFT_VERSION] != int(is_dynamic_quorum):
        kind = "dynamic" if is_dynamic_quorum else "static"
        raise FeatureError(f"{KRAFT_VERSION}={levels[KRAFT_VERSION]} does not fit a {kind} quorum; leave it out")
    for name in requested:
        check_level(name, requested[name])
    for name in levels:
        if name != KRAFT_VERSION:  # Kafka's tool formats a dynamic quorum with any metadata.version
            check_dependencies(name, levels[name], metadata_version)
    return levels


def check_level(name: str, level: int) -> None:
    """Check that a feature has a level. Raises FeatureError."""
    supported = supported_features()
    if name not in supported:
        raise FeatureError(f"feature {name!r} does not exist; the features are {', '.join(sorted(supported))}")
    lowest, highest = supported[name]
    if not lowest <= level <= highest:
        raise FeatureError(f"{name} has the levels {lowest} to {highest}, not {level}")


def check_finalized(name: str, level: int) -> None:
    """Check that this node supports a level that a cluster has. Raises FeatureError."""
    lowest, highest = supported_features().get(name, (0, 0))
    if level and name != KRAFT_VERSION and not lowest <= level <= highest:
        known = f"{lowest} to {highest}" if highest else "no level"
        label = f" ({metadata_version_name(level)})" if name == METADATA_VERSION else ""
        raise FeatureError(
            f"the cluster's {name} is {level}{label}, which this version of kcli does not support (it supports {known}): "
            "run the version of kcli or Kafka that wrote it, or a newer one"
        )


def check_dependencies(name: str, level: int, metadata_version: int) -> None:
    """Check that a metadata.version is high enough for a feature's level. Raises FeatureError."""
    if name != METADATA_VERSION and level > 0 and metadata_version < FEATURES[name].needs:
        needed, given = metadata_version_name(FEATURES[name].needs), metadata_version_name(metadata_version)
        raise FeatureError(f"{name}={level} needs metadata.version {needed} or later; it is {given}")
