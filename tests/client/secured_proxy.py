"""A proxy on 127.0.0.1 that gives a broker without security a listener with TLS and SASL.

with SecuredProxy(certificate, users={"alice": "secret"}) as proxy:
    with LiveServer(home, f"advertised.listeners=PLAINTEXT://127.0.0.1:{proxy.port}") as server:
        proxy.target = lambda: server.port

It answers ApiVersions, SaslHandshake and SaslAuthenticate itself (PLAIN and SCRAM-SHA-256), and passes on the rest. `spoil` may
change the bytes of its answers to SaslAuthenticate.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from kcli.protocol.apis import API_KEYS, API_VERSIONS, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from kcli.protocol.error_codes import ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED, UNSUPPORTED_SASL_MECHANISM
from kcli.protocol.framing import encode_response, read_request_header, read_response_header
from tests.certificates import Issued
from tests.frame_proxy import TcpProxy

MECHANISMS = ("PLAIN", "SCRAM-SHA-256")
ITERATIONS = 4096


class SecuredProxy(TcpProxy):
    """Without a certificate there is no TLS, without users no SASL; `logins` counts authentications."""

    def __init__(self, issued: Issued | None = None, users: Mapping[str, str] | None = None, session_ms: int = 0) -> None:
        self.spoil: Callable[[bytes], bytes] = lambda answer: answer
        self.logins = 0
        self.connections = 0
        self._users = users
        self._session_ms = session_ms
        self._context: ssl.SSLContext | None = None
        if issued is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(issued.both)
        super().__init__(lambda: 0)

    def serve(self, client: socket.socket) -> None:
        """Serve the security of one connection."""
        if self._context is not None:
            client = self._context.wrap_socket(client, server_side=True)
            self.keep(client)
        broker = self.connect()
        self.connections += 1
        with contextlib.suppress(EOFError):
            _Session(self, client, broker).run()

    def users(self) -> Mapping[str, str] | None:
        return self._users

    @property
    def session_ms(self) -> int:
        return self._session_ms


class _Session:
    """One connection: requests one after the other, so that none of its answers overtakes another."""

    def __init__(self, proxy: SecuredProxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._broker = broker
        self._is_trusted = proxy.users() is None
        self._mechanism = ""
        self._scram: _ScramServer | None = None

    def run(self) -> None:
        try:
            while True:
                frame = _read_frame(self._client)
                key, version, correlation_id, _, position = read_request_header(frame)
                if key == API_VERSIONS:
                    self._versions(frame, version, correlation_id)
                elif key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
                    message, _ = API_KEYS[key].request.decode(frame, version, position)
                    take = self._shake_hands if key == SASL_HANDSHAKE else self._authenticate
                    response = API_KEYS[key].response.new(**take(message))
                    self._client.sendall(encode_response(correlation_id, API_KEYS[key], version, response))
                elif self._is_trusted:
                    has_answer = key != PRODUCE or API_KEYS[key].request.decode(frame, version, position)[0].acks != 0
                    self._pass_on(frame, has_answer)
                else:
                    return  # as Kafka's broker does
        finally:
            for one in (self._client, self._broker):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, frame: bytes, has_answer: bool) -> None:
        self._broker.sendall(len(frame).to_bytes(4, "big") + frame)
        if has_answer:
            answer = _read_frame(self._broker)
            self._client.sendall(len(answer).to_bytes(4, "big") + answer)

    def _versions(self, frame: bytes, version: int, correlation_id: int) -> None:
        self._broker.sendall(len(frame).to_bytes(4, "big") + frame)
        answer = _read_frame(self._broker)
        api = API_KEYS[API_VERSIONS]
        _, position = read_response_header(answer, api, version)
        message, _ = api.response.decode(answer, version, position)
        of_api = api.response.classes["ApiVersion"]
        for key, highest in ((SASL_HANDSHAKE, 1), (SASL_AUTHENTICATE, 2)):
            message.api_keys.append(of_api(api_key=key, min_version=0, max_version=highest))
        self._client.sendall(encode_response(correlation_id, api, version, message))

    def _shake_hands(self, message: Any) -> dict[str, Any]:
        if self._proxy.users() is None:
            return {"error_code": ILLEGAL_SASL_STATE}
        self._mechanism, self._scram = message.mechanism, None
        code = 0 if message.mechanism in MECHANISMS else UNSUPPORTED_SASL_MECHANISM
        return {"error_code": code, "mechanisms": list(MECHANISMS)}

    def _authenticate(self, message: Any) -> dict[str, Any]:
        users = self._proxy.users() or {}
        if self._mechanism == "PLAIN":
            _, user, password = bytes(message.auth_bytes).decode().split("\0")
            return self._end(users.get(user) == password, b"")
        if self._scram is None:
            self._scram = _ScramServer(users)
            return {"auth_bytes": self._proxy.spoil(self._scram.challenge(bytes(message.auth_bytes)))}
        return self._end(*self._scram.finish(bytes(message.auth_bytes)))

    def _end(self, is_right: bool, answer: bytes) -> dict[str, Any]:
        if not is_right:
            return {"error_code": SASL_AUTHENTICATION_FAILED, "error_message": "wrong"}
        self._is_trusted = True
        self._proxy.logins += 1
        return {"auth_bytes": self._proxy.spoil(answer), "session_lifetime_ms": self._proxy.session_ms}


class _ScramServer:
    """The server's side of SCRAM-SHA-256."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self._first = b""
        self._challenge = b""
        self._salted = b""

    def challenge(self, message: bytes) -> bytes:
        self._first = message.removeprefix(b"n,,")
        fields = dict(part.split("=", 1) for part in self._first.decode().split(","))
        password = self._users.get(fields["n"], "")
        self._salted = hashlib.pbkdf2_hmac("sha256", password.encode(), b"salt", ITERATIONS)
        self._challenge = f"r={fields['r']}server,s={base64.b64encode(b'salt').decode()},i={ITERATIONS}".encode()
        return self._challenge

    def finish(self, message: bytes) -> tuple[bool, bytes]:
        without_proof, _, proof = message.rpartition(b",p=")
        signed = b",".join((self._first, self._challenge, without_proof))
        stored = hashlib.sha256(hmac.digest(self._salted, b"Client Key", "sha256")).digest()
        mask = hmac.digest(stored, signed, "sha256")
        key = bytes(one ^ other for one, other in zip(base64.b64decode(proof), mask, strict=True))
        signature = hmac.digest(hmac.digest(self._salted, b"Server Key", "sha256"), signed, "sha256")
        return hashlib.sha256(key).digest() == stored, b"v=" + base64.b64encode(signature)


def _read_frame(source: socket.socket) -> bytes:
    return _read(source, int.from_bytes(_read(source, 4), "big"))


def _read(source: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        part = source.recv(min(size - len(got), 2**20))
        if not part:
            raise EOFError
        got += part
    return bytes(got)
