"""Protects the certificates of a client: files and texts in PEM, encrypted keys, and a sentence for what cannot be used."""

from __future__ import annotations

import fcntl
import os
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from kcli.network.events import Closing
from kcli.network.security import TlsSettings
from kcli.network.shell.tls import MOST_PEM_BYTES, Tls, TlsSettingsError
from tests.certificates import Authority, Issued

PASSWORD = "hush-hush"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue("client")


def one_line(text: str) -> str:
    """PEM as it comes from a properties file whose lines end with a space and a backslash."""
    return text.replace("\n", " ")


def encrypted(authority: Authority, issued: Issued) -> str:
    return authority.encrypted(issued, PASSWORD).read_text()


def test_files_and_texts(authority: Authority, issued: Issued, tmp_path: Path) -> None:
    """A text is not written to a file, and leaves no descriptor open."""
    certificate, key = issued.certificate.read_text(), issued.key.read_text()
    locked = tmp_path / "locked.pem"
    locked.write_text(certificate + encrypted(authority, issued))
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for settings in (
        TlsSettings(authorities_path=str(authority.pem), certificate_path=str(issued.both)),
        TlsSettings(authorities=authority.pem.read_text(), certificate_path=str(issued.certificate), key_path=str(issued.key)),
        TlsSettings(certificate=certificate, key=key),
        TlsSettings(authorities=one_line(authority.pem.read_text()), certificate=one_line(certificate * 2), key=one_line(key)),
        TlsSettings(certificate=certificate, key_path=str(issued.key)),
        TlsSettings(certificate=certificate, key=encrypted(authority, issued), key_password=PASSWORD),
        TlsSettings(certificate_path=str(locked), key_password=PASSWORD),
    ):
        context = Tls(settings, 1).context
        assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname
        if settings.authorities or settings.authorities_path:
            assert context.cert_store_stats() == {"x509": 1, "crl": 0, "x509_ca": 1}
    assert not before or len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="the size of a pipe can be set on Linux only")
def test_pipes_may_be_small(authority: Authority, issued: Issued, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page each, as Linux gives to users who have many: a text that does not fit must not block for ever."""
    make_pipe = os.pipe

    def small_pipe() -> tuple[int, int]:
        reading, writing = make_pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        return reading, writing

    monkeypatch.setattr(os, "pipe", small_pipe)
    certificate, key = issued.certificate.read_text() * 12, issued.key.read_text()
    assert 4096 < len(certificate) < MOST_PEM_BYTES
    ended = threading.Event()

    def load() -> None:
        Tls(TlsSettings(certificate=certificate, key=key), 1)
        with pytest.raises(TlsSettingsError):  # OpenSSL does not read the rest of it
            Tls(TlsSettings(certificate="x" * MOST_PEM_BYTES, key=key), 1)
        ended.set()

    threading.Thread(target=load, daemon=True).start()
    assert ended.wait(10)


def test_names_and_versions() -> None:
    context = Tls(TlsSettings(checks_name=False, versions=("TLSv1.3",)), 1).context
    assert context.verify_mode == ssl.CERT_REQUIRED and not context.check_hostname
    assert (context.minimum_version, context.maximum_version) == (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3)
    assert Tls(TlsSettings(), 1).context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_what_cannot_be_used(authority: Authority, issued: Issued, tmp_path: Path) -> None:
    certificate, other = issued.certificate.read_text(), authority.issue("other")
    locked = encrypted(authority, issued)
    # A pipe can be read once only, and OpenSSL reads the text again to say what is wrong.
    in_memory = hasattr(os, "memfd_create")
    what_differs = "the key is not that of the certificate" if in_memory else "it needs a certificate and its key in PEM"
    store = tmp_path / "client.p12"
    command = ["openssl", "pkcs12", "-export", "-in", str(issued.both), "-out", str(store), "-passout", f"pass:{PASSWORD}"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    for settings, sentence in (
        (
            TlsSettings(authorities_path=str(store)),
            "client.p12 is not a PEM file; JKS and PKCS12 are not supported: convert it",
        ),
        (TlsSettings(certificate_path=str(store)), "(keytool -importkeystore -srckeystore FILE"),
        (TlsSettings(authorities_path=str(tmp_path)), "cannot be read: Is a directory"),
        (TlsSettings(authorities_path=str(issued.key)), "client.key has no certificate in PEM that can be read"),
        (TlsSettings(certificate_path=str(issued.certificate)), "it needs a certificate and its key in PEM"),
        (TlsSettings(certificate=certificate, key=locked), "the key is encrypted: set ssl.key.password"),
        (
            TlsSettings(certificate=certificate, key=locked, key_password="no"),
            "the key cannot be decrypted: check ssl.key.password",
        ),
        (TlsSettings(certificate=certificate, key=other.key.read_text()), what_differs),
        (
            TlsSettings(certificate_path=str(issued.certificate), key_path=str(other.key)),
            "the key is not that of the certificate",
        ),
        (TlsSettings(certificate="x" * (MOST_PEM_BYTES + 1), key="x"), "ssl.keystore.certificate.chain cannot be used"),
    ):
        with pytest.raises(TlsSettingsError) as raised:
            Tls(settings, 1)
        assert sentence in str(raised.value) and PASSWORD not in str(raised.value), raised.value


@pytest.mark.parametrize(
    ("reason", "closing", "sentence"),
    [
        ("WRONG_VERSION_NUMBER", Closing.REFUSED, "the listener does not use TLS"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", Closing.REFUSED, "no version of TLS in common with ssl.enabled.protocols"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", Closing.REFUSED, "it expects a certificate of the client (certificate required)"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", Closing.REFUSED, "it has nothing in common with the client, or expects"),
        ("UNEXPECTED_EOF_WHILE_READING", Closing.CLOSED_IN_HANDSHAKE, "during the TLS handshake"),
        ("TLSV1_UNRECOGNIZED_NAME", Closing.REFUSED, "it ended the TLS handshake with the alert unrecognized name: check the"),
        ("TLSV1_ALERT_DECRYPT_ERROR", Closing.REFUSED, "with the alert decrypt error"),
        ("TLSV1_ALERT_INTERNAL_ERROR", Closing.ENDED, "TLS failed: internal error"),
        ("TLSV1_ALERT_USER_CANCELLED", Closing.ENDED, "TLS failed: user cancelled"),
        ("DH_KEY_TOO_SMALL", Closing.REFUSED, "it is less secure than OpenSSL allows (dh key too small)"),
        ("BAD_RECORD_TYPE", Closing.ENDED, "TLS failed: bad record type"),
    ],
)
def test_what_errors_mean(reason: str, closing: Closing, sentence: str) -> None:
    error = ssl.SSLError(1, "")
    error.reason = reason
    tls = Tls(TlsSettings(), 1)
    found = tls.failure(error, is_connected=False)
    assert found is not None and sentence in found[0] and found[1] is closing
    later = tls.failure(error, is_connected=True)
    assert later is not None
    if closing is Closing.CLOSED_IN_HANDSHAKE:
        assert later == ("it closed the connection", Closing.CLOSED)
    elif "CERTIFICATE" in reason:
        assert later == found
    else:
        assert later[0].startswith("TLS failed: ") and later[1] is Closing.ENDED
    assert tls.failure(ConnectionResetError(), is_connected=False) is None
