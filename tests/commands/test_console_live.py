"""Protects kcli produce, consume and bench: what is sent is printed, selections select, failures are sentences.

The commands run as processes against `kcli serve`; librdkafka judges what they wrote, and writes what they read.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server.live import LiveServer, wait_for

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

pytestmark = [pytest.mark.ci, pytest.mark.xdist_group("console")]
FIRST_MS = 1_700_000_000_000
# A group begins with its first member, not three seconds later.
SETTINGS = ("num.partitions=1", "group.initial.rebalance.delay.ms=0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("console"), *SETTINGS) as found:
        write(found)
        yield found


def write(server: LiveServer) -> None:
    """Topic t: 100 records, every tenth without a value, with keys 0 to 6, a header and a millisecond between them."""
    producer = confluent_kafka.Producer({"bootstrap.servers": f"127.0.0.1:{server.port}"})
    for number in range(100):
        value = None if number % 10 == 0 else f"v{number}"
        producer.produce("t", value, f"{number % 7}", timestamp=FIRST_MS + number, headers={"third": f"{number % 3}"})
    assert producer.flush(30) == 0


def command(server: LiveServer | None, *words: str, given: bytes = b"", topic: str = "t") -> subprocess.CompletedProcess[bytes]:
    where = [] if server is None else ["--bootstrap-server", f"127.0.0.1:{server.port}"]
    line = [sys.executable, "-m", "kcli", words[0], "--topic", topic, *where, *words[1:]]
    return subprocess.run(line, input=given, capture_output=True, timeout=120)


def printed(server: LiveServer, *words: str, topic: str = "t") -> list[str]:
    found = command(server, "consume", *words, topic=topic)
    assert (found.returncode, found.stderr) == (0, b"")
    return found.stdout.decode().splitlines()


def offsets(server: LiveServer, *words: str) -> list[int]:
    return [int(line) for line in printed(server, *words, "--format", "%o\\n")]


def read_by_librdkafka(
    server: LiveServer, topic: str, count: int
) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]]:
    settings = {"bootstrap.servers": f"127.0.0.1:{server.port}", "group.id": f"judge-{topic}", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic])
    found = []
    while len(found) < count:
        message = consumer.poll(30)
        assert message is not None and message.error() is None, message and message.error()
        found.append((message.key(), message.value(), message.headers() or []))
    consumer.close()
    return found


# --------------------------------------------------------------------------------------------------------------- consume


def test_values_are_printed_as_they_are(server: LiveServer) -> None:
    assert printed(server, "--null-text", "NULL") == ["NULL" if at % 10 == 0 else f"v{at}" for at in range(100)]


def test_json_has_all_of_a_record(server: LiveServer) -> None:
    first, second = (json.loads(line) for line in printed(server, "--output", "json", "--limit", "2"))
    assert (first["value"], first["valueSize"], second["value"]) == (None, -1, "v1")
    assert (second["key"], second["timestamp"], second["headers"]) == ("1", FIRST_MS + 1, [{"key": "third", "value": "1"}])


def test_a_format_is_filled_in(server: LiveServer) -> None:
    assert printed(server, "--offset", "8", "--format", "%t-%p@%o %k=%s %T %h\\n") == [f"t-0@8 1=v8 {FIRST_MS + 8} third=2"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--offset", "3..7"], range(3, 7)),
        (["--offset", "97.."], range(97, 100)),
        (["--offset", "..2"], range(2)),
        (["--offset", "500.."], range(0)),
        (["--tail", "3"], range(97, 100)),
        (["--tail", "1000", "--limit", "4"], range(4)),
        (["--time", f"{FIRST_MS + 40}..{FIRST_MS + 43}"], range(40, 43)),
        (["--time", f"{FIRST_MS + 98}.."], range(98, 100)),
        (["--key", "3", "--limit", "2"], [3, 10]),
        (["--key", "3", "--key", "4", "--offset", "..8"], [3, 4]),
        (["--header", "third=2", "--offset", "..9"], [2, 5, 8]),
        (["--header", "third", "--offset", "..2"], range(2)),
        (["--header", "none"], range(0)),
        (["--partition", "0", "--max-messages", "1"], range(1)),
        (["--from-beginning", "--limit", "0"], range(0)),
    ],
)
def test_selections_choose_what_they_say(server: LiveServer, words: list[str], wanted: range | list[int]) -> None:
    assert offsets(server, *words) == list(wanted)


def test_a_group_keeps_its_place_behind_what_was_printed(server: LiveServer) -> None:
    assert offsets(server, "--group", "readers", "--limit", "3") == [0, 1, 2]
    assert offsets(server, "--group", "readers", "--limit", "4", "--key", "0") == [7, 14, 21, 28]
    assert offsets(server, "--group", "readers") == list(range(29, 100))
    assert offsets(server, "--group", "readers") == []


def test_a_member_without_partitions_ends(server: LiveServer) -> None:
    """Another member has the only partition of the topic."""
    # The other member notices each rebalance with its next heartbeat.
    settings = {"bootstrap.servers": f"127.0.0.1:{server.port}", "group.id": "full", "heartbeat.interval.ms": 200}
    other = confluent_kafka.Consumer(settings)
    assigned = threading.Event()
    is_over = threading.Event()
    other.subscribe(["t"], on_assign=lambda consumer, partitions: assigned.set())

    def poll() -> None:
        while not is_over.is_set():
            other.poll(0.1)

    thread = threading.Thread(target=poll)
    thread.start()
    assert assigned.wait(30)
    try:
        # The member id of librdkafka is the smaller one by its client.id, and gets the partition.
        found = command(server, "consume", "--group", "full", "--command-property", "client.id=z")
        assert (found.returncode, found.stdout) == (0, b"")
        assert b"the group has no partition for this member" in found.stderr
        assert printed(server, "--group", "full", "--timeout-ms", "300", "--command-property", "client.id=z") == []
    finally:
        is_over.set()
        thread.join(30)
        other.close()
    assert printed(server, "--timeout-ms", "20000", "--limit", "100", "--null-text", "NULL")[1] == "v1"


def test_what_comes_later_is_printed_as_it_comes(server: LiveServer) -> None:
    """It is printed at once, not when a buffer is full; the command ends by itself at --limit."""
    line = [sys.executable, "-m", "kcli", "consume", "--bootstrap-server", f"127.0.0.1:{server.port}", "--topic", "later"]
    assert command(server, "produce", given=b"first\n", topic="later").returncode == 0
    reader = subprocess.Popen([*line, "--follow", "--limit", "2"], stdout=subprocess.PIPE)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"first\n"
    assert command(server, "produce", given=b"second\n", topic="later").returncode == 0
    assert reader.stdout.readline() == b"second\n"
    assert reader.wait(30) == 0
    assert printed(server, "--follow", "--timeout-ms", "3000", topic="later") == ["first", "second"]


def test_records_of_an_aborted_transaction_are_not_committed(server: LiveServer) -> None:
    settings = {"bootstrap.servers": f"127.0.0.1:{server.port}", "transactional.id": "console"}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(30)
    for name, end in (("aborted", producer.abort_transaction), ("committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce("txn", name)
        assert producer.flush(30) == 0
        end(30)
    assert printed(server, topic="txn") == ["aborted", "committed"]
    assert printed(server, "--isolation", "read_committed", topic="txn") == ["committed"]


def test_a_closed_pipe_ends_the_command_without_a_word(server: LiveServer) -> None:
    line = f"{sys.executable} -m kcli consume --bootstrap-server 127.0.0.1:{server.port} --topic t | head -1"
    found = subprocess.run(["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"], capture_output=True, timeout=60)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"\n", b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_member_that_is_ended_by_a_signal_leaves_its_group(server: LiveServer, number: int) -> None:
    """The next member would wait for session.timeout.ms, 45 s by default, for the partitions of one that did not leave."""
    group = f"ended-{number}"
    words = ["--topic", "t", "--group", group, "--follow", "--bootstrap-server", f"127.0.0.1:{server.port}"]
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "signal.signal(signal.SIGHUP, signal.SIG_DFL); "
        "from kcli.commands.app import main; sys.exit(main(sys.argv[1:]))"
    )
    with subprocess.Popen([sys.executable, "-c", program, "consume", *words], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.send_signal(number)
        process.stdout.read()
        assert process.wait(60) == 128 + number
    words = ["describe", "--group", group, "--state", "--output", "json", "--bootstrap-server", f"127.0.0.1:{server.port}"]
    found = subprocess.run([sys.executable, "-m", "kcli", "groups", *words], capture_output=True, timeout=60)
    assert json.loads(found.stdout)["memberCount"] == 0, found


# --------------------------------------------------------------------------------------------------------------- produce


def test_lines_become_records_for_others(server: LiveServer) -> None:
    given = b"a:1\nb:\n:2\nc:x:y"
    words = ("produce", "--key-separator", ":", "--null-marker", "", "--header", "from=cli", "--header", "flag=")
    assert command(server, *words, given=given, topic="lines").returncode == 0
    headers = [("from", b"cli"), ("flag", b"")]
    wanted = [(b"a", b"1", headers), (b"b", None, headers), (None, b"2", headers), (b"c", b"x:y", headers)]
    assert read_by_librdkafka(server, "lines", 4) == wanted


def test_what_consume_prints_as_json_can_be_produced(server: LiveServer) -> None:
    dumped = command(server, "consume", "--output", "json").stdout
    found = command(server, "produce", "--input", "json", given=dumped, topic="copy")
    assert (found.returncode, found.stderr) == (0, b"")
    again = command(server, "consume", "--output", "json", topic="copy").stdout
    assert again.replace(b'"topic":"copy"', b'"topic":"t"') == dumped


def test_what_dump_log_prints_as_json_can_be_produced(server: LiveServer) -> None:
    words = [sys.executable, "-m", "kcli", "dump-log", "--output", "json", "--print-data-log", str(server.data / "t-0")]
    dumped = subprocess.run(words, capture_output=True, timeout=60).stdout
    assert command(server, "produce", "--input", "json", given=dumped, topic="from-dump").returncode == 0
    assert printed(server, topic="from-dump") == printed(server)


def test_many_lines_arrive_in_their_order(server: LiveServer, tmp_path: Path) -> None:
    lines = b"".join(b"%d\n" % number for number in range(50_000))
    (tmp_path / "first").write_bytes(lines[:100_001])
    found = command(server, "produce", str(tmp_path / "first"), "-", given=lines[100_001:], topic="many")
    assert (found.returncode, found.stderr) == (0, b"")
    # The last line of the first file has no end: what follows it is a line of its own.
    read = command(server, "consume", topic="many").stdout
    assert read.replace(b"\n", b"") == lines.replace(b"\n", b"") and read.count(b"\n") in (50_000, 50_001)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed_as_asked(server: LiveServer, codec: str) -> None:
    lines = b"the same line\n" * 1000
    assert command(server, "produce", "--compression-type", codec, given=lines, topic=f"z-{codec}").returncode == 0
    assert command(server, "consume", topic=f"z-{codec}").stdout == lines
    dump = [sys.executable, "-m", "kcli", "dump-log", "--output", "kafka", str(server.data / f"z-{codec}-0" / f"{0:020}.log")]
    batches = [
        line for line in subprocess.run(dump, capture_output=True, text=True).stdout.splitlines() if "baseOffset" in line
    ]
    assert batches and all(f"compresscodec: {codec} " in line for line in batches)


# ----------------------------------------------------------------------------------------------------------------- bench


def test_bench_writes_and_reads_as_many_records_as_asked(server: LiveServer) -> None:
    words = ("--num-records", "2000", "--record-size", "50")
    written = command(server, "bench", "produce", *words, "--output", "json", topic="bench")
    report = json.loads(written.stdout)
    assert (written.returncode, report["records"], report["sizeInBytes"]) == (0, 2000, 100_000)
    assert sum(row["count"] for row in report["latencyMicros"]["doublings"]) == 2000
    read = command(server, "bench", "consume", "--num-records", "2000", topic="bench")
    assert read.returncode == 0 and read.stdout.startswith(b"2,000 records, 0.1 MB read in ")
    short = command(server, "bench", "consume", "--num-records", "2001", "--timeout-ms", "3000", topic="bench")
    assert short.returncode == 1 and b"2,000 of 2,001 were read" in short.stderr


# ------------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["consume", "--offset", "3", "--tail", "1"], 2, "--tail excludes --offset and --time"),
        (["consume", "--offset", "a"], 2, "--offset a: 'a' is not an offset"),
        (["consume", "--group", "g", "--offset", "3"], 2, "--group and --offset exclude each other"),
        (["consume", "--format", "%q"], 2, "there is no token %q"),
        (["consume", "--partition", "5"], 2, "t has no partition 5, only 1 from 0 on"),
        (["consume", "--command-property", "client.idd=x"], 2, "there is no setting client.idd; did you mean client.id?"),
        (["produce", "--input", "json", "--key-separator", ":"], 2, "--key-separator is for --input value"),
        (["produce", "--partition", "7"], 2, "t has no partition 7, only 1 from 0 on"),
        (["produce", "--delimiter", ""], 2, "--delimiter is empty"),
        (["produce", "--key-separator", ""], 2, "--key-separator is empty"),
        (["produce", "--header", "flag"], 2, "--header flag: write NAME=VALUE"),
        (["produce", "/does/not/exist"], 2, "/does/not/exist: No such file or directory"),
        (["bench", "produce", "--num-records", "0"], 2, "--num-records must be 1 or more"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(server: LiveServer, words: list[str], code: int, message: str) -> None:
    found = command(server, *words, given=b"x\n")
    assert found.returncode == code and message in found.stderr.decode(), found.stderr
    assert b"Traceback" not in found.stderr and found.stderr.count(b"\n") == 1


def test_a_topic_that_does_not_exist_has_a_suggestion(server: LiveServer) -> None:
    found = command(server, "consume", topic="tt")
    assert (found.returncode, found.stdout) == (1, b"") and b"there is no topic tt; did you mean 't'?" in found.stderr


def test_a_line_that_is_no_record_is_named_and_those_before_it_are_sent(server: LiveServer) -> None:
    found = command(server, "produce", "--key-separator", ":", given=b"a:1\nb\nc:3\n", topic="wrong-line")
    assert found.returncode == 1
    assert (
        found.stderr.decode()
        == "kcli: line 2 cannot be read as a record: the key separator ':' is not in it; 1 record before it was sent\n"
    )
    assert printed(server, topic="wrong-line") == ["1"]


def test_a_line_that_is_too_long_is_named_and_those_before_it_are_sent(server: LiveServer, tmp_path: Path) -> None:
    (tmp_path / "first").write_bytes(b"a\nb\n")
    (tmp_path / "second").write_bytes(b"c\n" + b"x" * 1_100_000 + b"\nd\n")
    files = [str(tmp_path / name) for name in ("first", "second")]
    found = command(server, "produce", *files, topic="long-line")
    sentence = f"kcli: line 2 of {files[1]} cannot be sent: "
    assert found.returncode == 1 and found.stderr.decode().startswith(sentence), found.stderr
    assert found.stderr.endswith(b"; 3 records before it were sent\n") and found.stderr.count(b"\n") == 1
    assert printed(server, topic="long-line") == ["a", "b", "c"]


SHORT = ("--command-property", "default.api.timeout.ms=1500", "--command-property", "max.block.ms=1500")


@pytest.mark.parametrize(
    "words", [["consume"], ["produce", *SHORT[2:]], ["bench", "produce", *SHORT[2:]]], ids=lambda words: words[0]
)
def test_nobody_listens(words: list[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and no other process can listen there
        where = ("--bootstrap-server", f"127.0.0.1:{free.getsockname()[1]}")
        own = SHORT[:2] if words[0] == "consume" else ()
        found = command(None, *words, *where, *own, given=b"x\n")
    lines = found.stderr.splitlines()  # what it waits for, and why it ends
    assert found.returncode == 2 and len(lines) == 2 and all(b"Connection refused" in line for line in lines), lines
    assert lines[0].endswith(b"Connection refused; trying again")


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "refused"])
def test_an_advertised_address_that_cannot_be_reached_is_named(tmp_path: Path, is_silent: bool) -> None:
    """The bootstrap server answers; consume --group waited for ever, without a word, for the broker that it names."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if is_silent:
            other.listen(50)  # connections are made, and no request is answered
        host, port = other.getsockname()
        address = f"PLAINTEXT://{host}:{port}"
        with LiveServer(tmp_path, *SETTINGS, f"advertised.listeners={address}") as server:
            limit = ("--command-property", "default.api.timeout.ms=3000")
            commands = [("consume", "--group", "g", *limit), ("consume", *limit), ("bench", "consume", *limit)]
            blocked = ("--command-property", "max.block.ms=3000")
            every = [*commands, ("produce", *blocked), ("bench", "produce", *blocked)]
            with ThreadPoolExecutor(len(every)) as pool:  # each of them waits for three seconds
                ended = pool.map(lambda words: command(server, *words, given=b"x\n"), every)
            for words, found in zip(every, ended, strict=True):
                lines = found.stderr.decode().splitlines()
                assert found.returncode == 2 and len(lines) == 2, (words, lines)
                assert lines[0].startswith(f"kcli: broker 1 at {host}:{port}: ") and lines[0].endswith("; trying again")
                assert "no broker can be reached at the address that it advertises within 3000 ms: broker 1" in lines[1]


