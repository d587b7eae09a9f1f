"""Metrics that clients push: their subscriptions, intervals, and the pushed bytes (KIP-714; Kafka: ClientMetricsManager).

    request                   refused with
    ------------------------  ------------------------------------------------------------------------------------------
    GetTelemetrySubscriptions THROTTLING_QUOTA_EXCEEDED within the interval after the last request or push
    PushTelemetry             INVALID_REQUEST without a client instance id, and after a push that was the last one
                              THROTTLING_QUOTA_EXCEEDED within the interval after the last push; the first push after
                              GetTelemetrySubscriptions and the last one may come at any time
                              UNKNOWN_SUBSCRIPTION_ID if the subscriptions have changed since the request
                              UNSUPPORTED_COMPRESSION_TYPE, TELEMETRY_TOO_LARGE

The id of a subscription is a checksum of its contents. All subscriptions that match a client are combined: the union of their
metrics ("*": all), and the shortest interval. Pushed metrics are counted and dropped.
The MAX_CLIENTS clients that were active last are remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.primitives import crc32c
from kcli.log.rng import Random
from kcli.protocol import error_codes
from kcli.server.config.client_metrics_config import match_patterns
from kcli.server.config.request_errors import ConfigRequestError
from kcli.server.config.values import split_list
from kcli.server.events import Connection

MAX_CLIENTS = 16_384
DEFAULT_INTERVAL_MS = 300_000
ALL_METRICS = "*"
# zstd, lz4, gzip, snappy: in the order of preference for clients.
ACCEPTED_COMPRESSION_TYPES = (4, 3, 1, 2)
_COMPRESSION_TYPES = frozenset((0, *ACCEPTED_COMPRESSION_TYPES))
_NEVER_MS = -(1 << 62)


class Subscription(NamedTuple):
    """The metrics that one client pushes every `interval_ms`."""

    subscription_id: int
    metrics: list[str]
    interval_ms: int


class _Client:
    """The state of one client."""

    __slots__ = ("is_terminating", "pushed_ms", "subscribed_ms")

    def __init__(self) -> None:
        self.subscribed_ms = _NEVER_MS
        self.pushed_ms = _NEVER_MS
        self.is_terminating = False


class ClientMetricsManager:
    """The clients of one broker that push metrics; `pushed_count` and `pushed_bytes` are the pushes so far."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._clients: OrderedDict[Uuid, _Client] = OrderedDict()
        self.pushed_count = 0
        self.pushed_bytes = 0
        self.unknown_subscription_count = 0

    def __len__(self) -> int:
        return len(self._clients)

    def new_client_id(self) -> Uuid:
        """Return an id for a client without one."""
        return Uuid(self._rng.randbytes(16))

    def subscribe(self, instance_id: Uuid, interval_ms: int, now_ms: int) -> int:
        """Register a GetTelemetrySubscriptions; return Kafka's error code."""
        client = self._client(instance_id)
        if now_ms - max(client.subscribed_ms, client.pushed_ms) < interval_ms:
            return error_codes.THROTTLING_QUOTA_EXCEEDED
        client.subscribed_ms = now_ms
        return error_codes.NONE

    def push(
        self,
        instance_id: Uuid,
        subscription: Subscription,
        subscription_id: int,
        is_terminating: bool,
        compression_type: int,
        metrics: bytes,
        max_bytes: int,
        now_ms: int,
    ) -> int:
        """Register a PushTelemetry; return Kafka's error code. `subscription` is the client's present one."""
        if instance_id == ZERO_UUID:
            return error_codes.INVALID_REQUEST
        client = self._client(instance_id)
        if client.is_terminating:
            return error_codes.INVALID_REQUEST
        is_due = client.subscribed_ms > client.pushed_ms or now_ms - client.pushed_ms >= subscription.interval_ms
        if is_due:
            client.pushed_ms = now_ms
        elif not is_terminating:
            return error_codes.THROTTLING_QUOTA_EXCEEDED
        if subscription_id != subscription.subscription_id:
            self.unknown_subscription_count += 1
            return error_codes.UNKNOWN_SUBSCRIPTION_ID
        if compression_type not in _COMPRESSION_TYPES:
            return error_codes.UNSUPPORTED_COMPRESSION_TYPE
        if len(metrics) > max_bytes:
            return error_codes.TELEMETRY_TOO_LARGE
        client.is_terminating = is_terminating
        self.pushed_count += 1
        self.pushed_bytes += len(metrics)
        return error_codes.NONE

    def _client(self, instance_id: Uuid) -> _Client:
        client = self._clients.get(instance_id)
        if client is None:
            client = self._clients[instance_id] = _Client()
            if len(self._clients) > MAX_CLIENTS:
                self._clients.popitem(last=False)
        self._clients.move_to_end(instance_id)
        return client


def subscription_of(
    subscriptions: Mapping[str, Mapping[str, str]], instance_id: Uuid, client_id: str, connection: Connection
) -> Subscription:
    """Return the subscription of a client, combined from all of the `subscriptions` that match it."""
    traits = {
        "client_instance_id": str(instance_id),
        "client_id": client_id,
        "client_software_name": connection.software_name,
        "client_software_version": connection.software_version,
        "client_source_address": connection.client_host,
        "client_source_port": str(connection.client_port),
    }
    metrics: dict[str, None] = {}
    interval_ms = DEFAULT_INTERVAL_MS
    for config in subscriptions.values():
        try:
            patterns = match_patterns(config.get("match", ""))
        except ConfigRequestError:
            continue  # valid in Java only, and set through another controller
        if all(pattern.fullmatch(traits[selector]) for selector, pattern in patterns.items()):
            metrics.update(dict.fromkeys(split_list(config.get("metrics", ""))))
            interval_ms = min(interval_ms, int(config.get("interval.ms", DEFAULT_INTERVAL_MS)))
    names = [ALL_METRICS] if ALL_METRICS in metrics else sorted(metrics)
    checksum = crc32c(f"{names}{interval_ms}".encode() + instance_id)
    return Subscription(checksum - (checksum >> 31 << 32), names, interval_ms)
