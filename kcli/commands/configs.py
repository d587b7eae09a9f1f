"""`kcli configs`: shows and changes the configurations of a running cluster (Kafka: kafka-configs).

    --entity-type     --entity-name              short form
    ----------------  -------------------------  --------------------
    topics            a topic                    --topic TOPIC
    brokers           a broker's id, or          --broker ID
                      --entity-default for all
    broker-loggers    a broker's id              --broker-logger ID
    groups            a group                    --group GROUP
    client-metrics    a subscription             --client-metrics NAME

Without a name, all entities of the type that have configurations are shown.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kcli.commands.admin_command import (
    ACTION_USAGE,
    action_epilog,
    add_action,
    add_actions,
    ask,
    cell,
    done,
    print_lines,
    run_action,
    split_words,
    table,
    values_of,
)
from kcli.commands.output import EXIT_FINDINGS, EXIT_OK, CannotRun, print_message
from kcli.inspect.json_text import JsonObject, dump
from kcli.inspect.quantities import format_count

if TYPE_CHECKING:
    from kcli.client.admin.configs import AlterConfigOp, ConfigEntry, ConfigResource
    from kcli.client.admin.operation import Operation

USAGE = ACTION_USAGE
DESCRIPTION = (
    "Shows and changes the configurations of topics, brokers and loggers, groups and client metrics of a running cluster."
)
EPILOG = action_epilog("configs")

# The option of the short form, the words of --entity-type, the name of the resource type.
_ENTITIES = (
    ("topic", "topics", "TOPIC"),
    ("broker", "brokers", "BROKER"),
    ("broker-logger", "broker-loggers", "BROKER_LOGGER"),
    ("group", "groups", "GROUP"),
    ("client-metrics", "client-metrics", "CLIENT_METRICS"),
)
_TYPES = {words: kind for _, words, kind in _ENTITIES}
_METAVARS = {"topic": "TOPIC", "group": "GROUP", "client-metrics": "NAME"}
_COLUMNS = (("config", "name"), ("value", "value"), ("source", "source"), ("read only", "readOnly"))
# key=value, or key=[value,with,commas]
_PAIR = re.compile(r"\s*([^=,\[\]\s]+)\s*=\s*(?:\[([^\]]*)\]|((?!\[)[^,]*))\s*(?:,|$)")
run = run_action


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `kcli configs`."""
    actions = add_actions(parser)
    describing = add_action(actions, "describe", _describe, "show configurations", takes_controllers=True)
    describing.add_argument("--all", action="store_true", help="show also configs that have their default value")
    help_text = "change some configurations of a topic, broker, group or other entity"
    altering = add_action(actions, "alter", _alter, help_text, takes_controllers=True)
    for one in (describing, altering):
        one.add_argument("--entity-type", choices=list(_TYPES), metavar="TYPE", help=", ".join(_TYPES))
        one.add_argument("--entity-name", metavar="NAME", help="name of the entity; for a broker its id")
        one.add_argument(
            "--entity-default", action="store_true", help="with --entity-type brokers: the defaults of all brokers"
        )
        for option, words, _ in _ENTITIES:
            metavar = _METAVARS.get(option, "ID")
            one.add_argument(f"--{option}", metavar=metavar, help=f"short for --entity-type {words} --entity-name {metavar}")
    altering.add_argument(
        "--add-config",
        metavar="PAIRS",
        action="append",
        default=[],
        help="set these configs: KEY=VALUE,KEY=[A,B]; may be repeated",
    )
    altering.add_argument(
        "--delete-config",
        metavar="KEYS",
        action="append",
        default=[],
        help="reset these configs to their defaults: KEY,KEY; may be repeated",
    )
    altering.add_argument("--dry-run", action="store_true", help="only have the cluster check the request; change nothing")


