"""The nodes of a cluster on one machine: roles, ports, directories, configurations, and what is kept of them.

    in the data directory   contains
    ----------------------  -----------------------------------------------------------------------------------------------
    cluster.properties      what a start repeats: the cluster id and the address of each broker and controller
    node-N                  the log directory of node N, in Kafka's format
    node-N.properties       the configuration of node N, written by each start; kcli and Kafka start the node with it as well
    control                 the socket of the running cluster (kcli.server.supervisor.control)

    nodes                   `--brokers B`                           `--brokers B --controllers C`
    ----------------------  --------------------------------------  -------------------------------------------------------
    1 to B                  brokers; the first three are            brokers
                            controllers as well
    101 to 100 + C          -                                       controllers, as production clusters have them

Broker N has the port of the first broker + N - 1, and controllers have CONTROLLER_PORTS more; with port 0 all are free ports.

Partitions have MOST_REPLICAS replicas, or one on each of fewer brokers, and min.insync.replicas is one less, unless the
configuration for all nodes says otherwise.

A cluster is formatted with a dynamic quorum (KIP-853) whose first voters are all its controllers. The directory ids of these
are in cluster.properties until all directories are formatted, so that a start that was interrupted is repeated. A directory
that is made later, of a new node or for a disk that was replaced, has no voters: a controller on it becomes a voter by itself
(controller.quorum.auto.join.enable).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from posixpath import abspath
from typing import NamedTuple

from kcli.format.file_names import FileKind
from kcli.format.kafka_uuid import random_uuid
from kcli.format.limits import MAX_TEXT_FILE_BYTES
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import Disk, join_path
from kcli.server.config.loading import load_config
from kcli.server.config.properties_file import PropertiesError, parse_properties
from kcli.server.config.server_config import ServerConfig
from kcli.server.controller.format_settings import FormatOptions, plan_format
from kcli.server.controller.formatting import FormattingError, format_directories, read_meta_properties

HOST = "127.0.0.1"
DEFAULT_PORT, MAX_PORT = 9092, 65535
DEFAULT_DIRECTORY = "./kcli-cluster"
# The distance between the ports of the first broker and of the first controller.
CONTROLLER_PORTS = 10_000
# Brokers that are controllers as well: a majority of three survives the loss of one.
COMBINED_CONTROLLERS = 3
FIRST_CONTROLLER_ID = 101
MOST_REPLICAS = 3
MAX_BROKERS = FIRST_CONTROLLER_ID - 1
CLUSTER_FILE = "cluster.properties"
# The keys that each node has of its own; `serve --brokers` sets them.
NODE_KEYS = (
    *("node.id", "broker.id", "process.roles", "listeners", "advertised.listeners", "controller.listener.names"),
    *("log.dirs", "log.dir", "metadata.log.dir", "controller.quorum.voters", "controller.quorum.bootstrap.servers"),
)


class ClusterError(Exception):
    """A cluster that cannot be started or asked as requested; the message is one sentence."""


class ClusterNode(NamedTuple):
    """A node; a port is None if it does not have that role."""

    node_id: int
    broker_port: int | None
    controller_port: int | None

    @property
    def name(self) -> str:
        """What log lines and commands call it, and its directory."""
        return f"node-{self.node_id}"

    @property
    def roles(self) -> str:
        """The value of process.roles."""
        ports = {"broker": self.broker_port, "controller": self.controller_port}
        return ",".join(role for role, port in ports.items() if port is not None)


class ClusterLayout(NamedTuple):
    """A cluster; `first_voters` is the text of --initial-controllers until all directories are formatted, then empty.

    `dedicated` is the number of controllers that are not brokers; without any, the first brokers are controllers.
    """

    directory: str
    cluster_id: str
    nodes: tuple[ClusterNode, ...]
    dedicated: int
    first_voters: str

    @property
    def brokers(self) -> tuple[ClusterNode, ...]:
        """The nodes that are brokers."""
        return tuple(node for node in self.nodes if node.broker_port is not None)

    @property
    def controllers(self) -> tuple[ClusterNode, ...]:
        """The nodes that are controllers."""
        return tuple(node for node in self.nodes if node.controller_port is not None)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the brokers, as clients name them."""
        return ",".join(f"{HOST}:{node.broker_port}" for node in self.brokers)

    def log_dir(self, node: ClusterNode) -> str:
        """Return the log directory of a node."""
        return join_path(self.directory, node.name)


