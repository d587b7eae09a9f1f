"""Protects ACLs, credentials, tokens and quotas of administrators from wrong outcomes, and their secrets from logs."""

from __future__ import annotations

from kcli.client.admin import quotas, security
from kcli.protocol import error_codes
from kcli.protocol.apis import ALTER_CLIENT_QUOTAS, API_KEYS, DELETE_ACLS, DESCRIBE_USER_SCRAM_CREDENTIALS
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


def half_deleted(node: int | None, version: int, request: Message) -> Message:
    """An answer to DeleteAcls: of the first filter's two ACLs one is not deleted, the second filter's ACL is."""
    kind = API_KEYS[DELETE_ACLS].response
    result, matching = kind.classes["DeleteAclsFilterResult"], kind.classes["DeleteAclsMatchingAcl"]
    of_acl = {"resource_type": 2, "pattern_type": 3, "host": "*", "operation": 3, "permission_type": 3}
    denied = {"error_code": error_codes.REQUEST_TIMED_OUT, "error_message": "too late"}
    first = [
        matching(resource_name="a", principal="U:a", **of_acl),
        matching(resource_name="b", principal="U:b", **of_acl, **denied),
    ]
    second = [matching(resource_name="c", principal="U:c", **of_acl)]
    return kind.new(filter_results=[result(matching_acls=first), result(matching_acls=second)])


def test_acls_that_were_deleted_are_known_if_another_one_was_not() -> None:
    """The administrator could not say otherwise who has lost a right; and what was deleted is not deleted again."""
    script = ScriptedCluster({DELETE_ACLS: half_deleted})
    both, other = security.AclBindingFilter(), security.AclBindingFilter(principal="U:c")
    a, b, c = (security.AclBinding(2, name, 3, f"U:{name}", "*", 3, 3) for name in "abc")
    outcomes = script.execute(security.delete_acls([both, other]))
    assert outcomes[other] == [c]
    failure = outcomes[both]
    assert isinstance(failure, security.AclDeletionError) and failure.is_retriable
    assert failure.deleted == (a,)
    assert {acl: error.code for acl, error in failure.failed.items()} == {b: error_codes.REQUEST_TIMED_OUT}
    assert str(failure) == "1 of 2 ACLs are not deleted, the first of them is that of U:b for b: REQUEST_TIMED_OUT: too late"
    assert len(script.requests(DELETE_ACLS)) == 1
