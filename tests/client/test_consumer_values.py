"""Protects: what an application passes to any of the four consumers is refused in its own call, with a sentence."""

from __future__ import annotations

import asyncio
import struct
import threading
import uuid

import pytest

from kcli.client.errors import ConfigError, IllegalStateError, KafkaError, SerializationError, WakeupError
from kcli.client.serializers import DESERIALIZERS, SERIALIZERS, find_deserializer, find_serializer, serialize
from kcli.client.shell.async_consumer import AsyncConsumer
from kcli.client.shell.async_share_consumer import AsyncShareConsumer
from kcli.client.shell.client_builder import Setting
from kcli.client.shell.consumer import Consumer
from kcli.client.shell.share_consumer import ShareConsumer

SETTINGS: dict[str, Setting] = {"bootstrap.servers": "127.0.0.1:9", "group.id": "g"}


def test_a_text_is_not_a_list_of_topics() -> None:
    """It is an iterable of letters."""
    with Consumer(SETTINGS) as consumer, ShareConsumer(SETTINGS) as sharing:
        for one in (consumer, sharing):
            with pytest.raises(TypeError, match=r"a list of topics, not a text: \['orders'\]"):
                one.subscribe("orders")

    async def run() -> None:
        async with AsyncConsumer(SETTINGS) as consumer, AsyncShareConsumer(SETTINGS) as sharing:
            for one in (consumer, sharing):
                with pytest.raises(TypeError, match=r"a list of topics, not a text: \['orders'\]"):
                    one.subscribe("orders")

    asyncio.run(run())


VALUES = [
    ("bytes", b"\xff"),
    ("string", "\u00e9"),
    ("short", -2),
    ("integer", 7),
    ("long", 2**40),
    ("float", 0.5),
    ("double", 0.1),
]
VALUES += [("uuid", uuid.UUID(int=5)), ("json", {"a": [1, None, "\u00e9"]})]


@pytest.mark.parametrize(("name", "value"), VALUES)
def test_a_deserializer_of_a_name_reads_what_the_serializer_wrote(name: str, value: object) -> None:
    """The names are those of the producer; a value of another size, or text that is not of the kind, is refused."""
    data = serialize(find_serializer(name), value, "value")
    read = find_deserializer(name)
    assert data is not None and (data if read is None else read(data)) == value
    assert set(SERIALIZERS) == set(DESERIALIZERS)
    if read is not None:
        with pytest.raises((ValueError, struct.error)):
            read(b"\xff\xff\xff")


@pytest.mark.parametrize(("value", "fitting"), [("text", "string"), (5, "long"), (0.5, "double"), ({}, "json")])
def test_a_value_without_a_serializer_is_refused_with_the_names_of_serializers(value: object, fitting: str) -> None:
    advice = f'pass key_serializer="{fitting}" to the producer, another of bytes, string, short, .*, json, or a function$'
    with pytest.raises(SerializationError, match=f"^the key cannot be serialized: bytes are expected, not .*: {advice}"):
        serialize(None, value, "key")
    with pytest.raises(SerializationError, match=r"bytes are expected, not [a-z]+$"):
        serialize(lambda one: [one], value, "key")  # type: ignore[arg-type,return-value]


def test_what_is_no_deserializer_is_refused_when_the_consumer_is_made() -> None:
    """It was called for the first record, with advice to pass the record by."""
    for kind in (Consumer, ShareConsumer):
        for wrong in ("strin", 5):
            with pytest.raises(ConfigError, match="deserializer"):
                kind(SETTINGS, value_deserializer=wrong)  # type: ignore[arg-type]


