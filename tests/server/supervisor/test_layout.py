"""Protects the shape of a cluster on one machine: roles, ports, directories, and what a later start may change."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from kcli.format.metadata_files import decode_meta_properties
from kcli.server.config.values import ConfigError
from kcli.server.supervisor import layout as layouts
from kcli.server.supervisor.layout import (
    ClusterError,
    ClusterLayout,
    check_common,
    configure_node,
    plan_cluster,
    prepare,
    read_layout,
)


def shape(layout: ClusterLayout) -> list[tuple[int, int | None, int | None]]:
    return [(node.node_id, node.broker_port, node.controller_port) for node in layout.nodes]


def made(directory: Path, brokers: int, controllers: int | None = None, port: int | None = None) -> ClusterLayout:
    """A cluster whose directories are formatted."""
    layout = plan_cluster(str(directory), brokers, controllers, port)
    configs = [configure_node(layout, node, None, [], strict=False) for node in layout.nodes]
    return prepare(layout, configs, time.time_ns() // 1_000_000, lambda line: None)


def test_the_first_three_brokers_are_controllers(tmp_path: Path) -> None:
    assert shape(plan_cluster(str(tmp_path), 1, None, None)) == [(1, 9092, 19092)]
    four = plan_cluster(str(tmp_path), 4, None, 9192)
    assert shape(four) == [(1, 9192, 19192), (2, 9193, 19193), (3, 9194, 19194), (4, 9195, None)]
    assert [node.roles for node in four.nodes] == ["broker,controller"] * 3 + ["broker"]
    assert four.bootstrap_servers == "127.0.0.1:9192,127.0.0.1:9193,127.0.0.1:9194,127.0.0.1:9195"


def test_dedicated_controllers_are_nodes_of_their_own(tmp_path: Path) -> None:
    layout = plan_cluster(str(tmp_path), 2, 3, None)
    assert shape(layout) == [(1, 9092, None), (2, 9093, None), (101, None, 19092), (102, None, 19093), (103, None, 19094)]


def test_ports_stay_in_their_range(tmp_path: Path) -> None:
    """Above 55,000 the controllers have lower ports; port 0 takes free ones, none of them twice."""
    assert shape(plan_cluster(str(tmp_path), 1, None, 60_000)) == [(1, 60_000, 50_000)]
    free = [port for _, *ports in shape(plan_cluster(str(tmp_path), 3, None, 0)) for port in ports]
    assert len(set(free)) == 6
    with pytest.raises(ClusterError, match=r"needs ports up to 65536"):
        plan_cluster(str(tmp_path), 2, None, 65_535)


def test_a_cluster_on_free_ports_grows_on_free_ports(tmp_path: Path) -> None:
    """Those next to the first ones may be in use."""
    first = made(tmp_path, 1, port=0)
    grown = plan_cluster(str(tmp_path), 3, None, 0)
    assert grown.nodes[0] == first.nodes[0]
    assert len({port for _, *ports in shape(grown) for port in ports}) == 6
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        ports = [port for _, *ports in shape(plan_cluster(str(tmp_path), 3, None, 0)) for port in ports]
        assert taken.getsockname()[1] not in ports


def test_a_start_repeats_what_there_is(tmp_path: Path) -> None:
    """Ids, ports and formatted directories stay, also after a start with more brokers; first voters are forgotten."""
    first = made(tmp_path, 1, port=9292)
    metas = {node.node_id: (tmp_path / node.name / "meta.properties").read_bytes() for node in first.nodes}
    assert plan_cluster(str(tmp_path), 1, None, None) == first == read_layout(str(tmp_path))
    grown = made(tmp_path, 3)
    assert grown.cluster_id == first.cluster_id
    assert shape(grown) == [(1, 9292, 19292), (2, 9293, 19293), (3, 9294, 19294)]
    assert (tmp_path / "node-1" / "meta.properties").read_bytes() == metas[1]
    found = [decode_meta_properties((tmp_path / node.name / "meta.properties").read_bytes()) for node in grown.nodes]
    assert {one.cluster_id for one in found} == {first.cluster_id} and len({one.directory_id for one in found}) == 3
    assert "first.voters" not in (tmp_path / "cluster.properties").read_text()
    # Only the node of the first start was formatted as a voter; the others make themselves voters when they run.
    has_voters = [any((tmp_path / node.name).glob("__cluster_metadata-0/*.checkpoint")) for node in grown.nodes]
    assert has_voters == [True, False, False]


def test_an_interrupted_first_start_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The voters that the first directory was formatted with are those of the next ones, too."""
    formatted = layouts.format_directories
    calls = []

    def fails_at_the_second(*args: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return formatted(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(layouts, "format_directories", fails_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path, 3)
    cluster = read_layout(str(tmp_path))
    assert cluster is not None and cluster.first_voters.count("@") == 3
    monkeypatch.setattr(layouts, "format_directories", formatted)
    assert made(tmp_path, 3).cluster_id == cluster.cluster_id
    ids = [decode_meta_properties((tmp_path / f"node-{n}/meta.properties").read_bytes()).directory_id for n in (1, 2, 3)]
    assert [str(one) for one in ids] == [voter.split(":")[-1] for voter in cluster.first_voters.split(",")]
    for number in (1, 2, 3):
        (snapshot,) = (tmp_path / f"node-{number}").glob("__cluster_metadata-0/*.checkpoint")
        assert all(one is not None and bytes(one) in snapshot.read_bytes() for one in ids)


@pytest.mark.parametrize(
    ("start", "next_start", "sentence"),
    [
        ((3, None, None), (2, None, None), "has a cluster of 3 brokers, and with --brokers 2 the records"),
        ((1, None, None), (1, None, 9999), "whose first broker has the port 9092"),
        ((1, None, None), (1, 1, None), "whose first brokers are its controllers"),
        ((1, 3, None), (1, 1, None), "has 3 controllers, all of them voters"),
        ((1, None, None), (0, None, None), "has 1 to 100 brokers"),
        ((1, None, None), (1, 0, None), "has 1 to 100 controllers"),
    ],
)
def test_what_a_start_refuses(
    start: tuple[int, int | None, int | None], next_start: tuple[int, int | None, int | None], sentence: str, tmp_path: Path
) -> None:
    made(tmp_path, *start)
    with pytest.raises(ClusterError, match=sentence):
        plan_cluster(str(tmp_path), *next_start)


def test_directories_that_are_something_else_are_refused(tmp_path: Path) -> None:
    """The log directory of one node, and a cluster.properties that cannot be read."""
    (tmp_path / "meta.properties").touch()
    with pytest.raises(ClusterError, match="is the log directory of one node"):
        plan_cluster(str(tmp_path), 3, None, None)
    other = tmp_path / "other"
    other.mkdir()
    for text in ("brokers=1@127.0.0.1:9092\n", "cluster.id=x\nbrokers=1@elsewhere\ncontrollers=\n"):
        (other / "cluster.properties").write_text(text)
        with pytest.raises(ClusterError, match=r"cluster\.properties is not what kcli serve --brokers wrote"):
            plan_cluster(str(other), 3, None, None)


def test_partitions_have_as_many_replicas_as_brokers_up_to_three(tmp_path: Path) -> None:
    """One of three brokers may die; the file or an override of all nodes counts more."""

    def factors(brokers: int, path: str | None = None, *overrides: str) -> list[object]:
        layout = plan_cluster(str(tmp_path / "c"), brokers, None, None)
        config = configure_node(layout, layout.nodes[0], path, overrides, strict=False)
        keys = ("default.replication.factor", "min.insync.replicas", "offsets.topic.replication.factor")
        return [config[key] for key in (*keys, "transaction.state.log.min.isr")]

    assert [factors(brokers) for brokers in (1, 2, 3, 5)] == [[1, 1, 1, 1], [2, 1, 2, 1], [3, 2, 3, 2], [3, 2, 3, 2]]
    assert factors(3, None, "min.insync.replicas=1") == [3, 1, 3, 2]
    common = tmp_path / "common.properties"
    common.write_text("default.replication.factor=1\n")
    assert factors(3, str(common)) == [1, 2, 3, 2]


def test_each_node_has_its_configuration_as_a_file(tmp_path: Path) -> None:
    """With the keys of all nodes; a key that is a node's own is refused, with the place where it is."""
    common = tmp_path / "common.properties"
    common.write_text("num.partitions=3\n")
    layout = plan_cluster(str(tmp_path / "c"), 2, None, None)
    configs = [configure_node(layout, node, str(common), ["log.retention.hours=1"], strict=False) for node in layout.nodes]
    prepare(layout, configs, 0, lambda line: None)
    lines = (tmp_path / "c" / "node-2.properties").read_text().splitlines()
    expected = {"num.partitions=3", "log.retention.hours=1", "node.id=2", f"log.dirs={tmp_path}/c/node-2"}
    assert expected <= set(lines)
    common.write_text("num.partitions=3\nnode.id=5\n")
    with pytest.raises(
        ClusterError, match=r"--override log\.dirs=x, node\.id \(.*common\.properties, line 2\): with --brokers"
    ):
        check_common(str(common), ["log.dirs=x", "num.partitions=1"])
    with pytest.raises(ConfigError):
        check_common(str(tmp_path / "missing"), [])
