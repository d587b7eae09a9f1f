"""The SASL authentication of one connection: Kafka's requests around an exchange (KIP-43, KIP-152, KIP-368).

    step                              then
    --------------------------------  ----------------------------------------------------------------------------------
    OAUTHBEARER                       a token is obtained first
    SaslHandshake                     names the mechanism; another one is an error that names those of the broker
    SaslAuthenticate, repeated        the bytes of kcli.network.sasl_exchanges, until the exchange is complete
    complete                          `done(lifetime_ms, now_ms)`: after that time the broker closes the connection, unless
                                      the client authenticates again; 0 for never
    an error of the broker, a token   `refused(reason, now_ms)`: another attempt would end in the same way
    that cannot be obtained, bytes
    that are no answer

The end of the connection ends it without a call, after `abandon`.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.log.rng import Random
from kcli.network.events import TokenObtained
from kcli.network.peer_request import Answer, AnswerCallback, PeerFailure
from kcli.network.sasl_exchanges import SaslError, SaslExchange, make_exchange, shown
from kcli.network.security import OAUTHBEARER, SaslSettings
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from kcli.protocol.message import Message

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
