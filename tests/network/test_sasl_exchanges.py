"""Protects the SASL mechanisms of clients: the examples of the RFCs, byte by byte, and bytes that no server may send."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random

import pytest

from kcli.network.sasl_login import (
    MAX_ITERATIONS,
    MOST_SHOWN,
    OAuthBearerExchange,
    PlainExchange,
    SaslError,
    ScramExchange,
    make_exchange,
    shown,
)
from kcli.network.security import SaslSettings

# RFC 7677, section 3.
RFC_NONCE = "rOprNGfwEbeRWgbNEkqO"
RFC_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
RFC_CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
RFC_PROOF = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
RFC_SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def proven() -> ScramExchange:
    """The exchange of RFC 7677 after the client's proof."""
    exchange = ScramExchange("SCRAM-SHA-256", "user", "pencil", RFC_NONCE)
    assert exchange.begin() == RFC_FIRST
    assert exchange.answer(RFC_CHALLENGE) == RFC_PROOF
    return exchange


def test_the_example_of_rfc_7677() -> None:
    assert proven().answer(RFC_SIGNATURE) is None


def test_sha_512_against_a_server_written_from_rfc_5802() -> None:
    """With a name and a password that need care: the formulas of section 3, with Hi() written out."""
    exchange = ScramExchange("SCRAM-SHA-512", "a,b=c", "pässword", "client")
    first = exchange.begin()
    assert first == b"n,,n=a=2Cb=3Dc,r=client"
    salt = b"0123456789"
    challenge = f"r=clientserver,s={base64.b64encode(salt).decode()},i=4096".encode()
    final = exchange.answer(challenge)
    assert final is not None
    block = hmac.new("pässword".encode(), salt + b"\0\0\0\1", hashlib.sha512).digest()
    salted = int.from_bytes(block, "big")
    for _ in range(4095):
        block = hmac.new("pässword".encode(), block, hashlib.sha512).digest()
        salted ^= int.from_bytes(block, "big")
    key = salted.to_bytes(64, "big")
    without_proof, _, proof = final.rpartition(b",p=")
    message = first[3:] + b"," + challenge + b"," + without_proof
    stored = hashlib.sha512(hmac.digest(key, b"Client Key", "sha512")).digest()
    mask = hmac.digest(stored, message, "sha512")
    client_key = bytes(one ^ other for one, other in zip(base64.b64decode(proof), mask, strict=True))
    assert hashlib.sha512(client_key).digest() == stored, "the proof is that of the password"
    signature = hmac.digest(hmac.digest(key, b"Server Key", "sha512"), message, "sha512")
    assert exchange.answer(b"v=" + base64.b64encode(signature)) is None


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (b"", "0 bytes that are not a message"),
        (b"\xff\xfe", "2 bytes that are not a message"),
        (b"nonsense", "not a message of SCRAM-SHA-256"),
        (RFC_CHALLENGE[:-1] + b",r=again", "not a message"),
        (RFC_CHALLENGE[:30], "does not have the field s"),
        (RFC_CHALLENGE.replace(b"r=rO", b"r=xO"), "the nonce is another one"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "the nonce is another one"),
        (b"r=rOpr,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "the nonce is another one"),
        (RFC_CHALLENGE.replace(b"==", b"=!"), "does not have the field s"),
        (RFC_CHALLENGE.replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b""), "does not have the field s"),
        (RFC_CHALLENGE.replace(b"i=4096", b"i=4095"), "'4095' iterations"),
        (RFC_CHALLENGE.replace(b"i=4096", b"i=%d" % (MAX_ITERATIONS + 1)), "iterations"),
        (RFC_CHALLENGE.replace(b"i=4096", b"i=" + b"9" * 5000), "iterations"),
        (RFC_CHALLENGE.replace(b"i=4096", b"i=-4096"), "'-4096' iterations"),
        (RFC_CHALLENGE.replace(b"i=4096", b"i=\xd9\xa4\xd9\xa0\xd9\xa9\xd9\xa6"), "iterations"),  # digits of Arabic
        (RFC_CHALLENGE.replace(b",i=4096", b""), "'' iterations"),
        (b"m=must," + RFC_CHALLENGE, "an extension"),
        (b"e=unknown-user", "with the error 'unknown-user'"),
        (RFC_SIGNATURE, "does not have the field s"),
    ],
)
def test_challenges_that_no_server_may_send(challenge: bytes, reason: str) -> None:
    exchange = ScramExchange("SCRAM-SHA-256", "user", "pencil", RFC_NONCE)
    exchange.begin()
    with pytest.raises(SaslError) as raised:
        exchange.answer(challenge)
    assert reason in str(raised.value) and len(str(raised.value)) < MOST_SHOWN + 200 and "pencil" not in str(raised.value)


