"""Protects what a broker does with AlterConfigs itself: only it can check its own settings, and nobody asks the controller
about another broker's (Kafka: ConfigAdminManager)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kcli.protocol import error_codes
from kcli.protocol.apis import ALTER_CONFIGS, API_KEYS, INCREMENTAL_ALTER_CONFIGS
from kcli.protocol.framing import encode_response, read_request_header
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.registry import FORWARDED, load_handler
from kcli.server.authorizer import AllowAll
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.loading import load_config
from kcli.server.envelope import FORWARDABLE
from kcli.server.events import Connection
from kcli.server.log_lines import Loggers
from kcli.state.metadata_image import MetadataImage

TOPIC, BROKER, LOGGER = 2, 4, 8
VERSIONS = {INCREMENTAL_ALTER_CONFIGS: 1, ALTER_CONFIGS: 2}
EACH = pytest.mark.parametrize("key", VERSIONS)
Named = tuple[int, str]
OWN, OTHER = (BROKER, "2"), (BROKER, "3")


class AskedBroker:
    """Broker 2; `forwarded` has the resources that the controller got, which refuses those named `refused`."""

    def __init__(self, key: int, refused: str = "") -> None:
        self.key = key
        self.refused = refused
        self.forwarded: list[Named] = []
        self.answers: list[Message] = []
        config = load_config(
            None, ["process.roles=broker", "node.id=2", "log.dirs=/d", "controller.quorum.voters=1@localhost:9093"]
        )
        self.parts = SimpleNamespace(
            node_id=2,
            config=DynamicConfig(config, lambda line: None),
            metadata=SimpleNamespace(image=MetadataImage()),
            loggers=Loggers(lambda line: None),
            authorizer=AllowAll(),
            controller=self,
        )

    def ask(self, *named: Named, value: str = "700000") -> dict[Named, int]:
        """Change log.retention.ms, or the level of root, of resources; return the error code of each."""
        classes = API_KEYS[self.key].request.classes
        resources = [
            classes["AlterConfigsResource"](
                resource_type=kind,
                resource_name=name,
                configs=[
                    classes["AlterableConfig"](name="root", value="INFO")
                    if kind == LOGGER
                    else classes["AlterableConfig"](name="log.retention.ms", value=value)
                ],
            )
            for kind, name in named
        ]
        api = API_KEYS[self.key]
        context = RequestContext(
            cast(Any, self.parts), cast(Any, self), Connection(1, "PLAINTEXT", "h"), api, VERSIONS[self.key], 5, "c", 0
        )
        load_handler(self.key)(context, api.request.new(resources=resources))
        (answer,) = self.answers
        assert [(one.resource_type, one.resource_name) for one in answer.responses] == list(named)
        return {(one.resource_type, one.resource_name): one.error_code for one in answer.responses}

    def respond(self, context: RequestContext, response: Message) -> None:
        self.answers.append(response)

    def forward(self, context: RequestContext, frame: memoryview, answered: Any) -> None:
        """Answer as a controller."""
        api = API_KEYS[self.key]
        key, version, correlation_id, client_id, position = read_request_header(frame)
        assert (key, version, correlation_id, client_id) == (self.key, VERSIONS[self.key], 5, "c")
        request, _ = api.request.decode(frame, version, position)
        self.forwarded = [(one.resource_type, one.resource_name) for one in request.resources]
        made = api.response.classes["AlterConfigsResourceResponse"]
        responses = [
            made(
                resource_type=kind,
                resource_name=name,
                error_code=error_codes.INVALID_CONFIG if name == self.refused else 0,
                error_message=None,
            )
            for kind, name in self.forwarded
        ]
        answered(bytes(encode_response(5, api, version, api.response.new(responses=responses)))[4:])


@EACH
def test_another_brokers_settings_are_refused_by_the_broker(key: int) -> None:
    broker = AskedBroker(key, refused="t")
    invalid = error_codes.INVALID_REQUEST
    expected = {OTHER: invalid, (TOPIC, "t"): error_codes.INVALID_CONFIG, (BROKER, "x"): invalid, OWN: 0, (77, "t"): invalid}
    assert broker.ask(*expected) == expected
    assert broker.forwarded == [(TOPIC, "t"), OWN]


@EACH
def test_a_request_that_is_refused_whole_is_not_forwarded(key: int) -> None:
    broker = AskedBroker(key)
    assert broker.ask(OTHER, OWN, OWN) == {OTHER: error_codes.INVALID_REQUEST, OWN: error_codes.INVALID_REQUEST}
    assert broker.forwarded == []


@EACH
def test_the_broker_checks_what_it_must_run_with(key: int) -> None:
    """The controller would take it: it does not have this broker's configuration."""
    broker = AskedBroker(key)
    assert broker.ask(OWN, value="soon") == {OWN: error_codes.INVALID_REQUEST}
    assert broker.forwarded == []


def test_levels_of_loggers_stay_here() -> None:
    own, other = (LOGGER, "2"), (LOGGER, "3")
    broker = AskedBroker(INCREMENTAL_ALTER_CONFIGS)
    assert broker.ask(own, OWN, other) == {own: 0, OWN: 0, other: error_codes.INVALID_REQUEST}
    assert broker.forwarded == [OWN]
    older = AskedBroker(ALTER_CONFIGS)
    assert older.ask(own) == {own: error_codes.INVALID_REQUEST}
    assert older.forwarded == []


def test_what_a_broker_forwards_in_part_may_come_in_an_envelope() -> None:
    assert VERSIONS.keys() <= FORWARDABLE
    assert not VERSIONS.keys() & FORWARDED
