"""Protects `kcli cluster`: which nodes its actions ask, what they print, and wrong options, each refused in one sentence.

The nodes are scripts; real ones are in tests/server/test_quorum_live.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from kcli.client.admin.operation import Operation
from kcli.client.errors import KafkaError
from kcli.commands import cluster
from kcli.commands.app import main
from kcli.commands.client_options import client_errors
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    API_KEYS,
    DESCRIBE_CLUSTER,
    PRODUCE,
    REMOVE_RAFT_VOTER,
    UNREGISTER_BROKER,
    UNREGISTER_CONTROLLER,
)
from tests.client.admin.scripted_cluster import BROKERS, ScriptedCluster, described_controllers

_Result = TypeVar("_Result")
Use = Callable[[ScriptedCluster], None]
ID = "Djhb4RygR3W9Dx0t4rf4fg"


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Have the actions ask this cluster."""

    def use(script: ScriptedCluster) -> None:
        def ask(args: argparse.Namespace, operation: Operation[_Result]) -> _Result:
            with client_errors(passed_on=KafkaError):
                return script.execute(operation)

        monkeypatch.setattr(cluster, "ask", ask)

    return use


def controllers(api_key: int, code: int = 0, lowest: int = 0) -> ScriptedCluster:
    """Controllers, the second of which leads, that answer one more API with an error code; -1: they do not have it."""
    answers = {
        DESCRIBE_CLUSTER: lambda *_: described_controllers(2),
        api_key: lambda *_: API_KEYS[api_key].response.new(error_code=code),
    }
    return ScriptedCluster(answers, versions={api_key: -1} if code < 0 else None, controllers=True)


def test_api_versions_are_those_of_each_node(use: Use, capfd: pytest.CaptureFixture[str]) -> None:
    script = ScriptedCluster({DESCRIBE_CLUSTER: lambda *_: described_controllers(2)}, versions={PRODUCE: 1}, controllers=True)
    use(script)
    assert main(["cluster", "api-versions", "--output", "json"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {row["node"] for row in rows} == set(BROKERS)
    of_first = {row["api"]: row for row in rows if row["node"] == 1}
    assert len(of_first) == len(API_KEYS)
    described = API_KEYS[DESCRIBE_CLUSTER]
    found = of_first["DescribeCluster"]
    assert (found["minVersion"], found["maxVersion"], found["usableVersion"]) == (0, described.highest_version, 2)
    assert of_first["Produce"]["usableVersion"] is None  # kcli sends later versions only


@pytest.mark.parametrize(
    ("api_key", "words", "row"),
    [
        (UNREGISTER_BROKER, ("unregister", "--id", "7"), {"broker": 7, "registered": False}),
        (UNREGISTER_CONTROLLER, ("unregister-controller", "--id", "7"), {"controller": 7, "registered": False}),
        (
            REMOVE_RAFT_VOTER,
            ("remove-controller", "--controller-id", "7", "--controller-directory-id", ID),
            {"controller": 7, "directoryId": ID, "removed": True},
        ),
    ],
)
def test_changes(
    use: Use, capfd: pytest.CaptureFixture[str], api_key: int, words: tuple[str, ...], row: dict[str, object]
) -> None:
    """The active controller is asked; a refusal has the exit code 1, an API that it does not have 2."""
    script = controllers(api_key)
    use(script)
    assert main(["cluster", *words, "--output", "json"]) == 0
    assert json.loads(capfd.readouterr().out) == row
    assert [node for node, _ in script.requests(api_key)] == [2]
    use(controllers(api_key, error_codes.CLUSTER_AUTHORIZATION_FAILED))
    assert main(["cluster", *words]) == 1
    use(controllers(api_key, -1))
    assert main(["cluster", *words]) == 2
    assert "the broker does not support" in capfd.readouterr().err


def test_a_dry_run_of_a_removal(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is asked."""
    words = ["--controller-id", "7", "--controller-directory-id", ID, "--dry-run"]
    assert main(["cluster", "remove-controller", *words]) == 0
    assert capfd.readouterr().out == f"would remove controller 7 with directory id {ID}\n"


CONTROLLER = """\
process.roles=controller
node.id=7
controller.listener.names=controller
listeners=controller://:9093
listener.security.protocol.map=controller:PLAINTEXT
controller.quorum.bootstrap.servers=localhost:9093
log.dirs={data}
"""


def test_the_controller_to_add(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Id, directory id and listeners are those of its configuration and directory, as kafka-metadata-quorum reads them."""
    config = tmp_path / "server.properties"
    config.write_text(CONTROLLER.format(data=tmp_path / "data"))
    add = ["cluster", "add-controller", "--config", str(config), "--dry-run", "--output", "json"]
    assert main(add) == 2
    assert f"{tmp_path / 'data'} has no directory id: format it" in capfd.readouterr().err
    assert main(["format", "-c", str(config), "--no-initial-controllers"]) == 0
    capfd.readouterr()
    assert main(add) == 0
    row = json.loads(capfd.readouterr().out)
    meta = (tmp_path / "data/meta.properties").read_text()
    assert f"directory.id={row['directoryId']}\n" in meta
    assert (row["controller"], row["listeners"], row["added"]) == (7, ["CONTROLLER://localhost:9093"], False)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("unregister", "--id", "-1"), "'-1' is not the id of a node"),
        (("remove-controller", "--controller-id", "1", "--controller-directory-id", "x"), "--controller-directory-id: "),
        (("nodes", "--include-fenced-brokers", "--bootstrap-controller", "a:1"), "it needs --bootstrap-server"),
        (("nodes", "--bootstrap-server", "b:1", "--bootstrap-controller", "a:1"), "not allowed with argument"),
        (("log-dirs", "--bootstrap-controller", "a:1"), "unrecognized arguments: --bootstrap-controller"),
        (("add-controller", "--config", "/none/server.properties"), "/none/server.properties"),
    ],
)
def test_wrong_options(words: tuple[str, ...], sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(["cluster", *words])
    except SystemExit as ended:
        code = ended.code
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err


def test_an_option_wins_over_the_other_setting_of_the_file(tmp_path: Path) -> None:
    """As in Kafka's tools: --bootstrap-controller replaces bootstrap.servers of --command-config, and the other way round."""
    from kcli.commands.admin_command import settings_of
    from kcli.commands.app import build_parser

    file = tmp_path / "client.properties"
    found = []
    for setting, option in (("bootstrap.servers", "--bootstrap-controller"), ("bootstrap.controllers", "--bootstrap-server")):
        file.write_text(f"{setting}=a:1\n")
        for words in ([], [option, "b:1"]):
            args = build_parser("cluster").parse_args(["nodes", "--command-config", str(file), *words])
            settings = settings_of(args)
            found.append({name: value for name, value in settings.items() if name.startswith("bootstrap.")})
    servers, others = "bootstrap.servers", "bootstrap.controllers"
    assert found == [{servers: "a:1"}, {others: "b:1"}, {others: "a:1"}, {servers: "b:1"}]
