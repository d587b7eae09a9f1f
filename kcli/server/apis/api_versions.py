"""ApiVersions: what this broker serves, and the features of the cluster (KIP-511, KIP-584).

    version       answered with
    ------------  ------------------------------------------------------------------------------------------------------
    0 to 4        the APIs; from 3 on features: those that the broker supports, and those that are finalized
    any other     version 0, UNSUPPORTED_VERSION, and the range of ApiVersions itself

Before version 4 a client may fail to read a supported feature that begins at 0, so there it is left out (KAFKA-17492).
Produce is offered from version 0 on, although those before 3 are gone: older librdkafkas take what is missing there for a
broker that knows no compression (KAFKA-18659). From version 3 on a client says what it is; a name that is none is refused
with INVALID_REQUEST.
"""

from __future__ import annotations

import re

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, API_VERSIONS, PRODUCE
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.registry import SERVED, highest_version
from kcli.server.controller.features import supported_features

SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SOFTWARE_VERSION_SINCE = 3
_OFFERED_FROM = {PRODUCE: 0}
_FEATURES_FROM_ZERO_SINCE = 4


def handle_api_versions(context: RequestContext, request: Message) -> Message:
    """Answer an ApiVersionsRequest."""
    api, version = context.api, context.version
    classes = api.response.classes
    if not api.lowest_version <= version <= api.highest_version:
        own = classes["ApiVersion"](api_key=API_VERSIONS, min_version=api.lowest_version, max_version=api.highest_version)
        return context.new("ApiVersionsResponse", error_code=error_codes.UNSUPPORTED_VERSION, api_keys=[own])
    if version >= _SOFTWARE_VERSION_SINCE:
        name, software_version = request.client_software_name, request.client_software_version
        if not SOFTWARE_NAME.fullmatch(name) or not SOFTWARE_NAME.fullmatch(software_version):
            return context.new("ApiVersionsResponse", error_code=error_codes.INVALID_REQUEST, api_keys=[])
        context.connection.software_name, context.connection.software_version = name, software_version
    with_unstable = context.broker.config.get_bool("unstable.api.versions.enable")
    keys = [
        classes["ApiVersion"](
            api_key=key,
            min_version=_OFFERED_FROM.get(key, API_KEYS[key].lowest_version),
            max_version=highest_version(key, with_unstable),
        )
        for key in sorted(SERVED)
    ]
    response = context.new("ApiVersionsResponse", error_code=error_codes.NONE, api_keys=keys)
    if version >= _SOFTWARE_VERSION_SINCE:
        _describe_features(context, response)
    return response


def _describe_features(context: RequestContext, response: Message) -> None:
    classes = context.api.response.classes
    lowest = 0 if context.version >= _FEATURES_FROM_ZERO_SINCE else 1
    response.supported_features = [
        classes["SupportedFeatureKey"](name=name, min_version=levels.lowest, max_version=levels.highest)
        for name, levels in supported_features().items()
        if levels.lowest >= lowest
    ]
    image = context.broker.metadata.image
    finalized = dict(image.features)
    if image.kraft_version:
        finalized["kraft.version"] = image.kraft_version
    response.finalized_features = [
        classes["FinalizedFeatureKey"](name=name, min_version_level=level, max_version_level=level)
        for name, level in finalized.items()
    ]
    response.finalized_features_epoch = context.broker.metadata.offset
