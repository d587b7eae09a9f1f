"""The settings of TLS and SASL: Kafka's names, and those of librdkafka where they differ.

    setting                                      librdkafka's name                        value
    -------------------------------------------  ---------------------------------------  ------------------------------------
    security.protocol                                                                     PLAINTEXT, SSL, SASL_PLAINTEXT,
                                                                                          SASL_SSL
    ssl.truststore.location, .certificates       ssl.ca.location, ssl.ca.pem              PEM: a file, or the text
    ssl.keystore.location, .certificate.chain    ssl.certificate.location, .pem           PEM
    ssl.keystore.key                             ssl.key.pem, ssl.key.location            PEM; a keystore file may have both
    ssl.key.password                                                                      of the key, if it is encrypted
    ssl.endpoint.identification.algorithm                                                 https; nothing: any name
    ssl.enabled.protocols                                                                 TLSv1.2, TLSv1.3
    sasl.mechanism                               sasl.mechanisms                          PLAIN, SCRAM-SHA-256, SCRAM-SHA-512,
                                                                                          OAUTHBEARER
    sasl.jaas.config                             sasl.username, sasl.password             user and password
    sasl.oauthbearer.token.endpoint.url                                                   file:///PATH; http(s)://... for the
                                                                                          client credentials of OIDC

Settings that only choose parts of Java's implementation are accepted with the values that agree with this client. Others, and
settings that the client does not have, are refused: without them it would be less protected than configured. So are settings
without security.protocol, whose default would ignore them. The module is imported when one of the settings is given.

sasl.jaas.config is one entry of Java's login configuration, with the login modules of Kafka:

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="secret";

A value may be in double or single quotes, with backslashes before quotes in it. An error does not show the text, which has
a password.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from kcli.client.client_config import PROTOCOL, SECURITY_PREFIXES
from kcli.client.errors import ConfigError
from kcli.network.security import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, SaslSettings, TlsSettings

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
URL_ENCODE = "sasl.oauthbearer.header.urlencode"
_JAAS = "sasl.jaas.config"
_HANDLER = "sasl.login.callback.handler.class"
_TRUSTSTORE = "ssl.truststore.location"
_MODULES = {
    PLAIN: "PlainLoginModule",
    SCRAM_SHA_256: "ScramLoginModule",
    SCRAM_SHA_512: "ScramLoginModule",
    OAUTHBEARER: "OAuthBearerLoginModule",
}
_ALIASES = {
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.location",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "sasl.mechanisms": "sasl.mechanism",
}
_USED = (
    PROTOCOL,
    "ssl.truststore.type",
    _TRUSTSTORE,
    "ssl.truststore.certificates",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "ssl.enabled.protocols",
    "sasl.mechanism",
    _JAAS,
    "sasl.username",
    "sasl.password",
    TOKEN_URL,
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.scope",
    URL_ENCODE,
    _HANDLER,
)
_OAUTH = "org.apache.kafka.common.security.oauthbearer."
# Parts of Java's implementation, of Kerberos, and of the refresh of tokens, which each authentication obtains anew here. They
# have no effect, so only the values that mean what this client does are accepted: Kafka's defaults, and a few others.
_WITHOUT_EFFECT = {
    "ssl.protocol": ("TLSv1.3", "TLSv1.2", "TLS"),
    "ssl.keymanager.algorithm": ("SunX509", "PKIX"),
    "ssl.trustmanager.algorithm": ("PKIX", "SunX509"),
    "sasl.kerberos.kinit.cmd": ("/usr/bin/kinit",),
    "sasl.kerberos.min.time.before.relogin": ("60000",),
    "sasl.kerberos.ticket.renew.jitter": ("0.05",),
    "sasl.kerberos.ticket.renew.window.factor": ("0.8",),
    "sasl.login.refresh.buffer.seconds": ("300",),
    "sasl.login.refresh.min.period.seconds": ("60",),
    "sasl.login.refresh.window.factor": ("0.8",),
    "sasl.login.refresh.window.jitter": ("0.05",),
    "sasl.login.retry.backoff.max.ms": ("10000",),
    "sasl.login.retry.backoff.ms": ("100",),
    "sasl.oauthbearer.clock.skew.seconds": ("30",),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": ("3600000",),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": ("10000",),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": ("100",),
    "sasl.oauthbearer.jwt.retriever.class": tuple(
        f"{_OAUTH}{name}JwtRetriever" for name in ("Default", "ClientCredentials", "File")
    ),
    "sasl.oauthbearer.jwt.validator.class": tuple(f"{_OAUTH}{name}JwtValidator" for name in ("Default", "Client")),
    "sasl.oauthbearer.scope.claim.name": ("scope",),
    "sasl.oauthbearer.sub.claim.name": ("sub",),
}
# Kafka's own handler, which obtains a token from TOKEN_URL.
_TOKEN_HANDLER = "OAuthBearerLoginCallbackHandler"
_TOKEN_OPTIONS = ("clientId", "clientSecret", "scope")
_TOKEN = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([=;])|([^\s=;"']+))""", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_FLAGS = ("required", "requisite", "sufficient", "optional")
_EXAMPLE = (
    "sasl.jaas.config is not one entry such as: org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="USER" password="PASSWORD";'
)


