"""The parts that every client gets from its shell: settings as texts, a clock, random numbers, a NetworkClient."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kcli.client.client_config import SECURITY_PREFIXES, ClientConfig, read_config
from kcli.client.errors import ConfigError
from kcli.client.network_client import NetworkClient
from kcli.log.report_line import is_info
from kcli.network.security import OAUTHBEARER, PLAINTEXT, Security
from kcli.network.shell.clock import Clock

if TYPE_CHECKING:
    from kcli.client.shell.tokens import TokenFunction

# A timeout that never comes, in seconds.
FOREVER_S = 10**9
# The value of a setting, as a caller may write it.
Setting = str | int | float | bool


def log_line(line: str) -> None:
    """Log a line of a client by Python's logging, as kcli.client: the `log` of a client for which the application has none."""
    import logging

    level = logging.INFO if is_info(line) else logging.WARNING
    logging.getLogger("kcli.client").log(level, "%s", line)


def property_texts(settings: Mapping[str, Setting]) -> dict[str, str]:
    """Return settings as the texts that a properties file would have."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}


def build_network(
    properties: Mapping[str, str],
    clock: Clock,
    log: Callable[[str], None] | None = None,
    oauth_token: TokenFunction | None = None,
    controllers: Sequence[str] = (),
) -> NetworkClient:
    """Make the NetworkClient for properties; `log` gets a line for each connection that fails. Raises ConfigError.

    `controllers` are the addresses of bootstrap.controllers, which only administrators have.
    """
    config = read_config(ClientConfig, properties)
    security = PLAINTEXT
    if oauth_token is not None or any(name.startswith(SECURITY_PREFIXES) for name in properties):
        security = _build_security(properties, config, oauth_token)
    ignored: Callable[[str], None] = lambda line: None  # noqa: E731
    parts = (random.SystemRandom(), log or ignored, clock.now_ms(), clock.wall_time, security)
    return NetworkClient(config, *parts, controllers)


def _build_security(properties: Mapping[str, str], config: ClientConfig, oauth_token: TokenFunction | None) -> Security:
    # Loaded here: a client without TLS and SASL starts without them.
    from kcli.client.security_config import read_security

    settings = read_security(properties, oauth_token is not None)
    tls = tokens = None
    if settings.tls is not None:
        from kcli.network.shell.tls import Tls, TlsSettingsError

        try:
            tls = Tls(settings.tls, max(config.socket_connection_setup_timeout_ms, 1) / 1000)
        except TlsSettingsError as error:
            raise ConfigError(str(error)) from None
    is_token = settings.sasl is not None and settings.sasl.mechanism == OAUTHBEARER
    if oauth_token is not None and not is_token:
        raise ConfigError("oauth_token is for sasl.mechanism=OAUTHBEARER with security.protocol=SASL_SSL or SASL_PLAINTEXT")
    if is_token:
        from kcli.client.shell.tokens import make_source

        tokens = make_source(settings.endpoint, oauth_token)
    return Security(tls, settings.sasl, tokens)