@pytest.mark.parametrize(
    "options", [[], ["--isolation", "read_committed"], ["--group", "g"]], ids=["all", "committed", "group"]
)
def test_offsets_without_records_at_the_end(tmp_path: Path, options: list[str]) -> None:
    """A repair or the log cleaner may leave an empty active segment: the log end offset is its first one."""
    with LiveServer(tmp_path, *SETTINGS) as first:
        assert command(first, "produce", given=b"a\nb\n").returncode == 0
    (tmp_path / "data" / "t-0" / "00000000000000000050.log").touch()
    with LiveServer(tmp_path, *SETTINGS) as server:
        assert printed(server, *options) == ["a", "b"]
        assert command(server, "produce", given=b"c\n").returncode == 0
        assert printed(server, "--format", "%o %s\n") == ["0 a", "1 b", "50 c"]


def test_a_wrong_line_does_not_hide_a_record_that_was_refused(server: LiveServer) -> None:
    with server.client() as client:
        client.create_topic("short", 1, max_message_bytes="300")
    options = ("--key-separator", ":", "--command-property", "linger.ms=1000")  # so that the second line is read first
    found = command(server, "produce", *options, given=b"1:%s\n2\n" % (b"x" * 400), topic="short")
    assert found.returncode == 1 and b"line 2 cannot be read as a record" in found.stderr, found.stderr
    assert b"kcli: 1 of 1 record was not acknowledged, first that of line 1: MESSAGE_TOO_LARGE" in found.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["produce", "--partition", "-3"],
        ["produce", "--timestamp", "-3"],
        ["produce", "--timestamp", str(2**63)],
        ["consume", "--timeout-ms", "-5"],
        ["bench", "consume", "--timeout-ms", "-5"],
    ],
    ids=" ".join,
)
def test_numbers_that_cannot_be(words: list[str]) -> None:
    found = command(None, *words, given=b"x\n")
    sentence = f"kcli: {' '.join(words[-2:])}: write "
    assert found.returncode == 2 and found.stderr.startswith(sentence.encode()) and b"fault" not in found.stderr, found.stderr


