"""GetTelemetrySubscriptions and PushTelemetry: clients ask which of their metrics to push, and push them (KIP-714).

The subscriptions are configurations of type CLIENT_METRICS; kcli.server.metrics.client_metrics decides when a client may ask
and push.
"""

from __future__ import annotations

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.metrics.client_metrics import ACCEPTED_COMPRESSION_TYPES, Subscription, subscription_of

_MAX_BYTES_KEY = "telemetry.max.bytes"


def handle_get_telemetry_subscriptions(context: RequestContext, request: Message) -> Message:
    """Answer a GetTelemetrySubscriptionsRequest."""
    clients = context.broker.client_metrics
    instance_id = request.client_instance_id
    if instance_id == ZERO_UUID:
        instance_id = clients.new_client_id()
    subscription = _subscription(context, instance_id)
    code = clients.subscribe(instance_id, subscription.interval_ms, context.now_ms)
    if code:
        return context.new("GetTelemetrySubscriptionsResponse", error_code=code)
    return context.new(
        "GetTelemetrySubscriptionsResponse",
        client_instance_id=instance_id,
        subscription_id=subscription.subscription_id,
        accepted_compression_types=list(ACCEPTED_COMPRESSION_TYPES),
        push_interval_ms=subscription.interval_ms,
        telemetry_max_bytes=context.broker.config.get_int(_MAX_BYTES_KEY),
        delta_temporality=True,
        requested_metrics=subscription.metrics,
    )


def handle_push_telemetry(context: RequestContext, request: Message) -> Message:
    """Answer a PushTelemetryRequest."""
    code = context.broker.client_metrics.push(
        request.client_instance_id,
        _subscription(context, request.client_instance_id),
        request.subscription_id,
        request.terminating,
        request.compression_type,
        request.metrics,
        context.broker.config.get_int(_MAX_BYTES_KEY),
        context.now_ms,
    )
    return context.new("PushTelemetryResponse", error_code=code)


def _subscription(context: RequestContext, instance_id: Uuid) -> Subscription:
    return subscription_of(context.broker.metadata.client_metrics, instance_id, context.client_id or "", context.connection)