def plan_cluster(directory: str, brokers: int, controllers: int | None, port: int | None) -> ClusterLayout:
    """Return the cluster of a directory, with new nodes if there are to be more, or a new cluster. Raises ClusterError.

    `controllers` are dedicated ones, and None means those there are. `port` is that of the first broker; None means the one it
    has.
    """
    if not 1 <= brokers <= MAX_BROKERS:
        raise ClusterError(f"--brokers {brokers}: a cluster on one machine has 1 to {MAX_BROKERS} brokers")
    if controllers is not None and not 1 <= controllers <= MAX_BROKERS:
        raise ClusterError(f"--controllers {controllers}: a cluster on one machine has 1 to {MAX_BROKERS} controllers")
    if OsDisk().exists(join_path(directory, FileKind.META_PROPERTIES)):
        raise ClusterError(
            f"{directory} is the log directory of one node: name another directory for the cluster with --data-dir "
            "(docs/cluster.md shows how one node grows to a cluster)"
        )
    found = read_layout(directory)
    if found is None:
        return _with_nodes(directory, "", (), brokers, controllers or 0, DEFAULT_PORT if port is None else port)
    _check_growth(found, brokers, controllers, port)
    first = 0 if port == 0 else found.brokers[0].broker_port
    return _with_nodes(
        directory, found.cluster_id, found.nodes, brokers, found.dedicated if controllers is None else controllers, first or 0
    )._replace(first_voters=found.first_voters)


def _check_growth(found: ClusterLayout, brokers: int, controllers: int | None, port: int | None) -> None:
    had, first = len(found.brokers), found.brokers[0].broker_port
    if brokers < had:
        raise ClusterError(
            f"{found.directory} has a cluster of {had} brokers, and with --brokers {brokers} the records of the others would "
            f"be missing: start it with --brokers {had}; kcli cluster stop NODE then stops single nodes"
        )
    if port not in (None, 0, first):
        raise ClusterError(
            f"{found.directory} has a cluster whose first broker has the port {first}, which the other nodes know: leave "
            f"--port {port} out, or name another directory with --data-dir"
        )
    if controllers is None or controllers == found.dedicated:
        return
    if not found.dedicated:
        raise ClusterError(
            f"{found.directory} has a cluster whose first brokers are its controllers: leave --controllers out, or name "
            "another directory with --data-dir"
        )
    if controllers < found.dedicated:
        raise ClusterError(
            f"{found.directory} has {found.dedicated} controllers, all of them voters of the quorum: start it with "
            f"--controllers {found.dedicated}"
        )


def _with_nodes(
    directory: str, cluster_id: str, nodes: Sequence[ClusterNode], brokers: int, dedicated: int, port: int
) -> ClusterLayout:
    """Return a layout with those of the nodes that exist, and the missing ones."""
    known = {node.node_id: node for node in nodes}
    distance = CONTROLLER_PORTS if port + CONTROLLER_PORTS + MAX_BROKERS <= MAX_PORT else -CONTROLLER_PORTS
    free = _free_ports(2 * (brokers + dedicated)) if port == 0 else []

    def take(number: int) -> int:
        return free.pop() if port == 0 else number

    made = []
    for number in range(brokers):
        node = known.get(number + 1, ClusterNode(number + 1, None, None))
        if node.broker_port is None:
            node = node._replace(broker_port=take(port + number))
        if node.controller_port is None and not dedicated and number < COMBINED_CONTROLLERS:
            node = node._replace(controller_port=take(port + distance + number))
        made.append(node)
    for number in range(dedicated):
        new = ClusterNode(FIRST_CONTROLLER_ID + number, None, None)
        found = known.get(new.node_id)
        made.append(found or new._replace(controller_port=take(port + distance + number)))
    ports = [one for node in made for one in (node.broker_port, node.controller_port) if one is not None]
    if max(ports) > MAX_PORT:
        raise ClusterError(f"--port {port}: the cluster needs ports up to {max(ports)}, and the last one is {MAX_PORT}")
    if len(set(ports)) < len(ports):
        raise ClusterError(
            f"--port {port}: the ports of {len(made)} nodes overlap; name a port below {MAX_PORT - CONTROLLER_PORTS}"
        )
    return ClusterLayout(directory, cluster_id, tuple(made), dedicated, "")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


# -------------------------------------------------------------------------------------------------------- cluster.properties


def read_layout(directory: str) -> ClusterLayout | None:
    """Return the cluster of a directory, None if there is none. Raises ClusterError for a file that cannot be read."""
    path = join_path(directory, CLUSTER_FILE)
    try:
        values = {key: value for key, value, _ in parse_properties(OsDisk().read_file(path, MAX_TEXT_FILE_BYTES))}
        nodes: dict[int, ClusterNode] = {}
        for role in ("broker", "controller"):
            for text in filter(None, values[f"{role}s"].split(",")):
                node_id, port = (int(part) for part in text.replace(f"@{HOST}:", ":").split(":"))
                node = nodes.get(node_id, ClusterNode(node_id, None, None))
                nodes[node_id] = node._replace(broker_port=port) if role == "broker" else node._replace(controller_port=port)
        made = tuple(node for _, node in sorted(nodes.items()))
        dedicated = sum(node.broker_port is None for node in made)
        return ClusterLayout(directory, values["cluster.id"], made, dedicated, values.get("first.voters", ""))
    except FileNotFoundError:
        return None
    except (PropertiesError, KeyError, ValueError) as error:
        raise ClusterError(
            f"{path} is not what kcli serve --brokers wrote ({type(error).__name__}: {error}): restore it, or name another "
            "directory with --data-dir"
        ) from None


