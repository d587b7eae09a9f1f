"""Requests to a running cluster of one machine, by the socket `control` in its data directory.

request, one line of JSON                            response, one line of JSON
---------------------------------------------------  -------------------------------------------------------------------
{"action": "status"}                                 {"clusterId", "bootstrapServers", "leader", "pid", "nodes": [...]}
{"action": "stop"}                                   the same; the whole cluster stops
{"action": ACTION, "node": N}                        the same, after the action has begun: a node is stopped, or ready,
                                                     when its state says so
one that cannot be done                              {"error": a sentence}

a node       is
-----------  ------------------------------------------------------------------------------------------------------------
node, name   its node.id, and its name in the log
roles        broker, controller or both, separated by a comma
state        a NodeState
pid          its process, null without one
broker,      its addresses, null without that role
controller
directory    its log directory
starts       how often it was started
ended        how its last process ended, null if none did
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import join_path
from kcli.server.supervisor.layout import ClusterError

SOCKET, LOCK = "control", ".lock"
MAX_LINE_BYTES = 1 << 20
ANSWER_S = 10.0
POLL_S = 0.01
# The longest path of a unix socket, with its zero: 108 bytes on Linux, 104 on macOS.
MAX_SOCKET_PATH = 103


class NodeState(StrEnum):
    """What a node does."""

    STARTING = "starting"
    READY = "ready"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DIED = "died"  # it will be started again, if --no-restart was not given


class NodeAction(StrEnum):
    """What `kcli cluster` does with a node."""

    STOP = "stop"
    START = "start"
    KILL = "kill"
    PAUSE = "pause"
    RESUME = "resume"


Status = dict[str, Any]


@contextmanager
def socket_address(directory: str) -> Iterator[str]:
    """Yield an address for the socket of a directory; a long path is replaced by a descriptor (Linux). Raises OSError."""
    path = join_path(directory, SOCKET)
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        yield path
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def request(directory: str, action: str, node: int | None = None) -> Status:
    """Send a request to the cluster that runs in a directory, and return the response. Raises ClusterError."""
    data = json.dumps({"action": action} if node is None else {"action": action, "node": node}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, socket_address(directory) as address:
            connection.settimeout(ANSWER_S)
            connection.connect(address)
            connection.sendall(data)
            received = b""
            while not received.endswith(b"\n"):
                part = connection.recv(1 << 16)
                if not part:
                    raise ClusterError(f"the cluster in {directory} has ended, and did not answer")
                received += part
    except TimeoutError:
        raise ClusterError(
            f"the cluster in {directory} did not answer within {ANSWER_S:g} s: its process hangs or is stopped"
        ) from None
    except (FileNotFoundError, ConnectionError):
        raise ClusterError(
            f"no cluster runs in {directory}: kcli serve --brokers 3 --data-dir {directory} starts one; if it is another "
            "directory, name it with --data-dir"
        ) from None
    except OSError as error:
        raise ClusterError(f"{join_path(directory, SOCKET)}: {error.strerror or error}") from None
    found: Status = json.loads(received)
    if "error" in found:
        raise ClusterError(found["error"])
    return found


def node_of(status: Status, node_id: int) -> Status:
    """Return what a response says of one node."""
    return next(one for one in status["nodes"] if one["node"] == node_id)


def act(directory: str, action: NodeAction, node_id: int, timeout_s: float) -> Status:
    """Act on a node and wait until it is in the state that follows; return the response. Raises ClusterError."""
    stopped = NodeState.STOPPED
    wanted = {NodeAction.START: NodeState.READY, NodeAction.STOP: stopped, NodeAction.KILL: stopped}
    found = request(directory, action, node_id)
    if action not in wanted:
        return found
    starts = node_of(found, node_id)["starts"]

    def is_done(status: Status) -> bool:
        node = node_of(status, node_id)
        if node["state"] == NodeState.DIED or node["starts"] != starts:
            raise ClusterError(f"{node['name']} died: {node['ended']}; the log of kcli serve has the reason")
        return bool(node["state"] == wanted[action])

    return wait(
        directory,
        is_done,
        timeout_s,
        lambda status: f"{node_of(status, node_id)['name']} is {node_of(status, node_id)['state']}",
    )


def wait(directory: str, is_done: Callable[[Status], bool], timeout_s: float, describe: Callable[[Status], str]) -> Status:
    """Ask for the status until it is as wanted, and return it. Raises ClusterError after the timeout, with `describe`."""
    end = time.monotonic() + timeout_s
    while True:
        status = request(directory, "status")
        if is_done(status):
            return status
        if time.monotonic() > end:
            raise ClusterError(f"{describe(status)} after {timeout_s:g} s; the log of kcli serve says what it waits for")
        time.sleep(POLL_S)


def wait_until_ended(directory: str, timeout_s: float) -> None:
    """Wait until the cluster of a directory has stopped. Raises ClusterError after the timeout."""
    end = time.monotonic() + timeout_s
    while OsDisk().is_locked(join_path(directory, LOCK)):
        if time.monotonic() > end:
            raise ClusterError(f"the cluster in {directory} stops since {timeout_s:g} s; its log says what it waits for")
        time.sleep(POLL_S)
