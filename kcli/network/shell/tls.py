"""TLS of a client, with Python's ssl: the context from certificates in PEM, and what its errors mean.

    error of the handshake, or of the first bytes after it     the connection
    ---------------------------------------------------------  ---------------------------------------------------------
    a certificate of the broker that is not accepted           REFUSED, with the reason of OpenSSL and the setting
    bytes that are not TLS                                     REFUSED: the listener has no TLS
    no version in common; an alert, except those that may      REFUSED; with TLS 1.3 an alert about the client's certificate
    pass; a broker less secure than OpenSSL allows             comes after the handshake
    the peer closes the connection                             CLOSED_IN_HANDSHAKE
    any other, such as a reset                                 ENDED

As in Java, each certificate of ssl.truststore.* is trusted by itself, also one that is not of an authority. A key that is given
as text is passed to OpenSSL, which reads files only, in memory or through a pipe: it is not written to a disk. A text may be on
one line, as of a properties file in which the ends of its lines are escaped; Kafka reads that, too (KIP-651).
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kcli.network.events import Closing
from kcli.network.security import TlsSettings

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_PEM = b"-----BEGIN "
_PEM_ENTRY = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----([A-Za-z0-9+/=\s]+)-----END \1-----")
_PEM_COLUMNS = 64
# A pipe has this much room at first.
MOST_PEM_BYTES = 16 * 1024
# Codes of X509_V_ERR_...
_NAMES_DIFFER = (62, 64)  # HOSTNAME_MISMATCH, IP_ADDRESS_MISMATCH
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
_NO_COMMON_VERSION = ("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE")
# Alerts of a broker that wants a certificate of the client, or another one.
_CLIENT_CERTIFICATE = (
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_REVOKED",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    "TLSV1_ALERT_UNKNOWN_CA",
    "TLSV1_ALERT_ACCESS_DENIED",
)
_ALERTS = ("SSLV3_ALERT_", "TLSV1_ALERT_", "TLSV13_ALERT_", "TLSV1_")  # the starts of their names
_PASSING_ALERTS = ("TLSV1_ALERT_INTERNAL_ERROR", "TLSV1_ALERT_USER_CANCELLED")
_WEAK = ("DH_KEY_TOO_SMALL", "UNSAFE_LEGACY_RENEGOTIATION_DISABLED", "WRONG_SIGNATURE_TYPE")
_NOTHING_IN_COMMON = "SSLV3_ALERT_HANDSHAKE_FAILURE"  # also of brokers that expect a certificate, with TLS 1.2
_CONVERT_TRUSTSTORE = "keytool -list -rfc -keystore FILE > authorities.pem"
_CONVERT_KEYSTORE = (
    "keytool -importkeystore -srckeystore FILE -destkeystore key.p12 -deststoretype PKCS12, then openssl pkcs12 -in key.p12 "
    "-out key.pem"
)


class TlsSettingsError(ValueError):
    """Settings of TLS that cannot be used; the message is one sentence, without a secret."""


class Tls:
    """The context of all connections of a client; a handshake may take `timeout_s`."""

    def __init__(self, settings: TlsSettings, timeout_s: float) -> None:
        """Raises TlsSettingsError, also for files that cannot be read."""
        self.context = _context(settings)
        self.timeout_s = timeout_s
        self._has_certificate = settings.certificate is not None or settings.certificate_path is not None

    def failure(self, error: Exception, is_connected: bool) -> tuple[str, Closing] | None:
        """Return what an error in the handshake, or after it, means; None if it is not one of TLS."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return self._certificate_failure(error), Closing.REFUSED
        if isinstance(error, ssl.SSLEOFError) or (isinstance(error, ssl.SSLError) and "EOF" in (error.reason or "")):
            if is_connected:
                return "it closed the connection", Closing.CLOSED
            return "it closed the connection during the TLS handshake", Closing.CLOSED_IN_HANDSHAKE
        if not isinstance(error, ssl.SSLError):
            return None
        reason = error.reason or "an error without a name"
        if is_connected and reason not in _CLIENT_CERTIFICATE:
            return f"TLS failed: {_words(reason)}", Closing.ENDED
        if reason in _NOT_TLS:
            return (
                "the listener does not use TLS: set security.protocol=PLAINTEXT, or SASL_PLAINTEXT, or use another port",
                Closing.REFUSED,
            )
        if reason == _NOTHING_IN_COMMON:
            return (
                "it has nothing in common with the client, or expects a certificate of the client: check ssl.enabled.protocols "
                "and ssl.keystore.location",
                Closing.REFUSED,
            )
        if reason in _NO_COMMON_VERSION:
            return "it has no version of TLS in common with ssl.enabled.protocols", Closing.REFUSED
        if reason in _CLIENT_CERTIFICATE:
            what = "refused the certificate of the client" if self._has_certificate else "expects a certificate of the client"
            return f"it {what} ({_words(reason)}): check ssl.keystore.location or ssl.certificate.location", Closing.REFUSED
        if reason in _WEAK:
            return f"it is less secure than OpenSSL allows ({_words(reason)}): check the TLS of the broker", Closing.REFUSED
        if reason.startswith(_ALERTS) and reason not in _PASSING_ALERTS:
            return f"it ended the TLS handshake with the alert {_words(reason)}: check the log of the broker", Closing.REFUSED
        return f"TLS failed: {_words(reason)}", Closing.ENDED

    @staticmethod
    def _certificate_failure(error: ssl.SSLCertVerificationError) -> str:
        code, said = error.verify_code, error.verify_message
        if code in _NAMES_DIFFER:
            return (
                f"its certificate is for another name ({said}): connect to a name of the certificate, or set "
                "ssl.endpoint.identification.algorithm to nothing to accept any name"
            )
        if code in _UNKNOWN_AUTHORITY:
            return (
                f"no known authority has signed its certificate ({said}): add the authority to ssl.truststore.location or "
                "ssl.ca.location"
            )
        if code == _EXPIRED:
            return "its certificate has expired: renew the certificate of the broker"
        if code == _NOT_YET_VALID:
            return "its certificate is not valid yet: check the clocks and the certificate of the broker"
        return f"its certificate is not accepted: {said}"


