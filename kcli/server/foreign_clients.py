"""Clients of other protocols that a PLAINTEXT listener recognises, and the log line for each.

protocol  recognised by                                  remedy
--------  ---------------------------------------------  -----------------------------------------------
TLS       a size that begins like a handshake record     security.protocol=PLAINTEXT in the client
HTTP      a size that is the beginning of a method       a browser or health check uses the wrong port

A client that uses SASL is answered instead: kcli.server.apis.security.
"""

from __future__ import annotations

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
