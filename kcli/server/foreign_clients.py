"""Clients of other protocols that a PLAINTEXT listener recognises, and the log line for each.

protocol  recognised by                                  remedy
--------  ---------------------------------------------  -----------------------------------------------
TLS       a size that begins like a handshake record     security.protocol=PLAINTEXT in the client
SASL      SaslHandshake or SaslAuthenticate              security.protocol=PLAINTEXT in the client
HTTP      a size that is the beginning of a method       a browser or health check uses the wrong port
"""

from __future__ import annotations

from kcli.protocol.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE

_TLS_HANDSHAKE = 0x16
# Methods of HTTP/1, and the preface of HTTP/2 ("PRI * HTTP/2.0").
_HTTP_STARTS = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"CONN", b"OPTI", b"TRAC", b"PATC", b"PRI ")


def foreign_protocol_by_size(size: int) -> str | None:
    """Return the log text for a client that sent an impossible `size`; None if its protocol is not recognised."""
    first = size.to_bytes(4, "big", signed=True)
    if first[0] == _TLS_HANDSHAKE:
        return "it uses TLS, but the listener is PLAINTEXT: set security.protocol=PLAINTEXT in the client"
    if first in _HTTP_STARTS:
        return "it uses HTTP, but the listener serves the Kafka protocol; metrics are served at --metrics-port"
    return None


def foreign_protocol_by_api(api_key: int) -> str | None:
    """Return the log text for an API that shows that the client uses SASL; None for any other API."""
    if api_key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
        return "it uses SASL, but the listener is PLAINTEXT: set security.protocol=PLAINTEXT in the client"
    return None