class JaasEntry(NamedTuple):
    """A login module, by the last part of its name, and its options."""

    module: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"<JaasEntry {self.module}>"


def parse_jaas(text: str) -> JaasEntry:
    """Return the entry of a text. Raises ConfigError."""
    tokens: list[tuple[str, bool]] = []  # with whether it is a sign
    position, end = 0, len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None:
            raise ConfigError(_EXAMPLE)
        double, single, sign, word = found.groups()
        quoted = double if double is not None else single
        if quoted is not None:
            tokens.append((re.sub(r"\\(.)", lambda one: _ESCAPES.get(one[1], one[1]), quoted, flags=re.DOTALL), False))
        else:
            tokens.append((sign or word, sign is not None))
        position = found.end()
    if not tokens or tokens[-1] != (";", True):
        raise ConfigError(f"{_EXAMPLE} (it must end with a semicolon)")
    del tokens[-1]
    if (";", True) in tokens:
        raise ConfigError("sasl.jaas.config has several login modules: leave one of them")
    if len(tokens) < 2 or len(tokens) % 3 != 2 or tokens[1][0].lower() not in _FLAGS:
        raise ConfigError(_EXAMPLE)
    options = {}
    for start in range(2, len(tokens), 3):
        (name, name_is_sign), equals, (value, value_is_sign) = tokens[start : start + 3]
        if name_is_sign or equals != ("=", True) or value_is_sign:
            raise ConfigError(_EXAMPLE)
        options[name] = value
    return JaasEntry(tokens[0][0].rpartition(".")[2], options)


class TokenEndpoint(NamedTuple):
    """Where tokens come from: a file, or a server that gives one for an id and a secret (OAuth's client credentials)."""

    url: str
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""
    has_encoded_header: bool = False  # as RFC 6749 demands; Kafka does it only if it is configured

    @property
    def name(self) -> str:
        """The address without what may be a secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def __repr__(self) -> str:
        return f"<TokenEndpoint {self.name}>"


class SecurityConfig(NamedTuple):
    """What the settings say; `endpoint` is where the tokens of OAUTHBEARER come from if the application gives none."""

    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    endpoint: TokenEndpoint | None = None


def read_security(properties: Mapping[str, str], has_token_function: bool = False) -> SecurityConfig:
    """Read the settings of TLS and SASL among properties. Raises ConfigError."""
    settings = _settings(properties)
    unused = next((name for name, value in settings.items() if value), None)
    if unused is not None and PROTOCOL not in settings:
        raise ConfigError(
            f"{unused} is set and {PROTOCOL} is not, so that nothing would be protected: set {PROTOCOL} to one of "
            f"{', '.join(PROTOCOLS[1:])}, or to {PROTOCOLS[0]} for connections without protection"
        )
    protocol = settings.get(PROTOCOL, "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ConfigError(f"{PROTOCOL} must be one of {', '.join(PROTOCOLS)}, not {protocol!r}")
    has_tls = protocol.endswith("SSL")
    tls = _tls(settings) if has_tls else None
    if not protocol.startswith("SASL_"):
        return SecurityConfig(tls)
    sasl, endpoint = _sasl(settings, has_token_function)
    return SecurityConfig(tls, sasl._replace(without_sasl="SSL" if has_tls else "PLAINTEXT"), endpoint)


def _settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the settings by Kafka's names. Raises ConfigError for one that the client does not have."""
    found: dict[str, str] = {}
    for name, value in properties.items():
        if not name.startswith(SECURITY_PREFIXES):
            continue
        known = _ALIASES.get(name, name)
        if known in _USED:
            if found.setdefault(known, value) != value:
                raise ConfigError(f"{known} is set twice, also as {name}: leave one of them")
        elif name in _WITHOUT_EFFECT and value.strip() not in ("", *_WITHOUT_EFFECT[name]):
            accepted = " or ".join(_WITHOUT_EFFECT[name])
            raise ConfigError(
                f"{name}={value.strip()} has no effect in kcli's client, which acts as with {accepted}: remove it"
            )
        elif name not in _WITHOUT_EFFECT and value.strip():
            close = difflib.get_close_matches(name, (*_USED, *_ALIASES), 1, 0.85)
            hint = f"; did you mean {close[0]}?" if close else ": remove it if it is not needed"
            raise ConfigError(f"kcli's client does not support {name}{hint}")
    return {name: value if name.endswith(("password", "secret")) else value.strip() for name, value in found.items()}


