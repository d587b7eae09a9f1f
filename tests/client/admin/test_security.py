"""Protects ACLs, credentials, tokens and quotas of administrators from wrong outcomes, and their secrets from logs."""

from __future__ import annotations

from kcli.client.admin import quotas, security
from kcli.protocol.apis import ALTER_CLIENT_QUOTAS, API_KEYS, DESCRIBE_USER_SCRAM_CREDENTIALS
from kcli.protocol.message import Message
from tests.client.admin.scripted_cluster import ScriptedCluster

SECRET = b"very secret"
ALICE = security.Principal("User", "alice")


def test_secrets_are_not_shown() -> None:
    """A token and the salted password are as good as a password."""
    upsertion = security.ScramUpsertion("alice", security.ScramMechanism.SCRAM_SHA_256, 4096, b"salt", SECRET)
    token = security.DelegationToken("id", SECRET, ALICE, ALICE, 1, 2, 3)
    for one in (upsertion, token):
        assert "alice" in repr(one) and "secret" not in f"{one!r} {one} {[one]}"


def test_the_credentials_of_no_users_are_none() -> None:
    """The protocol takes an empty list for all users."""
    script = ScriptedCluster({DESCRIBE_USER_SCRAM_CREDENTIALS: everyone})
    assert script.execute(security.describe_user_scram_credentials([])) == {}
    assert list(script.execute(security.describe_user_scram_credentials())) == ["alice"]


def everyone(node: int | None, version: int, request: Message) -> Message:
    kind = API_KEYS[DESCRIBE_USER_SCRAM_CREDENTIALS].response
    return kind.new(results=[kind.classes["DescribeUserScramCredentialsResult"](user="alice")])


def altered(node: int | None, version: int, request: Message) -> Message:
    """An answer to AlterClientQuotas, with the parts of each entity in the order that brokers of Kafka may have."""
    kind = API_KEYS[ALTER_CLIENT_QUOTAS].response
    entry, part = kind.classes["EntryData"], kind.classes["EntityData"]
    return kind.new(
        entries=[
            entry(entity=[part(entity_type=at.entity_type, entity_name=at.entity_name) for at in reversed(one.entity)])
            for one in request.entries
        ]
    )


def test_the_parts_of_an_entity_may_be_in_any_order() -> None:
    script = ScriptedCluster({ALTER_CLIENT_QUOTAS: altered})
    entity = (("user", "alice"), ("client-id", None))
    assert script.execute(quotas.alter_client_quotas({entity: {"producer_byte_rate": 5.0}})) == {entity: None}
