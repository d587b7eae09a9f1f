"""ApiVersions on a broker's listener: kcli.server.api_versions makes the answer."""

from __future__ import annotations

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.api_versions import SOFTWARE_NAME_SINCE, describe_api_versions, is_software_name
from kcli.server.apis.context import RequestContext
from kcli.server.apis.registry import SERVED


def handle_api_versions(context: RequestContext, request: Message) -> Message:
    """Answer an ApiVersionsRequest, and remember the client's software name and version."""
    broker = context.broker
    if SOFTWARE_NAME_SINCE <= context.version <= context.api.highest_version:
        name, software_version = request.client_software_name, request.client_software_version
        if not is_software_name(name) or not is_software_name(software_version):
            return context.new("ApiVersionsResponse", error_code=error_codes.INVALID_REQUEST, api_keys=[])
        context.connection.software_name, context.connection.software_version = name, software_version
    with_unstable = broker.config.get_bool("unstable.api.versions.enable")
    return describe_api_versions(context.version, SERVED, broker.metadata.image, broker.metadata.offset, with_unstable)
