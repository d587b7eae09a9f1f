"""Protects client metrics: who is asked for what and how often; no client makes the broker remember without end."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.protocol import apis, error_codes
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type
from kcli.server.events import Connection
from kcli.server.metrics import client_metrics
from kcli.server.metrics.client_metrics import ClientMetricsManager
from kcli.state.image_records import number_of
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import CONFIG_RESOURCE_TYPES, ConfigResource
from tests.server.apis.asking import ask
from tests.server.whole_node import WholeNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> WholeNode:
    return WholeNode(tmp_path_factory.mktemp("telemetry") / "data", "telemetry.max.bytes=100")


def subscribe(node: WholeNode, name: str, **config: str) -> None:
    """Set a subscription; with nothing given, end it."""
    record = message_type("metadata_records", "ConfigRecord").new
    kind = number_of(CONFIG_RESOURCE_TYPES, "CLIENT_METRICS")
    before = node.broker.image.configs.get(ConfigResource("CLIENT_METRICS", name), {})
    changes = dict.fromkeys(before) | {key.replace("_", "."): value for key, value in config.items()}
    records = [record(resource_type=kind, resource_name=name, name=key, value=value) for key, value in changes.items()]
    node.publish(records)


def get(node: WholeNode, instance_id: bytes = ZERO_UUID, connection: Connection | None = None) -> Message:
    return ask(node, apis.GET_TELEMETRY_SUBSCRIPTIONS, 0, connection, client_instance_id=instance_id)


def push(node: WholeNode, asked: Message, metrics: bytes = b"m", subscription_id: int | None = None) -> int:
    wanted = asked.subscription_id if subscription_id is None else subscription_id
    fields = {"client_instance_id": asked.client_instance_id, "subscription_id": wanted, "metrics": metrics}
    code: int = ask(node, apis.PUSH_TELEMETRY, 0, **fields).error_code
    return code


def test_a_client_pushes_when_its_time_has_come(node: WholeNode) -> None:
    subscribe(node, "s", interval_ms="1000", metrics="a.")
    counted = node.broker.client_metrics.pushed_bytes
    asked = get(node)
    assert (asked.error_code, asked.push_interval_ms, asked.requested_metrics) == (0, 1000, ["a."])
    assert push(node, asked, b"12345") == 0
    assert push(node, asked) == error_codes.THROTTLING_QUOTA_EXCEEDED
    node.advance(999)
    assert push(node, asked) == error_codes.THROTTLING_QUOTA_EXCEEDED
    node.advance(1)
    assert push(node, asked, b"x" * 100) == 0
    assert node.broker.client_metrics.pushed_bytes - counted == 105
    node.advance(1000)
    assert push(node, asked, b"x" * 101) == error_codes.TELEMETRY_TOO_LARGE


def test_a_changed_subscription_is_asked_for_anew(node: WholeNode) -> None:
    subscribe(node, "s", interval_ms="1000", metrics="a.")
    asked = get(node)
    subscribe(node, "s", interval_ms="1000", metrics="b.")
    assert push(node, asked) == error_codes.UNKNOWN_SUBSCRIPTION_ID
    node.advance(1000)
    again = get(node, asked.client_instance_id)
    assert (again.error_code, again.requested_metrics) == (0, ["b."])
    assert again.subscription_id != asked.subscription_id
    assert push(node, again) == 0


def test_subscriptions_are_chosen_by_what_the_client_is(node: WholeNode) -> None:
    subscribe(node, "s")
    subscribe(
        node, "mine", interval_ms="2000", metrics="a.,b.", match="client_software_name=kcli.*,client_source_address=10\\..*"
    )
    subscribe(node, "other", interval_ms="500", metrics="c.", match="client_id=else")
    subscribe(node, "fast", interval_ms="700", metrics="b.,d.", match="client_id=te.t")
    subscribe(node, "broken", interval_ms="100", metrics="e.", match="client_id=(")
    connection = node.connection("10.0.0.7")
    connection.software_name = "kcli-client"
    asked = get(node, connection=connection)
    assert (asked.push_interval_ms, asked.requested_metrics) == (700, ["a.", "b.", "d."])
    asked = get(node, connection=node.connection("11.0.0.7"))
    assert (asked.push_interval_ms, asked.requested_metrics) == (700, ["b.", "d."])
    subscribe(node, "all", metrics="*")
    assert get(node).requested_metrics == ["*"]
    for name in ("mine", "other", "fast", "broken", "all"):
        subscribe(node, name)
    assert (get(node).push_interval_ms, get(node).requested_metrics) == (300_000, [])


def test_subscriptions_are_known_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read from the metadata when they change, and not by each ApiVersions request."""
    first = WholeNode(tmp_path)
    change = apis.API_KEYS[apis.INCREMENTAL_ALTER_CONFIGS].request
    setting = change.classes["AlterableConfig"](name="metrics", config_operation=0, value="a.")
    kind = number_of(CONFIG_RESOURCE_TYPES, "CLIENT_METRICS")
    resource = change.classes["AlterConfigsResource"](resource_type=kind, resource_name="s", configs=[setting])
    altered = first.send(apis.INCREMENTAL_ALTER_CONFIGS, 1, change.new(resources=[resource]))
    first.until(lambda: altered.answer is not None and bool(first.broker.metadata.client_metrics))
    first.stop()
    again = WholeNode(tmp_path)
    monkeypatch.delattr(MetadataImage, "configs_of")
    assert get(again).requested_metrics == ["a."]
    assert apis.PUSH_TELEMETRY in {one.api_key for one in ask(again, apis.API_VERSIONS, 0).api_keys}


class Counting:
    """Dice that count."""

    def __init__(self) -> None:
        self.next = 0

    def randbytes(self, n: int) -> bytes:
        self.next += 1
        return self.next.to_bytes(n, "big")


def test_only_so_many_clients_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "MAX_CLIENTS", 3)
    clients = ClientMetricsManager(Counting())
    ids = [clients.new_client_id() for _ in range(5)]
    assert [clients.subscribe(instance_id, 1000, 0) for instance_id in ids] == [0] * 5
    # The last three are known, the first two were forgotten.
    assert {clients.subscribe(instance_id, 1000, 1) for instance_id in ids[2:]} == {error_codes.THROTTLING_QUOTA_EXCEEDED}
    assert clients.subscribe(ids[0], 1000, 1) == 0
    assert clients.subscribe(Uuid(b"x" * 16), 1000, 1) == 0


def test_the_apis_are_offered_while_there_is_a_subscription(node: WholeNode) -> None:
    """Else librdkafka asks for one, and prints a line about it for each client."""
    for kind, name in list(node.broker.image.configs):
        if kind == "CLIENT_METRICS":
            subscribe(node, name)  # those of other tests end
    for config, is_offered in (({}, False), ({"metrics": "a."}, True), ({}, False)):
        subscribe(node, "only", **config)
        keys = {
            api.api_key
            for api in ask(node, apis.API_VERSIONS, 3, client_software_name="x", client_software_version="1").api_keys
        }
        assert ({apis.GET_TELEMETRY_SUBSCRIPTIONS, apis.PUSH_TELEMETRY} <= keys) is is_offered
