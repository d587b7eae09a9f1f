"""ACLs, SCRAM credentials and delegation tokens (Kafka: AclBinding, UserScramCredentialUpsertion, DelegationToken).

    operation                        API                            node
    -------------------------------  -----------------------------  --------------
    describe_acls                    DescribeAcls                   any broker
    create_acls, delete_acls         CreateAcls, DeleteAcls         the controller
    describe_user_scram_credentials  DescribeUserScramCredentials   any broker
    alter_user_scram_credentials     AlterUserScramCredentials      the controller
    create_delegation_token, ...     CreateDelegationToken, ...     the controller
    describe_delegation_token        DescribeDelegationToken        any broker

A password is not sent: the broker gets the salted password (RFC 5802), which `ScramUpsertion.of_password` computes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from kcli.client.admin.driver import answer_or_error
from kcli.client.admin.error_sentences import kafka_error, outcome_error
from kcli.client.admin.operation import NOT_EXECUTED, Call, Operation, Outcomes, RequestContext, Route, run, run_one
from kcli.client.errors import ClientError, KafkaError
from kcli.protocol.apis import (
    ALTER_USER_SCRAM_CREDENTIALS,
    API_KEYS,
    CREATE_ACLS,
    CREATE_DELEGATION_TOKEN,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_DELEGATION_TOKEN,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    EXPIRE_DELEGATION_TOKEN,
    RENEW_DELEGATION_TOKEN,
)
from kcli.protocol.message import Message


class AclResource(IntEnum):
    """What an ACL is about; ANY in filters only."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of a resource is meant; ANY and MATCH in filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What is allowed or denied; ANY in filters only."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """ALLOW or DENY; ANY in filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class AclBinding(NamedTuple):
    """An ACL; the numbers are those of the enums of this module, or of newer ones that it does not have."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclBindingFilter(NamedTuple):
    """The ACLs with these fields; None and ANY match all."""

    resource_type: AclResource = AclResource.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: Permission = Permission.ANY


class AclDeletionError(ClientError):
    """Some ACLs that a filter matched are not deleted; `deleted` has the others, `failed` the error of each of them."""

    def __init__(self, deleted: Iterable[AclBinding], failed: Mapping[AclBinding, KafkaError]) -> None:
        self.deleted = tuple(deleted)
        self.failed = dict(failed)
        acl, error = next(iter(failed.items()))
        super().__init__(
            f"{len(self.failed)} of {len(self.failed) + len(self.deleted)} ACLs are not deleted, the first of them is that "
            f"of {acl.principal} for {acl.resource_name}: {error}"
        )

    @property
    def is_retriable(self) -> bool:  # type: ignore[override]
        """Whether all errors are retriable: the same filter then matches the ACLs that are left."""
        return all(error.is_retriable for error in self.failed.values())


