"""The SASL authentication of one connection: Kafka's requests around an exchange (KIP-43, KIP-152, KIP-368).

    step                              then
    --------------------------------  ----------------------------------------------------------------------------------
    OAUTHBEARER                       a token is obtained first
    SaslHandshake                     names the mechanism; another one is an error that names those of the broker
    SaslAuthenticate, repeated        the bytes of the exchange, until it is complete
    complete                          `done(lifetime_ms, now_ms)`: after that time the broker closes the connection, unless
                                      the client authenticates again; 0 for never
    an error of the broker, a token   `refused(reason, now_ms)`: another attempt would end in the same way
    that cannot be obtained, bytes
    that are no answer

The end of the connection ends it without a call, after `abandon`.

Exchanges are the mechanisms: the bytes that the client sends, and the checks of the server's bytes, without input and output.

    mechanism       messages of the client                     the server shows that it knows the password
    --------------  -----------------------------------------  ---------------------------------------------------
    PLAIN           the user and the password (RFC 4616)       no
    SCRAM-SHA-256,  the user and a nonce; a proof (RFC 5802,   by a signature, without which the exchange fails
    SCRAM-SHA-512   RFC 7677)
    OAUTHBEARER     a token (RFC 7628); 0x01 after a refusal   no

An exchange is `begin()`, then `answer(challenge)` until that returns None. It serves one authentication.

As in Kafka, names and passwords are UTF-8 without SASLprep (RFC 4013): Kafka's broker derives its keys from the same bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Protocol

from kcli.log.rng import Random
from kcli.network.events import TokenObtained
from kcli.network.peer_request import Answer, AnswerCallback, PeerFailure
from kcli.network.security import OAUTHBEARER, PLAIN, SaslSettings
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from kcli.protocol.message import Message

NONCE_BYTES = 24
MIN_ITERATIONS = 4096  # RFC 5802; Kafka's client refuses less, too
# A broker of Kafka takes 16384 at most. Each million costs half a second, in which the client does nothing else.
MAX_ITERATIONS = 200_000
MOST_SHOWN = 300  # characters of a server's text
_NUL, _SEPARATOR = "\0", "\x01"
# Base64url and the characters of RFC 6750: nothing that would end the field.
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")


class SaslError(Exception):
    """An exchange that cannot go on; the message is a clause about the server or the settings, without a secret."""


class SaslExchange(Protocol):
    """One authentication."""

    def begin(self) -> bytes:
        """Return the first message. Raises SaslError for settings that the mechanism cannot represent."""
        ...

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the next message, None if the exchange is complete. Raises SaslError for what the server may not send."""
        ...


def make_exchange(settings: SaslSettings, rng: Random, token: str = "") -> SaslExchange:
    """Return the exchange of a mechanism; `rng` must be one that cannot be guessed."""
    if settings.mechanism == PLAIN:
        return PlainExchange(settings.username, settings.password)
    if settings.mechanism == OAUTHBEARER:
        return OAuthBearerExchange(token, settings.extensions)
    nonce = base64.b64encode(rng.randbytes(NONCE_BYTES)).decode()
    return ScramExchange(settings.mechanism, settings.username, settings.password, nonce, settings.extensions)


def shown(text: str) -> str:
    """Return a server's text as it may be printed: on one line, and not too long."""
    line = "".join(character if character.isprintable() else " " for character in text[: MOST_SHOWN + 1])
    return line if len(line) <= MOST_SHOWN else line[:MOST_SHOWN] + "..."