@pytest.mark.parametrize(
    ("final", "reason"),
    [
        (b"", "0 bytes that are not a message"),
        (b"v=", "does not have the field v"),
        (b"v=" + base64.b64encode(bytes(32)), "its signature of SCRAM-SHA-256 is wrong"),
        (RFC_SIGNATURE[:-8], "its signature"),
        (RFC_SIGNATURE[:-9], "does not have the field v"),
        (b"e=invalid-proof", "with the error 'invalid-proof'"),
        (RFC_CHALLENGE, "does not have the field v"),
    ],
)
def test_a_server_that_does_not_know_the_password(final: bytes, reason: str) -> None:
    exchange = proven()
    with pytest.raises(SaslError, match=reason):
        exchange.answer(final)


def test_a_nonce_is_of_the_random_numbers_and_used_once() -> None:
    settings = SaslSettings("SCRAM-SHA-256", "user", "pencil", (("tokenauth", "true"),))
    rng = random.Random(1)
    first, second = (make_exchange(settings, rng).begin() for _ in range(2))
    assert first != second and first.startswith(b"n,,n=user,r=") and first.endswith(b",tokenauth=true")
    assert len(base64.b64decode(first.split(b",")[3][2:])) == 24


def test_plain() -> None:
    exchange = make_exchange(SaslSettings("PLAIN", "älice", "pässword"), random.Random(1))
    assert exchange.begin() == b"\0" + "älice".encode() + b"\0" + "pässword".encode()
    assert exchange.answer(b"") is None
    with pytest.raises(SaslError, match="NUL"):
        PlainExchange("alice", "a\0b").begin()


def test_oauthbearer() -> None:
    """The example of RFC 7628, section 4.1, without the name of the user; and the answer to a refusal."""
    exchange = OAuthBearerExchange(
        "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==", (("host", "server.example.com"), ("port", "143"))
    )
    assert exchange.begin() == (
        b"n,,\x01auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01host=server.example.com\x01port=143\x01\x01"
    )
    assert exchange.answer(b"") is None
    assert exchange.answer(b'{"status":"invalid_token"}') == b"\x01"
    for challenge in (b"", b'{"status":"invalid_token"}'):  # the server may only refuse the authentication now
        with pytest.raises(SaslError, match="it refused the token"):
            exchange.answer(challenge)


@pytest.mark.parametrize("token", ["", "a b", "a\n", "a\x01b", "ä", "=a"])
def test_tokens_that_would_end_the_message(token: str) -> None:
    with pytest.raises(SaslError) as raised:
        OAuthBearerExchange(token).begin()
    assert "the token for OAUTHBEARER is empty, or has characters" in str(raised.value)


def test_text_of_a_server_is_one_short_line() -> None:
    assert shown("a\nb\x1b[31mc") == "a b [31mc"
    assert shown("x" * 1000) == "x" * MOST_SHOWN + "..."


def test_secrets_are_not_in_what_is_printed() -> None:
    assert "pencil" not in repr(SaslSettings("PLAIN", "user", "pencil"))
