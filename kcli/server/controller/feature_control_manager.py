"""UpdateFeatures: upgrades of the cluster's features, and downgrades that lose no metadata (KIP-584, KIP-1022).

    refused, all of the request, with INVALID_UPDATE_VERSION
    -------------------------------------------------------------------------------------------------------------------
    a feature or level that this node or a registered broker or controller does not support; a voter of a static quorum
      that is not registered, from metadata.version 3.7-IV0 on
    a lower level with upgrade type UPGRADE, a higher one with a downgrade type
    a lower metadata.version if one in between changed the metadata (an unsafe downgrade is not supported either)
    a level that needs a higher level of another feature
    a lower kraft.version, with either downgrade type: the voters would be lost

kraft.version is not a metadata record: the raft client upgrades it before the other levels are written, and the static quorum
becomes a dynamic one (KIP-853).

With eligible leader replicas, min.insync.replicas becomes one setting of all brokers: it gets a record, and the settings of
single brokers are removed, because the ISR must not depend on the leader.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, UPDATE_FEATURES
from kcli.protocol.message import Message
from kcli.server.config.alter_configs import elr_safety_records
from kcli.server.controller.controller_result import ApiError, ControllerRequestContext, ControllerResult
from kcli.server.controller.controller_state import ControllerState
from kcli.server.features import (
    CONTROLLER_REGISTRATION_SINCE,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    KRAFT_VERSION,
    METADATA_VERSION,
    FeatureError,
    check_dependencies,
    check_level,
    metadata_version_name,
)
from kcli.server.raft.metadata_batches import new_record

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
# The levels of metadata.version that changed the metadata: a downgrade below one of them would lose some of it.
_CHANGED_METADATA = frozenset((7, 8, 11, 13, 14, 15, 17, 23, 30, 32, 33))
_RESULTS_UNTIL = 1


class FeatureControlManager:
    """Changes of the cluster's features."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state

    def update_features(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide an UpdateFeatures. Raises ApiError if one of the updates is refused."""
        api = API_KEYS[UPDATE_FEATURES]
        updates = {update.feature: update.max_version_level for update in request.feature_updates}
        proposed = {METADATA_VERSION: self._state.metadata_version, **self._state.image.features, **updates}
        records: list[Message] = []
        for update in request.feature_updates:
            upgrade_type = update.upgrade_type
            if info.version == 0:
                upgrade_type = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
            records += self._update(update.feature, update.max_version_level, upgrade_type, proposed)
        if ELIGIBLE_LEADER_REPLICAS_VERSION in updates and updates[ELIGIBLE_LEADER_REPLICAS_VERSION] > 0:
            records += elr_safety_records(self._state.image, self._state.dynamic.current)
        result = api.response.classes["UpdatableFeatureResult"]
        results = [result(feature=name, error_message=None) for name in updates] if info.version <= _RESULTS_UNTIL else []
        response = api.response.new(error_message=None, results=results)
        if request.validate_only:
            return ControllerResult([], response)
        return ControllerResult(records, response, updates.get(KRAFT_VERSION))

    def _update(self, name: str, level: int, upgrade_type: int, proposed: Mapping[str, int]) -> list[Message]:
        """Return one feature's records. Raises ApiError."""
        current = self._state.image.kraft_version if name == KRAFT_VERSION else self._state.image.features.get(name, 0)
        if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
            raise _refused(
                f"{name}: {upgrade_type} is not an upgrade type: 1 is upgrade, 2 is safe downgrade and 3 is unsafe downgrade"
            )
        try:
            check_level(name, level)
            check_dependencies(name, level, proposed[METADATA_VERSION])
            if name == METADATA_VERSION:
                for other, other_level in proposed.items():
                    check_dependencies(other, other_level, level)
        except FeatureError as error:
            raise _refused(str(error)) from None
        self._check_nodes(name, level)
        if level < current and upgrade_type == UPGRADE:
            raise _refused(f"{name} is {current}; {level} is lower and needs a downgrade type")
        if level > current and upgrade_type != UPGRADE:
            raise _refused(f"{name} is {current}; {level} is not a downgrade")
        if name == KRAFT_VERSION:
            if level < current:
                raise _refused(f"{name} is {current} and cannot be downgraded: the voters in the metadata log would be lost")
            return []
        if name == METADATA_VERSION and level < current:
            lost = [changed for changed in range(level + 1, current + 1) if changed in _CHANGED_METADATA]
            if lost:
                names = f"{metadata_version_name(current)} to {metadata_version_name(level)}"
                raise _refused(f"a downgrade of metadata.version from {names} may lose metadata, which is not supported")
        return [new_record("FeatureLevelRecord", name=name, feature_level=level)]

    def _check_nodes(self, name: str, level: int) -> None:
        """Check that every registered node supports the level: all brokers, fenced ones, too, and controllers. Raises ApiError.

        The voters of a static quorum must all be registered, since the levels of another one are not known.
        """
        image, own_id = self._state.image, self._state.node_id
        nodes = [(f"broker {broker.broker_id}", broker.features) for broker in image.brokers.values()]
        has_registrations = self._state.metadata_version >= CONTROLLER_REGISTRATION_SINCE
        if has_registrations:
            nodes += [
                (f"controller {controller_id}", node.features)
                for controller_id, node in image.controllers.items()
                if controller_id != own_id  # which check_level has checked
            ]
        for node, features in nodes:
            supported = features.get(name)
            lowest, highest = (0, 0) if supported is None else supported
            if level and not lowest <= level <= highest:
                raise _refused(f"{name}={level} is not supported by {node}, which supports the levels {lowest} to {highest}")
        voters = self._state.dynamic.static.quorum_voters if has_registrations else {}
        missing = sorted(voters.keys() - image.controllers.keys() - {own_id})
        if missing:
            raise _refused(f"controller {missing[0]} has not registered: whether it supports {name}={level} is not known")


def _refused(text: str) -> ApiError:
    return ApiError(error_codes.INVALID_UPDATE_VERSION, text)