class PlainExchange:
    """PLAIN: the password as it is."""

    def __init__(self, username: str, password: str) -> None:
        self._username, self._password = username, password

    def begin(self) -> bytes:
        """Return the user and the password. Raises SaslError."""
        if _NUL in self._username + self._password:
            raise SaslError("PLAIN cannot represent a user or password with the character NUL")
        return f"{_NUL}{self._username}{_NUL}{self._password}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """Return None: the server has accepted the first message."""
        return None


class OAuthBearerExchange:
    """OAUTHBEARER: a token, and Kafka's extensions (KIP-342)."""

    def __init__(self, token: str, extensions: tuple[tuple[str, str], ...] = ()) -> None:
        self._token, self._extensions = token, extensions
        self._is_refused = False

    def begin(self) -> bytes:
        """Return the token. Raises SaslError for one that is not a token."""
        if not _TOKEN.fullmatch(self._token):
            raise SaslError("the token for OAUTHBEARER is empty, or has characters that no token has")
        pairs = [("auth", f"Bearer {self._token}"), *self._extensions]
        return ("n,," + "".join(f"{_SEPARATOR}{name}={value}" for name, value in pairs) + 2 * _SEPARATOR).encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """Return None, or 0x01 after a refusal: the next answer of the server must be an error. Raises SaslError."""
        if self._is_refused:
            raise SaslError("it refused the token for OAUTHBEARER, and did not end the authentication")
        self._is_refused = bool(challenge)
        return _SEPARATOR.encode() if challenge else None


class ScramExchange:
    """SCRAM-SHA-256 and SCRAM-SHA-512 without channel binding; `nonce` is used once."""

    def __init__(
        self, mechanism: str, username: str, password: str, nonce: str, extensions: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self._hash = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first = ",".join([f"n={name}", f"r={nonce}", *(f"{key}={value}" for key, value in extensions)])
        self._signature: bytes | None = None  # of the server; known when the proof is sent

    def begin(self) -> bytes:
        """Return the user and the nonce."""
        return f"n,,{self._first}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the proof, then None if the server's signature is right. Raises SaslError."""
        if self._signature is None:
            return self._prove(challenge)
        fields = self._fields(challenge)
        if "e" in fields:
            raise SaslError(f"it ends {self._mechanism} with the error {shown(fields['e'])!r}")
        if not hmac.compare_digest(self._bytes(fields, "v"), self._signature):
            raise SaslError(f"its signature of {self._mechanism} is wrong: it does not know the password of the user")
        return None

    def _prove(self, challenge: bytes) -> bytes:
        fields = self._fields(challenge)
        if "e" in fields:
            raise SaslError(f"it ends {self._mechanism} with the error {shown(fields['e'])!r}")
        if "m" in fields:
            raise SaslError(f"it asks for an extension of {self._mechanism} that kcli does not have")
        nonce, salt = fields.get("r", ""), self._bytes(fields, "s")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise SaslError(f"its answer to {self._mechanism} is not for this connection: the nonce is another one")
        count = fields.get("i", "")
        iterations = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else -1
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise SaslError(
                f"it asks for {shown(count)!r} iterations of {self._mechanism}; kcli computes from {MIN_ITERATIONS} to "
                f"{MAX_ITERATIONS}: create the credential of the user again"
            )
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._first},{challenge.decode()},{without_proof}".encode()
        salted = hashlib.pbkdf2_hmac(self._hash, self._password.encode(), salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        proof_mask = self._hmac(hashlib.new(self._hash, client_key).digest(), message)
        proof = bytes(one ^ other for one, other in zip(client_key, proof_mask))
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)

    def _fields(self, challenge: bytes) -> dict[str, str]:
        """Return the fields of a message by their letters. Raises SaslError."""
        try:
            parts = [part.partition("=") for part in challenge.decode().split(",")]
        except UnicodeDecodeError:
            parts = []
        fields = {name: value for name, equals, value in parts if equals and len(name) == 1}
        if not parts or len(fields) < len(parts):  # also a letter that is there twice
            raise SaslError(f"it sent {len(challenge)} bytes that are not a message of {self._mechanism}")
        return fields

    def _bytes(self, fields: dict[str, str], name: str) -> bytes:
        """Return the bytes of a field in base64. Raises SaslError."""
        try:
            found = base64.b64decode(fields.get(name, ""), validate=True)
        except (binascii.Error, ValueError):
            found = b""
        if not found:
            raise SaslError(f"its message of {self._mechanism} does not have the field {name}")
        return found


# Sends a request of an API on the connection; False if the peer does not have the API.
Ask = Callable[[int, Message, AnswerCallback], bool]


