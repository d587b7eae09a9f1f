"""Runs one node as a process, from binding its addresses to the orderly stop on SIGTERM or SIGINT.

step       what happens
---------  ---------------------------------------------------------------------------------------------------------
bind       all addresses are bound, so that one that is in use is reported before anything else is done (that of the
           metrics, too); clients that connect now wait in the backlog
start      the metadata log is opened and the controller's listeners are opened; the broker loads its logs and registers
ready      the other listeners are opened, and a line of the log says so
signal     the first stops the node in order, a second one ends the process at once; SIGHUP is ignored. The broker's
           listeners are closed once its shutdown is approved, the controller's at the end
stopped    the last line of the log says so, and the process ends with exit code 0
failure    a node that fails ends the process: exit code 2 if its disk or its cluster is the cause, 1 for a fault of kcli
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import random
import resource
import signal
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from kcli.log.errors import StorageError
from kcli.network.shell.clock import Clock
from kcli.server.broker.broker_lifecycle import RegistrationError
from kcli.server.config.listeners import LOOPBACK_HOSTS, BoundAddresses, Listener
from kcli.server.config.server_config import ServerConfig
from kcli.server.log_lines import SERVER, SHELL, FailureLine, Line, Loggers, WarningLine, fault_line
from kcli.server.node import Node
from kcli.server.node_builder import NodeError, build_node
from kcli.server.raft.metadata_log import MetadataLogError
from kcli.server.shell.connection_quotas import DYNAMIC_KEYS, UnknownHostError, limits_of
from kcli.server.shell.driver import Driver
from kcli.server.shell.serving_disk import ServingDisk
from kcli.server.shell.supervised import Supervised

# The descriptors of the process divided by this number are for segments that are kept open; the rest is for connections.
FILES_SHARE = 4
MAX_OPEN_SEGMENTS = 4096
# The exit code of a command that cannot run; its own constant is in kcli.commands, which this package must not import.
EXIT_CANNOT_GO_ON = 2
COLLECT_AFTER_ALLOCATIONS = 20_000
# The system's errors for an IPv6 socket, or its address, if IPv6 is off.
IPV6_IS_OFF = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
ANY_IPV4 = "0.0.0.0"
# A metrics endpoint has one or a few clients.
METRICS_BACKLOG = 16
# The distance of the port that a message suggests instead of one that is taken, and the limits of ports.
OTHER_PORT, FIRST_FREE_PORT, MAX_PORT = 100, 1024, 65535
PORT_IS_TAKEN = "another process has it: stop that one, or set another port"
# A signal that follows another within this time is the same one.
SAME_SIGNAL_S = 0.5
Log = Callable[[str], None]
if TYPE_CHECKING:
    from kcli.server.shell.metrics_server import IdleTime
    from kcli.server.shell.request_times import RequestTimes


class ServerError(Exception):
    """A server cannot run; the message is one sentence."""


def raise_descriptor_limit() -> int:
    """Raise the process's limit of descriptors to the hard limit, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit if limit > 0 else 1 << 20


def bind(host: str, port: int, backlog: int, name: str, advise: Callable[[OSError], str]) -> socket.socket:
    """Bind an address; an empty host is every address, of IPv4 alone if IPv6 is off.

    Raises ServerError with a sentence that names the address `name` and ends with what `advise` returns for the error.
    """
    family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
    try:
        if host and family == socket.AF_INET:
            host = str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
        try:
            return _bind(family, host, port, backlog)
        except OSError as error:
            if host or error.errno not in IPV6_IS_OFF:
                raise
            return _bind(socket.AF_INET, ANY_IPV4, port, backlog)
    except OSError as error:
        advice = advise(error)
        raise ServerError(f"{name}: {error.strerror or error}{advice and f'; {advice}'}") from error


