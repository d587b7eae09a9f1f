"""Protects the client's requests and responses against kafka-python, which reads Kafka's own declarations: the same bytes.

Two of its ways are not Kafka's: an ApiVersionsResponse with an error is read as version 0 (as clients must), and what it has
read cannot be written before its header is set.
"""

from __future__ import annotations

import importlib
from random import Random
from typing import Any

import pytest

from kcli.protocol.apis import API_VERSIONS, Api
from tests.protocol.random_messages import EARLIER_FORMS, RandomMessages, message_type

pytest.importorskip("kafka.protocol.api_message")

FAST_SEEDS, CI_SEEDS = range(2), range(2, 60)
FEWEST_APIS = 50


def peer_classes() -> dict[str, Any]:
    """kafka-python's messages by Kafka's names."""
    packages = [
        importlib.import_module(f"kafka.protocol.{name}") for name in ("metadata", "admin", "consumer", "producer", "sasl")
    ]
    return {
        name: found
        for package in packages
        for name, found in vars(package).items()
        if hasattr(found, "decode") and name.endswith(("Request", "Response"))
    }


CLASSES = peer_classes()
FORMS = [(api, side, version) for api, side, version in EARLIER_FORMS if api.name + side.capitalize() in CLASSES]


def check(api: Api, side: str, version: int, seeds: range) -> None:
    peer, found = CLASSES[api.name + side.capitalize()], message_type(api, side)
    for seed in seeds:
        message = RandomMessages(Random(f"{api.name} {side} {version} {seed}")).message(found, version)
        if side == "response" and api.key == API_VERSIONS:
            message.error_code = 0
        data = found.encode(message)
        seen = peer.decode(data, version=version)
        seen._header = None
        again = bytes(seen.encode(version=version))
        assert again == data, (api, side, version, seed)
        assert found.decode(again, version) == (message, len(data))


def test_most_apis_of_clients_are_compared() -> None:
    assert len({api.key for api, _side, _version in FORMS}) >= FEWEST_APIS


def test_every_form_is_kafka_pythons() -> None:
    for api, side, version in FORMS:
        check(api, side, version, FAST_SEEDS)


@pytest.mark.ci
def test_every_form_is_kafka_pythons_from_many_seeds() -> None:
    for api, side, version in FORMS:
        check(api, side, version, CI_SEEDS)