def parse_values(text: str, option: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of KEY=VALUE,KEY=[A,B]. Raises CannotRun."""
    if option == "--config":  # one pair: commas belong to its value
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise CannotRun(f"{option}: {text!r} is not KEY=VALUE")
        yield name.strip(), value.strip().removeprefix("[").removesuffix("]")
        return
    at = 0
    while at < len(text):
        found = _PAIR.match(text, at)
        if found is None:
            raise CannotRun(f"{option}: {text[at:]!r} is not KEY=VALUE; values with commas are written as KEY=[A,B]")
        yield found[1], (found[3] if found[2] is None else found[2]).strip()
        at = found.end()


def refuse_repeated(names: Iterable[str]) -> None:
    """Raise CannotRun for a config that is named twice: only one of the values could have an effect."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise CannotRun(f"{name} is named twice")
        seen.add(name)


def _named(args: argparse.Namespace) -> tuple[str, str | None]:
    """Return the type and the name of the entity, None for all of the type. Raises CannotRun."""
    short = [(kind, getattr(args, option.replace("-", "_"))) for option, _, kind in _ENTITIES]
    given = [(kind, name) for kind, name in short if name is not None]
    if len(given) + (args.entity_type is not None) != 1:
        options = ", ".join(f"--{option}" for option, _, _ in _ENTITIES)
        raise CannotRun(f"name one entity: --entity-type with --entity-name, or one of {options}")
    if given and args.entity_name is not None:
        raise CannotRun("--entity-name is for --entity-type")
    kind, name = given[0] if given else (_TYPES[args.entity_type], args.entity_name)
    if args.entity_default:
        if kind != "BROKER" or name is not None:
            raise CannotRun("--entity-default is for --entity-type brokers without a name")
        name = ""
    if name and kind in ("BROKER", "BROKER_LOGGER") and not (name.isascii() and name.isdigit()):
        raise CannotRun(f"{name!r} is not the id of a broker")
    return kind, name


def _resource(kind: str, name: str) -> ConfigResource:
    from kcli.client.admin.configs import ConfigResource, ResourceType

    return ConfigResource(ResourceType[kind], name)


def _all_of(kind: str) -> Operation[list[ConfigResource]]:
    """Return the resources of a type; brokers before Kafka 4.1 list those of client metrics only, controllers none."""
    from kcli.client.admin.brokers import live_brokers
    from kcli.client.admin.cluster import describe_cluster
    from kcli.client.admin.configs import list_config_resources
    from kcli.client.admin.topics import list_topics
    from kcli.client.errors import KafkaError, UnsupportedVersionError
    from kcli.protocol import error_codes

    try:
        return (yield from list_config_resources([_resource(kind, "").type]))
    except UnsupportedVersionError:
        if kind == "TOPIC":
            return [_resource(kind, name) for name in (yield from list_topics(include_internal=True))]
        if kind in ("BROKER", "BROKER_LOGGER"):
            return [_resource(kind, str(broker)) for broker in (yield from live_brokers())]
        raise
    except KafkaError as error:
        if error.code != error_codes.UNSUPPORTED_ENDPOINT_TYPE or kind not in ("BROKER", "BROKER_LOGGER"):
            raise
        return [_resource(kind, str(node.node_id)) for node in (yield from describe_cluster()).nodes]


def _describe(args: argparse.Namespace) -> int:
    from kcli.client.admin.configs import describe_configs

    kind, name = _named(args)
    if name is None:
        resources = sorted(ask(args, _all_of(kind)))
        if kind == "BROKER":
            resources = [_resource(kind, ""), *(one for one in resources if one.name)]
    else:
        resources = [_resource(kind, name)]
    outcomes = ask(args, describe_configs(resources, include_synonyms=True))
    found, code = values_of(outcomes, lambda resource: resource.name or "defaults of all brokers")
    for resource, entries in found.items():
        rows = [_row(one) for _, one in sorted(entries.items()) if args.all or _is_set(resource, one)]
        if args.output == "json":
            head = {"entityType": resource.type.name, "entityName": resource.name}
            print_lines([dump({**head, "configs": rows})])
            continue
        title = f"{resource.type.name.lower().replace('_', ' ')} {cell(resource.name) or '(defaults of all)'}"
        print_lines([title, *(table(rows, _COLUMNS) if rows else ["  nothing is set; --all shows the defaults"])])
    return code


def _is_set(resource: ConfigResource, one: ConfigEntry) -> bool:
    """Return whether a configuration was set for the resource itself, as kafka-configs shows without --all."""
    from kcli.client.admin.configs import ConfigSource, ResourceType

    sources = {
        ResourceType.TOPIC: ConfigSource.TOPIC_CONFIG,
        ResourceType.BROKER: ConfigSource.DYNAMIC_BROKER_CONFIG,
        ResourceType.BROKER_LOGGER: ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
        ResourceType.GROUP: ConfigSource.DYNAMIC_GROUP_CONFIG,
        ResourceType.CLIENT_METRICS: ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG,
    }
    if resource.type is ResourceType.BROKER and not resource.name:
        return one.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return one.source is sources[resource.type]


def _row(one: ConfigEntry) -> JsonObject:
    return {
        "name": one.name,
        "value": one.value,
        "source": one.source.name,
        "sensitive": one.is_sensitive,
        "readOnly": one.is_read_only,
        "type": one.type.name,
        "synonyms": {f"{each.source.name}:{each.name}": each.value for each in one.synonyms},
    }


def _changes(args: argparse.Namespace) -> list[AlterConfigOp]:
    from kcli.client.admin.configs import AlterConfigOp, AlterOperation

    changes = [
        AlterConfigOp(name, AlterOperation.SET, value)
        for text in args.add_config
        for name, value in parse_values(text, "--add-config")
    ]
    changes += (AlterConfigOp(name, AlterOperation.DELETE) for name in split_words(args.delete_config))
    if not changes:
        raise CannotRun("name what to change: --add-config KEY=VALUE or --delete-config KEY")
    refuse_repeated(one.name for one in changes)
    return changes


def _shown_value(change: AlterConfigOp) -> str | None:
    """Return the new value, None for a deletion; a password does not belong into the output of a script."""
    from kcli.state.metadata_values import is_sensitive_config

    return "(hidden)" if change.value is not None and is_sensitive_config(change.name) else change.value


def _alter(args: argparse.Namespace) -> int:
    from kcli.client.admin.configs import describe_configs, incremental_alter_configs
    from kcli.client.admin.operation import value_of

    kind, name = _named(args)
    if name is None:
        raise CannotRun("name the entity: --entity-name, or --entity-default for all brokers")
    resource, changes = _resource(kind, name), _changes(args)
    deleted = [one.name for one in changes if one.value is None]
    if deleted:
        entries = value_of(ask(args, describe_configs([resource]))[resource])
        for missing in (one for one in deleted if one not in entries or not _is_set(resource, entries[one])):
            print_message(f"{missing} is not set for {resource.name or 'all brokers'}")
            return EXIT_FINDINGS
    _, code = values_of(
        ask(args, incremental_alter_configs({resource: changes}, validate_only=args.dry_run)), lambda one: one.name
    )
    if code == EXIT_OK:
        row = {
            "entityType": resource.type.name,
            "entityName": resource.name,
            "altered": not args.dry_run,
            "changes": {one.name: _shown_value(one) for one in changes},
        }
        what = f"{resource.type.name.lower().replace('_', ' ')} {resource.name or '(defaults of all)'}"
        done(args, row, f"{'would change' if args.dry_run else 'changed'} {format_count(len(changes), 'config')} of {what}")
    return code
