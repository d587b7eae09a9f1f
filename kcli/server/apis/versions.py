"""ApiVersions on a broker's listener: kcli.server.api_versions makes the answer.

The APIs of client metrics are offered while there is a subscription of them (`kafka-client-metrics.sh`). Kafka offers them if a
plugin takes the metrics. Clients that are offered them ask for subscriptions all their life, and librdkafka prints a line.
"""

from __future__ import annotations

from kcli.protocol import error_codes
from kcli.protocol.apis import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from kcli.protocol.message import Message
from kcli.server.api_versions import SOFTWARE_NAME_SINCE, describe_api_versions, is_misrouted, refusal
from kcli.server.apis.context import RequestContext
from kcli.server.apis.registry import SERVED

_WITHOUT_TELEMETRY = SERVED - {GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY}


def handle_api_versions(context: RequestContext, request: Message) -> Message:
    """Answer an ApiVersionsRequest, and remember the client's software name and version."""
    broker = context.broker
    if SOFTWARE_NAME_SINCE <= context.version <= context.api.highest_version:
        code = refusal(context.version, request)
        if not code and is_misrouted(context.version, request, broker.cluster_id, broker.node_id):
            code = error_codes.REBOOTSTRAP_REQUIRED
        if code:
            return context.new("ApiVersionsResponse", error_code=code, api_keys=[])
        context.connection.software_name = request.client_software_name
        context.connection.software_version = request.client_software_version
    metadata, with_unstable = broker.metadata, broker.config.get_bool("unstable.api.versions.enable")
    served = SERVED if metadata.client_metrics else _WITHOUT_TELEMETRY
    return describe_api_versions(context.version, served, metadata.image, metadata.offset, with_unstable)
