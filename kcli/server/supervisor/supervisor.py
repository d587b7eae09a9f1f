"""The process above the nodes of a cluster on one machine.

It imports the server once and forks a process for each node, so that the nodes start without imports and share the pages of the
code. It has no thread and no event loop of asyncio, which a forked process would inherit. Each node has a socket to it
(kcli.server.shell.supervised), and ends if that is closed: no node outlives its cluster.

    event                          what follows
    -----------------------------  -----------------------------------------------------------------------------------------
    all nodes are ready            one line, once
    a node ends, not asked to      a line with its exit code or signal; it is started again after FIRST_BACKOFF_S, twice as
                                   long each time up to MAX_BACKOFF_S, from the beginning once it has run for STABLE_S
    it ends before the cluster     if it cannot start (exit code 2) the cluster stops, with exit code 2
    was ready
    its process cannot be forked   a line with the reason; it is started again as if it had died
    SIGINT, SIGTERM, or `stop`     the brokers shut down, which controllers have to approve; when all have, the controllers end
    a second signal                SIGKILL to all, exit code 1; the next start recovers the logs
    a request (control)            stop, start, kill, pause or resume a node; what a person has stopped or killed stays so

Lines have the name of their node in front, in its colour on terminals; in JSON they have the field node_name.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from kcli.format.file_names import FileKind
from kcli.format.limits import MAX_TEXT_FILE_BYTES
from kcli.format.metadata_files import decode_quorum_state
from kcli.format.primitives import FormatError
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import join_path
from kcli.server.config.server_config import ServerConfig
from kcli.server.controller.formatting import METADATA_PARTITION
from kcli.server.log_lines import ERROR, FailureLine, Line, WarningLine
from kcli.server.shell.log_writer import LogWriter, write_stderr
from kcli.server.shell.server import EXIT_CANNOT_GO_ON, SAME_SIGNAL_S, ServerError, serve
from kcli.server.shell.supervised import Supervised, receive_words
from kcli.server.supervisor.control import LOCK, MAX_LINE_BYTES, SOCKET, NodeAction, NodeState, Status, socket_address
from kcli.server.supervisor.layout import HOST, ClusterError, ClusterLayout, ClusterNode

FIRST_BACKOFF_S, MAX_BACKOFF_S, STABLE_S = 0.5, 30.0, 30.0
BACKLOG = 16
REQUEST_S = 1.0  # neither signals nor the ends of nodes are handled while a request is read
# The colours of the names, as ANSI codes: cyan, yellow, green, magenta, blue, bright cyan, bright yellow, bright green.
COLOURS = (36, 33, 32, 35, 34, 96, 93, 92)


class RunOptions(NamedTuple):
    """How the nodes run; the metrics of the first node are served on `metrics_port`, those of the next on the next one."""

    log_format: str = "text"
    has_colours: bool = False
    restarts: bool = True
    metrics_port: int | None = None


class _Member:
    """A node with its process; `backoff_s` is the time until its next start if it dies."""

    def __init__(self, node: ClusterNode, config: ServerConfig, number: int) -> None:
        self.node = node
        self.config = config
        self.number = number
        self.state = NodeState.STOPPED
        self.pid: int | None = None
        self.channel: socket.socket | None = None
        self.began = 0.0
        self.starts = 0
        self.ended: str | None = None
        self.backoff_s = FIRST_BACKOFF_S
        self.starts_at: float | None = None
        self.is_wanted = True  # False: a person has stopped it
        self.has_left = False  # its broker has shut down
        self.resumed = NodeState.READY  # the state in which it was paused

    @property
    def is_broker(self) -> bool:
        return self.node.broker_port is not None


class Supervisor:
    """Runs the nodes of a cluster; `run` returns the exit code."""

    def __init__(self, layout: ClusterLayout, configs: Sequence[ServerConfig], options: RunOptions, began: float) -> None:
        self._layout = layout
        self._options = options
        self._began = began
        self._members = {node.node_id: _Member(node, config, n) for n, (node, config) in enumerate(zip(layout.nodes, configs))}
        self._width = max(len("cluster"), *(len(node.name) for node in layout.nodes))
        self.log = self.log_writer("cluster", 1)
        self._disk = OsDisk()
        self._selector = selectors.DefaultSelector()
        self._was_ready = False
        self._stopping_since: float | None = None
        self._has_failed = False

    def log_writer(self, name: str, colour: int) -> LogWriter:
        """Return the writer of the lines of a node."""
        if self._options.log_format == "json":
            return LogWriter("json", own={"node_name": name})
        shown = name.ljust(self._width)
        prefix = f"\x1b[{colour}m{shown} |\x1b[0m " if self._options.has_colours else f"{shown} | "
        return LogWriter("text", lambda line: write_stderr(prefix + line))

    # ------------------------------------------------------------------------------------------------ the loop

    def run(self) -> int:
        """Run until all is stopped, and return the exit code. Raises ClusterError if the cluster runs already."""
        control = self._listen()
        waking, woken = socket.socketpair()
        for end in (waking, woken):
            end.setblocking(False)
        signal.set_wakeup_fd(waking.fileno())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._selector.register(control, selectors.EVENT_READ, lambda: self._accept(control))
        self._selector.register(woken, selectors.EVENT_READ, lambda: self._signalled(woken))
        for member in self._members.values():
            self._log_plan(member)
        gc.freeze()  # a collection in a node would write into the pages that it shares
        for member in self._members.values():
            self._start(member)
        try:
            while not self._is_over():
                for key, _ in self._selector.select(self._time_to_next_start()):
                    key.data()
                self._start_due()
        finally:
            control.close()
            self._remove_socket()
        self.log(Line("the cluster has stopped"))
        return EXIT_CANNOT_GO_ON if self._has_failed else 0

    def _is_over(self) -> bool:
        return self._stopping_since is not None and all(member.pid is None for member in self._members.values())

    def _listen(self) -> socket.socket:
        """Open the socket for requests. Raises ClusterError if another process runs the cluster."""
        directory = self._layout.directory
        if self._disk.lock(join_path(directory, LOCK)) is None:
            raise ClusterError(
                f"the cluster in {directory} runs already: kcli cluster stop --data-dir {directory} stops it, and another "
                "--data-dir and --port start another one"
            )
        control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            self._remove_socket()
            with socket_address(directory) as address:
                control.bind(address)
        except OSError as error:
            raise ClusterError(f"{join_path(directory, SOCKET)}: {error.strerror or error}") from None
        finally:
            os.umask(mask)
        control.listen(BACKLOG)
        control.setblocking(False)
        return control

    def _remove_socket(self) -> None:
        with suppress(FileNotFoundError):
            self._disk.remove(join_path(self._layout.directory, SOCKET))

    def _log_plan(self, member: _Member) -> None:
        node = member.node
        ports = {"broker": node.broker_port, "controller": node.controller_port}
        roles = ", ".join(f"{role} {HOST}:{port}" for role, port in ports.items() if port is not None)
        directory = self._layout.log_dir(node)
        self.log(Line(f"{node.name}: {roles}, data in {directory}", node=node.node_id, roles=node.roles, directory=directory))

    # ------------------------------------------------------------------------------------------------ starts

    def _start(self, member: _Member) -> None:
        member.starts_at, member.began = None, time.monotonic()
        member.is_wanted, member.has_left = True, False
        try:
            own, pid = self._fork(member)
        except OSError as error:
            why = error.strerror or str(error)
            self._start_again(
                member, f"{member.node.name} cannot be started: {why}", {"node": member.node.node_id, "error": why}
            )
            return
        own.setblocking(False)
        member.starts += 1
        member.state, member.pid, member.channel = NodeState.STARTING, pid, own
        self._selector.register(own, selectors.EVENT_READ, lambda: self._receive(member))

    def _fork(self, member: _Member) -> tuple[socket.socket, int]:
        """Fork the process of a node; return the socket to it and its id. Raises OSError."""
        own, of_child = socket.socketpair()
        with of_child:
            try:
                pid = os.fork()
            except OSError:
                own.close()
                raise
            if pid == 0:
                own.close()
                self._run_node(member, of_child)
        return own, pid

    def _run_node(self, member: _Member, channel: socket.socket) -> None:
        """Be the process of a node; never returns."""
        code = 1
        log = self.log_writer(member.node.name, COLOURS[member.number % len(COLOURS)])
        try:
            # Ctrl-C is sent to the group of the terminal; the supervisor decides what it means.
            os.setpgid(0, 0)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it writes to the terminal, also after `stty tostop`
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)  # until the node has its own
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            self._selector.close()
            port = self._options.metrics_port
            began = time.monotonic() if member.starts else self._began

            def ready(_: object) -> None:
                log(Line(f"ready after {time.monotonic() - began:.2f} s", node=member.node.node_id))
                supervised.report(Supervised.READY)

            supervised = Supervised(channel)
            serve(member.config, log, ready, port and port + member.number, supervised=supervised)
            code = 0
        except ServerError as error:
            log(str(error), ERROR)
            code = EXIT_CANNOT_GO_ON
        except BaseException as error:
            log(f"a fault of kcli: {''.join(traceback.format_exception(error))}", ERROR)
        finally:
            os._exit(code)

    def _time_to_next_start(self) -> float | None:
        due = [member.starts_at for member in self._members.values() if member.starts_at is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _start_due(self) -> None:
        for member in self._members.values():
            if member.starts_at is not None and member.starts_at <= time.monotonic():
                self._start(member)

    def _receive(self, member: _Member) -> None:
        """Take what a node reports."""
        if member.channel is None:
            return  # another event of the same turn has closed it
        received = receive_words(member.channel)
        if received is None:
            return
        if not received:
            self._close_channel(member)  # its end follows as SIGCHLD
        if Supervised.READY in received and member.state == NodeState.STARTING:
            member.state = NodeState.READY
            self._log_if_ready()
        elif Supervised.READY in received:
            member.resumed = NodeState.READY  # it was paused after it had sent that
        if Supervised.BROKER_STOPPED in received:
            member.has_left = True
            if member.node.controller_port is None:
                self._send(member, Supervised.LEAVE_QUORUM)
            self._leave_quorum()

    def _close_channel(self, member: _Member) -> None:
        if member.channel is not None:
            self._selector.unregister(member.channel)
            member.channel.close()
            member.channel = None

    def _log_if_ready(self) -> None:
        if self._was_ready or any(member.state != NodeState.READY for member in self._members.values()):
            return
        self._was_ready = True
        servers, took = self._layout.bootstrap_servers, time.monotonic() - self._began
        count = len(self._layout.brokers)
        text = f"the cluster is ready after {took:.2f} s: {count} {'broker' if count == 1 else 'brokers'}"
        text += f", bootstrap.servers={servers}; Ctrl-C stops it"
        self.log(Line(text, bootstrap_servers=servers, seconds=f"{took:.2f}"))

    # ------------------------------------------------------------------------------------------------ ends

    def _signalled(self, woken: socket.socket) -> None:
        for number in woken.recv(64):
            if number == signal.SIGCHLD:
                self._reap()
            else:
                self._stop_by(signal.Signals(number).name)

    def _reap(self) -> None:
        """Take the ends of nodes."""
        for member in self._members.values():
            if member.pid is None:
                continue
            pid, status = os.waitpid(member.pid, os.WNOHANG)
            if pid:
                self._ended(member, os.waitstatus_to_exitcode(status))
        self._leave_quorum()

    def _ended(self, member: _Member, code: int) -> None:
        self._close_channel(member)
        member.pid, member.has_left = None, True
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        asked, member.ended = member.state == NodeState.STOPPING or not member.is_wanted, how
        member.state = NodeState.STOPPED
        fields = {"node": member.node.node_id, "ended": how}
        if asked or code == 0:
            again = "" if self._stopping_since is not None else f"; kcli cluster start {member.node.node_id} starts it again"
            self.log(Line(f"{member.node.name} has stopped ({how}){again}", **fields))
        elif code == EXIT_CANNOT_GO_ON and not self._was_ready:
            self._has_failed = True
            text = f"{member.node.name} cannot start ({how}), as its last line says; the cluster stops"
            self.log(FailureLine(f"{text} (--port PORT and --data-dir DIR name others than those in use)", **fields))
            self._stop("it cannot start")
        else:
            if time.monotonic() - member.began > STABLE_S:
                member.backoff_s = FIRST_BACKOFF_S
            self._start_again(member, f"{member.node.name} died: {how}", fields)

    def _start_again(self, member: _Member, what: str, fields: dict[str, object]) -> None:
        """Log what has happened to a node that should run, and start it again after its backoff, if nodes are started again."""
        member.state = NodeState.DIED
        if self._options.restarts and self._stopping_since is None:
            member.starts_at = time.monotonic() + member.backoff_s
            what += f"; it is started again in {member.backoff_s:g} s"
            member.backoff_s = min(2 * member.backoff_s, MAX_BACKOFF_S)
        self.log(WarningLine(what, **fields))

    def _stop_by(self, why: str) -> None:
        """Stop by a signal; a second one ends all at once. One signal may come twice: to the process and its group."""
        if self._stopping_since is None:
            self._stop(why)
        elif time.monotonic() - self._stopping_since > SAME_SIGNAL_S:
            self.log(WarningLine(f"{why} again: ending at once; the next start recovers the logs", signal=why))
            for member in self._members.values():
                if member.pid is not None:
                    os.kill(member.pid, signal.SIGKILL)
            os._exit(1)

    def _stop(self, why: str) -> None:
        if self._stopping_since is not None:
            return
        self._stopping_since = time.monotonic()
        self.log(Line(f"{why}: the brokers stop, then the controllers", signal=why))
        controllers = self._layout.controllers
        running = sum(self._members[node.node_id].pid is not None for node in controllers)
        if 2 * running <= len(controllers) and any(
            member.pid is not None and member.is_broker for member in self._members.values()
        ):
            self.log(
                WarningLine(
                    f"{running} of {len(controllers)} controllers run, too few to approve the stop of the brokers, which wait "
                    "for it: a second Ctrl-C ends them at once"
                )
            )
        for member in self._members.values():
            member.starts_at, member.is_wanted = None, False
            if member.pid is None:
                continue
            if member.state == NodeState.PAUSED:
                os.kill(member.pid, signal.SIGCONT)
            member.state = NodeState.STOPPING
            if member.is_broker:
                self._send(member, Supervised.STOP_BROKER)
            else:
                member.has_left = True
        self._leave_quorum()

    def _leave_quorum(self) -> None:
        """Let the controllers end, once all brokers have stopped."""
        if self._stopping_since is None:
            return
        left = [member for member in self._members.values() if member.pid is not None]
        if not all(member.has_left and member.node.controller_port is not None for member in left):
            return
        for member in left:
            self._send(member, Supervised.LEAVE_QUORUM)

    @staticmethod
    def _send(member: _Member, word: bytes) -> None:
        if member.channel is not None:
            with suppress(BlockingIOError, ConnectionError):
                member.channel.send(word)

    # ------------------------------------------------------------------------------------------------ requests

    def _accept(self, control: socket.socket) -> None:
        """Answer one request; the requester gets REQUEST_S to send its line, and as long to take the answer."""
        deadline = time.monotonic() + REQUEST_S
        with suppress(OSError):
            connection, _ = control.accept()
            with connection:
                line = b""
                while not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        return
                    connection.settimeout(left_s)
                    part = connection.recv(1 << 12)
                    if not part:
                        return
                    line += part
                connection.settimeout(REQUEST_S)
                connection.sendall(json.dumps(self._answer(line)).encode() + b"\n")

    def _answer(self, line: bytes) -> Status:
        try:
            asked = json.loads(line)
            action = asked["action"]
            if action == "stop" and "node" not in asked:
                self._stop("kcli cluster stop")
            elif action != "status":
                self._act(NodeAction(action), int(asked["node"]))
        except ClusterError as error:
            return {"error": str(error)}
        except (ValueError, KeyError, TypeError) as error:
            return {"error": f"the request {line[:80]!r} is not valid ({type(error).__name__}: {error})"}
        return self.status()

    def _act(self, action: NodeAction, node_id: int) -> None:
        """Do what is asked for a node. Raises ClusterError."""
        member = self._members.get(node_id)
        if member is None:
            raise ClusterError(f"the cluster has no node {node_id}; it has {', '.join(map(str, self._members))}")
        name, state = member.node.name, member.state
        if self._stopping_since is not None:
            raise ClusterError(f"the cluster stops: {name} cannot be changed any more")
        if action == NodeAction.START:
            if member.pid is not None:
                raise ClusterError(f"{name} is {state}: it cannot be started")
            member.backoff_s = FIRST_BACKOFF_S
            self.log(Line(f"{name} is started", node=node_id))
            self._start(member)
            return
        if member.pid is None and action in (NodeAction.STOP, NodeAction.KILL) and member.starts_at is not None:
            member.starts_at, member.is_wanted, member.state = None, False, NodeState.STOPPED
            return
        if member.pid is None:
            raise ClusterError(f"{name} is {state}: kcli cluster start {node_id} starts it")
        is_paused = state == NodeState.PAUSED
        if (action == NodeAction.RESUME) != is_paused and action in (NodeAction.PAUSE, NodeAction.RESUME):
            raise ClusterError(f"{name} is {state}: it cannot be {'paused again' if is_paused else 'resumed'}")
        self.log(Line(f"kcli cluster {action} {node_id}", node=node_id, action=str(action)))
        if action == NodeAction.PAUSE:
            member.resumed, member.state = state, NodeState.PAUSED
            os.kill(member.pid, signal.SIGSTOP)
        elif action == NodeAction.RESUME:
            member.state = member.resumed
            os.kill(member.pid, signal.SIGCONT)
            self._log_if_ready()
        else:
            member.is_wanted, member.state = False, NodeState.STOPPING
            os.kill(member.pid, signal.SIGCONT)
            os.kill(member.pid, signal.SIGKILL if action == NodeAction.KILL else signal.SIGTERM)

    def status(self) -> Status:
        """Return what `kcli cluster status` shows."""
        nodes = []
        for member in self._members.values():
            node = member.node
            broker, controller = (
                port if port is None else f"{HOST}:{port}" for port in (node.broker_port, node.controller_port)
            )
            nodes.append(
                {
                    "node": node.node_id,
                    "name": node.name,
                    "roles": node.roles,
                    "state": str(member.state),
                    "pid": member.pid,
                    "broker": broker,
                    "controller": controller,
                    "directory": self._layout.log_dir(node),
                    "starts": member.starts,
                    "ended": member.ended,
                }
            )
        return {
            "clusterId": self._layout.cluster_id,
            "bootstrapServers": self._layout.bootstrap_servers,
            "leader": self._leader(),
            "pid": os.getpid(),
            "nodes": nodes,
        }

    def _leader(self) -> int | None:
        """Return the leader of the quorum, as the controller with the highest epoch has it on its disk.

        None if it has none, or one that does not run: a voter that finds no majority keeps the last leader on its disk.
        """
        found = [(-1, -1)]
        for node in self._layout.controllers:
            if self._members[node.node_id].pid is not None:
                path = join_path(join_path(self._layout.log_dir(node), METADATA_PARTITION), FileKind.QUORUM_STATE)
                with suppress(OSError, FormatError):
                    state = decode_quorum_state(self._disk.read_file(path, MAX_TEXT_FILE_BYTES))
                    found.append((state.leader_epoch, state.leader_id))
        leader_id = max(found)[1]
        return leader_id if leader_id in self._members and self._members[leader_id].pid is not None else None