# ---------------------------------------------------------------------------------------------------------------------- TLS


def _tls(settings: Mapping[str, str]) -> TlsSettings:
    for store in ("truststore", "keystore"):
        kind = settings.get(f"ssl.{store}.type", "")
        if kind.upper() not in ("", "PEM"):
            raise ConfigError(
                f"ssl.{store}.type is {kind}, and only PEM is supported: convert the file (docs/administration.md has the "
                f"commands), and set ssl.{store}.type=PEM"
            )
    check = settings.get("ssl.endpoint.identification.algorithm", "https")
    if check.lower() not in ("https", "none", ""):
        raise ConfigError(f"ssl.endpoint.identification.algorithm must be https or empty, not {check!r}")
    versions = tuple(one.strip() for one in settings.get("ssl.enabled.protocols", ",".join(TLS_VERSIONS)).split(","))
    versions = tuple(one for one in versions if one)
    if not versions or not set(versions) <= set(TLS_VERSIONS):
        raise ConfigError(f"ssl.enabled.protocols must be a list of {' and '.join(TLS_VERSIONS)}, not {','.join(versions)!r}")
    for path, text in (
        (_TRUSTSTORE, "ssl.truststore.certificates"),
        ("ssl.keystore.location", "ssl.keystore.certificate.chain"),
        ("ssl.key.location", "ssl.keystore.key"),
    ):
        if settings.get(path) and settings.get(text):
            raise ConfigError(f"{path} and {text} are both set: leave one of them")
        if "-----BEGIN" in settings.get(path, ""):  # it may be a key, which no message may show as the name of a file
            raise ConfigError(f"{path} is for the path of a file: set {text} to a text in PEM")
    if settings.get(_TRUSTSTORE) == "":
        raise ConfigError(f"{_TRUSTSTORE} is empty: name a file, or remove it to accept the authorities of the system")
    certificate, certificate_path = settings.get("ssl.keystore.certificate.chain"), settings.get("ssl.keystore.location")
    key, key_path = settings.get("ssl.keystore.key"), settings.get("ssl.key.location")
    if (key or key_path) and not (certificate or certificate_path):
        raise ConfigError(
            "a key of the client needs its certificate: set ssl.keystore.certificate.chain or ssl.keystore.location"
        )
    if certificate and not (key or key_path):
        raise ConfigError("the certificate of the client needs its key: set ssl.keystore.key or ssl.key.location")
    return TlsSettings(
        authorities=settings.get("ssl.truststore.certificates") or None,
        authorities_path=settings.get(_TRUSTSTORE) or None,
        certificate=certificate or None,
        certificate_path=certificate_path or None,
        key=key or None,
        key_path=key_path or None,
        key_password=settings.get("ssl.key.password"),
        checks_name=check.lower() == "https",
        versions=versions,
    )


# --------------------------------------------------------------------------------------------------------------------- SASL


