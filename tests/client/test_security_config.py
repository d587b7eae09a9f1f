"""Protects the settings of TLS and SASL: what each means, and a sentence without the secret for those that cannot be."""

from __future__ import annotations

import asyncio
import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kcli.client import Admin, Consumer, Producer, ShareConsumer
from kcli.client.errors import ConfigError
from kcli.client.security_config import TOKEN_URL, TokenEndpoint, parse_jaas, read_security
from kcli.client.shell import tokens
from kcli.client.shell.tokens import EndpointSource, FileSource, FunctionSource, TokenError, TokenObtainer
from kcli.network.events import ObtainToken, Peer, PeerAddress, TokenObtained
from kcli.network.security import SaslSettings, TlsSettings
from tests.conftest import ROOT

SECRET = "hush"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
USER = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": SECRET}
SASL_SSL = {"security.protocol": "SASL_SSL", **USER}


def test_the_protocols() -> None:
    assert read_security({}) == (None, None, None)
    assert read_security({"security.protocol": "PLAINTEXT", **USER, "ssl.truststore.location": "x"}) == (None, None, None)
    assert read_security({"security.protocol": "SSL", **USER}) == (TlsSettings(), None, None)
    alice = SaslSettings("PLAIN", "alice", SECRET)
    assert read_security({"security.protocol": "sasl_plaintext", **USER}) == (None, alice, None)
    assert read_security(SASL_SSL) == (TlsSettings(), alice._replace(without_sasl="SSL"), None)


def test_tls_by_kafkas_names() -> None:
    settings = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "a certificate",
        "ssl.keystore.key": "a key",
        "ssl.key.password": SECRET + " ",
        "ssl.endpoint.identification.algorithm": "",
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.protocol": "TLSv1.3",
        "ssl.trustmanager.algorithm": "PKIX",
        "ssl.keystore.password": "",
        "security.providers": "",
    }
    expected = TlsSettings(
        authorities_path="/ca.pem",
        certificate="a certificate",
        key="a key",
        key_password=SECRET + " ",
        checks_name=False,
        versions=("TLSv1.3",),
    )
    assert read_security(settings).tls == expected
    assert SECRET not in repr(expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.oauthbearer.jwt.retriever.class", "org.example.Retriever"),
        ("sasl.oauthbearer.jwt.retriever.class", "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"),
        ("sasl.oauthbearer.jwt.validator.class", "org.example.Validator"),
        ("sasl.login.class", "org.example.Login"),
        ("sasl.login.connect.timeout.ms", "1000"),
        ("ssl.secure.random.implementation", "SHA1PRNG"),
        ("ssl.trustmanager.algorithm", "org.example.Trust"),
        ("ssl.truststore.password", SECRET),
    ],
)
def test_a_setting_without_effect_is_refused(name: str, value: str) -> None:
    """They were ignored: the client got its tokens otherwise, or trusted others, than its configuration said."""
    with pytest.raises(ConfigError, match=re.escape(name)) as refused:
        read_security({**SASL_SSL, name: value})
    assert SECRET not in str(refused.value)


