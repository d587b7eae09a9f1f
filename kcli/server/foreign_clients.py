"""Which clients a plain listener recognises though they speak another protocol, and what the log says of them.

a client speaks  recognised by                                  what to do
---------------  ---------------------------------------------  -----------------------------------------------
TLS              a size that begins as a handshake record does  security.protocol=PLAINTEXT in the client
SASL             SaslHandshake or SaslAuthenticate              the same
HTTP             a size that is the beginning of a method       a browser or health check is at the wrong port
"""

from __future__ import annotations

from kcli.protocol.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE

_TLS_HANDSHAKE = 0x16
# Methods of HTTP/1, and the preface of HTTP/2 ("PRI * HTTP/2.0").
_HTTP_STARTS = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"CONN", b"OPTI", b"TRAC", b"PATC", b"PRI ")


def foreign_protocol_by_size(size: int) -> str | None:
    """Return what a client speaks that states a request of an impossible `size`, as a sentence for the log; None if unknown."""
    first = size.to_bytes(4, "big", signed=True)
    if first[0] == _TLS_HANDSHAKE:
        return "it speaks TLS, and this listener is plain; give the client security.protocol=PLAINTEXT"
    if first in _HTTP_STARTS:
        return "it speaks HTTP, and this listener speaks Kafka's protocol; metrics are served at --metrics-port"
    return None


def foreign_protocol_by_api(api_key: int) -> str | None:
    """Return the same of a request of an API that a plain listener does not serve."""
    if api_key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
        return "it wants to log in by SASL, and this listener is plain; give the client security.protocol=PLAINTEXT"
    return None