def _sasl(settings: Mapping[str, str], has_token_function: bool) -> tuple[SaslSettings, TokenEndpoint | None]:
    mechanism = settings.get("sasl.mechanism", "")
    if not mechanism or mechanism == "GSSAPI":
        is_given = "is" if mechanism else "is not set, so that it is"
        raise ConfigError(
            f"sasl.mechanism {is_given} GSSAPI (Kerberos), which is not supported: set one of {', '.join(MECHANISMS)}"
        )
    if mechanism not in MECHANISMS:
        raise ConfigError(f"sasl.mechanism must be one of {', '.join(MECHANISMS)}, not {mechanism!r}")
    entry = parse_jaas(settings[_JAAS]) if settings.get(_JAAS) else None
    if entry is not None and entry.module != _MODULES[mechanism]:
        raise ConfigError(f"sasl.jaas.config has {entry.module}; the mechanism {mechanism} needs {_MODULES[mechanism]}")
    if mechanism == OAUTHBEARER:
        return _token_settings(settings, entry, has_token_function)
    if handler := settings.get(_HANDLER):
        raise ConfigError(f"{_HANDLER} is the class {handler} of Java, which kcli does not run: remove it")
    other = next((name for name in ("sasl.username", "sasl.password") if name in settings), None)
    if entry is not None and other is not None:
        raise ConfigError(f"{_JAAS} and {other} are both set: leave one of them")
    if entry is not None:
        username, password, source = entry.options.get("username"), entry.options.get("password"), _JAAS
    else:
        username, password = settings.get("sasl.username"), settings.get("sasl.password")
        source = "sasl.username and sasl.password"
    if not username or password is None:
        raise ConfigError(f"{mechanism} needs a user and a password: set sasl.username and sasl.password, or sasl.jaas.config")
    _check_texts(mechanism, username, password)
    is_delegated = entry is not None and entry.options.get("tokenauth", "").lower() == "true"
    extensions = (("tokenauth", "true"),) if is_delegated and mechanism != PLAIN else ()
    return SaslSettings(mechanism, username, password, extensions, source), None


def _check_texts(mechanism: str, username: str, password: str) -> None:
    """Raise ConfigError for characters that the mechanism cannot send."""
    try:
        (username + password).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            "the user or the password has half of a surrogate pair, which is not a character: check its escapes"
        ) from None
    if mechanism == PLAIN and "\0" in username + password:
        raise ConfigError("the user and the password for PLAIN cannot have the character NUL")


def _token_settings(
    settings: Mapping[str, str], entry: JaasEntry | None, has_token_function: bool
) -> tuple[SaslSettings, TokenEndpoint | None]:
    options = {} if entry is None else entry.options
    extensions = tuple(
        (name.removeprefix("extension_"), value) for name, value in options.items() if name.startswith("extension_")
    )
    for name in options:
        # Kafka has the TLS of the token server there, too: without it, kcli would trust servers that should not be trusted.
        if name not in _TOKEN_OPTIONS and not name.startswith("extension_"):
            raise ConfigError(f"{_JAAS}: kcli does not support the option {name} of OAuthBearerLoginModule: remove it")
    for name, value in extensions:
        if not re.fullmatch(r"[A-Za-z]+", name) or name == "auth" or not value.isprintable():
            raise ConfigError(f"sasl.jaas.config: extension_{name} is not an extension of OAUTHBEARER")
    if has_token_function:
        return SaslSettings(OAUTHBEARER, extensions=extensions, source="oauth_token of the client"), None
    handler = settings.get(_HANDLER, "")
    if handler and handler.rpartition(".")[2] != _TOKEN_HANDLER:
        raise ConfigError(f"{_HANDLER} is the class {handler} of Java: pass a function as oauth_token instead")
    url = settings.get(TOKEN_URL, "")
    if not url.startswith(("file:", "http://", "https://")):
        raise ConfigError(
            f"OAUTHBEARER needs a token: set {TOKEN_URL} to file:///PATH, whose file has the token, or to the http(s) address "
            "of an OAuth server, or pass a function as oauth_token"
        )
    if not (url.startswith("file:") or _is_plain_address(url)):
        raise ConfigError(f"{TOKEN_URL} must be an address without a user, a password and spaces, such as https://HOST/PATH")
    start = "sasl.oauthbearer.client.credentials.client"
    client_id = settings.get(f"{start}.id") or options.get("clientId", "")
    secret = settings.get(f"{start}.secret") or options.get("clientSecret", "")
    if not url.startswith("file:") and not (client_id and secret):
        raise ConfigError(f"{TOKEN_URL} needs {start}.id and {start}.secret")
    scope = settings.get("sasl.oauthbearer.scope") or options.get("scope", "")
    is_encoded = settings.get(URL_ENCODE, "false").strip().lower()
    if is_encoded not in ("true", "false"):
        raise ConfigError(f"{URL_ENCODE} must be true or false, not {is_encoded!r}")
    endpoint = TokenEndpoint(url, client_id, secret, scope, is_encoded == "true")
    return SaslSettings(OAUTHBEARER, extensions=extensions, source=TOKEN_URL), endpoint


def _is_plain_address(url: str) -> bool:
    """Return whether an address can be asked and shown: Python's errors of others have parts of it, such as a password."""
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return has_host and "@" not in parts.netloc and url.isascii() and url.isprintable() and " " not in url
