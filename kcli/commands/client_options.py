"""The options of commands that talk to a running cluster: where it is, and settings of the client (KIP-1147).

option                       later ones win over earlier ones
---------------------------  ------------------------------------------------------------------------------
--command-config FILE        settings, in Kafka's format
--command-property KEY=VALUE a setting; may be repeated
--bootstrap-server           bootstrap.servers; without it and the setting, 127.0.0.1:9092
options of the command       such as --acks
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from kcli.commands.output import CannotRun

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP = "bootstrap.servers"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")  # compression.type
# Settings of clients for security, which kcli's client does not have yet. Without them it would send what should be secret.
_SECURITY = ("sasl.", "ssl.", "security.")
_PLAIN = ("security.protocol", "PLAINTEXT")


def add_client_options(parser: argparse.ArgumentParser, title: str = "cluster") -> argparse._ArgumentGroup:
    """Add the options in a group of their own, and return it."""
    group = parser.add_argument_group(title)
    group.add_argument(
        "--bootstrap-server", metavar="HOST:PORT", help=f"brokers to ask first, separated by commas ({DEFAULT_BOOTSTRAP})"
    )
    group.add_argument("--command-config", metavar="FILE", help="settings of the client, in Kafka's format")
    group.add_argument(
        "--command-property", action="append", default=[], metavar="KEY=VALUE", help="a setting of the client; may be repeated"
    )
    return group


def client_properties(args: argparse.Namespace, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings of the client, with `own` on top. Raises CannotRun, and OSError for the file."""
    settings: dict[str, str] = {} if args.command_config is None else _read(args.command_config)
    for text in args.command_property:
        name, found, value = text.partition("=")
        if not found or not name.strip():
            raise CannotRun(f"--command-property {text}: write KEY=VALUE")
        settings[name.strip()] = value.strip()
    for name, value in settings.items():
        if name.startswith(_SECURITY) and (name, value.strip()) != _PLAIN:
            raise CannotRun(f"kcli's client does not support {name} yet")
    settings.pop(_PLAIN[0], None)
    settings.setdefault(BOOTSTRAP, DEFAULT_BOOTSTRAP)
    if args.bootstrap_server is not None:
        settings[BOOTSTRAP] = args.bootstrap_server
    return settings | dict(own or {})


def _read(path: str) -> dict[str, str]:
    import javaproperties

    with open(path, encoding="utf-8") as file:
        try:
            return dict(javaproperties.load(file))
        except ValueError as error:
            raise CannotRun(f"{path}: {error}") from None
