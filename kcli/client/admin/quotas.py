"""Quotas of users, clients and addresses (KIP-546; Kafka: ClientQuotaEntity, ClientQuotaFilter, ClientQuotaAlteration).

    operation               API                   node
    ----------------------  --------------------  --------------
    describe_client_quotas  DescribeClientQuotas  any broker
    alter_client_quotas     AlterClientQuotas     the controller

An entity is made of parts such as ("user", "alice"), ("client-id", "loader"), ("ip", "10.0.0.1"); a part whose name is None is
the default of its type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from kcli.client.admin.driver import refused
from kcli.client.admin.error_sentences import outcome_error
from kcli.client.admin.operation import Call, Operation, Outcomes, RequestContext, Route, run, run_one
from kcli.client.errors import ClientError
from kcli.protocol.apis import ALTER_CLIENT_QUOTAS, API_KEYS, DESCRIBE_CLIENT_QUOTAS
from kcli.protocol.message import Message

# The parts of an entity, sorted by type.
QuotaEntity = tuple[tuple[str, str | None], ...]


class QuotaMatch(IntEnum):
    """How a part of an entity is matched."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class QuotaFilterPart(NamedTuple):
    """Entities with a part of this type; `name` is for EXACT."""

    entity_type: str
    match: QuotaMatch
    name: str | None = None


def entity_of(parts: Mapping[str, str | None]) -> QuotaEntity:
    """Return the entity for names by type."""
    return tuple(sorted(parts.items()))


def describe_client_quotas(
    parts: Iterable[QuotaFilterPart] = (), *, strict: bool = False
) -> Operation[dict[QuotaEntity, dict[str, float]]]:
    """Return the quotas of the entities that match all parts; `strict`: and have no other part. Raises KafkaError."""
    wanted = list(parts)

    def request(_keys: Sequence[str], _context: RequestContext) -> Message:
        kind = API_KEYS[DESCRIBE_CLIENT_QUOTAS].request
        one = kind.classes["ComponentData"]
        components = [one(entity_type=part.entity_type, match_type=part.match, match=part.name) for part in wanted]
        return kind.new(components=components, strict=strict)

    def read(keys: Sequence[str], answer: Message) -> Iterable[tuple[str, Message | ClientError]]:
        if answer.error_code:
            return refused(keys, answer.error_code, answer.error_message)
        return [(keys[0], answer)]

    answer = yield from run_one(Call(DESCRIBE_CLIENT_QUOTAS, Route.ANY, request, read), "quotas")
    return {_entity(one): {value.key: value.value for value in one.values} for one in answer.entries or ()}


def _entity(one: Message) -> QuotaEntity:
    return entity_of({part.entity_type: part.entity_name for part in one.entity})


def alter_client_quotas(
    changes: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool = False
) -> Operation[Outcomes[QuotaEntity, None]]:
    """Set quotas of entities, or remove them (None); `validate_only` checks and changes nothing."""

    def request(keys: Sequence[QuotaEntity], _context: RequestContext) -> Message:
        kind = API_KEYS[ALTER_CLIENT_QUOTAS].request
        entry, part, op = kind.classes["EntryData"], kind.classes["EntityData"], kind.classes["OpData"]
        entries = [
            entry(
                entity=[part(entity_type=kind_of, entity_name=name) for kind_of, name in key],
                ops=[op(key=name, value=value or 0.0, remove=value is None) for name, value in changes[key].items()],
            )
            for key in keys
        ]
        return kind.new(entries=entries, validate_only=validate_only)

    def read(keys: Sequence[QuotaEntity], answer: Message) -> Iterator[tuple[QuotaEntity, ClientError | None]]:
        asked = {entity_of(dict(key)): key for key in keys}  # a caller may have the parts in another order
        for one in answer.entries:
            entity = _entity(one)
            yield asked.get(entity, entity), outcome_error(one.error_code, one.error_message)

    return (yield from run(Call(ALTER_CLIENT_QUOTAS, Route.CONTROLLER, request, read), changes))
