"""Protects the configuration against any input: what is not valid is refused in a sentence, and nothing else happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.server.config import ConfigError, ServerConfig
from kcli.server.config.alter_configs import Operation, decide, preprocess
from kcli.server.config.definitions import BROKER_KEYS, CLIENT_METRICS_KEYS, GROUP_KEYS, TOPIC_KEYS, ConfigKey
from kcli.server.config.describe_configs import describe
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.loading import configure
from kcli.server.config.request_errors import ConfigRequestError
from kcli.server.config.values import format_value, parse_value, valid_values
from kcli.server.log_lines import Loggers
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import ConfigResource
from tests.oracle.config_answers import record

KEYS = [key for table in (BROKER_KEYS, TOPIC_KEYS, GROUP_KEYS, CLIENT_METRICS_KEYS) for key in table.definitions()]
NUMBERS = ["0", "-1", "1", "999999999999", "1.5", "1e999", "nan"]
WORDS = ["", " ", "true", "compact", "delete", ",", "a:b", "1@h:9", "://", "*", "é", "\0", *NUMBERS]
TEXTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=4).map("".join)


@given(st.sampled_from(KEYS), TEXTS)
def test_any_text_is_a_value_or_refused(key: ConfigKey, text: str) -> None:
    try:
        value = parse_value(key, text)
    except ConfigError as error:
        assert key.name in str(error) and valid_values(key) in str(error)
        return
    shown = format_value(value)
    assert shown is not None and parse_value(key, shown) == value


@given(
    st.binary(max_size=60) | st.lists(st.sampled_from(sorted(BROKER_KEYS)) | TEXTS, max_size=4).map("=".join).map(str.encode)
)
def test_any_file_is_a_configuration_or_refused(data: bytes) -> None:
    try:
        assert isinstance(configure(data, "server.properties"), ServerConfig)
    except ConfigError as error:
        assert error.faults


@given(
    st.sampled_from([("TOPIC", "t"), ("BROKER", "1"), ("BROKER", ""), ("GROUP", "g"), ("CLIENT_METRICS", "m")]),
    st.lists(st.tuples(st.sampled_from([key.name for key in KEYS]) | TEXTS, st.integers(0, 4), TEXTS | st.none()), max_size=3),
)
def test_any_change_is_made_or_refused(resource: tuple[str, str], operations: list[tuple[str, int, str | None]]) -> None:
    """And what was made can be described, and is a configuration that the broker runs with."""
    image = MetadataImage()
    image.apply(record("TopicRecord", name="t", topic_id=b"\1" * 16))
    dynamic = DynamicConfig(configure(b"node.id=1\nprocess.roles=broker,controller\ncontroller.listener.names=C\n", "f"))
    target, asked = ConfigResource(*resource), [Operation(*one) for one in operations]
    try:
        preprocess(target, asked, image, dynamic)
        records = decide(target, asked, image, dynamic.current)
    except ConfigRequestError as error:
        assert str(error)
        return
    for one in records:
        image.apply(one)
    dynamic.follow(image)
    entries = {entry.name: entry for entry in describe(target, None, image, dynamic, Loggers(print))}
    assert entries.keys() >= set(image.configs.get(target, {}))


def test_what_the_log_holds_and_cannot_be_is_left_out() -> None:
    told: list[str] = []
    dynamic = DynamicConfig(configure(None, None), told.append)
    changed = dynamic.update({"message.max.bytes": "many", "num.partitions": "5", "log.retention.ms": "7"}, {"no.such": "x"})
    assert changed == ["log.retention.ms", "no.such"]
    assert dynamic["log.retention.ms"] == 7 and dynamic["num.partitions"] == 1
    assert len(told) == 2 and "message.max.bytes=many" in told[0] and "num.partitions" in told[1]


def test_watchers_hear_of_their_keys_alone() -> None:
    heard: list[int] = []
    dynamic = DynamicConfig(configure(None, None))
    dynamic.watch(["max.connections"], lambda now: heard.append(now["max.connections"]))
    dynamic.update({"message.max.bytes": "5"}, {})
    assert heard == []
    before = dynamic.current
    dynamic.update({"message.max.bytes": "5", "max.connections": "9"}, {})
    dynamic.update({"max.connections": "9"}, {"max.connections": "8"})
    assert heard == [9, 8] and before["max.connections"] == 2147483647


@pytest.mark.parametrize("name", ["listeners", "principal.builder.class", "sasl.enabled.mechanisms"])
def test_what_is_not_served_cannot_be_set_while_it_runs(name: str) -> None:
    dynamic = DynamicConfig(configure(None, None))
    operation = Operation(name, 0, "PLAINTEXT://:1" if name == "listeners" else "x")
    with pytest.raises(ConfigRequestError, match="not served yet"):
        preprocess(ConfigResource("BROKER", "1"), [operation], MetadataImage(), dynamic)