def metrics_advice(error: OSError) -> str:
    """Return what to do about the port of the metrics that cannot be bound, or nothing if the error alone says it."""
    return f"{PORT_IS_TAKEN} with --metrics-port" if error.errno == errno.EADDRINUSE else ""


def listener_advice(config: ServerConfig, listener: Listener, error: OSError) -> str:
    """Return what to do about a listener that cannot be bound, or nothing if the error alone says it."""
    key = f"listeners{config.where('listeners')}"
    if error.errno == errno.EADDRINUSE:
        port = listener.port + (OTHER_PORT if listener.port + OTHER_PORT <= MAX_PORT else -OTHER_PORT)
        others = ",".join(str(at._replace(port=port) if at == listener else at) for at in config.listeners)
        return f"{PORT_IS_TAKEN} in {key}, for example: kcli serve --override listeners={others}"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        fault = "does not resolve to an address" if isinstance(error, socket.gaierror) else "is not an address of this machine"
        return (
            f"{listener.host} {fault}, and {key} must have addresses of this machine: set one of them, or "
            f"{listener._replace(host='')} for all of them; the address that clients use, if it is another one, is set in "
            "advertised.listeners"
        )
    if error.errno == errno.EACCES and listener.port < FIRST_FREE_PORT:
        return f"ports below {FIRST_FREE_PORT} are for privileged processes: set another port in {key}"
    return ""


def _bind(family: socket.AddressFamily, host: str, port: int, backlog: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not host:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((host, port))
        bound.listen(backlog)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


def canonical_host_name() -> str:
    """Return this machine's name as Java's InetAddress.getLocalHost().getCanonicalHostName() does. Raises OSError.

    The address of the host name is looked up, then the name of that address, which counts if it leads back to the address.
    """
    found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # Java prefers IPv4
    address = found[0][4]
    try:
        name = socket.getnameinfo(address, socket.NI_NAMEREQD)[0]
        if str(address[0]) in (str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)):
            return name
    except OSError:
        pass
    return str(address[0])


def bound_addresses(config: ServerConfig, ports: dict[str, int]) -> BoundAddresses:
    """Return where the listeners can be reached. Raises ServerError where one has no host and this machine no usable name."""
    nameless = [at for at in (*config.advertised_listeners, *config.advertised_controller_listeners) if not at.host]
    if not nameless:
        return BoundAddresses(ports)
    try:
        return BoundAddresses(ports, canonical_host_name())
    except OSError as error:
        raise ServerError(
            f"{nameless[0]} has no host, and this machine's name {socket.gethostname()} cannot be resolved "
            f"({error.strerror or error}), so there is no name to give to clients: set advertised.listeners"
        ) from error


def settle_garbage_collector() -> None:
    """Exclude the objects of the start from garbage collection, and collect less often from now on.

    Requests make few reference cycles, and each collection delays the requests that come next.
    """
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_ALLOCATIONS, 50, 100)
    gc.enable()


