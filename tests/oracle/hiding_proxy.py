"""A proxy in front of a broker that hides some of its APIs: whether a client's test passes then shows whether it needs them.

    python -m tests.oracle.hiding_proxy PORT BROKER_PORT

It changes only the answers to ApiVersions, from which the hidden APIs are taken; a request for one of them ends its connection,
as one that a broker does not know does. The broker must advertise the proxy's address. So the list in
tests/oracle/conformance.py was made: what passes at Apache Kafka behind this proxy needs none of the hidden APIs.
"""

from __future__ import annotations

import asyncio
import struct
import sys

from kcli.protocol.apis import API_KEYS, API_VERSIONS

# Groups, transactions, SASL, ACLs, delegation tokens, reassignments, quotas, SCRAM, share and streams groups, raft voters.
GROUPS = {8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69, 76, 77, 78, 79, 83, 84, 85, 86, 87, 88, 89, 90, 91, 92}
TRANSACTIONS = {24, 25, 26, 27, 28, 65, 66}
SECURITY = {17, 29, 30, 31, 36, 38, 39, 40, 41, 50, 51}
HIDDEN = GROUPS | TRANSACTIONS | SECURITY | {45, 46, 48, 49, 80, 81}
UNSUPPORTED_VERSION = 35
LARGEST_FRAME = 1 << 28
_REQUEST_HEAD = struct.Struct(">hhi")


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The next frame, without its size. Raises IncompleteReadError at the end, ValueError for a size beyond all limits."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > LARGEST_FRAME:
        raise ValueError(f"a frame of {size} bytes")
    return await reader.readexactly(size)


def without_hidden(frame: bytes, version: int) -> bytes:
    """An ApiVersions response, header and all, without the hidden APIs."""
    response_type = API_KEYS[API_VERSIONS].response
    if int.from_bytes(frame[4:6], "big") == UNSUPPORTED_VERSION:
        version = 0
    response, _ = response_type.decode(memoryview(frame), version, 4)
    response.api_keys = [one for one in response.api_keys if one.api_key not in HIDDEN]
    return frame[:4] + bytes(response_type.encode(response, version))


async def serve_client(broker_port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry frames both ways until either side ends."""
    up_reader, up_writer = await asyncio.open_connection("127.0.0.1", broker_port)
    asked: dict[int, int] = {}

    async def requests() -> None:
        while True:
            frame = await read_frame(reader)
            key, version, correlation_id = _REQUEST_HEAD.unpack_from(frame)
            if key in HIDDEN:
                return
            if key == API_VERSIONS:
                asked[correlation_id] = version
            up_writer.write(len(frame).to_bytes(4, "big") + frame)
            await up_writer.drain()

    async def responses() -> None:
        while True:
            frame = await read_frame(up_reader)
            version = asked.pop(int.from_bytes(frame[:4], "big"), None)
            if version is not None:
                frame = without_hidden(frame, version)
            writer.write(len(frame).to_bytes(4, "big") + frame)
            await writer.drain()

    tasks = [asyncio.ensure_future(requests()), asyncio.ensure_future(responses())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for each in (writer, up_writer):
        each.close()


async def main(port: int, broker_port: int) -> None:
    """Serve until the process ends."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve_client(broker_port, reader, writer)
        except OSError:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
