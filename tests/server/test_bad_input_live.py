"""Protects a running server from its clients: whatever one sends, it gets its error or its end, and the others are served."""

from __future__ import annotations

import random
import socket
import ssl
import struct
from collections.abc import Iterator

import pytest

from kcli.format.codec_streams import GZIP, LZ4, SNAPPY, ZSTD
from kcli.format.compression import deflate
from kcli.format.records import Record, encode_records
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, API_VERSIONS, METADATA
from kcli.protocol.framing import encode_request
from tests.server.live import LiveServer, Witness, wait_for
from tests.server.whole_node import batch

MB = 1 << 20
# A request of somebody else must not wait longer than this, on a machine that does other things too.
UNDISTURBED_S = 5.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("server"), "message.max.bytes=1000000") as made:
        with made.client() as client:
            client.create_topic("t", 2)
        yield made
    assert made.process.returncode == 0
    assert not made.lines("fault")
    assert made.log().splitlines()[-1].endswith(" INFO stopped")


@pytest.fixture
def witness(server: LiveServer, request: pytest.FixtureRequest) -> Iterator[Witness]:
    """Somebody else, who is served all the while."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    with Witness(server, f"w-{name}"[:200]) as made:
        yield made
    assert made.slowest_s < UNDISTURBED_S


def closing_line(server: LiveServer, port: int) -> str:
    """The one line that says why the connection from a port was closed."""
    wait_for(lambda: bool(server.lines(f"127.0.0.1:{port} ")))
    (line,) = server.lines(f"127.0.0.1:{port} ")
    return line


def head(key: int, version: int, body: bytes = b"") -> bytes:
    frame = struct.pack(">hhih", key, version, 7, 1) + b"c" + body
    return len(frame).to_bytes(4, "big") + frame


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "it uses HTTP"),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", "it uses HTTP"),
        (b"\xff\xff\xff\xff\0\0\0\0", "-1 bytes"),
        (b"\x06\x40\x00\x01", "socket.request.max.bytes"),
        (b"\0\0\0\0", "RequestHeader"),
        (head(4711, 0), "4711"),
        (head(METADATA, 99, b"\0"), "version 99"),
        (head(62, 4, b"\0"), "not served"),
        (head(METADATA, 12, b"\0\xff\xff\xff\xff\x0f"), "Metadata"),
        (head(19, 7, b"\0" + b"\xff" * 40), "CreateTopics"),
    ],
)
def test_what_is_no_request_ends_its_connection_with_one_line(server: LiveServer, data: bytes, says: str) -> None:
    with server.client() as client:
        port = client.raw.getsockname()[1]
        client.send(data)
        assert client.is_closed()
        line = closing_line(server, port)
        assert says in line and " WARN closing the connection " in line


def test_a_client_that_speaks_tls_is_told_apart(server: LiveServer) -> None:
    context = ssl.create_default_context()
    with server.client() as client, pytest.raises((ssl.SSLError, ConnectionResetError, OSError)):
        port = client.raw.getsockname()[1]
        context.wrap_socket(client.raw, server_hostname="localhost")
    assert "uses TLS" in closing_line(server, port)


def test_random_bytes_in_hundreds_of_connections(server: LiveServer, witness: Witness) -> None:
    dice = random.Random(1)
    for count in range(300):
        with server.client() as client:
            size = dice.choice([3, 20, 200, 5000])
            noise = dice.randbytes(size)
            client.send(noise if count % 2 else len(noise).to_bytes(4, "big") + noise)
            if count % 2 == 0:
                assert client.is_closed()
    assert server.memory_mb() < 100


def test_real_requests_with_damage(server: LiveServer, witness: Witness) -> None:
    """Every served API, a few bytes of the request replaced: an answer or the end, and no fault in the log."""
    dice = random.Random(2)
    with server.client() as client:
        served = client.ask(API_VERSIONS, 3, API_KEYS[API_VERSIONS].request.new(client_software_name="x")).api_keys
    for entry in served:
        for version in range(max(entry.min_version, API_KEYS[entry.api_key].lowest_version), entry.max_version + 1):
            frame = bytearray(encode_request(7, API_KEYS[entry.api_key], version, "c", API_KEYS[entry.api_key].request.new()))
            for _ in range(dice.randrange(1, 4)):
                frame[dice.randrange(12, len(frame)) if len(frame) > 12 else 8] = dice.randrange(256)
            with server.client() as client:
                client.raw.settimeout(0.05)
                client.send(bytes(frame))
                try:
                    client.raw.recv(1000)
                except (TimeoutError, ConnectionResetError):
                    pass
    assert not server.lines("fault")


def test_half_requests_and_slow_writers(server: LiveServer, witness: Witness) -> None:
    whole = bytes(encode_request(7, API_KEYS[METADATA], 12, "c", API_KEYS[METADATA].request.new(topics=[])))
    for size in range(len(whole)):
        with server.client() as client:
            client.send(whole[:size])
    with server.client() as client:
        for byte in whole:
            client.send(bytes([byte]))
        assert len(client.receive(8)) == 8


def test_claims_of_large_requests_cost_no_memory(server: LiveServer, witness: Witness) -> None:
    before = server.memory_mb()
    clients = [server.client() for _ in range(200)]
    for client in clients:
        client.send((99 * MB).to_bytes(4, "big") + bytes(10_000))
    assert server.memory_mb() < before + 30
    for client in clients:
        client.raw.close()


@pytest.mark.ci
def test_readers_that_do_not_read_cost_little(server: LiveServer, witness: Witness) -> None:
    with server.client() as client:
        client.create_topic("bulk")
        for _ in range(20):
            assert client.produce("bulk", 0, batch(bytes(900_000))).error_code == 0
    before, clients = server.memory_mb(), []
    request = API_KEYS[METADATA].request.new(topics=None)
    from kcli.protocol.apis import FETCH
    from tests.server.whole_node import fetch_request

    fetch = fetch_request({("bulk", 0): 0}, max_bytes=50 * MB, partition_max_bytes=50 * MB)
    for count in range(40):
        client = server.client()
        for _ in range(20):
            key, message = (FETCH, fetch) if count % 2 else (METADATA, request)
            client.send(bytes(encode_request(7, API_KEYS[key], 12, "c", message)))
        clients.append(client)
    with server.client() as other:
        assert other.metadata().cluster_id
    assert server.memory_mb() < before + 40
    for client in clients:
        client.raw.close()
    wait_for(lambda: server.descriptors() < 60)


def connect_and_drop(port: int, count: int) -> None:
    reset = struct.pack("ii", 1, 0)
    for number in range(count):
        with socket.create_connection(("127.0.0.1", port)) as raw:
            if number % 3 == 0:
                raw.sendall(b"\0\0\0\5he")
            if number % 2 == 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)


def test_connects_and_drops(server: LiveServer, witness: Witness) -> None:
    connect_and_drop(server.port, 200)


@pytest.mark.ci
def test_three_thousand_connects_and_drops(server: LiveServer, witness: Witness) -> None:
    """A connection of which anything is kept has more than the 3 KB that this many may leave."""
    connect_and_drop(server.port, 500)
    before, descriptors = server.memory_mb(), server.descriptors()
    connect_and_drop(server.port, 3_000)
    wait_for(lambda: server.descriptors() <= descriptors)
    assert server.memory_mb() < before + 10


# -------------------------------------------------------------------------------------------------------- bad batches


def tampered(data: bytes, at: int, value: bytes, *, fix_crc: bool = True) -> bytes:
    """A batch with bytes replaced; with `fix_crc` its CRC is made right again."""
    from kcli.format.primitives import crc32c

    changed = bytearray(data)
    changed[at : at + len(value)] = value
    if fix_crc:
        changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)


GOOD = batch(b"a", b"b", b"c")
BAD_BATCHES = {
    "crc": (tampered(GOOD, len(GOOD) - 1, b"\xff", fix_crc=False), {error_codes.CORRUPT_MESSAGE}),
    "count too large": (tampered(GOOD, 57, struct.pack(">i", 4)), {error_codes.INVALID_RECORD}),
    "count too small": (tampered(GOOD, 57, struct.pack(">i", 2)), {error_codes.INVALID_RECORD}),
    "count negative": (tampered(GOOD, 57, struct.pack(">i", -1)), {error_codes.INVALID_RECORD}),
    "count huge": (
        tampered(tampered(GOOD, 57, struct.pack(">i", 2**31 - 1)), 23, struct.pack(">i", 2**31 - 2)),
        {error_codes.INVALID_RECORD, error_codes.CORRUPT_MESSAGE},
    ),
    "last offset delta": (tampered(GOOD, 23, struct.pack(">i", 7)), {error_codes.INVALID_RECORD}),
    "length too large": (
        tampered(GOOD, 8, struct.pack(">i", 2**31 - 1), fix_crc=False),
        {error_codes.CORRUPT_MESSAGE, error_codes.INVALID_RECORD},
    ),
    "length negative": (tampered(GOOD, 8, struct.pack(">i", -1), fix_crc=False), {error_codes.CORRUPT_MESSAGE}),
    "magic 1": (tampered(GOOD, 16, b"\1", fix_crc=False), {error_codes.INVALID_RECORD, error_codes.CORRUPT_MESSAGE}),
    "magic 9": (tampered(GOOD, 16, b"\x09", fix_crc=False), {error_codes.INVALID_RECORD, error_codes.CORRUPT_MESSAGE}),
    "codec 7": (tampered(GOOD, 21, b"\0\7"), {error_codes.UNSUPPORTED_COMPRESSION_TYPE}),
    "control": (tampered(GOOD, 21, b"\0\x20"), {error_codes.INVALID_RECORD}),
    "record length": (tampered(GOOD, 61, b"\xfe"), {error_codes.INVALID_RECORD, error_codes.CORRUPT_MESSAGE}),
    "sequence without producer": (batch(b"x", producer_id=5, producer_epoch=0), {error_codes.INVALID_RECORD}),
    "too large": (batch(bytes(1_000_001)), {error_codes.MESSAGE_TOO_LARGE}),
    "cut": (GOOD[:-1], {error_codes.CORRUPT_MESSAGE, error_codes.INVALID_RECORD}),
    "two": (GOOD + GOOD, {error_codes.INVALID_RECORD}),
    "nothing": (b"", {error_codes.INVALID_RECORD, error_codes.CORRUPT_MESSAGE}),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_batch_has_its_error_and_leaves_no_trace(server: LiveServer, name: str) -> None:
    data, codes = BAD_BATCHES[name]
    with server.client() as client:
        before = client.produce("t", 0, GOOD).base_offset
        assert client.produce("t", 0, data).error_code in codes
        assert client.produce("t", 0, GOOD).base_offset == before + 3


@pytest.mark.ci
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_bomb_costs_no_memory(server: LiveServer, witness: Witness, codec: int) -> None:
    """A batch below the size limit that inflates to a thousand times as much."""
    size = 15 * MB if codec == SNAPPY else 140 * MB
    body = deflate(codec, encode_records([Record(0, 0, None, bytes(size))]))
    data = batch(b"x", attributes=codec, records=body)
    assert len(data) < 1_000_000
    before = server.memory_mb("VmHWM")
    with server.client() as client:
        for _ in range(3):
            code = client.produce("t", 1, data).error_code
            assert code in (error_codes.MESSAGE_TOO_LARGE, 0 if codec == SNAPPY else error_codes.CORRUPT_MESSAGE)
        assert client.produce("t", 1, GOOD).error_code == 0
    assert server.memory_mb("VmHWM") < before + 60


def test_a_request_of_many_partitions_leaves_the_others_time(server: LiveServer, witness: Witness) -> None:
    """Names that nobody knows, a hundred thousand of them."""
    request = API_KEYS[METADATA].request
    topics = [request.classes["MetadataRequestTopic"](name=f"nobody-{number}") for number in range(20_000)]
    with server.client() as client:
        answer = client.ask(METADATA, 12, request.new(topics=topics, allow_auto_topic_creation=False))
        assert len(answer.topics) == 20_000
    assert server.memory_mb() < 150


def test_the_log_tells_no_secrets_and_no_tracebacks(server: LiveServer) -> None:
    assert "Traceback" not in server.log()