class SaslLogin:
    """One authentication; `obtain` has a token obtained."""

    def __init__(
        self,
        settings: SaslSettings,
        rng: Random,
        ask: Ask,
        obtain: Callable[[Callable[[TokenObtained, int], None]], None],
        done: Callable[[int, int], None],
        refused: Callable[[str, int], None],
    ) -> None:
        self._settings = settings
        self._rng = rng
        self._ask = ask
        self._obtain = obtain
        self._done = done
        self._refused = refused
        self._exchange: SaslExchange | None = None
        self._refusal = ""  # what the broker said of a token
        self._is_over = False

    def begin(self, now_ms: int) -> None:
        """Send SaslHandshake, or obtain a token first."""
        if self._settings.mechanism == OAUTHBEARER:
            self._obtain(self._token_obtained)
        else:
            self._shake_hands("", now_ms)

    def abandon(self) -> None:
        """Take the end of the connection: no callback is called after it."""
        self._is_over = True

    def _refuse(self, reason: str, now_ms: int) -> None:
        self._is_over = True
        self._refused(reason, now_ms)

    def _token_obtained(self, event: TokenObtained, now_ms: int) -> None:
        if self._is_over:
            return
        if event.token is None:
            self._refuse(f"no token for OAUTHBEARER was obtained ({self._settings.source}): {shown(event.reason)}", now_ms)
        else:
            self._shake_hands(event.token, now_ms)

    def _shake_hands(self, token: str, now_ms: int) -> None:
        self._exchange = make_exchange(self._settings, self._rng, token)
        message = API_KEYS[SASL_HANDSHAKE].request.new(mechanism=self._settings.mechanism)
        if not self._ask(SASL_HANDSHAKE, message, self._hands_shaken):
            self._refuse(self._without_sasl, now_ms)

    @property
    def _without_sasl(self) -> str:
        return f"the listener does not use SASL: set security.protocol={self._settings.without_sasl}, or use another port"

    def _hands_shaken(self, answer: Answer, now_ms: int) -> None:
        if self._is_over or isinstance(answer, PeerFailure):
            return
        code = answer.error_code
        if not code:
            self._send(None, now_ms)
        elif code == error_codes.UNSUPPORTED_SASL_MECHANISM:
            offered = shown(", ".join(answer.mechanisms)) or "none"
            self._refuse(
                f"the listener does not offer the SASL mechanism {self._settings.mechanism}; it offers {offered}: set "
                "sasl.mechanism",
                now_ms,
            )
        elif code == error_codes.ILLEGAL_SASL_STATE:
            self._refuse(self._without_sasl, now_ms)
        else:
            self._refuse(f"it answered SaslHandshake with {error_codes.NAMES.get(code, code)}", now_ms)

    def _send(self, challenge: bytes | None, now_ms: int, lifetime_ms: int = 0) -> None:
        """Send the message after a challenge, or the first one."""
        assert self._exchange is not None
        try:
            message = self._exchange.begin() if challenge is None else self._exchange.answer(challenge)
        except SaslError as error:
            self._refuse(str(error), now_ms)
            return
        if message is None:
            self._is_over = True
            self._done(lifetime_ms, now_ms)
            return
        if challenge and self._settings.mechanism == OAUTHBEARER:
            self._refusal = shown(challenge.decode(errors="replace"))
        if not self._ask(SASL_AUTHENTICATE, API_KEYS[SASL_AUTHENTICATE].request.new(auth_bytes=message), self._authenticated):
            self._refuse("it does not have SaslAuthenticate: brokers before Kafka 1.0 are not supported", now_ms)

    def _authenticated(self, answer: Answer, now_ms: int) -> None:
        if self._is_over or isinstance(answer, PeerFailure):
            return
        if not answer.error_code:
            self._send(bytes(answer.auth_bytes), now_ms, answer.session_lifetime_ms)
            return
        name = error_codes.NAMES.get(answer.error_code, answer.error_code)
        reason = shown(answer.error_message or "") or name
        said = f" ({self._refusal})" if self._refusal and self._refusal != reason else ""
        who = f" of the user {self._settings.username!r}" if self._settings.username else ""
        self._refuse(
            f"it refused the authentication{who} with {self._settings.mechanism}: {reason}{said}; check "
            f"{self._settings.source}",
            now_ms,
        )
