"""Protects the requests to a running cluster: whole and broken ones, no cluster, and paths that are long for a socket."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from kcli.server.supervisor.control import NodeAction, act, request, socket_address
from kcli.server.supervisor.layout import ClusterError


class Answers:
    """A socket of a directory that answers a connection with each of the texts in turn, and keeps the requests."""

    def __init__(self, directory: Path, *texts: str) -> None:
        self.asked: list[str] = []
        self._texts = texts
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_address(str(directory)) as address:
            self._listening.bind(address)
        self._listening.listen()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for text in self._texts:
            connection, _ = self._listening.accept()
            with connection:
                self.asked.append(connection.makefile().readline())
                connection.sendall(text.encode())

    def __enter__(self) -> Answers:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.join(60)
        self._listening.close()


def status(state: str, starts: int = 1) -> str:
    node = {"node": 2, "name": "node-2", "state": state, "starts": starts, "ended": "exit code 2"}
    return json.dumps({"nodes": [node]}) + "\n"


def test_a_long_path(tmp_path: Path) -> None:
    """A directory whose path does not fit into the address of a socket."""
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    with Answers(directory, '{"pid": 1}\n') as answers:
        assert request(str(directory), "status") == {"pid": 1}
    assert answers.asked == ['{"action": "status"}\n']


def test_an_action_waits_for_the_state(tmp_path: Path) -> None:
    with Answers(tmp_path, status("starting", 2), status("starting", 2), status("ready", 2)):
        assert act(str(tmp_path), NodeAction.START, 2, 60)["nodes"][0]["state"] == "ready"


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (['{"error": "the cluster has no node 9"}\n'], "^the cluster has no node 9$"),
        ([""], "has ended, and did not answer"),
        (["{"], "has ended, and did not answer"),
        ([status("starting"), status("died")], "node-2 died: exit code 2; the log of kcli serve"),
        ([status("starting"), status("ready", 2)], "node-2 died"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(texts: list[str], sentence: str, tmp_path: Path) -> None:
    """Also a node that dies, and is started again, while it starts."""
    with Answers(tmp_path, *texts), pytest.raises(ClusterError, match=sentence):
        act(str(tmp_path), NodeAction.START, 2, 60)


def test_a_node_that_takes_too_long(tmp_path: Path) -> None:
    late = pytest.raises(ClusterError, match=r"node-2 is stopping after 0 s")
    with Answers(tmp_path, status("stopping"), status("stopping")), late:
        act(str(tmp_path), NodeAction.STOP, 2, 0.0)


def test_no_cluster_runs(tmp_path: Path) -> None:
    """No socket, and one that a killed cluster has left."""
    with pytest.raises(ClusterError, match=r"no cluster runs in .*: kcli serve --brokers 3 --data-dir"):
        request(str(tmp_path), "status")
    with Answers(tmp_path):
        pass
    with pytest.raises(ClusterError, match="no cluster runs in"):
        request(str(tmp_path), "status")
