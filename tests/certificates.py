"""Certificates for tests of TLS, made by the program openssl: an authority, and certificates that it has signed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.conftest import missing

TEN_YEARS = 3650


class Issued(NamedTuple):
    """A certificate and its key: files in PEM, and one file with both."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """An authority in a directory of its own; `pem` is its certificate. The test is skipped without openssl."""

    def __init__(self, home: Path, name: str = "authority") -> None:
        if shutil.which("openssl") is None:
            missing("the program openssl is not on this machine: it makes the certificates of the test")
        self._home = home
        home.mkdir(parents=True, exist_ok=True)
        self.pem, self._key = home / f"{name}.pem", home / f"{name}.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", str(TEN_YEARS)),
            *("-subj", f"/CN={name}", "-keyout", str(self._key), "-out", str(self.pem)),
            *("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def issue(self, name: str, names: str = "IP:127.0.0.1", days: int = TEN_YEARS) -> Issued:
        """A certificate for `names` (subjectAltName); with negative days it has expired."""
        key, request, certificate = (self._home / f"{name}.{end}" for end in ("key", "csr", "crt"))
        extensions = self._home / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", str(key), "-out", str(request)),
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.pem), "-CAkey", str(self._key), "-CAcreateserial"),
            *("-days", str(days), "-extfile", str(extensions), "-out", str(certificate)),
        )
        both = self._home / f"{name}.pem"
        both.write_text(key.read_text() + certificate.read_text())
        return Issued(certificate, key, both)

    def encrypted(self, issued: Issued, password: str, *, for_java: bool = False) -> Path:
        """The key of a certificate, encrypted with a password; Java before 19 cannot read what openssl chooses."""
        path = issued.key.with_suffix(".encrypted.key")
        algorithm = ("-v1", "PBE-SHA1-3DES") if for_java else ("-v2", "aes256")
        _openssl("pkcs8", "-topk8", "-in", str(issued.key), "-out", str(path), *algorithm, "-passout", f"pass:{password}")
        return path


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
