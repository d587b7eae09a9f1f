"""Protects the commands for running clusters from bad input: one sentence, the right exit code, and no longer than the timeout.

What they print of real clusters is judged by tests/oracle/test_client_admin.py.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.commands.admin_command import known_words, select
from kcli.commands.app import main
from kcli.commands.bench import make_values
from kcli.commands.configs import parse_values
from kcli.commands.groups import duration_ms, read_plan
from kcli.commands.output import CannotRun
from tests.answering_server import answering_server

TIMEOUT_S = 0.6
SLACK_S = 5.0  # of a loaded machine


def http(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def tls(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(b"\x15\x03\x03\0\x02\x02\x46")


def nonsense(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(b"\0\0\0\x08" + b"\xff" * 8)


def huge(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(b"\x7f\xff\xff\xff" + b"\0" * 100)


def silent(connection: socket.socket) -> None:
    connection.recv(100)


def closing(connection: socket.socket) -> None:
    connection.recv(100)
    connection.close()


SERVERS: dict[str, tuple[Callable[[socket.socket], None], str]] = {
    "nonsense": (nonsense, "its answer to ApiVersions cannot be read"),
    "huge": (huge, "no broker answered"),
    "silent": (silent, "no broker answered"),
    "closing": (closing, "it closed the connection"),
}


def ran(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """A command within the timeout -> exit code and stderr: one sentence, perhaps after what it waited for."""
    began = time.monotonic()
    code = main([*words, "--timeout", str(TIMEOUT_S)])
    assert time.monotonic() - began < TIMEOUT_S + SLACK_S
    out, err = capfd.readouterr()
    err = "".join(line for line in err.splitlines(keepends=True) if not line.endswith("; trying again\n"))
    assert out == "" and err.startswith("kcli: ") and err.count("\n") == 1, (out, err)
    return code, err


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that_is_not_a_broker(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    answer, reason = SERVERS[name]
    with answering_server(answer) as address:
        code, err = ran(capfd, "topics", "list", "--bootstrap-server", address)
    assert code == 2 and reason in err and f"{TIMEOUT_S * 1000:.0f} ms" in err, err


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (tls, "it expects TLS: set security.protocol=SSL, or use another port"),
        (http, "it is an HTTP server and not a Kafka broker"),
    ],
)
def test_a_server_of_another_protocol(
    answer: Callable[[socket.socket], None], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """No other attempt is made: it would fail as well."""
    with answering_server(answer) as address:
        code, err = ran(capfd, "topics", "list", "--bootstrap-server", address)
    assert code == 2 and f"{address}: {reason}" in err and "within" not in err


def test_a_bootstrap_server_that_does_not_answer_is_left_for_another(capfd: pytest.CaptureFixture[str]) -> None:
    """Its time to set up a connection is that of the whole command: half of the runs ended without asking the other server."""
    for _ in range(4):  # the first server is chosen at random
        with answering_server(silent) as first, answering_server(http) as second:
            code = main(["topics", "list", "--bootstrap-server", f"{first},{second}"])
        assert code == 2 and f"{second}: it is an HTTP server" in capfd.readouterr().err


COMMANDS = [
    ("topics", "describe", "--topic", "x"),
    ("topics", "create", "--topic", "x"),
    ("configs", "describe", "--topic", "x"),
    ("groups", "list"),
    ("groups", "reset-offsets", "--group", "x", "--all-topics", "--to-latest"),
    ("transactions", "list"),
    ("cluster", "quorum"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_address_without_a_server(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and no other process can listen there
        port = taken.getsockname()[1]
        code, err = ran(capfd, *words, "--bootstrap-server", f"127.0.0.1:{port}")
    assert code == 2 and f"127.0.0.1:{port}: Connection refused" in err, err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("topics", "list", "--bootstrap-server", "nowhere"), "'nowhere' is not an address"),
        (("topics", "list", "--bootstrap-server", "host:99999"), "'host:99999' is not an address"),
        (("topics", "list", "--bootstrap-server", ","), "bootstrap.servers is empty"),
        (("topics", "list", "--bootstrap-server", "kcli.invalid:9092"), "kcli.invalid:9092: "),
        (("topics", "create", "--topic", "x", "--partitions", "0"), "--partitions must be 1 or more"),
        (("topics", "create", "--topic", "x", "--config", "y"), "'y' is not KEY=VALUE"),
        (("topics", "create", "--topic", "x", "--replica-assignment", "a"), "is not a list such as 1:2,2:3"),
        (("configs", "describe"), "name one entity"),
        (("configs", "describe", "--broker", "one"), "'one' is not the id of a broker"),
        (("configs", "alter", "--topic", "x"), "name what to change"),
        (("configs", "alter", "--topic", "x", "--add-config", "a=1,a=2"), "a is named twice"),
        (("topics", "create", "--topic", "x", "--config", "a=1", "--config", "a=2"), "a is named twice"),
        (("topics", "list", "--command-property", "client.id=a", "--command-property", "client.id=b"), "names client.id twice"),
        (("configs", "describe", "--topic", "x", "--entity-name", "y"), "--entity-name is for --entity-type"),
        (("groups", "list", "--state", "stabel"), "'stabel' is not one of Empty, PreparingRebalance"),
        (("groups", "list", "--type", "consumers"), "'consumers' is not one of classic, consumer, share, streams"),
        (("transactions", "list", "--state", "open"), "'open' is not one of Empty, Ongoing"),
        (("transactions", "find-hanging"), "name where to search"),
        (("transactions", "abort", "--topic", "x", "--partition", "0"), "name the transaction"),
        (("transactions", "abort", "--topic", "x", "--partition", "0", "--start-offset", "-1"), "must be 0 or more, not -1"),
        (
            ("transactions", "abort", "--topic", "x", "--partition", "0", "--start-offset", "1", "--coordinator-epoch", "7"),
            "name the transaction in one way",
        ),
        (("cluster", "log-dirs", "--broker-list", "x"), "write ids of brokers"),
    ],
)
def test_wrong_options(words: tuple[str, ...], sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, err = ran(capfd, *words)
    assert code == 2 and sentence in err, err


def test_a_plan_that_names_a_partition_twice(tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text("t,0,1\nother,t,0,2\nt,0,3\n")
    with pytest.raises(CannotRun, match="line 3: t-0 was named before"):
        read_plan(str(plan), "g")


@pytest.mark.parametrize("data", [b"t,0,\xff\n", b"t,0,5\xe9"])
def test_a_plan_that_is_not_utf_8(data: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_bytes(data)
    with pytest.raises(CannotRun, match="is not a CSV file in UTF-8"):
        read_plan(str(plan), "g")


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["my[1]"], ["my[1]"]),
        (["my1"], ["my1"]),
        (["my*"], ["my*"]),
        (["m?1", "my*"], ["my1", "my*"]),
        (["m*"], ["my[1]", "my1", "my*"]),
        (["[m]y1", "other"], ["other"]),
        ([], ["my[1]", "my1", "my*", "other"]),
    ],
)
def test_names_are_selected(patterns: list[str], names: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """A name is itself; of other patterns only * and ? have a meaning."""
    found = select("group", patterns, ["my[1]", "my1", "my*", "other"])
    assert found.names == names
    assert found.code == (1 if "[m]y1" in patterns else 0) and ("[m]y1" in capfd.readouterr().err) == bool(found.code)


@pytest.mark.parametrize(("size_bytes", "count"), [(0, 512), (100, 512), (100_000, 167), (20_000_000, 1)])
def test_the_values_of_bench_do_not_fill_the_memory(size_bytes: int, count: int) -> None:
    values = make_values(size_bytes)
    assert len(values) == count and {len(one) for one in values} == {size_bytes}


@pytest.mark.parametrize("name", ["securty.protocol", "Security.Protocol", "security_protocol", "SECURITY.PROTOCOL"])
def test_a_misspelt_protocol_is_refused(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As a setting of another kind of client it would be ignored, and the connection would have no protection."""
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers=127.0.0.1:1\n{name}=SSL\n")
    code, err = ran(capfd, "topics", "list", "--command-config", str(file))
    assert code == 2 and f"there is no setting {name}; did you mean security.protocol?" in err and err.count("\n") == 1


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As editors on Windows write it; it would belong to the first name, and the setting would be ignored."""
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=TLS\n", encoding="utf-8-sig")
    code, err = ran(capfd, "topics", "list", "--command-config", str(file))
    assert code == 2 and "security.protocol must be one of" in err


def test_command_config(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Settings of the client count, those of other clients do not, and those of security that it does not have are refused."""
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\nkey.deserializer=x\nsecurity.protocol=PLAINTEXT\n")
    code, err = ran(capfd, "topics", "list", "--command-config", str(file))
    assert code == 2 and "127.0.0.1:1: " in err
    file.write_text("security.protocol=SASL_SSL\nsasl.password=hush\n")
    code, err = ran(capfd, "topics", "list", "--command-config", str(file))
    assert code == 2 and "sasl.mechanism is not set, so that it is GSSAPI (Kerberos), which is not supported" in err
    assert "hush" not in err
    file.write_text("security.protocol=SSL\nssl.cipher.suites=TLS_AES_128_GCM_SHA256\n")
    code, err = ran(capfd, "topics", "list", "--command-config", str(file))
    assert code == 2 and "does not support ssl.cipher.suites" in err
    file.write_text("retry.backoff.ms=soon\n")
    code, err = ran(capfd, "topics", "list", "--command-config", str(file))
    assert code == 2 and "retry.backoff.ms must be a whole number" in err
    code, err = ran(capfd, "topics", "list", "--command-config", str(tmp_path / "none"))
    assert code == 2 and "none: No such file or directory" in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupt_ends_it_at_once(number: int, code: int) -> None:
    """Ctrl-C, a kill or the end of the terminal while a broker does not answer."""
    with answering_server(silent) as address:
        # Tests that a shell runs in the background inherit that SIGINT is ignored, and so would the command.
        program = (
            "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "[signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)]; "
            "from kcli.commands.app import main; sys.exit(main(sys.argv[1:]))"
        )
        command = [sys.executable, "-c", program, "topics", "list", "--bootstrap-server", address, "--timeout", "60"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as process:
            connected = threading.Event()
            deadline = time.monotonic() + 30
            while process.poll() is None and time.monotonic() < deadline and not _has_peer(address):
                connected.wait(0.02)  # a poll of another process, which gives no other sign
            process.send_signal(number)
            assert process.wait(20) == code


def _has_peer(address: str) -> bool:
    """Whether some process has a connection to an address."""
    port = f"{int(address.rpartition(':')[2]):04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[2].endswith(f":{port}") and line.split()[3] == "01" for line in lines)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1", [("a", "1")]),
        ("a=1, b=[x,y],c=", [("a", "1"), ("b", "x,y"), ("c", "")]),
        ("a=b=c", [("a", "b=c")]),
        ("a=[]", [("a", "")]),
    ],
)
def test_pairs_of_add_config(text: str, pairs: list[tuple[str, str]]) -> None:
    assert list(parse_values(text, "--add-config")) == pairs


@pytest.mark.parametrize("text", ["a", "=1", "a=1,b", "a=[1", "a=[1]x"])
def test_no_pairs(text: str) -> None:
    with pytest.raises(CannotRun, match="is not KEY=VALUE"):
        list(parse_values(text, "--add-config"))


@pytest.mark.parametrize(
    ("text", "ms"), [("PT1H", 3_600_000), ("P1DT2M3.5S", 86_523_500), ("-PT1S", -1000), ("PT0S", 0), ("P7D", 604_800_000)]
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "1H", "PT1", "P1M", "PTH"])
def test_no_durations(text: str) -> None:
    with pytest.raises(CannotRun, match="is not a duration"):
        duration_ms(text)


def test_words_are_written_as_the_cluster_does() -> None:
    """A broker compares states letter by letter."""
    known = ("PreparingRebalance", "Ongoing")
    assert known_words("--state", ["ongoing", "preparing-rebalance", "PreparingRebalance"], known) == [
        "Ongoing",
        "PreparingRebalance",
        "PreparingRebalance",
    ]
