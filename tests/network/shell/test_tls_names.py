"""Protects the check of a broker's name in its certificate, at each address, also for IP addresses; and the versions of TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import warnings
from pathlib import Path

import pytest

from kcli.network.events import (
    Closing,
    NodeRole,
    Peer,
    PeerAddress,
    PeerClosed,
    PeerEvent,
    PeerNode,
    ResponseReceived,
    SendRequest,
)
from kcli.network.security import TlsSettings
from kcli.network.shell.peer_connections import PeerConnections
from kcli.network.shell.tls import Tls
from tests.certificates import Authority, Issued
from tests.server.shell.driven_node import run
from tests.server.shell.sockets import PATIENCE_S, framed

ANOTHER_NAME = "its certificate is for another name"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def asked(host: str, issued: Issued, settings: TlsSettings, most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> PeerEvent:
    """What comes of one request to a server with a certificate; the server receives nothing if its name is refused."""
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            received.extend(await reader.readexactly(len(framed(b"ask"))))
            writer.write(framed(b"answer"))
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.both)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # without it, OpenSSL does not serve TLS 1.1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, most
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)  # the server's side of a handshake that fails
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    event: asyncio.Future[PeerEvent] = loop.create_future()
    connections = PeerConnections(loop, event.set_result, Tls(settings, PATIENCE_S))
    peer = Peer(PeerNode(2, NodeRole.BROKER), "data", PeerAddress(host, server.sockets[0].getsockname()[1]))
    connections.send(SendRequest(1, peer, framed(b"ask")))
    async with asyncio.timeout(PATIENCE_S):
        found = await event
    connections.close_all()
    server.close()
    assert received == (b"" if isinstance(found, PeerClosed) else framed(b"ask"))
    return found


@pytest.mark.parametrize(
    ("host", "names", "is_accepted"),
    [
        ("127.0.0.1", "IP:127.0.0.1", True),
        ("127.0.0.1", "IP:127.0.0.2", False),
        ("127.0.0.1", "DNS:127.0.0.1,IP:127.0.0.2", False),  # a name is not an address, as in Java
        ("localhost", "DNS:localhost", True),
        ("LOCALHOST", "DNS:localhost", True),
        ("localhost", "DNS:local,DNS:*.localhost,IP:127.0.0.1", False),
    ],
)
def test_names(host: str, names: str, is_accepted: bool, authority: Authority) -> None:
    issued = authority.issue("broker", names)

    async def test() -> None:
        found = await asked(host, issued, TlsSettings(authorities_path=str(authority.pem)))
        if is_accepted:
            assert found == ResponseReceived(1, b"answer")
        else:
            assert isinstance(found, PeerClosed) and found.closing is Closing.REFUSED and ANOTHER_NAME in found.reason
        any_name = TlsSettings(authorities_path=str(authority.pem), checks_name=False)
        assert await asked(host, issued, any_name) == ResponseReceived(1, b"answer")

    run(test)


def test_without_names_the_authority_still_counts(authority: Authority, tmp_path: Path) -> None:
    """An empty ssl.endpoint.identification.algorithm does not accept the certificates of others."""
    stranger = Authority(tmp_path).issue("broker")

    async def test() -> None:
        found = await asked("127.0.0.1", stranger, TlsSettings(authorities_path=str(authority.pem), checks_name=False))
        assert isinstance(found, PeerClosed) and found.closing is Closing.REFUSED
        assert "no known authority has signed its certificate" in found.reason

    run(test)


def test_versions_that_are_not_enabled_are_not_used(authority: Authority) -> None:
    """A server that has only others gets no request; asyncio's closes the connection without an alert."""
    issued = authority.issue("broker")
    settings = TlsSettings(authorities_path=str(authority.pem))

    async def test() -> None:
        for versions, most in (
            (settings.versions, ssl.TLSVersion.TLSv1_1),
            (("TLSv1.3",), ssl.TLSVersion.TLSv1_2),
        ):
            found = await asked("127.0.0.1", issued, settings._replace(versions=versions), most)
            assert isinstance(found, PeerClosed) and found.closing in (Closing.REFUSED, Closing.CLOSED_IN_HANDSHAKE)
        assert await asked("127.0.0.1", issued, settings, ssl.TLSVersion.TLSv1_2) == ResponseReceived(1, b"answer")

    run(test)