class ScramMechanism(IntEnum):
    """A SASL mechanism."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


_HASHES = {ScramMechanism.SCRAM_SHA_256: "sha256", ScramMechanism.SCRAM_SHA_512: "sha512"}


class ScramCredentialInfo(NamedTuple):
    """A credential of a user, without its secret."""

    mechanism: int
    iterations: int


class ScramDeletion(NamedTuple):
    """A credential to delete."""

    user: str
    mechanism: ScramMechanism


def _text_without(secret: str, kind: str, fields: Mapping[str, object]) -> str:
    """Return the repr() of a value whose secret does not belong into logs and tracebacks."""
    shown = (f"{name}=..." if name == secret else f"{name}={value!r}" for name, value in fields.items())
    return f"{kind}({', '.join(shown)})"


class ScramUpsertion(NamedTuple):
    """A credential to create or replace."""

    user: str
    mechanism: ScramMechanism
    iterations: int
    salt: bytes
    salted_password: bytes

    @classmethod
    def of_password(
        cls, user: str, mechanism: ScramMechanism, password: bytes, salt: bytes, iterations: int = 4096
    ) -> ScramUpsertion:
        """Return the credential for a password; the salt must be random."""
        salted = hashlib.pbkdf2_hmac(_HASHES[mechanism], password, salt, iterations)
        return cls(user, mechanism, iterations, salt, salted)

    def __repr__(self) -> str:
        return _text_without("salted_password", "ScramUpsertion", self._asdict())


class Principal(NamedTuple):
    """A principal, such as Principal("User", "alice")."""

    type: str
    name: str


class DelegationToken(NamedTuple):
    """A token with its secret; the times are in ms since 1970."""

    token_id: str
    hmac: bytes
    owner: Principal
    requester: Principal
    issue_timestamp: int
    expiry_timestamp: int
    max_timestamp: int
    renewers: tuple[Principal, ...] = ()

    def __repr__(self) -> str:
        return _text_without("hmac", "DelegationToken", self._asdict())


# --------------------------------------------------------------------------------------------------------------------- ACLs


def describe_acls(acl_filter: AclBindingFilter = AclBindingFilter()) -> Operation[list[AclBinding]]:  # noqa: B008 (immutable)
    """Return the ACLs that match a filter. Raises KafkaError, such as SECURITY_DISABLED without an authorizer."""

    def request(_keys: Sequence[str], _context: RequestContext) -> Message:
        return API_KEYS[DESCRIBE_ACLS].request.new(**_filter_fields(acl_filter))

    answer = yield from run_one(Call(DESCRIBE_ACLS, Route.ANY, request, answer_or_error), "acls")
    return [_binding(resource, acl) for resource in answer.resources for acl in resource.acls]


def _filter_fields(one: AclBindingFilter) -> dict[str, int | str | None]:
    return {
        "resource_type_filter": one.resource_type,
        "resource_name_filter": one.resource_name,
        "pattern_type_filter": one.pattern_type,
        "principal_filter": one.principal,
        "host_filter": one.host,
        "operation": one.operation,
        "permission_type": one.permission,
    }


def _binding(resource: Message, acl: Message) -> AclBinding:
    of_resource = (resource.resource_type, resource.resource_name, resource.pattern_type)
    return AclBinding(*of_resource, acl.principal, acl.host, acl.operation, acl.permission_type)


def create_acls(bindings: Iterable[AclBinding]) -> Operation[Outcomes[AclBinding, None]]:
    """Create ACLs; one that exists stays."""

    def request(keys: Sequence[AclBinding], _context: RequestContext) -> Message:
        kind = API_KEYS[CREATE_ACLS].request
        creation = kind.classes["AclCreation"]
        creations = [
            creation(
                resource_type=key.resource_type,
                resource_name=key.resource_name,
                resource_pattern_type=key.pattern_type,
                principal=key.principal,
                host=key.host,
                operation=key.operation,
                permission_type=key.permission,
            )
            for key in keys
        ]
        return kind.new(creations=creations)

    def read(keys: Sequence[AclBinding], answer: Message) -> Iterator[tuple[AclBinding, ClientError | None]]:
        for key, one in zip(keys, answer.results):
            yield key, outcome_error(one.error_code, one.error_message)

    return (yield from run(Call(CREATE_ACLS, Route.CONTROLLER, request, read), bindings))


def delete_acls(filters: Iterable[AclBindingFilter]) -> Operation[Outcomes[AclBindingFilter, list[AclBinding]]]:
    """Delete the ACLs that match any filter; return what each filter deleted, or AclDeletionError if it is not all."""

    def request(keys: Sequence[AclBindingFilter], _context: RequestContext) -> Message:
        kind = API_KEYS[DELETE_ACLS].request
        return kind.new(filters=[kind.classes["DeleteAclsFilter"](**_filter_fields(key)) for key in keys])

    def read(
        keys: Sequence[AclBindingFilter], answer: Message
    ) -> Iterator[tuple[AclBindingFilter, list[AclBinding] | ClientError]]:
        for key, one in zip(keys, answer.filter_results):
            if one.error_code:
                yield key, kafka_error(one.error_code, one.error_message)
                continue
            outcomes = {_binding(each, each): outcome_error(each.error_code, each.error_message) for each in one.matching_acls}
            deleted = [acl for acl, error in outcomes.items() if error is None]
            failed = {acl: error for acl, error in outcomes.items() if error is not None}
            yield key, AclDeletionError(deleted, failed) if failed else deleted

    return (yield from run(Call(DELETE_ACLS, Route.CONTROLLER, request, read, retried=NOT_EXECUTED), filters))


# -------------------------------------------------------------------------------------------------------- SCRAM credentials


def describe_user_scram_credentials(
    users: Iterable[str] | None = None,
) -> Operation[Outcomes[str, list[ScramCredentialInfo]]]:
    """Return the credentials of users, or of all users that have one (None). Raises KafkaError."""
    wanted = None if users is None else list(users)
    if wanted == []:
        return {}  # the protocol takes an empty list for all users

    def request(_keys: Sequence[str], _context: RequestContext) -> Message:
        kind = API_KEYS[DESCRIBE_USER_SCRAM_CREDENTIALS].request
        names = None if wanted is None else [kind.classes["UserName"](name=name) for name in wanted]
        return kind.new(users=names)

    call = Call(DESCRIBE_USER_SCRAM_CREDENTIALS, Route.ANY, request, answer_or_error)
    answer = yield from run_one(call, "credentials")
    found: Outcomes[str, list[ScramCredentialInfo]] = {}
    for one in answer.results:
        infos = [ScramCredentialInfo(each.mechanism, each.iterations) for each in one.credential_infos]
        found[one.user] = outcome_error(one.error_code, one.error_message) or infos
    return found


def alter_user_scram_credentials(
    alterations: Iterable[ScramUpsertion | ScramDeletion],
) -> Operation[Outcomes[str, None]]:
    """Create, replace and delete credentials; the outcomes are by user."""
    wanted = list(alterations)

    def request(keys: Sequence[str], _context: RequestContext) -> Message:
        kind = API_KEYS[ALTER_USER_SCRAM_CREDENTIALS].request
        deletion, upsertion = kind.classes["ScramCredentialDeletion"], kind.classes["ScramCredentialUpsertion"]
        deletions, upsertions = [], []
        for one in wanted:
            if one.user not in keys:
                continue
            if isinstance(one, ScramDeletion):
                deletions.append(deletion(name=one.user, mechanism=one.mechanism))
                continue
            upsertions.append(
                upsertion(
                    name=one.user,
                    mechanism=one.mechanism,
                    iterations=one.iterations,
                    salt=one.salt,
                    salted_password=one.salted_password,
                )
            )
        return kind.new(deletions=deletions, upsertions=upsertions)

    def read(_keys: Sequence[str], answer: Message) -> Iterator[tuple[str, ClientError | None]]:
        for one in answer.results:
            yield one.user, outcome_error(one.error_code, one.error_message)

    call = Call(ALTER_USER_SCRAM_CREDENTIALS, Route.CONTROLLER, request, read, retried=NOT_EXECUTED)
    return (yield from run(call, [one.user for one in wanted]))


# -------------------------------------------------------------------------------------------------------- delegation tokens


def create_delegation_token(
    *, owner: Principal | None = None, renewers: Iterable[Principal] = (), max_lifetime_ms: int = -1
) -> Operation[DelegationToken]:
    """Create a token for the client itself or for `owner`; -1: with the longest lifetime. Raises KafkaError."""
    allowed = tuple(renewers)

    def request(_keys: Sequence[str], _context: RequestContext) -> Message:
        kind = API_KEYS[CREATE_DELEGATION_TOKEN].request
        renewer = kind.classes["CreatableRenewers"]
        of_owner = {} if owner is None else {"owner_principal_type": owner.type, "owner_principal_name": owner.name}
        made = [renewer(principal_type=one.type, principal_name=one.name) for one in allowed]
        return kind.new(renewers=made, max_lifetime_ms=max_lifetime_ms, **of_owner)

    one = yield from run_one(
        Call(CREATE_DELEGATION_TOKEN, Route.CONTROLLER, request, answer_or_error, retried=NOT_EXECUTED), "token"
    )
    made_for = Principal(one.principal_type, one.principal_name)
    requester = Principal(one.token_requester_principal_type, one.token_requester_principal_name)
    times = (one.issue_timestamp_ms, one.expiry_timestamp_ms, one.max_timestamp_ms)
    return DelegationToken(one.token_id, bytes(one.hmac), made_for, requester, *times, allowed)


def renew_delegation_token(hmac: bytes, *, renew_period_ms: int = -1) -> Operation[int]:
    """Let a token expire later; return the time. Raises KafkaError."""
    return (yield from _change_expiry(RENEW_DELEGATION_TOKEN, {"hmac": hmac, "renew_period_ms": renew_period_ms}))


def expire_delegation_token(hmac: bytes, *, expiry_period_ms: int = -1) -> Operation[int]:
    """Let a token expire at once (-1) or after a period; return the time. Raises KafkaError."""
    return (yield from _change_expiry(EXPIRE_DELEGATION_TOKEN, {"hmac": hmac, "expiry_time_period_ms": expiry_period_ms}))


def _change_expiry(api_key: int, fields: dict[str, bytes | int]) -> Operation[int]:
    def request(_keys: Sequence[str], _context: RequestContext) -> Message:
        return API_KEYS[api_key].request.new(**fields)

    answer = yield from run_one(Call(api_key, Route.CONTROLLER, request, answer_or_error, retried=NOT_EXECUTED), "token")
    expiry_ms: int = answer.expiry_timestamp_ms
    return expiry_ms


def describe_delegation_token(owners: Iterable[Principal] | None = None) -> Operation[list[DelegationToken]]:
    """Return the tokens of owners, or all that the client may see (None). Raises KafkaError."""
    wanted = None if owners is None else list(owners)

    def request(_keys: Sequence[str], _context: RequestContext) -> Message:
        kind = API_KEYS[DESCRIBE_DELEGATION_TOKEN].request
        one = kind.classes["DescribeDelegationTokenOwner"]
        named = None if wanted is None else [one(principal_type=each.type, principal_name=each.name) for each in wanted]
        return kind.new(owners=named)

    answer = yield from run_one(Call(DESCRIBE_DELEGATION_TOKEN, Route.ANY, request, answer_or_error), "tokens")
    return [
        DelegationToken(
            one.token_id,
            bytes(one.hmac),
            Principal(one.principal_type, one.principal_name),
            Principal(one.token_requester_principal_type, one.token_requester_principal_name),
            one.issue_timestamp,
            one.expiry_timestamp,
            one.max_timestamp,
            tuple(Principal(each.principal_type, each.principal_name) for each in one.renewers),
        )
        for one in answer.tokens
    ]
