"""The parts that every client gets from its shell: settings as texts, a clock, random numbers, a NetworkClient."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from kcli.client.client_config import ClientConfig, read_config
from kcli.client.network_client import NetworkClient
from kcli.network.shell.clock import Clock

# A timeout that never comes, in seconds.
FOREVER_S = 10**9
# The value of a setting, as a caller may write it.
Setting = str | int | float | bool


def property_texts(settings: Mapping[str, Setting]) -> dict[str, str]:
    """Return settings as the texts that a properties file would have."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}


def build_network(properties: Mapping[str, str], clock: Clock, log: Callable[[str], None] | None = None) -> NetworkClient:
    """Make the NetworkClient for properties; `log` gets a line for each connection that fails. Raises ConfigError."""
    config = read_config(ClientConfig, properties)
    ignored: Callable[[str], None] = lambda line: None  # noqa: E731
    return NetworkClient(config, random.SystemRandom(), log or ignored, clock.now_ms(), clock.wall_time)
