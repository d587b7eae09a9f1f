"""kcli's answers to tests/oracle/config_questions without a broker around them: image, configuration, functions.

What a broker and its controller do with such requests, in a few lines: so that every step can be compared with what Kafka
answered, entry by entry. The fixture holds Kafka's answers: `python -m tests.oracle.config_answers` asks anew and writes it.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.error_codes import INVALID_CONFIG
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type
from kcli.server.config.alter_configs import (
    Operation,
    decide,
    decide_replacement,
    elr_safety_records,
    preprocess,
    preprocess_replacement,
    resource_of,
)
from kcli.server.config.describe_configs import ConfigEntry, describe, describe_created_topic, list_config_resources
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.loading import configure
from kcli.server.config.request_errors import ConfigRequestError
from kcli.server.config.topic_config import check_topic_config
from kcli.server.log_lines import Loggers
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import CONFIG_RESOURCE_TYPES, ConfigResource
from tests.oracle.brokers import new_broker
from tests.oracle.config_questions import STATIC_SETTINGS, Step, all_steps, ask_all
from tests.oracle.peer import Peer

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "configs" / "answers.json.gz"
_NUMBERS = {name: number for number, name in CONFIG_RESOURCE_TYPES.items()}


def record(kind: str, /, **fields: Any) -> Message:
    """A record of the metadata log."""
    return message_type("metadata_records", kind).new(**fields)


class Answers:
    """A broker, which is its own controller, as far as configurations go."""

    def __init__(self, properties: str) -> None:
        config = configure(properties.encode("latin-1"), "server.properties", serving=False)
        self.image = MetadataImage()
        self.dynamic = DynamicConfig(config)
        self.loggers = Loggers(lambda line: None)
        self._apply(record("RegisterBrokerRecord", broker_id=1))
        self._apply(record("FeatureLevelRecord", name="metadata.version", feature_level=30))
        self._apply(record("FeatureLevelRecord", name="eligible.leader.replicas.version", feature_level=1))
        self._apply(*elr_safety_records(self.image, self.dynamic.current))

    def answer(self, step: Step) -> Any:
        """The answer to a step."""
        return getattr(self, f"_{step['ask']}")(step)

    def _apply(self, *records: Message) -> None:
        for one in records:
            self.image.apply(one)
        self.dynamic.follow(self.image)

    def _create(self, step: Step) -> Any:
        configs = step["configs"]
        try:
            if None in configs.values():
                raise ConfigRequestError(INVALID_CONFIG, "null")
            check_topic_config(self.dynamic.current, configs)
        except ConfigRequestError as error:
            return {"error": error.code, "configs": []}
        topic_id = Uuid(len(self.image.topics).to_bytes(16, "big"))
        self._apply(record("TopicRecord", name=step["topic"], topic_id=topic_id))
        self._apply(
            *(
                record("ConfigRecord", resource_type=2, resource_name=step["topic"], name=name, value=value)
                for name, value in configs.items()
            )
        )
        entries = describe_created_topic(configs, self.dynamic)
        return {
            "error": 0,
            "configs": [[one.name, one.value, one.source, one.is_read_only, one.is_sensitive] for one in entries],
        }

    def _change(self, step: Step) -> Any:
        operations = [Operation(*one) for one in step["operations"]]
        try:
            resource = resource_of(step["type"], step["name"])
            preprocess(resource, operations, self.image, self.dynamic)
            records = decide(resource, operations, self.image, self.dynamic.current)
        except ConfigRequestError as error:
            return {"errors": [error.code]}
        if not step.get("validate_only"):
            self._apply(*records)
        return {"errors": [0]}

    def _replace(self, step: Step) -> Any:
        try:
            resource = resource_of(step["type"], step["name"])
            preprocess_replacement(resource, step["configs"], self.dynamic)
            self._apply(*decide_replacement(resource, step["configs"], self.image, self.dynamic.current))
        except ConfigRequestError as error:
            return {"errors": [error.code]}
        return {"errors": [0]}

    def _describe(self, step: Step) -> Any:
        try:
            entries = describe(resource_of(step["type"], step["name"]), step["keys"], self.image, self.dynamic, self.loggers)
        except ConfigRequestError as error:
            return {"error": error.code, "configs": []}
        return {"error": 0, "configs": [_plain(entry) for entry in entries]}

    def _list(self, step: Step) -> Any:
        self.image.configs.setdefault(ConfigResource("CLIENT_METRICS", "mark"), {"interval.ms": "1000"})
        try:
            resources = list_config_resources(step["types"], self.image)
        except ConfigRequestError as error:
            return {"error": error.code, "resources": []}
        return {"error": 0, "resources": sorted([_NUMBERS[one.type], one.name] for one in resources)}


def _plain(entry: ConfigEntry) -> list[Any]:
    synonyms = [list(synonym) for synonym in entry.synonyms]
    return [entry.name, entry.value, entry.source, entry.is_read_only, entry.is_sensitive, entry.type, synonyms]


def ask_kafka(peer: Peer, home: Path) -> dict[str, Any]:
    """What Apache Kafka answers: its server.properties, and pairs of a step and its answer."""
    steps = all_steps()
    with new_broker(peer, home, *STATIC_SETTINGS) as address:
        answers = ask_all(address, steps)
        properties = (home / "server.properties").read_text()
    return {"server.properties": properties, "answers": list(zip(steps, answers))}


def load_fixture() -> dict[str, Any]:
    """What Apache Kafka answered when the fixture was made."""
    found: dict[str, Any] = json.loads(gzip.decompress(FIXTURE.read_bytes()))
    return found


def write_fixture() -> None:
    """Ask Apache Kafka anew and put its answers down."""
    with tempfile.TemporaryDirectory() as folder:
        found = ask_kafka(Peer(Path(folder)), Path(folder) / "broker")
        text = json.dumps(found, separators=(",", ":")).replace(folder, "/tmp/kafka")
    FIXTURE.parent.mkdir(parents=True, exist_ok=True)
    FIXTURE.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    write_fixture()