class Server:
    """One node and its shell; `log` writes a line of the log."""

    def __init__(
        self,
        config: ServerConfig,
        log: Log,
        metrics_port: int | None = None,
        idle: IdleTime | None = None,
        *,
        accepts_stray: bool = False,
        supervised: Supervised | None = None,
    ) -> None:
        self._accepts_stray = accepts_stray
        self._supervised = supervised
        self.config = config
        self.metrics_port = metrics_port
        self.loggers = Loggers(log)
        self.log = self.loggers[SERVER]
        self._idle = idle
        self._stopped = asyncio.Event()
        self._stopping_since: float | None = None
        self._sockets: dict[str, socket.socket] = {}  # of listeners that are not open yet
        self._on_ready: Callable[[], None] | None = None
        self.driver: Driver
        self.node: Node

    async def run(self, on_ready: Callable[[BoundAddresses], None]) -> None:
        """Serve until stopped; `on_ready` is called once. Raises ServerError, NodeError and OSError."""
        config = self.config
        descriptors = raise_descriptor_limit()
        backlog = config.get_int("socket.listen.backlog.size")
        self._sockets = {
            at.name: bind(at.host, at.port, backlog, str(at), partial(listener_advice, config, at)) for at in config.listeners
        }
        metrics_socket = self._bind_metrics()
        ports = {name: int(bound.getsockname()[1]) for name, bound in self._sockets.items()}
        max_open = min(MAX_OPEN_SEGMENTS, descriptors // FILES_SHARE)
        bound = bound_addresses(config, ports)
        try:
            limits = limits_of(config, descriptors, max_open)
        except UnknownHostError as error:
            raise ServerError(str(error)) from None
        clock = Clock()
        rng, now_ms = random.SystemRandom(), clock.now_ms()
        self.node = build_node(
            config,
            ServingDisk(),
            rng,
            now_ms,
            self.loggers,
            max_open,
            bound,
            clock.wall_time,
            accepts_stray=self._accepts_stray,
        )
        times = self._request_times() if metrics_socket is not None else None
        self.driver = Driver(self.node, self.loggers[SHELL], limits, clock, self._node_changed, self._node_failed, times)
        if self.node.broker is not None:
            self.node.broker.config.watch(DYNAMIC_KEYS, lambda now: self._change_limits(now, descriptors, max_open))
        if metrics_socket is not None and self._idle is not None:
            await self._serve_metrics(metrics_socket, self._idle)
        self._handle_signals()
        self._on_ready = lambda: on_ready(bound)
        try:
            self.driver.execute(self.node.start(self.driver.clock.now_ms()))
        except MetadataLogError as error:
            raise ServerError(str(error)) from error
        self._node_changed()
        await self._stopped.wait()
        self.driver.close()
        for unopened in self._sockets.values():
            unopened.close()
        self.log(Line("stopped", node=config.node_id))

    def _change_limits(self, config: ServerConfig, descriptors: int, max_open_files: int) -> None:
        try:
            self.driver.quotas.change_limits(limits_of(config, descriptors, max_open_files))
        except UnknownHostError as error:
            self.log(WarningLine(f"{error}; the limits of connections stay as they are", error=str(error)))

    def _node_changed(self) -> None:
        """Open the listeners that the node can serve by now, close those that it serves no more, or end."""
        self.driver.stop_listening(self.node.is_open)
        for name in [name for name in self._sockets if self.node.is_open(name)]:
            self.driver.listen(name, self._sockets.pop(name))
        if self.node.is_ready and self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            settle_garbage_collector()
            on_ready()
        if self.node.is_stopped:
            self._stopped.set()

    def _node_failed(self, error: Exception) -> None:
        """End the process with the node, without waiting for the work of other threads."""
        if isinstance(error, StorageError | OSError | MetadataLogError | RegistrationError):
            self.log(FailureLine(f"{error}; the node cannot go on", error=error))
            os._exit(EXIT_CANNOT_GO_ON)
        else:
            lines = "".join(traceback.format_exception(error)).rstrip()
            line = fault_line("the node", error, "; it ends here, and its next start recovers the logs")
            self.log(FailureLine(f"{line}:\n{lines}", error=repr(error)))
        os._exit(1)

    @property
    def _metrics_host(self) -> str:
        return (self.config.broker_listeners or self.config.listeners)[0].host

    def _bind_metrics(self) -> socket.socket | None:
        """Bind the address of the metrics, if they are served. Raises ServerError."""
        port = self.metrics_port
        if port is None:
            return None
        return bind(self._metrics_host, port, METRICS_BACKLOG, f"--metrics-port {port}", metrics_advice)

    @staticmethod
    def _request_times() -> RequestTimes:
        from kcli.server.shell.request_times import RequestTimes

        return RequestTimes()

    async def _serve_metrics(self, bound: socket.socket, idle: IdleTime) -> None:
        """Serve the metrics, and log where."""
        from kcli.server.shell.metrics_server import MetricsServer, sampler

        listeners = [listener.name for listener in self.config.listeners]
        port = await MetricsServer(sampler(self.node, self.driver, listeners, idle)).listen(bound)
        host = self._metrics_host
        url = f"http://{f'[{host}]' if ':' in host else host or 'localhost'}:{port}/metrics"
        self.log(Line(f"metrics are served at {url}", url=url))

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop, signal.Signals(number).name)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        if self._supervised is not None:
            self._supervised.watch(
                self._stop_broker,
                lambda: self.driver.step(self.node.leave_quorum),
                lambda: self.stop("the end of kcli serve --brokers"),
            )

    def stop(self, why: str = "stop") -> None:
        """Stop in order; a second call ends the process at once. One signal may come twice: to the process and its group."""
        if self._stopping_since is not None:
            if time.monotonic() - self._stopping_since < SAME_SIGNAL_S:
                return
            self.log(WarningLine(f"{why} again: ending at once; the next start recovers the logs", signal=why))
            os._exit(1)
        self._stopping_since = time.monotonic()
        self.log(Line(f"{why}: stopping", signal=why))
        self.driver.is_stopping = True
        self.driver.step(self.node.stop)

    def _stop_broker(self) -> None:
        """Stop the broker, and report it; the controller stops when the parent says so."""
        supervised = self._supervised
        if self._stopping_since is None and supervised is not None:
            self._stopping_since = time.monotonic()
            self.driver.is_stopping = True
            self.driver.step(lambda now_ms: self.node.stop(now_ms, lambda _: supervised.report(Supervised.BROKER_STOPPED)))


