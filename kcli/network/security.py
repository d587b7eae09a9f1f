"""What protects the connections of a client: TLS and SASL (Kafka: security.protocol).

    security.protocol  TLS (`tls`)  SASL (`sasl`)
    -----------------  -----------  -------------
    PLAINTEXT
    SSL                yes
    SASL_PLAINTEXT                  yes
    SASL_SSL           yes          yes

kcli.client.security_config makes the settings from properties, kcli.network.shell.tls the `Tls`. The parts that hold secrets
do not show them when they are printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kcli.network.shell.tls import Tls

PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"


class SaslSettings(NamedTuple):
    """How a client authenticates; `source` names the settings that the user and password, or the token, come from.

    `without_sasl` is the security.protocol of listeners that only lack SASL.
    """

    mechanism: str
    username: str = ""
    password: str = ""
    extensions: tuple[tuple[str, str], ...] = ()
    source: str = "sasl.username and sasl.password"
    without_sasl: str = "PLAINTEXT"

    def __repr__(self) -> str:
        return f"<SaslSettings {self.mechanism} {self.username!r}>"


class TlsSettings(NamedTuple):
    """Certificates as PEM: the text itself, or the path of a file. Without authorities, those of the system are accepted.

    The key may be in the file of the certificate. With `checks_name`, a broker's certificate must be for the broker's name.
    """

    authorities: str | None = None
    authorities_path: str | None = None
    certificate: str | None = None
    certificate_path: str | None = None
    key: str | None = None
    key_path: str | None = None
    key_password: str | None = None
    checks_name: bool = True
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")

    def __repr__(self) -> str:
        return f"<TlsSettings {self.authorities_path or 'without a path'}>"


class TokenSource(Protocol):
    """Where tokens for OAUTHBEARER come from: a function of the application, a file or a server."""

    def obtain(self) -> str:
        """Return a token; this may block. Raises any exception, whose text has no secret."""
        ...


class Security(NamedTuple):
    """The protection of all connections of a client."""

    tls: Tls | None = None
    sasl: SaslSettings | None = None
    tokens: TokenSource | None = None


PLAINTEXT = Security()
