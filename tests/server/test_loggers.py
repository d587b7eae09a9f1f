"""Protects an operator who changes what a running node logs: kafka-configs --entity-type broker-loggers (KIP-412)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcli.protocol import error_codes
from kcli.protocol.apis import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, METADATA
from kcli.protocol.message import Message
from kcli.server.events import Connection
from kcli.server.log_lines import DEBUG, GROUPS, LEVELS, REQUESTS, ROOT, Line, WarningLine, fault_line
from tests.server.apis.asking import Refusing, ask, struct
from tests.server.whole_node import WholeNode

TOPIC, LOGGER = 2, 8
SET, DELETE, APPEND = 0, 1, 2
Change = tuple[str, int, str | None]


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    return WholeNode(tmp_path / "data")


def resource(kind: int, name: str, *changes: Change) -> Message:
    configs = [
        struct(INCREMENTAL_ALTER_CONFIGS, "AlterableConfig", name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    return struct(INCREMENTAL_ALTER_CONFIGS, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs)


def alter(node: WholeNode, *resources: Message, **fields: Any) -> list[tuple[int, int, str]]:
    """The error, type and name of each resource in the answer."""
    answer = ask(node, INCREMENTAL_ALTER_CONFIGS, 1, resources=list(resources), **fields)
    return [(one.error_code, one.resource_type, one.resource_name) for one in answer.responses]


def levels(node: WholeNode, connection: Connection | None = None) -> dict[str, str]:
    asked = struct(DESCRIBE_CONFIGS, "DescribeConfigsResource", resource_type=LOGGER, resource_name="1")
    (found,) = ask(node, DESCRIBE_CONFIGS, 4, connection, resources=[asked]).results
    assert not found.error_code
    assert {one.config_source for one in found.configs} == {6}
    return {one.name: one.value for one in found.configs}


def test_a_level_decides_which_lines_are_written(node: WholeNode) -> None:
    """All loggers are listed; a level holds for one logger, that of root for those without their own."""
    before = levels(node)
    assert before[ROOT] == before[GROUPS] == "INFO"
    assert alter(node, resource(LOGGER, "1", (ROOT, SET, "ERROR"), (GROUPS, SET, "WARN"))) == [(0, LOGGER, "1")]
    assert levels(node) == {**dict.fromkeys(before, "ERROR"), GROUPS: "WARN", REQUESTS: "WARN"}
    written = len(node.lines)
    for write in (node.broker.report, node.broker.parts.loggers[GROUPS]):
        for line in (Line("information"), WarningLine("a warning"), fault_line("a test", ValueError("x"))):
            write(line)
    assert [type(line).__name__ for line in node.lines[written:]] == ["FailureLine", "WarningLine", "FailureLine"]
    assert alter(node, resource(LOGGER, "1", (GROUPS, DELETE, None), (REQUESTS, DELETE, None))) == [(0, LOGGER, "1")]
    assert set(levels(node).values()) == {"ERROR"}


def test_the_request_logger_has_a_line_for_each_request(node: WholeNode) -> None:
    alter(node, resource(LOGGER, "1", (REQUESTS, SET, DEBUG)))
    written = len(node.lines)
    ask(node, METADATA, 9, topics=[])
    (line,) = node.lines[written:]
    assert line.startswith("Metadata v9 from ")


def test_loggers_and_topics_in_one_request(node: WholeNode) -> None:
    """The broker changes levels, the controller topics; the answer has the order of the request."""
    node.create_topic("a", 1)
    logger, topic = resource(LOGGER, "1", (GROUPS, SET, "WARN")), resource(TOPIC, "a", ("retention.ms", SET, "5000"))
    absent = resource(TOPIC, "absent", ("retention.ms", SET, "5000"))
    expected = [
        (error_codes.UNKNOWN_TOPIC_OR_PARTITION, TOPIC, "absent"),
        (0, LOGGER, "1"),
        (0, TOPIC, "a"),
    ]
    assert alter(node, absent, logger, topic, validate_only=True) == expected
    assert levels(node)[GROUPS] == "INFO"
    assert alter(node, absent, logger, topic) == expected
    assert levels(node)[GROUPS] == "WARN"
    assert {"retention.ms": "5000"} in node.broker.metadata.image.configs.values()


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("1", ("no.such.logger", SET, "INFO"), error_codes.INVALID_CONFIG),
        ("1", ("no.such.logger", DELETE, None), error_codes.INVALID_CONFIG),
        ("1", (GROUPS, SET, "LOUD"), error_codes.INVALID_CONFIG),
        ("1", (GROUPS, SET, None), error_codes.INVALID_REQUEST),
        ("1", (GROUPS, APPEND, "INFO"), error_codes.INVALID_REQUEST),
        ("1", (ROOT, DELETE, None), error_codes.INVALID_REQUEST),
        ("2", (GROUPS, SET, "INFO"), error_codes.INVALID_REQUEST),
        ("", (GROUPS, SET, "INFO"), error_codes.INVALID_REQUEST),
    ],
)
def test_what_is_refused_changes_nothing(node: WholeNode, name: str, change: Change, code: int) -> None:
    """With Kafka's error codes, and also the changes next to the refused one."""
    before = levels(node)
    assert alter(node, resource(LOGGER, name, (REQUESTS, SET, "FATAL"), change)) == [(code, LOGGER, name)]
    assert levels(node) == before


def test_a_resource_named_twice_is_refused(node: WholeNode) -> None:
    twice = [resource(LOGGER, "1", (GROUPS, SET, level)) for level in LEVELS[:2]]
    assert alter(node, *twice) == [(error_codes.INVALID_REQUEST, LOGGER, "1")] * 2


def test_a_client_needs_the_right_to_alter_the_cluster(node: WholeNode) -> None:
    parts = node.broker.parts._replace(authorizer=Refusing(("ALTER_CONFIGS", "CLUSTER", "kafka-cluster")))
    node.broker.router._parts = parts
    changed = alter(node, resource(LOGGER, "1", (GROUPS, SET, "WARN")))
    assert changed == [(error_codes.CLUSTER_AUTHORIZATION_FAILED, LOGGER, "1")]


def test_the_controllers_listener_changes_the_same_levels(node: WholeNode) -> None:
    """kafka-configs --bootstrap-controller."""
    connection = Connection(9, "CONTROLLER", "127.0.0.1")
    change = resource(LOGGER, "1", (GROUPS, SET, "WARN"))
    answer = ask(node, INCREMENTAL_ALTER_CONFIGS, 1, connection, resources=[change])
    assert [one.error_code for one in answer.responses] == [0]
    assert levels(node, connection) == levels(node)
    assert levels(node)[GROUPS] == "WARN"
