"""The topics of a replay: which of the source are replayed, and their names in the target.

    --map OLD=NEW               OLD is                           NEW is
    --------------------------  -------------------------------  ----------------------------------------------------------
    orders=orders-copy          a name: only letters, digits,    the name
                                `.`, `_` and `-`
    (.*)=backup.\\1              a regular expression (Python's   the name, in which \\1 or \\g<name> is a group of the
                                re), which has to match all of   match
                                a name

A name is preferred to regular expressions, and these are tried in the order in which they are given. A topic that no --map
matches keeps its name.

Internal topics (`__consumer_offsets`, ...) are left out unless a --map names one of them: a broker writes its own. For the same
reason no topic may get the name of an internal topic.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from kcli.format.file_names import METADATA_TOPIC
from kcli.inspect.description.remarks import missing_name
from kcli.state.topic_names import INTERNAL_TOPICS, topic_name_fault

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_NOT_PRODUCED = INTERNAL_TOPICS | {METADATA_TOPIC}


class MappingError(ValueError):
    """A --map that cannot be used, or that gives two topics one name; the message is one sentence."""


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    new: str


class TopicMapping:
    """The names of topics in the target, and the selection of topics by `globs` (none: all)."""

    def __init__(self, names: dict[str, str], rules: Sequence[_Rule], globs: Sequence[str] = ()) -> None:
        self.globs = tuple(globs)
        self._names = names
        self._rules = tuple(rules)

    def target_of(self, topic: str) -> str | None:
        """Return the name of a topic in the target, None if it is left out. Raises MappingError if no topic can have it."""
        if self.globs and not any(fnmatchcase(topic, glob) for glob in self.globs):
            return None
        target = self._names.get(topic)
        if target is None and topic in _NOT_PRODUCED:
            return None
        if target is None:
            target = next((found for rule in self._rules if (found := _renamed(rule, topic)) is not None), topic)
        if target in _NOT_PRODUCED:
            raise MappingError(
                f"--map gives the topic {topic!r} the name {target}, an internal topic, which a broker writes itself; give it "
                "another name, or leave it out with --topic"
            )
        fault = topic_name_fault(target)
        if fault is not None and target == topic:
            raise MappingError(
                f"the source has the topic {topic!r}, which the target cannot have: {fault}; give it another name with --map, "
                "or name the other topics with --topic"
            )
        if fault is not None:
            raise MappingError(f"--map gives the topic {topic!r} a name that no topic can have: {fault}")
        return target

    def targets(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the names of those topics that are replayed. Raises MappingError, also if two get the same name."""
        found: dict[str, str] = {}
        sources: dict[str, str] = {}
        for topic in topics:
            target = self.target_of(topic)
            if target is None:
                continue
            other = sources.setdefault(target, topic)
            if other != topic:
                raise MappingError(
                    f"the topics {other!r} and {topic!r} would both become {target!r}; give one of them another name with --map"
                )
            found[topic] = target
        return found

    def check_topics(self, topics: Collection[str]) -> None:
        """Raise MappingError for a --topic, or the name of a --map, that no topic of the source has.

        A topic would be left out without a message, or sent under its own name.
        """
        for option, name in [*(("--topic", glob) for glob in self.globs), *(("--map", name) for name in self._names)]:
            sentence = missing_name("topic", name, topics)
            if sentence is not None:
                raise MappingError(f"{option} {name}: {sentence}")
        for name in self._names:
            if self.globs and not any(fnmatchcase(name, glob) for glob in self.globs):
                raise MappingError(f"--map {name}={self._names[name]}: --topic leaves the topic out; leave one of them out")


def _renamed(rule: _Rule, topic: str) -> str | None:
    match = rule.pattern.fullmatch(topic)
    if match is None:
        return None
    try:
        return match.expand(rule.new)
    except (re.error, IndexError) as error:
        raise MappingError(f"--map {rule.pattern.pattern}={rule.new}: the new name cannot be made: {error}") from None


def parse_mapping(options: Iterable[str], globs: Sequence[str] = ()) -> TopicMapping:
    """Parse the values of --map. Raises MappingError."""
    names: dict[str, str] = {}
    rules: list[_Rule] = []
    for text in options:
        old, equals, new = text.rpartition("=")
        if not equals or not old or not new:
            raise MappingError(f"--map {text}: write OLD=NEW")
        if _NAME.fullmatch(old):
            if names.setdefault(old, new) != new:
                raise MappingError(f"--map gives the topic {old!r} two names, {names[old]!r} and {new!r}")
            continue
        try:
            rules.append(_Rule(re.compile(old), new))
        except re.error as error:
            raise MappingError(f"--map {text}: {old!r} is not a regular expression: {error}") from None
    return TopicMapping(names, rules, globs)