def test_a_partition_that_does_not_exist_is_refused_at_once(server: LiveServer) -> None:
    """A producer would wait for it for max.block.ms, because partitions may be added."""
    found = command(server, "produce", "--partition", "99", "--command-property", "max.block.ms=600000", given=b"x\n")
    assert (found.returncode, found.stderr) == (2, b"kcli: t has no partition 99, only 1 from 0 on\n")
    assert command(server, "produce", "--partition", "0", given=b"x\n", topic="one-partition").returncode == 0


def test_a_directory_is_not_a_file_of_lines(server: LiveServer, tmp_path: Path) -> None:
    found = command(server, "produce", str(tmp_path))
    assert (found.returncode, found.stderr) == (2, f"kcli: {tmp_path}: Is a directory\n".encode())


def test_nobody_listens_and_no_timeout_is_set() -> None:
    """As the commands of administration, these do not try for the minute that a producer or consumer may take."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = ["--topic", "t", "--bootstrap-server", f"127.0.0.1:{free.getsockname()[1]}"]
    commands = (["produce"], ["consume"], ["bench", "produce"], ["bench", "consume"])
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "kcli", *words, *where],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for words in commands
    ]
    try:
        for process in running:
            output, errors = process.communicate(timeout=40)
            assert (process.returncode, output) == (2, b"")
            waiting, ended = errors.splitlines()
            assert waiting.endswith(b"Connection refused; trying again"), errors
            assert b"no broker answered" in ended and b"Connection refused" in ended, errors
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_a_server_that_speaks_another_protocol() -> None:
    """An HTTP server, or a port with TLS, answers bytes that are no answer of Kafka."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(30)
        is_over = threading.Event()

        def serve() -> None:
            while not is_over.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        found = command(None, "consume", "--bootstrap-server", f"127.0.0.1:{listener.getsockname()[1]}", *SHORT[:2])
        is_over.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(30)
    assert found.returncode == 2 and b"Traceback" not in found.stderr and found.stderr.count(b"\n") == 1
    assert b"it is an HTTP server and not a Kafka broker" in found.stderr


def test_the_broker_is_killed_while_lines_are_sent(tmp_path: Path) -> None:
    """No line is lost of which nothing was said: all are acknowledged, or the exit code and a sentence say otherwise."""
    with LiveServer(tmp_path / "killed") as server:
        words = [
            "--bootstrap-server",
            f"127.0.0.1:{server.port}",
            "--topic",
            "k",
            "--command-property",
            "delivery.timeout.ms=3000",
        ]
        more = ["--command-property", "request.timeout.ms=1000", "--command-property", "max.block.ms=3000"]
        line = [sys.executable, "-m", "kcli", "produce", *words, *more]
        writer = subprocess.Popen(line, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        assert writer.stdin is not None and writer.stderr is not None
        writer.stdin.write(b"first\n")
        writer.stdin.flush()
        wait_for(lambda: any(path.stat().st_size for path in (server.data / "k-0").glob("*.log")))
        server.kill()
        writer.stdin.write(b"second\n")
        writer.stdin.close()
        said = writer.stderr.read()
        assert writer.wait(60) == 1
        # The first one may be in the log and its acknowledgement lost.
        told = b"1 of 2 records was not acknowledged" in said or b"2 of 2 records were not acknowledged" in said
        assert told and b"Traceback" not in said