def test_tls_by_the_names_of_librdkafka() -> None:
    settings = {
        "security.protocol": "ssl",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/c.pem",
        "ssl.key.location": "/k.pem",
        "ssl.key.password": SECRET,
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert read_security(settings).tls == TlsSettings(
        authorities_path="/ca.pem", certificate_path="/c.pem", key_path="/k.pem", key_password=SECRET, checks_name=False
    )
    texts = {"security.protocol": "ssl", "ssl.ca.pem": "a", "ssl.certificate.pem": "c", "ssl.key.pem": "k"}
    assert read_security(texts).tls == TlsSettings(authorities="a", certificate="c", key="k")


@pytest.mark.parametrize(
    ("text", "password"),
    [
        (f'{PLAIN} required username="alice" password="{SECRET}";', SECRET),
        (f"  {PLAIN}\n required\tusername='alice' password='a \"b\"' ;\n", 'a "b"'),
        (f'{PLAIN} REQUIRED password="a=b;c" username=alice;', "a=b;c"),
        (rf'{PLAIN} required username="alice" password="a\"b\\c";', 'a"b\\c'),
        (f'{PLAIN} required username="alice" password="" serviceName=kafka;', ""),
        (f'kafkashaded.{PLAIN} required username="alice" password="ä€";', "ä€"),
    ],
)
def test_jaas(text: str, password: str) -> None:
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": text}
    found = read_security(settings).sasl
    assert found == SaslSettings("PLAIN", "alice", password, source="sasl.jaas.config")
    assert not password or password not in f"{found!r} {parse_jaas(text)!r}"


def test_jaas_of_scram_with_a_delegation_token() -> None:
    text = f'{SCRAM} required username="id" password="hmac" tokenauth="true";'
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "SCRAM-SHA-512", "sasl.jaas.config": text}
    found = read_security(settings).sasl
    assert found is not None and (found.mechanism, found.extensions) == ("SCRAM-SHA-512", (("tokenauth", "true"),))