def _words(reason: str) -> str:
    """Return OpenSSL's name of an error as words."""
    for start in _ALERTS:
        reason = reason.removeprefix(start)
    return reason.lower().replace("_", " ")


def _context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_name
    versions = sorted(_VERSIONS[name] for name in settings.versions)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    if settings.authorities is None and settings.authorities_path is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        _load_authorities(context, settings)
    if settings.certificate is not None or settings.certificate_path is not None:
        _load_certificate(context, settings)
    return context


def _load_authorities(context: ssl.SSLContext, settings: TlsSettings) -> None:
    name = settings.authorities_path or "ssl.truststore.certificates"
    if settings.authorities_path is not None:
        _check_file(settings.authorities_path, _CONVERT_TRUSTSTORE)
    try:
        context.load_verify_locations(cafile=settings.authorities_path, cadata=_in_lines(settings.authorities or "") or None)
    except (ssl.SSLError, ValueError, TypeError):  # a TypeError: not ASCII
        raise TlsSettingsError(f"{name} has no certificate in PEM that can be read") from None


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Load the certificate and the key. Raises TlsSettingsError."""
    for path in (settings.certificate_path, settings.key_path):
        if path is not None:
            _check_file(path, _CONVERT_KEYSTORE)
    name = settings.certificate_path or "ssl.keystore.certificate.chain"
    is_asked = False

    def password() -> str:
        # Without it OpenSSL would ask on the terminal.
        nonlocal is_asked
        is_asked = True
        return settings.key_password or ""

    try:
        with (
            _as_path(settings.certificate, settings.certificate_path) as certificate,
            _as_path(settings.key, settings.key_path) as key,
        ):
            context.load_cert_chain(certificate or "", key, password)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        reason = getattr(error, "reason", None) or ""
        if is_asked and settings.key_password is None:
            what = "the key is encrypted: set ssl.key.password"
        elif is_asked:
            what = "the key cannot be decrypted: check ssl.key.password"
        elif reason == "KEY_VALUES_MISMATCH":
            what = "the key is not that of the certificate"
        else:
            what = "it needs a certificate and its key in PEM; the key may be in a file of its own (ssl.key.location)"
        raise TlsSettingsError(f"{name} cannot be used: {what}") from None


def _check_file(path: str, convert: str) -> None:
    """Raise TlsSettingsError for a file that is not PEM."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise TlsSettingsError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from None
    except ValueError as error:
        raise TlsSettingsError(f"{path} cannot be read: {error}") from None
    if _PEM not in data:
        raise TlsSettingsError(f"{path} is not a PEM file; JKS and PKCS12 are not supported: convert it ({convert})")


def _in_lines(text: str) -> str:
    """Return PEM as OpenSSL reads it: what is between the marks in lines of 64 characters."""

    def entry(found: re.Match[str]) -> str:
        body = "".join(found[2].split())
        lines = [body[start : start + _PEM_COLUMNS] for start in range(0, len(body), _PEM_COLUMNS)]
        return "\n".join([f"-----BEGIN {found[1]}-----", *lines, f"-----END {found[1]}-----", ""])

    return _PEM_ENTRY.sub(entry, text)


@contextmanager
def _as_path(text: str | None, path: str | None) -> Iterator[str | None]:
    """Return a path from which a text can be read once."""
    if text is None:
        yield path
        return
    data = _in_lines(text).encode()
    if len(data) > MOST_PEM_BYTES:
        raise ValueError(f"more than {MOST_PEM_BYTES} bytes")
    if hasattr(os, "memfd_create"):  # of Linux, whose pipes may have room for one page only, for users who have many
        reading = writing = os.memfd_create("pem")
    else:
        reading, writing = os.pipe()
    try:
        os.write(writing, data)
        if writing != reading:
            os.close(writing)
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)