BAD_NAMES = {
    "": "the topic name is empty",
    ".": "cannot be named '.'",
    "..": "cannot be named '..'",
    "t" * 250: "has 250 characters; 249 are allowed",
    "a/b": "characters other than ASCII letters",
    "ä": "characters other than ASCII letters",
}


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_topic_has_a_name_that_kafka_allows(name: str) -> None:
    """Else it would be asked for again and again: brokers answer INVALID_TOPIC_EXCEPTION, or refuse the whole request."""
    sentence = f"INVALID_TOPIC_EXCEPTION: .*{BAD_NAMES[name]}"
    with Consumer(SETTINGS) as consumer, ShareConsumer(SETTINGS) as sharing:
        for one in (consumer, sharing):
            with pytest.raises(KafkaError, match=sentence):
                one.subscribe(["good", name])
            assert one.subscription() == set()
        for call in (
            lambda: consumer.assign([(name, 0)]),
            lambda: consumer.committed([(name, 0)], 0),
            lambda: consumer.end_offsets([(name, 0)], 0),
            lambda: consumer.partitions_for(name, 0),
        ):
            with pytest.raises(KafkaError, match=sentence):
                call()

    async def run() -> None:
        async with AsyncConsumer(SETTINGS) as consumer, AsyncShareConsumer(SETTINGS) as sharing:
            for one in (consumer, sharing):
                with pytest.raises(KafkaError, match=sentence):
                    one.subscribe(["good", name])
            with pytest.raises(KafkaError, match=sentence):
                consumer.assign([(name, 0)])

    asyncio.run(run())


def test_a_topic_is_a_text_and_a_partition_a_pair() -> None:
    with Consumer(SETTINGS) as consumer:
        with pytest.raises(TypeError, match="the name of a topic is a text, not b'orders'"):
            consumer.subscribe([b"orders"])  # type: ignore[list-item]
        for wrong in (0, "t0", ("t",), {"t", 0}):
            with pytest.raises(TypeError, match=r"a partition is a pair \(topic, number\)"):
                consumer.assign([wrong])  # type: ignore[list-item]


def test_offsets_to_commit_have_their_type() -> None:
    sentence = "an offset to commit is an OffsetAndMetadata, not 5"
    with Consumer(SETTINGS) as consumer, pytest.raises(TypeError, match=sentence):
        consumer.commit_sync({("t", 0): 5})  # type: ignore[dict-item]


def test_times_of_records_are_not_negative() -> None:
    """-1 and -2 mean the end and the beginning in ListOffsets; there are calls for them."""
    sentence = "a timestamp must be a whole number from 0 to 9223372036854775807, not -1"
    with Consumer(SETTINGS) as consumer, pytest.raises(ValueError, match=sentence):
        consumer.offsets_for_times({("t", 0): -1}, timeout=0)

    async def run() -> None:
        async with AsyncConsumer(SETTINGS) as awaiting:
            with pytest.raises(ValueError, match=sentence):
                await awaiting.offsets_for_times({("t", 0): -1}, timeout=0)

    asyncio.run(run())


def test_an_acknowledgement_has_a_kind() -> None:
    """A number was sent as it was: 0, a gap, made the broker forget a record."""
    with ShareConsumer({**SETTINGS, "share.acknowledgement.mode": "explicit"}) as consumer:
        consumer._core._held["t", 0, 7] = None  # type: ignore[assignment]
        with pytest.raises(ValueError, match="9 is not a valid AcknowledgeType"):
            consumer.acknowledge_offset("t", 0, 7, 9)  # type: ignore[arg-type]
        with pytest.raises(IllegalStateError, match="not a gap"):
            consumer.acknowledge_offset("t", 0, 7, 0)  # type: ignore[arg-type]
        consumer._core._held.clear()


def test_a_timeout_may_be_infinite() -> None:
    """The calls wait until something ends them; a close waits for what there is."""
    forever = float("inf")
    consumer = Consumer(SETTINGS)
    consumer.assign([("t", 0)])
    consumer.wakeup()
    with pytest.raises(WakeupError):
        consumer.position(("t", 0), forever)
    threading.Timer(0.05, consumer.wakeup).start()
    with pytest.raises(WakeupError):
        consumer.poll(forever)
    consumer.unsubscribe()
    consumer.close(forever)
    sharing = ShareConsumer(SETTINGS)
    sharing.subscribe(["t"])
    threading.Timer(0.05, sharing.wakeup).start()
    with pytest.raises(WakeupError):
        sharing.poll(forever)
    sharing.close(forever)

    async def run() -> None:
        async with AsyncConsumer(SETTINGS) as consumer, AsyncShareConsumer(SETTINGS) as sharing:
            consumer.assign([("t", 0)])
            sharing.subscribe(["t"])
            for one in (consumer, sharing):
                asyncio.get_running_loop().call_later(0.05, one.wakeup)
                with pytest.raises(WakeupError):
                    await one.poll(forever)
            await sharing.close(forever)

    asyncio.run(asyncio.wait_for(run(), 30))