JAAS = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
TOKEN_CLIENT = "sasl.oauthbearer.client.credentials.client"
OAUTH_SETTINGS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    TOKEN_URL: "https://id.example/token",
    f"{TOKEN_CLIENT}.id": "me",
    f"{TOKEN_CLIENT}.secret": SECRET,
}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (USER, "sasl.mechanism is set and security.protocol is not, so that nothing would be protected: set security.protocol"),
        ({"ssl.ca.location": "/ca.pem"}, "ssl.truststore.location is set and security.protocol is not"),
        ({"security.protocol": "TLS"}, "security.protocol must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, not 'TLS'"),
        (
            {"security.protocol": "SASL_SSL", "sasl.password": SECRET},
            "sasl.mechanism is not set, so that it is GSSAPI",
        ),
        (
            {**SASL_SSL, "sasl.mechanism": "GSSAPI"},
            "sasl.mechanism is GSSAPI (Kerberos), which is not supported: set one of PLAIN",
        ),
        ({**SASL_SSL, "sasl.mechanism": "plain"}, "sasl.mechanism must be one of PLAIN, SCRAM-SHA-256"),
        ({**SASL_SSL, "sasl.mechanisms": "SCRAM-SHA-256"}, "sasl.mechanism is set twice, also as sasl.mechanisms"),
        ({**SASL_SSL, "sasl.username": ""}, "PLAIN needs a user and a password"),
        ({**JAAS, "sasl.username": "alice"}, "PLAIN needs a user and a password"),
        ({**JAAS, "sasl.jaas.config": f"{PLAIN} required username=alice password={SECRET}"}, "must end with a semicolon"),
        ({**JAAS, "sasl.jaas.config": f"{PLAIN} username=alice password={SECRET};"}, "is not one entry"),
        ({**JAAS, "sasl.jaas.config": f'{PLAIN} required username=alice password="{SECRET};'}, "is not one entry"),
        ({**JAAS, "sasl.jaas.config": f"{PLAIN} required username=alice password {SECRET};"}, "is not one entry"),
        ({**JAAS, "sasl.jaas.config": f"{PLAIN} required a={SECRET}; {PLAIN} required b=c;"}, "several login modules"),
        ({**JAAS, "sasl.jaas.config": ";"}, "is not one entry"),
        ({**JAAS, "sasl.jaas.config": f"{SCRAM} required username=alice password={SECRET};"}, "PLAIN needs PlainLoginModule"),
        ({**SASL_SSL, "sasl.usernam": "alice"}, "does not support sasl.usernam; did you mean sasl.username?"),
        ({"ssl.engine.factory.class": "com.x.Y"}, "does not support ssl.engine.factory.class: remove it"),
        ({"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "does not support ssl.cipher.suites"),
        ({"security.providers": "com.x.Y"}, "does not support security.providers"),
        ({"security.protocol": "SSL", "ssl.truststore.type": "JKS"}, "ssl.truststore.type is JKS, and only PEM is supported"),
        ({"security.protocol": "SSL", "ssl.keystore.type": "PKCS12"}, "ssl.keystore.type is PKCS12, and only PEM is supported"),
        (
            {"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.1"},
            "ssl.enabled.protocols must be a list of TLSv1.2 and",
        ),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldaps"}, "must be https or empty, not 'ldaps'"),
        ({"security.protocol": "SSL", "ssl.ca.location": "a", "ssl.ca.pem": "b"}, "are both set: leave one of them"),
        ({"security.protocol": "SSL", "ssl.keystore.key": SECRET}, "a key of the client needs its certificate"),
        ({"security.protocol": "SSL", "ssl.certificate.pem": "c"}, "the certificate of the client needs its key"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/none"}, "/none cannot be read: No such file or directory"),
        (
            {"security.protocol": "SSL", "ssl.ca.location": __file__},
            "is not a PEM file; JKS and PKCS12 are not supported: convert",
        ),
        ({"security.protocol": "SSL", "ssl.keystore.location": __file__}, "convert it (keytool -importkeystore"),
        ({"security.protocol": "SSL", "ssl.ca.pem": "x"}, "ssl.truststore.certificates has no certificate in PEM"),
        (
            {"security.protocol": "SSL", "ssl.certificate.pem": "c", "ssl.key.pem": SECRET},
            "it needs a certificate and its key",
        ),
        (
            {**SASL_SSL, "sasl.mechanism": "OAUTHBEARER"},
            "OAUTHBEARER needs a token: set sasl.oauthbearer.token.endpoint.url to",
        ),
        (
            {**SASL_SSL, "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://x/token"},
            "needs sasl.oauthbearer.client.credentials.client.id and",
        ),
        (
            {**OAUTH_SETTINGS, "sasl.oauthbearer.header.urlencode": "yes"},
            "sasl.oauthbearer.header.urlencode must be true or false, not 'yes'",
        ),
        (
            {**SASL_SSL, "sasl.mechanism": "OAUTHBEARER", "sasl.login.callback.handler.class": "com.x.Y"},
            "is the class com.x.Y of Java: pass a function as oauth_token",
        ),
        (
            {**SASL_SSL, "sasl.jaas.config": f"{PLAIN} required username=alice password={SECRET};"},
            "sasl.jaas.config and sasl.username are both set: leave one of them",
        ),
        (
            {**SASL_SSL, "sasl.login.callback.handler.class": "com.x.Y"},
            "sasl.login.callback.handler.class is the class com.x.Y of Java, which kcli does not run: remove it",
        ),
        ({**SASL_SSL, "sasl.password": "a\0b"}, "the user and the password for PLAIN cannot have the character NUL"),
        ({**SASL_SSL, "sasl.password": "\ud800"}, "the user or the password has half of a surrogate pair"),
        ({**SASL_SSL, "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "\ud800"}, "has half of a surrogate pair"),
        (
            {**OAUTH_SETTINGS, "sasl.jaas.config": f'{OAUTH} required ssl.truststore.location="/ca.pem";'},
            "sasl.jaas.config: kcli does not support the option ssl.truststore.location of OAuthBearerLoginModule",
        ),
        *(
            ({**OAUTH_SETTINGS, TOKEN_URL: url}, f"{TOKEN_URL} must be an address without a user, a password and spaces")
            for url in (f"https://me:{SECRET}@id.example/x", f"https://{SECRET}@id.example/", f"https://id.example/ {SECRET}")
        ),
        ({**OAUTH_SETTINGS, TOKEN_URL: f"https://[{SECRET}"}, f"{TOKEN_URL} must be an address"),
        ({**OAUTH_SETTINGS, TOKEN_URL: f"https:///{SECRET}"}, f"{TOKEN_URL} must be an address"),
        ({**OAUTH_SETTINGS, TOKEN_URL: f"https://id.example:{SECRET}/"}, f"{TOKEN_URL} must be an address"),
        ({"security.protocol": "SSL", "ssl.ca.location": " "}, "ssl.truststore.location is empty"),
        (
            {
                "security.protocol": "SSL",
                "ssl.key.location": f"-----{'BEGIN'} PRIVATE KEY-----{SECRET}",
                "ssl.ca.location": "a",
            },
            "ssl.key.location is for the path of a file: set ssl.keystore.key to a text in PEM",
        ),
        ({"security.protocol": "SSL", "ssl.ca.location": "a\0b"}, "cannot be read: embedded null byte"),
        ({"security.protocol": "SSL", "ssl.ca.pem": "ä"}, "ssl.truststore.certificates has no certificate in PEM"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, str], sentence: str) -> None:
    """Each client refuses them when it is made, and the sentence does not have the secret."""
    for client in (Admin, Producer, Consumer, ShareConsumer):
        group = {"group.id": "g"} if client is ShareConsumer else {}
        with pytest.raises(ConfigError) as raised:
            client({"bootstrap.servers": "127.0.0.1:1", **group, **settings})
        text = str(raised.value)
        assert sentence in text and SECRET not in text and "\n" not in text


def test_a_function_for_tokens_needs_its_mechanism() -> None:
    with pytest.raises(ConfigError, match=r"oauth_token is for sasl\.mechanism=OAUTHBEARER"):
        Admin({"bootstrap.servers": "127.0.0.1:1"}, oauth_token=lambda: "token")


# --------------------------------------------------------------------------------------------------------------- tokens


def test_the_endpoint_of_tokens() -> None:
    url = "https://id.example/token"
    base = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": url}
    start = "sasl.oauthbearer.client.credentials.client"
    found = read_security({**base, f"{start}.id": "me", f"{start}.secret": SECRET, "sasl.oauthbearer.scope": "kafka"})
    assert found.endpoint == TokenEndpoint(url, "me", SECRET, "kafka") and SECRET not in repr(found)
    text = f'{OAUTH} required clientId="me" clientSecret="{SECRET}" scope="kafka" extension_logicalCluster="lkc-1";'
    handler = {
        "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    }
    of_jaas = read_security({**base, **handler, "sasl.jaas.config": text})
    assert of_jaas.endpoint == found.endpoint
    assert of_jaas.sasl is not None and of_jaas.sasl.extensions == (("logicalCluster", "lkc-1"),)
    with pytest.raises(ConfigError, match="extension_auth is not an extension"):
        read_security({**base, "sasl.jaas.config": f'{OAUTH} required extension_auth="x";'})


class TokenServer(http.server.BaseHTTPRequestHandler):
    """Answers each POST with the next of `answers`: a status and a body."""

    answers: ClassVar[list[tuple[int, bytes]]] = []
    requests: ClassVar[list[tuple[Any, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append((self.headers, body))
        status, answer = self.answers.pop(0)
        self.send_response(status)
        if status == 307:
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def token_url() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), TokenServer)
    TokenServer.answers, TokenServer.requests = [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/token"
    server.shutdown()
    thread.join()
    server.server_close()


def test_client_credentials(token_url: str) -> None:
    """RFC 6749, 4.4.2; a token is used again while it is valid, and obtained anew afterwards."""
    TokenServer.answers = [(200, b'{"access_token":"one","expires_in":3600}'), (200, b'{"access_token":"two"}')] * 2
    source = EndpointSource(TokenEndpoint(token_url, "me+", SECRET, "kafka", has_encoded_header=True))
    assert [source.obtain(), source.obtain()] == ["one", "one"]
    ((headers, body),) = TokenServer.requests
    assert headers["Authorization"] == "Basic bWUlMkI6aHVzaA==" and body == b"grant_type=client_credentials&scope=kafka"
    TokenServer.answers.pop(0)
    short = EndpointSource(TokenEndpoint(token_url, "me", SECRET))
    TokenServer.answers.insert(0, (200, b'{"access_token":"zero"}'))
    assert [short.obtain(), short.obtain()] == ["zero", "one"], "without expires_in it is not kept"
    TokenServer.answers.insert(0, (200, b'{"access_token":"plain"}'))
    assert EndpointSource(TokenEndpoint(token_url, "me+", SECRET)).obtain() == "plain"
    assert TokenServer.requests[-1][0]["Authorization"] == "Basic bWUrOmh1c2g="  # me+:hush, as Kafka's client sends it


def test_a_server_that_is_away_for_a_moment(token_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token before is used as long as it is valid."""
    monkeypatch.setattr(tokens, "REFRESH_FACTOR", 0.0)
    one, two = b'{"access_token":"one","expires_in":3600}', b'{"access_token":"two"}'
    TokenServer.answers = [(200, one), (503, b""), (200, two), (503, b"")]
    source = EndpointSource(TokenEndpoint(token_url, "me", SECRET))
    assert [source.obtain(), source.obtain(), source.obtain()] == ["one", "one", "two"]
    with pytest.raises(TokenError, match="answered 503"):
        source.obtain()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((401, b'{"error":"invalid_client"}'), "answered 401 Unauthorized"),
        ((200, b"<html>"), "is not JSON with access_token"),
        ((200, b'{"access_token":"one","expires_in":"soon"}'), "is not JSON with access_token"),
        ((200, b"[]"), "is not JSON with access_token"),
        ((200, b'{"access_token":3}'), "is not JSON with access_token"),
        ((200, b'{"access_token":"one","expires_in":NaN}'), "is not JSON with access_token"),
        ((307, b"elsewhere"), "answered 307"),
    ],
)
def test_servers_that_give_no_token(answer: tuple[int, bytes], sentence: str, token_url: str) -> None:
    TokenServer.answers = [answer]
    with pytest.raises(TokenError) as raised:
        EndpointSource(TokenEndpoint(token_url, "me", SECRET)).obtain()
    assert sentence in str(raised.value) and token_url in str(raised.value) and SECRET not in str(raised.value)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(TokenError, match=r"http://127.0.0.1:1/: .*refused"):
        EndpointSource(TokenEndpoint(f"http://127.0.0.1:1/?key={SECRET}", "me", SECRET)).obtain()


def test_tokens_in_files_and_of_functions(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    path.write_text(" a.b.c\n")
    assert FileSource(path.as_uri()).obtain() == "a.b.c"
    path.write_bytes(b"\xff")
    with pytest.raises(TokenError, match="a token: it is not a token"):
        FileSource(path.as_uri()).obtain()
    with pytest.raises(TypeError, match="oauth_token returned int"):
        FunctionSource(lambda: 3).obtain()  # type: ignore[arg-type, return-value]


def test_a_token_of_an_async_function_is_text_as_well() -> None:
    """Another result is a reason in the event, and not an exception in the event loop, which ends all calls."""

    async def number() -> str:
        return 3  # type: ignore[return-value]

    async def obtained() -> TokenObtained:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[TokenObtained] = loop.create_future()
        obtainer = TokenObtainer(loop, FunctionSource(number), found.set_result)
        obtainer.obtain(ObtainToken(1, Peer(PeerAddress("broker", 1), "data", PeerAddress("broker", 1))))
        return await found

    found = asyncio.run(obtained())
    assert (found.token, found.reason) == (None, "TypeError: oauth_token returned int, not the token as str")


def test_a_client_without_security_does_not_load_it() -> None:
    """The start of commands is short; asyncio itself loads ssl."""
    program = (
        "import sys; from kcli.client import Admin; Admin({'bootstrap.servers': '127.0.0.1:1'}).close(); "
        "print(*sorted(name for name in sys.modules if name.startswith('kcli.')))"
    )
    command = [sys.executable, "-c", program]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    unwanted = ("sasl", "tls", "tokens", "security_config", "jaas")
    assert "kcli.client.network_client" in loaded
    assert [name for name in loaded if name.rpartition(".")[2].startswith(unwanted)] == []
