"""Protects the checks of a group's configuration that depend on the brokers' configuration or on several values."""

from __future__ import annotations

import pytest

from kcli.protocol.error_codes import INVALID_CONFIG
from kcli.server.config.group_config import check_group_config
from kcli.server.config.loading import load_config
from kcli.server.config.request_errors import ConfigRequestError
from kcli.server.config.server_config import ServerConfig


@pytest.fixture(scope="module")
def config() -> ServerConfig:
    """The configuration of a broker."""
    return load_config(None, ["log.dirs=/nowhere", "listeners=PLAINTEXT://127.0.0.1:0"])


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("streams.assignor.name", "sticky", "org.Foo"),
        ("streams.rack.aware.assignment.tags", "zone, rack", "zone,rack,zone"),
        ("streams.rack.aware.assignment.tags", "", "zone,,rack"),
        ("errors.deadletterqueue.topic.name", "dlq.orders", "__orders"),
        ("streams.num.standby.replicas", "2", "3"),
        ("share.record.lock.duration.ms", "15000", "14999"),
        ("consumer.session.timeout.ms", "45000", "44999"),
    ],
)
def test_a_value_is_checked(config: ServerConfig, name: str, valid: str, invalid: str) -> None:
    check_group_config(config, {name: valid})
    with pytest.raises(ConfigRequestError) as caught:
        check_group_config(config, {name: invalid})
    assert caught.value.code == INVALID_CONFIG
    assert name in str(caught.value)
