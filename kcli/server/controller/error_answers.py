"""Responses to requests that are refused as a whole, in the form that each API has for it.

form                                      APIs
----------------------------------------  ----------------------------------------------------------------------
ErrorCode and, if it exists, ErrorMessage  most
an error for each topic or resource       CreateTopics, DeleteTopics, CreatePartitions, AlterConfigs,
in the request                            IncrementalAlterConfigs, AlterClientQuotas, AlterUserScramCredentials
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.protocol.apis import (
    ALTER_CLIENT_QUOTAS,
    ALTER_CONFIGS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    INCREMENTAL_ALTER_CONFIGS,
    Api,
)
from kcli.protocol.message import Message


def error_answer(api: Api, version: int, request: Message, code: int, message: str | None) -> Message:
    """Return the response to a request that is refused as a whole."""
    fill_in = _PER_ITEM.get(api.key)
    if fill_in is not None:
        return fill_in(api, version, request, {"error_code": code, "error_message": message})
    response = api.response.new(error_code=code)
    if hasattr(response, "error_message"):
        response.error_message = message
    return response


def _topics(field: str, struct: str) -> Callable[[Api, int, Message, dict[str, object]], Message]:
    def fill_in(api: Api, version: int, request: Message, error: dict[str, object]) -> Message:
        made = api.response.classes[struct]
        names = dict.fromkeys(topic.name for topic in request.topics)
        return api.response.new(**{field: [made(name=name, **error) for name in names]})

    return fill_in


def _deleted(api: Api, version: int, request: Message, error: dict[str, object]) -> Message:
    made = api.response.classes["DeletableTopicResult"]
    if version < 6:
        results = [made(name=name, **error) for name in dict.fromkeys(request.topic_names)]
    else:
        results = [made(name=topic.name, topic_id=topic.topic_id, **error) for topic in request.topics]
    return api.response.new(responses=results)


def _resources(api: Api, version: int, request: Message, error: dict[str, object]) -> Message:
    struct = "AlterConfigsResourceResponse"
    made = api.response.classes[struct]
    return api.response.new(
        responses=[made(resource_type=one.resource_type, resource_name=one.resource_name, **error) for one in request.resources]
    )


def _quotas(api: Api, version: int, request: Message, error: dict[str, object]) -> Message:
    entry, entity = api.response.classes["EntryData"], api.response.classes["EntityData"]
    entries = []
    for asked in request.entries:
        parts = [entity(entity_type=part.entity_type, entity_name=part.entity_name) for part in asked.entity]
        entries.append(entry(entity=parts, **error))
    return api.response.new(entries=entries)


def _users(api: Api, version: int, request: Message, error: dict[str, object]) -> Message:
    made = api.response.classes["AlterUserScramCredentialsResult"]
    users = dict.fromkeys([one.name for one in request.deletions] + [one.name for one in request.upsertions])
    return api.response.new(results=[made(user=user, **error) for user in users])


_PER_ITEM: dict[int, Callable[[Api, int, Message, dict[str, object]], Message]] = {
    CREATE_TOPICS: _topics("topics", "CreatableTopicResult"),
    CREATE_PARTITIONS: _topics("results", "CreatePartitionsTopicResult"),
    DELETE_TOPICS: _deleted,
    ALTER_CONFIGS: _resources,
    INCREMENTAL_ALTER_CONFIGS: _resources,
    ALTER_CLIENT_QUOTAS: _quotas,
    ALTER_USER_SCRAM_CREDENTIALS: _users,
}
