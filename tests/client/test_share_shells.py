"""Protects: the blocking and the asyncio share consumer poll, acknowledge, commit, wake up and close, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from kcli.client.consumer.share_records import AcknowledgeType
from kcli.client.errors import ConfigError, IllegalStateError, WakeupError
from kcli.client.shell.async_share_consumer import AsyncShareConsumer
from kcli.client.shell.client_builder import Setting
from kcli.client.shell.share_consumer import ShareConsumer
from kcli.protocol.apis import API_KEYS, INCREMENTAL_ALTER_CONFIGS
from tests.server.live import LiveServer
from tests.server.whole_node import batch

pytestmark = [pytest.mark.ci]
POLL_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    settings = (
        "offsets.topic.num.partitions=1",
        "share.coordinator.state.topic.num.partitions=1",
        "group.share.heartbeat.interval.ms=200",
        "group.share.min.heartbeat.interval.ms=200",
    )
    with LiveServer(tmp_path_factory.mktemp("shares") / "home", *settings) as running:
        yield running


def prepare(server: LiveServer, name: str, *values: bytes) -> dict[str, Setting]:
    """Make a topic with records and a group that reads it from its begin."""
    request = API_KEYS[INCREMENTAL_ALTER_CONFIGS].request
    value = request.classes["AlterableConfig"](name="share.auto.offset.reset", config_operation=0, value="earliest")
    resource = request.classes["AlterConfigsResource"](resource_type=32, resource_name=name, configs=[value])
    with server.client() as client:
        client.create_topic(name)
        client.produce(name, 0, batch(*values))
        client.ask(INCREMENTAL_ALTER_CONFIGS, 1, request.new(resources=[resource], validate_only=False))
    return {"bootstrap.servers": f"127.0.0.1:{server.port}", "group.id": name}


def test_the_blocking_consumer(server: LiveServer) -> None:
    settings = prepare(server, "blocking", b"1", b"2")
    results: list[tuple[object, ...]] = []
    explicit = {**settings, "share.acknowledgement.mode": "explicit"}
    with ShareConsumer(explicit, value_deserializer=int) as consumer:
        consumer.set_acknowledgement_commit_callback(lambda *result: results.append(result))
        with pytest.raises(IllegalStateError):
            consumer.poll()
        consumer.subscribe(["blocking"])
        assert consumer.subscription() == {"blocking"}
        first, second = consumer.poll(POLL_S)
        assert (first.value, second.value, first.delivery_count) == (1, 2, 1)
        consumer.acknowledge(first)
        consumer.acknowledge_offset("blocking", 0, second.offset, AcknowledgeType.RELEASE)
        assert consumer.commit_sync() == {("blocking", 0): None}
        assert results == [(("blocking", 0), frozenset({0, 1}), None)]
        assert consumer.acquisition_lock_timeout() == 30.0
        (again,) = consumer.poll(POLL_S)
        assert (again.value, again.delivery_count) == (2, 2)
        consumer.acknowledge(again)
        consumer.commit_async()
    with ShareConsumer(settings) as consumer:
        consumer.subscribe(["blocking"])
        assert consumer.poll(1.0) == []
        threading.Timer(0.2, consumer.wakeup).start()
        with pytest.raises(WakeupError):
            consumer.poll(POLL_S)
        consumer.unsubscribe()
        assert consumer.subscription() == set()


def test_the_asyncio_consumer(server: LiveServer) -> None:
    settings = prepare(server, "awaited", b"1", b"2")

    async def use() -> None:
        async with AsyncShareConsumer(settings, value_deserializer=int) as consumer:
            consumer.subscribe(["awaited"])
            assert [record.value for record in await consumer.poll(POLL_S)] == [1, 2]
            assert await consumer.commit() == {("awaited", 0): None}
            asyncio.get_running_loop().call_later(0.2, consumer.wakeup)
            with pytest.raises(WakeupError):
                await consumer.poll(POLL_S)
        async with AsyncShareConsumer(settings) as consumer:
            consumer.subscribe(["awaited"])
            assert await consumer.poll(1.0) == []

    asyncio.run(use())


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"share\.acknowledgement\.mode"):
        ShareConsumer({"bootstrap.servers": "here:1", "group.id": "g", "share.acknowledgement.mod": "explicit"})
    with pytest.raises(ConfigError, match=r"group\.id"):
        ShareConsumer({"bootstrap.servers": "here:1"})