def serve(
    config: ServerConfig,
    log: Log,
    on_ready: Callable[[BoundAddresses], None],
    metrics_port: int | None = None,
    *,
    accepts_stray: bool = False,
    supervised: Supervised | None = None,
) -> None:
    """Run a node until it is stopped; with `metrics_port` its metrics are served there. Raises ServerError if it cannot run.

    `accepts_stray`: see kcli.server.node_builder.build_node. `supervised` is the socket to the parent of a node that has one.
    """
    try:
        if metrics_port is None:
            asyncio.run(Server(config, log, accepts_stray=accepts_stray, supervised=supervised).run(on_ready))
            return
        from kcli.server.shell.metrics_server import IdleTime

        idle = IdleTime()
        with asyncio.Runner(loop_factory=idle.loop) as runner:
            server = Server(config, log, metrics_port, idle, accepts_stray=accepts_stray, supervised=supervised)
            runner.run(server.run(on_ready))
    except NodeError as error:
        raise ServerError(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise ServerError(f"{where}{error.strerror or error}") from error


def log_ready(config: ServerConfig, bound: BoundAddresses, log: Log) -> None:
    """Log that the node is ready, the addresses that it is bound to, and the advertised ones if they differ.

    If no listener has an advertised port of this machine, the key is often a forgotten one: clients get the metadata, and then
    cannot connect.
    """
    own = config.broker_listeners if config.is_broker else config.controller_listeners
    listeners = [at._replace(port=bound.ports[at.name]) for at in own]
    advertised = [bound.resolve(at) for at in config.advertised_listeners] if config.is_broker else listeners
    for at in advertised:
        if at.host.lower() in LOOPBACK_HOSTS and at.port not in bound.ports.values():
            text = f"advertised.listeners: {at} is on this machine, and no listener of this node has the port {at.port}"
            log(WarningLine(f"{text}: clients cannot connect, unless another program forwards that port", listener=str(at)))
    where, given = (", ".join(map(str, found)) for found in (listeners, advertised))
    paths = ", ".join(config.log_dirs)
    text = f"node {config.node_id} is ready: {where}; {'' if given == where else f'advertised to clients: {given}; '}"
    log(Line(f"{text}data in {paths}; Ctrl-C stops it", node=config.node_id, listeners=where, advertised=given, paths=paths))
