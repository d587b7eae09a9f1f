"""Protects ACLs, credentials, tokens and quotas of administrators from wrong outcomes, and their secrets from logs."""

from __future__ import annotations

from kcli.client.admin import security

SECRET = b"very secret"
ALICE = security.Principal("User", "alice")


def test_secrets_are_not_shown() -> None:
    """A token and the salted password are as good as a password."""
    upsertion = security.ScramUpsertion("alice", security.ScramMechanism.SCRAM_SHA_256, 4096, b"salt", SECRET)
    token = security.DelegationToken("id", SECRET, ALICE, ALICE, 1, 2, 3)
    for one in (upsertion, token):
        assert "alice" in repr(one) and "secret" not in f"{one!r} {one} {[one]}"
