"""ApiVersions: the APIs that a broker or controller serves, and the features of the cluster (KIP-511, KIP-584, KIP-1242).

    version       answered with
    ------------  ------------------------------------------------------------------------------------------------------
    0 to 5        the APIs; from 3 on features: those that this node supports, and those that are finalized
    any other     version 0, UNSUPPORTED_VERSION, and the range of ApiVersions itself

Before version 4 a client may fail to read a supported feature that begins at 0, so it is omitted there (KAFKA-17492).
Produce is offered from version 0 on, although those before 3 are removed: older librdkafkas take a broker without the
older versions for one without compression (KAFKA-18659). From version 3 on a client sends its software name and version;
an invalid one is refused with INVALID_REQUEST. From version 5 on it may state which cluster and which node of it the connection
is meant for. A broker refuses another cluster or node with REBOOTSTRAP_REQUIRED; one without the other is INVALID_REQUEST.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, API_VERSIONS, PRODUCE
from kcli.protocol.message import Message
from kcli.server.features import KRAFT_VERSION, supported_features
from kcli.state.metadata_image import MetadataImage

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
SOFTWARE_NAME_SINCE = 3
_DESTINATION_SINCE = 5
_ANY_NODE = -1
_FEATURES_SINCE = 3
_FEATURES_FROM_ZERO_SINCE = 4
_OFFERED_FROM = {PRODUCE: 0}


def is_software_name(text: str) -> bool:
    """Return whether a client's software name or version is valid."""
    return _SOFTWARE_NAME.fullmatch(text) is not None


def refusal(version: int, request: Message) -> int:
    """Return the error code for an invalid request of a known version, 0 for a valid one."""
    if version < SOFTWARE_NAME_SINCE:
        return error_codes.NONE
    if not is_software_name(request.client_software_name) or not is_software_name(request.client_software_version):
        return error_codes.INVALID_REQUEST
    is_halved = version >= _DESTINATION_SINCE and (request.cluster_id is None) != (request.node_id == _ANY_NODE)
    return error_codes.INVALID_REQUEST if is_halved else error_codes.NONE


def is_misrouted(version: int, request: Message, cluster_id: str, node_id: int) -> bool:
    """Return whether a valid request states another node or cluster than this."""
    if version < _DESTINATION_SINCE or request.cluster_id is None:
        return False
    return bool((request.cluster_id, request.node_id) != (cluster_id, node_id))


def highest_version(key: int, with_unstable: bool = False) -> int:
    """Return the highest version of an API that is served (unstable.api.versions.enable)."""
    api = API_KEYS[key]
    return api.highest_version - (api.is_latest_unstable and not with_unstable)


def describe_api_versions(
    version: int, served: Iterable[int], image: MetadataImage, metadata_offset: int, with_unstable: bool = False
) -> Message:
    """Return the answer to ApiVersions; for an unknown version it is to be sent in version 0."""
    api = API_KEYS[API_VERSIONS]
    classes = api.response.classes
    is_known = api.lowest_version <= version <= api.highest_version
    keys = [
        classes["ApiVersion"](
            api_key=key,
            min_version=_OFFERED_FROM.get(key, API_KEYS[key].lowest_version),
            max_version=highest_version(key, with_unstable),
        )
        for key in (sorted(served) if is_known else [API_VERSIONS])
    ]
    response = api.response.new(error_code=error_codes.NONE if is_known else error_codes.UNSUPPORTED_VERSION, api_keys=keys)
    if not is_known or version < _FEATURES_SINCE:
        return response
    lowest = 0 if version >= _FEATURES_FROM_ZERO_SINCE else 1
    response.supported_features = [
        classes["SupportedFeatureKey"](name=name, min_version=levels.lowest, max_version=levels.highest)
        for name, levels in supported_features().items()
        if levels.lowest >= lowest
    ]
    finalized = dict(image.features)
    if image.kraft_version > 0:
        finalized[KRAFT_VERSION] = image.kraft_version
    response.finalized_features = [
        classes["FinalizedFeatureKey"](name=name, min_version_level=level, max_version_level=level)
        for name, level in finalized.items()
    ]
    response.finalized_features_epoch = metadata_offset
    return response
