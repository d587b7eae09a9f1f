"""The options of commands that talk to a running cluster: where it is, and settings of the client (KIP-1147).

option                       later ones win over earlier ones
---------------------------  ------------------------------------------------------------------------------
--command-config FILE        settings, in Kafka's format; the place for passwords
--command-property KEY=VALUE a setting; may be repeated for other settings
--bootstrap-server           bootstrap.servers; without it and the setting, 127.0.0.1:9092
--bootstrap-controller       bootstrap.controllers, instead of bootstrap.servers (KIP-919); of some commands
options of the command       such as --acks
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kcli.commands.output import CannotRun, print_message

if TYPE_CHECKING:
    from types import TracebackType

    from kcli.client import Admin, Consumer, Producer

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP = "bootstrap.servers"
BOOTSTRAP_CONTROLLERS = "bootstrap.controllers"
NOTICE_S = 0.4
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")  # compression.type
# The timeouts of producers and consumers are a minute, so that they survive the restart of a broker; if the user sets one of
# them, it counts from the beginning.
_OWN_TIMEOUTS = ("default.api.timeout.ms", "max.block.ms")


def add_client_options(
    parser: argparse.ArgumentParser, title: str = "cluster", takes_controllers: bool = False
) -> argparse._ArgumentGroup:
    """Add the options in a group of their own, and return it."""
    group = parser.add_argument_group(title)
    first = group.add_mutually_exclusive_group() if takes_controllers else group
    first.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT",
        help=f"brokers to connect to first, separated by commas ({DEFAULT_BOOTSTRAP})",
    )
    if takes_controllers:
        first.add_argument(
            "--bootstrap-controller",
            metavar="HOST:PORT",
            help="controllers to connect to first, separated by commas: no broker is needed",
        )
    group.add_argument("--command-config", metavar="FILE", help="read settings of the client from this properties file")
    group.add_argument(
        "--command-property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a setting of the client; may be repeated",
    )
    return group


def add_producer_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of commands that send records; `producer_settings` has their settings."""
    group.add_argument(
        "--acks", choices=["0", "1", "all"], help="which replicas acknowledge a record: none, the leader, or all in sync (all)"
    )
    group.add_argument("--compression-type", choices=CODECS, help="compress batches with this codec (none)")


def producer_settings(args: argparse.Namespace) -> dict[str, str | None]:
    """Return the settings for the options of `add_producer_options`."""
    return {"acks": args.acks, "compression.type": args.compression_type}


@contextmanager
def client_errors(passed_on: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """Raise CannotRun with the sentence of a ClientError that ends the block, unless it is one of `passed_on`."""
    from kcli.client.errors import ClientError

    try:
        yield
    except passed_on:
        raise
    except ClientError as error:
        raise CannotRun(str(error)) from error


class ClientLog:
    """Reports on stderr what the clients of a command log, and the brokers to which there is no connection.

    The latter is reported when it was so twice, NOTICE_S apart, once for each reason: a command that waits for a broker names
    it within a second, and a connection that is only made again is not reported.
    """

    def __init__(self) -> None:
        import threading  # half a millisecond, which --help needs not

        self._clients: list[Producer | Consumer | Admin] = []
        self._reported: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kcli connections", daemon=True)

    def __enter__(self) -> ClientLog:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()

    def __call__(self, line: str) -> None:
        """Take a line of a client; lines about connections and those of normal operation (INFO) are passed by."""
        from kcli.log.report_line import fields_of, is_info

        if "peer" not in fields_of(line) and not is_info(line):
            print_message(line)

    def watch(self, client: Producer | Consumer | Admin) -> None:
        """Report what a client waits for."""
        self._clients.append(client)

    def _run(self) -> None:
        before: set[str] = set()
        while not self._ended.wait(NOTICE_S):
            found = {sentence for client in list(self._clients) for sentence in client.unready_brokers()}
            for sentence in sorted(found & before - self._reported):
                print_message(f"{sentence}; trying again")
            self._reported |= found & before
            before = found


def check_cluster(properties: Mapping[str, str], log: ClientLog) -> None:
    """Raise CannotRun if no broker answers in time at the address that it advertises.

    That is FIRST_CONTACT_MS (kcli.client.client_config), or the timeout that the user has set.
    """
    from kcli.client.admin.cluster import reach_any_broker
    from kcli.client.client_config import FIRST_CONTACT_MS
    from kcli.client.shell.admin import Admin

    limit_ms = next((properties[name] for name in _OWN_TIMEOUTS if name in properties), str(FIRST_CONTACT_MS))
    with client_errors(), Admin(common_settings(properties) | {_OWN_TIMEOUTS[0]: limit_ms}, log=log) as admin:
        log.watch(admin)
        admin.describe_cluster()
        admin.execute(reach_any_broker())


def common_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that all clients have, those of TLS and SASL too, without those of producers and consumers.

    Raises CannotRun for a name that may be a misspelt security.protocol: without it, connections have no protection.
    """
    from kcli.client.client_config import PROTOCOL, SECURITY_PREFIXES, ClientConfig, is_like_protocol, property_name

    known = {property_name(field) for field in ClientConfig._fields}
    found = {name: value for name, value in properties.items() if name in known or name.startswith(SECURITY_PREFIXES)}
    for name in properties.keys() - found.keys():
        if is_like_protocol(name):
            raise CannotRun(f"there is no setting {name}; did you mean {PROTOCOL}?")
    return found


def client_properties(args: argparse.Namespace, own: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return the settings of the client, with those of `own` that are not None on top.

    Raises CannotRun, and OSError for the file.
    """
    settings: dict[str, str] = {} if args.command_config is None else read_properties(args.command_config)
    given: dict[str, str] = {}
    for text in args.command_property:
        name, found, value = text.partition("=")
        if not found or not name.strip():
            raise CannotRun(f"--command-property {name}: write KEY=VALUE")
        if name.strip() in given:
            raise CannotRun(f"--command-property names {name.strip()} twice")
        given[name.strip()] = value.strip()
    settings |= given
    controllers = getattr(args, "bootstrap_controller", None)
    if controllers is not None:
        settings.pop(BOOTSTRAP, None)
        settings[BOOTSTRAP_CONTROLLERS] = controllers
    elif args.bootstrap_server is not None:
        settings.pop(BOOTSTRAP_CONTROLLERS, None)
        settings[BOOTSTRAP] = args.bootstrap_server
    if BOOTSTRAP_CONTROLLERS not in settings or not hasattr(args, "bootstrap_controller"):
        settings.setdefault(BOOTSTRAP, DEFAULT_BOOTSTRAP)
    return settings | {name: value for name, value in (own or {}).items() if value is not None}


def read_properties(path: str) -> dict[str, str]:
    """Return the settings of a properties file. Raises CannotRun, and OSError for the file."""
    import javaproperties

    with open(path, encoding="utf-8-sig") as file:  # a byte order mark would belong to the first name
        try:
            return dict(javaproperties.load(file))
        except ValueError as error:
            raise CannotRun(f"{path}: {error}") from None
