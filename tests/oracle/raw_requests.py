"""Requests as bytes to any broker, and answers as plain values that two brokers' can be compared by."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, API_VERSIONS, DESCRIBE_QUORUM
from kcli.protocol.framing import encode_request, read_response_header
from kcli.protocol.message import Message
from tests.oracle.peer import free_ports

ANSWER_SECONDS = 30
STOP_SECONDS = 30
# A coordinator that answers with these is asked again.
BUSY = (error_codes.COORDINATOR_LOAD_IN_PROGRESS, error_codes.COORDINATOR_NOT_AVAILABLE, error_codes.NOT_COORDINATOR)


class RawClient:
    """One connection; `struct` makes a request's inner structs, `ask` sends a request and reads its answer."""

    def __init__(self, address: str, client_id: str = "raw") -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self.client_id = client_id
        self.socket = socket.create_connection((host, int(port)), ANSWER_SECONDS)

    def close(self) -> None:
        self.socket.close()

    @staticmethod
    def struct(key: int, struct_name: str, /, **fields: Any) -> Message:
        return API_KEYS[key].request.classes[struct_name](**fields)

    def ask(self, key: int, version: int, /, **fields: Any) -> Message:
        """The answer to a request; every byte of it belongs to the message."""
        api = API_KEYS[key]
        frame = self.exchange(encode_request(7, api, version, self.client_id, api.request.new(**fields)))
        correlation_id, position = read_response_header(frame, api, version)
        answer, end = api.response.decode(frame, version, position)
        assert (correlation_id, end) == (7, len(frame))
        assert api.response.encode(answer, version) == frame[position:]
        return answer

    def exchange(self, request: bytes | bytearray) -> bytes:
        """The frame that answers a whole frame, without its size."""
        self.socket.sendall(request)
        size: int = struct.unpack(">i", self._read(4))[0]
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            assert part, f"the connection ended after {len(data)} of {size} bytes"
            data += part
        return data


@contextmanager
def running_kcli(home: Path, *overrides: str) -> Iterator[str]:
    """Runs `kcli serve` on home/data with KEY=VALUE overrides -> its address. It is stopped as a user stops it."""
    port = free_ports()
    settings = (
        f"log.dirs={home / 'data'}",
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names=CONTROLLER",
        *overrides,
    )
    command = [sys.executable, "-m", "kcli", "serve"]
    for setting in settings:
        command += ["--override", setting]
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).resolve().parents[2]))
    home.mkdir(parents=True, exist_ok=True)
    told: list[str] = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=home, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            told.append(line)
            if " is ready: " in line:
                break
        # What it says from now on must not fill the pipe.
        reader = threading.Thread(target=told.extend, args=(process.stderr,), daemon=True)
        reader.start()
        try:
            assert process.poll() is None, "".join(told)
            yield f"127.0.0.1:{port}"
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(STOP_SECONDS)
            reader.join(STOP_SECONDS)
    assert not [line for line in told if "fault" in line], "".join(told)


def until(is_so: Callable[[], Any]) -> Any:
    """Ask until the answer is true, and return it."""
    end = time.monotonic() + ANSWER_SECONDS
    while True:
        answer = is_so()
        if answer:
            return answer
        assert time.monotonic() < end
        time.sleep(0.05)


def wait_for_metadata(client: RawClient) -> None:
    """Wait until the broker has the metadata of its controller, which answers a change before the broker knows of it."""
    part = client.struct(DESCRIBE_QUORUM, "PartitionData", partition_index=0)
    topic = client.struct(DESCRIBE_QUORUM, "TopicData", topic_name="__cluster_metadata", partitions=[part])
    (quorum,) = client.ask(DESCRIBE_QUORUM, 2, topics=[topic]).topics[0].partitions
    software = {"client_software_name": "test", "client_software_version": "1"}
    # The epoch of the features is the offset of the broker's metadata.
    until(lambda: client.ask(API_VERSIONS, 3, **software).finalized_features_epoch >= quorum.high_watermark - 1)


def plain(value: Any, left_out: frozenset[str] = frozenset(), names: dict[bytes, str] | None = None) -> Any:
    """An answer as dicts and sorted lists, without some of its fields; topic ids by their names."""
    if isinstance(value, Message):
        fields = {field.attribute: getattr(value, field.attribute) for field in value.STRUCT.fields}
        return {name: plain(inner, left_out, names) for name, inner in fields.items() if name not in left_out}
    if isinstance(value, list):
        return sorted((plain(inner, left_out, names) for inner in value), key=repr)
    if isinstance(value, bytes) and names and bytes(value) in names:
        return names[bytes(value)]
    return value