def _write(path: str, title: str, values: Mapping[str, str]) -> None:
    """Replace a properties file."""
    lines = [f"# {title}", *(f"{key}={value.replace(chr(92), chr(92) * 2)}" for key, value in values.items()), ""]
    OsDisk().write_file(path, "\n".join(lines).encode("latin-1", "backslashreplace"))


def write_layout(layout: ClusterLayout) -> None:
    """Keep the layout for the next start."""

    def addresses(role: str) -> str:
        ports = ((node.node_id, getattr(node, f"{role}_port")) for node in layout.nodes)
        return ",".join(f"{node_id}@{HOST}:{port}" for node_id, port in ports if port is not None)

    values = {"cluster.id": layout.cluster_id, "brokers": addresses("broker"), "controllers": addresses("controller")}
    if layout.first_voters:
        values["first.voters"] = layout.first_voters
    _write(join_path(layout.directory, CLUSTER_FILE), "The cluster of kcli serve --brokers; it is read by each start.", values)


# ------------------------------------------------------------------------------------------------ configurations and formats


def configure_node(
    layout: ClusterLayout, node: ClusterNode, path: str | None, overrides: Sequence[str], *, strict: bool
) -> ServerConfig:
    """Return the configuration of a node: that of all, from a file and overrides, and its own keys. Raises ConfigError."""
    listeners = []
    if node.broker_port is not None:
        listeners.append(f"PLAINTEXT://{HOST}:{node.broker_port}")
    if node.controller_port is not None:
        listeners.append(f"CONTROLLER://{HOST}:{node.controller_port}")
    own = {
        "node.id": str(node.node_id),
        "process.roles": node.roles,
        "listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": ",".join(f"{HOST}:{one.controller_port}" for one in layout.controllers),
        "log.dirs": abspath(layout.log_dir(node)),
    }
    if node.controller_port is not None:
        own |= {"controller.quorum.auto.join.enable": "true", "kcli.quorum.elect.at.once": "true"}
    stated = {text.partition("=")[0].strip() for text in overrides}
    if path is not None:
        stated |= load_config(path, serving=False).stated.keys()
    common = {key: value for key, value in replication(len(layout.brokers)).items() if key not in stated}
    return load_config(path, [*overrides, *(f"{key}={value}" for key, value in (common | own).items())], strict=strict)


def replication(brokers: int) -> dict[str, str]:
    """Return the settings that keep each record when one broker of several dies, as far as there are brokers for it."""
    replicas = min(MOST_REPLICAS, brokers)
    in_sync = max(1, replicas - 1)
    return {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(in_sync),
    }


def check_common(path: str | None, overrides: Sequence[str]) -> None:
    """Raise ClusterError if a file or overrides for all nodes have a key that each node has of its own; ConfigError."""
    stated = {text.partition("=")[0].strip(): f"--override {text}" for text in overrides}
    if path is not None:
        config = load_config(path, serving=False)
        stated |= {key: f"{key}{config.where(key)}" for key in config.stated}
    own = [where for key, where in stated.items() if key in NODE_KEYS]
    if own:
        raise ClusterError(
            f"{', '.join(own)}: with --brokers each node has its own value, derived from --port and --data-dir: remove it here"
        )


def prepare(layout: ClusterLayout, configs: Sequence[ServerConfig], now_ms: int, log: Callable[[str], None]) -> ClusterLayout:
    """Format the empty directories, keep the layout and the configurations, and return the layout. Raises ClusterError."""
    disk = OsDisk()
    disk.make_directory(layout.directory)
    is_new = not layout.cluster_id
    if is_new:
        voters = (f"{one.node_id}@{HOST}:{one.controller_port}:{random_uuid(os.urandom)}" for one in layout.controllers)
        layout = layout._replace(cluster_id=str(random_uuid(os.urandom)), first_voters=",".join(voters))
    write_layout(layout)
    try:
        for node, config in zip(layout.nodes, configs, strict=True):
            _format(disk, layout, node, config, now_ms, log)
    except FormattingError as error:
        raise ClusterError(str(error)) from None
    if layout.first_voters:
        layout = layout._replace(first_voters="")
        write_layout(layout)
    for node, config in zip(layout.nodes, configs, strict=True):
        title = "Written by kcli serve --brokers at each start; the keys of its configuration and --override are in it."
        _write(f"{layout.log_dir(node)}.properties", title, {key: value.text for key, value in config.stated.items()})
    return layout


def _format(
    disk: Disk, layout: ClusterLayout, node: ClusterNode, config: ServerConfig, now_ms: int, log: Callable[[str], None]
) -> None:
    if read_meta_properties(disk, layout.log_dir(node)) is not None:
        return
    options = FormatOptions(cluster_id=layout.cluster_id)
    if f"{node.node_id}@{HOST}:{node.controller_port}:" in layout.first_voters:
        options = options._replace(initial_controllers=layout.first_voters)
    elif node.controller_port is not None:
        options = options._replace(has_no_initial_controllers=True)
    if not layout.first_voters:
        log(
            f"{node.name}: {layout.log_dir(node)} is empty; it is formatted for the cluster, and gets its metadata from "
            "the other nodes"
        )
    format_directories(disk, plan_format(config, options, os.urandom), os.urandom, now_ms)
