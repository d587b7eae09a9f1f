"""Protects every request and response against kio, which has its declarations from Kafka's own: the same bytes both ways.

kio's declarations are those of Kafka 4.3; tests/oracle/test_kafka_4_4.py has what came later.
"""

from __future__ import annotations

import io
from random import Random

import pytest

from kcli.protocol.apis import API_KEYS, PRODUCE, Api
from tests.protocol.random_messages import APIS, EARLIER_FORMS, EDGE_SIZES, SINCE_KAFKA_4_4, message_type, random_bytes

pytest.importorskip("kio")

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

FAST_SEEDS, CI_SEEDS = range(2), range(2, 60)


def check(api: Api, side: str, version: int, seeds: range) -> None:
    """kio reads what we write and writes the same bytes, and we read those as the message that was."""
    entity = (load_request_schema if side == "request" else load_response_schema)(api.key, version)
    read, write, found = entity_reader(entity), entity_writer(entity), message_type(api, side)
    for seed in seeds:
        message, data = random_bytes(Random(f"{api.name} {side} {version} {seed}"), api, side, version, gentle=True)
        seen, size = read(data, 0)
        out = io.BytesIO()
        write(out, seen)
        assert (size, out.getvalue()) == (len(data), data), (api, side, version, seed)
        assert found.decode(out.getvalue(), version) == (message, len(data)), (api, side, version, seed)


@pytest.mark.parametrize("side", ["request", "response"])
def test_every_form_is_kios(side: str) -> None:
    for api, of, version in EARLIER_FORMS:
        if of == side:
            check(api, side, version, FAST_SEEDS)


@pytest.mark.ci
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_every_form_is_kios_from_many_seeds(api: Api) -> None:
    for of, side, version in EARLIER_FORMS:
        if of is api:
            check(api, side, version, CI_SEEDS)


@pytest.mark.parametrize("size", EDGE_SIZES)
def test_compact_lengths_grow_where_they_must(size: int) -> None:
    api = API_KEYS[PRODUCE]
    message = api.request.new(schema_version=9)
    partition = api.request.classes["PartitionProduceData"](records=memoryview(bytes(size)))
    message.topic_data = [api.request.classes["TopicProduceData"](name="t", partition_data=[partition])]
    data = api.request.encode(message)
    seen, position = entity_reader(load_request_schema(PRODUCE, 9))(data, 0)
    assert (position, len(seen.topic_data[0].partition_data[0].records)) == (len(data), size)
    assert api.request.decode(data, 9) == (message, len(data))


def test_all_of_kios_apis_are_there() -> None:
    from kio.schema.index import api_key_map

    later = {key for key, version in SINCE_KAFKA_4_4.items() if version == 0}
    assert {api.key for api in APIS} == {*api_key_map, *later}
